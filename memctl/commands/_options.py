"""Options with the same meaning on every command, and the parsers of commands."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from enum import StrEnum
from functools import lru_cache, partial, wraps
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from memctl.commands._context import Run, run_as_it_is, this_run
from memctl.commands._help import CONNECTION, OUTPUT, PARTS, SAFETY, SELECTION, Helpful
from memctl.commands._parameters import argument, option
from memctl.commands._values import rate
from memctl.engines import objects
from memctl.errors import UsageError
from memctl.machine import signals
from memctl.model import OnConflict
from memctl.ops.retry import Transfer
from memctl.output.terminal import Format
from memctl.selection import Selection
from memctl.shard import MOST, Shard
from memctl.text.values import period

if TYPE_CHECKING:
    from memctl.commands._part_line import Work

selecting = partial(option, rich_help_panel=SELECTION)
"""An option that selects memories or messages."""
connecting = partial(option, rich_help_panel=CONNECTION)
"""An option for the connection to a store."""
guarding = partial(option, rich_help_panel=SAFETY)
"""An option that protects data, or lifts a protection."""
dividing = partial(option, rich_help_panel=PARTS)
"""An option that divides a run into parts."""
printing = partial(option, rich_help_panel=OUTPUT)
"""An option for the output."""

STORE_HELP = "A URL, a path, an alias or - (see memctl help stores)."
StoreArgument = Annotated[str, argument("STORE", STORE_HELP)]

UserOption = Annotated[list[str] | None, selecting("--user NAME", "Only this user.")]
SessionOption = Annotated[list[str] | None, selecting("--session NAME", "Only this session.")]
PathOption = Annotated[
    str | None, selecting("--path PATH", "Only this memory of a session, such as agent.memory.")
]
DryRunOption = Annotated[bool, guarding("-n --dry-run", "Preview changes; write nothing.")]
YesOption = Annotated[bool, guarding("-y --yes", "Do not ask for confirmation.")]
BackupOption = Annotated[
    bool, guarding("--backup/--no-backup", "Do not record the changes; no undo is possible then.")
]
MaxDeleteOption = Annotated[
    str | None,
    guarding(
        "--max-delete N|N%", "Delete nothing if more than N messages, or N percent, are selected."
    ),
]
EncryptOption = Annotated[
    list[str] | None,
    guarding(
        "--encrypt-to RECIPIENT",
        "Encrypt a file that ends in .age, or stdout, for this public key of age or SSH.",
    ),
]
LossyOption = Annotated[
    bool, guarding("--lossy", "Drop what the target cannot store, and report it.")
]
AllMessagesOption = Annotated[
    bool,
    guarding(
        "--all-messages",
        "Copy messages that the framework does not read as messages that it reads.",
    ),
]
ConflictOption = Annotated[
    OnConflict,
    guarding("--on-conflict ACTION", "Action if the target holds other messages in a memory"),
]
JobsOption = Annotated[
    int, connecting("--jobs N", "Write N memories at the same time.", min=1, max=64)
]
EmbedderOption = Annotated[
    str | None,
    connecting("--embedder NAME", "Make missing vectors with this embedder of the configuration."),
]
TokenizerOption = Annotated[
    str, option("--summarizer NAME", "Count tokens with the tokenizer of this summarizer.")
]
PagerOption = Annotated[
    bool, printing("--pager/--no-pager", "Print long output at once, without PAGER or less.")
]


def _project(
    project: Annotated[
        str | None,
        selecting("--project PATH", "Only sessions in which a coding agent worked in this folder."),
    ] = None,
) -> str:
    return "" if project is None else os.path.abspath(os.path.expanduser(project))


def _selection(
    user: UserOption = None,
    session: SessionOption = None,
    mark: Annotated[
        list[str] | None, selecting("--mark MARK", "Only messages with this mark.")
    ] = None,
    exclude_mark: Annotated[
        list[str] | None, selecting("--exclude-mark MARK", "Only messages without this mark.")
    ] = None,
    role: Annotated[
        list[str] | None, selecting("--role ROLE", "Only messages with this role.")
    ] = None,
    name: Annotated[
        list[str] | None, selecting("--name NAME", "Only messages from this sender.")
    ] = None,
    id_: Annotated[list[str] | None, selecting("--id ID", "Only the message with this id.")] = None,
    older_than: Annotated[
        str | None,
        selecting(
            "--older-than AGE",
            "Only messages older than AGE, such as 7d or 12h; units: s, m (minutes), h, d, w.",
        ),
    ] = None,
    newer_than: Annotated[
        str | None, selecting("--newer-than AGE", "Only messages no older than AGE.")
    ] = None,
    since: Annotated[
        str | None,
        selecting(
            "--since TIME", "Only messages from TIME on: 2026-01-31, 2026-01-31T12:00, yesterday."
        ),
    ] = None,
    until: Annotated[str | None, selecting("--until TIME", "Only messages before TIME.")] = None,
    last: Annotated[
        int | None, selecting("--last N", "Only the newest N messages of each memory.", min=1)
    ] = None,
    match: Annotated[
        str | None, selecting("--match TEXT", "Only messages that contain TEXT, case-sensitive.")
    ] = None,
    ignore_case: Annotated[
        bool, selecting("--ignore-case", "Find the TEXT of --match in any case.")
    ] = False,
    live: Annotated[
        bool | None,
        selecting(
            "--live/--not-live",
            "Only messages that the framework reads, or that it leaves out.",
            show_default=False,
        ),
    ] = None,
) -> Selection:
    texts = {
        "since": since,
        "until": until,
        "older_than": older_than,
        "newer_than": newer_than,
    }
    if ignore_case and match is None:
        raise UsageError("--ignore-case needs --match", "add --match TEXT, or leave it out")
    first, end = period(texts, _option_of, datetime.now())
    return Selection(
        users=frozenset(user or ()),
        sessions=frozenset(session or ()),
        marks=frozenset(mark or ()),
        exclude_marks=frozenset(exclude_mark or ()),
        roles=frozenset(role or ()),
        names=frozenset(name or ()),
        ids=frozenset(id_ or ()),
        since=first,
        until=end,
        last=last,
        match=match,
        ignore_case=ignore_case,
        live=live,
    )


def _option_of(name: str) -> str:
    return f"--{name.replace('_', '-')}"


SECONDS = 600.0
"""The default of ``--timeout``."""
TRANSFER: Any = None
"""The default of a parameter that ``takes_options`` replaces with options."""


def _limit_buckets(seconds: float) -> float:
    objects.limit = seconds
    return seconds


TimeoutOption = Annotated[
    float,
    connecting(
        "--timeout SECONDS",
        "Treat a connection as lost after SECONDS without an answer.",
        callback=_limit_buckets,
        min=1,
    ),
]


def _time_limit(timeout: TimeoutOption = SECONDS) -> float:
    return timeout


RateOption = Annotated[
    str | None,
    connecting(
        "--rate-limit RATE",
        "Read no faster than RATE: 500 (messages a second) or 2MB (bytes a second).",
    ),
]


def _transfer(
    retries: Annotated[
        int, connecting("--retries N", "Retry a lost connection N times in a row.", min=0)
    ] = 5,
    timeout: TimeoutOption = SECONDS,
    rate_limit: RateOption = None,
) -> Transfer:
    return Transfer(retries, timeout, rate(rate_limit))


class On(StrEnum):
    """The engines that run the parts of a run."""

    LOCAL = "local"
    RAY = "ray"


class Division(NamedTuple):
    """The division of a run into ``shards`` parts, or the part ``shard`` that the run is."""

    shard: Shard | None
    shards: int | None
    on: On
    workers: int | None


def _division(
    shard: Annotated[
        str | None,
        dividing("--shard K/N", "Do part K of N, numbered from 0: all memories of some sessions."),
    ] = None,
    shards: Annotated[
        int | None, dividing("--shards N", "Do the whole in N parts.", min=1, max=MOST)
    ] = None,
    on: Annotated[
        On, dividing("--on ENGINE", "Run the parts as processes or as Ray tasks")
    ] = On.LOCAL,
    workers: Annotated[
        int | None,
        dividing(
            "--workers M",
            "Run at most M parts at the same time.",
            min=1,
            show_default="the number of CPUs",
        ),
    ] = None,
) -> Division:
    if shard is not None and shards is not None:
        raise UsageError(
            "--shard and --shards cannot be combined",
            "--shards N runs all parts; --shard K/N is one of them",
        )
    return Division(None if shard is None else Shard.parse(shard), shards, on, workers)


_JOB = re.compile(r"[\w.:-]{1,100}", re.ASCII)


def _job(
    job: Annotated[
        str | None,
        dividing("--job NAME", "Name the divided run, for memctl history and memctl undo."),
    ] = None,
) -> str:
    if job is not None and not _JOB.fullmatch(job):
        raise UsageError(
            f"--job {job!r} is not a name", "use letters, digits and . _ : -, at most 100"
        )
    return job or ""


def _report_format(
    format_: Annotated[Format, printing("--format", "Format of the report")] = Format.TABLE,
    json: Annotated[bool, printing("--json", "Short for --format json.")] = False,
) -> Format:
    return Format.JSON if json else format_


@lru_cache
def _parameters(make: Callable[..., Any]) -> tuple[inspect.Parameter, ...]:
    """Return the parameters of a function as keyword-only parameters."""
    hints = get_type_hints(make, include_extras=True)
    parameters = inspect.signature(make).parameters.items()
    return tuple(
        parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in parameters
    )


_BUNDLES: dict[Any, Callable[..., Any]] = {Selection: _selection, Transfer: _transfer}


def takes_options(
    function: Callable[..., None],
    *,
    opens: bool = False,
    reports: bool = True,
    divisible: bool = False,
    changes: bool = False,
    parts_of: Callable[..., Work] | None = None,
) -> Callable[..., None]:
    """Return a command for the parser, in which options replace some parameters of ``function``.

    Parameters of these types are replaced: ``Run`` by ``--format`` and ``--json``, ``Transfer`` by
    the options of the connection, and ``Selection`` by the options that select messages, which come
    last.  When the command runs, ``function`` gets values of these types, made from the options.
    With ``opens``, the command also has ``--timeout``.  Without ``reports``, it has no formats.
    With ``divisible``, it has ``--shard``, which ``Run.shard`` and the selection get, and
    ``--shards``, with which the parts of the run are started in place of ``function``; with
    ``changes``, it also has ``--job``, which ``Run.job`` gets.  ``parts_of`` returns the parts of
    an undo.
    """
    bundled: dict[str, Callable[..., Any]] = {}
    own: list[inspect.Parameter] = []
    last = _parameters(_report_format) if reports else ()
    run_name, takes_context, selects = "", False, False
    for parameter in _parameters(function):
        make = _BUNDLES.get(parameter.annotation)
        if make is not None:
            bundled[parameter.name] = make
        if parameter.annotation is Run:
            run_name = parameter.name
        elif parameter.annotation is typer.Context:
            takes_context = True
        elif make is _selection:
            last += _parameters(make) + _parameters(_project)
            selects = True
        else:
            own += [parameter] if make is None else _parameters(make)

    if opens:
        own += _parameters(_time_limit)
    if divisible:
        own += _parameters(_division)
    if changes:
        own += _parameters(_job)
    kind = inspect.Parameter.KEYWORD_ONLY
    own.insert(0, inspect.Parameter("context", kind, annotation=typer.Context))

    @wraps(function)
    def with_options(context: typer.Context, **values: Any) -> None:
        def made(make: Callable[..., Any]) -> Any:
            return make(**{one.name: values.pop(one.name) for one in _parameters(make)})

        if reports:
            run_as_it_is(context).output.format = made(_report_format)
        if opens:
            run_as_it_is(context).output.timeout = made(_time_limit)
        if selects:
            run_as_it_is(context).project = made(_project)
        values[run_name] = this_run(context)
        division = made(_division) if divisible else None
        run_as_it_is(context).shard = division and division.shard
        if division is not None:
            _divide_fleets(context, division)
        if changes:
            run_as_it_is(context).job = made(_job)
            _refuse_job(run_as_it_is(context).job, division)
        if takes_context:
            values["context"] = context
        for name, make in bundled.items():
            values[name] = made(make)
            if make is _selection:
                values[name] = replace(values[name], shard=run_as_it_is(context).shard)
                run_as_it_is(context).output.untimed = values[name].untimed
        if division is not None and division.shards is None:
            from memctl.commands._defaults import is_given  # not needed for completions

            for name in "on", "workers":
                if is_given(context, name):
                    raise UsageError(f"--{name} needs --shards", "add --shards N")
        if division is not None and division.shards is not None:
            from memctl.commands import _parts  # only needed for parts

            where = next((values[name] for name in bundled if bundled[name] is _selection), None)
            _parts.run_parts(
                *(context, division.shards, division.on, division.workers, where), parts_of
            )
            return
        function(**values)

    parameters = [*own, *last]
    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {one.name: one.annotation for one in parameters}
    del with_options.__wrapped__
    return with_options


opens_stores = partial(takes_options, opens=True)
"""``takes_options`` for a command that opens stores."""
divisible = partial(takes_options, opens=True, divisible=True)
"""``takes_options`` for a command that opens stores, and can do one part of its work."""
divisible_change = partial(divisible, changes=True)
"""``divisible`` for a command whose changes can be undone."""


def _divide_fleets(context: typer.Context, division: Division) -> None:
    """Note on how many stores the run is, if the command names fleets.

    Raises:
        UsageError: as ``stores_of``.
    """
    if not any(isinstance(one, str) and one.startswith("@") for one in context.params.values()):
        return
    from memctl.commands._fleets import stores_of  # only needed for fleets

    run, shard = run_as_it_is(context), division.shard
    parts = division.shards if shard is None else shard.of
    stores = stores_of(run, context.info_name or "", context.params, parts)
    run.shard = shard and shard._replace(stores=stores)


def _refuse_job(job: str, division: Division | None) -> None:
    """Refuse the name of a job for a run that is not divided.

    Raises:
        UsageError: the run is not divided, and has such a name.
    """
    if job and (division is None or (division.shard is None and division.shards is None)):
        raise UsageError("--job names a divided run", "add --shard K/N or --shards N")


class _Command(Helpful, TyperCommand):
    """A command that a signal ends with an error."""

    def invoke(self, ctx: Any) -> Any:
        with signals.caught(signals.interrupt):
            return super().invoke(ctx)


class _Group(Helpful, TyperGroup):
    """A command with subcommands."""


class _App(typer.Typer):
    """An app of Typer whose commands are made with ``_Command``."""

    def command(self, name: str | None = None, **settings: Any) -> Any:
        """Return a decorator that adds a subcommand with a name."""
        return super().command(name, **{"cls": _Command, **settings})


def build(command: Callable[..., None] | typer.Typer, name: str) -> TyperCommand:
    """Return the parser of a command, which may have subcommands; ``name`` is its name."""
    app = command
    if not isinstance(app, typer.Typer):
        app = _App(add_completion=False, rich_markup_mode=None)
        app.command(name)(command)
    built = typer.main.get_command(app)
    assert isinstance(built, TyperCommand | TyperGroup)
    return built  # type: ignore[return-value]


def group() -> typer.Typer:
    """Return a command to which subcommands can be added."""
    return _App(
        cls=_Group,
        add_completion=False,
        rich_markup_mode=None,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
