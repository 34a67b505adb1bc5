"""Parts as processes of this machine: a thread for each that runs."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor

from memctl.parts.part import Part, PartResult, PartStop, run_part


def processors() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class LocalEngine:
    """An engine that runs parts as processes of this machine."""

    name = "local"

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._threads = ThreadPoolExecutor(workers, "part")
        self._stops: set[PartStop] = set()

    async def run(self, part: Part) -> PartResult:
        """Run a part to its end."""
        stop = PartStop()
        self._stops.add(stop)
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, run_part, part, stop)
        finally:
            self._stops.discard(stop)

    def stop(self, *, force: bool) -> None:
        """Stop all parts that run, at the end of a memory; with ``force``, kill them."""
        for stop in self._stops:
            stop.ask(force=force)

    async def close(self) -> None:
        """End the threads.  No part runs."""
        self._threads.shutdown()
