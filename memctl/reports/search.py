"""The report of ``search``."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET

from memctl.reports.report import (
    Amount,
    Count,
    Maybe,
    Report,
    Row,
    Untimed,
    WhyUnread,
    one_of,
)


class NeighbourRow(Row):
    """A message before or after a hit."""

    id: str
    position: int
    time: str | None
    role: str | None
    name: str | None
    text: str
    """The beginning of the message."""


class HitRow(Row, kw_only=True):
    """A message that answers the query."""

    store: str
    user: str
    session: str
    path: Maybe[str] = UNSET
    """The path of the memory in a session state."""
    id: str
    position: int | None
    """The position in the memory, from 1; null if the service does not report it."""
    time: str | None
    role: str | None
    name: str | None
    marks: list[str]
    unread: WhyUnread
    score: float
    snippet: str
    words: bool
    """Whether the message itself has a word of the query; without, it was found by meaning
    alone."""
    before: Maybe[list[NeighbourRow]] = UNSET
    after: Maybe[list[NeighbourRow]] = UNSET


class IndexUseRow(Row):
    """The index that answered."""

    messages: Count
    new: Count
    """Messages added to the index."""
    seconds: Amount
    """The time to bring the index up to date."""


class SearchReport(Report, kw_only=True):
    """The messages that answer a query, the best first."""

    lists = ("hits",)
    query: str
    by: Annotated[str, one_of("words meaning both service")]
    stores: list[str]
    hits: list[HitRow]
    found: Maybe[Count] = UNSET
    """The number of hits before --top; only of a search by words."""
    complete: Maybe[bool] = UNSET
    """Whether 'found' is exact; otherwise, more messages may have the words."""
    index: IndexUseRow
    untimed: Maybe[Untimed] = UNSET
