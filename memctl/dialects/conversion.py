"""Conversion of messages from one dialect to another, exact on the way back.

One of the two dialects is *fine* and one is *coarse*.  A coarse message stands for one or several
fine messages.  For example, a reply of AgentScope 2.x stands for a call and a result of
AgentScope 1.x.  A ``Joint`` converts as far as the target dialect can express a message.

``Joiner`` and ``Splitter`` make the conversion exact.  They convert a message, convert the result
back, and compare with the original.  They note the difference as a delta in the metadata of the new
message::

    "metadata": {"memctl": {"agentscope1": "{\\"check\\": \\"...\\", \\"delta\\": [...]}"}}

The note is JSON inside a string, because stores do not take all values as JSON (``NaN``, lone
surrogates).  ``check`` is a digest of the new message.  If the digest no longer matches, the
message has changed, and the way back does not use the delta.  After an offload, ``offloaded`` is a
second digest, of the message without its large contents.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from typing import Any, ClassVar

import orjson
from msgspec import Struct, field, structs

from memctl.dialects.delta import delta, patch
from memctl.dialects.live import Sent, sent
from memctl.dialects.view import (
    COMPRESSED,
    NOTES,
    Dialect,
    Live,
    MessageView,
    TextBlock,
    Unread,
    others,
)
from memctl.json import jsonio
from memctl.model import Memory, StoredMessage

SUMMARY, NOTHING = "summary", "nothing"
_UNREAD = "[not read]"
"""The text of a message that only carries the notes of a memory."""
_MADE_OF_NONE = ""
"""The check of a note without a delta, on a message that was restored or only carries extras."""

Message = dict[str, Any]


class Joint(ABC):
    """The conversion of messages between two dialects, one fine and one coarse, without notes.

    One message of the coarse dialect stands for one or several messages of the fine dialect.  The
    methods do not change their arguments, and never fail on a JSON object.  The framework can load
    every message that they return, even if it cannot load the message that they are given.
    """

    fine: Dialect
    coarse: ClassVar[Dialect]
    free: ClassVar[bool] = False
    """True if coarse messages may have any mark (not only ``compressed``), and may share an id."""

    @abstractmethod
    def belongs(self, group: list[Message], message: Message) -> bool:
        """Return whether ``group`` and ``message`` become one message of the coarse dialect.

        All are messages of the fine dialect; ``message`` follows ``group``.
        """

    def id(self, parts: list[Message], id: str) -> str:  # noqa: ARG002
        """Return the id of the message of the coarse dialect that stands for ``parts``.

        ``parts`` are messages of the fine dialect, and ``id`` is the id of the first part.
        """
        return id

    @abstractmethod
    def join(self, parts: list[Message], id: str) -> Message:
        """Join messages of the fine dialect into a coarse message with the id ``id``."""

    def join_sent(self, parts: list[Message], id: str, sent: list[Sent]) -> Message:  # noqa: ARG002
        """Join messages as ``join``; ``sent`` is what the framework sends in their place."""
        return self.join(parts, id)

    @abstractmethod
    def split(self, whole: Message) -> list[Message]:
        """Split a message of the coarse dialect into messages of the fine dialect, at least one.

        The first of these keeps the id.
        """


class Entry(Struct):
    """A decoded message to convert, with its id and its marks in the store."""

    id: str
    value: Message
    marks: tuple[str, ...] = ()
    odd: bool = False
    """True if the message may hold a number that JSON lacks, such as NaN."""
    sent: Sent | None = None
    """The message that a model gets at this place (``live.sent``), if other messages decide it."""
    shown: Entry | None = None
    """The entry of that message."""
    is_noted: bool = False
    """True if the note of an earlier message has the message."""


class _Note(Struct):
    """The note in a converted message: data that the target cannot express."""

    check: str = ""
    count: int = 1
    """The number of fine messages; only the note of the first of them has this number."""
    delta: Any = None
    ids: list[str] | None = None
    """The ids of the fine messages in the store, if the messages do not contain these ids."""
    marks: list[list[str]] | None = None
    extra: str = ""
    """``Memory.extra``, in the first message of a memory."""
    id: str | None = None
    """The id of the coarse message in the store, if it differs from the id in the message."""
    metadata: list[Any] | None = None
    """The original ``metadata`` field as a list of one value, if it was not an object.

    The list is empty if the field was missing.
    """
    before: list[Any] = field(default_factory=list)
    """The unread original messages before the new message, each as a list: id, message, marks."""
    after: list[Any] = field(default_factory=list)
    """The unread original messages at the end of the memory, in the note of the last message."""
    stands: str = ""
    """``summary`` if the new message is the summary of the memory, ``nothing`` if it only carries
    the note; empty if it stands for a message."""
    summary: str = ""
    """A digest of the summary of the memory, if messages aside say this summary."""
    later: list[Any] = field(default_factory=list)
    """These messages, if they stand behind the first new message: each as in ``before``, after the
    number of original messages from that message on."""
    offloaded: str | None = None
    """A second check: a digest of the new message without the contents that were offloaded."""

    @classmethod
    def parse(cls, text: Any) -> _Note | None:
        """Parse the JSON text of a note; None if ``text`` is not a valid note."""
        if not isinstance(text, str):
            return None
        try:
            found = jsonio.loads(text.encode("utf-8", "surrogatepass"))
        except ValueError:
            return None
        if not isinstance(found, dict):
            return None
        note = cls(**{name: one for name, one in found.items() if name in cls.__struct_fields__})
        return note if note._is_sound() else None

    def _is_sound(self) -> bool:
        ids, marks, metadata = self.ids, self.marks, self.metadata
        return (
            _are_texts([self.check, self.extra, self.stands, self.summary])
            and isinstance(self.offloaded, str | None)
            and isinstance(self.id, str | None)
            and type(self.count) is int
            and self.count > 0
            and (metadata is None or (isinstance(metadata, list) and len(metadata) < 2))
            and _are_aside(self.before)
            and _are_aside(self.after)
            and isinstance(self.later, list)
            and all(isinstance(one, list) and type(one[0]) is int for one in self.later)
            and _are_aside([one[1:] for one in self.later])
            and (ids is None or (_are_texts(ids) and len(ids) > 0))
            and (marks is None or (isinstance(marks, list) and all(map(_are_texts, marks))))
        )

    @property
    def says_something(self) -> bool:
        said = self.extra or self.before or self.after or self.stands or self.summary
        some = self.delta, self.ids, self.marks, self.id
        return self.count > 1 or bool(said) or some != (None, None, None, None)

    @property
    def only_marks(self) -> tuple[str, ...]:
        """The marks in a note that has nothing to restore a message by; empty for other notes."""
        return tuple(self.marks[0]) if self.check == _MADE_OF_NONE and self.marks else ()

    def fits(self, digest: str) -> bool:
        """Return whether messages with this digest are unchanged but for offloaded contents."""
        return digest in (self.check, self.offloaded)

    def applied_to(self, base: Any) -> Any:
        """Return ``base`` with the delta of the note applied; None if the delta does not fit."""
        try:
            return patch(base, self.delta)
        except ValueError:
            return None

    def text(self) -> str:
        record = {"check": self.check} | {
            name: value
            for name in self.__struct_fields__
            if (value := getattr(self, name)) != getattr(_EMPTY, name)
        }
        # Sorted, so that the order of the fields in a store does not change the text.
        return json.dumps(record, separators=(",", ":"), sort_keys=True)


_EMPTY = _Note()
"""A note that says nothing: its fields have their defaults."""


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _are_aside(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(one, list)
        and len(one) == 3
        and isinstance(one[0], str)
        and isinstance(one[1], dict)
        and _are_texts(one[2])
        for one in value
    )


def _settled(dialect: Dialect, parts: list[Message]) -> list[Message]:
    """Return copies of messages without the fields that a store may change.

    ``Dialect.unsettled`` names these fields.
    """
    unsettled = dialect.unsettled
    return [others(part, unsettled) for part in parts] if unsettled else parts


def digest_of(value: Any, size: int = 8) -> str:
    """Return a digest of ``size`` bytes, the same for equal JSON values."""
    try:
        text = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        text = jsonio.canonical(jsonio.dumps(value))
    return blake2b(text, digest_size=size).hexdigest()


def _digest(text: str) -> str:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _noted(value: Message) -> list[str]:
    """Return the names of the dialects for which a message has a note."""
    metadata = value.get("metadata")
    notes = metadata.get(NOTES) if isinstance(metadata, dict) else None
    return list(notes) if isinstance(notes, dict) else []


def _has_notes(entry: StoredMessage) -> bool:
    return may_have_note(entry.message) and bool(_noted(_parse(entry).value))


def _take_note(value: Message, dialect: str) -> tuple[Message, _Note | None]:
    """Return a message without its note for a dialect, and the note.

    Without a valid note, return the message unchanged, and None.
    """
    metadata = value.get("metadata")
    if not isinstance(metadata, dict) or not isinstance(notes := metadata.get(NOTES), dict):
        return value, None
    note = _Note.parse(notes.get(dialect))
    if note is None:
        return value, None
    others = {name: text for name, text in notes.items() if name != dialect}
    kept = {name: one for name, one in metadata.items() if name != NOTES}
    if others:
        kept[NOTES] = others
    if note.metadata is None or kept:
        return {**value, "metadata": kept}, note
    plain = {name: one for name, one in value.items() if name != "metadata"}
    return plain | ({"metadata": note.metadata[0]} if note.metadata else {}), note


def _put_note(value: Message, dialect: str, note: _Note) -> None:
    metadata = value.get("metadata")
    if not isinstance(metadata, dict):
        note.metadata = [metadata] if "metadata" in value else []
        metadata = {}
    notes = metadata.get(NOTES)
    others = notes if isinstance(notes, dict) else {}
    value["metadata"] = {**metadata, NOTES: {**others, dialect: note.text()}}


def without_notes(text: bytes) -> bytes:
    """Return the JSON text of a message without memctl's notes; without any, the text itself."""
    value: Message = jsonio.loads(text) if may_have_note(text) else {}
    metadata = value.get("metadata")
    if not isinstance(metadata, dict) or NOTES not in metadata:
        return text
    kept = {name: one for name, one in metadata.items() if name != NOTES}
    return jsonio.dumps({**value, "metadata": kept})


def may_have_note(text: bytes) -> bool:
    """Return False if the JSON text of a message contains no note of memctl; True if it may."""
    return b'"memctl"' in text


def described(message: bytes) -> dict[str, int]:
    """Return the dialects for which a message has a note, each with a number of messages.

    The note describes so many messages, of which this message is the first.
    """
    if not may_have_note(message):
        return {}
    try:
        value = jsonio.loads(message)
    except (ValueError, RecursionError):  # damaged, or nested too deep
        return {}
    names = _noted(value) if isinstance(value, dict) else []
    found = {name: _take_note(value, name)[1] for name in names}
    return {name: note.count for name, note in found.items() if note is not None}


def take_extras(value: Message, names: Iterable[str]) -> tuple[Message, dict[str, str]]:
    """Remove each ``Memory.extra`` from the notes of a message for the dialects ``names``.

    Return the message without the extras, and the removed extras by dialect.
    """
    found: dict[str, str] = {}
    for name in names:
        plain, note = _take_note(value, name)
        if note is None or not note.extra:
            continue
        found[name], note.extra = note.extra, ""
        value = dict(plain)
        if note.says_something:
            _put_note(value, name, note)
    return value, found


def _put_extras(value: Message, extras: Mapping[str, str]) -> None:
    """Put each ``Memory.extra``, by dialect, into the notes of a message."""
    for name, extra in extras.items():
        note = _take_note(value, name)[1] or _Note(_MADE_OF_NONE)
        note.extra = extra
        _put_note(value, name, note)


def _parse(entry: StoredMessage) -> Entry:
    value = jsonio.loads(entry.message)
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    return Entry(entry.id, value, entry.marks, jsonio.may_have_nan(entry.message))


class Converter(ABC):
    """Converts the messages of one memory in order; a new converter is needed for each memory."""

    source: Dialect
    target: Dialect
    summary: str | None = None
    """The summary of the memory, if only ``end`` knows it; then before any new message."""

    def __init__(self) -> None:
        self._lost = 0
        self._aside: list[Entry] = []
        """The unread messages before the next message that the framework reads."""
        self._used: set[int] = set()
        """The hashes of the ids of the new messages."""
        self._extra = ""
        """The source's ``Memory.extra``, until a message carries it."""
        self._passing: dict[str, str] | None = None
        """``Memory.extra`` of further dialects, to move from the first message to the first new
        message; None before the first message."""

    def memory(self, memory: Memory, messages: Sequence[StoredMessage]) -> Memory:
        """Return ``memory`` for the target dialect; call this before ``add``.

        ``messages`` are the first messages of the memory.  If the first of them has a note, the new
        ``Memory.extra`` comes from the note.  If it has no note, ``Memory.extra`` is empty.
        """
        if not self.source.is_default(memory.extra, memory.key.user, memory.key.session):
            self._extra = memory.extra
        note = self._first_note(messages)[1]
        return replace(memory, extra=note.extra if note is not None else "")

    def head(self, messages: Sequence[StoredMessage]) -> list[StoredMessage]:
        """Return the one of ``messages`` that may carry the notes of a memory; empty without any.

        It is the first.  In a session of an agent, lines of the agent may be before it.
        """
        found = [] if self.source.notes_unread else filter(_has_notes, messages)
        return [next(iter(found), messages[0])] if messages else []

    def _first_note(self, messages: Sequence[StoredMessage]) -> tuple[Message, _Note | None]:
        """Return the value of the message with the notes of a memory, and its note."""
        for one in self.head(messages):
            return _take_note(_parse(one).value, self.target.name)
        return {}, None

    @abstractmethod
    def add(self, entries: Iterable[StoredMessage]) -> list[StoredMessage]:
        """Convert the next messages of the memory; return the new messages that are complete.

        Incomplete new messages are returned later, by ``add`` or ``end``.

        Raises:
            ValueError: a message is not a JSON object.
        """

    @abstractmethod
    def end(self) -> list[StoredMessage]:
        """Return the remaining new messages, after the last ``add``."""

    def summarize(self, text: str) -> None:
        """Replace the summary of the memory, before the first ``add``."""
        self.summary = text

    @property
    def left(self) -> bool:
        """True if no new message has got the note with the ``Memory.extra`` of the source yet."""
        return bool(self._extra)

    @property
    def lost(self) -> int:
        """The number of messages that lost data in the conversion."""
        return self._lost

    @property
    def moved(self) -> int:
        """The number of messages that got another time (``Dialect.orders_by_time``)."""
        return 0

    def digest(self, messages: Sequence[bytes], *, first: bool) -> tuple[_Note | None, str]:
        """Return the note of the first of some messages, and the digest that checks the note.

        The note has the ids of these messages, if ids come from contents.  ``first`` is True if
        they are the first messages of their memory.
        """
        values: list[Message] = [jsonio.loads(one) for one in messages]
        if first:
            values[0] = self._without_extras(values[0])
        values[0], note = _take_note(values[0], self.target.name)
        if note is not None and note.ids is not None and self.source.makes_ids:
            note.ids = [self.source.message_id(one) or "" for one in values]
        return note, digest_of(_settled(self.source, values))

    def _take_extra(self) -> str:
        extra, self._extra = self._extra, ""
        return extra

    def _without_extras(self, value: Message) -> Message:
        """Return a message without the extras of further dialects."""
        if self._passing is not None:
            return value
        others = [one for one in _noted(value) if one not in (self.source.name, self.target.name)]
        if others:  # messages before it may be those of the agent alone
            value, self._passing = take_extras(value, others)
        return value

    def _put_extras(self, value: Message) -> None:
        """Put the removed extras into a new message."""
        if self._passing:
            _put_extras(value, self._passing)

    def _take_aside(self) -> list[Any]:
        """Return the messages aside as a note keeps them: id, message and marks."""
        found = [
            [one.id, take_extras(one.value, [self.target.name])[0], list(one.marks)]
            for one in self._aside
        ]
        self._aside = []
        return found

    def _back(self, aside: list[Any]) -> list[StoredMessage]:
        """Return the messages that a note has kept aside."""
        found = []
        for id, value, marks in aside:
            self._put_extras(value)
            _put_extras(value, {self.source.name: extra} if (extra := self._take_extra()) else {})
            self._passing = {}
            self._used.add(hash(id))
            found.append(StoredMessage(id, jsonio.compact(value, odd=True), tuple(marks)))
        return found

    def _unused(self, id: str) -> str:
        """Return ``id``, with a number appended if it is in use."""
        found, number = id, 1
        while hash(found) in self._used:
            number += 1
            found = f"{id}~{number}"
        self._used.add(hash(found))
        return found


class Joiner(Converter):
    """Converts from the fine to the coarse dialect: joins messages, or restores them by notes."""

    def __init__(
        self, joint: Joint, *, all_messages: bool = False, summaries: bool = False
    ) -> None:
        """With ``all_messages``, messages that the framework does not read are converted, too.

        With ``summaries``, a message that is a summary becomes the summary of the memory, if the
        framework sends this message first.
        """
        super().__init__()
        self.source, self.target = joint.fine, joint.coarse
        self._joint = joint
        self._leaves_out = joint.fine.leaves_out
        self._all = all_messages
        self._summaries = summaries
        self._unnoted = ""
        """The digest of the new summary, until a note has it."""
        self._later: list[Any] = []
        """The messages with the new summary, as a note has them."""
        self._group: list[Entry] = []
        self._note: _Note | None = None
        self._before: list[Any] = []
        """The messages aside that stand before the group."""
        self._memory: Memory | None = None
        """The memory, if other messages decide what the framework sends of a message."""
        self._held: list[StoredMessage] = []
        """The messages so far, if ``_memory`` is set."""

    def memory(self, memory: Memory, messages: Sequence[StoredMessage]) -> Memory:
        if self.source.depends_on_later or self.source.waits(memory):
            self._memory = memory
        found = super().memory(memory, messages)
        if self.source.holds_summary or not self.target.holds_summary:
            return found
        summary = memory.summary or ""
        if not summary:
            value, note = self._first_note(messages)
            if note is not None and note.stands == SUMMARY:
                summary = "\n".join(self.source.view_of(value).texts())
        return replace(found, summary=summary)

    def add(self, entries: Iterable[StoredMessage]) -> list[StoredMessage]:
        if self._memory is not None:
            self._held += entries
            return []
        return self._add(map(_parse, entries))

    def _add(self, entries: Iterable[Entry]) -> list[StoredMessage]:
        done: list[StoredMessage] = []
        for one in entries:
            if one.is_noted:
                continue
            one.value = self._without_extras(one.value)
            value, note = _take_note(one.value, self.target.name)
            if self._is_aside(one, value):
                self._aside += [one] if self.source.notes_unread else []
                continue
            one.value = value
            if self._group and (self._aside or note is not None or not self._goes_on(one)):
                done += self._joined()
            if not self._group:
                self._note = note
                self._before = self._take_aside()
            self._group.append(one)
        return done

    def _is_aside(self, one: Entry, value: Message) -> bool:
        """Return whether a model does not get a message; ``value`` is its value without a note."""
        if self._memory is not None:
            return one.sent is None
        if not self._leaves_out or self._all:
            return False
        return bool(self.source.live([self.source.view_of(value)]).unread)

    def end(self) -> list[StoredMessage]:
        done = self._add(self._understood(self._memory)) if self._memory is not None else []
        if self._aside and not (done or self._group):
            return [self._carrier()]
        return [*done, *self._joined(self._take_aside())] if self._group else done

    def _carrier(self) -> StoredMessage:
        """Return a message for the notes of a memory of which the framework reads nothing."""
        first = self._aside[0]
        said = Sent(self.source.view_of(first.value), [TextBlock(_UNREAD)])
        whole = self._joint.join_sent([first.value], self._unused(first.id), [said])
        whole |= {"role": "system", "name": "system"}
        note = _Note(extra=self._take_extra(), before=self._take_aside(), stands=NOTHING)
        _put_note(whole, self.source.name, note)
        self._put_extras(whole)
        return StoredMessage(whole["id"], jsonio.compact(whole, odd=True))

    def _understood(self, memory: Memory) -> Iterator[Entry]:
        """Yield the held messages with what the framework sends in their places."""
        held = list(map(_parse, self._held))
        self._held = []
        made: set[int] = set()
        """The messages that notes restore."""
        exact: set[int] = set()
        views: list[MessageView] = []
        for at, one in enumerate(held):
            one.value = self._without_extras(one.value)
            value, note = _take_note(one.value, self.target.name)
            if note is not None:
                made.update(range(at, at + note.count))
            elif self.source.is_made(value):
                exact.add(at)
            views.append(self.source.view_of(value))
        read = self.source.live(views) if self._leaves_out else Live(range(len(held)), {})
        order = list(read.order)
        if self._all:
            others = read.unread.items()
            order = sorted(order + [at for at, why in others if why is not Unread.NOT_FOR_MEMORY])
        for at in sorted(made):  # notes restore messages for which the framework has no use
            if read.unread.get(at) is Unread.NOT_FOR_MEMORY:
                place = next((i for i, one in enumerate(order) if one > at), len(order))
                order.insert(place, at)
        found = sent(self.source, memory, views, Live(order, read.unread), made | exact)
        if self.target.holds_summary and not self.source.holds_summary:
            read_first = held[min(found)].value if found else {}
            first = _take_note(read_first, self.target.name)[1]
            if first is None or first.stands != SUMMARY:
                self.summary = self._take_summary(held, found)
        # A message in another place than its own stands in the place of another message.
        for place, (at, said) in zip(sorted(found), found.items(), strict=True):
            held[place].sent, held[place].shown = said, held[at]
        yield from held

    def _take_summary(self, held: Sequence[Entry], found: dict[int, Sent]) -> str:
        """Remove the summaries before all other messages; return their text.

        ``held`` are all messages.  The note of the first new message gets the summaries that stand
        behind this message.  If a later summary replaces the message, the summaries go with it.
        """
        said: list[str] = []
        taken: list[int] = []
        for at, one in list(found.items())[:-1] if self._summaries else ():
            texts = [block.text for block in one.blocks if isinstance(block, TextBlock)]
            if not self.source.is_summary(one.view) or len(texts) < len(one.blocks):
                break
            said += texts
            taken.append(at)
            del found[at]
        first = min(found, default=0)
        for at in sorted(at for at in taken if at > first):
            entry = held[at]
            entry.is_noted = True
            value = take_extras(entry.value, [self.target.name])[0]
            self._later.append([at - first, entry.id, value, list(entry.marks)])
        text = "\n\n".join(said)
        self._unnoted = _digest(text) if text else ""
        return text

    def _goes_on(self, one: Entry) -> bool:
        """Return whether a message is joined with the group before it."""
        note, place = self._note, len(self._group)
        if note is not None and note.count > 1 and note.ids is not None:
            if place < len(note.ids) and one.id == note.ids[place]:
                return True
            if place == len(note.ids):
                return False
        *group, new = [(each.shown or each).value for each in (*self._group, one)]
        return self._joint.belongs(group, new)

    def _joined(self, after: list[Any] | None = None) -> list[StoredMessage]:
        """Return the message of the group, among the messages that its note has kept aside.

        ``after`` are messages aside at the end of the memory.
        """
        group, note = self._group, self._note
        self._group, self._note = [], None
        before = self._back(note.before) if note is not None else []
        if note is not None and note.stands:
            return before
        whole = self._whole(group, note, after or [])
        return [*before, whole, *self._back(note.after)] if note is not None else [whole]

    def _whole(self, group: list[Entry], note: _Note | None, after: list[Any]) -> StoredMessage:
        parts = [one.value for one in group]
        given = [one.marks for one in group]
        shared = given[0] if self._joint.free else (COMPRESSED,)
        marks = tuple(mark for mark in shared if all(mark in some for some in given))
        new = _Note(extra=self._take_extra(), before=self._before, after=after)
        new.summary, self._unnoted = self._unnoted, ""
        new.later, self._later = self._later, []
        if set(given) != {marks}:
            new.marks = [list(some) for some in given]
        restored = self._restored(parts, note) if note is not None else None
        if restored is None and note is not None and not self.source.holds_marks:
            marks = note.only_marks or marks
        if restored is not None:
            whole = restored
            if note is not None and note.marks and not self.source.holds_marks:
                marks = tuple(note.marks[0])
            id = str(whole.get("id", group[0].id))
            if note is not None and note.id is not None:
                id = note.id if self._joint.free else self._unused(note.id)
            elif not self._joint.free:
                id = whole["id"] = self._unused(id)
        else:
            shown = [one.shown or one for one in group]
            id = self._unused(self._joint.id([one.value for one in shown], shown[0].id))
            if self._memory is None:
                whole = self._joint.join(parts, id)
            else:
                whole = self._joint.join_sent(parts, id, [one.sent for one in group if one.sent])
            back = _split(self._joint, whole)
            ids = [one.id for one in group]
            new.delta = None if back == parts else delta(back, parts)
            known = [self.source.message_id(value) for value in parts]
            new.ids = ids if ids != known else None
        if new.says_something:
            new.check = digest_of([whole]) if restored is None else _MADE_OF_NONE
            _put_note(whole, self.source.name, new)
        self._put_extras(whole)
        self._passing = {}
        odd = any(one.odd for one in group)
        return StoredMessage(id, jsonio.compact(whole, odd=odd), marks)

    def _restored(self, parts: list[Message], note: _Note) -> Message | None:
        """Return the message that was split into ``parts``, by the note of the first part.

        None if a part has changed since.
        """
        settled = _settled(self.source, parts)
        if len(parts) != note.count or not note.fits(digest_of(settled)):
            return None
        id = self.source.message_id(parts[0]) or ""
        parts = parts if note.delta is None else settled
        base = self._joint.join(parts, self._joint.id(parts, id))
        found = note.applied_to(base)
        return found if isinstance(found, dict) else None


def _split(joint: Joint, whole: Message) -> list[Message]:
    """Split a message of the coarse dialect into messages with ids."""
    parts = joint.split(whole)
    for value, name in zip(parts, _names(parts, whole), strict=True):
        joint.fine.with_id(value, name)
    return parts


def _names(parts: list[Message], whole: Message) -> list[str]:
    """Return an id for each part: its own, or a numbered id of ``whole``."""
    id = str(whole.get("id", ""))
    return [
        str(value.get("id", f"{id}-{number}" if number else id))
        for number, value in enumerate(parts)
    ]


class Times:
    """The times of the messages of one memory in a store that may order them by their times."""

    def __init__(self, dialect: Dialect, *, fills: bool) -> None:
        """``dialect`` is that of the store; ``fills`` is True to fill in missing times."""
        self._field = dialect.view.time_field if dialect.orders_by_time else ""
        self._fills = fills
        self._latest = ""
        self.moved = 0
        """The number of messages that got another time."""

    def put_in_order(self, messages: list[Message]) -> list[Message]:
        """Give the next messages the times by which the store orders them; return the messages.

        An id may be made of the time.
        """
        for one in messages if self._field else ():
            time = one.get(self._field)
            if isinstance(time, str) and time >= self._latest:
                self._latest = time
            elif self._latest and (time is not None or self._fills):
                one[self._field] = self._latest
                self.moved += 1
        return messages


class Splitter(Converter):
    """Converts from the coarse to the fine dialect: splits messages, or restores them by notes."""

    def __init__(self, joint: Joint, *, notes: bool = True, all_messages: bool = False) -> None:
        """With ``notes``, new messages carry notes with data that the fine dialect cannot express.

        Without ``notes``, such data are lost, and ``lost`` counts the messages.  With
        ``all_messages``, messages that the framework does not read are converted, too.
        """
        super().__init__()
        self.source, self.target = joint.coarse, joint.fine
        self._joint = joint
        self._notes = notes
        self._leaves_out = joint.coarse.holds_marks and not (joint.fine.holds_marks or all_messages)
        self._summary = ""
        """The summary of the memory, until a message holds it."""
        self._last: list[StoredMessage] = []
        """The new messages of the last message, if it may get messages aside."""
        self._later: list[Any] = []
        """The messages of a note that stand after further messages (``_Note.later``)."""
        self._passed = 0
        """The number of messages since that note."""
        self._times = Times(joint.fine, fills=not notes)

    def memory(self, memory: Memory, messages: Sequence[StoredMessage]) -> Memory:
        found = super().memory(memory, messages)
        if not memory.summary or self.target.holds_summary:
            return found
        self._summary = memory.summary
        return replace(found, summary=None)

    def add(self, entries: Iterable[StoredMessage]) -> list[StoredMessage]:
        done: list[StoredMessage] = []
        for entry in map(_parse, entries):
            entry.value = self._without_extras(entry.value)
            if self._leaves_out and COMPRESSED in entry.marks:
                self._aside.append(entry)
                continue
            done += self._last
            self._last = []
            if self._summary and not self._notes_summary(entry):
                done += self._said()
            self._last = self._split(entry)
            if not self._leaves_out:
                done += self._last
                self._last = []
        return done

    def end(self) -> list[StoredMessage]:
        done, self._last = self._last, []
        later, self._later = self._back([one[1:] for one in self._later]), []
        if not done and (self._summary or self._aside):
            return [*later, *self._said()]
        if self._aside and self._notes:
            value, note = _take_note(jsonio.loads(done[0].message), self.source.name)
            note = note or _Note(_MADE_OF_NONE)
            note.after = self._take_aside()
            _put_note(value, self.source.name, note)
            done[0] = done[0]._replace(message=jsonio.compact(value, odd=True))
        return [*done, *later]

    def summarize(self, text: str) -> None:
        if self.target.holds_summary:
            self.summary = text
        else:
            self._summary = text

    @property
    def moved(self) -> int:
        return self._times.moved

    def _notes_summary(self, entry: Entry) -> bool:
        """Return whether messages in the note of the first message have the summary."""
        note = _take_note(entry.value, self.target.name)[1]
        if note is not None and note.summary == _digest(self._summary):
            self._summary = ""
        return not self._summary

    def _said(self) -> list[StoredMessage]:
        """Return the summary as a message, with the messages aside before it.

        Without a summary, the message only carries the messages aside.
        """
        text, self._summary = self._summary, ""
        stands = SUMMARY if text else NOTHING
        value = jsonio.loads(self.source.summary_message(text or _UNREAD))
        value |= {"id": self._unused(stands)} | (
            {} if text else {"role": "system", "name": "system"}
        )
        [part] = self._times.put_in_order(_split(self._joint, value))
        before = self._take_aside()
        if self._notes:
            note = _Note(extra=self._take_extra(), before=before, stands=stands)
            _put_note(part, self.source.name, note)
            self._put_extras(part)
        self._lost += bool(before) and not self._notes
        self._passing = {}
        id = self.target.message_id(part) or value["id"]
        return [StoredMessage(id, jsonio.compact(part))]

    def _split(self, entry: Entry) -> list[StoredMessage]:
        """Return the new messages of a message, among those that its note has kept aside."""
        whole, note = _take_note(entry.value, self.target.name)
        if note is None:
            return self._woven(self._parts(entry, whole, None))
        before = self._woven(self._back(note.before))
        parts = [] if note.stands else self._parts(entry, whole, note)
        if note.later:
            self._later, self._passed = note.later, 0
        return [*before, *self._woven([*parts, *self._back(note.after)])]

    def _woven(self, messages: list[StoredMessage]) -> list[StoredMessage]:
        """Return messages, with those of ``_later`` at their places."""
        if not self._later:
            return messages
        found: list[StoredMessage] = []
        for one in messages:
            while self._later and self._later[0][0] <= self._passed:
                found += self._back([self._later.pop(0)[1:]])
                self._passed += 1
            found.append(one)
            self._passed += 1
        return found

    def _parts(self, entry: Entry, whole: Message, note: _Note | None) -> list[StoredMessage]:
        parts = _split(self._joint, whole)
        marked = bool(entry.marks) and not self.target.holds_marks
        restored = self._restored(whole, parts, note) if note is not None else None
        if note is not None and restored is not None:
            parts = self._times.put_in_order(restored)
            ids = note.ids or [self.target.message_id(value) or entry.id for value in parts]
            self._used.update(map(hash, ids))
            new = _Note(extra=self._take_extra(), marks=[list(entry.marks)] if marked else None)
            new.before = self._take_aside()
            self._lost += (marked or bool(new.extra or new.before)) and not self._notes
        else:
            parts = self._times.put_in_order(parts)
            ids = [
                self.target.with_id(value, self._unused(name))
                for value, name in zip(parts, _names(parts, whole), strict=True)
            ]
            new = _Note(count=len(parts), extra=self._take_extra(), before=self._take_aside())
            one = self._joint.id(parts, ids[0])
            back = self._joint.join(parts, one)
            if not self._notes:
                plain = {**whole, "id": one} if _repeats(str(whole.get("id")), one) else whole
                self._lost += (
                    back != plain or marked or bool(self._passing or new.extra or new.before)
                )
            else:
                if back != whole:
                    new.delta = delta(self._joint.join(_settled(self.target, parts), one), whole)
                new.ids = ids if len(ids) > 1 else None
                views = list(map(self.target.view_of, parts)) if self.target.leaves_out else []
                # A note shows that a message which the target does not send, such as an empty one
                # in ADK, is one of the source.
                if entry.id != whole.get("id") or self.target.live(views).unread:
                    new.id = entry.id
                if marked:
                    new.marks = [list(entry.marks)]
        if self._notes and new.says_something:
            new.check = (
                digest_of(_settled(self.target, parts)) if restored is None else _MADE_OF_NONE
            )
            new.count = len(parts)
            if len(parts) > 1:
                new.ids = ids
            _put_note(parts[0], self.source.name, new)
        if self._notes:
            self._put_extras(parts[0])
        self._passing = {}
        marks = _marks_of_parts(note, entry.marks, len(parts))
        if not self.target.holds_marks:
            marks = [()] * len(parts)
        return [
            StoredMessage(id, jsonio.compact(value, odd=entry.odd), some)
            for id, value, some in zip(ids, parts, marks, strict=True)
        ]

    def _restored(self, whole: Message, parts: list[Message], note: _Note) -> list[Message] | None:
        """Return the messages that were joined into ``whole``, by its note.

        ``parts`` is the result of a split without the note.  None if ``whole`` has changed since.
        """
        if not note.fits(digest_of([whole])):
            return None
        found = note.applied_to(parts)
        if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
            return None
        return found if found and (note.ids is None or len(note.ids) == len(found)) else None


def _repeats(id: str, of: str) -> bool:
    """Return whether ``Converter._unused`` may have made ``id`` of ``of``, which was in use."""
    before, _, number = id.rpartition("~")
    return before == of and number.isdigit()


def _marks_of_parts(
    note: _Note | None, marks: tuple[str, ...], count: int
) -> list[tuple[str, ...]]:
    """Return the marks for each of the ``count`` messages into which a message is split.

    ``marks`` are the marks of the message to split, and are those of each new message unless
    ``note`` has marks for the new messages.  Then ``compressed`` is added to those, or removed from
    them, if it was added to the message to split, or removed from it.
    """
    if note is None or note.marks is None or len(note.marks) != count:
        return [marks] * count
    had = [tuple(some) for some in note.marks]
    was, now = all(COMPRESSED in some for some in had), COMPRESSED in marks
    if now and not was:
        return [some if COMPRESSED in some else (*some, COMPRESSED) for some in had]
    if was and not now:
        return [tuple(mark for mark in some if mark != COMPRESSED) for some in had]
    return had


class Conversion(Struct, frozen=True):
    """The conversion from one dialect to another, in one or several steps.

    ::

        converter = Conversion((partial(Joiner, VERSIONS),)).converter()
        memory = converter.memory(page.memory, page.messages)
        messages = converter.add(page.messages) + converter.end()
    """

    steps: tuple[partial[Joiner] | partial[Splitter], ...]

    @property
    def exact(self) -> bool:
        """True if new messages carry notes, so that the conversion back loses nothing."""
        return all(step.keywords.get("notes", True) for step in self.steps)

    @property
    def refines(self) -> bool:
        """True if each step splits messages: one message may become several, never the reverse."""
        return bool(self.steps) and all(step.func is Splitter for step in self.steps)

    def bound(self, message: bytes) -> int:
        """Return how many consecutive messages, of which this is the first, must not change.

        They have a note with data that only a dialect on the way can hold, and that are lost if
        one of the messages changes before the conversion.
        """
        if not may_have_note(message):
            return 0
        value: Message = jsonio.loads(message)
        found = 0
        for number, step in enumerate([made() for made in self.steps]):
            plain, note = _take_note(value, step.target.name)
            if note is None or not structs.replace(note, extra="", marks=None).says_something:
                continue
            checks = digest_of([plain]), digest_of(_settled(step.source, [plain]))
            if number == 0 and note.count == 1 and not any(map(note.fits, checks)):
                continue  # the message has changed, so the note restores nothing any more
            found = max(found, note.count)
        return found

    def note_of_offloaded(
        self, old: Sequence[bytes], new: Sequence[bytes], *, first: bool
    ) -> str | None:
        """Return the note for messages ``new`` whose contents were taken out of ``old``.

        The first message has the note, which describes exactly these messages.  ``first`` is True
        if they are the first messages of their memory.  None if the note does not hold for ``old``,
        since the messages have changed; or if the conversion has not exactly one step.
        """
        was = self._digest(old, first=first)[1]
        note, now = self._digest(new, first=first)
        return structs.replace(note, offloaded=now).text() if note and note.fits(was) else None

    def note_of_rewritten(
        self, old: Sequence[bytes], new: Sequence[bytes], *, first: bool
    ) -> str | None:
        """Return the note for messages ``new``, of which nothing says any more what they were.

        Arguments and None are as for ``note_of_offloaded``.
        """
        was = self._digest(old, first=first)[1]
        note, now = self._digest(new, first=first)
        fits = note is not None and note.fits(was)
        return structs.replace(note, check=now, offloaded=None).text() if note and fits else None

    def note_of_restored(self, messages: Sequence[bytes], *, first: bool) -> str | None:
        """Return the note for messages whose contents were all put back.

        Arguments are as for ``note_of_offloaded``.  None if the note stays as it is.
        """
        note, now = self._digest(messages, first=first)
        is_restored = note is not None and note.offloaded is not None and note.check == now
        return structs.replace(note, offloaded=None).text() if note and is_restored else None

    def _digest(self, messages: Sequence[bytes], *, first: bool) -> tuple[_Note | None, str]:
        """Return the note of the first of some messages, and the digest that checks the note."""
        if len(self.steps) != 1:
            return None, ""
        return self.steps[0]().digest(messages, first=first)

    def converter(self) -> Converter:
        """Return a new converter, which converts one memory."""
        made: list[Converter] = [step() for step in self.steps]
        return made[0] if len(made) == 1 else _Chain(made, [step() for step in self.steps])


class _Chain(Converter):
    """A converter in several steps; each step converts the messages of the previous step."""

    def __init__(self, steps: list[Converter], probes: list[Converter]) -> None:
        """``steps`` and ``probes`` have a converter for each step; only ``memory`` uses probes."""
        super().__init__()
        self.source, self.target = steps[0].source, steps[-1].target
        self._steps = steps
        self._probes = probes

    def memory(self, memory: Memory, messages: Sequence[StoredMessage]) -> Memory:
        for step, probe in zip(self._steps, self._probes, strict=True):
            memory = step.memory(memory, messages)
            first = step.head(messages)  # only this message carries extras
            messages = [*probe.add(first), *probe.end()] or first
        return memory

    def add(self, entries: Iterable[StoredMessage]) -> list[StoredMessage]:
        found = list(entries)
        for step in self._steps:
            found = step.add(found)
        return found

    def end(self) -> list[StoredMessage]:
        found: list[StoredMessage] = []
        for step in self._steps:
            if self.summary is not None:
                step.summarize(self.summary)
            found = [*step.add(found), *step.end()]
            self.summary = step.summary
        return found

    @property
    def left(self) -> bool:
        return any(step.left for step in self._steps)

    @property
    def lost(self) -> int:
        return max(step.lost for step in self._steps)

    @property
    def moved(self) -> int:
        return sum(step.moved for step in self._steps)
