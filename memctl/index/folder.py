"""The folder of the indexes: a file a store."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path


@dataclass(frozen=True, slots=True)
class IndexInfo:
    """An index: its file, its store, its contents, and when it was brought up to date.

    ``model`` is the name of the model of its vectors; empty without vectors.
    """

    path: Path
    label: str
    kind: str
    memories: int
    messages: int
    bytes: int
    updated: datetime
    model: str = ""


def indexes() -> list[IndexInfo]:
    """Return the indexes of this user, by the labels of their stores; damaged ones without counts."""
    raise NotImplementedError


def remove(info: IndexInfo) -> None:
    """Remove an index.

    Raises:
        Unavailable: it cannot be removed.
    """
    raise NotImplementedError
