"""The part of Azure Blob Storage's REST interface that memctl needs, in memory.

It checks no signature.  It shows what the client sends and understands, not what Azure does.
"""

from __future__ import annotations

import threading
from email.utils import formatdate
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree


class Azure:
    """A storage account with one container, on 127.0.0.1, within a ``with`` block."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.blocks: dict[str, bytes] = {}
        """The blocks that no list has made part of a blob, by id."""
        self._server = ThreadingHTTPServer(
            ("127.0.0.1", 0), type("Own", (_Handler,), {"own": self})
        )
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Azure:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    own: Azure

    def log_message(self, *_: Any) -> None:
        """Print nothing."""

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def ask(self) -> tuple[str, dict[str, str]]:
        """Return the name of the blob and the query of the request."""
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query, True).items()}
        return unquote(parts.path).lstrip("/").partition("/")[2], query

    def about(self, content: bytes) -> dict[str, str]:
        tag = f'"{md5(content).hexdigest()}"'
        return {"ETag": tag, "Last_Modified": formatdate(0, usegmt=True)}

    def do_PUT(self) -> None:
        name, query = self.ask()
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        present = self.own.blobs.get(name)
        if query.get("comp") == "block":
            self.own.blocks[query["blockid"]] = body
            self.answer(201)
            return
        wanted = self.headers.get("If-Match")
        if self.headers.get("If-None-Match") == "*" and present is not None:
            self.answer(409, b"<Error><Code>BlobAlreadyExists</Code></Error>")
            return
        if wanted and (present is None or self.about(present)["ETag"] != wanted):
            self.answer(412, b"<Error><Code>ConditionNotMet</Code></Error>")
            return
        if query.get("comp") == "blocklist":
            ids = [one.text or "" for one in ElementTree.fromstring(body)]
            body = b"".join(self.own.blocks.pop(one) for one in ids)
        self.own.blobs[name] = body
        self.answer(201, **self.about(body))

    def do_GET(self) -> None:
        name, query = self.ask()
        if query.get("comp") == "list":
            self.answer(200, self.listed(query.get("prefix", "")), Content_Type="application/xml")
            return
        content = self.own.blobs.get(name)
        if content is None:
            self.answer(404, b"<Error><Code>BlobNotFound</Code></Error>")
            return
        size = {"Content_Length": str(len(content))}
        self.answer(200, content, **self.about(content), **size)

    def do_HEAD(self) -> None:
        self.do_GET()

    def listed(self, prefix: str) -> bytes:
        blobs = "".join(
            f"<Blob><Name>{name}</Name><Properties><Last-Modified>{formatdate(0, usegmt=True)}"
            f"</Last-Modified><Content-Length>{len(content)}</Content-Length>"
            f"<Content-Type>x</Content-Type><Etag>{self.about(content)['ETag']}</Etag>"
            "</Properties></Blob>"
            for name, content in self.own.blobs.items()
            if name.startswith(prefix) and "/" not in name[len(prefix) :]
        )
        return (
            '<?xml version="1.0" encoding="utf-8"?><EnumerationResults>'
            f"<Prefix>{prefix}</Prefix><Blobs>{blobs}</Blobs><NextMarker/></EnumerationResults>"
        ).encode()
