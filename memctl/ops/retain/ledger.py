"""The ledger of retention: which archives the runs have begun, and what became of each.

The ledger is a file of lines with a digest each, in the state folder.  A line is appended before a
run writes an archive, and another when the run has acted on the archive.  So the next run finds the
archive of a killed run.  memctl never removes an archive, whatever the ledger says.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct

from memctl.journal.files import new_folder, refusals
from memctl.journal.lines import sealed, unsealed
from memctl.journal.runs import state_folder
from memctl.machine import system

_NAME = "ledger.ndjson"
_TORN = b" torn\n"
"""The end that the next run gives to the line that a killed run left without one."""
BEGUN, ACTED, ABSENT, LEFT = "begun", "acted", "absent", "left"
"""The events of an archive: a run is about to write it; a run has acted on it; it never came to be,
because the run was killed before; it could not be read, and a later run needed no archive, or has
acted on another."""


class LedgerEntry(Struct, frozen=True):
    """A line of the ledger: an event of the archive of a policy."""

    event: str
    policy: str
    archive: str
    """The absolute path or the URL of the archive."""
    store: str
    """The label of the store of the policy."""
    time: str
    messages: int = 0
    """With ACTED, the number of messages in the archive."""


class Ledger:
    """The ledger in the state folder."""

    def __init__(self) -> None:
        self.path = state_folder().parent / "retention" / _NAME

    def prepare(self) -> None:
        """Create the folder of the ledger.

        Raises:
            Unavailable: the operating system refuses.
        """
        with refusals(self.path.parent):
            new_folder(self.path.parent)

    def read(self) -> tuple[list[LedgerEntry], list[int]]:
        """Return the entries, in order, and the numbers of the damaged lines, counted from 1.

        A last line without an end comes from a killed run, and is not damage.

        Raises:
            Unavailable: the operating system refuses.
        """
        found: list[LedgerEntry] = []
        damaged: list[int] = []
        with refusals(self.path):
            if not self.path.exists():
                return [], []
            lines = system.read_file(self.path).splitlines(keepends=True)
        for number, line in enumerate(lines, 1):
            try:
                found.append(LedgerEntry(**unsealed(line)))
            except (ValueError, TypeError):
                if line.endswith(b"\n") and not line.endswith(_TORN):
                    damaged.append(number)
        return found, damaged

    def archives(self) -> list[str]:
        """Return the archives that exist by the entries, those of all policies.

        Raises:
            Unavailable: the operating system refuses.
        """
        return [entry.archive for entry in self.read()[0] if entry.event != ABSENT]

    def pending(self, policy: str) -> list[LedgerEntry]:
        """Return the begun archives of a policy on which no run has acted, oldest first.

        Raises:
            Unavailable: the operating system refuses.
        """
        found: dict[str, LedgerEntry] = {}
        for entry in self.read()[0]:
            if entry.policy != policy:
                continue
            if entry.event == BEGUN:
                found[entry.archive] = entry
            else:
                found.pop(entry.archive, None)
        return list(found.values())

    def add(self, event: str, policy: str, archive: str, store: str, messages: int = 0) -> None:
        """Append a line, durably.

        Raises:
            Unavailable: the operating system refuses the write.
        """
        time = datetime.now(UTC).isoformat(timespec="seconds")
        record: dict[str, Any] = {"event": event, "policy": policy, "archive": archive}
        record |= {"store": store, "time": time, "messages": messages}
        with refusals(self.path):
            new_folder(self.path.parent)
            is_new = not self.path.exists()
            flags = system.WRITE_FLAGS | os.O_CREAT | os.O_APPEND
            handle = os.open(self.path, flags, 0o600)
            try:
                size = os.fstat(handle).st_size
                torn = size and os.pread(handle, 1, size - 1) != b"\n"
                line = (_TORN if torn else b"") + sealed(record)
                while line:  # a disk with too little room for the line takes a part of the line
                    line = line[os.write(handle, line) :]
                os.fsync(handle)
            finally:
                os.close(handle)
            if is_new:
                system.sync_folder(self.path.parent)
