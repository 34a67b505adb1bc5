"""Logins that may delete messages and not restore them: refused before a deletion."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import pytest
import redis

from memctl.model import MemoryKey
from memctl.testing import Place, Style, samples
from tests.support.backends import new_place
from tests.support.cli import Run, contents, fails, fill, report
from tests.support.places import held, put
from tests.support.servers.pool import Servers

KYOTO = MemoryKey("ada", "kyoto")


class Limited(NamedTuple):
    """A store with a memory: its URL for the owner, and for a login with few rights."""

    url: str
    login: str
    permit: Callable[[], object]
    """Gives the login the missing right."""


@pytest.fixture(params=["postgresql", "mysql"])
def limited(request: pytest.FixtureRequest, servers: Servers) -> Limited:
    """A database whose login may not insert rows into ``message_mark``."""
    login = f"limited_{uuid4().hex[:8]}"
    if request.param == "postgresql":
        url = servers.postgresql.fresh()
        name = url.rpartition("/")[2]
        limited = servers.postgresql.url(name, user=login, password="secret")
        asyncio.run(fill(url, {KYOTO: samples.entries(20)}))
        admin = servers.postgresql.admin_url(url)
        servers.postgresql.execute(
            admin,
            f"CREATE ROLE {login} LOGIN PASSWORD 'secret'; "
            f"GRANT SELECT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {login}; "
            f"GRANT INSERT (id, index, session_id) ON message TO {login}",
        )
        grant = f"GRANT INSERT ON message, message_mark TO {login}"
        return Limited(url, limited, lambda: servers.postgresql.execute(admin, grant))
    url = servers.mariadb.fresh()
    name = url.rpartition("/")[2]
    asyncio.run(fill(url, {KYOTO: samples.entries(20)}))
    servers.mariadb.execute(f"CREATE USER {login} IDENTIFIED BY 'secret'")
    rights = "SELECT, UPDATE, DELETE, CREATE TEMPORARY TABLES"
    servers.mariadb.execute(f"GRANT {rights} ON {name}.* TO {login}")
    servers.mariadb.execute(f"GRANT INSERT ON {name}.message TO {login}")

    def permit() -> None:
        """Give the right through a role, which no list of the login's rights shows."""
        servers.mariadb.execute(f"CREATE ROLE {login}_role")
        servers.mariadb.execute(f"GRANT INSERT ON {name}.* TO {login}_role")
        servers.mariadb.execute(f"GRANT {login}_role TO {login}")
        servers.mariadb.execute(f"SET DEFAULT ROLE {login}_role FOR {login}")

    return Limited(url, servers.mariadb.url(name, user=login, password="secret"), permit)


@pytest.mark.slow
def test_missing_right_to_insert_rows_is_found_before_a_deletion(
    run: Run, limited: Limited
) -> None:
    before = contents(limited.url)
    said = ("INSERT on 'message_mark'", "--no-backup")
    words = ("delete", limited.login, "--mark", "hint", "--yes")
    fails(run(*words), 3, *said)
    fails(run(*words[:-1], "--dry-run"), 3, *said)
    assert contents(limited.url) == before
    limited.permit()
    done = report(run(*words, "--json"))["run"]
    assert contents(limited.url) != before
    assert run("undo", done, "--store", limited.login, "--yes").exit_code == 0
    assert contents(limited.url) == before


def test_missing_right_to_insert_rows_is_not_needed_without_backup(
    run: Run, limited: Limited
) -> None:
    words = ("--mark", "hint", "--yes", "--no-backup", "--json")
    assert report(run("delete", limited.login, *words))["messages"]["deleted"]


@pytest.mark.slow
def test_missing_right_to_lock_rows_is_found_before_a_deletion(
    run: Run, servers: Servers, postgresql_url: str
) -> None:
    asyncio.run(fill(postgresql_url, {KYOTO: samples.entries(20)}))
    login = f"limited_{uuid4().hex[:8]}"
    admin = servers.postgresql.admin_url(postgresql_url)
    servers.postgresql.execute(
        admin,
        f"CREATE ROLE {login} LOGIN PASSWORD 'secret'; "
        f"GRANT SELECT, INSERT, DELETE ON ALL TABLES IN SCHEMA public TO {login}",
    )
    name = postgresql_url.rpartition("/")[2]
    words = ("delete", servers.postgresql.url(name, user=login, password="secret"), "--all")
    said = ("UPDATE on 'message'", "permit UPDATE on 'message' to the login")
    fails(run(*words, "--dry-run"), 3, *said)
    fails(run(*words, "--yes"), 3, *said)
    servers.postgresql.execute(admin, f"GRANT UPDATE ON message, message_mark TO {login}")
    assert report(run(*words, "--yes", "--json"))["messages"]["deleted"] == 20


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "table"),
    [("agentscope2", "sessions"), ("openai-agents", "agent_messages"), ("agno", "agno_sessions")],
)
def test_missing_right_to_lock_rows_of_other_layouts_is_found_before_a_deletion(
    run: Run, servers: Servers, tmp_path: Path, layout: str, table: str
) -> None:
    place = new_place(f"postgresql-{layout}", tmp_path, servers)
    samples.use(place.backend.style)
    put(place, [samples.sample(place.keys(1)[0], samples.entries(9))])
    samples.use(Style())
    url, _, query = place.text.partition("?")
    login, admin = f"limited_{uuid4().hex[:8]}", servers.postgresql.admin_url(url)
    grant = f"GRANT SELECT, INSERT, DELETE ON ALL TABLES IN SCHEMA public TO {login}"
    servers.postgresql.execute(admin, f"CREATE ROLE {login} LOGIN PASSWORD 'secret'; {grant}")
    limited = servers.postgresql.url(url.rpartition("/")[2], user=login, password="secret")
    words = ("delete", f"{limited}?{query}", "--all")
    for more in "--dry-run", "--yes":
        fails(run(*words, more), 3, f"UPDATE on {table!r}")
    servers.postgresql.execute(admin, f"GRANT UPDATE ON ALL TABLES IN SCHEMA public TO {login}")
    assert report(run(*words, "--yes", "--json"))["messages"]["deleted"]


class Denied(NamedTuple):
    """A memory in Redis, the URL of a user with few rights, and a client of the owner."""

    place: Place
    login: str
    user: str
    client: redis.Redis

    def may(self, *commands: str) -> None:
        """Give the user the rights to some commands, and to all keys."""
        self.client.acl_setuser(
            self.user, enabled=True, passwords=["+pw"], keys=["*"], commands=list(commands)
        )


@pytest.fixture
def deny(servers: Servers, tmp_path: Path) -> Iterator[Callable[[str], Denied]]:
    """Return what makes a memory of a store in Redis, with two users of the server."""
    with ExitStack() as stack:

        def make(name: str) -> Denied:
            place = new_place(name, tmp_path, servers)
            samples.use(place.backend.style)
            put(place, [samples.sample(place.keys(1)[0], samples.entries(9))])
            url, mark, query = place.text.partition("?")
            client = stack.enter_context(servers.redis.client(url))
            user = f"limited-{uuid4().hex[:8]}"
            stack.callback(client.acl_deluser, user)
            login = url.replace("redis://", f"redis://{user}:pw@") + mark + query
            return Denied(place, login, user, client)

        yield make
    samples.use(Style())


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("redis", "RPUSH"),
        ("redis", "MSET"),
        ("redis-agentscope2", "SADD"),
        ("redis-langchain", "LPUSH"),
        ("redis-openai-agents", "HSET"),
    ],
)
def test_missing_command_of_redis_is_found_before_a_deletion(
    run: Run, deny: Callable[[str], Denied], name: str, command: str
) -> None:
    denied = deny(name)
    before = held(denied.place)
    denied.may("+@all", "-@admin", f"-{command.lower()}", "-discard")
    words = ("delete", denied.login, "--all", "--yes")
    fails(run(*words), 3, f"restore messages: {command}", f"permit {command}", "--no-backup")
    fails(run(*words[:-1], "--dry-run"), 3, command)
    assert held(denied.place) == before
    assert report(run(*words[:-1], "--dry-run", "--no-backup", "--json"))["messages"]["deleted"]
    denied.may("+@all", "-@admin")
    done = report(run(*words, "--json"))["run"]
    assert run("undo", done, "--store", denied.login, "--yes").exit_code == 0
    assert held(denied.place) == before


@pytest.mark.parametrize("command", ["RPUSH", "MSET"])
def test_missing_command_of_redis_is_found_before_a_compression_deletes(
    run: Run, deny: Callable[[str], Denied], command: str
) -> None:
    denied = deny("redis")
    before = held(denied.place)
    denied.may("+@all", "-@admin", f"-{command.lower()}", "-discard")
    words = ("compress", denied.login, "--summarizer", "extractive", "--mode", "replace")
    words += ("--keep-recent", "1", "--yes")
    for more in (), ("--max-delete", "100%"), ("--dry-run",):
        fails(run(*words, *more), 3, f"restore messages: {command}", "--no-backup")
    assert held(denied.place) == before


@pytest.mark.parametrize("engine", ["postgresql", "mysql"])
def test_missing_right_to_insert_runs_of_agno_is_found_before_a_deletion(
    run: Run, servers: Servers, tmp_path: Path, engine: str
) -> None:
    place = new_place(f"{engine}-agno", tmp_path, servers)
    samples.use(place.backend.style)
    put(place, [samples.sample(place.keys(1)[0], samples.entries(9))])
    samples.use(Style())
    before = held(place)
    url, _, query = place.text.partition("?")
    name, login = url.rpartition("/")[2], f"limited_{uuid4().hex[:8]}"
    rights = "SELECT, UPDATE, DELETE"
    if engine == "postgresql":
        limited = servers.postgresql.url(name, user=login, password="secret")
        create = f"CREATE ROLE {login} LOGIN PASSWORD 'secret'; "
        grant = f"GRANT {rights} ON ALL TABLES IN SCHEMA public TO {login}"
        servers.postgresql.execute(servers.postgresql.admin_url(url), create + grant)
    else:
        limited = servers.mariadb.url(name, user=login, password="secret")
        servers.mariadb.execute(f"CREATE USER {login} IDENTIFIED BY 'secret'")
        servers.mariadb.execute(f"GRANT {rights} ON {name}.* TO {login}")
    words = ("delete", f"{limited}?{query}", "--all", "--yes")
    fails(run(*words), 3, "restore messages: INSERT on 'agno_runs'", "--no-backup")
    assert held(place) == before


def test_missing_right_to_transactions_runs_no_command(
    run: Run, deny: Callable[[str], Denied]
) -> None:
    denied = deny("redis")
    before = held(denied.place)
    denied.may("+@all", "-multi")
    fails(run("delete", denied.login, "--all", "--yes"), 3, "no permissions")
    assert held(denied.place) == before


def test_missing_memory_of_redis_stops_no_deletion(run: Run, servers: Servers) -> None:
    """A full server refuses what needs memory, also in a transaction."""
    server = servers.redis_with("full")
    with server.client(url := server.url(0)) as client:
        asyncio.run(fill(url, {KYOTO: samples.entries(20)}))
        client.config_set("maxmemory", 1)
        deleted = run("delete", url, "--all", "--yes")
        client.config_set("maxmemory", 0)
    assert "restore messages" not in deleted.stderr


@pytest.mark.parametrize("command", ["migrate", "import"])
def test_missing_command_of_redis_after_a_memory_was_written_is_a_part_of_a_copy(
    run: Run, deny: Callable[[str], Denied], tmp_path: Path, command: str
) -> None:
    denied = deny("redis")
    [old, new] = denied.place.keys(2)
    archive = tmp_path / "source.ndjson"
    asyncio.run(fill(str(archive), dict.fromkeys((old, new), samples.entries(9, start=100))))
    denied.may("+@all", "-@admin", "-unlink")
    words = (command, archive, denied.login, "--on-conflict", "replace", "--yes")
    done = run(*words, "--json")
    assert report(done, 7)["memories"]["written"] == 1
    assert "done: 1 memory" in done.stderr
    fails(run(*words), 3, "'unlink'")
    stored = {key: [one.id for one in some] for key, some in contents(denied.place.text).items()}
    written, kept = samples.entries(9, start=100), samples.entries(9)
    assert stored == {new: [one.id for one in written], old: [one.id for one in kept]}
