"""The records of memctl's archive: one JSON object per line.

    {"memctl":"archive","version":1,"created":"2025-03-01T12:00:00+01:00","source":"redis://host/0"}
    {"memory":{"user":"u","session":"s","summary":null,"attributes":{}}}
    {"message":{...as it was stored...},"marks":["hint"],"id":"..."}
    {"end":{"memories":1,"messages":1,"digest":"sha256:..."}}

An archive has version 2 if its messages are in a dialect other than AgentScope 1.x.  The first
line names the dialect, such as ``"dialect":"agentscope2"``.  Archives of facts have version 3.  If
facts have vectors, the first line describes the vectors:
``"embedding":{"model":"...","dimensions":384}``.

The messages of a memory follow the memory's line, in order.  The digest covers all bytes before
the last line.

Optional fields of a memory are ``part``, if a session has several memories; ``extra``, the text of
``Memory.extra``; and the attributes ``ttl`` (the seconds left), ``place``, ``owner`` and ``waits``,
as in ``Memory``.

Optional fields of a message are ``index``, the position column of the SQL layout; and ``shape``,
the form in which the store held the message.  Only archives that memctl keeps for undo have
``shape``.  Line breaks in a message become spaces; archives for undo encode line breaks (see
``jsonio.in_one_line``).  With ``id``, memctl writes and compares lines without parsing the
message.

The digest shows that memctl has written all lines: a line in another form is damage.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import Enum
from itertools import chain, repeat
from typing import Any, NamedTuple

import orjson

from memctl.dialects.agentscope1 import AGENTSCOPE1
from memctl.dialects.view import Dialect
from memctl.errors import BadData
from memctl.json import jsonio
from memctl.model import LARGEST_MESSAGE, Embedding, Memory, MemoryKey, StoredMessage
from memctl.storekit.batching import are_objects, messages_from_columns
from memctl.storekit.encrypted import Sink

Line = bytes | bytearray

VERSION = 1
DIALECT_VERSION = 2
"""The version of an archive whose messages are not in the dialect of AgentScope 1.x."""
LATEST_VERSION = 3
"""The version of an archive of facts."""
LARGEST_RECORD = 64 * 1024 * 1024
"""The limit in bytes of a line that is not a message."""
LARGEST_REST = 1024 * 1024
"""The limit in bytes for all fields of a message line after the message itself."""
_LARGE = 1024 * 1024
MESSAGE = b'{"message":'
MARKS = b',"marks":'


class LineKind(Enum):
    """The kinds of lines in an archive, without the first line."""

    MEMORY = "memory"
    MESSAGE = "message"
    END = "end"


_PREFIXES = {kind: b'{"%b":' % kind.value.encode() for kind in LineKind}


class EndRecord(NamedTuple):
    """The last line of an archive: its counts, and the digest of all earlier lines."""

    memories: int
    messages: int
    digest: str


class ArchiveWriter:
    """A writer of an archive to a stream, line by line, in constant memory.

    ``memory`` opens a memory.  Its messages follow by ``entries``, or by ``copy`` as lines of
    another archive.  ``finish`` ends the archive; the stream stays open.
    """

    def __init__(
        self,
        stream: Sink,
        *,
        created: str,
        source: str | None = None,
        header: Mapping[str, Any] | None = None,
        dialect: Dialect = AGENTSCOPE1,
        embedding: Embedding | None = None,
        keeps_lines: bool = False,
    ) -> None:
        """Write the first line, the header.

        ``created`` is a time in ISO 8601, ``source`` the place of the memories, ``dialect`` the
        dialect of the messages, and ``embedding`` the model and size of their vectors.  With
        ``keeps_lines``, line breaks in messages are encoded, and a reader restores them.

        ``header`` is the header of an archive that the new archive will replace.  Its fields are
        kept, except the time.
        """
        self.memories = 0
        self.messages = 0
        self._stream = stream
        self._keeps_lines = keeps_lines
        self._hash = hashlib.sha256()
        new = {"memctl": "archive", "version": VERSION, "created": created, "source": source}
        record = {**header, "created": created} if header else new
        if dialect.full_name != record.get("dialect", AGENTSCOPE1.name):
            version = LATEST_VERSION if dialect.facts else DIALECT_VERSION
            record |= {"version": version, "dialect": dialect.full_name}
        if embedding is not None:
            record["embedding"] = embedding._asdict()
        self._write(jsonio.dumps(record) + b"\n")

    def memory(self, memory: Memory) -> None:
        """Write the line that opens a memory.

        Raises:
            BadData: the line is too large.
        """
        self.section(memory_line(memory))

    def section(self, line: bytes) -> None:
        """Write ``line``, which opens a memory and has its line end."""
        self._write(line)
        self.memories += 1

    def entries(self, entries: Sequence[StoredMessage]) -> None:
        """Write messages of the memory that was opened last.

        Raises:
            BadData: a message is too large or not a JSON object.
        """
        for lines, messages in self.lines(entries):
            self.copy(lines, messages)

    def lines(self, entries: Sequence[StoredMessage]) -> Iterator[tuple[bytes, int]]:
        """Yield the lines of messages in pieces (``message_lines``)."""
        return message_lines(entries, keeps_lines=self._keeps_lines)

    def copy(self, lines: bytes | memoryview, messages: int) -> None:
        """Write message lines or pieces of them; ``messages`` is the number of messages."""
        self._write(lines)
        self.messages += messages

    def finish(self) -> None:
        """Write the last line, with counts and digest."""
        digest = digest_text(self._hash.hexdigest())
        end = {"memories": self.memories, "messages": self.messages, "digest": digest}
        self._stream.write(jsonio.dumps({"end": end}) + b"\n")
        self._stream.flush()

    def _write(self, data: bytes | memoryview) -> None:
        self._hash.update(data)
        self._stream.write(data)


def digest_text(hexadecimal: str) -> str:
    """Return a hexadecimal digest as the last line of an archive has it: ``sha256:...``."""
    return f"sha256:{hexadecimal}"


def memory_line(memory: Memory) -> bytes:
    """Return the line that opens a memory, with its line end.

    Raises:
        BadData: the line is too large.
    """
    user, session, part = memory.key
    record: dict[str, Any] = {"user": user, "session": session}
    if part:
        record["part"] = part
    record["summary"] = memory.summary
    attributes = {
        "ttl": memory.ttl,
        "place": memory.place,
        "owner": memory.owner,
        "waits": memory.waits or None,
    }
    record["attributes"] = {name: value for name, value in attributes.items() if value is not None}
    if memory.extra:
        record["extra"] = memory.extra
    return _bounded(jsonio.dumps({"memory": record}), memory.key)


def with_fields(line: Line, **fields: str) -> bytes:
    """Return ``line``, which opens a memory, with some of its fields replaced, and a line end.

    Raises:
        BadData: the line is too large.
    """
    record = jsonio.loads(bytes(line))
    record["memory"] |= fields
    return _bounded(jsonio.dumps(record), read_memory(line).key)


def with_names(line: Line, memory: Memory) -> bytes:
    """Return ``line``, which opens a memory, with the names and the extra of ``memory``.

    Raises:
        BadData: the line is too large.
    """
    record = jsonio.loads(bytes(line))
    about = record["memory"]
    about |= {"user": memory.key.user, "session": memory.key.session}
    if memory.owner is not None:
        about["attributes"]["owner"] = memory.owner
    if memory.extra:
        about["extra"] = memory.extra
    return _bounded(jsonio.dumps(record), memory.key)


def _bounded(line: bytes, key: MemoryKey) -> bytes:
    """Add a line end to the line that opens a memory.

    Raises:
        BadData: the line is too large.
    """
    if len(line) >= LARGEST_RECORD:
        raise BadData(
            f"the memory {key} has a summary that is too large for an archive",
            f"the limit is {LARGEST_RECORD >> 20} MiB",
        )
    return line + b"\n"


def message_lines(
    entries: Sequence[StoredMessage], *, keeps_lines: bool = False
) -> Iterator[tuple[bytes, int]]:
    """Yield the lines of messages in pieces, each with the number of messages that end in it.

    ``keeps_lines`` encodes line breaks in messages, so that they can be restored.  Messages from
    stores are known to be JSON objects, so only messages without braces at both ends are parsed.

    Raises:
        BadData: a message is not a JSON object, or is too large.
    """
    messages = [entry.message for entry in entries]
    if {text[:1] + text[-1:] for text in messages} - {b"{}"}:
        _check(entries)
    tails = _tails(entries)
    if max(map(len, messages), default=0) < _LARGE:
        pieces = zip(repeat(MESSAGE), messages, tails, strict=False)
        lines = b"".join(chain.from_iterable(pieces))
        broken = any(map(bytes.__contains__, messages, repeat(b"\n")))
        if not broken and b"\r" not in lines:
            yield lines, len(messages)
            return
    del messages
    for entry, tail in zip(entries, tails, strict=True):
        if len(entry.message) > LARGEST_MESSAGE or len(tail) > LARGEST_REST:
            raise BadData(
                f"the message {entry.id[:100]!r} is too large for an archive",
                f"the limit of a message is {LARGEST_MESSAGE >> 20} MiB, that of its id and marks "
                f"{LARGEST_REST >> 20} MiB",
            )
        yield MESSAGE, 0
        in_one_line = jsonio.in_one_line if keeps_lines else _without_line_breaks
        yield in_one_line(entry.message), 0
        yield tail, 1


def _check(entries: Sequence[StoredMessage]) -> None:
    for entry in entries:
        try:
            jsonio.field(entry.message, "id")
        except ValueError as error:
            raise BadData(f"the message {entry.id!r} is not a JSON object: {error}") from error


def _without_line_breaks(message: bytes) -> bytes:
    # JSON strings escape line breaks, so a raw line break is only white space.
    return message.replace(b"\n", b" ").replace(b"\r", b" ")


def _tails(entries: Sequence[StoredMessage]) -> list[bytes]:
    marks = {
        some: jsonio.dumps({"marks": some}).decode() for some in {one.marks for one in entries}
    }
    marks = {some: f',{text[1:-1]},"id":' for some, text in marks.items()}
    # The JSON is pure ASCII without raw line breaks, so a line break can separate the ids.
    ids = json.dumps([one.id for one in entries], separators=("\n", ":"))[1:-1].split("\n")
    ends = [_end(one) if one.position is not None or one.shape else "}\n" for one in entries]
    return [
        f"{marks[one.marks]}{id}{end}".encode()
        for one, id, end in zip(entries, ids, ends, strict=False)
    ]


def _end(entry: StoredMessage) -> str:
    index = "" if entry.position is None else f',"index":{entry.position}'
    shape = f',"shape":{json.dumps(entry.shape)}' if entry.shape else ""
    return f"{index}{shape}}}\n"


def kind_of(line: Line) -> LineKind:
    """Return the kind of a line.

    Raises:
        ValueError: the line is not a line of an archive.
    """
    for kind, prefix in _PREFIXES.items():
        if line.startswith(prefix):
            return kind
    jsonio.loads(bytes(line))  # its error says more
    raise ValueError("not a record of an archive")


def read_header(line: Line) -> dict[str, Any] | None:
    """Return the fields of the first line of an archive; None if ``line`` is no such line."""
    try:
        record = jsonio.loads(bytes(line))
    except ValueError:
        return None
    if not isinstance(record, dict) or record.get("memctl") != "archive":
        return None
    return record if type(record.get("version")) is int else None


def read_embedding(header: Mapping[str, Any]) -> Embedding | None:
    """Return the model and size of vectors in the header of an archive; None without vectors.

    Raises:
        ValueError: the field ``embedding`` of the header is malformed.
    """
    if header.get("embedding") is None:
        return None
    found = _object(header["embedding"])
    model, dimensions = found.get("model"), found.get("dimensions")
    if not isinstance(model, str) or type(dimensions) is not int or dimensions < 1:
        raise ValueError("the embedding is not a model and its dimensions")
    return Embedding(model, dimensions)


def read_memory(line: Line) -> Memory:
    """Return the memory, without messages, from the archive line that opens the memory.

    Raises:
        ValueError: the line is malformed.
    """
    record = _object(_object(jsonio.loads(bytes(line))).get("memory"))
    user, session, part = record.get("user"), record.get("session"), record.get("part", "")
    attributes = _object(record.get("attributes", {}))
    summary, ttl = record.get("summary"), attributes.get("ttl")
    place, owner = attributes.get("place"), attributes.get("owner")
    if not (isinstance(user, str) and isinstance(session, str) and isinstance(part, str)):
        raise ValueError("the name of the memory is not a string")
    if not isinstance(summary, str | None) or not isinstance(ttl, int | float | None):
        raise ValueError("the summary is not a string, or the ttl not a number")
    extra = record.get("extra", "")
    if not all(isinstance(text, str | None) for text in (place, owner)) or not isinstance(
        extra, str
    ):
        raise ValueError("the place or another value of the memory is not a string")
    waits = attributes.get("waits") is True
    return Memory(MemoryKey(user, session, part), summary, ttl, extra, place, owner, waits=waits)


def read_end(line: Line) -> EndRecord:
    """Return the counts and the digest in the last line of an archive.

    Raises:
        ValueError: the line is not a JSON object with the object ``end``.
    """
    record = _object(_object(jsonio.loads(bytes(line))).get("end"))
    return EndRecord(
        record.get("memories", -1), record.get("messages", -1), record.get("digest", "")
    )


def text_of(line: Line) -> bytes:
    """Return the JSON text of the message of a line, with its line breaks.

    Raises:
        ValueError: the line is malformed.
    """
    return jsonio.in_lines(jsonio.utf8(bytes(memoryview(line)[len(MESSAGE) : _rest_at(line)])))


def _rest_at(line: Line) -> int:
    at = line.rfind(MARKS)
    if at < 0 or not line.startswith(MESSAGE):
        raise ValueError("not the line of a message")
    return at


def outline(line: Line) -> StoredMessage:
    """Return the message of a line with empty JSON.

    Raises:
        ValueError: the line is malformed.
    """
    fields = _object(jsonio.loads(b"{" + bytes(line[_rest_at(line) + 1 :])))
    marks, id, index = fields.get("marks"), fields.get("id"), fields.get("index")
    shape = fields.get("shape", "")
    if others := sorted(fields.keys() - _FIELDS - {"shape"}):
        raise ValueError(f"a message with the field {others[0]!r}, which is not known")
    if not isinstance(marks, list) or not all(isinstance(mark, str) for mark in marks):
        raise ValueError("the marks are not a list of strings")
    if type(index) not in (int, type(None)):
        raise ValueError("the index is not an integer")
    if not isinstance(id, str) or not isinstance(shape, str):
        raise ValueError("the id or the shape is not a string")
    return StoredMessage(id, b"", tuple(marks), index, shape)


def entry(line: Line) -> StoredMessage:
    """Return the message of a line.

    Raises:
        ValueError: the line is malformed, or its message is not a JSON object.
    """
    message = text_of(line)
    _object(jsonio.outline(message))
    return outline(line)._replace(message=message)


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


_FIELDS = {"marks", "id", "index"}


def pieces(lines: list[Line]) -> Iterator[tuple[LineKind, list[Line]]]:
    """Yield the lines in order, with their kind: message lines in lists, other lines singly.

    Raises:
        ValueError: a line is no line of an archive.  The lines before it have been yielded.
    """
    start = 0
    others = [number for number, line in enumerate(lines) if not line.startswith(MESSAGE)]
    for number in others:
        if start < number:
            yield LineKind.MESSAGE, lines[start:number]
        yield kind_of(lines[number]), lines[number : number + 1]
        start = number + 1
    if start < len(lines):
        yield LineKind.MESSAGE, lines[start:]


class _LineFields(NamedTuple):
    """The fields after the messages in several message lines, one item for each line."""

    starts: list[int]
    """For each line, the position of the first of the fields."""
    marks: list[tuple[str, ...]]
    ids: list[str]
    indexes: list[Any]


def check_messages(lines: list[Line]) -> Iterator[tuple[int, Collection[str]]]:
    """Check message lines, and yield how many are valid; the messages themselves are not parsed.

    Yields several numbers, which must be added, each with the marks of the messages.

    Raises:
        ValueError: a line is malformed.  The lines before it have been counted.
    """
    rests = _rests(lines)
    if rests is not None:
        yield len(lines), set().union(*set(rests.marks))
        return
    for line in lines:
        yield 1, outline(line).marks


def entries(lines: list[Line]) -> list[StoredMessage]:
    """Return the messages of message lines, and empty the list ``lines``.

    Raises:
        ValueError: a line is malformed, or a message is not a JSON object.
    """
    rests = _rests(lines)
    if rests is not None:
        size = len(MESSAGE)
        texts = [
            jsonio.in_lines(bytes(line[size:end]))
            for line, end in zip(lines, rests.starts, strict=True)
        ]
        if are_objects(texts):
            lines.clear()
            return messages_from_columns(rests.ids, texts, rests.marks, rests.indexes)
    lines.reverse()
    found = []
    while lines:  # free a large line before the next
        found.append(entry(lines.pop()))
    return found


def outlines(lines: list[Line]) -> list[StoredMessage]:
    """Return the messages of message lines with empty JSON.

    Raises:
        ValueError: a line is malformed.
    """
    rests = _rests(lines)
    if rests is not None:
        return messages_from_columns(rests.ids, repeat(b""), rests.marks, rests.indexes)
    return [outline(line) for line in lines]


def _rests(lines: list[Line]) -> _LineFields | None:
    """Return the fields after the messages of lines; None for unusual lines."""
    if isinstance(lines[0], bytearray):
        return None  # a long line comes alone
    try:
        # A rest is JSON only if the marks belong to the line's own object.
        starts = [line.rindex(MARKS) for line in lines]
        rests = [line[start + 1 :] for line, start in zip(lines, starts, strict=True)]
        fields = orjson.loads(b"[{%b]" % b",{".join(rests))
    except ValueError:
        return None
    # The checks of fields and types below make sure that each rest is exactly one object.
    if len(fields) != len(lines) or set(map(type, fields)) != {dict}:
        return None
    names = set().union(*fields)
    marks = [one["marks"] for one in fields]
    if not names <= _FIELDS or set(map(type, marks)) != {list}:
        return None
    if not set(map(type, chain.from_iterable(marks))) <= {str}:
        return None
    ids = [one.get("id") for one in fields]
    if not set(map(type, ids)) <= {str}:
        return None
    indexes = [one.get("index") for one in fields] if "index" in names else [None] * len(lines)
    if not {type(one["index"]) for one in fields if "index" in one} <= {int}:
        return None
    return _LineFields(starts, list(map(tuple, marks)), ids, indexes)
