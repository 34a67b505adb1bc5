"""What the services of agentscope-runtime keep in Redis: read, changed, and given back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import redis

from memctl.model import Change, MemoryKey
from memctl.registry import make_store, parse
from memctl.store import OpenMode, Store
from memctl.testing.drive import edit, edits, read
from tests.support.cli import Run, fails, report
from tests.support.redis_sessions import history, runtime_message
from tests.support.servers.pool import Servers


def store_of(url: str, options: str = "layout=runtime") -> Store:
    return make_store(parse(f"{url}?{options}"), OpenMode.CHANGE)


async def ids(url: str, options: str = "layout=runtime") -> dict[MemoryKey, list[str]]:
    async with store_of(url, options) as store:
        found = await read(store)
    return {key: [one.id for one in sample.entries] for key, sample in found.items()}


def fill(client: redis.Redis) -> None:
    client.set("session:u:s", history("u", "s", ["m1", "m2"], kept="as it was"), ex=1000)
    messages = [runtime_message("m3"), runtime_message("m4")]
    client.hset("user_memory:u", "s", json.dumps(messages))
    client.hset("user_memory:u", "default", json.dumps(messages[:1]))
    client.expire("user_memory:u", 2000)


def codes(run: Run, url: str) -> dict[str, int]:
    reported = run("doctor", url, "--json")
    return {one["code"]: one["count"] for one in json.loads(reported.stdout)["findings"]}


async def test_runtime_services_side_by_side(client: redis.Redis, redis_url: str) -> None:
    fill(client)
    assert await ids(redis_url) == {
        MemoryKey("u", "s"): ["m1", "m2"],
        MemoryKey("u", "s", "memory"): ["m3", "m4"],
        MemoryKey("u", "default", "memory"): ["m3"],
    }
    assert await ids(redis_url, "layout=runtime&path=history") == {
        MemoryKey("u", "s"): ["m1", "m2"]
    }
    assert await ids(redis_url, "layout=runtime&path=memory") == {
        MemoryKey("u", "s"): ["m3", "m4"],
        MemoryKey("u", "default"): ["m3"],
    }


async def test_runtime_history_says_whose_it_is(client: redis.Redis, redis_url: str) -> None:
    client.set("session:u:x:s", history("u:x", "s", ["m1"]))
    client.set("session:u:y:s", history("u", "y:s", ["m2"]))
    client.set("session:u:z:s", history("somebody", "else", ["m3"]))
    found = await ids(redis_url)
    assert found == {
        MemoryKey("u:x", "s"): ["m1"],
        MemoryKey("u", "y:s"): ["m2"],
        MemoryKey("u", "z:s"): ["m3"],
    }
    async with store_of(redis_url) as store:
        [wrong] = (await edit(store, edits(MemoryKey("u", "x:s"), [Change("m1", ())]))).values()
        assert wrong.failure is not None
        assert wrong.failure.code == "bad-name"
    assert await ids(redis_url) == found


@pytest.mark.parametrize("words", [("--id", "m1"), ("--user", "u"), ("--id", "m4")], ids=" ".join)
def test_runtime_change_keeps_the_rest_and_is_undone_exactly(
    client: redis.Redis, redis_url: str, run: Run, servers: Servers, words: tuple[str, ...]
) -> None:
    fill(client)
    before = _values(client)
    assert run("delete", f"{redis_url}?layout=runtime", *words, "--yes").exit_code == 0
    assert json.loads(_text(client.get("session:u:s")))["kept"] == "as it was"
    assert client.ttl("session:u:s") == pytest.approx(1000, abs=10)
    assert client.ttl("user_memory:u") == pytest.approx(2000, abs=10)
    assert _values(client) != before
    assert run("undo", "--yes").exit_code == 0
    assert _values(client) == before
    assert all(kept for _, kept in servers.redis.dump(redis_url).values())


def _text(reply: Any) -> bytes:
    assert isinstance(reply, bytes)
    return reply


def _values(client: redis.Redis) -> list[Any]:
    fields: Any = client.hgetall("user_memory:u")
    texts = [_text(client.get("session:u:s")), *(fields[name] for name in sorted(fields))]
    return [json.loads(text) for text in texts]


def test_runtime_archive_comes_back_and_goes(
    client: redis.Redis, redis_url: str, run: Run, tmp_path: Path
) -> None:
    fill(client)
    url, archive = f"{redis_url}?layout=runtime", str(tmp_path / "a.ndjson")
    before = _values(client)
    assert run("export", url, "-o", archive).exit_code == 0
    client.flushdb()
    client.set("session:u:another", history("u", "another", ["m1"]))
    client.sadd("session_index:u", "another")
    assert run("import", archive, url).exit_code == 0
    assert _values(client) == before
    assert client.ttl("session:u:s") == pytest.approx(1000, abs=30)
    assert client.smembers("session_index:u") == {b"another", b"s"}
    assert run("verify", archive, url, "--session", "s").exit_code == 0
    assert run("undo", "--yes").exit_code == 0
    assert set(client.keys()) == {b"session:u:another", b"session_index:u"}  # type: ignore[arg-type]
    assert client.smembers("session_index:u") == {b"another"}


@pytest.mark.parametrize("layout", ["runtime", "runtime-state"])
def test_runtime_takes_nothing_new(
    client: redis.Redis, redis_url: str, run: Run, servers: Servers, layout: str
) -> None:
    fill(client)
    target = servers.redis.fresh()
    result = run("migrate", f"{redis_url}?layout=runtime", f"{target}?layout={layout}")
    fails(result, 2, "retired format", "agentscope2")
    assert servers.redis.dump(target) == {}
    result = run("mark", "add", "--all", f"{redis_url}?layout=runtime", "compressed")
    fails(result, 2, "cannot be marked")


def test_runtime_findings(client: redis.Redis, redis_url: str, run: Run) -> None:
    client.set("session:u:s", history("u", "s", ["m1"]))
    assert codes(run, redis_url) == {}
    client.expire("session:u:s", 1000)
    assert codes(run, redis_url) == {"expires-unread": 1}
    client.persist("session:u:s")
    client.sadd("session_index:u", "s", "gone")
    assert codes(run, redis_url) == {"session-index-stale": 1}
    client.delete("session_index:u")
    client.set("session:u:x:s", history("u:x", "s", ["m1"]))
    assert codes(run, redis_url) == {"ambiguous-key": 1}
    client.set("session:u:x:s", history("somebody", "else", ["m1"]))
    assert codes(run, redis_url) == {"owner-mismatch": 1}
    client.set("session:u:x:s", '{"id": "s", "user_id": "u:x", "messages": [')
    assert codes(run, redis_url) == {"damaged-state": 1}
    found = run("inspect", redis_url, "--json")
    assert found.exit_code == 7
    assert len(json.loads(found.stdout)["memories"]) == 1


def test_runtime_option_that_is_wrong(redis_url: str, run: Run) -> None:
    fails(run("inspect", f"{redis_url}?layout=runtime&path=agent"), 2, "'history'", "'memory'")


# States


def state(*ids: str) -> str:
    content = [[{"id": id, "name": "n", "role": "user", "content": id}, []] for id in ids]
    memory = {"_compressed_summary": "", "content": content}
    return json.dumps({"agent": {"memory": memory, "other": 1}})


async def test_runtime_states_have_rounds(client: redis.Redis, redis_url: str) -> None:
    client.hset("user_state:u:s", mapping={"1": state("m1"), "2": state("m1", "m2")})
    client.hset("user_state:u:single", "10", state("m1"))
    layout = "layout=runtime-state"
    assert await ids(redis_url, layout) == {
        MemoryKey("u", "s", "1"): ["m1"],
        MemoryKey("u", "s", "2"): ["m1", "m2"],
        MemoryKey("u", "single"): ["m1"],
    }
    for path in ("latest", "latest:agent.memory"):
        assert await ids(redis_url, f"{layout}&path={path}") == {
            MemoryKey("u", "s"): ["m1", "m2"],
            MemoryKey("u", "single"): ["m1"],
        }
    assert await ids(redis_url, f"{layout}&path=1") == {MemoryKey("u", "s"): ["m1"]}
    assert await ids(redis_url, f"{layout}&path=1:other") == {}


def test_runtime_states_are_changed_in_their_round(
    client: redis.Redis, redis_url: str, run: Run
) -> None:
    before = {"1": state("m1"), "2": state("m1", "m2")}
    client.hset("user_state:u:s", mapping=before)
    client.expire("user_state:u:s", 1000)
    url = f"{redis_url}?layout=runtime-state"
    assert run("delete", url, "--id", "m1", "--path", "2", "--yes").exit_code == 0
    assert _rounds(client) == {"1": state("m1"), "2": state("m2")}
    assert run("undo", "--yes").exit_code == 0
    assert _rounds(client) == before
    assert run("delete", url, "--user", "u", "--yes").exit_code == 0
    assert _rounds(client) == {"1": state(), "2": state()}
    assert run("undo", "--yes").exit_code == 0
    assert _rounds(client) == before
    assert client.ttl("user_state:u:s") == pytest.approx(1000, abs=10)
    assert "expires-unread" in codes(run, url)
    assert report(run("inspect", url, "--path", "latest", "--json"))["memories"]


def _rounds(client: redis.Redis) -> dict[str, str]:
    found: Any = client.hgetall("user_state:u:s")
    return {name.decode(): text.decode() for name, text in found.items()}
