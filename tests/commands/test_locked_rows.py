"""Memories that others hold all the time: they are left alone and named, the rest is done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager

import pytest

from memctl.engines.sql import database
from memctl.model import MemoryKey
from memctl.testing import Place, samples
from memctl.testing.samples import sample
from tests.support.backends import sql_database
from tests.support.cli import Run, report
from tests.support.places import held, ids, put

ENTRIES = samples.entries(20)


async def take(stack: AsyncExitStack, place: Place, key: MemoryKey) -> None:
    """Mark a message as AgentScope does, in a transaction that ends with the stack."""
    store = await stack.enter_async_context(place.store())
    database = sql_database(store)
    connection = await stack.enter_async_context(database.connect())
    await stack.enter_async_context(database.transaction(connection))
    hint = next(one.id for one in ENTRIES if "hint" in one.marks)
    row = f"{key.user}-{key.session}-{hint}"
    sql = f"INSERT INTO message_mark (msg_id, mark) VALUES ('{row}', 'mine')"
    await connection.exec_driver_sql(sql)


@contextmanager
def marking(place: Place, key: MemoryKey) -> Iterator[None]:
    """An agent that marks a message of the memory, and does not reached the end of it."""
    stack = AsyncExitStack()
    with asyncio.Runner() as runner:
        runner.run(take(stack, place, key))
        try:
            yield
        finally:
            runner.run(stack.aclose())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["postgresql", "mysql"])
def test_edit_what_others_hold_is_left_alone(
    run: Run, one: Callable[[str], Place], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(database, "PAUSES", (0.01, 0.01))
    place = one(name)
    keys = place.keys(3)
    put(place, [sample(key, ENTRIES) for key in keys])
    delete = ("delete", place.text, "--mark", "hint", "--yes", "--json")
    with marking(place, keys[1]):
        found = report(run(*delete), 7)
    [failure] = found["failures"]
    assert failure["code"] == "locked"
    assert (failure["user"], failure["session"]) == (keys[1].user, keys[1].session)
    assert found["memories"] == {"selected": 3, "written": 2, "failed": 1}
    assert ids(place, keys[1]) == [one.id for one in ENTRIES]
    assert report(run(*delete))["memories"]["written"] == 1, "once nobody holds it"
    assert not any("hint" in marks for one in held(place).values() for _, marks, _ in one[2])
