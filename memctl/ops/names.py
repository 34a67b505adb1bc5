"""The names in a store: listed, missing, and similar to a missing name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from contextlib import aclosing, suppress
from itertools import islice

from memctl.errors import MemctlError, NotFound
from memctl.location import Location
from memctl.model import MemoryKey
from memctl.ops.retry import leaving_damaged
from memctl.selection import Selection
from memctl.store import Store

_COMPARED = 50_000
"""The most names in which to look for similar names."""


async def list_names(store: Store, where: Selection) -> list[MemoryKey]:
    """Return the names of all data in a store, each once.

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
    """Refuse a named memory that does not exist; an empty selection is not an error.

    The hint suggests the nearest of ``names``.

    Raises:
        NotFound: no memory with the names was found.
    """
    label = " or ".join(place.label for place in places)
    path = places[0].options.get("path") if len(places) == 1 else None
    if path is not None and not found:
        raise NotFound(
            f"{label} has no memory at the path {path!r}", "list the memories with: memctl inspect"
        )
    if where.named and not found:
        wanted = ", ".join(repr(name) for name in sorted(where.users | where.sessions))
        raise NotFound(f"{label} has no memory of {wanted}", suggestion(names, where))


async def refuse_absent_in(where: Selection, found: int, *stores: Store) -> None:
    """Refuse a named memory as ``refuse_absent`` does; the hint suggests names of the stores.

    Raises:
        NotFound: no memory with the names was found.
    """
    names: list[MemoryKey] = []
    if where.named and not found:
        for store in stores:
            with suppress(MemctlError):  # a hint must not raise an error
                names += await list_names(store, Selection())
    refuse_absent(where, found, *(store.location for store in stores), names=names)


def suggestion(names: Iterable[MemoryKey], where: Selection) -> str:
    """Return a hint with the names nearest to a selection."""
    near = [repr(name) for name in similar(names, where)]
    if not near:
        return "list the memories with: memctl inspect"
    return f"did you mean {' or '.join(near)}?"


def similar(names: Iterable[MemoryKey], where: Selection) -> list[str]:
    """Return the names of users and sessions nearest to those of a selection, nearest first."""
    some = list(islice(names, _COMPARED))
    found: dict[str, None] = {}
    for wanted, known in (
        (where.users, {key.user for key in some}),
        (where.sessions, {key.session for key in some}),
    ):
        for name in sorted(wanted - known):
            folded: dict[str, list[str]] = {}
            for one in sorted(known):
                folded.setdefault(one.strip().casefold(), []).append(one)
            near = difflib.get_close_matches(name.strip().casefold(), folded, n=3, cutoff=0.6)
            found |= dict.fromkeys(one for text in near for one in folded[text])
    return list(found)[:3]
