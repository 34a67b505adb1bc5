"""The page of ``memctl report``: charts and tables of the statistics of a store, in one file.

It has names of users, sessions, tools and marks, but no text of a message.  The templates have its
sentences; here are the numbers in them.
"""

from __future__ import annotations

import math
import shlex
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from functools import cache
from itertools import accumulate, islice, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from msgspec import UNSET, Struct, field

from memctl.model import MemoryKey
from memctl.ops.doctor.findings import KINDS, ORDER, Severity
from memctl.ops.statistics import AGES, Statistics
from memctl.reports.report import OfMemory
from memctl.reports.statistics import Bin, Day, Since
from memctl.text.numbers import count, duration, local_time, size

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

_MOST_DAYS = 120
_MOST_WEEKS = 157
"""The largest numbers of days, and of weeks in three years, that are drawn; then months are."""
_DATA_DAYS = 120
"""The largest number of days in the data for programs, so that a page stays small."""
_STALE = timedelta(31)
"""The time without a message after which the days up to today are not drawn."""
_NEAR = timedelta(300)
"""The time around today in which a day needs no year."""
_EMPTY_BINS = 4
"""The largest number of empty bins up to a limit: a limit beyond them is not drawn."""
_LEAST_BINS = 5
"""The number of bins that are drawn even if they are empty."""
_MOST_ROWS = 200
"""The largest number of rows of a table of names."""
_MOST_TICKS = 4
"""The largest number of ticks of an axis above zero."""

_LINE = 76
"""The length of a line of text, in characters."""

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_SIGNS = {Severity.ERROR: "✕", Severity.WARNING: "▲", Severity.NOTICE: "●"}
_ROLES = {"user": "user", "assistant": "assistant", "other": "system and tools"}
"""The parts of the messages of a day, with their names."""
_SENT = {
    "summary": "summaries",
    "user": "user",
    "assistant": "assistant",
    "calls": "tool calls",
    "results": "tool results",
    "system": "system",
}
"""The kinds of text that an agent sends, with their names."""


class About(Struct, frozen=True):
    """The facts that a page states about itself.

    ``title`` is its heading.  ``store`` is the label of the store, ``what`` its kind in words.
    ``selection`` says in words which messages were selected, empty for all.  ``now`` is the local
    time of the report, with its zone.  ``counted`` says how tokens were counted, ``version`` is
    that of memctl.  ``noun`` names the counted things in the singular: ``message`` or ``fact``.
    ``words`` are the words of a command that name the store and the selected memories, not yet
    quoted: ``("agents.db", "--user=ada")``.  ``again`` are further words of the command that writes
    such a page; None if no command can repeat the selection.  ``no_findings`` says why findings
    were left out.  ``whole`` is False if messages were selected: then the page says nothing of
    whole memories, such as their contexts.  ``data`` is the report as a JSON object, for programs;
    the page has the last days of it.  ``since`` is what changed since the last report, and ``cost``
    what one request of each memory costs, by the price of ``counted``.
    """

    title: str
    store: str
    what: str
    now: datetime
    counted: str
    version: str
    words: tuple[str, ...]
    again: tuple[str, ...] | None = ()
    selection: str = ""
    noun: str = "message"
    context_limit: int | None = None
    pseudonyms: bool = False
    no_findings: str = ""
    whole: bool = True
    data: Mapping[str, Any] = field(default_factory=dict)
    since: Since | None = None
    cost: float | None = None


def write(
    file: TextIO,
    about: About,
    statistics: Statistics,
    runs: list[dict[str, Any]],
    *,
    as_text: bool = False,
) -> None:
    """Write the page.  ``runs`` are the last runs on the store, as rows of ``history``.

    With ``as_text``, write what it says without charts and tables, for a mail.
    """
    days = _every_day(statistics.days, about.now.date())
    unit, periods = _periods(days, about.now.date(), statistics.bytes)
    told = _of_store(about, statistics) | _of_hours(statistics.hours, about.noun)
    told |= _over_time(about, statistics, days, unit, periods)
    told |= {"about": about, "data": _cut(about.data), "runs": runs}
    told["changes"] = _changes(about.since, about.noun) if about.since else ""
    name = "report.txt" if as_text else "report.html"
    file.writelines(templates().get_template(name).generate(told))


@cache
def templates() -> Environment:
    """Return the environment of the page and its charts."""
    from memctl.text.html import environment  # slow to load

    made = environment("memctl.output")
    made.filters |= {
        "amount": "{:,}".format,
        "decimal": _decimal,
        "duration": duration,
        "percent": _percent,
        "plain": _plain,
        "ranked": _ranked,
        "shell": shlex.join,
        "short": _short,
        "size": size,
        "time": _time,
    }
    made.globals |= {
        "binary": _binary,
        "histogram_of": _histogram,
        "most_rows": _MOST_ROWS,
        "points_of": _points,
        "short": _short,
        "spread": _spread,
        "ticks_of": _ticks,
        "whole_size": lambda value: size(int(value)).replace(".0 ", " "),
        "zip": zip,
    }
    return made


def _changes(since: Since, noun: str) -> str:
    """Return in a sentence what changed since the last report."""
    numbers = (since.users, "user"), (since.memories, "memory"), (since.messages, noun)
    facts = [
        f"{'+' if number > 0 else '-'}{count(abs(number), what)}"
        for number, what in numbers
        if number
    ]
    if since.bytes:
        facts.append(f"{'+' if since.bytes > 0 else '-'}{size(abs(since.bytes))}")
    if since.tokens:
        facts.append(f"{since.tokens:+,} tokens sent")
    if since.findings:
        more = (f"{row.count:+,} {row.code}" for row in since.findings)
        facts.append(f"findings: {', '.join(more)}")
    when = since.time[:16].replace("T", " ")
    other = "" if since.selection is UNSET else f" (of {since.selection or 'everything'})"
    return f"Since the last report, of {when}{other}: {', '.join(facts) or 'nothing changed'}."


def _plain(text: str) -> Markup:
    """Return what HTML says, or a stored text, as lines of text with visible escapes."""
    from markupsafe import Markup, escape  # as slow to load as the templates

    from memctl.text.html import shown

    said = escape(shown(text)).striptags()
    return Markup(textwrap.fill(said, _LINE, break_long_words=False))


def _cut(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data for programs without what makes a page large: the rows of long lists."""
    totals = dict(data.get("totals", {}))
    for name in ("marks", "roles"):
        totals[name] = dict(islice(totals.get(name, {}).items(), _MOST_ROWS))
    return {
        **data,
        "totals": totals,
        "days": data.get("days", [])[-_DATA_DAYS:],
        "damaged": data.get("damaged", [])[:_MOST_ROWS],
    }


def _of_store(about: About, found: Statistics) -> dict[str, Any]:
    """Return what the templates need besides numbers over time."""
    facts = found.facts
    numbers: Counter[Severity] = Counter()
    for row in found.findings or ():
        numbers[KINDS[row.code].severity] += row.count
    some = [one for one in Severity if numbers[one]]
    heads = ("user", "session", "path") if facts is None else ("user", "run", "agent")

    def names_of(rows: Sequence[OfMemory]) -> dict[str, str]:
        """Return the heads of the columns that name memories, and the fields of their keys."""
        named = zip(heads, MemoryKey._fields, strict=True)
        return {head: name for head, name in named if any(getattr(row.key, name) for row in rows)}

    sent = {css: getattr(found.sent, css) for css in _SENT if getattr(found.sent, css)}
    older = [*[*accumulate(reversed(found.ages))][-2::-1], 0]
    shares = _shares(found.ages, found.messages)
    names = [
        f"up to {AGES[0]} days",
        *(f"{low + 1} to {high} days" for low, high in pairwise(AGES)),
        f"older than {AGES[-1]} days",
    ]
    return {
        "found": found,
        "facts": facts,
        "noun": about.noun,
        "nouns": f"{about.noun}s",
        "memory": "memory" if facts is None else "scope",
        "memories": "memories" if facts is None else "scopes",
        "names_of": names_of,
        "signs": _SIGNS,
        "kinds": KINDS,
        "findings": sorted(found.findings or (), key=lambda row: ORDER[row.code]),
        "numbers": numbers,
        "severities": [(one, count(numbers[one], one)) for one in some],
        "worst": some[0] if some else None,
        "sent": [
            (css, f"{_SENT[css]} {share}")
            for css, share in zip(sent, _shares([*sent.values()], found.sent.total), strict=True)
        ],
        "sent_parts": [(css, n, f"{_SENT[css]}: {count(n, 'token')}") for css, n in sent.items()],
        "tools": sorted(found.tools, key=lambda row: (-row.tokens, row.name)),
        "owners": facts.owners if facts else (),
        "ages": [
            {
                "place": place,
                "name": names[place],
                "days": days,
                "count": found.ages[place],
                "share": shares[place],
                "older": older[place],
            }
            for place, days in enumerate((*AGES, None))
        ]
        if any(found.ages)
        else [],
    }


class _Period(NamedTuple):
    """A column of a chart over time: a day, a week or a month, with the sums of its days.

    ``label`` stands below the column; ``name`` is its name in a sentence or a table.  ``stored`` is
    the number of bytes that are stored at its end.
    """

    label: str
    name: str
    sums: Day
    stored: int


def _over_time(
    about: About, found: Statistics, days: Sequence[Day], unit: str, periods: Sequence[_Period]
) -> dict[str, Any]:
    """Return the numbers over time; those of a chart may be missing without a period."""
    today = about.now.date()

    def last(number: int) -> list[Day]:
        """Return the last days up to today; fewer if messages began later or ended earlier."""
        begin = str(today - timedelta(number - 1))
        return [day for day in days if begin <= day.day <= str(today)]

    week = sum(day.messages for day in last(7))
    # Weeks are compared only if the first message is 14 days old.
    old = bool(days) and days[0].day <= str(today - timedelta(13))
    before = sum(day.messages for day in last(14)) - week if old else 0
    mean = {"day": 7, "week": 4, "month": 3}[unit]
    sums = [one.sums.messages for one in periods]
    parts = _ROLES if found.facts is None else {}
    return {
        "week": week,
        "change": _change(week, before),
        "growth": sum(day.bytes for day in last(7)) // 7,
        "unit": unit,
        "periods": periods,
        "labels": [one.label for one in periods],
        "spoken": " to ".join(dict.fromkeys(one.name for one in (*periods[:1], *periods[-1:]))),
        "last_day": _day(found.days[-1].day, today) if found.days else "",
        "mean": mean,
        "means": _means(sums, mean) if unit == "day" else [*_means(sums[:-1], mean), None],
        "roles": [*parts.items()],
        "role_heads": [f"#{name}" for name in parts.values()],
        "series": [(css, [getattr(one.sums, css) for one in periods]) for css in parts]
        or [("user", sums)],
        "tips": [
            "\n".join(
                [f"{one.name}: {count(one.sums.messages, about.noun)}"]
                + [f"{name} {getattr(one.sums, css):,}" for css, name in parts.items()]
            )
            for one in periods
        ],
        "stored_tips": [
            f"{one.name}: {size(one.stored)}, {size(one.sums.bytes)} more" for one in periods
        ],
    }


def _of_hours(hours: Sequence[Sequence[int]], noun: str) -> dict[str, Any]:
    """Return the numbers of messages by weekday and hour; nothing without hours."""
    if not hours:
        return {}
    counted = [
        (number, _WEEKDAYS[day], f"{hour:02}:00")
        for day, row in enumerate(hours)
        for hour, number in enumerate(row)
    ]
    most, day, hour = max(counted, key=lambda one: one[0])
    sums = [sum(row[hour] for row in hours) for hour in range(24)]
    around = [sums[at - 1] + sums[at] + sums[(at + 1) % 24] for at in range(24)]
    quiet = min(range(24), key=lambda at: around[at])
    return {
        "busiest": {"day": day, "hour": hour, "count": most},
        "quietest": f"{quiet:02}:00" if 2 * around[quiet] < around[int(hour[:2])] else "",
        "weekdays": [(name[:3], row) for name, row in zip(_WEEKDAYS, hours, strict=True)],
        "hour_tips": [f"{day} {hour}: {count(number, noun)}" for number, day, hour in counted],
    }


def _every_day(days: Sequence[Day], today: date) -> list[Day]:
    """Return the days with those between that have no message, up to today if that is near."""
    if not days:
        return []
    found = {day.day: day for day in days}
    first, last = date.fromisoformat(days[0].day), date.fromisoformat(days[-1].day)
    end = max(last, today) if today - last < _STALE else last
    every = (str(first + timedelta(number)) for number in range((end - first).days + 1))
    return [found.get(day) or Day(day) for day in every]


def _periods(days: Sequence[Day], today: date, stored: int) -> tuple[str, list[_Period]]:
    """Return the unit of a chart over time, day, week or month, and its columns.

    ``stored`` is the number of bytes that are stored at the end of the last one.
    """
    unit, sums = "day", {day.day: day for day in days}
    weeks = len(days) <= _MOST_WEEKS * 7
    if len(days) > _MOST_DAYS:
        unit, sums = "week" if weeks else "month", {}
        for day in days:
            at = date.fromisoformat(day.day)
            begin = str(at - timedelta(at.weekday()) if weeks else at.replace(day=1))
            into = sums.setdefault(begin, Day(begin))
            into.user += day.user
            into.assistant += day.assistant
            into.other += day.other
            into.bytes += day.bytes
    undated = stored - sum(one.bytes for one in sums.values())
    sizes = islice(accumulate((one.bytes for one in sums.values()), initial=undated), 1, None)
    periods = []
    for (begin, one), kept in zip(sums.items(), sizes, strict=True):
        at = date.fromisoformat(begin)
        month = f"{_MONTHS[at.month - 1]} {at.year}"
        name = {"day": _day(begin, today), "week": f"week of {at.day} {month}"}.get(unit, month)
        label = _day(begin) if len(days) <= 366 else month
        periods.append(_Period(label, name, one, kept))
    return unit, periods


def _day(text: str, today: date | None = None) -> str:
    """Return a day such as ``3 Nov``, with the year if it is far from today."""
    day = date.fromisoformat(text)
    name = f"{day.day} {_MONTHS[day.month - 1]}"
    return f"{name} {day.year}" if today and abs(today - day) > _NEAR else name


def _means(values: Sequence[int], number: int) -> list[float | None]:
    """Return the mean of the last ``number`` values at each place; None while there are fewer."""
    sums = list(accumulate(values, initial=0))
    return [
        None if place < number else (sums[place] - sums[place - number]) / number
        for place in range(1, len(sums))
    ]


class _Histogram(NamedTuple):
    """What a chart of bins draws: names and tips of the bins, and the labels at their edges.

    ``most`` is the tip of the highest one.  ``limit`` is the place of a limit between 0 and 1, and
    its text.
    """

    bins: Sequence[Bin]
    names: list[str]
    tips: list[str]
    most: str
    labels: list[str]
    limit: tuple[float, str] | None


def _histogram(
    bins: Sequence[Bin], noun: str, unit: str, edge: Callable[[int], str], limit: int | None
) -> _Histogram | None:
    """Return what to draw of the bins, without most of the empty ones at both ends.

    None if all are empty.
    """
    full = [place for place, one in enumerate(bins) if one.count]
    if not full:
        return None
    reached = 0 if limit is None else sum(one.low <= limit for one in bins) - 1
    if reached - full[-1] > _EMPTY_BINS:
        limit, reached = None, 0
    end = max(full[-1], reached) + 1
    end = max(end, min(full[0] + _LEAST_BINS, len(bins) - 1))
    shown = bins[full[0] : end]
    names = [
        f"{edge(one.low)} to {edge(one.high)}" if one.high else f"from {edge(one.low)}"
        for one in shown
    ]
    tips = [
        f"{name} {unit}".removesuffix(" size") + f": {count(one.count, noun)}"
        for name, one in zip(names, shown, strict=True)
    ]
    ends = [*(one.low for one in shown), shown[-1].high]
    return _Histogram(
        *(shown, names, tips),
        tips[max(range(len(shown)), key=lambda place: shown[place].count)],
        _spread(["" if end is None else edge(end) for end in ends], 8),
        None if limit is None else (_place(shown, limit), f"limit {_short(limit)}"),
    )


def _place(bins: Sequence[Bin], value: int) -> float:
    """Return the place of a value among bins of one width, between 0 and 1."""
    for place, one in enumerate(bins):
        if one.high is None or value < one.high:
            within = 0.5 if one.high is None else (value - one.low) / (one.high - one.low)
            return (place + within) / len(bins)
    return 1


def _ticks(series: Iterable[tuple[str, Sequence[float]]]) -> list[float]:
    """Return the ticks of an axis from zero: multiples of 1, 2 or 5 times a power of ten.

    The last one is not below the highest sum of the series, which have classes and values; there
    are at most four above zero.
    """
    sums = map(sum, zip(*(values for _, values in series), strict=True))
    highest = max(sums, default=0)
    if highest <= 0:
        return [0, 1]
    power = 10.0 ** math.floor(math.log10(highest / _MOST_TICKS))
    step = next(
        unit * power for unit in (1, 2, 5, 10) if math.ceil(highest / (unit * power)) <= _MOST_TICKS
    )
    step = max(step, 1)
    return [step * number for number in range(math.ceil(highest / step) + 1)]


def _spread(labels: Sequence[str], most: int) -> list[str]:
    """Return the labels with empty ones between, so that at most ``most`` are left."""
    step = math.ceil(len(labels) / most) or 1
    return [label if not place % step else "" for place, label in enumerate(labels)]


def _points(values: Iterable[float | None], highest: float, first: float) -> list[str]:
    """Return the points of a line: the first value is at ``first``, each next one 1 more."""
    return [
        f"{_decimal(place + first)},{_decimal(100 - value / highest * 100)}"
        for place, value in enumerate(values)
        if value is not None
    ]


def _change(value: int, before: int) -> str:
    """Return by how many percent a value is larger than the one before; empty for 0 before."""
    if not before:
        return ""
    change = round((value - before) / before * 100)
    return f"{'−' if change < 0 else '+'}{abs(change):,}\u00a0%"


def _percent(part: int, whole: int) -> str:
    """Return a part in percent: ``27 %``, ``under 1 %``."""
    share = part / whole * 100 if whole else 0
    if 99 < share < 100:
        return "over 99\u00a0%"
    return "under 1\u00a0%" if 0 < share < 1 else f"{share:.0f}\u00a0%"


def _shares(parts: Sequence[int], whole: int) -> list[str]:
    """Return parts in percent as ``_percent`` does, which add up to the sum of the parts."""
    exact = [part / whole * 100 if whole else 0.0 for part in parts]
    rounded = [math.floor(share) for share in exact]
    missing = round(sum(exact)) - sum(rounded)
    by_rest = sorted(range(len(exact)), key=lambda place: rounded[place] - exact[place])
    for place in by_rest[: max(missing, 0)]:
        rounded[place] += 1
    return [
        f"{number}\u00a0%" if number and share >= 1 else _percent(part, whole)
        for part, share, number in zip(parts, exact, rounded, strict=True)
    ]


def _short(number: float) -> str:
    """Return a number with at most three digits: ``812``, ``1.2k``, ``30k``, ``4.1M``."""
    for power, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= power * 0.9995:
            value = number / power
            return (f"{value:.1f}".removesuffix(".0") if value < 100 else f"{value:.0f}") + unit
    return f"{number:.0f}"


def _binary(number: int) -> str:
    """Return a power of two as a size: ``256 B``, ``4 KiB``."""
    for bits, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if number >= 1 << bits:
            return f"{number >> bits} {unit}"
    return f"{number} B"


def _ranked(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return names and numbers, the largest numbers first."""
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _time(text: str | None, length: int = 16) -> str:
    """Return a stored time in the local time zone, cut after the minute or the day."""
    return local_time(text or "")[:length]


def _decimal(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
