"""Damaged messages are named by ``doctor`` and stay; what else ``--repair`` moves goes into a
quarantine file, and ``undo`` names the file.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import redis
from hypothesis import example, given, settings
from hypothesis import strategies as st

from memctl.errors import Unavailable
from memctl.model import MemoryKey, StoredMessage
from memctl.ops.doctor.findings import KINDS, RepairMethod
from memctl.ops.doctor.repair import QUARANTINED
from memctl.stores.states.folder import SessionFolderStore
from memctl.testing.samples import entry
from tests.stores.test_redis_repair import FAULTS, early, many_without_payload, orphan_marks
from tests.stores.test_sql_damage import dump
from tests.support.cli import Run, fails, fill, report
from tests.support.places import quarantined, runs_folder
from tests.support.redis_memories import BASE, contents, put_intact
from tests.support.redis_sessions import BASE as SESSION
from tests.support.redis_sessions import message as message2
from tests.support.redis_sessions import put_session, record
from tests.support.servers.pool import Servers

REPAIRABLE = {code for code, kind in KINDS.items() if kind.repair is not RepairMethod.NONE}

SOUND = None
"""Stands for a message that is in order."""
CUT = [b"\xff", b'{"id": "m1', b"a/b"]
"""Values that are no JSON."""

Items = Sequence[bytes | None]


class Layout(NamedTuple):
    """A layout of memory, and what puts the messages of a session into it as they are."""

    options: str
    fill: Callable[[redis.Redis, Items], None]
    cut: bool
    """Each message has a value of its own."""


def message(number: int) -> dict[str, Any]:
    return {"id": f"m{number}", "name": "n", "role": "user", "content": f"text {number}"}


def texts(items: Items, make: Callable[[int], Any]) -> list[bytes]:
    """Return the texts of items; numbers tell the sound ones apart."""
    return [
        json.dumps(make(number)).encode() if item is SOUND else item
        for number, item in enumerate(items)
    ]


def state(items: Items) -> bytes:
    """Return a session state."""
    content = b", ".join(texts(items, lambda number: [message(number), ["a"] * (number % 2)]))
    memory = b'{"_compressed_summary": "", "content": [' + content + b"]}"
    return b'{"agent": {"memory": ' + memory + b', "name": "Friday"}, "plan": {"n": 1}}'


MEMORY = "user_id:u:session:s"


def fill_memory(client: redis.Redis, items: Items) -> None:
    base = MEMORY
    for number, text in enumerate(texts(items, message)):
        client.rpush(f"{base}:messages", f"m{number}")
        client.rpush(f"{base}:mark:a", f"m{number}")
        client.set(f"{base}:msg:m{number}", text, ex=5000)
    client.sadd(f"{base}:marks_index", "a")
    for key in client.scan_iter(f"{base}:*"):
        client.expire(key, 5000)


def fill_log(client: redis.Redis, items: Items) -> None:
    put_session(client, record(), [], ttl=5000)
    found = texts(items, lambda number: message2(f"m{number}"))
    client.rpush(f"{SESSION}:messages", *found)
    client.expire(f"{SESSION}:messages", 5000)


def fill_context(client: redis.Redis, items: Items) -> None:
    found = texts(items, lambda number: message2(f"m{number}"))
    put_session(client, record(), [message2(f"m{n}") for n, one in enumerate(items) if not one])
    whole = client.get(SESSION)
    assert isinstance(whole, bytes)
    client.set(SESSION, whole.replace(b'"context":[]', b'"context":[' + b", ".join(found) + b"]"))


def fill_state(client: redis.Redis, items: Items) -> None:
    client.set("user_id:u:session:s:state", state(items), ex=5000)


def fill_langchain(client: redis.Redis, items: Items) -> None:
    for text in texts(items, lambda n: {"type": "human", "data": {"content": f"text {n}"}}):
        client.lpush("message_store:s", text)
    client.expire("message_store:s", 5000)


def fill_agents(client: redis.Redis, items: Items) -> None:
    found = texts(items, lambda n: {"role": "user", "content": f"text {n}"})
    client.rpush("agents:session:s:messages", *found)
    client.hset("agents:session:s", "session_id", "s")


LAYOUTS = {
    "memory": Layout("", fill_memory, cut=True),
    "2.x log": Layout("?layout=agentscope2", fill_log, cut=True),
    "2.x context": Layout("?layout=agentscope2", fill_context, cut=False),
    "state": Layout("?layout=session", fill_state, cut=False),
    "langchain": Layout("?layout=langchain", fill_langchain, cut=True),
    "openai": Layout("?layout=openai-agents", fill_agents, cut=True),
}
MIXED: list[bytes | None] = [b"5", SOUND, b"[]", b'"a/b"', SOUND, SOUND, b'"\xff"', b"5"]


def repairable(run: Run, url: str) -> dict[str, int]:
    """Return the counts of the findings that can be repaired."""
    found = json.loads(run("doctor", url, "--json").stdout)["findings"]
    counts: dict[str, int] = {}
    for one in found:
        if one["code"] in REPAIRABLE - {"no-session-index"}:
            counts[one["code"]] = counts.get(one["code"], 0) + one["count"]
    return counts


@pytest.mark.parametrize("items", [MIXED, [b"5"]], ids=["some", "all"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_damaged_messages_are_named_and_stay_in_redis(
    client: redis.Redis, redis_url: str, run: Run, name: str, items: Items
) -> None:
    layout = LAYOUTS[name]
    url = redis_url + layout.options
    items = [*items, *(CUT if layout.cut else [])]
    layout.fill(client, items)
    before = contents(client)
    for words in ((), ("--repair", "--yes")):
        found = report(run("doctor", url, "--json", *words), 6)
        [damage] = [one for one in found["findings"] if one["severity"] == "error"]
        assert not damage["repairable"]
        if name == "memory":
            assert damage["code"] == "payload-not-json"
            assert damage["count"] == sum(item is not SOUND for item in items)
        else:
            assert (damage["code"], damage["count"]) == ("damaged-state", 1)
        assert contents(client) == before
    shown = run("inspect", url, "--session", "s", "--json")
    if name == "memory":
        assert shown.exit_code == (0 if SOUND in items else 4), shown.stderr
    else:
        assert shown.exit_code == 8, shown.stderr


WRONG = {
    "log": ("set", f"{SESSION}:messages"),
    "ids": ("rpush", f"{SESSION}:message_ids"),
    "record": ("rpush", SESSION),
}


@pytest.mark.parametrize("name", WRONG)
def test_keys_of_another_type_are_named_and_stay_in_sessions(
    client: redis.Redis, redis_url: str, run: Run, name: str
) -> None:
    command, key = WRONG[name]
    fill_log(client, [SOUND, SOUND])
    put_session(client, record(id="t"), [])
    put_session(client, record(id="x:messages"), [])
    client.delete(key)
    getattr(client, command)(key, b"\xff")
    before = contents(client)
    url = f"{redis_url}?layout=agentscope2"
    found = report(run("inspect", url, "--json"), 7)["memories"]
    assert [one["session"] for one in found] == ["t", "x:messages"]
    [damage] = report(run("doctor", url, "--repair", "--yes", "--json"), 6)["findings"]
    assert (damage["code"], damage["session"]) == ("damaged-state", "s")
    assert f"the key {key} holds another type of value" in damage["message"]
    assert contents(client) == before


def test_keys_of_another_type_are_named_and_stay_in_memories(
    client: redis.Redis, redis_url: str, run: Run
) -> None:
    put_intact(client)
    client.sadd(f"{BASE}:marks_index", "w")
    client.set(f"{BASE}:mark:w", b"\xff")
    odd = "user_id:v:session:odd"
    client.hset(f"{odd}:messages", "f", "v")
    client.rpush(f"{odd}:marks_index", "a")
    client.set(f"{odd}:mark:w:state", "{}")  # the state of a session that has such a name
    before = contents(client)
    for words in ((), ("--repair", "--yes")):
        found = report(run("doctor", redis_url, "wrong-key-type", "--json", *words), 6)["findings"]
        assert [(one["session"], one["count"], one["ids"]) for one in found] == [
            ("s", 1, ["mark:w"]),
            ("odd", 2, ["marks_index", "messages"]),
        ]
        assert not any(one["repairable"] for one in found)
    assert contents(client) == before


def test_ids_are_moved_where_other_memories_are_edited(
    client: redis.Redis, redis_url: str, run: Run
) -> None:
    """Planning the edits reads their memories once more."""
    fill_memory(client, [SOUND, SOUND])
    client.delete(f"{MEMORY}:msg:m1")
    other = "user_id:v:session:t"
    client.rpush(f"{other}:messages", "h")
    client.rpush(f"{other}:mark:hint", "h")
    client.sadd(f"{other}:marks_index", "hint")
    client.set(f"{other}:msg:h", json.dumps(message(0) | {"id": "h"}))
    assert repairable(run, redis_url) == {"leftover-hint": 1, "id-without-payload": 1}
    before = contents(client)
    assert run("doctor", redis_url, "--repair", "--yes").exit_code == 0
    assert f"{other}:msg:h".encode() in before.keys() - contents(client).keys()
    assert run("undo", "--yes").exit_code == 0
    after = contents(client)
    assert {key: one for key, one in before.items() if key.startswith(other.encode())} == {
        key: one for key, one in after.items() if key.startswith(other.encode())
    }
    assert after[f"{MEMORY}:messages".encode()][0] == [b"m0"]


# SQL


def conversation(*blocks: list[dict[str, Any]]) -> list[StoredMessage]:
    """Return messages of AgentScope 1.x with these contents, ``m0`` and so on."""
    return [entry(f"m{number}", number, content=some) for number, some in enumerate(blocks)]


CALLS = [{"type": "tool_use", "id": id, "name": "f", "input": {}} for id in ("t1", "t2")]
RESULTS = [{"type": "tool_result", "id": id, "name": "f", "output": "x"} for id in ("t1", "t2")]
TEXT = [{"type": "text", "text": "Hello"}]


@pytest.mark.slow
def test_repair_and_undo_leave_damaged_rows_where_they_are(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "m.db"
    entries = conversation(CALLS[:1], CALLS[1:], RESULTS[:1], RESULTS[1:], TEXT)
    asyncio.run(fill(str(path), {MemoryKey("u", "s"): entries}))
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE session SET user_id = 'v'")  # the damage is that of ``v``
        database.execute("UPDATE message SET id = CAST('m3' AS BLOB) WHERE id = 'u-s-m3'")
    before = dump(path)
    done = report(run("doctor", path, "--repair", "--yes", "--json"), 6)
    assert "tool-call-without-result" in {one["code"] for one in done["repaired"]}
    assert "damaged-row" in {one["code"] for one in done["findings"]}
    assert run("undo", "--yes").exit_code == 0
    assert dump(path)["message"] == before["message"]


@pytest.mark.slow
def test_undo_of_a_repair_passes_over_the_damage_that_the_repair_passed_over(
    tmp_path: Path, run: Run
) -> None:
    path, archive = tmp_path / "m.db", str(tmp_path / "a.ndjson")
    asyncio.run(fill(archive, {MemoryKey("u", "s"): conversation(TEXT, CALLS[:1], TEXT)}))
    store = f"sqlite:///{path}?layout=agentscope2"
    report(run("import", archive, store, "--json"))
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE messages SET payload = '[]' WHERE msg_id = 'm2'")

    def payloads() -> list[Any]:
        with closing(sqlite3.connect(path)) as database:
            return database.execute("SELECT msg_id, payload FROM messages ORDER BY 1").fetchall()

    before = [(id, json.loads(payload)) for id, payload in payloads()]
    done = report(run("doctor", store, "--repair", "--yes", "--json"), 6)
    assert [one["code"] for one in done["repaired"]] == ["tool-call-without-result"]
    for _ in range(2):
        undone = report(run("undo", "--yes", "--json"))
        assert [(id, json.loads(payload)) for id, payload in payloads()] == before
        again = report(run("undo", undone["run"], "--yes", "--json"))
        assert [(id, json.loads(payload)) for id, payload in payloads()] != before
        assert again["messages"]


# Files


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_damaged_messages_are_named_and_stay_in_files(tmp_path: Path, run: Run) -> None:
    damaged = {
        "item": state(MIXED),
        "only": state([b"5"]),
        "marks": state([SOUND, json.dumps([message(1), 5]).encode()]),
        "pair": state([json.dumps([message(1), ["a"], 7]).encode(), SOUND]),
        "cut": state([SOUND])[:-4],
    }
    for name, text in (damaged | {"ok": state([SOUND])}).items():
        (tmp_path / f"u_{name}.json").write_bytes(text)
    before = files(tmp_path)
    [found] = report(run("inspect", tmp_path, "--json"), 7)["memories"]
    assert (found["session"], found["messages"]) == ("ok", 1)
    for words in ((), ("--repair", "--yes")):
        found = report(run("doctor", tmp_path, "--json", *words), 6)["findings"]
        assert {one["session"] for one in found} == damaged.keys()
        assert {one["code"] for one in found} == {"damaged-state"}
    assert files(tmp_path) == before


def test_repair_that_fails_after_the_first_session_is_partial(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        (tmp_path / f"u_{name}.json").write_bytes(state([SOUND]) + b"more")
    before = files(tmp_path)
    publish = SessionFolderStore.publish
    done: list[object] = []

    async def publish_once(self: SessionFolderStore, drafts: Any, *, keep: bool = False) -> Any:
        if done:
            raise Unavailable("the disk is full")
        done.append(drafts)
        return await publish(self, drafts, keep=keep)

    monkeypatch.setattr(SessionFolderStore, "publish", publish_once)
    fails(run("doctor", tmp_path, "--repair", "--yes"), 7, "the disk is full")
    monkeypatch.undo()
    assert [name for name, text in files(tmp_path).items() if before[name] != text] == ["u_a.json"]


# Any damage

Fault = Callable[[redis.Redis], None]
OF_MEMORY = [make for some in FAULTS.values() for make in some]


def repair_faults(client: redis.Redis, url: str, run: Run, some: Sequence[Fault]) -> None:
    """Make faults in a memory, repair them, look again, and undo all but the moved data."""
    put_intact(client)
    for make in some:
        make(client)
    before, sick = contents(client), repairable(run, url)
    repaired = run("doctor", url, "--repair", "--yes", "--json")
    assert repaired.exit_code in (0, 6), repaired.stderr
    assert repairable(run, url) == {}
    undone = run("undo", json.loads(repaired.stdout)["run"], "--yes")
    assert undone.exit_code == 0, undone.stderr
    if sick.keys() & QUARANTINED:
        # The undo of a deleted hint restores the whole list of its mark, with orphan ids.
        restored = {"orphan-mark"} if "leftover-hint" in sick else set()
        assert repairable(run, url).keys() & QUARANTINED <= restored
        sound = [id for id in before[f"{BASE}:messages".encode()][0] if is_there(before, id)]
        assert client.lrange(f"{BASE}:messages", 0, -1) == sound
    else:
        assert contents(client) == before


def is_there(database: dict[bytes, Any], id: bytes) -> bool:
    return f"{BASE}:msg:{id.decode()}".encode() in database


@pytest.mark.parametrize("make", OF_MEMORY)
def test_faults_of_a_memory_are_repaired_and_undone(
    client: redis.Redis, redis_url: str, run: Run, make: Fault
) -> None:
    repair_faults(client, redis_url, run, [make])


@pytest.mark.slow
def test_any_faults_of_a_memory_are_repaired_and_undone(servers: Servers, run: Run) -> None:
    @settings(max_examples=15)
    @given(st.lists(st.sampled_from(OF_MEMORY), min_size=1, max_size=4, unique=True))
    @example([many_without_payload, early, orphan_marks])
    def check(some: list[Fault]) -> None:
        url = servers.redis.fresh()
        with servers.redis.client(url) as client:
            repair_faults(client, url, run, some)

    check()


@pytest.mark.parametrize("name", ["memory", "state"])
def test_erase_removes_what_was_moved_from_the_journal(
    client: redis.Redis, redis_url: str, run: Run, name: str
) -> None:
    LAYOUTS[name].fill(client, [SOUND])
    if name == "memory":
        client.set(f"{MEMORY}:msg:stray", '["my secret"]')
    else:
        client.append("user_id:u:session:s:state", "my secret")
    url = redis_url + LAYOUTS[name].options
    done = report(run("doctor", url, "--repair", "--yes", "--json"))
    assert "my secret" in quarantined(done["quarantine"])
    [journal] = runs_folder().rglob("quarantine.ndjson")
    assert "my secret" in journal.read_text()
    assert run("erase", url, "--user", "u", "--yes").exit_code == 0
    assert not list(runs_folder().rglob("quarantine.ndjson"))
