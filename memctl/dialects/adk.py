"""The events of Google's Agent Development Kit, in the format of the kit's sessions.

Source: ``events/event.py`` of google-adk 2.13 and ``Content`` of google-genai 2.34.  Events refuse
unknown fields.  So notes are in ``custom_metadata``, a field for applications.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Sequence
from functools import partial
from typing import Any

from memctl.dialects.agentscope import CONTENT, block_or_unknown, string
from memctl.dialects.agentscope1 import media_kind
from memctl.dialects.rows import DocumentView, RowDialect, output_text, utc_of
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
    UnknownBlock,
    Unread,
    object_at,
    text_of,
)
from memctl.json import jsonio

_ACTIONS = (
    *("state_delta", "artifact_delta"),
    *("requested_auth_configs", "requested_tool_confirmations"),
)
_AUTHORS = ("user", "system")
"""The authors of events that are no agents.

ADK keeps instructions in the agent, and has no messages of the system.  In a copy they are events
of an author ``system``: ADK shows such an event to its agents as words of another agent.
"""
_HIDDEN = ("adk_request_confirmation", "adk_request_credential", "adk_framework")
"""The calls of events that no model sees (``flows/llm_flows/context/_contents.py``)."""
_REQUESTS = ("adk_request_confirmation", "adk_request_credential", "adk_request_input")
"""The calls by which ADK asks the user (``utils/_function_call_names.py``)."""
_VISIBLE = (
    *("text", "inline_data", "file_data", "executable_code", "code_execution_result"),
    *("function_call", "function_response", "tool_call", "tool_response", "thought_signature"),
)
"""The fields of a part for which ADK sends an event; the first five not in a thought."""
_SPOKEN = ("input_transcription", "output_transcription")
"""The fields of an event with what was said, and heard, in a live session."""


def event_time(event: Any) -> str | None:
    """Return the time of an event as ISO text in UTC; None if the event has no time."""
    return utc_of(event.get("timestamp")) if isinstance(event, dict) else None


class AdkView(DocumentView):
    """A view of an event of Google's Agent Development Kit."""

    __slots__ = ()
    known = frozenset({"id", "author", "content", "timestamp", "invocation_id"})

    @property
    def actions(self) -> dict[str, Any]:
        """The field ``actions``: the changes that the event makes."""
        return object_at(self.document, "actions")

    @property
    def summary(self) -> dict[str, Any]:
        """The content that stands for the events of a range; empty if the event is no summary."""
        return object_at(object_at(self.actions, "compaction"), "compacted_content")

    @property
    def rewinds(self) -> bool:
        """True if the event takes earlier events back."""
        return bool(self.actions.get("rewind_before_invocation_id"))

    @property
    def said(self) -> dict[str, Any]:
        """The content of the event, or the summary in its place."""
        return object_at(self.document, "content") or self.summary

    @property
    def id(self) -> str | None:
        return text_of(self.document, "id")

    @property
    def role(self) -> str | None:
        if any(isinstance(block, ToolResultBlock) for block in self.blocks):
            return "system"
        if self.summary:
            return "assistant"
        author = self.document.get("author")
        return "system" if self.rewinds else author if author in _AUTHORS else "assistant"

    @property
    def name(self) -> str | None:
        author = text_of(self.document, "author")
        return "model" if self.summary and author == "user" else author

    @property
    def fault(self) -> str:
        return super().fault or ("" if self.name is not None else "it has no author")

    @property
    def time(self) -> str | None:
        return event_time(self.document)

    @property
    def blocks(self) -> list[Block]:
        parts = self.said.get("parts")
        found = self._spoken
        if isinstance(parts, list):
            found = [block_or_unknown(part, _block) for part in parts]
        stopped = self.document.get("long_running_tool_ids")
        ids = stopped if isinstance(stopped, list) else ()
        return [
            block._replace(waits=True)
            if isinstance(block, ToolCallBlock) and (block.id in ids or block.name in _REQUESTS)
            else block
            for block in found
        ]

    @property
    def _spoken(self) -> list[Block]:
        spoken = [object_at(self.document, field) for field in _SPOKEN]
        return [TextBlock(one["text"], one) for one in spoken if isinstance(one.get("text"), str)]

    @property
    def is_sent(self) -> bool:
        """True unless the event says nothing to a model, whatever other events do."""
        if self.summary or (not self.said and self._spoken):
            return True
        parts = self.said.get("parts")
        calls = [
            block for block in self.blocks if isinstance(block, ToolCallBlock | ToolResultBlock)
        ]
        return (
            bool(self.said.get("role"))
            and isinstance(parts, list)
            and any(map(_is_visible, parts))
            and all(block.name not in _HIDDEN for block in calls)
        )


def _is_visible(part: Any) -> bool:
    fields = _VISIBLE[5:] if isinstance(part, dict) and part.get("thought") else _VISIBLE
    return isinstance(part, dict) and any(part.get(field) for field in fields)


def _block(part: dict[str, Any]) -> Block:
    match part:
        case {"text": str(text), "thought": True}:
            return ThinkingBlock(text, part)
        case {"text": str(text)}:
            return TextBlock(text, part)
        case {"function_call": dict(call)}:
            id, name = string(call.get("id")), string(call.get("name"))
            return ToolCallBlock(id, name, call.get("args"), part)
        case {"function_response": dict(result)}:
            id, name = string(result.get("id")), string(result.get("name"))
            return ToolResultBlock(id, name, partial(_output, result.get("response")), part)
        case {"inline_data": dict(blob)}:
            media_type = string(blob.get("mime_type")) or "?"
            data = string(blob.get("data")).replace("-", "+").replace("_", "/")
            return MediaBlock(media_kind(media_type), None, media_type, data, part)
        case {"file_data": dict(file)}:
            media_type, url = string(file.get("mime_type")), string(file.get("file_uri"))
            return MediaBlock(media_kind(media_type), url, media_type or None, None, part)
    return UnknownBlock(next(iter(part), "?"), part)


def _output(response: Any) -> list[Block]:
    """Return the response of a tool as blocks; no block for None."""
    match response:
        case {"result": str(text)} | {"output": str(text)} if len(response) == 1:
            return [TextBlock(text, response)]
        case None:
            return []
    return [TextBlock(jsonio.dumps(response).decode(), response)]


class Adk(RowDialect):
    """The dialect of the sessions of Google's Agent Development Kit."""

    name = "adk"
    framework = "Google ADK"
    view = AdkView
    keeps_extra = True
    tool_words = (b"function_",)
    results_follow = False
    last_result_counts = True
    skips_empty = True
    leaves_out = depends_on_later = True
    id_path = ("id",)
    empty_ids = True
    seconds = "timestamp", float
    note_field, note_key = "custom_metadata", "memctl"
    offloads = True

    def holds_media(self, media: MediaBlock, place: str) -> bool:  # noqa: ARG002
        return place != TOOL

    def live(self, views: Sequence[MessageView]) -> Live:
        events = [view for view in views if isinstance(view, AdkView)]
        unread = super().live(views).unread | _rewound(events)
        calls = {
            block.id
            for at, event in enumerate(events)
            for block in (event.blocks if at not in unread else ())
            if isinstance(block, ToolCallBlock) and block.id
        }
        authors = {event.name for event in events}
        for at, event in enumerate(events):
            if at in unread:
                continue
            if event.rewinds or not event.is_sent:
                unread[at] = Unread.NOT_FOR_MEMORY
            elif _is_aside(event.document, calls, authors):
                unread[at] = Unread.OTHER_BRANCH
        order = [at for at in range(len(events)) if at not in unread]
        if any(events[at].summary for at in order):
            order = _compacted(events, order, unread)
        return Live(order, unread)

    def superseded(self, views: Sequence[MessageView], order: Sequence[int]) -> set[int]:
        """Return the replies between two results of one call, of one turn and one author.

        A result belongs to the newest call of its id before it, else to the first; a result without
        a call does not count.

        Source: ``flows/llm_flows/tools/_rearranger.py`` of google-adk 2.13.
        """
        events = [(at, view) for at in order if isinstance(view := views[at], AdkView)]
        results = [
            [one.id for one in event.blocks if isinstance(one, ToolResultBlock)]
            for _, event in events
        ]
        calls: dict[str, list[int]] = {}
        for place, (_, event) in enumerate(events):
            if not results[place]:
                for call in (one for one in event.blocks if isinstance(one, ToolCallBlock)):
                    calls.setdefault(call.id, []).append(place)
        latest: dict[tuple[str, int], int] = {}
        """The place in ``events`` of the latest result of each call, by its id and its place."""
        found: set[int] = set()
        for place, (_, event) in enumerate(events):
            for id in (id for id in results[place] if id in calls):
                call_at = calls[id][max(bisect_left(calls[id], place) - 1, 0)]
                before = latest.get((id, call_at), place)
                between = events[before + 1 : place]
                if _go_on(events[before][1], event) and all(
                    _is_reply(view, event) for _, view in between
                ):
                    found.update(at for at, _ in between)
                latest[id, call_at] = place
        return found

    def is_summary(self, view: MessageView) -> bool:
        return isinstance(view, AdkView) and bool(view.summary)

    def sent_text(self, view: MessageView, blocks: Sequence[Block]) -> bytes:
        assert isinstance(view, AdkView)
        content = view.said | {"parts": [block.value for block in blocks]}
        return jsonio.dumps(view.value | {CONTENT: view.document | {"content": content}})

    def text_block(self, text: str, media: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        return {"text": text}

    def contents(self, role: str, name: str, blocks: Sequence[Block]) -> list[Any]:
        results = [block for block in blocks if isinstance(block, ToolResultBlock)]
        spoken = "user" if role == "user" or results else "model"
        author = role if role in _AUTHORS else name or role
        event: dict[str, Any] = {
            "content": {"parts": [_stored(block) for block in blocks], "role": spoken},
            "invocation_id": "",
            # Events of another agent are quoted; a result of the user goes to whoever called.
            "author": "user" if results else author,
            "actions": {field: {} for field in _ACTIONS},
            "id": "",
        }
        return [event]


def _stored(block: Block) -> dict[str, Any]:
    match block:
        case ThinkingBlock(text):
            return {"text": text, "thought": True}
        case ToolCallBlock(id, name, input):
            args = input if isinstance(input, dict) else {}
            return {"function_call": {"id": id, "args": args, "name": name}}
        case ToolResultBlock(id, name, output):
            response = {"result": output_text(output)}
            return {"function_response": {"id": id, "name": name, "response": response}}
        case MediaBlock(_, None, media_type, data):
            return {"inline_data": {"data": data or "", "mime_type": media_type or "?"}}
        case MediaBlock(_, url, media_type):
            return {"file_data": {"file_uri": url, "mime_type": media_type or "?"}}
        case _:
            return {"text": output_text([block])}


# Which events a model gets, by ``events/_rewind_events.py``, ``flows/llm_flows/context`` (the
# modules ``_contents`` and ``_compaction``) and ``apps/compaction.py``


def _rewound(events: Sequence[AdkView]) -> dict[int, Unread]:
    first: dict[str, int] = {}
    for at, event in enumerate(events):
        first.setdefault(string(event.document.get("invocation_id")), at)
    first.pop("", None)
    unread: dict[int, Unread] = {}
    end = len(events)
    while end:
        end -= 1
        if events[end].rewinds:
            start = first.get(string(events[end].actions["rewind_before_invocation_id"]), end)
            unread |= dict.fromkeys(range(start, end), Unread.REWOUND)
            unread |= {
                at: Unread.NOT_FOR_MEMORY for at in range(start, end + 1) if events[at].rewinds
            }
            end = min(start, end)
    return unread


def _is_aside(event: dict[str, Any], calls: Container[str], authors: Container[str | None]) -> bool:
    """Return whether only another agent than the first one reads an event.

    Such an event is of the scope of a task, or of a branch on which a tool runs its own agent.
    """
    if event.get("isolation_scope") is not None:
        return True
    for segment in string(event.get("branch")).split("."):
        name, _, call = segment.partition("@")
        if call in calls and name not in authors:
            return True
    return False


def _go_on(event: AdkView, later: AdkView) -> bool:
    """Return whether two results are of one turn and one author, and the first asks for nothing."""
    same = all(
        event.document.get(name) == later.document.get(name) for name in ("invocation_id", "author")
    )
    asks = ("requested_tool_confirmations", "requested_auth_configs")
    return same and not any(event.actions.get(name) for name in asks)


def _is_reply(event: AdkView, result: AdkView) -> bool:
    """Return whether an event is text of a model, of the turn of a result."""
    texts = [block.text for block in event.blocks if isinstance(block, TextBlock | ThinkingBlock)]
    return (
        event.document.get("invocation_id") == result.document.get("invocation_id")
        and event.document.get("author") != "user"
        and event.said.get("role") == "model"
        and not event.summary
        and not any(isinstance(block, ToolCallBlock) for block in event.blocks)
        and any(texts)
    )


def _compacted(
    events: Sequence[AdkView], order: Sequence[int], unread: dict[int, Unread]
) -> list[int]:
    """Return the order of events and of the summaries that stand for events.

    Events for which a summary stands, and summaries within the range of another, become unread.
    """
    ranges: dict[int, tuple[float, float]] = {}
    for at in order:
        if events[at].summary:
            found = events[at].actions["compaction"]
            start, end = found.get("start_timestamp"), found.get("end_timestamp")
            if isinstance(start, int | float) and isinstance(end, int | float):
                ranges[at] = start, end
            else:
                unread[at] = Unread.NOT_FOR_MEMORY
    widest = sorted(ranges, key=lambda at: (ranges[at][0], -ranges[at][1], -at))
    latest = float("-inf")
    for at in widest:
        if ranges[at][1] > latest:
            latest = ranges[at][1]
        else:
            unread[at] = Unread.COMPACTED
            del ranges[at]
    times: dict[int, float] = {}
    for at in order:
        time = _seconds(events[at])
        if at in ranges:
            times[at] = ranges[at][1]
        elif at not in unread and any(start <= time <= end for start, end in ranges.values()):
            unread[at] = Unread.COMPACTED
        elif at not in unread:
            times[at] = time
    return _with_calls(events, order, sorted(times, key=lambda at: (times[at], at)), unread)


def _with_calls(
    events: Sequence[AdkView], order: Sequence[int], left: list[int], unread: dict[int, Unread]
) -> list[int]:
    """Return ``left``, with the compacted call before each result whose call was compacted."""
    calls: dict[str, int] = {}
    owner: dict[tuple[int, str], int] = {}
    for at in order:
        for block in events[at].blocks:
            if isinstance(block, ToolCallBlock):
                calls[block.id] = at
            elif isinstance(block, ToolResultBlock) and block.id in calls:
                owner[at, block.id] = calls[block.id]
    found: list[int] = []
    for at in left:
        for block in events[at].blocks:
            if isinstance(block, ToolResultBlock) and block.id:
                call = owner.get((at, block.id), at)
                if unread.pop(call, None):
                    others = {place for (place, _), of in owner.items() if of == call}
                    found += [call, *sorted(others & unread.keys())]
                    for other in others:
                        unread.pop(other, None)
        found.append(at)
    return found


def _seconds(event: AdkView) -> float:
    found = event.document.get("timestamp")
    return found if isinstance(found, int | float) else 0.0


ADK = Adk()
