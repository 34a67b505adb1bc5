"""A pane: a bordered widget.  Lists and conversations draw the lines that are seen, and no others.

Stored texts reach the screen as ``Text`` that is made here, through ``visible``, never as markup.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from rich.cells import cell_len, set_cell_size
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text
from textual import events
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.scrollbar import ScrollBarRender
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Static

from memctl.browser.catalogue import Catalogue
from memctl.browser.source import Background, Source
from memctl.errors import MemctlError
from memctl.journal.runs import Run
from memctl.location import visible
from memctl.model import MemoryKey, StoredMessage
from memctl.selection import Selection

T = TypeVar("T")
Row = TypeVar("Row")
Hint = tuple[str, str]
"""A key and what it does, for the last line of the screen."""
ASCII = str.maketrans(dict(zip("▾▸▌│█…─↵·–●", "-+>|#~-E--*", strict=True)) | {"↵": "Enter"})
"""The letters for signs on a terminal without box drawing and block characters."""


class Subject(NamedTuple):
    """The selected memory or message; ``user`` alone stands for all sessions of the user.

    ``commands`` are further command lines, which come first.  ``copied`` is the id or the name that
    the key y copies.
    """

    key: MemoryKey | None = None
    id: str | None = None
    user: str | None = None
    commands: tuple[str, ...] = ()
    copied: str = ""


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


def name_of(key: MemoryKey) -> str:
    """Return the names of a memory for people."""
    names = " / ".join(visible(name) for name in key[:2] if name) or "''"
    return f"{names} ({visible(key.part)})" if key.part else names


def cut_before(text: str, width: int) -> str:
    """Return the end of a text in at most ``width`` columns, as for paths."""
    if cell_len(text) <= width:
        return text
    return "…" + set_cell_size(text[::-1], max(width - 1, 0))[::-1].lstrip()


def spread(left: Text, right: Text, width: int) -> Text:
    """Return a line of ``width`` columns: ``left`` is cut to leave room for ``right``."""
    room = max(width - right.cell_len - bool(right), 0)
    left.truncate(room, overflow="ellipsis", pad=True)
    return Text.assemble(left, " " if right else "", right)


@cache
def _console() -> Console:
    return Console(
        force_terminal=True, markup=False, highlight=False, emoji=False, legacy_windows=False
    )


def drawn(shown: RenderableType, width: int) -> list[Text]:
    """Return the lines of what ``output`` draws, wrapped to ``width`` columns."""
    console = _console()
    options = console.options.update(width=max(width, 1), height=None)
    lines = console.render_lines(shown, options, pad=False)
    return [Text.assemble(*((text, style or "") for text, style, _ in one)) for one in lines]


def labelled(texts: Mapping[str, str]) -> RenderableType:
    """Return lines with a label before each text; empty texts are left out."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in texts.items():
        if text:
            table.add_row(label, Text(visible(text)))
    return table


class Pane(Widget, can_focus=True):
    """A bordered widget.

    ``BINDINGS`` map its keys to its actions; other keys go to the browser.  ``share`` is its width
    where two panes are side by side: columns, or ``1fr``.  ``HINTS`` are its most useful keys.
    """

    BINDINGS: ClassVar[list[BindingType]] = [("escape,left,h", "leave")]
    HINTS: ClassVar[Sequence[Hint]] = [("Esc", "Back")]
    share: ClassVar[str] = "1fr"

    @dataclass
    class Opened(Message):
        """Ask to open a memory at a message, else at its end."""

        key: MemoryKey
        target: Target | None = None

    @dataclass
    class Described(Message):
        """Ask to show a text next to the pane."""

        title: str
        shown: RenderableType

    @dataclass
    class Asked(Message):
        """Ask the user for a line of text, which begins as ``text``.

        ``answer(typed, False)`` is called after each change, ``answer(typed, True)`` after Enter,
        and ``answer(None, True)`` after Esc.
        """

        label: str
        answer: Callable[[str | None, bool], object]
        text: str = ""

    @dataclass
    class Told(Message):
        """Ask to show a text in the status line; an ``error`` is red."""

        text: str
        error: bool = False

    class Left(Message):
        """Ask to go back to what was seen before."""

    class Outdated(Message):
        """Ask to read the names and counts of the store anew."""

    def hints(self) -> Sequence[Hint]:
        """Return the most useful keys."""
        return self.HINTS

    def subject(self) -> Subject:
        """Return what is selected."""
        return Subject()

    def selected(self) -> Selection | Run | None:
        """Return what actions are about: messages, or a run; None if nothing is selected."""
        return None

    def redrawn(self, text: str) -> str:
        """Return a text of the browser with the signs that the terminal has."""
        return text.translate(ASCII) if self.app.has_class("ascii") else text

    def name_it(self, title: str, foot: str) -> None:
        """Set the texts in the upper and the lower border, which may come from a store."""
        self.border_title, self.border_subtitle = map(self._fitted, (title, foot))

    def _fitted(self, label: str) -> Content:
        text = Text(visible(label))
        text.truncate(self.size.width - 2 if self.size else text.cell_len, overflow="ellipsis")
        return Content(self.redrawn(text.plain))

    def action_leave(self) -> None:
        """Go back."""
        self.post_message(self.Left())


class WholeBar(ScrollBarRender):
    """A scroll bar without the signs for parts of a line, which not each terminal has."""

    VERTICAL_BARS: ClassVar[list[str]] = [" "]


class Sheet(Pane, VerticalScroll):
    """A text to read."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *[("k", "scroll_up"), ("j", "scroll_down"), ("b", "page_up"), ("space", "page_down")],
        *[("g", "scroll_home"), ("G", "scroll_end"), ("enter", "leave")],
    ]

    def __init__(self) -> None:
        self._text = Static(markup=False)
        super().__init__(self._text)

    def show(self, title: str, foot: str, shown: RenderableType) -> None:
        """Show another text, from the first line on."""
        self.name_it(title, foot)
        self._text.update(shown)
        self.scroll_home()


class Drawn(Pane):
    """A pane that draws the lines that are seen, with a scroll bar.

    A subclass draws itself in ``lines``, and says in ``bar`` which part of the whole is seen.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        *[("up,k", "move(-1)"), ("pageup,b", "move(0, -1)"), ("home,g", "first")],
        *[("down,j", "move(1)"), ("pagedown", "move(0, 1)"), ("end,G", "last")],
        *[("enter", "enter"), ("/", "slash"), ("space", "pick")],
    ]

    def __init__(self) -> None:
        super().__init__()
        self._strips: list[Strip] | None = None

    def lines(self, width: int, height: int) -> list[Text]:
        """Return at most ``height`` lines of at most ``width`` columns."""
        raise NotImplementedError

    def bar(self) -> tuple[float, float]:
        """Return where the seen part begins and ends, between 0 and 1."""
        raise NotImplementedError

    def action_move(self, lines: int, pages: int = 0) -> None:
        """Move down by so many lines and pages, or up."""
        raise NotImplementedError

    def action_slash(self) -> None:
        """Ask for what the key / looks for."""

    def action_pick(self) -> None:
        """Pick the row or message under the cursor; a pane without picks moves down by a page."""
        self.action_move(0, 1)

    def redraw(self) -> None:
        """Draw the pane anew."""
        self._strips = None
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """Return a line of the pane."""
        if self._strips is None or y >= len(self._strips):
            self._strips = self._draw(max(self.size.width - 1, 1), self.size.height)
        return self._strips[y]

    def _draw(self, width: int, height: int) -> list[Strip]:
        lines = self.lines(width, height)
        begin, end = self.bar() if height else (0.0, 1.0)
        first = min(int(begin * height), height - 1)
        thumb = range(first, max(first + 1, round(end * height)))
        strips = []
        for y, text in enumerate([*lines, *(Text() for _ in range(len(lines), height))]):
            text.truncate(width, pad=True)
            sign = " " if end - begin >= 1 else self.redrawn("█" if y in thumb else "│")
            # A segment without a style would make filters of Textual fail.
            strips.append(Strip(Text.assemble(text, (sign, "dim")).render(_console()), width + 1))
        return strips

    def on_resize(self) -> None:
        """Draw the pane in its new size."""
        self.redraw()

    def on_focus(self) -> None:
        """Draw the cursor."""
        self.redraw()

    def on_blur(self) -> None:
        """Draw no cursor."""
        self.redraw()

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Scroll down by three lines."""
        event.stop()
        self.action_move(3)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Scroll up by three lines."""
        event.stop()
        self.action_move(-3)


class ListPane(Drawn, Generic[Row]):
    """A list of rows with a cursor.

    A subclass draws a row in ``draw``, and sets ``rows``.  ``below`` are lines below the list,
    about the row under the cursor.
    """

    BINDINGS: ClassVar[list[BindingType]] = [("right", "enter")]
    TITLE: ClassVar[str]
    AGAIN: ClassVar[str] = ""
    """The hint after work in the background was stopped."""
    height: ClassVar[int] = 1
    """The number of lines of a row."""

    def __init__(self, source: Source, catalogue: Catalogue) -> None:
        super().__init__()
        self.source = source
        self.catalogue = catalogue
        self.rows: Sequence[Row] = ()
        self.told = ""
        """The text that is shown without rows."""
        self.cursor = 0
        self.top = 0
        self.work: Background | None = None
        """The work in the background; None without."""
        self._room = 1

    # What a subclass defines

    def entered(self) -> None:
        """Begin what the pane needs when it is shown; called each time."""

    def read_anew(self) -> None:
        """Forget what was read of the store, and read it again."""
        self.post_message(self.Outdated())

    def counted(self) -> None:
        """Note that the catalogue has changed: names, or counts."""

    def draw(self, row: Row, width: int) -> list[Text]:
        """Return the lines of a row."""
        raise NotImplementedError

    def below(self, row: Row, width: int) -> list[Text]:  # noqa: ARG002 - for subclasses
        """Return lines about the row under the cursor."""
        return []

    def empty(self) -> str:
        """Return what to show if there are no rows."""
        return self.told

    def title(self) -> str:
        """Return what the upper border says."""
        return self.TITLE

    def facts(self) -> Iterable[str]:
        """Return what the lower border says."""
        return ()

    def open(self, row: Row) -> None:
        """Open a row."""
        raise NotImplementedError

    def fold(self) -> bool:
        """Fold what the row under the cursor belongs to; return whether there was something."""
        return False

    def about(self, row: Row) -> Subject:
        """Return what a row is about."""
        raise NotImplementedError

    # Rows

    @property
    def chosen(self) -> Row | None:
        """The row under the cursor."""
        return self.rows[self.cursor] if self.cursor < len(self.rows) else None

    def hints(self) -> Sequence[Hint]:
        """Return the most useful keys."""
        return [("1-5", "Screens"), ("Esc", "Stop")] if self.work is not None else self.HINTS

    def subject(self) -> Subject:
        """Return what the row under the cursor is about."""
        return self.about(self.chosen) if self.chosen is not None else Subject()

    def say(self, told: str) -> None:
        """Show a text: in place of rows, or in the border while something is going on."""
        self.told = told
        self.redraw()
        self.refresh_bindings()

    # Work in the background

    async def wait_for(self, work: Background, task: Coroutine[Any, Any, T]) -> T | None:
        """Return what a task returns that uses ``work``; None after an error, which is shown."""
        self.work = work
        try:
            return await task
        except MemctlError as error:
            told = (f"{error.message}; {self.AGAIN}", error.hint)
            self.say("\n\n".join(filter(None, told)))
            self.post_message(self.Told(error.message, error=True))
            return None
        finally:
            if self.work is work:
                self.work = None
                self.say(self.told)
            await work.close()

    def tell_progress(self, doing: str, knows_total: bool, messages: int) -> None:
        """Show how many messages were read, and of how many if that is known."""
        if self.work is not None:
            total = self.catalogue.messages if self.catalogue.counted and knows_total else 0
            of = f" of {total:,}" if total >= messages else ""
            self.say(f"{doing} {messages:,}{of}; Esc stops")

    async def end(self) -> None:
        """End what runs in the background, since the browser ends."""
        if self.work is not None:
            await self.work.close()

    # Drawing

    def redraw(self) -> None:
        """Draw the pane and its border anew."""
        self.name_it(self.title(), " · ".join(filter(None, self.facts())))
        super().redraw()

    def lines(self, width: int, height: int) -> list[Text]:
        """Return the rows that are seen."""
        if not self.rows:
            return drawn(Text(self.redrawn(self.empty()), "dim"), width)[:height]
        self.cursor = max(0, min(self.cursor, len(self.rows) - 1))
        room = max(height - 2 * self.height - 1, 0)
        below = self.below(self.rows[self.cursor], width)[:room]
        self._room = height - len(below) - bool(below)
        seen, number = self._seen(), len(self.rows)
        self.top = max(0, min(self.top, self.cursor, number - seen), self.cursor - seen + 1)
        found: list[Text] = []
        for index in range(self.top, min(self.top + seen + 1, number)):
            for text in self.draw(self.rows[index], width):
                text.plain = self.redrawn(text.plain)
                text.truncate(width, pad=True)
                if index == self.cursor:
                    text.stylize("reverse" if self.has_focus else "bold")
                found.append(text)
        if below:
            found += [Text() for _ in range(len(found), self._room)]
            found[self._room :] = [Text(self.redrawn("─") * width, "dim"), *below]
        return found[:height]

    def _seen(self) -> int:
        return max(self._room // self.height, 1)

    def bar(self) -> tuple[float, float]:
        """Return which rows are seen."""
        number = max(len(self.rows), 1)
        return self.top / number, min((self.top + self._seen()) / number, 1.0)

    # Keys and the mouse

    def go_to(self, index: int) -> None:
        """Move the cursor to a row, or as near as possible."""
        self.cursor = max(0, min(index, len(self.rows) - 1))
        self.redraw()

    def action_move(self, lines: int, pages: int = 0) -> None:
        """Move the cursor down by so many rows and pages, or up."""
        self.go_to(self.cursor + lines + pages * self._seen())

    def action_first(self) -> None:
        """Move the cursor to the first row."""
        self.go_to(0)

    def action_last(self) -> None:
        """Move the cursor to the last row."""
        self.go_to(len(self.rows))

    def action_enter(self) -> None:
        """Open the row under the cursor."""
        if self.chosen is not None:
            self.open(self.chosen)

    def action_leave(self) -> None:
        """Stop what runs in the background, fold, or go back."""
        if self.work is not None:
            self.workers.cancel_node(self)
            self.say(f"stopped; {self.AGAIN}")
        elif not self.fold():
            super().action_leave()

    def on_click(self, event: events.Click) -> None:
        """Move the cursor to a clicked row, and open it at the second click."""
        place = event.get_content_offset(self)
        if place is None or place.y >= self._room:
            return
        index = self.top + place.y // self.height
        if index == self.cursor:
            self.action_enter()
        elif index < len(self.rows):
            self.go_to(index)


class Folded(ListPane[Row]):
    """A list of groups: the rows of a group are below its head while it is unfolded."""

    def __init__(self, source: Source, catalogue: Catalogue) -> None:
        super().__init__(source, catalogue)
        self.unfolded: set[str] = set()

    def made(self) -> Iterable[Row]:
        """Return the rows as they are now."""
        raise NotImplementedError

    def group(self, row: Row) -> str:
        """Return the name of the group of a row."""
        raise NotImplementedError

    def is_head(self, row: Row) -> bool:
        """Return whether a row is the head of its group."""
        raise NotImplementedError

    def update_rows(self) -> None:
        """Make the rows anew; the cursor stays on its row."""
        chosen = self.chosen
        self.rows = list(self.made())
        if chosen is not None:
            place = (self.group(chosen), self.is_head(chosen) or chosen)
            for index, row in enumerate(self.rows):
                if (self.group(row), self.is_head(row) or row) == place:
                    self.cursor = index
                    break
        self.redraw()

    def action_enter(self) -> None:
        """Unfold or fold a group, or open a row."""
        row = self.chosen
        if row is not None and self.is_head(row):
            self.unfolded ^= {self.group(row)}
            self.update_rows()
        else:
            super().action_enter()

    def fold(self) -> bool:
        """Fold the group of the row under the cursor."""
        row = self.chosen
        if row is None or self.group(row) not in self.unfolded:
            return False
        while not self.is_head(self.rows[self.cursor]):
            self.cursor -= 1
        self.unfolded.discard(self.group(row))
        self.update_rows()
        return True
