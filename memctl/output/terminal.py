"""The streams of a run: the report on stdout, everything else on stderr."""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NoReturn

from msgspec import Struct, field

from memctl.errors import Failure, MemctlError, NotFound
from memctl.location import redact_quoted, redact_text, visible
from memctl.machine.time_zones import naming
from memctl.model import MemoryKey
from memctl.text.numbers import count

if TYPE_CHECKING:  # none of these is needed to show the help
    from rich.console import Console, RenderableType

    from memctl.ops.report import Progress, SummaryProgress, Total
    from memctl.output.printout import Listing, Printout
    from memctl.output.progress import Lines, Live, Meter, Parts
    from memctl.selection import Untimed
    from memctl.store import Store

WIDE = 10_000
"""The width of tables in a pipe, which are never cut."""
TERMINAL_ROWS = 50
"""The maximum number of rows on a terminal, unless the user asks for more."""


_STYLES = {"error": "\x1b[1;31m", "warning": "\x1b[33m", "hint": "\x1b[36m"}
"""The colours of the labels of messages."""


class Format(StrEnum):
    """The format of a report."""

    TABLE = "table"
    JSON = "json"
    NDJSON = "ndjson"
    CSV = "csv"


class Color(StrEnum):
    """When to use colours."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


_COLOURED: dict[Color, dict[str, Any]] = {
    Color.AUTO: {"force_terminal": None, "no_color": None},
    Color.ALWAYS: {"force_terminal": True, "no_color": False},
    Color.NEVER: {"force_terminal": False, "no_color": True},
}
"""The settings of Rich for each choice."""


_PLAIN: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False}
"""The options of consoles that draw texts as they are."""


class LogFormat(StrEnum):
    """The format of messages on stderr."""

    TEXT = "text"
    JSON = "json"


class Output(Struct):
    """The output of a run: the report on stdout, and messages and progress on stderr."""

    format: Format = Format.TABLE
    color: Color = Color.AUTO
    log_format: LogFormat = LogFormat.TEXT
    quiet: bool = False
    verbose: bool = False
    arguments: Sequence[str] = ()
    """The command line, to redact quotes of it in messages."""
    timeout: float | None = None
    """The seconds to wait for an answer of a store; None for no limit."""
    interval: float | None = None
    """The seconds between lines of progress; None for a live line."""
    printout: Printout | None = None
    listing: Listing | None = None
    """A JSON report whose rows are already being written; it takes precedence over ``printout``."""
    warnings: list[str] = field(default_factory=list)
    untimed: Untimed | None = None
    """The count of messages without a time that the selection excludes; None without one."""
    left_out: dict[MemoryKey, Failure] = field(default_factory=dict)
    """The damaged memories that were not read."""
    read: bool = False
    """True once undamaged memories were read."""
    _begun: float = field(default_factory=time.monotonic)

    def console(self) -> Console:
        """Return a Rich console for stdout.

        On a terminal, output is coloured and cut to the width.  In a pipe, it is plain and whole.
        """
        from rich.console import Console  # loaded only to draw

        class Screen(Console):
            """A console that raises ``BrokenPipeError`` if nobody reads its output any longer."""

            def on_broken_pipe(self) -> NoReturn:
                """Raise an error, where Rich would end the process with exit code 1.

                Raises:
                    BrokenPipeError: always.
                """
                raise BrokenPipeError

        width = None if sys.stdout.isatty() else WIDE
        return Screen(
            file=sys.stdout, **_COLOURED[self.color], width=width, **_PLAIN, soft_wrap=False
        )

    def row_limit(self, given: int | None) -> int | None:
        """Return the maximum number of rows of a list; ``given`` is what the user asked for."""
        if given is None and self.format is Format.TABLE and sys.stdout.isatty():
            return TERMINAL_ROWS
        return given

    # Messages to the operator

    def show(self, table: RenderableType) -> None:
        """Draw a table on stderr, before a question to the user."""
        from rich.console import Console  # loaded only to draw

        Console(file=sys.stderr, **_COLOURED[self.color], **_PLAIN).print(table)

    def warn(self, text: str, event: str = "warning") -> None:
        """Print a warning on stderr, and add it to the report; repeated warnings are left out.

        ``event`` is the name of the event in a JSON log.
        """
        text = redact_text(text, self.arguments)
        if text not in self.warnings:
            self.warnings.append(text)
            self._log("warning", event, text)

    def retry(self, text: str) -> None:
        """Print a warning that memctl connects again after a lost connection."""
        self.warn(text, "retry")

    def store_opened(self, store: Store) -> None:
        """With ``--verbose``, print the details of a store that was opened."""
        gc.freeze()  # modules imported for the store stay
        texts = [f"opened {store.label} ({store.kind})", *store.details]
        if store.dialect.local_times:
            texts.append(naming(store.dialect.zone))
        for text in texts:
            self.detail(text, "opened", store=store.label)

    def store_closing(self, store: Store) -> None:
        """Print the warnings of a store before it is closed.

        The damaged memories that the store left out become an error in ``finish``.
        """
        for text in store.warnings:
            self.warn(text)
        if not store.skips_damage:
            self.left_out |= store.left_out.failures
            self.read |= store.left_out.others

    def note(self, text: str) -> None:
        """Print a message on stderr, unless ``--quiet``."""
        if not self.quiet:
            self._log("info", "note", text)

    def detail(self, text: str, event: str = "detail", **more: Any) -> None:
        """With ``--verbose``, print a detail on stderr.

        In a JSON log, the line has the event ``event`` and the fields ``more``.
        """
        if self.verbose:
            self._log("debug", event, text, **more)

    def done(self, command: str) -> None:
        """Log the success of a run as JSON; do nothing with ``--quiet``, or if logs are text."""
        if self.log_format is LogFormat.JSON and not self.quiet:
            self._log("info", "done", f"memctl {command} is done", **self._ending(command))

    def _ending(self, command: str) -> dict[str, Any]:
        seconds = round(time.monotonic() - self._begun, 3)
        found: dict[str, Any] = {"command": command or None, "seconds": seconds}
        run = self.reported.get("run")
        return found if run is None else found | {"run": run}

    @property
    def reported(self) -> dict[str, Any]:
        """The JSON object of the report; empty if there is no report."""
        return self.printout.report().data() if self.printout is not None else {}

    def _log(self, level: str, event: str, text: str, **more: Any) -> None:
        if self.log_format is LogFormat.JSON:
            record = {"time": datetime.now().astimezone().isoformat(), "level": level}
            line = json.dumps(record | {"event": event, "message": text} | more)
        else:
            label = f"{level}:" if level in _STYLES else ""
            line = self._laid_out("memctl:", label, text)
            if "hint" in more:
                line += "\n" + self._laid_out(" ", "hint:", more["hint"])
        sys.stderr.write(line + "\n")
        sys.stderr.flush()

    def _laid_out(self, head: str, label: str, text: str) -> str:
        """Return a message for stderr: ``head``, ``label`` and ``text``.

        On a terminal, the message is wrapped between words.  Elsewhere, it is one line.
        """
        words = " ".join(filter(None, (head, label, visible(text))))
        if (width := _columns()) is not None:
            words = "\n".join(wrap(words, width, rest=" " * (len(head) + 1)))
        if label and self._coloured:
            words = words.replace(label, f"{_STYLES[label[:-1]]}{label}\x1b[0m", 1)
        return words

    @property
    def _coloured(self) -> bool:
        if self.color is not Color.AUTO:
            return self.color is Color.ALWAYS
        return _is_drawn() and not os.environ.get("NO_COLOR")

    # The end of a run

    def finish(self) -> None:
        """Write the report of a command that only reads, after its success.

        If damaged memories were left out, raise an error instead.

        Raises:
            Partial: some memories are damaged.
            BadData: all memories are damaged.
        """
        if self.left_out:
            raise self._damage()
        self.emit()

    def emit(self, error: MemctlError | None = None) -> None:
        """Write the report, if there is one; ``error`` is the error that ended the run."""
        more = {}
        if self.untimed is not None and self.untimed.number:
            more = {"untimed": self.untimed.number}
            found = count(self.untimed.number, self.untimed.noun)
            self.warn(f"{found} without a time: a selection by time leaves out such messages")
        if self.listing is not None:
            self.listing.tail |= more
            self.listing.close(self.warnings, error)
            self.listing = None
        elif self.printout is not None:
            self._write(self.printout, more, error)
        else:
            return
        sys.stdout.flush()  # raises if the output cannot be written

    def _write(self, printout: Printout, more: dict[str, Any], error: MemctlError | None) -> None:
        from memctl.output import printout as forms  # only needed for a report

        match self.format:
            case Format.JSON:
                forms.write_json(printout.report().data() | more, self.warnings, error)
            case Format.NDJSON:
                forms.write_ndjson(printout.report().rows())
            case Format.CSV:
                from memctl.output.csv_rows import write_csv

                write_csv(printout.report().rows())
            case Format.TABLE:
                unasked = self.quiet and printout.of_run and error is None
                table = None if unasked else printout.table()
                if table is not None:
                    self.console().print(table)

    def cause(self, error: MemctlError) -> MemctlError:
        """Return the error to report in place of ``error``.

        If a memory was not found, and damaged memories were left out, the result is the error about
        the damaged memories: the missing memory may be among them.  Otherwise the result is
        ``error``.
        """
        if isinstance(error, NotFound) and self.left_out:
            return self._damage()
        return error

    def _damage(self) -> MemctlError:
        from memctl.ops.report import damage  # only needed for damaged memories

        return damage(self.left_out, others=self.read)

    def fail(self, error: MemctlError, command: str = "") -> None:
        """Write the report of the work done so far, then print the error on stderr."""
        error.message = redact_text(error.message, self.arguments)
        error.hint = error.hint and redact_quoted(error.hint, self.arguments)
        empty = self.listing is None and self.printout is None
        self.emit(error)
        if empty and self.format is Format.JSON:
            from memctl.output.printout import write_json  # only needed for a report

            write_json({"schema": f"memctl/{command}/1"}, self.warnings, error)
            sys.stdout.flush()  # raises if the output cannot be written
        more: dict[str, Any] = {}
        if self.log_format is LogFormat.JSON:
            self._log_failures()
            more = {**self._ending(command), "code": error.code}
        if error.hint:
            more["hint"] = error.hint
        self._log(error.level, "error", error.message, **more)

    def _log_failures(self) -> None:
        """Log each memory of the report that was left unchanged because of a failure."""
        for failure in self.reported.get("failures", ()):
            memory = {
                name: failure[name] for name in ("user", "session", "path") if name in failure
            }
            code, text = failure["code"], failure["message"]
            self._log("error", "memory-failed", text, memory=memory, code=code)

    @contextmanager
    def summarising(self, memories: int) -> Iterator[SummaryProgress]:
        """Show the progress of the summaries of ``memories`` memories; see ``progress``."""
        if not self._watched:
            from memctl.ops.report import SilentSummaryProgress

            yield SilentSummaryProgress()
            return
        from memctl.output.progress import Summaries  # only needed to show progress

        meter = Summaries(memories)
        with self._showing(meter):
            yield meter

    @contextmanager
    def progress(
        self, description: str, total: Callable[[], Total | None] = lambda: None
    ) -> Iterator[Progress]:
        """Show the progress of an operation within the block; yield a counter of its work.

        Progress shows on a terminal or with ``--progress-interval``, and not with ``--quiet``.
        ``total`` returns the amount of work, or None while it is unknown.
        """
        if not self._watched:
            from memctl.ops.report import SilentProgress

            yield SilentProgress()
            return
        from memctl.output.progress import Counter  # only needed to show progress

        meter = Counter(description, total)
        with self._showing(meter):
            yield meter

    @contextmanager
    def dividing(self, description: str, parts: int) -> Iterator[Parts]:
        """Show the progress of a run in ``parts`` parts; see ``progress``."""
        from memctl.output.progress import Parts  # only needed for parts

        meter = Parts(description, parts)
        with self._showing(meter) if self._watched else nullcontext():
            yield meter

    @property
    def _watched(self) -> bool:
        if self.quiet:
            return False
        live = _is_drawn() and self.log_format is LogFormat.TEXT
        return live or self.interval is not None

    def _showing(self, meter: Meter) -> Live | Lines:
        from memctl.output import progress  # only needed to show progress

        if self.interval is None:
            return progress.Live(meter)
        return progress.Lines(meter, self.interval, self._tell_progress)

    def _tell_progress(self, meter: Meter) -> None:
        label, *facts = meter.facts()
        text = f"{label}: {', '.join(facts)}" if facts else label
        self._log("info", "progress", text, **meter.fields())


def _is_drawn() -> bool:
    """Return whether stderr is a terminal with cursor movement and colours."""
    return sys.stderr.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


def _columns() -> int | None:
    """Return the width of the terminal on stderr; None if stderr is no terminal or has no size."""
    try:
        found = os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):
        return None
    return found or None


def wrap(text: str, width: int, first: str = "", rest: str = "") -> list[str]:
    """Return a text in lines of at most ``width`` columns, broken between words.

    The first line begins with ``first``, and every other line with ``rest``.  A word that is too
    long stays whole.
    """
    lines, gap = [first], ""
    for word in text.split(" "):
        if gap and _cells(f"{lines[-1]} {word}") > width:
            lines.append(rest)
            gap = ""
        lines[-1] += gap + word
        gap = " "
    return lines


def _cells(text: str) -> int:
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # not needed to show the help

    return cell_len(text)
