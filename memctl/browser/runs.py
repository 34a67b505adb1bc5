"""The fifth screen: what memctl changed in the store, and how to undo it."""

from __future__ import annotations

import asyncio

from memctl.browser.commands import word
from memctl.browser.pane import (
    BOLD,
    DIM,
    LINK,
    PLAIN,
    Hint,
    ListPane,
    Part,
    Signs,
    Subject,
    drawn,
    labelled,
    spread,
)
from memctl.browser.source import Source
from memctl.errors import MemctlError
from memctl.journal.runs import RUNNING, Run
from memctl.location import visible
from memctl.ops.history import RunList, list_runs
from memctl.ops.same_store import is_on
from memctl.output.history import run_changes, run_command, run_state
from memctl.text.numbers import count, local_time, size

LIMIT = 1000
"""The maximum number of runs that are listed."""
WIDE = 70
"""The columns from which on a row has the state of the run."""


class Runs(ListPane):
    """The list of runs, newest first; the undo command of the one under the cursor is below."""

    def __init__(self, source: Source, signs: Signs) -> None:
        super().__init__(signs)
        self._source = source
        self._list = RunList([], {}, {}, 0, [])
        self._told = "reading…"

    # Reading

    def entered(self) -> None:
        """Read the runs, which are quickly read."""
        self.read_anew()

    def read_anew(self) -> None:
        """Read the runs again."""
        self.run_worker(self._read(), group="runs", exclusive=True)

    async def _read(self) -> None:
        source = self._source
        try:
            self._list = await asyncio.to_thread(
                list_runs, lambda run: is_on(run, source.location, source.address), LIMIT
            )
        except MemctlError as error:
            self.post_message(self.Told(error.message, error=True))
            return
        if self._list.damaged:
            damaged = count(len(self._list.damaged), "record")
            self.post_message(self.Told(f"left out {damaged} of runs, which are damaged"))
        self._told = "No run that can be undone has changed this store."
        self.entitle()
        self.redraw()
        self.post_message(self.HintsChanged())

    # Drawing

    def count(self) -> int:
        """Return the number of runs."""
        return len(self._list.runs)

    def empty(self) -> str:
        """Return why there are no runs."""
        return self._told

    def row(self, index: int, width: int) -> list[list[Part]]:
        """Return the line of a run."""
        run = self._list.runs[index]
        name = visible(self._list.names[run.id])
        state = f"  {self._state(run)}" if width >= WIDE else ""
        style = DIM if run.undone_by or run.settled else PLAIN
        left = [
            (f"{name}  ", LINK + style),
            (f"{visible(run_command(run)):<9} ", BOLD + style),
            (run_changes(run), style),
        ]
        when = local_time(run.started)
        right = [(f"{state}  {visible(when if width >= WIDE else when[:16])}", DIM)]
        return [spread(left, right, width, self.signs.more)]

    def _state(self, run: Run) -> str:
        return visible(run_state(run, self._list.names))

    def below(self, width: int) -> list[list[Part]]:
        """Return the state of the run under the cursor, and the command that undoes it."""
        run = self._run
        facts = [self._state(run), count(run.memories, "memory"), size(self._list.sizes[run.id])]
        undo = self._undo(run) or "it cannot be undone"
        return drawn(labelled({"run": run.id, "state": " · ".join(facts), "undo": undo}), width)

    @property
    def _run(self) -> Run:
        """The run under the cursor."""
        return self._list.runs[self.cursor]

    def _undo(self, run: Run) -> str:
        """Return the command that undoes a run; empty if it cannot be undone."""
        if run.undone_by or run.settled or run.planned or run.outcome == RUNNING:
            return ""
        store = f" --store {word(self._source.argument)}" if run.secret else ""
        return f"memctl undo {word(self._list.names[run.id])}{store}"

    def entitle(self) -> None:
        number = len(self._list.runs)
        facts = [count(number, "run")] if number else []
        if self._list.hidden:
            facts.append(f"{self._list.hidden:,} older")
        self.name_it("Runs", " · ".join(facts))

    def hints(self) -> list[Hint]:
        """Return the most useful keys."""
        if not self._list.runs:
            return [("r", "Read again"), ("1-5", "Screens"), ("Esc", "Back")]
        return [("↵", "Details"), ("x", "Commands"), ("y", "Copy id"), ("Esc", "Back")]

    # Keys

    def enter(self) -> None:
        """Show what is known of the run under the cursor."""
        if self._list.runs:
            run = self._run
            facts = {
                "run": run.id,
                "command": run_command(run),
                "job": run.job,
                "store": run.store,
                "started": local_time(run.started),
                "ended": local_time(run.ended) if run.ended else "",
                "state": run_state(run, self._list.names),
                "changed": run_changes(run),
                "memories": f"{run.memories:,}",
                "undo data": size(self._list.sizes[run.id]),
                "undoes": run.undoes,
                "undo": self._undo(run),
            }
            title = f"run {self._list.names[run.id]}"
            self.post_message(self.Described(title, labelled(facts)))

    def subject(self) -> Subject:
        """Return the commands that undo the run under the cursor, and list all."""
        if not self._list.runs:
            return Subject()
        history = f"memctl history {word(self._source.argument)}"
        command = self._undo(self._run)
        undo = (f"{command} --dry-run", command) if command else ()
        return Subject(commands=(*undo, history))

    def copied(self) -> str:
        """Return the id of the run under the cursor."""
        return self._run.id if self._list.runs else ""
