"""The help of a command: its purpose, examples, and its options by heading.

All texts come from the command: from its docstring, whose last paragraph may list examples after
``Examples:``, and from its parameters, with ``rich_help_panel`` as the heading.
"""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterable
from enum import Enum
from typing import Any

from msgspec import Struct, field

from memctl.commands._parameters import settle
from memctl.output.terminal import wrap

SELECTION = "Which messages"
CONNECTION = "Connection"
SAFETY = "Safety"
PARTS = "Parts of a run"
OUTPUT = "Output"

WIDEST = 100
"""The maximum number of columns of a line; longer lines are hard to read."""
_NARROW = 60
"""The least width at which a meaning stands next to its term."""
_TERM = 28
"""The maximum number of columns of a term with its meaning on the same line."""
_ORDER = ("Options", SELECTION, PARTS, CONNECTION, SAFETY, OUTPUT)
_EXAMPLES = "Examples:\n"
_ENDING = "Options of every command, such as -q and --color: memctl --help"

Rows = list[tuple[str, str]]
"""Terms with their meanings."""


class Page(Struct):
    """The texts of the help of a command, before they are laid out."""

    usage: str
    paragraphs: list[str]
    examples: list[str] = field(default_factory=list)
    arguments: Rows = field(default_factory=list)
    commands: dict[str, Rows] = field(default_factory=dict)
    """The subcommands, by heading."""
    options: dict[str, Rows] = field(default_factory=dict)
    """The options, by heading."""
    ending: str = ""


class Helpful:
    """A command, with or without subcommands, that lays out its own help."""

    params: list[Any]

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        settle(self.params)

    def get_help_option(self, ctx: Any) -> Any:
        """Return ``--help``."""
        found = super().get_help_option(ctx)  # type: ignore[misc]
        settle([found] if found else [])
        return found

    def get_help(self, ctx: Any) -> str:
        """Return the help of the command, as wide as the terminal."""
        return render(page(self, ctx), ctx.terminal_width or columns())

    def listing(self, ctx: Any) -> dict[str, Rows]:  # noqa: ARG002 - subclasses use it
        """Return the subcommands with their purposes, by heading; empty without subcommands."""
        below = getattr(self, "commands", {})
        return {"Commands": [(name, summary(one)) for name, one in below.items()]} if below else {}


def columns() -> int:
    """Return the width of the terminal in columns; 80 without a terminal."""
    return shutil.get_terminal_size().columns


def page(command: Any, context: Any) -> Page:
    """Return the texts of the help of a command; ``context`` is Click's context of the command."""
    listing = command.listing(context) if isinstance(command, Helpful) else {}
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options: dict[str, Rows] = {}
    for one in command.get_params(context):
        if one.param_type_name == "option" and not one.hidden:
            heading = OUTPUT if one.name == "help" else one.rich_help_panel or "Options"
            options.setdefault(heading, []).append((option_term(one), option_text(one)))
    if listing or list(options) == [OUTPUT]:  # too few for headings
        options = {"Options": [row for rows in options.values() for row in rows]}
    words = [
        context.command_path,
        *(["COMMAND"] if listing else []),
        *map(usage, arguments),
        *(["[selection]"] if SELECTION in options else []),
        "[options]",
    ]
    paragraphs, examples = _described(command)
    return Page(
        " ".join(words),
        paragraphs,
        examples,
        [(_name(one), one.help or "") for one in arguments],
        listing,
        {name: options[name] for name in sorted(options, key=_place)},
        "" if context.parent is None else _ENDING,
    )


def _place(heading: str) -> int:
    return _ORDER.index(heading) if heading in _ORDER else 0


def _described(command: Any) -> tuple[list[str], list[str]]:
    """Return the paragraphs and the examples of a command's docstring."""
    blocks = re.split(r"\n\s*\n", textwrap.dedent(command.help or "").strip())
    paragraphs = [" ".join(block.split()) for block in blocks if not block.startswith(_EXAMPLES)]
    examples = [
        " ".join(line.split())
        for block in blocks
        if block.startswith(_EXAMPLES)
        for line in block.removeprefix(_EXAMPLES).splitlines()
    ]
    return paragraphs, examples


def summary(command: Any) -> str:
    """Return the first paragraph of a command's docstring, on one line."""
    paragraphs, _ = _described(command)
    return paragraphs[0] if paragraphs else ""


def _name(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def usage(argument: Any) -> str:
    """Return an argument as the usage of its command shows it, such as ``[STORE]``."""
    name = _name(argument)
    if argument.nargs < 0 and "..." not in name:
        name += "..."
    return name if argument.required else f"[{name}]"


def option_term(option: Any) -> str:
    """Return the names and value of an option, such as ``-o, --output FILE``.

    For a switch that is on by default, return the name that turns it off; for a switch that is
    neither on nor off, both names.
    """
    names = option.secondary_opts if option.default is True else option.opts
    names = sorted(names, key=lambda name: name.startswith("--"))
    names += option.secondary_opts if option.default is None else []
    value = "" if option.is_flag else option.metavar or names[-1].rpartition("-")[2].upper()
    return f"{', '.join(names)} {value}".rstrip()


def option_text(option: Any) -> str:
    """Return a sentence about an option: its purpose, choices and default."""
    if option.name == "help":
        return "Show this help."
    text = (option.help or "").removesuffix(".")
    default = option.default if option.show_default is True else option.show_default or None
    choices = option.type_descriptor.choices or ()
    if choices:
        *first, last = [_plain(one) + " (default)" * (one == default) for one in choices]
        text += f": {', '.join(first)} or {last}"
    if option.multiple:
        text += " (repeatable)"
    elif not isinstance(default, bool | None) and default not in choices:
        text += f" (default {_plain(default)})"
    return f"{text}."


def _plain(value: Any) -> str:
    if isinstance(value, Enum):
        value = value.value
    return f"{value:g}" if isinstance(value, float) else str(value)


def render(found: Page, width: int) -> str:
    """Return the help of a command as text, at most ``width`` columns wide."""
    width = min(width, WIDEST)
    blocks = [wrap(f"Usage: {found.usage}", width, rest=" " * 7)]
    blocks += [wrap(text, width) for text in found.paragraphs]
    if found.examples:
        blocks.append(
            ["Examples:", *(line for one in found.examples for line in shell(one, width))]
        )
    for sections in ({"Arguments": found.arguments}, found.commands, found.options):
        term = _widest(row for rows in sections.values() for row in rows)
        blocks += [
            [f"{heading}:", *table(rows, width, term)] for heading, rows in sections.items() if rows
        ]
    if found.ending:
        blocks.append(wrap(found.ending, width))
    return "\n\n".join("\n".join(block) for block in blocks)


def shell(line: str, width: int) -> list[str]:
    """Return a shell command as indented lines; a long command continues after a backslash."""
    *first, last = wrap(line, width - 2, "  ", "      ")
    return [*(f"{one} \\" for one in first), last]


def table(rows: Iterable[tuple[str, str]], width: int, term: int = 0) -> list[str]:
    """Return lines with terms and their meanings; ``rows`` are pairs of term and meaning.

    A meaning is next to its term, or below a term that is too long.  ``term`` is the width of the
    terms; 0 is the width of the widest term.
    """
    rows = list(rows)
    room = (term or _widest(rows)) + 4 if width >= _NARROW else 6
    found = []
    for name, text in rows:
        head = f"  {name}  "
        if len(head) > room:
            found += wrap(name, width, "  ", "    ")
            head = ""
        found += wrap(text, width, head.ljust(room), " " * room)
    return found


def _widest(rows: Iterable[tuple[str, str]]) -> int:
    return max((len(term) for term, _ in rows if len(term) <= _TERM), default=_TERM)
