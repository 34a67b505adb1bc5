"""``memctl retain``: archives what policies select, then deletes, compresses or erases it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated
from urllib.parse import unquote, urlsplit

from memctl.commands._change import confirm, refuse_unasked
from memctl.commands._context import Run
from memctl.commands._journal import record, run_options
from memctl.commands._options import DryRunOption, YesOption, opens_stores
from memctl.commands._parameters import argument
from memctl.commands._run import changeable, named_summarizer, wait_for
from memctl.location import Location
from memctl.ops.retain.actions import Surroundings
from memctl.ops.retain.run import PolicyTask, Retention
from memctl.ops.stop import Stop
from memctl.output import retaining
from memctl.output.printout import Printout
from memctl.output.terminal import Output
from memctl.retention import Policy, PolicyAction
from memctl.selection import Selection
from memctl.text.numbers import count


@opens_stores
def retain(
    run: Run,
    names: Annotated[
        list[str] | None, argument("POLICY", "A policy of the configuration; without names, all.")
    ] = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Carry out the retention policies: archive first, then remove.

    A policy is a [[retention]] of the configuration. Each writes what it selects to a new archive,
    reads the archive back, and only then changes the store. A killed run loses nothing: the next
    run goes on. Asks first; scripts use --yes. memctl undo restores what a policy deleted.

    Examples:
      memctl retain --dry-run
      memctl retain chats --yes
      memctl retain --yes --metrics-file r.prom
    """
    from memctl.config.retention import find_policies  # not needed to show the help

    output = run.output
    policies = find_policies(run.configuration(), names or ())
    if not dry_run:
        refuse_unasked(yes)
    stop = Stop()
    tasks = [_task(run, policy, stop) for policy in policies]
    retention = Retention(tasks, _locator(run, policies))
    retention.check()
    output.printout = _printout(retention, dry_run=dry_run)
    if dry_run or not yes:
        wait_for(retention.plan())
    if not dry_run:
        if not yes:
            _ask(output, tasks)
        wait_for(retention.execute(), stop)
    if error := retention.error():
        raise error
    output.emit()


def _task(run: Run, policy: Policy, stop: Stop) -> PolicyTask:
    location = changeable(run, policy.store, Selection(), None)
    around = Surroundings(
        run_options(run, dry_run=False),
        partial(record, run, "retain", policy.store, location),
        stop,
        named_summarizer(run, policy.summarizer)
        if policy.action is PolicyAction.COMPRESS
        else None,
    )
    return PolicyTask(policy, location, around)


def _locator(run: Run, policies: list[Policy]) -> Callable[[Policy, str], Location]:
    """Return the function that locates an archive, with the password of its policy's alias.

    Raises:
        UsageError: a password cannot be fetched.
    """
    from memctl import config  # not needed to show the help

    stores = run.configuration().stores
    names = {policy.archive_alias for policy in policies} & stores.keys()
    found = {name: stores[name].locate(config.environment()).url for name in names}
    passwords = {name: urlsplit(url).password for name, url in found.items()}

    def locate(policy: Policy, name: str) -> Location:
        location = run.address(name)
        password = passwords.get(policy.archive_alias)
        if not password or not location.url:  # a killed run may have named a path
            return location
        return location.with_password(unquote(password))

    return locate


def _ask(output: Output, tasks: list[PolicyTask]) -> None:
    """Show the plan of all policies, and ask; do not ask if no policy has anything to do."""
    planned = [task for task in tasks if task.found.memories or task.resumed]
    if not planned:
        return
    output.show(retaining.outcome(tasks, dry_run=True))
    messages = sum(task.found.messages for task in planned)
    stores = len({task.location.label for task in planned})
    nouns = {task.found.noun for task in planned}
    noun = nouns.pop() if len(nouns) == 1 else "message"
    archived = [task for task in planned if task.policy.archive]
    them = f"{count(messages, noun)} of {count(stores, 'store')}"
    if not archived:
        confirm(f"offload large contents of {them}?")
    elif len(archived) == len(planned):
        confirm(f"archive {them}, and then remove them from {'it' if stores == 1 else 'them'}?")
    else:
        confirm(f"archive and then remove, or offload, {them}?")


def _printout(retention: Retention, *, dry_run: bool) -> Printout:
    return Printout(
        lambda: retention.report(dry_run=dry_run),
        lambda: retaining.outcome(retention.tasks, dry_run=dry_run),
        of_run=not dry_run,
    )
