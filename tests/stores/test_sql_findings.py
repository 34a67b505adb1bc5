"""Tests of the findings of doctor in AgentScope's tables, each made in a real database."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from memctl.model import Finding, MemoryKey, StoredMessage
from memctl.ops.doctor.check import Limits, check
from memctl.registry import make_store, parse
from memctl.selection import Selection
from memctl.store import OpenMode
from memctl.testing import samples
from memctl.testing.drive import write_all
from tests.support.servers.pool import Servers

ALICE, BOB = MemoryKey("alice", "s1"), MemoryKey("b-o-b", "s-2")
ALL = Selection()


@dataclass
class Database:
    """A database, and a way past memctl."""

    kind: str
    url: str
    execute: Callable[[str], object]

    def unbind(self) -> None:
        """Drop the foreign keys, to which SQLite does not hold anyway."""
        for table, name, short in (
            ("message", "message_session_id_fkey", "message_ibfk_1"),
            ("message_mark", "message_mark_msg_id_fkey", "message_mark_ibfk_1"),
            ("session", "session_user_id_fkey", "session_ibfk_1"),
        ):
            if self.kind == "postgresql":
                self.execute(f"ALTER TABLE {table} DROP CONSTRAINT {name}")
            elif self.kind == "mysql":
                self.execute(f"ALTER TABLE {table} DROP FOREIGN KEY {short}")


@pytest.fixture(params=["sqlite", "postgresql", "mysql"])
def database(request: pytest.FixtureRequest, tmp_path: Path, servers: Servers) -> Database:
    """An empty database."""
    return make_database(request.param, tmp_path, servers)


def make_database(kind: str, tmp_path: Path, servers: Servers) -> Database:
    """Make an empty database of a kind."""
    if kind == "sqlite":
        path = tmp_path / "m.db"
        return Database(kind, f"sqlite:///{path}", lambda sql: _execute(path, sql))
    if kind == "postgresql":
        url = servers.postgresql.fresh()
        return Database(kind, url, lambda sql: servers.postgresql.execute(url, sql))
    own = servers.mariadb.fresh()
    return Database(kind, own, lambda sql: servers.mariadb.execute(sql.replace('"', "`"), own))


def _execute(path: Path, sql: str) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(sql)
    connection.close()


def messages(count: int, *marks: str) -> list[StoredMessage]:
    """Return the messages of a user."""
    return [
        StoredMessage(f"m{n}", samples.message(f"m{n}", role="user", name="Alice"), marks)
        for n in range(count)
    ]


async def fill(
    database: Database, memories: dict[MemoryKey, list[StoredMessage]] | None = None
) -> None:
    """Write memories: five messages of each of two users, unless ``memories`` are given."""
    found = memories or {ALICE: messages(5, "a"), BOB: messages(5, "a")}
    async with make_store(parse(database.url), OpenMode.CREATE) as store:
        await write_all(store, [samples.sample(key, some) for key, some in found.items()])


async def examined(database: Database, where: Selection = ALL) -> list[Finding]:
    """Return the findings of doctor, but for the index that AgentScope never makes."""
    async with make_store(parse(database.url)) as store:
        found = await check(store, where, Limits())
    return [finding for finding in found.faults if finding.code != "no-session-index"]


async def test_sql_findings_what_is_in_order(database: Database) -> None:
    await fill(database)
    assert await examined(database) == []


async def test_sql_findings_no_index(database: Database) -> None:
    await fill(database)
    async with make_store(parse(database.url)) as store:
        found = await check(store, ALL, Limits())
        named = await check(store, Selection(users=frozenset(["alice"])), Limits())
    expected = [] if database.kind == "mysql" else [Finding("no-session-index", None)]
    assert found.faults == expected
    assert found.healthy
    assert named.faults == []
    if database.kind == "mysql":
        database.execute("ALTER TABLE message DROP FOREIGN KEY message_ibfk_1")
        database.execute("DROP INDEX session_id ON message")
        async with make_store(parse(database.url)) as store:
            found = await check(store, ALL, Limits())
        assert found.faults == [Finding("no-session-index", None)]
    database.execute('CREATE INDEX own ON message (session_id, "index")')
    async with make_store(parse(database.url)) as store:
        assert (await check(store, ALL, Limits())).faults == []


async def test_sql_findings_marks_of_no_message(database: Database) -> None:
    await fill(database)
    database.unbind()
    database.execute("DELETE FROM message WHERE id IN ('alice-s1-m3', 'alice-s1-m4')")
    [finding] = await examined(database)
    assert (finding.code, finding.key, finding.count) == ("orphan-mark", None, 2)
    assert sorted(finding.examples) == ["alice-s1-m3", "alice-s1-m4"]
    assert await examined(database, Selection(users=frozenset(["b-o-b"]))) == []


async def test_sql_findings_two_messages_at_one_position(database: Database) -> None:
    """As two writers leave it, who both ask for the next index first."""
    await fill(database)
    database.execute("UPDATE message SET \"index\" = 2 WHERE id IN ('alice-s1-m3')")
    database.execute("UPDATE message SET \"index\" = 0 WHERE session_id = 's-2'")
    first, second = await examined(database)
    assert (first.code, first.key, first.count) == ("duplicate-index", ALICE, 1)
    assert first.detail == "at index 2"
    assert (second.code, second.key, second.count) == ("duplicate-index", BOB, 4)
    [only] = await examined(database, Selection(sessions=frozenset(["s1"])))
    assert only == first


async def test_sql_findings_row_id_that_disagrees(database: Database) -> None:
    await fill(database)
    database.unbind()
    database.execute("DELETE FROM message_mark")
    database.execute("UPDATE message SET id = 'alice-s1-other' WHERE id = 'alice-s1-m1'")
    database.execute("UPDATE message SET id = 'something else' WHERE id = 'b-o-b-s-2-m1'")
    one, two = await examined(database)
    assert (one.code, one.key, one.examples) == ("id-mismatch", ALICE, ("other",))
    assert (two.code, two.key, two.examples) == ("row-id-mismatch", BOB, ("something else",))


async def test_sql_findings_session_of_several_users(database: Database) -> None:
    shared = [MemoryKey(user, "default_session") for user in ("alice", "bob", "carol", "dave")]
    await fill(
        database,
        {ALICE: messages(3)} | {key: messages(n + 1) for n, key in enumerate(shared)},
    )
    found = {
        finding.key: finding for finding in await examined(database) if "shared" in finding.code
    }
    assert {key: finding.count for key, finding in found.items()} == dict(
        zip(shared, (9, 8, 7, 6), strict=True)
    )
    assert found[shared[3]].detail == "sees 3 of 'carol', 2 of 'bob', 1 of 'alice'"
    where = Selection(users=frozenset(["bob"]), sessions=frozenset(["default_session"]))
    [only] = [finding for finding in await examined(database, where) if "shared" in finding.code]
    assert only == found[shared[1]]


async def test_sql_findings_owner_who_wrote_nothing_sees_the_others(database: Database) -> None:
    await fill(database)
    database.execute("UPDATE session SET user_id = 'b-o-b' WHERE id = 's1'")
    [finding] = await examined(database)
    assert (finding.code, finding.key) == ("shared-session", MemoryKey("b-o-b", "s1"))
    assert finding.count == 5


async def test_sql_findings_rows_that_are_missing(database: Database) -> None:
    await fill(database)
    database.unbind()
    database.execute("DELETE FROM session WHERE id = 's1'")
    database.execute("DELETE FROM users WHERE id = 'b-o-b'")
    one, two = await examined(database)
    assert (one.code, one.key, one.count) == ("session-row-missing", ALICE, 5)
    assert (two.code, two.key, two.count) == ("user-row-missing", BOB, 1)


async def test_sql_findings_message_that_is_no_json(tmp_path: Path) -> None:
    """SQLite holds to no types."""
    path = tmp_path / "m.db"
    database = Database("sqlite", f"sqlite:///{path}", lambda sql: _execute(path, sql))
    await fill(database)
    database.execute("""UPDATE message SET msg = '{"id": "m1' WHERE id = 'alice-s1-m1'""")
    database.execute("""UPDATE message SET id = 'x', msg = '[' WHERE id = 'alice-s1-m2'""")
    database.execute("DELETE FROM message_mark")
    found = await examined(database)
    assert {finding.code for finding in found} == {
        "damaged-row",
        "invalid-message",
        "row-id-mismatch",
    }
