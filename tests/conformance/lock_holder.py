"""Holds the lock of a store until its stdin ends: ``lock_holder.py STORE HOLDER LEASE``."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from memctl.registry import make_store, parse
from memctl.store import OpenMode
from memctl.stores.redis import lock

ROOT = Path(__file__).parents[2]


@contextmanager
def elsewhere(store: str, holder: str, lease: float = 30) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock; it gets time to release it."""
    command = [sys.executable, "-m", "tests.conformance.lock_holder", store, holder, str(lease)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        yield process
    finally:
        process.communicate()  # closes its stdin


async def main(text: str, holder: str, lease: float) -> None:
    """Says ``locked`` on stdout when it is, and ends when stdin does."""
    lock.LEASE_SECONDS = lease
    async with make_store(parse(text), OpenMode.CREATE) as store:
        await store.lock(holder)
        sys.stdout.write("locked\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))
