"""Take values out of stores, and out of all that memctl keeps of them.

The texts of each store are rewritten, then its undo runs; its search indexes are removed.  Nothing
is kept of what was there, so a redaction cannot be undone.  A run that was killed leaves each place
whole: the same command does the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from msgspec import UNSET, Struct, field
from msgspec.structs import replace

from memctl.errors import BadData, Different, Loss, MemctlError, Partial, UsageError
from memctl.holds import LIST
from memctl.index.folder import remove_of
from memctl.journal.rewrite import rewrite_run
from memctl.journal.runs import Run, Runs
from memctl.location import Location
from memctl.machine.concurrency import in_thread
from memctl.ops.change.change import RunOptions
from memctl.ops.data_subject import ALWAYS
from memctl.ops.lock import lock
from memctl.ops.names import list_names, refuse_absent
from memctl.ops.offload.blobs import Blobs
from memctl.ops.offload.prune import Referrers
from memctl.ops.offload.run import refuse
from memctl.ops.recording import note_unrecorded
from memctl.ops.redact.blobs import RenewedBlobs
from memctl.ops.redact.messages import NotedMessages, SelectedMessages, refuse_selection
from memctl.ops.redact.receipt import Receipt, StoreEntry, beginning
from memctl.ops.redact.redactor import Finder, Redactor
from memctl.ops.report import DOCTOR, embedded_row
from memctl.ops.same_store import runs_at
from memctl.ops.store_task import StoreTask
from memctl.reports import redact as reports
from memctl.selection import EVERYTHING, Selection
from memctl.store import OpenMode, Store
from memctl.storekit.fact_texts import FactRewriter
from memctl.storekit.texts import Hit, Rewriter, TextResult
from memctl.text.numbers import count

MOST_PLACES = 1000
"""The largest number of places of a store that a report lists; it counts them all."""
_NOT_SELECTED = "it is not in what belongs to the named users and sessions alone"
_IN_CONTENT = "it is in an offloaded content, which may belong to others: name no user or session"
_PASSES = 3
"""The largest number of passes over a store while other programs write the values again."""


_NARROW = {"project", "path", "namespace"}
"""The options of a location that choose a part of its place."""
_DISK = "what agents have changed on the disk, and their settings and credentials"
_OF_ENGINES = {
    "sqlite": "blocks of the disk",
    "postgresql": "dead rows until VACUUM FULL, and the write-ahead log",
    "mysql": "the undo log until it is purged, and the binary log",
    "redis": "RDB and AOF files until they are rewritten",
    "tablestore": "earlier versions of columns, if a table keeps several",
    "atif": "files beside the trajectories, such as logs",
    "mem0": "with pgvector: dead rows until VACUUM FULL, and the write-ahead log",
    **dict.fromkeys(("claude", "codex", "hermes", "opencode"), _DISK),
}


def _not_reached(location: Location) -> list[str]:
    """Return the kinds of data that a redaction of a store leaves."""
    engine = location.kind.partition("-")[0]
    found = [_OF_ENGINES[engine]] if engine in _OF_ENGINES else []
    if engine == "archive" and location.url:
        found.append("earlier versions of the object, if its bucket keeps versions")
    return found


class Found(Struct):
    """The values that were found in a store and in what memctl keeps of it, and those that stay."""

    kinds: Counter[str] = field(default_factory=Counter)
    places: list[reports.PlaceRow] = field(default_factory=list)
    left: list[reports.LeftRow] = field(default_factory=list)
    runs: set[str] = field(default_factory=set)
    """The undo runs with values."""
    signed: int = 0
    """The signatures, of thinking, that went with a text that they covered."""
    number_left: int = 0

    @property
    def hits(self) -> int:
        """The number of values that were taken out, or would be."""
        return self.kinds.total()

    def add(self, store: str, result: TextResult) -> None:
        """Add the values of one place; the name of the place must not show a value."""
        self.signed += result.signed
        self.number_left += len(result.left)
        for hit in result.hits:
            self.kinds[hit.kind] += 1
            if len(self.places) < MOST_PLACES:
                row = reports.PlaceRow(result.place, hit.kind, f"{beginning(hit.value)}…")
                self.places.append(row)
        for hit, why in result.left[: MOST_PLACES - len(self.left)]:
            shown = f"{beginning(hit.value)}…"
            self.left.append(reports.LeftRow(store, result.place, hit.kind, shown, why))


@dataclass(eq=False)
class StoreRedaction(StoreTask):
    """The redaction of one store, and of the undo runs and search indexes of it."""

    redactor: Redactor
    where: Selection = EVERYTHING
    """The memories to redact."""

    def __post_init__(self) -> None:
        self.found = Found()
        self.values: set[Hit] = set()
        """The values that ``scan`` has found."""
        self.entry = StoreEntry(self.location.label, self.record.argument, self.location.kind)

    async def scan(self, store: Store, blobs: RenewedBlobs | None) -> None:
        """Count the values in the store, its undo runs and its blobs, and change nothing.

        Raises:
            UsageError: the location chooses a part of the place.
            Loss: a memory is held, and the store is open to be changed.
            MemctlError: as ``Store.rewrite_texts``.
        """
        self.found = Found()
        if narrow := sorted(_NARROW & self.location.options.keys()):
            raise UsageError(
                f"{self.location.label}: ?{narrow[0]}= chooses a part, and a value is taken out "
                "of the whole place",
                f"leave out ?{narrow[0]}=",
            )
        if store.mode.writes:
            await self._refuse_held(store)
        if (vectors := self.redactor.vectors) is not None:
            vectors.refuse_model(store)
        with self.options.observer.progress("searching"):
            await self._search(store, blobs)

    async def _search(self, store: Store, blobs: RenewedBlobs | None) -> None:
        results = self._results(store, self.redactor, self.where, writes=False)
        async with aclosing(results):
            async for result in results:
                self._find(result)
        for result in () if blobs is None else await blobs.find(store):
            self._find(result)

    def _find(self, result: TextResult) -> None:
        self.values.update(result.hits)
        self._add(result)

    async def execute(self, store: Store, receipt: Receipt, blobs: RenewedBlobs | None) -> None:
        """Lock the store, and take the values out.

        Raises:
            Busy: another run writes to the store.
            Loss: a memory of the store is held.
            MemctlError: as ``Store.rewrite_texts``.
        """
        await lock(store)
        await self._refuse_held(store)
        await in_thread(partial(remove_of, await store.identity()))
        self.found = Found()
        with self.options.observer.progress("redacting"):
            await self._take_out(store, receipt, blobs)
        await in_thread(partial(remove_of, await store.identity()))  # a search may have made new

    async def _take_out(self, store: Store, receipt: Receipt, blobs: RenewedBlobs | None) -> None:
        vectors = self.redactor.vectors
        for result in () if blobs is None else await blobs.renew(store):
            self._note(result, receipt)
        await self._redact_noted(store, receipt)
        for _ in range(_PASSES):
            before, self.found.number_left = self.found.hits, 0
            self.found.left.clear()
            made = vectors is not None and await vectors.make(store)
            results = self._results(store, self.redactor, self.where, writes=True)
            async with aclosing(results):
                async for result in results:
                    self._note(result, receipt)
            if self.found.hits == before and not made:
                return
        raise Partial(
            f"{self.location.label}: another program writes the values again",
            "stop the agents, and run the same command again",
        )

    async def _redact_noted(self, store: Store, receipt: Receipt) -> None:
        """Redact the messages that notes describe, if the search has seen notes.

        If an application has added values to rows, no message is edited: an edit would not keep
        them.  The notes of messages with values then no longer hold.  They stay as they are in a
        store that takes no edits, too.

        Raises:
            MemctlError: as ``ChangeRun.execute``.
        """
        if not self.redactor.may_have_notes:
            return
        try:
            refuse(store)
        except UsageError:
            return
        if await store.unrestorable(self.where):
            return
        run = NotedMessages(self.record, self.where, self.redactor, options=self.options)
        with run.recorded():
            await run.execute(store)
        self.begun = self.begun or run.changed
        if run.changed:
            await store.forget_replaced()
        for result in run.outcome():
            self._note(result, receipt)

    def _note(self, result: TextResult, receipt: Receipt) -> None:
        self.begun = self.begun or bool(result.hits)
        for hit in result.hits:
            receipt.add(hit)
        self._add(result)

    def _add(self, result: TextResult) -> None:
        place = self.redactor.without_values(result.place)
        self.found.add(self.location.label, result._replace(place=place))

    async def _refuse_held(self, store: Store) -> None:
        """Refuse a store with a held memory: texts are rewritten wherever they are.

        Raises:
            Loss: a memory is held.
            BadData: the record of holds is damaged.
        """
        holds = self.options.holds.read(store)
        if holds.failure(None) is None:
            return
        for key in await list_names(store, self.where):
            if (failure := holds.failure(key)) is not None:
                raise Loss(f"{self.location.label}: {key} is {failure.message}", _held_hint())

    async def _results(
        self, store: Store, rewriter: Rewriter, where: Selection, *, writes: bool
    ) -> AsyncGenerator[TextResult]:
        async with aclosing(store.rewrite_texts(rewriter, where, writes=writes)) as results:
            async for result in results:
                yield result
        async with aclosing(self._recorded(store, rewriter, where, writes=writes)) as results:
            async for result in results:
                yield result

    async def _recorded(
        self, store: Store, rewriter: Rewriter, where: Selection, *, writes: bool
    ) -> AsyncGenerator[TextResult]:
        """Yield what was found of selected memories in the undo runs on a store."""
        runs = Runs()
        if store.dialect.facts:
            rewriter = FactRewriter(rewriter, store.embeds)
        for run in runs_at(store.location, self.options.locate):
            rewriting = rewrite_run(runs, run, rewriter, where, writes=writes)
            async with aclosing(rewriting) as results:
                async for result in results:
                    self.found.runs.add(run.id)
                    yield result

    def settle(self) -> None:
        """Put the numbers into ``entry``."""
        self.entry.redacted = self.found.hits
        self.entry.left = self.found.number_left + (self.error is not None)


@dataclass(eq=False)
class SelectedRedaction(StoreRedaction):
    """The redaction of selected memories of a store, if need be by edits of their messages.

    The values of these memories that stay in the store, beside them or in other memories, are left
    and named.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.where = self.where.around
        self.exists = False
        """True if the store has one of the memories."""

    async def _search(self, store: Store, blobs: RenewedBlobs | None) -> None:
        refuse_selection(store)
        self.exists = bool(await list_names(store, self.where))
        await super()._search(store, None)
        await self._name_contents(store, blobs)

    async def _take_out(self, store: Store, receipt: Receipt, blobs: RenewedBlobs | None) -> None:
        if store.features.selects_texts:
            await super()._take_out(store, receipt, None)
        else:
            results = self._results(store, self.redactor, self.where, writes=True)
            async with aclosing(results):
                async for result in results:
                    self._note(result, receipt)
            await store.forget_replaced()
        rest = super()._results(store, Finder(receipt.rules()), EVERYTHING, writes=False)
        async with aclosing(rest):
            async for result in rest:
                self._add(result.failed(_NOT_SELECTED))
        await self._name_contents(store, blobs)

    async def _name_contents(self, store: Store, blobs: RenewedBlobs | None) -> None:
        for result in () if blobs is None else await blobs.find(store, self.where):
            self._add(result.failed(_IN_CONTENT))

    async def _results(
        self, store: Store, rewriter: Rewriter, where: Selection, *, writes: bool
    ) -> AsyncGenerator[TextResult]:
        """Yield what was found in the memories and in the undo runs; change it if ``writes``.

        Raises:
            BadData: a selected memory is damaged.
            UsageError: an edit of messages would not keep values of an application.
            MemctlError: as ``Store.rewrite_texts`` and ``ChangeRun.execute``.
        """
        if store.features.selects_texts:
            results = super()._results(store, rewriter, where, writes=writes)
        else:
            for result in await self._edited(store, writes=writes):
                yield result
            results = self._recorded(store, rewriter, where, writes=writes)
        async with aclosing(results):
            async for result in results:
                yield result

    async def _edited(self, store: Store, *, writes: bool) -> list[TextResult]:
        if named := await store.unrestorable(self.where):
            raise UsageError(
                f"{store.label} has values in {named}, which an edit of messages would not keep",
                "leave out --user and --session",
            )
        options = replace(self.options, dry_run=not writes)
        run = SelectedMessages(self.record, self.where, self.redactor, options=options)
        with run.recorded():
            await run.execute(store)
        self.begun = self.begun or run.changed
        for key, failure in store.left_out.failures.items():
            raise BadData(f"{store.label}: {key} is damaged: {failure.message}", DOCTOR)
        return list(run.outcome())


class Redaction:
    """The redaction of several stores, with one receipt.

    ::

        redaction = Redaction(redactor, [(location, record)], options)
        await redaction.scan()  # to ask the user, or for a dry run
        await redaction.execute(Receipt.begin(None))
        if error := redaction.error():
            raise error
    """

    def __init__(
        self,
        redactor: Redactor,
        stores: Iterable[tuple[Location | Store, Run]],
        options: RunOptions,
        blobs: Blobs | None = None,
        referrers: Referrers | None = None,
        where: Selection = EVERYTHING,
    ) -> None:
        """``stores`` are the locations or the open stores, each with a record that names it.

        Offloaded contents in ``blobs`` are made anew.  Old contents are removed, unless one of
        ``referrers`` refers to them.  Of ``where``, the users and sessions count.
        """
        self.targets = [
            StoreRedaction(*store, options, redactor)
            if where == EVERYTHING
            else SelectedRedaction(*store, options, redactor, where)
            for store in stores
        ]
        self.dry_run = options.dry_run
        self._redactor = redactor
        self.receipt: Receipt | None = None
        """The receipt; None if nothing was taken out."""
        self._options = options
        self._blobs = None if blobs is None else RenewedBlobs(blobs, redactor)
        self._referrers = referrers or Referrers(options)

    @property
    def hits(self) -> int:
        """The number of values that were taken out, or would be."""
        return sum(target.found.hits for target in self.targets)

    async def scan(self) -> None:
        """Search all stores.

        Raises:
            Interrupted: a signal came.
            NotFound: there is no memory of the selected users and sessions.
            MemctlError: no store could be searched.
        """
        mode = OpenMode.READ if self.dry_run else OpenMode.CHANGE
        for target in self.targets:
            await target.attempt(mode, partial(target.scan, blobs=self._blobs))
        self._refuse_nothing()
        selected = [one for one in self.targets if isinstance(one, SelectedRedaction)]
        if selected and not self.hits:
            exists = sum(one.exists for one in selected)
            refuse_absent(selected[0].where, exists, *(one.location for one in selected))

    def _refuse_nothing(self) -> None:
        errors = [target.error for target in self.targets]
        if errors and all(errors) and errors[0] is not None:
            raise errors[0]

    async def execute(self, receipt: Receipt) -> None:
        """Take the values out of all stores, and complete the receipt.

        Raises:
            Unavailable: the receipt cannot be written.
            Interrupted: a signal came.
            MemctlError: no store could be changed.
        """
        self.receipt, goes_on = receipt, receipt.goes_on
        receipt.stores = [target.entry for target in self.targets]
        for target in self.targets:
            for hit in target.values:
                receipt.add(hit)
        receipt.save()  # with all values, in case that this run is killed
        for target in self.targets:
            if not (target.found.hits or goes_on):
                target.settle()
                continue
            work = partial(target.execute, receipt=receipt, blobs=self._blobs)
            try:
                await target.attempt(OpenMode.CHANGE, work)
            finally:
                target.settle()
                if target.begun:
                    note_unrecorded(target.record, self._options.observer.warn)
                receipt.save()
        self._refuse_nothing()
        if self._blobs is not None and self.error() is None:
            places = [target.location for target in self.targets]
            await self._blobs.remove_old(places, self._referrers)
        receipt.ended = datetime.now(UTC)
        receipt.save()

    def error(self) -> MemctlError | None:
        """Return the error if a value stays, or was found by a dry run; else None."""
        failed = [target for target in self.targets if target.error is not None]
        if failed:
            first = failed[0]
            assert first.error is not None
            done = "searched" if self.dry_run else "redacted"
            label = first.location.label
            return Partial(
                f"{count(len(failed), 'store')} of {len(self.targets)} could not be {done}; "
                f"{label}: {first.error.message.removeprefix(f'{label}: ')}",
                first.error.hint or "run the same command again",
            )
        if self.dry_run and self.hits:
            return Different(
                f"{count(self.hits, 'value')} would be redacted",
                "nothing was changed; leave out --dry-run to take them out",
            )
        if left := [row for target in self.targets for row in target.found.left]:
            number = sum(target.found.number_left for target in self.targets)
            row = left[0]
            stay = "would stay" if self.dry_run else "stay" if number > 1 else "stays"
            return Different(
                f"{count(number, 'value')} {stay}; the first: {row.store}: {row.place}: {row.why}",
                "the report lists them all" if number > 1 else "",
            )
        return None

    def report(self) -> reports.RedactReport:
        """Return the report as it is now."""
        stores = [
            reports.RedactedStore(
                store=target.location.label,
                kind=target.location.kind,
                redacted=target.found.hits,
                kinds=dict(target.found.kinds.most_common()),
                places=target.found.places,
                left=target.found.number_left,
                signatures=target.found.signed,
                runs=sorted(target.found.runs),
                not_reached=_not_reached(target.location),
            )
            for target in self.targets
        ]
        failures = [
            reports.FailedStore(target.location.label, target.error.code, target.error.message)
            for target in self.targets
            if target.error is not None
        ]
        vectors = self._redactor.vectors
        return reports.RedactReport(
            dry_run=self.dry_run,
            stores=stores,
            left=[row for target in self.targets for row in target.found.left],
            failures=failures,
            not_reached=list(ALWAYS),
            embedded=UNSET if vectors is None else embedded_row(vectors.report),
            receipt=UNSET if self.receipt is None else self.receipt.file.text,
        )


def _held_hint() -> str:
    return f"a value is taken out wherever it is, or nowhere: end the hold; {LIST}"
