"""The statistics of a store for a report: one pass over all messages, in bounded memory."""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Generic, NamedTuple, TypeVar

from msgspec import UNSET, Struct, field
from msgspec.structs import astuple, replace

from memctl.dialects.fact import FactView
from memctl.dialects.view import COMPRESSED, Dialect, MessageView, Unread
from memctl.inference.tokens import estimate
from memctl.model import Finding, Memory, MemoryKey, Page, StoredMessage
from memctl.ops.compress.plan import message_tokens
from memctl.ops.compress.transcript import transcribe_view
from memctl.ops.doctor.check import (
    LARGE_BYTES,
    Call,
    ExaminedMessage,
    FactExaminer,
    Limits,
    MemoryExaminer,
    Result,
    examine,
    examine_view,
    examiner,
    fitting,
)
from memctl.ops.doctor.findings import KINDS, ORDER, UNREAD
from memctl.ops.gather import gather
from memctl.ops.report import HUGE_BYTES, Progress
from memctl.ops.retry import leaving_damaged
from memctl.registry import title_of
from memctl.reports import statistics as rows
from memctl.reports.history import RunRow
from memctl.reports.report import OfMemory, named
from memctl.reports.statistics import (
    Bin,
    Day,
    Facts,
    FoundRow,
    LargeMessage,
    MemoryTokens,
    OwnerRow,
    Sent,
    ToolRow,
    UserRow,
)
from memctl.selection import Selection
from memctl.store import Store

USERS = 200
"""The largest number of users with a row of their own."""
_CONTEXTS = (0, *(1000 << power for power in range(8)))
"""The lower limits of the bins of contexts, in tokens."""
AGES = (7, 30, 90, 365)
"""The upper limits of the ages of messages, in days."""
_EARLIEST = date(2000, 1, 1)
"""The first day in a report: an earlier time is that of a wrong clock."""
_NAMES = 10_000
"""The largest number of names of tools, of keys of metadata, and of calls to remember."""


class Statistics(Struct):
    """The statistics of the selected messages of a store.

    Lists of rows hold the largest ``top`` rows.
    """

    kind: str = ""
    """The kind of the store."""
    what: str = ""
    """The kind of the store, in words."""
    noun: str = "message"
    """The noun for a message of the store: "message" or "fact"."""
    users: int = 0
    without_user: int = 0
    """The number of memories that belong to no user."""
    memories: int = 0
    messages: int = 0
    bytes: int = 0
    first: str | None = None
    """The earliest readable time of a message, as stored."""
    last: str | None = None
    """The latest readable time of a message, as stored."""
    summaries: int | None = None
    """The number of memories with a summary; None if the store has no place for summaries."""
    tokens_stored: int = 0
    """The tokens of all messages and summaries."""
    sent: Sent = field(default_factory=Sent)
    """The tokens that the agents send: one context of each memory."""
    days: list[Day] = field(default_factory=list)
    """The days with messages, in order."""
    untimed: int = 0
    """The number of messages without a readable time."""
    odd_times: int = 0
    """The number of messages before 2000 or after tomorrow, which are in no day or hour."""
    context_bins: list[Bin] = field(default_factory=list)
    """The memories by the tokens of their contexts."""
    median: int = 0
    """The tokens of a context that half of the memories do not exceed."""
    percentile95: int = 0
    """The tokens of a context that 95 % of the memories do not exceed."""
    over_limit: int | None = None
    """The number of memories whose context exceeds the limit; None without a limit."""
    largest_contexts: list[MemoryTokens] = field(default_factory=list)
    size_bins: list[Bin] = field(default_factory=list)
    """The messages by their sizes in bytes."""
    largest_messages: list[LargeMessage] = field(default_factory=list)
    user_rows: list[UserRow] = field(default_factory=list)
    """The users with the most messages, at most 200; a user without a name has the name ''."""
    other_users: UserRow | None = None
    """The sums over all further users, None if there are none."""
    tools: list[ToolRow] = field(default_factory=list)
    marks: dict[str, int] = field(default_factory=dict)
    roles: dict[str, int] = field(default_factory=dict)
    unread: dict[str, int] = field(default_factory=dict)
    ages: list[int] = field(default_factory=list)
    """The numbers of messages by age: up to 7, 30, 90, 365 days, and older."""
    idle: list[MemoryTokens] = field(default_factory=list)
    """The memories that are longest without a message."""
    expiring: list[MemoryTokens] = field(default_factory=list)
    """The memories that expire first."""
    hours: list[list[int]] = field(default_factory=list)
    """For each weekday from Monday, the numbers of messages in its 24 hours, in local time."""
    findings: list[FoundRow] | None = None
    """None if messages were selected, or if no findings are wanted."""
    facts: Facts | None = None
    """None for messages.  For facts, ``hours``, ``tools`` and all tokens are empty or 0."""
    damaged: dict[MemoryKey, str] = field(default_factory=dict)
    """The memories that were left out, wholly or in part, each with the reason."""


class StatisticsOptions(Struct, frozen=True):
    """The options of ``collect``.

    ``top`` is the largest number of rows of a list, ``context_limit`` the limit for
    ``Statistics.over_limit``.  ``findings`` adds the findings of ``doctor``, unless the selection
    leaves out messages.  ``count`` counts the tokens of a text.  ``now`` is the present local time
    without a zone.
    """

    top: int = 20
    context_limit: int | None = None
    findings: bool = True
    count: Callable[[str], int] = estimate
    now: datetime = field(default_factory=datetime.now)


async def collect(
    store: Store,
    where: Selection,
    options: StatisticsOptions | None = None,
    progress: Progress | None = None,
) -> Statistics:
    """Return the statistics of the selected messages.

    With findings, damaged data are skipped as ``doctor`` skips them: a memory keeps its readable
    messages.  Without findings, damaged memories are left out whole, as ``inspect`` does.

    Raises:
        MemctlError: as ``Store.read``.
    """
    options = options or StatisticsOptions()
    if options.findings and where.whole:
        store.skip_damage()
        return await _collect(store, where, options, progress, findings=True)
    return await leaving_damaged(lambda: _collect(store, where, options, progress, findings=False))


async def _collect(
    store: Store,
    where: Selection,
    options: StatisticsOptions,
    progress: Progress | None,
    *,
    findings: bool,
) -> Statistics:
    found = _Counts(store, where, options, findings=findings)
    async with aclosing(gather(store, where, found.begin, progress)) as memories:
        async for memory in memories:
            memory.end()
    if findings:
        async with aclosing(store.maintenance().check(where)) as faults:
            async for fault in faults:
                found.note(fault)
    return found.statistics()


class _Counts:
    """The counts of all memories, while they are read."""

    def __init__(
        self, store: Store, where: Selection, options: StatisticsOptions, *, findings: bool
    ) -> None:
        self.store = store
        self.where = where
        self.options = options
        about = store.kind, title_of(store.location), store.dialect.noun
        self.found = found = Statistics(*about, summaries=0 if store.features.summaries else None)
        self.largest_messages: _Top[LargeMessage] = _Top(options.top)
        self._largest_contexts: _Top[MemoryTokens] = _Top(options.top)
        self._idle: _Top[MemoryTokens] = _Top(options.top)
        self._expiring: _Top[MemoryTokens] = _Top(options.top)
        self.owners: _Top[OwnerRow] = _Top(options.top)
        self.tools: dict[str, ToolRow] = {}
        self.metadata: Counter[str] = Counter()
        self.lengths = [0] * _SIZES
        self._sizes = [0] * _SIZES
        self._contexts = array("q")
        self._users: dict[str, UserRow] = {}
        self._days: dict[date, Day] = {}
        self._tomorrow = options.now.date() + timedelta(days=1)
        self._oldest = [options.now - timedelta(days=days) for days in AGES]
        self._findings: dict[str, _FindingCount] | None = {} if findings else None
        found.ages = [0] * (len(AGES) + 1)
        if store.dialect.facts:
            found.facts = Facts([], [], {}, 0, 0)
        else:
            found.hours = [[0] * 24 for _ in range(7)]

    def begin(self, memory: Memory) -> _MessageCounts | _FactCounts:
        """Return the counts of the next memory."""
        examining: MemoryExaminer | FactExaminer | None = None
        if self._findings is not None:
            examining = examiner(self.store, memory, limits=Limits(now=self.options.now))
        kind = _MessageCounts if self.found.facts is None else _FactCounts
        return kind(self, memory, examining)

    def add(
        self, entry: StoredMessage, key: MemoryKey, role: str | None, moment: datetime | None
    ) -> None:
        """Count a message; ``moment`` is its time."""
        found, size = self.found, len(entry.message)
        found.messages += 1
        found.bytes += size
        self._sizes[size.bit_length()] += 1
        if self.largest_messages.admits(size):
            large = LargeMessage(**named(key), id=entry.id, role=role or "", bytes=size)
            self.largest_messages.add(size, large)
        if role is not None:
            found.roles[role] = found.roles.get(role, 0) + 1
        for mark in entry.marks:
            found.marks[mark] = found.marks.get(mark, 0) + 1
        if moment is None:
            found.untimed += 1
            return
        for age, oldest in enumerate(self._oldest):
            if moment >= oldest:
                found.ages[age] += 1
                break
        else:
            found.ages[-1] += 1
        day = moment.date()
        if not _EARLIEST <= day <= self._tomorrow:
            found.odd_times += 1
            return
        row = self._days.get(day)
        if row is None:
            row = self._days[day] = Day(day.isoformat())
        row.bytes += size
        if role == "user":
            row.user += 1
        elif role == "assistant":
            row.assistant += 1
        else:
            row.other += 1
        if found.hours:
            found.hours[day.weekday()][moment.hour] += 1

    def end(self, one: _MemoryCounts, tokens: int) -> None:
        """Count a memory after its last message; ``tokens`` is the size of its context."""
        found, memory = self.found, one.memory
        key = memory.key
        found.memories += 1
        if found.summaries is not None:
            found.summaries += bool(memory.summary)
        found.first = _earlier(found.first, one.first)
        found.last = _later(found.last, one.last)
        found.without_user += not key.user
        user = self._users.get(key.user)
        if user is None:
            user = self._users[key.user] = UserRow(key.user)
        user.memories += 1
        user.messages += one.messages
        user.bytes += one.bytes
        user.tokens += tokens
        user.first = _earlier(user.first, one.first)
        user.last = _later(user.last, one.last)
        row = MemoryTokens(
            **named(key), messages=one.messages, tokens=tokens, last=one.last, ttl=memory.ttl
        )
        if found.facts is None:
            self._contexts.append(tokens)
            self._largest_contexts.add(tokens, row)
        moment = self.store.dialect.moment(one.last)
        if moment is not None:
            self._idle.add((self.options.now - moment).total_seconds(), row)
        if memory.ttl is not None:
            self._expiring.add(-memory.ttl, row)
        if one.examining is not None:
            for fault in one.examining.faults():
                self.note(fault)

    def note(self, fault: Finding) -> None:
        """Count a finding."""
        assert self._findings is not None
        found = self._findings.setdefault(fault.code, _FindingCount())
        found.count += fault.count
        if fault.key not in (None, found.latest):
            found.memories += 1
            found.latest = fault.key
        if fault.key is not None and fault.code in UNREAD:
            self.found.damaged[fault.key] = fault.detail or KINDS[fault.code].what

    def tool(self, name: str) -> ToolRow | None:
        """Return the row of a tool; None if there are too many names."""
        row = self.tools.get(name)
        if row is None and len(self.tools) < _NAMES:
            row = self.tools[name] = ToolRow(name)
        return row

    def statistics(self) -> Statistics:
        """Return the statistics, after the last memory."""
        found, top = self.found, self.options.top
        found.users = len(self._users.keys() - {""})
        found.days = [self._days[day] for day in sorted(self._days)]
        found.size_bins = _bins(self._sizes)
        found.largest_messages = self.largest_messages.rows()
        found.largest_contexts = self._largest_contexts.rows()
        found.idle = self._idle.rows()
        found.expiring = self._expiring.rows()
        tools = heapq.nsmallest(top, self.tools.values(), lambda row: (-row.tokens, row.name))
        found.tools = tools
        found.marks = dict(sorted(found.marks.items(), key=_by_count))
        found.roles = dict(sorted(found.roles.items(), key=_by_count))
        self._rank_users()
        if self._contexts:
            self._measure_contexts()
        if self._findings is not None:
            found.findings = [
                self._finding_row(code, self._findings[code])
                for code in sorted(self._findings, key=ORDER.__getitem__)
            ]
        if found.facts is not None:
            found.facts.owners = self.owners.rows()
            found.facts.lengths = _bins(self.lengths)
            found.facts.metadata = dict(heapq.nsmallest(top, self.metadata.items(), _by_count))
        failures = self.store.left_out.failures
        found.damaged |= {key: failure.message for key, failure in failures.items()}
        return found

    def _rank_users(self) -> None:
        rows = sorted(self._users.values(), key=lambda row: (-row.messages, row.user))
        self.found.user_rows = rows[:USERS]
        if others := rows[USERS:]:
            self.found.other_users = UserRow(
                "",
                sum(row.memories for row in others),
                sum(row.messages for row in others),
                sum(row.bytes for row in others),
                sum(row.tokens for row in others),
                min((row.first for row in others if row.first), default=None),
                max((row.last for row in others if row.last), default=None),
            )

    def _measure_contexts(self) -> None:
        found, sizes = self.found, sorted(self._contexts)
        number = len(sizes)
        found.median = sizes[(number - 1) // 2]
        found.percentile95 = sizes[-(-number * 95 // 100) - 1]
        if self.options.context_limit is not None:
            found.over_limit = number - bisect_right(sizes, self.options.context_limit)
        counts = Counter(bisect_right(_CONTEXTS, size) - 1 for size in sizes)
        found.context_bins = [
            Bin(low, high, counts[at])
            for at, (low, high) in enumerate(zip(_CONTEXTS, (*_CONTEXTS[1:], None), strict=True))
        ]

    def _finding_row(self, code: str, found: _FindingCount) -> FoundRow:
        remedy = fitting(Finding(code, None), self.store).remedy
        kind = KINDS[code]
        about = code, kind.severity.value, found.count, found.memories
        return FoundRow(*about, kind.what, kind.meaning, remedy or kind.remedy)


_SIZES = 65
"""The number of powers of two to count sizes by."""


class _FindingCount(Struct):
    """The number of findings of one code; ``latest`` is the memory of the latest."""

    count: int = 0
    memories: int = 0
    latest: MemoryKey | None = None


@dataclass(slots=True)
class _MemoryCounts:
    """The counts of one memory."""

    whole: _Counts
    memory: Memory
    examining: MemoryExaminer | FactExaminer | None
    messages: int = 0
    bytes: int = 0
    first: str | None = None
    last: str | None = None

    def _add(
        self,
        entry: StoredMessage,
        role: str | None,
        time: str | None,
        moment: datetime | None,
    ) -> None:
        size = len(entry.message)
        self.messages += 1
        self.bytes += size
        if time is not None and moment is not None:
            if self.whole.store.dialect.zone is not None:
                time = str(moment)  # the report shows local times of this machine
            self.first = _earlier(self.first, time)
            self.last = _later(self.last, time)
        self.whole.add(entry, self.memory.key, role, moment)


class _Spent(NamedTuple):
    """The tokens of a message: of its own text, of its tool calls, and of its results."""

    role: str | None
    own: int
    calls: int
    results: int


@dataclass(eq=False)
class _MessageCounts(_MemoryCounts):
    """The counts of the messages of one memory, and the tokens of its context."""

    def __post_init__(self) -> None:
        self._dialect = self.whole.store.dialect
        self._count = self.whole.options.count
        self._tokens = 0
        self._listed = self._dialect.context(self.memory.extra)
        """The context, if the memory lists it."""
        self._ids = frozenset(one for one in self._listed or () if isinstance(one, str))
        self._there: dict[str, _Spent] = {}
        """The messages that the context lists by id."""
        self._called: dict[str, str] = {}
        """The names of the tools of the latest calls: not all frameworks repeat it in results."""

    def take(self, page: Page) -> None:
        pairs = zip(page.messages, page.places, strict=True)
        examined = (self._message(entry, page.unread.get(place, "")) for entry, place in pairs)
        if isinstance(self.examining, MemoryExaminer):
            self.examining.take(page, examined)
        else:
            deque(examined, 0)

    def _message(self, entry: StoredMessage, unread: str) -> ExaminedMessage:
        text = entry.message
        unread = unread or (Unread.COMPACTED if COMPRESSED in entry.marks else "")
        if unread:
            counts = self.whole.found.unread
            counts[unread] = counts.get(unread, 0) + 1
        view = _read(text, self._dialect)
        if view is None:
            self._add(entry, None, None, None)
            return examine(text, self._dialect)
        found = examine_view(view, text, self._dialect)
        if found.fault:
            self._add(entry, view.role, view.time, view.moment)
            return found
        self._add(entry, found.role, view.time, found.moment)
        spent = self._spend(text, view, found, stored=True)
        if self._listed is not None:
            if entry.id in self._ids:
                self._there[entry.id] = spent
        elif not unread:
            self._send(spent)
        return found

    def _spend(
        self, text: bytes, view: MessageView, found: ExaminedMessage, *, stored: bool
    ) -> _Spent:
        """Return the tokens of a message; if it is ``stored``, count its tools, too."""
        blocks = found.blocks
        if LARGE_BYTES <= len(text) < HUGE_BYTES:
            blocks = self._dialect.parse(text).blocks  # the outline has no long texts
        transcript = transcribe_view(view, blocks, len(text))
        total = message_tokens(transcript, self._count)
        if stored:
            self.whole.found.tokens_stored += total
        calls = results = 0
        for side in found.sides:
            tokens = self._count(transcript.texts[side.block] or "")
            if isinstance(side, Call):
                calls += tokens
            else:
                results += tokens
            if stored:
                self._add_tool(side, tokens)
        if transcript.turn.role == "tool":
            return _Spent(None, 0, 0, total)
        calls = min(calls, total)
        results = min(results, total - calls)
        return _Spent(found.role, total - calls - results, calls, results)

    def _add_tool(self, side: Call | Result, tokens: int) -> None:
        if isinstance(side, Call):
            name = side.tool.name
            self._called[side.tool.id] = name
            if len(self._called) > _NAMES:
                del self._called[next(iter(self._called))]
            if row := self.whole.tool(name):
                row.calls += 1
        elif row := self.whole.tool(side.name or self._called.get(side.id, "")):
            row.results += 1
            row.tokens += tokens
            row.largest = max(row.largest, side.size)

    def _send(self, spent: _Spent) -> None:
        sent, (role, own, calls, results) = self.whole.found.sent, spent
        self._tokens += own + calls + results
        sent.calls += calls
        sent.results += results
        if role == "user":
            sent.user += own
        elif role == "assistant":
            sent.assistant += own
        else:
            sent.system += own

    def end(self) -> None:
        """Count the memory after its last message."""
        whole = self.whole
        if self.memory.summary:
            tokens = self._count(self.memory.summary)
            self._tokens += tokens
            whole.found.sent.summary += tokens
            whole.found.tokens_stored += tokens
        for one in self._listed or ():
            if isinstance(one, str):
                if one in self._there:
                    self._send(self._there[one])
            elif whole.where.whole:
                self._send_unlogged(one)
        whole.end(self, self._tokens)

    def _send_unlogged(self, text: bytes) -> None:
        view = _read(text, self._dialect)
        if view is not None:
            found = examine_view(view, text, self._dialect)
            if not found.fault:
                self._send(self._spend(text, view, found, stored=False))


@dataclass(eq=False)
class _FactCounts(_MemoryCounts):
    """The counts of the facts of one scope."""

    def __post_init__(self) -> None:
        self._today = self.whole.options.now.astimezone(UTC).date()  # as mem0 does

    def take(self, page: Page) -> None:
        views = map(self._fact, page.messages)
        if isinstance(self.examining, FactExaminer):
            self.examining.take(page, views)
        else:
            deque(views, 0)

    def _fact(self, entry: StoredMessage) -> MessageView | None:
        whole, text = self.whole, entry.message
        dialect = whole.store.dialect
        try:
            view = dialect.outline(text)
        except ValueError:
            self._add(entry, None, None, None)
            return None
        self._add(entry, view.role, view.time, view.moment)
        said = dialect.parse(text) if len(text) >= LARGE_BYTES else view
        whole.lengths[sum(map(len, said.texts())).bit_length()] += 1
        for name in view.metadata:
            if name in whole.metadata or len(whole.metadata) < _NAMES:
                whole.metadata[name] += 1
        if isinstance(view, FactView) and (expiry := view.expiry) is not None:
            facts = whole.found.facts
            assert facts is not None
            facts.expiring += 1
            facts.expired += expiry < self._today
        return view

    def end(self) -> None:
        """Count the scope after its last fact."""
        key = self.memory.key
        self.whole.owners.add(self.messages, OwnerRow(**named(key), facts=self.messages))
        self.whole.end(self, 0)


T = TypeVar("T")
R = TypeVar("R", bound=OfMemory)


class _Top(Generic[T]):
    """The rows with the highest ranks; of equal ranks, those that came first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._heap: list[tuple[float, int, T]] = []
        self._added = 0

    def admits(self, rank: float) -> bool:
        """Return whether a row of this rank would be among the highest."""
        return len(self._heap) < self._most or rank > self._heap[0][0]

    def add(self, rank: float, row: T) -> None:
        self._added += 1
        if len(self._heap) < self._most:
            heapq.heappush(self._heap, (rank, -self._added, row))
        elif rank > self._heap[0][0]:
            heapq.heapreplace(self._heap, (rank, -self._added, row))

    def rows(self) -> list[T]:
        """Return the rows, the highest rank first."""
        return [row for _, _, row in sorted(self._heap, key=lambda one: one[:2], reverse=True)]


def _read(text: bytes, dialect: Dialect) -> MessageView | None:
    """Return a message, a large one as its outline; None if it is not a JSON object."""
    try:
        return dialect.parse(text) if len(text) < LARGE_BYTES else dialect.outline(text)
    except ValueError:
        return None


def _earlier(one: str | None, other: str | None) -> str | None:
    return min(one, other) if one and other else one or other


def _later(one: str | None, other: str | None) -> str | None:
    return max(one, other) if one and other else one or other


def _by_count(item: tuple[str, int]) -> tuple[int, str]:
    return -item[1], item[0]


def _bins(counts: list[int]) -> list[Bin]:
    """Return the bins between the smallest and the largest value.

    ``counts`` has the number of values by their number of bits.
    """
    used = [bits for bits, number in enumerate(counts) if number]
    if not used:
        return []
    return [Bin(1 << bits >> 1, 1 << bits, counts[bits]) for bits in range(used[0], used[-1] + 1)]


class _Pseudonyms:
    """Numbered words in the place of names; the same name gets the same word."""

    def __init__(self, noun: str) -> None:
        self._noun = noun
        self._words: dict[str, str] = {"": ""}

    def __call__(self, name: str) -> str:
        word = self._words.get(name)
        if word is None:
            word = self._words[name] = f"{self._noun} {len(self._words)}"
        return word


def pseudonymous(found: Statistics) -> Statistics:
    """Return the statistics with numbered words in the place of names.

    ``user 1``, ``session 7``, ``memory 2`` and ``message 3`` stand for users, sessions, paths of
    memories and ids of messages.  Names of tools, marks, roles and keys of metadata stay.
    """
    user, session, part, message = map(_Pseudonyms, ("user", "session", "memory", "message"))

    def renamed(key: MemoryKey) -> MemoryKey:
        return MemoryKey(user(key.user), session(key.session), part(key.part))

    def memories(rows: list[R]) -> list[R]:
        return [replace(row, **named(renamed(row.key))) for row in rows]

    users = [replace(row, user=user(row.user)) for row in found.user_rows]
    facts = found.facts
    if facts is not None:
        facts = replace(facts, owners=memories(facts.owners))
    return replace(
        found,
        user_rows=users,
        largest_contexts=memories(found.largest_contexts),
        idle=memories(found.idle),
        expiring=memories(found.expiring),
        largest_messages=[
            replace(row, id=message(row.id)) for row in memories(found.largest_messages)
        ],
        facts=facts,
        damaged={renamed(key): "its data cannot be read" for key in found.damaged},
    )


_TOTALS = {*rows.StoreTotals.__struct_fields__} - {"without_time"}


def report_of(
    has: Statistics,
    store: str,
    runs: list[RunRow],
    *,
    title: str,
    time: datetime,
    selection: str,
    pseudonyms: bool,
    counted_by: str,
    context_limit: int | None,
    price: float | None = None,
) -> rows.ReportReport:
    """Return statistics as the report of ``memctl report``; parts that do not apply are left out.

    ``store`` is the label of the store, and ``runs`` are the last runs on it.  ``time`` is that of
    the report, with its zone, and ``selection`` says in words what was selected.  ``pseudonyms``
    says that numbers stand for names: the label is left out.  ``counted_by`` is the name of the
    token counter, and ``price`` the price of a million tokens.  ``context_limit`` is that of the
    statistics.
    """
    url = UNSET if pseudonyms else store
    report = rows.ReportReport(
        store=rows.ReportedStore(url=url, kind=has.kind, what=has.what),
        title=title,
        time=time.isoformat(timespec="seconds"),
        noun=has.noun,
        selection=selection,
        pseudonyms=pseudonyms,
        totals=rows.StoreTotals(
            **{name: getattr(has, name) for name in _TOTALS}, without_time=has.untimed
        ),
        days=has.days,
        sizes=rows.MessageSizes(has.size_bins, has.largest_messages),
        by_user=has.user_rows,
        other_users=None if has.other_users is None else rows.Users(*astuple(has.other_users)[1:]),
        ages=[rows.AgeRow(*one) for one in zip((*AGES, None), has.ages, strict=True)],
        idle=has.idle,
        expiring=has.expiring,
        damaged=[rows.DamagedRow(**named(key), message=why) for key, why in has.damaged.items()],
        runs=runs,
        findings=UNSET if has.findings is None else has.findings,
    )
    if has.facts is not None:
        report.facts = has.facts
        return report
    cost = UNSET if price is None else has.sent.total * price / 1e6
    report.tokens = rows.Tokens(counted_by, has.tokens_stored, has.sent.total, has.sent, cost)
    report.contexts = rows.Contexts(
        *(has.context_bins, has.median, has.percentile95, context_limit, has.over_limit),
        has.largest_contexts,
    )
    report.tools, report.hours = has.tools, has.hours
    return report
