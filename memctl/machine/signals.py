"""Signals that ask memctl to stop.

The module is loaded first, and imports little.
"""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager

TYPE_CHECKING = False  # as in ``memctl/__init__.py``

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, NoReturn

STOPS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
"""The signals that ask a process to stop."""


def catch(hear: Callable[[signal.Signals], object]) -> dict[signal.Signals, Any]:
    """Call ``hear`` for each signal that asks this process to stop; return the previous handlers.

    Python calls ``hear`` in the main thread.  If SIGHUP is ignored, as under ``nohup``, it stays
    ignored.
    """
    before = {}
    for number in STOPS:
        handler = signal.getsignal(number)
        if number.name != "SIGHUP" or handler is not signal.SIG_IGN:
            signal.signal(number, lambda got, _: hear(signal.Signals(got)))
            before[number] = handler or signal.SIG_DFL
    return before


@contextmanager
def caught(hear: Callable[[signal.Signals], object]) -> Iterator[None]:
    """Call ``hear`` for each signal to stop during the ``with`` block; see ``catch``."""
    before = catch(hear)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def leave(number: signal.Signals) -> NoReturn:
    """End the process at once and silently, with the exit code of the signal ``number``.

    Nothing is cleaned up.
    """
    os._exit(128 + number)


def interrupt(number: signal.Signals) -> NoReturn:
    """Interrupt the main thread; ``stopped_by`` finds the signal ``number`` in the exception.

    Raises:
        KeyboardInterrupt: always.
    """
    raise KeyboardInterrupt(number)


def stopped_by(end: KeyboardInterrupt) -> signal.Signals:
    """Return the signal that caused a KeyboardInterrupt; SIGINT if Python itself raised it."""
    return end.args[0] if end.args else signal.SIGINT
