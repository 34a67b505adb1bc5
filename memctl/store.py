"""The contract between the operations and the stores.

A store is a layout of memory in a place.  Operations know stores only by this contract.  Every
store passes the same conformance suite (``memctl.testing``).
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, contextmanager
from dataclasses import replace
from enum import Enum, StrEnum, auto
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from msgspec import Struct, field

from memctl.dialects.agentscope1 import AGENTSCOPE1
from memctl.dialects.view import Dialect
from memctl.errors import BadData, Failure, UsageError
from memctl.location import Location, same_file
from memctl.machine.concurrency import in_thread
from memctl.model import (
    Change,
    Edit,
    Embedding,
    Finding,
    Memory,
    MemoryInfo,
    MemoryKey,
    Page,
    ServiceHit,
    StoredMessage,
    WriteMode,
    WriteResult,
)
from memctl.selection import EVERYTHING, Selection
from memctl.shard import Shard
from memctl.storekit.catalog import catalog, window
from memctl.storekit.edits import Snapshot, apply_edit, whole_edits
from memctl.storekit.locks import FileLock, stand_in
from memctl.storekit.texts import Rewriter, TextResult

if TYPE_CHECKING:
    from memctl.storekit.projects import FoundProject, ProjectMove
    from memctl.storekit.prunable import Prunable

EDIT_ATTEMPTS = 5
"""How often the default ``Store.edit`` tries to edit a memory that other programs change."""

NAME_STAYS = Failure("refused", "the store keeps the name of a memory that is empty")
"""The failure of ``Store.erase`` if the name of a memory cannot be removed."""

NO_VERSION = Failure("refused", "the store does not say which version of it is stored")
"""The failure of the default ``Store.edit`` if an existing memory has no version."""

WRITTEN_ONCE = Failure("refused", "the store is written once: memories are added, and none changes")
"""The failure of a change of an existing memory in a store with ``Features.added_only``."""

Record = dict[str, Any]
"""What ``Maintenance.revert`` needs to undo a part of a repair: a JSON object with a ``code``."""
Note = Callable[[Record], Awaitable[None]]
Foreseeing = Callable[[list[WriteResult]], None]
"""Records results that are about to become durable; see ``Store.foreseen``."""
Matches = Callable[[Sequence[bytes]], Iterable[int]]
"""A function of the JSON texts of messages: returns the indexes of the texts that match."""


class DamagedMemory(BadData):
    """The error that a memory is damaged, found after some of its pages were read.

    The store adds the memory to ``Store.left_out``.  The next ``read`` skips the memory.
    """

    def __init__(self, label: str, key: MemoryKey, failure: Failure) -> None:
        super().__init__(
            f"{label}: {key} is damaged: {failure.message}",
            "run memctl doctor to list the damage, and what --repair can do about it",
        )


class DamagedFile(BadData):
    """The error that a file is damaged below its rows: a read may miss rows, without any error.

    ``found`` has the lines of the database about the damage.
    """

    def __init__(self, label: str, found: Sequence[str], hint: str) -> None:
        more = f" (and {len(found) - 1:,} more)" if len(found) > 1 else ""
        super().__init__(f"{label} is damaged below its rows: {found[0]}{more}", hint)
        self.found = found


def refuse_facts(store: Store, what: str) -> None:
    """Refuse an operation on a store of facts, which lacks something that the operation needs.

    ``what`` names the missing thing in the error, such as ``marks``.

    Raises:
        UsageError: the store holds facts.
    """
    if store.dialect.facts:
        raise UsageError(
            f"{store.label} holds facts, which have no {what}",
            "inspect, export, migrate, verify, delete and undo work on facts",
        )


def searched_text(store: Store, query: str, where: Selection) -> str:
    """Return the query for the search service of a store, without surrounding spaces.

    Raises:
        UsageError: the query is empty; or the selection has ``last`` or ``spare``, which a search
            service cannot apply.
    """
    if where.last is not None or where.spare is not None:
        raise UsageError(
            f"{store.label}: its service finds messages one by one, and cannot count the newest",
            "leave out the number of newest messages, or search with --by words",
        )
    from memctl.inference.text import encodable  # only needed to search

    text = encodable(query).strip()
    if not text:
        raise UsageError("the query is empty", "name some words to search for")
    return text


class OpenMode(StrEnum):
    """The modes in which a store is opened."""

    READ = "read"
    """Write nothing; the place must exist."""
    CHANGE = "change"
    """Change existing data; the place must exist."""
    RESTORE = "restore"
    """Restore data, even a store that was removed as a whole; the place must exist."""
    CREATE = "create"
    """Create missing data and change existing data: the mode of a target."""

    @property
    def creates(self) -> bool:
        """True if a store opened in this mode creates missing data."""
        return self is OpenMode.CREATE

    @property
    def writes(self) -> bool:
        """True if a store opened in this mode may write."""
        return self is not OpenMode.READ


class Deletion(Enum):
    """The data that a run deletes from a store."""

    MESSAGES = auto()
    """Messages of memories that stay, perhaps empty."""
    MARKS = auto()
    """Marks of messages that stay."""
    MEMORIES = auto()
    """Whole memories, with the rows of their sessions and users."""
    REPAIRS = auto()
    """Data that the store itself removes to repair faults."""


class Features(Struct, frozen=True):
    """The data that a store can hold, and the operations that it supports.

    ::

        Features(summaries=True, empty=True, mark_order=True)

    The conformance suite tests each claimed feature.  If a store lacks a feature, memctl refuses
    data that need it before the first write, or uses a slower method.  A wrapper has the features
    of the inner store, or a changed copy of them (``dataclasses.replace``).
    """

    # The contents of a store besides messages
    marks: frozenset[str] | None = None
    """The only marks that a message can have; None allows every mark."""
    mark_order: bool = False
    """The marks of a message have an order."""
    summaries: bool = False
    """A memory has a place for the compressed summary."""
    summaries_elsewhere: bool = False
    """The store has a place for summaries, but the summary of a memory may be outside the store."""
    ttl: bool = False
    """A memory may expire."""
    ttl_counts_down: bool = True
    """The time to expiry of a stored memory gets shorter; in an archive, it stays the same."""
    waits: bool = False
    """``Memory.waits`` says whether the framework waits in the middle of a step."""
    empty: bool = False
    """A memory without messages exists."""
    duplicate_ids: bool = False
    """Messages of a memory may share an id."""
    parts: bool = False
    """A session may hold several memories."""
    session_owners: bool = False
    """A session belongs to one user; the same session name cannot exist for two users."""
    single_session: bool = False
    """The store holds only one session."""
    state_only: bool = False
    """The store holds the state of an AgentScope 2.x session, but not the configuration record."""
    file_times: bool = False
    """A fact that is a file has the time of the file.

    Git and other programs that copy files change the time.  Comparisons ignore the time.
    """
    retired: bool = False
    """memctl writes nothing in the format; memctl reads the data, and may erase them."""
    columns: frozenset[str] = frozenset()
    """The columns whose values ``extra`` of a message may hold."""
    filled_columns: frozenset[str] = frozenset()
    """The columns that the database fills if a message has no value; ``verify`` ignores them."""
    call_columns: frozenset[str] = frozenset()
    """The unmapped columns that seem to hold tool calls."""
    asks_encoding: bool = False
    """Nothing says whether the store keeps new texts as plain text or as JSON."""
    ambiguous_names: bool = False
    """Stored names can be read as several keys, until ``resolve_names`` gives the expected keys."""

    # The abilities of a store
    added_only: bool = False
    """memctl adds memories, and never changes or deletes stored memories, not even for an undo."""
    whole_memories: bool = False
    """memctl adds, replaces and deletes memories whole, and never changes a message in one."""
    parallel: bool = False
    """Several concurrent writers are faster than one."""
    commits_at_end: bool = False
    """All memories become durable together, after the last page."""
    cheap_outline: bool = False
    """``outline`` does not read the messages."""
    cheap_positions: bool = False
    """``read_with_anchors`` does not read unselected messages."""
    cheap_windows: bool = False
    """``window`` reads only about as many messages as it returns."""
    search: bool = False
    """The service of the store searches texts: ``Store.search``."""
    repairs: frozenset[str] = frozenset()
    """The codes of the findings that ``Maintenance.repair`` can repair."""
    selects_texts: bool = False
    """The texts of memories, and what is beside them, can be rewritten memory by memory."""
    renames: frozenset[str] = frozenset()
    """The abilities of ``rename``: it names a ``user`` or a ``session``, or can ``merge`` users.

    With ``project``, ``rename_project`` lets sessions follow a folder that has moved.
    """

    def capabilities(self) -> list[str]:
        """Return the names of the features for reports, such as ``["summaries", "ttl"]``."""
        return [name for field, name in REPORTED.items() if getattr(self, field)]


REPORTED = {
    "summaries": "summaries",
    "ttl": "ttl",
    "empty": "empty",
    "duplicate_ids": "repeated-ids",
    "mark_order": "mark-order",
    "parts": "parts",
    "parallel": "parallel",
}
"""The features that reports list as ``capabilities``, with the names that scripts know."""


class LeftOut(Struct):
    """The damaged memories that a read of a store left out, each with the reason."""

    failures: dict[MemoryKey, Failure] = field(default_factory=dict)
    others: bool = False
    """True if the store read at least one undamaged memory."""
    partly: set[MemoryKey] = field(default_factory=set)
    """The memories that were read without their damaged messages."""

    def may_have(self, key: MemoryKey) -> bool:
        """Return whether the memory with this key may have been left out as damaged.

        If a whole session is damaged, the result is True for every memory of the session.
        """
        return key in self.failures or key._replace(part="") in self.failures


class Maintenance:
    """Checks and repairs data of a store that ``Store.read`` does not return.

    This default reports the damage that ``Store.read`` skipped, and repairs nothing.

    ::

        async with aclosing(store.maintenance().check(Selection())) as findings:
            async for finding in findings:
                print(finding.code, finding.count)
    """

    def __init__(self, store: Store) -> None:
        self.store = store

    async def check(self, where: Selection) -> AsyncGenerator[Finding]:
        """Yield the problems of the selected memories; ``where`` selects whole memories.

        Problems that belong to no memory are yielded if ``where.leads``, unless they are counted by
        memory.

        The caller must have read the same selection with ``Store.read``.  ``check`` first yields
        the damage that this read skipped.  It then makes one pass over the store, in constant
        memory.  Agents may be at work meanwhile; an unfinished write of an agent is not a finding.

        Raises:
            MemctlError: as ``Store.read``.
        """
        for finding in dict.fromkeys(self.store.damage):
            if where.leads if finding.key is None else where.has_key(finding.key):
                yield finding
        async with aclosing(self._further(where)) as findings:
            async for finding in findings:
                yield finding

    async def _further(self, where: Selection) -> AsyncGenerator[Finding]:  # noqa: ARG002
        """Yield the problems besides the damage that ``read`` skipped, as ``check`` says.

        The default yields none.
        """
        return
        yield

    async def repair(self, code: str, where: Selection, note: Note) -> int:
        """Repair the findings of one code; return the number of repairs, in the units of ``check``.

        ``code`` is in ``Features.repairs``.  A repair has parts.  Before a part becomes durable,
        ``note`` is awaited with the data that ``revert`` needs, or with the damaged data that the
        part removes.  Agents may be at work meanwhile, as with ``Store.edit``.

        Raises:
            MemctlError: as ``Store.edit``.  Each part passed to ``note`` is repaired or unchanged.
        """
        raise NotImplementedError(code)

    async def revert(self, records: AsyncGenerator[Record]) -> int:
        """Undo recorded repairs where the data have not changed since; return the number undone.

        ``records`` come in reverse order.  They may name parts of a repair that were never made,
        because the run was killed before.  Damaged data that a repair removed are not in
        ``records``: they stay in the quarantine file of the run.

        Raises:
            MemctlError: as ``Store.edit``.
        """
        raise NotImplementedError(self.store.kind)


class Store(ABC):
    """A place that holds memories.

    A store defines ``open``, ``close``, ``read`` and ``write``.  The defaults of all further
    methods work through these four.  A store overrides a default to be faster, or to use less RAM.
    If each memory fits into RAM, ``SimpleStore`` in ``memctl.storekit.simple`` needs even fewer
    methods.

    A store is opened as an async context manager::

        async with make_store(location, OpenMode.CHANGE) as store:
            async with aclosing(store.read(Selection())) as pages:
                async for page in pages:
                    ...

    Everything streams: unless a docstring says otherwise, no method holds more than a page of a
    memory.  All errors are errors of ``memctl.errors``, never exceptions of a driver.
    """

    kind: str
    features: Features
    dialect: Dialect = AGENTSCOPE1
    """The format of the messages."""
    embeds: str = ""
    """The field of a fact's metadata to embed, if it holds text, instead of the fact's text."""
    texts_stay: str = ""
    """The reason why ``rewrite_texts`` refuses the store, with a colon before it, if it does."""
    embedding: Embedding | None = None
    """The kind of vectors of an open store of facts; None without vectors."""

    def __init__(self, location: Location, mode: OpenMode = OpenMode.READ) -> None:
        """Set the location, and the mode for ``async with``; open nothing yet."""
        self.location = location
        self.label = location.label
        self.mode = mode
        self.origin: str | None = None
        """The label of the store from which a copy to this store is made, kept in archives."""
        self.shard: Shard | None = None
        """The shard to which a run limits its changes; set before ``open``.

        ``lock`` locks only this shard, unless the store has one writer.  ``is_empty`` and the
        counts with which ``write`` begins may leave out what is not in the shard.
        """
        self.warnings: list[str] = []
        """Warnings for the operator, one line each, such as about messages that were left out."""
        self.details: list[str] = []
        """Lines for ``--verbose`` about how the store was opened and is read."""
        self.left_out = LeftOut()
        self.skips_damage = False
        self.damage: list[Finding] = []
        """The damage that ``read`` has skipped since ``skip_damage`` was called."""
        self._foreseeing: Foreseeing = lambda _: None
        self._file_lock: FileLock | None = None

    async def __aenter__(self) -> Self:
        """Open the store in the mode that it was made with; see ``open``."""
        await self.open(self.mode)
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.close()
        finally:
            self.unlock()

    async def waits_for(self) -> str:
        """Return the program for which a call waits now; empty if no call waits, or unknown.

        Other calls may be under way.

        Raises:
            MemctlError: as ``open``.
        """
        return ""

    # Required

    @abstractmethod
    async def open(self, mode: OpenMode) -> None:
        """Connect to the place of the store.

        Raises:
            Unavailable: the store cannot be reached or refuses the login.
            NotFound: the place does not exist, and the mode does not create a missing place.
            BadData: the place holds data that a store of this kind cannot read.
        """

    @abstractmethod
    async def close(self) -> None:
        """Release every connection, file and temporary file, even after errors."""

    @abstractmethod
    def read(self, where: Selection) -> AsyncGenerator[Page]:
        """Yield pages of the selected memories, memory after memory, messages in order.

        ``read`` makes one pass over the store, however many memories match.  A memory is read if
        its key is selected and one of its messages is selected.  If the selection has no condition
        on messages, a memory without messages is read, too.  ``read`` applies ``where.last``.
        Queries to the store must mean the same as ``Selection.matches``; ``Selection.apply``
        filters pages of whole memories.

        ``read`` skips a damaged memory and adds it to ``left_out``.

        Raises:
            Unavailable: the store cannot be reached any more.
            DamagedMemory: a memory is damaged, and some of its pages were already yielded.
            BadData: data outside any single memory are damaged, and ``skip_damage`` was not called.
        """

    @abstractmethod
    def write(
        self, pages: AsyncGenerator[Page], mode: WriteMode = WriteMode.ADD
    ) -> AsyncGenerator[WriteResult]:
        """Write memories, each whole or not at all; yield a WriteResult as each becomes durable.

        Many small memories may share a transaction; a huge memory comes in many pages.  If the
        store refuses a memory, the WriteResult of this memory has a failure, and the next memory
        follows.  Failures have these codes:

        - ``changed``: ADD found a number of messages different from the offset, or REPLACE found a
          version different from ``Memory.version``.
        - ``refused``: the store does not accept a value.
        - ``repeated-id``: two messages of the memory have the same id.
        - ``bad-name``: the store cannot write the key.

        If ``Memory.summary`` is None, the store keeps its summary of the memory.  If ``Memory.ttl``
        is None, the store keeps the expiry of the memory.

        Raises:
            Unavailable: the store is unreachable; memories without a WriteResult are not written.
        """

    def adopt(  # noqa: B027 - most stores have a dialect of their own
        self, dialect: Dialect, embedding: Embedding | None = None
    ) -> None:
        """Use this dialect from now on, if the store is empty and accepts messages of any dialect.

        ``embedding`` describes the vectors of facts; None means facts without vectors.
        """

    @contextmanager
    def foreseen(self, tell: Foreseeing) -> Iterator[None]:
        """Have ``tell`` called in the block with results of ``write`` and ``edit``, before commits.

        A run records them, so that it can be undone even if the store, the connection or memctl
        ends before a result is yielded.  ``tell`` may be called in a thread.
        """
        outer, self._foreseeing = self._foreseeing, tell
        try:
            yield
        finally:
            self._foreseeing = outer

    def about_to_commit(self, results: Iterable[WriteResult]) -> None:
        """Tell of the results that are about to become durable; see ``foreseen``.

        A store calls it in ``write`` and ``edit`` before each commit.  Results without ``before``
        and ``shared_ids`` are left out, because an undo does not need them.

        Raises:
            Unavailable: the results cannot be recorded; the store must not commit.
        """
        told = [one for one in results if not one.failure and (one.before or one.shared_ids)]
        if told:
            self._foreseeing(told)

    async def settle_layout(self) -> bool:
        """Detect the layout before ``open``; return True if it differs from the usual layout."""
        return False

    async def other_layout(self) -> str | None:
        """Return the name of the layout of the stored data.

        The result is None if it is the layout of this store, or if there are no data.

        The store must be open.  ``other_layout`` is for a store whose URL names no layout.

        Raises:
            UsageError: the place has several layouts, and the URL has to name one.
            BadData: memctl does not know the layout of the stored data.
        """
        return None

    async def is_alone(self) -> bool:
        """Return whether nothing but the data of this store can be at its place.

        The store must be open.  False if that is not known, as on a server.

        Raises:
            Unavailable: the store is unreachable.
        """
        return False

    # The contents

    async def is_empty(self) -> bool:
        """Return whether the store is empty, judged by a short read."""
        async with aclosing(self.outline(Selection(shard=self.shard))) as pages:
            async for _ in pages:
                return False
        return not self.left_out.failures  # damaged memories count, too

    async def count(self, where: Selection) -> tuple[int, int] | None:  # noqa: ARG002
        """Return the approximate numbers of memories and messages that ``read`` will yield.

        Return None if counting would be too slow: ``count`` must take at most a hundredth of the
        time of the ``read`` that follows.

        Raises:
            MemctlError: as ``read``.
        """
        return None

    def refuse_changes(self) -> None:
        """Raise the error for changes of a store whose data memctl does not change.

        Dry runs call it: they open the store to read.

        Raises:
            UsageError: memctl only reads the store, or only adds memories to the store; the hint
                names another way to change the data.
        """
        if self.features.added_only:
            raise UsageError(
                f"{self.label} is written once: memctl adds memories to it, and changes none",
                "import the file into a store, change the memories there, and export them again; "
                "or edit the file by hand",
            )

    def refuse_edits(self) -> None:
        """Raise the error for changes inside memories that memctl only adds and deletes whole.

        Raises:
            UsageError: as ``refuse_changes``; or the store has ``Features.whole_memories``.
        """
        self.refuse_changes()
        if self.features.whole_memories:
            raise UsageError(
                f"{self.label}: memctl adds and deletes its sessions whole, and changes no "
                "message in one",
                "delete whole sessions, with --session, --project, --older-than or --all; to "
                "change messages, copy them to another store",
            )

    def name_refusal(self, key: MemoryKey) -> Failure | None:  # noqa: ARG002
        """Return why the store can hold no memory with this name; None if nothing is known.

        Dry runs of copies call it, also if the store does not exist yet.
        """
        return None

    async def other_contents(self) -> str:
        """Describe in one line the contents of a place without memories; empty without contents.

        Raises:
            MemctlError: as ``read``.
        """
        return ""

    def list_memories(self, where: Selection) -> AsyncGenerator[MemoryInfo]:
        """Yield a ``MemoryInfo`` for each memory of ``read``, with counts of the selected messages.

        Raises:
            MemctlError: as ``read``.
        """
        return catalog(self.read(where), self.dialect)

    def survey(self, where: Selection) -> AsyncGenerator[MemoryInfo]:
        """Yield what ``list_memories`` yields; if counting means reading all, without the counts.

        Only a store that can tell sizes and times of whole memories without that overrides
        ``survey``; see ``MemoryInfo.is_counted``.

        Raises:
            MemctlError: as ``read``.
        """
        return self.list_memories(where)

    async def headers(self, where: Selection) -> AsyncGenerator[Memory]:
        """Yield the memories that ``read`` would yield, without their messages.

        A store overrides ``headers`` to avoid reading messages.
        """
        async with aclosing(self.read(where)) as pages:
            async for page in pages:
                if page.offset == 0:
                    yield page.memory

    async def list_keys(self, where: Selection) -> AsyncGenerator[MemoryKey]:
        """Yield the keys of the selected memories, each once, without looking at messages.

        ``where`` selects by users and sessions.  A key may belong to a memory without messages or
        to a damaged memory; a damaged memory may also be missing.  No transaction and no cursor
        stay open between two keys.  A store overrides ``list_keys`` to be quick.

        Raises:
            MemctlError: as ``read``.
        """
        async with aclosing(self.headers(where)) as memories:
            keys = dict.fromkeys([memory.key async for memory in memories])
        for key in keys:
            yield key

    async def window(self, key: MemoryKey, start: int, count: int) -> Page | None:
        """Return at most ``count`` messages of a memory from the index ``start`` on, as one page.

        A negative ``start`` counts from the end.  ``Page.offset`` is the index of the first
        message; if ``start`` is beyond the end, the page is empty, and its offset is the number of
        messages.  None if the memory does not exist, or if ``read`` leaves it out as damaged: then
        ``left_out`` names it.  No transaction and no cursor stay open.  A store that reads only the
        returned messages claims ``Features.cheap_windows``; it may not notice damaged messages
        outside of the window.

        Raises:
            MemctlError: as ``read``.
        """
        try:
            return await window(self.read(Selection(keys=frozenset({key}))), start, count)
        except DamagedMemory:
            return None

    async def duplicates(self, where: Selection) -> AsyncGenerator[tuple[Memory, int]]:
        """Yield each selected memory without messages, and the number of its repeated messages.

        A message is repeated if an earlier message of the memory has the same id.  The summary in
        the memory may only say whether a summary exists.
        """
        async with aclosing(self.list_memories(where)) as infos:
            async for info in infos:
                yield Memory(info.key, "yes" if info.summary else "", info.ttl), info.repeated or 0

    async def count_marks(
        self, where: Selection, marks: frozenset[str]
    ) -> AsyncGenerator[tuple[Memory, Counter[str]]]:
        """Yield memories, each with the number of its selected messages with each of ``marks``.

        Memories without such messages may be missing.  A memory may come several times: its numbers
        are then to be added.  A store overrides ``count_marks`` to avoid reading unmarked messages.

        Raises:
            MemctlError: as ``read``.
        """
        marked = replace(where, marks=marks) if where.whole else where
        if where.whole:
            async with aclosing(self.read(marked)) as found:
                if await anext(found, None) is None:
                    return
        outlined = where.whole and self.features.cheap_outline
        pages = self.outline(where) if outlined else self.read(marked)
        async with aclosing(pages):
            async for page in pages:
                named = chain.from_iterable([entry.marks for entry in page.messages])
                yield page.memory, Counter(filter(marks.__contains__, named))

    def outline(self, where: Selection) -> AsyncGenerator[Page]:
        """Yield pages as ``read`` does, with ids, order, marks and the data of the memory.

        The texts of the messages may be empty.  An outline is enough to tell which memories
        changed.  ``where`` selects whole memories.  A store overrides ``outline`` to avoid reading
        messages, and then claims ``Features.cheap_outline``.
        """
        return self.read(where)

    def read_with_anchors(self, where: Selection) -> AsyncGenerator[Page]:
        """Yield the pages of ``read``; pages of selected messages have ``Page.anchors``.

        A store with ``Features.cheap_positions`` overrides this method if its ``read`` does not set
        anchors.
        """
        return self.read(where)

    async def search(self, query: str, where: Selection, top: int) -> list[ServiceHit]:  # noqa: ARG002
        """Return at most ``top`` selected messages that the search service of the store finds.

        The best message comes first; only the service decides what matches ``query``.  If the
        service finds many messages that are not selected, the store stops after a limit.  Then
        selected messages may be missing from the result.  A store with a search service overrides
        ``search`` and claims ``Features.search``.

        Raises:
            UsageError: the store has no search service, the query is empty, or ``where`` has
                ``last`` or ``spare``.
            MemctlError: as ``read``.
        """
        facts = self.dialect.facts
        raise UsageError(
            f"{self.label} has no service that searches texts",
            f"use --by {'meaning --embedder NAME' if facts else 'words'}",
        )

    async def find_messages(
        self, where: Selection, matches: Matches
    ) -> AsyncGenerator[tuple[MemoryKey, StoredMessage]]:
        """Yield the messages whose JSON texts match, each with the key of its memory, in any order.

        ``matches`` gets several texts, and returns the indexes of the matching texts.  ``where``
        selects whole memories.  Agents may write between two messages.  A store overrides
        ``find_messages`` to avoid sorting messages.

        Raises:
            MemctlError: as ``read``.
        """
        async with aclosing(self.read(where)) as pages:
            async for page in pages:
                for index in matches([entry.message for entry in page.messages]):
                    entry = page.messages[index]
                    yield page.memory.key, StoredMessage(entry.id, entry.message)

    async def snapshot(self, key: MemoryKey) -> Snapshot:
        """Return a whole memory.  If it is missing, return an empty snapshot with ``exists`` False.

        Raises:
            MemctlError: as ``read``.
        """
        memory: Memory | None = None
        messages: list[StoredMessage] = []
        async with aclosing(self.read(Selection(keys=frozenset({key})))) as pages:
            async for page in pages:
                memory = page.memory
                messages += page.messages
        return Snapshot(memory or Memory(key), messages, exists=memory is not None)

    async def find_places(
        self,
        key: MemoryKey,  # noqa: ARG002 - of most stores none do
        ids: frozenset[str],  # noqa: ARG002
    ) -> frozenset[str]:
        """Return those of ``ids`` that have a place in a memory, although no message has the id.

        An edit can insert messages after these ids.

        Raises:
            MemctlError: as ``read``.
        """
        return frozenset()

    # Changes

    async def edit(self, edits: AsyncGenerator[Edit]) -> AsyncGenerator[WriteResult]:
        """Change memories, each whole or not at all; yield a WriteResult as each becomes durable.

        Agents may read and write meanwhile.  Their new messages stay.  They see the memory either
        before or after the edit.

        If a memory is not as the edit expects, ``edit`` leaves the memory unchanged, and its
        WriteResult has a failure with the code ``changed``.  This is so if a message to change is
        missing or has different marks, a message to insert exists already, the place of an
        insertion is missing, or the summary is different.  Messages that the edit does not name may
        have changed.  If other programs do not release the memory, the code is ``held``.  Failures
        may also have the codes of ``write``.

        A memory that loses all messages keeps the summary and further data, if the store has a
        place for them.  ``WriteResult.before`` describes the data that the reverse of an edit would
        not restore.  A reverse edit with this text as ``Edit.before`` restores these data, too,
        unless the store has newer data in their place.

        This default reads a memory, changes it, and writes it with REPLACE at the version of the
        read.  If other programs changed the memory meanwhile, the default tries again, a few times.
        The default holds one whole memory in RAM, and needs a store with ``Memory.version``.

        Raises:
            Unavailable: the store is unreachable; memories without a WriteResult are unchanged.
        """
        async with aclosing(whole_edits(edits)) as wholes:
            async for edit in wholes:
                yield await self._edit(edit)

    async def _edit(self, edit: Edit) -> WriteResult:
        key = edit.memory.key
        result = WriteResult(key)
        for _ in range(EDIT_ATTEMPTS):
            there = await self.snapshot(key)
            if there.exists and there.memory.version is None:
                once = self.features.added_only
                return WriteResult(key, failure=WRITTEN_ONCE if once else NO_VERSION)
            changed, result = apply_edit(edit, there, self.dialect)
            if changed is None:
                return result
            # ADD fails if another program has created the memory meanwhile.
            mode = WriteMode.REPLACE if there.exists else WriteMode.ADD
            async with aclosing(self.write(changed.pages(), mode)) as results:
                async for written in results:
                    if written.failure is not None:
                        result = written
            if result.failure is None or result.failure.code != "changed":
                return result
        return result

    def maintenance(self) -> Maintenance:
        """Return the checks and repairs for damage that no message of the store shows."""
        return Maintenance(self)

    def prunable(self) -> Prunable:
        """Return what can be pruned in the store, and put back.

        Raises:
            UsageError: the store has neither checkpoints nor archived files.
        """
        raise UsageError(
            f"{self.label} has nothing to prune",
            "name the database of a LangGraph checkpointer or of AgentScope Java",
        )

    # Erasing

    def refuse_erase(self) -> None:
        """Raise the error for an erase from a store from which memctl erases nothing.

        Raises:
            UsageError: as ``refuse_changes``.
        """
        self.refuse_changes()

    async def names(self, where: Selection) -> AsyncGenerator[MemoryKey]:
        """Yield the keys of all data that ``erase`` would remove; a key may come several times.

        ``where`` selects by users and sessions.  Keys of damaged memories are included.  For a user
        without a memory but with other data, such as a row, the session in the key is empty.

        Raises:
            MemctlError: as ``read``.
        """
        async with aclosing(self.headers(where)) as memories:
            async for memory in memories:
                yield memory.key
        for key in list(self.left_out.failures):
            if where.has_key(key):
                yield key

    async def erase(self, where: Selection) -> AsyncGenerator[WriteResult]:
        """Remove memories with all their data; yield a WriteResult as soon as each is removed.

        ``where`` selects by users and sessions.  A memory is removed whole or not at all: messages,
        marks, summary and name, with all rows, keys and files that hold nothing else.  With the
        last session of a user, the name of the user is removed, too.  Data of other users and
        sessions stay as they are, byte for byte.  An erase cannot be undone.

        This default deletes the messages and the summary of each memory by ``edit``, and holds one
        memory at a time.  If the name of a memory is still in the store afterwards, the WriteResult
        has a failure with the code ``refused``.

        Raises:
            Unavailable: the store is unreachable; memories without a WriteResult are unchanged.
        """
        async with aclosing(self.names(where)) as found:
            keys = dict.fromkeys([key async for key in found])
        for key in keys:
            yield await self._erase(key)

    async def _erase(self, key: MemoryKey) -> WriteResult:
        there = await self.snapshot(key)
        if not there.exists:
            failure = self.left_out.failures.get(key)
            return WriteResult(key, failure=failure)
        changes = [Change(one.id, one.marks, at=at) for at, one in enumerate(there.messages)]
        summary = there.memory.summary and ""
        edit = Edit(replace(there.memory, summary=summary), changes)

        async def only() -> AsyncGenerator[Edit]:
            yield edit

        result = WriteResult(key)
        async with aclosing(self.edit(only())) as results:
            async for edited in results:
                result = edited
        if result.failure is None and (await self.snapshot(key)).exists:
            return WriteResult(key, failure=NAME_STAYS)
        return replace(result, before="")

    # Rewriting

    async def rewrite_texts(
        self, rewriter: Rewriter, where: Selection = EVERYTHING, *, writes: bool
    ) -> AsyncGenerator[TextResult]:
        """Give all texts that the store keeps to ``rewriter``, and store what it returns.

        These are the messages with all their data, and the texts beside them: states, summaries,
        titles, files and rows of tools.  Only places with a value are yielded, each as soon as its
        change is durable.  Unless ``writes``, nothing is changed, and the results say what would
        be.  Names of users and sessions stay.  A place is changed whole or not at all.

        With ``where``, of which the users and sessions count, only texts that belong to selected
        memories alone are given.  A store with ``Features.selects_texts`` can do this.

        Raises:
            UsageError: memctl does not rewrite the texts of this kind of store.
            Unavailable: the store is unreachable; places that were not yielded are unchanged.
        """
        files = self.text_files() if where == EVERYTHING else self.selected_files(where)
        if files is None:
            raise UsageError(
                f"memctl does not rewrite the texts of {self.label}{self.texts_stay}",
                "delete or erase the memories with the text; memctl search finds them",
            )
        made = self._text_rewriter(rewriter, where)
        async with aclosing(self._rewrite_files(files, made, writes=writes)) as results:
            async for result in results:
                yield result

    def _rewrite_files(
        self, files: Iterable[Path], rewriter: Rewriter, *, writes: bool
    ) -> AsyncGenerator[TextResult]:
        """Rewrite some of ``text_files``, besides those with a ``text_refusal``."""
        from memctl.storekit.text_files import rewrite_files  # only needed to rewrite texts

        root, refuse = self.location.path, self.text_refusal
        return rewrite_files(files, root, rewriter, writes=writes, refuse=refuse)

    def _text_rewriter(self, rewriter: Rewriter, where: Selection) -> Rewriter:  # noqa: ARG002
        """Return the rewriter of ``text_files``; a layout may wrap it to renew derived data."""
        return rewriter

    async def forget_replaced(self) -> None:  # noqa: B027 - most places keep nothing
        """Clear free space and indexes of texts that were replaced, where the place has them.

        Raises:
            Unavailable: the store is unreachable.
        """

    def text_files(self) -> Iterable[Path] | None:
        """Return the files that hold texts of the store; None if its texts are not in files."""
        return None

    def selected_files(self, where: Selection) -> Iterable[Path] | None:  # noqa: ARG002
        """Return the ``text_files`` that belong to selected memories alone."""
        return None

    def text_refusal(self, path: Path) -> str:  # noqa: ARG002 - most files may change
        """Return why the texts of a file must stay now, as an agent is at work; else no text."""
        return ""

    # Other names

    def refuse_rename(self, what: str) -> None:
        """Raise the error for a rename that the store does not do.

        ``what`` is ``user``, ``session``, ``project`` or, to make two users one, ``merge``.

        Raises:
            UsageError: as ``refuse_changes``; or ``what`` is not in ``Features.renames``.
        """
        if what in self.features.renames:
            return
        if what == "project":
            raise UsageError(
                f"{self.label}: its memories name no folder that an agent worked in",
                "--project is for the sessions of coding agents",
            )
        if what == "merge" and "user" in self.features.renames:
            raise UsageError(
                f"{self.label}: its users have more than sessions, so two cannot become one",
                "rename the sessions, or give the user a name that does not exist",
            )
        if what == "user" and "session" in self.features.renames:
            raise UsageError(
                f"{self.label}: its memories name no user that could be renamed",
                "rename sessions with --session OLD NEW",
            )
        self.refuse_changes()
        hint = (
            "migrate the memories to a SQLite file, rename there, migrate them back, and erase the "
            "old name"
        )
        if self.features.single_session:
            hint = "the name of the file names its session: rename the file, or name its folder"
        elif self.dialect.facts or self.features.whole_memories:
            hint = "they are named by the program that keeps them: use it, if it can rename"
        raise UsageError(f"{self.label}: memctl cannot rename a {what} there", hint)

    def rename(self, moves: Mapping[MemoryKey, MemoryKey]) -> AsyncGenerator[WriteResult]:
        """Give sessions other names; yield a WriteResult for each old key, as it becomes durable.

        ``moves`` maps the key of a session, without a part, to its new key; no memory has a new
        key.  All memories of a session move with all their data, and keep each byte but the name.
        A session is under its old or its new name, at whatever moment the process ends.  A key
        with an empty session stands for the data of a user outside of sessions; without ``merge``
        in ``Features.renames``, it comes with all sessions of a user that gets another name.  The
        name of a user who has no session any more is removed.

        Only a store with ``Features.renames`` does this.

        Raises:
            Unavailable: the store is unreachable; sessions without a WriteResult may be renamed.
            BadData: the store refuses a name; nothing more is renamed.
        """
        raise NotImplementedError(self.kind)

    async def find_project(self, move: ProjectMove) -> FoundProject:
        """Return what the store has of a folder that agents worked in, and that has moved.

        Only a store with ``project`` in ``Features.renames`` does this.

        Raises:
            Unavailable: the store is unreachable.
            BadData: data that name folders are damaged.
        """
        raise NotImplementedError(self.kind)

    def rename_project(self, move: ProjectMove, found: FoundProject) -> AsyncGenerator[WriteResult]:
        """Let the ``found`` sessions follow a folder; yield a WriteResult for each.

        Each file changes whole, or rows all at once.  If the process ends early, the same move does
        the rest.  What is not of a session follows if no agent is at work on the found sessions.

        Raises:
            Unavailable: the store is unreachable; sessions without a WriteResult may be changed.
        """
        raise NotImplementedError(self.kind)

    # The place

    async def lock(self, owner: str) -> None:
        """Keep other memctl runs from writing to this store until ``close``; called once.

        A store with a ``shard`` is locked against runs with the same shard and runs without one.

        ``owner`` is a name of the run, on one line.  A run with the same name may take the lock
        again.  Agents and readers are not hindered.  A lock ends with its run, even if the run is
        killed.

        This default locks a file next to the path of the store, or in the folder at the path.  For
        a store without a path, it locks a file on this machine whose name is made from
        ``identity``.  A store that is a file has one writer, so it is locked whole.

        Raises:
            Busy: another run holds the lock.
            Unavailable: the place cannot be locked.
        """
        path, shard = self.location.path, self.shard
        if not path.name:
            path = stand_in(await self.identity())
        elif not await in_thread(partial(os.path.isdir, path)):
            shard = None
        self._file_lock = FileLock(path, self.label, shard)
        self.warnings += await self._file_lock.take_in_thread(owner)

    def unlock(self) -> None:
        """Release the lock of the default ``lock``.

        A store that overrides ``lock`` releases its lock in ``close``.
        """
        if self._file_lock is not None:
            self._file_lock.release()

    async def identity(self) -> str:
        """Return a text that is equal for two stores of the same place."""
        path = self.location.path
        return f"file:{same_file(path)}" if path.name else self.location.url

    async def generation(self) -> str:
        """Return a text that changes when the place is deleted and made again under the same name.

        The default is an empty text: the store cannot tell.

        Raises:
            MemctlError: as ``read``.
        """
        return ""

    async def check_integrity(  # noqa: B027 - a live store has none
        self, where: Selection, *, complete: bool = False
    ) -> None:
        """Read the file of the store once to its end, to find damage before the first write.

        A store in use by agents, such as a database, does nothing.  ``complete`` is True if the run
        must find all data: then SQLite compares indexes with tables.

        Raises:
            BadData: the file is damaged; ``DamagedFile`` if reads may miss rows without an error.
        """

    async def unrestorable(self, where: Selection) -> str:  # noqa: ARG002 - most keep nothing else
        """Name the data of the selected messages that an undo could not restore; empty if none.

        An example is ``the column 'extra' of the table 'message'``, if this column has values in a
        selected session.

        Raises:
            MemctlError: as ``read``.
        """
        return ""

    async def side_effects(
        self,
        where: Selection,  # noqa: ARG002 - most stores have none
        deletion: Deletion,  # noqa: ARG002
    ) -> list[str]:
        """Describe changes of other data that a deletion from the selected memories would cause.

        An example is ``deleting rows of 'message' deletes rows of 'notes' (ON DELETE CASCADE)``.

        Raises:
            MemctlError: as ``read``.
        """
        return []

    async def missing_right(self, key: MemoryKey | None) -> str:  # noqa: ARG002 - files have none
        """Return a right that a deletion or its undo would need and the login lacks, or no text.

        This is called before the deletion.  Examples of the result are ``INSERT on 'message'`` and
        ``RPUSH``.  ``key`` is a memory that has messages to delete; None before the first such
        memory is known.  The text is also empty if the store does not tell the rights of the login.

        Raises:
            MemctlError: as ``read``.
        """
        return ""

    def resolve_names(self, keys: Iterable[MemoryKey]) -> None:  # noqa: B027 - most are plain
        """Tell a store whose stored names are ambiguous which memories to expect."""

    async def keeps_summary(self, key: MemoryKey) -> bool:  # noqa: ARG002 - of most stores all do
        """Return whether the store can keep a summary of a memory where the agent will read it.

        If the summary belongs into a session state that does not exist, the result is False: a
        state made by memctl would lack the other data of the application.

        Raises:
            MemctlError: as ``read``.
        """
        return self.features.summaries

    def skip_damage(self) -> None:
        """Make ``read`` skip damaged data from now on and list them in ``damage``."""
        self.skips_damage = True
