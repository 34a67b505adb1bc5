"""An export of the same selection from several stores: one page, or a ZIP file with the data."""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Mapping
from contextlib import aclosing, suppress
from dataclasses import KW_ONLY, dataclass
from pathlib import Path, PurePath
from typing import NamedTuple, TextIO

from msgspec.structs import replace

from memctl.encryption import plain_name
from memctl.errors import MemctlError, UsageError
from memctl.location import Location
from memctl.model import MemoryKey
from memctl.ops.export.destination import Shape, is_folder, refuse_output, shape_of
from memctl.ops.export.output import Output, text_of
from memctl.ops.export.run import Export, ExportOptions
from memctl.ops.names import list_names, refuse_absent
from memctl.ops.observer import opened
from memctl.ops.report import CopyReport
from memctl.ops.select import select_with_places
from memctl.registry import make_store, spec_of
from memctl.selection import Selection
from memctl.storekit.files import temporary_folder

_LONGEST_NAME = 60
"""The number of characters of the name of a store in the name of its file."""


class _Archive(NamedTuple):
    """The selected memories of a store, copied to a file."""

    name: str
    store: Location
    file: Path


@dataclass
class Collection(Export):
    """An export from several stores; it is used as ``Export``.

    Each store is copied into an archive and closed before the next one is opened.  The page is made
    from the archives, so that a ZIP file has the same data for people and for programs.
    """

    _: KW_ONLY
    stores: Mapping[str, Location]
    """All stores, ``source`` first, by the names that the page shows."""

    async def prepare(self) -> None:
        shape = self.shape or shape_of(self.output)
        if shape not in (Shape.HTML, Shape.ZIP) or is_folder(self.output, shape):
            raise UsageError(
                "several stores fit in a page of HTML or in a ZIP file",
                "name it: -o NAME.html or -o NAME.zip; or export each store by itself, and a fleet "
                "with --shards N",
            )
        if self.options.cover.pseudonyms:
            raise UsageError(
                "--pseudonyms needs one store, and a page of HTML", "export each store by itself"
            )
        for place in self.stores.values():
            refuse_output(self.output, shape, place)
        await super().prepare()

    async def write(self, place: Path | Output) -> None:
        assert isinstance(place, Output)
        with temporary_folder() as folder:
            archives = [await self._copied(name, folder) for name in self.stores]
            await self._refuse_nobody()
            self._refuse_few()
            await self._write_output(place, archives, folder)
        self._note_large("message")
        for text in self.report.copied.warnings:
            self.observer.warn(text)

    async def _write_output(self, output: Output, archives: list[_Archive], folder: Path) -> None:
        with output.create() as new:
            with text_of(new) as file:
                if self.report.shape is Shape.HTML:
                    await self._write_page(file, archives)
                else:
                    path = folder / PurePath(plain_name(output.name)).with_suffix(".html").name
                    with _text_file(path) as page:
                        await self._write_page(page, archives)
                    with zipfile.ZipFile(file.buffer, "w", zipfile.ZIP_DEFLATED) as whole:
                        for one in (path, *(archive.file for archive in archives)):
                            whole.write(one, one.name)
            new.commit()

    async def _copied(self, name: str, folder: Path) -> _Archive:
        """Copy the selected memories of a store into an archive, and count them."""
        location = self.stores[name]
        file = folder / f"{len(os.listdir(folder)) + 1}-{_as_file_name(name)}.ndjson"
        given = self.options
        options = ExportOptions(
            part=given.part,
            rate=given.rate,
            all_messages=given.all_messages,
            encryption=given.encryption,
        )
        copying = Export(
            *(location, str(file), self.where, Shape.ARCHIVE, options), observer=self.observer
        )
        await copying.prepare()
        with copying.place() as place:
            await copying.write(place)
        self._count(name, copying.report.copied)
        return _Archive(name, location, file)

    def _count(self, name: str, more: CopyReport) -> None:
        copied = self.report.copied
        for total, part in (copied.memories, more.memories), (copied.messages, more.messages):
            for outcome in part.__struct_fields__:
                setattr(total, outcome, getattr(total, outcome) + getattr(part, outcome))
        copied.failures += [
            (key, replace(failure, message=f"{name}: {failure.message}"))
            for key, failure in more.failures
        ]

    async def _refuse_nobody(self) -> None:
        """Refuse named users and sessions that no store has.

        Raises:
            NotFound: always in such a case; the hint suggests similar names.
        """
        if self.report.copied.memories.selected:
            return
        names: list[MemoryKey] = []
        for place in self.stores.values():
            with suppress(MemctlError):  # a hint must not raise an error
                async with opened(make_store(place), self.observer) as store:
                    names += await list_names(store, Selection())
        refuse_absent(self.where, 0, *self.stores.values(), names=names)

    async def _write_page(self, file: TextIO, archives: list[_Archive]) -> None:
        from memctl.ops.export.html import HtmlCollection, Source

        with HtmlCollection(file) as page:
            page.begin(self.options.cover)
            for name, store, path in archives:
                location = Location("archive", name, path=path)
                async with opened(make_store(location), self.observer) as archive:
                    about = name, spec_of(store.kind).title, archive.dialect
                    inside = path.name if self.report.shape is Shape.ZIP else ""
                    page.begin_source(Source(*about, inside))
                    async with aclosing(select_with_places(archive, Selection())) as pages:
                        async for one in pages:
                            page.add(one)
            page.finish()
            self.report.sources = page.sources


def _text_file(path: Path) -> TextIO:
    return path.open("w", encoding="utf-8", newline="\n")


def _as_file_name(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name)[-_LONGEST_NAME:].strip("-.")
