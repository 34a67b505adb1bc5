"""After an undo a store is what it was before the run: every value, and the shape of each."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st

from memctl.model import MemoryKey, StoredMessage
from memctl.stores.agentscope2.sql import AGENTS, MESSAGES, SESSIONS
from memctl.testing import Place
from memctl.testing.samples import sample
from tests.support.backends import (
    BACKENDS,
    OF_AGENTSCOPE2,
    new_place,
    place_at,
    session_database,
    sql_database,
)
from tests.support.cli import Run, report
from tests.support.places import put
from tests.support.servers.pool import Servers

pytestmark = pytest.mark.slow

IDS = [f"m{number}" for number in range(6)]
MARKS = ["hint", "compressed", "a"]
KEY = MemoryKey("u", "s")
OTHER = MemoryKey("v", "t")


def message(id: str, number: int) -> dict[str, Any]:
    """A message as AgentScope stores it, with enough in it for a summary."""
    role = ("user", "assistant")[number % 2]
    return {
        "id": id,
        "name": role,
        "role": role,
        "content": f"Part {number} of the trip." * 3,
        "metadata": None,
        "timestamp": f"2025-01-0{number % 9 + 1} 10:00:00.000",
    }


def stored(id: str, number: int, *marks: str) -> StoredMessage:
    return StoredMessage(id, json.dumps(message(id, number)).encode(), marks)


SOME = [stored("n0", 50), stored("n1", 51)]
Fill = Callable[[Place, st.DataObject], None]
Dump = Callable[[Place], Any]
some_marks = st.lists(st.sampled_from(MARKS), max_size=2)
"""Perhaps one of them twice."""
some_messages = st.lists(st.tuples(st.sampled_from(IDS[:4]), some_marks), max_size=6)
"""Some with the id of another one."""


# Session states


@st.composite
def states(draw: st.DrawFn) -> Any:
    """A state of any version, with other things in it: pairs, bare messages, no summary."""
    found = draw(some_messages)
    bare = draw(st.lists(st.booleans(), min_size=6, max_size=6))
    content = [
        message(id, n) if bare[n] else [message(id, n), marks]
        for n, (id, marks) in enumerate(found)
    ]
    memory: dict[str, Any] = {}
    if (summary := draw(st.sampled_from([..., None, "", "Old."]))) is not ...:
        memory["_compressed_summary"] = summary
    memory["content"] = content
    if (content or summary is not ...) and draw(st.booleans()):
        memory["max_size"] = 3
    return draw(st.sampled_from([memory, {"agent": {"memory": memory, "name": "F"}, "plan": {}}]))


def fill_file(place: Place, data: st.DataObject) -> None:
    place.location.path.write_text(json.dumps(data.draw(states())))


def fill_folder(place: Place, data: st.DataObject) -> None:
    place.location.path.mkdir()
    (place.location.path / "u_s.json").write_text(json.dumps(data.draw(states())))
    (place.location.path / "v_t.json").write_text('{"plan": {}}')


def dump_files(place: Place) -> Any:
    return {path.name: json.loads(path.read_bytes()) for path in place.folder.rglob("*.json")}


# SQL

rows = st.lists(
    st.tuples(
        st.sampled_from(IDS),
        st.sampled_from(["u-s-{}", "u-s-{}", "v-s-{}", "w-s-{}", "foreign {}"]),
        st.sampled_from([0, 1, 1, 2, 3, 7, -4, 2**40]),
        st.frozensets(st.sampled_from(MARKS), max_size=2),
        st.sampled_from([None, None, " ", "\t"]),
    ),
    max_size=6,
    unique_by=lambda row: row[1].format(row[0]),
)
"""Message ids, the forms of row ids, indexes, marks, and indentations."""


async def _fill_tables(place: Place, found: list[Any]) -> None:
    async with place.store() as store:
        database = sql_database(store)
        dialect = database.syntax
        insert = (
            f"INSERT INTO message (id, msg, session_id, {dialect.index_column}) "
            f"VALUES (:id, {dialect.stub_cast.format(':msg')}, 's', :position)"
        )
        async with (
            database.connect() as connection,
            database.transaction(connection),
        ):
            await connection.execute("INSERT INTO users VALUES ('u')")
            await connection.execute("INSERT INTO session VALUES ('s', 'u')")
            for number, (id, form, position, marks, indent) in enumerate(found):
                row = form.format(id)
                text = json.dumps(message(id, number), indent=indent)
                if indent == "\t":
                    text = text.replace("\n", "\r\n")
                await connection.execute(insert, {"id": row, "msg": text, "position": position})
                for mark in marks:
                    marked = "INSERT INTO message_mark VALUES (:id, :mark)"
                    await connection.execute(marked, {"id": row, "mark": mark})


async def _dump_tables(place: Place) -> Any:
    async with place.store(create=False) as store:
        database = sql_database(store)
        async with (
            database.connect() as connection,
            database.read_transaction(connection),
        ):
            found = {}
            for table in ("users", "session", "message", "message_mark"):
                rows = await connection.execute(f"SELECT * FROM {table}")
                found[table] = sorted([repr(value) for value in row] for row in rows)
            return found


def fill_tables(place: Place, data: st.DataObject) -> None:
    asyncio.run(_fill_tables(place, data.draw(rows)))


def dump_tables(place: Place) -> Any:
    return asyncio.run(_dump_tables(place))


def fill_both(place: Place, data: st.DataObject) -> None:
    fill_tables(place, data)
    states = place.folder / "states"
    states.mkdir()
    found = data.draw(
        st.sampled_from([None, {"memory": {"_compressed_summary": "Old."}}, {"a": 1}])
    )
    if found is not None:
        (states / "u_s.json").write_text(json.dumps(found))


def dump_both(place: Place) -> Any:
    return dump_tables(place), dump_files(place)


# Redis


def fill_redis(place: Place, data: st.DataObject) -> None:
    base = "app:user_id:u:session:s:"
    ids = data.draw(st.lists(st.sampled_from(IDS), max_size=6))
    lists = st.lists(st.sampled_from(IDS), max_size=3)
    with redis.Redis.from_url(place.text.partition("?")[0]) as client:
        if ids:
            client.rpush(f"{base}messages", *ids)
        for number, id in enumerate(dict.fromkeys(ids)):
            if data.draw(st.integers(0, 4)):  # else there is no payload
                client.set(f"{base}msg:{id}", json.dumps(message(id, number)))
        for mark in ("hint", "_MemoryMark.HINT", "a"):
            if marked := data.draw(lists):
                client.rpush(f"{base}mark:{mark}", *marked)
        if index := data.draw(st.lists(st.sampled_from(["hint", "a", "gone"]), max_size=3)):
            client.sadd(f"{base}marks_index", *index)
        if data.draw(st.booleans()):
            apart = data.draw(st.booleans())
            for key in sorted(client.scan_iter()):
                seconds = data.draw(st.sampled_from([3000, 5000, 7000, None])) if apart else 5000
                if seconds is not None:
                    client.expire(key, seconds)


def dump_redis(place: Place) -> Any:
    with redis.Redis.from_url(place.text.partition("?")[0]) as client:
        read: dict[bytes, Callable[[bytes], Any]] = {
            b"list": lambda key: client.lrange(key, 0, -1),
            b"set": client.smembers,
            b"string": lambda key: json.loads(client.get(key)),
        }
        return {
            key: (read[client.type(key)](key), round(client.ttl(key), -3))
            for key in client.scan_iter()
        }


def fill_redis_session(place: Place, data: st.DataObject) -> None:
    with redis.Redis.from_url(place.text.partition("?")[0]) as client:
        client.set("user_id:u:session:s:state", json.dumps(data.draw(states())))


# Sessions of AgentScope 2.x


def session_message(id: str, number: int, text: str = "") -> dict[str, Any]:
    role = ("user", "assistant")[number % 2]
    return {
        "id": id,
        "name": role,
        "role": role,
        "content": [{"type": "text", "text": text or f"Part {number} of the trip." * 3}],
        "metadata": {},
        "created_at": f"2025-01-0{number % 9 + 1}T10:00:00",
    }


@st.composite
def sessions(draw: st.DrawFn) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """A log and a state, whose context may lack messages, have others, or another order."""
    ids = draw(st.permutations(IDS))[: draw(st.integers(0, len(IDS)))]
    everything = [session_message(id, number) for number, id in enumerate(ids)]
    kinds = [
        draw(st.sampled_from(["both", "both", "log", "context", "differs"])) for _ in everything
    ]
    log: list[dict[str, Any]] = []
    context: list[dict[str, Any]] = []
    for one, kind in zip(everything, kinds, strict=True):
        if kind != "context":
            log.append(one)
        if kind == "differs":
            text = f"{one['content'][0]['text']} Truncated."
            context.append(one | {"content": [{"type": "text", "text": text}]})
        elif kind != "log":
            context.append(one)
    if draw(st.booleans()):
        context = list(draw(st.permutations(context)))
    summary = draw(st.sampled_from(["", "Old.", [{"type": "text", "text": "Old."}]]))
    others = draw(st.sampled_from([{}, {"session_id": "s", "tasks_context": {"tasks": []}}]))
    return log, {**others, "summary": summary, "context": context}


async def _fill_session_tables(
    place: Place, log: list[dict[str, Any]], payload: dict[str, Any], seconds: list[int]
) -> None:
    async with place.store() as store:
        database = session_database(store)
        moment = database.syntax.stored_time
        now = datetime(2025, 2, 1, 10)
        async with database.connect() as connection, database.transaction(connection):
            row = ("s", "u", "default", "user", None, None, moment(now), moment(now))
            text = json.dumps(payload).encode()
            await database.insert(connection, "sessions", SESSIONS.columns, [(*row, text)])
            agent = ("default", "u", "user", moment(now), moment(now), b'{"data": {}}')
            await database.insert(connection, "agents", AGENTS.columns, [agent])
            rows = [
                ("s", one["id"], moment(now + timedelta(seconds=n)), json.dumps(one).encode())
                for n, one in zip(sorted(seconds), log, strict=False)
            ]
            await database.insert(connection, "messages", MESSAGES.columns, rows)


def fill_session_tables(place: Place, data: st.DataObject) -> None:
    log, state = data.draw(sessions())
    seconds = data.draw(st.lists(st.integers(0, 9), min_size=len(log), max_size=len(log)))
    payload = {"origin": {"type": "user"}, "config": {"name": "A"}, "state": state}
    asyncio.run(_fill_session_tables(place, log, payload, seconds))


async def _dump_session_tables(place: Place) -> Any:
    async with place.store(create=False) as store:
        database = session_database(store)
        found = {}
        async with database.connect() as connection, database.read_transaction(connection):
            for table in ("sessions", "messages", "agents"):
                rows = await connection.execute(f"SELECT * FROM {table}")
                found[table] = sorted(
                    ([json.loads(one) if _is_json(one) else one for one in row] for row in rows),
                    key=lambda row: [str(one) for one in row if not isinstance(one, dict)],
                )
        return found


def _is_json(value: Any) -> bool:
    return isinstance(value, str | bytes) and value[:1] in ("{", b"{")


def dump_session_tables(place: Place) -> Any:
    return asyncio.run(_dump_session_tables(place))


def fill_redis_sessions(place: Place, data: st.DataObject) -> None:
    log, state = data.draw(sessions())
    user = "agentscope:user:u"
    base = f"{user}:session:s"
    times = dict.fromkeys(["created_at", "updated_at"], "2025-02-01T10:00:00")
    record = {"id": "s", "user_id": "u", "agent_id": "default", "team_id": None, **times}
    record |= {"origin": {"type": "user"}, "config": {"name": "A"}, "state": state}
    with redis.Redis.from_url(place.text.partition("?")[0]) as client:
        if data.draw(st.integers(0, 5)):  # the record may have expired
            client.set(base, json.dumps(record))
            client.sadd(f"{user}:agent:default:sessions", "s")
            client.sadd(f"{user}:agents", "default")
            client.set(f"{user}:agent:default", json.dumps({"id": "default", "user_id": "u"}))
        if log:
            client.rpush(f"{base}:messages", *map(json.dumps, log))
        if log:
            client.sadd(f"{base}:message_ids", *(one["id"] for one in log))
        if data.draw(st.booleans()):
            for key in base, f"{base}:messages", f"{base}:message_ids":
                client.expire(key, 5000)


def dump_redis_sessions(place: Place) -> Any:
    def values(key: bytes, found: Any) -> Any:
        return [json.loads(one) for one in found] if key.endswith(b":messages") else found

    return {key: (values(key, found), ttl) for key, (found, ttl) in dump_redis(place).items()}


# Archives


def fill_archive(place: Place, data: st.DataObject) -> None:
    found = data.draw(some_messages)
    messages = [
        stored(id, n, *dict.fromkeys(marks))._replace(position=n * 2)
        for n, (id, marks) in enumerate(found)
    ]
    put(place, [sample(KEY, messages, summary=data.draw(st.sampled_from([None, "", "Old."])))])
    first, *rest, _ = place.location.path.read_bytes().splitlines(keepends=True)
    header = json.loads(first) | data.draw(st.sampled_from([{}, {"more": [1.5]}, {"source": 1}]))
    text = b"".join([json.dumps(header).encode() + b"\n", *rest])
    counts = {"memories": 1, "messages": len(messages)}
    end = {"end": {**counts, "digest": "sha256:" + hashlib.sha256(text).hexdigest()}}
    place.location.path.write_bytes(text + json.dumps(end).encode() + b"\n")


def dump_archive(place: Place) -> Any:
    """All lines but the last, which has a digest; of the first all but the time of writing."""
    first, *rest, _ = place.location.path.read_bytes().splitlines()
    return json.loads(first) | {"created": ""}, rest


@dataclass(frozen=True)
class Case:
    """A store, how it is filled past memctl, and all that is in it."""

    fill: Fill
    dump: Dump
    examples: int = 8
    options: str = ""
    """The options of the URL, with the folder of the place."""


STORES = {
    "state": Case(fill_file, dump_files, 20),
    "sessions": Case(fill_folder, dump_files),
    "redis-session": Case(fill_redis_session, dump_redis),
    "sqlite": Case(fill_tables, dump_tables, 20),
    "sqlite with states": Case(fill_both, dump_both, 12, "?state={}/states"),
    "postgresql": Case(fill_tables, dump_tables, 6),
    "mysql": Case(fill_tables, dump_tables, 6),
    "redis": Case(fill_redis, dump_redis, 60),
    "archive": Case(fill_archive, dump_archive, 20),
    "sqlite-agentscope2": Case(fill_session_tables, dump_session_tables, 40),
    "postgresql-agentscope2": Case(fill_session_tables, dump_session_tables, 6),
    "mysql-agentscope2": Case(fill_session_tables, dump_session_tables, 6),
    "redis-agentscope2": Case(fill_redis_sessions, dump_redis_sessions, 40),
}

COPY = ("migrate", "ARCHIVE", "STORE", "--lossy", "--no-verify", "--yes", "--on-conflict")
COMPRESS = ("compress", "STORE", "--yes", "--keep-recent", "1", "--mode")
SESSION_ACTIONS: list[tuple[str, ...]] = [
    ("delete", "STORE", "--mark", "compressed", "--yes"),
    ("delete", "STORE", "--id", "m1", "--id", "m3", "--yes"),
    ("delete", "STORE", "--match", "Truncated", "--yes"),
    ("delete", "STORE", "--role", "user", "--yes"),
    ("mark", "add", "--all", "STORE", "compressed"),
    ("mark", "add", "STORE", "compressed", "--role", "user"),
    ("mark", "remove", "STORE", "compressed"),
]
"""More changes, for stores whose only mark it is."""
ACTIONS: list[tuple[str, ...]] = [
    ("delete", "STORE", "--mark", "hint", "--yes"),
    ("delete", "STORE", "--all", "--yes"),
    ("delete", "STORE", "--keep-last", "2", "--yes"),
    ("delete", "STORE", "--last", "1", "--yes"),
    ("delete", "STORE", "--match", "Part 1", "--yes"),
    ("mark", "add", "--all", "STORE", "hint"),
    ("mark", "remove", "STORE", "hint"),
    ("mark", "rename", "STORE", "a", "hint"),
    (*COMPRESS, "mark"),
    (*COMPRESS, "message"),
    (*COMPRESS, "replace"),
    ("doctor", "STORE", "--repair", "--yes"),
    ("import", "ARCHIVE", "STORE", "--lossy"),
    (*COPY, "append"),
    (*COPY, "replace"),
]


WITH_SUMMARY_MARK = {(*COMPRESS, "message"), (*COMPRESS, "replace")}
"""Changes that mark a message ``summary``."""
DONE_AGAIN = {"state", "sessions", "redis-session", "archive"}
"""The stores of which the undo of an undo is tried, too."""


def on_one_line(found: Any) -> Any:
    """Return what a store holds, with its messages as an archive has them."""
    match found:
        case str():
            return found.replace(r"\r", " ").replace(r"\n", " ")
        case dict():
            return {name: on_one_line(value) for name, value in found.items()}
        case list() | tuple():
            return [on_one_line(value) for value in found]
    return found


@pytest.mark.parametrize("name", STORES)
def test_property_undo_leaves_no_trace(
    run: Run, servers: Servers, tmp_path: Path, name: str
) -> None:
    case = STORES[name]
    archive = tmp_path / "source.ndjson"
    kind = name.partition(" ")[0]
    only = BACKENDS[kind](servers).only
    incoming = [sample(key, SOME, summary="New.") for key in ([only] if only else [KEY, OTHER])]
    put(place_at("archive", str(archive), tmp_path, servers), incoming)
    actions = ACTIONS
    if name in OF_AGENTSCOPE2:
        possible = [one for one in actions if "hint" not in one and one not in WITH_SUMMARY_MARK]
        actions = possible + SESSION_ACTIONS

    @settings(max_examples=case.examples)
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        place = new_place(kind, tmp_path, servers)
        store = place.text + case.options.format(place.folder)
        case.fill(place, data)
        before = case.dump(place)
        words = data.draw(st.sampled_from(actions))
        named = {"STORE": store, "ARCHIVE": str(archive)}
        done = run(*[named.get(word, word) for word in words], "--json")
        assert done.exit_code in (0, 5, 6, 7, 9), (done.exit_code, done.stderr)
        answer = json.loads(done.stdout) if done.stdout else {}
        kept = answer.get("run")
        after = case.dump(place)
        if kept is not None:
            undone = report(run("undo", kept, "--store", store, "--json"))
            if name in DONE_AGAIN and words[0] in ("delete", "mark", "doctor") and undone["run"]:
                assert case.dump(place) == before
                again = report(run("undo", undone["run"], "--store", store, "--json"))
                assert case.dump(place) == after
                report(run("undo", again["run"], "--store", store, "--json"))
        if kept is None and words[0] in ("import", "migrate"):  # into an empty store
            return
        if "quarantine" in answer:
            return  # damaged data stay there
        if words == (*COPY, "replace"):
            assert on_one_line(case.dump(place)) == on_one_line(before)
        else:
            assert case.dump(place) == before

    check()


TWINS = ["m0", "m1", "m0", "m2", "m0"]


@pytest.mark.parametrize(
    "selection", [("--last", "1"), ("--id", "m2"), ("--until", "2025-01-01T12:00")]
)
@pytest.mark.parametrize("kind", ["archive", "state"])
def test_undo_restores_one_of_three_messages_with_one_id(
    run: Run, servers: Servers, tmp_path: Path, kind: str, selection: tuple[str, str]
) -> None:
    place = new_place(kind, tmp_path, servers)
    found = [stored(id, n) for n, id in enumerate(TWINS)]
    put(place, [sample(KEY, found, summary="")])
    dump = dump_archive if kind == "archive" else dump_files
    before = dump(place)
    done = report(run("delete", place.text, *selection, "--yes", "--json"))
    gone = {"--last": {4}, "--id": {3}, "--until": {0}}[selection[0]]
    text = place.location.path.read_text()
    assert [f"Part {n} " in text for n in range(5)] == [n not in gone for n in range(5)]
    after = dump(place)
    undone = report(run("undo", done["run"], "--json"))
    assert dump(place) == before
    report(run("undo", undone["run"], "--json"))
    assert dump(place) == after


@pytest.mark.parametrize("kind", ["archive", "state"])
def test_undo_takes_away_only_the_twin_that_an_import_added(
    run: Run, servers: Servers, tmp_path: Path, kind: str
) -> None:
    source, place = tmp_path / "source.ndjson", new_place(kind, tmp_path, servers)
    first = [stored("m0", 0), stored("m1", 1)]
    longer = [sample(KEY, [*first, stored("m0", 2)], summary="")]
    put(place_at("archive", str(source), tmp_path, servers), longer)
    put(place, [sample(KEY, first, summary="")])
    dump = dump_archive if kind == "archive" else dump_files
    before = dump(place)
    done = report(run("import", str(source), place.text, "--json"))
    assert dump(place) != before
    report(run("undo", done["run"], "--json"))
    assert dump(place) == before
