"""What a compress costs, what it tells of itself, and how its summaries are worded."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

from memctl.testing import Place
from tests.support.cli import Run, fails, report
from tests.support.compressing import CODES, configure, fill

PRICED = CODES + "input_price = 1000.0\noutput_price = 2.0\n"


def test_compress_no_more_than_it_may_cost(
    run: Run, one: Callable[[str], Place], tmp_path: Path
) -> None:
    place = one("sqlite")
    fill(place, 6, messages=60)
    words = ("--config", configure(tmp_path, PRICED), "compress", place.text)
    words = (*words, "--summarizer", "codes", "--jobs", "1", "--json")
    dry = report(run(*words, "--dry-run"))
    all_of_it, model = dry["model"]["cost"], dry["model"]
    assert all_of_it == model["tokens_in"] / 1000 + model["tokens_out"] / 500_000
    assert report(run(*words, "--max-cost", "0"))["memories"] == {
        "selected": 6, "written": 0, "failed": 0, "left": 6,
    }  # fmt: skip
    limit = all_of_it * 0.55
    found = report(run(*words, "--max-cost", limit))
    done = found["memories"]["written"]
    assert 2 <= done < 6
    assert found["memories"]["left"] == 6 - done
    assert 0 < found["model"]["cost"] <= limit
    assert any("--max-cost" in text for text in found["warnings"])
    assert report(run(*words))["memories"]["written"] == 6 - done
    fails(run("compress", place.text, "--max-cost", "1"), 2, "input_price")


def test_compress_every_form_of_the_report(run: Run, filled: str) -> None:
    table = run("compress", filled, "--dry-run")
    assert "4 memories would be compressed by extractive" in table.stdout
    assert "(estimated)" in table.stdout
    dry = report(run("compress", filled, "--dry-run", "--json"))
    assert dry["model"]["tokens_in"] == 0, "no model is asked"
    [row] = csv.DictReader(
        io.StringIO(run("compress", filled, "--dry-run", "--format", "csv").stdout)
    )
    assert int(row["messages_selected"]) == dry["messages"]["selected"] == 62
    assert int(row["tokens_before"]) == dry["tokens"]["before"]
    lines = run("compress", filled, "--format", "ndjson").stdout.splitlines()
    [done] = map(json.loads, lines)
    assert (done["mode"], done["summarizer"]) == ("message", "extractive")
    assert done["memories_written"] == 4
    assert done["tokens_before"] == dry["tokens"]["before"] > done["tokens_after"] > 0
    assert done["tokens_ratio"] == round(done["tokens_after"] / done["tokens_before"], 4)
    assert "nothing to compress" in run("compress", filled).stdout
    [kept] = report(run("history", "--json"))["runs"]
    assert (kept["command"], kept["outcome"], kept["run"]) == ("compress", "done", done["run"])
    assert "4 summarised, 62 marked" in run("history").stdout
    assert run("undo", "--yes").exit_code == 0
    shown = run("compress", filled)
    assert "4 memories compressed by extractive, 62 messages" in shown.stdout
    assert "undoes it" in shown.stdout
    gone = run("undo", "--yes")
    assert gone.exit_code == 0
    found = report(run("compress", filled, "--no-backup", "--json"))
    assert (found["memories"]["written"], "run" in found) == (4, False)
    fails(run("undo", "--yes"), 4, "no run to be undone")


def test_compress_text_around_a_summary(run: Run, filled: str, tmp_path: Path) -> None:
    file = tmp_path / "template"
    file.write_text("<mine>{task_overview} | {{}} {next_steps}</mine>")
    words = ("compress", filled, "--template-file", file)
    report(run(*words, "--json"))
    shown = run("inspect", filled, "--messages", "--mark", "summary", "--json").stdout
    assert shown.count("<mine>message") == shown.count("| {} ") == 4
    for text, said in (
        ("{task_overview} {overview}", "'overview'"),
        ("{task_overview.__class__}", "not a field"),
        ("{task_overview:>{next_steps}}", "more than the name"),
        ("{task_overview!r}", "more than the name"),
        ("{task_overview[0]}", "not a field"),
        ("{0}", "not a field"),
        ("{", "not one"),
        ("nothing", "no place"),
        (" \n", "is empty"),
    ):
        file.write_text(text)
        fails(run(*words, "--dry-run"), 2, said)
    fails(run("compress", filled, "--template-file", tmp_path / "none"), 2, "cannot be read")


def test_compress_prompt_of_ones_own(run: Run, filled: str, tmp_path: Path) -> None:
    told = tmp_path / "prompt"
    told.write_text("Write as a PIRATE would.")
    config = """
    [summarizers.echo]
    kind = "command"
    command = "grep -o PIRATE || true"
    """
    words = ("--config", configure(tmp_path, config), "compress", filled, "--summarizer", "echo")
    found = report(run(*words, "--json", "--user", "user0", "--session", "session0"), 7)
    assert found["failures"][0]["code"] == "bad-reply", "memctl's own prompt knows no pirate"
    assert report(run(*words, "--json", "--prompt-file", told))["memories"]["written"] == 4
    fails(run("compress", filled, "--prompt-file", told), 2, "extractive")
    told.write_bytes(b"\xff\xfe")
    fails(run(*words, "--prompt-file", told), 2, "cannot be read")
