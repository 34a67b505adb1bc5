"""The part of S3's REST interface that memctl needs, in memory, which loses requests and answers.

It checks no signature, and knows the conditions ``If-Match`` and ``If-None-Match``.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from email.utils import formatdate
from enum import Enum, auto
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlencode, urlsplit
from xml.sax.saxutils import escape, unescape

BUCKET = "losing"


class Fault(Enum):
    """The fate of a request."""

    UNHEARD = auto()
    """The connection ends before the request is carried out."""
    UNANSWERED = auto()
    """The request is carried out; the connection ends before the answer."""
    ENDLESS = auto()
    """The request is carried out; the answer has no end."""
    LAST = auto()
    """The request is carried out; the server then answers nothing any more."""


class Losing:
    """A bucket on 127.0.0.1, within a ``with`` block."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.parts: dict[str, dict[int, bytes]] = {}
        """The parts of unfinished uploads, by the id of the upload."""
        self.requests: list[str] = []
        """The method and the query of each request since ``lose``."""
        self.met: Callable[[], None] = lambda: None
        """Called when the request to lose was carried out, or is ignored."""
        self.spoils = False
        """True if the server stores other bytes than it gets."""
        self.sums: list[str | None] = []
        """The SHA-256 of each content or part that came, as the client tells it."""
        self.gone = False
        self._fault: tuple[int, Fault] | None = None
        self._count = 0
        self._server = _Server(("127.0.0.1", 0), type("Own", (_Handler,), {"own": self}))

    def lose(self, number: int | None = None, fault: Fault = Fault.UNHEARD) -> None:
        """Lose the request with this number, counted from 0; None loses none."""
        self.requests.clear()
        self.gone = False
        self._fault = None if number is None else (number, fault)

    def writes(self) -> list[int]:
        """Return the numbers of the requests that write, since ``lose``."""
        return [n for n, one in enumerate(self.requests) if one.startswith(("PUT", "POST"))]

    def url(self, key: str) -> str:
        """Return the URL of an object."""
        query = urlencode({"endpoint": f"http://127.0.0.1:{self._server.server_port}"}, safe="/:")
        return f"s3://{BUCKET}/{key}?{query}"

    def fault(self, request: str) -> Fault | None:
        """Count a request, and return what becomes of it."""
        self.requests.append(request)
        number = len(self.requests) - 1
        return self._fault[1] if self._fault is not None and self._fault[0] == number else None

    def upload(self) -> str:
        """Begin an upload in parts, and return its id."""
        self._count += 1
        self.parts[f"u{self._count}"] = {}
        return f"u{self._count}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_: Any) -> None:
        """Print nothing if a client was killed."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    own: Losing

    def log_message(self, *_: Any) -> None:
        """Print nothing."""

    def handle_one_request(self) -> None:
        if self.own.gone:
            self.close_connection = True
            return
        super().handle_one_request()

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query, True).items()}
        key = unquote(parts.path).lstrip("/").partition("/")[2]
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.command == "PUT":
            self.own.sums.append(self.headers.get("x-amz-checksum-sha256"))
        fault = self.own.fault(f"{self.command} {'&'.join(query)}".strip())
        if fault is not Fault.UNHEARD:
            status, answer, headers = self._carry_out(key, query, body)
        if fault is None:
            self._answer(status, answer, headers)
            return
        if fault is Fault.ENDLESS:
            self._answer_without_end()
        self.own.gone = fault is Fault.LAST
        self.own.met()
        self.close_connection = True

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve  # noqa: N815 - named by the protocol

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _answer_without_end(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/xml")
        self.end_headers()
        with suppress(OSError):
            while not self.own.gone:
                self.wfile.write(b"<!-- -->" * 100)
                time.sleep(0.01)

    def _carry_out(
        self, key: str, query: dict[str, str], body: bytes
    ) -> tuple[int, bytes, dict[str, str]]:
        objects, uploads = self.own.objects, self.own.parts
        match self.command:
            case "GET" if "list-type" in query:
                return 200, self._list(query.get("prefix", "")), {}
            case "GET" | "HEAD" if key in objects:
                return self._read(objects[key])
            case "GET" | "HEAD":
                return _error(404, "NoSuchKey")
            case "DELETE":
                if "uploadId" in query:
                    uploads.pop(query["uploadId"], None)
                else:
                    objects.pop(key, None)
                return 204, b"", {}
            case "POST" if "uploads" in query:
                return 200, _xml("InitiateMultipartUploadResult", UploadId=self.own.upload()), {}
            case "POST" if "delete" in query:
                names = re.findall("<Key>(.*?)</Key>", body.decode())
                for name in names:
                    objects.pop(unescape(name), None)
                gone = "".join(f"<Deleted><Key>{name}</Key></Deleted>" for name in names)
                return 200, f"<DeleteResult>{gone}</DeleteResult>".encode(), {}
            case "POST" if query["uploadId"] not in uploads:
                return _error(404, "NoSuchUpload")
            case "POST":
                made = uploads.pop(query["uploadId"])
                objects[key] = self._stored(b"".join(made[number] for number in sorted(made)))
                about = _xml("CompleteMultipartUploadResult", ETag=_tag(objects[key]))
                return 200, about, {}
            case "PUT" if "partNumber" in query:
                uploads[query["uploadId"]][int(query["partNumber"])] = body
                return 200, b"", {"ETag": _tag(body)}
        there = objects.get(key)
        wanted = self.headers.get("If-Match")
        if (self.headers.get("If-None-Match") and there is not None) or (
            wanted and (there is None or _tag(there) != wanted)
        ):
            return _error(412, "PreconditionFailed")
        objects[key] = self._stored(body)
        return 200, b"", {"ETag": _tag(objects[key])}

    def _stored(self, content: bytes) -> bytes:
        return content[:-1] + b"?" if self.own.spoils else content

    def _read(self, content: bytes) -> tuple[int, bytes, dict[str, str]]:
        about = {
            "ETag": _tag(content),
            "Last-Modified": formatdate(0, usegmt=True),
            "Content-Length": str(len(content)),
        }
        return 200, content, about

    def _list(self, prefix: str) -> bytes:
        found = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(content)}</Size>"
            f"<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            for key, content in sorted(self.own.objects.items())
            if key.startswith(prefix)
        )
        return (
            f"<ListBucketResult><IsTruncated>false</IsTruncated>{found}</ListBucketResult>".encode()
        )


def _tag(content: bytes) -> str:
    return f'"{md5(content).hexdigest()}"'


def _error(status: int, code: str) -> tuple[int, bytes, dict[str, str]]:
    return status, _xml("Error", Code=code), {}


def _xml(name: str, **values: str) -> bytes:
    inner = "".join(f"<{key}>{escape(text)}</{key}>" for key, text in values.items())
    return f"<{name}>{inner}</{name}>".encode()
