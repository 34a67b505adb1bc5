"""Session states that are edited: the memory as the edit says, all else as it was."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memctl.json import document as json_document
from memctl.model import PAGE_ENTRIES, Change, Edit, Memory, MemoryKey, WriteResult
from memctl.storekit.files import AtomicFile
from tests.stores.states import (
    KEY,
    PAIRS,
    changed,
    dump,
    edit_file,
    edit_of,
    editable,
    edited,
    entry,
    gone,
    load,
    message,
    paged,
    put,
    read,
)
from tests.support.files import last_change

# What becomes of the document

FATES = st.sampled_from(["stays", "goes", "is marked", "is marked again", "gets a neighbour"])


def planned(pairs: list[Any], fates: list[str], *, first: bool) -> tuple[list[Change], list[Any]]:
    """The changes, and what the messages are then."""
    changes: list[Change] = []
    after: list[Any] = []
    kept = None
    new = 0

    def neighbour() -> None:
        nonlocal new
        one = entry(f"neighbour {new}", "x", content="😀")
        new += 1
        changes.append(put(one, kept))
        after.append([json.loads(one.message), ["x"]])

    if first:
        neighbour()
    for (text, marks), fate in zip(pairs, fates, strict=False):
        old = tuple(marks)
        kept = kept if fate == "goes" else text["id"]
        match fate:
            case "goes":
                changes.append(Change(text["id"], old))
            case "is marked":
                changes.append(Change(text["id"], old, (*old, "}, [")))
                after.append([text, list(dict.fromkeys([*marks, "}, ["]))])
            case "is marked again":
                changes.append(Change(text["id"], old, old[:1]))
                after.append([text, marks[:1]])
            case "gets a neighbour":
                after.append([text, marks])
                neighbour()
            case _:
                after.append([text, marks])
    return changes, after


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(PAIRS, max_size=8, unique_by=lambda pair: pair[0]["id"]),
    st.lists(FATES, min_size=8, max_size=8),
    st.booleans(),
    st.sampled_from([None, 1]),
    st.integers(1, 5) | st.just(1000),
    st.integers(300, 400) | st.just(1 << 22),
    st.integers(1, 4),
)
def test_state_edit_any_messages_are_edited(
    tmp_path: Path,
    pairs: list[Any],
    fates: list[str],
    first: bool,
    indent: int | None,
    batch: int,
    large: int,
    page: int,
) -> None:
    """In batches and pages of any size; then it is all undone."""
    path = tmp_path / "u_s.json"
    document = {"a": [{"id": "x"}], "memory": {"content": pairs, "_compressed_summary": "s"}}
    document["z"] = {"content": "\ud800"}
    path.write_bytes(dump(document, indent))
    changes, after = planned(pairs, fates, first=first)
    back = inverse(changes, pairs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_document, "LARGE", large)
        patch.setattr("memctl.stores.states.rewrite._BATCH", batch)
        patch.setattr("memctl.stores.states.messages.LARGE", large)
        [result] = asyncio.run(edit_file(path, *paged(edit_of(changes), page)))
        assert result.failure is None
        found = load(path)
        assert json.dumps(found.pop("memory")["content"]) == json.dumps(after)
        [result] = asyncio.run(edit_file(path, *paged(edit_of(back), page)))
        assert result.failure is None
    expected = json.loads(json.dumps(document))
    assert json.dumps(load(path)) == json.dumps(expected)


def inverse(changes: list[Change], pairs: list[Any]) -> list[Change]:
    """Return the edit that undoes the changes."""
    texts = {text["id"]: text for text, _ in pairs}
    gone_ids = {change.id for change in changes if change.old is not None and change.new is None}
    before: dict[str, str | None] = {}
    kept = None
    for text, _ in pairs:
        before[text["id"]] = kept
        kept = kept if text["id"] in gone_ids else text["id"]
    found = []
    for change in changes:
        if change.old is None:
            found.append(Change(change.id, change.new))
        elif change.new is None:
            text = json.dumps(texts[change.id]).encode()
            found.append(Change(change.id, None, change.old, text, before[change.id]))
        else:
            found.append(Change(change.id, tuple(dict.fromkeys(change.new)), change.old))
    return found


PLAIN = b'[{"id": "%b", "name": "n", "role": "user", "content": "c"}, []]'
ODD = b'[ {"id":"%b" ,\t"name": "n", "role":"user","x":NaN, "y":1e9, "z":"\\u00e9\xc3\xa9"},[]\n]'


@pytest.mark.parametrize("form", [PLAIN, ODD], ids=["plain", "odd"])
@pytest.mark.parametrize(
    ("going", "left"),
    [
        ("", b"\n A, B , C\n"),
        ("a", b"B , C\n"),
        ("b", b"\n A, C\n"),
        ("c", b"\n A, B"),
        ("ab", b"C\n"),
        ("abc", b""),
    ],
)
async def test_state_edit_what_stays_keeps_every_byte(
    tmp_path: Path, form: bytes, going: str, left: bytes
) -> None:
    path = tmp_path / "u_s.json"
    text = (
        b'\xef\xbb\xbf{ "x" : 1E5,"memory":{"content":\t[%b], "_compressed_summary": "s" },"x":2}\n'
    )

    def filled(places: bytes) -> bytes:
        for name in (b"A", b"B", b"C"):
            places = places.replace(name, b"(%b)" % name)
        for name in (b"A", b"B", b"C"):
            places = places.replace(b"(%b)" % name, form % name.lower())
        return text % places

    path.write_bytes(filled(b"\n A, B , C\n"))
    [result] = await edit_file(path, edit_of(gone(*going)))
    assert result == WriteResult(KEY, deleted=len(going))
    # The space after a message may stay with it.
    assert path.read_bytes() in (filled(left), filled(left + b" "))


async def test_state_edit_mark_leaves_the_message_as_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "u_s.json"
    text = b'{"memory":{"_compressed_summary":"","content":[[ {"id" : "a", "n":NaN} , %b ]]}}'
    path.write_bytes(text % b'[ "x" ]')
    [result] = await edit_file(path, edit_of([Change("a", ("x",), ("x", "\u00e9"))]))
    assert result == WriteResult(KEY, written=1)
    assert path.read_bytes() == text % b'["x","\\u00e9"]'


async def test_state_edit_bare_messages_stay_bare(tmp_path: Path) -> None:
    """AgentScope before 1.0.12 reads nothing else; a mark needs a pair."""
    path = tmp_path / "s.json"
    path.write_bytes(dump({"content": [message("a"), message("b"), message("c"), message("d")]}))
    key = MemoryKey("", "s")
    changes = [Change("b", ()), Change("c", (), ("x",))]
    [result] = await edit_file(path, edit_of(changes, key))
    assert result == WriteResult(key, 1, 1)
    assert load(path) == {"content": [message("a"), [message("c"), ["x"]], message("d")]}


async def test_state_edit_several_memories_of_a_document(tmp_path: Path) -> None:
    path = tmp_path / "u_s.json"
    pairs = [[message(id), []] for id in "abc"]
    parts = [f"{name}.memory" for name in ("one", "two", "three")]
    state = {part[:-7]: {"memory": {"_compressed_summary": "", "content": pairs}} for part in parts}
    path.write_bytes(dump(state))
    edits = [
        edit_of(gone(id), KEY._replace(part=part)) for part, id in zip(parts, "abx", strict=True)
    ]
    results = await edit_file(path, *edits)
    assert [result.deleted for result in results] == [1, 1, 0]
    assert changed(results[2])
    found = load(path)
    assert [
        [pair[0]["id"] for pair in found[part[:-7]]["memory"]["content"]] for part in parts
    ] == [
        ["b", "c"],
        ["a", "c"],
        ["a", "b", "c"],
    ]
    [result] = await edit_file(path, edit_of(gone("c")))
    assert result.failure is not None
    assert result.failure.code == "bad-name"


async def test_state_edit_state_dict_has_no_paths(tmp_path: Path) -> None:
    """Whoever names a path reads it, and so changes it."""
    path = tmp_path / "s.json"
    path.write_bytes(dump({"_compressed_summary": "", "content": [[message("a"), []]]}))
    [key] = await read(path, path="agent.memory")
    [result] = await edit_file(path, edit_of(gone("a"), key), path="agent.memory")
    assert result == WriteResult(key, deleted=1)
    assert load(path) == {"_compressed_summary": "", "content": []}


# The summary


@pytest.mark.parametrize("content", [True, False])
async def test_state_edit_summary_changes(tmp_path: Path, content: bool) -> None:
    """Next to SQL and Redis memory, the state holds a summary and no messages."""
    path = tmp_path / "u_s.json"
    memory: dict[str, Any] = {"_compressed_summary": "old"}
    if content:
        memory["content"] = [[message("a"), []]]
    path.write_bytes(dump({"memory": memory, "x": 1}))
    before = path.read_bytes()
    [result] = await edit_file(path, edit_of([], summary="new", expected="other"))
    assert changed(result)
    assert path.read_bytes() == before
    [result] = await edit_file(path, edit_of([], summary="new", expected="old"))
    assert result == WriteResult(KEY)
    assert path.read_bytes() == before.replace(b'"old"', b'"new"')
    [result] = await edit_file(path, edit_of([put(entry("b"))], expected="new"))
    assert result == WriteResult(KEY, written=1)
    ids = [pair[0]["id"] for pair in load(path)["memory"]["content"]]
    assert ids == ["b", *(["a"] if content else [])]


async def test_state_edit_summary_that_is_missing_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_bytes(dump({"content": [[message("a"), []]]}))
    key = MemoryKey("", "s")
    [result] = await edit_file(path, edit_of(gone("a"), key, summary="new", expected=""))
    assert result == WriteResult(key, deleted=1)
    assert load(path) == {"_compressed_summary": "new", "content": []}


async def test_state_edit_nothing_to_change_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "u_s.json"
    path.write_bytes(dump({"memory": {"_compressed_summary": "s", "content": []}}))
    before = last_change(path)
    for edit in (edit_of([]), edit_of([], summary="s"), edit_of([], MemoryKey("u", "s", "other"))):
        [result] = await edit_file(path, edit)
        assert result == WriteResult(edit.memory.key)
    assert last_change(path) == before


# Agents at work


def names(folder: Path) -> list[str]:
    """The files of a folder."""
    return [one.name for one in folder.iterdir() if one.is_file()]


def state(*ids: str) -> dict[str, Any]:
    content = [[message(id), []] for id in ids]
    return {"memory": {"_compressed_summary": "", "content": content}}


def saved(path: Path, value: Any) -> None:
    """As JSONSession saves: the file that is there is emptied and written."""
    with path.open("wb") as file:
        file.write(dump(value))


async def test_state_edit_agent_that_saves_during_an_edit_wins(tmp_path: Path) -> None:
    path = tmp_path / "u_s.json"
    many = [f"m{number}" for number in range(PAGE_ENTRIES + 1)]
    saved(path, state(*many, "b", "c"))

    async def slow() -> AsyncGenerator[Edit]:
        yield Edit(Memory(KEY), gone(*many), last=False)
        saved(path, state(*many, "b", "c", "d"))
        yield Edit(Memory(KEY), gone("b"), offset=len(many))

    async with editable(path) as store:
        [result] = [result async for result in store.edit(slow())]
    assert changed(result)
    assert load(path) == state(*many, "b", "c", "d")
    assert names(tmp_path) == ["u_s.json"]


@pytest.mark.parametrize("linked", [True, False])
async def test_state_edit_agent_that_saves_at_the_last_moment_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, linked: bool
) -> None:
    """The file that it opened gets its name back, and what it writes later is in it."""
    path = tmp_path / "u_s.json"
    saved(path, state("a", "b", "c"))
    named = path
    if linked:
        named = tmp_path / "link" / "u_s.json"
        named.parent.mkdir()
        named.symlink_to(path)
    replace = AtomicFile.replace
    agents = []

    def late(file: AtomicFile) -> None:
        agents.append(path.open("wb"))
        replace(file)

    monkeypatch.setattr(AtomicFile, "replace", late)
    [result] = await edit_file(named, edit_of(gone("a")))
    assert changed(result)
    [agent] = agents
    with agent:
        agent.write(dump(state("a", "b", "c", "d")))
    assert load(named) == state("a", "b", "c", "d")
    assert named.is_symlink() == linked
    assert names(tmp_path) == ["u_s.json"]


async def test_state_edit_where_files_have_one_name_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "u_s.json"
    saved(path, state("a", "b"))

    def refused(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr("os.link", refused)
    [result] = await edit_file(path, edit_of(gone("a")))
    assert result == WriteResult(KEY, deleted=1)
    assert load(path) == state("b")


async def test_state_edit_file_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    """As a program leaves it that was killed while it saved; the others are edited."""
    for name in ("a", "b", "c"):
        saved(tmp_path / f"{name}_s.json", state("a", "b"))
    broken = tmp_path / "b_s.json"
    broken.write_bytes(broken.read_bytes()[:-20])
    before = broken.read_bytes()
    keys = [MemoryKey(name, "s") for name in ("a", "b", "c")]
    async with editable(tmp_path) as store:
        results = await edited(store, *(edit_of(gone("a"), key) for key in keys))
    found = {result.key.user: result.failure.code if result.failure else "" for result in results}
    assert found == {"a": "", "b": "refused", "c": ""}
    assert broken.read_bytes() == before
    assert load(tmp_path / "c_s.json") == state("b")


# Redis


@pytest.fixture
def url(redis_url: str) -> str:
    return f"{redis_url}?layout=session"


NAME = "user_id:u:session:s:state"


@pytest.mark.slow
@pytest.mark.parametrize("count", [3, 40_000], ids=["in hand", "staged"])
@pytest.mark.parametrize("option", ["", "&ttl=50"])
async def test_state_edit_state_in_redis_keeps_its_expiry(
    client: redis.Redis, url: str, count: int, option: str
) -> None:
    """Also where the location says how long what is written shall live."""
    ids = [f"m{number:06}" for number in range(count)]
    for life in (None, 1000):
        client.set(NAME, dump(state(*ids)), ex=life)
        async with editable(url + option) as store:
            [result] = await edited(store, edit_of(gone(*ids[1::2])))
        assert result == WriteResult(KEY, deleted=len(ids[1::2]))
        assert json.loads(client.get(NAME) or "") == state(*ids[::2])
        left = client.ttl(NAME)
        assert left == -1 if life is None else 990 <= left <= 1000
        assert client.dbsize() == 1


@pytest.mark.slow
@pytest.mark.parametrize("count", [PAGE_ENTRIES + 3, 40_000], ids=["in hand", "staged"])
async def test_state_edit_agent_that_saves_to_redis_meanwhile_wins(
    client: redis.Redis, url: str, count: int
) -> None:
    ids = [f"m{number:06}" for number in range(count)]
    many = ids[: PAGE_ENTRIES + 1]
    client.set(NAME, dump(state(*ids)))

    async def slow() -> AsyncGenerator[Edit]:
        yield Edit(Memory(KEY), gone(*many), last=False)
        client.set(NAME, dump(state(*ids, "new")))
        yield Edit(Memory(KEY), gone(ids[-1]), offset=len(many))

    async with editable(url) as store:
        [result] = [result async for result in store.edit(slow())]
        assert changed(result)
        assert json.loads(client.get(NAME) or "") == state(*ids, "new")
        assert client.dbsize() == 1
        [result] = await edited(store, edit_of(gone("new")))
        assert result == WriteResult(KEY, deleted=1)


async def test_state_edit_state_made_anew_in_redis_expires(client: redis.Redis, url: str) -> None:
    async with editable(url) as store:
        [result] = await edited(store, edit_of([put(entry("a"))], summary="s", ttl=1000.0))
    assert result == WriteResult(KEY, written=1)
    found = json.loads(client.get(NAME) or "")
    assert found == {"memory": {"_compressed_summary": "s", "content": [[message("a"), []]]}}
    assert 990 <= client.ttl(NAME) <= 1000
