"""Parts, drivers and terminals that end in the middle of a run."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time

import pexpect
import pytest

from tests.parts.conftest import MEMORIES, memories, running_parts
from tests.support.cli import Run, contents, fill
from tests.support.processes import start, wait_until
from tests.support.servers.pool import Servers
from tests.terminal.conftest import Screen

pytestmark = pytest.mark.slow


@pytest.fixture
def long(servers: Servers) -> str:
    """A source whose copy in two parts takes some seconds at RATE."""
    url = servers.postgresql.fresh()
    asyncio.run(fill(url, memories(100)))
    return url


RATE = ("--rate-limit", "600")


class Begun:
    """A migration in two parts that have begun to write."""

    def __init__(self, source: str, target: str, *options: str) -> None:
        words = ("migrate", source, target, "--shards", "2", "--json", *RATE, *options)
        self.process = start(*words)
        wait_until(lambda: len(running_parts()) == 2)
        wait_until(lambda: contents(target))

    def end(self) -> tuple[int, dict[str, object]]:
        """Wait for its end; return the exit code and the report."""
        output, _ = self.process.communicate(timeout=60)
        return self.process.returncode, json.loads(output)


@pytest.fixture
def target(servers: Servers) -> str:
    """An empty database that can be read from the beginning."""
    url = servers.postgresql.fresh()
    asyncio.run(fill(url, {}))
    return url


def is_whole(run: Run, source: str, target: str) -> bool:
    return run("verify", source, target).exit_code == 0


def no_memory_is_half(target: str) -> bool:
    return {len(found) for found in contents(target).values()} <= {0, 100}


def test_part_that_is_killed_is_repeated(run: Run, long: str, target: str) -> None:
    begun = Begun(long, target)
    os.kill(running_parts()[0], signal.SIGKILL)
    code, report = begun.end()
    assert code == 0
    assert sorted(part["attempts"] for part in report["parts"]) == [1, 2]
    assert is_whole(run, long, target)


def test_parts_die_with_their_driver(run: Run, long: str, target: str) -> None:
    begun = Begun(long, target)
    begun.process.kill()
    begun.process.wait()
    wait_until(lambda: not running_parts())
    assert len(contents(target)) < MEMORIES  # they have not come to their end
    assert no_memory_is_half(target)
    assert run("migrate", long, target, "--shards", "2").exit_code == 0  # the locks are free
    assert is_whole(run, long, target)


def test_first_signal_ends_the_parts_after_a_memory(run: Run, long: str, target: str) -> None:
    begun = Begun(long, target)
    begun.process.send_signal(signal.SIGTERM)
    code, report = begun.end()
    assert code == 143
    assert [part["exit"] for part in report["parts"]] == [143, 143]
    assert 0 < report["memories"]["written"] < MEMORIES
    assert len(contents(target)) == report["memories"]["written"]
    assert no_memory_is_half(target)
    assert run("migrate", long, target, "--shards", "2").exit_code == 0
    assert is_whole(run, long, target)


@pytest.fixture
def screen(long: str, target: str) -> Screen:
    """A terminal with a migration in two parts that have begun to write."""
    words = ["--verbose", "migrate", long, target, "--shards", "2", *RATE]
    screen = Screen(200, words, dict(os.environ))
    wait_until(lambda: len(running_parts()) == 2)
    wait_until(lambda: contents(target))
    return screen


def test_ctrl_c_is_for_the_driver_alone(screen: Screen, target: str) -> None:
    screen.sendintr()
    for _ in range(2):
        screen.expect(r"part ./2 ended with 143")  # by SIGTERM of the driver
    screen.expect("stopped by SIGINT")
    screen.expect(pexpect.EOF)
    screen.close()
    assert screen.exitstatus == 130
    assert no_memory_is_half(target)


def test_ctrl_c_twice_kills_the_parts(screen: Screen, target: str) -> None:
    for part in running_parts():
        os.kill(part, signal.SIGSTOP)  # it hears of nothing but SIGKILL
    screen.sendintr()
    time.sleep(0.5)
    assert len(running_parts()) == 2
    screen.sendintr()
    screen.expect("stopped by SIGINT")
    screen.expect(pexpect.EOF)
    screen.close()
    assert screen.exitstatus == 130
    assert not running_parts()
    assert no_memory_is_half(target)
