"""A JSON Lines file of conversations in OpenAI's chat format, a conversation on each line.

::

    {"messages": [{"role": "user", "content": "Hi"}], "memctl": {"user": "ada", "session": "kyoto"}}

``Memory.extra`` holds the further keys of a line, such as ``tools``.  A line of a training file has
no key ``memctl``.  Such a line becomes a session without a user; the line number names the session.
With the option ``clean`` of the location, the store writes such lines.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from memctl.dialects.openai import KEY, OPENAI
from memctl.errors import BadData, Failure, NotFound
from memctl.json import jsonio
from memctl.layouts import foreign
from memctl.location import Location, visible
from memctl.machine.concurrency import in_thread
from memctl.model import (
    Finding,
    Memory,
    MemoryKey,
    Page,
    StoredMessage,
    WriteMode,
    WriteResult,
)
from memctl.selection import Selection
from memctl.store import WRITTEN_ONCE, Features, OpenMode, Store
from memctl.storekit.batching import paginate
from memctl.storekit.files import numbered_lines, require_place, system_errors
from memctl.storekit.named_file import File, LocalFile

_MARKS = "marks"
_HINT = 'a line is one conversation as a JSON object: {"messages": [{"role": ..., "content": ...}]}'


class OpenAIStore(Store):
    """A ``.jsonl`` file of conversations.  Each write replaces the whole file."""

    kind = "openai"
    features = Features(
        mark_order=True,
        summaries=True,
        summaries_elsewhere=True,
        empty=True,
        duplicate_ids=True,
        parts=True,
        added_only=True,
        commits_at_end=True,
    )
    dialect = OPENAI

    def __init__(
        self,
        location: Location,
        mode: OpenMode = OpenMode.READ,
        new: File | None = None,
    ) -> None:
        """``new`` is a new file, which no other run writes; see ``make_new``."""
        super().__init__(location, mode)
        self._path = location.path
        self._new = new
        self._is_clean = "clean" in location.options
        if self._is_clean:
            self.features = replace(self.features, summaries=False)

    async def open(self, mode: OpenMode) -> None:
        self.mode = mode
        if self._new is not None:
            if not mode.creates:
                raise NotFound(f"{self.label} does not exist")
            return
        with system_errors(self._path, "read"):
            if self._path.is_dir():
                raise BadData(f"{self.label} is a folder, not a file", "name a .jsonl file")
            if self._path.exists() and not self._path.is_file():
                raise BadData(f"{self.label} is not a regular file", "name a .jsonl file")
        require_place(self._path, self.label, create=mode.creates)
        if found := foreign.of_lines(foreign.start_of(self._path)):
            raise found.refusal(self.label)

    async def lock(self, owner: str) -> None:
        if self._new is None:
            await super().lock(owner)

    async def close(self) -> None:
        """Do nothing: the store keeps no file open."""

    # Reading

    def read(self, where: Selection) -> AsyncGenerator[Page]:
        return where.apply(self._pages(where), self.dialect)

    async def _pages(self, where: Selection) -> AsyncGenerator[Page]:
        seen: set[int] = set()
        lines = self._lines()
        while (line := await in_thread(lambda: next(lines, None))) is not None:
            number, text = line
            try:
                memory, messages = self._conversation(number, text)
            except ValueError as error:
                named = foreign.of_first_line(text[: foreign.BEGINNING])
                why = f"is {named.name}" if named else f"is damaged: {error}"
                said = f"line {number:,} of {visible(str(self._path))} {why}"
                if not self.skips_damage:
                    raise BadData(said, _HINT) from error
                self.damage.append(Finding("damaged-row", None, 1, (), said))
                continue
            key = memory.key
            if not where.has_key(key):
                continue
            if hash(key) in seen:
                text_ = f"its name occurs twice, again in line {number:,}"
                self.left_out.failures[key] = Failure("damaged", text_)
                continue
            seen.add(hash(key))
            self.left_out.others = True
            for page in paginate(memory, messages, empty=True):
                yield page

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        with system_errors(self._path, "read"):
            if self._new is None and self._path.exists():
                yield from numbered_lines(self._path)

    def _conversation(self, number: int, line: bytes) -> tuple[Memory, list[StoredMessage]]:
        """Parse a line; return its memory and messages.

        ``number`` is the number of the line, which names the session if the line gives no name.

        Raises:
            ValueError: the line is not JSON, or not a conversation; the text says why.
        """
        value = jsonio.loads(line)
        messages = value.get("messages") if isinstance(value, dict) else None
        if not isinstance(messages, list):
            raise ValueError(f"it is {foreign.described(value)}, not one with a list of messages")
        about = value.get(KEY)
        about = about if isinstance(about, dict) else {}
        names = [about.get(name, "") for name in ("user", "session", "part")]
        if not all(isinstance(name, str) for name in names):
            raise ValueError("user, session and part are not texts")
        if "session" not in about:
            names[1] = f"{number:06}"
        summary = about.get("summary", "" if KEY not in value else None)
        key = MemoryKey(*names)
        others = {name: one for name, one in value.items() if name not in ("messages", KEY)}
        extra = jsonio.dumps(others).decode() if others else ""
        memory = Memory(key, summary if isinstance(summary, str | None) else "", extra=extra)
        odd = jsonio.may_have_nan(line)
        return memory, [self._entry(message, odd) for message in messages]

    def _entry(self, message: Any, odd: bool) -> StoredMessage:
        if not isinstance(message, dict):
            raise ValueError("a message is not a JSON object")
        if not isinstance(message.get("role"), str):
            raise ValueError("a message has no role")
        value = OPENAI.unpack_message(message)
        about = message.get(KEY)
        marks = about.get(_MARKS) if isinstance(about, dict) else None
        named = [mark for mark in marks if isinstance(mark, str)] if isinstance(marks, list) else []
        text = jsonio.compact(value, odd=odd)
        return StoredMessage(OPENAI.message_id(value), text, tuple(dict.fromkeys(named)))

    # Writing

    def text_files(self) -> Iterable[Path]:
        return [self._path]

    async def write(
        self, pages: AsyncGenerator[Page], mode: WriteMode = WriteMode.ADD
    ) -> AsyncGenerator[WriteResult]:
        there = {memory.key async for memory in self.headers(Selection())}
        results: list[WriteResult] = []
        refused: Failure | None = None
        written = 0
        with (self._new or LocalFile(self._path)).create() as file:
            for _, line in self._lines():
                file.write(line.rstrip(b"\r\n") + b"\n")
            async for page in pages:
                key = page.memory.key
                if page.offset == 0 or (written == 0 and refused is None):
                    refused = self._refusal(key, there, page, mode)
                    written = 0
                    if refused is None:
                        file.write(b'{"messages":[')
                if refused is None:
                    for entry in page.messages:
                        text = _plain(entry) if self._is_clean else _message(entry)
                        file.write((b"," if written else b"") + text)
                        written += 1
                if page.last:
                    if refused is None:
                        file.write(b"]" + _others(page.memory))
                        if not self._is_clean:
                            file.write(b',"' + KEY.encode() + b'":' + _about(page.memory))
                        file.write(b"}\n")
                        there.add(key)
                        results.append(WriteResult(key, written))
                    else:
                        results.append(WriteResult(key, failure=refused))
                    refused, written = None, 0
                del page
            if not results or any(result.failure is None for result in results):
                await in_thread(file.commit)
        for result in results:
            yield result

    def _refusal(
        self, key: MemoryKey, there: set[MemoryKey], page: Page, mode: WriteMode
    ) -> Failure | None:
        if mode is WriteMode.ADD and page.offset and key not in there:
            return Failure("changed", f"the target holds 0 messages, not {page.offset}")
        if key in there:
            new = mode is WriteMode.ADD and not page.offset
            return replace(WRITTEN_ONCE, code="changed") if new else WRITTEN_ONCE
        return None


def _plain(entry: StoredMessage) -> bytes:
    """Return a message as JSON, only with the fields of OpenAI."""
    return _json(jsonio.loads(entry.message)["content"], entry)


def _message(entry: StoredMessage) -> bytes:
    value = jsonio.loads(entry.message)
    packed = OPENAI.pack(value)
    if entry.marks:
        about = packed.get(KEY) or {}
        packed = {**packed, KEY: about | {_MARKS: list(entry.marks)}}
    return _json(packed, entry)


def _json(value: Any, entry: StoredMessage) -> bytes:
    return jsonio.compact(value, odd=jsonio.may_have_nan(entry.message))


def _others(memory: Memory) -> bytes:
    if not memory.extra:
        return b""
    found = jsonio.loads(memory.extra.encode("utf-8", "surrogatepass"))
    return b"," + jsonio.dumps(found)[1:-1] if isinstance(found, dict) and found else b""


def _about(memory: Memory) -> bytes:
    key = memory.key
    about = {name: value for name in ("user", "part") if (value := getattr(key, name))}
    summary = {} if memory.summary is None else {"summary": memory.summary}
    return jsonio.compact({"session": key.session} | about | summary)
