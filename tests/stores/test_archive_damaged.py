"""Archives that are not whole, or none at all, are refused."""

from __future__ import annotations

import gzip
import hashlib
import os
from pathlib import Path

import pytest

from memctl.errors import BadData, NotFound
from memctl.model import Memory, MemoryKey
from tests.stores.archives import (
    ENDINGS,
    KEY,
    compress,
    decompress,
    entries,
    entry,
    page,
    read,
    refusal,
    store_of,
    write,
)


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


async def test_zstd_archive_with_a_large_window_is_refused(tmp_path: Path) -> None:
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
        b"{" * 5_000_000,
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
    path.write_bytes(b'{"memctl":"archive","version":2,"new":true}\n{"whatever":1}\n')
    assert "version 2" in (await refusal(path)).message


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
