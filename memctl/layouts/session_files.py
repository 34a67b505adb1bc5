"""Stores of coding agents that keep each session in a file of JSON lines, with files beside it.

memctl adds and deletes such sessions whole.  The session file appears last when one is written,
and goes first when one is deleted: an agent sees a session whole, or not at all.

A killed run leaves a session file whose name says how far it came, and the next run that changes
the store goes on from there (``Ending``)::

    5c2d1e00-….jsonl.memctl-new     the new files are being written beside the old ones: drop them
    5c2d1e00-….jsonl.memctl-whole   they are whole: remove the old ones, and name the new ones
    5c2d1e00-….jsonl.memctl-gone    the session is deleted: remove the files beside it
"""

from __future__ import annotations

import os
import re
import time
from abc import abstractmethod
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, ClassVar, NamedTuple, TypeVar
from uuid import NAMESPACE_URL, uuid5

from msgspec.structs import replace

from memctl.dialects.agentscope import CONTENT
from memctl.dialects.session_lines import (
    FILE,
    NAMES,
    SessionLines,
    SessionLineView,
    count_of,
    is_start,
    messages_of,
    piece_of,
)
from memctl.dialects.view import TextBlock
from memctl.errors import BadData, Failure, NotFound
from memctl.json import jsonio
from memctl.json.located import Steps
from memctl.layouts.agents import AGENTS
from memctl.location import Location, visible
from memctl.machine.concurrency import in_thread
from memctl.machine.zstd import ZstdError, ZstdFile
from memctl.model import (
    Change,
    Edit,
    Memory,
    MemoryInfo,
    MemoryKey,
    Page,
    StoredMessage,
    WriteMode,
    WriteResult,
)
from memctl.selection import Selection
from memctl.store import DamagedMemory, Features, OpenMode, Store
from memctl.storekit.batching import paginate
from memctl.storekit.catalog import catalog
from memctl.storekit.edits import is_same_text
from memctl.storekit.files import (
    TEMPORARY_PREFIX,
    TEMPORARY_SUFFIX,
    AtomicFile,
    require_place,
    sync_folder,
    system_errors,
)
from memctl.storekit.projects import (
    FoundProject,
    MovedFile,
    MovedText,
    ProjectMove,
    move_paths,
)
from memctl.storekit.simple import CHANGED
from memctl.storekit.text_files import COMPRESSED, files_below, replace_texts, signature

UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
Pairs = list[tuple[str, str]]
"""The old and the new path of files, in the folder of the store."""
MoveLines = Callable[[Iterable[bytes]], Iterator[MovedText]]
"""Makes the lines that a file has after the move of a folder."""


class Ending(StrEnum):
    """The endings of the names of files with which a run is not done.

    All new files of a session have the ending ``NEW``, and the session file from the beginning.
    """

    NEW = ".memctl-new"
    WHOLE = ".memctl-whole"
    GONE = ".memctl-gone"


StepT = TypeVar("StepT", Page, Edit)
_UNFINISHED = ".memctl-"
"""The beginning of each ``Ending``."""
_QUIET = 60.0
"""The seconds without a write after which no agent is taken to be at work on a session."""
_PEEK = 64 * 1024
"""The bytes at each end of a session in which its times, title and project are looked for."""
_TITLE = 80
"""The largest number of characters of a title that is the beginning of a prompt."""


class SessionFile(NamedTuple):
    """A session: the names of its memory, its id, and the path of its file in the folder."""

    key: MemoryKey
    id: str
    place: str


class SessionFilesStore(Store):
    """A folder of a coding agent with a file for each session."""

    features = Features(
        marks=frozenset(),
        duplicate_ids=True,
        whole_memories=True,
        renames=frozenset({"project"}),
        selects_texts=True,
    )
    dialect: SessionLines
    text_roots: ClassVar[tuple[str, ...]]
    """The files and folders with texts of sessions, and with what users have typed."""
    folder_places: ClassVar[tuple[Steps, ...]]
    """The places in a line of a session with the path of a folder."""

    def __init__(self, location: Location, mode: OpenMode = OpenMode.READ) -> None:
        super().__init__(location, mode)
        self.folder = location.path
        self.project = location.options.get("project", "")
        self._has_warned = False
        self._known: dict[MemoryKey, SessionFile] | None = None
        """The sessions that were there when a write or an edit began."""

    # Defined by subclasses

    @abstractmethod
    def places(self) -> Iterator[str]:
        """Yield the paths in the folder of the files that may be sessions."""

    folders: ClassVar[tuple[str, ...]]
    """Patterns of the paths in the folder of the folders with files of sessions."""

    @abstractmethod
    def id_in(self, place: str) -> str | None:
        """Return the id of the session in the file at ``place``; None if it can be no session."""

    @abstractmethod
    def beside(self, session: SessionFile) -> list[str]:
        """Return the paths in the folder of the files and folders that belong to one session."""

    @abstractmethod
    def new_place(self, id: str, project: str, moment: datetime) -> str:
        """Return where the agent would keep a new session."""

    @abstractmethod
    def at_work(self, session: SessionFile) -> str:
        """Return what shows that an agent is at work on a session; empty if nothing does."""

    @abstractmethod
    def forget(self, session: SessionFile) -> None:
        """Remove what the agent keeps about a session outside of its files."""

    @abstractmethod
    def told(self, info: MemoryInfo, line: SessionLineView) -> None:
        """Set the title and the project in ``info`` as far as a line of the session says them."""

    @abstractmethod
    def new_places(self, session: SessionFile, folders: Sequence[str], move: ProjectMove) -> Pairs:
        """Return where the files of a session are now, and where after the move of a folder.

        ``folders`` are the folders in the session that have moved.
        """

    def find_further(self, move: ProjectMove, found: FoundProject) -> None:
        """Add what names a folder outside of the files of sessions to ``found``."""

    def move_further(self, move: ProjectMove, found: FoundProject) -> None:
        """Let follow what ``find_further`` has found, besides files with other places."""

    def about_to_move(self, session: SessionFile, move: ProjectMove) -> None:
        """Let follow what is kept about a session outside of its files, before these change."""

    # The place

    async def open(self, mode: OpenMode) -> None:
        self.mode = mode
        require_place(self.folder, self.label, create=mode.creates)
        kept = AGENTS[self.kind].sessions
        with system_errors(self.folder, "read"):
            found = any((self.folder / name).is_dir() for name in kept)
        if not (found or mode.creates):
            raise NotFound(
                f"{self.label} holds no sessions of {self.dialect.framework}: "
                f"{visible(str(self.folder))} has no folder {kept[0]}",
                "check the path, or leave it out for the usual folder",
            )
        if mode.creates:
            with system_errors(self.folder, "write"):
                self.folder.mkdir(mode=0o700, exist_ok=True)
        if unfinished := await in_thread(lambda: [*self._unfinished()]):
            named = ", ".join(session.id for session, _ in unfinished[:3])
            self.warnings.append(
                f"{self.label}: memctl was killed while it wrote or removed sessions, or is at it: "
                f"{named}; run that command again"
            )

    async def lock(self, owner: str) -> None:
        await super().lock(owner)
        await in_thread(self._complete)

    def _complete(self) -> None:
        """Complete what killed runs have left: with the lock, no run is at work."""
        for session, ending in [*self._unfinished()]:
            match ending:
                case Ending.NEW:
                    self.forsake(session)
                case Ending.WHOLE:
                    places = [one for one in self.places() if self.id_in(one) == session.id]
                    self.settle(session, [session._replace(place=one) for one in places])
                case Ending.GONE:
                    self._remove_rest(session)

    async def close(self) -> None:
        """Do nothing: the store keeps no file open."""

    # Reading

    def _sessions(self) -> dict[MemoryKey, SessionFile]:
        """Return the sessions of the project by the names of their memories."""
        found: dict[MemoryKey, SessionFile] = {}
        others: list[str] = []
        for place in self.places():
            id = self.id_in(place)
            if id is None:
                others += [] if is_temporary(place) else [place]
                continue
            session = SessionFile(self._names(id, place), id, place)
            if self.project and self._info(session).project != self.project:
                continue
            if (twin := found.get(session.key)) is not None:
                text = f"two files are this session: {twin.place} and {place}"
                self.left_out.failures[session.key] = Failure("damaged", text)
                continue
            found[session.key] = session
        if others and not self._has_warned:
            self._has_warned = True
            named = ", ".join(map(visible, others[:3])) + (", ..." if len(others) > 3 else "")
            self.warnings.append(f"{self.label}: not read, because no session is named so: {named}")
        return {key: one for key, one in found.items() if key not in self.left_out.failures}

    async def _selected(self, where: Selection) -> list[SessionFile]:
        """Return the sessions of the project whose memories ``where`` names."""
        found = await in_thread(self._sessions)
        return [session for key, session in found.items() if where.has_key(key)]

    def _names(self, id: str, place: str) -> MemoryKey:
        """Return the names of the memory in a session, which memctl has given to its own ids."""
        if id[14] == "5":
            line = next(iter(self._lines_at_ends(place)), None)
            if line is not None and is_start(line.document):
                names = MemoryKey(*line.document[NAMES])
                if _id_of(names) == id:
                    return names
        return MemoryKey("", id)

    @contextmanager
    def opened(self, place: str) -> Iterator[IO[bytes]]:
        """Open a file of a session to read it within the block.

        Raises:
            NotFound, Unavailable: the file is gone, or cannot be read.
            BadData: it is compressed, and damaged.
        """
        path = self.folder / place
        with system_errors(path, "read"):
            packed = place.endswith(COMPRESSED)
            data = BufferedReader(ZstdFile(path)) if packed else path.open("rb")
        with data:
            try:
                yield data
            except (EOFError, ZstdError) as error:
                raise BadData(f"{visible(place)} is damaged: {error}") from error

    def _unfinished(self) -> Iterator[tuple[SessionFile, Ending]]:
        """Yield the sessions with which a run is not done."""
        with system_errors(self.folder, "read"):
            for pattern in self.folders:
                for path in sorted(self.folder.glob(f"{pattern}/*{_UNFINISHED}*")):
                    place, mark, end = str(path.relative_to(self.folder)).rpartition(_UNFINISHED)
                    if (id := self.id_in(place)) is not None and mark + end in [*Ending]:
                        session = SessionFile(MemoryKey("", id), id, place)
                        yield session, Ending(mark + end)

    def _files(self, session: SessionFile) -> Iterator[str]:
        """Yield the paths of the files beside a session, in order."""
        return (file for file in self._below(session) if not is_temporary(file))

    def _below(self, session: SessionFile) -> Iterator[str]:
        """Yield the paths of the files beside a session, with those of unfinished runs."""
        for place in self.beside(session):
            path = self.folder / place
            with system_errors(path, "read"):
                if path.is_symlink():
                    continue
                if path.is_file():
                    yield place
                    continue
                below = sorted(
                    os.path.relpath(os.path.join(folder, name), self.folder)
                    for folder, _, names in os.walk(path)
                    for name in names
                    if not os.path.islink(os.path.join(folder, name))
                )
            yield from below

    def entries(self, session: SessionFile) -> Iterator[StoredMessage]:
        """Yield the messages of a session, with those of the files beside it."""
        made = MadeLines(self.dialect)
        for file in ("", *self._files(session)):
            with self.opened(file or session.place) as data:
                for value, text in messages_of(data, file):
                    if not file and (shown := made.shown(value)) is not None:
                        value, text = shown, jsonio.compact(shown)
                    yield StoredMessage(self.dialect.message_id(value), text)

    def version(self, session: SessionFile) -> str:
        """Return a text that differs after each change of a session."""
        return " ".join(f"{one.st_size}:{one.st_mtime_ns}" for one in self._stats(session))

    def size(self, session: SessionFile) -> int:
        """Return the size in bytes of the files of a session, as they are on the disk."""
        return sum(one.st_size for one in self._stats(session))

    def _stats(self, session: SessionFile) -> Iterator[os.stat_result]:
        for place in (session.place, *self._files(session)):
            with system_errors(self.folder / place, "read"):
                yield (self.folder / place).stat()

    def read(self, where: Selection) -> AsyncGenerator[Page]:
        return where.apply(self._pages(where), self.dialect)

    async def _pages(self, where: Selection) -> AsyncGenerator[Page]:
        for session in await self._selected(where):
            key = session.key
            try:
                memory = self._header(session)
            except NotFound:  # the agent has deleted it meanwhile
                continue
            self.left_out.others = True
            pages = paginate(memory, self.entries(session), empty=False)
            begun = False
            while (page := await in_thread(partial(self._next, pages, key, begun))) is not None:
                begun = True
                yield page
                del page

    def _next(self, pages: Iterator[Page], key: MemoryKey, begun: bool) -> Page | None:
        """Return the next page of a session; None at the end, or if the session is unreadable.

        Raises:
            DamagedMemory: the session cannot be read, and ``begun`` says that it was in part.
        """
        try:
            return next(pages, None)
        except (BadData, NotFound) as error:
            failure = self.left_out.failures[key] = Failure("damaged", error.message)
            if begun:
                raise DamagedMemory(self.label, key, failure) from error
            return None

    async def headers(self, where: Selection) -> AsyncGenerator[Memory]:
        if not where.whole:
            async with aclosing(super().headers(where)) as memories:
                async for memory in memories:
                    yield memory
            return
        for session in await self._selected(where):
            yield self._header(session)

    def _header(self, session: SessionFile) -> Memory:
        return Memory(session.key, place=session.place, version=self.version(session))

    async def list_keys(self, where: Selection) -> AsyncGenerator[MemoryKey]:
        for session in await self._selected(where):
            yield session.key

    async def list_memories(self, where: Selection) -> AsyncGenerator[MemoryInfo]:
        """Yield the counts of sessions; of sessions that no key names, only lines are counted."""
        if where.whole and where.keys is None:
            async with aclosing(self._told(where, self.counted)) as infos:
                async for info in infos:
                    yield info
            return
        sessions = await in_thread(self._sessions)
        async with aclosing(catalog(self.read(where), self.dialect)) as infos:
            async for info in infos:
                about = await in_thread(partial(self._info, sessions[info.key]))
                info.title, info.project = about.title, about.project
                yield info

    def survey(self, where: Selection) -> AsyncGenerator[MemoryInfo]:
        """Yield the sizes, times and titles of sessions, from stat and the ends of their files."""
        return self._told(where, self._surveyed) if where.whole else self.list_memories(where)

    async def _told(
        self, where: Selection, about: Callable[[SessionFile], MemoryInfo]
    ) -> AsyncGenerator[MemoryInfo]:
        for session in await self._selected(where):
            try:
                yield await in_thread(partial(about, session))
            except BadData as error:
                self.left_out.failures[session.key] = Failure("damaged", error.message)

    def _surveyed(self, session: SessionFile) -> MemoryInfo:
        info = self._info(session)
        if info.first is None:  # a session without times: a selection by time names its size
            return self.counted(session)
        return replace(info, bytes=self.size(session), is_counted=False)

    def counted(self, session: SessionFile) -> MemoryInfo:
        """Return the counts of a session: its lines are counted, but not parsed."""
        info = self._info(session)
        info.bytes = self.size(session)
        for file in ("", *self._files(session)):
            with self.opened(file or session.place) as data:
                info.messages += count_of(data, file)
        return info

    def _info(self, session: SessionFile) -> MemoryInfo:
        """Return what the beginning and the end of a session say about it, without counts."""
        info = MemoryInfo(session.key)
        for line in self._lines_at_ends(session.place):
            self.told(info, line)
            if (moment := line.time) is not None:
                info.first = min(info.first or moment, moment)
                info.last = max(info.last or moment, moment)
        return info

    def _lines_at_ends(self, place: str) -> list[SessionLineView]:
        """Return the whole lines at the beginning and at the end of a session.

        These are ``_PEEK`` bytes of each end, and more until each has a line with a time.
        """
        with self.opened(place) as data:
            peek, size = _PEEK, data.seek(0, os.SEEK_END)
            while True:
                data.seek(0)
                if 2 * peek >= size:
                    return self._parsed(data.read().split(b"\n"))
                head = self._parsed(data.read(peek).split(b"\n")[:-1])
                data.seek(size - peek)
                tail = self._parsed(data.read().split(b"\n")[1:])
                if all(any(line.time for line in lines) for lines in (head, tail)):
                    return head + tail
                peek *= 4

    def _parsed(self, lines: Iterable[bytes]) -> list[SessionLineView]:
        """Return the lines that are JSON objects."""
        found = []
        for line in lines:
            with suppress(ValueError):  # a line that is cut, or no JSON
                content = jsonio.loads(line)
                if isinstance(content, dict):
                    found.append(self.dialect.view({CONTENT: content}))
        return found

    @staticmethod
    def short(line: SessionLineView) -> str:
        """Return the beginning of a prompt, on one line; empty if no user has typed the line."""
        texts = (block.text.strip() for block in line.said if isinstance(block, TextBlock))
        typed = (text for text in texts if not text.startswith("<"))  # not a text of the agent
        text = " ".join(next(typed, "").split())
        return text if len(text) <= _TITLE else f"{text[: _TITLE - 1]}…"

    # Rewriting

    def text_files(self) -> Iterable[Path]:
        return files_below(self.folder, self.text_roots)

    def selected_files(self, where: Selection) -> Iterable[Path]:
        """Return the files whose names have the id of a selected session."""
        ids = self.selected_ids(where)
        return (one for one in self.text_files() if not ids.isdisjoint(self._ids_in(one)))

    def selected_ids(self, where: Selection) -> set[str]:
        """Return the ids of the selected sessions."""
        return {session.id for key, session in self._sessions().items() if where.has_key(key)}

    def _ids_in(self, path: Path) -> list[str]:
        """Return the ids of sessions in the name of a file and of its folders."""
        return UUID.findall(str(path.relative_to(self.folder)))

    def text_refusal(self, path: Path) -> str:
        """Return why a file must stay: an agent is at work on the session that it belongs to."""
        if self._known is None:
            self._known = self._sessions()
        ids = {one.id: one for one in self._known.values()}
        for id in self._ids_in(path):
            if (session := ids.get(id)) and (why := self.busy(session)):
                return why.message
        return ""

    # Folders that have moved

    async def find_project(self, move: ProjectMove) -> FoundProject:
        return await in_thread(partial(self._find_project, move))

    def _find_project(self, move: ProjectMove) -> FoundProject:
        found = FoundProject(files=[*move.files])
        waiting = {file.session for file in move.files if os.path.lexists(self.folder / file.old)}
        for key, session in self._sessions().items():
            if move.takes(key):
                try:
                    self._find_in(session, move, found, waiting)
                except BadData as error:
                    found.failures[key] = Failure("damaged", error.message)
        self._find_twins(move, found)
        self.find_further(move, found)
        there = [file for file in found.files if os.path.lexists(self.folder / file.new)]
        found.conflicts += [file.new for file in there if os.path.lexists(self.folder / file.old)]
        return found

    def _find_twins(self, move: ProjectMove, found: FoundProject) -> None:
        """Find the sessions that are two files, and name the folder."""
        for place in self.places() if self.left_out.failures else ():
            id = self.id_in(place)
            key = MemoryKey("", "") if id is None else self._names(id, place)
            if id is not None and key in self.left_out.failures and move.takes(key):
                of_one = FoundProject()
                self._find_in(SessionFile(key, id, place), move, of_one)
                found.conflicts += [place] if of_one.sessions or of_one.failures else []

    def _find_in(
        self,
        session: SessionFile,
        move: ProjectMove,
        found: FoundProject,
        waiting: Collection[str] = (),
    ) -> None:
        """Add a session to ``found``, if it names the folder, or is ``waiting`` for its files."""
        paths, kept, left = dict[str, None](), list[str](), list[str]()
        for place in self._with_folders(session):
            with self.opened(place) as lines:
                for text in self.moved_lines(session, place, move, lines):
                    paths |= dict.fromkeys(text.paths)
                    kept += text.kept
                    left += text.left
        follows = bool(paths) or session.id in waiting
        if follows and (why := self.busy(session)):
            found.failures[session.key] = why
        elif follows:
            found.sessions.append(session.key)
            found.kept += kept
            found.left += left
            if move.sessions is None:
                pairs = self.new_places(session, list(paths), move)
                found.files += [MovedFile(session.id, *pair) for pair in pairs]

    def _with_folders(self, session: SessionFile) -> list[str]:
        """Return the paths of the files of a session that have places of folders."""
        ends = (".jsonl", f".jsonl{COMPRESSED}", ".meta.json")
        return [session.place, *(one for one in self._files(session) if one.endswith(ends))]

    def moved_lines(
        self, session: SessionFile, place: str, move: ProjectMove, lines: Iterable[bytes]
    ) -> Iterator[MovedText]:
        """Yield the lines of a file of a session after the move of a folder."""
        spot = place[place.index(session.id) :]  # the same wherever the session is
        for number, line in enumerate(lines):
            yield move_paths(line, self.folder_places, move, f"{spot}:{number}")

    async def rename_project(
        self, move: ProjectMove, found: FoundProject
    ) -> AsyncGenerator[WriteResult]:
        sessions = await in_thread(self._sessions)
        files: dict[str, Pairs] = {}
        for file in found.files:
            files.setdefault(file.session, []).append((file.old, file.new))
        for key in found.sessions:
            session = sessions.get(key)
            if session is None:
                yield WriteResult(key, failure=Failure("changed", "the session is gone"))
                continue
            pairs = files.get(session.id, [])
            result = await in_thread(partial(self._rename_project, session, move, pairs))
            if result.failure is not None:
                found.failures[key] = result.failure
            yield result
        if not found.is_at_work:
            await in_thread(partial(self._move_files, files.get("", [])))
            await in_thread(partial(self.move_further, move, found))

    def _rename_project(self, session: SessionFile, move: ProjectMove, files: Pairs) -> WriteResult:
        if why := self.busy(session):
            return WriteResult(session.key, failure=why)
        self._move_files(files)
        place = dict(files).get(session.place, session.place)
        if place != session.place and os.path.lexists(self.folder / session.place):
            text = "the new folder has a session of this id since"
            return WriteResult(session.key, failure=Failure("conflict", text))
        session = session._replace(place=place)
        self.about_to_move(session, move)
        for place in self._with_folders(session):
            moved = partial(self.moved_lines, session, place, move)
            if not self.replace_paths(self.folder / place, moved):
                return WriteResult(session.key, failure=CHANGED)
        return WriteResult(session.key)

    def followers(self, move: ProjectMove, found: FoundProject) -> Callable[[object], bool]:
        """Return a function that says by the id of a session whether its data may follow.

        It returns True for the id of a session that is gone.
        """
        sessions = self._sessions().items()
        known = {
            session.id: key not in found.failures and move.takes(key) for key, session in sessions
        }
        return lambda id: known.get(str(id), True)

    def _move_files(self, pairs: Pairs) -> None:
        """Move files to their new places; a file stays if the new place is taken."""
        for old, new in pairs:
            path = self.folder / new
            if os.path.lexists(self.folder / old) and not os.path.lexists(path):
                with system_errors(path, "write"):
                    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._rename([(old, new)])
        self._tidy(old for old, _ in pairs)

    def replace_paths(self, path: Path, moved: MoveLines) -> bool:
        """Replace the lines of a file by those that ``moved`` returns.

        Return False if another program has changed the file meanwhile.
        """
        changed = list[str]()

        def texts(lines: Iterable[bytes]) -> Iterator[bytes]:
            for text in moved(lines):
                changed.extend(text.paths[:1])
                yield text.text

        with system_errors(path, "write"):
            return replace_texts(path, signature(path), texts, lambda: bool(changed))

    # Writing

    def write(
        self, pages: AsyncGenerator[Page], mode: WriteMode = WriteMode.ADD
    ) -> AsyncGenerator[WriteResult]:
        return self._change(pages, lambda page: NewSession(self, page.memory, page.offset, mode))

    def edit(self, edits: AsyncGenerator[Edit]) -> AsyncGenerator[WriteResult]:
        return self._change(edits, self._begin)

    def _begin(self, edit: Edit) -> NewSession | LostSession:
        if edit.changes and edit.changes[0].old is None:
            return NewSession(self, edit.memory, 0, WriteMode.ADD)
        return LostSession(self, edit)

    async def _change(
        self, steps: AsyncGenerator[StepT], begin: Callable[[StepT], NewSession | LostSession]
    ) -> AsyncGenerator[WriteResult]:
        """Take the pages or the edits of each session; yield its result."""
        self._known = None
        session: NewSession | LostSession | None = None
        try:
            async for step in steps:
                if session is None:
                    session = await in_thread(partial(begin, step))
                await in_thread(partial(session.take, step))
                if step.last:
                    result, session = await in_thread(session.finish), None
                    yield result
                del step
        finally:
            if session is not None:
                session.discard()

    async def erase(self, where: Selection) -> AsyncGenerator[WriteResult]:
        for session in await self._selected(where):
            yield await in_thread(partial(self._erase_session, session))

    def _erase_session(self, session: SessionFile) -> WriteResult:
        if why := self.busy(session):
            return WriteResult(session.key, failure=why)
        number = self.counted(session).messages
        self.forget(session)  # first: a killed run finds the session again
        self.remove(session)
        return WriteResult(session.key, deleted=number)

    def find(self, key: MemoryKey) -> SessionFile | None:
        """Return the session of a memory; None if there is none."""
        if self._known is None:
            self._known = self._sessions()
        found = self._known.get(key)
        return found if found and (self.folder / found.place).exists() else None

    def target(self, memory: Memory) -> SessionFile:
        """Return where to write a memory: at its own place, if that fits, or at a new one."""
        key, place = memory.key, memory.place or ""
        id = key.session if UUID.fullmatch(key.session) and not key.user else _id_of(key)
        if self.id_in(place) == id and not self.leads_out(place):
            return SessionFile(key, id, place.removesuffix(COMPRESSED))
        return SessionFile(key, id, self.new_place(id, self.folder_to_work_in, datetime.now(UTC)))

    @property
    def folder_to_work_in(self) -> str:
        """The folder in which the agent will go on with a session of another store."""
        return self.project or str(Path.cwd())

    def busy(self, session: SessionFile) -> Failure | None:
        """Return why a session must be left alone: an agent is at work on it; None if none is."""
        if found := self.at_work(session):
            return Failure("locked", f"an agent is at work on it: {found}")
        path = self.folder / session.place
        with system_errors(path, "read"):
            if time.time() - path.stat().st_mtime > _QUIET:
                return None
        # A file that memctl has written is new, and its lines are old.
        own = (line for line in self._lines_at_ends(session.place) if NAMES not in line.document)
        moments = [moment for line in own if (moment := line.moment) is not None]
        age = (datetime.now() - max(moments, default=datetime.min)).total_seconds()
        if age < _QUIET:
            return Failure("locked", f"an agent wrote it {age:.0f} seconds ago; try it later")
        return None

    def leads_out(self, place: str) -> bool:
        """Return whether a path may lead out of the folder, perhaps through a link."""
        if "\0" in place or not {"", ".", ".."}.isdisjoint(place.split("/")):
            return True
        inside = os.path.join(os.path.realpath(self.folder), "")
        path = self.folder / place
        return path.is_symlink() or not os.path.realpath(path.parent).startswith(inside)

    def create(self, place: str) -> AtomicFile:
        """Begin a new file of a session, which gets its name by ``settle``."""
        path = self.folder / f"{place}{Ending.NEW}"
        with system_errors(path, "write"):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return AtomicFile(path)

    def announce(self, session: SessionFile) -> None:
        """Show that a session is being written, before any of its files is there."""
        with self.create(session.place) as file:
            file.commit()

    def confirm(self, session: SessionFile) -> None:
        """Show that all new files of a session are there: from now on, it is the new one."""
        place = session.place
        self._rename([(f"{place}{Ending.NEW}", f"{place}{Ending.WHOLE}")])

    def settle(self, session: SessionFile, old: Iterable[SessionFile]) -> None:
        """Remove the files of old sessions, and give those of the new one their names."""
        new = [one for one in self._below(session) if one.endswith(Ending.NEW)]
        stays = {one.removesuffix(Ending.NEW) for one in new}
        for one in old:
            self._unlink([file for file in self._files(one) if file not in stays])
            self._unlink([one.place])
        self._rename([(one, one.removesuffix(Ending.NEW)) for one in new])
        self._rename([(f"{session.place}{Ending.WHOLE}", session.place)])

    def forsake(self, session: SessionFile) -> None:
        """Remove the new files of a session that is not written after all."""
        self._unlink([one for one in self._below(session) if is_temporary(one)])
        self._unlink([f"{session.place}{Ending.NEW}"])

    def _rename(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Rename files durably, each to the second path of a pair."""
        folders = set()
        for old, new in pairs:
            path = self.folder / new
            with system_errors(path, "write"):
                os.replace(self.folder / old, path)
            folders.add(path.parent)
        for folder in folders:
            sync_folder(folder)

    def without_lines(self, place: str, text: str) -> None:
        """Remove the lines with a text from a file of the folder, if there is such a file."""
        path = self.folder / place
        with system_errors(path, "read"):
            if not path.is_file():
                return
            lines = path.read_bytes().splitlines(keepends=True)
        kept = [line for line in lines if text.encode() not in line]
        if len(kept) < len(lines):
            with AtomicFile(path) as file:
                file.write(b"".join(kept))
                file.commit()

    def remove(self, session: SessionFile) -> None:
        """Remove a session and the files beside it."""
        self._rename([(session.place, f"{session.place}{Ending.GONE}")])
        self._remove_rest(session)

    def _remove_rest(self, session: SessionFile) -> None:
        """Remove what is left of a session whose file is gone."""
        self._unlink(self._below(session))
        self._unlink([f"{session.place}{Ending.GONE}"])

    def _unlink(self, places: Iterable[str]) -> None:
        """Remove files, and the folders that are empty then."""
        files = list(places)
        for place in files:
            path = self.folder / place
            with system_errors(path, "write"):
                path.unlink(missing_ok=True)
        self._tidy(files)

    def _tidy(self, places: Iterable[str]) -> None:
        """Remove the folders that are empty without these files, durably."""
        files = [Path(place) for place in places]
        folders = {parent for file in files for parent in file.parents}
        for folder in sorted(folders, key=lambda one: -len(one.parts)):
            if len(folder.parts) > 1:
                with suppress(OSError):  # it is not empty, or is gone
                    (self.folder / folder).rmdir()
        for folder in {file.parent for file in files}:
            with suppress(NotFound):  # it was empty
                sync_folder(self.folder / folder)


def is_temporary(place: str) -> bool:
    """Return whether a file is one that memctl has not finished, or was killed at."""
    name = place.rpartition("/")[2]
    is_new = name.startswith(TEMPORARY_PREFIX) and name.endswith(TEMPORARY_SUFFIX)
    return is_new or name.endswith(tuple(Ending))


class MadeLines:
    """The lines of a session that memctl has made of messages of another store, in their order."""

    def __init__(self, dialect: SessionLines) -> None:
        self._dialect = dialect
        self.start: dict[str, Any] = {}
        """The first line of the session; empty if memctl has not made the session."""
        self._before: dict[str, Any] = {}

    def pass_by(self, line: dict[str, Any]) -> None:
        """Note the next line, which is stored as it is."""
        if self.start or is_start(line):
            self.start, self._before = self.start or line, line

    def complete(self, line: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the next line as the agent needs it, perhaps behind a further one."""
        found = self._dialect.completed(line, self._before, self.start)
        self._before = found[-1]
        return found

    def shown(self, value: dict[str, Any]) -> dict[str, Any] | None:
        """Return the message of which memctl has made the next line; None if it has made none.

        It is also None for a line that ``complete`` would not make to the byte.
        """
        line = value.get(CONTENT)
        if not isinstance(line, dict):
            return None
        found = None
        if self.start and isinstance(line.get(NAMES), dict):
            found = self._dialect.unpack(line)
            *_, again = self._dialect.completed(
                self._dialect.timed(found), self._before, self.start
            )
            found = found if jsonio.compact(again) == jsonio.compact(line) else None
        self.pass_by(line)
        return found


class NewSession:
    """A session that is being written; it appears when it is whole."""

    def __init__(
        self, store: SessionFilesStore, memory: Memory, offset: int, mode: WriteMode
    ) -> None:
        self._store, self._memory, self._mode = store, memory, mode
        self._session = store.target(memory)
        self._there = store.find(memory.key)
        self._failure: Failure | None = None
        self._number = 0
        self._file: AtomicFile | None = None
        self._other: AtomicFile | None = None
        self._beside: list[str] = []
        self._made = MadeLines(store.dialect)
        if mode is WriteMode.ADD and (offset or self._there is not None):
            text = "the session exists, and memctl adds no messages to it: delete it first"
            self._failure = Failure("refused" if offset else "changed", text)
        elif self._there is not None:
            self._failure = store.busy(self._there)

    def take(self, step: Page | Edit) -> None:
        """Write the messages of a page, or those that an edit inserts."""
        if isinstance(step, Edit) and any(change.old is not None for change in step.changes):
            self._failure = _PART
        for one in step.messages if isinstance(step, Page) else step.changes:
            if self._failure is not None:
                return
            self._add(one.message)
            self._number += 1

    def _add(self, message: bytes) -> None:
        dialect = self._store.dialect
        value = jsonio.loads(message)
        line = value.get(CONTENT) if FILE not in value else None
        if self._file is None:
            self._store.announce(self._session)
            self._file = self._store.create(self._session.place)
        if isinstance(line, dict) and dialect.is_new(line):
            self._complete(dialect.timed(value))
            return
        try:
            file, data = piece_of(message)
        except ValueError as error:
            self._failure = Failure("refused", f"a message is no line of a session: {error}")
            return
        if file and (not self._beside or self._beside[-1] != file):
            self._begin(file)
        if self._failure is None:
            (self._other or self._file).write(data)
        if isinstance(line, dict):
            self._made.pass_by(line)

    def _complete(self, line: dict[str, Any]) -> None:
        """Write a line that memctl has made, in a session that begins with the names."""
        assert self._file is not None
        found = []
        if not self._made.start:
            about = self._session.id, self._store.folder_to_work_in, datetime.now(UTC)
            found = self._store.dialect.begun(self._memory.key, *about)
            self._made.pass_by(found[0])
        for one in found + self._made.complete(line):
            self._file.write(jsonio.compact(one) + b"\n")

    def _begin(self, file: str) -> None:
        """Begin a file beside the session, if it can belong to it."""
        self._end()
        inside = any(
            file == root or file.startswith(f"{root}/")
            for root in self._store.beside(self._session)
        )
        if not inside or file in self._beside or self._store.leads_out(file):
            text = f"{visible(file)!r} is no file of this session"
            self._failure = Failure("bad-name", text)
            return
        self._other = self._store.create(file)
        self._beside.append(file)

    def _end(self) -> None:
        if self._other is not None:
            self._other.commit()
            self._other = None

    def finish(self) -> WriteResult:
        """Give the session its name; return the result."""
        key = self._memory.key
        expected = self._memory.version
        if self._failure is None and self._mode is WriteMode.REPLACE and expected is not None:
            found = None if self._there is None else self._store.version(self._there)
            self._failure = None if expected == found else CHANGED
        if self._failure is None and not (self._made.start or self._session.id == key.session):
            text = "lines of the agent itself are in a session whose name is its id"
            self._failure = Failure("bad-name", text)
        if self._failure is not None or self._file is None:
            self.discard()
            return WriteResult(key, failure=self._failure or Failure("refused", "it is empty"))
        self._end()
        gone = 0 if self._there is None else self._store.counted(self._there).messages
        before = "made" if self._there is None else ""
        result = WriteResult(key, self._number, gone, before=before)
        self._store.about_to_commit([result])
        self._file.commit()
        self._store.confirm(self._session)
        self._file = None  # if settling fails, the next run completes it
        self._store.settle(self._session, [] if self._there is None else [self._there])
        return result

    def discard(self) -> None:
        """Remove what was written; the session stays as it was."""
        for file in (self._file, self._other):
            if file is not None:
                file.discard()
        if self._file is not None:
            self._store.forsake(self._session)


class LostSession:
    """A session that is being deleted, once each of its messages was named."""

    def __init__(self, store: SessionFilesStore, edit: Edit) -> None:
        self._store = store
        self._session = store.find(edit.memory.key)
        self._key = edit.memory.key
        self._failure = None if self._session else Failure("changed", "the session is gone")
        self._entries = store.entries(self._session) if self._session else iter(())
        self._number = 0

    def take(self, edit: Page | Edit) -> None:
        """Compare the messages to delete with the stored messages."""
        assert isinstance(edit, Edit)
        for change in edit.changes:
            if self._failure is not None:
                return
            there = next(self._entries, None)
            if change.old is None or change.new is not None:
                self._failure = _PART
            elif there is None or not _is_same(there, change):
                self._failure = _MEANWHILE
            self._number += 1

    def finish(self) -> WriteResult:
        """Delete the session; return the result."""
        if self._failure is None and next(self._entries, None) is not None:
            self._failure = _MEANWHILE
        if self._failure is None and self._session is not None:
            self._failure = self._store.busy(self._session)
        if self._failure is not None or self._session is None:
            return WriteResult(self._key, failure=self._failure)
        self._store.remove(self._session)
        return WriteResult(self._key, deleted=self._number)

    def discard(self) -> None:
        """Do nothing: nothing is deleted before the end."""


_PART = Failure("refused", "memctl adds and deletes a session whole, and changes nothing in it")
_MEANWHILE = Failure("changed", "the session has other messages now")


def _is_same(there: StoredMessage, change: Change) -> bool:
    same = not change.message or is_same_text(there.message, change.message)
    return there.id == change.id and same


def _id_of(key: MemoryKey) -> str:
    """Return the id of the session for a memory of another store."""
    return str(uuid5(NAMESPACE_URL, f"memctl:{jsonio.dumps([*key]).decode()}"))
