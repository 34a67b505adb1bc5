"""Trying what the configuration names: is it there, and does it let us in?"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from memctl.config import Config
from memctl.config.stores import Alias
from memctl.errors import MemctlError, Uninitialised
from memctl.registry import make_store
from memctl.summarizer import Summarizer, SummaryError
from memctl.wrappers.timeout import Timeout

HINT = "what is wrong with each stands in the report"
_HINTS = {
    "timeout": "--timeout allows more; a model on this machine may have to be loaded first",
    "rate-limited": "it is there, and busy: try again later",
    "server-error": "it is there, and in trouble: try again later",
    "program-failed": "run the command by hand, with a conversation on its standard input",
    "bad-reply": "it answers, and not as summarizers do: is the address, or the command, right?",
}


@dataclass(slots=True)
class Check:
    """What became of one store or summarizer."""

    what: str
    name: str
    kind: str | None = None
    capabilities: list[str] = field(default_factory=list)
    seconds: float = 0.0
    note: str | None = None
    error: dict[str, str | None] | None = None

    @property
    def ok(self) -> bool:
        return self.error is None

    def row(self) -> dict[str, Any]:
        """As reports have it."""
        return {
            "what": self.what,
            "name": self.name,
            "kind": self.kind,
            "ok": self.ok,
            "capabilities": self.capabilities,
            "seconds": round(self.seconds, 3),
            "note": self.note,
            "error": self.error,
        }


async def check_all(config: Config, environment: Mapping[str, str], seconds: float) -> list[Check]:
    """Tries every store and every summarizer, all at once, each for ``seconds``."""

    def store(alias: Alias) -> Callable[[Check], Awaitable[None]]:
        return lambda check: _try_store(check, alias, environment, seconds)

    def summarizer(name: str) -> Callable[[Check], Awaitable[None]]:
        return lambda check: _try_summarizer(check, config, name, environment, seconds)

    tried = [(Check("store", name), store(alias)) for name, alias in config.stores.items()]
    tried += [(Check("summarizer", name), summarizer(name)) for name in config.summarizers]
    return await asyncio.gather(*(_tried(check, work, seconds) for check, work in tried))


async def _tried(check: Check, work: Callable[[Check], Awaitable[None]], seconds: float) -> Check:
    begun = time.monotonic()
    try:
        await work(check)
    except MemctlError as error:
        _fail(check, error.code, error.message, error.hint)
    except SummaryError as error:
        _fail(check, error.code, error.message, _HINTS.get(error.code))
    except TimeoutError:
        _fail(check, "timeout", f"nothing came within {seconds:g} s", _HINTS["timeout"])
    check.seconds = time.monotonic() - begun
    return check


def _fail(check: Check, code: str, message: str, hint: str | None) -> None:
    check.error = {"code": code, "message": message, "hint": hint}


async def _try_store(
    check: Check, alias: Alias, environment: Mapping[str, str], seconds: float
) -> None:
    # What gives a password, and what loads a driver, would hold up the others.
    location = await asyncio.to_thread(alias.locate, environment, seconds)
    check.kind = location.kind
    store = await asyncio.to_thread(make_store, location)
    check.capabilities = store.features.capabilities()
    try:
        async with Timeout(store, seconds) as opened:
            check.capabilities = opened.features.capabilities()
    except Uninitialised as error:
        check.note = f"{error.message}: it can be a target"


async def _try_summarizer(
    check: Check, config: Config, name: str, environment: Mapping[str, str], seconds: float
) -> None:
    check.kind = _kind(config.summarizers[name])

    def make() -> Summarizer:
        from memctl.summarizers.make import make_summarizer  # only where one is configured

        configured = config.summarizer(name)
        return make_summarizer(configured.settings, configured.key(environment, seconds))

    made = await asyncio.to_thread(make)
    async with asyncio.timeout(seconds), made as summarizer:
        await summarizer.check()


def _kind(table: Any) -> str | None:
    kind = table.get("kind") if isinstance(table, dict) else None
    return kind if isinstance(kind, str) else None
