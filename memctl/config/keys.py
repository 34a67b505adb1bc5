"""Keys of the configuration: a typo is an error, with a suggestion."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from memctl.errors import UsageError


def refuse_unknown(path: Path, place: str, entry: Mapping[str, Any], keys: Collection[str]) -> None:
    """Looks at the keys of a table; ``place`` is what stands before them, such as ``undo.``.

    Raises:
        UsageError: memctl does not know one.
    """
    for key in entry:
        if key not in keys:
            near = nearest(key, keys)
            hint = f"did you mean {near!r}?" if near else f"known are {', '.join(sorted(keys))}"
            raise UsageError(f"{path}: unknown key {place}{key}", hint)


def nearest(word: str, known: Iterable[str], likeness: float = 0.6) -> str | None:
    """What may have been meant by a word; ``likeness`` is from 0 to 1."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=likeness)
    return found[0] if found else None
