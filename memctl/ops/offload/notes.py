"""The notes of converted messages whose contents are taken out, or put back.

A note gives a message back what its dialect cannot express, once the message returns to the dialect
that it came from.  The note holds for one text of the message, so whoever takes contents out of the
message renews the note.  A note may describe several messages that follow one another; the first of
these has the note.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import NamedTuple

from memctl import jsonio
from memctl.dialects.conversion import described
from memctl.dialects.conversion_path import conversion
from memctl.dialects.registry import DIALECTS
from memctl.dialects.view import NOTES, Dialect, object_of
from memctl.json_located import LocatedText, located, spliced
from memctl.model import Page, StoredMessage


class Described(NamedTuple):
    """The messages from ``start`` up to but not including ``stop``, which a note describes.

    They came from the dialect ``origin``.
    """

    start: int
    stop: int
    origin: Dialect


def all_described(messages: Sequence[StoredMessage]) -> Iterator[Described]:
    """Yield for each note the messages that the note describes, if all of these are there."""
    for start, one in enumerate(messages):
        for name, count in described(one.message).items():
            if name in DIALECTS and start + count <= len(messages):
                yield Described(start, start + count, DIALECTS[name])


def for_offloaded(
    dialect: Dialect,
    origin: Dialect,
    old: Sequence[StoredMessage],
    new: Sequence[bytes],
    *,
    first: bool,
) -> list[StoredMessage] | None:
    """Return messages with the texts ``new``, and with a note that holds for these texts, too.

    ``old`` are the messages of ``dialect`` that the note for ``origin`` describes, and contents
    were taken out of these.  ``first`` is True if they begin their memory.  None if the note does
    not hold for ``old``.
    """
    was = [one.message for one in old]
    note = conversion(dialect, origin).note_of_offloaded(was, new, first=first)
    begin = None if note is None else _with_note(new[0], origin, note)
    return None if begin is None else with_texts(dialect, old, [begin, *new[1:]])


def for_restored(
    dialect: Dialect, origin: Dialect, messages: Sequence[bytes], *, first: bool
) -> bytes | None:
    """Return the first of some messages, with the note for ``origin`` as before the offload.

    None if the note stays, since contents are still missing, or the messages have changed.
    """
    note = conversion(dialect, origin).note_of_restored(messages, first=first)
    return None if note is None else _with_note(messages[0], origin, note)


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
    """Return a message with another note for ``origin``; None if the old one has no place."""
    old = located(text)["metadata"][NOTES][origin.name]
    if not isinstance(old, LocatedText):
        return None
    return spliced(text, [(old.span, json.dumps(note).encode())])


async def in_whole_groups(pages: AsyncGenerator[Page]) -> AsyncGenerator[Page]:
    """Yield pages of messages; messages that a note describes are on one page, if all are there."""
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
        for count in described(one.message).values()
    )
