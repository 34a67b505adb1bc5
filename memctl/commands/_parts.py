"""``--shards N``: one command as parts, which an engine runs, with one report and one exit code."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import typer
from msgspec import Struct, structs

from memctl.commands._context import Run, this_run
from memctl.commands._part_line import (
    CommandLine,
    Work,
    argument_words,
    command_words,
    option_words,
)
from memctl.commands._parts_plan import PLANNED, Whole
from memctl.commands._parts_refusals import (
    Divided,
    refuse_absent_everywhere,
    refuse_outputs,
    refuse_undivisible,
    refuse_with_ray,
)
from memctl.commands._parts_report import held_error, merged_report, of_job, summed_up
from memctl.commands._run import wait_for
from memctl.errors import MemctlError
from memctl.journal.runs import Runs, new_job
from memctl.location import Location
from memctl.ops.stop import Stop
from memctl.output.terminal import Output
from memctl.parts.divide import Driver
from memctl.parts.local import LocalEngine, processors
from memctl.parts.merge import merge
from memctl.parts.part import Engine, PartResult
from memctl.reports.report import Divisible
from memctl.selection import Selection, Untimed
from memctl.shard import Shard
from memctl.text.numbers import count, duration

if TYPE_CHECKING:
    from memctl.output.progress import Parts

_DIVIDED = {
    "inspect": Divided("reading", ("store",)),
    "export": Divided("exporting", ("store",)),
    "import": Divided("importing", ("file", "store"), "store"),
    "migrate": Divided("migrating", ("source", "target"), "target"),
    "verify": Divided("comparing", ("left", "right")),
    "doctor": Divided("examining", ("store",)),
    "delete": Divided("deleting", ("store",), "store"),
    "compress": Divided("compressing", ("store",), "store"),
    "mark add": Divided("marking", ("store",), "store"),
    "mark remove": Divided("marking", ("store",), "store"),
    "mark rename": Divided("marking", ("store",), "store"),
    "undo": Divided("undoing", (), "store"),
}


def run_parts(
    context: typer.Context,
    shards: int,
    on: str,
    workers: int | None,
    where: Selection | None,
    parts_of: Callable[[Run, Mapping[str, Any], int], Work] | None = None,
) -> None:
    """Run a command in ``shards`` parts, and report what all of them did.

    ``on`` names the engine, which runs at most ``workers`` parts at the same time.  ``where`` is
    the selection of a command that has one.  ``parts_of`` returns the work of an undo.

    Raises:
        UsageError: the command cannot run in parts as it is written; nothing was started.
        MemctlError: as ``Driver.run``.
    """
    run = this_run(context)
    command = " ".join(command_words(context))
    divided = _DIVIDED[command]
    if command == "doctor" and context.params["repair"]:
        divided = Divided("repairing", ("store",), "store")
    if parts_of is not None:
        work = parts_of(run, context.params, shards)
    else:
        numbers = [Shard(number, shards) for number in range(shards)]
        texts = {name: context.params[name] for name in divided.stores if context.params[name]}
        work = Work(numbers, tuple(argument_words(context)), texts)
    members = {name: run.members(text) for name, text in work.texts.items()}
    locations = {name: [*map(run.address, stores)] for name, stores in members.items()}
    whole = Whole(run, command, context.params)
    refuse_undivisible(context, divided, locations, shards)
    if on == "ray":
        refuse_with_ray(context, run, work.texts, locations)
    if command == "export" and where is not None:
        refuse_outputs(context.params, where, work.shards)
    state = ""
    if divided.written:
        [first, *others] = locations[divided.written]
        run.store = work.texts[divided.written] if others else first.label
        run.job = run.job or new_job()
        state = Runs().identity()
    options = list(option_words(context, run, where, work.left_out))
    if run.job:
        options.append(f"--job={run.job}")
    line = CommandLine(
        tuple(options),
        work.arguments,
        {
            text: place.label
            for name, stores in members.items()
            for text, place in zip(stores, locations[name], strict=True)
        },
        state,
        run.configuration().holds,
        # A part of an export that is repeated may have ended just before its process was lost.
        ("--force",) if command == "export" else (),
    )
    driving = _Driving(context, run, command, work, on, workers, _fleets(command, work, members))
    if parts_of is None:
        driving.looks_for = where, [*chain(*locations.values())]
    planned: dict[Shard, PartResult] = {}
    if whole.plans_first:
        planned = driving.plan(line, whole)
        if not planned:
            run.output.emit()
            return
    report = driving.run(divided.doing, line, whole, planned)
    if getattr(report, "dry_run", False):
        whole.refuse_many(report)
    run.output.emit()


class _Fleets(NamedTuple):
    """The fleets among the stores of a run: their names in the report, and the stores of one."""

    names: dict[str, str]
    stores: tuple[str, ...]


def _fleets(command: str, work: Work, members: Mapping[str, tuple[str, ...]]) -> _Fleets:
    """Return the fleets among the stores of a run; ``members`` has their stores, by parameter."""
    texts = work.texts
    keys = {
        "left": ("source",),
        "right": ("target",),
        "store": ("url", "source" if command == "export" else "target"),
    }
    fleets = {name: stores for name, stores in members.items() if stores != (texts[name],)}
    names = {key: texts[name] for name in fleets for key in keys.get(name, (name,))}
    return _Fleets(names, next(iter(fleets.values()), ()))


class _Driving(Struct):
    """Runs the parts of a command on an engine, to a report of the whole."""

    context: typer.Context
    this: Run
    command: str
    work: Work
    on: str
    workers: int | None
    fleets: _Fleets
    looks_for: tuple[Selection | None, list[Location]] | None = None
    """The selection and the stores, if the named users and sessions must exist."""

    def plan(self, line: CommandLine, whole: Whole) -> dict[Shard, PartResult]:
        """Have all parts plan, and the plan approved; return the plans, empty if there is none.

        Raises:
            MemctlError: as ``run`` and ``Whole.approve``.
        """
        planned: dict[Shard, PartResult] = {}
        rehearsal = replace(line, options=(*line.options, "--dry-run"), state="", again=())
        report: Any = self.run("planning", rehearsal, whole, planned, tolerated=PLANNED)
        output = self.this.output
        printout = output.printout
        assert printout is not None
        output.printout = structs.replace(
            printout, table=lambda: None
        )  # the question shows the plan
        if whole.approve(report, self.this.store):
            return planned
        report.dry_run = False
        output.printout = printout
        return {}

    def run(
        self,
        doing: str,
        line: CommandLine,
        whole: Whole,
        planned: dict[Shard, PartResult],
        tolerated: Collection[int] = (),
    ) -> Divisible:
        """Run all parts of a command line; return the report, which the output gets.

        ``planned`` is as in ``Whole.limits``; when the parts plan, it gets their results.  It is no
        error if all parts end with one of the exit codes ``tolerated``.

        Raises:
            MemctlError: as ``Driver.run``.
            NotFound: no part has found a named user or session.
        """
        output, shards = self.this.output, self.work.shards
        stop = Stop()
        with output.dividing(doing, len(shards)) as progress:
            engine = _engine(self.on, self.workers, len(shards))
            line.limits = whole.limits(planned, engine.workers, shards)
            driver = Driver(engine, shards, line, PartsWatch(output, progress), stop)
            failed: MemctlError | None = None
            try:
                wait_for(_run(driver, engine), stop)
            except MemctlError as error:
                failed = error
            finally:
                report = self._report(driver, engine)
        if failed and (held := held_error(report)):
            raise held
        ended = [result.exit for result in driver.results.values()]
        if failed and (len(ended) < len(shards) or not set(ended) <= set(tolerated)):
            raise summed_up(failed, report)
        if tolerated:
            planned |= driver.results
        if self.looks_for is not None:
            where, places = self.looks_for
            refuse_absent_everywhere(self.context.params, where, report, places)
        return report

    def _report(self, driver: Driver, engine: Engine) -> Divisible:
        """Make the report of all parts that of the run, with their warnings; return the report."""
        output, params = self.this.output, self.context.params
        merged = merge(
            self.command.split()[0],
            driver.results.values(),
            sort=params.get("sort") or "messages",
            limit=output.row_limit(params.get("limit")),
            names=self.fleets.names,
            stores=self.fleets.stores,
        )
        for text in merged.warnings:
            output.warn(text)
        output.untimed = Untimed()
        output.untimed.note(None, merged.untimed, "message")
        report: Any = merged.report
        if self.work.empty is not None:
            report = of_job(self.work.empty, report)
        if any(part.run for part in report.parts):
            report.job = self.this.job
        output.printout = merged_report(report, driver.of, engine.name, driver.seconds)
        if driver.refused:  # the error says it all
            output.printout.table = lambda: None
        found: Divisible = report
        return found


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
