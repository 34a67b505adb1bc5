"""``memctl migrate``: copies memories to another store."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from memctl import api
from memctl.commands._context import Run
from memctl.commands._copy import carry_out
from memctl.commands._journal import record, run_options
from memctl.commands._options import (
    STORE_HELP,
    TRANSFER,
    AllMessagesOption,
    BackupOption,
    ConflictOption,
    DryRunOption,
    EmbedderOption,
    EncryptOption,
    JobsOption,
    LossyOption,
    MaxDeleteOption,
    PathOption,
    YesOption,
    guarding,
    takes_options,
)
from memctl.commands._parameters import argument, option
from memctl.commands._reports import CopyOutcome
from memctl.commands._run import (
    encrypting,
    named_embedder,
    narrowed,
    readable,
)
from memctl.errors import UsageError
from memctl.model import OnConflict
from memctl.ops.copy.copy import CopyOptions
from memctl.ops.copy.migration import refuse_to_follow
from memctl.ops.retry import Transfer
from memctl.selection import Selection
from memctl.text.values import deletion_limit


@partial(takes_options, divisible=True, changes=True)
def migrate(
    run: Run,
    source: Annotated[str, argument("SRC", f"The source. {STORE_HELP}")],
    target: Annotated[str, argument("DST", f"The target. {STORE_HELP}")],
    where: Selection,
    on_conflict: ConflictOption = OnConflict.FAIL,
    max_delete: MaxDeleteOption = None,
    yes: YesOption = False,
    verify: Annotated[
        bool, guarding("--verify/--no-verify", "Do not compare source and target afterwards.")
    ] = True,
    checksum: Annotated[
        bool,
        option(
            "--checksum", "Compare contents too, to find changed messages whose ids are the same."
        ),
    ] = False,
    encrypt_to: EncryptOption = None,
    lossy: LossyOption = False,
    all_messages: AllMessagesOption = False,
    follow: Annotated[
        bool, option("--follow", "Keep copying until Ctrl-C, also what agents delete.")
    ] = False,
    interval: Annotated[
        float, option("--interval SECONDS", "Look for changes this often, with --follow.", min=0.1)
    ] = 5.0,
    embedder: EmbedderOption = None,
    jobs: JobsOption = 1,
    transfer: Transfer = TRANSFER,
    path: PathOption = None,
    backup: BackupOption = True,
    dry_run: DryRunOption = False,
) -> None:
    """Copy memories to another store; run it again to copy what is new.

    Each memory is copied completely or not at all, and compared with its source afterwards. The
    source is never changed. A memory that differs in the target is a conflict: it is left alone
    and reported (exit code 5). --on-conflict replace asks before it removes messages from the
    target; scripts use --yes. With --follow, what agents delete or mark comes along, in memories
    that nobody else has changed in the target; the first Ctrl-C copies the rest, says whether
    both sides are in sync, and ends; the second stops at once.

    Examples:
      memctl migrate agents.db postgresql://ops@db/agents --dry-run
      memctl migrate agents.db postgresql://ops@db/agents
      memctl migrate agents.db postgresql://ops@db/agents --follow
    """
    with readable(run.locate(source), where, path) as origin:
        destination = encrypting(narrowed(run.locate(target), where, path), encrypt_to)
        if follow:
            refuse_to_follow(*(where, on_conflict), dry_run=dry_run, limited=max_delete is not None)
            if "-" in (source, target):
                raise UsageError("--follow cannot be combined with -", "name a file or a URL")
            if on_conflict is OnConflict.REPLACE and not yes:
                raise UsageError("--follow cannot ask before each replacement", "add --yes")
        outcome = CopyOutcome("migrate", origin.label, destination.label, dry_run=dry_run)
        work = partial(
            api.copy,
            origin,
            where=where,
            options=CopyOptions(
                *(on_conflict, lossy, jobs, checksum, deletion_limit(max_delete), all_messages)
            ),
            embedder=named_embedder(run, embedder),
            verify=verify,
            follow=interval if follow else None,
            record=record(run, "migrate", target, destination),
        )
        asks = on_conflict is OnConflict.REPLACE and not yes
        options = run_options(run, backup=backup and destination.kind != "stdio", dry_run=dry_run)
        carry_out(run, outcome, destination, transfer, work, options, asks=asks)
