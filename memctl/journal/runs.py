"""The folders of runs, below the platform's state folder: one for each run that changed a store.

RUN/run.json              what the run was asked, and how it ended
RUN/changes-1.ndjson.zst  what it did to each message (see ``changes``)
RUN/changes-2.ndjson.zst  what it did to memories that were changed meanwhile, and so on
RUN/replaced.ndjson.zst   an archive of the memories that it replaced by others
RUN/repairs.ndjson        what the store repaired besides messages (see ``repairs``)
RUN/quarantine.ndjson     damaged data that a repair moved out of the store
RUN/before.ndjson         what else the store said of memories that it has changed (``WriteResult``)
RUN/running               is locked as long as it goes on

Runs are in the order in which they were carried out: each gets the next number of the file
``counter`` when it begins, and another, under the lock of its store, when it is carried out.  Their
ids and times are in UTC.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import quote, unquote_plus, urlencode, urlsplit

from memctl.errors import BadData, NotFound, Unavailable
from memctl.journal import repairs
from memctl.journal.changes import (
    UNFINISHED,
    ChangesWriter,
    check_whole,
    is_growing,
    read_changes,
)
from memctl.journal.files import (
    FOLDER_MODE,
    count_up,
    create_locked,
    is_locked,
    new_file,
    new_folder,
    refusals,
    replace_file,
)
from memctl.journal.lines import sealed, unsealed
from memctl.location import SECRET_QUERY, Location
from memctl.model import Edit, MemoryKey, WriteResult

REPLACED = "replaced.ndjson.zst"
RUNNING, CUT_SHORT = "running", "cut-short"
"""The outcomes of a run that has recorded none."""
_RECORD = "run.json"
_DIGEST = "digest"
"""The digest of the other values of a record."""
_COUNTER = "counter"
BEFORE = "before.ndjson"
_UNCHANGED = "unchanged"
"""The end of the note on a memory whose change the store has refused."""
_DAY = 86_400
_ID = re.compile(r"\d{8}-\d{6}-")
_SHORT = 5


@dataclass(slots=True)
class Run:
    """The record of a run.

    ``store`` is for people, without any password; ``argument`` and ``options`` find the store
    again.  ``ended`` and ``outcome`` are empty while it goes on, and stay so when it was killed.
    ``counts`` are messages, by what became of them.
    """

    id: str
    command: str
    store: str
    argument: str
    options: dict[str, str] = field(default_factory=dict)
    secret: bool = False
    """True if the store was named with a password, which is not kept."""
    started: str = ""
    ended: str = ""
    outcome: str = ""
    memories: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    undoes: str = ""
    undone_by: str = ""
    settled: bool = False
    """True if an undo found nothing left to undo."""
    dialect: str = ""
    """That of the messages in the changes; empty for that of the store."""
    number: int = 0
    """Its place in the order of the runs."""
    planned: bool = False
    """True while nothing is changed: it plans, or waits for an answer or a lock."""
    erased: int = 0
    """The number of its memories that were erased since, and can no longer be undone."""


def short_ids(runs: Iterable[Run]) -> dict[str, str]:
    """Return the ends of ids by which a person tells the runs apart."""
    ids = [run.id for run in runs]
    often = Counter(id[-_SHORT:] for id in ids)
    return {id: id[-_SHORT:] if often[id[-_SHORT:]] == 1 else id for id in ids}


@dataclass(frozen=True, slots=True)
class Retention:
    """The limits within which runs are kept: days, and bytes of all together."""

    days: int = 30
    bytes: int = 1_000_000_000


def state_folder() -> Path:
    """Return the folder where runs are kept on this platform."""
    from platformdirs import user_state_path  # only who changes or undoes needs it

    return user_state_path("memctl") / "runs"


class Journal:
    """One run that is being written."""

    def __init__(self, folder: Path, run: Run) -> None:
        self.run = run
        self.folder = folder
        self._parts = 0
        self._held: int | None = None
        self._before: BinaryIO | None = None
        self._unchanged: set[MemoryKey] = set()

    def hold(self) -> None:
        """Show others that the run goes on, until it has ended or this process has.

        Raises:
            Unavailable: the system refuses.
        """
        path = self.folder / RUNNING
        with refusals(path):
            self._held = create_locked(path)

    def save(self) -> None:
        """Make durable what is known of the run.

        Raises:
            Unavailable: the system refuses.
        """
        path = self.folder / _RECORD
        with refusals(path):
            record = asdict(self.run)
            record[_DIGEST] = record_digest(record)
            replace_file(path, json.dumps(record, indent=1).encode() + b"\n")

    def carry_out(self) -> None:
        """Record that the run changes the store from now on, after all that did before.

        Called under the lock of the store, so that runs on one store are in the order of their
        changes, whenever they began.

        Raises:
            Unavailable: the system refuses.
        """
        self.run.number = _next_number(self.folder.parent)
        self.run.planned = False
        self.save()

    def writer(self, *, growing: bool = False) -> ChangesWriter:
        """The next file of changes; ``growing`` where they are carried out before it is whole.

        Raises:
            Unavailable: the system refuses.
        """
        last = _part(self.folder, self._parts)
        if not self._parts or last.exists() or last.with_name(last.name + UNFINISHED).exists():
            self._parts += 1  # else the last one was given up
        return ChangesWriter(_part(self.folder, self._parts), growing=growing)

    def edits(self, *, leaving: bool) -> Iterator[Edit]:
        """Yield the edits of the last finished file of changes; see ``read_changes``."""
        return read_changes(_part(self.folder, self._parts), leaving=leaving)

    def note(self, result: WriteResult) -> None:
        """Keep what the store said of a memory that it has changed, or that it has not.

        Raises:
            Unavailable: the system refuses.
        """
        line: list[Any] = [*result.key, result.before, result.shared_ids]
        if result.failure is not None:
            self._unchanged.add(result.key)
            line.append(_UNCHANGED)
        elif result.key in self._unchanged:  # another attempt
            self._unchanged.remove(result.key)
        elif not (result.before or result.shared_ids):
            return
        path = self.folder / BEFORE
        with refusals(path):
            self._before = self._before or new_file(path)
            self._before.write(sealed(line))
            self._before.flush()

    def end(self, outcome: str) -> None:
        """Record how the run ended.

        Raises:
            Unavailable: the system refuses.
        """
        self.run.ended = _now()
        self.run.outcome = outcome
        try:
            self._close()
            self.save()
        finally:
            self._release()

    def discard(self) -> None:
        """Remove a run that changed nothing."""
        self._release()
        self._close()
        _remove(self.folder)

    def _close(self) -> None:
        notes, self._before = self._before, None
        if notes is not None:
            with refusals(self.folder), notes:
                os.fsync(notes.fileno())

    def _release(self) -> None:
        handle, self._held = self._held, None
        if handle is not None:
            os.close(handle)
            with suppress(OSError):  # a file that stays is not locked, and does no harm
                (self.folder / RUNNING).unlink()


class Note(NamedTuple):
    """The note of a store on a memory; see ``WriteResult``."""

    before: str = ""
    shared_ids: Mapping[str, int] = {}
    unchanged: bool = False
    """True if the store has refused the change."""


class Notes:
    """The notes of a store on memories that a run has changed, read when they are asked for."""

    def __init__(self, path: Path) -> None:
        """Raise Unavailable if the system refuses, BadData if the file is damaged."""
        self._path = path
        self._places: dict[MemoryKey, int] = {}
        self._unchanged: set[MemoryKey] = set()
        with refusals(path):
            if path.exists():
                with path.open("rb") as file:
                    place = 0
                    for line in file:
                        if line.endswith(b"\n"):  # if not, the run was killed
                            self._note(*self._parse(line), place)
                        place += len(line)

    def _note(self, key: MemoryKey, note: Note, place: int) -> None:
        if key not in self._places or key in self._unchanged:
            self._places[key] = place
            (self._unchanged.add if note.unchanged else self._unchanged.discard)(key)

    def of(self, key: MemoryKey) -> Note:
        """Return what the store said of the memory when it was first changed.

        Raises:
            Unavailable: the system refuses.
        """
        place = self._places.get(key)
        if place is None:
            return Note()
        with refusals(self._path), self._path.open("rb") as file:
            file.seek(place)
            return self._parse(file.readline())[1]

    def _parse(self, line: bytes) -> tuple[MemoryKey, Note]:
        try:
            user, session, part, before, shared_ids, *more = unsealed(line)
        except (ValueError, TypeError) as error:
            raise BadData(
                f"{self._path} is damaged: {error}", "the run cannot be undone"
            ) from error
        return MemoryKey(user, session, part), Note(before, shared_ids, _UNCHANGED in more)


class Runs:
    """All runs that are kept."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or state_folder()

    def begin(self, run: Run) -> Journal:
        """A new run, whose id, start and number are given to it here.

        Raises:
            Unavailable: the system refuses.
        """
        run.started = _now()
        folder = self._new_folder()
        run.id = folder.name
        journal = Journal(folder, run)
        try:
            run.number = _next_number(self.folder)
            journal.hold()  # before anybody can read of it
            journal.save()
        except Unavailable:
            journal.discard()
            raise
        return journal

    def _new_folder(self) -> Path:
        """Make the folder of a run; it is named after the time, and no other run has it."""
        with refusals(self.folder):
            new_folder(self.folder)
            while True:
                now = datetime.now(UTC)
                word = secrets.token_hex(1)  # two within a millisecond are mostly apart
                folder = self.folder / f"{now:%Y%m%d-%H%M%S}-{now.microsecond // 1000:03}{word}"
                with suppress(FileExistsError):
                    folder.mkdir(FOLDER_MODE)
                    return folder

    def all(self) -> list[Run]:
        """Return the runs, the newest first; folders that are not runs are skipped."""
        return sorted(_runs_in(self.folder), key=lambda run: run.number, reverse=True)

    def damaged(self) -> list[str]:
        """Return the ids of the runs of which there is no record that can be read."""
        names = [name for name in _names_in(self.folder) if _ID.match(name)]
        return sorted(name for name in names if _is_damaged(self.folder / name))

    def last(self, wanted: Callable[[Run], bool] = lambda _: True) -> Run | None:
        """Return the last run of those wanted that was carried out, is in force, and is no undo.

        Raises:
            BadData: a run cannot be read, which may be the last.
        """
        if damaged := self.damaged():
            raise BadData(
                f"{_unreadable(damaged[-1])}, and it may be the last one",
                f"name the run to undo, or remove {self.folder / damaged[-1]}",
            )
        for run in self.all():
            over = run.planned or run.undoes or run.undone_by or run.settled
            if not over and wanted(run):
                return run
        return None

    def find(self, name: str) -> Run:
        """The run of that id, or of the one id that begins so, or ends so as ``short_ids`` does.

        Raises:
            NotFound: there is none, or there are several.
            BadData: what is kept of it is damaged.
        """
        names = _names_in(self.folder) if name else []
        end = name if len(name) >= _SHORT else None  # less could be a slip
        found = [one for one in names if one.startswith(name) or (end and one.endswith(end))]
        if len(found) != 1:
            why = "there is no run" if not found else "several runs begin or end with"
            raise NotFound(f"{why} {name!r}", "list the runs with: memctl history")
        run = _read(self.folder / found[0])
        if run is None:
            raise BadData(_unreadable(found[0]), f"see {self.folder / found[0]}")
        return run

    def origin(self, run: Run) -> Run:
        """Return the run that an undo, or an undo of an undo, is about, as far as it is kept."""
        seen: set[str] = set()  # damaged records may lead in a circle
        while run.undoes and run.id not in seen:
            seen.add(run.id)
            run = _read(self.folder / run.undoes) or run
        return run

    def goes_on(self, run: Run) -> bool:
        """Return whether a run has not ended yet, nor was it killed."""
        path = self.folder / run.id / RUNNING
        with refusals(path):
            return not run.ended and is_locked(path)

    def outcome(self, run: Run) -> str:
        """Return how a run ended, or that it is running or was cut short."""
        return run.outcome or (RUNNING if self.goes_on(run) else CUT_SHORT)

    def parts(self, run: Run) -> list[Path]:
        """The files of changes of a run, in order, each proved to be whole.

        The last one of a run that was killed may go as far as the run came.

        Raises:
            BadData: one is damaged or cut off.
        """
        folder = self.folder / run.id
        parts: list[Path] = []
        while (path := _part(folder, len(parts) + 1)).exists():
            check_whole(path)
            parts.append(path)
        left = path.with_name(path.name + UNFINISHED)
        if left.exists() and is_growing(left):
            check_whole(left)
            parts.append(left)
        if not parts and not any((folder / name).exists() for name in repairs.FILES):
            if run.undoes and run.ended:  # it undid nothing but what a store had repaired itself
                raise BadData(
                    f"the run {run.id} undid repairs of the store, which cannot be redone",
                    "repair again with: memctl doctor --repair",
                )
            raise BadData(
                f"the record of the run {run.id} is incomplete",
                "the run was interrupted before it changed anything",
            )
        return parts

    def before(self, run: Run) -> Notes:
        """Return the notes of the store on the memories that a run has changed."""
        return Notes(self.folder / run.id / BEFORE)

    def replaced(self, run: Run) -> Path | None:
        """The archive of the memories that a run replaced, if it replaced any."""
        path = self.folder / run.id / REPLACED
        return path if path.exists() else None

    def size(self, run: Run) -> int:
        """Return the size of a run's folder in bytes."""
        folder = self.folder / run.id
        with refusals(folder):
            return _about(folder)[0]

    def update(self, run: Run) -> None:
        """Make durable what is known of an older run."""
        Journal(self.folder / run.id, run).save()

    def prune(self, keep: Retention, needed: str = "") -> list[str]:
        """Remove what is older, or more, than is to be kept, and return their ids.

        The newest run stays, the one that is ``needed``, and one that may still be going on.

        Raises:
            Unavailable: the system refuses.
        """
        removed = []
        total = 0
        now = time.time()
        numbers = {run.id: run.number for run in _runs_in(self.folder)}
        names = sorted(_names_in(self.folder), key=lambda name: (numbers.get(name, 0), name))
        for place, name in enumerate(reversed(names)):
            folder = self.folder / name
            with refusals(folder):
                size, changed = _about(folder)
            total += size
            spent = total > keep.bytes or changed < now - keep.days * _DAY
            if spent and place and name != needed and not self._may_go_on(name, changed, now):
                _remove(folder)
                removed.append(name)
        return removed

    def _may_go_on(self, name: str, changed: float, now: float) -> bool:
        """Return whether a run may not have ended yet; without locks, one of the last day."""
        run = _read(self.folder / name)
        return run is not None and not run.ended and (changed > now - _DAY or self.goes_on(run))


def _names_in(folder: Path) -> list[str]:
    """Return the names of the folders of runs, in any order."""
    with refusals(folder):
        if not folder.is_dir():
            return []
        return [one.name for one in os.scandir(folder) if one.is_dir()]


def _runs_in(folder: Path) -> list[Run]:
    """Return the runs, in any order; folders that are not runs are skipped."""
    found = [_read(folder / name) for name in _names_in(folder)]
    return [run for run in found if run is not None]


def _remove(folder: Path) -> None:
    """Remove a run, as far as the system lets; while that goes on, it is not taken for a run."""
    with suppress(OSError):
        folder = folder.rename(folder.with_name(f".{folder.name}"))
    shutil.rmtree(folder, ignore_errors=True)


def _is_damaged(folder: Path) -> bool:
    """Return whether the record of a run cannot be read; one that is beginning has none yet."""
    if _read(folder) is not None:
        return False
    with refusals(folder), suppress(FileNotFoundError):  # another run may remove it
        left = {one.name for one in folder.iterdir()} - {RUNNING, f"{_RECORD}.part"}
        return bool(left) and not is_locked(folder / RUNNING)
    return False


def _unreadable(name: str) -> str:
    return f"the record of the run {name} is damaged"


def _read(folder: Path) -> Run | None:
    try:
        record = json.loads((folder / _RECORD).read_bytes())
        if record.pop(_DIGEST, None) != record_digest(record):
            return None
        run = Run(**record)
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return None
    return run if run.id == folder.name and _is_sound(run) else None


def record_digest(record: dict[str, Any]) -> str:
    """Return the digest that seals the other values of a record."""
    return blake2b(json.dumps(record).encode(), digest_size=8).hexdigest()


def _is_sound(run: Run) -> bool:
    """Return whether every value is of the type of its default."""
    plain = Run("", "", "", "")
    return (
        all(type(getattr(run, one.name)) is type(getattr(plain, one.name)) for one in fields(Run))
        and all(isinstance(value, str) for value in run.options.values())
        and all(type(value) is int for value in run.counts.values())
    )


def _next_number(folder: Path) -> int:
    """Return a number above those of all runs so far.

    Raises:
        Unavailable: the system refuses.
    """
    path = folder / _COUNTER
    with refusals(path):
        # A counter that is lost or damaged goes on after the runs that are kept.
        return count_up(path, lambda: max((run.number for run in _runs_in(folder)), default=0))


def _part(folder: Path, number: int) -> Path:
    return folder / f"changes-{number}.ndjson.zst"


def _about(folder: Path) -> tuple[int, float]:
    """The bytes in a folder and when they changed; another run may be removing it."""
    size, changed = 0, 0.0
    with suppress(FileNotFoundError):
        changed = folder.stat().st_mtime
        for path in folder.iterdir():
            size += path.stat().st_size
    return size, changed


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def describe_run(
    command: str, argument: str, location: Location, aliases: Container[str] = ()
) -> Run:
    """A run that is about to begin; ``argument`` is how its store was named."""
    address = argument if argument in aliases else _address(argument, location)
    label = location.label if location.path == Path() else address
    options = {name: location.options[name] for name in _KEPT if name in location.options}
    secret = address != argument and "***" in label
    return Run("", command, label, address, options, secret)


def record_found(run: Run, location: Location) -> None:
    """Record in which layout a store was found, and which application: its memories may all go.

    ``location`` is that of the open store.
    """
    run.options |= {name: location.options[name] for name in _FOUND if name in location.options}


_KEPT = ("path", "user", "session")
"""Options that commands give a location; see ``commands._stores.narrowed``."""
_FOUND = ("layout", "app")
"""Options that memctl finds out where the URL of a store lacks them."""


def _address(argument: str, location: Location) -> str:
    """Return the argument that finds the store again from any folder, without its password."""
    if location.path != Path():
        path = os.path.abspath(location.path)
        if location.prefix:
            query = urlencode(location.options, safe="/:")
            return location.prefix + path + (f"?{query}" if query else "")
        if "://" not in argument:
            return path
        query = urlencode(_absolute(location.options), safe="/:")
        return f"sqlite:///{path}" + (f"?{query}" if query else "")
    parts = urlsplit(argument)
    login, at, host = parts.netloc.rpartition("@")
    query = "&".join(
        _kept(pair)
        for pair in parts.query.split("&")
        if not SECRET_QUERY.search(pair.partition("=")[0])
    )
    netloc = f"{login.partition(':')[0]}{at}{host}"
    return f"{parts.scheme}://{netloc}{parts.path}" + (f"?{query}" if query else "")


def _kept(pair: str) -> str:
    """An option of a URL as it is kept: of a folder, the whole path."""
    name, _, value = pair.partition("=")
    if name != "state":
        return pair
    [state] = _absolute({"state": unquote_plus(value)}).values()
    return urlencode({"state": state}, safe="/:", quote_via=quote)


def _absolute(options: dict[str, str]) -> dict[str, str]:
    """memctl's own options, a folder of states found from anywhere."""
    state = options.get("state")
    if state is None or state == "redis":
        return options
    if "://" in state:
        return options | {"state": _without_password(state)}
    return options | {"state": os.path.abspath(os.path.expanduser(state))}


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    login, at, host = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{login.partition(':')[0]}{at}{host}").geturl()
