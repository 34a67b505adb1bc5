"""``memctl rename``: gives a user, a session or a project another name."""

from __future__ import annotations

import os
from functools import partial
from typing import Annotated, Any

from memctl import api
from memctl.commands._change import change, confirm, refuse_unasked
from memctl.commands._context import Run
from memctl.commands._journal import run_options
from memctl.commands._options import (
    DryRunOption,
    StoreArgument,
    YesOption,
    opens_stores,
    selecting,
)
from memctl.commands._parameters import option
from memctl.commands._reports import ChangeOutcome
from memctl.commands._run import changeable
from memctl.config.offload import read_offload
from memctl.config.retention import read_policies
from memctl.location import visible
from memctl.ops.rename import names_of
from memctl.output.changes import change_plan
from memctl.reports.change import RenameReport, RewrittenMessages
from memctl.text.numbers import count


@opens_stores
def rename(
    run: Run,
    store: StoreArgument,
    user: Annotated[
        tuple[str, str] | None, selecting("--user OLD NEW", "The name of a user, and the new one.")
    ] = None,
    session: Annotated[
        tuple[str, str] | None,
        selecting("--session OLD NEW", "The name of a session, and the new one."),
    ] = None,
    project: Annotated[
        tuple[str, str] | None,
        selecting("--project OLD NEW", "The folder of a project, and where it is now."),
    ] = None,
    merge: Annotated[
        bool, selecting("--merge", "Give the sessions to the user NEW, who exists.")
    ] = False,
    blobs: Annotated[
        str | None,
        option("--blobs DIR|URL", "Let the user NEW have the offloaded contents here."),
    ] = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Give a user, a session or a project another name.

    All that the store keeps of it moves at once: messages, marks, times, states. A name that exists
    is refused; --merge makes two users one, if they share no session. With --project, sessions of
    coding agents follow a folder that was moved, with its subfolders. Asks; scripts use --yes.
    memctl undo gives the old name back. Run it again if it was interrupted.

    Examples:
      memctl rename agents.db --user ada ada@example.com --dry-run
      memctl rename agents.db --session s1 kyoto-trip
      memctl rename claude-code: --project ~/shop ~/code/shop
    """
    names = names_of(user, session, project, merge=merge)
    if not dry_run:
        refuse_unasked(yes)
    location = changeable(run, store, names.where, None)
    outcome, contents = _Outcome(location), blobs or read_offload(run.configuration()).to or None
    if names.what == "project" and not os.path.isdir(names.new):
        run.output.note(f"there is no folder {visible(names.new)} on this machine")
    for policy in read_policies(run.configuration()):
        chosen = policy.where.users if names.what == "user" else policy.where.sessions
        if names.old in chosen:
            run.output.note(
                f"the policy {visible(repr(policy.name))} of the configuration names "
                f"{visible(repr(names.old))}, and keeps that name: change it there"
            )

    def ask() -> None:
        run.output.show(change_plan(outcome.changes))
        number = count(outcome.changes.planned.memories, "memory")
        place = visible(location.label)
        to = visible(repr(names.new))
        confirm(f"rename {names.what} {visible(repr(names.old))} to {to}: {number} of {place}?")

    work = partial(api.rename, location, user=user, session=session, project=project)
    work = partial(work, merge=merge, blobs=contents)
    options = run_options(run, store, dry_run=dry_run)
    change(run.output, outcome, work, options, None if yes else ask)


class _Outcome(ChangeOutcome[Any]):
    def report(self) -> RenameReport:
        fields = self.fields()
        done, planned = self.changes.done.messages, self.changes.planned.messages
        if self.dry_run:
            done = planned
        begun = self.change.begun or self.dry_run
        messages = RewrittenMessages(
            selected=planned,
            changed=done if begun else 0,
            failed=planned - done if begun else 0,
        )
        return RenameReport(**fields | {"messages": messages}, **self.change.details())
