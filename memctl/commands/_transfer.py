"""Options of the commands that move memories between servers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

import typer

from memctl.errors import UsageError
from memctl.wrappers.rate_limit import Rate

RetriesOption = Annotated[
    int,
    typer.Option(
        "--retries", metavar="N", min=0, help="How often in a row a lost connection is forgiven."
    ),
]
TimeoutOption = Annotated[
    float,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        min=1,
        help="How long a store may keep silent before it counts as lost.",
    ),
]
RateOption = Annotated[
    str | None,
    typer.Option(
        "--rate-limit",
        metavar="RATE",
        help="Read no faster: 500 (messages a second), or 2MB (bytes a second).",
    ),
]
RETRIES = 5
TIMEOUT = 600.0

_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([kMG]i?)?(B)?(?:/s)?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3}


@dataclass(frozen=True, slots=True)
class Transfer:
    """How patiently to move memories, and how fast at most."""

    retries: int = RETRIES
    timeout: float = TIMEOUT
    rate: Rate | None = None


def transfer(retries: int, timeout: float, rate: str | None) -> Transfer:
    """These options together.

    Raises:
        UsageError: the rate is none.
    """
    return Transfer(retries, timeout, _rate(rate))


def _rate(text: str | None) -> Rate | None:
    if text is None:
        return None
    found = _RATE.fullmatch(text.strip())
    number = float(found[1]) if found else 0.0
    if not found or not number:
        raise UsageError(
            f"--rate-limit {text!r} is no rate",
            "write 500 for messages a second, or 500kB, 2MB, 1.5MiB for bytes a second",
        )
    unit = (found[2] or "").lower()
    number *= (1024 if unit.endswith("i") else 1000) ** _POWERS[unit[:1]]
    return Rate(size=number) if found[3] else Rate(messages=number)
