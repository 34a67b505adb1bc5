"""The folders of runs, in the platform's state folder.

::

    RUN/run.json              the command, the store, and the outcome
    RUN/changes-1.ndjson.zst  the change of each message (see ``changes``)
    RUN/changes-2.ndjson.zst  changes planned again after others changed memories, and so on
    RUN/replaced.ndjson.zst   an archive of the memories that the run replaced; a followed copy
    RUN/replaced-2.ndjson.zst makes several: the last one with a memory counts
    RUN/repairs.ndjson        the repairs besides messages (see ``repairs``)
    RUN/renames.ndjson        the old and the new names of sessions (see ``renames``)
    RUN/project.ndjson        what followed a folder that has moved (see ``renames``)
    RUN/quarantine.ndjson     damaged data that a repair moved out of the store
    RUN/before.ndjson         notes of the store on changed memories (``WriteResult``)
    RUN/running               locked while the run goes on

Runs are ordered by when they changed the store.  A run gets the next number of the file
``counter`` at its start, and a new number, under the lock of its store, before its first change.
The file ``unrecorded`` holds the number, command and store of the last run on each store that
changed it without a record: with ``--no-backup``, or an erase.
Ids and times are in UTC.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import quote, unquote_plus, urlencode, urlsplit

from msgspec import Struct, convert, field, structs

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
    locked,
    new_file,
    new_folder,
    refusals,
    replace_file,
)
from memctl.journal.lines import sealed, unsealed
from memctl.journal.renames import PROJECT, RENAMES, read_moves, read_project
from memctl.journal.retention import Retention
from memctl.location import SECRET_QUERY, Location, redact
from memctl.model import Edit, MemoryKey, WriteResult
from memctl.shard import Shard
from memctl.storekit.projects import ProjectMove

REPLACED = "replaced.ndjson.zst"
RUNNING, CUT_SHORT = "running", "cut-short"
"""The outcomes to show for a run without a recorded outcome: going on, or killed."""
_RECORD = "run.json"
_DIGEST = "digest"
"""The key of the digest of all other values of a record."""
_COUNTER = "counter"
_UNRECORDED = "unrecorded"
_PLACE = "store", "argument", "options"
"""The fields of a run that say on which store it was."""
_IDENTITY = "identity"
BEFORE = "before.ndjson"
_UNCHANGED, _FORESEEN = "unchanged", "foreseen"
"""The marks of notes: the store refused the change of a memory, or was about to make it."""
_DAY = 86_400
_LEAP = 366 * _DAY
"""The longest credible time between two runs, in seconds, beyond the age limit of runs."""
_ID = re.compile(r"\d{8}-\d{6}-")
_SHARD = re.compile(r"\d+/\d+", re.ASCII)
_SHORT = 5
_WITNESS = len(MemoryKey._fields) + 1


class Run(Struct):
    """The record of a run of memctl that changed a store.

    ``store`` is the name for people, without a password.  ``argument`` and ``options`` are enough
    to open the store again.  ``ended`` and ``outcome`` are empty while the run goes on, and stay
    empty if the run is killed.  ``counts`` maps each kind of change to a number of messages.
    ``undoes`` is the id of the run that this run undid, ``undone_by`` the id of the run that undid
    this run; each may be empty.
    """

    id: str
    command: str
    store: str
    argument: str
    options: dict[str, str] = field(default_factory=dict)
    secret: bool = False
    """True if the store was named with a password.  The password is not recorded."""
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
    """The dialect of the recorded messages; empty for the dialect of the store."""
    number: int = 0
    """The position in the order of the runs."""
    planned: bool = False
    """True until the first change: the run plans, or waits for an answer or a lock."""
    erased: int = 0
    """The number of memories that were erased from the run and can no longer be undone."""
    generation: str = ""
    """The generation of the store after the run; see ``Store.generation``."""
    witnesses: list[list[str]] = field(default_factory=list)
    """Messages that stayed in the store: the parts of the key of the memory, then the id."""
    job: str = ""
    """The name that the runs of the parts of a divided run share; empty for other runs."""
    shard: str = ""
    """The shard that the run was limited to, such as ``3/16``; empty for the whole store."""
    stores: int = 1
    """The number of stores on which the divided run was: those of a fleet, or one."""
    policy: str = ""
    """The policy of retention that the run carried out; empty for other runs."""
    archive: str = ""
    """The archive that holds what the run removed; empty without a policy."""

    state: str = ""
    """The identity that the folder of the runs must have; not recorded, empty for any."""

    @property
    def part(self) -> Shard:
        """The shard, if there is one."""
        return Shard.parse(self.shard)._replace(stores=self.stores)

    @property
    def over(self) -> bool:
        """True if the run is undone, or an undo found nothing left to undo."""
        return bool(self.undone_by) or self.settled


_KEYS = frozenset(Run.__struct_fields__)


class Job(NamedTuple):
    """A divided run: the runs of its parts, newest first.  A repeated part may have several."""

    name: str
    runs: list[Run]

    @property
    def of(self) -> int:
        """The number of parts into which the run was divided."""
        return max(int(run.shard.partition("/")[2]) for run in self.runs)

    @property
    def shards(self) -> int:
        """The number of parts that have a run; a part that changed nothing has none."""
        return len({run.shard for run in self.runs})

    @property
    def counts(self) -> dict[str, int]:
        """The sums of the counts of the runs."""
        found: Counter[str] = Counter()
        for run in reversed(self.runs):
            found.update(run.counts)
        return dict(found)


def short_ids(runs: Iterable[Run]) -> dict[str, str]:
    """Map the id of each run, and the name that memctl gave to a job, to a short form for people.

    The short form is the end of the id.  If several runs have the same end, their short form is the
    whole id.
    """
    kept = list(runs)
    ids = [run.id for run in kept]
    ids += {run.job for run in kept if _ID.match(run.job)}
    often = Counter(id[-_SHORT:] for id in ids)
    return {id: id[-_SHORT:] if often[id[-_SHORT:]] == 1 else id for id in ids}


def state_folder() -> Path:
    """Return the folder for runs, in the user's state folder of this platform."""
    from platformdirs import user_state_path  # only needed for changes and undo

    return user_state_path("memctl") / "runs"


def as_jobs(runs: Iterable[Run]) -> list[Run | Job]:
    """Return the runs in their order, those of a job as one, at the place of the first of them."""
    found: dict[str, Run | Job] = {}
    for run in runs:
        known = found.get(run.job) if run.job else None
        if isinstance(known, Job):
            known.runs.append(run)
        elif run.job:
            found[run.job] = Job(run.job, [run])
        else:
            found[run.id] = run
    return list(found.values())


def new_job() -> str:
    """Return a name for a job, made as the ids of runs are."""
    return _new_id()


def _new_id() -> str:
    now = datetime.now(UTC)
    word = secrets.token_hex(1)  # so that runs in one millisecond rarely collide
    return f"{now:%Y%m%d-%H%M%S}-{now.microsecond // 1000:03}{word}"


class Journal:
    """The recording of one run: its record ``run`` and its folder."""

    def __init__(self, folder: Path, run: Run) -> None:
        self.run = run
        self.folder = folder
        self._parts = 0
        self._held: int | None = None
        self._before: BinaryIO | None = None
        self._unsettled: set[MemoryKey] = set()
        """The memories whose last note is a refusal, or was made before the change."""
        self._noting = Lock()

    def hold(self) -> None:
        """Mark the run as going on, until ``end``, ``discard``, or the end of this process.

        Raises:
            Unavailable: the operating system refuses to create the file ``running``.
        """
        path = self.folder / RUNNING
        with refusals(path):
            self._held = create_locked(path)

    def save(self) -> None:
        """Write the record of the run to disk.

        Raises:
            Unavailable: the operating system refuses the write.
        """
        path = self.folder / _RECORD
        with refusals(path):
            record = structs.asdict(self.run)
            del record["state"]
            record[_DIGEST] = record_digest(record)
            replace_file(path, json.dumps(record, indent=1).encode() + b"\n")

    def carry_out(self) -> None:
        """Record that the run now begins to change the store, and give the run the next number.

        The caller holds the lock of the store.  So the numbers of the runs on a store are in the
        order of their changes.

        Raises:
            Unavailable: the operating system refuses the write.
        """
        self.run.number = _next_number(self.folder.parent)
        self.run.planned = False
        self.save()

    def writer(self, *, growing: bool = False, repeats: bool = False) -> ChangesWriter:
        """Return a writer of the next file of changes; ``growing`` and ``repeats`` are as there.

        Raises:
            Unavailable: the operating system refuses to create the file.
        """
        last = _part(self.folder, self._parts)
        if not self._parts or last.exists() or last.with_name(last.name + UNFINISHED).exists():
            self._parts += 1  # if the last file was given up, its number is used again
        path = _part(self.folder, self._parts)
        return ChangesWriter(path, growing=growing, repeats=repeats)

    def next_replaced(self) -> Path:
        """Return the path for the next archive of memories that the run replaces."""
        number = len(archives_in(self.folder)) + 1
        return self.folder / (REPLACED if number == 1 else REPLACED.replace(".", f"-{number}.", 1))

    def edits(self, *, leaving: bool) -> Iterator[Edit]:
        """Yield the edits of the last finished file of changes.

        ``leaving`` is as in ``read_changes``.
        """
        return read_changes(_part(self.folder, self._parts), leaving=leaving)

    def foresee(self, results: Iterable[WriteResult]) -> None:
        """Record the notes of the store on changes that it is about to make.

        They count for memories of which the store gives no result; see ``Store.foreseen``.

        Raises:
            Unavailable: the operating system refuses the write.
        """
        found = list(results)
        self._write([*one.key, one.before, one.shared_ids, _FORESEEN] for one in found)
        self._unsettled.update(one.key for one in found)

    def note(self, result: WriteResult) -> None:
        """Record the note of the store on a memory, or that the store refused to change the memory.

        A result without a note and without a refusal is recorded only if an earlier note of the
        run says that the store refused a change of the memory, or was about to make it.

        Raises:
            Unavailable: the operating system refuses the write.
        """
        line: list[Any] = [*result.key, result.before, result.shared_ids]
        if result.failure is not None:
            self._unsettled.add(result.key)
            line.append(_UNCHANGED)
        elif result.key in self._unsettled:
            self._unsettled.remove(result.key)
        elif not (result.before or result.shared_ids):
            return
        self._write([line])

    def _write(self, lines: Iterable[list[Any]]) -> None:
        path = self.folder / BEFORE
        with self._noting, refusals(path):
            self._before = self._before or new_file(path)
            self._before.write(b"".join(map(sealed, lines)))
            self._before.flush()

    def end(self, outcome: str) -> None:
        """Record the outcome of the run, and that the run no longer goes on.

        Raises:
            Unavailable: the operating system refuses the write.
        """
        self.run.ended = _now()
        self.run.outcome = outcome
        try:
            self._close()
            self.save()
        finally:
            self._release()

    def discard(self) -> None:
        """Remove the folder of a run that changed nothing."""
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
            with suppress(OSError):  # the unlocked file may stay
                (self.folder / RUNNING).unlink()


_NOTES_SCHEMA = """
PRAGMA journal_mode = OFF;
CREATE TABLE note (key TEXT PRIMARY KEY, line BLOB, is_final INTEGER);
"""
_ADD_NOTE = """
INSERT INTO note VALUES (?, ?, ?) ON CONFLICT (key)
DO UPDATE SET line = excluded.line, is_final = excluded.is_final WHERE NOT is_final
"""
_FIND_NOTE = "SELECT line FROM note WHERE key = ?"


class Note(NamedTuple):
    """The note of a store on one changed memory; see ``WriteResult``."""

    before: str = ""
    shared_ids: Mapping[str, int] = {}
    unchanged: bool = False
    """True if the store refused the change."""
    foreseen: bool = False
    """True if the store was about to make the change, and perhaps did not make it."""


class Notes:
    """The notes of a store on the memories that a run changed, until ``close``.

    The notes are in an unnamed temporary file, because a run may change any number of memories.
    """

    def __init__(self, path: Path) -> None:
        """Read the notes of the store from the file ``before.ndjson``; a missing file has none.

        Raises:
            Unavailable: the operating system refuses to read the file.
            BadData: the file is damaged.
        """
        self._path = path
        self._database = sqlite3.connect("", isolation_level=None)
        try:
            self._database.executescript(_NOTES_SCHEMA)
            with refusals(path):
                if path.exists():
                    with path.open("rb") as file:
                        self._database.executemany(_ADD_NOTE, self._rows(file))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close and remove the temporary file."""
        self._database.close()

    def _rows(self, lines: Iterable[bytes]) -> Iterator[tuple[str, bytes, bool]]:
        for line in lines:
            if line.endswith(b"\n"):  # an incomplete line is from a killed run
                key, note = self._parse(line)
                yield json.dumps(key), line, not (note.unchanged or note.foreseen)

    def of(self, key: MemoryKey) -> Note:
        """Return the note on the first change of a memory that the store did not refuse.

        If the store refused all changes, or its answers were lost, return the last note.  If there
        is no note, return an empty one.
        """
        row = self._database.execute(_FIND_NOTE, (json.dumps(key),)).fetchone()
        return Note() if row is None else self._parse(row[0])[1]

    def _parse(self, line: bytes) -> tuple[MemoryKey, Note]:
        try:
            user, session, part, before, shared_ids, *more = unsealed(line)
        except (ValueError, TypeError) as error:
            raise BadData(
                f"{self._path} is damaged: {error}", "the run cannot be undone"
            ) from error
        key, flags = MemoryKey(user, session, part), (_UNCHANGED in more, _FORESEEN in more)
        return key, Note(before, shared_ids, *flags)


class Runs:
    """All kept runs, each in its subfolder of ``folder``."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or state_folder()
        self._is_shared = folder is None

    def identity(self) -> str:
        """Return the identity of the folder; create the identity if the folder has none.

        Parts of a run on several machines must share a folder, and compare the identity.

        Raises:
            Unavailable: the operating system refuses access.
        """
        path = self.folder / _IDENTITY
        with refusals(path):
            new_folder(self.folder)
            with suppress(FileExistsError), new_file(path) as file:
                file.write(secrets.token_hex(8).encode())
            return path.read_text()

    def refuse_other(self, identity: str) -> None:
        """Refuse to go on in a folder with another identity; an empty one is any.

        Raises:
            Unavailable: the folder has another identity.
        """
        if not identity:
            return
        path = self.folder / _IDENTITY
        with refusals(path):
            own = path.read_text() if path.exists() else ""
        if identity != own:
            raise Unavailable(
                f"{self.folder} is not the state folder in which the run was divided",
                "all parts need one: set XDG_STATE_HOME to a folder that all machines share",
            )

    def begin(self, run: Run) -> Journal:
        """Create the folder of a new run; set the id, the start and the number of ``run``.

        Return the journal of the run.

        Raises:
            Unavailable: the operating system refuses to create the folder or its files; or this is
                not the folder that the run needs.
        """
        if self._is_shared:
            self.refuse_other(run.state)
        run.started = _now()
        folder = self._new_folder()
        run.id = folder.name
        journal = Journal(folder, run)
        try:
            run.number = _next_number(self.folder)
            journal.hold()  # before other processes can read the record
            journal.save()
        except Unavailable:
            journal.discard()
            raise
        return journal

    def _new_folder(self) -> Path:
        """Create the folder of a run, with a unique name made from the current time."""
        with refusals(self.folder):
            new_folder(self.folder)
            while True:
                folder = self.folder / _new_id()
                with suppress(FileExistsError):
                    folder.mkdir(FOLDER_MODE)
                    return folder

    def all(self) -> list[Run]:
        """Return the readable records of all runs, newest run first."""
        return sorted(_runs_in(self.folder), key=lambda run: run.number, reverse=True)

    def damaged(self) -> list[str]:
        """Return the ids of the runs whose record is missing or damaged, in order."""
        names = [name for name in _names_in(self.folder) if _ID.match(name)]
        return sorted(name for name in names if _is_damaged(self.folder / name))

    def last(self, wanted: Callable[[Run], bool] = lambda _: True) -> Run | None:
        """Return the newest run that can be undone and for which ``wanted`` returns True.

        A run can be undone if it changed its store, is not undone, and is not itself an undo.  None
        if there is no such run.

        Raises:
            BadData: the record of a run is damaged, and this run may be the newest.
        """
        if damaged := self.damaged():
            raise BadData(
                f"{_unreadable(damaged[-1])}, and it may be the last one",
                f"name the run to undo, or remove {self.folder / damaged[-1]}",
            )
        for run in self.all():
            if not (run.planned or run.undoes or run.over) and wanted(run) and self._began(run):
                return run
        return None

    def _began(self, run: Run) -> bool:
        """Return False for a run that was killed before it recorded a change."""
        return bool(run.ended) or self.goes_on(run) or self.has_changes(run)

    def note_unrecorded(self, run: Run) -> None:
        """Note that ``run`` changed its store without a record for undo.

        Raises:
            Unavailable: the operating system refuses to write the note.
        """
        with refusals(self.folder):
            new_folder(self.folder)
        number, place = _next_number(self.folder), {one: getattr(run, one) for one in _PLACE}
        with locked(self.folder / _COUNTER), refusals(path := self.folder / _UNRECORDED):
            others = [one for one in self._unrecorded() if one | place != one]
            note = place | {"number": number, "command": run.command}
            replace_file(path, json.dumps([*others, note]).encode())

    def unrecorded(self, wanted: Callable[[Run], bool] = lambda _: True) -> Run | None:
        """Return the last run that changed a store without a record, and that is ``wanted``.

        None without such a run.
        """
        runs = [convert({"id": "", **one}, Run) for one in self._unrecorded()]
        return max(filter(wanted, runs), key=lambda run: run.number, default=None)

    def _unrecorded(self) -> list[dict[str, Any]]:
        try:
            found = json.loads((self.folder / _UNRECORDED).read_bytes())
        except (OSError, ValueError):
            return []
        return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []

    def find(self, name: str) -> Run | Job:
        """Return the job ``name``, or the run or job that begins or ends with ``name``.

        Raises:
            NotFound: there is no such run or job, or there are several.
            BadData: the record of the run is damaged.
        """
        end = name if len(name) >= _SHORT else None  # a shorter end could be a typing error
        jobs = [one for one in as_jobs(self.all()) if isinstance(one, Job)] if name else []
        if named := [job for job in jobs if job.name == name]:
            return named[0]

        def fits(id: str) -> bool:
            return id.startswith(name) or bool(end and id.endswith(end))

        found = [one for one in _names_in(self.folder) if fits(one)] if name else []
        jobs = [job for job in jobs if fits(job.name)]
        if len(found) + len(jobs) != 1:
            why = "several runs begin or end with" if found or jobs else "there is no run"
            raise NotFound(f"{why} {name!r}", "list the runs with: memctl history")
        if jobs:
            return jobs[0]
        run = _read(self.folder / found[0])
        if run is None:
            raise BadData(_unreadable(found[0]), f"see {self.folder / found[0]}")
        return run

    def job(self, name: str) -> Job:
        """Return the kept job with a name."""
        return Job(name, [run for run in self.all() if run.job == name])

    def origin(self, run: Run) -> Run:
        """Return the run that an undo reverses; of an undo of an undo, the first run in the chain.

        If the first run is no longer kept, return the oldest kept run of the chain.  A run that is
        not an undo is returned itself.
        """
        seen: set[str] = set()  # damaged records may form a circle
        while run.undoes and run.id not in seen:
            seen.add(run.id)
            run = _read(self.folder / run.undoes) or run
        return run

    def goes_on(self, run: Run) -> bool:
        """Return whether a run is still going on: neither ended nor killed.

        On a file system without locks, the result is always False.
        """
        path = self.folder / run.id / RUNNING
        with refusals(path):
            return not run.ended and is_locked(path)

    def outcome(self, run: Run) -> str:
        """Return the recorded outcome of a run.

        Without a recorded outcome, return ``running`` for a run that goes on, and ``cut-short`` for
        a killed run.
        """
        return run.outcome or (RUNNING if self.goes_on(run) else CUT_SHORT)

    def parts(self, run: Run) -> list[Path]:
        """Return the paths of the files of changes of a run, in order, after a check of each file.

        The last file of a killed run may be unfinished.

        Raises:
            BadData: a file is damaged or incomplete, or the run has no file of changes or repairs.
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
            if run.undoes and run.ended:  # the undo reverted only repairs of the store
                raise BadData(
                    f"the run {run.id} undid repairs of the store, which cannot be redone",
                    "repair again with: memctl doctor --repair",
                )
            raise BadData(
                f"the record of the run {run.id} is incomplete",
                "the run was interrupted before it changed anything",
            )
        return parts

    def has_changes(self, run: Run) -> bool:
        """Return whether a run has recorded changes; a run that was killed early may have none.

        Raises:
            Unavailable: the operating system refuses to read the record.
        """
        folder = self.folder / run.id
        first = _part(folder, 1)
        left = first.with_name(first.name + UNFINISHED)
        if left.exists() and is_growing(left):
            return True
        return any(
            (folder / name).exists()
            for name in (first.name, REPLACED, RENAMES, PROJECT, *repairs.FILES)
        )

    def renamed(self, run: Run) -> dict[MemoryKey, MemoryKey]:
        """Return the old and the new keys of the sessions that a run renamed.

        Raises:
            BadData: the record is damaged.
        """
        return read_moves(self.folder / run.id)

    def moved_project(self, run: Run) -> ProjectMove | None:
        """Return the move of a folder that sessions followed in a run; None if none did.

        Raises:
            BadData: the record is damaged.
        """
        return read_project(self.folder / run.id)

    def before(self, run: Run) -> Notes:
        """Return the notes of the store on the memories that a run changed."""
        return Notes(self.folder / run.id / BEFORE)

    def replaced(self, run: Run) -> list[Path]:
        """Return the paths of the archives of the memories that a run replaced, the last first."""
        return archives_in(self.folder / run.id)[::-1]

    def size(self, run: Run) -> int:
        """Return the size of the folder of a run in bytes."""
        folder = self.folder / run.id
        with refusals(folder):
            return _about(folder)[0]

    def update(self, run: Run) -> None:
        """Write the changed record of an ended run durably."""
        Journal(self.folder / run.id, run).save()

    def prune(self, keep: Retention, new: Run, warn: Callable[[str], None]) -> list[str]:
        """Remove the oldest runs that exceed the limits ``keep``; return their ids.

        The newest run that changed its store, the run that the run ``new`` undoes, and runs that
        may still be going on are kept, with all runs of their jobs, and the job of ``new``.  If the
        clock leaps ahead of the earlier runs, it may be wrong.  Then ages count from the last run
        before the leap, and ``warn`` is called if a run is kept for this reason.

        Raises:
            Unavailable: the operating system refuses to read the folder of a run.
        """
        removed = []
        total = 0
        now = time.time()
        found = {run.id: run for run in _runs_in(self.folder)}
        numbers = {name: run.number for name, run in found.items()}
        names = sorted(_names_in(self.folder), key=lambda name: (numbers.get(name, 0), name))
        last = next((one for one in reversed(names) if one in found and not found[one].planned), "")
        kept = {last, new.undoes}
        jobs = {new.job, *(found[one].job for one in kept & found.keys())} - {""}
        kept |= {name for name, run in found.items() if run.job in jobs}
        about: dict[str, tuple[int, float]] = {}
        for name in names:
            with refusals(self.folder / name):
                about[name] = _about(self.folder / name)
        limit = keep.days * _DAY
        sure = _before_leap([changed for _, changed in about.values()], now, limit + _LEAP)
        doubtful = False
        for name in reversed(names):
            size, changed = about[name]
            total += size
            if name in kept or self._may_go_on(name, changed, now):
                continue
            if total > keep.bytes or changed < sure - limit:
                _remove(self.folder / name)
                removed.append(name)
            elif changed < now - limit:
                doubtful = True
        if doubtful:
            warn(
                f"the clock shows {_day(now)}, long after the runs until {_day(sure)}: their undo "
                f"records are kept; if the clock is right, remove them from {self.folder}"
            )
        return removed

    def _may_go_on(self, name: str, changed: float, now: float) -> bool:
        """Return whether the run in the folder ``name`` may be going on.

        ``changed`` is the time at which the folder last changed, ``now`` the present time, both in
        seconds since 1970.
        """
        run = _read(self.folder / name)
        return run is not None and not run.ended and (changed > now - _DAY or self.goes_on(run))


def _names_in(folder: Path) -> list[str]:
    """Return the names of the subfolders of ``folder``, unordered."""
    with refusals(folder):
        if not folder.is_dir():
            return []
        return [one.name for one in os.scandir(folder) if one.is_dir()]


def _runs_in(folder: Path) -> list[Run]:
    """Return the readable records of the runs in a folder, unordered."""
    found = [_read(folder / name) for name in _names_in(folder)]
    return [run for run in found if run is not None]


def _remove(folder: Path) -> None:
    """Remove the folder of a run, as far as permitted."""
    with suppress(OSError):
        folder = folder.rename(folder.with_name(f".{folder.name}"))
    shutil.rmtree(folder, ignore_errors=True)


def _is_damaged(folder: Path) -> bool:
    if _read(folder) is not None:
        return False
    with refusals(folder), suppress(FileNotFoundError):  # another process may remove the folder
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
        if not record.keys() <= _KEYS:  # a later version of memctl wrote it
            return None
        run = convert(record, Run)
    except (OSError, ValueError, AttributeError, RecursionError):
        return None
    return run if run.id == folder.name and _is_sound(run) else None


def record_digest(record: dict[str, Any]) -> str:
    """Return the digest of all values of a record."""
    return blake2b(json.dumps(record).encode(), digest_size=8).hexdigest()


def _is_sound(run: Run) -> bool:
    return (
        bool(not run.shard or _SHARD.fullmatch(run.shard))
        and run.stores > 0
        and not (run.shard and int(run.shard.partition("/")[2]) % run.stores)
        and all(len(one) == _WITNESS for one in run.witnesses)
    )


def _next_number(folder: Path) -> int:
    """Return a number higher than the numbers of all earlier runs in a folder.

    Raises:
        Unavailable: the operating system refuses access to the counter.
    """
    path = folder / _COUNTER
    with refusals(path):
        # A lost or damaged counter continues after the kept runs.
        return count_up(path, lambda: max((run.number for run in _runs_in(folder)), default=0))


def archives_in(folder: Path) -> list[Path]:
    """Return the paths of the archives of replaced memories in the folder of a run, in order."""
    return sorted(folder.glob(REPLACED.replace(".", "*.", 1)), key=lambda one: (len(one.name), one))


def _part(folder: Path, number: int) -> Path:
    return folder / f"changes-{number}.ndjson.zst"


def _about(folder: Path) -> tuple[int, float]:
    """Return the size of the files in a folder in bytes, and the time of its last change."""
    size, changed = 0, 0.0
    with suppress(FileNotFoundError):
        changed = folder.stat().st_mtime
        for path in folder.iterdir():
            size += path.stat().st_size
    return size, changed


def _before_leap(times: Iterable[float], now: float, leap: float) -> float:
    """Return the last of ``times`` before a step forward of more than ``leap`` seconds.

    ``now`` counts as one more time at the end.
    """
    sure: float | None = None
    for one in (*times, now):
        if sure is None or one - sure <= leap:
            sure = max(sure or 0, one)
    return sure or now


def _day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def describe_run(
    command: str, argument: str, location: Location, aliases: Container[str] = ()
) -> Run:
    """Return the record of a new run of ``command`` on the store at ``location``.

    ``argument`` is the name of the store as the user gave it: a path, a URL, or one of ``aliases``.
    """
    address = argument if argument in aliases else _address(argument, location)
    label = location.label if location.path == Path() else address
    options = {name: location.options[name] for name in _KEPT if name in location.options}
    secret = address != argument and "***" in label + redact(location.url)
    return Run("", command, label, address, options, secret)


def record_found(run: Run, location: Location) -> None:
    """Add to the record the layout and the application that memctl detected in a store.

    An undo needs them if the run removes all memories, because then they cannot be detected.
    ``location`` is the location of the open store.
    """
    run.options |= {name: location.options[name] for name in _FOUND if name in location.options}


_KEPT = ("path", "user", "session")
"""Options that commands add to a location, kept for the undo."""
_FOUND = ("layout", "app")
"""Options that memctl detects if the URL lacks them."""


def _address(argument: str, location: Location) -> str:
    """Return ``argument``, a path or URL, without the password, valid in any working directory."""
    if location.path != Path():
        path = os.path.abspath(location.path)
        if location.prefix:
            query = urlencode(location.options, safe="/:")
            return location.prefix + path + (f"?{query}" if query else "")
        if "://" not in argument:
            return path
        query = urlencode(_absolute(location.options), safe="/:")
        return f"sqlite:///{path}" + (f"?{query}" if query else "")
    # In object storage, the newest file of a rotation may be another later.
    parts = urlsplit(location.url if location.kind == "archive" else argument)
    login, at, host = parts.netloc.rpartition("@")
    query = "&".join(
        _kept(pair)
        for pair in parts.query.split("&")
        if not SECRET_QUERY.search(pair.partition("=")[0])
    )
    netloc = f"{login.partition(':')[0]}{at}{host}"
    return f"{parts.scheme}://{netloc}{parts.path}" + (f"?{query}" if query else "")


def _kept(pair: str) -> str:
    """Return a pair ``name=value`` of a URL for the record of a run.

    A folder of states gets an absolute path; a URL of states loses its password.
    """
    name, _, value = pair.partition("=")
    if name != "state":
        return pair
    [state] = _absolute({"state": unquote_plus(value)}).values()
    return urlencode({"state": state}, safe="/:", quote_via=quote)


def _absolute(options: dict[str, str]) -> dict[str, str]:
    """Return the options of a URL with absolute paths, without passwords."""
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
