"""The actions of ``browse --write``: those of the commands, with preview and undo."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, closing
from pathlib import Path

import pytest

from memctl.model import Edit, MemoryKey, StoredMessage, WriteResult
from memctl.ops.change import change as changing
from memctl.ops.lock import lock
from memctl.registry import make_store, parse
from memctl.store import OpenMode
from memctl.testing import samples
from memctl.testing.drive import read, write
from memctl.testing.samples import Style
from memctl.wrappers.wrapper import StoreWrapper
from tests.browser.driver import LARGE, Driver, browsing, make_browser
from tests.support.cli import Run, fails, fill

KYOTO, LISBON = MemoryKey("ada", "kyoto"), MemoryKey("ada", "lisbon")
PARCEL = MemoryKey("bob", "parcel")


@pytest.fixture
async def store(tmp_path: Path) -> str:
    """A SQLite file with three memories."""
    path = f"{tmp_path}/agents.db"
    await fill_three(path)
    return path


@pytest.fixture(params=["sqlite", "postgresql", "redis"])
async def each(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A SQLite file and two servers with three memories."""
    path = f"{tmp_path}/agents.db"
    if request.param != "sqlite":
        path = request.getfixturevalue(f"{request.param}_url")
    await fill_three(path)
    return path


async def fill_three(text: str) -> None:
    some = {KYOTO: samples.entries(30), LISBON: samples.entries(3), PARCEL: samples.entries(7)}
    await fill(text, some)


async def contents(text: str) -> dict[MemoryKey, list[StoredMessage]]:
    async with make_store(parse(text)) as store:
        return {key: found.entries for key, found in (await read(store)).items()}


def ids(entries: list[StoredMessage]) -> list[str]:
    return [one.id for one in entries]


def last(screen: str) -> str:
    """Return the last line of a screen."""
    return screen.splitlines()[-1]


def run_of(screen: str) -> str:
    """Return the run that the last line names."""
    found = re.search(r"undo\s+it\s+with:\s+memctl\s+undo\s+(\w{5})$", screen.strip())
    assert found, screen
    return found[1]


async def opened(driver: Driver, *keys: str) -> str:
    """Open the first memory, and press further keys."""
    return await driver.press("down", "enter", "g", *keys)


@pytest.mark.slow
async def test_action_deletes_what_is_selected_and_undoes_it(each: str) -> None:
    before = await contents(each)
    async with browsing(make_browser(each, write=True)) as driver:
        screen = await opened(driver, "j", "space", "space", "d")
        assert re.search(r"user +session +delete +keep", screen)
        assert re.search(r"ada +kyoto +2 +28", screen)
        assert "delete 2 messages in 1 memory of" in screen
        assert await contents(each) == before, "nothing is deleted before the answer"
        screen = await driver.press("y")
        assert "2 messages deleted in 1 memory" in screen
        assert "▌ #2 Alice (user)" in screen, "the cursor stays on its message"
        run_of(screen)
        after = await contents(each)
        assert ids(after[KYOTO]) == ids(before[KYOTO])[:1] + ids(before[KYOTO])[3:]
        screen = await driver.press("5", "u")
        assert "undo the delete of" in screen
        screen = await driver.press("y")
        assert "2 messages restored in 1 memory" in screen
        assert re.search(r"delete +2 deleted +undone by \w{5}", screen)
        assert "it cannot be undone" in screen, "the cursor stays on the run"
    assert await contents(each) == before


@pytest.mark.slow
async def test_action_without_a_yes_changes_nothing(store: str) -> None:
    before = await contents(store)
    async with browsing(make_browser(store, write=True)) as driver:
        await opened(driver)
        for no in ("n", "escape", "q", "ctrl+c"):
            await driver.press("d")
            assert last(await driver.press(no)) == " not confirmed; nothing was changed"
        assert "No run that can be undone" in await driver.press("5")
    assert await contents(store) == before


@pytest.mark.slow
async def test_action_marks_and_unmarks(each: str) -> None:
    async with browsing(make_browser(each, write=True)) as driver:
        await opened(driver, "space", "+")
        screen = await driver.answer("to do")
        assert "marks of 1 message changed in 1 memory" in screen
        run_of(screen)
        assert "[to do]" in await driver.press("g")
        assert "to do" in (await contents(each))[KYOTO][0].marks
        await driver.press("a", "-")
        assert "marks of 1 message changed" in await driver.answer("to do")
        assert "nothing matched" in (await driver.press("-"), await driver.answer("none"))[1]
        assert not {mark for one in (await contents(each))[KYOTO] for mark in one.marks} & {"to do"}


@pytest.mark.slow
async def test_action_on_memories_of_the_list(store: str) -> None:
    before = await contents(store)
    async with browsing(make_browser(store, write=True), LARGE) as driver:
        screen = await driver.press("down", "down", "space", "space")
        assert "●   lisbon" in screen
        assert "●   parcel" in screen, "all memories of the user"
        assert "2 selected" in screen
        screen = await driver.press("d")
        assert re.search(r"ada +lisbon +3 +0", screen)
        assert "delete 10 messages in 2 memories" in screen
        screen = await driver.press("y")
        assert "10 messages deleted in 2 memories" in screen
        assert "selected" not in screen
        assert (await contents(store)).get(KYOTO) == before[KYOTO]
        assert "3 selected" in await driver.press("a")
        assert "selected" not in await driver.press("*")


@pytest.mark.slow
async def test_action_takes_only_memories_that_the_filter_shows(store: str) -> None:
    async with browsing(make_browser(store, write=True)) as driver:
        await driver.press("a", "/")
        screen = (await driver.answer("lis"), await driver.press("d"))[1]
        assert "delete 3 messages in 1 memory" in screen
        await driver.press("n", "a", "a", "/")
        screen = (await driver.answer("bob"), await driver.press("d"))[1]
        assert "Delete needs memories or messages" in screen, "what is selected is not shown"


@pytest.mark.slow
async def test_action_exports(store: str, tmp_path: Path) -> None:
    file = tmp_path / "some.html"
    async with browsing(make_browser(store, write=True), (200, 24)) as driver:
        assert "Export to the file: ada-kyoto.html" in await opened(driver, "space", "space", "e")
        assert f"1 memory written to {file}" in await driver.answer(str(file))
        assert file.read_text("utf-8").count("<article") == 2
        await driver.press("e")
        assert "exists; use --force" in await driver.answer(str(file))
        await driver.press("escape", "e")
        assert "the browser is on the terminal; name a file" in await driver.answer("-")
        await driver.press("escape", "e")
        assert "some.xyz" in await driver.answer(str(tmp_path / "none" / "some.xyz"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "redis"])
async def test_action_offloads(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    path = f"{tmp_path}/large.db" if kind == "sqlite" else request.getfixturevalue("redis_url")
    output = [{"type": "text", "text": "All work and no play. " * 5000}]
    result = [{"type": "tool_result", "id": "c", "name": "read", "output": output}]
    await fill(path, {KYOTO: [samples.entry("a"), samples.entry("b", 1, content=result)]})
    async with browsing(make_browser(path, write=True)) as driver:
        await driver.press("down", "enter", "a", "O")
        assert "no folder is named; type one, or configure [offload]" in await driver.answer("")
        await driver.press("escape", "O")
        screen = await driver.answer(f"{tmp_path}/blobs")
        assert "offload large contents of 1 message in 1 memory" in screen
        assert re.search(r"ada +kyoto +1 +110.\d kB +\d", screen)
        screen = await driver.press("y")
        assert "contents offloaded from 1 message in 1 memory" in screen
        run_of(screen)
        assert len(list((tmp_path / "blobs").rglob("*.zst"))) == 1


async def test_action_needs_the_option(store: str) -> None:
    async with browsing(make_browser(store)) as driver:
        said = " memctl browse --write agents.db changes it"
        for key in "+-deOu":
            assert last(await driver.press(key)) == said, key
        await driver.press("space", "a", "*")
        assert "selected" not in await opened(driver, "space", "a")
        assert last(await driver.press("d")) == said
        assert "read-only" in driver.screen()


@pytest.fixture
def held(tmp_path: Path, run: Run) -> tuple[str, str]:
    """A store of which a memory is held, and what ``delete`` says of it."""
    path = f"{tmp_path}/agents.db"
    asyncio.run(fill_three(path))
    one = ("--user", "ada", "--session", "kyoto")
    assert run("hold", "add", *one, "--reason", "case 17").exit_code == 0
    refused = run("delete", path, *one, "--yes")
    assert refused.exit_code == 9
    return path, refused.stderr


@pytest.mark.slow
async def test_action_leaves_a_held_memory_alone(held: tuple[str, str]) -> None:
    store, refused = held
    before = await contents(store)
    async with browsing(make_browser(store, write=True), (200, 24)) as driver:
        screen = await opened(driver, "d")
        said, hint = last(screen).strip().split("; ", 1)
        assert f"memctl: error: {said}\n" in refused
        assert hint in refused
        await driver.press("escape", "escape", "a", "d")
        assert re.search(r"ada +lisbon +3 +0", driver.screen())
        assert re.search(r"'ada'/'kyoto' +.*case 17", driver.screen()), "named before the answer"
        screen = await driver.press("y")
        assert "10 messages deleted in 2 memories, 1 memory left unchanged" in screen
    assert (await contents(store))[KYOTO] == before[KYOTO]


@pytest.mark.slow
async def test_action_keeps_to_the_limit(store: str) -> None:
    before = await contents(store)
    browser = make_browser(store, write=True, max_delete="10%")
    async with browsing(browser, (160, 24)) as driver:
        said = "30 messages would be deleted, more than --max-delete 10%; nothing was deleted"
        assert said in last(await driver.press("down", "d"))
    assert await contents(store) == before


@pytest.mark.slow
async def test_action_names_parted_tool_calls(tmp_path: Path) -> None:
    path = f"{tmp_path}/tools.db"
    call = [{"type": "tool_use", "id": "c", "name": "t", "input": {}}]
    result = [{"type": "tool_result", "id": "c", "name": "t", "output": []}]
    asked = samples.entry("a", 1, role="assistant", content=call)
    await fill(path, {KYOTO: [asked, samples.entry("b", 2, role="system", content=result)]})
    async with browsing(make_browser(path, write=True)) as driver:
        screen = await driver.press("down", "enter", "d")
        assert "the selection separates 1 tool call from the result" in screen


@pytest.mark.slow
async def test_action_after_another_program_changed_the_memory(store: str) -> None:
    before = await contents(store)
    async with browsing(make_browser(store, write=True)) as driver:
        await opened(driver, "space", "space", "d")
        with closing(sqlite3.connect(store)) as database, database:
            for table, column in (("message_mark", "msg_id"), ("message", "id")):
                gone = f"%{before[KYOTO][0].id}"
                database.execute(f"DELETE FROM {table} WHERE {column} LIKE ?", (gone,))
        async with make_store(parse(store), OpenMode.CREATE) as other:
            await write(other, [samples.sample(KYOTO, [samples.entry("new", 40)])], offset=29)
        screen = await driver.press("y")
        assert "1 message deleted in 1 memory" in screen
    after = await contents(store)
    assert ids(after[KYOTO]) == [*ids(before[KYOTO])[2:], "new"]


@pytest.mark.slow
async def test_action_waits_for_no_lock_for_ever(store: str) -> None:
    before = await contents(store)
    async with browsing(make_browser(store, write=True)) as driver:
        await opened(driver, "d")
        async with make_store(parse(store), OpenMode.CHANGE) as other:
            await lock(other)
            screen = await driver.press("y")
            assert "another memctl run" in screen
        assert await contents(store) == before
        await driver.press("escape", "d")
        assert "delete 1 message in" in driver.screen(), "Esc ends the error alone"
        assert "1 message deleted" in await driver.press("y"), "the browser goes on"


class Slow(StoreWrapper):
    """A store that takes a while for each memory that it changes."""

    async def edit(self, edits: AsyncGenerator[Edit]) -> AsyncIterator[WriteResult]:  # type: ignore[override]
        async def slowly() -> AsyncGenerator[Edit]:
            async with aclosing(edits):
                async for edit in edits:
                    await asyncio.sleep(0.05)
                    yield edit

        async with aclosing(self._store.edit(slowly())) as results:
            async for result in results:
                yield result


@pytest.fixture
def _slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changing, "make_store", lambda *about: Slow(make_store(*about)))


@pytest.mark.slow
@pytest.mark.usefixtures("_slow")
@pytest.mark.parametrize("key", ["ctrl+c", "q", "escape"])
async def test_action_stops_with_whole_memories(tmp_path: Path, key: str) -> None:
    path = f"{tmp_path}/many.db"
    await fill(path, {MemoryKey("ada", f"s{n:02}"): samples.entries(2) for n in range(60)})
    async with browsing(make_browser(path, write=True)) as driver:
        await driver.press("a", "d")
        await driver.pilot.press("y")
        await driver.until("working… ")
        screen = await driver.press(key)
        assert "stopped as asked · " in screen
        name = run_of(screen)
        assert driver.browser.is_running
        sizes = [len(entries) for entries in (await contents(path)).values()]
        assert set(sizes) <= {0, 2}
        assert f"{60 * 2 - sum(sizes)} messages deleted" in screen
        assert name in await driver.press("5")


@pytest.mark.slow
@pytest.mark.usefixtures("_slow")
async def test_action_lets_no_text_be_typed_into_its_question(tmp_path: Path) -> None:
    path = f"{tmp_path}/many.db"
    await fill(path, {MemoryKey("ada", f"s{n:02}"): samples.entries(2) for n in range(60)})
    async with browsing(make_browser(path, write=True)) as driver:
        await driver.press("a", "d")
        await driver.pilot.press("y")
        await driver.until("working… ")
        await driver.pilot.press("f")
        await driver.pilot.press("d")
        await driver.until("an action goes on; Esc stops it")
        assert "stopped as asked" in await driver.press("escape")


@pytest.mark.slow
@pytest.mark.usefixtures("_slow")
async def test_action_is_complete_when_the_browser_ends(tmp_path: Path) -> None:
    path = f"{tmp_path}/many.db"
    await fill(path, {MemoryKey("ada", f"s{n:02}"): samples.entries(2) for n in range(60)})
    browser = make_browser(path, write=True)
    async with browsing(browser) as driver:
        await driver.press("a", "d")
        await driver.pilot.press("y")
        await driver.until("working… ")
        await browser.stop_action()  # as after SIGTERM
        browser.exit()
    assert "stopped as asked" in browser.acted[0].told
    assert {len(entries) for entries in (await contents(path)).values()} <= {0, 2}


@pytest.mark.slow
async def test_action_on_a_memory_that_is_gone(store: str) -> None:
    async with browsing(make_browser(store, write=True)) as driver:
        await opened(driver)
        with closing(sqlite3.connect(store)) as database, database:
            for table in ("message_mark", "message", "session"):
                database.execute(f"DELETE FROM {table}")
        screen = await driver.press("d")
        assert "nothing matched" in screen
        assert "is not there any more" in screen


@pytest.mark.slow
async def test_action_of_facts(tmp_path: Path) -> None:
    samples.use(Style("fact", frozenset()))
    path = f"vault:{tmp_path}/notes"
    await fill(path, {MemoryKey("ada", "friday"): samples.entries(4)})
    async with browsing(make_browser(path, write=True)) as driver:
        await driver.press("down", "enter", "+")
        assert "notes holds facts, which have no marks" in await driver.answer("x")
        screen = await driver.press("escape", "d")
        assert "delete 1 fact in 1 memory" in screen
        assert "1 fact deleted" in await driver.press("y")


async def test_action_of_a_context_names_the_way(store: str) -> None:
    async with browsing(make_browser(store, write=True)) as driver:
        screen = await opened(driver, "c", "space")
        assert "c shows the messages, which can be selected" in last(screen)


def test_browser_refuses_options_that_do_not_fit(
    run: Run, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from memctl.commands import browse as command

    monkeypatch.setattr(command, "_require_terminal", lambda **_: None)
    fails(run("browse", store, "--max-delete", "3"), 2, "--max-delete needs --write")
    fails(run("browse", store, "--write", "--max-delete", "x"), 2, "is not a valid limit")
    fails(run("browse", "-", "--write"), 2, "stdin cannot be changed")
