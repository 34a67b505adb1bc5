"""The statistics of a store for a report: one pass over all messages, in bounded memory."""

from __future__ import annotations

from dataclasses import dataclass, field

from memctl.model import MemoryKey


@dataclass(slots=True)
class Day:
    """The messages of one day, by role; ``other`` counts the messages of systems and tools.

    ``day`` is an ISO date in local time, such as ``2026-01-31``.  ``other`` counts facts, too.
    """

    day: str
    user: int = 0
    assistant: int = 0
    other: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Bin:
    """A column of a histogram: the number of values from ``low`` to below ``high``.

    ``high`` is None in the last bin, which has no upper limit.
    """

    low: int
    high: int | None
    count: int


@dataclass(slots=True)
class Tokens:
    """Numbers of tokens, by the kind of text that a model is sent.

    The sum is the number that ``memctl context`` shows.  The speaker of a message belongs to its
    text, and that of a message with only tool results to the results.
    """

    summary: int = 0
    user: int = 0
    assistant: int = 0
    calls: int = 0
    results: int = 0
    system: int = 0

    @property
    def total(self) -> int:
        """The number of all tokens."""
        return self.summary + self.user + self.assistant + self.calls + self.results + self.system


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """A memory in a list of a report: ``tokens`` is the size of its context, ``last`` the time of
    its last message, None without a time.  ``ttl`` is the time to expiry in seconds."""

    key: MemoryKey
    messages: int
    tokens: int
    last: str | None = None
    ttl: float | None = None


@dataclass(frozen=True, slots=True)
class MessageRow:
    """A message in a list of a report."""

    key: MemoryKey
    id: str
    role: str
    bytes: int


@dataclass(slots=True)
class UserRow:
    """The numbers of a user; ``first`` and ``last`` are the earliest and the latest time.

    ``tokens`` is the number of tokens that the agents of the user send.
    """

    user: str
    memories: int = 0
    messages: int = 0
    bytes: int = 0
    tokens: int = 0
    first: str | None = None
    last: str | None = None


@dataclass(slots=True)
class ToolRow:
    """The calls and results of a tool; ``tokens`` and ``largest`` are about its stored results.

    ``largest`` is the size in bytes of the largest result.
    """

    name: str
    calls: int = 0
    results: int = 0
    tokens: int = 0
    largest: int = 0


@dataclass(frozen=True, slots=True)
class FindingRow:
    """The findings of one code: affected messages or other data, and affected memories.

    ``remedy`` is as in ``Finding``: what the user can do, if the text of the code does not fit.
    """

    code: str
    count: int
    memories: int
    remedy: str = ""


@dataclass(slots=True)
class FactStatistics:
    """What only stores of facts have.

    ``owners`` has the ``top`` scopes with the most facts: user, and the agent or run in
    ``session``.  ``lengths`` is a histogram of the numbers of characters.  ``metadata`` counts
    facts by the ``top`` most frequent keys of their metadata.  ``expiring`` is the number of facts
    with an expiration date, ``expired`` the number of those whose date has passed.
    """

    owners: list[tuple[MemoryKey, int]] = field(default_factory=list)
    lengths: list[Bin] = field(default_factory=list)
    metadata: dict[str, int] = field(default_factory=dict)
    expiring: int = 0
    expired: int = 0


@dataclass(slots=True)
class Statistics:
    """The statistics of the selected messages of a store.

    ``first`` and ``last`` are the earliest and the latest time, as stored.  ``tokens_stored``
    counts all messages and summaries, ``sent`` only what the agents send.  ``days`` has the days
    with messages, in order.  ``context_bins``, ``median`` and ``percentile95`` are about the tokens
    of the context of each memory.  ``size_bins`` is about the sizes of messages in bytes.
    ``hours`` has a row for each weekday from Monday, with 24 numbers of messages, in local time.
    ``ages`` has the numbers of messages by age: up to 7, 30, 90, 365 days, and older.  ``untimed``
    counts messages without a readable time, ``odd_times`` those before 2000 or after tomorrow;
    neither are in ``days`` and ``hours``.  Lists of rows hold the largest ``top`` rows; ``idle``
    has the memories that are longest without a message, ``expiring`` those that expire first.

    ``findings`` is None if the selection leaves out messages, or if no findings are wanted.
    ``facts`` is None for stores of messages; with it, ``hours``, ``tools`` and all numbers of
    tokens are empty or 0.  ``damaged`` has the memories that were left out, wholly or in part, each
    with the reason.
    """

    users: int = 0
    without_user: int = 0
    memories: int = 0
    messages: int = 0
    bytes: int = 0
    first: str | None = None
    last: str | None = None
    summaries: int | None = None
    tokens_stored: int = 0
    sent: Tokens = field(default_factory=Tokens)
    days: list[Day] = field(default_factory=list)
    untimed: int = 0
    odd_times: int = 0
    context_bins: list[Bin] = field(default_factory=list)
    median: int = 0
    percentile95: int = 0
    over_limit: int | None = None
    """The number of memories whose context exceeds the limit; None without a limit."""
    largest_contexts: list[MemoryRow] = field(default_factory=list)
    size_bins: list[Bin] = field(default_factory=list)
    largest_messages: list[MessageRow] = field(default_factory=list)
    user_rows: list[UserRow] = field(default_factory=list)
    """The users with the most messages, at most 200; a user without a name has the name ''."""
    other_users: UserRow | None = None
    """The sums over all further users, None if there are none."""
    tools: list[ToolRow] = field(default_factory=list)
    marks: dict[str, int] = field(default_factory=dict)
    roles: dict[str, int] = field(default_factory=dict)
    ages: list[int] = field(default_factory=list)
    idle: list[MemoryRow] = field(default_factory=list)
    expiring: list[MemoryRow] = field(default_factory=list)
    hours: list[list[int]] = field(default_factory=list)
    findings: list[FindingRow] | None = None
    facts: FactStatistics | None = None
    damaged: dict[MemoryKey, str] = field(default_factory=dict)
