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
    """The parts of a memory before a change that the reverse of the change would not restore.

    ``lists`` has the ids on mark lists, by name of the list; the ids are None for a list that
    memctl would write the same.  ``index`` has the names in ``marks_index``; None if no lists are
    recorded.
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


def other_expiries(
    names: Iterable[bytes], ttls: Iterable[int], expected: float
) -> dict[bytes, int]:
    """Return the Redis keys that exist and whose PTTL is not ``expected``, with their PTTL.

    ``ttls`` has the PTTL of each name, ``ABSENT`` for a missing key.  If ``expected`` is
    ``ABSENT``, the result has all existing keys.
    """
    found = {}
    for name, ttl in zip(names, ttls, strict=True):
        never = min(ttl, expected) < 0
        same = ttl == expected if never else abs(ttl - expected) < _TOLERANCE
        if ttl != ABSENT and not same:
            found[name] = ttl
    return found


def expiry_command(key: bytes, ttl: int) -> Command:
    """Return the command that sets the expiry of a key to ``ttl`` milliseconds; to none if -1."""
    return (b"PERSIST", key) if ttl < 0 else (b"PEXPIRE", key, b"%d" % ttl)
