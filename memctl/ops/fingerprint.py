"""What a memory holds, in a few bytes: enough to tell whether two memories are the same.

A fingerprint is taken of the stored text first, which is cheap and settles most memories; only
where texts differ are messages compared by value (key order and formatting aside).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import Enum

from memctl import codec
from memctl.errors import BadData
from memctl.model import Entry, Memory, MemoryKey
from memctl.selection import Selection
from memctl.store import Capability, Store
from memctl.streams import closing

DIGEST_BYTES = 16


class Form(Enum):
    """What counts as the same message: the same text, or the same value."""

    TEXT = "text"
    VALUE = "value"


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """A memory in brief.

    ``digest`` covers ids, order, marks and content of the messages.  ``summary`` is a digest of the
    summary, empty where there is none, None where the store has no place for one.
    """

    messages: int
    digest: bytes
    summary: bytes | None
    expires: bool


class Hasher:
    """The digest of the messages of one memory, as they come."""

    def __init__(self, form: Form, *, mark_order: bool) -> None:
        self._form = form
        self._mark_order = mark_order
        self._state = hashlib.blake2b(digest_size=DIGEST_BYTES)
        self.messages = 0

    def add(self, entry: Entry) -> None:
        """Takes the next message in.

        Raises:
            BadData: the message is not JSON (only where values are compared).
        """
        name = entry.id.encode("utf-8", "surrogatepass")
        marks = encode_marks(entry, mark_order=self._mark_order)
        message = content(entry, self._form)
        self._state.update(b"%d %d %d\n" % (len(name), len(marks), len(message)))
        self._state.update(name)
        self._state.update(marks)
        self._state.update(message)
        self.messages += 1

    def digest(self) -> bytes:
        """The digest of all messages so far."""
        return self._state.digest()


def encode_marks(entry: Entry, *, mark_order: bool) -> bytes:
    """The marks of a message as comparable bytes."""
    if not entry.marks:
        return b""
    marks = dict.fromkeys(entry.marks) if mark_order else sorted(set(entry.marks))
    return "\0".join(marks).encode("utf-8", "surrogatepass")


def content(entry: Entry, form: Form) -> bytes:
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
    text = memory.summary.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=DIGEST_BYTES).digest()


def keeps_mark_order(first: Store, second: Store) -> bool:
    """Whether the order of marks means something between the two stores."""
    return Capability.MARK_ORDER in first.capabilities & second.capabilities


async def fingerprints(
    store: Store, where: Selection, form: Form, *, mark_order: bool
) -> dict[MemoryKey, Fingerprint]:
    """The fingerprint of every selected memory, from one pass over the store.

    Raises:
        MemctlError: as ``Store.read``.
    """
    found: dict[MemoryKey, Fingerprint] = {}
    hasher = Hasher(form, mark_order=mark_order)
    async with closing(store.read(where)) as pages:
        async for page in pages:
            if page.offset == 0:
                hasher = Hasher(form, mark_order=mark_order)
            for entry in page.entries:
                hasher.add(entry)
            if page.last:
                memory = page.memory
                found[memory.key] = Fingerprint(
                    hasher.messages,
                    hasher.digest(),
                    summary_digest(memory),
                    memory.ttl is not None,
                )
    return found
