"""Mutations of bytes, JSON values and texts, each drawn from a seeded source."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
from collections.abc import Callable
from copy import deepcopy
from random import Random
from typing import Any

from memctl.machine import zstd
from memctl.testing.samples import MESSAGES, NAMES

WORDS = [
    *NAMES,
    "",
    "m0000001",
    "hint",
    "compressed",
    "user0",
    "session0",
    "\0",
    "\x1b[31mred\x1b]0;title\x07",
    "\ud800",
    "\u2028",
    "a" * 300,
    '{"id":"m1"}, "forged": true',
    "2025-03-01 12:00:00.000",
    "9999-99-99 99:99:99",
    "[bold]x[/bold]",
    "../../x",
    "NaN",
]
"""Texts that are hard as a name, an id, a mark or a content."""

NUMBERS = [0, -1, 1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1, 10**30, 10**400, 0.5, 1e308]

TOKENS = [
    *(b"\0", b"\xff", b"\xc3\x28", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\x1b[2J", b"\r\n", b"\n"),
    *(b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"null", b"true", b"NaN", b"-Infinity"),
    *(b"1e999", b"9" * 40, b'"id":', b'{"a":' * 40, b"[" * 700, b" " * 300, b"\\ud800", b"\\u0000"),
]
"""Bytes that are hard to read in the midst of others."""


def nested(levels: int) -> Any:
    """Return a value of so many levels, a list in an object in a list."""
    value: Any = "bottom"
    for level in range(levels):
        value = [value] if level % 2 else {"in": value}
    return value


def scalar(rng: Random) -> Any:
    """Return a value of JSON that is hard where another is expected."""
    kind = rng.randrange(10)
    if kind < 4:
        return rng.choice(WORDS)
    if kind < 6:
        return rng.choice(NUMBERS)
    if kind < 7:
        return rng.choice([float("nan"), float("inf"), -0.0, 5e-324])
    if kind < 9:
        return rng.choice([None, True, False])
    return rng.choice([{}, [], [[]], {"": None}])


def any_value(rng: Random) -> Any:
    """Return a scalar, a message's field that is hard, or something deep."""
    kind = rng.randrange(12)
    if kind == 0:
        return deepcopy(rng.choice([one for name, one in MESSAGES.items() if name != "wide"]))
    if kind == 1:
        return nested(rng.choice([3, 33, 120, 600]))
    if kind == 2:
        return [scalar(rng) for _ in range(rng.randrange(4))]
    if kind == 3:
        return {rng.choice(WORDS): scalar(rng) for _ in range(rng.randrange(4))}
    return scalar(rng)


def mutate_value(rng: Random, value: Any, times: int = 1) -> Any:
    """Return the value of JSON with so many of its nodes changed, in place."""
    for _ in range(times):
        nodes = list(_nodes(value))
        if not nodes:
            return any_value(rng)
        container, key = rng.choice(nodes)
        _change_node(rng, container, key)
    return value


def _nodes(value: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    waiting = [value] if isinstance(value, dict | list) else []
    while waiting:
        one = waiting.pop()
        keys = list(one) if isinstance(one, dict) else range(len(one))
        for key in keys:
            found.append((one, key))
            if isinstance(one[key], dict | list):
                waiting.append(one[key])
    return found


def _change_node(rng: Random, container: Any, key: Any) -> None:
    kind = rng.randrange(8)
    if kind == 0:
        del container[key]
    elif kind == 1 and isinstance(container, list):
        container.insert(rng.randrange(len(container) + 1), deepcopy(container[key]))
    elif kind == 1:
        container[rng.choice(WORDS)] = container.pop(key)
    elif kind == 2:
        container[key] = [container[key]]
    elif kind == 3:
        container[key] = {"content": container[key]}
    elif kind == 4 and isinstance(container[key], str):
        container[key] = mutate_text(rng, container[key])
    else:
        container[key] = any_value(rng)


def mutate_text(rng: Random, text: str) -> str:
    """Return the text with a hard word in it, or cut, or doubled, or in another case."""
    at = rng.randrange(len(text) + 1)
    return rng.choice(
        [
            text[:at],
            text[at:] or text,
            text * 2,
            text.swapcase(),
            f" {text}",
            text[:at] + rng.choice(WORDS) + text[at:],
        ]
    )


def dump(rng: Random, value: Any) -> bytes:
    """Return the value as JSON, written in one of the ways in which it is found."""
    indent = rng.choice([None, None, None, 1])
    text = json.dumps(value, ensure_ascii=rng.random() < 0.7, indent=indent)
    return text.encode("utf-8", "surrogatepass")


def mutate_json(rng: Random, data: bytes) -> bytes:
    """Return the JSON text with a few changes of its value; now and then of its bytes too."""
    try:
        value = json.loads(data.decode("utf-8", "surrogatepass"))
        data = dump(rng, mutate_value(rng, value, rng.randrange(1, 4)))
    except (ValueError, RecursionError):
        return mutate_bytes(rng, data)
    return mutate_bytes(rng, data) if rng.random() < 0.15 else data


def mutate_bytes(rng: Random, data: bytes, times: int | None = None) -> bytes:
    """Return the bytes with a few of them flipped, set, inserted, doubled, moved or cut off."""
    found = bytearray(data)
    for _ in range(times or rng.choice([1, 1, 2, 3, 8])):
        rng.choice(_BYTES)(rng, found)
    return bytes(found)


def _flip(rng: Random, data: bytearray) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _set(rng: Random, data: bytearray) -> None:
    if data:
        data[rng.randrange(len(data))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])


def _insert(rng: Random, data: bytearray) -> None:
    at = rng.randrange(len(data) + 1)
    data[at:at] = rng.choice(TOKENS)


def _overwrite(rng: Random, data: bytearray) -> None:
    at = rng.randrange(len(data) + 1)
    token = rng.choice(TOKENS)
    data[at : at + len(token)] = token


def _drop(rng: Random, data: bytearray) -> None:
    start, end = _span(rng, data)
    del data[start:end]


def _double(rng: Random, data: bytearray) -> None:
    start, end = _span(rng, data)
    data[start:start] = data[start:end]


def _blank(rng: Random, data: bytearray) -> None:
    start, end = _span(rng, data)
    data[start:end] = bytes(end - start)


def _cut(rng: Random, data: bytearray) -> None:
    del data[rng.randrange(len(data) + 1) :]


def _span(rng: Random, data: bytearray) -> tuple[int, int]:
    start = rng.randrange(len(data) + 1)
    return start, min(len(data), start + rng.choice([1, 2, 8, 64, 512]))


_BYTES: list[Callable[[Random, bytearray], None]] = [
    _flip,
    _flip,
    _set,
    _insert,
    _overwrite,
    _drop,
    _double,
    _blank,
    _cut,
]


def mutate_lines(rng: Random, lines: list[bytes]) -> list[bytes]:
    """Return lines of JSON with some changed, dropped, doubled or moved."""
    lines = list(lines)
    for _ in range(rng.choice([1, 1, 2, 4])):
        if not lines:
            break
        at = rng.randrange(len(lines))
        kind = rng.randrange(8)
        if kind == 0:
            del lines[at]
        elif kind == 1:
            lines.insert(rng.randrange(len(lines) + 1), lines[at])
        elif kind == 2:
            lines.append(lines.pop(at))
        elif kind == 3:
            lines[at] = mutate_bytes(rng, lines[at], 1)
        elif kind == 4:
            lines.insert(
                at, rng.choice([b"", b"{}", b"[]", b"null", b"\0", b'{"memory":{}}', b" "])
            )
        else:
            lines[at] = mutate_json(rng, lines[at]).replace(b"\n", b" ")
    return lines


def seal(lines: list[bytes]) -> bytes:
    """Return an archive of these lines, the header first, with an end that is right."""
    body = b"".join(line + b"\n" for line in lines)
    memories = sum(line.lstrip().startswith(b'{"memory"') for line in lines)
    messages = sum(line.lstrip().startswith(b'{"message"') for line in lines)
    digest = "sha256:" + hashlib.sha256(body).hexdigest()
    end = {"end": {"memories": memories, "messages": messages, "digest": digest}}
    return body + json.dumps(end).encode() + b"\n"


def compress(suffix: str, *pieces: bytes) -> bytes:
    """Return the bytes as a file of this extension holds them."""
    found = io.BytesIO()
    if suffix.endswith(".gz"):
        with gzip.GzipFile(fileobj=found, mode="wb", compresslevel=1, mtime=0) as zipped:
            zipped.writelines(pieces)
    elif suffix.endswith(".zst"):
        with zstd.ZstdFile(found, "w") as packed:
            packed.writelines(pieces)
    else:
        found.writelines(pieces)
    return found.getvalue()


def decompress(suffix: str, data: bytes) -> bytes:
    """Return the bytes that a file of this extension holds; raise what the library raises."""
    if suffix.endswith(".gz"):
        return gzip.decompress(data)
    return zstd.ZstdFile(io.BytesIO(data)).read() if suffix.endswith(".zst") else data
