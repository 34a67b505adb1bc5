"""Messages that go from one framework to another and back are what they were.

On the way they pass through what a table holds: ``RowDialect.pack`` and ``unpack``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict

from memctl.dialects.adk import ADK
from memctl.dialects.agentscope1 import AGENTSCOPE1
from memctl.dialects.agentscope2 import AGENTSCOPE2
from memctl.dialects.agno import AGNO
from memctl.dialects.langchain import LANGCHAIN
from memctl.dialects.llamaindex import LLAMAINDEX
from memctl.dialects.openai import OPENAI
from memctl.dialects.openai_agents import OPENAI_AGENTS
from memctl.dialects.rows import ROLE_CONTENT, RowDialect, utc
from memctl.dialects.view import Dialect
from memctl.json import jsonio
from memctl.model import StoredMessage
from memctl.ops.copy.compare import Precision, content
from memctl.stores.agno.runs import Regrouping, Run, is_hidden, with_copies, without_copies
from memctl.stores.agno.runs import entries as entries_of
from tests.properties.strategies import any_text, names, times, values
from tests.properties.test_conversion import MEMORY, block_1, call_ids, convert, entries_1, plain

pytestmark = pytest.mark.slow

roles = st.sampled_from(["user", "assistant", "system", "tool", "developer"])
urls = st.sampled_from(["https://example.com/a.png", "data:image/png;base64,aGk=", "data:,x", "a"])
arguments = st.dictionaries(any_text, values, max_size=2)


def documents(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Objects that may lack any of these fields, or have something else there, and more."""
    loose = {name: found | values for name, found in fields.items()}
    more = st.dictionaries(any_text, values, max_size=1)
    return st.tuples(st.fixed_dictionaries({}, optional=loose), more).map(
        lambda pair: pair[1] | pair[0]
    )


part = st.sampled_from(["text", "input_text", "output_text", "refusal"]).flatmap(
    lambda kind: st.fixed_dictionaries({"type": st.just(kind), "text": any_text})
) | st.fixed_dictionaries(
    {"type": st.just("image_url"), "image_url": st.fixed_dictionaries({"url": urls})}
)
lc_block = (
    part
    | st.fixed_dictionaries({"type": st.just("reasoning"), "reasoning": any_text})
    | st.fixed_dictionaries(
        {"type": st.sampled_from(["image", "audio", "file"])},
        optional={"base64": any_text, "mime_type": any_text, "url": urls},
    )
    | values
)
CONTENTS: dict[str, st.SearchStrategy[Any]] = {
    "langchain": documents(
        type=st.sampled_from(["human", "ai", "system", "tool", "chat", "AIMessageChunk"]),
        data=documents(
            content=any_text | st.lists(lc_block, max_size=3),
            id=names | st.none(),
            name=any_text,
            tool_calls=st.lists(documents(id=call_ids, name=any_text, args=arguments), max_size=2),
            tool_call_id=call_ids,
        ),
    ),
    "openai-agents": documents(
        type=st.sampled_from(["message", "function_call", "function_call_output", "reasoning"]),
        role=roles,
        content=any_text | st.lists(part | values, max_size=3),
        id=names,
        call_id=call_ids,
        name=any_text,
        arguments=arguments.map(json.dumps) | any_text,
        output=any_text | st.lists(part | values, max_size=2),
        summary=st.lists(part, max_size=2),
    ),
    "llamaindex": documents(
        role=roles,
        blocks=st.lists(
            documents(
                block_type=st.sampled_from(["text", "image", "audio", "thinking", "tool_call"]),
                text=any_text,
                content=any_text,
                image=any_text,
                url=urls,
                tool_call_id=call_ids,
                tool_name=any_text,
                tool_kwargs=arguments,
            ),
            max_size=3,
        ),
        additional_kwargs=documents(tool_call_id=call_ids, name=any_text, tool_calls=values),
    ),
    "adk": documents(
        id=names,
        author=st.sampled_from(["user", "friday"]) | any_text,
        timestamp=st.floats(0, 4e9) | st.integers(),
        content=documents(
            role=st.sampled_from(["user", "model"]),
            parts=st.lists(
                documents(
                    text=any_text,
                    thought=st.booleans(),
                    function_call=documents(id=call_ids, name=any_text, args=arguments),
                    function_response=documents(id=call_ids, name=any_text, response=arguments),
                    inline_data=documents(mime_type=any_text, data=any_text),
                ),
                max_size=3,
            ),
        ),
        custom_metadata=documents(mood=any_text),
    ),
    "agno": documents(
        id=names,
        role=roles,
        content=any_text | st.none() | st.lists(part | values, max_size=3),
        name=any_text,
        created_at=st.integers(0, 4 * 10**9),
        from_history=st.booleans(),
        tool_call_id=call_ids,
        tool_name=any_text,
        tool_calls=st.lists(
            documents(
                id=call_ids,
                function=documents(name=any_text, arguments=arguments.map(json.dumps)),
            ),
            max_size=2,
        ),
        reasoning_content=any_text,
        images=st.lists(
            documents(url=urls, content=any_text, mime_type=any_text, filepath=any_text), max_size=2
        ),
        provider_data=documents(mood=any_text),
    ),
    "openai": documents(
        role=roles,
        content=any_text | st.none() | st.lists(part | values, max_size=3),
        name=any_text,
        tool_call_id=call_ids,
        tool_calls=st.lists(
            documents(
                id=call_ids,
                function=documents(name=any_text, arguments=arguments.map(json.dumps)),
            ),
            max_size=2,
        ),
        reasoning_content=any_text,
    ),
    "role-content": any_text | st.none() | st.lists(block_1, max_size=3),
}
DIALECTS: list[RowDialect] = [
    *(LANGCHAIN, OPENAI_AGENTS, LLAMAINDEX, ADK, AGNO, OPENAI),
    ROLE_CONTENT,
]


def stored(dialect: RowDialect, value: dict[str, Any]) -> StoredMessage:
    """Return a message as the store reads it that has written it."""
    if dialect.documents:
        packed = dialect.pack(value)
        if dialect is OPENAI:
            value = OPENAI.unpack_message(packed)
        else:
            noted = {"metadata", *(["time"] if dialect.notes_time else [])}
            kept = {name: one for name, one in value.items() if name not in noted}
            value = kept | dialect.unpack(packed)
    return StoredMessage(dialect.message_id(value), json.dumps(value).encode())


@st.composite
def messages(draw: st.DrawFn, dialect: RowDialect) -> StoredMessage:
    """A message of a framework, or nearly one."""
    value: dict[str, Any] = {"content": draw(CONTENTS[dialect.name])}
    fields = dialect.fields | ({"time"} if dialect is LANGCHAIN else set())
    for field in sorted(fields - {"metadata"}):
        found = times.map(utc) if field == "time" else names
        if draw(st.booleans()):
            value[field] = draw(found)
    if draw(st.booleans()):
        value["extra"] = draw(st.dictionaries(names, values, min_size=1, max_size=2))
    if dialect is OPENAI:
        value.pop("extra", None)
    return stored(dialect, value)


def again(dialect: Dialect, entries: Sequence[StoredMessage]) -> list[StoredMessage]:
    """Return messages as they are read from a store that they were written to."""
    if not isinstance(dialect, RowDialect):
        return list(entries)
    return [stored(dialect, jsonio.loads(one.message))._replace(marks=one.marks) for one in entries]


@st.composite
def runs(draw: st.DrawFn) -> list[Run]:
    """Runs of Agno, of which each has messages of its own."""
    found = []
    for number in range(draw(st.integers(0, 4))):
        some = draw(st.lists(CONTENTS["agno"], max_size=5))
        if all(map(is_hidden, some)):
            some.append({"id": "m", "role": "user"})
        data = {"run_id": f"r{number}"} | draw(st.sampled_from([{}, {"input": "repeated"}]))
        found.append(Run(f"r{number}", {"run_index": number}, data, some))
    return found


def by_value(runs: Sequence[Run]) -> str:
    """Return all that runs hold, NaN included, as a text."""
    return json.dumps([asdict(run) for run in runs], sort_keys=True)


@given(runs())
def test_runs_of_agno_are_what_their_messages_say(there: list[Run]) -> None:
    entries = [one for run in there for one in entries_of(run, as_made=False)]
    assert by_value(Regrouping("s", []).runs(entries)) == by_value(there)
    for at in range(len(entries)):  # one is deleted, and comes back
        left, kept = without_copies(entries[:at] + entries[at + 1 :], [entries[at]])
        between = Regrouping("s", there).runs(left)
        shown = [one for run in between for one in entries_of(run, as_made=False)]
        back = with_copies([*shown[:at], entries[at], *shown[at:]], kept)
        assert by_value(Regrouping("s", between).runs(back)) == by_value(there)


def test_run_of_agno_itself_is_not_taken_for_one_of_memctl() -> None:
    """It may have the id that memctl would give: memctl made it, and Agno went on with it."""
    entry = stored(AGNO, {"content": {"id": "m", "role": "user", "content": "Hi"}})
    [made] = Regrouping("s", []).runs([entry])
    assert made.is_made
    own = Run(made.id, {"run_index": 0}, {**made.data, "model": "m"}, made.messages)
    assert not own.is_made
    [new] = Regrouping("s", [own]).runs([entry])
    assert new.is_made
    assert new.id != own.id


def memories(dialect: RowDialect, **sizes: int) -> st.SearchStrategy[list[StoredMessage]]:
    """Return a strategy of memories as a store of the dialect orders them."""

    def in_order(entries: list[StoredMessage]) -> list[StoredMessage]:
        if not dialect.orders_by_time:
            return entries
        return sorted(entries, key=lambda one: json.loads(one.message).get("time") or "")

    return st.lists(messages(dialect), **sizes).map(in_order)


@pytest.mark.parametrize("target", [AGENTSCOPE1, AGENTSCOPE2, LANGCHAIN], ids=lambda one: one.name)
@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda one: one.name)
@given(st.data())
def test_from_a_framework_and_back(
    dialect: RowDialect, target: Dialect, data: st.DataObject
) -> None:
    if target is dialect:
        pytest.skip("nothing is converted")
    entries = data.draw(memories(dialect, max_size=5))
    memory, converted = convert(dialect, target, MEMORY, entries)
    assert not {target.parse(one.message).fault for one in converted} - {""}
    there = again(target, converted)
    assert [one.id for one in there] == [one.id for one in converted]
    back = convert(target, dialect, memory, there)[1]
    assert plain(again(dialect, back)) == plain(entries)


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda one: one.name)
@given(st.lists(entries_1(), max_size=5))
def test_from_agentscope_and_back(dialect: RowDialect, entries: list[StoredMessage]) -> None:
    """Exact where the framework has a place for notes; else what arrives stays as it is."""
    memory, converted = convert(AGENTSCOPE1, dialect, MEMORY, entries)
    there = again(dialect, converted)
    assert [(one.id, one.marks) for one in there] == [(one.id, one.marks) for one in converted]
    if dialect.holds_notes:
        assert plain(convert(dialect, AGENTSCOPE1, memory, there)[1]) == plain(entries)
    else:
        assert plain(there) == plain(converted)


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda one: one.name)
@given(st.data())
def test_settings_pass_through_another_framework(dialect: RowDialect, data: st.DataObject) -> None:
    """What a session of Agno was made with comes back, and changes no message on its way."""
    if dialect is AGNO or not dialect.holds_notes:
        pytest.skip("it cannot carry them")
    entries = data.draw(memories(dialect, min_size=1, max_size=4))
    memory, converted = convert(dialect, AGNO, MEMORY, entries)
    there = again(AGNO, converted)
    made = replace(memory, extra='{"session":{"agent_id":"friday"}}')
    between = again(dialect, convert(AGNO, dialect, made, there)[1])
    values = [content(one, Precision.VALUE) for one in between]
    assert values == [content(one, Precision.VALUE) for one in again(dialect, entries)]
    memory, back = convert(dialect, AGNO, MEMORY, between)
    assert memory.extra == made.extra
    back = again(dialect, convert(AGNO, dialect, memory, again(AGNO, back))[1])
    assert values == [content(one, Precision.VALUE) for one in back]


SETTINGS = {
    "adk": '{"sessions":"{\\"city\\": \\"Oslo\\"}"}',
    "agno": '{"session":{"agent_id":"f"}}',
}


@pytest.mark.parametrize("dialect", [ADK, AGNO], ids=lambda one: one.name)
@given(st.lists(entries_1(), min_size=1, max_size=5))
def test_settings_that_come_and_go_leave_the_messages(
    dialect: RowDialect, entries: list[StoredMessage]
) -> None:
    """A copy that brings them can be undone: the notes of the messages stay what they were."""
    memory, shown = convert(AGENTSCOPE1, dialect, MEMORY, entries)
    given = replace(memory, extra=SETTINGS[dialect.name])
    memory, stored = convert(dialect, AGENTSCOPE1, given, again(dialect, shown))
    memory, shown_again = convert(AGENTSCOPE1, dialect, memory, stored)
    assert memory.extra == given.extra
    without = replace(memory, extra="")
    assert plain(convert(dialect, AGENTSCOPE1, without, shown_again)[1]) == plain(entries)
