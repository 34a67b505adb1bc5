"""Vaults: folders of Markdown files, as in AgenticMemory of AgentScope 2.x and in ReMe 0.4.

Each file holds a fact.  The id of the fact is the path of the file in the vault, the session is the
top folder, and the time is the modification time of the file.  The text of the fact follows the
frontmatter.  The fact keeps the frontmatter byte for byte.

A fact from another system may have a user or an id that is not a path.  memctl stores the fact in
``imported/USER/SESSION/PART/ID.md``.  The frontmatter keeps the data that Markdown cannot hold.
"""

from __future__ import annotations

import json
import os
import unicodedata
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from msgspec.structs import replace

from memctl.dialects.fact import FACT, build, without_vector
from memctl.errors import BadData
from memctl.json import jsonio
from memctl.location import Location, visible
from memctl.machine.concurrency import in_thread
from memctl.model import MemoryKey, StoredMessage
from memctl.selection import Selection
from memctl.store import Maintenance, OpenMode
from memctl.storekit.facts import FactEntry, FactStore, LoadedFact
from memctl.storekit.folder import Folder, FoundFile
from memctl.storekit.simple import Rejected
from memctl.storekit.text_files import files_below
from memctl.stores.vault import markdown
from memctl.stores.vault.check import VaultMaintenance

SUFFIX = ".md"
FRONT = "frontmatter"
"""The metadata field of a fact that holds the frontmatter of the file."""
_NS = 10**9
_DESCRIPTION = 150
_KEPT = frozenset("_-.@+=,~ ")
"""The characters that file names keep unquoted, in addition to letters and digits."""
_IMPORTED_PARTS = 4
_FEW = 5


class _Place(NamedTuple):
    """The memory and the id of a fact; together they give the path of the file."""

    key: MemoryKey
    id: str


class VaultStore(FactStore):
    """The facts in a folder of Markdown files, a file for each fact."""

    kind = "vault"
    features = replace(FactStore.features, file_times=True)
    imports = "imported"
    """The folder for facts from other frameworks, relative to the vault."""
    leaves_out: frozenset[str] = frozenset()
    """The folders in the vault folder whose files are no facts."""

    def __init__(self, location: Location, mode: OpenMode = OpenMode.READ) -> None:
        super().__init__(location, mode)
        self.folder = Folder(location.path)

    async def connect(self, mode: OpenMode) -> None:
        if self.location.path.is_file():
            name = visible(str(self.location.path))
            raise BadData(
                f"{name} is not a folder", "name the folder that holds the Markdown files"
            )
        self.folder.open(create=mode.creates)

    async def disconnect(self) -> None:
        """Do nothing; the store holds no files open."""

    def refuse_other_files(self) -> None:
        """Check that the folder is empty, apart from hidden files.

        Raises:
            BadData: the folder holds files or folders.
        """
        found = (path for path in self.location.path.iterdir() if not path.name.startswith("."))
        names = sorted(visible(path.name) + ("/" if path.is_dir() else "") for path in found)
        if names:
            more = f" and {len(names) - _FEW:,} more" if len(names) > _FEW else ""
            raise BadData(
                f"{self.label} holds no Markdown file, but {', '.join(names[:_FEW])}{more}",
                "name the folder of a vault, or a new one",
            )

    # Reading

    async def entries(self, where: Selection) -> AsyncGenerator[FactEntry]:
        is_empty = True
        for entry in self.markdown_files():
            is_empty = False
            place = self.place_of(self.folder.name_of(entry))
            if where.has_key(place.key):
                try:
                    changed = entry.stat().st_mtime_ns
                except FileNotFoundError:
                    continue
                yield FactEntry(place.key, place.id, _time(changed))
        if is_empty and self.mode is OpenMode.READ:
            self.refuse_other_files()

    def markdown_files(self) -> Iterator[os.DirEntry[str]]:
        """Yield the Markdown files of the vault."""
        return self.folder.files(SUFFIX, self.leaves_out)

    def memory_of(self, name: str) -> MemoryKey:
        """Return the memory that the fact in a file belongs to."""
        return self.place_of(name).key

    def place_of(self, name: str) -> _Place:
        """Return the memory and the id of the fact in a file; ``name`` is its path in the vault."""
        parts = name.removeprefix(f"{self.imports}/").split("/")
        if name.startswith(f"{self.imports}/") and len(parts) == _IMPORTED_PARTS:
            parts[-1] = parts[-1].removesuffix(SUFFIX)
            found = [_unquoted(part) for part in parts]
            if [_quoted(one) for one in found] == parts and name.endswith(SUFFIX):
                user, session, part, id = found
                return _Place(MemoryKey(user, session, part), id)
        top, slash, _ = name.partition("/")
        return _Place(MemoryKey("", top if slash else ""), name)

    def name_of(self, key: MemoryKey, id: str) -> str:
        """Return the path of the file for a fact, relative to the vault."""
        plain = id.lower().endswith(SUFFIX) and self.folder.takes(id)
        if plain and self.place_of(id) == (key, id):
            return id
        return "/".join([self.imports, *map(_quoted, key), _quoted(id) + SUFFIX])

    async def load(self, key: MemoryKey, ids: Sequence[str]) -> list[LoadedFact]:
        return await in_thread(partial(self._load_files, key, ids))

    def _load_files(self, key: MemoryKey, ids: Sequence[str]) -> list[LoadedFact]:
        files = [(id, self.folder.read(self.name_of(key, id))) for id in ids]
        return [self._loaded(_Place(key, id), file) for id, file in files if file is not None]

    def _loaded(self, place: _Place, file: FoundFile) -> LoadedFact:
        try:
            text = file.data.decode()
        except UnicodeDecodeError as error:
            damage = f"byte {error.start} of {visible(file.name)} is not UTF-8: {error.reason}"
            return LoadedFact(place.key, StoredMessage(place.id, b""), damage)
        message = _fact(place, text, file.changed)
        shape: dict[str, Any] = {"mode": file.mode}
        if _file(place, file.name, message) != text:
            shape["file"] = text
        return LoadedFact(place.key, StoredMessage(place.id, message, shape=json.dumps(shape)))

    # Writing

    async def put(self, key: MemoryKey, facts: Sequence[StoredMessage]) -> None:
        await in_thread(partial(self._put_files, key, facts))

    def _put_files(self, key: MemoryKey, facts: Sequence[StoredMessage]) -> None:
        prepared = [self._prepared(_Place(key, fact.id), fact) for fact in facts]
        for name, data, mode, changed in prepared:
            self.folder.write(name, data, mode=mode, changed=changed)
        self.folder.sync()

    def _prepared(
        self, place: _Place, fact: StoredMessage
    ) -> tuple[str, bytes, int | None, int | None]:
        name = self.name_of(place.key, place.id)
        self.folder.path_of(name)
        if self.place_of(name) != place:
            raise Rejected("bad-name", f"no file can be named for the fact {place.id!r}")
        shape = _shape(fact.shape)
        text, mode = shape.get("file"), shape.get("mode")
        changed = _changed(FACT.outline(fact.message).time)
        if not isinstance(text, str) or _fact(place, text, changed or 0) != fact.message:
            text = _file(place, name, without_vector(fact.message))
        try:
            data = text.encode()
        except UnicodeEncodeError:
            raise Rejected("refused", f"the fact {place.id!r} is not Unicode") from None
        return name, data, mode if isinstance(mode, int) else None, changed

    async def remove(self, key: MemoryKey, ids: Sequence[str]) -> None:
        await in_thread(partial(self._remove_files, key, ids))

    def _remove_files(self, key: MemoryKey, ids: Sequence[str]) -> None:
        for id in ids:
            self.folder.remove(self.name_of(key, id))
        self.folder.sync()

    def text_files(self) -> Iterable[Path]:
        return files_below(self.folder.path)

    def selected_files(self, where: Selection) -> Iterator[Path]:
        """Yield the files of selected facts."""
        for entry in self.markdown_files():
            if where.has_key(self.memory_of(self.folder.name_of(entry))):
                yield Path(entry.path)

    def maintenance(self) -> Maintenance:
        return VaultMaintenance(self, self)


# From files to facts and back


def _fact(place: _Place, text: str, changed: int) -> bytes:
    """Return the fact in a file as JSON; ``changed`` is the modification time in nanoseconds."""
    note = markdown.split(text)
    record = markdown.record(note)
    if record is not None:
        try:
            kept = jsonio.loads(record.encode())
        except ValueError:
            kept = None
        if isinstance(kept, dict):
            end = len(note.front.rstrip("\r\n"))  # empty lines then belong to the text
            end += 2 if text.startswith("\r\n", end) else 1
            return build({**kept, "id": place.id, "text": text[end:], "vector": None})
    metadata = {FRONT: note.front} if note.front else None
    return build(
        {"id": place.id, "text": note.body, "updated_at": _time(changed), "metadata": metadata}
    )


def _file(place: _Place, name: str, message: bytes) -> str:
    value = jsonio.loads(message)
    text = value.pop("text", "")
    metadata = value.get("metadata") or {}
    plain = f"{metadata.get(FRONT, '')}{text}" if isinstance(metadata, dict) else ""
    changed = _changed(value.get("updated_at"))
    if changed is not None and _fact(place, plain, changed) == message:
        return plain
    value.pop("id", None)
    description = " ".join(text.split())[:_DESCRIPTION]
    about = jsonio.dumps(value).decode("ascii")
    return markdown.fronted(place.id, description or name, text, about)


def _shape(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text) if text else {}
    except ValueError:  # the shape of another store
        return {}
    return found if isinstance(found, dict) else {}


def _time(changed: int) -> str:
    seconds, rest = divmod(changed, _NS)
    moment = datetime.fromtimestamp(seconds, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{rest:09}+00:00"


def _changed(time: str | None) -> int | None:
    try:
        moment = datetime.fromisoformat(time or "")
        seconds = int(moment.replace(microsecond=0).timestamp())
    except (ValueError, OverflowError, OSError):
        return None
    _, point, digits = (time or "").partition(".")
    fraction = "".join(
        char for char in digits.partition("+")[0].partition("-")[0] if char.isdigit()
    )
    return seconds * _NS + (int(fraction[:9].ljust(9, "0")) if point and fraction else 0)


# Names of files


def _quoted(text: str) -> str:
    if not text:
        return "-"
    if text == "-":
        return "%2D"
    last = len(text) - 1
    return "".join(
        char if _fits(char) and not (char in ". " and at in (0, last)) else _percent(char)
        for at, char in enumerate(text)
    )


def _fits(char: str) -> bool:
    if char.isascii():
        return char.isalnum() or char in _KEPT
    return char.isalnum() and unicodedata.is_normalized("NFC", char)


def _percent(char: str) -> str:
    return "".join(f"%{byte:02X}" for byte in char.encode("utf-8", "surrogatepass"))


def _unquoted(part: str) -> str:
    try:
        return "" if part == "-" else unquote(part, errors="surrogatepass")
    except UnicodeDecodeError:  # ``_quoted`` did not write the name
        return part
