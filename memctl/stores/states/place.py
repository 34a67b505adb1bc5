"""Where the documents of a store are: how they are found, read, drafted and published."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import ClassVar

from memctl.errors import Failure
from memctl.location import Location
from memctl.model import PAGE_BYTES, MemoryKey
from memctl.selection import Selection
from memctl.store import OpenMode, Store
from memctl.stores.states.document import Document, DocumentIndex, find
from memctl.stores.states.rewrite import Draft

DEFAULT_PATH = "memory"
"""The default path of the memory in a session: the name that
``load_session_state(..., memory=InMemoryMemory())`` gives it."""
_KNOWN_INDEXES = 100


@dataclass(frozen=True, slots=True)
class OwnedDocument:
    """A document, and the user and session that it belongs to.

    ``bare`` is to whom instead, where the document itself is a memory.
    """

    document: Document
    owner: tuple[str, str]
    bare: tuple[str, str] | None = None


class DocumentPlace(Store):
    """A store whose sessions are JSON documents, as its writer and its maintenance see it."""

    default_path = DEFAULT_PATH
    """The path of the memory in a new document."""
    keys_tell: ClassVar[bool] = False
    """True where the name of a document tells that it is a session's, whatever it holds."""
    batch_documents = 64
    """The number of documents made durable at once."""

    def __init__(self, location: Location, mode: OpenMode = OpenMode.READ) -> None:
        super().__init__(location, mode)
        self.path = location.options.get("path")
        self._indexes: dict[tuple[str, object], DocumentIndex] = {}
        self._warned_of_path = False
        self.is_overlay = False
        """True for a place of summaries (``?state=``), where a document need not hold a memory."""

    def warn_of_default_path(self) -> None:
        """Warn, once, that a new session has its memory at a path that nothing names."""
        if not self._warned_of_path:
            self._warned_of_path = True
            self.warnings.append(
                f"new sessions in {self.label} have their memory at the path {DEFAULT_PATH!r}, as "
                "the source names none: an application that loads it from another finds nothing; "
                "choose it as in --path agent.memory"
            )

    # What a kind of document has to tell

    @abstractmethod
    def documents(self, where: Selection) -> AsyncGenerator[OwnedDocument, None]:
        """The documents of the sessions that may be selected; each closed before the next opens."""

    @abstractmethod
    def name_of(self, key: MemoryKey) -> str | Failure:
        """Return the name of the document to write the memory to, or why there is none."""

    @abstractmethod
    async def document(self, name: str) -> Document | None:
        """The document of that name, or its place; None where there is neither."""

    @abstractmethod
    async def draft(self, name: str, old: Document | None) -> Draft:
        """A new document of that name, to take the place of the old one."""

    @abstractmethod
    async def remove(self, name: str, document: Document) -> None:
        """Remove a document, unless somebody has changed it since it was opened."""

    @abstractmethod
    async def publish(
        self, drafts: list[tuple[Draft, float | None]], *, keep: bool = False
    ) -> list[Failure | None]:
        """Make drafts durable, each with its expiry in seconds (None: as it was).

        With ``keep``, a document that takes another's place has that one's expiry in any case.  A
        failure for each whose document was changed by somebody else meanwhile.
        """

    def key_of(self, owned: OwnedDocument) -> MemoryKey:
        """Return the key by which ``name_of`` finds a document again."""
        return MemoryKey(*owned.owner)

    async def index(self, document: Document, *, keep: bool) -> DocumentIndex:
        """Return the index of a document; of a large one it is cached until that changes."""
        if document.size <= PAGE_BYTES:
            return await find(document, keep=keep)
        known = self._indexes.get((document.name, document.version))
        if known is None or document.version is None:
            known = await find(document)
            if len(self._indexes) >= _KNOWN_INDEXES:
                self._indexes.clear()
            self._indexes[document.name, document.version] = known
        return known
