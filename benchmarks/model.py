"""A model that answers any request with the same summary after a fixed time, on loopback.

    python -m benchmarks.model SECONDS

Prints its address (an OpenAI-compatible ``base_url``), and serves until its standard input ends.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from typing import Any

SUMMARY = dict.fromkeys(
    (
        "task_overview",
        "current_state",
        "important_discoveries",
        "next_steps",
        "context_to_preserve",
    ),
    "The user plans a trip to Kyoto, and a hotel by the river is booked for three nights. " * 2,
)
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


def reply() -> bytes:
    """The whole HTTP response."""
    body: dict[str, Any] = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1790000000,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": json.dumps(SUMMARY)},
                "finish_reason": "stop",
            }
        ],
    }
    text = json.dumps(body).encode()
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(text)}"
    return head.encode() + b"\r\n\r\n" + text


async def serve(seconds: float) -> None:
    """Answer until the standard input ends."""
    response = reply()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                found = _LENGTH.search(await reader.readuntil(b"\r\n\r\n"))
                await reader.readexactly(int(found[1]) if found else 0)
                await asyncio.sleep(seconds)
                writer.write(response)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()  # the client has ended

    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=256)
    port = server.sockets[0].getsockname()[1]
    print(f"http://127.0.0.1:{port}/v1", flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(serve(float(sys.argv[1])))
