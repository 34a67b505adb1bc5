"""What tells others how a run ended: never a reason for it to end otherwise."""

from __future__ import annotations

import time
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from memctl.errors import MemctlError
from memctl.output.terminal import Output

if TYPE_CHECKING:
    from memctl.output.heartbeat import Heartbeat


class Monitoring:
    """The monitors of one run; made when it begins."""

    def __init__(self, ping: str | None, metrics_file: Path | None) -> None:
        """Raises:
        UsageError: ``ping`` cannot be called.
        """
        self._begun = time.monotonic()
        self._heartbeat = None if ping is None else _heartbeat(ping)
        self._metrics_file = metrics_file

    def tell(
        self,
        output: Output,
        command: str,
        store: str,
        exit_code: int,
        error: MemctlError | None,
    ) -> None:
        """Tells; what cannot be told is a warning."""
        duration = time.monotonic() - self._begun
        if self._metrics_file is not None:
            self._measure(output, self._metrics_file, (command, store), exit_code, duration)
        if self._heartbeat is not None:
            self._ping(output, self._heartbeat, _line(command, exit_code, error))

    def _measure(
        self, output: Output, path: Path, job: tuple[str, str], exit_code: int, duration: float
    ) -> None:
        from memctl.output import metrics  # most runs have none

        command, store = job
        samples = chain(
            metrics.run_samples(time.time(), duration, exit_code),
            metrics.report_samples(output.report.data() if output.report else {}),
        )
        labels = {"command": command, "store": store, "file": path.name}
        try:
            metrics.write(path, metrics.exposition(samples, labels))
        except MemctlError as error:
            output.warn(f"--metrics-file: {error.message}")

    def _ping(self, output: Output, heartbeat: Heartbeat, failure: str | None) -> None:
        try:
            why = heartbeat.send(failure)
        except KeyboardInterrupt:
            why = "stopped by SIGINT"
        if why is not None:
            output.warn(f"--ping: {heartbeat.label} could not be told: {why}")


def _heartbeat(url: str) -> Heartbeat:
    from memctl.output.heartbeat import Heartbeat  # most runs have none

    return Heartbeat(url)


def _line(command: str, exit_code: int, error: MemctlError | None) -> str | None:
    """What a failure says; errors that are not memctl's own may show what was typed."""
    if exit_code == 0:
        return None
    said = f"memctl {command}: exit code {exit_code}"
    return said if error is None else f"{said} ({error.code}): {error.message}"
