"""The manual, made from the parser: ``memctl.1``, and ``memctl-COMMAND.1`` for each command."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from typer.main import get_command

from memctl import __version__
from memctl.cli import COMMANDS, app
from memctl.errors import exit_codes
from memctl.registry import BUILT_IN

_WIDE = 4096
"""Columns of the parser's help, so that it breaks no line."""

ENVIRONMENT = (
    ("MEMCTL_CONFIG", "The configuration file."),
    (
        "MEMCTL_OPTION, MEMCTL_COMMAND_OPTION",
        "The default of an option, such as MEMCTL_COLOR=never or MEMCTL_INSPECT_LIMIT=20.",
    ),
    ("MEMCTL_DEBUG", "Set to 1, it shows where in memctl a bug is."),
    ("PGPASSWORD, MYSQL_PWD, REDISCLI_AUTH", "Passwords, where the URL has none."),
    ("NO_COLOR", "No colours, if it is set."),
    ("XDG_CONFIG_HOME, XDG_STATE_HOME", "Where the files below are, if not in your home."),
)
FILES = (
    ("~/.config/memctl/config.toml", "The configuration; memctl config init writes it."),
    ("~/.local/state/memctl/runs", "What runs have changed, for memctl undo."),
    ("~/.pgpass", "Passwords of PostgreSQL."),
)
EXAMPLES = (
    ("See what is in a store", "memctl inspect agents.db"),
    ("Back it up", "memctl export agents.db -o nightly.ndjson.zst --rotate daily:7,weekly:4"),
    ("Move house", "memctl migrate agents.db postgresql://ops@db/agents"),
    ("Delete old hints, and take it back", "memctl delete agents.db --mark hint --older-than 7d"),
    ("", "memctl undo"),
)


def pages() -> dict[str, str]:
    """The text of each page by the name of its file."""
    found = {"memctl.1": _page("memctl", _general())}
    for name in COMMANDS:
        found[f"memctl-{name}.1"] = _page(f"memctl-{name}", _of_command(name))
    return found


def _page(title: str, lines: Iterable[str]) -> str:
    # No date: a page must not differ from day to day.
    head = f'.TH {_text(title.upper())} 1 "" "memctl {__version__}" "memctl manual"'
    note = '.\\" Made from the parser by tools/generate.py.'
    return "\n".join([note, head, ".nh", ".ad l", *lines]) + "\n"


def _general() -> Iterator[str]:
    command, context = _command([])
    yield from _section("NAME", [r"memctl \- look after the memory of AgentScope agents"])
    yield from _section("SYNOPSIS", _usage("memctl", command, context))
    about = (
        "memctl inspects, exports, imports, migrates, verifies, deletes, compresses and mends the "
        "memory of AgentScope 1.x agents where it is stored: in SQLite, PostgreSQL, MySQL and "
        "Redis, in state_dict files and in session folders. What it changes it can take back."
    )
    yield from _section("DESCRIPTION", [_text(about)])
    yield from _section("COMMANDS", _terms((f"memctl-{n}(1)", line) for n, (_, line) in _lines()))
    yield from _section("OPTIONS", _options(command, context))
    stores = (
        "A STORE is one of these, an alias of the configuration, or - (an archive or a state_dict "
        "on stdin, an archive on stdout of export)."
    )
    kinds = ((spec.syntax, f"{spec.summary[:1].upper()}{spec.summary[1:]}.") for spec in BUILT_IN)
    yield from _section("STORES", [_text(stores), *_terms(kinds)])
    codes = ((str(number), f"{name}: {meaning}") for number, name, meaning in exit_codes())
    yield from _section("EXIT STATUS", _terms(codes))
    yield from _section("ENVIRONMENT", _terms(ENVIRONMENT))
    yield from _section("FILES", _terms(FILES))
    yield from _section("EXAMPLES", _examples())
    others = [f"memctl-{name}" for name in COMMANDS]
    yield from _section("SEE ALSO", _references(others))


def _of_command(name: str) -> Iterator[str]:
    command, context = _command([name])
    title = f"memctl-{name}"
    line = COMMANDS[name][1].removesuffix(".")
    yield from _section("NAME", [f"{_text(title)} \\- {_text(line[:1].lower() + line[1:])}"])
    below = [_command([name, other]) for other in getattr(command, "commands", ())]
    called = below or [(command, context)]
    yield from _section(
        "SYNOPSIS", [part for one in called for part in _usage(one[1].command_path, *one)]
    )
    yield from _section("DESCRIPTION", _paragraphs(command.help))
    yield from _parameters("ARGUMENTS", "OPTIONS", command, context)
    for other, inner in below:
        yield f".SH {_quoted(f'memctl {name} {other.name}')}"
        yield from _paragraphs(other.help)
        yield from _parameters("Arguments", "Options", other, inner, ".SS")
    codes = ["The exit codes are those of", ".BR memctl (1)."]
    yield from _section("EXIT STATUS", codes)
    yield from _section("SEE ALSO", _references(["memctl"]))


def _lines() -> Iterable[tuple[str, tuple[str, str]]]:
    return COMMANDS.items()


def _command(words: list[str]) -> tuple[Any, Any]:
    """A command and its context, as the parser has them when it prints a help."""
    command: Any = get_command(app)
    wide = {"terminal_width": _WIDE, "max_content_width": _WIDE}
    context = command.make_context("memctl", [], resilient_parsing=True, **wide)
    for word in words:
        command = command.get_command(context, word)
        context = command.make_context(word, [], context, resilient_parsing=True, **wide)
    return command, context


def _usage(path: str, command: Any, context: Any) -> list[str]:
    pieces = " ".join(command.collect_usage_pieces(context))
    # The braces around arguments say that they are needed: here all are.
    return [f".B {_text(path)}", _text(re.sub(r"[{}]", "", pieces)), ".br"]


def _parameters(
    arguments: str, options: str, command: Any, context: Any, macro: str = ".SH"
) -> Iterator[str]:
    named = [one for one in command.params if one.param_type_name == "argument"]
    if named:
        yield from _section(arguments, _terms(_records(named, context)), macro)
    yield from _section(options, _options(command, context), macro)


def _options(command: Any, context: Any) -> list[str]:
    known = [one for one in command.get_params(context) if one.param_type_name != "argument"]
    return _terms(_records(known, context))


def _records(parameters: Iterable[Any], context: Any) -> Iterator[tuple[str, str]]:
    for parameter in parameters:
        record = parameter.get_help_record(context)
        if record is not None:
            yield record


def _terms(rows: Iterable[tuple[str, str]]) -> list[str]:
    return [
        line for term, text in rows for line in (".TP", f".B {_text(term)}", _text(text) or r"\&")
    ]


def _examples() -> Iterator[str]:
    for what, line in EXAMPLES:
        if what:
            yield from (".PP", _text(f"{what}:"))
        yield from (".PP", ".RS", ".nf", _text(line), ".fi", ".RE")


def _references(names: list[str]) -> list[str]:
    last = names[-1]
    return [f".BR {_text(name)} (1){'' if name == last else ','}" for name in names]


def _section(title: str, lines: Iterable[str], macro: str = ".SH") -> Iterator[str]:
    yield f"{macro} {_quoted(title)}"
    yield from lines


def _paragraphs(text: str | None) -> list[str]:
    blocks = [" ".join(block.split()) for block in re.split(r"\n\s*\n", text or "")]
    return [line for block in blocks for line in (".PP", _text(block))]


def _quoted(text: str) -> str:
    return f'"{_text(text)}"'


def _text(text: str) -> str:
    """Text of which roff shows every character, on one line."""
    plain = " ".join(text.split()).replace("\\", r"\e").replace("-", r"\-")
    plain = plain.replace("~", r"\(ti").replace("^", r"\(ha").replace("'", r"\(aq")
    plain = plain.replace('"', r"\(dq").replace("`", r"\(ga")
    return rf"\&{plain}" if plain.startswith(".") else plain
