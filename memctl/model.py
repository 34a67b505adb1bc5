"""The data that memctl moves: memories, messages, pages, edits and results.  No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

import msgspec
from msgspec import Struct

from memctl.errors import Failure

PAGE_BYTES = 2 * 1024 * 1024
PAGE_ENTRIES = 1000
"""The limits of a page: about ``PAGE_BYTES`` of messages, at most ``PAGE_ENTRIES`` messages."""

LARGEST_MESSAGE = 512 * 1024 * 1024
"""The largest message in bytes, equal to the limit of a Redis value."""


class MemoryKey(NamedTuple):
    """The name of a memory: user, session, and part of the session.

    ::

        MemoryKey("ada", "kyoto-trip")
        MemoryKey("ada", "kyoto-trip", "planner.memory")

    ``part`` is empty if the session holds one memory.  A session may hold several memories, such
    as a session-state file with two agents.  Then ``part`` is the path of the memory in the state,
    such as ``planner.memory``.
    """

    user: str
    session: str
    part: str = ""

    def __str__(self) -> str:
        name = f"{self.user!r}/{self.session!r}"
        return f"{name} ({self.part})" if self.part else name


NO_MEMORY = MemoryKey("", "")
"""Stands for the memory of data that belong to no known memory."""


class StoredMessage(NamedTuple):
    """A message as a store holds it.

    ::

        StoredMessage("m1", b'{"id": "m1", "role": "user", "content": "Hi"}', ("hint",))

    ``message`` is the stored JSON text, unchanged: valid UTF-8 and one JSON object.  The text may
    hold ``NaN``, huge integers, ``\\u0000`` and escaped lone surrogates.  ``marks`` keep the order
    of the store, without repeats.  ``position`` is the column ``index`` of the SQL layout, or None
    if the source has no such column.  Positions order messages across users who share a session.
    ``shape`` is a text in the store's own format.  The text says how the store holds the message,
    if memctl would write the message differently.  Undo passes ``shape`` back to the store.
    """

    id: str
    message: bytes
    marks: tuple[str, ...] = ()
    position: int | None = None
    shape: str = ""


@dataclass(frozen=True, slots=True)
class Memory:
    """The data of a memory besides its messages.

    ``summary`` is AgentScope's ``_compressed_summary``: ``""`` if the memory has no summary, None
    if the store has no place for a summary.  ``ttl`` is the time to expiry in seconds, None if the
    memory does not expire.

    ``extra`` is a text with further data of the memory in its dialect, such as the session record
    of AgentScope 2.x; it may be empty.  Only a call that creates or replaces the memory stores
    ``extra``.  In an existing memory, ``write`` with ``WriteMode.ADD`` keeps the stored ``extra``,
    and ``edit`` only removes deleted messages from it.

    ``place`` is the path of the memory in the session state, such as ``agent.memory``.  In a new
    session state, the memory is written at this path, because the application reads it there.
    Comparisons of memories ignore ``place``.

    ``owner`` is the owner of the session in AgentScope's SQL tables, if the session is shared and
    belongs to another user.  A new row of the session names this owner.

    ``version`` is an opaque text that changes whenever the stored memory changes.  It is None if
    the store has no versions, or does not know the version when it yields the first page.  If
    ``version`` is set, ``write`` with ``WriteMode.REPLACE`` fails if the stored memory has another
    version.

    ``waits`` is True if the framework has stopped in the middle of a step until a person or another
    program answers, and neither the messages nor ``extra`` say so.
    """

    key: MemoryKey
    summary: str | None = None
    ttl: float | None = None
    extra: str = ""
    place: str | None = field(default=None, compare=False)
    owner: str | None = field(default=None, compare=False)
    version: str | None = field(default=None, compare=False)
    waits: bool = field(default=False, compare=False)


class Page(Struct, frozen=True):
    """Consecutive messages of one memory.

    ::

        Page(Memory(key), messages[:1000], last=False)
        Page(Memory(key), messages[1000:], offset=1000)

    ``offset`` is the number of messages of the memory before ``messages``.  ``last`` is True for
    the last page of the memory.  A memory without messages is one page without messages.  Pages of
    one memory follow one another.

    In a page of selected messages, ``anchors`` holds for each message the id of the last unselected
    message before it, or None if there is none.  ``indexes`` holds for each message its index in
    the memory, counted from 0; it is None if the store read only a part of the memory.  ``unread``
    holds the reason for each message that the framework does not read (``dialects.view.Unread``),
    by ``places``; it is set where ``dialects.live.understood`` was asked.
    """

    memory: Memory
    messages: list[StoredMessage]
    offset: int = 0
    last: bool = True
    anchors: list[str | None] | None = None
    indexes: list[int] | None = None
    unread: Mapping[int, str] = msgspec.field(default_factory=dict)

    @property
    def places(self) -> Sequence[int]:
        """The index of each message of the page in the memory, counted from 0."""
        if self.indexes is not None:
            return self.indexes
        return range(self.offset, self.offset + len(self.messages))


class MemoryInfo(Struct):
    """A row of the catalog: the counts of a memory, without its messages.

    ``bytes`` is the size of the stored JSON of the messages.  ``first`` and ``last`` are the
    earliest and the latest timestamp, as stored.  ``marks`` and ``roles`` map each mark and each
    role to its number of messages.  ``summary`` is True if the memory has a summary, None if the
    store cannot hold summaries.
    ``repeated`` is the number of messages with the id of an earlier message of the memory, None if
    the store cannot tell.  ``unread`` maps each reason for which the framework does not read
    messages to their number, as far as messages say so; empty if only some messages are selected.
    ``title`` and ``project`` are the title of a session of a coding agent, and the folder in which
    the agent worked; empty in other stores, and if unknown.
    ``is_counted`` is False if the messages were not counted (``Store.survey``): then only
    ``bytes``, ``first``, ``last``, ``title`` and ``project`` are known.
    """

    key: MemoryKey
    messages: int = 0
    bytes: int = 0
    marks: dict[str, int] = msgspec.field(default_factory=dict)
    roles: dict[str, int] = msgspec.field(default_factory=dict)
    first: str | None = None
    last: str | None = None
    summary: bool | None = None
    ttl: float | None = None
    repeated: int | None = None
    unread: dict[str, int] = msgspec.field(default_factory=dict)
    title: str = ""
    project: str = ""
    is_counted: bool = True


class Embedding(NamedTuple):
    """The embedding model and the size of the vectors in a store of facts.

    ``model`` is the name of the model, empty if the store does not know the model.
    """

    model: str
    dimensions: int

    def fits(self, other: Embedding) -> bool:
        """Return whether the vectors of two stores may be of the same model.

        True if the sizes are equal, and the models are equal or one of them is unknown.
        """
        models = {self.model, other.model} - {""}
        return self.dimensions == other.dimensions and len(models) < 2

    def __str__(self) -> str:
        return f"{self.model or 'an unknown model'} with {self.dimensions} dimensions"


class OnConflict(StrEnum):
    """The treatment, in a copy, of a memory that the target holds with other data.

    REPLACE and MERGE give the memory the messages of the source, in their order.  MERGE keeps the
    other messages of the target, each after the message that it followed.
    """

    FAIL = "fail"
    SKIP = "skip"
    APPEND = "append"
    MERGE = "merge"
    REPLACE = "replace"

    @property
    def rewrites(self) -> bool:
        """True if memories that differ are written anew."""
        return self in (OnConflict.MERGE, OnConflict.REPLACE)


class ToolPairPolicy(StrEnum):
    """The treatment, in a deletion, of a tool call of which only the call or result is selected."""

    SPLIT = "split"
    KEEP = "keep"
    DELETE = "delete"


class WriteMode(StrEnum):
    """How a store writes the pages of a memory.

    ADD appends the pages.  ADD fails unless the memory holds exactly as many messages as the
    ``offset`` of the first page.  REPLACE makes the pages the whole memory.
    """

    ADD = "add"
    REPLACE = "replace"


class Change(NamedTuple):
    """A change of one message of a memory.

    ::

        Change("m1", old=("hint",))                    # delete it
        Change("m1", old=("hint",), new=())            # take its mark off
        Change("m1", new=(), message=text, after="m0")  # put it in after m0

    ``old`` are the present marks of the message, in any order; None inserts the message.  ``new``
    are the new marks; None deletes the message.

    An inserted message follows the message with the id ``after``.  If the edit inserts several
    messages after the same id, they keep the order of the changes.  ``after=None`` is the beginning
    of the memory.  ``message`` and ``position`` are the fields of the inserted StoredMessage.
    ``was`` is the present shape of the message, ``shape`` the new shape, as in StoredMessage.  A
    store may ignore shapes.

    ``at`` and ``to`` tell messages with equal ids apart.  ``at`` is the number of messages before
    the message in the present memory, ``to`` the number in the changed memory.
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


class Edit(Struct, frozen=True):
    """Consecutive changes of one memory, in message order.

    ::

        Edit(Memory(key), [Change("m1", old=("hint",))])

    ``memory.summary`` is the new summary; None keeps the present summary.  ``summary`` is the
    summary that the edit expects; None accepts every summary.  ``memory.ttl`` counts only if the
    edit creates the memory: an existing memory keeps its expiry.

    A large edit is split into several edits of the same memory, which follow one another.  Each
    is at most about as large as a Page.  ``offset`` is the number of changes in the edits of the
    memory before this one.  ``last`` is True for the last edit of the memory.

    An edit that undoes a change has ``before`` and ``shared_ids`` from the ``WriteResult`` of this
    change.  The edit may insert a message with an id in ``shared_ids``, although the memory has
    messages with this id.
    """

    memory: Memory
    changes: list[Change]
    offset: int = 0
    last: bool = True
    summary: str | None = None
    before: str = ""
    shared_ids: frozenset[str] = frozenset()


class Finding(Struct, frozen=True):
    """A problem that ``memctl doctor`` found in one memory, or in the store if ``key`` is None.

    ``code`` is one of the codes of ``memctl.ops.doctor.findings``.  ``count`` is the number of
    affected messages, or of other data, such as keys, if the code is about these.  ``examples``
    names a few of them.  ``detail`` holds the particulars of this finding, beyond the general text
    of the code.  ``remedy`` says what the user can do, if the text of the code does not fit.
    ``repairable`` is False if the store refuses the repair that the code has.
    """

    code: str
    key: MemoryKey | None
    count: int = 1
    examples: tuple[str, ...] = ()
    detail: str = ""
    remedy: str = ""
    repairable: bool = True


class ServiceHit(Struct, frozen=True):
    """A message that the search service of a store found; see ``Store.search``.

    ::

        ServiceHit(key, message, 0.83)

    ``score`` comes from the service.  Higher is better; scores of different searches cannot be
    compared.  ``position`` is the number of messages of the memory before the message, None if the
    service does not know.
    """

    key: MemoryKey
    message: StoredMessage
    score: float
    position: int | None = None


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The result of a write, edit or erase for one memory: durable, or failed with ``failure``.

    ``written`` counts inserted and re-marked messages, ``deleted`` counts deleted messages.

    ``before`` is a text in the store's own format, for ``Edit.before``; it may be empty.  It
    describes what the reverse of the change would not restore, such as the absence of the session.

    ``shared_ids`` maps the id of a deleted message to the number of remaining messages with this
    id.
    """

    key: MemoryKey
    written: int = 0
    deleted: int = 0
    failure: Failure | None = None
    before: str = field(default="", compare=False)
    shared_ids: dict[str, int] = field(default_factory=dict, compare=False)
