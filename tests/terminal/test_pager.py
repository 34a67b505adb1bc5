"""The pager: long output on a terminal, and nothing else, goes through it."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

import pexpect
import pytest

from tests.terminal.conftest import Shell, Terminal
from tests.terminal.test_screens import drawn

MESSAGES = ("--messages", "--user", "user0", "--session", "session0")
HEARS_CTRL_C = """\
import signal, sys

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
for _ in range(3):
    print(sys.stdin.readline(), end="", flush=True)
signal.sigwait({signal.SIGINT})
print("heard", flush=True)
open("/dev/tty").readline()
"""
"""A pager in Python: ``trap`` and ``read`` of a shell miss a signal that comes between the two."""


@pytest.fixture
def pager(tmp_path: Path) -> str:
    """A pager that says how it was called, shows two lines, and waits for one of the person."""
    path = tmp_path / "pager"
    path.write_text(
        '#!/bin/sh\necho "paged LESS=$LESS $PGPASSWORD"\nhead -n 2\nread line </dev/tty\n'
    )
    path.chmod(0o700)
    return str(path)


def test_pager_shows_what_is_long_and_may_be_left_early(
    terminal: Terminal, large: str, pager: str
) -> None:
    for arguments in (("inspect", large, *MESSAGES), ("context", large, *MESSAGES[1:])):
        process = terminal(80, *arguments, PAGER=pager)
        process.expect("paged LESS=FRX")
        process.expect("── user0 / session0")
        process.sendline("")
        assert "error" not in drawn(process, 0)


def test_pager_is_given_colours_and_the_settings_of_the_person(
    terminal: Terminal, large: str, pager: str
) -> None:
    process = terminal(80, "inspect", large, PAGER=pager, LESS="M")
    process.expect("paged LESS=M")
    process.expect("\x1b\\[1m")
    process.sendline("")
    drawn(process, 0)


def test_pager_is_given_no_password(terminal: Terminal, large: str, pager: str) -> None:
    process = terminal(80, "inspect", large, PAGER=pager, PGPASSWORD="s3cret")
    process.expect("paged LESS=FRX")
    process.sendline("")
    assert "s3cret" not in drawn(process, 0)


def test_pager_ctrl_c_is_quiet(terminal: Terminal, large: str, tmp_path: Path) -> None:
    path = tmp_path / "pager"
    path.write_text(HEARS_CTRL_C)
    pager = shlex.join([sys.executable, str(path)])
    process = terminal(80, "inspect", large, "--messages", PAGER=pager)
    process.expect("── ")
    process.sendintr()
    process.expect("heard")
    process.sendline("")
    text = drawn(process, 0)
    assert "Traceback" not in text
    assert "error" not in text


def test_pager_is_not_given_the_progress_of_a_search(
    terminal: Terminal, large: str, tmp_path: Path
) -> None:
    path = tmp_path / "pager"
    path.write_text(f"#!/bin/sh\ncat >'{tmp_path}/shown'\n")
    path.chmod(0o700)
    settings = {"PAGER": str(path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    text = drawn(terminal(80, "search", large, "message 7", **settings), 0)
    assert "indexing" in text
    shown = (tmp_path / "shown").read_text()
    assert "hits in 6,000 messages" in shown
    assert "indexing" not in shown
    assert "\r" not in shown


def test_pager_is_not_there_yet_when_indexing_is_stopped(
    terminal: Terminal, large: str, pager: str, tmp_path: Path
) -> None:
    settings = {"PAGER": pager, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    process = terminal(80, "search", large, "message 7", **settings)
    process.expect("indexing")
    process.sendintr()
    text = drawn(process, 130)
    assert "paged" not in text
    assert "stopped by SIGINT" in text
    assert not list((tmp_path / "cache" / "memctl" / "index").iterdir())


@pytest.mark.skipif(shutil.which("less") is None, reason="less is not installed")
def test_pager_less_leaves_what_fits_alone(terminal: Terminal, large: str) -> None:
    text = drawn(terminal(100, "inspect", large, PAGER="less"), 0)
    assert "12 memories" in text
    process = terminal(100, "inspect", large, *MESSAGES, PAGER="less")
    process.expect("── user0 / session0")
    with pytest.raises(pexpect.TIMEOUT):
        process.expect(pexpect.EOF, timeout=0.5)
    process.send("q")
    drawn(process, 0)


@pytest.mark.parametrize(
    ("more", "settings"),
    [
        (("--no-pager",), {}),
        (("--json",), {}),
        (("--format", "ndjson"), {}),
        ((), {"PAGER": ""}),
        ((), {"PAGER": "cat"}),
        ((), {"PAGER": "not-installed-anywhere"}),
        ((), {"TERM": "dumb"}),
    ],
)
def test_pager_is_not_used(
    terminal: Terminal, large: str, pager: str, more: tuple[str, ...], settings: dict[str, str]
) -> None:
    words = ("inspect", large, *MESSAGES, "--last", "30", *more)
    text = drawn(terminal(80, *words, **{"PAGER": pager, **settings}), 0)
    assert "paged" not in text
    assert "message 499" in text


@pytest.mark.slow
def test_pager_is_not_used_in_a_pipe_or_for_an_error(
    shell: Shell, terminal: Terminal, large: str, pager: str
) -> None:
    assert "paged" not in shell(f"memctl inspect {large} --messages | cat", PAGER=pager).stdout
    text = drawn(terminal(80, "inspect", "nope.db", PAGER=pager), 4)
    assert "paged" not in text
    assert "does not exist" in text
