"""A folder of session files, as JSONSession keeps them (``session/_json_session.py``)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from memctl.errors import BadData, Failure, NotFound, UsageError
from memctl.layouts import foreign
from memctl.layouts.files import (
    JAVA,
    LAYOUT,
    SUFFIX,
    is_ambiguous,
    layouts_in,
    obstacle,
    split_stem,
    stem_of,
    stems,
    unfit,
)
from memctl.layouts.foreign import ForeignFormat
from memctl.location import Location, visible
from memctl.machine.concurrency import in_thread
from memctl.model import MemoryKey
from memctl.selection import Selection
from memctl.store import OpenMode
from memctl.storekit.files import missing, move_file, recognise, system_errors
from memctl.stores.states.document import Document
from memctl.stores.states.files import FileDocument, FileDraft, StateFiles, remove_file
from memctl.stores.states.place import OwnedDocument
from memctl.stores.states.rewrite import Draft

_LOOKED_AT = 1000
_NAMED = 5
"""The number of files that are examined, and named, in a folder without states."""


class _Name(NamedTuple):
    """The name of a session file without ``.json``, with the user and session in it."""

    stem: str
    user: str
    session: str


class SessionFolderStore(StateFiles):
    """A folder with a file for each session.  Files without a memory are left out.

    The name of a file gives the user and session (``split_stem``).  If a name can be read in
    several ways, it is read as the user and session for whom this store has written the file, or is
    about to write it.
    """

    kind = "sessions"
    features = replace(
        StateFiles.features,
        ambiguous_names=True,
        renames=frozenset({"user", "session", "merge"}),
    )

    def __init__(self, location: Location, mode: OpenMode = OpenMode.READ) -> None:
        super().__init__(location, mode)
        self._folder = location.path
        self._warned_of_name = False
        self._names_known: dict[str, int] = {}
        """The length of the user in each file name that can be split in several ways, if known."""
        self._others: dict[str, ForeignFormat | None] = {}
        """The format of each file without a memory, None if unknown."""
        self._held_memory = False
        """True after a memory was read or written, even if it was erased later."""

    async def open(self, mode: OpenMode) -> None:
        self.mode = mode
        folder = self._folder
        name = visible(str(folder))
        with system_errors(folder, "read"):
            if folder.exists() and not folder.is_dir():
                raise BadData(f"{name} is not a folder", "use the extension .json for a state file")
            if not folder.exists() and not self.mode.creates:
                raise missing(folder)
        if self.mode.creates:
            _make(folder)

    def resolve_names(self, keys: Iterable[MemoryKey]) -> None:
        for key in keys if self._folder.is_dir() else ():  # a dry run does not create the folder
            stem = stem_of(key.user, key.session)
            if "_" in stem and unfit(self._folder, stem) is None and self._path(stem).is_file():
                self._names_known.setdefault(stem, len(key.user))

    async def other_layout(self) -> str | None:
        if not self._folder.is_dir():
            return None
        found = await in_thread(partial(layouts_in, self._folder))
        if len(found) > 1:
            name = visible(str(self._folder))
            raise UsageError(
                f"{self.label} holds sessions of AgentScope 1.x and 2.x",
                f"name one: agentscope1:{name} or agentscope2:{name}",
            )
        return next((one for one in (LAYOUT, JAVA) if one in found), None)

    # Reading

    async def is_alone(self) -> bool:
        return True

    async def documents(self, where: Selection) -> AsyncGenerator[OwnedDocument, None]:
        for stem, user, session in self._names(where):
            document = await self.document(stem)
            if document is None:
                continue
            try:
                yield OwnedDocument(document, (user, session))
            finally:
                await document.close()

    def pass_over(self, document: Document, found: ForeignFormat | None) -> None:
        self._others[document.name] = found

    def end_of(self, where: Selection, *, found: bool) -> None:
        self._held_memory |= found
        if self.is_overlay:
            return
        is_all = where.keys is None and not (where.users or where.sessions)
        if not (is_all or found):  # in a folder without session files, any selection is empty
            is_all = not any(True for _ in stems(self._folder))
        if is_all and not (self._held_memory or self._others or self.mode.creates):
            self._others |= self._elsewhere()
        if not (is_all and self._others):
            return
        named = [
            f"{name} ({format.name})" if format else name for name, format in self._others.items()
        ]
        more = f" and {len(named) - _NAMED:,} more" if len(named) > _NAMED else ""
        names = f"{', '.join(named[:_NAMED])}{more}"
        if not self._held_memory and self.mode is not OpenMode.RESTORE:
            hints = [format.hint for format in self._others.values() if format]
            raise BadData(
                f"{self.label} holds no session state, but other files: {names}",
                hints[0] if hints else "name a folder of session states, or a new one",
            )
        text = f"files without a session state are left out: {names}"
        if text not in self.warnings:
            self.warnings.append(text)

    def _elsewhere(self) -> dict[str, ForeignFormat | None]:
        """Return the files in the folder that hold messages in other formats, with their formats.

        A key is the name of a file; a value is None if the format is unknown.
        """
        found: dict[str, ForeignFormat | None] = {}
        with system_errors(self._folder, "read"):
            for path in sorted(islice(self._folder.rglob("*"), _LOOKED_AT)):
                name = f"{self.label}/{visible(str(path.relative_to(self._folder)))}"
                extension = path.suffix.lower()
                kind = recognise(path)
                if extension == ".jsonl":
                    found[name] = foreign.of_lines(foreign.start_of(path))
                elif extension == ".md":
                    found[name] = ForeignFormat("Markdown", f"a vault is vault:{self.label}")
                elif kind and kind[0] != "state":
                    found[name] = ForeignFormat(kind[0], "name the file itself")
        return found

    def _names(self, where: Selection) -> Iterator[_Name]:
        """Yield the session files that ``where`` may select.

        A selection by exact names also yields names of files that do not exist.
        """
        if where.keys is not None:
            asked = {key[:2] for key in where.keys}
        elif where.users and where.sessions:
            asked = {(user, session) for user in where.users for session in where.sessions}
        else:
            yield from self._listed(where)
            return
        for user, session in sorted(asked):
            stem = stem_of(user, session)
            if unfit(self._folder, stem) is None:
                yield _Name(stem, user, session)

    def _listed(self, where: Selection) -> Iterator[_Name]:
        for stem in stems(self._folder):
            if stem in self._names_known:
                user = stem[: self._names_known[stem]]
                yield _Name(stem, user, stem[len(user) + bool(user) :])
                continue
            user, session = split_stem(stem, where.users, where.sessions)
            if is_ambiguous(stem) and not where.users:
                self._warn(stem, user, session)
            if where.has_key(MemoryKey(user, session)):
                yield _Name(stem, user, session)

    def _warn(self, stem: str, user: str, session: str) -> None:
        if not self._warned_of_name:
            self._warned_of_name = True
            self.warnings.append(
                f"names in {self.label} can be read in several ways: {visible(stem)}{SUFFIX} is "
                f"taken for session {session!r} of user {user!r}; select it exactly with --user"
            )

    # Writing

    def text_files(self) -> Iterable[Path]:
        return map(self._path, stems(self._folder))

    def name_of(self, key: MemoryKey) -> str | Failure:
        stem = stem_of(key.user, key.session)
        if self._names_known.get(stem, len(key.user)) != len(key.user):
            return Failure("bad-name", f"another session was written to {visible(stem)}{SUFFIX}")
        failure = unfit(self._folder, stem) or obstacle(self._folder, stem)
        if failure:
            return failure
        if "_" in stem:
            self._names_known[stem] = len(key.user)
        return stem

    async def document(self, name: str) -> Document | None:
        try:
            return FileDocument(self._path(name), f"{self.label}/{visible(name)}{SUFFIX}")
        except NotFound:
            return None

    async def draft(self, name: str, old: Document | None) -> Draft:
        self._held_memory = True
        path = self._path(name)
        _make(path.parent)
        return FileDraft(path, old)

    async def move(self, name: str, new: str) -> Failure | None:
        path, target = self._path(name), self._path(new)
        if not path.exists():
            return None
        _make(target.parent)
        with system_errors(target, "write"):
            if not move_file(path, target):
                return Failure("conflict", f"{visible(new)}{SUFFIX} exists")
        self._tidy(path)
        return None

    async def remove(self, name: str, document: Document) -> None:
        path = self._path(name)
        remove_file(path, document)
        self._tidy(path)

    def _tidy(self, path: Path) -> None:
        for folder in path.parents:  # a user with a slash in the name has a folder
            if folder == self._folder:
                return
            with suppress(OSError):  # the folder holds other files
                folder.rmdir()

    def _path(self, stem: str) -> Path:
        return self._folder / (stem + SUFFIX)


def _make(folder: Path) -> None:
    with system_errors(folder, "write"):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
