"""The contents of a store: a catalogue of the memories with totals, and groups of messages."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import aclosing
from datetime import date
from enum import StrEnum
from functools import partial

from msgspec import Struct

from memctl.dialects.live import not_read
from memctl.dialects.view import Dialect
from memctl.model import Memory, MemoryInfo, Page, StoredMessage
from memctl.ops.gather import gather
from memctl.ops.retry import leaving_damaged
from memctl.reports.inspect import GroupRow, Totals, in_order
from memctl.selection import Selection
from memctl.store import Store
from memctl.text.words import natural


class Sort(StrEnum):
    """The property by which the memories of a catalogue are ordered."""

    MESSAGES = "messages"
    BYTES = "bytes"
    LAST = "last"
    USER = "user"


class GroupBy(StrEnum):
    """The property by which ``group`` groups messages."""

    USER = "user"
    MARK = "mark"
    ROLE = "role"
    NAME = "name"
    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    MONTH = "month"


TIMES = {GroupBy.HOUR: 13, GroupBy.DAY: 10, GroupBy.MONTH: 7}
"""The length of the value of a group in a time such as ``2026-11-29 06:15``."""


class Catalogue(Struct):
    """The memories of a store and their totals."""

    totals: Totals
    memories: list[MemoryInfo]


async def inspect(store: Store, where: Selection, sort: Sort | None) -> Catalogue:
    """Return the catalogue of the selected memories, ordered by ``sort``.

    Memories with the most messages or bytes, or the latest message, come first; equal ones, and
    users, come in the order of their names, ``s2`` before ``s10``.  Without ``sort``, they are
    ordered by messages; a store in which counting these means reading all is ordered by bytes, and
    they are not counted.

    Raises:
        MemctlError: as ``Store.list_memories``.
    """

    async def listed() -> list[MemoryInfo]:
        list_ = store.list_memories if sort is Sort.MESSAGES else store.survey
        async with aclosing(list_(where)) as found:
            return [info async for info in found]

    memories = await leaving_damaged(listed)
    is_counted = all(info.is_counted for info in memories)
    sort = sort or (Sort.MESSAGES if is_counted else Sort.BYTES)
    totals = Totals(
        messages=0 if is_counted else None, summaries=0 if store.features.summaries else None
    )
    for info in memories:
        info.unread = not_read(info)
        _add(totals, info)
    totals.users = len({info.key.user for info in memories} - {""})
    totals.without_user = sum(not info.key.user for info in memories)
    memories.sort(key=lambda info: natural(info.key))
    match sort:
        case Sort.MESSAGES:
            memories.sort(key=lambda info: -info.messages)
        case Sort.BYTES:
            memories.sort(key=lambda info: -info.bytes)
        case Sort.LAST:
            memories.sort(key=lambda info: info.last or "", reverse=True)
    return Catalogue(totals, memories)


def _add(totals: Totals, info: MemoryInfo) -> None:
    totals.memories += 1
    if totals.messages is not None:
        totals.messages += info.messages
    totals.bytes += info.bytes
    for total, counts in (
        (totals.marks, info.marks),
        (totals.roles, info.roles),
        (totals.unread, info.unread),
    ):
        for name, count in counts.items():
            total[name] = total.get(name, 0) + count
    if info.first is not None:
        totals.first = min(totals.first or info.first, info.first)
    if info.last is not None:
        totals.last = max(totals.last or info.last, info.last)
    if totals.summaries is not None:
        totals.summaries += bool(info.summary)


async def group(store: Store, where: Selection, by: GroupBy) -> list[GroupRow]:
    """Return groups of the selected messages: times in order, other groups with the largest first.

    ``by`` is the property that the messages of a group share.  A message with several marks is in
    the group of each mark.  A message without a time is in the group "".  Times are as stored,
    and weeks are those of ISO 8601, such as ``2026-W48``.

    Raises:
        MemctlError: as ``Store.read``.
    """
    groups = await leaving_damaged(lambda: _grouped(store, where, by))
    return in_order(groups.values())


async def _grouped(store: Store, where: Selection, by: GroupBy) -> dict[str, GroupRow]:
    groups: dict[str, GroupRow] = {}
    begin = partial(_MemoryGroups, store.dialect, by)
    async with aclosing(gather(store, where, begin)) as memories:
        async for memory in memories:
            for name, one in memory.groups.items():
                found = groups.setdefault(name, _named(by, name))
                found.memories += 1
                found.messages += one.messages
                found.bytes += one.bytes
    return groups


def _named(by: GroupBy, name: str) -> GroupRow:
    found = GroupRow()
    setattr(found, by.value, name)
    return found


class _MemoryGroups:
    """The groups of the messages of one memory, by name."""

    def __init__(self, dialect: Dialect, by: GroupBy, memory: Memory) -> None:
        self.groups: dict[str, GroupRow] = {}
        self._dialect = dialect
        self._by = by
        self._user = memory.key.user

    def take(self, page: Page) -> None:
        groups = self.groups
        for entry in page.messages:
            for name in self._names(entry):
                found = groups.get(name)
                if found is None:
                    found = groups[name] = _named(self._by, name)
                found.messages += 1
                found.bytes += len(entry.message)

    def _names(self, message: StoredMessage) -> Iterable[str]:
        match self._by:
            case GroupBy.USER:
                return (self._user,)
            case GroupBy.MARK:
                return dict.fromkeys(message.marks)
            case GroupBy.ROLE:
                return (self._dialect.outline(message.message).role or "",)
            case GroupBy.NAME:
                return (self._dialect.outline(message.message).name or "",)
            case GroupBy.WEEK:
                return (_week(self._dialect.outline(message.message).time or ""),)
            case _:
                time = self._dialect.outline(message.message).time or ""
                return (time[: TIMES[self._by]].replace("T", " "),)


def _week(time: str) -> str:
    try:
        year, week, _ = date.fromisoformat(time[:10]).isocalendar()
    except ValueError:
        return time[:10]
    return f"{year}-W{week:02}"
