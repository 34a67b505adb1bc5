"""Find damaged items of an array, which ``doctor --repair`` moves into quarantine."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Struct, field

from memctl.json import jsonio
from memctl.json.scan import Walk
from memctl.model import Finding, MemoryKey
from memctl.store import Record

CODE, WRONG_KEY = "damaged-message", "wrong-key-type"
"""The codes of quarantined data: damaged messages, and Redis keys of the wrong type."""

_EXAMPLES = 3


class Cut(Struct, frozen=True):
    """Consecutive damaged items of an array, from ``start`` up to but not including ``end``.

    ``start`` and ``end`` are offsets in the JSON text, or indexes in the list.  In a JSON text, the
    range includes a comma if the array has other items.
    """

    sound: int
    """The number of undamaged items before the range."""
    index: int
    """The index of the first damaged item among all items."""
    start: int
    end: int
    items: int


class ItemScan(Struct):
    """Collects the damaged items of an array, by offset in a JSON text or by index in a list."""

    sound: int = 0
    cuts: list[Cut] = field(default_factory=list)
    _last: int = 0
    _behind: int = 0
    """The end of the last sound item."""
    _open: int | None = None
    _items: int = 0

    def take(self, start: int, end: int, *, is_sound: bool) -> None:
        """Add the next item of the array, from ``start`` to ``end``."""
        if is_sound:
            self._close(self._last if self.sound else start)
            self.sound += 1
            self._behind = end
        else:
            if self._open is None:
                self._open = self._behind if self.sound else start
            self._items += 1
        self._last = end

    def finish(self) -> ItemScan:
        """Mark the end of the array; return this scan."""
        self._close(self._last)
        return self

    def _close(self, end: int) -> None:
        if self._open is not None:
            index = self.sound + self.items
            self.cuts.append(Cut(self.sound, index, self._open, end, self._items))
        self._open, self._items = None, 0

    @property
    def items(self) -> int:
        """Return the number of damaged items."""
        return sum(cut.items for cut in self.cuts)


def to_text(value: bytes) -> str:
    """Decode bytes for a quarantine record; bytes that are not UTF-8 become surrogates."""
    return value.decode("utf-8", "surrogateescape")


def is_object(text: bytes) -> bool:
    """Return whether a text is a JSON object."""
    try:
        return isinstance(jsonio.outline(jsonio.utf8(text)), dict)
    except ValueError:
        return False


def scan_text(text: bytes, path: tuple[str, ...]) -> ItemScan | None:
    """Scan the array at a path of a JSON text for items that are not JSON objects.

    None if there is no array at the path.

    Raises:
        ValueError: the text is not valid JSON.
    """
    walk = Walk(text)
    found = _scan(walk, path)
    if walk.start() < len(text):
        raise ValueError(f"the text should end at {walk.at}")
    return found


def _scan(walk: Walk, path: tuple[str, ...]) -> ItemScan | None:
    walk.start()
    if not walk.begins(b"{" if path else b"["):
        walk.skip()
        return None
    found: ItemScan | None = None
    if path:
        for name in walk.members():
            if name == path[0]:
                found = _scan(walk, path[1:])
            else:
                walk.skip()
        return found
    scan = ItemScan()
    for _ in walk.items():
        start = walk.start()
        item = walk.skip()
        scan.take(start, walk.at, is_sound=is_object(item))
    return scan.finish()


def finding(key: MemoryKey, items: int, places: Iterable[str], detail: str) -> Finding:
    """Return the finding that ``items`` messages of a memory are damaged.

    ``places`` says where; the finding names the first few of them.
    """
    return Finding(CODE, key, items, tuple(places)[:_EXAMPLES], detail)


def record_of(key: MemoryKey, code: str = CODE, **more: Any) -> Record:
    """Return a quarantine record about a memory; ``more`` adds members to the record."""
    return {"code": code, "user": key.user, "session": key.session, **more}
