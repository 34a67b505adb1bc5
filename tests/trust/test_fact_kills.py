"""Runs on files of facts that are killed at any moment: each is whole, and the run goes on."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from memctl.model import MemoryKey
from memctl.testing import samples
from tests.support.cli import Run, contents, fill, report
from tests.support.files import texts
from tests.support.processes import start

KEYS = [MemoryKey("ada", ""), MemoryKey("bob", "")]
KILLS = 6


def lines_are_whole(folder: Path) -> None:
    for path in folder.glob("*.jsonl"):
        for line in path.read_bytes().splitlines(keepends=True):
            assert line.endswith(b"\n")
            assert json.loads(line)["unique_id"]


def files_are_whole(folder: Path) -> None:
    for path in folder.glob("vector_store/reme/*.json"):
        assert json.loads(path.read_bytes())["vector_id"] == path.stem


def notes_are_whole(folder: Path) -> None:
    for path in folder.rglob("*.md"):
        front, _, rest = path.read_text().removeprefix("---\n").partition("\n---\n")
        assert "memctl: '{" in front
        assert rest.startswith("message ")


PLACES: dict[str, tuple[str, Callable[[Path], None]]] = {
    "reme-0.2": ("reme:{}?layout=0.2", lines_are_whole),
    "reme-0.3": ("reme:{}?layout=0.3", files_are_whole),
    "vault": ("vault:{}", notes_are_whole),
}


def kept(folder: Path) -> dict[str, bytes]:
    """Return the files of a store, without what a killed run of memctl leaves."""
    return {name: text for name, text in texts(folder).items() if ".memctl-" not in name}


def leftovers(folder: Path) -> list[Path]:
    return [path for path in folder.rglob(".memctl-*") if path.name.endswith(".tmp")]


@pytest.fixture(params=list(PLACES))
def kind(request: pytest.FixtureRequest) -> str:
    """Each store of files."""
    found: str = request.param
    return found


@pytest.mark.slow
def test_migrations_that_are_killed_go_on(run: Run, tmp_path: Path, kind: str) -> None:
    samples.use(samples.Style("fact", frozenset(), dimensions=8))
    written, whole = PLACES[kind]
    source = tmp_path / "a.ndjson"
    vault = f"vault:{tmp_path / 'source'}"
    facts = {key: samples.entries(400, 400 * at) for at, key in enumerate(KEYS)}
    asyncio.run(fill(vault, facts))
    samples.use(samples.Style())
    assert run("export", vault, "-o", source).exit_code == 0
    expected = keyed(str(source))
    began = time.monotonic()
    first = tmp_path / "first"
    assert run("import", source, written.format(first)).exit_code == 0
    takes = time.monotonic() - began + 0.5
    moments = random.Random(kind)
    killed = 0
    for number in range(KILLS):
        folder = tmp_path / f"t{number}"
        target = written.format(folder)
        process = start("import", source, target)
        time.sleep(takes * moments.random())
        process.kill()
        process.communicate()
        killed += process.returncode != 0
        whole(folder)
        assert run("import", source, target).exit_code == 0
        assert keyed(target) == expected
        assert leftovers(folder) == []
    assert killed


def keyed(place: str) -> dict[MemoryKey, dict[str, bytes]]:
    """Return the facts of a place by scope and id."""
    return {key: {one.id: one.message for one in found} for key, found in contents(place).items()}


@pytest.mark.slow
def test_deletions_that_are_killed_are_undone(run: Run, tmp_path: Path, kind: str) -> None:
    samples.use(samples.Style("fact", frozenset(), dimensions=8))
    written, whole = PLACES[kind]
    folder = tmp_path / "t"
    place = written.format(folder)
    asyncio.run(fill(place, {key: samples.entries(400, 400 * at) for at, key in enumerate(KEYS)}))
    samples.use(samples.Style())
    before = kept(folder)
    words = ("delete", place, "--match", "1", "--yes", "--json")
    began = time.monotonic()
    done = report(run(*words))["run"]
    takes = time.monotonic() - began + 0.5
    assert kept(folder) != before
    assert run("undo", done).exit_code == 0
    assert kept(folder) == before
    moments = random.Random(kind)
    killed = 0
    for _ in range(KILLS):
        process = start(*words)
        time.sleep(takes * moments.random())
        process.kill()
        process.communicate()
        killed += process.returncode != 0
        whole(folder)
        if kept(folder) != before:
            [cut, *_] = report(run("history", "--json"))["runs"]
            undone = run("undo", cut["run"])
            assert undone.exit_code == 0, undone.stderr
        assert kept(folder) == before
    assert killed
