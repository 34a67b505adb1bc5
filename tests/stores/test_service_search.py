"""Stores that are searched by their own service, through ``Store.search``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from memctl.dialects.agentscope2 import AGENTSCOPE2
from memctl.errors import UsageError
from memctl.model import MemoryKey, StoredMessage
from memctl.registry import make_store, parse
from memctl.selection import Selection
from memctl.testing import samples
from memctl.wrappers.converted import shown_as
from memctl.wrappers.timeout import Timeout
from tests.support.cli import fill
from tests.support.mem0_platform import KEY, Platform
from tests.support.servers.pool import Servers
from tests.support.servers.tablestore import make_text_index
from tests.support.service_search import found, ids

ADA = MemoryKey("ada", "kyoto")
BOB = MemoryKey("bob", "oslo")


@pytest.fixture
def platform(monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    """A project of the Platform, whose key is in the environment."""
    monkeypatch.setenv("MEM0_API_KEY", KEY)
    with Platform() as found:
        yield found


def learn(platform: Platform, text: str, **scope: str) -> str:
    """Add a memory as programs do; return its id."""
    body = {"messages": [{"content": text}], "infer": False, **scope}
    _, answer = platform.answer("POST", "/v3/memories/add/", {}, body)
    return str(answer["results"][0]["id"])


def asked(platform: Platform) -> list[dict[str, object]]:
    return [body for _, path, body in platform.requests if path.endswith("/search/")]


def test_platform_finds_facts_in_its_order(platform: Platform) -> None:
    url = f"mem0://{platform.host}"
    some = learn(platform, "a dog in the house", user_id="ada")
    best = learn(platform, "a dog in the garden", user_id="ada", run_id="kyoto")
    hits = found(url, " dog garden ")
    assert [hit.message.id for hit in hits] == [best, some]
    assert hits[0].key == ADA
    assert json.loads(hits[0].message.message)["text"] == "a dog in the garden"
    assert [hit.score for hit in hits] == [1.0, 0.5]
    assert asked(platform)[-1]["query"] == "dog garden"


@pytest.mark.slow
def test_platform_is_told_users_and_sessions(platform: Platform) -> None:
    url = f"mem0://{platform.host}"
    one = learn(platform, "a dog", user_id="ada", run_id="kyoto")
    learn(platform, "a dog", user_id="bob", run_id="oslo")
    for where in (
        Selection(users=frozenset({"ada"})),
        Selection(sessions=frozenset({"kyoto"})),
        Selection(keys=frozenset({ADA})),
    ):
        assert ids(url, "dog", where=where) == [one]
        assert asked(platform)[-1]["top_k"] == 10, "the service compares: once is enough"
        assert "*" not in json.dumps(asked(platform)[-1]["filters"])


def test_platform_is_asked_for_more_until_enough_are_selected(platform: Platform) -> None:
    url = f"mem0://{platform.host}"
    for number in range(30):
        learn(platform, f"a dog, number {number}", user_id="ada")
    last = learn(platform, "a dog that barks", user_id="ada")
    assert ids(url, "dog", 2, Selection(match="barks")) == [last]
    assert [body["top_k"] for body in asked(platform)] == [2, 10, 50]


def message(id: str, text: str, *marks: str) -> StoredMessage:
    value = {"id": id, "name": "ada", "role": "user", "content": text, "metadata": {}}
    value["timestamp"] = "2026-01-02 03:04:05.678"
    return StoredMessage(id, json.dumps(value).encode(), marks)


@pytest.fixture
def url(servers: Servers) -> str:
    """An instance with two memories of TablestoreMemory and their search index."""
    url = servers.tablestore.fresh()
    kyoto = [message("a1", "a temple"), message("a2", "a temple and a temple", "hint")]
    oslo = [message("b1", "the temple of oslo"), message("b2", "a fjord")]
    asyncio.run(fill(url, {ADA: kyoto, BOB: oslo}))
    make_text_index(servers.tablestore, url)
    return url


def test_tablestore_finds_messages_best_first(url: str) -> None:
    hits = found(url, "temple")
    assert hits[0].key == ADA
    assert hits[0].message[:3] == message("a2", "a temple and a temple", "hint")[:3]
    assert [hit.score for hit in hits] == [2.0, 1.0, 1.0]
    assert ids(url, "temple", 1) == ["a2"]
    assert ids(url, "fjord") == ["b2"]
    assert ids(url, "volcano") == []


def test_tablestore_finds_what_is_selected(url: str) -> None:
    assert ids(url, "temple", where=Selection(users=frozenset({"bob"}))) == ["b1"]
    assert ids(url, "temple", where=Selection(keys=frozenset({BOB}))) == ["b1"]
    assert ids(url, "temple", where=Selection(sessions=frozenset({"kyoto"}))) == ["a2", "a1"]
    assert ids(url, "temple", where=Selection(marks=frozenset({"hint"}))) == ["a2"]
    assert ids(url, "temple", where=Selection(match="oslo")) == ["b1"]


@pytest.mark.slow
def test_tablestore_is_read_page_by_page(servers: Servers) -> None:
    url = servers.tablestore.fresh()
    many = [message(f"m{n:03}", "temple " * (250 - n)) for n in range(250)]
    asyncio.run(fill(url, {ADA: many}))
    make_text_index(servers.tablestore, url)
    assert ids(url, "temple", 240) == [one.id for one in many[:240]]
    assert ids(url, "temple", 5, Selection(ids=frozenset({"m249"}))) == ["m249"]


def test_table_without_index_is_refused(servers: Servers) -> None:
    url = servers.tablestore.fresh()
    asyncio.run(fill(url, {ADA: samples.entries(2)}))
    with pytest.raises(UsageError, match="no search index") as refused:
        found(url, "message")
    assert "--by words" in (refused.value.hint or "")


def test_other_stores_refuse(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    asyncio.run(fill(str(path), {ADA: samples.entries(2)}))
    with pytest.raises(UsageError, match="no service") as refused:
        found(str(path), "message")
    assert "--by words" in (refused.value.hint or "")


@pytest.mark.parametrize(
    ("query", "where"),
    [(" ", Selection()), ("dog", Selection(last=1)), ("dog", Selection(spare=1))],
)
def test_query_or_selection_that_a_service_cannot_take(
    platform: Platform, query: str, where: Selection
) -> None:
    with pytest.raises(UsageError):
        found(f"mem0://{platform.host}", query, where=where)
    assert not asked(platform)


def test_wrappers_search_the_store_inside(url: str) -> None:
    async def work() -> None:
        async with Timeout(make_store(parse(url)), 30) as store:
            assert store.features.search
            assert [hit.message.id for hit in await store.search("fjord", Selection(), 5)] == ["b2"]
            other = shown_as(store, AGENTSCOPE2)
            assert not other.features.search
            with pytest.raises(UsageError):
                await other.search("fjord", Selection(), 5)

    asyncio.run(work())
