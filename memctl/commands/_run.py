"""What every command does around its operation: the event loop, signals, stores."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from memctl import system
from memctl.errors import Interrupted, NotFound
from memctl.ops.stop import Stop
from memctl.output.terminal import Output
from memctl.selection import Selection
from memctl.store import Store

T = TypeVar("T")


def wait_for(work: Coroutine[Any, Any, T], stop: Stop | None = None) -> T:
    """Runs an operation to its end.

    A signal asks the operation to stop, where it pays attention to that; another one, or the first
    where it does not, cuts it short.

    Raises:
        Interrupted: SIGINT or SIGTERM came; the operation has let go of everything.
    """
    # What libraries log of a connection that was cut off is told by memctl's own error.
    logging.getLogger().addHandler(logging.NullHandler())
    gc.freeze()  # see cli.main
    gc.enable()
    return asyncio.run(_interruptible(work, stop or Stop()))


async def _interruptible(work: Coroutine[Any, Any, T], stop: Stop) -> T:
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    caught: list[signal.Signals] = []

    def hear(number: signal.Signals) -> None:
        caught.append(number)
        if stop.attentive and not stop.asked:
            stop.ask()
        else:
            task.cancel()

    system.on_signals(loop, (signal.SIGINT, signal.SIGTERM), hear)
    try:
        return await task
    except (asyncio.CancelledError, Interrupted) as end:
        if not caught:
            raise
        error = Interrupted(f"stopped by {caught[0].name}", "what was reported as written is whole")
        error.exit_code = 128 + caught[0]
        raise error from end


@asynccontextmanager
async def opened(store: Store, output: Output) -> AsyncGenerator[Store]:
    """An open store, whose warnings reach the operator."""
    async with store:
        gc.freeze()  # what was imported for the store stays, too
        output.detail(f"opened {store.label} ({store.kind})", "opened", store=store.label)
        try:
            yield store
        finally:
            for text in store.warnings:
                output.warn(text)


def refuse_absent(where: Selection, found: int, label: str, path: str | None = None) -> None:
    """Naming a memory that is not there is an error; an empty selection is not.

    Raises:
        NotFound: nothing was found under the names.
    """
    if path is not None and not found:
        raise NotFound(
            f"{label} has no memory at the path {path!r}", "memctl inspect lists what there is"
        )
    if where.named and not found:
        names = ", ".join(repr(name) for name in sorted(where.users | where.sessions))
        raise NotFound(f"{label} has no memory of {names}", "memctl inspect lists what there is")
