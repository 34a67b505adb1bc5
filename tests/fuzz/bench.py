"""The bench of an input: folders of its own, commands, and the invariants after each."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

from memctl.cli import COMMANDS
from memctl.journal.changes import read_changes
from memctl.journal.repairs import QUARANTINE, REPAIRS
from tests.fuzz import invariants
from tests.fuzz.command import Memctl, Outcome
from tests.fuzz.invariants import NOTHING_DONE, Broken, check_same
from tests.fuzz.threads import THREADS_EVERY, use_threads

METRICS = "metrics.prom"
"""The file that --metrics-file writes, however a command ends."""


@dataclass(frozen=True, slots=True)
class Specimen:
    """A store that commands are tried on."""

    argument: str
    """As a user writes it."""
    contents: Callable[[], Any]
    """A function that returns the value of all that is in it, past memctl; None where nothing."""
    on_server: bool = False
    stdin: bytes | None = None
    """Its bytes, where it can be read from there."""
    options: tuple[str, ...] = ()
    """The options by which commands find the memory in it."""
    has_password: bool = False
    """True where the argument has one, which runs do not record."""
    is_foreign: bool = False
    """True where its messages are those of another framework, which copies convert."""
    is_sound: bool = True
    """False where its parts contradict each other, so that nobody knows what it holds."""


@dataclass(slots=True)
class Bench:
    """Runs the commands of an input."""

    memctl: Memctl
    folder: Path
    """The working folder of the commands, emptied for each input."""
    show: Callable[[str], None] | None = None
    """A function that is told every command, and how it ended."""
    codes: Counter[str] = field(default_factory=Counter)
    """The runs of this input by command and exit code."""
    specimens: list[Specimen] = field(default_factory=list)
    """The stores on servers that the input may change."""
    targets: list[Callable[[Random], Specimen]] = field(default_factory=list)
    """Functions that make a store to copy into."""
    scenes: Collection[str] = ()
    """The scenes that are played with stores; see ``scenarios``."""
    last: list[str] = field(default_factory=list)
    """The words of the last command."""
    number: int = 0
    """That of the input."""
    kilobytes: int = 0
    """By how much a command of this input has grown the process."""
    schema: bool = False
    """True where reports in JSON are compared with their schemas."""

    def begin(self, number: int) -> None:
        """Begin an input."""
        self.number = number
        self.kilobytes = 0
        use_threads(real=number % THREADS_EVERY == 0)
        self.codes.clear()
        self.specimens.clear()
        self.clear()

    def clear(self) -> None:
        """Clear away what commands have left."""
        for folder in (self.folder, self.memctl.state, self.memctl.temporary):
            for entry in os.scandir(folder):
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path)
                else:
                    os.unlink(entry.path)
        os.chdir(self.folder)

    def run(
        self,
        *words: str,
        stdin: bytes = b"",
        reads: bool = False,
        kept: Sequence[Specimen] = (),
    ) -> Outcome:
        """Run a command and check what holds after each.

        ``reads`` where it changes nothing, ``kept`` are the stores that it does not change.

        Raises:
            Broken: an invariant does not hold.
        """
        self.last = [*words]
        before = self._everything()
        sources = [specimen.contents() for specimen in kept]
        outcome = self.memctl.run([*words], stdin)
        self.kilobytes = max(self.kilobytes, outcome.kilobytes)
        self.codes[f"{_command(words)} {outcome.code}"] += 1
        if self.show is not None:
            self.show(f"{outcome.code}  memctl {' '.join(map(ascii, words))}")
            self.show(outcome.stderr)
        invariants.check_end(outcome)
        invariants.check_output(outcome, schema=self.schema)
        invariants.check_leftovers(self.memctl)
        name = _command(words)
        if reads:
            check_same(f"{name} reads, and changed something", before, self._everything())
        elif outcome.code in NOTHING_DONE:
            rule = f"{name} failed with {outcome.code}, and changed something"
            check_same(rule, before, self._everything())
        for specimen, source in zip(kept, sources, strict=True):
            check_same(f"{name} changed its source", source, specimen.contents())
        return outcome

    def runs(self) -> int:
        """Return how many runs are recorded for undo."""
        folder = self.memctl.state / "memctl" / "runs"
        return sum(entry.is_dir() for entry in os.scandir(folder)) if folder.is_dir() else 0

    def check_undo(
        self, rng: Random, specimen: Specimen, before: Any, what: str, *, again: bool = True
    ) -> None:
        """Undo the last run, if there is one, and check that the store is what it was before.

        ``again`` is False where an undo of the undo need not be exact.

        Raises:
            Broken: it is not; or the undo of the undo does not bring back what was undone.
        """
        after = specimen.contents()
        if not self.runs():
            if before is not None:  # a copy of nothing makes an empty store
                check_same(f"{what} changed something, and recorded nothing", before, after)
            return
        # What a repair puts among the rows of a table moves the rows behind it, for good.
        moves = what == "doctor" and specimen.is_foreign
        if moves or not specimen.is_sound:
            self.run("undo", "--yes")
            return
        if self._has(QUARANTINE):  # damaged data stay there, and with them perhaps a place
            self._run_undo(specimen, f"undo of {what}", allowed=(0, 5))
            return
        if before is None:  # the empty store stays
            self._run_undo(specimen, f"undo of {what}")
            looked = self.run("inspect", specimen.argument, "--json", reads=True)
            if json.loads(looked.stdout)["totals"]["memories"]:
                raise Broken(f"undo of {what} leaves memories in a new store", looked.stderr)
            return
        self._undo(specimen, before, f"undo of {what}")
        again = again and rng.random() < 0.25
        if again and not (self._has(REPAIRS) or self._makes_empty()):
            # What a copy replaced is restored by a run of its own: an undo may be two.
            *undone, _ = self._listed()
            if not undone:
                return  # there was nothing to undo
            self._undo(specimen, after, f"undo of an undo of {what}", *undone)
            *redone, _ = self._listed()[: -len(undone)]
            self._undo(specimen, before, f"second undo of {what}", *redone)

    def _has(self, name: str) -> bool:
        """Return whether a run has a file of that name, such as repairs besides messages."""
        folder = self.memctl.state / "memctl" / "runs"
        return any(folder.glob(f"*/{name}"))

    def _makes_empty(self) -> bool:
        """Return whether a run has made memories without messages, which an undone undo does not.

        Runs of copies alone record a memory without changes.
        """
        folder = self.memctl.state / "memctl" / "runs"
        edits = (edit for path in folder.glob("*/changes-*") for edit in read_changes(path))
        return any(edit.last and not (edit.offset or edit.changes) for edit in edits)

    def _listed(self) -> list[str]:
        """Return the ids of all runs, the last one first."""
        listed = self.run("history", "--json", reads=True)
        return [one["run"] for one in json.loads(listed.stdout)["runs"]]

    def _undo(self, specimen: Specimen, expected: Any, what: str, *runs: str) -> None:
        for run in runs or [None]:
            self._run_undo(specimen, what, *([run] if run else []))
        check_same(f"{what} is not exact", expected, specimen.contents())

    def _run_undo(
        self, specimen: Specimen, what: str, *run: str, allowed: tuple[int, ...] = (0,)
    ) -> None:
        store = ["--store", specimen.argument] if specimen.has_password else []
        outcome = self.run("undo", *run, "--yes", *store)
        if outcome.code not in allowed:
            raise Broken(f"{what} ends with {outcome.code}", outcome.stderr)

    def _everything(self) -> dict[Any, Any]:
        found: dict[Any, Any] = dict(invariants.snapshot(self.folder))
        for name in (METRICS, *_values(self.last, "--metrics-file")):
            found.pop(name, None)
        for name in [name for name in found if name.endswith("qdrant/.lock")]:
            del found[name]  # qdrant's client leaves it there, too
        for specimen in self.specimens:
            contents = specimen.contents()
            pairs = contents.items() if isinstance(contents, dict) else [("all", contents)]
            # A table without rows counts for none: a copy that fails leaves those that it made.
            found.update(((specimen.argument, name), value) for name, value in pairs if value != [])
        return found


def _values(words: Sequence[str], option: str) -> list[str]:
    """The words that follow an option, whatever they were meant to be."""
    return [value for name, value in pairwise(words) if name == option]


def _command(words: Sequence[str]) -> str:
    """The command among the words, which options may precede."""
    for at, word in enumerate(words):
        if word in COMMANDS:
            return " ".join(words[at : at + 2]) if word in ("mark", "config") else word
    return "memctl"
