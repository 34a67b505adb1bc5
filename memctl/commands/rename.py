"""``memctl rename``: gives a user or a session another name."""

from __future__ import annotations

from typing import Annotated

from memctl.commands._change import change, confirm, refuse_unasked
from memctl.commands._context import Run
from memctl.commands._journal import record, run_options
from memctl.commands._options import (
    DryRunOption,
    StoreArgument,
    YesOption,
    opens_stores,
    selecting,
)
from memctl.commands._reports import ChangeOutcome
from memctl.commands._run import changeable
from memctl.errors import UsageError
from memctl.location import visible
from memctl.ops.rename import Names, RenameRun
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
    merge: Annotated[
        bool, selecting("--merge", "Give the sessions to the user NEW, who exists.")
    ] = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Give a user or a session another name.

    All that the store keeps of it moves at once: messages, marks, times, states. A name that exists
    is refused; --merge makes two users one, if they share no session. Asks; scripts use --yes.
    memctl undo gives the old name back. Run it again if it was interrupted.

    Examples:
      memctl rename agents.db --user ada ada@example.com --dry-run
      memctl rename prod --user ada2 ada --merge --yes
      memctl rename agents.db --session s1 kyoto-trip
    """
    names = _names(user, session)
    if merge and names.what == "session":
        raise UsageError("--merge makes two users one", "name them with --user OLD NEW")
    if not dry_run:
        refuse_unasked(yes)
    location = changeable(run, store, names.where, None)
    renaming = RenameRun(
        record(run, "rename", store, location),
        names.where,
        names,
        merge,
        options=run_options(run, dry_run=dry_run),
    )

    def ask() -> None:
        run.output.show(change_plan(renaming.report))
        number = count(renaming.report.planned.memories, "memory")
        place = visible(location.label)
        to = visible(repr(names.new))
        confirm(f"rename {names.what} {visible(repr(names.old))} to {to}: {number} of {place}?")

    change(run.output, _Outcome(renaming, location), None if yes else ask)


def _names(user: tuple[str, str] | None, session: tuple[str, str] | None) -> Names:
    if (user is None) == (session is None):
        raise UsageError(
            "nothing to rename is named" if user is None else "two things are named",
            "write --user OLD NEW or --session OLD NEW",
        )
    names = Names("session", *session) if session is not None else Names("user", *(user or ()))
    if not names.new:
        raise UsageError(f"the new {names.what} is empty", "check for an unset variable")
    if names.old == names.new:
        raise UsageError("both names are the same", "name the old one, then the new one")
    return names


class _Outcome(ChangeOutcome[RenameRun]):
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
