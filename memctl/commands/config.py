"""``memctl config``: writes, shows and checks the configuration."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import typer

from memctl import config as configuration
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
from memctl.commands._run import has_place, rotation, wait_for
from memctl.config import Config, ConfiguredModel, write_sample
from memctl.config.encryption import read_encryption
from memctl.config.holds import read_holds
from memctl.config.offload import read_offload
from memctl.config.retention import read_policies
from memctl.config.shown import HIDDEN, exposed, redacted, shown
from memctl.encryption import check_recipients, parse_identities
from memctl.errors import MemctlError, NotFound, Unavailable, Uninitialised, UsageError
from memctl.inference.errors import ModelError
from memctl.location import Location, visible
from memctl.machine.installation import conflict_warnings
from memctl.ops.compress.chunks import ChunkedSummarizer
from memctl.output import tables
from memctl.output.printout import Printout
from memctl.registry import make_store, newest, title_of
from memctl.reports.config import (
    CheckError,
    CheckRow,
    ConfigCheckReport,
    ConfigFile,
    ConfigReport,
    SettingRow,
)
from memctl.store import Store
from memctl.text.numbers import count
from memctl.text.words import nearest
from memctl.wrappers.timeout import Timeout

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
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
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
    all_: Annotated[
        bool, typer.Option("--all", help="Show every option of every command.")
    ] = False,
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
        float,
        typer.Option(
            "--timeout", metavar="SECONDS", min=0.1, help="Wait at most this long for each."
        ),
    ] = 20.0,
    no_model: Annotated[
        bool,
        typer.Option(
            "--no-model", help="Check the settings of summarizers and embedders without a request."
        ),
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
    read_policies(config)
    run.encryption()  # raises if its table is not valid
    for file in exposed(config):
        run.output.warn(f"{file} has a secret, and other users can read it: chmod 600 {file}")
    found = wait_for(check_all(config, configuration.environment(), timeout, asks=not no_model))
    run.output.printout = _checked(found)
    failed = sum(not one.ok for one in found)
    if failed:
        raise Unavailable(f"{failed} of {count(len(found), 'check')} failed", HINT)
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
        for option in options(words, command):
            setting = said.get(option.name)
            if not words and is_given(root, option.parameter.name):
                value = root.params[option.parameter.name]
                rows.append(_row(option.key, _plain(value), Origin.COMMAND_LINE))
            elif setting is not None and setting.where not in told:
                rows.append(_row(option.key, _plain(setting.raw), setting.source, setting.where))
            elif setting is None and option.settable and (every or not words):
                rows.append(_row(option.key, _plain(option.parameter.default), Origin.DEFAULT))
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
        for option in options(words, command):
            known.update(option.variables)
    for name in configuration.environment():
        if name.startswith(f"{PREFIX}_") and name not in known:
            near = nearest(name, known, 0.85)
            if near:
                run.output.warn(f"unknown variable {name}; did you mean {near}?")


def _shown(file: ConfigFile, found: list[SettingRow]) -> Printout:
    return Printout(lambda: ConfigReport(file, found), lambda: tables.config_settings(file, found))


def _checked(found: list[CheckRow]) -> Printout:
    return Printout(lambda: ConfigCheckReport(found), lambda: tables.config_checks(found))


HINT = "see the report for each"
T = TypeVar("T")

_HINTS = {
    "timeout": "raise --timeout; a local model may have to be loaded first",
    "rate-limited": "try again later: the server is busy",
    "server-error": "try again later: the server reports a problem of its own",
    "program-failed": "run the command by hand, with a conversation on its standard input",
    "bad-reply": "compress would fail, too: check the address and the model, or the command",
}
_NOT_ASKED = "not asked: --no-model"


async def check_all(
    config: Config, environment: Mapping[str, str], seconds: float, *, asks: bool = True
) -> list[CheckRow]:
    """Check all configured stores, models and keys at the same time.

    A check fails after ``seconds``.  Without ``asks``, summarizers and embedders get no request.
    """
    trial = _Trial(config, environment, seconds, asks)
    checks = [
        ("store", trial.store, config.stores),
        ("summarizer", trial.summarizer, config.summarizers),
        ("embedder", trial.embedder, config.embedders),
        ("encryption", trial.keys, ["keys"] if config.encryption else []),
    ]
    tried = [
        _tried(CheckRow(what, name), check, seconds)
        for what, check, names in checks
        for name in names
    ]
    return await asyncio.gather(*tried)


async def _tried(
    check: CheckRow, work: Callable[[CheckRow], Awaitable[None]], seconds: float
) -> CheckRow:
    begun = time.monotonic()
    try:
        await work(check)
    except MemctlError as error:
        _fail(check, error.code, error.message, error.hint)
    except ModelError as error:
        _fail(check, error.code, error.message, _HINTS.get(error.code))
    except TimeoutError:
        _fail(check, "timeout", f"no answer within {seconds:g} s", _HINTS["timeout"])
    check.seconds = round(time.monotonic() - begun, 3)
    return check


def _fail(check: CheckRow, code: str, message: str, hint: str | None) -> None:
    check.ok, check.error = False, CheckError(code, message, hint)


@dataclass(frozen=True)
class _Trial:
    """The checks of a store, a summarizer and an embedder, each by its name, and of the keys."""

    config: Config
    environment: Mapping[str, str]
    seconds: float
    """The time limit of a check."""
    asks: bool
    """True if summarizers and embedders get a request."""

    async def store(self, check: CheckRow) -> None:
        # Fetching a password and loading a driver may block; threads keep the other checks going.
        alias = self.config.stores[check.name]
        location = await asyncio.to_thread(alias.locate, self.environment, self.seconds)
        location = self.config.with_keys(location, self.environment)
        check.kind = location.kind
        location = await asyncio.to_thread(newest, location)
        store = await asyncio.to_thread(make_store, location)
        check.capabilities = store.features.capabilities()
        try:
            async with Timeout(store, self.seconds) as opened:
                check.capabilities = opened.features.capabilities()
                check.note = f"opened as {title_of(opened.location)}; {await _contents(opened)}"
        except Uninitialised as error:
            check.note = f"{error.message}; usable as a target"
        except NotFound:
            if location.kind != "archive" or not has_place(location):
                raise
            check.note = await asyncio.to_thread(_files_note, location)

    async def summarizer(self, check: CheckRow) -> None:
        from memctl.summarizers.registry import make_summarizer  # only needed for a summarizer

        check.kind = _model_kind(self.config.summarizers[check.name])
        made = await self._made(check.name, self.config.summarizer, make_summarizer)
        ChunkedSummarizer(made, lambda *_: None)  # raises if the context window is too small
        if self.asks:
            async with asyncio.timeout(self.seconds), made as summarizer:
                await summarizer.check()
        check.note = "wrote a summary" if self.asks else _NOT_ASKED

    async def embedder(self, check: CheckRow) -> None:
        from memctl.embedders.registry import make_embedder  # only needed for an embedder

        check.kind = _model_kind(self.config.embedders[check.name])
        made = await self._made(check.name, self.config.embedder, make_embedder)
        check.note = _NOT_ASKED
        if self.asks:
            async with asyncio.timeout(self.seconds), made as embedder:
                check.note = f"{await embedder.dimensions()} dimensions"

    async def keys(self, check: CheckRow) -> None:
        found = read_encryption(self.config, self.environment, self.seconds)
        check_recipients(found.recipients, "encryption.recipients")
        check.note = count(len(found.recipients), "recipient")
        if found.identities is not None:
            keys = parse_identities(await asyncio.to_thread(found.identities))
            check.note += f", {count(len(keys), 'identity')}"

    async def _made(
        self, name: str, find: Callable[[str], ConfiguredModel], make: Callable[..., T]
    ) -> T:
        """Return what ``make`` makes of a configured model, whose key may take a while to get."""

        def made() -> T:
            configured = find(name)
            return make(configured.settings, configured.key(self.environment, self.seconds))

        return await asyncio.to_thread(made)


async def _contents(store: Store) -> str:
    """Return in a few words whether a store has memories, damaged memories included."""
    store.skip_damage()
    try:
        return "no memories" if await store.is_empty() else "memories found"
    except UsageError as error:  # a vector store that cannot list its documents
        return error.message


def _model_kind(table: Any) -> str | None:
    kind = table.get("kind") if isinstance(table, dict) else None
    return kind if isinstance(kind, str) else None


def _files_note(archive: Location) -> str:
    """Return the note on an archive that does not exist, which may be the name of a rotation.

    Raises:
        MemctlError: the folder or the bucket cannot be listed.
    """
    files = rotation(archive)
    if not files:
        return "there is no archive yet; usable as a target"
    newest = visible(files[0].file.name)
    return f"the name of a rotation; newest of {count(len(files), 'file')}: {newest}"
