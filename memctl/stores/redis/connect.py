"""Connecting to Redis: bounded in time, and left at once when the operator asks to stop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from redis import exceptions

T = TypeVar("T")


def log_in(connection: Any) -> None:
    """What redis-py does on a new connection, and a PING; for its ``redis_connect_func``.

    The PING is there because redis-py itself waits for a reply only where it has something to set.

    Raises:
        RedisError: the server refuses the login, or does not answer in time.
    """
    connection.on_connect()
    connection.send_command("PING", check_health=False)
    with suppress(exceptions.NoPermissionError):  # an answer, too
        connection.read_response()


async def in_daemon(call: Callable[[], T]) -> T:
    """What the call gives, run in a thread that neither a cancellation nor the exit waits for.

    For what cannot be interrupted: looking up a host, connecting, the handshake of TLS.  A
    cancelled call goes on to its end, and must put away by itself what it got.
    """
    done: Future[T] = Future()
    done.set_running_or_notify_cancel()  # now no cancellation takes it from the thread

    def run() -> None:
        try:
            found = call()
        except BaseException as error:  # noqa: BLE001 - whoever waits gets it, of any kind
            done.set_exception(error)
        else:
            done.set_result(found)

    threading.Thread(target=run, name="memctl-redis-connect", daemon=True).start()
    return await asyncio.wrap_future(done)
