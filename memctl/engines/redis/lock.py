"""The lock of a store in Redis: a key that expires unless the locking run extends it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from typing import Protocol, TypeVar

from memctl.engines.redis.pipeline import Command, Pipeline, in_thread
from memctl.engines.redis.text import encode
from memctl.errors import Busy, MemctlError
from memctl.shard import Shard
from memctl.storekit.locks import ServerLock, owner_text

T = TypeVar("T")

LEASE_SECONDS = 30.0
"""Seconds after which the lock of a killed run expires."""


class LockedServer(Protocol):
    """The attributes and the method of a Redis server that the lock of a run uses."""

    label: str
    prefix: str

    def pipeline(self) -> AbstractAsyncContextManager[Pipeline]:
        """Provide a connection for one operation."""


class RedisLock(ServerLock):
    """The lock of a run: the key ``{prefix}memctl:lock:{kind}``, which expires unless extended.

    The run extends the expiry of the key.  The value is a random word, a space, and the owner's
    text.  The key's name matches no pattern of AgentScope or memctl.  The lock needs no ACL
    permissions beyond those for writing.

    The lock of a shard is the key ``{prefix}memctl:lock:{kind}:K/N``.  The runs that hold such
    locks share the key ``{prefix}memctl:lock:{kind}:shards``, which excludes a run without a shard.
    It has the values of their keys, a line each, and expires unless one of the runs extends it.
    """

    def __init__(
        self, server: LockedServer, kind: str, warnings: list[str], shard: Shard | None
    ) -> None:
        """Create the lock, not yet acquired.

        ``kind`` is the kind of the store in the key's name; stores of different kinds may share a
        prefix.  Warnings are appended to ``warnings``.  ``shard`` is the shard to protect; None
        protects the whole store.
        """
        super().__init__(server.label, warnings, shard)
        self.period = LEASE_SECONDS / 3
        self.hint = (
            "wait for it to end, or stop it; "
            f"the lock of a run that was killed ends by itself within {LEASE_SECONDS:.0f} seconds"
        )
        self._server = server
        self._whole = encode(f"{server.prefix}memctl:lock:{kind}")
        self._shards = self._whole + b":shards"
        self.key = self._whole if shard is None else self._whole + encode(f":{shard}")
        self._lease = b"%d" % round(LEASE_SECONDS * 1000)
        self._word = secrets.token_hex(16)
        self._is_lost = False

    @property
    def _value(self) -> bytes:
        return f"{self._word} {self.owner}".encode(errors="replace")

    async def attempt(self) -> str | None:
        return await self._run(self._attempt)

    async def stay(self) -> bool:
        await asyncio.sleep(self.period)
        kept = await self._run(partial(self._if_ours, self._extended))
        self._is_lost = self._is_lost or not kept
        return kept

    def check(self, value: bytes | None) -> None:
        """Check the value of the key before a write.

        If the run lost the lock and took it again, the check fails, because another run may have
        held the lock meanwhile.

        Raises:
            Busy: the run has lost the lock.
        """
        if not self._is_lost and value == self._value:
            return
        self._is_lost = True
        raise Busy(
            f"the lock of {self.label} was lost, and another memctl run may have written there",
            "run memctl again: it changes only what is left",
        )

    async def let_go(self) -> None:
        with suppress(MemctlError):  # the lock expires by itself
            await self._run(partial(self._if_ours, self._removed))

    async def _run(self, call: Callable[[Pipeline], T]) -> T:
        async with self._server.pipeline() as pipeline:
            return await in_thread(pipeline, partial(call, pipeline))

    def _attempt(self, pipeline: Pipeline) -> str | None:
        while True:
            held, whole, shards = self._watched(pipeline)
            other = _owner(held)
            if other in (None, self.owner):
                other = _owner(shards if self.shard is None else whole)
            if other is not None:
                pipeline.execute([(b"UNWATCH",)])
                return other
            own = (b"SET", self.key, self._value, b"PX", self._lease)
            if _has_run(pipeline, [own, *self._shared(shards, self._value)]):
                return None

    def _if_ours(
        self, commands: Callable[[bytes | None], list[Command]], pipeline: Pipeline
    ) -> bool:
        """Run Redis commands if this run still holds the lock; return whether they ran.

        ``commands`` makes them from the value of the key that the locks of shards share.
        """
        while True:
            held, _, shards = self._watched(pipeline)
            if held != self._value:
                pipeline.execute([(b"UNWATCH",)])
                return False
            if _has_run(pipeline, commands(shards)):
                return True

    def _watched(self, pipeline: Pipeline) -> list[bytes | None]:
        """Watch the keys of the lock, of the whole and of all shards; return their values."""
        keys = self.key, self._whole, self._shards
        _, *values = pipeline.execute([(b"WATCH", *keys), *((b"GET", key) for key in keys)])
        return values

    def _extended(self, _: bytes | None) -> list[Command]:
        """Return the commands that extend the lock; a full server runs them, too."""
        keys = (self.key,) if self.shard is None else (self.key, self._shards)
        return [(b"PEXPIRE", key, self._lease) for key in keys]

    def _removed(self, shards: bytes | None) -> list[Command]:
        """Return the commands that release the lock."""
        return [(b"UNLINK", self.key), *self._shared(shards)]

    def _shared(self, shards: bytes | None, *own: bytes) -> list[Command]:
        """Return the command that puts the line ``own``, or none, for this shard in ``shards``."""
        if self.shard is None:
            return []
        shard = encode(f" {owner_text('', self.shard)}")
        others = (line for line in (shards or b"").split(b"\n") if line and shard not in line)
        lines = [*others, *own]
        if not lines:
            return [(b"UNLINK", self._shards)]
        return [(b"SET", self._shards, b"\n".join(lines), b"PX", self._lease)]


def _owner(value: bytes | None) -> str | None:
    """Return the owner text in the value of a key, or in its last line; None without the key."""
    if value is None:
        return None
    return value.rpartition(b"\n")[2].decode(errors="replace").partition(" ")[2]


def _has_run(pipeline: Pipeline, commands: list[Command]) -> bool:
    """Run a transaction; return False if another run changed a watched key, and nothing ran."""
    *_, done = pipeline.execute([(b"MULTI",), *commands, (b"EXEC",)])
    return done is not None
