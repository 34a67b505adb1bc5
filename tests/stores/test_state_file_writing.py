"""Writing into a state_dict or a session state."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from memctl.errors import Unavailable
from memctl.model import PAGE_ENTRIES, Memory, MemoryKey, Page, WriteMode, WriteResult
from tests.stores.states import (
    KEY,
    dump,
    entry,
    load,
    message,
    only,
    store_of,
    write,
)


async def test_state_new_file_is_a_state_dict(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    tally = await write(path, [entry("a", "x", "y"), entry("b")], summary="é")
    assert tally == WriteResult(KEY, 2)
    assert load(path) == {
        "_compressed_summary": "é",
        "content": [[message("a"), ["x", "y"]], [message("b"), []]],
    }
    assert path.stat().st_mode & 0o777 == 0o600


async def test_state_new_file_may_hold_its_memory_inside(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    await write(path, [entry("a")], path="agent.memory")
    await write(path, [entry("b")], key=KEY._replace(part="agent.other"))
    await write(path, [entry("c")], key=KEY._replace(part="third"), summary="s")
    memory = {"_compressed_summary": "", "content": [[message("a"), []]]}
    assert load(path) == {
        "agent": {"memory": memory, "other": {**memory, "content": [[message("b"), []]]}},
        "third": {"_compressed_summary": "s", "content": [[message("c"), []]]},
    }
    tally = await write(path, [entry("d")])
    assert tally.failure is not None
    assert tally.failure.code == "bad-name"
    assert "--path" in tally.failure.message


STATES = [
    ('{"_compressed_summary": "s", "content": [OLD]}', "s"),
    ('{ "content" : [ OLD ] ,\n "_compressed_summary":"\\u0073"}', "s"),
    ('{"a": [1.50, "\\u00e9"], "agent": {"memory": {"content": [OLD\n]}, "é": NaN}, "z":{}}', ""),
    ('\ufeff\n{"agent": {"x": {"content": [OLD], "more": 1e5}}}\n', ""),
]


@pytest.mark.parametrize(("state", "summary"), STATES)
@pytest.mark.parametrize("held", [1, 3])
async def test_state_rest_of_a_document_stays(
    tmp_path: Path, state: str, summary: str, held: int
) -> None:
    path = tmp_path / "m.json"
    old = " , ".join(json.dumps([message(str(n)), []]) for n in range(held))
    before, after = (part.encode() for part in state.split("OLD"))
    path.write_bytes(before + old.encode() + after)
    path.chmod(0o640)
    added = entry("new", "m", content="ü")

    assert (await write(path, [], offset=held, summary=None)).failure is None
    assert path.read_bytes() == before + old.encode() + after

    assert await write(path, [added], offset=held) == WriteResult(KEY, 1)
    text = path.read_bytes()
    assert text.startswith(before + old.encode())
    assert text.endswith(after.lstrip())
    assert [one.id for one in (await only(path))[1]] == [*map(str, range(held)), "new"]
    assert (await only(path))[0] == summary
    assert path.stat().st_mode & 0o777 == 0o640

    assert await write(path, [added], mode=WriteMode.REPLACE) == WriteResult(KEY, 1, held + 1)
    assert (await only(path))[1] == [added]
    text = path.read_bytes()
    assert text.startswith(before.rstrip())
    assert text.endswith(after.lstrip())

    await write(path, offset=1, summary="other")
    assert await only(path) == ("other", [added])
    assert await write(path, mode=WriteMode.REPLACE) == WriteResult(KEY, 0, 1)
    assert await only(path) == ("other", [])


async def test_state_summary_alone_gets_no_content(tmp_path: Path) -> None:
    """Beside SQL or Redis memory: see ``memctl.wrappers.summaries``."""
    path = tmp_path / "m.json"
    path.write_bytes(b'{"memory": {"_compressed_summary": "old"}, "x": 1}')
    await write(path, summary="new", mode=WriteMode.REPLACE)
    assert path.read_bytes() == b'{"memory": {"_compressed_summary": "new"}, "x": 1}'
    path.write_bytes(b'{"memory": {}, "x": 1}')
    await write(path, summary="new")
    assert path.read_bytes() == b'{"memory": {"_compressed_summary": "new"}, "x": 1}'
    path.write_bytes(b'{"x": 1}')
    await write(path, summary="new")
    assert path.read_bytes() == b'{"x": 1, "memory": {"_compressed_summary": "new"}}'
    await write(path, [entry("a")])
    assert load(path)["memory"] == {"_compressed_summary": "new", "content": [[message("a"), []]]}


@pytest.mark.parametrize(
    ("state", "options", "code"),
    [
        ({"content": [message("a")]}, {}, "changed"),
        ({"memory": 5}, {}, "bad-name"),
        ({"memory": {"x": []}}, {"path": "memory.x.y"}, "bad-name"),
        ({}, {"path": "a..b"}, "bad-name"),
        ([], {}, "refused"),
        (None, {}, "refused"),
    ],
)
async def test_state_what_cannot_be_written_is_left_alone(
    tmp_path: Path, state: Any, options: dict[str, str], code: str
) -> None:
    path = tmp_path / "m.json"
    path.write_bytes(b'{"memory": {' if state is None else dump(state))
    before = path.read_bytes()
    tally = await write(path, [entry("b")], **options)
    assert tally.failure is not None
    assert tally.failure.code == code
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["m.json"]


async def test_state_empty_list_is_filled(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    path.write_bytes(b'{"x": {"_compressed_summary": "", "content": [ ]}}')
    await write(path, [entry("a"), entry("b")])
    assert [one.id for one in (await only(path))[1]] == ["a", "b"]


async def test_state_one_session_alone(tmp_path: Path) -> None:
    path = tmp_path / "m.json"

    async def pages() -> AsyncGenerator[Page]:
        yield Page(Memory(KEY), [entry("a")])
        yield Page(Memory(MemoryKey("u", "t")), [entry("b")])
        yield Page(Memory(KEY), [entry("c")], 1)

    async with store_of(path, create=True) as store:
        tallies = [tally async for tally in store.write(pages())]
    failures = [(tally.key.session, tally.failure.code) for tally in tallies if tally.failure]
    assert failures == [("t", "bad-name")]
    assert len(tallies) == 3
    assert [one.id for one in (await only(path))[1]] == ["a", "c"]


async def test_state_interrupted_write_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    await write(path, [entry("a")])
    before = path.read_bytes()

    async def pages(error: BaseException) -> AsyncGenerator[Page]:
        yield Page(Memory(KEY), [entry("b")] * PAGE_ENTRIES, 1, last=False)
        assert len(os.listdir(tmp_path)) == 2
        raise error

    for error in (Unavailable("gone"), asyncio.CancelledError()):
        async with store_of(path, create=True) as store:
            with pytest.raises(type(error)):
                async for _ in store.write(pages(error)):
                    pass
        assert os.listdir(tmp_path) == ["m.json"]
        assert path.read_bytes() == before


async def test_state_who_writes_meanwhile_wins(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    await write(path, [entry("a")])

    async def pages() -> AsyncGenerator[Page]:
        yield Page(Memory(KEY), [entry("b")], 1, last=False)
        path.write_bytes(b'{"content": []}')
        yield Page(Memory(KEY), [entry("c")], 2)

    async with store_of(path, create=True) as store:
        [tally] = [tally async for tally in store.write(pages())]
    assert tally.failure is not None
    assert tally.failure.code == "changed"
    assert path.read_bytes() == b'{"content": []}'


async def test_state_link_stays_a_link(tmp_path: Path) -> None:
    target = tmp_path / "target.json"
    target.write_bytes(b'{"content": []}')
    link = tmp_path / "m.json"
    link.symlink_to(target)
    await write(link, [entry("a")])
    assert link.is_symlink()
    assert [one.id for one in (await only(target))[1]] == ["a"]
    async with store_of(link) as one, store_of(target) as other:
        assert await one.identity() == await other.identity()
