"""Tests that a report has the numbers of inspect, context and doctor."""

from __future__ import annotations

from collections import Counter
from contextlib import aclosing

from memctl.inference.tokens import estimate
from memctl.ops.context import read_context
from memctl.ops.doctor.check import Limits, check
from memctl.ops.inspect import GroupBy, Sort, group, inspect
from memctl.ops.statistics import collect
from memctl.store import Store
from memctl.testing import samples
from memctl.testing.backend import Place
from memctl.testing.drive import ALL, write_all
from memctl.testing.samples import sample
from tests.conformance.dialects import OnEachDialect


async def _sent(store: Store) -> int:
    """Return the number of tokens in the contexts of all memories."""
    tokens = 0
    for info in (await inspect(store, ALL, Sort.USER)).memories:
        parts = read_context(store, info.key, estimate, everything=False)
        async with aclosing(parts) as found:
            tokens += sum([part.tokens async for part in found])
    return tokens


class TestReport(OnEachDialect):
    """Tests that a report has the numbers of inspect, context and doctor."""

    async def test_report_agrees_with_inspect_context_and_doctor(self, place: Place) -> None:
        async with place.store() as store:
            summary = "a summary 会话" if store.features.summaries else None
            lists = [samples.entries(30), samples.entries(1, 30)]
            if not store.dialect.facts:
                unfit = place.backend.refuses | place.backend.alters
                lists.insert(1, list(samples.nasty_entries(skip=unfit)))
            memories = zip(place.keys(len(lists)), lists, strict=False)
            await write_all(store, [sample(key, some, summary=summary) for key, some in memories])
        async with place.store(create=False) as store:
            totals = (await inspect(store, ALL, Sort.USER)).totals
            groups = {by: await group(store, ALL, by) for by in GroupBy}
            sent = 0 if store.dialect.facts else await _sent(store)
            diagnosis = await check(store, ALL, Limits())
            report = await collect(store, ALL)
        for name in ("users", "without_user", "memories", "messages", "first", "last", "summaries"):
            assert getattr(report, name) == getattr(totals, name), name
        assert report.roles == totals.roles
        assert report.marks == {one.value: one.messages for one in groups[GroupBy.MARK]}
        assert report.bytes == sum(one.bytes for one in groups[GroupBy.USER])
        assert {row.user: (row.memories, row.messages, row.bytes) for row in report.user_rows} == {
            one.value: (one.memories, one.messages, one.bytes) for one in groups[GroupBy.USER]
        }
        days = sum(day.user + day.assistant + day.other for day in report.days)
        assert days + report.untimed + report.odd_times == report.messages
        assert report.sent.total == sum(row.tokens for row in report.user_rows) == sent
        codes = Counter[str]()
        for finding in diagnosis.faults:
            codes[finding.code] += finding.count
        assert report.findings is not None
        assert {row.code: row.count for row in report.findings} == codes
