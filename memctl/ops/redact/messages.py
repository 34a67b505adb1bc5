"""Redact messages by edits: those with notes of a migration, and those of selected memories.

A note makes the way back to another dialect exact, and holds for one text of the messages that it
describes.  An edit renews it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import repeat
from typing import ClassVar

from memctl.dialects.view import Dialect
from memctl.errors import UsageError
from memctl.journal.runs import Run
from memctl.model import Edit, MemoryKey, Page
from memctl.ops.change.change import RunOptions
from memctl.ops.offload.migrated import Described, all_described, for_rewritten
from memctl.ops.offload.run import RewriteRun
from memctl.selection import Selection
from memctl.store import Store
from memctl.storekit.texts import Rewriter, TextResult


class NotedMessages(RewriteRun):
    """The edit of the messages that notes describe; other messages stay.

    ``results`` says what was found, by the memory and the id of a message.
    """

    described_only: ClassVar[bool] = True
    """True if messages that no note describes stay."""

    def __init__(
        self, record: Run, where: Selection, options: RunOptions, rewriter: Rewriter
    ) -> None:
        super().__init__(record, where, replace(options, backup=False, must_exist=False))
        self.results: dict[tuple[MemoryKey, str], TextResult] = {}
        self._rewriter = rewriter

    def outcome(self) -> Iterator[TextResult]:
        """Yield what became of each message with a value, after the run."""
        failures = dict(self.report.failures)
        for (key, _), result in self.results.items():
            why = failures.get(key)
            yield result if why is None else result.failed(why.message)

    def texts(self, dialect: Dialect, page: Page, told: Sequence[bytes | None]) -> list[bytes]:  # noqa: ARG002
        old = [one.message for one in page.messages]
        found = {at: self._rewriter.rewrite(old[at]) for at in self._rewriter.suspects(old)}
        new = [found[at].text if at in found else text for at, text in enumerate(old)]
        edited = set() if self.described_only else set(found)
        texts = [new[at] if at in edited else text for at, text in enumerate(old)]
        first = page.offset == 0
        for start, some in all_described(dialect, page.messages, new, first=first):
            for at, one in enumerate(for_rewritten(some) or (), start):
                texts[at] = one.message
                edited.add(at)
        for at in found.keys() & edited:
            key, id = page.memory.key, page.messages[at].id
            self.results[key, id] = found[at].at(f"{key}, message {id}")
        return texts

    def rewrite(self, dialect: Dialect, text: bytes, id: str, key: MemoryKey) -> bytes:  # noqa: ARG002
        """Return the text as it is: other texts of a message are rewritten with all texts."""
        return text

    def renew(self, some: Described) -> bytes:
        """Return the first text as it is; ``texts`` renews the notes."""
        return some.new[0]


class SelectedMessages(NotedMessages):
    """The edit of all messages and summaries of selected memories."""

    described_only = False

    def rewrite(self, dialect: Dialect, text: bytes, id: str, key: MemoryKey) -> bytes:  # noqa: ARG002
        return self._rewritten(text, key, id)

    def _edit(
        self,
        store: Store,
        page: Page,
        stays: str | None,
        texts: Iterator[bytes | None] = repeat(None),
    ) -> tuple[Edit, str | None]:
        edit, stays = super()._edit(store, page, stays, texts)
        summary = page.memory.summary
        if page.offset or not summary:
            return edit, stays
        new = self._rewritten(summary.encode(), page.memory.key, "").decode()
        if new == summary:
            return edit, stays
        return replace(edit, memory=replace(edit.memory, summary=new), summary=summary), stays

    def _rewritten(self, text: bytes, key: MemoryKey, id: str) -> bytes:
        if not self._rewriter.is_suspect(text):
            return text
        found = self._rewriter.rewrite(text)
        place = f"{key}, message {id}" if id else f"{key}, summary"
        self.results[key, f"{id}, another text" if id else ""] = found.at(place)
        return found.text


def refuse_selection(store: Store) -> None:
    """Refuse a store whose memories cannot be redacted one by one.

    Raises:
        UsageError: memctl does not edit its messages; or it has facts.
    """
    store.refuse_changes()
    if store.features.whole_memories or not store.dialect.offloads:
        raise UsageError(
            f"{store.label}: memctl redacts a store of this kind as a whole",
            "leave out --user and --session",
        )
