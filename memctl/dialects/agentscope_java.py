"""The messages of AgentScope Java 2.0, and their conversion to messages of AgentScope 1.x.

The messages are those of AgentScope 1.x with roles in capitals, contents that are always lists of
blocks, and more fields of calls and results.  The result of a call is usually a message of its own
with the role ``TOOL``.

Sources in agentscope-java of 22 August 2026: ``message/*.java`` of agentscope-core, and
``memory/compaction/ConversationCompactor.java`` of agentscope-harness.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import chain
from typing import Any, ClassVar

from memctl.dialects import agentscope, agentscope1
from memctl.dialects.agentscope import CONTENT, ID, NAME, NO_TIME, RESULT, ROLE
from memctl.dialects.agentscope1 import (
    AGENTSCOPE1,
    CALL,
    MEDIA,
    TIMESTAMP,
    AgentScope1,
    AgentScope1View,
    passing,
)
from memctl.dialects.agentscope2 import WAITING
from memctl.dialects.conversion import Joint, Message, digest_of
from memctl.dialects.roles import ROLES, role_of
from memctl.dialects.view import (
    Block,
    HintBlock,
    MediaBlock,
    MessageView,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
    object_at,
    text_of,
)
from memctl.json import jsonio

SUMMARY_NAME = "__compaction_summary__"
"""The name of the message that holds the summary of earlier messages."""
_SUMMARY = "Here is a summary of the conversation to date:\n\n"
_WAITS = re.compile(rb'"(?:asking|submitted)"')
_FIELDS: dict[str, dict[str, type]] = {
    "text": {"text": str},
    "thinking": {"thinking": str, "metadata": dict},
    **{kind: {} for kind in MEDIA},
    "data": {ID: str, NAME: str},
    "hint": {ID: str, "hint": str, "source": str},
    CALL: {ID: str, NAME: str, "input": dict, CONTENT: str, "metadata": dict},
    RESULT: {ID: str, NAME: str, "output": list, "metadata": dict},
}
"""The fields of each type of block, which may be missing or null."""
_ALLOWED: dict[str | None, Collection[str]] = {
    "USER": frozenset({"text", "data", *MEDIA}),
    "SYSTEM": frozenset({"text"}),
    "ASSISTANT": _FIELDS.keys(),
    "TOOL": _FIELDS.keys(),
    None: _FIELDS.keys(),
}
"""The types of blocks by the role of the message (``Msg.validateRoleContent``)."""
_STATES = {
    CALL: ("pending", "asking", "allowed", "submitted", "finished", None),
    RESULT: ("success", "error", "interrupted", "denied", "running", None),
}
_LONGEST = 20_000_000
"""The longest text that Java's library for JSON loads (``StreamReadConstraints`` of Jackson)."""
_SOURCES = {"url": ("url",), "base64": ("media_type", "data")}
_MESSAGE_FIELDS: dict[str, type] = {
    ID: str,
    NAME: str,
    TIMESTAMP: str,
    "metadata": dict,
    "usage": dict,
}


class AgentScopeJavaView(AgentScope1View):
    """A view of a message of AgentScope Java."""

    __slots__ = ()
    known = frozenset({*_MESSAGE_FIELDS, ROLE, CONTENT})

    @property
    def role(self) -> str | None:
        return role_of(text_of(self.value, ROLE))

    @property
    def blocks(self) -> list[Block]:
        return agentscope.blocks(self.value.get(CONTENT), _own)

    @property
    def fault(self) -> str:
        role, content = self.value.get(ROLE), self.value.get(CONTENT)
        if not isinstance(role, str | None) or role not in _ALLOWED:
            return f"its role {role!r} is not one of {', '.join(filter(None, _ALLOWED))}"
        if not isinstance(content, list | None):
            return "its content is not a list of blocks"
        found = chain(
            [_misfit(self.value, _MESSAGE_FIELDS)],
            map(_fault_of_scalar, _scalars(self.value)),
            map(_fault_of_block, content or ()),
            (  # each block has a type now
                f"a message of role {role} holds a block of type {block['type']!r}"
                for block in content or ()
                if block["type"] not in _ALLOWED[role]
            ),
        )
        return next(filter(None, found), "")


def _misfit(value: dict[str, Any], fields: dict[str, type]) -> str:
    """Return the reason why Java cannot load fields of an object; empty if it can."""
    nouns: dict[type, str] = {str: "a text", dict: "an object", list: "a list"}
    for name, kind in fields.items():
        if not isinstance(value.get(name), kind | None):
            return f"its {name} is not {nouns[kind]}"
    return ""


def _scalars(value: Any) -> Iterator[Any]:
    """Yield the texts, numbers and other single values in a JSON value, however deep."""
    waiting = [value]
    while waiting:
        match waiting.pop():
            case dict(fields):
                waiting += fields.values()
            case list(items):
                waiting += items
            case one:
                yield one


def _fault_of_scalar(value: Any) -> str:
    if isinstance(value, float) and value - value != 0:
        return f"{value} is no number in JSON"
    if isinstance(value, str) and len(value) > _LONGEST:
        return f"a text has more than {_LONGEST:,} characters"
    return ""


def _fault_of_block(block: Any) -> str:
    kind = block.get("type") if isinstance(block, dict) else None
    if not isinstance(kind, str) or kind not in _FIELDS:
        return f"AgentScope Java does not know the block type {kind!r}"
    fault = _misfit(block, _FIELDS[kind])
    if not fault and kind in _STATES and block.get("state") not in _STATES[kind]:
        fault = f"its state {block['state']!r} is unknown"
    if not fault and kind in ("data", *MEDIA):
        source = object_at(block, "source")
        needed = _SOURCES.get(agentscope.string(source.get("type")))
        if needed is None or not all(isinstance(source.get(name), str) for name in needed):
            fault = "its source is neither a URL nor base64 with a media type"
    if not fault and kind == RESULT and None in object_at(block, "metadata").values():
        fault = "its metadata has a null"
    if fault:
        return f"a block of type {kind!r} cannot be loaded: {fault}"
    output = block.get("output") if kind == RESULT else None
    return next(filter(None, map(_fault_of_block, output or ())), "")


def _own(block: dict[str, Any]) -> Block | None:
    kind = block.get("type")
    if kind == CALL:
        waits = block.get("state") in WAITING
        name = agentscope.string(block.get(NAME))
        return ToolCallBlock(agentscope.block_id(block), name, block.get("input"), block, waits)
    if kind == "hint":
        return HintBlock(agentscope.string(block.get("hint")), block)
    if kind == "data":
        source = object_at(block, "source")
        media_type = source.get("media_type") or source.get("mime_type")
        kind = agentscope1.media_kind(agentscope.string(media_type))
    return agentscope1.media_of(block, kind) if kind in ("file", *MEDIA) else None


class AgentScopeJava(AgentScope1):
    """The dialect of AgentScope Java.

    ``Memory.extra`` is a JSON object: ``state`` has the fields of the state besides names and
    context, ``keys`` has what the session keeps under other keys, by key.
    """

    name = "agentscope-java"
    view = AgentScopeJavaView
    keeps_extra = True
    holds_marks: ClassVar[bool] = False
    holds_summary = False
    depends_on_later = True
    """True, because the first message may be the summary of the memory."""

    def is_summary(self, view: MessageView) -> bool:
        return view.name == SUMMARY_NAME

    def holds_media(self, media: MediaBlock, place: str) -> bool:
        return place != "system" and (media.url, media.data) != (None, None)

    def may_be_lost(self, text: bytes) -> bool:
        return super().may_be_lost(text) or _WAITS.search(text) is not None

    def author(
        self, role: str, name: str, content: str | Sequence[Block], moment: datetime
    ) -> tuple[str, bytes]:
        id = str(uuid.uuid4())
        blocks = [TextBlock(content)] if isinstance(content, str) else content
        value = self.message_of(id, name, role, blocks, self.timestamp(moment), {})
        return id, jsonio.dumps(value)

    def message_of(
        self,
        id: str,
        name: str | None,
        role: str,
        blocks: Iterable[Block],
        timestamp: str | None,
        metadata: dict[str, Any],
    ) -> Message:
        """Return a message with blocks of another dialect, and with a role that can have these."""
        blocks = list(blocks)
        if any(isinstance(block, ToolResultBlock) for block in blocks) and role != "assistant":
            role = "tool"
        elif any(isinstance(one, ThinkingBlock | HintBlock | ToolCallBlock) for one in blocks):
            role = "assistant"
        return {
            ID: id,
            NAME: name,
            ROLE: role.upper(),
            CONTENT: [self.stored_block(block) for block in self.fitting(blocks, role)],
            "metadata": metadata,
            TIMESTAMP: timestamp,
            "usage": None,
        }

    def stored_block(self, block: Block) -> dict[str, Any]:
        match block:
            case ThinkingBlock(text):
                return {"type": "thinking", "thinking": text, "metadata": None}
            case HintBlock(text):
                return {"type": "hint", ID: None, "hint": text, "source": None}
            case ToolCallBlock(id, name, input):
                input = _loadable(input) if isinstance(input, dict) else {}
                call = {"type": CALL, ID: id, NAME: name, "input": input}
                return call | {CONTENT: None, "metadata": {}, "state": "pending"}
            case ToolResultBlock(id, name, output):
                stored = [self.stored_block(one) for one in output]
                result = {"type": RESULT, ID: id, NAME: name, "output": stored}
                return result | {"metadata": {}, "state": "success"}
            case MediaBlock(kind, None, media_type):
                block = block._replace(media_type=media_type or f"{kind}/*")
        found = super().stored_block(block)
        return found | {"type": "data", ID: digest_of(found)} if found["type"] == "file" else found

    def summary_message(self, summary: str) -> bytes:
        blocks = [TextBlock(_SUMMARY + summary)]
        message = self.message_of("", SUMMARY_NAME, "user", blocks, None, {})
        del message[ID]
        return jsonio.dumps(message)


AGENTSCOPE_JAVA = AgentScopeJava()


class JavaVersions(Joint):
    """The conversion between messages of AgentScope Java and of AgentScope 1.x."""

    fine = AGENTSCOPE_JAVA
    coarse = AGENTSCOPE1
    free = True

    def belongs(self, group: list[Message], message: Message) -> bool:  # noqa: ARG002
        return False

    def join(self, parts: list[Message], id: str) -> Message:
        view = AgentScopeJavaView(parts[0])
        blocks = passing(view.blocks)
        # A speaker whose role nobody knows is never taken for the assistant.
        role = view.role if view.role in ROLES else "user"
        content: Any = [AGENTSCOPE1.stored_block(block) for block in blocks]
        if len(blocks) == 1 and isinstance(blocks[0], TextBlock) and role != "assistant":
            content = blocks[0].text
        name, metadata = view.name or role, dict(view.metadata)
        return agentscope1.message_of(id, name, role, content, view.time or NO_TIME, metadata)

    def split(self, whole: Message) -> list[Message]:
        view = AgentScope1View(whole)
        role = view.role if view.role in ROLES else "user"
        metadata = _loadable(view.metadata)
        metadata = {name: one for name, one in metadata.items() if one is not None}
        about = view.id or "", view.name, role, view.blocks, view.time, metadata
        return [AGENTSCOPE_JAVA.message_of(*about)]


def _loadable(value: Any) -> Any:
    """Return a JSON value without NaN and infinity, which Java cannot load."""
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, dict):
        return {name: _loadable(one) for name, one in value.items()}
    return list(map(_loadable, value)) if isinstance(value, list) else value


JAVA_VERSIONS = JavaVersions()
