"""The cursor finds and checks the values that ``json.loads`` takes, large or small."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memctl.errors import BadData
from memctl.json import document as json_document
from memctl.json.document import Cursor

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
PIECES = st.integers(8, 12) | st.just(1 << 20)
"""The pieces in which a large string is checked: at least as long as an escape."""
LARGE = st.integers(90, 120) | st.just(json_document.LARGE)
"""Above the longest numbers and keys here, which must not be large."""


def dump(value: Any, *, indent: int | None = None) -> bytes:
    """JSON as JSONSession writes it."""
    return json.dumps(value, ensure_ascii=False, indent=indent).encode("utf-8", "surrogatepass")


def load(data: bytes) -> Any:
    """JSON as JSONSession reads it."""
    return json.loads(data.decode("utf-8", "surrogatepass"))


def run(
    data: bytes,
    use: Callable[[Cursor], Any],
    *,
    piece: int = 1 << 20,
    large: int = json_document.LARGE,
) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_document, "LARGE", large)
        patch.setattr(json_document, "_PIECE", piece)
        patch.setattr(json_document, "_LEAP", 16 * piece)
        return use(Cursor(data, "state.json"))


def check_all(cursor: Cursor) -> int:
    cursor.check()
    if cursor.start() < len(cursor.text):
        raise cursor.bad("something follows", cursor.at)
    return cursor.at


@pytest.mark.slow
@given(st.lists(VALUES, max_size=6), st.sampled_from([None, 1]))
def test_json_document_values_are_cut_out_as_they_are(
    values: list[Any], indent: int | None
) -> None:
    def take(cursor: Cursor) -> list[bytes]:
        return [cursor.skip() for _ in cursor.items()]

    taken = run(dump(values, indent=indent), take)
    assert json.dumps([load(text) for text in taken]) == json.dumps(values)
    if indent is None:
        assert taken == [dump(value) for value in values]


@pytest.mark.slow
@given(st.dictionaries(TEXTS, VALUES, max_size=6), PIECES, LARGE)
def test_json_document_members_are_found(members: dict[str, Any], piece: int, large: int) -> None:
    def take(cursor: Cursor) -> list[str]:
        found = []
        for key in cursor.members():
            cursor.check()
            found.append(key)
        return found

    assert run(dump(members), take, piece=piece, large=large) == list(members)


@pytest.mark.slow
@given(VALUES, PIECES, LARGE)
def test_json_document_every_value_is_right(value: Any, piece: int, large: int) -> None:
    data = dump(value)
    assert run(data, check_all, piece=piece, large=large) == len(data)


@given(VALUES, st.data(), PIECES, LARGE)
def test_json_document_what_json_refuses_is_refused(
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
        run(text, check_all, piece=piece, large=large)
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


@pytest.mark.slow
@given(st.dictionaries(TEXTS, VALUES, min_size=1, max_size=4), st.data(), PIECES, LARGE)
def test_json_document_cut_is_called_a_cut(
    members: dict[str, Any], data: st.DataObject, piece: int, large: int
) -> None:
    text = dump(members)
    end = data.draw(st.integers(1, len(text) - 1))
    with pytest.raises(BadData, match=f"is cut off at byte {end}"):
        run(text[:end], check_all, piece=piece, large=large)


def test_json_document_empty_document_says_so() -> None:
    with pytest.raises(BadData, match="is empty"):
        run(b"", check_all)


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
def test_json_document_errors_name_the_byte(text: str, byte: int) -> None:
    with pytest.raises(BadData, match=rf"\(byte {byte}\)"):
        run(text.encode(), check_all)


def test_json_document_nesting_beyond_reason_is_an_error() -> None:
    for large in (json_document.LARGE, 50):
        with pytest.raises(BadData, match="too deep"):
            run(b"[" * 100_000 + b"]" * 100_000, check_all, large=large)


@pytest.mark.slow
@pytest.mark.parametrize("inside", [b"a", b"\\n", b"\\\\", "é".encode(), b'\\"]}'])
def test_json_document_large_text_is_checked(inside: bytes) -> None:
    text = b'{"a": ["' + inside * (20_000_000 // len(inside)) + b'"]}'
    assert run(text, check_all) == len(text)
