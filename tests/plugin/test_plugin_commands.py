"""The commands on a store that defines no more than SimpleStore asks for: all by the defaults."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from typer.testing import Result

from memctl.model import Edit, Memory, MemoryKey, Page, StoredMessage, WriteMode
from memctl.registry import make_store, parse
from memctl.selection import Selection
from memctl.store import OpenMode, Store
from memctl.testing import samples
from memctl.testing.drive import ALL, marked, pages, read, stream
from memctl.testing.samples import sample
from tests.plugin.conftest import DISTRIBUTION
from tests.support.cli import fails, fill, report
from tests.support.processes import wait_until

Run = Callable[..., Result]
KEYS = [samples.key(number) for number in range(40)]
Contents = dict[MemoryKey, list[StoredMessage]]


@pytest.fixture
def lines(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store of the plugin with two memories of ten messages."""
    request.getfixturevalue("plugin")
    text = str(tmp_path / "m.lines")
    asyncio.run(fill(text, {key: samples.entries(10) for key in KEYS[:2]}))
    return text


def contents(text: str) -> Contents:
    """Return the messages of each memory."""

    async def look() -> Contents:
        async with make_store(parse(text)) as store:
            return {key: one.entries for key, one in (await read(store)).items()}

    return asyncio.run(look())


@pytest.mark.slow
def test_plugin_delete_takes_the_marked_messages_and_undo_restores_them(
    run: Run, lines: str
) -> None:
    before = contents(lines)
    done = report(run("delete", lines, "--mark", "hint", "--yes", "--json"))
    assert done["messages"]["deleted"] > 0
    assert all("hint" not in one.marks for some in contents(lines).values() for one in some)
    assert run("undo", "--yes").exit_code == 0
    assert contents(lines) == before


@pytest.mark.slow
def test_plugin_mark_adds_and_undo_removes(run: Run, lines: str) -> None:
    before = contents(lines)
    assert run("mark", "add", lines, "seen", "--session", KEYS[0].session).exit_code == 0
    after = contents(lines)
    assert all(one.marks[-1] == "seen" for one in after[KEYS[0]])
    assert after[KEYS[1]] == before[KEYS[1]]
    assert run("undo", "--yes").exit_code == 0
    assert contents(lines) == before


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["mark", "message", "replace"])
def test_plugin_compress_summarizes_and_undo_restores(run: Run, lines: str, mode: str) -> None:
    before = contents(lines)
    words = ("compress", lines, "--mode", mode, "--keep-recent", "2", "--trigger-tokens", "0")
    done = report(run(*words, "--yes", "--json"))
    assert done["memories"]["written"] == 2
    assert contents(lines) != before
    assert run("undo", "--yes").exit_code == 0
    assert contents(lines) == before


@pytest.mark.slow
def test_plugin_doctor_repairs_messages_and_names_damage(run: Run, lines: str) -> None:
    def codes() -> set[str]:
        found = run("doctor", lines, "--json")
        return {one["code"] for one in json.loads(found.stdout)["findings"]}

    assert run("mark", "add", lines, "compressed", "--mark", "considered").exit_code == 0
    assert "compressed-without-summary" in codes()
    before = contents(lines)
    assert run("doctor", lines, "--repair", "--yes").exit_code in (0, 6)
    assert "compressed-without-summary" not in codes()
    assert run("undo", "--yes").exit_code == 0
    assert contents(lines) == before
    file = sorted(Path(lines).glob("*.lines"))[0]
    file.write_bytes(file.read_bytes()[:-20])
    found = run("inspect", lines)
    fails(found, 7, "is damaged")
    assert "user0" in found.stdout  # the others are read
    assert "damaged-state" in codes()


def test_plugin_edit_fails_where_another_program_changes_the_memory(lines: str) -> None:
    """A change between the reading and the replacing of an edit stays; the edit is done again."""

    async def race() -> None:
        async with make_store(parse(lines), OpenMode.CHANGE) as store:
            [first, *_] = contents_of = (await read(store))[KEYS[0]].entries
            new = samples.entry("new", 99)
            rival = _Rival(store, KEYS[0], new, len(contents_of))
            store.save = rival.save  # type: ignore[method-assign]
            edit = Edit(Memory(KEYS[0]), [marked(first, "seen")])
            [result] = [one async for one in store.edit(stream([edit]))]
            assert result.failure is None
            assert rival.came
            after = (await read(store))[KEYS[0]].entries
            assert after == [first._replace(marks=("seen",)), *contents_of[1:], new]

    asyncio.run(race())


class _Rival:
    """A rival that adds a message to a memory just before it is saved for the first time."""

    def __init__(self, store: Any, key: MemoryKey, new: StoredMessage, offset: int) -> None:
        self._store, self._save = store, store.save
        self._page = Page(Memory(key), [new], offset)
        self.came = False

    async def save(self, *arguments: Any) -> None:
        if not self.came:
            self.came = True
            self._store.save = self._save

            async def page() -> Any:
                yield self._page

            [result] = [one async for one in self._store.write(page())]
            assert result.failure is None
            self._store.save = self.save
        await self._save(*arguments)


def test_plugin_write_refuses_to_replace_another_version(lines: str) -> None:
    async def replace_twice(store: Store) -> list[str | None]:
        async with aclosing(store.read(Selection(keys=frozenset({KEYS[0]})))) as found:
            there = [page async for page in found]
        assert there[0].memory.version
        memory = there[0].memory
        codes = []
        for number in range(2):
            one = sample(memory.key, samples.entries(number + 1))
            one.memory = memory
            results = store.write(pages([one]), WriteMode.REPLACE)
            [result] = [result async for result in results]
            codes.append(result.failure.code if result.failure else None)
        return codes

    async def look() -> list[str | None]:
        async with make_store(parse(lines), OpenMode.CHANGE) as store:
            return await replace_twice(store)

    assert asyncio.run(look()) == [None, "changed"]
    assert len(contents(lines)[KEYS[0]]) == 1


# As processes


@pytest.fixture
def start(plugin: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start memctl as a process that knows the plugin."""
    paths = [str(plugin), str(DISTRIBUTION), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    started: list[subprocess.Popen[str]] = []

    def call(*words: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "memctl", *map(str, words)]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment)
        started.append(process)
        return process

    yield call
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_plugin_migrate_follows_the_source(
    start: Callable[..., subprocess.Popen[str]], lines: str, tmp_path: Path
) -> None:
    target = str(tmp_path / "copy.lines")
    process = start("migrate", lines, target, "--follow", "--interval", "0.1", "--json")
    count = lambda: sum(map(len, contents(target).values())) if Path(target).exists() else 0  # noqa: E731
    wait_until(lambda: count() == 20)

    async def add() -> None:
        async with make_store(parse(lines), OpenMode.CHANGE) as store:
            one = sample(KEYS[0], [samples.entry("new", 99)])
            [result] = [result async for result in store.write(pages([one], offset=10))]
            assert result.failure is None

    asyncio.run(add())
    wait_until(lambda: count() == 21)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert json.loads(out)["messages"]["written"] >= 21
    assert contents(target) == contents(lines)


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.0, 0.05, 0.15])
def test_plugin_delete_survives_a_kill(
    run: Run,
    start: Callable[..., subprocess.Popen[str]],
    tmp_path: Path,
    delay: float,
) -> None:
    """Each memory is as it was or changed whole; doing it again finishes it, undo restores all."""
    text = str(tmp_path / "m.lines")
    asyncio.run(fill(text, {key: samples.entries(200) for key in KEYS}))
    before = contents(text)
    wanted = {key: [one for one in some if "hint" not in one.marks] for key, some in before.items()}
    state = Path(os.environ["XDG_STATE_HOME"])
    process = start("delete", text, "--mark", "hint", "--yes")
    wait_until(lambda: list(state.rglob("changes-1.ndjson.zst")) or process.poll() is not None)
    time.sleep(delay)
    process.kill()
    process.wait()
    cut = contents(text)
    assert all(cut[key] in (before[key], wanted[key]) for key in KEYS)
    assert run("delete", text, "--mark", "hint", "--yes").exit_code == 0
    assert contents(text) == wanted
    for row in report(run("history", "--json"))["runs"]:
        assert run("undo", row["run"], "--yes").exit_code == 0
    assert contents(text) == before


@pytest.mark.slow
def test_plugin_lock_keeps_a_second_run_away(
    run: Run, start: Callable[..., subprocess.Popen[str]], lines: str
) -> None:
    async def held() -> None:
        async with make_store(parse(lines), OpenMode.CHANGE) as store:
            await store.lock("pid 1 of a test")
            process = start("delete", lines, "--mark", "hint", "--yes")
            _, said = await asyncio.to_thread(process.communicate)
            assert process.returncode == 75
            assert "pid 1 of a test" in said

    asyncio.run(held())
    assert run("delete", lines, "--mark", "hint", "--yes").exit_code == 0


@pytest.mark.slow
def test_plugin_lock_ends_with_a_run_that_wraps_the_store(
    run: Run, start: Callable[..., subprocess.Popen[str]], lines: str, tmp_path: Path
) -> None:
    target = str(tmp_path / "copy.lines")
    assert run("migrate", lines, target).exit_code == 0
    process = start("delete", target, "--mark", "hint", "--yes")
    _, said = process.communicate()
    assert process.returncode == 0, said


def test_plugin_memory_is_found_by_its_names(lines: str) -> None:
    async def look() -> list[MemoryKey]:
        async with make_store(parse(lines)) as store:
            assert not await store.is_empty()
            return [info.key async for info in store.list_memories(ALL)]

    assert sorted(asyncio.run(look())) == sorted(KEYS[:2])


def test_plugin_edit_refuses_a_memory_without_a_version(lines: str) -> None:
    async def look() -> None:
        async with make_store(parse(lines), OpenMode.CHANGE) as store:
            before = (await read(store))[KEYS[0]].entries
            load = store.load  # type: ignore[attr-defined]

            async def forgetful(key: MemoryKey) -> Any:
                found = await load(key)
                return structs.replace(found, memory=replace(found.memory, version=None))

            store.load = forgetful  # type: ignore[attr-defined]
            edit = Edit(Memory(KEYS[0]), [marked(before[0], "seen")])
            [result] = [one async for one in store.edit(stream([edit]))]
            assert result.failure is not None
            assert result.failure.code == "refused"
            assert (await read(store))[KEYS[0]].entries == before

    asyncio.run(look())
