"""A folder of session files: whose they are, what may be written, and where."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from memctl import location
from memctl.errors import BadData, NotFound
from memctl.layouts.files import split_stem, stem_of, stems
from memctl.model import Memory, MemoryKey, Page, StoredMessage, WriteResult
from memctl.registry import parse
from memctl.selection import Selection
from memctl.store import OpenMode
from memctl.stores.states.folder import SessionFolderStore

ALL = Selection()
KEY = MemoryKey("u", "s")
MESSAGE: dict[str, Any] = {"id": "a", "name": "n", "role": "user", "content": "c"}
ENTRY = StoredMessage("a", json.dumps(MESSAGE).encode())
STATE = {"memory": {"_compressed_summary": "", "content": [[MESSAGE, []]]}}


def store_of(folder: Path, *, create: bool = False, **options: str) -> SessionFolderStore:
    found = parse(str(folder))
    return SessionFolderStore(
        replace(found, options=options), OpenMode.CREATE if create else OpenMode.READ
    )


def put(folder: Path, name: str, state: Any = STATE) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(state))
    return path


async def keys(store: SessionFolderStore, where: Selection = ALL) -> set[tuple[str, str, str]]:
    return {tuple(info.key) async for info in store.list_memories(where)}


async def write(
    store: SessionFolderStore, names: Iterable[MemoryKey], summary: str | None = None
) -> dict[MemoryKey, WriteResult]:
    async def pages() -> AsyncGenerator[Page]:
        for key in names:
            yield Page(Memory(key, summary), [ENTRY] if summary is None else [])

    return {result.key: result async for result in store.write(pages())}


def code(result: WriteResult) -> str | None:
    return result.failure.code if result.failure else None


# Names


@pytest.mark.parametrize(
    ("stem", "users", "sessions", "owner"),
    [
        ("s1", set(), set(), ("", "s1")),
        ("alice_s1", set(), set(), ("alice", "s1")),
        ("alice_chat_1", set(), set(), ("alice", "chat_1")),
        ("default_user_s1", set(), set(), ("default_user", "s1")),
        ("default_user", set(), set(), ("default", "user")),
        ("_s1", set(), set(), ("", "_s1")),
        ("u_x/y", set(), set(), ("u", "x/y")),
        ("a_b_c", {"a_b"}, set(), ("a_b", "c")),
        ("a_b_c", {"a", "a_b"}, set(), ("a_b", "c")),
        ("a_b_c", {"a", "a_b"}, {"b_c"}, ("a", "b_c")),
        ("a_b_c", {""}, set(), ("", "a_b_c")),
        ("a_b_c", {"bob"}, set(), ("a", "b_c")),
    ],
)
def test_sessions_names_are_taken_apart(
    stem: str, users: set[str], sessions: set[str], owner: tuple[str, str]
) -> None:
    assert split_stem(stem, frozenset(users), frozenset(sessions)) == owner
    assert stem_of(*owner) == stem


async def test_sessions_selection_settles_whose_file_it_is(tmp_path: Path) -> None:
    for name in ("a_b_s.json", "a_x.json", "plain.json", "deep/a_b_y.json"):
        put(tmp_path, name)
    put(tmp_path, "notes.txt")
    put(tmp_path, "package.json", {"name": "no memory"})
    async with store_of(tmp_path) as store:
        assert await keys(store, Selection(users=frozenset({"a_b"}))) == {("a_b", "s", "")}
        assert store.warnings == []
        assert await keys(store) == {
            ("a", "b_s", ""),
            ("a", "x", ""),
            ("", "plain", ""),
            ("deep/a", "b_y", ""),
        }
        ambiguous, others = store.warnings
        assert "--user" in ambiguous
        assert others.startswith("files without a session state are left out: ")
        assert others.endswith("package.json")
        exact = Selection(users=frozenset({"a_b"}), sessions=frozenset({"s"}))
        assert await keys(store, exact) == {("a_b", "s", "")}
        named = frozenset({MemoryKey("", "a_b_s"), MemoryKey("a", "x"), MemoryKey("no", "where")})
        assert await keys(store, Selection(keys=named)) == {("", "a_b_s", ""), ("a", "x", "")}


async def test_sessions_what_was_written_keeps_its_names(tmp_path: Path) -> None:
    names = [MemoryKey("a_b", "c"), MemoryKey("", "x_y"), MemoryKey("a/b", "c/d"), KEY]
    async with store_of(tmp_path / "new", create=True) as store:
        results = await write(store, names)
        assert [code(result) for result in results.values()] == [None] * 4
        assert await keys(store) == {tuple(key) for key in names}
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "new" / "a" / "b_c").stat().st_mode & 0o777 == 0o700
    assert list(stems(tmp_path / "new")) == ["a/b_c/d", "a_b_c", "u_s", "x_y"]


async def test_sessions_names_that_lead_elsewhere_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "sessions"
    put(folder, "file.json")
    (tmp_path / "outside").mkdir()
    put(tmp_path / "outside", "u_there.json", {})
    (folder / "link").symlink_to(tmp_path / "outside")
    (folder / "u_link.json").symlink_to(tmp_path / "outside" / "u_there.json")
    (folder / "u_folder.json").mkdir()
    sessions = {
        "../x": None,  # u_.. is a name like any other
        "x/../../y": "bad-name",
        "x/./y": "bad-name",
        "x//y": "bad-name",
        "x\0y": "bad-name",
        "\ud800": "bad-name",
        "link": "bad-name",
        "folder": "bad-name",
        "n" * 260: "refused",
        "/".join(["n" * 200] * 30): "refused",
    }
    users = {"/etc": "bad-name", "link/u": "bad-name", "..": None, "../x": "bad-name"}
    names = [MemoryKey("u", session) for session in sessions]
    names += [MemoryKey(user, "s") for user in users] + [MemoryKey("", "file.json/x")]
    expected = [*sessions.values(), *users.values(), "bad-name"]
    async with store_of(folder, create=True) as store:
        results = await write(store, names)
        assert {key: code(result) for key, result in results.items()} == dict(
            zip(names, expected, strict=True)
        )
    assert os.listdir(tmp_path / "outside") == ["u_there.json"]
    assert (tmp_path / "outside" / "u_there.json").read_text() == "{}"
    assert set(os.listdir(tmp_path)) == {"sessions", "outside"}


async def test_sessions_linked_file_is_read(tmp_path: Path) -> None:
    put(tmp_path, "elsewhere.txt")
    (tmp_path / "sessions").mkdir()
    (tmp_path / "sessions" / "u_s.json").symlink_to(tmp_path / "elsewhere.txt")
    async with store_of(tmp_path / "sessions") as store:
        assert await keys(store) == {("u", "s", "")}
        assert await keys(store, Selection(keys=frozenset({KEY}))) == {("u", "s", "")}


async def test_sessions_two_sessions_of_one_name(tmp_path: Path) -> None:
    names = [MemoryKey("a", "b_c"), MemoryKey("a_b", "c"), MemoryKey("", "a_b_c")]
    async with store_of(tmp_path, create=True) as store:
        results = await write(store, names)
        assert [code(results[key]) for key in names] == [None, "bad-name", "bad-name"]
        assert await keys(store) == {("a", "b_c", "")}


# What is in the files


async def test_sessions_new_session_holds_its_memory_by_the_usual_name(tmp_path: Path) -> None:
    async with store_of(tmp_path, create=True) as store:
        await write(store, [KEY, KEY._replace(session="t", part="planner.memory")])
    memory = {"_compressed_summary": "", "content": [[MESSAGE, []]]}
    assert json.loads((tmp_path / "u_s.json").read_text()) == {"memory": memory}
    assert json.loads((tmp_path / "u_t.json").read_text()) == {"planner": {"memory": memory}}
    async with store_of(tmp_path, create=True, path="agent.memory") as store:
        await write(store, [KEY._replace(session="x")])
        await write(store, [KEY])
    assert json.loads((tmp_path / "u_x.json").read_text()) == {"agent": {"memory": memory}}
    assert set(json.loads((tmp_path / "u_s.json").read_text())) == {"memory", "agent"}


async def test_sessions_summaries_alone(tmp_path: Path) -> None:
    """``?state=`` reads the summaries of the folder only."""
    path = put(tmp_path, "u_s.json", {"memory": {"_compressed_summary": "x"}, "toolkit": {}})
    where = Selection(keys=frozenset({KEY}))
    async with store_of(tmp_path, create=True) as store:
        assert [header async for header in store.headers(where)] == [Memory(KEY, "x")]
        results = await write(store, [KEY, KEY._replace(session="t")], summary="new")
        assert [code(result) for result in results.values()] == [None, None]
        assert [header async for header in store.headers(where)] == [Memory(KEY, "new")]
    assert json.loads(path.read_text()) == {
        "memory": {"_compressed_summary": "new"},
        "toolkit": {},
    }
    new = json.loads((tmp_path / "u_t.json").read_text())
    assert new == {"memory": {"_compressed_summary": "new", "content": []}}


async def test_sessions_several_memories_of_a_session(tmp_path: Path) -> None:
    memory = STATE["memory"]
    put(tmp_path, "u_s.json", {"planner": {"memory": memory}, "writer": {"memory": memory}})
    put(tmp_path, "u_t.json")
    both = {("u", "s", "planner.memory"), ("u", "s", "writer.memory")}
    async with store_of(tmp_path) as store:
        assert await keys(store) == both | {("u", "t", "")}
        one = Selection(parts=frozenset({"writer.memory"}))
        assert await keys(store, one) == {("u", "s", "")}
    async with store_of(tmp_path, path="writer.memory") as store:
        assert await keys(store) == {("u", "s", "")}


async def test_sessions_one_broken_file_is_left_out(tmp_path: Path) -> None:
    put(tmp_path, "a_1.json")
    path = put(tmp_path, "b_1.json")
    path.write_bytes(path.read_bytes()[:-5])
    async with store_of(tmp_path) as store:
        await store.check_integrity(ALL)
        assert await keys(store) == {("a", "1", "")}
        [(key, failure)] = store.left_out.failures.items()
        assert (key, failure.code) == (MemoryKey("b", "1"), "damaged")
        assert "b_1.json is cut off at byte" in failure.message
        assert store.left_out.may_have(MemoryKey("b", "1", "agent.memory"))
        assert not store.left_out.may_have(MemoryKey("a", "1"))
    async with store_of(tmp_path, create=True) as store:
        results = await write(store, [MemoryKey("b", "1"), MemoryKey("c", "1")])
        assert [code(result) for result in results.values()] == ["refused", None]


async def test_sessions_what_is_no_folder(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="does not exist"):
        async with store_of(tmp_path / "none"):
            pass
    (tmp_path / "file").write_text("")
    store = SessionFolderStore(location.Location("sessions", "file", path=tmp_path / "file"))
    with pytest.raises(BadData, match="is not a folder"):
        await store.open(OpenMode.READ)


async def test_sessions_no_file_stays_open(tmp_path: Path) -> None:
    for number in range(3):
        put(tmp_path, f"u_{number}.json")
    before = os.listdir("/proc/self/fd")
    async with store_of(tmp_path) as store:
        pages = store.read(ALL)
        await anext(pages)
        await pages.aclose()  # type: ignore[attr-defined]
        await write(store, [MemoryKey("u", str(number)) for number in range(200)])
        # Others may close what they left behind meanwhile; nothing may be added.
        assert set(os.listdir("/proc/self/fd")) <= set(before)
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".memctl")]
