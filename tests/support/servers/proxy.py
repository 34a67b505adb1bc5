"""A proxy between memctl and a server that loses an answer, keeps it back, or cuts a request."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Collection
from contextlib import suppress
from enum import Enum, auto
from typing import Self
from urllib.parse import urlsplit


class Fault(Enum):
    """The fate of a request."""

    LOST = auto()
    """The server gets it; the proxy ends the connection instead of sending the answer."""
    STALLED = auto()
    """The server gets it; the proxy keeps the connection open, and sends nothing any more."""
    CUT = auto()
    """The server gets the first bytes of it; the proxy ends the connection."""


CUT_BYTES = 6
"""Fewer bytes than any request that commits a change has."""


class Relay(ABC):
    """A server on 127.0.0.1 in a thread, within a ``with`` block, before another server."""

    def __init__(self) -> None:
        self._port = 0
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @abstractmethod
    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection."""

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self._port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))


class Proxy(Relay):
    """A proxy on 127.0.0.1, within a ``with`` block.

    The fault happens to the request with the number ``at``, counted from 0; else to the first
    request with ``word``, such as ``COMMIT``, of a connection that has sent one of ``firsts``, such
    as ``DELETE``.  Without any, everything passes.
    """

    def __init__(
        self,
        url: str,
        firsts: Collection[bytes] = (),
        word: bytes = b"",
        fault: Fault = Fault.LOST,
        *,
        at: int | None = None,
    ) -> None:
        self._url = url
        self._firsts = firsts
        self._word = word
        self._fault = fault
        self._at = at
        self.requests = 0
        """The number of requests so far, as they arrive together."""
        self.lost = 0
        """The number of requests with the fault; after one, everything passes."""
        super().__init__()

    @property
    def url(self) -> str:
        """The URL of the server through the proxy."""
        parts = urlsplit(self._url)
        return self._url.replace(f":{parts.port}/", f":{self._port}/", 1)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        parts = urlsplit(self._url)
        there = await asyncio.open_connection(parts.hostname, parts.port)
        lost = asyncio.Event()
        with suppress(OSError):
            await asyncio.gather(
                self._forward(reader, there[1], lost), self._answer(there[0], writer, lost)
            )
        there[1].close()

    async def _forward(
        self, reader: asyncio.StreamReader, there: asyncio.StreamWriter, lost: asyncio.Event
    ) -> None:
        changes = False
        while data := await reader.read(65536):
            changes = changes or any(first in data for first in self._firsts)
            meant = changes and self._word in data and not self.lost
            self.requests += 1
            if meant or self.requests - 1 == self._at:
                self.lost += 1
                lost.set()
                if self._fault is Fault.CUT:
                    there.write(data[:CUT_BYTES])
                    break
            there.write(data)
            await there.drain()
        there.close()

    async def _answer(
        self, there: asyncio.StreamReader, writer: asyncio.StreamWriter, lost: asyncio.Event
    ) -> None:
        while data := await there.read(65536):
            if not lost.is_set():
                writer.write(data)
                await writer.drain()
            elif self._fault is not Fault.STALLED:
                break
        if not (lost.is_set() and self._fault is Fault.STALLED):
            writer.close()
