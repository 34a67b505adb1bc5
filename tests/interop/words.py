"""The words of the worker's ``talk``, and their description: for the worker and for tests."""

from __future__ import annotations

import re


def exchanges(count: int) -> list[tuple[str, int]]:
    """Return the messages of so many exchanges of ``talk``, without those marked ``compressed``."""
    numbers = [number for number in range(count) if number % 4]
    return [(who, number) for who in ("question", "reply") for number in numbers]


def told(texts: list[str]) -> list[tuple[str, int]]:
    """The parts of exchanges that texts are, or tell of: ``question 5``, ``reply 2-3``."""
    return sorted(
        (who, number)
        for text in texts
        for who, first, last in re.findall(r"(question|reply) (\d+)(?:-(\d+))?", text)
        for number in range(int(first), int(last or first) + 1)
    )
