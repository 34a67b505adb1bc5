"""What import and migrate have in common: copy, verify, report."""

from __future__ import annotations

from memctl.commands._context import Run
from memctl.commands._holder import holder
from memctl.commands._reports import CopyOutcome, expected
from memctl.commands._run import opened, refuse_absent, wait_for
from memctl.commands._stores import make_target, writable
from memctl.errors import Different, UsageError
from memctl.location import Location
from memctl.ops.compare import compare
from memctl.ops.copy import CopyOptions, copy
from memctl.ops.losses import refuse_losses
from memctl.output.numbers import count
from memctl.output.terminal import Output
from memctl.registry import make_store
from memctl.selection import Selection
from memctl.store import Store
from memctl.streams import closing

FILES = ("state", "sessions", "archive")


def run_copy(
    run: Run,
    outcome: CopyOutcome,
    origin: Location,
    destination: Location,
    where: Selection,
    options: CopyOptions,
    *,
    verify: bool,
) -> None:
    """Copies, verifies and reports: what import and migrate have in common.

    Raises:
        MemctlError: see ``copy``; Conflict, Partial or Different when that is how it ended.
    """
    output = run.output
    if destination.kind != "stdio":  # there stdout is the archive, and the report would spoil it
        output.report = outcome.report()
    with writable(destination) as place:
        wait_for(_copy(output, outcome, origin, place, where, options, verify=verify))
    outcome.ended = True
    error = outcome.error()
    if error:
        raise error
    output.emit()


async def _copy(
    output: Output,
    outcome: CopyOutcome,
    origin: Location,
    destination: Location,
    where: Selection,
    options: CopyOptions,
    *,
    verify: bool,
) -> None:
    async with opened(make_store(origin), output) as source:
        await source.prove(where)
        if origin.kind == "state" and destination.kind not in FILES:
            await _refuse_nameless(source, where)
        target = make_target(destination, dry_run=outcome.dry_run)
        outcome.copied.warnings += await refuse_losses(source, target, where, lossy=options.lossy)
        async with opened(target, output):
            await target.lock(holder())
            with output.progress("copying") as progress:
                await copy(source, target, where, options, outcome.copied, progress)
    for text in outcome.copied.warnings:
        output.warn(text)
    refuse_absent(where, outcome.copied.memories.selected, origin.label, origin.options.get("path"))
    if verify and not outcome.dry_run:
        await _verify(output, outcome, origin, destination, where)


async def _refuse_nameless(source: Store, where: Selection) -> None:
    """A state_dict does not say whose memory it is.

    Raises:
        UsageError: neither do the options.
    """
    location = source.location
    async with closing(source.headers(where)) as memories:
        async for memory in memories:
            guessed = "session" not in location.options and memory.key.session == location.path.stem
            if guessed or ("user" not in location.options and not memory.key.user):
                raise UsageError(
                    f"{source.label} does not say whose memory it is", "give --user and --session"
                )


async def _verify(
    output: Output,
    outcome: CopyOutcome,
    origin: Location,
    destination: Location,
    where: Selection,
) -> None:
    async with (
        opened(make_store(origin), output) as source,
        opened(make_store(destination), output) as target,
    ):
        with output.progress("verifying"):
            found = expected(await compare(source, target, where), outcome.copied)
    if outcome.copied.uneven:
        output.warn(
            f"not compared, because --on-conflict or --lossy leaves them different: "
            f"{count(len(outcome.copied.uneven), 'memory')}"
        )
    outcome.verified = found.equal
    if not found.equal:
        first = found.differences[0]
        raise Different(
            f"the target differs after the copy: {first.key}: {first.message} "
            f"({len(found.differences)} differences)",
            "has the source changed meanwhile? 'memctl verify' names every difference",
        )
