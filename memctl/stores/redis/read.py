"""Reading AgentScope's Redis memory: what a memory was at one moment, then its payloads.

A payload never changes under its id, so it may be read after the moment at which its id was listed.
One that has gone since tells that its message was deleted meanwhile: then the memory is looked at
again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice, repeat
from typing import Any

from redis.exceptions import ResponseError

from memctl import codec
from memctl.errors import Lost
from memctl.model import PAGE_ENTRIES, Finding, Memory, Page, StoredMessage
from memctl.selection import Selection
from memctl.stores.batching import are_objects, messages_from_columns, paginate
from memctl.stores.redis.keys import MESSAGES, PAYLOAD, decode
from memctl.stores.redis.look import Looker, Marks, Sight
from memctl.stores.redis.making import Found, LeftOut, Making
from memctl.stores.redis.scan import Named, exists, list_pages
from memctl.stores.redis.wanted import Wanted
from memctl.stores.redis.wire import WRONG_TYPE, Pacer, Wire

_TRIES = 10
_TOGETHER = 128
_LOOKED_AT = 100


class Reader:
    """One pass over some memories, in a thread."""

    def __init__(
        self,
        wire: Wire,
        marks: dict[bytes, tuple[bytes, ...]],
        where: Selection,
        *,
        payloads: bool = True,
    ) -> None:
        """``marks`` as ``Looker`` takes them; ``where`` may spare payloads.

        Without ``payloads`` messages are empty, and are there if any payload is.
        """
        self._wire = wire
        self._looker = Looker(wire, marks)
        self._payloads = payloads
        self._pacer = Pacer()
        self._wanted = Wanted(wire, where)
        self._missing = LeftOut("message ids without payload")
        self._broken = LeftOut("payloads that are not a JSON object")

    def warnings(self) -> list[str]:
        """What was left out so far."""
        return self._missing.lines() + self._broken.lines()

    def damage(self) -> list[Finding]:
        """The same, memory by memory."""
        return [
            Finding(code, key, count, tuple(ids))
            for code, left_out in (
                ("id-without-payload", self._missing),
                ("payload-not-json", self._broken),
            )
            for key, (count, ids) in left_out.by_memory.items()
        ]

    def pages(self, memories: Iterable[Named]) -> Iterator[Page]:
        """The memories, but for messages whose id and marks rule them out.

        Raises:
            Lost: the connection broke; or messages of a memory were deleted while it was read, and
                a part of it has been handed out.
            Unavailable: the server refuses a command.
        """
        for sights in self._looker.sights(self._wanted.memories(memories)):
            pages = self._small(sights) if sights[0].few else self._large(sights[0])
            yield from self._wanted.placed(pages)

    def headers(self, memories: Iterable[Named]) -> Iterator[list[Memory]]:
        """What memories have beside messages, of those that have any payload."""
        source = iter(memories)
        while some := list(islice(source, _TOGETHER)):
            commands = chain.from_iterable(
                (
                    (b"LRANGE", named.base + MESSAGES, b"0", b"%d" % (_LOOKED_AT - 1)),
                    (b"PTTL", named.base + MESSAGES),
                )
                for named in some
            )
            replies = iter(self._wire.ask(commands, tolerate=WRONG_TYPE))
            found = [
                (named, ids, ttl)
                for named, ids, ttl in zip(some, replies, replies, strict=True)
                if ids and not isinstance(ids, ResponseError)
            ]
            counts = self._wire.ask(exists(named.base, ids) for named, ids, _ in found)
            yield [
                Memory(named.key, ttl=ttl / 1000 if ttl >= 0 else None)
                for (named, ids, ttl), count in zip(found, counts, strict=True)
                if count or (len(ids) == _LOOKED_AT and self._has_payload(named.base))
            ]

    def _has_payload(self, base: bytes) -> bool:
        pages = list_pages(self._wire, base + MESSAGES, _LOOKED_AT)
        return any(self._wire.ask([exists(base, ids)])[0] for ids in pages)

    def _small(self, sights: Sequence[Sight]) -> Iterator[Page]:
        """Memories whose ids are all known: their payloads in one go."""
        wanted = [self._wanted.messages(sight, next(sight.chunks())) for sight in sights]
        keys = [
            sight.named.base + PAYLOAD + id
            for sight, (ids, _) in zip(sights, wanted, strict=True)
            for id in ids
        ]
        ids, marks = (list(chain.from_iterable(some)) for some in zip(*wanted, strict=True))
        blocks = self._found(keys, ids, marks)
        held: list[Found] = []
        doubtful = []
        for sight, (its, _) in zip(sights, wanted, strict=True):
            making = Making(sight)
            yield from making.fill(len(its), blocks, held)
            if making.missing and not making.filling.offset:
                doubtful.append(making)
            else:
                yield from self._end(making)
        for making in doubtful:
            yield from self._again(making)

    def _large(self, sight: Sight) -> Iterator[Page]:
        """A memory whose ids come in chunks."""
        making = Making(sight)
        for number, chunk in enumerate(sight.chunks()):
            ids, marks = self._wanted.messages(sight, chunk, going_on=number > 0)
            keys = [sight.named.base + PAYLOAD + id for id in ids]
            yield from making.fill(len(ids), self._found(keys, ids, marks), [])
        yield from self._end(making)

    def _end(self, making: Making) -> Iterator[Page]:
        """The last page, when it is sure that no message was deleted meanwhile."""
        named = making.sight.named
        if making.missing:
            sight = self._looker.look(named)
            chunks = sight.chunks() if sight else ()
            if sum(id in making.gone for chunk in chunks for id in chunk) < making.missing:
                raise _overtaken(named)
            self._missing.add(making.first_gone, named, making.missing)
        for id in making.broken:
            self._broken.add(id, named)
        yield from making.rest()

    def _again(self, making: Making) -> Iterator[Page]:
        """A small memory of which a payload was missing, as it is by now.

        An id that is still listed after its payload was missing has none: it is left out.
        """
        named = making.sight.named
        known: dict[str, StoredMessage | None] = {
            entry.id: entry for entry in making.filling.entries
        }
        known |= dict.fromkeys(making.broken)
        gone = making.gone
        for _ in range(_TRIES):
            sight = self._looker.look(named)
            if sight is None:
                return
            if not sight.few:
                yield from self._large(sight)
                return
            ids, marks = self._wanted.messages(sight, next(sight.chunks()))
            new = [
                (id, some)
                for id, some in zip(ids, marks, strict=True)
                if decode(id) not in known and id not in gone
            ]
            keys = [named.base + PAYLOAD + id for id, _ in new]
            blocks = self._found(keys, [id for id, _ in new], [some for _, some in new])
            found = list(chain.from_iterable(blocks))
            known |= {one.id: one for one in found if isinstance(one, StoredMessage)}
            known |= dict.fromkeys(one for one in found if isinstance(one, str))
            missing = [one for one in found if isinstance(one, bytes)]
            if not missing:
                yield from self._settled(sight, ids, marks, known)
                return
            gone.add(missing)
        raise _overtaken(named)

    def _settled(
        self,
        sight: Sight,
        ids: list[bytes],
        marks: list[Marks],
        known: dict[str, StoredMessage | None],
    ) -> Iterator[Page]:
        """A small memory of which each id has a payload in ``known``, or none at all."""
        entries = []
        for id, some in zip(map(decode, ids), marks, strict=True):
            entry = known.get(id)
            if entry is not None:
                entries.append(entry._replace(marks=some))
            else:
                (self._broken if id in known else self._missing).add(id, sight.named)
        yield from paginate(sight.memory, entries, empty=False)

    # Payloads

    def _found(
        self, keys: list[bytes], ids: list[bytes], marks: list[Marks]
    ) -> Iterator[list[Found]]:
        """What is under the keys, some at a time."""
        at = 0
        fetched = self._wire.values(keys, self._pacer) if self._payloads else self._existing(keys)
        for values in fetched:
            end = at + len(values)
            texts = [id.decode("utf-8", "surrogateescape") for id in ids[at:end]]
            found = [self._made(ids[at:end], texts, values, marks[at:end])]
            at = end
            del values
            yield found.pop()  # not kept here while it is used: it may be large

    def _made(
        self, ids: list[bytes], texts: list[str], values: list[Any], marks: list[Marks]
    ) -> list[Found]:
        good = are_objects(values) if self._payloads else None not in values
        if good:
            return [*messages_from_columns(texts, values, marks, repeat(None))]
        found: list[Found] = []
        for id, text, value, some in zip(ids, texts, values, marks, strict=True):
            if not isinstance(value, bytes):
                found.append(id)
                continue
            message = _message(value) if self._payloads else value
            found.append(text if message is None else StoredMessage(text, message, some))
        return found

    def _existing(self, keys: list[bytes]) -> Iterator[list[bytes | None]]:
        """An empty message for each key that exists, None for each other."""
        for start in range(0, len(keys), PAGE_ENTRIES):
            some = keys[start : start + PAGE_ENTRIES]
            [count] = self._wire.ask([(b"EXISTS", *some)])
            if count == len(some):
                yield [b""] * count
                continue
            each = self._wire.ask((b"EXISTS", key) for key in some)
            yield [b"" if there else None for there in each]


def _message(payload: bytes) -> bytes | None:
    """The payload as a message; None where it is not a JSON object."""
    try:
        message = codec.utf8(payload)
        return message if isinstance(codec.outline(message), dict) else None
    except ValueError:
        return None


def _overtaken(named: Named) -> Lost:
    return Lost(
        f"messages of {named.key} were deleted while they were read",
        "run again: what was written is whole, and what is gone is not read",
    )
