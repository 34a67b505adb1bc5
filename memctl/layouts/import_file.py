"""New files of sessions for the import of a program that writes its store itself."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator
from typing import Any, ClassVar

from memctl.json import jsonio
from memctl.location import Location
from memctl.machine.concurrency import in_thread
from memctl.model import Memory, MemoryKey, Page, WriteMode, WriteResult
from memctl.selection import Selection
from memctl.store import Features, OpenMode, Store
from memctl.storekit.named_file import File


class ImportFile(Store):
    """A new JSON file of sessions, each an object that the program imports."""

    features = Features(marks=frozenset(), empty=True, duplicate_ids=True, parts=True)
    in_list: ClassVar[bool]
    """True if the file is a list of sessions; else it is one session."""

    def __init__(self, location: Location, mode: OpenMode, new: File) -> None:
        """``new`` is a new file, which no other run writes."""
        super().__init__(location, mode)
        self.kind = location.kind
        self._new = new

    @abstractmethod
    def session(self, memory: Memory, messages: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the object for a memory with these messages, decoded."""

    async def open(self, mode: OpenMode) -> None:
        self.mode = mode

    async def close(self) -> None:
        """Do nothing: the store keeps no file open."""

    async def lock(self, owner: str) -> None:
        """Take no lock: no other run writes the file."""

    async def read(self, where: Selection) -> AsyncGenerator[Page]:  # noqa: ARG002 - it is new
        return
        yield

    async def write(
        self,
        pages: AsyncGenerator[Page],
        mode: WriteMode = WriteMode.ADD,  # noqa: ARG002 - it is new
    ) -> AsyncGenerator[WriteResult]:
        results: list[WriteResult] = []
        messages: list[dict[str, Any]] = []
        with self._new.create() as file:
            file.write(b"[" if self.in_list else b"")
            async for page in pages:
                messages += [jsonio.loads(one.message) for one in page.messages]
                if page.last:
                    value = self.session(page.memory, messages)
                    file.write((b",\n" if results else b"") + jsonio.compact(value))
                    results.append(WriteResult(page.memory.key, len(messages)))
                    messages = []
            file.write(b"]\n" if self.in_list else b"\n")
            await in_thread(file.commit)
        for result in results:
            yield result


def session_id(key: MemoryKey) -> str:
    """Return an id for a session, with the user and the part of the memory if it has them."""
    return "/".join(filter(None, key))
