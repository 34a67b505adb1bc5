"""Erasing memories of RedisMemory: every key of a session, also those that no list names any more.

A key is found by its name.  Names escape nothing, so that ``...:b:msg:x:msg:1`` may be the message
``x:msg:1`` of the session ``b``, or ``1`` of ``b:msg:x``: it is of the memory whose list has the
id, else of the memory with the longest name; where neither is there, of the shortest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from memctl.errors import Failure
from memctl.model import MemoryKey, WriteResult
from memctl.selection import Selection
from memctl.store import EDIT_ATTEMPTS
from memctl.stores.redis.keys import MARK, MARKS_INDEX, MESSAGES, PAYLOAD, STATE, Keys
from memctl.stores.redis.pipeline import WRONG_TYPE, Pipeline
from memctl.stores.redis.scan import Catalogue, with_payload

_ENDS = (MESSAGES, MARKS_INDEX, STATE)
_SCANNED = b"1000"
_CHUNK = 1000
"""The keys in one command."""
_CHANGED = Failure("changed", "another program writes to it")


@dataclass(slots=True)
class OwnedKeys:
    """The keys of a session, and the number of its messages."""

    memory: MemoryKey
    keys: set[bytes] = field(default_factory=set)


def find_keys(
    pipeline: Pipeline, names: Keys, catalogue: Catalogue, where: Selection
) -> dict[bytes, OwnedKeys]:
    """Return the keys of the selected sessions by their bases.

    Raises:
        Unavailable: see ``Pipeline.stream``.
    """
    keys = set(_scanned(pipeline, names.pattern(where, b":*")))
    lists = [key.removesuffix(MESSAGES) for key in keys if key.endswith(MESSAGES)]
    unclear = {base for base in lists if MARK in base}
    bases = set(lists) - unclear | with_payload(pipeline, sorted(unclear))
    found: dict[bytes, OwnedKeys] = {}
    for key in keys:
        base = _base_of(pipeline, key, list(_splits(key)), bases)
        memory = None if base is None else catalogue.name(base, where)
        if base is not None and memory is not None:
            found.setdefault(base, OwnedKeys(memory)).keys.add(key)
    return found


def erase_keys(pipeline: Pipeline, base: bytes, owned: OwnedKeys) -> WriteResult:
    """Remove the keys of a session at one moment, with those of messages that came meanwhile.

    Raises:
        Unavailable: see ``Pipeline.stream``.
    """
    messages, index = base + MESSAGES, base + MARKS_INDEX
    for _ in range(EDIT_ATTEMPTS):
        watch, ids, marks = (
            (b"WATCH", messages, index),
            (b"LRANGE", messages, b"0", b"-1"),
            (b"SMEMBERS", index),
        )
        _, listed, indexed = pipeline.execute([watch, ids, marks], tolerate=WRONG_TYPE)
        listed = listed if isinstance(listed, list) else []
        payloads = {base + PAYLOAD + id for id in listed}
        lists = (
            {base + MARK + mark for mark in indexed} if isinstance(indexed, list | set) else set()
        )
        going = sorted(owned.keys | payloads | lists | {messages, index})
        count = len(payloads & owned.keys)
        chunks = (going[at : at + _CHUNK] for at in range(0, len(going), _CHUNK))
        if pipeline.commit((b"UNLINK", *some) for some in chunks):
            return WriteResult(owned.memory, deleted=count)
    return WriteResult(owned.memory, failure=_CHANGED)


def _scanned(pipeline: Pipeline, pattern: bytes) -> Iterator[bytes]:
    cursor = b"0"
    while True:
        command = (b"SCAN", cursor, b"MATCH", pattern, b"COUNT", _SCANNED)
        [(cursor, found)] = pipeline.execute([command])
        yield from found
        if cursor == b"0":
            return


def _splits(key: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield what may be the base of a key and the id of a message in it, the longest base first."""
    for end in _ENDS:
        if key.endswith(end):
            yield key.removesuffix(end), b""
    for part in PAYLOAD, MARK:
        at = key.rfind(part)
        while at >= 0:
            yield key[:at], key[at + len(part) :] if part is PAYLOAD else b""
            at = key.rfind(part, 0, at + len(part) - 1)


def _base_of(
    pipeline: Pipeline, key: bytes, splits: list[tuple[bytes, bytes]], bases: set[bytes]
) -> bytes | None:
    splits = sorted(splits, key=lambda split: len(split[0]), reverse=True)
    known = [split for split in splits if split[0] in bases]
    if len(known) > 1:
        for base, id in known:
            if id and key == base + PAYLOAD + id:
                find = (b"LPOS", base + MESSAGES, id)
                [at] = pipeline.execute([find], tolerate=WRONG_TYPE)
                if isinstance(at, int):
                    return base
    chosen = known[:1] or splits[-1:]
    return chosen[0][0] if chosen else None
