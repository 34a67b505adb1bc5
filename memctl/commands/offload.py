"""``memctl offload``: moves large contents out of messages."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from memctl.commands._change import change, confirm, refuse_many, refuse_unasked
from memctl.commands._context import Run
from memctl.commands._options import (
    BackupOption,
    DryRunOption,
    MaxDeleteOption,
    PathOption,
    YesOption,
    opens_stores,
    selecting,
)
from memctl.commands._rewrites import RewriteOutcome, referred_on
from memctl.commands._run import changeable, record, run_options, wait_for
from memctl.config.offload import OffloadSettings, read_offload, url_prefix
from memctl.errors import UsageError
from memctl.location import visible
from memctl.numbers import count, size
from memctl.ops.offload.blobs import Blobs
from memctl.ops.offload.run import OffloadRun
from memctl.ops.offload.slim import Rule
from memctl.output import offloading
from memctl.output.report import Report
from memctl.selection import Selection
from memctl.system import at_terminal
from memctl.values import data_size, deletion_limit

ToOption = Annotated[
    str | None,
    typer.Option("--to", metavar="DIR|URL", help="The folder for the contents, or s3://..."),
]


@opens_stores
def offload(
    run: Run,
    stores: Annotated[
        list[str], typer.Argument(metavar="STORE", help="A URL, a path or an alias.")
    ],
    where: Selection,
    to: ToOption = None,
    larger: Annotated[
        str | None,
        selecting("--larger", metavar="SIZE", help="Only contents larger than SIZE, such as 64kB."),
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option("--keep", metavar="SIZE", help="The beginning of a text that stays."),
    ] = None,
    prefix: Annotated[
        str | None,
        typer.Option(
            "--url-prefix", metavar="URL", help="Where agents read the folder: media become URLs."
        ),
    ] = None,
    prune: Annotated[
        bool,
        typer.Option("--prune", help="Remove contents that no message of the STOREs refers to."),
    ] = False,
    max_delete: MaxDeleteOption = None,
    yes: YesOption = False,
    backup: BackupOption = True,
    path: PathOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Move large contents out of messages, to files.

    Moves base64 media and long texts of tool results. Each becomes a file of --to, named by its
    SHA-256. The message keeps the beginning of a text, and a line that names the file. Asks first;
    scripts use --yes. memctl rehydrate puts the contents back, and so does memctl undo.

    Examples:
      memctl offload agents.db --to /srv/blobs --dry-run
      memctl offload prod --user ada --larger 1MB --to s3://agents/blobs --yes
      memctl offload prod staging --prune --to /srv/blobs --dry-run
    """
    settings = read_offload(run.configuration())
    place = _place(to, settings)
    if not dry_run:
        refuse_unasked(yes)
    if prune:
        if where != Selection() or path is not None:
            raise UsageError(
                "--prune cannot be combined with a selection", "it looks at all messages"
            )
        _prune(run, stores, Blobs(place), yes=yes, dry_run=dry_run)
        return
    if len(stores) > 1:
        raise UsageError("offload changes one store at a time", "run it once for each store")
    rule = _rule(larger, keep, prefix, settings)
    limit = deletion_limit(max_delete)
    location = changeable(run, stores[0], where, path)
    rewrite = OffloadRun(
        record(run, "offload", stores[0], location),
        where,
        rule,
        Blobs(place),
        run_options(run, backup=backup, dry_run=dry_run),
        limit,
    )

    def approve() -> bool:
        found = rewrite.report.planned
        refuse_many(found.deleted, rewrite.report.noun, rewrite.most, max_delete)
        if yes or dry_run or not found.deleted:
            return True
        run.output.show(offloading.plan(rewrite.rewritten))
        about = f"{count(found.deleted, 'message')} of {visible(location.label)}"
        confirm(f"offload large contents of {about}?")
        return True

    rewrite.approve = approve
    outcome = RewriteOutcome(rewrite, location.label)
    change(run.output, rewrite, location, outcome, asks=not yes and at_terminal())


def _place(to: str | None, settings: OffloadSettings) -> str:
    if place := to or settings.to:
        return place
    raise UsageError("no folder is named", 'use --to DIR, or configure [offload] with to = "DIR"')


def _rule(
    larger: str | None, keep: str | None, prefix: str | None, settings: OffloadSettings
) -> Rule:
    rule = Rule(
        settings.larger if larger is None else data_size("--larger", larger),
        settings.keep if keep is None else data_size("--keep", keep),
        settings.url_prefix if prefix is None else url_prefix(prefix),
    )
    if rule.larger < rule.keep + _REFERENCE:
        raise UsageError(
            f"--larger {rule.larger:,} bytes is too small",
            f"a message keeps {rule.keep:,} bytes, and up to {_REFERENCE:,} for the reference",
        )
    return rule


_REFERENCE = 1000
"""More bytes than a reference has in any message."""


def _prune(run: Run, stores: list[str], blobs: Blobs, *, yes: bool, dry_run: bool) -> None:
    found: dict[str, int] = {}
    removed = False

    def gone() -> dict[str, int]:
        return found if removed or dry_run else {}

    def data() -> dict[str, Any]:
        return {
            "dry_run": dry_run,
            "target": blobs.label,
            "removed": [
                {"blob": name, "bytes": found[name]}
                for name in (found if removed or dry_run else ())
            ],
        }

    run.output.report = Report(
        "offload",
        data,
        lambda: data()["removed"],
        lambda: offloading.pruned(found, blobs.label, dry_run=dry_run, removed=removed),
        of_run=not dry_run,
    )
    found |= wait_for(_unreferred(run, stores, blobs))
    if found and not (dry_run or yes):
        run.output.show(offloading.pruned(found, blobs.label, dry_run=True, removed=False))
        total = f"{count(len(found), 'blob')} ({size(sum(found.values()))})"
        confirm(f"remove {total} of {blobs.label}? this cannot be undone")
    if not dry_run:
        for name in found:
            blobs.remove(name)
        removed = True
    run.output.emit()


async def _unreferred(run: Run, stores: list[str], blobs: Blobs) -> dict[str, int]:
    """Return the sizes in bytes of the blobs that nothing refers to, by name.

    Raises:
        MemctlError: as ``referred_on``.
    """
    sizes = blobs.sizes()
    kept: set[str] = set()
    for name in stores:
        kept |= await referred_on(run, run.locate(name))
    return {name: size for name, size in sizes.items() if name not in kept}
