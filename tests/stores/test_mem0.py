"""Configurations of mem0 and the folders that they name: what is refused, and what is repaired."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pytest

from memctl.stores.mem0 import faiss, history
from memctl.testing import samples
from tests.support.backends import FACT_BACKENDS, mem0_key
from tests.support.cli import Run, contents, fails, fill, report
from tests.support.files import files
from tests.support.servers.pool import Servers


def filled(provider: str, folder: Path, servers: Servers, count: int = 5) -> str:
    """Return the name of a store with facts of two scopes."""
    backend = FACT_BACKENDS[f"mem0-{provider}"](servers)
    samples.use(backend.style)
    store = backend.make(folder)
    scopes = {mem0_key(0): samples.entries(count), mem0_key(1): samples.entries(3, count)}
    asyncio.run(fill(store, scopes))
    samples.use(samples.Style())
    return store


def config(folder: Path, **vector_store: Any) -> str:
    """Write a configuration; return how memctl names its store."""
    file = folder / "config.json"
    file.write_text(json.dumps({"vector_store": vector_store} if vector_store else {"llm": {}}))
    return f"mem0:{file}"


def test_configuration_without_a_vector_store_is_refused(run: Run, tmp_path: Path) -> None:
    fails(run("inspect", config(tmp_path)), 2, "names no vector store", '"vector_store"')


def test_vector_store_that_memctl_does_not_open_is_refused(run: Run, tmp_path: Path) -> None:
    store = config(tmp_path, provider="pinecone", config={"api_key": "s3cret"})
    result = run("inspect", store)
    fails(result, 2, "'pinecone'", "qdrant, faiss, chroma, pgvector")
    assert "s3cret" not in result.stderr


def test_configuration_that_is_not_json_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("vector_store: qdrant")
    fails(run("inspect", f"mem0:{tmp_path}/config.json"), 8, "not a configuration of mem0")
    fails(run("inspect", f"mem0:{tmp_path}/none.json"), 4, "does not exist")
    fails(run("inspect", "mem0:"), 2, "names no path")


@pytest.mark.parametrize("provider", ["qdrant", "faiss", "chroma", "pgvector"])
@pytest.mark.parametrize("odd", ["\0", "\ud800"])
def test_name_that_no_place_has_is_refused(
    run: Run, tmp_path: Path, provider: str, odd: str
) -> None:
    names = ("host",) if provider == "pgvector" else ("path", "collection_name")
    for name in names:
        store = config(tmp_path, provider=provider, config={"path": str(tmp_path), name: odd})
        fails(run("inspect", store), 2, f"vector_store.config.{name}", "surrogate pair")
    about = {"vector_store": {"provider": provider}, "history_db_path": f"a{odd}"}
    (tmp_path / "config.json").write_text(json.dumps(about))
    fails(run("inspect", store), 2, "history_db_path", "surrogate pair")


@pytest.mark.parametrize("provider", ["qdrant", "faiss", "chroma"])
def test_collection_that_is_not_there_is_not_made_by_reading(
    run: Run, tmp_path: Path, provider: str
) -> None:
    folder = tmp_path / "vectors"
    store = config(tmp_path, provider=provider, config={"path": str(folder)})
    fails(run("inspect", store), 4, "no collection 'mem0'")
    assert not folder.exists()


def test_password_of_pgvector_is_not_shown(run: Run, tmp_path: Path) -> None:
    url = "postgresql://ada:pa55word@127.0.0.1:1/db"
    for options in (
        {"connection_string": url},
        {"host": "127.0.0.1", "port": 1, "user": "ada", "password": "pa55word"},
    ):
        result = run("inspect", config(tmp_path, provider="pgvector", config=options))
        fails(result, 3, "check that the server is running")
        assert "pa55word" not in result.stderr + result.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("provider", "file"), [("qdrant", "meta.json"), ("faiss", "facts.faiss")])
def test_damaged_folder_is_refused(
    run: Run, tmp_path: Path, servers: Servers, provider: str, file: str
) -> None:
    store = filled(provider, tmp_path, servers)
    path = tmp_path / provider / file
    path.write_bytes(path.read_bytes()[:-30])
    fails(run("inspect", store), 8, file, "restore it from a backup")


@pytest.mark.parametrize("place", [("0", {"a": 5}), ("1", 5), ("x", "m0000001")])
def test_faiss_place_of_no_fact_is_damage(
    run: Run, tmp_path: Path, servers: Servers, place: tuple[str, Any]
) -> None:
    store = filled("faiss", tmp_path, servers)
    path = tmp_path / "faiss" / "facts.json"
    about = json.loads(path.read_text())
    about["index_to_id"] |= [place]
    path.write_text(json.dumps(about))
    fails(run("inspect", store), 8, "a place is not a number with an id")


@pytest.mark.slow
def test_faiss_id_with_half_a_surrogate_pair_is_one_as_any(
    run: Run, tmp_path: Path, servers: Servers
) -> None:
    store = filled("faiss", tmp_path, servers)
    ids = [one.id for one in contents(store)[mem0_key(0)]]
    for path in (tmp_path / "faiss").glob("*.json"):
        path.write_text(path.read_text().replace(f'"{ids[0]}"', f'"{ids[0]}\\ud800"'))
    before = contents(store)
    assert [one.id for one in before[mem0_key(0)]] == [f"{ids[0]}\ud800", *ids[1:]]
    archive = str(tmp_path / "facts.ndjson")
    assert run("export", store, "-o", archive).exit_code == 0
    assert run("verify", archive, store).exit_code == 0
    assert run("doctor", store).exit_code == 0
    for pick in (["--all"], ["--last", "5"]):
        assert run("delete", store, *pick, "--yes").exit_code == 0
        assert contents(store) != before
        assert run("undo", "--yes").exit_code == 0
        assert contents(store) == before


def test_faiss_facts_and_entities_without_a_vector_come_back_without_one(
    run: Run, tmp_path: Path, servers: Servers
) -> None:
    store = filled("faiss", tmp_path, servers)
    for path in (tmp_path / "faiss").glob("*.json"):
        about = json.loads(path.read_text())
        del about["index_to_id"]["0"]
        path.write_text(json.dumps(about))
    before = contents(store)
    assert run("delete", store, "--last", "2", "--yes").exit_code == 0
    kept = contents(store)
    assert run("delete", store, "--all", "--yes").exit_code == 0
    assert contents(store) == {}
    assert run("undo", "--yes").exit_code == 0
    assert contents(store) == kept
    assert run("undo", "--store", store, "--yes").exit_code == 0
    assert contents(store) == before


HEADER = 45
"""The bytes before the vectors in an index of faiss."""


@pytest.mark.parametrize("pick", [["--user"], ["--last", "2"], ["--all"]])
def test_faiss_facts_come_back_with_their_vectors(
    run: Run, tmp_path: Path, servers: Servers, pick: list[str]
) -> None:
    store = filled("faiss", tmp_path, servers)

    def facts() -> dict[str, Any]:
        """Return the payload and the vector of each fact and entity, wherever they are."""
        found: dict[str, Any] = {}
        for path in (tmp_path / "faiss").glob("*.json"):
            about = json.loads(path.read_bytes())
            vectors = path.with_suffix(".faiss").read_bytes()
            size = len(vectors) - HEADER
            each = size // max(len(about["index_to_id"]), 1)
            for place, id in about["index_to_id"].items():
                start = HEADER + int(place) * each
                found[id] = about["docstore"][id], vectors[start : start + each]
            assert about["docstore"].keys() == set(about["index_to_id"].values())
        return found

    before = facts()
    [first, *_] = contents(store)
    chosen = ["--user", first.user] if pick[0] == "--user" else pick
    assert run("delete", store, *chosen, "--yes").exit_code == 0
    after = facts()
    assert after != before
    for expected in (before, after, before):
        last = json.loads(run("history", "--json").stdout)["runs"][0]["run"]
        assert run("undo", last, "--yes").exit_code == 0
        assert facts() == expected


@pytest.mark.parametrize("row", ["'h', CAST(x'ff' AS TEXT)", "'h', x'00'", "NULL, 'text'"])
def test_row_of_the_history_that_is_damaged_leaves_out_its_scope(
    run: Run, tmp_path: Path, servers: Servers, row: str
) -> None:
    store = filled("faiss", tmp_path, servers)
    [one, *_] = contents(store)[mem0_key(0)]
    with sqlite3.connect(tmp_path / "history.db") as database:
        database.execute(history._SCHEMA[0])
        sql = f"INSERT INTO history (memory_id, id, new_memory) VALUES (?, {row})"
        database.execute(sql, (one.id,))
    fails(run("export", store, "-o", str(tmp_path / "facts.ndjson")), 7, "its history has a row")
    assert contents(str(tmp_path / "facts.ndjson")).keys() == {mem0_key(1)}


def test_qdrant_that_is_refused_makes_no_folder(run: Run, tmp_path: Path, servers: Servers) -> None:
    store = filled("qdrant", tmp_path, servers)
    shutil.rmtree(tmp_path / "qdrant" / "collection")
    fails(run("mark", "remove", store, "hint"), 2, "have no marks")
    assert not (tmp_path / "qdrant" / "collection").exists()


@pytest.mark.parametrize("lost", ["facts.faiss", "facts.json"])
def test_faiss_without_one_of_its_files_is_not_written_over(
    run: Run, tmp_path: Path, servers: Servers, lost: str
) -> None:
    store = filled("faiss", tmp_path, servers)
    archive = str(tmp_path / "facts.ndjson")
    assert run("export", store, "-o", archive).exit_code == 0
    (tmp_path / "faiss" / lost).unlink()
    before = files(tmp_path / "faiss")
    fails(run("inspect", store), 8, f"but not {lost}", "restore both files")
    fails(run("import", archive, store), 8, f"but not {lost}")
    assert files(tmp_path / "faiss") == before


def test_vectors_that_were_not_copied_are_not_said_to_match(
    run: Run, tmp_path: Path, servers: Servers
) -> None:
    store = filled("faiss", tmp_path, servers)
    copied = run("migrate", store, f"vault:{tmp_path}/Memory", "--lossy")
    assert copied.exit_code == 0, copied.stderr
    assert "verified: source and target match, but for" in copied.stdout
    assert "vectors\n" in copied.stdout


@pytest.mark.parametrize("provider", ["qdrant", "faiss", "chroma"])
def test_vectors_are_looked_at_before_a_store_is_made(
    run: Run, tmp_path: Path, servers: Servers, provider: str
) -> None:
    store = filled("faiss", tmp_path, servers)
    other = {"provider": "openai", "config": {"model": "other", "embedding_dims": 3}}
    place = {"path": str(tmp_path / "new"), "embedding_model_dims": 3}
    if provider == "chroma":
        del place["embedding_model_dims"]
    about = {"vector_store": {"provider": provider, "config": place}, "embedder": other}
    (tmp_path / "new.json").write_text(json.dumps(about))
    (tmp_path / "memctl.toml").write_text(
        '[embedders.small]\nkind = "openai"\nmodel = "other"\nbase_url = "http://127.0.0.1:9/v1"\n'
    )
    words = ["migrate", store, f"mem0:{tmp_path}/new.json", "--dry-run"]
    fails(run(*words), 9, "without the vectors of", "--embedder NAME")
    settings = ["--config", str(tmp_path / "memctl.toml")]
    result = run(*words, "--embedder", "small", *settings)
    assert result.exit_code == 0, result.stderr
    assert "8 texts would be embedded by small" in result.stdout
    assert "not copied" not in result.stderr
    words.remove("--dry-run")
    fails(run(*words), 9, "without the vectors of", "--embedder NAME")
    fails(run(*words, "--embedder", "small", *settings), 3, "cannot reach")
    assert not (tmp_path / "new").exists()


def test_point_that_would_run_something_is_left_out(
    run: Run, tmp_path: Path, servers: Servers
) -> None:
    import pickle

    class Evil:
        def __reduce__(self) -> Any:
            return (os.mkdir, (str(tmp_path / "made"),))

    store = filled("qdrant", tmp_path, servers)
    with sqlite3.connect(tmp_path / "qdrant/collection/facts/storage.sqlite") as database:
        database.execute("UPDATE points SET point = ? WHERE rowid = 1", (pickle.dumps(Evil()),))
    result = run("inspect", store, "--json")
    assert not (tmp_path / "made").exists()
    assert result.exit_code in (0, 7, 8), result.stderr


def test_alias_names_a_store_of_mem0(run: Run, tmp_path: Path, servers: Servers) -> None:
    store = filled("faiss", tmp_path, servers)
    settings = tmp_path / "memctl.toml"
    settings.write_text(f'[stores.facts]\nurl = "{store}"\n')
    found = report(run("inspect", "facts", "--config", str(settings), "--json"))
    assert found["totals"]["messages"] == 8


def test_faiss_is_completed_where_a_run_was_killed_between_its_files(
    run: Run, tmp_path: Path, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled("faiss", tmp_path, servers)
    killed = tmp_path / "killed"
    finish = faiss._Collection._finish

    def stop(self: Any, pending: Path) -> None:
        if not killed.exists() and pending.name.startswith(".memctl-facts."):
            shutil.copytree(tmp_path / "faiss", killed)
        finish(self, pending)

    monkeypatch.setattr(faiss._Collection, "_finish", stop)
    [one, *_] = contents(store)[mem0_key(0)]
    assert run("delete", store, "--id", one.id, "--yes").exit_code == 0
    monkeypatch.undo()
    after = contents(store)
    shutil.rmtree(tmp_path / "faiss")
    shutil.move(killed, tmp_path / "faiss")
    # The vectors are those of four facts, and the names still those of five.
    assert run("delete", store, "--id", one.id, "--yes").exit_code == 0
    assert contents(store) == after
    assert not list((tmp_path / "faiss").glob("*.pending"))


@pytest.mark.parametrize("damage", ["loop", "long name"])
def test_index_whose_file_the_system_refuses_is_named(
    run: Run, tmp_path: Path, damage: str
) -> None:
    folder = tmp_path / ("faiss" if damage == "loop" else "n" * 300)
    if damage == "loop":
        folder.mkdir()
        (folder / "facts.faiss").symlink_to("facts.faiss")
    place = config(
        tmp_path, provider="faiss", config={"collection_name": "facts", "path": str(folder)}
    )
    result = run("inspect", place, "--json")
    error = report(result, 3)["error"]
    assert error["code"] == "unavailable"
    assert "facts.faiss cannot be used: " in error["message"]


def test_faiss_that_lacks_a_fact_of_its_index_is_not_changed(
    run: Run, tmp_path: Path, servers: Servers
) -> None:
    """A write has the vectors of the facts that are there: that of the other would be lost."""
    store = filled("faiss", tmp_path, servers)
    [docstore] = tmp_path.rglob("faiss/*.json")
    found = json.loads(docstore.read_bytes())
    del found["docstore"]["m0000002"]
    docstore.write_text(json.dumps(found))
    before = {path: path.read_bytes() for path in docstore.parent.iterdir()}
    assert run("inspect", store).exit_code == 0
    for change in (("delete", store, "--all", "--yes"), ("doctor", store, "--repair", "--yes")):
        fails(run(*change), 8, "has no payload of facts that are in the index: 1", "backup")
    assert {path: path.read_bytes() for path in docstore.parent.iterdir()} == before


OLDER = (
    "CREATE TABLE history (id TEXT PRIMARY KEY, memory_id TEXT, old_memory TEXT, "
    "new_memory TEXT, new_value TEXT, event TEXT, created_at DATETIME, updated_at DATETIME, "
    "is_deleted INTEGER)"
)
"""The table of mem0 0.1.0."""


def make_older(file: Path) -> None:
    """Give a history the columns that mem0 had before 2.0."""
    names = "id, memory_id, old_memory, new_memory, event, created_at, updated_at, is_deleted"
    with sqlite3.connect(file) as database:
        database.executescript(
            f"ALTER TABLE history RENAME TO newer; {OLDER};"
            f"INSERT INTO history ({names}) SELECT {names} FROM newer; DROP TABLE newer"
        )


def test_history_of_an_older_mem0_is_read_and_not_changed(
    run: Run, tmp_path: Path, servers: Servers
) -> None:
    store = filled("qdrant", tmp_path, servers)
    file = tmp_path / "history.db"
    ids = [one.id for some in contents(store).values() for one in some]
    with sqlite3.connect(file) as database:
        database.execute(history._SCHEMA[0])
        sql = "INSERT INTO history (id, memory_id, new_memory, event) VALUES (?, ?, 'x', 'ADD')"
        database.executemany(sql, [(f"h-{id}", id) for id in ids])
    expected = contents(store)
    make_older(file)
    before = files(tmp_path)
    found = report(run("inspect", store, "--json"))
    assert found["totals"]["messages"] == 8
    [warning] = found["warnings"]
    assert "history of an older mem0, whose columns new_value are not read" in warning
    backup = tmp_path / "backup.ndjson"
    assert run("export", store, "-o", backup).exit_code == 0
    saved = contents(str(backup))
    for key, facts in expected.items():
        read = {one.id: json.loads(one.message) for one in saved[key]}
        for one in facts:
            assert json.loads(one.message)["history"][0]["event"] == "ADD"
            assert read[one.id] == json.loads(one.message)
    backup.unlink()
    for words in (["delete", store, "--all", "--yes"], ["erase", store, "--user", "ada", "--yes"]):
        fails(run(*words), 8, "history of an older mem0", "hint: open it once with mem0 2")
    assert files(tmp_path) == before


def test_history_that_is_not_of_mem0_is_named(run: Run, tmp_path: Path, servers: Servers) -> None:
    store = filled("qdrant", tmp_path, servers)
    with sqlite3.connect(tmp_path / "history.db") as database:
        database.executescript("DROP TABLE IF EXISTS history; CREATE TABLE history (url TEXT)")
    fails(run("inspect", store), 8, "is not one of mem0", "set another history_db_path")


class InDatabase(NamedTuple):
    """Facts of mem0 in PostgreSQL: the store, and a way to run SQL of the application."""

    store: str
    execute: Callable[[str], str]
    folder: Path

    def login(self, servers: Servers, rights: str) -> str:
        """Make a login with these rights on the table of facts; return the store of this login."""
        file = self.folder / "config.json"
        about = json.loads(file.read_text())
        options = about["vector_store"]["config"]
        name = options["connection_string"].rpartition("/")[2]
        login = f"guest_{uuid4().hex[:8]}"
        admin = servers.postgresql.admin_url(options["connection_string"])
        servers.postgresql.execute(admin, f"CREATE ROLE {login} LOGIN PASSWORD 'secret'")
        self.execute(f"GRANT {rights} ON ALL TABLES IN SCHEMA public TO {login}")
        url = servers.postgresql.url(name, user=login, password="secret")
        options["connection_string"] = url
        (self.folder / "guest.json").write_text(json.dumps(about))
        return f"mem0:{self.folder}/guest.json"


@pytest.fixture
def in_database(servers: Servers, tmp_path: Path) -> InDatabase:
    store = filled("pgvector", tmp_path, servers)
    about = json.loads((tmp_path / "config.json").read_text())
    url = about["vector_store"]["config"]["connection_string"]
    return InDatabase(store, lambda sql: servers.postgresql.execute(url, sql), tmp_path)


@pytest.mark.slow
def test_rows_that_refer_to_facts_stop_their_deletion(run: Run, in_database: InDatabase) -> None:
    store, execute, _ = in_database
    execute(
        "CREATE TABLE notes (about UUID REFERENCES facts (id) ON DELETE CASCADE); "
        "INSERT INTO notes "
        f"SELECT id FROM facts WHERE payload->>'run_id' = '{mem0_key(0).session}' LIMIT 1"
    )
    before = contents(store)
    effect = "deleting rows of 'facts' deletes rows of 'notes' (ON DELETE CASCADE)"
    user, session, _ = mem0_key(0)
    words = ("--user", user, "--session", session, "--yes")
    fails(run("delete", store, *words), 9, effect, "side_effects=allow")
    fails(run("erase", store, *words), 9, effect)
    assert contents(store) == before
    assert run("delete", store, "--session", mem0_key(1).session, "--yes").exit_code == 0
    assert run("undo", "--yes").exit_code == 0
    assert contents(store) == before
    assert run("delete", f"{store}?side_effects=allow", *words).exit_code == 0
    assert execute("SELECT count(*) FROM notes").strip() == "0"
    fails(run("inspect", f"{store}?side_effects=yes"), 2, "write side_effects=allow")


def test_triggers_of_facts_stop_their_deletion(run: Run, in_database: InDatabase) -> None:
    store, execute, _ = in_database
    execute(
        "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; "
        "CREATE TRIGGER audit BEFORE DELETE ON facts FOR EACH ROW EXECUTE FUNCTION keep()"
    )
    before = contents(store)
    fails(run("delete", store, "--all", "--yes"), 9, "'facts' runs the trigger 'audit'")
    done = run("delete", f"{store}?side_effects=allow", "--all", "--yes")
    assert (done.exit_code, "a trigger or a rule of the table kept it" in done.stderr) == (7, True)
    assert contents(store) == before
    execute("DROP TRIGGER audit ON facts")
    assert run("delete", store, "--user", mem0_key(0).user, "--yes").exit_code == 0
    execute("CREATE TRIGGER quota BEFORE INSERT ON facts FOR EACH ROW EXECUTE FUNCTION keep()")
    done = run("undo", "--yes")
    assert (done.exit_code, "a trigger or a rule of the table left it out" in done.stderr) == (
        7,
        True,
    )
    execute("DROP TRIGGER quota ON facts")
    assert run("undo", "--yes").exit_code == 0
    assert contents(store) == before


def test_policies_hide_no_facts_unsaid(run: Run, in_database: InDatabase, servers: Servers) -> None:
    execute = in_database.execute
    guest = in_database.login(servers, "SELECT, INSERT, UPDATE, DELETE")
    assert contents(guest) == contents(in_database.store)
    execute(
        "ALTER TABLE facts ENABLE ROW LEVEL SECURITY; "
        "CREATE POLICY own ON facts USING (payload->>'user_id' = 'x')"
    )
    text = "row-level security may hide rows of the table 'facts' from this login"
    fails(run("inspect", guest), 3, text, "BYPASSRLS")
    fails(run("delete", guest, "--all", "--yes"), 3, text)


def test_missing_right_to_insert_facts_is_found_before_a_deletion(
    run: Run, in_database: InDatabase, servers: Servers
) -> None:
    guest = in_database.login(servers, "SELECT, UPDATE, DELETE")
    before = contents(in_database.store)
    words = ("delete", guest, "--all", "--yes")
    fails(run(*words), 3, "undo needs to restore messages: INSERT on 'facts'", "--no-backup")
    assert contents(in_database.store) == before
    assert run(*words, "--no-backup").exit_code == 0
