"""Tables of the configuration as typed classes, and the errors of values that do not fit."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import Meta

from memctl.errors import UsageError
from memctl.text.words import did_you_mean, in_file, refuse_unknown


def means(description: str, example: str, **limits: Any) -> Meta:
    """Return the meaning of a type, for errors: "KEY must be DESCRIPTION", "write EXAMPLE".

    ``example`` may have KEY for the key.  ``limits`` are those of ``msgspec.Meta``.
    """
    return Meta(description=description, examples=[example], **limits)


Name = Annotated[str, means("a text", 'KEY = "..."')]
"""A text that may be empty."""
Text = Annotated[str, means("a text", 'KEY = "..."', pattern=r"\S")]
Texts = Annotated[tuple[str, ...], means("a list of texts", 'KEY = ["a", "b"]')]
Flag = Annotated[bool, means("true or false", "KEY = true")]
Natural = Annotated[int, means("a whole number of 0 or more", "KEY = 30", ge=0)]
Count = Annotated[int, means("a whole number of 1 or more", "KEY = 10", ge=1)]
Keys = Annotated[dict[str, Any], means("a table", "KEY = { ... }")]

_PLACE = re.compile(r".* - at `\$\.([^`]*)`", re.DOTALL)


class Table(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """A table of the configuration.  Each type has a description and an example, or is Literal."""


T = TypeVar("T", bound=Table)


def read_table(path: Path | None, place: str, entry: Any, *kinds: type[T]) -> T:
    """Return a table of the configuration file ``path`` as an instance of a class.

    ``place`` is the name of the table, such as ``stores.prod``.  Of several classes, a key of the
    table names one.  ``path`` is None for a table of a program.

    Raises:
        UsageError: the table does not fit the class; the error names the key, and what is allowed.
    """
    try:
        return msgspec.convert(entry, Union[kinds])  # type: ignore[no-any-return]  # noqa: UP007
    except msgspec.ValidationError as error:
        told = _PLACE.fullmatch(str(error))
        keys = re.findall(r"\w+", told[1]) if told else []
        raise _refusal(path, place, entry, kinds, keys) from None


def _refusal(
    path: Path | None, place: str, entry: Any, kinds: Sequence[type[Table]], keys: Sequence[str]
) -> UsageError:
    """Return the error for a table; ``keys`` lead to the value that does not fit."""
    if not isinstance(entry, dict):
        return UsageError(f"{in_file(path)}{place} must be a table", f"write [{place}]")
    kind, tag = kinds[0], kinds[0].__struct_config__.tag_field
    types: dict[str, Any] = {}
    if tag is not None:
        known = {str(one.__struct_config__.tag): one for one in kinds}
        types[tag] = Literal[tuple(known)]
        if str(entry.get(tag)) not in known:
            return _unfit(path, place, entry, tag, types[tag])
        kind = known[entry[tag]]
    fields = msgspec.structs.fields(kind)
    types |= {field.encode_name: field.type for field in fields}
    refuse_unknown(path, place and f"{place}.", entry, types)
    missing = (one.encode_name for one in fields if one.required and one.encode_name not in entry)
    key = keys[0] if keys else next(missing)
    if isinstance(types[key], type) and issubclass(types[key], Table):
        return _refusal(
            path, f"{place}.{key}".removeprefix("."), entry[key], [types[key]], keys[1:]
        )
    return _unfit(path, place, entry, key, types[key])


def _unfit(
    path: Path | None, place: str, entry: dict[str, Any], key: str, type_: Any
) -> UsageError:
    """Return the error for a key whose value is missing, or does not fit the type."""
    if get_origin(type_) is Literal:
        words = ", ".join(get_args(type_))
        expected = f"one of {words}"
        hint = did_you_mean(str(entry.get(key)), get_args(type_), f"known: {words}")
    else:
        parts = (type_, *get_args(type_))
        metas = [meta for part in parts for meta in getattr(part, "__metadata__", ())]
        expected, [example] = metas[-1].description, metas[-1].examples
        hint = f"write {example.replace('KEY', key)}"
    if key not in entry:
        return UsageError(f"{in_file(path)}{place} has no {key}", hint)
    where = f"{place}.{key}".removeprefix(".")
    return UsageError(f"{in_file(path)}{where} must be {expected}", hint)
