"""Tests that large contents leave the messages of a store, and come back byte for byte."""

from __future__ import annotations

import base64
import random
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from memctl.dialects.registry import DIALECTS
from memctl.dialects.view import (
    Block,
    Dialect,
    MediaBlock,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
)
from memctl.errors import UsageError
from memctl.journal.runs import describe_run
from memctl.model import MemoryKey, StoredMessage
from memctl.ops.change.change import RunOptions
from memctl.ops.offload.blobs import Blobs
from memctl.ops.offload.run import OffloadRun, RehydrateRun, RewriteRun
from memctl.ops.offload.slim import Rule
from memctl.selection import Selection
from memctl.testing import samples
from memctl.testing.backend import Place
from memctl.testing.drive import changing, read, write_all
from memctl.testing.samples import sample
from tests.conformance.dialects import OnEachDialect

LARGER, KEEP = 4000, 200
LARGE = 2
"""The number of sample messages with a large content."""


def entries(dialect: Dialect) -> list[StoredMessage]:
    """Return messages of which one has a large image, and one a long text of a tool."""
    picture = base64.b64encode(random.Random(1).randbytes(LARGER)).decode()
    long = '"Größe"\n' * (LARGER // 2)
    said: list[tuple[str, list[Block]]] = [
        ("user", [TextBlock("Look at this.")]),
        ("user", [TextBlock("A map."), MediaBlock("image", None, "image/png", picture)]),
        ("assistant", [ToolCallBlock("c1", "read", {"line": 1})]),
        ("system", [ToolResultBlock("c1", "read", lambda: [TextBlock(long)])]),
        ("user", [TextBlock("Thanks.")]),
    ]
    start = datetime(2026, 1, 1)
    return [
        StoredMessage(*dialect.author(role, "Alice", blocks, start + timedelta(minutes=number)))
        for number, (role, blocks) in enumerate(said)
    ]


async def texts(place: Place) -> dict[MemoryKey, list[tuple[bytes, tuple[str, ...]]]]:
    """Return the text and the marks of each message."""
    async with place.store(create=False) as store:
        return {
            key: [(entry.message, entry.marks) for entry in one.entries]
            for key, one in (await read(store)).items()
        }


async def execute(place: Place, keys: list[MemoryKey], run: RewriteRun) -> None:
    """Carry out a run, which must change every message that it plans to change."""
    async with changing(place, keys) as store:
        with run.recorded():
            await run.execute(store)
    assert run.report.failures == []
    assert run.report.done == run.report.planned


class TestOffload(OnEachDialect):
    """Tests that large contents leave the messages of a store, and come back byte for byte."""

    @pytest.mark.parametrize("prefix", ["", "https://blobs.example.com/a/"])
    async def test_offload_and_rehydrate(self, place: Place, tmp_path: Path, prefix: str) -> None:
        async with place.store() as store:
            written = [sample(key, entries(store.dialect)) for key in place.keys(2)]
            await write_all(store, written)
        keys = [one.key for one in written]
        before = await texts(place)
        record = describe_run("offload", place.text, place.location)
        blobs, options = Blobs(str(tmp_path / "blobs")), RunOptions(backup=False)
        offload = OffloadRun(
            record, Selection(), Rule(LARGER, KEEP, prefix), blobs, options=options
        )
        if not DIALECTS[samples.style().dialect].offloads:
            with pytest.raises(UsageError, match="which memctl does not offload"):
                await execute(place, keys, offload)
            assert await texts(place) == before
            return
        await execute(place, keys, offload)
        assert offload.rewritten.left == {}
        assert offload.written == len(blobs.sizes()) == LARGE
        slim = await texts(place)
        for key, messages in before.items():
            assert [len(text) < LARGER for text, _ in slim[key]] == [True] * len(messages)
            assert [marks for _, marks in slim[key]] == [marks for _, marks in messages]
            changed = [one != other for one, other in zip(slim[key], messages, strict=True)]
            assert sum(changed) == LARGE
        await execute(place, keys, RehydrateRun(record, Selection(), blobs.get, options=options))
        assert await texts(place) == before
