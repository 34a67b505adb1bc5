"""The other half of a tool call is found, however its message is written."""

from __future__ import annotations

import json

import pytest

from memctl.dialects.agentscope1 import AGENTSCOPE1
from memctl.dialects.view import ToolSide

CALL = {"role": "assistant", "content": [{"type": "tool_use", "id": "call_1", "name": "x"}]}
RESULT = {"content": [{"type": "tool_result", "id": "call_1", "output": "tool_use"}]}
TEXT = json.dumps(RESULT)

FOUND = {
    "as AgentScope writes it": TEXT,
    "without spaces": json.dumps(RESULT, separators=(",", ":")),
    "over several lines": json.dumps(RESULT, indent=2),
    "with white space": TEXT.replace('"id": ', '"id" \n\t:  '),
    "with an escaped id": TEXT.replace("call_1", "call\\u005f1"),
    "with an escaped key": TEXT.replace('"id"', '"\\u0069d"'),
    "with an escaped type": TEXT.replace("tool_result", "\\u0074ool_result"),
    "with an escaped type alone": TEXT.replace("tool_use", "").replace("tool_", "tool\\u005F"),
    "with other escapes": TEXT.replace("tool_use", "\\u4eac\\u00e9"),
    "behind another id": TEXT.replace('"id":', '"id": "call_2", "id":'),
}


@pytest.mark.parametrize("text", FOUND.values(), ids=FOUND)
def test_tool_other_half_is_found(text: str) -> None:
    other = AGENTSCOPE1.pair_matcher([("call_1", ToolSide.CALL), ("call_3", ToolSide.CALL)])
    assert list(other([text.encode()])) == [0]
    assert list(other([b"{}", text.encode(), json.dumps(CALL).encode()])) == [1]


OTHERS = {
    "the same half": json.dumps(CALL),
    "another id": TEXT.replace("call_1", "call_11"),
    "no block": json.dumps({"content": "tool_result", "id": "call_1"}),
    "in a result": TEXT.replace("tool_use", '\\"id\\": \\"call_1\\"').replace("call_1", "x", 1),
}


@pytest.mark.parametrize("text", OTHERS.values(), ids=OTHERS)
def test_tool_nothing_else_is_found(text: str) -> None:
    assert not list(
        AGENTSCOPE1.pair_matcher([("call_1", ToolSide.CALL)])([text.encode(), text.encode()])
    )


@pytest.mark.parametrize("id", ["a/b", 'say "hi"', "back\\slash", "会话", "tab\t", "\ud83d"])
def test_tool_ids_that_may_be_written_in_several_ways(id: str) -> None:
    message = {"content": [{"type": "tool_use", "id": id}]}
    other = AGENTSCOPE1.pair_matcher([(id, ToolSide.RESULT), ("call_1", ToolSide.RESULT)])
    texts = [json.dumps(message), json.dumps(message).replace("/", "\\/")]
    texts += [json.dumps(message, ensure_ascii=False)]
    for text in texts:
        message_bytes = text.encode("utf-8", "surrogatepass")
        assert list(AGENTSCOPE1.tool_sides(message_bytes)) == [(ToolSide.CALL, id)]
        assert list(other([b"{}", message_bytes])) == [1]
