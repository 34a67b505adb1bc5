"""The names of AgentScope's keys in Redis: built, matched and parsed.

The base of a memory is its name in Redis: prefix + ``user_id:{user}:session:{session}``.  Each key
of the memory is the base and a suffix (``memory/_working_memory/_redis_memory.py``,
``session/_redis_session.py``).  AgentScope escapes nothing: users, sessions, ids and marks may
hold ``:``, so a key may have several readings.

The list of a mark has a name for each alias of the mark.  ReActAgent marks by members of ``class
_MemoryMark(str, Enum)`` (``agent/_react_agent.py``), and RedisMemory puts a mark into its key by
``str.format`` (``_get_mark_key`` of ``memory/_working_memory/_redis_memory.py``).  From Python
3.11 on, the key has the name of the member, ``_MemoryMark.HINT``.  Before Python 3.11, or if an
application passes a plain string, the key has ``hint``.  ``marks_index`` always gets ``hint``,
because the client encodes the member's string value.

So an agent sees a mark only under the alias of its own Python, and RedisMemory cleans up only
lists that the index names. memctl therefore writes the lists of all aliases of a mark, with all
aliases in the index, and reads the list of any alias.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TypeVar

from memctl.engines.redis.text import decode, encode, escape
from memctl.model import MemoryKey
from memctl.selection import Selection

T = TypeVar("T")

MESSAGES = b":messages"
PAYLOAD = b":msg:"
MARK = b":mark:"
MARKS_INDEX = b":marks_index"
STATE = b":state"

LEASE = b"%d" % (6 * 3600 * 1000)
"""The TTL in milliseconds of data that a run stages, in case the run is killed."""

RAW_SURROGATES = "raw-surrogates"
"""The shape of a message whose lone surrogates are stored as bytes instead of escapes."""

_USER = b"user_id:"
_SESSION = b":session:"


class Keys:
    """The Redis keys of AgentScope's memories, all with one prefix.

    Example:
        >>> Keys("app:").base(MemoryKey("alice", "s1"))
        b'app:user_id:alice:session:s1'
    """

    def __init__(self, prefix: str = "") -> None:
        self.prefix = encode(prefix)

    def base(self, key: MemoryKey) -> bytes:
        """Return the base of a memory, the common beginning of its keys.

        Raises:
            UnicodeEncodeError: the name of the memory cannot be encoded.
        """
        return self.prefix + _USER + encode(key.user) + _SESSION + encode(key.session)

    def base_or_none(self, key: MemoryKey) -> bytes | None:
        """Return the base of a memory; None if the name of the memory cannot be encoded."""
        try:
            return self.base(key)
        except UnicodeEncodeError:
            return None

    def parse_base(self, base: bytes) -> Iterator[MemoryKey]:
        """Yield each memory that a base may name, the memory with the shortest user first."""
        name = base.removeprefix(self.prefix + _USER)
        at = name.find(_SESSION)
        while at >= 0:
            yield MemoryKey(decode(name[:at]), decode(name[at + len(_SESSION) :]))
            at = name.find(_SESSION, at + 1)

    def pattern(self, where: Selection, suffix: bytes) -> bytes:
        """Return a Redis glob pattern that matches the keys of the selected memories.

        The pattern ends with ``suffix``, which is a pattern, too.  It may match further keys.
        """
        user = _pattern(where.users)
        session = _pattern(where.sessions)
        return escape(self.prefix) + _USER + user + _SESSION + session + suffix


def _pattern(names: frozenset[str]) -> bytes:
    if len(names) == 1:
        [name] = names
        with suppress(UnicodeEncodeError):  # a name that cannot be encoded: ``*``, filtered later
            return escape(encode(name))
    return b"*"


def count_payloads(base: bytes, ids: Iterable[bytes]) -> tuple[bytes, ...]:
    """Return the Redis command that counts how many of these message ids have a payload.

    A payload is the text of a message.  ``base`` is the base of the memory; ``ids`` must not be
    empty.
    """
    return (b"EXISTS", *(base + PAYLOAD + id for id in ids))


# Aliases of marks

_MEMBERS = {b"hint": b"_MemoryMark.HINT", b"compressed": b"_MemoryMark.COMPRESSED"}
_ALIASES = {mark: (mark, member) for mark, member in _MEMBERS.items()}
_CANONICAL = {member: mark for mark, member in _MEMBERS.items()}


def canonical_mark(alias: bytes) -> bytes:
    """Return the mark that an alias stands for; ``alias`` itself if unknown."""
    return _CANONICAL.get(alias, alias)


def mark_aliases(mark: bytes) -> tuple[bytes, ...]:
    """Return the aliases of a mark, the mark itself first."""
    return _ALIASES.get(mark) or (mark,)


def with_aliases(names: Iterable[bytes]) -> set[bytes]:
    """Return the names, with all aliases of their marks.

    ``names`` are marks or aliases of marks.  An unknown name is a mark without further aliases.
    """
    return {alias for name in names for alias in mark_aliases(canonical_mark(name))}


def is_indexed(alias: bytes, index: frozenset[bytes] | set[bytes]) -> bool:
    """Return whether ``index`` has ``alias``, or the mark that ``alias`` stands for.

    ``index`` has the members of the key ``marks_index``.
    """
    return alias in index or canonical_mark(alias) in index


def of_other_aliases(alias: bytes, values: Mapping[bytes, T]) -> list[T]:
    """Return the values in ``values`` for the other aliases of the mark of ``alias``.

    ``values`` has values by alias.
    """
    names = mark_aliases(canonical_mark(alias))
    return [values[other] for other in names if other != alias and other in values]
