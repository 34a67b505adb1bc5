"""Paths in a JSON document: the names of the members from the root to a value."""

from __future__ import annotations

Steps = tuple[str, ...]


def join(steps: Steps) -> str:
    """Join the names of nested members into a path such as ``agent.memory``.

    Dots in a name are escaped.
    """
    return ".".join(step.replace("\\", "\\\\").replace(".", "\\.") for step in steps)


def split(path: str) -> Steps:
    """Split a path of ``join`` into the names of nested members; an empty path gives no names."""
    if not path:
        return ()
    steps = [""]
    characters = iter(path)
    for character in characters:
        if character == ".":
            steps.append("")
        elif character == "\\":
            steps[-1] += next(characters, "\\")
        else:
            steps[-1] += character
    return tuple(steps)
