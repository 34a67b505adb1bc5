"""The vector store of ReMe 0.2: a folder with a file for each workspace, a line for each node.

Read from flowllm 0.2.0.10 (``core/vector_store/local_vector_store.py``).  ReMe loads a workspace
into memory on first use, and writes its whole file at each change.  So does memctl.
"""

from __future__ import annotations

import json
import os
import stat
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

from msgspec import Struct, field, structs

from memctl.dialects.fact import dimensions, vector_of
from memctl.dialects.view import Dialect
from memctl.errors import Failure, Lost
from memctl.location import Location, visible
from memctl.machine.concurrency import in_thread
from memctl.model import (
    PAGE_ENTRIES,
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
from memctl.store import Maintenance, OpenMode
from memctl.storekit.fact_texts import WHEN
from memctl.storekit.facts import FactEntry, FactStore, LoadedFact
from memctl.storekit.files import AtomicFile, move_file, sync_folder, system_errors
from memctl.storekit.folder import Folder
from memctl.storekit.simple import Rejected
from memctl.storekit.texts import Rewriter, RewriterWrapper, Rewritten
from memctl.stores.reme.nodes import BadNode, NodeRewriter, Nodes2

SUFFIX = ".jsonl"
_LOOKED_AT = 50
_MADE = "file"
"""The ``WriteResult.before`` of a workspace that had no file."""
_END = b"\n"
_ALL_FILES = 0o666
_BEYOND = 2**62
"""The line number of a new line that goes to the end."""
_Placed = tuple[int, bytes]
"""A line number and the new line to write there."""


class _Workspace(Struct):
    """A workspace: the lines of its file, and the facts in the lines.

    ``numbers`` has the number of the last line of each fact, by id of the fact, and ``earlier`` the
    numbers of its earlier lines.  Line numbers count from 0.  ``times`` has the times of facts, and
    ``damage`` the reasons why lines are unreadable, both by id.
    """

    version: tuple[int, ...]
    """The state of the file, as from ``_version``; empty without a file."""
    lines: list[bytes] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)
    """The line number of each id, the last line number of a repeated id."""
    earlier: dict[str, list[int]] = field(default_factory=dict)
    """The earlier line numbers of repeated ids."""
    keys: dict[str, MemoryKey] = field(default_factory=dict)
    """The memory of each id, unless it is the memory with the user alone."""
    times: dict[str, str] = field(default_factory=dict)
    damage: dict[str, str] = field(default_factory=dict)

    def of(self, ids: Iterable[str]) -> set[int]:
        """Return the numbers of all lines of the facts with these ids."""
        found: set[int] = set()
        for id in ids:
            if id in self.numbers:
                found |= {self.numbers[id], *self.earlier.get(id, ())}
        return found


class _OfSessions(RewriterWrapper):
    """A rewriter of the lines of a workspace that are facts of some sessions."""

    def __init__(self, rewriter: Rewriter, store: ReMeLinesStore, sessions: Set[str]) -> None:
        super().__init__(rewriter)
        self._store = store
        self._sessions = sessions

    def rewrite(self, text: bytes, key: str = "") -> Rewritten:
        try:
            memory, _, _ = self._store.form.place(text)
        except BadNode as error:
            raise self._store.damaged_fact("a line", str(error)) from error
        if memory.session not in self._sessions:
            return Rewritten(text, [], [])
        return self._rewriter.rewrite(text, key)


class ReMeLinesStore(FactStore):
    """The facts of all workspaces of ReMe 0.2 in a folder."""

    kind = "reme-0.2"
    features = structs.replace(FactStore.features, renames=frozenset({"user"}))
    form = Nodes2()
    embeds = WHEN

    def __init__(self, location: Location, mode: OpenMode = OpenMode.READ) -> None:
        super().__init__(location, mode)
        self.folder = Folder(location.path)
        self._known: dict[str, _Workspace] = {}

    async def connect(self, mode: OpenMode) -> None:
        self.folder.open(create=mode.creates)
        self.embedding = await in_thread(self._embedding)

    def adopt(self, dialect: Dialect, embedding: Embedding | None = None) -> None:
        super().adopt(dialect, embedding)
        self.embedding = self.embedding or embedding

    def _embedding(self) -> Embedding | None:
        """Return the usual number of dimensions; None without vectors."""
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

    async def lock(self, owner: str) -> None:
        self.shard = None  # a file has one writer, and facts of several sessions of a user
        await super().lock(owner)

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
            held = await in_thread(partial(self._held, user))
            whole = MemoryKey(user, "")
            for id in held.numbers:
                key = held.keys.get(id, whole)
                if where.has_key(key):
                    yield FactEntry(key, id, held.times.get(id, ""))

    def _held(self, user: str) -> _Workspace:
        path = self._path(user)
        with system_errors(path, "read"):
            version = _version(path)
            known = self._known.get(user)
            if known is None or known.version != version:
                self._known.clear()  # one at a time: it is as large as its file
                known = self._known[user] = self._scanned(user, version)
        return known

    def _scanned(self, user: str, version: tuple[int, ...]) -> _Workspace:
        held = _Workspace(version)
        if not version:
            return held
        whole = MemoryKey(user, "")
        with self._path(user).open("rb") as file:
            held.lines = file.readlines()
        for number, line in enumerate(held.lines):
            if not line.strip():
                continue
            try:
                key, id, time = self.form.place(line, user)
            except BadNode as error:
                id = f"line {number + 1}"
                held.damage[id] = _why(line, str(error))
                held.numbers[id] = number
                continue
            if id in held.numbers:
                held.earlier.setdefault(id, []).append(held.numbers[id])
            held.numbers[id] = number
            held.times[id] = time
            if key != whole:
                held.keys[id] = key
            else:
                held.keys.pop(id, None)
        return held

    async def load(self, key: MemoryKey, ids: Sequence[str]) -> list[LoadedFact]:
        return await in_thread(partial(self._load_facts, key.user, ids))

    def _load_facts(self, user: str, ids: Sequence[str]) -> list[LoadedFact]:
        if _bad_name(user):
            return []
        held = self._held(user)
        found = []
        for id in ids:
            if id not in held.numbers:
                continue
            damage = held.damage.get(id, "")
            try:
                if not damage:
                    place, own, message = self.form.fact(held.lines[held.numbers[id]], user)
            except BadNode as error:  # its vector
                damage = str(error)
            if damage:
                place = held.keys.get(id, MemoryKey(user, ""))
                found.append(LoadedFact(place, StoredMessage(id, b""), damage))
                continue
            shape = json.dumps(
                [
                    [number, held.lines[number].decode("utf-8", "surrogateescape")]
                    for number in sorted(held.of([id]))
                ]
            )
            found.append(LoadedFact(place, StoredMessage(own, message, shape=shape)))
        return found

    # Rewriting

    def _text_rewriter(self, rewriter: Rewriter, where: Selection) -> Rewriter:
        made = NodeRewriter(rewriter)
        return _OfSessions(made, self, where.sessions) if where.sessions else made

    def text_files(self) -> Iterable[Path]:
        return map(self._path, self._users())

    def selected_files(self, where: Selection) -> Iterable[Path]:
        return (self._path(one) for one in self._users() if not where.users or one in where.users)

    # Other names

    def name_refusal(self, key: MemoryKey) -> Failure | None:
        return _bad_workspace(key.user) or super().name_refusal(key)

    async def rename(self, moves: Mapping[MemoryKey, MemoryKey]) -> AsyncGenerator[WriteResult]:
        """Rename workspaces, each with all its facts: in the lines of its file, then the file."""
        users = {old.user: new.user for old, new in moves.items()}
        failures = {
            old: await in_thread(partial(self._rename, old, new)) for old, new in users.items()
        }
        for key in moves:
            yield WriteResult(key, failure=failures[key.user])

    def _rename(self, old: str, new: str) -> Failure | None:
        path, target = self._path(old), self._path(new)
        is_other = target.exists() and not (path.exists() and path.samefile(target))
        if is_other:
            return Failure("conflict", f"{visible(target.name)} exists")
        with system_errors(path, "read"):
            held = self._held(old)
        if not held.version:
            return None
        try:
            lines = [self.form.renamed(one, old, new) if one.strip() else one for one in held.lines]
        except ValueError as error:
            return Failure("damaged", f"a line of {visible(path.name)} is damaged: {error}")
        if lines != held.lines:
            self._replace(path, held, lines)
        with system_errors(target, "write"):
            moved = move_file(path, target)
        self._known.clear()
        return None if moved else Failure("conflict", f"{visible(target.name)} exists")

    # Writing

    async def put(self, key: MemoryKey, facts: Sequence[StoredMessage]) -> None:
        new = self._placed(key, facts)
        await in_thread(partial(self._rewrite, key.user, {one.id for one in facts}, new))

    async def remove(self, key: MemoryKey, ids: Sequence[str]) -> None:
        await in_thread(partial(self._rewrite, key.user, set(ids), []))

    async def write(
        self, pages: AsyncGenerator[Page], mode: WriteMode = WriteMode.ADD
    ) -> AsyncGenerator[WriteResult]:
        """Write memories.  The file of a workspace is rewritten once for each memory."""
        facts: list[StoredMessage] = []
        async for page in pages:
            facts += page.messages
            if page.last:
                yield await self._write(page.memory.key, facts, mode)
                facts = []

    async def _write(
        self, key: MemoryKey, facts: list[StoredMessage], mode: WriteMode
    ) -> WriteResult:
        result = WriteResult(key, len(facts))
        ids = {one.id for one in facts}
        if len(ids) < len(facts):
            failure = Failure("repeated-id", "a fact has the id of another")
            return WriteResult(key, failure=failure)
        there: set[str] = set()
        for start in range(0, len(facts), PAGE_ENTRIES):
            some = facts[start : start + PAGE_ENTRIES]
            found = await self._there(key, [one.id for one in some])
            refused = self.refusal(key, some, found, mode)
            if refused is not None:
                return WriteResult(key, failure=refused)
            there |= found.keys()
        drop = there
        if mode is WriteMode.ADD:
            drop = set()
            facts = [one for one in facts if one.id not in there]
        else:
            async with aclosing(self.entries(Selection(keys=frozenset({key})))) as entries:
                others = {entry.id async for entry in entries} - ids
            drop |= others
            result = replace(result, deleted=len(others))
        try:
            new = self._placed(key, facts)
            made = await in_thread(partial(self._rewrite, key.user, drop, new, [result]))
        except Rejected as rejected:
            return WriteResult(key, failure=rejected.failure)
        return _made(result) if made else result

    async def edit(self, edits: AsyncGenerator[Edit]) -> AsyncGenerator[WriteResult]:
        """Edit memories.  The file of a workspace is rewritten once for all its memories.

        So an undo can put the lines of several memories back at their line numbers.
        """
        parts: list[Edit] = []
        async for edit in edits:
            if parts and edit.memory.key.user != parts[0].memory.key.user:
                for result in await self._apply_all(parts):
                    yield result
                parts = []
            parts.append(edit)
        for result in await self._apply_all(parts) if parts else ():
            yield result

    async def _apply_all(self, parts: list[Edit]) -> list[WriteResult]:
        results: dict[MemoryKey, WriteResult] = {}
        gone: dict[MemoryKey, set[str]] = {}
        new: dict[MemoryKey, list[_Placed]] = {}
        for edit in parts:
            key = edit.memory.key
            result = results.setdefault(key, WriteResult(key))
            if result.failure is not None:
                continue
            try:
                failure = await self._misfit(key, edit)
                if failure is not None:
                    raise Rejected(failure.code, failure.message)
                there = await self._there(key, [change.id for change in edit.changes])
                come = [
                    StoredMessage(one.id, one.message, shape=one.shape)
                    for one in edit.changes
                    if one.old is None and one.id not in there
                ]
                new.setdefault(key, []).extend(self._placed(key, come))
            except Rejected as rejected:
                results[key] = WriteResult(key, failure=rejected.failure)
                continue
            go = {one.id for one in edit.changes if one.new is None and one.id in there}
            gone.setdefault(key, set()).update(go)
            written, deleted = result.written + len(come), result.deleted + len(go)
            results[key] = replace(result, written=written, deleted=deleted)
        good = [key for key, result in results.items() if result.failure is None]
        if not good:
            return list(results.values())
        drop = set().union(*(gone[key] for key in good))
        lines = [line for key in good for line in new[key]]
        unmake = any(one.before == _MADE for one in parts if one.memory.key in good)
        some = [results[key] for key in good]
        rewrite = partial(self._rewrite, good[0].user, drop, lines, some, unmake=unmake)
        try:
            made = await in_thread(rewrite)
        except Rejected as rejected:  # no file can have that name
            refused = {key: WriteResult(key, failure=rejected.failure) for key in good}
            return list((results | refused).values())
        return [_made(one) if made and not one.failure else one for one in results.values()]

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

    def _rewrite(
        self,
        user: str,
        drop: Set[str],
        new: list[_Placed],
        results: Iterable[WriteResult] = (),
        *,
        unmake: bool = False,
    ) -> bool:
        """Rewrite the file of a user's workspace; return True if the file did not exist before.

        Leaves out the lines of the facts with ids in ``drop``, and adds the lines ``new``.  A file
        without lines is removed if ``unmake`` is True; if not, the empty file stays, as in ReMe.
        ``results`` are those of the memories in the file.

        Raises:
            Rejected: the user is not a valid name of a workspace.
            Lost: another program has changed the file meanwhile.
        """
        if failure := _bad_workspace(user):
            raise Rejected(failure.code, failure.message)
        path = self._path(user)
        with system_errors(path, "read"):
            held = self._held(user)
        gone = held.of(drop)
        if unmake and not new and len(gone) == len(held.lines):
            self._unlink(path)
            return False
        if not (gone or new):
            return False
        if not held.version:
            self.about_to_commit(map(_made, results))
        self._replace(path, held, _merged(held.lines, gone, new))
        return not held.version

    def _unlink(self, path: Path) -> None:
        with system_errors(path, "write"):
            path.unlink(missing_ok=True)
        sync_folder(path.parent)

    def _placed(self, key: MemoryKey, facts: Iterable[StoredMessage]) -> list[_Placed]:
        """Return the lines to write for facts, with line numbers.

        Raises:
            Rejected: a line cannot hold a fact.
        """
        return [line for fact in facts for line in self._texts(key, fact)]

    def _texts(self, key: MemoryKey, fact: StoredMessage) -> list[_Placed]:
        """Return the lines to write for a fact, with line numbers.

        A restored fact gets its former lines, and a new fact gets one line at the end.

        Raises:
            Rejected: a line cannot hold the fact.
        """
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

    def _replace(self, path: Path, held: _Workspace, lines: Iterable[bytes]) -> None:
        """Replace the file of a workspace by ``lines``; ``held`` is the workspace as read.

        Raises:
            Lost: another program has changed the file since it was read.
        """
        mode = None
        if not held.version:
            with system_errors(path, "write"):
                mode = path.parent.stat().st_mode & _ALL_FILES
        with AtomicFile(path, mode) as target:
            whole = True
            for text in lines:
                if not whole:
                    target.write(_END)
                target.write(text)
                whole = text.endswith(_END)
            target.sync()
            with system_errors(path, "read"):
                if _version(path) != held.version:
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
        """Yield a finding for each selected workspace in which several lines have the same id."""
        for user in self._users():
            key = MemoryKey(user, "")
            earlier = self._held(user).earlier
            if earlier and where.has_key(key):
                count = sum(map(len, earlier.values()))
                yield Finding("repeated-fact", key, count, tuple(islice(earlier, 3)))


class _LinesMaintenance(Maintenance):
    """The checks of ``doctor`` on the files of ReMe 0.2."""

    def __init__(self, store: ReMeLinesStore) -> None:
        super().__init__(store)
        self._lines = store

    async def _further(self, where: Selection) -> AsyncGenerator[Finding]:
        for finding in self._lines.repeated(where):
            yield finding


def _merged(lines: list[bytes], gone: set[int], new: list[_Placed]) -> Iterator[bytes]:
    """Yield the lines of a file without the lines in ``gone``, and with the lines ``new``.

    ``gone`` has line numbers.  A new line goes to its own line number, or to the end.  An
    unfinished last line stays the last line.
    """
    waiting = sorted(new, key=lambda one: one[0])[::-1]
    kept = [text for number, text in enumerate(lines) if number not in gone]
    written = 0
    for number, text in enumerate(kept):
        open_end = number == len(kept) - 1 and not text.endswith(_END)
        while waiting and (waiting[-1][0] <= written or (open_end and waiting[-1][0] == _BEYOND)):
            yield waiting.pop()[1]
            written += 1
        yield text
        written += 1
    while waiting:
        yield waiting.pop()[1]


def _version(path: Path) -> tuple[int, ...]:
    """Return the inode, size and modification time of a file; empty if it does not exist.

    Raises:
        Rejected: the path is not a regular file.
    """
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return ()
    if not stat.S_ISREG(found.st_mode):
        raise Rejected("bad-name", f"{visible(str(path))} is not a regular file")
    return found.st_ino, found.st_size, found.st_mtime_ns


def _made(result: WriteResult) -> WriteResult:
    return replace(result, before=_MADE)


def _bad_workspace(user: str) -> Failure | None:
    fault = _bad_name(user)
    said = f"{visible(user)!r} is not a valid name of a workspace: {fault}"
    return Failure("bad-name", said) if fault else None


def _bad_name(user: str) -> str:
    if "/" in user or "\0" in user:
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
