"""Stores to divide, and the processes of parts."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from memctl.machine.system import PART_VARIABLE
from memctl.model import MemoryKey
from memctl.testing import samples
from tests.support.cli import fill
from tests.support.servers.pool import Servers

MEMORIES = 24


def running_parts() -> list[int]:
    """Return the ids of the processes that run a part of a run of this test."""
    mark = f"XDG_STATE_HOME={os.environ['XDG_STATE_HOME']}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
        except OSError:  # it has ended
            continue
        if mark in variables and any(one.startswith(PART_VARIABLE.encode()) for one in variables):
            found.append(int(folder.name))
    return found


@pytest.fixture(autouse=True)
def _no_parts_left(_away: None) -> Iterator[None]:
    """Fail a test that leaves a part behind."""
    yield
    deadline = time.monotonic() + 5
    while running_parts():
        assert time.monotonic() < deadline, "a part still runs"
        time.sleep(0.05)


def memories(messages: int = 4) -> dict[MemoryKey, list[samples.StoredMessage]]:
    """Return memories of three users."""
    return {
        MemoryKey(f"user {number % 3}", f"session {number}"): samples.entries(messages)
        for number in range(MEMORIES)
    }


@pytest.fixture
def source(servers: Servers) -> str:
    """A PostgreSQL database with memories."""
    url = servers.postgresql.fresh()
    asyncio.run(fill(url, memories()))
    return url
