"""Tests of the spool that stages memories while a model works: they come out as they went in."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memctl.errors import Unavailable
from memctl.model import Memory, MemoryKey
from memctl.ops.compress.plan import CompressionPlan, MessageStatus, PlannedMessage
from memctl.ops.compress.spool import Spool
from memctl.summarizer import Turn

LOOK = settings(deadline=None, max_examples=60, derandomize=os.environ.get("CI") == "true")
texts = st.text(st.characters(), max_size=30)
lines = st.builds(
    PlannedMessage,
    st.sampled_from(list(MessageStatus)),
    texts,
    st.lists(texts, max_size=2).map(tuple),
    st.none() | st.integers(),
    st.integers(-1, 2**40),
    st.none() | st.builds(Turn, texts, texts, texts),
    st.binary(max_size=40) | st.integers(0, 3).map(lambda n: os.urandom(n * 100_000)),
    st.none() | texts,
)


def case(name: str) -> CompressionPlan:
    return CompressionPlan(Memory(MemoryKey("u", name)), "", 1, 2, 3, 4)


def some(number: int, count: int, size: int = 10) -> list[PlannedMessage]:
    """Return lines that no other memory has."""
    return [
        PlannedMessage(
            MessageStatus.SELECTED,
            f"{number}/{n}",
            ("a",),
            n,
            n,
            Turn("user", "u", os.urandom(size).hex()),
        )
        for n in range(count)
    ]


def taken(spool: Spool) -> Iterator[CompressionPlan]:
    """All that were kept."""
    while (one := spool.take()) is not None:
        yield one


@pytest.mark.slow
@LOOK
@given(st.lists(st.tuples(st.booleans(), st.lists(lines, max_size=6)), max_size=8))
def test_compress_spool_what_comes_out_is_what_went_in(
    memories: list[tuple[bool, list[PlannedMessage]]],
) -> None:
    with TemporaryDirectory() as folder, Spool(Path(folder)) as spool:
        for number, (kept, found) in enumerate(memories):
            for line in found:
                spool.add(line)
            if kept:
                spool.keep(case(str(number)))
            else:
                spool.drop()
        cases = list(taken(spool))
        expected = {str(n): found for n, (kept, found) in enumerate(memories) if kept}
        assert {one.memory.key.session: list(spool.lines(one)) for one in cases} == expected
        assert [one.memory.key.session for one in cases] == list(expected)
        assert spool.cases == len(cases)
        assert os.listdir(folder) == [], "it has no name"


def test_compress_spool_what_is_dropped_leaves_nothing(tmp_path: Path) -> None:
    with Spool(tmp_path) as spool:
        sizes = []
        for number in range(20):
            for line in some(number, 50, 20_000 if number % 2 else 10):
                spool.add(line)
            if number == 7:
                spool.keep(case("7"))
            else:
                spool.drop()
            sizes.append(os.fstat(spool._pieces._file.fileno()).st_size)
        assert sizes[:7] == [0] * 7
        assert len(set(sizes[7:])) == 1, "the file is as long as what is kept"
        [kept] = taken(spool)
        assert [line.id for line in spool.lines(kept)] == [f"7/{n}" for n in range(50)]


def test_compress_spool_many_may_read_at_once(tmp_path: Path) -> None:
    with Spool(tmp_path) as spool, ThreadPoolExecutor(8) as pool:
        put = {str(number): some(number, 200, 2_000) for number in range(16)}
        for name, found in put.items():
            for line in found:
                spool.add(line)
            spool.keep(case(name))
        cases = list(taken(spool))
        read = pool.map(lambda one: list(spool.lines(one)), cases)
        for one, found in zip(cases, read, strict=True):
            assert found == put[one.memory.key.session]


@pytest.mark.slow
def test_compress_spool_it_is_read_while_it_is_written(tmp_path: Path) -> None:
    """Also between the pieces of a memory that is kept, and of one that is not."""
    put = {name: some(ord(name), 200, 20_000) for name in "abcd"}
    with Spool(tmp_path) as spool:
        reading: list[Iterator[PlannedMessage]] = []
        read: list[list[PlannedMessage]] = []
        for name, found in put.items():
            for line in found:
                spool.add(line)
                for lines, taken_so_far in zip(reading, read, strict=True):
                    taken_so_far += islice(lines, 1)
            if name == "b":
                spool.drop()
            else:
                spool.keep(case(name))
            if (kept := spool.take()) is not None:
                reading.append(spool.lines(kept))
                read.append([])
        for lines, taken_so_far in zip(reading, read, strict=True):
            taken_so_far += lines
    assert read == [put[name] for name in "acd"]


def test_compress_spool_two_readers_take_turns(tmp_path: Path) -> None:
    with Spool(tmp_path) as spool:
        for name in "ab":
            for line in some(ord(name), 500, 2_000):
                spool.add(line)
            spool.keep(case(name))
        first, second = map(spool.lines, taken(spool))
        for one, other in zip(first, second, strict=True):
            assert (one.id[:2], other.id[:2]) == ("97", "98")


def test_compress_spool_disk_that_is_full(tmp_path: Path) -> None:
    with Spool(tmp_path) as spool:
        file = spool._pieces._file
        os.close(file.fileno())
        full = os.open("/dev/full", os.O_RDWR)
        os.dup2(full, file.fileno())
        whole = PlannedMessage(MessageStatus.SELECTED, "m", (), 0, 0, None, os.urandom(1_000_000))
        with pytest.raises(Unavailable, match=os.strerror(errno.ENOSPC)):
            spool.add(whole)


def test_compress_spool_folder_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="cannot be used"):
        Spool(tmp_path / "none")
