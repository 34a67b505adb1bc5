"""Sessions of AgentScope Java: its classes load what memctl writes, and memctl what they write.

The files in ``agentscope_java`` were written by ``JsonFileAgentStateStore`` of agentscope-java (22
August 2026).  docs/stores/agentscope-java.md says what was run with these classes.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import redis

from memctl.model import Change, MemoryKey, StoredMessage
from memctl.registry import make_store, parse
from memctl.store import OpenMode
from memctl.testing import Place
from memctl.testing.drive import assert_changed, edit, edits, read
from tests.support.backends import BACKENDS, new_place, shared
from tests.support.cli import Run, contents, fails, fill, names, report
from tests.support.compressing import CODES
from tests.support.servers.pool import Servers

WRITTEN = Path(__file__).parent / "agentscope_java"
STORES = [name for name in BACKENDS if "java" in name]
SQL = [name for name in STORES if name.endswith("-java") and name[0] != "r"]
KYOTO = MemoryKey("ada", "kyoto")
TEXT = [{"type": "text", "text": "hello"}]
SEPARATOR = "\x1f"


def message(id: str, role: str = "USER", content: Any = TEXT, **fields: Any) -> dict[str, Any]:
    value = {"id": id, "name": "ada", "role": role, "content": content, "metadata": {}}
    return value | {"timestamp": "2026-11-20 10:00:01.000", "usage": None} | fields


def call(id: str, tool: str, **fields: Any) -> dict[str, Any]:
    block = {"type": "tool_use", "id": tool, "name": "timetable", "input": {}} | fields
    return message(id, "ASSISTANT", [block])


def stored(*messages: dict[str, Any]) -> list[StoredMessage]:
    return [StoredMessage(one["id"], json.dumps(one).encode()) for one in messages]


def state(key: MemoryKey, *messages: dict[str, Any], **fields: Any) -> str:
    names = {"session_id": key.session, "user_id": key.user or None, "summary": ""}
    return json.dumps(names | {"context": messages} | fields)


def agentscope1(id: str, role: str, content: Any, *marks: str, **fields: Any) -> StoredMessage:
    value = {"id": id, "name": role, "role": role, "content": content, "metadata": {}}
    value |= {"timestamp": "2026-11-20 10:00:01.000"} | fields
    return StoredMessage(id, json.dumps(value).encode(), marks)


def same(entries: list[StoredMessage]) -> list[Any]:
    """Return messages in a form that is equal for equal JSON, whatever the order of its fields."""
    return [(json.dumps(json.loads(one.message), sort_keys=True), one.marks) for one in entries]


@pytest.fixture(params=STORES)
def place(request: pytest.FixtureRequest, servers: Servers, tmp_path: Path) -> Place:
    """A new place of each store."""
    return new_place(request.param, tmp_path, servers)


@pytest.fixture(params=SQL)
def database(request: pytest.FixtureRequest, servers: Servers, tmp_path: Path) -> Place:
    """A new place of each SQL store, with the table."""
    place = new_place(request.param, tmp_path, servers)
    asyncio.run(fill(place.text, {}))
    return place


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The sessions that AgentScope Java wrote."""
    return Path(shutil.copytree(WRITTEN, tmp_path / "java"))


# What the framework wrote


def test_sessions_of_the_framework_are_read(run: Run, folder: Path) -> None:
    found = contents(str(folder))
    sessions = {"kyoto": 5, "broken": 3, "compacted": 3, "old": 3, "waits": 2}
    assert {key: len(one) for key, one in found.items()} == {
        **{MemoryKey("ada", name): number for name, number in sessions.items()},
        MemoryKey("", "solo"): 1,
        MemoryKey("späh", "a b"): 1,
    }
    codes = {
        (one["code"], one["session"])
        for one in json.loads(run("doctor", folder, "--json").stdout)["findings"]
    }
    assert codes == {("tool-call-without-result", "broken"), ("waiting-call", "waits")}


@pytest.mark.parametrize("name", STORES)
def test_sessions_of_the_framework_are_the_same_in_each_store(
    run: Run, folder: Path, servers: Servers, tmp_path: Path, name: str
) -> None:
    place = new_place(name, tmp_path, servers)
    assert run("migrate", folder, place.text).exit_code == 0
    back = f"agentscope-java:{tmp_path}/back"
    assert run("migrate", place.text, back).exit_code == 0
    assert run("verify", folder, back).exit_code == 0
    for path in WRITTEN.glob("*/*/agent_state.json"):
        copied = tmp_path / "back" / path.relative_to(WRITTEN)
        assert json.loads(copied.read_text()) == json.loads(path.read_text())
    old = json.loads((tmp_path / "back" / "ada" / "old" / "agent_state.json").read_text())
    assert old["tool_context"] == {"activated_groups": ["g1"]}


def test_sessions_of_version_1_are_only_read(run: Run, folder: Path) -> None:
    before = (folder / "ada" / "old" / "memory_messages.jsonl").read_bytes()
    result = run("delete", folder, "--session", "old", "--id", "m1", "--yes")
    assert result.exit_code != 0
    assert "AgentScope Java 1 wrote it" in result.stderr
    assert (folder / "ada" / "old" / "memory_messages.jsonl").read_bytes() == before
    assert run("erase", folder, "--user", "ada", "--session", "old", "--yes").exit_code == 0
    assert not (folder / "ada" / "old").exists()


def test_one_file_of_a_session_is_named(run: Run, folder: Path) -> None:
    path = folder / "ada" / "kyoto" / "agent_state.json"
    fails(run("inspect", path), 8, "AgentScope Java", "agentscope-java:FOLDER")


def test_summary_of_the_framework_becomes_that_of_agentscope2(
    run: Run, folder: Path, tmp_path: Path
) -> None:
    target = f"sqlite:///{tmp_path}/two.db?layout=agentscope2"
    words = ("--session", "compacted", "--lossy")
    assert run("migrate", folder, target, *words).exit_code == 0
    shown = run("context", target, "--session", "compacted").stdout
    assert shown.count("Ada plans a trip to Kyoto.") == 1
    assert len(contents(target)[MemoryKey("ada", "compacted")]) == 2
    assert run("verify", folder, target, "--session", "compacted").exit_code == 0


# Conversion


def conversation() -> dict[MemoryKey, list[StoredMessage]]:
    """Return memories of AgentScope 1.x with what AgentScope Java cannot express."""
    image = {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}
    said = [
        agentscope1("m0", "system", "Be kind.", "compressed"),
        agentscope1("m1", "user", "hello", "hint", "a"),
        agentscope1(
            *("m2", "assistant"),
            [
                {"type": "thinking", "thinking": "hm", "signature": "x"},
                {"type": "tool_use", "id": "c1", "name": "t", "input": {"a": [1, None]}, "raw": 1},
            ],
            metadata={"none": None, "number": float("nan")},
        ),
        agentscope1(
            "m3", "system", [{"type": "tool_result", "id": "c1", "name": "t", "output": "x"}]
        ),
        agentscope1("m4", "system", [image]),
        agentscope1("m5", "user", [{"type": "tool_result", "id": "c9", "name": "t", "output": []}]),
        agentscope1("m6", "robot", [{"type": "hologram", "depth": 3}], name=None),
        agentscope1("m7", "user", [{"type": "audio", "place": "nowhere"}]),
    ]
    return {KYOTO: said, MemoryKey("späh", "a:b/c"): said[:2], MemoryKey("", "solo"): said[1:4]}


@pytest.mark.parametrize("name", STORES)
def test_ring_through_each_store_loses_nothing(
    run: Run, servers: Servers, tmp_path: Path, name: str
) -> None:
    first, last = f"{tmp_path}/one.db", f"{tmp_path}/last.db"
    two = f"sqlite:///{tmp_path}/two.db?layout=agentscope2"
    there, back = (new_place(name, tmp_path, servers).text for _ in range(2))
    asyncio.run(fill(first, conversation()))
    fails(run("migrate", first, there), 9, "image 1, hologram 1, audio 1")
    for source, target in ((first, there), (there, two), (two, back), (back, last)):
        assert run("migrate", source, target, "--lossy").exit_code == 0
    found, before = contents(last), contents(first)
    assert {key: same(one) for key, one in found.items()} == {
        key: same(one) for key, one in before.items()
    }
    assert run("verify", first, last).exit_code == 0
    assert contents(back) == contents(there)


def test_calls_that_wait_are_a_named_loss(run: Run, folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "one.db"
    fails(run("migrate", folder, target, "--session", "waits"), 9, "calls that wait", "book 1")
    assert not target.exists()


# What the framework cannot load


REFUSED = {
    "a role in lower case": (message("m9", "user"), "role 'user'"),
    "a list as role": (message("m9", ["USER"]), "role ['USER']"),  # type: ignore[arg-type]
    "a list as type": (message("m9", content=[{"type": ["text"]}]), "block type ['text']"),
    "an unknown block": (message("m9", content=[{"type": "hologram"}]), "block type 'hologram'"),
    "a text as content": (message("m9", content="hello"), "not a list of blocks"),
    "a result of a user": (
        message("m9", content=[{"type": "tool_result", "id": "c", "name": "t", "output": []}]),
        "role USER holds a block of type 'tool_result'",
    ),
    "an image of the system": (
        message("m9", "SYSTEM", [{"type": "image", "source": {"type": "url", "url": "x"}}]),
        "role SYSTEM holds a block of type 'image'",
    ),
    "arguments as text": (call("m9", "c", input="{}"), "its input is not an object"),
    "an output as text": (
        message("m9", "TOOL", [{"type": "tool_result", "id": "c", "name": "t", "output": "x"}]),
        "its output is not a list",
    ),
    "no source": (message("m9", content=[{"type": "audio"}]), "its source"),
    "an unknown state": (call("m9", "c", state="gone"), "its state 'gone'"),
    "not a number": (message("m9", metadata={"a": float("nan")}), "no number in JSON"),
    "null in the metadata of a result": (
        message("m9", "TOOL", [{"type": "tool_result", "metadata": {"a": None}}]),
        "its metadata has a null",
    ),
}
"""Messages that make a session unreadable to AgentScope Java (each was run), and the reason."""


@pytest.mark.parametrize("name", REFUSED)
def test_message_that_the_framework_cannot_load_is_refused(
    run: Run, tmp_path: Path, name: str
) -> None:
    value, why = REFUSED[name]
    path = tmp_path / "java" / "ada" / "kyoto" / "agent_state.json"
    path.parent.mkdir(parents=True)
    path.write_text(state(KYOTO, message("m1"), value))
    target = f"sqlite:///{tmp_path}/java.db?layout=java"
    asyncio.run(fill(target, {KYOTO: stored(message("m1"))}))
    before = contents(target)
    result = run("migrate", tmp_path / "java", target)
    assert result.exit_code not in (0, 1)
    assert "AgentScope Java cannot load the message 'm9'" in result.stderr
    assert why in result.stderr
    assert contents(target) == before


def test_session_that_the_framework_cannot_load_is_named(run: Run, folder: Path) -> None:
    path = folder / "ada" / "kyoto" / "agent_state.json"
    path.write_text(path.read_text().replace('"role" : "USER"', '"role" : "user"'))
    (folder / "ada" / "waits" / "agent_state.json").write_text('{"session_id": "waits", "con')
    result = run("doctor", folder, "--session", "kyoto", "--session", "waits")
    assert result.exit_code != 0
    assert "invalid-message" in result.stdout
    assert "role 'user'" in result.stdout
    assert "damaged-state" in result.stdout
    assert "its agent_state is not JSON" in result.stdout


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("agent_state", "[]", "its agent_state is not a JSON object"),
        ("agent_state", '{"context": {}}', "no list of messages as 'context'"),
        ("agent_state", '{"context": [1]}', "no list of messages as 'context'"),
        ("custom", "{", "its custom is not JSON"),
    ],
)
def test_odd_value_of_a_session_is_named(
    run: Run, folder: Path, name: str, text: str, why: str
) -> None:
    (folder / "ada" / "kyoto" / f"{name}.json").write_text(text)
    result = run("doctor", folder, "--session", "kyoto")
    assert result.exit_code == 6
    assert "damaged-state" in result.stdout
    assert why in result.stdout


def test_names_that_the_framework_does_not_take_are_refused(place: Place) -> None:
    one = stored(message("m1"))
    for key in (MemoryKey("__anon__", "s"), MemoryKey("ada", " "), MemoryKey(" ", "s")):
        with pytest.raises(AssertionError, match="bad-name"):
            asyncio.run(fill(place.text, {key: one}))
    assert contents(place.text) == {}


# Changes


def test_change_keeps_all_else_and_undo_restores_it(run: Run, folder: Path) -> None:
    path = folder / "ada" / "kyoto" / "agent_state.json"
    before = json.loads(path.read_text())
    path.write_text(json.dumps(before | {"unknown": {"a": 1}}))
    (path.parent / "custom.json").write_text('{"b": 2}')
    words = (folder, "--session", "kyoto", "--id", "m1", "--yes")
    assert run("delete", *words).exit_code == 0
    left = json.loads(path.read_text())
    assert [one["id"] for one in left["context"]] == ["m0", "m2", "m3", "m4"]
    assert left == before | {"unknown": {"a": 1}, "context": left["context"]}
    assert run("undo", "--yes").exit_code == 0
    assert json.loads(path.read_text()) == before | {"unknown": {"a": 1}}
    assert (path.parent / "custom.json").read_text() == '{"b": 2}'


def test_repair_adds_a_result_that_the_framework_loads(run: Run, folder: Path) -> None:
    assert run("doctor", folder, "--repair", "--yes").exit_code == 0
    path = folder / "ada" / "broken" / "agent_state.json"
    added = json.loads(path.read_text())["context"][2]
    assert added["role"] == "TOOL"
    assert [block["type"] for block in added["content"]] == ["tool_result"]
    assert run("doctor", folder).exit_code == 0


def test_compression_leaves_a_summary_that_the_framework_reads(
    run: Run, place: Place, tmp_path: Path
) -> None:
    config = tmp_path / "config.toml"
    config.write_text(CODES)
    talk = [message(f"m{n}", content=[{"type": "text", "text": f"says CODE{n}"}]) for n in range(8)]
    asyncio.run(fill(place.text, {KYOTO: stored(*talk)}))
    words = ("--summarizer", "codes", "--mode", "replace", "--yes", "--all")
    assert run("--config", config, "compress", place.text, *words).exit_code == 0
    summary, *rest = contents(place.text)[KYOTO]
    assert summary.marks == ("summary",)
    assert "CODE0 CODE1 CODE2 CODE3 CODE4" in json.loads(summary.message)["content"][0]["text"]
    assert [one.id for one in rest] == ["m5", "m6", "m7"]
    assert "CODE4" in run("context", place.text, "--session", "kyoto").stdout
    assert run("undo", "--store", place.text, "--yes").exit_code == 0
    assert same(contents(place.text)[KYOTO]) == same(stored(*talk))
    fails(run("mark", "add", place.text, "hint", "--id", "m1"), 2, "only mark is summary")


# Agents that are at work, or save meanwhile


def test_session_with_a_new_message_is_left_alone(run: Run, place: Place, tmp_path: Path) -> None:
    now = f"{datetime.now():%Y-%m-%d %H:%M:%S.%f}"[:-3]
    talk = stored(message("m1"), *(message(id, timestamp=now) for id in ("m2", "m3")))
    asyncio.run(fill(place.text, {KYOTO: talk[:2]}))
    source = f"agentscope-java:{tmp_path / 'source'}"
    asyncio.run(fill(source, {KYOTO: talk}))
    words = ("--id", "m1", "--yes")
    fails(run("delete", place.text, *words), 7, "an agent wrote to it", "idle=0")
    assert run("migrate", source, place.text).exit_code == 0
    assert same(contents(place.text)[KYOTO]) == same(talk)
    asked = f"{place.text}{'&' if '?' in place.text else '?'}idle="
    fails(run("delete", f"{asked}soon", *words), 2, "idle=soon is not a number of seconds")
    assert run("delete", f"{asked}0", *words).exit_code == 0
    assert [one.id for one in contents(place.text)[KYOTO]] == ["m2", "m3"]


def rows(servers: Servers, place: Place, sql: str) -> list[Any]:
    engine = place.backend.name.partition("-")[0]
    return list(shared(engine, "java", servers).execute(place.text, sql))


def test_save_of_an_agent_between_two_reads_stays(database: Place, servers: Servers) -> None:
    """The framework saves a session whole, and raises its version."""
    asyncio.run(fill(database.text, {KYOTO: stored(message("m1"), message("m2"))}))

    async def work() -> Any:
        async with database.store(change=True) as store:
            [m1, _] = (await read(store))[KYOTO].entries
            text = state(KYOTO, message("m1"), message("m2"), message("m3"))
            rows(
                servers,
                database,
                f"UPDATE agentscope_sessions SET state_data = '{text}', version = version + 1",
            )
            first = await edit(store, edits(KYOTO, [Change("m1", (), message=m1.message)]))
            changed = state(KYOTO, message("m2", name="eve"), message("m3"))
            rows(
                servers,
                database,
                f"UPDATE agentscope_sessions SET state_data = '{changed}', version = version + 1",
            )
            gone = Change("m2", (), message=stored(message("m2"))[0].message)
            return first[KYOTO], (await edit(store, edits(KYOTO, [gone])))[KYOTO]

    first, second = asyncio.run(work())
    assert first.deleted == 1
    assert_changed(second)
    assert [one.id for one in contents(database.text)[KYOTO]] == ["m2", "m3"]
    assert "4" in str(rows(servers, database, "SELECT version FROM agentscope_sessions")[0])


def test_save_of_an_agent_within_a_change_in_redis_stays(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = new_place("redis-java", tmp_path, servers)
    asyncio.run(fill(place.text, {KYOTO: stored(message("m1"))}))
    name = "agentscope:session:ada/kyoto:agent_state"
    with servers.redis.client(place.text.partition("?")[0]) as client:
        assert client.get(f"{name}:ver") == b"1"

        async def work() -> Any:
            async with place.store(change=True) as store:
                fetch, saves = store.fetch, [state(KYOTO, message("m1"), message("m2"))]

                def fetch_slowly(*words: Any) -> Any:
                    found = fetch(*words)
                    if saves:
                        client.set(name, saves.pop())
                        client.incr(f"{name}:ver")
                    return found

                monkeypatch.setattr(store, "fetch", fetch_slowly)
                return await edit(store, edits(KYOTO, [Change("m1", ())]))

        assert asyncio.run(work())[KYOTO].deleted == 1
        assert client.get(f"{name}:ver") == b"3"
        assert client.smembers("agentscope:session:ada/kyoto:_keys") == {b"agent_state"}
    assert [one.id for one in contents(place.text)[KYOTO]] == ["m2"]


def test_save_of_an_agent_within_a_change_of_a_file_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = f"agentscope-java:{tmp_path}/java"
    asyncio.run(fill(there, {KYOTO: stored(message("m1"))}))
    path = tmp_path / "java" / "ada" / "kyoto" / "agent_state.json"

    async def work() -> Any:
        async with make_store(parse(there), OpenMode.CHANGE) as store:
            load, saves = store.load, [state(KYOTO, message("m1"), message("m2"))]  # type: ignore[attr-defined]

            async def load_slowly(key: MemoryKey) -> Any:
                found = await load(key)
                if saves:
                    path.write_text(saves.pop())
                return found

            monkeypatch.setattr(store, "load", load_slowly)
            return await edit(store, edits(KYOTO, [Change("m1", ())]))

    assert asyncio.run(work())[KYOTO].deleted == 1
    assert [one.id for one in contents(there)[KYOTO]] == ["m2"]


# Tables


def test_table_of_an_older_version_has_no_versions(
    run: Run, servers: Servers, database: Place
) -> None:
    asyncio.run(fill(database.text, {KYOTO: stored(message("m1"), message("m2"))}))
    rows(servers, database, "ALTER TABLE agentscope_sessions DROP COLUMN version")
    plain = database.text.partition("?")[0]
    assert run("delete", plain, "--id", "m1", "--yes").exit_code == 0
    assert [one.id for one in contents(plain)[KYOTO]] == ["m2"]
    assert run("undo", "--store", plain, "--yes").exit_code == 0
    assert [one.id for one in contents(plain)[KYOTO]] == ["m1", "m2"]


def test_names_with_colons_are_told_by_the_state(run: Run, database: Place) -> None:
    one, other = MemoryKey("a:b", "c"), MemoryKey("a", "b:c")
    asyncio.run(fill(database.text, {one: stored(message("m1"))}))
    assert contents(database.text).keys() == {one}
    with pytest.raises(AssertionError, match="the session of another user"):
        asyncio.run(fill(database.text, {other: stored(message("m2"))}))
    assert [entry.id for entry in contents(database.text)[one]] == ["m1"]
    fails(run("erase", database.text, "--user", "a", "--yes"), 4, "has no memory of 'a'")
    assert run("erase", database.text, "--user", "a:b", "--yes").exit_code == 0
    assert contents(database.text) == {}


def test_rows_of_version_1_have_no_user(run: Run, servers: Servers, database: Place) -> None:
    item = json.dumps(message("m1"))
    into = "INSERT INTO agentscope_sessions (session_id, state_key, item_index, state_data) VALUES "
    rows(servers, database, f"{into} ('kyoto', 'memory_messages', 0, '{item}')")
    rows(servers, database, f"{into} ('kyoto', 'memory_messages:_hash', 0, '3d9e0bb')")
    assert contents(database.text).keys() == {MemoryKey("", "kyoto")}
    assert run("erase", database.text, "--session", "kyoto", "--yes").exit_code == 0
    assert (
        str(rows(servers, database, "SELECT COUNT(*) FROM agentscope_sessions")[0]).strip("(),")
        == "0"
    )


def test_session_of_version_1_is_left_out_if_version_2_has_its_name(
    run: Run, servers: Servers, database: Place
) -> None:
    solo = MemoryKey("", "kyoto")
    asyncio.run(fill(database.text, {solo: stored(message("m2"))}))
    item = json.dumps(message("m1"))
    into = "INSERT INTO agentscope_sessions (session_id, state_key, item_index, state_data) VALUES "
    rows(servers, database, f"{into} ('kyoto', 'memory_messages', 0, '{item}')")
    assert [one.id for one in contents(database.text)[solo]] == ["m2"]
    warned = run("inspect", database.text).stderr
    assert "sessions of AgentScope Java 1 are left out" in warned
    assert run("delete", database.text, "--id", "m2", "--yes").exit_code == 0
    assert run("erase", database.text, "--session", "kyoto", "--yes").exit_code == 0
    assert names(database.text) == set()
    [found] = rows(servers, database, "SELECT COUNT(*) FROM agentscope_sessions")
    assert str(found).strip("(),") == "0"


def test_table_of_another_name(run: Run, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/m.db?layout=java&table=states"
    asyncio.run(fill(url, {KYOTO: stored(message("m1"))}))
    assert contents(url).keys() == {KYOTO}
    fails(run("inspect", f"sqlite:///{tmp_path}/m.db?layout=java"), 8, "table=NAME")


def test_new_table_is_as_the_framework_makes_it(database: Place, servers: Servers) -> None:
    asyncio.run(fill(database.text, {KYOTO: stored(message("m1"))}))
    sql = "SELECT version FROM agentscope_sessions WHERE created_at IS NOT NULL"
    [found] = rows(servers, database, f"{sql} AND updated_at IS NOT NULL")
    assert str(found).strip("(),") == "1"
    if database.backend.name.startswith("mysql"):
        [(_, made)] = rows(servers, database, "SHOW CREATE TABLE agentscope_sessions")
        assert "`state_data` longtext NOT NULL" in made
        assert "`updated_at` datetime DEFAULT current_timestamp() ON UPDATE" in made


def test_state_that_nearly_fills_a_packet_is_found(
    run: Run, servers: Servers, tmp_path: Path
) -> None:
    place = new_place("mysql-java", tmp_path, servers)
    asyncio.run(fill(place.text, {KYOTO: stored(message("m1", metadata={"a": "x" * 60_000}))}))
    assert run("doctor", place.text).exit_code == 0
    rows(servers, place, "ALTER TABLE agentscope_sessions MODIFY state_data TEXT NOT NULL")
    result = run("doctor", place.text)
    assert "state-near-limit" in result.stdout
    assert "of 65,535 bytes" in result.stdout


# Redis


def test_stale_sets_of_keys_are_found(run: Run, client: redis.Redis, redis_url: str) -> None:
    name = "agentscope:session:ada/kyoto"
    client.set(f"{name}:agent_state", state(KYOTO, message("m1")))
    client.sadd("agentscope:session:ada/rome:_keys", "agent_state", "custom")
    client.set(
        "agentscope:session:ada/rome:agent_state", state(MemoryKey("ada", "rome"), message("m2"))
    )
    assert contents(redis_url).keys() == {KYOTO, MemoryKey("ada", "rome")}
    found = json.loads(run("doctor", redis_url, "--json").stdout)["findings"]
    stale = {one["session"]: one["ids"] for one in found if one["code"] == "state-keys-stale"}
    assert stale == {"kyoto": ["agent_state"], "rome": ["custom"]}


def test_keys_of_another_prefix(client: redis.Redis, redis_url: str) -> None:
    client.set("app:ada/kyoto:agent_state", state(KYOTO, message("m1")))
    client.sadd("app:ada/kyoto:_keys", "agent_state")
    assert contents(f"{redis_url}?prefix=app:").keys() == {KYOTO}


def test_erase_of_version_1_in_redis(run: Run, client: redis.Redis, redis_url: str) -> None:
    client.sadd("agentscope:session:s1:_keys", "memory_messages:list")
    client.rpush("agentscope:session:s1:memory_messages:list", json.dumps(message("m1")))
    client.set("agentscope:session:s1:memory_messages:list:_hash", "1")
    assert contents(redis_url).keys() == {MemoryKey("", "s1")}
    assert run("erase", redis_url, "--session", "s1", "--yes").exit_code == 0
    assert client.keys("agentscope:*") == []


def test_session_of_version_1_in_redis_is_left_out_if_version_2_has_its_name(
    run: Run, client: redis.Redis, redis_url: str
) -> None:
    client.sadd("agentscope:session:s1:_keys", "memory_messages:list")
    client.rpush("agentscope:session:s1:memory_messages:list", json.dumps(message("m1")))
    solo = MemoryKey("", "s1")
    asyncio.run(fill(f"{redis_url}?layout=java", {solo: stored(message("m2"))}))
    assert [one.id for one in contents(redis_url)[solo]] == ["m2"]
    assert "sessions of AgentScope Java 1 are left out" in run("inspect", redis_url).stderr
    assert run("erase", redis_url, "--session", "s1", "--yes").exit_code == 0
    assert client.keys("agentscope:*") == []


# Erasing with the workspace

ROOTS = {
    "agents|guide|users|ada|root": ["/MEMORY.md"],
    "agents|guide|users|ada|memory": ["/2026-11-20.md", "/archive/2025-11-20.md"],
    "agents|guide|users|ada|sessions": ["/kyoto.jsonl", "/kyoto.log.jsonl", "/rome.log.jsonl"],
    "agents|guide|users|Ada|sessions": ["/kyoto.jsonl"],
    "agents|guide|users|bob|sessions": ["/kyoto.jsonl"],
    "agents|guide|sessions|rome|memory": ["/2026-11-20.md"],
    "agents|guide|shared|sessions": ["/kyoto.log.jsonl", "/rome.log.jsonl"],
}
INDEX = {"version": 1, "sessions": {"kyoto": {"summary": "trip"}, "rome": {"summary": "trip"}}}


def make_workspace(servers: Servers, place: Place) -> None:
    rows(
        servers,
        place,
        "CREATE TABLE agentscope_store (namespace_path VARCHAR(512) NOT NULL, "
        "item_key VARCHAR(255) NOT NULL, value_json TEXT NOT NULL, version BIGINT NOT NULL, "
        "updated_at BIGINT NOT NULL, PRIMARY KEY (namespace_path, item_key))",
    )
    index = json.dumps({"content": json.dumps(INDEX), "encoding": "utf-8"})
    escaped = index.replace("\\", "\\\\") if place.backend.name.startswith("mysql") else index
    for root, files in ROOTS.items():
        path = root.replace("|", SEPARATOR) + SEPARATOR
        values = [(one, "{}") for one in files]
        values += [("/sessions.json", escaped)] if "users|ada|sessions" in root else []
        for file, value in values:
            sql = f"INSERT INTO agentscope_store VALUES ('{path}', '{file}', '{value}', 1, 0)"
            rows(servers, place, sql)


def files(servers: Servers, place: Place) -> set[str]:
    one = "REPLACE(namespace_path, '\x1f', '|')"
    joined = (
        f"CONCAT({one}, item_key)"
        if place.backend.name.startswith("mysql")
        else f"{one} || item_key"
    )
    found = rows(servers, place, f"SELECT {joined} FROM agentscope_store")
    return {row if isinstance(row, str) else row[0] for row in found}


@pytest.fixture
def workspace(servers: Servers, database: Place) -> Place:
    """A database with sessions and the files of their workspaces."""
    make_workspace(servers, database)
    sessions = [KYOTO, MemoryKey("ada", "rome"), MemoryKey("bob", "kyoto")]
    asyncio.run(fill(database.text, {key: stored(message("m1")) for key in sessions}))
    return database


def test_erase_of_a_user_takes_the_files(run: Run, servers: Servers, workspace: Place) -> None:
    assert run("erase", workspace.text, "--user", "ada", "--yes").exit_code == 0
    assert files(servers, workspace) == {
        "agents|guide|users|Ada|sessions|/kyoto.jsonl",
        "agents|guide|users|bob|sessions|/kyoto.jsonl",
        "agents|guide|shared|sessions|/kyoto.log.jsonl",  # bob has a session of this name
    }
    assert names(workspace.text) == {MemoryKey("bob", "kyoto"), MemoryKey("Ada", "kyoto")}
    assert contents(workspace.text).keys() == {MemoryKey("bob", "kyoto")}


def test_erase_of_a_session_takes_its_files(run: Run, servers: Servers, workspace: Place) -> None:
    before = files(servers, workspace)
    words = ("--user", "ada", "--session", "rome", "--yes")
    assert run("erase", workspace.text, *words).exit_code == 0
    assert before - files(servers, workspace) == {
        "agents|guide|users|ada|sessions|/rome.log.jsonl",
        "agents|guide|sessions|rome|memory|/2026-11-20.md",
        "agents|guide|shared|sessions|/rome.log.jsonl",
    }
    sql = "SELECT value_json, version FROM agentscope_store WHERE item_key = '/sessions.json'"
    [row] = rows(servers, workspace, sql)
    assert "kyoto" in str(row)
    assert "rome" not in str(row)


def stored_files(servers: Servers, place: Place) -> list[str]:
    columns = "namespace_path, item_key, value_json, version"
    found = rows(servers, place, f"SELECT {columns} FROM agentscope_store")
    return sorted(str(one) for one in found)


def test_rename_takes_the_files_along(run: Run, servers: Servers, workspace: Place) -> None:
    before, there = files(servers, workspace), stored_files(servers, workspace)
    for what, old, new in (("user", "ada", "cleo"), ("session", "rome", "nara")):
        words = ("rename", workspace.text, f"--{what}", old, new, "--yes", "--json")
        found = report(run(*words))
        swapped = {
            one.replace(f"users|{old}|", f"users|{new}|")
            .replace(f"/{old}.", f"/{new}.")
            .replace(f"sessions|{old}|", f"sessions|{new}|")
            for one in before
        }
        assert files(servers, workspace) == swapped
        told = stored_files(servers, workspace)
        assert sum("rome" in one for one in told) == (4 if what == "user" else 0)
        report(run("undo", found["run"], "--store", workspace.text, "--json"))
        assert stored_files(servers, workspace) == there
    asyncio.run(fill(workspace.text, {MemoryKey("cleo", "oslo"): stored(message("m1"))}))
    words = ("rename", workspace.text, "--user", "ada", "cleo", "--merge", "--yes")
    assert "a user who has a workspace cannot become another one" in run(*words).stderr
    assert stored_files(servers, workspace) == there


def test_erase_of_files_without_sessions(run: Run, servers: Servers, database: Place) -> None:
    make_workspace(servers, database)
    assert MemoryKey("ada", "kyoto") in names(database.text)
    assert run("erase", database.text, "--user", "ada", "--yes").exit_code == 0
    assert not any("|ada|" in one for one in files(servers, database))


def test_archived_memory_files_are_pruned_and_come_back(
    run: Run, servers: Servers, workspace: Place, tmp_path: Path
) -> None:
    """Days are old as a whole; the files of others, and of today's memory, stay."""
    folder = SEPARATOR.join(("agents", "guide", "users", "bob", "memory", ""))
    for name in ("/archive/2025-11-21.md", "/archive/notes.md", "/2025-11-20.md"):
        sql = f"INSERT INTO agentscope_store VALUES ('{folder}', '{name}', '{{}}', 3, 0)"
        rows(servers, workspace, sql)
    before = stored_files(servers, workspace)
    config = tmp_path / "memctl.toml"
    config.write_text(
        f"[stores.java]\nurl = {json.dumps(workspace.text)}\n[[retention]]\nname = 'old'\n"
        "store = 'java'\naction = 'prune'\nselect = { until = '2025-11-21T12:00' }\n"
        f"archive = '{tmp_path}/old-{{date}}.ndjson.zst'\n"
    )
    retain = ("--config", config, "retain", "--yes", "--json")
    held = report(run("hold", "add", "--user", "ada", "--reason", "case 17", "--json"))["added"][
        "id"
    ]
    assert report(run(*retain))["held"] == 1
    assert stored_files(servers, workspace) == before
    assert run("hold", "remove", held, "--yes").exit_code == 0
    found = report(run(*retain))["policies"][0]
    assert (found["messages"], found["memories"], found["left"]) == (1, 1, 0)
    assert found["oldest"].startswith("2025-11-20")
    [gone] = {*before} - {*stored_files(servers, workspace)}
    assert "/archive/2025-11-20.md" in gone
    archive = found["archive"]
    shown = run("inspect", archive).stdout
    assert "agents/guide/users/ada/memory" in shown
    assert "1 folder · 1 file" in shown
    words = ("import", archive, workspace.text, "--json")
    assert report(run(*words, "--dry-run"))["messages"]["written"] == 1
    assert report(run(*words))["messages"]["written"] == 1
    assert stored_files(servers, workspace) == before
    rows(servers, workspace, "UPDATE agentscope_store SET version = 9 WHERE item_key LIKE '/arch%'")
    done = report(run(*words), 7)
    assert (done["messages"]["written"], done["failures"][0]["code"]) == (0, "changed")
    chat = str(tmp_path / "chat.db")
    asyncio.run(fill(chat, {KYOTO: [agentscope1("m1", "user", "hello")]}))
    fails(run("import", archive, chat), 2, "nothing to prune", "AgentScope Java")


def test_file_of_a_database_has_no_erased_text(run: Run, servers: Servers, tmp_path: Path) -> None:
    place = new_place("sqlite-java", tmp_path, servers)
    asyncio.run(fill(place.text, {KYOTO: stored(message("m1"))}))
    make_workspace(servers, place)
    path = Path(place.text.partition("?")[0].removeprefix("sqlite:///"))
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE agentscope_store SET value_json = 'the code is 4711'")
    assert b"the code is 4711" in path.read_bytes()
    for words in (("--user", "ada"), ("--user", "Ada"), ("--user", "bob")):
        assert run("erase", path, *words, "--yes").exit_code == 0
    assert b"the code is 4711" not in path.read_bytes()
