"""Two exports of a store that grew by 1 %, in a repository of the real restic."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from memctl.model import MemoryKey, StoredMessage
from memctl.testing import samples
from tests.support.cli import add, fill

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("restic") is None, reason="needs the program restic"),
]

MEMORIES, MESSAGES, BYTES = 300, 20, 50_000
"""300 MB in all."""


def entries(seed: int, start: int, count: int) -> list[StoredMessage]:
    texts = random.Random(seed)
    return [
        samples.entry(f"{seed}-{number}", content=texts.randbytes(BYTES // 2).hex())
        for number in range(start, start + count)
    ]


def size(repository: Path) -> int:
    return sum(path.stat().st_size for path in repository.rglob("*") if path.is_file())


def backup(store: Path, repository: Path) -> int:
    """Back a store up as docs/backup.md does; return by how much the repository grew."""
    before = size(repository)
    export = f"{sys.executable} -m memctl export {store} -o -"
    restic = "restic backup --stdin --stdin-filename prod.ndjson"
    subprocess.run(["bash", "-c", f"set -o pipefail; {export} | {restic}"], check=True)
    return size(repository) - before


def test_restic_stores_what_two_exports_share_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository, store = tmp_path / "restic", tmp_path / "agents.db"
    monkeypatch.setenv("RESTIC_REPOSITORY", str(repository))
    monkeypatch.setenv("RESTIC_PASSWORD", "secret")
    subprocess.run(["restic", "init"], check=True)
    keys = [MemoryKey(f"user{number:03}", f"session{number}") for number in range(MEMORIES)]
    held = {key: entries(number, 0, MESSAGES) for number, key in enumerate(keys)}
    asyncio.run(fill(str(store), held))
    whole = backup(store, repository)
    # One conversation goes on, and a user comes.
    new = MEMORIES * MESSAGES // 200
    add(store, keys[70], entries(70, MESSAGES, new), MESSAGES)
    asyncio.run(fill(str(store), {MemoryKey("user999", "session999"): entries(999, 0, new)}))
    # A chunk has up to 8 MiB, and each repository cuts at other places: two changes cost up to 16.
    assert backup(store, repository) < 0.1 * whole
    restored = subprocess.run(
        ["restic", "dump", "latest", "prod.ndjson"], check=True, capture_output=True
    ).stdout
    check = [sys.executable, "-m", "memctl", "verify", "-", str(store)]
    assert subprocess.run(check, input=restored, env=os.environ).returncode == 0
