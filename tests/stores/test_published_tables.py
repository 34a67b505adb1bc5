"""Published tables, whose rows PostgreSQL does not change if subscribers cannot find them."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest

from memctl.model import MemoryKey
from memctl.testing import samples
from tests.support.backends import BACKENDS, database_of, in_style, new_place
from tests.support.cli import Run, contents, fails, fill, report
from tests.support.places import held, put
from tests.support.servers.pool import Servers

ADA, BOB = MemoryKey("ada", "kyoto"), MemoryKey("bob", "osaka")
ALL = "CREATE PUBLICATION p FOR ALL TABLES"
IDENTITIES = """
DO $$ DECLARE name text; BEGIN
    FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'public' LOOP
        EXECUTE format('ALTER TABLE %I REPLICA IDENTITY {}', name);
    END LOOP;
END $$
"""
NOTHING = "ALTER TABLE message REPLICA IDENTITY NOTHING"


@pytest.fixture
def place(postgresql_url: str) -> str:
    """A database with two memories."""
    asyncio.run(fill(postgresql_url, {ADA: samples.entries(8), BOB: samples.entries(8)}))
    return postgresql_url


@pytest.fixture
def source(tmp_path: Path) -> str:
    """An archive with another memory."""
    path = str(tmp_path / "source.ndjson")
    asyncio.run(fill(path, {MemoryKey("eve", "nara"): samples.entries(4)}))
    return path


def published(servers: Servers, place: str, *statements: str) -> None:
    """Run statements as the superuser, who may publish all tables."""
    servers.postgresql.execute(servers.postgresql.admin_url(place), "; ".join(statements))


COMMANDS: dict[str, tuple[str, ...]] = {
    "delete": ("delete", "STORE", "--user", "ada", "--yes"),
    "mark": ("mark", "add", "STORE", "new", "--user", "ada"),
    "compress": ("compress", "STORE", "--mode", "replace", "--keep-recent", "1", "--yes"),
    "erase": ("erase", "STORE", "--user", "ada", "--yes"),
    "import": ("import", "SOURCE", "STORE"),
    "replace": ("migrate", "SOURCE", "STORE", "--on-conflict", "replace", "--yes"),
    "doctor": ("doctor", "STORE", "--repair", "--yes"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_change_of_rows_without_identity_is_refused(
    run: Run, servers: Servers, place: str, source: str, command: str
) -> None:
    published(servers, place, ALL, NOTHING)
    with pytest.raises(subprocess.CalledProcessError) as refused:
        servers.postgresql.execute(place, "DELETE FROM message")
    assert "does not have a replica identity and publishes deletes" in refused.value.stderr
    before = contents(place)
    words = [{"STORE": place, "SOURCE": source}.get(word, word) for word in COMMANDS[command]]
    done = run(*words)
    fails(
        done,
        3,
        'cannot delete from table "message" because it does not have a replica identity',
        "hint: ALTER TABLE message REPLICA IDENTITY FULL, or add a primary key",
    )
    assert contents(place) == before
    assert report(run("history", "--json"))["runs"] == []
    published(servers, place, "ALTER TABLE message REPLICA IDENTITY FULL")
    assert run(*words).exit_code == 0


def test_undo_of_rows_without_identity_is_refused(run: Run, servers: Servers, place: str) -> None:
    before = contents(place)
    assert run("delete", place, "--user", "ada", "--yes").exit_code == 0
    published(servers, place, ALL, NOTHING)
    fails(run("undo", "--store", place, "--yes"), 3, "REPLICA IDENTITY FULL")
    published(servers, place, "DROP PUBLICATION p")
    assert run("undo", "--store", place, "--yes").exit_code == 0
    assert contents(place) == before


@pytest.mark.parametrize(
    ("statements", "refused"),
    [
        ([ALL], ""),  # all tables have primary keys
        ([NOTHING], ""),
        ([f"{ALL} WITH (publish = 'insert, truncate')", NOTHING], ""),
        (["CREATE PUBLICATION p FOR TABLE users", NOTHING], ""),
        (["CREATE PUBLICATION p FOR TABLE message_mark, message", NOTHING], "delete from"),
        (["CREATE PUBLICATION p FOR TABLES IN SCHEMA public", NOTHING], "delete from"),
        ([f"{ALL} WITH (publish = 'update')", NOTHING], "update"),
        (
            [
                "CREATE UNIQUE INDEX own ON message (id)",
                "ALTER TABLE message REPLICA IDENTITY USING INDEX own",
                ALL,
            ],
            "",
        ),
        (
            [
                "CREATE UNIQUE INDEX own ON message (id)",
                "ALTER TABLE message REPLICA IDENTITY USING INDEX own",
                "DROP INDEX own",
                ALL,
            ],
            "delete from",
        ),
        (["CREATE PUBLICATION p FOR TABLE message WHERE (session_id > 'a')"], "delete from"),
        (["CREATE PUBLICATION p FOR TABLE message (session_id)"], "delete from"),
    ],
)
def test_publications(
    run: Run, servers: Servers, place: str, statements: list[str], refused: str
) -> None:
    published(servers, place, *statements)
    done = run("delete", place, "--user", "ada", "--yes")
    if refused:
        fails(done, 3, f"cannot {refused} table", "hint: ", "REPLICA IDENTITY")
        assert report(run("inspect", place, "--json"))["totals"]["memories"] == 2
    else:
        assert done.exit_code == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [*(name for name in BACKENDS if name.startswith("postgresql")), "mem0-pgvector"]
)
def test_published_tables_of_every_layout(
    run: Run, name: str, servers: Servers, tmp_path: Path
) -> None:
    place = new_place(name, tmp_path, servers)
    with in_style(place):
        put(place, samples.several(place.keys(2), 3))
    url = database_of(place.text) if name == "mem0-pgvector" else place.text.partition("?")[0]
    published(servers, url, ALL, IDENTITIES.format("NOTHING"))
    before = held(place)
    fails(run("delete", place.text, "--all", "--yes"), 3, "REPLICA IDENTITY FULL")
    assert held(place) == before
    published(servers, url, IDENTITIES.format("FULL"))
    assert run("delete", place.text, "--all", "--yes").exit_code == 0
    assert held(place) != before
    assert run("undo", "--store", place.text, "--yes").exit_code == 0
    assert held(place) == before
