"""The search index of a store: opened, and updated if the store has changed."""

from __future__ import annotations

import asyncio
import os
import time
from array import array
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from datetime import tzinfo
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct, field

from memctl.embedder import Embedder, EmbeddingReport, embed_all, failed
from memctl.errors import Busy, Unavailable
from memctl.index import folder
from memctl.index.database import Block, DamagedIndex, IndexFile, remove_file
from memctl.index.vectors import pack, require_numpy, texts_to_embed
from memctl.inference.errors import bad_reply
from memctl.location import Location
from memctl.machine.time_zones import zone_named
from memctl.ops.observer import Observer
from memctl.ops.report import Progress, SilentProgress
from memctl.registry import make_store
from memctl.selection import Selection
from memctl.store import Store
from memctl.storekit.files import temporary_folder
from memctl.storekit.locks import FileLock, lock_owner
from memctl.storekit.single_file import file_identity, stamp_of
from memctl.wrappers.timeout import limited

_PAUSE = 0.2
"""The seconds between attempts to lock an index that another run writes."""


class Target(Struct, frozen=True):
    """A store to search.

    ``make`` returns the store, and is called only if the index is missing or out of date.
    """

    location: Location
    make: Callable[[], Store]

    @classmethod
    def observed(cls, location: Location, observer: Observer) -> Target:
        """Return the store at a location; its calls end after the timeout of ``observer``."""
        return cls(location, lambda: limited(make_store(location), observer.timeout, observer.note))


class IndexUse(Struct):
    """The use of one or more indexes.

    ``messages`` is the number of indexed messages, ``new`` the number of messages that were added
    for this use.  ``seconds`` is the time to open and update the indexes.
    """

    messages: int = 0
    new: int = 0
    seconds: float = 0.0
    warnings: list[str] = field(default_factory=list)

    def add(self, other: IndexUse) -> None:
        """Add the counts and warnings of another index."""
        self.messages += other.messages
        self.new += other.new
        self.seconds += other.seconds
        self.warnings += other.warnings


class OpenIndex(Struct):
    """An open, up-to-date index of one store.

    ``label`` names the store.  ``noun`` is what the store calls a message.  ``facts`` is True if
    the messages are facts.  ``zone`` is the zone of times without one; None for the local zone.
    """

    location: Location
    file: IndexFile
    label: str
    facts: bool
    noun: str
    zone: tzinfo | None
    use: IndexUse


@asynccontextmanager
async def open_index(
    target: Target,
    progress: Progress | None = None,
    *,
    keep: bool = True,
    where: Selection | None = None,
    checksum: bool = False,
) -> AsyncGenerator[OpenIndex]:
    """Open the index of a store within the block, after an update if the store has changed.

    Without ``keep``, the index is temporary and covers the memories that ``where`` selects.
    ``checksum`` compares the texts of all messages to find changes.  A damaged index is rebuilt.

    Raises:
        MemctlError: as ``Store.read``; or the index cannot be written.
    """
    began = time.monotonic()
    found = _current(target) if keep and not checksum else None
    if found is None:
        async with _updated(target, progress or SilentProgress(), keep, where, checksum) as found:
            found.use.seconds = time.monotonic() - began
            yield found
        return
    with closing(found.file):
        found.use.seconds = time.monotonic() - began
        yield found


async def has_index(target: Target) -> bool:
    """Return whether the cache folder has an index of a store, which may be out of date.

    Raises:
        MemctlError: as ``Store.open``.
    """
    identity = file_identity(target.location)
    if identity is None:
        async with target.make() as store:
            identity = await store.identity()
    return folder.read_about(folder.place_of(target.location, identity), "format") is not None


def _current(target: Target) -> OpenIndex | None:
    """Return the index of a store in a file, if the file has certainly not changed since.

    None if the file may have changed, the store is not a single file, or the index is missing or
    damaged.
    """
    identity, stamp = file_identity(target.location), stamp_of(target.location)
    if identity is None or stamp is None:
        return None
    path = folder.place_of(target.location, identity)
    try:
        index = IndexFile.open(path)
        if index is not None and index.about("stamp") == stamp:
            return _opened(target.location, index)
    except DamagedIndex:
        return None
    if index is not None:
        index.close()
    return None


def _opened(location: Location, index: IndexFile) -> OpenIndex:
    use, label = IndexUse(messages=index.totals()[1]), index.about("label")
    if damaged := index.about("damaged"):
        use.warnings.append(
            f"{label}: damaged memories are not searched: {damaged}; run memctl doctor"
        )
    facts, noun, zone = bool(index.about("facts")), index.about("noun"), index.about("zone")
    return OpenIndex(location, index, label, facts, noun, zone and zone_named(zone), use)


@asynccontextmanager
async def _updated(
    target: Target,
    progress: Progress,
    keep: bool,
    where: Selection | None,
    checksum: bool,
) -> AsyncGenerator[OpenIndex]:
    from memctl.ops.index_builder import IndexBuilder  # only an update needs it

    if not keep:
        with (
            temporary_folder() as temporary,
            closing(IndexFile.create(temporary / "index")) as index,
        ):
            async with target.make() as store:
                builder = IndexBuilder(store, index, progress)
                await builder.build(_memories(where or Selection()))
                await builder.describe(target.location, None)
                index.finish()
            found = _opened(target.location, index)
            found.use.new = builder.new
            found.use.warnings += store.warnings
            yield found
        return
    parent = folder.make_folder()
    async with target.make() as store:
        stamp = stamp_of(target.location)
        path = folder.place_of(target.location, await store.identity())
        lock = FileLock(path, store.label)
        warnings = await _wait_for(lock)
        try:
            found = await _update(target, store, path, parent, stamp, progress, checksum)
        finally:
            lock.release()
        found.use.warnings += warnings
    with closing(found.file):
        yield found


def _memories(where: Selection) -> Selection:
    return replace(where.around, parts=where.parts, keys=where.keys)


async def _wait_for(lock: FileLock) -> list[str]:
    """Wait until the lock of an index is free, and take the lock; return warnings of the lock.

    Raises:
        Unavailable: the folder of the index cannot be written.
    """
    while True:
        try:
            return await lock.take_in_thread(lock_owner())
        except Busy:
            await asyncio.sleep(_PAUSE)
        except Unavailable as error:
            raise Unavailable(error.message, folder.HINT) from error


async def _update(
    target: Target,
    store: Store,
    path: Path,
    parent: Path,
    stamp: str | None,
    progress: Progress,
    checksum: bool,
) -> OpenIndex:
    from memctl.ops.index_builder import IndexBuilder  # only an update needs it

    notes = []
    index: IndexFile | None = None
    try:
        index = IndexFile.open(path)
        if index is not None:
            builder = IndexBuilder(store, index, progress)
            await builder.update(checksum=checksum)
            await builder.describe(target.location, stamp)
    except DamagedIndex:
        notes.append(f"the index of {store.label} was damaged and has been rebuilt")
        if index is not None:
            index.close()
        index = None
    except BaseException:
        if index is not None:
            index.close()
        raise
    if index is None:
        remove_file(path)
        folder.sweep()
        with temporary_folder(parent) as temporary:
            with closing(IndexFile.create(temporary / path.name)) as new:
                builder = IndexBuilder(store, new, progress)
                await builder.build(Selection())
                await builder.describe(target.location, stamp)
                new.finish()
            os.replace(temporary / path.name, path)
        index = IndexFile.open(path)
        assert index is not None
    found = _opened(target.location, index)
    found.use.new = max(builder.new, 0)
    found.use.warnings += notes + store.warnings
    return found


_EMBEDDED_TOGETHER = 8
"""The largest number of blocks whose texts are in RAM at once."""


async def embed(
    index: IndexFile,
    embedder: Embedder,
    progress: Progress | None = None,
    *,
    size: int | None = None,
) -> EmbeddingReport:
    """Make the vectors that the index lacks; remove vectors of another model or size first.

    Vectors are written to the index as soon as they are made, so that a later failure does not lose
    them.  ``size`` is the number of dimensions of the embedder's vectors, if known.

    Raises:
        Unavailable: the embedder fails, or its vectors differ in size.
        Busy: another run makes vectors of another model.
        UsageError: numpy is not installed.
    """
    require_numpy()
    report = EmbeddingReport(embedder)
    vectors = _Vectors(index, embedder, size)
    while blocks := index.blocks_without_vectors(_EMBEDDED_TOGETHER):
        for some in _rounds(blocks, embedder.batch * embedder.concurrency):
            texts = [text for one in some for text in one.texts]
            found = await embed_all(embedder, texts)
            report.texts += len(texts)
            report.usage = report.usage.plus(found.usage)
            vectors.add(some, found.vectors)
            if progress is not None:
                progress.advance(messages=sum(len(one.block.entries) for one in some))
    return report


class _BlockTexts(NamedTuple):
    """A block of messages, with the texts for its vectors."""

    block: Block
    texts: list[str]


def _rounds(blocks: Iterable[Block], room: int) -> Iterator[list[_BlockTexts]]:
    """Yield groups of blocks with at most ``room`` texts each.

    A block with more than ``room`` texts is a group of its own.
    """
    some: list[_BlockTexts] = []
    size = 0
    for block in blocks:
        one = _BlockTexts(block, texts_to_embed(block.entries))
        if some and size + len(one.texts) > room:
            yield some
            some, size = [], 0
        some.append(one)
        size += len(one.texts)
    if some:
        yield some


class _Vectors:
    """Writes vectors of one model and size into an index."""

    def __init__(self, index: IndexFile, embedder: Embedder, size: int | None) -> None:
        self._index = index
        self._embedder = embedder
        self._size = size
        index.begin()
        other_size = size is not None and index.about("dimensions") != size
        if index.about("model") != embedder.model or other_size:
            self._begin_anew(size)
        index.commit()

    def add(self, blocks: Iterable[_BlockTexts], vectors: Sequence[array[float]]) -> None:
        """Write vectors into the index: one for each text of the blocks, in order.

        Raises:
            Unavailable: the vectors differ in size.
            Busy: another run makes vectors of another model.
        """
        sizes = {len(vector) for vector in vectors}
        if self._size is not None:
            sizes.add(self._size)
        if len(sizes) > 1:
            shown = " and ".join(map(str, sorted(sizes)))
            raise failed(self._embedder, bad_reply(f"its vectors differ in size: {shown}"))
        rest = iter(vectors)
        rows = [(one.block.number, pack(list(islice(rest, len(one.texts))))) for one in blocks]
        index = self._index
        index.begin()
        refuse_other_model(index, self._embedder)
        if self._size is None:
            (self._size,) = sizes
            if index.about("dimensions") != self._size:
                self._begin_anew(self._size)
        index.add_vectors(rows)
        index.commit()

    def _begin_anew(self, size: int | None) -> None:
        self._index.remove_vectors()
        self._index.describe(model=self._embedder.model, dimensions=size)


def has_all_vectors(index: IndexFile, embedder: Embedder, size: int) -> bool:
    """Return whether each block has vectors of the embedder's model, of length ``size``.

    Raises:
        Busy: another run makes vectors of another model.
    """
    refuse_other_model(index, embedder)
    return index.about("dimensions") == size and not index.blocks_without_vectors(1)


def refuse_other_model(index: IndexFile, embedder: Embedder) -> None:
    """Refuse to use an index that another run now fills with the vectors of another model.

    Raises:
        Busy: the index is for vectors of another model now.
    """
    model = index.about("model")
    if model != embedder.model:
        raise Busy(
            f"another run makes vectors of the model {model!r} for {index.about('label')}",
            "an index has the vectors of one model: run this again when the other has ended",
        )


async def update(
    target: Target,
    progress: Progress | None = None,
    embedder: Embedder | None = None,
    *,
    checksum: bool = False,
) -> IndexUse:
    """Update the index of a store in the cache folder.

    ``checksum`` compares the texts of all messages to find changes.  An ``embedder`` makes vectors
    for searches by meaning; with None, no vectors are made.

    Raises:
        MemctlError: as ``Store.read``; or the index cannot be written.
    """
    try:
        return await _update_and_embed(target, progress, embedder, checksum=checksum)
    except DamagedIndex as error:
        remove_file(error.path)
        use = await _update_and_embed(target, progress, embedder, checksum=False)
        use.warnings.insert(0, rebuilt(error))
        return use


async def _update_and_embed(
    target: Target, progress: Progress | None, embedder: Embedder | None, *, checksum: bool
) -> IndexUse:
    async with open_index(target, progress, checksum=checksum) as found:
        if embedder is not None:
            await embed(found.file, embedder, progress)
        return found.use


def rebuilt(error: DamagedIndex) -> str:
    """Return the warning that a damaged index was rebuilt."""
    return f"the index {error.path} was damaged and has been rebuilt"
