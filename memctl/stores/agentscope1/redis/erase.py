"""Erasing and renaming memories of RedisMemory: all keys, including those that no list names.

A key is found by its name.  AgentScope escapes nothing in names: ``...:b:msg:x:msg:1`` may be the
message ``x:msg:1`` of session ``b``, or the message ``1`` of session ``b:msg:x``.  The key belongs
to the memory whose list has the id, or else to the existing memory with the longest name.  If no
such memory exists, the key belongs to the shortest name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import NamedTuple

from msgspec import Struct, field

from memctl.engines.redis.pipeline import WRONG_TYPE, Pipeline, scan
from memctl.layouts.redis.keys import MARK, MARKS_INDEX, MESSAGES, PAYLOAD, STATE, Keys
from memctl.layouts.redis.whole import moved
from memctl.machine.spool import ItemSpool
from memctl.model import MemoryKey, WriteResult
from memctl.selection import Selection
from memctl.storekit.simple import CHANGED, Rejected
from memctl.stores.agentscope1.redis.scan import Catalogue, with_payload

_ENDS = (MESSAGES, MARKS_INDEX, STATE)
_SCANNED = b"1000"


class OwnedKey(NamedTuple):
    """A Redis key with its memory; ``base`` is the prefix of all keys of the memory."""

    base: bytes
    memory: MemoryKey
    key: bytes


class _Session(Struct):
    """The keys of a session, except payloads, and the number of payloads."""

    memory: MemoryKey
    keys: set[bytes] = field(default_factory=set)
    payloads: int = 0


def owned_keys(
    pipeline: Pipeline, names: Keys, catalogue: Catalogue, where: Selection
) -> Iterator[list[OwnedKey]]:
    """Yield all Redis keys of the selected sessions, in lists; a key may be yielded twice.

    Raises:
        Lost: the connection broke.
        Unavailable: the server refuses a command.
    """
    pattern = names.pattern(where, b":*")
    lists = [key for key in scan(pipeline, pattern, b"list") if key.endswith(MESSAGES)]
    bases = {key.removesuffix(MESSAGES) for key in lists}
    unclear = {base for base in bases if MARK in base}
    bases = bases - unclear | with_payload(pipeline, sorted(unclear))
    cursor = b"0"
    while True:
        command = (b"SCAN", cursor, b"MATCH", pattern, b"COUNT", _SCANNED)
        [(cursor, keys)] = pipeline.execute([command])
        owned: list[OwnedKey] = []
        for key in keys:
            base = _base_of(pipeline, key, bases)
            memory = None if base is None else catalogue.name(base, where)
            if base is not None and memory is not None:
                owned.append(OwnedKey(base, memory, key))
        yield owned
        if cursor == b"0":
            return


def erase_keys(
    pipeline: Pipeline, names: Keys, catalogue: Catalogue, where: Selection
) -> list[WriteResult]:
    """Remove all Redis keys of the selected sessions; return a result for each session.

    For each session, a transaction first removes the lists, and with the lists the memory.  Then
    the payloads (texts of messages) are removed: without a list, no agent reads them.  If memctl is
    killed in between, the next run finds the payloads by the names of their keys.

    Raises:
        Lost: the connection broke.
        Unavailable: the server refuses a command.
    """
    sessions: dict[bytes, _Session] = {}
    results: list[WriteResult] = []
    with closing(ItemSpool[list[bytes]]()) as payloads:  # a session may have a million payloads
        for some in owned_keys(pipeline, names, catalogue, where):
            page: list[bytes] = []
            for base, memory, key in some:
                session = sessions.setdefault(base, _Session(memory))
                if key.startswith(base + PAYLOAD):
                    session.payloads += 1
                    page.append(key)
                else:
                    session.keys.add(key)
            if page:
                payloads.add(page)
        for base, session in sorted(sessions.items(), key=lambda item: item[0]):
            count = (b"LLEN", base + MESSAGES)
            going = (b"UNLINK", base + MESSAGES, *sorted(session.keys))
            listed, _ = pipeline.atomic([count, going], tolerate=WRONG_TYPE)
            messages = min(listed, session.payloads) if isinstance(listed, int) else 0
            results.append(WriteResult(session.memory, deleted=messages))
        pipeline.execute((b"UNLINK", *page) for page in payloads)
    return results


def rename_keys(
    pipeline: Pipeline,
    names: Keys,
    catalogue: Catalogue,
    moves: Mapping[MemoryKey, MemoryKey],
) -> list[WriteResult]:
    """Rename all Redis keys of sessions, each session in a transaction.

    Raises:
        Lost: the connection broke.
        Unavailable: the server refuses a command.
    """
    sessions: dict[MemoryKey, tuple[bytes, set[bytes]]] = {}
    for some in owned_keys(pipeline, names, catalogue, Selection(keys=frozenset(moves))):
        for base, memory, key in some:
            sessions.setdefault(memory, (base, set()))[1].add(key)
    results = []
    for old, new in moves.items():
        base, keys = sessions.get(old, (b"", set()))
        result = WriteResult(old)
        try:
            if not pipeline.commit(moved(pipeline, sorted(keys), base, names.base(new))):
                result = WriteResult(old, failure=CHANGED)
        except Rejected as rejected:
            pipeline.execute([(b"UNWATCH",)])
            result = WriteResult(old, failure=rejected.failure)
        results.append(result)
    return results


def _splits(key: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the possible bases of a Redis key, each with the message id in the key."""
    for end in _ENDS:
        if key.endswith(end):
            yield key.removesuffix(end), b""
    for part in PAYLOAD, MARK:
        at = key.rfind(part)
        while at >= 0:
            yield key[:at], key[at + len(part) :] if part is PAYLOAD else b""
            at = key.rfind(part, 0, at + len(part) - 1)


def _base_of(pipeline: Pipeline, key: bytes, bases: set[bytes]) -> bytes | None:
    """Return the base of a Redis key; None if the key has none.

    Prefers a memory whose list has the message id in the key, then the longest of ``bases``, the
    known memories, then the shortest possible base.
    """
    splits = sorted(_splits(key), key=lambda split: len(split[0]), reverse=True)
    if len(splits) > 1:
        for base, id in splits:
            if id:
                find = (b"LPOS", base + MESSAGES, id)
                [at] = pipeline.execute([find], tolerate=WRONG_TYPE)
                if isinstance(at, int):
                    return base
    known = [base for base, _ in splits if base in bases]
    return next(iter(known or [base for base, _ in reversed(splits)]), None)
