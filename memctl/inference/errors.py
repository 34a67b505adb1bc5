"""The ways in which a model fails."""

from __future__ import annotations

from memctl.errors import Unavailable
from memctl.inference.settings import Usage


class ModelError(Exception):
    """A failure of a model to do its work.  ``code`` is stable: scripts may test it.

    ``bad-reply`` (it does not fit the schema), ``refused`` (by the model), ``timeout``,
    ``rate-limited``, ``server-error``, ``cut-off`` (the reply was too long for the model),
    ``rejected`` (the request was wrong to the model), ``program-failed``.
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
        """``retry`` where a retry may help, after no less than ``after`` seconds if it is set.

        ``usage`` is that of a reply that was of no use.
        """
        super().__init__(message)
        self.code = code
        self.message = message
        self.retry = retry
        self.after = after
        self.usage = usage or Usage()


class TooLong(ModelError):
    """An input longer than the model's window, whatever was configured."""

    def __init__(self, message: str, usage: Usage | None = None) -> None:
        super().__init__("too-long", message, usage=usage)


class Unreachable(Unavailable):
    """An address of a model at which nothing answers."""


class Unauthorised(Unavailable):
    """A key that is refused, a model that is not known, or an account without credit.

    No other request can succeed either.
    """


def bad_reply(message: str, usage: Usage | None = None) -> ModelError:
    """Return the error of a reply of no use; a retry may give another."""
    return ModelError("bad-reply", message, retry=True, usage=usage)
