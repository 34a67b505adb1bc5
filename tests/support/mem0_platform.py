"""A mem0 Platform on loopback, with the endpoints that the SDK's ``MemoryClient`` calls.

The server answers as the SDK (mem0ai 2.2.1) expects and as the documentation of the API says.  It
does not prove how the real service behaves.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import deque
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, quote, unquote, urlsplit
from uuid import uuid4

KEY = "m0-s3cret/key"
SCOPE = ("user_id", "agent_id", "app_id", "run_id")
LARGEST_PAGE = 200


class Platform:
    """A project; ``memories`` are the contents, ``requests`` the log."""

    def __init__(self) -> None:
        self.memories: list[dict[str, Any]] = []
        self.requests: list[tuple[str, str, Any]] = []
        self.refusals: deque[tuple[int, dict[str, str]]] = deque()
        """Statuses and headers with which to refuse the next requests."""
        self.queues = False
        """True to queue new memories, as ``async_mode`` does."""

    def __enter__(self) -> Self:
        platform = self

        class Handler(_Handler):
            project = platform

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self._server.server_port}"

    @property
    def url(self) -> str:
        """The URL of the project for memctl, with its key."""
        return f"mem0://:{quote(KEY, safe='')}@{self.host}"

    def answer(self, method: str, path: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        """Return the status and the answer to a request."""
        match method, path.strip("/").split("/"):
            case "GET", ["v1", "ping"]:
                names = {"org_id": "org", "project_id": "project", "user_email": "a@example.com"}
                return 200, {"status": "ok", **names}
            case "POST", ["v3", "memories"]:
                return self._page(query, body)
            case "POST", ["v3", "memories", "add"]:
                return self._add(body)
            case "POST", ["v3", "memories", "search"]:
                if set(body) & set(SCOPE) or not body.get("filters"):
                    return 400, {"detail": "filters are required"}
                words = set(body["query"].lower().split())
                found = [
                    one | {"score": len(words & set(one["memory"].lower().split())) / len(words)}
                    for one in self.memories
                    if _matches(one, body["filters"])
                ]
                found.sort(key=lambda one: -one["score"])
                return 200, {"results": found[: body.get("top_k") or 10]}
            case "GET", ["v1", "event", _]:
                return 200, {"status": "SUCCEEDED", "results": [{"id": self.memories[-1]["id"]}]}
            case "GET", ["v1", "memories", id]:
                return next(
                    ((200, one) for one in self.memories if one["id"] == unquote(id)), _MISSING
                )
            case "DELETE", ["v1", "memories", id]:
                left = [one for one in self.memories if one["id"] != unquote(id)]
                if len(left) == len(self.memories):
                    return _MISSING
                self.memories = left
                return 200, {"message": "Memory deleted successfully!"}
        return 404, {"detail": "Not found."}

    def _page(self, query: dict[str, str], body: Any) -> tuple[int, Any]:
        number, size = int(query.get("page", 1)), int(query.get("page_size", 100))
        if not 1 <= size <= LARGEST_PAGE or set(body) & set(SCOPE) or not body.get("filters"):
            return 400, {"detail": "filters are required, and pages of 200 at most"}
        found = [one for one in self.memories if _matches(one, body["filters"])]
        rest = found[number * size :]
        following = f"https://{self.host}/v3/memories/?page={number + 1}" if rest else None
        results = found[(number - 1) * size : number * size]
        return 200, {"count": len(found), "next": following, "previous": None, "results": results}

    def _add(self, body: Any) -> tuple[int, Any]:
        if body.get("infer", True):
            return 400, {"detail": "this Platform has no model"}
        now = datetime.now(UTC).isoformat()
        results = []
        for message in body["messages"]:
            text = message["content"]
            memory = {
                "id": str(uuid4()),
                "memory": text,
                **{name: body.get(name) for name in SCOPE},
                "hash": hashlib.md5(text.encode(), usedforsecurity=False).hexdigest(),
                "metadata": body.get("metadata"),
                "categories": ["misc"],
                "created_at": now,
                "updated_at": now,
                "expiration_date": body.get("expiration_date"),
            }
            self.memories.append(memory)
            results.append({"id": memory["id"], "memory": text, "event": "ADD"})
        if self.queues:
            return 200, {"message": "queued", "status": "PENDING", "event_id": str(uuid4())}
        return 200, {"results": results}


_MISSING = (404, {"detail": "Memory not found!"})


def _matches(memory: dict[str, Any], filters: dict[str, Any]) -> bool:
    for name, value in filters.items():
        if name in ("AND", "OR"):
            how = all if name == "AND" else any
            if not how(_matches(memory, one) for one in value):
                return False
        elif memory.get(name) is None or value not in ("*", memory[name]):
            return False
    return True


class _Handler(BaseHTTPRequestHandler):
    project: Platform

    def _serve(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        project = self.project
        project.requests.append((self.command, parts.path, body))
        headers: dict[str, str] = {}
        if self.headers.get("authorization") != f"Token {KEY}":
            status, answer = 401, {"detail": "Given token not valid"}
        elif project.refusals:
            status, headers = project.refusals.popleft()
            answer = {"detail": "Rate limit exceeded"}
        else:
            status, answer = project.answer(self.command, parts.path, query, body)
        text = json.dumps(answer).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = do_PUT = do_DELETE = _serve  # noqa: N815 - as the base class asks

    def log_message(self, *_: object) -> None:
        """Say nothing."""
