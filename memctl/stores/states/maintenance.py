"""Moving damaged messages of JSON documents into quarantine."""

from __future__ import annotations

from contextlib import aclosing
from typing import NamedTuple

from memctl.errors import BadData, Failure, Lost, UsageError
from memctl.json_stream import TAIL, TrailingData
from memctl.model import Memory, MemoryKey
from memctl.selection import Selection
from memctl.store import EDIT_ATTEMPTS, Maintenance, Note, Record
from memctl.storekit import quarantine
from memctl.stores.states.document import (
    Document,
    DocumentChanged,
    damaged_contents,
    may_be_cut,
    scan_contents,
)
from memctl.stores.states.place import DocumentPlace
from memctl.stores.states.rewrite import Rewrite, RewritePlan, Splice

REPAIRS = frozenset({quarantine.CODE, TAIL})


_Noted = tuple[str, int, int, str]
"""The path of a list of messages; how many sound ones precede what was cut out; how many messages
that are, and their text."""


class _Place(NamedTuple):
    """Whose session a document is, and the key by which its store finds it."""

    owner: MemoryKey
    key: MemoryKey


class _Plan(NamedTuple):
    """What is to be changed in a document, its record, and how many messages that concerns."""

    splices: list[Splice]
    record: Record
    messages: int


class StateMaintenance(Maintenance):
    """The repair of documents: a damaged message, or its pair with the marks, is cut out.

    So is what follows a whole document.  What is no JSON otherwise stays as it is: nobody can tell
    where a message ends there, and an agent that finds no document begins a new one.
    """

    store: DocumentPlace

    async def repair(self, code: str, where: Selection, note: Note) -> int:
        if code not in REPAIRS:
            raise UsageError(f"{code} cannot be repaired in a state", f"known: {sorted(REPAIRS)}")
        is_damaged = self._has_tail if code == TAIL else self._is_damaged
        async with aclosing(self.store.documents(where)) as documents:
            found = [
                _Place(MemoryKey(*owned.owner), self.store.key_of(owned))
                async for owned in documents
                if where.has_key(MemoryKey(*owned.owner)) and await is_damaged(owned.document)
            ]
        return sum([await self._change(place, code, note) for place in found])

    async def _change(self, place: _Place, code: str, note: Note) -> int:
        """Cut out what is damaged in a document; return how many messages.

        Raises:
            Lost: others write to the document all the time.
            BadData: the store does not take the document.
        """
        name = self.store.name_of(place.key)
        for _ in range(EDIT_ATTEMPTS):
            document = None if isinstance(name, Failure) else await self.store.document(name)
            if isinstance(name, Failure) or document is None:
                return 0
            try:
                plan = await self._plan(document, place, code)
                if plan is None:
                    return 0
                await note(plan.record)
                failure = await self._publish(name, document, plan.splices)
            except DocumentChanged:
                continue
            finally:
                await document.close()
            if failure is None:
                return plan.messages
            if failure.code != "changed":
                raise BadData(f"{document.name} cannot be written: {failure.message}")
        raise Lost(
            f"another program keeps writing to the state of {place.owner}",
            "run again for the rest; what was repaired is complete",
        )

    async def _has_tail(self, document: Document) -> bool:
        return await _tail(document, self.store.path) is not None

    async def _is_damaged(self, document: Document) -> bool:
        try:
            return bool(await damaged_contents(document, self.store.path))
        except BadData:
            return False

    async def _plan(self, document: Document, place: _Place, code: str) -> _Plan | None:
        """Return what is to be changed, if anything; of other damage, nothing is."""
        if not document.exists:
            return None
        try:
            take = _trimming if code == TAIL else _taking
            plan = await take(document, self.store.path)
        except BadData:
            return None
        if not plan.splices:
            return None
        more = plan.record | {"document": place.key.session}
        return plan._replace(record=quarantine.record_of(place.owner, code, **more))

    async def _publish(
        self, name: str, document: Document, splices: list[Splice]
    ) -> Failure | None:
        draft = await self.store.draft(name, document)
        try:
            rewrite = Rewrite(Memory(MemoryKey("", "")), draft, document, RewritePlan(splices))
            failure = await rewrite.finish()
            if failure is None:
                [failure] = await self.store.publish([(draft, None)], keep=True)
            return failure
        finally:
            await draft.discard()


async def _tail(document: Document, chosen: str | None) -> int | None:
    """Return where the bytes after a whole document start; None if none may be cut off."""
    try:
        await scan_contents(document)
    except TrailingData as tail:
        return tail.end if await may_be_cut(document, tail, chosen) else None
    except BadData:
        return None
    return None


async def _trimming(document: Document, chosen: str | None) -> _Plan:
    """Return the plan that cuts off the bytes after a document."""
    end = await _tail(document, chosen)
    if end is None:
        return _Plan([], {}, 0)
    tail = await document.read_at(end, document.size - end)
    return _Plan([Splice(end, document.size, b"")], {"tail": quarantine.to_text(tail)}, 1)


async def _taking(document: Document, chosen: str | None) -> _Plan:
    """Return the plan that cuts out the damaged messages of a document; ``chosen`` is a path."""
    splices = []
    cuts: list[_Noted] = []
    for path, scan in (await damaged_contents(document, chosen)).items():
        for cut in scan.cuts:
            text = await document.read_at(cut.start, cut.end - cut.start)
            splices.append(Splice(cut.start, cut.end, b""))
            cuts.append((path, cut.sound, cut.items, quarantine.to_text(text)))
    return _Plan(splices, {"cuts": cuts}, sum(items for _, _, items, _ in cuts))
