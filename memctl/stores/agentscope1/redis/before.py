"""The state of a memory in Redis before a change that the reverse change would not restore.

``WriteResult.before`` and ``Edit.before`` carry the state as text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

from memctl.engines.redis.pipeline import ABSENT, Command
from memctl.engines.redis.text import decode, encode

KEPT_IDS = 100_000
"""The most ids to keep of lists before a change; longer lists are not kept."""
KEPT_EXPIRIES = 100_000
"""The most expiries to keep before a change; more expiries are not kept."""
_TOLERANCE = 1000
"""Expiries that differ by less, in milliseconds, count as equal: they were set together."""


@dataclass(frozen=True, slots=True)
class MemoryBefore:
    """The parts of a memory that differed from what memctl would write.

    ``lists`` maps a mark list to None if memctl would write the list unchanged.  ``index`` is None
    if nothing is known.
    """

    lists: dict[bytes, list[bytes] | None] = field(default_factory=dict)
    index: frozenset[bytes] | None = None
    names: list[bytes] = field(default_factory=list)
    """The names of the changed mark lists."""
    messages: list[bytes] = field(default_factory=list)
    """The list of messages, if ids repeat in the list."""
    expiries: dict[bytes, int] = field(default_factory=dict)
    """The PTTL of keys, by suffix after the base; -1 stands for no expiry."""

    def dump(self) -> str:
        """Return the state as text; the text is empty if nothing differed."""
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
        """Return the state from a text; an empty state if another store wrote the text."""
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


def other_expiries(
    names: Iterable[bytes], ttls: Iterable[int], expected: float
) -> dict[bytes, int]:
    """Return the PTTL of the existing keys whose PTTL is not the expected one.

    If ``expected`` is ``ABSENT``, return the PTTL of all existing keys.
    """
    found = {}
    for name, ttl in zip(names, ttls, strict=True):
        never = min(ttl, expected) < 0
        same = ttl == expected if never else abs(ttl - expected) < _TOLERANCE
        if ttl != ABSENT and not same:
            found[name] = ttl
    return found


def expiry_command(key: bytes, ttl: int) -> Command:
    """Return the command that gives a key a PTTL; -1 stands for no expiry."""
    return (b"PERSIST", key) if ttl < 0 else (b"PEXPIRE", key, b"%d" % ttl)
