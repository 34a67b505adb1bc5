"""Reading a state_dict or a session state."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memctl import json_stream
from memctl.errors import BadData, NotFound, Unavailable
from memctl.model import MemoryKey
from memctl.selection import Selection
from tests.stores.states import (
    ALL,
    KEY,
    PAIRS,
    dump,
    entry,
    message,
    only,
    read,
    store_of,
    write,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(PAIRS, max_size=6),
    st.sampled_from([None, 1]),
    st.integers(1, 50) | st.just(1 << 20),
    st.integers(300, 400) | st.just(1 << 22),
    st.sampled_from([0, 1 << 21]),
)
def test_state_any_messages_are_read(
    tmp_path: Path, pairs: list[Any], indent: int | None, window: int, large: int, page: int
) -> None:
    """At once or streamed, through windows of any size, with nearly everything too large or not."""
    path = tmp_path / "state.json"
    path.write_bytes(dump({"_compressed_summary": "s", "content": pairs}, indent))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_stream, "WINDOW", window)
        patch.setattr(json_stream, "LARGE", large)
        patch.setattr("memctl.stores.state.content.LARGE", large)
        patch.setattr("memctl.stores.state.store.PAGE_BYTES", page)
        summary, entries = asyncio.run(only(path))
    assert summary == "s"
    found = [[json.loads(entry.message.decode()), list(entry.marks)] for entry in entries]
    assert json.dumps(found) == json.dumps(pairs)
    assert [entry.id for entry in entries] == [pair[0]["id"] for pair in pairs]


@pytest.mark.parametrize(
    ("state", "paths"),
    [
        ({"_compressed_summary": "", "content": []}, [""]),
        ({"content": [[message("a"), []]]}, [""]),
        ({"content": [message("a"), message("b")]}, [""]),
        ({"content": []}, [""]),
        ({"content": [message("a"), [message("b"), ["x"]]], "_compressed_summary": "s"}, [""]),
        ({"memory": {"_compressed_summary": "s"}}, ["memory"]),
        ({"memory": {"_compressed_summary": None, "content": []}}, ["memory"]),
        ({"agent": {"memory": {"content": [message("a")]}, "x": 1}}, ["agent.memory"]),
        ({"a.b": {"c": {"content": [message("a")]}}}, ["a\\.b.c"]),
        (
            {
                "planner": {"memory": {"_compressed_summary": "", "content": []}},
                "writer": {"memory": {"content": [[message("a"), []]]}},
            },
            ["planner.memory", "writer.memory"],
        ),
        (
            {
                "last": message("m", content=[{"type": "text", "text": "t"}]),
                "page": {"title": "t", "content": []},
                "blocks": {"content": [{"type": "text", "text": "t"}]},
                "list": [{"content": [message("in a list")]}],
                "memory": {"content": [message("a")]},
            },
            ["memory"],
        ),
    ],
)
async def test_state_memories_are_found_by_their_shape(
    tmp_path: Path, state: Any, paths: list[str]
) -> None:
    path = tmp_path / "u_s.json"
    path.write_bytes(dump(state))
    keys = set(await read(path, user="u", session="s"))
    assert keys == {KEY._replace(part=part) for part in (paths if len(paths) > 1 else [""])}
    for part in paths:
        found = await read(path, Selection(parts=frozenset({part})), user="u", session="s")
        assert set(found) == {KEY}
        assert set(await read(path, user="u", session="s", path=part)) == {KEY}
        asked = KEY._replace(part=part)
        found = await read(path, Selection(keys=frozenset({asked})))
        assert set(found) == {asked}


async def test_state_bare_messages_have_no_marks(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    path.write_bytes(
        b'\xef\xbb\xbf {"content": [%s , %s]}' % (dump(message("a")), dump({"role": 1}))
    )
    summary, entries = await only(path)
    assert summary == ""
    assert [(one.id, one.marks) for one in entries] == [("a", ()), ("", ())]
    assert entries[0].message == dump(message("a"))


async def test_state_catalog_counts(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    pairs = [
        [message("a", timestamp="2"), ["x", "y"]],
        [message("b", timestamp="1", role="system"), ["x"]],
        [message("a", timestamp=None, role=["odd"]), []],
    ]
    path.write_bytes(dump({"content": pairs}))
    async with store_of(path) as store:
        [info] = [info async for info in store.list_memories(ALL)]
        [some] = [info async for info in store.list_memories(Selection(marks=frozenset({"x"})))]
    assert (info.messages, info.marks, info.roles) == (
        3,
        {"x": 2, "y": 1},
        {"user": 1, "system": 1},
    )
    assert (info.first, info.last, info.repeated, info.summary) == ("1", "2", 1, False)
    assert info.bytes == sum(len(dump(pair[0])) for pair in pairs)
    assert (some.messages, some.marks) == (2, {"x": 2, "y": 1})


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (b"", "is empty"),
        (b'{"content": [[{"id": "a"', "is cut off at byte 24"),
        (b'{"_compressed_summary": "", "content": [5]}', r"was expected \(byte 40\)"),
        (b'{"_compressed_summary": "", "content": [[{}, "x"]]}', r"marks was expected \(byte 45\)"),
        (b'{"_compressed_summary": "", "content": [[{}, []],]}', r"a message, .* \(byte 49\)"),
        (b'{"_compressed_summary": "", "a": nil}', r"\(byte 33\)"),
        (b'{"content": [5], "_compressed_summary": ""}', r"\(byte 13\)"),
        (b'{"_compressed_summary": "", "content": {}}', r"\(byte 39\)"),
        (b'{"_compressed_summary": 5, "content": []}', r"\(byte 24\)"),
        (b'{"name": "x"}', "holds no memory"),
        (b"[1, 2]", "holds no memory"),
        (b"\xff\xfe{\x00}\x00", "byte 0"),
    ],
)
async def test_state_what_is_no_memory_says_where(tmp_path: Path, text: bytes, error: str) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(text)
    with pytest.raises(BadData, match=error) as found:
        await read(path)
    assert "state.json" in found.value.message
    assert found.value.hint


async def test_state_what_is_missing_is_not_found(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    with pytest.raises(NotFound, match=r"state\.json does not exist"):
        await read(path)
    with pytest.raises(NotFound, match="the folder of"):
        await write(tmp_path / "nowhere" / "state.json", [entry("a")])
    path.write_bytes(dump({"memory": {"content": [message("a")]}}))
    with pytest.raises(NotFound, match="no memory 'agent'"):
        await read(path, path="agent")


async def test_state_pipe_is_no_file(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    os.mkfifo(path)
    with pytest.raises(BadData, match="is not a file"):
        await read(path)


async def test_state_change_while_reading_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    pairs = [[message(str(n), content="c" * 1000), []] for n in range(4000)]
    path.write_bytes(dump({"content": pairs}))
    async with store_of(path) as store:
        pages = store.read(ALL)
        await anext(pages)
        path.write_bytes(dump({"content": pairs[:2000]}))
        with pytest.raises(Unavailable, match="changed while it was read"):
            async for _ in pages:
                pass


@pytest.mark.parametrize(
    ("name", "bare", "options", "owner"),
    [
        ("alice_s1.json", False, {}, ("alice", "s1")),
        ("s1.json", False, {}, ("", "s1")),
        ("alice_s1.json", True, {}, ("", "alice_s1")),
        ("alice_s1.json", True, {"user": "bob"}, ("bob", "alice_s1")),
        ("a_b_s1.json", False, {"user": "a_b"}, ("a_b", "s1")),
        ("a_b_s1.json", False, {"session": "s1"}, ("a", "s1")),
        ("x.json", True, {"user": "u", "session": "s"}, ("u", "s")),
    ],
)
async def test_state_whose_session_it_is(
    tmp_path: Path, name: str, bare: bool, options: dict[str, str], owner: tuple[str, str]
) -> None:
    path = tmp_path / name
    state = {"content": [message("a")]}
    path.write_bytes(dump(state if bare else {"memory": state}))
    assert set(await read(path, **options)) == {MemoryKey(*owner)}
    asked = Selection(keys=frozenset({KEY}))
    assert set(await read(path, asked)) == {KEY}
