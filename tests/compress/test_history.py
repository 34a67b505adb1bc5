"""Tests of the choice of messages to summarize: any conversation, any selection."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memctl.dialects.agentscope1 import AGENTSCOPE1
from memctl.errors import BadData
from memctl.inference.tokens import estimate
from memctl.model import Change, Memory, MemoryKey, StoredMessage
from memctl.ops.compress.plan import (
    CompressionPlan,
    CompressionPlanner,
    CompressMode,
    CompressOptions,
    MessageStatus,
    PlannedMessage,
)
from memctl.ops.compress.run import edits, summarized
from memctl.selection import Selection
from memctl.testing.samples import entry

KEY = MemoryKey("u", "s")
LOOK = settings(deadline=None, max_examples=100, derandomize=os.environ.get("CI") == "true")
IDS = st.sampled_from(["t1", "t2", "t3"])
MARKS = st.sampled_from([(), (), (), ("a",), ("compressed",), ("summary",), ("a", "compressed")])


@dataclass(frozen=True)
class Spoken:
    """A message of a conversation: the tool calls that it makes and answers, and its marks."""

    calls: frozenset[str] = frozenset()
    results: frozenset[str] = frozenset()
    marks: tuple[str, ...] = ()

    def entry(self, number: int) -> StoredMessage:
        blocks: list[dict[str, Any]] = [{"type": "text", "text": f"CODE{number}"}]
        blocks += [{"type": "tool_use", "id": id, "name": "n", "input": {}} for id in self.calls]
        blocks += [{"type": "tool_result", "id": id, "name": "n"} for id in self.results]
        return entry(f"m{number}", number, self.marks, content=blocks)


@st.composite
def conversations(draw: st.DrawFn) -> list[Spoken]:
    """Draw calls whose results come later, or never, or without a call."""
    sets = st.frozensets(IDS, max_size=2)
    spoken: list[Spoken] = []
    for _ in range(draw(st.integers(0, 14))):
        calls = draw(sets | st.just(frozenset[str]()))
        spoken.append(Spoken(calls, draw(sets) - calls, draw(MARKS)))
    return spoken


selections = st.sampled_from(
    [Selection(), Selection(marks=frozenset("a")), Selection(exclude_marks=frozenset("a"))]
    + [Selection(roles=frozenset([role])) for role in ("user", "assistant")]
    + [Selection(ids=frozenset(["m0", "m2", "m3", "m5"]))]
)
MODES = st.sampled_from(list(CompressMode))


def decided(
    found: Iterable[StoredMessage],
    where: Selection | None = None,
    mode: CompressMode = CompressMode.MARK,
    keep: int = 3,
    **options: Any,
) -> tuple[list[PlannedMessage], CompressionPlan | None]:
    """Return the status of each message, and the plan for them."""
    history = CompressionPlanner(
        Memory(KEY, ""), where or Selection(), CompressOptions(mode, keep, **options), estimate
    )
    lines = [history.take(one) for one in found]
    return lines, history.case()


def pairs(spoken: list[Spoken], read: list[int]) -> Iterable[tuple[int, int]]:
    """Return the calls and results among the messages, paired as AgentScope does."""
    called: dict[str, int] = {}
    for number in read:
        for id in spoken[number].results:
            if id in called:
                yield called[id], number
        called.update(dict.fromkeys(spoken[number].calls, number))


@pytest.mark.slow
@LOOK
@given(conversations(), selections, MODES, st.integers(1, 5))
def test_compress_history_pairs_are_never_split_and_the_newest_stay(
    spoken: list[Spoken], where: Selection, mode: CompressMode, keep: int
) -> None:
    found = [one.entry(number) for number, one in enumerate(spoken)]
    lines, case = decided(found, where, mode, keep)
    if case is None:
        return
    old = {
        n for n, line in enumerate(lines) if line.kind is MessageStatus.SELECTED and case.goes(line)
    }
    read = [
        n
        for n, line in enumerate(lines)
        if line.kind in (MessageStatus.SELECTED, MessageStatus.UNSELECTED)
    ]
    for call, result in pairs(spoken, read):
        assert (call in old) == (result in old)
    assert not old & set(read[-keep:])
    assert all(where.matches(found[n]) for n in old)
    assert not any("compressed" in spoken[n].marks for n in old)
    assert len(old) == case.messages > 0
    if where.whole:
        assert sorted(old) == read[: len(old)], "from the beginning, without a gap"


@pytest.mark.slow
@LOOK
@given(conversations(), st.integers(1, 5))
def test_compress_history_no_more_is_kept_than_agentscope_keeps(
    spoken: list[Spoken], keep: int
) -> None:
    """A call and its results count as one of the newest, as in AgentScope."""
    bare = [Spoken(one.calls, one.results) for one in spoken]
    every = list(range(len(bare)))
    _, case = decided([one.entry(number) for number, one in enumerate(bare)], keep=keep)
    bound = list(pairs(bare, every))
    begins = [n for n in every if not any(call < n <= result for call, result in bound)]
    cut = begins[-keep] if len(begins) >= keep else 0
    assert (0 if case is None else case.cut) == cut


@pytest.mark.slow
@LOOK
@given(conversations(), selections, MODES)
def test_compress_history_edit_is_what_was_decided(
    spoken: list[Spoken], where: Selection, mode: CompressMode
) -> None:
    """Applied to the memory, it leaves what is counted; a second decision finds nothing."""
    found = [one.entry(number) for number, one in enumerate(spoken)]
    lines, case = decided(found, where, mode)
    if case is None:
        return
    [*pages] = edits(summarized(case, "the summary", mode, AGENTSCOPE1), lines)
    changes = [change for page in pages for change in page.changes]
    after = applied(found, changes)
    marked = sum(change.old is not None and change.new is not None for change in changes)
    deleted = sum(change.new is None for change in changes)
    assert marked == (0 if mode is CompressMode.REPLACE else case.messages)
    assert deleted == case.gone + (case.messages if mode is CompressMode.REPLACE else 0)
    assert pages[0].memory.summary == ("the summary" if mode is CompressMode.MARK else None)
    assert [one.marks for one in after].count(("summary",)) <= (
        mode is not CompressMode.MARK
    ) + sum("summary" in one.marks for one in found)
    if mode is not CompressMode.MARK:
        assert after[0].marks == ("summary",)
        assert all("summary" not in one.marks for one in after[1:] if "compressed" not in one.marks)
    assert decided(after, where, mode)[1] is None
    back = [change for change in changes if change.new is None]
    assert restored(after, back, [one.id for one in found])


def applied(found: list[StoredMessage], changes: list[Change]) -> list[StoredMessage]:
    by_id = {change.id: change for change in changes if change.old is not None}
    front = [StoredMessage(c.id, c.message, c.new or ()) for c in changes if c.old is None]
    after = list(front)
    for one in found:
        change = by_id.get(one.id)
        if change is None:
            after.append(one)
        elif change.new is not None:
            assert change.old == one.marks
            after.append(one._replace(marks=change.new))
    return after


def restored(after: list[StoredMessage], gone: list[Change], order: list[str]) -> bool:
    """Return whether the removed messages find their places after the recorded anchors."""
    ids = [one.id for one in after if one.id in order]
    place: dict[str | None, int] = {}
    for change in gone:
        start = 0 if change.after is None else ids.index(change.after) + 1
        at = start + place.get(change.after, 0)
        ids.insert(at, change.id)
        place[change.after] = place.get(change.after, 0) + 1
    return ids == order


@pytest.mark.slow
def test_compress_history_long_chain_of_calls_is_followed_at_once() -> None:
    """Each message answers the one before and calls the next: one that stays keeps all."""
    count = 8_000
    spoken = [
        entry(
            f"m{n}",
            n,
            content=[
                {"type": "tool_result", "id": f"t{n - 1}"},
                {"type": "tool_use", "id": f"t{n}"},
            ],
        )
        for n in range(count)
    ]
    spoken += [entry(f"e{n}", n) for n in range(5)]
    where = Selection(ids=frozenset(["e0", *(f"m{n}" for n in range(count - 1))]))
    history = CompressionPlanner(
        Memory(KEY, ""), where, CompressOptions(CompressMode.MARK), estimate
    )
    for one in spoken:
        history.take(one)
    begun = time.process_time()
    case = history.case()
    assert time.process_time() - begun < 2
    assert case is not None
    assert case.messages == 1


def test_compress_history_what_is_no_message_is_named() -> None:
    with pytest.raises(BadData, match=r"'broken'.* is not JSON"):
        decided([StoredMessage("broken", b"{")])


@pytest.mark.parametrize(
    ("tokens", "messages", "expected"),
    [(None, None, True), (10**6, None, False), (10**6, 2, True), (None, 7, False), (1, 7, True)],
)
def test_compress_history_when_it_is_worth_it(
    tokens: int | None, messages: int | None, expected: bool
) -> None:
    found = [entry(f"m{n}", n) for n in range(10)]
    case = decided(found, trigger_tokens=tokens, trigger_messages=messages)[1]
    assert (case is not None) == expected
