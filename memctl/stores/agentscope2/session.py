"""Conversion between an AgentScope 2.x session and a memory, in both directions.  No I/O.

A session has a record and a message log.  The state in the record has the context: the messages
that the model sees.  People see the log.  The memory of a session has the messages of the log in
order.  Messages outside the context have the mark ``compressed``, and the state's summary is the
summary of the memory.  The memory also has messages that are only in the context (``Unlogged``):
the model sees these messages, so exports and deletions must include them.  All other data of a
session is the extra (``Memory.extra``), a JSON object::

    {"record": {"agent_id": "default", ...}, "payload": {"origin": ..., "config": ...},
     "state": {"session_id": ..., "reply_context": ...}, "context": [...], "unlogged": [...],
     "summary": [...]}

``context`` exists unless the context is exactly the unmarked messages in order.  It is a list of
ids and messages: an id stands for a message of the memory; a message is listed in full if the log
has it with another value, if it has no id, or if it repeats an id.  ``unlogged`` has the ids of
messages that are not in the log, if there are any.  ``summary`` exists if the stored summary is
not a text.  Times in ``record`` are in UTC.

Source: ``app/storage/_model/_session.py``, ``app/storage/_model/_agent.py`` and
``state/_state.py`` of agentscope 2.0.11.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from datetime import UTC, datetime
from functools import cached_property
from itertools import repeat
from typing import Any, NamedTuple

from msgspec import Struct, field

from memctl.dialects.agentscope2 import (
    DEFAULT_AGENT,
    VARIANT,
    default_payload,
    default_state,
)
from memctl.dialects.view import COMPRESSED
from memctl.errors import UsageError
from memctl.json import jsonio
from memctl.json.scan import Walk
from memctl.location import Location
from memctl.model import Change, Finding, MemoryKey, StoredMessage
from memctl.storekit.edits import is_same_text

MARKS = frozenset({COMPRESSED})
"""The only valid marks for messages of a session."""
COLUMNS = ("agent_id", "source", "source_schedule_id", "team_id", "created_at", "updated_at")
"""The fields of ``record`` in an extra."""

UNLOGGED = '{"unlogged": true}'
"""The shape of a message that must stay out of the log."""
LOGGED_AFTER = "logged_after"
"""The key of a shape for the id of the preceding message in the log; None for no message."""

Object = dict[str, Any]


class InContext(NamedTuple):
    """A message of a context, the messages that the model sees."""

    id: str | None
    """The id of the message; None without an id."""
    text: bytes
    """The JSON of the message in UTF-8; a parsed value would take several times the memory."""

    @classmethod
    def of(cls, message: Object) -> InContext:
        """Make a context message from its JSON object."""
        id = message.get("id")
        return cls(id if isinstance(id, str) else None, jsonio.dumps(message))

    @property
    def value(self) -> Object:
        """The message as a JSON value."""
        found: Object = jsonio.loads(self.text)
        return found


Around = tuple[bytes, bytes]
"""The text before and after a context."""
Entry = str | InContext
"""An entry of a context: the id of a message of the memory, or a message in full."""


def agent_of(location: Location) -> str:
    """Return the id of the agent for new sessions: the option ``?agent=``, or the default agent.

    Raises:
        UsageError: ``?agent=`` is empty.
    """
    agent = location.options.get("agent", DEFAULT_AGENT)
    if not agent:
        raise UsageError(f"{location.label} names no agent", "such as ?agent=default")
    return agent


class NotASession(ValueError):
    """Stored data or a ``Memory.extra`` does not describe a session of AgentScope 2.x."""


class Session(Struct):
    """A session of AgentScope 2.x without its message log.

    ``payload`` has no state.  ``state`` has neither context nor summary.
    """

    record: Object = field(default_factory=dict)
    """The values of ``COLUMNS``."""
    payload: Object = field(default_factory=dict)
    state: Object = field(default_factory=dict)
    context: list[InContext] = field(default_factory=list)
    """The messages of the context, as stored."""
    summary: Any = ""
    """A text, or a list of blocks."""
    unlogged: frozenset[str] = frozenset()
    """The ids of messages that must stay out of the log; for a session from a ``Memory.extra``."""
    around: Around | None = None
    """The stored payload around its context; None after another change of the payload."""

    @classmethod
    def of(
        cls, record: Object, payload: Any, context: list[InContext], around: Around | None = None
    ) -> Session:
        """Make a session from its record, its payload, and the messages of its context.

        The context inside of ``payload`` must be empty, as ``without_context`` returns it.

        Raises:
            NotASession: the payload is not the payload of a session.
        """
        if not isinstance(payload, dict):
            raise NotASession("its payload is not a JSON object")
        state = payload.get("state", {})
        if not isinstance(state, dict):
            raise NotASession("its state is not a JSON object")
        if state.get("context", []) != []:
            raise NotASession("its context is not a list of messages")
        others = {name: value for name, value in payload.items() if name != "state"}
        kept = {name: value for name, value in state.items() if name not in ("context", "summary")}
        return cls(record, others, kept, context, state.get("summary", ""), around=around)

    @property
    def summary_text(self) -> str:
        """The summary as a text; the texts of a list of blocks are joined by line breaks."""
        return _text_of(self.summary)

    def ids(self) -> set[str]:
        """Return the ids of the messages in the context."""
        return {one.id for one in self.context if one.id is not None}

    def extra(self, comparison: Comparison) -> str:
        """Return the ``Memory.extra`` of the session, as JSON text.

        ``comparison`` is the comparison of the session's context with its message log, after all
        messages of the log were added.
        """
        value: Object = {"record": self.record, "payload": self.payload, "state": self.state}
        context = comparison.differing()
        if context is not None:
            value["context"] = [one if isinstance(one, str) else one.value for one in context]
        if comparison.unlogged.messages:
            value["unlogged"] = list(comparison.unlogged.messages)
        if not isinstance(self.summary, str):
            value["summary"] = self.summary
        return json.dumps(value, separators=(",", ":"))

    def text(self, context: Iterable[bytes]) -> bytes:
        """Return the payload with the state and the context ``context``, as JSON.

        ``context`` has the messages as JSON texts, and is used instead of ``self.context``.
        """
        if (spliced := self.spliced(context)) is not None:
            return spliced
        mark = "[]"
        before, _, after = jsonio.dumps(self._state(mark)).rpartition(b'"[]"')
        inside = jsonio.dumps(self.payload).removesuffix(b"}")
        start = b"," if self.payload else b""
        return with_context(inside + start + b'"state":' + before, context, after + b"}")

    def spliced(self, context: Iterable[bytes]) -> bytes | None:
        """Return the stored text with the context ``context`` and no other change.

        None if the session is not stored, or if more than its context has changed.
        """
        if self.around is None:
            return None
        before, after = self.around
        return with_context(before, context, after, b", " if before.endswith(b" ") else b",")

    def _state(self, context: Any) -> Object:
        # The context must be last: ``text`` searches its placeholder from the end.
        return {**self.state, "summary": self.summary, "context": context}


class Unlogged:
    """The messages of a session's context that its message log lacks, and their places.

    In the memory, an unlogged message precedes the next logged message of the context.  Without
    such a message, the unlogged message is at the end of the memory.
    """

    def __init__(self, context: Sequence[InContext], logged: Set[str]) -> None:
        """Find the messages of ``context`` whose ids are not in ``logged``.

        ``logged`` must have all ids that are both in the context and in the message log.
        """
        self.messages: dict[str, bytes] = {}
        """The JSON of the messages by id; for a repeated id, the first message."""
        self._before: dict[str | None, list[str]] = {}
        waiting: list[str] = []
        for id, text in context:
            if id is None or id in self.messages:
                continue
            if id not in logged:
                self.messages[id] = text
                waiting.append(id)
            elif id not in self._before:
                self._before[id] = waiting
                waiting = []
        self._before[None] = waiting

    def before(self, id: str | None) -> list[str]:
        """Return the ids of the unlogged messages directly before the logged message ``id``.

        If ``id`` is None, returns the ids of the unlogged messages at the end of the memory.
        """
        return self._before.get(id, [])


class Comparison:
    """A comparison of a session's context with its message log.

    The messages of the log are added in order::

        comparison = Comparison(session.context)
        for id, text in log:
            comparison.add(id, text)
        extra = session.extra(comparison)

    A message of the log that the context lacks need not be added.
    """

    def __init__(self, context: Sequence[InContext]) -> None:
        self._context = context
        self._places: dict[str, list[int]] = {}
        self._after: dict[str, str | None] = {}
        last: str | None = None
        for place, (id, _) in enumerate(context):
            if id is not None:
                self._places.setdefault(id, []).append(place)
                self._after.setdefault(id, last)
                last = id
        self._entries: list[Entry] = list(context)
        self._passed: list[str] = []
        """The ids of added messages that are in the context."""
        self._variants: dict[str, InContext] = {}
        """The context's versions of messages that differ from the log."""

    def marks(self, id: str) -> tuple[str, ...]:
        """Return the marks of a logged message: ``compressed`` if the context lacks it."""
        return () if id in self._places else (COMPRESSED,)

    def add(self, id: str, text: bytes) -> None:
        """Add the next message of the log; ``text`` is its JSON."""
        for place in self._places.get(id, ()):
            message = self._context[place]
            if is_same_text(message.text, text):
                self._entries[place] = id
            else:
                self._variants[id] = message
        if id in self._places:
            self._passed.append(id)

    # After all messages were added

    @cached_property
    def unlogged(self) -> Unlogged:
        """The messages of the context that the message log lacks."""
        return Unlogged(self._context, set(self._passed))

    def entries(self) -> list[Entry]:
        """Return the context as entries.

        An entry is the id of a message of the memory, or a message in full if the memory lacks its
        text.
        """
        for id in self.unlogged.messages:
            self._entries[self._places[id][0]] = id
        return self._entries

    def differing(self) -> list[Entry] | None:
        """Return the context as entries; None if it is exactly the unmarked messages in order."""
        before, entries = self.unlogged.before, self.entries()
        order = [one for id in self._passed for one in (*before(id), id)]
        return None if entries == order + before(None) else entries

    def shape(self, id: str, logged_after: str | None = None, **more: Any) -> str:
        """Return the shape of the message ``id``, a JSON object with these members:

        - ``after``: the id of the preceding message in the context;
        - ``context``: the message as the context has it, if the log has another value;
        - ``unlogged``: true if the log lacks the message;
        - ``logged_after``: the id of the preceding message in the log, if the log lacks any message
          of the context, because the preceding message in the memory may be unlogged;
        - the members in ``more``.
        """
        if self.unlogged.messages and id not in self.unlogged.messages:
            more[LOGGED_AFTER] = logged_after
        if id in self._after:
            more["after"] = self._after[id]
        if id in self._variants:
            more[VARIANT] = self._variants[id].value
        if id in self.unlogged.messages:
            more["unlogged"] = True
        return json.dumps(more)


def messages_of(
    comparison: Comparison, log: Sequence[tuple[str, bytes]], about: Iterable[Object] = repeat({})
) -> list[StoredMessage]:
    """Return the messages of a session: the log, and the unlogged messages of the context.

    ``log`` has the id and the JSON text of each logged message; they are added to ``comparison``,
    which must be new.  ``about`` has further members for the shape of each logged message.  A
    message gets an empty shape if its marks describe the context fully and ``about`` has no members
    for it.
    """
    for id, text in log:
        comparison.add(id, text)
    unlogged = comparison.unlogged
    differs = comparison.differing() is not None
    found: list[StoredMessage] = []

    def alone(before: str | None) -> Iterator[StoredMessage]:
        for id in unlogged.before(before):
            yield StoredMessage(id, unlogged.messages[id], shape=comparison.shape(id))

    last: str | None = None
    for (id, text), more in zip(log, about, strict=False):
        found += alone(id)
        marks = comparison.marks(id)
        has_shape = more or unlogged.messages or (differs and not marks)
        shape = comparison.shape(id, last, **more) if has_shape else ""
        found.append(StoredMessage(id, text, marks, shape=shape))
        last = id
    return [*found, *alone(None)]


def context_texts(
    entries: Iterable[Entry], before: Sequence[StoredMessage], after: Sequence[StoredMessage]
) -> list[bytes]:
    """Return the new context of a session whose messages changed, as JSON texts.

    ``entries`` is the old context.  ``before`` and ``after`` are all messages of the memory before
    and after the change.  The shape of a new or changed message gives its place and its text in the
    context.
    """
    there = {one.id: one for one in before}
    texts = {one.id: one.message for one in after}
    shapes = {
        one.id: parse_shape(one.shape)
        for one in after
        if one.shape and not one.marks and one != there.get(one.id)
    }
    log = [(one.id, COMPRESSED not in one.marks) for one in after]
    log += [(id, False) for id in there if id not in texts]
    merged = rebuild(entries, log, shapes)
    found = (texts.get(one) if isinstance(one, str) else one.text for one in merged)
    return [text for text in found if text is not None]


def parse_shape(shape: str) -> Object:
    """Parse a shape that is the text of a JSON object; any other text gives an empty object."""
    try:
        found = jsonio.loads(shape.encode("utf-8", "surrogatepass")) if shape else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def is_unlogged(message: StoredMessage) -> bool:
    """Return whether the shape of a message says that the message log lacks the message."""
    if message.marks or "unlogged" not in message.shape:
        return False
    return parse_shape(message.shape).get("unlogged") is True


def in_log_order(changes: list[Change], ids: Sequence[str]) -> list[Change]:
    """Adapt the changes of an edit to the message log, and return them in its order.

    ``ids`` are the ids of the memory before the edit.  ``Change.after`` may be the id of an
    unlogged message, which is not in the log.  Therefore ``Change.after`` of an inserted message is
    replaced by the preceding message in the log, if the shape of the inserted message has it.
    """
    if not any(change.old is None and LOGGED_AFTER in change.shape for change in changes):
        return changes
    at = {id: place for place, id in enumerate(ids)}
    anchors: dict[str, str | None] = {}
    """The recorded preceding messages, by the ids of inserted messages."""

    def placed(change: Change) -> Change:
        if change.old is not None:
            return change
        before = parse_shape(change.shape).get(LOGGED_AFTER, False)
        if isinstance(before, str):
            before = anchors.get(before, before)
        if before is not None and (not isinstance(before, str) or before not in at):
            return change
        anchors[change.id] = before
        return change._replace(after=before)

    def order(change: Change) -> tuple[int, bool]:
        if change.old is not None:
            return at.get(change.id, len(ids)), False
        return -1 if change.after is None else at.get(change.after, len(ids)), True

    return sorted(map(placed, changes), key=order)


def rebuild(
    entries: Iterable[Entry], log: Iterable[tuple[str, bool]], shapes: Mapping[str, Object]
) -> list[Entry]:
    """Return the entries of a context after an edit.

    ``entries`` is the context before the edit.  ``log`` has the id of each message after the edit,
    and whether the message belongs in the context.  ``shapes`` are the parsed shapes of restored
    messages, by id; a shape gives the place of the message in the context, and its text there if
    this differs.
    """
    back: dict[str | None, list[Entry]] = {}
    entries = list(entries)
    there = set(map(_id, entries))
    variants = {}
    for id, shape in shapes.items():
        variant = shape.get(VARIANT)
        if isinstance(variant, dict) and variant.get("id") == id:
            variants[id] = InContext.of(variant)
        after = shape.get("after", there)
        if id not in there and (after is None or isinstance(after, str)):
            back.setdefault(after, []).append(id)
    found: list[Entry] = []
    for entry in (None, *entries):
        if entry is not None:
            found.append(entry)
        waiting = back.pop(None if entry is None else _id(entry), [])
        while waiting:
            found.append(waiting.pop())
            waiting += back.pop(_id(found[-1]), [])
    merged = merge(found, log)
    return [variants.get(one, one) if isinstance(one, str) else one for one in merged]


def merge(entries: Sequence[Entry], log: Iterable[tuple[str, bool]]) -> list[Entry]:
    """Return the entries of a context, adapted to the messages of the log.

    ``log`` has the id of each message in order, and whether the message belongs in the context.  If
    not, its entries are removed.  A message that is new in the context follows the preceding
    message in ``log`` that is in the context.  Entries of messages that ``log`` does not name stay.
    """
    there = {_id(entry) for entry in entries} - {None}
    gone: set[str] = set()
    added: dict[str | None, list[str]] = {}
    last: str | None = None
    for name, in_context in log:
        if not in_context:
            gone.add(name)
        elif name in there:
            last = name
        else:
            added.setdefault(last, []).append(name)
    merged: list[Entry] = list(added.pop(None, ()))
    for entry in entries:
        id = _id(entry)
        if id is None or id not in gone:
            merged.append(entry)
        if id is not None:
            merged += added.pop(id, ())
    return merged


def parse_extra(extra: str) -> tuple[Session, list[Entry] | None]:
    """Parse a ``Memory.extra``; return a session with an empty context, and its context's entries.

    The entries are None if the extra has none: then the context is exactly the unmarked messages.

    Raises:
        NotASession: the text is not the extra of an AgentScope 2.x session.
    """
    try:
        found = jsonio.loads(extra.encode("utf-8", "surrogatepass"))
    except ValueError as error:
        raise NotASession(f"its extra is not JSON: {error}") from error
    match found:
        case {"record": dict(record), "payload": dict(payload), "state": dict(state)}:
            context = found.get("context")
        case _:
            raise NotASession("its extra is not that of an AgentScope 2.x session")
    entries = context if isinstance(context, list) else []
    if context is not None and not (
        isinstance(context, list) and all(isinstance(one, str | dict) for one in entries)
    ):
        raise NotASession("the context in its extra is not a list of ids and messages")
    unlogged = found.get("unlogged", [])
    if not isinstance(unlogged, list) or not all(isinstance(one, str) for one in unlogged):
        raise NotASession("the unlogged messages in its extra are not a list of ids")
    summary = found.get("summary", "")
    session = Session(record, payload, state, summary=summary, unlogged=frozenset(unlogged))
    if context is None:
        return session, None
    return session, [one if isinstance(one, str) else InContext.of(one) for one in entries]


def new_session(name: str, agent: str, now: datetime) -> Session:
    """Return a new session with the id ``name``, as AgentScope would create it.

    ``now`` has a time zone.  The state lacks the fields that AgentScope adds when it loads a state.
    """
    moment = now.astimezone(UTC).isoformat()
    record = dict.fromkeys(COLUMNS) | {
        "agent_id": agent,
        "source": "user",
        "created_at": moment,
        "updated_at": moment,
    }
    return Session(record, default_payload(name, agent), default_state(name))


def agent_record(user: str, agent: str, now: datetime) -> Object:
    """Return a record for the agent with the id ``agent``, as AgentScope would create it.

    Times are in UTC.  The record lacks the settings that AgentScope adds when it loads a record.
    """
    moment = now.astimezone(UTC).isoformat()
    return {
        "id": agent,
        "created_at": moment,
        "updated_at": moment,
        "user_id": user,
        "source": "user",
        "data": {"id": agent, "name": agent},
    }


def context_findings(
    key: MemoryKey, context: Sequence[InContext], log: Set[str]
) -> Iterator[Finding]:
    """Yield findings for unlogged messages in a context, and for tool results without a tool call.

    ``log`` has the ids of the messages in the message log.
    """
    unlogged = [one.id for one in context if one.id not in log]
    if unlogged:
        names = tuple(id or "" for id in unlogged[:3])
        yield Finding("context-not-in-log", key, len(unlogged), names)
    calls: set[Any] = set()
    orphans: list[str] = []
    for message in context:
        content = message.value.get("content")
        for block in content if isinstance(content, list) else ():
            match block:
                case {"type": "tool_call", "id": str(id)}:
                    calls.add(id)
                case {"type": "tool_result", "id": str(id)} if id not in calls:
                    orphans.append(message.id or "")
    if orphans:
        yield Finding("context-result-without-call", key, len(orphans), tuple(orphans[:3]))


def with_summary(session: Session, summary: str | None, before: str = "") -> None:
    """Replace the summary of a session by ``summary``, unless this is None or the same text.

    ``before`` is ``Edit.before``, which may hold a former summary as a list of blocks.  If the text
    of these blocks is ``summary``, the session gets the blocks instead of the text.
    """
    if summary is not None and summary != session.summary_text:
        blocks = parse_shape(before).get("summary")
        session.summary = blocks if blocks and _text_of(blocks) == summary else summary
        session.around = None


def lost_summary(session: Session, summary: str | None) -> Object:
    """Return ``{"summary": blocks}`` if ``summary`` replaces a summary that is a list of blocks.

    Returns an empty object if nothing is replaced, or if the replaced summary is a text.
    """
    if summary in (None, session.summary_text) or isinstance(session.summary, str):
        return {}
    return {"summary": session.summary}


def _text_of(summary: Any) -> str:
    if isinstance(summary, str):
        return summary
    if not isinstance(summary, list):
        return ""
    texts = [block.get("text") for block in summary if isinstance(block, dict)]
    return "\n".join(text for text in texts if isinstance(text, str))


def _id(entry: Entry) -> str | None:
    return entry if isinstance(entry, str) else entry.id


def with_context(
    before: bytes, context: Iterable[bytes], after: bytes, separator: bytes = b","
) -> bytes:
    """Join ``before``, a JSON array of the messages ``context``, and ``after``."""
    texts = list(context) or [b""]
    texts[0] = before + b"[" + texts[0]
    texts[-1] += b"]" + after
    return separator.join(texts)


def without_context(text: bytes) -> tuple[Any, list[InContext], Around | None]:
    """Parse the payload of a session; return it with an empty context, and the context's messages.

    A context that is not a list of objects stays in the payload; then the list of messages is
    empty.  The last value is the text around the context, None if a key is repeated.

    Raises:
        ValueError: the text is not JSON.
    """
    text = jsonio.utf8(text)
    try:
        found = _cut_out(text)
        messages = [InContext(jsonio.field(one, "id"), one) for one in found[1:-1]]
        around = found[0], found[-1]
        return jsonio.loads(b"[]".join(around)), messages, around
    except ValueError:  # not JSON, not a session, or a repeated key
        value = jsonio.loads(text)
    match value:
        case {"state": {"context": [*listed]}} if all(isinstance(one, dict) for one in listed):
            messages = [InContext.of(one) for one in listed]
            return {**value, "state": {**value["state"], "context": []}}, messages, None
    return value, [], None


def _cut_out(text: bytes) -> list[bytes]:
    """Split a payload into the text before the context, each message, and the text after.

    Raises:
        ValueError: the text is not the payload of a session, or repeats a key.
    """
    walk = Walk(text)
    parts: list[bytes] = []
    names: list[str] = []
    end = 0
    for name in walk.members():
        if name != "state":
            walk.skip()
            continue
        names.append(name)
        for inner in walk.members():
            if inner != "context":
                walk.skip()
                continue
            names.append(inner)
            parts.append(text[: walk.start()])
            parts += [walk.skip() for _ in walk.items()]
            end = walk.at
    if names != ["state", "context"]:
        raise ValueError("not one state with one context")
    return [*parts, text[end:]]
