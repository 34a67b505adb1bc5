"""Tests of shards: which memories are in which, today and in all later versions."""

from __future__ import annotations

import random

import pytest

from memctl.errors import UsageError
from memctl.model import MemoryKey
from memctl.shard import MOST, Shard, shard_hash

HASHES = {
    "": "d41d8cd9",
    "a": "0cc175b9",
    "trip": "7da7993d",
    "kyoto": "e27d6ba3",
    "session-1": "c7af2d35",
    "0": "cfcd2084",
    "null": "37a6259c",
    "user_id:1:session:": "3851ed0b",
    " around ": "85a399d4",
    "tab\tand\nline": "b68e6345",
    "nul\x00": "5bf0a40d",
    "é": "66ddcd97",
    "e\u0301": "5526861f",
    "Größe": "d2484533",
    "京都市": "2675ffdf",
    "会话": "9a834e9a",
    "안녕하세요": "209bebae",
    "😀": "2a02eac3",
    "\ud800": "546d3dc8",
    "x" * 10_000: "b567fcb6",
}
"""The hashes of names.  They must never change: parts of a run may be weeks apart."""


def _names(count: int) -> list[str]:
    """Return names of letters from all of Unicode, surrogates included, of 0 to 40 characters."""
    draw = random.Random(42)
    return [
        "".join(chr(draw.randrange(0x110000)) for _ in range(draw.randrange(40)))
        for _ in range(count)
    ]


@pytest.mark.parametrize(("name", "hashed"), HASHES.items())
def test_hash_of_a_name_never_changes(name: str, hashed: str) -> None:
    assert shard_hash(name) == hashed


@pytest.mark.slow
def test_every_session_is_in_exactly_one_shard() -> None:
    for of in [*range(1, 300, 13), 300, MOST]:
        shards = [Shard(number, of) for number in range(of)]
        assert shards[0].low == "0" * 8
        assert shards[-1].high > "f" * 8
        assert all(len(shard.low) == 8 for shard in shards)
        assert [shard.high for shard in shards[:-1]] == [shard.low for shard in shards[1:]]
        for name in [*_names(10), *HASHES]:
            assert sum(shard.has_name(name) for shard in shards) == 1


def test_shard_is_the_shards_of_twice_as_many() -> None:
    for name in _names(1000):
        assert Shard(3, 16).has_name(name) == (
            Shard(6, 32).has_name(name) or Shard(7, 32).has_name(name)
        )


def test_shard_of_a_memory_depends_on_its_session_alone() -> None:
    keys = [MemoryKey("ada", "trip"), MemoryKey("bo", "trip", "agent.memory")]
    assert {shard_hash("trip")} == {shard_hash(key.session or key.user) for key in keys}
    for number in range(16):
        shard = Shard(number, 16)
        assert shard.has(keys[0]) == shard.has(keys[1]) == shard.has_name("trip")
        assert shard.has(MemoryKey("ada", "")) == shard.has_name("ada")


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("3", "is not a shard", "0/16 for the first of 16"),
        ("-1/4", "is not a shard", "0/16"),
        ("a/b", "is not a shard", "0/16"),
        ("1/0", "N is from 1 to 4,096", "fewer"),
        ("0/4097", "N is from 1 to 4,096", "fewer"),
        ("4/4", "K must be below N", "the last is 3/4"),
    ],
)
def test_text_that_names_no_shard_is_refused(text: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        Shard.parse(text)
    assert hint in (refused.value.hint or "")


def test_text_of_a_shard() -> None:
    assert Shard.parse(" 3/16 ") == Shard(3, 16)
    assert str(Shard(3, 16)) == "3/16"
    assert Shard(3, 16).file_name == "0003-of-0016"
