"""Signals that reach a command while its store is at work."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time

import pytest

from memctl.commands._run import wait_for
from memctl.errors import Interrupted, Lost, NotFound, Unavailable
from memctl.ops.retry import Retries


async def _cut_short(error: Exception) -> None:
    """Be stopped by a signal, and report it as a driver may: as an error."""
    signal.raise_signal(signal.SIGINT)
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        raise error from None


async def _fails(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    "error", [Unavailable("m.db: interrupted"), ValueError("no active connection")], ids=repr
)
def test_signal_that_a_driver_reports_as_an_error_is_a_stop(error: Exception) -> None:
    with pytest.raises(Interrupted) as caught:
        wait_for(_cut_short(error))
    assert caught.value.exit_code == 130


def test_signal_does_not_hide_another_error() -> None:
    with pytest.raises(NotFound):
        wait_for(_cut_short(NotFound("no such memory")))
    with pytest.raises(Unavailable):
        wait_for(_fails(Unavailable("the disk is full")))
    with pytest.raises(ValueError, match="a bug"):
        wait_for(_fails(ValueError("a bug")))


async def _work(attempts: list[int]) -> None:
    retries = Retries(5, lambda _: None)
    retries.reached = True

    async def attempt() -> None:
        attempts.append(1)
        await _cut_short(Lost("m.db: the connection is closed"))

    await retries.run(attempt, lambda: 0)


def test_signal_that_a_driver_reports_as_a_lost_connection_is_not_tried_again() -> None:
    attempts: list[int] = []
    with pytest.raises(Interrupted):
        wait_for(_work(attempts))
    assert len(attempts) == 1


def test_signal_in_another_thread_is_heard_at_once() -> None:
    """A driver may have threads to which the system gives signals, and no event may follow."""
    begin = threading.Event()

    def interrupt() -> None:
        begin.wait()
        time.sleep(0.3)  # until the loop waits
        os.kill(os.getpid(), signal.SIGINT)

    async def wait() -> None:
        begin.set()
        await asyncio.sleep(60)

    other = threading.Thread(target=interrupt)
    other.start()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    started = time.monotonic()
    try:
        with pytest.raises(Interrupted):
            wait_for(wait())
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        other.join()
    assert time.monotonic() - started < 30
