"""Holds the lock of a store until it is killed: ``lock_holder.py STORE HOLDER LEASE``."""

from __future__ import annotations

import asyncio
import sys

from memctl import location
from memctl.registry import make_store
from memctl.stores.redis import lock


async def main(text: str, holder: str, lease: float) -> None:
    """Says ``locked`` on stdout when it is."""
    lock.LEASE_SECONDS = lease
    async with make_store(location.parse(text), create=True) as store:
        await store.lock(holder)
        sys.stdout.write("locked\n")
        sys.stdout.flush()
        await asyncio.sleep(600)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))
