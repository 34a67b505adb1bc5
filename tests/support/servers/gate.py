"""A gate before an HTTP server: it answers requests itself, or cuts a connection in the middle."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from tests.support.servers.proxy import Relay

Rule = Callable[[bytes], bytes | None]
"""A function that returns the answer of the gate to a request, or None to pass the request on."""


class Gate(Relay):
    """A gate on 127.0.0.1 before the server at ``port``, within a ``with`` block.

    Each chunk of a request is shown to ``rule``.  After ``cut`` bytes of all answers together, the
    gate ends every connection, and refuses new ones.
    """

    def __init__(
        self,
        port: int,
        rule: Rule = lambda _: None,
        *,
        cut: int | None = None,
        up: int | None = None,
    ) -> None:
        """``up`` is as ``cut``, for the bytes of requests."""
        self._server_port = port
        self._rule = rule
        self._left = {"down": cut, "up": up}
        self.is_cut = False
        super().__init__()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_cut:
            writer.close()
            return
        there = await asyncio.open_connection("127.0.0.1", self._server_port)
        with suppress(OSError):
            await asyncio.gather(
                self._forward(reader, there[1], writer), self._answer(there[0], writer)
            )
        there[1].close()
        writer.close()

    async def _forward(
        self,
        reader: asyncio.StreamReader,
        there: asyncio.StreamWriter,
        writer: asyncio.StreamWriter,
    ) -> None:
        while data := await reader.read(65536):
            if (answer := self._rule(data)) is not None:
                writer.write(answer)
                await writer.drain()
                break
            if not self._passes("up", data):
                break
            there.write(data)
            await there.drain()
        there.close()

    async def _answer(self, there: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await there.read(65536):
            if not self._passes("down", data):
                break
            writer.write(data)
            await writer.drain()
        writer.close()

    def _passes(self, way: str, data: bytes) -> bool:
        left = self._left[way]
        if left is not None:
            self._left[way] = left - len(data)
            self.is_cut |= left < len(data)
        return not self.is_cut


def refusal(status: str, code: str, message: str = "") -> bytes:
    """Return the answer of an S3 server that refuses a request."""
    body = (
        f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code>'
        f"<Message>{message}</Message></Error>"
    ).encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"Connection: close\r\n\r\n" + body
