"""Examine a store: one pass over all messages, then the checks of the store itself.

The checks see messages as a model gets them.  An agent with compression sends the messages without
the mark ``compressed`` (``agent/_react_agent.py`` of AgentScope).  Without compression, no message
has this mark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing
from datetime import datetime, timedelta
from functools import partial
from hashlib import blake2b
from itertools import repeat
from typing import NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from memctl.dialects.agentscope1 import AGENTSCOPE1
from memctl.dialects.fact import FACT, dimensions, vector_of
from memctl.dialects.live import WaitingCalls
from memctl.dialects.roles import ROLES, role_of
from memctl.dialects.view import (
    COMPRESSED,
    HINT,
    SUMMARY,
    Block,
    Dialect,
    MessageView,
    NotAnObject,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
    Unread,
)
from memctl.errors import BadData, Unhealthy, UsageError
from memctl.json import jsonio
from memctl.model import Embedding, Finding, Memory, Page, StoredMessage
from memctl.ops.copy.compare import id_digest
from memctl.ops.copy.missing_summaries import KEEP_STATES
from memctl.ops.doctor.findings import (
    DAMAGED_FILE,
    KINDS,
    ORDER,
    OVERSIZED,
    RepairMethod,
    Severity,
)
from memctl.ops.gather import gather
from memctl.ops.report import Progress
from memctl.selection import Selection
from memctl.store import DamagedFile, Store
from memctl.text.numbers import count

MAX_RESULT = 100_000
"""The default size in bytes above which a tool result is reported as oversized.

It is about 25,000 tokens.
"""

EXAMPLES = 3

_SUMMARY_ELSEWHERE = "summary-elsewhere"
AT_WORK = timedelta(hours=1)
"""The time after the last message of a memory in which an agent may still be at work."""

_WAITING = 10_000
"""The largest number of tool calls to remember without a result, and of calls with a result.

It also limits the remembered results without a call.
"""


class Limits(Struct, frozen=True):
    """The limits of the checks.

    ``max_result`` is the size in bytes above which a tool result is reported.  ``now`` is the
    present local time without a zone, as in messages.
    """

    max_result: int = MAX_RESULT
    now: datetime = field(default_factory=datetime.now)


LARGE_BYTES = 1 << 20
"""The size in bytes from which on the long texts of a message are not read."""


class Call(NamedTuple):
    """A tool call in a message: ``block`` is its index among the blocks of the message.

    ``tool`` has no input.  ``is_answerable`` is True if memctl can write a valid result.
    """

    block: int
    tool: ToolCallBlock
    is_answerable: bool
    has_arguments: bool
    """False if the arguments are not a JSON object."""


class Result(NamedTuple):
    """A tool result in a message: ``block`` is its index among the blocks of the message.

    ``id`` is the id of the call, ``name`` the name of the tool, ``size`` the size in bytes.
    ``said`` is a hash of the texts, None if they were not read.  ``is_interrupted`` is that of the
    block.
    """

    block: int
    id: str
    name: str
    size: int
    said: int | None
    is_interrupted: bool


class ExaminedMessage(Struct):
    """The properties of a message that the checks need, and its blocks.

    ``fault`` is the reason why AgentScope cannot load or send the message; it is empty for a good
    message.  ``sides`` are the tool calls and tool results, in order.  ``only_tools`` is True if
    all blocks are tool calls, tool results or thinking.  ``is_blank`` is True if the blocks have no
    content.  ``is_read`` is False if memctl does not understand a part of the message.
    """

    fault: str = ""
    id: str | None = None
    moment: datetime | None = None
    role: str | None = None
    sides: list[Call | Result] = field(default_factory=list)
    is_blank: bool = False
    is_read: bool = True
    only_tools: bool = True
    leads: bool = False
    """See ``Dialect.leads``."""
    value: int | None = None
    """A hash of the content of a message with a unique id; None if the content was not read."""
    blocks: list[Block] = field(default_factory=list)


def examine(text: bytes, dialect: Dialect) -> ExaminedMessage:
    """Return the properties of a message that the checks need, from its JSON text."""
    try:
        view = dialect.outline(text)
    except NotAnObject:
        return ExaminedMessage(fault="no object")
    except ValueError as error:
        return ExaminedMessage(fault=f"not JSON: {error}")
    return examine_view(view, text, dialect)


def examine_view(view: MessageView, text: bytes, dialect: Dialect) -> ExaminedMessage:
    """Return the properties of a message that the checks need.

    ``view`` is the outline of its JSON text, or, below ``LARGE_BYTES``, the parsed text.
    """
    fault = view.fault
    if fault:
        return ExaminedMessage(fault=fault)
    large = len(text) >= LARGE_BYTES
    blocks = view.blocks
    found = ExaminedMessage(id=view.id, moment=view.moment, role=view.role, blocks=blocks)
    blank = True
    for index, block in enumerate(blocks):
        if isinstance(block, TextBlock):
            # The long texts of a large message are read as empty texts.
            if large or block.text.strip():
                blank = found.only_tools = False
        elif isinstance(block, ToolResultBlock):
            found.sides.append(_result(index, block, dialect, len(text) if large else 0))
            blank = False
        elif isinstance(block, ToolCallBlock):
            found.sides.append(_call(index, block, dialect))
            blank = False
        elif isinstance(block, ThinkingBlock):
            blank = False
        else:
            blank = found.only_tools = False
    found.is_blank = blank
    if blank or found.sides or dialect.holds_items:
        found.is_read = not view.unread
    if dialect.holds_items:
        found.leads = dialect.leads(view)
        if found.id is not None and not large:
            found.value = hash(jsonio.compact(view.value.get("content")))
    if not dialect.answers_within:
        # The formatters of AgentScope 1.x send the results of a message before its calls.
        found.sides.sort(key=lambda side: isinstance(side, Call))
    return found


def _call(index: int, block: ToolCallBlock, dialect: Dialect) -> Call:
    given = block.input
    has_arguments = given is None or given == "" or isinstance(given, dict)
    tool = ToolCallBlock(block.id, block.name)
    return Call(index, tool, dialect.is_answerable(block), has_arguments)


def _result(index: int, block: ToolResultBlock, dialect: Dialect, large: int) -> Result:
    """Return a tool result.

    ``large`` is the size of a message whose texts are not read, 0 for other messages.
    """
    if large:
        return Result(index, block.id, block.name, large, None, is_interrupted=False)
    said = tuple(
        one.text if isinstance(one, TextBlock) else repr(one.value) for one in block.output
    )
    size = dialect.output_bytes(block)
    return Result(index, block.id, block.name, size, hash(said), block.is_interrupted)


class _Examples(Struct):
    """The number of messages with a kind of finding, and the ids of the first few."""

    count: int = 0
    ids: list[str] = field(default_factory=list)
    detail: str = ""

    def add(self, id: str, detail: str = "") -> None:
        self.count += 1
        self.detail = self.detail or detail
        if len(self.ids) < EXAMPLES and id not in self.ids:
            self.ids.append(id)


class _Spot(NamedTuple):
    """The index of a message, with the data that its repair needs."""

    place: int
    id: str
    digest: int
    """A hash of the stored text."""
    alone: int = 0
    """The number of tool results, if the message has nothing else; otherwise 0."""
    is_read: bool = True
    """False if memctl does not understand a part of the message."""
    leading: tuple[_Spot, ...] = ()
    """The reasoning messages just before, which model APIs refuse without this message."""


class _MadeCall(NamedTuple):
    """A tool call and its message.

    ``step`` is the number of messages up to the call that a model has seen, without tool results.
    """

    call: Call
    spot: _Spot
    step: int
    moment: datetime | None


class _GivenResult(NamedTuple):
    """A tool result and its message.

    ``is_apart`` is True if another message is between the call and the result.
    """

    result: Result
    spot: _Spot
    is_apart: bool


class _Exchange(Struct):
    """The tool calls with one id up to a result, and the results up to the next such call."""

    calls: list[_MadeCall]
    results: list[_GivenResult] = field(default_factory=list)
    came_early: bool = False
    """True if a result is before the call."""
    hidden: bool = False
    """True if a message with the mark ``compressed`` has a result of the call."""
    revealed: _Spot | None = None
    """The message with the mark ``compressed``, if its result would answer without the mark."""


class MessageRepair(Struct):
    """The repair of one message.

    ``id`` and ``digest`` are the id of the message and a hash of its text when it was examined.
    ``goes`` has the codes of the findings for which the message is deleted.  An empty code means
    that the message is deleted together with the message after it.
    """

    id: str
    digest: int
    goes: list[str] = field(default_factory=list)
    removed: dict[int, str] = field(default_factory=dict)
    """The indexes of the blocks to remove, each with the code of its finding."""
    answered: list[ToolCallBlock] = field(default_factory=list)
    """The tool calls that get a result."""
    compressed: tuple[str, bool] | None = None
    """The code of a finding, and True to set the mark ``compressed``, False to remove it.

    None if the mark stays as it is.
    """


ANSWERED = "tool-call-without-result"
WAITING = "waiting-call"
UNMARKED = "compressed-without-summary"


class MemoryRepairs(Struct):
    """The repairs of one memory: of its messages, by their index in the memory."""

    messages: dict[int, MessageRepair] = field(default_factory=dict)
    unmarked: bool = False
    """True if the mark ``compressed`` is removed from all messages."""

    @property
    def needed(self) -> bool:
        """Return whether there is anything to repair in the memory."""
        return bool(self.messages or self.unmarked)

    def codes(self) -> Counter[str]:
        """Return the number of repairs for each code of a finding."""
        found = Counter({UNMARKED: 1} if self.unmarked else {})
        for one in self.messages.values():
            found.update(code for code in one.goes if code)
            if not one.goes:
                found.update(one.removed.values())
            if one.answered:
                found[ANSWERED] += len(one.answered)
            if one.compressed:
                found[one.compressed[0]] += 1
        return found


_SET_ASIDE = (Unread.REWOUND, Unread.COMPACTED, Unread.DELETED)


class MemoryExaminer:
    """The examination of one memory, page by page: its findings, and the plan of their repairs."""

    def __init__(
        self,
        memory: Memory,
        limits: Limits,
        *,
        repeats: bool,
        treated: frozenset[str] = frozenset(),
        dialect: Dialect = AGENTSCOPE1,
    ) -> None:
        """``repeats`` is True if the store can hold several messages with one id.

        Repairs are planned for the findings whose codes are in ``treated``.
        """
        self.key = memory.key
        self._memory = memory
        self._dialect = dialect
        self._limits = limits
        self._seen: set[int] | None = set() if repeats else None
        self._values: dict[int, int | None] = {}
        """The ``ExaminedMessage.value`` of messages with unique ids, by hashes of the ids."""
        self._found: dict[str, _Examples] = {}
        """The findings so far, by code."""
        self._step = 0
        """The number of messages, except results, that the model would have seen so far."""
        self._waiting = WaitingCalls(dialect, memory)
        self._open: dict[str, _Exchange] = {}
        """The tool calls without a result, by id."""
        self._answered: dict[str, _Exchange] = {}
        """The latest tool calls with a result, by id."""
        self._settled: set[int] = set()
        """Hashes of the ids of older tool calls with a result."""
        self._early: dict[str, _Spot] = {}
        """The tool results without a call so far, by the id of the call."""
        self._compressed: set[int] = set()
        """Hashes of the ids of tool calls that are marked ``compressed`` and have no result yet."""
        self._leading: list[_Spot] = []
        """The latest messages, if these are reasoning that belongs to the next message."""
        self._hints: list[_Spot] = []
        """The hints at the end of the memory, which an agent may still use."""
        self._lone: dict[int, list[_Spot]] = {}
        """The tool results without a call, by index of a message that has only results."""
        self._treated = treated
        self._bare: MemoryExaminer | None = None
        """The examination without the marks ``compressed``, if the repair may remove the marks."""
        if UNMARKED in treated and memory.summary == "":
            without = treated - {UNMARKED}
            self._bare = MemoryExaminer(
                memory, limits, repeats=repeats, treated=without, dialect=dialect
            )
        self.repairs = MemoryRepairs()
        """The planned repairs of the memory, complete after ``faults``."""
        self.messages = 0
        """The number of messages that were examined so far."""
        self._has_summary = False
        """True if a message has the mark ``summary``."""

    def take(self, page: Page, examined: Iterable[ExaminedMessage | None] = repeat(None)) -> None:
        """Examine the messages of the next page of the memory.

        ``examined`` are the results of ``examine`` for the messages, if the caller has them.
        """
        for entry, place, found in zip(page.messages, page.places, examined, strict=False):
            self._take(entry, found, page.unread.get(place, ""))
            self.messages += 1
        if self._bare is not None:
            bare = [one._replace(marks=without_mark(one.marks)) for one in page.messages]
            self._bare.take(replace(page, messages=bare))

    def _take(self, entry: StoredMessage, found: ExaminedMessage | None, unread: str) -> None:
        if self._dialect.is_encrypted(entry.message):
            self._note("encrypted-message", _Spot(self.messages, entry.id, hash(entry.message)))
            self._leading.clear()  # the reasoning may belong to this item
            return
        if found is None:
            found = examine(entry.message, self._dialect)
        alone = found.only_tools and found.is_read and not _has_calls(found)
        spot = _Spot(
            *(self.messages, entry.id, hash(entry.message)),
            alone=len(found.sides) if alone else 0,
            is_read=found.is_read,
            leading=tuple(self._leading),
        )
        if self._seen is not None:
            digest = id_digest(self.key, entry)
            if digest in self._seen and not self._dialect.makes_ids:
                self._note("repeated-id", spot)
            self._seen.add(digest)
        if found.fault:
            self._note("invalid-message", spot, found.fault)
            return
        if found.id is None:
            if not self._dialect.makes_ids:
                self._note("message-without-id", spot)
        elif found.id != entry.id:
            self._note("id-mismatch", spot, f"{entry.id!r} holds the message {found.id!r}")
        if HINT in entry.marks:
            if self._may_be_at_work(found.moment):
                self._hints.append(spot)
            else:
                self._note("leftover-hint", spot)
                self._drop("leftover-hint", spot)
            return
        if COMPRESSED in entry.marks:
            self._note(COMPRESSED, spot)
            self._hide(found, spot)
            return
        if self._dialect.leaves_out and unread in _SET_ASIDE:
            return  # nothing that these messages say reaches a model
        self._has_summary = self._has_summary or SUMMARY in entry.marks
        self._settle_hints()
        if self._is_twin(found, spot):
            return
        self._lead(found, spot)
        if not (found.is_blank or found.only_tools) and role_of(found.role) not in ROLES:
            self._note("unknown-role", spot, f"the first has the role {found.role!r}")
        if found.is_blank and found.role == "assistant" and not self._dialect.skips_empty:
            if found.is_read:
                self._note("empty-assistant-message", spot)
                self._drop("empty-assistant-message", spot)
            else:
                self._note("unread-message", spot)
        self._tools(found, spot)

    def _is_twin(self, found: ExaminedMessage, spot: _Spot) -> bool:
        """Note a finding if an earlier message has the same id.

        Return True if an earlier message also has the same content.
        """
        if not self._dialect.holds_items or found.id is None:
            return False
        digest = hash(found.id)
        if digest not in self._values:
            self._values[digest] = found.value
            return False
        self._note("repeated-item", spot)
        if found.value is None or found.value != self._values[digest]:
            return False
        self._drop("repeated-item", spot)
        self._leading.clear()
        return True

    def _lead(self, found: ExaminedMessage, spot: _Spot) -> None:
        """Note a finding for earlier reasoning that does not belong to this message."""
        if found.leads:
            self._leading.append(spot)
            return
        if found.role != "assistant":
            self._strand()
        self._leading.clear()

    def _strand(self) -> None:
        for spot in self._leading:
            self._note("lone-reasoning", spot)
            self._drop("lone-reasoning", spot._replace(leading=()))

    # Calls and results

    def _tools(self, found: ExaminedMessage, spot: _Spot) -> None:
        self._waiting.add(found.blocks)
        # An item of OpenAI's API is a part of a step: its calls are items of their own.
        stepped = self._dialect.holds_items and found.only_tools
        for side in found.sides:
            if isinstance(side, Result):
                self._take_result(side, spot)
                continue
            if not stepped:
                self._step += 1
                stepped = True
            self._take_call(side, spot, found.moment)
        if not (stepped or found.sides):
            self._step += 1

    def _take_call(self, call: Call, spot: _Spot, moment: datetime | None) -> None:
        id, name = call.tool.id, call.tool.name
        if not call.has_arguments:
            self._note("invalid-arguments", spot)
        if not (id and name):
            self._note("incomplete-tool-call", spot)
        if not id or self._has_no_ids(id, name):
            return
        made = _MadeCall(call, spot, self._step, moment)
        if (exchange := self._open.get(id)) is not None:
            exchange.calls.append(made)
            return
        if (exchange := self._answered.pop(id, None)) is not None:
            self._settle(exchange)
            self._note("reused-call-id", spot)
        elif hash(id) in self._settled:
            self._note("reused-call-id", spot)
        early = self._early.pop(id, None)
        if early is not None:
            self._note("tool-result-before-call", early)
        if len(self._open) >= _WAITING:
            self._settle(self._open.pop(next(iter(self._open))))
        self._open[id] = _Exchange([made], came_early=early is not None)

    def _take_result(self, result: Result, spot: _Spot) -> None:
        id = result.id
        if result.size > self._limits.max_result:
            self._note(OVERSIZED, spot, f"the first has {result.size:,} bytes")
        if not id:
            self._note("incomplete-tool-call", spot)
            return
        if self._has_no_ids(id, result.name):
            return
        exchange = self._open.pop(id, None)
        if exchange is not None:
            self._answered[id] = exchange
            if len(self._answered) > _WAITING:
                oldest = next(iter(self._answered))
                self._settle(self._answered.pop(oldest))
                self._settled.add(hash(oldest))
        else:
            exchange = self._answered.get(id)
        if exchange is not None:
            apart = not self._follows(exchange)
            if apart:
                self._note("tool-result-apart", spot)
            exchange.results.append(_GivenResult(result, spot, apart))
        elif hash(id) in self._settled:
            if not self._dialect.last_result_counts:
                self._note("repeated-tool-result", spot)
        elif hash(id) in self._compressed or id in self._early or len(self._early) >= _WAITING:
            self._without_call(id, spot)
        else:
            self._early[id] = spot

    def _has_no_ids(self, id: str, name: str) -> bool:
        """Return whether the id of a tool call or result is its tool name."""
        return self._dialect.makes_ids and id == name

    def _hide(self, found: ExaminedMessage, spot: _Spot) -> None:
        """Note the tool calls and results of a message marked ``compressed``."""
        for side in found.sides:
            if isinstance(side, Call):
                if side.tool.id:
                    self._compressed.add(hash(side.tool.id))
                continue
            exchange = self._open.get(side.id)
            if exchange is None:
                self._compressed.discard(hash(side.id))
                continue
            exchange.hidden = True
            fits = side.size <= self._limits.max_result and self._follows(exchange)
            if fits and spot.alone == 1:
                exchange.revealed = spot

    def _follows(self, exchange: _Exchange) -> bool:
        return not self._dialect.results_follow or exchange.calls[-1].step == self._step

    def _settle(self, exchange: _Exchange, *, at_end: bool = False) -> None:
        """Note findings and plan repairs of the tool calls with one id and their results.

        ``at_end`` is True after the last message, when an agent may still be at work on a call.
        """
        *others, call = exchange.calls
        for other in others:
            self._note("repeated-tool-call", other.spot)
        expected = False
        if not (exchange.results or exchange.came_early):
            is_last = at_end and call.step == self._step
            waits = call.call.tool.id in self._waiting.names
            if waits and (is_last or not self._dialect.results_follow):
                since = call.moment and f"the first since {call.moment:%Y-%m-%d %H:%M}"
                self._note(WAITING, call.spot, since or "")
                expected = True
            elif is_last and self._may_be_at_work(call.moment):
                self._note("tool-call-pending", call.spot)
                expected = True
            else:
                self._unanswered(call, exchange)
        if expected or (not others and len(exchange.results) < 2):
            return
        kept = _genuine(exchange.results)
        if exchange.results and not self._dialect.last_result_counts:
            extra = [one for one in exchange.results if one is not kept]
            for one in exchange.results[1:] if kept is None else extra:
                self._note("repeated-tool-result", one.spot)
            if kept is not None:
                for one in extra:
                    self._remove("repeated-tool-result", one.spot, one.result.block)
        if kept is not None or not exchange.results:
            for other in others:
                self._remove("repeated-tool-call", other.spot, other.call.block)

    def _unanswered(self, call: _MadeCall, exchange: _Exchange) -> None:
        code = ANSWERED
        if not call.call.tool.name:
            return  # the call is incomplete: no result would repair it
        self._note(code, call.spot)
        if code not in self._treated:
            return
        if exchange.revealed is not None:
            self._repair(exchange.revealed).compressed = code, False
        elif not exchange.hidden and call.call.is_answerable:
            self._repair(call.spot).answered.append(call.call.tool)

    def _without_call(self, id: str, spot: _Spot) -> None:
        code = "tool-result-without-call"
        self._note(code, spot)
        if code not in self._treated or not spot.alone:
            return
        lone = self._lone.setdefault(spot.place, [])
        lone.append(spot)
        hidden = hash(id) in self._compressed
        if hidden and spot.alone == 1:
            self._repair(spot).compressed = code, True
        elif not hidden and len(lone) == spot.alone:
            self._drop(code, spot, number=spot.alone)

    # Findings and repairs

    def _settle_hints(self) -> None:
        """Note a finding for each hint of an earlier step."""
        for spot in self._hints:
            self._note("leftover-hint", spot)
            self._drop("leftover-hint", spot)
        self._hints.clear()

    def _note(self, code: str, spot: _Spot, detail: str = "") -> None:
        self._found.setdefault(code, _Examples()).add(spot.id, detail)

    def _repair(self, spot: _Spot) -> MessageRepair:
        found = self.repairs.messages.get(spot.place)
        if found is None:
            found = self.repairs.messages[spot.place] = MessageRepair(spot.id, spot.digest)
        return found

    def _drop(self, code: str, spot: _Spot, *, number: int = 1) -> None:
        """Plan to delete a message, with reasoning that model APIs refuse without the message.

        Do nothing if findings with this ``code`` are not to be repaired.  ``number`` is the number
        of findings in the message.
        """
        if code in self._treated and (spot.is_read or code == "leftover-hint"):
            self._repair(spot).goes += [code] * number
            for leading in spot.leading:
                self._repair(leading).goes.append("")

    def _remove(self, code: str, spot: _Spot, block: int) -> None:
        """Plan to remove a block, or the message if the dialect has no blocks."""
        if self._dialect.holds_items:
            self._drop(code, spot)
        elif code in self._treated:
            self._repair(spot).removed[block] = code

    def faults(self) -> Iterator[Finding]:
        """Yield the findings of the memory, after its last page was examined."""
        self._strand()
        for exchange in self._open.values():
            self._settle(exchange, at_end=True)
        for exchange in self._answered.values():
            self._settle(exchange)
        for id, spot in self._early.items():
            self._without_call(id, spot)
        compressed = self._found.pop(COMPRESSED, None)
        is_log = self._dialect.has_logs and not self._memory.extra
        if self._has_summary or is_log:  # without a record, a log has no context
            compressed = None
        if compressed and self._memory.summary is None:
            self._found[_SUMMARY_ELSEWHERE] = compressed
        elif compressed and not self._memory.summary:
            self._found[UNMARKED] = compressed
            self._unmark()
            if not self.repairs.unmarked:
                self._keep_unmarked()
        if self._dialect.waits(self._memory) and WAITING not in self._found:
            yield Finding(WAITING, self.key)
        for code, some in self._found.items():
            yield Finding(code, self.key, some.count, tuple(some.ids), some.detail)

    def _unmark(self) -> None:
        """Plan to remove all marks ``compressed``, unless this adds findings."""
        if self._bare is None:
            return
        shown = Counter({one.code: one.count for one in self._bare.faults()})
        counts = Counter({code: some.count for code, some in self._found.items()})
        if is_better(counts, shown):
            self.repairs = self._bare.repairs
            self.repairs.unmarked = True

    def _keep_unmarked(self) -> None:
        for place, repair in list(self.repairs.messages.items()):
            if repair.compressed is not None and repair.compressed[1]:
                repair.compressed = None
                if not (repair.goes or repair.removed or repair.answered):
                    del self.repairs.messages[place]

    def _may_be_at_work(self, moment: datetime | None) -> bool:
        return moment is not None and moment > self._limits.now - AT_WORK


def is_better(before: Counter[str], after: Counter[str]) -> bool:
    """Return whether no code of a finding has a larger number in ``after`` than in ``before``."""
    return all(
        count <= before[code] or (code == _SUMMARY_ELSEWHERE and before[code])
        for code, count in after.items()
    )


def without_mark(marks: tuple[str, ...]) -> tuple[str, ...]:
    """Return the marks without ``compressed``."""
    return tuple(mark for mark in marks if mark != COMPRESSED)


def _has_calls(found: ExaminedMessage) -> bool:
    return any(isinstance(side, Call) for side in found.sides)


def _genuine(results: list[_GivenResult]) -> _GivenResult | None:
    """Return the tool result to keep; None if the results differ.

    Results that only say that the call was interrupted count only if there are no others.
    """
    said = [one for one in results if not one.result.is_interrupted] or results
    if not said or any(one.result.said is None for one in said):
        return None
    if len({one.result.said for one in said}) > 1 or (said[0].is_apart and not results[0].is_apart):
        return None
    return said[0]


class FactExaminer:
    """The examination of the facts of one memory, page by page."""

    def __init__(self, memory: Memory, embedding: Embedding | None) -> None:
        """``embedding`` says which vectors the store needs; None if facts need no vectors."""
        self.key = memory.key
        self.messages = 0
        self._embedding = embedding
        self._texts: set[int] = set()
        self._found: dict[str, _Examples] = {}

    def take(self, page: Page, views: Iterable[MessageView | None] = repeat(None)) -> None:
        """Examine the facts of the next page of the memory.

        ``views`` are the outlines of the facts, if the caller has parsed the facts.  A fact that
        could not be parsed has None.
        """
        self.messages += len(page.messages)
        for fact, view in zip(page.messages, views, strict=False):
            for code, detail in self._faults(fact, view):
                self._found.setdefault(code, _Examples()).add(fact.id, detail)

    def _faults(self, fact: StoredMessage, view: MessageView | None) -> Iterator[tuple[str, str]]:
        """Yield the code and detail of each finding of a fact."""
        try:
            view = view or FACT.outline(fact.message)
            vector = vector_of(fact.message)
        except ValueError as error:
            yield "fact-without-text", str(error)
            return
        if view.fault:
            yield "fact-without-text", view.fault
        else:
            text = "".join(view.texts()).encode("utf-8", "surrogatepass")
            digest = int.from_bytes(blake2b(text, digest_size=8).digest())
            if digest in self._texts:
                yield "duplicate-fact", ""
            self._texts.add(digest)
        if view.id != fact.id:
            yield "id-mismatch", f"{fact.id!r} holds the fact {view.id!r}"
        if self._embedding is None:
            return
        if vector is None:
            yield "fact-without-vector", ""
        elif (found := dimensions(vector)) != self._embedding.dimensions:
            yield "vector-dimensions", f"the first has {found}, not {self._embedding.dimensions}"

    def faults(self) -> Iterator[Finding]:
        """Yield the findings of the memory, after its last page was examined."""
        for code, some in self._found.items():
            yield Finding(code, self.key, some.count, tuple(some.ids), some.detail)


class Diagnosis(Struct):
    """The result of an examination of a store: its findings, in ``faults``."""

    kind: str
    """The kind of the store."""
    noun: str = "message"
    """The noun for a message of the store: "message" or "fact"."""
    memories: int = 0
    messages: int = 0
    faults: list[Finding] = field(default_factory=list)

    @property
    def healthy(self) -> bool:
        """Return whether there are no findings besides notices."""
        return all(KINDS[fault.code].severity is Severity.NOTICE for fault in self.faults)

    @property
    def seen(self) -> int:
        """The number of examined memories; if there are none, of findings about existing data."""
        return self.memories or sum(
            fault.key is not None or fault.code == DAMAGED_FILE for fault in self.faults
        )

    def count(self, severity: Severity) -> int:
        """Return the number of messages, or of other data, in findings with this severity."""
        return sum(fault.count for fault in self.faults if KINDS[fault.code].severity is severity)


def unhealthy(label: str, found: Diagnosis) -> Unhealthy:
    """Return the error of a store with errors or warnings; ``label`` is its name."""
    facts = [
        count(number, severity.value)
        for severity in (Severity.ERROR, Severity.WARNING)
        if (number := found.count(severity))
    ]
    error = Unhealthy(
        f"{label} has {' and '.join(facts)}", "see the report for each finding and its fix"
    )
    if not found.count(Severity.ERROR):
        error.level = "warning"
    return error


async def check(
    store: Store,
    where: Selection,
    limits: Limits,
    progress: Progress | None = None,
    *,
    quick: bool = False,
) -> Diagnosis:
    """Examine the selected memories; if all are selected, also examine data outside memories.

    ``where`` selects whole memories.  ``quick`` leaves out the check of the file below its rows.

    Raises:
        MemctlError: as ``Store.read``.
    """
    found = Diagnosis(store.kind, store.dialect.noun)
    store.skip_damage()
    try:
        await store.check_integrity(where, complete=where.leads and not quick)
    except DamagedFile as error:
        detail = "; ".join(error.found[:EXAMPLES])
        found.faults.append(Finding(DAMAGED_FILE, None, len(error.found), (), detail))
    try:
        await _examine(store, where, limits, found, progress)
    except BadData:
        if not found.faults or found.faults[0].code != DAMAGED_FILE:
            raise  # else the file cannot be read any further
    found.faults = [fitting(fault, store) for fault in found.faults]
    found.faults.sort(key=lambda fault: (ORDER[fault.code], fault.key or ("", "", "")))
    return found


async def _examine(
    store: Store, where: Selection, limits: Limits, found: Diagnosis, progress: Progress | None
) -> None:
    async with aclosing(examinations(store, where, limits, progress=progress)) as examined:
        async for one in examined:
            found.memories += 1
            found.messages += one.messages
            found.faults += one.faults()
    async with aclosing(store.maintenance().check(where)) as faults:
        found.faults += [fault async for fault in faults]


def fitting(fault: Finding, store: Store) -> Finding:
    """Return a finding with a remedy that fits the store, if that of its code does not."""
    remedy, repairable = "", True
    if fault.code == _SUMMARY_ELSEWHERE and store.features.summaries:
        remedy = KEEP_STATES
    kind = KINDS[fault.code]
    by_store = kind.repair in (RepairMethod.STORE, RepairMethod.QUARANTINE)
    if by_store and fault.code not in store.features.repairs:
        remedy, repairable = kind.remedy.partition("; --repair")[0], False
    if kind.repair is not RepairMethod.NONE:
        try:
            store.refuse_edits()
        except UsageError as error:  # no repair is possible
            remedy, repairable = error.hint or "", False
    if not remedy and repairable:
        return fault
    return replace(fault, remedy=remedy, repairable=repairable)


def examinations(
    store: Store,
    where: Selection,
    limits: Limits,
    *,
    treated: frozenset[str] = frozenset(),
    progress: Progress | None = None,
) -> AsyncGenerator[MemoryExaminer | FactExaminer]:
    """Yield the completed examination of each selected memory.

    Repairs are planned for the codes of findings in ``treated``.

    Raises:
        MemctlError: as ``Store.read``.
    """
    store.skip_damage()
    return gather(store, where, partial(examiner, store, limits=limits, treated=treated), progress)


def examiner(
    store: Store, memory: Memory, *, limits: Limits, treated: frozenset[str] = frozenset()
) -> MemoryExaminer | FactExaminer:
    """Return a new examination of a memory of the store."""
    if store.dialect.facts:
        return FactExaminer(memory, store.embedding)
    return MemoryExaminer(
        *(memory, limits),
        repeats=store.features.duplicate_ids,
        treated=treated,
        dialect=store.dialect,
    )
