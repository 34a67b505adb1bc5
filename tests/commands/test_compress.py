"""``memctl compress``: a summary takes the place of old messages, in every store."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from memctl.model import MemoryKey
from memctl.testing import Place
from memctl.testing.samples import entry, sample
from tests.support.cli import Run, fails, report
from tests.support.compressing import (
    CODES,
    MODES,
    Words,
    codes_in,
    configure,
    fill,
    holds_summaries,
    rest_of,
    summary_of,
    talk,
)
from tests.support.places import append, held, ids, put
from tests.support.servers.pool import Servers

OLD = [0, 2, 3, 4, 5, 6, 7, 8]
"""The messages of ``fill`` to be summarized: not the newest, nor those summarized before."""


@pytest.fixture
def by_codes(tmp_path: Path) -> Words:
    """The words of a compress by the summarizer ``codes``."""
    path = configure(tmp_path, CODES)

    def words(store: str, *more: object) -> list[object]:
        words = ["--config", path, "compress", store, "--summarizer", "codes", "--yes", "--json"]
        return [*words, "--keep-recent", "3", *more]

    return words


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_compress_summary_takes_the_place_of_old_messages(
    run: Run, place: Place, by_codes: Words, mode: str
) -> None:
    keys = fill(place)
    before = held(place)
    words = by_codes(place.text, "--mode", mode)
    if mode == "mark" and not holds_summaries(place):
        found = report(run(*words), 9)
        assert "?state=" in found["error"]["hint"]
        assert held(place) == before
        return
    files = place.dump() if place.location.path else None
    dry = report(run(*words, "--dry-run"))
    assert held(place) == before
    assert files is None or place.dump() == files
    found = report(run(*words))
    after = held(place)
    for key in keys:
        assert codes_in(summary_of(place, key)) == OLD
        summary, expires, messages = after[key]
        assert messages[-3:] == before[key][2][-3:]
        assert expires == before[key][1]
        assert bool(summary) == (mode == "mark")
        if mode != "mark":
            first = json.loads(messages[0][2])
            assert (first["role"], first["name"], messages[0][1]) == ("user", "user", ("summary",))
        kept = {} if mode == "replace" else dict.fromkeys(ids_of(OLD), "compressed")
        marks = {id: marks for id, marks, _ in before[key][2]}
        assert rest_of(place, key) == {
            id: tuple(sorted({*marks[id], kept[id]})) if id in kept else marks[id]
            for id in marks
            if mode != "replace" or id in ids_of(range(9, 12))
        }
    all_old, spent = len(OLD) * len(keys), len(keys) * (mode == "replace")
    marked = 0 if mode == "replace" else all_old
    deleted = all_old + spent if mode == "replace" else 0
    expected = {"selected": all_old, "marked": marked, "deleted": deleted, "failed": 0}
    assert found["messages"] == dry["messages"] == expected
    memories = {"selected": len(keys), "written": len(keys), "failed": 0, "left": 0}
    assert found["memories"] == dry["memories"] == memories
    assert dry["tokens"]["before"] == found["tokens"]["before"]
    assert dry["tokens"]["summarised"] == found["tokens"]["summarised"]
    assert (dry["dry_run"], dry["tokens"]["after"], "run" in dry) == (True, None, False)

    again = report(run(*words))
    assert (again["messages"]["selected"], "run" in again) == (0, False)
    assert held(place) == after

    undone = report(run("undo", found["run"], "--store", place.text, "--json"))
    assert held(place) == before
    redone = report(run("undo", undone["run"], "--store", place.text, "--json"))
    assert held(place) == after
    assert run("undo", redone["run"], "--store", place.text).exit_code == 0
    assert held(place) == before


def ids_of(numbers: Any) -> list[str]:
    return [f"m{n:07}" for n in numbers]


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_compress_earlier_summary_is_folded_in_and_replaced(
    run: Run, place: Place, by_codes: Words, mode: str
) -> None:
    if mode == "mark" and not holds_summaries(place):
        return
    keys = fill(place)
    words = by_codes(place.text, "--mode", mode)
    report(run(*words))
    for key in keys:
        append(place, key, talk(range(12, 16)))
    before = held(place)
    dry = report(run(*words, "--dry-run"))
    found = report(run(*words))
    for key in keys:
        assert codes_in(summary_of(place, key)) == [*OLD, 9, 10, 11, 12]
        assert ids(place, key)[-3:] == ids_of([13, 14, 15])
    assert found["messages"] == dry["messages"]
    assert found["messages"]["selected"] == 4 * len(keys)
    assert report(run("undo", found["run"], "--store", place.text, "--json"))
    assert held(place) == before
    if mode != "message":
        return
    report(run(*words, "--mode", "replace"))
    for key in keys:
        assert codes_in(summary_of(place, key)) == [*OLD, 9, 10, 11, 12]
        assert len(ids(place, key)) == 4, "what was marked before goes, too"


@pytest.mark.parametrize("name", ["redis", "sessions", "archive", "sqlite"])
def test_compress_summary_in_the_middle_finds_its_way_back(
    run: Run, one: Callable[[str], Place], by_codes: Words, name: str
) -> None:
    place = one(name)
    [key] = place.keys(1)
    spent = [one._replace(marks=("compressed",)) for one in talk([0, 1])]
    put(
        place,
        [sample(key, [*spent, entry("s", 1, ("summary",), content="CODE77"), *talk(range(3, 9))])],
    )
    before = held(place)
    report(run(*by_codes(place.text, "--mode", "message")))
    assert codes_in(summary_of(place, key)) == [77, 3, 4, 5]
    assert run("undo", "--yes").exit_code == 0
    assert held(place) == before


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sqlite", "postgresql", "mysql", "redis", "redis ?state=redis"])
def test_compress_summaries_kept_elsewhere(
    run: Run, one: Callable[[str], Place], by_codes: Words, tmp_path: Path, name: str
) -> None:
    plain = one(name.split()[0])
    state = "redis" if "?" in name else f"{tmp_path}/states"
    text = f"{plain.text}{'&' if '?' in plain.text else '?'}state={state}"
    place = Place(plain.backend, text, tmp_path)
    keys = fill(place, summary="CODE99")
    before = held(place)
    dry = report(run(*by_codes(text, "--dry-run")))
    assert (dry["mode"], held(place)) == ("mark", before)
    found = report(run(*by_codes(text)))
    after = held(place)
    for key in keys:
        assert codes_in(after[key][0] or "") == [99, *OLD]
        assert codes_in(summary_of(place, key)) == [99, *OLD]
        assert after[key][1] == before[key][1], "its expiry"
    if state != "redis":
        assert len(list(Path(state).rglob("*.json"))) == len(keys)
    assert report(run(*by_codes(text)))["messages"]["selected"] == 0
    undone = report(run("undo", found["run"], "--store", text, "--json"))
    assert held(place) == before
    assert run("undo", undone["run"], "--store", text).exit_code == 0
    assert held(place) == after
    new = MemoryKey("new", "new")
    put(place, [sample(new, talk(range(9)))])
    alone = report(run(*by_codes(text)), 7)
    assert [(one["user"], one["code"]) for one in alone["failures"]] == [("new", "no-state")]
    assert ids(place, new) == ids_of(range(9))


def test_compress_expiry_stays(run: Run, one: Callable[[str], Place], by_codes: Words) -> None:
    place = one("redis")
    fill(place)
    for mode in ("message", "replace"):
        report(run(*by_codes(place.text, "--mode", mode)))
        ttls = [row["ttl"] for row in report(run("inspect", place.text, "--json"))["memories"]]
        assert all(4900 < ttl <= 5000 for ttl in ttls), (mode, ttls)
        assert len(ttls) == 3


# What is selected


def summed_up(place: Place, key: MemoryKey) -> list[int]:
    """The numbers of the messages that the summary of a memory is of."""
    return codes_in(summary_of(place, key))


SELECTIONS: dict[str, tuple[list[str], list[int]]] = {
    "until": (["--until", "2025-03-01 12:05"], [0, 2, 3, 4]),
    "since": (["--since", "2025-03-01 12:05"], [5, 6, 7, 8]),
    "exclude-mark": (["--exclude-mark", "hint"], [0, 3, 5, 6, 7, 8]),
    "mark": (["--mark", "hint"], [2, 4]),
    "role": (["--role", "assistant"], [4, 7]),
    "match": (["--match", "CODE3"], [3]),
    "keep-recent": (["--keep-recent", "9"], [0, 2]),
    "keep-last": (["--keep-last", "9"], [0, 2]),
    "keep-recent 1": (["--keep-recent", "1"], [*OLD, 9, 10]),
}


@pytest.mark.parametrize("name", ["sqlite", "redis", "sessions", "archive"])
@pytest.mark.parametrize("what", SELECTIONS)
def test_compress_only_what_is_selected(
    run: Run, one: Callable[[str], Place], by_codes: Words, name: str, what: str
) -> None:
    place = one(name)
    [key] = fill(place, 1)
    options, expected = SELECTIONS[what]
    for mode in ("message", "replace"):
        found = report(run(*by_codes(place.text, "--mode", mode, *options)))
        assert summed_up(place, key) == expected
        left = rest_of(place, key)
        if mode == "replace":
            assert set(ids_of(range(12))) - set(left) == set(ids_of([*expected, 1]))
        else:
            now = {id for id, marks in left.items() if "compressed" in marks}
            assert now == set(ids_of([*expected, 1]))
        assert run("undo", found["run"]).exit_code == 0


@pytest.mark.slow
def test_compress_names_are_no_patterns(
    run: Run, one: Callable[[str], Place], by_codes: Words
) -> None:
    for name in ("sqlite", "redis"):
        place = one(name)
        keys = [MemoryKey(user, session) for user in ("*", "a", "%") for session in ("*", "s")]
        put(place, [sample(key, talk(range(6))) for key in keys])
        report(run(*by_codes(place.text, "--user", "*", "--session", "s", "--mode", "replace")))
        compressed = [key for key, (_, _, found) in held(place).items() if len(found) < 6]
        assert compressed == [MemoryKey("*", "s")]
        nobody = report(run(*by_codes(place.text, "--user", "**")), 4)
        assert nobody["error"]["code"] == "not-found"
        none = report(run(*by_codes(place.text, "--mark", "*")))
        assert none["messages"]["selected"] == 0
        done = report(run(*by_codes(place.text, "--exclude-mark", "*", "--user", "%")))
        assert done["memories"]["written"] == 2


def tool(kind: str, id: str, code: int) -> dict[str, object]:
    block = {"type": kind, "id": id, "name": "look"}
    return block | (
        {"input": {"a": f"CODE{code}"}} if kind == "tool_use" else {"output": f"CODE{code}"}
    )


CALLS = [
    entry("ask", 0, content="CODE0"),
    entry("call", 1, role="assistant", content=[tool("tool_use", "t1", 1)]),
    entry("answer", 2, role="system", content=[tool("tool_result", "t1", 2)]),
    entry("said", 3, role="assistant", content="CODE3"),
    entry(
        "both", 4, role="assistant", content=[tool("tool_use", "t2", 4), tool("tool_use", "t3", 4)]
    ),
    entry("answer 2", 5, role="system", content=[tool("tool_result", "t2", 5)]),
    entry("answer 3", 6, role="system", content=[tool("tool_result", "t3", 6)]),
    entry("end", 7, content="CODE7"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sqlite", "redis", "sessions"])
@pytest.mark.parametrize("mode", ["message", "replace"])
def test_compress_tool_call_and_its_result_are_not_parted(
    run: Run, one: Callable[[str], Place], by_codes: Words, name: str, mode: str
) -> None:
    place = one(name)
    [key] = place.keys(1)
    put(place, [sample(key, CALLS)])
    for options, expected in (
        (["--keep-recent", "1"], [0, 1, 2, 3, 4, 4, 5, 6]),
        (["--keep-recent", "2"], [0, 1, 2, 3]),  # both, its answers, and the end
        (["--keep-recent", "4"], [0]),
        (["--keep-recent", "1", "--role", "assistant"], [3]),
        (["--keep-recent", "1", "--role", "system", "--role", "assistant"], [1, 2, 3, 4, 4, 5, 6]),
        (["--keep-recent", "1", "--id", "both", "--id", "answer 2", "--id", "ask"], [0]),
    ):
        found = report(run(*by_codes(place.text, "--mode", mode, *options)))
        assert summed_up(place, key) == expected, options
        assert run("undo", found["run"]).exit_code == 0
        assert ids(place, key) == [one.id for one in CALLS]


@pytest.mark.parametrize(
    ("options", "done"),
    [
        (["--trigger-messages", "8"], 0),
        (["--trigger-messages", "7"], 3),
        (["--trigger-tokens", "100000"], 0),
        (["--trigger-tokens", "50"], 3),
        (["--trigger-tokens", "100000", "--trigger-messages", "7"], 3),
        (["--keep-recent", "12"], 0),
        (["--keep-recent", "100"], 0),
        (["--max-memories", "2"], 2),
    ],
)
def test_compress_when_it_is_worth_it(
    run: Run, one: Callable[[str], Place], by_codes: Words, options: list[str], done: int
) -> None:
    place = one("sqlite")
    fill(place)
    for more in (["--dry-run"], []):
        found = report(run(*by_codes(place.text, *options, *more)))
        assert found["memories"]["written"] == done
    if "--max-memories" in options:
        rest = report(run(*by_codes(place.text, *options)))
        assert rest["memories"]["written"] == 1, "the next run goes on"


def test_compress_what_is_not_understood(
    run: Run, filled: str, servers: Servers, by_codes: Words
) -> None:
    fails(run(*by_codes(filled)[:4], "--all", "--summarizer", "code"), 2, "did you mean 'codes'?")
    fails(run("compress", filled, "--all", "--summarizer", "mine"), 2, "[summarizers.NAME]")
    fails(run("compress", filled, "--all", "--mode", "mark"), 9, "?state=")
    fails(run("compress", filled, "--user", "nobody"), 4, "nobody")
    fails(run("compress", filled, "--user", "nobody", "--dry-run"), 4, "nobody")
    fails(run("compress", filled + ".none.db", "--all"), 4, "does not exist")
    fails(run("compress", "-", "--all"), 2, "cannot be changed")
    fails(run("compress", filled, "--last", "3"), 2, "--keep-recent")
    fails(run("compress", servers.redis.fresh(), "--user", "nobody"), 4, "nobody")
    assert run("compress", filled, "--keep-recent", "0").exit_code == 2
    assert run("compress", filled, "--jobs", "0").exit_code == 2
    assert run("compress", filled, "--max-cost", "-1").exit_code == 2
    assert report(run("history", "--json"))["runs"] == []


PRICED = CODES + "input_price = 1000.0\noutput_price = 2.0\n"


@pytest.mark.slow
def test_compress_no_more_than_it_may_cost(
    run: Run, one: Callable[[str], Place], tmp_path: Path
) -> None:
    place = one("sqlite")
    fill(place, 6, messages=60)
    words = ("--config", configure(tmp_path, PRICED), "compress", place.text, "--all")
    words = (*words, "--summarizer", "codes", "--jobs", "1", "--json")
    dry = report(run(*words, "--dry-run"))
    all_of_it, model = dry["model"]["cost"], dry["model"]
    assert all_of_it == model["tokens_in"] / 1000 + model["tokens_out"] / 500_000
    assert report(run(*words, "--max-cost", "0"))["memories"] == {
        "selected": 6, "written": 0, "failed": 0, "left": 6,
    }  # fmt: skip
    limit = all_of_it * 0.55
    foreseen = report(run(*words, "--max-cost", limit, "--dry-run"))
    found = report(run(*words, "--max-cost", limit))
    done = found["memories"]["written"]
    assert 2 <= done < 6
    assert found["memories"]["left"] == 6 - done
    assert 0 < found["model"]["cost"] <= limit
    assert foreseen["memories"]["selected"] == 6
    assert foreseen["memories"]["left"] == 6 - len(foreseen["plan"])
    assert 0 < foreseen["model"]["cost"] <= limit
    assert len(foreseen["plan"]) == foreseen["memories"]["written"] <= done
    assert any("--max-cost" in text for text in found["warnings"])
    assert report(run(*words))["memories"]["written"] == 6 - done
    fails(run("compress", place.text, "--all", "--max-cost", "1"), 2, "input_price")


@pytest.mark.slow
def test_compress_every_form_of_the_report(run: Run, filled: str) -> None:
    table = run("compress", filled, "--all", "--dry-run")
    assert "4 memories would be compressed by extractive" in table.stdout
    assert "(estimated)" in table.stdout
    dry = report(run("compress", filled, "--all", "--dry-run", "--json"))
    assert dry["model"]["tokens_in"] == 0, "no model is asked"
    [row] = csv.DictReader(
        io.StringIO(run("compress", filled, "--all", "--dry-run", "--format", "csv").stdout)
    )
    assert int(row["messages_selected"]) == dry["messages"]["selected"] == 88
    assert int(row["tokens_before"]) == dry["tokens"]["before"]
    lines = run("compress", filled, "--all", "--format", "ndjson").stdout.splitlines()
    [done] = map(json.loads, lines)
    assert (done["mode"], done["summarizer"]) == ("message", "extractive")
    assert done["memories_written"] == 4
    assert done["tokens_before"] == dry["tokens"]["before"] > done["tokens_after"] > 0
    assert done["tokens_ratio"] == round(done["tokens_after"] / done["tokens_before"], 4)
    assert re.search(
        r"nothing to compress; the largest memory, 'user\d'/'session\d', has "
        r"\d+ messages, \d+ tokens \(estimated\), including what --keep-recent keeps\n",
        run("compress", filled, "--all").stdout,
    )
    [kept] = report(run("history", "--json"))["runs"]
    assert (kept["command"], kept["outcome"], kept["run"]) == ("compress", "done", done["run"])
    assert "4 summarised, 88 marked" in run("history").stdout
    assert run("undo", "--yes").exit_code == 0
    shown = run("compress", filled, "--all")
    assert "4 memories compressed by extractive, 88 messages" in shown.stdout
    assert "undo it with: memctl undo" in shown.stdout
    gone = run("undo", "--yes")
    assert gone.exit_code == 0
    found = report(run("compress", filled, "--all", "--no-backup", "--json"))
    assert (found["memories"]["written"], "run" in found) == (4, False)
    fails(run("undo", "--yes"), 4, "no run can be undone")


@pytest.mark.slow
def test_compress_text_around_a_summary(run: Run, filled: str, tmp_path: Path) -> None:
    file = tmp_path / "template"
    file.write_text("<mine>{task_overview} | {{}} {next_steps}</mine>")
    words = ("compress", filled, "--all", "--template-file", file)
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
        ("{", "is not valid"),
        ("nothing", "no place"),
        (" \n", "is empty"),
    ):
        file.write_text(text)
        fails(run(*words, "--dry-run"), 2, said)
    fails(
        run("compress", filled, "--all", "--template-file", tmp_path / "none"), 2, "cannot be read"
    )


def test_compress_prompt_of_ones_own(run: Run, filled: str, tmp_path: Path) -> None:
    told = tmp_path / "prompt"
    told.write_text("Write as a PIRATE would.")
    config = """
    [summarizers.echo]
    kind = "command"
    command = "grep -o PIRATE || true"
    """
    words = ("--config", configure(tmp_path, config), "compress", filled)
    words = (*words, "--summarizer", "echo", "--json")
    found = report(run(*words, "--user", "user0", "--session", "session0"), 7)
    assert found["failures"][0]["code"] == "bad-reply", "memctl's own prompt knows no pirate"
    words = (*words, "--all")
    assert report(run(*words, "--prompt-file", told))["memories"]["written"] == 4
    fails(run("compress", filled, "--all", "--prompt-file", told), 2, "extractive")
    told.write_bytes(b"\xff\xfe")
    fails(run(*words, "--prompt-file", told), 2, "cannot be read")
    os.mkfifo(tmp_path / "pipe")
    for option in ("--prompt-file", "--template-file"):
        fails(run(*words, option, tmp_path / "pipe"), 2, "not a regular file")


def test_compress_says_which_memories_did_not_get_smaller(
    run: Run, one: Callable[[str], Place]
) -> None:
    place = one("sqlite")
    for key, text in zip(place.keys(2), ("hi", "a word " * 500), strict=True):
        put(place, [sample(key, [entry(f"m{number}", content=text) for number in range(3)])])
    shown = run("compress", place.text, "--all", "--keep-recent", "1").stdout
    assert "2 memories compressed by extractive" in shown
    assert re.search(r"context: .* \(estimated\); 1 memory not smaller\n", shown)


# What is confirmed


@pytest.mark.slow
def test_compress_of_everything_wants_all(run: Run, filled: str) -> None:
    hint = "select with --mark, --user or --older-than 90d, or use --all for everything"
    for mode in ("message", "replace"):
        for more in ([], ["--dry-run"], ["--yes"], ["--max-memories", "1"]):
            fails(run("compress", filled, "--mode", mode, *more), 2, "nothing is selected", hint)
    fails(run("compress", filled, "--all", "--user", "user0"), 2, "cannot be combined")
    for words in (
        ["--all"],
        ["--user", "user0"],
        ["--keep-recent", "3"],
        ["--trigger-tokens", "9"],
    ):
        assert run("compress", filled, *words).exit_code == 0
        assert run("undo", "--yes").exit_code == 0


@pytest.mark.slow
def test_compress_replace_needs_yes_without_a_terminal(
    run: Run, one: Callable[[str], Place]
) -> None:
    place = one("sqlite")
    keys = fill(place)
    before = held(place)
    words = ("compress", place.text, "--all", "--mode", "replace")
    fails(run(*words), 2, "refusing without confirmation: not a terminal", "use --yes")
    assert held(place) == before
    assert report(run(*words, "--dry-run", "--json"))["messages"]["deleted"] == 9 * len(keys)
    assert report(run(*words, "--yes", "--json"))["messages"]["deleted"] == 9 * len(keys)
    assert run("undo", "--yes").exit_code == 0
    assert held(place) == before


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["26", "74%", "27", "75%"])
def test_compress_max_delete(run: Run, one: Callable[[str], Place], limit: str) -> None:
    """27 of 36 messages would go, with those that were compressed before."""
    place = one("sqlite")
    fill(place)
    before = held(place)
    words = ("compress", place.text, "--all", "--mode", "replace", "--max-delete", limit)
    for more in (["--dry-run"], ["--yes"]):
        result = run(*words, *more)
        if limit in ("26", "74%"):
            said = f"27 messages would be deleted, more than --max-delete {limit}"
            fails(result, 9, said, "nothing was deleted")
            assert held(place) == before
        else:
            assert result.exit_code == 0
    assert (held(place) == before) == (limit in ("26", "74%"))
    fails(run(*words[:-1], "many"), 2, "--max-delete 'many' is not a valid limit")


@pytest.mark.parametrize("words", [["--trigger-messages", "100"], ["--max-cost", "0"]])
def test_compress_nothing_within_a_limit(
    run: Run, one: Callable[[str], Place], tmp_path: Path, words: list[str]
) -> None:
    place = one("sqlite")
    fill(place)
    before = held(place)
    config = configure(tmp_path, PRICED)
    words = ["compress", place.text, "--all", "--mode", "replace", "--summarizer", "codes", *words]
    done = run("--config", config, *words, "--max-delete", "1", "--yes")
    assert done.exit_code == 0
    assert ("the largest memory" in done.stdout) == ("--trigger-messages" in words)
    assert ("3 memories not compressed because of --max-cost" in done.stderr) == (
        "--max-cost" in words
    )
    assert held(place) == before


@pytest.mark.slow
def test_compress_a_store_without_marks_says_where_it_works(run: Run, tmp_path: Path) -> None:
    store, target = tmp_path / "chats.db", tmp_path / "agents.db"
    with closing(sqlite3.connect(store)) as database, database:
        database.execute(
            "CREATE TABLE message_store (id INTEGER PRIMARY KEY, session_id TEXT, message TEXT)"
        )
        text = '{"type": "human", "data": {"content": "we fly to Kyoto in May"}}'
        database.executemany(
            "INSERT INTO message_store (session_id, message) VALUES ('s', ?)", [(text,)] * 9
        )
    for mode in ((), ("--mode", "replace")):
        fails(
            run("compress", store, "--all", "--yes", *mode),
            *(2, "its messages have no marks; copy it to AgentScope to compress it: "),
            f"memctl migrate {store} agents.db",
        )
    assert run("migrate", store, target).exit_code == 0
    assert run("compress", target, "--all").exit_code == 0
