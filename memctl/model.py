"""The data that memctl moves: memories, their messages, and changes of them.  No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from memctl.errors import Failure

PAGE_BYTES = 2 * 1024 * 1024
PAGE_ENTRIES = 1000
"""A page holds about so many bytes of messages, and at most so many of them."""

LARGEST_MESSAGE = 512 * 1024 * 1024
"""The limit of a message in bytes, that of a value in Redis: no archive or journal holds more."""


class MemoryKey(NamedTuple):
    """The name of one memory: its user, its session, and its part of that session.

    ::

        MemoryKey("ada", "kyoto-trip")
        MemoryKey("ada", "kyoto-trip", "planner.memory")

    ``part`` is empty unless one session holds several memories (a session-state file with two
    agents): then it is the path of this one inside the state, such as ``planner.memory``.
    """

    user: str
    session: str
    part: str = ""

    def __str__(self) -> str:
        name = f"{self.user!r}/{self.session!r}"
        return f"{name} ({self.part})" if self.part else name


class StoredMessage(NamedTuple):
    """One message of a memory, as it is stored.

    ::

        StoredMessage("m1", b'{"id": "m1", "role": "user", "content": "Hi"}', ("hint",))

    ``message`` is the JSON text as it was stored: valid UTF-8, one JSON object, otherwise
    unchanged (it may hold ``NaN``, huge integers, ``\\u0000`` and escaped lone surrogates).
    ``marks`` keep the order of the store, without repeats.  ``position`` is the column ``index``
    of the SQL layout where the source has one: it orders messages across users who share a session.
    ``shape`` says how the store holds it, where that is not the way in which memctl would write it:
    a text of the store's own, which an undo hands back to it.
    """

    id: str
    message: bytes
    marks: tuple[str, ...] = ()
    position: int | None = None
    shape: str = ""


@dataclass(frozen=True, slots=True)
class Memory:
    """The data of a memory besides its messages.

    ``summary`` is AgentScope's ``_compressed_summary``: ``""`` where there is none, ``None`` where
    the store has no place for one.  ``ttl`` is the time to its expiry in seconds, ``None`` where
    it does not expire.
    ``extra`` is what else the dialect keeps of a memory, a text of its own such as the record of a
    session of AgentScope 2.x; empty where there is nothing.  ADD to a memory and ``edit`` keep that
    of the store.
    ``place`` is the path at which it stood in its session state, such as ``agent.memory``: a new
    state gets it there, as the application expects it; it is not part of what the memory is.
    ``owner`` is the user that the session belongs to in AgentScope's SQL tables, where users share
    the session and that is another one; a new row of the session names the owner.

    ``version`` is opaque: ``read`` sets it where the store knows it at the first page, and it
    changes whenever the stored memory does.  ``write`` with REPLACE of a memory that has a version
    replaces that version only.
    """

    key: MemoryKey
    summary: str | None = None
    ttl: float | None = None
    extra: str = ""
    place: str | None = field(default=None, compare=False)
    owner: str | None = field(default=None, compare=False)
    version: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Page:
    """Some consecutive messages of one memory.

    ::

        Page(Memory(key), messages[:1000], last=False)
        Page(Memory(key), messages[1000:], offset=1000)

    ``offset`` counts the messages of the memory before ``messages``; ``last`` closes the memory.  A
    memory without messages is one page without messages.  Pages of one memory follow one another.

    Where messages are selected, ``anchors`` names for each message the last one before it that is
    not selected, None where there is none, and ``indexes`` how many stand before it in the memory,
    if whole memories are read for that.
    """

    memory: Memory
    messages: list[StoredMessage]
    offset: int = 0
    last: bool = True
    anchors: list[str | None] | None = None
    indexes: list[int] | None = None

    @property
    def places(self) -> Sequence[int]:
        """The ``indexes`` of its messages; without them those of a memory that is read whole."""
        if self.indexes is not None:
            return self.indexes
        return range(self.offset, self.offset + len(self.messages))


@dataclass(slots=True)
class MemoryInfo:
    """A row of the catalog: the counts of a memory, without its messages.

    ``bytes`` counts the stored JSON of the messages.  ``first`` and ``last`` are the earliest and
    the latest timestamp, as stored.  ``marks`` and ``roles`` count messages.  ``summary`` is
    None where the store cannot hold one.  ``repeated`` counts messages whose id came before in the
    memory; None where the store cannot say.
    """

    key: MemoryKey
    messages: int = 0
    bytes: int = 0
    marks: dict[str, int] = field(default_factory=dict)
    roles: dict[str, int] = field(default_factory=dict)
    first: str | None = None
    last: str | None = None
    summary: bool | None = None
    ttl: float | None = None
    repeated: int | None = None


class Embedding(NamedTuple):
    """The origin and size of the vectors of a store of facts.

    ``model`` is the name of the model that made them, empty where the store does not know it.
    """

    model: str
    dimensions: int

    def fits(self, other: Embedding) -> bool:
        """Return whether the vectors of both are of one kind, as far as can be told."""
        models = {self.model, other.model} - {""}
        return self.dimensions == other.dimensions and len(models) < 2

    def __str__(self) -> str:
        return f"{self.model or 'an unknown model'} with {self.dimensions} dimensions"


class OnConflict(StrEnum):
    """The ways to treat a memory whose target holds something else."""

    FAIL = "fail"
    SKIP = "skip"
    APPEND = "append"
    REPLACE = "replace"


class ToolPairPolicy(StrEnum):
    """The policy where the selection parts a tool call from its result."""

    SPLIT = "split"
    KEEP = "keep"
    DELETE = "delete"


class WriteMode(StrEnum):
    """The ways in which a store takes the pages of a memory.

    ADD puts them after exactly ``offset`` messages (the first page's) and fails where the memory
    holds another number; REPLACE makes the pages the whole memory.
    """

    ADD = "add"
    REPLACE = "replace"


class Change(NamedTuple):
    """A change of one message of a memory.

    ::

        Change("m1", old=("hint",))                    # delete it
        Change("m1", old=("hint",), new=())            # take its mark off
        Change("m1", new=(), message=text, after="m0")  # put it in after m0

    ``old`` are the marks that it has, in any order; None where it is not there, and is put in.
    ``new`` are those that it is to have; None where it is to go.  A message that is put in comes
    after the one with the id ``after``, which the edit leaves in place, and after those that were
    put there before it; None is the beginning of the memory.  ``message`` and ``position`` are
    those of the StoredMessage that is put in.  ``was`` is the shape that the message has, and
    ``shape`` the one that it is to have, as in StoredMessage; a store may ignore them.

    Of messages with one id, ``at`` tells which it is: how many messages stand before it, in the
    memory as it is; ``to`` says the same of the memory as it is to be.
    """

    id: str
    old: tuple[str, ...] | None = None
    new: tuple[str, ...] | None = None
    message: bytes = b""
    after: str | None = None
    position: int | None = None
    was: str = ""
    shape: str = ""
    at: int | None = None
    to: int | None = None


@dataclass(frozen=True, slots=True)
class Edit:
    """Some consecutive changes of one memory, in the order of its messages.

    ::

        Edit(Memory(key), [Change("m1", old=("hint",))])

    ``memory.summary`` is the one that it is to have, None for the one that it has; ``summary`` is
    the one that it must have for that, None for whatever it has.  ``memory.ttl`` counts only where
    the edit makes the memory anew: a memory keeps its expiry.  ``offset`` counts the changes of the
    memory before ``changes``; ``last`` closes it.  The edits of one memory follow one another, each
    about as large as a Page at most.

    An edit that undoes a change has ``before`` and ``shared_ids`` from its ``WriteResult``.
    Messages with these ids may exist although the edit inserts further messages with the same ids.
    """

    memory: Memory
    changes: list[Change]
    offset: int = 0
    last: bool = True
    summary: str | None = None
    before: str = ""
    shared_ids: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem of one memory, or of a store as a whole (``key`` is None).

    ``code`` is one of those that ``memctl.ops.doctor.findings`` explains.  ``count`` says how many
    messages (or whatever it counts there) are concerned, ``examples`` names a few of them, and
    ``detail`` is what cannot be said of every such fault.
    """

    code: str
    key: MemoryKey | None
    count: int = 1
    examples: tuple[str, ...] = ()
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ServiceHit:
    """A message that the service of a store found; see ``Store.search``.

    ::

        ServiceHit(key, message, 0.83)

    ``score`` is that of the service: higher is better, and it compares with those of the same
    search alone.  ``position`` counts the messages of the memory before it, where the service knows
    that.
    """

    key: MemoryKey
    message: StoredMessage
    score: float
    position: int | None = None


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The outcome for one memory: it is durable, or ``failure`` says why not.

    ``written`` counts messages that were put in or got other marks, ``deleted`` those that went.
    ``before`` says what the reverse of the change would not restore, such as that there was no
    session: a text of the store's own, for ``Edit.before``; empty where there is no such thing.
    ``shared_ids`` counts, by the id of a deleted message, the remaining messages with that id.
    """

    key: MemoryKey
    written: int = 0
    deleted: int = 0
    failure: Failure | None = None
    before: str = field(default="", compare=False)
    shared_ids: dict[str, int] = field(default_factory=dict, compare=False)
