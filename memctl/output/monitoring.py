"""Monitors of a run: a heartbeat URL, and a file of metrics for node_exporter."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from http.client import HTTPException
from itertools import chain
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import SplitResult, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from memctl.errors import MemctlError, UsageError
from memctl.location import visible
from memctl.machine import signals
from memctl.ops.doctor.findings import Severity
from memctl.output.terminal import Output
from memctl.storekit.files import AtomicFile
from memctl.version import __version__

_MODE = 0o644
"""The file is readable for node_exporter, another user.  It contains nothing of messages."""

_HELP = {
    "last_run_timestamp_seconds": "When the last run ended, in seconds since the epoch.",
    "last_success_timestamp_seconds": "When the last run with exit code 0 ended.",
    "last_run_success": "Whether the last run ended with exit code 0.",
    "last_run_exit_code": "The exit code of the last run.",
    "last_run_duration_seconds": "How long the last run took.",
    "memories": "Memories in the report of the last run, by what became of them.",
    "messages": "Messages in the report of the last run, by what became of them.",
    "healthy": "Whether doctor found neither errors nor warnings, whatever --fail-on.",
    "findings": "The numbers that doctor's report adds up, by severity.",
}

Sample = tuple[str, dict[str, str], float | int]
"""A metric: the name without prefix, additional labels, and the value."""


def run_samples(
    ended: float, duration: float, exit_code: int, succeeded: float | None = None
) -> Iterator[Sample]:
    """Yield the metrics of any run: its end in seconds since 1970, duration and exit code.

    ``succeeded`` is the end of the last successful run before, None if there is none.
    """
    yield "last_run_timestamp_seconds", {}, ended
    yield "last_run_success", {}, int(exit_code == 0)
    yield "last_run_exit_code", {}, exit_code
    yield "last_run_duration_seconds", {}, duration
    if exit_code == 0:
        succeeded = ended
    if succeeded is not None:
        yield "last_success_timestamp_seconds", {}, succeeded


_SUCCEEDED = re.compile(
    r"^memctl_last_success_timestamp_seconds\{.*\} (\d+(?:\.\d+)?)$", re.MULTILINE | re.ASCII
)
_READ_BYTES = 1 << 20
"""The most bytes to read of an earlier file of metrics, which has a few kilobytes."""


def last_success(path: Path) -> float | None:
    """Return the end of the last successful run, from its file of metrics.

    The result is None if the file does not exist or cannot be read.
    """
    if not path.is_file():
        return None
    try:
        with path.open("rb") as file:
            text = file.read(_READ_BYTES).decode(errors="replace")
    except OSError:
        return None
    found = _SUCCEEDED.search(text)
    return float(found[1]) if found else None


def report_samples(data: dict[str, Any]) -> Iterator[Sample]:
    """Yield a metric for each number in the JSON report ``data``.

    ``memories`` and ``messages`` have a metric for each outcome, ``findings`` one for each
    severity.  Any other list becomes its length.
    Numbers in ``tokens`` and ``model`` get a prefixed name (``model_cost``).  All other objects are
    left out, because some have keys from messages, such as marks.
    """
    for name, value in data.items():
        if name == "totals":
            yield from report_samples(value)
        elif name in ("memories", "messages"):
            yield from _by_outcome(name, value)
        elif name in ("tokens", "model"):
            for inner, number in value.items():
                if isinstance(number, int | float):
                    yield f"{name}_{inner}", {}, number
        elif name == "findings":
            numbers = {severity.value: 0 for severity in Severity}
            for finding in value:
                numbers[finding["severity"]] += finding["count"]
            for severity, number in numbers.items():
                yield name, {"severity": severity}, number
        elif isinstance(value, list):
            yield name, {}, len(value)
        elif isinstance(value, int | float):
            yield name, {}, value


def _by_outcome(name: str, value: Any) -> Iterator[Sample]:
    if isinstance(value, dict):
        for outcome, number in value.items():
            if isinstance(number, int | float):
                yield name, {"outcome": outcome}, number
    elif isinstance(value, int):
        yield name, {"outcome": "selected"}, value


def exposition(samples: Iterator[Sample], labels: dict[str, str]) -> str:
    """Return metrics in Prometheus's text format, each with ``labels`` added."""
    by_name: dict[str, list[str]] = {}
    for name, own, value in samples:
        shown = ",".join(
            f'{label}="{_escaped_label(text)}"' for label, text in (labels | own).items()
        )
        number = int(value) if isinstance(value, bool) else value
        by_name.setdefault(f"memctl_{name}", []).append(f"memctl_{name}{{{shown}}} {number!r}")
    lines = []
    for name, found in by_name.items():
        short = name.removeprefix("memctl_")
        said = _HELP.get(short, f"{short} in the JSON report of the last run.")
        lines += [f"# HELP {name} {said}", f"# TYPE {name} gauge", *found]
    return "\n".join(lines) + "\n"


def _escaped_label(text: str) -> str:
    shown = text.encode("utf-8", "backslashreplace").decode()
    return shown.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def write_metrics(path: Path, text: str) -> None:
    """Create or replace the file of metrics atomically.

    Raises:
        MemctlError: the operating system refuses to write the file.
    """
    with AtomicFile(path, _MODE) as file:
        file.write(text.encode())
        file.commit()


TIMEOUT = 10.0
"""The seconds for one attempt, including name resolution, connection and answer."""
PAUSES = (1.0, 3.0)
"""The seconds before each further attempt."""
BODY = 1000
"""The maximum number of characters of the line that reports a failure."""

_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Status codes after which a retry may help."""


class Heartbeat:
    """The secret URL of a monitor, which is called at the end of a run and never shown."""

    def __init__(self, url: str) -> None:
        """Parse the URL, without calling it.

        Raises:
            UsageError: the URL is invalid, not http or https, or has a login.
        """
        self._parts = _parts(url)
        self.label = f"{self._parts.scheme}://{visible(self._parts.netloc)}/***"

    def send(self, failure: str | None) -> str | None:
        """Call the URL, with retries; ``failure`` tells why the run failed, None for a success.

        Return None if the call succeeded; if it failed, the reason.
        """
        why = self._try(failure)
        for pause in PAUSES:
            if why is None or not why.passing:
                break
            time.sleep(pause)
            why = self._try(failure)
        return None if why is None else why.text

    def _try(self, failure: str | None) -> _Refusal | None:
        """Call the URL of the monitor once; return the reason of a failure, or None."""
        answers: SimpleQueue[_Refusal | None] = SimpleQueue()
        request = self._request(failure)
        threading.Thread(target=lambda: answers.put(_call(request)), daemon=True).start()
        try:
            return answers.get(timeout=TIMEOUT)
        except Empty:
            return _Refusal(f"no answer within {TIMEOUT:g} s", passing=True)

    def _request(self, failure: str | None) -> Request:
        headers = {"User-Agent": f"memctl/{__version__}"}
        if failure is None:
            return Request(self._parts.geturl(), headers=headers)
        url = self._parts._replace(path=self._parts.path.rstrip("/") + "/fail").geturl()
        headers["Content-Type"] = "text/plain; charset=utf-8"
        return Request(url, visible(failure)[:BODY].encode(), headers)


def _parts(url: str) -> SplitResult:
    """Parse the URL of ``--ping``.  Errors do not quote the URL, which is secret.

    Raises:
        UsageError: the URL is invalid, not http or https, or has a login.
    """
    hint = "write https://HOST/PATH, as the monitor shows it"
    if not (url.isascii() and url.isprintable()) or " " in url:
        raise UsageError("--ping needs a URL without spaces and special characters", hint)
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise UsageError("--ping needs a valid URL", hint) from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError("--ping needs a URL of http:// or https://", hint)
    if "@" in parts.netloc:
        raise UsageError("--ping does not accept a URL with a login", hint)
    return parts._replace(fragment="")


class _Refusal:
    """The reason why a call of a URL failed; if ``passing``, another attempt may succeed."""

    def __init__(self, text: str, *, passing: bool) -> None:
        self.text = text
        self.passing = passing


class _Redirects(HTTPRedirectHandler):
    """Follows redirects to http and https only; codes 307 and 308 keep the method and body."""

    def redirect_request(
        self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Request | None:
        if urlsplit(newurl).scheme not in ("http", "https"):
            raise URLError("it redirects to another scheme than http")
        if code in (307, 308):
            return Request(newurl, req.data, dict(req.headers), method=req.get_method())
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _call(request: Request) -> _Refusal | None:
    """Make an HTTP request; return None for a success, or the reason of a failure.

    The reason does not quote errors of libraries, which may contain the secret URL.
    """
    try:
        with build_opener(_Redirects).open(request, timeout=TIMEOUT):
            return None
    except HTTPError as error:
        with error:
            return _Refusal(f"it answered {error.code}", passing=error.code in _PASSING)
    except URLError as error:
        cause = error.reason
        said = cause if isinstance(cause, str) else _system(cause)
        return _Refusal(said, passing=isinstance(cause, OSError))
    except (OSError, HTTPException) as error:
        return _Refusal(_system(error), passing=True)
    except ValueError:
        return _Refusal("it redirects to an invalid URL", passing=False)


def _system(error: BaseException) -> str:
    strerror = error.strerror if isinstance(error, OSError) else None
    return strerror or type(error).__name__


class Monitoring:
    """The monitors of a run: the URL of ``--ping`` and the file of ``--metrics-file``."""

    def __init__(self, ping: str | None, metrics_file: Path | None) -> None:
        """Check the URL, and start to measure the duration of the run.

        Raises:
            UsageError: ``ping`` is not a valid URL of http or https, or has a login.
        """
        self._begun = time.monotonic()
        self._heartbeat = None if ping is None else Heartbeat(ping)
        self._metrics_file = metrics_file

    def tell(
        self,
        output: Output,
        command: str,
        store: str,
        exit_code: int,
        error: MemctlError | None,
    ) -> None:
        """Write the file of metrics and call the URL, if given; print a warning if either fails.

        ``error`` is the error that ended the run, None without an error.
        """
        duration = time.monotonic() - self._begun
        if self._metrics_file is not None:
            self._measure(output, self._metrics_file, (command, store), exit_code, duration)
        if self._heartbeat is not None:
            self._ping(output, self._heartbeat, _line(command, exit_code, error))

    def _measure(
        self, output: Output, path: Path, job: tuple[str, str], exit_code: int, duration: float
    ) -> None:
        command, store = job
        samples = chain(
            run_samples(time.time(), duration, exit_code, last_success(path)),
            report_samples(output.reported),
        )
        labels = {"command": command, "store": store, "file": path.name}
        try:
            write_metrics(path, exposition(samples, labels))
        except MemctlError as error:
            output.warn(f"--metrics-file: {error.message}")

    def _ping(self, output: Output, heartbeat: Heartbeat, failure: str | None) -> None:
        try:
            why = heartbeat.send(failure)
        except KeyboardInterrupt as end:
            why = f"stopped by {signals.stopped_by(end).name}"
        if why is not None:
            output.warn(f"--ping: {heartbeat.label} cannot be reached: {why}")


def _line(command: str, exit_code: int, error: MemctlError | None) -> str | None:
    """Return the line that reports a failed run; None for exit code 0.

    Errors of other libraries are not quoted: they may contain secrets.
    """
    if exit_code == 0:
        return None
    said = f"memctl {command}: exit code {exit_code}"
    return said if error is None else f"{said} ({error.code}): {error.message}"
