"""From a location to connections of redis-py."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import redis
from redis import exceptions

from memctl import system
from memctl.errors import UsageError
from memctl.location import Location
from memctl.stores.redis.connect import log_in

_CONNECT_SECONDS = 10.0
_OWN = "prefix, ttl, state, layout"
# Those of redis-py that a text can set; what else it takes are Python objects.
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
    """The connections of a location, and how many seconds a reply may take once connected.

    redis-py's limit for connecting ends before the handshake of TLS and the login, and its limit
    for replies is one for all of them, but a large reply may take its time.  So connections come
    with the limit of connecting for replies too, and whoever takes one sets the other.
    ``password`` is for a URL without one.

    Raises:
        UsageError: the URL is wrong.
    """
    scheme, colon, rest = location.url.partition(":")
    names = scheme.lower().split("+")
    scheme = "unix" if "unix" in names else names[0]
    if scheme == "unix":
        if not system.UNIX_SOCKETS:
            raise UsageError(
                f"{location.label} is a Unix socket, which Python does not know on this system",
                "name the server: redis://HOST",
            )
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
        # What they say may hold a piece of a password that was not quoted.
        raise UsageError(
            f"{location.label} is not a Redis URL",
            "write redis://[USER:PASSWORD@]HOST[:PORT][/NUMBER] or unix:///SOCKET?db=NUMBER",
        ) from None
    _check_options(location, scheme)
    options = pool.connection_kwargs
    reply_seconds = options["socket_timeout"]
    options["socket_timeout"] = options["socket_connect_timeout"]
    options["redis_connect_func"] = log_in
    options["protocol"] = 2  # no server speaks up by itself there
    options["decode_responses"] = False
    if password and not options.get("password"):
        options["password"] = password
    try:
        pool.make_connection()  # connects to nothing, but looks at some of the options
    except (ValueError, TypeError, exceptions.RedisError) as error:
        raise UsageError(
            f"{location.label} has an option that a Redis connection does not take", str(error)
        ) from error
    return pool, reply_seconds


def _check_options(location: Location, scheme: str) -> None:
    """Refuses what is no option of such a URL.

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
                f"memctl's own are {_OWN}; redis-py's are {', '.join(sorted(known))}",
            )


def milliseconds(seconds: str | None) -> int | None:
    """The option ``ttl`` of a location in milliseconds.

    Raises:
        UsageError: it is not a number of seconds.
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
