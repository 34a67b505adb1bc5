"""Reading AgentScope's Redis memory: first snapshots of memories, then payloads.

A payload never changes under its id, so a payload may be read after the snapshot that listed the
id.  If a payload is missing, an agent may have deleted the message meanwhile: the reader then
takes another snapshot of the memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import closing
from itertools import chain, islice, repeat
from typing import Any

from msgspec.structs import replace
from redis.exceptions import ResponseError

from memctl.engines.redis.pipeline import WRONG_TYPE, Pacer, Pipeline
from memctl.engines.redis.text import decode, encode_or_none
from memctl.errors import Lost
from memctl.json import jsonio
from memctl.layouts.redis.keys import (
    MARK,
    MESSAGES,
    PAYLOAD,
    RAW_SURROGATES,
    count_payloads,
    with_aliases,
)
from memctl.model import PAGE_ENTRIES, Finding, Memory, MemoryKey, Page, StoredMessage
from memctl.selection import Selection
from memctl.storekit.batching import PageBuilder, are_objects, messages_from_columns, paginate
from memctl.storekit.catalog import IdSet
from memctl.stores.agentscope1.redis.scan import MemoryRef
from memctl.stores.agentscope1.redis.snapshot import (
    Marks,
    MemorySnapshot,
    SnapshotReader,
    list_pages,
)

Fetched = StoredMessage | bytes | str
"""A message; or only its id: as bytes if the payload is missing, as text if it is not a message."""

_TRIES = 10
_TOGETHER = 128
_PROBED = 100
_FILTERED_TOGETHER = 500
_NAMES = 100
"""The most marks or ids to check for before a snapshot; longer selections skip the check."""
_EXAMPLES = 3


class Reader:
    """A single read of memories, for use in a thread."""

    def __init__(
        self,
        pipeline: Pipeline,
        marks: dict[bytes, tuple[bytes, ...]],
        where: Selection,
        *,
        payloads: bool = True,
    ) -> None:
        """``marks`` has the names of mark lists, by base (the prefix of all keys of a memory).

        With ``payloads`` False, the texts of messages are not read: messages are empty, and every
        id with a payload counts as a message.
        """
        self._pipeline = pipeline
        self._snapshots = SnapshotReader(pipeline, marks)
        self._payloads = payloads
        self._pacer = Pacer()
        self._filter = SelectionFilter(pipeline, where)
        self._missing = SkippedMessages("message ids without payload")
        self._broken = SkippedMessages("payloads that are not a JSON object")
        self._wrong: dict[bytes, None] = {}
        """The bases of memories with a list or index of the wrong type, in order."""

    def warnings(self) -> list[str]:
        """Return a warning for each kind of skipped message or key."""
        found = self._missing.lines() + self._broken.lines()
        if self._wrong:
            first = decode(next(iter(self._wrong)))
            found.append(
                f"took keys of another type for empty in {len(self._wrong)} memories (the first: "
                f"{first!r}); run memctl doctor"
            )
        return found

    @property
    def broken(self) -> Set[MemoryKey]:
        """The memories with a skipped payload that is not a JSON object."""
        return self._broken.by_memory.keys()

    def damage(self) -> list[Finding]:
        """Return findings for skipped messages, for each memory and each kind of damage."""
        return [
            Finding(code, key, count, tuple(ids))
            for code, skipped in (
                ("id-without-payload", self._missing),
                ("payload-not-json", self._broken),
            )
            for key, (count, ids) in skipped.by_memory.items()
        ]

    def pages(self, memories: Iterable[MemoryRef]) -> Iterator[Page]:
        """Yield pages of the memories, without messages that the selection excludes by id or mark.

        Raises:
            Lost: the connection broke, or an agent deleted messages of a memory during the read.
            Unavailable: the server refuses a command.
        """
        for some in self._snapshots.snapshots(self._filter.memories(memories)):
            self._wrong |= {one.ref.base: None for one in some if one.wrong is not None}
            pages = self._small(some) if some[0].small else self._large(some[0])
            yield from self._filter.with_anchors(pages)

    def headers(self, memories: Iterable[MemoryRef]) -> Iterator[list[Memory]]:
        """Yield lists of memories, without reading their messages.

        Leaves out memories of which no listed id has a payload.
        """
        source = iter(memories)
        while some := list(islice(source, _TOGETHER)):
            commands = chain.from_iterable(
                (
                    (b"LRANGE", ref.base + MESSAGES, b"0", b"%d" % (_PROBED - 1)),
                    (b"PTTL", ref.base + MESSAGES),
                )
                for ref in some
            )
            replies = iter(self._pipeline.execute(commands, tolerate=WRONG_TYPE))
            found = [
                (ref, ids, ttl)
                for ref, ids, ttl in zip(some, replies, replies, strict=True)
                if ids and not isinstance(ids, ResponseError)
            ]
            counts = self._pipeline.execute(count_payloads(ref.base, ids) for ref, ids, _ in found)
            yield [
                Memory(ref.key, ttl=ttl / 1000 if ttl >= 0 else None)
                for (ref, ids, ttl), count in zip(found, counts, strict=True)
                if count or (len(ids) == _PROBED and self._has_payload(ref.base))
            ]

    def window(self, ref: MemoryRef, start: int, count: int) -> Page | None:
        """Return a window of a memory, for ``Store.window``; None if an id in it is no message."""
        snapshot, first, total = self._snapshots.part(ref, start, count)
        with closing(snapshot):
            ids = list(snapshot.messages)
            marks = [snapshot.marks_of(id) or () for id in ids]
            memory = snapshot.memory
        keys = [ref.base + PAYLOAD + id for id in ids]
        found = list(chain.from_iterable(self._fetch(keys, ids, marks)))
        messages = [one for one in found if isinstance(one, StoredMessage)]
        if len(messages) < len(found) or not total:
            return None
        return Page(memory, messages, first, last=first + len(messages) == total)

    def _has_payload(self, base: bytes) -> bool:
        pages = list_pages(self._pipeline, base + MESSAGES, _PROBED)
        return any(self._pipeline.execute([count_payloads(base, ids)])[0] for ids in pages)

    def _small(self, snapshots: Sequence[MemorySnapshot]) -> Iterator[Page]:
        selected = [
            self._filter.messages(snapshot, list(snapshot.messages)) for snapshot in snapshots
        ]
        keys = [
            snapshot.ref.base + PAYLOAD + id
            for snapshot, (ids, _) in zip(snapshots, selected, strict=True)
            for id in ids
        ]
        ids, marks = (list(chain.from_iterable(some)) for some in zip(*selected, strict=True))
        blocks = self._fetch(keys, ids, marks)
        held: list[Fetched] = []
        doubtful = []
        for snapshot, (its, _) in zip(snapshots, selected, strict=True):
            builder = MemoryBuilder(snapshot)
            yield from builder.fill(len(its), blocks, held)
            if builder.missing and not builder.page.offset:
                doubtful.append(builder)
            else:
                yield from self._end(builder)
        for builder in doubtful:
            yield from self._retry(builder)

    def _large(self, snapshot: MemorySnapshot) -> Iterator[Page]:
        builder = MemoryBuilder(snapshot)
        for number, chunk in enumerate(snapshot.messages.chunks()):
            ids, marks = self._filter.messages(snapshot, chunk, continued=number > 0)
            keys = [snapshot.ref.base + PAYLOAD + id for id in ids]
            yield from builder.fill(len(ids), self._fetch(keys, ids, marks), [])
        yield from self._end(builder)

    def _end(self, builder: MemoryBuilder) -> Iterator[Page]:
        """Yield the last page of a memory; nothing if the memory has no message.

        Raises:
            Lost: an agent deleted messages of the memory during the read.
        """
        ref = builder.snapshot.ref
        if builder.missing:
            with closing(self._snapshots.take(ref)) as now:
                if sum(id in builder.gone for id in now.messages) < builder.missing:
                    raise _overtaken(ref)
            self._missing.add(builder.first_gone, ref, builder.missing)
        for id in builder.broken:
            self._broken.add(id, ref)
        yield from builder.rest()

    def _retry(self, builder: MemoryBuilder) -> Iterator[Page]:
        """Read a small memory again because a payload was missing, and yield the pages.

        An id that is still listed has no payload, and is skipped.

        Raises:
            Lost: an agent keeps deleting messages of the memory.
        """
        ref = builder.snapshot.ref
        known: dict[str, StoredMessage | None] = {
            message.id: message for message in builder.page.entries
        }
        known |= dict.fromkeys(builder.broken)
        gone = builder.gone
        for _ in range(_TRIES):
            with closing(self._snapshots.take(ref)) as snapshot:
                self._filter.forget(ref.key)
                if not snapshot.small:
                    yield from self._large(snapshot)
                    return
                ids, marks = self._filter.messages(snapshot, list(snapshot.messages))
            new = [
                (id, some)
                for id, some in zip(ids, marks, strict=True)
                if decode(id) not in known and id not in gone
            ]
            keys = [ref.base + PAYLOAD + id for id, _ in new]
            blocks = self._fetch(keys, [id for id, _ in new], [some for _, some in new])
            found = list(chain.from_iterable(blocks))
            known |= {one.id: one for one in found if isinstance(one, StoredMessage)}
            known |= dict.fromkeys(one for one in found if isinstance(one, str))
            missing = [one for one in found if isinstance(one, bytes)]
            if not missing:
                yield from self._pages_of(snapshot, ids, marks, known)
                return
            gone.add(missing)
        raise _overtaken(ref)

    def _pages_of(
        self,
        snapshot: MemorySnapshot,
        ids: list[bytes],
        marks: list[Marks],
        known: dict[str, StoredMessage | None],
    ) -> Iterator[Page]:
        """Yield the pages of a memory whose payloads are all read; note the unusable ids.

        ``known`` maps the ids to their messages, or to None if the payload is not a valid message.
        An id that ``known`` lacks has no payload.
        """
        messages = []
        anchors: list[str | None] = []
        skipped: str | None = None
        for id, some in zip(map(decode, ids), marks, strict=True):
            message = known.get(id)
            if message is not None:
                messages.append(message._replace(marks=some))
                anchors.append(skipped)
            else:
                skipped = id
                (self._broken if id in known else self._missing).add(id, snapshot.ref)
        for page in paginate(snapshot.memory, messages, empty=False):
            start = page.offset
            yield replace(page, anchors=anchors[start : start + len(page.messages)])

    # Payloads

    def _fetch(
        self, keys: list[bytes], ids: list[bytes], marks: list[Marks]
    ) -> Iterator[list[Fetched]]:
        at = 0
        fetched = self._pipeline.values(keys, self._pacer) if self._payloads else self._probe(keys)
        for values in fetched:
            end = at + len(values)
            texts = [id.decode("utf-8", "surrogateescape") for id in ids[at:end]]
            found = [self._parse(ids[at:end], texts, values, marks[at:end])]
            at = end
            del values
            yield found.pop()  # keep no reference: the messages may be large

    def _parse(
        self, ids: list[bytes], texts: list[str], values: list[Any], marks: list[Marks]
    ) -> list[Fetched]:
        good = are_objects(values) if self._payloads else None not in values
        if good:
            return [*messages_from_columns(texts, values, marks, repeat(None))]
        found: list[Fetched] = []
        for id, text, value, some in zip(ids, texts, values, marks, strict=True):
            if value is None:
                found.append(id)
                continue
            message = as_message(value) if self._payloads else value
            if message is None:
                found.append(text)
                continue
            raw = message is not value and jsonio.raw_surrogates(message) == value
            found.append(StoredMessage(text, message, some, shape=RAW_SURROGATES if raw else ""))
        return found

    def _probe(self, keys: list[bytes]) -> Iterator[list[bytes | None]]:
        """Yield an empty message for an existing key, and None for a missing key."""
        for start in range(0, len(keys), PAGE_ENTRIES):
            some = keys[start : start + PAGE_ENTRIES]
            [count] = self._pipeline.execute([(b"EXISTS", *some)])
            if count == len(some):
                yield [b""] * count
                continue
            each = self._pipeline.execute((b"EXISTS", key) for key in some)
            yield [b"" if exists else None for exists in each]


def as_message(payload: bytes | ResponseError) -> bytes | None:
    """Return the payload, made valid UTF-8, if it is a JSON object.

    Returns None for any other payload, and for an error reply of Redis.
    """
    if isinstance(payload, ResponseError):  # the key holds no string
        return None
    try:
        message = jsonio.utf8(payload)
        return message if isinstance(jsonio.outline(message), dict) else None
    except ValueError:
        return None


def _overtaken(ref: MemoryRef) -> Lost:
    return Lost(
        f"messages of {ref.key} were deleted while they were read",
        "run again for the rest; what was written is complete",
    )


class MemoryBuilder:
    """Cuts the messages of a memory into pages, while the messages are read."""

    def __init__(self, snapshot: MemorySnapshot) -> None:
        self.snapshot = snapshot
        self.page = PageBuilder(snapshot.memory)
        self.broken: list[str] = []
        self.missing = 0
        self.gone = IdSet()
        """The ids of the missing payloads."""
        self.first_gone = ""
        self._skipped: str | None = None
        self._plain = 0
        """The number of pending messages before the first skipped id."""
        self._anchors: deque[str | None] = deque()
        """For each later message, the last skipped id before the message."""

    def fill(
        self, count: int, blocks: Iterator[list[Fetched]], held: list[Fetched]
    ) -> Iterator[Page]:
        """Add the next ``count`` messages of the memory; yield each page that more messages follow.

        The messages come first from ``held``, then from ``blocks``.  At the end, ``held`` has the
        messages of the last block that belong to the next memory.
        """
        while count:
            if not held:
                yield from map(self._anchored, self.page.full())
                held += next(blocks)
            taken = min(count, len(held))
            count -= taken
            some = held[:taken]
            del held[:taken]
            yield from map(self._anchored, self.page.take(self._sort(some)))

    def rest(self) -> Iterator[Page]:
        """Yield the last page of the memory; nothing if the memory has no message."""
        if self.page.entries or self.page.offset:
            yield self._anchored(self.page.page(last=True))

    def _anchored(self, page: Page) -> Page:
        count = len(page.messages)
        plain = min(count, self._plain)
        self._plain -= plain
        if self._skipped is None:
            return page
        behind = [self._anchors.popleft() for _ in range(count - plain)]
        return replace(page, anchors=[*repeat(None, plain), *behind])

    def _sort(self, found: list[Fetched]) -> list[StoredMessage]:
        messages = [one for one in found if isinstance(one, StoredMessage)]
        if len(messages) < len(found):
            self.broken += [one for one in found if isinstance(one, str)]
            gone = [one for one in found if isinstance(one, bytes)]
            if gone and not self.missing:
                self.first_gone = decode(gone[0])
            self.missing += len(gone)
            self.gone.add(gone)
        if self._skipped is None and len(messages) == len(found):
            self._plain += len(found)
        else:
            for one in found:
                if isinstance(one, StoredMessage):
                    self._anchors.append(self._skipped)
                else:
                    self._skipped = one if isinstance(one, str) else decode(one)
        found.clear()
        return messages


class SkippedMessages:
    """The number of skipped messages of one kind, with a few ids as examples."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._count = 0
        self._first = ""
        self.by_memory: dict[MemoryKey, tuple[int, list[str]]] = {}
        """For each memory, the number of skipped messages, and a few of the ids."""

    def add(self, id: str, ref: MemoryRef, count: int = 1) -> None:
        """Count ``count`` skipped messages of a memory; ``id`` is the id of the first of them."""
        self._first = self._first or f"{id!r} of {decode(ref.base)!r}"
        self._count += count
        before, ids = self.by_memory.get(ref.key, (0, []))
        self.by_memory[ref.key] = (before + count, [*ids, id][:_EXAMPLES])

    def lines(self) -> list[str]:
        """Return a list with one warning about the skipped messages; empty if none was skipped."""
        if not self._count:
            return []
        return [f"left out {self._count} {self._kind} (the first: {self._first})"]


class SelectionFilter:
    """A filter of messages by id and mark, applied before payloads are read."""

    def __init__(self, pipeline: Pipeline, where: Selection) -> None:
        self._pipeline = pipeline
        self._where = Selection(marks=where.marks, exclude_marks=where.exclude_marks, ids=where.ids)
        self._anchors: dict[tuple[MemoryKey, str], list[str | None]] = {}
        """The anchors of selected messages by memory and id; see ``Page.anchors``."""
        self._anchor: str | None = None
        """The id of the last message that was not selected."""

    def memories(self, memories: Iterable[MemoryRef]) -> Iterator[MemoryRef]:
        """Yield the memories that have a selected mark or message id.

        Yields all memories if the selection names no marks and ids, or too many.
        """
        names = self._where.marks or self._where.ids
        suffix = MARK if self._where.marks else PAYLOAD
        if not names or len(names) > _NAMES:
            yield from memories
            return
        found = {name for name in map(encode_or_none, names) if name is not None}
        if self._where.marks:
            found = with_aliases(found)
        source = iter(memories if found else ())
        while some := list(islice(source, _FILTERED_TOGETHER)):
            counts = self._pipeline.execute(
                [(b"EXISTS", *(ref.base + suffix + name for name in found)) for ref in some]
            )
            yield from (ref for ref, count in zip(some, counts, strict=True) if count)

    def messages(
        self, snapshot: MemorySnapshot, ids: list[bytes], *, continued: bool = False
    ) -> tuple[list[bytes], list[Marks]]:
        """Return the ids of the selected messages, and the marks of each.

        ``ids`` are consecutive ids of the memory.  ``continued`` is True if the previous call was
        for the ids directly before them.
        """
        if not continued:
            self._anchor = None
        if self._where.whole:
            return ids, [some or () for some in map(snapshot.marks_of, ids)]
        selected: list[bytes] = []
        marks: list[Marks] = []
        last = -1
        for at in self._candidates(snapshot, ids):
            id = ids[at]
            message = StoredMessage(decode(id), b"", snapshot.marks_of(id) or ())
            if self._where.matches(message):
                if at > last + 1:
                    self._anchor = decode(ids[at - 1])
                last = at
                anchors = self._anchors.setdefault((snapshot.ref.key, message.id), [])
                anchors.append(self._anchor)
                selected.append(id)
                marks.append(message.marks)
        if last < len(ids) - 1:
            self._anchor = decode(ids[-1])
        return selected, marks

    def _candidates(self, snapshot: MemorySnapshot, ids: list[bytes]) -> Iterable[int]:
        """Return the indexes in ``ids`` of messages with a selected mark."""
        found = set[int]()
        for mark in self._where.marks:
            found.update([at for at, has in enumerate(map(snapshot.has_mark(mark), ids)) if has])
        return sorted(found) if self._where.marks else range(len(ids))

    def forget(self, key: MemoryKey) -> None:
        """Forget the anchors of a memory, because the memory is read again."""
        self._anchors = {name: some for name, some in self._anchors.items() if name[0] != key}

    def with_anchors(self, pages: Iterator[Page]) -> Iterator[Page]:
        """Yield the pages, with ``Page.anchors`` if the selection names ids or marks.

        The anchors of the given pages are only ids that were skipped because of a missing or
        invalid payload.
        """
        if self._where.whole:
            yield from pages
            return
        for page in pages:
            key = page.memory.key
            anchors: list[str | None] = []
            for message, skipped in zip(page.messages, page.anchors or repeat(None), strict=False):
                anchor = self._take_anchor(key, message.id)
                if skipped is not None and anchor in self._anchors[key, skipped]:
                    anchor = skipped  # the message and the skipped id have the same anchor
                anchors.append(anchor)
            yield replace(page, anchors=anchors)
        self._anchors.clear()

    def _take_anchor(self, key: MemoryKey, id: str) -> str | None:
        anchors = self._anchors[key, id]
        return anchors.pop(0) if len(anchors) > 1 else anchors[0]
