"""Terminals: narrow, wide, dumb, without colour; and what a person sees of a long run."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pexpect
import pytest
from rich.cells import cell_len

from memctl.model import MemoryKey
from memctl.testing import samples
from tests.support.cli import fill
from tests.support.servers.pool import Servers
from tests.terminal.conftest import Screen, Shell, Terminal

STYLE = re.compile(r"\x1b\[[0-9;]*m")


def drawn(process: Screen, code: int = 0) -> str:
    """All that a run draws."""
    process.expect(pexpect.EOF)
    process.close()
    assert process.exitstatus == code, process.before
    return str(process.before).replace("\r\n", "\n")


@pytest.mark.parametrize("columns", [40, 200])
@pytest.mark.parametrize("words", ["inspect", "context", "help"])
def test_terminal_widths(terminal: Terminal, large: str, columns: int, words: str) -> None:
    arguments = {
        "inspect": ("inspect", large),
        "context": ("context", large, "--user", "user0", "--session", "session0"),
        "help": ("help", "exit-codes"),
    }[words]
    lines = STYLE.sub("", drawn(terminal(columns, "--quiet", *arguments))).splitlines()
    assert all(cell_len(line) <= columns for line in lines), max(lines, key=cell_len)
    assert max(cell_len(line) for line in lines) > 30


def test_terminal_wide_characters_keep_columns_straight(terminal: Terminal, large: str) -> None:
    lines = STYLE.sub("", drawn(terminal(200, "--quiet", "inspect", large))).splitlines()
    rows = [line for line in lines if " 500 " in line]
    assert len(rows) == 12
    assert len({cell_len(row[: row.index(" 500 ")]) for row in rows}) == 1


@pytest.mark.parametrize(
    ("more", "option", "coloured"),
    [
        ({}, "auto", True),
        ({"NO_COLOR": "1"}, "auto", False),
        ({"TERM": "dumb"}, "auto", False),
        ({}, "never", False),
    ],
)
def test_terminal_colours(
    terminal: Terminal, large: str, more: dict[str, str], option: str, coloured: bool
) -> None:
    text = drawn(terminal(200, "--quiet", "--color", option, "inspect", large, **more))
    assert bool(re.search(r"\x1b\[[0-9;]*3[0-9]m", text)) == coloured


def test_terminal_line_that_is_gone_at_the_end(
    terminal: Terminal, large: str, tmp_path: Path
) -> None:
    process = terminal(100, "migrate", large, tmp_path / "a.db", "--rate-limit", "6000")
    process.expect(r"copying +[\d,]+ of 6,000 messages")
    text = drawn(process)
    assert re.search(r"verifying +[\d,]+ of 6,000 messages", text)
    assert "\x1b[2K" in text
    assert "12 memories selected, 12 written" in text


def test_terminal_dumb_terminal_is_left_in_peace(
    terminal: Terminal, large: str, tmp_path: Path
) -> None:
    text = drawn(terminal(100, "migrate", large, tmp_path / "a.db", TERM="dumb"))
    assert text.startswith(f"{large} → ")


def test_terminal_ctrl_c(terminal: Terminal, large: str, tmp_path: Path) -> None:
    process = terminal(100, "migrate", large, tmp_path / "a.db", "--rate-limit", "500")
    process.expect("copying")
    process.sendintr()
    text = drawn(process, 130)
    assert "memctl: error: stopped by SIGINT" in STYLE.sub("", text)
    assert "\x1b[?25h" in text, "the cursor is there again"
    assert "Traceback" not in text


@pytest.mark.slow
def test_terminal_lines_where_there_is_no_terminal(
    shell: Shell, large: str, tmp_path: Path
) -> None:
    work = f"migrate {large} {tmp_path}/a.db --rate-limit 6000"
    said = shell(f"memctl --progress-interval 0.2 {work}").stderr.splitlines()
    copying = [line for line in said if line.startswith("memctl: copying: ")]
    assert copying
    assert re.search(r"[\d,]+ of 6,000 messages, (\d+s left, )?\d+ of 12 memor", copying[-1])
    assert shell(f"memctl --progress-interval 0.1 --quiet inspect {large}").stderr == ""
    assert shell(f"memctl verify {large} {tmp_path}/a.db").stderr == ""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sqlite", "redis"])
def test_terminal_first_migration_shows_how_much_is_left(
    shell: Shell, large: str, tmp_path: Path, name: str, servers: Servers
) -> None:
    source = {"sqlite": lambda: f"{tmp_path}/source.db", "redis": servers.redis.fresh}[name]()
    assert shell(f"memctl -q migrate {large} {source}").returncode == 0
    interval = "--progress-interval 0.2"
    work = f"migrate {source} {tmp_path}/new.db --no-verify --rate-limit 4000"
    said = shell(f"memctl {interval} {work}").stderr
    assert re.search(r"copying: [\d,]+ of 6,000 messages, \d+s left, \d+ of 12 memories", said)
    said = shell(f"memctl {interval} {work.replace('new', 'some')} --role user").stderr
    assert " of " not in said, "what a selection leaves is not counted"


HISTORY = {
    60: ["run", "command", "store", "changed", "state"],
    80: ["run", "command", "store", "changed", "when", "size", "state"],
    120: ["run", "command", "store", "changed", "when", "size", "state"],
}


@pytest.mark.parametrize(
    "columns",
    [pytest.param(60, marks=pytest.mark.slow), 80, pytest.param(120, marks=pytest.mark.slow)],
)
def test_terminal_history_shows_the_stores(
    terminal: Terminal, large: str, tmp_path: Path, columns: int
) -> None:
    target = tmp_path / "a folder whose name is long enough to be cut" / "agents.db"
    target.parent.mkdir()
    drawn(terminal(200, "migrate", large, target, "--user", "user0"))
    drawn(terminal(200, "mark", "add", target, "seen", "--user", "user0"))
    lines = STYLE.sub("", drawn(terminal(columns, "history"))).splitlines()
    head, row, _ = (re.split(" {2,}", line.strip()) for line in lines)
    assert head == HISTORY[columns]
    assert row[0] in drawn(terminal(200, "history", "--json"))
    assert re.fullmatch("[0-9a-f]{5}", row[0])
    assert row[2].startswith("…")
    assert row[2].endswith("/agents.db")
    assert max(cell_len(line) for line in lines) <= columns


LABELS = {"error": "\x1b[1;31merror:\x1b[0m", "hint": "\x1b[36mhint:\x1b[0m"}


@pytest.mark.parametrize(
    ("more", "option", "coloured"),
    [
        ({}, "auto", True),
        ({"NO_COLOR": "1"}, "auto", False),
        ({"NO_COLOR": "1"}, "always", True),
        ({"TERM": "dumb"}, "auto", False),
        ({}, "never", False),
    ],
)
@pytest.mark.parametrize(
    "words", [("inspect", "none.db"), ("nonsense",), ("delete", "--nope"), ("--nope",)]
)
def test_terminal_labels_of_errors_are_coloured(
    terminal: Terminal, words: tuple[str, ...], more: dict[str, str], option: str, coloured: bool
) -> None:
    process = terminal(100, "--color", option, *words, **more)
    text = drawn(process, 4 if words[0] == "inspect" else 2)
    for label, style in LABELS.items():
        assert f"{label}:" in STYLE.sub("", text)
        assert (style in text) == coloured
    assert bool(STYLE.search(text)) == coloured


def test_terminal_warnings_are_coloured(terminal: Terminal) -> None:
    text = drawn(terminal(100, "config", "show", MEMCTL_COLOUR="never"))
    assert "\x1b[33mwarning:\x1b[0m unknown variable MEMCTL_COLOUR" in text


@pytest.mark.slow
def test_terminal_errors_in_a_pipe_are_plain_lines(shell: Shell) -> None:
    plain = shell("memctl delete none.db").stderr
    assert plain.count("\n") == 2
    assert "\x1b" not in plain
    assert "\x1b[1;31merror:\x1b[0m" in shell("memctl --color always delete none.db").stderr


@pytest.mark.slow
@pytest.mark.parametrize("columns", [40, 53, 80])
def test_terminal_errors_break_no_word(terminal: Terminal, shell: Shell, columns: int) -> None:
    words = ("inspect", "none.db", "--until", "京都 for a very long time of the year 2026")
    lines = drawn(terminal(columns, *words, "--color", "never"), 2).splitlines()
    assert len(lines) > 2
    assert max(map(cell_len, lines)) <= columns
    said = shell(f"memctl inspect none.db --until '{words[-1]}'").stderr
    assert " ".join(" ".join(lines).split()) == " ".join(said.split())


def test_terminal_history_keeps_what_changed_and_when(terminal: Terminal, tmp_path: Path) -> None:
    folder = tmp_path / "a-folder-with-a-long-name" / "and-another-folder"
    folder.mkdir(parents=True)
    store = folder / "agents.db"
    asyncio.run(fill(str(store), {MemoryKey("ada", "kyoto"): samples.entries(3)}))
    drawn(terminal(80, "mark", "add", "--all", store, "new"))
    drawn(terminal(80, "undo", "--yes"))
    lines = STYLE.sub("", drawn(terminal(80, "history"))).splitlines()
    assert lines[0].split()[:5] == ["run", "command", "store", "changed", "when"]
    assert lines[0].split()[-1] == "state"
    assert re.search(r"ents\.db  3 marked +\d{4}-\d\d-\d\d \d\d:\d\d UTC ", lines[2])
    assert re.search(r"  undone by [0-9a-f]{5}$", lines[2])
    assert all(cell_len(line) <= 80 for line in lines)
