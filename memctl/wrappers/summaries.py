"""SQL and Redis memory together with the session states that hold its summaries (``?state=``).

AgentScope's SQL and Redis memories keep no summary; with them, the session state of the agent holds
``{"memory": {"_compressed_summary": "..."}}`` and no messages (``module/_state_module.py``).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import replace

from memctl.errors import Failure
from memctl.model import Edit, Entry, Fault, Memory, MemoryInfo, MemoryKey, Page, Tally, WriteMode
from memctl.selection import Selection
from memctl.store import Capability, Matches, Note, Record, Store
from memctl.streams import closing
from memctl.wrappers.summary_edits import SummaryEdits

DEFAULT_USER = "default_user"


class WithSummaries(Store):
    """Messages from one store, summaries from another."""

    kind = "with-summaries"

    def __init__(self, messages: Store, states: Store) -> None:
        super().__init__(messages.location, create=messages.create)
        self.change = messages.change
        self._messages = messages
        self._states = states
        self.kind = messages.kind  # type: ignore[misc]
        self.mends = messages.mends  # type: ignore[misc]
        self.picks = messages.picks  # type: ignore[misc]

    @property
    def capabilities(self) -> Capability:  # type: ignore[override]
        """Those of the messages' store, and a place for summaries."""
        return self._messages.capabilities | Capability.SUMMARIES

    async def open(self) -> None:
        await self._messages.open()
        try:
            await self._states.open()
        except BaseException:
            await self._messages.close()
            raise
        self.warnings = self._messages.warnings

    async def lock(self, holder: str) -> None:
        await self._messages.lock(holder)
        await self._states.lock(holder)
        self.warnings += self._states.warnings

    async def close(self) -> None:
        try:
            await self._states.close()
        finally:
            await self._messages.close()

    async def identity(self) -> str:
        return await self._messages.identity()

    async def prove(self, where: Selection) -> None:
        await self._messages.prove(where)
        await self._states.prove(where)

    def expect(self, keys: Iterable[MemoryKey]) -> None:
        found = list(keys)
        self._messages.expect(found)
        self._states.expect(found)

    async def memories(self, where: Selection) -> AsyncIterator[MemoryInfo]:
        seen: set[MemoryKey] = set()
        async with closing(self._messages.memories(where)) as infos:
            async for info in infos:
                seen.add(info.key)
                info.summary = bool((await self._state(info.key)).summary)
                yield info
        async with closing(self._without_messages(where, seen)) as memories:
            async for memory in memories:
                yield MemoryInfo(memory.key, summary=True, ttl=memory.ttl, repeated=0)

    async def headers(self, where: Selection) -> AsyncIterator[Memory]:
        seen: set[MemoryKey] = set()
        async with closing(self._messages.headers(where)) as memories:
            async for memory in memories:
                seen.add(memory.key)
                yield replace(memory, summary=(await self._state(memory.key)).summary)
        async with closing(self._without_messages(where, seen)) as memories:
            async for memory in memories:
                yield memory

    async def read(self, where: Selection) -> AsyncIterator[Page]:
        async with closing(self._summarised(self._messages.read(where), where)) as pages:
            async for page in pages:
                yield page

    async def pick(self, where: Selection) -> AsyncIterator[Page]:
        async with closing(self._summarised(self._messages.pick(where), where)) as pages:
            async for page in pages:
                yield page

    def search(self, where: Selection, matches: Matches) -> AsyncIterator[tuple[MemoryKey, Entry]]:
        return self._messages.search(where, matches)

    def examine(self) -> None:
        self._messages.examine()
        self._states.examine()

    async def faults(self, where: Selection) -> AsyncIterator[Fault]:
        for store in (self._messages, self._states):
            async with closing(store.faults(where)) as faults:
                async for fault in faults:
                    yield fault

    async def mend(self, code: str, where: Selection, note: Note) -> int:
        return await self._messages.mend(code, where, note)

    async def unmend(self, records: AsyncIterator[Record]) -> int:
        return await self._messages.unmend(records)

    async def outlines(self, where: Selection) -> AsyncIterator[Page]:
        async with closing(self._summarised(self._messages.outlines(where), where)) as pages:
            async for page in pages:
                yield page

    async def _summarised(
        self, pages: AsyncIterator[Page], where: Selection
    ) -> AsyncIterator[Page]:
        """The pages with their summaries, then the memories that have nothing else."""
        seen: set[MemoryKey] = set()
        memory: Memory | None = None
        async with closing(pages):
            async for page in pages:
                if page.offset == 0 or memory is None:
                    summary = (await self._state(page.memory.key)).summary
                    memory = replace(page.memory, summary=summary)
                    seen.add(memory.key)
                yield replace(page, memory=memory)
        async with closing(self._without_messages(where, seen)) as memories:
            async for found in memories:
                yield Page(found, [])

    async def _without_messages(
        self, where: Selection, seen: set[MemoryKey]
    ) -> AsyncIterator[Memory]:
        """Memories of which there is only a summary."""
        if not where.whole:
            return
        async with closing(self._states.headers(where)) as memories:
            async for memory in memories:
                key = memory.key
                known = {key, MemoryKey(DEFAULT_USER, key.session)} if not key.user else {key}
                if memory.summary and not known & seen:
                    yield memory

    async def keeps_summary(self, key: MemoryKey) -> bool:
        return await self._saved_state(key) is not None

    async def _state(self, key: MemoryKey) -> Memory:
        """The state of a memory, or what one would be that is to be made."""
        return await self._saved_state(key) or Memory(key, summary="")

    async def _saved_state(self, key: MemoryKey) -> Memory | None:
        """The state of a memory, also where the session was saved without a user."""
        keys = [key]
        if key.user == DEFAULT_USER:
            keys.append(MemoryKey("", key.session))
        for name in keys:
            async with closing(self._states.headers(Selection(keys=frozenset({name})))) as memories:
                async for memory in memories:
                    return memory
        return None

    async def write(
        self, pages: AsyncIterator[Page], mode: WriteMode = WriteMode.ADD
    ) -> AsyncIterator[Tally]:
        """Writes the messages, then the summary.

        A run that ends between the two leaves the summary missing: the next run finds and adds it.
        """
        headers: dict[MemoryKey, Memory] = {}

        async def noted() -> AsyncIterator[Page]:
            async for page in pages:
                headers[page.memory.key] = page.memory
                yield page

        async with closing(self._messages.write(noted(), mode)) as tallies:
            async for tally in tallies:
                memory = headers.pop(tally.key)
                failure = None if tally.failure else await self._write_summary(memory)
                yield replace(tally, failure=failure) if failure else tally

    async def _write_summary(self, memory: Memory) -> Failure | None:
        there = await self._state(memory.key)
        if memory.summary is None or memory.summary == there.summary:
            return None
        state = replace(memory, key=there.key)

        async def page() -> AsyncIterator[Page]:
            yield Page(state, [])

        failure = None
        async with closing(self._states.write(page())) as tallies:
            async for tally in tallies:
                failure = tally.failure
        return failure

    async def edit(self, edits: AsyncIterator[Edit]) -> AsyncIterator[Tally]:
        """Changes the summary, then the messages.

        For a moment an agent may see the new summary beside the old messages, and so perhaps a
        message besides what sums it up; the other way round it would lack both.  Where the messages
        then cannot be changed, or their store fails, the summary is put back, unless somebody has
        changed it since.  A run that is killed between the two, or whose tallies are no longer
        asked for, leaves the new summary: what became of the messages is not known then.
        """
        summaries = SummaryEdits(self._states, self._state)
        async with closing(self._messages.edit(summaries.passed_on(edits))) as tallies:
            while True:
                try:
                    tally = await anext(tallies, None)
                except BaseException:
                    self.warnings += await summaries.undo()
                    raise
                for settled in summaries.settled():
                    yield settled
                if tally is None:
                    return
                yield await summaries.done(tally)
