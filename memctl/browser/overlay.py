"""Views over the screens, until Esc or q: help, commands, a message."""

from __future__ import annotations

import json
from typing import ClassVar

from rich.console import Group, RenderableType
from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.message import Message
from textual.screen import ModalScreen

from memctl.browser.commands import Commands
from memctl.browser.document import Entry
from memctl.browser.pane import Pane, Sheet, Signs
from memctl.dialects.view import Dialect
from memctl.inference.tokens import estimate
from memctl.json import jsonio
from memctl.location import visible
from memctl.output import conversation
from memctl.output.conversation import Extent
from memctl.text.numbers import count, size

WHOLE = Extent(200_000, "memctl inspect --json has all", unfolded=True, parsed=20_000_000)
"""The limits for a message that is shown alone."""

KEYS = (
    ("In lists", ""),
    ("↑ ↓ PgUp PgDn Space b g G", "move"),
    ("Enter", "open, or unfold a user"),
    ("Esc ← h", "fold, or go back"),
    ("/", "filter the names as you type"),
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
    ("s", "search the store"),
    ("r", "read the store anew"),
    ("x", "commands for what is selected; Enter copies one"),
    ("y", "copy the id or the name"),
    ("?", "this help"),
    ("Ctrl-Z", "back to the shell until fg"),
    ("q", "quit; or leave this help, commands, a message"),
    ("Ctrl-C", "quit"),
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


class Overlay(ModalScreen[None]):
    """A pane over the screens, until it is left."""

    DEFAULT_CSS = """
    Overlay { align: center middle; background: transparent; }
    Overlay Pane { width: 100%; height: auto; max-width: 108; background: $background; }
    """

    def __init__(self, pane: Pane, title: str, foot: str, lines: int) -> None:
        super().__init__()
        self.pane = pane
        self._title = title
        self._foot = foot
        self._wanted = lines

    def compose(self) -> ComposeResult:
        """Yield the pane."""
        yield self.pane

    def on_mount(self) -> None:
        """Show the pane."""
        self._fit()
        self.pane.focus()

    def on_resize(self) -> None:
        """Fit the pane to the terminal."""
        self._fit()

    def _fit(self) -> None:
        self.pane.styles.height = min(self._wanted + 2, self.app.size.height)
        self.pane.call_after_refresh(self.pane.name_it, self._title, self._foot)

    def on_key(self, event: events.Key) -> None:
        """Go back to the screens, as ``less`` does from its help."""
        if event.character in ("q", "?"):
            event.stop()
            self.dismiss()

    def on_pane_left(self, event: Pane.Left) -> None:
        """Go back to the screens."""
        event.stop()
        self.dismiss()


class Choice(Commands):
    """The list of commands, which is left when one is copied."""

    class Copied(Message):
        """Tell that a command was copied."""

        def __init__(self, command: str) -> None:
            self.command = command
            super().__init__()

    def enter(self) -> None:
        """Copy the command under the cursor."""
        self.post_message(self.Copied(self.chosen()))
        self.post_message(self.Left())


class MessageSheet(Sheet):
    """One message, as text or as JSON."""

    KEYS: ClassVar[dict[str, str]] = {**Sheet.KEYS, "v": "toggle_json"}

    def __init__(self, signs: Signs, entry: Entry, dialect: Dialect) -> None:
        super().__init__(signs)
        self.entry = entry
        self._dialect = dialect
        self._json = False
        self.show(self._text())

    def toggle_json(self) -> None:
        """Show the JSON, or the text again."""
        self._json = not self._json
        self.show(self._as_json() if self._json else self._text())

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

    def _text(self) -> RenderableType:
        entry = self.entry
        if self._dialect.facts:
            shown = conversation.fact(entry.message, entry.number, extent=WHOLE)
        else:
            shown = conversation.message(
                *(entry.message, entry.number),
                unread=entry.unread,
                dialect=self._dialect,
                extent=WHOLE,
            )
        return Group(self._head(), Text(), shown)

    def _as_json(self) -> RenderableType:
        stored = self.entry.message.message
        text = json.dumps(jsonio.loads(jsonio.pruned(stored)), indent=2, ensure_ascii=False)
        more = len(text) - WHOLE.text
        if more > 0:
            text = f"{text[: WHOLE.text]}\n… and {count(more, 'character')} more: {WHOLE.rest}"
        shown = "\n".join(visible(one) for one in text.split("\n"))
        return Group(self._head(), Text(), Text(shown))
