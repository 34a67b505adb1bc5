"""The messages of a memory: drawn downwards from an anchor, as ``less`` does.

The anchor is a message and a line of it.  Nothing is known of the heights of messages that are not
seen, so a memory of a million messages opens as quickly as one of ten.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from rich.text import Text
from textual.binding import BindingType
from textual.message import Message

from memctl.browser.actions import HINTS
from memctl.browser.document import PAGE, Context, Document, Entry, Missing, Whole, Windows
from memctl.browser.pane import Drawn, Hint, Subject, Target, drawn, name_of, with_id
from memctl.browser.source import Reader, Source
from memctl.dialects.view import Dialect
from memctl.errors import MemctlError
from memctl.location import visible
from memctl.model import MemoryKey, StoredMessage
from memctl.output import conversation
from memctl.output.conversation import FOLDED, Extent
from memctl.selection import Selection
from memctl.text.numbers import count

LONGEST = 20_000
"""The maximum number of characters of a text among other messages."""
LARGEST = 1 << 20
"""The size of a message, in bytes, above which long texts are left out (``Dialect.outline``)."""
DRAWN = 1000
"""The maximum number of messages whose lines are kept."""
AHEAD = 60
"""The distance to a page, in messages, at which it is loaded before it is needed."""
SOUGHT = 1000
"""The number of messages that are searched at once."""
REST = "Enter shows more"
SPEAKERS = [f"bold {color}" for color in ("green", "blue", "magenta", "cyan", "red")]
"""The styles of speakers, which can be read on light and dark terminals."""


class Conversation(Drawn):
    """The pane of a memory, which reads it with a store of its own."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *[("j", "step(1)"), ("k", "step(-1)"), ("n", "find(1)"), ("N", "find(-1)")],
        *[("t", "toggle_tools"), ("c", "toggle_context"), ("m", "next_mark")],
        ("a,*", "pick_all"),
    ]

    @dataclass
    class Entered(Message):
        """Ask to show a message whole."""

        entry: Entry
        dialect: Dialect

    def __init__(self, source: Source) -> None:
        super().__init__()
        self.source = source
        self.document: Document | None = None
        self.cursor = 0
        self.unfolded = False
        self._styles: dict[str, str] = {}
        """The styles of the speakers so far."""
        self.told = "Enter opens a memory."
        """The text that is shown without a document."""
        self.found = ""
        """The text that was looked for last, which is highlighted."""
        self.picked: dict[str, int] = {}
        """The messages that actions are about, by id, with their indexes."""
        self.picks_all = False
        """True if actions are about all messages that are shown."""
        self._reader: Reader | None = None
        self._top = (0, 0)
        self._title = ""
        self._summary = ""
        self._tail = ""
        self._drawn: OrderedDict[int, list[Text]] = OrderedDict()
        self._width = 0
        self._wanted: set[int] = set()
        self._motion: Callable[[], None] | None = None

    # Reading

    def open(
        self,
        key: MemoryKey,
        target: Target | None = None,
        at: int | None = None,
        *,
        context: bool = False,
    ) -> None:
        """Show a memory at a message, or at its end; with ``context``, what the model is sent."""
        self.run_worker(self._open(key, target, at, context=context), group="open", exclusive=True)

    async def _open(
        self,
        key: MemoryKey,
        target: Target | None,
        at: int | None,
        *,
        context: bool,
        changed: bool = False,
    ) -> None:
        title, before = name_of(key), self.document
        fresh = before is None or before.key != key
        if fresh:
            self._let_go()
            self._styles.clear()
            self.blank(title, "reading…")
        try:
            if self._reader is None:
                self._reader = await self._store()
            reader, dialect = self._reader, self._dialect
            document: Document
            if context:
                document = Context(reader, key)
            elif self.source.filter is not None:
                document = Whole(reader, key, self.source.shown)
            elif reader.store.features.cheap_windows and not dialect.leaves_out:
                document = Windows(reader, key)
            else:
                document = Whole(reader, key)
            await document.open(self._tell_number)
            if target is not None:
                at = await self._place(document, target)
        except MemctlError as error:
            if fresh or changed:
                self.blank(title, error.message)
            if not changed:
                self._fail(error)
            return
        told = ""
        if target is not None:
            hides = "the filter hides the message" if self.source.filter else ""
            if at is None and not changed:
                told = hides or "the message is not in this conversation"
            self.found = target.found or self.found
        if before is not None:
            gone = before.total - document.total
            if not (fresh or changed) and type(before) is type(document) and gone > 0:
                told = f"{count(gone, dialect.noun)} were deleted meanwhile"
            if changed and at is not None and gone == len(self.picked):
                at -= sum(index < at for index in self.picked.values())
            if changed or gone:
                self._let_go()
            before.close()
        self._show(title, document, at)
        self._tell(told)

    async def _store(self) -> Reader:
        """Return a reader of messages that has opened the store."""
        reader = self.source.reader()
        await reader.open()
        return reader

    def read_anew(self, *, acted: bool = False) -> None:
        """Open the store and the memory again; what is shown stays until then.

        With ``acted``, it was changed as the user wants: the picked messages are let go, and the
        cursor stays on its message, or on the next one.
        """
        if self._reader is not None:
            work = self._read_anew(self._reader, acted=acted)
            self.run_worker(work, group="open", exclusive=True)

    async def _read_anew(self, old: Reader, *, acted: bool) -> None:
        try:
            self._reader = await self._store()
        except MemctlError as error:
            self._fail(error)
            return
        await old.close()
        if (document := self.document) is not None:
            context = isinstance(document, Context)
            await self._open(document.key, None, self.cursor, context=context, changed=acted)

    def filter_anew(self) -> None:
        """Show what the filter lets through; the cursor stays on its message."""
        if self.document is not None:
            entry, key = self._entry(), self.document.key
            target = entry and Target(with_id(entry.message.id), entry.number - 1)
            self._let_go()
            work = self._open(key, target, None, context=False, changed=True)
            self.run_worker(work, group="open", exclusive=True)

    async def end(self) -> None:
        """Close what is open, since the browser ends."""
        if self._reader is not None:
            await self._reader.close()
        if self.document is not None:
            self.document.close()

    def _tell(self, text: str) -> None:
        self.post_message(self.Told(text))

    def _tell_number(self, number: int) -> None:
        self._tell(f"reading… {number:,}" if number >= SOUGHT else "")

    def _fail(self, error: MemctlError) -> None:
        """Show an error, and keep what was read."""
        self.post_message(self.Told(error.message, error=True))

    # What is shown

    def blank(self, title: str = "", text: str = "Enter opens a memory.") -> None:
        """Show a text in place of messages."""
        self.document = None
        self.told = text
        self.name_it(title, "")
        self.redraw()

    def _show(self, title: str, document: Document, at: int | None) -> None:
        """Show a document: at the message with the index ``at``, or at its end."""
        self.document = document
        self._title, self._summary, self._tail = title, "", ""
        if isinstance(document, Context):
            self._title = f"{title} · context"
            self._summary = f"about {count(sum(document.tokens.values()), 'token')}"
            self._tail = _shares(document.tokens)
        self._wanted.clear()
        self._motion = None
        self._drawn.clear()
        self._move(self._to_end if at is None else lambda: self._to_message(at))
        self.refresh_bindings()

    async def _load(self, document: Document, page: int) -> None:
        """Load a page, and make the motion that waits for it."""
        deleted, failed = document.deleted, False
        try:
            await document.load(page)
        except MemctlError as error:
            self._fail(error)
            failed = True
        if document.deleted > deleted:
            self._tell(f"{count(document.deleted - deleted, 'message')} were deleted meanwhile")
        if self.document is document:
            self._wanted.discard(page)
            motion, self._motion = self._motion, None
            if not failed:
                self._move(motion or self._settle)

    def _lines_of(self, index: int) -> list[Text]:
        """Return the lines of a message.

        Raises:
            Missing: its page has to be loaded first.
        """
        found = self._drawn.get(index)
        if found is None:
            assert self.document is not None
            found = [*self._draw_message(self.document[index], self._width), Text()]
            if self._tail and index == self._last():
                found += [Text(self._tail, "bold"), Text()]
            self._drawn[index] = found
            if len(self._drawn) > DRAWN:
                self._drawn.popitem(last=False)
        return found

    def _draw_message(self, entry: Entry, width: int) -> list[Text]:
        """Return the lines of a message, without its margin."""
        folds = entry.unread and not self.unfolded
        extent = Extent(FOLDED if folds else LONGEST, REST, self.unfolded, LARGEST)
        lines = drawn(entry.drawn(self._dialect, extent, self._style_of), width - 2)
        for text in lines if self.found else ():
            text.highlight_regex(re.compile(re.escape(self.found), re.IGNORECASE), "reverse")
        return lines

    def _style_of(self, role: str, speaker: str) -> str:
        """Return the style of a speaker, which no other has as long as there are enough."""
        styles = self._styles
        if speaker not in styles:
            own = conversation.ROLE_STYLES.get(role, "")
            free = [one for one in SPEAKERS if one not in styles.values()]
            spare = free[0] if free else SPEAKERS[len(styles) % len(SPEAKERS)]
            styles[speaker] = own if own in free else spare
        return styles[speaker]

    def lines(self, width: int, height: int) -> list[Text]:
        """Return the lines that are seen."""
        if self.document is None or not self.document.total:
            none = "no message matches the filter" if self.source.filter else "no messages"
            told = self.told if self.document is None else none
            return drawn(Text(self.redrawn(told), "dim"), width)[:height]
        if self._width != width:
            self._width = width
            self._drawn.clear()
            self._top = (self._top[0], 0)
            self._fit()
        found: list[Text] = []
        index, skip = self._top
        last = index
        try:
            while len(found) < height and index < self.document.total:
                here = self.redrawn("▌") if index == self.cursor else " "
                margin = Text.assemble((here, "cyan" if self.has_focus else "dim"))
                margin.append(self.redrawn("●") if self._is_picked(index) else " ", "yellow")
                found += [margin + text for text in self._lines_of(index)[skip:]]
                last = index
                index, skip = index + 1, 0
        except Missing as missing:
            self._want(missing.page)
            found.append(Text(self.redrawn("  reading…"), "dim"))
        self.call_later(self._name_it, self._top[0], last)
        self._look_ahead(last)
        return found[:height]

    def _name_it(self, first: int, last: int) -> None:
        if self.document is None:
            return
        seen = f"{first + 1:,}–{last + 1:,}" if last > first else f"{first + 1:,}"
        seen += f" of {count(self.document.total, self._dialect.noun)}"
        number = "all" if self.picks_all else f"{len(self.picked):,}" if self.picked else ""
        picked = number and f"{number} selected"
        self.name_it(self._title, " · ".join(filter(None, (picked, self._summary, seen))))

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
            self.run_worker(self._load(self.document, page), group="page")

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

    @property
    def _dialect(self) -> Dialect:
        assert self._reader is not None
        return self._reader.store.dialect

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

    def action_move(self, lines: int, pages: int = 0) -> None:
        """Scroll down by so many lines and pages, or up."""
        number = lines + pages * max(self._height() - 1, 1)
        self._move(lambda: self._down(number) if number > 0 else self._up_and_settle(-number))

    def _up_and_settle(self, number: int) -> None:
        self._up(number)
        self._settle()

    def action_first(self) -> None:
        """Show the first message."""
        self._move(lambda: self._to_message(0))

    def action_last(self) -> None:
        """Show the last message."""
        self._move(self._to_end)

    def action_step(self, number: int) -> None:
        """Move the cursor by so many messages."""
        self._move(lambda: self._reveal(self.cursor + number))

    def action_toggle_tools(self) -> None:
        """Unfold or fold tool calls, tool results and thinking."""
        self.unfolded = not self.unfolded
        self._drawn.clear()
        self._move(lambda: self._to_message(self.cursor))

    def action_toggle_context(self) -> None:
        """Show what the model is sent, or all messages again."""
        if self.document is None:
            return
        if self._dialect.facts:
            self._tell("facts have no context")
            return
        self.open(self.document.key, context=not isinstance(self.document, Context))

    def action_enter(self) -> None:
        """Show the message under the cursor whole."""
        if (entry := self._entry()) is not None:
            self.post_message(self.Entered(entry, self._dialect))

    # Looking for messages

    def action_next_mark(self) -> None:
        """Move the cursor to the next message with a mark."""
        self._seek("message with a mark", lambda entry: bool(entry.marks), 1)

    def action_slash(self) -> None:
        """Ask for a text to find."""
        self.post_message(self.Asked("Find", self._typed))

    def _typed(self, text: str | None, complete: bool) -> None:
        if complete and text:
            self.found = text
            self._drawn.clear()
            self.action_find(1)

    def action_find(self, step: int) -> None:
        """Move the cursor to the next or the previous message that contains the text."""
        wanted = self.found.casefold()
        if wanted:
            self._seek(
                f"message with '{visible(self.found)}'",
                lambda one: wanted in self._dialect.parse(one.message).searchable().casefold(),
                step,
            )

    def _seek(self, what: str, matches: Callable[[StoredMessage], bool], step: int) -> None:
        """Look for the nearest message that matches, after the cursor or before it."""
        if self.document is not None and self.document.total:
            self.run_worker(
                self._sought(self.document, what, matches, step), group="seek", exclusive=True
            )

    async def _sought(
        self, document: Document, what: str, matches: Callable[[StoredMessage], bool], step: int
    ) -> None:
        self._tell("searching… Esc stops")
        begin, end = self.cursor + step, 0 if step > 0 else document.total - 1
        try:
            index = await self._find(document, matches, begin, step)
            went_on = index is None
            if went_on:
                index = await self._find(document, matches, end, step)
        except MemctlError as error:
            self._fail(error)
            return
        if index is None:
            self._tell(f"no {what}")
        elif self.document is document:
            edge = "beginning" if step > 0 else "end"
            self._tell(f"went on from the {edge}" if went_on else "")
            found = index
            self._move(lambda: self._to_message(found))

    async def _place(self, document: Document, target: Target) -> int | None:
        """Return the index of a message to open; None if it is not there."""
        if target.at is not None:
            found = await document.entries(target.at, 1)
            if found and target.matches(found[0].message):
                return target.at
        return await self._find(document, target.matches, 0, 1)

    async def _find(
        self, document: Document, matches: Callable[[StoredMessage], bool], start: int, step: int
    ) -> int | None:
        """Return the index of the nearest message that matches, from ``start`` on, or None."""
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
            self._tell(f"searching… {searched:,} messages; Esc stops")
            await asyncio.sleep(0)
            start = first + len(entries) if step > 0 else first - 1
        return None

    # What is selected

    def _is_picked(self, index: int) -> bool:
        assert self.document is not None
        return self.picks_all or (
            bool(self.picked) and self.document[index].message.id in self.picked
        )

    def _let_go(self) -> None:
        self.picked.clear()
        self.picks_all = False

    def action_pick(self) -> None:
        """Pick the message under the cursor and go to the next one, or let it go again."""
        entry = self._entry()
        if self.source.writing is None or entry is None:
            super().action_pick()
        elif isinstance(self.document, Context):
            self._tell("c shows the messages, which can be selected")
        else:
            self.picks_all = False
            if self.picked.pop(entry.message.id, None) is None:
                self.picked[entry.message.id] = self.cursor
            self.action_step(1)

    def action_pick_all(self) -> None:
        """Pick all messages, or let all go again."""
        self.picks_all = bool(self.source.writing) and not (self.picks_all or self.picked)
        self.picked.clear()
        self.redraw()

    def selected(self) -> Selection | None:
        """Return the picked messages, or the one under the cursor."""
        entry = self._entry()
        if entry is None or self.document is None or isinstance(self.document, Context):
            return None
        ids = () if self.picks_all else self.picked or (entry.message.id,)
        keys = frozenset({self.document.key})
        return replace(self.source.shown, keys=keys, ids=frozenset(ids))

    def _entry(self) -> Entry | None:
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
        entry = self._entry()
        id = entry.message.id if entry is not None else None
        return Subject(self.document.key, id, copied=id or "")

    def hints(self) -> Sequence[Hint]:
        """Return the most useful keys."""
        facts = self._reader is not None and self._dialect.facts
        if self.source.writing is not None:
            return [("Space", "Select"), ("a", "All"), *HINTS, ("Esc", "Back")]
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


def _shares(tokens: dict[str, int]) -> str:
    total = sum(tokens.values())
    if not total:
        return ""
    return "tokens: " + ", ".join(
        f"{kind} {round(number * 100 / total)} %" for kind, number in tokens.items() if number
    )
