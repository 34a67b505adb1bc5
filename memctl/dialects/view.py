"""The common view of messages in any dialect, and the contract of a dialect.

Source of the block types: ``message/_message_block.py`` of agentscope 1.0.21 and 2.0.11.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from copy import copy
from datetime import datetime, tzinfo
from enum import StrEnum
from functools import partial
from typing import Any, ClassVar, NamedTuple

from memctl.json import jsonio
from memctl.model import Memory


class NotAnObject(ValueError):
    """A message is valid JSON, but not a JSON object."""


def object_of(value: Any, noun: str = "message") -> dict[str, Any]:
    """Return ``value``, which must be a JSON object, unchanged; ``noun`` is the word for it.

    Raises:
        NotAnObject: the value is not a JSON object.
    """
    if not isinstance(value, dict):
        raise NotAnObject(f"a {noun} is not a JSON object")
    return value


def text_of(fields: Mapping[str, Any], name: str) -> str | None:
    """Return the value of the field ``name``; None if the field is missing or not a text."""
    found = fields.get(name)
    return found if isinstance(found, str) else None


def object_at(fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the object in the field ``name``; an empty one if the field holds no object."""
    found = fields.get(name)
    return found if isinstance(found, dict) else {}


def others(fields: Mapping[str, Any], known: Container[str]) -> dict[str, Any]:
    """Return the fields whose names are not in ``known``."""
    return {name: value for name, value in fields.items() if name not in known}


TOOL = "tool"
"""The place of the blocks in the output of a tool."""
READABLE = 1_000_000
"""The maximum number of characters of a text to show: nobody reads more."""


class TextBlock(NamedTuple):
    """A block of text that the author of the message says."""

    text: str
    value: Any = None


class ThinkingBlock(NamedTuple):
    """A block with the reasoning of a model, which is not sent back to the model."""

    text: str
    value: Any = None


class HintBlock(NamedTuple):
    """A block of text that is sent to the model for the next step of reasoning only."""

    text: str
    value: Any = None


class ToolCallBlock(NamedTuple):
    """A block with a tool call; ``input`` holds the decoded arguments.

    ``waits`` is True if the framework has stopped at the call until a person, or another program,
    answers.
    """

    id: str
    name: str
    input: Any = None
    value: Any = None
    waits: bool = False


INTERRUPTED = "The tool call has been interrupted"
"""The text of the result that AgentScope writes for an interrupted call, between tags.

Source: ``agent/_react_agent.py`` of 1.0.21, ``agent/_agent.py`` of 2.0.11.
"""
_SHORT = 100


class ToolResultBlock:
    """A block with the result of the tool call that has the same ``id``.

    ``output`` is parsed on first access, because most readers need only the id.
    """

    __match_args__ = ("id", "name", "output")
    __slots__ = ("_output", "_parse", "id", "name", "value")

    def __init__(
        self, id: str, name: str, output: Callable[[], list[Block]], value: Any = None
    ) -> None:
        self.id = id
        self.name = name
        self.value = value
        self._parse = output
        self._output: list[Block] | None = None

    @property
    def output(self) -> list[Block]:
        """The blocks returned by the tool; a plain text is one TextBlock."""
        if self._output is None:
            self._output = self._parse()
        return self._output

    @property
    def is_interrupted(self) -> bool:
        """True if the result only says that the call was interrupted."""
        match self.output:
            case [TextBlock(text)]:
                return INTERRUPTED in text[:_SHORT]
        return False


class MediaBlock(NamedTuple):
    """A block with an image, audio, video or file: at ``url``, or as base64 text in ``data``."""

    kind: str
    url: str | None = None
    media_type: str | None = None
    data: str | None = None
    value: Any = None

    @property
    def size(self) -> int:
        """The size of the decoded data in bytes, up to two bytes too large."""
        return len(self.data) * 3 // 4 if self.data else 0


class UnknownBlock(NamedTuple):
    """A block of an unknown type; ``kind`` is the type, or ``?`` without a type.

    A block without ``value`` is encrypted, and cannot be read without the key.
    """

    kind: str
    value: Any = None


Block = (
    TextBlock
    | ThinkingBlock
    | HintBlock
    | ToolCallBlock
    | ToolResultBlock
    | MediaBlock
    | UnknownBlock
)
"""A part of the content of a message.  ``value`` is the stored block."""


class CallNames:
    """The names of the tool calls of a memory, for results that are stored without a name."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def given_to(self, blocks: Iterable[Block]) -> list[Block]:
        """Return the blocks of the next message; a result without a name has that of its call."""
        found = list(blocks)
        for block in found:
            match block:
                case ToolCallBlock(id, name):
                    self._names[id] = name
                case ToolResultBlock(id, ""):
                    block.name = self._names.get(id, "")
        return found


def waiting(name: str) -> str:
    """Return the kind of a call that waits, where a message cannot hold the call."""
    return f"{name}: waits for an answer"


def call_text(name: str, arguments: Any) -> str:
    """Return a tool call as one line: the name, then the arguments as JSON."""
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return f"{name} {arguments}"


def local_time(timestamp: str | None, zone: tzinfo | None = None) -> datetime | None:
    """Return an ISO timestamp as local time without a zone; None if it is missing or invalid.

    ``zone`` is the zone of a timestamp without one; None for the local zone.
    """
    try:
        found = datetime.fromisoformat(timestamp or "")
        if found.tzinfo is None:
            found = found.replace(tzinfo=zone)
        return found.astimezone().replace(tzinfo=None) if found.tzinfo else found
    except (ValueError, OverflowError):  # a year out of range
        return None


NOTES = "memctl"
"""The key of memctl's notes in a message, for an exact way back to the original dialect."""


def held(*fields: dict[str, Any]) -> dict[str, Any]:
    """Return all fields of the given objects in one object.

    Empty values and memctl's notes are left out.
    """
    return {
        name: value
        for some in fields
        for name, value in some.items()
        if name != NOTES and value is not None and value not in ("", [], {})
    }


class MessageView(ABC):
    """The properties of one message, the same for every framework.

    ``value`` is the complete decoded message.  The properties are read from ``value`` on access.
    """

    __slots__ = ("value",)
    zone: ClassVar[tzinfo | None] = None
    """See ``Dialect.zone``."""
    time_field: ClassVar[str] = "time"
    known: ClassVar[frozenset[str]] = frozenset()
    """The fields that the view reads, and fields without meaning for a reader."""

    def __init__(self, value: dict[str, Any]) -> None:
        self.value = value

    @property
    def id(self) -> str | None:
        """The id in the message; None if the message contains no id."""
        return text_of(self.value, "id")

    @property
    def role(self) -> str | None:
        """The role, usually ``user``, ``assistant`` or ``system``; None if it is not a text."""
        return text_of(self.value, "role")

    @property
    def name(self) -> str | None:
        """The name of the speaker; None if it is missing or not a text."""
        return text_of(self.value, "name")

    @property
    def time(self) -> str | None:
        """The stored timestamp; None if it is missing or not a text."""
        return text_of(self.value, self.time_field)

    @property
    def moment(self) -> datetime | None:
        """The timestamp as local time without a zone; None if it is missing or invalid."""
        return local_time(self.time, self.zone)

    @property
    @abstractmethod
    def blocks(self) -> list[Block]:
        """The content of the message as blocks; a plain text is one TextBlock."""

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata that the application has attached; empty if there are none."""
        return object_at(self.value, "metadata")

    @property
    def unknown(self) -> dict[str, Any]:
        """The fields of the message that the dialect does not know."""
        return others(self.value, self.known)

    @property
    def unread(self) -> dict[str, Any]:
        """The metadata and unknown fields that are not empty: data that no block shows."""
        return held(self.metadata, self.unknown)

    @property
    @abstractmethod
    def fault(self) -> str:
        """The reason why the framework cannot load or send the message; empty if it can."""

    def texts(self) -> Iterator[str]:
        """Yield the texts of the message: spoken text, thinking, hints and tool outputs."""
        for block in self.blocks:
            match block:
                case TextBlock(text) | ThinkingBlock(text) | HintBlock(text):
                    yield text
                case ToolResultBlock(output=output):
                    yield from (one.text for one in output if isinstance(one, TextBlock))

    def searchable(self) -> str:
        """Return the text in which searches look: all ``texts`` and the tool calls."""
        calls = [block for block in self.blocks if isinstance(block, ToolCallBlock)]
        return "\n".join([*self.texts(), *(call_text(call.name, call.input) for call in calls)])

    @property
    def is_tool_output(self) -> bool:
        """True if the content is results of tool calls and nothing else."""
        blocks = self.blocks
        return bool(blocks) and all(isinstance(block, ToolResultBlock) for block in blocks)


class ToolSide(StrEnum):
    """One half of a tool call: the call or the result."""

    CALL = "call"
    RESULT = "result"

    @property
    def other(self) -> ToolSide:
        """The other half of a tool call: the result for the call, and the call for the result."""
        return ToolSide.RESULT if self is ToolSide.CALL else ToolSide.CALL


COMPRESSED = "compressed"
"""AgentScope's mark of messages for which a summary stands (``agent/_react_agent.py``)."""
HINT = "hint"
"""AgentScope's mark of messages for one step of reasoning (``agent/_react_agent.py``)."""
SUMMARY = "summary"
"""memctl's mark of a message that holds a summary."""


class Unread(StrEnum):
    """The reason why a framework does not read a message of a memory."""

    REWOUND = "rewound"
    """The user took the message back."""
    COMPACTED = "compacted"
    """A summary stands for the message."""
    DELETED = "deleted"
    """The program keeps the message, marked as deleted."""
    OTHER_BRANCH = "other-branch"
    """The message belongs to another line of the conversation, or to another agent alone."""
    NOT_FOR_MEMORY = "not-for-memory"
    """The message is for the framework: a marker, a change of state, a request to the user."""


class Live(NamedTuple):
    """The messages of a whole memory that a framework reads.

    ``order`` has their indexes, in the order in which the framework reads them.  ``unread`` has the
    index of each other message, with the reason.
    """

    order: Sequence[int]
    unread: dict[int, Unread]


class Swap(NamedTuple):
    """An object in a stored block, and the object to put in its place."""

    old: dict[str, Any]
    new: dict[str, Any]


def renamed(value: dict[str, Any], names: dict[str, str], new: dict[str, Any]) -> dict[str, Any]:
    """Return an object with other names of keys, in the same order, and then other values."""
    return {names.get(name, name): one for name, one in value.items()} | new


PairMatcher = Callable[[Sequence[bytes]], Iterator[int]]
"""Takes JSON texts of messages; yields the indexes of those with a wanted half of a tool call."""


class Dialect(ABC):
    """The format of messages: reads stored messages, and makes new messages.

    ::

        view = store.dialect.parse(message.message)
        said = [block.text for block in view.blocks if isinstance(block, TextBlock)]
    """

    name: ClassVar[str]
    view: type[MessageView]
    """The view of a decoded message."""
    local_times: ClassVar[bool] = False
    """True if the framework writes local times without a zone."""
    zone: tzinfo | None = None
    """The zone of the framework's local times; None for the local zone of this machine."""
    keeps_extra: ClassVar[bool] = False
    """True if a memory may have ``Memory.extra`` besides messages, marks and a summary."""
    has_logs: ClassVar[bool] = False
    """True if a memory without ``Memory.extra`` is a log, which has no context."""
    facts: ClassVar[bool] = False
    """True if the messages are facts: independent, unordered, without marks and context."""
    noun: ClassVar[str] = "message"
    """The word for a message in reports."""
    holds_marks: ClassVar[bool] = True
    """True if messages may have marks."""
    holds_summary: bool = True
    """True if a memory may have a summary; else the summary of a copy is its first message."""
    summary_setting: ClassVar[str] = ""
    """The setting without which agents do not get the summary of a memory; empty if all get it."""
    holds_notes: bool = True
    """True if a message can carry notes with data that the dialect cannot express."""
    unsettled: frozenset[str] = frozenset()
    """The fields of a message that a store may change in a write, such as the time in a table
    ordered by time.  Notes do not depend on these fields."""
    orders_by_time: bool = False
    """True if the store orders messages by their times: a message without a time, or with one
    before that of the message before it, gets the time of that."""
    makes_ids: ClassVar[bool] = False
    """True if messages may lack an id; memctl then derives an id from the message."""
    encrypts: ClassVar[bool] = False
    """True if a message may be encrypted; see ``is_encrypted``."""
    answers_within: ClassVar[bool] = False
    """True if a message may hold a tool call and then its result; else results come first."""
    results_follow: ClassVar[bool] = True
    """True if a result has to follow the message of its call, with only results between them."""
    may_wait: ClassVar[bool] = False
    """True if a call at the end of a memory may wait for an approval that is kept elsewhere."""
    all_messages: bool = False
    """True in a conversion that takes messages that the framework does not read for read ones."""
    leaves_out: bool = False
    """True if the messages of a memory may say which of them the framework reads (``live``)."""
    soft_deletion: str = ""
    """The condition of the rows that a program reads, if it marks rows instead of deleting them."""
    depends_on_later: bool = False
    """True if other messages decide what the framework reads, or sends, of a message."""
    last_result_counts: ClassVar[bool] = False
    """True if the framework sends the last result of a call, behind the call.

    It sends neither a call without a result, unless the call waits, nor a result without a call.
    """
    has_own_order: ClassVar[bool] = False
    """True if the framework may read messages in another order than the store has (``live``)."""
    notes_unread: ClassVar[bool] = True
    """True if the notes of a conversion keep the messages that the framework does not read."""
    skips_empty: ClassVar[bool] = False
    """True if the framework does not send messages without content to a model."""
    holds_items: ClassVar[bool] = False
    """True if the messages are items of OpenAI's Responses API.

    The API refuses repeated ids, and reasoning without the following item (``leads``).
    """

    offloads: ClassVar[bool] = False
    """True if ``memctl offload`` serves the messages."""

    def in_zone(self, zone: tzinfo) -> Dialect:  # noqa: ARG002
        """Return the dialect of messages that a framework in another time zone writes."""
        return self

    def with_all_messages(self) -> Dialect:
        """Return the dialect with ``all_messages``."""
        found = copy(self)
        found.all_messages = True
        return found

    @property
    def full_name(self) -> str:
        """The name in records: with the zone of the times, such as ``agentscope1@Asia/Tokyo``."""
        return self.name if self.zone is None else f"{self.name}@{self.zone}"

    def moment(self, timestamp: str | None) -> datetime | None:
        """Return the ``time`` of a view as its ``moment``."""
        return local_time(timestamp, self.zone)

    def view_of(self, value: dict[str, Any]) -> MessageView:
        """Return the view of a decoded message."""
        return self.view(value)

    def parse(self, text: bytes) -> MessageView:
        """Return the view of a stored message, with all values exact.

        Raises:
            NotAnObject: the text is not a JSON object.
            ValueError: the text is not JSON.
        """
        return self.view_of(object_of(jsonio.loads(text), self.noun))

    def outline(self, text: bytes) -> MessageView:
        """Return the view of a stored message; faster than ``parse`` and with less RAM.

        In a message above 1 MiB, texts longer than 1,000 bytes appear empty.

        Raises:
            NotAnObject, ValueError: as ``parse``.
        """
        return self.view_of(object_of(jsonio.outline(text), self.noun))

    def live_view(self, text: bytes) -> MessageView:
        """Return the view of a stored message for ``live`` and ``asked``; it may lack all else.

        Raises:
            NotAnObject, ValueError: as ``parse``.
        """
        return self.parse(text)  # an outline may lack the text that makes ADK send an event

    def role_and_time(self, text: bytes) -> tuple[str | None, str | None]:
        """Return ``role`` and ``time`` of the view of a stored message, faster than ``parse``.

        Raises:
            NotAnObject, ValueError: as ``parse``.
        """
        view = self.outline(text)
        return view.role, view.time

    def superseded(self, views: Sequence[MessageView], order: Sequence[int]) -> set[int]:  # noqa: ARG002
        """Return the indexes of messages that the framework does not send beside later ones.

        ``order`` has the indexes of the messages that the framework reads.
        """
        return set()

    def is_summary(self, view: MessageView) -> bool:  # noqa: ARG002 - in most dialects none is
        """Return whether a message is a summary, which stands for earlier messages."""
        return False

    def is_encrypted(self, text: bytes) -> bool:  # noqa: ARG002 - in most dialects none is
        """Return whether a message is encrypted, so that memctl cannot read it."""
        return False

    def holds_media(self, media: MediaBlock, place: str) -> bool:  # noqa: ARG002 - most do
        """Return whether a message can hold media.

        ``place`` is the role of the message, or ``tool`` in the output of a tool.
        """
        return True

    def not_held(self, block: Block, place: str) -> str:
        """Return the kind of a block that no message of this dialect can hold; empty if one can.

        No message made of another dialect's holds a call that waits: only the framework that
        stopped at the call can go on with it.  ``place`` is as for ``holds_media``.
        """
        match block:
            case UnknownBlock(kind):
                return kind or "?"
            case ToolCallBlock(name=name, waits=True):
                return waiting(name)
            case MediaBlock(kind) if not self.holds_media(block, place):
                return kind
        return ""

    def fitting(self, blocks: Iterable[Block], place: str) -> list[Block]:
        """Return blocks of another dialect for a message of this dialect.

        A word with its kind, such as ``[web_search_call]``, takes the place of a block that no
        message can hold.  ``place`` is as for ``holds_media``.
        """
        found: list[Block] = []
        for block in blocks:
            if kind := self.not_held(block, place):
                block = TextBlock(f"[{kind}]")
            elif isinstance(block, ToolResultBlock):
                output = self.fitting(block.output, TOOL)
                block = ToolResultBlock(block.id, block.name, partial(list, output), block.value)
            found.append(block)
        return found

    @abstractmethod
    def author(
        self, role: str, name: str, content: str | Sequence[Block], moment: datetime
    ) -> tuple[str, bytes]:
        """Make a new message in the format of the framework; return its id and its JSON text.

        ``name`` is the name of the speaker.  ``moment`` is local time without a zone.
        """

    shows_losses: ClassVar[bool] = False
    """True if ``may_be_lost`` is True of each message that loses data in another dialect."""

    def may_be_lost(self, text: bytes) -> bool:  # noqa: ARG002 - only a parsed message tells
        """Return False if any dialect can hold all blocks of a message, and no call waits.

        Faster than ``outline``.
        """
        return True

    def waits(self, memory: Memory) -> bool:
        """Return whether the framework waits for a person, or another program, to go on."""
        return memory.waits

    def is_made(self, value: dict[str, Any]) -> bool:  # noqa: ARG002
        """Return whether memctl has made a message that needs no note for the exact way back."""
        return False

    def live(self, views: Sequence[MessageView]) -> Live:
        """Return which messages of a whole memory the framework reads, whatever their marks."""
        return Live(range(len(views)), {})

    def asked(self, views: Sequence[MessageView]) -> dict[int, int]:
        """Return which messages the framework sends once the user says more, by their places.

        The key is the index of the message in whose place the framework sends the other one.
        """
        return {at: at for at in range(len(views))}

    def sent_text(self, view: MessageView, blocks: Sequence[Block]) -> bytes:  # noqa: ARG002
        """Return the JSON text of a message of which the framework sends ``blocks``."""
        return jsonio.dumps(view.value)

    def leads(self, view: MessageView) -> bool:  # noqa: ARG002 - most stand alone
        """Return whether a model API refuses the message without the next message."""
        return False

    def is_answerable(self, call: ToolCallBlock) -> bool:  # noqa: ARG002 - most are
        """Return whether ``author`` or ``answer`` can make a valid result for this call."""
        return True

    def answer(self, text: bytes, results: Sequence[ToolResultBlock]) -> bytes | None:  # noqa: ARG002
        """Return the message ``text`` with results of its tool calls added.

        None if each result is a separate message in this dialect.
        """
        return None

    def message_id(self, value: dict[str, Any]) -> str | None:
        """Return the id in a decoded message; None if it contains no id."""
        found = value.get("id")
        return found if isinstance(found, str) else None

    def names_itself(self, text: bytes) -> bool:  # noqa: ARG002 - most messages have an id
        """Return False if a message has no id and no time, so that equal messages share an id."""
        return True

    def with_id(self, value: dict[str, Any], id: str) -> str:
        """Set the id of a decoded message; return the id that the message then has.

        If the format has no place for ids, the message stays unchanged, and the returned id is
        derived from its content.
        """
        value["id"] = id
        return id

    def text_block(self, text: str, media: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        """Return a stored block with a text, to stand where the stored block ``media`` stood."""
        return {"type": "text", "text": text}

    def linked(self, media: dict[str, Any], url: str) -> Swap | None:  # noqa: ARG002
        """Return what makes a stored block with base64 data one with a URL; None if nothing does.

        A ``data:`` URL is no such data: another URL simply takes its place.
        """
        return None

    def inlined(self, media: dict[str, Any], media_type: str, data: str) -> Swap | None:  # noqa: ARG002
        """Return the reverse of ``linked``: what makes a block with a URL one with base64 data."""
        return None

    def output_bytes(self, result: ToolResultBlock) -> int:
        """Return the size in bytes of the texts and media in a stored tool result."""
        texts = [one.text for one in result.output if isinstance(one, TextBlock)]
        return sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)

    @abstractmethod
    def summary_message(self, summary: str) -> bytes:
        """Return the message by which the framework sends a summary to a model; it has no id."""

    def context(self, extra: str) -> list[str | bytes] | None:  # noqa: ARG002
        """Return the context of the model in order, as ``Memory.extra`` lists it.

        A str is the id of a message in the memory; bytes are the JSON text of a message.  None if
        ``extra`` does not list the context: then the context is all messages without the mark
        ``compressed``.
        """
        return None

    def renamed(self, extra: str, old: str, new: str) -> str:  # noqa: ARG002
        """Return ``Memory.extra`` with the new name of the session instead of the old one.

        Raises:
            ValueError: the text is not JSON, or is nested too deep.
        """
        return extra

    def without(self, extra: str, is_gone: Callable[[str], bool]) -> str:  # noqa: ARG002
        """Return ``Memory.extra`` without deleted messages.

        ``is_gone`` returns whether all messages with a given id are deleted.
        """
        return extra

    def other_texts(self, shape: str) -> list[bytes]:  # noqa: ARG002
        """Return further versions of a message that its memory holds, as JSON texts.

        For example, the context may hold another version than the log.  ``shape`` is the
        ``StoredMessage.shape`` of the message.
        """
        return []

    def with_other_texts(self, shape: str, texts: Sequence[bytes]) -> str:  # noqa: ARG002
        """Return a shape with other texts in the places of ``other_texts``."""
        return shape

    def is_default(self, extra: str, user: str, session: str) -> bool:  # noqa: ARG002
        """Return whether ``Memory.extra`` has only values that the store sets for a new session."""
        return not extra

    def has_record(self, extra: str, user: str, session: str) -> bool:  # noqa: ARG002
        """Return whether ``Memory.extra`` holds a session record that is not the default.

        A store with ``Features.state_only`` has no place for the record.
        """
        return False

    def settings(self, extra: str, user: str, session: str) -> bytes:
        """Return ``Memory.extra`` in a form that is equal for equal settings of a session.

        The form is empty for the default settings.  It has no times of creation and of the last
        change.
        """
        return b"" if self.is_default(extra, user, session) else extra.encode()

    @abstractmethod
    def tool_sides(self, text: bytes) -> Iterator[tuple[ToolSide, str]]:
        """Yield the tool calls and tool results of a message, each with the id of the call.

        Most messages without a call or result are recognized without parsing.

        Raises:
            ValueError: the message is not JSON.
        """

    def pair_matcher(self, halves: Iterable[tuple[str, ToolSide]]) -> PairMatcher:
        """Return a function that finds the messages with the other halves of tool calls.

        ``halves`` holds the id of each call, and the known half: the call or its result.  The
        function raises ValueError if a message that may have another half is not JSON.
        """
        others = {(side.other, id) for id, side in halves}

        def match(messages: Sequence[bytes]) -> Iterator[int]:
            for index, text in enumerate(messages):
                if not others.isdisjoint(self.tool_sides(text)):
                    yield index

        return match
