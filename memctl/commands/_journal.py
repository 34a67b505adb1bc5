"""The record of a run that changes a store, and the holds that the run heeds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from msgspec.structs import replace

from memctl.commands._context import Run
from memctl.commands._run import files_of
from memctl.errors import UsageError
from memctl.holds import Hold
from memctl.journal import runs
from memctl.journal.holds import HoldRecord
from memctl.location import Location
from memctl.ops import same_store as places
from memctl.ops.change.change import RunOptions
from memctl.ops.holds import HoldSource
from memctl.ops.observer import Observer
from memctl.registry import refuse_missing
from memctl.stores.archive.rotation import lasting
from memctl.text.values import deletion_limit


def run_options(
    run: Run,
    store: str = "",
    *,
    backup: bool = True,
    dry_run: bool,
    max_delete: str | None = None,
    observer: Observer | None = None,
) -> RunOptions:
    """Return the options of a run that changes a store, and reports to ``run.output``.

    ``store`` is the name, URL or path of the store that the user wrote, and ``max_delete`` the
    limit.  With ``observer``, it reports to this observer.

    Raises:
        UsageError: ``max_delete`` is not a limit.
    """
    keep, observer = run.configuration().undo, observer or run.output
    return RunOptions(
        *(backup, dry_run, keep, True, observer, hold_source(run, observer), run.address),
        record=lambda command, location: record(run, command, store, location),
        limit=deletion_limit(max_delete),
        limit_name=f"--max-delete {max_delete}",
    )


def hold_source(run: Run, observer: Observer | None = None) -> HoldSource:
    """Return the source of all holds: those of the configuration, and those in the state folder.

    The configuration is read anew each time, as the state folder is.  ``observer`` gets notes, or
    ``run.output``.
    """
    tables, state = ([], "") if run.orders is None else (run.orders.holds, run.orders.state)

    def configured() -> list[Hold]:
        from memctl import config  # only needed by what deletes
        from memctl.config.holds import read_holds

        found = config.load(run.config_file, config.environment())
        return read_holds(replace(found, holds=[*found.holds, *tables]))

    note = (observer or run.output).note
    return HoldSource(configured, run.address, note, HoldRecord(identity=state))


def record(run: Run, command: str, argument: str, location: Location) -> runs.Run:
    """Return the record of a new run of a command on a store at ``location``.

    ``argument`` is the name, URL or path of the store that the user wrote.
    """
    config, name = run.configuration(), run.named(argument)
    aliases = {*config.stores}
    if name not in aliases and config.alias(name) is not None:  # one file of a rotation
        name = lasting(name, location)
        aliases.add(name)
    found = runs.describe_run(command, name, location, aliases)
    found.job, found.shard = run.job, str(run.shard or "")
    found.stores = 1 if run.shard is None else run.shard.stores
    found.state = run.orders.state if run.orders is not None else ""
    return found


def recorded_stores(
    run: Run,
    command: str,
    stores: Iterable[str],
    archives: Collection[str],
    narrowed: Callable[[Location], Location] = lambda place: place,
) -> list[tuple[Location, runs.Run]]:
    """Return stores and archives, each once, even if named in several ways, with a record each.

    The name of a rotation stands for all its files.  ``narrowed`` adds a selection to a location.

    Raises:
        UsageError: a store named by ``--archives`` is not an archive.
        NotFound: an archive named by ``--archives`` does not exist.
    """
    found: dict[tuple[str, str], tuple[Location, runs.Run]] = {}
    names = [
        (*one, name in archives) for name in (*stores, *archives) for one in files_of(run, name)
    ]
    for name, place, is_archive in names:
        location = narrowed(place)
        if is_archive and location.path.name and location.path.is_dir():
            raise UsageError(
                f"{location.label} is a folder, not an archive", "name the archives in it"
            )
        if is_archive and location.kind != "archive":
            raise UsageError(f"{location.label} is not an archive", "name it without --archives")
        if is_archive:
            refuse_missing(location)
        key = location.label, str(location.options)
        found.setdefault(key, (location, record(run, command, name, location)))
    return list(found.values())


def runs_on(run: Run, location: Location) -> list[runs.Run]:
    """Return the kept runs that changed the store at ``location``, newest first."""
    return places.runs_at(location, run.address)
