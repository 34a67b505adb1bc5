"""Damaged documents: what ``doctor`` finds in them."""

from __future__ import annotations

from memctl import jsonio
from memctl.errors import BadData
from memctl.json_document import LARGE, TAIL, TrailingData
from memctl.model import Finding, MemoryKey
from memctl.storekit import quarantine
from memctl.storekit.paths import join, split
from memctl.storekit.quarantine import ItemScan
from memctl.stores.states.document import Document
from memctl.stores.states.memories import CONTENT, scan_damage


def damaged_contents(document: Document, chosen: str | None) -> dict[str, ItemScan]:
    """Return the result of ``scan_damage``, limited to the ``chosen`` path if there is one.

    A document that is itself a memory belongs to every path.

    Raises:
        BadData: something else in the document is damaged.
    """
    found = scan_damage(document)
    return {path: scan for path, scan in found.items() if chosen is None or path in (chosen, "")}


def tail_of(document: Document, chosen: str | None) -> int | None:
    """Return the start of the bytes after a whole document; None if none may be cut off."""
    try:
        scan_damage(document)
    except TrailingData as tail:
        return tail.end if may_be_cut(document, tail, chosen) else None
    except BadData:
        return None
    return None


def may_be_cut(document: Document, tail: TrailingData, chosen: str | None) -> bool:
    """Return whether the bytes after a whole document may be cut off.

    The document must hold a memory, at the ``chosen`` path if there is one.  If the bytes are a
    document, too, nobody can tell which of the two is right.
    """
    held = tail.paths if chosen is None else tail.paths & {chosen, ""}
    if not held or len(document.data) - tail.end > LARGE:
        return False
    try:
        jsonio.loads(document.data[tail.end :])
    except ValueError:
        return True
    return False


def finding_of(
    owner: tuple[str, str], document: Document, error: BadData, chosen: str | None
) -> Finding:
    """Return the finding for a document that is damaged; ``error`` is what reading it raised.

    If only messages are damaged, the finding names them; see ``damaged_contents``.
    """
    key = MemoryKey(*owner)
    try:
        found = damaged_contents(document, chosen)
    except TrailingData as tail:
        code = TAIL if may_be_cut(document, tail, chosen) else "damaged-state"
        return Finding(code, key, detail=tail.message)
    except BadData:
        found = {}
    if not found:
        return Finding("damaged-state", key, detail=error.message)
    count = sum(scan.items for scan in found.values())
    places = [
        f"{join((*split(path), CONTENT))}[{cut.index}]"
        for path, scan in found.items()
        for cut in scan.cuts
    ]
    return quarantine.finding(key, count, places, error.message)
