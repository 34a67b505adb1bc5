"""The splices that write a memory into a document: new bytes for spans of the old ones."""

from __future__ import annotations

import json

from msgspec import Struct

from memctl.errors import Failure
from memctl.json import jsonio
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


class Splice(Struct, frozen=True):
    """The replacement of the bytes of a document from ``start`` to ``end`` by ``text``.

    If ``stream`` is True, the new messages follow ``text``, and ``tail`` follows the new messages.
    """

    start: int
    end: int
    text: bytes
    stream: bool = False
    tail: bytes = b""


class RewritePlan(Struct, frozen=True):
    """The splices that write one memory into a document.

    ``first`` is True if the new messages begin their list.  ``deleted`` is the number of messages
    that the splices remove.  ``before`` is the value for ``WriteResult.before``.
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
    """Plan to write a memory at a path of a session's JSON document.

    ``index`` has the memories of the document; None for a new document.  The target must already
    hold the first ``offset`` messages of the memory, unless ``mode`` is REPLACE.  ``messages`` is
    True if further messages follow.  The plan has no splices if the document needs no change.

    Returns a failure if the memory cannot be written at this path, or if the target holds another
    number of messages than ``offset``.

    A new memory with a summary and no messages gets no list of messages in a document that exists:
    with messages in SQL or Redis, the session state has the summary alone.
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
    """Plan to edit an existing memory: the splices for its summary and its list of messages.

    ``messages`` is True if the edit changes messages; then ``EditRewrite`` writes the whole list.
    The plan has no splices if nothing changes.
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
    """Return ``WriteResult.before``: what the reverse of the change would not restore.

    The JSON text names a missing or null summary, and a missing list of messages.  Empty if neither
    applies.
    """
    found = {}
    shape = part.summary_shape
    # The reverse may add a summary, so that what is left is still a memory.
    if shape and (summary_splices(part, memory) or (messages and shape == "missing")):
        found["summary"] = shape
    if messages and part.content is None:
        found["content"] = "missing"
    return json.dumps(found) if found else ""


def summary_splices(part: MemoryPart, memory: Memory) -> list[Splice]:
    """Return the splices that set the summary of a stored memory to ``memory.summary``.

    Returns an empty list if ``memory.summary`` is None or equals the stored summary.
    """
    if memory.summary is None or (part.summary and part.text == memory.summary):
        return []
    text = jsonio.dumps(memory.summary)
    if part.summary:
        return [Splice(*part.summary, text)]
    start = part.span.start + 1
    return [Splice(start, start, _key(SUMMARY) + text + BETWEEN)]


def _content(part: MemoryPart, mode: WriteMode, *, messages: bool) -> list[Splice]:
    """Return the splice for the list of messages; none if nothing changes.

    New messages follow the stored messages, or replace them if ``mode`` is REPLACE.
    """
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
    """Plan to insert a new memory into the object ``place`` of an existing document.

    ``content`` says whether the memory gets a list of messages.  Returns a failure if the document
    is not a JSON object, or has a value on the path that is not an object.
    """
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
    """Return a new memory as JSON, nested in objects with the names ``steps``.

    The result is the bytes before its messages and the bytes after them.  ``content`` says whether
    the memory gets a list of messages.
    """
    head = b"{" + b"".join(_key(step) + b"{" for step in steps)
    head += _key(SUMMARY) + jsonio.dumps(memory.summary or "")
    tail = b"}" * (len(steps) + 1)
    if content:
        return head + BETWEEN + _key(CONTENT) + b"[", b"]" + tail
    return head + tail[:-1], tail[-1:]


def _key(name: str) -> bytes:
    return jsonio.dumps(name) + b": "
