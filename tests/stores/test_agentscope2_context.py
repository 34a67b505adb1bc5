"""Messages that are in the context of a 2.x session alone, or that differ there from the log."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis

from memctl.model import Memory, MemoryKey, StoredMessage
from memctl.testing import Place
from memctl.testing.drive import read, write
from memctl.testing.samples import Sample
from tests.support.backends import OF_AGENTSCOPE2, new_place, params
from tests.support.cli import Run, report
from tests.support.places import held, put
from tests.support.servers.pool import Servers

KEY = MemoryKey("u", "s")


def message(id: str, text: str) -> dict[str, Any]:
    return {"id": id, "name": "u", "role": "user", "content": [{"type": "text", "text": text}]}


OLD, FIRST, ALONE, CUT, LAST = (
    message(id, f"this is {id}") for id in ("old", "first", "alone", "cut", "last")
)
VARIANT = message("cut", "a secret in the context")
EXTRA = {
    "record": {"agent_id": "default"},
    "payload": {"origin": {"type": "user"}, "config": {"name": "A"}},
    "state": {"session_id": "s"},
    "context": ["first", "alone", VARIANT, "last"],
    "unlogged": ["alone"],
    "summary": [{"type": "text", "text": "Before."}],
}


@pytest.fixture(params=["sqlite-agentscope2", "redis-agentscope2"])
def place(request: pytest.FixtureRequest, tmp_path: Path, servers: Servers) -> Place:
    """A session whose log lacks one message of its context, and has another text of one."""
    found = new_place(request.param, tmp_path, servers)
    messages = [
        StoredMessage(one["id"], json.dumps(one).encode(), ("compressed",) * (one is OLD))
        for one in (OLD, FIRST, ALONE, CUT, LAST)
    ]
    put(found, [Sample(Memory(KEY, "Before.", extra=json.dumps(EXTRA)), messages)])
    assert contents(found) == ([OLD, FIRST, CUT, LAST], [FIRST, ALONE, VARIANT, LAST])
    return found


def contents(place: Place) -> tuple[list[Any], list[Any]]:
    """The log and the context."""
    log, state = stored(place)
    return log, state["context"]


def stored(place: Place) -> tuple[list[Any], dict[str, Any]]:
    """The log and the state, past memctl."""
    if place.backend.name.startswith("redis"):
        with redis.Redis.from_url(place.text.partition("?")[0]) as client:
            key = "agentscope:user:u:session:s"
            state = json.loads(client.get(key))["state"]  # type: ignore[arg-type]
            log: Any = client.lrange(f"{key}:messages", 0, -1)
            return [json.loads(one) for one in log], state
    with closing(sqlite3.connect(place.folder / "m.db")) as connection:
        sql = "SELECT payload FROM messages ORDER BY created_at, msg_id"
        found = [json.loads(one) for (one,) in connection.execute(sql)]
        [(payload,)] = connection.execute("SELECT payload FROM sessions")
        return found, json.loads(payload)["state"]


def ids(place: Place) -> list[tuple[str, tuple[str, ...]]]:
    return [(id, marks) for id, marks, _ in held(place)[KEY][2]]


def test_context_messages_are_read_in_their_places(place: Place) -> None:
    assert ids(place) == [
        ("old", ("compressed",)),
        *((id, ()) for id in ("first", "alone", "cut", "last")),
    ]


@pytest.mark.parametrize(
    ("words", "log", "context"),
    [
        (("--match", "is alone"), [OLD, FIRST, CUT, LAST], [FIRST, VARIANT, LAST]),
        (("--match", "secret"), [OLD, FIRST, LAST], [FIRST, ALONE, LAST]),
        (("--id", "first", "--id", "alone"), [OLD, CUT, LAST], [VARIANT, LAST]),
        (("--all",), [], []),
    ],
    ids=str,
)
def test_context_loses_what_is_deleted(
    place: Place, run: Run, words: tuple[str, ...], log: list[Any], context: list[Any]
) -> None:
    before = contents(place)
    report(run("delete", place.text, *words, "--yes", "--json"))
    assert contents(place) == (log, context)
    report(run("undo", "--yes", "--json"))
    assert contents(place) == before


def test_session_keeps_its_bytes_around_the_context(place: Place, run: Run) -> None:
    """An edit replaces the context alone: numbers, escapes and spaces of the session stay."""

    def payload(new: str = "") -> str:
        if place.backend.name.startswith("redis"):
            key = "agentscope:user:u:session:s"
            with redis.Redis.from_url(
                place.text.partition("?")[0], decode_responses=True
            ) as client:
                return str(client.set(key, new) if new else client.get(key))
        with closing(sqlite3.connect(place.folder / "m.db")) as connection, connection:
            if new:
                connection.execute("UPDATE sessions SET payload = ?", (new,))
            [(found,)] = connection.execute("SELECT payload FROM sessions")
            return str(found)

    value = json.loads(payload())
    value = {"cost": "1.50", "caf\u00e9": 1, **value}
    value["state"] = {"context": value["state"].pop("context"), **value["state"]}
    written = json.dumps(value).replace('"1.50"', "1.50")
    payload(written)
    assert run("delete", place.text, "--id", "first", "--id", "last", "--yes").exit_code == 0
    assert payload().startswith('{"cost": 1.50, "caf\\u00e9": 1, ')
    assert len(payload()) < len(written)
    assert run("undo", "--yes").exit_code == 0
    assert payload() == written


CONTRADICTIONS = [
    (["a", "b"], ["b", "x", "a"], ["a"]),
    (["a", "b", "c"], ["c", "x", "b", "y", "a"], ["a", "c"]),
    (["a", "b", "c"], ["c", "x", "a"], ["x", "a", "b"]),
    (["a", "between", "b"], ["x", "a", "b"], ["a"]),
    (["a", "between", "b"], ["x", "a", "y", "b"], ["a", "y", "between"]),
]
"""A log, a context that has messages of its own in another order, and what goes."""


@pytest.mark.slow
@pytest.mark.parametrize(("log", "context", "gone"), CONTRADICTIONS, ids=str)
@pytest.mark.parametrize("name", params(OF_AGENTSCOPE2))
def test_undo_restores_log_and_context_that_contradict_each_other(
    tmp_path: Path,
    servers: Servers,
    run: Run,
    name: str,
    log: list[str],
    context: list[str],
    gone: list[str],
) -> None:
    place = new_place(name, tmp_path, servers)
    alone = [id for id in context if id not in log]
    messages = [
        StoredMessage(
            id, json.dumps(message(id, id)).encode(), ("compressed",) * (id not in context)
        )
        for id in log + alone
    ]
    extra = {**EXTRA, "context": context, "unlogged": alone, "summary": ""}
    put(place, [Sample(Memory(KEY, "", extra=json.dumps(extra)), messages)])
    before = exactly(place)
    words = [word for id in gone for word in ("--id", id)]
    for change in ("delete", *words, "--yes"), ("mark", "add", "compressed", *words):
        command, *rest = change
        verb = [command, rest.pop(0)] if command == "mark" else [command]
        done = report(run(*verb, place.text, *rest, "--json"))
        assert exactly(place) != before
        report(run("undo", done["run"], "--store", place.text, "--yes", "--json"))
        assert exactly(place) == before


def exactly(place: Place) -> Any:
    """The messages in order, how each is stored, and all else that the session has."""

    async def look() -> Any:
        async with place.store() as store:
            found = (await read(store))[KEY]
            return found.memory.extra, found.entries

    return asyncio.run(look())


def test_context_message_that_is_compressed_comes_into_the_log(place: Place, run: Run) -> None:
    before = contents(place)
    report(run("mark", "add", place.text, "compressed", "--id", "alone", "--json"))
    assert contents(place) == ([OLD, FIRST, ALONE, CUT, LAST], [FIRST, VARIANT, LAST])
    report(run("undo", "--yes", "--json"))
    assert contents(place) == before


def test_summary_in_blocks_is_restored(place: Place, run: Run) -> None:
    before = stored(place)
    report(run("compress", place.text, "--keep-recent", "1", "--mode", "mark", "--json"))
    assert isinstance(stored(place)[1]["summary"], str)
    report(run("undo", "--yes", "--json"))
    assert stored(place) == before


@pytest.mark.slow
def test_context_messages_are_copied(place: Place, run: Run, tmp_path: Path) -> None:
    archive, copy = tmp_path / "a.ndjson", f"sqlite:///{tmp_path}/copy.db?layout=agentscope2"
    report(run("export", place.text, "-o", archive, "--json"))
    report(run("import", archive, copy, "--json"))
    other = Place(place.backend, copy, tmp_path)
    assert held(other) == held(place)
    report(run("verify", place.text, copy, "--json"))


def test_context_messages_count_for_what_is_added(place: Place) -> None:
    more = message("more", "more")

    async def add() -> None:
        entry = StoredMessage("more", json.dumps(more).encode())
        twin = StoredMessage("alone", json.dumps(ALONE).encode())
        async with place.store() as store:
            for one, code in ((twin, "repeated-id"), (entry, None)):
                results = await write(store, [Sample(Memory(KEY), [one])], offset=5)
                failure = results[KEY].failure
                assert (failure.code if failure else None) == code

    asyncio.run(add())
    log, context = contents(place)
    assert log == [OLD, FIRST, CUT, LAST, more]
    assert context == [FIRST, ALONE, VARIANT, LAST, more]
