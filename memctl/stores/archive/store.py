"""memctl's archive: memories in one file, plain, gzip or zstd, and encrypted (see ``format``)."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Hashable, Iterator, Mapping
from contextlib import ExitStack, aclosing, contextmanager, suppress
from datetime import datetime
from functools import partial
from threading import Lock
from typing import TypeVar

from msgspec.structs import replace

from memctl.dialects.view import Dialect
from memctl.encryption import EXTENSION, is_encrypted, plain_name, read_recipients
from memctl.errors import MemctlError, Unavailable
from memctl.location import Location
from memctl.machine.concurrency import in_thread
from memctl.machine.temporary import temporary_file
from memctl.model import (
    Edit,
    Embedding,
    Memory,
    MemoryInfo,
    MemoryKey,
    Page,
    StoredMessage,
    WriteMode,
    WriteResult,
)
from memctl.selection import EVERYTHING, Selection
from memctl.store import Features, OpenMode, Store
from memctl.storekit.batching import edit_size, grouped, grouped_async, page_size
from memctl.storekit.catalog import IdSet, catalog
from memctl.storekit.encrypted import Sink, encrypted
from memctl.storekit.fact_texts import FactRewriter
from memctl.storekit.files import NewFile, system_errors
from memctl.storekit.named_file import File
from memctl.storekit.texts import Rewriter, TextResult
from memctl.stores.archive.compression import compressed
from memctl.stores.archive.file import file_of
from memctl.stores.archive.format import ArchiveWriter, Line, entries, outlines
from memctl.stores.archive.read import (
    ArchiveContents,
    MemorySections,
    OpenArchive,
    headers,
    read_pages,
    verify,
)
from memctl.stores.archive.write import (
    ArchiveUpdate,
    EditedArchive,
    MergedArchive,
    NewArchive,
    copy_renamed,
    copy_without,
    rewritten,
)

T = TypeVar("T")

SUFFIXES = (".ndjson", ".ndjson.gz", ".ndjson.zst")
"""The ends of the names of archives, without ``.age``."""


class ArchiveStore(Store):
    """An archive file, which is checked whole before reading, and replaced whole by a write.

    ``write`` adds memories to the archive.  It yields all results at the end, when the new archive
    has replaced the old archive.
    """

    kind = "archive"
    features = Features(
        summaries=True,
        summaries_elsewhere=True,
        ttl=True,
        ttl_counts_down=False,
        waits=True,
        empty=True,
        duplicate_ids=True,
        mark_order=True,
        parts=True,
        commits_at_end=True,
        cheap_outline=True,
        selects_texts=True,
        renames=frozenset({"user", "session", "merge"}),
    )
    created: str | None = None
    """The time to write into the archive, in ISO 8601; None means now."""

    def __init__(
        self,
        location: Location,
        mode: OpenMode = OpenMode.READ,
        new: File | None = None,
    ) -> None:
        """``new`` is a file for a new archive, which no other run writes; see ``make_new``."""
        super().__init__(location, mode)
        self._file = new or file_of(location)
        self._is_new = new is not None
        self._descriptor: int | None = None
        self._opening = Lock()
        self._opened: Hashable | None = None
        """The stamp of the archive that is, or will be, open; None if there is no archive."""
        self._contents = ArchiveContents()

    async def open(self, mode: OpenMode) -> None:
        self.mode = mode
        try:
            await self._load()
            if mode.writes and is_encrypted(self._form()):
                read_recipients(self.location.encryption, self.label)
        except BaseException:
            self._close_file()
            raise

    async def _load(self) -> None:
        """Check the whole archive, and learn its contents."""
        self._opened = await in_thread(self._file.stamp)
        if self._opened is not None or not self.mode.creates:
            archive = await self._open_file()
            with system_errors(self._file.on_disk, "read"):
                self._contents = await in_thread(partial(verify, archive))
                self.dialect = self._contents.dialect
                self.embedding = self._contents.embedding

    async def lock(self, owner: str) -> None:
        if self._is_new:
            return
        await super().lock(owner)
        if await in_thread(self._file.stamp) != self._opened:
            # Another run replaced the archive before this run got the lock.
            self._close_file()
            await self.open(self.mode)

    async def identity(self) -> str:
        return self._file.identity

    async def is_alone(self) -> bool:
        return True

    async def _open_file(self) -> OpenArchive:
        """Return the archive, and open its file if that is not open.

        Raises:
            BadData: the path is not a file.
            MemctlError: the file cannot be opened.
        """
        descriptor = await in_thread(self._open_here, self._file.interrupt)
        return OpenArchive(descriptor, self.label, self.location.encryption)

    def _open_here(self) -> int:
        with self._opening:
            if self._descriptor is None:
                self._descriptor = self._file.open()
                if self._file.staged:
                    self.details.append(self._file.staged)
            return self._descriptor

    async def _archive(self) -> OpenArchive | None:
        """Return the archive; None if there is none yet.

        After a write, the new archive is opened when it is read.  So an object that is not read
        again is not fetched again.
        """
        return None if self._opened is None else await self._open_file()

    def _close_file(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    async def close(self) -> None:
        self.unlock()
        self._close_file()

    def adopt(self, dialect: Dialect, embedding: Embedding | None = None) -> None:
        if not self._contents.memories:
            self.dialect, self.embedding = dialect, embedding

    # Reading

    async def count(self, where: Selection) -> tuple[int, int] | None:
        if not where.whole:
            return None
        found = [number for key, number in self._contents.memories.items() if where.has_key(key)]
        return len(found), sum(found)

    async def list_keys(self, where: Selection) -> AsyncGenerator[MemoryKey]:
        for key in filter(where.has_key, list(self._contents.memories)):
            yield key

    async def list_memories(self, where: Selection) -> AsyncGenerator[MemoryInfo]:
        async with aclosing(catalog(self.read(where), self.dialect, repeated=True)) as infos:
            async for info in infos:
                info.summary = bool(info.summary)
                yield info

    def duplicates(self, where: Selection) -> AsyncGenerator[tuple[Memory, int]]:
        return self._duplicates(where) if where.whole else super().duplicates(where)

    async def _duplicates(self, where: Selection) -> AsyncGenerator[tuple[Memory, int]]:
        ids = IdSet()
        async with aclosing(self.outline(where)) as pages:
            async for page in pages:
                ids.add(entry.id for entry in page.messages)
                if page.last:
                    yield page.memory, ids.duplicates
                    ids = IdSet()

    def headers(self, where: Selection) -> AsyncGenerator[Memory]:
        return self._headers(where) if where.whole else super().headers(where)

    async def _headers(self, where: Selection) -> AsyncGenerator[Memory]:
        if (archive := await self._archive()) is not None:
            found = headers(archive, where)
            while some := await self._next(found):
                for memory in some:
                    yield memory

    def read(self, where: Selection) -> AsyncGenerator[Page]:
        return where.apply(self._pages(where), self.dialect)

    def outline(self, where: Selection) -> AsyncGenerator[Page]:
        return self._pages(where, outlines)

    async def _pages(
        self, where: Selection, read: Callable[[list[Line]], list[StoredMessage]] = entries
    ) -> AsyncGenerator[Page]:
        marks = self._contents.marks
        if where.marks and marks is not None and marks.isdisjoint(where.marks):
            return
        if (archive := await self._archive()) is not None:
            found = grouped(read_pages(archive, where, read), page_size)
            while some := await self._next(found):
                for page in some:
                    yield page

    async def _next(self, found: Iterator[list[T]]) -> list[T]:
        with system_errors(self._file.on_disk, "read"):
            return await in_thread(partial(next, found, []))

    # Writing

    async def write(
        self, pages: AsyncGenerator[Page], mode: WriteMode = WriteMode.ADD
    ) -> AsyncGenerator[WriteResult]:
        archive = await self._archive()
        with await self._new_file() as file:
            with self._sink(self._form(), file) as sink, ExitStack() as stack:
                writer = self._writer(sink)
                incoming = self._incoming(writer, mode, archive, stack)
                async for some in grouped_async(pages, page_size):
                    await in_thread(partial(incoming.add, some))
                if incoming.changes or not incoming.results:
                    await in_thread(incoming.finish)
            if incoming.changes or (not incoming.results and archive is None):
                self.about_to_commit(incoming.results)
                await self._publish(file)
                self._contents = replace(
                    self._contents, memories=incoming.after, marks=None, dialect=self.dialect
                )
        for result in incoming.results:
            yield result

    async def _new_file(self, mode: int | None = None) -> NewFile:
        made: list[NewFile] = []
        try:
            await in_thread(lambda: made.append(self._file.create(mode)))
        except BaseException:  # a cancelled task would leave the new content behind
            for file in made:
                file.discard()
            raise
        return made[0]

    def _form(self) -> str:
        """Return the name or extension that decides on compression and encryption."""
        plain = plain_name(self._file.name)
        if plain.lower().endswith(SUFFIXES):
            return self._secured(plain)
        return self._secured(plain_name(self._contents.extension))

    def _secured(self, form: str) -> str:
        """Return ``form`` with ``.age`` if the name or the content of the archive is encrypted.

        So an encrypted archive stays encrypted, whatever its name.
        """
        name, shown = self._file.name, self._contents.extension
        return form + EXTENSION if is_encrypted(name) or is_encrypted(shown) else form

    @contextmanager
    def _sink(self, form: str, file: Sink) -> Iterator[Sink]:
        """Yield a sink that compresses and encrypts to ``file``, as the name ``form`` says."""
        encryption = self.location.encryption
        with encrypted(form, file, encryption) as outer, compressed(form, outer) as sink:
            yield sink

    def _writer(self, sink: Sink) -> ArchiveWriter:
        created = self.created or datetime.now().astimezone().isoformat(timespec="seconds")
        header = self._contents.header
        return ArchiveWriter(
            sink,
            created=created,
            source=self.origin,
            header=header,
            dialect=self.dialect,
            embedding=self.embedding,
            keeps_lines=self.location.options.get("lines") == "kept",
        )

    def _incoming(
        self,
        writer: ArchiveWriter,
        mode: WriteMode,
        archive: OpenArchive | None,
        stack: ExitStack,
    ) -> ArchiveUpdate:
        """Return the update that writes the new archive.

        ``archive`` is the old archive.  If the old archive has memories, the update needs a spool
        file, which ``stack`` closes.
        """
        if archive is None or not self._contents.memories:
            return NewArchive(writer, self._contents, mode)
        with system_errors(self._file.on_disk, "write"):
            folder = self._file.spool_folder
            spool = stack.enter_context(temporary_file(folder))
        old = MemorySections(archive)
        return MergedArchive(writer, self._contents, mode, old, spool, self._file)

    async def edit(self, edits: AsyncGenerator[Edit]) -> AsyncGenerator[WriteResult]:
        """Edit the archive in one pass, if the edits are in the order of the archive's memories.

        An edit of a memory that the pass has already copied begins another pass.  The results of a
        pass are yielded at its end.
        """
        async with aclosing(grouped_async(edits, edit_size)) as groups:
            some: list[Edit] = await anext(groups, [])
            while some:
                results, some = await self._revise(some, groups)
                for result in results:
                    yield result

    async def _revise(
        self, some: list[Edit], more: AsyncGenerator[list[Edit]]
    ) -> tuple[list[WriteResult], list[Edit]]:
        """Edit the archive in one pass; return the results, and the edits that need another pass.

        ``some`` are the first edits; ``more`` yields the edits that follow.
        """
        left: list[Edit] = []
        archive = await self._archive()
        with await self._new_file() as file:
            with self._sink(self._form(), file) as sink, ExitStack() as stack:
                old = None if archive is None else MemorySections(archive)
                revision = EditedArchive(self._writer(sink), self._contents, old, self._file)
                stack.callback(revision.close)
                while some and not left:
                    left = await in_thread(partial(revision.add, some))
                    some = [] if left else await anext(more, [])
                if revision.changed:
                    await in_thread(revision.finish)
            if revision.changed:
                self.about_to_commit(revision.results)
                await self._publish(file)
                self._contents = replace(
                    self._contents, memories=revision.after, marks=None, dialect=self.dialect
                )
        return revision.results, left

    async def erase(self, where: Selection) -> AsyncGenerator[WriteResult]:
        """Replace the archive by a copy that lacks the selected memories."""
        gone = {key: n for key, n in self._contents.memories.items() if where.has_key(key)}
        archive = await self._archive()
        if archive is None or not gone:
            return
        old = MemorySections(archive)
        await self._copy(lambda writer: copy_without(writer, old, gone.keys()), 0o600)
        left = {key: n for key, n in self._contents.memories.items() if key not in gone}
        self._contents = replace(self._contents, memories=left)
        for key, messages in gone.items():
            yield WriteResult(key, deleted=messages)

    async def rewrite_texts(
        self, rewriter: Rewriter, where: Selection = EVERYTHING, *, writes: bool
    ) -> AsyncGenerator[TextResult]:
        """Replace the archive by a copy with other texts; every other byte stays."""
        archive = await self._archive()
        if archive is None:
            return
        rewriter = FactRewriter(rewriter) if self.dialect.facts else rewriter
        found = await in_thread(
            lambda: list(rewritten(None, MemorySections(archive), rewriter, where))
        )
        if writes and any(one.hits for one in found):
            old = MemorySections(archive)
            found = await self._copy(lambda writer: list(rewritten(writer, old, rewriter, where)))
        for result in found:
            yield result

    async def rename(self, moves: Mapping[MemoryKey, MemoryKey]) -> AsyncGenerator[WriteResult]:
        """Replace the archive by a copy with other names; all results come at the end."""
        archive = await self._archive()
        if archive is not None:
            old, dialect = MemorySections(archive), self.dialect
            made = await self._copy(lambda writer: copy_renamed(writer, old, moves, dialect))
            self._contents = replace(self._contents, memories=made)
        for key in moves:
            yield WriteResult(key)

    async def _copy(self, copy: Callable[[ArchiveWriter], T], mode: int | None = None) -> T:
        """Replace the archive by a copy that has its time and its form; return what ``copy`` does.

        ``mode`` are the permissions of the new file; None keeps those of the old one.
        """
        self.created = self._contents.header.get("created")
        form = self._secured(plain_name(self._contents.extension))
        with await self._new_file(mode) as file:
            with self._sink(form, file) as sink:
                found = await in_thread(partial(copy, self._writer(sink)))
            await self._publish(file)
        return found

    async def _publish(self, file: NewFile) -> None:
        """Replace the old archive by the new archive in ``file``.

        Raises:
            Unavailable: another program has changed the old archive meanwhile.
        """
        try:
            await in_thread(partial(self._replace, file))
        except BaseException:
            self._close_file()
            with suppress(MemctlError):  # whoever looks again must see what is there
                await self._load()
            raise

    def _replace(self, file: NewFile) -> None:
        if self._file.stamp() != self._opened:
            raise Unavailable(
                f"another program changed {self.label} meanwhile", "run the same command again"
            )
        file.commit()
        self._close_file()
        self._opened = self._file.stamp()
