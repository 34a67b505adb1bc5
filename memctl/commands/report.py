"""``memctl report``: writes a page with charts of what is in a store."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import IO, Annotated

from msgspec import UNSET
from msgspec.structs import replace
from msgspec.structs import replace as replaced

from memctl import api
from memctl.commands._context import Run
from memctl.commands._options import (
    PathOption,
    StoreArgument,
    TokenizerOption,
    opens_stores,
)
from memctl.commands._parameters import option
from memctl.commands._reports import run_row
from memctl.commands._run import readable, token_counter, wait_for
from memctl.errors import Failure, UsageError
from memctl.location import Location, is_one_file, visible
from memctl.ops.export.destination import STDOUT, is_device
from memctl.ops.history import list_runs
from memctl.ops.last_report import changes_since, read_last_report
from memctl.ops.report import damage
from memctl.ops.select import selected_text
from memctl.ops.statistics import (
    StatisticsOptions,
    pseudonymous,
    report_of,
)
from memctl.output import report_page
from memctl.output.printout import Printout
from memctl.output.report_page import About
from memctl.output.terminal import Format
from memctl.reports.history import RunRow
from memctl.selection import Selection
from memctl.storekit.files import AtomicFile
from memctl.text.numbers import count
from memctl.version import __version__


class Form(StrEnum):
    """The form of a report for people."""

    HTML = "html"
    TEXT = "text"


RUNS = 10
"""The number of runs in a report."""
TOP = 20
"""The largest number of rows of each list, if no option says another."""


@opens_stores
def report(
    run: Run,
    store: StoreArgument,
    where: Selection,
    output: Annotated[
        str, option("-o --output FILE", "Write to this file.", show_default="stdout")
    ] = STDOUT,
    force: Annotated[bool, option("--force", "Replace an existing file.")] = False,
    title: Annotated[
        str | None,
        option("--title TEXT", "Heading of the page.", show_default="the name of the store"),
    ] = None,
    top: Annotated[int, option("--top N", "Show at most N rows of each list.", min=1)] = TOP,
    context_limit: Annotated[
        int | None,
        option(
            "--context-limit N", "Count the memories whose agents send more than N tokens.", min=1
        ),
    ] = None,
    summarizer: TokenizerOption = "extractive",
    findings: Annotated[
        bool, option("--findings/--no-findings", "Leave out the findings of memctl doctor.")
    ] = True,
    pseudonyms: Annotated[
        bool, option("--pseudonyms", "Show numbers instead of the store, users, sessions and ids.")
    ] = False,
    form: Annotated[
        Form | None, option("--as KIND", "Kind of the output", show_default="html")
    ] = None,
    since_last: Annotated[
        Path | None,
        option(
            "--since-last FILE",
            "Say what changed since this report: a page, or what --json printed.",
        ),
    ] = None,
    path: PathOption = None,
) -> None:
    """Write a page with charts of what is in a store.

    The page is one file, which works offline. It has names and numbers, but no text of messages. A
    new file gets mode 0600. With --json, the numbers are printed, and a page is only written to a
    named file. As text, for a mail, the report says what the page says without charts and tables. A
    selection of messages leaves out the findings, which are about whole memories.

    Examples:
      memctl report agents.db -o report.html
      memctl report prod -o prod.html --force --since-last prod.html
      memctl report agents.db --json | jq '.days[-1]'
    """
    told = run.output
    if told.format in (Format.NDJSON, Format.CSV):
        raise UsageError(
            f"a report cannot be written as {told.format.upper()}",
            "use --json; memctl inspect STORE --by day prints rows",
        )
    prints = output == STDOUT and told.format is Format.TABLE
    as_text = (form or (Form.TEXT if output.lower().endswith(".txt") else None)) is Form.TEXT
    if prints and sys.stdout.isatty() and not as_text:
        raise UsageError("a page cannot be shown in a terminal", "name a file: -o report.html")
    counter = token_counter(run, summarizer)
    last = None if since_last is None else read_last_report(since_last)
    if since_last is not None and last is None:
        told.note(f"there is no last report: {visible(str(since_last))} does not exist")
    price = run.configuration().summarizer(summarizer).settings.options.get("input_price")
    place = run.locate(store)
    with _file(output, place, force=force) as file:
        with readable(place, where, path) as location:
            wanted = StatisticsOptions(top, context_limit, findings, counter.count)
            found = wait_for(
                api.statistics(location, where, options=wanted, must_exist=True, observer=told)
            )
        piped = place.kind == "stdio"
        label = found.what if pseudonyms else "stdin" if piped else place.label
        runs = [] if piped else _runs(run, place)
        if pseudonyms:
            found = pseudonymous(found)
            runs = [replaced(row, store=label) for row in runs]
            told.warnings.clear()  # they were printed, and may have names
        short = label if pseudonyms or piped else place.path.name or label
        about = About(
            *(title or short, label, found.what, datetime.now().astimezone()),
            counted="estimated" if counter.name == "estimate" else f"by {counter.name}",
            version=__version__,
            words=("STORE",) if pseudonyms else _words(store, place, where, path),
            again=_again(
                *(where, path, title, top, context_limit, summarizer),
                findings=findings,
                pseudonyms=pseudonyms,
            ),
            selection=selected_text(where, path, named=not pseudonyms),
            noun=found.noun,
            context_limit=context_limit,
            pseudonyms=pseudonyms,
            no_findings=_no_findings(where, wanted=findings),
            whole=where.whole,
        )
        report = report_of(
            *(found, label, runs),
            title=about.title,
            time=about.now,
            selection=about.selection,
            pseudonyms=pseudonyms,
            counted_by=counter.name,
            context_limit=context_limit,
            price=price,
        )
        if last is not None:
            report.since = changes_since(last, report)
        if file is not None or prints:
            page = io.StringIO()
            about = replace(
                about,
                data=report.data(),
                since=report.since or None,
                cost=None if report.tokens is UNSET else report.tokens.cost or None,
            )
            report_page.write(page, about, found, [run.row() for run in runs], as_text=as_text)
            (file or sys.stdout.buffer).write(page.getvalue().encode())
        if isinstance(file, AtomicFile):
            file.commit()
            said = count(found.messages, found.noun)
            told.note(f"{said} reported in {visible(output)}")
    told.printout = Printout(lambda: report, lambda: None)
    if damaged := found.damaged:
        failures = {key: Failure("damaged", why) for key, why in damaged.items()}
        fate = "left out" if found.findings is None else "not read as a whole"
        raise damage(failures, others=bool(found.memories), fate=fate)
    told.emit()


@contextmanager
def _file(output: str, source: Location, *, force: bool) -> Iterator[AtomicFile | IO[bytes] | None]:
    """Yield the file to write to; None for stdout.

    Raises:
        UsageError: the file exists without ``force``, is the store, or cannot be a file.
        Unavailable: the operating system refuses the file.
    """
    path = Path(output)
    if output == STDOUT:
        yield None
    elif is_device(path):
        with path.open("wb") as device:
            yield device
    else:
        if source.path != Path() and is_one_file(source.path, path):
            raise UsageError(f"{output!r} is the store", "name another file")
        if path.is_dir():
            raise UsageError(f"{output!r} is a folder", "name a file: -o report.html")
        if not path.parent.is_dir():
            raise UsageError(f"the folder of {output!r} does not exist", "create it first")
        if path.exists() and not force:
            raise UsageError(f"{output!r} exists", "use --force to replace it")
        with AtomicFile(path) as file:
            yield file


def _runs(run: Run, location: Location) -> list[RunRow]:
    """Return rows of the last runs on a store."""
    found = list_runs(location, RUNS, run.address)
    return [run_row(one, found.sizes[one.id]) for one in found.runs[:RUNS]]


def _words(store: str, place: Location, where: Selection, path: str | None) -> tuple[str, ...]:
    """Return the words of a command that name the store and the selected memories."""
    if place.kind == "stdio":
        store = "STORE"
    elif "://" in store:
        store = place.label  # without a password
    named = [("user", name) for name in sorted(where.users)]
    named += [("session", name) for name in sorted(where.sessions)]
    if path is not None:
        named.append(("path", path))
    return (store, *(f"--{option}={value}" for option, value in named))


def _again(
    where: Selection,
    path: str | None,
    title: str | None,
    top: int,
    context_limit: int | None,
    summarizer: str,
    *,
    findings: bool,
    pseudonyms: bool,
) -> tuple[str, ...] | None:
    """Return the options of a command that writes such a page, besides those of ``_words``.

    None if messages were selected, or if pseudonyms stand for what was selected.
    """
    if not where.whole or (pseudonyms and (where.named or path is not None)):
        return None
    return (
        *([f"--title={title}"] if title else []),
        *([f"--top={top}"] if top != TOP else []),
        *([f"--context-limit={context_limit}"] if context_limit is not None else []),
        *([f"--summarizer={summarizer}"] if summarizer != "extractive" else []),
        *([] if findings else ["--no-findings"]),
        *(["--pseudonyms"] if pseudonyms else []),
    )


def _no_findings(where: Selection, *, wanted: bool) -> str:
    """Return why a report has no findings; empty if it has."""
    if not wanted:
        return "--no-findings"
    return "" if where.whole else "they are about whole memories, and messages were selected"
