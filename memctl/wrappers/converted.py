"""Stores that read and write messages in a dialect different from the stored dialect."""

from __future__ import annotations

from collections import ChainMap, deque
from collections.abc import AsyncGenerator, Iterable, Iterator, MutableMapping
from contextlib import aclosing, contextmanager, suppress
from dataclasses import replace
from difflib import SequenceMatcher
from typing import NamedTuple, TypeVar

from msgspec import structs

from memctl.dialects.agentscope1 import AGENTSCOPE1
from memctl.dialects.conversion import Conversion, Converter
from memctl.dialects.conversion_path import conversion
from memctl.dialects.view import Dialect
from memctl.errors import Failure
from memctl.json import jsonio
from memctl.machine.concurrency import ahead
from memctl.model import (
    PAGE_BYTES,
    Change,
    Edit,
    Memory,
    MemoryInfo,
    MemoryKey,
    Page,
    StoredMessage,
    WriteMode,
    WriteResult,
)
from memctl.selection import Selection
from memctl.store import EDIT_ATTEMPTS, DamagedMemory, Features, Store
from memctl.storekit.batching import Group, PageBuilder, Small, page_size
from memctl.storekit.catalog import catalog
from memctl.storekit.edits import Snapshot, apply_edit, is_same_text, whole_edits, without_summary
from memctl.wrappers.timed import timed
from memctl.wrappers.wrapper import StoreWrapper

T = TypeVar("T")


def shown_as(store: Store, dialect: Dialect) -> Store:
    """Return a store that shows the messages of ``store`` in ``dialect``.

    If ``store`` has this dialect, return ``store`` itself.

    Raises:
        UsageError: memctl has no conversion between the two dialects.
    """
    return store if store.dialect.name == dialect.name else ConvertedStore(store, dialect)


def in_one_dialect(source: Store, target: Store) -> tuple[Store, Store]:
    """Return both stores of a copy, each shown in the dialect of the source.

    The source has the times by which the target orders messages (``timed``).  If the dialect of the
    target cannot hold notes, both are shown in the dialect of the target; see also
    ``_conversations``.

    Raises:
        UsageError: as ``shown_as``.
    """
    if source.dialect.name == target.dialect.name:
        return timed(source, target), target
    if (both := _conversations(source, target)) is not None:
        return both
    if target.dialect.holds_notes:
        return source, shown_as(target, source.dialect)
    return shown_as(source, target.dialect), target


def _conversations(left: Store, right: Store) -> tuple[Store, Store] | None:
    """Return both stores, shown in a dialect that leaves out messages that no agent reads.

    The result is None if a copy has all messages: both stores have one dialect, or both dialects
    keep unread messages in notes (``Dialect.notes_unread``).

    Raises:
        UsageError: as ``shown_as``.
    """
    if left.dialect.name == right.dialect.name:
        return None
    shown = [one.dialect for one in (right, left) if one.dialect.notes_unread]
    if len(shown) == 2:
        return None
    # The other store does not change the times that a store of ``shown`` may change.
    dialect = shown[0] if shown and not shown[0].unsettled else AGENTSCOPE1
    return shown_as(left, dialect), shown_as(right, dialect)


def comparable(left: Store, right: Store) -> tuple[Store, Store]:
    """Return both stores, shown in a dialect in which their messages can be compared.

    This is the finer of their dialects, in which messages need no notes.  If the finer dialect has
    fields that a store may change (``Dialect.unsettled``), the coarser dialect is used instead.  A
    store whose dialect cannot hold notes keeps its dialect.

    Raises:
        UsageError: as ``shown_as``.
    """
    return next(comparisons(left, right))


def comparisons(left: Store, right: Store) -> Iterator[tuple[Store, Store]]:
    """Yield pairs of both stores; a pair shows one dialect in which messages can be compared.

    The first pair is that of ``comparable``.  Messages that are equal in any of the dialects are
    equal: one of the stores may have notes that say nothing any more, since a message was changed
    after its conversion, and the dialect of the other store does not show such notes.

    Raises:
        UsageError: as ``shown_as``.
    """
    if left.dialect.name == right.dialect.name:
        yield timed(left, right), timed(right, left)
        return
    if (shown := _conversations(left, right)) is not None:
        yield shown
        return
    if not right.dialect.holds_notes:
        yield shown_as(left, right.dialect), right
        return
    if not left.dialect.holds_notes:
        yield left, shown_as(right, left.dialect)
        return
    right_is_finer = conversion(left.dialect, right.dialect).refines
    finer = right if right_is_finer else left
    both = [(shown_as(left, right.dialect), right), (left, shown_as(right, left.dialect))]
    if right_is_finer == bool(finer.dialect.unsettled):
        both.reverse()
    yield from both


async def losing(
    store: Store, dialect: Dialect, where: Selection
) -> AsyncGenerator[tuple[MemoryKey, int]]:
    """Yield the keys of the selected memories that would lose data in ``dialect`` without notes.

    With a key comes the number of messages of the memory that get another time.

    Raises:
        MemctlError: as ``Store.read``.
    """
    way = conversion(store.dialect, dialect)
    converter = way.converter()
    async with aclosing(store.read(where)) as pages:
        async for page in pages:
            if page.offset == 0:
                converter = way.converter()
                converter.memory(page.memory, [])
            with suppress(ValueError, RecursionError):  # the copy reports it
                converter.add(page.messages)
            if page.last:
                with suppress(ValueError, RecursionError):
                    converter.end()
                if converter.lost:
                    yield page.memory.key, converter.moved


def takes_summaries(store: Store) -> bool:
    """Return whether a store has a place for summaries from which all agents get them."""
    return store.features.summaries and not store.dialect.summary_setting


def is_converted(store: Store) -> bool:
    """Return whether the store is a wrapper that ``shown_as`` returned."""
    return isinstance(store, ConvertedStore)


def inside(store: Store) -> Store:
    """Return the store inside of a store from ``shown_as``; return any other store itself."""
    return store.store if isinstance(store, ConvertedStore) else store


class ConvertedStore(StoreWrapper):
    """A wrapper through which the messages of a store are read and written in another dialect.

    Each read and each write converts messages.  To append to an existing memory, the wrapper reads
    and edits the memory: a new message may become part of a stored message.
    """

    def __init__(self, store: Store, dialect: Dialect) -> None:
        super().__init__(store)
        self._dialect = dialect
        self._reading = conversion(store.dialect, dialect)
        self._writing = conversion(dialect, store.dialect, summaries=takes_summaries(store))
        self._passed: dict[MemoryKey, int] = {}
        """The number of messages passed on to the store inside, for each memory in progress."""
        self.compared = False
        """True for a comparison: then reads fill ``sizes`` and ``reduced``."""
        self.sizes: dict[MemoryKey, int] = {}
        """The numbers of messages that the store inside has, of the memories read."""
        self.reduced: set[MemoryKey] = set()
        """The memories read that are not shown exactly: the shown dialect holds no notes."""
        self._moved = 0
        """The number of messages that ``write`` gave another time."""
        self._refused: dict[MemoryKey, Failure] = {}
        """The memories that ``write`` could not convert, each with its failure."""

    @property
    def store(self) -> Store:
        """The store inside."""
        return self._store

    @property
    def dialect(self) -> Dialect:  # type: ignore[override]
        """The dialect in which this wrapper returns and accepts messages."""
        return self._dialect

    @property
    def features(self) -> Features:  # type: ignore[override]
        """The features of the store inside, with those of notes: marks, repeated ids, summaries."""
        stored, shown = self._store.dialect, self._dialect
        return structs.replace(
            self._store.features,
            summaries=self._store.features.summaries
            or (shown.holds_summary and not stored.holds_summary),
            marks=None if self._dialect.holds_marks else frozenset(),
            mark_order=self._dialect.holds_marks,
            duplicate_ids=True,
            cheap_outline=False,
            cheap_positions=False,
            cheap_windows=False,
            search=False,
        )

    # Reading

    def read(self, where: Selection) -> AsyncGenerator[Page]:
        return where.apply(self._pages(where), self._dialect)

    def outline(self, where: Selection) -> AsyncGenerator[Page]:
        return self._pages(where)

    def read_with_anchors(self, where: Selection) -> AsyncGenerator[Page]:
        return self.read(where)

    def _pages(self, where: Selection) -> AsyncGenerator[Page]:
        whole = replace(where.around, parts=where.parts, keys=where.keys, done=where.done)
        failures = self.left_out.failures
        return self._converted(self._store.read(whole), self._reading, failures, "damaged")

    def list_memories(self, where: Selection) -> AsyncGenerator[MemoryInfo]:
        return catalog(self.read(where), self._dialect)

    # The conversion joins or splits messages: the store inside does not know their places and ids,
    # and a single hit of its search cannot be converted.
    survey = Store.survey
    headers = Store.headers
    window = Store.window
    duplicates = Store.duplicates
    count_marks = Store.count_marks
    search = Store.search
    find_messages = Store.find_messages

    # Writing

    async def write(
        self, pages: AsyncGenerator[Page], mode: WriteMode = WriteMode.ADD
    ) -> AsyncGenerator[WriteResult]:
        self._store.origin = self.origin
        async with aclosing(pages):
            run = _Run(await anext(pages, None), pages, mode)
            while run.next is not None:
                if run.goes_on:
                    results = self._append(await run.tails())
                else:
                    results = self._written(run, mode)
                async with aclosing(results):
                    async for result in results:
                        yield result

    async def _written(self, run: _Run, mode: WriteMode) -> AsyncGenerator[WriteResult]:
        failures = ChainMap(self._refused, self.left_out.failures)
        refused: list[MemoryKey] = []
        converted = ahead(
            self._converted(
                self._counted(run.pages()), self._writing, failures, "refused", refused
            ),
            lambda page: page_size(page)[0],
            PAGE_BYTES,
        )
        writing = self._store.write(converted, mode)
        async with aclosing(converted), aclosing(writing) as results:
            async for result in results:
                written = self._passed.pop(result.key, 0)
                yield result if result.failure else replace(result, written=written)
        if self._moved:
            text = f"{self.label} orders messages by their times: "
            self.warnings[:] = [one for one in self.warnings if not one.startswith(text)]
            self.warnings.append(f"{text}{self._moved:,} got that of the message before")
        for key in refused:
            self._passed.pop(key, None)
            yield WriteResult(key, failure=failures[key])

    async def _counted(self, pages: AsyncGenerator[Page]) -> AsyncGenerator[Page]:
        async with aclosing(pages):
            async for page in pages:
                key = page.memory.key
                self._passed[key] = self._passed.get(key, 0) + len(page.messages)
                yield page

    async def _append(self, tails: list[Small]) -> AsyncGenerator[WriteResult]:
        """Append messages to stored memories: read all memories in one pass, then edit them.

        ``tails`` holds the new messages of each memory.
        """
        grown: dict[MemoryKey, tuple[_Growth, WriteResult]] = {}
        failed: list[WriteResult] = []
        async with aclosing(self._grown(tails)) as growths:
            async for tail, growth in growths:
                if isinstance(growth, Failure):
                    failed.append(WriteResult(tail.memory.key, failure=growth))
                else:
                    result = WriteResult(tail.memory.key, len(tail.entries))
                    grown[tail.memory.key] = growth, result
        for result in failed:
            yield result
        async with aclosing(self._expire([one for one, _ in grown.values()])) as failures:
            async for result in failures:
                del grown[result.key]
                yield result
        changes = [(growth.change, result) for growth, result in grown.values()]
        async with aclosing(self._change(changes)) as results:
            async for result in results:
                settings = grown[result.key][0].settings
                if settings is not None and result.failure is None:
                    result = replace(result, before=settings.text(result.before))
                yield result

    async def _grown(self, tails: list[Small]) -> AsyncGenerator[tuple[Small, _Growth | Failure]]:
        """Yield the new messages of each memory with the edit that appends them, or the failure."""
        missing = {tail.memory.key: tail for tail in tails}
        growing: _Growing | None = None
        async with aclosing(self._store.read(Selection(keys=frozenset(missing)))) as pages:
            async for page in pages:
                if growing is None:
                    tail = missing.pop(page.memory.key)
                    growing = _Growing(
                        tail, self._reading, self._writing, self._store.features.duplicate_ids
                    )
                growing.add(page)
                if page.last:
                    yield growing.tail, growing.end()
                    growing = None
                del page  # a page may be large: release it before the next page is read
        for tail in missing.values():
            yield tail, Failure("changed", f"there are 0 messages, not {tail.offset}")

    async def _expire(self, grown: list[_Growth]) -> AsyncGenerator[WriteResult]:
        asked = self._store.location.options.get("ttl")
        pages = []
        for growth in grown if self._store.features.ttl else ():
            ttl = growth.given.ttl if asked is None else float(asked)
            if ttl is not None:
                memory = Memory(growth.given.key, ttl=ttl)
                pages.append(Page(memory, [], growth.messages))
        if not pages:
            return
        async with aclosing(self._store.write(_each(pages))) as results:
            async for result in results:
                if result.failure is not None:
                    yield result

    async def edit(self, edits: AsyncGenerator[Edit]) -> AsyncGenerator[WriteResult]:
        async with aclosing(whole_edits(edits)) as wholes:
            async for edit in wholes:
                if not self.features.summaries:
                    edit = without_summary(edit)
                yield await self._edit(edit)

    async def _edit(self, edit: Edit) -> WriteResult:
        key = edit.memory.key
        result = WriteResult(key)
        settings, before = _Settings.parse(edit.before)
        for _ in range(EDIT_ATTEMPTS):
            stored = await self._store.snapshot(key)
            try:
                shown = self._converted_snapshot(stored, self._reading)
                changed, result = apply_edit(edit, shown, self._dialect)
                if changed is None:
                    return result
                if settings is not None and changed.memory.extra == settings.new:
                    memory = replace(changed.memory, extra=settings.old)
                    changed = structs.replace(changed, memory=memory)
                change = self._difference(stored, changed, before)
            except _Unconvertible as error:
                return WriteResult(key, failure=Failure("refused", str(error)))
            async with aclosing(self._change([(change, result)])) as results:
                async for done in results:
                    result = done
            if result.failure is None or result.failure.code != "changed":
                return result
        return result

    def _difference(self, stored: Snapshot, shown: Snapshot, before: str) -> Edit:
        """Return the edit of the store inside that turns the memory ``stored`` into ``shown``.

        ``shown`` is in the shown dialect.  ``before`` becomes the ``Edit.before`` of this edit.

        Raises:
            _Unconvertible: a message cannot be converted, or not be compared with the stored text.
        """
        wanted = self._converted_snapshot(shown, self._writing)
        had, summary = stored.memory.summary, wanted.memory.summary
        memory = wanted.memory
        if stored.exists:
            memory = replace(stored.memory, summary=None if summary == had else summary)
        difference = _Difference(repeats=self._store.features.duplicate_ids)
        difference.add(stored.messages, wanted.messages)
        return difference.edit(memory, before)

    async def _change(self, changes: list[tuple[Edit, WriteResult]]) -> AsyncGenerator[WriteResult]:
        """Apply edits to the store inside; yield the result for each, or its failure."""
        needed: dict[MemoryKey, tuple[Edit, WriteResult]] = {}
        for change, result in changes:
            if change.changes or change.before or change.memory.summary is not None:
                needed[result.key] = change, result
            else:
                yield result
        if not needed:
            return
        async with aclosing(self._store.edit(_each([one for one, _ in needed.values()]))) as done:
            async for written in done:
                if written.failure is not None:
                    yield WriteResult(written.key, failure=written.failure)
                else:
                    yield replace(needed[written.key][1], before=written.before)

    def _converted_snapshot(self, snapshot: Snapshot, way: Conversion) -> Snapshot:
        converter = way.converter()
        messages = snapshot.messages
        with _convertible(messages, way):
            memory = converter.memory(snapshot.memory, messages)
            converted = [*converter.add(messages), *converter.end()]
        return Snapshot(_summarized(memory, converter), converted, snapshot.exists)

    async def _converted(
        self,
        pages: AsyncGenerator[Page],
        way: Conversion,
        failures: MutableMapping[MemoryKey, Failure],
        code: str,
        refused: list[MemoryKey] | None = None,
    ) -> AsyncGenerator[Page]:
        """Yield pages of whole memories with the messages converted by ``way``.

        A memory that cannot be converted is skipped.  Its failure with the code ``code`` goes to
        ``failures``, its key to ``refused``.

        Raises:
            DamagedMemory: a memory cannot be converted, and some of its pages were already yielded.
                The next pass skips the memory.
        """
        converter = way.converter()
        builder: PageBuilder | None = None
        skipped = out = False
        async with aclosing(pages):
            async for page in pages:
                key, last = page.memory.key, page.last
                if self.compared:
                    before = self.sizes.get(key, 0) if page.offset else 0
                    self.sizes[key] = before + len(page.messages)
                if builder is None and not skipped:
                    skipped, out = key in failures, False
                messages: list[StoredMessage] = []
                if not skipped:
                    try:
                        if builder is None:
                            converter = way.converter()
                            builder = PageBuilder(converter.memory(page.memory, page.messages))
                        messages = converter.add(page.messages)
                        if last:
                            messages += converter.end()
                            builder.memory = _summarized(builder.memory, converter)
                    except (ValueError, RecursionError) as error:
                        failure = Failure(code, _reason(page.messages, way, error))
                        failures[key] = failure
                        if out:
                            raise DamagedMemory(self.label, key, failure) from error
                        builder, skipped = None, True
                del page  # a page may be large: release it before the next page is read
                if builder is not None:
                    for one in builder.take(messages):
                        out = True
                        yield one
                    if last:
                        if self.compared and converter.lost:
                            self.reduced.add(key)
                        if way is self._writing:
                            self._moved += converter.moved
                        yield builder.page(last=True)
                        builder = None
                elif last:
                    skipped = False
                    if refused is not None:
                        refused.append(key)


def _summarized(memory: Memory, converter: Converter) -> Memory:
    """Return the converted memory, with the summary that the converter found in its messages."""
    return memory if converter.summary is None else replace(memory, summary=converter.summary)


class _Growth(NamedTuple):
    """An edit of the store inside that appends new messages to a stored memory."""

    change: Edit
    given: Memory
    """The memory as passed to ``write``, with its expiry."""
    messages: int
    """The number of messages in the store inside."""
    settings: _Settings | None


class _Growing:
    """The making of a ``_Growth``: a stored memory is converted, extended and converted back.

    The memory is read page by page.  The messages before the first difference are not kept in RAM.
    """

    def __init__(
        self, tail: Small, reading: Conversion, writing: Conversion, repeats: bool
    ) -> None:
        self.tail = tail
        self._ways = reading, writing
        self._converters = reading.converter(), writing.converter()
        self._stored = self._shown = tail.memory
        self._wanted: Memory | None = None
        """The memory as it shall be stored; None before the first message."""
        self._settings: _Settings | None = None
        self._stored_messages = self._shown_messages = 0
        self._difference = _Difference(repeats=repeats)
        self._failure: Failure | None = None

    def add(self, page: Page) -> None:
        """Add the next page of the memory in the store inside."""
        if self._failure is not None:
            return
        try:
            shown = self._read(page)
            self._shown_messages += len(shown)
            if page.last:
                if self._shown_messages != self.tail.offset:
                    text = f"there are {self._shown_messages} messages, not {self.tail.offset}"
                    self._failure = Failure("changed", text)
                    return
                shown += self.tail.entries
            self._difference.add(page.messages, self._written(shown, last=page.last))
        except _Unconvertible as error:
            self._failure = Failure("refused", str(error))

    def _read(self, page: Page) -> list[StoredMessage]:
        converter, messages = self._converters[0], page.messages
        with _convertible(messages, self._ways[0]):
            if page.offset == 0:
                self._stored = page.memory
                self._shown = converter.memory(page.memory, messages)
            shown = converter.add(messages)
            if page.last:
                shown += converter.end()
        self._stored_messages += len(messages)
        return shown

    def _written(self, shown: list[StoredMessage], *, last: bool) -> list[StoredMessage]:
        """Return messages of the shown dialect, converted to the stored dialect.

        ``last`` is True for the last messages of the memory.
        """
        converter = self._converters[1]
        with _convertible(shown, self._ways[1]):
            if self._wanted is None and shown:
                self._wanted = converter.memory(self._grown_memory(), shown)
            wanted = converter.add(shown)
            if last:
                wanted += converter.end()
                if self._wanted is not None:
                    self._wanted = _summarized(self._wanted, converter)
        return wanted

    def _grown_memory(self) -> Memory:
        given, memory = self.tail.memory, self._shown
        if given.summary is not None:
            memory = replace(memory, summary=given.summary)
        self._settings = _Settings.between(self._converters[1].source, memory, given)
        return memory if self._settings is None else replace(memory, extra=self._settings.new)

    def end(self) -> _Growth | Failure:
        """Return the edit after the last page, or a failure if nothing can be appended."""
        if self._failure is not None:
            return self._failure
        assert self._wanted is not None, "there are messages before the new ones"
        summary = self._wanted.summary
        summary = None if summary == self._stored.summary else summary
        try:
            change = self._difference.edit(replace(self._stored, summary=summary))
        except _Unconvertible as error:
            return Failure("refused", str(error))
        return _Growth(change, self.tail.memory, self._stored_messages, self._settings)


class _Settings(NamedTuple):
    """The settings of a memory (``Memory.extra``) before and after messages were appended.

    An undo gets the settings from ``WriteResult.before``, because no message holds them.
    """

    old: str
    new: str

    def text(self, before: str) -> str:
        """Return the text for ``WriteResult.before`` that holds the settings and ``before``.

        ``before`` is the ``WriteResult.before`` of the store inside.
        """
        return _SETTINGS + jsonio.dumps([self.old, self.new, before]).decode()

    @classmethod
    def between(cls, dialect: Dialect, there: Memory, given: Memory) -> _Settings | None:
        """Return the settings before and after a write of ``given`` to the memory ``there``.

        None if the write changes no settings.
        """
        if not given.extra:
            return None
        old, new = (dialect.settings(one.extra, *one.key[:2]) for one in (there, given))
        return None if old == new else cls(there.extra, given.extra)

    @classmethod
    def parse(cls, text: str) -> tuple[_Settings | None, str]:
        """Split a text of ``_Settings.text`` into the settings and the ``before``.

        A text that ``_Settings.text`` has not made is returned unchanged, after None.
        """
        if not text.startswith(_SETTINGS):
            return None, text
        old, new, before = jsonio.loads(text.removeprefix(_SETTINGS).encode())
        return cls(old, new), before


_SETTINGS = "settings "


class _Unconvertible(Exception):
    """The error that a message cannot be converted, or not be compared with the stored message."""


@contextmanager
def _convertible(messages: list[StoredMessage], way: Conversion) -> Iterator[None]:
    """Turn an error in the ``with`` block, which converts ``messages``, into ``_Unconvertible``.

    ``way`` is the conversion, for the text of the error.

    Raises:
        _Unconvertible: a message cannot be converted.
    """
    try:
        yield
    except (ValueError, RecursionError) as error:
        raise _Unconvertible(_reason(messages, way, error)) from error


def _reason(entries: list[StoredMessage], way: Conversion, error: Exception) -> str:
    """Return why ``way`` cannot convert messages: the first such message, and why.

    If each message alone can be converted, ``error`` is the reason.
    """
    for entry in entries:
        converter = way.converter()
        try:
            converter.add([entry])
            converter.end()
        except (ValueError, RecursionError) as its:
            return f"the message {entry.id!r} cannot be converted: {_why(its)}"
    return f"it cannot be converted: {_why(error)}"


def _why(error: Exception) -> str:
    return "nested too deep" if isinstance(error, RecursionError) else str(error)


class _Run:
    """The memories of a ``write``, as alternating runs of new memories and memories to extend."""

    def __init__(self, first: Page | None, rest: AsyncGenerator[Page], mode: WriteMode) -> None:
        self.next = first
        """The first page of the next memory; None at the end."""
        self._rest = rest
        self._mode = mode

    @property
    def goes_on(self) -> bool:
        """Return whether the next memory appends messages to a stored memory."""
        return self.next is not None and self.next.offset > 0 and self._mode is WriteMode.ADD

    async def pages(self) -> AsyncGenerator[Page]:
        """Yield the pages of the next memories; stop before one for which ``goes_on`` is True."""
        begins = True
        while (page := self.next) is not None:
            if begins and self.goes_on:
                return
            begins = page.last
            yield page
            del page
            self.next = await anext(self._rest, None)

    async def tails(self) -> list[Small]:
        """Return the new messages of the next memories that extend stored memories."""
        group: Group[Small] = Group()
        enough = False
        while not enough and self.goes_on:
            assert self.next is not None
            memory, offset = self.next.memory, self.next.offset
            messages: list[StoredMessage] = []
            last = False
            while not last and self.next is not None:
                messages += self.next.messages
                last = self.next.last
                self.next = await anext(self._rest, None)
            size = sum([len(message.message) for message in messages])
            enough = group.add(Small(memory, messages, offset), size, len(messages))
        return group.take()


async def _each(items: list[T]) -> AsyncGenerator[T]:
    for item in items:
        yield item


class _Difference:
    """The changes that turn the old messages of a memory into the new messages.

    Both lists are added in parts, in order.  Their common beginning is not kept in RAM.
    """

    def __init__(self, *, repeats: bool) -> None:
        """``repeats`` is True if several messages of the store may have the same id."""
        self._repeats = repeats
        self._alike = 0
        """The number of messages in the common beginning."""
        self._old: deque[StoredMessage] = deque()
        self._new: deque[StoredMessage] = deque()
        self._begins_alike = True
        self._marked: list[Change] = []
        """The changes of marks of messages in the common beginning."""
        self._after: str | None = None
        """The id of the last message in the common beginning."""

    def add(self, old: Iterable[StoredMessage], new: Iterable[StoredMessage]) -> None:
        """Add the next old messages and the next new messages."""
        self._old += old
        self._new += new
        while self._begins_alike and self._old and self._new:
            if not _is_same(self._old[0], self._new[0]):
                self._begins_alike = False
                return
            one = self._old.popleft()
            self._marked += _marked(one, self._new.popleft())
            self._after = one.id
            self._alike += 1

    def edit(self, memory: Memory, before: str = "") -> Edit:
        """Return the edit of ``memory`` with the changes, after the last message was added.

        ``before`` is as for ``Edit``.  The ids of inserted messages are shared if ids may repeat.

        Raises:
            _Unconvertible: two messages cannot be compared.
        """
        try:
            place = self._alike if self._repeats else None
            rest = list(_changes([*self._old], [*self._new], self._after, place))
        except (ValueError, RecursionError) as error:
            raise _Unconvertible(_why(error)) from error
        shared = frozenset(one.id for one in rest if one.old is None and self._repeats)
        return Edit(memory, self._marked + rest, before=before, shared_ids=shared)


def _changes(
    old: list[StoredMessage], new: list[StoredMessage], after: str | None, place: int | None
) -> Iterator[Change]:
    """Yield the changes that turn the old messages into the new messages, in order.

    The message with the id ``after`` is before both lists.  ``place`` is the number of messages
    before the lists, None if no two messages share an id.
    """
    tail = 0
    while tail < min(len(old), len(new)) and _is_same(old[-1 - tail], new[-1 - tail]):
        tail += 1
    one, other = old[: len(old) - tail], new[: len(new) - tail]
    # Compared by value: a store may write the same message with a different text.
    texts = [
        [(entry.id, jsonio.canonical(entry.message)) for entry in some] for some in (one, other)
    ]
    steps = SequenceMatcher(None, texts[0], texts[1], autojunk=False).get_opcodes()
    for kind, begin, end, begins, ends in steps:
        some, others = one[begin:end], other[begins:ends]
        if kind == "equal":
            for pair in zip(some, others, strict=True):
                yield from _marked(*pair)
            after = some[-1].id
            continue
        for number, entry in enumerate(some, begin):
            yield Change(
                *(entry.id, entry.marks, None, entry.message, after, entry.position),
                was=entry.shape,
                at=None if place is None else place + number,
            )
        for number, entry in enumerate(others, begins):
            to = None if place is None else place + number
            yield Change(entry.id, None, entry.marks, entry.message, after, to=to)
    for place in range(-tail, 0):
        yield from _marked(old[place], new[place])


def _is_same(old: StoredMessage, new: StoredMessage) -> bool:
    return old.id == new.id and is_same_text(old.message, new.message)


def _marked(old: StoredMessage, new: StoredMessage) -> Iterator[Change]:
    """Yield the change of marks of a message that stays, if any."""
    if old.marks != new.marks:
        yield Change(old.id, old.marks, new.marks, was=old.shape)
