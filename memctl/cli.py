"""The command line: the app, its lazily imported commands, and the exit code of each error."""

from __future__ import annotations

import errno
import gc
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, MutableMapping
from enum import StrEnum
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from memctl import plugins
from memctl.commands._context import Run
from memctl.commands._help import Helpful, Rows
from memctl.commands._mistakes import ARGUMENTS, options_of, unknown_command, usage_error
from memctl.commands._parameters import option
from memctl.errors import MemctlError, Unavailable, UsageError
from memctl.location import visible
from memctl.machine import signals, streams
from memctl.machine.system import EXHAUSTED, PART_VARIABLE
from memctl.output.terminal import Color, Format, LogFormat, Output
from memctl.version import __version__

ABOUT = "Administer the memory of LLM agents where it is stored."

GROUPS = {
    "Look": {
        "inspect": ("inspect", "Show what is in a store: totals, memories or messages."),
        "tail": ("tail", "Show new messages as they come."),
        "context": ("context", "Show what an agent sends to its model."),
        "search": ("search", "Find messages by words or by meaning, best first."),
        "browse": ("browse", "Look through a store in the terminal; --write changes it."),
        "report": ("report", "Write a page with charts of what is in a store."),
    },
    "Move": {
        "export": (
            "export",
            "Write memories to a file: an archive, HTML, Markdown, CSV, OpenAI messages.",
        ),
        "import": ("import_", "Load an archive, a state_dict or session states into a store."),
        "migrate": ("migrate", "Copy memories to another store; run it again to copy what is new."),
    },
    "Change": {
        "delete": ("delete", "Delete the selected messages."),
        "mark": ("mark:app", "Add, remove, rename or list marks."),
        "rename": ("rename", "Give a user, a session or a project another name."),
        "compress": ("compress", "Summarize old messages."),
        "offload": ("offload", "Move large contents out of messages, to files."),
        "rehydrate": ("rehydrate", "Put offloaded contents back into messages."),
        "erase": ("erase", "Erase a user or a session. Cannot be undone."),
        "redact": ("redact", "Take secrets or texts out of stores. Cannot be undone."),
        "retain": ("retain", "Carry out the retention policies: archive first, then remove."),
    },
    "Keep safe": {
        "hold": ("hold:app", "Add, remove or list holds, which keep memories from deletion."),
        "verify": ("verify", "Compare two stores, message by message."),
        "doctor": ("doctor", "Find and repair problems in a store."),
        "history": ("history", "List the runs that can be undone."),
        "undo": ("undo", "Undo a run."),
        "restore": ("restore", "Put back what an archive has, and a store lost or changed."),
    },
    "Set up": {
        "config": ("config:app", "Write, show or check the configuration."),
        "index": ("index:app", "List, update or remove the indexes of searches."),
        "stores": (
            "stores",
            "List the kinds of store, or the tables of messages in a SQL database.",
        ),
        "help": ("help:help_", "Explain a command or a topic."),
        "version": ("version", "Show the version; with --verbose, drivers, extras and paths."),
    },
}
"""The commands by purpose, with their lines in the help: showing the help imports no command.

The first text is the name of the command's module; after a colon, the name of its function or app,
if this is not the name of the module.
"""

COMMANDS = {name: entry for group in GROUPS.values() for name, entry in group.items()}

MOST_USED = {
    "inspect": "STORE",
    "search": "STORE QUERY",
    "export": "STORE -o FILE",
    "migrate": "SRC DST",
    "delete": "STORE",
    "doctor": "STORE",
    "undo": "[RUN]",
}
"""The commands in the output of plain ``memctl``, with their arguments."""

SETTLED = "memctl.settled"
"""The key in ``Context.meta`` of the configuration that applies to the command."""
_PIPE_CLOSED = 128 + signal.SIGPIPE


class LazyCommands(MutableMapping[str, Any]):
    """A mapping of command names to commands, which imports the module of a command on first use.

    Names that are not built in are looked up among the commands of plugins.
    """

    def __init__(self) -> None:
        self._built: dict[str, TyperCommand] = {}

    def __getitem__(self, name: str) -> TyperCommand:
        if name not in COMMANDS:
            return _plugin(name)
        if name not in self._built:
            from memctl.commands._options import build  # not needed to show the help

            module, _, function = COMMANDS[name][0].partition(":")
            command = getattr(import_module(f"memctl.commands.{module}"), function or module)
            self._built[name] = build(command, name)
        return self._built[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)

    def __setitem__(self, name: str, command: Any) -> None:
        raise TypeError("commands are listed in COMMANDS")

    def __delitem__(self, name: str) -> None:
        raise TypeError("commands are listed in COMMANDS")


class Memctl(Helpful, TyperGroup):
    """The root command: imports commands lazily and turns every error into an exit code."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = LazyCommands()

    def main(self, *args: Any, **settings: Any) -> Any:
        """Run a command; if a shell asks for completions, print them instead."""
        if shell := os.environ.get("_MEMCTL_COMPLETE"):
            from memctl import completion  # only needed after a TAB

            lines = {name: line for name, (_, line) in COMMANDS.items()}
            completion.main(self, lines, shell, sys.argv[1:])
            return None
        return super().main(*args, **settings)

    def make_context(self, *args: Any, **settings: Any) -> Any:
        """Parse memctl's own options, which may be before or after the command."""
        name, line, *more = args
        given = tuple(line)
        try:
            if not given and not settings.get("resilient_parsing"):
                _orient()
                raise typer.Exit(UsageError.exit_code)
            context = super().make_context(name, self._own_options_first(line), *more, **settings)
        except OSError as error:
            raise _unwritten(error, Output(arguments=given, color=_color(given))) from error
        except Exception as error:
            if found := usage_error(error, COMMANDS, given=given):
                Output(arguments=given, color=_color(given)).fail(found)
                raise typer.Exit(found.exit_code) from error
            raise
        context.meta[ARGUMENTS] = given
        return context

    def _own_options_first(self, line: list[str]) -> list[str]:
        own = options_of(self)
        for name in ("--version", "--show-completion"):
            del own[name]  # these replace a command
        if not any(word.partition("=")[0] in own for word in line):
            return line
        first: list[str] = []
        rest: list[str] = []
        command: Any = self
        words = iter(line)
        for word in words:
            if word == "--":
                rest += [word, *words]
                break
            name, assigned, _ = word.partition("=")
            if not word.startswith("-"):
                rest.append(word)
                if (below := getattr(command, "commands", None)) is not None:
                    try:
                        command = below[word]
                    except (KeyError, UsageError):
                        return line  # the command is unknown; the parser reports the error
                continue
            others = {} if command is self else options_of(command)
            is_own = name in own and name not in others
            found = [word]
            if not assigned and (own[name] if is_own else others.get(name, False)):
                found += islice(words, 1)
                is_own = is_own and len(found) > 1  # if the value is missing, the parser reports it
            (first if is_own else rest).extend(found)
        return first + rest

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - the signature of Typer
        return [*COMMANDS, *_plugins()]

    def listing(self, ctx: Any) -> dict[str, Rows]:  # noqa: ARG002 - the signature of Helpful
        from memctl.commands._topics import TOPICS  # only the help lists them

        found = {
            title: [(name, line) for name, (_, line) in group.items()]
            for title, group in GROUPS.items()
        }
        if others := _plugins():
            found["Plugins"] = [(name, _plugin_line(name)) for name in others]
        return found | {"Topics (memctl help TOPIC)": list(TOPICS.items())}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that ``args`` names, with the defaults of the configuration applied.

        Raises:
            UsageError: there is no such command.
        """
        word = args[0]
        # Looking for plugins takes longer than building a command.
        known = word in COMMANDS or word.startswith("-")
        if not known and word not in (commands := self.list_commands(ctx)):
            raise unknown_command(word, commands)
        found = super().resolve_command(ctx, args)
        name, command, _ = found
        if name is not None and not ctx.resilient_parsing:
            from memctl.commands._defaults import settle  # not needed to show the help

            ctx.meta[SETTLED] = settle(ctx, name, command)
        return found

    def invoke(self, ctx: Any) -> Any:
        try:
            result = self._run(ctx)
        except BaseException as end:
            if not _is_help(end):
                _tell(ctx, end)
            raise
        _tell(ctx, None)
        return result

    def _run(self, ctx: Any) -> Any:
        try:
            return self._run_and_report(ctx)
        except OSError as error:
            raise _unwritten(error, _output(ctx)) from error

    def _run_and_report(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            _output(ctx).done(ctx.invoked_subcommand)
            return result
        except MemctlError as error:
            cause = _output(ctx).cause(error)
            _output(ctx).fail(cause, ctx.invoked_subcommand)
            raise typer.Exit(cause.exit_code) from cause
        except KeyboardInterrupt as end:
            raise typer.Exit(128 + signals.stopped_by(end)) from end
        except (typer.Exit, typer.Abort):
            raise
        except OSError as error:
            if error.filename is None:
                raise
            refused = _exhausted(error) or _unusable(error)
            _output(ctx).fail(refused, ctx.invoked_subcommand)
            raise typer.Exit(refused.exit_code) from error
        except Exception as error:
            if found := usage_error(
                error, COMMANDS, ctx.command, called=ctx.invoked_subcommand or ""
            ):
                _output(ctx).fail(found, ctx.invoked_subcommand or "")
                raise typer.Exit(found.exit_code) from error
            if type(error).__module__.startswith("typer"):
                raise
            failed = _exhausted(error) or _unforeseen(error)
            _output(ctx).fail(failed, ctx.invoked_subcommand)
            raise typer.Exit(failed.exit_code) from error


def _orient() -> None:
    """Print what memctl is, the most used commands, and how to get help."""
    from memctl.commands._help import Page, columns, render

    rows = [(f"{name} {rest}", COMMANDS[name][1]) for name, rest in MOST_USED.items()]
    guide = [
        ("memctl --help", "All commands, topics and options."),
        ("memctl help COMMAND", "A command, with examples."),
        ("memctl help stores", "How to write a STORE."),
    ]
    examples = ["memctl inspect agents.db", "memctl export agents.db -o backup.ndjson.zst"]
    found = Page("memctl COMMAND [options]", [ABOUT], examples)
    found.commands = {"Most used": rows, "Help": guide}
    typer.echo(render(found, columns()), err=True)


def _plugins() -> list[str]:
    return [name for name in plugins.names(plugins.COMMANDS) if name not in COMMANDS]


def _plugin(name: str) -> TyperCommand:
    """Return the command of a plugin.

    Raises:
        KeyError: no plugin has a command of this name.
        UsageError: the command cannot be loaded, or is not a command.
    """
    if name not in _plugins():
        raise KeyError(name)
    from memctl.commands._options import build  # most users have no plugin

    function = plugins.load(plugins.COMMANDS, name)
    gc.enable()  # ``main`` disables it; a plugin's command may run an event loop of its own
    if not callable(function):
        raise UsageError(
            f"the plugin {name!r} is not a command", "its entry point names a function for Typer"
        )
    return build(function, name)


def _plugin_line(name: str) -> str:
    """Return the description of a plugin's command, or why it cannot be loaded."""
    try:
        text = _plugin(name).help or ""
    except UsageError as error:
        return f"({error.message})"
    return text.strip().partition("\n")[0]


def _color(words: tuple[str, ...]) -> Color:
    """Return the value of ``--color`` in an invalid command line, or ``auto``."""
    found = re.search(r"--color[= ](always|never)", " ".join(words))
    return Color(found[1]) if found else Color.AUTO


def _output(ctx: Any) -> Output:
    if isinstance(ctx.obj, Run):
        return ctx.obj.output
    return Output(arguments=ctx.meta.get(ARGUMENTS, ()), color=ctx.params.get("color", Color.AUTO))


def _is_help(end: BaseException) -> bool:
    return isinstance(end, typer.Exit) and not end.exit_code


def _tell(ctx: Any, end: BaseException | None) -> None:
    """Send the result of the run to ``--ping`` and ``--metrics-file``.

    ``end`` is the exception that ends the run, or None.
    """
    run = ctx.obj
    if not isinstance(run, Run) or run.monitoring is None:
        return
    match end:
        case None:
            code = 0
        case _:
            code = getattr(end, "exit_code", 1)
    cause = None if end is None else end.__cause__
    error = cause if isinstance(cause, MemctlError) else None
    with signals.caught(signals.interrupt):
        run.monitoring.tell(run.output, ctx.invoked_subcommand, run.store, code, error)


def _unwritten(error: OSError, output: Output) -> typer.Exit:
    """Report that the output cannot be written; return the exception that ends memctl.

    If the reader closed the output, nothing is reported.
    """
    if isinstance(error, BrokenPipeError):
        # The reader closed the pipe on purpose.  Typer would exit with 1, as after an error.
        return typer.Exit(_PIPE_CLOSED)
    # A failed file would have a name in the error: only stdout can have failed here.
    unsaid = error.__context__  # the error that was being reported
    failure = _exhausted(error) or Unavailable(
        f"the output cannot be written: {error.strerror}",
        f"the lost message: {unsaid.message}" if isinstance(unsaid, MemctlError) else None,
    )
    output.printout, output.listing, output.format = None, None, Format.TABLE
    output.fail(failure)
    return typer.Exit(failure.exit_code)


def _unusable(error: OSError) -> Unavailable:
    """Return the error for a file that the operating system refuses to use."""
    name = os.fsdecode(error.filename) if isinstance(error.filename, bytes) else error.filename
    return Unavailable(f"{visible(str(name))} cannot be used: {error.strerror}")


_SQLITE_UNWRITTEN = (10, 13)
"""SQLITE_IOERR and SQLITE_FULL.  The errors of stores in SQLite have other classes here."""


def _exhausted(error: Exception) -> Unavailable | None:
    """Return the error of memctl if memory, file handles or temporary files ran out; else None."""
    number, text = getattr(error, "errno", None), str(error)
    if getattr(error, "sqlite_errorcode", 0) & 0xFF in _SQLITE_UNWRITTEN:
        return Unavailable(
            f"cannot write a temporary file: {visible(text)}",
            "free some space, or set TMPDIR to a folder with more",
        )
    if number in EXHAUSTED and number != errno.ENOMEM:
        return Unavailable("too many open files", "raise the limit: ulimit -n")
    if (
        number == errno.ENOMEM
        or isinstance(error, MemoryError)
        or (isinstance(error, ImportError) and "failed to map segment" in text)
        or (isinstance(error, RuntimeError) and text == "can't start new thread")
    ):
        return Unavailable("out of memory", "raise its limit: ulimit -v, or that of the container")
    return None


def _unforeseen(error: Exception) -> MemctlError:
    if os.environ.get("MEMCTL_DEBUG"):
        raise error
    return MemctlError(
        f"unforeseen {type(error).__name__}",
        "this is a bug: run again with MEMCTL_DEBUG=1 and report what it prints",
    )


app = typer.Typer(
    cls=Memctl,
    name="memctl",
    help=ABOUT,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"memctl {__version__}")
        raise typer.Exit


class Shell(StrEnum):
    """A shell for which memctl completes words."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def _show_completion(shell: Shell | None) -> None:
    if shell is not None:
        package = Path(__file__).parent
        places = [folder / "completions" for folder in (package, package.parent)]
        folder = next(place for place in places if place.is_dir())  # a wheel, or a checkout
        typer.echo((folder / f"memctl.{shell}").read_text("utf-8"), nl=False)
        raise typer.Exit


@app.callback()
def _globals(
    context: typer.Context,
    config: Annotated[
        Path | None, option("--config FILE", "Read the configuration from FILE.")
    ] = None,
    quiet: Annotated[
        bool,
        option("-q --quiet", "Print no notes, no progress and no table of a successful change."),
    ] = False,
    verbose: Annotated[bool, option("-v --verbose", "Print more details.")] = False,
    color: Annotated[Color, option("--color WHEN", "Colour the output")] = Color.AUTO,
    log_format: Annotated[
        LogFormat, option("--log-format", "Format of messages on stderr")
    ] = LogFormat.TEXT,
    progress_interval: Annotated[
        float | None,
        option(
            "--progress-interval SECONDS",
            "Print a line of progress on stderr every SECONDS.",
            min=0.1,
        ),
    ] = None,
    ping: Annotated[
        str | None, option("--ping URL", "Call URL after success, and URL/fail after failure.")
    ] = None,
    metrics_file: Annotated[
        Path | None,
        option(
            "--metrics-file FILE", "Write the result for the textfile collector of node_exporter."
        ),
    ] = None,
    show_completion: Annotated[  # noqa: ARG001 - acted on by its callback
        Shell | None,
        option(
            "--show-completion SHELL",
            "Print the completion script of a shell",
            callback=_show_completion,
            is_eager=True,
        ),
    ] = None,
    version: Annotated[  # noqa: ARG001 - acted on by its callback
        bool, option("--version", "Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    monitoring = None
    if (ping, metrics_file) != (None, None):
        from memctl.output.monitoring import Monitoring  # not needed by most runs

        monitoring = Monitoring(ping, metrics_file)
    output = Output(
        arguments=context.meta[ARGUMENTS],
        color=color,
        log_format=log_format,
        quiet=quiet,
        verbose=verbose,
        interval=progress_interval,
    )
    settled = context.meta[SETTLED]
    run = Run(config, output, settled.config, settled.refusal, monitoring)
    if PART_VARIABLE in os.environ:
        from memctl.parts import child  # only needed by a part of a run

        run.orders = child.begin()
        run.refusal = run.orders.refusal() or run.refusal
        run.monitoring = None  # the driver of the run tells how it ended
    context.obj = run


def main() -> None:
    """Run the app."""
    # Imported modules stay until the end: collecting garbage among them would only take time.
    gc.disable()
    streams.prepare()
    try:
        app()
    except BrokenPipeError:
        sys.exit(_PIPE_CLOSED)
    except SystemExit as end:
        if isinstance(end.code, int) and any(each.daemon for each in threading.enumerate()):
            # A daemon thread may be inside OpenSSL.  exit() frees OpenSSL's data, and the process
            # would crash.
            streams.flush()
            sys.stderr.flush()
            os._exit(end.code)
        raise
    finally:
        streams.flush()
        gc.freeze()  # Python would collect garbage once more at exit
