"""The messages of Hermes, rows of the table ``messages`` of its ``state.db``.

Source: ``hermes_state.py`` of hermes-agent 0.19.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memctl.dialects.agentscope import decoded, string
from memctl.dialects.roles import ROLES
from memctl.dialects.rows import (
    ConversationDialect,
    DocumentView,
    calls_of,
    chat_part,
    openai_call,
    output_blocks,
    output_text,
    place_of,
    utc_of,
)
from memctl.dialects.view import (
    Block,
    Live,
    MediaBlock,
    MessageView,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
    Unread,
)
from memctl.json import jsonio

_JSON = "\x00json:"
"""The beginning of a content that is JSON (``_encode_content``)."""


class HermesView(DocumentView):
    """A view of a row of messages."""

    __slots__ = ()
    known = frozenset(
        {
            *("id", "session_id", "role", "content", "tool_call_id", "tool_calls", "tool_name"),
            *("timestamp", "token_count", "finish_reason", "reasoning", "reasoning_content"),
            *("observed", "active", "compacted"),
        }
    )

    @property
    def time(self) -> str | None:
        return utc_of(self.document.get("timestamp"))

    @property
    def fault(self) -> str:
        return super().fault or ("" if self.role else "it has no role")

    @property
    def stored_content(self) -> Any:
        """The content of the message: a text, or a list of parts."""
        said = self.document.get("content")
        if isinstance(said, str) and said.startswith(_JSON):
            return decoded(said.removeprefix(_JSON))
        return said

    @property
    def blocks(self) -> list[Block]:
        row, said = self.document, self.stored_content
        found = output_blocks(said, chat_part) if said != "" else []
        if row.get("role") == "tool":
            id, name = string(row.get("tool_call_id")), string(row.get("tool_name"))
            return [ToolResultBlock(id, name, lambda: found, row)]
        thoughts = row.get("reasoning_content") or row.get("reasoning")
        if isinstance(thoughts, str) and thoughts:
            found.insert(0, ThinkingBlock(thoughts, thoughts))
        return [*found, *calls_of(decoded(row.get("tool_calls")))]

    @property
    def unread_because(self) -> Unread | None:
        """The reason why Hermes does not send the row; None if it does."""
        if self.document.get("active", 1) == 1:
            return None
        return Unread.COMPACTED if self.document.get("compacted") else Unread.REWOUND


class Hermes(ConversationDialect):
    """The dialect of Hermes.

    ``Memory.extra`` is a JSON object with the rows of the session in other tables.
    """

    name = "hermes"
    framework = "Hermes"
    view = HermesView
    keeps_extra = True
    leaves_out = True
    tool_words = (b"tool",)
    seconds = "timestamp", float

    def live(self, views: Sequence[MessageView]) -> Live:
        reasons = [view.unread_because if isinstance(view, HermesView) else None for view in views]
        unread = {at: why for at, why in enumerate(reasons) if why is not None}
        return Live([at for at in range(len(views)) if at not in unread], unread)

    def holds_media(self, media: MediaBlock, place: str) -> bool:
        return media.kind == "image" and place == "user"

    def said(self, role: str, name: str, blocks: Sequence[Block]) -> dict[str, Any]:  # noqa: ARG002
        calls = [openai_call(block) for block in blocks if isinstance(block, ToolCallBlock)]
        thoughts = [block.text for block in blocks if isinstance(block, ThinkingBlock)]
        said = [one for one in blocks if not isinstance(one, ToolCallBlock | ThinkingBlock)]
        row: dict[str, Any] = {"role": "assistant" if calls else role if role in ROLES else "user"}
        row["content"] = output_text(said)
        if any(isinstance(block, MediaBlock) for block in said):
            row["content"] = _JSON + jsonio.dumps([_part(block) for block in said]).decode()
        row |= {"tool_calls": jsonio.dumps(calls).decode()} if calls else {}
        return row | ({"reasoning_content": "\n".join(thoughts)} if thoughts else {})

    def result(self, result: ToolResultBlock) -> dict[str, Any]:
        text, name = output_text(result.output), result.name
        row = {"role": "tool", "content": text, "tool_call_id": result.id}
        return row | ({"tool_name": name} if name else {})


def _part(block: Block) -> dict[str, Any]:
    if isinstance(block, MediaBlock):
        return {"type": "image_url", "image_url": {"url": place_of(block)}}
    return {"type": "text", "text": output_text([block])}


HERMES = Hermes()
