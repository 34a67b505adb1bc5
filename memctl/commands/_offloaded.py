"""The report of ``offload`` and ``rehydrate``, and the removal of blobs that nothing needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from msgspec import UNSET
from rich.console import RenderableType

from memctl.commands._context import Run
from memctl.commands._journal import runs_on
from memctl.commands._reports import ChangeOutcome
from memctl.errors import MemctlError, NotFound, Unavailable
from memctl.journal.runs import Runs
from memctl.location import Location, visible
from memctl.machine.concurrency import in_thread
from memctl.ops.lock import lock
from memctl.ops.observer import opened
from memctl.ops.offload.blobs import Blobs
from memctl.ops.offload.prune import kept_by_undo, referred
from memctl.ops.offload.run import OffloadRun, RewriteRun
from memctl.ops.retain.ledger import ABSENT, Ledger
from memctl.output import offloading
from memctl.registry import make_store
from memctl.reports.change import (
    BlobsRow,
    NotAsked,
    OffloadReport,
    RehydrateReport,
    RewrittenMessages,
    RewrittenRow,
    Sizes,
)
from memctl.reports.report import Report
from memctl.store import OpenMode, Store


class RewriteOutcome(ChangeOutcome):
    """The report of a command that gives messages another text."""

    def __init__(self, change: RewriteRun, target: str) -> None:
        super().__init__(change, target)
        self.rewrite = change

    def report(self) -> Report:
        """Return the report as it is now."""
        fields = self.fields()
        planned, done = self.changes.planned, self.changes.done
        seen = planned if self.dry_run else done
        failed = planned.deleted - done.deleted if self.begun and not self.dry_run else 0
        total = self.rewrite.sizes(dry_run=self.dry_run)
        fields |= {
            "messages": RewrittenMessages(planned.deleted, seen.deleted, max(0, failed)),
            "bytes": Sizes(total.before, total.after),
            "tokens": Sizes(total.tokens_before, total.tokens_after),
            "left": sum(self.rewrite.rewritten.left.values()),
        }
        if self.dry_run:
            fields["plan"] = [
                RewrittenRow(
                    user=key.user,
                    session=key.session,
                    path=key.part or UNSET,
                    messages=sizes.messages,
                    bytes=Sizes(sizes.before, sizes.after),
                )
                for key, sizes in self.rewrite.rewritten.sizes.items()
            ]
        if not isinstance(self.rewrite, OffloadRun):
            return RehydrateReport(**fields)
        if not self.dry_run:
            fields["blobs"] = BlobsRow(self.rewrite.blobs.label, self.rewrite.written)
        return OffloadReport(**fields)

    def _table(self) -> RenderableType | None:
        if not (self.ended or self.begun):
            return None
        return offloading.outcome(self.rewrite, self.target, self.run, dry_run=self.dry_run)


async def referred_on(run: Run, store: Store) -> set[str]:
    """Return the names of the blobs that the messages of a store, or undo runs on it, need.

    Raises:
        MemctlError: the store or the record of a run cannot be read as a whole.
    """
    found = await referred(store)
    for kept in runs_on(run, store.location):
        found |= kept_by_undo(Runs().parts(kept))
    return found


@dataclass(slots=True)
class Asked:
    """The stores that were asked whether they need blobs, and those that could not be asked."""

    stores: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    """The reason why a store could not be asked, by its label."""

    def fields(self) -> dict[str, Any]:
        """Return the fields of the report that name both."""
        return {"asked": self.stores, "not_asked": [NotAsked(*one) for one in self.failed.items()]}

    @property
    def error(self) -> Unavailable | None:
        """The error that a store could not be asked, so that all blobs stay; None without one."""
        for label, why in self.failed.items():
            return Unavailable(f"{label} could not be asked, and may need them: {why}")
        return None


async def referred_elsewhere(run: Run, locations: Sequence[Location], asked: Asked) -> set[str]:
    """Return the names of the blobs that further stores need, with what was asked in ``asked``.

    These are the stores of the configuration and the archives of retention, apart from the stores
    at ``locations``.  A store that does not exist needs nothing.
    """
    asked.stores += [one.label for one in locations]
    entries = Ledger().read()[0]
    archives = [one.archive for one in entries if one.event != ABSENT]
    found: set[str] = set()
    for name in dict.fromkeys([*run.configuration().stores, *archives]):
        label = visible(name)
        try:
            location = run.locate(name)
            label = location.label
            if label in asked.stores:
                continue
            async with opened(make_store(location), run.output) as store:
                if not store.dialect.facts:
                    found |= await referred_on(run, store)
        except NotFound:
            continue
        except MemctlError as error:
            asked.failed[label] = error.message
        else:
            asked.stores.append(label)
    return found


async def remove_unreferred(
    run: Run,
    locations: Sequence[Location],
    blobs: Blobs,
    some: Mapping[str, int],
    removed: dict[str, int],
    asked: Asked,
) -> None:
    """Remove those of ``some`` blobs that no store and no undo run needs.

    The given stores are locked meanwhile: a run of ``offload`` writes a blob before its message
    refers to the blob.  Each removed blob is added to ``removed``, with its size in bytes.  If a
    further store cannot be asked (see ``referred_elsewhere``), all blobs stay.

    Raises:
        Busy: another run writes to a store.
        MemctlError: as ``referred_on``; or a blob cannot be removed.
    """
    kept: set[str] = set()
    async with AsyncExitStack() as stack:
        for location in {str(one.label): one for one in locations}.values():
            store = make_store(location, OpenMode.CHANGE)
            await stack.enter_async_context(opened(store, run.output))
            await lock(store)
            kept |= await referred_on(run, store)
        kept |= await referred_elsewhere(run, locations, asked)
        for name, number in some.items():
            if name not in kept and not asked.failed:
                await in_thread(partial(blobs.remove, name))
                removed[name] = number
