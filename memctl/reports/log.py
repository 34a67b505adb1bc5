"""The messages on stderr with ``--log-format json``."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET

from memctl.reports.report import (
    Amount,
    Count,
    Maybe,
    OfMemory,
    Place,
    Positive,
    Row,
    RunId,
    one_of,
)


class LoggedMemory(OfMemory):
    """A memory."""


class LoggedTotal(Row):
    """The total amount of work, if known."""

    memories: Maybe[Count] = UNSET
    messages: Maybe[Count] = UNSET
    parts: Maybe[Count] = UNSET


class LogLine(Row, kw_only=True):
    """One object a line on stderr."""

    time: str
    """ISO time with its zone."""
    level: Annotated[str, one_of("debug info warning error")]
    event: Annotated[
        str,
        one_of("opened detail note progress warning retry memory-failed part done error"),
    ]
    """Stable; docs/output.md explains each."""
    message: str
    """For people."""
    hint: Maybe[str] = UNSET
    """The hint of an error."""
    code: Maybe[str] = UNSET
    """The code of an error, or of the outcome of a memory."""
    command: Maybe[str | None] = UNSET
    run: Maybe[RunId] = UNSET
    store: Maybe[Place] = UNSET
    memory: Maybe[LoggedMemory] = UNSET
    seconds: Maybe[Amount] = UNSET
    """Seconds since the run began; in a progress line, since the phase began."""
    doing: Maybe[str] = UNSET
    """The phase of the run."""
    memories: Maybe[Count] = UNSET
    messages: Maybe[Count] = UNSET
    bytes: Maybe[Count] = UNSET
    tokens: Maybe[Count] = UNSET
    cost: Maybe[Amount | None] = UNSET
    total: Maybe[LoggedTotal] = UNSET
    shard: Maybe[str] = UNSET
    """The part of a run, such as 3/16."""
    exit: Maybe[Count] = UNSET
    """The exit code of a part."""
    attempts: Maybe[Positive] = UNSET
    """How often a part has run."""
    host: Maybe[str] = UNSET
    """The machine on which a part ended."""
    parts: Maybe[Count] = UNSET
    """The parts that have ended."""
    failed: Maybe[Count] = UNSET
    """The memories that failed in parts that have ended."""
    left: Maybe[Amount] = UNSET
    """Seconds, about."""
