"""The report of a run in parts, in every format, from the JSON object that merges their reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from memctl.commands._reports import all_held, flat_row, nothing_but_held
from memctl.errors import Conflict, Different, Failure, MemctlError, Unhealthy
from memctl.model import Embedding, Finding, MemoryInfo, MemoryKey
from memctl.ops.change.apply import ChangeCounts, ChangeReport
from memctl.ops.copy.compare import CompareReport, Difference
from memctl.ops.doctor.check import Diagnosis, unhealthy
from memctl.ops.doctor.findings import KINDS
from memctl.ops.inspect import Catalogue, Totals
from memctl.ops.inspect import Group as Shared
from memctl.output import diagnosis, tables
from memctl.output.report import Report
from memctl.text.numbers import count

_Row = dict[str, Any]


def merged_report(
    command: str, data: dict[str, Any], of: int, engine: str, seconds: float
) -> Report:
    """Return the report of a command that ran in parts.

    ``data`` is the JSON object of ``memctl.parts.merge``, ``of`` the number of parts, ``engine``
    the name of what ran them, and ``seconds`` the wall time of all.
    """

    def about(label: str = "", body: str = "") -> Text:
        text = tables.divided(label, body, data["parts"], of, engine, seconds)
        if "job" in data:
            text.append(f"\nundo it with: memctl undo {data['job']}", "not bold dim")
        return text

    def table() -> RenderableType:
        match command:
            case "inspect" if "totals" in data or "groups" in data:
                return Group(_contents(data), Text(), about())
            case "verify" if "source" in data:
                found = _comparison(data)
                return Group(tables.comparison(found, data["source"], data["target"]), about())
            case "doctor" if "store" in data:
                return Group(*_health(data), Text(), about())
            case "undo" if not of:
                return Text(f"{_label(data)}\nnothing to undo")
        return tables.with_failures(about(_label(data), _facts(data)), _failures(data))

    of_run = command != "inspect" and not data.get("dry_run")
    return Report(command, lambda: data, lambda: _rows(command, data), table, of_run)


def in_job(data: dict[str, Any], job: str) -> dict[str, Any]:
    """Return the report of all parts with the name of their job, if one has recorded a run."""
    return data | {"job": job} if any("run" in part for part in data["parts"]) else data


def summed_up(error: MemctlError, data: dict[str, Any]) -> MemctlError:
    """Return the error of the whole for what parts have found, with the sum of what they found."""
    if isinstance(error, Unhealthy):
        error = unhealthy(data["store"]["url"], _diagnosis(data))
    elif isinstance(error, Different):
        number = data.get("differences_total", len(data["differences"]))
        error = Different(f"{count(number, 'difference')} between the two stores")
    elif isinstance(error, Conflict) and "target" in data and (failures := _failures(data)):
        why = f"{data['target']} has different messages"
        if "source" not in data:
            key, failure = failures[0]
            why = f"{key}: {failure.message}"
        left = count(data["memories"]["failed"], "memory")
        error = Conflict(f"{left} left unchanged: {why}", error.hint)
    return error


def held_error(data: Mapping[str, Any]) -> MemctlError | None:
    """Return the error of a run if all that its parts selected is held; else None."""
    failures = _failures(data)
    if not all_held(failures):
        return None
    did = sum(data["memories"].get(name, 0) for name in ("written", "unchanged", "skipped"))
    return None if did else nothing_but_held(failures)


def planned_changes(data: dict[str, Any]) -> ChangeReport:
    """Return the plan of a command that changes a store, from the merged report of dry runs."""
    messages = data["messages"]
    counts = ChangeCounts(
        data["memories"]["selected"],
        deleted=messages["deleted"],
        marked=messages["marked"],
        restored=messages.get("restored", 0),
    )
    rows = data.get("plan", ())
    return ChangeReport(
        planned=counts,
        planned_by_memory={_key(row): row["messages"] for row in rows},
        staying={_key(row): row["stay"] for row in rows if "stay" in row},
    )


def repairs(data: Mapping[str, Any]) -> list[Finding]:
    """Return what doctor has repaired or, in the report of dry runs, would repair."""
    return [_finding(row) for row in data.get("repaired", ())]


def _rows(command: str, data: dict[str, Any]) -> list[_Row]:
    """Return the rows of a report for NDJSON and CSV."""
    lists = {"verify": ("differences",), "doctor": ("findings",), "inspect": ("memories", "groups")}
    if command in lists:
        return [row for name in lists[command] for row in data.get(name, ())]
    if "dry_run" not in data:  # no part came that far
        return []
    places = [name for name in ("source", "target", "file", "as", "bytes") if name in data]
    row = flat_row(data, "dry_run", *places)
    if command == "export":
        return [row | {"removed": len(data["removed"])}]
    if command not in ("migrate", "import"):
        row |= {"run": data.get("job")}
    for what in ("tokens", "model"):
        row |= {f"{what}_{name}": value for name, value in data.get(what, {}).items()}
    if command == "compress":
        row |= {"mode": data["mode"], "summarizer": data["summarizer"]["name"]}
    return [row]


def _label(data: dict[str, Any]) -> str:
    """Return the names of the stores of a run, such as ``prod → new``."""
    names = (data.get(name) for name in ("source", "target", "file"))
    return " → ".join(name for name in names if name)


def _facts(data: dict[str, Any]) -> str:
    """Return what a copy or a change did, in one line."""
    if "memories" not in data:
        return ""
    memories, messages = data["memories"], data["messages"]
    would = "would be " if data["dry_run"] else ""
    done = {"written": f"{would}written" if "written" in messages else f"{would}changed"}
    facts = [
        f"{number:,} {done.get(name, name)}"
        for name, number in memories.items()
        if name != "selected" and number
    ]
    said = ": ".join(filter(None, [count(memories["selected"], "memory"), ", ".join(facts)]))
    more = [count(messages["selected"], "message")]
    more += [
        f"{messages[name]:,} {would}{name}"
        for name in ("deleted", "marked", "restored")
        if messages.get(name)
    ]
    if "verified" in data:
        more.append("verified" if data["verified"] else "not verified")
    cost = data.get("model", data.get("embedded", {})).get("cost")
    if cost is not None:
        more.append(f"cost {cost:.4g}")
    return f"{said}     {', '.join(more)}"


def _key(row: _Row) -> MemoryKey:
    return MemoryKey(row["user"], row["session"], row.get("path", ""))


def _failures(data: Mapping[str, Any]) -> list[tuple[MemoryKey, Failure]]:
    rows = data.get("failures", ())
    return [(_key(row), Failure(row["code"], row["message"])) for row in rows]


def _contents(data: dict[str, Any]) -> RenderableType:
    """Draw the totals and memories of ``inspect``, or its groups."""
    if "groups" in data:
        by = data["by"]
        groups = [
            Shared(**{"name" if k == by else k: v for k, v in row.items()})
            for row in data["groups"]
        ]
        return tables.groups(by, groups)
    store, rows = data["store"], data["memories"]
    infos = [
        MemoryInfo(_key(row), **{name: row[name] for name in _INFO})  # the roles are in the totals
        for row in rows
    ]
    embedding = store.get("embedding")
    drawn = tables.catalogue(
        store["url"],
        store["what"],
        Catalogue(Totals(**data["totals"]), infos),
        None,
        embedding=embedding and Embedding(**embedding),
    )
    hidden = data["totals"]["memories"] - len(infos)
    more = Text(f"and {count(hidden, 'memory')} more: --limit 0 shows all", "dim")
    return Group(drawn, more) if hidden else drawn


_INFO = ("messages", "bytes", "marks", "unread", "first", "last", "summary", "ttl")


def _comparison(data: dict[str, Any]) -> CompareReport:
    differences = [
        Difference(_key(row), row["code"], row["id"], row["message"]) for row in data["differences"]
    ]
    messages = data["messages"]
    return CompareReport(
        **data["memories"],
        left_messages=messages["source"],
        right_messages=messages["target"],
        differences=differences,
    )


def _health(data: dict[str, Any]) -> Iterable[RenderableType]:
    """Draw the repairs and findings of ``doctor``."""
    store = data["store"]
    if "repaired" in data:
        failed = "healthy" not in data
        yield diagnosis.repairs(repairs(data), None, None, dry_run=data["dry_run"], failed=failed)
        yield Text()
    if "healthy" in data:
        yield diagnosis.findings(store["url"], _diagnosis(data))


def _diagnosis(data: dict[str, Any]) -> Diagnosis:
    faults = [_finding(row) for row in data["findings"]]
    about = data["memories"], data["messages"], faults
    return Diagnosis(data["store"]["kind"], "message", *about)


def _finding(row: _Row) -> Finding:
    what = KINDS[row["code"]].what
    return Finding(
        row["code"],
        None if row["user"] is None else _key(row),
        row["count"],
        tuple(row.get("ids", ())),
        row.get("message", what).removeprefix(what).removeprefix(": "),
        row.get("remedy", ""),
    )
