"""Damaged items among the items of an array: where they are, and where they go back.

``doctor --repair`` sets them aside.  An item is found again by the number of sound items before it,
which stays the same whichever other damaged items are taken out or put back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from memctl import jsonio
from memctl.json_scan import Walk
from memctl.model import Finding, MemoryKey
from memctl.store import Record

CODE, WRONG_KEY = "damaged-message", "wrong-key-type"
"""The findings of what is set aside: messages, and keys of Redis that are of another type."""

_BETWEEN = b", "
_EXAMPLES = 3


@dataclass(frozen=True, slots=True)
class Cut:
    """Damaged items that follow one another, from ``start`` to ``end``.

    In a text, a comma goes with them where the array has other items.
    """

    sound: int
    """The number of sound items before them."""
    index: int
    """The place of the first of them among all items."""
    start: int
    end: int
    items: int


@dataclass(slots=True)
class ItemScan:
    """The items of an array as they pass, by their places in a text, or in a list."""

    wanted: Collection[int] = ()
    """The numbers of sound items after which something is to be put."""
    sound: int = 0
    cuts: list[Cut] = field(default_factory=list)
    _first: int | None = None
    _last: int = 0
    _behind: int = 0
    """The end of the last sound item."""
    _ends: dict[int, int] = field(default_factory=dict)
    _open: int | None = None
    _items: int = 0

    def take(self, start: int, end: int, *, is_sound: bool) -> None:
        """Take the next item."""
        if self._first is None:
            self._first = start
        if is_sound:
            self._close(self._last if self.sound else start)
            self.sound += 1
            self._behind = end
            if self.sound in self.wanted:
                self._ends[self.sound] = end
        else:
            if self._open is None:
                self._open = self._behind if self.sound else start
            self._items += 1
        self._last = end

    def finish(self) -> ItemScan:
        """Take the end of the array."""
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

    def place(self, sound: int, opening: int) -> int:
        """Return where items go back that had so many sound ones before them.

        ``opening`` is where the first item of an empty array stands.
        """
        if self._first is None:
            return opening
        return self._first if sound == 0 else self._ends.get(sound, self._last)

    def insertions(
        self, some: Iterable[tuple[int, bytes]], opening: int
    ) -> list[tuple[int, bytes]]:
        """Return where texts that were cut out go back, each with the commas that it needs now.

        ``some`` have the numbers of sound items before them, in their order.
        """
        if self._first is None:
            whole = _BETWEEN.join(bare(text) for _, text in some)
            return [(opening, whole)] if whole else []
        return [(self.place(sound, opening), _with_comma(text, sound)) for sound, text in some]


def bare(text: bytes) -> bytes:
    """Return items that were cut out of a text without the comma that went with them."""
    return text.strip(b", \t\r\n")


def _with_comma(text: bytes, sound: int) -> bytes:
    if sound:
        return text if text.lstrip().startswith(b",") else _BETWEEN + bare(text)
    return text if text.rstrip().endswith(b",") else bare(text) + _BETWEEN


def to_text(value: bytes) -> str:
    """Return bytes as a text for a record, which loses nothing; ``to_bytes`` is the inverse."""
    return value.decode("utf-8", "surrogateescape")


def to_bytes(text: str) -> bytes:
    """Return the bytes of a text of a record."""
    return text.encode("utf-8", "surrogateescape")


def is_object(text: bytes) -> bool:
    """Return whether a text is a JSON object."""
    try:
        return isinstance(jsonio.outline(jsonio.utf8(text)), dict)
    except ValueError:
        return False


def scan_text(
    text: bytes, path: tuple[str, ...], wanted: Collection[int] = ()
) -> tuple[int, ItemScan] | None:
    """Return where an array of objects in a JSON text begins, and its items; None without one.

    Raises:
        ValueError: the text is not JSON.
    """
    walk = Walk(text)
    found = _scan(walk, path, wanted)
    if walk.start() < len(text):
        raise ValueError(f"the text should end at {walk.at}")
    return found


def _scan(
    walk: Walk, path: tuple[str, ...], wanted: Collection[int]
) -> tuple[int, ItemScan] | None:
    opening = walk.start() + 1
    if not walk.begins(b"{" if path else b"["):
        walk.skip()
        return None
    found: tuple[int, ItemScan] | None = None
    if path:
        for name in walk.members():
            if name == path[0]:
                found = _scan(walk, path[1:], wanted)
            else:
                walk.skip()
        return found
    scan = ItemScan(wanted)
    for _ in walk.items():
        start = walk.start()
        item = walk.skip()
        scan.take(start, walk.at, is_sound=is_object(item))
    return opening, scan.finish()


def finding(key: MemoryKey, items: int, places: Iterable[str], detail: str) -> Finding:
    """Return the finding of damaged items; ``places`` tell where they are."""
    return Finding(CODE, key, items, tuple(places)[:_EXAMPLES], detail)


def record_of(key: MemoryKey, code: str = CODE, **more: Any) -> Record:
    """Return a record of what is set aside of a memory."""
    return {"code": code, "user": key.user, "session": key.session, **more}
