"""A pane: a widget that draws the lines that are seen, and no others.

Stored texts reach the screen as segments that are made here, through ``visible``, never as markup.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import ClassVar, NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.console import Console, RenderableType
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text
from textual import events
from textual.content import Content
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from memctl.location import visible
from memctl.model import MemoryKey, StoredMessage

PLAIN = Style()
"""The style of plain text.  Filters of Textual fail for segments without a style."""
DIM = Style(dim=True)
BOLD = Style(bold=True)
CHOSEN = Style(reverse=True)
WARNING = Style(color="yellow")
ERROR = Style(color="red", bold=True)
LINK = Style(color="cyan")

Part = tuple[str, Style]
"""A part of a line: a text without control characters, and its style."""
Hint = tuple[str, str]
"""A key and what it does, for the last line of the screen."""


class Subject(NamedTuple):
    """The selected memory or message; ``user`` alone stands for all sessions of the user.

    ``commands`` are further command lines, which come first.
    """

    key: MemoryKey | None = None
    id: str | None = None
    user: str | None = None
    commands: tuple[str, ...] = ()


class Target(NamedTuple):
    """The message at which a memory is opened: the first for which ``matches`` returns True.

    ``at`` is its index, if that is known: the memory is then searched only if messages were deleted
    or added before it.  ``found`` is a text to highlight.
    """

    matches: Callable[[StoredMessage], bool]
    at: int | None = None
    found: str = ""


def with_id(id: str) -> Callable[[StoredMessage], bool]:
    """Return a function that tells whether a message has an id."""
    return lambda message: message.id == id


class Signs(NamedTuple):
    """The characters that are not text."""

    open: str = "▾"
    folded: str = "▸"
    here: str = "▌"
    track: str = "│"
    thumb: str = "█"
    more: str = "…"
    rule: str = "─"
    enter: str = "↵"
    dot: str = "·"
    dash: str = "–"

    def redrawn(self, text: str) -> str:
        """Return a text of the browser, written with the signs of ``Signs()``, with these."""
        return text.translate(
            {ord(sign): own for sign, own in zip(Signs(), self, strict=True) if sign != own}
        )


ASCII = Signs("-", "+", ">", "|", "#", "~", "-", "Enter", "-", "-")
"""The signs for a terminal without box drawing and block characters."""


def name_of(key: MemoryKey) -> str:
    """Return the names of a memory for people."""
    names = " / ".join(visible(name) for name in key[:2] if name) or "''"
    return f"{names} ({visible(key.part)})" if key.part else names


def cut(text: str, width: int, more: str = "…") -> str:
    """Return a text in at most ``width`` columns; ``more`` stands for what is left out."""
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, max(width - cell_len(more), 0)).rstrip() + more if width > 0 else ""


def cut_before(text: str, width: int, more: str = "…") -> str:
    """Return the end of a text in at most ``width`` columns, as for paths."""
    if cell_len(text) <= width:
        return text
    return more + set_cell_size(text[::-1], max(width - cell_len(more), 0))[::-1].lstrip()


def line(parts: Iterable[Part], width: int, fill: Style = PLAIN) -> Strip:
    """Return a line of exactly ``width`` columns; ``fill`` is the style of blank columns."""
    segments = []
    left = width
    for text, style in parts:
        size = cell_len(text)
        if size > left:
            text, size = set_cell_size(text, left), left
        if text:
            segments.append(Segment(text, style))
        left -= size
    if left > 0:
        segments.append(Segment(" " * left, fill))
    return Strip(segments, width)


def spread(left: Sequence[Part], right: Sequence[Part], width: int, more: str) -> list[Part]:
    """Return parts for a line of ``width`` columns: ``left`` is cut to leave room for ``right``."""
    taken = sum(cell_len(text) for text, _ in right)
    room = max(width - taken - (1 if right else 0), 0)
    found: list[Part] = []
    for text, style in left:
        shown = cut(text, room, more)
        found.append((shown, style))
        if shown != text:
            break
        room -= cell_len(shown)
    gap = width - taken - sum(cell_len(text) for text, _ in found)
    return [*found, (" " * max(gap, 0), PLAIN), *right]


@cache
def _console() -> Console:
    return Console(
        force_terminal=True, markup=False, highlight=False, emoji=False, legacy_windows=False
    )


def drawn(shown: RenderableType, width: int) -> list[list[Part]]:
    """Return the lines of what ``output`` draws, wrapped to ``width`` columns."""
    console = _console()
    options = console.options.update(width=max(width, 1), height=None)
    lines = console.render_lines(shown, options, pad=False)
    return [[(text, style or PLAIN) for text, style, _ in found] for found in lines]


class Pane(Widget, can_focus=True):
    """A bordered widget of lines with a scroll bar.

    A subclass draws itself in ``lines``, says in ``bar`` which part of the whole is seen, and maps
    keys to the names of its methods in ``KEYS``.  Keys that are not there go to the browser.
    ``share`` is the width of the pane where two panes are side by side: columns, or ``1fr``.
    """

    KEYS: ClassVar[dict[str, str]] = {"/": "slash"}
    share: ClassVar[str] = "1fr"

    class Opened(Message):
        """Ask to open a memory at a message, else at its end."""

        def __init__(self, key: MemoryKey, target: Target | None = None) -> None:
            self.key = key
            self.target = target
            super().__init__()

    class Described(Message):
        """Ask to show a text next to the pane."""

        def __init__(self, title: str, shown: RenderableType) -> None:
            self.title = title
            self.shown = shown
            super().__init__()

    class Asked(Message):
        """Ask the user for a line of text, which begins as ``text``.

        ``answer(typed, False)`` is called after each change, ``answer(typed, True)`` after Enter,
        and ``answer(None, True)`` after Esc.
        """

        def __init__(
            self, label: str, answer: Callable[[str | None, bool], object], text: str = ""
        ) -> None:
            self.label = label
            self.answer = answer
            self.text = text
            super().__init__()

    class Told(Message):
        """Ask to show a text in the status line; an ``error`` is red."""

        def __init__(self, text: str, *, error: bool = False) -> None:
            self.text = text
            self.error = error
            super().__init__()

    class Left(Message):
        """Ask to go back to what was seen before."""

    class HintsChanged(Message):
        """Ask to show the hints anew."""

    class Outdated(Message):
        """Ask to read the names and counts of the store anew."""

    def __init__(self, signs: Signs) -> None:
        super().__init__()
        self.signs = signs
        self._lines: list[Strip] | None = None
        self._bar = (0.0, 1.0)

    # What a subclass defines

    def entered(self) -> None:
        """Begin what the pane needs when it is shown; called each time."""

    def read_anew(self) -> None:
        """Forget what was read of the store, and read it again."""

    def counted(self) -> None:
        """Note that the catalogue has changed: names, or counts."""

    async def end(self) -> None:
        """End what runs in the background, since the browser ends."""

    def slash(self) -> None:
        """Ask for what the key / looks for."""

    def entitle(self) -> None:
        """Set the texts in the border; called when the size of the pane changes."""

    def lines(self, width: int, height: int) -> list[Strip]:
        """Return at most ``height`` lines of ``width`` columns."""
        raise NotImplementedError

    def bar(self) -> tuple[float, float]:
        """Return where the seen part begins and ends, between 0 and 1."""
        return 0.0, 1.0

    def hints(self) -> list[Hint]:
        """Return the most useful keys."""
        return []

    def subject(self) -> Subject:
        """Return what is selected."""
        return Subject()

    def copied(self) -> str:
        """Return what the key y copies: an id or a name."""
        return ""

    # Drawing

    def redraw(self) -> None:
        """Draw the pane anew."""
        self._lines = None
        self.refresh()

    def name_it(self, title: str, foot: str) -> None:
        """Set the texts in the upper and the lower border, which may come from a store."""
        room = max(self.size.width - 4, 4)
        for name, text in (("border_title", title), ("border_subtitle", foot)):
            shown = cut(self.signs.redrawn(visible(text)), room, self.signs.more)
            setattr(self, name, Content(shown))

    def render_line(self, y: int) -> Strip:
        """Return a line of the pane, with the scroll bar."""
        width, height = self.size
        if self._lines is None:
            self._lines = self.lines(max(width - 1, 1), height)
            self._bar = self.bar()
        blank = line((), max(width - 1, 1))
        found = self._lines[y] if y < len(self._lines) else blank
        return Strip([*found, Segment(self._bar_sign(y, height), DIM)], width)

    def _bar_sign(self, y: int, height: int) -> str:
        begin, end = self._bar
        if end - begin >= 1 or height < 1:
            return " "
        first = min(int(begin * height), height - 1)
        last = max(first + 1, round(end * height))
        return self.signs.thumb if first <= y < last else self.signs.track

    def on_resize(self) -> None:
        """Draw the pane in its new size."""
        self.entitle()
        self.redraw()

    def on_focus(self) -> None:
        """Draw the cursor."""
        self.redraw()

    def on_blur(self) -> None:
        """Draw no cursor."""
        self.redraw()

    # Keys

    def on_key(self, event: events.Key) -> None:
        """Call the method of a key."""
        name = self.KEYS.get(event.character or "") or self.KEYS.get(event.key)
        if name is not None:
            event.stop()
            event.prevent_default()
            getattr(self, name)()

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Scroll down by three lines."""
        event.stop()
        self.scroll_lines(3)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Scroll up by three lines."""
        event.stop()
        self.scroll_lines(-3)

    def scroll_lines(self, number: int) -> None:
        """Scroll down by so many lines, or up."""


MOVES = {
    **{"up": "go_up", "down": "go_down", "pageup": "page_up", "pagedown": "page_down"},
    **{" ": "page_down", "b": "page_up", "home": "go_first", "end": "go_last"},
    **{"g": "go_first", "G": "go_last", "k": "go_up", "j": "go_down"},
}
"""The keys that move in every list."""


class ListPane(Pane):
    """A list of rows with a cursor.

    A subclass defines ``count`` and ``row``; it calls ``redraw`` when they change.  ``below`` are
    lines below the list, about the row under the cursor.
    """

    KEYS: ClassVar[dict[str, str]] = {
        **Pane.KEYS,
        **MOVES,
        **{"enter": "enter", "escape": "leave", "left": "leave", "h": "leave", "right": "enter"},
    }
    height: ClassVar[int] = 1
    """The number of lines of a row."""

    def __init__(self, signs: Signs) -> None:
        super().__init__(signs)
        self.cursor = 0
        self.top = 0
        self._room = 1

    def count(self) -> int:
        """Return the number of rows."""
        raise NotImplementedError

    def row(self, index: int, width: int) -> list[list[Part]]:
        """Return the lines of a row."""
        raise NotImplementedError

    def empty(self) -> str:
        """Return what to show if there are no rows."""
        return ""

    def below(self, width: int) -> list[list[Part]]:  # noqa: ARG002 - for subclasses
        """Return lines about the row under the cursor."""
        return []

    def enter(self) -> None:
        """Open the row under the cursor."""

    def leave(self) -> None:
        """Go back."""
        self.post_message(self.Left())

    def lines(self, width: int, height: int) -> list[Strip]:
        """Return the rows that are seen."""
        number = self.count()
        if not number:
            told = self.signs.redrawn(self.empty())
            return [line([(text, DIM)], width) for text in wrapped(told, width)]
        self.cursor = max(0, min(self.cursor, number - 1))
        below = self.below(width)[: max(height - 2 * self.height - 1, 0)]
        self._room = height - len(below) - 1 if below else height
        rows = self._rows_seen()
        self.top = max(0, min(self.top, self.cursor, number - rows))
        self.top = max(self.top, self.cursor - rows + 1)
        found: list[Strip] = []
        for index in range(self.top, min(self.top + rows + 1, number)):
            chosen = index == self.cursor
            for parts in self.row(index, width):
                if chosen:
                    extra = CHOSEN if self.has_focus else BOLD
                    parts = [(text, style + extra) for text, style in parts]
                found.append(line(parts, width, CHOSEN if chosen and self.has_focus else PLAIN))
        found = found[: self._room]
        if below:
            found += [line((), width)] * (self._room - len(found))
            found.append(line([(self.signs.rule * width, DIM)], width))
            found += [line(parts, width) for parts in below]
        return found

    def _rows_seen(self) -> int:
        return max(self._room // self.height, 1)

    def bar(self) -> tuple[float, float]:
        """Return which rows are seen."""
        number = max(self.count(), 1)
        return self.top / number, min((self.top + self._rows_seen()) / number, 1.0)

    def go_to(self, index: int) -> None:
        """Move the cursor to a row, or as near as possible."""
        self.cursor = max(0, min(index, self.count() - 1))
        self.redraw()

    def go_up(self) -> None:
        """Move the cursor up by one row."""
        self.go_to(self.cursor - 1)

    def go_down(self) -> None:
        """Move the cursor down by one row."""
        self.go_to(self.cursor + 1)

    def page_up(self) -> None:
        """Move the cursor up by a page."""
        self.go_to(self.cursor - self._rows_seen())

    def page_down(self) -> None:
        """Move the cursor down by a page."""
        self.go_to(self.cursor + self._rows_seen())

    def go_first(self) -> None:
        """Move the cursor to the first row."""
        self.go_to(0)

    def go_last(self) -> None:
        """Move the cursor to the last row."""
        self.go_to(self.count() - 1)

    def scroll_lines(self, number: int) -> None:
        """Move the cursor by so many lines."""
        self.go_to(self.cursor + number)

    def on_click(self, event: events.Click) -> None:
        """Move the cursor to a clicked row, and open it at the second click."""
        place = event.get_content_offset(self)
        if place is None or place.y >= self._room:
            return
        index = self.top + place.y // self.height
        if index >= self.count():
            return
        if index == self.cursor:
            self.enter()
        else:
            self.go_to(index)


def wrapped(text: str, width: int) -> list[str]:
    """Return a text in lines of at most ``width`` columns, broken between words."""
    from memctl.output.terminal import wrap

    return [cut(one, width) for some in text.split("\n") for one in wrap(some, width)]


def labelled(texts: Mapping[str, str]) -> RenderableType:
    """Return lines with a label before each text; empty texts are left out."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in texts.items():
        if text:
            table.add_row(label, Text(visible(text)))
    return table


def split(text: str, width: int) -> list[str]:
    """Return a text in lines of at most ``width`` columns, broken anywhere."""
    return ["".join(text for text, _ in parts) for parts in drawn(Text(text), width)]


class Sheet(Pane):
    """Lines to read: a text that is longer than the pane can be scrolled."""

    KEYS: ClassVar[dict[str, str]] = {
        **MOVES,
        **{"escape": "leave", "left": "leave", "h": "leave", "enter": "leave"},
    }

    def __init__(self, signs: Signs) -> None:
        super().__init__(signs)
        self._shown: RenderableType = ""
        self._drawn: list[list[Part]] = []
        self._width = 0
        self.top = 0

    def show(self, shown: RenderableType) -> None:
        """Show other lines, from the first on."""
        self._shown = shown
        self._width = 0
        self.top = 0
        self.redraw()

    def lines(self, width: int, height: int) -> list[Strip]:
        """Return the lines that are seen."""
        if self._width != width:
            self._drawn = drawn(self._shown, width)
            self._width = width
        self.top = max(0, min(self.top, len(self._drawn) - height))
        return [line(parts, width) for parts in self._drawn[self.top : self.top + height]]

    def bar(self) -> tuple[float, float]:
        """Return which lines are seen."""
        number = max(len(self._drawn), 1)
        return self.top / number, min((self.top + self.size.height) / number, 1.0)

    def hints(self) -> list[Hint]:
        """Return the most useful keys."""
        return [("Esc", "Back")]

    def leave(self) -> None:
        """Go back."""
        self.post_message(self.Left())

    def scroll_lines(self, number: int) -> None:
        """Scroll down by so many lines, or up."""
        self.top += number
        self.redraw()

    def go_up(self) -> None:
        """Scroll up by one line."""
        self.scroll_lines(-1)

    def go_down(self) -> None:
        """Scroll down by one line."""
        self.scroll_lines(1)

    def page_up(self) -> None:
        """Scroll up by a page."""
        self.scroll_lines(-self.size.height)

    def page_down(self) -> None:
        """Scroll down by a page."""
        self.scroll_lines(self.size.height)

    def go_first(self) -> None:
        """Scroll to the first line."""
        self.top = 0
        self.redraw()

    def go_last(self) -> None:
        """Scroll to the last line."""
        self.top = len(self._drawn)
        self.redraw()
