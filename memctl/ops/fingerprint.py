"""What a memory holds, in a few bytes: enough to tell whether two memories are the same.

Three forms, each looking closer than the one before: the outline (ids, order and marks), the stored
text, which is cheap and settles most memories, and the value (key order and formatting aside).
"""

from __future__ import annotations

import time
from array import array
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from enum import Enum
from hashlib import sha256

from memctl import codec
from memctl.errors import BadData
from memctl.model import PAGE_BYTES, Memory, MemoryKey, Page, StoredMessage

DIGEST_BYTES = 16


class Form(Enum):
    """What counts as the same message: the same id, the same text, or the same value."""

    OUTLINE = "outline"
    TEXT = "text"
    VALUE = "value"


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """A memory in brief.

    ``digest`` covers ids, order, marks and, but for an outline, content of the messages.
    ``summary`` is a digest of the summary, empty where there is none, None where the store has no
    place for one.  ``expires`` is the moment at which the memory expires, in seconds since the
    epoch.  ``beginning`` is the digest of as many messages as were asked for, if there are so many.
    """

    messages: int
    digest: bytes
    summary: bytes | None
    expires: float | None = None
    beginning: bytes | None = None


class Hasher:
    """The digest of the messages of one memory, as they come.

    Ids, marks, contents and the lengths of each are hashed apart, so that pages go in whole and it
    makes no difference where they were cut.
    """

    def __init__(self, form: Form, *, mark_order: bool) -> None:
        self.messages = 0
        self._form = form
        self._mark_order = mark_order
        self._ids = sha256()
        self._id_lengths = sha256()
        self._marks = sha256()
        self._contents = sha256()
        self._content_lengths = sha256()

    def add(self, entries: list[StoredMessage]) -> None:
        """Takes the next messages in.

        Raises:
            BadData: a message is not JSON (only where values are compared).
        """
        ids = [entry.id for entry in entries]
        self._ids.update("".join(ids).encode("utf-8", "surrogatepass"))
        self._id_lengths.update(array("Q", map(len, ids)).tobytes())
        marked = [
            f"{number} {len(mark)} {mark}"
            for number, entry in enumerate(entries, self.messages)
            if entry.marks
            for mark in _in_order(entry, mark_order=self._mark_order)
        ]
        if marked:
            self._marks.update("".join(marked).encode("utf-8", "surrogatepass"))
        if self._form is not Form.OUTLINE:
            self._add_contents(entries)
        self.messages += len(entries)

    def _add_contents(self, entries: list[StoredMessage]) -> None:
        if self._form is Form.TEXT:
            contents = [entry.message for entry in entries]
        else:
            contents = [content(entry, self._form) for entry in entries]
        lengths = array("Q", map(len, contents))
        self._content_lengths.update(lengths.tobytes())
        if sum(lengths) <= 2 * PAGE_BYTES:
            self._contents.update(b"".join(contents))
            return
        for one in contents:  # large ones are not held twice
            self._contents.update(one)

    def digest(self) -> bytes:
        """The digest of all messages so far."""
        parts = (
            *(self._ids, self._id_lengths, self._marks),
            *(self._contents, self._content_lengths),
        )
        whole = b"%d " % self.messages + b"".join(part.digest() for part in parts)
        return sha256(whole).digest()[:DIGEST_BYTES]


def _in_order(entry: StoredMessage, *, mark_order: bool) -> list[str]:
    return list(dict.fromkeys(entry.marks)) if mark_order else sorted(set(entry.marks))


def encode_marks(entry: StoredMessage, *, mark_order: bool) -> bytes:
    """The marks of a message as comparable bytes."""
    return "\0".join(_in_order(entry, mark_order=mark_order)).encode("utf-8", "surrogatepass")


def content(entry: StoredMessage, form: Form) -> bytes:
    """The message as comparable bytes.

    Raises:
        BadData: it is not JSON (only where values are compared).
    """
    if form is Form.TEXT:
        return entry.message
    try:
        return codec.canonical(entry.message)
    except ValueError as error:
        raise BadData(f"the message {entry.id!r} is not JSON: {error}") from error


def summary_digest(memory: Memory) -> bytes | None:
    """The digest of a summary; see ``Fingerprint``."""
    if memory.summary is None:
        return None
    if not memory.summary:
        return b""
    return sha256(memory.summary.encode("utf-8", "surrogatepass")).digest()[:DIGEST_BYTES]


async def fingerprints(
    pages: AsyncGenerator[Page],
    form: Form,
    *,
    mark_order: bool,
    beginnings: Mapping[MemoryKey, int] | None = None,
) -> dict[MemoryKey, Fingerprint]:
    """The fingerprint of every memory that passes.

    ``beginnings`` asks for the digest of so many messages too.

    Raises:
        MemctlError: as ``Store.read``.
    """
    found: dict[MemoryKey, Fingerprint] = {}
    asked = beginnings or {}
    hasher = Hasher(form, mark_order=mark_order)
    beginning: bytes | None = None
    async with aclosing(pages):
        async for page in pages:
            memory = page.memory
            if page.offset == 0:
                hasher, beginning = Hasher(form, mark_order=mark_order), None
            entries = page.messages
            left = asked.get(memory.key, -1) - hasher.messages
            if 0 <= left <= len(entries):
                hasher.add(entries[:left])
                beginning = hasher.digest()
                entries = entries[left:]
            hasher.add(entries)
            if page.last:
                found[memory.key] = Fingerprint(
                    hasher.messages,
                    hasher.digest(),
                    summary_digest(memory),
                    None if memory.ttl is None else time.time() + memory.ttl,
                    beginning,
                )
    return found
