"""What the operations tell a program."""

from __future__ import annotations

from dataclasses import dataclass, field

from memctl.errors import Failure
from memctl.model import MemoryKey

Failures = list[tuple[MemoryKey, Failure]]
"""Memories that were left as they were, and why."""


@dataclass(frozen=True, slots=True)
class Copied:
    """What a copy did.

    ``memories`` were written, whole or the rest of them, with ``messages`` in all; ``unchanged``
    memories were in the target already.  ``run`` is for ``memctl undo``, None where there is
    nothing to take back.
    """

    memories: int
    messages: int
    unchanged: int
    failures: Failures = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    run: str | None = None


@dataclass(frozen=True, slots=True)
class Changed:
    """What a change did, or would do: memories, messages in them, and what could not be done.

    ``run`` is for ``memctl undo``, None where there is nothing to take back.
    """

    memories: int
    messages: int
    failures: Failures = field(default_factory=list)
    run: str | None = None


@dataclass(frozen=True, slots=True)
class Compressed:
    """What a compression did.

    ``messages`` of so many ``memories`` were summed up.  ``before`` and ``after`` are the tokens
    that agents read of these memories.  ``cost`` is None where no prices are known.
    """

    memories: int
    messages: int
    before: int
    after: int
    cost: float | None = None
    failures: Failures = field(default_factory=list)
    run: str | None = None
