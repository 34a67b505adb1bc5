"""Views over the screens, until Esc or q: help, commands, a message."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from rich.console import Group, RenderableType
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.message import Message
from textual.screen import ModalScreen

from memctl.browser.catalogue import Catalogue
from memctl.browser.commands import commands_for
from memctl.browser.document import Entry
from memctl.browser.pane import ListPane, Pane, Sheet, Subject, drawn
from memctl.browser.source import Source
from memctl.dialects.view import Dialect
from memctl.inference.tokens import estimate
from memctl.json import jsonio
from memctl.location import visible
from memctl.output.conversation import Extent
from memctl.text.numbers import count, size

WHOLE = Extent(200_000, "memctl inspect --json has all", unfolded=True, parsed=20_000_000)
"""The limits for a message that is shown alone."""

KEYS = (
    ("In lists", ""),
    ("↑ ↓ PgUp PgDn Space b g G", "move"),
    ("Enter", "open, or unfold a user"),
    ("Esc ← h", "fold, or go back"),
    ("/ f", "filter the names as you type, or messages, as below"),
    ("o", "order: name, last message, messages, size"),
    ("In a conversation", ""),
    ("↑ ↓ PgUp PgDn Space b g G", "scroll"),
    ("j k", "next, previous message"),
    ("Enter", "show the message whole; v shows its JSON"),
    ("/ n N", "find a text; next, previous hit"),
    ("c", "what the model is sent, with tokens"),
    ("t", "unfold tool calls, results and thinking"),
    ("m", "next message with a mark"),
    ("Esc ← h", "back to the messages, or to the list"),
    ("Everywhere", ""),
    ("1 2 3 4 5", "memories, search, marks, findings, runs"),
    ("Tab", "the other pane"),
    ("f", "show only role:user mark:hint name:Friday since:7d until:today"),
    ("s", "search the store"),
    ("r", "read the store anew"),
    ("x", "commands for what is selected; Enter copies one"),
    ("y", "copy the id or the name"),
    ("?", "this help"),
    ("Ctrl-Z", "back to the shell until fg"),
    ("q", "quit; or leave this help, commands, a message"),
    ("Ctrl-C", "quit"),
    ("With --write", ""),
    ("Space", "select a message or a memory, or let it go"),
    ("a *", "select all that are shown, or let all go"),
    ("+ -", "add a mark to what is selected; remove a mark"),
    ("d", "delete it; shows what would go, and asks"),
    ("e", "export it to a file"),
    ("O", "move its large contents to files, as memctl offload"),
    ("u", "undo the run under the cursor, on screen 5"),
    ("Esc, q or Ctrl-C", "stop what goes on; no memory is half changed"),
)


def help_text() -> RenderableType:
    """Return the table of keys."""
    lines: list[Text] = []
    for keys, what in KEYS:
        if not what:
            lines += [Text(), Text(keys, "bold")] if lines else [Text(keys, "bold")]
        else:
            lines.append(Text.assemble((f"  {keys:<26}", "cyan"), what))
    return Group(*lines)


class Overlay(ModalScreen[bool]):
    """A pane over the screens, until it is left, as ``less`` leaves its help.

    The result is True if the pane asks and the user says yes.
    """

    BINDINGS: ClassVar[list[BindingType]] = [("q,?", "dismiss")]
    DEFAULT_CSS = """
    Overlay { align: center middle; background: transparent; }
    Overlay Pane {
        width: 100%; height: auto; max-width: 108; max-height: 100%; background: $background;
    }
    Overlay MessageSheet { height: 100%; }
    """

    def __init__(self, pane: Pane) -> None:
        super().__init__()
        self._pane = pane

    def compose(self) -> ComposeResult:
        """Yield the pane."""
        yield self._pane

    def on_pane_left(self, event: Pane.Left) -> None:
        """Go back to the screens."""
        event.stop()
        self.dismiss()


class Help(Sheet):
    """The table of keys."""

    def on_mount(self) -> None:
        """Show the table."""
        self.show("Help", "Esc goes back", help_text())


class Asking(Sheet):
    """A planned change, with a question."""

    BINDINGS: ClassVar[list[BindingType]] = [("y", "agree"), ("n", "leave")]

    def __init__(self, shown: RenderableType) -> None:
        super().__init__()
        self.styles.height = "auto"
        self._shown = shown

    def on_mount(self) -> None:
        """Show the question."""
        self.show("Confirm", "y yes · n no", self._shown)

    def action_agree(self) -> None:
        """Say yes."""
        self.screen.dismiss(True)


class Choice(ListPane[str]):
    """The list of commands for what is selected; it is left when one is copied."""

    TITLE = "Commands"

    @dataclass
    class Copied(Message):
        """Tell that a command was copied."""

        command: str

    def __init__(
        self, source: Source, catalogue: Catalogue, subject: Subject, *, parts: bool
    ) -> None:
        super().__init__(source, catalogue)
        self.rows = commands_for(source.argument, subject, facts=catalogue.facts, parts=parts)
        self.styles.height = len(self.rows) + 6

    def facts(self) -> Iterable[str]:
        """Return what to do."""
        yield "from a pipe: name the store" if self.source.piped else ""
        yield "Enter copies one"
        yield "Esc goes back"

    def draw(self, row: str, width: int) -> list[Text]:
        """Return a command on one line."""
        program, command, rest = row.split(" ", 2)
        text = Text.assemble(f"{program} ", (command, "cyan"), f" {rest}")
        text.truncate(width, overflow="ellipsis")
        return [text]

    def below(self, row: str, width: int) -> list[Text]:
        """Return a command whole."""
        return drawn(Text(row), width)

    def about(self, row: str) -> Subject:
        """Return a command to copy."""
        return Subject(copied=row)

    def open(self, row: str) -> None:
        """Copy a command."""
        self.post_message(self.Copied(row))
        self.post_message(self.Left())


class MessageSheet(Sheet):
    """One message, as text or as JSON."""

    BINDINGS: ClassVar[list[BindingType]] = [("v", "toggle_json")]

    def __init__(self, entry: Entry, dialect: Dialect) -> None:
        super().__init__()
        self.entry = entry
        self._dialect = dialect
        self._json = True

    def on_mount(self) -> None:
        """Show the text."""
        self.action_toggle_json()

    def action_toggle_json(self) -> None:
        """Show the JSON, or the text again."""
        self._json = not self._json
        shown = self._as_json() if self._json else self.entry.drawn(self._dialect, WHOLE)
        body = Group(self._head(), Text(), shown)
        self.show(f"#{self.entry.number}", "v JSON · Esc goes back", body)

    def _head(self) -> Text:
        message = self.entry.message
        text = self._dialect.parse(message.message).searchable() if self._small() else ""
        facts = [f"id {visible(message.id)}", size(len(message.message))]
        if self._small():
            facts.append(f"about {count(estimate(text), 'token')}")
        if message.marks:
            facts.append(f"marks: {', '.join(map(visible, message.marks))}")
        return Text(" · ".join(facts), "dim")

    def _small(self) -> bool:
        return len(self.entry.message.message) <= WHOLE.text

    def _as_json(self) -> RenderableType:
        stored = self.entry.message.message
        text = json.dumps(jsonio.loads(jsonio.pruned(stored)), indent=2, ensure_ascii=False)
        more = len(text) - WHOLE.text
        if more > 0:
            text = f"{text[: WHOLE.text]}\n… and {count(more, 'character')} more: {WHOLE.rest}"
        return Text("\n".join(visible(one) for one in text.split("\n")))
