"""A Ray cluster with two nodes for all tests of a process, and memctl in its environment."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from memctl.machine.system import PART_VARIABLE
from tests.support.processes import wait_until
from tests.support.servers import folder_in_memory
from tests.support.servers.pool import start
from tests.support.servers.postgresql import PASSWORD
from tests.support.worker import Worker, environ, program

LOGIN = f"memctl:{quote(PASSWORD, safe='')}@"


class Cluster(Worker):
    """The cluster, whose nodes have a configuration, a password and a state folder."""

    environment = ".interop-ray"
    script = "interop_ray/worker.py"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.variables = {
            "RAY_TMPDIR": str(folder),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # addresses are those of the loopback
            "XDG_CONFIG_HOME": str(folder),
            "XDG_STATE_HOME": str(folder / "state"),
        }
        super().__init__(folder, **self.variables, AGENTS_PASSWORD=PASSWORD)

    def begin(self) -> None:
        """Add two nodes."""
        self.add()
        self.address, self.dashboard = self.add()

    def add(self, **variables: str) -> Any:
        """Add a node with further variables in its environment."""
        return self.ask(do="add", variables=variables)

    def cut_off(self) -> None:
        """Kill all processes of the node that was added last."""
        self.ask(do="cut off")

    def configure(self, variable: str, **urls: str) -> None:
        """Write the configuration, with aliases of servers whose password is in a variable."""
        folder = self.folder / "memctl"
        folder.mkdir(exist_ok=True)
        (folder / "config.toml").write_text(aliases(urls, variable))

    def start(self, *words: object, **variables: str) -> subprocess.Popen[str]:
        """Start memctl on the head."""
        return subprocess.Popen(
            [program(self.environment, "memctl"), *map(str, words)],
            env=environ(**self.variables, RAY_ADDRESS=self.address) | variables,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: object, **variables: str) -> tuple[int, Any, str]:
        """Run memctl on the head; return the exit code, the report and stderr."""
        return ended(self.start(*words, "--on", "ray", "--json", **variables))

    def parts(self) -> list[int]:
        """Return the ids of the processes that run a part."""
        return [number for number, names in self._processes() if PART_VARIABLE in names]

    def wait_for_the_end(self) -> None:
        """Wait until no process of the ended cluster is left."""
        wait_until(lambda: not any(self._processes()))

    def _processes(self) -> Iterator[tuple[int, set[str]]]:
        """Yield the processes of the cluster, with the names of their variables."""
        mark = f"RAY_TMPDIR={self.folder}"
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended
                variables = (folder / "environ").read_text(errors="replace").split("\0")
                if mark in variables:
                    yield int(folder.name), {one.partition("=")[0] for one in variables}


def aliases(urls: dict[str, str], variable: str) -> str:
    """Return a configuration with aliases, whose password is in a variable if it has a name."""
    password = f'password_env = "{variable}"\n' if variable else ""
    return "".join(
        f'[stores.{name}]\nurl = "{url.replace(LOGIN, "memctl@")}"\n{password}'
        for name, url in urls.items()
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, Any, str]:
    """Wait for the end of memctl; return the exit code, the report and stderr."""
    output, errors = process.communicate(timeout=90)
    return process.returncode, json.loads(output), errors


@pytest.fixture(scope="session")
def one_cluster() -> Iterator[Cluster]:
    # Sockets of Ray need a short path.
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir=folder_in_memory()))
    try:
        with start(lambda: Cluster(folder)) as cluster:
            cluster.begin()
            yield cluster
        cluster.wait_for_the_end()
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def cluster(one_cluster: Cluster) -> Iterator[Cluster]:
    """The cluster; a test must not leave a part behind."""
    yield one_cluster
    try:
        wait_until(lambda: not one_cluster.parts())
    finally:
        for part in one_cluster.parts():
            os.kill(part, signal.SIGKILL)
