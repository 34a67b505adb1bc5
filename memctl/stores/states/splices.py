"""The splices that write a memory into a document: new bytes for spans of the old ones."""

from __future__ import annotations

import json
from dataclasses import dataclass

from memctl import jsonio
from memctl.errors import Failure
from memctl.model import Memory, WriteMode
from memctl.storekit.paths import join, split
from memctl.stores.states.memories import (
    CONTENT,
    SUMMARY,
    DocumentIndex,
    InsertionPoint,
    MemoryPart,
)

BETWEEN = b", "


@dataclass(frozen=True, slots=True)
class Splice:
    """New bytes for a span of a document.

    If ``stream`` is True, the new bytes are ``text``, then messages, then ``tail``.
    """

    start: int
    end: int
    text: bytes
    stream: bool = False
    tail: bytes = b""


@dataclass(frozen=True, slots=True)
class RewritePlan:
    """The splices of a document.

    ``first`` is True if the first new message becomes the first of its list.  ``deleted`` is the
    number of messages that the splices remove.  ``before`` is ``WriteResult.before``.
    """

    splices: list[Splice]
    first: bool = True
    deleted: int = 0
    before: str = ""


def plan(
    index: DocumentIndex | None,
    path: str,
    memory: Memory,
    mode: WriteMode,
    offset: int,
    *,
    messages: bool,
) -> RewritePlan | Failure:
    """Return the splices that write a memory at a path; none if the memory is there already.

    ``index`` is None if there is no document yet.  ``messages`` says whether messages will follow.
    A new memory in an existing document that has a summary and no messages gets no ``content``:
    with messages in SQL or Redis, the session state holds the summary alone.
    """
    part = index.parts.get(path) if index else None
    held = part.info.messages if part else 0
    if mode is WriteMode.ADD and held != offset:
        return Failure("changed", f"the target holds {held} messages, not {offset}")
    if part is not None:
        splices = [*summary_splices(part, memory), *_content(part, mode, messages=messages)]
        replaced = mode is WriteMode.REPLACE
        before = _before(part, memory, messages=messages)
        return RewritePlan(splices, replaced or not held, held if replaced else 0, before)
    if any(not step for step in split(path)):
        return Failure("bad-name", f"the path {path!r} has a name without letters")
    if index is None:
        head, tail = _nested(split(path), memory, content=True)
        return RewritePlan([Splice(0, 0, head, True, tail)], before='{"made": "document"}')
    return _insertion(index.place, path, memory, content=messages or not memory.summary)


def revision(part: MemoryPart, memory: Memory, *, messages: bool) -> RewritePlan:
    """Return the splices that edit an existing memory; none if nothing changes.

    The edit itself copies or replaces the messages, from the first on.
    """
    before = _before(part, memory, messages=messages)
    if part.content is None or not messages:
        return RewritePlan(
            [*summary_splices(part, memory), *_content(part, WriteMode.ADD, messages=messages)],
            before=before,
        )
    start = part.content.start + 1
    return RewritePlan(
        [*summary_splices(part, memory), Splice(start, start, b"", True)], before=before
    )


def _before(part: MemoryPart, memory: Memory, *, messages: bool) -> str:
    """Return what the reverse of a change of a memory would not restore."""
    found = {}
    shape = part.summary_shape
    # The reverse may add a summary, so that what is left is still a memory.
    if shape and (summary_splices(part, memory) or (messages and shape == "missing")):
        found["summary"] = shape
    if messages and part.content is None:
        found["content"] = "missing"
    return json.dumps(found) if found else ""


def summary_splices(part: MemoryPart, memory: Memory) -> list[Splice]:
    """Return the splices that give a memory its summary; none if the memory has it."""
    if memory.summary is None or (part.summary and part.text == memory.summary):
        return []
    text = jsonio.dumps(memory.summary)
    if part.summary:
        return [Splice(*part.summary, text)]
    start = part.span.start + 1
    return [Splice(start, start, _key(SUMMARY) + text + BETWEEN)]


def _content(part: MemoryPart, mode: WriteMode, *, messages: bool) -> list[Splice]:
    """Return the splices for new messages: at the end of the list, or in place of the list."""
    if part.content is None:
        end = part.span.end - 1
        head = BETWEEN + _key(CONTENT) + b"["
        return [Splice(end, end, head, True, b"]")] if messages else []
    if mode is WriteMode.REPLACE:
        return [Splice(*part.content, b"[", True, b"]")]
    end = part.content.end - 1
    return [Splice(end, end, b"", True)] if messages else []


def _insertion(
    place: InsertionPoint | None, path: str, memory: Memory, *, content: bool
) -> RewritePlan | Failure:
    """Return the splices for a memory that is new in an existing document."""
    if place is None:
        return Failure(
            "refused", "the existing document is not a session state: it is not a JSON object"
        )
    if place.blocked:
        taken = join(split(path)[: len(place.steps) + 1])
        return Failure("bad-name", f"{taken!r} exists and is not a memory")
    rest = split(path)[len(place.steps) :]
    head, tail = _nested(rest, memory, content=content)
    # The new member follows the existing members, within the existing braces.
    head = (b"" if place.empty else BETWEEN) + head[1:]
    end = place.span.end - 1
    before = json.dumps({"made": split(path)[: len(place.steps) + 1]})
    return RewritePlan([Splice(end, end, head, content, tail[:-1])], before=before)


def _nested(steps: tuple[str, ...], memory: Memory, *, content: bool) -> tuple[bytes, bytes]:
    """Return a new memory in nested objects: the bytes before its messages, and after."""
    head = b"{" + b"".join(_key(step) + b"{" for step in steps)
    head += _key(SUMMARY) + jsonio.dumps(memory.summary or "")
    tail = b"}" * (len(steps) + 1)
    if content:
        return head + BETWEEN + _key(CONTENT) + b"[", b"]" + tail
    return head + tail[:-1], tail[-1:]


def _key(name: str) -> bytes:
    return jsonio.dumps(name) + b": "
