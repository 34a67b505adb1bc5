"""The repair of documents: damaged bytes move into quarantine."""

from __future__ import annotations

from contextlib import aclosing
from typing import NamedTuple

from memctl.errors import BadData, Failure, Lost, UsageError
from memctl.json.document import TAIL
from memctl.model import MemoryKey
from memctl.selection import Selection
from memctl.store import EDIT_ATTEMPTS, Maintenance, Note, Record
from memctl.storekit import quarantine
from memctl.stores.states.damage import damaged_contents, tail_of
from memctl.stores.states.document import Document, DocumentChanged
from memctl.stores.states.place import DocumentPlace
from memctl.stores.states.splices import Splice

REPAIRS = frozenset({quarantine.CODE, TAIL})


_Noted = tuple[str, int, int, str]
"""The path of a list of messages, the number of sound messages before damaged ones, the number of
damaged ones, and their text."""


class _Plan(NamedTuple):
    """A planned repair of a document.

    ``record`` goes into the quarantine.  ``messages`` is the number of damaged messages.
    """

    splices: list[Splice]
    record: Record
    messages: int


class StateMaintenance(Maintenance):
    """The repair of session documents.

    A repair cuts out damaged messages with their marks, and cuts off bytes after the complete JSON.
    Other damage hides the ends of messages, and stays.
    """

    store: DocumentPlace

    async def repair(self, code: str, where: Selection, note: Note) -> int:
        if code not in REPAIRS:
            raise UsageError(f"{code} cannot be repaired in a state", f"known: {sorted(REPAIRS)}")
        async with aclosing(self.store.documents(where)) as documents:
            found = [
                MemoryKey(*owned.owner)
                async for owned in documents
                if where.has_key(MemoryKey(*owned.owner)) and self._plan(owned.document, code)
            ]
        return sum([await self._change(owner, code, note) for owner in found])

    async def _change(self, owner: MemoryKey, code: str, note: Note) -> int:
        """Repair one finding in a document, and return the number of damaged messages it had.

        ``code`` is the code of the finding.  ``note`` stores the cut bytes before the document
        changes.

        Raises:
            Lost: another program changed the document during each attempt.
            BadData: the store does not accept the repaired document.
        """
        name = self.store.name_of(owner)
        if isinstance(name, Failure):
            return 0
        for _ in range(EDIT_ATTEMPTS):
            document = None
            try:
                document = await self.store.document(name)
                plan = None if document is None else self._plan(document, code)
                if document is None or plan is None:
                    return 0
                more = plan.record | {"document": owner.session}
                await note(quarantine.record_of(owner, code, **more))
                failure = await self.store.splice(name, document, plan.splices)
            except DocumentChanged:
                continue
            finally:
                if document is not None:
                    await document.close()
            if failure is None:
                return plan.messages
            if failure.code != "changed":
                raise BadData(f"{document.name} cannot be written: {failure.message}")
        raise Lost(
            f"another program keeps writing to the state of {owner}",
            "run again for the rest; what was repaired is complete",
        )

    def _plan(self, document: Document, code: str) -> _Plan | None:
        if not document.exists:
            return None
        if code == TAIL:
            return _trimming(document, self.store.path)
        try:
            return _taking(document, self.store.path)
        except BadData:
            return None


def _trimming(document: Document, chosen: str | None) -> _Plan | None:
    """Plan to cut off the bytes after the complete JSON; None if nothing may be cut off.

    ``chosen`` is as in ``tail_of``.
    """
    end = tail_of(document, chosen)
    if end is None:
        return None
    tail = quarantine.to_text(document.data[end:])
    return _Plan([Splice(end, len(document.data), b"")], {"tail": tail}, 1)


def _taking(document: Document, chosen: str | None) -> _Plan | None:
    """Plan to cut out the damaged messages of a document; None if no message is damaged.

    ``chosen`` is the path of the only memory to repair; None repairs all memories.

    Raises:
        BadData: the document is damaged outside of messages.
    """
    splices = []
    cuts: list[_Noted] = []
    for path, scan in damaged_contents(document, chosen).items():
        for cut in scan.cuts:
            splices.append(Splice(cut.start, cut.end, b""))
            text = quarantine.to_text(document.data[cut.start : cut.end])
            cuts.append((path, cut.sound, cut.items, text))
    messages = sum(items for _, _, items, _ in cuts)
    return _Plan(splices, {"cuts": cuts}, messages) if splices else None
