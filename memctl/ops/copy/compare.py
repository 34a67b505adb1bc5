"""Compare the memories of two stores by fingerprints, and name their differences.

Memories whose messages differ as texts are compared again by their JSON values.  Memories that
still differ are read again, in groups, to name every difference.
"""

from __future__ import annotations

import sqlite3
import time
from array import array
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from contextlib import closing as closed
from dataclasses import KW_ONLY, dataclass, replace
from enum import Enum
from functools import cache, partial
from hashlib import blake2b, sha256
from typing import Any, NamedTuple

from msgspec import Struct, field, structs

from memctl.dialects.conversion import may_have_note, take_extras
from memctl.dialects.fact import without_vector
from memctl.dialects.registry import DIALECTS
from memctl.dialects.rows import EXTRA
from memctl.dialects.view import Dialect
from memctl.errors import BadData, Failure
from memctl.json import jsonio
from memctl.machine.concurrency import run_both
from memctl.model import PAGE_BYTES, Memory, MemoryKey, Page, StoredMessage
from memctl.ops.report import Progress, SilentProgress
from memctl.ops.retry import leaving_damaged
from memctl.selection import Selection
from memctl.store import Store
from memctl.text.numbers import count
from memctl.wrappers.converted import ConvertedStore, comparisons, is_converted

DIGEST_BYTES = 16


class Precision(Enum):
    """The precision of a comparison of memories.

    OUTLINE compares the ids, order and marks of messages.  TEXT also compares their JSON texts.
    VALUE also compares their JSON values, but not the texts.
    """

    OUTLINE = "outline"
    TEXT = "text"
    VALUE = "value"


class Fingerprint(Struct, frozen=True):
    """The number of messages of a memory, with digests that equal memories share.

    ``digest`` covers ids, order and marks of the messages.  It also covers their contents, unless
    the precision is ``Precision.OUTLINE``.  ``summary`` is a digest of the summary: empty without a
    summary, None if the store has no place for summaries.  ``expires`` is the moment of expiry in
    seconds since the epoch, None without expiry.  ``beginning`` is the digest of a given number of
    first messages; None if no number was given, or the memory has fewer messages.  ``settings`` is
    a digest of the settings in ``Memory.extra``, or in a note on the first message: empty for
    default settings, None for unknown settings.  ``place`` is ``Memory.place``.
    """

    messages: int
    digest: bytes
    summary: bytes | None
    expires: float | None = None
    beginning: bytes | None = None
    settings: bytes | None = None
    place: str | None = None


class Hasher:
    """The running digest of the messages of one memory.

    Ids, marks, contents and their lengths are hashed separately.  Therefore the digest does not
    depend on where the pages were cut.
    """

    def __init__(
        self, form: Precision, *, mark_order: bool, filled: frozenset[str] = frozenset()
    ) -> None:
        self.messages = 0
        self._form = form
        self._mark_order = mark_order
        self._filled = filled
        self._ids = sha256()
        self._id_lengths = sha256()
        self._marks = sha256()
        self._contents = sha256()
        self._content_lengths = sha256()

    def add(self, entries: list[StoredMessage]) -> None:
        """Add the next messages of the memory to the digest.

        Raises:
            BadData: a message is not JSON; raised only with the precision VALUE.
        """
        ids = [entry.id for entry in entries]
        self._ids.update("".join(ids).encode("utf-8", "surrogatepass"))
        self._id_lengths.update(array("Q", map(len, ids)).tobytes())
        marked = [
            f"{number} {len(mark)} {mark}"
            for number, entry in enumerate(entries, self.messages)
            if entry.marks
            for mark in _in_order(entry, mark_order=self._mark_order)
        ]
        if marked:
            self._marks.update("".join(marked).encode("utf-8", "surrogatepass"))
        if self._form is not Precision.OUTLINE:
            self._add_contents(entries)
        self.messages += len(entries)

    def _add_contents(self, entries: list[StoredMessage]) -> None:
        if self._form is Precision.TEXT:
            contents = [entry.message for entry in entries]
        else:
            contents = [content(entry, self._form, self._filled) for entry in entries]
        lengths = array("Q", map(len, contents))
        self._content_lengths.update(lengths.tobytes())
        if sum(lengths) <= 2 * PAGE_BYTES:
            self._contents.update(b"".join(contents))
            return
        for one in contents:  # large contents are not held twice
            self._contents.update(one)

    def digest(self) -> bytes:
        """Return the digest of all messages that were added so far."""
        parts = (
            *(self._ids, self._id_lengths, self._marks),
            *(self._contents, self._content_lengths),
        )
        whole = b"%d " % self.messages + b"".join(part.digest() for part in parts)
        return sha256(whole).digest()[:DIGEST_BYTES]


class FactHasher(Hasher):
    """The running digest of the facts of one memory, which does not depend on their order."""

    def __init__(self, form: Precision, *, vectors: bool, file_times: bool = True) -> None:
        super().__init__(form, mark_order=False)
        self._counted = {"vectors": vectors, "file_times": file_times}
        self._sum = 0

    def add(self, entries: list[StoredMessage]) -> None:
        self.messages += len(entries)
        self._sum += sum([self._number(entry) for entry in entries])

    def _number(self, entry: StoredMessage) -> int:
        id = entry.id.encode("utf-8", "surrogatepass")
        found = blake2b(b"%d " % len(id) + id, digest_size=DIGEST_BYTES)
        if self._form is not Precision.OUTLINE:
            found.update(fact_content(entry, self._form, **self._counted))
        return int.from_bytes(found.digest())

    def digest(self) -> bytes:
        return (self._sum % (1 << 8 * DIGEST_BYTES)).to_bytes(DIGEST_BYTES)


_FILE = ".md"
"""The end of the ids of facts that are files; see ``Features.file_times``."""


def fact_content(
    entry: StoredMessage, form: Precision, *, vectors: bool, file_times: bool = True
) -> bytes:
    """Return bytes that are equal for facts with equal contents.

    ``form`` is the precision.  ``vectors`` includes the vector of the fact.  ``file_times``
    includes the time of change of a fact that is a file.

    Raises:
        BadData: the fact is not JSON; raised only if the fact must be parsed.
    """
    try:
        text = entry.message if vectors else without_vector(entry.message)
        if not file_times and entry.id.endswith(_FILE):
            value = jsonio.loads(text)
            value.pop("updated_at", None)
            text = jsonio.dumps(value)
    except ValueError as error:
        raise BadData(f"the fact {entry.id!r} is not JSON: {error}") from error
    return content(entry._replace(message=text), form)


def _in_order(entry: StoredMessage, *, mark_order: bool) -> list[str]:
    return list(dict.fromkeys(entry.marks)) if mark_order else sorted(set(entry.marks))


def encode_marks(entry: StoredMessage, *, mark_order: bool) -> bytes:
    """Return bytes that are equal for equal marks.

    With ``mark_order``, equal marks have the same order.
    """
    return "\0".join(_in_order(entry, mark_order=mark_order)).encode("utf-8", "surrogatepass")


def content(entry: StoredMessage, form: Precision, filled: frozenset[str] = frozenset()) -> bytes:
    """Return bytes that are equal for messages with equal contents.

    Contents are JSON texts for the precision TEXT, and JSON values for other precisions.  In a
    comparison of values, settings in notes and the columns ``filled`` do not count.

    Raises:
        BadData: the message is not JSON; not raised for TEXT.
    """
    if form is Precision.TEXT:
        return entry.message
    try:
        text = entry.message
        if may_have_note(text):
            value, extras = _noted_extras(text)
            text = jsonio.dumps(value) if extras else text
        if filled:
            text = _without_columns(text, filled)
        return jsonio.canonical(text)
    except ValueError as error:
        raise BadData(f"the message {entry.id!r} is not JSON: {error}") from error


def _without_columns(text: bytes, names: frozenset[str]) -> bytes:
    """Return a message without the columns ``names`` in its object ``extra``."""
    value = jsonio.loads(text)
    extra = value.get(EXTRA) if isinstance(value, dict) else None
    if not isinstance(extra, dict) or names.isdisjoint(extra):
        return text
    left = {name: one for name, one in extra.items() if name not in names}
    del value[EXTRA]
    return jsonio.dumps(value | ({EXTRA: left} if left else {}))


@cache
def _keeping_extra() -> list[str]:
    """Return the names of the dialects whose memories have settings in ``Memory.extra``."""
    return [name for name, dialect in DIALECTS.items() if dialect.keeps_extra]


def _noted_extras(text: bytes) -> tuple[Any, dict[str, str]]:
    """Return the parsed message without settings in its notes, and the settings by dialect.

    Raises:
        ValueError: the message is not JSON.
    """
    value = jsonio.loads(text)
    return take_extras(value, _keeping_extra()) if isinstance(value, dict) else (value, {})


def settings_digest(memory: Memory, dialect: Dialect) -> bytes | None:
    """Return a digest of the settings in ``memory.extra``; None without ``extra``.

    The digest is empty for the default settings of the dialect.
    """
    if not memory.extra:
        return None
    found = dialect.settings(memory.extra, *memory.key[:2])
    return sha256(found).digest()[:DIGEST_BYTES] if found else b""


def _noted_settings(key: MemoryKey, messages: list[StoredMessage]) -> bytes:
    """Return digests of the settings in the first message's note."""
    if not messages or not may_have_note(messages[0].message):
        return b""
    try:
        _, extras = _noted_extras(messages[0].message)
    except ValueError as error:
        raise BadData(f"the message {messages[0].id!r} is not JSON: {error}") from error
    digests = (
        settings_digest(Memory(key, extra=extra), DIALECTS[name]) for name, extra in extras.items()
    )
    return b"".join(one or b"" for one in digests)


def summary_digest(memory: Memory) -> bytes | None:
    """Return a digest of the summary of a memory; None if the store has no place for summaries.

    The digest is empty without a summary.
    """
    if memory.summary is None:
        return None
    if not memory.summary:
        return b""
    return sha256(memory.summary.encode("utf-8", "surrogatepass")).digest()[:DIGEST_BYTES]


def id_digest(key: MemoryKey, entry: StoredMessage) -> int:
    """Return a hash of 64 bits of the memory and the message id."""
    text = "\0".join((*key, entry.id)).encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(text, digest_size=8).digest())


async def fingerprints(
    pages: AsyncGenerator[Page],
    form: Precision,
    sides: Comparability,
    *,
    beginnings: Mapping[MemoryKey, int] | None = None,
) -> dict[MemoryKey, Fingerprint]:
    """Return the fingerprint of each memory of ``pages``.

    ``form`` is the precision, and ``sides`` says which properties of memories count.  If
    ``sides.extra`` is set, the settings in ``Memory.extra`` count.  If it is not set and the
    precision is VALUE, the settings in notes count.  ``beginnings`` maps a memory to a number of
    messages: ``Fingerprint.beginning`` is the digest of so many first messages.

    Raises:
        MemctlError: as ``Store.read``.
    """
    found: dict[MemoryKey, Fingerprint] = {}
    asked = beginnings or {}
    hasher = sides.hasher(form)
    beginning: bytes | None = None
    settings: bytes | None = None
    async with aclosing(pages):
        async for page in pages:
            memory = page.memory
            if page.offset == 0:
                hasher, beginning = sides.hasher(form), None
                settings = None
                if sides.extra is not None:
                    settings = settings_digest(memory, sides.extra)
                elif form is Precision.VALUE:
                    settings = _noted_settings(memory.key, page.messages)
            entries = page.messages
            left = asked.get(memory.key, -1) - hasher.messages
            if 0 <= left <= len(entries):
                hasher.add(entries[:left])
                beginning = hasher.digest()
                entries = entries[left:]
            hasher.add(entries)
            if page.last:
                print_ = fingerprint(memory, hasher)
                found[memory.key] = structs.replace(print_, beginning=beginning, settings=settings)
    return found


def fingerprint(memory: Memory, hasher: Hasher) -> Fingerprint:
    """Return the fingerprint of a memory; ``hasher`` has all of its messages."""
    expires = None if memory.ttl is None else time.time() + memory.ttl
    return Fingerprint(
        *(hasher.messages, hasher.digest(), summary_digest(memory), expires), place=memory.place
    )


SHORTEST_DRIFT = 5.0
LONGEST_DRIFT = 300.0
DRIFT = 0.1
"""The allowed difference of two moments of expiry, as a share of the time until the expiry.

At least ``SHORTEST_DRIFT`` and at most ``LONGEST_DRIFT`` seconds are allowed.  A copy takes some
time, and the time to expiry starts again in the target.
"""


class Comparability(Struct, frozen=True):
    """The properties that count in a comparison of a source and a target."""

    mark_order: bool = False
    summaries: bool = False
    """True if the target has a place for summaries; then None from the target means no summary."""
    expiry: bool = False
    """True if both stores can let memories expire, and no URL sets the expiry."""
    moments: bool = False
    """True if moments of expiry are comparable; an archive keeps only the time to expiry."""
    extra: Dialect | None = None
    """The dialect of the source, if its ``Memory.extra`` becomes a note in the target."""
    facts: bool = False
    """True if the messages are facts, which have no order."""
    vectors: bool = False
    """True if the vectors of facts come from the same model on both sides."""
    file_times: bool = True
    """True if the times of change of facts count; False if a store is a folder of fact files."""
    filled: frozenset[str] = frozenset()
    """The columns that the database of the target fills, and that the source lacks."""

    @classmethod
    def of(cls, source: Store, target: Store) -> Comparability:
        """Return the properties that count in a comparison of two stores."""
        here, there = source.features, target.features
        # An expiry in a URL changes the expiry on purpose.
        asked = any("ttl" in store.location.options for store in (source, target))
        expiry = here.ttl and there.ttl and not asked
        made, kept = source.embedding, target.embedding
        return cls(
            here.mark_order and there.mark_order,
            there.summaries,
            expiry,
            expiry and here.ttl_counts_down and there.ttl_counts_down,
            source.dialect if source.dialect.keeps_extra and is_converted(target) else None,
            source.dialect.facts,
            made is not None and kept is not None and made.fits(kept),
            not (here.file_times or there.file_times),
            there.filled_columns - here.columns
            if here.columns or is_converted(source) or is_converted(target)
            else frozenset(),
        )

    def hasher(self, form: Precision) -> Hasher:
        """Return a new running digest for the messages of one memory."""
        if self.facts:
            return FactHasher(form, vectors=self.vectors, file_times=self.file_times)
        return Hasher(form, mark_order=self.mark_order, filled=self.filled)

    def content(self, entry: StoredMessage, form: Precision) -> bytes:
        """Return bytes that are equal for equal messages; see ``content`` and ``fact_content``.

        ``form`` is the precision.

        Raises:
            BadData: the message is not JSON; raised only if the message must be parsed.
        """
        if self.facts:
            return fact_content(entry, form, vectors=self.vectors, file_times=self.file_times)
        return content(entry, form, self.filled)

    def summaries_differ(self, source: bytes | None, target: bytes | None) -> bool:
        """Return whether two digests of ``summary_digest`` are of different summaries.

        None stands for a store without a place for summaries, such as an archive of SQL memory, and
        equals every summary.
        """
        if target is None and self.summaries:
            target = b""
        return None not in (source, target) and source != target

    def expiry_differs(self, source: float | None, target: float | None) -> bool:
        """Return whether two moments of expiry, in seconds since the epoch, differ too much.

        None stands for a memory that does not expire, and differs from every moment.  If the stores
        cannot both hold expiries, the result is always False.
        """
        if not self.expiry:
            return False
        if source is None or target is None:
            return source is not target
        left = max(source, target) - time.time()
        allowed = min(max(SHORTEST_DRIFT, DRIFT * left), LONGEST_DRIFT)
        return self.moments and abs(source - target) > allowed

    def lacks(self, source: Fingerprint, target: Fingerprint) -> bool:
        """Return whether the target lacks the summary of the source, or its moment of expiry."""
        adds_summary = bool(source.summary) and not target.summary and self.summaries
        expires = source.expires is not None and self.expiry_differs(source.expires, target.expires)
        return adds_summary or expires

    def settings_differ(self, source: Fingerprint, target: Fingerprint) -> bool:
        """Return whether source and target have different settings.

        False if the settings of the source are unknown.
        """
        return source.settings is not None and source.settings != (target.settings or b"")


NOTHING = Fingerprint(0, Hasher(Precision.OUTLINE, mark_order=False).digest(), None)
"""The fingerprint of a memory that the target does not have."""


class PrefixComparer:
    """Compares a memory of the source with the same memory in the target, page by page.

    ``take`` returns only messages that can be appended to the memory in the target.  ``conflict``
    is the reason why no messages can be appended; it is empty if they can.  ``passed`` is True
    after ``take`` has returned a page.
    """

    def __init__(
        self, memory: Memory, there: Fingerprint, form: Precision, sides: Comparability
    ) -> None:
        self.there = there
        self._memory = memory
        self.passed = False
        self.messages = 0
        summary = summary_digest(memory)
        expires = None if memory.ttl is None else time.time() + memory.ttl
        settings = settings_digest(memory, sides.extra) if sides.extra is not None else None
        here = Fingerprint(0, b"", summary, expires, settings=settings)
        self._lacks = there is NOTHING or sides.lacks(here, there)
        self._settles = sides.settings_differ(here, there)
        self.conflict = ""
        if summary and there.summary and summary != there.summary:
            self.conflict = "the summary in the target differs"
        self._hasher = sides.hasher(form)

    def take(self, page: Page) -> Page | None:
        """Compare the next page; return the part to append to the target, None if there is none.

        If the memory differs in the target, the result is None, and ``conflict`` has the reason.
        """
        self.messages += len(page.messages)
        if self.conflict:
            return None
        compared = max(0, min(len(page.messages), self.there.messages - page.offset))
        if compared:
            self._hasher.add(page.messages[:compared])
        if page.last and self.messages < self.there.messages:
            self.conflict = (
                f"the target holds {self.there.messages} messages, the source {self.messages}"
            )
            return None
        if self.messages < self.there.messages:
            return None
        # So far the digest covers only messages of the target, unless new messages have begun.
        reached = self.there.messages and (compared or not page.offset)
        if reached and self._hasher.digest() != self.there.digest:
            first = self.there.messages
            self.conflict = (
                "the first message of the source differs from that of the target"
                if first == 1
                else f"source and target differ within the first {first} messages"
            )
            return None
        rest = page.messages[compared:]
        self._hasher.add(rest)
        return self._rest(page, rest, page.offset + compared)

    @property
    def digest(self) -> bytes:
        """The digest of all messages of the memory, after ``take`` of the last page."""
        return self._hasher.digest()

    @property
    def fingerprint(self) -> Fingerprint:
        """The fingerprint of the memory, after ``take`` of the last page."""
        return fingerprint(self._memory, self._hasher)

    def _rest(self, page: Page, entries: list[StoredMessage], offset: int) -> Page | None:
        # A memory without messages has no place for a note.
        lacks = self._lacks or (self._settles and self.messages > 0)
        if not entries and not (page.last and (self.passed or lacks)):
            return None
        self.passed = True
        memory = page.memory
        if self.there.summary and not memory.summary:  # the target keeps its summary
            memory = replace(memory, summary=None)
        return Page(memory, entries, offset, page.last)


class FactComparer(PrefixComparer):
    """Compares the facts of a scope with the facts of the target; ``take`` returns no fact.

    If the facts differ in any way, ``conflict`` is set: the target may lack facts, hold further
    facts, or hold other versions of them.
    """

    def take(self, page: Page) -> None:
        self.messages += len(page.messages)
        self._hasher.add(page.messages)
        if page.last and self._hasher.digest() != self.there.digest:
            self.conflict = "the facts in the target are not the same"


_SCHEMA = """
PRAGMA journal_mode = OFF;
PRAGMA temp_store = FILE;
CREATE TABLE message (
    memory INTEGER, side INTEGER, place INTEGER, id BLOB, content BLOB, marks BLOB
);
"""
_INDEX = "CREATE INDEX by_memory ON message (memory, side)"
_SIDES = """
WITH one AS (
    SELECT *, ROW_NUMBER() OVER (PARTITION BY id ORDER BY place) AS number
    FROM message WHERE memory = :memory AND side = :side
), other AS (
    SELECT *, ROW_NUMBER() OVER (PARTITION BY id ORDER BY place) AS number
    FROM message WHERE memory = :memory AND side = 1 - :side
)
"""
# A message id may repeat: the first occurrences are compared, then the second ones.
_SHARED = f"""{_SIDES}
SELECT one.id, one.content <> other.content, one.marks, other.marks, other.place
FROM one LEFT JOIN other ON other.id = one.id AND other.number = one.number ORDER BY one.place
"""
_ALONE = f"""{_SIDES}
SELECT one.id FROM one
LEFT JOIN other ON other.id = one.id AND other.number = one.number
WHERE other.id IS NULL ORDER BY one.place
"""
_LEFT, _RIGHT = 0, 1


class Difference(NamedTuple):
    """A difference between two stores in a memory or in one of its messages.

    ``code`` is the kind of the difference, for programs.  ``id`` is the id of the message, empty
    for a difference of the memory.  ``message`` describes the difference.
    """

    key: MemoryKey
    code: str
    id: str
    message: str


async def differences(
    left: Store, right: Store, where: Selection, keys: list[MemoryKey], sides: Comparability
) -> AsyncGenerator[Difference]:
    """Yield every difference between the messages of the memories ``keys`` in two stores.

    Only selected messages are compared.  ``sides`` says which properties of messages count.

    Raises:
        MemctlError: as ``Store.read``.
    """
    with closed(sqlite3.connect("", isolation_level=None)) as database:
        database.executescript(_SCHEMA)
        numbers = {key: number for number, key in enumerate(keys)}
        where = where.only(frozenset(keys))
        for side, store in ((_LEFT, left), (_RIGHT, right)):
            await _note(database, store, where, numbers, side, sides)
        database.execute(_INDEX)
        for key, number in numbers.items():
            for difference in _of_memory(database, key, number, left.label, right.label):
                if not (sides.facts and difference.code == "order"):
                    yield difference


async def _note(
    database: sqlite3.Connection,
    store: Store,
    where: Selection,
    numbers: dict[MemoryKey, int],
    side: int,
    sides: Comparability,
) -> None:
    async with aclosing(store.read(where)) as pages:
        async for page in pages:
            number = numbers[page.memory.key]
            rows = [
                (
                    *(number, side, place),
                    entry.id.encode("utf-8", "surrogatepass"),
                    blake2b(sides.content(entry, Precision.VALUE), digest_size=16).digest(),
                    encode_marks(entry, mark_order=sides.mark_order),
                )
                for place, entry in enumerate(page.messages, page.offset)
            ]
            database.executemany("INSERT INTO message VALUES (?, ?, ?, ?, ?, ?)", rows)


def _of_memory(
    database: sqlite3.Connection, key: MemoryKey, number: int, left: str, right: str
) -> Iterator[Difference]:
    before: tuple[str, int] | None = None
    values = {"memory": number, "side": _LEFT}
    for id, other_content, marks, other_marks, place in database.execute(_SHARED, values):
        name = _text(id)
        if place is None:
            yield Difference(key, "message-missing", name, f"the message is only in {left}")
            continue
        if other_content:
            yield Difference(key, "content", name, "the content differs")
        if marks != other_marks:
            text = f"marks {_mark_names(marks)} and {_mark_names(other_marks)}"
            yield Difference(key, "marks", name, text)
        if before and before[1] > place:
            text = f"the message follows {before[0]!r} in one store and precedes it in the other"
            yield Difference(key, "order", name, text)
        before = name, place
    for (id,) in database.execute(_ALONE, {"memory": number, "side": _RIGHT}):
        yield Difference(key, "message-extra", _text(id), f"the message is only in {right}")


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogatepass")


def _mark_names(marks: bytes) -> str:
    return ", ".join(repr(name) for name in _text(marks).split("\0")) if marks else "none"


async def share_names(known: Store, unsure: Store, where: Selection) -> None:
    """Tell the store ``unsure`` which selected memories the store ``known`` has.

    If names in ``unsure`` are ambiguous, ``unsure`` reads them as the names of these memories.
    If they are not, nothing is done.

    Raises:
        MemctlError: as ``Store.headers``.
    """
    if not unsure.features.ambiguous_names:
        return
    async with aclosing(known.headers(where)) as memories:
        unsure.resolve_names([memory.key async for memory in memories])


GROUP_MESSAGES = 500_000
"""The approximate number of messages to compare together when differences are named."""


class CompareReport(Struct):
    """The result of a comparison of a left and a right store.

    ``same`` and ``different`` count memories that both stores have.  ``missing`` counts memories
    that only the left store has, ``extra`` memories that only the right store has.
    """

    same: int = 0
    different: int = 0
    missing: int = 0
    extra: int = 0
    noun: str = "message"
    """What the stores call a message: "message" or "fact"."""
    left_messages: int = 0
    right_messages: int = 0
    grown: int = 0
    """The number of messages that the left store got after the copy; no differences."""
    kept: int = 0
    """The number of summaries that only the right store has after a copy; no differences."""
    differences: list[Difference] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    """Texts about properties that were not compared: a store has no place for them."""
    failures: list[tuple[MemoryKey, Failure]] = field(default_factory=list)
    """The memories that are damaged in a store, and were not compared."""

    @property
    def equal(self) -> bool:
        """Return whether all memories were compared, and none differs."""
        return not (self.differences or self.failures)


async def compare(
    left: Store,
    right: Store,
    where: Selection,
    copied: Mapping[MemoryKey, int] | None = None,
    progress: Progress | None = None,
    *,
    taken: Mapping[MemoryKey, Fingerprint] | None = None,
    concurrent: bool = False,
) -> CompareReport:
    """Compare the selected memories of two stores.

    Summaries and expiries count if both stores can hold them.  If a store cannot hold a memory
    without messages, an empty memory equals an absent memory.

    After a copy from left to right, ``copied`` maps each copied memory to its number of messages.
    Messages and memories that are new in the left store since the copy count as ``grown``, not as
    differences.  ``taken`` holds the fingerprints, by ``Precision.TEXT``, of all these memories as
    the copy read them; then only memories that differ are read from the left store.

    ``concurrent`` reads both stores at the same time.  This is faster, but two huge messages may be
    in RAM together.  Memories that are damaged in a store are not compared: see
    ``Store.left_out``.  If the dialects differ, messages are compared in each dialect in which
    ``comparisons`` shows them.

    Raises:
        MemctlError: as ``Store.read``.
    """
    heard = progress or SilentProgress()
    pairs = list(comparisons(left, right))
    for side in (side for pair in pairs for side in pair):
        if isinstance(side, ConvertedStore):
            side.compared = True
    return await leaving_damaged(
        lambda: _Comparison(
            pairs, where, copied, heard, taken=taken or {}, concurrent=concurrent
        ).run()
    )


_Fingerprints = dict[MemoryKey, Fingerprint]


@dataclass
class _Comparison:
    pairs: Sequence[tuple[Store, Store]]
    """Both stores in one dialect; and in another, for memories that differ."""
    where: Selection
    copied: Mapping[MemoryKey, int] | None
    progress: Progress
    _: KW_ONLY
    taken: Mapping[MemoryKey, Fingerprint]
    concurrent: bool

    def __post_init__(self) -> None:
        self._left, self._right = left, right = self.pairs[0]
        self._others = self.pairs[1:]
        self._read = (0, 0)
        """The numbers of memories and messages that were read from both stores together."""
        self._sides = Comparability.of(left, right)
        self._report = CompareReport(noun=left.dialect.noun)

    async def run(self) -> CompareReport:
        report = self._report
        await share_names(self._left, self._right, self.where)
        await share_names(self._right, self._left, self.where)
        left, right = await self._texts()
        self._warn(self._left, left, self._right)
        self._warn(self._right, right, self._left)
        report.left_messages = self._size(self._left, left)
        report.right_messages = self._size(self._right, right)
        suspects = self._sort(left, right)
        if suspects:
            left, right = await self._values(self.where.only(suspects))
            differing = self._sort(left, right)
            only_messages = frozenset(
                key for key in differing if not list(self._beside(left[key], right[key]))
            )
            if only_messages and self._others:
                differing -= await self._alike_otherwise(only_messages)
            await self._name(differing, left, right)
        return report

    async def _alike_otherwise(self, keys: frozenset[MemoryKey]) -> frozenset[MemoryKey]:
        """Count and return the memories of ``keys`` that are equal in the other dialect."""
        other = _Comparison(
            *(self._others, self.where, self.copied, SilentProgress()),
            taken={},
            concurrent=self.concurrent,
        )
        left, right = await other._values(self.where.only(keys))
        both = keys & left.keys() & right.keys()
        alike = frozenset(key for key in both if other._alike(left[key], right[key]))
        for key in alike:
            self._count(left[key], right[key])
        return alike

    def _size(self, store: Store, found: _Fingerprints) -> int:
        """Return the number of compared messages: the store's own if they are not shown exactly."""
        if isinstance(store, ConvertedStore) and store.reduced and self.where.whole:
            return sum(store.sizes[key] for key in found)
        return sum(side.messages for side in found.values())

    def _sort(self, left: _Fingerprints, right: _Fingerprints) -> frozenset[MemoryKey]:
        """Count equal memories, and name memories of only one store; return differing memories."""
        suspects = set()
        for key in left.keys() & right.keys():
            if self._alike(left[key], right[key]):
                self._count(left[key], right[key])
            else:
                suspects.add(key)
        for key in sorted(left.keys() - right.keys()):
            if self.copied is None or self._was_given(key, self.copied):
                size = count(left[key].messages, self._report.noun)
                text = f"the memory, with {size}, is only in {self._left.label}"
                self._report.differences.append(Difference(key, "memory-missing", "", text))
                self._report.missing += 1
            else:
                self._report.grown += left[key].messages
        for key in sorted(right.keys() - left.keys()):
            size = count(right[key].messages, self._report.noun)
            text = f"the memory, with {size}, is only in {self._right.label}"
            self._report.differences.append(Difference(key, "memory-extra", "", text))
            self._report.extra += 1
        return frozenset(suspects)

    def _count(self, left: Fingerprint, right: Fingerprint) -> None:
        """Count a memory that is equal in both stores."""
        self._report.same += 1
        self._report.grown += left.messages - right.messages
        self._report.kept += self._keeps_summary(left, right)

    def _was_given(self, key: MemoryKey, copied: Mapping[MemoryKey, int]) -> bool:
        """Return whether the copy wrote the memory to the right store."""
        holds_empty = self._right.features.empty
        return key in copied and (holds_empty or copied[key] > 0)

    async def _name(
        self, differing: Iterable[MemoryKey], left: _Fingerprints, right: _Fingerprints
    ) -> None:
        """Report the differences of memories that both stores have."""
        report = self._report
        sizes: dict[MemoryKey, int] = {}
        for key in sorted(differing):
            report.different += 1
            for code, text in self._beside(left[key], right[key]):
                report.differences.append(Difference(key, code, "", text))
            if not _same_messages(left[key], right[key]):
                sizes[key] = left[key].messages + right[key].messages
        for keys in _groups(sizes):
            found = differences(self._left, self._right, self.where, keys, self._sides)
            async with aclosing(found) as named:
                report.differences += [difference async for difference in named]

    def _warn(self, store: Store, found: _Fingerprints, other: Store) -> None:
        """Warn of summaries and expiries that the other store cannot hold."""
        sides = found.values()
        for fits, what, has in (
            (other.features.summaries, "summaries", any(side.summary for side in sides)),
            (other.features.ttl, "expiries", any(side.expires is not None for side in sides)),
        ):
            if has and not fits:
                self._report.warnings.append(
                    f"the {what} of {store.label} were not compared: {other.label} cannot store "
                    "them"
                )
        if isinstance(store, ConvertedStore) and (reduced := store.reduced & found.keys()):
            self._report.warnings.append(
                f"some details of messages of {store.label} were not compared: {other.label} "
                f"cannot store them ({count(len(reduced), 'memory')} affected)"
            )

    async def _texts(self) -> tuple[_Fingerprints, _Fingerprints]:
        """Return the fingerprints of left and right store with ``Precision.TEXT``."""
        read = partial(self._fingerprints, where=self.where, form=Precision.TEXT)
        if self.taken:
            left = {key: one for key, one in self.taken.items() if self.where.has_key(key)}
            return self._comparable(left, await read(self._right))
        if not self.concurrent:
            left = await read(self._left)
            return self._comparable(left, await read(self._right))
        return self._comparable(*await run_both(read(self._left), read(self._right)))

    async def _values(self, where: Selection) -> tuple[_Fingerprints, _Fingerprints]:
        """Return the fingerprints of left and right store with ``Precision.VALUE``.

        After a copy, only as many messages of the left store are compared as the right store has.
        """
        right = await self._fingerprints(self._right, where, Precision.VALUE)
        grows = self.copied is not None
        lengths = {key: side.messages for key, side in right.items()} if grows else None
        left = await self._fingerprints(self._left, where, Precision.VALUE, lengths)
        return self._comparable(left, right)

    async def _fingerprints(
        self,
        store: Store,
        where: Selection,
        form: Precision,
        beginnings: dict[MemoryKey, int] | None = None,
    ) -> _Fingerprints:
        pages = store.read(where)
        if form is Precision.TEXT:  # the second reading is not counted again
            pages = self._counted(pages)
        return await fingerprints(
            pages, form, structs.replace(self._sides, extra=None), beginnings=beginnings
        )

    async def _counted(self, pages: AsyncGenerator[Page]) -> AsyncGenerator[Page]:
        async with aclosing(pages):
            async for page in pages:
                self._advance(page)
                yield page
                del page  # free a large page before the next read

    def _advance(self, page: Page) -> None:
        """Advance the progress: by half a page if both stores are read."""
        memories, messages = self._read
        self._read = memories + int(page.last), messages + len(page.messages)
        stores = 1 if self.taken else 2
        self.progress.advance(
            memories=self._read[0] // stores - memories // stores,
            messages=self._read[1] // stores - messages // stores,
            size=sum([len(entry.message) for entry in page.messages]),
        )

    def _comparable(
        self, left: _Fingerprints, right: _Fingerprints
    ) -> tuple[_Fingerprints, _Fingerprints]:
        """Return the fingerprints of both stores without memories that cannot be compared.

        A memory that is damaged in one store is left out.  If one store cannot hold empty memories,
        empty memories are left out.
        """
        damaged = [self._left.left_out, self._right.left_out]
        if any(one.failures for one in damaged):
            left, right = (
                {
                    key: print_
                    for key, print_ in side.items()
                    if not any(one.may_have(key) for one in damaged)
                }
                for side in (left, right)
            )
        here, there = self._left.features, self._right.features
        if not (here.empty and there.empty):
            summaries = here.summaries and there.summaries
            left = _inhabited(left, summaries=summaries)
            right = _inhabited(right, summaries=summaries)
        return left, right

    def _alike(self, left: Fingerprint, right: Fingerprint) -> bool:
        return _same_messages(left, right) and not list(self._beside(left, right))

    def _keeps_summary(self, left: Fingerprint, right: Fingerprint) -> bool:
        """Return whether, after a copy, only the right store has a summary."""
        return self.copied is not None and not left.summary and bool(right.summary)

    def _beside(self, left: Fingerprint, right: Fingerprint) -> Iterator[tuple[str, str]]:
        """Yield code and text of each difference outside messages."""
        differ = self._sides.summaries_differ(left.summary, right.summary)
        if differ and not self._keeps_summary(left, right):
            yield "summary", "the summaries differ"
        # The agent of the left side changes settings while it is at work. If the left side has no
        # settings, the right side has its own from its creation, such as ``?agent=`` of a URL.
        if self.copied is None and left.settings and left.settings != right.settings:
            yield "settings", "the settings of the session differ"
        # A copy into an existing session puts the messages at the path that the session has.
        # Each coding agent has paths of its own.
        known = self.copied is None and None not in (left.place, right.place)
        known = known and not (
            self._left.features.whole_memories and self._right.features.whole_memories
        )
        if known and left.place != right.place:
            yield "path", f"the paths in their sessions differ: {left.place} and {right.place}"
        if not self._sides.expiry_differs(left.expires, right.expires):
            return
        if left.expires is None or right.expires is None:
            store = self._right if left.expires is None else self._left
            yield "expiry", f"the memory expires only in {store.label}"
        else:
            seconds = abs(left.expires - right.expires)
            yield "expiry", f"the expiry differs by {seconds:.0f} seconds"


def _same_messages(left: Fingerprint, right: Fingerprint) -> bool:
    return right.digest in (left.digest, left.beginning)


def _inhabited(found: _Fingerprints, *, summaries: bool) -> _Fingerprints:
    """Return the fingerprints without empty memories.

    With ``summaries``, a memory with a summary is not empty.
    """
    return {
        key: side for key, side in found.items() if side.messages or (summaries and side.summary)
    }


def _groups(sizes: dict[MemoryKey, int]) -> Iterator[list[MemoryKey]]:
    """Yield groups of memories of about ``GROUP_MESSAGES`` messages."""
    group: list[MemoryKey] = []
    messages = 0
    for key, size in sizes.items():
        group.append(key)
        messages += size
        if messages >= GROUP_MESSAGES:
            yield group
            group, messages = [], 0
    if group:
        yield group
