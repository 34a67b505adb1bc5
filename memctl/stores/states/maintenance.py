"""Setting aside what is damaged in JSON documents, and putting it back."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from memctl.errors import BadData, Failure, Lost, UsageError
from memctl.json_stream import TAIL, WINDOW, TrailingData
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
from memctl.stores.states.rewrite import Rewrite, RewritePlan, Splice

if TYPE_CHECKING:
    from memctl.stores.states.store import StateStore

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

    store: StateStore

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
        return sum([await self._change(place, note, {"code": code}) for place in found])

    async def revert(self, records: AsyncGenerator[Record], note: Note) -> int:
        undone = 0
        async with aclosing(records):
            async for record in records:
                owner = MemoryKey(record["user"], record["session"])
                place = _Place(owner, owner._replace(session=record["document"]))
                undone += await self._change(place, note, record)
        return undone

    async def _change(self, place: _Place, note: Note, record: Record) -> int:
        """Put back what a record says was cut out, or cut out what is damaged; return how many.

        A record of no cut says which code is to be repaired.

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
                plan = await self._plan(document, place, record)
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

    async def _plan(self, document: Document, place: _Place, record: Record) -> _Plan | None:
        """Return what is to be changed, if anything; of other damage, nothing is."""
        if not document.exists:
            return None
        try:
            if record["code"] == TAIL:
                plan = await _trimming(document, record, self.store.path)
            elif "cuts" in record:
                plan = await _putting(document, record["cuts"])
            else:
                plan = await _taking(document, self.store.path)
        except BadData:
            return None
        if not plan.splices:
            return None
        more = plan.record | {"document": place.key.session}
        return plan._replace(record=quarantine.record_of(place.owner, **more))

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


async def _trimming(document: Document, record: Record, chosen: str | None) -> _Plan:
    """Return the plan that cuts off the bytes after a document, or restores those of a record.

    Bytes are restored only if the document is the same as before the cut.
    """
    if "tail" not in record:
        end = await _tail(document, chosen)
        if end is None:
            return _Plan([], {}, 0)
        tail = await document.read_at(end, document.size - end)
        before = {"tail": quarantine.to_text(tail), "whole": await _digest(document, end)}
        return _Plan([Splice(end, document.size, b"")], {"code": TAIL, **before}, 1)
    size = document.size
    if await _digest(document, size) != record["whole"]:
        return _Plan([], {}, 0)
    return _Plan([Splice(size, size, quarantine.to_bytes(record["tail"]))], {"code": TAIL}, 1)


async def _digest(document: Document, end: int) -> str:
    """Return the digest of a document up to a byte."""
    found = blake2b(digest_size=16)
    for start in range(0, end, WINDOW):
        found.update(await document.read_at(start, min(WINDOW, end - start)))
    return found.hexdigest()


async def _taking(document: Document, chosen: str | None) -> _Plan:
    """Return the plan that cuts out the damaged messages of a document; ``chosen`` is a path."""
    splices = []
    cuts: list[_Noted] = []
    for path, content in (await damaged_contents(document, chosen)).items():
        for cut in content.scan.cuts:
            text = await document.read_at(cut.start, cut.end - cut.start)
            splices.append(Splice(cut.start, cut.end, b""))
            cuts.append((path, cut.sound, cut.items, quarantine.to_text(text)))
    return _Plan(splices, {"cuts": cuts}, sum(items for _, _, items, _ in cuts))


async def _putting(document: Document, cuts: list[_Noted]) -> _Plan:
    """Return the plan that puts back what was cut out, but for what is there.

    What it notes says that it is to be cut out again.
    """
    wanted: dict[str, set[int]] = {}
    for path, sound, _, _ in cuts:
        wanted.setdefault(path, set()).add(sound)
    splices = []
    count = 0
    for path, content in (await scan_contents(document, wanted)).items():
        there = [
            (cut.sound, await document.read_at(cut.start, cut.end - cut.start))
            for cut in content.scan.cuts
        ]
        back: list[tuple[int, bytes]] = []
        for of, sound, items, noted in cuts:
            text = quarantine.to_bytes(noted)
            is_there = any(sound == at and quarantine.bare(text) in one for at, one in there)
            if of == path and not is_there:
                back.append((sound, text))
                count += items
        places = content.scan.insertions(back, content.opening)
        splices += [Splice(at, at, text) for at, text in places]
    return _Plan(splices, {}, count)
