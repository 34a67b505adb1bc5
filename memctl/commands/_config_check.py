"""``memctl config check``: tries each configured store, model and key."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from msgspec import Struct

from memctl.commands._run import has_place, rotation
from memctl.config import Config, ConfiguredModel
from memctl.config.encryption import read_encryption
from memctl.config.retention import read_policies
from memctl.config.shown import redacted
from memctl.encryption import check_recipients, parse_identities
from memctl.errors import MemctlError, NotFound, Uninitialised, UsageError
from memctl.inference.errors import ModelError
from memctl.location import Location, visible
from memctl.ops.compress.chunks import ChunkedSummarizer
from memctl.registry import chosen, make_store, title_of
from memctl.reports.config import (
    CheckError,
    CheckRow,
)
from memctl.retention import Policy
from memctl.store import Store
from memctl.text.numbers import count
from memctl.wrappers.timeout import Timeout

T = TypeVar("T")

_HINTS = {
    "timeout": "raise --timeout; a local model may have to be loaded first",
    "rate-limited": "try again later: the server is busy",
    "server-error": "try again later: the server reports a problem of its own",
    "program-failed": "run the command by hand, with a conversation on its standard input",
    "bad-reply": "compress would fail, too: check the address and the model, or the command",
}
_NOT_ASKED = "not asked: --no-model"


async def check_all(
    config: Config, environment: Mapping[str, str], seconds: float, *, asks: bool = True
) -> list[CheckRow]:
    """Check all configured stores, models and keys at the same time, and the policies.

    A check fails after ``seconds``.  Without ``asks``, summarizers and embedders get no request.
    """
    trial = _Trial(config, environment, seconds, asks)
    checks = [
        ("store", trial.store, config.stores),
        ("summarizer", trial.summarizer, config.summarizers),
        ("embedder", trial.embedder, config.embedders),
        ("encryption", trial.keys, ["keys"] if config.encryption else []),
    ]
    tried = [
        _tried(CheckRow(what, name), check, seconds)
        for what, check, names in checks
        for name in names
    ]
    return [*await asyncio.gather(*tried), *map(_policy_row, read_policies(config))]


def _policy_row(policy: Policy) -> CheckRow:
    to = f", archived to {redacted(policy.archive)}" if policy.archive else ""
    note = f"its settings are valid; acts on {policy.store}{to}"
    return CheckRow("retention", policy.name, policy.action.value, note=note)


async def _tried(
    check: CheckRow, work: Callable[[CheckRow], Awaitable[None]], seconds: float
) -> CheckRow:
    begun = time.monotonic()
    try:
        await work(check)
    except MemctlError as error:
        _fail(check, error.code, error.message, error.hint)
    except ModelError as error:
        _fail(check, error.code, error.message, _HINTS.get(error.code))
    except TimeoutError:
        _fail(check, "timeout", f"no answer within {seconds:g} s", _HINTS["timeout"])
    check.seconds = round(time.monotonic() - begun, 3)
    return check


def _fail(check: CheckRow, code: str, message: str, hint: str | None) -> None:
    check.ok, check.error = False, CheckError(code, message, hint)


class _Trial(Struct, frozen=True):
    """The checks of a store, a summarizer and an embedder, each by its name, and of the keys."""

    config: Config
    environment: Mapping[str, str]
    seconds: float
    """The time limit of a check."""
    asks: bool
    """True if summarizers and embedders get a request."""

    async def store(self, check: CheckRow) -> None:
        # Fetching a password and loading a driver may block; threads keep the other checks going.
        alias = self.config.stores[check.name]
        location = await asyncio.to_thread(alias.locate, self.environment, self.seconds)
        location = self.config.with_keys(location, self.environment)
        check.kind = location.kind
        location = await asyncio.to_thread(chosen, location)
        store = await asyncio.to_thread(make_store, location)
        check.capabilities = store.features.capabilities()
        try:
            async with Timeout(store, self.seconds) as opened:
                check.capabilities = opened.features.capabilities()
                check.note = f"opened as {title_of(opened.location)}; {await _contents(opened)}"
        except Uninitialised as error:
            check.note = f"{error.message}; usable as a target"
        except NotFound:
            if location.kind != "archive" or not has_place(location):
                raise
            check.note = await asyncio.to_thread(_files_note, location)

    async def summarizer(self, check: CheckRow) -> None:
        from memctl.summarizers.registry import make_summarizer  # only needed for a summarizer

        check.kind = _model_kind(self.config.summarizers[check.name])
        made = await self._made(check.name, self.config.summarizer, make_summarizer)
        ChunkedSummarizer(made, lambda *_: None)  # raises if the context window is too small
        if self.asks:
            async with asyncio.timeout(self.seconds), made as summarizer:
                await summarizer.check()
        check.note = "wrote a summary" if self.asks else _NOT_ASKED

    async def embedder(self, check: CheckRow) -> None:
        from memctl.embedders.registry import make_embedder  # only needed for an embedder

        check.kind = _model_kind(self.config.embedders[check.name])
        made = await self._made(check.name, self.config.embedder, make_embedder)
        check.note = _NOT_ASKED
        if self.asks:
            async with asyncio.timeout(self.seconds), made as embedder:
                check.note = f"{await embedder.dimensions()} dimensions"

    async def keys(self, check: CheckRow) -> None:
        found = read_encryption(self.config, self.environment, self.seconds)
        check_recipients(found.recipients, "encryption.recipients")
        check.note = count(len(found.recipients), "recipient")
        if found.identities is not None:
            keys = parse_identities(await asyncio.to_thread(found.identities))
            check.note += f", {count(len(keys), 'identity')}"

    async def _made(
        self, name: str, find: Callable[[str], ConfiguredModel], make: Callable[..., T]
    ) -> T:
        """Return what ``make`` makes of a configured model, whose key may take a while to get."""

        def made() -> T:
            configured = find(name)
            return make(configured.settings, configured.key(self.environment, self.seconds))

        return await asyncio.to_thread(made)


async def _contents(store: Store) -> str:
    """Return in a few words whether a store has memories, damaged memories included."""
    store.skip_damage()
    try:
        return "no memories" if await store.is_empty() else "memories found"
    except UsageError as error:  # a vector store that cannot list its documents
        return error.message


def _model_kind(table: Any) -> str | None:
    kind = table.get("kind") if isinstance(table, dict) else None
    return kind if isinstance(kind, str) else None


def _files_note(archive: Location) -> str:
    """Return the note on an archive that does not exist, which may be the name of a rotation.

    Raises:
        MemctlError: the folder or the bucket cannot be listed.
    """
    files = rotation(archive)
    if not files:
        return "there is no archive yet; usable as a target"
    newest = visible(files[0].file.name)
    return f"the name of a rotation; newest of {count(len(files), 'file')}: {newest}"
