"""The names of AgentScope's keys in Redis: built, matched and read back.

A memory is named by its base, prefix + ``user_id:{user}:session:{session}``; its keys are the base
and a suffix (``memory/_working_memory/_redis_memory.py``, ``session/_redis_session.py``).  The
library escapes nothing, so users, sessions, ids and marks may hold ``:`` and one key may be read in
several ways.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from memctl.model import MemoryKey
from memctl.selection import Selection

MESSAGES = b":messages"
PAYLOAD = b":msg:"
MARK = b":mark:"
MARKS_INDEX = b":marks_index"
STATE = b":state"

_USER = b"user_id:"
_SESSION = b":session:"
_SPECIAL = b"*?[]\\"


def encode(text: str) -> bytes:
    """The bytes of a name; those that were no UTF-8 come back as they were.

    Raises:
        UnicodeEncodeError: it holds a surrogate that no bytes stand for.
    """
    return text.encode("utf-8", "surrogateescape")


def decode(name: bytes) -> str:
    """A name as text; bytes that are no UTF-8 become surrogates, so that nothing is lost."""
    return name.decode("utf-8", "surrogateescape")


def escape(text: bytes) -> bytes:
    """A glob pattern that matches the text alone."""
    return b"".join(b"\\" + bytes((byte,)) if byte in _SPECIAL else bytes((byte,)) for byte in text)


class Keys:
    """The keys under one prefix."""

    def __init__(self, prefix: str = "") -> None:
        self.prefix = encode(prefix)

    def base(self, key: MemoryKey) -> bytes:
        """What the keys of the memory begin with.

        Raises:
            UnicodeEncodeError: see ``encode``.
        """
        return self.prefix + _USER + encode(key.user) + _SESSION + encode(key.session)

    def base_or_none(self, key: MemoryKey) -> bytes | None:
        """The base of the memory, None where no bytes stand for its name."""
        try:
            return self.base(key)
        except UnicodeEncodeError:
            return None

    def readings(self, base: bytes) -> Iterator[MemoryKey]:
        """Every memory that the base may name, the one with the shortest user first."""
        name = base.removeprefix(self.prefix + _USER)
        at = name.find(_SESSION)
        while at >= 0:
            yield MemoryKey(decode(name[:at]), decode(name[at + len(_SESSION) :]))
            at = name.find(_SESSION, at + 1)

    def pattern(self, where: Selection, suffix: bytes) -> bytes:
        """A glob that matches every selected base with the suffix, itself a glob."""
        user = _pattern(where.users)
        session = _pattern(where.sessions)
        return escape(self.prefix) + _USER + user + _SESSION + session + suffix


def _pattern(names: frozenset[str]) -> bytes:
    """The pattern of the one name, or of any where there are others."""
    if len(names) == 1:
        [name] = names
        with suppress(UnicodeEncodeError):  # a name that no bytes stand for matches nothing
            return escape(encode(name))
    return b"*"
