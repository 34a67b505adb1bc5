"""The manual, made from the parser: ``memctl.1``, and ``memctl-COMMAND.1`` for each command."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from typer.main import get_command

from memctl.cli import COMMANDS, GROUPS, app
from memctl.commands._help import Page, page
from memctl.commands._topics import EXAMPLES, STORES, STORES_MORE, store_rows
from memctl.errors import exit_codes
from memctl.version import __version__

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
    found = page(*parsed([]))
    yield from _section("NAME", [r"memctl \- administer the memory of LLM agents"])
    yield from _section("SYNOPSIS", _usage(found))
    about = (
        "memctl inspects, exports, imports, migrates, verifies, deletes, compresses and repairs "
        "the memory of LLM agents where it is stored: that of AgentScope, LangChain, the OpenAI "
        "Agents SDK, LlamaIndex, Google ADK and Agno in SQL, Redis and files, and the facts of "
        "mem0, ReMe and vaults. It can undo its changes."
    )
    yield from _section("DESCRIPTION", [_text(about)])
    yield ".SH COMMANDS"
    for title, group in GROUPS.items():
        rows = [(f"memctl-{name}(1)", line) for name, (_, line) in group.items()]
        yield from _section(title, _terms(rows), ".SS")
    yield from _section("OPTIONS", _terms(row for rows in found.options.values() for row in rows))
    yield from _section("STORES", [_text(STORES), *_terms(store_rows()), ".PP", _text(STORES_MORE)])
    codes = ((str(number), f"{name}: {meaning}") for number, name, meaning in exit_codes())
    yield from _section("EXIT STATUS", _terms(codes))
    yield from _section("ENVIRONMENT", _terms(ENVIRONMENT))
    yield from _section("FILES", _terms(FILES))
    yield ".SH EXAMPLES"
    for task, lines in EXAMPLES:
        yield from (".PP", _text(f"{task}:"), *_examples(lines))
    others = [f"memctl-{name}" for name in COMMANDS]
    yield from _section("SEE ALSO", _references(others))


def _of_command(name: str) -> Iterator[str]:
    command, context = parsed([name])
    title = f"memctl-{name}"
    line = COMMANDS[name][1].removesuffix(".")
    yield from _section("NAME", [f"{_text(title)} \\- {_text(line[:1].lower() + line[1:])}"])
    found = page(command, context)
    below = [page(*parsed([name, other])) for other in getattr(command, "commands", ())]
    yield from _section("SYNOPSIS", [line for one in below or [found] for line in _usage(one)])
    yield from _section("DESCRIPTION", _paragraphs(found.paragraphs))
    yield from _parameters(found)
    for inner, other in zip(below, getattr(command, "commands", ()), strict=True):
        yield f".SH {_quoted(f'memctl {name} {other}')}"
        yield from _paragraphs(inner.paragraphs)
        yield from _parameters(inner, ".SS")
    codes = ["The exit codes are those of", ".BR memctl (1)."]
    yield from _section("EXIT STATUS", codes)
    yield from _section("SEE ALSO", _references(["memctl"]))


def parsed(words: list[str]) -> tuple[Any, Any]:
    """Return a command and its context, as the parser has them when it prints a help."""
    command: Any = get_command(app)
    context = command.make_context("memctl", [], resilient_parsing=True)
    for word in words:
        command = command.get_command(context, word)
        context = command.make_context(word, [], context, resilient_parsing=True)
    return command, context


def _usage(found: Page) -> list[str]:
    return [f".B {_text(found.usage)}", ".br"]


def _parameters(found: Page, macro: str = ".SH") -> Iterator[str]:
    """The arguments, the options below their headings, and the examples."""
    title = str.upper if macro == ".SH" else str
    if found.arguments:
        yield from _section(title("Arguments"), _terms(found.arguments), macro)
    for heading, rows in found.options.items():
        yield from _section(title(heading), _terms(rows), macro)
    if found.examples:
        yield from _section(title("Examples"), _examples(found.examples), macro)


def _terms(rows: Iterable[tuple[str, str]]) -> list[str]:
    return [
        line for term, text in rows for line in (".TP", f".B {_text(term)}", _text(text) or r"\&")
    ]


def _examples(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        yield from (".PP", ".RS", ".nf", _text(line), ".fi", ".RE")


def _references(names: list[str]) -> list[str]:
    last = names[-1]
    return [f".BR {_text(name)} (1){'' if name == last else ','}" for name in names]


def _section(title: str, lines: Iterable[str], macro: str = ".SH") -> Iterator[str]:
    yield f"{macro} {_quoted(title)}"
    yield from lines


def _paragraphs(texts: Iterable[str]) -> list[str]:
    return [line for text in texts for line in (".PP", _text(text))]


def _quoted(text: str) -> str:
    return f'"{_text(text)}"'


def _text(text: str) -> str:
    """Text of which roff shows every character, on one line."""
    plain = " ".join(text.split()).replace("\\", r"\e").replace("-", r"\-")
    plain = plain.replace("~", r"\(ti").replace("^", r"\(ha").replace("'", r"\(aq")
    plain = plain.replace('"', r"\(dq").replace("`", r"\(ga")
    return rf"\&{plain}" if plain.startswith(".") else plain
