"""``doctor --repair`` moves damaged data into a quarantine file; ``undo`` names the file."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import redis
from hypothesis import example, given, settings
from hypothesis import strategies as st

from memctl.engines.redis.pipeline import Pipeline
from memctl.errors import Unavailable
from memctl.model import MemoryKey, StoredMessage
from memctl.ops.doctor.findings import KINDS, RepairMethod
from memctl.ops.doctor.repair import QUARANTINED
from memctl.storekit.quarantine import is_object
from memctl.stores.states.folder import SessionFolderStore
from memctl.testing.samples import entry
from tests.stores.test_redis_repair import (
    FAULTS,
    all_damaged,
    early,
    many_without_payload,
    orphan_marks,
)
from tests.stores.test_redis_repair import damaged as damaged_payloads
from tests.stores.test_sql_damage import DAMAGE, dump, make_good
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
DAMAGED = [b"5", b'"a/b"', b"[]", b"null", b'["x", 1]', b'"\xff"']
"""Items that are no messages, but leave JSON around them as it is."""
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


def move(run: Run, url: str, dump: Callable[[], Any], items: Sequence[bytes]) -> Any:
    """Repair, look for the damaged items in the quarantine file, undo; return what is left."""
    before = dump()
    found = repairable(run, url)
    kinds = {"damaged-message", "payload-not-json"}
    assert sum(found[code] for code in kinds & found.keys()) == len(items)
    planned = json.loads(run("doctor", url, "--repair", "--dry-run", "--json").stdout)
    assert sum(one["count"] for one in planned["repaired"]) >= len(items)
    assert "quarantine" not in planned
    assert dump() == before
    repaired = run("doctor", url, "--repair", "--yes", "--json")
    assert repaired.exit_code in (0, 6), repaired.stderr
    assert repairable(run, url) == {}
    after = dump()
    if not items:
        return after
    report = json.loads(repaired.stdout)
    found_texts = quarantined(report["quarantine"])
    for item in items:
        assert item.decode("utf-8", "surrogateescape") in found_texts
    undone = run("undo", report["run"], "--yes")
    assert undone.exit_code == 0, undone.stderr
    assert f"damaged data that the repair moved stay in {report['quarantine']}" in undone.stderr
    assert repairable(run, url) == {}
    return after


@pytest.mark.parametrize("name", LAYOUTS)
def test_damaged_messages_are_moved_in_redis(
    client: redis.Redis, redis_url: str, run: Run, name: str
) -> None:
    layout = LAYOUTS[name]
    url = redis_url + layout.options
    items = MIXED + ([*CUT] if layout.cut else [])
    layout.fill(client, items)
    before = contents(client)
    assert run("doctor", url, "--repair", "--yes", "--no-backup").exit_code == 2
    assert contents(client) == before
    after = move(run, url, lambda: contents(client), [one for one in items if one is not SOUND])
    assert contents(client) == after
    found = report(run("inspect", url, "--session", "s", "--json"))["memories"]
    assert max(one["messages"] for one in found) == 3


@pytest.mark.parametrize("name", LAYOUTS)
def test_memory_of_damaged_messages_alone_is_empty(
    client: redis.Redis, redis_url: str, run: Run, name: str
) -> None:
    LAYOUTS[name].fill(client, [b"5", b"[]"])
    move(run, redis_url + LAYOUTS[name].options, lambda: contents(client), [b"5", b"[]"])


WRONG = {
    "log": ("set", f"{SESSION}:messages"),
    "ids": ("rpush", f"{SESSION}:message_ids"),
    "record": ("rpush", SESSION),
}


@pytest.mark.parametrize("name", WRONG)
def test_keys_of_another_type_are_moved_in_sessions(
    client: redis.Redis, redis_url: str, run: Run, name: str
) -> None:
    command, key = WRONG[name]
    fill_log(client, [SOUND, b"5", SOUND])
    put_session(client, record(id="t"), [])
    put_session(client, record(id="x:messages"), [])
    client.delete(key)
    getattr(client, command)(key, b"\xff")
    client.expire(key, 1000)
    url = f"{redis_url}?layout=agentscope2"
    found = report(run("inspect", url, "--json"), 7)["memories"]
    assert [one["session"] for one in found] == ["t", "x:messages"]
    expected = {"wrong-key-type": 1} | ({} if name == "log" else {"damaged-message": 1})
    assert repairable(run, url) == expected
    done = json.loads(run("doctor", url, "--repair", "--yes", "--json").stdout)
    assert client.type(key) != command
    assert key in quarantined(done["quarantine"])
    assert repairable(run, url) == {}
    assert {found["session"] for found in report(run("inspect", url, "--json"))["memories"]} > {"s"}
    after = contents(client)
    assert done["quarantine"] in run("undo", "--yes").stderr
    assert contents(client) == after


@pytest.mark.parametrize("layout", ["agentscope2", "memory"])
def test_key_of_another_type_that_expires_meanwhile_is_skipped(
    client: redis.Redis,
    redis_url: str,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    layout: str,
) -> None:
    url = f"{redis_url}?layout={layout}"
    if layout == "memory":
        fill_memory(client, [SOUND])
        wrong = "user_id:u:session:s:mark:hint"
        client.sadd("user_id:u:session:s:marks_index", "hint")
    else:
        fill_log(client, [SOUND])
        wrong = f"{SESSION}:message_ids"
    client.delete(wrong)
    client.set(wrong, b"\xff")
    assert repairable(run, url) == {"wrong-key-type": 1}
    execute = Pipeline.execute

    def expiring(self: Pipeline, commands: Any, **options: Any) -> Any:
        commands = list(commands)
        if any(command[0] == b"DUMP" for command in commands):
            client.pexpire(wrong, 1)
            time.sleep(0.01)
        return execute(self, commands, **options)

    monkeypatch.setattr(Pipeline, "execute", expiring)
    result = run("doctor", url, "--repair", "--yes")
    assert result.exit_code in (0, 6), result.stderr
    assert not client.exists(wrong)
    assert repairable(run, url) == {}


def test_damage_is_moved_where_other_memories_are_edited(
    client: redis.Redis, redis_url: str, run: Run
) -> None:
    """Planning the edits reads their memories once more."""
    fill_memory(client, [SOUND, b"5"])
    other = "user_id:v:session:t"
    client.rpush(f"{other}:messages", "h")
    client.rpush(f"{other}:mark:hint", "h")
    client.sadd(f"{other}:marks_index", "hint")
    client.set(f"{other}:msg:h", json.dumps(message(0) | {"id": "h"}))
    assert repairable(run, redis_url) == {"leftover-hint": 1, "payload-not-json": 1}
    before = contents(client)
    assert run("doctor", redis_url, "--repair", "--yes").exit_code == 0
    moved = before.keys() - contents(client).keys()
    assert f"{MEMORY}:msg:m1".encode() in moved
    assert f"{other}:msg:h".encode() in moved
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
def test_undo_restores_messages_among_rows_that_were_moved(tmp_path: Path, run: Run) -> None:
    """The repair puts a result in before the row, and makes room for the result."""
    path = tmp_path / "m.db"
    entries = conversation(CALLS[:1], CALLS[1:], RESULTS[:1], RESULTS[1:], TEXT)
    asyncio.run(fill(str(path), {MemoryKey("u", "s"): entries}))
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE session SET user_id = 'v'")  # the damage is that of ``v``
        database.execute("UPDATE message SET id = CAST('m3' AS BLOB) WHERE id = 'u-s-m3'")
    before = dump(path)
    done = report(run("doctor", path, "--repair", "--yes", "--json"), 6)
    codes = {one["code"] for one in done["repaired"]}
    assert codes > {"damaged-row", "tool-call-without-result"}
    assert run("undo", "--yes").exit_code == 0
    [moved] = [row for row in before["message"] if row not in dump(path)["message"]]
    before["message"].remove(moved)
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


@pytest.mark.parametrize("states", ["redis", "folder"])
def test_damage_is_moved_in_messages_and_their_states(
    client: redis.Redis, redis_url: str, run: Run, tmp_path: Path, states: str
) -> None:
    fill_memory(client, [SOUND, b"5", SOUND])
    (tmp_path / "u_s.json").write_bytes(state([b"5", SOUND]))
    if states == "redis":
        fill_state(client, [SOUND, b"5", b"[]"])
    url = f"{redis_url}?state={'redis' if states == 'redis' else tmp_path}"
    damaged = 2 if states == "redis" else 1
    assert repairable(run, url) == {"payload-not-json": 1, "damaged-message": damaged}
    assert run("doctor", url, "--repair", "--yes").exit_code in (0, 6)
    assert repairable(run, url) == {}
    after = contents(client), files(tmp_path)
    assert run("undo", "--yes").exit_code == 0
    assert (contents(client), files(tmp_path)) == after


@pytest.mark.parametrize("glue", [b", ", b",", b" ,\n  "])
def test_damaged_messages_are_moved_in_files(tmp_path: Path, run: Run, glue: bytes) -> None:
    folder = tmp_path / "sessions"
    folder.mkdir()
    for name, items in {
        "u_s": MIXED,
        "u_t": [b"5", SOUND],
        "u_ok": [SOUND],
        "u_no": [b"5"],
    }.items():
        (folder / f"{name}.json").write_bytes(state(items).replace(b", ", glue))
    (folder / "u_cut.json").write_bytes(state([SOUND])[:-4])
    items = [one for one in MIXED if one is not SOUND]
    after = move(run, str(folder), lambda: files(folder), [*items, b"5", b"5"])
    assert files(folder) == after
    found = report(run("inspect", folder, "--json"), 7)["memories"]
    assert {one["session"]: one["messages"] for one in found} == {"s": 3, "t": 1, "ok": 1, "no": 0}
    assert (folder / "u_cut.json").read_bytes() == state([SOUND])[:-4]
    [left] = report(run("doctor", folder, "--json"), 6)["findings"]
    assert (left["code"], left["session"]) == ("damaged-state", "cut")


def test_pair_with_damaged_marks_is_moved_whole(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "s.json"
    pairs = [[message(0), []], [message(1), 5], [message(2)], [message(3), ["a"], 7], message(4)]
    memory = {"content": pairs, "_compressed_summary": None}
    path.write_text(json.dumps(memory))
    [found] = report(run("doctor", path, "--json"), 6)["findings"]
    assert (found["code"], found["count"]) == ("damaged-message", 3)
    assert found["ids"] == ["content[1]"]
    done = report(run("doctor", path, "--repair", "--yes", "--json"))
    assert json.loads(path.read_bytes())["content"] == [pairs[0], pairs[4]]
    assert json.dumps(pairs[1:4])[1:-1] in quarantined(done["quarantine"])


def test_repair_of_a_memory_leaves_damage_of_others_where_it_is(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "s.json"
    memory = {"content": [[message(0), []], 5], "_compressed_summary": ""}
    path.write_text(json.dumps({"one": memory, "two": memory}))
    for name in ("one", "two"):
        repair = run("doctor", path, "--path", name, "--repair", "--yes", "--json")
        [found] = report(repair, 6 if name == "one" else 0)["repaired"]
        assert (found["code"], found["count"]) == ("damaged-message", 1)
        state = json.loads(path.read_bytes())
        assert state[name]["content"] == memory["content"][:1]
        assert name == "two" or state["two"] == memory
    nothing = run("doctor", path, "--path", "three", "--repair", "--yes")
    fails(nothing, 4, "no memory 'three'", "one, two")


def test_repair_that_fails_after_the_first_session_is_partial(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        (tmp_path / f"u_{name}.json").write_bytes(state([b"5", SOUND]))
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


@st.composite
def some_items(draw: st.DrawFn, cut: bool) -> list[bytes | None]:
    damage = st.sampled_from(DAMAGED + CUT if cut else DAMAGED)
    return draw(st.lists(st.one_of(st.none(), damage), min_size=1, max_size=8))


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
def test_any_damage_is_moved_in_redis(servers: Servers, run: Run, name: str) -> None:
    layout = LAYOUTS[name]

    @settings(max_examples=15)
    @given(some_items(layout.cut))
    def check(items: list[bytes | None]) -> None:
        url = servers.redis.fresh()
        with servers.redis.client(url) as client:
            layout.fill(client, items)
            damaged = [item for item in items if item is not SOUND]
            move(run, url + layout.options, lambda: contents(client), damaged)

    check()


Fault = Callable[[redis.Redis], None]
OF_MEMORY = [make for some in FAULTS.values() for make in some]


def is_sound(payload: tuple[Any, Any] | None) -> bool:
    """Return whether a payload, as ``contents`` has it, is a message."""
    return payload is not None and isinstance(payload[0], bytes) and is_object(payload[0])


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
        listed = [id.decode() for id in before[f"{BASE}:messages".encode()][0]]
        sound = [id for id in listed if is_sound(before.get(f"{BASE}:msg:{id}".encode()))]
        assert client.lrange(f"{BASE}:messages", 0, -1) == [id.encode() for id in sound]
    else:
        assert contents(client) == before


@pytest.mark.parametrize("make", OF_MEMORY)
def test_faults_of_a_memory_are_repaired_and_undone(
    client: redis.Redis, redis_url: str, run: Run, make: Fault
) -> None:
    repair_faults(client, redis_url, run, [make])


@pytest.mark.slow
def test_any_faults_of_a_memory_are_repaired_and_undone(servers: Servers, run: Run) -> None:
    @settings(max_examples=15)
    @given(st.lists(st.sampled_from(OF_MEMORY), min_size=1, max_size=4, unique=True))
    @example([damaged_payloads, many_without_payload])
    @example([all_damaged, early, orphan_marks])
    def check(some: list[Fault]) -> None:
        url = servers.redis.fresh()
        with servers.redis.client(url) as client:
            repair_faults(client, url, run, some)

    check()


@pytest.mark.slow
@pytest.mark.parametrize("single", [True, False])
def test_any_damage_is_moved_in_files(
    tmp_path_factory: pytest.TempPathFactory, run: Run, single: bool
) -> None:
    @settings(max_examples=15)
    @given(some_items(cut=False), some_items(cut=False))
    def check(one: list[bytes | None], other: list[bytes | None]) -> None:
        folder = tmp_path_factory.mktemp("states")
        (folder / "u_s.json").write_bytes(state(one))
        if not single:
            (folder / "u_t.json").write_bytes(state(other))
        damaged = [item for item in (one if single else [*one, *other]) if item is not SOUND]
        url = str(folder / "u_s.json") if single else str(folder)
        move(run, url, lambda: files(folder), damaged)

    check()


@pytest.mark.slow
def test_any_damage_is_moved_in_a_database(
    tmp_path_factory: pytest.TempPathFactory, run: Run
) -> None:
    good = make_good(tmp_path_factory.mktemp("good") / "m.db")

    @settings(max_examples=20)
    @given(st.lists(st.sampled_from(sorted(DAMAGE)), min_size=1, max_size=3, unique=True))
    def check(damages: list[str]) -> None:
        path = tmp_path_factory.mktemp("rows") / "m.db"
        shutil.copy(good, path)
        with sqlite3.connect(path) as driver:
            for damage in damages:
                driver.execute(DAMAGE[damage])
        driver.close()
        before = dump(path)
        repaired = run("doctor", path, "--repair", "--yes", "--json")
        assert repaired.exit_code in (0, 6), repaired.stderr
        assert repairable(run, str(path)) == {}
        undone = run("undo", json.loads(repaired.stdout)["run"], "--yes")
        assert undone.exit_code == 0, undone.stderr
        left = repairable(run, str(path))
        assert "damaged-row" not in left
        for table, rows in dump(path).items():  # nothing is new
            assert set(rows) <= set(before[table])

    check()


@pytest.mark.parametrize("name", ["memory", "2.x log", "state"])
def test_erase_removes_what_was_moved_from_the_journal(
    client: redis.Redis, redis_url: str, run: Run, name: str
) -> None:
    LAYOUTS[name].fill(client, [SOUND, b'["my secret"]'])
    url = redis_url + LAYOUTS[name].options
    assert run("doctor", url, "--repair", "--yes").exit_code in (0, 6)
    [journal] = runs_folder().rglob("quarantine.ndjson")
    assert "my secret" in journal.read_text()
    assert run("erase", url, "--user", "u", "--yes").exit_code == 0
    assert not list(runs_folder().rglob("quarantine.ndjson"))
