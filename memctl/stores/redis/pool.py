"""From a location to connections of redis-py."""

from __future__ import annotations

from urllib.parse import urlsplit

import redis
from redis import exceptions

from memctl.errors import UsageError
from memctl.location import Location

_CONNECT_SECONDS = 10.0
_READ_BYTES = 256 * 1024


def make_pool(location: Location, password: str | None) -> redis.ConnectionPool:
    """The connections of a location; ``password`` is for a URL without one.

    Raises:
        UsageError: the URL is wrong.
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
            socket_timeout=None,  # a large reply may take its time
            socket_read_size=_READ_BYTES,
            protocol=2,
        )
    except (ValueError, TypeError):
        # What they say may hold a piece of a password that was not quoted.
        raise UsageError(
            f"{location.label} is not a Redis URL",
            "write redis://[USER:PASSWORD@]HOST[:PORT][/NUMBER] or unix:///SOCKET?db=NUMBER",
        ) from None
    pool.connection_kwargs["decode_responses"] = False
    if password and not pool.connection_kwargs.get("password"):
        pool.connection_kwargs["password"] = password
    try:
        pool.make_connection()  # connects to nothing, but takes only options that exist
    except (ValueError, TypeError, exceptions.RedisError) as error:
        raise UsageError(
            f"{location.label} has an option that a Redis connection does not take", str(error)
        ) from error
    return pool


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
