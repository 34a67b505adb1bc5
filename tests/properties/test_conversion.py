"""Messages that go from one dialect to another and back are what they were."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memctl.dialects.agentscope1 import AGENTSCOPE1
from memctl.dialects.agentscope2 import AGENTSCOPE2
from memctl.dialects.conversion_path import conversion
from memctl.dialects.runtime import RUNTIME
from memctl.dialects.view import Dialect, MessageView
from memctl.json import jsonio
from memctl.model import Memory, MemoryKey, StoredMessage
from tests.properties.strategies import any_text, few_marks, names, times, values

pytestmark = pytest.mark.slow

MEMORY = Memory(MemoryKey("u", "s"), summary="", extra="")


def convert(
    source: Dialect,
    target: Dialect,
    memory: Memory,
    entries: Sequence[StoredMessage],
    *,
    summaries: bool = False,
) -> tuple[Memory, list[StoredMessage]]:
    """Convert a memory whole; ``summaries`` is as for ``conversion``."""
    converter = conversion(source, target, summaries=summaries).converter()
    converted = converter.memory(memory, entries)
    messages = [*converter.add(entries), *converter.end()]
    if converter.summary is not None:
        converted = replace(converted, summary=converter.summary)
    return converted, messages


def plain(entries: Sequence[StoredMessage]) -> list[tuple[str, bytes, tuple[str, ...]]]:
    """Return messages as they are compared."""
    return [(one.id, jsonio.canonical(one.message), one.marks) for one in entries]


call_ids = st.sampled_from(["c1", "c2", "c3"]) | any_text
text_1 = st.fixed_dictionaries({"type": st.just("text"), "text": any_text})
media_1 = st.fixed_dictionaries(
    {
        "type": st.sampled_from(["image", "audio", "video"]),
        "source": st.fixed_dictionaries(
            {
                "type": st.just("url"),
                "url": st.sampled_from(
                    ["https://example.com/a.png", "/tmp/a b.wav", "a.png", "http://", "file:///x"]
                )
                | any_text,
            }
        )
        | st.fixed_dictionaries(
            {"type": st.just("base64"), "media_type": any_text, "data": any_text}
        ),
    }
)
result_1 = st.fixed_dictionaries(
    {"type": st.just("tool_result"), "id": call_ids, "name": any_text},
    optional={"output": any_text | st.lists(text_1 | media_1 | values, max_size=3)},
)
block_1 = (
    text_1
    | media_1
    | result_1
    | st.fixed_dictionaries(
        {"type": st.just("thinking"), "thinking": any_text}, optional={"signature": values}
    )
    | st.fixed_dictionaries(
        {
            "type": st.just("tool_use"),
            "id": call_ids,
            "name": any_text,
            "input": st.dictionaries(any_text, values, max_size=3),
        }
    )
    | st.dictionaries(st.sampled_from(["type", "text", "id", "x"]), values)
    | values
)


@st.composite
def entries_1(draw: st.DrawFn) -> StoredMessage:
    """A message of AgentScope 1.x, or nearly one."""
    id = draw(names)
    time = times.map(lambda moment: moment.isoformat(" ", "milliseconds"))
    message: dict[str, Any] = {
        "id": draw(st.just(id) | values),
        "name": draw(any_text | values),
        "role": draw(st.sampled_from(["user", "assistant", "system"]) | values),
        "content": draw(
            any_text | st.lists(block_1, max_size=4) | st.lists(result_1, min_size=1) | values
        ),
        "metadata": draw(st.none() | st.dictionaries(any_text, values, max_size=2) | values),
        "timestamp": draw(time | values),
        **draw(st.dictionaries(any_text, values, max_size=2)),
    }
    for gone in draw(st.lists(st.sampled_from(sorted(message)), max_size=1)):
        del message[gone]
    marks = draw(few_marks | st.lists(names, max_size=3, unique=True))
    return StoredMessage(id, json.dumps(message).encode(), tuple(marks))


block_2 = (
    st.fixed_dictionaries(
        {"type": st.just("text"), "text": any_text},
        optional={"id": any_text, "created_at": any_text},
    )
    | st.fixed_dictionaries({"type": st.just("hint"), "hint": any_text | values})
    | st.fixed_dictionaries({"type": st.just("thinking"), "thinking": any_text, "id": any_text})
    | st.fixed_dictionaries(
        {"type": st.just("tool_call"), "id": call_ids, "name": any_text},
        optional={
            "input": st.dictionaries(any_text, values).map(json.dumps) | any_text | values,
            "state": any_text,
            "suggested_rules": values,
        },
    )
    | st.fixed_dictionaries(
        {"type": st.just("tool_result"), "id": call_ids, "name": any_text},
        optional={"output": any_text | values, "state": any_text, "metadata": values},
    )
    | st.fixed_dictionaries(
        {
            "type": st.just("data"),
            "source": st.dictionaries(
                st.sampled_from(["type", "url", "media_type", "data"]), any_text | values
            ),
        }
    )
    | values
)


@st.composite
def entries_2(draw: st.DrawFn, id: str) -> StoredMessage:
    """A message of AgentScope 2.x, or nearly one."""
    message: dict[str, Any] = {
        "id": id,
        "name": draw(any_text | values),
        "role": draw(st.sampled_from(["user", "assistant", "system"]) | values),
        "content": draw(st.lists(block_2, max_size=6) | values),
        "metadata": draw(st.dictionaries(any_text, values, max_size=2) | values),
        "created_at": draw(times.map(lambda moment: moment.isoformat()) | values),
        **draw(
            st.fixed_dictionaries(
                {},
                optional={
                    "usage": values,
                    "finished_reason": st.sampled_from(["completed", "interrupted"]),
                    "structured_output": values,
                    "error": values,
                },
            )
        ),
    }
    return StoredMessage(
        id, json.dumps(message).encode(), draw(st.sampled_from([(), ("compressed",)]))
    )


@given(st.lists(entries_1(), max_size=8))
def test_conversion_1_to_2_and_back(entries: list[StoredMessage]) -> None:
    there, converted = convert(AGENTSCOPE1, AGENTSCOPE2, MEMORY, entries)
    assert there.extra == ""
    assert {mark for one in converted for mark in one.marks} <= {"compressed"}
    assert len({one.id for one in converted}) == len(converted)
    for one in converted:
        view = AGENTSCOPE2.parse(one.message)
        assert view.id == one.id
        assert view.fault == ""
    back = convert(AGENTSCOPE2, AGENTSCOPE1, there, converted)[1]
    assert plain(back) == plain(entries)


@given(
    st.lists(names, max_size=6, unique=True).flatmap(
        lambda ids: st.tuples(*(entries_2(id) for id in ids))
    )
)
def test_conversion_2_to_1_and_back(entries: tuple[StoredMessage, ...]) -> None:
    memory, converted = convert(AGENTSCOPE2, AGENTSCOPE1, MEMORY, entries)
    assert len({one.id for one in converted}) == len(converted)
    back = convert(AGENTSCOPE1, AGENTSCOPE2, memory, converted)[1]
    assert plain(back) == plain(entries)


content_3 = (
    st.fixed_dictionaries({"type": st.just("text"), "text": any_text})
    | st.fixed_dictionaries(
        {
            "type": st.just("data"),
            "data": st.fixed_dictionaries(
                {"call_id": call_ids, "name": any_text},
                optional={"arguments": any_text | values, "output": any_text | values},
            ),
        }
    )
    | st.fixed_dictionaries(
        {"type": st.sampled_from(["image", "audio", "file", "refusal"])},
        optional={"image_url": any_text, "data": any_text, "file_url": any_text | values},
    )
    | values
)
types = st.sampled_from(["message", "reasoning", "plugin_call", "plugin_call_output", "error"])


@st.composite
def entries_3(draw: st.DrawFn, id: str) -> StoredMessage:
    """A message of agentscope-runtime, or nearly one."""
    message: dict[str, Any] = {
        "id": id,
        "type": draw(types | values),
        "role": draw(st.sampled_from(["user", "assistant", "system", "tool"]) | values),
        "content": draw(st.lists(content_3, max_size=3) | values),
        "metadata": draw(
            st.fixed_dictionaries(
                {"original_id": st.sampled_from(["m1", "m2"]) | any_text},
                optional={"original_name": any_text, "metadata": values},
            )
            | values
        ),
        **draw(st.dictionaries(any_text, values, max_size=2)),
    }
    return StoredMessage(id, json.dumps(message | {"id": id}).encode())


@pytest.mark.parametrize("target", [AGENTSCOPE1, AGENTSCOPE2])
@given(
    st.lists(names, max_size=6, unique=True).flatmap(
        lambda ids: st.tuples(*(entries_3(id) for id in ids))
    )
)
def test_conversion_from_the_runtime_and_back(
    target: Dialect, entries: tuple[StoredMessage, ...]
) -> None:
    memory, converted = convert(RUNTIME, target, MEMORY, entries)
    assert len({one.id for one in converted}) == len(converted)
    assert not {target.parse(one.message).fault for one in converted} - {""}
    assert plain(convert(target, RUNTIME, memory, converted)[1]) == plain(entries)


def test_calls_and_results_of_the_runtime_are_searched() -> None:
    """The calls and results of agentscope-runtime are found, as those of AgentScope are."""

    def view(kind: str, data: dict[str, str]) -> MessageView:
        content = [{"type": "data", "data": {"call_id": "c", "name": "weather", **data}}]
        return RUNTIME.view_of({"role": "assistant", "type": kind, "content": content})

    call = view("plugin_call", {"arguments": '{"city": "Kyoto"}'})
    result = view("plugin_call_output", {"output": "18 degrees"})
    assert "Kyoto" in call.searchable()
    assert "18 degrees" in result.searchable()
    assert (call.is_tool_output, result.is_tool_output) == (False, True)
