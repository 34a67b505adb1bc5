"""``memctl rename``: the same memories under another name, in every kind of store, and back."""

from __future__ import annotations

import json
import re
import signal
import sqlite3
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from time import sleep

import pytest
import redis

from memctl.model import MemoryKey, StoredMessage
from memctl.testing import Place, samples
from memctl.testing.samples import sample
from memctl.testing.suite.erase import texts
from tests.commands.test_asking import Session
from tests.support.agent_sessions import claude_session, codex_session, files, settle
from tests.support.backends import BACKENDS, FACT_BACKENDS, new_place, params
from tests.support.cli import Run, contents, fails, report
from tests.support.places import held, put, runs_folder
from tests.support.servers.pool import Servers

REFUSED = {
    "state",
    *(name for name in FACT_BACKENDS if not name.startswith("mem0-") or name == "mem0-platform"),
}
"""The stores in which nothing gets another name."""
USERS_ALONE = {"reme-0.2", "reme-0.3"}
REFUSED -= USERS_ALONE
SUPPORT = Path(__file__).parents[1] / "support"
ADA, BOB = MemoryKey("quokka", "kyoto"), MemoryKey("bob", "parcel")


@pytest.fixture(params=params([*BACKENDS, *FACT_BACKENDS]))
def place(request: pytest.FixtureRequest, tmp_path: Path, servers: Servers) -> Iterator[Place]:
    """A new and empty place of each store in turn."""
    place = new_place(request.param, tmp_path, servers)
    samples.use(place.backend.style)
    yield place
    samples.use(samples.Style())


def values(client: redis.Redis) -> Iterator[str]:
    """Yield each key of a database with its value; the members of a set are in order."""
    read = {
        b"string": client.get,
        b"list": lambda key: client.lrange(key, 0, -1),
        b"set": lambda key: sorted(client.smembers(key)),
        b"hash": client.hgetall,
    }
    for key in client.scan_iter():
        yield f"{key!r} {read[client.type(key)](key)!r} {client.ttl(key)}"


def lines(place: Place) -> list[str]:
    """Return what a place holds, in no order: rows and keys may be elsewhere."""
    if place.text.startswith("redis"):
        return sorted(values(redis.Redis.from_url(place.text.partition("?")[0])))
    if place.backend.dump is not None:
        found = texts(place.dump())
        if place.backend.name == "mysql-java":  # the time of a change, which MySQL sets
            found = re.sub(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d", "TIME", found)
        if place.backend.name.startswith("tablestore"):  # the times that the service gives cells
            found = re.sub(r"\b\d{13}\b", "TIME", found)
        return sorted(found.splitlines())
    found = []
    for file in sorted(one for one in place.folder.rglob("*") if one.is_file()):
        found.append(str(file))
        if file.read_bytes().startswith(b"SQLite format 3"):
            with closing(sqlite3.connect(file)) as database:
                found += database.iterdump()
        else:
            found += texts(file.read_bytes()).splitlines()
    return sorted(found)


def entries(place: Place, name: str, number: int) -> list[StoredMessage]:
    """Return messages; facts of several users have ids of their own."""
    some = samples.entries(number)
    if place.backend.style.dialect != "fact":
        return some
    name_of = place.backend.style.name
    return [samples.entry(name_of(f"{name[0]}{at}"), at) for at in range(number)]  # no name of it


def filled(place: Place) -> None:
    """Put two memories of one user and one of another into a place."""
    if place.backend.only:
        put(place, [sample(place.backend.only, samples.entries(7))])
        return
    for key, number in ((ADA, 7), (ADA._replace(session="nara"), 2), (BOB, 5)):
        named = key if place.backend.users else key._replace(user="")
        put(place, [sample(named, entries(place, key.session, number))])


def test_rename_keeps_everything_and_undo_brings_it_back(run: Run, place: Place) -> None:
    filled(place)
    before, there = held(place), lines(place)
    for what, old, new in (("user", "quokka", "numbat"), ("session", "kyoto", "uji")):
        if what == "user" and not place.backend.users:
            continue
        words = ("rename", place.text, f"--{what}", old, new)
        name = place.backend.name
        if name in REFUSED or (name in USERS_ALONE and what == "session"):
            is_file = name == "state"
            way_out = "rename the file" if is_file else "use it, if it can rename"
            fails(run(*words, "--yes"), 2, f"memctl cannot rename a {what} there", way_out)
            assert lines(place) == there
            continue
        dry = report(run(*words, "--dry-run", "--json"))
        assert lines(place) == there
        found = report(run(*words, "--yes", "--json"))
        assert dry["messages"] == found["messages"]
        assert found["messages"]["changed"] == (9 if what == "user" else 7)
        after = held(place)
        renamed = {
            key._replace(**{what: new}) if getattr(key, what) == old else key: value
            for key, value in before.items()
        }
        assert after == renamed
        left = texts(place.dump())
        if place.backend.name.endswith("-agentscope2"):  # the title stays, as a text
            left = re.sub(rf'"name": ?"{old}"', "", left)
        assert old not in left
        fails(run(*words, "--yes"), 4, "has no memory")
        report(run("undo", found["run"], "--store", place.text, "--json"))
        assert held(place) == before
        assert lines(place) == there


@pytest.fixture
def one(tmp_path: Path, servers: Servers) -> Callable[[str], Place]:
    """A function that makes a place by the name of its store."""
    return lambda name: new_place(name, tmp_path, servers)


TWO_USERS = ("--user", "quokka", "bob")


@pytest.mark.parametrize(
    "name", ["sqlite", "sqlite-agno", "redis", "sessions", "postgresql", "tablestore", "archive"]
)
def test_rename_merges_two_users_if_asked(run: Run, one: Callable[[str], Place], name: str) -> None:
    place = one(name)
    samples.use(place.backend.style)
    try:
        filled(place)
        before, there = held(place), lines(place)
        fails(run("rename", place.text, *TWO_USERS, "--yes"), 5, "has a user 'bob', of 1 session")
        assert lines(place) == there
        found = report(run("rename", place.text, *TWO_USERS, "--merge", "--yes", "--json"))
        assert held(place) == {key._replace(user="bob"): value for key, value in before.items()}
        assert "quokka" not in texts(place.dump())
        report(run("undo", found["run"], "--store", place.text, "--json"))
        assert held(place) == before
        if place.backend.name == "sqlite-agno":  # a session has one user
            return
        put(place, [sample(MemoryKey("bob", "nara"), entries(place, "both", 2))])
        there = lines(place)
        for more in (), ("--merge",):
            said = "both users have this session: 'nara'"
            fails(run("rename", place.text, *TWO_USERS, *more, "--yes"), 5, said)
        assert lines(place) == there
    finally:
        samples.use(samples.Style())


@pytest.mark.parametrize("name", ["sqlite-agentscope2", "sqlite-agno", "mem0-qdrant"])
def test_archive_with_other_names_is_imported_under_them(
    run: Run, one: Callable[[str], Place], tmp_path: Path, name: str
) -> None:
    place, target, archive = one(name), one(name), tmp_path / "a.ndjson"
    samples.use(place.backend.style)
    try:
        filled(place)
        before = held(place)
        report(run("export", place.text, "-o", archive, "--json"))
        report(run("rename", archive, "--user", "quokka", "numbat", "--yes", "--json"))
        assert b"quokka" not in archive.read_bytes()
        report(run("rename", archive, "--session", "kyoto", "uji", "--yes", "--json"))
        report(run("import", archive, target.text, "--json"))
        new = {"quokka": "numbat", "kyoto": "uji", "": ""}
        renamed = {
            MemoryKey(*(new.get(name, name) for name in key)): was for key, was in before.items()
        }
        assert held(target) == renamed
        if name == "sqlite-agentscope2":
            with closing(sqlite3.connect(target.location.path)) as database:
                [payload] = database.execute("SELECT payload FROM sessions WHERE id = 'uji'")
            assert json.loads(payload[0])["state"]["session_id"] == "uji"
    finally:
        samples.use(samples.Style())


@pytest.mark.parametrize("what", ["user", "session"])
def test_rename_takes_memories_and_traces_of_agno_along(
    run: Run, one: Callable[[str], Place], what: str
) -> None:
    place = one("sqlite-agno")
    samples.use(place.backend.style)
    filled(place)
    with closing(sqlite3.connect(place.location.path)) as database, database:
        database.execute("CREATE TABLE agno_memories (memory_id TEXT PRIMARY KEY, user_id TEXT)")
        database.execute("CREATE TABLE agno_traces (trace_id TEXT, session_id TEXT, user_id TEXT)")
        database.execute("INSERT INTO agno_memories VALUES ('m1', 'quokka'), ('m2', 'bob')")
        database.execute(
            "INSERT INTO agno_traces VALUES ('t1', 'kyoto', 'quokka'), (2, 'x', 'bob')"
        )
    there, old = lines(place), "quokka" if what == "user" else "kyoto"
    found = report(run("rename", place.text, f"--{what}", old, "numbat", "--yes", "--json"))
    assert old not in texts(place.dump())
    assert sum("'bob'" in one for one in lines(place)) == sum("'bob'" in one for one in there)
    assert sum("numbat" in one for one in lines(place) if "agno_traces" in one) == 1
    report(run("undo", found["run"], "--json"))
    assert lines(place) == there
    samples.use(samples.Style())


def test_rename_of_users_with_more_than_sessions_merges_none(
    run: Run, one: Callable[[str], Place]
) -> None:
    for name in "sqlite-adk", "sqlite-agentscope2", "redis-agentscope2":
        place = one(name)
        samples.use(place.backend.style)
        try:
            filled(place)
            there = lines(place)
            done = run("rename", place.text, *TWO_USERS, "--merge", "--yes")
            fails(done, 2, "its users have more than sessions")
            assert lines(place) == there
        finally:
            samples.use(samples.Style())


def test_rename_refuses_what_it_cannot_mean(run: Run, one: Callable[[str], Place]) -> None:
    place = one("sqlite")
    filled(place)
    there = lines(place)
    for words, code, said in (
        ((), 2, "nothing to rename is named"),
        (("--user", "quokka", "x", "--session", "kyoto", "y"), 2, "two things are named"),
        (("--user", "quokka", ""), 2, "a name of the user is empty"),
        (("--user", "quokka", "--json"), 2, "the second is an option: --json"),
        (("--session", "kyoto", "kyoto"), 2, "both names are the same"),
        (("--session", "kyoto", "parcel", "--merge"), 2, "--merge makes two users one"),
        (("--user", "quoka", "x"), 4, "did you mean 'quokka'?"),
        (("--session", "kyoto", "nara"), 5, "has a session 'nara'"),
    ):
        fails(run("rename", place.text, *words, "--yes"), code, said)
    fails(run("rename", place.text, "--user", "quokka", "x"), 2, "not a terminal")
    table = "sqlite-llamaindex"
    other = one(table)
    put(other, [sample(MemoryKey("", "kyoto"), samples.entries(2))])
    fails(run("rename", other.text, "--user", "ada", "x", "--yes"), 2, "name no user")
    assert lines(place) == there


def test_rename_keeps_columns_of_an_application_and_refuses_tables_that_refer(
    run: Run, one: Callable[[str], Place]
) -> None:
    place = one("sqlite")
    filled(place)
    with closing(sqlite3.connect(place.location.path)) as database, database:
        database.execute("ALTER TABLE message ADD COLUMN rating INTEGER")
        database.execute("ALTER TABLE users ADD COLUMN plan TEXT")
        database.execute("UPDATE message SET rating = 5 WHERE session_id = 'kyoto'")
        database.execute("UPDATE users SET plan = 'free' WHERE id = 'quokka'")
    before = lines(place)
    found = report(run("rename", place.text, "--user", "quokka", "numbat", "--yes", "--json"))
    rated = [one for one in lines(place) if one.startswith('INSERT INTO "message"')]
    assert sum("kyoto" in one and one.endswith(",5);") for one in rated) == 7
    assert any("'numbat','free'" in one for one in lines(place))
    report(run("undo", found["run"], "--json"))
    assert lines(place) == before
    with closing(sqlite3.connect(place.location.path)) as database, database:
        database.execute("CREATE TABLE notes (of TEXT REFERENCES session (id))")
    there = lines(place)
    done = run("rename", place.text, "--session", "kyoto", "uji", "--yes")
    fails(done, 2, "the table 'notes' of an application refers")
    assert lines(place) == there


def test_rename_of_a_user_takes_offloaded_contents_and_summaries_along(
    run: Run, one: Callable[[str], Place], tmp_path: Path
) -> None:
    place = one("sqlite")
    blobs, text = tmp_path / "blobs", b64encode(bytes(99_999)).decode()
    source = {"type": "base64", "media_type": "image/png", "data": text}
    entry = samples.entry("big", 0, content=[{"type": "image", "source": source}])
    put(place, [sample(ADA, [entry])])
    report(run("offload", place.text, "--to", blobs, "--yes", "--json"))
    words = ("rename", place.text, "--user", "quokka", "numbat", "--yes")
    fails(run(*words), 2, "has 1 offloaded content of 'quokka'", "--blobs")
    report(run(*words, "--blobs", blobs, "--json"))
    report(run("rehydrate", place.text, "--from", blobs, "--json"))
    [[message]] = contents(place.text).values()
    assert text.encode() in message.message

    states = tmp_path / "states"
    stated = f"{place.text}?state={states}"
    copy = one("sessions")
    put(copy, [sample(MemoryKey("numbat", "kyoto"), [], summary="all of it")])
    copy.location.path.rename(states)
    report(run("rename", stated, "--session", "kyoto", "uji", "--yes", "--json"))
    assert [one.name for one in states.iterdir()] == ["numbat_uji.json"]


def test_rename_is_erased_from_the_runs_with_the_user(
    run: Run, one: Callable[[str], Place]
) -> None:
    place, runs = one("sqlite"), {}
    filled(place)
    for session in "kyoto", "parcel":
        words = ("rename", place.text, "--session", session, f"new-{session}", "--yes", "--json")
        runs[session] = report(run(*words))["run"]
    report(run("rename", place.text, "--user", "quokka", "numbat", "--yes", "--json"))
    report(run("erase", "--user", "numbat", place.text, "--yes", "--json"))
    kept = b"".join(one.read_bytes() for one in runs_folder().rglob("*.ndjson"))
    assert b"numbat" not in kept
    assert b"new-parcel" in kept
    assert report(run("undo", runs["parcel"], "--json"))["memories"]["written"] == 1
    assert {key.session for key in held(place)} == {"parcel"}


def test_rename_of_a_user_is_undone_whole_or_not(run: Run, one: Callable[[str], Place]) -> None:
    place = one("sqlite")
    filled(place)
    found = report(run("rename", place.text, "--user", "quokka", "numbat", "--yes", "--json"))
    there = lines(place)
    fails(run("undo", found["run"], "--session", "kyoto"), 2, "undo the rename whole")
    assert lines(place) == there
    report(run("undo", found["run"], "--user", "numbat", "--json"))
    assert {key.user for key in held(place)} == {"quokka", "bob"}


def test_rename_plans_again_after_the_answer(one: Callable[[str], Place]) -> None:
    place = one("sqlite")
    filled(place)
    words = ("rename", place.text, "--user", "quokka", "numbat")
    person = Session(*words)
    person.until("[y/N]")
    put(place, [sample(ADA._replace(session="uji"), samples.entries(3))])
    person.types("y\n")
    assert person.ends() == 0, person.said
    assert "12 messages renamed in 3 memories" in person.said
    assert {key.user for key in held(place)} == {"numbat", "bob"}
    person = Session("rename", place.text, "--user", "numbat", "quokka")
    person.until("[y/N]")
    put(place, [sample(MemoryKey("quokka", "lima"), samples.entries(3))])
    there = lines(place)
    person.types("y\n")
    assert person.ends() == 5, person.said
    assert lines(place) == there


def test_rename_gives_sessions_of_programs_no_other_ids(run: Run, tmp_path: Path) -> None:
    claude_session(tmp_path / "claude", "Hi")
    codex_session(tmp_path / "codex", "Hi")
    for name, file in (("hermes", "state.db"), ("opencode", "opencode.db")):
        (tmp_path / name).mkdir()
        with closing(sqlite3.connect(tmp_path / name / file)) as database:
            database.executescript((SUPPORT / f"{name}.sql").read_text("utf-8"))
    settle(tmp_path)
    before = files(tmp_path)
    for kind in "claude-code", "codex", "hermes", "opencode":
        store = f"{kind}:{tmp_path / kind.removesuffix('-code')}"
        [first, *_] = report(run("inspect", store, "--json"))["memories"]
        done = run("rename", store, "--session", first["session"], "new", "--yes")
        fails(done, 2, "memctl cannot rename a session there", "the program that keeps them")
    assert files(tmp_path) == before


def test_rename_names_the_policies_that_keep_a_name(
    run: Run, one: Callable[[str], Place], tmp_path: Path
) -> None:
    place, config = one("sqlite"), tmp_path / "policies.toml"
    filled(place)
    config.write_text(
        f'[stores.prod]\nurl = "{place.text}"\n[[retention]]\nname = "chats"\nstore = "prod"\n'
        'action = "delete"\nselect = { user = "quokka", older_than = "90d" }\n'
        f'archive = "{tmp_path}/old-{{date}}.ndjson"\n'
    )
    done = run("--config", config, "rename", "prod", "--user", "quokka", "numbat", "--dry-run")
    assert "the policy 'chats' of the configuration names 'quokka'" in done.stderr


KILLED = """
import os, signal, sys
from memctl.engines.redis import server
from memctl.engines.redis.pipeline import Pipeline
from memctl.engines.tablestore.service import TablestoreInstance
server.LEASE_SECONDS = 0.6
left = int(sys.argv.pop(1))
EVENTS = {"os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir", "sqlite3.connect"}

def step(event, args):
    global left
    if event not in EVENTS or "immutable=1" in str(args):  # which only looks at the kind of a file
        return
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)

def send(*args, of=Pipeline._send):
    step("os.rename", ())
    return of(*args)

def change(*args, of=TablestoreInstance._change):
    step("os.rename", ())
    return of(*args)

Pipeline._send = send
TablestoreInstance._change = change
sys.addaudithook(step)
import runpy
sys.argv[0] = "memctl"
runpy.run_module("memctl", run_name="__main__")
"""
"""Runs a command, and kills it before a step with a number: a change of a file, or a request."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "sqlite",
        "redis",
        "redis-agentscope2",
        "sessions",
        "java-files",
        "agentscope2-files",
        "mem0-qdrant",
        "tablestore",
        "tablestore-session",
        "archive",
        "reme-0.2",
        "reme-0.3",
    ],
)
def test_rename_killed_at_any_step_is_ended_by_another_run(
    run: Run, tmp_path: Path, servers: Servers, name: str
) -> None:
    kills, killed = 0, True
    while killed:
        kills += 4 if name.startswith("redis") else 1  # each waits for the end of a lock
        place = new_place(name, tmp_path, servers)
        samples.use(place.backend.style)
        filled(place)
        before = held(place)
        renamed = {
            key._replace(user="numbat") if key.user == "quokka" else key: value
            for key, value in before.items()
        }
        words = ("rename", place.text, "--user", "quokka", "numbat", "--yes")
        child = subprocess.run(
            [sys.executable, "-c", KILLED, str(kills), *words], capture_output=True, check=False
        )
        killed = child.returncode == -signal.SIGKILL
        assert killed or child.returncode == 0, child.stderr
        there = {(*key[1:], str(value)) for key, value in held(place).items()}
        whole = {(*key[1:], str(value)) for key, value in before.items()}
        if name != "reme-0.3":  # a file for each fact
            assert there >= whole if name == "tablestore" else there == whole  # rows are copied
        while (done := run(*words)).exit_code == 75:
            sleep(0.2)
        assert done.exit_code in (0, 4), done.output  # it was renamed, and the run had ended
        assert held(place) == renamed
        assert "quokka" not in texts(place.dump())
        samples.use(samples.Style())
    assert kills > 5
