"""JSON of very many values and of huge strings, numbers that JSON lacks, and canonical forms."""

from __future__ import annotations

import json
from typing import Any

import pytest

from memctl.json import jsonio

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


HUGE = "NaN+/" * 400_000


@pytest.mark.slow
@pytest.mark.parametrize(
    "value",
    [
        HUGE,
        [HUGE, HUGE + "1", [HUGE], {"huge": "huge0", "other": HUGE}],
        {HUGE: HUGE, "a": f'{HUGE}"\\é', "b": [float("nan"), 2**70]},
        ["x", *range(400_000), "y", HUGE],
        ["x", *range(400_000), "y"],
    ],
)
def test_huge_strings_are_parsed_as_by_python(value: Any) -> None:
    for separators in ((",", ":"), (" , ", " : ")):
        text = json.dumps(value, separators=separators).encode()
        assert repr(jsonio.loads(text)) == repr(value)


@pytest.mark.parametrize(
    "text",
    [f'["{HUGE}"', f'"{HUGE}" 1', f'["{HUGE}" "{HUGE}"]', f'["{HUGE}', f'["{HUGE}",huge0]'],
)
def test_errors_beside_huge_strings_are_those_of_python(text: str) -> None:
    with pytest.raises(ValueError) as wanted:
        json.loads(text)
    with pytest.raises(ValueError) as found:
        jsonio.loads(text.encode())
    assert str(found.value) == str(wanted.value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": "NaN é"}, '{"a":"NaN é"}'),
        ({"a": [1.5, {"é": float("nan")}]}, r'{"a":[1.5,{"\u00e9":NaN}]}'),
        ([float("-inf")], "[-Infinity]"),
    ],
)
def test_numbers_that_json_lacks_are_written_as_by_python(value: Any, text: str) -> None:
    assert jsonio.may_have_nan(text)
    assert jsonio.may_have_nan(text.encode())
    assert jsonio.compact(value, odd=True) == text.encode()
