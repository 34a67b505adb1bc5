"""Search: the messages of some stores that answer a query best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from memctl.embedder import Embedder
from memctl.errors import UsageError
from memctl.location import Location
from memctl.model import MemoryKey
from memctl.ops.report import Progress
from memctl.selection import Selection
from memctl.store import Store


class By(StrEnum):
    """The ways to search."""

    WORDS = "words"
    MEANING = "meaning"
    BOTH = "both"
    SERVICE = "service"


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """The options of a search: how, how many hits, and how many neighbours of each.

    ``keep`` has the index kept in the cache folder; without it nothing is kept.
    """

    by: By = By.WORDS
    top: int = 10
    around: int = 0
    keep: bool = True


@dataclass(frozen=True, slots=True)
class Target:
    """A store to search: its place, and what opens it, which a search of a file may not need."""

    location: Location
    make: Callable[[], Store]


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A message next to a hit; ``text`` is its beginning."""

    id: str
    position: int
    time: str | None
    role: str | None
    name: str | None
    text: str


@dataclass(frozen=True, slots=True)
class Hit:
    """A message that was found.

    ``store`` is the label of its store; ``position`` counts from 1 in its memory.  ``snippet`` is a
    part of its text on one line, ``spans`` are the places in it that answer the query, as start and
    end.  ``before`` and ``after`` are its neighbours in the memory, in order.
    """

    store: str
    key: MemoryKey
    id: str
    position: int
    time: str | None
    role: str | None
    name: str | None
    marks: tuple[str, ...]
    score: float
    snippet: str
    spans: tuple[tuple[int, int], ...] = ()
    before: tuple[Neighbour, ...] = ()
    after: tuple[Neighbour, ...] = ()


@dataclass(slots=True)
class IndexUse:
    """The indexes of a search: messages in them, how many were new, seconds to bring them up to date."""

    messages: int = 0
    new: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class SearchReport:
    """The result of a search, best hits first."""

    hits: list[Hit] = field(default_factory=list)
    index: IndexUse = field(default_factory=IndexUse)
    warnings: list[str] = field(default_factory=list)
    noun: str = "message"
    """The word for a hit."""


async def search(
    targets: Sequence[Target],
    query: str,
    where: Selection,
    options: SearchOptions,
    progress: Progress | None = None,
    embedder: Embedder | None = None,
) -> SearchReport:
    """Return the selected messages that answer the query best, of all the stores together.

    Raises:
        UsageError: the query has no words to look for, or a way to search that a store lacks.
        MemctlError: as ``Store.read``; or the index cannot be written.
    """
    raise UsageError(query)
