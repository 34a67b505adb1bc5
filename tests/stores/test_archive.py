"""Archives: what is in the file, what is refused, and what a write leaves."""

from __future__ import annotations

import hashlib
import io
import json
import os
from pathlib import Path

import pytest

from memctl.errors import BadData
from memctl.model import Memory, MemoryInfo, MemoryKey, StoredMessage
from memctl.selection import Selection
from memctl.stores.archive.format import ArchiveWriter
from tests.stores.archives import (
    ALL,
    ENDINGS,
    KEY,
    WHEN,
    decompress,
    entries,
    entry,
    page,
    read,
    refusal,
    sealed,
    store_of,
    write,
    write_to,
)

# The file


@pytest.mark.parametrize("ending", ENDINGS)
async def test_archive_what_is_in_the_file(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a.{ending}"
    message = b'{"id":"m", "n":NaN,"s":"\\ud800\\u0000","big":18446744073709551616,"f":1.10}'
    async with store_of(path) as store:
        store.origin = "redis://host/0"
        await write_to(
            store,
            page([StoredMessage("m", message, ("b", "a"))], summary="what was", ttl=12.5),
            page([], MemoryKey("", "e\udcff", "agent.memory")),
            page(
                [StoredMessage("list id", b'{"id": 5}', (), 7), StoredMessage("x", b"{}")],
                MemoryKey("u", "t"),
            ),
        )
    *lines, end = decompress(path).splitlines(keepends=True)
    assert b"".join(lines) == (
        b'{"memctl":"archive","version":1,"created":"2025-03-01T12:00:00+01:00",'
        b'"source":"redis://host/0"}\n'
        b'{"memory":{"user":"u","session":"s","summary":"what was","attributes":{"ttl":12.5}}}\n'
        b'{"message":' + message + b',"marks":["b","a"],"id":"m"}\n'
        b'{"memory":{"user":"","session":"e\\udcff","part":"agent.memory","summary":null,'
        b'"attributes":{}}}\n'
        b'{"memory":{"user":"u","session":"t","summary":null,"attributes":{}}}\n'
        b'{"message":{"id": 5},"marks":[],"id":"list id","index":7}\n'
        b'{"message":{},"marks":[],"id":"x"}\n'
    )
    digest = "sha256:" + hashlib.sha256(b"".join(lines)).hexdigest()
    assert json.loads(end) == {"end": {"memories": 3, "messages": 3, "digest": digest}}
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == [path.name]
    assert await read(path) == [
        (Memory(KEY, "what was", 12.5), [StoredMessage("m", message, ("b", "a"))]),
        (Memory(MemoryKey("", "e\udcff", "agent.memory")), []),
        (
            Memory(MemoryKey("u", "t")),
            [StoredMessage("list id", b'{"id": 5}', (), 7), StoredMessage("x", b"{}")],
        ),
    ]


def test_archive_on_a_stream() -> None:
    stream = io.BytesIO()
    writer = ArchiveWriter(stream, created=WHEN)
    writer.memory(Memory(KEY))
    writer.entries(entries(2))
    writer.finish()
    assert not stream.closed
    lines = stream.getvalue().splitlines()
    assert [next(iter(json.loads(line))) for line in lines] == [
        *("memctl", "memory", "message", "message", "end")
    ]


async def test_archive_messages_of_several_lines(tmp_path: Path) -> None:
    """White space between the tokens of JSON; in its texts a new line is an escape."""
    message = b'{\r\n  "id": "m",\n  "content": "a\\nb"\r}\n'
    await write(tmp_path / "a.ndjson", page([StoredMessage("m", message)]))
    [(_, [found])] = await read(tmp_path / "a.ndjson")
    assert found.message == b'{    "id": "m",   "content": "a\\nb" } '
    assert json.loads(found.message) == json.loads(message)


@pytest.mark.parametrize("ending", ENDINGS)
async def test_archive_same_memories_make_the_same_file(tmp_path: Path, ending: str) -> None:
    paths = [tmp_path / f"{name}.{ending}" for name in "ab"]
    for path in paths:
        await write(path, page(entries(2000)))
    assert paths[0].read_bytes() == paths[1].read_bytes()


@pytest.mark.parametrize("ending", ENDINGS)
async def test_archive_lines_longer_than_a_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    path = tmp_path / f"a.{ending}"
    sizes = [1, 5, 63, 64, 65, 1000, 10_000, 2_000_000, 3]
    written = [entry(f"m{size}", "hint", content="会" * size) for size in sizes]
    await write(path, page(written[:5]), page(written, MemoryKey("u", "t")))
    for block in (64, 1000, 1 << 20):
        monkeypatch.setattr("memctl.stores.archive.read._BLOCK", block)
        assert [found for _, found in await read(path)] == [written[:5], written]
        assert [memory for memory, _ in await read(path, Selection(sessions=frozenset("t")))] == [
            Memory(MemoryKey("u", "t"))
        ]


async def test_archive_catalog(tmp_path: Path) -> None:
    path = tmp_path / "a.ndjson"
    same = [entry("m", "hint"), entry("n"), entry("m"), entry("m")]
    await write(path, page(same, summary="x"), page([], MemoryKey("u", "empty"), ttl=5))
    size = sum(len(one.message) for one in same)
    async with store_of(path) as store:
        assert [info async for info in store.list_memories(ALL)] == [
            MemoryInfo(KEY, 4, size, {"hint": 1}, {"user": 4}, None, None, True, None, 2),
            MemoryInfo(MemoryKey("u", "empty"), summary=False, ttl=5, repeated=0),
        ]
        assert [memory async for memory in store.headers(ALL)] == [
            Memory(KEY, "x"),
            Memory(MemoryKey("u", "empty"), ttl=5),
        ]


# What others wrote


async def test_archive_lines_in_another_order(tmp_path: Path) -> None:
    path = tmp_path / "a.ndjson"
    path.write_bytes(
        sealed(
            b'{ "memory": {"session":"s", "user":"u", "attributes": {"new":1, "ttl":3}}, "x":1}',
            b'{"marks": ["a"], "message": {"id": "1", "f": 1.0, "n": NaN}}',
            b'{"message": {"id": "2", "x": {"marks": ["no"]}}}',
            b'{"message":{"id":"3","x":{"message":1,"marks":["no"]}}}',
            b'{"message":{"id":"4"},"more":[{"marks":[]}],"marks":["b"]}',
            b'{"message":{"id":"5","t":"a\\",\\"marks\\":[\\"no\\"]}"},"marks":["c"],"x":{"marks":1}}',
            b'{"message":{"id":"6"},"index":4,"marks":[]}',
            b'{"message":{"id":"7"} , "marks" : [ "d" ] }',
            messages=7,
        )
    )
    [(memory, found)] = await read(path)
    assert memory == Memory(KEY, None, 3)
    assert [(one.id, one.marks, one.position) for one in found] == [
        *(("1", ("a",), None), ("2", (), None), ("3", (), None), ("4", ("b",), None)),
        *(("5", ("c",), None), ("6", (), 4), ("7", ("d",), None)),
    ]
    assert found[0].message == b'{"id":"1","f":1.0,"n":NaN}'
    assert json.loads(found[4].message)["t"] == 'a","marks":["no"]}'


async def test_archives_of_before(tmp_path: Path) -> None:
    """Until memctl 0.1 a line had an id only where it was not the message's own."""
    path = tmp_path / "a.ndjson"
    path.write_bytes(
        sealed(
            b'{"memory":{"user":"u","session":"s","summary":null,"attributes":{}}}',
            b'{"message":{"id":"1"},"marks":["a"]}',
            b'{"message":{"id":"x","n":NaN},"marks":[],"id":"2"}',
            b'{"message":{"id":"3"},"marks":["b","a"],"index":4}',
            b'{"memory":{"user":"u","session":"t","summary":null,"attributes":{}}}',
            b'{"message":{"id":"1"},"marks":[],"index":null}',
            b'{"message":{"id":"2"},"marks":["a"],"id":"\\ud800","index":18446744073709551616}',
            memories=2,
            messages=5,
        )
    )
    [(_, first), (_, second)] = await read(path)
    assert first == [
        StoredMessage("1", b'{"id":"1"}', ("a",)),
        StoredMessage("2", b'{"id":"x","n":NaN}'),
        StoredMessage("3", b'{"id":"3"}', ("b", "a"), 4),
    ]
    assert second == [
        StoredMessage("1", b'{"id":"1"}'),
        StoredMessage("\ud800", b'{"id":"2"}', ("a",), 18446744073709551616),
    ]


async def test_archive_lines_that_would_swallow_others(tmp_path: Path) -> None:
    """Three lines that make JSON together, and none alone."""
    path = tmp_path / "a.ndjson"
    lines = [
        b'{"memory":{"user":"u","session":"s"}}',
        b'{"message":{"id":"1"},"marks":[],"x":[{}',
        b'{"message":{"id":"2"},"marks":[]}',
        b'{"message":{"id":"3"},"marks":[]}]}',
        b'{"message":{"id":"4"},"marks":[]},{"marks":[]},{"marks":[]}',
    ]
    path.write_bytes(sealed(*lines, messages=4))
    await refusal(path)


@pytest.mark.parametrize(
    "lines",
    [
        [b'{"message":{"id":"1"},"marks":[]}'],
        [b'{"memory":{"user":"u","session":"s"}}', b'{"message":{"id":"1"},"marks":[],"id":5}'],
        [b'{"memory":{"user":"u","session":"s"}}', b'{"message":{"id":"1"},"marks":[],"id":null}'],
        [
            b'{"memory":{"user":"u","session":"s"}}',
            b'{"message":{"id":"1"},"marks":[],"index":""}',
        ],
        [b'{"memory":{"user":"u"}}'],
        [b'{"memory":{"user":"u","session":5}}'],
        [b'{"memory":{"user":"u","session":"s","summary":[]}}'],
        [b'{"memory":{"user":"u","session":"s","attributes":{"ttl":"1"}}}'],
        [b'{"memory":[]}'],
        [b'{"memory":{"user":"u","session":"s"}}'] * 2,
        [b'{"memory":{"user":"u","session":"s"}}', b'{"message":{"id":"1"},"marks":[1]}'],
        [b'{"memory":{"user":"u","session":"s"}}', b'{"message":{"id":"1"},"marks":null}'],
        [b'{"memory":{"user":"u","session":"s"}}', b'{"message":"text","marks":["a"],"x":1} '],
        [b'{"memory":{"user":"u","session":"s"}}', b'{"message":{"id":"1"}'],
        [b'{"memory":{"user":"u","session":"s"}}', b'{"note":"hello"}'],
        [b'{"memory":{"user":"u","session":"s"}}', b""],
        [b'{"memory":{"user":"u","session":"s"}}', b"\xff\xfe"],
    ],
)
async def test_archive_lines_that_are_no_records(tmp_path: Path, lines: list[bytes]) -> None:
    path = tmp_path / "a.ndjson"
    memories = sum(line.startswith(b'{"memory') for line in lines)
    path.write_bytes(sealed(*lines, memories=memories, messages=len(lines) - memories))
    with pytest.raises(BadData):
        await read(path)


@pytest.mark.parametrize("message", [b"[]", b'"text"', b"{}", b'{"id":1}', b'{"id":"1",}', b"{"])
async def test_archive_messages_that_are_none(tmp_path: Path, message: bytes) -> None:
    path = tmp_path / "a.ndjson"
    memory = b'{"memory":{"user":"u","session":"s"}}'
    path.write_bytes(sealed(memory, b'{"message":' + message + b',"marks":[]}'))
    with pytest.raises(BadData):
        await read(path)
