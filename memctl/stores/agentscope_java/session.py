"""Conversion between what a session of AgentScope Java keeps and a memory.  No I/O.

A session is named by user and session, and keeps values by key.  The key ``agent_state`` has the
state of the agent; its ``context`` are the messages that the model sees.  A session of version 1
has the list ``memory_messages`` instead.  The framework reads this list only without a state.

Sources in agentscope-java of 22 August 2026: ``state/AgentState.java``, ``LegacyStateLoader.java``
and ``ReActAgent.java`` of agentscope-core.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime
from hashlib import blake2b
from typing import Any, NamedTuple

from memctl.dialects.agentscope_java import AGENTSCOPE_JAVA
from memctl.dialects.view import SUMMARY, others
from memctl.errors import BadData, Failure, UsageError
from memctl.json import jsonio
from memctl.json.located import with_names
from memctl.layouts import foreign
from memctl.location import Location, visible
from memctl.model import Memory, MemoryKey, StoredMessage
from memctl.store import Features, Store
from memctl.storekit.edits import Snapshot
from memctl.storekit.simple import Rejected, part_refusal

STATE, LIST = "agent_state", "memory_messages"
_GROUPS = "toolkit_activeGroups"
_ANONYMOUS = "__anon__"
"""The name of the user of sessions without a user."""
_NAMES = ("session_id", "user_id")
_BEGINNING = 4096
"""The bytes of a state in which its names are: the framework writes these first."""
_MARKS = "memctl_marks"
"""The field for the marks of a message in its metadata, which the framework keeps."""
_IDLE = "60"
"""The default of ``?idle=``, in seconds."""
FEATURES = Features(
    marks=frozenset({SUMMARY}),
    empty=True,
    duplicate_ids=True,
    renames=frozenset({"user", "session", "merge"}),
)

Kept = dict[str, bytes | list[bytes]]
"""The contents of a session by key: the JSON text of a value, or of each item of a list."""


class Naming(NamedTuple):
    """The names of sessions in a place: the user, the separator, and the session."""

    separator: str
    quoted: Callable[[str], str] = str
    """The form of a user or a session in a name."""

    def refusal(self, key: MemoryKey) -> Failure | None:
        """Return why the framework cannot name the session of a memory; None if it can."""
        if failure := part_refusal(key):
            return failure
        if not key.session.strip() or (key.user and not key.user.strip()):
            return Failure("bad-name", f"AgentScope Java takes no blank name, as in {key}")
        if key.user == _ANONYMOUS:
            return Failure("bad-name", f"{_ANONYMOUS!r} stands for sessions without a user")
        if jsonio.has_surrogate(key.user + key.session):
            return Failure("bad-name", f"{key} has half of a surrogate pair in its name")
        return None

    def name(self, key: MemoryKey) -> str:
        """Return the name of the session of a memory."""
        user, session = map(self.quoted, (key.user or _ANONYMOUS, key.session))
        return f"{user}{self.separator}{session}"

    def key(self, name: str, state: object = None) -> MemoryKey:
        """Return the memory of a session.

        ``state`` is the JSON of the state of the agent, or the beginning of this JSON.  The state
        has the user and the session of an ambiguous ``name``.  A name without a user is of
        AgentScope Java 1.
        """
        user, separator, session = name.partition(self.separator)
        is_clear = self.quoted is str and self.separator not in session
        if isinstance(state, bytes) and not is_clear:
            match foreign.beginning(state[:_BEGINNING]):
                case {"session_id": str(told), "user_id": str() | None as owner} if (
                    self.name(MemoryKey(owner or "", told)) == name
                ):
                    user, session = owner or "", told
        if not separator:
            return MemoryKey("", name)
        return MemoryKey("" if user == _ANONYMOUS else user, session)


def with_new_names(state: bytes, old: MemoryKey, new: MemoryKey) -> bytes:
    """Return the JSON of the state of an agent with the new names of its session.

    Raises:
        Rejected: it is not JSON.
    """
    pairs = zip((old.session, old.user), (new.session, new.user), strict=True)
    try:
        return with_names(
            state, [((name,), *pair) for name, pair in zip(_NAMES, pairs, strict=True)]
        )
    except ValueError as error:
        raise Rejected("damaged", f"its {STATE} is not JSON: {error}") from error


def warn_of_hidden(store: Store, hidden: Collection[MemoryKey]) -> None:
    """Warn of sessions of AgentScope Java 1 whose keys are those of sessions of version 2."""
    names = ", ".join(sorted(visible(key.session) for key in hidden))
    text = (
        f"sessions of AgentScope Java 1 are left out, for version 2 has sessions so named: {names}"
    )
    if hidden and text not in store.warnings:
        store.warnings.append(text)


def idle_seconds(location: Location) -> int:
    """Return ``?idle=``: the seconds without a new message after which a session may be edited.

    Raises:
        UsageError: it is not a number of seconds.
    """
    text = location.options.get("idle", _IDLE)
    if not (text.isascii() and text.isdigit()):
        raise UsageError(f"idle={visible(text)} is not a number of seconds", "write idle=300")
    return int(text)


def refuse_at_work(store: Store, there: Snapshot, new: Snapshot) -> None:
    """Refuse an edit of a session to which an agent has just added a message.

    Messages may be added to a session at any time.

    Raises:
        Rejected: the last message is younger than ``?idle=``.
    """
    if not there.messages or new.messages[: len(there.messages)] == there.messages:
        return
    last = store.dialect.parse(there.messages[-1].message).moment
    age = (datetime.now() - (last or datetime.min)).total_seconds()
    if abs(age) < idle_seconds(store.location):
        text = f"an agent wrote to it {max(age, 0):.0f} seconds ago; try it later, or with idle=0"
        raise Rejected("locked", text)


def read(key: MemoryKey, kept: Kept) -> Snapshot | None:
    """Return the memory in what a session keeps; None if the session keeps no messages.

    Raises:
        BadData: the framework cannot load the state.
    """
    state, items = _state(kept), kept.get(LIST)
    if state is None:
        if not isinstance(items, list):
            return None
        values = [_loads(one, f"a message of {LIST}") for one in items]
        groups = kept.get(_GROUPS)
        found = _loads(groups, _GROUPS).get("activeGroups") if isinstance(groups, bytes) else None
        fields = {"tool_context": {"activated_groups": found}} if found else {}
    else:
        context = state.get("context")
        values = [] if context is None else context
        if not isinstance(values, list) or not all(isinstance(one, dict) for one in values):
            raise BadData(f"its {STATE} has no list of messages as 'context'")
        fields = others(state, ("context", *_NAMES))
        if not fields.get("summary"):
            fields.pop("summary", None)
    used = {STATE} if state is not None else {LIST, _GROUPS}
    version = blake2b(b"\n".join([*map(_joined, kept.values())])).hexdigest()
    extra = _extra(fields, others(kept, used))
    return Snapshot(Memory(key, extra=extra, version=version), list(map(_entry, values)))


def _state(kept: Kept) -> dict[str, Any] | None:
    text = kept.get(STATE)
    return _loads(text, STATE) if isinstance(text, bytes) else None


def _loads(text: bytes, name: str) -> dict[str, Any]:
    found = _json(text, name)
    if not isinstance(found, dict):
        raise BadData(f"its {name} is not a JSON object")
    return found


def _json(text: bytes, name: str) -> Any:
    try:
        return jsonio.loads(text)
    except ValueError as error:
        raise BadData(f"its {name} is not JSON: {error}") from error


def _joined(value: bytes | list[bytes]) -> bytes:
    return value if isinstance(value, bytes) else b"\n".join(value)


def _extra(fields: dict[str, Any], kept: Kept) -> str:
    """Return ``Memory.extra``: what the session has besides its names and messages."""
    values = {
        key: _json(value, key) if isinstance(value, bytes) else [_json(one, key) for one in value]
        for key, value in sorted(kept.items())
    }
    found = {"state": fields} | ({"keys": values} if values else {})
    return jsonio.dumps(found).decode() if fields or values else ""


def _entry(value: dict[str, Any]) -> StoredMessage:
    id, metadata = value.get("id"), value.get("metadata")
    marks: tuple[str, ...] = ()
    if isinstance(metadata, dict) and metadata.get(_MARKS) == [SUMMARY]:
        value = value | {"metadata": others(metadata, (_MARKS,))}
        marks = (SUMMARY,)
    return StoredMessage(id if isinstance(id, str) else "", jsonio.dumps(value), marks)


def changed(kept: Kept, there: Snapshot, new: Snapshot) -> Kept:
    """Return the keys whose values change when the memory ``there`` becomes ``new``.

    Raises:
        Rejected: the framework could not load the session, or has to load it once before.
    """
    key, extra = new.memory.key, new.memory.extra
    if not there.exists and STATE in kept:
        raise Rejected("bad-name", f"the place of {key} holds the session of another user")
    if there.exists and STATE not in kept:
        raise Rejected(
            "refused",
            "AgentScope Java 1 wrote it, and memctl only reads it: let an agent of version 2 save "
            "the session once, or copy it",
        )
    known = set(there.messages)
    messages = [_stored(one, is_new=one not in known) for one in new.messages]
    state, others_kept = _state(kept), Kept()
    if state is None or (extra and extra != there.memory.extra):
        fields, others_kept = _parse_extra(extra) if extra else ({}, Kept())
        state = {"session_id": key.session, "user_id": key.user or None, "summary": ""} | fields
    start = jsonio.dumps(others(state, ("context",))).removesuffix(b"}")
    return others_kept | {STATE: start + b',"context":[' + b",".join(messages) + b"]}"}


def _parse_extra(extra: str) -> tuple[dict[str, Any], Kept]:
    """Return the fields of the state and the values of other keys in ``Memory.extra``."""
    try:
        found = jsonio.loads(extra.encode("utf-8", "surrogatepass"))
    except ValueError:
        found = None
    match found:
        case {"state": dict(fields), **rest} if isinstance(keys := rest.get("keys", {}), dict):
            return others(fields, ("context", *_NAMES)), {
                key: [*map(jsonio.dumps, one)] if isinstance(one, list) else jsonio.dumps(one)
                for key, one in keys.items()
                if key != STATE
            }
    raise Rejected("refused", "what the session has besides messages is not of AgentScope Java")


def _stored(entry: StoredMessage, *, is_new: bool) -> bytes:
    """Return a message as the session keeps it.

    Raises:
        Rejected: the framework cannot load the message, or has no place for its marks.
    """
    if not (entry.marks or is_new):
        return entry.message
    if entry.marks not in ((), (SUMMARY,)):
        raise Rejected("refused", f"AgentScope Java has no mark {entry.marks[0]!r}, only summary")
    value = jsonio.loads(entry.message)
    fault = AGENTSCOPE_JAVA.view_of(value).fault if isinstance(value, dict) else "not an object"
    if fault and is_new:
        text = f"AgentScope Java cannot load the message {visible(entry.id)!r}: {fault}"
        raise Rejected("refused", text)
    if not entry.marks:
        return entry.message
    if not isinstance(value.get("metadata"), dict) or _MARKS in value["metadata"]:
        text = f"the metadata of the message {visible(entry.id)!r} has no place for marks"
        raise Rejected("refused", text)
    return jsonio.dumps(value | {"metadata": value["metadata"] | {_MARKS: list(entry.marks)}})
