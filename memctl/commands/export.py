"""``memctl export``: writes memories to a file that appears when it is complete."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import UNSET, UnsetType

from memctl import api
from memctl.commands._context import Run
from memctl.commands._journal import hold_source
from memctl.commands._options import (
    AllMessagesOption,
    DryRunOption,
    EncryptOption,
    LossyOption,
    PathOption,
    RateOption,
    StoreArgument,
    divisible,
    guarding,
)
from memctl.commands._parameters import argument, option
from memctl.commands._reports import CopyOutcome, copied_fields
from memctl.commands._run import files_of, output_of, readable, wait_for
from memctl.commands._values import rate, recipients
from memctl.errors import Conflict, UsageError
from memctl.location import Location, redact_value, visible
from memctl.ops.export.destination import STDOUT, Shape, shape_of
from memctl.ops.export.run import ExportOptions
from memctl.ops.export.run import ExportReport as Exported
from memctl.ops.export.writer import Cover
from memctl.ops.select import selected_text
from memctl.output.terminal import Format, Output
from memctl.reports.copy import CollectedStore, ExportReport
from memctl.selection import Selection
from memctl.text.numbers import count

if TYPE_CHECKING:
    from rich.console import RenderableType


@divisible
def export(
    run: Run,
    store: StoreArgument,
    where: Selection,
    more: Annotated[
        list[str] | None, argument("STORE", "More stores, for a page or a ZIP file of all.")
    ] = None,
    output: Annotated[
        str,
        option(
            "-o --output FILE",
            "Write to this file, folder or object (s3://BUCKET/KEY).",
            show_default="stdout",
        ),
    ] = "-",
    shape: Annotated[
        Shape | None,
        option("--as KIND", "Kind of the output", show_default="from the file extension"),
    ] = None,
    force: Annotated[
        bool, option("--force", "Replace an existing file, or the same sessions in a folder.")
    ] = False,
    rotate: Annotated[
        str | None,
        option(
            "--rotate KEEP",
            "Add the time to the file name, and delete older files except KEEP, such as "
            "daily:7,weekly:4 (also last, hourly, monthly, yearly).",
        ),
    ] = None,
    prune: Annotated[
        bool,
        option(
            "--prune",
            "In a folder of Markdown or HTML, delete the files of memories that are gone.",
        ),
    ] = False,
    min_memories: Annotated[
        int | None,
        guarding(
            "--min-memories N",
            "Write nothing if fewer than N memories are selected.",
            min=0,
            show_default="1 with --rotate",
        ),
    ] = None,
    min_messages: Annotated[
        int | None,
        guarding("--min-messages N", "Write nothing if fewer than N messages are selected.", min=0),
    ] = None,
    encrypt_to: EncryptOption = None,
    clean: Annotated[
        bool,
        guarding(
            "--clean",
            "Write only what the format itself has, without memctl's notes; implies --lossy.",
        ),
    ] = False,
    lossy: LossyOption = False,
    all_messages: AllMessagesOption = False,
    title: Annotated[
        str,
        option("--title TEXT", "The title of a page of HTML.", show_default="the user and session"),
    ] = "",
    unfolded: Annotated[
        bool, option("--open", "Open calls, results and thinking in a page of HTML.")
    ] = False,
    pseudonyms: Annotated[
        bool,
        option(
            "--pseudonyms",
            "In a page, show numbers instead of users and sessions, and roles for speakers.",
        ),
    ] = False,
    path: PathOption = None,
    rate_limit: RateOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Write memories to a file: an archive, HTML, Markdown, CSV, OpenAI messages.

    The file appears under its name only when it is complete. A new file gets mode 0600. An archive
    can hold any memory. A state_dict is for InMemoryMemory.load_state_dict, a folder for
    JSONSession. A page of HTML shows conversations in any browser. A folder of Markdown or HTML
    gets a file for each memory; the next export rewrites those that changed. A .jsonl file has a
    conversation of OpenAI chat messages on each line. CSV and Parquet have a row for each message,
    atif has a trajectory for each memory. Several stores fit in a page of HTML, or in a ZIP file
    with the page and an archive of each. FILE may be an object (s3://, gs://, az://) or an alias of
    an archive. A file whose name ends in .age is encrypted, for --encrypt-to or the recipients of
    the configuration.

    Examples:
      memctl export agents.db -o backup.ndjson.zst
      memctl export agents.db -o nightly.ndjson.zst --rotate daily:7,weekly:4
      memctl export prod nightly --user ada -o ada.html
    """
    if output == STDOUT and run.output.format is not Format.TABLE and not dry_run:
        raise UsageError(
            "stdout cannot hold both the export and its report", "name a file: -o FILE"
        )
    if more and output == STDOUT and shape is None:
        raise UsageError(
            f"unexpected {redact_value(more[0])!r}: memctl export takes STORE, "
            "and several only for a page",
            "-o FILE to write a file; -o NAME.html for a page of several stores",
        )
    output = output_of(run, output)
    options = ExportOptions(
        *(force, rotate, prune, lossy, path, dry_run),
        must_exist=True,
        min_memories=min_memories,
        min_messages=min_messages,
        clean=clean,
        all_messages=all_messages,
        rate=rate(rate_limit),
        holds=hold_source(run),
        encrypt_to=recipients(encrypt_to),
        encryption=run.encryption(),
        cover=Cover(title, selected_text(where, path, named=not pseudonyms), unfolded, pseudonyms),
    )
    file = sys.stdout.buffer if output == STDOUT else output
    given: Any = {"output": file, "where": where, "shape": shape, "options": options}
    members = [name for text in (store, *(more or ())) for name in run.members(run.named(text))]
    if len(members) > 1 or (shape or shape_of(output)) is Shape.ZIP:
        stores = _sources(run, members)
        _export(run, partial(api.export, stores, **given), ", ".join(stores), dry_run=dry_run)
        return
    with readable(run.locate(store), where, path) as location:
        _export(run, partial(api.export, location, **given), location.label, dry_run=dry_run)


def _sources(run: Run, names: list[str]) -> dict[str, Location]:
    """Return the stores of a collection, each once; the name of a rotation is all its files.

    A store has the name of its alias, if that was written.

    Raises:
        UsageError: stdin is one of them.
        MemctlError: as ``files_of``.
    """
    aliases = run.configuration().stores
    found = {
        (place.label, str(place.options)): (name if text in aliases else place.label, place)
        for text in dict.fromkeys(names)
        for name, place in files_of(run, text)
    }
    if any(place.kind == "stdio" for _, place in found.values()):
        raise UsageError(
            "stdin fits neither in a page of several stores nor in a ZIP file",
            "name a file or a URL",
        )
    return dict(found.values())


def _export(
    run: Run, work: Callable[..., Coroutine[Any, Any, object]], source: str, *, dry_run: bool
) -> None:
    outcome = ExportOutcome(source, dry_run=dry_run)
    try:
        wait_for(work(observer=run.output, report=outcome.export))
    finally:
        if outcome.export.begun:
            run.output.printout = outcome.printout()
    outcome.end(run.output)


class ExportOutcome(CopyOutcome):
    """The report of ``export``: the memories, the file or folder, and the removed files."""

    def __init__(self, source: str, *, dry_run: bool) -> None:
        self.export = Exported()
        super().__init__("export", source, STDOUT, dry_run=dry_run, copied=self.export.copied)

    def report(self) -> ExportReport:
        """Return the report as it is now."""
        return ExportReport(
            dry_run=self.dry_run,
            source=self.source,
            **copied_fields(self.copied),
            file=self.export.file,
            as_=self.export.shape.value,
            bytes=self.export.bytes,
            removed=self.export.removed,
            stores=self._stores(),
        )

    def _stores(self) -> list[CollectedStore] | UnsetType:
        return [
            CollectedStore(
                store=one.label,
                memories=one.memories,
                messages=one.messages,
                repeated=one.repeated,
                file=one.file or UNSET,
            )
            for one in self.export.sources
        ] or UNSET

    def _table(self) -> RenderableType | None:
        if not (self.dry_run and self.ended):
            return None  # stdout may be the export: a note reports it on stderr
        from rich.text import Text  # only needed to draw

        return Text("\n".join(self._facts("would be ")))

    def end(self, output: Output) -> None:
        """Write the report of a finished export.

        Raises:
            MemctlError: memories were left out, for example because they are damaged.
        """
        self.ended, self.target = True, self.export.file
        if error := self.error():
            if isinstance(error, Conflict):  # of a part, in a folder that has its sessions
                error.hint = "use --force to replace them"
            raise error
        self._tell(output)
        output.finish()

    def _tell(self, output: Output) -> None:
        """Print on stderr what was written and removed; print nothing in a dry run.

        Also print nothing if the export went to stdout.
        """
        if self.export.file != STDOUT and not self.dry_run:
            for line in self._facts(""):
                output.note(line)

    def _facts(self, would: str) -> list[str]:
        memories = self.copied.memories
        said = f"{count(memories.written, 'memory')} {would}written to {visible(self.export.file)}"
        if memories.unchanged:
            said += f", {memories.unchanged:,} unchanged"
        if repeated := sum(one.repeated for one in self.export.sources):
            said += f", {repeated:,} of them equal to others"
        return [said, *(f"{visible(path)} {would}removed" for path in self.export.removed)]
