"""Contents put back into messages that were migrated to another dialect.

The messages are converted to the dialect that their contents were taken from, restored there, and
converted again.  So they become what a migration of the whole messages would have made of them,
with the notes for the way back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from memctl import jsonio
from memctl.dialects.conversion import Conversion
from memctl.dialects.conversion_path import conversion
from memctl.dialects.view import Dialect
from memctl.model import Memory, StoredMessage
from memctl.storekit.edits import Snapshot

Restore = Callable[[StoredMessage], bytes]
"""Returns the text of a message with its contents, or as it is."""


def restored_in(
    origin: Dialect, dialect: Dialect, stored: Snapshot, restore: Restore
) -> Iterator[bytes | None]:
    """Yield the new text of each message of the memory ``stored``, with its contents.

    The stored messages have the dialect ``dialect``; ``restore`` gets messages in the dialect
    ``origin``.  The text is None if the message must stay: no reference was replaced, or the
    conversions would lose data of ``dialect``.
    """
    texts = _restored(origin, dialect, stored, restore)
    for _ in stored.messages:
        text = None
        with suppress(ValueError, RecursionError):
            text = next(texts, None)
        yield text


def _restored(
    origin: Dialect, dialect: Dialect, stored: Snapshot, restore: Restore
) -> Iterator[bytes | None]:
    """Yield as ``restored_in``; nothing if the conversions give another number of messages.

    Raises:
        ValueError, RecursionError: a message cannot be converted.
    """
    way = conversion(origin, dialect)
    memory, shown = _converted(conversion(dialect, origin), stored.memory, stored.messages)
    same = _converted(way, memory, shown)[1]
    if len(same) != len(stored.messages):
        return
    pairs = zip(stored.messages, same, strict=True)
    converter = way.converter()
    converter.memory(memory, shown[0])
    bound = 0
    for number, one in enumerate(shown, 1):
        bound = max(bound - 1, way.bound(one.message))
        whole = converter.add([one if bound > 0 else one._replace(message=restore(one))])
        if number == len(shown):
            whole += converter.end()
        for new in whole:
            entry, old = next(pairs)
            yield None if new.message == old.message else _text(dialect, entry, new)


def _converted(
    way: Conversion, memory: Memory, messages: Sequence[StoredMessage]
) -> tuple[Memory, list[StoredMessage]]:
    converter = way.converter()
    memory = converter.memory(memory, messages[0])
    return memory, [*converter.add(messages), *converter.end()]


def _text(dialect: Dialect, entry: StoredMessage, new: StoredMessage) -> bytes:
    """Return the text of ``new`` with the fields of ``entry`` that the store may have changed."""
    if not dialect.unsettled:
        return new.message
    stored = jsonio.loads(entry.message)
    kept = {name: stored[name] for name in dialect.unsettled if name in stored}
    return jsonio.dumps(jsonio.loads(new.message) | kept)
