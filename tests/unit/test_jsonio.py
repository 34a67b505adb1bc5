"""JSON of very many values: what is left of it to look at, and the one form of a value."""

from __future__ import annotations

import json
from typing import Any

import pytest

from memctl import jsonio

MANY = 400_000
SOME = 40_000
SHAPES: dict[str, Any] = {
    "object": {f"k{number}": number for number in range(SOME)},
    "array": list(range(SOME)),
    "empty": [[] for _ in range(SOME)],
    "nested": [{"a": {"b": [1, {"c": "},"}]}, "d": 1} for _ in range(SOME // 4)],
    "objects": {f"k{number}": {"a": 1, "b": [1, 2]} for number in range(SOME // 4)},
    "arrays": [[0] * 2_000 for _ in range(SOME // 1_000)],
    "long texts": [["x" * 70_000, {"a": 1}]] * 30 + [[0]] * SOME,
}


@pytest.mark.parametrize("separators", [(",", ":"), (" , ", " : ")])
@pytest.mark.parametrize("shape", SHAPES)
def test_pruned_keeps_the_first_members_and_all_short_fields(
    monkeypatch: pytest.MonkeyPatch, shape: str, separators: tuple[str, str]
) -> None:
    monkeypatch.setattr(jsonio, "_MOST_VALUES", 30_000)
    monkeypatch.setattr(jsonio, "_MOST_MEMBERS", 5_000)
    value = {"id": "m", "metadata": SHAPES[shape], "timestamp": "2025", "more": "x" * 100}
    text = json.dumps(value, separators=separators).encode()
    found = json.loads(jsonio.pruned(text))
    kept, all_of_it = found.pop("metadata"), value.pop("metadata")
    assert found == value
    assert 0 < len(json.dumps(kept)) < len(json.dumps(all_of_it))
    if isinstance(kept, dict):
        assert kept.items() <= all_of_it.items()
    else:
        assert kept[:10] == all_of_it[:10]


def test_pruned_leaves_what_has_not_many_values() -> None:
    text = json.dumps({"a": list(range(100_000)), "b": "," * 100_000}).encode()
    assert jsonio.pruned(text) is text


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":{%b}}' % (b'"k":1,' * MANY),
        b'{"a":{%b"k":tru}}' % (b'"k":1,' * MANY),
        b'{"a":{%b"k" 1}}' % (b'"k":1,' * MANY),
        b'{"a":{%b1:1}}' % (b'"k":1,' * MANY),
        b"[%b1" % (b"1," * MANY),
        b"[%b1}" % (b"1," * MANY),
        b"[%b1] 2" % (b"1," * MANY),
        b"[%b[1,[2,]]]" % (b"1," * MANY),
        b"[%b" % (b"[1," * MANY),
    ],
)
def test_pruned_refuses_what_is_not_json(text: bytes) -> None:
    with pytest.raises(ValueError):
        jsonio.pruned(text)
    with pytest.raises(ValueError):
        jsonio.outline(text + b" " * (1 << 20))


@pytest.mark.parametrize("depth", [1, 249, 251, 254, 255, 299, 301])
def test_canonical_form_is_one_however_a_value_is_written(depth: int) -> None:
    # The long zero keeps the second text from orjson's reader.
    texts = [b"[" * depth + number + b"]" * depth for number in (b"1.0", b"1." + b"0" * 30)]
    assert jsonio.canonical(texts[0]) == jsonio.canonical(texts[1])
