"""The messages of AgentScope 2.x, and the further data of a session.

Sources in agentscope 2.0.11: ``message/_base.py`` and ``_block.py`` (storing and loading),
``state/_state.py`` and ``app/storage/_model/`` (sessions).
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, ClassVar

from memctl.dialects import agentscope
from memctl.dialects.agentscope import (
    CONTENT,
    ID,
    NAME,
    RESULT,
    ROLE,
    AgentScopeVersion,
    AgentScopeView,
)
from memctl.dialects.agentscope1 import media_of
from memctl.dialects.view import (
    Block,
    HintBlock,
    MediaBlock,
    Swap,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    held,
    others,
    renamed,
)
from memctl.json import jsonio
from memctl.json.located import with_names

CREATED = "created_at"
CALL = "tool_call"
WAITING = ("asking", "submitted")
"""The states of a call for which a person confirms, or another program gives the result."""
_WAITING_OR_DATA = re.compile(rb'"(?:data|asking|submitted)"')
"""Occurs in each message with media or a call that waits, unless letters are escaped."""
VARIANT = "context"
"""The field of a shape with the variant of the message in the context, if it differs from the log.
"""
DEFAULT_AGENT = "default"
"""The agent of copied sessions, unless ``?agent=`` names an agent."""

_FIELDS = frozenset(
    {
        *(ID, NAME, ROLE, CONTENT, CREATED, "metadata", "usage", "finished_at"),
        *("finished_reason", "structured_output", "error"),
    }
)
_ANSWERS = ("structured_output", "error")
"""The fields of a reply that hold an answer in addition to the content."""
_NEEDED = {
    "text": ("text",),
    "thinking": ("thinking",),
    "hint": ("hint",),
    "data": ("source",),
    CALL: ("id", "name", "input"),
    RESULT: ("id", "name", "output"),
}
ALLOWED = {"user": ("text", "data"), "system": ("text",), "assistant": tuple(_NEEDED)}
"""The allowed block types by the role of the message (``Msg.validate_role_content``)."""


class AgentScope2View(AgentScopeView):
    """A view of a message of AgentScope 2.x."""

    __slots__ = ()
    time_field = CREATED
    known = _FIELDS

    @property
    def blocks(self) -> list[Block]:
        return agentscope.blocks(self.value.get(CONTENT), _own)

    @property
    def unread(self) -> dict[str, Any]:
        return super().unread | held({name: self.value.get(name) for name in _ANSWERS})

    def _fault_of(self, content: Any) -> str:
        role = self.value[ROLE]
        if not isinstance(content, list):
            return "its content is not a list of blocks"
        for block in content:
            kind = block.get("type") if isinstance(block, dict) else None
            if not isinstance(kind, str) or kind not in _NEEDED:
                return "a block of its content has no type known to AgentScope"
            if kind not in ALLOWED[role]:
                return f"a message of role {role} holds a {kind} block"
            if any(name not in block for name in _NEEDED[kind]):
                return f"a {kind} block lacks {' or '.join(_NEEDED[kind])}"
        return ""


def message_of(
    id: str, name: str, role: str, blocks: list[Any], time: str, metadata: dict[str, Any]
) -> dict[str, Any]:
    """Return a message of AgentScope 2.x."""
    return {
        NAME: name,
        CONTENT: blocks,
        ROLE: role,
        ID: id,
        "metadata": metadata,
        CREATED: time,
        "usage": None,
        "finished_at": time,
        "finished_reason": None,
        "structured_output": None,
        "error": None,
    }


def _own(block: dict[str, Any]) -> Block | None:
    match block.get("type"):
        case "hint":
            said = agentscope.blocks(block.get("hint"), _own)
            texts = [one.text for one in said if isinstance(one, TextBlock)]
            return HintBlock("\n".join(texts), block)
        case "tool_call":
            name = agentscope.string(block.get("name"))
            waits = block.get("state") in WAITING
            input = agentscope.decoded(block.get("input"))
            return ToolCallBlock(agentscope.block_id(block), name, input, block, waits)
        case "data":
            return media_of(block)
    return None


def default_payload(session: str, agent: str) -> dict[str, Any]:
    """Return the payload of a new session of AgentScope 2.x, without the state."""
    config = {"workspace_id": agent, "name": session, "naming": {"auto": False}}
    return {"origin": {"type": "user"}, "config": config}


def default_state(session: str) -> dict[str, Any]:
    """Return the state of a new session of AgentScope 2.x, without context and summary.

    AgentScope fills in the missing fields on loading.
    """
    return {"session_id": session}


def new_id() -> str:
    """Return a new id in the format of AgentScope (``_utils/_common.py``)."""
    return uuid.uuid4().hex


_OF_DATA = frozenset({"type", "source", "name"})
"""The fields of a data block that a text block lacks, or has with another value."""
_TIMES = frozenset({"created_at", "updated_at"})
_DEFAULT_COLUMNS = frozenset({"agent_id", "source"}) | _TIMES


class AgentScope2(AgentScopeVersion):
    """The dialect of AgentScope 2.x.

    ``Memory.extra`` is a JSON object with these fields:

    - ``record``: the columns of the row of the session.
    - ``payload``: the payload of the session, without the state.
    - ``state``: the state of the session, without context and summary.
    - ``context``: the context, if it is not exactly the unmarked messages.  The items are ids of
      messages in the memory, or whole messages.  A message is whole if it differs from the log, has
      no id, or repeats an id.
    - ``unlogged``: the ids of messages in the context that are missing in the log, if any.
    - ``summary``: the summary, if it is a list of blocks.
    """

    name = "agentscope2"
    keeps_extra = True
    has_logs = True
    view = AgentScope2View
    call = CALL
    answered: ClassVar[dict[str, Any]] = {"state": "success"}
    answers_within = True
    offloads = True

    def may_be_lost(self, text: bytes) -> bool:
        return _WAITING_OR_DATA.search(text) is not None or agentscope.may_escape(text)

    def holds_media(self, media: MediaBlock, place: str) -> bool:  # noqa: ARG002
        return place != "system"

    def text_block(self, text: str, media: dict[str, Any]) -> dict[str, Any]:
        return {"type": "text", "text": text} | others(media, _OF_DATA)

    def linked(self, media: dict[str, Any], url: str) -> Swap | None:
        source = media.get("source")
        if not isinstance(source, dict) or "data" not in source or "://" not in url:
            return None
        return Swap(source, renamed(source, {"data": "url"}, {"type": "url", "url": url}))

    def inlined(self, media: dict[str, Any], media_type: str, data: str) -> Swap | None:  # noqa: ARG002
        source = media.get("source")
        if not isinstance(source, dict) or "url" not in source:
            return None
        return Swap(source, renamed(source, {"url": "data"}, {"type": "base64", "data": data}))

    def author(
        self, role: str, name: str, content: str | Sequence[Block], moment: datetime
    ) -> tuple[str, bytes]:
        id, time = new_id(), self.timestamp(moment)
        blocks = [TextBlock(content)] if isinstance(content, str) else content
        stored = [self.stored_block(one) for one in blocks]
        for block in stored:
            block.setdefault(ID, new_id())
            block |= {CREATED: time, "finished_at": time}
        return id, jsonio.dumps(message_of(id, name, role, stored, time, {}))

    def answer(self, text: bytes, results: Sequence[ToolResultBlock]) -> bytes:
        message = jsonio.loads(text)
        ids = {result.id for result in results}
        for block in message[CONTENT]:
            if block.get("type") == CALL and agentscope.block_id(block) in ids:
                block["state"] = "finished"
        time = message.get(CREATED)
        times = {CREATED: time, "finished_at": time} if isinstance(time, str) else {}
        message[CONTENT] += [
            self.stored_block(result) | {"state": "interrupted", "metadata": {}} | times
            for result in results
        ]
        return jsonio.dumps(message)

    def _stored(self, block: HintBlock | ToolCallBlock | MediaBlock) -> dict[str, Any]:
        match block:
            case HintBlock(text):
                return {"type": "hint", "hint": text}
            case ToolCallBlock(id, name, input):
                text = jsonio.dumps(input).decode()
                return {"type": CALL, "id": id, "name": name, "input": text, "state": "finished"}
            case MediaBlock(kind, url, media_type, data):
                known = media_type or f"{kind}/*"
                source = {"type": "url", "url": url, "media_type": known}
                if url is None:
                    source = {"type": "base64", "data": data, "media_type": known}
                return {"type": "data", "source": source}

    def summary_message(self, summary: str) -> bytes:
        text = {"type": "text", "text": summary}
        return jsonio.dumps({NAME: "user", ROLE: "user", CONTENT: [text]})

    def is_default(self, extra: str, user: str, session: str) -> bool:  # noqa: ARG002
        if not extra:
            return True
        found = agentscope.decoded(extra)
        return (
            isinstance(found, dict)  # no text that is nested too deep
            and _has_default_record(found, session)
            and found.get("state") == default_state(session)
            and found.keys() <= {"record", "payload", "state"}
        )

    def has_record(self, extra: str, user: str, session: str) -> bool:  # noqa: ARG002
        found = agentscope.decoded(extra)
        return bool(extra) and not (isinstance(found, dict) and _has_default_record(found, session))

    def context(self, extra: str) -> list[str | bytes] | None:
        found = jsonio.loads(extra.encode("utf-8", "surrogatepass")) if extra else {}
        listed = found.get("context")
        if listed is None:
            return None
        return [one if isinstance(one, str) else jsonio.dumps(one) for one in listed]

    def settings(self, extra: str, user: str, session: str) -> bytes:
        if self.is_default(extra, user, session):
            return b""
        found = agentscope.decoded(extra)
        if isinstance(found, str):  # nested too deep
            return extra.encode("utf-8", "surrogatepass")
        record = found.get("record") if isinstance(found, dict) else None
        if isinstance(record, dict):
            found = found | {"record": others(record, _TIMES)}
        return jsonio.canonical(jsonio.dumps(found))

    def renamed(self, extra: str, old: str, new: str) -> str:
        text = extra.encode("utf-8", "surrogatepass")
        named = with_names(text, [(("state", "session_id"), old, new)])
        return named.decode("utf-8", "surrogatepass")

    def without(self, extra: str, is_gone: Callable[[str], bool]) -> str:
        found = jsonio.loads(extra.encode("utf-8", "surrogatepass")) if extra else {}
        changed = False

        def is_without(one: Any) -> bool:
            id = one if isinstance(one, str) else one.get(ID)
            return isinstance(id, str) and is_gone(id)  # a message in the context may have no id

        for name in "context", "unlogged":
            there = found.get(name)
            if there is None:
                continue
            found[name] = [one for one in there if not is_without(one)]
            changed |= len(found[name]) < len(there)
        return jsonio.dumps(found).decode() if changed else extra

    def other_texts(self, shape: str) -> list[bytes]:
        # The shape may be in the format of a different store.
        found = agentscope.decoded(shape) if VARIANT in shape else None
        variant = found.get(VARIANT) if isinstance(found, dict) else None
        return [jsonio.dumps(variant)] if isinstance(variant, dict) else []

    def with_other_texts(self, shape: str, texts: Sequence[bytes]) -> str:
        if not texts:
            return shape
        found = jsonio.loads(shape.encode("utf-8", "surrogatepass"))
        return jsonio.dumps(found | {VARIANT: jsonio.loads(texts[0])}).decode()


def _has_default_record(extra: dict[str, Any], session: str) -> bool:
    """Return whether the session record and payload in ``extra`` are the defaults.

    Times and agent are ignored.
    """
    record = extra.get("record")
    agent = record.get("agent_id") if isinstance(record, dict) else None
    if not isinstance(record, dict) or not isinstance(agent, str):
        return False
    return (
        not any(value is not None for value in others(record, _DEFAULT_COLUMNS).values())
        and record.get("source") in (None, "user")
        and extra.get("payload") == default_payload(session, agent)
    )


AGENTSCOPE2 = AgentScope2()
