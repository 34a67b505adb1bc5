"""One memory of Redis that is mended: what is to be done, noted and taken back.  In a thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain, islice
from typing import Any

from memctl.errors import Lost
from memctl.model import PAGE_BYTES, MemoryKey
from memctl.store import Record
from memctl.stores.catalog import IdSet
from memctl.stores.redis.faults import ABSENT, APART, Examination
from memctl.stores.redis.keys import MARK, MARKS_INDEX, MESSAGES, PAYLOAD, Keys, decode, encode
from memctl.stores.redis.link import Command
from memctl.stores.redis.lists import Chunks, Listing, Place, merged, rewritten, thinned
from memctl.stores.redis.look import ranges
from memctl.stores.redis.spellings import is_indexed, others
from memctl.stores.redis.wire import WRONG_TYPE, Wire

TRIES = 20
"""How often a memory is looked at that an agent keeps changing."""
NOTED = 1000
"""How many keys one record tells of."""
_LISTED = 20_000
"""How many ids of a list one record tells of: to put them back, all of the list is read."""


class Work:
    """What mends the lists of a memory: to be noted, then done."""

    def __init__(self, memory: Patient, code: str, lives: dict[bytes, int | None]) -> None:
        """``lives`` tells when each list expires, by its key."""
        self.count = 0
        self._memory = memory
        self._code = code
        self._lives = lives
        self._thinned: list[tuple[Listing, Callable[[bytes], bool]]] = []
        self._marks: list[bytes] = []

    def thin(self, listing: Listing, drops: Callable[[bytes], bool]) -> None:
        """Takes some ids off a list."""
        self._thinned.append((listing, drops))

    def index(self, marks: list[bytes]) -> None:
        """Names marks in the index."""
        self._marks = marks
        self.count += len(marks)

    def records(self) -> Iterator[Record]:
        """What is to be noted, a part at a time."""
        for listing, drops in self._thinned:
            name = decode(listing.key[len(self._memory.base) :])
            dropped = _dropped(listing, drops)
            while some := list(islice(dropped, _LISTED)):
                expires = self._lives[listing.key]
                yield self._memory.record(self._code, list=name, ids=some, expires=expires)
        if self._marks:
            yield self._memory.record(self._code, marks=[decode(mark) for mark in self._marks])

    def commands(self) -> Iterator[Command]:
        """What does it."""
        for listing, drops in self._thinned:
            yield from thinned(listing, drops)
        if self._marks:
            index = self._memory.base + MARKS_INDEX
            yield (b"SADD", index, *self._marks)
            expires = self._lives[self._memory.base + MESSAGES]
            if expires is not None:
                yield live(index, expires)


class Patient:
    """The keys of one memory."""

    def __init__(self, wire: Wire, keys: Keys, key: MemoryKey, marks: Sequence[bytes]) -> None:
        self.key = key
        self.base = keys.base(key)
        self._wire = wire
        self._marks = marks

    def record(self, code: str, **more: Any) -> Record:
        """A record about it."""
        return {"code": code, "user": self.key.user, "session": self.key.session, **more}

    def plan(self, code: str, files: ExitStack) -> Work:
        """Watches the lists and says what is to be done; ``files`` lets go of what they hold."""
        messages, marks, index = self._watched(files)
        keys = [listing.key for listing in (messages, *marks.values())]
        work = Work(self, code, dict(self._ends(keys, absent=True)))
        match code:
            case "id-without-payload":
                gone = self._gone(messages)
                work.count = sum(id in gone for ids in messages.chunks() for id in ids)
                for listing in (messages, *marks.values()):
                    work.thin(listing, gone.__contains__)
            case "orphan-mark":
                seen: dict[bytes, IdSet] = {}
                for mark, listing in marks.items():
                    counted = others(mark, seen)
                    seen[mark] = listing.ids
                    lone = [
                        any(id in ids for ids in counted)
                        for ids in listing.chunks()
                        for id in ids
                        if id not in messages.ids
                    ]
                    work.count += lone.count(False)
                    if lone:
                        work.thin(listing, lambda id: id not in messages.ids)
            case _:
                held = [mark for mark, its in marks.items() if its.count]
                work.index([mark for mark in held if not is_indexed(mark, index)])
        return work

    def _watched(self, files: ExitStack) -> tuple[Listing, dict[bytes, Listing], set[bytes]]:
        """The lists of messages and marks and what the index names, from now on watched."""
        keys = [self.base + MESSAGES, *(self.base + MARK + mark for mark in self._marks)]
        index = self.base + MARKS_INDEX
        _, named, *lengths = self._wire.ask(
            [
                (b"WATCH", index, *keys),
                (b"SMEMBERS", index),
                *((b"LLEN", key) for key in keys),
            ],
            tolerate=WRONG_TYPE,
        )
        commands = [ranges(key, size) for key, size in zip(keys, lengths, strict=True)]
        replies = self._wire.stream(chain.from_iterable(commands), tolerate=WRONG_TYPE)
        listings = []
        for key, some in zip(keys, commands, strict=True):
            listing = Listing(key, _lists(islice(replies, len(some))))
            files.callback(listing.close)
            listings.append(listing)
        marks = dict(zip(self._marks, listings[1:], strict=True))
        return listings[0], marks, set(named) if isinstance(named, (list, set)) else set()

    def _gone(self, messages: Listing) -> IdSet:
        """The ids whose payload does not exist."""
        gone = IdSet()
        for ids in messages.chunks():
            there = self._wire.ask((b"EXISTS", self.base + PAYLOAD + id) for id in ids)
            gone.add(id for id, exists in zip(ids, there, strict=True) if not exists)
        return gone

    # Payloads

    def strays(self, examination: Examination, some: list[bytes]) -> list[bytes]:
        """Those of the payloads that the list, from now on watched, does not name."""
        self._wire.ask([(b"WATCH", self.base + MESSAGES)])
        return list(examination.unlisted(self.base, some))

    def payloads(self, keys: Iterable[bytes]) -> Iterator[Record]:
        """Records of payloads, about a page each."""
        some: list[list[Any]] = []
        size = 0
        for key in keys:
            value, ttl = self._wire.ask([(b"GET", key), (b"PTTL", key)])
            if value is None:
                continue
            id = decode(key[len(self.base) + len(PAYLOAD) :])
            some.append([id, decode(value), _deadline(ttl)])
            size += len(value)
            if size >= PAGE_BYTES or len(some) >= NOTED:
                yield self.record("payload-without-id", payloads=some)
                some, size = [], 0
        if some:
            yield self.record("payload-without-id", payloads=some)

    def revive(self, payloads: list[list[Any]]) -> int:
        """Puts payloads back that are not there and have not expired."""
        commands: list[Command] = []
        for id, value, expires in payloads:
            key = self.base + PAYLOAD + encode(id)
            life: tuple[bytes, ...] = ()
            if expires is not None:
                left = expires - _now()
                if left <= 0:
                    continue
                life = (b"PX", b"%d" % left)
            commands.append((b"SET", key, encode(value), *life, b"NX"))
        return sum(done is not None for done in self._wire.ask(commands))

    # Lives

    def lives(self, code: str, files: ExitStack) -> Iterator[tuple[bytes, int | None, int | None]]:
        """The keys that are to live otherwise, and until when they do and are to.

        Times are milliseconds since 1970, None is for ever.
        """
        messages, _, _ = self._watched(files)
        self._wire.ask([(b"UNWATCH",)])

        def ends() -> Iterator[tuple[bytes, int | None]]:
            beside = [MARKS_INDEX, *(MARK + mark for mark in self._marks)]
            payloads = (PAYLOAD + id for ids in messages.chunks() for id in ids)
            names = chain([MESSAGES], beside, payloads)
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
            elif end is not None and longest is not None and end < longest - APART:
                yield key, end, longest

    def _ends(
        self, keys: Iterable[bytes], *, absent: bool = False
    ) -> Iterator[tuple[bytes, int | None]]:
        """When each key expires, of those that exist, or of all."""
        source = iter(keys)
        while some := list(islice(source, 10 * NOTED)):
            ttls = self._wire.ask((b"PTTL", key) for key in some)
            for key, ttl in zip(some, ttls, strict=True):
                if absent or ttl != ABSENT:
                    yield key, _deadline(ttl)

    def relive(self, lives: list[list[Any]]) -> int:
        """Gives keys the end that they had, if that is still to come."""
        ends = [(self.base + encode(name), end) for name, end in lives]
        coming = [(key, end) for key, end in ends if end is None or end > _now()]
        self._wire.ask(live(key, end) for key, end in coming)
        return len(coming)

    # Lists

    def put_back(self, record: Record) -> int:
        """Puts ids back on a list, where they are not by now."""
        key = self.base + encode(record["list"])
        for _ in range(TRIES):
            with ExitStack() as files:
                _, length = self._wire.ask([(b"WATCH", key), (b"LLEN", key)], tolerate=WRONG_TYPE)
                chunks = _lists(self._wire.stream(ranges(key, length), tolerate=WRONG_TYPE))
                listing = Listing(key, chunks)
                files.callback(listing.close)
                places = [
                    (None if after is None else encode(after), encode(id))
                    for id, after in record["ids"]
                    if encode(id) not in listing.ids
                ]
                expires = record["expires"]
                commands: list[Command] = []
                if not listing.count and expires is not None and expires > _now():
                    commands.append(live(key, expires))
                new = partial(_merged, listing, places)
                if self._wire.commit(chain(rewritten(listing, new), commands)):
                    return len(places)
        raise busy(self.key)


def _dropped(listing: Listing, drops: Callable[[bytes], bool]) -> Iterator[list[str | None]]:
    """The ids that are taken off a list, each with the one that stays before it."""
    kept: str | None = None
    for ids in listing.chunks():
        for id in ids:
            if drops(id):
                yield [decode(id), kept]
            else:
                kept = decode(id)


def _merged(listing: Listing, places: list[Place]) -> Chunks:
    return merged(listing.chunks(), iter(places))


def _lists(replies: Iterable[Any]) -> Iterator[list[bytes]]:
    for reply in replies:
        yield reply if isinstance(reply, list) else []


def _now() -> int:
    return round(time.time() * 1000)


def _deadline(ttl: int) -> int | None:
    """When it is over, in milliseconds since 1970, as PTTL tells it; None for never."""
    return _now() + ttl if ttl >= 0 else None


def live(key: bytes, end: int | None) -> Command:
    return (b"PERSIST", key) if end is None else (b"PEXPIREAT", key, b"%d" % end)


def busy(key: MemoryKey) -> Lost:
    return Lost(f"an agent keeps changing {key}", "run again: what was mended so far is whole")
