"""A line on the terminal that tells how a copy gets on."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from memctl.output.numbers import count, size


class Live:
    """Memories, messages and bytes so far; gone when the work is done."""

    def __init__(self, description: str) -> None:
        self._memories = 0
        self._messages = 0
        self._bytes = 0
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
            console=Console(stderr=True, markup=False),
            transient=True,
        )
        self._label = description
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

    def advance(self, *, memories: int = 0, messages: int = 0, size: int = 0) -> None:
        """So many more memories, messages and bytes are done."""
        self._memories += memories
        self._messages += messages
        self._bytes += size
        self._progress.update(self._task, description=self._text())

    def _text(self) -> str:
        return (
            f"{self._label}  {count(self._memories, 'memory')}  "
            f"{count(self._messages, 'message')}  {size(self._bytes)}"
        )
