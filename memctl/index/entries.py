"""Messages as the index has them."""

from __future__ import annotations

from memctl.dialects.view import Dialect
from memctl.index.database import Batch, Entry, PackedBlock, packed
from memctl.index.text import pieces, prepare
from memctl.model import StoredMessage

_LARGE = 1 << 20
"""The bytes above which ``Dialect.outline`` leaves texts out."""


def pack(batch: Batch, dialect: Dialect) -> list[PackedBlock]:
    """Return the new blocks of a batch, ready to be written."""
    return [
        packed(new, [_entry(message, dialect) for message in new.messages]) for new in batch.added
    ]


def _entry(message: StoredMessage, dialect: Dialect) -> Entry:
    """Return a message as the index has it; of one that is not JSON, the text as it is."""
    try:
        large = len(message.message) > _LARGE
        view = (dialect.parse if large else dialect.outline)(message.message)
    except ValueError:
        text = message.message.decode("utf-8", "replace")
        return Entry(message.id, None, None, None, message.marks, pieces(prepare(text)))
    texts = pieces(prepare(view.searchable()))
    return Entry(message.id, view.role, view.name, view.time, message.marks, texts)
