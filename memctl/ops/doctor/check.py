"""Examine a store: its messages in one pass, then what only the store itself can see.

Messages are looked at as the model will get them.  With compression AgentScope sends those that are
not marked ``compressed`` (``agent/_react_agent.py``), and without it no message is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import blake2b

from memctl.dialects.agentscope1 import AGENTSCOPE1
from memctl.dialects.fact import FACT, dimensions, vector_of
from memctl.dialects.view import (
    Dialect,
    NotAnObject,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
)
from memctl.model import Embedding, Finding, Memory, Page, StoredMessage
from memctl.ops.compare import id_digest
from memctl.ops.doctor.findings import KINDS, Severity
from memctl.ops.marks import COMPRESSED, HINT, SUMMARY
from memctl.ops.report import Progress, SilentProgress
from memctl.selection import Selection
from memctl.store import Store

MAX_RESULT = 100_000
"""Bytes of a tool result that is oversized, unless set: some 25,000 tokens."""

EXAMPLES = 3

AT_WORK = timedelta(hours=1)
"""The time after its last message in which an agent may still be at work on a memory."""

_GOING = frozenset({"empty-assistant-message", "leftover-hint"})
"""Findings that are repaired by deleting the messages."""

_WAITING = 10_000
"""The number of calls, and of results, that may wait for each other."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of the checks, and the time, as messages carry it: local, without a zone."""

    max_result: int = MAX_RESULT
    now: datetime = field(default_factory=datetime.now)


LARGE_BYTES = 1 << 20
"""From here on the long texts of a message are not looked into: it may be of any size."""


@dataclass(slots=True)
class ExaminedMessage:
    """The properties of a message that the examination needs.

    ``fault`` is the reason why AgentScope cannot load or send it.  ``results`` has a pair of id and
    bytes for each tool result; ``only_tools`` is set where nothing but thinking stands next to
    calls and results.
    """

    fault: str = ""
    id: str | None = None
    moment: datetime | None = None
    calls: list[ToolCallBlock] = field(default_factory=list)
    results: list[tuple[str, int]] = field(default_factory=list)
    is_empty: bool = False
    only_tools: bool = True


def examine(text: bytes, dialect: Dialect) -> ExaminedMessage:
    """Return what the text of a message shows."""
    try:
        view = dialect.outline(text)
    except NotAnObject:
        return ExaminedMessage(fault="no object")
    except ValueError as error:
        return ExaminedMessage(fault=f"not JSON: {error}")
    fault = view.fault
    if fault:
        return ExaminedMessage(fault=fault)
    large = len(text) >= LARGE_BYTES
    found = ExaminedMessage(id=view.id, moment=view.moment)
    blank = True
    for block in view.blocks:
        if isinstance(block, TextBlock):
            # The long texts of a large message come empty, whatever they say.
            if large or block.text.strip():
                blank = found.only_tools = False
        elif isinstance(block, ToolResultBlock):
            size = len(text) if large else dialect.output_bytes(block)
            found.results.append((block.id, size))
            blank = False
        elif isinstance(block, ToolCallBlock):
            found.calls.append(ToolCallBlock(block.id, block.name))  # without its input
            blank = False
        elif isinstance(block, ThinkingBlock):
            blank = False
        else:
            blank = found.only_tools = False
    found.is_empty = blank and view.role == "assistant"
    return found


@dataclass(slots=True)
class _Examples:
    """The number of messages of a kind, and the first ones."""

    count: int = 0
    ids: list[str] = field(default_factory=list)
    detail: str = ""

    def add(self, id: str, detail: str = "") -> None:
        self.count += 1
        self.detail = self.detail or detail
        if len(self.ids) < EXAMPLES and id not in self.ids:
            self.ids.append(id)


@dataclass(slots=True)
class _OpenCall:
    """A tool call that waits for its result: its message, and how many others came up to it."""

    id: str
    tool: ToolCallBlock
    place: int
    moment: datetime | None


@dataclass(slots=True)
class _EarlyResult:
    """A tool result that waits for its call: its message, how many results that has, and if more.

    ``alone`` tells that the message is nothing but results.
    """

    id: str
    together: int
    alone: bool


@dataclass(slots=True)
class MessageRepairs:
    """The repairs of the messages of a memory.

    ``gone`` are to go, ``lone`` too, if that many of their results have no call; ``answers`` are
    the calls of a message that are to be answered.  Of ``repeated`` ids nobody knows which message
    is meant.
    """

    gone: set[str] = field(default_factory=set)
    lone: dict[str, int] = field(default_factory=dict)
    answers: dict[str, list[ToolCallBlock]] = field(default_factory=dict)
    repeated: set[str] = field(default_factory=set)
    unmarked: bool = False

    @property
    def needed(self) -> bool:
        """Return whether there is anything to do."""
        return bool(self.gone or self.answers or self.unmarked)


class MemoryExaminer:
    """One memory, whose pages come by."""

    def __init__(
        self,
        memory: Memory,
        limits: Limits,
        *,
        repeats: bool,
        treated: frozenset[str] = frozenset(),
        dialect: Dialect = AGENTSCOPE1,
    ) -> None:
        """With ``repeats`` an id may occur twice; ``treated`` are the codes to be repaired."""
        self._memory = memory
        self._dialect = dialect
        self._limits = limits
        self._seen: set[int] | None = set() if repeats else None
        self._found: dict[str, _Examples] = {}
        self._place = 0
        """The number of messages other than results that the model has seen."""
        self._open: dict[str, _OpenCall] = {}
        self._early: dict[str, _EarlyResult] = {}
        """The results whose call has not come."""
        self._hints: list[str] = []
        """The hints at the end that an agent may be at work with."""
        self._treated = treated
        self.treatment = MessageRepairs()
        """The repairs of the memory, when ``faults`` was asked."""
        self.messages = 0
        self._summed_up = False
        """True if a message is a summary."""

    def take(self, page: Page) -> None:
        """Examine the next messages."""
        for entry in page.messages:
            self._take(entry)
        self.messages += len(page.messages)

    def _take(self, entry: StoredMessage) -> None:
        if self._dialect.is_encrypted(entry.message):
            self._note("encrypted-message", entry.id)
            return
        found = examine(entry.message, self._dialect)
        if self._seen is not None and not self._dialect.makes_ids:
            digest = id_digest(self._memory.key, entry)
            if digest in self._seen:
                self._note("repeated-id", entry.id)
                self.treatment.repeated.add(entry.id)
            self._seen.add(digest)
        if found.fault:
            self._note("invalid-message", entry.id, found.fault)
            return
        if found.id is None:
            if not self._dialect.makes_ids:
                self._note("message-without-id", entry.id)
        elif found.id != entry.id:
            self._note("id-mismatch", entry.id, f"{entry.id!r} holds the message {found.id!r}")
        if COMPRESSED in entry.marks:
            self._note(COMPRESSED, entry.id)
            return
        self._summed_up = self._summed_up or SUMMARY in entry.marks
        if HINT in entry.marks:
            if self._may_be_at_work(found.moment):
                self._hints.append(entry.id)
            else:
                self._note("leftover-hint", entry.id)
            return
        self._settle_hints()
        if found.is_empty:
            self._note("empty-assistant-message", entry.id)
        self._tools(entry.id, found)

    def _tools(self, id: str, found: ExaminedMessage) -> None:
        """Pair results with the calls that wait for them.

        The results of a message come before its calls, for the formatters send them so, unless the
        dialect has a call and its result in one message.
        """
        if not (found.calls or found.results):  # as of most messages
            self._place += 1
            return
        together = len(found.results)
        own = {tool.id for tool in found.calls} if self._dialect.answers_within else set()
        answered = own.intersection(name for name, _ in found.results)
        alone = found.only_tools and not found.calls
        for name, size in found.results:
            if size > self._limits.max_result:
                self._note("oversized-tool-result", id, f"the first has {size:,} bytes")
            if name in answered:
                continue
            call = self._open.pop(name, None)
            if call is None:
                self._wait(name, _EarlyResult(id, together, alone))
            elif call.place != self._place:
                self._note("tool-result-apart", id)
        self._place += bool(found.calls or not found.results)
        for tool in found.calls:
            if tool.id in answered:
                continue
            early = self._early.pop(tool.id, None)
            if early is not None:
                self._note("tool-result-before-call", early.id)
                continue
            if tool.id in self._open:
                self._unanswered(self._open.pop(tool.id))
            elif len(self._open) >= _WAITING:
                self._unanswered(self._open.pop(next(iter(self._open))))
            self._open[tool.id] = _OpenCall(id, tool, self._place, found.moment)

    def _wait(self, name: str, result: _EarlyResult) -> None:
        if name in self._early or len(self._early) >= _WAITING:
            self._lone(result)
        else:
            self._early[name] = result

    def _unanswered(self, call: _OpenCall) -> None:
        self._note("tool-call-without-result", call.id)
        if "tool-call-without-result" in self._treated:
            self.treatment.answers.setdefault(call.id, []).append(call.tool)

    def _lone(self, result: _EarlyResult) -> None:
        code = "tool-result-without-call"
        self._note(code, result.id)
        if code in self._treated and result.alone:
            lone = self.treatment.lone
            lone[result.id] = lone.get(result.id, 0) + 1
            if lone[result.id] == result.together:
                self.treatment.gone.add(result.id)

    def _settle_hints(self) -> None:
        """Note the hints: messages after them show that the step that they were for is over."""
        for id in self._hints:
            self._note("leftover-hint", id)
        self._hints.clear()

    def _note(self, code: str, id: str, detail: str = "") -> None:
        self._found.setdefault(code, _Examples()).add(id, detail)
        if code in _GOING and code in self._treated:
            self.treatment.gone.add(id)

    def faults(self) -> Iterator[Finding]:
        """Yield the findings, after the last page was taken."""
        for call in self._open.values():
            if call.place == self._place and self._may_be_at_work(call.moment):
                self._note("tool-call-pending", call.id)
            else:
                self._unanswered(call)
        for result in self._early.values():
            self._lone(result)
        compressed = self._found.pop(COMPRESSED, None)
        is_log = self._dialect.has_logs and not self._memory.extra
        if self._summed_up or is_log:  # a log whose record is gone has no context to be out of
            compressed = None
        if compressed and self._memory.summary is None:
            self._found["summary-elsewhere"] = compressed
        elif compressed and not self._memory.summary:
            self._found["compressed-without-summary"] = compressed
            self.treatment.unmarked = "compressed-without-summary" in self._treated
        for code, some in self._found.items():
            yield Finding(code, self._memory.key, some.count, tuple(some.ids), some.detail)

    def _may_be_at_work(self, moment: datetime | None) -> bool:
        return moment is not None and moment > self._limits.now - AT_WORK


class FactExaminer:
    """The examination of one scope of facts, as its pages pass."""

    def __init__(self, memory: Memory, embedding: Embedding | None) -> None:
        """``embedding`` is the kind of vectors that the facts should have."""
        self._key = memory.key
        self._embedding = embedding
        self._texts: set[int] = set()
        self._found: dict[str, _Examples] = {}

    def take(self, page: Page) -> None:
        """Examine the next facts."""
        for fact in page.messages:
            for code, detail in self._faults(fact):
                self._found.setdefault(code, _Examples()).add(fact.id, detail)

    def _faults(self, fact: StoredMessage) -> Iterator[tuple[str, str]]:
        """Yield the code of each fault of a fact, with a detail."""
        try:
            view = FACT.outline(fact.message)
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
        """Yield the findings, after the last page was taken."""
        for code, some in self._found.items():
            yield Finding(code, self._key, some.count, tuple(some.ids), some.detail)


@dataclass(slots=True)
class Diagnosis:
    """The result of an examination."""

    kind: str
    """The kind of the store."""
    noun: str = "message"
    """The word for a message of the store."""
    memories: int = 0
    messages: int = 0
    faults: list[Finding] = field(default_factory=list)

    @property
    def healthy(self) -> bool:
        """Return whether nothing is worse than a notice."""
        return all(KINDS[fault.code].severity is Severity.NOTICE for fault in self.faults)

    def count(self, severity: Severity) -> int:
        """Return the number of findings with a severity."""
        return sum(KINDS[fault.code].severity is severity for fault in self.faults)


async def check(
    store: Store, where: Selection, limits: Limits, progress: Progress | None = None
) -> Diagnosis:
    """Examine the selected memories, whole ones, and what belongs to no memory where all are.

    Raises:
        MemctlError: as ``Store.read``.
    """
    progress = progress or SilentProgress()
    found = Diagnosis(store.kind, store.dialect.noun)
    store.skip_damage()
    repeats = store.features.duplicate_ids
    memory: MemoryExaminer | FactExaminer | None = None
    async with aclosing(store.read(where)) as pages:
        async for page in pages:
            if page.offset == 0 or memory is None:
                if store.dialect.facts:
                    memory = FactExaminer(page.memory, store.embedding)
                else:
                    memory = MemoryExaminer(
                        page.memory, limits, repeats=repeats, dialect=store.dialect
                    )
                found.memories += 1
            memory.take(page)
            found.messages += len(page.messages)
            progress.advance(messages=len(page.messages))
            if page.last:
                found.faults += memory.faults()
                memory = None
                progress.advance(memories=1)
            del page  # not kept while the next one is read: it may be large
    async with aclosing(store.maintenance().check(where)) as faults:
        found.faults += [fault async for fault in faults]
    order = {code: place for place, code in enumerate(KINDS)}
    found.faults.sort(key=lambda fault: (order[fault.code], fault.key or ("", "", "")))
    return found
