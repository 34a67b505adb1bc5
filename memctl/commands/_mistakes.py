"""Mistakes on the command line: the error in memctl's words, and a hint at what was meant."""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Iterable, Sequence
from typing import Any

from memctl.commands._help import usage
from memctl.errors import UsageError

WORDS = {
    **dict.fromkeys(("backup", "dump", "save"), "export"),
    **dict.fromkeys(("load",), "import"),
    **dict.fromkeys(("copy", "cp", "sync", "move", "mv"), "migrate"),
    **dict.fromkeys(("diff", "compare", "cmp"), "verify"),
    **dict.fromkeys(("ls", "list", "show", "cat", "stat", "stats", "users", "sessions"), "inspect"),
    **dict.fromkeys(("head",), "inspect STORE --messages --last 20"),
    **dict.fromkeys(("prune", "gc", "clean"), "retain for policies, or memctl delete"),
    **dict.fromkeys(("rm", "remove"), "delete"),
    **dict.fromkeys(("forget", "purge", "wipe"), "erase"),
    **dict.fromkeys(("check", "repair", "fsck"), "doctor"),
    **dict.fromkeys(("summarize", "compact"), "compress"),
    **dict.fromkeys(("revert", "rollback"), "undo"),
    **dict.fromkeys(("log", "runs"), "history"),
    **dict.fromkeys(("find", "grep", "query"), "search"),
    "--before": "--until",
    "--after": "--since",
    "--text": "--match",
}
"""Commands and options of other tools, with the equivalent commands and options of memctl."""

ARGUMENTS = "memctl.arguments"
"""The key in ``Context.meta`` of the words of the command line."""


def unknown_command(word: str, commands: Iterable[str]) -> UsageError:
    """Return the error for a word that is none of the commands."""
    from difflib import get_close_matches  # not needed to show the help

    hint = "memctl --help lists the commands"
    if word in WORDS:
        hint = f"use memctl {WORDS[word]}"
    elif (near := get_close_matches(word, [*commands], n=1)) not in ([], ["erase"]):
        # no slip leads to an erase
        hint = f"did you mean {near[0]!r}?"
    return UsageError(f"there is no command {word!r}", hint)


def options_of(command: Any) -> dict[str, bool]:
    """Map each option of a command to whether it takes a value."""
    return {
        name: not option.is_flag
        for option in command.params
        if option.param_type_name == "option"
        for name in (*option.opts, *option.secondary_opts)
    }


def usage_error(
    error: Any,
    commands: Container[str],
    root: Any = None,
    *,
    called: str = "",
    given: Sequence[str] = (),
) -> UsageError | None:
    """Return the error of memctl for an error of the command-line parser.

    Return None if the parser did not raise the error, or if a group of commands lacks a subcommand:
    Typer then shows the help of the group.  ``commands`` are the commands of memctl.  ``root`` is
    the command ``memctl`` if the error comes from one of its commands, whose name is ``called``.
    ``given`` are the arguments of memctl if the error comes from its own options.
    """
    kind = type(error)
    if not hasattr(error, "format_message") or kind.__name__ == "NoArgsIsHelpError":
        return None
    words: list[str] = []
    context = getattr(error, "ctx", None)
    while context is not None and context.parent is not None:
        words.insert(0, context.info_name)
        context = context.parent
    command = " ".join(["memctl", *(words or filter(None, [called]))])
    hint = f"{command} --help lists its options"
    name = getattr(error, "option_name", None)
    if root is not None and any(name in option.opts for option in root.params):
        error.possibilities = None
        hint = f"it goes before the command, as in memctl {name} ..."
    elif name in WORDS:
        error.possibilities = None
        hint = f"memctl's option is {WORDS[name]}"
    elif after := next(
        (word for word in given if word in commands and name in _taken(error, word)), ""
    ):
        error.possibilities = None
        hint = f"write options after the command: memctl {after} {name} ..."
    if found := _EXTRA.fullmatch(error.format_message()):
        return _unexpected(error.ctx, command, found[1], hint)
    # Some versions of Typer name the kind of their error.
    text = error.format_message().replace(": Value error, ", ": ", 1)
    for pattern, ours in _LIMITS.items():
        text = re.sub(pattern, ours, text)
    return UsageError(text, hint)


def _taken(error: Any, command: str) -> Collection[str]:
    """Return the options of a command; ``error`` comes from the options before it."""
    return options_of(error.ctx.command.get_command(error.ctx, command))


_LIMITS = {
    r"Input should be greater than or equal to (\S+)": r"must be \1 or more",
    r"Input should be less than or equal to (\S+)": r"must be \1 or less",
    r"Input should be a valid integer.*": "must be a whole number",
    r"Input should be a valid number.*": "must be a number",
}
"""Words of Typer for values of options that are not valid, and those of memctl."""
_EXTRA = re.compile(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)", re.DOTALL)
"""Click's message for words that a command does not take."""
_VALUES = frozenset(("MARK", "OLD", "NEW"))
"""The arguments that may have spaces and do not name a store or a file."""


def _unexpected(context: Any, command: str, extra: str, hint: str) -> UsageError:
    """Return the error for the words ``extra``, which a command does not take.

    ``context`` is Click's context of the command, and ``command`` its name.  A typical mistake gets
    a hint of its own in place of ``hint``.
    """
    taken = [one for one in context.command.params if one.param_type_name == "argument"]
    takes = " ".join(map(usage, taken)) or "no arguments"
    options = options_of(context.command)
    words = list(context.meta.get(ARGUMENTS, ()))
    first = extra.split(" ")[0]
    at = words.index(first) if first in words else 0
    before, option = words[at - 1] if at else "", words[at - 2] if at > 1 else ""
    values = {context.params.get(one.name) for one in taken if one.metavar in _VALUES}
    if options.get(option) or options.get(before.partition("=")[0]) or before in values:
        hint = f'put words that belong together into quotes: "{before} {extra}"'
    elif not taken and "--store" in options:
        hint = f"name the store as an option: --store {extra}"
    elif "-o" in options:
        hint = f"use -o FILE to write a file: -o {extra}"
    return UsageError(f"unexpected {extra!r}: {command} takes {takes}", hint)
