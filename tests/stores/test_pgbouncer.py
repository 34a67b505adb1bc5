"""PostgreSQL behind PgBouncer, with its defaults: every command works, one run after the other."""

from __future__ import annotations

import asyncio
import json
from asyncio.subprocess import DEVNULL, PIPE
from contextlib import suppress
from pathlib import Path

import asyncpg
import pytest

from memctl.errors import Busy
from memctl.model import MemoryKey
from memctl.registry import make_store, parse
from memctl.shard import Shard
from memctl.store import OpenMode, Store
from memctl.testing import samples
from tests.support.backends import DIMENSIONS, FACT_BACKENDS, mem0_key, with_pgvector
from tests.support.cli import Run, fails, fill, report
from tests.support.processes import MEMCTL
from tests.support.servers.pgbouncer import MODES
from tests.support.servers.pool import Servers

KEYS = [MemoryKey("ada", "kyoto"), MemoryKey("ada", "osaka"), MemoryKey("bob", "kyoto-2")]
POOLED = [pytest.param("session", marks=pytest.mark.slow), "transaction"]
"""In the mode "transaction", prepared statements and settings do not stay, either."""
LAYOUTS = ["", "?layout=agentscope2", "?layout=agno", "?layout=openai-agents&owner=ada"]


@pytest.fixture(params=POOLED)
def pooled(request: pytest.FixtureRequest, servers: Servers) -> tuple[str, str]:
    """The URLs of a new database, through PgBouncer and without it."""
    direct = servers.postgresql.fresh()
    return servers.pgbouncer(request.param).url(direct), direct


@pytest.fixture
def source(tmp_path: Path) -> str:
    """A SQLite database with some memories."""
    text = f"sqlite:///{tmp_path}/source.db"
    memories = {key: samples.entries(30, 100 * n) for n, key in enumerate(KEYS)}
    asyncio.run(fill(text, memories))
    return text


@pytest.mark.slow
def test_pgbouncer_all_commands(
    run: Run, pooled: tuple[str, str], source: str, tmp_path: Path
) -> None:
    through, direct = pooled
    for jobs in (4, 1):
        done = run("migrate", source, through, "--jobs", jobs)
        assert (done.exit_code, done.stderr) == (0, "")
    assert report(run("inspect", through, "--json"))["totals"]["messages"] == 90
    assert run("verify", source, through).exit_code == 0
    for n in range(3):  # other sessions of the server, where names may be taken
        assert run("export", through, "-o", tmp_path / f"{n}.ndjson").exit_code == 0
    assert run("migrate", through, tmp_path / "back.db", "--jobs", "4").exit_code == 0
    assert run("verify", source, tmp_path / "back.db").exit_code == 0
    changes = [
        report(run("delete", through, "--mark", "hint", "--yes", "--json")),
        report(run("mark", "add", through, "new", "--role", "user", "--json")),
        report(run("doctor", through, "--repair", "--yes", "--json")),
        report(run("delete", through, "--keep-last", "3", "--yes", "--json")),
    ]
    assert "no-session-index" in json.dumps(changes[2])
    assert run("search", through, "message", "--no-index").exit_code == 0
    for changed in reversed(changes):
        undone = run("undo", changed["run"], "--store", through, "--yes")
        assert undone.exit_code == 0, undone.stderr
    assert run("verify", source, direct).exit_code == 0
    report(run("compress", through, "--keep-last", "5", "--summarizer", "extractive", "--json"))
    assert run("erase", through, "--user", "ada", "--yes").exit_code == 0
    assert report(run("inspect", direct, "--json"))["totals"]["users"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_pgbouncer_layouts(
    run: Run, pooled: tuple[str, str], source: str, tmp_path: Path, layout: str
) -> None:
    through = pooled[0] + layout
    words = ("--user", "ada", "--lossy", "--jobs", "4")
    for _ in range(2):
        assert run("migrate", source, through, *words).exit_code == 0
    deleted = run("delete", through, "--session", "osaka", "--yes", "--json")
    assert report(deleted)["messages"]["deleted"] == 30
    assert run("undo", report(deleted)["run"], "--store", through, "--yes").exit_code == 0
    assert run("migrate", through, tmp_path / "back.ndjson", "--lossy").exit_code == 0
    assert report(run("inspect", tmp_path / "back.ndjson", "--json"))["totals"]["messages"] == 60


async def call(*words: object) -> tuple[int | None, str]:
    """Run memctl in a process of its own; return its exit code and what it printed to stderr."""
    process = await asyncio.create_subprocess_exec(
        *MEMCTL, *map(str, words), stdout=DEVNULL, stderr=PIPE
    )
    _, said = await process.communicate()
    return process.returncode, said.decode()


@pytest.mark.slow
async def test_pgbouncer_runs_at_once(pooled: tuple[str, str], source: str, tmp_path: Path) -> None:
    """Readers get whatever session of the server is free, and are not confused by others."""
    through, _ = pooled
    assert await call("migrate", source, through) == (0, "")
    ends = [call("export", through, "-o", tmp_path / f"{n}.ndjson", "-q") for n in range(6)]
    assert await asyncio.gather(*ends) == [(0, "")] * 6


@pytest.mark.slow
async def test_pgbouncer_one_run_at_a_time(pooled: tuple[str, str], source: str) -> None:
    """The lock holds, also against runs that do not go through the pooler; and it ends."""
    assert await call("migrate", source, pooled[0]) == (0, "")
    for holder in pooled:
        async with make_store(parse(holder), OpenMode.CHANGE) as store:
            await store.lock("another run")
            for place in pooled:
                code, said = await call("mark", "add", place, "x", "--user", "bob")
                assert (code, "another run" in said) == (75, True), said
    for place in pooled:
        code, said = await call("mark", "add", place, "x", "--user", "bob")
        assert code == 0, said


@pytest.mark.slow
async def test_pgbouncer_locks_of_shards(pooled: tuple[str, str]) -> None:
    async def taken(place: str, shard: Shard | None) -> bool:
        async with part(place, shard) as store:
            with suppress(Busy):
                await store.lock("another run")
                return True
        return False

    def part(place: str, shard: Shard | None) -> Store:
        store = make_store(parse(place), OpenMode.CREATE)
        store.shard = shard
        return store

    for holder in pooled:
        async with part(holder, Shard(0, 4)) as store:
            await store.lock("one run")
            for place in pooled:
                assert not await taken(place, Shard(0, 4))
                assert not await taken(place, None)
                assert await taken(place, Shard(1, 4))
        assert await taken(holder, None)


@pytest.mark.slow
def test_pgbouncer_nothing_stays_in_the_sessions_of_the_server(
    run: Run, servers: Servers, source: str
) -> None:
    direct = servers.postgresql.fresh()
    through = servers.pgbouncer("transaction").url(direct)
    assert run("migrate", source, through).exit_code == 0
    for key in KEYS:  # positions that others take are shifted
        words = ("delete", through, "--user", key.user, "--session", key.session, "--keep-last", 2)
        done = report(run(*words, "--yes", "--json"))["run"]
        assert run("undo", done, "--store", through, "--yes").exit_code == 0
    assert run("doctor", through, "--repair", "--yes").exit_code in (0, 6)

    async def left() -> list[asyncpg.Record]:
        client = await asyncpg.connect(through, statement_cache_size=0)
        try:
            async with client.transaction():
                return await client.fetch(
                    "SELECT name FROM pg_prepared_statements WHERE name <> '' AND name NOT LIKE "
                    "'__asyncpg%' UNION ALL SELECT relname FROM pg_class WHERE relpersistence = "
                    "'t' UNION ALL SELECT locktype FROM pg_locks JOIN pg_database ON oid = "
                    "database WHERE locktype = 'advisory' AND datname = current_database()"
                )
        finally:
            await client.close()

    assert asyncio.run(left()) == []


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
async def test_pgbouncer_facts_of_mem0(servers: Servers, tmp_path: Path, mode: str) -> None:
    direct = with_pgvector(servers)
    through = servers.pgbouncer(mode).url(direct)

    def store(name: str, url: str) -> str:
        settings = {"connection_string": url, "embedding_model_dims": DIMENSIONS}
        vector_store = {
            "provider": "pgvector",
            "config": settings | {"collection_name": name.partition("-")[0]},
        }
        history = str(tmp_path / f"{name}.db")
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps({"vector_store": vector_store, "history_db_path": history}))
        return f"mem0:{file}"

    facts, copy, pooled = store("facts", direct), store("copy", direct), store("copy-2", through)
    samples.use(FACT_BACKENDS["mem0-pgvector"](servers).style)
    await fill(facts, {mem0_key(0): samples.entries(30), mem0_key(1): samples.entries(5, 50)})
    samples.use(samples.Style())
    for _ in range(2):
        assert await call("migrate", facts, pooled) == (0, "")
    assert await call("verify", facts, copy) == (0, "")
    words = ("--user", mem0_key(0).user, "--yes", "-q")
    assert await call("delete", pooled, *words) == (0, "")
    async with make_store(parse(copy), OpenMode.CHANGE) as locked:
        await locked.lock("another run")
        code, said = await call("delete", pooled, *words)
        assert (code, "another run" in said) == (75, True), said
    async with make_store(parse(pooled), OpenMode.CHANGE) as locked:
        await locked.lock("another run")
        code, said = await call("delete", copy, *words)
        assert (code, "another run" in said) == (75, True), said
    assert await call("undo", "--store", pooled, "--yes", "-q") == (0, "")
    assert await call("verify", pooled, facts) == (0, "")


def test_pgbouncer_errors_say_what_to_do(run: Run, servers: Servers, source: str) -> None:
    direct = servers.postgresql.fresh()
    through = servers.pgbouncer("transaction").url(direct)
    found = run("inspect", f"{through}?options=-cwork_mem%3D8MB")
    fails(found, 2, "unsupported startup parameter", "ignore_startup_parameters")
    by_statement = servers.pgbouncer("statement").url(direct)
    fails(run("inspect", by_statement), 3, "pool_mode of PgBouncer to transaction or session")
    full = servers.pgbouncer("transaction", "default_pool_size = 1", "query_wait_timeout = 1")
    found = run("migrate", source, full.url(direct), "--retries", "0")
    fails(found, 3, "query_wait_timeout", "raise default_pool_size")
