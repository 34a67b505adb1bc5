"""Where the documents of a store are: how they are found, read, drafted and published."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator
from typing import ClassVar

from msgspec import Struct

from memctl.errors import Failure
from memctl.location import Location
from memctl.model import Memory, MemoryKey
from memctl.selection import Selection
from memctl.store import OpenMode, Store
from memctl.stores.states.document import Document
from memctl.stores.states.rewrite import Draft, Rewrite
from memctl.stores.states.splices import RewritePlan, Splice

DEFAULT_PATH = "memory"
"""The default path of the memory in a session: the name that
``load_session_state(..., memory=InMemoryMemory())`` gives it."""


class OwnedDocument(Struct, frozen=True):
    """A session's document, with its user and session as ``owner``.

    ``bare`` has the user and session for the case that the whole document is a memory, if they
    differ from ``owner``; None if they do not.
    """

    document: Document
    owner: tuple[str, str]
    bare: tuple[str, str] | None = None


class DocumentReader(Store):
    """The part of a store that finds and reads session documents."""

    def __init__(self, location: Location, mode: OpenMode = OpenMode.READ) -> None:
        super().__init__(location, mode)
        self.path = location.options.get("path")

    @abstractmethod
    def documents(self, where: Selection) -> AsyncGenerator[OwnedDocument, None]:
        """Yield the documents of all sessions that ``where`` selects.

        May also yield documents of sessions that ``where`` does not select.  Each document is
        closed before the next is opened.
        """


class DocumentPlace(DocumentReader):
    """The part of a store that replaces and removes session documents."""

    default_path = DEFAULT_PATH
    """The path of the memory in a new document; empty if the document itself is the memory."""
    keys_tell: ClassVar[bool] = False
    """True if the name of a document is enough to show that the document is a session."""
    batch_documents = 64
    """The number of documents published at once."""

    def __init__(self, location: Location, mode: OpenMode = OpenMode.READ) -> None:
        super().__init__(location, mode)
        self._warned_of_path = False
        self.is_overlay = False
        """True for a place of summaries (``?state=``): a document may hold no memory."""

    def warn_of_default_path(self) -> None:
        """Warn once that new sessions get their memory at ``DEFAULT_PATH``."""
        if not self._warned_of_path:
            self._warned_of_path = True
            self.warnings.append(
                f"new sessions in {self.label} have their memory at the path {DEFAULT_PATH!r}, as "
                "the source names none: an application that loads it from another finds nothing; "
                "choose it as in --path agent.memory"
            )

    # What each kind of place defines

    @abstractmethod
    def name_of(self, key: MemoryKey) -> str | Failure:
        """Return the name of the document for a memory, whether or not the document exists.

        ``document``, ``draft`` and ``remove`` take this name.  Returns a failure if the store
        cannot hold a memory with this key.
        """

    @abstractmethod
    async def document(self, name: str) -> Document | None:
        """Open the document with a name from ``name_of``.

        If no document is stored, returns None, or a document with ``exists`` False.

        Raises:
            DocumentChanged: another program wrote to the document while memctl read it.
        """

    @abstractmethod
    async def draft(self, name: str, old: Document | None) -> Draft:
        """Begin a draft of a new document, which ``publish`` stores under ``name``.

        ``old`` is the result of ``document`` for this name; the draft is to replace it.
        """

    @abstractmethod
    async def remove(self, name: str, document: Document) -> None:
        """Remove a document; do nothing if another program has changed it since it was opened."""

    async def move(self, name: str, new: str) -> Failure | None:
        """Give a document another name; return a failure if a document has the new name.

        Only a place with ``Features.renames`` does this.  Nothing happens without a document.
        """
        raise NotImplementedError(self.kind)

    @abstractmethod
    async def publish(
        self, drafts: list[tuple[Draft, float | None]], *, keep: bool = False
    ) -> list[Failure | None]:
        """Replace the old documents by complete drafts, and make the new documents durable.

        Each draft comes with a TTL in seconds; None keeps the TTL of the old document.  With
        ``keep``, documents that exist keep their TTLs in any case.  Returns an item for each draft:
        None if it is published, or a failure if another program has changed the old document since
        it was opened.
        """

    async def splice(self, name: str, document: Document, splices: list[Splice]) -> Failure | None:
        """Replace spans of a document's bytes, and make the new document durable.

        Returns None if the document is replaced.  Returns a failure if another program has changed
        it meanwhile, or if the store does not accept the new document.
        """
        draft = await self.draft(name, document)
        try:
            memory = Memory(MemoryKey("", ""))
            failure = await Rewrite(memory, draft, document, RewritePlan(splices)).finish()
            if failure is None:
                [failure] = await self.publish([(draft, None)], keep=True)
            return failure
        finally:
            await draft.discard()
