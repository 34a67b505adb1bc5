"""The contract between the operations and the stores.

A store is one layout of memory in one place.  Operations know stores by this contract alone, and
every store passes the same conformance suite (``tests/conformance``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from enum import Flag, auto
from types import TracebackType
from typing import Any, ClassVar, Self

from memctl.location import Location
from memctl.model import Edit, Entry, Fault, Memory, MemoryInfo, MemoryKey, Page, Tally, WriteMode
from memctl.selection import Selection
from memctl.streams import closing

PAGE_BYTES = 2 * 1024 * 1024
PAGE_ENTRIES = 1000

Record = dict[str, Any]
"""What ``Store.unmend`` needs to know of a part of the mending: JSON, with its ``code``."""
Note = Callable[[Record], Awaitable[None]]
Matches = Callable[[Sequence[bytes]], Iterable[int]]
"""Which of some messages are looked for, by their places among them, given their texts."""


class Capability(Flag):
    """What a store can hold beside messages and marks.  What is not claimed is refused."""

    NONE = 0
    SUMMARIES = auto()
    """A place for the compressed summary."""
    TTL = auto()
    """A memory may expire."""
    EMPTY = auto()
    """A memory without messages exists."""
    REPEATED_IDS = auto()
    """One message id may occur twice in a memory."""
    MARK_ORDER = auto()
    """The order of the marks of a message."""
    PARTS = auto()
    """Several memories in one session."""
    PARALLEL = auto()
    """Several writers at once are of use."""

    def names(self) -> list[str]:
        """The names as the reports show them, such as ``["summaries", "ttl"]``."""
        return [flag.name.lower().replace("_", "-") for flag in self if flag.name]


class Store(ABC):
    """One place that holds memories.

    Opened as an async context manager.  Everything streams: no method holds more than a page of
    any one memory, whatever its size.  Errors are those of ``memctl.errors``: no exception of a
    driver leaves a store.
    """

    kind: ClassVar[str]
    capabilities: Capability
    single: ClassVar[bool] = False
    """Whether it holds one session only."""
    ambiguous: ClassVar[bool] = False
    """Whether its names can be read in several ways, until ``expect`` tells what may be in it."""
    ticking: ClassVar[bool] = True
    """Whether the expiry of a memory draws nearer while it lies there."""
    brief: ClassVar[bool] = False
    """Whether ``outlines`` leaves the messages where they are."""
    picks: ClassVar[bool] = False
    """Whether ``pick`` spares itself messages that are not selected."""
    mends: ClassVar[frozenset[str]] = frozenset()
    """The codes of the faults that ``mend`` takes."""
    at_once: ClassVar[bool] = False
    """Whether all that is written becomes durable together, when the pages end."""

    change: bool = False
    """Whether what exists is to be changed: set before ``open``; ``create`` includes it."""

    def __init__(self, location: Location, *, create: bool = False) -> None:
        """``create`` makes what is missing (a target); without it the place must exist."""
        self.location = location
        self.label = location.label
        self.create = create
        self.origin: str | None = None
        """The label of the store that is copied here: an archive notes it."""
        self.warnings: list[str] = []
        """What the operator should know, a line each, such as messages that were left out."""
        self.examined = False
        self.damage: list[Fault] = []
        """What ``read`` passed over since ``examine``."""

    async def __aenter__(self) -> Self:
        """Connects.

        Raises:
            Unavailable: the store cannot be reached or refuses the login.
            NotFound: it does not exist, and ``create`` is false.
            BadData: what is there is not this kind of store.
        """
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @abstractmethod
    async def open(self) -> None:
        """Connects; see ``__aenter__``."""

    @abstractmethod
    async def close(self) -> None:
        """Lets go of every connection, file and temporary file, whatever happened before."""

    @abstractmethod
    async def lock(self, holder: str) -> None:
        """Keeps other memctl runs from writing here until ``close``; called once, on a target.

        ``holder`` is a short text of one line that says which run holds it: with the same text the
        same run may come again.  Agents and readers are not hindered.  A lock ends with its run,
        however that ends.

        Raises:
            Busy: another run holds it.
            Unavailable: the place does not let it be locked.
        """

    @abstractmethod
    async def identity(self) -> str:
        """A text that two stores share when they are the same place."""

    async def prove(self, where: Selection) -> None:  # noqa: B027 - most stores prove nothing
        """Reads a file through once, so that nothing is written of one that is damaged.

        A live store has nothing to prove.

        Raises:
            BadData: the file is not what it claims to be.
        """

    async def keeps_summary(self, key: MemoryKey) -> bool:  # noqa: ARG002 - of most stores all do
        """Whether there is a place for the summary of a memory from which its agent will read it.

        A session state that memctl would have to make is none: it lacks what else the application
        keeps there.

        Raises:
            MemctlError: as ``read``.
        """
        return Capability.SUMMARIES in self.capabilities

    async def is_empty(self) -> bool:
        """Whether nothing is in it, as far as can be told without reading much."""
        async with closing(self.outlines(Selection())) as pages:
            async for _ in pages:
                return False
        return True

    @abstractmethod
    def memories(self, where: Selection) -> AsyncIterator[MemoryInfo]:
        """The catalogue of the selected memories, each counting its selected messages.

        Computed by the store where it can.  A memory is listed when its key is selected and it
        has a selected message, or when the selection does not look at messages at all.
        """

    def expect(self, keys: Iterable[MemoryKey]) -> None:  # noqa: B027 - most names are plain
        """Tells an ambiguous store which memories may be in it."""

    async def headers(self, where: Selection) -> AsyncIterator[Memory]:
        """What the memories that ``memories`` lists have beside messages.

        A store overrides it where it need not read messages to tell.
        """
        async with closing(self.read(where)) as pages:
            async for page in pages:
                if page.offset == 0:
                    yield page.memory

    async def repeats(self, where: Selection) -> AsyncIterator[tuple[Memory, int]]:
        """What ``headers`` gives, each with how many of its message ids came before in it.

        Of a summary it may say no more than whether there is one.
        """
        async with closing(self.memories(where)) as infos:
            async for info in infos:
                yield Memory(info.key, "yes" if info.summary else "", info.ttl), info.repeated or 0

    @abstractmethod
    def read(self, where: Selection) -> AsyncIterator[Page]:
        """Pages of the selected memories, memory after memory, messages in order.

        One pass over the store, however many memories match.  Lists the same memories as
        ``memories``.  ``where.last`` is honoured.  What is pushed down to the store must mean the
        same as ``Selection.matches`` (``Selection.apply`` filters pages of whole memories).
        """

    def pick(self, where: Selection) -> AsyncIterator[Page]:
        """What ``read`` gives, with ``Page.after`` wherever messages stay; see ``picks``.

        A store that ``picks`` overrides it where its ``read`` does not tell that.
        """
        return self.read(where)

    async def search(
        self, where: Selection, matches: Matches
    ) -> AsyncIterator[tuple[MemoryKey, Entry]]:
        """The messages whose texts ``matches``, in any order, their marks and index left out.

        ``where`` selects whole memories.  They need not be those of one moment.  A store overrides
        it where it need not put messages in order.

        Raises:
            MemctlError: as ``read``.
        """
        async with closing(self.read(where)) as pages:
            async for page in pages:
                for place in matches([entry.message for entry in page.entries]):
                    entry = page.entries[place]
                    yield page.memory.key, Entry(entry.id, entry.message)

    def examine(self) -> None:
        """From now on ``read`` passes over what is damaged, for ``faults`` to tell."""
        self.examined = True

    async def faults(self, where: Selection) -> AsyncIterator[Fault]:
        """What is wrong with the selected memories and cannot be told from their messages.

        Asked for behind a ``read`` of the same selection, whose damage comes first.  ``where``
        selects whole memories.  One pass over the store, in constant memory; agents may be at
        work meanwhile, and what they are in the middle of is no fault.

        Raises:
            MemctlError: as ``read``.
        """
        for fault in dict.fromkeys(self.damage):
            if fault.key is None or where.has_key(fault.key):
                yield fault

    async def mend(self, code: str, where: Selection, note: Note) -> int:
        """Mends a fault of ``mends`` in the selected memories; counts what ``faults`` counted.

        ``note`` is awaited with all that ``unmend`` needs, a part at a time, before anything of
        that part becomes durable.  Agents may be at work meanwhile, as with ``edit``.

        Raises:
            MemctlError: as ``edit``; what was noted is mended, or as it was.
        """
        raise NotImplementedError(code)

    async def unmend(self, records: AsyncIterator[Record]) -> int:
        """Takes back what ``mend`` noted, as far as it is as ``mend`` left it; counts that.

        The records come in the reverse order, and some of them may never have been carried out.

        Raises:
            MemctlError: as ``edit``.
        """
        raise NotImplementedError(self.kind)

    def outlines(self, where: Selection) -> AsyncIterator[Page]:
        """The pages of ``read``, whose messages may be empty: ids, order, marks and headers.

        What tells which memories changed.  A store overrides it where it need not read messages.
        ``where`` selects whole memories.
        """
        return self.read(where)

    @abstractmethod
    def write(
        self, pages: AsyncIterator[Page], mode: WriteMode = WriteMode.ADD
    ) -> AsyncIterator[Tally]:
        """Writes memories, each whole or not at all, and yields a Tally as each becomes durable.

        Many small memories may share a transaction; a huge one comes in many pages.  A memory
        that the store refuses fails in its Tally, the others go on.  The codes of such failures:
        ``changed`` (ADD found another number of messages than the offset), ``refused`` (a value the
        store does not take), ``repeated-id``, ``bad-name`` (a key that cannot be written).

        With ``Memory.summary`` None the summary of the target stays; with ``Memory.ttl`` None its
        expiry does.

        Raises:
            Unavailable: the store went away; memories without a Tally are not written.
        """

    @abstractmethod
    def edit(self, edits: AsyncIterator[Edit]) -> AsyncIterator[Tally]:
        """Changes memories, each whole or not at all, and yields a Tally as each becomes durable.

        Agents may read and write meanwhile: what they add stays, and what they see is the memory
        before or after.  A memory of which anything is not as the edit says is left alone, and
        fails with the code ``changed``: a message to be changed is not there with these marks, one
        to be put in is there, the place for it is not, the summary is another.  Other messages may
        be what they will.  A memory that others do not let go of fails with ``held``.  Other codes
        are those of ``write``.  A memory whose messages all go keeps what else it has, where the
        store has a place for that.

        Raises:
            Unavailable: the store went away; memories without a Tally are as they were.
        """


class Pacer:
    """Chooses how many rows to ask a driver for, so that a page stays near PAGE_BYTES.

    Drivers fetch by number of rows, whatever their size; the size of the last rows tells how many
    of the next ones fit.
    """

    def __init__(self) -> None:
        self.rows = 16

    def saw(self, rows: int, size: int) -> None:
        """Learns from a fetch of ``rows`` rows of ``size`` bytes in all."""
        if rows:
            fit = PAGE_BYTES * rows // max(size, 1)
            self.rows = max(1, min(PAGE_ENTRIES, fit, self.rows * 4))
