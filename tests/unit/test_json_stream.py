"""The cursor finds, checks and skips the values that ``json.loads`` takes, however they are cut."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memctl import json_stream
from memctl.errors import BadData
from memctl.json_stream import Cursor, Source

TEXTS = st.text(st.characters(exclude_categories=()), max_size=12)
NASTY = ['}, ["x"]], [{', "]]", '"', "\\", "\\u0000", "\0", "\ud800", "😀\n", "x" * 40]
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(10**20, 10**30)
    | st.floats()
    | TEXTS
    | st.sampled_from(NASTY),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXTS, inner, max_size=5),
    max_leaves=20,
)
PIECES = st.integers(1, 9) | st.just(1 << 20)
LARGE = st.integers(90, 120) | st.just(json_stream.LARGE)
"""Above the longest numbers and keys here, which must not be large."""


class Bytes(Source):
    """A document in memory that is handed out in small pieces."""

    def __init__(self, data: bytes, piece: int = 1 << 20) -> None:
        self.name = "state.json"
        self.size = len(data)
        self.read = 0
        self._data = data
        self._piece = piece

    async def read_at(self, start: int, size: int) -> bytes:
        found = self._data[start : start + min(size, self._piece)]
        self.read += len(found)
        return found


def dump(value: Any, *, indent: int | None = None) -> bytes:
    """JSON as JSONSession writes it."""
    return json.dumps(value, ensure_ascii=False, indent=indent).encode("utf-8", "surrogatepass")


def load(data: bytes) -> Any:
    """JSON as JSONSession reads it."""
    return json.loads(data.decode("utf-8", "surrogatepass"))


def run(
    data: bytes,
    use: Callable[[Cursor], Coroutine[Any, Any, Any]],
    *,
    piece: int = 1 << 20,
    large: int = json_stream.LARGE,
) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_stream, "LARGE", large)
        patch.setattr(json_stream, "WINDOW", min(piece, json_stream.WINDOW))
        return asyncio.run(use(Cursor(Bytes(data, piece))))


async def skip_all(cursor: Cursor) -> int:
    await cursor.skip()
    if await cursor.peek():
        raise cursor.bad("something follows")
    return cursor.position


@given(st.lists(VALUES, max_size=6), st.sampled_from([None, 1]), PIECES)
def test_json_stream_values_are_cut_out_as_they_are(
    values: list[Any], indent: int | None, piece: int
) -> None:
    async def take(cursor: Cursor) -> list[bytes | None]:
        return [await cursor.take() async for _ in cursor.items()]

    taken = run(dump(values, indent=indent), take, piece=piece)
    assert json.dumps([load(text) for text in taken]) == json.dumps(values)
    if indent is None:
        assert taken == [dump(value) for value in values]


@given(st.dictionaries(TEXTS, VALUES, max_size=6), PIECES, LARGE)
def test_json_stream_members_are_found(members: dict[str, Any], piece: int, large: int) -> None:
    async def take(cursor: Cursor) -> list[str]:
        found = []
        async for key in cursor.members():
            await cursor.skip()
            found.append(key)
        return found

    assert run(dump(members), take, piece=piece, large=large) == list(members)


@given(VALUES, PIECES, LARGE)
def test_json_stream_every_value_is_right(value: Any, piece: int, large: int) -> None:
    data = dump(value)
    assert run(data, skip_all, piece=piece, large=large) == len(data)


@given(VALUES, st.data(), PIECES, LARGE)
def test_json_stream_what_json_refuses_is_refused(
    value: Any, data: st.DataObject, piece: int, large: int
) -> None:
    """A text with a few wrong bytes is taken exactly when ``json.loads`` takes it."""
    text = bytearray(dump(value))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        new = data.draw(
            st.sampled_from([b"", *(bytes([n]) for n in b'{}[]",:\\0-.eNu \n\x00\xc3\xed\xff')])
        )
        text[at : at + data.draw(st.integers(0, 1))] = new
    assert _takes(bytes(text), piece, large) == _json_takes(bytes(text))


def _takes(text: bytes, piece: int, large: int) -> bool:
    try:
        run(text, skip_all, piece=piece, large=large)
    except BadData as error:
        # The wrong bytes may have made one long number or key of two, which is no fault here.
        return "too long" in error.message and _json_takes(text)
    return True


def _json_takes(text: bytes) -> bool:
    try:
        load(text)
    except ValueError:
        return False
    return True


@given(st.dictionaries(TEXTS, VALUES, min_size=1, max_size=4), st.data(), PIECES, LARGE)
def test_json_stream_cut_is_called_a_cut(
    members: dict[str, Any], data: st.DataObject, piece: int, large: int
) -> None:
    text = dump(members)
    end = data.draw(st.integers(1, len(text) - 1))
    with pytest.raises(BadData, match=f"is cut off at byte {end}"):
        run(text[:end], skip_all, piece=piece, large=large)


def test_json_stream_empty_document_says_so() -> None:
    with pytest.raises(BadData, match="is empty"):
        run(b"", skip_all)


@pytest.mark.parametrize(
    ("text", "byte"),
    [
        ('{"é": tru}', 7),
        ('{"a": [1, 2}}', 11),
        ('{"a" 1}', 5),
        ('{"a": 1,}', 8 if sys.version_info < (3, 13) else 7),  # later Pythons name the comma
        ('{"a": "\\x"}', 7),
        ("{} {}", 3),
    ],
)
def test_json_stream_errors_name_the_byte(text: str, byte: int) -> None:
    with pytest.raises(BadData, match=rf"\(byte {byte}\)"):
        run(text.encode(), skip_all)


def test_json_stream_nesting_beyond_reason_is_an_error() -> None:
    for large in (json_stream.LARGE, 50):
        with pytest.raises(BadData, match="too deep"):
            run(b"[" * 100_000 + b"]" * 100_000, skip_all, large=large)


@pytest.mark.parametrize("inside", [b"a", b"\\n", b"\\\\", "é".encode(), b'\\"]}'])
def test_json_stream_large_text_is_read_once(inside: bytes) -> None:
    text = b'{"a": ["' + inside * (20_000_000 // len(inside)) + b'"]}'
    source = Bytes(text)
    assert asyncio.run(skip_all(Cursor(source))) == len(text)
    assert source.read == len(text)
