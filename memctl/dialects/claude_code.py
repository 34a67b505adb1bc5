"""The lines of the sessions of Claude Code.

Lines with a ``uuid`` form a tree by ``parentUuid``; the others are bookkeeping.  The program sends
the branch that ends in the last line of the tree, or in the ``leafUuid`` of a ``last-prompt`` line
after it.  Its source is closed: all of this was found by running 2.1.332.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, tzinfo
from functools import partial
from typing import Any

from memctl.dialects.agentscope import CONTENT, string
from memctl.dialects.conversion import Joint, Message, digest_of
from memctl.dialects.rows import RowJoint, media_at, output_blocks, output_text
from memctl.dialects.session_lines import (
    NAMES,
    TIMESTAMP,
    SessionLines,
    SessionLineView,
    chosen,
    timestamp_of,
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
from memctl.model import MemoryKey

_TREE = frozenset({"user", "assistant", "system", "attachment"})
_BOUNDARY = "compact_boundary"
_LIVE = (
    *("type", "uuid", "parentUuid", "isSidechain", "isCompactSummary", "leafUuid"),
    *("subtype", "compactMetadata"),
)
"""The fields that say which lines the program sends, besides the id of the reply."""


class ClaudeCodeView(SessionLineView):
    """A view of a line of a session of Claude Code."""

    __slots__ = ()

    @property
    def id(self) -> str | None:
        return text_of(self.document, "uuid")

    @property
    def in_tree(self) -> bool:
        """True for a line of the tree of the session, and not of a subagent."""
        return self.is_own and self.kind in _TREE and self.document.get("isSidechain") is not True

    @property
    def reply(self) -> str | None:
        """The id of the reply of the model of which the line is a part; None if it is of none."""
        message = object_at(self.document, "message")
        return text_of(message, "id") if self.kind == "assistant" else None

    @property
    def answers(self) -> list[str]:
        """The ids of the calls whose results the line has."""
        if self.kind != "user":
            return []
        return [block.id for block in self.said if isinstance(block, ToolResultBlock)]

    @property
    def role(self) -> str | None:
        match self.kind:
            case "user" | "assistant":
                return self.kind
            case "attachment":
                return text_of(self.document, "renderedRole")
        return super().role

    def _said(self) -> list[Block]:
        line = self.document
        if self.kind == "attachment":
            return output_blocks(line.get("rendered"), _rendered)
        if self.kind in ("user", "assistant"):
            return output_blocks(object_at(line, "message").get("content"), _block)
        return []

    def live_fields(self) -> dict[str, Any]:
        return chosen(self.document, _LIVE) | {"message": {"id": self.reply}}


def _rendered(part: dict[str, Any]) -> Block | None:
    text = part.get("content")
    return TextBlock(text, part) if isinstance(text, str) else None


def _block(part: dict[str, Any]) -> Block | None:
    match part:
        case {"type": "text", "text": str(text)}:
            return TextBlock(text, part)
        case {"type": "thinking", "thinking": str(text)}:
            return ThinkingBlock(text, part)
        case {"type": "tool_use", "id": str(id), "name": str(name)}:
            return ToolCallBlock(id, name, part.get("input"), part)
        case {"type": "tool_result", "tool_use_id": str(id)}:
            output = partial(output_blocks, part.get("content"), _block)
            return ToolResultBlock(id, "", output, part)
        case {"type": "image" | "document" as kind, "source": dict(source)}:
            kind = "image" if kind == "image" else "file"
            media_type = text_of(source, "media_type")
            return media_at(kind, source.get("url"), part, media_type, source.get("data"))
    return None


class ClaudeCode(SessionLines):
    """The dialect of the sessions of Claude Code."""

    name = "claude-code"
    framework = "Claude Code"
    view = ClaudeCodeView
    tool_words = (b"tool_use", b"tool_result")
    id_path = ("uuid",)

    def joint(self, zone: tzinfo | None) -> Joint:
        return _ReplyJoint(self, zone)

    def holds_media(self, media: MediaBlock, place: str) -> bool:
        return media.kind in ("image", "file") and place in ("user", TOOL)

    def is_summary(self, view: MessageView) -> bool:
        line = view.value.get(CONTENT)
        return isinstance(line, dict) and line.get("isCompactSummary") is True

    def live(self, views: Sequence[MessageView]) -> Live:
        lines = [view for view in views if isinstance(view, ClaudeCodeView)]
        order = [at for at in _branch(lines) if lines[at].said]
        sent = set(order)
        unread: dict[int, Unread] = {}
        summary = min((at for at in order if self.is_summary(lines[at])), default=0)
        for at, line in enumerate(lines):
            if at in sent:
                continue
            if not (line.kind in ("user", "assistant") and line.blocks):
                unread[at] = Unread.NOT_FOR_MEMORY
            elif at < summary and line.in_tree:
                unread[at] = Unread.COMPACTED
            else:
                unread[at] = Unread.OTHER_BRANCH
        return Live(order, unread)

    def contents(self, role: str, name: str, blocks: Sequence[Block]) -> list[Any]:  # noqa: ARG002
        said = [_stored(block) for block in blocks if not isinstance(block, ThinkingBlock)]
        if role != "assistant":
            meta = {"isMeta": True} if role == "system" and not _has_results(blocks) else {}
            return [{"type": "user", "message": {"role": "user", "content": _plain(said)}} | meta]
        id = f"msg_{digest_of(said)}"
        return [
            {
                "type": "assistant",
                "message": {"id": id, "type": "message", "role": role, "content": [block]},
            }
            for block in said or [{"type": "text", "text": ""}]
        ]

    def continues(self, group: list[Message], message: Message) -> bool:
        """Return whether a line holds the next block of the reply of the lines before it."""
        ids = [object_at(one[CONTENT], "message").get("id") for one in (group[-1], message)]
        return ids[0] == ids[1] and isinstance(ids[0], str)

    added = frozenset(
        {"parentUuid", "isSidechain", "userType", "cwd", "sessionId", "gitBranch", TIMESTAMP}
    )

    def is_new(self, line: Message) -> bool:
        return line.get("type") in ("user", "assistant") and "sessionId" not in line

    def begun(self, names: MemoryKey, id: str, project: str, moment: datetime) -> list[Message]:
        title = {"type": "custom-title", "customTitle": names.session, "sessionId": id}
        return [title | {"cwd": project, TIMESTAMP: timestamp_of(moment), NAMES: [*names]}]

    def completed(self, line: Message, before: Message, start: Message) -> list[Message]:
        about = {
            "parentUuid": before.get("uuid"),
            "isSidechain": False,
            "userType": "external",
            "cwd": start.get("cwd"),
            "sessionId": start.get("sessionId"),
            "gitBranch": "",
            TIMESTAMP: before.get(TIMESTAMP),
        }
        return [about | line]


class _ReplyJoint(RowJoint):
    """The conversion between lines and messages; equal replies stay two by the id of the reply."""

    def split(self, whole: Message) -> list[Message]:
        parts = super().split(whole)
        for part in parts:
            reply = part[CONTENT]["message"]
            if "id" in reply:
                reply["id"] = f"msg_{digest_of([whole.get('id'), reply['id']])}"
        return parts


def _has_results(blocks: Sequence[Block]) -> bool:
    return any(isinstance(block, ToolResultBlock) for block in blocks)


def _plain(said: list[dict[str, Any]]) -> Any:
    only = len(said) == 1 and said[0]["type"] == "text"
    return said[0]["text"] if only else said


def _stored(block: Block) -> dict[str, Any]:
    match block:
        case ToolCallBlock(id, name, input):
            return {
                "type": "tool_use",
                "id": id,
                "name": name,
                "input": input if isinstance(input, dict) else {"input": input},
            }
        case ToolResultBlock(id, _, output):
            return {
                "type": "tool_result",
                "tool_use_id": id,
                "content": [_stored(one) for one in output],
            }
        case MediaBlock(kind, url, media_type, data):
            source = {"type": "base64", "media_type": media_type, "data": data or ""}
            if url is not None:
                source = {"type": "url", "url": url}
            return {"type": "image" if kind == "image" else "document", "source": source}
        case _:
            return {"type": "text", "text": output_text([block])}


def _branch(lines: Sequence[ClaudeCodeView]) -> list[int]:
    """Return the places of the lines of the tree that the program resumes with, in its order."""
    places: dict[str, int] = {}
    parents: dict[int, int | None] = {}
    last: int | None = None
    before: int | None = None
    for at, line in enumerate(lines):
        id = line.id
        if line.in_tree and not (id is not None and id in places):
            above = line.document.get("parentUuid", "")
            # A line whose parent is missing follows the line before it.
            parents[at] = None if above is None else places.get(string(above), before)
            last = before = at
            if id is not None:
                places[id] = at
        elif line.is_own and line.kind == "last-prompt":
            last = places.get(string(line.document.get("leafUuid")), last)
    found: list[int] = []
    while last is not None:
        found.append(last)
        last = parents[last]
    found.reverse()
    return _with_preserved(lines, _with_siblings(lines, found, parents), places)


def _with_siblings(
    lines: Sequence[ClaudeCodeView], branch: list[int], parents: dict[int, int | None]
) -> list[int]:
    """Return a branch with the other calls of its replies, and with their results.

    Each of several calls at once is a line, and its result follows that: only one is on the branch.
    """
    there = set(branch)
    replies = {reply for at in branch if (reply := lines[at].reply)}
    there.update(at for at in parents if lines[at].reply in replies)
    answered = {id for at in there for id in lines[at].answers}
    for at, above in parents.items():
        if above in there and lines[at].answers and answered.isdisjoint(lines[at].answers):
            there.add(at)
    return sorted(there)


def _with_preserved(
    lines: Sequence[ClaudeCodeView], branch: list[int], places: dict[str, int]
) -> list[int]:
    """Return a branch with the lines before its beginning that a compaction has preserved."""
    found: list[int] = []
    preserved: list[int] = []
    anchor: int | None = None
    for at in branch:
        found.append(at)
        if text_of(lines[at].document, "subtype") == _BOUNDARY:
            kept = object_at(object_at(lines[at].document, "compactMetadata"), "preservedMessages")
            ids = map(string, kept["uuids"] if isinstance(kept.get("uuids"), list) else ())
            preserved = [places[id] for id in ids if places.get(id, at) not in branch]
            anchor = places.get(string(kept.get("anchorUuid")), at)
        if at == anchor:
            found += preserved
    return found


CLAUDE_CODE = ClaudeCode()
