"""Redact messages by edits: those with notes of a migration, and those of selected memories.

A note makes the way back to another dialect exact, and holds for one text of the messages that it
describes.  An edit renews it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import ClassVar

from msgspec import structs

from memctl.dialects.view import Dialect
from memctl.errors import UsageError
from memctl.model import Edit, MemoryKey, Page
from memctl.ops.offload.migrated import Described, all_described, for_rewritten
from memctl.ops.offload.run import RewriteRun
from memctl.store import Store
from memctl.storekit.texts import Rewriter, Rewritten, TextResult


@dataclass(eq=False)
class NotedMessages(RewriteRun):
    """The edit of the messages that notes describe; other messages stay.

    ``results`` says what was found in the messages of each memory.
    """

    described_only: ClassVar[bool] = True
    """True if messages that no note describes stay."""

    rewriter: Rewriter

    def __post_init__(self) -> None:
        self.options = structs.replace(self.options, backup=False, must_exist=False)
        super().__post_init__()
        self.results: dict[MemoryKey, list[TextResult]] = {}

    def outcome(self) -> Iterator[TextResult]:
        """Yield what became of each message with a value, after the run."""
        failures = dict(self.report.failures)
        for key, results in self.results.items():
            why = failures.get(key)
            yield from results if why is None else [one.failed(why.message) for one in results]

    def texts(self, dialect: Dialect, page: Page, told: Sequence[bytes | None]) -> list[bytes]:  # noqa: ARG002
        key, first = page.memory.key, page.offset == 0
        if first:  # it may be planned again
            self.results.pop(key, None)
        old = [one.message for one in page.messages]
        found = {at: self.rewriter.rewrite(old[at]) for at in self.rewriter.suspects(old)}
        new = [found[at].text if at in found else text for at, text in enumerate(old)]
        edited = set() if self.described_only else set(found)
        texts = [new[at] if at in edited else text for at, text in enumerate(old)]
        for start, some in all_described(dialect, page.messages, new, first=first):
            for at, one in enumerate(for_rewritten(some) or (), start):
                texts[at] = one.message
                edited.add(at)
        for at in found.keys() & edited:
            self._note(key, f"message {page.messages[at].id}", found[at])
        return texts

    def _note(self, key: MemoryKey, part: str, found: Rewritten) -> None:
        self.results.setdefault(key, []).append(found.at(f"{key}, {part}"))

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
        return self._rewritten(text, key, f"another text of message {id}")

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
        new = self._rewritten(summary.encode(), page.memory.key, "summary").decode()
        if new == summary:
            return edit, stays
        memory = replace(edit.memory, summary=new)
        return structs.replace(edit, memory=memory, summary=summary), stays

    def _rewritten(self, text: bytes, key: MemoryKey, part: str) -> bytes:
        if not self.rewriter.is_suspect(text):
            return text
        found = self.rewriter.rewrite(text)
        self._note(key, part, found)
        return found.text


def refuse_selection(store: Store) -> None:
    """Refuse a store that does not redact single memories.

    Raises:
        UsageError: memctl edits no messages of the store.
    """
    if store.features.selects_texts:
        return
    if store.features.retired or not store.dialect.offloads:
        raise UsageError(
            f"{store.label}: memctl redacts a store of this kind as a whole",
            "leave out --user and --session",
        )
