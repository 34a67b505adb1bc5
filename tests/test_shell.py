"""memctl as a process: in pipes, under signals, on a full disk, during another run."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shlex
import signal
import subprocess
from pathlib import Path

import pytest

from memctl.model import MemoryKey
from memctl.testing import samples
from tests.support.cli import FRIDAY, contents, fill
from tests.support.processes import MEMCTL, start, wait_until
from tests.support.servers.pool import Servers

pytestmark = pytest.mark.slow

KEYS = [samples.key(number) for number in range(30)]


def shell(script: str) -> subprocess.CompletedProcess[str]:
    """Run a script of the shell in which ``memctl`` is memctl."""
    function = f'memctl() {{ {shlex.join(MEMCTL)} "$@"; }}\nset -o pipefail\n'
    # Unbuffered, Python would fail where it writes; so it does at the end of the command.
    environment = {**os.environ, "PYTHONUNBUFFERED": ""}
    return subprocess.run(
        ["bash", "-c", function + script], env=environment, capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite database that takes a while to copy: 30 memories of 1,000 messages."""
    path = tmp_path_factory.mktemp("large") / "large.db"
    asyncio.run(fill(str(path), {key: samples.entries(1000) for key in KEYS}))
    return path


def test_shell_pipes(large: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy.db"
    done = shell(f"memctl export {large} | memctl import - {target} --json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["memories"]["written"] == len(KEYS)
    done = shell(f"memctl migrate {large} - | memctl verify - {target}")
    assert done.returncode == 0, done.stderr
    assert "memctl" not in done.stderr


def test_shell_reader_that_has_enough(large: Path) -> None:
    done = shell(f"memctl inspect {large} --messages --format ndjson | head -n 2")
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == ["m0000000", "m0000001"]
    assert done.stderr == ""


def test_shell_full_device(large: Path) -> None:
    for command in (f"export {large}", f"inspect {large} --messages"):
        done = shell(f"memctl {command} > /dev/full")
        assert done.returncode == 3, (command, done.stderr)
        assert "No space left on device" in done.stderr
        assert "Traceback" not in done.stderr


def test_shell_device_is_written_to_not_replaced() -> None:
    done = shell(f"memctl export {FRIDAY} --user a --session b -o /dev/stdout | cat")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads(FRIDAY.read_text())


@pytest.mark.parametrize(
    "words",
    [
        ["migrate", "x.ndjson"],
        ["migrate", "x.db"],
        ["migrate", "x.json"],
        ["migrate", "sessions/"],
        ["export", "--output=x.md"],
        ["export", "--as=markdown", "--output=folder"],
        ["export", "--output=x.html"],
        ["export", "--output=x.ndjson"],
        ["export", "--output=x.jsonl"],
        ["export", "--as=session-dir", "--output=sessions"],
    ],
)
def test_shell_full_disk_leaves_nothing_behind(
    large: Path, tmp_path: Path, words: list[str]
) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))

    folder = tmp_path / "there"
    folder.mkdir()
    command, *place = words
    words = [command, str(large), *place, "--user", "user0", "--session", "session0"]
    process = start(*words, preexec_fn=limit, cwd=folder)
    _, said = process.communicate()
    assert process.returncode == 3, said
    assert len([line for line in said.splitlines() if "error:" in line]) == 1
    assert "Traceback" not in said
    assert list(folder.iterdir()) == []
    assert start(*words, cwd=folder).wait(60) == 0


def test_shell_disk_without_any_room_leaves_no_empty_database(large: Path, tmp_path: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    there = tmp_path / "there.db"
    there.touch()
    for target in tmp_path / "new.db", there:
        process = start("migrate", large, target, preexec_fn=limit)
        _, said = process.communicate()
        assert process.returncode == 3, said
        assert "Traceback" not in said
        assert [path for path in tmp_path.iterdir() if path != large] == [there]
    assert start("migrate", large, tmp_path / "new.db").wait(60) == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_shell_signal_stops_cleanly(
    servers: Servers, postgresql_url: str, large: Path, number: signal.Signals, code: int
) -> None:
    process = start("migrate", large, postgresql_url, "--rate-limit", "10000")
    count = "SELECT count(*) FROM message"
    sql = servers.postgresql.execute
    exists = "SELECT to_regclass('message') IS NOT NULL"
    wait_until(lambda: sql(postgresql_url, exists).strip() == "t")
    wait_until(lambda: int(sql(postgresql_url, count)) > 0)
    process.send_signal(number)
    _, said = process.communicate(timeout=30)
    assert process.returncode == code, said
    assert number.name in said
    assert "Traceback" not in said
    assert_whole(postgresql_url)
    assert start("migrate", large, postgresql_url).wait() == 0
    assert len(contents(postgresql_url)) == len(KEYS)


def assert_whole(url: str) -> None:
    """Every memory is there with all its messages, or not at all."""
    found = contents(url)
    assert set(found) < set(KEYS)
    assert {len(entries) for entries in found.values()} <= {1000}


def test_shell_server_that_goes_away(servers: Servers, postgresql_url: str, large: Path) -> None:
    process = start("migrate", large, postgresql_url, "--json", "--retries", "0")
    name = postgresql_url.rpartition("/")[2]
    kill = (
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
        f"WHERE datname = '{name}' AND application_name = 'memctl' AND query LIKE 'COPY%'"
    )
    wait_until(lambda: int(servers.postgresql.execute(postgresql_url, kill)))
    output, said = process.communicate(timeout=60)
    assert process.returncode == 3, said
    assert "Traceback" not in said
    report = json.loads(output)
    assert report["error"]["code"] == "unavailable"
    assert_whole(postgresql_url)
    assert len(contents(postgresql_url)) >= report["memories"]["written"]
    assert start("migrate", large, postgresql_url).wait() == 0
    assert len(contents(postgresql_url)) == len(KEYS)


def test_shell_two_runs_at_once(large: Path, postgresql_url: str) -> None:
    runs = [start("migrate", large, postgresql_url, "--no-verify") for _ in range(2)]
    ends = [(process.communicate()[1], process.returncode) for process in runs]
    assert sorted(code for _, code in ends) in ([0, 0], [0, 75]), ends
    found = contents(postgresql_url)
    assert set(found) == set(KEYS)
    for entries in found.values():
        assert [entry.id for entry in entries] == [entry.id for entry in samples.entries(1000)]


def test_shell_locale_c(tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C", "PYTHONUTF8": "0"}
    environment |= {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
    key = MemoryKey("京都", "🍁")
    asyncio.run(fill(str(tmp_path / "x.ndjson"), {key: samples.entries(1)}))
    done = subprocess.run(
        [*MEMCTL, "inspect", tmp_path / "x.ndjson"],  # Python itself starts in that locale
        env={**environment, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "\\u4eac\\u90fd" in done.stdout


@pytest.mark.parametrize(
    ("script", "code", "said"),
    [
        ("memctl inspect {db} >&-", 3, "cannot be written"),
        ("memctl export {db} >&-", 3, "cannot be written"),
        ("memctl inspect {db} 2>&- | head -1", 0, ""),
        ("memctl inspect nothing.db 2>&-", 4, ""),
        ("memctl inspect nothing.db 2>/dev/full", 4, ""),
        ("memctl -v inspect {db} 2>/dev/full", 0, ""),
        ("memctl inspect {db} >/dev/full", 3, "No space left on device"),
        ("memctl inspect {db} --json >/dev/full", 3, "No space left on device"),
        ("memctl inspect {db} --format ndjson >/dev/full", 3, "No space left on device"),
        ("memctl help stores >/dev/full", 3, "No space left on device"),
        ("memctl --help >/dev/full", 3, "No space left on device"),
        ("memctl --version >/dev/full", 3, "No space left on device"),
        ("memctl --show-completion bash >&-", 3, "cannot be written"),
        ("{{ sleep 0.2; memctl --version; }} | true", 141, ""),
        (
            "memctl inspect nothing.db --json >/dev/full",
            3,
            "the lost message: nothing.db does not exist",
        ),
        ("ulimit -n 7; memctl migrate {db} {db}.ndjson", 3, "ulimit -n"),
        ("ulimit -f 0; memctl export {db} -o {db}.ndjson", 3, "larger than permitted"),
        ("ulimit -f 4; memctl migrate {db} {db}.copy.db", 3, "the size of files (ulimit -f)"),
        ("memctl delete {db} --mark hint <&-", 2, "refusing without confirmation"),
        ("memctl import - {db}.copy.db <&-", 8, "stdin holds neither"),
        ("memctl mark list {db} <&- >&- 2>&-", 3, ""),
    ],
)
def test_shell_streams_that_are_closed(tmp_path: Path, script: str, code: int, said: str) -> None:
    database = tmp_path / "a.db"
    asyncio.run(fill(str(database), {KEYS[0]: samples.entries(10)}))
    done = shell(script.format(db=database))
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert said in done.stderr
    assert contents(str(database)).keys() == {KEYS[0]}
