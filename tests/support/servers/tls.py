"""TLS in front of a server without TLS, such as the Redis of the wheel."""

from __future__ import annotations

import asyncio
import ssl
from asyncio import StreamReader, StreamWriter
from contextlib import suppress
from pathlib import Path
from typing import Self

import trustme


class Tls:
    """A proxy that ends TLS at ``127.0.0.1`` and forwards all data to a port, as stunnel does.

    ``authority`` is the file of the certificate authority that a client must trust.
    """

    def __init__(self, port: int, folder: Path) -> None:
        self._behind = port
        authority = trustme.CA()
        self.authority = folder / "authority.pem"
        authority.cert_pem.write_to_path(self.authority)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(self._context)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._behind)
        await asyncio.gather(_pass_on(reader, server_writer), _pass_on(server_reader, writer))


async def _pass_on(reader: StreamReader, writer: StreamWriter) -> None:
    with suppress(OSError):  # the other side has left
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()
