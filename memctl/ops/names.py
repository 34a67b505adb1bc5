"""The names of users, sessions and marks in a store: listed, missing, and similar ones."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterable
from contextlib import aclosing, suppress
from itertools import islice

from memctl.errors import MemctlError, NotFound
from memctl.location import Location
from memctl.model import MemoryKey
from memctl.ops.observer import Observer, warn_of_other_contents
from memctl.ops.retry import leaving_damaged
from memctl.ops.select import whole_memories
from memctl.selection import Selection
from memctl.store import Store

ROLES = ("user", "assistant", "system", "tool")
"""The usual roles of messages."""
_COMPARED = 50_000
"""The largest number of names among which to look for similar names."""


async def list_names(store: Store, where: Selection) -> list[MemoryKey]:
    """Return the keys of all selected data in a store, each once.

    For data of a user outside sessions, the session in the key is empty.  This key is left out if
    the user also has a key with a session.

    Raises:
        MemctlError: as ``Store.names``.
    """

    async def attempt() -> list[MemoryKey]:
        async with aclosing(store.names(where)) as names:
            return list(dict.fromkeys([key async for key in names]))

    found = await leaving_damaged(attempt)
    users = {key.user for key in found if key.session}
    return [key for key in found if key.session or key.user not in users]


def refuse_absent(
    where: Selection, found: int, *places: Location, names: Iterable[MemoryKey] = ()
) -> None:
    """Refuse a selection of named users or sessions if ``found``, the number of memories, is zero.

    A selection without names is accepted, and one of a shard: the memories may be in another one.
    ``places`` are the searched stores.  ``names`` are known keys: the hint suggests the names in
    them that are most similar to the missing names.

    Raises:
        NotFound: no memory of the users or sessions was found.
    """
    if where.shard is not None:
        return
    label = " or ".join(place.label for place in places)
    path = places[0].options.get("path") if len(places) == 1 else None
    if path is not None and not found:
        raise NotFound(
            f"{label} has no memory at the path {path!r}",
            "list the memories with: memctl inspect STORE",
        )
    if where.named and not found:
        raise NotFound(f"{label} has no memory of {_wanted(where)}", suggestion(names, where))


async def refuse_absent_in(
    where: Selection, found: int, *stores: Store, observer: Observer | None = None
) -> None:
    """Refuse a selection of named users or sessions if ``found``, the number of memories, is zero.

    A selection without names is accepted, and one of a shard: the memories may be in another one.
    The hint suggests similar names that are in ``stores``.  With ``observer``, memories that exist,
    but have no message that matches, are only noted.

    Raises:
        NotFound: no memory of the users or sessions was found.
    """
    if where.shard is not None:
        return
    whole = whole_memories(where)
    if observer is not None and where.named and not found and where != whole:
        for store in stores:
            if await _has_memory(store, whole):
                observer.note(f"no {store.dialect.noun} of {_wanted(where)} matches")
                return
    names: list[MemoryKey] = []
    if where.named and not found:
        for store in stores:
            with suppress(MemctlError):  # a hint must not raise an error
                names += await list_names(store, Selection())
    refuse_absent(where, found, *(store.location for store in stores), names=names)


async def _has_memory(store: Store, where: Selection) -> bool:
    async def attempt() -> bool:
        async with aclosing(store.headers(where)) as memories:
            return await anext(memories, None) is not None

    return await leaving_damaged(attempt)


def _wanted(where: Selection) -> str:
    return ", ".join(repr(name) for name in sorted(where.users | where.sessions))


async def note_absent_values(
    where: Selection, found: int, store: Store, observer: Observer, more: Iterable[str] = ()
) -> None:
    """Tell the user similar marks and roles if nothing was found with the selected ones.

    ``found`` is the number of selected memories.  ``more`` are further marks that the user named.
    """
    if found:
        return
    for role in sorted(where.roles.difference(ROLES)):
        if near := _near(role, ROLES):
            observer.note(f"the role {role!r} is unknown: did you mean {near[0]!r}?")
    wanted = where.marks.union(more)
    if not wanted:
        return
    known: set[str] = set()
    with suppress(MemctlError):  # a hint must not raise an error
        async with aclosing(store.list_memories(Selection(shard=where.shard))) as infos:
            async for info in infos:
                known.update(info.marks)
    for mark in sorted(wanted - known):
        if near := _near(mark, known):
            observer.note(
                f"{store.label} has no message with the mark {mark!r}: did you mean "
                f"{' or '.join(map(repr, near))}?"
            )


async def tell_absent(
    where: Selection, found: int, store: Store, observer: Observer, *, must_exist: bool = True
) -> None:
    """Tell why a store has ``found`` memories of a selection, if there are none.

    Raises:
        NotFound: with ``must_exist``, as ``refuse_absent_in``.
    """
    if not found:
        await warn_of_other_contents(store, observer)
    if must_exist:
        await refuse_absent_in(where, found, store, observer=observer)
    await note_absent_values(where, found, store, observer)


def suggestion(names: Iterable[MemoryKey], where: Selection) -> str:
    """Return a hint that suggests names in ``names`` similar to selected names that are missing.

    If no memory belongs to a user, the hint says so.  Without similar names, the hint is to list
    the memories.
    """
    names = list(islice(names, _COMPARED))
    if where.users - {""} and {key.user for key in names} == {""}:
        session = min(where.users & {key.session for key in names}, default="NAME")
        return f"its memories belong to no user: use --user '' --session {shlex.quote(session)}"
    near = [repr(name) for name in similar(names, where)]
    if not near:
        return "list the memories with: memctl inspect STORE"
    return f"did you mean {' or '.join(near)}?"


def similar(names: Iterable[MemoryKey], where: Selection) -> list[str]:
    """Return users and sessions in ``names`` that are similar to selected names that are missing.

    At most three are returned, the most similar first.
    """
    some = list(islice(names, _COMPARED))
    found: dict[str, None] = {}
    for wanted, known in (
        (where.users, {key.user for key in some}),
        (where.sessions, {key.session for key in some}),
    ):
        for name in sorted(wanted - known):
            found |= dict.fromkeys(_near(name, known))
    return list(found)[:3]


def _near(name: str, known: Iterable[str]) -> list[str]:
    """Return the names in ``known`` similar to ``name``, best first."""
    folded: dict[str, list[str]] = {}
    for one in sorted(known):
        folded.setdefault(one.strip().casefold(), []).append(one)
    near = difflib.get_close_matches(name.strip().casefold(), folded, n=3, cutoff=0.6)
    return [one for text in near for one in folded[text]]
