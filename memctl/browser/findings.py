"""The fourth screen: what ``memctl doctor`` finds, examined in the background."""

from __future__ import annotations

from itertools import groupby
from typing import ClassVar, NamedTuple

from rich.console import Group
from rich.text import Text

from memctl.browser.catalogue import Catalogue
from memctl.browser.commands import option, word
from memctl.browser.pane import (
    BOLD,
    DIM,
    PLAIN,
    Hint,
    ListPane,
    Part,
    Signs,
    Subject,
    Target,
    drawn,
    labelled,
    name_of,
    spread,
    with_id,
)
from memctl.browser.source import Reader, Source
from memctl.errors import MemctlError
from memctl.location import visible
from memctl.model import Finding
from memctl.ops.doctor.check import Diagnosis, Limits, check
from memctl.ops.doctor.findings import KINDS, RepairMethod, Severity
from memctl.output import diagnosis
from memctl.text.numbers import count

UNFOLDED = 30
"""The largest number of rows of memories that are all shown at the beginning."""


class _Row(NamedTuple):
    """A row of the list: all findings of a code, one ``finding``, or the message ``id`` of it."""

    code: str
    number: int
    finding: Finding | None = None
    id: str = ""


class Findings(ListPane):
    """The list of findings by code, errors first, with memories and messages below."""

    share: ClassVar[str] = "56"

    def __init__(self, source: Source, catalogue: Catalogue, signs: Signs) -> None:
        super().__init__(signs)
        self._source = source
        self._catalogue = catalogue
        self._found: Diagnosis | None = None
        self._faults: dict[str, list[Finding]] = {}
        self._unfolded: set[str] = set()
        self._rows: list[_Row] = []
        self._told = ""
        self._reader: Reader | None = None

    # Examining

    def entered(self) -> None:
        """Begin to examine the store, the first time."""
        if not self._told:
            self.read_anew()

    def read_anew(self) -> None:
        """Examine the store again."""
        self._say("examining…")
        self.run_worker(self._examine(), group="findings", exclusive=True)

    async def _examine(self) -> None:
        reader = self._reader = self._source.reader()
        progress = reader.progress(self._tell_progress)
        where = self._source.where
        try:
            await reader.open()
            found = await reader.run(lambda store: check(store, where, Limits(), progress))
        except MemctlError as error:
            self._say(f"{error.message}; r examines again")
            self.post_message(self.Told(error.message, error=True))
            return
        finally:
            if self._reader is reader:
                self._reader = None
                self.entitle()
                self.post_message(self.HintsChanged())
            await reader.close()
        self._show(found)

    def _tell_progress(self, messages: int) -> None:
        if self._reader is not None:
            total = self._catalogue.messages if self._catalogue.counted else 0
            of = f" of {total:,}" if total >= messages else ""
            self._say(f"examining… {messages:,}{of}; Esc stops")

    def _say(self, told: str) -> None:
        """Show a text: in place of findings, or in the border below them during an examination."""
        self._told = told
        self.entitle()
        self.redraw()
        self.post_message(self.HintsChanged())

    def _show(self, found: Diagnosis) -> None:
        self._found = found
        by_code = groupby(found.faults, key=lambda fault: fault.code)
        self._faults = {code: list(faults) for code, faults in by_code}
        self._unfolded = set(self._faults) if len(found.faults) <= UNFOLDED else set()
        self.cursor = 0
        checked = f"{count(found.memories, 'memory')}, {count(found.messages, found.noun)} checked"
        self._say(f"healthy: {checked}")
        self._update_rows()

    async def end(self) -> None:
        """Stop the examination, since the browser ends."""
        if self._reader is not None:
            await self._reader.close()

    def _update_rows(self) -> None:
        rows: list[_Row] = []
        for code, faults in self._faults.items():
            rows.append(_Row(code, sum(fault.count for fault in faults)))
            for fault in faults if code in self._unfolded else ():
                first, *others = fault.examples or ("",)
                rows.append(_Row(code, fault.count, fault, first))
                rows += [_Row(code, 0, fault, id) for id in others]
        self._rows = rows
        self.entitle()
        self.redraw()

    # Drawing

    def count(self) -> int:
        """Return the number of rows."""
        return len(self._rows)

    def empty(self) -> str:
        """Return why there are no rows."""
        return self._told

    def row(self, index: int, width: int) -> list[list[Part]]:
        """Return the line of a code, of a memory, or of a further message of a memory."""
        one = self._rows[index]
        right: list[Part] = [(f"{one.number:,}", DIM)] if one.number else []
        left: list[Part]
        if one.finding is None:
            severity = KINDS[one.code].severity
            sign = self.signs.open if one.code in self._unfolded else self.signs.folded
            colour = diagnosis.SEVERITY_STYLES[severity]
            [label] = drawn(Text(f"{severity.value:<8}", f"bold {colour}"), width)
            left = [(f"{sign} ", DIM), *label, (one.code, BOLD)]
        else:
            key = one.finding.key
            where = name_of(key) if key is not None else "the store"
            style = PLAIN if one.number else DIM
            left = [(f"    {where}", style), (f"  {visible(one.id)}", DIM)]
        return [spread(left, right, width, self.signs.more)]

    def below(self, width: int) -> list[list[Part]]:
        """Return what the finding under the cursor is, means, and how to fix it."""
        row = self._rows[self.cursor]
        faults = [row.finding] if row.finding is not None else self._faults[row.code]
        head = Text(f"{KINDS[row.code].what}: {sum(fault.count for fault in faults):,}", "bold")
        if row.finding is not None and row.finding.detail:
            head.append(f"  {visible(row.finding.detail)}", "not bold")
        return drawn(Group(head, labelled(diagnosis.finding_advice(faults[0]))), width)

    def entitle(self) -> None:
        found = self._found
        facts = []
        if self._rows and self._reader is not None:
            facts = [self._told]
        elif found is not None and found.faults:
            numbers = [(severity.value, found.count(severity)) for severity in Severity]
            facts = [count(number, name) for name, number in numbers if number]
            facts.append(f"{count(found.messages, found.noun)} checked")
        self.name_it("Findings", " · ".join(facts))

    def hints(self) -> list[Hint]:
        """Return the most useful keys."""
        if self._reader is not None:
            return [("1-5", "Screens"), ("Esc", "Stop")]
        return [("↵", "Open"), ("r", "Examine again"), ("x", "Commands"), ("Esc", "Back")]

    # Keys

    def enter(self) -> None:
        """Unfold or fold a code; open the message of a finding."""
        if not self._rows:
            return
        row = self._rows[self.cursor]
        if row.finding is None:
            self._unfolded ^= {row.code}
            self._update_rows()
        elif row.finding.key is not None:
            target = Target(with_id(row.id)) if row.id else None
            self.post_message(self.Opened(row.finding.key, target))
        else:
            self.post_message(self.Told("this finding is about the store, not about a message"))

    def leave(self) -> None:
        """Stop the examination; fold the code of the finding; or go back."""
        row = self._rows[self.cursor] if self._rows else None
        if self._reader is not None:
            self.workers.cancel_group(self, "findings")
            self._say("stopped; r examines again")
        elif row is not None and row.finding is not None:
            self._unfolded.discard(row.code)
            self._update_rows()
            self.go_to(next(n for n, one in enumerate(self._rows) if one.code == row.code))
        else:
            self.post_message(self.Left())

    def subject(self) -> Subject:
        """Return the memory and the message of a finding, and commands for its code."""
        if not self._rows:
            return Subject()
        row = self._rows[self.cursor]
        key = row.finding.key if row.finding is not None else None
        line = f"memctl doctor {word(self._source.argument)} {row.code}"
        if key is not None:
            line += option("--user", key.user) + option("--session", key.session)
        commands = [line]
        if KINDS[row.code].repair is not RepairMethod.NONE:
            commands.append(f"{line} --repair --dry-run")
        id = row.id or None if key is not None else None
        return Subject(key, id, commands=tuple(commands))

    def copied(self) -> str:
        """Return the code, or the id of the message."""
        if not self._rows:
            return ""
        row = self._rows[self.cursor]
        return row.code if row.finding is None else row.id
