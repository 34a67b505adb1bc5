"""A Redis server: URL, connections, the lock of a run, and the translation of errors."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import socket
import threading
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlsplit

import redis
from redis import exceptions

from memctl.engines.redis.pipeline import Command, Pipeline, driver_socket, error_code, in_thread
from memctl.engines.redis.text import encode
from memctl.errors import Busy, Lost, MemctlError, NotFound, Unavailable, UsageError
from memctl.location import Location
from memctl.shard import Shard
from memctl.storekit.locks import ServerLock, owner_text

T = TypeVar("T")

LEASE_SECONDS = 30.0
"""Seconds after which the lock of a killed run expires."""


class RedisLock(ServerLock):
    """The lock of a run: the key ``{prefix}memctl:lock:{kind}``, which expires unless extended.

    The run extends the expiry of the key.  The value is a random word, a space, and the owner's
    text.  The key's name matches no pattern of AgentScope or memctl.  The lock needs no ACL
    permissions beyond those for writing.

    The lock of a shard is the key ``{prefix}memctl:lock:{kind}:K/N``.  The runs that hold such
    locks share the key ``{prefix}memctl:lock:{kind}:shards``, which excludes a run without a shard.
    It has the values of their keys, a line each, and expires unless one of the runs extends it.
    """

    def __init__(
        self, server: RedisServer, kind: str, warnings: list[str], shard: Shard | None
    ) -> None:
        """Create the lock, not yet acquired.

        ``kind`` is the kind of the store in the key's name; stores of different kinds may share a
        prefix.  Warnings are appended to ``warnings``.  ``shard`` is the shard to protect; None
        protects the whole store.
        """
        super().__init__(server.label, warnings, shard)
        self.period = LEASE_SECONDS / 3
        self.hint = (
            "wait for it to end, or stop it; "
            f"the lock of a run that was killed ends by itself within {LEASE_SECONDS:.0f} seconds"
        )
        self._server = server
        self._whole = encode(f"{server.prefix}memctl:lock:{kind}")
        self._shards = self._whole + b":shards"
        self.key = self._whole if shard is None else self._whole + encode(f":{shard}")
        self._lease = b"%d" % round(LEASE_SECONDS * 1000)
        self._word = secrets.token_hex(16)
        self._is_lost = False

    @property
    def _value(self) -> bytes:
        return f"{self._word} {self.owner}".encode(errors="replace")

    async def attempt(self) -> str | None:
        return await self._run(self._attempt)

    async def stay(self) -> bool:
        await asyncio.sleep(self.period)
        kept = await self._run(partial(self._if_ours, self._extended))
        self._is_lost = self._is_lost or not kept
        return kept

    def check(self, value: bytes | None) -> None:
        """Check the value of the key before a write.

        If the run lost the lock and took it again, the check fails, because another run may have
        held the lock meanwhile.

        Raises:
            Busy: the run has lost the lock.
        """
        if not self._is_lost and value == self._value:
            return
        self._is_lost = True
        raise Busy(
            f"the lock of {self.label} was lost, and another memctl run may have written there",
            "run memctl again: it changes only what is left",
        )

    async def let_go(self) -> None:
        with suppress(MemctlError):  # the lock expires by itself
            await self._run(partial(self._if_ours, self._removed))

    async def _run(self, call: Callable[[Pipeline], T]) -> T:
        async with self._server.pipeline() as pipeline:
            return await in_thread(pipeline, partial(call, pipeline))

    def _attempt(self, pipeline: Pipeline) -> str | None:
        while True:
            held, whole, shards = self._watched(pipeline)
            other = _owner(held)
            if other in (None, self.owner):
                other = _owner(shards if self.shard is None else whole)
            if other is not None:
                pipeline.execute([(b"UNWATCH",)])
                return other
            own = (b"SET", self.key, self._value, b"PX", self._lease)
            if _has_run(pipeline, [own, *self._shared(shards, self._value)]):
                return None

    def _if_ours(
        self, commands: Callable[[bytes | None], list[Command]], pipeline: Pipeline
    ) -> bool:
        """Run Redis commands if this run still holds the lock; return whether they ran.

        ``commands`` makes them from the value of the key that the locks of shards share.
        """
        while True:
            held, _, shards = self._watched(pipeline)
            if held != self._value:
                pipeline.execute([(b"UNWATCH",)])
                return False
            if _has_run(pipeline, commands(shards)):
                return True

    def _watched(self, pipeline: Pipeline) -> list[bytes | None]:
        """Watch the keys of the lock, of the whole and of all shards; return their values."""
        keys = self.key, self._whole, self._shards
        _, *values = pipeline.execute([(b"WATCH", *keys), *((b"GET", key) for key in keys)])
        return values

    def _extended(self, _: bytes | None) -> list[Command]:
        """Return the commands that extend the lock; a full server runs them, too."""
        keys = (self.key,) if self.shard is None else (self.key, self._shards)
        return [(b"PEXPIRE", key, self._lease) for key in keys]

    def _removed(self, shards: bytes | None) -> list[Command]:
        """Return the commands that release the lock."""
        return [(b"UNLINK", self.key), *self._shared(shards)]

    def _shared(self, shards: bytes | None, *own: bytes) -> list[Command]:
        """Return the command that puts the line ``own``, or none, for this shard in ``shards``."""
        if self.shard is None:
            return []
        shard = encode(f" {owner_text('', self.shard)}")
        others = (line for line in (shards or b"").split(b"\n") if line and shard not in line)
        lines = [*others, *own]
        if not lines:
            return [(b"UNLINK", self._shards)]
        return [(b"SET", self._shards, b"\n".join(lines), b"PX", self._lease)]


def _owner(value: bytes | None) -> str | None:
    """Return the owner text in the value of a key, or in its last line; None without the key."""
    if value is None:
        return None
    return value.rpartition(b"\n")[2].decode(errors="replace").partition(" ")[2]


def _has_run(pipeline: Pipeline, commands: list[Command]) -> bool:
    """Run a transaction; return False if another run changed a watched key, and nothing ran."""
    *_, done = pipeline.execute([(b"MULTI",), *commands, (b"EXEC",)])
    return done is not None


_OLDEST = (6, 2)


class RedisServer:
    """The Redis database of a location, with a pool of connections.

    ``prefix`` begins the names of all keys of a store.  ``ttl`` is the expiry of written keys in
    milliseconds, or None.  Both are options of the location.
    """

    def __init__(self, location: Location) -> None:
        """Check the location, and prepare a pool of connections; nothing is connected.

        Raises:
            UsageError: the URL or an option is not valid.
        """
        self.label = location.label
        self.prefix = location.options.get("prefix", "")
        self.ttl = parse_ttl(location.options.get("ttl"))
        self._pool, self._reply_seconds = make_pool(location, os.environ.get("REDISCLI_AUTH"))
        self._run_id: str | None = None
        self._lock: RedisLock | None = None
        self.held_lock: RedisLock | None = None
        """The lock, after it was taken: every transaction checks it."""

    async def open(self) -> None:
        """Connect and log in.

        Raises:
            Unavailable: the server cannot be reached, refuses the login or is too old, or is a
                Redis Cluster node or a Sentinel.
            NotFound: the server has no database of this number.
            UsageError: the host or an option of the URL is not valid.
        """
        async with self.pipeline() as pipeline:
            info = await in_thread(pipeline, lambda: _info(pipeline))
        self._run_id = info.get("run_id")
        text = info.get("redis_version", "")
        version = tuple(int(part) for part in re.findall(r"\d+", text)[:2])
        if version and version < _OLDEST:
            raise Unavailable(f"{self.label} is Redis {text}", "memctl needs Redis 6.2 or later")
        if (mode := info.get("redis_mode")) in _OTHER_MODES:
            what, hint = _OTHER_MODES[mode]
            raise Unavailable(f"{self.label} {what}", hint)

    async def lock(self, kind: str, owner: str, warnings: list[str], shard: Shard | None) -> None:
        """Keep other memctl runs from writing to stores of a kind until ``close``.

        ``owner`` describes this run to the other runs.  Warnings of the lock are appended to
        ``warnings``.  ``shard`` limits the lock.
        """
        self._lock = RedisLock(self, kind, warnings, shard)
        await self._lock.take(owner)
        self.held_lock = self._lock

    async def close(self) -> None:
        """Release the lock, and close every connection."""
        try:
            if self._lock is not None:
                await self._lock.release()
        finally:
            await asyncio.to_thread(self._pool.disconnect)

    @property
    def db(self) -> int:
        """The number of the Redis database, 0 by default."""
        return int(self._pool.connection_kwargs.get("db") or 0)

    def ttl_of(self, seconds: float | None) -> int | None:
        """Return the TTL to set on a key, in milliseconds; None to leave the key's expiry as it is.

        The location's option ``ttl`` takes precedence over ``seconds``.
        """
        if self.ttl is not None or seconds is None:
            return self.ttl
        return max(1, round(seconds * 1000))

    def identity(self) -> str:
        """Return a text that is equal for all locations of the same database and prefix."""
        options = self._pool.connection_kwargs
        address = options.get("path") or f"{options.get('host')}:{options.get('port', 6379)}"
        return f"{self._run_id or address}/{options.get('db', 0)}/{self.prefix}"

    @asynccontextmanager
    async def pipeline(self) -> AsyncGenerator[Pipeline]:
        """Provide a connection for one operation; after an error the connection is closed."""
        pipeline = Pipeline(self)
        try:
            await _in_daemon_thread(pipeline.connect)
            yield pipeline
        except BaseException:
            pipeline.abort()
            raise
        finally:
            pipeline.release()

    def acquire(self) -> Any:
        """Return a connection of redis-py from the pool; ``release`` gives the connection back."""
        connection: Any = self._pool.get_connection()
        link = driver_socket(connection)
        if link is None:
            raise exceptions.ConnectionError("Connection closed by server.")
        link.settimeout(self._reply_seconds)
        return connection

    def release(self, connection: Any) -> None:
        """Give a connection back to the pool."""
        self._pool.release(connection)

    def translate(self, error: exceptions.RedisError) -> MemctlError:
        """Return the memctl error for an error of redis-py or an error reply of the server."""
        return translate_error(error, self.label)


def _info(pipeline: Pipeline) -> dict[str, str]:
    """Return the fields of the Redis command INFO.

    If the ACL forbids INFO, only ``redis_mode`` and ``redis_version``, or nothing.
    """
    [reply] = pipeline.execute([(b"INFO", b"server")], tolerate="NOPERM")
    if isinstance(reply, exceptions.ResponseError):
        [hello] = pipeline.execute([(b"HELLO",)], tolerate="ERR")  # no ACL forbids it
        if isinstance(hello, exceptions.ResponseError):
            return {}
        told = dict(zip(hello[::2], hello[1::2], strict=True))
        names = {b"mode": "redis_mode", b"version": "redis_version"}
        return {name: told[key].decode() for key, name in names.items() if key in told}
    lines = reply.decode(errors="replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


# URLs

_CONNECT_SECONDS = 10.0
_OWN = "prefix, ttl, state, layout"
# The options of redis-py that a text can set; the remaining options are Python objects.
_ANY = frozenset(
    {
        "client_name",
        "db",
        "decode_responses",
        "encoding",
        "encoding_errors",
        "health_check_interval",
        "max_connections",
        "password",
        "protocol",
        "retry_on_timeout",
        "socket_connect_timeout",
        "socket_timeout",
        "username",
    }
)
_TCP = frozenset({"socket_keepalive"})
_TLS = frozenset(
    {
        "ssl_ca_certs",
        "ssl_ca_data",
        "ssl_ca_path",
        "ssl_cert_reqs",
        "ssl_certfile",
        "ssl_check_hostname",
        "ssl_ciphers",
        "ssl_exclude_verify_flags",
        "ssl_include_verify_flags",
        "ssl_keyfile",
        "ssl_min_version",
        "ssl_password",
        "ssl_validate_ocsp",
        "ssl_validate_ocsp_stapled",
    }
)
OPTIONS = {"redis": _ANY | _TCP, "rediss": _ANY | _TCP | _TLS, "unix": _ANY}
"""The options of redis-py that a URL may have, by scheme."""


def make_pool(
    location: Location, password: str | None
) -> tuple[redis.ConnectionPool, float | None]:
    """Return the connection pool of a location, and the time limit for a reply in seconds.

    The time limit is None if the URL sets none.  ``password`` is used if the URL has no password.

    redis-py applies its time limit for replies to the TLS handshake and the login.  Therefore new
    connections use the limit for connecting, and ``RedisServer.acquire`` sets the limit for
    replies.

    Raises:
        UsageError: the URL is not valid.
    """
    scheme, colon, rest = location.url.partition(":")
    names = scheme.lower().split("+")
    scheme = "unix" if "unix" in names else names[0]
    if scheme == "unix":
        rest = "//" + rest.removeprefix("//")
    try:
        number = urlsplit(scheme + colon + rest).path.strip("/")
        if scheme != "unix" and number and not number.isdigit():
            raise ValueError("the path is not the number of a database")
        pool = redis.ConnectionPool.from_url(
            scheme + colon + rest,
            socket_connect_timeout=_CONNECT_SECONDS,
            socket_timeout=None,
        )
    except (ValueError, TypeError):
        # The error text may contain a part of a password that was not quoted.
        raise UsageError(
            f"{location.label} is not a Redis URL",
            "write redis://[USER:PASSWORD@]HOST[:PORT][/NUMBER] or unix:///SOCKET?db=NUMBER",
        ) from None
    _check_options(location, scheme)
    options = pool.connection_kwargs
    reply_seconds = options["socket_timeout"]
    options["socket_timeout"] = options["socket_connect_timeout"]
    options["redis_connect_func"] = _log_in
    options["protocol"] = 2  # servers push nothing in RESP2
    options["decode_responses"] = False
    if password and not options.get("password"):
        options["password"] = password
    try:
        pool.make_connection()  # checks some options without connecting
    except (ValueError, TypeError, exceptions.RedisError) as error:
        raise UsageError(
            f"{location.label} has an option that Redis connections do not accept", str(error)
        ) from error
    return pool, reply_seconds


def _check_options(location: Location, scheme: str) -> None:
    """Check that the options in the location's URL are options of redis-py for the scheme.

    Raises:
        UsageError: an option is unknown, or needs another scheme.
    """
    given = parse_qs(urlsplit(location.url).query, keep_blank_values=True)
    known = OPTIONS[scheme]
    for name in given:
        if name in _TLS - known:
            raise UsageError(f"{location.label}: the option {name} is for TLS", "write rediss://")
        if name not in known:
            raise UsageError(
                f"{location.label} has an unknown option {name!r}",
                f"known: {_OWN}, and those of redis-py: {', '.join(sorted(known))}",
            )


def parse_ttl(seconds: str | None) -> int | None:
    """Return the value of the option ``ttl``, given in seconds, in milliseconds; None for None.

    Raises:
        UsageError: the option is not a positive number of seconds.
    """
    if seconds is None:
        return None
    try:
        found = round(float(seconds) * 1000)
    except (ValueError, OverflowError):
        found = 0
    if found <= 0:
        raise UsageError(f"ttl={seconds!r} is not a number of seconds", "such as ttl=86400")
    return found


# Connecting


def _log_in(connection: Any) -> None:
    """Log in on a new connection as redis-py does, and check the connection with PING.

    Without PING, redis-py waits for a reply only if it sends a login or an option.

    Raises:
        RedisError: the server refuses the login, or does not answer in time.
    """
    connection.on_connect()
    connection.send_command("PING", check_health=False)
    with suppress(exceptions.NoPermissionError):  # an error reply is an answer too
        connection.read_response()


async def _in_daemon_thread(call: Callable[[], T]) -> T:
    """Call a function in a daemon thread, and return its result.

    Neither a cancelled task nor the end of the program waits for the call.  The call then runs to
    its end, and must release its own resources.  This is for steps that nothing can interrupt: host
    lookup, connecting, TLS handshake.
    """
    done: Future[T] = Future()
    done.set_running_or_notify_cancel()  # from now on the future cannot be cancelled

    def run() -> None:
        try:
            found = call()
        except BaseException as error:  # noqa: BLE001 - the waiting task raises every kind of error
            done.set_exception(error)
        else:
            done.set_result(found)

    threading.Thread(target=run, name="memctl-redis-connect", daemon=True).start()
    return await asyncio.wrap_future(done)


# Errors

_REFUSED_WRITE = {
    "OOM": "give the server more memory (maxmemory), or free some",
    "MISCONF": "see the log of the server: it cannot save its data to disk",
    "NOREPLICAS": "wait for its replicas, or lower min-replicas-to-write",
}
_FOR_NOW = {
    "LOADING": "wait until the server has loaded its data",
    "MASTERDOWN": "use the address of the primary, or wait: this replica has lost it",
    "READONLY": "use the address of the primary: this is a replica",
    "BUSY": "wait until the running script has ended",
    "TRYAGAIN": "wait until the slots of the cluster have moved",
}
"""The codes of error replies after which a retry may help, each with a hint."""
_NO_DATABASE = ("DB index", "value is out of range, value must")
"""Parts of the error replies to a database number that is too large."""
_CLUSTER = ("MOVED", "ASK", "CROSSSLOT", "CLUSTERDOWN")
_OTHER_MODES = {
    "cluster": (
        "is a node of a Redis Cluster, which has only some of the keys",
        "use a single server; to read a cluster, load the dump.rdb of each node into a server "
        "without cluster-enabled",
    ),
    "sentinel": (
        "is a Redis Sentinel, which has no memories",
        "use the address of the primary: SENTINEL get-master-addr-by-name NAME prints it",
    ),
}
"""The descriptions of unsupported server modes and their hints, by ``redis_mode``."""
_LOGIN = ("NOAUTH", "WRONGPASS")
_LOGIN_ERRORS = (exceptions.AuthenticationError, exceptions.AuthorizationError)


def translate_error(error: exceptions.RedisError, label: str) -> MemctlError:
    """Return the memctl error for an error of redis-py or an error reply of the server.

    ``label`` names the server in the message.
    """
    text = _first_line(error)
    word = error_code(error)
    if word in _REFUSED_WRITE:
        return Unavailable(f"redis refuses writes: {text} ({label})", _REFUSED_WRITE[word])
    if word == "READONLY":
        return Lost(f"redis refuses writes: {text} ({label})", _FOR_NOW[word])
    if word in _FOR_NOW:
        return Lost(f"{label} cannot answer now: {text}", _FOR_NOW[word])
    if word in _CLUSTER:
        what, hint = _OTHER_MODES["cluster"]
        return Unavailable(f"{label} {what}", hint)
    if any(words in text for words in _NO_DATABASE):
        return NotFound(
            f"{label} does not exist: {text}",
            "use a database number of 0 to 15 (/NUMBER or db=NUMBER), unless the server's "
            "'databases' differs",
        )
    if word in _LOGIN or isinstance(error, _LOGIN_ERRORS):
        return Unavailable(
            f"{label} refuses the login: {text}",
            "check the user; give the password by REDISCLI_AUTH or password_env of an alias "
            "(memctl config init)",
        )
    match error:
        case _ if word == "NOPERM":
            return Unavailable(
                f"{label} forbids a command: {text}",
                "allow this user memctl's commands and the keys of the prefix in the ACL; reading "
                "needs MULTI and EXEC too",
            )
        case exceptions.InvalidResponse():
            return Unavailable(f"{label} is not a Redis server", "check the URL")
        case exceptions.ConnectionError() | exceptions.TimeoutError():
            kind = Unavailable if _is_lasting(error, text) else Lost
            return kind(f"cannot reach {label}: {text}", _connection_hint(text))
        case _:
            return Unavailable(
                f"{label} refuses a command: {text}", "check that it is Redis 6.2 or later"
            )


def _is_lasting(error: exceptions.RedisError, text: str) -> bool:
    """Return whether a retry would fail: the host is unknown, or TLS fails."""
    cause = error.__context__
    if isinstance(cause, socket.gaierror):
        return cause.errno != socket.EAI_AGAIN
    return "SSL" in text or "certificate" in text.lower()


def _first_line(error: exceptions.RedisError) -> str:
    """Return the first line of an error's text, without a final period."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def _connection_hint(text: str) -> str:
    if text.startswith("Timeout"):
        return (
            "check that it is Redis, with TLS for rediss:// and without for redis://; "
            "if it is slow, raise socket_connect_timeout"
        )
    if "SSL" in text or "certificate" in text.lower():
        return "check that the server uses TLS; add ssl_ca_certs=FILE for its authority"
    if "closed by server" in text:
        return "use rediss:// if the server expects TLS"
    return "check that the server is running, and host, port or socket"
