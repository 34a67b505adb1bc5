"""Commands that other distributions bring along."""

from __future__ import annotations

import gc

from typer.core import TyperCommand

from memctl import plugins
from memctl.commands._options import build
from memctl.errors import UsageError


def command(name: str) -> TyperCommand:
    """The parser of the command that a plugin offers under the name.

    Raises:
        UsageError: it cannot be loaded, or is no command.
    """
    function = plugins.load(plugins.COMMANDS, name)
    gc.enable()  # which is off while memctl imports: theirs may run an event loop of their own
    if not callable(function):
        raise UsageError(
            f"the plugin {name!r} is no command", "its entry point names a function for Typer"
        )
    return build(function, name)


def line(name: str) -> str:
    """What the list of commands says of it, also where it cannot be loaded."""
    try:
        text = command(name).help or ""
    except UsageError as error:
        return f"({error.message})"
    return text.strip().partition("\n")[0]
