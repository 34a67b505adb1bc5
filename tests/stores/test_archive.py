"""Archives: what is in the file, what is refused, and what a write leaves."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from memctl.errors import BadData, NotFound, Unavailable
from memctl.model import Memory, MemoryInfo, MemoryKey, StoredMessage, WriteMode, WriteResult
from memctl.selection import Selection
from memctl.stores.archive.format import ArchiveWriter
from tests.stores.archives import (
    ALL,
    ENDINGS,
    KEY,
    WHEN,
    compress,
    decompress,
    entries,
    entry,
    page,
    read,
    read_from,
    refusal,
    sealed,
    store_of,
    write,
    write_to,
)
from tests.support.cli import fails, report
from tests.support.files import last_change

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


@pytest.mark.slow
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


@pytest.mark.parametrize(
    "line",
    [
        b'{"marks": ["a"], "message": {"id": "1", "f": 1.0, "n": NaN}}',
        b'{"message":{"id":"2","x":{"marks":["no"]}}}',
        b'{"message":{"id":"3","x":{"message":1,"marks":["no"]}}}',
        b'{"message":{"id":"4"},"more":[{"marks":[]}],"marks":["b"]}',
        b'{"message":{"id":"5"},"marks":["c"],"id":"5","x":{"marks":1}}',
        b'{"message":{"id":"6"},"index":4,"marks":[]}',
        b'{"message":{"id":"7"} , "marks" : [ "d" ] }',
        b'{"message":{"id":"8"},"marks":["e"]}',
        b'{"message":{"id":"9"},"marks":["f",1],"id":"9"}',
        b'{"message":{"id":"10"},"marks":[],"id":"10","index":"1"}',
    ],
)
async def test_archive_lines_that_memctl_does_not_write(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "a.ndjson"
    good = b'{"message":{"id":"0"},"marks":[],"id":"0"}'
    path.write_bytes(sealed(b'{"memory":{"user":"u","session":"s"}}', good, line, messages=2))
    assert "line 4 is not a record of an archive" in (await refusal(path)).message


async def test_archive_lines_with_all_their_fields(tmp_path: Path) -> None:
    path = tmp_path / "a.ndjson"
    path.write_bytes(
        sealed(
            b'{"memory":{"session":"s","user":"u","attributes":{"new":1,"ttl":3}},"x":1}',
            b'{"message":{"id":"1","t":"a\\",\\"marks\\":[\\"no\\"]}"},"marks":["c"],"id":"1"}',
            b'{"message":{"id":"x","n":NaN},"marks":[],"id":"2"}',
            b'{"message":{"id":"3"},"marks":["b","a"],"id":"3","index":4}',
            b'{"message":{},"marks":["a"],"id":"\\ud800","index":18446744073709551616,"shape":"z"}',
            messages=4,
        )
    )
    [(memory, found)] = await read(path)
    assert memory == Memory(KEY, None, 3)
    assert json.loads(found[0].message)["t"] == 'a","marks":["no"]}'
    assert found[1:] == [
        StoredMessage("2", b'{"id":"x","n":NaN}'),
        StoredMessage("3", b'{"id":"3"}', ("b", "a"), 4),
        StoredMessage("\ud800", b"{}", ("a",), 18446744073709551616, "z"),
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
    results = await write(
        path,
        page(entries(1), five),
        page(entries(5, 3), three, 3, summary="three"),
        page(entries(1, 9), one, 2, ttl=30.0),
        page(entries(1), two, 7),
        page([], four),
    )
    assert [(result.key, result.written, result.failure is None) for result in results] == [
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
    results = await write(
        path,
        page(entries(2), two),
        page([], three),
        page(entries(1), KEY),
        mode=WriteMode.REPLACE,
    )
    assert results == [WriteResult(two, 2, 1500), WriteResult(three, 0, 8), WriteResult(KEY, 1)]
    assert [(memory, len(found)) for memory, found in await read(path)] == [
        *((Memory(one, "one", 30.0), 3), (Memory(two, "two"), 2), (Memory(three, "three"), 0)),
        *((Memory(five), 1), (Memory(four), 0), (Memory(KEY), 1)),
    ]
    assert os.listdir(tmp_path) == [path.name]


async def test_archive_file_is_not_touched_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.ndjson"
    [result] = await write(path, page(entries(1), offset=4))
    assert result.failure
    assert not path.exists()
    await write(path)
    assert await read(path) == [], "an archive of no memories is one"
    await write(path, page(entries(1)))
    before = last_change(path)
    await write(path)
    [result] = await write(path, page(entries(1), offset=4))
    assert result.failure
    assert last_change(path) == before
    assert os.listdir(tmp_path) == [path.name]


async def test_archive_memory_that_comes_twice(tmp_path: Path) -> None:
    path = tmp_path / "a.ndjson"
    for there in (0, 1):
        results = await write(path, page(entries(1), offset=there), page(entries(1), offset=there))
        assert [result.failure and result.failure.code for result in results] == [None, "changed"]


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


@pytest.mark.parametrize("ending", ENDINGS)
async def test_archives_that_are_cut_off(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a.{ending}"
    found = [entry(f"m{n}", content=hashlib.sha512(b"%d" % n).hexdigest()) for n in range(40)]
    await write(path, page(found[:20]), page(found[20:], MemoryKey("u", "t")))
    whole = path.read_bytes()
    end = len(whole) - 1
    for size in [*range(0, end, max(1, end // 97)), end - 1]:
        path.write_bytes(whole[:size])
        error = await refusal(path)
        assert "cut off" in error.message or "is not an archive" in error.message
    path.write_bytes(whole)
    assert len(await read(path)) == 2


async def test_archive_how_far_a_cut_archive_goes(tmp_path: Path) -> None:
    path = tmp_path / "a.ndjson"
    await write(path, page(entries(3)), page(entries(3), MemoryKey("u", "t")))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:7]))
    assert "after 2 memories, 4 messages" in (await refusal(path)).message
    path.write_bytes(b"".join(lines[:7]) + lines[7][:-5])
    assert "after 2 memories, 4 messages" in (await refusal(path)).message


@pytest.mark.parametrize("ending", ENDINGS)
async def test_archives_that_were_changed(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a.{ending}"
    await write(path, page(entries(3)), page(entries(3), MemoryKey("u", "t")))
    text = decompress(path)
    lines = text.splitlines(keepends=True)
    for changed in (
        text.replace(b"m2", b"m9"),
        text.replace(b'"source":null', b'"source":""'),
        b"".join([*lines[:2], *lines[3:]]),
        b"".join([*lines[:2], lines[3], lines[2], *lines[4:]]),
        text.replace(b'"messages":6', b'"messages":5'),
        text + lines[-1],
        text + b"\n",
    ):
        assert changed != text
        path.write_bytes(compress(ending, changed))
        await refusal(path)


@pytest.mark.parametrize("ending", ["ndjson.gz", "ndjson.zst"])
async def test_archive_compressed_data_that_is_damaged(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a.{ending}"
    await write(path, page(entries(500)))
    whole = path.read_bytes()
    for at in range(0, len(whole), max(1, len(whole) // 61)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        try:
            assert await read(path) == [(Memory(KEY), entries(500))], "a byte without meaning"
        except BadData:
            await refusal(path)


def limit(monkeypatch: pytest.MonkeyPatch, **limits: int) -> None:
    """Lower the limits of reading and writing."""
    for module in ("read", "format"):
        for name, value in limits.items():
            monkeypatch.setattr(
                f"memctl.stores.archive.{module}.LARGEST_{name}", value, raising=False
            )
    monkeypatch.setattr("memctl.stores.archive.read._BLOCK", 64)


@pytest.mark.parametrize("ending", ENDINGS)
async def test_archive_message_larger_than_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    path = tmp_path / f"a.{ending}"
    limit(monkeypatch, MESSAGE=20_000, RECORD=1000, REST=400)
    written = [entry(f"m{size}", "hint", content="会" * size) for size in (1, 180, 3000, 3)]
    await write(path, page(written))
    assert await read(path) == [(Memory(KEY), written)]
    content = decompress(path)
    path.write_bytes(compress(ending, content.replace(b"\\u4f1a\\u4f1a", b"\\u4f1a\\u4f1b", 2000)))
    assert "digest" in (await refusal(path)).message


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize(
    ("begin", "said"),
    [
        (b"", "line 2 is not a record of an archive (it is larger than"),
        (
            b'{"memory":{"user":"u","session":"',
            "line 2 is not a record of an archive (it is larger",
        ),
        (b'{"memory":{"user":"u","session":"s"}}\n{"message":{"id":"', "line 3 is not a record of"),
    ],
)
async def test_archive_line_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, begin: bytes, said: str
) -> None:
    path = tmp_path / f"a.{ending}"
    path.write_bytes(compress(ending, sealed(begin + b" " * 3000)))
    limit(monkeypatch, MESSAGE=2000, RECORD=1000, REST=400)
    assert said in (await refusal(path)).message


async def test_archive_what_is_too_large_for_one_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.ndjson"
    limit(monkeypatch, MESSAGE=3000, RECORD=2000, REST=400)
    monkeypatch.setattr("memctl.stores.archive.format._LARGE", 1000)
    too_large = [
        page([entry("m", content="x" * 3000)]),
        page([entry("m", "y" * 400, content="x" * 1000)]),
        page([], summary="x" * 2000),
    ]
    for one in too_large:
        with pytest.raises(BadData, match="too large for an archive"):
            await write(path, page(entries(1), MemoryKey("u", "t")), one)
        assert not os.listdir(tmp_path)


async def test_archive_zstd_with_a_large_window_is_refused(tmp_path: Path) -> None:
    """A frame of a few bytes could else ask for gigabytes of memory."""
    path = tmp_path / "a.ndjson.zst"
    await write(path, page(entries(3)))
    frame = bytearray(path.read_bytes())
    assert frame[4] & 0x20 == 0, "the frame has a window descriptor"
    for window_log, accepted in ((27, True), (28, False), (41, False)):
        frame[5] = (window_log - 10) << 3
        path.write_bytes(frame)
        if accepted:
            assert await read(path) == [(Memory(KEY), entries(3))]
        else:
            await refusal(path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"{}",
        b'{"memctl":"archive"}\n',
        b'{"memctl":"other","version":1}\n',
        b'[["memctl", "archive"]]\n',
        b'{"_compressed_summary": "", "content": []}',
        b"\x00" * 5_000_000,
        pytest.param(b"{" * 5_000_000, marks=pytest.mark.slow),
        b"BZh91AY&SY",
        gzip.compress(b"hello", mtime=0),
        gzip.compress(b"hello", mtime=0)[:9],
        compress("zst", b"hello"),
        b"\x28\xb5\x2f\xfd\xff\xff\xff",
    ],
)
@pytest.mark.parametrize("ending", ENDINGS)
async def test_archive_what_is_no_archive(tmp_path: Path, ending: str, content: bytes) -> None:
    path = tmp_path / f"a.{ending}"
    path.write_bytes(content)
    await refusal(path)


async def test_archive_of_the_future(tmp_path: Path) -> None:
    path = tmp_path / "a.ndjson"
    path.write_bytes(b'{"memctl":"archive","version":4,"new":true}\n{"whatever":1}\n')
    assert "version 4" in (await refusal(path)).message


async def test_archive_places_that_hold_no_file(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        await read(tmp_path / "a.ndjson")
    (tmp_path / "folder.ndjson").mkdir()
    os.mkfifo(tmp_path / "pipe.ndjson")
    for name in ("folder.ndjson", "pipe.ndjson"):
        for create in (False, True):
            with pytest.raises(BadData):
                async with store_of(tmp_path / name, create=create):
                    pass
    with pytest.raises(NotFound):
        await write(tmp_path / "missing" / "a.ndjson", page(entries(1)))


async def test_archive_compression_under_another_name(tmp_path: Path) -> None:
    """As an archive that was renamed, or came through a pipe."""
    for ending in ENDINGS:
        path = tmp_path / f"a.{ending}"
        await write(path, page(entries(3)))
        for other in ENDINGS:
            renamed = tmp_path / f"renamed.{other}"
            renamed.write_bytes(path.read_bytes())
            assert await read(renamed) == [(Memory(KEY), entries(3))]


def test_import_and_its_undo_leave_the_source_of_an_archive(tmp_path: Path, run: Any) -> None:
    """The header says where the first memories came from, whatever is imported or undone."""
    for name in ("one", "two"):
        message = {"id": name, "name": "n", "role": "user", "content": name}
        state = {"_compressed_summary": "", "content": [[message, []]]}
        (tmp_path / f"{name}.json").write_text(json.dumps(state))
        run("export", tmp_path / f"{name}.json", "-o", tmp_path / f"{name}.ndjson")
    archive = tmp_path / "one.ndjson"

    def lines() -> list[Any]:
        header, *rest = map(json.loads, archive.read_text().splitlines()[:-1])
        del header["created"]
        return [header, *rest]

    before = lines()
    assert before[0]["source"].endswith("one.json")
    assert run("import", tmp_path / "two.ndjson", archive).exit_code == 0
    assert lines()[0] == before[0]
    assert run("undo", "--yes").exit_code == 0
    assert lines() == before


MESSAGE = b'{"id": "1", "name": "n", "role": "user", "content": "c"}'
OTHERS = [
    b'{"memory":{"user": "u", "session": "kept"}}',
    b'{"message":%s,"marks":[],"id":"1"}' % MESSAGE,
    b'{"memory":{"user":"u", "attributes": {}, "session":"s"} }',
    b'{"message":%s,"marks":[],"id":"1"}' % MESSAGE,
]
"""An archive whose memories are not written as memctl writes them."""


def lines_of(path: Path) -> list[bytes]:
    """Return the lines between the first and the last."""
    return path.read_bytes().splitlines()[1:-1]


@pytest.mark.parametrize("mode", ["append", "replace"])
def test_undone_import_leaves_each_line_of_an_archive(tmp_path: Path, run: Any, mode: str) -> None:
    path = tmp_path / "a.ndjson"
    path.write_bytes(sealed(*OTHERS, memories=2, messages=2))
    new = tmp_path / "new.ndjson"
    more = b'{"memory":{"user":"u","session":"s","summary":"so far","attributes":{}}}'
    new.write_bytes(sealed(more, b'{"message":%s,"marks":[],"id":"2"}' % MESSAGE))
    report(run("import", new, path, "--on-conflict", mode, "--yes", "--json"))
    assert lines_of(path)[:2] == OTHERS[:2]
    assert lines_of(path)[2:] != OTHERS[2:]
    assert run("undo", "--yes").exit_code == 0
    assert lines_of(path) == OTHERS


def test_import_into_an_archive_with_a_message_that_is_none_changes_nothing(
    tmp_path: Path, run: Any
) -> None:
    """Its digest is right: only who looks into all messages can tell."""
    path = tmp_path / "a.ndjson"
    path.write_bytes(sealed(OTHERS[0], OTHERS[1].replace(b'"name"', b'"na\xff"')))
    before = path.read_bytes()
    new = tmp_path / "new.ndjson"
    new.write_bytes(sealed(*OTHERS[2:]))
    for mode in ("append", "skip", "replace"):
        fails(
            run("import", new, path, "--on-conflict", mode, "--yes"),
            8,
            "a message that is not valid",
        )
        assert path.read_bytes() == before
