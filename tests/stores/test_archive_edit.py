"""Archives that are edited: what is copied, what changes, and how often the file is read."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator, Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from memctl.errors import Unavailable
from memctl.model import PAGE_BYTES, Change, Edit, Memory, MemoryKey, StoredMessage, WriteResult
from memctl.registry import make_store, parse
from memctl.selection import Selection
from memctl.store import OpenMode, Store
from memctl.stores.archive import store as archive
from memctl.stores.archive.write import EditedArchive
from tests.stores.archives import ENDINGS, entries, entry, page, write
from tests.support.files import last_change
from tests.support.places import edited

KEYS = [MemoryKey(f"u{number}", "s") for number in range(6)]


def store_of(path: Path) -> Store:
    return make_store(parse(str(path)), OpenMode.CHANGE)


def gone(*found: StoredMessage) -> list[Change]:
    return [Change(one.id, one.marks) for one in found]


def put(one: StoredMessage, after: str | None = None) -> Change:
    return Change(one.id, None, one.marks, one.message, after, one.position)


def edit_of(key: MemoryKey, changes: Iterable[Change], **about: Any) -> Edit:
    return Edit(Memory(key, **about), list(changes))


async def read(path: Path) -> dict[MemoryKey, tuple[Memory, list[StoredMessage]]]:
    found: dict[MemoryKey, tuple[Memory, list[StoredMessage]]] = {}
    async with make_store(parse(str(path))) as store:
        async for one in store.read(Selection()):
            found.setdefault(one.memory.key, (one.memory, []))[1].extend(one.messages)
    return found


async def ids(path: Path) -> dict[MemoryKey, list[str]]:
    return {key: [one.id for one in some] for key, (_, some) in (await read(path)).items()}


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[EditedArchive]:
    """The passes that are made over archives."""
    made: list[EditedArchive] = []

    class Counted(EditedArchive):
        def __init__(self, *about: Any) -> None:
            super().__init__(*about)
            made.append(self)

    monkeypatch.setattr(archive, "EditedArchive", Counted)
    return made


@pytest.mark.parametrize("ending", ENDINGS)
async def test_archive_edit_one_pass_for_all_memories(
    tmp_path: Path, passes: list[EditedArchive], ending: str
) -> None:
    path = tmp_path / f"a.{ending}"
    await write(path, *(page(entries(5), key) for key in KEYS))
    async with store_of(path) as store:
        edits = [edit_of(key, gone(*entries(2))) for key in KEYS[1:5]]
        results = await edited(store, *edits)
        assert results == [WriteResult(key, deleted=2) for key in KEYS[1:5]]
    assert len(passes) == 1
    found = await ids(path)
    assert list(found) == KEYS
    assert found[KEYS[0]] == found[KEYS[5]] == [f"m{number}" for number in range(5)]
    assert all(found[key] == ["m2", "m3", "m4"] for key in KEYS[1:5])


async def test_archive_edit_edits_in_any_order(tmp_path: Path, passes: list[EditedArchive]) -> None:
    """Each that comes too late for a pass begins another; what was tallied is in the file."""
    path = tmp_path / "a.ndjson"
    await write(path, *(page(entries(3), key) for key in KEYS))
    order = [2, 4, 1, 1, 5, 0]
    changes = [gone(*entries(1)), gone(*entries(1, 1)), gone(*entries(1, 2))]
    edits = [edit_of(KEYS[n], changes[order[:at].count(n)]) for at, n in enumerate(order)]
    counts = []

    async def stream() -> AsyncGenerator[Edit]:
        for one in edits:
            yield one

    async with store_of(path) as store:
        async for result in store.edit(stream()):
            assert result.failure is None
            counts.append(len(await ids(path)))
    assert len(counts) == len(order)
    assert len(passes) == 4
    left = {key: len(some) for key, some in (await ids(path)).items()}
    assert left == {key: 3 - order.count(number) for number, key in enumerate(KEYS)}


async def test_archive_edit_what_is_not_edited_is_copied_as_lines(tmp_path: Path) -> None:
    """Data that this memctl would write differently, or does not know, stays."""
    path = tmp_path / "a.ndjson"
    await write(path, *(page(entries(3), key, summary="s") for key in KEYS[:2]))
    lines = path.read_bytes().splitlines(keepends=True)
    odd = lines[1].replace(
        b'"attributes":{}', b'"attributes":{"note": 1.0, "place":"agent.memory"}'
    )
    strange = lines[2].replace(b'"content"', b'"\\u0063ontent"')
    lines[1:3] = [odd, strange]
    rewritten(path, lines)
    async with store_of(path) as store:
        edits = [edit_of(KEYS[0], gone(*entries(1, 2))), edit_of(KEYS[1], [], summary="t")]
        assert not [result for result in await edited(store, *edits) if result.failure]
    after = path.read_bytes().splitlines(keepends=True)
    assert after[1:4] == [odd, strange, lines[3]]
    async with store_of(path) as store:
        await edited(store, edit_of(KEYS[0], [], summary="t"))
    after = path.read_bytes().splitlines(keepends=True)
    memory = json.loads(after[1])["memory"]
    assert memory == json.loads(odd)["memory"] | {"summary": "t"}
    assert (await read(path))[KEYS[0]][0].place == "agent.memory"


def rewritten(path: Path, lines: list[bytes]) -> None:
    """Put other lines into an archive, whose end stays right."""

    end = json.loads(lines[-1])
    end["end"]["digest"] = f"sha256:{sha256(b''.join(lines[:-1])).hexdigest()}"
    lines[-1] = json.dumps(end).encode() + b"\n"
    path.write_bytes(b"".join(lines))


async def test_archive_edit_memory_stays_when_its_messages_go(tmp_path: Path) -> None:
    path = tmp_path / "a.ndjson"
    about: dict[str, Any] = {"summary": "s", "ttl": 9.5, "place": "agent.memory"}
    part = MemoryKey("u", "s", "agent.memory")
    await write(path, page(entries(3), part, **about), page(entries(3), KEYS[0]))
    async with store_of(path) as store:
        [result] = await edited(store, edit_of(part, gone(*entries(3))))
        assert result == WriteResult(part, deleted=3)
        infos = {info.key: info.messages async for info in store.list_memories(Selection())}
        assert infos == {part: 0, KEYS[0]: 3}
    memory, found = (await read(path))[part]
    assert (memory, memory.place, found) == (Memory(part, **about), "agent.memory", [])


@pytest.mark.parametrize("large", [False, True])
async def test_archive_edit_failures_harm_no_other_memory(tmp_path: Path, large: bool) -> None:
    """Large ones wait on the disk until it is sure that all changes fit."""
    path = tmp_path / "a.ndjson.zst"
    content = "l" * (PAGE_BYTES // 20 if large else 1)
    some = [entry(f"m{number}", content=content) for number in range(50)]
    await write(path, *(page(some, key) for key in KEYS))
    missing = MemoryKey("nobody", "s")
    bad = gone(entry("m60"))
    async with store_of(path) as store:
        edits = [
            edit_of(KEYS[0], gone(*some[:9])),
            Edit(Memory(KEYS[1]), gone(*some[:9]), 0, False),
            Edit(Memory(KEYS[1]), bad, 9),
            edit_of(missing, bad),
            Edit(Memory(KEYS[2]), [], summary="another"),
            edit_of(KEYS[3], [put(entry("new", content=content)), *gone(*some[-9:])]),
        ]
        results = await edited(store, *edits)
    failed = {result.key: result.failure.code for result in results if result.failure}
    assert failed == dict.fromkeys([KEYS[1], missing, KEYS[2]], "changed")
    found = {key: len(one) for key, one in (await ids(path)).items()}
    assert found == dict(zip(KEYS, [41, 50, 50, 42, 50, 50], strict=True))
    assert os.listdir(tmp_path) == ["a.ndjson.zst"]


async def test_archive_edit_where_nothing_changes_the_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.ndjson"
    await write(path, page(entries(3), KEYS[0], summary="s"))
    before = last_change(path)
    async with store_of(path) as store:
        results = await edited(
            store,
            edit_of(KEYS[0], [], summary="s"),
            edit_of(KEYS[1], []),
            edit_of(KEYS[2], gone(entry("a"))),
        )
    assert [bool(result.failure) for result in results] == [False, False, True]
    assert last_change(path) == before


async def test_archive_edit_memories_made_anew_come_last(tmp_path: Path) -> None:
    path = tmp_path / "a.ndjson"
    await write(path, page(entries(2), KEYS[0]), page(entries(2), KEYS[1]))
    async with store_of(path) as store:
        new = edit_of(KEYS[2], [put(entry("a", "x")), put(entry("b"))], summary="s", ttl=5.0)
        results = await edited(store, edit_of(KEYS[0], gone(*entries(1))), new)
        assert results == [WriteResult(KEYS[0], deleted=1), WriteResult(KEYS[2], written=2)]
    found = await read(path)
    assert list(found) == KEYS[:3]
    assert found[KEYS[2]] == (Memory(KEYS[2], "s", 5.0), [entry("a", "x"), entry("b")])


async def test_archive_edit_another_program_that_writes_meanwhile_wins(tmp_path: Path) -> None:
    path = tmp_path / "a.ndjson"
    await write(path, page(entries(3), KEYS[0]))
    async with store_of(path) as store:
        other = path.read_bytes()
        path.write_bytes(other)
        os.utime(path, (1, 1))
        with pytest.raises(Unavailable, match="changed"):
            await edited(store, edit_of(KEYS[0], gone(*entries(1))))
    assert path.read_bytes() == other
