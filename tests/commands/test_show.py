"""``verify --show``: the lines that differ, as git prints them."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from memctl.model import MemoryKey, StoredMessage
from memctl.ops.copy import diff
from memctl.testing import samples
from tests.support.cli import Run, fill, report
from tests.support.schemas import check_row

ONE = MemoryKey("ada", "one")
TEXT = [f"line {number}" for number in range(40)]
Sides = tuple[str, str]


@pytest.fixture
def sides(tmp_path: Path) -> Any:
    """Make two archives of one memory each."""

    def make(
        left: list[StoredMessage], right: list[StoredMessage], **about: tuple[Any, Any]
    ) -> Sides:
        names = []
        for place, entries in enumerate((left, right)):
            names.append(str(tmp_path / f"{'ab'[place]}.ndjson"))
            beside = {name: values[place] for name, values in about.items()}
            asyncio.run(fill(names[-1], {ONE: entries}, **beside))
        return names[0], names[1]

    return make


def shown(run: Run, sides: Sides, *options: str) -> list[str]:
    """Return the lines that are drawn below the names of the stores."""
    done = run("verify", *sides, "--show", *options)
    assert done.exit_code == 6, done.output
    lines: list[str] = done.stdout.splitlines()
    assert lines[:2] == [f"--- a/{sides[0]}", f"+++ b/{sides[1]}"]
    return lines[2 : lines.index("")]


def test_show_line_of_a_text(run: Run, sides: Any) -> None:
    changed = [*TEXT[:20], "another\x1b[2J \u202e", *TEXT[21:]]
    left = samples.entry("m", 1, content=[{"type": "text", "text": "\n".join(TEXT)}])
    right = samples.entry("m", 1, content=[{"type": "text", "text": "\n".join(changed)}])
    assert shown(run, sides([left], [right])) == [
        "@@ 'ada'/'one' @@",
        "message 'm'  content",
        "       line 18",
        "       line 19",
        "-      line 20",
        r"+      another\x1b[2J \u202e",
        "       line 21",
        "       line 22",
    ]


def test_show_everything_that_can_differ(run: Run, sides: Any) -> None:
    def entry(id: str, number: int, *marks: str) -> StoredMessage:
        return samples.entry(id, number, marks, metadata={})

    left = [entry("a", 1, "x"), entry("gone", 2, "hint"), entry("b", 3), entry("c", 4)]
    right = [entry("a", 1, "y", "z"), entry("c", 4), entry("b", 3), entry("new", 5)]
    pair = sides(left, right, summary=("First.\nSame.", "Second.\nSame."), ttl=(100.0, None))
    assert shown(run, pair) == [
        "@@ 'ada'/'one' @@",
        "summary",
        "-First.",
        "+Second.",
        " Same.",
        "expiry",
        "-expires in 100 seconds",
        "+never expires",
        "message 'a'  marks",
        "-marks: x",
        "+marks: y, z",
        "message 'gone'  message-missing",
        "-marks: hint",
        '-content: "message 2"',
        '-id: "gone"',
        "-metadata: {}",
        '-name: "system"',
        '-role: "system"',
        '-timestamp: "2025-03-01 12:02:00.000"',
        "message 'c'  order",
        " the message follows 'b' in one store and precedes it in the other",
        "message 'new'  message-extra",
        '+content: "message 5"',
        '+id: "new"',
        "+metadata: {}",
        '+name: "system"',
        '+role: "system"',
        '+timestamp: "2025-03-01 12:05:00.000"',
    ]


def test_show_totals_come_behind(run: Run, sides: Any) -> None:
    pair = sides([samples.entry("m", 1)], [samples.entry("m", 2)])
    lines = run("verify", *pair, "--show").stdout.splitlines()
    assert lines[lines.index("") + 1 :] == [
        f"{pair[0]} ↔ {pair[1]}",
        "0 memories the same, 1 different",
        "1 and 1 message",
    ]


def test_show_what_is_the_same_has_no_lines(run: Run, sides: Any) -> None:
    pair = sides([samples.entry("m", 1)], [samples.entry("m", 1)])
    done = run("verify", *pair, "--show")
    assert done.exit_code == 0
    assert "---" not in done.stdout
    assert report(run("verify", *pair, "--show", "--json"))["differences"] == []


def test_show_programs_get_the_lines(run: Run, sides: Any) -> None:
    pair = sides([samples.entry("m", 1, ("x",))], [samples.entry("m", 2)])
    found = report(run("verify", *pair, "--show", "--json"), 6)
    assert [row["code"] for row in found["differences"]] == ["content", "marks"]
    assert found["differences"][1]["diff"] == ["-marks: x", "+marks: none"]
    assert '-content: "message 1"' in found["differences"][0]["diff"]
    done = run("verify", *pair, "--show", "--format", "ndjson")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert rows == found["differences"]
    for row in rows:
        check_row("verify", row)


def test_show_colours_where_they_are_asked_for(run: Run, sides: Any) -> None:
    pair = sides([samples.entry("m", 1)], [samples.entry("m", 2)])
    plain = run("verify", *pair, "--show").stdout
    coloured = run("--color", "always", "verify", *pair, "--show").stdout
    assert "\x1b" not in plain
    assert "\x1b[31m-content" in coloured
    assert "\x1b[32m+content" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain


@pytest.mark.slow
def test_show_many_differences_take_few_passes(run: Run, sides: Any) -> None:
    def entries(offset: int) -> list[StoredMessage]:
        return [samples.entry(f"m{number}", number + offset) for number in range(1200)]

    lines = shown(run, sides(entries(0), entries(3)))
    assert sum(line.startswith("message ") for line in lines) == 1200
    assert sum(line.startswith("-content") for line in lines) == 1200


def test_show_one_id_several_times(run: Run, sides: Any) -> None:
    left = [samples.entry("m", 1), samples.entry("m", 2), samples.entry("m", 3)]
    right = [samples.entry("m", 1), samples.entry("m", 5)]
    lines = shown(run, sides(left, right))
    assert [line for line in lines if "content: " in line] == [
        '-content: "message 2"',
        '+content: "message 5"',
        '-content: "message 3"',
    ]


@pytest.mark.slow
def test_show_huge_message_is_shown_where_it_differs(run: Run, sides: Any) -> None:
    text = "x" * 3_000_000
    left = samples.entry("m", 1, content=text + "here" + text)
    right = samples.entry("m", 1, content=text + "there" + text)
    lines = shown(run, sides([left], [right]))
    assert lines[2].startswith(" too large to be compared by lines: 6,000,")
    assert lines[3].startswith("-…xxx")
    assert "xxxherexxx" in lines[3]
    assert "xxxtherexxx" in lines[4]
    assert all(len(line) < 600 for line in lines)


def test_show_long_lines_are_shown_where_they_differ() -> None:
    before, after = ("a" * 9000 + middle + "b" * 9000 for middle in ("one", "two"))
    lines = diff.diff_texts(before, after)
    assert [line[0] for line in lines] == ["-", "+"]
    assert "aonebbb" in lines[0]
    assert "atwobbb" in lines[1]
    assert all(len(line) <= diff.WIDEST_LINE + 3 for line in lines)


def test_show_many_lines_are_counted() -> None:
    lines = diff.diff_lines([f"one {n}" for n in range(9000)], [f"two {n}" for n in range(9000)])
    assert len(lines) == diff.LINES + 1
    assert lines[-1] == " … 9,140 more lines"


def test_show_deeply_nested_messages_are_shown() -> None:
    def nested(bottom: str) -> bytes:
        return b'{"metadata": ' + b"[" * 900 + bottom.encode() + b"]" * 900 + b"}"

    assert diff.diff_messages(nested("1"), nested("2"))
