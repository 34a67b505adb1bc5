"""Words that are not known, and the known words that they resemble."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from memctl.errors import UsageError

_NUMBER = re.compile("[0-9]+")


def refuse_unknown(
    path: Path | None, place: str, entry: Mapping[str, Any], keys: Collection[str]
) -> None:
    """Refuse a table of the configuration file ``path`` with a key that is not in ``keys``.

    ``place`` is the name of the table with a dot, such as ``undo.``.  ``path`` is None for a table
    of a program.

    Raises:
        UsageError: a key is unknown; the hint names a similar key.
    """
    for key in entry:
        if key not in keys:
            known = f"known: {', '.join(sorted(keys)) or 'none'}"
            raise UsageError(
                f"{in_file(path)}unknown key {place}{key}", did_you_mean(key, keys, known)
            )


def did_you_mean(word: str, known: Iterable[str], otherwise: str) -> str:
    """Return a hint with the known word that is most similar; ``otherwise`` if none is similar."""
    near = nearest(word, known)
    return f"did you mean {near!r}?" if near else otherwise


def nearest(word: str, known: Iterable[str], likeness: float = 0.6) -> str | None:
    """Return the known word that is most similar to ``word``; None if none is similar.

    ``likeness``, from 0 to 1, is the least similarity.
    """
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=likeness)
    return found[0] if found else None


def natural(names: Iterable[str]) -> list[str]:
    """Return a key that sorts names as people count: ``s2`` before ``s10``."""
    return [_NUMBER.sub(_padded, name) for name in names]


def _padded(number: re.Match[str]) -> str:
    return number[0].zfill(20)


def in_file(path: Path | None) -> str:
    """Return the beginning of an error in the configuration file ``path``; empty without a file."""
    return "" if path is None else f"{path}: "


@contextmanager
def errors_at(place: str) -> Iterator[None]:
    """Write a place in the configuration before each error of the block."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"{place}: {error.message}", error.hint) from error
