"""Conversion of messages to entries of the index."""

from __future__ import annotations

from memctl.dialects.view import Dialect
from memctl.index.database import Batch, IndexedMessage, PackedBlock, SourceText, packed
from memctl.index.text import pieces, prepare
from memctl.model import StoredMessage

_LARGE = 1 << 20
"""The size in bytes above which ``Dialect.outline`` leaves texts out."""


def source(message: StoredMessage, dialect: Dialect) -> SourceText:
    """Return what the index keeps of a message: id, sender, time, marks, searchable text.

    For a message that is not JSON, the text is the whole message.
    """
    try:
        large = len(message.message) > _LARGE
        view = (dialect.parse if large else dialect.outline)(message.message)
    except ValueError:
        text = message.message.decode("utf-8", "replace")
        return SourceText(message.id, None, None, None, message.marks, False, text)
    text = view.searchable()
    output = view.role == "tool" or view.is_tool_output
    return SourceText(message.id, view.role, view.name, view.time, message.marks, output, text)


def pack(batch: Batch) -> list[PackedBlock]:
    """Return the new blocks of messages of a batch, compressed and ready to be written."""
    return [packed(new, list(map(_entry, new.messages))) for new in batch.added]


def _entry(message: SourceText) -> IndexedMessage:
    return IndexedMessage(*message[:-1], pieces(prepare(message.text)))
