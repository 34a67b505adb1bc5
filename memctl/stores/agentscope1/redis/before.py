"""The state of a memory in Redis before a change, beyond what the reverse would restore.

It travels as the text of ``WriteResult.before`` and ``Edit.before``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

from memctl.engines.redis.pipeline import ABSENT, Command
from memctl.engines.redis.text import decode, encode

KEPT_IDS = 100_000
"""Lists of more ids are not kept as they were."""
KEPT_EXPIRIES = 100_000
"""The expiries of more keys are not kept where they differ from that of their memory."""
_TOLERANCE = 1000
"""Keys whose expiries differ by less, in milliseconds, were given them at once."""


@dataclass(frozen=True, slots=True)
class MemoryBefore:
    """The parts of a memory that were not as memctl would make them.

    A list of a mark is None where it would be made so, and ``index`` where nothing is known.
    """

    lists: dict[bytes, list[bytes] | None] = field(default_factory=dict)
    index: frozenset[bytes] | None = None
    names: list[bytes] = field(default_factory=list)
    """The lists that were changed."""
    messages: list[bytes] = field(default_factory=list)
    """The list of messages, where ids repeat in it."""
    expiries: dict[bytes, int] = field(default_factory=dict)
    """The PTTL of keys, by what follows the base; -1 for those that did not expire."""

    def dump(self) -> str:
        """Return it as a text; empty where there is nothing."""
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
        """Return it from a text, nothing where another store wrote that."""
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
    """Return the PTTL of the keys that exist and expire at another time than expected.

    With ``ABSENT`` as expected, return the PTTL of all keys that exist.
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
