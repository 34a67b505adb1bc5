"""Changing the messages of one memory in a document while the document is copied."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from memctl import codec
from memctl.errors import BadData, Failure
from memctl.json_stream import Cursor
from memctl.model import Edit
from memctl.stores.edits import ChangeMatcher, Drop, Keep, Mark, Put, Step
from memctl.stores.state.document import Document, Span
from memctl.stores.state.places import PlacedContent, Places
from memctl.stores.state.rewrite import BETWEEN, Draft, Plan, Rewrite


class Feed:
    """The edits of one memory, of which the first is in hand; the rest come as they are needed."""

    def __init__(self, first: Edit, rest: AsyncGenerator[Edit]) -> None:
        """``rest`` may go on with the edits of other memories."""
        self.first = first
        self.ended = first.last
        self._rest = rest

    async def more(self) -> Edit:
        """The next one."""
        edit = await anext(self._rest)
        self.ended = edit.last
        return edit

    @property
    def is_empty(self) -> bool:
        """Whether the edit changes no messages."""
        return self.first.last and not self.first.changes

    async def drain(self) -> None:
        """Takes those that are left."""
        while not self.ended:
            await self.more()


class Revision(Rewrite):
    """A memory of a document on its way into the draft, with the changes that a feed brings.

    What stays of its messages is copied as it stands.
    """

    def __init__(
        self,
        feed: Feed,
        draft: Draft,
        old: Document | None,
        plan: Plan,
        content: Span | None,
        *,
        plain: bool,
    ) -> None:
        """``content`` is where the messages stand; ``plain`` is what was found of them."""
        super().__init__(feed.first.memory, draft, old, plan)
        self._feed = feed
        self._document = old
        self._content = content
        self._plain = plain
        self._changes = ChangeMatcher()
        self._changes.give(feed.first.changes, last=feed.first.last)
        self._places = Places()
        self._untouched = True
        """Whether what is copied next stands right behind what was copied last."""
        self._misfit: Failure | None = None

    async def finish(self) -> Failure | None:
        """Copies the document, changed; see ``Rewrite.finish``.

        ``changed`` is also what becomes of changes that do not fit the memory.
        """
        failure = await super().finish()
        await self._feed.drain()
        return failure or self._misfit

    async def _finish(self) -> None:
        if not self._feed.is_empty:
            await self._begin()
            await self._messages()
            self.written, self.deleted = self._changes.written, self._changes.deleted
            self._misfit = self._changes.failure()
        if self._misfit is None:
            await super()._finish()

    async def _messages(self) -> None:
        if self._content is not None and self._document is not None:
            content = PlacedContent(Cursor(self._document, self._content.start))
            try:
                async for places in content.places(plain=self._plain):
                    await self._take(places)
                    await asyncio.sleep(0)
            except BadData:
                await self._document.verify()  # it was whole a moment ago: somebody writes to it
                raise
        await self._take(Places())
        if self._content is not None and not self._untouched:
            self._copied = self._content.end - 1

    async def _take(self, places: Places) -> None:
        """Copies some messages, changed; none at the end."""
        self._places = places
        changes = self._changes
        at = 0
        while True:
            if changes.hungry:
                edit = await self._feed.more()
                changes.give(edit.changes, last=edit.last)
            steps, at = changes.apply(places.ids, places.marks, at)
            for step in steps:
                await self._step(step)
            if not changes.hungry:
                return

    async def _step(self, step: Step) -> None:
        places = self._places
        match step:
            case Keep(start, stop):
                await self._go_to(places.starts[start])
                await self._copy_to(places.ends[stop - 1])
            case Mark(at, marks):
                await self._go_to(places.starts[at])
                await self._mark(at, marks)
            case Put(entry):
                await self._add([entry])
                self._untouched = False
            case Drop():
                self._untouched = False

    async def _go_to(self, start: int) -> None:
        """Goes to a message that stays, behind those that stand in the draft."""
        if not self._untouched:
            if not self._first:
                await self.draft.write(BETWEEN)
            self._copied = start
        self._untouched, self._first = True, False

    async def _mark(self, at: int, marks: tuple[str, ...]) -> None:
        places = self._places
        marked, unmarked = places.marked[at], places.unmarked[at]
        if marks != places.marks[at]:
            text = codec.dumps(marks)
            if marked is None or unmarked is None:  # a bare message, of AgentScope before 1.0.12
                await self._copy_to(places.starts[at])
                await self.draft.write(b"[")
                await self._copy_to(places.ends[at])
                await self.draft.write(BETWEEN + text + b"]")
            else:
                await self._copy_to(marked)
                await self.draft.write(text)
                self._copied = unmarked
        await self._copy_to(places.ends[at])

    async def _copy_to(self, end: int) -> None:
        places = self._places
        limit = places.base + len(places.buffer)
        if self._copied < places.base < end:
            await super()._copy_to(places.base)
        if places.base <= self._copied < limit:
            stop = min(end, limit)
            await self.draft.write(places.buffer[self._copied - places.base : stop - places.base])
            self._copied = max(self._copied, stop)
        await super()._copy_to(end)
