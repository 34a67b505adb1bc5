"""A memory of which the target holds the beginning: what is left of it passes on."""

from __future__ import annotations

import time

from memctl.model import Memory, Page, StoredMessage
from memctl.ops.fingerprint import Fingerprint, Form, Hasher, summary_digest
from memctl.ops.sides import Sides

NOTHING = Fingerprint(0, Hasher(Form.OUTLINE, mark_order=False).digest(), None)
"""What a target holds of a memory that is not there."""


class Beginning:
    """Compares a memory, page by page, with what the target holds, and passes on the rest.

    ``conflict`` says why it cannot, ``passed`` whether anything was left.
    """

    def __init__(self, memory: Memory, there: Fingerprint, form: Form, sides: Sides) -> None:
        self.there = there
        self.passed = False
        self.messages = 0
        summary = summary_digest(memory)
        expires = None if memory.ttl is None else time.time() + memory.ttl
        here = Fingerprint(0, b"", summary, expires)
        self._lacks = there is NOTHING or sides.lacks(here, there)
        self.conflict = ""
        if summary and there.summary and summary != there.summary:
            self.conflict = "the target holds another summary"
        self._hasher = Hasher(form, mark_order=sides.mark_order)

    def take(self, page: Page) -> Page | None:
        """What of the page is to be written, if anything."""
        self.messages += len(page.messages)
        if self.conflict:
            return None
        compared = max(0, min(len(page.messages), self.there.messages - page.offset))
        if compared:
            self._hasher.add(page.messages[:compared])
        if page.last and self.messages < self.there.messages:
            self.conflict = (
                f"the target holds {self.there.messages} messages, the source {self.messages}"
            )
            return None
        if self.messages < self.there.messages:
            return None
        # Only what the target holds is in the digest so far, unless the rest has begun.
        reached = compared or not page.offset
        if reached and self._hasher.digest() != self.there.digest:
            self.conflict = (
                f"the first {self.there.messages} messages of the source are not those that "
                "the target holds"
            )
            return None
        rest = page.messages[compared:]
        self._hasher.add(rest)
        return self._rest(page, rest, page.offset + compared)

    @property
    def digest(self) -> bytes:
        """That of the whole memory, when its last page was taken."""
        return self._hasher.digest()

    def _rest(self, page: Page, entries: list[StoredMessage], offset: int) -> Page | None:
        if not entries and not (page.last and (self.passed or self._lacks)):
            return None
        self.passed = True
        return Page(page.memory, entries, offset, page.last)
