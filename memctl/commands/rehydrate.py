"""``memctl rehydrate``: puts offloaded contents back into messages."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from memctl import api
from memctl.commands._change import change
from memctl.commands._context import Run
from memctl.commands._journal import run_options
from memctl.commands._offloaded import RewriteOutcome
from memctl.commands._options import (
    BackupOption,
    DryRunOption,
    PathOption,
    StoreArgument,
    opens_stores,
)
from memctl.commands._parameters import option
from memctl.commands._run import changeable
from memctl.config.offload import read_offload
from memctl.errors import UsageError
from memctl.selection import Selection


@opens_stores
def rehydrate(
    run: Run,
    store: StoreArgument,
    where: Selection,
    source: Annotated[
        str | None, option("--from DIR|URL", "The folder that offload wrote to.")
    ] = None,
    backup: BackupOption = True,
    path: PathOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Put offloaded contents back into messages.

    The messages are as before, byte for byte. Works on the store that was offloaded, and on one to
    which its messages were migrated. The files stay. memctl undo takes the contents out again.

    Examples:
      memctl rehydrate agents.db --from /srv/blobs
      memctl rehydrate prod --user ada --session kyoto --dry-run
    """
    place = source or read_offload(run.configuration()).to
    if not place:
        raise UsageError(
            "no folder is named", 'use --from DIR, or configure [offload] with to = "DIR"'
        )
    location = changeable(run, store, where, path)
    options = run_options(run, store, backup=backup, dry_run=dry_run)
    work = partial(api.rehydrate, location, place, where)
    change(run.output, RewriteOutcome(location), work, options)
