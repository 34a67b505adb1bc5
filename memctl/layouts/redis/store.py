"""The part that all stores in Redis have: the server, its layout and its locks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import ClassVar

from memctl.engines.redis.pipeline import Command, Pipeline, in_thread
from memctl.engines.redis.server import RedisServer
from memctl.engines.redis.text import encode
from memctl.errors import Unavailable
from memctl.layouts.redis.keyspace import keys_of, other_keys, require_layout
from memctl.location import Location
from memctl.model import MemoryKey
from memctl.selection import EVERYTHING, Selection
from memctl.store import OpenMode, Store
from memctl.storekit.texts import Rewriter, TextResult


class RedisStore(Store):
    """A store in Redis.  ``lock_name`` names the lock that a run takes to change the store."""

    lock_name: ClassVar[str]
    text_types: ClassVar[frozenset[bytes]] = frozenset({b"string", b"hash", b"list"})
    """The types of the keys that hold texts; keys of other types hold names."""

    def __init__(self, location: Location, mode: OpenMode = OpenMode.READ) -> None:
        super().__init__(location, mode)
        self.server = RedisServer(location)

    async def open(self, mode: OpenMode) -> None:
        self.mode = mode
        await self.server.open()
        await require_layout(self.server, self.location, mode)

    async def close(self) -> None:
        await self.server.close()

    async def other_contents(self) -> str:
        return await other_keys(self.server)

    async def lock(self, owner: str) -> None:
        await self.server.lock(self.lock_name, owner, self.warnings, self.shard)

    def restoring(self, key: MemoryKey) -> list[Command]:  # noqa: ARG002 - most replace one value
        """Return examples of the commands that restore deleted messages of a memory.

        They are never run: they show whether the login may run such commands.  Commands that the
        deletion needs, too, may be left out.
        """
        return []

    async def missing_right(self, key: MemoryKey | None) -> str:
        commands = self.restoring(key) if key is not None else []
        if not commands:
            return ""
        found: Command | None = None
        with suppress(Unavailable):  # such as a server without memory, from which to delete
            async with self.server.pipeline() as pipeline:
                found = await in_thread(pipeline, partial(pipeline.forbidden, commands))
        return found[0].decode() if found else ""

    # Rewriting

    def text_keys(self, pipeline: Pipeline) -> Iterator[bytes]:
        """Yield the keys of memories; a key may come more than once."""
        layout = self.kind.removeprefix("redis").removeprefix("-") or "memory"
        return keys_of(pipeline, encode(self.server.prefix), layout)

    def with_text(self, key: bytes) -> Iterable[Command]:  # noqa: ARG002 - most need nothing
        """Return the commands that a change of the texts of a key needs besides."""
        return ()

    async def rewrite_texts(
        self,
        rewriter: Rewriter,
        where: Selection = EVERYTHING,  # noqa: ARG002 - it selects no texts
        *,
        writes: bool,
    ) -> AsyncGenerator[TextResult]:
        from memctl.layouts.redis.texts import KeyTexts  # only needed to rewrite texts

        async with self.server.pipeline() as scanning, self.server.pipeline() as changing:
            texts = KeyTexts(changing, rewriter, self.text_types, self.with_text)
            results = texts.rewrite(self.text_keys(scanning), writes=writes)
            while (result := await in_thread(changing, partial(next, results, None))) is not None:
                yield result

    async def identity(self) -> str:
        return f"{self.kind}:{self.server.identity()}"
