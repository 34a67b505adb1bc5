"""A monitor on loopback: an HTTP server that records requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class Call(NamedTuple):
    """A received request."""

    method: str
    path: str
    body: str


class Monitor:
    """A server that answers with the codes of ``answers``, in turn, and then with 200."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.answers: list[int] = []
        self.redirect = ""
        self.slow = 0.0
        self.url = ""

    def answer(self) -> int:
        time.sleep(self.slow)
        return self.answers.pop(0) if self.answers else 200


@contextmanager
def monitored() -> Iterator[Monitor]:
    """Yield a running monitor; ``url`` ends in the secret path of a check."""
    monitor = Monitor()

    class Handler(BaseHTTPRequestHandler):
        def _handle(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            monitor.calls.append(Call(self.command, self.path, body))
            code = monitor.answer()
            self.send_response(code)
            if 300 <= code < 400:
                self.send_header("Location", monitor.redirect)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_POST = _handle  # noqa: N815 - names of http.server

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    monitor.url = f"http://127.0.0.1:{server.server_port}/ping/s3cret"
    try:
        yield monitor
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
