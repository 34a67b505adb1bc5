"""The page of ``memctl report``: charts and tables of the statistics of a store, in one file.

It has names of users, sessions, tools and marks, but no text of a message.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from importlib.resources import files
from itertools import accumulate, islice, pairwise
from typing import Any, TextIO, TypeVar

from memctl.dialects.view import COMPRESSED
from memctl.model import MemoryKey
from memctl.ops.doctor.findings import KINDS, ORDER, RepairMethod, Severity
from memctl.ops.statistics import (
    AGES,
    FactStatistics,
    FindingRow,
    MemoryRow,
    MessageRow,
    Statistics,
)
from memctl.output import charts
from memctl.output.charts import Axis, Bar, Series
from memctl.reports.statistics import Bin, Day, UserRow
from memctl.text import html
from memctl.text.numbers import count, duration, local_time, size

_MOST_DAYS = 120
_MOST_WEEKS = 157
"""The largest numbers of days, and of weeks in three years, that are drawn; then months are."""
_DATA_DAYS = 120
"""The largest number of days in the data for programs, so that a page stays small."""
_STALE = timedelta(31)
"""The time without a message after which the days up to today are not drawn."""
_NEAR = timedelta(300)
"""The time around today in which a day needs no year."""
_WEEK = 7
"""The number of days with messages from which on the quietest hour tells something."""
_BARS = 12
_LEAST_BINS = 5
"""The number of bins that are drawn even if they are empty."""
_MOST_ROWS = 200
"""The largest number of rows of a table of names."""
_ROWS = 5
"""The largest number of rows of a list that is not folded."""
_LONG = 24
"""The length of a name from which it has a tip, since the style may cut it."""
_WIDE, _NARROW = 12, 6
"""The largest numbers of labels of days below a chart."""

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_SIGNS = {Severity.ERROR: "✕", Severity.WARNING: "▲", Severity.NOTICE: "●"}
_KINDS_OF_TEXT = (
    ("summary", "summaries"),
    ("user", "user"),
    ("assistant", "assistant"),
    ("calls", "tool calls"),
    ("results", "tool results"),
    ("system", "system"),
)

_Row = TypeVar("_Row", bound=MemoryRow | MessageRow)


@dataclass(frozen=True, slots=True)
class About:
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
    the page has the last days of it.
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


def write(file: TextIO, about: About, statistics: Statistics, runs: list[dict[str, Any]]) -> None:
    """Write the page.  ``runs`` are the last runs on the store, as rows of ``history``."""
    style, script = (_part(f"report_page.{kind}") for kind in ("css", "js"))
    page = _Page(about, statistics, runs)
    cards = _paired(page.cards())
    file.write(html.opening(about.title, style, script))
    file.writelines(page.head())
    if cards:
        links = "".join(f'<a href="#{card.id}">{card.link}</a>\n' for card in cards)
        file.write(f'<nav aria-label="Parts">\n{links}</nav>\n')
    file.write("<main>\n")
    file.writelines(page.notes())
    file.writelines(card.html() for card in cards)
    file.write("</main>\n")
    file.writelines(page.foot())
    data = html.data(_cut(about.data))
    file.write(f'<script type="application/json" id="data">{data}</script>\n')
    file.write(html.closing(script))


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


def _part(name: str) -> str:
    return (files("memctl.output") / name).read_text("utf-8")


@dataclass(frozen=True, slots=True)
class _Card:
    """A part of a page: a title, sentences that answer its question, then charts and tables.

    ``answer`` and ``body`` are HTML.  ``link`` names the card at the top of the page.
    """

    id: str
    link: str
    title: str
    answer: str
    body: str = ""
    wide: bool = False

    def html(self) -> str:
        return (
            f'<figure class="card{" wide" * self.wide}" id="{self.id}" '
            f'aria-labelledby="{self.id}-title">\n<figcaption>'
            f'<h2 id="{self.id}-title">{self.title}</h2>\n<p>{self.answer}</p></figcaption>\n'
            f"{self.body}</figure>\n"
        )


@dataclass(frozen=True, slots=True)
class _Kind:
    """A part of the messages of a day: the class of its colour, its name, and how to count it."""

    css: str
    name: str
    of: Callable[[Day], int]


_ROLES = (
    _Kind("user", "user", lambda day: day.user),
    _Kind("assistant", "assistant", lambda day: day.assistant),
    _Kind("other", "system and tools", lambda day: day.other),
)
_FACTS = (_Kind("user", "facts", lambda day: day.other),)


@dataclass(frozen=True, slots=True)
class _Period:
    """A column of a chart over time: a day, a week or a month, with the sums of its days.

    ``label`` stands below the column; ``name`` is its name in a sentence or a table.
    """

    label: str
    name: str
    sums: Day


def _paired(cards: Iterable[_Card]) -> list[_Card]:
    """Return the cards; a narrow card without a neighbour becomes wide."""
    found = list(cards)
    narrow = [place for place, card in enumerate(found) if not card.wide]
    if len(narrow) % 2:
        found[narrow[-1]] = replace(found[narrow[-1]], wide=True)
    return found


class _Page:
    """The parts of a page, as HTML."""

    def __init__(
        self, about: About, statistics: Statistics, runs: Sequence[Mapping[str, Any]]
    ) -> None:
        self._about = about
        self._found = statistics
        self._runs = runs
        self._nouns = f"{about.noun}s"
        self._memory = "memory" if statistics.facts is None else "scope"
        self._memories = "memories" if statistics.facts is None else "scopes"
        self._kinds = _ROLES if statistics.facts is None else _FACTS
        self._today = about.now.date()
        self._days = _every_day(statistics.days, self._today)
        self._unit, self._periods = _periods(self._days, self._today)

    def head(self) -> Iterator[str]:
        """Yield the title, what was read and when, and the tiles."""
        about, found = self._about, self._found
        said = [
            *([html.name(about.store)] if about.store not in (about.title, about.what) else []),
            html.text(about.what),
            *([self._period()] if found.first else []),
            html.text(about.selection or ("all memories" if found.facts is None else "all facts")),
            f"by memctl {html.text(about.version)} on <b>{_time_of(about.now)}</b>",
        ]
        yield (
            f"<header>\n<h1>{html.name(about.title)}</h1>\n"
            '<button id="theme" hidden>Theme: system</button>\n'
            f'<p>{" · ".join(said)}</p>\n<dl class="tiles">\n'
        )
        for name, value, below, css in self._tiles():
            yield f'<div><dt>{name}</dt><dd class="{css}">{value}</dd><dd>{below}</dd></div>\n'
        yield "</dl>\n</header>\n"

    def notes(self) -> Iterator[str]:
        """Yield what a reader has to know before the cards."""
        found = self._found
        if found.damaged:
            rows = [
                [_named(str(key)), _text(html.text(reason))]
                for key, reason in islice(found.damaged.items(), _MOST_ROWS)
            ]
            damaged = count(len(found.damaged), self._memory)
            title = f"damaged {self._memories}"
            yield (
                f'<section class="note bad" aria-label="{title}">\n'
                f"<p><strong>{_SIGNS[Severity.ERROR]} {damaged} could not be read as a whole"
                "</strong>. The numbers here are those of what could be read.</p>\n"
                f"{_folded(title, [self._memory, 'reason'], rows)}</section>\n"
            )
        if not found.messages:
            empty = f"This store has no {self._nouns}."
            chosen = f"No {self._about.noun} is selected."
            yield f'<p class="note">{chosen if self._about.selection else empty}</p>\n'

    def cards(self) -> Iterator[_Card]:
        """Yield the cards that apply to the store."""
        found, facts = self._found, self._found.facts
        if found.messages:
            yield self._growth()
        if found.findings or (found.messages and found.findings is not None):
            yield self._findings(found.findings)
        if not found.messages:
            return
        if facts is None:
            if self._about.whole:
                yield self._contexts()
            yield self._sizes()
            if found.users:
                yield self._users()
            if self._periods:
                yield self._stored()
            if found.tools:
                yield self._tools()
            if found.marks:
                yield self._marks()
            yield self._ages("Age")
            if any(map(any, found.hours)):
                yield self._hours()
        else:
            yield self._owners(facts)
            yield self._lengths(facts)
            if self._periods:
                yield self._stored()
            if facts.metadata:
                yield self._metadata(facts)
            yield self._ages("Age and expiry")
        if self._runs:
            yield self._last_runs()

    def foot(self) -> Iterator[str]:
        """Yield what the page holds, how it was made, and the place of the tips."""
        about, facts = self._about, self._found.facts is not None
        owners = "users, agents and runs" if facts else "users, sessions and speakers"
        others = "keys of metadata" if facts else "tools and marks"
        if about.pseudonyms:
            said = f"Names of {owners} are replaced; this page has names of {others}"
        else:
            said = f"This page has names of {owners}, and of {others}"
        parts = [f"{said}, but no text of a {about.noun}."]
        if not facts:
            parts.append(f"Tokens: {html.text(about.counted)}.")
        if about.no_findings:
            parts.append(f"Findings were left out: {html.text(about.no_findings)}.")
        yield f"<footer>\n<p>{' '.join(parts)}</p>\n"
        if about.again is not None:
            named = [*about.words, *about.again, "-o", "report.html", "--force"]
            yield f"<p>Write it again: {_code(['memctl', 'report', *named])}</p>\n"
        yield '</footer>\n<div id="tip" role="status"></div>\n'

    def _period(self) -> str:
        first, last = (
            html.text(local_time(time or "")[:10]) for time in (self._found.first, self._found.last)
        )
        return f"<b>{first}</b>" if first == last else f"<b>{first}</b> to <b>{last}</b>"

    def _tiles(self) -> Iterator[tuple[str, str, str, str]]:
        """Yield the name, the number, what is below it, and the class of each tile."""
        found, facts = self._found, self._found.facts
        alone = f"{count(found.without_user, self._memory)} without one"
        yield "users", f"{found.users:,}", alone if found.without_user else "", ""
        if facts is None:
            summaries = count(found.summaries, "summary") if found.summaries else ""
            yield "memories", f"{found.memories:,}", summaries, ""
        else:
            yield "scopes", f"{found.memories:,}", "of user, agent and run", ""
        week, before = self._weeks()
        change = f"{week:,} in 7 days, {_change(week, before)}" if before else ""
        yield self._nouns, f"{found.messages:,}", change, ""
        growth = self._growth_a_day()
        yield "size", size(found.bytes), f"+{size(growth)} a day" if growth else "", ""
        if facts is None and not self._about.whole:
            yield "tokens sent", "–", f"of {_short(found.tokens_stored)} selected", ""
        elif facts is None:
            stored = f"of {_short(found.tokens_stored)} stored"
            yield "tokens sent", _short(found.sent.total), stored, ""
        else:
            expiring = f"of {facts.expiring:,} that expire" if facts.expiring else "none expires"
            yield "expired", f"{facts.expired:,}", expiring, ""
        if found.findings is None:
            yield "findings", "–", "not looked for", ""
            return
        numbers = _severities(found.findings)
        most = next((one for one in Severity if numbers[one]), None)
        if most is None or most is Severity.NOTICE:
            notices = count(numbers[Severity.NOTICE], "notice") if most else "no findings"
            healthy = ("healthy", notices, "good") if found.messages else ("–", notices, "")
            yield "findings", *healthy
            return
        rest = [_counted(numbers, one) for one in Severity if numbers[one] and one is not most]
        yield f"{most}s", f"{numbers[most]:,}", ", ".join(rest), str(most)

    def _weeks(self) -> tuple[int, int]:
        """Return the numbers of messages of the last seven days and of the seven days before.

        The second is 0 if the first message is less than 14 days old.
        """
        week, before = self._last(7), self._last(14)
        old = self._days and self._days[0].day <= str(self._today - timedelta(13))
        return sum(map(self._of, week)), sum(map(self._of, before[: -len(week)])) if old else 0

    def _last(self, days: int) -> list[Day]:
        """Return the last days up to today; fewer if messages began later or ended earlier."""
        begin, end = str(self._today - timedelta(days - 1)), str(self._today)
        return [day for day in self._days if begin <= day.day <= end]

    def _of(self, day: Day) -> int:
        return sum(kind.of(day) for kind in self._kinds)

    def _growth_a_day(self) -> int:
        return sum(day.bytes for day in self._last(7)) // 7

    def _growth(self) -> _Card:
        kinds, periods, unit = self._kinds, self._periods, self._unit
        title = f"{self._nouns.capitalize()} per {unit}"
        if not periods:
            said = f"No {self._about.noun} has a time that can be drawn."
            return _Card("growth", "Growth", title, said, self._roles(), wide=True)
        week, before = self._weeks()
        against = (
            f", <strong>{change}</strong> against the 7 days before"
            if (change := _change(week, before))
            else ""
        )
        last = _day(self._found.days[-1].day, self._today)
        busiest = max(periods, key=lambda one: self._of(one.sums))
        said = (
            f"<strong>{week:,}</strong> in the last 7 days{against}."
            if week
            else f"None in the last 7 days; the last is of {last}."
        )
        said += f" Busiest: {busiest.name} with {self._of(busiest.sums):,}.{self._undated()}"
        mean = {"day": 7, "week": 4, "month": 3}[unit]
        sums = [self._of(one.sums) for one in periods]
        line = _means(sums, mean) if unit == "day" else [*_means(sums[:-1], mean), None]
        chart = charts.columns(
            f"{title}: {_spoken(periods)}; most {max(sums):,}",
            [Series(kind.css, [kind.of(one.sums) for one in periods]) for kind in kinds],
            [self._tip(one) for one in periods],
            Axis(charts.spread([one.label for one in periods], _WIDE)),
            _short,
            line=line,
        )
        parts = kinds if len(kinds) > 1 else ()
        legend = [(kind.css, kind.name) for kind in parts]
        if any(line):
            legend.append(("mean", f"mean of {mean} {unit}s"))
        rows = [
            [
                _text(one.name, one.sums.day),
                *[_amount(kind.of(one.sums)) for kind in parts],
                _amount(self._of(one.sums)),
                _sized(one.sums.bytes),
            ]
            for one in periods
        ]
        heads = [unit, *(kind.name for kind in parts), self._nouns, "size"]
        body = _legend(legend) + chart + _folded(title.lower(), heads, rows) + self._roles()
        return _Card("growth", "Growth", title, said, body, wide=True)

    def _tip(self, period: _Period) -> str:
        lines = [f"{period.name}: {count(self._of(period.sums), self._about.noun)}"]
        if len(self._kinds) > 1:
            lines += [f"{kind.name} {kind.of(period.sums):,}" for kind in self._kinds]
        return "\n".join(lines)

    def _undated(self) -> str:
        found = self._found
        said = [
            *([f"{found.untimed:,} without a readable time"] if found.untimed else []),
            *([f"{found.odd_times:,} before 2000 or after tomorrow"] if found.odd_times else []),
        ]
        return f" Not drawn: {' and '.join(said)}." if said else ""

    def _roles(self) -> str:
        if self._found.facts is not None:
            return ""
        return _counts("messages by role", ["role", "messages"], _largest(self._found.roles))

    def _findings(self, rows: Sequence[FindingRow]) -> _Card:
        numbers = _severities(rows)
        ill = numbers[Severity.ERROR] or numbers[Severity.WARNING]
        counted = " · ".join(_counted(numbers, one) for one in Severity if numbers[one])
        state = "Not healthy" if ill else "Healthy"
        answer = f"<strong>{state}</strong>: {counted or 'nothing was found'}."
        return _Card(
            "findings",
            "Findings",
            "Findings",
            answer,
            "".join(map(self._finding, sorted(rows, key=lambda row: ORDER[row.code]))),
            wide=True,
        )

    def _finding(self, row: FindingRow) -> str:
        kind = KINDS[row.code]
        repair = ["--repair"] if kind.repair is not RepairMethod.NONE else []
        command = _code(["memctl", "doctor", *self._about.words, row.code, *repair])
        where = f" in {count(row.memories, self._memory)}" if row.memories else ""
        return (
            f'<details class="finding {kind.severity}"><summary><b>{_SIGNS[kind.severity]} '
            f"{kind.severity}</b> {html.text(kind.what)}: <strong>{row.count:,}</strong>{where}"
            f"</summary>\n<dl><dt>means</dt><dd>{html.text(kind.meaning)}</dd>\n<dt>fix</dt>"
            f"<dd>{html.text(row.remedy or kind.remedy)}</dd>\n<dt>{'repair' if repair else 'list'}"
            f"</dt><dd>{command}</dd></dl></details>\n"
        )

    def _contexts(self) -> _Card:
        found, limit = self._found, self._about.context_limit
        largest = max((row.tokens for row in found.largest_contexts), default=0)
        if found.memories == 1:
            said = f"The memory sends <strong>{largest:,}</strong> tokens."
        else:
            said = (
                f"Half of the memories send at most {found.median:,} tokens, 19 of 20 at most "
                f"<strong>{found.percentile95:,}</strong>. The largest sends {largest:,}."
            )
        if limit is not None and found.over_limit is not None:
            exceed = count(found.over_limit, "memory")
            said += f" {exceed} {'exceeds' if found.over_limit == 1 else 'exceed'} {limit:,}."
        drawn = self._histogram(
            "Memories by tokens that an agent sends",
            *(found.context_bins, "memory", "tokens", _short, limit),
        )
        sent = [
            (css, name, number)
            for css, name in _KINDS_OF_TEXT
            if (number := getattr(found.sent, css))
        ]
        shares = [(css, f"{name} {_percent(n, found.sent.total)}") for css, name, n in sent]
        kinds = charts.stack(
            f"Tokens sent, by kind: {', '.join(name for _, name in shares)}",
            [(css, number, f"{name}: {count(number, 'token')}") for css, name, number in sent],
        ) + _legend(shares)
        body = drawn + (f"<h3>What is sent</h3>\n{kinds}" if sent else "")
        body += self._list(
            "largest contexts",
            *(found.largest_contexts, ["tokens", "messages"]),
            lambda row: [_amount(row.tokens), _amount(row.messages)],
        )
        return _Card("tokens", "Tokens", "Tokens that an agent sends", said, body)

    def _sizes(self) -> _Card:
        found = self._found
        drawn = self._histogram("Messages by size", found.size_bins, "message", "size", _binary)
        largest = max((row.bytes for row in found.largest_messages), default=0)
        said = (
            f"{_usual(found.size_bins, _binary)}The largest has <strong>{size(largest)}</strong>."
        )
        drawn += self._list(
            "largest messages",
            *(found.largest_messages, ["id", "role", "size"]),
            lambda row: [_id(row.id), _named(row.role), _sized(row.bytes)],
        )
        return _Card("sizes", "Sizes", "Sizes of messages", said, drawn)

    def _lengths(self, facts: FactStatistics) -> _Card:
        drawn = self._histogram("Facts by length", facts.lengths, "fact", "characters", _short)
        return _Card(
            "sizes",
            "Length",
            "Length of facts",
            _usual(facts.lengths, _short, " characters"),
            drawn,
        )

    def _histogram(
        self,
        label: str,
        bins: Sequence[Bin],
        noun: str,
        unit: str,
        edge: Callable[[int], str],
        limit: int | None = None,
    ) -> str:
        """Draw the bins, without most of the empty ones at both ends; with their table."""
        full = [place for place, one in enumerate(bins) if one.count]
        if not full:
            return ""
        reached = 0 if limit is None else sum(one.low <= limit for one in bins) - 1
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
        most = max(range(len(shown)), key=lambda place: shown[place].count)
        ends = [*(one.low for one in shown), shown[-1].high]
        chart = charts.columns(
            f"{label}; most: {tips[most]}",
            [Series("user", [one.count for one in shown])],
            tips,
            Axis(charts.spread(["" if end is None else edge(end) for end in ends], 8), edges=True),
            _short,
            limit=None if limit is None else (_place(shown, limit), f"limit {_short(limit)}"),
        )
        total = sum(one.count for one in bins)
        rows = [
            [_text(name, str(one.low)), _amount(one.count), _share(one.count, total)]
            for name, one in zip(names, shown, strict=True)
        ]
        nouns = count(0, noun).removeprefix("0 ")
        return chart + _folded(label.lower(), [unit, nouns, "share"], rows)

    def _users(self) -> _Card:
        found = self._found
        rows, rest = found.user_rows, found.other_users
        users = found.users + any(not row.user for row in rows)
        ten = sum(row.messages for row in rows[:10])
        said = (
            f"The ten busiest of {users:,} users have <strong>{_percent(ten, found.messages)}"
            "</strong> of the messages."
            if users > 10
            else f"{_user(rows[0].user)} has <strong>{_percent(rows[0].messages, found.messages)}"
            "</strong> of the messages."
        )
        most = rows[0].messages or 1
        drawn = charts.bars(
            "Users with the most messages",
            [
                Bar(_user(row.user), f"{row.messages:,}", row.messages / most)
                for row in rows[:_BARS]
            ],
            "user",
        )
        heads = ["user", "memories", "messages", "size", "tokens sent", "first", "last"]
        cells = [[_named(row.user or "no user"), *_of_user(row)] for row in rows]
        last = [_text("all others"), *_of_user(rest)] if rest else []
        return _Card("users", "Users", "Users", said, drawn + _folded("users", heads, cells, last))

    def _owners(self, facts: FactStatistics) -> _Card:
        found = self._found
        most = max((number for _, number in facts.owners), default=0) or 1
        rows = sorted(facts.owners, key=lambda one: -one[1])
        users = f"of {count(found.users, 'user')}" if found.users else "without a user"
        said = f"{count(found.memories, 'scope')} {users}."
        if rows:
            share = _percent(rows[0][1], found.messages)
            said += f" {_owner(rows[0][0])} has <strong>{share}</strong> of the facts."
        drawn = charts.bars(
            "Scopes with the most facts",
            [Bar(_owner(key), f"{number:,}", number / most) for key, number in rows[:_BARS]],
            "user",
        )
        names = self._names([key for key, _ in rows])
        cells = [[*name, _amount(n)] for name, (_, n) in zip(names.cells, rows, strict=True)]
        table = _folded("users and agents", [*names.heads, "facts"], cells)
        return _Card("users", "Users", "Users and agents", said, drawn + table)

    def _stored(self) -> _Card:
        found, periods = self._found, self._periods
        growth = self._growth_a_day()
        said = f"<strong>{size(found.bytes)}</strong> of {self._nouns}"
        if not growth:
            said += "; nothing more in the last 7 days."
        else:
            said += f", {size(growth)} more each day of the last week."
            if self._weeks()[1]:
                said += f" At this rate it doubles in {count(found.bytes // growth, 'day')}."
        undated = found.bytes - sum(one.sums.bytes for one in periods)
        sizes = list(accumulate((one.sums.bytes for one in periods), initial=undated))[1:]
        pairs = list(zip(periods, sizes, strict=True))
        chart = charts.area(
            f"Stored size: {_spoken(periods)}; {size(sizes[0])} to {size(sizes[-1])}",
            sizes,
            [f"{one.name}: {size(stored)}, {size(one.sums.bytes)} more" for one, stored in pairs],
            Axis(charts.spread([one.label for one in periods], _NARROW)),
            lambda value: size(int(value)).replace(".0 ", " "),
        )
        rows = [
            [_text(one.name, one.sums.day), _sized(one.sums.bytes), _sized(stored)]
            for one, stored in pairs
        ]
        table = _folded("stored size", [self._unit, "more", "stored"], rows)
        return _Card("stored", "Stored", "Stored size", said, chart + table)

    def _tools(self) -> _Card:
        found = self._found
        rows = sorted(found.tools, key=lambda row: (-row.tokens, row.name))
        total = sum(row.tokens for row in rows)
        said = (
            f"Results of tools are <strong>{_percent(total, found.tokens_stored)}</strong> of all "
            f"stored tokens; {html.name(rows[0].name)} alone "
            f"{_percent(rows[0].tokens, found.tokens_stored)}."
        )
        drawn = charts.bars(
            "Tools by the tokens of their results",
            [
                Bar(
                    _tipped(row.name),
                    f"{_short(row.tokens)} tokens · {count(row.calls, 'call')}",
                    row.tokens / (rows[0].tokens or 1),
                )
                for row in rows[:_BARS]
            ],
            "results",
        )
        cells = [
            [
                _named(row.name),
                *map(_amount, (row.calls, row.results, row.tokens)),
                _sized(row.largest),
            ]
            for row in rows
        ]
        heads = ["tool", "calls", "results", "tokens of results", "largest result"]
        return _Card("tools", "Tools", "Tools", said, drawn + _folded("tools", heads, cells))

    def _marks(self) -> _Card:
        found = self._found
        rows = _largest(found.marks)
        compressed = found.marks.get(COMPRESSED, 0)
        said = (
            f"{count(compressed, 'message')} {'is' if compressed == 1 else 'are'} compressed: "
            f"<strong>{_percent(compressed, found.messages)}</strong> of all; "
            "a summary is sent in their place."
            if compressed
            else "No message is compressed."
        )
        drawn = charts.bars(
            "Marks by messages",
            [Bar(_tipped(mark), f"{n:,}", n / (rows[0][1] or 1)) for mark, n in rows[:_BARS]],
            "assistant",
        )
        table = _counts("marks", ["mark", "messages"], rows)
        return _Card("marks", "Marks", "Marks", said, drawn + table)

    def _metadata(self, facts: FactStatistics) -> _Card:
        rows = _largest(facts.metadata)
        total = self._found.messages
        share = _percent(rows[0][1], total)
        said = (
            f"{html.name(rows[0][0])} is in the metadata of <strong>{share}</strong> of the facts."
        )
        drawn = charts.bars(
            "Keys of metadata by facts",
            [Bar(_tipped(key), f"{n:,}", n / (rows[0][1] or 1)) for key, n in rows[:8]],
            "assistant",
        )
        table = _counts("keys of metadata", ["key", "facts"], rows)
        return _Card("metadata", "Metadata", "Metadata", said, drawn + table)

    def _ages(self, title: str) -> _Card:
        found, facts, noun = self._found, self._found.facts, self._about.noun
        said, drawn = [], ""
        if any(found.ages):
            from_age = [*accumulate(reversed(found.ages))][::-1]
            month, quarter = (
                f"<strong>{count(from_age[place], noun)}</strong> "
                f"({_percent(from_age[place], found.messages)})"
                for place in (2, 3)
            )
            if self._about.whole:
                rule = f"A rule of {AGES[1]} days would delete {month}"
                said.append(f"{rule}, one of {AGES[2]} days {quarter}.")
            drawn = self._age_bars([*from_age[1:], 0])
        if found.untimed:
            said.append(f"{found.untimed:,} without a readable time.")
        if facts is not None and facts.expiring:
            said.append(
                f"{facts.expiring:,} with an expiration date, of which {facts.expired:,} are past."
            )
        drawn += self._list(
            f"longest without a {noun}",
            *(found.idle, ["last", self._nouns]),
            lambda row: [_time(row.last), _amount(row.messages)],
        )
        drawn += self._list(
            "first to expire",
            *(found.expiring, ["expires in", self._nouns]),
            lambda row: [_left(row.ttl), _amount(row.messages)],
        )
        return _Card("age", "Age", title, " ".join(said), drawn)

    def _age_bars(self, older: Sequence[int]) -> str:
        """Draw the numbers of messages by age; ``older`` has how many are older than each."""
        found = self._found
        names = [
            f"up to {AGES[0]} days",
            *(f"{low + 1} to {high} days" for low, high in pairwise(AGES)),
            f"older than {AGES[-1]} days",
        ]
        most = max(found.ages)
        title = f"{self._nouns} by age"
        drawn = charts.bars(
            title.capitalize(),
            [
                Bar(name, f"{number:,} · {_percent(number, found.messages)}", number / most)
                for name, number in zip(names, found.ages, strict=True)
            ],
            "user",
        )
        rows = [
            [_text(name, str(place)), _amount(found.ages[place]), _amount(older[place])]
            for place, name in enumerate(names)
        ]
        return drawn + _folded(title, ["age", self._nouns, "older than that"], rows)

    def _hours(self) -> _Card:
        hours, zone = self._found.hours, self._about.now.tzname() or "local time"
        counted = [
            (number, day, hour) for day, row in enumerate(hours) for hour, number in enumerate(row)
        ]
        most = max(counted, key=lambda one: one[0])
        sums = [sum(row[hour] for row in hours) for hour in range(24)]
        quiet = min(range(24), key=lambda hour: sums[hour - 1] + sums[hour] + sums[(hour + 1) % 24])
        said = (
            f"Busiest on {_WEEKDAYS[most[1]]}s at {most[2]:02}:00 ({html.text(zone)})."
            if len(self._found.days) < _WEEK
            else f"Busiest on {_WEEKDAYS[most[1]]}s at {most[2]:02}:00; quietest around <strong>"
            f"{quiet:02}:00</strong>, a time for migrations and maintenance ({html.text(zone)})."
        )
        chart = charts.heat_map(
            f"{self._nouns.capitalize()} by weekday and hour; most on {_WEEKDAYS[most[1]]}s at "
            f"{most[2]:02}:00, {most[0]:,}",
            [(name[:3], row) for name, row in zip(_WEEKDAYS, hours, strict=True)],
            [
                f"{_WEEKDAYS[day]} {hour:02}:00: {count(number, self._about.noun)}"
                for number, day, hour in counted
            ],
        )
        rows = [
            [_text(f"{hour:02}:00"), *[_amount(row[hour]) for row in hours]] for hour in range(24)
        ]
        table = _folded(
            f"{self._nouns} by weekday and hour", ["hour", *(name[:3] for name in _WEEKDAYS)], rows
        )
        return _Card("hours", "Hours", "When agents are at work", said, chart + table)

    def _last_runs(self) -> _Card:
        rows = []
        for run in self._runs:
            changed = [
                f"{run[name]:,} {name}"
                for name in ("deleted", "marked", "restored", "added", "replaced")
                if run.get(name)
            ]
            ended = str(run["outcome"] or "cut short").replace("-", " ")
            state = f"undone by {run['undone_by']}" if run.get("undone_by") else ended
            rows.append(
                [
                    _id(str(run["run"])),
                    _named(str(run["command"])),
                    _text(html.text(", ".join(changed) or "nothing")),
                    _time(run["started"]),
                    _text(html.text(state)),
                ]
            )
        runs = "run" if len(rows) == 1 else f"{len(rows)} runs"
        said = f"The last {runs} of memctl that changed this store."
        table = _grid("last runs", ["run", "command", "changed", "when", "state"], rows)
        return _Card("runs", "Runs", "Runs", said, table, wide=True)

    def _list(
        self,
        title: str,
        rows: Sequence[_Row],
        heads: Sequence[str],
        cells: Callable[[_Row], list[str]],
    ) -> str:
        """Return a list of memories, or of messages: first their names, then ``cells``."""
        names = self._names([row.key for row in rows])
        lines = [[*name, *cells(row)] for name, row in zip(names.cells, rows, strict=True)]
        return _listed(title, [*names.heads, *heads], lines)

    def _names(self, keys: Sequence[MemoryKey]) -> _Names:
        """Return the columns for users, sessions and paths, without columns that stay empty."""
        facts = self._found.facts is not None
        heads = ("user", "run", "agent") if facts else ("user", "session", "path")
        used = [place for place in range(3) if any(key[place] for key in keys)]
        return _Names(
            [heads[place] for place in used],
            [[_named(key[place]) for place in used] for key in keys],
        )


@dataclass(frozen=True, slots=True)
class _Names:
    """Columns that name memories: their heads, and the cells of each memory."""

    heads: list[str]
    cells: list[list[str]]


def _every_day(days: Sequence[Day], today: date) -> list[Day]:
    """Return the days with those between that have no message, up to today if that is near."""
    if not days:
        return []
    found = {day.day: day for day in days}
    first, last = date.fromisoformat(days[0].day), date.fromisoformat(days[-1].day)
    end = max(last, today) if today - last < _STALE else last
    every = (str(first + timedelta(number)) for number in range((end - first).days + 1))
    return [found.get(day) or Day(day) for day in every]


def _periods(days: Sequence[Day], today: date) -> tuple[str, list[_Period]]:
    """Return the columns of a chart over time, and their unit: day, week or month."""
    if len(days) <= _MOST_DAYS:
        return "day", [_Period(_day(day.day), _day(day.day, today), day) for day in days]
    weeks = len(days) <= _MOST_WEEKS * 7
    sums: dict[str, Day] = {}
    for day in days:
        at = date.fromisoformat(day.day)
        begin = str(at - timedelta(at.weekday()) if weeks else at.replace(day=1))
        into = sums.setdefault(begin, Day(begin))
        into.user += day.user
        into.assistant += day.assistant
        into.other += day.other
        into.bytes += day.bytes
    periods = []
    for begin, into in sums.items():
        at = date.fromisoformat(begin)
        month = f"{_MONTHS[at.month - 1]} {at.year}"
        name = f"week of {at.day} {month}" if weeks else month
        within_a_year = len(days) <= 366
        periods.append(_Period(_day(begin) if within_a_year else month, name, into))
    return "week" if weeks else "month", periods


def _day(text: str, today: date | None = None) -> str:
    """Return a day such as ``3 Nov``, with the year if it is far from today."""
    day = date.fromisoformat(text)
    name = f"{day.day} {_MONTHS[day.month - 1]}"
    return f"{name} {day.year}" if today and abs(today - day) > _NEAR else name


def _spoken(periods: Sequence[_Period]) -> str:
    return f"{periods[0].name} to {periods[-1].name}" if len(periods) > 1 else periods[0].name


def _means(values: Sequence[int], number: int) -> list[float | None]:
    """Return the mean of the last ``number`` values at each place; None while there are fewer."""
    sums = list(accumulate(values, initial=0))
    return [
        None if place < number else (sums[place] - sums[place - number]) / number
        for place in range(1, len(sums))
    ]


def _place(bins: Sequence[Bin], value: int) -> float:
    """Return the place of a value among bins of one width, between 0 and 1."""
    for place, one in enumerate(bins):
        if one.high is None or value < one.high:
            within = 0.5 if one.high is None else (value - one.low) / (one.high - one.low)
            return (place + within) / len(bins)
    return 1


def _usual(bins: Sequence[Bin], edge: Callable[[int], str], unit: str = "") -> str:
    """Return a sentence with the bin that has the most values."""
    most = max(bins, key=lambda one: one.count, default=Bin(0, 0, 0))
    total = sum(one.count for one in bins)
    if most.high is None or not total:
        return ""
    ends = f"{edge(most.low)} to {edge(most.high)}{unit}"
    return f"Most often {ends}: <strong>{_percent(most.count, total)}</strong>. "


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


def _severities(rows: Iterable[FindingRow]) -> Counter[Severity]:
    """Count what the findings are about by severity, as ``doctor`` does."""
    numbers: Counter[Severity] = Counter()
    for row in rows:
        numbers[KINDS[row.code].severity] += row.count
    return numbers


def _counted(numbers: Counter[Severity], severity: Severity) -> str:
    return count(numbers[severity], severity.value)


def _largest(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _time_of(now: datetime) -> str:
    return html.text(f"{now:%Y-%m-%d %H:%M %Z}".rstrip())


def _user(name: str) -> str:
    return _tipped(name) if name else "<i>no user</i>"


def _owner(key: MemoryKey) -> str:
    return " / ".join(_tipped(name) for name in key if name) or "<i>without a name</i>"


def _tipped(name: str) -> str:
    """Return a name, with a tip if it may be cut."""
    shown = html.name(name)
    return f'<span title="{html.attribute(name)}">{shown}</span>' if len(name) > _LONG else shown


def _code(words: Sequence[str]) -> str:
    """Return a command for a shell, and a button that copies it."""
    command = f'<code dir="ltr">{html.text(shlex.join(words))}</code>'
    return f'{command} <button class="copy" hidden>Copy</button>'


def _legend(parts: Sequence[tuple[str, str]]) -> str:
    keys = "".join(f'<li><i class="{css}"></i>{name}</li>' for css, name in parts)
    return f'<ul class="legend">{keys}</ul>\n'


def _of_user(row: UserRow) -> list[str]:
    return [
        _amount(row.memories),
        _amount(row.messages),
        _sized(row.bytes),
        _amount(row.tokens),
        _time(row.first),
        _time(row.last),
    ]


def _named(name: str) -> str:
    tip = f' title="{html.attribute(name)}"' if len(name) > _LONG else ""
    return f'<td class="t"{tip}>{html.name(name)}</td>'


def _text(shown: str, order: str = "") -> str:
    """Return a cell of a table with HTML; ``order`` takes its place when the table is sorted."""
    key = f' data-v="{order}"' if order else ""
    return f'<td class="t"{key}>{shown}</td>'


def _id(name: str) -> str:
    return f'<td class="t id">{html.name(name)}</td>'


def _amount(number: int) -> str:
    return f"<td>{number:,}</td>"


def _share(part: int, whole: int) -> str:
    return f'<td data-v="{part}">{_percent(part, whole)}</td>'


def _sized(number: int) -> str:
    return f"<td>{size(number)}</td>"


def _time(text: str | None) -> str:
    return _text(html.text(local_time(text or "")[:16]))


def _left(seconds: float | None) -> str:
    return (
        "<td></td>" if seconds is None else f'<td data-v="{seconds:.0f}">{duration(seconds)}</td>'
    )


def _counts(title: str, heads: Sequence[str], rows: Sequence[tuple[str, int]]) -> str:
    """Return a folded table of names and their numbers."""
    cells = [[_named(name), _amount(number)] for name, number in rows[:_MOST_ROWS]]
    return _folded(title, heads, cells)


def _listed(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return the first rows under a heading, and all of them folded if there are more."""
    if not rows:
        return ""
    shown = f"<h3>{title.capitalize()}</h3>\n{_grid(title, heads, rows[:_ROWS])}"
    more = f"{len(rows)} {title}"
    return shown + (_folded(more, heads, rows) if len(rows) > _ROWS else "")


def _folded(
    title: str,
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    last: Sequence[str] = (),
) -> str:
    """Return a table that opens with a click."""
    if not rows:
        return ""
    table = _grid(title, heads, rows, last)
    return f'<details class="table"><summary>Table: {title}</summary>\n{table}</details>\n'


def _grid(
    title: str,
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    last: Sequence[str] = (),
) -> str:
    """Return a table with cells of HTML; the last row stays the last when it is sorted."""
    named = "".join(
        f'<th scope="col"{" class=t" * cell.startswith("<td class")}>{head}</th>'
        for head, cell in zip(heads, rows[0], strict=True)
    )
    lines = "".join(f"<tr>{''.join(row)}</tr>\n" for row in rows)
    foot = f"<tfoot><tr>{''.join(last)}</tr></tfoot>\n" if last else ""
    return (
        f'<div class="scroll" role="group" aria-label="{title}" tabindex="0"><table>\n'
        f"<thead><tr>{named}</tr></thead>\n<tbody>\n{lines}</tbody>\n{foot}</table></div>\n"
    )
