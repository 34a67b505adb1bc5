"""Progress of an operation: a live line on a terminal, or a line at intervals."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Protocol, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TimeElapsedColumn,
)
from rich.text import Text

from memctl.ops.report import Total
from memctl.text.numbers import count, duration, size

_SOON = 1.0
"""The seconds before a speed is shown."""


class Meter(Protocol):
    """Counts the finished work of an operation, and describes its progress."""

    @property
    def share(self) -> float | None:
        """The completed share of the operation, from 0 to 1; None if the total is unknown."""

    def facts(self) -> list[str]:
        """Return texts for people: operation, finished work, speed; the most important first."""

    def fields(self) -> dict[str, Any]:
        """Return the progress as the fields of a JSON object, for a log."""


class Counter:
    """The progress of an operation: counts of memories, messages and bytes."""

    def __init__(self, description: str, total: Callable[[], Total | None]) -> None:
        """``total`` returns the amount of work, or None while it is unknown."""
        self._label = description
        self._total = total
        self._memories = 0
        self._messages = 0
        self._bytes = 0
        self._begun = time.monotonic()

    def advance(self, *, memories: int = 0, messages: int = 0, size: int = 0) -> None:
        """Add memories, messages and bytes to the counts."""
        self._memories += memories
        self._messages += messages
        self._bytes += size

    @property
    def share(self) -> float | None:
        total = self._total()
        return min(1.0, self._messages / total.messages) if total and total.messages else None

    def facts(self) -> list[str]:
        total = self._total()
        seconds, left = self._seconds(), self._left()
        if not self._messages:
            return [self._label, *([count(self._memories, "memory")] if self._memories else [])]
        found = [self._label, _of(self._messages, total and total.messages, "message")]
        if left is not None:
            found.append(f"{duration(left)} left")
        found.append(_of(self._memories, total and total.memories, "memory"))
        if seconds > _SOON:
            found.append(f"{self._messages / seconds:,.0f}/s")
        if self._bytes:
            found.append(size(self._bytes))
        return found

    def fields(self) -> dict[str, Any]:
        total, left = self._total(), self._left()
        found: dict[str, Any] = {
            "doing": self._label,
            "memories": self._memories,
            "messages": self._messages,
            "bytes": self._bytes,
            "seconds": round(self._seconds(), 1),
        }
        if total is not None:
            found["total"] = {"memories": total.memories, "messages": total.messages}
        return found if left is None else found | {"left": round(left, 1)}

    def _seconds(self) -> float:
        return time.monotonic() - self._begun

    def _left(self) -> float | None:
        share, seconds = self.share, self._seconds()
        return seconds / share - seconds if share and seconds > _SOON else None


class Summaries:
    """The progress of summaries: counts of summarized memories and tokens, and the cost."""

    def __init__(self, memories: int) -> None:
        self._all = memories
        self._memories = 0
        self._tokens = 0
        self._cost: float | None = None
        self._begun = time.monotonic()

    def advance(self, *, memories: int, tokens: int, cost: float | None) -> None:
        """Add memories and tokens to the counts; ``cost`` is the total cost, None if unknown."""
        self._memories += memories
        self._tokens += tokens
        self._cost = cost

    @property
    def share(self) -> float | None:
        return self._memories / self._all if self._all else None

    def facts(self) -> list[str]:
        found = ["summarising", _of(self._memories, self._all, "memory")]
        if self._memories:
            found.append(f"{duration(self._left())} left")
        found.append(count(self._tokens, "token"))
        if self._cost is not None:
            found.append(f"cost {self._cost:.4f}")
        seconds = time.monotonic() - self._begun
        return [*found, f"{self._memories / seconds:.1f}/s"] if seconds > _SOON else found

    def fields(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "doing": "summarising",
            "memories": self._memories,
            "tokens": self._tokens,
            "cost": self._cost,
            "seconds": round(time.monotonic() - self._begun, 1),
            "total": {"memories": self._all},
        }
        return found | {"left": round(self._left(), 1)} if self._memories else found

    def _left(self) -> float:
        seconds = time.monotonic() - self._begun
        return seconds / self._memories * (self._all - self._memories)


class Parts:
    """The progress of a run in parts: counts of the parts that have ended, and what they did."""

    def __init__(self, description: str, parts: int) -> None:
        self._label = description
        self._all = parts
        self._parts = 0
        self._messages = 0
        self._failed = 0
        self._begun = time.monotonic()

    def advance(self, *, messages: int, failed: int) -> None:
        """Add a part that has ended: its messages, and the number of memories that failed."""
        self._parts += 1
        self._messages += messages
        self._failed += failed

    @property
    def share(self) -> float | None:
        return self._parts / self._all

    def facts(self) -> list[str]:
        found = [self._label, _of(self._parts, self._all, "part")]
        if self._messages:
            found.append(count(self._messages, "message"))
        if self._failed:
            found.append(f"{count(self._failed, 'memory')} failed")
        if self._parts:
            found.append(f"{duration(self._left())} left")
        return found

    def fields(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "doing": self._label,
            "parts": self._parts,
            "messages": self._messages,
            "failed": self._failed,
            "seconds": round(time.monotonic() - self._begun, 1),
            "total": {"parts": self._all},
        }
        return found | {"left": round(self._left(), 1)} if self._parts else found

    def _left(self) -> float:
        seconds = time.monotonic() - self._begun
        return seconds / self._parts * (self._all - self._parts)


def _of(number: int, total: int | None, noun: str) -> str:
    return f"{number:,} of {count(total, noun)}" if total else count(number, noun)


class _Share(BarColumn):
    """A progress bar; empty if the total is unknown."""

    def render(self, task: Task) -> Any:
        return Text() if task.total is None else super().render(task)


class _Facts(ProgressColumn):
    """The texts of a meter (``Meter.facts``) on one line, cut to the width of the terminal."""

    def __init__(self, meter: Meter) -> None:
        super().__init__()
        self._meter = meter

    def render(self, task: Task) -> Text:
        share = self._meter.share
        if share is not None:
            task.total, task.completed = 1.0, share
        return Text("  ".join(self._meter.facts()), no_wrap=True, overflow="ellipsis")


class Live:
    """A live line of progress on the terminal, which disappears when the operation ends."""

    def __init__(self, meter: Meter) -> None:
        console = Console(stderr=True, markup=False, emoji=False)
        columns: list[ProgressColumn] = [SpinnerColumn(), _Facts(meter)]
        if console.width >= 100:
            columns.append(_Share(bar_width=20))
        columns.append(TimeElapsedColumn())
        self._progress = Progress(*columns, console=console, transient=True)
        self._progress.add_task("", total=None)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()


class Lines:
    """Lines of progress: a thread calls ``tell`` with the meter every few ``seconds``."""

    def __init__(self, meter: Meter, seconds: float, tell: Callable[[Meter], None]) -> None:
        self._meter = meter
        self._seconds = seconds
        self._tell = tell
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(self._seconds):
            self._tell(self._meter)
