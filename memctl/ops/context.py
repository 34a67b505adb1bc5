"""The context of an agent: the messages of a memory that the agent sends to its model.

The context is built like AgentScope's ``get_memory`` (``memory/_working_memory`` of 1.0.21): the
summary as a message of the user, then the messages.  An agent with compression asks for the
messages without the mark ``compressed``, an agent without compression for all messages
(``agent/_react_agent.py``).  AgentScope 2.x sends the context in the state of the session, which
may differ from the log of messages.  What other frameworks send is in ``memctl.dialects``, in the
module of each.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace

from msgspec import Struct

from memctl.dialects.live import sent, without_lone
from memctl.dialects.view import Dialect
from memctl.errors import NotFound, UsageError
from memctl.model import MemoryInfo, MemoryKey, StoredMessage
from memctl.ops.compress.plan import message_tokens
from memctl.ops.compress.transcript import transcribe
from memctl.ops.doctor.check import examine
from memctl.ops.names import refuse_absent_in
from memctl.ops.select import select_with_places
from memctl.selection import Selection
from memctl.store import Store, refuse_facts

SHARED_KINDS = frozenset({"sqlite", "postgresql", "mysql"})
"""Kinds of stores in which AgentScope ignores the user of a session (``_sqlalchemy_memory.py``)."""

_NAMED = 3
"""The number of memories that an error names if several are selected."""


class ContextMessage(Struct, frozen=True):
    """A message of the context that an agent sends to its model.

    ``tokens`` is the number of tokens, counted as ``compress`` does.  ``fault`` says why AgentScope
    cannot load the message, and is empty for a good message; a message with a fault has no tokens.
    ``summary`` is True if the message is the summary of compressed messages.  ``number`` is the
    position in the memory, from 1; 0 for a summary, and for a message that only the state of the
    session has.  ``unread`` is the reason why the framework does not send the message; empty for a
    message that it sends.
    """

    entry: StoredMessage
    tokens: int
    fault: str = ""
    summary: bool = False
    number: int = 0
    unread: str = ""


async def find_memory(store: Store, where: Selection) -> MemoryInfo:
    """Return the counts of the selected memory; exactly one memory must be selected.

    Raises:
        NotFound: no memory is selected.
        UsageError: several memories are selected, or the store holds facts.
        MemctlError: as ``Store.list_memories``.
    """
    refuse_facts(store, "context")
    if store.features.ambiguous_names and where.users and where.sessions:
        pairs = [(user, session) for user in where.users for session in where.sessions]
        store.resolve_names([MemoryKey(*pair) for pair in pairs])
    found: list[MemoryInfo] = []
    async with aclosing(store.list_memories(where)) as infos:
        async for info in infos:
            found.append(info)
            if len(found) > _NAMED:
                break
    if not found:
        await refuse_absent_in(where, 0, store)
        raise NotFound(f"{store.label} has no memory", "name another store, or check its URL")
    if len(found) > 1:
        names = [str(info.key) for info in found[:_NAMED]] + ["more"] * (len(found) > _NAMED)
        raise UsageError(
            f"several memories are selected: {', '.join(names)}",
            "choose one with --user and --session, and --path where a session has several",
        )
    return found[0]


async def sharing_users(store: Store, key: MemoryKey) -> list[str]:
    """Return the other users of the session of a memory, whose messages the agent reads, too.

    Empty if AgentScope keeps the users of a session apart in this kind of store.

    Raises:
        MemctlError: as ``Store.headers``.
    """
    if store.kind not in SHARED_KINDS:
        return []
    async with aclosing(store.headers(Selection(sessions=frozenset({key.session})))) as memories:
        return [memory.key.user async for memory in memories if memory.key.user != key.user]


def matches_calls(dialect: Dialect) -> bool:
    """Return whether the framework leaves out calls without results, and replaced messages."""
    return dialect.last_result_counts or dialect.holds_items


def selects(dialect: Dialect) -> bool:
    """Return whether the whole memory decides what the framework sends, and in which order."""
    return matches_calls(dialect) or dialect.has_own_order


async def read_context(
    store: Store, key: MemoryKey, count: Callable[[str], int], *, everything: bool
) -> AsyncGenerator[ContextMessage]:
    """Yield the messages of a memory that an agent sends to its model, with the summary first.

    ``count`` counts the tokens of a text.  ``everything`` yields the compressed messages, too, as
    if the agent did not use compression.

    Raises:
        MemctlError: as ``Store.read``.
    """
    where = Selection(keys=frozenset({key}))
    listed: list[str | bytes] | None = None
    async with aclosing(store.headers(where)) as memories:
        async for memory in memories:
            if memory.summary:
                yield _summary(memory.summary, count, store.dialect)
            listed = None if everything else store.dialect.context(memory.extra)
    if listed is not None:
        async for entry, number in _listed(store, key, listed):
            yield _part(entry, number, count, store.dialect)
        return
    dialect = store.dialect
    if selects(dialect) and not everything:
        async for entry, number in _sent(store, where):
            yield _part(entry, number, count, dialect)
        return
    if not everything:
        where = replace(where, live=True)
    async with aclosing(select_with_places(store, where)) as pages:
        async for page in pages:
            for entry, place in zip(page.messages, page.places, strict=True):
                unread = page.unread.get(place, "")
                yield _part(entry, place + 1, count, store.dialect, unread)


async def _sent(store: Store, where: Selection) -> AsyncGenerator[tuple[StoredMessage, int]]:
    """Yield what a framework sends of a memory, each message with its number."""
    dialect, entries = store.dialect, list[StoredMessage]()
    async with aclosing(store.read(where)) as pages:
        async for page in pages:
            memory = page.memory
            entries += page.messages
    if not dialect.last_result_counts:
        views = [dialect.live_view(entry.message) for entry in entries]
        order = dialect.live(views).order
        for at, of in dialect.asked([views[place] for place in order]).items():
            yield entries[order[of]], order[at] + 1
        return
    views = [dialect.parse(entry.message) for entry in entries]
    found = sent(dialect, memory, views, dialect.live(views))
    for at, one in without_lone(found).items():
        yield entries[at]._replace(message=dialect.sent_text(one.view, one.blocks)), at + 1


async def _listed(
    store: Store, key: MemoryKey, listed: list[str | bytes]
) -> AsyncGenerator[tuple[StoredMessage, int]]:
    """Yield the messages that the state of a session lists, with their numbers.

    ``listed`` has the id of each message, or its text if the log does not have it.
    """
    ids = frozenset(one for one in listed if isinstance(one, str))
    there: dict[str, tuple[StoredMessage, int]] = {}
    if ids:
        where = Selection(keys=frozenset({key}), ids=ids)
        async with aclosing(select_with_places(store, where)) as pages:
            async for page in pages:
                for entry, place in zip(page.messages, page.places, strict=True):
                    there[entry.id] = entry, place + 1
    for one in listed:
        if isinstance(one, bytes):
            yield StoredMessage(store.dialect.outline(one).id or "", one), 0
        elif one in there:
            yield there[one]


def _summary(text: str, count: Callable[[str], int], dialect: Dialect) -> ContextMessage:
    message = dialect.summary_message(text)
    return ContextMessage(StoredMessage("", message), count(text), summary=True)


def _part(
    entry: StoredMessage,
    number: int,
    count: Callable[[str], int],
    dialect: Dialect,
    unread: str = "",
) -> ContextMessage:
    fault = examine(entry.message, dialect).fault
    if fault:
        return ContextMessage(entry, 0, fault, number=number, unread=unread)
    tokens = message_tokens(transcribe(entry.message, dialect), count)
    return ContextMessage(entry, tokens, number=number, unread=unread)
