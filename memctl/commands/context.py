"""``memctl context``: what the model of an agent is sent of its memory."""

from __future__ import annotations

from contextlib import aclosing
from typing import Annotated

import typer
from typer.core import TyperCommand

from memctl.commands._context import Run, choose_format, this_run
from memctl.commands._options import (
    STORE_HELP,
    FormatOption,
    JsonOption,
    PathOption,
    SessionOption,
    UserOption,
    build,
)
from memctl.commands._run import opened, wait_for
from memctl.commands._stores import readable
from memctl.location import Location
from memctl.ops.context import find, parts, sharers
from memctl.output.context import Shown, make_view
from memctl.output.numbers import count
from memctl.output.terminal import Format, Output
from memctl.registry import make_store
from memctl.selection import Selection
from memctl.summarizers.options import Options
from memctl.summarizers.tokenizer import Counter

_NAMED = 3


def context(
    context: typer.Context,
    store: Annotated[str, typer.Argument(metavar="STORE", help=STORE_HELP)],
    user: UserOption = None,
    session: SessionOption = None,
    everything: Annotated[
        bool,
        typer.Option("--all", help="As an agent without compression reads it: all messages."),
    ] = False,
    summarizer: Annotated[
        str,
        typer.Option(
            "--summarizer", metavar="NAME", help="Count tokens with the tokenizer of this one."
        ),
    ] = "extractive",
    path: PathOption = None,
    format_: FormatOption = Format.TABLE,
    json: JsonOption = False,
) -> None:
    """Show what the model of an agent is sent of its memory.

    The summary, then the messages that are not marked compressed, each with its tokens: what
    AgentScope puts behind the system prompt. Exactly one memory must be selected.
    """
    run = this_run(context)
    choose_format(run.output, format_, json=json)
    counter = _counter(run, summarizer)
    where = Selection(users=frozenset(user or ()), sessions=frozenset(session or ()))
    with readable(run.locate(store), where, path) as location:
        wait_for(_show(run.output, location, where, counter, everything=everything))
    run.output.emit()


def _counter(run: Run, name: str) -> Counter:
    """What a summarizer counts with: neither its key nor its model is needed for that.

    Raises:
        UsageError: see ``Config.summarizer`` and ``Counter``.
    """
    settings = run.configuration().summarizer(name).settings
    return Counter(Options(settings).path("tokenizer"))


async def _show(
    output: Output, location: Location, where: Selection, counter: Counter, *, everything: bool
) -> None:
    async with opened(make_store(location), output) as store:
        info = await find(store, where)
        others = await sharers(store, info.key)
        if others:
            output.warn(
                f"the session is shared: its agent also reads the messages of {_names(others)}, "
                "which are not shown"
            )
        shown = Shown(store, info, counter.name, everything)
        view = make_view(output, shown)
        async with aclosing(parts(store, info.key, counter.count, everything=everything)) as found:
            async for part in found:
                shown.add(part)
                view.add(part)
        view.end()
        if shown.faults:
            output.warn(
                f"AgentScope cannot load {count(shown.faults, 'message')}, and fails: "
                f"{shown.first_fault}"
            )


def _names(users: list[str]) -> str:
    shown = ", ".join(repr(user) for user in users[:_NAMED])
    more = len(users) - _NAMED
    return f"{shown} and {count(more, 'user')} more" if more > 0 else shown


def command() -> TyperCommand:
    """The parser of this command."""
    return build(context, "context")
