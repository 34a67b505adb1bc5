"""A run that changes what is in a store: planned and written down, asked for, carried out."""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import ExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

from memctl.commands._context import Run
from memctl.commands._reports import ChangeOutcome
from memctl.commands._run import opened, record, refuse_absent, wait_for
from memctl.concurrency import together
from memctl.errors import Interrupted, MemctlError, Partial, Unavailable, UsageError
from memctl.journal import runs
from memctl.journal.files import refusals
from memctl.journal.runs import Journal, Runs
from memctl.location import Location
from memctl.ops.apply import Planner, apply_plan, plan, preview
from memctl.ops.report import Total
from memctl.ops.select import whole_memories
from memctl.ops.stop import Stop
from memctl.output.numbers import count as count_of
from memctl.output.terminal import Output
from memctl.registry import make_store
from memctl.selection import Selection
from memctl.store import OpenMode, Store
from memctl.stores.locks import lock_owner

Approve = Callable[[ChangeOutcome], bool]
"""Asks whether to go on with what is planned; may raise instead."""
Check = Callable[[Store], Coroutine[Any, Any, None]]
"""Looks at the store when the plan is made; may raise."""


async def _nothing(store: Store) -> None:
    """Looks at nothing."""


class Changing:
    """One such run."""

    def __init__(
        self,
        run: Run,
        outcome: ChangeOutcome,
        argument: str,
        location: Location,
        where: Selection,
        *,
        backup: bool = True,
    ) -> None:
        """``argument`` is how the store was named; without ``backup`` nothing can be undone."""
        self._output = run.output
        self._outcome = outcome
        self._location = location
        self._where = where
        self._backup = backup
        self._keep = run.configuration().undo
        self._record = record(run, outcome.command, argument, location)
        self._stop = Stop()
        self._planner: Planner | None = None
        self._check: Check = _nothing
        self._after_plan: Check = _nothing
        self.most = math.inf
        """How many messages may be deleted, also where agents make more of them meanwhile."""

    @property
    def record(self) -> runs.Run:
        """What is kept of the run."""
        return self._record

    def run(
        self,
        planner: Planner,
        approve: Approve,
        check: Check = _nothing,
        after_plan: Check = _nothing,
        *,
        asks: bool = False,
    ) -> None:
        """Plans, asks, and does it; ``check`` is awaited with the store between the first two.

        So is ``after_plan``, which may as well look while the plan is carried out: it does where
        nobody wants to know before, and the store takes two at once.

        Raises:
            MemctlError: see the operations.
        """
        self._planner, self._check, self._after_plan = planner, check, after_plan
        self._run(approve, asks=asks)

    def _run(self, approve: Approve, *, asks: bool) -> None:
        """Looks, asks, and does it.

        A person who is asked may take long: the store is let go of meanwhile.
        """
        outcome = self._outcome
        outcome.report_to(self._output)
        with ExitStack() as stack:
            journal = None if outcome.dry_run else self._journal(stack)
            try:
                if journal is None or asks:
                    something = wait_for(self._plan(journal))
                    if approve(outcome) and something and journal is not None:
                        wait_for(self._carry_out(journal), self._stop)
                else:
                    wait_for(self._at_once(journal, approve), self._stop)
            finally:
                if journal is not None:
                    self._close(journal)
        outcome.ended = True
        error = outcome.error()
        if error is not None:
            raise error
        self._output.emit()

    def _journal(self, stack: ExitStack) -> Journal:
        folder = None
        if not self._backup:
            temporary = Path(tempfile.gettempdir())
            with refusals(temporary):
                made = tempfile.TemporaryDirectory(prefix="memctl-", dir=temporary)
            folder = Path(stack.enter_context(made))
        kept = Runs(folder)
        removed = kept.prune(self._keep, self._record.undoes)
        if removed:
            self._output.detail(f"runs that are no longer kept for undo: {', '.join(removed)}")
        return kept.begin(self._record)

    def _close(self, journal: Journal) -> None:
        """Notes how the run ended; one that changed nothing is forgotten."""
        if not self._outcome.begun:
            journal.discard()
            return
        self._record.memories = self._outcome.changes.done.memories
        self._record.counts = self._counts()
        finished = not self._outcome.changes.failures and not self._outcome.changes.left
        try:
            journal.end("done" if finished else "partial")
        except Unavailable as error:
            self._output.warn(f"it is not noted how the run ended: {error.message}")

    def _counts(self) -> dict[str, int]:
        """What became of how many messages, for the history."""
        done = self._outcome.changes.done
        return {"deleted": done.deleted, "marked": done.marked, "restored": done.restored}

    @asynccontextmanager
    async def _locked(self) -> AsyncGenerator[Store]:
        """The store, for this run to change and for no other."""
        async with opened(make_store(self._location, OpenMode.CHANGE), self._output) as store:
            await store.lock(lock_owner())
            yield store

    async def _at_once(self, journal: Journal, approve: Approve) -> None:
        async with self._locked() as store:
            beside = store.features.parallel
            something = await self._look(store, journal)
            if not beside:
                await self._after_plan(store)
            if something and approve(self._outcome):
                work = self._apply(store, journal)
                await (together(work, self._after_plan(store)) if beside else work)

    async def _plan(self, journal: Journal | None) -> bool:
        mode = OpenMode.READ if journal is None else OpenMode.CHANGE
        async with opened(make_store(self._location, mode), self._output) as store:
            something = await self._look(store, journal)
            await self._after_plan(store)
            return something

    async def _look(self, store: Store, journal: Journal | None) -> bool:
        """Plans; False where nothing is to be done."""
        assert self._planner is not None
        report = self._outcome.changes
        await store.check_integrity(whole_memories(self._where))
        with self._output.progress("planning") as progress:
            edits = self._planner(store, self._where)
            if journal is None:
                something = await preview(edits, report, progress)
            else:
                something = await plan(edits, journal, report, progress)
        if not something and self._where.sessions:  # a user who has no memory matches nothing
            await self._refuse_absent(store)
        await self._check(store)
        return something

    async def _refuse_absent(self, store: Store) -> None:
        """Of the named memories there must be one, though nothing is to be done."""
        if not self._where.named:
            return
        async with aclosing(store.headers(whole_memories(self._where))) as memories:
            found = await anext(memories, None)
        path = self._location.options.get("path")
        refuse_absent(self._where, int(found is not None), store.label, path)

    async def _carry_out(self, journal: Journal) -> None:
        async with self._locked() as store:
            await self._apply(store, journal)

    async def _apply(self, store: Store, journal: Journal) -> None:
        assert self._planner is not None
        outcome = self._outcome
        outcome.begun = True
        outcome.run = self._record.id if self._backup else None
        try:
            planned = self._outcome.changes.planned
            total = Total(planned.memories, planned.messages)
            with self._output.progress("changing", lambda: total) as progress:
                await apply_plan(
                    *(store, self._where, self._planner, journal, outcome.changes),
                    progress,
                    self._stop,
                    self.most,
                )
        except Unavailable as error:
            raise self._cut_short(error) from error

    def _cut_short(self, error: Unavailable) -> MemctlError:
        """What the run ends with when something went away in the middle."""
        changes = self._outcome.changes
        if not changes.done.memories:
            return error
        return Partial(
            f"{error.message}; done: {count_of(changes.done.memories, 'memory')}, "
            f"not done: {changes.left}",
            "what was done is whole; run again for the rest",
        )


def confirmed(output: Output, question: str, *, expected: str | None = None) -> bool:
    """What a person says at the terminal: y, or the ``expected`` text.

    Anything else, or the end of the input, is a no; as with dropdb, that is no error.

    Raises:
        Interrupted: Ctrl-C.
    """
    hint = f"type {expected} to go on: " if expected else "[y/N] "
    try:
        sys.stderr.write(f"{question} {hint}")
        sys.stderr.flush()
        answer = sys.stdin.buffer.readline().decode(errors="replace")
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        raise Interrupted("stopped at the question", "nothing was changed") from None
    if not answer.endswith("\n"):
        sys.stderr.write("\n")
    said = answer.strip()
    agreed = said == expected.strip() if expected else said.lower() in ("y", "yes")
    if not agreed:
        output.note("nothing was changed")
    return agreed


def at_terminal() -> bool:
    """Whether there is somebody to ask."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def refuse_unasked(yes: bool) -> None:
    """Without anybody to ask, ``--yes`` must say it.

    Raises:
        UsageError: it does not.
    """
    if not yes and not at_terminal():
        raise UsageError(
            "nobody can be asked whether to go on: this is no terminal",
            "--yes goes on, --dry-run shows what would be done",
        )
