"""Statistics by hand, the same in each run: of messages, of facts, and with hostile names."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from datetime import date, datetime, timedelta, timezone
from itertools import cycle
from pathlib import Path
from typing import Any

from memctl.model import MemoryKey
from memctl.ops.doctor.findings import KINDS
from memctl.ops.statistics import Statistics
from memctl.output.report_page import About, write
from memctl.reports.report import named
from memctl.reports.statistics import (
    Bin,
    Day,
    Facts,
    FoundRow,
    LargeMessage,
    MemoryTokens,
    OwnerRow,
    Sent,
    ToolRow,
    UserRow,
)

NOW = datetime(2026, 11, 24, 18, 0, tzinfo=timezone(timedelta(hours=1), "CET"))
NAMES = ["ada", "bob", "chen.wei", "jürgen", "ליאור", "ada@a-company-with-a-long-name.example.com"]
HOSTILE = [
    "<script>alert(1)</script>",
    "</script><script>alert(2)</script>",
    "</title></style><img src=x onerror=alert(3)>",
    "<img src=http://example.com/x.png>",
    "<!--",
    "]]>",
    "' onmouseover='alert(4)",
    '" autofocus onfocus="alert(5)',
    "&lt;b&gt;&#60;",
    "\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07",
    "abc\u202etxt.exe",
    "ליאור\u200f",
    "\N{WOMAN}\u200d\N{WOMAN}\u200d\N{GIRL}",
    "x" * 200,
    "-rf",
    "$(touch owned)",
    "[red]red[/red]",
    "two\nlines",
    "nul\x00\ud800",
]
RUN = {
    "run": "20261120-101112-ab12c",
    "command": "delete",
    "store": "agents.db",
    "started": "2026-11-20T10:11:12",
    "ended": "2026-11-20T10:11:13",
    "outcome": "complete",
    "deleted": 1208,
    "undone_by": None,
}


def about(title: str = "agents.db", **more: Any) -> About:
    """What the page of a store says of itself."""
    told: dict[str, Any] = {
        "store": title,
        "what": "AgentScope's SQL memory in SQLite",
        "now": NOW,
        "counted": "estimated",
        "version": "1.0",
        "words": (title,),
        "data": {"title": title},
    }
    return About(title, **{**told, **more})


def page(
    path: Path, statistics: Statistics, runs: Sequence[dict[str, Any]] = (RUN,), **more: Any
) -> Path:
    """Write a page, and return its path."""
    with path.open("w", encoding="utf-8") as file:
        write(file, about(**more), statistics, list(runs))
    return path


def text(statistics: Statistics, runs: Sequence[dict[str, Any]] = (RUN,), **more: Any) -> str:
    """Return a page."""
    file = io.StringIO()
    write(file, about(**more), statistics, list(runs))
    return file.getvalue()


def memory(
    key: MemoryKey, messages: int, tokens: int, last: str | None = None, ttl: float | None = None
) -> MemoryTokens:
    """A row about a memory."""
    return MemoryTokens(**named(key), messages=messages, tokens=tokens, last=last, ttl=ttl)


def finding(code: str, count: int, memories: int, remedy: str = "") -> FoundRow:
    """A row about the findings of one code."""
    kind = KINDS[code]
    about = code, kind.severity.value, count, memories
    return FoundRow(*about, kind.what, kind.meaning, remedy or kind.remedy)


def days(number: int, last: date = NOW.date()) -> Iterator[Day]:
    """Yield days up to the last, with more messages on each, and fewer at weekends."""
    for place in range(number):
        day = last - timedelta(number - 1 - place)
        messages = (60 + place) * (1 if day.weekday() < 5 else 0.4)
        yield Day(str(day), int(messages / 3), int(messages / 2), int(messages / 6), 500 * place)


def messages(number: int = 31, users: int = 20, names: Sequence[str] = NAMES) -> Statistics:
    """The statistics of a store with so many days and users, who have these names in turn."""
    found = Statistics(days=list(days(number)))
    turn = cycle(names)
    key = [MemoryKey(next(turn), f"{next(turn)}-{place}") for place in range(7)]
    found.messages = sum(day.user + day.assistant + day.other for day in found.days) + 4
    found.bytes = sum(day.bytes for day in found.days) + 4_000
    found.users, found.memories, found.summaries, found.without_user = users, 3 * users, 2, 1
    found.first, found.last = f"{found.days[0].day}T08:00:00", f"{found.days[-1].day} 17:58:03.120"
    found.untimed, found.odd_times = 3, 1
    found.sent = Sent(21_000, 30_000, 61_000, 9_000, 54_000, 5_000)
    found.tokens_stored = 380_000
    found.context_bins = [Bin(0, 1000, 30), Bin(1000, 2000, 20), Bin(2000, 4000, 8)]
    found.context_bins += [Bin(4000, 8000, 2), Bin(8000, 16000, 0), Bin(16000, None, 0)]
    found.median, found.percentile95, found.over_limit = 900, 3900, 1
    found.largest_contexts = [
        memory(one, 40 - place, 6100 - 500 * place) for place, one in enumerate(key)
    ]
    found.size_bins = [Bin(0, 64, 0), Bin(64, 128, 40), Bin(128, 256, 1500), Bin(256, None, 4)]
    found.largest_messages = [
        LargeMessage(**named(one), id=f"{next(turn)}-{place}", role=next(turn), bytes=9000 - place)
        for place, one in enumerate(key)
    ]
    first, last = found.first, found.last
    found.user_rows = [
        UserRow(next(turn), 3, 400 - place, 4000, 2000, first, last)
        for place in range(min(users, 200))
    ]
    found.other_users = UserRow("", 9, 90, 900, 400, first, last) if users > 200 else None
    found.tools = [ToolRow(next(turn), 90 - n, 88 - n, 90_000 // (n + 1), 3000) for n in range(8)]
    found.marks = {"compressed": 800, "hint": 12}
    found.marks |= dict.fromkeys(names, 4) if names is not NAMES else {}
    found.roles = {"user": 700, "assistant": 1000, "system": 100, next(turn): 1}
    found.ages = [700, 1000, 90, 0, 6]
    found.idle = [memory(one, 12, 900, "2026-10-26T10:11:12") for one in key]
    found.expiring = [memory(one, 12, 900, None, 3600.0 * n) for n, one in enumerate(key[:3])]
    found.hours = [
        [hour * (24 - hour) * (1 if day < 5 else 0) for hour in range(24)] for day in range(7)
    ]
    found.findings = [
        finding("no-session-index", 1, 0),
        finding("leftover-hint", 12, 4),
        finding("tool-call-without-result", 3, 2),
        finding("tool-result-apart", 1, 1, f"delete them: {next(turn)}"),
    ]
    return found


def facts(names: Sequence[str] = NAMES) -> Statistics:
    """The statistics of a store of facts."""
    made = messages(31, 20, names)
    found = Statistics(
        users=20, memories=30, messages=made.messages, bytes=made.bytes, first=made.first,
        last=made.last, ages=made.ages, idle=made.idle, user_rows=made.user_rows,
    )  # fmt: skip
    found.days = [
        Day(day.day, 0, 0, day.user + day.assistant + day.other, day.bytes) for day in made.days
    ]
    turn = cycle(names)
    found.facts = Facts(
        [
            OwnerRow(**named(MemoryKey(next(turn), "", next(turn))), facts=400 - number)
            for number in range(8)
        ],
        [Bin(0, 32, 20), Bin(32, 64, 900), Bin(64, 128, 12), Bin(128, None, 1)],
        {f"{next(turn)}{number}": 90 - number for number in range(10)},
        44,
        7,
    )
    found.findings = [finding("duplicate-fact", 12, 3), finding("fact-without-vector", 5, 1)]
    return found
