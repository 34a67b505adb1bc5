"""Damaged documents: what ``doctor`` finds, and the repair of bytes after a document."""

from __future__ import annotations

from contextlib import aclosing

from memctl.errors import BadData, Failure, Lost, UsageError
from memctl.json import jsonio
from memctl.json.document import LARGE, TAIL, TrailingData
from memctl.model import Finding, MemoryKey
from memctl.selection import Selection
from memctl.store import EDIT_ATTEMPTS, Maintenance, Note
from memctl.storekit import quarantine
from memctl.stores.states.document import Document, DocumentChanged
from memctl.stores.states.memories import find
from memctl.stores.states.place import DocumentPlace
from memctl.stores.states.splices import Splice


def finding_of(
    owner: tuple[str, str], document: Document, error: BadData, chosen: str | None
) -> Finding:
    """Return the finding for a damaged document, of which reading raised ``error``.

    ``owner`` is the user and session of the document.  ``chosen`` is the path of the only memory to
    examine; None examines all memories.
    """
    is_tail = isinstance(error, TrailingData) and _may_be_cut(document, error, chosen)
    return Finding(TAIL if is_tail else "damaged-state", MemoryKey(*owner), detail=error.message)


def _tail_of(document: Document, chosen: str | None) -> int | None:
    """Return the position at which the complete JSON ends, if bytes after it may be cut off.

    Returns None if no bytes follow, if ``_may_be_cut`` is False, or if the JSON itself is damaged.
    ``chosen`` is as in ``_may_be_cut``.
    """
    try:
        find(document)
    except TrailingData as tail:
        return tail.end if _may_be_cut(document, tail, chosen) else None
    except BadData:
        return None
    return None


def _may_be_cut(document: Document, tail: TrailingData, chosen: str | None) -> bool:
    """Return whether the bytes ``tail`` after the complete JSON of a document may be cut off.

    True if the JSON contains a memory and ``tail`` is not JSON.  If ``tail`` is JSON, too, nobody
    can tell which of the two is right.  ``chosen`` is the path at which the JSON must have a
    memory; None accepts a memory at any path.
    """
    held = tail.paths if chosen is None else tail.paths & {chosen, ""}
    if not held or len(document.data) - tail.end > LARGE:
        return False
    try:
        jsonio.loads(document.data[tail.end :])
    except ValueError:
        return True
    return False


class StateMaintenance(Maintenance):
    """The repair of session documents: cuts off bytes after the complete JSON.

    Other damage stays.
    """

    store: DocumentPlace

    async def repair(self, code: str, where: Selection, note: Note) -> int:
        if code != TAIL:
            raise UsageError(f"{code} cannot be repaired in a state", f"known: {TAIL}")
        async with aclosing(self.store.documents(where)) as documents:
            found = [
                MemoryKey(*owned.owner)
                async for owned in documents
                if where.has_key(MemoryKey(*owned.owner))
                and _tail_of(owned.document, self.store.path) is not None
            ]
        return sum([await self._trim(owner, note) for owner in found])

    async def _trim(self, owner: MemoryKey, note: Note) -> int:
        """Cut off the bytes after a document; return 1, or 0 if there are none to cut off any more.

        ``note`` stores the cut bytes before the document changes.

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
                end = None if document is None else _tail_of(document, self.store.path)
                if document is None or end is None:
                    return 0
                tail = quarantine.to_text(document.data[end:])
                record = quarantine.record_of(owner, TAIL, tail=tail, document=owner.session)
                await note(record)
                splices = [Splice(end, len(document.data), b"")]
                failure = await self.store.splice(name, document, splices)
            except DocumentChanged:
                continue
            finally:
                if document is not None:
                    await document.close()
            if failure is None:
                return 1
            if failure.code != "changed":
                raise BadData(f"{document.name} cannot be written: {failure.message}")
        raise Lost(
            f"another program keeps writing to the state of {owner}",
            "run again for the rest; what was repaired is complete",
        )
