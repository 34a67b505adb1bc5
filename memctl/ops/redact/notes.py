"""Redact messages that were migrated from another dialect, with their notes renewed.

A note makes the way back to the other dialect exact, and holds for one text of the messages that it
describes.  So these messages are edited through the store, before all its texts are rewritten.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from memctl.dialects.view import Dialect
from memctl.journal.runs import Run
from memctl.model import MemoryKey, Page
from memctl.ops.change.change import RunOptions
from memctl.ops.offload.migrated import Described, all_described, for_rewritten
from memctl.ops.offload.run import RewriteRun
from memctl.selection import Selection
from memctl.storekit.texts import Rewriter, TextResult


class NotedMessages(RewriteRun):
    """The edit of the messages that notes describe; ``results`` says what was found in them."""

    def __init__(self, record: Run, options: RunOptions, rewriter: Rewriter) -> None:
        super().__init__(record, Selection(), replace(options, backup=False, must_exist=False))
        self.results: list[TextResult] = []
        self._rewriter = rewriter

    def texts(self, dialect: Dialect, page: Page, told: Sequence[bytes | None]) -> list[bytes]:  # noqa: ARG002
        old = [one.message for one in page.messages]
        found = {at: self._rewriter.rewrite(old[at]) for at in self._rewriter.suspects(old)}
        new = [found[at].text if at in found else text for at, text in enumerate(old)]
        texts = [*old]
        first = page.offset == 0
        for start, some in all_described(dialect, page.messages, new, first=first):
            renewed = for_rewritten(some)
            for at, one in enumerate(renewed or (), start):
                texts[at] = one.message
                if at in found:
                    self.results.append(found[at].at(f"{page.memory.key}, message {one.id}"))
        return texts

    def rewrite(self, dialect: Dialect, text: bytes, id: str, key: MemoryKey) -> bytes:  # noqa: ARG002
        """Return the text as it is: other texts of a message are rewritten with all texts."""
        return text

    def renew(self, some: Described) -> bytes:
        """Return the first text as it is; ``texts`` renews the notes."""
        return some.new[0]
