"""The report of ``context``: what an agent reads of a memory."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from memctl.reports.doctor import StoreRow
from memctl.reports.report import (
    Count,
    Maybe,
    Path,
    Report,
    Row,
    Session,
    Unread,
    User,
    WhyUnread,
)


class ContextRow(Row):
    """A message of the context, or the summary."""

    id: str | None
    """Null for the summary."""
    summary: bool
    """True for the summary."""
    marks: list[str]
    tokens: Count
    """0 for a memory with a fault."""
    fault: str | None
    """Why AgentScope cannot load it."""
    unread: WhyUnread
    message: dict[str, Any]
    """The message as it is stored: Msg.to_dict() of AgentScope 1.x. Numbers may be NaN or Infinity,
    as Python writes them."""


class ContextTokens(Row):
    """The tokens of a context."""

    summary: Count
    messages: Count
    total: Count
    counted_by: str
    """estimate, or the tokenizer."""


class ContextReport(Report, kw_only=True):
    """The part of a memory that an agent sends to its model."""

    lists = ("messages",)
    store: StoreRow
    user: User
    session: Session
    path: Maybe[Path] = UNSET
    all: bool
    """Whether messages that the framework does not send are included."""
    messages: list[ContextRow]
    """The summary, if there is one, then the messages in order."""
    tokens: ContextTokens
    left_out: Count
    """Messages of the memory that the framework does not send, and that are not shown."""
    unread: Maybe[Unread] = UNSET
    """Messages of the memory that the framework does not send, by reason."""
