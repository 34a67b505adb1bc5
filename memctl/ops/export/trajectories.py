"""Memories as trajectories of the Agent Trajectory Interchange Format (ATIF), one per line.

Harbor's RFC 0001 specifies the format; ``dialects/atif.py`` reads it.  Tool results belong to the
step of their calls.  Therefore a step stays in RAM until its results were read, but only up to
``_HELD_BYTES`` of all such steps.
"""

from __future__ import annotations

import json
import re
from collections import deque
from datetime import datetime
from mimetypes import guess_type
from typing import Any, TextIO
from urllib.parse import quote, urlsplit

from msgspec import Struct, field

from memctl.dialects.atif import AGENT, HEAD, VERSION, Digest, memory_note, message_note
from memctl.dialects.view import (
    NOTES,
    Block,
    Dialect,
    HintBlock,
    MediaBlock,
    MessageView,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
)
from memctl.json import jsonio
from memctl.model import Memory, MemoryKey, Page, StoredMessage
from memctl.ops.export.writer import Cover, PageWriter, storable
from memctl.text.numbers import count

_UNKNOWN = "unknown"
_HELD_BYTES = 4 * 1024 * 1024
"""The approximate largest size of the steps in RAM, in bytes."""

_STEP_BYTES = 1000
"""The approximate bytes of a step in RAM in addition to its message."""

_SOURCES = {"user": "user", "assistant": AGENT, "system": "system"}
_IMAGES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})

_Json = dict[str, Any]


class _Step(Struct):
    """A step of a trajectory that may still get tool results."""

    source: str
    timestamp: str | None
    extra: _Json
    size: int
    parts: list[_Json] = field(default_factory=list)
    """The texts and images of the message."""
    reasoning: list[str] = field(default_factory=list)
    calls: list[_Json] = field(default_factory=list)
    results: list[_Json] = field(default_factory=list)
    open: set[str] = field(default_factory=set)
    """The ids of the tool calls without a result so far."""

    def value(self, number: int) -> _Json:
        """Return the JSON object of the step; ``number`` is its number in the trajectory."""
        found: _Json = {"step_id": number}
        if self.timestamp is not None:
            found["timestamp"] = self.timestamp
        found |= {"source": self.source, "message": _content(self.parts)}
        extra = self.extra
        thought = "\n".join(self.reasoning)
        if self.source == AGENT:
            found |= {"reasoning_content": thought} if thought else {}
            found |= {"tool_calls": self.calls} if self.calls else {}
        else:  # the step has no place for them
            extra = extra | ({"reasoning_content": thought} if thought else {})
            extra = extra | ({"tool_calls": self.calls} if self.calls else {})
        if self.results:
            found["observation"] = {"results": self.results}
        return found | {"extra": extra}


class TrajectoryFile(PageWriter):
    """A file with the trajectory of one memory on each line; empty memories are left out."""

    def __init__(self, file: TextIO, dialect: Dialect) -> None:
        super().__init__(file, dialect)
        self._keeps_notes = True
        self._written = 0
        """The number of written steps of the present memory."""
        self._digest = Digest()
        self._agent = ""
        """The name of the agent of the present memory; empty if unknown so far."""
        self._held: deque[_Step] = deque()
        """The steps that are not written yet, in order."""
        self._size = 0
        """The sum of the sizes of the steps in ``_held``."""
        self._waiting: dict[str, _Step] = {}
        """The steps with tool calls that have no result yet, by the ids of the calls."""

    def begin(self, cover: Cover) -> None:
        self._keeps_notes = not cover.clean

    def add(self, page: Page) -> None:
        key = page.memory.key
        for entry, place in zip(page.messages, page.places, strict=True):
            self._message(entry, place)
            self._release(key)
        if page.last:
            self._release(key, every=True)
            self._end(page.memory)

    def _message(self, entry: StoredMessage, place: int) -> None:
        view = self._dialect.parse(entry.message)
        source = _SOURCES.get(view.role or "", "system")
        if source == AGENT:
            self._agent = self._agent or view.name or ""
        timestamp, extra = _about(view, entry, place)
        # Of the steps and results of a message, the first has the note.
        note = {NOTES: message_note(entry, place)} if self._keeps_notes else {}
        size = len(entry.message) * (2 if note else 1) + _STEP_BYTES

        def about_next() -> _Json:
            nonlocal note
            found, note = extra | note, {}
            return found

        def new(source: str) -> _Step:
            step = _Step(source, timestamp, about_next(), size)
            self._held.append(step)
            self._size += size
            return step

        own: _Step | None = None  # the step that the message continues
        answered = False
        for block in view.blocks:
            if isinstance(block, ToolResultBlock):
                step = self._waiting.pop(block.id, None)
                if step is None:  # the call is missing, or too old
                    about = {"tool_call_id": block.id, "tool": block.name}
                    new("system").results.append({**_result(block), "extra": about})
                else:
                    found = {"source_call_id": block.id, **_result(block)}
                    step.results.append(found if step is own else {**found, "extra": about_next()})
                    if step is not own:
                        step.size += size
                        self._size += size
                    step.open.discard(block.id)
                answered = True
                continue
            if own is None or (answered and source == AGENT):
                own, answered = new(source), False
            self._say(own, block)
        if not view.blocks:
            new(source)

    def _say(self, step: _Step, block: Block) -> None:
        match block:
            case ThinkingBlock(text):
                step.reasoning.append(text)
            case ToolCallBlock():
                step.calls.append(_call(block))
                if step.source == AGENT:
                    if before := self._waiting.pop(block.id, None):
                        before.open.discard(block.id)
                    step.open.add(block.id)
                    self._waiting[block.id] = step
            case _ if (part := _part(block)) is not None:
                step.parts.append(part)
            case _:
                step.extra.setdefault("blocks", []).append(block.value)

    def _release(self, key: MemoryKey, *, every: bool = False) -> None:
        """Write the steps before the first step that waits for a tool result.

        Above the size limit, and with ``every``, waiting steps are written, too.
        """
        while self._held:
            step = self._held[0]
            if step.open and not every and self._size <= _HELD_BYTES:
                return
            self._held.popleft()
            self._size -= step.size
            for id in step.open:
                self._waiting.pop(id, None)
            self._write(key, step)

    def _write(self, key: MemoryKey, step: _Step) -> None:
        if self._written:
            self._file.write(", ")
        else:
            names = (key.user, key.session, *([key.part] if key.part else ()))
            path = "/".join(quote(one, "", errors="surrogatepass") for one in names)
            head = _encoded(dict(zip(HEAD, (VERSION, key.session, path), strict=True)))
            self._digest.add(head.encode())
            self._file.write(f'{head[:-1]}, "steps": [')
        self._written += 1
        text = _encoded(step.value(self._written))
        self._digest.add(text.encode())
        self._file.write(text)

    def _end(self, memory: Memory) -> None:
        if not self._written:
            self.left_out += 1
            return
        key = memory.key
        shown = {"user": key.user, "path": key.part, "summary": memory.summary}
        extra: _Json = {name: value for name, value in shown.items() if value}
        self._digest.add(_encoded(extra).encode())
        if self._keeps_notes:
            extra[NOTES] = memory_note(memory, self._dialect, self._digest)
        about = {
            "agent": {"name": self._agent or _UNKNOWN, "version": _UNKNOWN},
            "final_metrics": {"total_steps": self._written},
            "extra": extra,
        }
        self._file.write(f"], {_encoded(about)[1:]}\n")
        self._written, self._agent, self._digest = 0, "", Digest()

    def remarks(self) -> list[str]:
        if not self.left_out:
            return []
        return [f"{count(self.left_out, 'memory')} without messages left out: no trajectory"]


def _about(view: MessageView, entry: StoredMessage, place: int) -> tuple[str | None, _Json]:
    """Return the timestamp of a message or None, and its fields for ``extra``.

    ``place`` is the index of the message in the memory.
    """
    try:
        timestamp = datetime.fromisoformat(view.time or "").isoformat()
    except ValueError:
        timestamp = None
    found: _Json = {
        "id": entry.id,
        "position": place + 1,
        "role": None if view.role in _SOURCES else view.role,
        "name": view.name,
        "time": None if view.time == timestamp else view.time,
        "marks": list(entry.marks),
        "metadata": view.metadata,
        "fields": view.unknown,
    }
    return timestamp, {name: value for name, value in found.items() if value}


def _call(block: ToolCallBlock) -> _Json:
    given = block.input
    found = {"tool_call_id": block.id, "function_name": block.name}
    if isinstance(given, dict):
        return {**found, "arguments": given}
    extra = {} if given is None else {"extra": {"arguments": given}}
    return {**found, "arguments": {}, **extra}


def _result(block: ToolResultBlock) -> _Json:
    parts = [_part(one) or {"type": "text", "text": _stored(one)} for one in block.output]
    return {"content": _content(parts)}


def _stored(block: Block) -> str:
    match block:
        case ThinkingBlock(text) | HintBlock(text):
            return text
        case _:
            return jsonio.dumps(block.value).decode()


def _part(block: Block) -> _Json | None:
    """Return a block as a content part of ATIF, or None."""
    match block:
        case TextBlock(text):
            return {"type": "text", "text": text}
        case MediaBlock("image"):
            return _image(block)
        case _:
            return None


def _image(block: MediaBlock) -> _Json | None:
    kind = block.media_type
    if block.url is not None:
        kind = kind or guess_type(urlsplit(block.url).path)[0]
        path = block.url
    else:
        path = f"data:{kind};base64,{block.data or ''}"
    if kind not in _IMAGES:
        return None
    return {"type": "image", "source": {"media_type": kind, "path": path}}


def _content(parts: list[_Json]) -> str | list[_Json]:
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts


_NOT_FINITE = re.compile(r'"(?:[^"\\]|\\.)*"|NaN|-?Infinity')


def _encoded(value: _Json) -> str:
    """Return the value as strict JSON."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError:
        text = json.dumps(value, ensure_ascii=False)
        text = _NOT_FINITE.sub(lambda one: one[0] if one[0][0] == '"' else "null", text)
    return storable(text)
