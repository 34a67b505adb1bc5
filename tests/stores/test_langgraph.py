"""The checkpoints of LangGraph, in bytes as its serializer writes them: read, and left alone.

What the real checkpointers write is read in ``tests/interop_frameworks``.
"""

from __future__ import annotations

import json
import re
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import ormsgpack
import pytest

from memctl.machine.installation import install_command
from memctl.model import MemoryKey
from memctl.registry import make_store, parse
from memctl.selection import Selection
from tests.commands.test_damaged_file import lose_row
from tests.support.cli import contents, fails, report
from tests.support.servers.pool import Servers

TABLES = {
    "sqlite": (
        "CREATE TABLE checkpoints (thread_id TEXT NOT NULL, checkpoint_ns TEXT NOT NULL DEFAULT '',"
        " checkpoint_id TEXT NOT NULL, parent_checkpoint_id TEXT, type TEXT, checkpoint BLOB, "
        "metadata BLOB, PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id))",
        "CREATE TABLE writes (thread_id TEXT NOT NULL, checkpoint_ns TEXT NOT NULL DEFAULT '', "
        "checkpoint_id TEXT NOT NULL, task_id TEXT NOT NULL, idx INTEGER NOT NULL, channel TEXT "
        "NOT NULL, type TEXT, value BLOB, "
        "PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id, task_id, idx))",
    ),
    "postgresql": (
        "CREATE TABLE checkpoints (thread_id TEXT NOT NULL, checkpoint_ns TEXT NOT NULL DEFAULT '',"
        " checkpoint_id TEXT NOT NULL, parent_checkpoint_id TEXT, type TEXT, checkpoint JSONB NOT "
        "NULL, metadata JSONB NOT NULL DEFAULT '{}', "
        "PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id))",
        "CREATE TABLE checkpoint_writes (thread_id TEXT NOT NULL, checkpoint_ns TEXT NOT NULL "
        "DEFAULT '', checkpoint_id TEXT NOT NULL, task_id TEXT NOT NULL, idx INTEGER NOT NULL, "
        "channel TEXT NOT NULL, type TEXT, blob BYTEA NOT NULL, task_path TEXT NOT NULL DEFAULT '',"
        " PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id, task_id, idx))",
        "CREATE TABLE checkpoint_blobs (thread_id TEXT NOT NULL, checkpoint_ns TEXT NOT NULL "
        "DEFAULT '', channel TEXT NOT NULL, version TEXT NOT NULL, type TEXT NOT NULL, blob BYTEA, "
        "PRIMARY KEY (thread_id, checkpoint_ns, channel, version))",
    ),
}
ENGINES = list(TABLES)
SINGLE, POSITIONAL, METHOD, PYDANTIC, DELTA = 0, 1, 3, 5, 7
MARKER = "memctl_hostile_module"
SUBGRAPH = "child:8e9d4d2c-2f0c-64a1-9c38-3b0b4d8a9f3e"


def pack(value: Any) -> bytes:
    return ormsgpack.packb(value, option=ormsgpack.OPT_NON_STR_KEYS)


def extension(code: int, *parts: Any) -> ormsgpack.Ext:
    """Return an object as LangGraph packs it: its module, its class, what it is made of."""
    return ormsgpack.Ext(code, pack(parts))


def message(kind: str, content: Any, **fields: Any) -> ormsgpack.Ext:
    name = {"human": "HumanMessage", "ai": "AIMessage", "tool": "ToolMessage"}[kind]
    data = {"content": content, "additional_kwargs": {}, "response_metadata": {}}
    data |= {"type": kind, "name": None, "id": None} | fields
    module = f"langchain_core.messages.{kind}"
    return extension(PYDANTIC, module, name, data, "model_validate_json")


class Checkpoints:
    """A database of a checkpointer, whose newer checkpoints come later."""

    def __init__(self, engine: str, url: str, execute: Callable[[str], Any]) -> None:
        self.engine, self.url = engine, url
        self._execute = execute
        self._number = 0
        for table in TABLES[engine]:
            execute(table)

    def put(
        self,
        thread: str,
        values: dict[str, Any],
        *,
        namespace: str = "",
        metadata: dict[str, Any] | None = None,
        stored: tuple[str, bytes] | None = None,
        leads_to: str = "",
    ) -> None:
        """Put a checkpoint; ``stored`` is what stands there instead of its messages.

        ``leads_to`` is the node that runs next.
        """
        self._number += 1
        id = f"1f1e76b3-{self._number:04x}"
        about_node = {f"branch:to:{leads_to}": None} if leads_to else {}
        seen = dict.fromkeys(about_node, f"{self._number:032}.2")
        about = json.dumps({"source": "loop", "step": 1, **(metadata or {})})
        key = f"'{thread}', '{namespace}'"
        if self.engine == "sqlite":
            checkpoint = {
                **{"v": 4, "id": id, "channel_values": values | about_node},
                **{"channel_versions": seen, "versions_seen": {}},
            }
            kind, data = stored or ("msgpack", pack(checkpoint))
            self._execute(
                f"INSERT INTO checkpoints VALUES ({key}, '{id}', NULL, '{kind}', "
                f"x'{data.hex()}', CAST('{about}' AS BLOB))"
            )
            return
        versions = seen | dict.fromkeys(values, f"{self._number:032}.1")
        plain = {name: one for name, one in values.items() if isinstance(one, str)}
        kept = {
            **{"v": 4, "id": id, "channel_versions": versions},
            **{"channel_values": plain | about_node, "versions_seen": {}},
        }
        for name, one in values.items():
            if name not in ("messages", *plain):
                blob = (
                    f"'{name}', '{versions[name]}', 'msgpack', decode('{pack(one).hex()}', 'hex')"
                )
                self._execute(f"INSERT INTO checkpoint_blobs VALUES ({key}, {blob})")
        if stored is None and "messages" in values:
            stored = ("msgpack", pack(values["messages"]))
        if stored is not None:
            version = versions.setdefault("messages", f"{self._number:032}.1")
            blob = f"'{version}', '{stored[0]}', decode('{stored[1].hex()}', 'hex')"
            self._execute(f"INSERT INTO checkpoint_blobs VALUES ({key}, 'messages', {blob})")
        self._execute(
            f"INSERT INTO checkpoints VALUES ({key}, '{id}', NULL, NULL, "
            f"'{json.dumps(kept)}', '{about}')"
        )

    def interrupt(self, thread: str) -> None:
        """Let a task of the step after the last checkpoint wait for a person."""
        table = "writes" if self.engine == "sqlite" else "checkpoint_writes"
        bytes_ = "x'80'" if self.engine == "sqlite" else "decode('80', 'hex')"
        self._execute(
            f"INSERT INTO {table} VALUES ('{thread}', '', '1f1e76b3-{self._number:04x}', 't', -3, "
            f"'__interrupt__', 'msgpack', {bytes_})"
        )

    def say(self, thread: str, *texts: str, **about: Any) -> None:
        said = [
            message(("human", "ai")[at % 2], text, id=f"{thread}{at}")
            for at, text in enumerate(texts)
        ]
        self.put(thread, {"messages": said}, **about)


@pytest.fixture(params=ENGINES)
def checkpoints(request: pytest.FixtureRequest, tmp_path: Path) -> Checkpoints:
    """A database with the tables of a checkpointer, and nothing in them."""
    if request.param == "sqlite":
        path = tmp_path / "graph.db"

        def execute(sql: str) -> None:
            with closing(sqlite3.connect(path)) as database, database:
                database.execute(sql)

        return Checkpoints("sqlite", str(path), execute)
    servers: Servers = request.getfixturevalue("servers")
    url = servers.postgresql.fresh()
    socket = servers.postgresql.socket_url(url)
    return Checkpoints("postgresql", url, lambda sql: servers.postgresql.execute(socket, sql))


@pytest.fixture
def only_sqlite(tmp_path: Path) -> Checkpoints:
    """A SQLite database, for what does not depend on the engine."""
    path = tmp_path / "graph.db"

    def execute(sql: str) -> None:
        with closing(sqlite3.connect(path)) as database, database:
            database.execute(sql)

    return Checkpoints("sqlite", str(path), execute)


def texts(url: str) -> dict[str, list[Any]]:
    """Return what each thread says."""
    return {
        key.session: [json.loads(one.message)["content"]["data"]["content"] for one in found]
        for key, found in contents(url).items()
    }


def test_the_latest_checkpoint_of_each_thread_is_read(run: Any, checkpoints: Checkpoints) -> None:
    checkpoints.say("kyoto", "Hi")
    checkpoints.say("osaka", "Tea?")
    checkpoints.say("kyoto", "Hi", "Hello", "Bye")
    found = report(run("inspect", checkpoints.url, "--json"))
    assert found["store"]["kind"] == f"{checkpoints.engine}-langgraph"
    listed = {one["session"]: (one["user"], one["messages"]) for one in found["memories"]}
    assert listed == {"kyoto": ("", 3), "osaka": ("", 1)}
    assert found["warnings"] == []
    assert texts(checkpoints.url) == {"kyoto": ["Hi", "Hello", "Bye"], "osaka": ["Tea?"]}
    assert [one.id for one in contents(checkpoints.url)[MemoryKey("", "osaka")]] == ["osaka0"]
    hits = report(run("search", checkpoints.url, "hello", "--json"))["hits"]
    assert "Hello" in str(hits)


@pytest.mark.slow
def test_a_copy_grows_with_its_thread(run: Any, checkpoints: Checkpoints, tmp_path: Path) -> None:
    checkpoints.say("kyoto", "Hi", "Hello")
    target = str(tmp_path / "agents.db")
    assert run("migrate", checkpoints.url, target).exit_code == 0
    assert run("verify", checkpoints.url, target).exit_code == 0
    checkpoints.say("kyoto", "Hi", "Hello", "Bye")
    grown = report(run("migrate", checkpoints.url, target, "--json"))
    assert grown["messages"]["written"] == 1
    assert run("verify", checkpoints.url, target).exit_code == 0


def test_a_message_is_what_message_to_dict_gives(only_sqlite: Checkpoints) -> None:
    """Objects in it as LangGraph shows them in JSON; bytes in base64."""
    said = message(
        "ai",
        [{"type": "text", "text": "会话 😀"}],
        response_metadata={
            "at": extension(METHOD, "datetime", "datetime", "2026-11-23T18:10:34", "fromisoformat"),
            "run": extension(SINGLE, "uuid", "UUID", "2c7f7d691594411e83ff2bd9c3306875"),
            "days": extension(POSITIONAL, "datetime", "timedelta", [1, 2, 3]),
            "raw": b"\x00\xff",
            "share": float("nan"),
            2: None,
        },
        tool_calls=[{"name": "weather", "args": {"days": [1, 2]}, "id": "c1", "type": "tool_call"}],
    )
    only_sqlite.put("kyoto", {"messages": [said, said], "step": 3})
    [first, second] = contents(only_sqlite.url)[MemoryKey("", "kyoto")]
    assert first.id == second.id  # it has none of its own
    assert b"NaN" in first.message
    content = json.loads(first.message.replace(b"NaN", b"0"))["content"]
    assert content == {
        "type": "ai",
        "data": {
            "content": [{"type": "text", "text": "会话 😀"}],
            "additional_kwargs": {},
            "response_metadata": {
                "at": "2026-11-23T18:10:34",
                "run": "2c7f7d69-1594-411e-83ff-2bd9c3306875",
                "days": [1, 2, 3],
                "raw": "AP8=",
                "share": 0,
                "2": None,
            },
            "type": "ai",
            "name": None,
            "id": None,
            "tool_calls": [
                {"name": "weather", "args": {"days": [1, 2]}, "id": "c1", "type": "tool_call"}
            ],
        },
    }


def test_threads_without_messages_are_left_out_and_counted(
    run: Any, checkpoints: Checkpoints
) -> None:
    checkpoints.say("kyoto", "Hi")
    checkpoints.put("bare", {"topic": "tea"})
    checkpoints.put("text", {"messages": "no list"})
    checkpoints.put("empty", {"messages": []})
    result = run("inspect", checkpoints.url, "--json")
    warning, _ = report(result)["warnings"]
    assert "no list of messages are left out: 2, such as 'bare'" in warning
    assert texts(checkpoints.url) == {"kyoto": ["Hi"]}


def test_other_channels_are_left_out_and_named(
    run: Any, checkpoints: Checkpoints, tmp_path: Path
) -> None:
    said = [message("human", "Hi", id="a")]
    control = {"__start__": "x", "branch:to:agent": "x", "agent": "agent", "empty": ""}
    others = {"summary": "They greeted.", "context": {"running_summary": "long"}}
    checkpoints.put("kyoto", {"messages": said, **control, **others})
    checkpoints.put("oslo", {"messages": said, "summary": "Again."})
    result = run("export", checkpoints.url, "-o", tmp_path / "a.ndjson")
    assert result.exit_code == 0
    told = " ".join(result.stderr.split())
    assert "besides messages are left out" in told
    assert ": 'context' of 1 thread, 'summary' of 2 threads" in told


def test_a_damaged_file_is_not_erased_from(run: Any, only_sqlite: Checkpoints) -> None:
    only_sqlite.say("kyoto", "Hi")
    lose_row(Path(only_sqlite.url), "checkpoints", "type", "UPDATE checkpoints SET type = 'json'")
    assert "damaged-file" in run("doctor", only_sqlite.url).stdout
    fails(run("erase", only_sqlite.url, "--session", "kyoto", "--yes"), 8, "missing from index")


def test_subgraphs_are_left_out_unless_their_namespace_is_named(
    run: Any, checkpoints: Checkpoints
) -> None:
    checkpoints.say("kyoto", "Hi", "Hello")
    checkpoints.say("kyoto", "a subgraph's", namespace="researcher")
    checkpoints.say("kyoto", "another's", namespace=SUBGRAPH)
    [warning] = report(run("inspect", checkpoints.url, "--json"))["warnings"]
    assert "left out: 2 namespaces, such as 'researcher'" in warning
    assert texts(checkpoints.url) == {"kyoto": ["Hi", "Hello"]}
    start = f"sqlite:///{checkpoints.url}" if checkpoints.engine == "sqlite" else checkpoints.url
    named = f"{start}?layout=langgraph&namespace="
    assert texts(f"{named}researcher") == {"kyoto": ["a subgraph's"]}
    assert texts(f"{named}{SUBGRAPH}") == {"kyoto": ["another's"]}
    assert report(run("inspect", f"{named}researcher", "--json"))["warnings"] == []


async def test_threads_are_listed_and_shown_in_parts(checkpoints: Checkpoints) -> None:
    checkpoints.say("kyoto", "Hi")
    checkpoints.say("kyoto", "Hi", "Hello", "Bye")
    checkpoints.say("oslo", "Hej")
    checkpoints.say("bergen", "a subgraph's", namespace="researcher")

    async with make_store(parse(checkpoints.url)) as store:
        found = [key.session async for key in store.list_keys(Selection())]
        assert found == ["kyoto", "oslo"]
        page = await store.window(MemoryKey("", "kyoto"), -2, 1)
    assert page is not None
    assert (page.offset, page.last) == (1, False)
    assert [list(store.dialect.parse(one.message).texts()) for one in page.messages] == [["Hello"]]


def test_no_module_that_the_data_names_is_imported(
    run: Any, checkpoints: Checkpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither of a message, nor in one, nor in another channel; nor is anything called."""
    monkeypatch.syspath_prepend(tmp_path)
    touched = tmp_path / "touched"
    (tmp_path / f"{MARKER}.py").write_text(f"open({str(touched)!r}, 'w').close()\n", "utf-8")
    hostile = extension(PYDANTIC, MARKER, "HumanMessage", {"content": "Hi", "type": "human"}, "")
    call = extension(SINGLE, "os", "system", f"touch {touched}")
    checkpoints.put("class", {"messages": [message("human", "Hi"), hostile]})
    checkpoints.put("call", {"messages": [call]})
    inside = message("human", "inside", additional_kwargs={"one": hostile, "two": call})
    checkpoints.put("inside", {"messages": [inside], "other": [hostile, call]})
    named = extension(PYDANTIC, "langchain_core.messages_of_mine", "Msg", {"type": "human"}, "")
    checkpoints.put("prefix", {"messages": [named]})
    result = run("inspect", checkpoints.url, "--messages")
    fails(result, 7, "damaged and left out", "and 2 more")
    assert texts(checkpoints.url) == {"inside": ["inside"]}
    assert not touched.exists()
    assert MARKER not in sys.modules


BROKEN = {
    "cut": (("msgpack", pack({"channel_values": {"messages": []}})[:-3]), "is damaged"),
    "bomb": (("msgpack", b"\xdd\xff\xff\xff\xff"), "is damaged"),
    "deep": (("msgpack", b"\x91" * 5000), "is damaged"),
    "encrypted": (("msgpack+aes", b"\x00" * 40), "is encrypted (msgpack+aes)"),
    "pickled": (("pickle", b"cos\nsystem\n(S'true'\ntR."), "is stored as pickle"),
    "no JSON": (("json", b'{"channel_values"'), "is damaged"),
}


@pytest.mark.slow
@pytest.mark.parametrize("broken", BROKEN)
def test_a_damaged_thread_is_left_out_and_named(
    run: Any, checkpoints: Checkpoints, tmp_path: Path, broken: str
) -> None:
    stored, reason = BROKEN[broken]
    checkpoints.say("kyoto", "Hi")
    checkpoints.put("broken", {}, stored=stored)
    fails(run("inspect", checkpoints.url), 7, "broken", reason)
    target = str(tmp_path / "agents.db")
    assert run("migrate", checkpoints.url, target).exit_code == 7
    assert [key.session for key in contents(target)] == ["kyoto"]
    [finding] = report(run("doctor", checkpoints.url, "--json"), 6)["findings"]
    assert (finding["code"], finding["session"]) == ("unreadable-checkpoint", "broken")


def test_a_thread_whose_name_is_no_text_is_left_out(run: Any, only_sqlite: Checkpoints) -> None:
    only_sqlite.say("kyoto", "Hi")
    only_sqlite.say("osaka", "Tea?")
    with closing(sqlite3.connect(only_sqlite.url)) as database, database:
        database.execute(
            "UPDATE checkpoints SET thread_id = CAST(x'ff6b' AS TEXT) WHERE thread_id = 'osaka'"
        )
    fails(run("inspect", only_sqlite.url), 7, "is not a text in UTF-8")
    assert texts(only_sqlite.url) == {"kyoto": ["Hi"]}


def test_a_thread_whose_checkpoint_has_no_id_is_left_out(
    run: Any, only_sqlite: Checkpoints
) -> None:
    only_sqlite.say("kyoto", "Hi")
    only_sqlite.say("osaka", "Tea?")
    with closing(sqlite3.connect(only_sqlite.url)) as database, database:
        columns = [row[1] for row in database.execute("PRAGMA table_info(checkpoints)")]
        values = ["NULL" if name == "checkpoint_id" else name for name in columns]
        loose = "CREATE TABLE loose AS SELECT * FROM checkpoints WHERE thread_id = 'kyoto'"
        database.execute(loose)
        database.execute(
            f"INSERT INTO loose SELECT {', '.join(values)} FROM checkpoints "
            "WHERE thread_id = 'osaka'"
        )
        database.execute("DROP TABLE checkpoints")
        database.execute("ALTER TABLE loose RENAME TO checkpoints")
    fails(run("inspect", only_sqlite.url), 7, "'osaka'", "the id of its checkpoint")
    assert texts(only_sqlite.url) == {"kyoto": ["Hi"]}


def nested(levels: int) -> ormsgpack.Ext:
    """Return a message with lists in lists, deeper than a packer goes."""
    head = pack("langchain_core.messages") + pack("HumanMessage")
    return ormsgpack.Ext(PYDANTIC, b"\x93" + head + b"\x81\xa1x" + b"\x91" * levels + b"\x90")


def nested_extensions(levels: int) -> Any:
    value = extension(PYDANTIC, "m", "C", {}, "")
    for _ in range(levels):
        value = extension(PYDANTIC, "m", "C", value, "")
    return value


@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        ({"role": "user", "content": "Hi"}, "message 2: it is a dict, not a message of LangChain"),
        (["user", "Hi"], "message 2: it is a list"),
        (extension(PYDANTIC, "app.models", "Plan", {}, ""), "message 2: it is a app.models.Plan"),
        (extension(PYDANTIC, "langchain_core.messages", "X", {}, ""), "message 2: it has no type"),
        (ormsgpack.Ext(PYDANTIC, b"\xdb\x00"), "message 2: it is damaged"),
        (ormsgpack.Ext(PYDANTIC, pack(7)), "message 2: it is an object"),
        (nested(900), "message 2: it is nested too deep"),
        (message("human", "Hi", more=nested_extensions(900)), "message 2: it is"),
        (message("human", "Hi", run=extension(SINGLE, "uuid", "UUID", "0")), "message 2: it is da"),
    ],
)
def test_a_message_that_is_none_is_named(
    run: Any, only_sqlite: Checkpoints, odd: Any, reason: str
) -> None:
    only_sqlite.put("kyoto", {"messages": [message("human", "Hi"), odd, message("ai", "Hello")]})
    only_sqlite.say("osaka", "Tea?")
    fails(run("inspect", only_sqlite.url), 7, "kyoto", reason)
    assert texts(only_sqlite.url) == {"osaka": ["Tea?"]}
    found = report(run("doctor", only_sqlite.url, "--json"), 6)
    assert [one["session"] for one in found["findings"]] == ["kyoto"]


def test_a_delta_channel_is_read_at_a_snapshot_alone(run: Any, checkpoints: Checkpoints) -> None:
    """Between two of them a checkpoint has no value: its reducer is code of the graph."""
    snapshot = ormsgpack.Ext(DELTA, pack([message("human", "Hi")]))
    checkpoints.put("snapshot", {"messages": snapshot})
    counters = {"counters_since_delta_snapshot": {"messages": [2, 5]}}
    checkpoints.put("between", {}, metadata=counters)
    fails(run("inspect", checkpoints.url), 7, "between", "DeltaChannel")
    assert texts(checkpoints.url) == {"snapshot": ["Hi"]}


def test_checkpoints_in_json_are_read(checkpoints: Checkpoints) -> None:
    """As LangGraph wrote them before MessagePack."""
    schema = ["langchain", "schema", "messages"]
    said = [
        {
            **{"lc": 1, "type": "constructor", "id": [*schema, "HumanMessage"]},
            "kwargs": {"content": "Hi", "type": "human", "id": "m1"},
        },
        {
            **{"lc": 1, "type": "constructor", "id": ["langchain_core", "messages", "AIMessage"]},
            "kwargs": {"content": "Hello"},
        },
    ]
    value = said if checkpoints.engine == "postgresql" else {"channel_values": {"messages": said}}
    checkpoints.put("kyoto", {}, stored=("json", json.dumps(value).encode()))
    checkpoints.put(
        "other", {}, stored=("json", json.dumps(value).replace("messages", "m").encode())
    )
    assert texts(checkpoints.url)["kyoto"] == ["Hi", "Hello"]
    [first, second] = contents(checkpoints.url)[MemoryKey("", "kyoto")]
    assert first.id == "m1"
    assert json.loads(second.message)["content"]["type"] == "ai"


@pytest.mark.parametrize(
    "command",
    [
        ["delete", "{url}", "--role", "user", "-y"],
        ["compress", "{url}", "--keep-last", "1", "--mode", "replace", "-y"],
        ["mark", "add", "--all", "{url}", "hint"],
        ["doctor", "{url}", "--repair", "-y"],
        ["migrate", "{other}", "{url}"],
        ["delete", "{url}", "--role", "user", "--dry-run"],
        ["doctor", "{url}", "--repair", "--dry-run"],
        ["compress", "{url}", "--keep-last", "1", "--dry-run"],
        ["migrate", "{other}", "{url}", "--dry-run"],
    ],
)
def test_nothing_is_written(
    run: Any, only_sqlite: Checkpoints, tmp_path: Path, command: list[str]
) -> None:
    only_sqlite.say("kyoto", "Hi")
    other = str(tmp_path / "other.db")
    assert run("migrate", only_sqlite.url, other).exit_code == 0
    before = Path(only_sqlite.url).read_bytes()
    filled = [one.format(url=only_sqlite.url, other=other) for one in command]
    fails(run(*filled), 2, "in the checkpoints of LangGraph are only read", "update_state")
    assert Path(only_sqlite.url).read_bytes() == before


def test_a_thread_gets_another_name_with_its_subgraphs(run: Any, checkpoints: Checkpoints) -> None:
    checkpoints.say("osaka", "Tea?")
    checkpoints.say("kyoto", "Hi", "Hello")
    checkpoints.say("kyoto", "Inside", namespace=SUBGRAPH)
    checkpoints.interrupt("kyoto")
    url = checkpoints.url if "://" in checkpoints.url else f"sqlite:///{checkpoints.url}"
    of_graph = f"{url}?layout=langgraph&namespace={SUBGRAPH}"
    before, inside = texts(checkpoints.url), texts(of_graph)
    words = ("rename", checkpoints.url, "--session", "kyoto", "uji", "--yes", "--json")
    found = report(run(*words))
    assert texts(checkpoints.url) == {"uji": before["kyoto"], "osaka": before["osaka"]}
    assert texts(of_graph) == {"uji": inside["kyoto"]}
    if checkpoints.engine == "sqlite":
        left = Path(checkpoints.url).read_bytes()
        assert not re.search(rb"kyoto(?![01])", left)  # ids of messages stay
    fails(run("rename", checkpoints.url, "--user", "ada", "x", "--yes"), 2, "name no user")
    report(run("undo", found["run"], "--store", checkpoints.url, "--json"))
    assert (texts(checkpoints.url), texts(of_graph)) == (before, inside)


CALL = message("ai", "", tool_calls=[{"name": "ask", "args": {}, "id": "1", "type": "tool_call"}])


def test_a_call_of_an_unfinished_step_waits(run: Any, checkpoints: Checkpoints) -> None:
    checkpoints.put("next", {"messages": [CALL]}, leads_to="tools")
    checkpoints.put("asks", {"messages": [CALL]})
    checkpoints.interrupt("asks")
    found = report(run("doctor", checkpoints.url, "--json"))["findings"]
    shown = [(one["code"], one["session"], one["repairable"]) for one in found]
    assert shown == [("waiting-call", "asks", False), ("waiting-call", "next", False)]


def test_a_copy_of_an_unfinished_step_is_a_loss(
    run: Any, only_sqlite: Checkpoints, tmp_path: Path
) -> None:
    only_sqlite.put("asks", {"messages": [message("human", "Pay", id="h"), CALL]})
    only_sqlite.interrupt("asks")
    for target in ("agents.db", "chats.db?layout=langchain"):
        place = f"sqlite:///{tmp_path}/{target}"
        fails(run("migrate", only_sqlite.url, place), 9, "calls that wait")
    place = f"{tmp_path}/agents.db"
    assert run("migrate", only_sqlite.url, place, "--lossy").exit_code == 0
    assert [one["code"] for one in report(run("doctor", place, "--json"))["findings"]] == [
        "no-session-index"
    ]
    kept = tmp_path / "kept.ndjson"
    assert run("export", only_sqlite.url, "-o", kept).exit_code == 0
    assert [one["code"] for one in report(run("doctor", kept, "--json"))["findings"]] == [
        "waiting-call"
    ]


@pytest.mark.parametrize("way", ["straight", "by an archive"])
def test_a_copy_to_langchain_leaves_an_unfinished_step_for_a_later_copy(
    run: Any, only_sqlite: Checkpoints, tmp_path: Path, way: str
) -> None:
    asked = [message("human", "Pay", id="h"), message("ai", "Sure.", id="a"), CALL]
    result = message("tool", "Paid", tool_call_id="1", id="r")
    chats = f"sqlite:///{tmp_path}/chats.db?layout=langchain"

    def copy(*words: str) -> dict[str, Any]:
        source = only_sqlite.url
        if way == "by an archive":
            source = str(tmp_path / "kept.ndjson")
            assert run("export", only_sqlite.url, "-o", source, "--force").exit_code == 0
        return report(run("migrate", source, chats, "--json", *words))

    only_sqlite.put("asks", {"messages": asked})
    only_sqlite.interrupt("asks")
    only_sqlite.put("new", {"messages": asked[2:]})
    only_sqlite.interrupt("new")
    first = copy("--lossy")
    assert (first["verified"], first["messages"]["written"]) == (True, 2)
    assert [(one["kind"], one["memories"]) for one in first["losses"]] == [("waiting-calls", 2)]
    assert any("left for a copy after the answer" in text for text in first["warnings"])
    assert report(run("doctor", chats, "--json"))["findings"] == []
    only_sqlite.put("asks", {"messages": [*asked, result]})
    only_sqlite.put("new", {"messages": [*asked[2:], result]})
    assert copy()["messages"]["written"] == 4
    assert report(run("doctor", chats, "--json"))["findings"] == []
    assert run("verify", only_sqlite.url, chats).exit_code == 0


def test_doctor_promises_no_repair(run: Any, only_sqlite: Checkpoints) -> None:
    only_sqlite.say("kyoto", "Hi")
    only_sqlite.put("kyoto", {"messages": [CALL]})
    done = run("doctor", only_sqlite.url)
    assert done.exit_code == 6
    assert "tool calls without a result" in done.stdout
    assert "--repair" not in done.stdout
    assert "change a thread by its graph (update_state)" in " ".join(done.stdout.split())


def test_no_new_checkpoints_are_made(run: Any, only_sqlite: Checkpoints, tmp_path: Path) -> None:
    only_sqlite.say("kyoto", "Hi")
    new = tmp_path / "new.db"
    fails(run("migrate", only_sqlite.url, f"sqlite:///{new}?layout=langgraph"), 2, "only read")
    assert not new.exists()


def test_without_its_extra(
    run: Any, only_sqlite: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_sqlite.say("kyoto", "Hi")
    for name in ("store", "checkpoints"):
        monkeypatch.delitem(sys.modules, f"memctl.stores.langgraph.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "ormsgpack", None)
    wanted = install_command("langgraph")
    fails(run("inspect", only_sqlite.url), 2, "needs the driver 'ormsgpack'", wanted)


def test_other_tables_of_that_name_are_no_checkpoints(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "training.db"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE checkpoints (id INTEGER PRIMARY KEY, checkpoint BLOB)")
    fails(run("inspect", str(path)), 8, "it has the table checkpoints")
    fails(run("inspect", f"sqlite:///{path}?layout=langgraph"), 8, "no checkpoints of LangGraph")


def test_the_layout_is_found_beside_others(run: Any, only_sqlite: Checkpoints) -> None:
    fails(run("stores", "detect", only_sqlite.url), 4, "its tables are those of langgraph")
    with closing(sqlite3.connect(only_sqlite.url)) as database, database:
        database.execute(
            "CREATE TABLE message_store (id INTEGER PRIMARY KEY, session_id TEXT, message TEXT)"
        )
    fails(run("inspect", only_sqlite.url), 2, "several layouts: langchain, langgraph")


def test_mysql_has_no_such_layout(run: Any) -> None:
    fails(
        run("inspect", "mysql://localhost/app?layout=langgraph"), 2, "layout=langgraph is unknown"
    )
