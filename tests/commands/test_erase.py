"""``memctl erase``: nothing of a user is left, everything else stays, and a receipt says so."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sqlite3
import stat
import subprocess
import sys
from base64 import b64decode, b64encode
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis

from memctl import RunOptions
from memctl.api import erase, open_store
from memctl.machine import zstd
from memctl.model import MemoryKey, StoredMessage
from memctl.testing import Place, samples
from memctl.testing.lock_holder import lock_elsewhere
from memctl.testing.samples import sample
from memctl.testing.suite.erase import texts
from tests.commands.test_asking import Session
from tests.support.backends import AGENTSCOPE2, BACKENDS, new_place
from tests.support.chromium import Chromium
from tests.support.cli import Run, contents, fails, fill, report
from tests.support.places import held, put, runs_folder
from tests.support.servers.pool import Servers, start

SECRET = "the word that is nobody's"
HOSTILE = ["ada*", "ada%_", "a:da", "ada/x", "😀", "ada-x"]
NO_USERS = (
    *("state", "langchain-files", "redis-langchain", "redis-openai-agents"),
    *("postgresql-openai-agents", "mysql-langchain", "sqlite-openai-branches"),
    "sqlite-llamaindex",
)
STORES = [name for name in BACKENDS if name not in NO_USERS]
ADA, BOB = MemoryKey("quokka", "kyoto"), MemoryKey("bob", "parcel")
ID = "m-4f7c2a19d35b4f61"


def messages(number: int = 6) -> list[StoredMessage]:
    """Return messages with ids of some length, and a word in each."""
    return [
        samples.entry(f"{ID}{n}", n, samples.marks_of(n), metadata={"note": SECRET})
        for n in range(number)
    ]


def others(number: int = 6) -> list[StoredMessage]:
    """Return messages of somebody else."""
    return samples.entries(number)


@pytest.fixture(params=STORES)
def place(request: pytest.FixtureRequest, tmp_path: Path, servers: Servers) -> Any:
    """A new and empty place of each store in turn."""
    place = new_place(request.param, tmp_path, servers)
    samples.use(place.backend.style)
    yield place
    samples.use(samples.Style())


def receipts() -> list[Path]:
    """Return the receipts in the default folder."""
    return sorted((Path(os.environ["XDG_STATE_HOME"]) / "memctl" / "receipts").glob("*"))


def kept_text() -> str:
    """Return all that is kept for undo, decompressed."""
    found = []
    for file in sorted(runs_folder().rglob("*")):
        if file.is_file():
            data = file.read_bytes()
            if file.name.endswith(".zst"):
                data = zstd.ZstdFile(file).read()
            found.append(data.decode())
    return "\n".join(found)


@pytest.mark.slow
def test_erase_leaves_nothing_and_its_receipt_proves_it(run: Run, place: Place) -> None:
    put(place, [sample(ADA, messages()), sample(ADA._replace(session="nara"), messages(3))])
    put(place, [sample(BOB, others())])
    bob = held(place)[BOB]
    dry = report(run("erase", "--user", "quokka", place.text, "--dry-run", "--json"))
    assert SECRET in texts(place.dump())
    assert not receipts()
    found = report(run("erase", "--user", "quokka", place.text, "--yes", "--json"))
    [planned], [erased] = dry["stores"], found["stores"]
    assert planned["memories"] == erased["memories"]
    assert (planned["state"], erased["state"]) == ("planned", "erased")
    assert planned["messages"] == erased["messages"] == 9
    assert held(place) == {BOB: bob}
    left = texts(place.dump())
    assert "quokka" not in left
    assert SECRET not in left
    [receipt] = receipts()
    assert found["receipt"] == str(receipt)
    assert stat.S_IMODE(receipt.stat().st_mode) == 0o600
    text = receipt.read_text().replace(place.text, "").replace(str(place.folder), "")
    assert not [word for word in ("quokka", "kyoto", SECRET, ID) if word in text]
    assert json.loads(text)["complete"] is True

    checked = report(run("verify", "--receipt", receipt, place.text, "--json"))
    assert checked["differences"] == []
    fails(run("erase", "--user", "quokka", place.text, "--yes"), 4, "has no memory of 'quokka'")

    put(place, [sample(ADA, messages(2))])
    back = report(run("verify", "--receipt", receipt, place.text, "--json"), 6)
    assert [(row["user"], row["code"]) for row in back["differences"]] == [("quokka", "name")]
    assert run("erase", "--user", "quokka", place.text, "--yes").exit_code == 0
    put(place, [sample(BOB._replace(session="other"), messages(2))])
    back = report(run("verify", "--receipt", receipt, place.text, "--json"), 6)
    assert [(row["user"], row["code"]) for row in back["differences"]] == [("bob", "message")]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sqlite", "postgresql", "mysql", "redis", "redis-agentscope2"])
def test_erase_names_are_no_patterns(run: Run, one: Callable[[str], Place], name: str) -> None:
    place = one(name)
    samples.use(place.backend.style)
    try:
        users = [*HOSTILE, "ada", "adaXX", "Ada", "ada*x"]
        put(place, [sample(MemoryKey(user, f"of {n}"), others(3)) for n, user in enumerate(users)])
        for user in HOSTILE:
            before = held(place)
            assert run("erase", "--user", user, place.text, "--yes").exit_code == 0
            assert held(place) == {key: one for key, one in before.items() if key.user != user}
        assert {key.user for key in held(place)} == {"ada", "adaXX", "Ada", "ada*x"}
    finally:
        samples.use(samples.Style())


@pytest.mark.parametrize("name", ["sqlite", "redis", "sqlite-agentscope2", "sessions"])
def test_erase_of_one_session(run: Run, one: Callable[[str], Place], name: str) -> None:
    place = one(name)
    samples.use(place.backend.style)
    try:
        put(place, [sample(ADA, messages()), sample(ADA._replace(session="nara"), others())])
        where = ("--user", "quokka", "--session", "kyoto")
        found = report(run("erase", *where, place.text, "--yes", "--json"))
        assert found["stores"][0]["messages"] == 6
        assert [key.session for key in held(place)] == ["nara"]
        assert "kyoto" not in texts(place.dump())
        assert run("verify", "--receipt", found["receipt"]).exit_code == 0
        put(place, [sample(ADA, messages(1))])
        assert run("verify", "--receipt", found["receipt"]).exit_code == 6
    finally:
        samples.use(samples.Style())


@pytest.mark.slow
def test_erase_takes_the_user_out_of_undo_runs(run: Run, database: str) -> None:
    asyncio.run(fill(database, {ADA: messages(), BOB: others()}))
    assert run("delete", database, "--user", "quokka", "--last", "1", "--yes").exit_code == 0
    assert run("delete", database, "--last", "1", "--yes").exit_code == 0
    both, alone = (one["run"] for one in report(run("history", "--json"))["runs"])
    assert SECRET in kept_text()
    found = report(run("erase", "--user", "quokka", database, "--yes", "--json"))
    assert found["stores"][0]["runs"] == {"removed": [alone], "rewritten": [both]}
    text = kept_text()
    assert SECRET not in text
    assert "quokka" not in text
    [left] = report(run("history", "--json"))["runs"]
    assert (left["run"], left["erased"]) == (both, 1)
    assert "done, 1 memory erased" in run("history").stdout
    before = contents(database)
    assert run("undo", both, "--yes").exit_code == 0
    assert list(contents(database)) == [BOB]
    assert len(contents(database)[BOB]) == len(before[BOB]) + 1


@pytest.mark.slow
def test_erase_takes_the_user_out_of_what_a_migrate_replaced(
    run: Run, database: str, target: str
) -> None:
    asyncio.run(fill(target, {ADA: messages(), BOB: messages(3)}))
    asyncio.run(fill(database, {ADA: others(2), BOB: others(2)}))
    done = report(run("migrate", database, target, "--on-conflict", "replace", "--yes", "--json"))
    assert kept_text().count(SECRET) == 9
    found = report(run("erase", "--user", "quokka", target, "--yes", "--json"))
    assert len(found["stores"][0]["runs"]["rewritten"]) == 1
    assert kept_text().count(SECRET) == 3
    assert '"quokka"' not in kept_text()
    fails(run("undo", "--yes", "--store", target), 2, "erase", "has no undo record", done["run"])
    assert run("undo", done["run"], "--store", target).exit_code == 0
    assert {key: len(found) for key, found in contents(target).items()} == {BOB: 3}


@pytest.mark.slow
def test_erase_leaves_runs_on_other_stores(run: Run, database: str, target: str) -> None:
    for store in (database, target):
        asyncio.run(fill(store, {ADA: messages()}))
        assert run("delete", store, "--last", "1", "--yes").exit_code == 0
    assert run("erase", "--user", "quokka", database, "--yes").exit_code == 0
    [left] = report(run("history", "--json"))["runs"]
    assert "target.db" in left["store"]
    assert SECRET in kept_text()


SAME_POSTGRESQL = [
    lambda url: url.replace("postgresql://", "postgres://"),
    lambda url: url.replace("postgresql://", "postgresql+asyncpg://"),
    lambda url: url.replace("127.0.0.1", "localhost"),
    lambda url: url.replace("memctl:", "another:"),
    lambda url: f"{url}?sslmode=disable",
    lambda url: f"{url}?state=states",
    lambda url: f"{url}?layout=memory",
    lambda url: re.sub(r"memctl:.*@(.*):(\d+)/", r"/?host=\1&port=\2&dbname=", url),
]
SAME_REDIS = [
    lambda url: url.replace("127.0.0.1", "localhost"),
    lambda url: url.replace("://", "://another:secret@"),
    lambda url: f"{url}?ttl=60",
    lambda url: f"{url}?state=redis",
    lambda url: f"{url}?layout=memory",
    lambda url: re.sub(r"/(\d+)$", r"?db=\1", url),
]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["postgresql", "redis"])
def test_erase_finds_the_undo_runs_whatever_the_url(
    run: Run, servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "states").mkdir()
    url = servers.postgresql.fresh() if engine == "postgresql" else servers.redis.fresh()
    asyncio.run(fill(url, {ADA: messages(), BOB: others()}))
    deleted = report(run("delete", url, "--user", "quokka", "--last", "1", "--yes", "--json"))
    forms = SAME_POSTGRESQL if engine == "postgresql" else SAME_REDIS
    for form in forms:
        [kept] = report(run("history", form(url), "--json"))["runs"]
        assert kept["run"] == deleted["run"], form(url)
    other = url[:-1] + ("0" if url[-1] != "0" else "1")
    assert report(run("history", other, "--json"))["runs"] == []
    written = url.replace("127.0.0.1", "localhost") + "?state=states" * (engine == "postgresql")
    found = report(run("erase", "--user", "quokka", written, "--yes", "--json"))
    assert found["stores"][0]["runs"] == {"removed": [deleted["run"]], "rewritten": []}
    assert SECRET not in kept_text()
    fails(run("undo", "--store", url, "--yes"), 4, "no run")
    assert list(contents(url)) == [BOB]


@pytest.mark.slow
def test_erase_under_another_login_leaves_nothing_to_undo(
    run: Run, servers: Servers, write: Path
) -> None:
    url = servers.postgresql.fresh()
    login = f"login_{url.rpartition('/')[2]}"
    admin = servers.postgresql.admin_url(url)
    secret = "between us"
    servers.postgresql.execute(
        admin, f"CREATE ROLE {login} LOGIN PASSWORD '{secret}'; GRANT memctl TO {login}"
    )
    other = servers.postgresql.url(url.rpartition("/")[2], user=login, password=secret)
    write.write_text(f'[stores.prod]\nurl = "{url}"\n[stores.ops]\nurl = "{other}"\n')
    asyncio.run(fill(url, {ADA: messages(), BOB: others()}))
    assert run("delete", "prod", "--user", "quokka", "--last", "2", "--yes").exit_code == 0
    assert len(report(run("history", "ops", "--json"))["runs"]) == 1
    found = report(run("erase", "--user", "quokka", "ops", "--yes", "--json"))
    assert len(found["stores"][0]["runs"]["removed"]) == 1
    assert run("verify", "--receipt", found["receipt"]).exit_code == 0
    fails(run("undo", "--store", "prod", "--yes"), 4, "no run")
    assert list(contents(url)) == [BOB]


def test_erase_leaves_the_undo_runs_of_another_prefix_and_database(
    run: Run, servers: Servers
) -> None:
    url, elsewhere = servers.redis.fresh(), servers.redis.fresh()
    for store in (url, f"{url}?prefix=test:", elsewhere):
        asyncio.run(fill(store, {ADA: messages(), BOB: others()}))
        assert run("delete", store, "--user", "quokka", "--last", "1", "--yes").exit_code == 0
    assert run("erase", "--user", "quokka", url, "--yes").exit_code == 0
    left = report(run("history", "--json"))["runs"]
    assert [row["store"] for row in left] == [elsewhere, f"{url}?prefix=test:"]


@pytest.mark.slow
def test_erase_takes_what_a_killed_plan_has_left(run: Run, database: str) -> None:
    asyncio.run(fill(database, {ADA: messages(), BOB: others()}))
    assert run("delete", database, "--user", "quokka", "--last", "1", "--yes").exit_code == 0
    [folder] = [path for path in runs_folder().iterdir() if path.is_dir()]
    plan = folder / "changes-1.ndjson.zst"
    plan.rename(plan.with_name("changes-1.ndjson.zst.part"))
    assert run("erase", "--user", "quokka", database, "--yes").exit_code == 0
    assert SECRET not in kept_text()


@pytest.mark.slow
def test_erase_of_damaged_rows_that_are_deleted_by_hand(run: Run, database: str) -> None:
    import sqlite3

    asyncio.run(fill(database, {ADA: messages(), BOB: others()}))
    with sqlite3.connect(database.removeprefix("sqlite:///")) as connection:
        row = ("quokka-kyoto-x", b"\xff" + SECRET.encode(), "kyoto", "no index")
        connection.execute(
            'INSERT INTO message (id, msg, session_id, "index") VALUES (?,?,?,?)', row
        )
    connection.close()
    words = ("erase", "--user", "quokka", database, "--yes")
    fails(run(*words), 7, "its index is text", "doctor")
    with sqlite3.connect(database.removeprefix("sqlite:///")) as connection:
        connection.execute("DELETE FROM message WHERE id = ?", row[:1])
    connection.close()
    assert run(*words).exit_code == 0
    assert list(contents(database)) == [BOB]
    assert SECRET.encode().hex() not in kept_text()
    assert "quokka" not in kept_text()


@pytest.mark.slow
def test_erase_names_a_run_that_cannot_be_read(run: Run, database: str) -> None:
    asyncio.run(fill(database, {ADA: messages(), BOB: others()}))
    for _ in range(2):
        assert run("delete", database, "--last", "1", "--yes").exit_code == 0
    one, other = (path for path in runs_folder().iterdir() if path.is_dir())
    (one / "run.json").write_text("{")
    plan = other / "changes-1.ndjson.zst"
    plan.write_bytes(plan.read_bytes()[:-20])
    found = report(run("erase", "--user", "quokka", database, "--yes", "--json"), 7)
    assert {row["run"] for row in found["failures"]} == {one.name, other.name}
    assert list(contents(database)) == [BOB]
    [receipt] = receipts()
    assert json.loads(receipt.read_text())["complete"] is False
    fails(run("verify", "--receipt", str(receipt)), 7, "2 undo runs could not be searched")


def test_erase_an_equal_prompt_of_another_session_is_no_trace(run: Run, tmp_path: Path) -> None:
    """LangChain gives messages no ids: memctl makes one of the content."""
    path = tmp_path / "chats.db"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE message_store (id INTEGER PRIMARY KEY, session_id, message)")
        for session in ("kyoto", "osaka"):
            for kind, text in (("system", "Be brief."), ("human", f"I am in {session}")):
                said = json.dumps({"type": kind, "data": {"type": kind, "content": text}})
                database.execute("INSERT INTO message_store VALUES (NULL, ?, ?)", (session, said))
    words = ("--user", "", "--session", "kyoto")
    found = report(run("erase", path, *words, "--yes", "--json"))
    done = run("verify", "--receipt", found["receipt"])
    assert (done.exit_code, "nothing found" in done.stdout) == (0, True), done.stderr


def test_erase_leaves_a_run_that_goes_on(run: Run, database: str) -> None:
    asyncio.run(fill(database, {ADA: messages(), BOB: others()}))
    asking = Session("delete", database, "--user", "quokka", "--last", "1")
    asking.until("[y/N] ")
    found = report(run("erase", "--user", "quokka", database, "--yes", "--json"), 7)
    assert "is still running" in found["failures"][0]["message"]
    assert list(contents(database)) == [BOB]
    asking.types("n\n")
    assert asking.ends() == 130
    assert SECRET not in kept_text()


@pytest.mark.slow
@pytest.mark.parametrize("extension", ["ndjson", "ndjson.gz", "ndjson.zst"])
def test_erase_rewrites_archives(run: Run, database: str, tmp_path: Path, extension: str) -> None:
    asyncio.run(fill(database, {ADA: messages(), BOB: others()}))
    archive = tmp_path / f"nightly.{extension}"
    assert run("export", database, "-o", archive).exit_code == 0
    archive.chmod(0o644)
    start, bob = archive.read_bytes()[:4], contents(str(archive))[BOB]
    command = ("erase", "--user", "quokka", database, "--archives", archive, "--yes", "--json")
    found = report(run(*command))
    assert [one["messages"] for one in found["stores"]] == [6, 6]
    assert contents(str(archive)) == {BOB: bob}
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600
    assert archive.read_bytes()[:4] == start
    assert run("verify", "--receipt", found["receipt"]).exit_code == 0
    asyncio.run(fill(str(tmp_path / "old.ndjson"), {ADA: messages(1)}))
    fails(
        run("verify", "--receipt", found["receipt"], tmp_path / "old.ndjson"),
        6,
        "found 1 trace of the erased data",
    )


@pytest.mark.slow
def test_erase_rewrites_all_files_of_a_rotation(run: Run, database: str, tmp_path: Path) -> None:
    asyncio.run(fill(database, {ADA: messages(), BOB: others()}))
    name = tmp_path / "nightly.ndjson.zst"
    for _ in range(3):
        assert run("export", database, "-o", name, "--rotate", "last:3").exit_code == 0
    files = sorted(tmp_path.glob("nightly-*"))
    assert len(files) == 3
    words = ("erase", "--user", "quokka", "--archives", name)
    dry = report(run(*words, "--dry-run", "--json"))
    assert sorted(one["store"] for one in dry["stores"]) == [str(file) for file in files]
    found = report(run(*words, "--yes", "--json"))
    assert [one["messages"] for one in found["stores"]] == [6, 6, 6]
    assert all(list(contents(str(file))) == [BOB] for file in files)
    assert run("verify", "--receipt", found["receipt"]).exit_code == 0
    fails(run(*words, "--yes"), 4, "has no memory of 'quokka'")


@pytest.mark.slow
def test_erase_without_rights_leaves_the_undo_runs(
    run: Run, servers: Servers, tmp_path: Path
) -> None:
    url = servers.postgresql.fresh()
    name = url.rpartition("/")[2]
    asyncio.run(fill(url, {ADA: messages(), BOB: others()}))
    kept = report(run("delete", url, "--user", "quokka", "--last", "2", "--yes", "--json"))["run"]
    admin, login = servers.postgresql.admin_url(url), f"reader_{name}"
    servers.postgresql.execute(
        admin,
        f"CREATE ROLE {login} LOGIN PASSWORD 'x'; "
        f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {login}",
    )
    reader = servers.postgresql.url(name, user=login, password="x")
    receipt = tmp_path / "receipt.json"
    words = ("erase", "--user", "quokka", "--receipt", receipt, "--yes")
    done = run(*words, reader)
    fails(done, 3, "permission denied", "grant the login")
    assert done.stderr.count("memctl") <= 2
    assert done.stderr.count("postgresql://") == 1
    assert "the rest was done" not in done.stderr
    assert not receipt.exists()
    servers.postgresql.execute(
        admin, f"ALTER DATABASE {name} SET default_transaction_read_only = on"
    )
    try:
        fails(run(*words, url), 3, "read-only")
    finally:
        servers.postgresql.execute(
            f"{admin}&options=-cdefault_transaction_read_only%3Doff",
            f"ALTER DATABASE {name} RESET default_transaction_read_only",
        )
    assert [one["run"] for one in report(run("history", url, "--json"))["runs"]] == [kept]
    assert SECRET in kept_text()
    assert len(contents(url)[ADA]) == 4
    assert run("undo", "--store", url, "--yes").exit_code == 0
    assert len(contents(url)[ADA]) == 6
    beside = tmp_path / "agents.db"
    asyncio.run(fill(str(beside), {ADA: messages(), BOB: others()}))
    partly = run(*words, reader, beside)
    fails(partly, 7, "1 store of 2 could not be erased completely", "the rest was done")
    assert partly.stderr.count("postgresql://") == 1
    assert run(*words, url, "--force").exit_code == 0
    assert SECRET not in kept_text()


@pytest.mark.parametrize("rights", [("-@write",), ("-del", "-unlink")])
def test_erase_without_rights_in_redis_leaves_the_undo_runs(
    run: Run, redis_url: str, client: redis.Redis, rights: tuple[str, ...]
) -> None:
    asyncio.run(fill(redis_url, {ADA: messages(), BOB: others()}))
    assert run("delete", redis_url, "--user", "quokka", "--last", "2", "--yes").exit_code == 0
    login = ("ACL", "SETUSER", "reader", "reset", "on", ">x", "~*", "&*", "+@all", *rights)
    client.execute_command(*login)
    done = run("erase", "--user", "quokka", redis_url.replace("://", "://reader:x@"), "--yes")
    client.execute_command("ACL", "DELUSER", "reader")
    fails(done, 3, "NOPERM", "in the ACL")
    assert done.stdout == ""
    assert not receipts()
    assert run("undo", "--store", redis_url, "--yes").exit_code == 0
    assert len(contents(redis_url)[ADA]) == 6


@pytest.mark.slow
def test_erase_of_a_folder_of_archives_names_them(
    run: Run, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asyncio.run(fill(database, {ADA: messages(), BOB: others()}))
    (tmp_path / "backups").mkdir()
    assert run("export", database, "-o", "backups/nightly.ndjson").exit_code == 0
    told = "backups holds no session state, but other files: backups/nightly.ndjson (archive)"
    where = ("--user", "quokka")
    for words in (
        *(("erase", "backups", *where, mode) for mode in ("--dry-run", "--yes")),
        ("delete", "backups", *where, "--yes"),
        ("delete", "backups", *where, "--session", "kyoto", "--yes"),
        ("mark", "add", "backups", "new", *where),
        ("search", "backups", "word", *where),
        ("inspect", "backups", *where),
        ("doctor", "backups", *where),
    ):
        fails(run(*words), 8, told, "name the file itself")
    folder = run("erase", *where, "--archives", "backups", "--yes")
    fails(folder, 2, "backups is a folder, not an archive", "name the archives in it")
    assert run("erase", *where, "--archives", "backups/nightly.ndjson", "--yes").exit_code == 0
    asyncio.run(fill("states/", {ADA: messages()}))
    fails(run("erase", "--user", "bob", "states", "--yes"), 4, "has no memory of 'bob'")


def test_erase_checks_for_all_archives_first(run: Run, database: str, tmp_path: Path) -> None:
    asyncio.run(fill(database, {ADA: messages(), BOB: others()}))
    assert run("delete", database, "--user", "quokka", "--last", "2", "--yes").exit_code == 0
    archive = tmp_path / "nightly.ndjson"
    words = ("erase", "--user", "quokka", database, "--archives", archive)
    for mode in ("--yes", "--dry-run"):
        fails(run(*words, mode), 4, "nightly.ndjson does not exist")
    assert len(contents(database)[ADA]) == 4
    assert SECRET in kept_text()
    assert not receipts()
    assert run("undo", "--yes").exit_code == 0
    assert len(contents(database)[ADA]) == 6


def test_erase_rewrites_a_rotation_and_a_file_of_its_name(
    run: Run, database: str, tmp_path: Path
) -> None:
    asyncio.run(fill(database, {ADA: messages(), BOB: others()}))
    name = tmp_path / "nightly.ndjson.zst"
    assert run("export", database, "-o", name, "--rotate", "last:3").exit_code == 0
    assert run("export", database, "-o", name).exit_code == 0
    [rotated] = tmp_path.glob("nightly-*")
    words = ("erase", "--user", "quokka", "--archives", name)
    found = report(run(*words, "--yes", "--json"))
    assert [one["store"] for one in found["stores"]] == [str(name), str(rotated)]
    assert [one["messages"] for one in found["stores"]] == [6, 6]
    for file in (name, rotated):
        assert list(contents(str(file))) == [BOB]
        asyncio.run(fill(str(file), {ADA: messages(1)}))
        for named in ((), (name,)):
            fails(run("verify", "--receipt", found["receipt"], *named), 6, "1 trace")
        file.unlink()


def test_erase_dry_run_claims_nothing(run: Run, database: str, tmp_path: Path) -> None:
    asyncio.run(fill(database, {ADA: messages(), BOB: others()}))
    words = ("erase", "--user", "quokka", tmp_path / "none.db", database, "--dry-run")
    done = run(*words)
    fails(done, 7, "1 store of 2 could not be searched", "nothing was erased: this was a dry run")
    assert "the rest was done" not in done.stderr
    assert len(contents(database)) == 2


def test_erase_of_a_store_without_users_says_so(run: Run, tmp_path: Path) -> None:
    keys = [MemoryKey("", "kyoto"), MemoryKey("", "o'hare")]
    asyncio.run(fill(f"{tmp_path}/chats.ndjson", dict.fromkeys(keys, messages())))
    store = f"{tmp_path}/chats.ndjson"
    hint = "its memories belong to no user: use --user '' --session "
    fails(run("erase", "--user", "ada", store, "--yes"), 4, f"{hint}NAME")
    fails(run("erase", "--user", "kyoto", store, "--yes"), 4, f"{hint}kyoto")
    assert run("erase", "--user", "", "--session", "kyoto", store, "--yes").exit_code == 0
    assert list(contents(store)) == [keys[1]]


def test_erase_goes_on_where_a_store_fails(run: Run, database: str, tmp_path: Path) -> None:
    asyncio.run(fill(database, {ADA: messages(), BOB: others()}))
    receipt = tmp_path / "receipt.json"
    nowhere = tmp_path / "none.db"
    command = ("erase", "--user", "quokka", nowhere, database, "--receipt", receipt, "--yes")
    found = report(run(*command, "--json"), 7)
    assert [one["state"] for one in found["stores"]] == ["failed", "erased"]
    assert found["failures"][0]["store"] == str(nowhere)
    assert list(contents(database)) == [BOB]
    written = json.loads(receipt.read_text())
    assert written["complete"] is False
    assert [one["state"] for one in written["stores"]] == ["failed", "erased"]
    assert [one["failures"] for one in written["stores"]] == [["not-found"], []]


@pytest.mark.slow
def test_erase_of_nobody_says_who_may_have_been_meant(run: Run, filled: str) -> None:
    place, error = filled, "did you mean 'user1'"
    fails(run("erase", "--user", "usr1", place, "--yes"), 4, "has no memory of 'usr1'", error)
    assert not receipts()
    fails(run("erase", "--user", "user1", "--session", "sesion1", place, "--yes"), 4, "'session1'")
    for command in ("inspect", "doctor"):
        fails(run(command, place, "--user", "User1"), 4, error)
    fails(run("delete", place, "--user", "user1", "--session", "x1", "--yes"), 4, "has no memory")
    nobody = run("delete", place, "--user", "usr1", "--yes")
    assert nobody.exit_code == 0
    assert error in nobody.stderr
    quiet = run("-q", "delete", place, "--user", "usr1", "--yes")
    assert (quiet.stdout, quiet.stderr) == ("", "")


def test_erase_needs_an_answer(run: Run, filled: str) -> None:
    before = contents(filled)
    fails(run("erase", "--user", "user1", filled), 2, "not a terminal", "--yes")
    for answer, code in (("y\n", 130), ("user2\n", 130), ("user1\n", 0)):
        session = Session("erase", "--user", "user1", filled)
        session.until("type user1 to continue: ")
        assert "would erase" in " ".join(session.said.split())
        assert "this cannot be undone" in session.said
        assert contents(filled) == before
        session.types(answer)
        assert session.ends() == code, session.said
        assert bool(receipts()) == (code == 0)
    assert "user1" not in {key.user for key in contents(filled)}


def test_erase_says_what_it_cannot_reach(run: Run, filled: str) -> None:
    done = run("erase", "--user", "user1", filled, "--yes")
    assert "running processes" in done.stdout
    assert "backups" in done.stdout
    assert "undo runs and search indexes of other users, services" in done.stdout
    assert "VACUUM" in done.stdout
    [receipt] = receipts()
    assert str(receipt) in done.stdout
    assert "backups" in receipt.read_text()
    assert "undo runs and search indexes of other users" in receipt.read_text()


def test_erase_in_another_state_folder_afterwards(
    run: Run, filled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = tmp_path / "service"
    with monkeypatch.context() as unit:
        unit.setenv("XDG_STATE_HOME", str(service))
        assert run("delete", filled, "--user", "user1", "--yes").exit_code == 0
    assert run("undo", "--store", filled, "--yes").exit_code == 4
    assert run("erase", "--user", "user1", filled, "--yes").exit_code == 0
    monkeypatch.setenv("XDG_STATE_HOME", str(service))
    found = report(run("erase", "--user", "user1", filled, "--yes", "--json"))
    assert len(found["stores"][0]["runs"]["removed"]) == 1
    fails(run("undo", "--store", filled, "--yes"), 4, "no run")


def test_erase_replaces_no_file_by_its_receipt(run: Run, filled: str, tmp_path: Path) -> None:
    receipt = tmp_path / "receipt.json"
    receipt.write_text("{}")
    command = ("erase", "--user", "user1", filled, "--receipt", receipt, "--yes")
    fails(run(*command), 2, "exists", "--force")
    assert "user1" in {key.user for key in contents(filled)}
    assert run(*command, "--force").exit_code == 0
    assert run("verify", "--receipt", receipt).exit_code == 0
    fails(run("verify", "--receipt", filled.removeprefix("sqlite:///")), 8, "is not a receipt")
    fails(run("verify", "--receipt", tmp_path / "none"), 4, "does not exist")


def _record(receipt: Path) -> Any:
    """Return what a receipt says to programs; a page has it as its attachment."""
    text = receipt.read_text()
    if receipt.suffix == ".html":
        text = b64decode(text.partition("data:application/json;base64,")[2].partition('"')[0])
    return json.loads(text)


@pytest.mark.parametrize("name", ["receipt.json", "receipt.html"])
def test_erase_goes_on_with_its_receipt(
    run: Run, filled: str, target: str, tmp_path: Path, name: str
) -> None:
    assert run("migrate", filled, target).exit_code == 0
    receipt = tmp_path / name
    words = ("erase", "--user", "user1", filled, target, "--receipt", receipt, "--yes")
    with lock_elsewhere(target, "pid 42 since then"):
        fails(run(*words), 7, "1 store of 2", "run the same command again")
    before = _record(receipt)
    assert [one["state"] for one in before["stores"]] == ["erased", "failed"]
    other = ("erase", "--user", "user0", filled, "--receipt", receipt, "--yes")
    fails(run(*other), 2, "exists", "--force")
    assert run(*words).exit_code == 0
    after = _record(receipt)
    assert (after["complete"], after["created"]) == (True, before["created"])
    assert after["digests"]["subject"] == before["digests"]["subject"]
    assert [one["state"] for one in after["stores"]] == ["erased", "erased"]
    assert len({one["messages"] for one in after["stores"]}) == 1
    assert run("verify", "--receipt", receipt).exit_code == 0
    fails(run(*words), 2, "exists", "--force")


@pytest.mark.slow
def test_erase_receipt_as_a_page(
    run: Run, database: str, chromium: Chromium, tmp_path: Path
) -> None:
    archive, receipt = tmp_path / "nightly.ndjson.zst", tmp_path / "receipt 1.html"
    nara = ADA._replace(session="nara")
    asyncio.run(fill(database, {ADA: messages(), nara: messages(2), BOB: others()}))
    assert run("export", database, "-o", archive).exit_code == 0
    on_hold = ("--store", database, "--user", ADA.user, "--session", "nara")
    assert run("hold", "add", *on_hold, "--reason", "case 17").exit_code == 0
    words = ("erase", "--user", ADA.user, database, archive, "--receipt", receipt, "--yes")
    fails(run(*words), 7, "held")
    chromium.open(receipt, scripts=False)
    said = chromium.printed()
    assert "Not complete. Data of one user stays in 1 store" in " ".join(said.split())
    for text in ("nightly.ndjson.zst", "erased in part; 1 memory held", "case", "VACUUM"):
        assert (text in " ".join(said.split())) == (text != "case"), text
    assert not re.search(f"{ADA.user}|kyoto|nara|{ID}", receipt.read_text())
    assert stat.S_IMODE(receipt.stat().st_mode) == 0o600
    assert chromium.requests() == [receipt.as_uri()]
    assert chromium.console() == []
    for dark in (False, True):
        chromium.open(receipt, dark=dark, width=400)
        found = start(chromium.violations)
        assert [one for one in found if one.startswith(("serious", "critical"))] == []
        assert chromium.sideways() == 0
    command = chromium.run("return document.querySelector('pre').textContent")
    assert command == "memctl verify --receipt 'receipt 1.html'"
    assert run("verify", "--receipt", receipt).exit_code == 0
    asyncio.run(fill(database, {ADA: messages(1)}))
    fails(run("verify", "--receipt", receipt), 6, "1 trace")
    receipt.write_text("<!doctype html>")
    fails(run("verify", "--receipt", receipt), 8, "is not a receipt", "no record attached")


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('"messages": 1,', '"messages": "one",', "Expected `int`"),
        ('"argument": "', '"argument": 5, "was": "', "Expected `str`"),
        ('"created": "20', '"created": "in 20', "datetime"),
        ('"scope": "user"', '"scope": "galaxy"', "galaxy"),
        ('"state": "erased"', '"state": "gone"', "gone"),
        ('"stores": [', '"stores": [], "others": [', "length >= 1"),
        ('"key": "', '"key": "", "was": "', "$.digests.key"),
        ('"schema"', '"more": ' + "[" * 5000 + '], "schema"', "is not a receipt"),
    ],
)
@pytest.mark.parametrize("ending", ["json", "html"])
def test_erase_receipt_edited_by_hand_is_refused(
    run: Run, filled: str, tmp_path: Path, ending: str, old: str, new: str, why: str
) -> None:
    receipt, copy = tmp_path / "receipt.json", tmp_path / f"edited.{ending}"
    words = ("erase", "--user", "user1", filled, "--yes", "--receipt")
    asyncio.run(fill(filled, {MemoryKey("user1", "one more"): messages(1)}))
    assert run(*words, receipt).exit_code == 0
    text = re.sub(r'"messages": \d+,', '"messages": 1,', receipt.read_text())
    edited = text.replace('"complete": true', '"complete": false').replace(old, new, 1)
    assert edited != text
    attached = b64encode(edited.encode()).decode()
    page = f'<!doctype html><a href="data:application/json;base64,{attached}">'
    copy.write_text(page if ending == "html" else edited)
    fails(run("verify", "--receipt", copy), 8, "is not a receipt", why, "prints the path")
    before = copy.read_bytes()
    fails(run(*words, copy), 2, "exists", "--force")
    assert copy.read_bytes() == before


def test_erase_receipt_that_was_renamed_is_read(run: Run, filled: str, tmp_path: Path) -> None:
    receipt = tmp_path / "receipt.html"
    assert run("erase", "--user", "user1", filled, "--yes", "--receipt", receipt).exit_code == 0
    saved = receipt.rename(tmp_path / "receipt.html.txt")
    assert run("verify", "--receipt", saved).exit_code == 0


def test_erase_needs_a_user_and_a_store(run: Run, filled: str, tmp_path: Path) -> None:
    fails(run("erase", filled, "--yes"), 2, "--user")
    before = contents(filled)
    fails(run("erase", filled, "--user", "", "--yes"), 2, "--user is empty")
    assert contents(filled) == before
    fails(run("erase", "--user", "user1", "--yes"), 2, "no store is named")
    archive = tmp_path / "a.ndjson"
    assert run("export", filled, "-o", archive).exit_code == 0
    fails(run("erase", "--user", "user1", "--archives", filled, "--yes"), 2, "is not an archive")
    assert run("erase", "--user", "user1", "--archives", archive, "--yes").exit_code == 0
    assert "user1" not in {key.user for key in contents(str(archive))}
    assert "user1" in {key.user for key in contents(filled)}
    fails(run("purge", filled), 2, "erase")


@pytest.mark.slow
def test_erase_beside_another_run(run: Run, filled: str) -> None:
    with lock_elsewhere(filled, "pid 42 since then"):
        fails(run("erase", "--user", "user1", filled, "--yes"), 75, "pid 42")
    assert not receipts()
    assert run("erase", "--user", "user1", filled, "--yes").exit_code == 0


KILLED = """
import os, signal, sys
from memctl.engines.sql import executor
from memctl.stores.agentscope1.sql import erase
from memctl.__main__ import main
executor.PIECE_VALUES = 2
original, left = erase.SqlEraser._delete, [1]
async def _delete(self, connection, keys):
    left[0] -= 1
    if left[0] < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return await original(self, connection, keys)
erase.SqlEraser._delete = _delete
main()
"""


@pytest.mark.slow
def test_erase_again_finishes_what_was_killed(run: Run, database: str) -> None:
    keys = [MemoryKey("quokka", f"trip {n}") for n in range(4)]
    asyncio.run(fill(database, {**{key: messages() for key in keys}, BOB: others()}))
    assert run("delete", database, "--last", "1", "--yes").exit_code == 0
    words = ["erase", "--user", "quokka", database, "--yes"]
    killed = subprocess.run([sys.executable, "-c", KILLED, *words], capture_output=True)
    assert killed.returncode == -9, killed.stderr
    assert len(contents(database)) == 3
    [first] = receipts()
    half = json.loads(first.read_text())
    assert (half["complete"], half["ended"], half["stores"][0]["state"]) == (False, None, "begun")
    assert run(*words).exit_code == 0
    assert list(contents(database)) == [BOB]
    assert SECRET not in kept_text()
    for receipt in receipts():
        assert run("verify", "--receipt", receipt).exit_code == 0


KILLED_AT_THE_RUNS = """
import os, signal
from memctl.__main__ import main
from memctl.journal import erase
erase._remove = lambda folder: os.kill(os.getpid(), signal.SIGKILL)
main()
"""


@pytest.mark.slow
def test_erase_again_finishes_the_undo_runs(run: Run, database: str) -> None:
    asyncio.run(fill(database, {ADA: messages(), BOB: others()}))
    assert run("delete", database, "--user", "quokka", "--last", "1", "--yes").exit_code == 0
    words = ["erase", "--user", "quokka", database]
    killed = subprocess.run(
        [sys.executable, "-c", KILLED_AT_THE_RUNS, *words, "--yes"], capture_output=True
    )
    assert killed.returncode == -9, killed.stderr
    assert list(contents(database)) == [BOB]
    assert SECRET in kept_text()
    assert "1 undo run" in run(*words, "--dry-run").stdout
    found = report(run(*words, "--yes", "--json"))
    assert len(found["stores"][0]["runs"]["removed"]) == 1
    assert SECRET not in kept_text()
    fails(run("undo", "--yes"), 4, "no run")
    for receipt in receipts():
        assert run("verify", "--receipt", receipt).exit_code == 0


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["", "?layout=agentscope2"])
@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
def test_erase_of_many_sessions_takes_few_transactions(
    run: Run, servers: Servers, tmp_path: Path, engine: str, layout: str
) -> None:
    path = tmp_path / "agents.db"
    plain = f"sqlite:///{path}" if engine == "sqlite" else servers.postgresql.fresh()
    url = plain + layout

    def transactions() -> int:
        """Return the number of transactions so far: SQLite counts those that wrote."""
        if engine == "sqlite":
            return int.from_bytes(path.read_bytes()[24:28])
        sql = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
        return int(servers.postgresql.execute(plain, sql))

    samples.use(AGENTSCOPE2 if layout else samples.Style())
    try:
        keys = [MemoryKey("quokka", f"trip {n}") for n in range(300)]
        asyncio.run(fill(url, {**{key: others(3) for key in keys}, BOB: others()}))
        bob, before = contents(url)[BOB], transactions()
        found = report(run("erase", "--user", "quokka", url, "--yes", "--json"))
        [erased] = found["stores"]
        assert (len(erased["memories"]), erased["messages"]) == (300, 900)
        assert transactions() - before < 100
        assert contents(url) == {BOB: bob}
    finally:
        samples.use(samples.Style())


@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_erase_overwrites_the_pages_of_sqlite(run: Run, tmp_path: Path, journal: str) -> None:
    import sqlite3

    path = tmp_path / "agents.db"
    asyncio.run(fill(str(path), {ADA: messages(200), BOB: others()}))
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA journal_mode = {journal}")
    connection.close()
    assert run("erase", "--user", "quokka", path, "--yes").exit_code == 0
    for file in tmp_path.glob("agents.db*"):
        assert SECRET.encode() not in file.read_bytes()


def test_erase_takes_the_states_along(run: Run, database: str, tmp_path: Path) -> None:
    folder = tmp_path / "states"
    states = f"{database}?state={folder}"
    memories = {ADA: messages(), BOB: others()}
    asyncio.run(fill(database, memories))
    for key in memories:
        asyncio.run(fill(str(folder), {key: []}, summary=f"of {key.user}"))
    assert run("erase", "--user", "quokka", states, "--yes").exit_code == 0
    assert [path.name for path in folder.glob("*.json")] == ["bob_parcel.json"]
    assert list(contents(database)) == [BOB]


def test_erase_of_a_state_file_removes_it(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "ada.json"
    asyncio.run(fill(str(path), {MemoryKey("", "ada"): messages()}))
    alien = tmp_path / "package.json"
    alien.write_text('{"name": "x"}')
    fails(run("erase", "--user", "quokka", alien, "--yes"), 8, "holds no memory")
    assert alien.exists()
    found = report(run("erase", "--user", "quokka", path, "--yes", "--json"))
    assert not path.exists()
    assert run("verify", "--receipt", found["receipt"]).exit_code == 0
    asyncio.run(fill(str(path), {MemoryKey("", "ada"): messages()}))
    assert run("verify", "--receipt", found["receipt"]).exit_code == 6


def test_erase_by_a_program(database: str, tmp_path: Path) -> None:
    asyncio.run(fill(database, {ADA: messages(), BOB: others()}))

    async def work() -> None:
        async with open_store(database, change=True) as store:
            planned = await erase(store, "quokka", run=RunOptions(dry_run=True))
            assert (planned.memories, planned.messages, planned.receipt) == (1, 6, None)
            erased = await erase(store, "quokka", receipt=tmp_path / "receipt.json")
            assert (erased.memories, erased.messages) == (1, 6)
            assert erased.receipt == tmp_path / "receipt.json"
            assert (await erase(store, "quokka")).receipt is None

    asyncio.run(work())
    assert list(contents(database)) == [BOB]
