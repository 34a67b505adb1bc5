"""The vector store of ReMe 0.2: a folder with a file for each workspace, a line for each node.

Read from flowllm 0.2.0.10 (``core/vector_store/local_vector_store.py``).  ReMe holds a workspace in
memory once it has used it, and writes its whole file with every change.
"""

from __future__ import annotations

import json
import os
import stat
import tempfile
from array import array
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence, Set
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from memctl import system
from memctl.concurrency import in_thread
from memctl.dialects.fact import dimensions, vector_of
from memctl.dialects.view import Dialect
from memctl.errors import Failure, Lost
from memctl.location import Location, visible
from memctl.model import (
    Edit,
    Embedding,
    Finding,
    MemoryKey,
    Page,
    StoredMessage,
    WriteMode,
    WriteResult,
)
from memctl.selection import Selection
from memctl.spool import ItemSpool
from memctl.store import Maintenance, OpenMode
from memctl.storekit.facts import FactEntry, FactStore, LoadedFact
from memctl.storekit.files import AtomicFile, sync_folder, system_errors
from memctl.storekit.folder import Folder
from memctl.storekit.simple import Rejected
from memctl.stores.reme.nodes import WHEN, BadNode, Nodes2

SUFFIX = ".jsonl"
_LOOKED_AT = 50
_MADE = "file"
"""The ``WriteResult.before`` of a workspace that had no file."""
_END = b"\n"
_ALL_FILES = 0o666
_Facts = Iterable[tuple[MemoryKey, Sequence[StoredMessage]]]
"""Facts of one workspace, with their scopes."""


@dataclass(slots=True)
class _Lines:
    """The whereabouts of the nodes in the file of a workspace, as it was at one moment."""

    version: tuple[int, ...]
    starts: array[int] = field(default_factory=lambda: array("q"))
    """Where each line starts, and where the last ends."""
    numbers: dict[str, int] = field(default_factory=dict)
    """The line of each id, the last one if it has several."""
    earlier: dict[str, list[int]] = field(default_factory=dict)
    """The other lines of ids."""
    keys: dict[str, MemoryKey] = field(default_factory=dict)
    """The scopes of the ids that are not those of the workspace alone."""
    times: dict[str, str] = field(default_factory=dict)
    damage: dict[str, str] = field(default_factory=dict)

    def of(self, ids: Iterable[str]) -> set[int]:
        """Return all lines of ids."""
        found: set[int] = set()
        for id in ids:
            if id in self.numbers:
                found |= {self.numbers[id], *self.earlier.get(id, ())}
        return found


@dataclass(frozen=True, slots=True)
class _New:
    """Lines to put in, in a file of their own: where they are, and before which line they go."""

    file: BinaryIO
    places: list[tuple[int, int, int]]
    """The number of the line, or one beyond all; the offset; the size."""


class ReMeLinesStore(FactStore):
    """The workspaces of ReMe 0.2."""

    kind = "reme-0.2"
    form = Nodes2()
    embeds = WHEN

    def __init__(self, location: Location, mode: OpenMode = OpenMode.READ) -> None:
        super().__init__(location, mode)
        self.folder = Folder(location.path)
        self._known: dict[str, _Lines] = {}

    async def connect(self, mode: OpenMode) -> None:
        self.folder.open(create=mode.creates)
        self.embedding = await in_thread(self._embedding)

    def adopt(self, dialect: Dialect, embedding: Embedding | None = None) -> None:
        super().adopt(dialect, embedding)
        self.embedding = self.embedding or embedding

    def _embedding(self) -> Embedding | None:
        """Return the commonest size of vectors at the beginning of files; None without any."""
        sizes: Counter[int] = Counter()
        for user in self._users():
            with system_errors(self._path(user), "read"), self._path(user).open("rb") as file:
                for line in islice(file, _LOOKED_AT):
                    try:
                        vector = vector_of(self.form.fact(line)[2])
                    except BadNode:
                        continue
                    if vector is not None:
                        sizes[dimensions(vector)] += 1
        return Embedding("", sizes.most_common(1)[0][0]) if sizes else None

    async def disconnect(self) -> None:
        self._known.clear()

    # Reading

    def _users(self) -> Iterator[str]:
        for entry in sorted(os.scandir(self.location.path), key=lambda one: one.name):
            if entry.name.endswith(SUFFIX) and entry.is_file(follow_symlinks=False):
                yield entry.name.removesuffix(SUFFIX)

    def _path(self, user: str) -> Path:
        return self.location.path / (user + SUFFIX)

    async def entries(self, where: Selection) -> AsyncGenerator[FactEntry]:
        with system_errors(self.location.path, "read"):
            users = list(self._users())
        for user in users:
            if where.users and user not in where.users:
                continue
            lines = await in_thread(partial(self._lines, user))
            whole = MemoryKey(user, "")
            for id in lines.numbers:
                key = lines.keys.get(id, whole)
                if where.has_key(key):
                    yield FactEntry(key, id, lines.times.get(id, ""))

    def _lines(self, user: str) -> _Lines:
        """Return where the nodes of a workspace are; read anew if the file has changed."""
        path = self._path(user)
        with system_errors(path, "read"):
            version = _version(path)
            known = self._known.get(user)
            if known is None or known.version != version:
                self._known.clear()  # one at a time: it is as large as its ids
                known = self._known[user] = self._scanned(user, version)
        return known

    def _scanned(self, user: str, version: tuple[int, ...]) -> _Lines:
        lines = _Lines(version)
        lines.starts.append(0)
        if not version:
            return lines
        whole = MemoryKey(user, "")
        with self._path(user).open("rb") as file:
            for number, line in enumerate(file):
                lines.starts.append(lines.starts[-1] + len(line))
                if not line.strip():
                    continue
                try:
                    key, id, time = self.form.place(line, user)
                except BadNode as error:
                    id = f"line {number + 1}"
                    lines.damage[id] = _why(line, str(error))
                    lines.numbers[id] = number
                    continue
                if id in lines.numbers:
                    lines.earlier.setdefault(id, []).append(lines.numbers[id])
                lines.numbers[id] = number
                lines.times[id] = time
                if key != whole:
                    lines.keys[id] = key
                else:
                    lines.keys.pop(id, None)
        return lines

    async def load(self, key: MemoryKey, ids: Sequence[str]) -> list[LoadedFact]:
        return await in_thread(partial(self._load_lines, key, ids))

    def _load_lines(self, key: MemoryKey, ids: Sequence[str]) -> list[LoadedFact]:
        user = key.user
        if _bad_name(user):
            return []
        lines = self._lines(user)
        found = []
        if not any(id in lines.numbers for id in ids):
            return []
        with system_errors(self._path(user), "read"), self._path(user).open("rb") as file:
            for id in ids:
                if id not in lines.numbers:
                    continue
                if id in lines.damage:
                    place = MemoryKey(user, "")
                    found.append(LoadedFact(place, StoredMessage(id, b""), lines.damage[id]))
                    continue
                texts = {number: _line(file, lines, number) for number in sorted(lines.of([id]))}
                try:
                    place, own, message = self.form.fact(texts[lines.numbers[id]], user)
                except BadNode as error:
                    raise self._changed(user) from error
                if own != id:
                    raise self._changed(user)
                shape = json.dumps(
                    [
                        [number, text.decode("utf-8", "surrogateescape")]
                        for number, text in texts.items()
                    ]
                )
                found.append(LoadedFact(place, StoredMessage(id, message, shape=shape)))
        return found

    # Writing

    async def put(self, key: MemoryKey, facts: Sequence[StoredMessage]) -> None:
        new = [(key, facts)]
        await in_thread(partial(self._rewrite, key.user, {one.id for one in facts}, new))

    async def remove(self, key: MemoryKey, ids: Sequence[str]) -> None:
        await in_thread(partial(self._rewrite, key.user, set(ids), []))

    async def write(
        self, pages: AsyncGenerator[Page], mode: WriteMode = WriteMode.ADD
    ) -> AsyncGenerator[WriteResult]:
        """Write scopes, each by one rewriting of its workspace; see ``FactStore.write``."""
        parts: ItemSpool[Page] | None = None
        try:
            async for page in pages:
                with system_errors(Path(tempfile.gettempdir()), "write"):
                    parts = parts or ItemSpool()
                    parts.add(page)
                if page.last:
                    yield await self._write(parts, mode)
                    parts.close()
                    parts = None
        finally:
            if parts is not None:
                parts.close()

    async def _write(self, parts: ItemSpool[Page], mode: WriteMode) -> WriteResult:
        key = parts[0].memory.key
        result = WriteResult(key)
        ids: set[str] = set()
        there: set[str] = set()
        for page in parts:
            known = len(ids)
            ids.update(one.id for one in page.messages)
            if len(ids) < known + len(page.messages):
                failure = Failure("repeated-id", "a fact has the id of another")
                return replace(result, failure=failure)
            found = await self._there(key, [one.id for one in page.messages])
            refused = self.refusal(key, page.messages, found, mode)
            if refused is not None:
                return replace(result, failure=refused)
            there |= found.keys()
            result = replace(result, written=result.written + len(page.messages))
        drop = set(there)
        new: _Facts = ((key, page.messages) for page in parts)
        if mode is WriteMode.ADD:
            drop = set()
            new = ((key, [one for one in page.messages if one.id not in there]) for page in parts)
        else:
            async with aclosing(self.entries(Selection(keys=frozenset({key})))) as entries:
                others = {entry.id async for entry in entries} - ids
            drop |= others
            result = replace(result, deleted=len(others))
        try:
            made = await in_thread(partial(self._rewrite, key.user, drop, new))
        except Rejected as rejected:
            return WriteResult(key, failure=rejected.failure)
        return replace(result, before=_MADE if made else "")

    async def edit(self, edits: AsyncGenerator[Edit]) -> AsyncGenerator[WriteResult]:
        """Change scopes, those of a workspace by one rewriting; see ``FactStore.edit``.

        So lines of several scopes come back between those that stay as they were.
        """
        parts: ItemSpool[Edit] | None = None
        user = ""
        try:
            async for edit in edits:
                if parts is not None and edit.memory.key.user != user:
                    for result in await self._apply_all(parts):
                        yield result
                    parts.close()
                    parts = None
                user = edit.memory.key.user
                with system_errors(Path(tempfile.gettempdir()), "write"):
                    parts = parts or ItemSpool()
                    parts.add(edit)
            if parts is not None:
                for result in await self._apply_all(parts):
                    yield result
        finally:
            if parts is not None:
                parts.close()

    async def _apply_all(
        self, parts: ItemSpool[Edit], only: MemoryKey | None = None
    ) -> list[WriteResult]:
        """Change the scopes of one workspace, or one of them; return a result for each."""
        results: dict[MemoryKey, WriteResult] = {}
        for edit in parts:
            key = edit.memory.key
            if key != (only or key):
                continue
            result = results.setdefault(key, WriteResult(key))
            if result.failure is None:
                results[key] = replace(result, failure=await self._misfit(key, edit))
        gone: set[str] = set()
        put: set[str] = set()
        unmake = False
        for edit in parts:
            key = edit.memory.key
            if key not in results or results[key].failure is not None:
                continue
            there = await self._there(key, [change.id for change in edit.changes])
            go = {one.id for one in edit.changes if one.new is None and one.id in there}
            come = {one.id for one in edit.changes if one.old is None and one.id not in there}
            result = results[key]
            results[key] = replace(
                result, written=result.written + len(come), deleted=result.deleted + len(go)
            )
            gone |= go
            put |= come
            unmake |= edit.before == _MADE
        good = {key for key, result in results.items() if result.failure is None}
        if not good:
            return list(results.values())
        new = (
            (
                edit.memory.key,
                [
                    StoredMessage(change.id, change.message, shape=change.shape)
                    for change in edit.changes
                    if change.old is None and change.id in put
                ],
            )
            for edit in parts
            if edit.memory.key in good
        )
        user = parts[0].memory.key.user
        try:
            made = await in_thread(partial(self._rewrite, user, gone, new, unmake=unmake))
        except Rejected as rejected:
            if len(results) == 1:
                return [WriteResult(key, failure=rejected.failure) for key in results]
            # One of them was refused, and the others can be done.
            return [one for key in results for one in await self._apply_all(parts, key)]
        before = _MADE if made else ""
        return [one if one.failure else replace(one, before=before) for one in results.values()]

    async def names(self, where: Selection) -> AsyncGenerator[MemoryKey]:
        async with aclosing(super().names(where)) as names:
            async for key in names:
                yield key
        for user in list(self._users()):
            key = MemoryKey(user, "")
            if where.has_key(key) and self._path(user).stat().st_size == 0:
                yield key

    async def erase(self, where: Selection) -> AsyncGenerator[WriteResult]:
        found: dict[MemoryKey, set[str]] = {}
        async with aclosing(self.entries(where)) as entries:
            async for entry in entries:
                found.setdefault(entry.key, set()).add(entry.id)
        async for key in self.names(where):
            found.setdefault(key, set())
        for key, ids in found.items():
            await in_thread(partial(self._rewrite, key.user, ids, [], unmake=True))
            yield WriteResult(key, deleted=len(ids))

    def _rewrite(self, user: str, drop: Set[str], new: _Facts, *, unmake: bool = False) -> bool:
        """Write the file of a workspace anew; return whether there was none.

        ``unmake`` removes it, if nothing is left in it; else it stays, as ReMe leaves it.
        """
        fault = _bad_name(user)
        if fault:
            raise Rejected(
                "bad-name", f"{visible(user)!r} is not a valid name of a workspace: {fault}"
            )
        path = self._path(user)
        with system_errors(Path(tempfile.gettempdir()), "write"), tempfile.TemporaryFile() as file:
            places = self._prepare(new, file)
            with system_errors(path, "read"):
                lines = self._lines(user)
            made = not lines.version
            gone = lines.of(drop)
            if not (gone or places):
                if unmake and lines.starts[-1] == 0:
                    self._unlink(path)
                return False
            if unmake and not places and len(gone) == len(lines.starts) - 1:
                self._unlink(path)
                return False
            self._replace(path, lines, gone, _New(file, places))
        return made

    def _unlink(self, path: Path) -> None:
        with system_errors(path, "write"):
            path.unlink(missing_ok=True)
        sync_folder(path.parent)

    def _prepare(self, new: _Facts, file: BinaryIO) -> list[tuple[int, int, int]]:
        """Write the lines of facts into a temporary file; return where they go, and are in it."""
        places = []
        at = 0
        for key, facts in new:
            for fact in facts:
                for number, text in self._texts(key, fact):
                    file.write(text)
                    places.append((number, at, len(text)))
                    at += len(text)
        places.sort()
        return places

    def _texts(self, key: MemoryKey, fact: StoredMessage) -> list[tuple[int, bytes]]:
        """Return the lines of a fact, and their numbers: those that it had, or its only one."""
        if fact.shape:
            try:
                texts = [
                    (int(number), text.encode("utf-8", "surrogateescape"))
                    for number, text in json.loads(fact.shape)
                ]
                if texts and self.form.fact(texts[-1][1], key.user) == (key, fact.id, fact.message):
                    return texts
            except (ValueError, TypeError, AttributeError):  # the shape of another store
                pass
        node = self.form.node(key, fact)
        try:
            return [(_BEYOND, json.dumps(node, ensure_ascii=False).encode() + _END)]
        except UnicodeEncodeError:
            raise Rejected("refused", f"the fact {fact.id!r} is not Unicode") from None

    def _replace(self, path: Path, lines: _Lines, gone: set[int], new: _New) -> None:
        mode = None
        if not lines.version:
            with system_errors(path, "write"):
                mode = path.parent.stat().st_mode & _ALL_FILES
        with AtomicFile(path, mode) as target:
            whole = True
            for text in _merged(path, lines, gone, new):
                if not whole:
                    target.write(_END)
                target.write(text)
                whole = text.endswith(_END)
            target.sync()
            with system_errors(path, "read"):
                if _version(path) != lines.version:
                    raise self._changed(path.name.removesuffix(SUFFIX))
            target.replace()
        sync_folder(path.parent)
        self._known.clear()

    def _changed(self, user: str) -> Lost:
        return Lost(
            f"another program has changed {visible(user)}{SUFFIX} meanwhile",
            "stop ReMe while memctl writes: it overwrites what others change",
        )

    def maintenance(self) -> Maintenance:
        return _LinesMaintenance(self)

    def repeated(self, where: Selection) -> Iterator[Finding]:
        """Yield the ids that have several lines."""
        for user in self._users():
            key = MemoryKey(user, "")
            earlier = self._lines(user).earlier
            if earlier and where.has_key(key):
                count = sum(map(len, earlier.values()))
                yield Finding("repeated-fact", key, count, tuple(islice(earlier, 3)))


class _LinesMaintenance(Maintenance):
    """The checks of ReMe 0.2's files."""

    def __init__(self, store: ReMeLinesStore) -> None:
        super().__init__(store)
        self._lines = store

    async def check(self, where: Selection) -> AsyncGenerator[Finding]:
        async with aclosing(super().check(where)) as findings:
            async for finding in findings:
                yield finding
        for finding in self._lines.repeated(where):
            yield finding


_BEYOND = 2**62


def _merged(path: Path, lines: _Lines, gone: set[int], new: _New) -> Iterator[bytes]:
    """Yield the lines of a file without those that go, and with new ones in their places.

    What has no place comes last, but before a line that does not end: so that stays as it is.
    """
    waiting = iter(new.places)
    next_one = next(waiting, None)
    written = 0
    count = len(lines.starts) - 1
    kept = [number for number in range(count) if number not in gone]
    if lines.version:
        with system_errors(path, "read"), path.open("rb") as file:
            for number in kept:
                text = _line(file, lines, number)
                open_end = number == kept[-1] and not text.endswith(_END)
                while next_one and (
                    next_one[0] <= written or (open_end and next_one[0] == _BEYOND)
                ):
                    yield _new_line(new, next_one)
                    written += 1
                    next_one = next(waiting, None)
                yield text
                written += 1
    while next_one:
        yield _new_line(new, next_one)
        next_one = next(waiting, None)


def _new_line(new: _New, place: tuple[int, int, int]) -> bytes:
    new.file.seek(place[1])
    return new.file.read(place[2])


def _line(file: BinaryIO, lines: _Lines, number: int) -> bytes:
    start, end = lines.starts[number], lines.starts[number + 1]
    file.seek(start)
    return file.read(end - start)


def _version(path: Path) -> tuple[int, ...]:
    """Return what changes with a file; empty where there is none."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return ()
    if not stat.S_ISREG(found.st_mode):
        raise Rejected("bad-name", f"{visible(str(path))} is not a regular file")
    return found.st_ino, found.st_size, found.st_mtime_ns


def _bad_name(user: str) -> str:
    """Return what keeps a user from being a workspace of ReMe; empty where nothing does."""
    if "/" in user or "\0" in user or (not system.POSIX and set(user) & set('\\:*?"<>|')):
        return "it has a character that no name has"
    try:
        size = len(os.fsencode(user + SUFFIX))
    except UnicodeEncodeError:
        return "it is not Unicode"
    return "it is too long" if size > 255 else ""


def _why(line: bytes, fault: str) -> str:
    if b'"memory_id"' in line and b'"unique_id"' not in line:
        return "it is a line of ReMe's dump, which has no vectors: have ReMe load it"
    return fault
