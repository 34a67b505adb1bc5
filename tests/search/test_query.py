"""The query language: what a query finds and what it leaves out, whatever is typed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from memctl.errors import UsageError
from memctl.model import MemoryKey
from memctl.selection import Selection
from tests.search.finding import ADA, find, ids, make
from tests.support.cli import fill
from tests.support.histories import entry, said

TEXTS = (
    "My knee hurts since the hike in the mountains",  # m0
    "A knee surgery may help, ask a surgeon about it",  # m1
    "Surgery on the left knee is booked",  # m2
    "The weather in Kyoto is mild in April",  # m3
    "Bring an umbrella, the forecast says showers",  # m4
)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with two users."""
    return make(tmp_path / "a.db", {ADA: TEXTS, MemoryKey("bob", "b-1"): ["A knee of pork"]})


def test_query_words_rank_the_messages_that_have_most_of_them(store: Path) -> None:
    found = ids(find(store, query="knee surgery", where=Selection(users=frozenset({"ada"}))))
    assert set(found[:2]) == {"m1", "m2"}
    assert found.index("m0") < found.index("m3") if "m3" in found else "m0" in found


def test_query_words_are_stemmed_and_folded(store: Path) -> None:
    assert ids(find(store, query="SURGERIES"))[0] in ("m1", "m2")
    assert ids(find(store, query="hiking mountain"))[0] == "m0"


def test_query_a_phrase_must_be_there(store: Path) -> None:
    assert ids(find(store, query='"knee surgery"')) == ["m1"]
    assert ids(find(store, query='"left knee" surgery')) == ["m2"]
    assert ids(find(store, query='"surgery knee"')) == []


def test_query_a_prefix_finds_words_that_begin_so(store: Path) -> None:
    assert ids(find(store, query="umbr*"))[0] == "m4"
    assert ids(find(store, query="umbr")) == []


def test_query_a_word_with_minus_must_not_be_there(store: Path) -> None:
    found = ids(find(store, query="knee -surgery -pork"))
    assert found[0] == "m0"
    assert not {"m1", "m2"} & set(found)
    assert "m1" not in ids(find(store, query='knee -"knee surgery"'))


def test_query_filters_choose_users_sessions_and_roles(store: Path) -> None:
    assert {hit.key.user for hit in find(store, query="knee user:bob").hits} == {"bob"}
    assert {hit.role for hit in find(store, query="knee role:assistant").hits} == {"assistant"}
    assert find(store, query="knee user:bob session:a-1").hits == []
    assert find(store, query="knee user:nobody").hits == []


def test_query_filters_narrow_the_options(store: Path) -> None:
    where = Selection(users=frozenset({"ada"}))
    assert find(store, query="knee user:bob", where=where).hits == []


@pytest.mark.parametrize(
    "query",
    [
        '"',
        '""',
        "-",
        "- -",
        "*",
        "***",
        "()",
        "-knee",
        '-"knee surgery"',
        "user:ada",
        "\0",
        " \t\n ",
        "!!! ??? ...",
    ],
)
def test_query_without_words_is_refused(store: Path, query: str) -> None:
    with pytest.raises(UsageError, match="no words to look for"):
        find(store, query=query)


@pytest.mark.parametrize(
    "query",
    [
        '"knee',
        "knee AND",
        "knee OR OR surgery",
        "NOT knee",
        "NEAR(knee surgery)",
        "knee) OR (surgery",
        "knee' OR 1=1 --",
        "{text} : knee",
        "text:knee",
        "^knee",
        "knee + surgery",
        "knee\0surgery",
        "knee \x01\x02\x1e\x1f surgery",
        "knee \ud800",
        "kn\u0301ee knee",
        "user: knee",
        "nofield:knee",
        "http://knee.example/a?b=c&d=%20",
        "knee:",
        ":knee",
        'kn"ee" knee',
        "knee" + " surgery" * 1250,
        "knee " + " ".join(f"word{number}" for number in range(1200)),
        "knee " + '"' * 10_000,
        "knee " + "(" * 10_000,
    ],
)
def test_query_that_looks_like_syntax_is_words(store: Path, query: str) -> None:
    found = find(store, query=query, top=50)
    assert {"m0", "m1", "m2"} & set(ids(found)), found


def test_query_a_mark_chooses_or_excludes(tmp_path: Path) -> None:
    path = tmp_path / "marked.db"
    marked = [entry(said("m0", "knee one", marks=("hint",))), entry(said("m1", "knee two"))]
    asyncio.run(fill(str(path), {ADA: marked}))
    assert ids(find(path, query="knee mark:hint")) == ["m0"]
    assert ids(find(path, query="knee -mark:hint")) == ["m1"]
    with pytest.raises(UsageError, match="cannot exclude a user"):
        find(path, query="knee -user:ada")
