"""The filter of the browser: ``role:user mark:hint since:7d kyoto``.

It is typed on one line, for the list of memories and for conversations.  Its fields choose
messages, as the options of the same names do; other words choose names in the list.
"""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple

from memctl.selection import Selection, Untimed
from memctl.text.values import period

FIELDS = {"role": "roles", "mark": "marks", "name": "names"}
"""The fields that choose messages by their values, and those of ``Selection``."""
LANGUAGE = "write role:user, mark:hint, name:Friday, since:7d or until:2026-01-31"
"""The fields, for the user."""
_TIMES = ("since", "until")
_WORD = re.compile(
    rf"(?P<field>{'|'.join((*FIELDS, *_TIMES))}):(?:\"(?P<quoted>[^\"]*)\"?|(?P<bare>\S*))|\S+"
)


class Filter(NamedTuple):
    """A filter as a user types it: fields, the selection by these fields, and other words."""

    fields: str
    where: Selection
    words: str


def parse(text: str, where: Selection) -> Filter:
    """Parse a filter of the messages that ``where`` selects.

    A field without a value is ignored: it is being typed.

    Raises:
        UsageError: the value of a time is not valid, or the period ends before it begins.
    """
    values: dict[str, set[str]] = {}
    times: dict[str, str] = {}
    fields, words = [], []
    for found in _WORD.finditer(text):
        name, value = found["field"], found["quoted"] or found["bare"]
        if name is None:
            words.append(found[0])
        elif value:
            fields.append(found[0])
            if name in FIELDS:
                values.setdefault(FIELDS[name], set()).add(value)
            else:
                times[name] = value
    since, until = period(times, lambda name: f"{name}:", datetime.now())
    chosen: dict[str, Any] = {name: frozenset(some) for name, some in values.items()}
    return Filter(
        " ".join(fields),
        replace(where, since=since, until=until, untimed=Untimed(), **chosen),
        " ".join(words),
    )
