"""memctl for programs: open a store, and run the operations of the commands as coroutines.

``memctl`` exports these names.  The first call of an operation imports its module, so a program
loads only the used modules.  Every error is one of ``memctl.errors``.  A failed memory raises no
error: the operation continues with the next memory, and the result lists the failed memory in
``failures``.

Commands call these functions, too, with an observer that writes to the terminal.  What a command
prints although an error or a signal ends the operation is in the ``report`` that the operation
fills in, or in the run that ``watch`` of the ``RunOptions`` gets.  ``erase``, ``redact``,
``retain`` and ``undo`` make the same runs, from ``memctl.ops``, for several stores or policies.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import urlencode

from msgspec import Struct, field, structs

from memctl.encryption import Encryption
from memctl.errors import Failure, UsageError
from memctl.location import Location
from memctl.model import Finding, MemoryKey, ToolPairPolicy
from memctl.ops.inspect import Catalogue, Sort
from memctl.registry import URL_OPTIONS, located, make_store, parse
from memctl.selection import EVERYTHING, Selection
from memctl.store import DamagedMemory, OpenMode, Store

if TYPE_CHECKING:
    from memctl.embedder import Embedder
    from memctl.holds import Hold
    from memctl.index.folder import IndexInfo
    from memctl.journal.holds import RecordedHold
    from memctl.journal.runs import Run
    from memctl.ops.change.change import ChangeRun, RunOptions
    from memctl.ops.compress.plan import CompressOptions
    from memctl.ops.context import ContextMessage
    from memctl.ops.copy.compare import CompareReport
    from memctl.ops.copy.copy import CopyOptions
    from memctl.ops.doctor.check import Diagnosis, Limits
    from memctl.ops.export.destination import Shape
    from memctl.ops.export.run import ExportOptions, ExportReport
    from memctl.ops.history import RunList
    from memctl.ops.index import IndexUse
    from memctl.ops.observer import Observer
    from memctl.ops.offload.slim import Rule
    from memctl.ops.report import CopyReport, Progress, Total
    from memctl.ops.retry import Transfer
    from memctl.ops.search import SearchReport
    from memctl.ops.statistics import Statistics, StatisticsOptions
    from memctl.ops.stop import Stop
    from memctl.reports.retain import RetainReport
    from memctl.retention import Policy
    from memctl.summarizer import Summarizer

Failures = list[tuple[MemoryKey, Failure]]
"""The memories that failed and are unchanged, each with the reason."""


class Copied(Struct, frozen=True):
    """The result of a copy of memories between stores.

    ``memories`` counts the memories that were written, wholly or in part; ``messages`` counts their
    new messages.  ``unchanged`` counts memories that the target held already.  ``run`` is the id
    for ``memctl undo``, None if nothing can be undone.  ``verified`` is True if source and target
    were equal afterwards, False if memories were left different, None if they were not compared.
    """

    memories: int
    messages: int
    unchanged: int
    failures: Failures = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    run: str | None = None
    verified: bool | None = None


class Changed(Struct, frozen=True):
    """The result of a change or of its dry run.

    ``memories`` and ``messages`` are the numbers of changed memories and messages.  ``failures``
    lists the memories that failed.  ``run`` is the id for ``memctl undo``, None if nothing can be
    undone.
    """

    memories: int
    messages: int
    failures: Failures = field(default_factory=list)
    run: str | None = None


class Compressed(Struct, frozen=True):
    """The result of a compression, which replaces old messages of memories by summaries.

    ``memories`` counts the compressed memories, ``messages`` their summarized messages.  ``before``
    and ``after`` are the numbers of tokens that agents read of these memories.  ``cost`` is None if
    prices are unknown.
    """

    memories: int
    messages: int
    before: int
    after: int
    cost: float | None = None
    failures: Failures = field(default_factory=list)
    run: str | None = None


class Erased(Struct, frozen=True):
    """The result of an erase: the numbers of erased memories and messages, and the failures.

    After a dry run, the numbers say how much an erase would remove.

    ``runs`` lists the undo runs that were removed, or rewritten without the erased memories.
    ``receipt`` is the file for ``memctl verify --receipt``, None if nothing was erased.
    """

    memories: int
    messages: int
    runs: list[str] = field(default_factory=list)
    failures: Failures = field(default_factory=list)
    receipt: Path | None = None


class Redacted(Struct, frozen=True):
    """The result of a redaction: the number of values taken out, by rule; and what stays.

    After a dry run, the numbers say what would be taken out.  ``left`` has the place of each value
    that stays, and the reason.  ``receipt`` is the file for ``memctl verify --receipt``, None if
    nothing was taken out.
    """

    kinds: dict[str, int]
    left: list[tuple[str, str]] = field(default_factory=list)
    receipt: Path | None = None


class Repaired(Struct, frozen=True):
    """The result of a repair or of its dry run.

    ``findings`` has a finding for each kind of repair, with its number.  ``failures`` lists the
    memories that could not be repaired.  ``run`` is the id for ``memctl undo``, None if nothing can
    be undone.  ``quarantine`` is the file with damaged data that were moved out of the store.
    """

    findings: list[Finding]
    failures: Failures = field(default_factory=list)
    run: str | None = None
    quarantine: Path | None = None


def open_store(
    where: str | Location,
    *,
    create: bool = False,
    change: bool = False,
    user: str | None = None,
    session: str | None = None,
    path: str | None = None,
    encryption: Encryption | None = None,
) -> Store:
    """Return the store of a URL or a path; enter the store once, by ``async with``.

    The store is opened for reading.  ``create`` creates missing data, as the target of a copy
    needs.  ``change`` allows changes of existing data.  ``user`` and ``session`` name the memory of
    a state_dict, ``path`` selects a memory of a session state.  ``encryption`` has the keys for an
    encrypted archive.  The aliases and keys of the configuration cannot be used here.

    Raises:
        UsageError: memctl does not know the form of the URL, or the driver is not installed.
    """
    location = parse(where) if isinstance(where, str) else where
    if location.kind == "stdio":
        raise UsageError("- is for the command line", "name a file or a URL")
    given = {"user": user, "session": session, "path": path}
    options = {name: value for name, value in given.items() if value is not None}
    located = replace(
        location,
        options=location.options | options,
        encryption=encryption or location.encryption,
    )
    mode = OpenMode.CREATE if create else OpenMode.CHANGE if change else OpenMode.READ
    return make_store(located, mode)


async def inspect(
    store: Store, where: Selection = EVERYTHING, *, sort: Sort = Sort.MESSAGES
) -> Catalogue:
    """Return the catalogue of the selected memories, in the order ``sort``, with totals.

    The whole catalogue is held in RAM.

    Raises:
        MemctlError: as ``Store.list_memories``.
    """
    from memctl.ops import inspect as operation

    return await operation.inspect(store, where, sort)


async def statistics(
    store: Store | str | Location,
    where: Selection = EVERYTHING,
    *,
    options: StatisticsOptions | None = None,
    progress: Progress | None = None,
    must_exist: bool = False,
    observer: Observer | None = None,
) -> Statistics:
    """Return the statistics of the selected messages, as ``memctl report`` shows them.

    The store is read once, in constant memory.  ``store``, ``must_exist`` and ``observer`` are as
    in ``examine``.

    Raises:
        MemctlError: as ``examine``.
    """
    from memctl.ops.names import tell_absent
    from memctl.ops.report import count_all
    from memctl.ops.statistics import collect

    watcher = _watcher(observer, progress)
    async with _entered(store, watcher) as there:
        total: Total | None = None
        with watcher.progress("reading", lambda: total) as watching:
            total = await count_all(there, where, watching)
            found = await collect(there, where, options, watching)
        if must_exist:
            await tell_absent(where, found.memories or len(found.damaged), there, watcher)
        return found


async def context(
    store: Store,
    where: Selection,
    *,
    count: Callable[[str], int] | None = None,
    everything: bool = False,
) -> AsyncGenerator[ContextMessage]:
    """Yield the messages of one memory that an agent sends to its model, the summary first.

    ``where`` selects one memory.  ``count`` counts the tokens of a text; without it, they are
    estimated.  ``everything`` yields messages that the framework does not send, too.

    Raises:
        NotFound: no memory is selected.
        UsageError: several memories are selected, or the store holds facts.
        BadData: the memory is damaged.
        MemctlError: as ``Store.read``.
    """
    from memctl.inference.tokens import estimate
    from memctl.ops.context import find_memory, read_context

    info = await find_memory(store, where)
    found = read_context(store, info.key, count or estimate, everything=everything)
    async with aclosing(found) as messages:
        async for message in messages:
            yield message
    if failure := store.left_out.failures.get(info.key):
        raise DamagedMemory(store.label, info.key, failure)


async def examine(
    store: Store | str | Location,
    where: Selection = EVERYTHING,
    *,
    limits: Limits | None = None,
    quick: bool = False,
    progress: Progress | None = None,
    must_exist: bool = False,
    observer: Observer | None = None,
) -> Diagnosis:
    """Return what ``memctl doctor`` finds in the selected memories, which are examined whole.

    ``limits`` says which results of tools are large.  ``quick`` does not compare the indexes of a
    SQLite file with its tables.  A named store is opened and closed.  ``observer`` gets warnings
    and the progress.

    Raises:
        NotFound: with ``must_exist``, ``where`` names a memory that the store does not have.
        MemctlError: as ``Store.read``.
    """
    from memctl.ops.doctor.check import Limits, check
    from memctl.ops.names import refuse_absent_in

    watcher = _watcher(observer, progress)
    async with _entered(store, watcher) as there:
        with watcher.progress("examining") as watching:
            found = await check(there, where, limits or Limits(), watching, quick=quick)
        if must_exist:
            await refuse_absent_in(where, found.seen, there)
        return found


async def search(
    stores: Iterable[str | Location],
    query: str,
    where: Selection = EVERYTHING,
    *,
    by: str = "words",
    top: int = 10,
    around: int = 0,
    embedder: Embedder | None = None,
    keep: bool = True,
    progress: Progress | None = None,
    observer: Observer | None = None,
) -> SearchReport:
    """Find the selected messages that answer a query best, as ``memctl search`` does.

    ``stores`` are URLs, paths or locations.  A store with a current index is not opened.  ``by`` is
    ``words``, ``meaning``, ``both`` or ``service``.  ``top`` is the maximum number of messages
    found, ``around`` the number of messages to show before and after each.  ``embedder`` is an open
    embedder for searches by meaning.  Without ``keep``, the index is removed after the search.
    ``observer`` gets the progress, and limits the wait for an answer of a store.

    Raises:
        UsageError: the query has no words to search for, or memctl does not know the form of a URL.
        MemctlError: as ``Store.read``; or the index cannot be written.
    """
    from memctl.ops import search as operation
    from memctl.ops.index import Target

    watcher = _watcher(observer, progress)
    targets = [Target.observed(place, watcher) for place in map(_located, stores)]
    options = operation.SearchOptions(operation.By(by), top, around, keep)
    with watcher.progress("indexing") as watching:
        return await operation.search(targets, query, where, options, watching, embedder)


async def compare(
    left: Store | str | Location,
    right: Store | str | Location,
    where: Selection = EVERYTHING,
    *,
    progress: Progress | None = None,
    must_exist: bool = False,
    observer: Observer | None = None,
) -> CompareReport:
    """Compare the selected memories of two stores, as ``memctl verify`` does.

    A comparison covers ids, order, marks, content, summaries and expiry.  A side that is a URL, a
    path or a location is opened and closed by ``compare``.  ``observer`` gets warnings and the
    progress.

    Raises:
        NotFound: with ``must_exist``, ``where`` names a memory that neither side has.
        MemctlError: as ``Store.read``.
    """
    from memctl.ops.copy import compare as operation
    from memctl.ops.copy.missing_summaries import missing_summaries
    from memctl.ops.names import refuse_absent_in
    from memctl.ops.report import count_all

    watcher = _watcher(observer, progress)
    async with _entered(left, watcher) as one, _entered(right, watcher) as other:
        total: Total | None = None
        with watcher.progress("comparing", lambda: total) as watching:
            if one.dialect.name == other.dialect.name:  # different dialects join or split messages
                total = await count_all(one, where, watching)
            found = await operation.compare(one, other, where, progress=watching)
            found.warnings += [
                missing.warning(side)
                for side in (one, other)
                if (missing := await missing_summaries(side, where))
            ]
        for warning in found.warnings:
            watcher.warn(warning)
        found.failures += (one.left_out.failures | other.left_out.failures).items()
        if must_exist:
            compared = found.same + len(found.differences)
            await refuse_absent_in(where, compared, one, other, observer=watcher)
        return found


def _watcher(observer: Observer | None, progress: Progress | None) -> Observer:
    from memctl.ops.observer import Unobserved

    return observer or Unobserved(progress)


def _entered(
    side: Store | str | Location, observer: Observer
) -> AbstractAsyncContextManager[Store]:
    """Return a context manager that opens a named store, and leaves an open store open."""
    from memctl.ops.observer import opened

    place = _place(side)
    return nullcontext(place) if isinstance(place, Store) else opened(make_store(place), observer)


async def copy(
    source: Store | str | Location,
    target: Store | str | Location,
    where: Selection = EVERYTHING,
    *,
    options: CopyOptions | None = None,
    run: RunOptions | None = None,
    transfer: Transfer | None = None,
    embedder: Embedder | None = None,
    verify: bool = True,
    follow: float | None = None,
    stop: Stop | None = None,
    report: CopyReport | None = None,
    record: Run | None = None,
) -> Copied:
    """Copy the selected memories, as ``memctl migrate`` does; a second copy adds only new messages.

    ``source`` and ``target`` are names (URLs, paths or locations) or open stores.  The copy opens a
    named store, and opens the store again after a lost connection.  ``transfer`` sets the number of
    retries, the longest wait for an answer of a store, and the maximum rate.  With an open store,
    the copy is not retried, and the store stays open.  If the target is an open store, it must have
    been opened with ``create``; it stays locked against other runs until it is closed.
    ``embedder`` makes missing vectors of facts; ``make_embedder`` returns an embedder.

    Of another framework's conversations, the copy has what the framework reads; notes keep the
    rest, unless ``options`` has ``all_messages``.

    ``run`` has what all operations that change a store share.  A dry run needs a named target.  The
    holds of ``run`` say which memories of the target ``OnConflict.REPLACE`` leaves alone.

    ``verify`` compares both sides afterwards by fresh reads.  ``follow`` is a number of seconds:
    the copy repeats at this interval until ``stop.ask()`` is called, and copies what agents delete
    and change, too, of memories that nobody else has changed in the target.
    ``report`` is filled in, even if an error ends the copy.  ``record`` is the entry of the run in
    ``memctl history``.

    Raises:
        UsageError: source and target are the same, or options do not fit together.
        Loss: the target has no place for some data, and ``lossy`` is not set; or facts need
            vectors, and no embedder is given; or more messages than ``limit`` would be removed.
            Nothing was written.
        Busy: another run writes to the target.
        Different: both sides differ after the copy.
        MemctlError: as ``Store.read`` and ``Store.write``.
    """
    from memctl.ops.copy.copy import CopyOptions
    from memctl.ops.copy.migration import Migration, refuse_to_follow
    from memctl.ops.recording import Recording, note_unrecorded
    from memctl.ops.report import CopyReport
    from memctl.ops.retry import Transfer
    from memctl.ops.stop import Stop

    origin, destination = _place(source), _place(target)
    options, run = options or CopyOptions(), _options(run)
    if options.holds is not None:
        raise UsageError("the options of the copy have holds", "put them into the RunOptions")
    if follow is not None:
        limited = options.limit is not None
        refuse_to_follow(*(where, options.on_conflict), dry_run=run.dry_run, limited=limited)
    recording = None
    if run.backup:
        at = destination.location if isinstance(destination, Store) else destination
        kept = record or _record("migrate", at)
        recording = Recording(kept, run.keep, follows=follow is not None)
    report = report or CopyReport()
    if embedder is not None:
        report.embedding.embedder = embedder
    migration = Migration(
        *(where, structs.replace(options, holds=run.holds), recording),
        source=origin,
        target=destination,
        transfer=transfer or Transfer(),
        dry_run=run.dry_run,
        must_exist=run.must_exist,
        observer=run.observer,
        report=report,
        stop=stop or Stop(),
    )
    await migration.run(verify=verify, interval=follow)
    stdout = isinstance(destination, Location) and destination.kind == "stdio"
    if record and report.memories.written and not (recording or run.dry_run or stdout):
        note_unrecorded(record, run.observer.warn)
    return _copied(report, migration.id)


def _copied(report: CopyReport, run: str | None = None) -> Copied:
    memories, messages = report.memories, report.messages
    counts = memories.written, messages.written, memories.unchanged
    return Copied(*counts, report.failures, report.warnings, run, report.verified)


async def restore_checkpoints(
    archive: str | Location,
    store: str | Location,
    where: Selection = EVERYTHING,
    *,
    run: RunOptions | None = None,
    stop: Stop | None = None,
    report: CopyReport | None = None,
) -> Copied:
    """Put back what a policy has pruned, checkpoints or memory files, as ``memctl import`` does.

    ``archive`` is what the policy wrote, ``store`` the database that the rows came from.  Missing
    rows come back, and none is replaced.  ``where`` selects by users and sessions.  ``memories`` of
    the result counts threads or folders, ``messages`` checkpoints or files.  Of ``run``, the dry
    run, the observer and the record apply.  ``report`` is filled in, even if an error ends it.

    Raises:
        UsageError: the rows are those of another database, or the store has nothing to prune.
        BadData: the archive is damaged.
        Interrupted: ``stop`` was asked for; the archive can be put back again.
        MemctlError: as ``Store.lock``; or the database refuses a row.
    """
    from memctl.ops.report import CopyReport
    from memctl.ops.stop import Stop
    from memctl.ops.undo.put_back import PutBackRun

    options, target = _options(run), _located(store)
    work = PutBackRun(
        *(_located(archive), where, (options.record or _record)("import", target)),
        dry_run=options.dry_run,
        stop=stop or Stop(),
        report=report or CopyReport(noun="checkpoint"),
    )
    await work.execute(target, options.observer)
    return _copied(work.report)


def _options(run: RunOptions | None) -> RunOptions:
    from memctl.ops.change.change import RunOptions

    return run or RunOptions()


def _located(place: str | Location) -> Location:
    return parse(place) if isinstance(place, str) else place


def _place(side: Store | str | Location) -> Store | Location:
    return side if isinstance(side, Store) else _located(side)


async def export(
    source: Store | str | Location | Mapping[str, str | Location],
    output: str | Path | BinaryIO,
    where: Selection = EVERYTHING,
    *,
    shape: Shape | None = None,
    options: ExportOptions | None = None,
    progress: Progress | None = None,
    observer: Observer | None = None,
    report: ExportReport | None = None,
) -> ExportReport:
    """Write the selected memories to a file, a folder or a stream, as ``memctl export`` does.

    The output is locked meanwhile, and appears only when it is complete.  Without a ``shape``, the
    extension of the output sets the form.  If the extension is unknown, a single memory becomes a
    state_dict, and several become an archive.  Several stores, each under a name, fit in a page of
    HTML or a ZIP file, and the page shows the names.  In the report, ``copied`` has the counts and
    the failed memories, and ``left_out`` has the damaged memories.  A given ``report`` is filled
    in, even if an error ends the export.

    Raises:
        UsageError: the output exists, or cannot be written in this form.
        BadData: all memories are damaged; nothing was written.
        Busy: another run writes to the output.
        MemctlError: as ``Store.read``.
    """
    from memctl.ops.export.collection import Collection
    from memctl.ops.export.destination import STDOUT
    from memctl.ops.export.run import Export, ExportOptions, ExportReport

    file, stream = STDOUT, None
    if isinstance(output, (str, Path)):
        file = os.fspath(output)
    else:
        stream = output
    given = file, where, shape, options or ExportOptions()
    told: dict[str, Any] = {
        "stream": stream,
        "observer": _watcher(observer, progress),
        "report": report or ExportReport(),
    }
    if isinstance(source, Mapping):
        stores = {name: _located(place) for name, place in source.items()}
        first = next(iter(stores.values()))
        exporting: Export = Collection(first, *given, **told, stores=stores)
    else:
        exporting = Export(_place(source), *given, **told)
    await exporting.prepare()
    exporting.report.begun = True
    with exporting.place() as place:
        await exporting.write(place)
    return exporting.report


async def delete(
    store: Store | str | Location,
    where: Selection,
    *,
    pairs: ToolPairPolicy = ToolPairPolicy.SPLIT,
    warn_parted: bool = False,
    run: RunOptions | None = None,
) -> Changed:
    """Delete the selected messages; a memory is changed completely or not at all.

    An open store must be open with ``change``; a named store is opened and closed.  ``pairs``
    decides about a tool call if only the call or only its result is selected; ``warn_parted`` warns
    the observer of such calls, which takes another read.  Held memories are left alone, and are
    failures with the code ``held``.  ``run`` has what all operations that change a store share: a
    dry run, holds besides those of ``memctl hold``, whether the change can be undone, an observer,
    a limit, and functions that get the run while it goes on.

    Raises:
        Busy: another run writes to the store.
        BadData: the record of holds is damaged.
        MemctlError: as ``Store.read`` and ``Store.edit``; or the disk has no room for the backup.
    """
    from memctl.ops.change.delete import DeleteRun

    place, record, options = _begun("delete", store, run)
    about = record, where, pairs
    return await _change(place, DeleteRun(*about, options=options, warn_parted=warn_parted))


async def mark(
    store: Store | str | Location,
    where: Selection,
    *,
    add: str | None = None,
    remove: str | None = None,
    run: RunOptions | None = None,
) -> Changed:
    """Add a mark to the selected messages, remove a mark, or replace ``remove`` by ``add``.

    A message without the mark ``remove`` stays unchanged by a replacement.  ``store`` and ``run``
    are as in ``delete``.

    Raises:
        UsageError: neither ``add`` nor ``remove`` is given.
        MemctlError: as ``delete``.
    """
    if add is None and remove is None:
        raise UsageError("no mark is named", "name one to add, to remove, or both")
    from memctl.ops.change.change import MarkRun
    from memctl.ops.change.marks import MarkChange

    place, record, options = _begun("mark", store, run)
    return await _change(place, MarkRun(record, where, MarkChange(add, remove), options=options))


async def rename(
    store: Store | str | Location,
    *,
    user: tuple[str, str] | None = None,
    session: tuple[str, str] | None = None,
    project: tuple[str, str] | None = None,
    merge: bool = False,
    blobs: str | Path | None = None,
    run: RunOptions | None = None,
) -> Changed:
    """Give a user or a session another name: ``user`` and ``session`` are the old and the new one.

    ``project`` are the old and the new path of a folder, which sessions of coding agents follow.
    With ``merge``, the sessions become those of a user who exists.  ``blobs`` is the place of
    offloaded contents, which the user keeps.  ``store`` and ``run`` are as in ``delete``.

    Raises:
        UsageError: not one of them is named, or the store cannot do this.
        NotFound: there is no such user or session, or no session of the project.
        Conflict: the new name exists.
        Loss: a session is held by a hold that cannot follow, or in a project.
        MemctlError: as ``delete``.
    """
    from memctl.ops.offload.blobs import Blobs
    from memctl.ops.rename import names_of
    from memctl.ops.rename_project import renaming

    names = names_of(user, session, project, merge=merge)
    contents = None if blobs is None else Blobs(os.fspath(blobs))
    place, record, options = _begun("rename", store, run)
    return await _change(place, renaming(record, names, merge, contents, options=options))


async def _change(place: Store | Location, run: ChangeRun) -> Changed:
    await run.perform(place)
    return Changed(run.seen().memories, run.messages(), run.report.failures, run.id)


async def offload(
    store: Store | str | Location,
    to: str | Path,
    where: Selection = EVERYTHING,
    *,
    rule: Rule | None = None,
    run: RunOptions | None = None,
) -> Changed:
    """Move large contents of the selected messages to files in the folder or bucket ``to``.

    ``rule`` says what is large, and how much of a text stays: 64 kB and 1 kB without it.
    ``store`` and ``run`` are as in ``delete``.

    Raises:
        MemctlError: as ``delete``; or a file cannot be written.
    """
    from memctl.ops.offload.blobs import Blobs
    from memctl.ops.offload.run import OffloadRun
    from memctl.ops.offload.slim import Rule

    place, record, options = _begun("offload", store, run)
    offloading = OffloadRun(record, where, rule or Rule(), Blobs(str(to)), options=options)
    return await _change(place, offloading)


async def rehydrate(
    store: Store | str | Location,
    source: str | Path,
    where: Selection = EVERYTHING,
    *,
    run: RunOptions | None = None,
) -> Changed:
    """Put the contents in the folder or bucket ``source`` back into the selected messages.

    ``store`` and ``run`` are as in ``delete``.

    Raises:
        MemctlError: as ``delete``.
    """
    from memctl.ops.offload.blobs import Blobs
    from memctl.ops.offload.run import RehydrateRun

    place, record, options = _begun("rehydrate", store, run)
    blobs = Blobs(str(source))
    return await _change(place, RehydrateRun(record, where, blobs.get, options=options))


async def repair(
    store: Store | str | Location,
    where: Selection = EVERYTHING,
    *,
    codes: Iterable[str] | None = None,
    limits: Limits | None = None,
    limit: tuple[float, bool] | None = None,
    run: RunOptions | None = None,
) -> Repaired:
    """Repair what ``memctl doctor --repair`` repairs in the selected memories.

    ``codes`` are those of the findings to repair; None repairs all.  ``limit`` is that of ``run``,
    if given.  ``limits`` is as in ``examine``, ``store`` and ``run`` are as in ``delete``.

    Raises:
        Loss: more messages than ``limit`` would be deleted; nothing was changed.
        MemctlError: as ``delete``.
    """
    from memctl.ops.doctor.check import Limits
    from memctl.ops.doctor.findings import KINDS
    from memctl.ops.doctor.repair import RepairRun

    place, record, options = _begun("doctor", store, run)
    if limit is not None:
        options = structs.replace(options, limit=limit)
    wanted = frozenset(KINDS if codes is None else codes)
    repairing = RepairRun(record, where, wanted, limits or Limits(), options=options)
    await repairing.perform(place)
    return Repaired(
        repairing.repaired(), repairing.report.failures, repairing.id, repairing.quarantine
    )


def history(store: str | Location | None = None, *, limit: int | None = None) -> RunList:
    """Return the newest runs that changed a store, or any store, as ``memctl history`` lists them.

    Raises:
        Unavailable: the folder of the runs cannot be read.
    """
    from memctl.ops.history import list_runs

    return list_runs(None if store is None else _located(store), limit)


async def undo(
    id: str | None = None,
    *,
    store: str | Location | None = None,
    where: Selection = EVERYTHING,
    run: RunOptions | None = None,
) -> Changed:
    """Undo a run: restore messages, positions, marks, summaries and expiries.

    ``id`` is the id of a run or a job, or its start or end; None undoes the last run that can be
    undone, of ``store`` if that is given.  Of a job, all parts are undone.  ``store`` is needed if
    the run was on a store with a password or an alias, or if the store has moved.  ``where``
    selects memories, and ``run`` is as in ``delete``.  The result has the id of the undo; its
    failures are memories that have changed since, and were left alone.

    Raises:
        NotFound: there is no such run.
        UsageError: no run is named, and a newer run cannot be undone.
        Busy: the run is still going on, or another run writes to the store.
        MemctlError: as ``delete``.
    """
    from memctl.journal.runs import Job, Runs, new_job
    from memctl.ops.same_store import is_on, recorded_location
    from memctl.ops.undo.reversal import find_run, refuse_older, reversing, runs_to_undo

    runs, options = Runs(), _options(run)
    at = None if store is None else _located(store)
    found = find_run(runs, id, at, options.locate)
    undone_runs = runs_to_undo(runs, found)
    if id is None and undone_runs:
        refuse_older(runs, undone_runs[0], at, options.locate)
    job = new_job() if isinstance(found, Job) else ""
    total = Changed(0, 0)
    for undone in undone_runs:
        place = at or recorded_location(undone, options.locate)
        elsewhere = at is not None and not is_on(undone, at, options.locate)
        about = runs, undone, place, partial(options.record or _record, "undo"), where, options
        named = id is not None and elsewhere
        with reversing(*about, named=named, elsewhere=elsewhere, job=job) as (undoing, location):
            changed = await _change(location, undoing)
        total = Changed(
            total.memories + changed.memories,
            total.messages + changed.messages,
            total.failures + changed.failures,
            changed.run or total.run,
        )
    return total


def add_hold(hold: Hold) -> RecordedHold:
    """Record a hold: its memories stay until it is removed, or its last day is over.

    Raises:
        UsageError: the hold names no user, session or store, or has no reason.
        BadData: the record of holds is damaged.
        Unavailable: the record cannot be written.
    """
    from memctl.journal.holds import HoldRecord

    if (hold.user, hold.session, hold.store) == (None, None, None) or not hold.reason.strip():
        raise UsageError("the hold names nothing, or has no reason", "name a user and a reason")
    if hold.store is not None and not hold.place:
        from memctl.journal.runs import describe_run

        place = parse(hold.store)
        hold = replace(hold, place=describe_run("hold", hold.store, place).argument)
    return HoldRecord().add(hold)


def list_holds() -> list[RecordedHold]:
    """Return all recorded holds, those that were removed, too.

    Raises:
        BadData, Unavailable: as ``add_hold``.
    """
    from memctl.journal.holds import HoldRecord

    return HoldRecord().all()


def remove_hold(id: str, reason: str = "") -> RecordedHold:
    """Record that the hold ``id`` is removed; its memories can be deleted from then on.

    Raises:
        NotFound: no hold in force has this id.
        BadData, Unavailable: as ``add_hold``.
    """
    from memctl.journal.holds import HoldRecord

    return HoldRecord().remove(id, reason)


async def update_index(
    store: str | Location,
    *,
    embedder: Embedder | None = None,
    checksum: bool = False,
    progress: Progress | None = None,
    observer: Observer | None = None,
) -> IndexUse:
    """Bring the index of a store up to date, so that the next search is quick.

    ``embedder`` makes vectors for searches by meaning.  ``checksum`` compares the texts of all
    messages to find changes.  ``observer`` is as in ``search``.

    Raises:
        MemctlError: as ``Store.read``; or the index cannot be written.
    """
    from memctl.ops.index import Target, update

    watcher = _watcher(observer, progress)
    async with embedder or nullcontext():
        with watcher.progress("indexing") as watching:
            target = Target.observed(_located(store), watcher)
            return await update(target, watching, embedder, checksum=checksum)


def list_indexes() -> list[IndexInfo]:
    """Return the indexes in the cache folder."""
    from memctl.index import folder

    return folder.indexes()


def remove_index(index: IndexInfo) -> None:
    """Remove an index; the next search of its store makes a new one."""
    from memctl.index import folder

    folder.remove(index)


async def retain(
    policies: Iterable[Policy],
    *,
    locate: Callable[[str], Location] = parse,
    summarizers: Mapping[str, Summarizer] | None = None,
    run: RunOptions | None = None,
    stop: Stop | None = None,
) -> RetainReport:
    """Carry out policies of retention one after the other, as ``memctl retain`` does.

    Each policy writes what it selects to a new archive, reads the archive back, and only then
    changes the store.  A failed policy does not stop the others: its row has the error.  ``locate``
    returns the location of the store or of the archive of a policy.  ``summarizers`` are those of
    policies that compress, by name.  Of ``run``, the dry run, the observer, the holds, the
    records to keep and ``locate`` apply.

    Raises:
        UsageError: a policy is not possible; or memctl does not know the form of a URL.
        Busy: another run of retention goes on.
        Interrupted: ``stop`` was asked for; no memory is half changed.
    """
    from memctl.ops.retain.actions import Surroundings
    from memctl.ops.retain.run import PolicyTask, Retention
    from memctl.ops.stop import Stop

    options, tasks = _options(run), []
    for policy in policies:
        location = locate(policy.store)
        around = Surroundings(
            options,
            partial(_record, "retain", location),
            stop or Stop(),
            (summarizers or {}).get(policy.summarizer),
        )
        tasks.append(PolicyTask(policy, location, around))
    retention = Retention(tasks, lambda _, name: locate(name))
    retention.check()
    await (retention.plan() if options.dry_run else retention.execute())
    return retention.report(dry_run=options.dry_run)


async def prune_blobs(
    stores: Iterable[str | Location],
    blobs: str,
    *,
    grace: timedelta = timedelta(7),
    run: RunOptions | None = None,
) -> dict[str, int]:
    """Remove the offloaded contents to which nothing refers; return their sizes in bytes, by name.

    ``stores`` are all stores whose messages may refer to the contents.  Contents that an undo of a
    run on these stores would need stay, too.  ``blobs`` is the folder or the URL of the contents.
    Contents younger than ``grace`` stay.  Of ``run``, the dry run and the observer apply.

    Raises:
        Busy: another run writes to a store.
        MemctlError: a store cannot be read as a whole; or a content cannot be removed.
    """
    from memctl.ops.offload.blobs import Blobs
    from memctl.ops.offload.prune import Referrers

    options, found = _options(run), dict[str, int]()
    locations, place = list(map(_located, stores)), Blobs(blobs)
    before = (datetime.now() - grace).timestamp()
    referrers = Referrers(options)
    if options.dry_run:
        await referrers.find_unreferred(locations, place, before, found)
    else:
        await referrers.remove_unreferred(locations, place, place.sizes(before), found)
    return found


async def erase(
    store: Store,
    user: str,
    session: str | None = None,
    *,
    receipt: Path | None = None,
    run: RunOptions | None = None,
) -> Erased:
    """Erase all data of a user or of one session, in the store and in the undo runs on it.

    The store must be open with ``change``.  An erase cannot be undone.  ``receipt`` is the new file
    for the receipt; without it the receipt goes to the state folder.  Of ``run``, the dry run, the
    observer, the holds, ``must_exist`` and ``locate`` apply.

    Raises:
        UsageError: the file of the receipt exists.
        NotFound: with ``must_exist``, there are no such data in the store or in its undo runs.
        Loss: with ``must_exist``, all such data are held.
        Busy: another run writes to the store.
        MemctlError: as ``Store.erase``.
    """
    from memctl.ops.data_subject import Subject
    from memctl.ops.erase import Erasure
    from memctl.ops.receipt import Receipt

    subject, options, new = Subject(user, session), _options(run), None
    if not options.dry_run:
        new = Receipt.begin(None if receipt is None else str(receipt), subject)
    erasure = Erasure(subject, [(store, _record("erase", store.location))], options, new)
    await (erasure.plan() if options.dry_run else erasure.execute())
    [erasing] = erasure.targets
    if erasing.error is not None:
        raise erasing.error
    report = erasing.report
    found = report.found if options.dry_run else report.erased
    return Erased(
        *(len(found), sum(found.values()), report.runs.removed + report.runs.rewritten),
        failures=report.failures,
        receipt=None if erasure.receipt is None else Path(erasure.receipt.file.text),
    )


async def redact(
    store: Store,
    *texts: str,
    regex: str | None = None,
    secrets: bool = False,
    consistent: bool = False,
    embedder: Embedder | None = None,
    where: Selection = EVERYTHING,
    receipt: Path | None = None,
    run: RunOptions | None = None,
) -> Redacted:
    """Take values out of a store, and out of the undo runs on it: texts, matches, or secrets.

    The store must be open with ``change``, for a dry run with any mode.  A redaction cannot be
    undone.  ``receipt`` is the new file for the receipt; without it the receipt goes to the state
    folder.  With ``consistent``, the replacements are numbered.  ``embedder`` makes the vectors of
    facts whose text changes; without it, facts with vectors stay.  ``where`` selects memories by
    users and sessions; values that stay outside of their messages are in ``Redacted.left``.

    Raises:
        UsageError: nothing says what to find, memctl does not rewrite the texts of the store, or
            the file of the receipt exists.
        NotFound: the store has no memory of the selected users and sessions.
        Loss: a selected memory is held.
        Busy: another run writes to the store.
        MemctlError: as ``Store.rewrite_texts``.
    """
    from memctl.ops.redact import rules
    from memctl.ops.redact.receipt import Receipt
    from memctl.ops.redact.redactor import Redactor
    from memctl.ops.redact.run import Redaction
    from memctl.ops.redact.vectors import FactVectors

    found = [*(rules.secrets() if secrets else ()), *([rules.expression(regex)] if regex else ())]
    if not (found or texts) or "" in texts:
        raise UsageError("nothing says what to find", "name texts, a regex, or secrets=True")
    options = _options(run)
    vectors = None if embedder is None else FactVectors(embedder)
    redactor = Redactor(rules.Rules(found, texts), consistent=consistent, vectors=vectors)
    stores = [(store, _record("redact", store.location))]
    redaction = Redaction(redactor, stores, options, where=where)
    await redaction.scan()
    if redaction.hits and not options.dry_run:
        await redaction.execute(Receipt.begin(None if receipt is None else str(receipt)))
    [target] = redaction.targets
    if target.error is not None:
        raise target.error
    return Redacted(
        dict(target.found.kinds),
        [(row.place, row.why) for row in target.found.left],
        receipt=None if redaction.receipt is None else Path(redaction.receipt.file.text),
    )


async def compress(
    store: Store | str | Location,
    where: Selection = EVERYTHING,
    *,
    options: CompressOptions | None = None,
    summarizer: Summarizer | None = None,
    run: RunOptions | None = None,
) -> Compressed:
    """Summarize old messages of the selected memories; the default summarizer is ``extractive``.

    ``make_summarizer`` returns a summarizer that uses a model or a program.  Without ``options``,
    the summary goes to the place that the store has for summaries, else into a message.  Each
    memory is committed as soon as its summary is complete.  ``store`` and ``run`` are as in
    ``delete``.  A held memory loses no message.

    Raises:
        Unavailable: the model or the store is unreachable; each memory is either compressed or
            unchanged.
        MemctlError: as ``delete``.
    """
    from memctl.ops.compress.plan import CompressOptions, mode_of
    from memctl.ops.compress.run import CompressRun
    from memctl.summarizers.registry import EXTRACTIVE, make_summarizer

    place, record, given = _begun("compress", store, run)
    if options is None:
        there = place if isinstance(place, Store) else make_store(await located(place))
        options = CompressOptions(mode_of(there, None))
    summarizer = summarizer or make_summarizer(EXTRACTIVE)
    compressing = CompressRun(record, where, options, summarizer, options=given)
    await compressing.perform(place)
    done, report = compressing.report.done, compressing.compressed
    return Compressed(
        *(done.memories, report.messages, report.before, report.after),
        cost=report.cost,
        failures=compressing.report.failures,
        run=compressing.id,
    )


def _begun(
    command: str, store: Store | str | Location, run: RunOptions | None
) -> tuple[Store | Location, Run, RunOptions]:
    """Return the place of a store, the record of a new run of a command on it, and its options."""
    place, options = _place(store), _options(run)
    at = place.location if isinstance(place, Store) else place
    return place, (options.record or _record)(command, at), options


def _record(command: str, location: Location) -> Run:
    from memctl.journal.runs import describe_run

    kept = {name: text for name, text in location.options.items() if name in URL_OPTIONS - {"path"}}
    if location.path != Path():
        address = f"sqlite:///{location.path}" if kept else f"{location.prefix}{location.path}"
    else:
        mark = "&" if "?" in location.url else "?"
        address = location.url + (mark + urlencode(kept) if kept else "")
    return describe_run(command, address, location)
