"""Mutators of what other frameworks keep: their tables, checkpoints, files, and facts."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import ormsgpack

from memctl.model import MemoryKey, StoredMessage
from memctl.testing import samples
from memctl.testing.samples import Sample, Style, sample
from tests.fuzz.bench import Bench, Specimen
from tests.fuzz.files import (
    Columns,
    database_contents,
    fill,
    is_consistent,
    json_contents,
    make_odd,
    mutate_database,
)
from tests.fuzz.mutations import WORDS, mutate_bytes, mutate_json, mutate_lines, mutate_text
from tests.fuzz.scenarios import play
from tests.support import odd
from tests.support.backends import TABLE

OF_ROWS = Style("role-content", frozenset(), in_order=False)
DIMENSIONS = 8
_FLOATS = 4 * DIMENSIONS
_FAISS_HEADER = 45


def worlds_of(style: Style, *, users: bool) -> list[list[Sample]]:
    """Return memories in another dialect: plain ones, and hard messages, one in each session."""
    with _styled(style):
        plain = [sample(_key(number, users), samples.entries(4 + number)) for number in range(2)]
        hard = list(samples.nasty_entries({"wide"}))
    return [
        plain,
        odd_world(style.dialect, users=users),
        [sample(_key(number, users), [entry]) for number, entry in enumerate(hard)],
    ]


def odd_world(dialect: str, *, users: bool = True) -> list[Sample]:
    """Return conversations of odd but real messages, always the same."""
    rng = Random(dialect)
    choices = [[rng.randrange(100) for _ in range(8)] for _ in range(6)]
    return [
        sample(_key(number, users), odd.entries(dialect, some))
        for number, some in enumerate(choices)
    ]


@contextmanager
def _styled(style: Style) -> Iterator[None]:
    samples.use(style)
    try:
        yield
    finally:
        samples.use(Style())


def _key(number: int, users: bool) -> MemoryKey:
    return MemoryKey(f"user{number // 3}" if users else "", f"session{number}")


def _of_llamaindex() -> list[list[Sample]]:
    messages = [
        {
            "role": ("user", "assistant", "tool")[number % 3],
            "additional_kwargs": {"name": "n", "tool_call_id": "t"} if number % 3 == 2 else {},
            "blocks": [{"block_type": "text", "text": f"message {number}"}],
        }
        for number in range(9)
    ]
    entries = [
        StoredMessage(str(number), json.dumps({"content": one}).encode())
        for number, one in enumerate(messages, 1)
    ]
    plain = [sample(_key(0, False), entries[:4]), sample(_key(1, False), entries[4:])]
    return [plain, odd_world("llamaindex", users=False)]


def _of_branches() -> list[list[Sample]]:
    """Sessions with branches, which begin alike."""
    [plain, *hard] = worlds_of(Style("openai-agents", frozenset(), in_order=False), users=False)
    other = [sample(one.key._replace(part="other"), one.entries[:2]) for one in plain]
    return [plain + other, *hard]


def _of_encrypted() -> list[Sample]:
    """A session of ``EncryptedSession``, with an item that is not encrypted."""
    items: list[dict[str, Any]] = [{"role": "user", "content": "Hi"}]
    items += [
        {"__enc__": 1, "v": 1, "kid": "hkdf-v1", "payload": f"gAAAAA{number}"}
        for number in range(4)
    ]
    found = [json.dumps({"content": one}).encode() for one in items]
    entries = [StoredMessage(str(number), text) for number, text in enumerate(found)]
    return [sample(_key(0, False), entries)]


@dataclass(slots=True)
class _Database:
    """A sample database: its bytes, its tables, and what follows its path in a URL."""

    option: str
    data: bytes
    columns: Columns = field(default_factory=dict)


class Tables:
    """SQLite databases of other frameworks, of AgentScope 2.x, and a table of a user's own."""

    name = "tables"
    weight = 24

    def __init__(self) -> None:
        self._seeds = [
            _database(f"layout={layout}{more}", world)
            for layout, more, worlds in layouts()
            for world in worlds
        ]
        self._seeds.append(_checkpoints())
        self._seeds += [_rows(*one) for one in _ROWS]

    def play(self, rng: Random, bench: Bench) -> None:
        seed = rng.choice(self._seeds)
        path = Path("mutated.db")
        mutate_database(rng, path, seed.data, seed.columns)
        argument = f"sqlite:///{path.absolute()}?{seed.option}"
        if "columns=" not in seed.option and rng.random() < 0.3:
            argument = str(path)  # whose it is, the tables tell
        sound = is_consistent(path) and ("agentscope2" not in seed.option or _ids_agree(path))
        contents = database_contents(path, by_value=True)
        play(rng, bench, Specimen(argument, contents, is_foreign=True, is_sound=sound))


def _ids_agree(path: Path) -> bool:
    """Return whether each message of AgentScope 2.x has the id that its row has."""
    sql = "SELECT 1 FROM messages WHERE json_extract(payload, '$.id') IS NOT msg_id"
    try:
        with closing(sqlite3.connect(path)) as database:
            return database.execute(sql).fetchone() is None
    except (sqlite3.Error, UnicodeDecodeError):
        return False


OWN = (
    "&table=chat%20log&columns=session:chat,user:who,role:role,name:name,content:body,"
    "time:at,id:uid,metadata:about,order:nr&content_encoding=text"
)
"""The mapping of a table of a user's own."""


def layouts() -> Iterator[tuple[str, str, list[list[Sample]]]]:
    """Each layout of a database, the further options of its URL, and memories for it."""
    for name in ("langchain", "openai-agents"):
        yield name, "", worlds_of(Style(name, frozenset(), in_order=False), users=False)
    yield "openai-branches", "", _of_branches()
    yield "openai-agents", "", [_of_encrypted()]
    for name, more in (("adk", "&app=weather"), ("agno", "")):
        yield name, more, worlds_of(Style(name, frozenset(), in_order=False), users=True)
    yield "table", OWN, worlds_of(OF_ROWS, users=True)
    yield "llamaindex", "", _of_llamaindex()
    yield "agentscope2", "", worlds_of(Style("agentscope2", frozenset({"compressed"})), users=True)


def _database(option: str, world: list[Sample]) -> _Database:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "seed.db"
        if "columns=" in option:
            with closing(sqlite3.connect(path)) as database:
                database.execute(TABLE)
        asyncio.run(fill(f"sqlite:///{path}?{option}", world))
        if "agno" in option:
            _as_run(path)
        if "adk" in option and len(world) > 1:
            _as_numbers(path)
        return _Database(option, path.read_bytes(), _columns(path))


_CALL = {"id": "c0", "type": "function", "function": {"name": "ls", "arguments": '{"a": 1}'}}
_CALLS = json.dumps([_CALL])
_HUMAN, _AI = (
    json.dumps({"type": kind, "data": {"type": kind, "content": "text", "id": kind}})
    for kind in ("human", "ai")
)
_CHAT = "&table=chats&columns=session:chat,role:role,content:body"
_ROWS = (
    (  # calls in columns, as programs on OpenAI's API have them
        f"layout=table{_CHAT},time:at,calls:tool_calls,call_id:tool_call_id,call_name:tool_name"
        "&content_encoding=text",
        "nr INTEGER PRIMARY KEY, chat TEXT NOT NULL, role TEXT NOT NULL, body TEXT, at REAL, "
        "tool_calls TEXT, tool_call_id TEXT, tool_name TEXT, state TEXT DEFAULT 'new'",
        [
            (1, "s", "user", "list", 1.7e9, None, None, None, "new"),
            (2, "s", "assistant", None, 1.7e9, _CALLS, None, None, "old"),
            (3, "t", "tool", "a b", None, None, "c0", "ls", None),
            (4, "u", "assistant", "two files", 1.8e9, None, None, None, "new"),
        ],
    ),
    (  # of the API before tools
        f"layout=table{_CHAT},name:name,calls:function_call&content_encoding=text",
        "nr INTEGER PRIMARY KEY, chat TEXT, role TEXT, name TEXT, body TEXT, function_call TEXT",
        [
            (1, "s", "user", None, "list", None),
            (2, "s", "assistant", None, None, '{"name": "ls", "arguments": "{}"}'),
            (3, "t", "function", "ls", "a b", None),
        ],
    ),
    (  # contents as the class of AgentScope's guide writes them
        f"layout=table{_CHAT}&content_encoding=json",
        "nr INTEGER PRIMARY KEY, chat TEXT, role TEXT, body TEXT",
        [
            (1, "s", "user", '"list"'),
            (2, "s", "assistant", '[{"type": "text", "text": "a"}]'),
            (3, "t", "user", '""'),
        ],
    ),
    (  # the columns of langchain-postgres
        "layout=langchain&table=chats",
        "id INTEGER PRIMARY KEY, session_id TEXT NOT NULL, message TEXT NOT NULL, "
        "created_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP",
        [
            (1, "s", _HUMAN, "2026-01-01 12:00:00"),
            (2, "s", _AI, "2026-01-01 12:00:01"),
            (3, "t", _HUMAN, "2026-01-01 12:00:02"),
        ],
    ),
)
"""Tables as other programs fill them: what follows the path, their columns, and their rows.

Calls and results end their sessions: what a repair puts before other rows gives these new keys.
"""


def _rows(option: str, columns: str, rows: list[tuple[Any, ...]]) -> _Database:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "seed.db"
        with closing(sqlite3.connect(path)) as database, database:
            database.execute(f"CREATE TABLE chats ({columns})")
            places = ", ".join("?" * len(rows[0]))
            database.executemany(f"INSERT INTO chats VALUES ({places})", rows)
        return _Database(option, path.read_bytes(), _columns(path))


def _as_numbers(path: Path) -> None:
    """Make the columns of times those of ADK's SqliteSessionService, which are numbers."""
    with closing(sqlite3.connect(path)) as database:
        for table, times in {
            "events": ("timestamp",),
            "sessions": ("create_time", "update_time"),
            "user_states": ("update_time",),
            "app_states": ("update_time",),
        }.items():
            sql = "SELECT sql FROM sqlite_master WHERE name = ?"
            [(made,)] = database.execute(sql, (table,)).fetchall()
            columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
            values = [
                f"(julianday({name}) - 2440587.5) * 86400.0" if name in times else name
                for name in columns
            ]
            rows = database.execute(f"SELECT {', '.join(values)} FROM {table}").fetchall()
            database.execute(f"DROP TABLE {table}")
            database.execute(made.replace("DATETIME", "REAL"))
            places = ", ".join("?" * len(columns))
            database.executemany(f"INSERT INTO {table} VALUES ({places})", rows)
        database.commit()


def _as_run(path: Path) -> None:
    """Make runs look like those of an agent, which memctl keeps as they are."""
    with closing(sqlite3.connect(path)) as database:
        for id, text in database.execute("SELECT run_id, run_data FROM agno_runs").fetchall():
            data = json.dumps(json.loads(text) | {"model": "m", "metadata": None})
            database.execute("UPDATE agno_runs SET run_data = ? WHERE run_id = ?", (data, id))
        database.commit()


def _columns(path: Path) -> Columns:
    with closing(sqlite3.connect(path)) as database:
        names = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        return {
            name: [row[1] for row in database.execute(f'PRAGMA table_info("{name}")')]
            for (name,) in names
            if database.execute(f'SELECT 1 FROM "{name}"').fetchone()
        }


def _checkpoints() -> _Database:
    """Checkpoints of LangGraph, packed as its serializer packs them."""

    def pack(value: Any) -> bytes:
        return ormsgpack.packb(value, option=ormsgpack.OPT_NON_STR_KEYS)

    def message(kind: str, name: str, number: int) -> ormsgpack.Ext:
        data = {"content": f"message {number}", "type": kind, "id": f"m{number}"}
        parts = (f"langchain_core.messages.{kind}", name, data, "model_validate_json")
        return ormsgpack.Ext(5, pack(parts))

    said = [message("human", "HumanMessage", 0), message("ai", "AIMessage", 1)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "seed.db"
        with closing(sqlite3.connect(path)) as database:
            database.execute(
                "CREATE TABLE checkpoints (thread_id TEXT NOT NULL, checkpoint_ns TEXT NOT NULL "
                "DEFAULT '', checkpoint_id TEXT NOT NULL, parent_checkpoint_id TEXT, type TEXT, "
                "checkpoint BLOB, metadata BLOB, "
                "PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id))"
            )
            for number, (thread, count) in enumerate([("s", 1), ("s", 2), ("t", 2)]):
                kept = {
                    "v": 2,
                    "id": f"1f-{number}",
                    "channel_values": {"messages": said[:count], "n": number},
                    "channel_versions": {},
                }
                about = json.dumps({"source": "loop", "step": number}).encode()
                row = (thread, "", f"1f-{number}", None, "msgpack", pack(kept), about)
                database.execute("INSERT INTO checkpoints VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            database.commit()
        return _Database("layout=langgraph", path.read_bytes(), _columns(path))


@dataclass(slots=True)
class _Tree:
    """A sample folder: how a user writes it, and its files."""

    argument: str
    files: dict[str, bytes]
    columns: dict[str, Columns]
    """Those of its databases with rows."""


class Trees:
    """Folders of other programs: LangChain's histories, vaults, ReMe's and mem0's files."""

    name = "trees"
    weight = 14

    def __init__(self) -> None:
        histories = worlds_of(Style("langchain", frozenset(), in_order=False), users=False)
        found = [_tree("langchain:tree/histories", world) for world in histories]
        with _styled(Style("fact", frozenset())):
            plain = _facts()
        with _styled(Style("fact", frozenset(), dimensions=DIMENSIONS)):
            vectors = _facts()
        found += [_tree(argument, plain) for argument in ("vault:tree/v", "reme:tree/v")]
        found += [_tree(f"reme:tree/r?layout={one}", vectors) for one in ("0.2", "0.3")]
        found += [_tree("mem0:tree/config.json", vectors, provider) for provider in _PROVIDERS]
        self._seeds = found

    def play(self, rng: Random, bench: Bench) -> None:
        seed = rng.choice(self._seeds)
        files = dict(seed.files)
        changed = [_mutate_files(rng, files) for _ in range(rng.choice([1, 1, 2, 3]))]
        for name, data in files.items():
            with suppress(OSError, ValueError):  # not every name is one of a file
                path = Path(name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
        for name in changed:
            if name in seed.columns and Path(name).is_file():
                mutate_database(rng, Path(name), seed.files[name], seed.columns[name])
        if rng.random() < 0.1:
            with suppress(OSError, ValueError):
                name = rng.choice(sorted(seed.files))
                make_odd(rng, Path(name + rng.choice(["", ".md", ".json"])))
        databases = [Path(name) for name in files if name.endswith(_DATABASES)]
        sound = all(is_consistent(path) for path in databases)
        play(rng, bench, Specimen(seed.argument, _tree_contents, is_foreign=True, is_sound=sound))


_PROVIDERS = ("qdrant", "faiss")
_DATABASES = (".db", ".sqlite")


def _facts() -> list[Sample]:
    hard = list(samples.nasty_entries({"wide"}))
    return [
        sample(MemoryKey("user0", "session0"), samples.entries(4)),
        sample(MemoryKey("user0", ""), samples.entries(3, start=20)),
        *(sample(MemoryKey("u", f"s{number}"), [one]) for number, one in enumerate(hard[:8])),
    ]


def _tree(argument: str, world: list[Sample], provider: str = "") -> _Tree:
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            Path("tree").mkdir()
            if provider:
                Path("tree/config.json").write_text(json.dumps(_mem0(provider)))
            asyncio.run(fill(argument, world))
            files = {str(path): path.read_bytes() for path in _files(Path("tree"))}
            columns = {name: _columns(Path(name)) for name in files if name.endswith(_DATABASES)}
        finally:
            os.chdir(before)
    return _Tree(argument, files, {name: found for name, found in columns.items() if found})


def _mem0(provider: str) -> dict[str, Any]:
    """Return a configuration of mem0 whose places are below the working folder."""
    store = {"collection_name": "facts", "path": f"tree/{provider}"}
    about = {"embedding_model_dims": DIMENSIONS}
    return {
        "vector_store": {"provider": provider, "config": store | about},
        "embedder": {"provider": "openai", "config": {"embedding_dims": DIMENSIONS}},
        "history_db_path": "tree/history.db",
    }


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _mutate_files(rng: Random, files: dict[str, bytes]) -> str:
    """Change a file; return its name, none where there is none."""
    if not files:
        return ""
    name = rng.choice(sorted(files))
    data = files[name]
    start, _, end = name.rpartition("/")
    match rng.randrange(9):
        case 0:
            del files[name]
        case 1:
            stem, dot, suffix = end.partition(".")
            files[f"{start}/{mutate_text(rng, stem)}{dot}{suffix}"] = files.pop(name)
        case 2:
            files[f"{start}/{rng.choice(WORDS).replace('/', '_')}.{end.partition('.')[2]}"] = data
        case 3:
            files[name] = mutate_bytes(rng, data)
        case _ if name.endswith(".json"):
            files[name] = mutate_json(rng, data)
        case _ if name.endswith((".jsonl", ".ndjson")):
            files[name] = b"\n".join(mutate_lines(rng, data.split(b"\n")))
        case _:
            files[name] = mutate_bytes(rng, data, 1)
    return name


def _tree_contents() -> Any:
    """Return the value of each file, but the locks that nothing removes."""
    files = [path for path in _files(Path("tree")) if path.name != ".lock"]
    found = {str(path): _file_contents(path)() for path in files}
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        facts = _faiss(Path("tree/faiss/facts.json"))
        found |= dict.fromkeys(("tree/faiss/facts.json", "tree/faiss/facts.faiss"), facts)
    return found


def _faiss(path: Path) -> Any:
    """Return the facts of a folder of faiss by their ids, wherever in the index they are.

    Raises:
        OSError: there is none, or a file of it is a FIFO, which nobody writes.
    """
    vectors = path.with_suffix(".faiss")
    if not (path.is_file() and vectors.is_file()):
        raise FileNotFoundError(path)
    about = json.loads(path.read_bytes().decode("utf-8", "surrogateescape"))
    floats, size = vectors.read_bytes()[_FAISS_HEADER:], _FLOATS
    places = {id: int(place) * size for place, id in about["index_to_id"].items()}
    return {
        id: (
            json.dumps(one, sort_keys=True),
            floats[places[id] : places[id] + size] if id in places else None,
        )
        for id, one in about["docstore"].items()
    }


def _file_contents(path: Path) -> Callable[[], Any]:
    if path.suffix in _DATABASES:
        return database_contents(path)
    return json_contents(path) if path.suffix == ".json" else path.read_bytes
