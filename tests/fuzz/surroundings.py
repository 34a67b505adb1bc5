"""Memories in the database of an application: references, triggers, columns, policies and rights.

What stands around a memory is that of an application.  A command leaves it as it is, or is refused.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from random import Random
from subprocess import CalledProcessError
from typing import Any, ClassVar

import redis

from memctl.testing import samples
from memctl.testing.samples import Sample, sample
from tests.fuzz.bench import Bench, Specimen
from tests.fuzz.databases import (
    REFUSALS,
    Database,
    MysqlDatabase,
    PostgresqlDatabase,
    SqliteDatabase,
)
from tests.fuzz.files import fill, lines_of, plain_worlds
from tests.fuzz.frameworks import layouts
from tests.fuzz.invariants import NOTHING_DONE, Broken, check_counts, check_same
from tests.fuzz.mutations import seal
from tests.fuzz.scenarios import CONFLICTS, SESSIONS, USERS, changing
from tests.fuzz.servers import contents as redis_contents
from tests.stores.test_table_types import MYSQL, POSTGRESQL, SQLITE, TYPES
from tests.support.backends import TABLE
from tests.support.servers.mariadb import PASSWORD
from tests.support.servers.redis import Redis

MESSAGES = {
    "": "message",
    "agentscope2": "messages",
    "langchain": "message_store",
    "openai-agents": "agent_messages",
    "adk": "events",
    "llamaindex": "llama_index_memory",
    "table": "chat log",
}
"""The tables with a row for each message, by layout."""
ACTIONS = ("CASCADE", "SET NULL", "SET DEFAULT", "RESTRICT", "NO ACTION")
EVENTS = ("DELETE", "DELETE", "INSERT", "UPDATE")
COUNTED = {"delete", "import", "migrate", "erase"}
"""The commands that report by how many the messages are more or fewer."""
SOURCE = "source.ndjson"
REDIS_COMMANDS = ["del", "unlink", "lrem", "rpush", "sadd", "srem", "mget", "exec", "watch", "set"]
REDIS_COMMANDS += ["linsert", "lset", "expire", "rename", "scan", "type", "lrange", "info", "eval"]
ALLOW = "side_effects=allow"


@dataclass(slots=True)
class Application:
    """What an application keeps beside a memory."""

    database: Database | None
    memory: list[str]
    """The tables of the memory."""
    tables: list[str] = field(default_factory=list)
    """Its own tables, which no command changes."""
    logs: list[str] = field(default_factory=list)
    """Its tables that a trigger of insertions or updates fills, as documented."""
    columns: dict[str, list[str]] = field(default_factory=dict)
    """The columns that it added to tables of the memory."""
    refuses: bool = False
    """True if it may refuse what an undo writes."""
    options: list[str] = field(default_factory=list)
    """The options of the URL that commands use."""
    login: str = ""
    """The login that commands use; empty for the owner of the tables."""
    rights: dict[str, list[str]] = field(default_factory=dict)
    """The rights of that login, where it has not all, by table."""

    def new(self, kind: str) -> str:
        """Return a name for a table, a function or a trigger that is not in use."""
        return f"app_{kind}{len(self.tables) + len(self.logs)}"

    def execute(self, *statements: str) -> bool:
        """Execute statements up to the first that the database refuses; return whether none is."""
        with suppress(*REFUSALS):
            for sql in statements:
                self.database.execute(sql)
            return True
        return False

    def kept(self, contents: Any) -> Any:
        """Return the rows of its own tables among all contents."""
        return {name: contents.get(name) for name in self.tables}

    def of_memory(self, contents: Any) -> Any:
        """Return the contents without the tables that triggers fill, or that an option gives up."""
        given_up = {*self.logs, *(self.tables if ALLOW in self.options else ())}
        return {name: rows for name, rows in contents.items() if name not in given_up}

    def values(self) -> dict[str, dict[str, str]]:
        """Return the values of its columns in the tables of the memory, by the keys of the rows."""
        found = {}
        for table, added in self.columns.items():
            key = self.database.key(table)
            shown = ", ".join(map(self.database.shown, [*key, *added]))
            rows = self.database.execute(f"SELECT {shown} FROM {self.database.quoted(table)}")
            found[table] = {repr(row[: len(key)]): repr(row[len(key) :]) for row in rows}
        return found


def refer(rng: Random, app: Application, table: str) -> None:
    """Add a table with rows that refer to those of ``table``, and perhaps one that refers to it."""
    database, q = app.database, app.database.quoted
    columns = database.key(table)
    if not columns:
        return
    name, key = app.new("notes"), ", ".join(map(q, columns))
    action = rng.choice(ACTIONS)
    ends = " DEFERRABLE INITIALLY DEFERRED" if rng.random() < 0.3 else ""
    ends = f" ON DELETE {action}{ends if database.engine != 'mysql' else ''}"
    foreign = f"FOREIGN KEY ({key}) REFERENCES {q(table)} ({key}){ends}"
    rows = f"SELECT {key} FROM {q(table)} ORDER BY {key} LIMIT {rng.choice([1, 3, 100])}"
    if database.engine == "sqlite":
        made = [f"CREATE TABLE {name} ({key}, {foreign})", f"INSERT INTO {name} {rows}"]
    else:
        nulls = ", ".join("NULL" for _ in columns)
        made = [
            f"CREATE TABLE {name} AS ({rows}) UNION ALL (SELECT {nulls})",
            f"ALTER TABLE {name} ADD {foreign}",
        ]
    if app.execute(*made):
        app.tables.append(name)
        app.refuses |= bool(ends.count("RESTRICT") or ends.count("NO ACTION"))


def trigger(rng: Random, app: Application, table: str) -> None:
    """Add a trigger or a rule that logs, suppresses or refuses a change of ``table``."""
    database, on = app.database, app.database.quoted(table)
    event, does = rng.choice(EVENTS), rng.choice(["log", "log", "suppress", "refuse"])
    name = app.new("log")
    when = rng.choice(["BEFORE", "AFTER"]) if does == "log" else "BEFORE"
    row = "new" if event == "INSERT" else "old"
    app.execute(f"CREATE TABLE {name} (about VARCHAR(9))", f"INSERT INTO {name} VALUES ('made')")
    match database.engine:
        case "postgresql":
            level = "STATEMENT" if does == "log" and rng.random() < 0.2 else "ROW"
            body = {
                "log": f"INSERT INTO {name} VALUES (TG_OP);",
                "suppress": f"IF md5({row}::text) < '8' THEN RETURN NULL; END IF;",
                "refuse": "RAISE EXCEPTION 'no';",
            }[does]
            back = "old" if event == "DELETE" else "new"
            back = "NULL" if level == "STATEMENT" else back
            made = [
                f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS "
                f"$$BEGIN {body} RETURN {back}; END$$",
                f"CREATE TRIGGER {name} {when} {event} ON {on} "
                f"FOR EACH {level} EXECUTE FUNCTION {name}()",
            ]
            if rng.random() < 0.2:
                what = f"ALSO INSERT INTO {name} VALUES ('rule')"
                what = what if does == "log" else "INSTEAD NOTHING"
                made = [f"CREATE RULE {name} AS ON {event} TO {on} DO {what}"]
        case "mysql":
            body = {"log": f"INSERT INTO {name} VALUES ('{event}')"}.get(
                does, "SIGNAL SQLSTATE '45000'"
            )
            made = [f"CREATE TRIGGER {name} {when} {event} ON {on} FOR EACH ROW {body}"]
        case _:
            body = {
                "log": f"INSERT INTO {name} VALUES ('{event}')",
                "suppress": "SELECT RAISE(IGNORE)",
                "refuse": "SELECT RAISE(ABORT, 'no')",
            }[does]
            only = f"WHEN {row}.rowid % 2 " if does == "suppress" else ""
            made = [f"CREATE TRIGGER {name} {when} {event} ON {on} {only}BEGIN {body}; END"]
    if app.execute(*made):
        app.refuses |= does != "log" or event == "DELETE"
        (app.tables if event == "DELETE" else app.logs).append(name)


def add_columns(rng: Random, app: Application, table: str) -> None:
    """Add columns of some types to ``table``, with values in some rows."""
    database, on = app.database, app.database.quoted(table)
    types: list[tuple[str, Any]] = {"postgresql": POSTGRESQL, "mysql": MYSQL, "sqlite": SQLITE}[
        database.engine
    ]
    length = database.quoted(rng.choice(database.columns(table)))
    if database.engine == "postgresql":
        for statement in TYPES.strip().split("\n"):
            app.execute(statement)
    for number in range(rng.choice([1, 1, 2, 4])):
        kind, value = rng.choice(types)
        kind = kind.replace("content", f"CAST({length} AS CHAR)")
        name = f"app_column{number}"
        default = f" DEFAULT {value}" if value not in (None, "DEFAULT") else ""
        added = rng.random() < 0.3 and app.execute(f"ALTER TABLE {on} ADD {name} {kind}{default}")
        if not (added or app.execute(f"ALTER TABLE {on} ADD {name} {kind}")):
            continue
        if default and rng.random() < 0.8:
            only = rng.choice(["", f" WHERE {length} LIKE '%1%'"])
            app.execute(f"UPDATE {on} SET {name} = {value}{only}")
        if "GENERATED" not in kind:
            app.columns.setdefault(table, []).append(name)


def add_policies(rng: Random, app: Application, table: str) -> None:
    """Let a login of the application see or change only some rows of ``table`` (PostgreSQL)."""
    on, name = app.database.quoted(table), app.new("policy")
    some = f"md5({on}::text) < '{rng.choice('4c')}'"
    policies = rng.choice(
        [
            [f"USING ({some})"],
            [f"USING ({some}) WITH CHECK (true)"],
            ["FOR SELECT USING (true)", "FOR INSERT WITH CHECK (true)"],
            [
                *("FOR SELECT USING (true)", "FOR INSERT WITH CHECK (true)"),
                *(f"FOR DELETE USING ({some})", f"FOR UPDATE USING ({some})"),
            ],
            ["USING (true)", f"AS RESTRICTIVE FOR INSERT WITH CHECK ({some})"],
        ]
    )
    app.execute(
        f"ALTER TABLE {on} ENABLE ROW LEVEL SECURITY",
        *(f"CREATE POLICY {name}_{at} ON {on} {one}" for at, one in enumerate(policies)),
    )
    if rng.random() < 0.8:
        app.options.append("row_security=on")
    app.login, app.refuses = app.database.guest, True


def reduce_rights(rng: Random, app: Application, table: str) -> None:
    """Give a login of the application all rights but one on ``table``."""
    rights = ["SELECT", "INSERT", "UPDATE", "DELETE"]
    rights.remove(rng.choice([*rights, "DELETE", "DELETE"]))
    app.login, app.refuses = app.database.guest, True
    app.rights[table] = rights


AROUND: list[Callable[[Random, Application, str], None]] = [
    *(refer, refer, trigger, trigger, add_columns),
]
"""The surroundings that every database can have."""


def grown() -> bytes:
    """Return an archive of memories, some of which others begin like."""
    found = [
        sample(samples.key(number), samples.entries(7, start=4 * number)) for number in range(3)
    ]
    return seal(lines_of(found))


class Shared:
    """A memory in the database of an application."""

    name: ClassVar[str]
    weight = 2
    around: ClassVar = AROUND

    def __init__(self, database: Database) -> None:
        self._database = database
        self._worlds = [("", "", plain_worlds()[0]), ("", "", plain_worlds()[2])]
        self._worlds += [
            (layout, more, world)
            for layout, more, worlds in layouts()
            if layout != "openai-branches" or database.engine == "sqlite"
            for world in worlds[:1]
        ]
        self._source = grown()

    def play(self, rng: Random, bench: Bench) -> None:
        database = self._database
        layout, more, world = rng.choice(self._worlds)
        app = self._application(layout, more, world)
        for _ in range(rng.choice([1, 1, 2, 3])):
            rng.choice(self.around)(rng, app, rng.choice(app.memory))
        if rng.random() < 0.1:
            app.options.append(ALLOW)
        if app.login:
            self._grant(rng, app)
        store = Specimen(
            self._argument(app),
            database.contents,
            on_server=database.engine != "sqlite",
            has_password=database.has_password,
            is_foreign=bool(layout),
        )
        bench.specimens.append(store)
        Path(SOURCE).write_bytes(self._source)
        change(rng, bench, store, app, MESSAGES.get(layout, ""))

    def _application(self, layout: str, more: str, world: list[Sample]) -> Application:
        """Fill the database with a memory in this layout."""
        database = self._database
        database.empty()
        options = f"layout={layout}{more}" if layout else ""
        app = Application(database, [], options=[options] if options else [])
        if "columns=" in more:
            number = {"postgresql": "SERIAL", "mysql": "INTEGER AUTO_INCREMENT"}
            table = TABLE.replace('"', database.quote)
            database.execute(table.replace("INTEGER", number.get(database.engine, "INTEGER"), 1))
        asyncio.run(fill(self._argument(app), world))
        app.memory += [name for name in database.tables() if database.rows(name)]
        return app

    def _argument(self, app: Application) -> str:
        url = app.database.url
        if app.login:
            for before, after in ("user=", ""), ("//", ":"):
                url = url.replace(f"{before}memctl{after}", f"{before}{app.login}{after}")
        options = "&".join(dict.fromkeys(app.options))
        return url + (("&" if "?" in url else "?") + options if options else "")

    def _grant(self, rng: Random, app: Application) -> None:
        """Give the login its rights on each table, and on those of the application some or none."""
        every = "SELECT, INSERT, UPDATE, DELETE"
        given = {name: ", ".join(app.rights.get(name, [every])) for name in app.memory}
        if rng.random() < 0.5:
            given |= dict.fromkeys([*app.tables, *app.logs], every)
        for table, rights in given.items():
            app.execute(f"GRANT {rights} ON {app.database.quoted(table)} TO {app.login}")


class SharedSqlite(Shared):
    """SQLite, whose references are only kept where a connection asks for it."""

    name = "shared-sqlite"

    def __init__(self) -> None:
        super().__init__(SqliteDatabase())


class SharedPostgresql(Shared):
    """PostgreSQL, with logins that see or may change a part."""

    name = "shared-postgresql"
    around: ClassVar = [*AROUND, add_policies, add_policies, reduce_rights]

    def __init__(self, folder: Path) -> None:
        database = PostgresqlDatabase(folder)
        super().__init__(database)
        with suppress(CalledProcessError):  # another run has made it
            admin = database.server.admin_url("/postgres")
            database.server.execute(admin, f"CREATE ROLE {database.guest} LOGIN")

    def _grant(self, rng: Random, app: Application) -> None:
        app.execute(
            f"GRANT USAGE ON SCHEMA public TO {app.login}",
            f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {app.login}",
        )
        super()._grant(rng, app)


class SharedMysql(Shared):
    """MariaDB, with logins that may change a part."""

    name = "shared-mysql"
    around: ClassVar = [*AROUND, reduce_rights]

    def __init__(self, folder: Path) -> None:
        super().__init__(MysqlDatabase(folder))

    def _grant(self, rng: Random, app: Application) -> None:
        app.execute(
            f"CREATE USER IF NOT EXISTS {app.login} IDENTIFIED BY '{PASSWORD}'",
            f"REVOKE ALL, GRANT OPTION FROM {app.login}",
        )
        super()._grant(rng, app)


class SharedRedis:
    """Redis, with a login that lacks commands or sees the keys of one user."""

    name = "shared-redis"
    weight = 2

    def __init__(self, folder: Path) -> None:
        self._server = Redis(folder)
        self._source = grown()

    @cached_property
    def _url(self) -> str:
        return self._server.fresh()

    def play(self, rng: Random, bench: Bench) -> None:
        login = f"guest{self._url.rpartition('/')[2]}"
        with self._server.client(self._url) as client:
            client.flushdb()
            asyncio.run(fill(self._url, rng.choice(plain_worlds()[:3])))
            lacking = rng.sample(REDIS_COMMANDS, rng.choice([0, 1, 1, 2]))
            client.acl_setuser(
                login,
                enabled=True,
                reset=True,
                passwords=[f"+{login}"],
                keys=[rng.choice(["*", "*", "user_id:user0:*"])],
                categories=["+@all"],
                commands=[f"-{name}" for name in lacking],
            )
            url = self._url.replace("//", f"//{login}:{login}@")
            store = Specimen(url, partial(_unlocked, client), on_server=True, has_password=True)
            bench.specimens.append(store)
            Path(SOURCE).write_bytes(self._source)
            change(rng, bench, store, Application(None, [], refuses=True), "")


def _unlocked(client: redis.Redis) -> Any:
    """Return all keys but locks, which end by themselves where a login may not remove them."""
    found = redis_contents(client)
    return {name: value for name, value in found.items() if not name.startswith(b"memctl:lock:")}


def change(rng: Random, bench: Bench, store: Specimen, app: Application, messages: str) -> None:
    """Change the store by one command, undo that, and check what the application has."""
    before, values = store.contents(), app.values()
    words = _words(rng, store.argument)
    name = words[0]
    done = bench.run(*words, "--json")
    after = store.contents()
    _check_kept(name, app, before, after)
    if name != "doctor":  # what a repair puts among the rows of a table moves those behind it
        _check_values(name, values, app.values())
    if messages and name in COUNTED and done.code not in NOTHING_DONE:
        more = len(after.get(messages, [])) - len(before.get(messages, []))
        check_counts(name, json.loads(done.stdout), more)
    if not bench.runs():
        if name != "erase":
            _check_memory(f"{name} changed something, and recorded nothing", app, before, after)
        return
    undone = bench.run("undo", "--yes", "--store", store.argument)
    last = store.contents()
    _check_kept(f"undo of {name}", app, after, last)
    if undone.code == 0 and name != "doctor":
        _check_memory(f"undo of {name} is not exact", app, before, last)
    # References to sessions and users may stop the undo of a copy, which deletes them.
    if undone.code and not (app.refuses or (undone.code == 9 and name in ("import", "migrate"))):
        raise Broken(f"undo of {name} ends with {undone.code}", undone.stderr)


def _words(rng: Random, name: str) -> list[str]:
    conflict = ["--on-conflict", rng.choice(CONFLICTS), "--retries", "0", "--lossy"]
    erased = ["--user", rng.choice(USERS), *rng.choice([[], ["--session", rng.choice(SESSIONS)]])]
    return rng.choice(
        [
            *[changing(rng, name) for _ in range(6)],
            *[[what, SOURCE, name, *conflict] for what in ("import", "migrate", "migrate")],
            ["erase", name, *erased, "--yes"],
        ]
    )


def _check_kept(name: str, app: Application, before: Any, after: Any) -> None:
    if ALLOW not in app.options:
        check_same(f"{name} changed tables of the application", app.kept(before), app.kept(after))


def _check_memory(rule: str, app: Application, before: Any, after: Any) -> None:
    check_same(rule, app.of_memory(before), app.of_memory(after))


def _check_values(name: str, before: Any, after: Any) -> None:
    """Check that rows that stay have the values that the application gave them."""
    for table, rows in before.items():
        stay = rows.keys() & after[table].keys()
        first, second = ({key: found[key] for key in stay} for found in (rows, after[table]))
        check_same(f"{name} changed values of the application", first, second)
