"""Output for people: tables and conversations on narrow and wide terminals, and in a pipe."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import re
import struct
import termios
from pathlib import Path

import pytest
from rich.cells import cell_len

from memctl.model import MemoryKey
from memctl.registry import kinds
from memctl.testing import samples
from tests.support.cli import FRIDAY, Run, fill
from tests.support.processes import start

WIDTHS = (40, 60, 80, 200)
UUID = "8f14e45f-ceea-467f-a8d3-0c2b6f4f{:04d}"
KYOTO = ("--user", "ada", "--session", "kyoto")
STYLE = re.compile(r"\x1b\[[0-9;]*m")


def styled(width: int, *arguments: object) -> list[str]:
    """The lines that a command draws on a terminal of so many columns, with their styles."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    unset = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    process = start(
        *arguments,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        cwd=Path(__file__).parents[2],
        env=environment | {"TERM": "xterm", "PYTHONUTF8": "1", "PAGER": "cat"},
    )
    os.close(slave)
    drawn = b""
    try:
        while piece := os.read(master, 65536):
            drawn += piece
    except OSError:
        pass  # Linux tells the end of a terminal with EIO.
    finally:
        os.close(master)
    assert process.wait(60) == 0, drawn
    return drawn.decode().replace("\r\n", "\n").splitlines()


def terminal(width: int, *arguments: object) -> list[str]:
    """The lines without their styles; none is wider than the terminal."""
    lines = [STYLE.sub("", line) for line in styled(width, *arguments)]
    assert all(cell_len(line) <= width for line in lines), lines
    return lines


def table(lines: list[str]) -> list[str]:
    """The header of a table and its rows, after the totals and a blank line."""
    return lines[lines.index("") + 1 :]


@pytest.mark.parametrize("width", WIDTHS)
def test_terminal_memory_is_a_line_that_names_it_at_any_width(width: int) -> None:
    header, *rows = table(terminal(width, "inspect", FRIDAY, *KYOTO))
    assert header.split()[:4] == ["user", "session", "messages", "size"]
    assert len(rows) == 1
    assert rows[0].split()[:4] == ["ada", "kyoto", "11", "3.2"]


def test_terminal_columns_leave_in_their_order() -> None:
    order = ["█", "roles", "marks", "last", "summary"]
    seen = set()
    for width in range(36, 140, 8):
        text = "\n".join(table(terminal(width, "inspect", FRIDAY, *KYOTO)))
        shown = [name in text for name in order]
        assert shown == sorted(shown), (width, shown)
        seen.add(sum(shown))
    assert {0, 5} < seen


@pytest.mark.parametrize("width", WIDTHS)
async def test_terminal_long_ids_are_cut_on_a_terminal(database: str, width: int) -> None:
    await fill(
        database,
        {
            MemoryKey(UUID.format(number), UUID.format(number + 5)): samples.entries(3)
            for number in range(5)
        },
    )
    header, *rows = table(terminal(width, "inspect", database))
    assert len(rows) == 5
    assert header.split()[:4] == ["user", "session", "messages", "size"]
    for row in rows:
        user, session, messages, *_ = row.split()
        assert ("…" in user) == (width < 90), row
        assert UUID.format(0).startswith(user.rstrip("…")[:6])
        assert UUID.format(0).startswith(session.rstrip("…")[:6])
        assert messages == "3"


def test_terminal_nothing_is_cut_in_a_pipe(database: str, run: Run) -> None:
    user = "u" * 250
    asyncio.run(fill(database, {MemoryKey(user, "s"): samples.entries(3)}))
    lines = run("inspect", database).stdout.splitlines()
    assert lines[-1].startswith(f"{user}  s ")
    assert "…" not in lines[-1]


@pytest.mark.parametrize("width", WIDTHS)
async def test_terminal_wide_characters_keep_the_columns_straight(
    database: str, width: int
) -> None:
    await fill(
        database,
        {
            MemoryKey("京都" * 10, "🍁" * 12): samples.entries(2),
            MemoryKey("ada", "tab\there \x1b[31m"): samples.entries(2),
        },
    )
    header, *rows = table(terminal(width, "inspect", database))
    end = header.index("messages") + len("messages")
    assert len(rows) == 2
    for row in rows:
        assert cell_len(row[: re.search(r" 2  ", row).start() + 2]) == end, rows  # type: ignore[union-attr]
    assert not any("\x1b" in row or "\t" in row for row in rows)


@pytest.mark.parametrize("width", WIDTHS)
def test_terminal_groups_fit(filled: str, width: int) -> None:
    header, *rows = terminal(width, "inspect", "--by", "user", filled)
    assert header.split()[:4] == ["user", "memories", "messages", "size"]
    assert len(rows) == 2


def test_terminal_conversation_keeps_its_indentation() -> None:
    lines = terminal(40, "inspect", "--messages", FRIDAY, *KYOTO)
    starts = [line for line in lines if line and not line.startswith("   ")]
    assert all(line.startswith(("#", "──")) for line in starts), starts
    assert len(starts) == 12


def test_terminal_only_who_and_when_is_dim() -> None:
    lines = styled(80, "inspect", "--messages", "--live", FRIDAY, *KYOTO)
    assert any(line.startswith("   ") and line.isprintable() for line in lines)
    dim = [line for line in lines if re.search(r"\x1b\[(\d+;)*2[;m]", line)]
    assert all(STYLE.sub("", line).startswith(("#", "   thinking")) for line in dim), dim


def test_terminal_lines_are_not_wrapped_in_a_pipe(run: Run) -> None:
    said = run("inspect", "--messages", FRIDAY, *KYOTO).stdout
    assert "   Come after the 15th, with a light coat. The maples will be at their best.\n" in said


@pytest.mark.parametrize("width", WIDTHS)
def test_terminal_kinds_of_store_are_readable(width: int) -> None:
    lines = terminal(width, "stores")
    begun = [line.split()[0] for line in lines if line and not line.startswith(" ")]
    assert [name for name in begun if name != "kind"] == kinds()
    assert any("SQL memory in" in line for line in lines)


def test_terminal_kinds_of_store_are_a_table_in_a_pipe(run: Run) -> None:
    header, first, *_ = run("stores").stdout.splitlines()
    names = ("kind", "written as", "what it is", "capabilities")
    starts = [header.index(name) for name in names]
    assert first.startswith("sqlite")
    for column, text in zip(starts[1:], ("sqlite:///", "SQL memory", "empty"), strict=True):
        assert first[column:].startswith(text)
