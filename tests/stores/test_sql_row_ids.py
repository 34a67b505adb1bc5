"""Rows of an application that names them in its own way."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from memctl.model import MemoryKey
from memctl.registry import make_store, parse
from memctl.selection import Selection
from memctl.store import OpenMode
from memctl.testing import samples
from memctl.testing.drive import outline
from tests.support.backends import SQL_PLACES, sql_database
from tests.support.cli import Run, fill, report
from tests.support.servers.pool import Servers

FOREIGN = {
    "another message id": ("u-s-x", {"id": "y"}),
    "no message id": ("u-s-None", {"id": None}),
    "no user": ("just-a-name", {"id": "z"}),
    "another user": ("v-s-x", {"id": "x"}),
    "another user and message id": ("v-s-x2", {"id": "y2"}),
    "two ways, the first": ("u-s-a-s-b", {"id": "a-s-b"}),
    "two ways, the second": ("u-s-a-s-c", {"id": "c"}),
    "two ways, neither": ("u-s-a-s-d", {"id": "e"}),
    "empty": ("", {"id": "f"}),
    "huge": ("big", {"id": "h", "content": "x" * 9_000_000}),
}
"""Row ids that are not of memctl's making, with the fields of their messages."""

NAMES = {
    "another message id": ("u", "x"),
    "no message id": ("u", "None"),
    "no user": ("u", "z"),
    "another user": ("v", "x"),
    "another user and message id": ("u", "y2"),
    "two ways, the first": ("u", "a-s-b"),
    "two ways, the second": ("u-s-a", "c"),
    "two ways, neither": ("u", "a-s-d"),
    "empty": ("u", "f"),
    "huge": ("u", "h"),
}
"""The user and message that each row id is taken for."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", SQL_PLACES)
async def test_sql_row_ids_of_another_form(kind: str, tmp_path: Path, servers: Servers) -> None:
    whole = json.loads(samples.message("", 1))
    rows = [
        (row_id, json.dumps(whole | fields).encode(), "s", number)
        for number, (row_id, fields) in enumerate(FOREIGN.values())
    ]
    async with make_store(parse(SQL_PLACES[kind](tmp_path, servers)), OpenMode.CREATE) as store:
        database = sql_database(store)
        async with database.connect() as connection, database.transaction(connection):
            await database.insert_missing(connection, "users", ["id"], [("u",)])
            await database.insert_missing(connection, "session", ["id", "user_id"], [("s", "u")])
            columns = ["id", "msg", "session_id", "index"]
            await database.insert(connection, "message", columns, rows)
            marks = [("u-s-x", "hint"), ("big", "b"), ("big", "a")]
            await database.insert(connection, "message_mark", ["msg_id", "mark"], marks)
        found = await outline(store, Selection(), read=True)
        assert found == await outline(store, Selection(), read=False)
        names = {(key.user, id): index for key, _, entries in found for id, _, index in entries}
        assert names == {name: number for number, name in enumerate(NAMES.values())}
        for name in {user for user, _ in NAMES.values()}:
            where = Selection(users=frozenset({name}))
            own = [memory for memory in found if memory[0].user == name]
            assert await outline(store, where, read=True) == own
            assert await outline(store, where, read=False) == own
        for user, id in NAMES.values():
            where = Selection(users=frozenset({user}), ids=frozenset({id}))
            for pages in (store.read(where), store.read_with_anchors(where)):
                [page] = [page async for page in pages]
                assert [(page.memory.key.user, entry.id) for entry in page.messages] == [(user, id)]
                assert b"timestamp" in page.messages[0].message


@pytest.mark.parametrize("first", ["u-s-twin", "x1"])
def test_sql_row_with_the_id_of_another_is_not_deleted_for_it(
    run: Run, tmp_path: Path, first: str
) -> None:
    name = f"{tmp_path}/a.db"
    text = json.loads(samples.message("twin", 1))
    with closing(sqlite3.connect(name)) as connection:
        connection.executescript(
            """
            CREATE TABLE users (id VARCHAR(255) PRIMARY KEY);
            CREATE TABLE session (id VARCHAR(255) PRIMARY KEY, user_id VARCHAR(255));
            CREATE TABLE message (
                id VARCHAR(255) PRIMARY KEY, msg JSON, session_id VARCHAR(255), "index" BIGINT
            );
            CREATE TABLE message_mark (
                msg_id VARCHAR(255), mark VARCHAR(255), PRIMARY KEY (msg_id, mark)
            );
            INSERT INTO users VALUES ('u');
            INSERT INTO session VALUES ('s', 'u');
            """
        )
        for number, row in enumerate([first, "x2"]):
            stored = json.dumps(text | {"content": f"text {number}"})
            connection.execute("INSERT INTO message VALUES (?, ?, 's', ?)", (row, stored, number))
        connection.commit()
        before = connection.execute("SELECT * FROM message").fetchall()
        for words in (("--match", "text 1"), ("--all",)):
            done = report(run("delete", name, *words, "--yes", "--json"), 7)
            assert connection.execute("SELECT * FROM message").fetchall() == before, done


@pytest.mark.slow
@pytest.mark.parametrize("row_id", ["", "x"])
def test_sql_row_of_another_form_is_followed_by_what_is_restored(
    run: Run, tmp_path: Path, row_id: str
) -> None:
    name = f"{tmp_path}/a.db"
    asyncio.run(fill(f"sqlite:///{name}", {MemoryKey("u", "s"): samples.entries(4)}))
    with closing(sqlite3.connect(name)) as connection:
        connection.execute("UPDATE message SET id = ? WHERE id LIKE '%-m0000001'", (row_id,))
        connection.commit()
        before = connection.execute("SELECT * FROM message ORDER BY id").fetchall()
        for words in (("--keep-last", "1"), ("--last", "2"), ("--id", "m0000001")):
            report(run("delete", name, *words, "--yes", "--json"))
            assert connection.execute("SELECT * FROM message ORDER BY id").fetchall() != before
            report(run("undo", "--yes", "--json"))
            assert connection.execute("SELECT * FROM message ORDER BY id").fetchall() == before
