"""Where the messages of a memory stand in their document, for one that is to be changed."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from memctl.json_stream import Cursor
from memctl.stores.state.batch import Batch
from memctl.stores.state.content import PAIR_END, PROVEN_BEGIN, Content


@dataclass(slots=True)
class Places:
    """Some messages in columns; places count from the beginning of the document.

    A message and its marks stand from ``starts`` to ``ends``, the marks from ``marked`` to
    ``unmarked``; these are None where a message stands without.  ``buffer`` is what the document
    holds from ``base`` on, perhaps these messages.
    """

    ids: list[str] = field(default_factory=list)
    marks: list[tuple[str, ...]] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    marked: list[int | None] = field(default_factory=list)
    unmarked: list[int | None] = field(default_factory=list)
    buffer: bytes = b""
    base: int = 0


class PlacedContent(Content):
    """Reads the array for a second time: the messages themselves stay where they are."""

    def __init__(self, cursor: Cursor) -> None:
        super().__init__(cursor, keep=False)

    async def places(self, *, plain: bool) -> AsyncGenerator[Places]:
        """The messages in order; ``plain`` is what the first reading found.

        Raises:
            BadData: see ``batches``.
        """
        if not await self._begin():
            return
        while not self._closed:
            places = Places()
            if plain:
                self._locate(places)
            if not places.ids:
                if plain and await self._grow():
                    continue
                await self._one(places)
            yield places

    def _locate(self, places: Places) -> None:
        """Adds what the buffer holds, every guess being known to be right."""
        cursor = self._cursor
        buffer, at = cursor.buffer, cursor.at
        base = cursor.position - at
        places.buffer, places.base = buffer, base
        while begin := PROVEN_BEGIN.match(buffer, at):
            found = PAIR_END.search(buffer, begin.end())
            if found is None:
                break
            marks = self._marks.get(found[1])
            if marks is None:
                marks = self._learn(found[1])
            places.ids.append(begin[1].decode())
            places.marks.append(marks)
            places.starts.append(base + at)
            places.ends.append(base + found.start(2))
            places.marked.append(base + found.start(1))
            places.unmarked.append(base + found.end(1))
            at = found.end()
            if found[2] == b"]":
                at = found.end(2)
                self._closed = True
                break
        cursor.at = at

    async def _one(self, places: Places) -> None:
        """Adds the next message, whatever its form and size."""
        cursor = self._cursor
        batch = Batch()
        await cursor.peek()
        places.starts.append(cursor.position)
        await self._item(batch)
        places.ends.append(cursor.position)
        await self._pass()
        places.ids = batch.ids
        places.marks = batch.marks
        marked, unmarked = self._place or (None, None)
        places.marked.append(marked)
        places.unmarked.append(unmarked)
