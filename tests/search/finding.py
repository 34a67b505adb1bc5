"""A store of AgentScope 1.x with some sessions, and searches of it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from memctl.model import MemoryKey, StoredMessage
from memctl.ops.index import Target
from memctl.ops.search import Hit, SearchOptions, SearchReport, search
from memctl.registry import make_store, parse
from memctl.selection import Selection
from tests.support.cli import fill
from tests.support.histories import entry, said

ADA = MemoryKey("ada", "a-1")


def talk(texts: Iterable[str], start: int = 0) -> list[StoredMessage]:
    """Messages with these texts, by turns of the user and the agent."""
    roles = "user", "assistant"
    return [
        entry(said(f"m{number}", text, roles[number % 2]))
        for number, text in enumerate(texts, start)
    ]


def make(path: Path, sessions: dict[MemoryKey, Iterable[str]]) -> Path:
    """Write a store with sessions of these texts."""
    memories = {key: talk(texts) for key, texts in sessions.items()}
    asyncio.run(fill(str(path), memories))
    return path


def find(
    *places: object, query: str, where: Selection | None = None, **options: Any
) -> SearchReport:
    """Search stores, as the command does."""
    targets = []
    for place in places:
        location = parse(str(place))
        targets.append(Target(location, lambda location=location: make_store(location)))
    work = search(targets, query, where or Selection(), SearchOptions(**options))
    return asyncio.run(work)


def ids(found: SearchReport | list[Hit]) -> list[str]:
    """Return the ids of the hits, best first."""
    hits = found.hits if isinstance(found, SearchReport) else found
    return [hit.id for hit in hits]


def index_files() -> list[Path]:
    """Return the indexes that are kept."""
    folder = Path(os.environ["XDG_CACHE_HOME"]) / "memctl" / "index"
    return sorted(folder.glob("*.index")) if folder.is_dir() else []


def settled(path: Path) -> Path:
    """Make the times of a file old enough for its index to be taken as it is."""
    for one in path.parent.glob(f"{path.name}*"):
        os.utime(one, (1_700_000_000, 1_700_000_000))
    return path
