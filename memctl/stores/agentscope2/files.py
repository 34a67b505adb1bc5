"""Session states of AgentScope 2.x in JSON files, as QwenPaw 2 keeps them.

A file is a session: ``{"agent": {"state": AgentState.model_dump(mode="json")}}``.  The file is
named ``{user}_{session}.json``, in the folder or in a subfolder for each channel.  A state has the
context that the model sees, and its summary; there is no message log.  States are recognized by
their form, whatever the keys around them.  Other values in a file stay unchanged.

Source: ``state/_state.py`` of agentscope 2.0.11, which loads a whole state.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any, NamedTuple

from msgspec.structs import replace

from memctl.dialects.agentscope2 import AGENTSCOPE2, default_payload, default_state
from memctl.errors import BadData, Failure, Lost, UsageError
from memctl.json import jsonio
from memctl.json.document import TAIL, TrailingData
from memctl.json.located import with_names
from memctl.json.scan import BYTE_ORDER_MARK, Walk
from memctl.layouts import foreign
from memctl.layouts.files import (
    CONTEXT,
    SESSION,
    SUFFIX,
    SUMMARY,
    obstacle,
    split_stem,
    states_in,
    stem_of,
    stems,
    unfit,
)
from memctl.location import Location, visible
from memctl.machine import system
from memctl.machine.concurrency import in_thread
from memctl.model import Memory, MemoryKey, StoredMessage, WriteResult
from memctl.selection import Selection
from memctl.store import Features, Maintenance, Note, OpenMode
from memctl.storekit import quarantine
from memctl.storekit.edits import Snapshot
from memctl.storekit.files import (
    AtomicFile,
    move_file,
    require_place,
    sqlite_tables,
    sync_folder,
    system_errors,
)
from memctl.storekit.paths import Steps, join, split
from memctl.storekit.simple import Rejected, SimpleStore, VersionChanged
from memctl.storekit.text_files import replace_texts, signature
from memctl.stores.agentscope2.session import (
    NotASession,
    Session,
    agent_of,
    parse_extra,
    with_summary,
)

PATH = "agent.state"
"""The path of the state in a new file, as in QwenPaw."""
_HISTORY, _TURNS = "history.db", "conversation_history"
"""The database in which QwenPaw keeps the turns that left the context."""
_UNSAFE = re.compile(r'[\\/:*?"<>|]')
"""The characters of a session name that QwenPaw replaces by ``--`` in file names."""


class _Spans(NamedTuple):
    """The bytes of a state, its context and its summary in the text of a file, as start and end.

    ``summary`` is None if the state lacks a summary.  ``messages`` are the messages of the context.
    """

    state: tuple[int, int]
    context: tuple[int, int]
    summary: tuple[int, int] | None
    messages: list[bytes]


class _Listed(NamedTuple):
    """The session in a file; the name and the content of the file give its user and session."""

    signature: tuple[int, int]
    """The size and the modification time of the file."""
    owner: tuple[str, str]
    paths: list[str]
    """The paths of the states in the file; a single empty path if the file is damaged."""


class _File(NamedTuple):
    """A file that was read; ``paths`` lead to the states within its JSON value."""

    text: bytes
    value: Any
    paths: list[Steps]
    changed: datetime

    @property
    def version(self) -> str:
        return _digest(self.text)


class StateFilesStore(SimpleStore):
    """A folder of session files with states of AgentScope 2.x, or a single file.

    A file is named ``{user}_{session}.json``.  The state in the file gives the name of the session;
    the other part of the file name is the user.  A subfolder is a channel.  The session in a memory
    key begins with the channel only if several channels have a session of this name and user.
    """

    kind = "agentscope2-files"
    features = Features(
        marks=frozenset(),
        summaries=True,
        empty=True,
        duplicate_ids=True,
        parts=True,
        state_only=True,
        repairs=frozenset({TAIL}),
        renames=frozenset({"user", "session", "merge"}),
    )
    dialect = AGENTSCOPE2

    def __init__(self, location: Location, mode: OpenMode = OpenMode.READ) -> None:
        super().__init__(location, mode)
        self._path = location.path
        self._is_file = self._path.is_file() or (
            not self._path.is_dir() and self._path.suffix == SUFFIX
        )
        if self._is_file:
            self.features = replace(self.features, single_session=True, renames=frozenset())
        self._agent = agent_of(location)
        self.chosen = location.options.get("path")
        self._files: dict[tuple[str, str], str] = {}
        """The files by user and session, as paths in the folder without ``.json``."""
        self._listed: dict[str, _Listed] = {}
        self._is_listed = False
        self._last: tuple[Path, _File] | None = None

    async def connect(self, mode: OpenMode) -> None:
        path = self._path
        require_place(path, self.label, create=mode.creates)
        if not self._is_file and mode.creates:
            _make(path)
        whole = path.absolute()
        for folder in (whole, *whole.parents[:3]):
            history = folder / _HISTORY
            log = foreign.start_of(history.with_name(f"{_HISTORY}-wal"))
            if _TURNS in (sqlite_tables(history) or ()) or _TURNS.encode() in log:
                self.warnings.append(
                    f"{visible(str(history))} is not reached: QwenPaw keeps the turns there that "
                    "left the context, and memctl neither reads nor erases them"
                )

    async def disconnect(self) -> None:
        self._last = None

    # Names

    def resolve_names(self, keys: Iterable[MemoryKey]) -> None:
        owners = {key[:2] for key in keys}
        if self._is_file and not self._files and len(owners) == 1:
            self._files[owners.pop()] = ""

    async def keys(self) -> AsyncGenerator[MemoryKey]:
        await in_thread(self._list)
        for owner, stem in sorted(self._files.items()):
            paths = [path for path in self._listed[stem].paths if self.chosen in (None, path)]
            for path in paths:
                yield MemoryKey(*owner, "" if len(paths) == 1 else path)

    def _list(self) -> None:
        """List the files in the folder, and find the session of each file.

        Raises:
            BadData: files exist, but none has a state.
        """
        self._is_listed = True
        found: dict[tuple[str, str], list[str]] = {}
        others = []
        for stem in self._stems():
            listed = self._look(stem)
            if listed is None:
                continue
            if not listed.paths:
                others.append(stem)
            found.setdefault(listed.owner, []).append(stem)
        files: dict[tuple[str, str], str] = {}
        for (user, session), same in found.items():
            for stem in same:
                channel = os.path.dirname(stem)
                name = f"{channel}/{session}" if len(same) > 1 and channel else session
                files[user, name] = stem
        if files or not self._is_file:
            self._files = files
        if others:
            self._pass_over(others)

    def _stems(self) -> Iterator[str]:
        if not self._is_file:
            yield from stems(self._path)
        elif self._path.exists():
            yield ""

    def _pass_over(self, others: list[str]) -> None:
        """Warn that the files ``others``, which have no state, are left out.

        Raises:
            BadData: these are all files of the store.
        """
        names = [self.label if self._is_file else stem + SUFFIX for stem in others]
        if len(others) == len(self._files):
            named = foreign.of_file(self._path_of(others[0]))
            if named is not None and self._is_file:
                raise named.refusal(self.label)
            raise BadData(
                f"{self.label} holds no state of AgentScope 2.x",
                "a state is an object with 'session_id', 'summary' and 'context'",
            )
        text = (
            f"{len(others):,} files of {self.label} hold no state of AgentScope 2.x and are left "
            f"out, such as {visible(names[0])}"
        )
        if text not in self.warnings:
            self.warnings.append(text)

    def _look(self, stem: str) -> _Listed | None:
        """Return the session in a file, with the paths of its states; None if no file exists.

        ``stem`` is the path of the file in the folder, without ``.json``.  Reads the file only if
        it has changed since the last call.
        """
        path = self._path_of(stem)
        with system_errors(path, "read"):
            try:
                about = os.stat(path)
            except FileNotFoundError:
                return None
        signature = about.st_size, about.st_mtime_ns
        known = self._listed.get(stem)
        if known is None or known.signature != signature:
            try:
                found = self._read(path)
            except BadData:
                known = _Listed(signature, self._owner(path, []), [""])
            else:
                if found is None:
                    return None
                states = [_at(found.value, steps) for steps in found.paths]
                owner = self._owner(path, [state.get(SESSION) for state in states])
                known = _Listed(signature, owner, list(map(join, found.paths)))
            self._listed[stem] = known
        return known

    def _owner(self, path: Path, sessions: list[Any]) -> tuple[str, str]:
        if self._is_file and len(self._files) == 1:
            return next(iter(self._files))
        name = path.name.removesuffix(SUFFIX)
        user, session = split_stem(name)
        for told in sessions:
            end = _file_name(told) if isinstance(told, str) and told else None
            if end and (name == end or name.endswith(f"_{end}")):
                user, session = name.removesuffix(end).removesuffix("_"), told
        if self._is_file:
            options = self.location.options
            return options.get("user", user), options.get("session", session)
        return user, session

    def _stem(self, key: MemoryKey, session: Any) -> str:
        """Return the path of the file for a memory, in the folder and without ``.json``.

        The file need not exist.  If the store is a single file, the path is empty.  ``session`` is
        the session name in the state.

        Raises:
            Rejected: no file of the store can hold a memory of this name.
        """
        if self._is_file:
            if not self._files:
                self._files[key[:2]] = ""
            if key[:2] not in self._files:
                held = MemoryKey(*next(iter(self._files)))
                raise Rejected("bad-name", f"{self.label} holds one session, which is {held}")
            return ""
        there = self._files.get(key[:2])
        if there is not None:
            return there
        name = stem_of(key.user, _file_name(key.session))
        if not key.session or self._owner(Path(name + SUFFIX), [session]) != key[:2]:
            raise Rejected("bad-name", f"no file has a name that would be read as {key}")
        stem = f"{self._new_channel()}{name}"
        failure = unfit(self._path, stem) or obstacle(self._path, stem)
        if failure is not None:
            raise Rejected(failure.code, failure.message)
        if stem in self._files.values():
            raise Rejected("bad-name", f"{visible(stem)}{SUFFIX} is that of another session")
        return stem

    def _new_channel(self) -> str:
        """Return the subfolder for a new file, such as ``console/``.

        This is the subfolder that all existing files are in.  Empty if they are in no subfolder, or
        if no file exists.

        Raises:
            Rejected: the existing files are in several folders.
        """
        channels = {os.path.dirname(stem) for stem in self._files.values()}
        if len(channels) > 1:
            names = ", ".join(sorted(one or "." for one in channels))
            raise Rejected(
                "bad-name",
                f"{self.label} has the channels {names}: name the folder of one as the target",
            )
        return "".join(f"{one}/" for one in channels if one)

    def _path_of(self, stem: str) -> Path:
        return self._path if self._is_file else self._path / (stem + SUFFIX)

    # Memories

    async def load(self, key: MemoryKey) -> Snapshot | None:
        if key[:2] not in self._files and not self._is_listed:
            await in_thread(self._list)
        stem = self._files.get(key[:2])
        if stem is None:
            return None
        path = self._path_of(stem)
        found = await in_thread(partial(self._read, path))
        steps = None if found is None else self._steps(key, found)
        if found is None or steps is None:
            return None
        session, _ = self._session(key, found, steps)
        name = visible(str(path))
        messages = [_entry(name, at, text) for at, text in enumerate(_spans(found, steps).messages)]
        memory = Memory(
            *(key, session.summary_text),
            extra=_extra(session),
            version=found.version,
            place=join(steps),
        )
        return Snapshot(memory, messages)

    def _steps(self, key: MemoryKey, found: _File) -> Steps | None:
        """Return the path of a memory's state in its file; None if the file has no such state.

        The part of ``key``, or else ``?path=``, gives the path.  If neither is given, the file must
        have exactly one state.
        """
        wanted = key.part or self.chosen
        if wanted is not None:
            return next((steps for steps in found.paths if join(steps) == wanted), None)
        return found.paths[0] if len(found.paths) == 1 else None

    def _session(self, key: MemoryKey, found: _File, steps: Steps) -> tuple[Session, Any]:
        """Return the state at ``steps`` twice: as a session without its context, and as stored.

        Record and payload of the session are made up, because a file has neither.
        """
        state = _at(found.value, steps)
        moment = found.changed.isoformat()
        record = {
            "agent_id": self._agent,
            "source": "user",
            "created_at": moment,
            "updated_at": moment,
        }
        others = {name: one for name, one in state.items() if name not in (CONTEXT, SUMMARY)}
        payload = default_payload(key.session, self._agent)
        return Session(record, payload, others, summary=state.get(SUMMARY) or ""), state

    def _read(self, path: Path) -> _File | None:
        """Read and parse a file; None if the file does not exist.

        Raises:
            BadData: the file is not JSON.
            Unavailable: the operating system refuses to read the file.
        """
        with system_errors(path, "read"):
            try:
                text = system.read_file(path)
                changed = os.stat(path).st_mtime
            except FileNotFoundError:
                return None
        if self._last is not None and self._last[0] == path and self._last[1].text == text:
            return self._last[1]
        name = visible(str(path))
        plain = text.removeprefix(BYTE_ORDER_MARK)
        try:
            value = jsonio.loads(plain)
        except ValueError as error:
            if named := foreign.of_text(text[: foreign.BEGINNING]):
                raise named.refusal(name) from error
            end = _end_of_document(plain, self.chosen)
            if end is not None:
                skipped = len(text) - len(plain)
                raise TrailingData(name, end + skipped, len(text)) from error
            raise BadData(
                f"{name} is not JSON: {error}", "restore it from a backup, or move it away"
            ) from error
        paths = list(states_in(value))
        found = _File(text, value, paths, datetime.fromtimestamp(changed, UTC))
        self._last = path, found
        return found

    async def save(self, key: MemoryKey, snapshot: Snapshot, expect: str | None) -> None:
        await in_thread(partial(self._save, key, snapshot, expect))

    def _save(self, key: MemoryKey, snapshot: Snapshot, expect: str | None) -> None:
        if any(entry.marks for entry in snapshot.messages):
            raise Rejected(
                "refused",
                "a state file holds the context alone, and some messages are not in it: leave "
                "them out with --exclude-mark compressed",
            )
        new = self._new_session(key, snapshot)
        path = self._path_of(self._stem(key, new[0].state.get(SESSION)))
        found = self._read(path)
        steps = None if found is None else self._steps(key, found)
        if (None if steps is None or found is None else found.version) != expect:
            self._is_listed = False  # another program may have made the file
            raise VersionChanged
        if found is not None and steps is not None:
            text = self._changed(key, snapshot, found, steps)
        elif found is not None and not (found.paths and key.part):
            raise Rejected("refused", f"{visible(str(path))} holds something else")
        else:
            place = key.part or self.chosen or _usual_path(snapshot.memory.place)
            text = _inserted(found, split(place), _state_text(*new))
        _make(path.parent)
        with AtomicFile(path) as file:
            file.write(text)
            self._last = None
            there = self._read(path)
            if (None if there is None else there.version) != (found and found.version):
                raise VersionChanged
            file.commit()
        stem = str(path.relative_to(self._path)).removesuffix(SUFFIX) if not self._is_file else ""
        self._files[key[:2]] = stem

    def _new_session(self, key: MemoryKey, snapshot: Snapshot) -> tuple[Session, list[bytes]]:
        """Return a new session for a memory, and the messages of its context as JSON texts.

        Raises:
            Rejected: ``Memory.extra`` does not describe a session.
        """
        memory = snapshot.memory
        if memory.extra:
            session, texts = _introduced(memory.extra, snapshot.messages)
        else:
            session = Session(state=default_state(key.session))
            texts = list(_texts(snapshot.messages))
        with_summary(session, memory.summary)
        return session, texts

    def _changed(self, key: MemoryKey, snapshot: Snapshot, found: _File, steps: Steps) -> bytes:
        """Return the text of the file ``found``, with ``snapshot`` in the state at ``steps``."""
        memory = snapshot.memory
        session, _ = self._session(key, found, steps)
        spans = _spans(found, steps)
        if memory.extra and memory.extra != _extra(session):
            given, texts = _introduced(memory.extra, snapshot.messages)
            with_summary(given, memory.summary)
            return _spliced(found.text, [(spans.state, _state_text(given, texts))])
        texts = list(_texts(snapshot.messages))
        splices = [] if texts == spans.messages else [(spans.context, _array(texts))]
        before = session.summary
        with_summary(session, memory.summary)
        if session.summary is not before:
            text = jsonio.dumps(session.summary)
            if spans.summary is None:
                start = spans.state[0] + 1
                splices.append(((start, start), b'"summary": ' + text + b", "))
            else:
                splices.append((spans.summary, text))
        return _spliced(found.text, splices)

    async def remove(self, key: MemoryKey, expect: str | None) -> None:
        await in_thread(partial(self._remove, key, expect))

    def _remove(self, key: MemoryKey, expect: str | None) -> None:
        stem = self._files.get(key[:2])
        path = self._path_of(stem or "")
        self._last = None
        found = None if stem is None else self._read(path)
        if found is None:
            return
        if found.version != expect:
            raise VersionChanged
        with system_errors(path, "write"):
            path.unlink()
            sync_folder(path.parent)
        self._files.pop(key[:2], None)
        for folder in path.parents if not self._is_file else ():
            if folder == self._path:
                break
            with suppress(OSError):  # the folder is not empty
                folder.rmdir()

    async def rename(self, moves: Mapping[MemoryKey, MemoryKey]) -> AsyncGenerator[WriteResult]:
        """Rename sessions in their states, then their files: until then they have the old names."""
        if not self._is_listed:
            await in_thread(self._list)
        for old, new in moves.items():
            failure = None
            if old.session:  # nothing is kept of users besides sessions
                try:
                    await in_thread(partial(self._rename, old, new))
                except Rejected as rejected:
                    failure = rejected.failure
                except BadData as error:
                    failure = Failure("damaged", error.message)
            yield WriteResult(old, failure=failure)

    def _rename(self, old: MemoryKey, new: MemoryKey) -> None:
        stem = self._files[old[:2]]
        path, channel = self._path_of(stem), os.path.dirname(stem)
        found = self._read(path)
        if found is None:
            raise Rejected("changed", "its file is gone")
        told = [_at(found.value, steps).get(SESSION) for steps in found.paths]
        prefix = f"{channel}/" if channel else ""
        own = old.session.removeprefix(prefix)
        was = own if own in told else old.session
        session = was if new.session == old.session else new.session.removeprefix(prefix)
        names = [((*steps, SESSION), was, session) for steps in found.paths]
        name = stem_of(new.user, _file_name(session))
        now = [session if one == was else one for one in told]
        if self._owner(Path(name + SUFFIX), now) != (new.user, session):
            raise Rejected("bad-name", f"no file has a name that would be read as {new}")
        target = os.path.join(channel, name)
        if failure := unfit(self._path, target) or obstacle(self._path, target):
            raise Rejected(failure.code, failure.message)
        with system_errors(path, "write"):

            def texts(file: IO[bytes]) -> Iterator[bytes]:
                text = file.read()
                plain = text.removeprefix(BYTE_ORDER_MARK)
                yield text[: len(text) - len(plain)] + with_names(plain, names)

            if not replace_texts(path, signature(path), texts, lambda: now != told):
                raise Rejected("changed", "another program has changed its file meanwhile")
            if not move_file(path, self._path_of(target)):
                raise Rejected("conflict", f"{visible(target)}{SUFFIX} exists")
        self._last = None
        self._listed.pop(stem, None)
        self._files[new[:2]] = target
        del self._files[old[:2]]

    def text_files(self) -> Iterable[Path]:
        return map(self._path_of, self._stems())

    def maintenance(self) -> Maintenance:
        return StateFilesMaintenance(self)

    def files(self, where: Selection) -> list[tuple[MemoryKey, Path]]:
        """Return the selected sessions with their files.

        Raises:
            BadData: files exist, but none has a state.
            Unavailable: the operating system refuses to read a file.
        """
        self._list()
        found = [(MemoryKey(*owner), stem) for owner, stem in sorted(self._files.items())]
        return [(key, self._path_of(stem)) for key, stem in found if where.has_key(key)]


class StateFilesMaintenance(Maintenance):
    """The repair of session files: cuts off bytes after a complete JSON document."""

    store: StateFilesStore

    async def repair(self, code: str, where: Selection, note: Note) -> int:
        if code != TAIL:
            raise UsageError(f"{code} cannot be repaired in a session file", f"known: {TAIL}")
        count = 0
        for key, path in await in_thread(partial(self.store.files, where)):
            text = await in_thread(partial(_bytes_of, path))
            plain = text.removeprefix(BYTE_ORDER_MARK)
            end = _end_of_document(plain, self.store.chosen)
            if end is None:
                continue
            end += len(text) - len(plain)
            await note(quarantine.record_of(key, TAIL, tail=quarantine.to_text(text[end:])))
            await in_thread(partial(_replace_text, path, text, text[:end]))
            count += 1
        return count


def _bytes_of(path: Path) -> bytes:
    with system_errors(path, "read"):
        return system.read_file(path)


def _digest(text: bytes) -> str:
    return blake2b(text, digest_size=16).hexdigest()


def _replace_text(path: Path, old: bytes, new: bytes) -> None:
    """Replace the content ``old`` of a file by ``new``.

    Raises:
        Lost: another program has changed the file since ``old`` was read.
    """
    with AtomicFile(path) as file:
        file.write(new)
        if _bytes_of(path) != old:
            raise Lost(
                f"another program keeps writing to {visible(str(path))}",
                "run again for the rest; what was repaired is complete",
            )
        file.commit()


def _end_of_document(text: bytes, chosen: str | None) -> int | None:
    """Return where a complete JSON document ends, if invalid JSON follows; None if not.

    The document must have a state of AgentScope 2.x, at the path ``chosen`` if this is given.
    """
    try:
        end = _end(text, 0)
        paths = list(map(join, states_in(jsonio.loads(text[:end]))))
    except ValueError:
        return None
    rest = text[end:]
    if not rest.strip() or not (paths if chosen is None else chosen in paths):
        return None
    with suppress(ValueError):
        jsonio.loads(rest)
        return None
    return end


def _make(folder: Path) -> None:
    with system_errors(folder, "write"):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def _file_name(session: str) -> str:
    return _UNSAFE.sub("--", session)


def _usual_path(place: str | None) -> str:
    """Return the path for a new state: ``place``, or ``PATH`` if ``place`` does not fit.

    ``place`` is the path in the source of a copy, or None.  The path of a memory of AgentScope 1.x
    does not fit.
    """
    return place if place and not place.endswith("memory") else PATH


def _at(value: Any, steps: Steps) -> Any:
    for step in steps:
        value = value[step]
    return value


def _extra(session: Session) -> str:
    found: dict[str, Any] = {
        "record": session.record,
        "payload": session.payload,
        "state": session.state,
    }
    if not isinstance(session.summary, str):
        found["summary"] = session.summary
    return jsonio.dumps(found).decode()


def _introduced(extra: str, messages: list[StoredMessage]) -> tuple[Session, list[bytes]]:
    """Return the session that ``Memory.extra`` describes, and its context as JSON texts.

    ``messages`` are all messages of the memory.

    Raises:
        Rejected: ``extra`` does not describe a session, or the JSON of a message has an id that is
            not ``StoredMessage.id``.
    """
    try:
        session, entries = parse_extra(extra)
    except NotASession as error:
        raise Rejected("refused", str(error)) from error
    texts = list(_texts(messages))
    if entries is not None:  # the context differs from the log
        of = {entry.id: text for entry, text in zip(messages, texts, strict=True)}
        found = [of.get(one, b"") if isinstance(one, str) else one.text for one in entries]
        texts = list(filter(None, found))
    return session, texts


def _texts(messages: list[StoredMessage]) -> Iterator[bytes]:
    """Yield the JSON texts of messages.

    Raises:
        Rejected: the id in the JSON of a message is not ``StoredMessage.id``.
    """
    for entry in messages:
        own = jsonio.field(entry.message, "id") or ""
        if own != entry.id:
            raise Rejected("refused", f"the message {entry.id!r} has the id {own!r} in its text")
        yield entry.message


def _array(texts: list[bytes]) -> bytes:
    return b"[" + b", ".join(texts) + b"]"


def _state_text(session: Session, texts: list[bytes]) -> bytes:
    rest = {name: one for name, one in session.state.items() if name != SESSION}
    head = {SESSION: session.state[SESSION]} if SESSION in session.state else {}
    before = jsonio.dumps({**head, SUMMARY: session.summary}).removesuffix(b"}")
    after = jsonio.dumps(rest).removeprefix(b"{")
    return before + b',"context":' + _array(texts) + (b"," if rest else b"") + after


def _inserted(found: _File | None, steps: Steps, state: bytes) -> bytes:
    """Return the text of a file with ``state``, a JSON text, inserted at the path ``steps``.

    ``found`` is the existing file; None for a new file.  Other values in the file stay.

    Raises:
        Rejected: the file has a value at this path, or a value on the way that is no object.
    """
    if found is None:
        head = b"".join(b"{" + jsonio.dumps(step) + b":" for step in steps)
        return head + state + b"}" * len(steps)
    value = found.value
    inside = value
    for step in steps[:-1]:
        inside = inside.setdefault(step, {}) if isinstance(inside, dict) else None
    if not (isinstance(inside, dict) and steps and steps[-1] not in inside):
        raise Rejected("bad-name", f"{join(steps)!r} exists and is not a state")
    inside[steps[-1]] = jsonio.loads(state)
    return jsonio.dumps(value)


def _spliced(text: bytes, splices: list[tuple[tuple[int, int], bytes]]) -> bytes:
    for (start, end), new in sorted(splices, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def _spans(found: _File, steps: Steps) -> _Spans:
    at = len(BYTE_ORDER_MARK) if found.text.startswith(BYTE_ORDER_MARK) else 0
    for step in steps:
        at = _members(found.text, at)[step][0]
    end = _end(found.text, at)
    members = _members(found.text, at)
    context = members[CONTEXT]
    walk = Walk(found.text)
    walk.at = context[0]
    messages = [walk.skip() for _ in walk.items()]
    return _Spans((at, end), context, members.get(SUMMARY), messages)


def _members(text: bytes, at: int) -> dict[str, tuple[int, int]]:
    """Return the start and end of each value in the JSON object at ``at``, by key."""
    walk = Walk(text)
    walk.at = at
    found = {}
    for name in walk.members():
        start = walk.start()
        walk.skip()
        found[name] = start, walk.at
    return found


def _end(text: bytes, at: int) -> int:
    walk = Walk(text)
    walk.at = at
    walk.skip()
    return walk.at


def _entry(name: str, at: int, text: bytes) -> StoredMessage:
    if not text.startswith(b"{"):
        raise BadData(f"the context in {name} holds no message at index {at}")
    text = jsonio.utf8(text)
    return StoredMessage(jsonio.field(text, "id") or "", text)
