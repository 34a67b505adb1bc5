"""One report of many parts: sums, what follows each other, and what a part did not say."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from memctl.commands._parts_report import merged_report
from memctl.parts.merge import MOST_ROWS, Merged, merge
from memctl.parts.part import PartResult
from memctl.shard import Shard
from tests.support.schemas import check, check_row

LOSS = {"kind": "summary", "memories": 2, "example": {"user": "ada", "session": "one"}}


def copied(number: int, of: int = 2, **more: Any) -> PartResult:
    """A part of a migration that ended well."""
    report = {
        "schema": "memctl/migrate/1",
        "dry_run": False,
        "source": "a.db",
        "target": "b.db",
        "memories": {"selected": 3, "written": 2, "unchanged": 1, "skipped": 0, "failed": 0},
        "messages": {"selected": 30, "written": 20, "skipped": 10, "deleted": 0, "failed": 0},
        "failures": [],
        "losses": [],
        "verified": True,
        "warnings": [],
        **more,
    }
    exit_code = 7 if "error" in more else 0
    return PartResult(Shard(number, of), exit_code, report, "", "node", 1.5, 1)


def of(command: str, number: int, **data: Any) -> PartResult:
    """A part of a command with a report of its own."""
    report = {"schema": f"memctl/{command}/1", **data, "warnings": data.get("warnings", [])}
    return PartResult(Shard(number, 2), 0, report, "", "node", 1.0)


def checked(command: str, merged: Merged) -> dict[str, Any]:
    """The data of a merged report that is valid for the schema of the command, as its rows are."""
    data = merged.report.data()
    assert data["schema"] == f"memctl/{command}/1"
    check({**data, "warnings": merged.warnings})
    for line in merged.report.rows():
        check_row(command, line)
    assert shown(merged)
    return data


def shown(merged: Merged, of: int = 2) -> str:
    """The report as a table in a pipe."""
    console = Console(width=200, color_system=None)
    with console.capture() as captured:
        console.print(merged_report(merged.report, of, "ray", 702.4).table())
    return captured.get()


def row(session: str, **more: Any) -> dict[str, Any]:
    return {"user": "ada", "session": session, **more}


def test_merge_numbers_add_up_and_losses_add_up_by_kind() -> None:
    made = {"embedder": "e", "model": "m", "texts": 4, "tokens": 9, "cost": 0.5}
    first = copied(0, losses=[LOSS], embedded=made, run="R0")
    second = copied(1, losses=[LOSS, {**LOSS, "kind": "expiry"}], embedded=made, run="R1")
    found = checked("migrate", merge("migrate", [second, first]))
    assert found["memories"]["selected"] == 6
    assert found["messages"]["skipped"] == 20
    assert [(one["kind"], one["memories"]) for one in found["losses"]] == [
        ("summary", 4),
        ("expiry", 2),
    ]
    assert found["embedded"] == {**made, "texts": 8, "tokens": 18, "cost": 1.0}
    assert (found["source"], found["target"], found["verified"]) == ("a.db", "b.db", True)
    assert [(one["shard"], one["run"]) for one in found["parts"]] == [("0/2", "R0"), ("1/2", "R1")]
    assert "run" not in found


def test_merge_part_without_a_report_has_its_error_and_is_not_verified() -> None:
    lost = PartResult(
        Shard(1, 2), 75, None, "starting\nmemctl: error: b.db is busy\n  hint: wait", "n", 0.5, 6
    )
    found = checked("migrate", merge("migrate", [copied(0), lost]))
    assert found["verified"] is False
    assert found["parts"][1] == {
        **{"shard": "1/2", "exit": 75, "attempts": 6, "seconds": 0.5, "host": "n", "messages": 0},
        "error": {"code": "busy", "message": "b.db is busy", "hint": None},
    }
    killed = PartResult(Shard(1, 2), 137)
    said = merge("migrate", [killed]).report.data()["parts"][0]["error"]
    assert said["message"] == "its process was ended by SIGKILL"
    assert "out of memory" in said["hint"]


def test_merge_part_that_never_started_leaves_the_rest_unverified() -> None:
    assert merge("migrate", [copied(0, 3), copied(2, 3)]).report.data()["verified"] is False
    assert "verified" not in merge("migrate", [PartResult(Shard(0, 2), 3)]).report.data()


def test_merge_failures_are_listed_up_to_a_thousand_and_counted() -> None:
    failures = [row(f"s{n}", code="changed", message="m") for n in range(600)]
    error = {"code": "partial", "message": "600 memories failed", "hint": None}
    few = [copied(0, failures=failures), copied(1, failures=failures[:1], error=error)]
    found = checked("migrate", merge("migrate", few))
    assert len(found["failures"]) == 601
    assert found["parts"][1]["error"] == error
    assert "failures_total" not in found
    found = checked(
        "migrate", merge("migrate", [copied(0, failures=failures), copied(1, failures=failures)])
    )
    assert (len(found["failures"]), found["failures_total"]) == (MOST_ROWS, 1200)


def test_merge_warnings_once_each_with_the_parts_that_said_it() -> None:
    several, one = "the target has no summaries", "the store was locked"
    untimed = "{} messages without a time: a selection by time leaves out such messages"
    parts = [
        copied(n, 3, warnings=[several, untimed.format(n + 1)], untimed=n + 1) for n in range(2)
    ]
    merged = merge("migrate", [*parts, copied(2, 3, warnings=[one])])
    assert merged.warnings == [f"{several} (2 of 3 parts)", f"{one} (part 2/3)"]
    assert merged.untimed == 3
    assert "untimed" not in merged.report.data()


def test_merge_texts_that_differ_are_told_and_a_fleet_names_itself() -> None:
    parts = [copied(0, source="one.db"), copied(1, source="two.db")]
    assert merge("migrate", parts).report.data()["source"] == "one.db, two.db"
    merged = merge("migrate", parts, names={"source": "@prod"}, stores=["one", "two"])
    assert (merged.warnings, checked("migrate", merged)["source"]) == ([], "@prod")
    assert [part["store"] for part in merged.report.data()["parts"]] == ["one", "two"]
    kinds = [
        of("doctor", n, store={"url": "a.db", "kind": f"kind{n}"}, findings=[]) for n in range(2)
    ]
    assert merge("doctor", kinds).warnings == ["the parts differ in kind: kind0, kind1"]


@pytest.mark.parametrize(("most", "told"), [(100_000, True), (900, False)])
def test_merge_warns_of_a_part_with_over_half_of_many_messages(most: int, told: bool) -> None:
    def part(number: int, messages: int) -> PartResult:
        return copied(number, 3, messages={**copied(0).report["messages"], "selected": messages})  # type: ignore[index]

    merged = merge("migrate", [part(0, most // 10), part(1, most), part(2, 0)])
    assert [text[:32] for text in merged.warnings] == ["part 1/3 has 91% of the messages"][:told]


def test_merge_of_inspect_has_no_users_and_sorts_the_memories_of_all_parts() -> None:
    def part(number: int, first: str | None, rows: list[dict[str, Any]]) -> PartResult:
        totals = {
            **{"users": 2, "without_user": 1, "memories": len(rows), "messages": 5, "bytes": 7},
            **{"marks": {"hint": 2, "users": 1}, "roles": {"user": number}},
            **{"unread": {"rewound": 1}},
            **{"first": first, "last": first, "summaries": None},
        }
        embedding = {"model": "m", "dimensions": 384}
        about = {"url": "a.db", "kind": "k", "what": "w"}
        store = {**about, "capabilities": ["c"], "embedding": embedding}
        return of("inspect", number, store=store, totals=totals, memories=rows)

    def memory(session: str, messages: int, last: str) -> dict[str, Any]:
        row_ = row(session, messages=messages, bytes=1, marks={}, first=None, last=last)
        return row_ | {"summary": None, "ttl": None, "unread": {}}

    parts = [
        part(0, None, [memory("a", 9, "2026-03"), memory("b", 1, "2026-01")]),
        part(1, "2026-02", [memory("c", 5, "2026-02")]),
    ]
    found = checked("inspect", merge("inspect", parts))
    assert found["totals"] == {
        **{"without_user": 2, "memories": 3, "messages": 10, "bytes": 14},
        **{"marks": {"hint": 4, "users": 2}, "roles": {"user": 1}, "unread": {"rewound": 2}},
        **{"first": "2026-02", "last": "2026-02", "summaries": None},
    }
    assert found["store"]["embedding"]["dimensions"] == 384
    assert found["store"]["capabilities"] == ["c"]
    assert [one["session"] for one in found["memories"]] == ["a", "c", "b"]
    found = merge("inspect", parts, sort="last", limit=2).report.data()
    assert [one["session"] for one in found["memories"]] == ["a", "c"]


def test_merge_of_groups_adds_those_of_one_name() -> None:
    def part(number: int, *names: str) -> PartResult:
        groups = [{"role": name, "memories": 1, "messages": 2, "bytes": 3} for name in names]
        return of("inspect", number, by="role", groups=groups)

    found = checked("inspect", merge("inspect", [part(0, "tool", "user"), part(1, "user")]))
    assert found["groups"] == [
        {"role": "user", "memories": 2, "messages": 4, "bytes": 6},
        {"role": "tool", "memories": 1, "messages": 2, "bytes": 3},
    ]


def test_merge_of_verify_lists_the_differences_of_all_parts() -> None:
    def part(number: int) -> PartResult:
        return of(
            "verify",
            number,
            source="a.db",
            target="b.db",
            memories={"same": 4, "different": 1, "missing": 0, "extra": 0},
            messages={"source": 50, "target": 49},
            differences=[row(f"s{number}", code="content", id="m1", message="other text")],
        )

    found = checked("verify", merge("verify", [part(0), part(1)]))
    assert found["memories"]["different"] == 2
    assert [one["session"] for one in found["differences"]] == ["s0", "s1"]
    assert found["parts"][0]["messages"] == 50


def test_merge_of_doctor_orders_findings_and_is_healthy_only_if_all_parts_are() -> None:
    def finding(code: str, session: str | None, **more: Any) -> dict[str, Any]:
        told = {"severity": "error", "message": code, "meaning": "m", "remedy": "r"}
        user = None if session is None else "ada"
        row_: dict[str, Any] = {
            "code": code,
            "user": user,
            "session": session,
            "count": 2,
            "ids": [],
        }
        return row_ | told | {"repairable": False} | more

    def part(number: int, *findings: dict[str, Any]) -> PartResult:
        store = {"url": "a.db", "kind": "k"}
        data = {"store": store, "healthy": not findings, "memories": 1, "messages": 5}
        return of("doctor", number, **data, findings=list(findings))

    parts = [
        part(0, finding("repeated-id", "z"), finding("orphan-mark", None)),
        part(1, finding("repeated-id", "b"), finding("orphan-mark", None)),
    ]
    error = {"code": "unhealthy", "message": "a.db has 4 errors", "hint": None}
    parts = [PartResult(one.shard, 6, {**(one.report or {}), "error": error}) for one in parts]
    found = checked("doctor", merge("doctor", parts))
    assert "exit code" not in shown(merge("doctor", parts))
    assert found["healthy"] is False
    told = [(one["code"], one["session"], one["count"]) for one in found["findings"]]
    assert ("orphan-mark", None, 4) in told
    assert told.index(("repeated-id", "b", 2)) + 1 == told.index(("repeated-id", "z", 2))
    assert merge("doctor", [part(0), part(1)]).report.data()["healthy"] is True


def test_merge_of_exports_names_the_files_and_adds_their_sizes() -> None:
    def part(number: int) -> PartResult:
        shard = Shard(number, 2)
        report = dict(copied(number).report or {}, schema="memctl/export/1")
        del report["target"], report["verified"]
        about = {"as": "archive", "bytes": 100, "removed": []}
        report |= {"file": f"out/n-{shard.file_name}.ndjson", **about}
        return PartResult(shard, 0, report, "", "node", 1.0)

    found = checked("export", merge("export", [part(0), part(1)]))
    assert (found["file"], found["bytes"]) == ("out/n-{shard}.ndjson", 200)
    assert found["parts"][1]["file"] == "out/n-0001-of-0002.ndjson"


def test_merge_of_compress_computes_the_ratio_anew() -> None:
    def part(number: int, before: int, after: int) -> PartResult:
        return of(
            "compress",
            number,
            dry_run=False,
            target="a.db",
            memories={"selected": 1, "written": 1, "failed": 0, "left": 0},
            messages={"selected": 9, "marked": 9, "deleted": 0, "failed": 0},
            failures=[],
            summarizer={"name": "s", "kind": "openai"},
            mode="mark",
            tokens={
                **{"summarised": 5, "before": before, "after": after, "ratio": after / before},
                "counted_by": "estimate",
            },
            model={"calls": 1, "tokens_in": 9, "tokens_out": 2, "exact": number == 0, "cost": None},
        )

    found = checked("compress", merge("compress", [part(0, 100, 50), part(1, 300, 50)]))
    assert found["tokens"]["ratio"] == 0.25
    assert found["model"] == {**found["model"], "calls": 2, "exact": False, "cost": None}


def test_merge_table_of_a_copy_has_its_sums_the_slowest_part_and_the_failures() -> None:
    counts = {"selected": 5_000_000, "written": 4_999_998, "unchanged": 0, "skipped": 0}
    failures = [row(f"s{n}", code="changed", message="it changed") for n in range(2)]
    error = {"code": "partial", "message": "2 memories failed", "hint": None}
    first = copied(0, memories=counts | {"failed": 0}, source="prod", target="new")
    about = {"source": "prod", "target": "new", "failures": failures, "error": error}
    second = copied(1, memories=counts | {"failed": 2}, **about)  # type: ignore[arg-type]
    slow = PartResult(second.shard, 7, second.report, "", "n", 662.0, 2)
    assert shown(merge("migrate", [first, slow])).splitlines() == [
        "prod → new: 2 parts on ray, 1 of them repeated, 11m 42s",
        "10,000,000 memories: 9,999,996 written, 2 failed     60 messages, verified",
        "slowest part 1/2: 11m 2s, 30 messages",
        "part 1/2  exit code 7: 2 memories failed",
        "'ada'/'s0'  changed: it changed",
        "'ada'/'s1'  changed: it changed",
    ]


def test_merge_table_names_the_reason_of_many_parts_once() -> None:
    parts = [PartResult(Shard(n, 64), 3, None, "memctl: error: no answer") for n in range(64)]
    assert shown(merge("migrate", parts), 100).splitlines() == [
        "64 of 100 parts on ray, 11m 42s",
        "slowest part 0/64: 0s, 0 messages",
        "part 0/64 and 63 parts more  exit code 3: no answer",
    ]
