"""The base of summarizers and embedders."""

from __future__ import annotations

from abc import ABC
from types import TracebackType
from typing import ClassVar, Self

from memctl.inference.settings import Prices


class Model(ABC):
    """A model, a program, or neither; opened as an async context manager."""

    kind: ClassVar[str]
    name: str
    concurrency: int = 4
    """The default number of concurrent requests."""
    prices: Prices | None = None

    async def __aenter__(self) -> Self:
        """Open connections and load data.

        Raises:
            UsageError: a requirement is not configured or not installed.
            Unavailable: the model cannot be reached.
        """
        return self

    async def __aexit__(  # noqa: B027 - some hold nothing
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release every connection and process."""
