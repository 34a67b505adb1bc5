"""The conversations in LangGraph's checkpoints, read-only.

A checkpoint is the state of a graph after a step.  The messages of a thread are the value of the
channel ``messages`` in the latest checkpoint.  The rest of the state belongs to the graph: only the
graph can write a checkpoint from which a run can continue.

Sources: ``checkpoint/sqlite/__init__.py`` of langgraph-checkpoint-sqlite 3.1.2 (a checkpoint is a
single value) and ``checkpoint/postgres/base.py`` of langgraph-checkpoint-postgres 3.2.0 (each
channel is a row).
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from copy import copy
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, NoReturn

from msgspec import structs

from memctl.dialects.agentscope import CONTENT
from memctl.dialects.langchain import LANGCHAIN
from memctl.engines.sql.database import Contended, RejectedValue, damage, is_text
from memctl.engines.sql.renaming import Named, Renaming
from memctl.engines.sql.store import SqlStore
from memctl.engines.sql.syntax import EVERY
from memctl.errors import Uninitialised, UsageError
from memctl.json import jsonio
from memctl.layouts.sql import has_checkpoints
from memctl.location import Location, visible
from memctl.model import Finding, Memory, MemoryKey, Page, StoredMessage, WriteResult
from memctl.selection import Selection
from memctl.store import Deletion, Features, OpenMode
from memctl.storekit.batching import paginate
from memctl.storekit.read_only import ReadOnlyStore
from memctl.stores.langgraph.checkpoints import (
    TASKS,
    Undecodable,
    content_of,
    has_next_task,
    messages_of,
    text_of,
    value_of,
)
from memctl.stores.langgraph.pruning import DELTAS
from memctl.stores.langgraph.rows import (
    LangGraphCheckpoints,
    PostgresqlCheckpoints,
    SqliteCheckpoints,
)
from memctl.text.numbers import count

CHANNEL = "messages"
"""The channel of the messages in ``MessagesState`` and in agents."""
_NAMED = 3


class Latest(NamedTuple):
    """The columns read from the latest checkpoint of a thread.

    ``kind`` and ``data`` are type and value, ``writes`` is the number of pending writes of tasks.
    On PostgreSQL, the value is that of the channel; ``checkpoint`` is the JSON text of the
    checkpoint, and ``others`` names the channels with a value.
    """

    kind: Any
    data: Any
    metadata: Any
    writes: int
    checkpoint: Any = None
    others: Sequence[str] = ()


class State(NamedTuple):
    """The state of a thread: the value of the channel ``messages``, and what is beside it.

    ``messages`` is None without such a channel.  ``others`` names other channels with a value.
    ``goes_on`` is True if a node is to run next.  ``plain`` has the texts and numbers in channels.
    """

    messages: Any
    others: Sequence[str]
    goes_on: bool
    plain: Mapping[str, Any]


class LangGraphStore(ReadOnlyStore, SqlStore):
    """The threads in the tables of a LangGraph checkpointer; each database has a subclass.

    A thread is a session without a user.  The checkpoints of a subgraph have a namespace; they are
    left out, unless ``?namespace=`` names this namespace.
    """

    features = Features(
        marks=frozenset(),
        duplicate_ids=True,
        session_owners=True,
        waits=True,
        renames=frozenset({"session"}),
        selects_texts=True,
    )
    dialect = LANGCHAIN

    def __init__(self, location: Location, mode: OpenMode = OpenMode.READ) -> None:
        super().__init__(location, mode)
        self._namespace = location.options.get("namespace", "")
        self._summary = location.options.get("summary", "")
        """The channel with the summary of the messages; empty if the user names none."""
        if self._summary:
            self.features = structs.replace(self.features, summaries=True)
            self.dialect = copy(LANGCHAIN)
            self.dialect.holds_summary = True
        self._takes_threads = False
        """True if an operation takes whole threads, with subgraphs and all channels."""
        self._warns_of_subgraphs = not self._namespace
        """True until a warning says that subgraphs are left out."""

    # Specific to a database

    checkpoints_class: ClassVar[type[LangGraphCheckpoints]]
    latest_sql: ClassVar[str]
    """Selects the fields of ``Latest`` by ``:thread``, ``:namespace`` and ``:id``."""

    @abstractmethod
    def state(self, latest: Latest) -> State:
        """Return the state in a checkpoint.

        Raises:
            Undecodable: memctl cannot read the checkpoint or the value.
        """

    # The place

    async def open(self, mode: OpenMode) -> None:
        if mode not in (OpenMode.READ, OpenMode.CHANGE):
            self.refuse_changes()
        await super().open(mode)

    async def prepare(self) -> None:
        if not await self.database.look(has_checkpoints):
            raise Uninitialised(
                f"{self.label} holds no checkpoints of LangGraph: it lacks the table 'checkpoints'"
                ", or columns of it",
                "check the database; a checkpointer makes its tables by setup()",
            )

    async def _warn_of_subgraphs(self) -> None:
        """Warn, once, that a reader of threads gets nothing of their subgraphs."""
        if self._takes_threads or not self._warns_of_subgraphs:
            return
        self._warns_of_subgraphs = False
        sql = (
            "SELECT COUNT(*), COALESCE(MIN(CASE WHEN checkpoint_ns NOT LIKE '%:%' "
            "THEN checkpoint_ns END), MIN(checkpoint_ns)) FROM (SELECT DISTINCT checkpoint_ns "
            "FROM checkpoints WHERE checkpoint_ns <> '') AS found"
        )  # ":" precedes the id of a run; a subgraph with a lasting state has no such id
        async with self.database.snapshot() as connection:
            [[number, first]] = await self.database.fetch_all(connection, sql, {})
        if number:
            self.warnings.append(
                f"checkpoints of subgraphs in {self.label} are left out: {number:,} namespaces, "
                f"such as {visible(str(first))!r}; ?namespace= reads one"
            )

    async def identity(self) -> str:
        return f"{await self.database.identity()}#checkpoints/{self._namespace}"

    # Reading

    async def list_keys(self, where: Selection) -> AsyncGenerator[MemoryKey]:
        await self._warn_of_subgraphs()
        sql = "SELECT DISTINCT thread_id FROM checkpoints WHERE checkpoint_ns = :namespace"
        async with self.database.snapshot() as connection:
            values = {"namespace": self._namespace}
            threads = await self.database.fetch_all(connection, sql, values)
        for key in sorted(MemoryKey("", str(thread)) for (thread,) in threads):
            if where.has_key(key):
                yield key

    def read(self, where: Selection) -> AsyncGenerator[Page]:
        return where.apply(self._pages(where), self.dialect)

    async def _pages(self, where: Selection) -> AsyncGenerator[Page]:
        await self._warn_of_subgraphs()
        sql = (
            "SELECT thread_id, MAX(checkpoint_id) FROM checkpoints "
            "WHERE checkpoint_ns = :namespace GROUP BY thread_id ORDER BY thread_id"
        )
        bare: list[str] = []
        others: Counter[str] = Counter()
        async with self.database.snapshot() as connection:
            values = {"namespace": self._namespace}
            for thread, id in await self.database.fetch_all(connection, sql, values):
                key = MemoryKey("", str(thread))
                if not where.has_key(key) or key in self.left_out.failures:
                    continue
                if not (isinstance(thread, str) and is_text(thread) and isinstance(id, str)):
                    why = "its name or the id of its checkpoint is not a text in UTF-8"
                    self.left_out.failures[key] = damage(why)
                    continue
                asked = {**values, "thread": thread, "id": id}
                rows = await self.database.fetch_all(connection, self.latest_sql, asked)
                if not rows:  # the thread was deleted meanwhile
                    continue
                found, memory = self._found(key, Latest(*rows[0]), others)
                del rows  # do not hold a large thread twice
                if found is None:
                    bare.append(key.session)
                    continue
                for page in paginate(memory, self._entries(key, found), empty=False):
                    self.left_out.others = True
                    yield page
        if bare and where.keys is None:
            self._warn(
                f"threads of {self.label} whose state has no list of {CHANNEL} are left out: "
                f"{len(bare):,}, such as {visible(bare[0])!r}"
            )
        if others and not self._takes_threads and where.keys is None:
            named = [f"{visible(name)!r} of {count(n, 'thread')}" for name, n in others.items()]
            more = f" and {len(named) - _NAMED:,} more" if len(named) > _NAMED else ""
            self._warn(
                f"channels of {self.label} besides {CHANNEL} are left out, as only the graph "
                f"understands them: {', '.join(sorted(named)[:_NAMED])}{more}"
            )

    def _warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)

    def _found(
        self, key: MemoryKey, latest: Latest, others: Counter[str]
    ) -> tuple[list[Any] | None, Memory]:
        """Return the messages in a checkpoint, and the memory; count other channels in ``others``.

        The messages are not yet decoded; None if they are not a list.  If the checkpoint cannot be
        read, notes the damage of the memory ``key``, and returns an empty list.
        """
        memory = Memory(key)
        try:
            state = self.state(latest)
            found = messages_of(state.messages)
            memory = replace(memory, waits=latest.writes > 0 or state.goes_on)
            if self._summary:
                said = state.plain.get(self._summary)
                if said is None and self._summary in state.others:
                    raise Undecodable(f"its channel {visible(self._summary)!r} holds no text")
                memory = replace(memory, summary=said if isinstance(said, str) else "")
        except Undecodable as error:
            self._note_damage(key, str(error))
            return [], memory
        names = (name for name in state.others if name != self._summary)
        others.update(name for name in names if not _is_internal(name))
        return found, memory

    def _entries(self, key: MemoryKey, found: list[Any]) -> list[StoredMessage]:
        """Decode the messages ``found`` of the memory ``key``, and empty ``found`` to save memory.

        Notes the damage of messages that cannot be read.  Then returns the readable messages if the
        store skips damage, else an empty list.
        """
        entries = []
        found.reverse()
        for number in range(1, len(found) + 1):
            try:
                entries.append(_entry(found.pop()))
            except Undecodable as error:
                self._note_damage(key, f"message {number:,}: {error}")
                if not self.skips_damage:
                    return []
        return entries

    def _note_damage(self, key: MemoryKey, reason: str) -> None:
        if self.skips_damage:
            self.damage.append(Finding("unreadable-checkpoint", key, 1, (), reason))
        else:
            self.left_out.failures[key] = damage(reason)

    # Whole threads

    @property
    def checkpoints(self) -> LangGraphCheckpoints:
        """The rows of the checkpointer."""
        return self.checkpoints_class(self.database)

    def prunable(self) -> LangGraphCheckpoints:
        return self.checkpoints

    def refuse_erase(self) -> None:
        self._takes_threads = True
        if self._namespace:
            raise UsageError(
                f"an erase removes all namespaces of a thread: {self.label}",
                "leave ?namespace= out",
            )

    async def names(self, where: Selection) -> AsyncGenerator[MemoryKey]:
        for thread in await self.checkpoints.threads():
            if where.has_key(key := MemoryKey("", thread)):
                yield key

    @property
    def changed_tables(self) -> Sequence[str]:
        return tuple(table.name for table in self.checkpoints_class.tables)

    async def side_effects(
        self,
        where: Selection,  # noqa: ARG002 - a trigger concerns all rows
        deletion: Deletion,  # noqa: ARG002
    ) -> list[str]:
        rows = {table.name: EVERY for table in self.checkpoints_class.tables}
        return await self.database.side_effects(rows, own=rows)

    async def erase(self, where: Selection) -> AsyncGenerator[WriteResult]:
        checkpoints = self.checkpoints
        async with aclosing(self.names(where)) as keys:
            found = [key async for key in keys]
        for key in found:
            messages = 0
            async with aclosing(self.read(Selection(keys=frozenset({key})))) as pages:
                async for page in pages:
                    messages += len(page.messages)
            try:
                await checkpoints.erase(key.session)
            except (Contended, RejectedValue) as error:
                yield WriteResult(key, failure=error.failure)
            else:
                yield WriteResult(key, deleted=messages)

    # Changing

    def refuse_changes(self) -> NoReturn:
        raise UsageError(
            f"messages in the checkpoints of LangGraph are only read: {self.label}",
            "change a thread by its graph (update_state), remove it with memctl erase --session, "
            "or prune old checkpoints with memctl retain",
        )

    @property
    def named(self) -> Sequence[Named]:
        return [Named(table.name, "thread_id") for table in self.checkpoints_class.tables]

    async def rename(self, moves: Mapping[MemoryKey, MemoryKey]) -> AsyncGenerator[WriteResult]:
        """Rename threads, with the checkpoints of all their namespaces."""
        renaming = Renaming(self.database, {one.table for one in self.named})
        await renaming.find()
        async with self.database.connect() as connection, self.database.erasing(connection):
            for old, new in moves.items():
                await renaming.rename_names(connection, self.named, old[:2], new[:2], by_user=False)
        for key in moves:
            yield WriteResult(key)


def _is_internal(channel: str) -> bool:
    """Return whether a channel is one of LangGraph's own, or that of the messages.

    Source: ``_internal/_constants.py`` and ``graph/state.py`` of langgraph 1.2.24.
    """
    return channel == CHANNEL or (
        channel.startswith(("__", "branch:", "join:", "start:")) and channel != "__previous__"
    )


def _entry(message: Any) -> StoredMessage:
    value = {CONTENT: content_of(message)}
    text = text_of(value)
    try:
        return StoredMessage(LANGCHAIN.message_id(value), text)
    except ValueError as error:  # the id depends on the content
        raise Undecodable(f"it is damaged: {error}") from error


def _refuse_deltas(metadata: Any) -> None:
    """Refuse a checkpoint whose messages are spread over earlier checkpoints, as deltas.

    Raises:
        Undecodable: the metadata of the checkpoint names ``messages`` as a channel of deltas.
    """
    text = jsonio.encoded(metadata)
    try:
        found = jsonio.loads(text or b"{}")
    except ValueError:  # unreadable metadata name no channel
        return
    deltas = found.get(DELTAS) if isinstance(found, dict) else None
    if isinstance(deltas, dict) and CHANNEL in deltas:
        raise Undecodable("its messages are a DeltaChannel, which only its graph puts together")


_PENDING = (
    "SELECT COUNT(*) FROM {} w WHERE w.thread_id = c.thread_id "
    "AND w.checkpoint_ns = c.checkpoint_ns AND w.checkpoint_id = c.checkpoint_id"
)
"""Counts the pending writes of a checkpoint; they belong to a step that has not ended."""


class SqliteLangGraphStore(LangGraphStore):
    """The checkpoints of ``SqliteSaver`` and ``AsyncSqliteSaver``."""

    checkpoints_class = SqliteCheckpoints
    latest_sql = (
        f"SELECT type, checkpoint, metadata, ({_PENDING.format('writes')}) FROM checkpoints c "
        "WHERE thread_id = :thread AND checkpoint_ns = :namespace AND checkpoint_id = :id"
    )

    def state(self, latest: Latest) -> State:
        checkpoint = value_of(latest.kind, latest.data)
        values = checkpoint.get("channel_values") if isinstance(checkpoint, dict) else None
        if not isinstance(values, dict):
            raise Undecodable("its checkpoint holds no values of channels")
        if CHANNEL not in values:
            _refuse_deltas(latest.metadata)
        # Earlier versions of LangGraph give a node's channel the name of the node as its value.
        others = [name for name, one in values.items() if one not in (None, "", [], {}, name)]
        plain = {name: one for name, one in values.items() if isinstance(one, str)}
        return State(values.get(CHANNEL), list(map(str, others)), has_next_task(checkpoint), plain)


class PostgresqlLangGraphStore(LangGraphStore):
    """The checkpoints of ``PostgresSaver`` and ``AsyncPostgresSaver``."""

    checkpoints_class = PostgresqlCheckpoints
    latest_sql = (
        "SELECT b.type, b.blob, CAST(c.metadata AS TEXT), "
        f"({_PENDING.format('checkpoint_writes')}), CAST(c.checkpoint AS TEXT), "
        # Plain values are in the checkpoint, others have a row; a node's channel may name the node.
        "ARRAY(SELECT v.key FROM jsonb_each_text(CASE jsonb_typeof(c.checkpoint -> "
        "'channel_values') WHEN 'object' THEN c.checkpoint -> 'channel_values' ELSE '{}' END) v "
        "WHERE v.value <> '' AND v.value <> v.key "
        "UNION SELECT o.channel FROM checkpoint_blobs o WHERE o.thread_id = c.thread_id "
        "AND o.checkpoint_ns = c.checkpoint_ns AND o.type NOT IN ('empty', 'null') "
        "AND o.version = c.checkpoint -> 'channel_versions' ->> o.channel) "
        "FROM checkpoints c "
        "LEFT JOIN checkpoint_blobs b ON b.thread_id = c.thread_id "
        "AND b.checkpoint_ns = c.checkpoint_ns AND b.channel = 'messages' "
        "AND b.version = c.checkpoint -> 'channel_versions' ->> 'messages' "
        "WHERE c.thread_id = :thread AND c.checkpoint_ns = :namespace AND c.checkpoint_id = :id"
    )

    def state(self, latest: Latest) -> State:
        checkpoint = value_of("json", latest.checkpoint)
        goes_on = TASKS in latest.others or has_next_task(checkpoint)
        values = checkpoint.get("channel_values") if isinstance(checkpoint, dict) else None
        plain = values if isinstance(values, dict) else {}
        if latest.kind is None:  # a channel with a plain value has no row
            _refuse_deltas(latest.metadata)
            return State(None, latest.others, goes_on, plain)
        return State(value_of(latest.kind, latest.data), latest.others, goes_on, plain)
