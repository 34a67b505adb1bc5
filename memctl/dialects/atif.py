"""Trajectories of the Agent Trajectory Interchange Format (ATIF), version 1.8, as messages.

A trajectory is the JSON object of a conversation.  A step has a text, the tool calls of an agent,
and their results.  A trajectory that memctl writes has the stored messages, too, as notes in
``extra.memctl``::

    step or result    {"place": 4, "entry": "{\\"id\\": ...}", "message": "{...as stored...}"}
    trajectory        {"dialect": "agentscope1", "memory": "{...}", "digest": "5c2d..."}

``place`` is the index of the message in its memory.  The digest covers what the trajectory shows:
the notes count as long as no other program has changed that.  A trajectory without notes that
count becomes messages of AgentScope 1.x, whose metadata have the other fields of the step under
``atif``.

Source: ``models/trajectories`` of harbor 0.26.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct, structs

from memctl.dialects.agentscope import NO_TIME
from memctl.dialects.agentscope1 import AGENTSCOPE1, media_kind, message_of
from memctl.dialects.conversion import digest_of
from memctl.dialects.registry import DIALECTS
from memctl.dialects.rows import media_at
from memctl.dialects.view import (
    NOTES,
    Block,
    Dialect,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
    held,
    local_time,
    object_at,
    others,
    text_of,
)
from memctl.json import jsonio
from memctl.model import Memory, MemoryKey, StoredMessage

VERSION = "ATIF-v1.8"
AGENT = "agent"
HEAD = ("schema_version", "session_id", "trajectory_id")
"""The first fields of a trajectory, which name its memory."""
_VERSIONS = frozenset(f"ATIF-v1.{minor}" for minor in range(9))
_ROLES = {"user": "user", AGENT: "assistant", "system": "system"}
_ID_BYTES = 10

_Json = dict[str, Any]


class TrajectoryMemory(NamedTuple):
    """The memory of a trajectory, with its messages in a dialect."""

    dialect: Dialect
    memory: Memory
    messages: list[StoredMessage]
    is_changed: bool
    """True if memctl wrote the trajectory, and another program has changed it since."""


class Digest:
    """A digest of what a trajectory shows, the same for equal JSON values.

    It takes the fields ``HEAD``, then the steps, and then ``extra`` without the note.
    """

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=16)

    def add(self, text: bytes) -> None:
        """Add the JSON text of the next part.

        Raises:
            RecursionError: the part is nested too deep.
        """
        try:
            self._hash.update(jsonio.canonical(text))
        except ValueError as error:
            raise RecursionError("nested too deep") from error

    def __str__(self) -> str:
        return self._hash.hexdigest()


class _MessageNote(Struct, frozen=True):
    place: int
    entry: str
    message: str


class _MemoryNote(Struct, frozen=True):
    dialect: str
    memory: str
    digest: str


class _Entry(Struct, frozen=True):
    """The fields of a StoredMessage beside the message."""

    id: str
    marks: tuple[str, ...]
    position: int | None


def message_note(entry: StoredMessage, place: int) -> _Json:
    """Return the note of a message; ``place`` is the index of the message in its memory."""
    # The texts in ASCII keep lone surrogates, which ATIF cannot hold.
    about = jsonio.dumps(structs.asdict(_Entry(entry.id, entry.marks, entry.position)))
    return structs.asdict(_MessageNote(place, about.decode(), entry.message.decode()))


def memory_note(memory: Memory, dialect: Dialect, digest: Digest) -> _Json:
    """Return the note of a trajectory with the data of its memory."""
    fields = asdict(memory) | {"version": None}
    return structs.asdict(
        _MemoryNote(dialect.full_name, jsonio.dumps(fields).decode(), str(digest))
    )


def is_trajectory(value: Any) -> bool:
    """Return whether a JSON value is a trajectory of any version."""
    return isinstance(value, dict) and str(value.get("schema_version")).startswith("ATIF-v")


def memories_of(value: Any, name: str, part: str = "") -> Iterator[TrajectoryMemory]:
    """Yield the memory of a trajectory, and then those of the subagents that it contains.

    ``name`` names the session if the trajectory has no ``session_id``.  A subagent is a part of the
    session: ``part``, from its ``trajectory_id``.

    Raises:
        ValueError: the value is no trajectory of a known version, or has a step that memctl does
            not understand; the text names the step.
    """
    if not is_trajectory(value):
        raise ValueError("it is no trajectory: schema_version is missing")
    if value["schema_version"] not in _VERSIONS:
        raise ValueError(f"it has the unknown version {value['schema_version']!r}")
    session = name if part else text_of(value, "session_id") or name
    yield _memory_of(value, MemoryKey("", session, part))
    for number, one in enumerate(_list_at(value, "subagent_trajectories"), 1):
        id = text_of(one, "trajectory_id") if isinstance(one, dict) else None
        yield from memories_of(one, session, id or f"{part or 'subagent'}-{number}")


def _memory_of(value: _Json, key: MemoryKey) -> TrajectoryMemory:
    steps = _list_at(value, "steps")
    if not steps:
        raise ValueError("it has no steps")
    note = object_at(object_at(value, "extra"), NOTES)
    if note.get("dialect") in DIALECTS and note.get("digest") == str(_digest_of(value, steps)):
        try:
            about = msgspec.convert(note, _MemoryNote)
            memory = msgspec.convert(_loads(about.memory), Memory)
            messages = [message for _, message in sorted(_noted(steps))]
        except msgspec.ValidationError as error:
            raise ValueError(f"its note of memctl is damaged: {error}") from error
        return TrajectoryMemory(DIALECTS[about.dialect], memory, messages, is_changed=False)
    messages = _messages(value, steps, key)
    return TrajectoryMemory(AGENTSCOPE1, Memory(key, ""), messages, is_changed=bool(note))


def _digest_of(value: _Json, steps: list[Any]) -> Digest:
    digest = Digest()
    head = {name: value.get(name) for name in HEAD}
    for part in (head, *steps, others(value["extra"], (NOTES,))):
        digest.add(jsonio.dumps(part))
    return digest


def with_digests(old: bytes, new: bytes) -> bytes:
    """Return the text ``new`` of a trajectory with digests of what it shows now.

    A digest that did not hold in the text ``old`` stays.

    Raises:
        ValueError: a text is no trajectory.
    """
    before, after = map(_trajectories, map(jsonio.loads, (old, new)))
    for was, now in zip(before, after, strict=True):
        digest = object_at(object_at(was, "extra"), NOTES).get("digest")
        if digest is not None and digest == str(_digest_of(was, _list_at(was, "steps"))):
            again = str(_digest_of(now, _list_at(now, "steps")))
            new = new.replace(digest.encode(), again.encode(), 1)
    return new


def _trajectories(value: Any) -> Iterator[_Json]:
    """Yield a trajectory, then those of its subagents."""
    if not is_trajectory(value):
        raise ValueError("it is no trajectory")
    yield value
    for one in _list_at(value, "subagent_trajectories"):
        yield from _trajectories(one)


def _noted(steps: list[_Json]) -> Iterator[tuple[int, StoredMessage]]:
    """Yield the messages in the notes of steps and their results, each with its place."""
    for step in steps:
        for one in (step, *_results(step)):
            if note := object_at(object_at(one, "extra"), NOTES):
                of = msgspec.convert(note, _MessageNote)
                entry = msgspec.convert(_loads(of.entry), _Entry)
                text = of.message.encode()
                yield of.place, StoredMessage(entry.id, text, entry.marks, entry.position)


def _loads(text: str) -> Any:
    return jsonio.loads(text.encode())


# Steps of other programs


def _messages(value: _Json, steps: list[_Json], key: MemoryKey) -> list[StoredMessage]:
    agent = text_of(object_at(value, AGENT), "name") or _ROLES[AGENT]
    about = _rest(value, "schema_version", "session_id", "steps", "subagent_trajectories")
    found: list[StoredMessage] = []
    for number, step in enumerate(steps, 1):
        try:
            said = list(_split(step, agent))
        except ValueError as error:
            of = f" of {key.part!r}" if key.part else ""
            raise ValueError(f"step {number}{of} {error}") from error
        for at, message in enumerate(said):
            if not found and about:
                message["metadata"].setdefault("atif", {})["trajectory"] = about
            id = digest_of([*key, number, at], _ID_BYTES)
            found.append(StoredMessage(id, jsonio.compact(message | {"id": id})))
    return found


def _split(step: Any, agent: str) -> Iterator[_Json]:
    """Yield the messages of a step, without ids: the speaker's message, then each result.

    Raises:
        ValueError: memctl does not understand the step; the text goes on after its number.
    """
    if not isinstance(step, dict):
        raise ValueError("is not an object")
    source, time = step.get("source"), local_time(text_of(step, "timestamp"))
    role = _ROLES.get(source) if isinstance(source, str) else None
    if role is None:
        raise ValueError(f"has the source {source!r}, not user, agent or system")
    stamp = NO_TIME if time is None else AGENTSCOPE1.timestamp(time)
    known = ["step_id", "source", "message", "reasoning_content", "tool_calls", "observation"]
    rest = _rest(step, *known, *(["timestamp"] if time else ()))
    blocks: list[Block] = _parts(step.get("message"))
    if thought := text_of(step, "reasoning_content"):
        blocks.insert(0, ThinkingBlock(thought))
    calls = [_call(one) for one in _list_at(step, "tool_calls")]
    extras = {call.id: more for call in calls if (more := _rest(call.value, *_CALL))}
    rest |= {"tool_calls": extras} if extras else {}
    name = agent if source == AGENT else role
    yield _message(name, role, [*blocks, *calls], stamp, rest)
    names = {call.id: call.name for call in calls}
    for result in _results(step):
        output, id = _parts(result.get("content")), result.get("source_call_id")
        rest = _rest(result, "source_call_id", "content")
        if id is None:
            yield _message("system", "system", output, stamp, rest)
        elif id in names:
            answer: Block = ToolResultBlock(id, names[id], lambda output=output: output)  # type: ignore[misc]
            yield _message("system", "system", [answer], stamp, rest)
        else:
            raise ValueError(f"has a result of the call {id!r}, which the step does not have")


def _message(name: str, role: str, blocks: list[Block], stamp: str, rest: _Json) -> _Json:
    content: Any = [AGENTSCOPE1.stored_block(block) for block in blocks]
    match blocks:  # as in AgentScope: agents answer in blocks, and users in plain text
        case []:
            content = ""
        case [TextBlock(text)] if role != _ROLES[AGENT]:
            content = text
    return message_of("", name, role, content, stamp, {"atif": rest} if rest else {})


_CALL = ("tool_call_id", "function_name", "arguments")


def _call(value: Any) -> ToolCallBlock:
    match value:
        case {"tool_call_id": str(id), "function_name": str(name), "arguments": dict(arguments)}:
            return ToolCallBlock(id, name, arguments, value)
    raise ValueError(f"has a tool call without {', '.join(_CALL)}")


def _parts(content: Any) -> list[Block]:
    if isinstance(content, str):
        return [TextBlock(content)] if content else []
    if not isinstance(content, list | None):
        raise ValueError("has a content that is neither a text nor a list of parts")
    return [_part(part) for part in content or ()]


def _part(part: Any) -> Block:
    match part:
        case {"type": "text", "text": str(text)}:
            return TextBlock(text)
        case {"type": "image" | "audio", "source": {"media_type": str(kind), "path": str(path)}}:
            return media_at(media_kind(kind), path, None, kind)
    raise ValueError("has a part of its content that is no text, image or audio")


def _results(step: Any) -> list[_Json]:
    found = _list_at(object_at(step, "observation"), "results")
    if not all(isinstance(one, dict) for one in found):
        raise ValueError("has a result that is not an object")
    return found


def _rest(value: _Json, *known: str) -> _Json:
    """Return the other fields of an object that have a value, without the notes of memctl."""
    found = held(others(value, known))
    extra = held(object_at(found, "extra"))
    return others(found, ("extra",)) | ({"extra": extra} if extra else {})


def _list_at(fields: _Json, name: str) -> list[Any]:
    found = fields.get(name)
    if not isinstance(found, list | None):
        raise ValueError(f"{name} is not a list")
    return found or []
