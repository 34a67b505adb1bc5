"""Parts as tasks of a Ray cluster.  No other module imports Ray."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import socket
import warnings
from contextlib import ExitStack, redirect_stdout
from io import StringIO
from threading import Thread
from typing import TYPE_CHECKING, Any

from memctl.errors import Unavailable, UsageError
from memctl.location import redact_value, visible
from memctl.machine.installation import install_command
from memctl.parts.part import Part, PartResult, run_part

if TYPE_CHECKING:
    from types import ModuleType

_ADDRESS = re.compile(r"\[?([\w.:-]+?)\]?:(\d{1,5})")
"""HOST:PORT of a cluster.  Addresses of gateways, such as ``ray://``, are not of this form."""
_PATIENCE = 30.0
"""The seconds to wait for a cluster that accepts connections and does not answer."""
_HINT = "run memctl on a node of the cluster, or set RAY_ADDRESS to its HOST:PORT"


class RayEngine:
    """An engine that runs each part as a task of a Ray cluster.

    A worker of the cluster supervises the part, whose process ends with the worker.  Ray does not
    repeat a part whose worker or node died: the driver does, and counts how often.  Workers have
    their own environment and configuration; they get nothing of this process but the part.
    """

    name = "ray"

    def __init__(self, workers: int | None) -> None:
        """Connect to the cluster of ``RAY_ADDRESS``, or to that of this machine.

        ``workers`` is by default the number of processors that the cluster has for tasks.  Until
        ``close``, nothing can be written to ``sys.stdout``: Ray prints errors of workers there.

        Raises:
            UsageError: Ray is not installed, or the address is not that of a cluster.
            Unavailable: there is no cluster, or it cannot run tasks.
        """
        self._ray = _module()
        self._running: set[Any] = set()
        self._forced = False
        with ExitStack() as ends:
            ends.enter_context(redirect_stdout(StringIO()))
            _connect(self._ray)
            ends.callback(self._ray.shutdown)
            self.workers = workers or int(self._ray.cluster_resources().get("CPU", 0))
            if not self.workers:
                raise Unavailable(
                    "the Ray cluster has no processors for tasks",
                    "add nodes to it; if it adds them itself, say how many parts with --workers",
                )
            self._ends = ends.pop_all()
        # The worker imports the function: nothing of it is sent.
        self._function = self._ray.remote(run_in_worker)

    async def run(self, part: Part) -> PartResult:
        """Run a part to its end."""
        command = next(word for word in part.arguments if not word.startswith("-"))
        task = self._function.options(
            name=f"memctl {command} {part.shard}",
            num_cpus=1,
            max_retries=0,
            scheduling_strategy="SPREAD",
        ).remote(part)
        self._running.add(task)
        failures = self._ray.exceptions
        try:
            result: PartResult = await task
        except failures.RayTaskError as error:
            # memctl is missing there, or the disk is full.
            code = (Unavailable if isinstance(error.cause, OSError) else UsageError).exit_code
            text = f"a worker cannot run memctl: {_reason(error.cause)}"
            return PartResult(part.shard, code, errors=text)
        except failures.TaskCancelledError:  # before it began, or by force
            number = signal.SIGKILL if self._forced else signal.SIGTERM
            return PartResult(part.shard, 128 + number)
        except failures.RayError as error:  # the worker or its node has died
            return PartResult(part.shard, 128 + signal.SIGKILL, errors=_reason(error))
        finally:
            self._running.discard(task)
        return result

    def stop(self, *, force: bool) -> None:
        """Stop all parts that run, at the end of a memory; with ``force``, kill them."""
        self._forced = force
        for task in self._running:
            self._ray.cancel(task, force=force)

    async def close(self) -> None:
        """Leave the cluster.  No part runs."""
        await asyncio.to_thread(self._ends.close)


def run_in_worker(part: Part) -> PartResult:
    """Run a part in a worker of the cluster, as ``run_part``.

    To stop a part, Ray interrupts the worker.  A cluster that was started in the background of a
    shell ignores SIGINT, and with it the interruption.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return run_part(part)


def _module() -> ModuleType:
    """Return Ray, silent.

    Raises:
        UsageError: it is not installed.
    """
    # Under ``uv run``, Ray would send the current folder to the workers.
    os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
    try:
        import ray
    except ImportError as error:
        raise UsageError("--on ray needs Ray", install_command("ray")) from error
    logging.getLogger("ray").setLevel(logging.CRITICAL + 1)
    warnings.filterwarnings("ignore", module="ray")
    module: ModuleType = ray
    return module


def _connect(ray: ModuleType) -> None:
    """Connect this process to a running cluster; never start one.

    Raises:
        UsageError: ``RAY_ADDRESS`` is not the address of a cluster.
        Unavailable: the cluster is not there, or refuses.
    """
    address = os.environ.get("RAY_ADDRESS") or "auto"
    if address != "auto":
        _look_for(address)
    errors: list[Exception] = []

    def connect() -> None:
        try:
            ray.init(address, log_to_driver=False, configure_logging=False)
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            errors.append(error)

    # In the main thread, Ray would replace the handler of SIGTERM, and Ctrl-C would wait for it.
    thread = Thread(target=connect, name="ray", daemon=True)
    thread.start()
    thread.join(_PATIENCE)
    if thread.is_alive():
        raise Unavailable(
            f"the Ray cluster at {address} did not answer within {_PATIENCE:.0f} s", _HINT
        )
    if errors:
        raise Unavailable(
            f"cannot connect to a Ray cluster: {_reason(errors[0])}", _HINT
        ) from errors[0]


def _look_for(address: str) -> None:
    """Refuse an address without a listener, for which Ray would wait minutes.

    Raises:
        UsageError: it is not the address of a cluster.
        Unavailable: nothing listens there.
    """
    found = _ADDRESS.fullmatch(address)
    if found is None:
        raise UsageError(
            f"RAY_ADDRESS is {redact_value(address)}, not the HOST:PORT of a cluster",
            "submit the command as a job in the cluster: ray job submit -- memctl ...",
        )
    try:
        socket.create_connection((found[1], int(found[2])), timeout=5).close()
    except (OSError, OverflowError) as error:
        raise Unavailable(f"no Ray cluster at {address}: {_reason(error)}", _HINT) from error


def _reason(error: object) -> str:
    """Return the first sentence of an error on one line.

    Ray's sentences about its options, or a traceback, may follow it.
    """
    text = " ".join(str(error).split())
    return visible(text.partition(" traceback: ")[0].partition(". ")[0])[:300]
