"""The reports of ``inspect``: what is in a store."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, ClassVar

from msgspec import UNSET, field

from memctl.reports.report import (
    Amount,
    Count,
    Divisible,
    First,
    Last,
    Maybe,
    OfMemory,
    Path,
    Place,
    Positive,
    Report,
    Row,
    Session,
    Unread,
    User,
    WhyUnread,
    added,
    first,
    left_out,
    one_of,
)

Counts = dict[str, Count]


class EmbeddingRow(Row):
    """The kind of the vectors of facts, if the store has vectors."""

    model: str
    """Empty if unknown."""
    dimensions: Positive


class InspectedStore(Row, kw_only=True):
    """The store."""

    rules: ClassVar = {"capabilities": first, "embedding": first}
    url: Place
    kind: str
    what: str
    """The detected kind of store, such as AgentScope 2.x sessions in Redis."""
    capabilities: list[str]
    """What the store can hold in addition to messages and marks."""
    embedding: Maybe[EmbeddingRow] = UNSET


class Totals(Row, kw_only=True):
    """Sums over the selected memories."""

    rules: ClassVar = {"users": left_out, "first": min, "last": max}
    users: Maybe[Count] = UNSET
    """Left out with --shards: a user may be in several parts."""
    without_user: Count = 0
    """Memories that belong to no user; they count as no user."""
    memories: Count = 0
    messages: Count | None = 0
    """Null if they were not counted; --sort messages counts them."""
    bytes: Count = 0
    """The bytes of the stored JSON of the messages; of sessions that are files, of the files."""
    marks: Counts = field(default_factory=dict)
    """Messages by mark."""
    roles: Counts = field(default_factory=dict)
    """Messages by role."""
    unread: Unread = field(default_factory=dict)
    """Messages that the framework does not read, by reason."""
    first: First = None
    last: Last = None
    summaries: Count | None = None
    """Memories with a summary; null if the store has no place for summaries."""


class InspectedMemory(Row):
    """A memory."""

    user: User
    session: Session
    messages: Count | None
    """Null if they were not counted; --sort messages counts them."""
    bytes: Count
    """The bytes of the stored JSON of the messages; of a session that is files, of the files."""
    marks: Counts
    """Messages by mark."""
    unread: Unread
    """Messages that the framework does not read, by reason."""
    first: First
    last: Last
    summary: bool | None
    """Whether the memory has a summary; null if the store does not know."""
    ttl: Amount | None
    """Seconds until it expires; null for never."""
    path: Maybe[Path] = UNSET
    title: Maybe[str] = UNSET
    """The title of a session of a coding agent."""
    project: Maybe[str] = UNSET
    """The folder in which the coding agent worked."""


class InspectReport(Divisible, kw_only=True):
    """The contents of a store."""

    lists = ("memories",)
    store: InspectedStore
    totals: Totals
    memories: list[InspectedMemory]
    """As many as --limit allows."""


class GroupRow(Row, kw_only=True):
    """Messages with the same value, which stands under the name of --by."""

    user: Maybe[str] = UNSET
    mark: Maybe[str] = UNSET
    role: Maybe[str] = UNSET
    name: Maybe[str] = UNSET
    hour: Maybe[str] = UNSET
    day: Maybe[str] = UNSET
    week: Maybe[str] = UNSET
    month: Maybe[str] = UNSET
    memories: Count = 0
    messages: Count = 0
    bytes: Count = 0

    @property
    def value(self) -> str:
        """The value that the messages share."""
        names = self.user, self.mark, self.role, self.name, *self._times
        return next(name for name in names if name is not UNSET)

    @property
    def is_time(self) -> bool:
        """True if the value is an hour, a day, a week or a month."""
        return any(time is not UNSET for time in self._times)

    @property
    def _times(self) -> tuple[Maybe[str], ...]:
        return self.hour, self.day, self.week, self.month


def in_order(groups: Iterable[GroupRow]) -> list[GroupRow]:
    """Return groups in the order of their times; other groups with the largest first."""
    return sorted(groups, key=lambda group: group.value if group.is_time else -group.messages)


def _groups(lists: list[list[GroupRow]]) -> list[GroupRow]:
    """Add the groups of the same value, and order them as ``inspect`` does."""
    return in_order(added("value")(lists))


class InspectByReport(Divisible, tag="memctl/inspect/1", kw_only=True):
    """The messages by a value (--by)."""

    lists = ("groups",)
    rules: ClassVar = Divisible.rules | {"groups": _groups}
    by: Annotated[str, one_of("user mark role name hour day week month")]
    """The value of --by; each group has a key of this name."""
    groups: list[GroupRow]


class InspectedMessage(OfMemory, kw_only=True):
    """A message, with --messages."""

    position: Positive
    """The position in the memory, whatever is selected."""
    id: str
    marks: list[str]
    unread: WhyUnread
    message: dict[str, Any]
    """The message as it is stored: Msg.to_dict() of AgentScope 1.x. Numbers may be NaN or Infinity,
    as Python writes them."""


class InspectMessagesReport(Divisible, tag="memctl/inspect/1", kw_only=True):
    """The messages themselves (--messages)."""

    lists = ("messages",)
    messages: list[InspectedMessage]


class TailReport(Report, tag="memctl/tail/1"):
    """The new messages. ``memctl tail --json`` writes each as a line, without this object."""

    lists = ("messages",)
    messages: list[InspectedMessage]


class RotatedRow(Row):
    """A file of a rotation."""

    file: str
    time: str
    """The local time in its name."""
    bytes: Count


class Rotation(Row):
    """The files of the rotation, if the store is the name of a rotation."""

    name: str
    """The name without the time."""
    files: list[RotatedRow]
    """The newest first."""


class InspectRotationReport(Report, tag="memctl/inspect/1"):
    """The files of a rotation."""

    lists = ("rotation.files",)
    rotation: Rotation


class ThreadRow(Row):
    """A thread of LangGraph with its checkpoints, or a folder with its archived files."""

    session: str
    checkpoints: Count


class Checkpoints(Row):
    """The contents, if the store is an archive of pruned rows."""

    created: str
    source: Place
    engine: Annotated[str, one_of("sqlite postgresql agentscope-java")]
    checkpoints: Count
    rows: Count
    """Rows of all tables."""
    threads: list[ThreadRow]


class InspectCheckpointsReport(Report, tag="memctl/inspect/1"):
    """The contents of an archive of pruned rows."""

    lists = ("checkpoints.threads",)
    checkpoints: Checkpoints
