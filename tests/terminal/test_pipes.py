"""In pipes, in cron, in other locales."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from tests.support.schemas import check_log
from tests.terminal.conftest import Shell

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("format", ["table", "json", "ndjson", "csv"])
def test_pipe_reader_that_has_enough(shell: Shell, large: str, format: str) -> None:
    done = shell(f"memctl context {large} --user user0 --session session0 --format {format} | true")
    assert done.returncode in (0, 141), done.stderr
    assert done.stderr == ""


def test_pipe_loop_of_the_shell_reads_lines(shell: Shell, large: str) -> None:
    done = shell(
        f"memctl inspect {large} --format ndjson | while read -r line; do echo $((++n)); done"
    )
    assert done.stdout.split() == [str(number) for number in range(1, 13)]


def test_pipe_query(shell: Shell, large: str) -> None:
    query = "jq -r .totals.messages"
    if shutil.which("jq") is None:
        query = f'{sys.executable} -c \'import json,sys; print(json.load(sys.stdin)["totals"]'
        query += '["messages"])\''
    assert shell(f"memctl inspect {large} --json | {query}").stdout == "6000\n"


def test_pipe_empty_environment(large: str, shell: Shell, tmp_path: Path) -> None:
    environment = "env -i PYTHONPATH=$PYTHONPATH"
    program = f"{sys.executable} -m memctl"
    # As cron has it: nothing but a home.
    at_home = f"cd / && {environment} HOME={tmp_path} {program} history"
    done = shell(f"{environment} {program} inspect {large}; {at_home}")
    assert done.returncode == 0, done.stderr
    assert "12 memories" in done.stdout
    assert "no runs are kept" in done.stdout


@pytest.mark.parametrize("format", ["table", "csv"])
def test_pipe_locale_c(shell: Shell, large: str, format: str) -> None:
    ascii_only = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = shell(f"memctl inspect {large} --format {format}", **ascii_only)
    assert done.returncode == 0, done.stderr
    assert "\\u4eac\\u90fd" in done.stdout


def test_pipe_data_is_all_that_is_on_stdout(shell: Shell, large: str) -> None:
    done = shell(f"memctl -v --log-format json --progress-interval 0.1 inspect {large} --json")
    assert json.loads(done.stdout)["totals"]["memories"] == 12
    events = []
    for line in done.stderr.splitlines():
        said = json.loads(line)
        check_log(said)
        events.append(said["event"])
    assert (events[0], events[-1]) == ("opened", "done")
