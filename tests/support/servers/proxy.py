"""A proxy between memctl and a server that loses an answer, or keeps it back."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from urllib.parse import urlsplit


class Proxy:
    """A proxy on 127.0.0.1, within a ``with`` block.

    When a connection that has sent ``first`` sends ``word``, such as ``DELETE`` and ``COMMIT``, the
    server gets the word.  The proxy then ends the connection instead of sending the answer; with
    ``stalls``, it keeps the connection open and sends nothing any more.
    """

    def __init__(self, url: str, first: bytes, word: bytes, *, stalls: bool = False) -> None:
        self._url = url
        self._first = first
        self._word = word
        self._stalls = stalls
        self.lost = 0
        """The number of lost answers; after one, everything passes."""
        self._port = 0
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def url(self) -> str:
        """The URL of the server through the proxy."""
        parts = urlsplit(self._url)
        return self._url.replace(f":{parts.port}/", f":{self._port}/", 1)

    def __enter__(self) -> Proxy:
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
            changes = changes or self._first in data
            if changes and self._word in data and not self.lost:
                self.lost += 1
                lost.set()
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
            elif not self._stalls:
                break
        if not (lost.is_set() and self._stalls):
            writer.close()
