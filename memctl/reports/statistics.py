"""The report of ``report``: the statistics of a store."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET

from memctl.reports.doctor import Severity
from memctl.reports.history import RunRow
from memctl.reports.report import (
    Amount,
    Count,
    First,
    Last,
    Maybe,
    OfMemory,
    Place,
    Report,
    Row,
    Unread,
    Untimed,
)

Counts = dict[str, Count]


class ReportedStore(Row, kw_only=True):
    """The store."""

    url: Maybe[Place] = UNSET
    kind: str
    what: str
    """The detected kind of store, such as AgentScope 2.x sessions in Redis."""


class StoreTotals(Row):
    """Sums over the selected memories."""

    users: Count
    without_user: Count
    """Memories that belong to no user; they count as no user."""
    memories: Count
    messages: Count
    bytes: Count
    """The bytes of the stored JSON of the messages."""
    marks: Counts
    """Messages by mark."""
    roles: Counts
    """Messages by role."""
    unread: Unread
    """Messages that the framework does not read, by reason."""
    first: First
    last: Last
    summaries: Count | None
    """Memories with a summary; null if the store has no place for summaries."""
    without_time: Count
    """Messages without a readable time."""
    odd_times: Count
    """Messages from before 2000 or after tomorrow; they are not in days and hours."""


class Sent(Row):
    """The tokens that agents send, by kind of text.

    The speaker of a message belongs to its text, and that of a message with only tool results to
    the results.
    """

    summary: Count = 0
    user: Count = 0
    assistant: Count = 0
    calls: Count = 0
    results: Count = 0
    system: Count = 0

    @property
    def total(self) -> int:
        """The tokens of all kinds."""
        return self.summary + self.user + self.assistant + self.calls + self.results + self.system


class Tokens(Row):
    """The tokens of all messages, and of what agents send."""

    counted_by: str
    """estimate, or the path of the tokenizer.json."""
    stored: Count
    """The tokens of all messages and summaries."""
    sent: Count
    """The tokens of what agents send to their models, as context counts them."""
    by_kind: Sent
    cost: Maybe[float] = UNSET
    """The cost of one request of each memory; only for a summarizer with an input price."""


class Bin(Row):
    """The number of values in a range."""

    low: Count
    high: Count | None
    """Not included; null if there is no upper limit."""
    count: Count


class MemoryTokens(OfMemory, kw_only=True):
    """A memory."""

    messages: Count
    tokens: Count
    """The tokens of its context."""
    last: Last
    ttl: Amount | None
    """Seconds until it expires; null for never."""


class Contexts(Row):
    """The memories by the tokens of their contexts."""

    bins: list[Bin]
    median: Count
    percentile95: Count
    """95 of 100 memories send no more."""
    limit: Count | None
    """--context-limit"""
    over_limit: Count | None
    """Memories that send more."""
    largest: list[MemoryTokens]


class Day(Row):
    """The messages of a day."""

    day: str
    """The local date."""
    user: Count = 0
    assistant: Count = 0
    other: Count = 0
    """Messages of systems and tools, and facts."""
    bytes: Count = 0

    @property
    def messages(self) -> int:
        """The number of all messages."""
        return self.user + self.assistant + self.other


class LargeMessage(OfMemory, kw_only=True):
    """A large message."""

    id: str
    role: str
    bytes: Count


class MessageSizes(Row):
    """The messages by the bytes of their stored JSON."""

    bins: list[Bin]
    largest: list[LargeMessage]


class Users(Row):
    """The sums of several users."""

    memories: Count
    messages: Count
    bytes: Count
    tokens: Count
    """The tokens of the contexts of the memories."""
    first: First
    last: Last


class UserRow(Row):
    """The sums of a user."""

    user: str
    """Empty for memories that belong to no user."""
    memories: Count = 0
    messages: Count = 0
    bytes: Count = 0
    tokens: Count = 0
    """The tokens of the contexts of the user's memories."""
    first: First = None
    last: Last = None


class ToolRow(Row):
    """The calls of a tool."""

    name: str
    calls: Count = 0
    results: Count = 0
    tokens: Count = 0
    """The tokens of the stored results."""
    largest: Count = 0
    """The bytes of the largest result."""


class AgeRow(Row):
    """The messages by age."""

    days: Count | None
    """The upper limit of the age; null for all older messages."""
    messages: Count


class FoundRow(Row):
    """What doctor finds, by code."""

    code: str
    """Stable."""
    severity: Annotated[str, Severity]
    count: Count
    """Affected messages, or other data if the code is about these."""
    memories: Count
    """Affected memories."""
    what: str
    """What is counted."""
    meaning: str
    remedy: str


class OwnerRow(OfMemory, kw_only=True):
    """A scope of facts."""

    facts: Count


class Facts(Row):
    """What only stores of facts have."""

    owners: list[OwnerRow]
    """The scopes with the most facts."""
    lengths: list[Bin]
    """The facts by their numbers of characters."""
    metadata: Counts
    """Facts by key of their metadata."""
    expiring: Count
    """Facts with an expiration date."""
    expired: Count
    """Facts whose expiration date has passed."""


class DamagedRow(OfMemory, kw_only=True):
    """A damaged memory."""

    message: str
    """What is wrong."""


class FoundSince(Row):
    """The change in the number of a finding; below 0, there are fewer."""

    code: str
    """Stable."""
    count: int


class Since(Row):
    """The changes since the last report; numbers below 0 are losses."""

    time: str
    """The time of the last report."""
    users: int
    memories: int
    messages: int
    bytes: int
    tokens: Maybe[int]
    """The tokens that agents send."""
    findings: Maybe[list[FoundSince]]
    selection: Maybe[str] = UNSET
    """The selection of the last report, in words, if that is another one."""


class ReportReport(Report, kw_only=True):
    """The statistics of a store. Lists have at most --top rows, the largest first."""

    store: ReportedStore
    title: str
    """The heading of the page."""
    time: str
    """The local time of the report, with its zone."""
    noun: str
    """The noun for a message of the store: message or fact."""
    selection: str
    """What is selected, in words; empty for everything."""
    pseudonyms: bool
    """Whether numbers stand for names."""
    totals: StoreTotals
    days: list[Day]
    """The days with messages, in order."""
    sizes: MessageSizes
    by_user: list[UserRow]
    """The 200 users with the most messages."""
    other_users: Users | None
    """The sums of all other users."""
    ages: list[AgeRow]
    idle: list[MemoryTokens]
    """The memories that are longest without a message."""
    expiring: list[MemoryTokens]
    """The memories that expire first."""
    damaged: list[DamagedRow]
    """The damaged memories, which were left out, wholly or in part."""
    runs: list[RunRow]
    """The last runs of memctl on the store, newest first, as history shows them."""
    findings: Maybe[list[FoundRow]] = UNSET
    """What doctor finds, by code. Left out with --no-findings and with a selection of messages."""
    facts: Maybe[Facts] = UNSET
    """Only for stores of facts."""
    tokens: Maybe[Tokens] = UNSET
    """Left out for facts."""
    contexts: Maybe[Contexts] = UNSET
    """Left out for facts."""
    tools: Maybe[list[ToolRow]] = UNSET
    """Left out for facts."""
    hours: Maybe[list[list[Count]]] = UNSET
    """The messages of each weekday, from Monday, by the 24 hours of the local time. Left out for
    facts."""
    untimed: Maybe[Untimed] = UNSET
    since: Maybe[Since] = UNSET
    """Only with --since-last."""
