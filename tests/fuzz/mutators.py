"""All mutators, by name."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz.bench import Specimen
from tests.fuzz.files import Archives, Folders, Mutator, Odd, Sqlite, States, file_targets
from tests.fuzz.following import (
    FollowingMysql,
    FollowingPostgresql,
    FollowingRedis,
    FollowingSqlite,
)
from tests.fuzz.frameworks import Tables, Trees
from tests.fuzz.servers import MysqlRows, PostgresqlRows, RedisKeys
from tests.fuzz.settings import CommandLines, Configurations, Journals
from tests.fuzz.surroundings import SharedMysql, SharedPostgresql, SharedRedis, SharedSqlite
from tests.support.servers import Missing

_HERE: list[Callable[[], Mutator]] = [
    *(Archives, States, Folders, Sqlite, Odd, Configurations, CommandLines, Journals),
    *(Tables, Trees, SharedSqlite, FollowingSqlite),
]
_ON_SERVERS: list[Callable[[Path], Mutator]] = [
    *(RedisKeys, PostgresqlRows, MysqlRows, SharedPostgresql, SharedMysql, SharedRedis),
    *(FollowingPostgresql, FollowingMysql, FollowingRedis),
]


def known() -> dict[str, int]:
    """Return the weights of all mutators."""
    kinds: list[Any] = [*_HERE, *_ON_SERVERS]
    return {kind.name: kind.weight for kind in kinds}


def prepare(
    names: list[str], servers: Path
) -> tuple[list[Mutator], list[Callable[[Random], Specimen]]]:
    """Return the mutators of these names with their seeds, and functions that make targets.

    ``servers`` is the folder of the servers, which are shared by all who use it.
    """
    mutators = [kind() for kind in _HERE if _name(kind) in names]
    for kind in _ON_SERVERS:
        if _name(kind) in names:
            try:
                mutators.append(kind(servers))
            except Missing as missing:
                sys.stderr.write(f"left out: {missing}\n")
    return mutators, file_targets()


def _name(kind: Any) -> str:
    return str(kind.name)
