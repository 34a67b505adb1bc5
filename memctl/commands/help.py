"""``memctl help``: explains a command or a topic, such as exit codes or the JSON of a report."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text
from typer.core import TyperGroup

from memctl.commands._context import this_run
from memctl.commands._help import WIDEST, columns
from memctl.commands._parameters import argument
from memctl.commands._topics import TEXTS, TOPICS
from memctl.errors import UsageError, exit_codes
from memctl.reports import schema_names
from memctl.text.words import did_you_mean


def help_(
    context: typer.Context,
    topic: Annotated[
        list[str] | None, argument("TOPIC", f"A command, or a topic: {', '.join(TOPICS)}.")
    ] = None,
) -> None:
    """Explain a command or a topic.

    memctl help schema NAME prints the JSON Schema of memctl NAME --json; the NAME log is for
    --log-format json. Without NAME, it lists all schemas.

    Examples:
      memctl help delete
      memctl help selection
      memctl help schema inspect
    """
    match topic:
        case ["exit-codes"]:
            this_run(context).output.console().print(_ExitCodes())
        case ["schema"]:
            sys.stdout.write("\n".join(schema_names()) + "\n")
        case ["schema", command]:
            from memctl.reports.schema import schema_text  # not needed for other topics

            sys.stdout.write(schema_text(command))
        case [name] if name in TEXTS:
            sys.stdout.write(TEXTS[name](min(columns(), WIDEST)) + "\n")
        case _:
            sys.stdout.write(_help_of(context, topic or []) + "\n")


class _ExitCodes:
    """A table of exit codes; their meanings are wrapped at the width of the terminal."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = [("code", "name", "meaning"), *((str(code), *rest) for code, *rest in exit_codes())]
        names = max(len(name) for _, name, _ in rows)
        for number, (code, name, meaning) in enumerate(rows):
            head = f"{code:>4}  {name:{names}}  "
            room = max(options.max_width - len(head), 1)
            for line in Text(meaning, "bold" if number == 0 else "").wrap(console, room):
                line.rstrip()
                yield Text(head, "bold" if number == 0 else "cyan").append_text(line)
                head = " " * len(head)


def _help_of(context: typer.Context, words: list[str]) -> str:
    """Return the help of the command that ``words`` name; without words, of memctl itself.

    Raises:
        UsageError: there is no such command.
    """
    inner = context.find_root()
    for word in words:
        group = inner.command
        names = group.list_commands(inner) if isinstance(group, TyperGroup) else []
        command = group.get_command(inner, word) if isinstance(group, TyperGroup) else None
        if command is None:
            known = [*names, *(TOPICS if inner.parent is None else ())]
            hint = did_you_mean(word, known, "list commands and topics with: memctl help")
            raise UsageError(f"no help on {' '.join(words)!r}", hint)
        inner = command.make_context(word, [], parent=inner, resilient_parsing=True)
    return inner.get_help()
