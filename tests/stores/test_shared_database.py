"""Databases that an application shares: its references, triggers, policies and columns."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from memctl.model import MemoryKey
from memctl.testing import samples
from tests.support.cli import Run, contents, fails, fill, report
from tests.support.servers.pool import Servers

KYOTO, OSAKA = MemoryKey("ada", "kyoto"), MemoryKey("bob", "osaka")
NARA = MemoryKey("ada", "nara")
SQL = ["postgresql", "mysql", "sqlite"]


class Shared(NamedTuple):
    """A database with two memories of AgentScope 1.x, and a way to run SQL of the application."""

    url: str
    execute: Callable[[str], object]


@pytest.fixture
def shared(request: pytest.FixtureRequest, servers: Servers, tmp_path: Path) -> Shared:
    database = _database(request.param, servers, tmp_path)
    asyncio.run(fill(database.url, {KYOTO: samples.entries(20), OSAKA: samples.entries(20)}))
    return database


def _database(engine: str, servers: Servers, tmp_path: Path) -> Shared:
    match engine:
        case "postgresql":
            url = servers.postgresql.fresh()
            return Shared(url, lambda sql: servers.postgresql.execute(url, sql))
        case "mysql":
            url = servers.mariadb.fresh()
            return Shared(url, lambda sql: servers.mariadb.execute(sql, url))
    path = tmp_path / "app.db"
    return Shared(f"sqlite:///{path}", lambda sql: _execute(path, sql))


def _execute(path: Path, sql: str) -> list[tuple[object, ...]]:
    with sqlite3.connect(path) as connection:
        return connection.execute(sql).fetchall()


def ids(url: str) -> dict[MemoryKey, list[str]]:
    """Return the ids of the messages of each memory."""
    return {key: [entry.id for entry in found] for key, found in contents(url).items()}


def _ids(start: int, count: int) -> list[str]:
    return [entry.id for entry in samples.entries(count, start=start)]


def refer(shared: Shared, action: str, table: str = "message") -> None:
    """Make a table of the application with a row that refers to the first memory."""
    row = {"message": "ada-kyoto-m0000003", "session": "kyoto"}[table]
    shared.execute(
        "CREATE TABLE notes (id INTEGER PRIMARY KEY, about VARCHAR(255), "
        f"FOREIGN KEY (about) REFERENCES {table} (id) ON DELETE {action})"
    )
    shared.execute(f"INSERT INTO notes VALUES (1, '{row}')")


@pytest.mark.slow
@pytest.mark.parametrize("shared", ["postgresql", "mysql"], indirect=True)
@pytest.mark.parametrize("action", ["CASCADE", "SET NULL"])
def test_shared_rows_that_refer_to_messages_stay(run: Run, shared: Shared, action: str) -> None:
    refer(shared, action)
    before = contents(shared.url)
    verb = "deletes" if action == "CASCADE" else "changes"
    effect = f"deleting rows of 'message' {verb} rows of 'notes' (ON DELETE {action})"
    fails(run("delete", shared.url, "--session", "kyoto", "--yes"), 9, effect, "side_effects=allow")
    fails(run("delete", shared.url, "--session", "kyoto", "--dry-run"), 9, effect)
    fails(run("delete", shared.url, "--session", "kyoto", "--yes", "--no-backup"), 9, effect)
    fails(run("erase", shared.url, "--user", "ada", "--yes"), 9, effect)
    words = ("compress", shared.url, "--summarizer", "extractive", "--yes", "--keep-recent", "1")
    fails(run(*words, "--mode", "replace"), 9, effect)
    assert contents(shared.url) == before
    deleted = report(run("delete", shared.url, "--session", "osaka", "--yes", "--json"))
    assert deleted["messages"]["deleted"] == 20
    assert run("undo", deleted["run"], "--store", shared.url, "--yes").exit_code == 0
    assert contents(shared.url) == before
    accepted = f"{shared.url}?side_effects=allow"
    deleted = report(run("delete", accepted, "--session", "kyoto", "--yes", "--json"))
    assert deleted["messages"]["deleted"] == 20


@pytest.mark.slow
@pytest.mark.parametrize("shared", ["postgresql", "mysql"], indirect=True)
def test_shared_rows_that_refer_to_messages_stop_a_replacement(
    run: Run, shared: Shared, tmp_path: Path
) -> None:
    refer(shared, "CASCADE")
    source = f"sqlite:///{tmp_path}/source.db"
    asyncio.run(
        fill(source, {key: samples.entries(15, start=100) for key in (KYOTO, OSAKA)}),
    )
    for more in (), ("--no-backup",):
        done = run("migrate", source, shared.url, "--on-conflict", "replace", "--yes", *more)
        assert done.exit_code == 7, done.stderr
        assert "rows of 'notes' (ON DELETE CASCADE)" in done.stderr + done.stdout
        assert ids(shared.url) == {KYOTO: _ids(0, 20), OSAKA: _ids(100, 15)}


@pytest.mark.slow
@pytest.mark.parametrize("shared", ["postgresql", "mysql"], indirect=True)
def test_shared_rows_that_refer_to_a_session_stop_the_undo_of_its_import(
    run: Run, shared: Shared, tmp_path: Path
) -> None:
    source = f"sqlite:///{tmp_path}/source.db"
    asyncio.run(fill(source, {MemoryKey("eve", "new"): samples.entries(5)}))
    assert run("migrate", source, shared.url).exit_code == 0
    refer(shared, "CASCADE", "session")
    shared.execute("UPDATE notes SET about = 'new'")
    text = "deleting rows of 'session' deletes rows of 'notes'"
    fails(run("undo", "--store", shared.url, "--yes"), 9, text)
    words = ("--yes", "--summarizer", "extractive", "--mode", "replace", "--keep-recent", "1")
    done = report(run("compress", shared.url, "--user", "eve", *words, "--json"))
    assert run("undo", done["run"], "--store", shared.url, "--yes").exit_code == 0
    deleted = report(run("delete", shared.url, "--user", "eve", "--yes", "--json"))
    assert deleted["messages"]["deleted"] == 5  # the row of the session stays


TRIGGERS = {
    "postgresql": [
        "CREATE TABLE log (id TEXT)",
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN INSERT INTO log VALUES (old.id); RETURN NULL; END'",
        "CREATE TRIGGER audit AFTER DELETE ON message FOR EACH ROW EXECUTE FUNCTION note()",
    ],
    "mysql": [
        "CREATE TABLE log (id TEXT)",
        "CREATE TRIGGER audit BEFORE DELETE ON message FOR EACH ROW "
        "INSERT INTO log VALUES (old.id)",
    ],
    "sqlite": [
        "CREATE TABLE log (id TEXT)",
        "CREATE TRIGGER audit BEFORE DELETE\n ON message "
        "BEGIN INSERT INTO log VALUES (old.id); END",
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("shared", SQL, indirect=True)
def test_shared_triggers_of_deletions(
    run: Run, shared: Shared, request: pytest.FixtureRequest
) -> None:
    kind = request.node.callspec.params["shared"]
    for sql in TRIGGERS[kind]:
        shared.execute(sql)
    before = contents(shared.url)
    text = "deleting rows of 'message' runs the trigger 'audit'"
    fails(run("delete", shared.url, "--id", "m0000003", "--yes"), 9, text)
    assert contents(shared.url) == before
    assert run("mark", "add", shared.url, "new", "--id", "m0000003").exit_code == 0
    accepted = f"{shared.url}?side_effects=allow"
    deleted = report(run("delete", accepted, "--id", "m0000003", "--yes", "--json"))
    assert deleted["messages"]["deleted"] == 2
    fails(run("inspect", f"{shared.url}?side_effects=yes"), 2, "side_effects=allow")


@pytest.mark.parametrize("shared", ["postgresql"], indirect=True)
def test_shared_rules_of_deletions(run: Run, shared: Shared) -> None:
    shared.execute("CREATE RULE keep AS ON DELETE TO message DO INSTEAD NOTHING")
    text = "deleting rows of 'message' runs the rule 'keep'"
    fails(run("delete", shared.url, "--id", "m0000003", "--yes"), 9, text)


@pytest.mark.slow
@pytest.mark.parametrize("shared", ["postgresql"], indirect=True)
def test_shared_policies_hide_no_rows_unsaid(
    run: Run, shared: Shared, servers: Servers, tmp_path: Path
) -> None:
    name = shared.url.rpartition("/")[2]
    login = f"reader_{name}"
    admin = servers.postgresql.admin_url(shared.url)
    servers.postgresql.execute(
        admin,
        f"CREATE ROLE {login} LOGIN PASSWORD 'secret'; "
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {login}; "
        "ALTER TABLE message ENABLE ROW LEVEL SECURITY; "
        f"CREATE POLICY own ON message TO {login} USING (session_id = 'kyoto')",
    )
    url = servers.postgresql.url(name, user=login, password="secret")
    archive = tmp_path / "all.ndjson"
    fails(run("export", url, "-o", archive), 3, "row-level security", "row_security=on")
    assert not archive.exists()
    visible = f"{url}?row_security=on"
    done = run("export", visible, "-o", archive)
    assert done.exit_code == 0, done.stderr
    assert "row_security=on" in done.stderr + archive.read_text()
    fails(run("doctor", visible, "--repair", "--yes"), 9, "row-level security hides")
    before = contents(shared.url)
    deleted = report(run("delete", visible, "--id", "m0000003", "--yes", "--json"))
    assert deleted["messages"]["deleted"] == 1
    undone = run("undo", deleted["run"], "--store", visible, "--yes")
    assert undone.exit_code == 0, undone.stderr
    assert contents(shared.url) == before
    servers.postgresql.execute(admin, f"DROP OWNED BY {login}; DROP ROLE {login}")


@pytest.mark.slow
@pytest.mark.parametrize("shared", ["postgresql"], indirect=True)
def test_shared_policies_that_hide_marks_stop_a_deletion(run: Run, shared: Shared) -> None:
    assert run("mark", "add", shared.url, "seen", "--id", "m0000003").exit_code == 0
    for sql in (
        "ALTER TABLE message_mark ENABLE ROW LEVEL SECURITY",
        "ALTER TABLE message_mark FORCE ROW LEVEL SECURITY",
        "CREATE POLICY own ON message_mark USING (mark <> 'seen')",
    ):
        shared.execute(sql)
    url = f"{shared.url}?row_security=on"
    before = contents(url)
    effect = "deletes rows of 'message_mark' (ON DELETE CASCADE), also those that row-level"
    fails(run("delete", url, "--id", "m0000003", "--yes"), 9, effect, "side_effects=allow")
    fails(run("erase", url, "--user", "ada", "--yes"), 9, effect)
    assert contents(url) == before
    assert run("mark", "remove", url, "hint").exit_code == 0
    assert run("undo", "--store", url, "--yes").exit_code == 0
    assert contents(url) == before
    accepted = f"{url}&side_effects=allow"
    deleted = report(run("delete", accepted, "--id", "m0000003", "--yes", "--json"))
    assert deleted["messages"]["deleted"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("shared", SQL, indirect=True)
def test_shared_columns_of_marks_stop_a_deletion(run: Run, shared: Shared) -> None:
    shared.execute("ALTER TABLE message_mark ADD COLUMN reason VARCHAR(80)")
    assert run("delete", shared.url, "--id", "m0000003", "--yes").exit_code == 0
    shared.execute("UPDATE message_mark SET reason = 'seen' WHERE msg_id LIKE 'ada-%'")
    text = "the column 'reason' of the table 'message_mark'"
    fails(run("delete", shared.url, "--session", "kyoto", "--yes"), 8, text)
    assert run("delete", shared.url, "--session", "osaka", "--yes").exit_code == 0


@pytest.mark.slow
@pytest.mark.parametrize("shared", SQL, indirect=True)
def test_shared_sessions_with_a_title_stay_after_the_undo_of_their_import(
    run: Run, shared: Shared, tmp_path: Path
) -> None:
    shared.execute("ALTER TABLE session ADD COLUMN title VARCHAR(80)")
    source = f"sqlite:///{tmp_path}/source.db"
    titled, plain = MemoryKey("eve", "titled"), MemoryKey("eve", "plain")
    asyncio.run(fill(source, dict.fromkeys((titled, plain), samples.entries(5))))
    assert run("migrate", source, shared.url).exit_code == 0
    shared.execute("UPDATE session SET title = 'Mine' WHERE id = 'titled'")
    assert run("undo", "--store", shared.url, "--yes").exit_code == 0
    held = contents(shared.url)
    assert held.keys() == {KYOTO, OSAKA, titled}
    assert not held[titled]


GENERATED = {
    "postgresql": ["INT GENERATED ALWAYS AS IDENTITY", "INT GENERATED ALWAYS AS (1) STORED"],
    "mysql": ["INT GENERATED ALWAYS AS (LENGTH(id)) STORED"],
    "sqlite": ["INT GENERATED ALWAYS AS (LENGTH(id)) VIRTUAL"],
}
"""Columns of each engine whose values the database makes."""


@pytest.mark.slow
@pytest.mark.parametrize("shared", SQL, indirect=True)
def test_shared_sessions_with_values_of_the_database_go_with_their_import(
    run: Run, shared: Shared, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    for number, type_ in enumerate(GENERATED[request.node.callspec.params["shared"]]):
        for table in "users", "session":
            shared.execute(f"ALTER TABLE {table} ADD COLUMN own{number} {type_}")
    before = contents(shared.url)
    source = f"sqlite:///{tmp_path}/source.db"
    asyncio.run(fill(source, {MemoryKey("eve", "new"): samples.entries(5)}))
    assert run("migrate", source, shared.url).exit_code == 0
    assert run("undo", "--store", shared.url, "--yes").exit_code == 0
    assert contents(shared.url) == before


TITLED = {
    "agentscope2": ("sessions", "id"),
    "adk&app=planner": ("sessions", "id"),
    "openai-agents&owner=eve": ("agent_sessions", "session_id"),
    "openai-branches&owner=eve": ("agent_sessions", "session_id"),
}
"""For each further layout, the table of its sessions, and the column with their names."""


@pytest.mark.slow
@pytest.mark.parametrize("layout", TITLED)
def test_shared_sessions_of_other_layouts_stay_with_a_title(
    run: Run, servers: Servers, tmp_path: Path, layout: str
) -> None:
    shared = _database("sqlite", servers, tmp_path)
    table, column = TITLED[layout]
    source, target = f"sqlite:///{tmp_path}/source.db", f"{shared.url}?layout={layout}"
    keys = [MemoryKey("eve", name) for name in ("first", "titled", "plain")]
    asyncio.run(fill(source, dict.fromkeys(keys, samples.entries(5))))
    words = ("migrate", source, target, "--lossy")
    assert run(*words, "--session", "first").exit_code == 0
    shared.execute(f"ALTER TABLE {table} ADD COLUMN title VARCHAR(80)")
    assert run(*words).exit_code == 0
    shared.execute(f"UPDATE {table} SET title = 'Mine' WHERE {column} = 'titled'")
    assert run("undo", "--store", target, "--yes").exit_code == 0
    rows = shared.execute(f"SELECT {column}, title FROM {table} ORDER BY {column}")
    assert rows == [("first", None), ("titled", "Mine")]
    assert {key for key, found in contents(target).items() if found} == {keys[0]}


LEAVES_OUT = {
    "postgresql": [
        "CREATE FUNCTION leave_out() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN IF new.id LIKE ''%m0000003'' THEN RETURN NULL; END IF; RETURN new; END'",
        "CREATE TRIGGER quota BEFORE INSERT ON message FOR EACH ROW EXECUTE FUNCTION leave_out()",
    ],
    "sqlite": [
        "CREATE TRIGGER quota BEFORE INSERT ON message WHEN new.id LIKE '%m0000003' "
        "BEGIN SELECT RAISE(IGNORE); END"
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("shared", LEAVES_OUT, indirect=True)
def test_shared_triggers_that_leave_rows_out(
    run: Run, shared: Shared, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    ids = ("--id", "m0000003", "--id", "m0000004", "--session", "kyoto")
    deleted = report(run("delete", shared.url, *ids, "--yes", "--json"))
    assert deleted["messages"]["deleted"] == 2
    for sql in LEAVES_OUT[request.node.callspec.params["shared"]]:
        shared.execute(sql)
    before = contents(shared.url)
    text = "a trigger of 'message' left out 1 of 2 rows"
    fails(run("undo", "--store", shared.url, "--yes"), 7, text)
    assert contents(shared.url) == before
    source = f"sqlite:///{tmp_path}/source.db"
    asyncio.run(fill(source, {KYOTO: samples.entries(20), OSAKA: samples.entries(21)}))
    done = run("migrate", source, shared.url, "--on-conflict", "append")
    assert done.exit_code == 7, done.stderr
    held = contents(shared.url)
    assert held[KYOTO] == before[KYOTO]
    assert len(held[OSAKA]) == 21


REFUSES = {
    "postgresql": [
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN IF new.session_id = ''kyoto'' THEN RAISE EXCEPTION ''full''; END IF; "
        "RETURN new; END'",
        "CREATE TRIGGER quota BEFORE INSERT ON message FOR EACH ROW EXECUTE FUNCTION refuse()",
    ],
    "mysql": [
        "CREATE TRIGGER quota BEFORE INSERT ON message FOR EACH ROW "
        "IF new.session_id = 'kyoto' THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'full'; END IF"
    ],
    "sqlite": [
        "CREATE TRIGGER quota BEFORE INSERT ON message WHEN new.session_id = 'kyoto' "
        "BEGIN SELECT RAISE(ABORT, 'full'); END"
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("shared", SQL, indirect=True)
def test_shared_triggers_that_refuse_rows_fail_their_memory_alone(
    run: Run, shared: Shared, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    for sql in REFUSES[request.node.callspec.params["shared"]]:
        shared.execute(sql)
    source = f"sqlite:///{tmp_path}/source.db"
    asyncio.run(fill(source, {key: samples.entries(21) for key in (KYOTO, OSAKA)}))
    words = ("migrate", source, shared.url, "--on-conflict", "append")
    done = run(*words)
    assert done.exit_code == 7, done.stderr
    assert "full" in done.stderr
    assert "undo it with" in done.stdout
    again = run(*words)
    assert again.exit_code == 7, again.stderr
    assert "undo it with" not in again.stdout, "it wrote nothing"
    assert "trying again" not in done.stderr
    assert {key: len(found) for key, found in ids(shared.url).items()} == {KYOTO: 20, OSAKA: 21}


@pytest.mark.slow
@pytest.mark.parametrize("shared", ["postgresql", "mysql"], indirect=True)
@pytest.mark.parametrize("action", ["RESTRICT", "NO ACTION"])
def test_shared_references_that_keep_a_message_fail_its_memory_alone(
    run: Run, shared: Shared, action: str, tmp_path: Path
) -> None:
    refer(shared, action)
    source = f"sqlite:///{tmp_path}/source.db"
    asyncio.run(
        fill(source, {key: samples.entries(15, start=100) for key in (KYOTO, OSAKA)}),
    )
    done = run("migrate", source, shared.url, "--on-conflict", "replace", "--yes")
    assert done.exit_code == 7, done.stderr
    assert "trying again" not in done.stderr
    assert ids(shared.url) == {KYOTO: _ids(0, 20), OSAKA: _ids(100, 15)}


@pytest.mark.slow
@pytest.mark.parametrize("shared", SQL, indirect=True)
def test_shared_columns_of_marks_stop_the_removal_of_marks(run: Run, shared: Shared) -> None:
    shared.execute("ALTER TABLE message_mark ADD COLUMN reason VARCHAR(80)")
    shared.execute("UPDATE message_mark SET reason = 'seen' WHERE msg_id LIKE 'ada-%'")
    before = contents(shared.url)
    text = "removing marks deletes values in the column 'reason' of the table 'message_mark'"
    kyoto = ("--session", "kyoto")
    fails(run("mark", "remove", shared.url, "hint", *kyoto), 9, text, "side_effects=allow")
    fails(run("mark", "rename", shared.url, "hint", "seen", *kyoto), 9, text)
    assert contents(shared.url) == before
    assert run("mark", "remove", shared.url, "hint", "--session", "osaka").exit_code == 0
    assert run("mark", "add", shared.url, "new", *kyoto).exit_code == 0
    fails(run("undo", "--store", shared.url, "--yes"), 9, text)
    accepted = f"{shared.url}?side_effects=allow"
    assert run("mark", "remove", accepted, "new", *kyoto).exit_code == 0


@pytest.mark.slow
@pytest.mark.parametrize("shared", SQL, indirect=True)
def test_shared_columns_of_marks_of_other_messages_stop_no_change(run: Run, shared: Shared) -> None:
    shared.execute("ALTER TABLE message_mark ADD COLUMN reason VARCHAR(80)")
    [marked, *_] = [one.id for one in contents(shared.url)[KYOTO] if one.marks]
    shared.execute(f"UPDATE message_mark SET reason = 'seen' WHERE msg_id = 'ada-kyoto-{marked}'")
    before = contents(shared.url)
    [plain, *_] = [one.id for one in before[KYOTO] if not one.marks]
    for id in plain, marked:
        words = ("--session", "kyoto", "--id", id)
        assert run("mark", "add", shared.url, "new", *words).exit_code == 0
        if id == plain:
            assert run("undo", "--store", shared.url, "--yes").exit_code == 0
            assert contents(shared.url) == before
    text = "removing marks deletes values in the column 'reason' of the table 'message_mark'"
    fails(run("undo", "--store", shared.url, "--yes"), 9, text)


@pytest.mark.parametrize("shared", SQL, indirect=True)
def test_shared_triggers_of_marks_stop_the_removal_of_marks(
    run: Run, shared: Shared, request: pytest.FixtureRequest
) -> None:
    for sql in TRIGGERS[request.node.callspec.params["shared"]]:
        shared.execute(sql.replace("ON message ", "ON message_mark ").replace("old.id", "old.mark"))
    before = contents(shared.url)
    text = "deleting rows of 'message_mark' runs the trigger 'audit'"
    fails(run("mark", "remove", shared.url, "hint"), 9, text)
    assert contents(shared.url) == before
    assert run("mark", "add", "--all", shared.url, "new").exit_code == 0


@pytest.fixture
def in_layout(request: pytest.FixtureRequest, run: Run, servers: Servers, tmp_path: Path) -> Shared:
    """Return a database with two memories in the layout of another framework."""
    engine, layout = request.param
    database = _database(engine, servers, tmp_path)
    url = f"{database.url}?layout={layout}&side_effects=allow"
    assert run("migrate", _source(tmp_path, 6), url, "--lossy").exit_code == 0
    return Shared(url, database.execute)


def _source(folder: Path, messages: int) -> str:
    """Return a database of AgentScope 1.x with the two memories."""
    source = f"sqlite:///{folder}/source{messages}.db"
    asyncio.run(fill(source, dict.fromkeys((KYOTO, NARA), samples.entries(messages))))
    return source


def _leave_out(engine: str, event: str, table: str) -> list[str]:
    """Return SQL that leaves the rows of the session ``kyoto`` out of updates or deletions."""
    column = "id" if table == "sessions" else "session_id"
    if engine == "sqlite":
        return [
            f"CREATE TRIGGER keep BEFORE {event} ON {table} WHEN old.{column} = 'kyoto' "
            "BEGIN SELECT RAISE(IGNORE); END"
        ]
    back = "new" if event == "UPDATE" else "old"
    return [
        "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS "
        f"'BEGIN IF old.{column} = ''kyoto'' THEN RETURN NULL; END IF; RETURN {back}; END'",
        f"CREATE TRIGGER keep BEFORE {event} ON {table} FOR EACH ROW EXECUTE FUNCTION keep()",
    ]


AGENTSCOPE2 = [("sqlite", "agentscope2"), ("postgresql", "agentscope2")]
BRANCHES = "openai-branches&owner=ada"


@pytest.mark.slow
@pytest.mark.parametrize("in_layout", [("postgresql", "agentscope2")], indirect=True)
def test_shared_policies_that_keep_messages_fail_their_session(run: Run, in_layout: Shared) -> None:
    for sql in (
        "ALTER TABLE messages ENABLE ROW LEVEL SECURITY",
        "ALTER TABLE messages FORCE ROW LEVEL SECURITY",
        "CREATE POLICY every ON messages USING (true)",
        "CREATE POLICY own ON messages AS RESTRICTIVE FOR DELETE USING (session_id = 'nara')",
    ):
        in_layout.execute(sql)
    url = f"{in_layout.url}&row_security=on"
    before = contents(url)
    done = run("delete", url, "--id", "m0000003", "--yes", "--json")
    assert report(done, 7)["messages"]["deleted"] == 1
    text = "deleted 0 rows of 'messages', not 1"
    assert text in done.stderr
    after = contents(url)
    assert after[KYOTO] == before[KYOTO]
    assert len(after[NARA]) == 5


@pytest.mark.slow
@pytest.mark.parametrize("in_layout", AGENTSCOPE2, indirect=True)
@pytest.mark.parametrize("event", ["DELETE", "UPDATE"])
def test_shared_triggers_that_keep_a_session_fail_it(
    run: Run, in_layout: Shared, request: pytest.FixtureRequest, event: str, tmp_path: Path
) -> None:
    engine, _ = request.node.callspec.params["in_layout"]
    url = in_layout.url
    before = contents(url)
    assert run("delete", url, "--id", "m0000003", "--yes").exit_code == 0
    less = contents(url)
    table = "messages" if event == "DELETE" else "sessions"
    for sql in _leave_out(engine, event, table):
        in_layout.execute(sql)
    words = ("migrate", _source(tmp_path, 9), url, "--on-conflict", "replace", "--yes", "--lossy")
    done = run(*words)
    assert done.exit_code == 7, done.stderr
    held = contents(url)
    assert held[KYOTO] == less[KYOTO]
    assert len(held[NARA]) == 9
    assert run("undo", "--store", url, "--yes").exit_code == 0
    assert contents(url) == less
    if event == "UPDATE":
        fails(run("undo", "--store", url, "--yes"), 7, "updated 0 rows of 'sessions', not 1")
        assert contents(url) == {KYOTO: less[KYOTO], NARA: before[NARA]}


@pytest.mark.slow
@pytest.mark.parametrize("in_layout", [("postgresql", "agentscope2")], indirect=True)
def test_shared_rules_that_keep_sessions_fail_them(
    run: Run, in_layout: Shared, tmp_path: Path
) -> None:
    url = in_layout.url
    assert run("delete", url, "--id", "m0000003", "--yes").exit_code == 0
    less = contents(url)
    in_layout.execute("CREATE RULE keep AS ON UPDATE TO sessions DO INSTEAD NOTHING")
    fails(run("undo", "--store", url, "--yes"), 7, "updated 0 rows of 'sessions', not 1")
    done = run("migrate", _source(tmp_path, 9), url, "--on-conflict", "append", "--lossy")
    assert done.exit_code == 7, done.stderr
    assert contents(url) == less


LAYOUTS = [
    ("sqlite", "agno", "agno_runs"),
    ("postgresql", "agno", "agno_runs"),
    ("sqlite", BRANCHES, "agent_messages"),
    ("sqlite", "langchain&owner=ada", "message_store"),
    ("postgresql", "langchain&owner=ada", "message_store"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("in_layout", "table"),
    [((one, two), three) for one, two, three in LAYOUTS],
    indirect=["in_layout"],
)
def test_shared_triggers_that_keep_rows_fail_their_memory(
    run: Run, in_layout: Shared, request: pytest.FixtureRequest, table: str, tmp_path: Path
) -> None:
    engine, _ = request.node.callspec.params["in_layout"]
    url, before = in_layout.url, contents(in_layout.url)
    assert (
        run("migrate", _source(tmp_path, 9), url, "--on-conflict", "append", "--lossy").exit_code
        == 0
    )
    more = contents(url)
    for sql in _leave_out(engine, "DELETE", table):
        in_layout.execute(sql)
    fails(run("undo", "--store", url, "--yes"), 7, f"rows of '{table}', not")
    assert contents(url) == {KYOTO: more[KYOTO], NARA: before[NARA]}


@pytest.mark.slow
@pytest.mark.parametrize("in_layout", [("postgresql", "agentscope2")], indirect=True)
def test_shared_numbers_of_sessions_stop_a_deletion(run: Run, in_layout: Shared) -> None:
    """An undo could not give a row its number back."""
    before = contents(in_layout.url)
    in_layout.execute("ALTER TABLE messages ADD COLUMN n INT GENERATED ALWAYS AS IDENTITY")
    text = "the column 'n' of the table 'messages'"
    fails(run("delete", in_layout.url, "--last", "3", "--yes"), 8, text)
    assert contents(in_layout.url) == before
    assert run("delete", in_layout.url, "--last", "3", "--yes", "--no-backup").exit_code == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "in_layout", [*AGENTSCOPE2, ("mysql", "agentscope2"), ("sqlite", BRANCHES)], indirect=True
)
def test_shared_columns_of_sessions_are_restored(
    run: Run, in_layout: Shared, request: pytest.FixtureRequest, servers: Servers, tmp_path: Path
) -> None:
    """An undo gives deleted rows the values that an application stored beside the messages."""
    engine, layout = request.node.callspec.params["in_layout"]
    url, execute = in_layout.url, in_layout.execute
    tables = ["agent_messages", "message_structure"] if layout == BRANCHES else ["messages"]
    quote = "`" if engine == "mysql" else '"'
    note = f"{quote}app:note{quote}"
    for table in tables:
        execute(f"ALTER TABLE {table} ADD COLUMN {note} VARCHAR(80)")
        execute(f"ALTER TABLE {table} ADD COLUMN stars DECIMAL(5,2) DEFAULT 1.5")
        execute(f"UPDATE {table} SET {note} = 'mine', stars = NULL WHERE session_id = 'kyoto'")

    def rows() -> list[object]:
        query = f"SELECT session_id, {note}, stars FROM {{}} ORDER BY 1, 2, 3"
        asked = [query.format(table) for table in tables]
        if engine == "mysql":
            return [servers.mariadb.rows(url, sql) for sql in asked]
        return list(map(execute, asked))

    before, held = contents(url), rows()
    assert run("delete", url, "--last", "3", "--yes").exit_code == 0
    assert rows() != held
    assert run("undo", "--store", url, "--yes").exit_code == 0
    assert (contents(url), rows()) == (before, held)

    source = f"sqlite:///{tmp_path}/other.db"
    asyncio.run(fill(source, {KYOTO: samples.entries(2, start=100)}))
    words = ("--on-conflict", "replace", "--lossy", "--yes")
    assert run("migrate", source, url, *words).exit_code == 0
    assert rows() != held
    assert run("undo", "--store", url, "--yes").exit_code == 0
    assert (contents(url), rows()) == (before, held)


@pytest.mark.slow
@pytest.mark.parametrize("shared", ["postgresql", "mysql"], indirect=True)
def test_shared_references_stop_the_undo_of_a_replacement_before_it_begins(
    run: Run, shared: Shared, tmp_path: Path
) -> None:
    source = f"sqlite:///{tmp_path}/source.db"
    new = MemoryKey("eve", "new")
    asyncio.run(fill(source, {key: samples.entries(15, start=100) for key in (OSAKA, new)}))
    before = contents(shared.url)
    assert run("migrate", source, shared.url, "--on-conflict", "replace", "--yes").exit_code == 0
    refer(shared, "CASCADE")
    shared.execute("UPDATE notes SET about = 'eve-new-m0000103'")
    copied = contents(shared.url)
    effect = "deleting rows of 'message' deletes rows of 'notes'"
    fails(run("undo", "--store", shared.url, "--yes"), 9, effect)
    fails(run("undo", "--store", shared.url, "--dry-run"), 9, effect)
    assert contents(shared.url) == copied
    shared.execute("UPDATE notes SET about = 'ada-kyoto-m0000003'")  # not a message of the copy
    undone = report(run("undo", "--store", shared.url, "--yes", "--json"))
    assert contents(shared.url) == before
    assert run("undo", undone["run"], "--store", shared.url, "--yes").exit_code == 0


@pytest.mark.parametrize("shared", ["mysql"], indirect=True)
def test_shared_references_seen_by_a_login_with_rights_on_tables(
    run: Run, shared: Shared, servers: Servers
) -> None:
    refer(shared, "CASCADE")
    name = shared.url.rpartition("/")[2]
    login = f"guest_{name}"
    shared.execute(f"CREATE USER {login} IDENTIFIED BY 'secret'")
    for table in "users", "session", "message", "message_mark":
        shared.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO {login}")
    shared.execute(f"GRANT CREATE TEMPORARY TABLES ON {name}.* TO {login}")
    shared.execute(f"GRANT SELECT ON notes TO {login}")
    url = servers.mariadb.url(name, user=login, password="secret")
    text = "deleting rows of 'message' may change rows of 'notes' (by an action hidden from this"
    fails(run("delete", url, "--session", "kyoto", "--yes"), 9, text)
    deleted = report(run("delete", url, "--session", "osaka", "--yes", "--json"))
    assert deleted["messages"]["deleted"] == 20
    shared.execute(f"DROP USER {login}")


@pytest.mark.slow
@pytest.mark.parametrize("shared", SQL, indirect=True)
def test_shared_columns_with_a_default_stop_no_change_of_rows_that_have_it(
    run: Run, shared: Shared
) -> None:
    shared.execute("ALTER TABLE message ADD COLUMN state VARCHAR(80) DEFAULT 'a:b'")
    shared.execute("ALTER TABLE message_mark ADD COLUMN weight INTEGER DEFAULT 5")
    before = contents(shared.url)
    delete = "delete", shared.url, "--all", "--yes"
    for words in delete, ("mark", "add", "--all", shared.url, "new"), delete:
        done = run(*words)
        assert done.exit_code == 0, done.stderr
        undone = run("undo", "--store", shared.url, "--yes")
        assert undone.exit_code == 0, undone.stderr
        assert contents(shared.url) == before
    kyoto = ("--session", "kyoto", "--yes")
    for value in "'A:B'", "NULL":
        shared.execute(f"UPDATE message SET state = {value} WHERE session_id = 'kyoto'")
        fails(run("delete", shared.url, *kyoto), 8, "the column 'state' of the table 'message'")
    shared.execute("UPDATE message SET state = 'a:b'")
    shared.execute("UPDATE message_mark SET weight = 6 WHERE msg_id LIKE 'ada-%'")
    text = "removing marks deletes values in the column 'weight' of the table 'message_mark'"
    fails(run("mark", "remove", shared.url, "hint", "--session", "kyoto"), 9, text)
    assert run("mark", "remove", shared.url, "hint", "--session", "osaka").exit_code == 0


@pytest.mark.slow
@pytest.mark.parametrize("shared", ["postgresql"], indirect=True)
def test_shared_policies_that_keep_messages_of_agentscope1_fail_their_memory(
    run: Run, shared: Shared
) -> None:
    for sql in (
        "ALTER TABLE message ENABLE ROW LEVEL SECURITY",
        "ALTER TABLE message FORCE ROW LEVEL SECURITY",
        "CREATE POLICY every ON message USING (true)",
        "CREATE POLICY own ON message AS RESTRICTIVE FOR DELETE USING (session_id = 'osaka')",
    ):
        shared.execute(sql)
    url = f"{shared.url}?row_security=on"
    before = contents(url)
    done = run("delete", url, "--id", "m0000003", "--yes", "--json")
    assert report(done, 7)["messages"]["deleted"] == 1
    assert "deleted 0 rows of 'message', not 1" in done.stderr
    after = contents(url)
    assert after[KYOTO] == before[KYOTO]
    assert len(after[OSAKA]) == 19


@pytest.mark.slow
@pytest.mark.parametrize("shared", ["postgresql"], indirect=True)
@pytest.mark.parametrize(("layout", "table"), [("memory", "message"), ("agentscope2", "messages")])
def test_shared_policies_that_hide_new_messages_refuse_them(
    run: Run, shared: Shared, tmp_path: Path, layout: str, table: str
) -> None:
    archive = tmp_path / "source.ndjson"
    keys = [MemoryKey("eve", name) for name in ("first", "hidden")]
    asyncio.run(fill(str(archive), dict.fromkeys(keys, samples.entries(5))))
    url = f"{shared.url}?row_security=on&layout={layout}"
    assert run("import", archive, url, "--session", "first", "--lossy").exit_code == 0
    for sql in (
        f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY",
        f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY",
        f"CREATE POLICY own ON {table} USING (session_id <> 'hidden') WITH CHECK (true)",
    ):
        shared.execute(sql)
    fails(run("import", archive, url, "--session", "hidden", "--lossy"), 3, "row-level security")
    shared.execute(f"ALTER TABLE {table} DISABLE ROW LEVEL SECURITY")
    assert not ids(url).get(keys[1])


@pytest.mark.slow
@pytest.mark.parametrize("shared", ["postgresql"], indirect=True)
def test_shared_policies_that_keep_users_fail_the_undo_of_their_import(
    run: Run, shared: Shared, tmp_path: Path
) -> None:
    for sql in (
        "ALTER TABLE users ENABLE ROW LEVEL SECURITY",
        "ALTER TABLE users FORCE ROW LEVEL SECURITY",
        "CREATE POLICY every ON users USING (true)",
        "CREATE POLICY own ON users AS RESTRICTIVE FOR DELETE USING (id <> 'eve')",
    ):
        shared.execute(sql)
    url = f"{shared.url}?row_security=on"
    before, [eve, fay] = contents(url), [MemoryKey(user, "new") for user in ("eve", "fay")]
    archive = tmp_path / "source.ndjson"
    asyncio.run(fill(str(archive), {eve: samples.entries(5)}))
    assert run("import", archive, url).exit_code == 0
    done = run("undo", "--store", url, "--yes")
    assert done.exit_code == 7, done.stderr
    assert "deleted 0 rows of 'users', not 1" in done.stderr
    assert ids(url)[eve] == _ids(0, 5)
    asyncio.run(fill(str(archive), {fay: samples.entries(5)}))
    done = run("import", archive, url, "--user", "fay")
    assert done.exit_code == 0, done.stderr
    assert run("undo", "--store", url, "--yes").exit_code == 0
    assert contents(url).keys() == before.keys() | {eve}


@pytest.mark.slow
@pytest.mark.parametrize("shared", LEAVES_OUT, indirect=True)
def test_shared_triggers_that_keep_positions_fail_their_memory(
    run: Run, shared: Shared, request: pytest.FixtureRequest
) -> None:
    assert run("delete", shared.url, "--id", "m0000003", "--yes").exit_code == 0
    # The application numbers the messages anew: the restored one needs room.
    shared.execute('UPDATE message SET "index" = "index" - 2 WHERE id > \'ada-kyoto-m0000003\'')
    less = contents(shared.url)
    engine = request.node.callspec.params["shared"]
    for sql in _leave_out(engine, "UPDATE", "message"):
        shared.execute(sql)
    done = run("undo", "--store", shared.url, "--yes")
    assert done.exit_code == 7, done.stderr
    assert "rows of 'message', not" in done.stderr
    assert contents(shared.url)[KYOTO] == less[KYOTO]
