"""``memctl compress``: summarizes old messages, to reduce the context of agents."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import RenderableType

from memctl import api
from memctl.commands._change import (
    change,
    confirm_deletion,
    refuse_unasked,
    refuse_unclear,
)
from memctl.commands._context import Run
from memctl.commands._defaults import is_given
from memctl.commands._journal import run_options
from memctl.commands._options import (
    BackupOption,
    DryRunOption,
    MaxDeleteOption,
    PathOption,
    StoreArgument,
    YesOption,
    divisible_change,
    guarding,
    selecting,
)
from memctl.commands._parameters import option
from memctl.commands._reports import ChangeOutcome
from memctl.commands._run import changeable, named_summarizer, wait_for
from memctl.errors import Failure, UsageError
from memctl.holds import HELD
from memctl.inference.summary import TEMPLATE, check_template
from memctl.location import redact, visible
from memctl.machine.system import read_file
from memctl.ops.compress.plan import CompressMode, CompressOptions, mode_of
from memctl.ops.compress.run import CompressRun
from memctl.output import compression
from memctl.registry import located, make_store
from memctl.reports.change import (
    CompressedMemories,
    CompressedMessages,
    CompressedTokens,
    CompressReport,
    ModelUse,
    SummarizerRow,
)
from memctl.selection import Selection
from memctl.text.numbers import count


@divisible_change
def compress(
    run: Run,
    context: typer.Context,
    store: StoreArgument,
    where: Selection,
    all_: Annotated[bool, selecting("--all", "Select every memory of the store.")] = False,
    mode: Annotated[
        CompressMode | None,
        option(
            "--mode",
            "Put the summary into the session state, into a message, or into a message that "
            "replaces the old ones",
            show_default="mark if the store holds summaries, else message",
        ),
    ] = None,
    summarizer: Annotated[
        str, option("--summarizer NAME", "Use this summarizer of the configuration.")
    ] = "extractive",
    keep_recent: Annotated[
        int,
        selecting(
            "--keep-recent --keep-last N", "Keep the newest N messages of each memory.", min=1
        ),
    ] = 3,
    trigger_tokens: Annotated[
        int | None,
        selecting(
            "--trigger-tokens N", "Only memories with more than N tokens to summarize.", min=0
        ),
    ] = None,
    trigger_messages: Annotated[
        int | None,
        selecting(
            "--trigger-messages N",
            "Only memories with more than N messages to summarize; with both triggers, "
            "either limit is enough.",
            min=0,
        ),
    ] = None,
    prompt_file: Annotated[
        Path | None,
        option("--prompt-file FILE", "Give the model these instructions instead of memctl's."),
    ] = None,
    template_file: Annotated[
        Path | None, option("--template-file FILE", "Write summaries with this template.")
    ] = None,
    jobs: Annotated[
        int | None,
        option(
            "--jobs N",
            "Summarize N memories at the same time (default from the summarizer).",
            min=1,
            max=256,
        ),
    ] = None,
    max_cost: Annotated[
        float | None, guarding("--max-cost X", "Stop before the model costs more than X.", min=0.0)
    ] = None,
    max_memories: Annotated[
        int | None, guarding("--max-memories N", "Compress at most N memories.", min=1)
    ] = None,
    max_delete: MaxDeleteOption = None,
    yes: YesOption = False,
    backup: BackupOption = True,
    path: PathOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Summarize old messages.

    Each memory keeps its newest messages. The others get a summary and the mark compressed, as in
    AgentScope, so that agents no longer send them to their model. The built-in summarizer,
    extractive, needs no model and no network. With --mode replace, the old messages are deleted:
    this asks first; scripts use --yes. memctl undo restores the memory.

    Examples:
      memctl compress agents.db --all --dry-run
      memctl compress agents.db --mode message --trigger-messages 50
      memctl compress prod --all --summarizer qwen --max-cost 5
    """
    if where.last is not None:
        raise UsageError(
            "--last cannot be used with compress", "use --keep-recent to keep the newest messages"
        )
    chosen = (trigger_tokens, trigger_messages) != (None, None)
    chosen |= is_given(context, "keep_recent")
    refuse_unclear(where, all_=all_, chosen=chosen)
    options = run_options(run, store, backup=backup, dry_run=dry_run, max_delete=max_delete)
    if mode is CompressMode.REPLACE and not dry_run:
        refuse_unasked(yes)
    prompt = None if prompt_file is None else _text(prompt_file)
    made = named_summarizer(run, summarizer, prompt)
    location = changeable(run, store, where, path)
    location = wait_for(located(location))
    wanted = CompressOptions(
        mode_of(make_store(location), mode),
        keep_recent,
        trigger_tokens,
        trigger_messages,
        max_memories,
        max_cost,
        jobs or made.concurrency,
        TEMPLATE if template_file is None else check_template(_text(template_file)),
    )
    outcome = CompressOutcome(location)

    def ask() -> None:
        found = outcome.change.preview.changes
        place = f"{visible(location.label)} by {count(found.planned.memories, 'summary')}"
        expected = redact(store) if all_ else None
        confirm_deletion(run.output, found, "replace", place, expected=expected)

    work = partial(api.compress, location, where, options=wanted, summarizer=made)
    asks = mode is CompressMode.REPLACE and not yes
    change(run.output, outcome, work, options, ask if asks else None)


def _text(path: Path) -> str:
    try:
        text = read_file(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read", str(error)) from error
    if not text.strip():
        raise UsageError(f"{path} is empty")
    return text


class CompressOutcome(ChangeOutcome[CompressRun]):
    """The report of ``compress``."""

    def report(self) -> CompressReport:
        """Return the report as it is now."""
        fields, found, summarizer = self.fields(), self.change.compressed, self.change.summarizer
        memories, messages = fields["memories"], fields["messages"]
        over = found.over_budget if self.dry_run else 0  # the plan leaves these memories out
        fields |= {
            "memories": CompressedMemories(
                memories.selected + over,
                memories.written,
                memories.failed,
                self.changes.left + found.over_budget,
            ),
            "messages": CompressedMessages(
                found.selected,
                messages.marked,
                messages.deleted,
                found.selected - found.messages if self.change.begun else 0,
            ),
        }
        usage, cost = found.usage, None if found.cost is None else round(found.cost, 6)
        return CompressReport(
            **fields,
            summarizer=SummarizerRow(summarizer.name, summarizer.kind),
            mode=self.change.wanted.mode.value,
            tokens=CompressedTokens(
                *(found.summarised, found.before, None if self.dry_run else found.after),
                *(found.ratio, found.counted_by),
            ),
            model=ModelUse(found.calls, usage.tokens_in, usage.tokens_out, usage.exact, cost),
        )

    def reason(self, failure: Failure) -> str:
        """Return the code: the report has the text, which is long, next to the memories."""
        return failure.message if failure.code == HELD else failure.code

    def _table(self) -> RenderableType | None:
        if not (self.ended or self.change.begun):
            return None
        return compression.compress_outcome(
            *(self.change.compressed, self.change.summarizer, self.target, self.change.id),
            dry_run=self.dry_run,
        )
