"""A message is never copied so often that memory grows by several times its size."""

from __future__ import annotations

import asyncio
import base64
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.measure import run
from memctl.machine import zstd
from memctl.model import MemoryKey
from memctl.testing import samples
from tests.commands.test_offload import image, result
from tests.support.cli import contents, fill
from tests.support.servers.pool import Servers

pytestmark = pytest.mark.slow

SIZE = 40_000_000
KEYS = 1_000_000
LIMIT = 200 * 1024 * 1024
BARE = 120 * 1024 * 1024
"""More bytes than a run takes without messages."""
TARGETS: dict[str, Callable[[Path, Servers], str]] = {
    "sqlite": lambda folder, _: f"{folder}/a.db",
    "postgresql": lambda _, servers: servers.postgresql.fresh(),
    "mysql": lambda _, servers: servers.mariadb_with(
        "packet-1g", "--max-allowed-packet=1G"
    ).fresh(),
    "redis": lambda _, servers: servers.redis.fresh(),
    "archive": lambda folder, _: f"{folder}/b.ndjson.zst",
    "sessions": lambda folder, _: f"{folder}/sessions/",
}
OF_OTHERS: dict[str, Callable[[Path, Servers], str]] = {
    "agentscope2": lambda folder, _: f"sqlite:///{folder}/2.db?layout=agentscope2",
    "agentscope2-redis": lambda _, servers: f"{servers.redis.fresh()}?layout=agentscope2",
    "langchain": lambda folder, _: f"sqlite:///{folder}/lc.db?layout=langchain",
}
"""Stores whose messages are of another dialect than AgentScope 1.x."""


CHANGES = {
    "marks": ["mark", "add", "--all", "a.db", "reviewed"],
    "compression": ["compress", "a.db", "--all", "--mode", "message"],
    "messages": ["migrate", "a.db", "b.db", "--no-verify"],
}


def peak(*arguments: str) -> float:
    """The largest resident set of a run of memctl, in bytes."""
    return run([sys.executable, "-m", "memctl", *arguments]).peak * 1024 * 1024


@pytest.mark.parametrize("name", TARGETS)
def test_memory_huge_message(servers: Servers, tmp_path: Path, name: str) -> None:
    source = str(tmp_path / "source.ndjson")
    huge = samples.entry("huge", 1, content="h" * SIZE)
    entries = [samples.entry("before"), huge, samples.entry("after")]
    asyncio.run(fill(source, {MemoryKey("u", "s"): entries}))
    target = TARGETS[name](tmp_path, servers)
    copied = str(tmp_path / "copy.ndjson")
    assert peak("migrate", source, target, "--no-verify") < LIMIT + SIZE
    assert peak("inspect", target) < LIMIT + SIZE
    assert peak("migrate", target, copied, "--no-verify", "--lossy") < LIMIT + SIZE
    assert peak("verify", source, copied) < LIMIT + SIZE


CONTENTS = {
    "media": lambda: image(base64.b64encode(os.urandom(SIZE * 3 // 4)).decode()),
    "text": lambda: result('"Größe"\n' * (SIZE // 16)),
}


@pytest.mark.parametrize(
    ("name", "kind", "copies"),
    [
        ("sqlite", "media", 2),
        ("postgresql", "media", 2),
        ("mysql", "media", 2),
        ("redis", "media", 2),
        ("sessions", "media", 2),
        ("sqlite", "text", 5),  # its JSON is larger
        ("agentscope2", "media", 4),
        ("agentscope2-redis", "media", 4),
        ("langchain", "media", 3),
    ],
)
def test_memory_offload_huge_content(
    servers: Servers,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    kind: str,
    copies: int,
) -> None:
    """The drivers of databases copy a message that they read or insert.

    AgentScope 2.x stores each message twice.
    """
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    store = (TARGETS | OF_OTHERS)[name](tmp_path, servers)
    source, blobs = str(tmp_path / "source.ndjson"), str(tmp_path / "blobs")
    huge = samples.entry("huge", 1, role="user", content=[CONTENTS[kind]()])
    entries = [samples.entry("before"), huge, samples.entry("after")]
    asyncio.run(fill(source, {MemoryKey("", "s"): entries}))
    peak("migrate", source, store, "--no-verify", "--lossy")
    before = contents(store)
    offload = ["offload", store, "--to", blobs]
    limit = BARE + copies * SIZE
    assert peak(*offload, "--dry-run") < limit
    assert peak(*offload, "--yes") < limit
    assert peak("rehydrate", store, "--from", blobs) < limit
    assert os.listdir(blobs)
    assert contents(store) == before


@pytest.mark.parametrize("name", ["a.db", "state.json", "a.ndjson"])
def test_memory_message_of_millions_of_keys(tmp_path: Path, name: str) -> None:
    source, store = tmp_path / "source.ndjson", str(tmp_path / name)
    many = samples.entry("many", 1, metadata={f"k{number}": number for number in range(KEYS)})
    asyncio.run(fill(str(source), {MemoryKey("", "s"): [samples.entry("before"), many]}))
    assert peak("migrate", str(source), store, "--no-verify", "--lossy") < LIMIT
    assert peak("inspect", store) < LIMIT
    assert peak("inspect", store, "--messages") < LIMIT
    assert peak("export", store, "-o", str(tmp_path / "copy.ndjson")) < LIMIT
    assert peak("verify", store, str(tmp_path / "copy.ndjson")) < LIMIT


@pytest.mark.parametrize("begin", [b"", b'{"memory":{"user":"","session":""}}\n{"message":{"id":"'])
def test_memory_archive_that_unpacks_to_gigabytes(tmp_path: Path, begin: bytes) -> None:
    bomb = tmp_path / "bomb.ndjson.zst"
    with zstd.ZstdFile(bomb, "w", options={}) as file:
        file.write(b'{"memctl":"archive","version":1}\n' + begin)
        for _ in range(600):
            file.write(b"x" * 1024 * 1024)
    limited = ["sh", "-c", 'ulimit -d 200000; exec "$@"', "sh", sys.executable, "-m", "memctl"]
    done = subprocess.run([*limited, "inspect", str(bomb)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (8, "")
    assert "is not a record of an archive (it" in done.stderr


@pytest.mark.parametrize("name", CHANGES)
def test_memory_undo_of_many_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The undo of a run holds no more if the run changed twelve times as many messages."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    peaks = []
    for size in (5_000, 60_000):
        folder = tmp_path / str(size)
        folder.mkdir()
        monkeypatch.chdir(folder)
        entries = [samples.entry(f"m{number:020}", number) for number in range(size)]
        asyncio.run(fill("a.db", {MemoryKey("u", "s"): entries}))
        asyncio.run(fill("b.db", {MemoryKey("u", "other"): entries[:1]}))
        peak(*CHANGES[name])
        peaks.append(peak("undo", "--yes", "--dry-run"))
    assert peaks[1] < LIMIT
    assert peaks[1] - peaks[0] < 20_000_000


SMALL_GROUPS = (
    "import memctl.ops.undo.undo as undo, memctl.__main__ as program\n"
    "undo.GROUP_CHANGES = 5_000\n"
    "program.main()"
)
"""A program that runs memctl, which undoes a tenth as many changes at once."""


def test_memory_undo_of_many_memories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The undo of an import holds no more if the import made three times as many memories."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    peaks = []
    for size in (7_000, 21_000):  # both are more than an undo checks at once
        folder = tmp_path / str(size)
        folder.mkdir()
        monkeypatch.chdir(folder)
        keys = [MemoryKey(f"u{number // 100}", f"s{number}") for number in range(size)]
        asyncio.run(fill("a.ndjson", {key: [samples.entry(key.session)] for key in keys}))
        asyncio.run(fill("b.db", {MemoryKey("u", "other"): [samples.entry("other")]}))
        peak("import", "a.ndjson", "b.db")
        peaks.append(run([sys.executable, "-c", SMALL_GROUPS, "undo", "--yes"]).peak)
    assert peaks[1] - peaks[0] < 20, peaks  # MiB
