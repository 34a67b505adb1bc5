"""Reading a state_dict or a session state."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memctl.errors import BadData, NotFound, Unavailable
from memctl.json import document as json_document
from memctl.model import PAGE_ENTRIES, Memory, MemoryKey, Page, WriteMode, WriteResult
from memctl.selection import Selection
from tests.stores.states import (
    ALL,
    KEY,
    PAIRS,
    dump,
    entry,
    load,
    message,
    only,
    read,
    store_of,
    write,
)


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(PAIRS, max_size=6),
    st.sampled_from([None, 1]),
    st.integers(300, 400) | st.just(1 << 22),
    st.sampled_from([0, 1 << 21]),
)
def test_state_any_messages_are_read(
    tmp_path: Path, pairs: list[Any], indent: int | None, large: int, page: int
) -> None:
    """In pages of any size, with nearly everything large or not."""
    path = tmp_path / "state.json"
    path.write_bytes(dump({"_compressed_summary": "s", "content": pairs}, indent))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_document, "LARGE", large)
        patch.setattr("memctl.stores.states.messages.LARGE", large)
        patch.setattr("memctl.stores.states.messages.PAGE_BYTES", page)
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
        (b"\xff\xfe{\x00}\x00", "UTF-16"),
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


async def test_state_change_after_reading_changes_no_page(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    pairs = [[message(str(n), content="c" * 1000), []] for n in range(4000)]
    path.write_bytes(dump({"content": pairs}))
    async with store_of(path) as store:
        pages = store.read(ALL)
        found = (await anext(pages)).messages
        path.write_bytes(dump({"content": pairs[:2000]}))
        async for page in pages:
            found += page.messages
    assert [json.loads(one.message) for one in found] == [text for text, _ in pairs]


async def test_state_change_between_two_reads_is_read(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(b"{}")
    async with store_of(path) as store:
        for ids in ("a", "ab", "c"):
            path.write_bytes(dump({"content": [[message(id), []] for id in ids]}))
            [info] = [info async for info in store.list_memories(ALL)]
            assert info.messages == len(ids)
            [page] = [page async for page in store.read(ALL)]
            assert [one.id for one in page.messages] == list(ids)


async def test_state_change_while_reading_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(dump({"content": [[message("a"), []]]}))
    fstat = os.fstat

    def late(handle: int) -> os.stat_result:
        found = fstat(handle)
        path.write_bytes(b'{"content": []}')
        return found

    monkeypatch.setattr("memctl.stores.states.files.os.fstat", late)
    async with store_of(path) as store:
        with pytest.raises(Unavailable, match="changed while it was read"):
            async for _ in store.read(ALL):
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


async def test_state_new_file_is_a_state_dict(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    result = await write(path, [entry("a", "x", "y"), entry("b")], summary="é")
    assert result == WriteResult(KEY, 2)
    assert load(path) == {
        "_compressed_summary": "é",
        "content": [[message("a"), ["x", "y"]], [message("b"), []]],
    }
    assert path.stat().st_mode & 0o777 == 0o600


async def test_state_new_file_may_hold_its_memory_inside(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    await write(path, [entry("a")], path="agent.memory")
    await write(path, [entry("b")], key=KEY._replace(part="agent.other"))
    await write(path, [entry("c")], key=KEY._replace(part="third"), summary="s")
    memory = {"_compressed_summary": "", "content": [[message("a"), []]]}
    assert load(path) == {
        "agent": {"memory": memory, "other": {**memory, "content": [[message("b"), []]]}},
        "third": {"_compressed_summary": "s", "content": [[message("c"), []]]},
    }
    result = await write(path, [entry("d")])
    assert result.failure is not None
    assert result.failure.code == "bad-name"
    assert "--path" in result.failure.message


STATES = [
    ('{"_compressed_summary": "s", "content": [OLD]}', "s"),
    ('{ "content" : [ OLD ] ,\n "_compressed_summary":"\\u0073"}', "s"),
    ('{"a": [1.50, "\\u00e9"], "agent": {"memory": {"content": [OLD\n]}, "é": NaN}, "z":{}}', ""),
    ('\ufeff\n{"agent": {"x": {"content": [OLD], "more": 1e5}}}\n', ""),
]


@pytest.mark.parametrize(("state", "summary"), STATES)
@pytest.mark.parametrize("held", [1, 3])
async def test_state_rest_of_a_document_stays(
    tmp_path: Path, state: str, summary: str, held: int
) -> None:
    path = tmp_path / "m.json"
    old = " , ".join(json.dumps([message(str(n)), []]) for n in range(held))
    before, after = (part.encode() for part in state.split("OLD"))
    path.write_bytes(before + old.encode() + after)
    path.chmod(0o640)
    added = entry("new", "m", content="ü")

    assert (await write(path, [], offset=held, summary=None)).failure is None
    assert path.read_bytes() == before + old.encode() + after

    assert await write(path, [added], offset=held) == WriteResult(KEY, 1)
    text = path.read_bytes()
    assert text.startswith(before + old.encode())
    assert text.endswith(after.lstrip())
    assert [one.id for one in (await only(path))[1]] == [*map(str, range(held)), "new"]
    assert (await only(path))[0] == summary
    assert path.stat().st_mode & 0o777 == 0o640

    assert await write(path, [added], mode=WriteMode.REPLACE) == WriteResult(KEY, 1, held + 1)
    assert (await only(path))[1] == [added]
    text = path.read_bytes()
    assert text.startswith(before.rstrip())
    assert text.endswith(after.lstrip())

    await write(path, offset=1, summary="other")
    assert await only(path) == ("other", [added])
    assert await write(path, mode=WriteMode.REPLACE) == WriteResult(KEY, 0, 1)
    assert await only(path) == ("other", [])


async def test_state_summary_alone_gets_no_content(tmp_path: Path) -> None:
    """Next to SQL or Redis memory: see ``memctl.wrappers.summaries``."""
    path = tmp_path / "m.json"
    path.write_bytes(b'{"memory": {"_compressed_summary": "old"}, "x": 1}')
    await write(path, summary="new", mode=WriteMode.REPLACE)
    assert path.read_bytes() == b'{"memory": {"_compressed_summary": "new"}, "x": 1}'
    path.write_bytes(b'{"memory": {}, "x": 1}')
    await write(path, summary="new")
    assert path.read_bytes() == b'{"memory": {"_compressed_summary": "new"}, "x": 1}'
    path.write_bytes(b'{"x": 1}')
    await write(path, summary="new")
    assert path.read_bytes() == b'{"x": 1, "memory": {"_compressed_summary": "new"}}'
    await write(path, [entry("a")])
    assert load(path)["memory"] == {"_compressed_summary": "new", "content": [[message("a"), []]]}


@pytest.mark.parametrize(
    ("state", "options", "code"),
    [
        ({"content": [message("a")]}, {}, "changed"),
        ({"memory": 5}, {}, "bad-name"),
        ({"memory": {"x": []}}, {"path": "memory.x.y"}, "bad-name"),
        ({}, {"path": "a..b"}, "bad-name"),
        ([], {}, "refused"),
        (None, {}, "refused"),
    ],
)
async def test_state_what_cannot_be_written_is_left_alone(
    tmp_path: Path, state: Any, options: dict[str, str], code: str
) -> None:
    path = tmp_path / "m.json"
    path.write_bytes(b'{"memory": {' if state is None else dump(state))
    before = path.read_bytes()
    result = await write(path, [entry("b")], **options)
    assert result.failure is not None
    assert result.failure.code == code
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["m.json"]


async def test_state_empty_list_is_filled(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    path.write_bytes(b'{"x": {"_compressed_summary": "", "content": [ ]}}')
    await write(path, [entry("a"), entry("b")])
    assert [one.id for one in (await only(path))[1]] == ["a", "b"]


async def test_state_one_session_alone(tmp_path: Path) -> None:
    path = tmp_path / "m.json"

    async def pages() -> AsyncGenerator[Page]:
        yield Page(Memory(KEY), [entry("a")])
        yield Page(Memory(MemoryKey("u", "t")), [entry("b")])
        yield Page(Memory(KEY), [entry("c")], 1)

    async with store_of(path, create=True) as store:
        results = [result async for result in store.write(pages())]
    failures = [(result.key.session, result.failure.code) for result in results if result.failure]
    assert failures == [("t", "bad-name")]
    assert len(results) == 3
    assert [one.id for one in (await only(path))[1]] == ["a", "c"]


async def test_state_interrupted_write_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    await write(path, [entry("a")])
    before = path.read_bytes()

    async def pages(error: BaseException) -> AsyncGenerator[Page]:
        yield Page(Memory(KEY), [entry("b")] * PAGE_ENTRIES, 1, last=False)
        assert len(os.listdir(tmp_path)) == 2
        raise error

    for error in (Unavailable("gone"), asyncio.CancelledError()):
        async with store_of(path, create=True) as store:
            with pytest.raises(type(error)):
                async for _ in store.write(pages(error)):
                    pass
        assert os.listdir(tmp_path) == ["m.json"]
        assert path.read_bytes() == before


async def test_state_who_writes_meanwhile_wins(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    await write(path, [entry("a")])

    async def pages() -> AsyncGenerator[Page]:
        yield Page(Memory(KEY), [entry("b")], 1, last=False)
        path.write_bytes(b'{"content": []}')
        yield Page(Memory(KEY), [entry("c")], 2)

    async with store_of(path, create=True) as store:
        [result] = [result async for result in store.write(pages())]
    assert result.failure is not None
    assert result.failure.code == "changed"
    assert path.read_bytes() == b'{"content": []}'


async def test_state_link_stays_a_link(tmp_path: Path) -> None:
    target = tmp_path / "target.json"
    target.write_bytes(b'{"content": []}')
    link = tmp_path / "m.json"
    link.symlink_to(target)
    await write(link, [entry("a")])
    assert link.is_symlink()
    assert [one.id for one in (await only(target))[1]] == ["a"]
    async with store_of(link) as one, store_of(target) as other:
        assert await one.identity() == await other.identity()
