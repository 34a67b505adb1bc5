"""``memctl tail``: what comes to a store is shown, once, until stopped."""

from __future__ import annotations

import asyncio
import json
import queue
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from memctl.model import MemoryKey
from memctl.testing import samples
from tests.support.cli import Run, add, contents, fails, fill
from tests.support.processes import start
from tests.support.servers.pool import Servers

ONE = MemoryKey("ada", "one")
TWO = MemoryKey("bob", "two")
ALL = samples.entries(60)


class Tailing:
    """A run of ``memctl tail --json``, whose lines are read in a thread."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._lines: queue.Queue[str] = queue.Queue()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)

    def shown(self, number: int) -> list[tuple[str, str]]:
        """Return the users and ids of the next lines."""
        lines = [json.loads(self._lines.get(timeout=30)) for _ in range(number)]
        return [(line["user"], line["id"]) for line in lines]

    def end(self, number: signal.Signals = signal.SIGINT) -> int:
        """Stop it; return the exit code, after a check that it has shown nothing more."""
        self.process.send_signal(number)
        code = self.process.wait(30)
        self._thread.join(30)
        assert self._lines.empty()
        return code


Tail = Callable[..., Tailing]


@pytest.fixture
def tail() -> Iterator[Tail]:
    """Start ``memctl tail``; it looks often."""
    running: list[subprocess.Popen[str]] = []

    def begin(store: object, *options: object) -> Tailing:
        words = ("tail", store, "--interval", "0.1", "--json", *options)
        running.append(start(*words))
        return Tailing(running[-1])

    yield begin
    for one in running:
        one.kill()
        one.communicate()


@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "redis"])
def test_tail_shows_each_new_message_once(
    run: Run, tail: Tail, servers: Servers, tmp_path: Path, kind: str
) -> None:
    server = getattr(servers, kind, None)
    store = f"sqlite:///{tmp_path}/agents.db" if server is None else server.fresh()
    asyncio.run(fill(store, {ONE: ALL[:40]}))
    tailing = tail(store, "--last", "2")
    assert tailing.shown(2) == [("ada", entry.id) for entry in ALL[38:40]]
    add(store, ONE, ALL[40:43], 40)
    assert tailing.shown(3) == [("ada", entry.id) for entry in ALL[40:43]]
    add(store, TWO, ALL[50:52], 0)
    assert tailing.shown(2) == [("bob", entry.id) for entry in ALL[50:52]]
    words = ("delete", store, "--last", "3", "--user", "ada", "--yes", "--no-backup")
    assert run(*words).exit_code == 0
    add(store, ONE, ALL[43:44], 40)
    assert tailing.shown(1) == [("ada", ALL[43].id)]
    assert tailing.end() == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_tail_of_a_framework_without_outlines(
    run: Run, tail: Tail, servers: Servers, tmp_path: Path, kind: str
) -> None:
    place = f"sqlite:///{tmp_path}/chats.db" if kind == "sqlite" else servers.redis.fresh()
    store, agents = f"{place}?layout=langchain&owner=ada", tmp_path / "agents.db"
    asyncio.run(fill(str(agents), {ONE: ALL[:40]}))
    assert run("migrate", agents, store, "--lossy", "--all-messages").exit_code == 0
    there = len(contents(store)[ONE])
    tailing = tail(store, "--last", "1")
    tailing.shown(1)
    add(agents, ONE, ALL[40:45], 40)
    assert run("migrate", agents, store, "--lossy", "--all-messages").exit_code == 0
    now = contents(store)[ONE]
    assert len(now) > there
    assert tailing.shown(len(now) - there) == [("ada", entry.id) for entry in now[there:]]
    assert tailing.end() == 0


def test_tail_knows_the_rest_when_messages_in_the_middle_go(
    run: Run, tail: Tail, tmp_path: Path
) -> None:
    store = f"sqlite:///{tmp_path}/agents.db"
    asyncio.run(fill(store, {ONE: ALL[:40]}))
    tailing = tail(store, "--last", "1")
    assert tailing.shown(1) == [("ada", ALL[39].id)]
    assert run("delete", store, "--mark", "hint", "--yes", "--no-backup").exit_code == 0
    left = len(contents(store)[ONE])
    assert left < 40
    add(store, ONE, ALL[40:42], left)
    assert tailing.shown(2) == [("ada", entry.id) for entry in ALL[40:42]]
    assert tailing.end(signal.SIGTERM) == 0


def test_tail_shows_what_is_selected(tail: Tail, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/agents.db"
    asyncio.run(fill(store, {ONE: ALL[:3]}))
    tailing = tail(store, "--user", "ada", "--role", "user", "--last", "1")
    tailing.shown(1)
    add(store, TWO, ALL[:3], 0)
    add(store, ONE, ALL[3:30], 3)
    wanted = [one.id for one in ALL[3:30] if json.loads(one.message)["role"] == "user"]
    assert tailing.shown(len(wanted)) == [("ada", id) for id in wanted]
    assert tailing.end() == 0


@pytest.mark.slow
def test_tail_for_people_ends_quietly_when_nobody_reads(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/agents.db"
    asyncio.run(fill(store, {ONE: ALL[:3]}))
    process = start("tail", store, "--interval", "0.1", "--last", "1")
    assert process.stdout is not None
    assert "ada / one" in process.stdout.readline()
    process.stdout.close()
    add(store, ONE, ALL[3:5], 3)
    assert process.wait(30) == 128 + signal.SIGPIPE
    assert process.stderr is not None
    assert process.stderr.read() == ""


def test_tail_refuses_what_cannot_tell_quickly(run: Run, tmp_path: Path) -> None:
    archive = tmp_path / "backup.ndjson"
    asyncio.run(fill(str(archive), {ONE: ALL[:3]}))
    fails(run("tail", archive), 2, "cannot tell quickly what is new", "memctl inspect STORE")
    fails(run("tail", archive, "--format", "csv"), 2, "cannot tell quickly what is new")
