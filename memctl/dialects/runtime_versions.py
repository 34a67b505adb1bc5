"""The conversion between messages of agentscope-runtime and messages of AgentScope 1.x.

The runtime's adapter (``adapters/agentscope/message.py`` of 1.0.5) splits a message of AgentScope
into consecutive messages with the same ``original_id``.
"""

from __future__ import annotations

from typing import Any

from memctl.dialects import agentscope1
from memctl.dialects.agentscope import CONTENT, NO_TIME
from memctl.dialects.agentscope1 import AGENTSCOPE1, AgentScope1View, passing
from memctl.dialects.conversion import Joint, Message
from memctl.dialects.roles import ROLES
from memctl.dialects.runtime import RUNTIME, RuntimeView, message_of, type_of
from memctl.dialects.view import TextBlock, object_at


class RuntimeVersions(Joint):
    """The conversion between messages of agentscope-runtime and of AgentScope 1.x."""

    fine = RUNTIME
    coarse = AGENTSCOPE1

    def belongs(self, group: list[Message], message: Message) -> bool:
        original = _original_id(group[0])
        return original is not None and original == _original_id(message)

    def id(self, parts: list[Message], id: str) -> str:
        return _original_id(parts[0]) or id

    def join(self, parts: list[Message], id: str) -> Message:
        views = [RuntimeView(part) for part in parts]
        role = views[0].role
        role = "system" if role == "tool" else role if role in ROLES else "assistant"
        blocks = passing([block for view in views for block in view.blocks])
        content: Any = [AGENTSCOPE1.stored_block(block) for block in blocks]
        if role == "user" and len(blocks) == 1 and isinstance(blocks[0], TextBlock):
            content = blocks[0].text
        metadata = object_at(views[0].metadata, "metadata")
        # The runtime keeps no time.
        name = views[0].name or role
        return agentscope1.message_of(id, name, role, content, NO_TIME, dict(metadata))

    def split(self, whole: Message) -> list[Message]:
        view = AgentScope1View(whole)
        parts: list[Message] = []
        kind = ""
        for block in RUNTIME.fitting(view.blocks, view.role or ""):
            now = type_of(block)
            if now != kind or now.startswith("plugin_call"):
                parts.append(_part(view, now, len(parts)))
                kind = now
            parts[-1][CONTENT].append(RUNTIME.stored_block(block))
        return parts or [_part(view, "message", 0)]


def _original_id(message: Message) -> str | None:
    metadata = message.get("metadata")
    found = metadata.get("original_id") if isinstance(metadata, dict) else None
    return found if isinstance(found, str) else None


def _part(view: AgentScope1View, kind: str, number: int) -> Message:
    role, metadata = view.role or "assistant", dict(view.metadata)
    return message_of(view.id or "", view.name, role, kind, [], metadata, number)


RUNTIME_VERSIONS = RuntimeVersions()
