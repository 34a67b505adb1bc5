"""The actions of ``memctl browse --write``: marks, deletion, export, offload, undo.

``ACTIONS`` lists them.  An action is a coroutine that gets its ``Operation``, what is selected, and
the text that the user typed for it.  It runs the operation of the command of the same name, with
the record, the holds and the limit of this command, and returns what there is to tell besides.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple

from msgspec import structs
from rich.console import Group, RenderableType
from rich.text import Text

from memctl import api
from memctl.browser.commands import file_of
from memctl.browser.pane import Subject
from memctl.browser.source import Background, Notices, Source, Writing
from memctl.errors import Interrupted, MemctlError, Partial, UsageError
from memctl.journal.runs import Run, Runs, short_ids
from memctl.location import visible
from memctl.ops.change.apply import SHOWN_MEMORIES
from memctl.ops.change.change import ChangeRun
from memctl.ops.export.destination import STDOUT
from memctl.ops.offload.run import OffloadRun
from memctl.ops.offload.slim import Rule
from memctl.output import changes, offloading
from memctl.output.history import run_changes
from memctl.output.tables import append_failures
from memctl.selection import Selection
from memctl.text.numbers import count, local_time

Question = Callable[[Any], tuple[RenderableType, str]]
"""Returns what a planned run would do, and the question about it."""


class Operation(Background):
    """An action that goes on in a thread of its own, once.

    ``ask`` shows a plan with a question in the thread of the caller, and sets the answer; ``tell``
    shows a text there.  At the end, ``told`` says what was done, ``complete`` is True if that is
    all, and ``failed`` if there was an error; neither is if the user stopped it or said no.
    """

    patience = None

    def __init__(
        self,
        source: Source,
        writing: Writing,
        ask: Callable[[RenderableType, Future[bool]], object],
        tell: Callable[[str], object],
    ) -> None:
        super().__init__()
        self.source, self.writing = source, writing
        self.told, self.complete, self.failed = "", False, False
        self._ask, self._caller = ask, asyncio.get_running_loop()
        listener = self.progress(lambda messages: tell(f"working… {messages:,}; Esc stops"))
        self.observer = Notices(source.notices.timeout, listener)
        self.observer.tell = lambda text: self._caller.call_soon_threadsafe(tell, text)
        self.options = writing.options(self.observer)
        self._task: asyncio.Task[None] | None = None
        self._run: ChangeRun | None = None

    @property
    def is_over(self) -> bool:
        """Return whether the action has ended, and may be forgotten."""
        return self._task is not None and self._task.done()

    async def perform(self, action: Action, chosen: Any, text: str) -> None:
        """Carry out an action, until its end; no error of memctl is raised."""
        try:
            await self.submit(self._perform(action, chosen, text))
        finally:
            await self.close()

    async def _perform(self, action: Action, chosen: Any, text: str) -> None:
        self._task = asyncio.current_task()
        told: list[str] = []
        error: MemctlError | None = None
        try:
            told = await action.begin(self, chosen, text)
        except asyncio.CancelledError:
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
        self.complete = error is None
        self.failed = error is not None and not isinstance(error, Interrupted)
        self.told = " · ".join([*told, *self.observer.warnings])

    async def stop(self) -> None:
        """Stop the action as a signal stops its command, and wait for its end.

        No memory is half changed.
        """
        await self.submit(self._stop())

    async def _stop(self) -> None:
        stop = None if self._run is None else self._run.stop
        assert self._task is not None
        if stop is not None and stop.cooperative and not stop.asked:
            stop.ask()
        else:
            self._task.cancel()
        await asyncio.wait([self._task])

    # What actions use

    async def change(
        self, work: Callable[..., Awaitable[object]], question: Question | None = None
    ) -> list[str]:
        """Carry out an operation of ``api``; ask the question about its plan before the change.

        Return the reason if there is nothing to change.

        Raises:
            MemctlError: as ``work``; ``Interrupted`` if the user does not say yes.
        """
        approve = None if question is None else partial(self._confirm, question)
        await work(run=structs.replace(self.options, watch=self._watch, approve=approve))
        return [] if self._run is None or self._run.begun else [self._run.nothing]

    def _watch(self, run: ChangeRun) -> None:
        self._run = run

    async def _confirm(self, about: Question, run: ChangeRun) -> None:
        plan, question = about(run)
        more = Text("".join(f"\n{one}\n" for one in self.observer.warnings), "yellow")
        append_failures(more, run.report.failures)
        self.observer.warnings.clear()
        shown, answer = Group(plan, more, Text(f"\n{question} [y/N]", "bold")), Future[bool]()
        self._caller.call_soon_threadsafe(self._ask, shown, answer)
        if not await asyncio.wrap_future(answer):
            raise Interrupted("not confirmed", "nothing was changed")

    def about(self, run: ChangeRun) -> str:
        """Return how much a plan changes, for its question."""
        planned, label = run.report.planned, visible(self.source.location.label)
        shown = f" ({SHOWN_MEMORIES} shown)" if planned.memories > SHOWN_MEMORIES else ""
        memories = f"{count(planned.memories, 'memory')}{shown}"
        return f"{count(planned.deleted, run.report.noun)} in {memories} of {label}?"


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
    return await at.change(
        partial(api.delete, at.source.location, where, warn_parted=True),
        lambda run: (changes.change_plan(run.report), f"delete {at.about(run)}"),
    )


async def _mark(adds: bool, at: Operation, where: Selection, mark: str) -> list[str]:
    add, remove = (mark, None) if adds else (None, mark)
    return await at.change(partial(api.mark, at.source.location, where, add=add, remove=remove))


async def _offload(at: Operation, where: Selection, to: str) -> list[str]:
    settings = at.writing.offload(to)
    if not settings.to:
        raise UsageError("no folder is named", 'type one, or configure [offload] with to = "DIR"')
    rule = Rule(settings.larger, settings.keep, settings.url_prefix)
    return await at.change(
        partial(api.offload, at.source.location, _path(settings.to), where, rule=rule),
        lambda run: (offloading.plan(run.rewritten), f"offload large contents of {at.about(run)}"),
    )


def _path(name: str) -> str:
    return os.path.expanduser(name)  # no shell does that


async def _export(at: Operation, where: Selection, name: str) -> list[str]:
    file = at.writing.output(_path(name))
    if file in ("", STDOUT):
        raise UsageError("the browser is on the terminal", "name a file")
    about = at.source.location, file, where
    done = await api.export(*about, options=at.writing.export(), observer=at.observer)
    written = f"{count(done.copied.memories.written, 'memory')} written to {visible(done.file)}"
    failures = [f"{key}: {why.message}" for key, why in done.copied.failures]
    if failures:
        raise Partial(" · ".join([written, *failures]))
    return [written]


async def _undo(at: Operation, undone: Run, _: str) -> list[str]:
    question = f"undo the {undone.command} of {local_time(undone.started)} ({run_changes(undone)})?"
    return await at.change(
        partial(api.undo, undone.id, store=at.source.location),
        lambda run: (changes.change_plan(run.report), question),
    )


class Action(NamedTuple):
    """An action of a key on the selected messages or memories.

    ``label`` asks for a text first, unless it is empty; ``suggest`` returns the text that is there
    already.  With ``of_run``, the action is about a run, else about a selection of messages.
    """

    key: str
    name: str
    label: str
    begin: Callable[[Operation, Any, str], Awaitable[list[str]]]
    suggest: Callable[[Subject], str] = lambda _: ""
    of_run: bool = False


ACTIONS = {
    action.key: action
    for action in (
        Action("+", "Mark", "Add the mark", partial(_mark, True)),
        Action("-", "Unmark", "Remove the mark", partial(_mark, False)),
        Action("d", "Delete", "", _delete),
        Action("e", "Export", "Export to the file", _export, file_of),
        Action("O", "Offload", "Offload to the folder (as configured)", _offload),
        Action("u", "Undo", "", _undo, of_run=True),
    )
}
"""The actions by their keys."""
HINTS = (("+ -", "Marks"), ("d", "Delete"), ("e", "Export"), ("O", "Offload"))
"""The keys of the actions on messages, for the last line of the screen."""
