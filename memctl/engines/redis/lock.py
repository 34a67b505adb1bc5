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
from memctl.storekit.locks import ServerLock

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
    """

    def __init__(self, server: LockedServer, kind: str, warnings: list[str]) -> None:
        """Create the lock, not yet acquired.

        ``kind`` is the kind of the store in the key's name; stores of different kinds may share a
        prefix.  Warnings are appended to ``warnings``.
        """
        super().__init__(server.label, warnings)
        self.period = LEASE_SECONDS / 3
        self.hint = (
            "wait for it to end, or stop it; "
            f"the lock of a run that was killed ends by itself within {LEASE_SECONDS:.0f} seconds"
        )
        self._server = server
        self.key = encode(f"{server.prefix}memctl:lock:{kind}")
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
        kept = await self._run(partial(self._if_ours, (b"PEXPIRE", self.key, self._lease)))
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
            await self._run(partial(self._if_ours, (b"UNLINK", self.key)))

    async def _run(self, call: Callable[[Pipeline], T]) -> T:
        async with self._server.pipeline() as pipeline:
            return await in_thread(pipeline, partial(call, pipeline))

    def _attempt(self, pipeline: Pipeline) -> str | None:
        _, held = pipeline.execute([(b"WATCH", self.key), (b"GET", self.key)])
        other = (held or b"").decode(errors="replace").partition(" ")[2]
        if held is not None and other != self.owner:
            pipeline.execute([(b"UNWATCH",)])
            return other
        put = (b"SET", self.key, self._value, b"PX", self._lease)
        *_, done = pipeline.execute([(b"MULTI",), put, (b"EXEC",)])
        return None if done is not None else ""

    def _if_ours(self, command: Command, pipeline: Pipeline) -> bool:
        """Run a Redis command if this run still holds the lock; return whether it ran."""
        _, held = pipeline.execute([(b"WATCH", self.key), (b"GET", self.key)])
        if held != self._value:
            pipeline.execute([(b"UNWATCH",)])
            return False
        *_, done = pipeline.execute([(b"MULTI",), command, (b"EXEC",)])
        return done is not None
