"""The errors of models."""

from __future__ import annotations

from memctl.errors import Unavailable
from memctl.inference.settings import Usage


class ModelError(Exception):
    """A failed request to a model.  ``code`` is stable: scripts may test it.

    The codes are ``bad-reply`` (the reply cannot be used), ``refused`` (by the model or a filter),
    ``timeout``, ``rate-limited``, ``server-error``, ``cut-off`` (the reply exceeds the token
    limit), ``rejected`` (the request is invalid), ``too-long`` and ``program-failed``.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        retry: bool = False,
        after: float | None = None,
        usage: Usage | None = None,
    ) -> None:
        """With ``retry``, a retry may help, after a pause of ``after`` seconds.

        ``usage`` counts the tokens of the failed request, if known.
        """
        super().__init__(message)
        self.code = code
        self.message = message
        self.retry = retry
        self.after = after
        self.usage = usage or Usage()
        self.calls = 1
        """The number of requests: more than one after retries."""


class TooLong(ModelError):
    """The server says that the input exceeds the context window of the model."""

    def __init__(self, message: str, usage: Usage | None = None) -> None:
        super().__init__("too-long", message, usage=usage)


class Unreachable(Unavailable):
    """Nothing answers at the address of a model.

    ``usage`` and ``calls`` count the earlier attempts that the server answered.
    """

    usage = Usage()
    calls = 0


class Unauthorised(Unavailable):
    """The server refuses the key, does not know the model, or the account has no credit.

    All further requests would fail, too.
    """


def bad_reply(message: str, usage: Usage | None = None) -> ModelError:
    """Return the error for an unusable reply; a retry may give a usable reply."""
    return ModelError("bad-reply", message, retry=True, usage=usage)


def too_large(what: str, limit: int) -> ModelError:
    """Return the error for a reply of more than ``limit`` bytes; a retry would fail, too.

    ``what`` is for example "the program printed".
    """
    return ModelError("bad-reply", f"{what} more than {limit} bytes")
