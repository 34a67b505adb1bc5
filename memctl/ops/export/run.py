"""An export: archives and session states are copied, formats for readers written page by page."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    aclosing,
    contextmanager,
    nullcontext,
)
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, TextIO

import msgspec
from msgspec import Struct, structs

from memctl.dialects.live import understood
from memctl.encryption import Encryption, plain_name
from memctl.errors import BadData, Failure, Loss, NotFound, Partial, UsageError
from memctl.holds import LIST
from memctl.location import Location
from memctl.machine.concurrency import in_thread
from memctl.model import Memory, MemoryKey, OnConflict
from memctl.ops.copy.compare import Comparability, fingerprints
from memctl.ops.copy.copy import CopyOptions
from memctl.ops.copy.migration import CopyRun, make_target
from memctl.ops.copy.missing_summaries import missing_summaries
from memctl.ops.export.destination import (
    FOLDERS,
    PLACE,
    STDOUT,
    WRITTEN,
    Shape,
    file_at,
    is_folder,
    locked_output,
    new_output,
    output_of,
    published_folder,
    refuse_as_rotation,
    refuse_keys,
    refuse_options,
    refuse_other_parts,
    refuse_output,
    refuse_taken,
    shape_of,
)
from memctl.ops.export.output import Output, text_of
from memctl.ops.export.pseudonyms import pseudonymous
from memctl.ops.export.writer import Cover, PageWriter
from memctl.ops.holds import HoldSource
from memctl.ops.names import tell_absent
from memctl.ops.observer import Observer, Unobserved, opened
from memctl.ops.report import CopyReport, Lost, Progress, Total, count_all, damage
from memctl.ops.retry import leaving_damaged
from memctl.ops.select import select_with_places
from memctl.registry import file_of, is_object, make_new, make_store
from memctl.selection import Selection
from memctl.store import LeftOut, Store, refuse_facts
from memctl.storekit.files import system_errors
from memctl.storekit.named_file import NamedFile
from memctl.stores.archive.rotation import RotatedFile, Rotation, Series, parse_rotation
from memctl.text.numbers import count
from memctl.wrappers.all_messages import AllMessages
from memctl.wrappers.clean import CleanStore, NoteCleaner
from memctl.wrappers.dry_run import DryRun
from memctl.wrappers.rate_limit import Rate, RateLimit

if TYPE_CHECKING:  # a format is loaded when it is written
    from memctl.ops.export.folder import FolderFormat, MemoryFolder
    from memctl.ops.export.html import Source


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """The options of an export.

    ``force`` replaces an existing output.  ``rotate`` adds the time to the file name, and says
    which older files to keep, such as ``daily:7,weekly:4``.  ``prune`` removes the files of
    memories that no longer exist from a folder of Markdown or HTML.  ``lossy`` drops data that the
    output has no place for.  ``part`` is the path of the memories in written session states.  With
    ``must_exist``, a named user or session without a memory is an error.  ``clean`` leaves out
    memctl's notes, and implies ``lossy``.  ``all_messages`` is as in ``CopyOptions``, of a named
    store.  ``rate`` limits how fast a named store is read; None
    sets no limit.  ``holds`` says which memories of a folder ``force`` does not replace.

    An export of less than ``min_memories`` or ``min_messages`` is refused; a rotation needs a
    memory.  If neither is given, a file of a rotation that is less than half as large as the
    largest older file is an error, too, and older files are kept.

    An output whose name ends in ``.age`` is encrypted for ``encrypt_to``, or for the recipients of
    ``encryption`` if ``encrypt_to`` is empty.  With ``encrypt_to``, the standard output is
    encrypted, too.  ``cover`` is the head of a page for readers.
    """

    force: bool = False
    rotate: str | None = None
    prune: bool = False
    lossy: bool = False
    part: str | None = None
    dry_run: bool = False
    must_exist: bool = False
    min_memories: int | None = None
    min_messages: int | None = None
    rate: Rate | None = None
    clean: bool = False
    all_messages: bool = False
    holds: HoldSource = field(default_factory=HoldSource)
    encrypt_to: tuple[str, ...] = ()
    encryption: Encryption = field(default=Encryption(), repr=False)
    cover: Cover = field(default_factory=Cover)

    @property
    def keys(self) -> Encryption:
        """The keys for an encrypted output."""
        if not self.encrypt_to:
            return self.encryption
        return replace(self.encryption, recipients=self.encrypt_to)


class ExportReport(Struct):
    """The result of an export.

    ``sources`` has the part of each store in a page of several stores.  ``begun`` is True as soon
    as nothing refuses the output.
    """

    file: str = STDOUT
    """The written file or folder."""
    shape: Shape = Shape.ARCHIVE
    bytes: int | None = None
    """The size of the written file; None for a folder and for a dry run."""
    removed: list[str] = msgspec.field(default_factory=list)
    """The removed files; in a dry run, the files that would be removed."""
    copied: CopyReport = msgspec.field(default_factory=CopyReport)
    left_out: dict[MemoryKey, Failure] = msgspec.field(default_factory=dict)
    """The damaged memories that were left out."""
    sources: list[Source] = msgspec.field(default_factory=list)
    begun: bool = False


@dataclass
class Export:
    """An export of a store to a file, a folder or the standard output.

    It is used once, in this order::

        export = Export(source, "backup.ndjson.zst", Selection())
        await export.prepare()
        with export.place() as place:
            await export.write(place)
    """

    source: Location | Store
    output: str
    where: Selection
    shape: Shape | None = None
    """The format; None chooses it by the name of the output."""
    options: ExportOptions = field(default_factory=ExportOptions)
    _: KW_ONLY
    stream: BinaryIO | None = None
    """It gets the contents if the output is ``-``, the standard output."""
    observer: Observer = field(default_factory=Unobserved)
    report: ExportReport = field(default_factory=ExportReport)

    def __post_init__(self) -> None:
        """Read the option ``rotate``.

        Raises:
            UsageError: the option is not valid.
        """
        rotate = self.options.rotate
        self._rotation = None if rotate is None else parse_rotation(rotate)
        self._folder: MemoryFolder | None = None
        self._new_folder: Path | None = None
        """The folder for the files of all parts, which may not exist yet."""
        self._file: NamedFile | None = None
        """The file that the output names; None for a stream and a folder."""
        self._cleaner = NoteCleaner()

    async def prepare(self) -> None:
        """Choose the shape of the output, and refuse an output that cannot be written.

        Raises:
            UsageError: the output does not fit the shape or the options, or exists without
                ``force``; or a library is missing.
            MemctlError: as ``Store.headers``.
        """
        options, shard = self.options, self.where.shard
        output = output_of(self.output, self.shape, shard)
        if output != self.output and PLACE not in self.output and not is_object(output):
            self._new_folder = Path(output).parent
        self.output = output
        shape = self.shape or shape_of(output) or await self._by_count()
        if shape is Shape.JSON:
            shape = Shape.STATE_DICT
        source = self.source
        refuse_output(
            *(output, shape, source if isinstance(source, Location) else source.location),
            in_new_folder=self._new_folder is not None,
        )
        refuse_keys(output, options.keys, asked=bool(options.encrypt_to))
        _writer_of(shape)
        rotates = self._rotation is not None
        refuse_options(
            *(output, shape, self.where),
            rotate=rotates,
            prune=options.prune,
            limited=(options.min_memories, options.min_messages) != (None, None),
        )
        if self._new_folder is not None and shard is not None:
            refuse_other_parts(output, shard)
        if options.clean and shape in (Shape.ARCHIVE, Shape.MARKDOWN, Shape.HTML, Shape.ZIP):
            raise UsageError(
                f"--clean does not fit {shape.value}, which "
                + ("shows no notes" if shape is Shape.HTML else "needs memctl's notes"),
                "leave it out, or use --as openai, state-dict, session-dir, csv, parquet or atif",
            )
        named = shape not in (Shape.HTML, Shape.MARKDOWN) or is_folder(output, shape)
        if options.cover.pseudonyms and named:
            raise UsageError(
                "--pseudonyms needs a page of HTML, or one file of Markdown",
                "name it NAME.html or NAME.md",
            )
        self.report.shape, self.report.file = shape, output
        if is_object(output):
            self.report.file = file_of(output).text
        if shape in FOLDERS and is_folder(output, shape):
            from memctl.ops.export.folder import MemoryFolder

            self._folder = MemoryFolder(Path(output), _folder_format(shape)())
            return
        if not is_folder(output, shape):
            self._file = file_at(output)
        if not rotates:
            await in_thread(partial(refuse_taken, output, shape, shard, force=options.force))
            if options.force and self._file is not None:
                held = await in_thread(partial(options.holds.on_file, self._file))
                if held is not None:
                    raise Loss(
                        f"{self._file.label}: {held.message}", f"nothing was changed; {LIST}"
                    )
        else:
            await in_thread(partial(refuse_as_rotation, output))

    @contextmanager
    def place(self) -> Iterator[Path | Output]:
        """Lock the output, and yield what to write to: the folder, or the new file.

        If the block succeeds, the new file gets its name, or the folder its new files, and with
        ``rotate``, older files are removed.

        Raises:
            UsageError: a folder of Markdown or HTML contains files of other programs.
            Partial: the file is much smaller than an older file of the rotation.
            Busy: another run writes to the output.
            Unavailable: the output cannot be written.
        """
        if self._folder is not None:
            if not self.options.force:
                self._folder.refuse_foreign()
            made = nullcontext() if self.options.dry_run else self._folder.made()
            with made, self._locked():
                yield Path(self.output)
            return
        if self._new_folder is not None and not self.options.dry_run:
            with system_errors(self._new_folder, "write"):
                self._new_folder.mkdir(mode=0o700, exist_ok=True)
        with self._locked():
            if self.report.shape is Shape.SESSION_DIR:
                with self._sessions() as folder:
                    yield folder
                return
            if self._rotation is None or self._file is None:
                with self._new(self._file, replace=self.options.force) as output:
                    yield output
                    self._publish(output)
                return
            series = Series(self._file)
            is_new = self._new_folder is not None and not self._new_folder.is_dir()
            before = [] if is_new else series.files()
            new = series.new(datetime.now())
            self.report.file = new.text
            with self._new(new, replace=False) as output:
                yield output
                self._publish(output)
                output.confirm()
            self._refuse_shrunk(before)
            self._rotate(series, self._rotation, new)

    def _sessions(self) -> AbstractContextManager[Path]:
        target = Path(self.output)
        if self.options.dry_run:
            return nullcontext(target)
        return published_folder(target, self.where.shard)

    def _new(self, file: NamedFile | None, *, replace: bool) -> Output:
        options = self.options
        return new_output(
            *(file, self.output, self.report.shape, self.stream, options.keys),
            replace=replace,
            encrypts=bool(options.encrypt_to),
            dry_run=options.dry_run,
        )

    def _publish(self, output: Output) -> None:
        output.publish()
        self.report.bytes = output.bytes

    async def write(self, place: Path | Output) -> None:
        """Write the selected memories to ``place``, which the method ``place`` yielded.

        Raises:
            MemctlError: as the methods of ``CopyRun``, or as ``Store.read``.
            BadData: all memories are damaged.
            Loss: less is selected than the options ask for; a file is then not replaced.
        """
        if self._folder is not None:
            await self._write_folder(self._folder)
            return
        options, shape = self.options, self.report.shape
        if isinstance(place, Path):
            about = {} if options.part is None else {"path": options.part}
            target = Location("sessions", "the folder", path=place, options=about)
            await self._copy(make_target(target, dry_run=options.dry_run))
        elif shape in WRITTEN:
            await self._write_file(place)
        else:
            target = _target(shape, clean=options.clean)
            made = make_new(replace(target, encryption=options.keys), place)
            await self._copy(DryRun(made) if options.dry_run else made)
        self._refuse_few()

    def _refuse_few(self) -> None:
        """Refuse an export of less than the options ask for."""
        options, copied = self.options, self.report.copied
        least = int(self._rotation is not None and self.where.shard is None)
        for noun, counts, limit, option in (
            ("memory", copied.memories, options.min_memories, "--min-memories"),
            (copied.noun, copied.messages, options.min_messages, "--min-messages"),
        ):
            found = counts.selected - counts.failed
            if found < (least if limit is None else limit):
                raise Loss(
                    f"only {count(found, noun)} to export, less than {option}",
                    f"nothing was replaced; if that is right, use {option} {found}",
                )
            least = 0

    def _refuse_shrunk(self, before: list[RotatedFile]) -> None:
        """Refuse to go on with a rotation whose new file is much smaller than one before."""
        size, options = self.report.bytes, self.options
        if not before or size is None or options.min_memories is not None:
            return
        largest = max(before, key=lambda file: file.bytes)
        if options.min_messages is None and size * 2 < largest.bytes:
            raise Partial(
                f"{self.report.file} has {size:,} bytes, less than half of {largest.file.name} "
                f"({largest.bytes:,} bytes): older files are kept",
                "if that is right, use --min-messages 0",
            )

    def _opened(self) -> AbstractAsyncContextManager[Store]:
        if isinstance(self.source, Store):
            return nullcontext(self.source)
        store = make_store(self.source)
        if self.options.rate is not None:
            store = RateLimit(store, self.options.rate)
        if self.options.all_messages or self.where.live is False:
            store = AllMessages(store)
        return opened(store, self.observer)

    async def _by_count(self) -> Shape:
        """Return STATE_DICT for exactly one memory, else ARCHIVE.

        All parts of a run write archives.
        """
        if self.where.shard is not None:
            return Shape.ARCHIVE
        found = 0
        source = self.source
        opening = nullcontext(source) if isinstance(source, Store) else make_store(source)
        async with opening as store, aclosing(store.headers(self.where)) as memories:
            if store.dialect.facts:
                return Shape.ARCHIVE
            async for _ in memories:
                found += 1
                if found > 1:
                    break
        return Shape.STATE_DICT if found == 1 else Shape.ARCHIVE

    def _locked(self) -> AbstractContextManager[None]:
        if self.options.dry_run:
            return nullcontext()
        return locked_output(*(self.observer, self.output, self.report.shape, self.where.shard))

    def _rotate(self, series: Series, rotation: Rotation, new: NamedFile) -> None:
        report = self.report
        if report.copied.failures:
            return
        if not report.copied.memories.written:
            self.observer.warn("no memory found: older files are kept")
            return
        expired: list[NamedFile] = []
        for file in series.expired(rotation, new):
            if (held := self.options.holds.on_file(file)) is not None:
                self.observer.warn(f"{file.label} is kept: {held.message}")
            else:
                expired.append(file)
        for file in expired if self.options.dry_run else series.remove(expired):
            report.removed.append(file.text)

    async def _refuse_absent(self, store: Store, found: int) -> None:
        about = self.where, found, store, self.observer
        await tell_absent(*about, must_exist=self.options.must_exist)

    async def _copy(self, file: Store) -> None:
        copied, where = self.report.copied, self.where
        async with self._opened() as source:
            if file.kind == "state":
                await _refuse_several(source.headers(where), "state_dict", "use --as archive")
            if file.kind == "opencode-import":
                await _refuse_several(source.headers(where), "opencode", "write a file of each")
            if self.options.clean:
                file = CleanStore(file, self._cleaner)
            file.shard = where.shard
            lossy = self.options.lossy or self.options.clean
            # A session folder with contents was accepted only with --force, or for a shard.
            shared = where.shard is not None and self.report.shape is Shape.SESSION_DIR
            replaces = self.options.force or not shared
            on_conflict = OnConflict.REPLACE if replaces else OnConflict.FAIL
            options = CopyOptions(on_conflict, lossy=lossy, holds=self.options.holds)
            if self._rotation is not None:  # which removes older files
                await source.check_integrity(where, complete=True)
            copying = CopyRun(where, options, observer=self.observer, report=copied)
            await copying.examine(source, file)
            async with opened(file, self.observer):
                await copying.begin(source, file)
                await copying.copy(source, file, "exporting")
            self._note_left_out(source)
            self._note_cleaned()
            if not copied.memories.selected:
                await self._refuse_absent(source, 0)
        for text in copied.warnings:
            self.observer.warn(text)
        if error := copied.damage():
            raise error  # nothing was written

    def _note_left_out(self, store: Store) -> None:
        self.report.left_out |= store.left_out.failures

    def _note_cleaned(self) -> None:
        """Report the notes that ``clean`` left out as a loss."""
        example = self._cleaner.example
        if example is None:
            return
        copied, memories = self.report.copied, self._cleaner.memories
        copied.losses.append(Lost("details", memories, example))
        affected = count(memories, "memory")
        copied.warnings.append(
            "--clean left out what only memctl reads: ids, times, marks or notes of messages "
            f"({affected} affected, such as {example})"
        )

    def _note_large(self, noun: str) -> None:
        """Propose a folder for a page that is slow to open."""
        messages = self.report.copied.messages.written
        if self.report.shape is Shape.HTML and messages > LARGE:
            self.report.copied.warnings.append(
                f"a page of {count(messages, noun)} is slow to open: "
                "--as html -o FOLDER writes a page for each memory"
            )

    async def _warn_of_summaries(self, store: Store) -> None:
        if missing := await missing_summaries(store, self.where):
            self.observer.warn(missing.warning(store))

    def _refuse_damage_alone(self, store: Store) -> None:
        if self.report.left_out and not store.left_out.others:
            raise damage(self.report.left_out, others=False)

    async def _write_file(self, output: Output) -> None:
        """Write the selected memories into one file for readers; a dry run only counts them.

        Raises:
            MemctlError: as ``Store.read``; NotFound if a named user or session has no memory.
            OSError: the operating system refuses the write.
        """
        async with self._opened() as store:
            if self.report.shape is Shape.ATIF:
                refuse_facts(store, "trajectory")
            if plain_name(output.name).lower().endswith(".json"):
                await _refuse_several(store.headers(self.where), "trajectory", "name it NAME.jsonl")
            await store.check_integrity(self.where, complete=self._rotation is not None)
            await self._warn_of_summaries(store)
            total: Total | None = None
            with self.observer.progress("exporting", lambda: total) as progress:
                total = await count_all(store, self.where, progress)
                remarks = await leaving_damaged(lambda: self._write_all(store, output, progress))
            self._note_left_out(store)
            await self._refuse_absent(store, self.report.copied.memories.selected)
        self._note_cleaned()
        self._note_large(store.dialect.noun)
        for text in self.report.copied.warnings:
            self.observer.warn(text)
        for text in remarks:
            self.observer.note(text)
        self._refuse_damage_alone(store)

    async def _write_all(self, store: Store, output: Output, progress: Progress) -> list[str]:
        """Write the memories to new content of the file; return the writer's remarks."""
        with output.create() as new:
            with text_of(new) as file:
                remarks = await self._write_pages(store, file, progress)
            new.commit()
        return remarks

    async def _write_pages(self, store: Store, file: TextIO, progress: Progress) -> list[str]:
        copied, anew = self.report.copied, CopyReport()
        copied.memories, copied.messages = anew.memories, anew.messages
        with _writer_of(self.report.shape)(file, store.dialect) as writer:
            writer.begin(structs.replace(self.options.cover, clean=self.options.clean))
            selected = select_with_places(store, self.where)
            if self.options.cover.pseudonyms:
                selected = pseudonymous(selected)
            if self.options.clean:
                self._cleaner = NoteCleaner()
                # A trajectory has the original of each message beside what it shows.
                every = self.report.shape is Shape.ATIF
                selected = self._cleaner.clean(selected, every=every)
            async with aclosing(selected) as pages:
                async for page in pages:
                    try:
                        writer.add(page)
                    except RecursionError as error:
                        raise BadData(
                            f"{page.memory.key}: a message is nested too deep",
                            "write an archive, or leave the message out by a selection",
                        ) from error
                    _count(copied, int(page.last), len(page.messages))
                    progress.advance(memories=int(page.last), messages=len(page.messages))
            writer.finish()
        copied.memories.written -= writer.left_out
        copied.memories.skipped += writer.left_out
        return writer.remarks()

    async def _write_folder(self, folder: MemoryFolder) -> None:
        """Write the memories whose file is not up to date to the folder.

        With the option ``prune``, remove the files of memories that no longer exist.

        Raises:
            MemctlError: as ``Store.read``; or the operating system refuses the write.
        """
        async with self._opened() as store:
            await store.check_integrity(self.where)
            await self._warn_of_summaries(store)
            found = await self._changed(store, folder)
            self._refuse_few()
            if not self.options.dry_run:
                await self._write_changed(store, self.where.only(found.changed), folder)
            self._note_left_out(store)
            await self._refuse_absent(store, len(found.all))
        if self.options.prune and found.all:
            self._prune(folder, found.all, store.left_out)
        elif self.options.prune:
            self.observer.warn("no memory found: no file is removed")
        if not self.options.dry_run:
            folder.complete_index(store.dialect.noun, self.where.shard)
        self._refuse_damage_alone(store)

    async def _changed(self, store: Store, folder: MemoryFolder) -> _Found:
        from memctl.ops.export.folder import FORM

        copied = self.report.copied
        with self.observer.progress("comparing"):
            prints = await leaving_damaged(
                lambda: fingerprints(store.read(self.where), FORM, Comparability(mark_order=True))
            )
        changed = frozenset(key for key, one in prints.items() if not folder.holds(key, one))
        copied.memories.selected = len(prints)
        copied.memories.unchanged = len(prints) - len(changed)
        copied.messages.selected = sum(one.messages for one in prints.values())
        new = sum(prints[key].messages for key in changed)
        copied.messages.skipped = copied.messages.selected - new
        if self.options.dry_run:
            copied.memories.written, copied.messages.written = len(changed), new
        return _Found({*prints, *store.left_out.failures}, changed)

    async def _write_changed(self, store: Store, where: Selection, folder: MemoryFolder) -> None:
        if not where.keys:
            return
        with self.observer.progress("exporting") as progress:
            async with aclosing(understood(store.read(where), store.dialect)) as pages:
                file = None
                try:
                    async for page in pages:
                        if page.offset == 0:
                            file = folder.file(page.memory, store.dialect)
                        assert file is not None
                        file.add(page)
                        self.report.copied.memories.written += page.last
                        self.report.copied.messages.written += len(page.messages)
                        progress.advance(memories=int(page.last), messages=len(page.messages))
                finally:
                    if file is not None:
                        file.discard()

    def _prune(self, folder: MemoryFolder, there: set[MemoryKey], damaged: LeftOut) -> None:
        for path, stamp in folder.files():
            gone = stamp.key not in there and not damaged.may_have(stamp.key)
            if gone and self.where.has_key(stamp.key):
                if not self.options.dry_run:
                    folder.remove(path)
                self.report.removed.append(str(path))


class _Found(NamedTuple):
    """All selected memories, and those without an up-to-date file."""

    all: set[MemoryKey]
    changed: frozenset[MemoryKey]


def _target(shape: Shape, *, clean: bool) -> Location:
    match shape:
        case Shape.STATE_DICT:
            return Location("state", "the state_dict")
        case Shape.OPENAI:
            return Location("openai", "the file", options={"clean": "yes"} if clean else {})
        case Shape.HERMES:
            return Location("hermes-import", "the file")
        case Shape.OPENCODE:
            return Location("opencode-import", "the file")
        case _:
            return Location("archive", "the archive")


async def _refuse_several(headers: AsyncGenerator[Memory], what: str, instead: str) -> None:
    """Refuse to write several memories into a JSON file, which holds one memory.

    ``what`` names the contents of the file, ``instead`` is a hint how to export all memories.

    Raises:
        UsageError: several memories are selected.
        NotFound: no memory is selected.
    """
    found = []
    async with aclosing(headers) as memories:
        async for memory in memories:
            found.append(memory.key)
            if len(found) > 1:
                raise UsageError(
                    f"a JSON file ({what}) holds one memory; selected are at least {found[0]} "
                    f"and {found[1]}",
                    f"choose one with --user and --session, or {instead} for all",
                )
    if not found:
        raise NotFound("no memory is selected", "list the memories with: memctl inspect STORE")


LARGE = 10_000
"""The number of messages above which a page is slow to open."""


def _folder_format(shape: Shape) -> type[FolderFormat]:
    if shape is Shape.HTML:
        from memctl.ops.export.html import HtmlFolder

        return HtmlFolder
    from memctl.ops.export.markdown import MarkdownFolder

    return MarkdownFolder


def _writer_of(shape: Shape) -> type[PageWriter]:
    """Return the class that writes a format for readers.

    Raises:
        UsageError: a required library is not installed.
    """
    match shape:
        case Shape.HTML:
            from memctl.ops.export.html import HtmlFile

            return HtmlFile
        case Shape.CSV:
            from memctl.ops.export.rows import CsvFile

            return CsvFile
        case Shape.ATIF:
            from memctl.ops.export.trajectories import TrajectoryFile

            return TrajectoryFile
        case Shape.PARQUET:
            return _parquet()
        case _:
            from memctl.ops.export.markdown import MarkdownFile

            return MarkdownFile


def _parquet() -> type[PageWriter]:
    """Return the class that writes Parquet.

    Raises:
        UsageError: a required library is not installed.
    """
    try:
        from memctl.ops.export.parquet import ParquetFile
    except ModuleNotFoundError as error:
        from memctl.machine.installation import install_command  # slow to load

        raise UsageError(
            f"Parquet needs the library {error.name!r}, which is not installed",
            install_command("parquet"),
        ) from error
    return ParquetFile


def _count(copied: CopyReport, memories: int, messages: int) -> None:
    copied.memories.selected += memories
    copied.memories.written += memories
    copied.messages.selected += messages
    copied.messages.written += messages
