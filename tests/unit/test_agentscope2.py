"""AgentScope 2.x sessions, taken apart and put together again."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memctl.json import jsonio
from memctl.stores.agentscope2.session import (
    Comparison,
    InContext,
    NotASession,
    Session,
    agent_record,
    merge,
    new_session,
    parse_extra,
    rebuild,
    with_summary,
    without_context,
)

NOW = datetime(2026, 1, 2, 3, 4, 5, 6, UTC)


def msg(id: str, text: str = "hi") -> dict[str, Any]:
    return {"id": id, "role": "user", "content": [{"type": "text", "text": text}]}


def stored(context: list[dict[str, Any]], summary: Any = "", **others: Any) -> dict[str, Any]:
    state = {"session_id": "s", "reply_context": {"cur_iter": 2}, "zebra": [1, None]}
    return {
        "origin": {"type": "user"},
        "config": {"workspace_id": "w"},
        "state": state | {"summary": summary, "context": context},
    } | others


def entries_of(entries: list[Any]) -> list[Any]:
    return [InContext.of(one) if isinstance(one, dict) else one for one in entries]


def session_of(payload: Any, record: dict[str, Any] | None = None) -> Session:
    return Session.of(record or {}, *without_context(jsonio.dumps(payload)))


def value_of(session: Session, context: list[dict[str, Any]]) -> Any:
    """Return the value of a payload with this context."""
    return jsonio.loads(session.text(map(jsonio.dumps, context)))


def compare(
    payload: dict[str, Any], log: list[dict[str, Any]]
) -> tuple[str, list[dict[str, Any]], list[tuple[str, ...]]]:
    """Return the extra, the messages and their marks."""
    session = session_of(payload, {"agent_id": "a"})
    comparison = Comparison(session.context)
    for one in log:
        comparison.add(one["id"], jsonio.dumps(one))
    unlogged = comparison.unlogged
    whole: list[dict[str, Any]] = []
    for one in log:
        whole += [jsonio.loads(unlogged.messages[id]) for id in unlogged.before(one["id"])]
        whole.append(one)
    whole += [jsonio.loads(unlogged.messages[id]) for id in unlogged.before(None)]
    marks = [comparison.marks(one["id"]) for one in whole]
    return session.extra(comparison), whole, marks


def assemble(extra: str, whole: list[dict[str, Any]], marks: list[tuple[str, ...]]) -> Any:
    session, entries = parse_extra(extra)
    texts = {one["id"]: one for one in whole}
    marked = list(zip(texts, (not labels for labels in marks), strict=True))
    context = merge([id for id, inside in marked if inside] if entries is None else entries, marked)
    return value_of(session, [texts[one] if isinstance(one, str) else one.value for one in context])


def test_a_session_apart_has_marks_and_no_context() -> None:
    log = [msg("a"), msg("b"), msg("c")]
    extra, whole, marks = compare(stored(log[1:]), log)
    assert whole == log
    assert marks == [("compressed",), (), ()]
    assert json.loads(extra).keys() == {"record", "payload", "state"}
    assert assemble(extra, whole, marks) == stored(log[1:])


@pytest.mark.parametrize(
    "context",
    [
        [msg("b", "shorter"), msg("c")],
        [msg("c"), msg("b")],
        [msg("x"), msg("b"), msg("c")],
        [msg("b"), msg("b"), msg("c")],
        [{"role": "user"}, msg("b")],
        [msg("only")],
        [],
    ],
    ids=["a variant", "another order", "a stranger", "twice", "no id", "no log", "empty"],
)
def test_a_context_survives(context: list[dict[str, Any]]) -> None:
    log = [msg("a"), msg("b"), msg("c")]
    extra, whole, marks = compare(stored(context), log)
    assert assemble(extra, whole, marks) == stored(context)


@pytest.mark.parametrize(
    ("context", "whole", "differs"),
    [
        (["x"], ["a", "b", "c", "x"], False),
        (["x", "b", "c"], ["a", "x", "b", "c"], False),
        (["b", "x", "y", "c", "z"], ["a", "b", "x", "y", "c", "z"], False),
        (["c", "x", "b"], ["a", "x", "b", "c"], True),
        (["x", "c", "x"], ["a", "b", "x", "c"], True),
    ],
)
def test_messages_that_the_log_lacks_come_before_the_next_of_the_context(
    context: list[str], whole: list[str], differs: bool
) -> None:
    extra, found, _ = compare(stored([*map(msg, context)]), [msg("a"), msg("b"), msg("c")])
    assert [one["id"] for one in found] == whole
    told = json.loads(extra)
    assert told["unlogged"] == sorted(set(context) - set("abc"))
    assert ("context" in told) == differs


@pytest.mark.parametrize(
    ("entries", "shapes", "rebuilt"),
    [
        (["a", "d"], {"b": {"after": "a"}}, ["a", "b", "d"]),
        (["d"], {"b": {"after": "a"}, "a": {"after": None}}, ["a", "b", "d"]),
        (["a"], {"b": {"after": "c"}, "c": {"after": "a"}}, ["a", "c", "b"]),
        (["d"], {"b": {"after": "gone", "context": msg("b", "x")}}, [msg("b", "x"), "d"]),
        (["d"], {"b": {"at": "2025-01-01", "after": 7}}, ["b", "d"]),
    ],
)
def test_messages_that_come_back_have_the_places_they_had(
    entries: list[Any], shapes: dict[str, Any], rebuilt: list[Any]
) -> None:
    log = [(id, id in entries or id in shapes) for id in "abcd"]
    assert rebuild(entries, log, shapes) == entries_of(rebuilt)


@pytest.mark.parametrize("one", [1, 1.0, True, float("nan"), 2**70, "\ud83d"])
@pytest.mark.parametrize("other", [1, 1.0, True, float("nan"), 2**70, "\ud83d"])
def test_values_that_differ_in_type_alone_differ(one: Any, other: Any) -> None:
    extra, *_ = compare(stored([msg("a") | {"metadata": one}]), [msg("a") | {"metadata": other}])
    assert ("context" in json.loads(extra)) == (repr(one) != repr(other))


@pytest.mark.parametrize(
    ("entries", "log", "merged"),
    [
        (["a", "b"], [("a", True), ("b", False)], ["a"]),
        (["a", "c"], [("a", True), ("b", True), ("c", True)], ["a", "b", "c"]),
        (["b"], [("a", True), ("b", True), ("c", True)], ["a", "b", "c"]),
        ([msg("x"), "b"], [("a", True), ("b", True)], ["a", msg("x"), "b"]),
        ([msg("b", "short")], [("a", False), ("b", False)], []),
        ([msg("b", "short")], [("b", True)], [msg("b", "short")]),
        (["c", "a"], [("a", True), ("b", True), ("c", True)], ["c", "a", "b"]),
    ],
)
def test_merge_keeps_the_order_of_the_context(
    entries: list[Any], log: list[tuple[str, bool]], merged: list[Any]
) -> None:
    assert merge(entries_of(entries), log) == entries_of(merged)


@pytest.mark.slow
@given(
    st.lists(st.sampled_from("abcdefgh"), unique=True),
    st.lists(st.tuples(st.sampled_from("abcdefgh"), st.booleans()), unique_by=lambda one: one[0]),
)
def test_merge_has_what_the_log_says(entries: list[str], log: list[tuple[str, bool]]) -> None:
    merged = merge(entries, log)
    gone = {id for id, inside in log if not inside}
    assert sorted(merged) == sorted(({id for id, _ in log} | set(entries)) - gone)
    kept = [id for id in entries if id not in gone]
    assert [id for id in merged if id in kept] == kept


@pytest.mark.parametrize(
    ("summary", "text"),
    [
        ("so far", "so far"),
        (
            [{"type": "text", "text": "so"}, {"type": "data"}, {"type": "text", "text": "far"}],
            "so\nfar",
        ),
        (None, ""),
        ({"odd": 1}, ""),
    ],
)
def test_a_summary_is_a_text_and_survives(summary: Any, text: str) -> None:
    session = session_of(stored([], summary))
    assert session.summary_text == text
    again, _ = parse_extra(session.extra(Comparison([])))
    if isinstance(summary, str):
        assert again.summary == ""
    with_summary(again, text)
    assert value_of(again, []) == stored([], summary)
    with_summary(again, "another")
    assert value_of(again, []) == stored([], "another")


def test_a_payload_as_text_has_the_messages_as_they_are() -> None:
    session = session_of(stored([], 'say "[]"', empty="[]"))
    text = session.text([b'{"id":  "a"}', b'{"id":"b"}'])
    assert b'[{"id":  "a"},{"id":"b"}]' in text
    assert jsonio.loads(text) == stored([{"id": "a"}, {"id": "b"}], 'say "[]"', empty="[]")
    assert jsonio.loads(Session().text([])) == {"state": {"summary": "", "context": []}}


@pytest.mark.parametrize(
    "payload",
    [[], None, {"state": []}, {"state": {"context": {}}}, {"state": {"context": ["a"]}}],
)
def test_another_payload_is_not_a_session(payload: Any) -> None:
    with pytest.raises(NotASession):
        session_of(payload)


@pytest.mark.parametrize(
    "extra",
    [
        "",
        "[]",
        "{}",
        '{"record": {}, "payload": {}}',
        '{"record": {}, "payload": {}, "state": {}, "context": 1}',
        '{"record": {}, "payload": {}, "state": {}, "context": [1]}',
        '{"record": {}, "payload": {}, "state": {}, "unlogged": {"a": 1}}',
    ],
)
def test_another_extra_is_refused(extra: str) -> None:
    with pytest.raises(NotASession):
        parse_extra(extra)


def test_a_new_session_belongs_to_its_agent() -> None:
    session = new_session("trip", "friday", NOW)
    assert session.record["agent_id"] == "friday"
    assert session.record["created_at"] == "2026-01-02T03:04:05.000006+00:00"
    assert value_of(session, [])["state"] == {"session_id": "trip", "summary": "", "context": []}
    agent = agent_record("ada", "friday", NOW)
    assert (agent["user_id"], agent["id"], agent["data"]["id"]) == ("ada", "friday", "friday")


VALUES = st.recursive(
    st.none() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


@pytest.mark.slow
@given(
    st.lists(st.dictionaries(st.sampled_from(["id", "content", "state"]), VALUES))
    | st.lists(VALUES),
    st.lists(st.tuples(st.sampled_from(["context", "summary", "state", "x"]), VALUES), max_size=3),
    st.lists(st.tuples(st.sampled_from(["state", "config", "context"]), VALUES), max_size=2),
    st.integers(0, 3),
    st.sampled_from([None, 1]),
)
def test_a_context_is_taken_out_of_any_payload(
    context: list[Any],
    inner: list[tuple[str, Any]],
    outer: list[tuple[str, Any]],
    place: int,
    indent: int | None,
) -> None:
    """The last of several values of a key counts, as it does for json.loads."""

    def text_of(members: list[tuple[str, Any]], name: str, text: str) -> str:
        texts = [f"{json.dumps(key)} : {json.dumps(one, indent=indent)}" for key, one in members]
        texts.insert(place, f'"{name}": {text}')
        return "{" + ", ".join(texts) + "}"

    state = text_of(inner, "context", json.dumps(context, ensure_ascii=False, indent=indent))
    text = text_of(outer, "state", state).encode("utf-8", "surrogatepass")
    whole = json.loads(text.decode("utf-8", "surrogatepass"))
    value, messages, _ = without_context(text)
    if messages:
        assert value["state"]["context"] == []
        value["state"]["context"] = [one.value for one in messages]
        ids = [one.value.get("id") for one in messages]
        assert [one.id for one in messages] == [id if isinstance(id, str) else None for id in ids]
    assert json.dumps(value) == json.dumps(whole)
