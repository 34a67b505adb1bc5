"""The state of a memory in Redis before a change that the reverse change would not restore.

``WriteResult.before`` and ``Edit.before`` carry the state as text.
"""

from __future__ import annotations

import json
from collections.abc import Set
from itertools import chain

from msgspec import Struct, field

from memctl.engines.redis.pipeline import ABSENT, Command, Pipeline
from memctl.engines.redis.text import decode, encode
from memctl.layouts.redis.keys import (
    MARK,
    MARKS_INDEX,
    MESSAGES,
    PAYLOAD,
    canonical_mark,
    mark_aliases,
)
from memctl.stores.agentscope1.redis.snapshot import IdChunks, MemorySnapshot

KEPT_IDS = 100_000
"""The most ids to keep of lists before a change; longer lists are not kept."""
KEPT_EXPIRIES = 100_000
"""The most expiries to keep before a change; more expiries are not kept."""
Lists = dict[bytes, list[bytes] | None]
"""Ids by name of their mark list; None for a list in the order in which memctl writes ids."""
_TOLERANCE = 1000
"""Expiries that differ by less, in milliseconds, count as equal: they were set together."""


class MemoryBefore(Struct, frozen=True):
    """The parts of a memory before a change that the reverse of the change would not restore.

    ``index`` has the names in ``marks_index``; None if no lists are recorded.
    """

    lists: Lists = field(default_factory=dict)
    index: frozenset[bytes] | None = None
    names: list[bytes] = field(default_factory=list)
    """The names of the changed mark lists."""
    messages: list[bytes] = field(default_factory=list)
    """The list of messages, if ids repeat in the list."""
    expiries: dict[bytes, int] = field(default_factory=dict)
    """The PTTL of keys, by suffix after the base; -1 stands for no expiry."""

    def dump(self) -> str:
        """Return the recorded parts as JSON for ``load``; empty if no parts are recorded."""
        if not self.expiries and self.index is None:
            return ""
        return json.dumps(
            {
                "lists": {
                    decode(name): None if ids is None else [*map(decode, ids)]
                    for name, ids in self.lists.items()
                },
                "index": None if self.index is None else sorted(map(decode, self.index)),
                "names": [*map(decode, self.names)],
                "messages": [*map(decode, self.messages)],
            }
            | ({"expiries": _by_text(self.expiries)} if self.expiries else {})
        )

    @classmethod
    def load(cls, text: str) -> MemoryBefore:
        """Parse a result of ``dump``; any other text gives an object without recorded parts."""
        try:
            found = json.loads(text) if text else {}
            index = found["index"]
            return cls(
                {
                    encode(name): None if ids is None else [*map(encode, ids)]
                    for name, ids in found["lists"].items()
                },
                None if index is None else frozenset(map(encode, index)),
                [*map(encode, found["names"])],
                [*map(encode, found["messages"])],
                {encode(name): int(ttl) for name, ttl in found.get("expiries", {}).items()},
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            return cls()


def _by_text(values: dict[bytes, int]) -> dict[str, int]:
    return {decode(name): value for name, value in values.items()}


def lists_before(
    snapshot: MemorySnapshot, names: Set[bytes], *, messages: bool = False
) -> MemoryBefore:
    """Return the mark lists ``names`` of a memory, if a reverse would write them differently.

    This is so if a list is out of the order of the messages, or lacks an id that another list of
    the same mark has; and if ``marks_index`` does not name just the lists that have ids.  With
    ``messages``, returns the list of messages, too.  Long lists are left out, because of their
    size.  Of a memory without messages, returns all lists that RedisMemory kept when it cleared
    the memory.
    """
    marks, index = snapshot.marks, snapshot.index
    if not snapshot.exists:
        kept: Lists = {name: [*its] for name, its in marks.items() if its.count}
        return MemoryBefore(kept, index, sorted(marks)) if kept or index else MemoryBefore()
    count = sum(marks[name].count for name in names) + messages * snapshot.messages.count
    if count > KEPT_IDS:
        return MemoryBefore()
    unusual: Lists = {}
    for mark in sorted({canonical_mark(name) for name in names}):
        held = {name: list(marks[name]) for name in mark_aliases(mark) if name in names}
        marked = set(chain.from_iterable(held.values()))
        listed = (id for id in snapshot.messages if id in marked) if marked else ()
        usual = list(dict.fromkeys(listed))
        if any(ids != usual for ids in held.values()):
            unusual |= {name: None if ids == usual else ids for name, ids in held.items()}
    filled = {name for name, its in marks.items() if its.count}
    if not (unusual or messages) and filled == index:
        return MemoryBefore()
    return MemoryBefore(unusual, index, sorted(names), [*snapshot.messages] if messages else [])


def other_expiries(
    pipeline: Pipeline, snapshot: MemorySnapshot, payloads: IdChunks
) -> dict[bytes, int]:
    """Return the keys that expire at another time than the list of messages, with their PTTL.

    A key is without the base of the memory.  A PTTL of -1 stands for no expiry.  ``payloads`` has
    the ids of messages whose payloads to look at.  The result has all keys if there is no list of
    messages, and is empty if there are too many.

    Raises:
        Lost: the connection broke.
        Unavailable: the server refuses a command.
    """
    lists = [MARK + name for name, its in snapshot.marks.items() if its.count]
    found: dict[bytes, int] = {}
    for names in chain([[MARKS_INDEX, *lists]], ([PAYLOAD + id for id in ids] for ids in payloads)):
        commands = ((b"PTTL", snapshot.ref.base + name) for name in [*names, MESSAGES])
        *ttls, expected = pipeline.execute(commands)
        for name, ttl in zip(names, ttls, strict=True):
            never = min(ttl, expected) < 0
            same = ttl == expected if never else abs(ttl - expected) < _TOLERANCE
            if ttl != ABSENT and not same:
                found[name] = ttl
        if len(found) > KEPT_EXPIRIES:
            return {}
    return found


def expiry_command(key: bytes, ttl: int) -> Command:
    """Return the command that sets the expiry of a key to ``ttl`` milliseconds; to none if -1."""
    return (b"PERSIST", key) if ttl < 0 else (b"PEXPIRE", key, b"%d" % ttl)
