"""A part as a child process: what it checks before it works, and what its supervisor tells."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest

from memctl.machine.system import PART_VARIABLE
from memctl.model import MemoryKey
from memctl.parts.part import Part, PartResult, PartStop, run_part
from memctl.shard import Shard
from memctl.testing import samples
from memctl.version import __version__
from tests.support.cli import contents, fill

WHOLE = Shard(0, 1)


def part(*words: str, version: str = __version__, **stores: str) -> PartResult:
    return run_part(Part((*words, "--json"), WHOLE, version, stores))


def refused(result: PartResult, code: int, *said: str) -> None:
    assert result.exit == code
    assert result.report is not None
    assert all(text in json.dumps(result.report["error"]) for text in said)


@pytest.mark.slow
def test_part_of_another_version_is_refused() -> None:
    refused(part("inspect", "none.db", version="0.0.1"), 2, "0.0.1", __version__)


@pytest.mark.slow
def test_part_that_locates_another_store_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "memctl.toml"
    config.write_text('[stores.prod]\nurl = "postgresql://here.invalid/agents"\n')
    words = "--config", str(config), "inspect", "prod"
    refused(part(*words, prod="postgresql://there/agents"), 2, "here.invalid", "there")
    refused(part(*words, prod="postgresql://here.invalid/agents"), 3)


@pytest.mark.slow
def test_part_leaves_alone_what_the_driver_holds(tmp_path: Path) -> None:
    archive = f"{tmp_path}/a.ndjson"
    key = MemoryKey("ada", "kyoto")
    asyncio.run(fill(archive, {key: samples.entries(3)}))
    held = {"user": "ada", "reason": "case 17", "until": date.max}
    words = ("delete", archive, "--all", "--yes", "--json", "--shard=0/1")
    result = run_part(Part(words, WHOLE, __version__, holds=[held]))
    assert result.exit == 7
    assert result.report is not None
    assert result.report["failures"][0]["message"] == "held: case 17, until 9999-12-31"
    assert len(contents(archive)[key]) == 3
    unrecorded = (*words, "--no-backup")
    refused(run_part(Part(unrecorded, WHOLE, __version__, state="another")), 3, "state folder")


@pytest.mark.slow
def test_part_without_its_supervisor_ends() -> None:
    orders = {"parent": os.getpid() + 1, "version": __version__, "stores": {}, "state": ""}
    variables = {**os.environ, PART_VARIABLE: json.dumps(orders)}
    command = [sys.executable, "-m", "memctl", "inspect", "none.db"]
    ended = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (143, "", "")


@pytest.mark.slow
def test_part_that_cannot_report_tells_the_end_of_its_errors() -> None:
    url = "postgresql://ops:sesame@h/d"
    result = part("inspect", url, "--frob")
    assert (result.exit, result.report) == (2, None)
    assert "--frob" in result.reason[0]
    assert "sesame" not in result.errors + result.reason[0]


def test_part_that_cannot_start_can_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    result = part("inspect", "none.db")
    assert result.exit == 3
    assert result.reason == ("a part cannot start: No such file or directory", None)


def test_part_that_reports_nothing_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "true")
    result = part("inspect", "none.db")
    assert result.exit == 1
    assert result.reason == ("its process ended with exit code 1, without a report", None)


def test_part_that_is_stopped_before_it_starts_has_no_report() -> None:
    stop = PartStop()
    stop.ask(force=True)
    result = run_part(Part(("inspect", "none.db"), WHOLE, __version__), stop)
    assert (result.exit, result.report) == (137, None)
