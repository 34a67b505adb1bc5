"""Fleets on the command line: how many stores a run in parts is on."""

from __future__ import annotations

from memctl.commands._context import Run
from memctl.config import Fleet
from memctl.errors import UsageError
from memctl.text.numbers import count

_SOURCES = ("file", "source", "left", "store")
_TARGETS = ("target", "right")


def stores_of(run: Run, command: str, given: dict[str, object], parts: int | None) -> int:
    """Return the number of stores of the fleets that a command names; 1 without fleets.

    ``given`` are the parameters of the command, and ``parts`` is the number of parts of the run;
    None if it is not divided.

    Raises:
        UsageError: there is no such fleet, it cannot be divided into so many parts, or it cannot be
            the target of this source.
    """
    texts = [str(given[name]) for name in (*_SOURCES, *_TARGETS) if given.get(name)]
    if not any(text.startswith("@") for text in texts):
        return 1
    found = [run.configuration().fleet(text) for text in texts]
    fleets = [fleet for fleet in found if fleet is not None]
    if not fleets:
        return 1
    _refuse_pair(command, texts, found)
    fleet, size = fleets[0], len(fleets[0].stores)
    if parts is None and command == "export":
        return 1  # which may collect several stores
    if parts is None:
        raise UsageError(
            f"{fleet} is a fleet of {count(size, 'store')}",
            f"add --shards N, a multiple of {size}, or --shard K/N",
        )
    if parts % size:
        raise UsageError(
            f"{count(parts, 'part')} cannot be divided among the {count(size, 'store')} of {fleet}",
            f"use a multiple of {size}, such as {(parts // size + 1) * size}",
        )
    return size


def _refuse_pair(command: str, texts: list[str], found: list[Fleet | None]) -> None:
    """Refuse a source and a target whose stores cannot be paired."""
    if len(found) < 2:
        return
    (one, other), (source, target) = found, texts
    if one is not None and other is not None:
        if len(one.stores) != len(other.stores):
            raise UsageError(
                f"{one} has {count(len(one.stores), 'store')}, and {other} {len(other.stores):,}",
                "name fleets of the same length: their stores are taken in pairs",
            )
    elif one is None:
        raise UsageError(
            f"{target} is a fleet, and {source} is not",
            "a fleet as the target needs a fleet of the same length as the source",
        )
    elif command == "verify":
        raise UsageError(
            f"{source} is a fleet, and {target} is not: each of its stores lacks what others hold",
            "look for what is missing with: "
            f"memctl migrate {source} {target} --dry-run --shards {len(one.stores)}",
        )
