"""What goes wrong with Redis, in memctl's words."""

from __future__ import annotations

import socket

from redis import exceptions

from memctl.errors import Lost, MemctlError, NotFound, Unavailable

_REFUSED_WRITE = {
    "OOM": "give the server more memory (maxmemory), or free some",
    "MISCONF": "the server cannot save its data to disk: see its log",
    "NOREPLICAS": "the server waits for its replicas: see min-replicas-to-write",
}
_FOR_NOW = {
    "LOADING": "the server reads its data from disk: wait until it has ended",
    "MASTERDOWN": "this replica has lost its primary: name the primary, or wait for it",
    "READONLY": "this is a replica: name the primary",
    "BUSY": "a script keeps the server busy: wait until it has ended",
    "TRYAGAIN": "wait until the slots of the cluster have moved",
}
"""Error replies that another try may not get: after a failover, after a while."""
_NO_DATABASE = ("DB index", "value is out of range, value must")
"""How Redis refuses the number of a database: too large for its configuration, or for an int."""
_CLUSTER = ("MOVED", "ASK", "CROSSSLOT", "CLUSTERDOWN")
_LOGIN = ("NOAUTH", "WRONGPASS")


def translated(error: exceptions.RedisError, label: str) -> MemctlError:
    """What an error of the driver, or an error reply, means for the operator."""
    text = _sentence(error)
    word = code(error)
    if word in _REFUSED_WRITE:
        return Unavailable(f"redis refuses writes: {text} ({label})", _REFUSED_WRITE[word])
    if word == "READONLY":
        return Lost(f"redis refuses writes: {text} ({label})", _FOR_NOW[word])
    if word in _FOR_NOW:
        return Lost(f"{label} cannot answer now: {text}", _FOR_NOW[word])
    if word in _CLUSTER:
        return Unavailable(
            f"{label} belongs to a Redis Cluster",
            "AgentScope's RedisMemory works on a single server only, and so does memctl",
        )
    if any(words in text for words in _NO_DATABASE):
        return NotFound(
            f"{label} does not exist: {text}",
            "the number of the database (/NUMBER or db=NUMBER) is 0 to 15, "
            "unless the server's setting 'databases' says otherwise",
        )
    if word in _LOGIN or isinstance(error, _LOGIN_ERRORS):
        return Unavailable(
            f"{label} refuses the login: {text}",
            "the password comes from the URL, the alias or REDISCLI_AUTH",
        )
    match error:
        case _ if word == "NOPERM":
            return Unavailable(
                f"{label} forbids a command: {text}",
                "the ACL of this user must cover memctl's commands and the keys of the prefix; "
                "reading needs MULTI and EXEC, too",
            )
        case exceptions.InvalidResponse():
            return Unavailable(f"what answers at {label} is not Redis", "check the URL")
        case exceptions.ConnectionError() | exceptions.TimeoutError():
            kind = Unavailable if _is_lasting(error, text) else Lost
            return kind(f"cannot reach {label}: {text}", _connection_hint(text))
        case _:
            return Unavailable(f"{label} refuses a command: {text}", "is it Redis 6.2 or later?")


_LOGIN_ERRORS = (exceptions.AuthenticationError, exceptions.AuthorizationError)


def _is_lasting(error: exceptions.RedisError, text: str) -> bool:
    """Whether another try would meet the same: a host that there is not, or TLS that fails."""
    cause = error.__context__
    if isinstance(cause, socket.gaierror):
        return cause.errno != socket.EAI_AGAIN
    return "SSL" in text or "certificate" in text.lower()


def code(error: exceptions.RedisError) -> str:
    """The word that an error reply began with; redis-py takes some of them off."""
    match error:
        case exceptions.OutOfMemoryError():
            return "OOM"
        case exceptions.ReadOnlyError():
            return "READONLY"
        case exceptions.BusyLoadingError():
            return "LOADING"
        case exceptions.MasterDownError():
            return "MASTERDOWN"
        case exceptions.TryAgainError():
            return "TRYAGAIN"
        case exceptions.NoPermissionError():
            return "NOPERM"
        case exceptions.MovedError() | exceptions.AskError():
            return "MOVED"
        case exceptions.ClusterCrossSlotError() | exceptions.ClusterDownError():
            return "CLUSTERDOWN"
        case _:
            return str(error).partition(" ")[0]


def _sentence(error: exceptions.RedisError) -> str:
    """The first line of an error's text, without its full stop."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def _connection_hint(text: str) -> str:
    if text.startswith("Timeout"):
        return (
            "is it Redis? rediss:// is with TLS, redis:// without; "
            "if it is slow, raise socket_connect_timeout (and socket_timeout, where given)"
        )
    if "SSL" in text or "certificate" in text.lower():
        return "rediss:// needs a server with TLS; ssl_ca_certs=FILE names its authority"
    if "closed by server" in text:
        return "a server that expects TLS is written rediss://"
    return "is the server running, and are host, port or socket right?"
