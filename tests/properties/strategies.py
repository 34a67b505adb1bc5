"""Any message, any memory, any selection."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from hypothesis import strategies as st

from memctl.model import MemoryKey, StoredMessage
from memctl.selection import Selection
from memctl.testing.samples import Sample, sample

NAME_CHARACTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
names = st.text(NAME_CHARACTERS, min_size=1, max_size=12) | st.sampled_from(["a", "b", "a-b", "*"])
"""Names of users, sessions, messages and marks: neither databases nor files take all of Unicode."""

any_text = st.text(st.characters(), max_size=20)
"""Any text that Python's JSON can write: null characters and lone surrogates too."""

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=2**62, max_value=2**70)
    | st.floats()
    | any_text
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(any_text, inner, max_size=4),
    max_leaves=12,
)

few_marks = st.lists(st.sampled_from(["hint", "compressed", "a", "A"]), max_size=3, unique=True)
times = st.datetimes(datetime(2025, 1, 1), datetime(2025, 12, 31))
blocks = st.lists(
    st.fixed_dictionaries(
        {"type": st.sampled_from(["text", "thinking", "tool_result", "other"])},
        optional={"text": any_text, "thinking": any_text, "output": any_text | values},
    ),
    max_size=3,
)


@st.composite
def entries(draw: st.DrawFn, name: str) -> StoredMessage:
    """A message of this id: what AgentScope has in one, or nearly, and some more."""
    usual: dict[str, Any] = {
        "id": name,
        "name": draw(st.sampled_from(["Alice", "Friday"]) | values),
        "role": draw(st.sampled_from(["user", "assistant", "system"]) | values),
        "content": draw(any_text | blocks | values),
        "timestamp": draw(times.map(lambda time: time.isoformat(" ", "milliseconds")) | values),
    }
    more = draw(st.dictionaries(any_text, values, max_size=3))
    escaped = draw(st.booleans())
    text = json.dumps({**usual, **more, "id": name}, ensure_ascii=escaped)
    # A lone surrogate cannot be written but as an escape.
    message = text.encode("utf-8", "namereplace" if escaped else "backslashreplace")
    marks = draw(few_marks | st.lists(names, max_size=3, unique=True))
    return StoredMessage(name, message, tuple(marks))


@st.composite
def memories(draw: st.DrawFn, key: MemoryKey | None = None, least: int = 1) -> Sample:
    """A memory whose messages have different ids."""
    ids = draw(st.lists(names, min_size=least, max_size=8, unique=True))
    key = key or MemoryKey(draw(names), draw(names))
    return sample(key, [draw(entries(name)) for name in ids])


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Draw values of the strategy, and half of the time None."""
    return st.none() | strategy


def sets(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[frozenset[Any]]:
    """Mostly empty sets, so that filters do not shut everything out."""
    return st.just(frozenset()) | st.frozensets(strategy, max_size=2)


def selections(found: list[Sample]) -> st.SearchStrategy[Selection]:
    """Draw selections that may well select something of these memories."""
    keys = st.sampled_from([one.key for one in found])
    ids = st.sampled_from([entry.id for one in found for entry in one.entries])
    marks = st.sampled_from(["hint", "compressed", "a", "A", "none"])
    return st.builds(
        Selection,
        users=sets(keys.map(lambda key: key.user)),
        sessions=sets(keys.map(lambda key: key.session)),
        keys=maybe(st.frozensets(keys, max_size=2)),
        marks=sets(marks),
        exclude_marks=sets(marks),
        roles=sets(st.sampled_from(["user", "assistant", "system"])),
        names=sets(st.sampled_from(["Alice", "Friday"])),
        ids=sets(ids),
        since=maybe(times),
        until=maybe(times),
        match=maybe(any_text.map(lambda text: text[:1])),
        last=maybe(st.integers(1, 5)),
    )
