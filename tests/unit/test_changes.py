"""Changes find their messages, in whatever pieces both come; undone, they leave no trace."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memctl.model import Change, StoredMessage
from memctl.storekit.edits import ChangeMatcher, Drop, Keep, Mark, Put

MARKS = st.lists(st.sampled_from(["hint", "compressed", "a"]), max_size=3, unique=True).map(tuple)
SIZES = st.integers(1, 5)


def entry(id: str, *marks: str) -> StoredMessage:
    return StoredMessage(id, f'{{"id": "{id}"}}'.encode(), marks)


def applied(
    entries: list[StoredMessage],
    changes: list[Change],
    batch: int = 100,
    page: int = 100,
    shared_ids: frozenset[str] = frozenset(),
) -> list[StoredMessage] | None:
    """The memory as it is then; None where the changes do not fit."""
    work = ChangeMatcher(shared_ids)
    found: list[StoredMessage] = []
    pages = [changes[start : start + page] for start in range(0, len(changes), page)] or [[]]
    pages.reverse()
    batches = [entries[start : start + batch] for start in range(0, len(entries), batch)]
    for some in [*batches, []]:
        ids, marks = [one.id for one in some], [one.marks for one in some]
        at = 0
        while True:
            if work.needs_changes:
                work.give(pages.pop(), last=not pages)
            steps, at = work.apply(ids, marks, at)
            for step in steps:
                match step:
                    case Keep(start, stop):
                        found += some[start:stop]
                    case Mark(number, new, shape):
                        found.append(some[number]._replace(marks=new, shape=shape))
                    case Put(new):
                        found.append(new)
                    case Drop():
                        pass
            if not work.needs_changes:
                assert at == len(some)
                break
    return None if work.failure() else found


def changes_between(before: list[StoredMessage], after: list[StoredMessage]) -> list[Change]:
    """Return the changes between two memories whose common messages are in the same order."""
    kept = {one.id for one in before} & {one.id for one in after}
    new = {one.id: one.marks for one in after}
    coming = iter(after)
    found: list[Change] = []

    def puts(behind: str | None) -> Iterator[Change]:
        for one in coming:
            if one.id in kept:
                return
            yield Change(one.id, None, one.marks, one.message, behind)

    found += puts(None)
    for one in before:
        if one.id not in kept:
            found.append(Change(one.id, one.marks))
            continue
        if new[one.id] != one.marks:
            found.append(Change(one.id, one.marks, new[one.id]))
        found += puts(one.id)
    return found


@st.composite
def two_memories(draw: st.DrawFn) -> tuple[list[StoredMessage], list[StoredMessage]]:
    """Two with some messages in common, whose marks may differ."""
    ids = [str(number) for number in range(draw(st.integers(0, 12)))]
    left, right = (
        [entry(id, *draw(MARKS)) for id in ids if draw(st.integers(0, 2))] for _ in range(2)
    )
    return left, right


@pytest.mark.slow
@given(two_memories(), SIZES, SIZES)
def test_journal_changes_and_their_inverse(
    memories: tuple[list[StoredMessage], list[StoredMessage]], batch: int, page: int
) -> None:
    before, after = memories
    assert applied(before, changes_between(before, after), batch, page) == after
    assert applied(after, changes_between(after, before), batch, page) == before


@pytest.mark.slow
@given(two_memories(), SIZES, SIZES, st.lists(MARKS, max_size=4))
def test_journal_what_came_meanwhile_stays(
    memories: tuple[list[StoredMessage], list[StoredMessage]],
    batch: int,
    page: int,
    marks: list[tuple[str, ...]],
) -> None:
    before, after = memories
    more = [entry(f"more {number}", *some) for number, some in enumerate(marks)]
    found = applied([*before, *more], changes_between(before, after), batch, page)
    assert found == [*after, *more]


@pytest.mark.slow
@given(two_memories(), SIZES, SIZES)
def test_journal_what_was_done_cannot_be_done_again(
    memories: tuple[list[StoredMessage], list[StoredMessage]], batch: int, page: int
) -> None:
    before, after = memories
    changes = changes_between(before, after)
    if any(change.old is None or change.new is None for change in changes):
        assert applied(after, changes, batch, page) is None


FEW_IDS = st.sampled_from(["a", "b", "c"])
REPEATED = st.lists(st.builds(lambda id, marks: entry(id, *marks), FEW_IDS, MARKS), max_size=10)
ANY_CHANGE = st.builds(
    Change, FEW_IDS, MARKS, st.none() | MARKS, at=st.none(), to=st.none()
) | st.builds(
    Change,
    st.sampled_from(["new", "newer", "a"]),
    st.none(),
    MARKS,
    st.just(b"{}"),
    st.none() | FEW_IDS,
    at=st.none(),
    to=st.none(),
)


TEXTS = st.sampled_from([b'{"x": 1}', b'{"x": 2}'])
TWINS = st.lists(st.builds(lambda *its: StoredMessage(*its), FEW_IDS, TEXTS, MARKS), max_size=8)


@given(TWINS, st.lists(st.sampled_from(["go", "mark", "stay"]), min_size=8, max_size=8), SIZES)
def test_journal_changes_of_twins_and_their_inverse(
    before: list[StoredMessage], fates: list[str], batch: int
) -> None:
    """Places tell apart what has one id, one text and the same marks."""
    after: list[StoredMessage] = []
    changes: list[Change] = []
    for at, (one, fate) in enumerate(zip(before, fates, strict=False)):
        behind = after[-1].id if after else None
        if fate == "go":
            changes.append(Change(one.id, one.marks, None, one.message, behind, at=at))
            continue
        new = (*one.marks, "new") if fate == "mark" else one.marks
        if fate == "mark":
            changes.append(Change(one.id, one.marks, new, at=at))
        after.append(one._replace(marks=new))
    assert applied(before, changes, batch, 9) == after
    back = [one._replace(old=one.new, new=one.old, at=one.to, to=one.at) for one in changes]
    assert applied(after, back, batch, 9, shared_ids=frozenset("abc")) == before


def one_by_one(entries: list[StoredMessage], changes: list[Change]) -> list[StoredMessage] | None:
    """The same as ``applied``, in the plainest way."""
    found: list[StoredMessage] = []
    put: set[str] = set()
    kept: list[str] = []
    todo = list(changes)
    for one in [*entries, None]:
        while todo and todo[0].old is None and todo[0].after == (kept[-1] if kept else None):
            change = todo.pop(0)
            found.append(
                StoredMessage(
                    *(change.id, change.message, change.new or ()), change.position, change.shape
                )
            )
            put.add(change.id)
        if one is None:
            break
        fits = todo and todo[0].id == one.id and todo[0].old is not None
        if fits and set(todo[0].old or ()) == set(one.marks):
            change = todo.pop(0)
            if change.new is None:
                continue
            staying = [mark for mark in one.marks if mark in change.new]
            coming = [mark for mark in change.new if mark not in one.marks]
            in_order = change.new if one.marks == change.old else (*staying, *coming)
            shape = change.shape if in_order == change.new else ""
            one = one._replace(marks=tuple(in_order), shape=shape)
        found.append(one)
        kept.append(one.id)
    return None if todo or put & set(kept) else found


@pytest.mark.slow
@given(REPEATED, st.lists(ANY_CHANGE, max_size=5), SIZES, SIZES)
def test_journal_any_changes_of_any_messages(
    entries: list[StoredMessage], changes: list[Change], batch: int, page: int
) -> None:
    assert applied(entries, changes, batch, page) == one_by_one(entries, changes)


def test_journal_removal_and_a_message_in_its_place_come_in_either_order() -> None:
    entries = [entry("a"), entry("b"), entry("c")]
    goes = Change("b", ())
    comes = Change("new", None, (), entry("new").message, "a")
    for changes in ([goes, comes], [comes, goes]):
        assert applied(entries, changes) == [entry("a"), entry("new"), entry("c")]


def test_journal_message_is_replaced() -> None:
    """One that is put in may have the id of one that goes."""
    other = StoredMessage("b", b'{"id": "b", "x": 1}', ("y",))
    changes = [Change("b", ("hint",)), Change("b", None, ("y",), other.message, "a")]
    assert applied([entry("a"), entry("b", "hint")], changes) == [entry("a"), other]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_journal_message_that_is_there_is_not_put_in(place: int) -> None:
    entries = [entry("a"), entry("b")]
    entries.insert(place, entry("new"))
    assert applied(entries, [Change("new", None, (), b"{}", "a")]) is None


def test_journal_marks_that_stay_keep_the_order_into_which_they_came() -> None:
    there = entry("a", "x", "y", "z")
    assert applied([there], [Change("a", ("x", "y", "z"), ("z", "new", "x"))]) == [
        entry("a", "z", "new", "x")
    ]
    assert applied([there], [Change("a", ("z", "y", "x"), ("z", "new", "x"))]) == [
        entry("a", "x", "z", "new")
    ]


def test_journal_what_does_not_fit_is_named() -> None:
    for change, words in (
        (Change("b", ("hint", "x")), ["'b'", "'hint'", "'x'"]),
        (Change("b", (), ("x",)), ["'b'", "no marks"]),
        (Change("b", None, (), b"{}", "c"), ["'b'", "'c'"]),
    ):
        work = ChangeMatcher()
        work.give([change], last=True)
        work.apply(["a"], [()])
        work.apply([], [])
        failure = work.failure()
        assert failure is not None
        assert failure.code == "changed"
        assert all(word in failure.message for word in words), failure.message
