"""The application: the screens, the conversation next to them, the status line and the end."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, ClassVar

from rich.cells import cell_len
from rich.console import RenderableType
from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.scrollbar import ScrollBar
from textual.widgets import Input, Static
from textual.worker import WorkerFailed

from memctl.browser.actions import ACTIONS, Action, Operation
from memctl.browser.catalogue import Catalogue
from memctl.browser.commands import word
from memctl.browser.conversation import Conversation
from memctl.browser.document import Context
from memctl.browser.filter import LANGUAGE, parse
from memctl.browser.names import Names
from memctl.browser.overlay import Asking, Choice, Help, MessageSheet, Overlay
from memctl.browser.pane import ListPane, Pane, Sheet, WholeBar, cut_before, drawn, spread
from memctl.browser.screens import SCREENS
from memctl.browser.search import Search
from memctl.browser.source import Reader, Source
from memctl.errors import MemctlError, UsageError
from memctl.journal.runs import Run
from memctl.location import visible
from memctl.model import MemoryInfo, MemoryKey
from memctl.ops.names import refuse_absent_in
from memctl.text.numbers import count, size

WIDE = 100
"""The columns from which on two panes are side by side."""
LEAST = (60, 15)
"""The smallest terminal, in columns and lines."""
OUTCOME = 4
"""The largest number of lines that tell what an action did."""


class Prompt(Input):
    """The line in which a text is typed."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "app.give_up")]


class Browser(App[None]):
    """The browser of one store.

    After its end, ``failure`` is the error that ended it, ``copied`` are the commands that were
    copied, and ``acted`` are the actions.
    """

    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c,ctrl+q", "quit", show=False, priority=True),
        Binding("ctrl+z", "suspend_process", show=False, priority=True),
        *[("q", "quit"), ("?", "help"), ("x", "commands"), ("y", "copy")],
        *[("r", "read_anew"), ("s", "search"), ("f", "filter")],
        *[(key, f"change_screen('{key}')") for key in SCREENS],
        *[(key, f"act('{key}')") for key in ACTIONS],
    ]
    CSS = """
    Screen { layout: vertical; background: $background; }
    Static { height: auto; }
    #head, #filter, #foot, #asked, Prompt { height: 1; }
    #body, #small { height: 1fr; }
    Pane {
        width: 1fr; height: 100%; border: round $foreground; scrollbar-size-vertical: 1;
        border-title-style: bold; border-subtitle-align: right;
    }
    Pane:focus { border: round $primary; }
    Sheet { overflow-y: auto; }
    .ascii Pane { border: ascii $foreground; }
    .ascii Pane:focus { border: ascii $primary; }
    Prompt, Prompt:focus { border: none; width: 1fr; padding: 0; }
    #label { width: auto; }
    #asked { display: none; }
    """

    def __init__(self, source: Source, *, ascii_only: bool = False) -> None:
        super().__init__(ansi_color=True)  # the colours of the terminal; with NO_COLOR, none
        self.theme = "ansi-light" if _is_light() else "ansi-dark"
        self.animation_level = "none"
        ScrollBar.renderer = WholeBar
        self.set_class(ascii_only, "ascii")
        self.source = source
        self.failure: BaseException | None = None
        self.copied: list[str] = []
        self.acted: list[Operation] = []
        self._catalogue = Catalogue()
        self._screens = {key: make(source, self._catalogue) for key, make in SCREENS.items()}
        self._shown = "1"
        self._inside = False
        """True if the right pane is in use.  A narrow terminal then shows only the right pane."""
        self._conversation = Conversation(source)
        self._sheet = Sheet()
        self._blank = Sheet()
        """The right pane of a screen from which nothing was opened, or not last."""
        self._opened: Pane = self._conversation
        self._opened_on = "1"
        """The screen from which the conversation or the text was opened."""
        self._head, self._filter, self._foot = (Static(id=id) for id in ("head", "filter", "foot"))
        self._label = Static(id="label")
        self._asked = Horizontal(id="asked")
        self._body = Horizontal(id="body")
        self._told = ""
        self._is_error = False
        self._prompt = Prompt(id="prompt", select_on_focus=False)
        self._answer: Callable[[str | None, bool], object] | None = None
        self._small = Static(id="small")
        self._lister: Reader | None = None
        self._operation: Operation | None = None
        """The action that goes on."""
        self._whole: Pane.Told | None = None

    # Structure

    def compose(self) -> ComposeResult:
        """Yield the lines and panes."""
        yield self._head
        yield self._filter
        with self._body:
            yield from self._screens.values()
            yield self._conversation
            yield self._sheet
            yield self._blank
        yield self._small
        with self._asked:
            yield self._label
            yield self._prompt
        yield self._foot

    @property
    def left(self) -> ListPane[Any]:
        """The list of the screen that is shown."""
        return self._screens[self._shown]

    @property
    def names(self) -> Names:
        """The list of memories."""
        names = self._screens["1"]
        assert isinstance(names, Names)
        return names

    @property
    def right(self) -> Pane:
        """The pane on the right: what was opened on this screen, a conversation or a text."""
        return self._opened if self._opened_on == self._shown else self._blank

    @property
    def pane(self) -> Pane:
        """The pane that is in use."""
        return self.right if self._inside else self.left

    def on_mount(self) -> None:
        """Begin to read."""
        self.source.notices.tell = self._notice
        self.app_resume_signal.subscribe(self, lambda _: self.refresh(layout=True))
        self.screen.bindings_updated_signal.subscribe(self, lambda _: self._draw_lines())
        self._blank.show("", "", Text("Enter opens what is selected.", "dim"))
        self._small.update(f"memctl browse needs {LEAST[0]} columns and {LEAST[1]} lines")
        self._use(inside=False)
        self._list_again()

    def on_resize(self) -> None:
        """Show as many panes as there is room for."""
        self.call_later(self._arrange)

    def _arrange(self) -> None:
        width, height = self.size
        small = width < LEAST[0] or height < LEAST[1]
        for one in (self._head, self._body, self._foot):
            one.display = not small
        self._filter.display = self.source.filter is not None and not small
        self._small.display = small
        two = width >= WIDE
        for pane in self._screens.values():
            pane.display = pane is self.left and (two or not self._inside)
            pane.styles.width = pane.share if two else "1fr"
        for other in (self._conversation, self._sheet, self._blank):
            other.display = other is self.right and (two or self._inside)
        self._draw_lines()

    def _use(self, *, inside: bool) -> None:
        """Use the right pane, or the left one."""
        self._inside = inside
        self._arrange()
        self.pane.focus()

    def _write(self, place: Static, left: Text, right: Text) -> None:
        shown = spread(left, right, self.size.width)
        shown.plain = self.pane.redrawn(shown.plain)
        place.update(shown, layout=False)

    def _tabs(self, *, short: bool = False) -> Text:
        """Return the screens with their keys; with ``short``, only the name of the shown one."""
        tabs = Text()
        for key, screen in SCREENS.items():
            tabs.append(key, "cyan")
            title = "" if short and key != self._shown else f"{screen.TITLE} "
            tabs.append(f" {title}", "bold" if key == self._shown else "dim")
        return tabs

    def _draw_lines(self) -> None:
        known = self._catalogue
        state = "read-only" if self.source.writing is None else "write"
        label, *facts = visible(self.source.location.label), state
        if self._lister is not None:
            store = self._lister.store
            facts = [store.kind, state]
            if known.counted:
                number = count(known.messages, store.dialect.noun)
                only = f" · only {self.source.chosen}" if self.source.chosen else ""
                facts.insert(1, f"{number} · {size(known.bytes)}{only}")
        others = "".join(f"   {one}" for one in facts)
        room = self.size.width - cell_len(others) - 2
        for right in (self._tabs(), self._tabs(short=True), Text()):
            if self.size.width >= WIDE or right.cell_len + cell_len(label) <= room:
                break
        room -= right.cell_len
        left = Text.assemble(" ", (cut_before(label, room), "bold"), (others, "dim"))
        self._write(self._head, left, right)
        if self.source.filter is not None:
            untimed = self.source.shown.untimed
            facts = [f"only {visible(self.source.filter.fields)}"]
            if untimed.number:
                facts.append(f"{count(untimed.number, untimed.noun)} without a time left out")
            self._write(
                self._filter, Text(f" {' · '.join(facts)}", "yellow"), Text("Esc ends it", "dim")
            )
        self._foot.styles.height = 1
        if self._whole is not None:
            lines = drawn(Text(f" {visible(self._whole.text)}"), self.size.width)[:OUTCOME]
            self._foot.styles.height = len(lines)
            style = "bold red" if self._whole.error else "yellow"
            self._foot.update(Text("\n", style).join(lines))
            return
        if self._told:
            told, again = visible(self._told), Text()
            if self._is_error:  # its reason is at its end, after the name of the store
                told = cut_before(told, self.size.width - 16)
                again = Text.assemble(("r", "cyan"), " Read again")
            style = "bold red" if self._is_error else "yellow"
            self._write(self._foot, Text(f" {told}", style), again)
            return
        hints = Text()
        room = self.size.width - 15  # for the last two
        for key, what in [*self.pane.hints(), ("?", "Help"), ("q", "Quit")]:
            room -= cell_len(key) + cell_len(what) + 3
            if room >= 0 or key in "?q":
                hints.append(self.pane.redrawn(key), "cyan")
                hints.append(f" {what}  ")
        self._write(self._foot, hints, Text())

    # Reading

    async def _begin(self) -> None:
        """List the memories, then count them, with a store of its own.

        When it is read again, the list stays as it is until all is counted.

        Raises:
            MemctlError: the store cannot be read, and nothing was read of it before.
        """
        lister, known = self.source.reader(), self._catalogue
        found = known
        if known.listed:
            found, known.renewed = Catalogue(), True
        try:
            await lister.open()
            self._lister = lister
            known.facts = lister.store.dialect.facts
            await self._list(lister, found)
            await self._count(lister, found)
        except MemctlError as error:
            if not known.listed:
                raise
            self._tell(error.message, error=True)
        finally:
            known.renewed = False
            await lister.close()
        self._count_anew()
        self._draw_lines()

    async def _list(self, lister: Reader, found: Catalogue) -> None:
        names, where = self.names, self.source.shown

        def take(keys: list[MemoryKey]) -> None:
            found.add_keys(keys)
            self._count_anew()

        self._draw_lines()
        await lister.stream(lambda store: store.list_keys(where), take)
        if not found.memories:
            if where.named:
                await lister.run(lambda store: refuse_absent_in(where, 0, store))
            names.told = await lister.run(_contents) or "no memories"
        found.listed = True
        names.unfold_few()
        self._count_anew()
        if where.named and found.memories == 1 and self._conversation.document is None:
            self._go_in(self._conversation)
            self._conversation.open(next(iter(next(iter(found.users.values())).memories)))

    async def _count(self, lister: Reader, found: Catalogue) -> None:
        names, where = self.names, self.source.shown

        def take(infos: list[MemoryInfo]) -> None:
            found.add_counts(infos)
            self._count_anew()

        await lister.stream(lambda store: store.list_memories(where), take)
        found.finish(dict(lister.store.left_out.failures))
        self._catalogue.become(found)
        names.unfold_few()

    def _count_anew(self) -> None:
        for pane in self._screens.values():
            pane.counted()

    def on_pane_opened(self, event: Pane.Opened) -> None:
        """Open a memory."""
        self._go_in(self._conversation)
        self._conversation.open(event.key, event.target)

    def _notice(self, text: str) -> None:
        """Show a warning of a store, which comes from its thread."""
        with suppress(RuntimeError):  # the browser has ended
            self.call_later(self._tell, text)

    # Status and prompt

    def _tell(self, text: str, *, error: bool = False) -> None:
        """Show a text in the last line: until the next key, or an error until Esc."""
        if (text, error) != (self._told, self._is_error):
            self._told, self._is_error = text, error
            self._draw_lines()

    def _tell_whole(self, text: str, *, error: bool = False) -> None:
        """Show a text, of several lines if it is long, until the next key."""
        self._whole = Pane.Told(text, error) if text else None
        self._draw_lines()

    async def on_event(self, event: events.Event) -> None:
        """Clear the last line when a key is pressed."""
        if isinstance(event, events.Key) and not event.is_forwarded:
            if not self._is_error:
                self._tell("")
            if (told := self._whole) is not None:
                self._tell_whole("")
                if told.error and event.key == "escape":
                    return
        await super().on_event(event)

    def on_pane_told(self, event: Pane.Told) -> None:
        """Show a text of a pane."""
        self._tell(event.text, error=event.error)

    def on_pane_asked(self, event: Pane.Asked) -> None:
        """Let the user type a text, but not while a question of an action may come."""
        if self._operation is not None:
            self._tell("an action goes on; Esc stops it")
            return
        self._answer = event.answer
        self._label.update(Text(f" {event.label}: ", "cyan"))
        self._prompt.value = event.text
        self._prompt.select_all()  # so that what is typed replaces it
        self._asked.display = True
        self._foot.display = False
        self._prompt.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Pass on what is typed."""
        if self._answer is not None:
            self._answer(event.value, False)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Pass on what was typed."""
        self._end_prompt(event.value)

    def action_give_up(self) -> None:
        """End the prompt without an answer."""
        self._end_prompt(None)

    def _end_prompt(self, text: str | None) -> None:
        answer, self._answer = self._answer, None
        self._asked.display = False
        self._foot.display = True
        self.pane.focus()
        if answer is not None:
            answer(text, True)

    # Moving between panes

    def _go_in(self, pane: Pane) -> None:
        self._opened, self._opened_on = pane, self._shown
        self._use(inside=True)

    def on_pane_described(self, event: Pane.Described) -> None:
        """Show a text next to the list."""
        self._sheet.show(event.title, "", event.shown)
        self._go_in(self._sheet)

    def on_pane_left(self) -> None:
        """Go back: from the context to the messages, to the list, or to the memories."""
        pane = self._conversation
        if self._operation is not None:
            self.run_worker(self._operation.stop())
            return
        self._tell("")
        if pane.workers.cancel_group(pane, "seek"):
            return
        if self.pane is pane and isinstance(pane.document, Context):
            pane.action_toggle_context()
            return
        if self.source.filter is not None and self.pane in (pane, self.names):
            self._filter_by("", True)
            return
        if pane.workers.cancel_group(pane, "open") and pane.document is None:
            pane.blank()
        if self._inside:
            self._use(inside=False)
        else:
            self.action_change_screen("1")

    # Keys that mean the same everywhere

    def action_change_screen(self, key: str) -> None:
        """Show the list of another screen."""
        self._shown = key
        self._use(inside=False)
        self.left.entered()

    def action_search(self) -> None:
        """Ask for what to search in the store."""
        search = next(one for one in self._screens.values() if isinstance(one, Search))
        self.action_change_screen(next(key for key, one in SCREENS.items() if one is Search))
        if search.words:
            search.action_slash()

    def action_filter(self) -> None:
        """Ask for what the list and the conversation show alone."""
        fields = self.source.filter.fields if self.source.filter is not None else ""
        given = f"{fields} {self.names.filter}".strip()
        self.on_pane_asked(Pane.Asked("Filter", self._filter_by, given))

    def _filter_by(self, text: str | None, complete: bool) -> None:
        """Filter the names as they are typed, and messages after Enter."""
        try:
            found = parse(text or "", self.source.where)
        except UsageError as error:
            if complete:
                self._tell_whole(f"{error.message}; {error.hint}", error=True)
            return
        if self.pane is self.names:
            self.names.filter_by(found.words)
        elif found.words:
            if complete:
                told = f"'{found.words}' is no filter of messages; {LANGUAGE}"
                self._tell_whole(told, error=True)
            return
        if complete and text is not None:
            self.source.filter = found if found.fields else None
            self._arrange()
            self._list_again()
            self._conversation.filter_anew()

    def action_focus_next(self) -> None:
        """Use the other pane."""
        opened = self._inside or self.right is not self._blank
        if opened and self.focused in (self.left, self.right):
            self._use(inside=not self._inside)

    action_focus_previous = action_focus_next

    def action_help(self) -> None:
        """Show the table of keys."""
        self.push_screen(Overlay(Help()))

    def on_conversation_entered(self, event: Conversation.Entered) -> None:
        """Show a message whole."""
        self.push_screen(Overlay(MessageSheet(event.entry, event.dialect)))

    def action_commands(self) -> None:
        """Show commands for what is selected."""
        parts = self._lister is not None and self._lister.store.features.parts
        choice = Choice(self.source, self._catalogue, self.pane.subject(), parts=parts)
        self.push_screen(Overlay(choice))

    def on_choice_copied(self, event: Choice.Copied) -> None:
        """Copy a command, and keep it for the end."""
        self._copy(event.command)
        if event.command not in self.copied:
            self.copied.append(event.command)

    def action_copy(self) -> None:
        """Copy the id or the name of what is selected."""
        self._copy(self.pane.subject().copied)

    def _copy(self, text: str) -> None:
        if text := visible(text):  # a control character would act where the text is pasted
            self.copy_to_clipboard(text)
            self._tell(f"copied: {text}")

    def action_read_anew(self) -> None:
        """Read the store anew: names, counts and the open conversation."""
        self._tell("")
        if self._inside:
            self._list_again()
        else:
            self.left.read_anew()
        self._conversation.read_anew()

    def on_pane_outdated(self) -> None:
        """Read the names and counts anew."""
        self._list_again()

    def _list_again(self) -> None:
        self.run_worker(self._begin(), group="store", exclusive=True)

    # Actions

    def action_act(self, key: str) -> None:
        """Do what a key of ``ACTIONS`` does with what is selected."""
        action, chosen = ACTIONS[key], self.pane.selected()

        def begin(text: str | None = "", complete: bool = True) -> None:
            if complete and text is not None:
                self.run_worker(self._act(action, chosen, text))

        if self.source.writing is None:
            self._tell(f"memctl browse --write {word(self.source.argument)} changes it")
        elif self._operation is not None:
            self._tell("an action goes on; Esc stops it")
        elif chosen is None or isinstance(chosen, Run) != action.of_run:
            what = "a run that can be undone" if action.of_run else "memories or messages"
            self._tell(f"{action.name} needs {what} under the cursor")
        elif action.label:
            given = action.suggest(self.pane.subject())
            self.on_pane_asked(Pane.Asked(action.label, begin, given))
        else:
            begin()

    async def _act(self, action: Action, chosen: Any, text: str) -> None:
        """Carry out an action, show what it has done, and read the store anew."""
        assert self.source.writing is not None
        operation = Operation(self.source, self.source.writing, self._ask, self._tell)
        self._operation = operation
        self.acted.append(operation)
        try:
            await operation.perform(action, chosen, text)
        finally:
            self._operation = None
        self._tell_whole(operation.told, error=operation.failed)
        self._list_again()
        if operation.complete:
            self.names.picked.clear()
        self._conversation.read_anew(acted=operation.complete)
        if self.left is not self.names and not self._inside:
            self.left.read_anew()

    def _ask(self, shown: RenderableType, answer: Future[bool]) -> None:
        def answered(agreed: bool | None) -> None:
            if not answer.done():
                answer.set_result(bool(agreed))

        self.push_screen(Overlay(Asking(shown)), answered)

    async def action_quit(self) -> None:
        """End the browser; while an action goes on, stop the action alone."""
        if self._operation is None:
            self.exit()
        elif isinstance(self.screen, Overlay):
            self.screen.dismiss(False)
        else:
            self.run_worker(self._operation.stop())

    @property
    def is_acting(self) -> bool:
        """Return whether an action goes on, which must not be cut off."""
        return self._operation is not None and not self._operation.is_over

    async def stop_action(self) -> None:
        """Stop the action that goes on, if any, and wait for its end."""
        if self._operation is not None:
            await self._operation.stop()

    # The end

    def _handle_exception(self, error: Exception) -> None:
        """End the browser; Textual would print the values of variables, and so stored texts."""
        if self.failure is None:
            self.failure = error.error if isinstance(error, WorkerFailed) else error
        self.exit()

    async def close_stores(self) -> None:
        """Close what is open; what is running is cancelled."""
        ends = [self._conversation.end(), *(pane.end() for pane in self._screens.values())]
        ends += [one.close() for one in (self._lister, self._operation) if one is not None]
        await asyncio.gather(*ends)


async def _contents(store: Any) -> str:
    return await store.other_contents() if await store.is_empty() else ""


def _is_light() -> bool:
    """Return whether the terminal says that its background is light."""
    return os.environ.get("COLORFGBG", "").rpartition(";")[2] in ("7", "15")
