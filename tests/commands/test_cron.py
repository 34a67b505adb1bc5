"""``--ping`` and ``--metrics-file``: what others hear of a run, and that it never changes it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from memctl.model import MemoryKey
from memctl.output import monitoring
from memctl.output.monitoring import exposition, report_samples
from memctl.testing import samples
from tests.support.cli import FRIDAY, Run, fails, fill
from tests.support.monitor import Call, Monitor, monitored
from tests.support.processes import start

SECRET = "s3cret"


@pytest.fixture
def monitor(monkeypatch: pytest.MonkeyPatch) -> Iterator[Monitor]:
    """A monitor, and tries without pauses."""
    monkeypatch.setattr(monitoring, "PAUSES", (0.0, 0.0))
    with monitored() as found:
        yield found


def test_cron_success_is_told(run: Run, monitor: Monitor) -> None:
    result = run("--ping", monitor.url, "inspect", FRIDAY)
    assert (result.exit_code, result.stderr) == (0, "")
    assert monitor.calls == [Call("GET", "/ping/s3cret", "")]


def test_cron_failure_is_told_with_its_error(run: Run, monitor: Monitor, tmp_path: Path) -> None:
    fails(run("--ping", monitor.url, "inspect", tmp_path / "none.db"), 4, "does not exist")
    [call] = monitor.calls
    assert (call.method, call.path) == ("POST", "/ping/s3cret/fail")
    assert call.body.startswith("memctl inspect: exit code 4 (not-found): ")
    assert "none.db does not exist" in call.body
    assert "\n" not in call.body


@pytest.mark.slow
def test_cron_body_is_short_and_holds_no_secret(run: Run, monitor: Monitor) -> None:
    url = "postgresql://ada:hunter2@127.0.0.1:1/agents"
    assert run("--ping", monitor.url, "inspect", url).exit_code == 3
    assert run("--ping", monitor.url, "inspect", FRIDAY, url).exit_code == 2  # one too many
    assert run("--ping", monitor.url, "inspect", "x" * 5000 + ".db").exit_code != 0
    bodies = [call.body for call in monitor.calls]
    assert bodies[1] == "memctl inspect: exit code 2"
    assert "hunter2" not in "".join(bodies)
    assert max(map(len, bodies)) <= monitoring.BODY


def test_cron_query_stays_behind_the_path(run: Run, monitor: Monitor) -> None:
    run("--ping", monitor.url + "/?create=1#x", "inspect", "none.db")
    assert [call.path for call in monitor.calls] == ["/ping/s3cret/fail?create=1"]


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_cron_redirects_are_followed(run: Run, monitor: Monitor, code: int) -> None:
    monitor.answers, monitor.redirect = [code], "/elsewhere"
    assert run("--ping", monitor.url, "inspect", "none.db").stderr.count("--ping") == 0
    assert monitor.calls[1].path == "/elsewhere"
    if code >= 307:
        assert monitor.calls[1] == monitor.calls[0]._replace(path="/elsewhere")


@pytest.mark.parametrize(
    ("answers", "calls", "said"),
    [
        ([500, 503], 3, ""),
        ([500, 500, 500], 3, "it answered 500"),
        ([404], 1, "it answered 404"),
        ([302] * 30, None, "it answered 302"),
    ],
)
def test_cron_what_a_monitor_answers(
    run: Run, monitor: Monitor, answers: list[int], calls: int | None, said: str
) -> None:
    monitor.answers, monitor.redirect = answers, "/again"
    result = run("--ping", monitor.url, "inspect", FRIDAY)
    assert result.exit_code == 0
    assert calls in (None, len(monitor.calls))
    assert (f"cannot be reached: {said}" in result.stderr) if said else result.stderr == ""
    assert SECRET not in result.stderr


def test_cron_monitor_that_leads_away_or_is_not_there(run: Run, monitor: Monitor) -> None:
    monitor.answers, monitor.redirect = [302], "file:///etc/passwd"
    result = run("--ping", monitor.url, "inspect", FRIDAY)
    assert "warning: --ping" in result.stderr
    unreachable = f"http://127.0.0.1:9/{SECRET}"
    result = run("--ping", unreachable, "inspect", FRIDAY)
    assert result.exit_code == 0
    assert "http://127.0.0.1:9/*** cannot be reached: Connection refused" in result.stderr
    result = run("--ping", f"http://nowhere.invalid/{SECRET}", "inspect", FRIDAY)
    assert result.exit_code == 0
    assert SECRET not in result.stderr


def test_cron_slow_monitor_is_not_waited_for(
    run: Run, monitor: Monitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitoring, "TIMEOUT", 0.1)
    monitor.slow = 0.5
    result = run("--ping", monitor.url, "inspect", FRIDAY)
    assert result.exit_code == 0
    assert "no answer within 0.1 s" in result.stderr or "TimeoutError" in result.stderr
    assert len(monitor.calls) == 3


@pytest.mark.parametrize(
    "url",
    [
        *(f"ftp://x/{SECRET}", f"file:///{SECRET}", SECRET, f"http:///{SECRET}", "http://["),
        *(f"https://ada:{SECRET}@x/", f"http://x/{SECRET} y", f"http://x:port/{SECRET}\n"),
    ],
)
def test_cron_what_cannot_be_called(run: Run, url: str, tmp_path: Path) -> None:
    result = run("--ping", url, "export", FRIDAY, "-o", tmp_path / "x.ndjson")
    fails(result, 2, "--ping")
    assert SECRET not in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_cron_help_is_no_run(run: Run, monitor: Monitor, tmp_path: Path) -> None:
    options = ("--ping", monitor.url, "--metrics-file", tmp_path / "m.prom")
    assert run(*options, "export", "--help").exit_code == 0
    assert monitor.calls == []
    assert list(tmp_path.iterdir()) == []


def test_cron_interrupted_run_has_failed(filled: str, tmp_path: Path) -> None:
    metrics, target = tmp_path / "m.prom", tmp_path / "x.db"
    with monitored() as monitor:
        options = ("--ping", monitor.url, "--metrics-file", metrics)
        process = start(*options, "migrate", filled, target, "--rate-limit", "40")
        deadline = time.monotonic() + 30
        while not target.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert process.returncode == 130
    [call] = monitor.calls
    assert call.path == "/ping/s3cret/fail"
    assert call.body == "memctl migrate: exit code 130 (interrupted): stopped by SIGINT"
    assert families(metrics)["memctl_last_run_exit_code"].samples[0].value == 130


def families(path: Path) -> dict[str, Metric]:
    """Return the metrics that Prometheus reads in a file."""
    text = path.read_text()
    found = {family.name: family for family in text_string_to_metric_families(text)}
    assert all(family.documentation and family.type == "gauge" for family in found.values())
    assert text.count("# HELP") == text.count("# TYPE") == len(found)
    return found


def values(family: Metric, label: str) -> dict[str, float]:
    return {sample.labels[label]: sample.value for sample in family.samples}


def test_cron_metrics_of_a_run(run: Run, filled: str, tmp_path: Path) -> None:
    path, copy = tmp_path / "nightly.prom", tmp_path / "b.ndjson"
    assert run("--metrics-file", path, "export", filled, "-o", copy).exit_code == 0
    found = families(path)
    assert path.stat().st_mode & 0o777 == 0o644
    [success] = found["memctl_last_run_success"].samples
    assert success.value == 1
    assert success.labels == {"command": "export", "store": filled, "file": "nightly.prom"}
    assert found["memctl_last_run_timestamp_seconds"].samples[0].value > 1.7e9
    assert found["memctl_last_run_duration_seconds"].samples[0].value >= 0
    assert found["memctl_bytes"].samples[0].value == copy.stat().st_size
    assert values(found["memctl_memories"], "outcome")["written"] == 4
    assert values(found["memctl_messages"], "outcome")["written"] == 100
    assert run("--metrics-file", path, "export", filled, "-o", copy).exit_code == 2
    found = families(path)
    assert found["memctl_last_run_success"].samples[0].value == 0
    assert found["memctl_last_run_exit_code"].samples[0].value == 2
    assert [name for name in os.listdir(tmp_path) if name.startswith(".")] == []


def test_cron_metrics_keep_the_time_of_the_last_success(
    run: Run, filled: str, tmp_path: Path
) -> None:
    path, name = tmp_path / "m.prom", "memctl_last_success_timestamp_seconds"
    assert run("--metrics-file", path, "inspect", tmp_path / "no.db").exit_code == 4
    assert name not in families(path)
    assert run("--metrics-file", path, "inspect", filled).exit_code == 0
    first = families(path)
    [succeeded] = first[name].samples
    assert succeeded.value == first["memctl_last_run_timestamp_seconds"].samples[0].value
    for _ in range(2):
        assert run("--metrics-file", path, "inspect", tmp_path / "no.db").exit_code == 4
        found = families(path)
        assert found[name].samples[0].value == succeeded.value
        assert found["memctl_last_run_timestamp_seconds"].samples[0].value > succeeded.value
    assert run("--metrics-file", path, "inspect", filled).exit_code == 0
    assert families(path)[name].samples[0].value > succeeded.value
    path.write_bytes(b"\xff not of memctl")
    assert run("--metrics-file", path, "inspect", tmp_path / "no.db").exit_code == 4
    assert name not in families(path)


def test_cron_metrics_of_each_kind_of_report(run: Run, filled: str, tmp_path: Path) -> None:
    path = tmp_path / "m.prom"
    assert run("--metrics-file", path, "compress", filled, "--all").exit_code == 0
    found = families(path)
    assert found["memctl_tokens_before"].samples[0].value > 0
    assert found["memctl_model_tokens_in"].samples[0].value >= 0
    assert values(found["memctl_messages"], "outcome")["marked"] > 0
    assert run("--metrics-file", path, "inspect", filled).exit_code == 0
    found = families(path)
    assert values(found["memctl_messages"], "outcome") == {"selected": 104}
    assert found["memctl_users"].samples[0].value == 2
    assert not any("marks" in name for name in found)


def test_cron_metrics_of_doctor_agree_with_its_text(
    run: Run, database: str, tmp_path: Path
) -> None:
    path = tmp_path / "m.prom"
    asyncio.run(fill(database, {MemoryKey("ada", one): samples.entries(3) for one in "ab"}))
    with closing(sqlite3.connect(database.removeprefix("sqlite:///"))) as opened, opened:
        opened.execute("INSERT INTO message_mark VALUES ('x', 'hint'), ('y', 'hint')")
        opened.execute("DELETE FROM users")
    done = run("--metrics-file", path, "doctor", database, "--fail-on", "error")
    assert done.exit_code == 0
    [said] = re.findall(r"not healthy: .*", done.stdout)
    found = families(path)
    shown = {
        severity: float(number) for number, severity in re.findall(r"(\d+) ([a-z]+?)s?\b", said)
    }
    assert shown["warning"] >= 3
    numbers = values(found["memctl_findings"], "severity")
    assert numbers == {"error": 0, "warning": 0, "notice": 0} | shown
    assert found["memctl_healthy"].samples[0].value == 0
    assert found["memctl_last_run_success"].samples[0].value == 1


def test_cron_labels_are_escaped_and_hold_no_secret(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "m.prom"
    url = "postgresql://ada:hunter2@127.0.0.1:1/agents"
    assert run("--metrics-file", path, "inspect", url).exit_code == 3
    assert "hunter2" not in path.read_text()
    [sample] = families(path)["memctl_last_run_success"].samples
    assert sample.labels["store"] == "postgresql://ada:***@127.0.0.1:1/agents"
    odd = 'a"b\\c\nd\udcff'
    text = exposition(report_samples({"memories": {"written": 1}}), {"store": odd})
    [family] = text_string_to_metric_families(text)
    assert family.samples[0].labels["store"] == 'a"b\\c\nd\\udcff'


def test_cron_what_cannot_be_written_is_a_warning(run: Run, tmp_path: Path) -> None:
    result = run("--metrics-file", tmp_path / "none" / "m.prom", "inspect", FRIDAY, "--json")
    assert result.exit_code == 0
    assert "warning: --metrics-file: the folder of" in result.stderr
    assert json.loads(result.stdout)["warnings"] == []


def files(folder: Path) -> dict[str, bytes]:
    """Return the contents of all files in a folder, except databases."""
    return {
        str(path): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and ".db" not in path.name
    }


@pytest.mark.slow
def test_ping_fails_for_an_export_of_too_little(
    run: Run, filled: str, tmp_path: Path, monitor: Monitor
) -> None:
    for name, options in (
        ("b.ndjson", ()),
        ("b.csv", ()),
        ("b", ("--as", "markdown")),
        ("b.jsonl", ()),
    ):
        output = tmp_path / name
        words = ("--ping", monitor.url, "export", filled, "-o", output, "--force", *options)
        assert run(*words, "--min-memories", "4", "--min-messages", "100").exit_code == 0
        before = files(tmp_path)
        for more in (
            ("--min-memories", "5"),
            ("--min-messages", "101"),
            ("--last", "1", "--min-messages", "5"),
        ):
            fails(run(*words, *more), 9, "to export, less than --min-m", "nothing was replaced")
        assert files(tmp_path) == before
        assert [call.method for call in monitor.calls[-4:]] == ["GET", "POST", "POST", "POST"]
    to_stdout = run("export", filled, "--min-memories", "5")
    assert (to_stdout.exit_code, to_stdout.stdout) == (9, "")
