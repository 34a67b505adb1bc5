"""Changing AgentScope's Redis memory: every memory in one transaction.

A list that keeps some ids is never recreated: the list keeps its expiry and is never empty.  New
ids enter a mark list in the order of the messages, so a restored message returns to its old
position (RedisMemory returns messages by mark in the order of the mark list, and appends to the
list).  A new id follows the nearest earlier message on the mark list.  If a mark has several
lists, an id on any of the lists has the mark.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import NamedTuple

from msgspec.structs import replace

from memctl.engines.redis.pipeline import WRONG_TYPE, Command, PackedCommands, Pipeline
from memctl.engines.redis.text import decode, encode
from memctl.layouts.redis.keys import (
    MARK,
    MARKS_INDEX,
    MESSAGES,
    PAYLOAD,
    Keys,
    canonical_mark,
    mark_aliases,
)
from memctl.model import Change, Memory, WriteResult
from memctl.storekit.catalog import IdSet
from memctl.storekit.simple import Rejected
from memctl.stores.agentscope1.redis.before import (
    MemoryBefore,
    expiry_command,
    lists_before,
    other_expiries,
)
from memctl.stores.agentscope1.redis.payloads import (
    check_size,
    lone_surrogate,
    mark_name,
    payload,
)
from memctl.stores.agentscope1.redis.snapshot import (
    IdChunks,
    IdList,
    MemorySnapshot,
    length_of,
)
from memctl.stores.agentscope1.redis.transaction import (
    ChangingMemory,
    MemoryTransaction,
    WatchedState,
    refuse_missing,
)

MarkSet = frozenset[bytes]
Insertion = tuple[bytes | None, bytes]
"""The preceding id (None for the beginning), and the id to insert."""

_TOGETHER = 50_000
"""The most ids of several memories to change in one transaction."""
_FEW_REMOVALS = 8
"""The most ids to remove by single commands; Redis searches the whole list for each command."""


class Editor(MemoryTransaction["MemoryChanges"]):
    """A single call of ``Store.edit``, for use in a thread."""

    def __init__(
        self,
        pipeline: Pipeline,
        marks: dict[bytes, tuple[bytes, ...]],
        about_to_commit: Callable[[Iterable[WriteResult]], None],
        *,
        tolerant: bool = False,
    ) -> None:
        """A ``tolerant`` editor deletes messages even if the list of messages has ids without a
        payload, as an undo or a repair must.
        """
        super().__init__(pipeline, marks, about_to_commit)
        self._tolerant = tolerant

    def run(self, memories: Sequence[MemoryChanges]) -> Iterator[WriteResult]:
        for some in self._split(memories):
            yield from super().run(some)

    def _split(self, memories: Sequence[MemoryChanges]) -> Iterator[list[MemoryChanges]]:
        lengths = self.pipeline.execute(
            [(b"LLEN", one.base + MESSAGES) for one in memories], tolerate=WRONG_TYPE
        )
        some: list[MemoryChanges] = []
        ids = 0
        for one, length in zip(memories, map(length_of, lengths), strict=True):
            if some and ids + length > _TOGETHER:
                yield some
                some, ids = [], 0
            some.append(one)
            ids += length
        yield some

    def listed(self, one: MemoryChanges, snapshot: MemorySnapshot) -> IdChunks:
        return snapshot.messages.chunks() if one.deleted and not self._tolerant else iter(())

    def plan(
        self, one: MemoryChanges, state: WatchedState
    ) -> tuple[WriteResult, Iterator[Command | PackedCommands]]:
        snapshot = state.snapshot
        applier = ChangeApplier(one, state)
        applier.check()
        refuse_missing(state)
        if one.new:
            listed = snapshot.messages.ids
            new = ([id for _, id in chunk.insertions if id not in listed] for chunk in one.chunks())
            self.refuse_strays(one.base, new)
        before = applier.lists_before()
        if not snapshot.exists or one.deleted or one.unmarked:
            before.expiries.update(other_expiries(self.pipeline, snapshot, one.going()))
        self.prepare(one.payloads.prepare(applier.ttl))
        result = WriteResult(one.key, one.written, one.deleted, before=before.dump())
        return result, applier.commands()


class ChangeApplier:
    """Applies changes to a watched memory: checks the changes, and yields the Redis commands."""

    def __init__(self, changes: MemoryChanges, state: WatchedState) -> None:
        self.changes = changes
        self._state = state
        self._snapshot = state.snapshot
        self._messages = self._snapshot.messages
        self._base = changes.base
        self._anew = not self._snapshot.exists
        self._indexed = frozenset() if self._anew else self._snapshot.index
        self._marks = self._snapshot.marks
        if self._anew:  # marks left over from an earlier memory do not belong to the new memory
            self._marks = {name: IdList(its.key, ()) for name, its in self._marks.items()}
        self._by_mark: dict[bytes, list[IdList]] = {}
        for name, its in self._marks.items():
            self._by_mark.setdefault(canonical_mark(name), []).append(its)

    @property
    def ttl(self) -> int | None:
        """The TTL of inserted messages, in milliseconds; None for no expiry."""
        if self._anew:
            return self.changes.ttl
        if self._snapshot.ttl < 0:
            return None
        passed = time.monotonic() - self._snapshot.taken
        return max(1, round(self._snapshot.ttl - passed * 1000))

    # Conflicts

    def check(self) -> None:
        """Check that the stored messages and marks are as the changes expect.

        Raises:
            Rejected: the memory differs.
        """
        changes = self.changes
        for chunk in changes.chunks():
            for group in chunk.groups:
                self._check_group(group)
        if self._state.present < changes.presumed:
            raise Rejected("changed", "the payload of a message is gone")
        if changes.put.duplicates != changes.texts.duplicates:
            raise Rejected("repeated-id", "two messages to insert have the same id")
        self._check_repeats()
        if changes.new:
            id = first_unplaced(self._left(), changes.insertions())
            if id is not None:
                text = f"the message before {decode(id)!r} does not exist"
                raise Rejected("changed", text)

    def _check_group(self, group: ChangeGroup) -> None:
        listed = self._messages.ids
        if group.old is None:
            gone = self.changes.gone  # an edit may delete a message and insert another with its id
            there = (id for id in group.ids if id in listed and id not in gone)
            _refuse(there, "already exists")
            return
        _refuse((id for id in group.ids if id not in listed), "does not exist")
        for mark in group.old.difference(self._by_mark):
            _refuse(iter(group.ids), f"is not marked {decode(mark)!r}")
        for mark, lists in self._by_mark.items():
            filled = [its.ids for its in lists if its.count]
            if mark in group.old:
                missing = (id for id in group.ids if not any(id in ids for ids in filled))
                _refuse(missing, f"is not marked {decode(mark)!r}")
                continue
            for ids in filled:
                _refuse(filter(ids.__contains__, group.ids), f"is marked {decode(mark)!r}")

    def _check_repeats(self) -> None:
        """Refuse to delete a message whose id stays on the list: both entries share a payload."""
        if self.changes.deleted and (self._messages.ids.duplicates or self.changes.gone.duplicates):
            left = sum(map(len, self._left()))
            if self._messages.count - left != self.changes.deleted:
                raise Rejected("repeated-id", "an id to delete occurs less often")

    # Results

    def _left(self) -> IdChunks:
        chunks = self._messages.chunks()
        gone = self.changes.gone.__contains__
        return remove_ids(chunks, gone) if self.changes.deleted else chunks

    def _ids(self) -> IdChunks:
        if not self.changes.new:
            return self._left()
        found = insert_ids(self._left(), self.changes.insertions())
        if self.changes.before.messages:  # positions do not define the order of repeated ids
            ids = list(chain.from_iterable(found))
            then = self.changes.before.messages
            return iter([then if sorted(ids) == sorted(then) else ids])
        return found

    def _is_dropped(self, name: bytes) -> Callable[[bytes], bool]:
        """Return a function that tells whether an id leaves the mark list ``name``."""
        unmarked = self.changes.unmarked.get(name, ())
        if not self.changes.new:
            return unmarked.__contains__
        put, marked = self.changes.put, self.changes.marked.get(name, ())
        return lambda id: id in unmarked or (id in put and id not in marked)

    def _marked(self, name: bytes) -> IdChunks:
        left = remove_ids(self._marks[name].chunks(), self._is_dropped(name))
        return insert_ids(left, self._mark_insertions(name))

    def _mark_insertions(self, name: bytes) -> Iterator[Insertion]:
        before, added = self._marks[name].ids, self.changes.marked[name]
        is_dropped = self._is_dropped(name)
        repeats = self._messages.ids.duplicates or self.changes.put.duplicates
        seen: set[bytes] | None = set() if repeats else None
        after: bytes | None = None
        for id in chain.from_iterable(self._ids()):
            if id in before and not is_dropped(id):
                after = id
            elif id in added and (seen is None or id not in seen):
                yield after, id
                if seen is not None:
                    seen.add(id)

    def commands(self) -> Iterator[Command | PackedCommands]:
        """Yield the Redis commands that change the memory; all must run in one transaction."""
        changes = self.changes
        before = changes.before
        if self._only_restores and (self._anew or before.index is None):
            return
        if self._anew:
            yield from self._clear()
        yield from changes.payload_commands()
        if changes.new:
            yield from rewrite_commands(self._messages, self._ids)
        elif changes.deleted:
            yield from removal_commands(self._messages, changes.gone.__contains__)
        restored = self._restored()
        for name, its in self._marks.items():
            if name in restored:
                yield from rewrite_commands(its, partial(iter, [restored[name]]))
            elif name in changes.marked:
                yield from rewrite_commands(its, partial(self._marked, name))
            elif changes.new or name in changes.unmarked:
                yield from removal_commands(its, self._is_dropped(name))
        yield from self._index_marks()
        yield from self._expire(restored)

    @property
    def _only_restores(self) -> bool:
        return not (self.changes.written or self.changes.deleted)

    # State for undo

    def lists_before(self) -> MemoryBefore:
        """Return the lists that a reverse of the changes would not restore."""
        changes = self.changes
        if self._anew:
            return lists_before(self._snapshot, self._marks.keys())
        names = self._marks if self._goes else changes.unmarked.keys() | changes.marked.keys()
        if changes.marked and not self._indexed:
            names = self._marks  # a new index names all marks
        names = {name for name in names if name in self._marks}
        if changes.new:  # a list may hold the id of a new message from an earlier message
            names |= {name for name, its in self._marks.items() if any(map(self._is_put, its))}
        then = changes.before.index
        renamed = frozenset() if then is None else then ^ self._indexed
        if not (names or renamed or changes.deleted):
            return MemoryBefore()
        repeats = bool(changes.deleted and self._messages.ids.duplicates)
        found = lists_before(self._snapshot, names, messages=repeats)
        return found if found.index is None else replace(found, names=sorted(names | renamed))

    def _is_put(self, id: bytes) -> bool:
        return id in self.changes.put

    @property
    def _goes(self) -> bool:
        """True if the last message is deleted."""
        return not self.changes.new and not any(self._left())

    def _restored(self) -> dict[bytes, list[bytes]]:
        """Return the mark lists to restore from ``Edit.before``, as ids by name of the list.

        The lists of a mark are restored only if they mark the same messages as the changes do.
        """
        lists = self.changes.before.lists
        if not lists:
            return {}
        named = {id for ids in lists.values() for id in ids or ()}
        named.update(chain.from_iterable(self._now(name) for name in lists if name in self._marks))
        final = named.intersection(chain.from_iterable(self._ids()))
        found: dict[bytes, list[bytes]] = {}
        for mark in {canonical_mark(name) for name in lists}:
            now = {name: self._now(name) for name in mark_aliases(mark) if name in self._marks}
            then = {
                name: its if (ids := lists.get(name)) is None else ids for name, its in now.items()
            }
            marked = [
                final.intersection(chain.from_iterable(each.values())) for each in (now, then)
            ]
            if marked[0] == marked[1]:
                found |= then
        return found

    def _now(self, name: bytes) -> list[bytes]:
        if name in self.changes.marked:
            return list(chain.from_iterable(self._marked(name)))
        drops = self._is_dropped(name)
        return list(chain.from_iterable(remove_ids(self._marks[name].chunks(), drops)))

    def _clear(self) -> Iterator[Command]:
        """Yield the command that deletes the lists of marks and ``marks_index``.

        For a memory of which other commands delete all messages.
        """
        lists = [its.key for its in self._snapshot.marks.values() if its.count]
        if lists or self._snapshot.index:
            yield (b"UNLINK", self._base + MARKS_INDEX, *lists)

    def _index_marks(self) -> Iterator[Command]:
        """Yield the commands that add new marks to ``marks_index``, and remove unused marks.

        A new index names all marks of the memory, because RedisMemory ignores marks that an index
        lacks.  If ``Edit.before`` records an index, the commands restore this index.
        """
        key = self._base + MARKS_INDEX
        lists = self.changes.before
        if lists.index is not None:
            names = lists.index | {
                name
                for name in self._indexed
                if canonical_mark(name) not in set(map(canonical_mark, lists.names))
            }
            if added := names - self._indexed:
                yield (b"SADD", key, *sorted(added))
            if gone := self._indexed - names:
                yield (b"SREM", key, *sorted(gone))
            return
        new = self.changes.marked.keys() - self._indexed
        if new and not self._indexed:
            new = {name for name in self._marks if not self._is_empty(name)}
        if new:
            yield (b"SADD", key, *sorted(new))
        touched = self._marks if self.changes.new else self.changes.unmarked
        ended = [
            name
            for name in sorted(self._indexed.intersection(touched))
            # The index of an agent has only canonical names.
            if all(map(self._is_empty, mark_aliases(canonical_mark(name))))
        ]
        if ended:
            yield (b"SREM", key, *ended)

    def _is_empty(self, name: bytes) -> bool:
        if name in self.changes.marked:
            return False
        return not any(remove_ids(self._marks[name].chunks(), self._is_dropped(name)))

    def _expire(self, restored: Iterable[bytes]) -> Iterator[Command]:
        """Yield the commands that set the expiry of new keys.

        A new key expires with the memory, or at the expiry in ``Edit.before``.  Existing keys keep
        their expiry.  ``restored`` has the names of restored lists.
        """
        ttl, own = self.ttl, self.changes.before.expiries
        names = [
            MARK + name
            for name in self.changes.marked.keys() | restored
            if not self._marks[name].count
        ]
        if (self.changes.marked or self.changes.before.index) and not self._indexed:
            names.append(MARKS_INDEX)
        if self._anew:
            names.append(MESSAGES)
        for name in names:
            if (its := own.get(name, -1 if ttl is None else ttl)) >= 0:
                yield (b"PEXPIRE", self._base + name, b"%d" % its)
        if self._only_restores or self._goes:
            yield from (expiry_command(self._base + name, its) for name, its in own.items())
        if not own:
            return
        for _, id in self.changes.insertions():
            then = own.get(PAYLOAD + id)
            if then is not None:
                yield expiry_command(self._base + PAYLOAD + id, then)


def _refuse(ids: Iterator[bytes], reason: str) -> None:
    for id in ids:
        raise Rejected("changed", f"the message {decode(id)!r} {reason}")


# Changes of a memory


class ChangeGroup(NamedTuple):
    """The ids of messages with the same old marks and the same new marks.

    ``old`` is None for messages to insert, ``new`` is None for messages to delete.
    """

    old: MarkSet | None
    new: MarkSet | None
    ids: list[bytes]


class ChangeChunk(NamedTuple):
    """Some changes in groups, with the positions of the messages to insert, in order."""

    groups: list[ChangeGroup]
    insertions: list[Insertion]


class MemoryChanges(ChangingMemory[ChangeChunk]):
    """The changes of a memory, for ``ChangeApplier``."""

    def __init__(
        self, base: bytes, memory: Memory, ttl: int | None, before: str, staged: Keys | None = None
    ) -> None:
        """``ttl`` is the TTL of a new memory in milliseconds; ``before`` is ``Edit.before``."""
        super().__init__(base, memory.key, ttl, staged)
        self.before = MemoryBefore.load(before)
        self.written = self.deleted = self.new = self.presumed = 0
        """The numbers of messages changed or inserted, deleted, inserted, and presumed to exist."""
        self.put = IdSet()
        self.texts = IdSet()
        """The inserted ids, each with the hash of the message.

    Tells equal messages with the same id from different messages with the same id.
    """
        self.gone = IdSet()
        self.marked: dict[bytes, IdSet] = {}
        """The ids that get a mark, by alias of the mark."""
        self.unmarked: dict[bytes, IdSet] = {}
        """The ids that lose a mark, by alias of the mark."""

    def add(self, pipeline: Pipeline, changes: list[Change]) -> None:
        """Add changes.

        Raises:
            Rejected: Redis cannot hold an inserted message, id or mark.
        """
        new = [payload(one.message, one.shape) for one in changes if one.old is None]
        self.keep(pipeline, self._group(changes), new)

    def chunks(self) -> Iterator[ChangeChunk]:
        """Yield the changes in order, in chunks.  Only one iterator may be in use at a time."""
        return iter(self.parts)

    def insertions(self) -> Iterator[Insertion]:
        """Yield the positions of the messages to insert, in order."""
        for chunk in self.chunks():
            yield from chunk.insertions

    def lists(self) -> Iterable[bytes]:
        return [*self.marked, *self.unmarked, *self.before.names]

    def ids(self) -> IdChunks:
        """Yield the ids of messages that must exist before the changes, in chunks."""
        for chunk in self.chunks():
            for group in chunk.groups:
                if group.old is not None:
                    yield group.ids

    def going(self) -> IdChunks:
        """Yield the ids of messages to delete, in chunks."""
        for chunk in self.chunks() if self.deleted else ():
            for group in chunk.groups:
                if group.new is None:
                    yield group.ids

    def payload_commands(self) -> Iterator[Command | PackedCommands]:
        """Yield the Redis commands that delete and store payloads (texts of messages)."""
        prefix = self.base + PAYLOAD
        for ids in self.going():
            yield (b"UNLINK", *(prefix + id for id in ids))
        if self.new:
            names = ([prefix + id for _, id in chunk.insertions] for chunk in self.chunks())
            yield from self.payloads.put(names)

    def _group(self, changes: list[Change]) -> ChangeChunk:
        """Group changes by marks, and count them.

        Raises:
            Rejected: Redis cannot hold an inserted message, id or mark.
        """
        grouped: dict[tuple[tuple[str, ...] | None, tuple[str, ...] | None], list[str]] = {}
        for change in changes:
            grouped.setdefault((change.old, change.new), []).append(change.id)
        try:
            groups = [
                ChangeGroup(_mark_set(old, encode), _mark_set(new, mark_name), [*map(encode, ids)])
                for (old, new), ids in grouped.items()
            ]
            insertions = [
                (None if change.after is None else encode(change.after), encode(change.id))
                for change in changes
                if change.old is None
            ]
        except UnicodeEncodeError as error:
            raise lone_surrogate(error) from error
        for change in changes if insertions else ():
            check_size(change.id, change.message)
            if change.old is None:
                self.texts.add((f"{change.id} {hash(change.message)}",))
        for group in groups:
            self._count(group)
        return ChangeChunk(groups, insertions)

    def _count(self, group: ChangeGroup) -> None:
        old, new, ids = group
        if old is None:
            self.put.add(ids)
            self.new += len(ids)
        else:
            self.presumed += len(ids)
        if new is None:
            self.gone.add(ids)
            self.deleted += len(ids)
        else:
            self.written += len(ids)
        before, after = old or frozenset(), new or frozenset()
        for mark in after - before:
            _ids_with(self.marked, mark).add(ids)
        for mark in before - after:
            _ids_with(self.unmarked, mark).add(ids)


def _mark_set(names: tuple[str, ...] | None, as_bytes: Callable[[str], bytes]) -> MarkSet | None:
    return None if names is None else frozenset(map(as_bytes, names))


def _ids_with(lists: dict[bytes, IdSet], mark: bytes) -> IdSet:
    if mark not in lists:
        lists.update(dict.fromkeys(mark_aliases(mark), IdSet()))
    return lists[mark]


# Lists


def remove_ids(chunks: IdChunks, drops: Callable[[bytes], bool]) -> IdChunks:
    """Yield the chunks without the ids for which ``drops`` is true."""
    for chunk in chunks:
        yield [id for id in chunk if not drops(id)]


def insert_ids(chunks: IdChunks, insertions: Iterator[Insertion]) -> IdChunks:
    """Yield the ids of ``chunks`` with new ids, each new id directly after its preceding id.

    ``insertions`` are pairs of the preceding id (None for the beginning) and the new id, in the
    order of the list.  The first pair out of order and all later pairs go to the end.
    """
    insertion = next(insertions, None)
    beginning = []
    while insertion is not None and insertion[0] is None:
        beginning.append(insertion[1])
        insertion = next(insertions, None)
    yield beginning
    for chunk in chunks:
        if insertion is None:
            yield chunk
            continue
        found = []
        for id in chunk:
            found.append(id)
            while insertion is not None and insertion[0] == id:
                found.append(insertion[1])
                insertion = next(insertions, None)
        yield found
    if insertion is not None:
        rest = chain((insertion[1],), (id for _, id in insertions))
        yield from iter(lambda: list(islice(rest, 1000)), [])


def first_unplaced(chunks: IdChunks, insertions: Iterator[Insertion]) -> bytes | None:
    """Return the first new id of ``insertions`` that has no place; None if all have a place.

    ``insertions`` are pairs of the preceding id and the new id.  A new id has no place if the
    preceding id is not in ``chunks``, or is out of order there.
    """
    insertion = next(insertions, None)
    while insertion is not None and insertion[0] is None:
        insertion = next(insertions, None)
    for chunk in chunks:
        if insertion is None:
            return None
        for id in chunk:
            while insertion is not None and insertion[0] == id:
                insertion = next(insertions, None)
    return None if insertion is None else insertion[1]


def rewrite_commands(old: IdList, new: Callable[[], IdChunks]) -> Iterator[Command]:
    """Yield the Redis commands that replace the ids of the list ``old`` by the ids of ``new``.

    The ids at the beginning that are the same in both are not written again.
    """
    same = _common_length(old, new())
    if same == old.count:
        yield from _push_commands(old.key, new(), same)
    elif same:
        yield (b"LTRIM", old.key, b"0", b"%d" % (same - 1))
        yield from _push_commands(old.key, new(), same)
    elif any(new()):
        yield from _push_commands(old.key, new(), 0)
        yield (b"LTRIM", old.key, b"%d" % old.count, b"-1")
    else:
        yield (b"UNLINK", old.key)


def removal_commands(old: IdList, drops: Callable[[bytes], bool]) -> Iterator[Command]:
    """Yield the Redis commands that remove the ids from ``old`` for which ``drops`` is true."""
    found = (id for id in old if drops(id))
    some = list(islice(found, _FEW_REMOVALS + 1))
    if len(some) > _FEW_REMOVALS:
        yield from rewrite_commands(old, lambda: remove_ids(old.chunks(), drops))
        return
    for id in dict.fromkeys(some):
        yield (b"LREM", old.key, b"0", id)


def _push_commands(key: bytes, chunks: IdChunks, skipped: int) -> Iterator[Command]:
    for chunk in chunks:
        if skipped < len(chunk):
            yield (b"RPUSH", key, *chunk[skipped:])
        skipped = max(0, skipped - len(chunk))


def _common_length(old: IdList, new: IdChunks) -> int:
    count = 0
    fresh = chain.from_iterable(new)
    for chunk in old.chunks():
        its = list(islice(fresh, len(chunk)))
        if its != chunk:
            pairs = zip(chunk, its, strict=False)
            return count + next((n for n, (a, b) in enumerate(pairs) if a != b), len(its))
        count += len(chunk)
    return count
