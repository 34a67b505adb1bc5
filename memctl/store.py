"""The contract between the operations and the stores.

A store is one layout of memory in one place.  Operations know stores by this contract alone, and
every store passes the same conformance suite (``memctl.testing``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Self

from memctl.dialects.agentscope1 import AGENTSCOPE1
from memctl.dialects.view import Dialect
from memctl.errors import BadData, Failure, UsageError
from memctl.inference.text import encodable
from memctl.location import Location, same_file
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
from memctl.selection import Selection
from memctl.storekit.catalog import catalog
from memctl.storekit.edits import Snapshot, apply_edit, whole_edits
from memctl.storekit.locks import FileLock, stand_in

EDIT_ATTEMPTS = 5
"""The attempts of the default ``Store.edit``, where others change the memory meanwhile."""

NAME_STAYS = Failure("refused", "the store keeps the name of a memory that is empty")
"""The failure of ``Store.erase`` where a memory has lost all but its name."""

NO_VERSION = Failure("refused", "the store does not say which version of it is stored")
"""The failure of the default ``Store.edit`` where a memory that is there has no version."""

Record = dict[str, Any]
"""A part of a repair, noted for ``Maintenance.revert``: JSON, with its ``code``."""
Note = Callable[[Record], Awaitable[None]]
Matches = Callable[[Sequence[bytes]], Iterable[int]]
"""Returns the indexes of the messages that match, given their texts."""


class DamagedMemory(BadData):
    """A memory turned out to be damaged after a part of it was handed out.

    ``Store.left_out`` has it from then on: read again, and it does not come.
    """

    def __init__(self, label: str, key: MemoryKey, failure: Failure) -> None:
        super().__init__(
            f"{label}: {key} is damaged: {failure.message}",
            "run memctl doctor to list the damage, and what --repair can do about it",
        )


def refuse_facts(store: Store, what: str) -> None:
    """Refuse an operation that makes sense for conversations alone; ``what`` is a noun phrase.

    Raises:
        UsageError: the store holds facts.
    """
    if store.dialect.facts:
        raise UsageError(
            f"{store.label} holds facts, which have no {what}",
            "inspect, export, migrate, verify, delete and undo work on facts",
        )


def searched_text(store: Store, query: str, where: Selection) -> str:
    """Return the query for the service of a store: text, without the spaces around it.

    Raises:
        UsageError: there is no word in it, or the selection counts messages, which takes all of a
            memory.
    """
    if where.last is not None or where.spare is not None:
        raise UsageError(
            f"{store.label}: its service finds messages one by one, and cannot count the newest",
            "leave out the number of newest messages, or search with --by words",
        )
    text = encodable(query).strip()
    if not text:
        raise UsageError("the query is empty", "name some words to search for")
    return text


class OpenMode(StrEnum):
    """The modes in which a store is opened."""

    READ = "read"
    """Write nothing; the place must exist."""
    CHANGE = "change"
    """Change what exists; the place must exist."""
    RESTORE = "restore"
    """Put back what may have gone as a whole; the place must exist."""
    CREATE = "create"
    """Make what is missing, and change what exists: a target."""

    @property
    def creates(self) -> bool:
        """True where what is missing is made."""
        return self is OpenMode.CREATE

    @property
    def writes(self) -> bool:
        """True where anything may be written."""
        return self is not OpenMode.READ


@dataclass(frozen=True, slots=True)
class Features:
    """The data that says what a store can hold and do.

    ::

        Features(summaries=True, empty=True, mark_order=True)

    What is claimed is tested by the conformance suite; what is not claimed is refused before
    anything is written, or done the slow way.  A wrapper forwards the features of the store
    within, or a copy with the fields that it changes (``dataclasses.replace``).
    """

    # What it can hold besides messages
    marks: frozenset[str] | None = None
    """The only marks that a message can have; None where it can have any."""
    mark_order: bool = False
    """The order of the marks of a message."""
    summaries: bool = False
    """A place for the compressed summary."""
    ttl: bool = False
    """A memory may expire."""
    ttl_counts_down: bool = True
    """The expiry of a memory draws nearer while it is stored; an archive keeps the time left."""
    empty: bool = False
    """A memory without messages exists."""
    duplicate_ids: bool = False
    """One message id may occur twice in a memory."""
    parts: bool = False
    """Several memories in one session."""
    session_owners: bool = False
    """A session belongs to one user, and no other can have one of that name."""
    single_session: bool = False
    """It holds one session only."""
    state_only: bool = False
    """Of a session of AgentScope 2.x it holds the state, not the record with its configuration."""
    file_times: bool = False
    """The time of a fact that is a file is that of the file: copies by other programs, such as git,
    have another, and are not different for that."""
    retired: bool = False
    """No program reads its format any more: nothing new is written but what an archive of it
    brings back."""
    columns: frozenset[str] = frozenset()
    """The columns that a message may have values of, in its ``extra``."""
    filled_columns: frozenset[str] = frozenset()
    """The columns that the database fills if a message has no value; ``verify`` ignores them."""
    call_columns: frozenset[str] = frozenset()
    """The columns that seem to hold calls of tools, but are not mapped as such."""
    asks_encoding: bool = False
    """Nothing says whether the texts of new messages are stored as they are, or as JSON."""
    ambiguous_names: bool = False
    """Its names can be read in several ways, until ``resolve_names`` says what may be in it."""

    # What it does well
    parallel: bool = False
    """Several writers at once are of use."""
    commits_at_end: bool = False
    """All that is written becomes durable together, when the pages end."""
    cheap_outline: bool = False
    """``outline`` does not read the messages."""
    cheap_positions: bool = False
    """``read_with_anchors`` does not read messages that are not selected."""
    search: bool = False
    """Its service searches texts: ``Store.search``."""
    repairs: frozenset[str] = frozenset()
    """The codes of the findings that ``Maintenance.repair`` takes."""

    def capabilities(self) -> list[str]:
        """Return the names that reports show, such as ``["summaries", "ttl"]``."""
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
"""The features that reports list as ``capabilities``, and their names there, which scripts know."""


@dataclass(slots=True)
class LeftOut:
    """The selected memories that a store has left out, because they are damaged, and why."""

    failures: dict[MemoryKey, Failure] = field(default_factory=dict)
    others: bool = False
    """True when another memory was read."""
    partly: set[MemoryKey] = field(default_factory=set)
    """The memories that came without messages which are damaged."""

    def may_have(self, key: MemoryKey) -> bool:
        """Return whether a memory may be one of them; the parts of a session are not told."""
        return key in self.failures or key._replace(part="") in self.failures


class Maintenance:
    """Checks and repairs of a store, of what its messages do not show.

    This one, the default, reports what reading skipped as damaged, and repairs nothing.

    ::

        async with aclosing(store.maintenance().check(Selection())) as findings:
            async for finding in findings:
                print(finding.code, finding.count)
    """

    def __init__(self, store: Store) -> None:
        self.store = store

    async def check(self, where: Selection) -> AsyncGenerator[Finding]:
        """Yield what is wrong with the selected memories; ``where`` selects whole memories.

        Called after a ``read`` of the same selection, whose damage comes first.  One pass over the
        store, in constant memory; agents may be at work meanwhile, and what they are in the middle
        of is no finding.

        Raises:
            MemctlError: as ``Store.read``.
        """
        for finding in dict.fromkeys(self.store.damage):
            if finding.key is None or where.has_key(finding.key):
                yield finding

    async def repair(self, code: str, where: Selection, note: Note) -> int:
        """Repair a finding of ``Features.repairs``; return how many, counted as ``check`` does.

        ``note`` is awaited with all that ``revert`` needs, or with the damaged data that the repair
        removes, a part at a time, before anything of that part becomes durable.  Agents may be at
        work meanwhile, as with ``Store.edit``.

        Raises:
            MemctlError: as ``Store.edit``; what was noted is repaired, or as it was.
        """
        raise NotImplementedError(code)

    async def revert(self, records: AsyncGenerator[Record]) -> int:
        """Undo what ``repair`` noted, as far as it is as ``repair`` left it; return how many.

        The records come in the reverse order, and some of them may never have been carried out.
        Records of damaged data that were moved out of the store are not among them: these stay in
        the quarantine file of the run.

        Raises:
            MemctlError: as ``Store.edit``.
        """
        raise NotImplementedError(self.store.kind)


class Store(ABC):
    """One place that holds memories.

    A store defines ``open``, ``close``, ``read`` and ``write``.  The rest works through these four;
    a store overrides it to be faster, or to hold less in memory.  ``memctl.storekit.simple`` has a
    ``SimpleStore`` for places whose memories fit into memory one by one, which asks for less still.

    A store is opened as an async context manager::

        async with make_store(location, OpenMode.CHANGE) as store:
            async with aclosing(store.read(Selection())) as pages:
                async for page in pages:
                    ...

    Everything streams: no method holds more than a page of any one memory, whatever its size,
    but for those defaults that say so.  Errors are those of ``memctl.errors``: no exception of a
    driver leaves a store.
    """

    kind: str
    features: Features
    dialect: Dialect = AGENTSCOPE1
    """The format of its messages."""
    embeds: str = ""
    """The field of the metadata of facts that is embedded where it is a text, not their text."""
    embedding: Embedding | None = None
    """The kind of vectors of a store of facts, known when it is open; None without vectors."""

    def __init__(self, location: Location, mode: OpenMode = OpenMode.READ) -> None:
        """Take the place, and the mode in which ``async with`` opens it; nothing is opened yet."""
        self.location = location
        self.label = location.label
        self.mode = mode
        self.origin: str | None = None
        """The label of the store that is copied here: an archive notes it."""
        self.warnings: list[str] = []
        """Lines for the operator, such as one about messages that were left out."""
        self.details: list[str] = []
        """Lines that ``--verbose`` shows, on how the store was opened."""
        self.left_out = LeftOut()
        self.skips_damage = False
        self.damage: list[Finding] = []
        """The damage that ``read`` has passed over since ``skip_damage``."""
        self._file_lock: FileLock | None = None

    async def __aenter__(self) -> Self:
        """Open the store in its mode; see ``open``."""
        await self.open(self.mode)
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.close()
        finally:
            self.unlock()

    # Required

    @abstractmethod
    async def open(self, mode: OpenMode) -> None:
        """Connect.

        Raises:
            Unavailable: the store cannot be reached or refuses the login.
            NotFound: it does not exist, and the mode does not create it.
            BadData: what is there is not this kind of store.
        """

    @abstractmethod
    async def close(self) -> None:
        """Release every connection, file and temporary file, whatever happened before."""

    @abstractmethod
    def read(self, where: Selection) -> AsyncGenerator[Page]:
        """Yield pages of the selected memories, memory after memory, messages in order.

        One pass over the store, however many memories match.  A memory is read when its key is
        selected and it has a selected message, or when the selection does not look at messages at
        all.  ``where.last`` is honoured.  What is pushed down to the store must mean the same as
        ``Selection.matches``; ``Selection.apply`` filters pages of whole memories.

        A memory that is damaged does not come, and is noted in ``left_out``.

        Raises:
            Unavailable: the store went away.
            DamagedMemory: a memory is damaged, and its first pages are out.
            BadData: more than a memory is damaged, and ``skip_damage`` was not called.
        """

    @abstractmethod
    def write(
        self, pages: AsyncGenerator[Page], mode: WriteMode = WriteMode.ADD
    ) -> AsyncGenerator[WriteResult]:
        """Write memories, each whole or not at all; yield a WriteResult as each becomes durable.

        Many small memories may share a transaction; a huge one comes in many pages.  A memory
        that the store refuses fails in its WriteResult, the others go on.  The codes of such
        failures: ``changed`` (ADD found another number of messages than the offset, or REPLACE
        another version than ``Memory.version``), ``refused`` (a value the store does not take),
        ``repeated-id``, ``bad-name`` (a key that cannot be written).

        With ``Memory.summary`` None the summary of the target stays; with ``Memory.ttl`` None its
        expiry does.

        Raises:
            Unavailable: the store went away; memories without a WriteResult are not written.
        """

    def adopt(  # noqa: B027 - most stores have a dialect of their own
        self, dialect: Dialect, embedding: Embedding | None = None
    ) -> None:
        """Hold messages of this dialect from now on, where any will do and none are there yet.

        ``embedding`` is the kind of vectors of facts.
        """

    async def settle_layout(self) -> bool:
        """Find the layout before ``open``; return whether it is another than the usual one."""
        return False

    async def other_layout(self) -> str | None:
        """Return the ``?layout=`` of what is there, where that is not this store's.

        Asked of an open store whose URL names no layout.

        Raises:
            UsageError: there are several, and the URL has to name one.
            BadData: what is there is of no layout that memctl knows.
        """
        return None

    # What is in it

    async def is_empty(self) -> bool:
        """Return whether nothing is in it, as far as can be told without reading much."""
        async with aclosing(self.outline(Selection())) as pages:
            async for _ in pages:
                return False
        return not self.left_out.failures  # what is damaged is something, too

    async def count(self, where: Selection) -> tuple[int, int] | None:  # noqa: ARG002
        """Return about how many memories and messages ``read`` will give; None where that is dear.

        It must take no more than a hundredth of the time of that ``read``, which comes next.

        Raises:
            MemctlError: as ``read``.
        """
        return None

    async def other_contents(self) -> str:
        """Return a line on what else is in the place; asked where it holds no memory.

        Raises:
            MemctlError: as ``read``.
        """
        return ""

    def list_memories(self, where: Selection) -> AsyncGenerator[MemoryInfo]:
        """Yield a catalog of the memories that ``read`` gives, counting their selected messages.

        Raises:
            MemctlError: as ``read``.
        """
        return catalog(self.read(where), self.dialect)

    async def headers(self, where: Selection) -> AsyncGenerator[Memory]:
        """Yield what the memories that ``read`` gives have besides messages.

        A store overrides it where it need not read messages to tell.
        """
        async with aclosing(self.read(where)) as pages:
            async for page in pages:
                if page.offset == 0:
                    yield page.memory

    async def duplicates(self, where: Selection) -> AsyncGenerator[tuple[Memory, int]]:
        """Yield ``headers``, each with how many of its message ids came before in the memory.

        Of a summary it may say no more than whether there is one.
        """
        async with aclosing(self.list_memories(where)) as infos:
            async for info in infos:
                yield Memory(info.key, "yes" if info.summary else "", info.ttl), info.repeated or 0

    def outline(self, where: Selection) -> AsyncGenerator[Page]:
        """Yield the pages of ``read``, whose messages may be empty: ids, order, marks and headers.

        It shows which memories changed.  ``where`` selects whole memories.  A store overrides it
        where it need not read messages, and claims ``Features.cheap_outline``.
        """
        return self.read(where)

    def read_with_anchors(self, where: Selection) -> AsyncGenerator[Page]:
        """Yield the pages of ``read``, with ``Page.anchors`` wherever messages are left out.

        A store with ``Features.cheap_positions`` overrides it where its ``read`` does not set them.
        """
        return self.read(where)

    async def search(self, query: str, where: Selection, top: int) -> list[ServiceHit]:  # noqa: ARG002
        """Return the best messages that the service of the store finds, at most ``top``, in order.

        A store overrides it whose service searches texts, and claims ``Features.search``.  The
        service alone says what it finds; all that is returned is selected.  Of a service that finds
        much that is not, only so much is read: there may be more.

        Raises:
            UsageError: there is no such service, the query is empty, or ``where`` has ``last`` or
                ``spare``.
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
        """Yield the messages whose texts match, in any order, without marks and position.

        ``where`` selects whole memories.  They need not be those of one moment.  A store overrides
        it where it need not put messages in order.

        Raises:
            MemctlError: as ``read``.
        """
        async with aclosing(self.read(where)) as pages:
            async for page in pages:
                for index in matches([entry.message for entry in page.messages]):
                    entry = page.messages[index]
                    yield page.memory.key, StoredMessage(entry.id, entry.message)

    async def snapshot(self, key: MemoryKey) -> Snapshot:
        """Return a memory held whole; one that is not there is empty.

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
        """Return those of the ids that stand in a memory and are none of its messages.

        An edit can put messages behind them.

        Raises:
            MemctlError: as ``read``.
        """
        return frozenset()

    # Changing it

    async def edit(self, edits: AsyncGenerator[Edit]) -> AsyncGenerator[WriteResult]:
        """Change memories, each whole or not at all; yield a WriteResult as each becomes durable.

        Agents may read and write meanwhile: what they add stays, and what they see is the memory
        before or after.  A memory of which anything is not as the edit says is left alone, and
        fails with the code ``changed``: a message to be changed is not there with these marks, one
        to be put in is there, the place for it is not, the summary is another.  Other messages may
        be anything.  A memory that others do not release fails with ``held``.  Other codes are
        those of ``write``.  A memory whose messages all go keeps what else it has, where the store
        has a place for that.  What the reverse of an edit would not restore, ``WriteResult.before``
        says; an edit that has it as ``Edit.before`` restores that too, where nothing else is in it.

        This default reads a memory, changes it, and writes it with REPLACE at the version that it
        read, a few times where others were faster.  It holds one memory at a time, and needs a
        store that sets ``Memory.version``.

        Raises:
            Unavailable: the store went away; memories without a WriteResult are as they were.
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
                return WriteResult(key, failure=NO_VERSION)
            changed, result = apply_edit(edit, there, self.dialect)
            if changed is None:
                return result
            # ADD fails where another program has made the memory meanwhile.
            mode = WriteMode.REPLACE if there.exists else WriteMode.ADD
            async with aclosing(self.write(changed.pages(), mode)) as results:
                async for written in results:
                    if written.failure is not None:
                        result = written
            if result.failure is None or result.failure.code != "changed":
                return result
        return result

    def maintenance(self) -> Maintenance:
        """Return what finds and repairs damage that no message shows."""
        return Maintenance(self)

    # Erasing

    async def names(self, where: Selection) -> AsyncGenerator[MemoryKey]:
        """Yield the names under which anything is kept that ``erase`` removes, each once or more.

        ``where`` selects by users and sessions.  Those of damaged memories come, too.  A user of
        whom there is something, but no memory, such as a row, has an empty session.

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
        """Remove memories and all that is kept of them; yield a WriteResult as each is gone.

        ``where`` selects by users and sessions.  Messages, marks and summaries go, and so do the
        rows, keys and files that hold nothing else, the name with them; if no session of a user is
        left, what names the user goes, too.  All that belongs to others stays as it is, byte for
        byte.  A memory goes whole or not at all.  Nothing is kept for an undo.

        This default deletes the messages and the summary of each memory by ``edit``, and holds one
        memory at a time.  It fails (``refused``) where the name of the memory stays.

        Raises:
            Unavailable: the store went away; memories without a WriteResult are as they were.
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

    # The place

    async def lock(self, owner: str) -> None:
        """Keep other memctl runs from writing here until ``close``; called once, on a target.

        ``owner`` is a short text of one line that says which run holds it: with the same text the
        same run may come again.  Agents and readers are not hindered.  A lock ends with its run,
        however that ends.  This default locks a file next to the path of the store, or, for a
        store without a path, one that stands for its ``identity`` on this machine.

        Raises:
            Busy: another run holds it.
            Unavailable: the place does not let it be locked.
        """
        path = self.location.path
        self._file_lock = FileLock(
            path if path.name else stand_in(await self.identity()), self.label
        )
        self.warnings += await self._file_lock.take_in_thread(owner)

    def unlock(self) -> None:
        """Release the lock of the default ``lock``; a lock of the store's own ends in ``close``."""
        if self._file_lock is not None:
            self._file_lock.release()

    async def identity(self) -> str:
        """Return a text that two stores share when they are the same place."""
        path = self.location.path
        return f"file:{same_file(path)}" if path.name else self.location.url

    async def check_integrity(self, where: Selection) -> None:  # noqa: B027 - a live store has none
        """Read a file through once, so that nothing is written of one that is damaged.

        A live store has nothing to check.

        Raises:
            BadData: the file is not what it claims to be.
        """

    async def unrestorable(self, where: Selection) -> str:  # noqa: ARG002 - most keep nothing else
        """Return what selected messages may have that undo could not restore; empty if nothing.

        Such as ``the column 'extra' of the table 'message'``, where that has values in one of the
        selected sessions.

        Raises:
            MemctlError: as ``read``.
        """
        return ""

    def resolve_names(self, keys: Iterable[MemoryKey]) -> None:  # noqa: B027 - most are plain
        """Tell a store with ambiguous names which memories may be in it."""

    async def keeps_summary(self, key: MemoryKey) -> bool:  # noqa: ARG002 - of most stores all do
        """Return whether there is a place for a summary from which the agent will read it.

        A session state that memctl would have to make is none: it lacks what else the application
        keeps there.

        Raises:
            MemctlError: as ``read``.
        """
        return self.features.summaries

    def skip_damage(self) -> None:
        """Have ``read`` pass over what is damaged from now on; ``damage`` lists it."""
        self.skips_damage = True
