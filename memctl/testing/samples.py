"""Sample memories: typical messages of frameworks, and values that are hard to store.

The messages are messages of AgentScope 1.x, unless ``use`` has set a different dialect.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from functools import cache
from random import Random
from typing import Any

from msgspec import Struct, field

from memctl.dialects.fact import build, encode_vector
from memctl.dialects.rows import utc
from memctl.dialects.view import local_time
from memctl.model import Memory, MemoryKey, StoredMessage

BEGIN = datetime(2025, 3, 1, 12)

NAMES = [
    "user_id:1:session:",
    "a-b",
    "a_b",
    "a*b?[c]",
    "a/b",
    "it's",
    'say "hi"',
    "100%",
    "back\\slash",
    "two words",
    " around ",
    "😀",
    "会话",
    "e\u0301",
    "é",
    "UPPER",
    "upper",
    "..",
    "-",
    "--",
    "-a-",
    "_",
    "null",
    "0",
    "%s",
    ":name",
    "?",
    "${HOME}",
    "tab\tand\nline",
    "\u202egnp",
    "x" * 200,
]
"""Names for users, sessions, messages and marks that are hard to store."""


def _deep(levels: int) -> Any:
    value: Any = "bottom"
    for _ in range(levels):
        value = {"in": [value]}
    return value


MESSAGES: dict[str, dict[str, Any]] = {
    "not a number": {"metadata": {"score": float("nan")}},
    "infinity": {"metadata": {"scores": [float("inf"), -float("inf")]}},
    "huge integer": {"metadata": {"n": 10**30, "m": -(2**63) - 1, "k": 2**64}},
    "floats": {"metadata": {"a": 0.1, "b": 1e300, "c": 5e-324, "d": -0.0, "e": 1.0}},
    "null character": {"content": "before\0after"},
    "lone surrogate": {"content": "half \ud83d of a pair", "metadata": {"\udc00": 1}},
    "beyond the basic plane": {"content": "😀 𝔘 会话 \u2028 \u007f \x1b[31m"},
    "unknown keys": {"invocation_id": "i", "zebra": 1, "apple": {"z": 1, "a": 2}, "": ""},
    "null metadata": {"metadata": None},
    "no timestamp": {"timestamp": None},
    "unknown block": {"content": [{"type": "hologram", "depth": 3}, {"type": "text", "text": "a"}]},
    "tools": {
        "content": [
            {"type": "thinking", "thinking": "which one?"},
            {"type": "tool_use", "id": "t1", "name": "search", "input": {"q": ["a", {"b": None}]}},
            {
                "type": "tool_result",
                "id": "t1",
                "name": "search",
                "output": [
                    {"type": "text", "text": "found"},
                    {"type": "image", "source": {"type": "url", "url": "https://example.com/a"}},
                ],
            },
        ]
    },
    "empty": {"content": "", "name": "", "metadata": {}},
    "empty blocks": {"content": []},
    "like another": {"content": "message 1"},
    "deep": {"metadata": _deep(50)},
    "wide": {"content": [{"type": "text", "text": "w" * 3_000_000}]},
    "quotes": {"content": "'; DROP TABLE message; -- \" \\ %s :x {} $1 ?"},
}
"""Fields of messages that are hard to store, by the name of the difficulty."""


class Style(Struct, frozen=True):
    """The kind of messages that a store can hold: the dialect, the possible marks, and more."""

    dialect: str = "agentscope1"
    marks: frozenset[str] | None = None
    in_order: bool = True
    """False if the store does not keep the order of the fields of a message."""
    dimensions: int = 0
    """The size of the vectors of facts; 0 without vectors."""
    name: Callable[[str], str] = str
    """Turns a text into an id that the store accepts; different texts get different ids."""


_STYLES = [Style()]


def use(style: Style) -> None:
    """Set the style of all sample messages that are made from now on."""
    _STYLES[0] = style


def style() -> Style:
    """Return the current style of sample messages, set by ``use``."""
    return _STYLES[0]


def possible(marks: Iterable[str]) -> tuple[str, ...]:
    """Return marks that the current style allows, without repetition.

    A mark that the style does not allow is replaced by an allowed mark, if there is one.
    """
    allowed = style().marks
    if allowed is None:
        return tuple(marks)
    instead = sorted(allowed)[:1]
    return tuple(
        dict.fromkeys(one for mark in marks for one in ([mark] if mark in allowed else instead))
    )


def message(id: str, number: int = 0, **fields: Any) -> bytes:
    """Return a sample message as JSON, in the dialect of the current style.

    ``number`` varies the contents.  ``fields`` replace fields of the message in AgentScope 1.x,
    from which the dialect's form is made.
    """
    role = ("user", "assistant", "system")[number % 3]
    value = {
        "id": id,
        "name": ("Alice", "Friday", "system")[number % 3],
        "role": role,
        "content": f"message {number}",
        "metadata": {"b": number, "a": [True, None, 1.5]},
        "timestamp": (BEGIN + timedelta(minutes=number)).isoformat(" ", "milliseconds"),
    }
    found = _IN_DIALECT[style().dialect](value | fields)
    return build(found) if style().dialect == "fact" else json.dumps(found).encode()


def _as_agentscope2(value: dict[str, Any]) -> dict[str, Any]:
    fields = {"created_at" if name == "timestamp" else name: one for name, one in value.items()}
    return fields | {"content": _blocks(value["content"])}


def _as_agentscope_java(value: dict[str, Any]) -> dict[str, Any]:
    texts = {name: one for name, one in value.items() if name not in ("content", "metadata")}
    fields = {name: one if isinstance(one, str | None) else None for name, one in texts.items()}
    content = _blocks(value["content"])
    blocks = content if isinstance(content, list) else []
    has_tools = any(block["type"].startswith("tool_") for block in blocks)
    role = "ASSISTANT" if has_tools else fields["role"] and fields["role"].upper()
    return fields | {"role": role, "content": blocks, "metadata": value["metadata"]}


def _as_runtime(value: dict[str, Any]) -> dict[str, Any]:
    fields = {name: one for name, one in value.items() if name not in ("name", "timestamp")}
    about = {"original_id": value["id"], "original_name": value["name"]}
    return fields | {
        "object": "message",
        "type": "message",
        "content": _blocks(value["content"]),
        "metadata": about | {"metadata": value["metadata"]},
    }


def _blocks(content: Any) -> Any:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _as_fact(value: dict[str, Any]) -> dict[str, Any]:
    content = value["content"]
    found = {
        "id": value["id"],
        "text": content if isinstance(content, str) else json.dumps(content),
        "created_at": value["timestamp"],
        "metadata": {"name": value["name"], "more": value["metadata"]},
    }
    if size := style().dimensions:
        found["vector"] = vector(value["id"], size)
    return found


def vector(id: str, size: int) -> str:
    """Return an encoded unit vector of ``size`` dimensions, which depends only on the id."""
    numbers = Random(id)
    values = [numbers.gauss(0, 1) for _ in range(size)]
    length = math.sqrt(sum(value * value for value in values))
    return encode_vector(value / length for value in values)


def _as_langchain(value: dict[str, Any]) -> dict[str, Any]:
    kind = {"user": "human", "assistant": "ai"}.get(str(value["role"]), "system")
    known = {"name": value["name"], "content": value["content"], "id": value["id"]}
    others = {name: one for name, one in value.items() if name not in (*known, "role")}
    return {"content": {"type": kind, "data": {**others, **known, "type": kind}}}


def _as_openai_agents(value: dict[str, Any]) -> dict[str, Any]:
    others = {name: one for name, one in value.items() if name != "timestamp"}
    # The items get no time, because tables order the items by time.
    return {"content": {"type": "message", **others}}


def _as_adk(value: dict[str, Any]) -> dict[str, Any]:
    time = _with_time(value).get("time")
    more = {name: one for name, one in value.items() if name not in ("role", "content", "id")}
    text = value["content"] if isinstance(value["content"], str) else json.dumps(value["content"])
    event = {
        "id": value["id"],
        "author": "user" if value["role"] == "user" else str(value["name"]),
        "content": {"parts": [{"text": text}], "role": value["role"]},
        "timestamp": datetime.fromisoformat(time).timestamp() if time else 0,
        "custom_metadata": more,
        "invocation_id": "i",
    }
    return {"content": event}


def _as_agno(value: dict[str, Any]) -> dict[str, Any]:
    time = _with_time(value).get("time")
    others = {name: one for name, one in value.items() if name not in ("timestamp", "metadata")}
    seconds = int(datetime.fromisoformat(time).timestamp()) if time else 0
    more = {"provider_data": {"about": value["metadata"]}, "created_at": seconds}
    role = value["role"] if isinstance(value["role"], str) else "user"  # Agno loads no other
    return {"content": others | more | {"role": role}}


def _as_claude_code(value: dict[str, Any]) -> dict[str, Any]:
    """Return a line as Claude Code writes it; memctl's own lines have no ``sessionId``."""
    said = {"role": value["role"], "content": value["content"]}
    line = {"type": "user", "message": said, "uuid": value["id"], "sessionId": "s"}
    more = {name: value[name] for name in ("name", "metadata")}
    return {"content": line | more | {"timestamp": value["timestamp"]}}


def _as_codex(value: dict[str, Any]) -> dict[str, Any]:
    """Return a line as Codex writes it; memctl's own lines have no time."""
    item = {"type": "message", "id": value["id"], "role": value["role"]}
    item |= {name: value[name] for name in ("name", "metadata")}
    payload = item | {"content": _blocks(value["content"])}
    time = value["timestamp"]
    return {"content": {"timestamp": time, "type": "response_item", "payload": payload}}


def _as_role_content(value: dict[str, Any]) -> dict[str, Any]:
    known = ("id", "role", "name", "content", "timestamp")
    more = {name: one for name, one in value.items() if name not in known}
    found = {
        name: value[name]
        for name in known
        if name == "content" or (name != "timestamp" and isinstance(value[name], str))
    }
    return _with_time(value) | found | {"metadata": more}


def _with_time(value: dict[str, Any]) -> dict[str, Any]:
    time = value["timestamp"]
    moment = local_time(time) if isinstance(time, str) else None
    return {"time": utc(moment)} if moment else {}


_IN_DIALECT: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "agentscope1": lambda value: value,
    "agentscope2": _as_agentscope2,
    "agentscope-java": _as_agentscope_java,
    "runtime": _as_runtime,
    "fact": _as_fact,
    "langchain": _as_langchain,
    "openai-agents": _as_openai_agents,
    "adk": _as_adk,
    "agno": _as_agno,
    "claude-code": _as_claude_code,
    "codex": _as_codex,
    "role-content": _as_role_content,
}
TIME_FIELDS = {
    "agentscope1": "timestamp",
    "agentscope2": "created_at",
    "agentscope-java": "timestamp",
    "runtime": None,
    "fact": "created_at",
    "langchain": None,
    "openai-agents": None,
    "adk": None,
    "agno": None,
    "claude-code": None,
    "codex": None,
    "role-content": "time",
}
"""The name of the time field of a message, by dialect."""


def marks_of(number: int) -> tuple[str, ...]:
    """Return the marks of the sample message with a number: none, one or several."""
    found = [
        name for name, every in (("hint", 3), ("considered", 4), ("a", 6)) if number % every == 1
    ]
    return tuple(found)


def entry(id: str, number: int = 0, marks: tuple[str, ...] = (), **fields: Any) -> StoredMessage:
    """Return a sample message with its id and marks, as a store holds it.

    See ``message`` for ``number`` and ``fields``.
    """
    return StoredMessage(id, message(id, number, **fields), possible(marks))


def entries(count: int, start: int = 0) -> list[StoredMessage]:
    """Return ``count`` small sample messages, numbered from ``start``, some with marks."""
    return [_numbered(n, style()) for n in range(start, start + count)]


@cache
def _numbered(number: int, _: Style) -> StoredMessage:
    return entry(style().name(f"m{number:07}"), number, marks_of(number))


def key(number: int) -> MemoryKey:
    """Return the memory key with a number; three successive keys have the same user."""
    return MemoryKey(f"user{number // 3}", f"session{number}")


class Sample(Struct):
    """A memory and all of its messages, for tests."""

    memory: Memory
    entries: list[StoredMessage] = field(default_factory=list)

    @property
    def key(self) -> MemoryKey:
        return self.memory.key


def sample(key: MemoryKey, found: Iterable[StoredMessage] = (), **about: Any) -> Sample:
    """Return a memory with messages; ``about`` has more fields of ``Memory``, such as ``ttl``."""
    return Sample(Memory(key, **about), list(found))


def several(keys: Iterable[MemoryKey], count: int, start: int = 0) -> list[Sample]:
    """Return a memory of ``count`` messages for each key.

    ``start`` is the number of the first message; no two messages have the same id.
    """
    return [sample(key, entries(count, start + number * count)) for number, key in enumerate(keys)]


def nasty_entries(skip: Iterable[str] = ()) -> Iterator[StoredMessage]:
    """Yield a message for each item of ``MESSAGES`` whose name is not in ``skip``.

    The values of these messages are hard to store.
    """
    left_out = set(skip)
    for number, (name, fields) in enumerate(MESSAGES.items()):
        if name not in left_out:
            yield entry(name, number, marks_of(number), **fields)
