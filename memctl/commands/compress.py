"""``memctl compress``: summarize old messages, so that agents read less of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from memctl.commands._change import change
from memctl.commands._context import Run
from memctl.commands._options import (
    BackupOption,
    DryRunOption,
    PathOption,
    StoreArgument,
    takes_options,
)
from memctl.commands._reports import ChangeOutcome
from memctl.commands._run import changeable, record, run_options, wait_for
from memctl.errors import Loss, UsageError
from memctl.ops.compress.plan import CompressMode, CompressOptions
from memctl.output import tables
from memctl.registry import located, make_store
from memctl.runs.compress import CompressRun
from memctl.selection import Selection
from memctl.summarizer import Summarizer
from memctl.summary import TEMPLATE, check_template
from memctl.system import read_file


@takes_options
def compress(
    run: Run,
    store: StoreArgument,
    where: Selection,
    mode: Annotated[
        CompressMode | None,
        typer.Option(
            "--mode",
            help="Where the summary goes: mark, where the store has a place for summaries, and "
            "message elsewhere; replace deletes what it stands for.",
            show_default=False,
        ),
    ] = None,
    summarizer: Annotated[
        str, typer.Option("--summarizer", metavar="NAME", help="A summarizer of the configuration.")
    ] = "extractive",
    keep_recent: Annotated[
        int,
        typer.Option("--keep-recent", metavar="N", min=1, help="Leave each memory its newest N."),
    ] = 3,
    trigger_tokens: Annotated[
        int | None,
        typer.Option(
            "--trigger-tokens",
            metavar="N",
            min=0,
            help="Only where more tokens would be summarized.",
        ),
    ] = None,
    trigger_messages: Annotated[
        int | None,
        typer.Option(
            "--trigger-messages",
            metavar="N",
            min=0,
            help="Or where more messages would be summarized.",
        ),
    ] = None,
    prompt_file: Annotated[
        Path | None,
        typer.Option(
            "--prompt-file",
            metavar="FILE",
            help="The instructions for the model, in place of memctl's own.",
        ),
    ] = None,
    template_file: Annotated[
        Path | None,
        typer.Option(
            "--template-file", metavar="FILE", help="The text around the fields of the summary."
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            metavar="N",
            min=1,
            max=256,
            help="Memories at once; else as the summarizer is configured.",
            show_default=False,
        ),
    ] = None,
    max_cost: Annotated[
        float | None,
        typer.Option(
            "--max-cost", metavar="X", min=0.0, help="Start nothing that would cost more."
        ),
    ] = None,
    max_memories: Annotated[
        int | None,
        typer.Option("--max-memories", metavar="N", min=1, help="Compress no more than N."),
    ] = None,
    backup: BackupOption = True,
    path: PathOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Summarize old messages with a configured summarizer.

    The newest messages stay; of the others a summary is made, and they are marked compressed, as
    AgentScope's own compression does. The built-in summarizer, extractive, needs no model and
    no network. memctl undo undoes it. --dry-run shows what it would do, and about what it
    would cost.
    """
    if where.last is not None:
        raise UsageError("--last does not go with compress", "--keep-recent leaves the newest")
    made = _summarizer(run, summarizer, prompt_file)
    if max_cost is not None and made.prices is None:
        raise UsageError(
            f"--max-cost needs to know what {summarizer!r} costs",
            f"set input_price and output_price in [summarizers.{summarizer}]",
        )
    location = changeable(run, store, where, path)
    location = wait_for(located(location))
    can_hold = make_store(location).features.summaries
    if mode is CompressMode.MARK and not can_hold:
        raise Loss(
            f"{location.label} has no place for summaries",
            "name it with ?state=FOLDER (or ?state=redis), or take --mode message",
        )
    wanted = CompressOptions(
        mode or (CompressMode.MARK if can_hold else CompressMode.MESSAGE),
        keep_recent,
        trigger_tokens,
        trigger_messages,
        max_memories,
        max_cost,
        jobs or made.concurrency,
        TEMPLATE if template_file is None else check_template(_text(template_file)),
    )
    compression = CompressRun(
        record(run, "compress", store, location),
        where,
        wanted,
        made,
        run_options(run, backup=backup, dry_run=dry_run),
    )
    outcome = CompressOutcome(compression, location.label)
    change(run.output, compression, location, outcome)


def _summarizer(run: Run, name: str, prompt_file: Path | None) -> Summarizer:
    from memctl import config  # not needed to show the help
    from memctl.summarizers.registry import make_summarizer

    configured = run.configuration().summarizer(name)
    prompt = None if prompt_file is None else _text(prompt_file)
    return make_summarizer(configured.settings, configured.key(config.environment()), prompt)


def _text(path: Path) -> str:
    try:
        text = read_file(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read", str(error)) from error
    if not text.strip():
        raise UsageError(f"{path} is empty")
    return text


class CompressOutcome(ChangeOutcome):
    """The report of compress."""

    def __init__(self, run: CompressRun, target: str) -> None:
        super().__init__(run, target)
        self.summarizer = run.summarizer
        self.mode = run.wanted.mode
        self.compressed = run.compressed

    def _data(self) -> dict[str, Any]:
        data = super()._data()
        found, messages = self.compressed, data["messages"]
        if self.dry_run:  # whose plan is of the others alone
            data["memories"]["selected"] += found.over_budget
        data["memories"]["left"] = self.changes.left + found.over_budget
        data["messages"] = {
            "selected": found.selected,
            "marked": messages["marked"],
            "deleted": messages["deleted"],
            "failed": found.selected - found.messages if self.begun else 0,
        }
        data["summarizer"] = {"name": self.summarizer.name, "kind": self.summarizer.kind}
        data["mode"] = self.mode.value
        data["tokens"] = {
            "summarised": found.summarised,
            "before": found.before,
            "after": None if self.dry_run else found.after,
            "ratio": found.ratio,
            "counted_by": found.counted_by,
        }
        data["model"] = {
            "calls": found.calls,
            "tokens_in": found.usage.tokens_in,
            "tokens_out": found.usage.tokens_out,
            "exact": found.usage.exact,
            "cost": None if found.cost is None else round(found.cost, 6),
        }
        return data

    def _rows(self) -> list[dict[str, Any]]:
        [row] = super()._rows()
        data = self._data()
        for what in ("tokens", "model"):
            row |= {f"{what}_{name}": value for name, value in data[what].items()}
        return [row | {"mode": data["mode"], "summarizer": self.summarizer.name}]

    def _table(self) -> RenderableType | None:
        if not (self.ended or self.begun):
            return None
        return tables.compress_outcome(
            self.compressed, self.summarizer, self.target, self.run, dry_run=self.dry_run
        )
