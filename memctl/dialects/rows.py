"""Messages that are rows of a table, or entries of a list, of frameworks besides AgentScope.

Such a message is shown as one JSON object, whatever the names of the columns::

    {"role": "user", "content": "Hi", "time": "2026-11-23T15:32:19.877405+00:00"}

``content`` is the value stored by the framework: a text, a list of blocks, or a JSON document.
Depending on the store, a message also has the fields ``id``, ``role``, ``name``, ``time`` (always
in UTC), ``metadata``, ``tool_calls`` (JSON), ``tool_call_id`` and ``tool_name``.  ``extra`` holds
the values of unmapped columns.

If a message has no id, memctl derives an id from role, name, time and content.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from datetime import UTC, datetime, tzinfo
from hashlib import blake2b
from typing import Any, ClassVar, NamedTuple

from memctl.dialects import agentscope
from memctl.dialects.agentscope import (
    CONTENT,
    ID,
    NAME,
    NO_TIME,
    ROLE,
    AgentScopeVersion,
    OwnBlock,
    block_or_unknown,
    decoded,
)
from memctl.dialects.agentscope1 import AGENTSCOPE1, AgentScope1View, message_of, passing
from memctl.dialects.conversion import Joint, Message, digest_of
from memctl.dialects.live import Sent
from memctl.dialects.roles import ROLES, role_of
from memctl.dialects.view import (
    NOTES,
    Block,
    Dialect,
    HintBlock,
    Live,
    MediaBlock,
    MessageView,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    ToolSide,
    UnknownBlock,
    Unread,
    object_at,
    object_of,
    others,
    text_of,
)
from memctl.json import jsonio

TIME, METADATA, EXTRA = "time", "metadata", "extra"
PARTS = "parts"
"""The field of a content with the parts of a message, of a program that keeps them apart."""
CALLS, CALL_ID, CALL_NAME = "tool_calls", "tool_call_id", "tool_name"
"""The fields of a row with tool calls or with a tool result."""
COLUMN_ROLES = (
    *("session", "user", "role", "content", "time", "order", "id", "name", "metadata"),
    *("calls", "call_id", "call_name"),
)
"""The possible meanings of a column of a mapped table."""
FIELDS = frozenset({ID, ROLE, NAME, TIME, METADATA, CALLS, CALL_ID, CALL_NAME})
"""The possible fields of a row besides the content."""
FLAG, SUMMARY = "?live=", "?summary="
"""The words before each ``Flag`` in the full name of a dialect."""
_FIELD = "field"
"""The key among the notes for the original value of ``note_field``, if that value was an empty
object or not an object."""
_ID_BYTES = 10


class Flag(NamedTuple):
    """A condition of some rows of a table: that a column holds ``value``; None stands for NULL."""

    column: str
    value: Any

    @classmethod
    def parse(cls, text: str) -> Flag | None:
        """Parse a condition such as ``active = 1`` or ``deleted_at is null``; None for others."""
        found = _CONDITION.fullmatch(text.strip())
        if found is None:
            return None
        value = found["value"]
        if value is None:
            return cls(found["column"], None)
        if value.startswith("'"):
            return cls(found["column"], value[1:-1].replace("''", "'"))
        return cls(found["column"], jsonio.loads(value.lower().encode()))

    def holds(self, view: MessageView) -> bool:
        """Return whether a row meets the condition."""
        extra: dict[str, Any] = view.value.get(EXTRA) or {}
        return bool(extra.get(self.column) == self.value)

    def __str__(self) -> str:
        if self.value is None:
            return f"{self.column} is null"
        if isinstance(self.value, str):
            quoted = self.value.replace("'", "''")
            return f"{self.column} = '{quoted}'"
        return f"{self.column} = {jsonio.dumps(self.value).decode()}"


_CONDITION = re.compile(
    r"(?P<column>[^=]+?)\s*(?:=\s*(?P<value>'(?:[^']|'')*'|-?\d+|true|false)|\bis\s+null)",
    re.IGNORECASE,
)


def utc(moment: datetime) -> str:
    """Return a time as ISO text in UTC; a ``moment`` without a zone is local time."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def utc_of(seconds: Any) -> str | None:
    """Return seconds since 1970 as ISO text in UTC; None if ``seconds`` is 0 or not a time."""
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not seconds:
        return None
    try:
        return utc(datetime.fromtimestamp(seconds, UTC))
    except (OverflowError, OSError, ValueError):
        return None


class RowView(MessageView):
    """A view of a message that is a row of a table."""

    __slots__ = ()

    @property
    def content(self) -> Any:
        """The content as the framework stores it."""
        return self.value.get(CONTENT)

    @property
    def unknown(self) -> dict[str, Any]:
        return object_at(self.value, EXTRA)

    @property
    def fault(self) -> str:
        return ""


class DocumentView(RowView):
    """A view of a row whose content is a JSON object of the framework, with fields ``known``."""

    __slots__ = ()

    @property
    def document(self) -> dict[str, Any]:
        """The content; an empty object if the content is not a JSON object."""
        return object_at(self.value, CONTENT)

    @property
    def role(self) -> str | None:
        return role_of(text_of(self.document, ROLE))

    @property
    def name(self) -> str | None:
        return text_of(self.document, NAME)

    @property
    def unknown(self) -> dict[str, Any]:
        return super().unknown | others(self.document, self.known)

    @property
    def fault(self) -> str:
        return "" if isinstance(self.content, dict) else "its content is not a JSON object"


class RowDialect(Dialect):
    """The base class of dialects whose messages are rows, of frameworks besides AgentScope.

    In a subclass, ``view`` takes the content of a row apart into blocks, and ``contents`` makes
    contents from blocks.
    """

    view: type[RowView]
    holds_marks = False
    holds_summary = False
    makes_ids = True
    documents: ClassVar[bool] = True
    """True if the content is a JSON object with most data of the message; few are in columns."""
    flag: Flag | None = None
    """The condition of the rows that the program reads; None if it reads all (``flagged``)."""
    summary: Flag | None = None
    """The condition of the rows that are summaries; None if no column tells (``summed``)."""
    capitals = False
    """True if roles are stored in capitals, as Spring AI and other Java programs do."""
    framework: ClassVar[str] = ""
    """The name of the framework; empty if users define the format."""
    tool_words: ClassVar[tuple[bytes, ...]]
    """Words for a quick test: every message with a tool call or a result contains one of them."""

    def __init__(
        self, fields: frozenset[str] = frozenset(), *, orders_by_time: bool = False
    ) -> None:
        """``fields`` are those of ``FIELDS`` for which the store has a place.

        ``orders_by_time`` is as in ``Dialect``.
        """
        self.fields = fields
        self.orders_by_time = orders_by_time
        self.unsettled = frozenset({TIME} if orders_by_time and self.holds_notes else ())

    # Defined by subclasses

    @abstractmethod
    def contents(self, role: str, name: str, blocks: Sequence[Block]) -> list[Any]:
        """Return the contents of one or more rows that the framework would store for a message.

        ``role`` and ``name`` are the role and the name of the speaker.
        """

    def foreign(self, content: Any) -> str:
        """Return why a stored content is no message of the framework; empty if it is one."""
        fault = self.view({CONTENT: content}).fault if self.documents else ""
        return f"is no message of {self.framework}: {fault}" if fault else ""

    id_path: ClassVar[tuple[str, ...]] = ()
    """The fields that lead to the id inside a content; empty if a content has no place for it."""
    empty_ids: ClassVar[bool] = False
    """True if an empty text is an id."""

    seconds: ClassVar[tuple[str, Callable[[float], float]] | None] = None
    """The field of a content with the time, if there is one, and what makes its number of the
    seconds since 1970."""

    def own_id(self, content: Any) -> str | None:
        """Return the id inside a stored content; None if the content has no id."""
        found = content if self.id_path else None
        for name in self.id_path:
            found = found.get(name) if isinstance(found, dict) else None
        return found if isinstance(found, str) and (found or self.empty_ids) else None

    def set_own_id(self, content: Any, id: str) -> bool:
        """Put an id into a content and return True; return False if it has no place for an id."""
        if not self.id_path:
            return False
        *path, last = self.id_path
        for name in path:
            content = content[name]
        content[last] = id
        return True

    def continues(self, group: list[Message], message: Message) -> bool:  # noqa: ARG002
        """Return whether ``group`` and the next row become one message of AgentScope 1.x.

        ``group`` are consecutive rows of one message, and ``message`` is the row after them.
        """
        return False

    def joint(self, zone: tzinfo | None) -> Joint:
        """Return the conversion to AgentScope; ``zone`` is as in ``RowJoint``."""
        return RowJoint(self, zone)

    note_key: ClassVar[str | None] = None
    """The key for memctl's notes in a content; None if the framework would not ignore such a key.
    """
    note_field: ClassVar[str | None] = None
    """The field of a content whose object has ``note_key``; None if the content itself has it."""

    @property
    def holds_notes(self) -> bool:  # type: ignore[override]
        return METADATA in self.fields or self.note_key is not None

    @property
    def notes_time(self) -> bool:
        """True if memctl stores the time of a message as a note in the content."""
        return self.note_key is not None and TIME not in self.fields

    def pack(self, value: Message) -> Any:
        """Return the content to store for a message, with the notes from its metadata.

        If no column holds the time, the content has the time as a note, too.
        """
        content = value.get(CONTENT)
        metadata = value.get(METADATA)
        notes = metadata.get(NOTES) if isinstance(metadata, dict) else None
        if self.notes_time and isinstance(value.get(TIME), str):
            notes = {**(notes if isinstance(notes, dict) else {}), TIME: value[TIME]}
        if not notes or self.note_key is None or not isinstance(content, dict):
            return content
        if self.note_field is None:
            return {**content, self.note_key: notes}
        field = content.get(self.note_field)
        own = field if isinstance(field, dict) else {}
        if not own and self.note_field in content:
            notes = {**notes, _FIELD: field}
        return {**content, self.note_field: {**own, self.note_key: notes}}

    def unpack(self, content: Any) -> Message:
        """Return the message for a stored content; the notes of the content are in its metadata.

        A time that was stored as a note becomes the time of the message.
        """
        key, field = self.note_key, self.note_field
        holder = content.get(field) if field and isinstance(content, dict) else content
        if key is None or not isinstance(holder, dict) or not isinstance(holder.get(key), dict):
            return {CONTENT: content}
        plain = {name: one for name, one in holder.items() if name != key}
        notes = holder[key]
        if field is not None:
            others = {name: one for name, one in content.items() if name != field}
            if not plain and _FIELD in notes:
                plain = others | {field: notes[_FIELD]}
                notes = {name: one for name, one in notes.items() if name != _FIELD}
            else:
                plain = others | ({field: plain} if plain else {})
        value: Message = {CONTENT: plain}
        if self.notes_time and isinstance(notes.get(TIME), str):
            value = {TIME: notes[TIME], CONTENT: plain}
            notes = {name: one for name, one in notes.items() if name != TIME}
            if not notes:
                return value
        return value | {METADATA: {NOTES: notes}}

    def message_id(self, value: Message) -> str:
        """Return the id in a message, or an id made from its role, name, time and content."""
        if isinstance(named := value.get(ID), str):
            return named
        own = self.own_id(value.get(CONTENT))
        if own is not None:
            return own
        seconds = str(value.get(TIME, ""))[:19]
        said = [value.get(ROLE), value.get(NAME), seconds, value.get(CONTENT)]
        return digest_of(said, _ID_BYTES)

    # The contract of a dialect

    @property
    def full_name(self) -> str:
        flags = (FLAG, self.flag), (SUMMARY, self.summary)
        return super().full_name + "".join(f"{name}{one}" for name, one in flags if one)

    def left_out(self, view: MessageView) -> Unread | None:
        """Return why the framework does not read a row, as the row alone says; None if it does."""
        return None if self.flag is None or self.flag.holds(view) else Unread.DELETED

    def live(self, views: Sequence[MessageView]) -> Live:
        found = {at: why for at, view in enumerate(views) if (why := self.left_out(view))}
        return Live([at for at in range(len(views)) if at not in found], found)

    def flagged(self, flag: Flag) -> RowDialect:
        """Return the dialect of rows of which a program reads some, as a column tells."""
        found = copy(self)
        found.flag, found.leaves_out, found.soft_deletion = flag, True, str(flag)
        return found

    def summed(self, flag: Flag) -> RowDialect:
        """Return the dialect of rows of which some are summaries, as a column tells."""
        found = copy(self)
        found.summary, found.depends_on_later = flag, True
        return found

    def is_summary(self, view: MessageView) -> bool:
        return self.summary is not None and self.summary.holds(view)

    def names_itself(self, text: bytes) -> bool:
        value = object_of(jsonio.loads(text))
        return bool(value.keys() & {ID, TIME}) or self.own_id(value.get(CONTENT)) is not None

    def with_id(self, value: Message, id: str) -> str:
        if not self.set_own_id(value.get(CONTENT), id) and ID in self.fields:
            value[ID] = id
        return self.message_id(value)

    def author(
        self, role: str, name: str, content: str | Sequence[Block], moment: datetime
    ) -> tuple[str, bytes]:
        blocks = [TextBlock(content)] if isinstance(content, str) else list(content)
        value = self.rows(role, name, utc(moment), blocks)[0]
        id = self.with_id(value, blake2b(jsonio.dumps(value), digest_size=_ID_BYTES).hexdigest())
        return id, jsonio.dumps(value)

    def rows(
        self, role: str, name: str, time: str | None, blocks: Sequence[Block]
    ) -> list[Message]:
        """Return new rows, without ids, that together store one message.

        ``role`` and ``name`` are the role and the name of the speaker.  ``time`` is in UTC, None if
        unknown.
        """
        found = []
        for content in self.contents(role, name, blocks):
            row: Message = {}
            if ROLE in self.fields and role:
                row[ROLE] = role.upper() if self.capitals else role
            if NAME in self.fields and name:
                row[NAME] = name
            if TIME in self.fields and time:
                row[TIME] = time
            if self.seconds and time:
                field, number = self.seconds
                content[field] = number(datetime.fromisoformat(time).timestamp())
            row[CONTENT] = content
            found.append(row)
        return found

    def summary_message(self, summary: str) -> bytes:
        row = self.rows("user", "user", None, [TextBlock(summary)])[0]
        if self.summary is not None:
            row[EXTRA] = {self.summary.column: self.summary.value}
        return jsonio.dumps(row)

    def tool_sides(self, text: bytes) -> Iterator[tuple[ToolSide, str]]:
        if b"\\u" not in text and not any(word in text for word in self.tool_words):
            return
        for block in self.outline(text).blocks:
            if isinstance(block, ToolCallBlock) and block.id:
                yield ToolSide.CALL, block.id
            elif isinstance(block, ToolResultBlock) and block.id:
                yield ToolSide.RESULT, block.id


class ConversationDialect(RowDialect):
    """The base class of dialects in which each result of a tool is a message of its own."""

    def contents(self, role: str, name: str, blocks: Sequence[Block]) -> list[Any]:
        results = [self.result(block) for block in blocks if isinstance(block, ToolResultBlock)]
        said = [block for block in blocks if not isinstance(block, ToolResultBlock)]
        return results if results and not said else [self.said(role, name, said), *results]

    @abstractmethod
    def said(self, role: str, name: str, blocks: Sequence[Block]) -> dict[str, Any]:
        """Return the content for the blocks of a message that are no results."""

    @abstractmethod
    def result(self, result: ToolResultBlock) -> dict[str, Any]:
        """Return the content for the result of a tool."""


class RowJoint(Joint):
    """The conversion between rows of a framework and messages of AgentScope, 1.x if no other."""

    coarse: ClassVar[AgentScopeVersion] = AGENTSCOPE1
    free = True

    def __init__(self, fine: RowDialect, zone: tzinfo | None = None) -> None:
        """``zone`` is the zone of the times of AgentScope; None for the local zone."""
        self.fine = fine
        self._coarse = self.coarse if zone is None else self.coarse.in_zone(zone)
        self._rows = fine

    def belongs(self, group: list[Message], message: Message) -> bool:
        return self._rows.continues(group, message)

    def join(self, parts: list[Message], id: str) -> Message:
        views = [self._rows.view(part) for part in parts]
        return self.join_sent(parts, id, [Sent(view, view.blocks) for view in views])

    def join_sent(self, parts: list[Message], id: str, sent: list[Sent]) -> Message:  # noqa: ARG002
        first = sent[0].view
        blocks = passing([block for one in sent for block in one.blocks])
        results = any(isinstance(block, ToolResultBlock) for block in blocks)
        said = first.role
        # A speaker whose role nobody knows is never taken for the assistant.
        role = "system" if results else said if said in ROLES else "user"
        moment = first.moment
        plain = [block for block in blocks if isinstance(block, TextBlock)]
        content: Any = [AGENTSCOPE1.stored_block(block) for block in blocks]
        # As in AgentScope: agents answer in blocks, and users in plain text.
        if len(blocks) == len(plain) == 1 and role != "assistant":
            content = plain[0].text
        return message_of(
            id,
            first.name or (role if results else said or role),
            role,
            content if blocks else "",
            self._coarse.timestamp(moment) if moment else NO_TIME,
            dict(first.metadata),
        )

    def split(self, whole: Message) -> list[Message]:
        view = self._coarse.view_of(whole)
        moment = view.moment
        role = view.role or "user"
        blocks = self._rows.fitting(view.blocks, role)
        when = None if moment is None else utc(moment)
        return self._rows.rows(role, view.name or "", when, blocks)


# Shared by several frameworks


def calls_of(calls: Any, seen: Iterable[Block] = ()) -> list[Block]:
    """Return the blocks of ``calls``, a list of tool calls in the format of any model API.

    For each call among the blocks ``seen``, one call with the same id is skipped.  The result is
    empty if ``calls`` is not a list.
    """
    known = Counter(block.id for block in seen if isinstance(block, ToolCallBlock))
    found: list[Block] = []
    for value in calls if isinstance(calls, list) else ():
        block = call_of(value)
        if isinstance(block, ToolCallBlock) and known[block.id]:
            known[block.id] -= 1
        else:
            found.append(block)
    return found


def call_of(value: Any) -> Block:
    """Return the block for a tool call in the format of OpenAI, Anthropic, Bedrock or LangChain.

    If ``value`` is not an object, the block is an UnknownBlock.
    """
    if not isinstance(value, dict):
        return UnknownBlock("?", {"type": "?", "value": value})
    function, custom = value.get("function"), value.get("custom")
    called = next((one for one in (function, custom) if isinstance(one, dict)), value)
    names = [name for name in ("arguments", "args", "input") if name in called]
    input = decoded(called[names[0]]) if names else None
    if called is custom and isinstance(input, str):  # a free text, not JSON
        input = {"input": input}
    id = value.get("id") or value.get("toolUseId") or value.get("call_id")
    name = agentscope.string(called.get("name"))
    return ToolCallBlock(agentscope.string(id), name, input, value)


def named_call(value: Any) -> list[Block]:
    """Return a list with the block for a ``function_call``, OpenAI's older form of a tool call.

    Such a call has no id, and its result names only the function.  So memctl uses the name of the
    function as the id of both.  The list is empty if ``value`` is not an object.
    """
    if not isinstance(value, dict):
        return []
    name = agentscope.string(value.get("name"))
    return [ToolCallBlock(name, name, decoded(value.get("arguments")), value)]


def arguments_text(value: Any) -> str:
    """Return the arguments of a tool call as JSON text; a text stays unchanged."""
    return value if isinstance(value, str) else jsonio.dumps(value).decode()


def media_at(
    kind: str, place: Any, value: Any, media_type: str | None = None, data: Any = None
) -> MediaBlock:
    """Return a block for media of a kind, such as ``image``, at the URL ``place``.

    A ``data:`` URL is split into media type and base64 data.  ``media_type`` is the type if the URL
    names none.  ``value`` is the stored block.  If ``data`` is a text, it is the base64 data.
    """
    if isinstance(data, str):
        return MediaBlock(kind, None, agentscope.string(media_type) or "?", data, value)
    text = agentscope.string(place)
    if text.startswith("data:") and "," in text:
        head, _, data = text[5:].partition(",")
        return MediaBlock(kind, None, head.partition(";")[0] or media_type or "?", data, value)
    return MediaBlock(kind, text, media_type, None, value)


def place_of(media: MediaBlock) -> str:
    """Return the URL of media; for data in the message, a ``data:`` URL with the data."""
    if media.url is not None:
        return media.url
    return f"data:{media.media_type or '?'};base64,{media.data or ''}"


def openai_call(call: ToolCallBlock) -> dict[str, Any]:
    """Return a tool call in the format of OpenAI's chat completions."""
    function = {"name": call.name, "arguments": arguments_text(call.input)}
    return {"id": call.id, "type": "function", "function": function}


def output_blocks(value: Any, block_of: OwnBlock, *, texts: bool = False) -> list[Block]:
    """Return the blocks of a content or a tool output; ``block_of`` parses an object of a list.

    A text becomes a TextBlock.  A list becomes a block for each item; with ``texts``, items may be
    texts, too.  Any other JSON value becomes a TextBlock with its JSON, and None no block.
    """
    if isinstance(value, str):
        return [TextBlock(value, value)]
    if isinstance(value, list):
        return [
            TextBlock(one, one)
            if texts and isinstance(one, str)
            else block_or_unknown(one, block_of)
            for one in value
        ]
    return [] if value is None else [TextBlock(jsonio.dumps(value).decode(), value)]


def chat_part(part: dict[str, Any]) -> Block | None:
    """Return the block of a text or an image as OpenAI's chat completions have it; else None."""
    match part:
        case {"type": "text", "text": str(text)}:
            return TextBlock(text, part)
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            return media_at("image", url, part)
    return None


def output_text(blocks: Sequence[Block]) -> str:
    """Return the texts of blocks, joined by newlines; hints are texts, too."""
    return "\n".join(block.text for block in blocks if isinstance(block, TextBlock | HintBlock))


def blocks_of(text: str) -> list[Any] | None:
    """Return the objects of a JSON list of message blocks; None if the text is anything else."""
    if not text.startswith("[{"):
        return None
    found = decoded(text)
    if isinstance(found, list) and all(isinstance(one, dict) and "type" in one for one in found):
        return found
    return None


class RoleContentView(RowView):
    """A view of a row whose content is text, or a list of blocks of AgentScope 1.x or OpenAI."""

    __slots__ = ()

    @property
    def blocks(self) -> list[Block]:
        said, calls = self._said, self._calls
        if not calls and self._is_result:
            name = text_of(self.value, CALL_NAME) or self.name or ""
            # Function calls of OpenAI's API before the introduction of tools have no id.
            id = text_of(self.value, CALL_ID) or (name if self._stored_role == "function" else "")
            return [ToolResultBlock(id, name, lambda: said, self.value)]
        if calls and self.content == "":
            return calls
        return said + calls

    @property
    def _said(self) -> list[Block]:
        content = self.content
        if isinstance(content, list):
            return AgentScope1View({CONTENT: content}).blocks
        if content is None or content == "":
            return [TextBlock("", "")] if content == "" else []
        text = content if isinstance(content, str) else jsonio.dumps(content).decode()
        return [TextBlock(text, content)]

    @property
    def _calls(self) -> list[Block]:
        calls = self.value.get(CALLS)
        if isinstance(calls, dict) and "function" not in calls and not calls.get("id"):
            return named_call(calls)
        if calls is None or isinstance(calls, list):
            return calls_of(calls, self._said)
        return [call_of(calls)]

    @property
    def _is_result(self) -> bool:
        if text_of(self.value, CALL_ID):
            return True
        role = self._stored_role
        return role == "function" or (role == "tool" and CALL_NAME in self.value)

    @property
    def _stored_role(self) -> str:
        return (text_of(self.value, ROLE) or "").casefold()

    @property
    def role(self) -> str | None:
        return role_of(text_of(self.value, ROLE))


class RoleContent(RowDialect):
    """The dialect of tables that applications have defined themselves.

    A content is a text, or a list of blocks of AgentScope 1.x (``Msg.content``).  If a table has
    columns for tool calls, the calls are in the format of OpenAI's API, and each tool result is a
    row of its own.
    """

    name = "role-content"
    view = RoleContentView
    documents = False
    tool_words = (b"tool_", b"call", b"function")
    offloads = True

    holds_media = staticmethod(AGENTSCOPE1.holds_media)
    linked = staticmethod(AGENTSCOPE1.linked)
    inlined = staticmethod(AGENTSCOPE1.inlined)

    def rows(
        self, role: str, name: str, time: str | None, blocks: Sequence[Block]
    ) -> list[Message]:
        said: list[Block] = []
        calls: list[dict[str, Any]] = []
        results: list[Message] = []
        for block in blocks:
            if isinstance(block, ToolCallBlock) and CALLS in self.fields:
                calls.append(openai_call(block))
            elif isinstance(block, ToolResultBlock) and CALL_ID in self.fields:
                [row] = super().rows("tool", "", time, block.output)
                called = {CALL_ID: block.id, CALL_NAME: block.name}
                results.append(
                    row
                    | {field: one for field, one in called.items() if one and field in self.fields}
                )
            else:
                said.append(block)
        if results and not (said or calls):
            return results
        [row] = super().rows(role, name, time, said)
        return [row | ({CALLS: calls} if calls else {}), *results]

    def contents(self, role: str, name: str, blocks: Sequence[Block]) -> list[Any]:  # noqa: ARG002
        if not blocks:
            return [""]
        only = blocks[0]
        if len(blocks) == 1 and isinstance(only, TextBlock) and blocks_of(only.text) is None:
            return [only.text]
        return [[AGENTSCOPE1.stored_block(block) for block in blocks]]


ROLE_CONTENT = RoleContent(FIELDS)
