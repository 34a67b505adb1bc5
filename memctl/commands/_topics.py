"""The topics of ``memctl help``, such as how to write a STORE."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from memctl.commands._help import SELECTION, Rows, shell, table
from memctl.output.terminal import wrap

STORES = (
    "A STORE is one of these, an alias of the configuration, or - (an archive or a state_dict on "
    "stdin, an archive on stdout)."
)
STORES_MORE = (
    "memctl recognizes an existing file by its content, whatever its name. NAME@latest is the "
    "newest file of a rotation (export --rotate), NAME@2026-11-25 that of a day. "
    "?state=FOLDER names the session states that hold the summaries of an SQL or Redis memory. "
    "@NAME is a fleet of the configuration: several stores, for a command with --shard or "
    "--shards. memctl stores lists what each kind can hold."
)
SELECTING = (
    "These options select memories and messages. They are the same on every command.",
    "Repeat an option to allow several values. Different options must all match. Values are "
    "names, never patterns. An AGE is a number with s, m, h, d or w. A TIME is ISO time, or an "
    "AGE before now; messages have local times without a zone.",
)
SELECTED = (
    "memctl inspect agents.db --user ada --messages --last 20",
    "memctl delete agents.db --mark hint --older-than 7d --dry-run",
)
_SYNTAX = 32
"""The maximum number of columns of a syntax with its meaning on the same line."""
EXAMPLES = (
    ("See what is in a store", ("memctl inspect agents.db",)),
    (
        "Read the end of a conversation",
        ("memctl inspect agents.db --user ada --messages --last 9",),
    ),
    ("Back up every night", ("memctl export agents.db -o night.ndjson.zst --rotate daily:7",)),
    ("Restore the newest backup", ("memctl import night.ndjson.zst@latest restored.db",)),
    (
        "Migrate to a server, and verify the copy",
        ("memctl migrate agents.db postgresql://ops@db/agents",),
    ),
    (
        "Delete old messages, and undo it",
        ("memctl delete agents.db --mark hint --older-than 7d", "memctl undo"),
    ),
    ("Shorten long conversations", ("memctl compress agents.db --dry-run",)),
    ("Find and repair problems", ("memctl doctor agents.db --repair",)),
)
"""Tasks, and the commands for them."""


def store_rows() -> Rows:
    """Return the syntax and the meaning of each kind of store."""
    from memctl.registry import BUILT_IN  # not needed for the list of topics

    return [(one.syntax, f"{one.summary[:1].upper()}{one.summary[1:]}.") for one in BUILT_IN]


def _stores(width: int) -> str:
    rows = table(store_rows(), width, _SYNTAX)
    return _joined([wrap(STORES, width), rows, wrap(STORES_MORE, width)])


def _selection(width: int) -> str:
    import typer

    from memctl.commands._help import page
    from memctl.commands._options import build
    from memctl.commands.inspect import inspect  # it has all options of a selection

    command = build(inspect, "inspect")
    rows = page(command, typer.Context(command)).options[SELECTION]
    texts = [wrap(text, width) for text in SELECTING]
    examples = [line for one in SELECTED for line in shell(one, width)]
    return _joined([texts[0], table(rows, width), texts[1], ["Examples:", *examples]])


def _examples(width: int) -> str:
    return _joined(
        [*wrap(f"{task}:", width), *(line for one in lines for line in shell(one, width))]
        for task, lines in EXAMPLES
    )


def _joined(blocks: Iterable[list[str]]) -> str:
    return "\n\n".join("\n".join(block) for block in blocks)


TEXTS: dict[str, Callable[[int], str]] = {
    "stores": _stores,
    "selection": _selection,
    "examples": _examples,
}
"""The topics that are texts; each function takes a width in columns."""

TOPICS = {
    "stores": "How to write a STORE.",
    "selection": "How to select memories and messages.",
    "examples": "Commands for common tasks.",
    "exit-codes": "What each exit code means.",
    "schema": "The JSON Schema of each report.",
}
"""All topics, with the lines for the help."""
