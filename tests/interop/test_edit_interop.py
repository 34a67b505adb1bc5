"""Tests that an edit by memctl equals one by AgentScope's own methods."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest

from memctl.model import Change, Edit, Memory, StoredMessage, WriteResult
from memctl.registry import make_store, parse
from memctl.selection import Selection
from memctl.store import OpenMode
from tests.interop.test_migrate import MARKS, PLACES, asked, memories
from tests.support.agentscope import AgentScope
from tests.support.servers.pool import Servers

Plan = Callable[[StoredMessage], tuple[str, ...] | None]
"""The marks that a message is to have; None where it is to go."""


def without(*marks: str) -> Plan:
    return lambda entry: None if set(marks) & set(entry.marks) else entry.marks


def renamed(old: str, new: str) -> Plan:
    def plan(entry: StoredMessage) -> tuple[str, ...]:
        if old not in entry.marks:
            return entry.marks
        rest = [mark for mark in entry.marks if mark != old]
        return (*rest, *([] if new in rest else [new]))

    return plan


def added(mark: str) -> Plan:
    return lambda entry: entry.marks if mark in entry.marks else (*entry.marks, mark)


def removed(old: str) -> Plan:
    return lambda entry: tuple(mark for mark in entry.marks if mark != old)


CASES: dict[str, tuple[Plan, list[Any]]] = {
    "hints": (without("hint"), ["delete_by_mark", {"mark": "hint"}]),
    "several marks": (
        without("compressed", "a:b*?[c]", "%"),
        ["delete_by_mark", {"mark": ["compressed", "a:b*?[c]", "%"]}],
    ),
    "a mark that nothing has": (without("*"), ["delete_by_mark", {"mark": "*"}]),
    "a mark added to all": (added("new"), ["update_messages_mark", {"new_mark": "new"}]),
    "a mark renamed": (
        renamed("hint", "it's 😀"),
        ["update_messages_mark", {"new_mark": "it's 😀", "old_mark": "hint"}],
    ),
    "a mark removed": (
        removed("compressed"),
        ["update_messages_mark", {"new_mark": None, "old_mark": "compressed"}],
    ),
}


async def change(place: str, plan: Plan) -> WriteResult | None:
    """Change the one memory of a place; return None where nothing is to be changed."""
    async with make_store(parse(place), OpenMode.CHANGE) as store:
        found: list[StoredMessage] = []
        memory: Memory | None = None
        async for page in store.read(Selection()):
            memory = page.memory
            found += page.messages
        assert memory is not None
        changes = [
            Change(entry.id, entry.marks, plan(entry))
            for entry in found
            if plan(entry) != entry.marks
        ]
        edit = Edit(Memory(memory.key), changes)

        async def stream() -> AsyncGenerator[Edit]:
            yield edit

        if not changes:
            return None
        [result] = [result async for result in store.edit(stream())]
        return result


def content_of(place: str, servers: Servers, folder: Path) -> Any:
    """The one document of a place, past both."""
    if place.startswith("redis"):
        with servers.redis.client(place.partition("?")[0]) as client:
            [name] = client.keys()
            return json.loads(client.get(name))
    [file] = folder.rglob("*.json")
    return json.loads(file.read_text("utf-8", "surrogatepass"))


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("kind", ["state_dict", "json_session", "redis_session"])
@pytest.mark.parametrize("case", CASES)
def test_interop_edit_same_as_agentscope(
    agentscope: AgentScope, servers: Servers, tmp_path: Path, kind: str, case: str, nested: bool
) -> None:
    """One copy is changed by memctl, the other by AgentScope: the same is stored, and seen."""
    if nested and kind == "state_dict":
        pytest.skip("is the memory itself")
    plan, own = CASES[case]
    written = memories(1, summary=True)
    written[0]["messages"] = [
        (message, [mark for n, mark in enumerate(MARKS[:-1], 2) if number % n == 1])
        for number, (message, _) in enumerate(written[0]["messages"])
    ]
    stored, seen = [], []
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        place = PLACES[kind](folder, servers)
        if kind == "json_session":
            Path(place).mkdir(exist_ok=True)
        agentscope.write(place, written, nested=nested)
        if number:
            [count] = agentscope.call(place, written[0], own, nested=nested)
        else:
            result = asyncio.run(change(place, plan))
            assert result is None or result.failure is None
        stored.append(content_of(place, servers, folder))
        seen.append(agentscope.read(place, asked(written), nested=nested))
    if own[0] == "delete_by_mark":  # the other does not count where the new mark was there before
        assert (result.deleted if result else 0) == count
    assert stored[0] == stored[1]
    assert seen[0] == seen[1]
    assert seen[0][0]["summary"]
    assert set(seen[0][0]["marked"]) == set(MARKS)
