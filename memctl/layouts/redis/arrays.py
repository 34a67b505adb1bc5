"""Quarantine of damaged messages in memories that are read whole.

A message is an item of a Redis list, or of an array in a JSON text.  A repair watches the keys,
plans and notes the change, and makes the change in one transaction.  If an agent interferes, the
repair begins again.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import (
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from functools import partial
from typing import NamedTuple

from msgspec import Struct

from memctl.engines.redis.pipeline import ABSENT, WRONG_TYPE, Command, Pipeline, in_thread
from memctl.errors import BadData, Lost, UsageError
from memctl.json import jsonio
from memctl.layouts.redis.places import MemoryPlace, MemoryPlaces, MessageArray
from memctl.model import Finding, MemoryKey
from memctl.selection import Selection
from memctl.store import Maintenance, Note, Record
from memctl.storekit import quarantine
from memctl.storekit.quarantine import ItemScan
from memctl.storekit.simple import Rejected

REPAIRS = frozenset({quarantine.CODE})

_TRIES = 20


class _Noted(NamedTuple):
    """Items removed from an array of messages, as the record of a repair has them.

    ``array`` is the index of the array in the record.  ``sound`` is the number of undamaged items
    before the removed items, ``items`` the number of removed items.  ``expires`` is the expiry of
    the key in milliseconds since 1970; None without an expiry.
    """

    array: int
    sound: int
    texts: list[str]
    """The removed items of a Redis list, or one removed piece of a JSON text."""
    items: int
    expires: int | None


class _Plan(Struct):
    """A planned repair of a memory.

    It has the commands that change the memory, the record, and the number of repairs.
    """

    commands: list[Command]
    record: Record
    count: int = 0


class WholeMaintenance(Maintenance):
    """The repairs of memories that are read whole: damaged messages are moved into quarantine.

    A value that is not JSON stays unchanged, because its messages cannot be told apart.
    """

    store: MemoryPlaces

    async def repair(self, code: str, where: Selection, note: Note) -> int:
        repairs = self.store.features.repairs
        if code not in repairs:
            raise UsageError(f"{code} cannot be repaired here", f"known: {sorted(repairs)}")
        count = 0
        async with self.store.server.pipeline() as pipeline:
            places = await in_thread(pipeline, partial(self.store.places, pipeline, where))
            for place in places:
                if not where.has_key(place.memory):
                    continue
                is_damaged = partial(_is_damaged, self.store, pipeline, place)
                if not await in_thread(pipeline, is_damaged):
                    continue
                if code == quarantine.WRONG_KEY:
                    plan = partial(_taking_keys, pipeline, self.store.types(place))
                else:
                    plan = partial(_changing, pipeline, self.store.arrays(place))
                count += await _change(pipeline, code, place.memory, plan, note)
        return count


def damage_of(
    store: MemoryPlaces, pipeline: Pipeline, place: MemoryPlace, error: BadData
) -> list[Finding]:
    """Return the findings about the damaged memory at a place.

    They name the damaged messages, and the keys of a wrong type, which a repair can remove.  If
    there are none, the only finding has the text of ``error``.
    """
    found: list[Finding] = []
    names: list[str] = []
    count = 0
    for array in store.arrays(place):
        if (scan := _Value(pipeline, array).scan()) is not None:
            names += (f"{_name(array)}[{cut.index}]" for cut in scan.cuts)
            count += scan.items
    if count:
        found.append(quarantine.finding(place.memory, count, names, error.message))
    if wrong := _of_wrong_type(pipeline, store.types(place)):
        keys = tuple(map(quarantine.to_text, wrong))
        found.append(Finding(quarantine.WRONG_KEY, place.memory, len(wrong), keys))
    return found or [Finding(store.damage_code, place.memory, detail=error.message)]


def _is_damaged(store: MemoryPlaces, pipeline: Pipeline, place: MemoryPlace) -> bool:
    try:
        store.fetch(pipeline, place)
    except Rejected:
        return False
    except BadData:
        return True
    return False


async def _change(
    pipeline: Pipeline, code: str, key: MemoryKey, make: Callable[[], _Plan], note: Note
) -> int:
    """Note and carry out the plan that ``make`` returns; return the number of repairs.

    If an agent changes the memory meanwhile, ``make`` is called again.

    Raises:
        Lost: an agent keeps changing the memory.
        Unavailable: the server refuses a command.
    """
    for _ in range(_TRIES):
        plan = await in_thread(pipeline, make)
        if not plan.commands:
            await in_thread(pipeline, partial(pipeline.execute, [(b"UNWATCH",)]))
            return 0
        await note(quarantine.record_of(key, code, part=key.part, **plan.record))
        if await in_thread(pipeline, partial(pipeline.commit, plan.commands)):
            return plan.count
    raise Lost(
        f"an agent keeps changing {key}", "run again for the rest; what was repaired is complete"
    )


# Keys of another type


def _of_wrong_type(pipeline: Pipeline, types: Mapping[bytes, bytes]) -> list[bytes]:
    kinds = pipeline.execute((b"TYPE", key) for key in types)
    pairs = zip(types.items(), kinds, strict=True)
    wrong = [(key, kind) for (key, right), kind in pairs if kind not in (right, b"none")]
    return [key for key, kind in wrong if kind != b"string" or not holds_object(pipeline, key)]


def holds_object(pipeline: Pipeline, key: bytes) -> bool:
    """Return whether the value of a key is a JSON object, as text."""
    [text] = pipeline.execute([(b"GET", key)], tolerate=WRONG_TYPE)
    return isinstance(text, bytes) and quarantine.is_object(text)


def _taking_keys(pipeline: Pipeline, types: Mapping[bytes, bytes]) -> _Plan:
    pipeline.execute([(b"WATCH", *types)] if types else [])
    keys, values = [], []
    for key in _of_wrong_type(pipeline, types):
        dump, ttl = pipeline.execute([(b"DUMP", key), (b"PTTL", key)])
        if dump is not None and ttl != ABSENT:  # the key has not expired meanwhile
            keys.append(key)
            values.append([quarantine.to_text(key), dump.hex(), _deadline(ttl)])
    return _Plan([(b"UNLINK", *keys)] if keys else [], {"values": values}, len(keys))


def _now() -> int:
    return round(time.time() * 1000)


def _deadline(ttl: int) -> int | None:
    return _now() + ttl if ttl >= 0 else None


# Messages


def _changing(pipeline: Pipeline, arrays: Sequence[MessageArray]) -> _Plan:
    pipeline.execute([(b"WATCH", *{array.key for array in arrays})])
    plan = _Plan([], {"arrays": [_described(one) for one in arrays], "cuts": []})
    for number, array in enumerate(arrays):
        _Value(pipeline, array).take_out(number, plan)
    return plan


class _Value:
    """The present items of an array of messages in Redis."""

    def __init__(self, pipeline: Pipeline, array: MessageArray) -> None:
        self._array = array
        if array.path is None:
            get: Command = (b"LRANGE", array.key, b"0", b"-1")
        elif array.field is None:
            get = (b"GET", array.key)
        else:
            get = (b"HGET", array.key, array.field)
        found, ttl = pipeline.execute([get, (b"PTTL", array.key)], tolerate=WRONG_TYPE)
        self._expires = _deadline(ttl)
        self._items: list[bytes] | None = found if isinstance(found, list) else None
        self._text: bytes | None = found if isinstance(found, bytes) else None
        if self._items is not None and array.newest_first:
            self._items.reverse()

    def scan(self) -> ItemScan | None:
        """Find the damaged items of the array.

        Returns None if the array does not exist or cannot be repaired.
        """
        if self._items is not None:
            items = ItemScan()
            for at, item in enumerate(self._items):
                items.take(at, at + 1, is_sound=quarantine.is_object(item))
            return items.finish()
        if self._text is None or self._array.path is None:
            return None
        try:
            scan = quarantine.scan_text(self._text, self._array.path)
        except ValueError:  # the text is not JSON
            return None
        if scan is None:
            return None
        try:
            jsonio.loads(self._spliced((cut.start, cut.end, b"") for cut in scan.cuts))
        except ValueError:  # the text is not JSON without the damaged items either
            return None
        return scan

    def take_out(self, number: int, plan: _Plan) -> None:
        """Add the removal of the damaged items to a plan; ``number`` is the index of the array."""
        scan = self.scan()
        if scan is None or not scan.cuts:
            return
        for cut in scan.cuts:
            texts = [quarantine.to_text(one) for one in self._of(cut.start, cut.end)]
            plan.record["cuts"].append(_Noted(number, cut.sound, texts, cut.items, self._expires))
        spans = [(cut.start, cut.end) for cut in scan.cuts]
        if self._text is not None:
            plan.commands.append(self._setting((start, end, b"") for start, end in spans))
        else:
            plan.commands += self._removing(spans)
        plan.count += scan.items

    def _of(self, start: int, end: int) -> list[bytes]:
        """Return the items between two indexes of a Redis list.

        Of a JSON text, returns the piece between two offsets, as the only item.
        """
        if self._items is not None:
            return self._items[start:end]
        return [(self._text or b"")[start:end]]

    def _spliced(self, splices: Iterable[tuple[int, int, bytes]]) -> bytes:
        text = self._text or b""
        pieces: list[bytes] = []
        at = 0
        for start, end, new in splices:
            pieces += (text[at:start], new)
            at = end
        return b"".join([*pieces, text[at:]])

    def _setting(self, splices: Iterable[tuple[int, int, bytes]]) -> Command:
        return (b"SET", self._array.key, self._spliced(splices), b"KEEPTTL")

    def _removing(self, spans: Sequence[tuple[int, int]]) -> Iterator[Command]:
        key, token = self._array.key, secrets.token_bytes(16)
        for start, end in spans:
            for at in range(start, end):
                yield (b"LSET", key, self._index(at), token)
        yield (b"LREM", key, b"0", token)

    def _index(self, at: int) -> bytes:
        """Return the Redis index of the item ``at``, which later pushes do not change."""
        return b"%d" % (-1 - at if self._array.newest_first else at)


def _described(array: MessageArray) -> Record:
    return {
        "key": quarantine.to_text(array.key),
        "field": None if array.field is None else quarantine.to_text(array.field),
        "path": array.path,
        "newest_first": array.newest_first,
    }


def _name(array: MessageArray) -> str:
    names = [quarantine.to_text(array.key)]
    names += [] if array.field is None else [quarantine.to_text(array.field)]
    return ".".join([*names, *(array.path or ())])
