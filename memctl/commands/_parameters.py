"""Options and arguments of commands, declared as the help shows them."""

from __future__ import annotations

from typing import Any

import typer


def option(shown: str, help: str, **settings: Any) -> Any:
    """Return an option; ``shown`` has its names and its value, as in ``-o --output FILE``.

    ``settings`` are further arguments of ``typer.Option``.
    """
    *names, value = shown.split()
    if value.startswith("-"):
        return typer.Option(*names, value, help=help, **settings)
    return typer.Option(*names, metavar=value, help=help, **settings)


def argument(shown: str, help: str) -> Any:
    """Return an argument, which the help calls ``shown``."""
    return typer.Argument(metavar=shown, help=help)
