"""The lines of the rollouts of Codex CLI.

A line has a ``type`` and a ``payload``.  The model gets the payloads of ``response_item``, which
are items of OpenAI's Responses API, and what a ``compacted`` line has in their place.

Source: ``codex-rs/history/src/lib.rs`` and ``codex-rs/rollout/src/policy.rs`` of openai/codex
0.171, and runs of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from memctl.dialects.agentscope import string
from memctl.dialects.conversion import Message
from memctl.dialects.openai_agents import OPENAI_AGENTS, OpenAIAgentsView
from memctl.dialects.rows import output_text
from memctl.dialects.session_lines import (
    NAMES,
    TIMESTAMP,
    SessionLines,
    SessionLineView,
    chosen,
    timestamp_of,
)
from memctl.dialects.view import (
    Block,
    Live,
    MediaBlock,
    MessageView,
    TextBlock,
    Unread,
    object_at,
    text_of,
)
from memctl.model import MemoryKey

_ITEM, _COMPACTED, _EVENT, _START = "response_item", "compacted", "event_msg", "session_meta"


class CodexView(SessionLineView):
    """A view of a line of a rollout."""

    __slots__ = ()

    @property
    def payload(self) -> dict[str, Any]:
        """The payload of the line; empty if it has none."""
        return object_at(self.document, "payload")

    @property
    def event(self) -> str:
        """The type of an event; empty if the line is no event."""
        return string(self.payload.get("type")) if self.kind == _EVENT else ""

    @property
    def id(self) -> str | None:
        return text_of(self.payload, "id") if self.kind == _ITEM else None

    @property
    def role(self) -> str | None:
        if self.kind == _COMPACTED:
            return "user"
        return self._item(self.payload).role if self.kind == _ITEM else super().role

    @property
    def history(self) -> list[Any] | None:
        """The items that a compaction puts in the place of all before; None if it has none."""
        found = self.payload.get("replacement_history")
        return found if isinstance(found, list) else None

    @property
    def is_prompt(self) -> bool:
        """True for an event that says that the user began a turn."""
        item = object_at(self.payload, "item")
        return self.event == "user_message" or (
            self.event == "item_completed" and item.get("type") == "UserMessage"
        )

    def _said(self) -> list[Block]:
        if self.kind == _ITEM:
            return self._item(self.payload).blocks
        if self.kind != _COMPACTED:
            return []
        if self.history is None:
            return [TextBlock(string(self.payload.get("message")), self.payload)]
        items = (self._item(one) for one in self.history if isinstance(one, dict))
        return [block for item in items for block in item.blocks]

    def live_fields(self) -> dict[str, Any]:
        payload = chosen(self.payload, ("type", "role", "num_turns"))
        payload["item"] = chosen(object_at(self.payload, "item"), ("type",))
        if self.history is not None:
            payload["replacement_history"] = []
        return chosen(self.document, ("type", "ordinal")) | {"payload": payload}

    def _item(self, item: dict[str, Any]) -> OpenAIAgentsView:
        return OpenAIAgentsView({"content": item})


class Codex(SessionLines):
    """The dialect of the rollouts of Codex CLI."""

    name = "codex"
    framework = "Codex CLI"
    view = CodexView
    tool_words = (b"_call",)
    results_follow = False

    def holds_media(self, media: MediaBlock, place: str) -> bool:
        return OPENAI_AGENTS.holds_media(media, place) and media.kind == "image"

    def own_id(self, content: Any) -> str | None:
        return CodexView({"content": content}).id

    def is_summary(self, view: MessageView) -> bool:
        return isinstance(view, CodexView) and view.kind == _COMPACTED

    def live(self, views: Sequence[MessageView]) -> Live:
        lines = [view for view in views if isinstance(view, CodexView)]
        order: list[int] = []
        prompts: list[int] = []
        """For each turn of the user, the length of ``order`` before it."""
        unread: dict[int, Unread] = {}
        for at, line in enumerate(lines):
            if not line.is_own:
                unread[at] = Unread.NOT_FOR_MEMORY
            elif line.kind == _COMPACTED:
                kept = [] if line.history is not None else _of_user(lines, order)
                unread |= dict.fromkeys(set(order) - set(kept), Unread.COMPACTED)
                order = [*kept, at]
                prompts.clear()
            elif line.kind == _ITEM and line.said:
                order.append(at)
            else:
                unread[at] = Unread.NOT_FOR_MEMORY
                if line.is_prompt:
                    # The event stands before the item, or directly behind it if lines are numbered.
                    prompts.append(len(order) - ("ordinal" in line.document))
                elif line.event == "thread_rolled_back":
                    number = line.payload.get("num_turns")
                    back = number if isinstance(number, int) else 0
                    start = prompts[-back] if 0 < back <= len(prompts) else len(order)
                    unread |= dict.fromkeys(order[start:], Unread.REWOUND)
                    del order[start:], prompts[len(prompts) - back :]
        return Live(order, unread)

    def contents(self, role: str, name: str, blocks: Sequence[Block]) -> list[Any]:
        items = OPENAI_AGENTS.contents(role, name, blocks)
        return [{"type": _ITEM, "payload": _as_codex(item)} for item in items]

    added = frozenset({TIMESTAMP})

    def is_new(self, line: Message) -> bool:
        return line.get("type") == _ITEM and TIMESTAMP not in line

    def begun(self, names: MemoryKey, id: str, project: str, moment: datetime) -> list[Message]:
        time = timestamp_of(moment)
        meta = {"id": id, "timestamp": time, "cwd": project, "originator": "codex_exec"}
        meta |= {"cli_version": "0.171.0", "source": "exec"}
        return [{TIMESTAMP: time, "type": _START, "payload": meta, NAMES: [*names]}]

    def completed(self, line: Message, before: Message, start: Message) -> list[Message]:  # noqa: ARG002
        time = text_of(line, TIMESTAMP) or before.get(TIMESTAMP)
        whole = {TIMESTAMP: time} | line
        view = CodexView({"content": line})
        if view.role != "user":
            return [whole]
        said = {"type": "user_message", "message": output_text(view.said), "images": []}
        event = {TIMESTAMP: time, "type": _EVENT, "payload": said}
        return [whole] if event == before else [event, whole]


def _of_user(lines: Sequence[CodexView], order: Sequence[int]) -> list[int]:
    return [at for at in order if lines[at].role == "user"]


def _as_codex(item: dict[str, Any]) -> dict[str, Any]:
    """Return an item as Codex writes it: a message has a type, and a list as its content."""
    if "role" not in item:
        return item
    role = "developer" if item["role"] == "system" else item["role"]
    content = item["content"]
    if isinstance(content, str):
        kind = "output_text" if role == "assistant" else "input_text"
        content = [{"type": kind, "text": content}]
    return {"type": "message", "role": role, "content": content}


CODEX = Codex()
