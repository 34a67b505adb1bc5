"""``memctl stores detect``: proposals of mappings, and tables that it names instead."""

from __future__ import annotations

import asyncio
import json
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from memctl.model import MemoryKey
from memctl.testing import samples
from tests.stores.test_tables import GUIDE, ask, execute
from tests.stores.test_tables import friday as friday
from tests.support.backends import shared
from tests.support.cli import fails, fill, report
from tests.support.servers.pool import Servers


def test_detect_proposes_what_then_works(
    run: Any, friday: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    [found] = report(run("stores", "detect", str(friday), "--json"))["tables"]
    assert found["columns"] == {
        **{"session": "session_id", "role": "role", "content": "content"},
        **{"time": "timestamp", "order": "id"},
    }
    assert "time = timestamp: numbers of seconds since 1970" in found["reasons"]
    config = tmp_path / "config.toml"
    config.write_text(found["toml"])
    monkeypatch.setenv("MEMCTL_CONFIG", str(config))
    assert report(run("inspect", "friday", "--json"))["totals"]["messages"] == 8


OWN_NAMES = "CREATE TABLE talk (nr INTEGER PRIMARY KEY, {} VARCHAR(20), who VARCHAR(9), said TEXT)"
SAID = [
    ("kyoto", "user", "Where shall we stay in Kyoto?"),
    ("kyoto", "bot", "In an apartment near the river."),
    ("osaka", "user", "Is there a train to Osaka?"),
    ("osaka", "bot", "Yes, every fifteen minutes."),
]


@pytest.mark.slow
@pytest.mark.parametrize("session", ["chat", "topic"])
@pytest.mark.parametrize("engine", ["sqlite", "postgresql", "mysql"])
def test_detect_looks_into_columns_of_unknown_names(
    run: Any, tmp_path: Path, servers: Servers, engine: str, session: str
) -> None:
    place = {
        "sqlite": lambda: f"sqlite:///{tmp_path}/own.db",
        "postgresql": servers.postgresql.fresh,
        "mysql": servers.mariadb.fresh,
    }[engine]()
    table = shared(engine, "table", servers)
    table.execute(place, OWN_NAMES.format(session))
    for nr, row in enumerate(SAID):
        table.execute(place, f"INSERT INTO talk VALUES ({nr}, {', '.join(map(repr, row))})")
    [found] = report(run("stores", "detect", place, "--json"))["tables"]
    assert found["columns"] == {
        "session": session,
        "role": "who",
        "content": "said",
        "order": "nr",
    }
    told = dict(reason.split(" = ") for reason in found["reasons"])
    assert told["role"] == "who: perhaps, by its contents: holds bot, user"
    assert told["content"] == "said: perhaps, by its contents: the longest texts"
    known = "by its name" if session == "chat" else "perhaps, by its contents: 2 values in 4 rows"
    assert told["session"] == f"{session}: {known}"
    named = ",".join(f"{role}:{column}" for role, column in found["columns"].items())
    mapped = f"{place}?layout=table&table=talk&columns={named}"
    assert report(run("inspect", mapped, "--json"))["totals"]["messages"] == 4
    assert report(run("search", mapped, "apartment", "--json"))["hits"][0]["role"] == "assistant"


def test_detect_asks_where_two_columns_may_be_the_session(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "own.db"
    execute(path, "CREATE TABLE talk (nr INTEGER PRIMARY KEY, topic TEXT, tone, who TEXT, said)")
    rows = [(topic, "calm" if nr % 2 else "dry", *row) for nr, (topic, *row) in enumerate(SAID)]
    execute(path, "INSERT INTO talk (topic, tone, who, said) VALUES (?, ?, ?, ?)", rows)
    shown = run("stores", "detect", path).stdout
    assert "session = topic: perhaps, by its contents: 2 values in 4 rows; or is it tone?" in shown


def test_detect_says_that_nothing_orders_the_rows(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "own.db"
    execute(path, "CREATE TABLE talk (chat, who, said)")
    execute(path, "INSERT INTO talk VALUES (?, ?, ?)", SAID)
    assert "order: not found" in run("stores", "detect", path).stdout


def test_detect_takes_other_texts_for_no_messages(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "own.db"
    execute(path, "CREATE TABLE notes (nr INTEGER PRIMARY KEY, topic TEXT, kind TEXT, body_ TEXT)")
    rows = [(topic, "draft", said) for topic, _, said in SAID]
    execute(path, "INSERT INTO notes (topic, kind, body_) VALUES (?, ?, ?)", rows)
    fails(run("stores", "detect", path), 4, "no table of messages was recognized; these have")


def test_detect_shows_what_a_name_hides(
    run: Any, friday: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    execute(friday, 'ALTER TABLE messages RENAME TO "mes\u202esages\x9b\U000e0041"')
    shown = run("stores", "detect", str(friday)).stdout
    assert not {"\u202e", "\x9b", "\U000e0041"} & set(shown)
    assert 'table = "mes\\U0000202Esages\\U0000009B\\U000E0041"' in shown
    config = tmp_path / "config.toml"
    config.write_text(report(run("stores", "detect", str(friday), "--json"))["tables"][0]["toml"])
    monkeypatch.setenv("MEMCTL_CONFIG", str(config))
    assert report(run("inspect", "friday", "--json"))["totals"]["messages"] == 8


def test_detect_says_where_nothing_is_to_be_mapped(run: Any, tmp_path: Path) -> None:
    empty, own = tmp_path / "empty.db", tmp_path / "own.db"
    execute(empty, "CREATE TABLE weather (day TEXT, rain REAL)")
    fails(run("stores", "detect", str(empty)), 4, "no table")
    asyncio.run(fill(str(own), {MemoryKey("a", "b"): samples.entries(1)}))
    fails(run("stores", "detect", str(own)), 4, "use it as it is")
    fails(run("stores", "detect", str(tmp_path / "a.ndjson")), 2, "not a SQL database")
    fails(run("stores", "detect"), 2, "names no database")


@pytest.fixture
def paste(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Detect the only table in a database; use the proposed lines as the configuration."""
    config = tmp_path / "config.toml"
    config.touch()
    monkeypatch.setenv("MEMCTL_CONFIG", str(config))

    def use(place: str | Path) -> dict[str, Any]:
        password = urlsplit(str(place)).password
        monkeypatch.setenv("DATABASE_PASSWORD", unquote(password or ""))
        config.write_text("")
        found: dict[str, Any]
        [found] = report(run("stores", "detect", place, "--json"))["tables"]
        config.write_text(found["toml"])
        found["alias"] = next(iter(tomllib.loads(found["toml"])["stores"]))
        return found

    return use


def said(run: Any, store: str) -> list[str]:
    lines = run("inspect", store, "--messages", "--format", "ndjson").stdout.splitlines()
    return [json.loads(line)["message"]["content"] for line in lines]


# spring-ai-model-chat-memory-repository-jdbc 2.0: its rows have no key
SPRING = (
    'CREATE TABLE chat.spring_ai_chat_memory (conversation_id VARCHAR(36) NOT NULL, "timestamp" '
    "TIMESTAMP NOT NULL, content TEXT NOT NULL, type VARCHAR(10) NOT NULL{})"
)
SPRING_ROWS = "INSERT INTO chat.spring_ai_chat_memory VALUES ('kyoto', '2025-05-14 10:00', {})"


def test_detect_leads_to_the_same_schema_and_order(
    run: Any, paste: Any, postgresql_url: str
) -> None:
    ask(postgresql_url, "CREATE SCHEMA chat", SPRING.format(", sequence_id BIGINT NOT NULL"))
    for text, type, number in (("Noted.", "ASSISTANT", 1), ("My seat is 12A.", "USER", 0)):
        ask(postgresql_url, SPRING_ROWS.format(f"'{text}', '{type}', {number}"))
    place = f"{postgresql_url}?options=-csearch_path%3Dchat&sslmode=disable&passfile=/a/b"
    shown = run("inspect", place).stderr
    plain = place.replace(f":{urlsplit(place).password}@", "@")
    assert f"memctl stores detect '{plain}'" in shown
    found = paste(place)
    assert found["columns"]["order"] == "sequence_id"
    [store] = tomllib.loads(found["toml"])["stores"].values()
    assert (store["url"], store["password_env"]) == (plain, "DATABASE_PASSWORD")
    assert said(run, found["alias"]) == ["My seat is 12A.", "Noted."]
    fails(run("stores", "detect", postgresql_url), 8, "has no tables", "search_path")


def test_an_order_that_is_not_unique_is_said_and_refused(
    run: Any, paste: Any, postgresql_url: str
) -> None:
    ask(postgresql_url, "CREATE SCHEMA chat", SPRING.format(""))
    for text in "hello", "hi":
        ask(postgresql_url, SPRING_ROWS.format(f"'{text}', 'USER'"))
    found = paste(f"{postgresql_url}?options=-csearch_path%3Dchat")
    [reason] = [one for one in found["reasons"] if one.startswith("order")]
    assert "not unique" in reason
    for command in "inspect", "doctor":
        fails(run(command, found["alias"]), 8, "is not unique", "'kyoto' share timestamp")


def test_detect_leaves_an_owner_out_where_a_column_names_the_user(
    run: Any, paste: Any, tmp_path: Path
) -> None:
    path = tmp_path / "own.db"
    execute(path, GUIDE)
    assert "owner=ada" in paste(f"sqlite:///{path}?owner=ada")["toml"]
    execute(path, "ALTER TABLE messages ADD COLUMN user_id TEXT")
    found = paste(f"sqlite:///{path}?owner=ada")
    assert "owner=" not in found["toml"]
    assert "owner: left out, because a column names the user" in found["reasons"]
    assert run("inspect", found["alias"]).exit_code == 0


@pytest.mark.parametrize("order", ["message_index", "sequence_number", "seq_no", "ordinal"])
def test_detect_takes_a_number_before_a_time(
    run: Any, paste: Any, tmp_path: Path, order: str
) -> None:
    path = tmp_path / "own.db"
    execute(
        path,
        f"CREATE TABLE m (id TEXT PRIMARY KEY, chat_id, role, text, time, turn INT, {order} INT)",
    )
    rows = [("b", "user", "Hi", 0), ("a", "assistant", "Hello", 1)]
    for id, role, text, number in rows:
        execute(
            path,
            "INSERT INTO m VALUES (?, 'c', ?, ?, '2025-01-01 10:00:00', 1, ?)",
            [(id, role, text, number)],
        )
    found = paste(path)
    assert found["columns"]["order"] == order
    assert said(run, found["alias"]) == ["Hi", "Hello"]
    execute(path, f"ALTER TABLE m DROP COLUMN {order}")
    [reason] = [one for one in paste(path)["reasons"] if one.startswith("order")]
    assert reason == (
        "order = time, id: the times, and the key where two are the same; some are, and the order "
        "of their rows is unsure"
    )
    for command in "inspect", "doctor":
        shown = run(command, found["alias"])
        assert "rows of the session 'c' share time" in shown.stderr
    execute(path, "UPDATE m SET time = time || id")
    assert "unsure" not in run("inspect", found["alias"]).stderr
    execute(path, "ALTER TABLE m DROP COLUMN time")
    assert paste(path)["columns"]["order"] == ["turn", "id"]
    assert "rows of the session 'c' share turn" in run("inspect", found["alias"]).stderr
    execute(path, "ALTER TABLE m DROP COLUMN turn")
    assert any("order: not found" in one for one in paste(path)["reasons"])
    assert "rows of the session 'c' are in the order" in run("inspect", found["alias"]).stderr


def test_detect_gives_each_table_an_alias(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "own.db"
    execute(path, GUIDE)
    execute(path, GUIDE.replace("messages", "older"))
    found = report(run("stores", "detect", path, "--json"))["tables"]
    stores = tomllib.loads("\n".join(one["toml"] for one in found))["stores"]
    assert stores.keys() == {"own-messages", "own-older"}


def test_detect_does_not_take_a_call_for_its_result(run: Any, paste: Any, tmp_path: Path) -> None:
    path = tmp_path / "own.db"
    execute(
        path,
        "CREATE TABLE turns (id INTEGER PRIMARY KEY, session_id, role, content, tool_call_id TEXT)",
    )
    rows = [("a", "assistant", "I will look.", "c1"), ("a", "tool", "Hotel Nord", "c1")]
    execute(
        path, "INSERT INTO turns (session_id, role, content, tool_call_id) VALUES (?,?,?,?)", rows
    )
    found = paste(path)
    assert "call_id" not in found["columns"]
    assert any(one.startswith("tool_call_id: not read") for one in found["reasons"])
    shown = run("inspect", found["alias"])
    assert "if each row with an id is a result" in shown.stderr
    execute(path, "UPDATE turns SET tool_call_id = '' WHERE role = 'assistant'")
    assert paste(path)["columns"]["call_id"] == "tool_call_id"


def test_detect_proposes_columns_of_other_usual_names(run: Any, paste: Any, tmp_path: Path) -> None:
    path = tmp_path / "own.db"
    execute(path, "CREATE TABLE chatlog (conv TEXT, who TEXT, body TEXT, at TEXT)")
    rows = [("k", who, f"from {who}", "2025-01-01 10:00:00") for who in ("user", "bot", "ada")]
    execute(path, "INSERT INTO chatlog VALUES (?, ?, ?, ?)", rows[:2])
    found = paste(path)
    assert found["columns"] == {
        **{"session": "conv", "role": "who", "content": "body", "time": "at"},
        "order": ["at", "rowid"],
    }
    assert "session = conv: perhaps, by its name" in found["reasons"]
    assert said(run, found["alias"]) == ["from user", "from bot"]
    execute(path, "INSERT INTO chatlog VALUES (?, ?, ?, ?)", rows[2:])
    assert any("memctl does not know ada as roles" in one for one in paste(path)["reasons"])
    execute(path, "DELETE FROM chatlog WHERE who <> 'ada'")
    found = paste(path)
    assert (found["columns"]["name"], "role" in found["columns"]) == ("who", False)
    assert "role: not found; memctl does not know who is the assistant" in found["reasons"]


def test_detect_reports_tables_that_it_does_not_recognize(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "own.db"
    execute(path, "CREATE TABLE notes (nr INTEGER PRIMARY KEY, title TEXT, text TEXT)")
    said = "no table of messages was recognized; these have text columns: notes (title, text)"
    shown = run("stores", "detect", path)
    fails(shown, 4, said)
    assert shown.stdout == ""
    found = report(run("stores", "detect", path, "--json"), 4)
    assert (found["tables"], said in found["error"]["message"]) == ([], True)


# LlamaIndex

LLAMAINDEX = [
    {"role": role, "additional_kwargs": {}, "blocks": [{"block_type": "text", "text": text}]}
    for role, text in (("user", "Hi"), ("assistant", "Hello"))
]


def test_detect_knows_the_sqlite_chat_store_of_llamaindex(
    run: Any, paste: Any, tmp_path: Path
) -> None:
    """The table is that of llama-index-storage-chat-store-sqlite 0.4.0."""
    path = tmp_path / "chats.db"
    execute(
        path,
        "CREATE TABLE data_chatstore (id INTEGER NOT NULL, key VARCHAR NOT NULL, "
        "value JSON NOT NULL, PRIMARY KEY (id))",
    )
    rows = [("ada-kyoto", json.dumps(one)) for one in LLAMAINDEX]
    execute(path, "INSERT INTO data_chatstore (key, value) VALUES (?, ?)", rows)
    assert "stores detect" in run("inspect", path).stderr
    found = paste(path)
    assert (found["columns"]["session"], found["dialect"]) == ("key", "llamaindex")
    shown = run("inspect", found["alias"], "--messages")
    assert "Hello" in shown.stdout
    assert "#2 assistant" in shown.stdout


@pytest.mark.parametrize("kind", ["JSON", "JSONB"])
def test_the_postgresql_chat_store_of_llamaindex_is_named(
    run: Any, postgresql_url: str, kind: str
) -> None:
    """The table is that of llama-index-storage-chat-store-postgres 0.5.0."""
    ask(
        postgresql_url,
        f"CREATE TABLE chatstore (id SERIAL PRIMARY KEY, key VARCHAR, value {kind}[])",
    )
    values = ", ".join(f"'{json.dumps(one)}'" for one in LLAMAINDEX)
    row = f"ARRAY[{values}]::{kind}[]"
    ask(postgresql_url, f"INSERT INTO chatstore (key, value) VALUES ('ada-kyoto', {row})")
    mapped = f"{postgresql_url}?layout=table&table=chatstore&columns=session:key,content:value"
    for command in (
        ("inspect", postgresql_url),
        ("stores", "detect", postgresql_url),
        ("inspect", mapped),
        ("inspect", f"{mapped}&dialect=llamaindex"),
    ):
        fails(run(*command), 8, "LlamaIndex's PostgresChatStore", "SQLAlchemyChatStore")
    ask(postgresql_url, "ALTER TABLE chatstore RENAME COLUMN key TO chat_id")
    renamed = mapped.replace("session:key", "session:chat_id")
    fails(run("inspect", renamed), 8, "'value' of 'chatstore' holds arrays")
    fails(
        run("stores", "detect", postgresql_url), 4, "chatstore (chat_id, value: messages in JSON)"
    )


@pytest.mark.parametrize("content", [LLAMAINDEX, {"role": "user", "content": "Hi"}])
@pytest.mark.parametrize("more", ["", "not JSON"])
def test_messages_in_a_content_are_refused(
    run: Any, tmp_path: Path, content: Any, more: str
) -> None:
    path = tmp_path / "own.db"
    execute(path, "CREATE TABLE chats (id INTEGER PRIMARY KEY, session_id, content, role)")
    insert = "INSERT INTO chats (session_id, content) VALUES (?, ?)"
    execute(path, insert, [("kyoto", json.dumps(content))])
    if more:
        execute(path, insert, [("osaka", more)])
    mapped = f"sqlite:///{path}?layout=table&table=chats&columns=session:session_id,content:content"
    shown = run("migrate", mapped, tmp_path / "copy.ndjson")
    fails(shown, 7 if more else 8, "in a format that is not known")
    if not more:
        fails(run("stores", "detect", path), 4, "content: messages in JSON", "chat messages")
    whole = f"{mapped},role:role" if more else f"{mapped}&content_encoding=text"
    assert said(run, whole)[0] == json.dumps(content)


def test_detect_warns_of_tables_that_it_does_not_read(run: Any, friday: Path) -> None:
    execute(friday, "CREATE TABLE vectors (id TEXT PRIMARY KEY, vector BLOB, payload TEXT)")
    execute(friday, "CREATE TABLE memory_migrations (id INTEGER PRIMARY KEY, user_id TEXT)")
    shown = run("stores", "detect", friday)
    assert shown.exit_code == 0
    said = "the table 'vectors' holds the facts of mem0's TypeScript library"
    assert f"memctl: warning: {said}, which memctl does not read" in shown.stderr
