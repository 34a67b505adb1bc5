"""Contents of messages that were migrated to another dialect: taken out, and put back.

A note gives a converted message back what its dialect cannot express, once the message returns to
the dialect that it came from.  The note holds for one text of the message, so an offload renews the
note.  A note may describe several consecutive messages; the first message has the note.

To put contents back, the messages are converted to the dialect that their contents were taken from,
restored there, and converted again.  So they become what a migration of the whole messages would
have made of them, with the notes for the way back.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, suppress
from typing import Any, NamedTuple

from msgspec.structs import replace

from memctl.dialects.conversion import Conversion, described
from memctl.dialects.conversion_path import conversion
from memctl.dialects.registry import DIALECTS
from memctl.dialects.view import NOTES, Dialect, object_of
from memctl.errors import BadData
from memctl.json import jsonio
from memctl.json.located import LocatedText, located, spliced
from memctl.model import Memory, MemoryKey, Page, StoredMessage
from memctl.ops.offload.references import is_reference
from memctl.ops.offload.slim import Fetch, restored
from memctl.storekit.edits import Snapshot


class Described(NamedTuple):
    """All messages that a note describes, and their new texts.

    ``old`` are messages of ``dialect`` that came from the dialect ``origin``.  Contents were taken
    out of these messages, or put back: the results are the texts ``new``.  With ``first``, the
    messages begin their memory.
    """

    dialect: Dialect
    origin: Dialect
    old: Sequence[StoredMessage]
    new: Sequence[bytes]
    first: bool = False


def all_described(
    dialect: Dialect, old: Sequence[StoredMessage], new: Sequence[bytes], *, first: bool
) -> Iterator[tuple[int, Described]]:
    """Yield the described messages with a new text, each time with the place of the first message.

    ``old`` are consecutive messages with the new texts ``new``; ``first`` is as in ``Described``.
    Messages from a dialect that is not offloaded are left out.
    """
    for start, one in enumerate(old):
        for name, count in described(one.message).items():
            origin, stop = DIALECTS.get(name), start + count
            if origin is None or not origin.offloads or stop > len(old):
                continue
            if new[start:stop] != [each.message for each in old[start:stop]]:
                begins = first and start == 0
                yield start, Described(dialect, origin, old[start:stop], new[start:stop], begins)


def for_offloaded(some: Described) -> list[StoredMessage] | None:
    """Return messages with their new texts, and with a note that holds for these texts, too.

    None if the note does not hold for the old messages.
    """
    return _noted(some, Conversion.note_of_offloaded)


def for_rewritten(some: Described) -> list[StoredMessage] | None:
    """Return messages with their new texts, and with a note that holds for these texts alone.

    None if the note does not hold for the old messages.
    """
    return _noted(some, Conversion.note_of_rewritten)


def _noted(some: Described, renew: Callable[..., str | None]) -> list[StoredMessage] | None:
    was, way = [one.message for one in some.old], conversion(some.dialect, some.origin)
    note = renew(way, was, some.new, first=some.first)
    begin = None if note is None else _with_note(some.new[0], some.origin, note)
    return None if begin is None else with_texts(some.dialect, some.old, [begin, *some.new[1:]])


def for_restored(some: Described) -> bytes | None:
    """Return the first of the new texts, with the note as before the offload.

    None if the note stays: contents are still missing, or the messages have changed.
    """
    note = conversion(some.dialect, some.origin).note_of_restored(some.new, first=some.first)
    return None if note is None else _with_note(some.new[0], some.origin, note)


def with_texts(
    dialect: Dialect, messages: Sequence[StoredMessage], texts: Sequence[bytes]
) -> list[StoredMessage]:
    """Return messages with other texts; the ids stay, unless ids come from texts."""
    pairs = zip(messages, texts, strict=True)
    return [one._replace(id=id_of(dialect, one, text), message=text) for one, text in pairs]


def id_of(dialect: Dialect, message: StoredMessage, text: bytes) -> str:
    """Return the id of a message with another text: the same, unless ids come from texts."""
    if not dialect.makes_ids:
        return message.id
    return dialect.message_id(object_of(jsonio.loads(text))) or message.id


def _with_note(text: bytes, origin: Dialect, note: str) -> bytes | None:
    """Return the message ``text`` with another note for ``origin``; None if it has no note."""
    old = located(text)["metadata"][NOTES][origin.name]
    if not isinstance(old, LocatedText):
        return None
    return spliced(text, [(old.span, json.dumps(note).encode())])


async def in_whole_groups(pages: AsyncGenerator[Page]) -> AsyncGenerator[Page]:
    """Yield pages, joined where a note describes messages of several pages."""
    held: Page | None = None
    async with aclosing(pages):
        async for page in pages:
            if held is not None:
                page = _joined(held, page)
                held = None
            if not page.last and _is_open(page.messages):
                held = page
            else:
                yield page
            del page  # free a large page before the next read


def _joined(page: Page, following: Page) -> Page:
    anchors = [
        *(page.anchors or [None] * len(page.messages)),
        *(following.anchors or [None] * len(following.messages)),
    ]
    return replace(
        page,
        messages=page.messages + following.messages,
        last=following.last,
        anchors=anchors,
        indexes=[*page.places, *following.places],
    )


def _is_open(messages: Sequence[StoredMessage]) -> bool:
    """Return whether a note describes more messages than follow."""
    return any(
        count > len(messages) - start
        for start, one in enumerate(messages)
        if _COUNT in one.message
        for count in described(one.message).values()
    )


_COUNT = rb"\"count\""
"""Bytes of every message with a note that describes several messages."""


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


def comes_back(
    dialect: Dialect,
    origin: Dialect,
    old: Sequence[StoredMessage],
    new: Sequence[StoredMessage],
    fetch: Fetch,
) -> bool:
    """Return whether offloaded messages become, in the dialect ``origin``, what whole ones become.

    ``old`` are whole messages of ``dialect``.  ``new`` are the same messages after an offload, with
    the note for ``origin`` renewed.  The offloaded messages are converted, and rehydrated there;
    ``fetch`` returns the contents.
    """
    way = conversion(dialect, origin)
    memory = Memory(MemoryKey("", ""))

    def restore(message: StoredMessage) -> bytes:
        return restored(dialect, message.message, fetch)

    try:
        wanted = _converted(way, memory, old)[1]
        converted, there = _converted(way, memory, new)
        if [(one.id, one.marks) for one in there] != [(one.id, one.marks) for one in wanted]:
            return False
        texts = restored_in(dialect, origin, Snapshot(converted, there), restore)
        found = [
            restored(origin, one.message, fetch) if text is None else text
            for one, text in zip(there, texts, strict=True)
        ]
    except (BadData, ValueError, RecursionError):
        return False
    return list(map(jsonio.canonical, found)) == [jsonio.canonical(one.message) for one in wanted]


def _restored(
    origin: Dialect, dialect: Dialect, stored: Snapshot, restore: Restore
) -> Iterator[bytes | None]:
    """Yield as ``restored_in``; nothing if the conversions give another number of messages.

    Raises:
        ValueError, RecursionError: a message cannot be converted.
    """
    has_summary = bool(stored.memory.summary) and not dialect.summary_setting
    way = conversion(origin, dialect, summaries=has_summary)
    memory, shown = _converted(conversion(dialect, origin), stored.memory, stored.messages)
    same = _converted(way, memory, shown)[1]
    if len(same) != len(stored.messages):
        return
    whole = _converted_whole(way, (origin, dialect), memory, shown, restore)
    for entry, old, (new, is_bound) in zip(stored.messages, same, whole, strict=False):
        if new.message == old.message or (is_bound and not _is_restored(entry, new)):
            yield None
        else:
            yield _text(dialect, entry, new)


def _converted_whole(
    way: Conversion,
    ends: tuple[Dialect, Dialect],
    memory: Memory,
    shown: Sequence[StoredMessage],
    restore: Restore,
) -> Iterator[tuple[StoredMessage, bool]]:
    """Yield messages with their contents, converted by ``way``, and whether each is bound.

    ``ends`` are the dialects from and to which ``way`` converts.
    A bound message has data that only its note gives back, and that are lost if the note cannot be
    renewed: then the message stays as it is.
    """
    converter = way.converter()
    converter.memory(memory, shown)
    start = 0
    while start < len(shown):
        bound = way.bound(shown[start].message)
        some = shown[start : start + max(bound, 1)]
        texts = [restore(one) for one in some]
        if bound:
            yield from ((one, False) for one in converter.end())
            if texts != [one.message for one in some]:
                some = for_offloaded(Described(*ends, some, texts, start == 0)) or some
            done = [*converter.add(some), *converter.end()]
        else:
            done = converter.add([some[0]._replace(message=texts[0])])
        yield from ((one, bound > 0) for one in done)
        start += len(some)
    yield from ((one, False) for one in converter.end())


def _converted(
    way: Conversion, memory: Memory, messages: Sequence[StoredMessage]
) -> tuple[Memory, list[StoredMessage]]:
    converter = way.converter()
    memory = converter.memory(memory, messages)
    return memory, [*converter.add(messages), *converter.end()]


def _is_restored(old: StoredMessage, new: StoredMessage) -> bool:
    """Return whether a message differs from the stored one only where references stood."""
    return _differ_in_references(jsonio.loads(old.message), jsonio.loads(new.message))


def _differ_in_references(old: Any, new: Any) -> bool:
    if old == new or (isinstance(old, str) and is_reference(old)):
        return True
    if isinstance(old, dict):
        if isinstance(new, dict) and old.keys() == new.keys():
            pairs = [(value, new[name]) for name, value in old.items()]
            if all(_differ_in_references(*pair) for pair in pairs):
                return True
        return any(isinstance(value, str) and is_reference(value) for value in old.values())
    if isinstance(old, list):
        return (
            isinstance(new, list)
            and len(old) == len(new)
            and all(map(_differ_in_references, old, new))
        )
    return False


def _text(dialect: Dialect, entry: StoredMessage, new: StoredMessage) -> bytes:
    """Return the text of ``new`` with the fields of ``entry`` that the store may have changed."""
    if not dialect.unsettled:
        return new.message
    stored = jsonio.loads(entry.message)
    kept = {name: stored[name] for name in dialect.unsettled if name in stored}
    return jsonio.dumps(jsonio.loads(new.message) | kept)
