"""Signals that ask memctl to stop.  It is loaded before anything else, and loads little."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager

TYPE_CHECKING = False  # as in ``memctl``

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, NoReturn

STOPS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
"""The signals that ask this process to stop."""


def catch(hear: Callable[[signal.Signals], object]) -> dict[signal.Signals, Any]:
    """Have ``hear`` called when a signal asks this process to stop; return what was before.

    It is called in the main thread, between any two steps of it.  A SIGHUP that is ignored stays
    so: that is what ``nohup`` is for.
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
    """``catch`` for the body."""
    before = catch(hear)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def leave(number: signal.Signals) -> NoReturn:
    """End the process at once, silently: for when there is nothing to clean up."""
    os._exit(128 + number)


def interrupt(number: signal.Signals) -> NoReturn:
    """End what is being done; ``stopped_by`` tells the signal.

    Raises:
        KeyboardInterrupt: always.
    """
    raise KeyboardInterrupt(number)


def stopped_by(end: KeyboardInterrupt) -> signal.Signals:
    """Return the signal behind a KeyboardInterrupt, which is SIGINT where Python raised it."""
    return end.args[0] if end.args else signal.SIGINT
