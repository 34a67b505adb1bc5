"""A message in any dialect: the views that operations see, and the contract of a dialect.

Source of the block types: ``message/_message_block.py`` of agentscope 1.0.21 and 2.0.11.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar, NamedTuple


class NotAnObject(ValueError):
    """A message that is JSON, and not a JSON object."""


def object_of(value: Any) -> dict[str, Any]:
    """Return a decoded message.

    Raises:
        NotAnObject: the value is not a JSON object.
    """
    if not isinstance(value, dict):
        raise NotAnObject("a message is not a JSON object")
    return value


class TextBlock(NamedTuple):
    """Text that the speaker says."""

    text: str
    value: Any = None


class ThinkingBlock(NamedTuple):
    """Reasoning of a model, which is not sent back to it."""

    text: str
    value: Any = None


class HintBlock(NamedTuple):
    """Text for the next step of reasoning only."""

    text: str
    value: Any = None


class ToolCallBlock(NamedTuple):
    """A call of a tool; ``input`` is the decoded arguments."""

    id: str
    name: str
    input: Any = None
    value: Any = None


class ToolResultBlock:
    """The result of a tool call that has the same id.

    ``output`` is taken apart when it is first asked for: most readers need the id alone.
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
        """The blocks that the tool returned; a plain text is one TextBlock."""
        if self._output is None:
            self._output = self._parse()
        return self._output


class MediaBlock(NamedTuple):
    """An image, a sound or a film: at ``url``, or along with the message as base64 ``data``."""

    kind: str
    url: str | None = None
    media_type: str | None = None
    data: str | None = None
    value: Any = None

    @property
    def size(self) -> int:
        """The bytes of the decoded data."""
        return len(self.data) * 3 // 4 if self.data else 0


class UnknownBlock(NamedTuple):
    """A block of a type that the dialect does not know; ``kind`` is that type, ``?`` without.

    Without a ``value``, the block is one that nobody can read without a key.
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
"""A piece of the content of a message.  ``value`` is the block as it was stored."""


def call_text(name: str, arguments: Any) -> str:
    """Return the call of a tool as a text."""
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return f"{name} {arguments}"


def local_time(timestamp: str | None) -> datetime | None:
    """Return a timestamp as local time without a zone; None where it cannot be read."""
    try:
        found = datetime.fromisoformat(timestamp or "")
    except ValueError:
        return None
    return found.astimezone().replace(tzinfo=None) if found.tzinfo else found


NOTES = "memctl"
"""The key under which messages carry notes of memctl, for an exact way back to another dialect."""


def held(*fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that have a value, without the notes of memctl."""
    return {
        name: value
        for some in fields
        for name, value in some.items()
        if name != NOTES and value is not None and value not in ("", [], {})
    }


class MessageView(ABC):
    """A view of one message, read from its stored text when it is asked for.

    ``value`` is the decoded message, with all that the properties do not show.
    """

    __slots__ = ("value",)

    def __init__(self, value: dict[str, Any]) -> None:
        self.value = value

    @property
    @abstractmethod
    def id(self) -> str | None:
        """The message's own id; None where it has none."""

    @property
    @abstractmethod
    def role(self) -> str | None:
        """``user``, ``assistant`` or ``system``, as stored; None where it is not a text."""

    @property
    @abstractmethod
    def name(self) -> str | None:
        """The name of the speaker; None where it is not a text."""

    @property
    @abstractmethod
    def time(self) -> str | None:
        """The timestamp, as stored; None where it is not a text."""

    @property
    def moment(self) -> datetime | None:
        """The timestamp as local time without a zone; None where it cannot be read."""
        return local_time(self.time)

    @property
    @abstractmethod
    def blocks(self) -> list[Block]:
        """The content; a plain text is one TextBlock."""

    @property
    @abstractmethod
    def metadata(self) -> dict[str, Any]:
        """The metadata that the application attached; empty where there is none."""

    @property
    @abstractmethod
    def unknown(self) -> dict[str, Any]:
        """The fields of the message that the dialect does not know."""

    @property
    def unread(self) -> dict[str, Any]:
        """The fields with a value that no other property shows: metadata, and unknown fields."""
        return held(self.metadata, self.unknown)

    @property
    @abstractmethod
    def fault(self) -> str:
        """The reason why the framework cannot load or send the message; empty where it can."""

    @abstractmethod
    def texts(self) -> Iterator[str]:
        """Yield every readable text: what is said, thinking, and the output of tools."""

    def searchable(self) -> str:
        """Return all that a search looks at: the readable texts, and the calls of tools."""
        calls = [block for block in self.blocks if isinstance(block, ToolCallBlock)]
        return "\n".join([*self.texts(), *(call_text(call.name, call.input) for call in calls)])


class ToolSide(StrEnum):
    """One half of a tool call: the call itself, or its result."""

    CALL = "call"
    RESULT = "result"

    @property
    def other(self) -> ToolSide:
        """The other half."""
        return ToolSide.RESULT if self is ToolSide.CALL else ToolSide.CALL


PairMatcher = Callable[[Sequence[bytes]], Iterator[int]]
"""Yields the indexes of the messages that match, given their texts; see ``Store.find_messages``."""


class Dialect(ABC):
    """The format of messages: how to read them, and how to write new ones.

    ::

        view = store.dialect.parse(message.message)
        said = [block.text for block in view.blocks if isinstance(block, TextBlock)]
    """

    name: ClassVar[str]
    keeps_extra: ClassVar[bool] = False
    """True if a memory has more than messages, marks and a summary: ``Memory.extra``."""
    has_logs: ClassVar[bool] = False
    """True if a memory without ``Memory.extra`` is a log, which has no context."""
    facts: ClassVar[bool] = False
    """True if its messages are facts: each for itself, in no order, without marks or a context."""
    noun: ClassVar[str] = "message"
    """The word for one of them in reports."""
    holds_marks: ClassVar[bool] = True
    """True if its messages may have marks."""
    holds_notes: bool = True
    """True if a message can carry what its dialect cannot express, in its ``metadata``."""
    unsettled: frozenset[str] = frozenset()
    """Fields of a message that a store may change when it writes the message, such as the time by
    which a table orders messages.  A note does not depend on these fields."""
    makes_ids: ClassVar[bool] = False
    """True if a message need not have an id: memctl makes one of what it says."""
    encrypts: ClassVar[bool] = False
    """True if a message may be encrypted; see ``is_encrypted``."""
    answers_within: ClassVar[bool] = False
    """A message may hold a call and, after it, its result; else results come before calls."""
    results_follow: ClassVar[bool] = True
    """A result has to follow the message of its call directly, with only results between them."""
    last_result_counts: ClassVar[bool] = False
    """A call may have several results, of which the framework sends the last one."""
    skips_empty: ClassVar[bool] = False
    """The framework does not send messages without content to a model."""
    holds_items: ClassVar[bool] = False
    """Its messages are items of OpenAI's Responses API, which refuses an id that occurs twice, and
    reasoning without the item that it belongs to (``leads``)."""

    @abstractmethod
    def parse(self, text: bytes) -> MessageView:
        """Return the view of a stored message, exact in every value.

        Raises:
            NotAnObject: it is not a JSON object.
            ValueError: it is not JSON.
        """

    @abstractmethod
    def outline(self, text: bytes) -> MessageView:
        """Return a view for short fields, quick and of little memory.

        In a message above 1 MiB, texts longer than 1,000 bytes are empty.

        Raises:
            NotAnObject, ValueError: as ``parse``.
        """

    @abstractmethod
    def role_and_time(self, text: bytes) -> tuple[str | None, str | None]:
        """Return the role and the time of a message, without a view: for counting a million.

        Raises:
            NotAnObject, ValueError: as ``parse``.
        """

    def is_encrypted(self, text: bytes) -> bool:  # noqa: ARG002 - in most dialects none is
        """Return whether a message can be read only with a key that memctl does not have."""
        return False

    @abstractmethod
    def author(
        self, role: str, name: str, content: str | Sequence[Block], moment: datetime
    ) -> tuple[str, bytes]:
        """Return the new id and the text of a message as the framework would have stored it.

        ``moment`` is local time without a zone.
        """

    def leads(self, view: MessageView) -> bool:  # noqa: ARG002 - most stand alone
        """Return whether a message belongs to the next one, without which it is refused."""
        return False

    def is_answerable(self, call: ToolCallBlock) -> bool:  # noqa: ARG002 - most are
        """Return whether ``author``, or ``answer``, makes results that fit a call."""
        return True

    def answer(self, text: bytes, results: Sequence[ToolResultBlock]) -> bytes | None:  # noqa: ARG002
        """Return a message with the results of its calls; None if a result is a message."""
        return None

    def message_id(self, value: dict[str, Any]) -> str | None:
        """Return the id of a decoded message; None without one."""
        found = value.get("id")
        return found if isinstance(found, str) else None

    def with_id(self, value: dict[str, Any], id: str) -> str:
        """Give a new message an id, where there is a place for one; return the id that it has."""
        value["id"] = id
        return id

    @abstractmethod
    def output_bytes(self, result: ToolResultBlock) -> int:
        """Return the bytes of the texts in a stored result, media included."""

    @abstractmethod
    def summary_message(self, summary: str) -> bytes:
        """Return the message, without an id, in which a model is sent a summary."""

    def context(self, extra: str) -> list[str | bytes] | None:  # noqa: ARG002
        """Return the messages that the model is sent, in order: ids, and texts of others.

        None where ``Memory.extra`` does not say: these are those without the mark ``compressed``.
        """
        return None

    def without(self, extra: str, is_gone: Callable[[str], bool]) -> str:  # noqa: ARG002
        """Return ``Memory.extra`` without what it says of messages that go, given their ids."""
        return extra

    def other_texts(self, shape: str) -> list[bytes]:  # noqa: ARG002
        """Return the texts that a message of this shape also has in its memory, as messages."""
        return []

    def is_default(self, extra: str, user: str, session: str) -> bool:  # noqa: ARG002
        """Return whether ``Memory.extra`` is what a store makes of itself for this session."""
        return not extra

    def has_record(self, extra: str, user: str, session: str) -> bool:  # noqa: ARG002
        """Return whether an extra has more than the state of a session; of most dialects none has.

        See ``Features.state_only``.
        """
        return False

    def settings(self, extra: str, user: str, session: str) -> bytes:
        """Return what ``Memory.extra`` says, for comparisons; empty where it is the default.

        Times at which the memory was used are not part of it.
        """
        return b"" if self.is_default(extra, user, session) else extra.encode()

    @abstractmethod
    def tool_sides(self, text: bytes) -> Iterator[tuple[ToolSide, str]]:
        """Yield the calls and results of a message, each with its id.

        Does not parse messages that cannot have any.

        Raises:
            ValueError: the message is not JSON.
        """

    def pair_matcher(self, halves: Iterable[tuple[str, ToolSide]]) -> PairMatcher:
        """Return a function that finds the messages with the other half of some calls.

        ``halves`` are ids, each with the side that is known.  The function raises ValueError if a
        message that may match is not JSON.
        """
        others = {(side.other, id) for id, side in halves}

        def match(messages: Sequence[bytes]) -> Iterator[int]:
            for index, text in enumerate(messages):
                if not others.isdisjoint(self.tool_sides(text)):
                    yield index

        return match
