"""memctl's own stores, for the conformance suite and for tests of all stores."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast
from uuid import NAMESPACE_OID, uuid5

import pytest
from _pytest.mark import ParameterSet
from msgspec.structs import replace

from memctl import testing
from memctl.engines.sql.database import Database
from memctl.model import MemoryKey
from memctl.store import Deletion, Store
from memctl.stores.agentscope1.sql.store import SqlMemoryStore
from memctl.stores.agentscope2.sql import SqlAgentscope2Store
from memctl.testing import Backend, Place, SharedTable, Style, samples
from memctl.testing.backend import LARGE
from memctl.wrappers.wrapper import StoreWrapper
from tests.support.servers.objects import LOGIN
from tests.support.servers.pool import Servers
from tests.support.servers.tablestore import make_text_index

MANY = 2500
LEASE = 0.6
"""The seconds of a lock in Redis in the conformance suite, to save waits of 30 seconds."""


WHOLE = 300
"""The number of messages of a large memory in a store that holds one memory in RAM."""
SMALLER = 700
"""The number of messages of a large memory in stores that share their code with another.

The other store has large memories of three pages: a table of one's own, for example.
"""

MANY_SESSIONS = 600
"""The number of sessions in AgentScope 2.x, where each session record takes a statement."""

AGENTSCOPE2 = Style("agentscope2", frozenset({"compressed"}))
AGENTSCOPE_JAVA: dict[str, Any] = {
    "style": Style("agentscope-java", frozenset({"summary"})),
    "refuses": frozenset({"not a number", "infinity", "unknown block"}),
    "refuses_names": True,  # blank names, and the one that stands for no user
    "many": 100,
    "large": WHOLE,
}
"""The settings that all stores of AgentScope Java share."""


def _redis(
    name: str,
    option: str,
    style: Style | None = None,
    *,
    many: int = MANY,
    large: int = LARGE,
    refuses_names: bool = False,
) -> Callable[[Servers], Backend]:
    def by_socket(servers: Servers, text: str) -> str:
        url, _, options = text.partition("?")
        return f"{servers.redis.socket_url(url)}&{options}"

    return lambda servers: Backend(
        name,
        lambda _: f"{servers.redis.fresh()}?{option}",
        lambda text: by_socket(servers, text),
        lambda text: servers.redis.dump(text.partition("?")[0]),
        exists=True,
        many=many,
        large=large,
        style=style or Style(),
        refuses_names=refuses_names,
        lease=LEASE,
        lock_holder="tests.support.lock_holder",
    )


def _without_user(number: int) -> MemoryKey:
    """Return the name of a memory in a table without users."""
    return MemoryKey("", f"session{number}")


MAPPED = {
    "langchain": "",
    "openai-agents": "",
    "openai-branches": "",
    "adk": "&app=weather",
    "agno": "",
    "llamaindex": "",
    "table": "&table=chat%20log&columns=session:chat,user:who,role:role,name:name,content:body,"
    "time:at,id:uid,metadata:about,order:nr",
}
"""The layouts of mapped tables, and the options of their URLs."""
TABLE = (
    'CREATE TABLE "chat log" (nr INTEGER PRIMARY KEY, chat TEXT, who TEXT, role TEXT, name TEXT, '
    "body TEXT, at TEXT, uid TEXT, about TEXT, rating INTEGER)"
)


ROWS: dict[str, tuple[str, tuple[str, ...]]] = {
    "agentscope1": ("message", ("id",)),
    "agentscope2": ("messages", ("session_id", "msg_id")),
    "java": ("agentscope_sessions", ("session_id", "state_key", "item_index")),
    "langchain": ("message_store", ("id",)),
    "openai-agents": ("agent_messages", ("id",)),
    "openai-branches": ("agent_messages", ("id",)),
    "adk": ("events", ("id", "app_name", "user_id", "session_id")),
    "agno": ("agno_runs", ("run_id",)),
    "llamaindex": ("llama_index_memory", ("id",)),
    "table": ('"chat log"', ("nr",)),
}
"""The table with the messages of each layout, and its primary key."""


def shared(engine: str, layout: str, servers: Servers) -> SharedTable:
    """Return the table with the messages of a layout, and a function that runs SQL there."""

    def execute(text: str, sql: str) -> Sequence[Any]:
        url = text.partition("?")[0]
        if engine == "mysql":
            return servers.mariadb.rows(url, sql)
        if engine == "postgresql":
            return servers.postgresql.execute(url, sql).splitlines()
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as database, database:
            return database.execute(sql).fetchall()

    name, key = ROWS[layout]
    deletion = Deletion.MEMORIES if layout == "java" else Deletion.MESSAGES
    return SharedTable(cast("Any", engine), name, key, execute, deletion)


def _mapped(
    engine: str,
    layout: str,
    refuses: Iterable[str] = (),
    alters: Iterable[str] = (),
    encoding: str = "text",
) -> Callable[[Servers], Backend]:
    """Return a function that makes the backend of a mapped table."""
    option = f"layout={layout}{MAPPED[layout]}"
    option += f"&content_encoding={encoding}" if layout == "table" else ""
    dialect = {"table": "role-content", "openai-branches": "openai-agents"}.get(layout, layout)
    about: dict[str, Any] = {
        "style": Style(dialect, frozenset(), in_order=False),
        "refuses_names": True,  # of users, and of messages in the key of ADK
        "refuses": frozenset(refuses),
        "alters": frozenset(alters),
        "many": MANY_SESSIONS,
        "largest": 60_000 if engine == "mysql" else 0,
    }
    if layout in ("agno", "openai-branches"):
        about |= {"large": WHOLE, "many": 100}
    elif layout != "table" or encoding != "text":
        about["large"] = SMALLER
    if layout not in ("adk", "agno", "table"):
        about["keys"] = _without_user
        about["users"] = False
    name = f"{engine}-{layout}" + ("" if encoding == "text" else f"-{encoding}")

    def sqlite(servers: Servers) -> Backend:
        def make(folder: Path) -> str:
            if layout == "table":
                with closing(sqlite3.connect(folder / "m.db")) as database:
                    database.execute(TABLE)
            return f"sqlite:///{folder}/m.db?{option}"

        table = shared("sqlite", layout, servers)
        return Backend(name, make, exists=layout == "table", shared=table, **about)

    def server(servers: Servers) -> Backend:
        place = servers.postgresql if engine == "postgresql" else servers.mariadb

        def alias(text: str) -> str:
            return f"{place.socket_url(text.partition('?')[0])}&{option}"

        return Backend(
            name,
            lambda _: f"{place.fresh()}?{option}",
            alias,
            lambda text: place.dump(text.partition("?")[0]),
            shared=shared(engine, layout, servers),
            **about,
        )

    return sqlite if engine == "sqlite" else server


BACKENDS: dict[str, Callable[[Servers], Backend]] = {
    "sqlite": lambda servers: Backend(
        "sqlite",
        lambda folder: f"sqlite:///{folder}/m.db",
        many=MANY,
        shared=shared("sqlite", "agentscope1", servers),
    ),
    "postgresql": lambda servers: Backend(
        "postgresql",
        lambda _: servers.postgresql.fresh(),
        servers.postgresql.socket_url,
        servers.postgresql.dump,
        shared=shared("postgresql", "agentscope1", servers),
        refuses=frozenset({"not a number", "infinity"}),
        many=MANY,
        refuses_names=True,  # row ids of more than 255 characters
    ),
    "mysql": lambda servers: Backend(
        "mysql",
        lambda _: servers.mariadb.fresh(),
        servers.mariadb.socket_url,
        servers.mariadb.dump,
        shared=shared("mysql", "agentscope1", servers),
        # MariaDB checks the JSON: at most 31 levels, and both halves of a surrogate pair
        refuses=frozenset({"not a number", "infinity", "deep", "lone surrogate"}),
        many=MANY,
        refuses_names=True,  # as PostgreSQL
    ),
    "sqlite-agentscope2": lambda servers: Backend(
        "sqlite-agentscope2",
        lambda folder: f"sqlite:///{folder}/m.db?layout=agentscope2",
        shared=shared("sqlite", "agentscope2", servers),
        many=MANY_SESSIONS,
        style=AGENTSCOPE2,
        refuses_names=True,  # of sessions of other users
    ),
    "postgresql-agentscope2": lambda servers: Backend(
        "postgresql-agentscope2",
        lambda _: f"{servers.postgresql.fresh()}?layout=agentscope2",
        lambda text: f"{servers.postgresql.socket_url(text.partition('?')[0])}&layout=agentscope2",
        lambda text: servers.postgresql.dump(text.partition("?")[0]),
        shared=shared("postgresql", "agentscope2", servers),
        refuses=frozenset({"not a number", "infinity"}),
        many=300,
        large=SMALLER,
        style=AGENTSCOPE2,
        refuses_names=True,  # as SQLite
    ),
    "mysql-agentscope2": lambda servers: Backend(
        "mysql-agentscope2",
        lambda _: f"{servers.mariadb.fresh()}?layout=agentscope2",
        lambda text: f"{servers.mariadb.socket_url(text.partition('?')[0])}&layout=agentscope2",
        lambda text: servers.mariadb.dump(text.partition("?")[0]),
        shared=shared("mysql", "agentscope2", servers),
        refuses=frozenset({"not a number", "infinity", "deep", "lone surrogate"}),
        many=300,
        large=SMALLER,
        style=AGENTSCOPE2,
        refuses_names=True,  # as SQLite
    ),
    "sqlite-java": lambda servers: Backend(
        "sqlite-java",
        lambda folder: f"sqlite:///{folder}/m.db?layout=java",
        shared=shared("sqlite", "java", servers),
        **AGENTSCOPE_JAVA,
    ),
    "postgresql-java": lambda servers: Backend(
        "postgresql-java",
        lambda _: f"{servers.postgresql.fresh()}?layout=java",
        lambda text: f"{servers.postgresql.socket_url(text.partition('?')[0])}&layout=java",
        lambda text: servers.postgresql.dump(text.partition("?")[0]),
        shared=shared("postgresql", "java", servers),
        **AGENTSCOPE_JAVA,
    ),
    "mysql-java": lambda servers: Backend(
        "mysql-java",
        lambda _: f"{servers.mariadb.fresh()}?layout=java",
        lambda text: f"{servers.mariadb.socket_url(text.partition('?')[0])}&layout=java",
        lambda text: servers.mariadb.dump(text.partition("?")[0]),
        shared=shared("mysql", "java", servers),
        **AGENTSCOPE_JAVA,
    ),
    "redis-java": lambda servers: replace(
        _redis("redis-java", "layout=java")(servers), **AGENTSCOPE_JAVA
    ),
    "java-files": lambda _: Backend(
        "java-files",
        lambda folder: f"agentscope-java:{folder}/sessions",
        **AGENTSCOPE_JAVA,
    ),
    "sqlite-table": _mapped("sqlite", "table", ["lone surrogate", "empty blocks"]),
    "sqlite-table-json": _mapped("sqlite", "table", encoding="json"),
    "sqlite-adk": _mapped("sqlite", "adk"),
    "sqlite-agno": _mapped("sqlite", "agno"),
    "sqlite-openai-branches": _mapped("sqlite", "openai-branches"),
    "sqlite-llamaindex": lambda servers: replace(
        _mapped("sqlite", "llamaindex")(servers),
        style=Style(in_order=False),
        shown_as="agentscope1",
    ),
    # JSONB cannot hold these texts, and makes 1e300 an integer; MariaDB checks the JSON, as above.
    "postgresql-agno": _mapped(
        "postgresql",
        "agno",
        ["not a number", "infinity", "lone surrogate", "null character"],
        ["floats"],
    ),
    "mysql-agno": _mapped("mysql", "agno", ["not a number", "infinity", "deep", "lone surrogate"]),
    "postgresql-openai-agents": _mapped("postgresql", "openai-agents"),
    "mysql-langchain": _mapped("mysql", "langchain", ["wide"]),  # more than 64 KiB
    "redis": _redis("redis", "prefix=app:"),
    "redis-langchain": lambda servers: replace(
        _redis(
            "redis-langchain",
            "layout=langchain",
            Style("langchain", frozenset(), in_order=False),
            many=MANY_SESSIONS,
            refuses_names=True,
        )(servers),
        keys=_without_user,
        users=False,
    ),
    "redis-openai-agents": lambda servers: replace(
        _redis(
            "redis-openai-agents",
            "layout=openai-agents",
            Style("openai-agents", frozenset(), in_order=False),
            many=MANY_SESSIONS,
            large=SMALLER,
            refuses_names=True,
        )(servers),
        keys=_without_user,
        users=False,
    ),
    "langchain-files": lambda _: Backend(
        "langchain-files",
        lambda folder: f"langchain:{folder}/histories",
        style=Style("langchain", frozenset(), in_order=False),
        many=300,
        large=WHOLE,
        refuses_names=True,  # of users, and names that no file can have
        keys=_without_user,
        users=False,
    ),
    # Each state takes a separate write.
    "redis-session": _redis("redis-session", "layout=session", many=300, large=SMALLER),
    "redis-agentscope2": _redis(
        "redis-agentscope2",
        "layout=agentscope2",
        AGENTSCOPE2,
        many=MANY_SESSIONS,
    ),
    "tablestore": lambda servers: Backend(
        "tablestore",
        lambda _: servers.tablestore.fresh(),
        servers.tablestore.alias,
        servers.tablestore.dump,
        refuses=frozenset({"wide"}),  # more than 2 MB
        many=150,
        make_searchable=partial(make_text_index, servers.tablestore),
    ),
    "tablestore-session": lambda servers: Backend(
        "tablestore-session",
        lambda _: servers.tablestore.fresh("layout=session"),
        servers.tablestore.alias,
        servers.tablestore.dump,
        refuses=frozenset({"wide"}),
        large=SMALLER,
        refuses_names=True,  # keys without a user
        largest=2 * 1024 * 1024,
    ),
    "archive": lambda _: Backend("archive", lambda folder: f"{folder}/a.ndjson", many=MANY),
    "archive-gz": lambda _: Backend(
        "archive-gz",
        lambda folder: f"{folder}/a.ndjson.gz",
        many=MANY_SESSIONS,
        large=SMALLER,
    ),
    "archive-zst": lambda _: Backend(
        "archive-zst",
        lambda folder: f"{folder}/a.ndjson.zst",
        many=MANY_SESSIONS,
        large=SMALLER,
    ),
    "archive-objects": lambda servers: Backend(
        "archive-objects",
        lambda _: servers.objects.fresh().url("a.ndjson", login=LOGIN),
        lambda text: text.replace("/a.ndjson", "/%61.ndjson"),
        lambda text: servers.objects.dump(text),
        many=MANY_SESSIONS,
        large=SMALLER,
    ),
    "sessions": lambda _: Backend(
        "sessions",
        lambda folder: f"{folder}/sessions",
        refuses_names=True,  # names of files
    ),
    "agentscope2-files": lambda _: Backend(
        "agentscope2-files",
        lambda folder: f"agentscope2:{folder}/sessions",
        style=Style("agentscope2", frozenset()),
        many=300,
        large=WHOLE,
        refuses_names=True,  # names of files
    ),
    "state": lambda _: Backend(
        "state",
        lambda folder: f"{folder}/state.json",
        large=SMALLER,
        only=MemoryKey("", "state"),
    ),
}
"""By kind, a function that takes the servers of the test run and makes a backend."""


def _mem0(provider: str, folder: Path, **options: Any) -> str:
    """Write a configuration of mem0 into a folder; return its URL for memctl."""
    size = {} if provider == "chroma" else {"embedding_model_dims": DIMENSIONS}
    store = {"collection_name": "facts", "path": f"{folder}/{provider}"} | size | options
    if provider == "pgvector":
        del store["path"]
    about = {
        "vector_store": {"provider": provider, "config": store},
        "embedder": {"provider": "openai", "config": {"embedding_dims": DIMENSIONS}},
        "history_db_path": f"{folder}/history.db",
    }
    (folder / "config.json").write_text(json.dumps(about))
    return f"mem0:{folder}/config.json"


def database_of(text: str) -> str:
    about = json.loads(Path(text.removeprefix("mem0:")).read_text())
    return str(about["vector_store"]["config"]["connection_string"])


def _chroma(text: str) -> Any:
    """Return the contents of Chroma; even to read, its client writes to the files."""
    import chromadb  # slow to import, and few tests need it

    folder = Path(text.removeprefix("mem0:")).parent
    if not (folder / "chroma").exists():
        return None
    settings = chromadb.Settings(
        anonymized_telemetry=False, persist_directory=f"{folder}/chroma", is_persistent=True
    )
    client = chromadb.Client(settings)
    found = {}
    for one in client.list_collections():
        rows = one.get(include=["metadatas", "embeddings"])
        vectors = map(tuple, rows["embeddings"])
        found[one.name] = sorted(
            zip(
                rows["ids"],
                map(str, map(sorted, map(dict.items, rows["metadatas"]))),
                vectors,
                strict=True,
            )
        )
    client.close()
    return found


def with_pgvector(servers: Servers) -> str:
    """Return the URL of an empty database with the extension, which only a superuser can create."""
    url = servers.postgresql.fresh()
    servers.postgresql.execute(servers.postgresql.admin_url(url), "CREATE EXTENSION vector")
    return url


def _facts(*, uuids: bool = False) -> Style:
    name = (lambda text: str(uuid5(NAMESPACE_OID, text))) if uuids else str
    return Style("fact", frozenset(), dimensions=DIMENSIONS, name=name)


def mem0_key(number: int) -> MemoryKey:
    """Return the name of a scope without white space, as mem0 requires."""
    return MemoryKey(*(part.replace(" ", "_") for part in samples.key(number)))


DIMENSIONS = 8


def _agent(kind: str) -> Callable[[Servers], Backend]:
    """Return a function that makes the backend of a coding agent whose sessions are files."""
    return lambda _: Backend(
        kind,
        lambda folder: f"{kind}:{folder}/agent",
        style=Style(kind, frozenset()),
        keys=_session_of_agent,
        users=False,
        refuses_names=True,
        large=SMALLER,
    )


def _session_of_agent(number: int) -> MemoryKey:
    """Return the name of a session whose id is a UUID."""
    return MemoryKey("", f"5c2d1e00-0000-4000-8000-{number:012}")


AGENT_BACKENDS: dict[str, Callable[[Servers], Backend]] = {
    kind: _agent(kind) for kind in ("claude-code", "codex")
}
"""The coding agents whose sessions memctl writes; Hermes and OpenCode import theirs."""

FACT_BACKENDS: dict[str, Callable[[Servers], Backend]] = {
    "vault": lambda _: Backend(
        "vault",
        lambda folder: f"vault:{folder}/v",
        style=Style("fact", frozenset()),
        large=300,
        refuses_names=True,
    ),
    "reme": lambda _: Backend(
        "reme",
        lambda folder: f"reme:{folder}/v",
        style=Style("fact", frozenset()),
        large=300,
        refuses_names=True,
    ),
    "reme-0.3": lambda _: Backend(
        "reme-0.3",
        lambda folder: f"reme:{folder}/r?layout=0.3",
        style=_facts(),
        large=300,
        refuses_names=True,
    ),
    "reme-0.2": lambda _: Backend(
        "reme-0.2",
        lambda folder: f"reme:{folder}/r?layout=0.2",
        style=_facts(),
        refuses_names=True,
    ),
    "mem0-qdrant": lambda _: Backend(
        "mem0-qdrant",
        partial(_mem0, "qdrant"),
        keys=mem0_key,
        style=_facts(uuids=True),
        refuses_names=True,
    ),
    "mem0-faiss": lambda _: Backend(
        "mem0-faiss",
        partial(_mem0, "faiss"),
        keys=mem0_key,
        style=_facts(),
        refuses_names=True,
    ),
    "mem0-chroma": lambda _: Backend(
        "mem0-chroma",
        partial(_mem0, "chroma"),
        dump=_chroma,
        keys=mem0_key,
        style=_facts(),
        refuses_names=True,
    ),
    "mem0-pgvector": lambda servers: Backend(
        "mem0-pgvector",
        lambda folder: _mem0("pgvector", folder, connection_string=with_pgvector(servers)),
        # Restored rows are the last ones.
        dump=lambda text: sorted(servers.postgresql.dump(database_of(text)).splitlines()),
        refuses=frozenset({"null character"}),
        keys=mem0_key,
        style=_facts(uuids=True),
        refuses_names=True,
    ),
    "mem0-platform": lambda servers: Backend(
        "mem0-platform",
        lambda _: servers.mem0_project(),
        lambda text: text.replace("mem0://", "mem0://somebody", 1),
        servers.mem0_memories,
        exists=True,
        large=300,
        style=Style("fact", frozenset()),
        refuses_names=True,
    ),
}
"""The backends of stores of facts, as in ``BACKENDS``."""

FURTHER = {
    "postgresql",
    "mysql",
    "postgresql-agentscope2",
    "mysql-agentscope2",
    "redis-agentscope2",
    "postgresql-java",
    "mysql-java",
    "redis-java",
    "java-files",
    "redis-langchain",
    "redis-openai-agents",
    "langchain-files",
    "agentscope2-files",
    "sqlite-table",
    "sqlite-table-json",
    "sqlite-openai-branches",
    "sqlite-llamaindex",
    "sqlite-agno",
    "sqlite-adk",
    "postgresql-agno",
    "mysql-agno",
    "postgresql-openai-agents",
    "mysql-langchain",
    "redis-session",
    "tablestore",
    "tablestore-session",
    "archive-gz",
    "archive-zst",
    "archive-objects",
    "reme",
    "reme-0.3",
    "mem0-faiss",
    "mem0-chroma",
    "mem0-pgvector",
    "mem0-platform",
    "state",
}
"""The backends for slow tests.

They combine a layout, engine or file format of faster backends, or are slow themselves.
"""


def params(names: Iterable[str]) -> list[ParameterSet]:
    """Return backends as parameters of a test; backends of ``FURTHER`` are slow."""
    return [pytest.param(name, marks=pytest.mark.slow if name in FURTHER else ()) for name in names]


WITH_ANY_MARK = [
    name
    for name in BACKENDS
    if not name.endswith(("-agentscope2", "-java", "-files", "-table-json", *MAPPED))
    and name not in ("archive-gz", "archive-zst", "archive-objects")
]
"""Backends with messages of AgentScope 1.x and any marks.

Archives are listed once, because no command shows the compression or the place.
"""

OF_AGENTSCOPE2 = [name for name in BACKENDS if name.endswith("-agentscope2")]
"""The backends with messages of AgentScope 2.x."""


def place_at(name: str, text: str, folder: Path, servers: Servers) -> Place:
    """Return the place of a store with this name and this URL or path."""
    return Place(BACKENDS[name](servers), text, folder)


def new_place(name: str, folder: Path, servers: Servers) -> Place:
    """Return a new and empty place of the store with this name."""
    return testing.new_place((BACKENDS | FACT_BACKENDS)[name](servers), folder)


@contextmanager
def in_style(place: Place) -> Iterator[None]:
    """Make the sample messages in the block as the place holds them."""
    samples.use(place.backend.style)
    try:
        yield
    finally:
        samples.use(Style())


SQL_PLACES: dict[str, Callable[[Path, Servers], str]] = {
    "sqlite": lambda folder, _: f"sqlite:///{folder}/m.db",
    "postgresql": lambda _, servers: servers.postgresql.fresh(),
    "mysql": lambda _, servers: servers.mariadb.fresh(),
}
"""A function for each kind that returns the URL of a new and empty database."""


def sql_database(store: Store) -> Database:
    """Return the database of a SQL store, even if a wrapper detected its layout."""
    found = store._store if isinstance(store, StoreWrapper) else store
    assert isinstance(found, SqlMemoryStore)
    return found.database


def session_database(store: Store) -> Database:
    """Return the database of a SQL store of AgentScope 2.x sessions."""
    found = store._store if isinstance(store, StoreWrapper) else store
    assert isinstance(found, SqlAgentscope2Store)
    return found.database
