"""``--shards N``: one command as parts, which an engine runs, with one report and one exit code."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from memctl.commands._context import Run, this_run
from memctl.commands._merged import in_job, merged_report, summed_up
from memctl.commands._run import wait_for
from memctl.commands._whole import LIMITS, PLANNED, JobParts, Whole
from memctl.errors import MemctlError, UsageError
from memctl.journal.runs import Runs, new_job
from memctl.location import Location, redact_value, visible
from memctl.model import OnConflict
from memctl.numbers import count, duration
from memctl.ops.export.destination import (
    FOLDERS,
    Shape,
    is_folder,
    output_of,
    refuse_options,
    refuse_taken,
    shape_of,
)
from memctl.ops.names import refuse_absent
from memctl.ops.stop import Stop
from memctl.output.terminal import Output
from memctl.parts.divide import Driver
from memctl.parts.limits import Limits
from memctl.parts.local import LocalEngine, processors
from memctl.parts.merge import merge
from memctl.parts.part import Engine, Part, PartResult
from memctl.selection import Selection
from memctl.shard import Shard
from memctl.version import __version__

if TYPE_CHECKING:
    from memctl.output.progress import Parts

_LEFT_OUT = LIMITS | {"shard", "shards", "on", "workers", "format_", "json", "yes", "pager"}
"""The parameters that parts do not get as they are."""
_TIMES = frozenset(("since", "until", "newer_than", "older_than"))
"""The parameters that select by time; parts get the moments, which are the same for all."""


class _Divided(NamedTuple):
    """A command that can run in parts."""

    doing: str
    """What it does, for the progress."""
    stores: tuple[str, ...]
    """The parameters that name stores."""
    written: str = ""
    """The parameter that names the store that is written; empty if none is."""


_DIVIDED = {
    "inspect": _Divided("reading", ("store",)),
    "export": _Divided("exporting", ("store",)),
    "import": _Divided("importing", ("file", "store"), "store"),
    "migrate": _Divided("migrating", ("source", "target"), "target"),
    "verify": _Divided("comparing", ("left", "right")),
    "doctor": _Divided("examining", ("store",)),
    "delete": _Divided("deleting", ("store",), "store"),
    "compress": _Divided("compressing", ("store",), "store"),
    "mark add": _Divided("marking", ("store",), "store"),
    "mark remove": _Divided("marking", ("store",), "store"),
    "mark rename": _Divided("marking", ("store",), "store"),
    "undo": _Divided("undoing", (), "store"),
}


def run_parts(
    context: typer.Context,
    shards: int,
    on: str,
    workers: int | None,
    where: Selection | None,
    parts_of: Callable[[Run, Mapping[str, Any], int], JobParts] | None = None,
) -> None:
    """Run a command in ``shards`` parts, and report what all of them did.

    ``on`` names the engine, which runs at most ``workers`` parts at the same time.  ``where`` is
    the selection of a command that has one.  ``parts_of`` returns the parts of an undo.

    Raises:
        UsageError: the command cannot run in parts as it is written; nothing was started.
        MemctlError: as ``Driver.run``.
    """
    run = this_run(context)
    command = " ".join(_words(context))
    divided = _DIVIDED[command]
    if command == "doctor" and context.params["repair"]:
        divided = _Divided("repairing", ("store",), "store")
    numbers = [Shard(number, shards) for number in range(shards)]
    arguments = tuple(_arguments(context))
    texts = {name: context.params[name] for name in divided.stores if context.params[name]}
    left_out = _LEFT_OUT
    more: dict[str, Any] = {}
    if parts_of is not None:
        undo = parts_of(run, context.params, shards)
        numbers, arguments, texts = undo.shards, (undo.job,), {"store": undo.store}
        left_out = left_out if undo.named else left_out | {"store"}
        more = {**undo.empty, "undoes": undo.job}
    members = {name: run.members(text) for name, text in texts.items()}
    locations = {name: [*map(run.address, stores)] for name, stores in members.items()}
    whole = Whole(run, command, context.params)
    _refuse(context, divided, locations, shards)
    if on == "ray":
        _refuse_with_ray(context, run, texts, locations)
    if command == "export" and where is not None:
        _refuse_outputs(context.params, where, numbers)
    state = ""
    if divided.written:
        [first, *others] = locations[divided.written]
        run.store = texts[divided.written] if others else first.label
        run.job = run.job or new_job()
        state = Runs().identity()
    options = list(_options(context, run, where, left_out))
    if run.job:
        options.append(f"--job={run.job}")
    labels = {
        text: place.label
        for name, stores in members.items()
        for text, place in zip(stores, locations[name], strict=True)
    }
    fleets = _fleets(command, texts, members)
    driving = _Driving(context, run, command, numbers, on, workers, more, fleets)
    planned: dict[Shard, PartResult] = {}
    if whole.plans_first:
        line = CommandLine((*options, "--dry-run"), arguments, labels)
        data = driving.run("planning", line, whole, planned, tolerated=PLANNED)
        planned = driving.results
        if parts_of is None:
            _refuse_absent(context.params, where, data, chain(*locations.values()))
        report = run.output.report
        assert report is not None
        run.output.report = replace(report, table=lambda: None)
        if not whole.approve(data, run.store):
            data["dry_run"] = False
            run.output.report = report
            run.output.emit()
            return
    # A part of an export that is repeated may have ended just before its process was lost.
    again = ("--force",) if command == "export" else ()
    line = CommandLine(tuple(options), arguments, labels, state, again)
    data = driving.run(divided.doing, line, whole, planned)
    if parts_of is None:
        _refuse_absent(context.params, where, data, chain(*locations.values()))
    if data.get("dry_run"):
        whole.refuse_many(data)
    run.output.emit()


class _Fleets(NamedTuple):
    """The fleets among the stores of a run: their names in the report, and the stores of one."""

    names: dict[str, str]
    stores: tuple[str, ...]


def _fleets(
    command: str, texts: Mapping[str, str], members: Mapping[str, tuple[str, ...]]
) -> _Fleets:
    """Return the fleets among the stores ``texts``, whose stores are ``members``, by parameter."""
    keys = {
        "left": ("source",),
        "right": ("target",),
        "store": ("url", "source" if command == "export" else "target"),
    }
    fleets = {name: stores for name, stores in members.items() if stores != (texts[name],)}
    names = {key: texts[name] for name in fleets for key in keys.get(name, (name,))}
    return _Fleets(names, next(iter(fleets.values()), ()))


class _Driving:
    """Runs the parts of a command on an engine, to a report of the whole."""

    def __init__(
        self,
        context: typer.Context,
        run: Run,
        command: str,
        shards: list[Shard],
        on: str,
        workers: int | None,
        more: dict[str, Any],
        fleets: _Fleets,
    ) -> None:
        """``more`` has further keys of the report, those of a run without parts among them."""
        self.results: dict[Shard, PartResult] = {}
        self._context = context
        self._run = run
        self._command = command
        self._shards = shards
        self._on = on
        self._workers = workers
        self._more = more
        self._fleets = fleets

    def run(
        self,
        doing: str,
        line: CommandLine,
        whole: Whole,
        planned: dict[Shard, PartResult],
        tolerated: Collection[int] = (),
    ) -> dict[str, Any]:
        """Run all parts of a command line; return the data of the report, which the output gets.

        ``planned`` is as in ``Whole.limits``.  It is no error if all parts end with one of the exit
        codes ``tolerated``.

        Raises:
            MemctlError: as ``Driver.run``.
        """
        output, shards = self._run.output, self._shards
        stop = Stop()
        with output.dividing(doing, len(shards)) as progress:
            engine = _engine(self._on, self._workers, len(shards))
            line.limits = whole.limits(planned, engine.workers, shards)
            driver = Driver(engine, shards, line, PartsWatch(output, progress), stop)
            self.results = driver.results
            failed: MemctlError | None = None
            try:
                wait_for(_run(driver, engine), stop)
            except MemctlError as error:
                failed = error
            finally:
                about = self._command, driver, engine, self._more, self._fleets
                data = _report(self._context, self._run, *about)
        ended = [result.exit for result in driver.results.values()]
        if failed and (len(ended) < len(shards) or not set(ended) <= set(tolerated)):
            raise summed_up(failed, data)
        return data


async def _run(driver: Driver, engine: Engine) -> None:
    try:
        await driver.run()
    finally:
        await engine.close()


def _engine(on: str, workers: int | None, shards: int) -> Engine:
    """Return what runs the parts.

    Raises:
        MemctlError: as ``RayEngine``.
    """
    if on == "ray":
        from memctl.parts.ray import RayEngine

        return RayEngine(workers)
    return LocalEngine(max(1, min(workers or processors(), shards)))  # an undo may have no parts


@dataclass(slots=True)
class CommandLine:
    """The command line of each part: what the parts of a run do."""

    options: tuple[str, ...]
    """The words after ``memctl``, without ``--shard``."""
    arguments: tuple[str, ...]
    """The arguments of the command: the names of stores."""
    stores: dict[str, str]
    """The label of the location of each store, by the name that the user wrote."""
    state: str = ""
    """The identity of the state folder, which all parts must share; empty without changes."""
    again: tuple[str, ...] = ()
    """The words to add when a part is repeated."""
    limits: Limits = field(default_factory=Limits)
    """What limits the whole run."""
    _begun: set[Shard] = field(default_factory=set)

    def begin(self, shard: Shard) -> Part:
        """Return a part that starts now."""
        limits = self.limits.begin(shard)
        more = (*limits, *self.again) if shard in self._begun else limits
        self._begun.add(shard)
        words = (*self.options, *more, f"--shard={shard}", "--", *self.arguments)
        return Part(words, shard, __version__, self.stores, self.state)

    def end(self, result: PartResult) -> None:
        """Note how a part has ended."""
        self.limits.end(result)


class PartsWatch:
    """Tells how parts end."""

    def __init__(self, output: Output, progress: Parts) -> None:
        self._output = output
        self._progress = progress

    def ended(self, result: PartResult) -> None:
        """A part has ended and is not repeated."""
        self._progress.advance(messages=result.messages, failed=result.failed)
        self._output.detail(
            f"part {result.shard} ended with {result.exit} after {duration(result.seconds)} on "
            f"{result.host}: {count(result.messages, 'message')}",
            "part",
            shard=str(result.shard),
            exit=result.exit,
            attempts=result.attempts,
            messages=result.messages,
            seconds=result.seconds,
            host=result.host,
        )

    def repeated(self, result: PartResult, wait: float) -> None:
        """A part has ended and is repeated after ``wait`` seconds."""
        when = f"in {wait:.0f} s" if wait else "now"
        why, _ = result.reason
        self._output.note(f"part {result.shard} is repeated {when}: {why}")


def _words(context: Any) -> list[str]:
    """Return the words of a command, such as ``["mark", "add"]``."""
    words: list[str] = []
    while context.parent is not None:
        words.insert(0, context.info_name)
        context = context.parent
    return words


def _options(
    context: typer.Context, run: Run, where: Selection | None, left_out: Collection[str]
) -> Iterator[str]:
    """Yield the words after ``memctl`` of a part, without ``--shard`` and the arguments.

    The parameters ``left_out`` are left out.
    Defaults of the environment and of the configuration are included: a worker need not have them.
    """
    if run.config_file is not None:
        yield f"--config={run.config_file}"
    yield "--quiet"
    yield from _words(context)
    for parameter in context.command.params:
        if parameter.param_type_name != "option" or parameter.name in _TIMES:
            continue
        if parameter.name in ("json", "yes"):
            yield f"--{parameter.name}"
        elif parameter.name == "limit":
            limit = run.output.row_limit(context.params["limit"])
            yield from () if limit is None else _spelt(parameter, limit)
        elif parameter.name not in left_out and _is_set(context, parameter.name):
            yield from _spelt(parameter, context.params[parameter.name])
    if where is not None:
        for name, moment in (("since", where.since), ("until", where.until)):
            if moment is not None:
                yield f"--{name}={moment.astimezone().isoformat()}"


def _is_set(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def _spelt(option: Any, value: Any) -> Iterator[str]:
    """Yield the words that give an option a value."""
    name = next(name for name in option.opts if name.startswith("--"))
    if option.is_flag:
        yield name if value else option.secondary_opts[0]
        return
    for one in value if isinstance(value, list | tuple) else [value]:
        yield f"{name}={getattr(one, 'value', one)}"


def _arguments(context: typer.Context) -> Iterator[str]:
    """Yield the arguments of the command."""
    for parameter in context.command.params:
        if parameter.param_type_name == "argument":
            value = context.params[parameter.name]
            values = value if isinstance(value, list | tuple) else [value]
            yield from (str(one) for one in values if one is not None)


def _refuse(
    context: typer.Context,
    divided: _Divided,
    locations: Mapping[str, list[Location]],
    shards: int,
) -> None:
    """Refuse what cannot run in parts.

    Raises:
        UsageError: always in such a case.
    """
    given = context.params
    for option in ("follow", "rotate", "messages", "receipt"):
        if given.get(option):
            raise UsageError(
                f"--{option} cannot be combined with --shards", "leave one of them out"
            )
    for place in chain(*locations.values()):
        if place.kind == "stdio":
            raise UsageError("--shards needs named stores, not -", "name a file or a URL")
    if given.get("output") == "-":
        raise UsageError(
            "--shards cannot write to stdout",
            "name a file for each part: -o NAME-{shard}.ndjson.zst",
        )
    written = locations.get(divided.written, ())
    for place in filter(_is_one_file, written if shards > len(written) else ()):
        raise UsageError(
            f"{place.label} is one file, which has one writer: --shards cannot be used",
            "leave --shards out" if len(written) == 1 else f"write --shards {len(written)}",
        )
    if given.get("on_conflict") is OnConflict.REPLACE and not (given["yes"] or given["dry_run"]):
        raise UsageError(
            "--shards cannot ask before each replacement",
            "add --yes; --dry-run shows what would be replaced",
        )


def _is_one_file(place: Location) -> bool:
    """Return whether a store is one file, or would be created as one."""
    path = place.path
    if place.kind.startswith("sqlite"):
        return True
    return path != Path() and (path.is_file() or bool(path.suffix and not path.exists()))


def _refuse_outputs(given: dict[str, Any], where: Selection, shards: Iterable[Shard]) -> None:
    """Refuse the outputs of an export that one of the parts would refuse.

    Raises:
        UsageError: always in such a case.
    """
    for shard in shards:
        shape = given["shape"]
        output = output_of(given["output"], shape, shard)
        shape = shape or shape_of(output) or Shape.ARCHIVE
        refuse_options(
            *(output, shape, replace(where, shard=shard)),
            rotate=False,
            prune=given["prune"],
            limited=(given["min_memories"], given["min_messages"]) != (None, None),
        )
        if shape not in FOLDERS or not is_folder(output, shape):
            refuse_taken(output, shape, shard, force=given["force"])


def _refuse_with_ray(
    context: typer.Context,
    run: Run,
    texts: Mapping[str, str],
    locations: Mapping[str, list[Location]],
) -> None:
    """Refuse what other machines should not see, or would not find.

    ``texts`` are the stores as they were written, by parameter.

    Raises:
        UsageError: always in such a case.
    """
    for name, text in texts.items():
        if redact_value(text) != visible(text):
            label = locations[name][0].label
            raise UsageError(
                f"{label} has a password, which --on ray would show to all workers",
                "use an alias with password_env or password_file",
            )
    paths = [place.path for place in chain(*locations.values()) if place.path != Path()]
    paths += [value for value in context.params.values() if isinstance(value, Path)]
    if run.config_file is not None:
        paths.append(run.config_file)
    if output := context.params.get("output"):
        paths.append(Path(output))
    for path in paths:
        if not path.is_absolute():
            raise UsageError(
                f"--on ray needs absolute paths, not {visible(str(path))}",
                "name a path that all workers share",
            )


def _report(
    context: typer.Context,
    run: Run,
    command: str,
    driver: Driver,
    engine: Engine,
    more: dict[str, Any],
    fleets: _Fleets,
) -> dict[str, Any]:
    """Make the report of all parts the one of the run, with their warnings; return its data.

    ``more`` has further keys.
    """
    merged = merge(
        driver.results.values(),
        sort=context.params.get("sort", "messages"),
        limit=run.output.row_limit(context.params.get("limit")),
        names=fleets.names,
        stores=fleets.stores,
    )
    for text in merged.warnings:
        run.output.warn(text)
    run.output.untimed.note(None, merged.untimed, "message")
    command = command.split()[0]
    data = in_job(more | merged.data, run.job)
    run.output.report = merged_report(command, data, driver.of, engine.name, driver.seconds)
    return data


def _refuse_absent(
    given: dict[str, Any],
    where: Selection | None,
    data: dict[str, Any],
    places: Iterable[Location],
) -> None:
    """Refuse a user or session that no part has found, as an undivided command does.

    Raises:
        NotFound: there is no memory of them.
    """
    if where is None:
        users, sessions = (frozenset(given.get(name) or ()) for name in ("user", "session"))
        where = Selection(users=users, sessions=sessions)
    found = data.get("totals", data).get("memories", data.get("groups", 0))
    if isinstance(found, dict):
        found = found.get("selected", sum(found.values()))
    if where.whole:
        refuse_absent(where, bool(found), *places)
