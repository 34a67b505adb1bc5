"""A migration in parts on a Ray cluster, and what may happen to it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import pytest

import memctl
from memctl.model import MemoryKey
from memctl.testing import samples
from tests.interop_ray.conftest import Cluster, aliases, ended
from tests.support.cli import Run, contents, fill
from tests.support.processes import wait_until
from tests.support.servers import free_port
from tests.support.servers.pool import Servers
from tests.support.servers.postgresql import PASSWORD

MESSAGES = 40
SLOWLY = 30
"""The rate, in messages a second, of a migration that is stopped before its end."""
SECRETS = [PASSWORD.encode(), quote(PASSWORD, safe="").encode()]


class Stores:
    """A source of 24 memories and an empty target, as URLs; the nodes have aliases for them."""

    def __init__(self, servers: Servers, cluster: Cluster) -> None:
        self.server = servers.postgresql
        self.source = self.server.fresh()
        self.target = self.server.fresh()
        memories = {
            MemoryKey(f"user {number % 3}", f"session {number}"): samples.entries(MESSAGES)
            for number in range(24)
        }
        asyncio.run(fill(self.source, memories))
        asyncio.run(fill(self.target, {}))
        cluster.configure("AGENTS_PASSWORD", prod=self.source, new=self.target)

    def no_memory_is_half(self) -> bool:
        return {len(found) for found in contents(self.target).values()} <= {0, MESSAGES}


@pytest.fixture
def stores(servers: Servers, cluster: Cluster) -> Stores:
    return Stores(servers, cluster)


MIGRATE = ("migrate", "prod", "new", "--shards")


class Begun:
    """A migration of which all parts are at work, and one has written a memory.

    From then on, it lasts about 960 / ``rate`` seconds.
    """

    def __init__(self, cluster: Cluster, stores: Stores, parts: int = 4, rate: int = 120) -> None:
        slowly = ("--rate-limit", str(rate))
        with stores.server.without_writes(stores.target, "message"):  # so no part ends before
            self.process = cluster.start(*MIGRATE, parts, "--on", "ray", "--json", *slowly)
            wait_until(lambda: len(cluster.parts()) == parts)
        wait_until(lambda: contents(stores.target))

    def end(self) -> tuple[int, list[int], str]:
        """Wait for its end; return the exit code, the attempts of each part, and stderr."""
        code, report, errors = ended(self.process)
        return code, sorted(one["attempts"] for one in report["parts"]), errors


def supervisor(part: int) -> int:
    """Return the id of the worker process of Ray that supervises a part."""
    fields = Path(f"/proc/{part}/stat").read_text().rpartition(")")[2].split()
    return int(fields[1])


def is_whole(run: Run, stores: Stores) -> bool:
    return run("verify", stores.source, stores.target).exit_code == 0


def test_parts_run_on_the_nodes(run: Run, cluster: Cluster, stores: Stores) -> None:
    code, report, errors = cluster.run(*MIGRATE, 8)
    assert (code, errors) == (0, "")
    assert report["memories"]["written"] == 24
    assert [one["attempts"] for one in report["parts"]] == [1] * 8
    assert is_whole(run, stores)
    code, report, errors = cluster.run("verify", "prod", "new", "--shards", "4")
    assert (code, errors) == (0, "")
    assert len(report["parts"]) == 4
    shows_no_secret(cluster)


def shows_no_secret(cluster: Cluster) -> None:
    """Check that Ray's logs and its dashboard show the names of parts, and no password."""
    logs = [path for path in cluster.folder.glob("**/logs/**/*") if path.is_file()]
    shown = {str(path): path.read_bytes() for path in logs}
    assert len(shown) > 20
    tasks, jobs = "api/v0/tasks?detail=1", "api/jobs/"
    for path in (tasks, jobs, "api/v0/workers?detail=1", "nodes?view=summary"):
        with urlopen(f"{cluster.dashboard}/{path}") as answer:
            shown[path] = answer.read()
    assert b"memctl migrate 7/8" in shown[tasks]
    assert b"memctl migrate prod new" in shown[jobs]
    assert [place for place, text in shown.items() if any(one in text for one in SECRETS)] == []


def test_worker_and_part_that_are_killed(run: Run, cluster: Cluster, stores: Stores) -> None:
    begun = Begun(cluster, stores)
    worker, part, *_ = cluster.parts()
    os.kill(supervisor(worker), signal.SIGKILL)
    os.kill(part, signal.SIGKILL)
    code, attempts, errors = begun.end()
    assert (code, attempts) == (0, [1, 1, 2, 2]), errors
    assert stores.no_memory_is_half()
    assert is_whole(run, stores)


def test_node_that_is_cut_off(run: Run, cluster: Cluster, stores: Stores) -> None:
    cluster.add()
    begun = Begun(cluster, stores, 6)
    cluster.cut_off()
    code, attempts, errors = begun.end()
    assert (code, attempts[0], attempts[-1]) == (0, 1, 2), errors
    assert is_whole(run, stores)


def test_driver_that_is_killed(run: Run, cluster: Cluster, stores: Stores) -> None:
    begun = Begun(cluster, stores, rate=SLOWLY)
    begun.process.kill()
    begun.process.communicate()
    wait_until(lambda: not cluster.parts())
    assert stores.no_memory_is_half()
    assert cluster.run(*MIGRATE, 2)[0] == 0  # the locks are free
    assert is_whole(run, stores)


def test_ctrl_c_ends_the_parts_after_a_memory(run: Run, cluster: Cluster, stores: Stores) -> None:
    begun = Begun(cluster, stores, rate=SLOWLY)
    begun.process.send_signal(signal.SIGINT)
    code, report, errors = ended(begun.process)
    assert code == 130, (report, errors)
    assert [one["exit"] for one in report["parts"]] == [143] * 4
    assert 0 < report["memories"]["written"] < 24
    assert len(contents(stores.target)) == report["memories"]["written"]
    assert stores.no_memory_is_half()
    assert cluster.run(*MIGRATE, 2)[0] == 0
    assert is_whole(run, stores)


def test_ctrl_c_twice_kills_the_parts(cluster: Cluster, stores: Stores) -> None:
    begun = Begun(cluster, stores, rate=SLOWLY)
    for part in cluster.parts():
        os.kill(part, signal.SIGSTOP)  # it hears of nothing but SIGKILL
    begun.process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert len(cluster.parts()) == 4
    begun.process.send_signal(signal.SIGINT)
    begun.process.communicate(timeout=30)
    assert begun.process.returncode == 130
    assert not cluster.parts()
    assert stores.no_memory_is_half()


def refused(ended: tuple[int, Any, str], code: int, *said: str) -> None:
    """Check that a run ended with ``code`` and one error."""
    found, report, _ = ended
    text = f"{report['error']['message']} {report['error']['hint']}"
    assert (found, [one for one in said if one not in text]) == (code, []), text


def test_nodes_that_are_not_as_the_head(cluster: Cluster, stores: Stores, tmp_path: Path) -> None:
    """The environment of the head does not travel, and nothing is written."""
    config = tmp_path / "memctl" / "config.toml"
    config.parent.mkdir()
    config.write_text(aliases({"prod": "postgresql://memctl@other/agents"}, "AGENTS_PASSWORD"))
    elsewhere = cluster.run("inspect", "prod", "--shards", "2", XDG_CONFIG_HOME=str(tmp_path))
    refused(elsewhere, 2, "other", "127.0.0.1")

    cluster.configure("", prod=stores.source, new=stores.target)
    unset = cluster.run(*MIGRATE, 2, PGPASSWORD=PASSWORD)
    refused(unset, 3, "PGPASSWORD")

    package = Path(memctl.__file__).parent
    other = tmp_path / "other" / "memctl"
    other.mkdir(parents=True)
    for path in package.iterdir():
        if path.name != "version.py":
            (other / path.name).symlink_to(path)
    (other / "version.py").write_text('__version__ = "0.0.1"\n')
    cluster.configure("AGENTS_PASSWORD", prod=stores.source, new=stores.target)
    old = cluster.run(*MIGRATE, 2, PYTHONPATH=str(other.parent))
    refused(old, 2, "memctl 0.0.1", memctl.__version__)
    assert not contents(stores.target)


def test_undo_needs_a_state_folder_that_the_nodes_share(
    cluster: Cluster, stores: Stores, tmp_path: Path
) -> None:
    before = contents(stores.source)
    delete = ("delete", "prod", "--user", "user 0", "--yes", "--shards", "2")
    refused(cluster.run(*delete, XDG_STATE_HOME=str(tmp_path)), 3, "state folder")
    assert contents(stores.source) == before
    code, _, errors = cluster.run(*delete)
    assert code == 0, errors
    assert sum(map(bool, contents(stores.source).values())) == 16
    code, _, errors = cluster.run("undo", "--yes", "--shards", "2")
    assert code == 0, errors
    assert contents(stores.source) == before


@pytest.mark.usefixtures("stores")
def test_node_without_memctl(cluster: Cluster, tmp_path: Path) -> None:
    package = tmp_path / "memctl"
    package.mkdir()
    (package / "__init__.py").touch()
    cluster.add(PYTHONPATH=str(tmp_path))
    code, report, _ = cluster.run("inspect", "prod", "--shards", "6")
    cluster.cut_off()
    assert code in (2, 7)  # 7 if a part on another node ended first
    assert "a worker cannot run memctl: " in report["error"]["message"]
    assert "Traceback" not in report["error"]["message"]


def test_cluster_that_is_not_there(cluster: Cluster) -> None:
    cluster.configure("", prod="postgresql://localhost/agents", new="redis://localhost")
    for address, code, *said in (
        (f"127.0.0.1:{free_port()}", 3, "no Ray cluster", "RAY_ADDRESS"),
        ("ray://127.0.0.1:10001", 2, "ray job submit"),
        ("local", 2, "HOST:PORT"),
    ):
        refused(cluster.run(*MIGRATE, 2, RAY_ADDRESS=address), code, *said)
