"""The selection of memories and messages: the one meaning of the filters of all commands."""

from __future__ import annotations

from collections import deque
from collections.abc import (
    AsyncGenerator,
    Callable,
    Collection,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum
from itertools import repeat

import msgspec
from msgspec import Struct

from memctl.dialects.agentscope1 import AGENTSCOPE1
from memctl.dialects.live import understood, untagged
from memctl.dialects.view import Dialect, MessageView
from memctl.model import MemoryKey, Page, StoredMessage
from memctl.shard import Shard


class Verdict(Enum):
    """The answer to the question whether a selection includes a message."""

    SELECTED = "selected"
    LEFT_OUT = "left out"
    UNTIMED = "untimed"
    """Not selected, only because the message has no time and the selection has a period."""


class Untimed(Struct):
    """A count of the messages left out of a selected period because they have no time.

    Messages of a memory that is read several times count once.
    """

    noun: str = "message"
    """The word for what is counted, such as ``message`` or ``fact``."""
    _counts: dict[Hashable, int] = msgspec.field(default_factory=dict)

    def note(self, place: Hashable, number: int, noun: str) -> None:
        """Record that a memory or an index has ``number`` messages without a time.

        ``place`` identifies the memory or the index.  ``noun`` is the word for a message.
        """
        if number > self._counts.get(place, 0):
            self._counts[place] = number
            self.noun = noun

    @property
    def number(self) -> int:
        """The number of counted messages, in all memories that were read to the end."""
        return sum(self._counts.values())


@dataclass(frozen=True, slots=True)
class Selection:
    """A selection of memories and of their messages.

    ::

        Selection()                                                # everything
        Selection(users=frozenset({"ada"}), marks=frozenset({"hint"}))

    Values are names, never patterns.  A message must match one value of every given filter.

    ``since`` (inclusive) and ``until`` (exclusive) are local times without a zone, as in messages.
    A message without a readable timestamp is in no period; ``untimed`` counts such messages.
    ``live`` is True for messages that the framework reads, and False for the others
    (``dialects.view.Unread``).
    ``match`` is a part of the text of the message, or of a text that the memory stores with the
    message; with ``ignore_case``, in any case.  ``last`` selects only the newest N of the selected
    messages of each memory.  ``spare`` excludes the newest N messages of each memory.

    ``larger`` is for stores with ``Features.whole_memories`` alone: only memories with more bytes.

    ``keys`` limits the selection to these memories, and ``done`` excludes these memories: an
    operation that reads a store again uses ``keys`` and ``done``.  ``own_ids`` maps a memory to
    the ids to select in it, if the ids differ between memories.  ``shard`` limits the selection to
    the memories of a shard.
    """

    users: frozenset[str] = frozenset()
    sessions: frozenset[str] = frozenset()
    parts: frozenset[str] = frozenset()
    keys: frozenset[MemoryKey] | None = None
    done: frozenset[MemoryKey] = frozenset()
    marks: frozenset[str] = frozenset()
    exclude_marks: frozenset[str] = frozenset()
    roles: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()
    ids: frozenset[str] = frozenset()
    own_ids: Mapping[MemoryKey, Collection[str]] | None = None
    since: datetime | None = None
    until: datetime | None = None
    live: bool | None = None
    match: str | None = None
    ignore_case: bool = False
    last: int | None = None
    spare: int | None = None
    larger: int | None = None
    shard: Shard | None = None
    untimed: Untimed = field(default_factory=Untimed, compare=False)

    def has_key(self, key: MemoryKey) -> bool:
        """Return whether the selection includes the memory with this key."""
        return (
            (not self.users or key.user in self.users)
            and (not self.sessions or key.session in self.sessions)
            and (not self.parts or not key.part or key.part in self.parts)
            and (self.keys is None or key in self.keys)
            and key not in self.done
            and (self.shard is None or self.shard.has(key))
        )

    @property
    def around(self) -> Selection:
        """The selection of all memories of the users, sessions and shard, whole.

        A comparison of two stores reads these memories of the other store.
        """
        return Selection(self.users, self.sessions, shard=self.shard)

    @property
    def looks_inside(self) -> bool:
        """Return whether the selection depends on the content of messages.

        If it does, each message must be parsed.
        """
        return bool(self.roles or self.names or self.has_period or self.match is not None)

    @property
    def whole(self) -> bool:
        """True if all messages of a selected memory are selected."""
        return (
            not (self.marks or self.exclude_marks or self.ids or self.looks_inside)
            and self.live is None
            and self.last is None
            and self.spare is None
            and self.larger is None
        )

    @property
    def takes_whole(self) -> bool:
        """True if nothing but a period and a size, if anything, selects messages of a memory."""
        return replace(self, since=None, until=None, larger=None).whole

    @property
    def named(self) -> bool:
        """Return whether users or sessions are named; finding no memory is then an error."""
        return bool(self.users or self.sessions)

    @property
    def leads(self) -> bool:
        """True unless another part of the run examines what belongs to no memory."""
        return self.shard is None or self.shard.leads

    def matches(self, message: StoredMessage, dialect: Dialect = AGENTSCOPE1) -> bool:
        """Return whether the message is selected; ``last`` and ``spare`` are not applied.

        ``dialect`` is the dialect of the message.

        Raises:
            ValueError: the selection looks inside messages, and this message is not JSON.
        """
        return self.judge(message, dialect) is Verdict.SELECTED

    def judge(self, message: StoredMessage, dialect: Dialect = AGENTSCOPE1) -> Verdict:
        """Return the verdict on a message: selected, left out, or left out because it has no time.

        The filters ``last`` and ``spare`` are not applied.  ``dialect`` is the dialect of the
        message.

        Raises:
            ValueError: as ``matches``.
        """
        if not self.matches_outside(message.id, message.marks):
            return Verdict.LEFT_OUT
        if not self.looks_inside:
            return Verdict.SELECTED
        view = dialect.parse(message.message)
        moment = view.moment if self.has_period else None
        untimed = self.has_period and moment is None
        if not (untimed or self._in_period(moment)):
            return Verdict.LEFT_OUT
        if not self._matches_sender(view.role, view.name) or not self._says(view, message, dialect):
            return Verdict.LEFT_OUT
        return Verdict.UNTIMED if untimed else Verdict.SELECTED

    def may_have(self, key: MemoryKey, id: str) -> bool:
        """Return whether the filters by id allow the message ``id`` of the memory ``key``."""
        if self.own_ids is not None and id not in self.own_ids.get(key, ()):
            return False
        return not self.ids or id in self.ids

    def matches_outside(self, id: str, marks: Collection[str]) -> bool:
        """Return whether the filters by id and by mark allow a message with this id and marks.

        Marks of ``dialects.live.tags`` say whether the message is read.
        """
        if self.ids and id not in self.ids:
            return False
        if self.live is not None and bool(untagged(marks)[1]) is self.live:
            return False
        if self.marks and self.marks.isdisjoint(marks):
            return False
        return self.exclude_marks.isdisjoint(marks)

    def _says(self, view: MessageView, message: StoredMessage, dialect: Dialect) -> bool:
        if self.match is None or self.has_match(view.texts()):
            return True
        others = map(dialect.parse, dialect.other_texts(message.shape))
        return any(self.has_match(other.texts()) for other in others)

    def has_match(self, texts: Iterable[str]) -> bool:
        """Return whether one of the texts contains ``match``; True without ``match``."""
        if self.match is None:
            return True
        if not self.ignore_case:
            return any(self.match in text for text in texts)
        wanted = self.match.casefold()
        return any(wanted in text.casefold() for text in texts)

    def matches_fields(
        self, role: str | None, name: str | None, moment: Callable[[], datetime | None]
    ) -> bool:
        """Return whether the filters by role, sender and period allow a message.

        ``name`` is the sender.  ``moment`` returns the local time of the message; it is called only
        if the selection has a period.
        """
        return self._matches_sender(role, name) and (
            not self.has_period or self._in_period(moment())
        )

    def _matches_sender(self, role: str | None, name: str | None) -> bool:
        return (not self.roles or role in self.roles) and (not self.names or name in self.names)

    @property
    def has_period(self) -> bool:
        """Return whether the selection has a period: ``since``, ``until`` or both."""
        return self.since is not None or self.until is not None

    def _in_period(self, moment: datetime | None) -> bool:
        if not self.has_period:
            return True
        return (
            moment is not None
            and (self.since is None or moment >= self.since)
            and (self.until is None or moment < self.until)
        )

    def only(self, keys: frozenset[MemoryKey]) -> Selection:
        """Return this selection, limited to the memories ``keys``."""
        return replace(self, keys=keys)

    def without(self, keys: frozenset[MemoryKey]) -> Selection:
        """Return this selection without the memories ``keys``."""
        return replace(self, done=self.done | keys)

    def apply(
        self, pages: AsyncGenerator[Page], dialect: Dialect = AGENTSCOPE1
    ) -> AsyncGenerator[Page]:
        """Filter pages of whole memories; yield pages of the selected messages.

        A memory without a selected message is left out, unless the selection takes all messages.
        ``dialect`` is the dialect of the messages.
        """
        return pages if self.whole else self._filter(pages, dialect)

    async def _filter(self, pages: AsyncGenerator[Page], dialect: Dialect) -> AsyncGenerator[Page]:
        if self.live is not None:
            pages = understood(pages, dialect)
        sieve = _Sieve(self, dialect)
        async with aclosing(pages):
            async for page in pages:
                if page.offset == 0:
                    sieve = _Sieve(self, dialect)
                found = sieve.take(page)
                if found is not None:
                    yield found


_Placed = tuple[StoredMessage, str | None, int]
"""A message, the id of the message before it, and its index; see ``Page``."""


EVERYTHING = Selection()
"""The selection of all memories."""


class _Sieve:
    """A filter that selects messages from the pages of one memory and sets their anchors."""

    def __init__(self, where: Selection, dialect: Dialect) -> None:
        self._where = replace(where, live=None)
        self._live = where.live
        self._dialect = dialect
        self._newest: deque[_Placed] = deque(maxlen=where.last)
        self._older: _Placed | None = None
        self._newest_of_all: deque[_Placed] = deque()
        self._offset = 0
        self._kept: str | None = None
        """The id of the last message that was not selected."""
        self._before: str | None = None
        """The last anchor in the pages, which may be a message that the pages leave out."""
        self._untimed = 0

    def take(self, page: Page) -> Page | None:
        """Return a page of the selected messages in ``page``, or None if there are none.

        If an earlier page of the memory had selected messages, the last page is returned even if
        empty.
        """
        found = list(self._matching(page))
        if self._where.last is not None:
            found = self._last(found, page)
        offset = self._offset
        self._offset += len(found)
        if not found and not (page.last and offset):
            return None
        entries = [entry for entry, _, _ in found]
        anchors = [after for _, after, _ in found]
        indexes = [at for _, _, at in found]
        return Page(page.memory, entries, offset, page.last, anchors, indexes, page.unread)

    def _matching(self, page: Page) -> Iterator[_Placed]:
        for entry, before, at in self._old_enough(page):
            if before != self._before:
                self._kept = self._before = before
            verdict = Verdict.LEFT_OUT
            wanted = self._live is None or self._live is (at not in page.unread)
            if wanted and self._where.may_have(page.memory.key, entry.id):
                verdict = self._where.judge(entry, self._dialect)
            if verdict is Verdict.SELECTED:
                yield entry, self._kept, at
            else:
                self._untimed += verdict is Verdict.UNTIMED
                self._kept = entry.id
        if page.last and self._untimed:
            self._where.untimed.note(page.memory.key, self._untimed, self._dialect.noun)

    def _old_enough(self, page: Page) -> Iterator[_Placed]:
        """Yield all messages except the newest ``spare`` of the memory."""
        anchors = page.anchors or repeat(None)
        pairs = zip(page.messages, anchors, page.places, strict=False)
        if self._where.spare is None:
            yield from pairs
            return
        for pair in pairs:
            self._newest_of_all.append(pair)
            if len(self._newest_of_all) > self._where.spare:
                yield self._newest_of_all.popleft()

    def _last(self, found: list[_Placed], page: Page) -> list[_Placed]:
        """Return the newest selected messages on the last page, nothing on earlier pages."""
        for one in found:
            if len(self._newest) == self._where.last:
                self._older = self._newest[0]
            self._newest.append(one)
        if not page.last:
            return []
        if self._older is None:
            return list(self._newest)
        id, behind = self._older[0].id, self._older[1]
        return [(entry, id if after == behind else after, at) for entry, after, at in self._newest]
