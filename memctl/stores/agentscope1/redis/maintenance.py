"""Checks and repairs of the keys of memories in Redis.

A check takes a snapshot of each memory.  Then it scans the payloads once, and looks up payloads
that no list names a second time: an agent may have added the payloads meanwhile.

A repair watches the lists of a memory while the repair is planned and noted, and changes the lists
in MULTI/EXEC.  RedisMemory changes the list of messages whenever it adds or removes a payload.  So
Redis refuses the repair if an agent interferes, and the repair is planned again.

Source: ``memory/_working_memory/_redis_memory.py`` of agentscope 1.0.21.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, aclosing
from functools import partial
from itertools import chain, islice
from typing import Any, TypeVar

from msgspec import Struct, field

from memctl.engines.redis.pipeline import (
    ABSENT,
    WRONG_TYPE,
    Command,
    Pipeline,
    in_thread,
    items_in_thread,
    scan,
)
from memctl.engines.redis.server import RedisServer
from memctl.engines.redis.text import decode, encode
from memctl.errors import Lost, UsageError
from memctl.layouts.redis.keys import (
    MARK,
    MARKS_INDEX,
    MESSAGES,
    PAYLOAD,
    STATE,
    Keys,
    canonical_mark,
    is_indexed,
    mark_aliases,
    of_other_aliases,
)
from memctl.model import PAGE_BYTES, Finding, MemoryKey
from memctl.selection import Selection
from memctl.store import Maintenance, Note, Record, Store
from memctl.storekit.catalog import IdSet
from memctl.stores.agentscope1.redis.edit import removal_commands
from memctl.stores.agentscope1.redis.scan import LISTS, Catalogue, MemoryRef
from memctl.stores.agentscope1.redis.snapshot import (
    IdList,
    MemorySnapshot,
    SnapshotReader,
    length_of,
    list_pages,
)

T = TypeVar("T")

REPAIRS = frozenset(
    {
        "id-without-payload",
        "payload-without-id",
        "orphan-mark",
        "expires-early",
        "never-expires",
        "marks-index-missing",
        "marks-index-stale",
    }
)

_APART = 5000
"""Expiries that differ by less, in milliseconds, count as equal."""
_EXAMPLES = 3
_KEYS = 10_000
_SUSPECTS = 1000
"""The most payloads of a memory to look up again; an agent does not add more during a check."""
_STRAYS = 20_000
"""The number of payloads deleted in one transaction."""
_TRIES = 20
"""Attempts to plan the repair of a memory that an agent keeps changing."""
_NOTED = 1000
"""The most keys in one record."""
_LISTED = 20_000
"""The most ids of a list in one record."""


class RedisMaintenance(Maintenance):
    """Findings and repairs of the keys of ``RedisMemory``."""

    def __init__(self, store: Store, server: RedisServer, keys: Keys, catalogue: Catalogue) -> None:
        super().__init__(store)
        self._server = server
        self._keys = keys
        self._catalogue = catalogue

    async def _further(self, where: Selection) -> AsyncGenerator[Finding]:
        async with self._server.pipeline() as pipeline:
            make = partial(Checker, pipeline, self._keys, self._catalogue, where)
            async for finding in items_in_thread(pipeline, lambda: make().findings()):
                yield finding

    async def repair(self, code: str, where: Selection, note: Note) -> int:
        async with self._server.pipeline() as pipeline:
            repairer = Repairer(pipeline, self._keys, self._catalogue)
            return await repairer.repair(code, where, note)

    async def revert(self, records: AsyncGenerator[Record]) -> int:
        async with self._server.pipeline() as pipeline:
            repairer = Repairer(pipeline, self._keys, self._catalogue)
            return await repairer.revert(records)


# Checking


class Checker:
    """A check of the selected memories, for use in a thread."""

    def __init__(
        self, pipeline: Pipeline, keys: Keys, catalogue: Catalogue, where: Selection
    ) -> None:
        """Find the selected memories.

        Raises:
            Lost: the connection broke.
            Unavailable: the server refuses a command.
        """
        self._pipeline = pipeline
        self._keys = keys
        self._where = where
        self._memories = catalogue.memories(pipeline, where)
        self.marks = catalogue.marks(pipeline, where)
        """The names of the mark lists that were found, by base."""
        self._listed = IdSet()
        """The keys of all payloads that a list names."""
        self.gaps: list[MemoryKey] = []
        """The memories whose list had an id without payload when ``findings`` read the list."""

    def findings(self) -> Iterator[list[Finding]]:
        """Yield the findings of all checks, in lists."""
        reader = SnapshotReader(self._pipeline, self.marks)
        for snapshots in reader.snapshots(self._memories):
            for snapshot in snapshots:
                prefix = snapshot.ref.base + PAYLOAD
                for ids in snapshot.messages.chunks():
                    self._listed.add(prefix + id for id in ids)
                found = (_repeats(snapshot), _marks(snapshot), self._expiries(snapshot))
                yield list(chain.from_iterable(found))
        yield list(self._orphaned_marks())
        yield list(self._wrong_types())
        yield list(self._strays())

    # Lists

    def _orphaned_marks(self) -> Iterator[Finding]:
        """Yield a finding for each memory that has mark lists and no list of messages."""
        bases = {ref.base for ref in self._memories}
        for base, marks in self.marks.items():
            if base in bases or (key := self._key(base)) is None:
                continue
            lists = [base + MARK + mark for mark in marks]
            *lengths, kind = self._pipeline.execute(
                [*((b"LLEN", name) for name in lists), (b"TYPE", base + MESSAGES)],
                tolerate=WRONG_TYPE,
            )
            count = sum(map(length_of, lengths))
            if count and kind != b"list":
                count -= self._counted_twice(base, marks)
                names = list(dict.fromkeys(map(decode, map(canonical_mark, marks))))
                named = ", ".join(map(repr, names[:_EXAMPLES]))
                yield Finding("orphan-mark", key, count, (), f"{named}: the memory is gone")

    def _counted_twice(self, base: bytes, names: Iterable[bytes]) -> int:
        """Return how many ids are on more than one list of the same mark.

        ``names`` are the names of the mark lists of the memory with the base ``base``.
        """
        seen: dict[bytes, IdSet] = {}
        count = 0
        for name in names:
            if len(mark_aliases(canonical_mark(name))) == 1:
                continue
            before = of_other_aliases(name, seen)
            its = seen[name] = IdSet()
            for ids in list_pages(self._pipeline, base + MARK + name):
                its.add(ids)
                count += sum(any(id in some for some in before) for id in ids)
        return count

    # Types

    def _wrong_types(self) -> Iterator[Finding]:
        """Yield a finding for each memory with a list or ``marks_index`` of the wrong Redis type.

        Payloads of the wrong type are found when they are read.
        """
        wrong: dict[MemoryKey, list[bytes]] = {}
        found = scan(self._pipeline, self._keys.pattern(self._where, LISTS))
        while some := list(islice(found, _KEYS)):
            some = [key for key in dict.fromkeys(some) if _types_of(key)]
            kinds = self._pipeline.execute((b"TYPE", key) for key in some)
            for key, kind in zip(some, kinds, strict=True):
                if kind in (*_types_of(key), b"none"):
                    continue
                memory = self._key(_list_owner(key))
                if memory is not None and key not in wrong.get(memory, ()):
                    wrong.setdefault(memory, []).append(key)
        for memory, keys in wrong.items():
            base = self._keys.base(memory)
            names = tuple(decode(key.removeprefix(base + b":")) for key in sorted(keys))
            yield Finding("wrong-key-type", memory, len(keys), names[:_EXAMPLES])

    # Expiry

    def _expiries(self, snapshot: MemorySnapshot) -> Iterator[Finding]:
        """Yield findings for the keys of a memory that expire earlier than its list of messages.

        Also yields findings for keys that never expire although the list of messages does.
        """
        ref = snapshot.ref
        lists = [its.key for its in snapshot.marks.values() if its.count]
        if snapshot.index:
            lists.append(ref.base + MARKS_INDEX)
        payloads = (ref.base + PAYLOAD + id for id in snapshot.messages)
        early, never = Sample(), Sample()
        gap = False
        for key, ttl in self._ttls(chain(lists, payloads)):
            gap = gap or ttl == ABSENT
            if ttl == -1 and snapshot.ttl >= 0:
                never.add(key.removeprefix(ref.base + b":"))
            elif ttl >= 0:
                passed = (time.monotonic() - snapshot.taken) * 1000
                if snapshot.ttl == -1 or ttl + passed < snapshot.ttl - _APART:
                    early.add(key.removeprefix(ref.base + b":"))
        if gap:
            self.gaps.append(ref.key)
        yield from early.finding("expires-early", ref.key)
        yield from never.finding("never-expires", ref.key)

    def _ttls(self, keys: Iterable[bytes]) -> Iterator[tuple[bytes, int]]:
        source = iter(keys)
        while some := list(islice(source, _KEYS)):
            ttls = self._pipeline.execute((b"PTTL", key) for key in some)
            yield from zip(some, ttls, strict=True)

    # Payloads

    def _strays(self) -> Iterator[Finding]:
        """Yield a finding for each memory with payloads that no list of messages names."""
        found: dict[bytes, tuple[MemoryKey, list[bytes]]] = {}
        counts: dict[bytes, int] = {}
        for base, name, key in self.suspects():
            counts[base] = counts.get(base, 0) + 1
            _, some = found.setdefault(base, (name, []))
            if len(some) < _SUSPECTS:
                some.append(key)
        for base, (name, keys) in found.items():
            if counts[base] < _SUSPECTS:
                keys = list(unlisted(self._pipeline, base, keys))
                counts[base] = len(keys)
            if keys:
                ids = tuple(decode(key[len(base) + len(PAYLOAD) :]) for key in keys[:_EXAMPLES])
                yield Finding("payload-without-id", name, counts[base], ids)

    def suspects(self) -> Iterator[tuple[bytes, MemoryKey, bytes]]:
        """Yield the payloads (texts of messages) whose ids were on no list of messages.

        Each is yielded as the base (prefix of all keys of the memory), the memory, and the Redis
        key of the payload; perhaps twice.  The caller must call ``findings`` first, which reads the
        lists.
        """
        bases = {ref.base for ref in self._memories}
        for key in self._scan_payloads():
            if key not in self._listed:
                base = _owner(key, bases)
                memory = self._key(base)
                if memory is not None:
                    yield base, memory, key

    def _scan_payloads(self) -> Iterator[bytes]:
        pattern = self._keys.pattern(self._where, PAYLOAD + b"*")
        # The name of a session state may look like the name of a payload.
        found = scan(self._pipeline, pattern, b"string")
        yield from (key for key in found if not key.endswith(STATE))

    def _key(self, base: bytes) -> MemoryKey | None:
        readings = self._keys.parse_base(base)
        return next((key for key in readings if self._where.has_key(key)), None)


class Sample(Struct):
    """Counts names, and keeps the first few names as examples."""

    count: int = 0
    names: list[str] = field(default_factory=list)

    def add(self, name: bytes) -> None:
        """Count a name."""
        self.count += 1
        if len(self.names) < _EXAMPLES:
            self.names.append(decode(name))

    def finding(self, code: str, key: MemoryKey) -> Iterator[Finding]:
        """Yield a finding about a memory with the code ``code``; nothing if no name was added."""
        if self.count:
            yield Finding(code, key, self.count, tuple(self.names))


def unlisted(pipeline: Pipeline, base: bytes, keys: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the keys of payloads that exist although the list of messages lacks their ids.

    ``keys`` are Redis keys of payloads (texts of messages).  ``base`` is the prefix of all keys of
    the memory.
    """
    listed = IdSet()
    for ids in list_pages(pipeline, base + MESSAGES):
        listed.add(base + PAYLOAD + id for id in ids)
    some = list(dict.fromkeys(keys))
    found = pipeline.execute((b"EXISTS", key) for key in some)
    for key, exists in zip(some, found, strict=True):
        if exists and key not in listed:
            yield key


def _types_of(key: bytes) -> tuple[bytes, ...]:
    if PAYLOAD in key or key.endswith(STATE):
        return ()
    if key.endswith(MARKS_INDEX):
        return (b"set", b"list") if MARK in key else (b"set",)
    return (b"list",) if key.endswith(MESSAGES) or MARK in key else ()


def _list_owner(key: bytes) -> bytes:
    if MARK in key:
        return key.partition(MARK)[0]
    return key.removesuffix(MARKS_INDEX).removesuffix(MESSAGES)


def _owner(key: bytes, bases: set[bytes]) -> bytes:
    """Return the base (prefix of all keys of a memory) in the key of a payload.

    Prefers the longest base in ``bases``, then the shortest possible base.
    """
    at = key.rfind(PAYLOAD)
    first = at
    while at >= 0:
        if key[:at] in bases:
            return key[:at]
        first = at
        at = key.rfind(PAYLOAD, 0, at + len(PAYLOAD) - 1)
    return key[:first]


def _repeats(snapshot: MemorySnapshot) -> Iterator[Finding]:
    if repeated := snapshot.messages.ids.duplicates:
        yield Finding("repeated-id", snapshot.ref.key, repeated)


def _marks(snapshot: MemorySnapshot) -> Iterator[Finding]:
    """Yield findings for marks of missing messages, and for marks that ``marks_index`` lacks.

    An id counts once even if it is on several lists of the same mark.
    """
    key = snapshot.ref.key
    orphans, unindexed = Sample(), Sample()
    seen: dict[bytes, IdSet] = {}
    for name, listed in snapshot.marks.items():
        if not listed.count:
            continue
        before = of_other_aliases(name, seen)
        its = seen[name] = IdSet()
        for id in listed:
            if id in snapshot.messages.ids:
                continue
            its.add((id,))
            if not any(id in some for some in before):
                orphans.add(id)
        if not is_indexed(name, snapshot.index):
            unindexed.add(name)
    yield from orphans.finding("orphan-mark", key)
    code = "marks-index-stale" if snapshot.index else "marks-index-missing"
    yield from unindexed.finding(code, key)


# Repairing


class RepairPlan(Struct, frozen=True):
    """A planned repair: its size, the records to note before it, and its commands.

    The keys that it depends on are watched.
    """

    count: int
    records: Iterator[Record]
    commands: Iterable[Command]


class Repairer:
    """Repairs memories of a Redis database, and reverts the repairs."""

    def __init__(self, pipeline: Pipeline, keys: Keys, catalogue: Catalogue) -> None:
        self._pipeline = pipeline
        self._keys = keys
        self._catalogue = catalogue

    async def repair(self, code: str, where: Selection, note: Note) -> int:
        """Repair the findings with a code (``Maintenance.repair``)."""
        if code not in REPAIRS:
            raise UsageError(f"{code} cannot be repaired in Redis", f"known: {sorted(REPAIRS)}")
        make = partial(Checker, self._pipeline, self._keys, self._catalogue, where)
        checker = await self._run(make)
        found = await self._run(partial(_affected, checker, code))
        if code == "payload-without-id":
            return await self._delete_strays(checker, note) if found else 0
        count = 0
        for key in found:
            memory = MemoryRepair(self._pipeline, self._keys, key, checker.marks)
            if code in ("expires-early", "never-expires"):
                count += await self._repair_expiries(memory, code, note)
            else:
                count += await self._carry_out(key, partial(memory.plan, code), note)
        return count

    async def _carry_out(
        self, key: MemoryKey, plan: Callable[[ExitStack], RepairPlan], note: Note
    ) -> int:
        """Plan, note and carry out a repair of a memory, again if an agent changes the memory.

        ``plan`` gets what closes temporary files.  Returns ``RepairPlan.count``.

        Raises:
            Lost: an agent keeps changing the memory.
        """
        for _ in range(_TRIES):
            with ExitStack() as files:
                made = await self._run(partial(plan, files))
                while record := await self._run(partial(next, made.records, None)):
                    await note(record)
                if await self._run(partial(self._pipeline.commit, made.commands)):
                    return made.count
        raise Lost(
            f"an agent keeps changing {key}",
            "run again for the rest; what was repaired is complete",
        )

    async def _delete_strays(self, checker: Checker, note: Note) -> int:
        count = 0
        suspects = checker.suspects()
        while some := await self._run(lambda: list(islice(suspects, _STRAYS))):
            by_memory: dict[MemoryKey, list[bytes]] = {}
            for _, key, payload in some:
                by_memory.setdefault(key, []).append(payload)
            for key, payloads in by_memory.items():
                memory = MemoryRepair(self._pipeline, self._keys, key, {})
                plan = partial(memory.without_strays, payloads)
                count += await self._carry_out(key, plan, note)
        return count

    async def _repair_expiries(self, memory: MemoryRepair, code: str, note: Note) -> int:
        """Note and repair the expiry of a memory's keys; return the number of repaired keys."""
        count = 0
        with ExitStack() as files:
            changes = memory.expiries(code, files)
            while some := await self._run(lambda: list(islice(changes, _NOTED))):
                lives = [[decode(key[len(memory.base) :]), old] for key, old, _ in some]
                await note(memory.record(code, lives=lives))
                commands = [_expire_at(key, new) for key, _, new in some]
                await self._run(partial(self._pipeline.execute, commands))
                count += len(some)
        return count

    async def revert(self, records: AsyncGenerator[Record]) -> int:
        """Undo repairs of expiries and indexes (``Maintenance.revert``)."""
        undone = 0
        async with aclosing(records):
            async for record in records:
                key = MemoryKey(record["user"], record["session"])
                memory = MemoryRepair(self._pipeline, self._keys, key, {})
                undone += await self._run(partial(memory.revert, record))
        return undone

    async def _run(self, call: Callable[[], T]) -> T:
        return await in_thread(self._pipeline, call)


def _affected(checker: Checker, code: str) -> list[MemoryKey]:
    found = [
        finding.key
        for some in checker.findings()
        for finding in some
        if finding.code == code and finding.key is not None
    ]
    return checker.gaps if code == "id-without-payload" else found


class MemoryRepair:
    """The repair of one memory: planned, noted and reverted, in a thread."""

    def __init__(
        self,
        pipeline: Pipeline,
        keys: Keys,
        key: MemoryKey,
        marks: dict[bytes, tuple[bytes, ...]],
    ) -> None:
        """``marks`` has the names of known mark lists, by base (prefix of a memory's keys)."""
        self.key = key
        self.base = keys.base(key)
        self._pipeline = pipeline
        self._snapshots = SnapshotReader(pipeline, marks)

    def record(self, code: str, **more: Any) -> Record:
        """Return a record of the repair ``code`` of the memory, with the values ``more``."""
        return {"code": code, "user": self.key.user, "session": self.key.session, **more}

    def plan(self, code: str, files: ExitStack) -> RepairPlan:
        """Watch what it depends on, and plan the repair of the memory's findings with this code.

        ``files`` closes the temporary files of lists.
        """
        snapshot = self._watch(files)
        messages, marks = snapshot.messages, snapshot.marks
        lists = [messages, *marks.values()]
        match code:
            case "id-without-payload":
                gone = self._without_payload(messages)
                count = sum(id in gone for id in messages)
                return self._removal(code, count, lists, gone.__contains__)
            case "orphan-mark":
                count, seen = 0, dict[bytes, IdSet]()
                for mark, one in marks.items():
                    before = of_other_aliases(mark, seen)
                    seen[mark] = one.ids
                    orphans = (id for id in one if id not in messages.ids)
                    count += sum(not any(id in ids for ids in before) for id in orphans)
                return self._removal(code, count, lists[1:], lambda id: id not in messages.ids)
        filled = [mark for mark, one in marks.items() if one.count]
        names = [mark for mark in filled if not is_indexed(mark, snapshot.index)]
        return self._indexing(code, names, messages.key)

    def _removal(
        self,
        code: str,
        count: int,
        lists: Sequence[IdList],
        drops: Callable[[bytes], bool],
    ) -> RepairPlan:
        """Plan to remove the ids for which ``drops`` is true from lists."""

        def records() -> Iterator[Record]:
            for listed in lists:
                name = decode(listed.key[len(self.base) :])
                removed = map(decode, filter(drops, listed))
                while some := list(islice(removed, _LISTED)):
                    yield self.record(code, list=name, ids=some)

        removals = chain.from_iterable(removal_commands(listed, drops) for listed in lists)
        return RepairPlan(count, records(), removals)

    def _indexing(self, code: str, marks: list[bytes], owner: bytes) -> RepairPlan:
        """Plan to add marks to ``marks_index``, which expires as the list ``owner`` does."""
        if not marks:
            return RepairPlan(0, iter(()), ())
        [(_, end)] = self._ends([owner], absent=True)
        index = self.base + MARKS_INDEX
        commands: list[Command] = [(b"SADD", index, *marks)]
        commands += [] if end is None else [_expire_at(index, end)]
        return RepairPlan(
            len(marks), iter([self.record(code, marks=[*map(decode, marks)])]), commands
        )

    def _watch(self, files: ExitStack) -> MemorySnapshot:
        [snapshot] = self._snapshots.watch([MemoryRef(self.base, self.key)])
        files.callback(snapshot.close)
        return snapshot

    def _without_payload(self, messages: IdList) -> IdSet:
        gone = IdSet()
        for ids in messages.chunks():
            found = self._pipeline.execute((b"EXISTS", self.base + PAYLOAD + id) for id in ids)
            gone.add(id for id, exists in zip(ids, found, strict=True) if not exists)
        return gone

    # Payloads

    def without_strays(self, some: Sequence[bytes], _: ExitStack) -> RepairPlan:
        """Watch the list of messages; plan to delete payloads whose ids the list lacks.

        ``some`` are Redis keys of payloads.  Keys that no longer exist are left out.
        """
        self._pipeline.execute([(b"WATCH", self.base + MESSAGES)])
        keys = list(unlisted(self._pipeline, self.base, some))
        commands = ((b"UNLINK", key) for key in keys)
        return RepairPlan(len(keys), self._payload_records(keys), commands)

    def _payload_records(self, keys: Iterable[bytes]) -> Iterator[Record]:
        """Yield records of the payloads under ``keys``; a record has about the size of a page."""
        code = "payload-without-id"
        some: list[list[Any]] = []
        size = 0
        for key in keys:
            value, ttl = self._pipeline.execute([(b"GET", key), (b"PTTL", key)])
            if value is None or ttl == ABSENT:  # the payload has expired meanwhile
                continue
            id = decode(key[len(self.base) + len(PAYLOAD) :])
            some.append([id, decode(value), _deadline(ttl)])
            size += len(value)
            if size >= PAGE_BYTES or len(some) >= _NOTED:
                yield self.record(code, payloads=some)
                some, size = [], 0
        if some:
            yield self.record(code, payloads=some)

    # Expiry

    def expiries(
        self, code: str, files: ExitStack
    ) -> Iterator[tuple[bytes, int | None, int | None]]:
        """Yield the keys whose expiry the repair changes, with the old and the new expiry.

        An expiry is in milliseconds since 1970; None stands for never.
        """
        snapshot = self._watch(files)
        self._pipeline.execute([(b"UNWATCH",)])

        def ends() -> Iterator[tuple[bytes, int | None]]:
            lists = [MARKS_INDEX, *(MARK + mark for mark in snapshot.marks)]
            payloads = (PAYLOAD + id for id in snapshot.messages)
            names = chain([MESSAGES], lists, payloads)
            return self._ends(self.base + name for name in names)

        longest: int | None = None
        own: int | None = None
        for key, end in ends():
            longest = end if longest is None else max(longest, end or longest)
            own = end if key == self.base + MESSAGES else own
        for key, end in ends():
            if code == "never-expires":
                if end is None and own is not None:
                    yield key, end, own
            elif end is not None and own is None:
                yield key, end, None
            elif end is not None and longest is not None and end < longest - _APART:
                yield key, end, longest

    def _ends(
        self, keys: Iterable[bytes], *, absent: bool = False
    ) -> Iterator[tuple[bytes, int | None]]:
        """Yield the keys that exist, with their expiries.

        An expiry is in milliseconds since 1970; None stands for never.  With ``absent``, also
        yields missing keys, with None.
        """
        source = iter(keys)
        while some := list(islice(source, 10 * _NOTED)):
            ttls = self._pipeline.execute((b"PTTL", key) for key in some)
            for key, ttl in zip(some, ttls, strict=True):
                if absent or ttl != ABSENT:
                    yield key, _deadline(ttl)

    # Undo

    def revert(self, record: Record) -> int:
        """Undo the repair in a record: remove marks from ``marks_index``, or restore expiries.

        An old expiry in the past is not restored.  Returns the number of marks or keys changed.
        """
        if "marks" in record:
            names = map(encode, record["marks"])
            [count] = self._pipeline.execute([(b"SREM", self.base + MARKS_INDEX, *names)])
            return int(count)
        ends = [(name, end) for name, end in record["lives"] if end is None or end > _now()]
        self._pipeline.execute(_expire_at(self.base + encode(name), end) for name, end in ends)
        return len(ends)


def _now() -> int:
    return round(time.time() * 1000)


def _deadline(ttl: int) -> int | None:
    return _now() + ttl if ttl >= 0 else None


def _expire_at(key: bytes, end: int | None) -> Command:
    return (b"PERSIST", key) if end is None else (b"PEXPIREAT", key, b"%d" % end)
