"""The real Harbor: one worker for all tests of a process."""

from __future__ import annotations

from tests.support.worker import Worker, for_the_session


class Harbor(Worker):
    """The worker with Harbor's models of trajectories."""

    environment = ".interop-harbor"
    script = "interop_harbor/worker.py"


harbor = for_the_session(Harbor)
