"""Checks of the tables of a configuration file."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from memctl.errors import UsageError


def refuse_unknown(path: Path, place: str, entry: Mapping[str, Any], keys: Collection[str]) -> None:
    """Refuse a table of the configuration file with a key that is not in ``keys``.

    ``place`` is the name of the table with a dot, such as ``undo.``.

    Raises:
        UsageError: a key is unknown; the hint names a similar key.
    """
    for key in entry:
        if key not in keys:
            near = nearest(key, keys)
            hint = f"did you mean {near!r}?" if near else f"known: {', '.join(sorted(keys))}"
            raise UsageError(f"{path}: unknown key {place}{key}", hint)


def nearest(word: str, known: Iterable[str], likeness: float = 0.6) -> str | None:
    """Return the known word that is most similar to ``word``; None if none is similar.

    ``likeness``, from 0 to 1, is the least similarity.
    """
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=likeness)
    return found[0] if found else None
