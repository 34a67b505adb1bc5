"""Writing into an archive that is there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from memctl.errors import BadData, Unavailable
from memctl.model import Memory, MemoryKey, StoredMessage, WriteMode, WriteResult
from tests.stores.archives import (
    ALL,
    ENDINGS,
    KEY,
    entries,
    page,
    read,
    read_from,
    sealed,
    store_of,
    write,
    write_to,
)


@pytest.mark.parametrize("ending", ENDINGS)
async def test_archive_memories_keep_their_places(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a.{ending}"
    one, two, three, four, five = (MemoryKey("u", str(number)) for number in range(5))
    await write(
        path,
        page(entries(2), one, summary="one", ttl=60.0),
        page(entries(1500), two, summary="two"),
        page(entries(3), three),
    )
    path.chmod(0o640)
    tallies = await write(
        path,
        page(entries(1), five),
        page(entries(5, 3), three, 3, summary="three"),
        page(entries(1, 9), one, 2, ttl=30.0),
        page(entries(1), two, 7),
        page([], four),
    )
    assert [(tally.key, tally.written, tally.failure is None) for tally in tallies] == [
        *((five, 1, True), (three, 5, True), (one, 1, True), (two, 0, False), (four, 0, True))
    ]
    assert await read(path) == [
        (Memory(one, "one", 30.0), [*entries(2), *entries(1, 9)]),
        (Memory(two, "two"), entries(1500)),
        (Memory(three, "three"), entries(8)),
        (Memory(five), entries(1)),
        (Memory(four), []),
    ]
    assert path.stat().st_mode & 0o777 == 0o640
    tallies = await write(
        path,
        page(entries(2), two),
        page([], three),
        page(entries(1), KEY),
        mode=WriteMode.REPLACE,
    )
    assert tallies == [WriteResult(two, 2, 1500), WriteResult(three, 0, 8), WriteResult(KEY, 1)]
    assert [(memory, len(found)) for memory, found in await read(path)] == [
        *((Memory(one, "one", 30.0), 3), (Memory(two, "two"), 2), (Memory(three, "three"), 0)),
        *((Memory(five), 1), (Memory(four), 0), (Memory(KEY), 1)),
    ]
    assert os.listdir(tmp_path) == [path.name]


async def test_archive_lines_of_others_survive_a_merge(tmp_path: Path) -> None:
    path = tmp_path / "a.ndjson"
    path.write_bytes(
        sealed(
            b'{"memory":{"user":"u","session":"s"}}',
            b'{"marks": ["a"], "message": {"id": "1", "f": 1.50}}',
        )
    )
    await write(path, page(entries(1), offset=1))
    assert b'{"marks": ["a"], "message": {"id": "1", "f": 1.50}}\n' in path.read_bytes()
    assert [one.id for one in (await read(path))[0][1]] == ["1", "m0"]


async def test_archive_file_is_not_touched_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.ndjson"
    [tally] = await write(path, page(entries(1), offset=4))
    assert tally.failure
    assert not path.exists()
    await write(path)
    assert await read(path) == [], "an archive of no memories is one"
    await write(path, page(entries(1)))
    before = path.stat()
    await write(path)
    [tally] = await write(path, page(entries(1), offset=4))
    assert tally.failure
    assert path.stat() == before
    assert os.listdir(tmp_path) == [path.name]


async def test_archive_memory_that_comes_twice(tmp_path: Path) -> None:
    path = tmp_path / "a.ndjson"
    for there in (0, 1):
        tallies = await write(path, page(entries(1), offset=there), page(entries(1), offset=there))
        assert [tally.failure and tally.failure.code for tally in tallies] == [None, "changed"]


@pytest.mark.parametrize("there", [False, True])
async def test_archive_message_that_is_no_json(tmp_path: Path, there: bool) -> None:
    path = tmp_path / "a.ndjson.gz"
    if there:
        await write(path, page(entries(1)))
    before = os.listdir(tmp_path)
    with pytest.raises(BadData):
        await write(path, page([*entries(1), StoredMessage("bad", b"{")], MemoryKey("u", "t")))
    assert os.listdir(tmp_path) == before


@pytest.mark.parametrize("there", [False, True])
async def test_archive_another_program_was_faster(tmp_path: Path, there: bool) -> None:
    path = tmp_path / "a.ndjson"
    if there:
        await write(path, page(entries(1)))
    async with store_of(path) as store:
        await write(path, page(entries(1), MemoryKey("u", "other")))
        with pytest.raises(Unavailable, match="another program"):
            await write_to(store, page(entries(1), MemoryKey("u", "t")))
    assert MemoryKey("u", "other") in {memory.key for memory, _ in await read(path)}
    assert os.listdir(tmp_path) == [path.name]


async def test_archive_reading_on_while_the_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.ndjson.zst"
    await write(path, page(entries(1500)), page(entries(1500), MemoryKey("u", "t")))
    async with store_of(path) as store:
        pages = store.read(ALL)
        found = [await anext(pages)]
        await write_to(store, page(entries(1)), mode=WriteMode.REPLACE)
        found += [some async for some in pages]
        assert sum(len(some.messages) for some in found) == 3000
        assert sum(len(found) for _, found in await read_from(store)) == 1501


async def test_archive_behind_a_link(tmp_path: Path) -> None:
    folder = tmp_path / "real"
    folder.mkdir()
    path, link = folder / "a.ndjson", tmp_path / "link.ndjson"
    link.symlink_to(path)
    await write(link, page(entries(1)))
    await write(link, page(entries(1, 1), offset=1))
    assert link.is_symlink()
    assert await read(path) == [(Memory(KEY), entries(2))]
