"""Memories to migrate, the same ones for the same seed: small, large, and with hostile names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

from memctl.model import MemoryKey, StoredMessage
from memctl.store import Features
from memctl.testing import samples
from memctl.testing.samples import Sample, Style

_USUAL = Style()
TTL = 100_000
"""Seconds; no test lasts so long."""

HARD = ["huge integer", "floats", "null character", "beyond the basic plane", "null metadata"]
HARD += ["unknown block", "tools", "empty", "empty blocks", "quotes", "like another"]
MARKS = ["hint", "compressed", "a:b*?[c]", "it's 😀", "%", "two words", "A", "a"]
NAMES = [name for name in samples.NAMES if len(name) < 60 and ":session:" not in name]
"""Hostile names.  Row ids of SQL end at 255 characters; Redis keys can be too ambiguous."""


def world(seed: str, held: Features, style: Style = _USUAL) -> list[Sample]:
    """8 to 200 memories, in no order, with what both stores of a pair can hold (``held``).

    ``style`` is that of the messages of the first one.
    """
    samples.use(style)
    try:
        return _world(Random(seed), held)
    finally:
        samples.use(_USUAL)


def _world(draw: Random, held: Features) -> list[Sample]:
    [long] = draw.choices([0, 1, 2], [5, 3, 2])
    """The number of memories that take several pages."""
    count = draw.randint(60, 200) if long == 2 else draw.randint(8, 60)
    keys = [_key(draw, number) for number in range(count)]
    shared = draw.choice(keys)
    if not held.session_owners:
        keys += [MemoryKey(f"{user}{len(keys)}", shared.session) for user in ("guest ", "G-")]
    # A copy refuses compressed messages without their summary.
    marks = [mark for mark in MARKS if held.summaries or mark != "compressed"]
    found = [
        samples.sample(key, _entries(draw, f"{number}.", length, marks), **_about(draw))
        for number, (key, length) in enumerate(zip(keys, _lengths(draw, long), strict=False))
    ]
    _make_heavy(draw, found[3], 4 if long == 2 else 1)
    if held.empty:
        found.append(samples.sample(MemoryKey("nobody", f"empty {len(keys)}"), [], **_about(draw)))
    for one in found:
        one.memory = _only(one, held)
    draw.shuffle(found)
    return found


def beginnings(seed: str, found: list[Sample]) -> list[Sample]:
    """Return memories of a world that a target may hold already: some in part, some whole."""
    draw = Random(seed)
    chosen = [one for one in found if one.entries and draw.random() < 0.4]
    parts = [
        samples.sample(
            one.key, [entry._replace(shape="") for entry in one.entries[: _some(draw, one)]]
        )
        for one in chosen
    ]
    for part, one in zip(parts, chosen, strict=True):
        summary = "" if one.memory.summary else one.memory.summary  # it comes with the rest
        part.memory = replace(one.memory, summary=summary)
    return parts


def _some(draw: Random, one: Sample) -> int:
    return draw.randint(1, len(one.entries))


def _key(draw: Random, number: int) -> MemoryKey:
    if draw.random() < 0.4:
        return MemoryKey(draw.choice(NAMES), f"{draw.choice(NAMES)}{number}")
    return MemoryKey(f"user{number // 3}", f"session{number}")


def _lengths(draw: Random, long: int) -> Iterator[int]:
    """Yield numbers of messages: the first memories take several pages."""
    for number in range(long):
        yield draw.randint(1001, 1500) + number * 600
    while True:
        yield min(300, round(draw.lognormvariate(1.5, 1)) + 1)


def _about(draw: Random) -> dict[str, Any]:
    summary = f"Summary {draw.random()} 😀\n" if draw.random() < 0.3 else ""
    return {"summary": summary, "ttl": TTL if draw.random() < 0.3 else None}


def _only(one: Sample, held: Features) -> Any:
    about: dict[str, Any] = {}
    if held.summaries:
        about["summary"] = one.memory.summary
    if held.ttl:
        about["ttl"] = one.memory.ttl
    return samples.sample(one.key, [], **about).memory


def _entries(draw: Random, prefix: str, count: int, some: list[str]) -> list[StoredMessage]:
    names = draw.sample(NAMES, min(len(NAMES), count))
    found = []
    for number in range(count):
        name = names[number] if number < len(names) and draw.random() < 0.3 else ""
        marks = [mark for mark in some if draw.random() < 0.08]
        draw.shuffle(marks)
        fields = samples.MESSAGES[draw.choice(HARD)] if draw.random() < 0.1 else {}
        text = {"content": f"message {number} " + "word 😀 " * draw.randint(0, 40)}
        found.append(
            samples.entry(f"{prefix}{number}:{name}", number, tuple(marks), **{**text, **fields})
        )
    return found


def _make_heavy(draw: Random, one: Sample, least: int) -> None:
    """Add large messages, of which a few make a page."""
    for number in range(draw.randint(least, least + 3)):
        text = "large " * draw.randint(80_000, 140_000)
        one.entries.append(samples.entry(f"large {number}", number, ("hint",), content=text))
