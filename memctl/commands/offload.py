"""``memctl offload``: moves large contents out of messages."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Annotated

from memctl import api
from memctl.commands._change import change, confirm, refuse_unasked
from memctl.commands._context import Run
from memctl.commands._journal import run_options
from memctl.commands._offloaded import (
    RewriteOutcome,
    referrers,
)
from memctl.commands._options import (
    STORE_HELP,
    BackupOption,
    DryRunOption,
    MaxDeleteOption,
    PathOption,
    YesOption,
    opens_stores,
    selecting,
)
from memctl.commands._parameters import argument, option
from memctl.commands._run import changeable, wait_for
from memctl.config.offload import read_offload
from memctl.errors import UsageError
from memctl.location import visible
from memctl.ops.offload.blobs import Blobs
from memctl.ops.offload.slim import Rule
from memctl.output import offloading
from memctl.output.printout import Printout
from memctl.reports.change import BlobRow, NotAsked, PruneReport
from memctl.selection import Selection
from memctl.text.numbers import count, size
from memctl.text.values import age


@opens_stores
def offload(
    run: Run,
    stores: Annotated[list[str], argument("STORE", STORE_HELP)],
    where: Selection,
    to: Annotated[
        str | None, option("--to DIR|URL", "The folder for the contents, or s3://...")
    ] = None,
    larger: Annotated[
        str | None, selecting("--larger SIZE", "Only contents larger than SIZE, such as 64kB.")
    ] = None,
    keep: Annotated[str | None, option("--keep SIZE", "Keep the first SIZE of each text.")] = None,
    url_prefix: Annotated[
        str | None,
        option(
            "--url-prefix URL",
            "Agents read the folder at URL: put URLs of the files in the place of media.",
        ),
    ] = None,
    prune: Annotated[
        bool, option("--prune", "Remove the files that no message of the stores refers to.")
    ] = False,
    grace: Annotated[
        str, option("--grace AGE", "With --prune: keep files younger than AGE, such as 12h.")
    ] = "7d",
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
    settings = read_offload(
        run.configuration(),
        {"to": to, "larger": larger, "keep": keep, "url_prefix": url_prefix},
        lambda key: f"--{key.replace('_', '-')}",
    )
    if not settings.to:
        raise UsageError(
            "no folder is named", 'use --to DIR, or configure [offload] with to = "DIR"'
        )
    if not dry_run:
        refuse_unasked(yes)
    blobs = Blobs(settings.to)
    if prune:
        if where != Selection() or path is not None:
            raise UsageError(
                "--prune cannot be combined with a selection", "it looks at all messages"
            )
        before = age("--grace", grace, datetime.now())
        assert before is not None
        _prune(run, stores, blobs, before.timestamp(), yes=yes, dry_run=dry_run)
        return
    if len(stores) > 1:
        raise UsageError("offload changes one store at a time", "run it once for each store")
    location = changeable(run, stores[0], where, path)
    options = run_options(run, stores[0], backup=backup, dry_run=dry_run, max_delete=max_delete)
    rule = Rule(settings.larger, settings.keep, settings.url_prefix)
    outcome = RewriteOutcome(location)

    def ask() -> None:
        run.output.show(offloading.plan(outcome.change.rewritten))
        about = f"{count(outcome.change.deleted, 'message')} of {visible(location.label)}"
        confirm(f"offload large contents of {about}?")

    work = partial(api.offload, location, settings.to, where, rule=rule)
    change(run.output, outcome, work, options, None if yes else ask)


def _prune(
    run: Run, stores: list[str], blobs: Blobs, before: float, *, yes: bool, dry_run: bool
) -> None:
    others = referrers(run)
    locations = [run.locate(name) for name in stores]
    found: dict[str, int] = {}
    removed: dict[str, int] = {}
    shown = found if dry_run else removed
    run.output.printout = Printout(
        lambda: PruneReport(
            dry_run,
            blobs.label,
            [BlobRow(*one) for one in shown.items()],
            others.asked,
            [NotAsked(*one) for one in others.failed.items()],
        ),
        lambda: offloading.pruned(shown, blobs.label, others.asked, dry_run=dry_run),
        of_run=not dry_run,
    )
    if dry_run or not yes:
        wait_for(others.find_unreferred(locations, blobs, before, found))
    if found and not dry_run:
        run.output.show(offloading.pruned(found, blobs.label, others.asked, dry_run=True))
        total = f"{count(len(found), 'file')} ({size(sum(found.values()))})"
        confirm(f"remove {total} of {blobs.label}? this cannot be undone;")
    if not dry_run and (yes or found):
        some = found or blobs.sizes(before)
        wait_for(others.remove_unreferred(locations, blobs, some, removed))
    run.output.emit()
