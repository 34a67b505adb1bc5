"""A part of a run, its result, and the engines that run parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from memctl.shard import Shard


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a run: the command line of a child process of memctl, and what it must find there.

    ``arguments`` are the words after ``memctl``, with ``--shard K/N`` and ``--json``.  ``version``
    is the version of memctl that divided the run.  ``stores`` maps each store, as it was written,
    to the label of its location: a part whose configuration locates another store refuses to run.
    """

    arguments: tuple[str, ...]
    shard: Shard
    version: str
    stores: Mapping[str, str] = field(default_factory=dict)
    state: str = ""
    """A token in the state folder that the part must share; empty if the part needs no undo."""


@dataclass(frozen=True, slots=True)
class PartResult:
    """How a part ended.

    ``exit`` is the exit code of memctl.  ``report`` is its JSON report; None if the process wrote
    none, as after SIGKILL.  ``errors`` is the end of what it wrote to stderr, without passwords.
    ``host`` is the name of the machine, and ``seconds`` the wall time.
    """

    shard: Shard
    exit: int
    report: dict[str, Any] | None = None
    errors: str = ""
    host: str = ""
    seconds: float = 0.0


class Engine(Protocol):
    """What runs parts: processes of this machine, or tasks of a Ray cluster.

    An engine has no queue: the driver of a run asks for at most ``workers`` parts at a time.
    """

    name: str
    workers: int

    async def run(self, part: Part) -> PartResult:
        """Run a part to its end.

        Raises:
            Unavailable: the engine is gone.
        """

    def stop(self, *, force: bool) -> None:
        """Stop all parts that run, at the end of a memory; with ``force``, kill them.

        ``run`` then returns their results.
        """

    async def close(self) -> None:
        """Release what the engine holds.  No part runs."""
