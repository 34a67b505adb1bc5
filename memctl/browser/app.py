"""The application: the screens, the conversation next to them, the status line and the end."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar

from rich.cells import cell_len
from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Input
from textual.worker import WorkerFailed

from memctl.browser.catalogue import Catalogue
from memctl.browser.commands import commands_for
from memctl.browser.conversation import Conversation
from memctl.browser.document import Context, Document, Whole, Windows
from memctl.browser.names import Names
from memctl.browser.overlay import KEYS, Choice, MessageSheet, Overlay, help_text
from memctl.browser.pane import (
    ASCII,
    BOLD,
    DIM,
    ERROR,
    LINK,
    PLAIN,
    WARNING,
    ListPane,
    Pane,
    Part,
    Sheet,
    Signs,
    Target,
    cut_before,
    line,
    name_of,
    spread,
)
from memctl.browser.screens import SCREENS, SEARCH, Setting
from memctl.browser.source import Reader, Source
from memctl.errors import MemctlError
from memctl.location import visible
from memctl.model import MemoryInfo, MemoryKey, StoredMessage
from memctl.ops.names import refuse_absent_in
from memctl.text.numbers import count, size

WIDE = 100
"""The columns from which on two panes are side by side."""
LEAST = (60, 15)
"""The smallest terminal, in columns and lines."""
SOUGHT = 1000
"""The number of messages that are searched at once."""


class Line(Widget):
    """One line of parts; ``left`` is cut to leave room for ``right``."""

    def __init__(self, name: str, signs: Signs) -> None:
        super().__init__(id=name)
        self._signs = signs
        self.left: list[Part] = []
        self.right: list[Part] = []

    def set(self, left: list[Part], right: list[Part] | None = None) -> None:
        """Show other parts."""
        redrawn = self._signs.redrawn
        self.left = [(redrawn(text), style) for text, style in left]
        self.right = [(redrawn(text), style) for text, style in right or []]
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """Return the line; lines below it are blank."""
        width = self.size.width
        return line(() if y else spread(self.left, self.right, width, self._signs.more), width)


class Prompt(Input):
    """The line in which a text is typed."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "app.give_up", show=False)]


class Browser(App[None]):
    """The browser of one store.

    After its end, ``failure`` is the error that ended it, and ``copied`` are the commands that were
    copied.
    """

    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c", "leave", show=False, priority=True),
        Binding("ctrl+q", "leave", show=False, priority=True),
        Binding("ctrl+z", "suspend_process", show=False, priority=True),
    ]
    CSS = """
    Screen { layout: vertical; background: $background; }
    Line { height: 1; }
    #body { height: 1fr; }
    Pane {
        width: 1fr; height: 100%; border: round $foreground;
        border-title-style: bold; border-subtitle-align: right;
    }
    Pane:focus { border: round $primary; }
    .ascii Pane, .ascii Pane:focus { border: ascii $foreground; }
    .ascii Pane:focus { border: ascii $primary; }
    Prompt, Prompt:focus { border: none; height: 1; width: 1fr; padding: 0; }
    #asked { height: 1; display: none; }
    #small { height: 1fr; }
    """

    def __init__(self, source: Source, *, ascii_only: bool = False) -> None:
        super().__init__(ansi_color=True)  # the colours of the terminal; with NO_COLOR, none
        self.theme = "ansi-light" if _is_light() else "ansi-dark"
        self.source = source
        self.failure: BaseException | None = None
        self.copied: list[str] = []
        self._signs = ASCII if ascii_only else Signs()
        self._ascii = ascii_only
        self._catalogue = Catalogue()
        setting = Setting(source, self._catalogue, self._signs)
        self._screens = {key: screen.make(setting) for key, screen in SCREENS.items()}
        self._shown = "1"
        self._inside = False
        """True if the right pane is in use.  A narrow terminal then shows only the right pane."""
        self._conversation = Conversation(self._signs)
        self._sheet = Sheet(self._signs)
        self._blank = Sheet(self._signs)
        """The right pane of a screen from which nothing was opened, or not last."""
        self._opened_on = "1"
        """The screen from which the conversation or the text was opened."""
        self._head, self._foot = Line("head", self._signs), Line("foot", self._signs)
        self._label = Line("label", self._signs)
        self._asked = Horizontal(id="asked")
        self._body = Horizontal(id="body")
        self._told = ""
        self._is_error = False
        self._prompt = Prompt(id="prompt", select_on_focus=False)
        self._answer: Callable[[str | None, bool], object] | None = None
        self._small = Line("small", self._signs)
        self._reader: Reader | None = None
        self._lister: Reader | None = None

    # Structure

    def compose(self) -> ComposeResult:
        """Yield the lines and panes."""
        yield self._head
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
    def left(self) -> ListPane:
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
        if self._opened_on != self._shown:
            return self._blank
        return self._sheet if self._sheet.has_class("-shown") else self._conversation

    def on_mount(self) -> None:
        """Begin to read."""
        self.screen.set_class(self._ascii, "ascii")
        self.source.notices.tell = self._notice
        self.app_resume_signal.subscribe(self, lambda _: self.refresh(layout=True))
        self._conversation.tell("", "Enter opens a memory.")
        self._blank.show(Text("Enter opens what is selected.", DIM))
        self._arrange()
        self.left.focus()
        self.run_worker(self._begin(), group="store", exclusive=True)

    def on_resize(self) -> None:
        """Show as many panes as there is room for."""
        self.call_later(self._arrange)

    def _arrange(self) -> None:
        width, height = self.size
        small = width < LEAST[0] or height < LEAST[1]
        for one in (self._head, self._body, self._foot):
            one.display = not small
        self._small.display = small
        self._small.set([(f"memctl browse needs {LEAST[0]} columns and {LEAST[1]} lines", PLAIN)])
        two = width >= WIDE
        for pane in self._screens.values():
            pane.display = pane is self.left and (two or not self._inside)
            pane.styles.width = pane.share if two else "1fr"
        right = self.right
        for other in (self._conversation, self._sheet, self._blank):
            other.display = other is right and (two or self._inside)
        self._draw_lines()

    def _draw_lines(self) -> None:
        known = self._catalogue
        facts = [visible(self.source.location.label)]
        if self._lister is not None and hasattr(self._lister, "store"):
            store = self._lister.store
            facts.append(store.kind)
            if known.counted:
                number = count(known.messages, store.dialect.noun)
                only = f" · only {self.source.chosen}" if self.source.chosen else ""
                facts.append(f"{number} · {size(known.bytes)}{only}")
        facts.append("read-only")
        right: list[Part] = []
        if self.size.width >= WIDE and len(SCREENS) > 1:
            for key, screen in SCREENS.items():
                style = BOLD if key == self._shown else DIM
                right += [(key, LINK), (f" {screen.title} ", style)]
        others = "".join(f"   {one}" for one in facts[1:])
        room = self.size.width - cell_len(others) - sum(cell_len(text) for text, _ in right) - 2
        self._head.set([(" ", PLAIN), (cut_before(facts[0], room), BOLD), (others, DIM)], right)
        if self._told:
            style = ERROR if self._is_error else WARNING
            again: list[Part] = [("r", LINK), (" Read again", PLAIN)] if self._is_error else []
            room = self.size.width - 16 * self._is_error
            # The reason of an error is at its end, after the name of the store.
            told = cut_before(visible(self._told), room) if self._is_error else visible(self._told)
            self._foot.set([(f" {told}", style)], again)
            return
        pane = self.right if self._inside else self.left
        hints = [*pane.hints(), ("?", "Help"), ("q", "Quit")]
        parts: list[Part] = []
        room = self.size.width - 15  # for the last two
        for key, what in hints:
            room -= cell_len(key) + cell_len(what) + 3
            if room >= 0 or key in "?q":
                parts += [(key, LINK), (f" {what}  ", PLAIN)]
        self._foot.set(parts)

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
            self._fail_softly(error)
        finally:
            known.renewed = False
            await lister.close()
        self._count_anew()
        self._draw_lines()

    async def _list(self, lister: Reader, found: Catalogue) -> None:
        names, where = self.names, self.source.where

        def take(keys: list[MemoryKey]) -> None:
            found.add_keys(keys)
            self._count_anew()

        self._draw_lines()
        await lister.stream(lambda store: store.list_keys(where), take)
        if not found.memories:
            if where.named:
                await lister.run(lambda store: refuse_absent_in(where, 0, store))
            names.nothing = await lister.run(_contents) or "no memories"
        found.listed = True
        names.unfold_few()
        self._count_anew()
        if where.named and found.memories == 1 and self._conversation.document is None:
            self._open(next(iter(next(iter(found.users.values())).memories)), None)

    async def _count(self, lister: Reader, found: Catalogue) -> None:
        names, where = self.names, self.source.where

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

    async def _store(self) -> Reader:
        """Return the reader of messages, which is opened when the first memory is."""
        if self._reader is None:
            reader = self.source.reader()
            await reader.open()
            self._reader = reader
        return self._reader

    def on_pane_opened(self, event: Pane.Opened) -> None:
        """Open a memory."""
        event.stop()
        self._open(event.key, event.target)

    def _open(self, key: MemoryKey, target: Target | None) -> None:
        self._go_in(self._conversation)
        self.run_worker(self._show(key, target), group="open", exclusive=True)

    async def _show(
        self,
        key: MemoryKey,
        target: Target | None,
        at: int | None = None,
        *,
        context: bool = False,
    ) -> None:
        pane, title = self._conversation, name_of(key)
        before = pane.document
        fresh = before is None or before.key != key
        if fresh:
            pane.tell(title, "reading…")
        try:
            reader = await self._store()
            dialect = reader.store.dialect
            document: Document
            if context:
                document = Context(reader, key)
            elif reader.store.features.cheap_windows and not reader.store.dialect.leaves_out:
                document = Windows(reader, key)
            else:
                document = Whole(reader, key)
            await document.open(self._tell_number)
            if target is not None:
                at = await _place(document, target, self._tell_searched)
        except MemctlError as error:
            if fresh:
                pane.tell(title, error.message)
            self._fail_softly(error)
            return
        lacks = target is not None and at is None
        told = "the message is not in this conversation" if lacks else ""
        if before is not None:
            gone = before.total - document.total
            if not fresh and type(before) is type(document) and gone > 0:
                told = f"{count(gone, dialect.noun)} were deleted meanwhile"
            before.close()
        if target is not None and target.found:
            pane.found = target.found
        if isinstance(document, Context):
            total = sum(document.tokens.values())
            pane.show(
                *(f"{title} · context", document, dialect, None),
                f"about {count(total, 'token')}",
                _shares(document.tokens),
            )
        else:
            pane.show(title, document, dialect, at)
        self._tell(told)
        self._draw_lines()

    def _tell_number(self, number: int) -> None:
        self._tell(f"reading… {number:,}" if number >= SOUGHT else "")

    def on_conversation_wanted(self, event: Conversation.Wanted) -> None:
        """Load a page of the conversation."""
        self.run_worker(self._load(event.document, event.page), group="page")

    async def _load(self, document: Document, page: int) -> None:
        pane, deleted = self._conversation, document.deleted
        try:
            await document.load(page)
        except MemctlError as error:
            pane.failed(page, error)
            self._fail_softly(error)
            return
        if document.deleted > deleted:
            self._tell(f"{count(document.deleted - deleted, 'message')} were deleted meanwhile")
        if pane.document is document:
            pane.loaded(page)

    def on_conversation_context_toggled(self) -> None:
        """Show what the model is sent, or all messages again."""
        pane = self._conversation
        assert pane.document is not None
        if self._reader is not None and self._reader.store.dialect.facts:
            self._tell("facts have no context")
            return
        context = not isinstance(pane.document, Context)
        self.run_worker(
            self._show(pane.document.key, None, context=context), group="open", exclusive=True
        )

    def on_conversation_sought(self, event: Conversation.Sought) -> None:
        """Look for a message, and move to it."""
        self.run_worker(self._seek(event), group="seek", exclusive=True)

    async def _seek(self, event: Conversation.Sought) -> None:
        pane = self._conversation
        document = pane.document
        if document is None:
            return
        self._tell("searching… Esc stops")
        begin = pane.cursor + event.step
        end = 0 if event.step > 0 else document.total - 1
        index, wrapped = None, False
        try:
            for start in (begin, end):
                wrapped = start == end
                index = await _find(document, event.matches, start, event.step, self._tell_searched)
                if index is not None:
                    break
        except MemctlError as error:
            self._fail_softly(error)
            return
        if index is None:
            self._tell(f"no {event.what}")
        elif pane.document is document:
            went_on = f"went on from the {'beginning' if event.step > 0 else 'end'}"
            self._tell(went_on if wrapped and index != begin else "")
            pane.go_to(index)

    def _tell_searched(self, number: int) -> None:
        self._tell(f"searching… {number:,} messages; Esc stops")

    def _fail_softly(self, error: MemctlError) -> None:
        self._tell(error.message, error=True)

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

    async def on_event(self, event: events.Event) -> None:
        """Clear the last line when a key is pressed."""
        if isinstance(event, events.Key) and not (event.is_forwarded or self._is_error):
            self._tell("")
        await super().on_event(event)

    def on_pane_told(self, event: Pane.Told) -> None:
        """Show a text of a pane."""
        event.stop()
        self._tell(event.text, error=event.error)

    def on_pane_hints_changed(self, event: Pane.HintsChanged) -> None:
        """Show the hints of a pane anew."""
        event.stop()
        self._draw_lines()

    def on_pane_asked(self, event: Pane.Asked) -> None:
        """Let the user type a text."""
        event.stop()
        self._answer = event.answer
        self._label.set([(f" {event.label}: ", LINK)])
        self._label.styles.width = cell_len(event.label) + 3
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
        (self.right if self._inside else self.left).focus()
        if answer is not None:
            answer(text, True)

    # Moving between panes

    def _go_in(self, pane: Pane) -> None:
        self._sheet.set_class(pane is self._sheet, "-shown")
        self._opened_on = self._shown
        self._inside = True
        self._arrange()
        pane.focus()

    def on_pane_described(self, event: Pane.Described) -> None:
        """Show a text next to the list."""
        event.stop()
        self._sheet.show(event.shown)
        self._go_in(self._sheet)
        self._sheet.call_after_refresh(self._sheet.name_it, event.title, "")

    def on_pane_left(self, event: Pane.Left) -> None:
        """Go back: from the context to the messages, to the list, or to the memories."""
        event.stop()
        self._tell("")
        if self.workers.cancel_group(self, "seek"):
            return
        shows_context = isinstance(self._conversation.document, Context)
        if self._inside and self.right is self._conversation and shows_context:
            self.on_conversation_context_toggled()
            return
        if self.workers.cancel_group(self, "open") and self._conversation.document is None:
            self._conversation.tell("", "Enter opens a memory.")
        if self._inside:
            self._inside = False
            self._arrange()
            self.left.focus()
        else:
            self._change_screen("1")

    def _change_screen(self, key: str) -> None:
        self._shown = key
        self._inside = False
        self._arrange()
        self.left.focus()
        self.left.entered()

    # Keys that mean the same everywhere

    def on_key(self, event: events.Key) -> None:
        """Do what a key means everywhere."""
        if self._prompt.has_focus:
            return
        if len(self.screen_stack) > 1:
            return
        key = event.character or event.key
        if key == "q":
            self.action_leave()
        elif key in SCREENS:
            self._change_screen(key)
        elif key == "s" and SEARCH in SCREENS:
            self._change_screen(SEARCH)
            self.left.slash()
        elif event.key in ("tab", "shift+tab"):
            self._change_pane()
        elif key == "?":
            self._overlay(self._help(), "Help", "Esc goes back", len(KEYS) + 2)
        elif key == "x":
            self._show_commands()
        elif key == "y":
            self._copy((self.right if self._inside else self.left).copied())
        elif key == "r":
            self._read_anew()
        elif key == "s":
            self._change_screen(SEARCH)
            self.left.slash()
        else:
            return
        event.stop()
        event.prevent_default()

    def _change_pane(self) -> None:
        if self._inside:
            self._inside = False
            self._arrange()
            self.left.focus()
        elif self.right is not self._blank:
            self._go_in(self.right)

    def _help(self) -> Sheet:
        sheet = Sheet(self._signs)
        sheet.show(help_text())
        return sheet

    def on_conversation_entered(self, event: Conversation.Entered) -> None:
        """Show a message whole."""
        assert self._reader is not None
        sheet = MessageSheet(self._signs, event.entry, self._reader.store.dialect)
        self._overlay(sheet, f"#{event.entry.number}", "v JSON · Esc goes back", 1000)

    def _show_commands(self) -> None:
        subject = (self.right if self._inside else self.left).subject()
        store = self._lister.store if self._lister is not None else None
        facts = store is not None and store.dialect.facts
        parts = store is not None and store.features.parts
        found = commands_for(self.source.argument, subject, facts=facts, parts=parts)
        pane = Choice(self._signs, found)
        foot = "Enter copies one · Esc goes back"
        if self.source.piped:
            foot = f"from a pipe: name the store · {foot}"
        self._overlay(pane, "Commands", foot, len(found) + 4)

    def _overlay(self, pane: Pane, title: str, foot: str, lines: int) -> None:
        self.push_screen(Overlay(pane, title, foot, lines))

    def on_choice_copied(self, event: Choice.Copied) -> None:
        """Copy a command, and keep it for the end."""
        self._copy(event.command)
        if event.command not in self.copied:
            self.copied.append(event.command)

    def _copy(self, text: str) -> None:
        if text := visible(text):  # a control character would act where the text is pasted
            self.copy_to_clipboard(text)
            self._tell(f"copied: {text}")

    def _read_anew(self) -> None:
        self._tell("")
        if self._inside:
            self._list_again()
        else:
            self.left.read_anew()
        self.run_worker(self._open_again(), group="open", exclusive=True)

    def _list_again(self) -> None:
        self.run_worker(self._begin(), group="store", exclusive=True)

    async def _open_again(self) -> None:
        """Open the store again; keep the conversation on the screen, even after a failure."""
        pane, old = self._conversation, self._reader
        if old is None:
            return
        self._reader = None
        try:
            await self._store()
        except MemctlError as error:
            self._reader = old
            self._fail_softly(error)
            return
        await old.close()
        if (document := pane.document) is not None:
            context = isinstance(document, Context)
            await self._show(document.key, None, pane.cursor, context=context)

    def on_pane_outdated(self, event: Pane.Outdated) -> None:
        """Read the names and counts anew."""
        event.stop()
        self._list_again()

    # The end

    def action_leave(self) -> None:
        """Quit."""
        self.exit()

    def _handle_exception(self, error: Exception) -> None:
        """End the browser; Textual would print the values of variables, and so stored texts."""
        if self.failure is None:
            self.failure = error.error if isinstance(error, WorkerFailed) else error
        self.exit()

    async def close_stores(self) -> None:
        """Close what is open; what is running is cancelled."""
        readers = [one for one in (self._lister, self._reader) if one is not None]
        ends = [pane.end() for pane in self._screens.values()]
        await asyncio.gather(*ends, *(reader.close() for reader in readers))
        if self._conversation.document is not None:
            self._conversation.document.close()


async def _contents(store: Any) -> str:
    return await store.other_contents() if await store.is_empty() else ""


async def _place(document: Document, target: Target, told: Callable[[int], object]) -> int | None:
    """Return the index of a message to open; None if it is not there."""
    if target.at is not None:
        found = await document.entries(target.at, 1)
        if found and target.matches(found[0].message):
            return target.at
    return await _find(document, target.matches, 0, 1, told)


async def _find(
    document: Document,
    matches: Callable[[StoredMessage], bool],
    start: int,
    step: int,
    told: Callable[[int], object],
) -> int | None:
    """Return the index of the nearest message that matches, from ``start`` on; None without one."""
    searched = 0
    while 0 <= start < document.total:
        first = start if step > 0 else max(start - SOUGHT + 1, 0)
        entries = await document.entries(first, SOUGHT if step > 0 else start - first + 1)
        if not entries:
            return None
        places = range(len(entries))
        for place in places if step > 0 else reversed(places):
            if matches(entries[place].message):
                return first + place
        searched += len(entries)
        told(searched)
        await asyncio.sleep(0)
        start = first + len(entries) if step > 0 else first - 1
    return None


def _shares(tokens: dict[str, int]) -> str:
    total = sum(tokens.values())
    if not total:
        return ""
    return "tokens: " + ", ".join(
        f"{kind} {round(number * 100 / total)} %" for kind, number in tokens.items() if number
    )


def _is_light() -> bool:
    return os.environ.get("COLORFGBG", "").rpartition(";")[2] in ("7", "15")
