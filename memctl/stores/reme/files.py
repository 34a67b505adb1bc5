"""The vector store of ReMe 0.3: a folder for each collection, a JSON file for each node.

Read from reme-ai 0.3.1.10 (``core/vector_store/local_vector_store.py``).  ReMe holds a collection
in memory while it runs, and rewrites all its files when it ends.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from itertools import islice
from pathlib import Path

from msgspec.structs import replace

from memctl.dialects.fact import FACT, dimensions, vector_of
from memctl.dialects.view import Dialect
from memctl.errors import Failure, UsageError
from memctl.location import Location, same_file, visible
from memctl.machine.concurrency import in_thread
from memctl.model import Embedding, MemoryKey, StoredMessage, WriteResult
from memctl.selection import Selection
from memctl.store import OpenMode
from memctl.storekit.fact_texts import WHEN
from memctl.storekit.facts import FactEntry, FactStore, LoadedFact
from memctl.storekit.files import system_errors
from memctl.storekit.folder import Folder
from memctl.storekit.simple import Rejected
from memctl.storekit.text_files import files_below
from memctl.storekit.texts import Rewriter
from memctl.stores.reme.layouts import VECTORS, collections, vectors_folder
from memctl.stores.reme.nodes import BadNode, NodeRewriter, Nodes3

SUFFIX = ".json"
DEFAULT = "reme"
"""The collection of ReMe's own configuration (``config/vector.yaml``)."""
_LOOKED_AT = 50


class ReMeFilesStore(FactStore):
    """The facts of a collection of ReMe 0.3, a file for each fact."""

    kind = "reme-0.3"
    features = replace(FactStore.features, renames=frozenset({"user"}))
    form = Nodes3()
    embeds = WHEN

    def __init__(self, location: Location, mode: OpenMode = OpenMode.READ) -> None:
        super().__init__(location, mode)
        self.folder = Folder(location.path)

    async def connect(self, mode: OpenMode) -> None:
        self.folder = Folder(self._collection())
        self.folder.open(create=mode.creates)
        self.embedding = self._embedding()

    def _collection(self) -> Path:
        """Return the folder of the collection that the URL names.

        If the URL names none, this is the folder of the only collection, or of ReMe's default
        collection if none exists.

        Raises:
            UsageError: several collections exist and the URL names none, or the name is not valid.
        """
        path = self.location.path
        with system_errors(path, "read"):
            found = collections(path)
        name = self.location.options.get("collection")
        if name is None and len(found) > 1:
            raise UsageError(
                f"{self.label} has several collections: {', '.join(map(visible, found))}",
                "name one: ?collection=NAME",
            )
        root = vectors_folder(path)
        try:
            return Folder(root).path_of(name or next(iter(found), DEFAULT), folder=True)
        except Rejected as rejected:
            raise UsageError(rejected.failure.message, "name a folder of the store") from None

    def _embedding(self) -> Embedding | None:
        """Return the usual number of dimensions; None without vectors."""
        names = (entry.name for entry in self.folder.files(SUFFIX))
        sizes: Counter[int] = Counter()
        for name in islice(names, _LOOKED_AT):
            one = self._loaded(name)
            vector = vector_of(one.fact.message) if one is not None and not one.damage else None
            if vector is not None:
                sizes[dimensions(vector)] += 1
        return Embedding("", sizes.most_common(1)[0][0]) if sizes else None

    def adopt(self, dialect: Dialect, embedding: Embedding | None = None) -> None:
        super().adopt(dialect, embedding)
        self.embedding = self.embedding or embedding

    async def disconnect(self) -> None:
        """Do nothing; the store holds no files open."""

    async def identity(self) -> str:
        return f"file:{same_file(self._collection())}"

    # Reading

    async def entries(self, where: Selection) -> AsyncGenerator[FactEntry]:
        for entry in self.folder.files(SUFFIX):
            if os.path.dirname(entry.path) != str(self.folder.path):
                continue  # ReMe does not look into folders
            one = self._loaded(entry.name)
            if one is not None and where.has_key(one.key):
                time = "" if one.damage else FACT.outline(one.fact.message).time
                yield FactEntry(one.key, one.fact.id, time or "")

    async def load(
        self,
        key: MemoryKey,  # noqa: ARG002 - ids are those of the whole collection
        ids: Sequence[str],
    ) -> list[LoadedFact]:
        return await in_thread(partial(self._load_files, ids))

    def _load_files(self, ids: Sequence[str]) -> list[LoadedFact]:
        found = (self._loaded(id + SUFFIX) for id in ids)
        return [one for one in found if one is not None]

    def _loaded(self, name: str) -> LoadedFact | None:
        file = self.folder.read(name)
        if file is None:
            return None
        id = name.removesuffix(SUFFIX)
        try:
            key, own, message = self.form.fact(file.data)
            if own != id:
                raise BadNode(f"its vector_id is {own!r}, not that of its file")
            shape = json.dumps({"mode": file.mode, "file": file.data.decode()})
        except (BadNode, UnicodeDecodeError) as error:
            return LoadedFact(
                MemoryKey("", ""), StoredMessage(id, b""), f"{visible(name)}: {error}"
            )
        return LoadedFact(key, StoredMessage(id, message, shape=shape))

    # Rewriting

    def _text_rewriter(self, rewriter: Rewriter, where: Selection) -> Rewriter:  # noqa: ARG002
        return NodeRewriter(rewriter)

    def text_files(self) -> Iterable[Path]:
        return files_below(self.folder.path)

    def selected_files(self, where: Selection) -> Iterator[Path]:
        """Yield the files of selected facts.

        Raises:
            BadData: a fact is damaged, so its user is unknown.
        """
        for path in self.text_files():
            if path.parent != self.folder.path or path.suffix != SUFFIX:
                continue
            one = self._loaded(path.name)
            if one is not None and one.damage:
                raise self.damaged_fact(one.fact.id, one.damage)
            if one is not None and where.has_key(one.key):
                yield path

    # Other names

    async def rename(self, moves: Mapping[MemoryKey, MemoryKey]) -> AsyncGenerator[WriteResult]:
        """Rename users, file by file.

        If the process ends early, some facts have the new name, and the same rename does the rest.
        """
        users = {old.user: new.user for old, new in moves.items()}
        async with aclosing(self.entries(Selection(users=frozenset(users)))) as entries:
            found = [(entry.id + SUFFIX, entry.key.user) async for entry in entries]
        failures: dict[str, Failure] = {}
        for name, user in found:
            try:
                await in_thread(partial(self._rename, name, user, users[user]))
            except ValueError as error:
                failures[user] = Failure("damaged", f"{visible(name)}: {error}")
        await in_thread(self.folder.sync)
        for profile in self._profiles(users):
            self.warnings.append(
                f"{visible(str(profile))} keeps the old name: memctl leaves profiles of ReMe alone"
            )
        for key in moves:
            yield WriteResult(key, failure=failures.get(key.user))

    def _profiles(self, users: Iterable[str]) -> Iterator[Path]:
        vectors = self.folder.path.parent
        folder = (vectors.parent if vectors.name == VECTORS else vectors) / "profile"
        names = {user.replace(" ", "_").lower() for user in users}  # as ReMe's ProfileHandler
        return (path for path in sorted(folder.rglob("*")) if path.stem in names and path.is_file())

    def _rename(self, name: str, old: str, new: str) -> None:
        if (file := self.folder.read(name)) is not None:
            self.folder.write(name, self.form.renamed(file.data, old, new), mode=file.mode)

    # Writing

    async def put(self, key: MemoryKey, facts: Sequence[StoredMessage]) -> None:
        await in_thread(partial(self._put_files, key, facts))

    def _put_files(self, key: MemoryKey, facts: Sequence[StoredMessage]) -> None:
        prepared = [self._prepared(key, fact) for fact in facts]
        for name, data, mode in prepared:
            self.folder.write(name, data, mode=mode)
        self.folder.sync()

    def _prepared(self, key: MemoryKey, fact: StoredMessage) -> tuple[str, bytes, int | None]:
        if "/" in fact.id:
            raise Rejected("refused", f"the id {fact.id!r} has a '/': ReMe would not find its file")
        name = fact.id + SUFFIX
        self.folder.path_of(name)
        mode, data = self._as_it_was(key, fact)
        if data is None:
            node = self.form.node(key, fact)
            try:
                data = json.dumps(node, ensure_ascii=False, indent=2).encode()
            except UnicodeEncodeError:
                raise Rejected("refused", f"the fact {fact.id!r} is not Unicode") from None
        return name, data, mode

    def _as_it_was(self, key: MemoryKey, fact: StoredMessage) -> tuple[int | None, bytes | None]:
        """Return the permissions and the content that the file of a restored fact had before.

        Both are None if the shape of the fact has no such file, or if the fact has changed since.
        """
        if not fact.shape:
            return None, None
        try:
            shape = json.loads(fact.shape)
            data = shape["file"].encode()
            if self.form.fact(data) != (key, fact.id, fact.message):
                return None, None
            return int(shape["mode"]), data
        except (ValueError, TypeError, KeyError, AttributeError):  # that of another store
            return None, None

    async def remove(self, key: MemoryKey, ids: Sequence[str]) -> None:  # noqa: ARG002
        await in_thread(partial(self._remove_files, ids))

    def _remove_files(self, ids: Sequence[str]) -> None:
        for id in ids:
            self.folder.remove(id + SUFFIX)
        self.folder.sync()
