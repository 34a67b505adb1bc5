"""Paths in a JSON document: the names of the members that lead to a value."""

from __future__ import annotations

Steps = tuple[str, ...]


def join(steps: Steps) -> str:
    """The path as people write it, such as ``agent.memory``; dots within a name are escaped."""
    return ".".join(step.replace("\\", "\\\\").replace(".", "\\.") for step in steps)


def split(path: str) -> Steps:
    """The names in a path; none for the document itself."""
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
