"""Sessions of AgentScope 2.x in Redis: record, log and ids change together, and nothing is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import redis

from memctl.model import Change, Memory, MemoryKey, WriteMode
from memctl.registry import make_store, parse
from memctl.store import OpenMode, Store
from memctl.testing.drive import assert_changed, edit, edits, read, write
from memctl.testing.samples import Sample
from tests.support.cli import Run, report
from tests.support.redis_sessions import BASE, contents, message, put_session, record, result
from tests.support.servers.pool import Servers

KEY = MemoryKey("u", "s")
ONE, TWO, THREE = message("m1"), message("m2"), message("m3")


def store_of(url: str, options: str = "", mode: OpenMode = OpenMode.CHANGE) -> Store:
    return make_store(parse(f"{url}?layout=agentscope2{options}"), mode)


def state_of(client: redis.Redis) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(client.get(BASE) or b"{}")  # type: ignore[arg-type]
    return found


def log_of(client: redis.Redis) -> list[str]:
    texts: Any = client.lrange(f"{BASE}:messages", 0, -1)
    return [json.loads(text)["id"] for text in texts]


def ids_of(client: redis.Redis) -> set[bytes]:
    found: Any = client.smembers(f"{BASE}:message_ids")
    return set(found)


def codes(run: Run, url: str) -> dict[str, int]:
    reported = run("doctor", f"{url}?layout=agentscope2", "--json")
    return {one["code"]: one["count"] for one in json.loads(reported.stdout)["findings"]}


async def test_session_is_a_memory(client: redis.Redis, redis_url: str) -> None:
    put_session(client, record([TWO, THREE]), [ONE, TWO, THREE], ttl=1000)
    async with store_of(redis_url, mode=OpenMode.READ) as store:
        found = (await read(store))[KEY]
    assert [(one.id, one.marks) for one in found.entries] == [
        ("m1", ("compressed",)),
        ("m2", ()),
        ("m3", ()),
    ]
    assert found.memory.summary == "sum"
    assert found.memory.ttl == pytest.approx(1000, abs=5)
    extra = json.loads(found.memory.extra)
    assert extra["payload"]["new"] == 1
    assert extra["state"]["reply_context"] == {"n": 1}
    assert "context" not in extra


async def test_session_of_names_with_colons(client: redis.Redis, redis_url: str) -> None:
    for user, session in (("u", "s:session:t"), ("u:session:s", "x"), ("u", "s:messages")):
        put_session(client, record([ONE], user_id=user, id=session), [ONE])
    async with store_of(redis_url) as store:
        assert set(await read(store)) == {
            MemoryKey("u", "s:session:t"),
            MemoryKey("u:session:s", "x"),
            MemoryKey("u", "s:messages"),
        }
        other = Sample(Memory(MemoryKey("u:session:s", "t")), [])
        failure = (await write(store, [other]))[other.key].failure
        assert failure is not None
        assert failure.code == "bad-name", "its key is that of u / s:session:t"
        own = Sample(Memory(MemoryKey("u", "s")), [])
        failure = (await write(store, [own]))[own.key].failure
        assert failure is not None
        assert failure.code == "bad-name", "its log would be where the record of s:messages is"


async def test_session_keeps_what_memctl_does_not_know(client: redis.Redis, redis_url: str) -> None:
    put_session(client, record([ONE, TWO]), [ONE, TWO, THREE], ttl=1000)
    client.expire(f"{BASE}:messages", 500)
    async with store_of(redis_url) as store:
        await edit(store, edits(KEY, [Change("m1", ()), Change("m3", ("compressed",), ())]))
    expected = record([TWO, THREE])
    assert state_of(client) == expected
    assert list(state_of(client)["state"]) == list(expected["state"])
    assert log_of(client) == ["m2", "m3"]
    assert ids_of(client) == {b"m2", b"m3"}
    assert client.ttl(BASE) == pytest.approx(1000, abs=5)
    assert client.ttl(f"{BASE}:messages") == pytest.approx(500, abs=5)
    assert client.ttl(f"{BASE}:message_ids") == pytest.approx(1000, abs=5)


@pytest.mark.parametrize(
    "words",
    [
        ("delete", "--id", "m1", "--yes"),
        ("delete", "--id", "m2", "--yes"),
        ("delete", "--user", "u", "--yes"),
        ("mark", "add", "compressed", "--id", "m3"),
        ("mark", "remove", "compressed"),
        ("compress", "--keep-recent", "1"),
    ],
    ids=" ".join,
)
def test_session_is_restored_exactly(
    client: redis.Redis, redis_url: str, run: Run, words: tuple[str, ...]
) -> None:
    """Also where the context has another text of a message, and one that the log lacks."""
    variant, unlogged = message("m2", metadata={"cut": True}), message("m9")
    put_session(client, record([unlogged, variant, THREE]), [ONE, TWO, THREE], ttl=1000)
    before = contents(client)
    store = f"{redis_url}?layout=agentscope2"
    at = 2 if words[0] == "mark" else 1
    command = [*words[:at], store, *words[at:]]
    assert run(*command).exit_code == 0
    assert contents(client) != before
    assert run("undo", "--yes").exit_code == 0
    assert contents(client) == before


async def test_session_loses_a_message_from_context_and_log(
    client: redis.Redis, redis_url: str
) -> None:
    variant, unlogged = message("m2", metadata={"cut": True}), message("m9")
    put_session(client, record([unlogged, ONE, variant]), [ONE, TWO])
    async with store_of(redis_url) as store:
        await edit(store, edits(KEY, [Change("m2", ())]))
    assert [one["id"] for one in state_of(client)["state"]["context"]] == ["m9", "m1"]
    assert log_of(client) == ["m1"]


async def test_session_that_comes_has_an_agent(client: redis.Redis, redis_url: str) -> None:
    sample = Sample(Memory(KEY, "", ttl=1000.0), [])
    async with store_of(redis_url, "&agent=helper", OpenMode.CREATE) as store:
        assert not (await write(store, [sample]))[KEY].failure
    assert state_of(client)["agent_id"] == "helper"
    assert client.smembers("agentscope:user:u:agents") == {b"helper"}
    assert client.smembers("agentscope:user:u:agent:helper:sessions") == {b"s"}
    agent: Any = client.get("agentscope:user:u:agent:helper")
    assert json.loads(agent)["user_id"] == "u"
    assert client.ttl(BASE) == pytest.approx(1000, abs=5)


@pytest.mark.parametrize("has_agent", [True, False])
def test_session_that_came_goes_without_a_trace(
    client: redis.Redis, redis_url: str, run: Run, tmp_path: Path, has_agent: bool
) -> None:
    url, archive = f"{redis_url}?layout=agentscope2", str(tmp_path / "a.ndjson")
    put_session(client, record([ONE, TWO]), [ONE, TWO])
    assert run("export", url, "-o", archive).exit_code == 0
    client.flushdb()
    other = {"id": "other"} if has_agent else {"user_id": "another"}
    put_session(client, record([ONE], **other), [ONE])
    before = contents(client)
    assert run("import", archive, url).exit_code == 0
    assert log_of(client) == ["m1", "m2"]
    assert run("undo", "--yes").exit_code == 0
    assert contents(client) == before


def test_session_goes_to_another_redis_and_back(
    client: redis.Redis, redis_url: str, run: Run, servers: Servers
) -> None:
    variant = message("m2", metadata={"cut": True})
    blocks = [{"type": "text", "text": "in blocks"}]
    put_session(client, record([variant, ONE]), [ONE, TWO, THREE])
    client.set(BASE, json.dumps(record([variant, ONE], team_id="t") | {"x": blocks}))
    source, target = f"{redis_url}?layout=agentscope2", servers.redis.fresh()
    assert run("migrate", source, f"{target}?layout=agentscope2").exit_code == 0
    assert run("verify", source, f"{target}?layout=agentscope2").exit_code == 0
    with servers.redis.client(target) as other:
        assert state_of(other) == state_of(client)
        assert log_of(other) == log_of(client)


async def test_session_is_not_replaced_at_an_old_version(
    client: redis.Redis, redis_url: str
) -> None:
    put_session(client, record([ONE]), [ONE])
    async with store_of(redis_url) as store:
        old = (await read(store))[KEY]
        changed = record([ONE])
        changed["state"]["reply_context"] = {"n": 2}
        client.set(BASE, json.dumps(changed))
        assert_changed((await write(store, [old], WriteMode.REPLACE))[KEY])
    assert state_of(client) == changed


async def test_session_of_a_log_alone(client: redis.Redis, redis_url: str) -> None:
    """It stays without a record as long as none is needed."""
    put_session(client, record([TWO]), [ONE, TWO])
    client.delete(BASE)
    async with store_of(redis_url) as store:
        found = (await read(store))[KEY]
        assert [one.marks for one in found.entries] == [("compressed",), ("compressed",)]
        await edit(store, edits(KEY, [Change("m1", ("compressed",))]))
        assert log_of(client) == ["m2"]
        assert not client.exists(BASE)
        refused = await edit(store, edits(KEY, [Change("m2", ("compressed",), ())]))
        failure = refused[KEY].failure
        assert failure is not None
        assert failure.code == "refused"
    assert not client.exists(BASE)


def test_session_of_a_log_alone_is_restored_without_a_record(
    client: redis.Redis, redis_url: str, run: Run
) -> None:
    put_session(client, record([TWO]), [ONE, TWO])
    client.delete(BASE)
    before = contents(client)
    assert run("delete", f"{redis_url}?layout=agentscope2", "--all", "--yes").exit_code == 0
    assert not log_of(client)
    assert run("undo", "--yes").exit_code == 0
    assert contents(client) == before


@pytest.mark.parametrize(
    "damage",
    ['{"id": "s", "user_id": "u"', '{"id": "s", "user_id": "u", "state": {"context": 7}}', "[]"],
)
def test_session_that_is_damaged_is_left_out_and_named(
    client: redis.Redis, redis_url: str, run: Run, damage: str
) -> None:
    put_session(client, record([ONE]), [ONE])
    put_session(client, record([ONE], id="t"), [ONE])
    client.set(BASE, damage)
    url = f"{redis_url}?layout=agentscope2"
    found = run("inspect", url, "--json")
    assert found.exit_code == 7
    assert [one["session"] for one in json.loads(found.stdout)["memories"]] == ["t"]
    assert codes(run, redis_url) == {"damaged-state": 1}
    assert run("delete", url, "--session", "s", "--yes").exit_code != 0
    assert client.get(BASE) == damage.encode()


def test_findings_of_sessions(client: redis.Redis, redis_url: str, run: Run) -> None:
    unlogged = message("m9")
    put_session(client, record([unlogged, ONE]), [ONE])
    assert codes(run, redis_url) == {"context-not-in-log": 1}
    client.flushdb()
    put_session(client, record([result("m1", "c1")]), [result("m1", "c1")])
    assert "context-result-without-call" in codes(run, redis_url)
    client.flushdb()
    put_session(client, record([ONE]), [ONE], ttl=1000)
    assert codes(run, redis_url) == {}
    client.expire(f"{BASE}:messages", 100)
    assert codes(run, redis_url) == {"session-expires-apart": 1}
    client.persist(f"{BASE}:messages")
    assert codes(run, redis_url) == {"session-expires-apart": 1}
    client.delete(BASE)
    found = {"session-record-missing": 1, "session-index-expired": 1}
    assert codes(run, redis_url) == found
    run("doctor", f"{redis_url}?layout=agentscope2", "--repair", "--yes")
    assert codes(run, redis_url) == found
    assert not client.exists(BASE), "a repair makes no session"
    client.delete(f"{BASE}:messages", f"{BASE}:message_ids", "agentscope:user:u:agent:a")
    assert codes(run, redis_url) == {"session-index-expired": 1}
    assert run("doctor", f"{redis_url}?layout=agentscope2").exit_code == 0
    assert report(run("inspect", redis_url, "--json"))["memories"] == []
