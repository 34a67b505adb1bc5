"""``--ping``: tells a monitor how the run ended, as healthchecks.io has it.

A success is a GET of the URL; a failure is a POST of one line of text to the URL with ``/fail``.
"""

from __future__ import annotations

import threading
import time
from http.client import HTTPException
from queue import Empty, SimpleQueue
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import SplitResult, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from memctl import __version__
from memctl.errors import UsageError
from memctl.location import visible

TIMEOUT = 10.0
"""Seconds for one try, whatever takes them: a name, a connection, an answer."""
PAUSES = (1.0, 3.0)
"""Seconds before each other try."""
BODY = 1000
"""Characters of the line of a failure, at most."""

_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Answers after which trying again may help."""


class Heartbeat:
    """A URL that is called when the run is over.  Its path is a secret: it is never shown."""

    def __init__(self, url: str) -> None:
        """Raises:
        UsageError: the URL is none that can be called.
        """
        self._parts = _parts(url)
        self.label = f"{self._parts.scheme}://{visible(self._parts.netloc)}/***"

    def send(self, failure: str | None) -> str | None:
        """Tells of a success (None) or a failure; gives why that did not work, None if it did."""
        why = self._try(failure)
        for pause in PAUSES:
            if why is None or not why.passing:
                break
            time.sleep(pause)
            why = self._try(failure)
        return None if why is None else why.text

    def _try(self, failure: str | None) -> _Refusal | None:
        """One call; in a thread, for neither looking up a name nor reading heeds a time limit."""
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
    """The parts of a URL.  No error shows any of it but its scheme."""
    hint = "write https://HOST/PATH, as the monitor shows it"
    if not (url.isascii() and url.isprintable()) or " " in url:
        raise UsageError("--ping needs a URL without spaces and special characters", hint)
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise UsageError("--ping needs a URL, and this is none", hint) from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError("--ping needs a URL of http:// or https://", hint)
    if "@" in parts.netloc:
        raise UsageError("--ping takes no URL with a login in it", hint)
    return parts._replace(fragment="")


class _Refusal:
    """Why a call did not work, and whether the next one may."""

    def __init__(self, text: str, *, passing: bool) -> None:
        self.text = text
        self.passing = passing


class _Redirects(HTTPRedirectHandler):
    """Goes where it is sent on http and https, and tells there what it was to tell."""

    def redirect_request(
        self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Request | None:
        if urlsplit(newurl).scheme not in ("http", "https"):
            raise URLError("it leads away from http")
        if code in (307, 308):
            return Request(newurl, req.data, dict(req.headers), method=req.get_method())
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _call(request: Request) -> _Refusal | None:
    """Calls once.  The reasons of libraries may show the URL: only what the system says is told."""
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
        return _Refusal("it sent to something that is no URL", passing=False)


def _system(error: BaseException) -> str:
    strerror = error.strerror if isinstance(error, OSError) else None
    return strerror or type(error).__name__
