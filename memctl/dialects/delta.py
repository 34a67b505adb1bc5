"""The difference between two JSON values, as JSON.

A delta has one of these forms::

    ["=", value]                       the new value
    ["{", {"name": delta}, ["gone"]]   an object: changed and new fields, names of removed fields
    ["[", {"3": delta}]                a list of equal length: changed items by index
"""

from __future__ import annotations

from typing import Any

Delta = list[Any]


def delta(old: Any, new: Any) -> Delta | None:
    """Return the difference between two JSON values for ``patch``; None if they are equal."""
    if old is new:
        return None
    if isinstance(old, dict) and isinstance(new, dict):
        changed = {}
        for name, value in new.items():
            one = delta(old[name], value) if name in old else ["=", value]
            if one is not None:
                changed[name] = one
        gone = [name for name in old if name not in new]
        return ["{", changed, gone] if changed or gone else None
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        items = {}
        for place, pair in enumerate(zip(old, new, strict=True)):
            one = delta(*pair)
            if one is not None:
                items[str(place)] = one
        return ["[", items] if items else None
    # Types are compared, too: 1, 1.0 and True are equal in Python, but differ in JSON.
    return None if type(old) is type(new) and old == new else ["=", new]


def patch(old: Any, change: Delta | None) -> Any:
    """Return ``old`` with ``change`` applied, a difference that ``delta`` returned.

    If ``change`` is None, return ``old``.  ``old`` itself is not modified.

    Raises:
        ValueError: the difference is invalid, or does not fit ``old``.
    """
    if change is None:
        return old
    match change, old:
        case ["=", value], _:
            return value
        case ["{", dict(changed), list(gone)], dict():
            kept = {name: value for name, value in old.items() if name not in gone}
            for name, one in changed.items():
                kept[name] = patch(old.get(name), one)
            return kept
        case ["[", dict(items)], list():
            found = list(old)
            for place, one in items.items():
                if not (place.isdecimal() and int(place) < len(found)):
                    raise ValueError("there is no such item")
                found[int(place)] = patch(found[int(place)], one)
            return found
        case _:
            raise ValueError("the delta does not fit")
