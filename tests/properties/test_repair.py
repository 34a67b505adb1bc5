"""A repair repairs what was found, makes nothing worse, and is undone exactly."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memctl.dialects.registry import DIALECTS
from memctl.dialects.view import TextBlock, ToolResultBlock
from memctl.model import MemoryKey, StoredMessage
from memctl.registry import make_store, parse
from memctl.store import OpenMode
from memctl.testing.drive import write_all
from memctl.testing.samples import sample
from tests.support import odd
from tests.support.cli import Run, contents, report

pytestmark = pytest.mark.slow

KEY = MemoryKey("", "s")
STORES = {
    "agentscope1": ["{}/m.db", "{}/s.json", "{}/a.ndjson"],
    "agentscope2": ["sqlite:///{}/m.db?layout=agentscope2"],
    "runtime": ["{}/a.ndjson"],
    "openai": ["{}/a.ndjson"],
    "langchain": ["sqlite:///{}/m.db?layout=langchain"],
    "openai-agents": ["sqlite:///{}/m.db?layout=openai-agents"],
    "llamaindex": ["sqlite:///{}/m.db?layout=llamaindex"],
    "adk": ["sqlite:///{}/m.db?layout=adk&app=a"],
    "agno": ["sqlite:///{}/m.db?layout=agno"],
    "role-content": ["{}/a.ndjson"],
}
CASES = [(dialect, store) for dialect, stores in STORES.items() for store in stores]
conversations = st.lists(st.integers(0, 40), min_size=1, max_size=9)


async def fill(place: str, dialect: str, entries: list[StoredMessage]) -> None:
    """Write a conversation into a new store, whose dialect it takes."""
    async with make_store(parse(place), OpenMode.CREATE) as store:
        store.adopt(DIALECTS[dialect], None)
        await write_all(store, [sample(KEY, entries)])


def texts(dialect: str, entries: list[StoredMessage]) -> Iterator[tuple[str, str]]:
    """Yield what people, agents and tools say, with the ids of the messages."""
    for entry in entries:
        for block in DIALECTS[dialect].parse(entry.message).blocks:
            if isinstance(block, TextBlock):
                yield block.text, entry.id
            elif isinstance(block, ToolResultBlock):
                for one in block.output:
                    if isinstance(one, TextBlock):
                        yield one.text, entry.id


def counts(found: dict[str, Any]) -> Counter[str]:
    """Return the numbers of findings by their codes."""
    return Counter({one["code"]: one["count"] for one in found["findings"]})


def examined(run: Run, place: str, *options: str) -> dict[str, Any]:
    """Return the report of doctor, healthy or not."""
    done = run("doctor", place, *options, "--json")
    return report(done, 6 if done.exit_code == 6 else 0)


@pytest.mark.parametrize(("dialect", "store"), CASES)
@given(choices=conversations)
@settings(max_examples=10)
def test_repair_makes_nothing_worse(run: Run, dialect: str, store: str, choices: list[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = store.format(folder)
        asyncio.run(fill(place, dialect, odd.entries(dialect, choices)))
        [(key, before)] = contents(place).items()
        sick = examined(run, place)
        repaired = examined(run, place, "--repair", "--yes")
        assert counts(repaired) <= counts(sick), (repaired["findings"], sick["findings"])
        again = examined(run, place, "--repair", "--yes")
        assert again["repaired"] == []
        assert "run" not in again
        after = contents(place).get(key, [])
        left = {text for text, _ in texts(dialect, after)}
        named = {id for one in sick["findings"] for id in one["ids"]}
        more = any(one["count"] > len(one["ids"]) for one in sick["findings"])
        assert more or all(
            text in left or not text.strip() or id in named for text, id in texts(dialect, before)
        )
        if "run" in repaired:
            undone = run("undo", repaired["run"], "--store", place, "--yes", "--json")
            report(undone)
            assert _by_value(contents(place)[key]) == _by_value(before)


def _by_value(entries: list[StoredMessage]) -> list[tuple[str, Any, tuple[str, ...]]]:
    return [(one.id, json.loads(one.message), one.marks) for one in entries]
