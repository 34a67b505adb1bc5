"""A Redis store that holds one memory in RAM at a time, and replaces the memory in one transaction.

For layouts whose own library reads and writes a memory as a whole.  A subclass names the keys of a
memory, parses their values and makes new values.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

from msgspec import Struct

from memctl.engines.redis.pipeline import Command, Pipeline, in_thread
from memctl.errors import BadData, Failure
from memctl.layouts.redis.store import RedisStore
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
from memctl.store import EDIT_ATTEMPTS
from memctl.storekit.edits import Snapshot, apply_edit, whole_edits, without_summary
from memctl.storekit.simple import CHANGED, MADE, Rejected, VersionChanged, written

T = TypeVar("T")

_TOGETHER = 1000
"""The largest number of keys in one command."""


class MemoryPlace(Struct, frozen=True):
    """The place of a memory in Redis: the first of its keys, and the name of the memory."""

    key: bytes
    memory: MemoryKey
    field: bytes | None = None
    """The field that holds the memory if the key is a hash; None for any other key."""
    asked: bool = False
    """True if the caller named the memory; False if its name was parsed from the key."""

    @property
    def order(self) -> tuple[bytes, bytes]:
        """A key by which to sort places; the order is the same in each run."""
        return self.key, self.field or b""


class Held(Snapshot, frozen=True):
    """A memory as read from Redis.

    ``kept`` is further data that a layout needs in order to write the memory again.
    """

    kept: object = None


class WholeMemoryReader(RedisStore):
    """A store in Redis that reads and erases each memory as a whole.

    A layout overrides the methods about places and values, which are called in a thread.
    """

    # What each layout defines

    @abstractmethod
    def places(self, pipeline: Pipeline, where: Selection) -> list[MemoryPlace]:
        """Return the places of the selected memories, sorted.

        A place may be without a memory, for example if ``where.keys`` names a memory that does not
        exist.
        """

    @abstractmethod
    def place_of(self, key: MemoryKey) -> MemoryPlace:
        """Return the place of a memory; the memory need not exist.

        Raises:
            Rejected: the layout cannot hold a memory of this name.
        """

    @abstractmethod
    def watched(self, place: MemoryPlace) -> Sequence[bytes]:
        """Return all Redis keys of the memory at a place."""

    @abstractmethod
    def fetch(self, pipeline: Pipeline, place: MemoryPlace) -> Held | None:
        """Return the memory at a place, with its ``Memory.version``; None if it does not exist.

        Raises:
            BadData: the memory is damaged.
            Rejected: the caller named the memory, but the key belongs to another memory.
        """

    @abstractmethod
    def erasing(
        self, pipeline: Pipeline, place: MemoryPlace, owner: MemoryKey, old: Held | None
    ) -> list[Command]:
        """Return the commands that erase a memory and everything that refers to it.

        ``owner`` is the memory, ``old`` its contents; None if the memory is damaged.
        """

    @abstractmethod
    def users(self, pipeline: Pipeline) -> Iterator[str]:
        """Yield users about whom the layout may keep data besides their memories."""

    @abstractmethod
    def forgetting(self, pipeline: Pipeline, user: str) -> list[Command]:
        """Return the commands that erase the data about a user who has no memories."""

    def named(self, keys: Iterable[MemoryKey]) -> list[MemoryPlace]:
        """Return the places of memories; leave out names that the layout cannot hold."""
        found = []
        for key in keys:
            with suppress(Rejected):
                found.append(self.place_of(key))
        return found

    # Reading

    def read(self, where: Selection) -> AsyncGenerator[Page]:
        return where.apply(self._pages(where), self.dialect)

    async def _pages(self, where: Selection) -> AsyncGenerator[Page]:
        async with self.server.pipeline() as pipeline:
            places = await in_thread(pipeline, partial(self.places, pipeline, where))
            for place in places:
                found = await self._fetch_or_note(pipeline, place, where)
                if found is None or not where.has_key(found.memory.key):
                    continue
                self.left_out.others = True
                async with aclosing(found.pages()) as pages:
                    async for page in pages:
                        yield page

    async def _fetch_or_note(
        self, pipeline: Pipeline, place: MemoryPlace, where: Selection
    ) -> Held | None:
        """Return the memory at a place; None if the memory does not exist or is damaged.

        Damage becomes a finding if the store skips damage, or else a failure.
        """
        try:
            return await in_thread(pipeline, partial(self.fetch, pipeline, place))
        except Rejected:
            return None
        except BadData as error:
            key = place.memory
            if where.has_key(key):
                if self.skips_damage:
                    self.damage.append(Finding("damaged-state", key, detail=error.message))
                else:
                    self.left_out.failures[key] = Failure("damaged", error.message)
            return None

    # Erasing

    async def names(self, where: Selection) -> AsyncGenerator[MemoryKey]:
        async with aclosing(super().names(where)) as names:
            async for key in names:
                yield key
        async with self.server.pipeline() as pipeline:
            for user in await in_thread(pipeline, lambda: list(self.users(pipeline))):
                if where.has_key(MemoryKey(user, "")):
                    yield MemoryKey(user, "")

    async def erase(self, where: Selection) -> AsyncGenerator[WriteResult]:
        async with self.server.pipeline() as pipeline:
            places = await in_thread(pipeline, partial(self.places, pipeline, where))
            for place in places:
                call = partial(self._erase_place, pipeline, place, where)
                result = await in_thread(pipeline, call)
                if result is not None:
                    yield result
            if not where.sessions:
                async with aclosing(self.headers(where)) as memories:
                    left = {memory.key.user async for memory in memories}
                for user in sorted(where.users - left):
                    forget = partial(self.forgetting, pipeline, user)
                    commands = await in_thread(pipeline, forget)
                    await in_thread(pipeline, partial(pipeline.execute, commands))

    def _erase_place(
        self, pipeline: Pipeline, place: MemoryPlace, where: Selection
    ) -> WriteResult | None:
        for _ in range(EDIT_ATTEMPTS):
            old, is_damaged = None, False
            try:
                old = self._watch(pipeline, place)
            except Rejected:
                pass  # the key is not a memory
            except BadData:
                is_damaged = True
            owner = old.memory.key if old else place.memory
            if not (old or is_damaged) or not where.has_key(owner):
                pipeline.execute([(b"UNWATCH",)])
                return None
            if pipeline.commit(self.erasing(pipeline, place, owner, old)):
                self.left_out.failures.pop(owner, None)
                return WriteResult(owner, deleted=len(old.messages) if old else 0)
        return WriteResult(place.memory, failure=CHANGED)

    def _watch(self, pipeline: Pipeline, place: MemoryPlace) -> Held | None:
        """Watch the Redis keys of a memory, and return the memory; None if it does not exist.

        If an agent changes a watched key later, the commit fails.

        Raises:
            BadData: the memory is damaged.
            Rejected: the key belongs to another memory.
        """
        pipeline.execute([(b"WATCH", *self.watched(place))])
        return self.fetch(pipeline, place)


class WholeMemoryStore(WholeMemoryReader):
    """A store in Redis that reads, writes and edits each memory as a whole, in a transaction.

    If ``Memory.ttl`` is None, a write keeps the expiry that the memory has at that moment.
    """

    # What each layout defines

    @abstractmethod
    def replacing(
        self,
        pipeline: Pipeline,
        place: MemoryPlace,
        old: Held | None,
        new: Snapshot,
        before: str = "",
    ) -> list[Command]:
        """Return the commands that replace the memory ``old`` at a place by ``new``.

        ``old`` is None if the memory does not exist.  ``before`` is ``Edit.before``.

        Raises:
            Rejected: the layout cannot hold the new memory.
        """

    @abstractmethod
    def removing(
        self, pipeline: Pipeline, place: MemoryPlace, old: Held, before: str
    ) -> list[Command]:
        """Return the commands that remove an empty memory, and the data created with it.

        ``before`` is ``Edit.before``.
        """

    def before(self, pipeline: Pipeline, memory: Memory) -> str:  # noqa: ARG002 - for subclasses
        """Return ``WriteResult.before`` for a memory that a write creates."""
        return MADE

    def fitted(self, edit: Edit, there: Snapshot) -> Edit:  # noqa: ARG002 - for subclasses
        """Return the edit, adapted to ``there``, the memory before the edit."""
        return edit

    def lost(self, old: Held, new: Memory) -> str:  # noqa: ARG002 - for subclasses
        """Return ``WriteResult.before`` for a change of the memory ``old`` into ``new``."""
        return ""

    # Writing

    async def write(
        self, pages: AsyncGenerator[Page], mode: WriteMode = WriteMode.ADD
    ) -> AsyncGenerator[WriteResult]:
        messages: list[StoredMessage] = []
        first: Page | None = None
        async with self.server.pipeline() as pipeline:
            async for page in pages:
                first = first or page
                messages += page.messages
                if page.last:
                    call = partial(self._write, pipeline, first, messages, mode)
                    yield await in_thread(pipeline, partial(_result, pipeline, first.memory, call))
                    first, messages = None, []

    def _write(
        self, pipeline: Pipeline, first: Page, messages: list[StoredMessage], mode: WriteMode
    ) -> WriteResult:
        memory = first.memory
        place = self.place_of(memory.key)
        before = ""
        for _ in range(EDIT_ATTEMPTS):
            old = self._watch(pipeline, place)
            there = old or Snapshot(Memory(memory.key), [])
            new = written(there, first, messages, mode, repeats=self.features.duplicate_ids)
            before = self.lost(old, new.memory) if old else self.before(pipeline, new.memory)
            gone = len(there.messages) if mode is WriteMode.REPLACE else 0
            result = WriteResult(memory.key, len(messages), gone, before=before)
            self.about_to_commit([result])
            if pipeline.commit(self.replacing(pipeline, place, old, new)):
                return result
        return WriteResult(memory.key, failure=CHANGED)

    def name_refusal(self, key: MemoryKey) -> Failure | None:
        try:
            self.place_of(key)
        except Rejected as rejected:
            return rejected.failure
        return None

    # Changing

    async def edit(self, edits: AsyncGenerator[Edit]) -> AsyncGenerator[WriteResult]:
        async with self.server.pipeline() as pipeline, aclosing(whole_edits(edits)) as wholes:
            async for edit in wholes:
                if not self.features.summaries:
                    edit = without_summary(edit)
                call = partial(self._edit_whole, pipeline, edit)
                yield await in_thread(pipeline, partial(_result, pipeline, edit.memory, call))

    def _edit_whole(self, pipeline: Pipeline, edit: Edit) -> WriteResult:
        nothing = Snapshot(Memory(edit.memory.key), exists=False)
        try:
            place = self.place_of(edit.memory.key)
        except Rejected:
            changed, result = apply_edit(edit, nothing)
            if changed is None:  # no memory of this name exists
                return result
            raise
        for _ in range(EDIT_ATTEMPTS):
            old = self._watch(pipeline, place)
            there = old or nothing
            changed, result = apply_edit(
                self.fitted(edit, there), there
            )  # ``replacing`` handles the extra
            if changed is None:
                pipeline.execute([(b"UNWATCH",)])
                return result
            # An existing memory keeps the expiry that it has at this moment.
            memory = replace(changed.memory, ttl=None if old else edit.memory.ttl)
            before = self.lost(old, memory) if old else self.before(pipeline, memory)
            is_made = edit.before.startswith(MADE)
            if old and is_made and not (changed.messages or memory.summary):
                commands = self.removing(pipeline, place, old, edit.before)
            else:
                new = Snapshot(memory, changed.messages)
                commands = self.replacing(pipeline, place, old, new, edit.before)
            result = replace(result, before=before)
            self.about_to_commit([result])
            if pipeline.commit(commands):
                return result
        return WriteResult(edit.memory.key, failure=CHANGED)

    # Other names

    @abstractmethod
    def moving(
        self, pipeline: Pipeline, place: MemoryPlace, target: MemoryPlace, held: Held
    ) -> list[Command]:
        """Return the commands that give the memory ``held`` the keys and names of another place.

        Raises:
            Rejected: the memory cannot have another name.
        """

    async def rename(self, moves: Mapping[MemoryKey, MemoryKey]) -> AsyncGenerator[WriteResult]:
        async with self.server.pipeline() as pipeline:
            for old, new in moves.items():
                call = partial(self._rename, pipeline, old, new)
                yield await in_thread(pipeline, partial(_result, pipeline, Memory(old), call))

    def _rename(self, pipeline: Pipeline, old: MemoryKey, new: MemoryKey) -> WriteResult:
        if not old.session:  # most layouts keep nothing of users besides sessions
            return WriteResult(old)
        place, target = self.place_of(old), self.place_of(new)
        for _ in range(EDIT_ATTEMPTS):
            held = self._watch(pipeline, place)
            if self._watch(pipeline, target) is not None:
                raise Rejected("conflict", f"{new} exists")
            if held is None:
                raise Rejected("changed", "it is gone")
            if pipeline.commit(self.moving(pipeline, place, target, held)):
                return WriteResult(old)
        return WriteResult(old, failure=CHANGED)


def _result(pipeline: Pipeline, memory: Memory, call: Callable[[], WriteResult]) -> WriteResult:
    try:
        return call()
    except VersionChanged:
        failure = CHANGED
    except Rejected as rejected:
        failure = rejected.failure
    except BadData as error:
        failure = Failure("refused", error.message)
    pipeline.execute([(b"UNWATCH",)])
    return WriteResult(memory.key, failure=failure)


def moved(pipeline: Pipeline, keys: Iterable[bytes], old: bytes, new: bytes) -> list[Command]:
    """Return the commands that rename the keys that exist: ``new`` replaces their start ``old``.

    The keys are watched.

    Raises:
        Rejected: a new key exists.
    """
    commands: list[Command] = [(b"RENAME", key, new + key.removeprefix(old)) for key in keys]
    watched = [key for _, *pair in commands for key in pair]
    pipeline.execute(
        (b"WATCH", *watched[at : at + _TOGETHER]) for at in range(0, len(watched), _TOGETHER)
    )
    there = pipeline.execute((b"EXISTS", key) for _, key, _ in commands)
    commands = [one for one, exists in zip(commands, there, strict=True) if exists]
    if any(pipeline.execute((b"EXISTS", key) for _, _, key in commands)):
        raise Rejected("conflict", "a key with its new name exists")
    return commands


def expiring_unread(left: list[float]) -> Iterator[Finding]:
    """Yield a finding about memories that will expire; nothing if ``left`` is empty.

    ``left`` has the seconds to expiry of each of these memories.
    """
    if left:
        detail = f"the first of them in {max(1, round(min(left) / 60))} min"
        yield Finding("expires-unread", None, len(left), detail=detail)
