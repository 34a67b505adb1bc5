"""The notes of converted messages whose contents are taken out, or put back.

A note gives a message back what its dialect cannot express, once the message returns to the dialect
that it came from.  The note holds for one text of the message, so an offload renews the note.  A
note may describe several consecutive messages; the first message has the note.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import NamedTuple

from memctl.dialects.conversion import described
from memctl.dialects.conversion_path import conversion
from memctl.dialects.registry import DIALECTS
from memctl.dialects.view import NOTES, Dialect, object_of
from memctl.json import jsonio
from memctl.json.located import LocatedText, located, spliced
from memctl.model import Page, StoredMessage


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
    was = [one.message for one in some.old]
    way = conversion(some.dialect, some.origin)
    note = way.note_of_offloaded(was, some.new, first=some.first)
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
