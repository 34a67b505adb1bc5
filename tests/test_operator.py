"""The ten tasks of an operator: ``tests/operator.sh``, on SQLite, PostgreSQL and object storage."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.servers.objects import Bucket
from tests.test_docs import ROOT

pytestmark = pytest.mark.slow

CONFIG = """\
[encryption]
recipients = ["{recipient}"]
identity_file = "{folder}/key.txt"

[stores.prod]
url = "sqlite:///{folder}/agents.db?state={folder}/sessions"

[stores.new]
url = "{postgresql}"

[stores.nightly]
url = "{nightly}"

[[retention]]
name = "trips"
store = "prod"
select = {{ session = ["trip-1", "parcel"], older_than = "30d" }}
action = "delete"
archive = "{folder}/retired-{{date}}.ndjson.zst"
"""


@pytest.fixture
def world(
    tmp_path: Path, bucket: Bucket, postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A folder with the store of the documentation, a configuration, and two chats to import."""
    pyrage = pytest.importorskip("pyrage")
    monkeypatch.syspath_prepend(ROOT / "tools")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    import demo  # a module of tools/

    demo.make(tmp_path)
    identity = pyrage.x25519.Identity.generate()
    (tmp_path / "key.txt").write_text(f"{identity}\n")
    (tmp_path / "key.txt").chmod(0o600)
    config = CONFIG.format(
        recipient=identity.to_public(),
        folder=tmp_path,
        postgresql=postgresql_url,
        nightly=bucket.url("nightly.ndjson.zst.age"),
    )
    (tmp_path / "config.toml").write_text(config)
    monkeypatch.setenv("MEMCTL_CONFIG", str(tmp_path / "config.toml"))
    for name, text in (("said", "Is my train late?"), ("chinese", "京都今天天气怎么样?")):
        said = {
            "id": f"{name}-1",
            "name": "li",
            "role": "user",
            "content": text,
            "metadata": {},
            "timestamp": "2026-03-01 10:00:00.000",
        }
        state = {"_compressed_summary": "", "content": [[said, []]]}
        (tmp_path / f"{name}.json").write_text(json.dumps(state))
    program = tmp_path / "bin" / "memctl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m memctl "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return tmp_path


def test_ten_tasks_of_an_operator(world: Path) -> None:
    script = ["bash", str(ROOT / "tests" / "operator.sh")]
    done = subprocess.run(
        script, cwd=world, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\n10 A service" in done.stdout
