"""Recognition of layouts by the keys of a Redis database."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from itertools import islice

from msgspec import Struct, field
from redis.exceptions import ResponseError

from memctl.engines.redis.pipeline import Pipeline, in_thread
from memctl.engines.redis.server import RedisServer
from memctl.engines.redis.text import decode, encode, escape
from memctl.errors import BadData, Uninitialised
from memctl.layouts.foreign import ForeignFormat, of_key
from memctl.location import Location, visible
from memctl.store import OpenMode

_ENOUGH = 50_000
"""The number of keys after which a scan stops if some keys were recognized."""
_COUNT = b"2000"
_EXAMPLES = 3
_DATABASES = 5
_PROBED = 20

_PATTERNS = {
    "session": re.compile(rb"user_id:.*:session:.*:state", re.DOTALL),
    "memory": re.compile(rb"user_id:.*:session:", re.DOTALL),
    "agentscope2": re.compile(rb"user:.*:(session:|agents?\b)", re.DOTALL),
    "langchain": re.compile(rb"message_store:"),
    "openai-agents": re.compile(rb"agents:session:.*:messages", re.DOTALL),
    "java": re.compile(rb".+/.+:(_keys|agent_state)$", re.DOTALL),
    "runtime": re.compile(rb"session:.*?:|user_memory:", re.DOTALL),
    "runtime-state": re.compile(rb"user_state:.*?:", re.DOTALL),
}
"""The patterns of the keys of each layout; the first pattern that matches counts."""
_DOUBTFUL = ("runtime", "runtime-state")
"""The layouts whose keys other programs may write, too."""
_OWN = b"memctl:"
_PREFIXED = re.compile(rb"(.+?)user_id:.*:session:", re.DOTALL)
_KEYSPACE = re.compile(r"^db(\d+):keys=(\d+)", re.MULTILINE)
_AGENTSCOPE2 = b"agentscope:"
JAVA_PREFIX = b"agentscope:session:"
"""The beginning of the keys of AgentScope Java, unless an application chose another one."""


class Keyspace(Struct):
    """The layouts of the Redis keys with a prefix, and a few keys of no known layout.

    ``foreign`` is the format of a key that memctl recognizes but does not read.
    """

    layouts: set[str] = field(default_factory=set)
    unknown: list[bytes] = field(default_factory=list)
    foreign: ForeignFormat | None = None

    def refusal(self, label: str) -> BadData:
        """Return the error for a Redis database without a known layout.

        The error names the database by ``label``, and a few of its keys.
        """
        if self.foreign is not None:
            return self.foreign.refusal(label)
        names = [visible(decode(key)) for key in self.unknown]
        prefix = visible(decode(prefix_of(self.unknown)))
        return BadData(
            f"{label} holds keys that memctl does not know: {', '.join(names)}",
            f"use ?prefix={prefix} to read the keys with this prefix"
            if prefix
            else "check the database number and ?prefix=",
        )


async def require_layout(server: RedisServer, location: Location, mode: OpenMode) -> None:
    """Check that a Redis database has the layout that the URL names, or no layout at all.

    Checks nothing if the mode neither reads nor changes existing memories.

    Raises:
        Uninitialised: the database has only other layouts.
        Unavailable: the server refuses a command.
    """
    wanted = location.options.get("layout")
    if wanted is None or mode not in (OpenMode.READ, OpenMode.CHANGE):
        return
    prefix = encode(location.options.get("prefix", ""))
    async with server.pipeline() as pipeline:
        found = await in_thread(pipeline, partial(look_at_keys, pipeline, prefix, wanted))
    if not found.layouts or wanted in found.layouts:
        return
    names = sorted(found.layouts)
    raise Uninitialised(
        f"{location.label} holds no data of the layout {wanted}, but of {', '.join(names)}",
        f"choose it with ?layout={names[0]}",
    )


def prefix_of(keys: list[bytes]) -> bytes:
    """Return the text before ``user_id:`` in the first key that names a user and a session.

    Returns an empty text if there is no such key.
    """
    return next((found[1] for key in keys if (found := _PREFIXED.match(key))), b"")


async def other_keys(server: RedisServer) -> str:
    """Describe keys with other prefixes, or in other databases of the server, in one line.

    Returns an empty text if there are none.

    Raises:
        Unavailable: the server refuses a command.
    """
    async with server.pipeline() as pipeline:
        return await in_thread(pipeline, partial(_other_keys, pipeline, server))


def _other_keys(pipeline: Pipeline, server: RedisServer) -> str:
    if server.prefix:
        keys = islice(_keys(pipeline, b""), _ENOUGH)
        others = islice((key for key in keys if not key.startswith(_OWN)), _EXAMPLES)
        if names := [visible(decode(key)) for key in others]:
            return (
                f"{server.label} has no key with the prefix {visible(server.prefix)!r}, "
                f"but others, such as {', '.join(names)}"
            )
    [reply] = pipeline.execute([(b"INFO", b"keyspace")], tolerate="NOPERM")
    if isinstance(reply, ResponseError):
        return ""
    found = _KEYSPACE.findall(reply.decode(errors="replace"))
    counts = [f"{number} ({int(keys):,})" for number, keys in found if int(number) != server.db]
    if not counts:
        return ""
    more = f" and {len(counts) - _DATABASES} more" if len(counts) > _DATABASES else ""
    return (
        f"database {server.db} has no memory; other databases of the server have keys: "
        f"{', '.join(counts[:_DATABASES])}{more}"
    )


def look_at_keys(pipeline: Pipeline, prefix: bytes, wanted: str | None = None) -> Keyspace:
    """Return the layouts of the Redis keys with a prefix.

    The keys are scanned once.  The scan stops after ``_ENOUGH`` keys if some were recognized.  If
    ``wanted``, a layout, is given, the scan stops only at the first key of this layout, and the
    result then has only this layout.

    Raises:
        Unavailable: the server refuses a command.
    """
    found = Keyspace()
    doubtful: dict[bytes, str] = {}
    for seen, key in enumerate(_keys(pipeline, prefix), 1):
        layout = _layout(key.removeprefix(prefix), prefix)
        if wanted is not None and layout == wanted:
            return Keyspace({wanted})
        if layout in _DOUBTFUL:
            if len(doubtful) < _PROBED:
                doubtful[key] = layout
        elif layout is not None:
            found.layouts.add(layout)
        elif found.foreign is None and (named := of_key(key.removeprefix(prefix))):
            found.foreign = named
            found.unknown.append(key)
        elif len(found.unknown) < _EXAMPLES and not key.removeprefix(prefix).startswith(_OWN):
            found.unknown.append(key)
        if wanted is None and seen >= _ENOUGH and (found.layouts or doubtful):
            break
    for key, layout in doubtful.items():
        if _is_runtime(pipeline, key, key.removeprefix(prefix).startswith(b"session:")):
            found.layouts.add(layout)
        elif len(found.unknown) < _EXAMPLES:
            found.unknown.append(key)
    return found


def keys_of(pipeline: Pipeline, prefix: bytes, layout: str) -> Iterator[bytes]:
    """Yield the keys of a layout with a prefix; a key may come more than once.

    Raises:
        Unavailable: the server refuses a command.
    """
    for key in _keys(pipeline, prefix):
        name = key.removeprefix(prefix)
        found = _layout(name, prefix)
        if found == layout and (
            layout not in _DOUBTFUL or _is_runtime(pipeline, key, name.startswith(b"session:"))
        ):
            yield key


def _keys(pipeline: Pipeline, prefix: bytes) -> Iterator[bytes]:
    cursor = b"0"
    while True:
        command = (b"SCAN", cursor, b"MATCH", escape(prefix) + b"*", b"COUNT", _COUNT)
        [(cursor, keys)] = pipeline.execute([command])
        yield from keys
        if cursor == b"0":
            return


def _layout(name: bytes, prefix: bytes) -> str | None:
    if of_key(name):
        return None
    if not prefix:  # the keys of AgentScope 2.x have a prefix of their own
        if name.startswith(JAVA_PREFIX):
            return "java"
        if name.startswith(_AGENTSCOPE2):
            return "agentscope2"
        if name.startswith(b"user:"):
            return None
    return next((one for one, pattern in _PATTERNS.items() if pattern.match(name)), None)


def _is_runtime(pipeline: Pipeline, key: bytes, is_history: bool) -> bool:
    """Return whether agentscope-runtime wrote a key, judged by the value of the key or its type.

    ``is_history`` is True for the key of a session history, False for a key of memories.
    """
    if not is_history:
        [kind] = pipeline.execute([(b"TYPE", key)])
        return bool(kind == b"hash")
    [start] = pipeline.execute([(b"GETRANGE", key, b"0", b"4095")], tolerate="WRONGTYPE")
    return not isinstance(start, ResponseError) and b'"user_id"' in start and b'"id"' in start
