"""``memctl config``: writes, shows and checks the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from memctl import config as configuration
from memctl.commands._config_check import check_all
from memctl.commands._context import Run, run_as_it_is
from memctl.commands._defaults import (
    FORMAT,
    OWN_VARIABLES,
    PREFIX,
    Defaults,
    Origin,
    is_given,
    options,
)
from memctl.commands._options import group, takes_options
from memctl.commands._parameters import option
from memctl.commands._run import wait_for
from memctl.config import Config, write_sample
from memctl.config.holds import read_holds
from memctl.config.offload import read_offload
from memctl.config.shown import HIDDEN, exposed, redacted, shown
from memctl.errors import Unavailable, UsageError
from memctl.machine.installation import conflict_warnings
from memctl.output import tables
from memctl.output.printout import Printout
from memctl.reports.config import (
    CheckRow,
    ConfigCheckReport,
    ConfigFile,
    ConfigReport,
    SettingRow,
)
from memctl.text.numbers import count
from memctl.text.words import nearest

app = group()


@app.callback()
def _config() -> None:
    """Write, show or check the configuration.

    Examples:
      memctl config init
      memctl config show
      memctl config check
    """


@app.command("init")
def init(
    context: typer.Context,
    force: Annotated[bool, option("--force", "Replace an existing file.")] = False,
) -> None:
    """Write a configuration file with every setting, commented out.

    It is written to --config, to MEMCTL_CONFIG, or to the default place, with mode 0600.

    Examples:
      memctl config init
      memctl config init --config ./memctl.toml
    """
    run = run_as_it_is(context)
    path = configuration.place(run.config_file, configuration.environment())
    write_sample(path, force=force)
    run.output.note(f"{path} written; edit it, then run memctl config check")


@app.command("show")
@takes_options
def show(
    context: typer.Context,
    run: Run,
    all_: Annotated[bool, option("--all", "Show every option of every command.")] = False,
) -> None:
    """Show each setting and where it comes from.

    Passwords, keys and the commands that print them are hidden.

    Examples:
      memctl config show
      memctl config show --all
    """
    root = context.find_root()
    file = _file(run)
    found = [
        _row(one.key, one.value, Origin.FILE if one.written else Origin.DEFAULT)
        for one in shown(run.configuration())
    ]
    commands = _loaded(run, root)
    found += _options(run, root, commands, every=all_)
    _warn_of_variables(run, root, commands)
    run.output.printout = _shown(file, found)
    run.output.emit()


@app.command("check")
@takes_options
def check(
    context: typer.Context,
    run: Run,
    timeout: Annotated[
        float, option("--timeout SECONDS", "Wait at most this long for each.", min=0.1)
    ] = 20.0,
    no_model: Annotated[
        bool,
        option("--no-model", "Check the settings of summarizers and embedders without a request."),
    ] = False,
) -> None:
    """Try every store, summarizer, embedder and key of the configuration.

    Opens each store and looks for memories, asks each summarizer for the summary of two messages,
    in the form that compress needs, and each embedder for a vector, and reads the keys of
    encryption. Exit code 3 means that a check failed.

    Examples:
      memctl config check
      memctl config check --timeout 5
      memctl config check --no-model
    """
    root = context.find_root()
    commands = _loaded(run, root)
    _options(run, root, commands, every=False)
    _warn_of_variables(run, root, commands)
    for warning in conflict_warnings():
        run.output.warn(warning)
    config = run.configuration()
    read_holds(config)
    read_offload(config)
    run.encryption()  # raises if its table is not valid
    for file in exposed(config):
        run.output.warn(f"{file} has a secret, and other users can read it: chmod 600 {file}")
    found = wait_for(check_all(config, configuration.environment(), timeout, asks=not no_model))
    run.output.printout = _checked(found)
    failed = sum(not one.ok for one in found)
    if failed:
        raise Unavailable(
            f"{failed} of {count(len(found), 'check')} failed", "see the report for each"
        )
    run.output.emit()


def _file(run: Run) -> ConfigFile:
    environment = configuration.environment()
    config = run.configuration()
    source = Origin.DEFAULT
    if run.config_file is not None:
        source = Origin.COMMAND_LINE
    elif environment.get("MEMCTL_CONFIG"):
        source = Origin.ENVIRONMENT
    return ConfigFile(str(config.path), config.found, source.value)


def _row(key: str, value: Any, source: Origin, where: str = "") -> SettingRow:
    if key == "defaults.ping" and value is not None:
        value = HIDDEN  # the path of the URL is a secret of the monitor
    return SettingRow(key, value, source.value, where or None)


def _loaded(run: Run, root: Any) -> dict[str, Any]:
    """Return all commands by name; warn of plugins that cannot be loaded, and leave them out.

    ``root`` is Click's context of memctl itself.
    """
    group: Any = root.command
    found = {}
    for name in group.list_commands(root):
        try:
            found[name] = group.get_command(root, name)
        except UsageError as error:
            run.output.warn(error.message)
    return found


def _options(run: Run, root: Any, commands: Mapping[str, Any], *, every: bool) -> list[SettingRow]:
    """Return a row for each option of memctl itself, and for each default of a command's option.

    With ``every``, return a row for every option of every command, with or without a default.
    ``root`` is Click's context of memctl itself.

    Raises:
        UsageError: the value that is set for an option is not valid, or names no summarizer or
            embedder.
    """
    environment, config = configuration.environment(), run.configuration()
    defaults = Defaults(config, environment, root)
    for name, command in commands.items():
        defaults.map((name,), command)  # raises for unknown keys
    rows = _of_all_reports(config, environment)
    told = {row.where for row in rows}
    for words, command in _commands(root, commands):
        said = {setting.option.name: setting for setting in defaults.of(words, command)}
        if (setting := said.get("summarizer")) is not None:
            config.summarizer(str(setting.raw))
        if (setting := said.get("embedder")) is not None:
            config.embedder(str(setting.raw))
        for one in options(words, command):
            setting = said.get(one.name)
            if not words and is_given(root, one.parameter.name):
                value = root.params[one.parameter.name]
                rows.append(_row(one.key, _plain(value), Origin.COMMAND_LINE))
            elif setting is not None and setting.where not in told:
                rows.append(_row(one.key, _plain(setting.raw), setting.source, setting.where))
            elif setting is None and one.settable and (every or not words):
                rows.append(_row(one.key, _plain(one.parameter.default), Origin.DEFAULT))
    return rows


def _of_all_reports(config: Config, environment: Mapping[str, str]) -> list[SettingRow]:
    """Return a list with the default of ``--format`` for all commands, if set."""
    key, variable = f"defaults.{FORMAT}", f"{PREFIX}_{FORMAT}".upper()
    if environment.get(variable):
        return [_row(key, environment[variable], Origin.ENVIRONMENT, variable)]
    if FORMAT in config.defaults:
        return [_row(key, config.defaults[FORMAT], Origin.FILE, key)]
    return []


def _commands(root: Any, commands: Mapping[str, Any]) -> list[tuple[tuple[str, ...], Any]]:
    """Return memctl itself and all commands without subcommands, with their words.

    The words are those to type after ``memctl``.  ``root`` is Click's context of memctl itself.
    """
    found: list[tuple[tuple[str, ...], Any]] = [((), root.command)]
    for name, command in commands.items():
        below = getattr(command, "commands", None)
        if below is None:
            found.append(((name,), command))
        else:
            found += [((name, word), one) for word, one in below.items()]
    return found


def _plain(value: Any) -> Any:
    """Return the value of an option for JSON, without passwords."""
    if isinstance(value, list):
        return [redacted(str(one)) for one in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    return redacted(str(value))


def _warn_of_variables(run: Run, root: Any, commands: Mapping[str, Any]) -> None:
    """Warn of unknown environment variables that resemble the variable of an option."""
    known = set(OWN_VARIABLES)
    for words, command in _commands(root, commands):
        for one in options(words, command):
            known.update(one.variables)
    for name in configuration.environment():
        if name.startswith(f"{PREFIX}_") and name not in known:
            near = nearest(name, known, 0.85)
            if near:
                run.output.warn(f"unknown variable {name}; did you mean {near}?")


def _shown(file: ConfigFile, found: list[SettingRow]) -> Printout:
    return Printout(lambda: ConfigReport(file, found), lambda: tables.config_settings(file, found))


def _checked(found: list[CheckRow]) -> Printout:
    return Printout(lambda: ConfigCheckReport(found), lambda: tables.config_checks(found))
