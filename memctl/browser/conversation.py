"""The messages of a memory: drawn downwards from an anchor, as ``less`` does.

The anchor is a message and a line of it.  Nothing is known of the heights of messages that are not
seen, so a memory of a million messages opens as quickly as one of ten.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import ClassVar

from textual.message import Message
from textual.strip import Strip

from memctl.browser.document import PAGE, Context, Document, Entry, Missing
from memctl.browser.pane import (
    BOLD,
    CHOSEN,
    DIM,
    LINK,
    PLAIN,
    Hint,
    Pane,
    Part,
    Signs,
    Subject,
    drawn,
    line,
    wrapped,
)
from memctl.dialects.view import Dialect
from memctl.errors import MemctlError
from memctl.location import visible
from memctl.model import StoredMessage
from memctl.output import conversation
from memctl.output.conversation import FOLDED, Extent
from memctl.text.numbers import count

LONGEST = 20_000
"""The maximum number of characters of a text among other messages."""
LARGEST = 1 << 20
"""The size of a message, in bytes, above which long texts are left out (``Dialect.outline``)."""
DRAWN = 1000
"""The maximum number of messages whose lines are kept."""
AHEAD = 60
"""The distance to a page, in messages, at which it is loaded before it is needed."""
REST = "Enter shows more"


class Conversation(Pane):
    """The pane of a memory; ``show`` gives it a document that is open."""

    KEYS: ClassVar[dict[str, str]] = {
        **{"up": "line_up", "down": "line_down", "pageup": "page_up", "pagedown": "page_down"},
        **{" ": "page_down", "b": "page_up", "home": "go_first", "end": "go_last"},
        **{"g": "go_first", "G": "go_last", "j": "next_message", "k": "previous_message"},
        **{"enter": "enter", "escape": "leave", "left": "leave", "h": "leave"},
        **{"t": "toggle_tools", "c": "toggle_context", "m": "next_mark", "/": "slash"},
        **{"n": "next_hit", "N": "previous_hit"},
    }

    class Entered(Message):
        """Ask to show a message whole."""

        def __init__(self, entry: Entry) -> None:
            self.entry = entry
            super().__init__()

    class ContextToggled(Message):
        """Ask to show what the model is sent, or all messages again."""

    class Sought(Message):
        """Ask for the nearest message that matches, after the cursor or before it.

        ``what`` names it in the status line.
        """

        def __init__(self, what: str, matches: Callable[[StoredMessage], bool], step: int) -> None:
            self.what = what
            self.matches = matches
            self.step = step
            super().__init__()

    class Wanted(Message):
        """Ask to load a page of the document, and then to call ``loaded``."""

        def __init__(self, document: Document, page: int) -> None:
            self.document = document
            self.page = page
            super().__init__()

    def __init__(self, signs: Signs) -> None:
        super().__init__(signs)
        self.document: Document | None = None
        self.cursor = 0
        self.unfolded = False
        self.told = ""
        """The text that is shown without a document."""
        self.found = ""
        """The text that was looked for last, which is highlighted."""
        self._dialect: Dialect | None = None
        self._top = (0, 0)
        self._title = ""
        self._summary = ""
        self._tail = ""
        self._drawn: OrderedDict[int, list[list[Part]]] = OrderedDict()
        self._width = 0
        self._wanted: set[int] = set()
        self._motion: Callable[[], None] | None = None

    # What is shown

    def tell(self, title: str, text: str) -> None:
        """Show a text in place of messages."""
        self.document = None
        self.told = text
        self._title = title
        self.name_it(title, "")
        self.redraw()

    def show(
        self,
        title: str,
        document: Document,
        dialect: Dialect,
        at: int | None,
        summary: str = "",
        tail: str = "",
    ) -> None:
        """Show a document: at the message with the index ``at``, or at its end.

        ``summary`` is a text for the lower border, and ``tail`` the last line.
        """
        self.document = document
        self._dialect = dialect
        self._title = title
        self._summary = summary
        self._tail = tail
        self._wanted.clear()
        self._motion = None
        self._forget()
        if at is None:
            self._move(self._to_end)
        else:
            self._move(lambda: self._to_message(at))

    def loaded(self, page: int) -> None:
        """Go on after a page was loaded."""
        self._wanted.discard(page)
        motion, self._motion = self._motion, None
        if motion is not None:
            self._move(motion)
        else:
            self._move(self._settle)

    def failed(self, page: int, error: MemctlError) -> None:
        """Stay where it is, since a page could not be loaded."""
        self._wanted.discard(page)
        self._motion = None
        self.told = error.message

    def go_to(self, index: int) -> None:
        """Move the cursor to a message, and show it from its first line."""
        self._move(lambda: self._to_message(index))

    def _forget(self) -> None:
        self._drawn.clear()

    def _lines_of(self, index: int) -> list[list[Part]]:
        """Return the lines of a message.

        Raises:
            Missing: its page has to be loaded first.
        """
        found = self._drawn.get(index)
        if found is None:
            assert self.document is not None
            found = [*self.draw(self.document[index], self._width), []]
            if self._tail and index == self._last():
                found += [[(self._tail, BOLD)], []]
            self._drawn[index] = found
            if len(self._drawn) > DRAWN:
                self._drawn.popitem(last=False)
        return found

    def draw(self, entry: Entry, width: int) -> list[list[Part]]:
        """Return the lines of a message, without its margin."""
        assert self._dialect is not None
        folds = entry.unread and not self.unfolded
        extent = Extent(FOLDED if folds else LONGEST, REST, self.unfolded, LARGEST)
        if self._dialect.facts:
            shown = conversation.fact(entry.message, entry.number, extent=extent)
        else:
            shown = conversation.message(
                *(entry.message, entry.number),
                tokens=entry.tokens,
                fault=entry.fault,
                unread=entry.unread,
                dialect=self._dialect,
                extent=extent,
            )
        lines = drawn(shown, width - 2)
        return [_highlighted(parts, self.found) for parts in lines] if self.found else lines

    def lines(self, width: int, height: int) -> list[Strip]:
        """Return the lines that are seen."""
        if self.document is None or not self.document.total:
            told = self.told if self.document is None else "no messages"
            shown = wrapped(self.signs.redrawn(told), width)
            return [line([(text, DIM)], width) for text in shown]
        if self._width != width:
            self._width = width
            self._forget()
            self._top = (self._top[0], 0)
            self._fit()
        found: list[Strip] = []
        index, skip = self._top
        last = index
        try:
            while len(found) < height and index < self.document.total:
                here = self.signs.here if index == self.cursor else " "
                style = LINK if self.has_focus else DIM
                margin: list[Part] = [(here, style), (" ", PLAIN)]
                found += [line([*margin, *parts], width) for parts in self._lines_of(index)[skip:]]
                last = index
                index, skip = index + 1, 0
        except Missing as missing:
            self._want(missing.page)
            found.append(line([(self.signs.redrawn("  reading…"), DIM)], width))
        self.call_later(self._name_it, self._top[0], last)
        self._look_ahead(last)
        return found[:height]

    def _name_it(self, first: int, last: int) -> None:
        if self.document is None or self._dialect is None:
            return
        noun = self._dialect.noun
        seen = f"{first + 1:,}–{last + 1:,}" if last > first else f"{first + 1:,}"
        facts = [self._summary] if self._summary else []
        facts.append(f"{seen} of {count(self.document.total, noun)}")
        self.name_it(self._title, " · ".join(facts))

    def bar(self) -> tuple[float, float]:
        """Return which messages are seen."""
        if self.document is None or not self.document.total:
            return 0.0, 1.0
        total = self.document.total
        first, last = self._seen()
        above = self._top[1] / len(self._drawn.get(first) or " ")
        return (first + above) / total, 1.0 if last + 1 == total else last / total

    # Pages

    def _want(self, page: int) -> None:
        if page not in self._wanted and self.document is not None:
            self._wanted.add(page)
            # Not at once: what is posted while the screen is drawn does not reach the application.
            self.call_later(self._ask_for, self.document, page)

    def _ask_for(self, document: Document, page: int) -> None:
        self.post_message(self.Wanted(document, page))

    def _look_ahead(self, last: int) -> None:
        """Load the pages on both sides before they are needed."""
        assert self.document is not None
        for index in (self._top[0] - AHEAD, last + AHEAD):
            number = index // PAGE
            if 0 <= index < self.document.total and not self.document.holds(number):
                self._want(number)

    def _move(self, motion: Callable[[], None]) -> None:
        if self.document is None or not self.document.total:
            self.redraw()
            return
        before = self._top, self.cursor
        try:
            motion()
        except Missing as missing:
            self._top, self.cursor = before
            self._motion = motion
            self._want(missing.page)
        self.redraw()

    # Motions; each may raise Missing

    def _height(self) -> int:
        return max(self.size.height, 1)

    def _last(self) -> int:
        return self.document.total - 1 if self.document is not None else 0

    def _seen(self) -> tuple[int, int]:
        """Return the first and the last message on the screen, as far as they are held."""
        index, skip = self._top
        left = self._height()
        try:
            while index < self._last():
                left -= len(self._lines_of(index)) - skip
                if left <= 0:
                    break
                index, skip = index + 1, 0
        except Missing:
            pass
        return self._top[0], index

    def _down(self, number: int) -> None:
        index, skip = self._top
        while number > 0:
            rest = len(self._lines_of(index)) - skip
            if number < rest:
                skip += number
                break
            if index == self._last():
                break
            number -= rest
            index, skip = index + 1, 0
        self._top = index, skip
        self._settle()

    def _up(self, number: int) -> None:
        index, skip = self._top
        while number > skip:
            if index == 0:
                number = skip
                break
            number -= skip
            index -= 1
            skip = len(self._lines_of(index))
        self._top = index, skip - number

    def _settle(self) -> None:
        """Leave no blank lines at the end; move the cursor into what is seen."""
        last = self._last()
        index, skip = min(self._top, (last, 0)) if self._top[0] > last else self._top
        skip = min(skip, len(self._lines_of(index)) - 1)
        self._top = index, skip
        left = self._height()
        while left > 0 and index <= last:
            left -= len(self._lines_of(index)) - skip
            index, skip = index + 1, 0
        if left > 0:
            self._up(left)
        first, end = self._seen()
        self.cursor = max(first, min(self.cursor, end))

    def _to_end(self) -> None:
        self.cursor = last = self._last()
        self._top = last, 0
        self._settle()
        self.cursor = last

    def _to_message(self, index: int) -> None:
        self.cursor = index = max(0, min(index, self._last()))
        self._top = index, 0
        self._settle()
        self.cursor = index

    def _reveal(self, index: int) -> None:
        """Scroll as little as possible until a message is seen."""
        self.cursor = index = max(0, min(index, self._last()))
        if (index, 0) <= self._top:
            self._top = index, 0
            return
        above = 0
        place, skip = self._top
        while place < index:
            above += len(self._lines_of(place)) - skip
            place, skip = place + 1, 0
        own = len(self._lines_of(index)) - 1
        beyond = above + own - self._height()
        if beyond > 0:
            self._down(min(beyond, above))
        self.cursor = index

    # Keys

    def scroll_lines(self, number: int) -> None:
        """Scroll down by so many lines, or up."""
        self._move(lambda: self._down(number) if number > 0 else self._up_and_settle(-number))

    def _up_and_settle(self, number: int) -> None:
        self._up(number)
        self._settle()

    def line_up(self) -> None:
        """Scroll up by one line."""
        self.scroll_lines(-1)

    def line_down(self) -> None:
        """Scroll down by one line."""
        self.scroll_lines(1)

    def page_up(self) -> None:
        """Scroll up by a page."""
        self.scroll_lines(1 - self._height())

    def page_down(self) -> None:
        """Scroll down by a page."""
        self.scroll_lines(max(self._height() - 1, 1))

    def go_first(self) -> None:
        """Show the first message."""
        self._move(lambda: self._to_message(0))

    def go_last(self) -> None:
        """Show the last message."""
        self._move(self._to_end)

    def next_message(self) -> None:
        """Move the cursor to the next message."""
        self._move(lambda: self._reveal(self.cursor + 1))

    def previous_message(self) -> None:
        """Move the cursor to the previous message."""
        self._move(lambda: self._reveal(self.cursor - 1))

    def toggle_tools(self) -> None:
        """Unfold or fold tool calls, tool results and thinking."""
        self.unfolded = not self.unfolded
        self._forget()
        self._move(lambda: self._to_message(self.cursor))

    def toggle_context(self) -> None:
        """Show what the model is sent, or all messages again."""
        if self.document is not None:
            self.post_message(self.ContextToggled())

    def next_mark(self) -> None:
        """Move the cursor to the next message with a mark."""
        self._seek("message with a mark", lambda entry: bool(entry.marks), 1)

    def slash(self) -> None:
        """Ask for a text to find."""
        self.post_message(self.Asked("Find", self._find))

    def _find(self, text: str | None, complete: bool) -> None:
        if complete and text:
            self.found = text
            self._forget()
            self._seek_text(1)

    def next_hit(self) -> None:
        """Move the cursor to the next message that contains the text."""
        self._seek_text(1)

    def previous_hit(self) -> None:
        """Move the cursor to the previous message that contains the text."""
        self._seek_text(-1)

    def _seek_text(self, step: int) -> None:
        wanted, dialect = self.found.casefold(), self._dialect
        if wanted and dialect is not None:
            self._seek(
                f"message with '{visible(self.found)}'",
                lambda entry: wanted in dialect.parse(entry.message).searchable().casefold(),
                step,
            )

    def _seek(self, what: str, matches: Callable[[StoredMessage], bool], step: int) -> None:
        if self.document is not None and self.document.total:
            self.post_message(self.Sought(what, matches, step))

    def enter(self) -> None:
        """Show the message under the cursor whole."""
        if (entry := self.entry()) is not None:
            self.post_message(self.Entered(entry))

    def leave(self) -> None:
        """Go back to the messages, or to the list."""
        self.post_message(self.Left())

    def entry(self) -> Entry | None:
        """Return the message under the cursor; None if there is none."""
        if self.document is None or not self.document.total:
            return None
        try:
            return self.document[self.cursor]
        except Missing:
            return None

    def subject(self) -> Subject:
        """Return the memory and the message under the cursor."""
        if self.document is None:
            return Subject()
        entry = self.entry()
        return Subject(self.document.key, entry.message.id if entry is not None else None)

    def copied(self) -> str:
        """Return the id of the message under the cursor."""
        return self.subject().id or ""

    def hints(self) -> list[Hint]:
        """Return the most useful keys."""
        facts = self._dialect is not None and self._dialect.facts
        found = [("j k", "Fact" if facts else "Message"), ("g G", "Ends"), ("/", "Find")]
        if not facts:
            context = isinstance(self.document, Context)
            found += [("c", "Messages" if context else "Context"), ("t", "Tools")]
        return [*found, ("x", "Commands"), ("Esc", "Back")]

    def on_resize(self) -> None:
        """Fill the pane in its new size."""
        self._fit()

    def _fit(self) -> None:
        """Fill the pane, unless a motion that waits for a page will do that."""
        if self._motion is None:
            self._move(self._settle)


def _highlighted(parts: list[Part], text: str) -> list[Part]:
    """Return the parts of a line with each place of a text, whatever its case, highlighted."""
    wanted = text.casefold()
    found: list[Part] = []
    for said, style in parts:
        folded = said.casefold()
        if len(folded) != len(said) or wanted not in folded:
            found.append((said, style))
            continue
        begin = 0
        while (at := folded.find(wanted, begin)) >= 0:
            end = at + len(wanted)
            found += [(said[begin:at], style), (said[at:end], style + CHOSEN)]
            begin = end
        found.append((said[begin:], style))
    return found
