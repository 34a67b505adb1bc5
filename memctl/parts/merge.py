"""One report out of those of all parts: numbers add up, and lists follow each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from memctl.errors import exit_codes
from memctl.ops.doctor.findings import ORDER
from memctl.parts.part import PartResult
from memctl.text.numbers import count

MOST_ROWS = 1_000
"""The largest number of rows in the long lists of a report; ``failures_total`` has them all."""
_LONG = ("failures", "differences", "plan")
_CONSIDERABLE = 100_000
"""The least number of messages for a warning that one part has most of the messages."""
_OF_PART = ("bytes", "run", "undoes", "quarantine")
"""The keys of a report that differ between parts; the row of each part has its own."""
_STORES = ("source", "target", "url", "file")
"""The names of stores and files, in which the parts of a run on a fleet differ."""
_CODES = {number: name for number, name, _ in reversed(exit_codes())}
_Row = dict[str, Any]


@dataclass(slots=True)
class Merged:
    """The report of all parts: its JSON object without schema, warnings and error.

    ``untimed`` is the number of messages that a selection by time leaves out because they have no
    time.
    """

    data: dict[str, Any]
    warnings: list[str] = field(default_factory=list)
    untimed: int = 0


def merge(
    results: Iterable[PartResult],
    *,
    sort: str = "messages",
    limit: int | None = None,
    names: Mapping[str, str] | None = None,
    stores: Sequence[str] = (),
) -> Merged:
    """Return the report of a run out of those of its parts.

    ``sort`` and ``limit`` are those of the rows of ``inspect``.  For parts of a fleet, ``stores``
    has the names of its stores, and ``names`` the name of the fleet in place of the texts
    ``source``, ``target`` and ``url``.
    """
    ended = sorted(results, key=lambda result: result.shard)
    merging = _Merging(ended, names or {})
    data: dict[str, Any] = merging.merged(())
    for name in _LONG:
        rows = data.get(name, ())
        if len(rows) > MOST_ROWS:
            data |= {name: rows[:MOST_ROWS], f"{name}_total": len(rows)}
    if "memories" in data and "totals" in data:
        rows = sorted(data["memories"], key=_ORDERS[sort], reverse=sort == "last")
        data["memories"] = rows[: limit or None]
    if "ratio" in (tokens := data.get("tokens", {})):
        after, before = tokens["after"], tokens["before"]
        tokens["ratio"] = after / before if after is not None and before else None
    data["parts"] = [_part(result, stores) for result in ended]
    warnings = [*_warnings(ended), *merging.warnings, *_uneven(ended)]
    return Merged(data, warnings, data.pop("untimed", 0))


class _Merging:
    """Merges the values at each place in the reports; a place is a tuple of keys."""

    def __init__(self, results: Sequence[PartResult], names: Mapping[str, str]) -> None:
        self.warnings: list[str] = []
        self._results = results
        self._names = names
        self._reports = [result.report for result in results if result.report is not None]
        self._rules: dict[tuple[str, ...], Callable[[list[Any]], Any]] = {
            ("verified",): self._everywhere,
            ("healthy",): self._everywhere,
            ("store", "capabilities"): lambda found: self._same(("capabilities",), found),
            ("store", "embedding"): lambda found: self._same(("embedding",), found),
            ("totals", "first"): min,
            ("totals", "last"): max,
            ("findings",): _findings,
            ("repaired",): _findings,
            ("groups",): self._groups,
            ("losses",): lambda found: _added(found, "kind", ("memories",)),
        }

    def merged(self, place: tuple[str, ...]) -> dict[str, Any]:
        """Return the merged object at a place."""
        objects = [_at(report, place) for report in self._reports]
        found = {}
        for name in dict.fromkeys(name for one in objects for name in one):
            below = (*place, name)
            if below not in _LEFT_OUT:
                found[name] = self._value(below, [one[name] for one in objects if name in one])
        return found

    def _value(self, place: tuple[str, ...], values: list[Any]) -> Any:
        known = [value for value in values if value is not None]
        if not known:
            return None
        if place in self._rules:
            return self._rules[place](known)
        match known[0]:
            case bool():
                return all(known)
            case int() | float():
                return sum(known)
            case list():
                return [row for rows in known for row in rows]
            case dict():
                return self.merged(place)
        if place[-1] in _STORES:
            return self._names.get(place[-1]) or self._place(place)
        return self._same(place, known)

    def _everywhere(self, values: list[bool]) -> bool:
        """Return whether all parts have the value True.

        A part that had nothing to do has no value, and has ended with exit code 0.
        """
        results = self._results
        ended = len(values) == len(results) or not any(result.exit for result in results)
        return ended and len(results) == results[0].shard.of and all(values)

    def _same(self, place: tuple[str, ...], values: list[Any]) -> Any:
        """Return the value that is the same in all parts; warn if it is not."""
        if any(value != values[0] for value in values):
            texts = ", ".join(dict.fromkeys(map(str, values)))
            self.warnings.append(f"the parts differ in {place[-1]}: {texts}")
        return values[0]

    def _place(self, place: tuple[str, ...]) -> str:
        """Return the names of a store, or of the files of all parts, with ``{shard}`` in them."""
        found = {
            text.replace(result.shard.file_name, "{shard}"): None
            for result in self._results
            if (text := _at(result.report or {}, place[:-1]).get(place[-1])) is not None
        }
        return ", ".join(found)

    def _groups(self, lists: list[list[_Row]]) -> list[_Row]:
        by = next(report["by"] for report in self._reports if "by" in report)
        found = _added(lists, by, ("memories", "messages", "bytes"))
        if by == "day":
            return sorted(found, key=lambda row: row["day"])
        return sorted(found, key=lambda row: -row["messages"])


_LEFT_OUT = {
    *(("schema",), ("warnings",), ("error",), ("parts",)),
    ("totals", "users"),  # a user may be in several parts
    *((name,) for name in _OF_PART if name != "bytes"),
}


def _at(report: Mapping[str, Any], place: tuple[str, ...]) -> dict[str, Any]:
    found: Any = report
    for name in place:
        found = found.get(name) or {}
    return dict(found)


def _added(lists: Iterable[Sequence[_Row]], name: str, numbers: tuple[str, ...]) -> list[_Row]:
    """Return the rows of all lists, those that share ``name`` as one with their numbers added."""
    found: dict[str, _Row] = {}
    for row in (row for rows in lists for row in rows):
        first = found.setdefault(row[name], {**row, **dict.fromkeys(numbers, 0)})
        for number in numbers:
            first[number] += row[number]
    return list(found.values())


def _findings(lists: Iterable[Sequence[_Row]]) -> list[_Row]:
    """Return the findings or repairs of all parts as ``doctor`` orders them, one for each place."""
    found: dict[tuple[Any, ...], _Row] = {}
    for row in (row for rows in lists for row in rows):
        place = tuple(row.get(name) for name in ("code", "user", "session", "path", "message"))
        if place in found:
            found[place]["count"] += row["count"]
        else:
            found[place] = dict(row)
    return sorted(
        found.values(),
        key=lambda row: (ORDER[row["code"]], row["user"] is not None, *_key(row)),
    )


def _key(row: _Row) -> tuple[str, ...]:
    return tuple(row.get(name) or "" for name in ("user", "session", "path"))


_ORDERS: dict[str, Callable[[_Row], Any]] = {
    "messages": lambda row: (-row["messages"], _key(row)),
    "bytes": lambda row: (-row["bytes"], _key(row)),
    "user": _key,
    "last": lambda row: row["last"] or "",
}
"""How ``inspect`` orders memories: as ``memctl.ops.inspect.inspect`` does."""


def _part(result: PartResult, stores: Sequence[str]) -> _Row:
    """Return the row of a part in the list ``parts`` of the report."""
    row: _Row = {"shard": str(result.shard)}
    if stores:
        row["store"] = stores[result.shard.number * len(stores) // result.shard.of]
    row |= {
        "exit": result.exit,
        "attempts": result.attempts,
        "seconds": result.seconds,
        "host": result.host,
        "messages": result.messages,
    }
    report = result.report or {}
    row |= {name: report[name] for name in ("file", *_OF_PART) if name in report}
    if result.exit or "error" in report:
        row["error"] = report.get("error") or _unreported(result)
    return row


def _unreported(result: PartResult) -> _Row:
    """Return the error of a part that has not reported one."""
    message, hint = result.reason
    return {
        "code": _CODES.get(result.exit, "unavailable"),
        "message": message,
        "hint": hint,
    }


def _warnings(results: Sequence[PartResult]) -> list[str]:
    """Return each warning of the parts once, with the parts that said it."""
    said: dict[str, list[PartResult]] = {}
    for result in results:
        report = result.report or {}
        untimed = f"{report.get('untimed', 0):,} "
        for text in report.get("warnings", ()):
            if not (text.startswith(untimed) and "without a time: " in text):  # told of the sum
                said.setdefault(text, []).append(result)
    return [
        f"{text} (part {parts[0].shard})"
        if len(parts) == 1
        else f"{text} ({len(parts):,} of {count(parts[0].shard.of, 'part')})"
        for text, parts in said.items()
    ]


def _uneven(results: Sequence[PartResult]) -> list[str]:
    """Return a warning if one part has over half of the messages; two parts have half anyway."""
    whole = sum(result.messages for result in results)
    if len(results) < 3 or whole < _CONSIDERABLE:
        return []
    return [
        f"part {result.shard} has {result.messages / whole:.0%} of the messages, and more parts "
        "would not divide it: a session is never divided"
        for result in results
        if result.messages * 2 > whole
    ]
