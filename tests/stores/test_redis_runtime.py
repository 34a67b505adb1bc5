"""What the services of agentscope-runtime keep in Redis: read, exported, migrated and erased."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import redis

from memctl.journal.runs import Runs
from memctl.model import MemoryKey
from memctl.registry import make_store, parse
from memctl.testing.drive import read
from tests.support.cli import Run, fails, report
from tests.support.places import runs_kept
from tests.support.redis_sessions import history, message, put_session, runtime_message
from tests.support.redis_sessions import record as session
from tests.support.servers.pool import Servers


async def ids(url: str, options: str = "layout=runtime") -> dict[MemoryKey, list[str]]:
    async with make_store(parse(f"{url}?{options}")) as store:
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


def test_runtime_memories_are_migrated(
    client: redis.Redis, redis_url: str, run: Run, tmp_path: Path
) -> None:
    fill(client)
    source, archive = f"{redis_url}?layout=runtime&path=history", tmp_path / "a.ndjson"
    assert run("export", source, "-o", archive).exit_code == 0
    for place in (source, archive):
        target = f"sqlite:///{tmp_path}/{Path(place).suffix}.db"
        for words in (("migrate", place, target, "--lossy"), ("verify", place, target)):
            assert run(*words).exit_code == 0
    assert run("verify", archive, source).exit_code == 0


CHANGES = (
    *(["delete", "--id", "m1", "--yes"], ["delete", "--all", "--dry-run"]),
    *(["doctor", "--repair", "--yes"], ["doctor", "--repair", "--dry-run"]),
    *(["offload", "--to", "blobs", "--yes"], ["rehydrate", "--from", "blobs"]),
)


@pytest.mark.parametrize("layout", ["runtime", "runtime-state"])
@pytest.mark.parametrize("words", CHANGES, ids=lambda words: "-".join(words[:2]))
def test_runtime_change_is_refused(
    client: redis.Redis, redis_url: str, run: Run, servers: Servers, words: list[str], layout: str
) -> None:
    fill(client)
    client.hset("user_state:u:s", mapping={"1": state("m1"), "2": state("m1", "m2")})
    before = servers.redis.dump(redis_url)
    place = f"{redis_url}?layout={layout}"
    result = run(words[0], place, *words[1:])
    fails(result, 2, "retired format", "hint: migrate it to a current store first")
    fails(run("mark", "add", "--all", place, "compressed"), 2)
    assert servers.redis.dump(redis_url) == before


@pytest.mark.parametrize("layout", ["runtime", "runtime-state"])
@pytest.mark.parametrize("dry", [(), ("--dry-run",)], ids=["", "dry"])
def test_runtime_takes_nothing(
    client: redis.Redis,
    redis_url: str,
    run: Run,
    servers: Servers,
    tmp_path: Path,
    layout: str,
    dry: tuple[str, ...],
) -> None:
    fill(client)
    archive = tmp_path / "a.ndjson"
    assert run("export", f"{redis_url}?layout=runtime", "-o", archive).exit_code == 0
    target = servers.redis.fresh()
    for words in (("migrate", f"{redis_url}?layout=runtime"), ("import", archive)):
        result = run(*words, f"{target}?layout={layout}", *dry)
        fails(result, 2, "retired format", "agentscope2")
    assert servers.redis.dump(target) == {}


@pytest.mark.parametrize("layout", ["runtime", "runtime-state"])
def test_runtime_run_of_an_earlier_version_is_not_undone(
    client: redis.Redis, redis_url: str, run: Run, servers: Servers, layout: str
) -> None:
    put_session(client, session([message("m1")]), [message("m1")])
    url = f"{redis_url}?layout=agentscope2"
    assert run("delete", url, "--id", "m1", "--yes").exit_code == 0
    runs = Runs()
    [folder] = runs_kept()
    changed = runs.find(folder.name)
    changed.store = changed.argument = f"{redis_url}?layout={layout}"
    runs.update(changed)
    client.flushdb()
    fill(client)
    client.hset("user_state:u:s", "1", state("m1"))
    before = servers.redis.dump(redis_url)
    for words in (("--yes",), ("--dry-run",)):
        fails(run("undo", *words), 2, "retired format")
    assert servers.redis.dump(redis_url) == before


def test_runtime_erase_leaves_nothing_of_a_user(
    client: redis.Redis, redis_url: str, run: Run
) -> None:
    fill(client)
    client.sadd("session_index:u", "s", "gone")
    client.set("session:u:t", '{"id": "t", "user_id": "u", "messages": [')
    client.hset("user_state:u:s", mapping={"1": state("m1"), "2": "damaged"})
    others = {"session:v:s", "user_memory:v", "session_index:v", "user_state:v:s"}
    client.set("session:v:s", history("v", "s", ["m1"]))
    client.hset("user_memory:v", "s", "[]")
    client.sadd("session_index:v", "s")
    client.hset("user_state:v:s", "1", state("m1"))
    words = ("--user", "u", "--yes", "--json")
    found = report(run("erase", f"{redis_url}?layout=runtime", *words))
    assert found["stores"][0]["messages"] == 5
    found = report(run("erase", f"{redis_url}?layout=runtime-state", *words))
    assert found["stores"][0]["messages"] == 1
    assert set(client.keys()) == {name.encode() for name in others}  # type: ignore[arg-type]


def test_runtime_damage_is_found(client: redis.Redis, redis_url: str, run: Run) -> None:
    items = f"5, {json.dumps(runtime_message('m1'))}, []"
    client.set("session:u:s", f'{{"id": "s", "user_id": "u", "messages": [{items}]}}')
    client.hset("user_memory:u", "s", f"[{items}]")
    client.hset("user_state:u:s", "1", state("m1").replace("[[", "[5, [", 1))
    for layout, count in (("runtime", 2), ("runtime-state", 1)):
        found = report(run("doctor", f"{redis_url}?layout={layout}", "--json"), 6)["findings"]
        assert [one["code"] for one in found] == ["damaged-state"] * count
        assert not any(one["repairable"] for one in found)


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


def test_runtime_states_expire(client: redis.Redis, redis_url: str, run: Run) -> None:
    client.hset("user_state:u:s", mapping={"1": state("m1"), "2": state("m1", "m2")})
    client.expire("user_state:u:s", 1000)
    url = f"{redis_url}?layout=runtime-state"
    assert codes(run, url) == {"expires-unread": 2}
    assert report(run("inspect", url, "--path", "latest", "--json"))["memories"]
