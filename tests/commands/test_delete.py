"""``memctl delete``: exactly the selected messages, of every store."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from memctl.model import MemoryKey, StoredMessage
from memctl.testing import Place, samples
from memctl.testing.samples import entry, sample
from tests.support.cli import Run, fails, report
from tests.support.places import held, ids, put


def marked(place: Place) -> list[MemoryKey]:
    """Fill a place with memories whose messages have the marks of ``samples``."""
    keys = place.keys(3)
    put(place, [sample(key, samples.entries(40 + n)) for n, key in enumerate(keys)])
    return keys


def test_delete_what_has_the_mark_goes_and_nothing_else(run: Run, place: Place) -> None:
    keys = marked(place)
    before = held(place)
    dry = report(run("delete", place.text, "--mark", "hint", "--dry-run", "--json"))
    assert held(place) == before
    found = report(run("delete", place.text, "--mark", "hint", "--yes", "--json"))
    after = held(place)
    expected = 0
    for key in keys:
        kept = [one for one in before[key][2] if "hint" not in one[1]]
        expected += len(before[key][2]) - len(kept)
        assert after[key] == (*before[key][:2], kept)
    assert expected
    assert found["schema"] == "memctl/delete/1"
    assert found["messages"]["deleted"] == found["messages"]["selected"] == expected
    assert found["memories"] == {"selected": len(keys), "written": len(keys), "failed": 0}
    assert dry["messages"] == found["messages"]
    assert (dry["dry_run"], "run" in dry) == (True, False)
    again = report(run("delete", place.text, "--mark", "hint", "--yes", "--json"))
    assert again["messages"]["selected"] == 0


@pytest.mark.parametrize("name", ["*", "%", "[a]", "_", "a?", ":"])
def test_delete_name_is_no_pattern(run: Run, place: Place, name: str) -> None:
    keys = place.keys(2)
    entries = [entry("m1", 1, ("a",)), entry("m2", 2, (name,)), entry("m3", 3, ("*%", "hint"))]
    put(place, [sample(key, entries) for key in keys])
    assert run("delete", place.text, "--mark", name, "--yes").exit_code == 0
    assert all(ids(place, key) == ["m1", "m3"] for key in keys)
    if place.backend.name != "state":  # there --user says whose memory it is
        nobody = ("--user", name + name)
        assert "nothing matched" in run("delete", place.text, *nobody, "--yes").stdout
        nothing = run("delete", place.text, *nobody, "--session", name, "--yes")
        fails(nothing, 4, "has no memory of")
    assert run("delete", place.text, "--id", name, "--yes").exit_code == 0
    assert all(ids(place, key) == ["m1", "m3"] for key in keys)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sqlite", "redis"])
def test_delete_users_named_like_patterns(run: Run, one: Callable[[str], Place], name: str) -> None:
    place = one(name)
    keys = [MemoryKey(user, session) for user in ("*", "%", "a", "[a]") for session in ("*", "s")]
    put(place, [sample(key, samples.entries(3)) for key in keys])
    for user, session in (("*", "*"), ("%", "s"), ("[a]", "*")):
        options = ("--user", user, "--session", session, "--yes")
        assert run("delete", place.text, *options).exit_code == 0
        keys.remove(MemoryKey(user, session))
        assert set(held(place)) == set(keys)


def test_delete_newest_stay(run: Run, place: Place) -> None:
    [key, *_] = keys = marked(place)
    options = ("--keep-last", "10", "--yes")
    assert run("delete", place.text, *options, "--mark", "hint").exit_code == 0
    left = held(place)[key][2]
    assert [id for id, _, _ in left[-10:]] == [f"m{n:07}" for n in range(30, 40)]
    assert not any("hint" in marks for _, marks, _ in left[:-10])
    assert run("delete", place.text, *options).exit_code == 0
    for number, key in enumerate(keys):
        assert ids(place, key) == [f"m{n:07}" for n in range(30 + number, 40 + number)]


@pytest.mark.slow
def test_delete_limit_stops_it_before_anything_goes(run: Run, place: Place) -> None:
    marked(place)
    before = held(place)
    total = sum(len(entries) for _, _, entries in before.values())
    chosen = ("delete", place.text, "--role", "user", "--yes", "--json")
    planned = report(run(*chosen, "--dry-run"))["messages"]["selected"]
    assert 0 < planned < total
    share = 100 * planned / total
    for limit in (f"{planned - 1}", "0", f"{share - 0.5:.3f}%"):
        found = report(run(*chosen, "--max-delete", limit), 9)
        assert found["error"]["code"] == "loss"
        assert found["messages"]["deleted"] == 0
        assert held(place) == before
    assert report(run("history", "--json"))["runs"] == []
    found = report(run(*chosen, "--max-delete", f"{share + 0.5:.3f}%"))
    assert found["messages"]["deleted"] == planned


def test_delete_everything_only_when_it_is_said(run: Run, place: Place) -> None:
    keys = marked(place)
    fails(run("delete", place.text, "--yes"), 2, "nothing is selected", "--all")
    fails(run("delete", place.text, "--all", "--mark", "hint", "--yes"), 2, "--all")
    fails(run("delete", place.text, "--all"), 2, "--yes")
    assert len(held(place)) == len(keys)
    assert run("delete", place.text, "--all", "--yes").exit_code == 0
    assert held(place) == {}


@pytest.mark.parametrize("limit", ["many", "-1", "1.5", "%", ""])
def test_delete_limit_that_is_none(run: Run, filled: str, limit: str) -> None:
    done = run("delete", filled, "--mark", "hint", "--yes", f"--max-delete={limit}")
    fails(done, 2, "--max-delete")


@pytest.mark.slow
def test_delete_nothing_matched_is_no_error(run: Run, filled: str) -> None:
    for options in (
        ("--mark", "unknown"),
        ("--id", "unknown"),
        ("--until", "2000-01-01"),
        ("--user", "nobody"),
    ):
        done = run("delete", filled, *options, "--yes")
        assert done.exit_code == 0
        assert "nothing matched" in done.stdout
    for named in (("--user", "user0", "--session", "none"), ("--session", "none")):
        fails(run("delete", filled, *named, "--yes"), 4, "none")
    fails(run("delete", filled + ".missing.db", "--mark", "hint", "--yes"), 4, "does not exist")
    fails(run("delete", "-", "--mark", "hint", "--yes"), 2, "cannot be changed")


def tool(kind: str, id: str) -> dict[str, object]:
    block = {"type": kind, "id": id, "name": "look"}
    return block | ({"input": {}} if kind == "tool_use" else {"output": "found"})


CALLS = [
    entry("ask", 1),
    entry("call", 2, ("old",), role="assistant", content=[tool("tool_use", "t1")]),
    entry("answer", 3, role="system", content=[tool("tool_result", "t1")]),
    entry(
        "both", 4, role="assistant", content=[tool("tool_use", "t2"), tool("tool_use", "t3")]
    ),
    entry("answer 2", 5, ("old",), role="system", content=[tool("tool_result", "t2")]),
    entry("answer 3", 6, role="system", content=[tool("tool_result", "t3")]),
    entry("alone", 7, ("old",), role="assistant", content=[tool("tool_use", "never")]),
    entry("end", 8, ("old",)),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sqlite", "postgresql", "mysql", "redis", "sessions", "archive"])
def test_delete_tool_call_and_its_result(run: Run, one: Callable[[str], Place], name: str) -> None:
    place = one(name)
    key, other = place.keys(2)
    put(place, [sample(key, CALLS), sample(other, samples.entries(5))])
    chosen = ("delete", place.text, "--mark", "old", "--yes", "--json")
    for options, left, parted in (
        ((), ["ask", "answer", "both", "answer 3"], 2),
        (("--keep-tool-pairs",), ["ask", "call", "answer", "both", "answer 2", "answer 3"], 0),
        (("--with-tool-pairs",), ["ask"], 0),
    ):
        found = report(run(*chosen, *options))
        assert ids(place, key) == left, options
        assert found.get("parted_tool_calls", 0) == parted
        assert any("--keep-tool-pairs" in text for text in found["warnings"]) == bool(parted)
        assert run("undo", found["run"], "--store", place.text).exit_code == 0
        assert ids(place, key) == [one.id for one in CALLS]
    fails(run(*chosen, "--keep-tool-pairs", "--with-tool-pairs"), 2, "cannot be combined")


def test_delete_pairs_that_go_together_are_not_parted(run: Run, filled: str) -> None:
    found = report(run("delete", filled, "--user", "user0", "--yes", "--json"))
    assert "parted_tool_calls" not in found


def test_delete_without_a_record_nothing_can_be_undone(run: Run, filled: str) -> None:
    found = report(run("delete", filled, "--mark", "hint", "--yes", "--no-backup", "--json"))
    assert found["messages"]["deleted"]
    assert "run" not in found
    fails(run("undo", "--yes"), 4, "no run can be undone")


@pytest.mark.slow
def test_delete_million_reasons_to_stream(run: Run, one: Callable[[str], Place]) -> None:
    """Many pages of one memory go, and come back."""
    place = one("sqlite")
    entries = [
        StoredMessage(
            f"m{n}", json.dumps({"id": f"m{n}", "role": "user"}).encode(), ("x",) * (n % 2)
        )
        for n in range(25_000)
    ]
    [key] = place.keys(1)
    put(place, [sample(key, entries)])
    assert (
        report(run("delete", place.text, "--mark", "x", "--yes", "--json"))["messages"]["deleted"]
        == 12_500
    )
    assert ids(place, key) == [one.id for one in entries[::2]]
    assert run("undo", "--yes").exit_code == 0
    assert ids(place, key) == [one.id for one in entries]


def test_delete_dry_run_names_what_would_go(run: Run, filled: str) -> None:
    words = ("delete", filled, "--mark", "hint", "--dry-run")
    found = report(run(*words, "--json"))
    assert [(row["user"], row["session"], row["messages"], row["stay"]) for row in found["plan"]]
    assert sum(row["messages"] for row in found["plan"]) == found["messages"]["deleted"]
    sizes = {
        (row["user"], row["session"]): row["messages"]
        for row in report(run("inspect", filled, "--json"))["memories"]
    }
    for row in found["plan"]:
        assert row["messages"] + row["stay"] == sizes[row["user"], row["session"]]
    shown = run(*words).stdout.splitlines()
    assert shown[3].split() == ["user", "session", "delete", "keep"]
    assert len(shown) == 4 + len(found["plan"])
    assert "plan" not in report(run("delete", filled, "--mark", "none", "--yes", "--json"))


def test_delete_dry_run_shows_the_first_memories(run: Run, one: Callable[[str], Place]) -> None:
    place = one("sqlite")
    keys = place.keys(13)
    put(place, [sample(key, samples.entries(3)) for key in keys])
    shown = run("delete", place.text, "--mark", "hint", "-n").stdout.splitlines()
    assert shown[-1] == "and 3 memories more: --json lists all"
    assert len(shown) == 4 + 10 + 1
    assert len(report(run("delete", place.text, "--mark", "hint", "-n", "--json"))["plan"]) == 13
