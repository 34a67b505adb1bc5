"""The JSON Schemas of the reports, as they come with the package."""

from __future__ import annotations

import difflib
from importlib.resources import files

from memctl.errors import UsageError

_FOLDER = files("memctl") / "schemas"


def names() -> list[str]:
    """The commands whose reports have a schema; and log, for the messages on stderr."""
    return sorted(file.name.removesuffix(".json") for file in _FOLDER.iterdir())


def text(name: str) -> str:
    """The schema of a command's report (JSON Schema 2020-12).

    Raises:
        UsageError: it has none.
    """
    known = names()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        raise UsageError(
            f"there is no schema of {name!r}",
            f"did you mean {near[0]!r}?" if near else f"there are those of {', '.join(known)}",
        )
    return (_FOLDER / f"{name}.json").read_text("utf-8")
