"""Helpers of the tests of compress: conversations whose summaries name their messages."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from memctl.model import MemoryKey, StoredMessage
from memctl.testing import Place
from memctl.testing.samples import entry, sample
from tests.summarizers.server import SUMMARY, ModelServer, says
from tests.support.places import Held, held, put

MODES = ["mark", "message", "replace"]

CODES = """
[summarizers.codes]
kind = "command"
input = "transcript"
command = "grep -o 'CODE[0-9]*' | paste -sd ' ' -"
concurrency = 8
"""
"""A summarizer that returns the codes in the input, in order."""


def codes_in(text: str) -> list[int]:
    """Return the numbers of the codes in a text, in order."""
    return [int(code) for code in re.findall(r"CODE(\d+)", text)]


def talk(numbers: Iterable[int], memory: object = "") -> list[StoredMessage]:
    """Return messages with a code each; some have marks, and number 1 is compressed."""
    marks = {1: ("compressed", "a"), 2: ("hint",), 4: ("a", "hint")}
    return [
        entry(
            f"m{n:07}", n, marks.get(n, ()), content=f"MEMORY{memory} says CODE{n}. " + "So. " * 9
        )
        for n in numbers
    ]


def fill(place: Place, count: int = 3, messages: int = 12, summary: str = "") -> list[MemoryKey]:
    """Write memories, with an expiry and a summary if the store has a place for them."""
    keys = place.keys(count)
    able = place.store().features
    about: dict[str, Any] = {
        "summary": summary if able.summaries else None,
        "ttl": 5000.0 if able.ttl else None,
    }
    put(place, [sample(key, talk(range(messages), n), **about) for n, key in enumerate(keys)])
    return keys


def holds_summaries(place: Place) -> bool:
    """Return whether the store has a place for summaries."""
    return place.store().features.summaries


def summary_of(place: Place, key: MemoryKey) -> str:
    """Return the only summary of a memory, from its place or from a message."""
    summary, _, messages = held(place)[key]
    found = [summary] if summary else []
    found += [text.decode() for _, marks, text in messages if "summary" in marks]
    [one] = found
    return one


def rest_of(place: Place, key: MemoryKey) -> dict[str, tuple[str, ...]]:
    """Return the marks of all messages except summaries, in order."""
    return {id: marks for id, marks, _ in held(place)[key][2] if "summary" not in marks}


def configure(folder: Path, text: str) -> Path:
    """Write a configuration file; return its path."""
    path = folder / "config.toml"
    path.write_text(text)
    return path


def model(url: str, **options: Any) -> str:
    """Return the configuration of a model at an address, asked once for each summary."""
    known = {"max_retries": 0, "timeout": 20} | options
    lines = [f"{name} = {_toml(value)}" for name, value in known.items()]
    return "\n".join(
        ["[summarizers.model]", 'kind = "openai"', 'model = "m"', f'base_url = "{url}"', *lines]
    )


def _toml(value: object) -> str:
    return f"'{value}'" if isinstance(value, str) else str(value)


Words = Callable[..., list[object]]
ANSWER = says(SUMMARY)


def memories(place: Place, count: int, summary: str | None = None) -> Held:
    """Fill a place with small memories that the model can tell apart; return its contents."""
    keys = [MemoryKey("u", f"s{number:03}") for number in range(count)]
    talks = [[one._replace(marks=()) for one in talk(range(6), n)] for n in range(count)]
    put(place, [sample(*one, summary=summary) for one in zip(keys, talks, strict=True)])
    return held(place)


def asked(server: ModelServer) -> Counter[int]:
    """Return the number of times that each memory was sent to the model."""
    found: Counter[int] = Counter()
    for request in server.requests:
        found.update({int(number) for number in re.findall(r"MEMORY(\d+)", request.user)})
    return found


def compressed(place: Place, before: Held, *, halves: bool = False) -> set[int]:
    """Return the numbers of the compressed memories; check that the others are unchanged.

    With ``halves``, a memory may have its summary but no marks yet; such a memory is not returned.
    """
    done = set()
    now = held(place)
    for number, key in enumerate(sorted(now)):
        if now[key] == before[key]:
            continue
        assert SUMMARY["task_overview"] in summary_of(place, key)
        marks = list(rest_of(place, key).values())
        if halves and marks == [()] * 6:
            continue
        assert marks == [("compressed",)] * 3 + [()] * 3
        assert [id for id, _, _ in now[key][2]][-6:] == [id for id, _, _ in before[key][2]]
        done.add(number)
    return done
