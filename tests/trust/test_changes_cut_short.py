"""Deletes whose store, disk or process fails in the middle: what was done is whole, and goes back.

The report says what was done and what was not, the same command finishes it, and ``undo`` puts all
of it back.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis
from typer.testing import Result

from memctl.model import MemoryKey
from memctl.stores.agentscope1.redis.edit import Editor
from memctl.testing import Place, samples
from memctl.testing.samples import Style, entry
from tests.support.backends import new_place, place_at
from tests.support.cli import fails, fill, report
from tests.support.places import Held, held, runs_folder, runs_kept
from tests.support.processes import start, wait_until
from tests.support.servers.pool import Servers

pytestmark = pytest.mark.slow

Run = Callable[..., Result]
HINTS = 4_000
"""So many go of each memory: three together are more than one transaction takes."""
KEYS = [samples.key(number) for number in range(5)]
LAST = KEYS[-1]
ALLOWED = "?side_effects=allow"
"""Triggers of the tests stop or slow down deletions."""


def fill_place(name: str, text: str, servers: Servers, folder: Path, hints: int = HINTS) -> Place:
    """Five memories, most of whose messages are hints."""
    entries = [entry("first", 0), *(entry(f"h{n}", n, ("hint",)) for n in range(hints))]
    entries.append(entry("last", 1, ("a",)))
    asyncio.run(fill(text, dict.fromkeys(KEYS, entries)))
    return place_at(name, text, folder, servers)


def done_in(place: Place, before: Held) -> set[MemoryKey]:
    """The memories whose hints are gone; the others must be as they were."""
    found = held(place)
    done = {key for key in KEYS if found.get(key) != before[key]}
    for key in done:
        assert [id for id, _, _ in found[key][2]] == ["first", "last"], f"half of {key} is gone"
    return done


def finishes_and_goes_back(run: Run, place: Place, before: Held, cut: str) -> None:
    """A second run does the rest; undoing both gives what there was."""
    second = report(run("delete", place.text, "--mark", "hint", "--yes", "--json"))
    assert done_in(place, before) == set(KEYS)
    for name in (second.get("run"), cut):
        if name is not None:
            done = run("undo", name, "--store", place.text)
            assert done.exit_code == 0, done.output
    assert held(place) == before


# Servers


def partly(run: Run, place: Place, before: Held) -> tuple[str, set[MemoryKey]]:
    """Delete from a store that fails in the middle; return the run, and what it did."""
    result = run("delete", place.text, "--mark", "hint", "--yes", "--json")
    found = report(result, 7)
    done = done_in(place, before)
    assert 0 < len(done) < len(KEYS)
    assert found["error"]["code"] == "partial"
    assert f"not done: {len(KEYS) - len(done)}" in found["error"]["message"]
    assert found["memories"] == {"selected": len(KEYS), "written": len(done), "failed": 0}
    hints = sum("hint" in marks for _, marks, _ in before[LAST][2])
    assert found["messages"]["deleted"] == len(done) * hints
    assert found["messages"]["failed"] == (len(KEYS) - len(done)) * hints
    [row] = report(run("history", "--json"))["runs"]
    assert (row["run"], row["outcome"]) == (found["run"], "partial")
    fails(result, 7)
    return found["run"], done


def test_change_postgresql_ends_a_connection(
    run: Run, servers: Servers, postgresql_url: str, tmp_path: Path
) -> None:
    place = fill_place("postgresql", postgresql_url + ALLOWED, servers, tmp_path)
    before = held(place)
    sql = servers.postgresql.execute
    sql(
        postgresql_url,
        "CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN OLD; END';"
        "CREATE TRIGGER die BEFORE DELETE ON message FOR EACH ROW "
        f"WHEN (OLD.session_id = '{LAST.session}') EXECUTE FUNCTION die()",
    )
    cut, done = partly(run, place, before)
    assert LAST not in done
    sql(postgresql_url, "DROP TRIGGER die ON message")
    finishes_and_goes_back(run, place, before, cut)


def test_change_mariadb_ends_a_connection(
    run: Run, servers: Servers, mysql_url: str, tmp_path: Path
) -> None:
    place = fill_place("mysql", mysql_url + ALLOWED, servers, tmp_path)
    before = held(place)
    servers.mariadb.execute(
        "CREATE TRIGGER die BEFORE DELETE ON message FOR EACH ROW BEGIN "
        f"IF OLD.session_id = '{LAST.session}' THEN KILL CONNECTION_ID(); END IF; END",
        mysql_url,
    )
    cut, done = partly(run, place, before)
    assert LAST not in done
    servers.mariadb.execute("DROP TRIGGER die", mysql_url)
    finishes_and_goes_back(run, place, before, cut)


def test_change_redis_ends_the_connections(
    run: Run, servers: Servers, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every memory has a transaction of its own here; before the third the server cuts the line."""
    place = fill_place("redis", redis_url, servers, tmp_path, hints=50)
    before = held(place)
    attempts = 0
    attempt = Editor._attempt

    def cut(self: Editor, memories: Any) -> Any:
        nonlocal attempts
        attempts += 1
        if attempts == 3:
            servers.redis.cut(redis_url)
        return attempt(self, memories)

    with monkeypatch.context() as patched:
        patched.setattr(Editor, "_attempt", cut)
        patched.setattr("memctl.stores.agentscope1.redis.edit._TOGETHER", 1)
        name, done = partly(run, place, before)
    assert len(done) == 2
    finishes_and_goes_back(run, place, before, name)


# The disk


@pytest.mark.parametrize(
    ("command", "room"),
    [
        ("delete", 100),  # not even the run itself
        ("delete", 600),
        ("delete", 1_500),
        ("delete", 8_000),
        ("delete", 20_000),
        ("mark", 100),
        ("mark", 20_000),
    ],
)
def test_change_no_room_for_what_is_to_be_changed(tmp_path: Path, command: str, room: int) -> None:
    path = tmp_path / "m.db"
    noise = [
        entry(f"h{n} {os.urandom(30).hex()}", n, ("hint",), content=os.urandom(300).hex())
        for n in range(1_000 if room > 1_500 else 5)
    ]
    asyncio.run(fill(str(path), {samples.key(0): noise}))
    before = path.read_bytes()
    words = {
        "delete": ("delete", path, "--mark", "hint", "--yes"),
        "mark": ("mark", "add", "--all", path, "x"),
    }

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))

    process = start(*words[command], preexec_fn=limit)
    said, errors = process.communicate()
    assert process.returncode == 3, errors
    assert errors.count("memctl: error:") == 1
    assert errors.count("\n") == 2, "the error, and what to do"
    assert "File too large" in errors
    assert "hint: raise the limit: ulimit -f" in errors
    assert said == ""
    assert path.read_bytes() == before
    assert runs_kept() == []


@pytest.mark.parametrize("what", ["a file", "below a file", "no folder of the system"])
def test_change_state_folder_that_is_none(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    path = tmp_path / "m.db"
    asyncio.run(fill(str(path), {samples.key(0): samples.entries(9)}))
    before = path.read_bytes()
    state = tmp_path / "state"
    if what == "no folder of the system":
        state = Path("/proc/memctl")
    else:
        state.mkdir()
        (state / "memctl").write_text("something else")
        if what == "below a file":
            state = state / "memctl" / "deeper"
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    for words in (("delete", path, "--mark", "hint", "--yes"), ("mark", "add", "--all", path, "x")):
        result = run(*words)
        fails(result, 3, "cannot be used", "XDG_STATE_HOME")
        assert path.read_bytes() == before
        assert run(*words, "--dry-run").exit_code == 0, "which writes nothing down"
    assert run(*words, "--no-backup").exit_code == 0
    assert "no runs are kept" in run("history").stdout


# The process


def unlock(place: Place) -> None:
    """Remove the lock of a killed run, where that would take its time to end."""
    if place.backend.name.startswith("redis"):
        with redis.Redis.from_url(place.text.partition("?")[0]) as client:
            for lock in client.keys("*memctl:lock*"):
                assert 0 < client.pttl(lock) <= 30_000
                client.delete(lock)


def plan_is_there() -> bool:
    return any(runs_folder().glob("*/changes-1.ndjson.zst"))


def plan_is_begun() -> bool:
    return any(path.stat().st_size for path in runs_folder().glob("*/changes-1.ndjson.zst.part"))


@pytest.mark.parametrize("name", ["sqlite", "redis"])
def test_change_killed_while_planning(
    run: Run, servers: Servers, redis_url: str, tmp_path: Path, name: str
) -> None:
    text = f"sqlite:///{tmp_path}/m.db" if name == "sqlite" else redis_url
    place = fill_place(name, text, servers, tmp_path, hints=12_000)
    before = held(place)
    done = report(run("mark", "add", place.text, "x", "--id", "first", "--json"))["run"]
    marked = held(place)
    process = start("delete", place.text, "--mark", "hint", "--yes")
    wait_until(lambda: plan_is_begun() or process.poll() is not None)
    process.kill()
    assert process.wait() == -signal.SIGKILL, "it was faster"
    assert held(place) == marked
    [cut, _] = report(run("history", "--json"))["runs"]
    assert cut["outcome"] == "cut-short"
    assert "cut short" in run("history").stdout
    unlock(place)
    fails(run("undo", cut["run"]), 8, "is incomplete")
    assert held(place) == marked
    assert report(run("undo", done, "--json"))["undoes"] == done
    assert held(place) == before


@pytest.mark.parametrize("delay", [0.0, 0.03])
@pytest.mark.parametrize("name", ["sqlite", "redis"])
def test_change_killed_while_changing(
    run: Run, servers: Servers, redis_url: str, tmp_path: Path, name: str, delay: float
) -> None:
    text = f"sqlite:///{tmp_path}/m.db" if name == "sqlite" else redis_url
    place = fill_place(name, text, servers, tmp_path)
    before = held(place)
    process = start("delete", place.text, "--mark", "hint", "--yes")
    wait_until(lambda: plan_is_there() or process.poll() is not None)
    time.sleep(delay)
    process.kill()
    process.wait()
    done = done_in(place, before)
    [row] = report(run("history", "--json"))["runs"]
    assert row["outcome"] in ("cut-short", "done")
    unlock(place)
    if delay:  # sometimes the rest is done first, sometimes what there is goes back at once
        finishes_and_goes_back(run, place, before, row["run"])
    else:
        found = report(run("undo", row["run"], "--json"))
        assert found["memories"]["written"] == len(done)
        assert held(place) == before
    assert run("undo", row["run"]).exit_code == 0, "there is nothing left to do"
    assert held(place) == before


# Sessions of AgentScope 2.x: a log, and a context

Rows = dict[str, tuple[list[Any], list[Any]]]


def sessions(place: Place) -> Rows:
    """The log and the context of each session, past memctl."""
    if place.backend.name.startswith("redis"):
        with redis.Redis.from_url(place.text.partition("?")[0]) as client:
            found = {}
            for key in client.keys("agentscope:user:*:session:*[0-9]"):
                log = [json.loads(one) for one in client.lrange(key + b":messages", 0, -1)]
                found[key.decode()] = log, json.loads(client.get(key))["state"]["context"]
            return found
    with closing(sqlite3.connect(place.folder / "m.db")) as connection:
        logs = "SELECT payload FROM messages WHERE session_id = ? ORDER BY created_at, msg_id"
        return {
            name: (
                [json.loads(one) for (one,) in connection.execute(logs, (name,))],
                json.loads(payload)["state"]["context"],
            )
            for name, payload in connection.execute("SELECT id, payload FROM sessions")
        }


def done_in_sessions(place: Place, before: Rows) -> int:
    """Return how many sessions have lost what goes; the others must be as they were."""
    done = 0
    found = sessions(place)
    assert found.keys() == before.keys()
    for name, rows in found.items():
        kept = [[one for one in some if not one["id"].startswith("h")] for some in before[name]]
        assert rows in (before[name], tuple(kept)), f"half of {name} is gone"
        done += rows != before[name]
    return done


@pytest.mark.parametrize("delay", [0.0, 0.05])
@pytest.mark.parametrize("name", ["sqlite-agentscope2", "redis-agentscope2"])
def test_change_killed_in_sessions(
    run: Run, servers: Servers, tmp_path: Path, name: str, delay: float
) -> None:
    """Log and context change together, in a delete and in an undo."""
    place = new_place(name, tmp_path, servers)
    samples.use(place.backend.style)
    goes = [entry(f"h{n}", n, content="it goes") for n in range(1_200)]
    entries = [entry("first", 0), *goes, entry("old", 1, ("compressed",)), entry("last", 2)]
    samples.use(Style())
    asyncio.run(fill(place.text, dict.fromkeys(KEYS, entries)))
    before = sessions(place)
    process = start("delete", place.text, "--match", "it goes", "--yes")
    wait_until(lambda: plan_is_there() or process.poll() is not None)
    time.sleep(delay)
    process.kill()
    process.wait()
    done = done_in_sessions(place, before)
    unlock(place)
    if delay:
        assert run("delete", place.text, "--match", "it goes", "--yes").exit_code == 0
        assert done_in_sessions(place, before) == len(KEYS)
    for row in report(run("history", "--json"))["runs"]:
        process = start("undo", row["run"])
        time.sleep(1 + delay)
        process.kill()
        process.wait()
        done_in_sessions(place, before)
        unlock(place)
        assert run("undo", row["run"]).exit_code == 0
    assert done <= len(KEYS)
    assert sessions(place) == before


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_change_signal_while_changing(
    run: Run,
    servers: Servers,
    postgresql_url: str,
    tmp_path: Path,
    number: signal.Signals,
    code: int,
) -> None:
    """The memories at hand are finished, those after them are not reached."""
    place = fill_place("postgresql", postgresql_url + ALLOWED, servers, tmp_path)
    before = held(place)
    servers.postgresql.execute(
        postgresql_url,
        "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN PERFORM pg_sleep(0.5); RETURN OLD; END';"
        "CREATE TRIGGER wait BEFORE DELETE ON message FOR EACH ROW "
        "WHEN (OLD.id LIKE '%h7') EXECUTE FUNCTION wait()",
    )
    process = start("delete", place.text, "--mark", "hint", "--yes", "--json")
    waiting = "SELECT wait_event FROM pg_stat_activity WHERE datname = current_database()"
    wait_until(lambda: "PgSleep" in servers.postgresql.execute(postgresql_url, waiting))
    process.send_signal(number)
    output, said = process.communicate(timeout=60)
    assert process.returncode == code, said
    assert number.name in said
    assert "Traceback" not in said
    found = json.loads(output)
    assert found["error"]["code"] == "interrupted"
    done = done_in(place, before)
    assert found["memories"]["written"] == len(done) < len(KEYS)
    assert found["messages"]["deleted"] == len(done) * HINTS
    servers.postgresql.execute(postgresql_url, "DROP TRIGGER wait ON message")
    finishes_and_goes_back(run, place, before, found["run"])


def test_change_second_run(run: Run, servers: Servers, postgresql_url: str, tmp_path: Path) -> None:
    """One at a time may change a store; who only looks need not wait."""
    place = fill_place("postgresql", postgresql_url + ALLOWED, servers, tmp_path, hints=20)
    servers.postgresql.execute(
        postgresql_url,
        "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN PERFORM pg_sleep(2); RETURN OLD; END';"
        "CREATE TRIGGER wait BEFORE DELETE ON message FOR EACH ROW "
        "WHEN (OLD.id LIKE '%h7') EXECUTE FUNCTION wait()",
    )
    first = start("delete", place.text, "--mark", "hint", "--user", "user0", "--yes")
    wait_until(plan_is_there)
    fails(run("delete", place.text, "--mark", "a", "--yes"), 75, "another memctl run")
    fails(run("mark", "add", "--all", place.text, "x"), 75, "another memctl run")
    assert run("delete", place.text, "--mark", "a", "--dry-run").exit_code == 0
    [going] = report(run("history", "--json"))["runs"]
    _, said = first.communicate(timeout=60)
    assert first.returncode == 0, said
    assert [row["run"] for row in report(run("history", "--json"))["runs"]] == [going["run"]]
