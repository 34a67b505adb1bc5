"""The real program on a terminal: its exit codes, and the terminal as it was before."""

from __future__ import annotations

import asyncio
import os
import pty
import shlex
import signal
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path

import pexpect
import pytest

from memctl.model import MemoryKey
from memctl.testing import samples
from tests.support.cli import Run, contents, fails, fill
from tests.support.forkserver import ForkedProcess, TerminalProcess
from tests.terminal.conftest import Screen, environment

ROOT = Path(__file__).parents[2]
ENTER = "\x1b[?1049h"
"""What shows the screen of the browser."""
LEAVE = "\x1b[?1049l"
"""What brings the screen of the shell back."""
CRASH = """
import sys
from memctl import cli
from memctl.browser.source import Reader

async def fail(self, items, take):
    secret = "a text of a message"
    raise ZeroDivisionError("a bug")

Reader.stream = fail
sys.argv = ["memctl", "browse", sys.argv[1]]
cli.main()
"""

Terminal = Screen | pexpect.spawn


def browse(store: str, term: str = "xterm-256color") -> Screen:
    """Start the browser at a terminal of 80 columns."""
    return Screen(80, ["browse", store], environment(TERM=term, LC_ALL="C.UTF-8"))


def spawn(*words: str) -> pexpect.spawn:
    """Start another program at such a terminal."""
    settings = environment(TERM="xterm-256color", LC_ALL="C.UTF-8")
    program, *arguments = words
    return pexpect.spawn(
        program, arguments, env=settings, dimensions=(24, 80), encoding="utf-8", timeout=30
    )


def ended(process: Terminal, before: list[object]) -> tuple[int, str]:
    """Wait for the end; return the exit code and what was written after the screen was left.

    Check that the settings of the terminal are those of ``before``, and that the cursor is there.
    """
    process.expect(pexpect.EOF)
    text = str(process.before)
    assert termios.tcgetattr(process.child_fd) == before
    process.close()
    assert text.count(LEAVE) == 1
    assert "\x1b[?25h" in text.partition(LEAVE)[2]
    code = process.exitstatus if process.exitstatus is not None else -1
    return code, text.partition(LEAVE)[2]


@pytest.mark.parametrize(
    ("end", "code"),
    [(lambda one: one.send("q"), 0), (lambda one: one.send("\x03"), 0)]
    + [(lambda one, number=number: one.kill(number), 128 + number) for number in (15, 1)],
    ids=["q", "Ctrl-C", "SIGTERM", "SIGHUP"],
)
def test_browser_leaves_the_terminal_as_it_was(
    agents: str, end: Callable[[Terminal], object], code: int
) -> None:
    process = browse(agents)
    before = termios.tcgetattr(process.child_fd)
    process.expect("4 memories")
    assert termios.tcgetattr(process.child_fd) != before
    end(process)
    got, after = ended(process, before)
    assert got == code
    assert "Traceback" not in after


@pytest.mark.parametrize("kind", [ForkedProcess, TerminalProcess])
def test_browser_ends_with_its_terminal(agents: str, kind: type[ForkedProcess]) -> None:
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    settings = environment(TERM="xterm-256color", LC_ALL="C.UTF-8")
    # A signal tells only the process of which it is the controlling terminal.
    process = kind(["browse", agents], stdin=theirs, stdout=theirs, stderr=theirs, env=settings)
    os.close(theirs)
    assert os.read(ours, 1000)
    os.close(ours)
    assert process.wait(10) == 129


def test_browser_is_whole_again_after_the_shell(agents: str) -> None:
    process = browse(agents)
    process.expect("by name")
    process.send("\x1a")
    process.expect_exact(LEAVE)
    process.wait_until_stopped()
    process.kill(signal.SIGCONT)
    process.expect_exact(ENTER)
    process.expect("parcel")
    process.expect("by name")
    process.send("q")
    process.expect(pexpect.EOF)
    process.close()
    assert process.exitstatus == 0


def test_browser_prints_commands_at_the_end(agents: str) -> None:
    process = browse(agents)
    before = termios.tcgetattr(process.child_fd)
    process.expect("by name")
    process.send("x")
    process.expect("Commands")
    process.send("\r")
    process.expect("copied")
    process.send("q")
    code, after = ended(process, before)
    assert code == 0
    assert f"memctl inspect {agents} --user ada" in after


@pytest.mark.slow
def test_browser_reports_a_bug_as_other_commands_do(agents: str) -> None:
    process = spawn(sys.executable, "-c", CRASH, agents)
    before = termios.tcgetattr(process.child_fd)
    code, after = ended(process, before)
    assert code == 1
    assert "memctl: " in after
    assert "a bug" in after
    assert "a text of a message" not in after, "values of variables are not printed"


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [("none.db", 4, "does not exist"), ("broken.db", 8, "broken.db")],
)
def test_browser_reports_errors_after_the_screen(
    tmp_path: Path, name: str, code: int, said: str
) -> None:
    (tmp_path / "broken.db").write_bytes(b"SQLite format 3\0" + b"x" * 5000)
    process = browse(str(tmp_path / name))
    before = termios.tcgetattr(process.child_fd)
    got, after = ended(process, before)
    assert got == code
    assert said in after


@pytest.mark.slow
def test_browser_reads_a_store_from_a_pipe(agents: str) -> None:
    memctl = shlex.join([sys.executable, "-m", "memctl"])
    script = f"{memctl} -q export {shlex.quote(agents)} -o - | {memctl} browse -"
    process = spawn("bash", "-c", script)
    before = termios.tcgetattr(process.child_fd)
    process.expect("4 memories")
    process.send("j\r")
    process.expect("ada / kyoto")
    process.send("x")
    process.expect("STORE --user ada")
    process.expect("from a pipe: name the store")
    process.send("\x03")
    code, _ = ended(process, before)
    assert code == 0


def test_browser_needs_a_terminal(run: Run, agents: str) -> None:
    fails(run("browse", agents), 2, "browse needs a terminal", "inspect --messages")
    fails(run("browse", agents, "--json"), 2, "No such option: --json")


@pytest.mark.parametrize("term", ["dumb", ""])
def test_browser_needs_a_terminal_that_moves_its_cursor(agents: str, term: str) -> None:
    process = browse(agents, term)
    process.expect(pexpect.EOF)
    process.close()
    assert process.exitstatus == 2
    assert "cannot move its cursor" in str(process.before)


def test_browser_names_the_extra_that_it_needs(
    run: Run, agents: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from memctl.commands import browse as command

    monkeypatch.setattr(command, "_require_terminal", lambda **_: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    fails(run("browse", agents), 2, "library Textual", "[browse]")


@pytest.mark.slow
def test_browser_alone_loads_textual() -> None:
    code = """
import sys
from memctl.cli import COMMANDS, LazyCommands
commands = LazyCommands()
for name in COMMANDS:
    commands[name]
    assert "textual" not in sys.modules, name
"""
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": str(ROOT)})


@pytest.fixture
def large(tmp_path: Path) -> str:
    """A SQLite file of many memories, whose deletion takes a while."""
    path = str(tmp_path / "large.db")
    memories = {MemoryKey("ada", f"s{n:04}"): samples.entries(20) for n in range(1500)}
    asyncio.run(fill(path, memories))
    return path


def write(store: str, state: Path) -> Screen:
    """Start the browser that may change the store."""
    settings = environment(TERM="xterm-256color", LC_ALL="C.UTF-8", XDG_STATE_HOME=str(state))
    return Screen(80, ["browse", store, "--write"], settings)


@pytest.mark.slow
def test_browser_prints_what_it_has_changed(tmp_path: Path) -> None:
    path = str(tmp_path / "agents.db")
    asyncio.run(fill(path, {MemoryKey("ada", "kyoto"): samples.entries(5)}))
    process = write(path, tmp_path)
    before = termios.tcgetattr(process.child_fd)
    process.expect("by name")
    process.send("d")
    process.expect("delete 5 messages in 1 memory")
    process.send("x")
    process.send("y")
    process.expect("5 messages deleted")
    process.send("q")
    code, after = ended(process, before)
    assert code == 0
    assert "5 messages deleted in 1 memory · undo it with: memctl undo " in after


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_browser_stops_an_action_at_a_signal(large: str, tmp_path: Path, number: int) -> None:
    process = write(large, tmp_path)
    before = termios.tcgetattr(process.child_fd)
    process.expect("by name")
    process.send("d")
    process.expect("delete 30,000 messages in 1,500 memories")
    process.send("y")
    process.expect("working")
    process.kill(number)
    code, after = ended(process, before)
    assert code == 128 + number
    assert "Traceback" not in after
    sizes = {len(entries) for entries in contents(large).values()}
    assert sizes <= {0, 20}, "no memory is half deleted"
    assert "deleted in" in after or "nothing was changed" in after
