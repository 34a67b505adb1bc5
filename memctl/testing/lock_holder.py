"""A program that holds the lock of a store until stdin ends.

Run it as ``python -m memctl.testing.lock_holder STORE OWNER [SHARD]``.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from memctl.registry import make_store, parse
from memctl.shard import Shard
from memctl.store import OpenMode


@contextmanager
def lock_elsewhere(
    store: str, owner: str, module: str = "memctl.testing.lock_holder", shard: str = ""
) -> Iterator[subprocess.Popen[str]]:
    """Hold the lock of a store, or of its ``shard``, in a second process during the block.

    After the block, the process ends; its end is awaited.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", module, store, owner, *filter(None, [shard])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        yield process
    finally:
        process.communicate()  # closes its stdin


async def hold(text: str, owner: str, shard: str = "") -> None:
    """Take the lock of a store or shard, print ``locked``, and return when stdin ends."""
    store = make_store(parse(text), OpenMode.CREATE)
    store.shard = Shard.parse(shard) if shard else None
    async with store:
        await store.lock(owner)
        sys.stdout.write("locked\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(hold(*sys.argv[1:]))
