"""The messages of OpenCode: a row of ``message`` with its rows of ``part``, all with JSON data.

An answer holds the calls of tools with their results.

Source: ``packages/opencode/src/session`` (``message-v2.ts``, ``compaction.ts``, ``revert.ts``), as
OpenCode 1.18.34 has them, and runs of it.
"""

from __future__ import annotations

import mimetypes
from collections.abc import Iterator, Sequence
from datetime import tzinfo
from typing import Any

from memctl.dialects.agentscope import ID, NO_TIME, decoded, string
from memctl.dialects.agentscope1 import media_kind
from memctl.dialects.agentscope2 import AGENTSCOPE2, CREATED, message_of
from memctl.dialects.conversion import Joint, Message
from memctl.dialects.live import Sent
from memctl.dialects.roles import ROLES
from memctl.dialects.rows import (
    EXTRA,
    PARTS,
    DocumentView,
    RowDialect,
    RowJoint,
    media_at,
    output_text,
    place_of,
    utc_of,
)
from memctl.dialects.view import (
    TOOL,
    Block,
    Live,
    MediaBlock,
    MessageView,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
    Unread,
    object_at,
    text_of,
)
from memctl.json import jsonio

REVERTED = "reverted"
"""The field of ``extra`` of a message that the user took back: True, or the id of a part from which
on the message is taken back."""
_SILENT = frozenset({"step-start", "reasoning"})
_TEXTS = ("text/plain", "application/x-directory")
"""The types of files that other parts have as texts."""


class OpenCodeView(DocumentView):
    """A view of a message with its parts."""

    __slots__ = ()
    known = frozenset({"id", "session_id", "time_created", "time_updated", "data", PARTS})

    @property
    def info(self) -> dict[str, Any]:
        """The data of the message; empty if they are no JSON object."""
        found = decoded(self.document.get("data"))
        return found if isinstance(found, dict) else {}

    @property
    def parts(self) -> list[dict[str, Any]]:
        """The data of the parts that the user has not taken back."""
        found: list[dict[str, Any]] = []
        reverted = object_at(self.value, EXTRA).get(REVERTED)
        for row in self.document.get(PARTS) or ():
            if reverted is not None and row.get("id") == reverted:
                break
            data = decoded(row.get("data"))
            found.append(data if isinstance(data, dict) else {"type": "?"})
        return found

    @property
    def own_id(self) -> str:
        """The id of the message."""
        return string(self.document.get("id"))

    @property
    def is_reverted(self) -> bool:
        """True if the user took the whole message back."""
        return object_at(self.value, EXTRA).get(REVERTED) is True

    @property
    def role(self) -> str | None:
        return text_of(self.info, "role")

    @property
    def time(self) -> str | None:
        created = self.document.get("time_created")
        return utc_of(created / 1000) if isinstance(created, int) else None

    @property
    def fault(self) -> str:
        return super().fault or ("" if self.role else "its data have no role")

    @property
    def unknown(self) -> dict[str, Any]:
        return {}

    @property
    def compaction(self) -> dict[str, Any] | None:
        """The part that asks for a compaction; None if the message does not."""
        parts = self.parts if self.role == "user" else ()
        return next((part for part in parts if part.get("type") == "compaction"), None)

    @property
    def is_sent(self) -> bool:
        """False if OpenCode skips the message: it says nothing, or is an answer that failed."""
        error = self.info.get("error") if self.role == "assistant" else None
        if isinstance(error, dict):
            kinds = {part.get("type") for part in self.parts}
            return error.get("name") == "MessageAbortedError" and bool(kinds - _SILENT)
        return bool(self.blocks)

    @property
    def blocks(self) -> list[Block]:
        return [block for part in self.parts for block in _blocks(part)]


def _blocks(part: dict[str, Any]) -> Iterator[Block]:
    match part:
        case {"type": "text", "text": str(text)} if text and not part.get("ignored"):
            yield TextBlock(text, part)
        case {"type": "reasoning", "text": str(text)}:
            yield ThinkingBlock(text, part)
        case {"type": "file", "mime": str(kind)} if kind not in _TEXTS:
            yield _media(part)
        case {"type": "compaction"}:
            yield TextBlock("What did we do so far?", part)
        case {"type": "subtask"}:
            yield TextBlock("The following tool was executed by the user", part)
        case {"type": "tool"}:
            id, name = string(part.get("callID")), string(part.get("tool"))
            state = object_at(part, "state")
            yield ToolCallBlock(id, name, state.get("input"), part)
            yield ToolResultBlock(id, name, lambda: _output(state), part)


def _media(file: dict[str, Any]) -> Block:
    kind = string(file.get("mime"))
    return media_at(media_kind(kind), file.get("url"), file, kind)


def _output(state: dict[str, Any]) -> list[Block]:
    """Return what OpenCode sends as the result of a call."""
    if state.get("status") == "completed":
        if object_at(state, "time").get("compacted"):
            return [TextBlock("[Old tool result content cleared]")]
        files = state.get("attachments") or ()
        media = [_media(one) for one in files if isinstance(one, dict)]
        return [TextBlock(string(state.get("output"))), *media]
    if state.get("status") == "error":
        about = object_at(state, "metadata")
        text = about.get("output") if about.get("interrupted") is True else None
        return [TextBlock(text if isinstance(text, str) else string(state.get("error")))]
    return [TextBlock("[Tool execution was interrupted]")]


def _milliseconds(seconds: float) -> int:
    """Return a time as OpenCode stores it."""
    return int(seconds * 1000)


class OpenCode(RowDialect):
    """The dialect of OpenCode.

    ``Memory.extra`` is a JSON object with the rows of the session in other tables.
    """

    name = "opencode"
    framework = "OpenCode"
    view = OpenCodeView
    keeps_extra = True
    leaves_out = True
    depends_on_later = True
    has_own_order = True
    answers_within = True
    tool_words = (b"tool",)
    seconds = "time_created", _milliseconds

    def joint(self, zone: tzinfo | None) -> Joint:
        return _ReplyJoint(self, zone)

    def is_summary(self, view: MessageView) -> bool:
        return isinstance(view, OpenCodeView) and _is_summary(view)

    def live(self, views: Sequence[MessageView]) -> Live:
        found = [view for view in views if isinstance(view, OpenCodeView)]
        unread = {at: Unread.REWOUND for at, view in enumerate(found) if view.is_reverted}
        there = [at for at in range(len(found)) if at not in unread]
        order = _since_compaction(found, there)
        unread |= dict.fromkeys({*there} - {*order}, Unread.COMPACTED)
        silent = [at for at in order if not found[at].is_sent]
        unread |= dict.fromkeys(silent, Unread.NOT_FOR_MEMORY)
        return Live([at for at in order if at not in unread], unread)

    def holds_media(self, media: MediaBlock, place: str) -> bool:  # noqa: ARG002
        return place in ("user", TOOL)

    def contents(self, role: str, name: str, blocks: Sequence[Block]) -> list[Any]:
        results = {one.id: one for one in blocks if isinstance(one, ToolResultBlock)}
        parts = []
        for block in blocks:
            match block:
                case ThinkingBlock(text):
                    parts.append({"type": "reasoning", "text": text})
                case MediaBlock():
                    parts.append(_file(block))
                case ToolCallBlock(id, name, given):
                    parts.append(_tool(id, name, given, results.pop(id, None)))
                case ToolResultBlock(id, name):
                    if results.pop(id, None) is not None:  # a result without its call
                        parts.append(_tool(id, name, {}, block))
                case _:
                    parts.append({"type": "text", "text": output_text([block])})
        role = "assistant" if role == "assistant" else "user"
        return [{"data": _text({"role": role}), PARTS: [{"data": _text(one)} for one in parts]}]


def _is_summary(view: OpenCodeView) -> bool:
    info = view.info
    return (
        info.get("role") == "assistant"
        and info.get("summary") is True
        and bool(info.get("finish"))
        and not info.get("error")
    )


def _since_compaction(views: Sequence[OpenCodeView], there: Sequence[int]) -> list[int]:
    """Return the messages since the last compaction, in the order in which OpenCode sends them.

    A compaction is a message of the user that asks for it, and an answer with the summary.  Both
    come before the messages that the compaction kept.  ``there`` and the result are indexes.
    """
    kept: list[int] = []
    answered: set[str] = set()
    first: str | None = None
    for at in reversed(there):
        view = views[at]
        kept.append(at)
        if first is None and view.own_id in answered and (asked := view.compaction) is not None:
            first = asked.get("tail_start_id") or view.own_id
        if first is not None:
            if view.own_id == first:
                break
        elif _is_summary(view):
            answered.add(string(view.info.get("parentID")))
    kept.reverse()
    asking = [n for n, at in enumerate(kept) if (views[at].compaction or {}).get("tail_start_id")]
    if not asking:
        return kept
    start, asks = asking[-1], views[kept[asking[-1]]]
    ids = [views[at].own_id for at in kept]
    tail = (asks.compaction or {})["tail_start_id"]
    ends = [
        n
        for n, at in enumerate(kept)
        if n > start
        and views[at].info.get("summary") is True
        and views[at].info.get("parentID") == asks.own_id
    ]
    if not ends or tail not in ids[:start]:
        return kept
    began, end = ids.index(tail), ends[0] + 1
    return kept[start:end] + kept[began:start] + kept[end:]


def _file(media: MediaBlock) -> dict[str, Any]:
    kind = media.media_type or mimetypes.guess_type(media.url or "")[0] or f"{media.kind}/*"
    return {"type": "file", "mime": kind, "url": place_of(media)}


def _tool(id: str, name: str, given: Any, result: ToolResultBlock | None) -> dict[str, Any]:
    given = given if isinstance(given, dict) else {}
    state: dict[str, Any] = {"status": "pending", "input": given, "raw": ""}
    if result is not None:
        media = [_file(one) for one in result.output if isinstance(one, MediaBlock)]
        state = {"status": "completed", "input": given, "output": output_text(result.output)}
        state |= {"title": name, "metadata": {}, "time": {"start": 0, "end": 0}}
        state |= {"attachments": media} if media else {}
    return {"type": "tool", "callID": id, "tool": name, "state": state}


def _text(value: dict[str, Any]) -> str:
    return jsonio.compact(value).decode()


class _ReplyJoint(RowJoint):
    """The conversion between messages of OpenCode and of AgentScope 2.x: both hold results."""

    coarse = AGENTSCOPE2
    free = False

    def join_sent(self, parts: list[Message], id: str, sent: list[Sent]) -> Message:  # noqa: ARG002
        view, role, moment = sent[0].view, sent[0].view.role, sent[0].view.moment
        role = role if role in ROLES else "user"
        time = self._coarse.timestamp(moment) if moment else NO_TIME
        blocks = []
        for number, block in enumerate(AGENTSCOPE2.fitting(sent[0].blocks, role)):
            stored = AGENTSCOPE2.stored_block(block)
            stored.setdefault(ID, f"{id}-{number}")
            blocks.append(stored | {CREATED: time, "finished_at": time})
        return message_of(id, view.name or role, role, blocks, time, dict(view.metadata))


OPENCODE = OpenCode()
