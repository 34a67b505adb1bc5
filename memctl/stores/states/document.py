"""The JSON document of a session, held as bytes."""

from __future__ import annotations

from typing import NamedTuple

from memctl.errors import BadData, Unavailable


class Document:
    """The JSON document with the state of a session, as bytes.

    ``exists`` is False if the document is not stored yet.  ``ttl`` is the time to expiry in
    seconds, None for a document that does not expire.
    """

    def __init__(self, name: str, data: bytes | None, ttl: float | None = None) -> None:
        """``name`` appears in errors and warnings; ``data`` is None if no document is stored."""
        self.name = name
        self.data = data or b""
        self.exists = data is not None
        self.ttl = ttl

    async def close(self) -> None:
        """Free the bytes of the document; subclasses also close its file or connection."""
        self.data = b""


class Span(NamedTuple):
    """The bytes of a document from the position ``start`` up to, not including, ``end``."""

    start: int
    end: int


class DocumentTooLarge(BadData):
    """The new document is larger than its store accepts."""


class ForeignId(BadData):
    """The JSON of a message has another id than ``StoredMessage.id``.

    A document has no place for an id outside of the JSON of the message.
    """


class DocumentChanged(Unavailable):
    """Another program wrote to the document while memctl read it."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name} was changed while it was read",
            "run the command again when no agent is writing to it",
        )
