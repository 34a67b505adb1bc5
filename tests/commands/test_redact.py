"""``memctl redact``: a secret is nowhere any more, everything else stays, and a receipt says so."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import redis

from memctl import MemoryKey, RunOptions, sync
from memctl.machine import zstd
from memctl.ops.redact.rules import Rules, secrets
from memctl.registry import kinds, store_class
from memctl.store import Store
from memctl.testing import Place, samples
from memctl.testing.samples import sample
from memctl.testing.suite.erase import texts
from tests.commands.test_asking import Session
from tests.stores.test_langgraph import Checkpoints
from tests.stores.test_langgraph import checkpoints as checkpoints
from tests.stores.test_langgraph import texts as texts_of_threads
from tests.support import agent_sessions
from tests.support.cli import Run, contents, fails, fill, report
from tests.support.places import put, runs_folder
from tests.support.redis_sessions import runtime_message

KEY = MemoryKey("ada", "kyoto")
TOKEN = "ghp_a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
STORES = [
    *("sqlite", "postgresql", "mysql", "redis", "sqlite-agentscope2", "archive", "sessions"),
    *("tablestore", "tablestore-session"),
]
GONE = "[redacted:github-pat]"
NOT_SELECTED = "it is not in what belongs to the named users and sessions alone"
DIFF = "storage/session_diff/{}.json"
SUPPORT = Path(__file__).parent.parent / "support"


def talk(token: str = TOKEN) -> list[Any]:
    """Return a conversation that has a token in each place where a message has texts."""
    call = {"type": "tool_use", "id": "c1", "name": "login", "input": {"token": token, "n": 1}}
    result = {"type": "tool_result", "id": "c1", "name": "login", "output": f"ok: {token}."}
    return [
        samples.entry("m-0000000000000001", 0, content=f"It is {token}, keep it."),
        samples.entry("m-0000000000000002", 1, content=[call]),
        samples.entry("m-0000000000000003", 2, content=[result], metadata={"env": f"T={token}"}),
        samples.entry("m-0000000000000004", 3, content="Nothing here."),
    ]


def state_text() -> str:
    """Return all that memctl keeps on this machine, decompressed."""
    found = ""
    for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME"):
        for path in Path(os.environ[name]).rglob("*"):
            if path.is_file():
                data = path.read_bytes()
                is_packed = path.suffix == ".zst"
                found += (zstd.decompress(data) if is_packed else data).decode("utf-8", "replace")
    return found


@pytest.fixture(params=STORES)
def place(request: pytest.FixtureRequest, one: Callable[[str], Place]) -> Place:
    """A place of each store in turn, with a memory that has the token."""
    place = one(request.param)
    put(place, [sample(KEY, talk())])
    return place


@pytest.fixture
def store(database: str) -> str:
    """The path of a SQLite database with a memory that has the token."""
    asyncio.run(fill(database, {KEY: talk()}))
    return database.removeprefix("sqlite:///")


def test_redact_leaves_nothing_of_a_secret(run: Run, place: Place, tmp_path: Path) -> None:
    store = place.text
    deleted = report(run("delete", store, "--user", "ada", "--last", "2", "--yes", "--json"))
    run("search", store, "keep")
    before = place.dump()
    scan = run("redact", store, "--secrets", "--dry-run", "--json")
    found = report(scan, 6)
    assert place.dump() == before
    [one] = found["stores"]
    assert set(one["kinds"]) == {"github-pat"}
    assert {row["value"] for row in one["places"]} == {"ghp_…"}
    receipt = tmp_path / "receipt.json"
    words = ("redact", store, "--secrets", "--yes", "--receipt", receipt)
    done = run(*words)
    assert done.exit_code == 0, done.output
    for said in (scan.output, done.output, texts(place.dump()), state_text()):
        assert TOKEN not in said
        assert TOKEN[5:] not in said
    assert TOKEN not in receipt.read_text()
    assert stat.S_IMODE(receipt.stat().st_mode) == 0o600
    assert json.loads(receipt.read_text())["complete"] is True
    assert GONE in texts(place.dump())
    assert run("verify", "--receipt", receipt, store).exit_code == 0
    fails(run("undo", "--store", store, "--yes"), 2, "redact")
    assert run("undo", deleted["run"], "--store", store, "--yes").exit_code == 0
    there = [one.message.decode() for one in contents(store)[KEY]]
    assert len(there) == 4
    assert [GONE in one for one in there] == [True, True, True, False]
    put(place, [sample(MemoryKey("bob", "osaka"), talk())])
    again = run("verify", "--receipt", receipt, store, "--json")
    assert TOKEN not in again.output
    assert {row["code"] for row in report(again, 6)["differences"]} == {"text"}


def test_redact_selected_memories(run: Run, place: Place, tmp_path: Path) -> None:
    """Values of others stay, are named, and come back by their undo runs as they were."""
    store, bob = place.text, MemoryKey("bob", "osaka")
    put(place, [sample(bob, talk())])
    archive = tmp_path / "a.ndjson"
    assert run("export", store, "-o", archive).exit_code == 0
    runs = {
        user: report(run("delete", store, "--user", user, "--last", "2", "--yes", "--json"))["run"]
        for user in ("ada", "bob")
    }
    before = contents(store)[bob]
    words = ("redact", store, "--secrets", "--user", "ada", "--archives", archive)
    assert report(run(*words, "--dry-run", "--json"), 6)["stores"][0]["left"] == 0
    assert contents(store)[bob] == before
    words = (*words, "--yes", "--receipt", tmp_path / "receipt.json", "--json")
    for has_more in (True, False):  # the second run goes on with the receipt
        found = report(run(*words), 6)
        assert {row["why"] for row in found["left"]} == {NOT_SELECTED}
        assert {row["kind"] for row in found["left"]} == {"github-pat"}
        assert (found["stores"][0]["redacted"] >= 4) is has_more
    assert contents(store)[bob] == before
    for run_id in runs.values():
        assert run("undo", run_id, "--store", store, "--yes").exit_code == 0
    for one in (store, str(archive)):
        there = {key.user: b"".join(m.message for m in some) for key, some in contents(one).items()}
        assert TOKEN.encode() not in there["ada"], one
        assert there["ada"].count(GONE.encode()) == 4
        assert there["bob"].count(TOKEN.encode()) == 4, one
    assert run("redact", store, "--secrets", "--user", "bob", "--yes").exit_code == 0
    assert TOKEN not in texts(place.dump())
    fails(run("redact", store, "--secrets", "--user", "adda", "--yes"), 4, "no memory of", "adda")


@pytest.mark.parametrize("kind", ["sqlite-agentscope2", "archive", "state"])
def test_redact_selected_summaries(run: Run, one: Callable[[str], Place], kind: str) -> None:
    place = one(kind)
    key = place.backend.only or KEY
    put(place, [sample(key, talk()[3:], summary=f"It was {TOKEN}.")])
    assert TOKEN in texts(place.dump())
    words = ("redact", place.text, "--secrets", "--session", key.session, "--yes", "--json")
    assert report(run(*words))["stores"][0]["redacted"] == 1
    assert TOKEN not in texts(place.dump())
    assert f"It was {GONE}." in texts(place.dump())


def test_redact_a_session_of_a_coding_agent(run: Run, tmp_path: Path) -> None:
    path = agent_sessions.claude_session(tmp_path, f"the key is {TOKEN}", "ok")
    result = agent_sessions.beside(path, "tool-results/b1.txt", f"K={TOKEN}\n".encode())
    other = path.with_name("00000000-0000-4000-8000-000000000007.jsonl")
    other.write_text(path.read_text().replace(agent_sessions.CLAUDE, other.stem))
    history = tmp_path / "history.jsonl"
    history.write_text(json.dumps({"display": TOKEN, "sessionId": agent_sessions.CLAUDE}) + "\n")
    agent_sessions.settle(tmp_path)
    words = ("--secrets", "--session", agent_sessions.CLAUDE, "--yes", "--json")
    found = report(run("redact", f"claude-code:{tmp_path}", *words), 6)
    assert TOKEN not in path.read_text() + result.read_text()
    assert TOKEN in other.read_text()
    places = {row["place"].rpartition("/")[2].partition(":")[0] for row in found["left"]}
    assert places == {other.name, history.name}


@pytest.mark.parametrize(
    ("program", "word", "sessions"),
    [("hermes", "nine", ["s1", "s2"]), ("opencode", "train", ["ses_one", "ses_two"])],
)
def test_redact_a_session_in_a_database_of_a_coding_agent(
    run: Run, tmp_path: Path, program: str, word: str, sessions: list[str]
) -> None:
    script = (SUPPORT / f"{program}.sql").read_text("utf-8")
    path = tmp_path / {"hermes": "state.db", "opencode": "opencode.db"}[program]
    with closing(sqlite3.connect(path)) as database, database:
        database.executescript(script)
        if program == "opencode":  # a second session with the same texts
            other = re.sub("(msg|prt|evt)_2", r"\1_3", script).replace(*sessions)
            rows = [line for line in other.splitlines() if line.startswith("INSERT INTO")]
            database.executescript("\n".join(one for one in rows if "INTO project" not in one))
    files = [
        tmp_path / ("sessions/request_dump_{}_1.json" if program == "hermes" else DIFF).format(one)
        for one in sessions
    ]
    files[0].parent.mkdir(parents=True)
    for file in files:
        file.write_text(json.dumps({"text": f"at {word}"}))
    store = f"{program}:{tmp_path}"
    before = contents(store)
    words = ("redact", store, "--match", word, "--yes", "--session")
    left = report(run(*words, sessions[0], "--json"), 6)["left"]
    assert {row["why"] for row in left} == {NOT_SELECTED}
    after = contents(store)
    for key, some in before.items():
        is_chosen = key.session == sessions[0]
        assert (after[key] == some) is not is_chosen
        assert not (is_chosen and any(word.encode() in one.message for one in after[key]))
    assert [word in file.read_text() for file in files] == [False, True]
    assert run(*words, sessions[1]).exit_code == 0
    assert word.encode() not in path.read_bytes() + files[1].read_bytes()
    assert run("doctor", store).exit_code == 0


def test_redact_a_user_of_agno(run: Run, one: Callable[[str], Place]) -> None:
    place = one("sqlite-agno")
    samples.use(place.backend.style)
    keys = [KEY, MemoryKey("ada", "nara"), MemoryKey("bob", "osaka")]
    put(place, [sample(key, samples.entries(2)) for key in keys])
    samples.use(samples.Style())
    path = place.text.removeprefix("sqlite:///").partition("?")[0]
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE agno_memories (id TEXT PRIMARY KEY, memory TEXT, user_id)")
        database.execute("CREATE TABLE agno_traces (trace_id TEXT, session_id, user_id, name)")
        database.execute("CREATE TABLE agno_spans (span_id TEXT PRIMARY KEY, trace_id, attributes)")
        for user, session in (("ada", "kyoto"), ("bob", "osaka")):
            said = f'{{"text": "message 1 of {user}"}}'
            database.execute("INSERT INTO agno_memories VALUES (?, ?, ?)", (user, said, user))
            database.execute(
                "INSERT INTO agno_traces VALUES (?, ?, ?, ?)", (user, session, user, said)
            )
            database.execute("INSERT INTO agno_spans VALUES (?, ?, ?)", (user, user, said))

    def said(table: str, column: str) -> list[bool]:
        with closing(sqlite3.connect(path)) as database:
            rows = database.execute(f"SELECT {column} FROM {table} ORDER BY 1 DESC").fetchall()
        return sorted("message 1" in text for (text,) in rows)

    before = contents(place.text)
    words = ("redact", place.text, "--match", "message 1", "--yes", "--json")
    for choice, has_memory in ((("--session", "kyoto"), True), (("--user", "ada"), False)):
        left = report(run(*words, *choice), 6)["left"]
        assert {row["why"] for row in left} == {NOT_SELECTED}
        has_it = {
            key: any(b"message 1" in one.message for one in some)
            for key, some in contents(place.text).items()
        }
        assert has_it == {keys[0]: False, keys[1]: has_memory, keys[2]: True}
        assert said("agno_memories", "memory") == [has_memory, True]
        assert said("agno_traces", "name") == said("agno_spans", "attributes") == [False, True]
    assert contents(place.text)[keys[2]] == before[keys[2]]
    assert run(*words).exit_code == 0
    assert "message 1" not in texts(place.dump())


def test_redact_a_thread_of_langgraph(run: Run, checkpoints: Checkpoints) -> None:
    for thread in ("kyoto", "osaka"):
        checkpoints.say(thread, f"It is {TOKEN}")
        checkpoints.say(thread, f"It is {TOKEN}", "Thanks", metadata={"note": TOKEN})
    words = ("redact", checkpoints.url, "--secrets", "--yes", "--session")
    left = report(run(*words, "kyoto", "--json"), 6)["left"]
    assert all("osaka" in row["place"] for row in left), "not even in earlier checkpoints"
    said = texts_of_threads(checkpoints.url)
    assert said == {"kyoto": [f"It is {GONE}", "Thanks"], "osaka": [f"It is {TOKEN}", "Thanks"]}
    assert run(*words, "osaka").exit_code == 0
    assert run("doctor", checkpoints.url).exit_code == 0


def test_redact_a_user_of_a_session_that_two_have(run: Run, store: str, tmp_path: Path) -> None:
    """In AgentScope's tables, and in those of an application, whose further columns stay."""
    other = tmp_path / "chats.db"
    with closing(sqlite3.connect(other)) as database, database:
        database.execute("CREATE TABLE said (n INTEGER PRIMARY KEY, chat, who, r, body, note)")
        for user in ("ada", "bob"):
            row = ("kyoto", user, "user", f"It is {TOKEN}", f"{user} {TOKEN}")
            database.execute("INSERT INTO said VALUES (NULL, ?, ?, ?, ?, ?)", row)
    columns = "session:chat,user:who,role:r,content:body"
    url = f"sqlite:///{other}?layout=table&table=said&columns={columns}"
    asyncio.run(fill(f"sqlite:///{store}", {MemoryKey("bob", "kyoto"): talk()}))
    with closing(sqlite3.connect(store)) as database, database:
        database.execute("ALTER TABLE message ADD COLUMN note VARCHAR(60)")
        database.execute("UPDATE message SET note = substr(id, 1, 3) || ?", (f" {TOKEN}",))
    for name, path, table in ((store, store, "message"), (url, other, "said")):
        bob = contents(name)[MemoryKey("bob", "kyoto")]
        words = ("redact", name, "--secrets", "--yes", "--user", "ada", "--json")
        left = report(run(*words), 6)["left"]
        assert {row["why"] for row in left} == {NOT_SELECTED}
        there = contents(name)
        assert not any(TOKEN.encode() in one.message for one in there[KEY])
        assert there[MemoryKey("bob", "kyoto")] == bob
        with closing(sqlite3.connect(path)) as database:
            notes = {note for (note,) in database.execute(f"SELECT note FROM {table}")}
        assert notes == {f"ada {GONE}", f"bob {TOKEN}"}


def test_redact_selection_that_a_store_cannot_serve(
    run: Run, client: redis.Redis, redis_url: str
) -> None:
    text = json.dumps([runtime_message("m1")])
    client.hset("user_memory:ada", "kyoto", text)
    words = ("redact", f"{redis_url}?layout=runtime", "--match", "m1", "--session", "kyoto")
    fails(run(*words, "--yes"), 2, "as a whole", "leave out --user and --session")
    assert client.hget("user_memory:ada", "kyoto") == text.encode()


def test_redact_keeps_what_is_no_secret(run: Run, store: str) -> None:
    before = contents(store)[KEY]
    assert run("redact", store, "--secrets", "--yes").exit_code == 0
    after = contents(store)[KEY]
    for was, now in zip(before, after, strict=True):
        assert now == was._replace(message=was.message.replace(TOKEN.encode(), GONE.encode()))


def test_redact_finds_secrets_in_prose() -> None:
    rules = Rules(secrets())
    for text, kind in (
        (f"Use {TOKEN}.", "github-pat"),
        (f"({TOKEN})", "github-pat"),
        ("key=AKIAIOSFODNN7EXAMPQR, region=eu", "aws-access-token"),
        ("sk-ant-api03-" + "aB3" * 31 + "AA!", "anthropic-api-key"),
        ("(xoxb-263594206564-2343594206574-FGqddMF8t08v8N7Oq4i57vs1)", "slack-bot-token"),
        ("-----BEGIN RSA PRIVATE KEY-----\n" + "MIIEow" * 20 + "\n-----END RSA PRIVATE KEY-----",
         "private-key"),
    ):  # fmt: skip
        assert [match.kind for match in rules.find(text)] == [kind], text
    for text in ("The key is under the mat.", "https://example.com/a?b=c", "ghp_" + "a" * 36):
        assert rules.find(text) == [], text


def test_redact_by_texts_and_expressions(run: Run, store: str, tmp_path: Path) -> None:
    lines = tmp_path / "names.txt"
    lines.write_text("keep it\n\nNothing\n")
    words = ("redact", store, "--from", lines, "--regex", r"T=\S+", "--consistent", "--yes")
    found = report(run(*words, "--json"))["stores"][0]
    assert found["kinds"] == {"text": 2, "match": 1}
    there = "".join(one.message.decode() for one in contents(store)[KEY])
    assert "[redacted:text:1]" in there
    assert "[redacted:match:2]" in there
    assert "[redacted:text:3] here" in there
    assert {row["value"] for row in found["places"]} == {"k…", "N…", "T=gh…"}
    again = run(*words[:2], "--match", "redacted:te", "--match", "text", "--dry-run")
    assert again.exit_code == 0, "what took the place of a value is none"
    for more, said in (
        ((), "nothing says what to find"),
        (("--match", ""), "--match is empty"),
        (("--regex", "("), "not a regular expression"),
        (("--regex", "x*"), "matches the empty text"),
        (("--from", tmp_path / "none.txt"), "none.txt"),
    ):
        code = 4 if "none.txt" in said else 2
        fails(run("redact", store, *more, "--yes"), code, said)
    fails(run("redact", store, "--secrets"), 2, "not a terminal")
    fails(run("redact", "--secrets", "--yes"), 2, "no store is named")


def test_redact_names_what_stays(run: Run, database: str) -> None:
    """Ids, keys and numbers stay, and so do roles, which nobody asked for."""
    odd = [
        samples.entry(f"m-{TOKEN}", 0, content="Hi"),
        samples.entry("m-0000000000000002", 1, metadata={TOKEN: 4111111111111111}),
    ]
    asyncio.run(fill(database, {MemoryKey(TOKEN, "kyoto"): odd}))
    words = ("redact", database, "--secrets", "--match", "4111111111111111")
    for more in ("--dry-run", "--yes"):
        found = report(run(*words, more, "--json"), 6)
        whys = {row["why"] for row in found["left"]}
        assert whys == {
            "it is in a name: rename it",
            "it is in an id, a mark or the folder of a session, which ties data together",
            "it is in a key of an object",
            "it is a number",
        }
        assert TOKEN not in json.dumps(found), "nor in the names of places"
    assert run("redact", database, "--match", "user", "--yes").exit_code == 0
    assert b'"role": "user"' in contents(database)[MemoryKey(TOKEN, "kyoto")][0].message


def test_redact_leaves_names_and_takes_keys_under_names_like_ids(run: Run, tmp_path: Path) -> None:
    """A session and a user stay, whatever their column is called; an access key is a secret."""
    path = tmp_path / "chats.db"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(
            "CREATE TABLE said (n INTEGER PRIMARY KEY, chat TEXT, who TEXT, r TEXT, body TEXT)"
        )
        body = json.dumps({"said": "in kyoto", "aws_access_key_id": "AKIAIOSFODNN7EXAMPQR"})
        database.execute("INSERT INTO said VALUES (1, 'kyoto', 'ada', 'user', ?)", (body,))
    columns = "session:chat,user:who,role:r,content:body"
    url = f"sqlite:///{path}?layout=table&table=said&columns={columns}"
    found = report(run("redact", url, "--secrets", "--match", "kyoto", "--yes", "--json"), 6)
    assert {(row["place"], row["why"]) for row in found["left"]} == {
        ("said.chat of the row 1", "it is in a name: rename it")
    }
    with closing(sqlite3.connect(path)) as database:
        [(chat, who, body)] = database.execute("SELECT chat, who, body FROM said").fetchall()
    assert (chat, who) == ("kyoto", "ada")
    assert "AKIA" not in body
    assert json.loads(body)["said"] == "in [redacted:text]"


def test_redact_takes_a_private_key_out_of_a_file(run: Run, tmp_path: Path) -> None:
    lines = [
        "-----BEGIN RSA PRIVATE KEY-----",
        *("MIIEow" * 10,) * 3,
        "-----END RSA PRIVATE KEY-----",
    ]
    path = agent_sessions.claude_session(tmp_path, "look", "ok")
    file = agent_sessions.beside(path, "tool-results/b1.txt", "\n".join(lines).encode() + b"\nok\n")
    agent_sessions.settle(tmp_path)
    store = f"claude-code:{tmp_path}"
    fails(run("redact", f"{store}?project=/x", "--secrets", "--dry-run"), 2, "chooses a part")
    assert run("redact", store, "--secrets", "--yes").exit_code == 0
    assert file.read_text() == "[redacted:private-key]\nok\n"


def test_redact_serves_the_stores_that_the_docs_name() -> None:
    """The suite skips a store that memctl does not rewrite: these are all of them."""
    refusing = set()
    for kind in kinds():
        store = store_class(kind)
        own = store.rewrite_texts is not Store.rewrite_texts
        if not own and store.text_files is Store.text_files:
            refusing.add(kind)
    assert refusing == {
        *("mem0-platform", "langchain"),
        *("hermes-import", "opencode-import"),  # new files, of which nothing is read
    }


def test_redact_removes_thinking_that_a_signature_covers(run: Run, database: str) -> None:
    think = {"type": "thinking", "thinking": f"use {TOKEN}", "signature": "abc"}
    say = {"type": "text", "text": "Done."}
    asyncio.run(
        fill(
            database,
            {
                KEY: [
                    samples.entry("m-0000000000000001", 0, content=[think, say]),
                    samples.entry("m-0000000000000002", 1, content=[think]),
                    samples.entry(
                        "m-0000000000000003", 2, content=[{**think, "thinking": "no"}, say]
                    ),
                ]
            },
        )
    )
    done = run("redact", database, "--secrets", "--yes")
    assert "2 blocks of thinking removed" in done.stdout
    found = [json.loads(one.message)["content"] for one in contents(database)[KEY]]
    gone = {"type": "text", "text": "[redacted:thinking]"}
    assert found == [[say], [gone], [{**think, "thinking": "no"}, say]]


def test_redact_keeps_the_way_back_exact(run: Run, store: str, tmp_path: Path) -> None:
    other = f"sqlite:///{tmp_path}/other.db?layout=agentscope2"
    assert run("migrate", store, other).exit_code == 0
    for one in (store, other):
        assert run("redact", one, "--secrets", "--yes").exit_code == 0
    back = tmp_path / "back.db"
    assert run("migrate", other, back).exit_code == 0
    assert run("verify", store, back).exit_code == 0


def test_redact_offloaded_contents(run: Run, database: str, tmp_path: Path) -> None:
    output = f"{'x' * 70_000} {TOKEN} y"
    block = {"type": "tool_result", "id": "c1", "name": "look", "output": output}
    large = samples.entry("m-0000000000000001", 0, content=[block])
    asyncio.run(fill(database, {KEY: [large]}))
    blobs = tmp_path / "blobs"
    assert run("offload", database, "--to", blobs, "--yes").exit_code == 0
    words = ("redact", database, "--secrets", "--blobs", blobs, "--yes")
    assert run(*words[:-1], "--dry-run").exit_code == 6
    left = report(run(*words, "--user", "ada", "--json"), 6)["left"]
    assert "offloaded content, which may belong to others" in left[0]["why"]
    assert run(*words).exit_code == 0
    assert run(*words[:-1], "--dry-run").exit_code == 0
    stored = b"".join(
        zstd.decompress(one.read_bytes()) if one.suffix == ".zst" else one.read_bytes()
        for one in blobs.iterdir()
    )
    assert TOKEN.encode() not in stored
    assert GONE.encode() in stored
    assert run("rehydrate", database, "--from", blobs).exit_code == 0
    [now] = contents(database)[KEY]
    assert now.message == large.message.replace(TOKEN.encode(), GONE.encode())
    assert TOKEN not in state_text()


def test_redact_coding_agents(run: Run, tmp_path: Path) -> None:
    claude, codex = tmp_path / "claude", tmp_path / "codex"
    path = agent_sessions.claude_session(claude, f"the key is {TOKEN}", "ok")
    agent_sessions.beside(path, "tool-results/b1.txt", f"export K={TOKEN}\n".encode())
    agent_sessions.beside(path, "subagents/agent-1.jsonl", f'{{"x": "{TOKEN}"}}\n'.encode())
    history = json.dumps({"display": TOKEN, "sessionId": agent_sessions.CLAUDE})
    (claude / "history.jsonl").write_text(history + "\n")
    (claude / ".credentials.json").write_text(TOKEN)
    agent_sessions.codex_session(codex, f"the key is {TOKEN}", "ok")
    with closing(sqlite3.connect(codex / "state_5.sqlite")) as state, state:
        state.execute("CREATE TABLE threads (id TEXT PRIMARY KEY, title TEXT)")
        state.execute("INSERT INTO threads VALUES (?, ?)", (agent_sessions.CODEX, TOKEN))
    with closing(sqlite3.connect(codex / "thread_history_1.sqlite")) as state, state:
        state.execute("CREATE TABLE thread_items (thread_id TEXT, item_json TEXT)")
        items = [(agent_sessions.CODEX, f'{{"text": "{TOKEN}"}}'), ("other", '{"text": "x"}')]
        state.executemany("INSERT INTO thread_items VALUES (?, ?)", items)
    stores = f"claude-code:{claude}", f"codex:{codex}"
    words = ("redact", *stores, "--secrets", "--yes", "--json")
    now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    busy = agent_sessions.claude_line(9, TOKEN, timestamp=now)
    with path.open("ab") as file:
        file.write(json.dumps(busy).encode() + b"\n")
    found = report(run(*words), 6)
    assert all("an agent wrote it" in row["why"] for row in found["left"])
    assert TOKEN in path.read_text()
    path.write_text(path.read_text().replace(now, "2026-11-20T10:00:09.000Z"))
    agent_sessions.settle(tmp_path)
    before = path.stat().st_mtime
    assert run(*words).exit_code == 0
    for folder in (claude, codex):
        left = [
            name for name, data in agent_sessions.files(folder).items() if TOKEN.encode() in data
        ]
        assert left == ([".credentials.json"] if folder is claude else [])
    assert path.stat().st_mtime == before, "the sweep of Claude Code counts from this time"
    with closing(sqlite3.connect(codex / "thread_history_1.sqlite")) as state:
        rows = state.execute("SELECT thread_id FROM thread_items").fetchall()
    assert rows == [("other",)], "Codex makes the rows of the thread again"
    assert sum(map(len, contents(stores[0]).values())) == 5


@pytest.mark.parametrize(("program", "file"), [("hermes", "state.db"), ("opencode", "opencode.db")])
def test_redact_databases_of_coding_agents(
    run: Run, tmp_path: Path, program: str, file: str
) -> None:
    path, word = tmp_path / file, {"hermes": "xylophone", "opencode": "train"}[program]
    with closing(sqlite3.connect(path)) as database, database:
        database.executescript((SUPPORT / f"{program}.sql").read_text("utf-8"))
    assert word.encode() in path.read_bytes()
    done = run("redact", f"{program}:{tmp_path}", "--match", word, "--yes")
    assert done.exit_code == 0, done.output
    assert word.encode() not in path.read_bytes(), "not even in an index for searches"
    said = [one.message for some in contents(f"{program}:{tmp_path}").values() for one in some]
    assert any(b"[redacted:text]" in one for one in said)
    assert run("doctor", f"{program}:{tmp_path}").exit_code == 0


def test_redact_a_session_of_codex(run: Run, tmp_path: Path) -> None:
    """The rows about the session change with its file; those about two sessions stay."""
    ids = agent_sessions.CODEX, agent_sessions.CODEX[:-1] + "9"
    paths = [agent_sessions.codex_session(tmp_path, f"it is {TOKEN}", id=one) for one in ids]
    state = tmp_path / "state_5.sqlite"
    with closing(sqlite3.connect(state)) as database, database:
        database.execute("CREATE TABLE threads (id TEXT PRIMARY KEY, title TEXT)")
        database.execute("CREATE TABLE thread_items (thread_id TEXT, item_json TEXT)")
        database.execute(
            "CREATE TABLE thread_edges (parent_thread_id TEXT, child_thread_id TEXT, note TEXT)"
        )
        for one in ids:
            database.execute("INSERT INTO threads VALUES (?, ?)", (one, TOKEN))
            database.execute("INSERT INTO thread_items VALUES (?, ?)", (one, f'"{TOKEN}"'))
        database.execute("INSERT INTO thread_edges VALUES (?, ?, ?)", (*ids, TOKEN))
    agent_sessions.settle(tmp_path)
    words = ("redact", f"codex:{tmp_path}", "--secrets", "--yes", "--json", "--session", ids[0])
    left = report(run(*words), 6)["left"]
    assert {row["why"] for row in left} == {NOT_SELECTED}
    assert [TOKEN in path.read_text() for path in paths] == [False, True]
    with closing(sqlite3.connect(state)) as database:
        assert dict(database.execute("SELECT * FROM threads")) == {ids[0]: GONE, ids[1]: TOKEN}
        assert database.execute("SELECT thread_id FROM thread_items").fetchall() == [(ids[1],)]
        assert database.execute("SELECT note FROM thread_edges").fetchall() == [(TOKEN,)]


def test_redact_trajectories(run: Run, store: str, tmp_path: Path) -> None:
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    assert run("export", store, "--as", "atif", "-o", jobs / "all.jsonl").exit_code == 0
    other = {"schema_version": "ATIF-v1.4", "session_id": "s", "agent": {"name": "a"}}
    steps = [{"step_id": 1, "source": "user", "message": f"the key is\n{TOKEN}"}]
    (jobs / "one.json").write_text("\ufeff" + json.dumps(other | {"steps": steps}))
    (jobs / "log.json").write_text(json.dumps(TOKEN))
    assert run("redact", f"atif:{jobs}", "--secrets", "--yes").exit_code == 0
    assert TOKEN not in (jobs / "all.jsonl").read_text() + (jobs / "one.json").read_text()
    assert TOKEN in (jobs / "log.json").read_text(), "the report says that it is not reached"
    assert run("redact", store, "--secrets", "--yes").exit_code == 0
    back = tmp_path / "back.db"
    assert run("import", jobs / "all.jsonl", back).exit_code == 0
    assert contents(str(back)) == contents(store), "its notes hold"


def test_redact_checkpoints_of_langgraph(run: Run, checkpoints: Checkpoints) -> None:
    checkpoints.say("kyoto", f"It is {TOKEN}")
    checkpoints.say("kyoto", f"It is {TOKEN}", "Thanks", "Bye", metadata={"note": TOKEN})
    assert run("redact", checkpoints.url, "--secrets", "--yes").exit_code == 0
    assert texts_of_threads(checkpoints.url) == {"kyoto": [f"It is {GONE}", "Thanks", "Bye"]}
    assert run("redact", checkpoints.url, "--secrets", "--dry-run").exit_code == 0
    assert run("doctor", checkpoints.url).exit_code == 0


def test_redact_a_column_of_an_application(run: Run, store: str) -> None:
    with closing(sqlite3.connect(store)) as database, database:
        database.execute("ALTER TABLE message ADD COLUMN note VARCHAR(30)")
        database.execute("UPDATE message SET note = ?", (f"see {TOKEN}",))
    assert run("redact", store, "--secrets", "--yes").exit_code == 0
    with closing(sqlite3.connect(store)) as database:
        assert {note for (note,) in database.execute("SELECT note FROM message")} == {f"see {GONE}"}
    assert TOKEN.encode() not in Path(store).read_bytes()


def test_redact_clears_free_pages(run: Run, store: str) -> None:
    with closing(sqlite3.connect(store)) as database, database:
        database.execute("CREATE TABLE x AS SELECT ? AS y", (TOKEN + "z" * 5000,))
        database.execute("DROP TABLE x")
    assert TOKEN.encode() in Path(store).read_bytes()
    assert run("redact", store, "--secrets", "--yes").exit_code == 0
    assert TOKEN.encode() not in Path(store).read_bytes()


def test_redact_refuses(run: Run, store: str, one: Callable[[str], Place], tmp_path: Path) -> None:
    fails(run("redact", store, "--archives", store, "--secrets", "--yes"), 2, "not an archive")
    none = tmp_path / "none.ndjson"
    fails(run("redact", store, "--archives", none, "--secrets", "--yes"), 4, "does not exist")
    place = one("mem0-chroma")
    samples.use(place.backend.style)
    put(place, [sample(KEY, samples.entries(1))])
    samples.use(samples.Style())
    facts = place.text
    fails(run("redact", facts, "--secrets", "--dry-run"), 2, "keeps replaced texts", "import it")
    both = run("redact", facts, store, "--secrets", "--yes")
    fails(both, 7, "1 store of 2 could not be redacted")
    assert f"{facts}: not searched" in both.stdout
    assert TOKEN.encode() not in Path(store).read_bytes()
    assert run("hold", "add", "--user", "ada", "--reason", "case 17").exit_code == 0
    fails(run("redact", store, "--match", "keep", "--yes"), 9, "held: case 17")


def test_redact_asks(run: Run, store: str) -> None:
    for answer, code in (("n\n", 130), ("y\n", 0)):
        session = Session("redact", store, "--secrets")
        session.until("[y/N] ")
        assert "redact 4 values in 1 store? this cannot be undone" in session.said
        session.types(answer)
        assert session.ends() == code
    assert TOKEN.encode() not in Path(store).read_bytes()
    assert run("redact", store, "--secrets", "--yes").stdout.startswith(f"{store}: nothing found")


KILLED = """
import os, signal, sys
from memctl.engines.sql import texts
from memctl.journal import rewrite
from memctl.__main__ import main
left = [int(sys.argv.pop(1))]
texts._BATCH_ROWS = 1
def counted(original):
    async def call(*args):
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return await original(*args)
    return call
def sync_counted(original):
    def call(self, path):
        left[0] -= self.writes
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(self, path)
    return call
texts.RowTexts._update = counted(texts.RowTexts._update)
rewrite._Files._changes = sync_counted(rewrite._Files._changes)
main()
"""


@pytest.mark.slow
def test_redact_again_finishes_what_was_killed(run: Run, store: str, tmp_path: Path) -> None:
    assert run("delete", store, "--last", "1", "--yes").exit_code == 0
    assert run("delete", store, "--last", "1", "--yes").exit_code == 0
    receipt = tmp_path / "receipt.json"
    words = ["redact", store, "--secrets", "--yes", "--receipt", str(receipt)]
    for step in range(3):
        killed = subprocess.run([sys.executable, "-c", KILLED, str(step), *words])
        assert killed.returncode == -9, step
        half = json.loads(receipt.read_text())
        assert (half["complete"], half["ended"]) == (False, None)
        assert len(contents(store)[KEY]) == 2, "each row is whole"
    assert run(*words).exit_code == 0
    assert TOKEN not in state_text() + texts(Path(store).read_bytes())
    assert json.loads(receipt.read_text())["complete"] is True
    assert run("verify", "--receipt", receipt).exit_code == 0
    asyncio.run(fill(store, {MemoryKey("bob", "x"): talk()}))
    assert run("verify", "--receipt", receipt).exit_code == 6, "the killed runs found it first"


def test_redact_receipt_that_is_damaged(run: Run, store: str, tmp_path: Path) -> None:
    receipt = tmp_path / "r.json"
    assert run("redact", store, "--secrets", "--yes", "--receipt", receipt).exit_code == 0
    fails(run("redact", store, "--secrets", "--yes", "--receipt", receipt), 2, "exists")
    receipt.write_text(receipt.read_text().replace('"length": ', '"length": -'))
    fails(run("verify", "--receipt", receipt), 8, "the receipt", "is damaged")
    fails(run("verify", "--receipt", store), 8, "is not a receipt")
    fails(run("verify", "--receipt", tmp_path / "none.json"), 4, "does not exist")


def test_redact_for_programs(store: str, tmp_path: Path) -> None:
    with sync.open_store(store, change=True) as opened:
        planned = sync.redact(opened, secrets=True, run=RunOptions(dry_run=True))
        assert (planned.kinds, planned.receipt) == ({"github-pat": 4}, None)
        done = sync.redact(opened, "Nothing", secrets=True, receipt=tmp_path / "r.json")
        assert (done.kinds, done.left) == ({"github-pat": 4, "text": 1}, [])
    assert done.receipt == tmp_path / "r.json"
    assert not [one for one in runs_folder().glob("*-*") if one.is_dir()]
