"""``jsonio.utf8`` gives valid UTF-8 of the same JSON, whatever its size."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memctl.json import jsonio

TEXTS = st.text(st.characters(exclude_categories=()) | st.sampled_from("aé会😀\ud83d\udc00"))


@given(TEXTS, st.integers(1, 9))
def test_utf8_pieces_end_between_characters(text: str, piece: int) -> None:
    raw = json.dumps(text, ensure_ascii=False).encode("utf-8", "surrogatepass")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsonio, "_PIECE", piece)
        found = jsonio.utf8(raw)
    assert found == jsonio.utf8(raw)
    assert json.loads(found.decode()) == json.loads(json.dumps(text))


def test_utf8_another_encoding_is_an_error() -> None:
    with pytest.raises(ValueError):
        jsonio.utf8(b'"\xff"')
