"""Options and arguments of commands, declared as the help shows them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import EnumType
from functools import partial
from typing import Any, get_args

import typer


def option(shown: str, help: str, **settings: Any) -> Any:
    """Return an option; ``shown`` has its names and its values, as in ``-o --output FILE``.

    ``settings`` are further arguments of ``typer.Option``.
    """
    words = shown.split()
    names = [word for word in words if word.startswith("-")]
    value = " ".join(words[len(names) :])
    if not value:
        return typer.Option(*names, help=help, **settings)
    return typer.Option(*names, metavar=value, help=help, **settings)


def argument(shown: str, help: str) -> Any:
    """Return an argument, which the help calls ``shown``."""
    return typer.Argument(metavar=shown, help=help)


def settle(parameters: Iterable[Any]) -> None:
    """Let parameters of Typer leave alone a value of their type, and the name of a choice.

    Typer converts values with Pydantic, whose import takes a sixth of the time of a short command.
    """
    for one in parameters:
        if "process_value" not in vars(one):
            one.process_value = partial(_processed, one, one.process_value)


def _processed(parameter: Any, process: Callable[[Any, Any], Any], context: Any, value: Any) -> Any:
    is_list, kind = parameter.multiple or parameter.nargs < 0, parameter.type_descriptor.annotation
    if value is None and not parameter.required:
        value = () if is_list else None
    elif value and is_list and all(type(one) in get_args(kind) for one in value):
        value = list(value)
    elif isinstance(kind, EnumType) and value in (named := _choices(kind)):
        value = named[value]
    elif type(value) is not kind:
        return process(context, value)
    return parameter.callback(context, parameter, value) if parameter.callback else value


def _choices(kind: Any) -> dict[Any, Any]:
    return {one.value: one for one in kind}
