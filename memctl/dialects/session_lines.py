"""The sessions of coding agents that are files of JSON lines, kept to the byte.

A message is a line of the session, or a piece of another file of the session::

    {"content": {"type": "user", "message": {"role": "user", "content": "Hi"}}}
    {"end": "", "content": {"type": "mode", "mode": "normal"}}
    {"text": "{\"type\": \"us"}
    {"file": "projects/-srv-shop/5c2d1e00/tool-results/b1.txt", "text": "1\n2\n"}

``content`` is a line that is one JSON object, exactly as stored, and ``end`` what follows the
object if that is not one line feed.  ``text`` is anything else in UTF-8, and ``base64`` other
bytes.  ``file`` is the path of the file in the folder of the agent; a line of the session itself
has none.  ``messages_of`` and ``piece_of`` are each other's reverse.
"""

from __future__ import annotations

from abc import abstractmethod
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import IO, Any, ClassVar, NamedTuple

from memctl.dialects.agentscope import CONTENT
from memctl.dialects.conversion import Message, digest_of
from memctl.dialects.rows import METADATA, TIME, DocumentView, RowDialect, utc
from memctl.dialects.view import (
    NOTES,
    Block,
    MessageView,
    TextBlock,
    ToolResultBlock,
    UnknownBlock,
    local_time,
    object_at,
    object_of,
    others,
    text_of,
)
from memctl.json import jsonio
from memctl.model import MemoryKey

FILE, END, TEXT, BASE64 = "file", "end", "text", "base64"
PIECE = 1 << 20
"""The largest size in bytes of a piece of a file that has no lines of JSON."""
LONGEST_LINE = 256 << 20
"""The largest size of a line in bytes; a longer one is pieces."""
LINES = ".jsonl"
TIMESTAMP = "timestamp"
NAMES = "memctl"
"""The key of memctl's notes in a line, and of the names of a memory of another store."""
_CONTENT, _SPACE = b'"content":', b" \t\r\n"
_ID_BYTES = 10
_NOT_SAID = frozenset({METADATA, TIME})


class Piece(NamedTuple):
    """Consecutive bytes of a file; ``file`` is empty for the session itself."""

    file: str
    data: bytes


def messages_of(data: IO[bytes], file: str = "") -> Iterator[tuple[Message, bytes]]:
    """Yield the messages for the bytes of a file, each with its JSON text.

    ``file`` is as in ``Piece``.
    """
    if file and not file.endswith(LINES):
        while piece := data.read(PIECE):
            yield _other(piece, file)
        return
    named = {FILE: file} if file else {}
    head = _head(named)
    while line := data.readline(LONGEST_LINE):
        body = line.rstrip(_SPACE)
        content = _object_in(body)
        if content is None:
            yield _other(line, file)
        elif line[len(body) :] == b"\n":
            yield named | {CONTENT: content}, b"%b%b}" % (head, body)
        else:
            about = named | {END: line[len(body) :].decode()}
            yield about | {CONTENT: content}, b"%b%b}" % (_head(about), body)


def piece_of(message: bytes) -> Piece:
    """Return the bytes for which a message of ``messages_of`` stands.

    Raises:
        ValueError: the text is no such message.
    """
    value = object_of(jsonio.loads(message))
    if not value.keys() <= {FILE, CONTENT, END, TEXT, BASE64}:
        raise ValueError("it is not a line of a session")
    file = value.get(FILE, "")
    if CONTENT not in value:
        text = value.get(TEXT)
        return Piece(file, b64decode(value[BASE64]) if text is None else text.encode())
    if [*value][-1] != CONTENT:
        raise ValueError("its content is not its last field")
    line = message.rstrip(_SPACE)[message.index(_CONTENT) + len(_CONTENT) : -1].strip(_SPACE)
    return Piece(file, line + value.get(END, "\n").encode())


def count_of(data: IO[bytes], file: str = "") -> int:
    """Return the number of messages of ``messages_of``, without looking at them."""
    number, last = 0, b"\n"
    has_lines = not file or file.endswith(LINES)
    while piece := data.read(PIECE):
        number += piece.count(b"\n") if has_lines else 1
        last = piece[-1:]
    return number + (has_lines and last != b"\n")


def _head(fields: dict[str, str]) -> bytes:
    """Return the beginning of a message with ``fields`` before the content."""
    return (jsonio.dumps(fields)[:-1] + b"," if fields else b"{") + _CONTENT


def _object_in(line: bytes) -> Message | None:
    """Return the JSON object of a line in UTF-8 that is one, without line breaks in it, or None."""
    if line[:1] != b"{" or b"\r" in line:  # archives turn this control character into a space
        return None
    try:
        line.decode()
        found = jsonio.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _other(data: bytes, file: str) -> tuple[Message, bytes]:
    named = {FILE: file} if file else {}
    try:
        found = named | {TEXT: data.decode()}
    except UnicodeDecodeError:
        found = named | {BASE64: b64encode(data).decode()}
    return found, jsonio.dumps(found)


def timestamp_of(moment: datetime) -> str:
    """Return a time as the agents write it, such as ``2026-11-20T10:00:01.000Z``."""
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%f}"[:23] + "Z"


def is_start(line: Message) -> bool:
    """Return whether a line is the first of a session that memctl has made, with its names."""
    names = line.get(NAMES)
    return isinstance(names, list) and [type(name) for name in names] == [str, str, str]


class SessionLineView(DocumentView):
    """A view of a line of a session, or of a piece of another file.

    What all ask for is found once: reports and contexts look at millions of lines.
    """

    __slots__ = ("_blocks", "_document", "is_own", "kind")

    def __init__(self, value: Message) -> None:
        super().__init__(value)
        self._document = object_at(value, CONTENT)
        self.kind = text_of(self._document, "type") or ""
        """The type of the line; empty if it has none."""
        self.is_own = FILE not in value and CONTENT in value
        """True for a line of the session itself that is a JSON object."""
        self._blocks: list[Block] | None = None

    @property
    def document(self) -> dict[str, Any]:
        return self._document

    @property
    def role(self) -> str | None:
        return None if CONTENT in self.value else "system"  # as a result of a tool

    @property
    def name(self) -> str | None:
        return None

    @property
    def time(self) -> str | None:
        return text_of(self.value, TIME) or text_of(self.document, TIMESTAMP)

    @property
    def unknown(self) -> dict[str, Any]:
        return {}

    @property
    def fault(self) -> str:
        text = self.value.get(TEXT, BASE64)
        if FILE in self.value or CONTENT in self.value or not text.strip():
            return ""
        return "it is not a line of JSON"

    @property
    def blocks(self) -> list[Block]:
        if self._blocks is not None:
            return self._blocks
        if CONTENT in self.value:
            self._blocks = self._said()
        elif BASE64 in self.value:
            self._blocks = [UnknownBlock(BASE64, self.value)]
        else:
            self._blocks = [TextBlock(text_of(self.value, TEXT) or "", self.value)]
        return self._blocks

    @property
    def said(self) -> list[Block]:
        """The content of the line; empty for the bookkeeping of the agent, and for other files."""
        return self.blocks if CONTENT in self.value else []

    @abstractmethod
    def _said(self) -> list[Block]:
        """Return the blocks of a line that is a JSON object."""

    def for_live(self) -> None:
        """Forget all but what ``Dialect.live`` looks at, and most of all the texts."""
        self._blocks = [_without_content(block) for block in self.blocks]
        self._document = self.live_fields()
        self.value = {CONTENT: self._document} if CONTENT in self.value else {}

    @abstractmethod
    def live_fields(self) -> dict[str, Any]:
        """Return the fields of the line that ``Dialect.live`` looks at."""


def _without_content(block: Block) -> Block:
    return ToolResultBlock(block.id, "", list) if isinstance(block, ToolResultBlock) else _SAID


_SAID = TextBlock("")


def chosen(fields: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return the fields with these names."""
    return {name: fields[name] for name in names if name in fields}


class SessionLines(RowDialect):
    """The base class of the dialects of coding agents that write lines of JSON."""

    view: type[SessionLineView]
    leaves_out = True
    depends_on_later = True
    has_own_order = True
    notes_unread = False  # they are several times larger than what is read
    note_key = NAMES
    may_wait = True

    def live_view(self, text: bytes) -> MessageView:
        view = self.outline(text)
        if isinstance(view, SessionLineView):
            view.for_live()
        return view

    def foreign(self, content: Any) -> str:
        return "" if isinstance(content, dict) else f"is no line of {self.framework}"

    def __init__(self) -> None:
        super().__init__(frozenset({TIME}))
        self.unsettled = frozenset({TIME})

    def message_id(self, value: Message) -> str:
        """Return the id in a line, or a digest of it; equal lines have one id."""
        own = self.own_id(value.get(CONTENT))
        return digest_of(others(value, _NOT_SAID), _ID_BYTES) if own is None else own

    added: ClassVar[frozenset[str]]
    """The fields that ``completed`` adds to a line."""

    def unpack(self, content: Any) -> Message:
        """Return the message of a line that memctl has made, as it was before ``completed``."""
        value = super().unpack(content)
        if METADATA not in value:
            return value
        line = value[CONTENT]
        value[CONTENT] = others(line, self.added)
        notes = value.pop(METADATA)[NOTES]
        own = others(notes, {TIME})
        if own:
            value[METADATA] = {NOTES: own}
        moment = None if TIME in notes else local_time(text_of(line, TIMESTAMP))
        return value if moment is None else {TIME: utc(moment)} | value

    def timed(self, value: Message) -> Message:
        """Return the content to store for a message that memctl has made, with its time.

        The notes of the line show that memctl has made it.  The notes of a message without a time
        have the time None.
        """
        packed: Message = self.pack(value)
        notes = packed.get(NAMES, {})
        time = text_of(value, TIME)
        if time is None:
            return packed | {NAMES: notes | {TIME: None}}
        # The agents write milliseconds.
        written = time.replace("+00:00", "Z").replace("000Z", "Z")
        return packed | {NAMES: notes, TIMESTAMP: written}

    def is_made(self, value: Message) -> bool:
        line = value.get(CONTENT)
        return isinstance(line, dict) and self.is_new(line)

    @abstractmethod
    def is_new(self, line: Message) -> bool:
        """Return whether memctl has made a line, which is not completed."""

    @abstractmethod
    def begun(self, names: MemoryKey, id: str, project: str, moment: datetime) -> list[Message]:
        """Return the first lines of a new session for a memory of another store.

        ``names`` are those of the memory, ``id`` is that of the session, and ``project`` the folder
        in which the agent will work.
        """

    @abstractmethod
    def completed(self, line: Message, before: Message, start: Message) -> list[Message]:
        """Return a line that memctl has made, with what the agent needs besides.

        ``before`` is the line before it, and ``start`` the first line of ``begun``.
        """
