"""Reports for people, drawn at a given width."""

from __future__ import annotations

import io
import json

import pytest
from rich.cells import cell_len
from rich.console import Console, RenderableType

from memctl.dialects.agentscope2 import AGENTSCOPE2
from memctl.errors import Failure
from memctl.model import MemoryInfo, MemoryKey, StoredMessage
from memctl.ops.inspect import Catalogue
from memctl.ops.report import CopyReport
from memctl.output import conversation, tables
from memctl.reports.inspect import Totals


def drawn(renderable: RenderableType, width: int) -> list[str]:
    """The lines that Rich makes of it."""
    console = Console(file=io.StringIO(), width=width, highlight=False, markup=False, emoji=False)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get().splitlines()


def entry(content: object) -> StoredMessage:
    value = {"id": "m", "name": "ada", "role": "user", "content": content, "timestamp": "now"}
    return StoredMessage("m", json.dumps(value).encode())


@pytest.mark.parametrize("width", [20, 40, 60, 80, 200])
def test_output_parts_and_lives_fit_too(width: int) -> None:
    info = MemoryInfo(
        MemoryKey("a" * 50, "s", "planner.memory"), 1_000_000, 10**9, ttl=90_000, summary=True
    )
    found = Catalogue(Totals(users=1, memories=1, messages=1, bytes=1, summaries=1), [info])
    lines = drawn(tables.catalogue("store", "a store", found, None), width)
    assert all(cell_len(line) <= width for line in lines)
    text = " ".join(lines)
    for word in ("user", "messages", "size", "1,000,000", "1.0 GB"):
        assert word in text
    if width >= 40:
        assert len(lines[lines.index("") + 1 :]) == 2


def test_output_indented_line_wraps_under_itself() -> None:
    lines = drawn(conversation.message(entry("if so:\n    one two three four five"), 1), 22)
    assert [line.rstrip() for line in lines[1:]] == [
        "   if so:",
        "       one two three",
        "       four five",
    ]


def test_output_line_stays_whole_where_nothing_wraps() -> None:
    console = Console(file=io.StringIO(), width=80)
    with console.capture() as capture:
        console.print(conversation.message(entry("word " * 9999 + "end"), 1), soft_wrap=True)
    assert capture.get().splitlines()[1:] == ["   " + "word " * 9999 + "end"]


def test_output_blank_lines_stay_blank() -> None:
    lines = drawn(conversation.message(entry("one\n\ntwo\n"), 1), 40)
    assert lines[1:] == ["   one", "", "   two", ""]


def test_output_control_characters_are_shown() -> None:
    lines = drawn(conversation.message(entry("a\x1b[2Jb\tc\u202ed"), 1), 40)
    assert lines[1] == r"   a\x1b[2Jb\tc\u202ed"


def test_output_what_is_folded_is_counted_in_columns() -> None:
    folded = conversation.fold("京" * 100)
    assert cell_len(folded) <= conversation.FOLDED
    assert folded.endswith("京…")
    assert conversation.fold("x " * conversation.GLANCE).endswith("…")
    assert conversation.fold("京" * 60) == "京" * 60


def test_output_dry_run_tells_what_would_be() -> None:
    report = CopyReport()
    report.memories.selected = report.memories.written = report.memories.skipped = 2
    report.messages.deleted = report.messages.skipped = 3
    report.fail(MemoryKey("u", "s"), Failure("conflict", "holds something else"))
    planned, done = (
        "\n".join(drawn(tables.copy(report, "a", "b", dry_run=dry) or "", 200))
        for dry in (True, False)
    )
    for words in ("written", "skipped", "removed"):
        assert f"would be {words}" in planned
    assert "1 would be left unchanged" in planned
    assert "would" not in done


def test_output_copy_that_selected_nothing_speaks_only_when_it_ended() -> None:
    report = CopyReport()
    assert tables.copy(report, "a", "b", dry_run=False, ended=False) is None
    table = tables.copy(report, "a", "b", dry_run=False)
    assert table is not None
    assert "0 memories selected" in "\n".join(drawn(table, 80))


def test_output_media_of_2_x_are_shown_by_their_url() -> None:
    source = {"type": "url", "url": "https://example.com/a.png", "media_type": "image/png"}
    found = conversation.message(
        entry([{"type": "data", "source": source}]), 1, dialect=AGENTSCOPE2
    )
    text = "\n".join(drawn(found, 80))
    assert "https://example.com/a.png" in text
    assert "0 B" not in text


def test_output_empty_columns_leave_first() -> None:
    infos = [
        MemoryInfo(MemoryKey("ada", f"session{n}"), 10, 1000, {}, {"user": 5}, last="2026-10-02")
        for n in range(2)
    ]
    found = Catalogue(Totals(users=1, memories=2, messages=20, bytes=2000, summaries=0), infos)
    wide = drawn(tables.catalogue("store", "a store", found, None), 200)
    head = next(line for line in wide if line.startswith("user "))
    assert {"marks", "summary", "roles", "last"} <= {*head.split()}
    narrow = drawn(tables.catalogue("store", "a store", found, None), len(head) - 5)
    head = next(line for line in narrow if line.startswith("user "))
    assert {"roles", "last"} <= {*head.split()}
    assert "█" in "".join(narrow)
    assert not {"marks", "summary"} & {*head.split()}
