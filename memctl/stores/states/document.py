"""The JSON document of a session, held as bytes."""

from __future__ import annotations

from typing import NamedTuple

from memctl.errors import BadData, Unavailable


class Document:
    """The JSON of a session.

    ``exists`` is False for the place of a document that is not written yet.  ``ttl`` is the time to
    live in seconds, None for a document that does not expire.
    """

    def __init__(self, name: str, data: bytes | None, ttl: float | None = None) -> None:
        """``name`` is used in messages; ``data`` is None if the document does not exist."""
        self.name = name
        self.data = data or b""
        self.exists = data is not None
        self.ttl = ttl

    async def close(self) -> None:
        """Release the bytes and the connection or file of the document."""
        self.data = b""


class Span(NamedTuple):
    """The bytes of a document from ``start``, before ``end``."""

    start: int
    end: int


class DocumentTooLarge(BadData):
    """The new document would be larger than its store accepts."""


class ForeignId(BadData):
    """The id of a message in its store differs from the id in its text, which a document keeps."""


class DocumentChanged(Unavailable):
    """Another program wrote to the document while memctl read it."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name} was changed while it was read",
            "run the command again when no agent is writing to it",
        )
