"""A sample of what ``make soak FAULTS=all`` does: commands with a failing call of the system."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.support import faults
from tests.support.faults import Fault
from tests.support.servers.pool import Servers, start
from tests.trust.faults import COMMANDS, Yard

pytestmark = pytest.mark.slow

CALLS = {"sqlite": 4, "archive": 4, "redis": 3, "bucket": 3, "postgresql": 2}
REQUESTS = {"redis": 3, "postgresql": 2}
"""The number of trials of each command."""


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return start(lambda: faults.library(tmp_path_factory.mktemp("library")))


@pytest.mark.parametrize(("command", "store"), [("migrate", "archive"), ("export", "bucket")])
def test_faults_full_disk(
    servers: Servers, tmp_path: Path, library: Path, command: str, store: str
) -> None:
    """The disk is full from the opening of a file on, of each in turn."""
    with Yard(tmp_path, servers, store, library) as yard:
        for trial in yard.trials(command):
            if trial.fault is Fault.FULL and trial.call == "open":
                trial.run()


@pytest.mark.parametrize("command", COMMANDS)
def test_faults(servers: Servers, tmp_path: Path, library: Path, command: str) -> None:
    for store in COMMANDS[command].only:
        draw = Random(f"{command}:{store}")
        (tmp_path / store).mkdir()
        with Yard(tmp_path / store, servers, store, library) as yard:
            chosen = draw.sample([*yard.trials(command)], CALLS[store])
            for trial in [*chosen, *draw.sample([*yard.losses(command)], REQUESTS.get(store, 0))]:
                trial.run()
