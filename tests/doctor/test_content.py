"""Tests of the findings of ``doctor`` in the messages of a memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable

import pytest

from memctl.dialects.agentscope2 import AGENTSCOPE2
from memctl.json import jsonio
from memctl.model import Finding, Memory, MemoryKey, Page, StoredMessage
from memctl.ops.doctor.check import Limits, MemoryExaminer
from memctl.ops.doctor.findings import KINDS
from tests.support import histories
from tests.support.histories import ASK, REPLY, call, entries, recent, result, said

KEY = MemoryKey("u", "s")
CASES = [
    pytest.param(code, history, ids, id=f"{code} {number}")
    for code, cases in histories.BROKEN.items()
    for number, (history, ids) in enumerate(cases)
]


def examined(
    found: Iterable[StoredMessage],
    *,
    summary: str | None = "so far",
    size: int = 2,
    max_result: int = 10**5,
) -> list[Finding]:
    """Return the findings in a memory that comes in small pages."""
    memory = Memory(KEY, summary)
    examination = MemoryExaminer(memory, Limits(max_result), repeats=True)
    some = list(found)
    for start in range(0, len(some), size):
        examination.take(Page(memory, some[start : start + size], start, start + size >= len(some)))
    return list(examination.faults())


def test_doctor_history_with_tools_is_healthy() -> None:
    assert examined(entries(histories.HEALTHY)) == []


@pytest.mark.parametrize(("code", "history", "ids"), CASES)
def test_doctor_broken_history(code: str, history: list[histories.Marked], ids: list[str]) -> None:
    [finding] = examined(entries(history))
    assert (finding.code, finding.key, list(finding.examples)) == (code, KEY, ids)
    assert finding.count == 1


def test_doctor_message_with_an_unknown_field_is_not_empty() -> None:
    [finding] = examined(entries([ASK, histories.with_fields("bad", answer=42)]))
    assert finding.code == "unread-message"


def test_doctor_result_in_the_message_of_its_call() -> None:
    """As AgentScope 2.x has it; in 1.x such a result comes before its call."""
    tool = {"type": "tool_call", "id": "t1", "name": "f", "input": "{}"}
    output = {"type": "tool_result", "id": "t1", "name": "f", "output": "ok"}
    other = {**tool, "id": "t2"}

    def findings(*blocks: dict[str, str]) -> list[str]:
        value = {"id": "m1", "name": "n", "role": "assistant", "content": blocks}
        messages = [StoredMessage("m1", jsonio.dumps(value))]
        examiner = MemoryExaminer(
            Memory(KEY, ""), Limits(10**5), repeats=False, dialect=AGENTSCOPE2
        )
        examiner.take(Page(Memory(KEY, ""), messages))
        return [one.code for one in examiner.faults()]

    assert findings(tool, output) == []
    assert findings(tool, output, other) == ["tool-call-without-result"]
    assert findings(output) == ["tool-result-without-call"]


def test_doctor_what_is_compressed_is_not_sent() -> None:
    compressed = ("compressed",)
    history = [
        call("c1", "t1", marks=compressed),
        said("empty", "", marks=compressed),
        result("r9", "t9", marks=compressed),
        REPLY,
    ]
    assert examined(entries(history)) == []


def test_doctor_hint_is_no_part_of_the_conversation() -> None:
    """It stands between a call and its result for one step only."""
    now = recent(1)
    history = [call("c1", "t1"), result("r1", "t1"), said("h", "go on", "user", ("hint",), at=now)]
    assert examined(entries(history)) == []


def test_doctor_agent_may_be_at_work() -> None:
    history = [ASK, call("c1", "t1", "t2", at=recent(5)), result("r1", "t2", at=recent(4))]
    [finding] = examined(entries(history))
    assert finding.code == "tool-call-pending"
    [finding] = examined(entries([*history, REPLY]))
    assert finding.code == "tool-call-without-result"
    [finding] = examined(entries([ASK, call("c1", "t1", at=recent(61))]))
    assert finding.code == "tool-call-without-result"


@pytest.mark.parametrize("name", histories.MISSHAPEN)
def test_doctor_what_is_no_message(name: str) -> None:
    [finding] = examined(entries([ASK, (histories.MISSHAPEN[name], []), REPLY]))
    assert (finding.code, finding.examples, bool(finding.detail)) == (
        "invalid-message",
        ("bad",),
        True,
    )


@pytest.mark.parametrize("text", [b"[]", b"null", b'{"id": "bad', b"", b"7"])
def test_doctor_what_is_no_object(text: bytes) -> None:
    [finding] = examined([StoredMessage("bad", text)])
    assert (finding.code, finding.examples) == ("invalid-message", ("bad",))


def test_doctor_ids() -> None:
    message, _ = said("", "a", "user")
    del message["id"]
    [finding] = examined([histories.entry((message, []))])
    assert finding.code == "message-without-id"
    one = histories.entry(said("own", "a", "user"))
    [finding] = examined([one._replace(id="other")])
    assert (finding.code, finding.examples) == ("id-mismatch", ("other",))
    [finding] = examined([one, histories.entry(REPLY), one])
    assert (finding.code, finding.examples, finding.count) == ("repeated-id", ("own",), 1)


@pytest.mark.parametrize(
    ("summary", "code"),
    [("", "compressed-without-summary"), (None, "summary-elsewhere"), ("it was", None)],
)
def test_doctor_summary_that_is_nowhere(summary: str | None, code: str | None) -> None:
    history = [said(f"m{n}", "a", "user", ("compressed",)) for n in range(5)]
    found = examined(entries([*history, ASK]), summary=summary)
    assert [(finding.code, finding.count) for finding in found] == ([(code, 5)] if code else [])


@pytest.mark.parametrize("summary", ["", None])
def test_doctor_message_that_is_the_summary(summary: str | None) -> None:
    told = said("told", "<system-info>...</system-info>", "user", ("summary",))
    history = [told, *(said(f"m{n}", "a", "user", ("compressed",)) for n in range(5)), ASK]
    assert examined(entries(history), summary=summary) == []


def test_doctor_how_large_a_result_may_be() -> None:
    history = entries([call("c1", "t1"), result("r1", "t1", "x" * 100)])
    assert examined(history, max_result=100) == []
    [finding] = examined(history, max_result=99)
    assert finding.code == "oversized-tool-result"


def test_doctor_media_count_as_a_part_of_a_result() -> None:
    image = {"type": "image", "source": {"type": "base64", "data": "x" * 200_000}}
    [finding] = examined(entries([call("c1", "t1"), result("r1", "t1", [image])]))
    assert finding.code == "oversized-tool-result"


def test_doctor_large_reply_is_not_taken_for_empty() -> None:
    assert examined(entries([ASK, said("long", "x" * 2_000_000)])) == []


@pytest.mark.slow
def test_doctor_hundred_thousand_messages_take_little_room() -> None:
    memory = Memory(KEY, "")
    examination = MemoryExaminer(memory, Limits(), repeats=False)
    tracemalloc.start()
    for start in range(0, 100_000, 1000):
        some = [histories.entry(said(f"m{start + n}", "", marks=("hint",))) for n in range(1000)]
        examination.take(Page(memory, some, start, last=False))
    examination.take(Page(memory, entries([REPLY]), 100_000))
    [finding] = examination.faults()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert finding.count == 100_000
    assert peak < 32 * 1024 * 1024


def test_doctor_every_kind_is_explained() -> None:
    for code, kind in KINDS.items():
        assert code == kind.code
        assert kind.what
        assert kind.meaning
        assert kind.remedy
        assert kind.repair.value == "none" or "--repair" in kind.remedy
