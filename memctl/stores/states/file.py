"""One ``.json`` file: a state_dict of InMemoryMemory, or the state of one session."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from memctl.errors import BadData, Failure, NotFound
from memctl.layouts import foreign
from memctl.layouts.files import LAYOUT, SUFFIX, begins_as_state, split_stem
from memctl.layouts.foreign import ForeignFormat
from memctl.location import Location, visible
from memctl.machine.concurrency import in_thread
from memctl.model import MemoryKey
from memctl.selection import Selection
from memctl.store import OpenMode
from memctl.storekit.files import require_place, system_errors
from memctl.storekit.named_file import File
from memctl.stores.states.document import Document
from memctl.stores.states.files import (
    FileDocument,
    FileDraft,
    NewFileDraft,
    StateFiles,
    remove_file,
)
from memctl.stores.states.memories import DocumentIndex
from memctl.stores.states.place import OwnedDocument
from memctl.stores.states.rewrite import Draft


class StateFileStore(StateFiles):
    """A file with one session: a bare memory, or a state with memories inside.

    The file does not name its session.  The first of these rules that gives a name decides:

    1. the session that this store has written to the file, or is about to write;
    2. the session in the keys of a selection, if the location allows only one of them;
    3. the options ``?user=`` and ``?session=``.  The name of the file replaces a missing option, as
       JSONSession reads it (``session/_json_session.py``): ``alice_s1.json`` is the session ``s1``
       of ``alice``.

    A new file is a bare memory, unless the option ``?path=`` or the part of the key gives the path
    of the memory in the JSON.
    """

    kind = "state"
    features = replace(StateFiles.features, single_session=True, ambiguous_names=True)
    default_path = ""

    def __init__(
        self,
        location: Location,
        mode: OpenMode = OpenMode.READ,
        new: File | None = None,
    ) -> None:
        """``new`` is a new file, which no other run writes; see ``make_new``."""
        super().__init__(location, mode)
        self._file = location.path
        self._new = new
        self._owner: tuple[str, str] | None = None
        self._document: FileDocument | None = None
        """The document as it was last read: a command reads it several times."""
        self._index: DocumentIndex | None = None

    async def open(self, mode: OpenMode) -> None:
        self.mode = mode
        if self._new is not None:
            if not mode.creates:
                raise NotFound(f"{self.label} does not exist")
            return
        path = self._file
        name = visible(str(path))
        with system_errors(path, "read"):
            if path.is_dir():
                raise BadData(
                    f"{name} is a folder, not a file", "a folder of session states has another name"
                )
        require_place(path, create=mode.creates)

    async def lock(self, owner: str) -> None:
        if self._new is None:
            await super().lock(owner)

    async def other_layout(self) -> str | None:
        start = await in_thread(partial(foreign.start_of, self._file))
        return LAYOUT if begins_as_state(start) else None

    def resolve_names(self, keys: Iterable[MemoryKey]) -> None:
        owners = {key[:2] for key in keys if self._may_belong_to(key)}
        if self._owner is None and len(owners) == 1:
            self._owner = owners.pop()

    def _may_belong_to(self, key: MemoryKey) -> bool:
        options = self.location.options
        return (
            options.get("user", key.user) == key.user
            and options.get("session", key.session) == key.session
        )

    async def close(self) -> None:
        await self._forget()
        await super().close()

    async def documents(self, where: Selection) -> AsyncGenerator[OwnedDocument, None]:
        if self._new is not None:
            return
        if self._document is None or not self._document.is_current():
            await self._forget()
            with suppress(NotFound):
                self._document = FileDocument(self._file)
        if self._document is not None:
            yield self._owned(self._document, where)

    async def _forget(self) -> None:
        if self._document is not None:
            await self._document.close()
        self._document = self._index = None

    def index(self, document: Document) -> DocumentIndex:
        if self._index is None:
            self._index = super().index(document)
        return self._index

    def _owned(self, document: Document, where: Selection) -> OwnedDocument:
        if self._owner is not None:
            return OwnedDocument(document, self._owner)
        user, session = (self.location.options.get(name) for name in ("user", "session"))
        asked = {key[:2] for key in where.keys or () if self._may_belong_to(key)}
        if len(asked) == 1:
            return OwnedDocument(document, asked.pop())
        name = self._file.name
        stem = name.removesuffix(SUFFIX) if name.endswith(SUFFIX) else self._file.stem
        named = split_stem(stem, frozenset() if user is None else frozenset({user}))
        return OwnedDocument(
            document,
            (named[0] if user is None else user, named[1] if session is None else session),
            (user or "", stem if session is None else session),
        )

    def pass_over(self, document: Document, found: ForeignFormat | None) -> None:
        if found is not None:
            raise found.refusal(document.name)

    def check(self, document: Document, index: DocumentIndex) -> None:
        """Raise an error if the file does not hold the memory to read.

        Accepts any file if the store is open in a mode that may create the file.

        Raises:
            BadData: the file holds no memory.
            NotFound: the file holds no memory at the path that ``?path=`` names.
        """
        if self.mode.creates:
            return
        if not index.parts:
            raise BadData(
                f"{document.name} holds no memory of AgentScope",
                "a memory is an object with '_compressed_summary' or a list of messages 'content'",
            )
        if self.path is not None and not {self.path, ""} & index.parts.keys():
            paths = ", ".join(sorted(index.parts)) or "the file itself"
            raise NotFound(f"{document.name} holds no memory {self.path!r}", f"it holds {paths}")

    def text_files(self) -> Iterable[Path]:
        return [self._file]

    def name_of(self, key: MemoryKey) -> str | Failure:
        if self._owner is None:
            self._owner = key[:2]
        if self._owner != key[:2]:
            held = MemoryKey(*self._owner)
            return Failure("bad-name", f"{self.label} holds one session, which is {held} now")
        return str(self._file)

    async def document(self, name: str) -> Document | None:
        await self._forget()
        if self._new is not None:
            return None
        try:
            return FileDocument(Path(name))
        except NotFound:
            return None

    async def draft(self, name: str, old: Document | None) -> Draft:
        if self._new is not None:
            return NewFileDraft(self._new)
        return FileDraft(Path(name), old)

    async def remove(self, name: str, document: Document) -> None:
        remove_file(Path(name), document)
