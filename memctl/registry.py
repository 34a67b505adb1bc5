"""The kinds of store, and the way from a URL or a path to a store.

A ``StoreSpec`` registers a kind of store: how its URLs and paths are written, how lists describe
the kind, and which class serves the kind.  The module of the class is imported when a store of the
kind is opened.  ``--help`` therefore loads no driver.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

from msgspec import Struct, structs

from memctl import plugins
from memctl.engines.objects.address import is_object as is_object
from memctl.engines.objects.address import parse_address
from memctl.errors import UsageError
from memctl.layouts.agents import AGENTS
from memctl.location import Location, join_url, redact, visible
from memctl.store import Features, OpenMode, Store
from memctl.storekit.files import recognise, translated
from memctl.storekit.named_file import File
from memctl.stores.archive.file import file_of as file_of
from memctl.stores.archive.file import refuse_missing as refuse_missing
from memctl.stores.archive.rotation import chosen as chosen
from memctl.stores.archive.rotation import chosen_path, split_choice
from memctl.stores.reme.layouts import layout_of
from memctl.text.values import time_zone
from memctl.wrappers.detected import DetectedStore

if TYPE_CHECKING:
    from memctl.stores.archive.pruned import PrunedReader as PrunedReader
    from memctl.stores.archive.pruned import PrunedWriter as PrunedWriter


class StoreSpec(Struct, frozen=True):
    """The registration of a kind of store, in memctl or in a plugin.

    A plugin names a ``StoreSpec`` in an entry point of the group ``memctl.stores``.  The name of
    the entry point is the kind, the scheme of URLs and the extension of files of the kind::

        SPEC = StoreSpec(
            kind="lines",
            syntax="lines://..., PATH.lines",
            summary="memories as lines of JSON",
            factory=LinesStore,
        )
    """

    kind: str
    syntax: str
    """The form in which users write a store of this kind."""
    summary: str
    """A noun phrase that describes the kind, for lists."""
    factory: str | Callable[[Location, OpenMode], Store]
    """The store class; ``"module:Class"`` is imported when a store is opened."""
    schemes: tuple[str, ...] = ()
    """The schemes of the kind's URLs."""
    suffixes: tuple[str, ...] = ()
    """The ends of the kind's paths, in lower case."""
    prefixes: tuple[str, ...] = ()
    """The words that may stand before the kind's paths, as in ``vault:PATH``."""
    options: frozenset[str] = frozenset()
    """The options of a URL that memctl uses; the driver gets all other options."""
    extra: str | None = None
    """The extra of memctl that installs the driver."""
    title: str = ""
    """The first line of ``inspect``, such as ``AgentScope 2.x sessions in Redis``; ``summary`` if
    empty."""
    engine: str = ""
    """The kind whose URLs, with ``?layout=``, name stores of this kind; empty if none."""
    layouts: tuple[str, ...] = ()
    """The values of ``?layout=`` for this kind."""


TABLE_LAYOUTS = ("table", "langchain", "openai-agents", "llamaindex", "adk")
"""The layouts of a mapped table: a mapping by the user (``table``), and the built-in mappings."""


class Engine(NamedTuple):
    """A database: its kind, the form of its URLs, and its names in texts."""

    kind: str
    url: str
    place: str
    name: str
    options: frozenset[str]
    """The options of memctl that every layout on the engine has."""
    extra: str | None = None


class Layout(NamedTuple):
    """The layout of a framework's data in a database, in memctl or in a plugin.

    A plugin names a ``Layout`` of SQL tables in an entry point of the group ``memctl.layouts``.
    The name of the entry point is the name of the layout, and the value of ``?layout=``::

        LAYOUT = Layout(
            name="chats",
            summary="the chats of Chatter in {}",
            title="Chatter chats",
            factory="memctl_chatter:ChatStore",
        )
    """

    name: str
    """The end of the names of the kinds, which begin with the engine."""
    summary: str
    title: str
    factory: str
    """The store class as ``"module:Class"``, with ``{}`` for an engine's name in class names."""
    options: tuple[str, ...] = ()
    """The options of a URL, besides those that every layout has."""
    query: str = ""
    """The value of ``?layout=`` in lists; ``name`` if empty."""
    engines: tuple[str, ...] = ("sqlite", "postgresql", "mysql")
    layouts: tuple[str, ...] = ()
    """The values of ``?layout=``; ``name`` if empty."""
    extra: str | None = None

    def on(self, engine: Engine) -> StoreSpec:
        """Return the registration of the kind of store with this layout on an engine."""
        return StoreSpec(
            kind=f"{engine.kind}-{self.name}",
            syntax=f"{engine.url}?layout={self.query or self.name}",
            summary=self.summary.format(engine.place),
            factory=self.factory.format(engine.kind.capitalize()),
            options=engine.options.union(self.options),
            extra=self.extra or engine.extra,
            title=f"{self.title} in {engine.name}",
            engine=engine.kind,
            layouts=self.layouts or (self.name,),
        )


_SQL_OPTIONS = frozenset({"layout", "side_effects"})
_POSTGRESQL_OPTIONS = _SQL_OPTIONS | {"row_security"}
SQL_ENGINES = (
    Engine("sqlite", "sqlite:///PATH", "a SQLite file", "SQLite", _SQL_OPTIONS),
    Engine("postgresql", "postgresql://...", "PostgreSQL", "PostgreSQL", _POSTGRESQL_OPTIONS),
    Engine("mysql", "mysql://...", "MySQL or MariaDB", "MySQL", _SQL_OPTIONS, "mysql"),
)
_REDIS = Engine("redis", "redis://...", "Redis", "Redis", frozenset({"prefix", "ttl", "layout"}))
_TABLESTORE = Engine(
    *("tablestore", "tablestore://...", "Tablestore", "Tablestore"),
    *(frozenset({"instance", "layout"}), "tablestore"),
)
SQL_LAYOUTS = (
    Layout(
        name="agentscope2",
        query="agentscope2, &agent=",
        summary="AgentScope 2.x sessions in {}",
        title="AgentScope 2.x sessions",
        factory="memctl.stores.agentscope2.sql:SqlAgentscope2Store",
        options=("agent", "tz"),
    ),
    Layout(
        name="java",
        query="java, &table=",
        summary="AgentScope Java sessions in {}",
        title="AgentScope Java sessions",
        factory="memctl.stores.agentscope_java.sql:SqlAgentScopeJavaStore",
        options=("table", "tz", "idle"),
    ),
    Layout(
        name="table",
        query="langchain, openai-agents, llamaindex, adk, table",
        summary="messages of other frameworks, and tables of your own, in {}",
        title="messages in a table",
        factory="memctl.stores.tables.store:TableStore",
        options=(
            *("table", "columns", "dialect", "content_encoding", "live", "summary"),
            *("owner", "app", "tz"),
        ),
        layouts=TABLE_LAYOUTS,
    ),
    Layout(
        name="agno",
        query="agno, &table= &agent=",
        summary="the sessions of Agno in {}",
        title="Agno sessions",
        factory="memctl.stores.agno.store:AgnoStore",
        options=("table", "agent"),
    ),
    Layout(
        name="langgraph",
        query="langgraph, &namespace=, &summary=",
        summary="the messages in LangGraph's checkpoints in {}, read, pruned and erased",
        title="LangGraph checkpoints",
        factory="memctl.stores.langgraph.store:{}LangGraphStore",
        options=("namespace", "summary"),
        engines=("sqlite", "postgresql"),
        extra="langgraph",
    ),
    Layout(
        name="openai-branches",
        query="openai-branches, &table=",
        summary="the branches of the OpenAI Agents SDK's AdvancedSQLiteSession",
        title="OpenAI Agents SDK sessions with branches",
        factory="memctl.stores.openai.branches:BranchStore",
        options=("table", "owner", "path"),
        engines=("sqlite",),
    ),
)
_MEMORY_OPTIONS = frozenset({"state", "state_path", "agent", "tz"})
_SQL_MEMORY = {
    "sqlite": ("sqlite:///PATH, PATH.db .sqlite .sqlite3", ("sqlite",)),
    "postgresql": ("postgresql://USER@HOST/DATABASE", ("postgresql", "postgres")),
    "mysql": ("mysql://USER@HOST/DATABASE", ("mysql", "mariadb")),
}
"""How SQL memory is written on each engine, and the schemes of its URLs."""
_OF_SQLITE = frozenset({"path"})  # for tables with branches
BUILT_IN = (
    *(
        StoreSpec(
            *(on.kind, _SQL_MEMORY[on.kind][0], f"SQL memory in {on.place}"),
            "memctl.stores.agentscope1.sql.store:SqlMemoryStore",
            schemes=_SQL_MEMORY[on.kind][1],
            suffixes=(".db", ".sqlite", ".sqlite3") if on.kind == "sqlite" else (),
            options=_MEMORY_OPTIONS | on.options | (_OF_SQLITE if on.kind == "sqlite" else set()),
            extra=on.extra,
            title=f"AgentScope 1.x memory in {on.name}",
            engine=on.kind,
            layouts=("memory",),
        )
        for on in SQL_ENGINES
    ),
    *(
        layout.on(engine)
        for layout in SQL_LAYOUTS
        for engine in SQL_ENGINES
        if engine.kind in layout.engines
    ),
    StoreSpec(
        "redis",
        "redis:// rediss:// unix://, ?prefix= ?ttl=",
        "RedisMemory",
        "memctl.stores.agentscope1.redis.store:RedisMemoryStore",
        title="AgentScope 1.x memory in Redis",
        schemes=("redis", "rediss", "unix", "redis+unix"),
        options=frozenset({"prefix", "ttl", "layout", "state", "state_path", "tz"}),
        engine="redis",
        layouts=("memory",),
    ),
    Layout(
        "session",
        "RedisSession's states",
        "AgentScope 1.x session states",
        "memctl.stores.states.redis:RedisSessionStore",
        ("path", "tz"),
    ).on(_REDIS),
    Layout(
        "runtime",
        "agentscope-runtime's histories and memories, read and erased",
        "agentscope-runtime histories and memories",
        "memctl.stores.runtime.redis:RuntimeStore",
        ("path",),
    ).on(_REDIS),
    Layout(
        "runtime-state",
        "the states of agentscope-runtime, read and erased",
        "agentscope-runtime states",
        "memctl.stores.states.runtime:RuntimeStateStore",
        ("path", "tz"),
    ).on(_REDIS),
    Layout(
        "agentscope2",
        "AgentScope 2.x's sessions",
        "AgentScope 2.x sessions",
        "memctl.stores.agentscope2.redis:RedisAgentScope2Store",
        ("agent", "tz"),
    ).on(_REDIS),
    Layout(
        "java",
        "AgentScope Java's sessions",
        "AgentScope Java sessions",
        "memctl.stores.agentscope_java.redis:RedisAgentScopeJavaStore",
        ("tz", "idle"),
    ).on(_REDIS),
    Layout(
        "langchain",
        "LangChain's histories in Redis",
        "LangChain histories",
        "memctl.stores.langchain.redis:LangChainListStore",
        ("owner",),
    ).on(_REDIS),
    Layout(
        "openai-agents",
        "the sessions of the OpenAI Agents SDK in Redis",
        "OpenAI Agents SDK sessions",
        "memctl.stores.openai.redis:OpenAIAgentsListStore",
        ("owner",),
    ).on(_REDIS),
    StoreSpec(
        "tablestore",
        "tablestore://INSTANCE.ENDPOINT, ?table= ?instance=",
        "TablestoreMemory in Alibaba Cloud Tablestore",
        "memctl.stores.agentscope1.tablestore:TablestoreMemoryStore",
        title="AgentScope 1.x memory in Tablestore",
        schemes=("tablestore",),
        options=frozenset({"instance", "table", "layout", "state", "state_path", "tz"}),
        extra="tablestore",
        engine="tablestore",
        layouts=("memory",),
    ),
    Layout(
        "session",
        "TablestoreSession's states",
        "AgentScope 1.x session states",
        "memctl.stores.states.tablestore:TablestoreSessionStore",
        ("table", "path", "tz"),
    ).on(_TABLESTORE),
    Layout(
        "runtime",
        "agentscope-runtime's histories and memories in Tablestore, read and erased",
        "agentscope-runtime histories and memories",
        "memctl.stores.runtime.tablestore:TablestoreRuntimeStore",
        ("path",),
    ).on(_TABLESTORE),
    StoreSpec(
        "langchain",
        'an alias with factory = "MODULE:FUNCTION"',
        "a LangChain vector store, only read",
        "memctl.stores.langchain.vectors:LangChainStore",
        title="a LangChain vector store",
    ),
    StoreSpec(
        "langchain-files",
        "langchain:FOLDER, langchain:PATH.json",
        "the files of LangChain's FileChatMessageHistory",
        "memctl.stores.langchain.files:LangChainFilesStore",
        title="LangChain histories in files",
        prefixes=("langchain",),
        options=frozenset({"session", "owner"}),
    ),
    StoreSpec(
        "state",
        "PATH.json",
        "a state_dict, or one session state",
        "memctl.stores.states.file:StateFileStore",
        title="AgentScope 1.x state in a file",
        suffixes=(".json",),
        options=frozenset({"path", "user", "session", "tz"}),
    ),
    StoreSpec(
        "sessions",
        "a folder",
        "JSONSession's states",
        "memctl.stores.states.folder:SessionFolderStore",
        title="AgentScope 1.x session states in a folder",
        prefixes=("agentscope1",),
        options=frozenset({"path", "tz"}),
    ),
    StoreSpec(
        "agentscope2-files",
        "agentscope2:FOLDER, agentscope2:PATH.json",
        "AgentScope 2.x states in session files",
        "memctl.stores.agentscope2.files:StateFilesStore",
        title="AgentScope 2.x states in session files",
        prefixes=("agentscope2",),
        options=frozenset({"path", "user", "session", "agent", "tz"}),
    ),
    StoreSpec(
        "java-files",
        "agentscope-java:FOLDER",
        "AgentScope Java sessions in a folder",
        "memctl.stores.agentscope_java.files:AgentScopeJavaFilesStore",
        title="AgentScope Java sessions in a folder",
        prefixes=("agentscope-java",),
        options=frozenset({"tz", "idle"}),
    ),
    StoreSpec(
        "mem0",
        "mem0:CONFIG.json",
        "the facts of mem0's open-source library",
        "memctl.stores.mem0.store:Mem0Store",
        title="mem0 facts",
        prefixes=("mem0",),
        options=frozenset({"side_effects"}),
        extra="mem0",
    ),
    StoreSpec(
        "mem0-platform",
        "mem0://HOST",
        "the facts of a project of the mem0 Platform",
        "memctl.stores.mem0.platform:PlatformStore",
        title="facts on the mem0 Platform",
        schemes=("mem0",),
        extra="mem0",
    ),
    StoreSpec(
        "archive",
        ".ndjson .ndjson.gz .ndjson.zst, with .age if encrypted; s3:// gs:// az://",
        "a memctl archive, on a disk or in object storage",
        "memctl.stores.archive.store:ArchiveStore",
        extra="objects",
        title="memctl archive",
        suffixes=(
            *(".ndjson", ".ndjson.gz", ".ndjson.zst"),
            *(".ndjson.age", ".ndjson.gz.age", ".ndjson.zst.age"),
        ),
    ),
    StoreSpec(
        "openai",
        ".jsonl",
        "conversations as OpenAI chat messages, written once",
        "memctl.stores.openai.file:OpenAIStore",
        title="OpenAI chat messages in a file",
        suffixes=(".jsonl",),
    ),
    StoreSpec(
        "atif",
        "atif:FOLDER, atif:PATH; .json .jsonl that begin with schema_version",
        "agents' trajectories (ATIF) of memctl, Harbor and others, only read",
        "memctl.stores.atif.store:TrajectoryStore",
        title="ATIF trajectories",
        prefixes=("atif",),
    ),
    StoreSpec(
        "claude-code",
        "claude-code:, claude-code:FOLDER, ?project=",
        "the sessions of Claude Code, added and deleted whole",
        "memctl.stores.claude_code.store:ClaudeCodeStore",
        title="Claude Code sessions",
        prefixes=("claude-code",),
        options=frozenset({"project"}),
    ),
    StoreSpec(
        "codex",
        "codex:, codex:FOLDER, ?project=",
        "the sessions of Codex CLI, added and deleted whole",
        "memctl.stores.codex.store:CodexStore",
        title="Codex sessions",
        prefixes=("codex",),
        options=frozenset({"project"}),
    ),
    StoreSpec(
        "hermes",
        "hermes:, hermes:FOLDER, ?project=",
        "the sessions of Hermes, deleted whole",
        "memctl.stores.hermes.store:HermesStore",
        title="Hermes sessions",
        prefixes=("hermes",),
        options=frozenset({"project", "side_effects"}),
    ),
    StoreSpec(
        "hermes-import",
        "export --as hermes",
        "sessions that Hermes imports, only written",
        "memctl.stores.hermes.import_file:HermesImportFile",
        title="sessions for Hermes",
    ),
    StoreSpec(
        "opencode",
        "opencode:, opencode:FOLDER, ?project=",
        "the sessions of OpenCode, deleted whole",
        "memctl.stores.opencode.store:OpenCodeStore",
        title="OpenCode sessions",
        prefixes=("opencode",),
        options=frozenset({"project", "side_effects"}),
    ),
    StoreSpec(
        "opencode-import",
        "export --as opencode",
        "a session that OpenCode imports, only written",
        "memctl.stores.opencode.import_file:OpenCodeImportFile",
        title="a session for OpenCode",
    ),
    StoreSpec(
        "vault",
        "vault:FOLDER",
        "AgenticMemory's Markdown files",
        "memctl.stores.vault.store:VaultStore",
        title="AgenticMemory Markdown vault",
        prefixes=("vault",),
    ),
    StoreSpec(
        "reme",
        "reme:FOLDER",
        "ReMe 0.4's vault",
        "memctl.stores.reme.vault:ReMeVaultStore",
        title="ReMe 0.4 vault",
        prefixes=("reme",),
        options=frozenset({"layout"}),
        engine="reme",
        layouts=("vault",),
    ),
    StoreSpec(
        "reme-0.3",
        "reme:FOLDER, ?collection= ?layout=0.3",
        "ReMe 0.3's vector store in files",
        "memctl.stores.reme.files:ReMeFilesStore",
        title="ReMe 0.3 vector store",
        options=frozenset({"layout", "collection"}),
        engine="reme",
        layouts=("0.3",),
    ),
    StoreSpec(
        "reme-0.2",
        "reme:FOLDER, ?layout=0.2",
        "ReMe 0.2's vector store in lines of JSON",
        "memctl.stores.reme.lines:ReMeLinesStore",
        title="ReMe 0.2 vector store",
        options=frozenset({"layout"}),
        engine="reme",
        layouts=("0.2",),
    ),
)
_BY_KIND = {spec.kind: spec for spec in BUILT_IN}
_BY_SCHEME = {scheme: spec.kind for spec in BUILT_IN for scheme in spec.schemes}
_BY_PREFIX = {prefix: spec.kind for spec in BUILT_IN for prefix in spec.prefixes}
PREFIXES = tuple(f"{prefix}:" for prefix in _BY_PREFIX)
"""The beginnings of paths that name their kind of store, such as ``vault:``."""
EXTENSIONS = (
    "extensions of new files: .db .sqlite .sqlite3 (SQLite), .json (a state), "
    ".ndjson .ndjson.gz .ndjson.zst (an archive, encrypted with .age); a new folder ends in /"
)
"""The hint for errors about file names."""
SUFFIXES = tuple(suffix for spec in BUILT_IN for suffix in spec.suffixes)
"""The ends of paths that name a store of a built-in kind, such as ``.db``."""
URL_OPTIONS = frozenset().union(*(spec.options for spec in BUILT_IN)) - {
    *("user", "session"),  # for states
    "collection",  # for paths
}
"""The options of URLs that memctl uses, of all built-in kinds."""
SQL_KINDS = tuple(engine.kind for engine in SQL_ENGINES)
"""The kinds of SQL databases in general; their tables tell the layout."""
_LAYOUTS: dict[str, dict[str, str]] = {
    "state": {"memory": "state", "agentscope2": "agentscope2-files"},
    "sessions": {
        "memory": "sessions",
        "agentscope2": "agentscope2-files",
        "java": "java-files",
    },
}
for _spec in BUILT_IN:
    for _layout in _spec.layouts:
        _LAYOUTS.setdefault(_spec.engine, {})[_layout] = _spec.kind
"""For each kind of a URL: the kinds of store, by the value of ``?layout=``."""


_OF_NAMED_LAYOUTS = {
    "table",
    "columns",
    "dialect",
    "content_encoding",
    "live",
    "namespace",
    "summary",
}
"""Options for a layout that ``?layout=`` names; for a detected layout, they mean nothing."""
_STATES = {"redis": ("prefix", "ttl"), "tablestore": ("instance",)}
"""Values of ``?state=`` besides a folder, with the options of the store that also hold there."""


def kinds() -> list[str]:
    """Return the names of the kinds of store: the built-in kinds, then the kinds of plugins.

    Loads the layouts of plugins, which name their engines.
    """
    layouts = [
        f"{engine}-{name}" for name in plugins.names(plugins.LAYOUTS) for engine in _engines(name)
    ]
    offered = [*plugins.names(plugins.STORES), *layouts]
    return [*_BY_KIND, *(kind for kind in offered if kind not in _BY_KIND)]


def _engines(layout: str) -> tuple[str, ...]:
    """Return the engines of a plugin's layout; the first if its plugin cannot be loaded."""
    try:
        found = plugins.load(plugins.LAYOUTS, layout)
    except UsageError:
        return SQL_KINDS[:1]
    return found.engines if isinstance(found, Layout) else SQL_KINDS[:1]


def _layouts_on(kind: str) -> dict[str, str]:
    """Return the kinds of store by the value of ``?layout=``, for a kind of a URL."""
    built_in = _LAYOUTS.get(kind, {})
    if kind not in SQL_KINDS:
        return built_in
    return {name: f"{kind}-{name}" for name in plugins.names(plugins.LAYOUTS)} | built_in


def spec_of(kind: str) -> StoreSpec:
    """Return the registration of a kind of store.

    Raises:
        UsageError: no plugin offers the kind, or its plugin cannot be loaded or offers no
            ``StoreSpec``.
    """
    if kind in _BY_KIND:
        return _BY_KIND[kind]
    engine, _, layout = kind.partition("-")
    if layout and engine in SQL_KINDS:
        [on] = [one for one in SQL_ENGINES if one.kind == engine]
        return _layout_of_plugin(layout, on)
    found = plugins.load(plugins.STORES, kind)
    if not isinstance(found, StoreSpec):
        raise UsageError(
            f"the plugin {kind!r} is not a store", "its entry point names a memctl.StoreSpec"
        )
    return found


def _layout_of_plugin(name: str, engine: Engine) -> StoreSpec:
    """Return the registration of a layout of a plugin on a SQL engine.

    Raises:
        UsageError: as ``spec_of``, or the layout is not for this engine.
    """
    found = plugins.load(plugins.LAYOUTS, name)
    if not isinstance(found, Layout) or found.name != name:
        raise UsageError(
            f"the plugin {name!r} is not a layout",
            "its entry point names a memctl.Layout of this name",
        )
    if engine.kind not in found.engines:
        known = " and ".join(found.engines)
        raise UsageError(f"layout={name} is not for {engine.name}", f"it is for {known}")
    return found.on(engine)


_FRAMEWORKS = {
    "langchain": "LangChain messages",
    "openai-agents": "OpenAI Agents SDK sessions",
    "llamaindex": "LlamaIndex messages",
    "adk": "Google ADK sessions",
    "table": "messages in a table of your own",
}
"""Descriptions of the messages in mapped tables, by layout."""


def title_of(location: Location) -> str:
    """Return the name of the kind of store, such as ``AgentScope 2.x sessions in Redis``."""
    spec = spec_of(location.kind)
    named = _FRAMEWORKS.get(location.options.get("layout", ""))
    if named and spec.layouts == TABLE_LAYOUTS:
        [engine] = [one for one in SQL_ENGINES if one.kind == spec.engine]
        return f"{named} in {engine.name}"
    return spec.title or spec.summary


@contextmanager
def _naming_extra(spec: StoreSpec) -> Iterator[None]:
    """Raise an error if a driver cannot be imported within the block.

    Raises:
        UsageError: the driver is not installed; the hint names the extra of memctl to install.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if spec.extra is None or (error.name or "").startswith("memctl"):
            raise
        from memctl.machine.installation import install_command  # slow to load

        raise UsageError(
            f"{spec.kind} needs the driver {error.name!r}, which is not installed",
            install_command(spec.extra),
        ) from error


def store_class(kind: str) -> Any:
    """Return the class of the stores of a kind.

    Raises:
        UsageError: the driver is not installed, or the plugin cannot be loaded.
    """
    spec = spec_of(kind)
    if not isinstance(spec.factory, str):
        return spec.factory
    module, _, name = spec.factory.partition(":")
    with _naming_extra(spec):
        return getattr(import_module(module), name)


def features_of(kind: str) -> Features:
    """Return the features of a kind of store.

    SQLite allows one writer at a time, so its kinds are never ``parallel``.

    Raises:
        UsageError: as ``store_class``.
    """
    features: Features = store_class(kind).features
    return (
        structs.replace(features, parallel=False) if spec_of(kind).engine == "sqlite" else features
    )


def _new_store(location: Location, mode: OpenMode) -> Any:
    made, spec = store_class(location.kind), spec_of(location.kind)
    with _naming_extra(spec):
        store = made(location, mode)
    if (tz := location.options.get("tz")) is not None:
        if "tz" not in spec.options:  # of a detected layout
            raise UsageError(f"{spec.kind} has no option tz=", "leave it out")
        store.dialect = store.dialect.in_zone(time_zone(tz))
    return store


def make_new(location: Location, file: File) -> Store:
    """Return the store of a new file: an archive, OpenAI messages or the state of one memory.

    The store takes ``file`` for absent, writes its content once, and locks nothing.  The location
    has the kind, the options and the keys of the store, but no path.
    """
    made: Store = store_class(location.kind)(location, OpenMode.CREATE, file)
    return made


def read_pruned(location: Location) -> PrunedReader:
    """Return a reader of an archive of pruned rows, whose file is open.

    Raises:
        MemctlError: as ``PrunedReader``.
    """
    from memctl.stores.archive.pruned import PrunedReader  # only for pruned rows

    return PrunedReader(location)


def write_pruned(location: Location, source: str, engine: str) -> PrunedWriter:
    """Return a writer of a new archive of pruned rows; the arguments are as for the class.

    Raises:
        MemctlError: as ``PrunedWriter``.
    """
    from memctl.stores.archive.pruned import PrunedWriter  # only for pruned rows

    return PrunedWriter(location, source, engine)


def make_store(location: Location, mode: OpenMode = OpenMode.READ) -> Store:
    """Return the store at a location, not yet opened; with ``?state=``, also with its summaries.

    If the kind has several layouts and the URL names none, the store detects its layout when
    opened.

    Raises:
        UsageError: as ``store_class``, or ``?state=`` does not fit the store.
    """
    store: Store = _new_store(location, mode)
    states_at = state_of(location)
    if states_at is None:
        finds = "layout" not in location.options and location.kind in _LAYOUTS
        if finds and type(store).other_layout is not Store.other_layout:
            return DetectedStore(
                store,
                lambda layout: make_store(_with_layout(location, layout), mode),
                spec_of(location.kind).options,
            )
        return store
    states = _new_store(states_at, mode)
    states.is_overlay = True
    from memctl.wrappers.summaries import SummaryOverlay  # only with ?state=

    return SummaryOverlay(store, states)


def _with_layout(location: Location, layout: str) -> Location:
    """Return a copy of the location with the layout's kind, and the option ``layout``."""
    kind = _LAYOUTS[location.kind][layout]
    return replace(location, kind=kind, options=location.options | {"layout": layout})


def as_recorded(location: Location, options: Mapping[str, str]) -> Location:
    """Return the location with the options that an earlier run on its store recorded.

    A layout or application in the location takes precedence over a recorded one.  The recorded
    layout is needed if the store has become empty, so that its layout cannot be detected.
    """
    layout = options.get("layout")
    app = {"app": options["app"]} if "app" in options else {}
    others = {name: value for name, value in options.items() if name not in ("layout", "app")}
    location = replace(location, options=app | location.options | others)
    if (
        layout not in _LAYOUTS.get(location.kind, {})
        or {"layout", "state"} & location.options.keys()
    ):
        return location
    return _with_layout(location, layout)


async def located(location: Location) -> Location:
    """Return the location with its detected layout; the store is opened to detect the layout.

    If the layout is known without detection, the store is not opened, and the location is returned
    unchanged.

    Raises:
        MemctlError: as ``Store.open``.
    """
    store = make_store(location, OpenMode.CHANGE)
    if isinstance(store, DetectedStore):
        async with store:
            return store.location
    return location


def state_of(location: Location) -> Location | None:
    """Return the location of the session states that ``?state=`` adds to a store, or None.

    Raises:
        UsageError: ``?state=`` does not fit the store.
    """
    state = location.options.get("state")
    return None if state is None else _state(location, state)


def _state(location: Location, state: str) -> Location:
    """Return the location of the summaries of a store.

    ``state`` is the value of the option ``?state=``.

    Raises:
        UsageError: the value does not fit the store.
    """
    path = location.options.get("state_path")
    options = {"path": path} if path else {}
    if state in _STATES:
        if location.kind != state:
            raise UsageError(
                f"?state={state} needs a store of that kind, and {location.label} is not one",
                "name the folder that holds the session states: ?state=FOLDER",
            )
        kept = {name: location.options[name] for name in _STATES[state] if name in location.options}
        return replace(location, kind=f"{state}-session", options=kept | options)
    if "state" not in spec_of(location.kind).options:
        raise UsageError(f"?state= cannot be used with {location.label}", "it is for SQL and Redis")
    found = parse(state)
    if found.kind not in ("sessions", "redis-session"):
        raise UsageError(
            f"?state={redact(state)} is not a session folder", "name a folder, or 'redis'"
        )
    # Without the layout: the place for summaries may be empty.
    others = {name: value for name, value in found.options.items() if name != "layout"}
    return replace(found, options=others | options)


def parse(text: str) -> Location:
    """Return the location of a store from its URL or path; aliases are not resolved.

    Raises:
        BadData: the file has a format that memctl recognizes and does not read.
        NotFound: the path stands for the newest file of a rotation, which has no file.
        UsageError: the text has no known form, or a name in the path is too long.
    """
    if not text:
        raise UsageError(
            "the name of a store is empty", "check for an unset variable; write . for this folder"
        )
    if text == "-":
        return Location("stdio", "-")
    if "\0" in unquote(text):
        raise UsageError("the name of a store contains a NUL", "no file or server has such a name")
    found = _parse(text)
    try:
        os.lstat(found.path)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:  # later calls would hide this error
            raise translated(error, found.path, "read") from error
    return found


def _parse(text: str) -> Location:
    if is_object(text):
        return _parse_object(text)
    prefix, colon, rest = text.partition(":")
    if colon and prefix.lower() in _BY_PREFIX and not rest.startswith("//"):
        return _parse_prefixed(prefix.lower(), text, rest)
    if "://" in text or text.startswith("unix:"):
        return _parse_url(text)
    return _parse_path(text)


def _parse_prefixed(prefix: str, text: str, rest: str) -> Location:
    """Return the location of a path after a prefix, as in ``vault:FOLDER``.

    ``text`` is the whole text, ``rest`` the part after the prefix.
    """
    name, mark, query = rest.rpartition("?")
    if not mark or os.path.lexists(rest):
        name, query = rest, ""
    kind = _BY_PREFIX[prefix]
    if not name and kind not in AGENTS:
        raise UsageError(f"{visible(text)} names no path", f"write {prefix}:PATH")
    path = Path(name).expanduser() if name else AGENTS[kind].folder
    options = dict(parse_qsl(query, keep_blank_values=True))
    if kind == "sessions" and path.is_file():
        kind = "state"
    if kind in ("sessions", "state"):  # AgentScope 1.x, whatever the folder holds
        return Location(kind, visible(text), "", path, options | {"layout": "memory"})
    layouts = _LAYOUTS.get(kind)
    if layouts is not None:
        # Record the layout: the content may change, and an undo must find the same store.
        layout = options["layout"] = options.get("layout") or layout_of(path)
        if layout not in layouts:
            raise UsageError(f"layout={visible(layout)} is unknown", f"known: {', '.join(layouts)}")
        kind = layouts[layout]
    known = _BY_KIND[kind].options
    if unknown := sorted(options.keys() - known):
        hint = f"known: {', '.join(sorted(known))}" if known else "it takes none"
        raise UsageError(f"{kind} takes no option {visible(unknown[0])!r}", hint)
    return Location(kind, visible(text), "", path, options, f"{prefix}:")


def _parse_object(text: str) -> Location:
    """Return the location of an archive in object storage; see ``chosen`` for a rotation.

    Raises:
        UsageError: the URL is not valid, or does not name an archive.
    """
    address = parse_address(text)
    name, _ = split_choice(address.name)
    if not name.lower().endswith(_BY_KIND["archive"].suffixes):
        raise UsageError(
            f"{address.label} is not the name of an archive",
            "in object storage, a store is an archive: .ndjson .ndjson.gz .ndjson.zst, with .age "
            "if encrypted",
        )
    return Location("archive", address.label, text)


def _parse_path(text: str) -> Location:
    if chosen := chosen_path(text):
        text = str(chosen)
    path = Path(text).expanduser()
    before, mark, _ = text.partition("?")
    if mark and before.lower().endswith(SUFFIXES) and not os.path.exists(path):
        raise UsageError(f"{text!r} is a path; options need a URL", f"write sqlite:///{text}")
    kind = _kind_of_file(path)
    if kind is None and os.path.isfile(path):
        from memctl.layouts import foreign  # only for errors

        if found := foreign.of_file(path):
            raise found.refusal(visible(text))
        if path.suffix.lower() in (".md", ".html", ".htm", ".parquet", ".csv"):
            raise UsageError(
                f"{visible(text)} is not a store: memctl writes HTML, Markdown, Parquet and CSV, "
                "but does not read them",
                "export an archive, which memctl reads: memctl export STORE -o FILE.ndjson",
            )
        if path.suffix.lower() == ".zip":
            raise UsageError(
                f"{visible(text)} is a ZIP file, not a store",
                "unpack it: a ZIP file of memctl export has an archive of each store, NAME.ndjson",
            )
        raise UsageError(
            f"{visible(text)} is neither a SQLite database, a JSON state nor a memctl archive",
            EXTENSIONS,
        )
    return Location(kind or "sessions", text, path=path)


def _kind_of_file(path: Path) -> str | None:
    """Return the kind of store in a file by content, then by extension, or None."""
    name, extension = path.name.lower(), path.suffix[1:].lower()
    named = next((spec.kind for spec in BUILT_IN if name.endswith(spec.suffixes)), None)
    if named is None and extension in plugins.names(plugins.STORES):
        return extension
    found = recognise(path)
    if found is None or (found[0] == "state" and named in ("archive", "openai")):
        return named  # a damaged archive and a conversation may begin like a state
    return found[0]


def refuse_unknown_extension(location: Location) -> None:
    """Refuse to create a folder whose name looks like the name of a file.

    Raises:
        UsageError: the path does not exist, and has an extension.
    """
    path = location.path
    named_as_folder = location.label.endswith(("/", os.sep))
    if location.kind == "sessions" and path.suffix and not (named_as_folder or path.exists()):
        raise UsageError(f"unrecognised file extension: {location.label}", EXTENSIONS)


def _parse_url(text: str) -> Location:
    parts = _split(text)
    scheme = parts.scheme.lower()
    kind = _BY_SCHEME.get(scheme) or _BY_SCHEME.get(scheme.split("+")[0])
    if kind is None and scheme in plugins.names(plugins.STORES):
        kind = scheme
    if kind is None:
        raise UsageError(
            f"unknown kind of store: {visible(scheme)}://",
            "known: sqlite, postgresql, mysql, redis, rediss, unix, s3, gs, az; "
            "see 'memctl stores'",
        )
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    options = {name: value for name, value in pairs if name in URL_OPTIONS}
    others = [pair for pair in pairs if pair[0] not in URL_OPTIONS]
    url = join_url(parts._replace(query=urlencode(others, quote_via=quote)))
    layouts = _LAYOUTS.get(kind, {})
    if options.get("layout", "memory") not in (layouts or ["memory"]):
        layouts = _layouts_on(kind)
    if options.get("layout", "memory") not in (layouts or ["memory"]):
        raise UsageError(
            f"layout={visible(options['layout'])} is unknown",
            f"known: {', '.join(layouts)}" if layouts else "it is for SQL and Redis",
        )
    named = layouts.get(options.get("layout", "memory"), kind)
    _refuse_other_options(kind, named, options)
    if "columns" in options:  # the label does not show the mapping
        text = re.sub(r"([?&])columns=[^&]*&?", r"\1", text).rstrip("?&")
    if kind == "sqlite":
        return _sqlite(named, text, parts, url, options, others)
    return Location(named, redact(text), url, Path(), options)


def _refuse_other_options(kind: str, named: str, options: Mapping[str, str]) -> None:
    """Refuse options that belong to another layout than the layout in a URL.

    ``kind`` is the kind of the scheme, ``named`` the kind with the layout.  A URL without a layout
    may have options of any layout that memctl can detect.

    Raises:
        UsageError: the layout does not know an option.
    """
    layouts = _LAYOUTS.get(kind, {})
    known = spec_of(named).options
    if "layout" not in options:
        known = known.union(*(spec_of(one).options for one in layouts.values()))
        known -= _OF_NAMED_LAYOUTS if kind in SQL_KINDS else set()
    for name in sorted(options.keys() - known):
        having = [layout for layout, one in layouts.items() if name in spec_of(one).options]
        if "layout" in options:
            text = f"layout={options['layout']} has no option {name}="
        else:
            text = (
                f"the option {name}= needs a layout" if having else f"no option {name}= of {kind}"
            )
        raise UsageError(
            text,
            f"write layout={' or '.join(having)} with it" if having else "leave it out",
        )


def _split(text: str) -> SplitResult:
    """Return the parts of a URL.

    Raises:
        UsageError: the URL is not valid.  The error quotes only the scheme, because the text after
            the scheme may be a password.
    """
    scheme = visible(text.partition(":")[0])
    hint = "in user and password write %2F for /, %3F for ?, %23 for #, %40 for @"
    try:
        parts = urlsplit(text)
        if "," not in parts.netloc:  # PostgreSQL takes several hosts
            _ = parts.port
    except ValueError:
        raise UsageError(
            f"what follows {scheme}:// is not a valid address",
            f"a port is a number up to 65535; {hint}",
        ) from None
    if parts.fragment or text.endswith("#"):
        raise UsageError(f"what follows {scheme}:// contains a '#'", hint)
    loose = [pair for pair in parts.query.split("&") if "=" not in pair]
    if any("@" in text for text in (parts.path if parts.netloc else "", *loose)):
        raise UsageError(f"what follows {scheme}:// contains an '@' in the wrong place", hint)
    return parts


def _sqlite(
    kind: str,
    text: str,
    parts: SplitResult,
    url: str,
    options: dict[str, str],
    others: list[tuple[str, str]],
) -> Location:
    """Return the location of a SQLite URL, in the form of SQLAlchemy.

    A relative path has three slashes before it, an absolute path four.  ``options`` are the options
    of memctl; ``others`` are all other options, and are refused.
    """
    if parts.netloc:
        raise UsageError(
            f"{redact(text)} names a host; SQLite has none",
            "write sqlite:///relative/path.db or sqlite:////absolute/path.db",
        )
    if others:
        raise UsageError(
            f"SQLite takes no option {visible(others[0][0])!r}",
            "known: layout, agent, state, state_path, table, columns, dialect, content_encoding, "
            "live, owner, app, namespace, summary",
        )
    path = Path(unquote(parts.path.removeprefix("/"))).expanduser()
    return Location(kind, redact(text), url, path, options)
