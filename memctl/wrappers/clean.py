"""Messages without memctl's notes, for programs that refuse unknown keys."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from msgspec.structs import replace

from memctl.dialects.conversion import without_notes
from memctl.dialects.openai import OPENAI
from memctl.model import MemoryKey, Page, WriteMode, WriteResult
from memctl.store import Store
from memctl.wrappers.wrapper import StoreWrapper


class NoteCleaner:
    """Takes memctl's notes out of messages, and counts the memories that had some."""

    def __init__(self) -> None:
        self.memories = 0
        self.example: MemoryKey | None = None
        """The first memory that had notes."""
        self._last: MemoryKey | None = None

    async def clean(
        self, pages: AsyncGenerator[Page], *, every: bool = False
    ) -> AsyncGenerator[Page]:
        """Yield the pages without notes; with ``every``, count each memory with messages."""
        async with aclosing(pages):
            async for page in pages:
                kept = [
                    entry._replace(message=without_notes(entry.message)) for entry in page.messages
                ]
                if kept and (every or kept != page.messages):
                    self._count(page.memory.key)
                yield replace(page, messages=kept)

    def _count(self, key: MemoryKey) -> None:
        if key != self._last:
            self._last = key
            self.memories += 1
            self.example = self.example or key


class CleanStore(StoreWrapper):
    """A target that gets messages without memctl's notes."""

    def __init__(self, store: Store, cleaner: NoteCleaner) -> None:
        super().__init__(store)
        self._cleaner = cleaner

    def write(
        self, pages: AsyncGenerator[Page], mode: WriteMode = WriteMode.ADD
    ) -> AsyncGenerator[WriteResult]:
        # OpenAI's messages have no fields for ids, times and marks.
        every = self.dialect.name == OPENAI.name
        return super().write(self._cleaner.clean(pages, every=every), mode)
