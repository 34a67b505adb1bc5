"""Defaults of options: from the environment, or else from ``[defaults]`` of the configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import typer
from msgspec import Struct, field

from memctl import config as configuration
from memctl.config import Config
from memctl.errors import MemctlError, UsageError
from memctl.machine.system import PART_VARIABLE
from memctl.text.words import did_you_mean, refuse_unknown

PREFIX = "MEMCTL"
OWN_VARIABLES = frozenset({"MEMCTL_CONFIG", "MEMCTL_DEBUG", PART_VARIABLE})
"""Variables that are not options."""
FORMAT = "format"
"""The option with an optional default for all commands."""

_NEVER = {"config", "version", "help", "show-completion"}
# Options that destroy data, or permit it, must be given on the command line.  A default in a file
# or a variable would also apply to commands that its author did not think of.
_SAID = frozenset(
    ("yes", "all", "lossy", "backup", "force", "repair", "prune", "rotate", "shard", "shards")
)
_ONLY_SAID = "a default would also apply to commands for which nobody intended the option"


class Origin(StrEnum):
    """The place where the value of an option is set."""

    COMMAND_LINE = "command-line"
    ENVIRONMENT = "environment"
    FILE = "file"
    DEFAULT = "default"


class Option(Struct, frozen=True):
    """An option of a command; ``words`` name the command, such as ``("mark", "list")``.

    An option of memctl itself has no words.
    """

    words: tuple[str, ...]
    name: str
    """The long name, without leading dashes."""
    parameter: Any
    """The option in the parser."""

    @property
    def key(self) -> str:
        """The key of the option in the configuration, such as ``defaults.mark.list.format``."""
        return ".".join(("defaults", *self.words, self.name))

    @property
    def variables(self) -> tuple[str, ...]:
        """The environment variables of the option, such as ``MEMCTL_MARK_LIST_FORMAT``.

        If several are set, the first counts.
        """
        own = _variable(*self.words, self.name)
        return (own, _variable(FORMAT)) if self.name == FORMAT else (own,)

    @property
    def settable(self) -> bool:
        """True if the environment or the configuration may set a default for the option."""
        return self.name not in _SAID and self.name != "json"


class Setting(Struct, frozen=True):
    """A default of an option that the environment or the configuration sets."""

    option: Option
    raw: bool | str | list[str]
    """The value as it would be typed."""
    value: Any
    """The value as parsed."""
    source: Origin
    where: str
    """The variable, or the key of the configuration."""


class Settled(Struct):
    """The configuration of a run, and the error that prevents the run, if any."""

    config: Config = field(default_factory=Config)
    refusal: MemctlError | None = None


def _variable(*words: str) -> str:
    return "_".join((PREFIX, *words)).upper().replace("-", "_")


def options(words: tuple[str, ...], command: Any) -> Iterator[Option]:
    """Yield the options of a command without subcommands, or of memctl itself without ``words``.

    Options that never have a default, such as ``--help``, are left out.
    """
    for parameter in command.params:
        if parameter.param_type_name != "option":
            continue
        name = next(name for name in parameter.opts if name.startswith("--")).removeprefix("--")
        if name not in _NEVER:
            yield Option(words, name, parameter)


def settle(context: typer.Context, name: str, command: Any) -> Settled:
    """Read the configuration, and set the defaults of memctl's options and of a command's options.

    ``name`` is the name of the command.  The options of the command must not be parsed yet.  An
    error is returned, not raised: the command reports it in the format of its report, and
    ``config init`` ignores it.
    """
    settled = Settled()
    environment = configuration.environment()
    try:
        settled.config = configuration.load(context.params["config"], environment)
    except MemctlError as error:
        settled.refusal = error
    try:
        defaults = Defaults(settled.config, environment, context)
        for setting in defaults.of((), context.command):
            parameter = setting.option.parameter.name
            if not is_given(context, parameter):
                context.params[parameter] = setting.value
        context.default_map = {name: defaults.map((name,), command)}
    except MemctlError as error:
        settled.refusal = settled.refusal or error
    return settled


def is_given(context: typer.Context, parameter: str) -> bool:
    """Return whether the command line itself sets a parameter."""
    source = context.get_parameter_source(parameter)
    return source is not None and source.name == "COMMANDLINE"


class Defaults:
    """The defaults of options from the environment and from ``[defaults]`` of the configuration.

    Every method raises ``UsageError`` if a default is not valid.
    """

    def __init__(
        self, config: Config, environment: Mapping[str, str], context: typer.Context
    ) -> None:
        """``context`` is the parser's context of memctl itself, not of a command."""
        self._path = config.path
        self._tables = config.defaults
        self._environment = environment
        self._context = context
        if self._tables:
            names = [option.name for option in options((), context.command)]
            commands = context.command.list_commands(context)  # type: ignore[attr-defined]
            self._refuse_unknown((), self._tables, [*names, FORMAT], commands)

    def of(self, words: tuple[str, ...], command: Any) -> Iterator[Setting]:
        """Yield the defaults that are set for a command's options; without ``words``, for memctl's.

        A format that is set for all reports is a default of each command.
        """
        table = self._table(words)
        found = list(options(words, command))
        if words:
            self._refuse_unknown(words, table, [option.name for option in found], ())
        for option in found:
            setting = self._setting(option, table)
            if setting is not None:
                yield setting

    def map(self, words: tuple[str, ...], command: Any) -> dict[str, Any]:
        """Return the defaults of a command and its subcommands as a ``default_map`` of Click."""
        below = getattr(command, "commands", None)
        if below is not None:
            self._refuse_unknown(words, self._table(words), (), below)
            return {name: self.map((*words, name), one) for name, one in below.items()}
        return {
            setting.option.parameter.name: _for_parser(setting)
            for setting in self.of(words, command)
        }

    def _table(self, words: tuple[str, ...]) -> dict[str, Any]:
        table = self._tables
        for word in words:
            table = table.get(word, {})
        return table

    def _refuse_unknown(
        self, words: tuple[str, ...], table: dict[str, Any], names: Any, commands: Any
    ) -> None:
        place = ".".join(("defaults", *words, ""))
        refuse_unknown(self._path, place, table, [*names, *commands])
        for key, value in table.items():
            if key in commands and not isinstance(value, dict):
                raise UsageError(
                    f"{self._path}: {place}{key} is not a table", f"write [{place}{key}]"
                )
            if key not in commands and isinstance(value, dict):
                raise UsageError(f"{self._path}: {place}{key} is a table", f"write {key} = ...")

    def _setting(self, option: Option, table: dict[str, Any]) -> Setting | None:
        for variable in option.variables:
            if self._environment.get(variable):
                text = self._environment[variable]
                given: Any = text.splitlines() if option.parameter.multiple else text
                return self._checked(option, given, Origin.ENVIRONMENT, variable)
        if option.name in table:
            given = _as_typed(option, table[option.name], f"{self._path}: {option.key}")
            return self._checked(option, given, Origin.FILE, option.key)
        if option.name == FORMAT and FORMAT in self._tables:
            key = f"defaults.{FORMAT}"
            given = _as_typed(option, self._tables[FORMAT], f"{self._path}: {key}")
            return self._checked(option, given, Origin.FILE, key)
        return None

    def _checked(self, option: Option, given: Any, source: Origin, where: str) -> Setting:
        place = where if source is Origin.ENVIRONMENT else f"{self._path}: {where}"
        command = " ".join(("memctl", *option.words))
        if option.name == "json":
            raise UsageError(f"{place}: --json is short for --format json", 'set format to "json"')
        if not option.settable:
            raise UsageError(
                f"{place}: {_spelt(option)} can be set on the command line only", _ONLY_SAID
            )
        try:
            value = option.parameter.process_value(self._context, given)
        except typer.BadParameter as error:
            message = error.message.removeprefix("Value error, ")
            known = option.parameter.shell_complete(self._context, "")
            words = [item.value for item in known]
            hint = did_you_mean(str(given), words, f"see {command} --help")
            raise UsageError(f"{place}: {message}", hint) from error
        return Setting(option, given, value, source, where)


def _spelt(option: Option) -> str:
    return "--no-backup" if option.name == "backup" else f"--{option.name}"


def _as_typed(option: Option, value: Any, place: str) -> bool | str | list[str]:
    """Return a TOML value as typed on the command line; for a flag, True or False.

    Raises:
        UsageError: the option cannot have such a value; the error begins with ``place``.
    """
    parameter = option.parameter
    if parameter.is_flag:
        if isinstance(value, bool):
            return value
        raise UsageError(f"{place} must be true or false", f"write {option.name} = true")
    if parameter.multiple and isinstance(value, list):
        return [_text(one, option, place) for one in value]
    text = _text(value, option, place)
    return [text] if parameter.multiple else text


def _text(value: Any, option: Option, place: str) -> str:
    if isinstance(value, bool | list | dict):
        raise UsageError(f"{place} must be a single value", f'write {option.name} = "..." ')
    return str(value)


def _for_parser(setting: Setting) -> Any:
    """Return the value of a default for Click."""
    if isinstance(setting.value, bool):
        return setting.value
    if isinstance(setting.value, Path):
        return str(setting.value.expanduser())  # no shell has expanded the path
    return setting.raw
