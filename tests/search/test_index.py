"""The index of a store: made and brought up to date by searches, and removed."""

from __future__ import annotations

import asyncio
import os
import resource
import sqlite3
import stat
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import pytest
from typer.testing import Result

from memctl.errors import Unavailable
from memctl.index import folder
from memctl.model import MemoryKey, Page
from memctl.ops.index import Target, update
from memctl.ops.index_builder import BLOCK_MESSAGES
from memctl.ops.search import SearchOptions, search
from memctl.registry import make_store, parse
from memctl.selection import Selection
from memctl.wrappers.wrapper import StoreWrapper
from tests.search.finding import ADA, find, ids, index_files, make, settled, talk
from tests.support.cli import add, fill, report

BOB = MemoryKey("bob", "b-1")
TEXTS = ("the violet umbrella", "a blue kettle", "the umbrella stand")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with two users."""
    return make(tmp_path / "a.db", {ADA: TEXTS, BOB: ["an umbrella for bob"]})


def test_index_is_kept_for_its_owner_alone(store: Path) -> None:
    old = os.umask(0)
    try:
        assert find(store, query="umbrella").index.new == 4
    finally:
        os.umask(old)
    [path] = index_files()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_index_of_a_file_that_did_not_change_needs_no_store(store: Path) -> None:
    settled(store)
    find(store, query="umbrella")
    location = parse(str(store))

    def make_none() -> None:
        raise AssertionError("the store was opened")

    target = Target(location, make_none)  # type: ignore[arg-type]
    found = asyncio.run(search([target], "umbrella", Selection(), SearchOptions()))
    assert len(found.hits) >= 3


def test_index_of_a_file_that_was_just_written_is_looked_at_again(store: Path) -> None:
    """A change within the resolution of the times of files would not show in them."""
    find(store, query="umbrella")
    execute(store, "DELETE FROM message WHERE id LIKE '%m2'")
    assert "m2" not in ids(find(store, query="stand"))


def test_index_has_what_came_since(store: Path) -> None:
    find(store, query="umbrella")
    add(store, ADA, talk(["a quince pie"], 3), 3)
    found = find(store, query="quince")
    assert ids(found)[0] == "m3"
    assert (found.index.new, found.index.messages) == (1, 5)
    assert found.hits[0].position == 4


def test_index_loses_a_memory_that_goes_while_it_is_read(store: Path) -> None:
    """The memory has changed in the outline, and is gone before its messages are read."""
    find(store, query="umbrella")
    execute(store, "DELETE FROM message WHERE id LIKE '%m0'")

    class Losing(StoreWrapper):
        def read(self, where: Selection) -> AsyncGenerator[Page]:
            execute(store, f"DELETE FROM message WHERE session_id = '{ADA.session}'")
            execute(store, f"DELETE FROM session WHERE id = '{ADA.session}'")
            return super().read(where)

    location = parse(str(store))
    target = Target(location, lambda: Losing(make_store(location)))
    found = asyncio.run(search([target], "umbrella", Selection(), SearchOptions()))
    assert ADA not in {hit.key for hit in found.hits}


def execute(path: Path, sql: str) -> None:
    with sqlite3.connect(path) as database:
        database.execute(sql)


def test_index_reads_only_the_memories_that_changed(tmp_path: Path) -> None:
    path = make(
        tmp_path / "a.db",
        {ADA: [f"stone {number}" for number in range(BLOCK_MESSAGES * 3)], BOB: TEXTS},
    )
    assert find(path, query="stone").index.new == BLOCK_MESSAGES * 3 + 3
    add(path, ADA, talk(["a quince pie"], BLOCK_MESSAGES * 3), BLOCK_MESSAGES * 3)
    assert find(path, query="quince").index.new == 1


@pytest.mark.slow
def test_index_loses_what_is_deleted(run: Callable[..., Result], store: Path) -> None:
    assert ids(find(store, query="violet"))[0] == "m0"
    report(run("delete", store, "--id", "m0", "--yes", "--json"))
    assert "violet" not in "".join(hit.snippet for hit in find(store, query="violet").hits)
    assert not any(b"violet" in path.read_bytes() for path in index_files()[0].parent.iterdir())
    run("undo", "--yes")
    assert ids(find(store, query="violet"))[0] == "m0"


def test_index_loses_memories_that_are_gone(store: Path) -> None:
    find(store, query="umbrella")
    with sqlite3.connect(store) as database:
        database.execute("DELETE FROM message WHERE session_id = 'b-1'")
        database.execute("DELETE FROM session WHERE id = 'b-1'")
    found = find(store, query="umbrella")
    assert {hit.key.user for hit in found.hits} == {"ada"}
    assert found.index.messages == 3
    assert b"for bob" not in index_files()[0].read_bytes()


def test_index_has_the_marks_of_now(run: Callable[..., Result], store: Path) -> None:
    find(store, query="umbrella")
    report(run("mark", "add", store, "hint", "--id", "m2", "--json"))
    where = Selection(marks=frozenset({"hint"}))
    assert ids(find(store, query="umbrella", where=where)) == ["m2"]


def test_index_is_gone_when_a_user_is_erased(run: Callable[..., Result], store: Path) -> None:
    find(store, query="umbrella")
    assert run("erase", store, "--user", "ada", "--yes").exit_code == 0
    assert index_files() == []
    assert {hit.key.user for hit in find(store, query="umbrella").hits} == {"bob"}


def test_index_is_gone_however_the_store_was_named(
    run: Callable[..., Result], store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find(store, query="umbrella")
    find(f"sqlite:///{store}", query="umbrella")
    monkeypatch.chdir(store.parent)
    assert run("erase", store.name, "--user", "ada", "--yes").exit_code == 0
    assert index_files() == []


def test_index_is_not_kept_unless_wanted(store: Path) -> None:
    found = find(store, query="umbrella", keep=False)
    assert len(found.hits) >= 3
    assert index_files() == []
    where = Selection(users=frozenset({"bob"}))
    found = find(store, query="umbrella", where=where, keep=False)
    assert (found.index.messages, {hit.key.user for hit in found.hits}) == (1, {"bob"})


@pytest.mark.parametrize("damage", ["header", "middle", "end", "text", "empty", "blocks"])
def test_index_that_is_damaged_is_made_anew(tmp_path: Path, damage: str) -> None:
    texts = [f"umbrella {number} {number * 7919}" for number in range(400)]
    path = settled(make(tmp_path / "a.db", {ADA: texts}))
    find(path, query="umbrella")
    [index] = index_files()
    content = bytearray(index.read_bytes())
    match damage:
        case "header":
            content[:100] = bytes(100)
        case "middle":
            content[8192:-8192] = bytes(len(content) - 16384)
        case "end":
            del content[len(content) // 2 :]
        case "text":
            content[:] = b"not an index at all\n" * 10
        case "empty":
            content.clear()
        case "blocks":
            with sqlite3.connect(index) as database:
                database.execute("UPDATE block SET content = substr(content, 1, 40)")
    if damage != "blocks":
        index.write_bytes(content)
    found = find(path, query="umbrella 237")
    assert "m237" in ids(found)
    if damage != "empty":  # an empty file is an empty database, of no format
        assert any("damaged" in line for line in found.warnings)
    assert not find(path, query="umbrella 237").warnings


def test_index_of_another_format_is_made_anew(store: Path) -> None:
    settled(store)
    find(store, query="umbrella")
    with sqlite3.connect(index_files()[0]) as database:
        database.execute("UPDATE about SET value = 99 WHERE name = 'format'")
    found = find(store, query="umbrella")
    assert (found.index.new, found.warnings) == (4, [])


def test_index_finds_texts_changed_in_place_with_checksum(store: Path) -> None:
    find(store, query="umbrella")
    with sqlite3.connect(store) as database:
        database.execute("UPDATE message SET msg = replace(msg, 'kettle', 'samovar')")
    location = parse(str(store))
    target = Target(location, lambda: make_store(location))
    assert asyncio.run(update(target)).new == 0
    asyncio.run(update(target, checksum=True))
    assert ids(find(store, query="samovar"))[0] == "m1"


@pytest.mark.slow
def test_index_is_made_once_by_two_searches_at_once(tmp_path: Path) -> None:
    texts = [f"umbrella {number}" for number in range(2000)]
    path = make(tmp_path / "a.db", {ADA: texts})
    program = (
        "import sys; from tests.search.finding import find, ids;"
        "found = find(sys.argv[1], query='umbrella 777');"
        "assert 'm777' in ids(found), found; print(found.index.new)"
    )
    started = [
        subprocess.Popen([sys.executable, "-c", program, path], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    news = sorted(int(one.communicate()[0]) for one in started)
    assert news == [0, 0, 2000]
    assert [one.returncode for one in started] == [0, 0, 0]
    assert len(index_files()) == 1


def test_index_lists_and_removes(store: Path) -> None:
    find(store, query="umbrella")
    [info] = folder.indexes()
    assert (info.label, info.kind, info.memories, info.messages) == (str(store), "sqlite", 2, 4)
    assert info.bytes == info.path.stat().st_size
    folder.remove(info)
    assert folder.indexes() == []
    assert not list(info.path.parent.iterdir())


@pytest.mark.slow
def test_index_of_a_message_of_many_megabytes_has_all_of_it(tmp_path: Path) -> None:
    words = " ".join(f"w{number}" for number in range(300_000))
    path = tmp_path / "a.db"
    asyncio.run(fill(str(path), {ADA: talk([f"{words} quince", "umbrella"])}))
    found = find(path, query="quince w299999")
    assert ids(found)[0] == "m0"
    assert "quince" in found.hits[0].snippet


def test_index_leaves_damaged_memories_out(store: Path) -> None:
    with sqlite3.connect(store) as database:
        database.execute("UPDATE message SET msg = 'no json' WHERE id LIKE '%m1'")
    found = find(store, query="umbrella kettle")
    assert "m0" in ids(found)


@pytest.mark.slow
def test_index_is_written_in_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memctl.ops.index_builder._BATCH_BYTES", 10_000)
    texts = [f"umbrella {number} 京都市" for number in range(1000)]
    path = make(tmp_path / "a.db", {ADA: texts, BOB: texts})
    found = find(path, query="umbrella 777", top=2)
    assert set(ids(found)) == {"m777"}
    assert found.index.messages == 2000
    assert [one.name for one in index_files()[0].parent.iterdir()] == [index_files()[0].name]


@pytest.mark.slow
def test_index_says_what_stopped_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memctl.ops.index_builder._BATCH_BYTES", 10_000)
    words = [f"umbrella {number} {number:x} {number:o} " * 10 for number in range(4000)]
    path = make(tmp_path / "a.db", {ADA: words})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, limits[1]))
    try:
        with pytest.raises(Unavailable) as caught:
            find(path, query="umbrella")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.message.startswith("cannot use the index")
    assert "\n" not in caught.value.message
    assert "--no-index" in (caught.value.hint or "")
    assert index_files() == []
