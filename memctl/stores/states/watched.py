"""Documents in Redis. A connection watches the key until the document is replaced."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self

from memctl.engines.redis.pipeline import Command, Pipeline, in_thread
from memctl.engines.redis.server import RedisServer
from memctl.engines.redis.text import decode
from memctl.errors import Failure
from memctl.layouts.redis.store import RedisStore
from memctl.location import visible
from memctl.model import LARGEST_MESSAGE
from memctl.stores.states.document import Document
from memctl.stores.states.rewrite import Draft, HeldDraft
from memctl.stores.states.store import StateStore


class WatchedDocument(Document, ABC):
    """A session document in Redis that a draft may replace.

    The document has a Redis connection of its own, which watches the key for changes.
    """

    def __init__(self, server: RedisServer, key: bytes, name: str) -> None:
        super().__init__(name, None)
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
            data = await in_thread(self._pipeline, partial(self.load, self._pipeline))
        except BaseException:
            await self.close()
            raise
        self.exists, self.data = data is not None, data or b""
        return self

    @abstractmethod
    def load(self, pipeline: Pipeline) -> bytes | None:
        """Watch the key, and return the bytes of the document; None if the key does not exist."""

    async def execute(self, commands: Iterable[Command]) -> list[Any]:
        """Send the commands on the watching connection, and return the replies."""
        assert self._pipeline is not None
        return await in_thread(self._pipeline, partial(self._pipeline.execute, commands))

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


class WatchedDraft(HeldDraft):
    """A draft of a new document that replaces a ``WatchedDocument``."""

    largest = LARGEST_MESSAGE
    too_large = "Redis holds no value of more than 512 MiB"

    def __init__(self, watched: WatchedDocument) -> None:
        super().__init__()
        self.watched = watched

    async def publish(self, ttl: int | None) -> Failure | None:
        """Replace the stored document by this draft.

        ``ttl`` is in milliseconds; None keeps the TTL.  Returns None if the document is replaced,
        or a failure if another program has changed the stored document.

        Raises:
            Unavailable: the connection broke, or the server refuses a command.
        """
        if await self.replace(ttl):
            return None
        return Failure("changed", f"{self.watched.name} was changed meanwhile")

    @abstractmethod
    async def replace(self, ttl: int | None) -> bool:
        """Replace the stored document by this draft, and return True.

        Returns False if another program has changed the stored document; then it stays.  ``ttl`` is
        in milliseconds; None keeps the TTL.
        """


class RedisStates(RedisStore, StateStore):
    """A store whose session documents are in Redis."""

    features = replace(StateStore.features, ttl=True)
    keys_tell = True
    batch_documents = 1
    """Each document takes a connection, to watch the key."""

    async def publish(
        self, drafts: list[tuple[Draft, float | None]], *, keep: bool = False
    ) -> list[Failure | None]:
        published = [(draft, ttl) for draft, ttl in drafts if isinstance(draft, WatchedDraft)]
        return [
            await draft.publish(None if keep and draft.watched.exists else self.server.ttl_of(ttl))
            for draft, ttl in published
        ]


def key_name(key: bytes) -> str:
    """Return the name of a Redis key for errors and warnings."""
    return f"the key {visible(decode(key))}"


def seconds(ttl: int) -> float | None:
    """Convert a reply of PTTL (milliseconds) to seconds; None if the key does not expire."""
    return ttl / 1000 if ttl >= 0 else None
