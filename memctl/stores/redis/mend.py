"""Mending what ``faults`` finds in the keys of Redis memories, and taking it back.

The lists of a memory are watched while what is to be done is noted, and changed in MULTI/EXEC:
RedisMemory adds and removes no payload without changing its list, so whatever an agent does
meanwhile makes Redis refuse, and the memory is looked at again.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import ExitStack, aclosing
from functools import partial
from itertools import islice
from typing import TypeVar

from memctl.errors import UsageError
from memctl.model import MemoryKey
from memctl.selection import Selection
from memctl.store import Note, Record
from memctl.stores.redis.faults import Examination
from memctl.stores.redis.keys import (
    MARKS_INDEX,
    Keys,
    decode,
    encode,
)
from memctl.stores.redis.patient import NOTED, TRIES, Patient, busy, live
from memctl.stores.redis.scan import Catalogue
from memctl.stores.redis.wire import Wire, in_thread

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

_STRAYS = 20_000
"""How many payloads are deleted in one transaction."""


class Mender:
    """Mends the memories of one database."""

    def __init__(self, wire: Wire, keys: Keys, catalogue: Catalogue) -> None:
        self._wire = wire
        self._keys = keys
        self._catalogue = catalogue

    async def mend(self, code: str, where: Selection, note: Note) -> int:
        """See ``Store.mend``."""
        if code not in REPAIRS:
            raise UsageError(f"{code} cannot be mended in Redis", f"known: {sorted(REPAIRS)}")
        examination = await self._run(partial(self._examination, where))
        found = await self._run(partial(_affected, examination, code))
        if code == "payload-without-id":
            return await self._strays(examination, note) if found else 0
        return sum([await self._mend(code, key, examination, note) for key in found])

    def _examination(self, where: Selection) -> Examination:
        memories = self._catalogue.memories(self._wire, where)
        marks = self._catalogue.marks(self._wire, where)
        return Examination(self._wire, self._keys, where, memories, marks)

    async def _mend(self, code: str, key: MemoryKey, examination: Examination, note: Note) -> int:
        marks = examination.marks_of(self._keys.base(key))
        memory = Patient(self._wire, self._keys, key, marks)
        if code in ("expires-early", "never-expires"):
            return await self._lives(memory, code, note)
        for _ in range(TRIES):
            with ExitStack() as files:
                work = await self._run(partial(memory.plan, code, files))
                for record in work.records():
                    await note(record)
                if await self._run(partial(self._wire.commit, work.commands())):
                    return work.count
        raise busy(key)

    async def _strays(self, examination: Examination, note: Note) -> int:
        """Deletes the payloads that no list names, many in a transaction."""
        count = 0
        suspects = examination.suspects()
        while some := await self._run(lambda: list(islice(suspects, _STRAYS))):
            by_memory: dict[bytes, tuple[MemoryKey, list[bytes]]] = {}
            for base, key, payload in some:
                by_memory.setdefault(base, (key, []))[1].append(payload)
            for key, payloads in by_memory.values():
                memory = Patient(self._wire, self._keys, key, ())
                count += await self._delete(memory, examination, payloads, note)
        return count

    async def _delete(
        self, memory: Patient, examination: Examination, some: list[bytes], note: Note
    ) -> int:
        for _ in range(TRIES):
            keys = await self._run(partial(memory.strays, examination, some))
            records = memory.payloads(keys)
            while record := await self._run(partial(next, records, None)):
                await note(record)
            gone = ((b"UNLINK", key) for key in keys)
            if await self._run(partial(self._wire.commit, gone)):
                return len(keys)
        raise busy(memory.key)

    async def _lives(self, memory: Patient, code: str, note: Note) -> int:
        """Gives keys another life.  An agent that does so meanwhile gives them all the same."""
        count = 0
        with ExitStack() as files:
            changes = memory.lives(code, files)
            while some := await self._run(lambda: list(islice(changes, NOTED))):
                lives = [[decode(key[len(memory.base) :]), old] for key, old, _ in some]
                await note(memory.record(code, lives=lives))
                commands = [live(key, new) for key, _, new in some]
                await self._run(partial(self._wire.ask, commands))
                count += len(some)
        return count

    async def unmend(self, records: AsyncGenerator[Record]) -> int:
        """See ``Store.unmend``."""
        undone = 0
        async with aclosing(records):
            async for record in records:
                undone += await self._run(partial(self._unmend, record))
        return undone

    def _unmend(self, record: Record) -> int:
        key = MemoryKey(record["user"], record["session"])
        memory = Patient(self._wire, self._keys, key, ())
        if "ids" in record:
            return memory.put_back(record)
        if "payloads" in record:
            return memory.revive(record["payloads"])
        if "lives" in record:
            return memory.relive(record["lives"])
        marks = [encode(mark) for mark in record["marks"]]
        return int(self._wire.ask([(b"SREM", memory.base + MARKS_INDEX, *marks)])[0])

    async def _run(self, call: Callable[[], T]) -> T:
        return await in_thread(self._wire, call)


def _affected(examination: Examination, code: str) -> list[MemoryKey]:
    """The memories that have the fault."""
    found = [
        fault.key
        for some in examination.faults()
        for fault in some
        if fault.code == code and fault.key is not None
    ]
    return examination.gaps if code == "id-without-payload" else found
