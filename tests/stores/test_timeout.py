"""Timeouts: no call of a store can be waited for without an end."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from memctl.errors import Lost
from memctl.location import Location
from memctl.selection import Selection
from memctl.store import Maintenance, OpenMode, Store
from memctl.wrappers import timeout
from memctl.wrappers.timeout import Timeout
from memctl.wrappers.wrapper import StoreWrapper

SILENT = {"check_integrity"}
"""Calls that take as long as they need."""
SECONDS = 0.02


async def _hang(*_: Any) -> None:
    await asyncio.Event().wait()


async def _hang_instead_of_items(*_: Any) -> AsyncGenerator[Any]:
    await _hang()
    yield


def calls(contract: type) -> dict[str, bool]:
    """The public methods of a contract that wait; true for those that give several things."""
    found = {}
    for name, method in vars(contract).items():
        if name.startswith("_") or not inspect.isfunction(method):
            continue
        several = "AsyncGenerator" in str(inspect.signature(method).return_annotation)
        if several or inspect.iscoroutinefunction(method):
            found[name] = several
    return found


def hanging(contract: type, *arguments: Any) -> Any:
    """Return an object of which no call ever returns."""
    methods = {
        name: _hang_instead_of_items if several else _hang
        for name, several in calls(contract).items()
    }
    return type("Hanging", (contract,), {"kind": "hanging", **methods})(*arguments)


async def _all(items: AsyncGenerator[Any]) -> None:
    async with aclosing(items):
        async for _ in items:
            continue


async def assert_bounded(place: Any, contract: type) -> None:
    arguments = {"mode": OpenMode.READ, "where": Selection()}
    for name, several in calls(contract).items():
        if name in SILENT | {"close"}:
            continue
        method = getattr(place, name)
        given = [
            _hang_instead_of_items() if one in ("pages", "edits", "records") else arguments.get(one)
            for one, parameter in inspect.signature(method).parameters.items()
            if parameter.default is parameter.empty
        ]
        call = _all(method(*given)) if several else method(*given)
        with pytest.raises(Lost, match="has not answered"):
            await asyncio.wait_for(call, 5)


async def test_timeout_bounds_every_call_of_the_contract() -> None:
    store = hanging(Store, Location("sqlite", "it", path=Path("it.db")))
    store.maintenance = lambda: hanging(Maintenance, store)
    timed = Timeout(store, SECONDS)
    await assert_bounded(timed, Store)
    await assert_bounded(timed.maintenance(), Maintenance)


def test_wrapper_forwards_every_method_of_the_contract() -> None:
    public = {
        name
        for name, method in vars(Store).items()
        if inspect.isfunction(method) and not name.startswith("_")
    }
    assert public - set(vars(StoreWrapper)) == {"snapshot"}, "made of the wrapper's own ``read``"


async def test_silence_is_told_once_and_work_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeout, "WAIT", 0.01)
    monkeypatch.setattr(timeout, "SILENCE", 0.2)
    said: list[str] = []
    store = hanging(Store, Location("sqlite", "it", path=Path("it.db")))
    with pytest.raises(Lost):
        await Timeout(store, 0.4, said.append).is_empty()
    assert said == ["waiting for an answer of it (up to 0.4 s)"]

    async def results(_self: Any, pages: AsyncGenerator[Any], _mode: Any) -> AsyncGenerator[Any]:
        async for page in pages:
            await asyncio.sleep(0.05)
            yield page

    async def pages() -> AsyncGenerator[Any]:
        for number in range(10):
            await asyncio.sleep(0.05)
            yield number

    said.clear()
    store = type("Slow", (type(store),), {"write": results})(store.location)
    await _all(Timeout(store, 0.4, said.append).write(pages()))
    assert said == []
