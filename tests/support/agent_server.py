"""A model server on the loopback for coding agents, which remembers what they send.

A prompt with lines such as ``CALL Bash {"command": "echo hi"}`` is answered by these tool calls;
any other is answered by ``Answer N.``
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from memctl.machine.zstd import decompress

_CALL = re.compile(r"^CALL (\w+) (\{.*\})$", re.MULTILINE)
_USAGE = {"input_tokens": 10, "output_tokens": 5}


class AgentServer(ThreadingHTTPServer):
    """The server; ``requests`` are the bodies of what agents asked models."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[dict[str, Any]] = []

    @property
    def url(self) -> str:
        """The base URL, without a path."""
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def agent_server() -> Iterator[AgentServer]:
    """Run a server within the block."""
    with AgentServer() as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: AgentServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self._answer(b"", "text/plain")

    def do_GET(self) -> None:
        self._answer(b'{"data": [], "models": []}', "application/json")

    def do_POST(self) -> None:
        data = self._body()
        body = json.loads(data)
        path = self.path.partition("?")[0]
        if "count_tokens" in path:
            self._answer(b'{"input_tokens": 10}', "application/json")
            return
        self.server.requests.append(body)
        number = len(self.server.requests)
        events = _messages if path.endswith("/messages") else _responses
        found = [
            f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"
            for event in events(body, number)
        ]
        self._answer("".join(found).encode(), "text/event-stream")

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        else:
            data = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                data += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        return decompress(data) if self.headers.get("Content-Encoding") == "zstd" else data

    def _answer(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _calls(content: Any) -> list[tuple[str, dict[str, Any]]]:
    """Return the tool calls that a prompt asks for."""
    parts = [{"text": content}] if isinstance(content, str) else content
    text = "\n".join(part.get("text", "") for part in parts)
    return [(name, json.loads(input)) for name, input in _CALL.findall(text)]


def _messages(body: dict[str, Any], number: int) -> Iterator[dict[str, Any]]:
    """Yield the events of Anthropic's Messages API."""
    last = [one for one in body["messages"] if one["role"] == "user"][-1]["content"]
    results = not isinstance(last, str) and any(one["type"] == "tool_result" for one in last)
    calls = [] if results else _calls(last)
    start = {"id": f"msg_{number}", "type": "message", "role": "assistant", "content": []}
    start |= {"model": body["model"], "stop_reason": None, "stop_sequence": None, "usage": _USAGE}
    yield {"type": "message_start", "message": start}
    deltas: list[tuple[dict[str, Any], dict[str, Any]]] = [
        (
            {"type": "tool_use", "id": f"toolu_{number}_{at}", "name": name, "input": {}},
            {"type": "input_json_delta", "partial_json": json.dumps(input)},
        )
        for at, (name, input) in enumerate(calls)
    ]
    said = {"type": "text_delta", "text": f"Answer {number}."}
    for at, (block, delta) in enumerate([({"type": "text", "text": ""}, said), *deltas]):
        yield {"type": "content_block_start", "index": at, "content_block": block}
        yield {"type": "content_block_delta", "index": at, "delta": delta}
        yield {"type": "content_block_stop", "index": at}
    reason = {"stop_reason": "tool_use" if calls else "end_turn", "stop_sequence": None}
    yield {"type": "message_delta", "delta": reason, "usage": {"output_tokens": 5}}
    yield {"type": "message_stop"}


def _responses(body: dict[str, Any], number: int) -> Iterator[dict[str, Any]]:
    """Yield the events of OpenAI's Responses API."""
    last = body["input"][-1]
    calls = _calls(last["content"]) if last.get("type") == "message" else []
    items: list[dict[str, Any]] = [
        {
            "type": "function_call",
            "id": f"fc_{number}_{at}",
            "call_id": f"call_{number}_{at}",
            "name": name,
            "arguments": json.dumps(input),
        }
        for at, (name, input) in enumerate(calls)
    ]
    text = {"type": "output_text", "text": f"Answer {number}.", "annotations": []}
    said = {"type": "message", "role": "assistant", "id": f"msg_{number}", "content": [text]}
    items = items or [said]
    yield {"type": "response.created", "response": {"id": f"resp_{number}"}}
    for at, item in enumerate(items):
        yield {"type": "response.output_item.done", "output_index": at, "item": item}
    usage = {**_USAGE, "total_tokens": 15, "input_tokens_details": {"cached_tokens": 0}}
    usage["output_tokens_details"] = {"reasoning_tokens": 0}
    done = {"id": f"resp_{number}", "status": "completed", "output": items, "usage": usage}
    yield {"type": "response.completed", "response": done}
