"""``memctl export``: writes memories to a file that appears when it is complete."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

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
from memctl.commands._reports import CopyOutcome, copied_fields
from memctl.commands._run import output_of, readable, wait_for
from memctl.commands._values import rate, recipients
from memctl.errors import Conflict, UsageError
from memctl.location import visible
from memctl.ops.export.destination import STDOUT, Shape
from memctl.ops.export.run import Export, ExportOptions
from memctl.ops.export.run import ExportReport as Exported
from memctl.ops.export.writer import Cover
from memctl.ops.select import selected_text
from memctl.output.terminal import Format, Output
from memctl.reports.copy import ExportReport
from memctl.selection import Selection
from memctl.text.numbers import count

if TYPE_CHECKING:
    from rich.console import RenderableType


@divisible
def export(
    run: Run,
    store: StoreArgument,
    where: Selection,
    output: Annotated[
        str,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Write to this file, folder or object (s3://BUCKET/KEY).",
            show_default="stdout",
        ),
    ] = "-",
    shape: Annotated[
        Shape | None,
        typer.Option(
            "--as",
            metavar="KIND",
            help="Kind of the output",
            show_default="from the file extension",
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Replace an existing file, or the same sessions in a folder."),
    ] = False,
    rotate: Annotated[
        str | None,
        typer.Option(
            "--rotate",
            metavar="KEEP",
            help="Add the time to the file name, and delete older files except KEEP, such as "
            "daily:7,weekly:4 (also last, hourly, monthly, yearly).",
        ),
    ] = None,
    prune: Annotated[
        bool,
        typer.Option(
            "--prune",
            help="In a folder of Markdown or HTML, delete the files of memories that are gone.",
        ),
    ] = False,
    min_memories: Annotated[
        int | None,
        guarding(
            "--min-memories",
            metavar="N",
            min=0,
            help="Write nothing if fewer than N memories are selected.",
            show_default="1 with --rotate",
        ),
    ] = None,
    min_messages: Annotated[
        int | None,
        guarding(
            "--min-messages",
            metavar="N",
            min=0,
            help="Write nothing if fewer than N messages are selected.",
        ),
    ] = None,
    encrypt_to: EncryptOption = None,
    clean: Annotated[
        bool,
        guarding(
            "--clean",
            help="Write only what the format itself has, without memctl's notes; implies --lossy.",
        ),
    ] = False,
    lossy: LossyOption = False,
    all_messages: AllMessagesOption = False,
    title: Annotated[
        str,
        typer.Option(
            "--title",
            metavar="TEXT",
            help="The title of a page of HTML.",
            show_default="the user and session",
        ),
    ] = "",
    unfolded: Annotated[
        bool,
        typer.Option("--open", help="Open calls, results and thinking in a page of HTML."),
    ] = False,
    path: PathOption = None,
    rate_limit: RateOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Write memories to a file: an archive, HTML, Markdown, OpenAI messages and others.

    The file appears under its name only when it is complete. A new file gets mode 0600. An archive
    can hold any memory. A state_dict is for InMemoryMemory.load_state_dict, a folder for
    JSONSession. A page of HTML shows conversations in any browser, without script. A folder of
    Markdown or HTML gets a file for each memory; the next export rewrites those that changed.
    A .jsonl file has a conversation of OpenAI chat messages on each line; with --clean, no other
    keys, as services for fine-tuning want it.
    CSV and Parquet have a row for each message, atif has a trajectory for each memory.
    An object appears when it is complete, too: s3://, gs://, az://. FILE may be an alias of an
    archive.
    A file whose name ends in .age is encrypted, for --encrypt-to or the recipients of the
    configuration.

    Examples:
      memctl export agents.db -o backup.ndjson.zst
      memctl export agents.db -o nightly.ndjson.zst --rotate daily:7,weekly:4
      memctl export agents.db --user ada -o ada.html
    """
    if output == STDOUT and run.output.format is not Format.TABLE and not dry_run:
        raise UsageError(
            "stdout cannot hold both the export and its report", "name a file: -o FILE"
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
        cover=Cover(title, selected_text(where, path), unfolded),
    )
    with readable(run.locate(store), where, path) as location:
        outcome = ExportOutcome(location.label, dry_run=dry_run)
        export_ = Export(
            *(location, output, where, shape, options),
            stream=sys.stdout.buffer,
            observer=run.output,
            report=outcome.export,
        )
        wait_for(export_.prepare())
        run.output.printout = outcome.printout()
        with export_.place() as place:
            wait_for(export_.write(place))
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
        )

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
        return [said, *(f"{visible(path)} {would}removed" for path in self.export.removed)]
