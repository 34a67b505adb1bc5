"""A small store to browse."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from memctl.model import MemoryKey, StoredMessage
from memctl.testing import samples
from tests.support.cli import FRIDAY, fill


@pytest.fixture(autouse=True)
def ordinary_samples() -> Iterator[None]:
    """Give the next test messages again, after one with facts."""
    yield
    samples.use(samples.Style())


@pytest.fixture(scope="session")
def agents(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A SQLite file with three users: a conversation with tools, a long one, and a short one."""
    path = tmp_path_factory.mktemp("browser") / "agents.db"
    friday = [
        StoredMessage(message["id"], json.dumps(message).encode(), tuple(marks))
        for message, marks in json.loads(FRIDAY.read_text("utf-8"))["content"]
    ]
    memories = {
        MemoryKey("ada", "kyoto"): friday,
        MemoryKey("ada", "long"): _entries(1234),
        MemoryKey("bob", "parcel"): _entries(3),
        MemoryKey("ליאור", "טיול"): samples.entries(1),
    }
    asyncio.run(fill(str(path), memories))
    return str(path)


def _entries(count: int) -> list[StoredMessage]:
    """Return sample messages, some of them marked compressed."""
    return [
        one._replace(marks=tuple(mark.replace("considered", "compressed") for mark in one.marks))
        for one in samples.entries(count)
    ]


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A SQLite file with names, marks and texts that would command a terminal."""
    path = tmp_path_factory.mktemp("hostile") / "agents.db"
    text = "kyoto \x1b[31mred \x1b]0;own\x07 [bold]no[/] \u202e"
    entry = samples.entry("i\x1b[31m", 1, ("m\x1b]0;own\x07[red]",), content=text)
    call = [{"type": "tool_use", "id": "c\x1b[31m", "name": "t\x07", "input": {}}]
    asked = samples.entry("j\x1b[31m", 2, role="assistant", content=call)
    asyncio.run(fill(str(path), {MemoryKey("\x1b]0;own\x07", "[red]"): [entry, asked]}))
    return str(path)
