"""A report, before it has a form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(slots=True)
class Report:
    """What a command has to say, ready for every format.

    ``data`` is the JSON object without schema, warnings and error; ``rows`` are flat records for
    NDJSON and CSV; ``table`` is for people, None where there is nothing to show.
    """

    command: str
    data: Callable[[], dict[str, Any]]
    rows: Callable[[], list[dict[str, Any]]]
    table: Callable[[], RenderableType | None]
