"""The names of the lists of one mark: the agent's own marks have two.

ReActAgent marks by members of ``class _MemoryMark(str, Enum)`` (``agent/_react_agent.py``), and
RedisMemory puts a mark into its key by ``str.format`` (``_get_mark_key`` of
``memory/_working_memory/_redis_memory.py``).  From Python 3.11 on that gives the name of the
member, ``_MemoryMark.HINT``; before, and wherever an application passes a plain string, it gives
``hint``.  ``marks_index`` gets ``hint`` from all of them, for the client encodes the string that
the member is.

So an agent sees a mark that it is given only under the spelling of its own Python, and RedisMemory
cleans up only lists that the index names: what memctl writes is in all lists of a mark, all of them
named.  What it reads may be in any.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

T = TypeVar("T")

_MEMBERS = {b"hint": b"_MemoryMark.HINT", b"compressed": b"_MemoryMark.COMPRESSED"}
_SPELLINGS = {mark: (mark, member) for mark, member in _MEMBERS.items()}
_PLAIN = {member: mark for mark, member in _MEMBERS.items()}


def plain(name: bytes) -> bytes:
    """The mark whose list has that name."""
    return _PLAIN.get(name, name)


def spellings(mark: bytes) -> tuple[bytes, ...]:
    """The names of all lists of a mark, the plain one first."""
    return _SPELLINGS.get(mark) or (mark,)


def every(names: Iterable[bytes]) -> set[bytes]:
    """The names of all lists of the marks that have some lists of these names."""
    return {name for some in names for name in spellings(plain(some))}


def is_indexed(name: bytes, index: set[bytes]) -> bool:
    """Whether ``marks_index`` names a list, as far as agents name it."""
    return name in index or plain(name) in index


def others(name: bytes, lists: Mapping[bytes, T]) -> list[T]:
    """Of some lists by name, those of the same mark with another name."""
    return [lists[other] for other in spellings(plain(name)) if other != name and other in lists]
