"""The fifth screen: what memctl changed in the store, and how to undo it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from rich.text import Text

from memctl.browser.catalogue import Catalogue
from memctl.browser.commands import word
from memctl.browser.pane import Hint, ListPane, Subject, drawn, labelled, spread
from memctl.browser.source import Source
from memctl.errors import MemctlError
from memctl.journal.runs import RUNNING, Run
from memctl.location import visible
from memctl.ops.history import RunList, list_runs
from memctl.output.history import run_changes, run_command, run_state
from memctl.text.numbers import count, local_time, size

LIMIT = 1000
"""The maximum number of runs that are listed."""
WIDE = 70
"""The columns from which on a row has the state of the run."""


class Runs(ListPane[Run]):
    """The list of runs, newest first; the undo command of the one under the cursor is below."""

    TITLE = "Runs"

    def __init__(self, source: Source, catalogue: Catalogue) -> None:
        super().__init__(source, catalogue)
        self.told = "reading…"
        self._list = RunList([], {}, {}, 0, [])

    # Reading

    def entered(self) -> None:
        """Read the runs, which are quickly read."""
        self.read_anew()

    def read_anew(self) -> None:
        """Read the runs again."""
        self.run_worker(self._read(), group="runs", exclusive=True)

    async def _read(self) -> None:
        source = self.source
        try:
            self._list = await asyncio.to_thread(list_runs, source.location, LIMIT, source.address)
        except MemctlError as error:
            self.post_message(self.Told(error.message, error=True))
            return
        if self._list.damaged:
            damaged = count(len(self._list.damaged), "record")
            self.post_message(self.Told(f"left out {damaged} of runs, which are damaged"))
        chosen, self.rows = self.chosen, self._list.runs
        ids = [run.id for run in self.rows]
        if chosen is not None and chosen.id in ids:
            self.cursor = ids.index(chosen.id)
        self.say("No run that can be undone has changed this store.")

    # Drawing

    def draw(self, row: Run, width: int) -> list[Text]:
        """Return the line of a run."""
        style = "dim" if row.undone_by or row.settled else ""
        name, command = visible(self._list.names[row.id]), visible(run_command(row))
        left = Text.assemble(
            (f"{name}  ", "cyan"), (f"{command:<9} ", "bold"), run_changes(row), style=style
        )
        state, when = "", visible(local_time(row.started))
        if width >= WIDE:
            state = f"  {self._state(row)}"
        else:
            when = when[:16]
        return [spread(left, Text(f"{state}  {when}", "dim"), width)]

    def _state(self, run: Run) -> str:
        return visible(run_state(run, self._list.names))

    def below(self, row: Run, width: int) -> list[Text]:
        """Return the state of a run, and the command that undoes it."""
        facts = [self._state(row), count(row.memories, "memory"), size(self._list.sizes[row.id])]
        undo = self._undo(row) or "it cannot be undone"
        return drawn(labelled({"run": row.id, "state": " · ".join(facts), "undo": undo}), width)

    def _undo(self, run: Run) -> str:
        """Return the command that undoes a run; empty if it cannot be undone."""
        if run.undone_by or run.settled or run.planned or run.outcome == RUNNING:
            return ""
        store = f" --store {word(self.source.argument)}" if run.secret else ""
        return f"memctl undo {word(self._list.names[run.id])}{store}"

    def facts(self) -> Iterable[str]:
        """Return the number of runs."""
        yield count(len(self.rows), "run") if self.rows else ""
        yield f"{self._list.hidden:,} older" if self._list.hidden else ""

    def hints(self) -> Sequence[Hint]:
        """Return the most useful keys."""
        if not self.rows:
            return (("r", "Read again"), ("1-5", "Screens"), ("Esc", "Back"))
        undo = (("u", "Undo"),) if self.source.writing else ()
        return (("↵", "Details"), *undo, ("x", "Commands"), ("y", "Copy id"), ("Esc", "Back"))

    # Keys

    def open(self, row: Run) -> None:
        """Show what is known of a run."""
        facts = {
            "run": row.id,
            "command": run_command(row),
            "job": row.job,
            "store": row.store,
            "started": local_time(row.started),
            "ended": local_time(row.ended) if row.ended else "",
            "state": run_state(row, self._list.names),
            "changed": run_changes(row),
            "memories": f"{row.memories:,}",
            "undo data": size(self._list.sizes[row.id]),
            "undoes": row.undoes,
            "undo": self._undo(row),
        }
        self.post_message(self.Described(f"run {self._list.names[row.id]}", labelled(facts)))

    def selected(self) -> Run | None:
        """Return the run under the cursor, if it can be undone."""
        return self.chosen if self.chosen is not None and self._undo(self.chosen) else None

    def about(self, row: Run) -> Subject:
        """Return the commands that undo a run, and list all; and its id to copy."""
        command = self._undo(row)
        undo = (f"{command} --dry-run", command) if command else ()
        history = f"memctl history {word(self.source.argument)}"
        return Subject(commands=(*undo, history), copied=row.id)
