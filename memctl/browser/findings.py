"""The fourth screen: what ``memctl doctor`` finds, examined in the background."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import groupby
from typing import NamedTuple

from rich.console import Group
from rich.text import Text

from memctl.browser.catalogue import Catalogue
from memctl.browser.commands import option, word
from memctl.browser.pane import (
    Folded,
    Subject,
    Target,
    drawn,
    labelled,
    name_of,
    spread,
    with_id,
)
from memctl.browser.source import Reader, Source
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


class Findings(Folded[_Row]):
    """The list of findings by code, errors first, with memories and messages below."""

    TITLE = "Findings"
    HINTS = (("↵", "Open"), ("r", "Examine again"), ("x", "Commands"), ("Esc", "Back"))
    AGAIN = "r examines again"
    share = "56"

    def __init__(self, source: Source, catalogue: Catalogue) -> None:
        super().__init__(source, catalogue)
        self._found: Diagnosis | None = None
        self._faults: dict[str, list[Finding]] = {}

    # Examining

    def entered(self) -> None:
        """Begin to examine the store, the first time."""
        if not self.told:
            self.read_anew()

    def read_anew(self) -> None:
        """Examine the store again."""
        self.say("examining…")
        self.run_worker(self._examine(), group="findings", exclusive=True)

    async def _examine(self) -> None:
        reader = self.source.reader()
        found = await self.wait_for(reader, self._check(reader))
        if found is None:
            return
        self._found = found
        by_code = groupby(found.faults, key=lambda fault: fault.code)
        self._faults = {code: list(faults) for code, faults in by_code}
        self.unfolded = set(self._faults) if len(found.faults) <= UNFOLDED else set()
        self.rows, self.cursor = (), 0
        checked = f"{count(found.memories, 'memory')}, {count(found.messages, found.noun)} checked"
        self.say(f"healthy: {checked}")
        self.update_rows()

    async def _check(self, reader: Reader) -> Diagnosis:
        progress = reader.progress(partial(self.tell_progress, "examining…", True))
        await reader.open()
        where = self.source.where
        return await reader.run(lambda store: check(store, where, Limits(), progress))

    def made(self) -> Iterable[_Row]:
        """Yield codes with their memories and messages."""
        for code, faults in self._faults.items():
            yield _Row(code, sum(fault.count for fault in faults))
            for fault in faults if code in self.unfolded else ():
                first, *others = fault.examples or ("",)
                yield _Row(code, fault.count, fault, first)
                yield from (_Row(code, 0, fault, id) for id in others)

    def group(self, row: _Row) -> str:
        """Return the code."""
        return row.code

    def is_head(self, row: _Row) -> bool:
        """Return whether a row is that of a code."""
        return row.finding is None

    # Drawing

    def draw(self, row: _Row, width: int) -> list[Text]:
        """Return the line of a code, of a memory, or of a further message of a memory."""
        if row.finding is None:
            severity = KINDS[row.code].severity
            left = Text.assemble(
                ("▾ " if row.code in self.unfolded else "▸ ", "dim"),
                (f"{severity.value:<8}", f"bold {diagnosis.SEVERITY_STYLES[severity]}"),
                (row.code, "bold"),
            )
        else:
            key = row.finding.key
            where = name_of(key) if key is not None else "the store"
            style = "" if row.number else "dim"
            left = Text.assemble((f"    {where}", style), (f"  {visible(row.id)}", "dim"))
        return [spread(left, Text(f"{row.number:,}" if row.number else "", "dim"), width)]

    def below(self, row: _Row, width: int) -> list[Text]:
        """Return what a finding is, means, and how to fix it."""
        faults = [row.finding] if row.finding is not None else self._faults[row.code]
        head = Text(f"{KINDS[row.code].what}: {sum(fault.count for fault in faults):,}", "bold")
        if row.finding is not None and row.finding.detail:
            head.append(f"  {visible(row.finding.detail)}", "not bold")
        return drawn(Group(head, labelled(diagnosis.finding_advice(faults[0]))), width)

    def facts(self) -> Iterable[str]:
        """Return the numbers of findings, or how far an examination is."""
        found = self._found
        if self.rows and self.work is not None:
            yield self.told
        elif found is not None and found.faults:
            numbers = [(severity.value, found.count(severity)) for severity in Severity]
            yield from (count(number, name) for name, number in numbers if number)
            yield f"{count(found.messages, found.noun)} checked"

    # Keys

    def open(self, row: _Row) -> None:
        """Open the message of a finding."""
        assert row.finding is not None
        if row.finding.key is not None:
            target = Target(with_id(row.id)) if row.id else None
            self.post_message(self.Opened(row.finding.key, target))
        else:
            self.post_message(self.Told("this finding is about the store, not about a message"))

    def about(self, row: _Row) -> Subject:
        """Return the memory and the message of a finding, and commands for its code."""
        key = row.finding.key if row.finding is not None else None
        line = f"memctl doctor {word(self.source.argument)} {row.code}"
        if key is not None:
            line += option("--user", key.user) + option("--session", key.session)
        commands = [line]
        if KINDS[row.code].repair is not RepairMethod.NONE:
            commands.append(f"{line} --repair --dry-run")
        id = row.id or None if key is not None else None
        copied = row.code if row.finding is None else row.id
        return Subject(key, id, commands=tuple(commands), copied=copied)
