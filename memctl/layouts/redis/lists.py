"""Messages of other frameworks in Redis, in a list for each session.

Sources: ``chat_message_histories/redis.py`` of langchain-community 0.4.2, which pushes the newest
message to the front, and ``extensions/memory/redis_session.py`` of openai-agents 0.24, which also
has a hash and a counter.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncGenerator, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar

from memctl.dialects.rows import EXTRA, METADATA, TIME, RowDialect
from memctl.dialects.view import NOTES
from memctl.engines.redis.pipeline import WRONG_TYPE, Command, Pipeline, in_thread, scan
from memctl.engines.redis.text import decode, encode, encode_or_none, escape
from memctl.errors import BadData, Failure, Lost
from memctl.json import jsonio
from memctl.layouts.redis.whole import Held, MemoryPlace, WholeMemoryStore, moved
from memctl.location import Location, visible
from memctl.model import Memory, MemoryKey, Page, StoredMessage
from memctl.selection import Selection
from memctl.store import Features, OpenMode
from memctl.storekit.catalog import span
from memctl.storekit.edits import Snapshot
from memctl.storekit.simple import Rejected, not_owned

_TRIES = 20
_TOGETHER = 1000
"""The largest number of values in one push command."""


class ListStore(WholeMemoryStore):
    """A store in Redis with a list of JSON texts for each session; the keys name no user.

    ``?prefix=`` is the beginning of the keys, as in the framework.  ``?owner=`` is the user of all
    sessions.
    """

    features = Features(
        marks=frozenset(),
        ttl=True,
        duplicate_ids=True,
        session_owners=True,
        parallel=True,
        cheap_windows=True,
        renames=frozenset({"session"}),
    )
    rows: ClassVar[RowDialect]
    start: ClassVar[str]
    """The default beginning of the keys."""
    end: ClassVar[bytes] = b""
    """The end of the keys of lists."""
    newest_first: ClassVar[bool] = False
    spaces: ClassVar[bool] = True
    """True if the framework writes JSON with spaces."""

    def __init__(self, location: Location, mode: OpenMode = OpenMode.READ) -> None:
        super().__init__(location, mode)
        self.dialect = self.rows
        self._start = encode(self.server.prefix or self.start)
        self._owner = location.options.get("owner", "")

    # Names

    def place_of(self, key: MemoryKey) -> MemoryPlace:
        session = encode_or_none(key.session)
        if key.user != self._owner:
            raise Rejected("bad-name", not_owned("the keys", self._owner, key.user))
        if session is None or key.part:
            raise Rejected("bad-name", "the keys name a session in UTF-8, and no part")
        return MemoryPlace(self._start + session + self.end, key, asked=True)

    def places(self, pipeline: Pipeline, where: Selection) -> list[MemoryPlace]:
        if where.keys is not None:
            found = self.named(key for key in where.keys if where.has_key(key))
        else:
            pattern = escape(self._start) + b"*" + escape(self.end)
            found = [
                MemoryPlace(key, MemoryKey(self._owner, self._session(key)))
                for key in set(scan(pipeline, pattern, b"list"))
            ]
        return sorted(found, key=lambda place: place.order)

    def _session(self, key: bytes) -> str:
        return decode(key.removeprefix(self._start).removesuffix(self.end))

    def watched(self, place: MemoryPlace) -> Sequence[bytes]:
        return (place.key,)

    # Values

    async def list_keys(self, where: Selection) -> AsyncGenerator[MemoryKey]:
        async with self.server.pipeline() as pipeline:
            places = await in_thread(pipeline, partial(self.places, pipeline, where))
        for place in places:
            if where.has_key(place.memory):
                yield place.memory

    async def window(self, key: MemoryKey, start: int, count: int) -> Page | None:
        if self.skips_damage:
            return await super().window(key, start, count)
        async with self.server.pipeline() as pipeline:
            for place in self.named([key]):
                read = partial(self._window, pipeline, place, start, count)
                try:
                    return await in_thread(pipeline, read)
                except BadData as error:
                    self.left_out.failures[key] = Failure("damaged", error.message)
        return None

    def _window(
        self, pipeline: Pipeline, place: MemoryPlace, start: int, count: int
    ) -> Page | None:
        length: Command = (b"LLEN", place.key)
        for _ in range(_TRIES):
            [total] = pipeline.execute([length], tolerate=WRONG_TYPE)
            if not isinstance(total, int) or not total:
                return None
            places = span(total, start, count)
            first, last = places.start, places.stop - 1
            if self.newest_first:
                first, last = total - 1 - last, total - 1 - first
            if not places:
                first, last = 1, 0
            listed: Command = (b"LRANGE", place.key, b"%d" % first, b"%d" % last)
            now, values, ttl = pipeline.atomic([length, listed, (b"PTTL", place.key)])
            if now == total:
                break
        else:
            raise Lost(f"an agent keeps changing {place.memory}", "try again later")
        values = values[::-1] if self.newest_first else values
        found = zip(places, values, strict=True)
        messages = [self._message(place, at, text) for at, text in found]
        memory = Memory(place.memory, ttl=ttl / 1000 if ttl >= 0 else None)
        return Page(memory, messages, places.start, last=places.stop == total)

    def fetch(self, pipeline: Pipeline, place: MemoryPlace) -> Held | None:
        values, ttl = pipeline.execute(
            [(b"LRANGE", place.key, b"0", b"-1"), (b"PTTL", place.key)], tolerate=WRONG_TYPE
        )
        if not isinstance(values, list) or not values:
            return None
        if self.newest_first:
            values.reverse()
        messages = [self._message(place, at, text) for at, text in enumerate(values)]
        digest = hashlib.sha256(b"\0".join(values)).hexdigest()
        expires = ttl / 1000 if ttl >= 0 else None
        return Held(Memory(place.memory, ttl=expires, version=digest), messages)

    def _message(self, place: MemoryPlace, at: int, text: bytes) -> StoredMessage:
        try:
            content = jsonio.loads(text)
        except ValueError as error:
            raise BadData(f"{_name(place)} holds no JSON at index {at}: {error}") from error
        if not isinstance(content, dict):
            raise BadData(f"{_name(place)} holds no JSON object at index {at}")
        if why := self.rows.foreign(content):
            raise BadData(f"what {_name(place)} holds at index {at} {why}")
        value = self.rows.unpack(content)
        message = jsonio.compact(value, odd=jsonio.may_have_nan(text))
        return StoredMessage(self.rows.message_id(value), message)

    def _value(self, entry: StoredMessage) -> bytes:
        """Return a message as the JSON text that the framework stores.

        Raises:
            Rejected: the list cannot hold a part of the message.
        """
        value = jsonio.loads(entry.message)
        kept = {NOTES} if self.rows.note_key else set()
        fields = [EXTRA] if self.rows.notes_time else [TIME, EXTRA]
        lost = [name for name in fields if value.get(name)]
        lost += [name for name in value.get(METADATA) or () if name not in kept]
        if entry.marks or lost:
            what = "marks" if entry.marks else repr(lost[0])
            text = f"the list has no place for {what}, which the message {entry.id!r} has"
            raise Rejected("refused", text)
        packed: Any = self.rows.pack(value)
        separators = None if self.spaces else (",", ":")
        return json.dumps(packed, separators=separators).encode()

    def replacing(
        self,
        pipeline: Pipeline,  # noqa: ARG002 - ``old`` suffices
        place: MemoryPlace,
        old: Held | None,
        new: Snapshot,
        before: str = "",  # noqa: ARG002 - nothing is lost
    ) -> list[Command]:
        if not new.messages:
            return self._unlinking(place)
        there = len(old.messages) if old else 0
        goes_on = old is not None and new.messages[:there] == old.messages
        values = [self._value(entry) for entry in new.messages[there if goes_on else 0 :]]
        commands: list[Command] = [] if goes_on or not old else [(b"UNLINK", place.key)]
        push = b"LPUSH" if self.newest_first else b"RPUSH"
        commands += [
            (push, place.key, *values[start : start + _TOGETHER])
            for start in range(0, len(values), _TOGETHER)
        ]
        commands += self._naming(place)
        ttl = self.server.ttl_of(new.memory.ttl)
        if ttl is None and old is not None and not goes_on:
            ttl = self.server.ttl_of(old.memory.ttl)
        if ttl is not None:
            commands += [(b"PEXPIRE", key, b"%d" % ttl) for key in self._keys(place)]
        return commands

    def restoring(self, key: MemoryKey) -> list[Command]:
        push = b"LPUSH" if self.newest_first else b"RPUSH"
        return [
            command
            for place in self.named([key])
            for command in ((push, place.key, b""), *self._naming(place))
        ]

    def _keys(self, place: MemoryPlace) -> list[bytes]:
        return [place.key]

    def _naming(self, place: MemoryPlace) -> list[Command]:  # noqa: ARG002 - for subclasses
        """Return the commands that write the framework's record of a session.

        A subclass overrides this method if its framework has such records.
        """
        return []

    def _unlinking(self, place: MemoryPlace) -> list[Command]:
        return [(b"UNLINK", *self._keys(place))]

    def moving(
        self,
        pipeline: Pipeline,
        place: MemoryPlace,
        target: MemoryPlace,
        held: Held,  # noqa: ARG002 - the keys suffice
    ) -> list[Command]:
        pairs = zip(self._keys(place), self._keys(target), strict=True)
        return [one for key, new in pairs for one in moved(pipeline, [key], key, new)]

    def removing(
        self,
        pipeline: Pipeline,  # noqa: ARG002
        place: MemoryPlace,
        old: Held,  # noqa: ARG002
        before: str,  # noqa: ARG002
    ) -> list[Command]:
        return self._unlinking(place)

    def erasing(
        self,
        pipeline: Pipeline,  # noqa: ARG002
        place: MemoryPlace,
        owner: MemoryKey,  # noqa: ARG002
        old: Held | None,  # noqa: ARG002
    ) -> list[Command]:
        return self._unlinking(place)

    def users(self, pipeline: Pipeline) -> Iterator[str]:  # noqa: ARG002 - the keys name no users
        return iter(())

    def forgetting(self, pipeline: Pipeline, user: str) -> list[Command]:  # noqa: ARG002
        return []


def _name(place: MemoryPlace) -> str:
    return f"the list {visible(decode(place.key))}"
