"""A model's server on loopback: real HTTP, scripted replies, requests kept for the test.

``ModelServer()`` answers everything with a good summary, or with vectors;
``ModelServer(delay=0.2)`` takes its time.  What is given as arguments is answered in turn first.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from memctl.dialects.fact import decode_vector
from memctl.testing import samples

SUMMARY = {
    "task_overview": "The user plans a trip to Kyoto.",
    "current_state": "An apartment is booked.",
    "important_discoveries": "The first choice was closed.",
    "next_steps": "Look for restaurants.",
    "context_to_preserve": "The son is allergic to peanuts.",
}


@dataclass(frozen=True)
class Request:
    """A request: the JSON body, and the headers with names in lower case."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def system(self) -> str:
        return self._content("system")

    @property
    def user(self) -> str:
        return self._content("user")

    @property
    def form(self) -> str:
        """The ``response_format`` asked for, ``text`` where there is none."""
        return str(self.body.get("response_format", {}).get("type", "text"))

    @property
    def tokens(self) -> int:
        """About the tokens that a server counts in it."""
        return (len(self.system) + len(self.user)) // 4

    def _content(self, role: str) -> str:
        [text] = [one["content"] for one in self.body["messages"] if one["role"] == role]
        return str(text)


@dataclass(frozen=True)
class Reply:
    """An answer: after ``delay`` seconds, ``trickle`` seconds between any two bytes."""

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0
    trickle: float = 0.0
    broken: bool = False
    """True if the connection ends in the middle."""
    raw: Callable[[], Iterator[bytes]] | None = None
    """The pieces to send instead of an HTTP response, as long as the client reads."""
    dies: bool = False
    """True if the server ends instead, with all its connections."""

    def payload(self) -> bytes:
        if isinstance(self.body, bytes):
            return self.body
        return json.dumps(self.body, ensure_ascii=False).encode("utf-8", "surrogatepass")


Answering = Callable[[Request], Reply]


def says(content: Any, finish: str = "stop", **message: Any) -> Answering:
    """A completion with such a content, a dict as JSON; the usage is counted from the request."""

    def answer(request: Request) -> Reply:
        text = json.dumps(content) if isinstance(content, dict) else content
        said = {"role": "assistant", "content": text, **message}
        return Reply(
            {
                "id": "chatcmpl-1",
                "object": "chat.completion",
                "created": 1790000000,
                "model": request.body["model"],
                "choices": [{"index": 0, "message": said, "finish_reason": finish}],
                "usage": usage(request.tokens, len(text or "") // 4),
            }
        )

    return answer


def embedded(size: int = 8, **changes: Any) -> Answering:
    """Vectors of this size, another for each text; the usage is counted from the texts."""

    def answer(request: Request) -> Reply:
        texts = request.body["input"]
        data = [
            {"object": "embedding", "index": index, "embedding": list(vector_of(text, size))}
            for index, text in enumerate(texts)
        ]
        tokens = sum(len(text) // 4 + 1 for text in texts)
        spent = {"prompt_tokens": tokens, "total_tokens": tokens}
        body = {"object": "list", "data": data, "model": request.body["model"], "usage": spent}
        return Reply(body | changes)

    return answer


def vector_of(text: str, size: int = 8) -> array[float]:
    """Return the vector that the server gives a text."""
    return decode_vector(samples.vector(text, size))


def usage(tokens_in: int, tokens_out: int) -> dict[str, int]:
    return {
        "prompt_tokens": tokens_in,
        "completion_tokens": tokens_out,
        "total_tokens": tokens_in + tokens_out,
    }


def changed(answering: Answering, **changes: Any) -> Answering:
    """Return the same answer with values of the top level changed, or removed where None."""

    def answer(request: Request) -> Reply:
        body = answering(request).body | changes
        return Reply({name: value for name, value in body.items() if value is not None})

    return answer


class ModelServer:
    """A server that listens from the start of the ``with`` to its end."""

    def __init__(
        self, *replies: Reply | Answering, delay: float = 0.0, key: str | None = None
    ) -> None:
        """``delay`` seconds for each good summary; with a ``key`` any other is refused."""
        self.requests: list[Request] = []
        self.most_at_once = 0
        self.dead = False
        self._replies = deque(replies)
        self._delay = delay
        self._key = key
        self._at_once = 0
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._server = _Server(("127.0.0.1", 0), _handler(self))

    @property
    def closing(self) -> bool:
        return self._closing.is_set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/v1"

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def die(self) -> None:
        """Answer nothing any more, and refuse connections."""
        self.dead = True
        self._server.socket.close()

    def wait(self, seconds: float) -> None:
        """Wait, but no longer than the server is up."""
        if seconds:
            self._closing.wait(seconds)

    def answer(self, request: Request) -> Reply:
        with self._lock:
            self.requests.append(request)
            reply = self._replies.popleft() if self._replies else None
        if self._key is not None and request.headers.get("authorization") != f"Bearer {self._key}":
            return Reply({"error": {"message": "Incorrect API key provided: sk-12***yz."}}, 401)
        if reply is None:
            self.wait(self._delay)
            embeds = request.path.endswith("/embeddings")
            reply = embedded() if embeds else says(SUMMARY)
        return reply if isinstance(reply, Reply) else reply(request)

    def begun(self, change: int) -> None:
        with self._lock:
            self._at_once += change
            self.most_at_once = max(self.most_at_once, self._at_once)


class _Server(ThreadingHTTPServer):
    # Many connections at once are not to wait for a second SYN.
    request_queue_size = 256
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A client that waits no longer is what some tests are about.
        if not isinstance(sys.exception(), BrokenPipeError | ConnectionResetError):
            super().handle_error(request, client_address)


def _handler(server: ModelServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # headers and body in one packet
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            server.begun(1)
            try:
                self._reply()
            finally:
                server.begun(-1)

        def _reply(self) -> None:
            length = int(self.headers["content-length"])
            sent = self.rfile.read(length)
            if len(sent) < length:
                raise BrokenPipeError("the client was stopped while it sent")
            body = json.loads(sent)
            headers = {name.lower(): value for name, value in self.headers.items()}
            reply = server.answer(Request(self.path, headers, body))
            server.wait(reply.delay)
            if reply.dies:
                server.die()
            if server.dead:
                self.close_connection = True
                return
            if reply.raw is not None:
                self._send(reply.raw())
                return
            payload = reply.payload()
            self.send_response(reply.status)
            kind = {"content-type": "application/json", "content-length": str(len(payload))}
            for name, value in (kind | reply.headers).items():
                self.send_header(name, value)
            self.end_headers()
            if reply.broken:
                self.wfile.write(payload[: len(payload) // 2])
                self.close_connection = True
            elif reply.trickle:
                self._trickle(payload, reply.trickle)
            else:
                self.wfile.write(payload)

        def _send(self, pieces: Iterator[bytes]) -> None:
            self.close_connection = True
            for piece in pieces:
                if server.closing:
                    return
                self.wfile.write(piece)
                self.wfile.flush()

        def _trickle(self, payload: bytes, pause: float) -> None:
            for byte in payload:
                self.wfile.write(bytes([byte]))
                self.wfile.flush()
                time.sleep(pause)

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler
