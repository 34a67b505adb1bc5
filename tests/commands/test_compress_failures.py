"""Compressing that is cut short: by the model, the disk, signals and kills.

Whatever it is, a memory is summarized whole or as it was, and no summary is paid for twice.
"""

from __future__ import annotations

import json
import os
import resource
import shlex
import signal
import sqlite3
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from memctl.errors import Unavailable
from memctl.journal.changes import ChangesWriter
from memctl.ops.compress import run as compressing
from memctl.testing import Place, samples
from memctl.testing.samples import entry, sample
from tests.summarizers.server import SUMMARY, ModelServer, Reply, Request
from tests.support.cli import Run, report
from tests.support.compressing import (
    ANSWER,
    Words,
    asked,
    codes_in,
    compressed,
    configure,
    memories,
    rest_of,
    talk,
)
from tests.support.places import append, held, put, runs_kept
from tests.support.processes import start


def wait_for(server: ModelServer, requests: int, process: subprocess.Popen[str]) -> None:
    """Wait until so many requests have come."""
    deadline = time.monotonic() + 60
    while len(server.requests) < requests and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.mark.slow
def test_compress_model_goes_away(run: Run, sqlite: Place, by_model: Words) -> None:
    before = memories(sqlite, 40)
    gone = threading.Event()

    def mortal(request: Request) -> Reply:
        gone.wait(0.1)
        if gone.is_set():
            raise ConnectionResetError
        return ANSWER(request)

    with ModelServer(*[mortal] * 40) as server:
        process = start(*by_model(sqlite.text, server.url, "--jobs", "4"))
        wait_for(server, 12, process)
        gone.set()
    output, said = process.communicate(timeout=60)
    assert process.returncode == 7, said
    assert "Traceback" not in said
    found = json.loads(output)
    done = compressed(sqlite, before)
    assert found["memories"]["written"] == len(done) >= 8
    assert found["memories"]["left"] + found["memories"]["failed"] == 40 - len(done)
    assert found["memories"]["left"] > 10, "who is gone is not asked for each memory"
    with ModelServer() as again:
        second = report(run(*by_model(sqlite.text, again.url)))
    assert asked(again) == Counter(dict.fromkeys(set(range(40)) - done, 1))
    for name in (second["run"], found["run"]):
        assert run("undo", name).exit_code == 0
    assert held(sqlite) == before


# Signals and kills


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "number", "code"),
    [
        ("sqlite", signal.SIGINT, 130),
        ("sqlite", signal.SIGTERM, 143),
        ("redis", signal.SIGTERM, 143),
        ("archive", signal.SIGINT, 130),
    ],
)
def test_compress_what_is_paid_for_is_kept(
    run: Run,
    one: Callable[[str], Place],
    by_model: Words,
    name: str,
    number: signal.Signals,
    code: int,
) -> None:
    """Replies that are under way are waited for; each memory is sent once, over both runs."""
    place = one(name)
    before = memories(place, 16)
    with ModelServer(delay=0.3) as server:
        process = start(*by_model(place.text, server.url, "--jobs", "4", "--mode", "message"))
        wait_for(server, 7, process)
        process.send_signal(number)
        output, said = process.communicate(timeout=60)
        assert process.returncode == code, said
        assert number.name in said
        assert "run the same command again: it continues" in said
        assert "Traceback" not in said
        done = compressed(place, before)
        assert asked(server) == Counter(dict.fromkeys(done, 1))
        assert 7 <= len(done) < 16
        found = json.loads(output)
        assert found["error"]["code"] == "interrupted"
        told = found["memories"]["written"], found["memories"]["left"]
        assert told == (len(done), 16 - len(done))
        [row] = report(run("history", "--json"))["runs"]
        assert (row["run"], row["outcome"]) == (found["run"], "partial")
        words = by_model(place.text, server.url, "--mode", "message", "--jobs", "16")
        assert report(run(*words))["memories"]["written"] == 16 - len(done)
    assert asked(server) == Counter(dict.fromkeys(range(16), 1))


PROGRAMS = {
    "endless-output": ("yes", "the program printed more than 1048576 bytes"),
    "ignored-sigterm": ("trap '' TERM; yes", "the program printed more than 1048576 bytes"),
    "endless-errors": ("trap '' TERM; yes >&2", "the program did not end within 1 s"),
    "open-pipe": ("setsid sleep 5 & echo done", "the program did not end within 1 s"),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_compress_program_without_an_end_is_killed(
    sqlite: Place, tmp_path: Path, program: str
) -> None:
    before = memories(sqlite, 5)
    command, message = PROGRAMS[program]
    answer = shlex.quote(json.dumps(SUMMARY))
    script = f"case $(cat) in *MEMORY4*) echo {answer};; *) {command};; esac"
    (tmp_path / "program").write_text(script)
    config = configure(
        tmp_path,
        f"[summarizers.program]\nkind = 'command'\ncommand = ['sh', '{tmp_path}/program']\n"
        "timeout = 1\nmax_retries = 0\n",
    )
    words = ["--summarizer", "program", "--jobs", "4", "--json"]
    process = start("--config", config, "compress", sqlite.text, "--all", *words)
    stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == 7, stderr
    failures = json.loads(stdout)["failures"]
    assert sorted(one["session"] for one in failures) == ["s000", "s001", "s002", "s003"]
    assert {one["message"] for one in failures} == {message}
    assert compressed(sqlite, before) == {4}


@pytest.mark.slow
def test_compress_second_signal_does_not_wait(run: Run, sqlite: Place, by_model: Words) -> None:
    before = memories(sqlite, 8)
    with ModelServer(ANSWER, ANSWER, delay=30) as server:
        process = start(*by_model(sqlite.text, server.url, "--jobs", "2"))
        wait_for(server, 4, process)
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        assert process.poll() is None
        begun = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        assert time.monotonic() - begun < 5
    assert process.returncode == 130, said
    assert "Traceback" not in said
    assert len(compressed(sqlite, before)) == 2
    assert run("undo", "--yes").exit_code == 0
    assert held(sqlite) == before


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sqlite", "sqlite ?state", "redis"])
def test_compress_killed(
    run: Run, one: Callable[[str], Place], by_model: Words, tmp_path: Path, name: str
) -> None:
    place = one(name.split()[0])
    if "?" in name:
        text = f"{place.text}?state={tmp_path}/states"
        place = Place(place.backend, text, tmp_path)
    halves = "?" in name  # summaries lie in another place, and are written first
    before = memories(place, 24, "before" if halves else None)
    with ModelServer(delay=0.1) as server:
        process = start(*by_model(place.text, server.url, "--jobs", "2"))
        wait_for(server, 17, process)  # 0.8 s, and some are committed after a third of that
        process.kill()
        assert process.wait() == -signal.SIGKILL, process.communicate()
        unlock(place)
        done = compressed(place, before, halves=halves)
        sent = len(server.requests)
        assert 0 < len(done) <= sent
        [row] = report(run("history", "--json"))["runs"]
        assert row["outcome"] == "cut-short"
        second = report(run(*by_model(place.text, server.url)))
        assert second["memories"]["written"] == 24 - len(done)
        assert len(server.requests) == sent + 24 - len(done)
        assert compressed(place, before) == set(range(24))
    assert run("undo", second["run"], "--store", place.text).exit_code == 0
    assert compressed(place, before, halves=halves) == done
    assert run("undo", row["run"], "--store", place.text).exit_code == 0
    assert held(place) == before


def unlock(place: Place) -> None:
    """Remove the lock of a killed run, where that would take its time to end."""
    if place.backend.name == "redis":
        with redis.Redis.from_url(place.text.partition("?")[0]) as client:
            [lock] = client.keys("*memctl:lock*")
            client.delete(lock)


# The disk


@pytest.mark.slow
@pytest.mark.parametrize("room", [100, 3_000, 20_000])
def test_compress_no_room_for_what_is_to_be_summarized(sqlite: Place, room: int) -> None:
    noise = [
        entry(f"h{n} {os.urandom(30).hex()}", n, content=f"It is {os.urandom(300).hex()}.")
        for n in range(400 if room > 3_000 else 10)
    ]
    put(sqlite, [sample(samples.key(0), noise)])
    before = sqlite.dump()

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))

    process = start("compress", sqlite.text, "--all", preexec_fn=limit)
    said, errors = process.communicate()
    assert process.returncode == 3, errors
    assert errors.count("memctl: error:") == 1
    assert "File too large" in errors
    assert said == ""
    assert sqlite.dump() == before
    assert runs_kept() == []


@pytest.mark.slow
@pytest.mark.parametrize("groups", [0, 3])
def test_compress_no_room_for_what_is_done(
    run: Run, sqlite: Place, by_model: Words, monkeypatch: pytest.MonkeyPatch, groups: int
) -> None:
    """A commit that is not written down does not reach the store; any other is whole and undone."""
    before = memories(sqlite, 10)
    synced = 0

    def full(writer: ChangesWriter) -> None:
        nonlocal synced
        synced += 1
        if synced > groups:
            raise Unavailable("the disk is full", "make room")
        sync(writer)

    sync = ChangesWriter.sync
    with monkeypatch.context() as patched, ModelServer(delay=0.05) as server:
        patched.setattr(compressing, "GROUP_SECONDS", 0.0)
        patched.setattr(ChangesWriter, "sync", full)
        if groups:
            patched.setattr(ChangesWriter, "finish", full)
        done = run(*by_model(sqlite.text, server.url, "--jobs", "1"))
    found = report(done, 7 if groups else 3)
    assert "the disk is full" in found["error"]["message"]
    assert len(compressed(sqlite, before)) == found["memories"]["written"] >= groups
    rows = report(run("history", "--json"))["runs"]
    assert [row["outcome"] for row in rows] == (["partial"] if groups else [])
    if groups:
        assert any("cannot record the end" in text for text in found["warnings"])
        assert run("undo", found["run"]).exit_code == 0
    assert held(sqlite) == before


# What cannot be read


@pytest.mark.slow
def test_compress_message_that_is_no_json(run: Run, sqlite: Place, by_model: Words) -> None:
    """Its memory is left as it is; the others are compressed."""
    memories(sqlite, 100)
    with sqlite3.connect(sqlite.location.path) as database:
        database.execute("UPDATE message SET msg = '{' WHERE id LIKE 'u-s099-%'")
    database.close()
    with ModelServer() as server:
        found = report(run(*by_model(sqlite.text, server.url, "--jobs", "2")), 7)
    [failure] = found["failures"]
    assert (failure["session"], failure["code"]) == ("s099", "damaged")
    assert "is not JSON" in failure["message"]
    assert found["memories"]["written"] == 99
    with sqlite3.connect(sqlite.location.path) as database:
        [[left]] = database.execute("SELECT count(*) FROM message WHERE id LIKE 'u-s099-%'")
    assert left == 6


# Others at work


def test_compress_second_run(run: Run, sqlite: Place, by_model: Words) -> None:
    memories(sqlite, 4)
    seen: list[int] = []

    def meanwhile(request: Request) -> Reply:
        for words in (
            ["compress", sqlite.text, "--all"],
            ["compress", sqlite.text, "--all", "--dry-run"],
        ):
            with start(*words) as process:
                process.communicate()
                seen.append(process.returncode)
        return ANSWER(request)

    with ModelServer(meanwhile) as server:
        report(run(*by_model(sqlite.text, server.url)))
    assert seen == [75, 0]


@pytest.mark.slow
def test_compress_memory_that_changes_while_the_model_thinks(
    run: Run, sqlite: Place, by_model: Words
) -> None:
    before = memories(sqlite, 4)
    keys = sorted(before)

    def meanwhile(request: Request) -> Reply:
        if "MEMORY1 " in request.user:
            append(sqlite, keys[1], talk(range(6, 9), 1))
        if "MEMORY2 " in request.user:
            with sqlite3.connect(sqlite.location.path, timeout=20) as connection:
                gone = "DELETE FROM message WHERE id LIKE '%s002%m0000001'"
                assert connection.execute(gone).rowcount == 1
        return ANSWER(request)

    with ModelServer(*[meanwhile] * 4) as server:
        found = report(run(*by_model(sqlite.text, server.url, "--jobs", "1")), 7)
        failures = [(one["session"], one["code"]) for one in found["failures"]]
        assert failures == [("s002", "changed")]
        assert found["memories"]["written"] == 3
        now = held(sqlite)
        assert now[keys[2]][2] == [one for one in before[keys[2]][2] if one[0] != "m0000001"]
        assert list(rest_of(sqlite, keys[1]).values()) == [("compressed",)] * 3 + [()] * 6
        assert 6 not in [code for one in server.requests for code in codes_in(one.user)]
        assert report(run(*by_model(sqlite.text, server.url)))["memories"]["written"] == 2
