"""The difference between two JSON values, as JSON: small where they are nearly the same.

A delta is one of::

    ["=", value]                       it is this value
    ["{", {"name": delta}, ["gone"]]   an object: fields that differ or are new, and those that go
    ["[", {"3": delta}]                a list of the same length: items that differ
"""

from __future__ import annotations

from typing import Any

Delta = list[Any]


def delta(old: Any, new: Any) -> Delta | None:
    """Return what makes the new value of the old one; None where they are the same."""
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
    # 1, 1.0 and True are equal in Python, and three values in JSON.
    return None if type(old) is type(new) and old == new else ["=", new]


def patch(old: Any, change: Delta | None) -> Any:
    """Return what ``delta`` was given as the new value; the old one is left as it is.

    Raises:
        ValueError: the delta is none, or none of this value.
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
