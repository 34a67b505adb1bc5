"""Signals that reach a command while its store is at work."""

from __future__ import annotations

import asyncio
import signal

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
