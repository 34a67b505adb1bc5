"""A base class for stores that load one whole memory into RAM at a time.

``SimpleStore`` fits documents, vaults and small tables.  A store defines ``connect``,
``disconnect``, ``keys``, ``load`` and ``save``.  The class derives the other methods of ``Store``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from msgspec import structs

from memctl.errors import BadData, Failure
from memctl.json.document import TAIL, TrailingData
from memctl.model import (
    Edit,
    Finding,
    Memory,
    MemoryKey,
    Page,
    StoredMessage,
    WriteMode,
    WriteResult,
)
from memctl.selection import Selection
from memctl.store import EDIT_ATTEMPTS, NAME_STAYS, NO_VERSION, OpenMode, Store
from memctl.storekit.catalog import IdSet
from memctl.storekit.edits import Snapshot, apply_edit, without_summary

MADE = "made"
"""The ``WriteResult.before`` of a memory that did not exist before the write."""


class VersionChanged(Exception):
    """The stored memory does not have the version that ``SimpleStore.save`` expects."""


class Rejected(Exception):
    """The store does not accept a key (code ``bad-name``) or a value (such as code ``refused``)."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.failure = Failure(code, message)


def part_refusal(key: MemoryKey) -> Failure | None:
    """Return why a store without parts cannot hold a memory; None if the key names no part."""
    if not key.part:
        return None
    text = f"the store holds one memory a session, not a part like {key.part!r}"
    return Failure("bad-name", text)


def not_owned(what: str, owner: str, user: str) -> str:
    """Return why a store whose memories name no user cannot hold a memory of ``user``.

    ``what`` names the memories of the store.  ``owner`` is the user of all of them, from
    ``?owner=`` of the URL, or empty.
    """
    whose = f"are all of {owner!r}" if owner else "name no user"
    hint = "; leave out owner=, or write it in the URL of the source"
    if user:
        hint = f"; add ?owner={user} to the URL of the target, and copy with --user {user}"
    return f"{what} {whose}, not {user!r}{hint}"


class ConnectedStore(Store):
    """A store that is opened by ``connect`` and closed by ``disconnect``."""

    @abstractmethod
    async def connect(self, mode: OpenMode) -> None:
        """Connect to the store, and set ``embedding`` if the store holds facts with vectors.

        ``mode`` and the errors are as in ``Store.open``.
        """

    @abstractmethod
    async def disconnect(self) -> None:
        """Release the resources of ``connect``, also after an error in ``connect``."""

    async def open(self, mode: OpenMode) -> None:
        self.mode = mode
        await self.connect(mode)

    async def close(self) -> None:
        await self.disconnect()


class SimpleStore(ConnectedStore):
    """A store that holds one memory in RAM at a time.

    A store for a folder with one JSON file for each session::

        class NotesStore(SimpleStore):
            kind = "notes"
            features = Features(empty=True)

            async def connect(self, mode: OpenMode) -> None:
                if mode.creates:
                    self.location.path.mkdir(exist_ok=True)

            async def disconnect(self) -> None: ...

            async def keys(self) -> AsyncGenerator[MemoryKey]:
                for file in sorted(self.location.path.glob("*.json")):
                    yield MemoryKey("", file.stem)

            async def load(self, key: MemoryKey) -> Snapshot | None: ...

            async def save(
                self, key: MemoryKey, snapshot: Snapshot, expect: str | None
            ) -> None: ...

    ``load`` sets ``Memory.version``, such as a digest of the file or a counter of the row.
    ``save`` compares this version with the stored version, and replaces the memory whole or not at
    all.  The comparison protects messages that an agent adds between ``load`` and ``save``.
    """

    @abstractmethod
    def keys(self) -> AsyncGenerator[MemoryKey]:
        """Yield the keys of the stored memories, in a stable order.

        Raises:
            Unavailable: the store cannot be reached any more.
        """

    @abstractmethod
    async def load(self, key: MemoryKey) -> Snapshot | None:
        """Return a memory with its ``Memory.version``, or None if the store does not contain it.

        Raises:
            Unavailable: the store cannot be reached any more.
            BadData: the memory is damaged.
        """

    @abstractmethod
    async def save(self, key: MemoryKey, snapshot: Snapshot, expect: str | None) -> None:
        """Store a memory whole or not at all, if the stored version is ``expect``.

        ``expect`` is None if the memory must not exist.  The memory is durable on return.

        Raises:
            VersionChanged: the stored version is not ``expect``.
            Rejected: the store does not accept the key or a value.
            Unavailable: the store cannot be reached any more; the memory is unchanged.
        """

    async def remove(self, key: MemoryKey, expect: str | None) -> None:
        """Remove a memory and its name, if the stored version is ``expect``.

        The default saves an empty memory.  A store that keeps empty memories overrides this method.

        Raises:
            VersionChanged, Rejected, Unavailable: as ``save``.
        """
        await self.save(key, Snapshot(Memory(key, summary=""), []), expect)

    def read(self, where: Selection) -> AsyncGenerator[Page]:
        return where.apply(self._pages(where), self.dialect)

    async def _pages(self, where: Selection) -> AsyncGenerator[Page]:
        async with aclosing(self.keys()) as keys:
            async for key in keys:
                snapshot = await self._load_or_note(key) if where.has_key(key) else None
                if snapshot is None or not (snapshot.messages or self.features.empty):
                    continue
                self.left_out.others = True
                async with aclosing(snapshot.pages()) as pages:
                    async for page in pages:
                        yield page

    async def _load_or_note(self, key: MemoryKey) -> Snapshot | None:
        """Return a memory; None if it does not exist or is damaged."""
        try:
            return await self.load(key)
        except BadData as error:
            if self.skips_damage:
                code = TAIL if isinstance(error, TrailingData) else "damaged-state"
                self.damage.append(Finding(code, key, detail=error.message))
            else:
                self.left_out.failures[key] = Failure("damaged", error.message)
            return None

    async def write(
        self, pages: AsyncGenerator[Page], mode: WriteMode = WriteMode.ADD
    ) -> AsyncGenerator[WriteResult]:
        messages: list[StoredMessage] = []
        first: Page | None = None
        async for page in pages:
            first = first or page
            messages += page.messages
            if page.last:
                yield await self._write(first, messages, mode)
                first, messages = None, []

    def name_refusal(self, key: MemoryKey) -> Failure | None:
        return None if self.features.parts else part_refusal(key)

    async def _write(
        self, first: Page, messages: list[StoredMessage], mode: WriteMode
    ) -> WriteResult:
        key, wanted = first.memory.key, first.memory
        if failure := self.name_refusal(key):
            return WriteResult(key, failure=failure)
        try:
            there = await self.load(key) or Snapshot(Memory(key), exists=False)
            new = written(there, first, messages, mode, repeats=self.features.duplicate_ids)
            ttl = there.memory.ttl if wanted.ttl is None else wanted.ttl
            new = structs.replace(new, memory=replace(new.memory, ttl=ttl))
            gone = len(there.messages) if mode is WriteMode.REPLACE else 0
            before = "" if there.exists else MADE
            result = WriteResult(key, len(messages), gone, before=before)
            self.about_to_commit([result])
            await self.save(key, new, there.memory.version)
        except VersionChanged:
            return WriteResult(key, failure=CHANGED)
        except Rejected as rejected:
            return WriteResult(key, failure=rejected.failure)
        except BadData as error:
            return WriteResult(key, failure=Failure("damaged", error.message))
        return result

    async def _edit(self, edit: Edit) -> WriteResult:
        key = edit.memory.key
        if not self.features.summaries:
            edit = without_summary(edit)
        for _ in range(EDIT_ATTEMPTS):
            try:
                there = await self.load(key) or Snapshot(Memory(key), exists=False)
                if there.exists and there.memory.version is None:
                    return WriteResult(key, failure=NO_VERSION)
                changed, result = apply_edit(edit, there, self.dialect)
                if changed is None:
                    return result
                version = there.memory.version
                if edit.before == MADE and not (changed.messages or changed.memory.summary):
                    await self.remove(key, version)
                    return result
                result = replace(result, before="" if there.exists else MADE)
                self.about_to_commit([result])
                await self.save(key, changed, version)
            except VersionChanged:
                continue
            except Rejected as rejected:
                return WriteResult(key, failure=rejected.failure)
            except BadData as error:
                return WriteResult(key, failure=Failure("damaged", error.message))
            return result
        return WriteResult(key, failure=CHANGED)

    async def list_keys(self, where: Selection) -> AsyncGenerator[MemoryKey]:
        async with aclosing(self.keys()) as keys:
            found = dict.fromkeys([key async for key in keys])
        for key in filter(where.has_key, found):
            yield key

    def names(self, where: Selection) -> AsyncGenerator[MemoryKey]:
        return self.list_keys(where)

    async def _erase(self, key: MemoryKey) -> WriteResult:
        for _ in range(EDIT_ATTEMPTS):
            try:
                there = await self.load(key)
                if there is None:
                    return WriteResult(key)
                await self.remove(key, there.memory.version)
                left = await self.load(key)
            except VersionChanged:
                continue
            except Rejected as rejected:
                return WriteResult(key, failure=rejected.failure)
            except BadData as error:
                return WriteResult(key, failure=Failure("damaged", error.message))
            if left is not None and (left.messages or self.features.empty):
                return WriteResult(key, failure=NAME_STAYS)
            return WriteResult(key, deleted=len(there.messages))
        return WriteResult(key, failure=CHANGED)


CHANGED = Failure("changed", "another program has changed it meanwhile")
"""The failure if the stored memory is no longer the version that was read."""


def written(
    there: Snapshot, first: Page, messages: list[StoredMessage], mode: WriteMode, *, repeats: bool
) -> Snapshot:
    """Return a memory as it is after ``messages`` were written to the stored memory ``there``.

    ``first`` is the first page to write, ``messages`` are the messages of all pages.  ``repeats``
    is True if the store accepts several messages with one id.

    Raises:
        VersionChanged: the mode is REPLACE, and ``there`` lacks the version that ``first`` expects.
        Rejected: the mode is ADD, and ``there`` has more or fewer messages than ``first`` expects.
            Or several messages have the same id, and ``repeats`` is False.
    """
    wanted, version, adds = first.memory, there.memory.version, mode is WriteMode.ADD
    if adds and len(there.messages) != first.offset:
        text = f"there are {len(there.messages)} messages, not {first.offset}"
        raise Rejected("changed", text)
    if not adds and wanted.version not in (None, version):
        raise VersionChanged
    whole = [*there.messages, *messages] if adds else messages
    if not repeats:
        ids = IdSet()
        ids.add(message.id for message in whole)
        if ids.duplicates:
            raise Rejected("repeated-id", "a message id occurs twice")
    summary = there.memory.summary if wanted.summary is None else wanted.summary
    extra = there.memory.extra if adds and version is not None else wanted.extra
    return Snapshot(replace(wanted, summary=summary, extra=extra), whole)
