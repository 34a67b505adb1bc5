"""The session states that RedisSession keeps in Redis (``session/_redis_session.py``)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, Self

from msgspec.structs import replace
from redis.exceptions import ResponseError

from memctl.engines.redis.pipeline import WRONG_TYPE, Command, Pipeline, in_thread, scan
from memctl.engines.redis.server import RedisServer
from memctl.engines.redis.text import decode, encode
from memctl.errors import Failure
from memctl.layouts.redis.keys import STATE, Keys
from memctl.layouts.redis.store import RedisStore
from memctl.layouts.redis.whole import moved
from memctl.location import Location, visible
from memctl.model import LARGEST_MESSAGE, PAGE_BYTES, MemoryKey
from memctl.selection import Selection
from memctl.store import OpenMode
from memctl.storekit.simple import CHANGED, Rejected
from memctl.stores.states.document import Document
from memctl.stores.states.place import OwnedDocument
from memctl.stores.states.rewrite import Draft, HeldDraft
from memctl.stores.states.store import StateStore

_TOGETHER = 128
"""The number of keys of which one request asks the sizes."""


class WatchedKey(Document):
    """A session document that is the value of a Redis key.

    The document has a Redis connection of its own, which watches the key for changes.
    """

    def __init__(self, server: RedisServer, key: bytes) -> None:
        super().__init__(key_name(key), None)
        self.key = key
        self._context = server.pipeline()
        self._pipeline: Pipeline | None = None
        self._is_watching = True

    async def open(self) -> Self:
        """Begin to watch the key, and read the document; return ``self``.

        Raises:
            Unavailable: the connection broke, or the server refuses a command.
        """
        self._pipeline = await self._context.__aenter__()
        try:
            data = await in_thread(self._pipeline, partial(self._load, self._pipeline))
        except BaseException:
            await self.close()
            raise
        self.exists, self.data = data is not None, data or b""
        return self

    def _load(self, pipeline: Pipeline) -> bytes | None:
        data: bytes | None
        _, data = pipeline.execute([(b"WATCH", self.key), (b"GET", self.key)])
        return data

    async def replace(self, commands: Sequence[Command]) -> bool:
        """Run the commands in a transaction, unless another program has changed the watched key.

        Returns True if the commands ran, False if the key has changed.

        Raises:
            Unavailable: the connection broke, or the server refuses a command.
        """
        assert self._pipeline is not None
        done = await in_thread(self._pipeline, partial(self._pipeline.commit, commands))
        self._is_watching = False
        return done

    async def close(self) -> None:
        await super().close()
        if self._pipeline is None:
            return
        if self._is_watching:
            self._pipeline.abort()  # the next user of the connection must not watch the key
        self._pipeline = None
        await self._context.__aexit__(None, None, None)


class KeyDraft(HeldDraft):
    """A draft of a new value of a Redis key."""

    largest = LARGEST_MESSAGE
    too_large = "Redis holds no value of more than 512 MiB"

    def __init__(self, watched: WatchedKey) -> None:
        super().__init__()
        self.watched = watched

    async def publish(self, ttl: int | None) -> Failure | None:
        """Replace the stored document by this draft.

        ``ttl`` is in milliseconds; None keeps the TTL.  Returns None if the document is replaced,
        or a failure if another program has changed the stored document.

        Raises:
            Unavailable: the connection broke, or the server refuses a command.
        """
        life = (b"KEEPTTL",) if ttl is None else (b"PX", b"%d" % ttl)
        if await self.watched.replace([(b"SET", self.watched.key, self.data(), *life)]):
            return None
        return Failure("changed", f"{self.watched.name} was changed meanwhile")


class _StateKey(NamedTuple):
    """The Redis key of a session state, with the user and session in it."""

    key: bytes
    owner: MemoryKey


class RedisSessionStore(RedisStore, StateStore):
    """The sessions of RedisSession, strings ``{prefix}user_id:{user}:session:{session}:state``.

    If a name contains ``:session:``, the key can be read in several ways.  Then it is read as the
    user and session that the selection names, or for whom this store has written the key or is
    about to write it.  If none of these applies, the user ends at the first ``:session:``.

    A written state expires after the seconds of ``?ttl=``, or else of ``Memory.ttl``.  If neither
    is given, an existing state keeps its TTL.  Reading changes no TTL.
    """

    kind = "redis-session"
    lock_name = "session"
    features = replace(
        StateStore.features, ttl=True, renames=frozenset({"user", "session", "merge"})
    )
    keys_tell = True
    batch_documents = 1
    """Each document takes a connection, to watch the key."""

    def __init__(self, location: Location, mode: OpenMode = OpenMode.READ) -> None:
        super().__init__(location, mode)
        self._keys = Keys(self.server.prefix)
        self._written: dict[bytes, MemoryKey] = {}
        """The user and session of keys that can be read in several ways, if known."""

    def resolve_names(self, keys: Iterable[MemoryKey]) -> None:
        """Read ambiguous Redis keys as the keys of these users and sessions.

        A Redis key is ambiguous if a name in it contains ``:session:``.
        """
        for key in keys:
            owner = key._replace(part="")
            base = self._keys.base_or_none(owner)
            if base is not None and len(list(self._keys.parse_base(base))) > 1:
                self._written.setdefault(base + STATE, owner)

    # Reading

    async def documents(self, where: Selection) -> AsyncGenerator[OwnedDocument, None]:
        async with self.server.pipeline() as pipeline:
            names = await in_thread(pipeline, partial(self._names, pipeline, where))
            for start in range(0, len(names), _TOGETHER):
                states = _states(pipeline, names[start : start + _TOGETHER])
                while (state := await in_thread(pipeline, partial(next, states, None))) is not None:
                    for name, document in state:
                        yield OwnedDocument(document, name.owner[:2])
                        await document.close()

    def _names(self, pipeline: Pipeline, where: Selection) -> list[_StateKey]:
        if where.keys is not None:
            asked = {key._replace(part="") for key in where.keys}
            bases = ((self._keys.base_or_none(key), key) for key in asked)
            return sorted(_StateKey(base + STATE, key) for base, key in bases if base is not None)
        pattern = self._keys.pattern(where, STATE)
        owners = ((key, self._owner(key, where)) for key in set(scan(pipeline, pattern, b"string")))
        return sorted(_StateKey(key, owner) for key, owner in owners if owner is not None)

    def _owner(self, key: bytes, where: Selection) -> MemoryKey | None:
        written = self._written.get(key)
        if written is not None:
            return written if where.has_key(written) else None
        readings = self._keys.parse_base(key.removesuffix(STATE))
        return next((owner for owner in readings if where.has_key(owner)), None)

    async def names(self, where: Selection) -> AsyncGenerator[MemoryKey]:
        async with self.server.pipeline() as pipeline:
            for name in await in_thread(pipeline, partial(self._names, pipeline, where)):
                yield name.owner

    # Writing

    def name_of(self, key: MemoryKey) -> str | Failure:
        owner = key._replace(part="")
        base = self._keys.base_or_none(owner)
        if base is None:
            return Failure("bad-name", f"{owner} has half of a surrogate pair in its name")
        readings = list(self._keys.parse_base(base))
        if len(readings) > 1 and self._written.setdefault(base + STATE, owner) != owner:
            return Failure("bad-name", f"the key of {owner} is that of another session")
        return decode(base + STATE)

    async def document(self, name: str) -> Document | None:
        return await WatchedKey(self.server, encode(name)).open()

    async def draft(self, name: str, old: Document | None) -> Draft:
        assert isinstance(old, WatchedKey), name
        return KeyDraft(old)

    async def publish(
        self, drafts: list[tuple[Draft, float | None]], *, keep: bool = False
    ) -> list[Failure | None]:
        published = [(draft, ttl) for draft, ttl in drafts if isinstance(draft, KeyDraft)]
        return [
            await draft.publish(None if keep and draft.watched.exists else self.server.ttl_of(ttl))
            for draft, ttl in published
        ]

    async def move(self, name: str, new: str) -> Failure | None:
        def work() -> Failure | None:
            key, target = encode(name), encode(new)
            try:
                commands = moved(pipeline, [key], key, target)
            except Rejected as rejected:
                pipeline.execute([(b"UNWATCH",)])
                return rejected.failure
            return None if pipeline.commit(commands) else CHANGED

        async with self.server.pipeline() as pipeline:
            return await in_thread(pipeline, work)

    async def remove(self, name: str, document: Document) -> None:
        assert isinstance(document, WatchedKey), name
        await document.replace([(b"UNLINK", document.key)])


def _states(
    pipeline: Pipeline, names: list[_StateKey]
) -> Iterator[list[tuple[_StateKey, Document]]]:
    """Yield the existing states in lists of about the size of a page."""
    looks = ((command, name.key) for name in names for command in (b"STRLEN", b"PTTL"))
    replies = iter(pipeline.execute(looks, tolerate=WRONG_TYPE))
    some: list[tuple[_StateKey, int]] = []
    held = 0
    for name, size, ttl in zip(names, replies, replies, strict=True):
        if isinstance(size, ResponseError) or not size:
            continue
        if held and held + size > PAGE_BYTES:
            yield _documents(pipeline, some)
            some, held = [], 0
        some.append((name, ttl))
        held += size
    if some:
        yield _documents(pipeline, some)


def _documents(
    pipeline: Pipeline, some: list[tuple[_StateKey, int]]
) -> list[tuple[_StateKey, Document]]:
    values = pipeline.execute((b"GET", name.key) for name, _ in some)
    return [
        (name, Document(key_name(name.key), data, seconds(ttl)))
        for (name, ttl), data in zip(some, values, strict=True)
        if data is not None
    ]


def key_name(key: bytes) -> str:
    """Return the name of a Redis key for errors and warnings."""
    return f"the key {visible(decode(key))}"


def seconds(ttl: int) -> float | None:
    """Convert a reply of PTTL (milliseconds) to seconds; None if the key does not expire."""
    return ttl / 1000 if ttl >= 0 else None
