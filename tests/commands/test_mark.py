"""``memctl mark``: what AgentScope's ``update_messages_mark`` does, on every store."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from memctl.testing import Place, samples
from memctl.testing.samples import entry, sample
from tests.support.cli import Run, fails, report
from tests.support.places import Held, held, put

Marks = set[str]
AMONG = ("--role", "user", "--exclude-mark", "hint")
HOSTILE = [" hint", "*", "-x", "%s';--", "a:b:mark:c", "\x1b[31m\n", "e\u0301 \u202e😀", "x" * 200]
"""Names besides ``hint`` and ``a`` that some store or terminal could take for another."""


def fill(place: Place) -> Held:
    """Write memories with the marks of ``samples``, and summaries and expiries where possible."""
    able = place.store().features
    summary = "what was said" if able.summaries else None
    ttl = 5000.0 if able.ttl else None
    found = [
        sample(key, samples.entries(9 + number), summary=summary, ttl=ttl)
        for number, key in enumerate(place.keys(3))
    ]
    put(place, found)
    return held(place)


def remarked(before: Held, change: Callable[[str, Marks], Marks]) -> tuple[Held, int]:
    """The memories after a change of the marks by id, and how many messages it is."""
    number = 0
    after: Held = {}
    for key, (summary, expires, messages) in before.items():
        changed = [
            (id, tuple(sorted(change(id, set(marks)))), text) for id, marks, text in messages
        ]
        number += sum(one != other for one, other in zip(messages, changed, strict=True))
        after[key] = (summary, expires, changed)
    return after, number


def number(id: str) -> int:
    return int(id.removeprefix("m"))


CASES: dict[str, tuple[tuple[str, ...], Callable[[str, Marks], Marks]]] = {
    "add to all": (("add", "new", "--all"), lambda _, marks: marks | {"new"}),
    "add where some have it": (("add", "hint", "--all"), lambda _, marks: marks | {"hint"}),
    "add to those with a mark": (
        ("add", "new", "--mark", "hint", "--mark", "a"),
        lambda _, marks: marks | ({"new"} if marks & {"hint", "a"} else set()),
    ),
    "add by id": (
        ("add", "new", "--id", "m0000002", "--id", "m0000007", "--id", "m*"),
        lambda id, marks: marks | ({"new"} if number(id) in (2, 7) else set()),
    ),
    "add by what it is": (
        ("add", "new", *AMONG),
        lambda id, marks: marks
        | ({"new"} if number(id) % 3 == 0 and "hint" not in marks else set()),
    ),
    "remove": (("remove", "hint"), lambda _, marks: marks - {"hint"}),
    "remove where another is": (
        ("remove", "hint", "--mark", "considered"),
        lambda _, marks: marks - ({"hint"} if "considered" in marks else set()),
    ),
    "rename": (
        ("rename", "hint", "other"),
        lambda _, marks: marks - {"hint"} | {"other"} if "hint" in marks else marks,
    ),
    "rename onto one that is there": (
        ("rename", "considered", "hint"),
        lambda _, marks: marks - {"considered"} | {"hint"} if "considered" in marks else marks,
    ),
    "rename where another is": (
        ("rename", "hint", "other", "--mark", "considered"),
        lambda _, marks: marks - {"hint"} | {"other"} if marks >= {"hint", "considered"} else marks,
    ),
    "rename by id": (
        ("rename", "hint", "other", "--id", "m0000001"),
        lambda id, marks: marks - {"hint"} | {"other"} if number(id) == 1 else marks,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_marks_change_and_nothing_else(run: Run, place: Place, name: str) -> None:
    before, stored = fill(place), place.dump()
    (verb, *words), change = CASES[name]
    after, count = remarked(before, change)
    assert count
    dry = report(run("mark", verb, place.text, *words, "--dry-run", "--json"))
    assert place.dump() == stored
    found = report(run("mark", verb, place.text, *words, "--json"))
    assert held(place) == after
    assert found["messages"]["marked"] == found["messages"]["selected"] == count
    assert dry["messages"] == found["messages"]
    assert dry["dry_run"]
    assert "run" not in dry
    again = report(run("mark", verb, place.text, *words, "--json"))
    assert again["messages"]["marked"] == 0
    assert report(run("undo", found["run"], "--store", place.text, "--json"))
    assert held(place) == before


def test_mark_newest_alone(run: Run, place: Place) -> None:
    before = fill(place)
    assert run("mark", "add", place.text, "new", "--last", "2").exit_code == 0
    for key, (_, _, messages) in held(place).items():
        assert [id for id, marks, _ in messages if "new" in marks] == [
            id for id, _, _ in before[key][2][-2:]
        ]
    assert run("mark", "remove", place.text, "new", "--last", "1").exit_code == 0
    for key, (_, _, messages) in held(place).items():
        assert [id for id, marks, _ in messages if "new" in marks] == [before[key][2][-2][0]]


@pytest.mark.slow
def test_marks_that_look_like_something_else(run: Run, place: Place) -> None:
    [key, *_] = place.keys(1)
    put(place, [sample(key, [entry("m0", 0, ("hint", "a")), entry("m1", 1), entry("m2", 2)])])
    for name in HOSTILE:
        for id in ("m0", "m1"):
            assert run("mark", "add", place.text, "--id", id, "--", name).exit_code == 0, name
    marks = {id: set(found) for id, found, _ in held(place)[key][2]}
    assert marks == {"m0": {"hint", "a", *HOSTILE}, "m1": set(HOSTILE), "m2": set()}
    listed = report(run("mark", "list", place.text, "--json"))["marks"]
    counts = {row["mark"]: row["messages"] for row in listed if row["mark"] is not None}
    assert counts == {"hint": 1, "a": 1, **dict.fromkeys(HOSTILE, 2)}
    shown = run("mark", "list", place.text)
    assert "\x1b" not in shown.stdout
    assert "\\x1b[31m\\n" in shown.stdout
    assert run("mark", "rename", place.text, "--", HOSTILE[0], "hint").exit_code == 0
    for name in HOSTILE[1:]:
        assert run("mark", "remove", place.text, "--", name).exit_code == 0, name
    marks = {id: set(found) for id, found, _ in held(place)[key][2]}
    assert marks == {"m0": {"hint", "a"}, "m1": {"hint"}, "m2": set()}


def test_mark_what_is_listed(run: Run, place: Place) -> None:
    before = fill(place)
    listed = report(run("mark", "list", place.text, "--json"))
    assert listed["schema"] == "memctl/mark/1"
    for name in ("hint", "considered", "a"):
        [row] = [row for row in listed["marks"] if row["mark"] == name]
        counts = [
            sum(name in marks for _, marks, _ in messages) for _, _, messages in before.values()
        ]
        assert row == {
            "mark": name,
            "memories": sum(count > 0 for count in counts),
            "messages": sum(counts),
        }


def test_mark_nothing_matched(run: Run, place: Place) -> None:
    fill(place)
    stored = place.dump()
    for words in (("remove", "unknown"), ("rename", "unknown", "new"), ("add", "new", "--id", "x")):
        done = run("mark", words[0], place.text, *words[1:])
        assert done.exit_code == 0
        assert "nothing matched" in done.stdout
    assert place.dump() == stored
    assert report(run("history", "--json"))["runs"] == []


@pytest.mark.slow
def test_mark_whose_it_is(run: Run, filled: str) -> None:
    for words in (("list",), ("add", "new"), ("remove", "hint")):
        named = ("--user", "nobody", "--session", "none")
        fails(run("mark", words[0], filled, *words[1:], *named), 4, "nobody")
        assert run("mark", words[0], filled, *words[1:], *named[:2]).exit_code == 0
        everything = ("--all",) * (words[0] == "add")
        absent = filled + ".no.db"
        fails(run("mark", words[0], absent, *words[1:], *everything), 4, "does not exist")
    assert run("mark", "add", filled, "new", "--user", "user1").exit_code == 0
    for user, count in (("user0", 0), ("user1", 40)):
        listed = report(run("mark", "list", filled, "--user", user, "--json"))["marks"]
        assert sum(row["messages"] for row in listed if row["mark"] == "new") == count


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("add", "STORE", ""), "empty"),
        (("rename", "STORE", "hint", ""), "empty"),
        (("rename", "STORE", "hint", "hint"), "both marks are the same"),
        (("add", "STORE", "\udcff"), "is not valid text"),
        (("add", "-", "new", "--all"), "cannot be changed"),
        (("add", "STORE", "new"), "nothing is selected"),
        (("add", "STORE", "new", "--all", "--user", "user0"), "cannot be combined"),
    ],
)
def test_mark_what_is_no_mark(run: Run, filled: str, words: tuple[str, ...], said: str) -> None:
    fails(run("mark", *(filled if word == "STORE" else word for word in words)), 2, said)


@pytest.mark.parametrize(
    ("name", "mark", "code"),
    [
        ("postgresql", "x" * 300, "refused"),
        ("mysql", "x" * 300, "refused"),
        (
            "mysql",
            "hint ",
            "repeated-id",
        ),  # to its collation that is ``hint``
    ],
)
def test_mark_that_the_store_does_not_take(
    run: Run, one: Callable[[str], Place], name: str, mark: str, code: str
) -> None:
    place = one(name)
    before = fill(place)
    found = report(run("mark", "add", "--all", place.text, mark, "--json"), 7)
    assert {failure["code"] for failure in found["failures"]} == {code}
    assert found["messages"]["marked"] == 0
    assert found["messages"]["failed"] == found["messages"]["selected"] > 0
    assert held(place) == before


def test_mark_without_a_record(run: Run, filled: str) -> None:
    found = report(run("mark", "add", "--all", filled, "new", "--no-backup", "--json"))
    assert found["messages"]["marked"] == 100
    assert "run" not in found
    assert report(run("history", "--json"))["runs"] == []
