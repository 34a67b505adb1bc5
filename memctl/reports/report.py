"""The base of all reports, and the objects and values that several of them have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Self, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from memctl.errors import Failure, MemctlError, exit_codes
from memctl.model import MemoryKey

T = TypeVar("T")
R = TypeVar("R", bound="Row")
Differ = Callable[[str, list[str]], str]
Maybe: TypeAlias = T | UnsetType
"""A value that is left out where it does not apply."""
Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Amount = Annotated[float, Meta(ge=0)]
"""Seconds, a ratio or a cost."""
Unread = dict[str, Positive]
"""Messages that the framework does not read, by reason."""

Place = Annotated[str, Meta(description="Without passwords.")]
DryRun = Annotated[bool, Meta(description="True if nothing was written.")]
RunId = Annotated[str, Meta(description="The run that 'memctl undo' undoes.")]
Untimed = Annotated[
    int,
    Meta(
        ge=1,
        description="The messages that the selection by time leaves out because they have no time.",
    ),
]
User = Annotated[str, Meta(description="The user of the memory.")]
Session = Annotated[str, Meta(description="The session of the memory.")]
Path = Annotated[
    str,
    Meta(
        description="The memory within the session if the session holds several, such as "
        "agent.memory."
    ),
]
First = Annotated[str | None, Meta(description="The earliest timestamp.")]
Last = Annotated[str | None, Meta(description="The latest timestamp.")]


def one_of(words: str) -> Meta:
    """Return the metadata of a text that is one of some words, which spaces separate."""
    return Meta(extra_json_schema={"enum": words.split()})


WhyUnread = (
    Annotated[
        str,
        one_of("rewound compacted deleted other-branch unmatched not-for-memory"),
        Meta(description="Why the framework does not read the message; null if it does."),
    ]
    | None
)
_CODES = dict.fromkeys(code for end, code, _ in exit_codes() if end and code != "closed-pipe")
ErrorCode = one_of(" ".join(_CODES))


class Row(Struct, forbid_unknown_fields=True):
    """A JSON object of a report.

    As a row of NDJSON and CSV, it is the object itself; or, if it has objects or lists in it, a row
    of its fields ``flat``.  There, the fields of an object have its name before their own, a list
    is the number of its items, and a list of ``joined`` a text with spaces.  ``summarizer.name`` is
    that field of the object alone, under the name of the object.
    """

    flat: ClassVar[Sequence[str]] = ()
    joined: ClassVar[Sequence[str]] = ()
    rules: ClassVar[Mapping[str, Callable[[list[Any]], Any]]] = {}
    """How values of some fields add up that have a rule of their own; see ``sum_of``."""

    @classmethod
    def sum_of(cls, some: Sequence[Self], differ: Differ) -> Self:
        """Return the sum of objects.

        Numbers add up, lists follow each other, and a truth has to be that of all.  A text should
        be the same in all: ``differ`` gets the name of the field and the texts if it is not, and
        returns the text of the sum.
        """
        found = {}
        for name in cls.__struct_fields__:
            all_ = [getattr(one, name) for one in some]
            if values := [value for value in all_ if value is not UNSET and value is not None]:
                rule: Any = cls.rules.get(name, partial(_total, name, differ))
                found[name] = rule(values)
            else:
                found[name] = None if None in all_ else UNSET
        return cls(**found)

    def row(self) -> dict[str, Any]:
        """Return the object as a row."""
        found: dict[str, Any] = msgspec.to_builtins(self, enc_hook=_text)
        return dict(self._flattened(found)) if self.flat else found

    def _flattened(self, data: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        for place in self.flat:
            name, _, inner = place.partition(".")
            match data.get(name):
                case dict() as found if inner:
                    yield name, found[inner]
                case dict() as found:
                    yield from ((f"{name}_{key}", _cell(one)) for key, one in found.items())
                case list() as found if name in self.joined:
                    yield name, " ".join(found)
                case value:
                    yield name, _cell(value)


def _text(value: Any) -> str:
    """Return a text of a class of its own, such as the name of a column, as an ordinary text."""
    return str.__str__(value)


def _total(name: str, differ: Differ, values: list[Any]) -> Any:
    match values[0]:
        case bool():
            return all(values)
        case int() | float():
            return sum(values)
        case Row():
            return type(values[0]).sum_of(values, differ)
        case list():
            return [one for some in values for one in some]
        case dict():
            counts: Counter[str] = Counter()
            for some in values:
                counts.update(some)
            return dict(counts)
    return values[0] if len({*values}) == 1 else differ(name, values)


def first(values: list[Any]) -> Any:
    """Return the first of several values, which are the same."""
    return values[0]


def left_out(values: list[Any]) -> UnsetType:  # noqa: ARG001
    """Leave a value out of a sum."""
    return UNSET


def added(name: str) -> Callable[[list[list[R]]], list[R]]:
    """Return how lists add up: rows with the same value of the field ``name`` are one."""

    def total(lists: list[list[R]]) -> list[R]:
        found: dict[Any, list[R]] = {}
        for row in (row for rows in lists for row in rows):
            found.setdefault(getattr(row, name), []).append(row)
        return [type(rows[0]).sum_of(rows, lambda _, values: values[0]) for rows in found.values()]

    return total


def _cell(value: Any) -> Any:
    return len(value) if isinstance(value, list) else value


class OfMemory(Row, kw_only=True):
    """A row about a memory."""

    user: User
    session: Session
    path: Maybe[Path] = UNSET

    @property
    def key(self) -> MemoryKey:
        """The memory."""
        return MemoryKey(self.user, self.session, self.path or "")


def named(key: MemoryKey) -> dict[str, Any]:
    """Return the fields that name a memory in a row."""
    return {"user": key.user, "session": key.session, "path": key.part or UNSET}


class Error(Row):
    """Why the run did not end with exit code 0."""

    code: Annotated[str, ErrorCode]
    """Stable; 'memctl help exit-codes' explains each."""
    message: str
    hint: str | None
    """What to do about the error."""

    @classmethod
    def of(cls, error: MemctlError) -> Error:
        """Return an error for a report."""
        return cls(code=error.code, message=error.message, hint=error.hint)


class FailureRow(Row, kw_only=True):
    """A memory that was left as it was."""

    user: User
    session: Session
    code: str
    """Stable: conflict, changed, refused and others."""
    path: Maybe[Path] = UNSET
    message: str

    @classmethod
    def of(cls, failures: Iterable[tuple[MemoryKey, Failure]]) -> list[FailureRow]:
        """Return a row for each memory that failed."""
        return [
            cls(**named(key), code=failure.code, message=failure.message)
            for key, failure in failures
        ]


class PartRow(Row, kw_only=True):
    """A part of a run with --shards."""

    shard: str
    """K/N: part K of N, numbered from 0."""
    store: Maybe[str] = UNSET
    """The store of a fleet that the part is of."""
    exit: Count
    """The exit code of the part."""
    attempts: Positive
    """How often the part has run: a lost one is repeated."""
    seconds: Amount
    host: str
    """The machine."""
    messages: Count
    """The messages that the part selected."""
    file: Maybe[str] = UNSET
    """The file of the part, or the folder."""
    bytes: Maybe[Count | None] = UNSET
    """The size of the file; null for a folder and in a dry run."""
    run: Maybe[RunId] = UNSET
    undoes: Maybe[str] = UNSET
    """The undone run."""
    quarantine: Maybe[str] = UNSET
    """The quarantine file with the damaged data."""
    error: Maybe[Error] = UNSET


def _schema(name: str) -> str:
    """Return the schema of the report of a class: ``memctl/delete/1`` of ``DeleteReport``."""
    return f"memctl/{name.removesuffix('Report').lower()}/1"


class Report(Row, tag_field="schema", tag=_schema):
    """The report of a command, without the warnings and the error that a run adds.

    Its rows are the objects in its fields ``lists``, or in fields of these, such as
    ``rotation.files``.
    """

    lists: ClassVar[Sequence[str]] = ()

    def data(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        found: dict[str, Any] = msgspec.to_builtins(self, enc_hook=_text)
        return found

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of the report for NDJSON and CSV."""
        if self.flat:
            return [self.row()]
        return [row for place in self.lists for row in _rows(self._items(place))]

    def _items(self, place: str) -> Sequence[Row]:
        found: Any = self
        for name in place.split("."):
            found = getattr(found, name)
        if found is UNSET:
            return ()
        return [found] if isinstance(found, Row) else found


def _rows(items: Sequence[Row]) -> list[dict[str, Any]]:
    if any(item.flat for item in items[:1]):
        return [item.row() for item in items]
    found: list[dict[str, Any]] = msgspec.to_builtins(items, enc_hook=_text)
    return found


class Divisible(Report, kw_only=True):
    """The report of a command that can run in parts; each part has such a report."""

    rules: ClassVar = dict.fromkeys(("run", "undoes", "quarantine", "parts"), left_out)
    failures_total: Maybe[Count] = UNSET
    """With --shards: the number of all failures, if the list was cut."""
    differences_total: Maybe[Count] = UNSET
    """With --shards: the number of all differences, if the list was cut."""
    plan_total: Maybe[Count] = UNSET
    """With --shards: the number of all planned memories, if the list was cut."""
    parts: Maybe[list[PartRow]] = UNSET
    """With --shards: how each part ended."""
    job: Maybe[str] = UNSET
    """With --shards: the name by which memctl undo takes the runs of all parts."""
    untimed: Maybe[Untimed] = UNSET

    def row(self) -> dict[str, Any]:
        """Return the report as a row, in which the job stands for the run."""
        row = super().row()
        return row | {"run": self.job} if "run" in row and self.job else row

    def data(self) -> dict[str, Any]:
        """Return the report as a JSON object, in which what is about its parts comes last."""
        data = super().data()
        return data | {name: data.pop(name) for name in LAST if name in data}


LAST = Divisible.__struct_fields__
"""The fields that come last in a report."""


class PartsReport(Divisible, kw_only=True):
    """The report of a run in parts if every part ended before its work began."""

    command: str

    def data(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        data = super().data()
        return data | {"schema": f"memctl/{data.pop('command')}/1"}
