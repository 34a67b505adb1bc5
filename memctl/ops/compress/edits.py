"""A summary and what it stands for, as one edit of the memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from memctl.model import PAGE_BYTES, PAGE_ENTRIES, Change, Edit
from memctl.ops.authored import authored
from memctl.ops.compress.plan import Case, Kind, Line, Mode
from memctl.ops.known_marks import COMPRESSED, SUMMARY

READER = "user"
"""The role and the name under which AgentScope hands a summary to a model (``get_memory``)."""


@dataclass(frozen=True, slots=True)
class Done:
    """A memory that was summarised: its new summary, and the message that holds it, if one does."""

    case: Case
    mode: Mode
    text: str
    put: Change | None


def done(case: Case, text: str, mode: Mode) -> Done:
    """A memory with its new summary."""
    if mode is Mode.MARK:
        return Done(case, mode, text, None)
    # In front of everything, as AgentScope puts its own summary: no other message has to move.
    id, message = authored(READER, READER, text, datetime.now())
    return Done(case, mode, text, Change(id, None, (SUMMARY,), message))


def edits(done: Done, lines: Iterable[Line]) -> Iterator[Edit]:
    """The edit of a memory, in pages.

    It fits only while the memory has the summary that was read, and the messages that go have the
    marks that they had; what else came meanwhile does not matter.
    """
    before = done.case.memory.summary
    if done.mode is Mode.MARK:
        memory = replace(done.case.memory, summary=done.text)
    else:
        # Where there is a place for summaries it is emptied: the message says all.
        memory = replace(done.case.memory, summary="" if before else None)
    seen = None if memory.summary is None else before or ""
    page: list[Change] = []
    offset = size = 0
    for change in _changes(done, lines):
        if len(page) >= PAGE_ENTRIES or (page and size + len(change.message) > PAGE_BYTES):
            yield Edit(memory, page, offset, last=False, summary=seen)
            offset += len(page)
            page, size = [], 0
        page.append(change)
        size += len(change.message)
    yield Edit(memory, page, offset, summary=seen)


def _changes(done: Done, lines: Iterable[Line]) -> Iterator[Change]:
    if done.put is not None:
        yield done.put
    stays: str | None = None
    for line in lines:
        stays = line.behind or stays
        goes = done.case.goes(line)
        if goes and (line.kind is Kind.SUMMARY or done.mode is Mode.REPLACE):
            yield Change(line.id, line.marks, None, line.message, stays, line.place)
            continue
        stays = line.id
        if goes and line.kind is Kind.OLD:
            yield Change(line.id, line.marks, (*line.marks, COMPRESSED))
