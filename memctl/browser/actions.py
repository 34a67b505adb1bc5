"""The actions of ``memctl browse --write``: marks, deletion, export, offload, undo.

``ACTIONS`` lists them.  An action is a coroutine that gets the ``Operation`` that it is, what is
selected, and the text that the user typed for it, and returns what it did.  It runs the operation
of the command of the same name, with the records, holds and limits of this command.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

from rich.console import Group, RenderableType
from rich.text import Text

from memctl import api
from memctl.browser.commands import file_of
from memctl.browser.pane import Subject
from memctl.browser.source import Background, Notices, Source, Writing
from memctl.errors import Interrupted, MemctlError, Partial, UsageError
from memctl.journal.runs import Run, Runs, short_ids
from memctl.location import Location, visible
from memctl.ops.change.apply import SHOWN_MEMORIES
from memctl.ops.change.change import ChangeRun, MarkRun
from memctl.ops.change.delete import DeleteRun
from memctl.ops.change.marks import MarkChange
from memctl.ops.export.destination import STDOUT
from memctl.ops.offload.blobs import Blobs
from memctl.ops.offload.run import OffloadRun
from memctl.ops.offload.slim import Rule
from memctl.ops.report import Progress, Total
from memctl.ops.undo.reversal import reversing, runs_to_undo
from memctl.output import changes, offloading
from memctl.output.history import run_changes
from memctl.output.tables import append_failures
from memctl.selection import Selection
from memctl.text.numbers import count, local_time
from memctl.text.values import deletion_limit


class Question(NamedTuple):
    """A question before a change: ``shown`` is what would change, ``text`` what is asked."""

    title: str
    shown: RenderableType
    text: str


class Ended(NamedTuple):
    """The end of an action: what to say, and whether that is an error."""

    told: str
    error: bool


class Watcher(Notices):
    """The observer of an action: its notes and progress go to the status line."""

    def __init__(self, timeout: float | None, begin: Callable[[str], Progress]) -> None:
        super().__init__(timeout)
        self._begin = begin

    def progress(
        self, description: str, _total: Callable[[], Total | None] = lambda: None, /
    ) -> AbstractContextManager[Progress]:
        """Return a context manager for a listener that shows the number of messages."""
        return nullcontext(self._begin(description))

    def note(self, text: str, /) -> None:
        """Show a note."""
        self.tell(text)


class Operation(Background):
    """An action that goes on, in a thread of its own; it is used once.

    ``ask`` shows a question in the thread of the caller, and sets its answer.  ``tell`` shows a
    text in this thread.
    """

    def __init__(
        self,
        source: Source,
        writing: Writing,
        ask: Callable[[Question, Future[bool]], object],
        tell: Callable[[str], object],
    ) -> None:
        super().__init__()
        self.source = source
        self.writing = writing
        self.observer = Watcher(source.notices.timeout, partial(self._progress, tell))
        self.options = writing.options(self.observer)
        self.limit = deletion_limit(writing.max_delete)
        self.limit_name = f"--max-delete {writing.max_delete}"
        self._ask = ask
        self._caller = asyncio.get_running_loop()
        self.observer.tell = lambda text: self._caller.call_soon_threadsafe(tell, text)
        self._task: asyncio.Task[Any] | None = None
        self._run: ChangeRun | None = None
        self._stopped = False

    def _progress(self, tell: Callable[[str], object], description: str) -> Progress:
        def told(messages: int) -> None:
            tell(f"{description}… {messages:,}; Esc stops")

        return self.progress(told, self._caller)

    async def perform(self, action: Action, chosen: Any, text: str) -> Ended:
        """Carry out an action, and return how it ended; no error of memctl is raised."""
        try:
            return await self.submit(self._performed(action, chosen, text))
        finally:
            await self.close()

    async def _performed(self, action: Action, chosen: Any, text: str) -> Ended:
        self._task = asyncio.current_task()
        told: list[str] = []
        error: MemctlError | None = None
        try:
            told = await action.begin(self, chosen, text)
        except asyncio.CancelledError:
            if not self._stopped:
                raise
            error = Interrupted("stopped", "nothing was changed")
        except MemctlError as failure:
            error = failure
        run, raised = self._run, error
        if run is not None and error is None:
            error = self.writing.error(run)
        if run is not None and run.done():
            told = [*([raised.message] if raised else []), *_outcome(run)]
        elif error is not None:
            told = [f"{error.message}; {error.hint}" if error.hint else error.message]
        is_error = error is not None and not isinstance(error, Interrupted)
        return Ended(" · ".join([*told, *self.observer.warnings]), is_error)

    async def stop(self) -> None:
        """Stop the action as a signal stops its command: no memory is half changed."""
        await self.submit(self._stop())

    async def _stop(self) -> None:
        self._stopped = True
        stop = None if self._run is None else self._run.stop
        if stop is not None and stop.cooperative and not stop.asked:
            stop.ask()
        elif self._task is not None:
            self._task.cancel()

    # What actions use

    async def change(
        self,
        run: ChangeRun,
        question: Callable[[], Question] | None = None,
        location: Location | None = None,
    ) -> list[str]:
        """Plan a run, ask the question about the plan, and carry it out.

        Return the reason if nothing is carried out.  The store is closed while the user decides.
        ``location`` is the store as the run needs it, if it needs more than the browsed one has.

        Raises:
            MemctlError: as ``ChangeRun``; or the user says no.
        """
        self._run = run
        place = location or self.source.location
        with run.recorded():
            if not await run.plan_first(place):
                return [run.nothing]
            if question is not None:
                await self._confirm(question(), run)
            await run.carry_out_plan(place)
        return []

    async def _confirm(self, question: Question, run: ChangeRun) -> None:
        """Ask a question, with the warnings and the memories that are left alone.

        Raises:
            Interrupted: the user does not say yes.
        """
        more = Text("".join(f"\n{one}\n" for one in self.observer.warnings), "yellow")
        append_failures(more, run.report.failures)
        self.observer.warnings.clear()
        asked, answer = question._replace(shown=Group(question.shown, more)), Future[bool]()
        self._caller.call_soon_threadsafe(self._ask, asked, answer)
        if not await asyncio.wrap_future(answer):
            raise Interrupted("not confirmed", "nothing was changed")

    def about(self, run: ChangeRun, what: str) -> str:
        """Return the question about the plan of a run; ``what`` is what it does with messages."""
        planned, label = run.report.planned, visible(self.source.location.label)
        messages = count(planned.deleted, run.report.noun)
        shown = f" ({SHOWN_MEMORIES} shown)" if planned.memories > SHOWN_MEMORIES else ""
        return f"{what} {messages} in {count(planned.memories, 'memory')}{shown} of {label}?"


def _outcome(run: ChangeRun) -> list[str]:
    """Return what a run has done, a text for each fact, the command that undoes it last."""
    undo = None if run.id is None else short_ids(Runs().all()).get(run.id, run.id)
    if isinstance(run, OffloadRun):
        shown = offloading.outcome(run, "", undo, dry_run=False)
    else:
        shown = changes.change_outcome(run.report, "", undo, dry_run=False)
    assert isinstance(shown, Text)
    return [line.strip() for line in shown.plain.split("\n")[1:]]


async def _delete(at: Operation, where: Selection, _: str) -> list[str]:
    record = at.writing.record("delete")
    run = DeleteRun(
        *(record, where),
        options=at.options,
        limit=at.limit,
        limit_name=at.limit_name,
        warn_parted=True,
    )
    run.counts_staying = True
    return await at.change(
        run, lambda: Question("Delete", changes.change_plan(run.report), at.about(run, "delete"))
    )


async def _mark(at: Operation, where: Selection, mark: str) -> list[str]:
    return await _remark(at, where, MarkChange(new=mark))


async def _unmark(at: Operation, where: Selection, mark: str) -> list[str]:
    return await _remark(at, where, MarkChange(old=mark))


async def _remark(at: Operation, where: Selection, remark: MarkChange) -> list[str]:
    run = MarkRun(at.writing.record("mark"), where, remark, options=at.options)
    return await at.change(run)


async def _offload(at: Operation, where: Selection, to: str) -> list[str]:
    settings = at.writing.offload(to)
    run = OffloadRun(
        at.writing.record("offload"),
        where,
        Rule(settings.larger, settings.keep, settings.url_prefix),
        Blobs(settings.to),
        *(at.options, at.limit, at.limit_name),
    )
    question = f"offload large contents, to {visible(run.blobs.label)}, of"
    return await at.change(
        run,
        lambda: Question("Offload", offloading.plan(run.rewritten), at.about(run, question)),
    )


def _blobs(writing: Writing, _: Subject) -> str:
    return writing.offload("").to


def _path(name: str) -> str:
    return os.path.expanduser(name)  # no shell does that


async def _export(at: Operation, where: Selection, name: str) -> list[str]:
    file = at.writing.output(_path(name))
    if file == STDOUT:
        raise UsageError("the browser is on the terminal", "name a file")
    options, source = at.writing.export(at.observer), at.source.location
    done = await api.export(source, file, where, options=options, observer=at.observer)
    written = f"{count(done.copied.memories.written, 'memory')} written to {visible(done.file)}"
    failures = [f"{key}: {why.message}" for key, why in done.copied.failures]
    if failures:
        raise Partial(" · ".join([written, *failures]))
    return [written]


async def _undo(at: Operation, undone: Run, _: str) -> list[str]:
    runs, options = Runs(), at.options
    runs_to_undo(runs, undone)

    def record(_: Location) -> Run:
        return at.writing.record("undo")

    about = runs, undone, at.source.location, record, Selection(), options
    with reversing(*about, named=False, elsewhere=False) as (run, location):
        facts = f"the {undone.command} of {local_time(undone.started)} ({run_changes(undone)})"
        return await at.change(
            run,
            lambda: Question("Undo", changes.change_plan(run.report), f"undo {facts}?"),
            location,
        )


class Action(NamedTuple):
    """What a key does with what is selected.

    ``label`` asks for a text first, unless it is empty; ``suggest`` returns the text that is there
    already.  With ``of_run``, the action is about a run, else about a selection of messages.
    """

    key: str
    name: str
    label: str
    begin: Callable[[Operation, Any, str], Awaitable[list[str]]]
    suggest: Callable[[Writing, Subject], str] = lambda _writing, _subject: ""
    of_run: bool = False


ACTIONS = {
    action.key: action
    for action in (
        Action("+", "Mark", "Add the mark", _mark),
        Action("-", "Unmark", "Remove the mark", _unmark),
        Action("d", "Delete", "", _delete),
        Action("e", "Export", "Export to the file", _export, lambda _, one: file_of(one)),
        Action("O", "Offload", "Offload to the folder", _offload, _blobs),
        Action("u", "Undo", "", _undo, of_run=True),
    )
}
"""The actions by their keys."""
HINTS = (("+ -", "Marks"), ("d", "Delete"), ("e", "Export"), ("O", "Offload"))
"""The keys of the actions on messages, for the last line of the screen."""
