"""SQL and Redis memory combined with the session states that hold the summaries (``?state=``).

AgentScope's SQL and Redis memories keep no summary.  Instead, the session state of the agent holds
``{"memory": {"_compressed_summary": "..."}}`` and no messages (``module/_state_module.py``).
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import replace

from msgspec import Struct, field, structs

from memctl.errors import Failure, MemctlError
from memctl.model import Edit, Finding, Memory, MemoryInfo, MemoryKey, Page, WriteMode, WriteResult
from memctl.selection import EVERYTHING, Selection
from memctl.store import Features, Foreseeing, LeftOut, Maintenance, Note, OpenMode, Record, Store
from memctl.storekit.texts import Rewriter, TextResult
from memctl.wrappers.wrapper import StoreWrapper

OF_STATES = "of_states"
"""The key of repair records that marks a repair in the store of session states."""


class SummaryEdits(Struct):
    """Changes summaries in the store of session states, during one ``edit`` or ``write``.

    Edits or pages pass through to the store of messages; the summary of a memory is changed first.
    The old summary is kept until ``done`` gets the result of the messages.
    """

    states: Store
    """The store of the session states, which hold the summaries."""
    find: Callable[[MemoryKey], Awaitable[Memory]]
    """Returns the memory in ``states`` for a key: its key there, and its summary."""
    about_to_commit: Callable[[Iterable[WriteResult]], None]
    """The method of the store of messages and summaries together."""
    _settled: list[WriteResult] = field(default_factory=list)
    _waiting: dict[MemoryKey, tuple[Memory, str]] = field(default_factory=dict)
    """The old session state and the new summary of each memory without a result so far."""
    _before: dict[MemoryKey, str] = field(default_factory=dict)
    """The ``WriteResult.before`` from the store of session states, for each memory."""

    async def passed_on(self, edits: AsyncGenerator[Edit]) -> AsyncGenerator[Edit]:
        """Change the summaries; yield the edits for the store of messages.

        An edit is not yielded if it changes no messages, or its summary cannot be changed.
        ``settled`` returns its result.
        """
        begun = passing = False
        async for edit in edits:
            of_messages, of_state = _parted(edit.before)
            if not begun:
                failure = await self._change(edit, of_state)
                passing = not failure and bool(edit.changes or not edit.last or of_messages)
                if not passing:
                    self._waiting.pop(edit.memory.key, None)
                    result = WriteResult(edit.memory.key, failure=failure)
                    self._settled.append(self._with_before(result))
            begun = not edit.last
            if passing:
                memory = replace(edit.memory, summary=None)
                yield structs.replace(edit, memory=memory, summary=None, before=of_messages)

    def foresee(self, results: Iterable[WriteResult]) -> None:
        """Tell of results of the store of messages; see ``Store.foreseen``."""
        self.about_to_commit(
            replace(one, before=_joined(one.before, self._before.get(one.key, "")))
            for one in results
        )

    async def readable(self, pages: AsyncGenerator[Page]) -> AsyncGenerator[Page]:
        """Change the summaries; yield the pages for the store of messages.

        A memory whose summary cannot be changed is not yielded: ``settled`` returns its result.
        """
        begun = False
        failure: Failure | None = None
        async with aclosing(pages):
            async for page in pages:
                if not begun:
                    failure = await self._change(Edit(page.memory, []), "", always=True)
                    if failure is not None:
                        self._settled.append(WriteResult(page.memory.key, failure=failure))
                begun = not page.last
                if failure is None:
                    yield page

    def settled(self) -> list[WriteResult]:
        """Return the results of memories that were not passed on to the store of messages.

        Each result is returned once.
        """
        settled, self._settled = self._settled, []
        return settled

    async def done(self, result: WriteResult) -> WriteResult:
        """Return the result for a memory, given the result of its messages.

        If the messages failed, the old summary is restored first.  If this fails, the failure in
        the result says so.
        """
        waiting = self._waiting.pop(result.key, None)
        if waiting is None or result.failure is None:
            return self._with_before(result)
        failure = (await self._set(*waiting)).failure
        if failure is None:
            return result
        why = f"{result.failure.message}; its new summary stays: {failure.message}"
        return replace(result, failure=Failure(result.failure.code, why))

    async def undo(self) -> list[str]:
        """Restore the old summaries of all memories for which ``done`` was not called.

        Return a line for each summary that cannot be restored.
        """
        lines = []
        for key, waiting in self._waiting.items():
            try:
                failure = (await self._set(*waiting)).failure
                why = failure.message if failure else ""
            except MemctlError as error:  # the error that ended the run is reported by the caller
                why = error.message
            if why:
                lines.append(f"the new summary of {key} stays, although its messages do: {why}")
        self._waiting.clear()
        return lines

    def _with_before(self, result: WriteResult) -> WriteResult:
        of_state = self._before.pop(result.key, "")
        return replace(result, before=_joined(result.before, of_state))

    async def _change(self, edit: Edit, before: str, *, always: bool = False) -> Failure | None:
        """Change the summary of a memory as the edit says; return the failure, or None on success.

        ``before`` is the ``Edit.before`` for the store of states.  With ``always``, a damaged state
        is a failure even if the summary does not change.
        """
        memory = edit.memory
        if memory.summary is None and edit.summary is None and not (before or always):
            return None
        try:
            found = await self.find(memory.key)
        except DamagedState as error:
            return error.failure
        there = found.summary or ""
        if edit.summary is not None and edit.summary != there:
            return Failure("changed", "the summary differs")
        if memory.summary in (None, there) and not before:
            return None
        state = replace(memory, key=found.key)

        def foresee(results: Iterable[WriteResult]) -> None:
            self.about_to_commit(
                replace(one, key=memory.key, before=_joined("", one.before)) for one in results
            )

        with self.states.foreseen(foresee):
            result = await self._set(state, there, before)
        if result.failure is None:
            now = there if memory.summary is None else memory.summary
            self._waiting[memory.key] = replace(state, summary=there), now
            self._before[memory.key] = result.before
        return result.failure

    async def _set(self, state: Memory, there: str, before: str = "") -> WriteResult:
        """Set the summary of a memory in the store of states, if the present summary is ``there``.

        ``state`` has the new summary; ``before`` is the ``Edit.before``.
        """

        async def one() -> AsyncGenerator[Edit]:
            yield Edit(state, [], summary=there, before=before)

        done = WriteResult(state.key)
        async with aclosing(self.states.edit(one())) as results:
            async for result in results:
                done = result
        return done


def _joined(of_messages: str, of_state: str) -> str:
    if not (of_messages or of_state):
        return ""
    return json.dumps({"messages": of_messages, "state": of_state})


def _parted(before: str) -> tuple[str, str]:
    """Return the two texts of ``_joined``; empty texts for any other text."""
    found = json.loads(before) if before.startswith('{"messages": ') else {}
    return found.get("messages", ""), found.get("state", "")


DEFAULT_USER = "default_user"


class DamagedState(Exception):
    """The error that a session state is damaged: the summary of its memory is unknown."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class SummaryOverlay(StoreWrapper):
    """A wrapper that joins the messages of one store with the summaries in session states.

    A memory with a damaged session state is left out, because the summary is unknown.
    """

    kind = "with-summaries"

    def __init__(self, messages: Store, states: Store) -> None:
        super().__init__(messages)
        self._messages = messages
        self._states = states
        self.left_out = _own(messages.left_out)

    @property
    def features(self) -> Features:  # type: ignore[override]
        """The features of the store of messages, and the ability to hold summaries."""
        messages = self._messages.features
        # An outline also reads the states, for the summaries.
        return structs.replace(
            messages,
            summaries=True,
            summaries_elsewhere=True,
            ambiguous_names=False,
            cheap_outline=False,
            selects_texts=messages.selects_texts and self._states.features.selects_texts,
            repairs=messages.repairs | self._states.features.repairs,
        )

    async def open(self, mode: OpenMode) -> None:
        await super().open(mode)
        self.left_out = _own(self._messages.left_out)
        self._states.shard = self.shard
        try:
            await self._states.open(mode)
        except BaseException:
            await self._messages.close()
            raise

    async def lock(self, owner: str) -> None:
        await super().lock(owner)
        await self._states.lock(owner)
        self.warnings += self._states.warnings

    async def close(self) -> None:
        try:
            await self._states.close()
        finally:
            await self._messages.close()

    def unlock(self) -> None:
        self._states.unlock()
        super().unlock()

    async def check_integrity(self, where: Selection, *, complete: bool = False) -> None:
        await self._messages.check_integrity(where, complete=complete)
        await self._states.check_integrity(where, complete=complete)

    @contextmanager
    def foreseen(self, tell: Foreseeing) -> Iterator[None]:
        with Store.foreseen(self, tell):
            yield

    def about_to_commit(self, results: Iterable[WriteResult]) -> None:
        Store.about_to_commit(self, results)

    def resolve_names(self, keys: Iterable[MemoryKey]) -> None:
        found = list(keys)
        self._messages.resolve_names(found)
        self._states.resolve_names(found)

    survey = Store.survey

    async def list_memories(self, where: Selection) -> AsyncGenerator[MemoryInfo]:
        seen: set[MemoryKey] = set()
        async with aclosing(self._messages.list_memories(where)) as infos:
            async for info in infos:
                seen.add(info.key)
                state = await self._readable_state(info.key)
                if state is not None:
                    info.summary = bool(state.summary)
                    yield info
        async with aclosing(self._without_messages(where, seen)) as memories:
            async for memory in memories:
                yield MemoryInfo(memory.key, summary=True, ttl=memory.ttl, repeated=0)

    async def headers(self, where: Selection) -> AsyncGenerator[Memory]:
        seen: set[MemoryKey] = set()
        async with aclosing(self._messages.headers(where)) as memories:
            async for memory in memories:
                seen.add(memory.key)
                state = await self._readable_state(memory.key)
                if state is not None:
                    yield replace(memory, summary=state.summary)
        async with aclosing(self._without_messages(where, seen)) as memories:
            async for memory in memories:
                yield memory

    async def list_keys(self, where: Selection) -> AsyncGenerator[MemoryKey]:
        seen: set[MemoryKey] = set()
        async with aclosing(self._messages.list_keys(where)) as keys:
            async for key in keys:
                seen.add(key)
                yield key
        async with aclosing(self._without_messages(where, seen)) as memories:
            others = [memory.key async for memory in memories]
        for key in others:
            yield key

    async def window(self, key: MemoryKey, start: int, count: int) -> Page | None:
        page = await self._messages.window(key, start, count)
        if page is not None:
            state = await self._readable_state(key)
            if state is None:
                return None
            return structs.replace(page, memory=replace(page.memory, summary=state.summary))
        where = Selection(keys=frozenset({key}))
        async with aclosing(self._without_messages(where, set())) as memories:
            async for memory in memories:
                return Page(memory, [])
        return None

    count_marks = Store.count_marks  # the states have summaries, which come with the pages

    def read(self, where: Selection) -> AsyncGenerator[Page]:
        return self._summarised(self._messages.read(where), where)

    def read_with_anchors(self, where: Selection) -> AsyncGenerator[Page]:
        return self._summarised(self._messages.read_with_anchors(where), where)

    def skip_damage(self) -> None:
        super().skip_damage()
        self._states.skip_damage()

    def maintenance(self) -> Maintenance:
        return _Maintenance(self._messages, self._states)

    def outline(self, where: Selection) -> AsyncGenerator[Page]:
        return self._summarised(self._messages.outline(where), where)

    async def _summarised(
        self, pages: AsyncGenerator[Page], where: Selection
    ) -> AsyncGenerator[Page]:
        """Yield the pages with summaries, and an empty page for each memory without messages."""
        seen: set[MemoryKey] = set()
        memory: Memory | None = None
        async with aclosing(pages):
            async for page in pages:
                key = page.memory.key
                if key not in seen:
                    seen.add(key)
                    state = await self._readable_state(key)
                    memory = state and replace(page.memory, summary=state.summary)
                if memory is not None:
                    yield structs.replace(page, memory=memory)
        async with aclosing(self._without_messages(where, seen)) as memories:
            async for found in memories:
                yield Page(found, [])

    async def _without_messages(
        self, where: Selection, seen: set[MemoryKey]
    ) -> AsyncGenerator[Memory]:
        """Yield the memories that have a summary but no messages.

        ``seen`` holds the keys of the memories with messages.  If messages are selected, nothing is
        yielded.
        """
        if not where.whole:
            return

        def is_new(key: MemoryKey) -> bool:
            known = {key, MemoryKey(DEFAULT_USER, key.session)} if not key.user else {key}
            return not known & seen

        async with aclosing(self._states.headers(where)) as memories:
            async for memory in memories:
                if memory.summary and is_new(memory.key):
                    self.left_out.others = True
                    yield memory
        for key, failure in self._states.left_out.failures.items():
            if where.has_key(key) and is_new(key):
                self.left_out.failures[key] = failure

    async def keeps_summary(self, key: MemoryKey) -> bool:
        try:
            return await self._saved_state(key) is not None
        except DamagedState:
            return False  # an agent cannot read a damaged state

    async def _readable_state(self, key: MemoryKey) -> Memory | None:
        """Return the memory in the store of states, empty if there is none.

        If the state is damaged, add the memory to ``left_out`` and return None.
        """
        try:
            state = await self._state(key)
        except DamagedState as error:
            self.left_out.failures[key] = error.failure
            return None
        self.left_out.others = True
        return state

    async def _state(self, key: MemoryKey) -> Memory:
        """Return the memory in the store of states, empty if there is none.

        Raises:
            DamagedState: as ``_saved_state``.
        """
        return await self._saved_state(key) or Memory(key, summary="")

    async def _saved_state(self, key: MemoryKey) -> Memory | None:
        """Return the memory in the store of states, or None if there is none.

        The session may have been saved without a user.

        Raises:
            DamagedState: the state cannot be read.
        """
        names = [key]
        if key.user == DEFAULT_USER:
            names.append(MemoryKey("", key.session))
        for name in names:
            where = Selection(keys=frozenset({name}))
            async with aclosing(self._states.headers(where)) as memories:
                async for memory in memories:
                    return memory
            if failure := self._states.left_out.failures.get(name):
                raise DamagedState(failure)
        return None

    def write(
        self, pages: AsyncGenerator[Page], mode: WriteMode = WriteMode.ADD
    ) -> AsyncGenerator[WriteResult]:
        """Write the summary of each memory, then its messages.

        If the run is killed between the two, the next run adds the messages.  Nothing is written to
        a memory with a damaged state.
        """
        return self._results(lambda some: self._messages.write(some.readable(pages), mode))

    def edit(self, edits: AsyncGenerator[Edit]) -> AsyncGenerator[WriteResult]:
        """Change the summary of each memory, then its messages.

        For a moment, an agent may see the new summary and also the old messages that the summary
        covers.  In the reverse order, an agent might see neither.

        If the messages cannot be changed, or their store fails, the old summary is restored, unless
        another program has changed the summary since.  If the run is killed, or the caller stops
        asking for results, the new summary stays, whether or not the messages were changed.
        """
        return self._results(lambda some: self._messages.edit(some.passed_on(edits)))

    async def _results(
        self, change: Callable[[SummaryEdits], AsyncGenerator[WriteResult]]
    ) -> AsyncGenerator[WriteResult]:
        """Yield a result for each memory: of the messages and the summary together.

        ``change`` changes the messages, and passes the summaries on; it yields the results of the
        store of messages.
        """
        summaries = SummaryEdits(self._states, self._state, self.about_to_commit)
        changing = change(summaries)
        with self._messages.foreseen(summaries.foresee):
            async with aclosing(changing) as results:
                while True:
                    try:
                        result = await anext(results, None)
                    except BaseException:
                        self.warnings += await summaries.undo()
                        raise
                    for settled in summaries.settled():
                        yield settled
                    if result is None:
                        return
                    yield await summaries.done(result)

    async def names(self, where: Selection) -> AsyncGenerator[MemoryKey]:
        for store in (self._messages, self._states):
            async with aclosing(store.names(where)) as names:
                async for key in names:
                    yield key

    async def erase(self, where: Selection) -> AsyncGenerator[WriteResult]:
        """Erase the memories in both stores, states first; yield one result for each memory."""
        states: dict[MemoryKey, WriteResult] = {}
        for some in [where, *await self._without_user(where)]:
            async with aclosing(self._states.erase(some)) as results:
                states |= {result.key._replace(part=""): result async for result in results}
        async with aclosing(self._messages.erase(where)) as results:
            async for result in results:
                state = states.pop(result.key, None)
                yield replace(result, failure=result.failure or (state.failure if state else None))
        for result in states.values():
            yield replace(result, deleted=0)

    async def rewrite_texts(
        self, rewriter: Rewriter, where: Selection = EVERYTHING, *, writes: bool
    ) -> AsyncGenerator[TextResult]:
        """Rewrite the texts of both stores, messages first."""
        for store in (self._messages, self._states):
            async with aclosing(store.rewrite_texts(rewriter, where, writes=writes)) as results:
                async for result in results:
                    yield result

    async def forget_replaced(self) -> None:
        for store in (self._messages, self._states):
            await store.forget_replaced()

    def refuse_rename(self, what: str) -> None:
        for store in (self._messages, self._states):
            store.refuse_rename(what)

    async def rename(self, moves: Mapping[MemoryKey, MemoryKey]) -> AsyncGenerator[WriteResult]:
        """Rename the memories in both stores, states first; yield one result for each memory."""
        of_states = dict(moves)
        for old, new in moves.items():
            if old.user == DEFAULT_USER:  # the state may have been saved without a user
                nobody = MemoryKey("", old.session)
                of_states[nobody] = MemoryKey("", new.session) if new.user == old.user else new
        failed: dict[MemoryKey, Failure] = {}
        async with aclosing(self._states.rename(of_states)) as results:
            async for result in results:
                if result.failure is not None:
                    failed[result.key] = result.failure
                    yield result
        rest = {old: new for old, new in moves.items() if old not in failed}
        async with aclosing(self._messages.rename(rest)) as results:
            async for result in results:
                yield result

    async def _without_user(self, where: Selection) -> list[Selection]:
        """Return selections of the states that were saved without a user."""
        if DEFAULT_USER not in where.users:
            return []
        of_default = replace(where, users=frozenset({DEFAULT_USER}))
        async with aclosing(self._messages.names(of_default)) as names:
            sessions = frozenset([key.session async for key in names])
        return [Selection(users=frozenset({""}), sessions=sessions)] if sessions else []


class _Maintenance(Maintenance):
    """Checks and repairs the store of messages, and then the store of session states."""

    def __init__(self, messages: Store, states: Store) -> None:
        super().__init__(messages)
        self._states = states

    async def check(self, where: Selection) -> AsyncGenerator[Finding]:
        for store in (self.store, self._states):
            async with aclosing(store.maintenance().check(where)) as findings:
                async for finding in findings:
                    yield finding

    async def repair(self, code: str, where: Selection, note: Note) -> int:
        count = 0
        for store in (self.store, self._states):
            if code in store.features.repairs:
                mark = {OF_STATES: True} if store is self._states else {}
                count += await store.maintenance().repair(code, where, _marking(note, mark))
        return count

    async def revert(self, records: AsyncGenerator[Record]) -> int:
        count = 0
        async with aclosing(records):
            async for record in records:
                of_states = record.pop(OF_STATES, False)
                store = self._states if of_states else self.store
                count += await store.maintenance().revert(_only(record))
        return count


def _marking(note: Note, mark: Record) -> Note:
    """Return a function that calls ``note`` with the members of ``mark`` added."""

    async def noted(record: Record) -> None:
        await note(record | mark)

    return noted


async def _only(record: Record) -> AsyncGenerator[Record]:
    yield record


def _own(left_out: LeftOut) -> LeftOut:
    """Return a ``LeftOut`` with the same damaged memories and its own counts."""
    return LeftOut(left_out.failures, partly=left_out.partly)
