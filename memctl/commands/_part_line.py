"""The command line of a part, made of the parameters of the command that is divided."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import typer

from memctl.commands._context import Run
from memctl.commands._parts_plan import LIMITS
from memctl.parts.limits import Limits
from memctl.parts.part import Part, PartResult
from memctl.reports.change import UndoReport
from memctl.selection import Selection
from memctl.shard import Shard
from memctl.version import __version__

LEFT_OUT = LIMITS | {"shard", "shards", "on", "workers", "format_", "json", "yes", "pager"}
"""The parameters that parts do not get as they are."""
_TIMES = frozenset(("since", "until", "newer_than", "older_than"))
"""The parameters that select by time; parts get the moments, which are the same for all."""


class Work(NamedTuple):
    """The work of a run before it is divided into command lines."""

    shards: list[Shard]
    arguments: tuple[str, ...]
    """The arguments of each part."""
    texts: dict[str, str]
    """The stores as the user wrote them, by parameter."""
    left_out: Collection[str] = LEFT_OUT
    """The parameters that the parts do not get."""
    empty: UndoReport | None = None
    """The report of the undo of a job without parts to undo."""


@dataclass(slots=True)
class CommandLine:
    """The command line of the parts of a run."""

    options: tuple[str, ...]
    """The words after ``memctl``, without ``--shard``."""
    arguments: tuple[str, ...]
    """The arguments of the command: the names of stores."""
    stores: dict[str, str]
    """The label of the location of each store, by the name that the user wrote."""
    state: str = ""
    """The identity of the state folder, which all parts must share; empty without changes."""
    holds: Sequence[Mapping[str, Any]] = ()
    """The holds of the configuration, as tables."""
    again: tuple[str, ...] = ()
    """The words to add when a part is repeated."""
    limits: Limits = field(default_factory=Limits)
    """The limits of the whole run."""
    _begun: set[Shard] = field(default_factory=set, init=False)

    def begin(self, shard: Shard) -> Part:
        """Return a part that starts now."""
        limits = self.limits.begin(shard)
        more = (*limits, *self.again) if shard in self._begun else limits
        self._begun.add(shard)
        words = (*self.options, *more, f"--shard={shard}", "--", *self.arguments)
        return Part(words, shard, __version__, self.stores, self.state, self.holds)

    def end(self, result: PartResult) -> None:
        """Note how a part has ended."""
        self.limits.end(result)


def command_words(context: Any) -> list[str]:
    """Return the words of a command, such as ``["mark", "add"]``."""
    words: list[str] = []
    while context.parent is not None:
        words.insert(0, context.info_name)
        context = context.parent
    return words


def option_words(
    context: typer.Context, run: Run, where: Selection | None, left_out: Collection[str]
) -> Iterator[str]:
    """Yield the words after ``memctl`` of a part, without ``--shard`` and the arguments.

    The parameters ``left_out`` are left out.
    Defaults of the environment and of the configuration are included: a worker need not have them.
    """
    if run.config_file is not None:
        yield f"--config={run.config_file}"
    yield "--quiet"
    yield from command_words(context)
    for parameter in context.command.params:
        if parameter.param_type_name != "option" or parameter.name in _TIMES:
            continue
        if parameter.name in ("json", "yes"):
            yield f"--{parameter.name}"
        elif parameter.name == "limit":
            limit = run.output.row_limit(context.params["limit"])
            yield from () if limit is None else _spelt(parameter, limit)
        elif parameter.name not in left_out and _is_set(context, parameter.name):
            yield from _spelt(parameter, context.params[parameter.name])
    if where is not None:
        for name, moment in (("since", where.since), ("until", where.until)):
            if moment is not None:
                yield f"--{name}={moment.astimezone().isoformat()}"


def _is_set(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def _spelt(option: Any, value: Any) -> Iterator[str]:
    """Yield the words that give an option a value."""
    name = next(name for name in option.opts if name.startswith("--"))
    if option.is_flag:
        yield name if value else option.secondary_opts[0]
        return
    for one in value if isinstance(value, list | tuple) else [value]:
        yield f"{name}={getattr(one, 'value', one)}"


def argument_words(context: typer.Context) -> Iterator[str]:
    """Yield the arguments of the command."""
    for parameter in context.command.params:
        if parameter.param_type_name == "argument":
            value = context.params[parameter.name]
            values = value if isinstance(value, list | tuple) else [value]
            yield from (str(one) for one in values if one is not None)
