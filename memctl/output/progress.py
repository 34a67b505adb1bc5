"""A line on the terminal that tells how an operation gets on."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from memctl.output.numbers import count, size


class _Line:
    """A line that is gone when the work is done."""

    def __init__(self, description: str) -> None:
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
            console=Console(stderr=True, markup=False),
            transient=True,
        )
        self._task = self._progress.add_task(description)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def _show(self, text: str) -> None:
        self._progress.update(self._task, description=text)


class Live(_Line):
    """Memories, messages and bytes so far."""

    def __init__(self, description: str) -> None:
        super().__init__(description)
        self._label = description
        self._memories = 0
        self._messages = 0
        self._bytes = 0

    def advance(self, *, memories: int = 0, messages: int = 0, size: int = 0) -> None:
        """So many more memories, messages and bytes are done."""
        self._memories += memories
        self._messages += messages
        self._bytes += size
        self._show(self._text())

    def _text(self) -> str:
        return (
            f"{self._label}  {count(self._memories, 'memory')}  "
            f"{count(self._messages, 'message')}  {size(self._bytes)}"
        )


class Summarising(_Line):
    """Memories of so many, the tokens that were summed up, what they cost, and how fast it goes."""

    def __init__(self, memories: int) -> None:
        super().__init__(f"summarising  0 of {count(memories, 'memory')}")
        self._all = memories
        self._memories = 0
        self._tokens = 0
        self._begun = time.monotonic()

    def advance(self, *, memories: int, tokens: int, cost: float | None) -> None:
        """So many more memories are done and tokens summed up; ``cost`` is that of all so far."""
        self._memories += memories
        self._tokens += tokens
        rate = self._memories / max(time.monotonic() - self._begun, 0.001)
        paid = "" if cost is None else f"  cost {cost:.4f}"
        self._show(
            f"summarising  {self._memories:,} of {count(self._all, 'memory')}  "
            f"{count(self._tokens, 'token')}{paid}  {rate:.1f}/s"
        )
