"""The record of ``memctl hold``: an entry for each addition and removal of a hold.

The record is ``holds.ndjson`` in the platform's state folder: a line with a digest for each entry,
in the order of the entries.  No entry is ever changed or removed.  A damaged record is an error,
never an empty record: the damage may hide a hold.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from memctl.errors import BadData, NotFound
from memctl.holds import LIST, Hold
from memctl.journal.files import locked, new_folder, refusals, replace_file
from memctl.journal.lines import sealed, unsealed
from memctl.journal.runs import Runs
from memctl.machine import system

_NAME = "holds.ndjson"
_LOCK = "holds.lock"
_ADD, _REMOVE = "add", "remove"
_SHOWN = 10
"""The number of damaged lines that an error names."""


class HoldEvent(Struct, frozen=True):
    """One entry of the record: when it was made, by whom, and why."""

    at: str
    """The time in UTC, such as ``2026-11-27T06:00:00+00:00``."""
    by: str
    """The login name of the operator."""
    reason: str = ""


class RecordedHold(Struct, frozen=True):
    """A hold with its entries in the record; ``removed`` is None until the hold is removed."""

    hold: Hold
    added: HoldEvent
    removed: HoldEvent | None = None
    follows: str = ""
    """The id of the hold on the former name, if a rename made this hold; else empty."""


class HoldRecord:
    """The record of the holds that ``memctl hold`` has added and removed."""

    def __init__(self, folder: Path | None = None, identity: str = "") -> None:
        """``folder`` is the state folder; None means the usual one.

        ``identity`` is the identity that the folder of runs must have; empty for any.
        """
        self._identity = identity
        if folder is None:
            from platformdirs import user_state_path  # only needed for changes and undo

            folder = user_state_path("memctl")
        self.path = folder / _NAME

    def all(self) -> list[RecordedHold]:
        """Return all holds of the record, removed holds too, in the order in which they were added.

        Raises:
            BadData: the record is damaged; the message names the lines.
            Unavailable: the operating system refuses to read the record; or the folder has another
                identity.
        """
        Runs().refuse_other(self._identity)
        return list(self._parsed(self._read()).values())

    def add(self, hold: Hold, follows: str = "") -> RecordedHold:
        """Record a new hold, durably; return it with its id; ``follows`` is as in the result.

        Raises:
            BadData: as ``all``.
            Unavailable: the operating system refuses the write; the hold is not recorded.
        """
        with self._locked():
            text = self._read()
            known = self._parsed(text)
            while (id := secrets.token_hex(4)) in known:
                continue
            hold = replace(hold, id=id)
            entry = _new_entry(hold.reason)
            record = {
                **_head(_ADD, id, entry),
                "user": hold.user,
                "session": hold.session,
                "store": hold.store,
                "place": hold.place,
                "until": None if hold.until is None else hold.until.isoformat(),
                **({"follows": follows} if follows else {}),
            }
            self._write(text + sealed(record))
        return RecordedHold(hold, entry, follows=follows)

    def find(self, id: str) -> RecordedHold:
        """Return the hold ``id``, which was not removed.

        Raises:
            NotFound: the record has no hold with this id, or the hold was removed.
            BadData: as ``all``.
        """
        return _found(self._parsed(self._read()), id)

    def remove(self, id: str, reason: str = "") -> RecordedHold:
        """Record that a hold is removed; return it.

        Raises:
            NotFound: the record has no hold with this id, or the hold was removed.
            BadData: as ``all``.
            Unavailable: the operating system refuses the write; the hold stays.
        """
        with self._locked():
            text = self._read()
            found = _found(self._parsed(text), id)
            entry = _new_entry(reason)
            self._write(text + sealed(_head(_REMOVE, id, entry)))
        return structs.replace(found, removed=entry)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        folder = self.path.parent
        with refusals(folder):
            new_folder(folder)
        with locked(folder / _LOCK):
            yield

    def _read(self) -> bytes:
        """Return the text of the record; empty if there is no record."""
        with refusals(self.path):
            try:
                text = system.read_file(self.path)
            except FileNotFoundError:
                if os.path.lexists(self.path):  # a link to nowhere
                    raise
                return b""
            except NotADirectoryError:  # a file is where the state folder would be
                return b""
        if not text:  # a record is written with its first entry
            raise _damaged(self.path, "it is empty")
        return text

    def _write(self, text: bytes) -> None:
        with refusals(self.path):
            replace_file(self.path, text)

    def _parsed(self, text: bytes) -> dict[str, RecordedHold]:
        found: dict[str, RecordedHold] = {}
        damaged = []
        for number, line in enumerate(text.splitlines(keepends=True), 1):
            try:
                if not line.endswith(b"\n"):
                    raise ValueError("the line is incomplete")
                _take(found, unsealed(line))
            except (ValueError, TypeError, KeyError):
                damaged.append(number)
        if damaged:
            raise _damaged(self.path, _lines(damaged))
        return found


def _found(holds: dict[str, RecordedHold], id: str) -> RecordedHold:
    found = holds.get(id)
    if found is None:
        raise NotFound(f"there is no hold {id!r}", LIST)
    if found.removed is not None:
        raise NotFound(f"the hold {id} was removed by {found.removed.by}", LIST)
    return found


def _new_entry(reason: str) -> HoldEvent:
    return HoldEvent(datetime.now(UTC).isoformat(timespec="seconds"), system.user_name(), reason)


def _head(action: str, id: str, entry: HoldEvent) -> dict[str, Any]:
    return {
        "action": action,
        "id": id,
        "at": entry.at,
        "by": entry.by,
        "reason": entry.reason,
    }


def _take(found: dict[str, RecordedHold], record: dict[str, Any]) -> None:
    """Add the entry ``record`` to the holds ``found``.

    Raises:
        ValueError, TypeError, KeyError: the record is not a valid entry.
    """
    id, entry = record["id"], HoldEvent(record["at"], record["by"], record["reason"])
    if record["action"] == _REMOVE:
        found[id] = structs.replace(found[id], removed=entry)
        return
    if record["action"] != _ADD or id in found:
        raise ValueError("the action is not known")
    until = record["until"]
    hold = Hold(
        *(entry.reason, record["user"], record["session"], record["store"]),
        until=None if until is None else date.fromisoformat(until),
        id=id,
        place=record["place"],
    )
    found[id] = RecordedHold(hold, entry, follows=record.get("follows", ""))


def _lines(numbers: Iterable[int]) -> str:
    some = list(numbers)
    more = f" and {len(some) - _SHOWN} more" if len(some) > _SHOWN else ""
    text = ", ".join(map(str, some[:_SHOWN])) + more
    return f"line {text}" if len(some) == 1 else f"lines {text}"


def _damaged(path: Path, what: str) -> BadData:
    return BadData(
        f"the record of holds {path} is damaged: {what}",
        "nothing is deleted until it is restored from a backup; or remove what is damaged, and add "
        "the holds again",
    )
