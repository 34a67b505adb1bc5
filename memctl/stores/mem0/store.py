"""Facts of mem0's open-source library: a vector store, a history and entities.

A fact is a record of the vector store.  The payload of the record contains the text (``data``), the
scope, the times, fields derived from the text (``hash``, ``text_lemmatized``) and the metadata of
the program.  ``history.db`` contains the history of the fact.  A second collection contains the
entities named in texts; each entity links to facts by id.  memctl moves, deletes and restores all
parts of a fact together.
"""

from __future__ import annotations

from array import array
from bisect import insort
from collections.abc import AsyncGenerator, Mapping, Sequence, Set
from contextlib import aclosing
from datetime import UTC, date, datetime
from hashlib import md5
from typing import Any, NamedTuple

from memctl.dialects.fact import build, decode_vector, encode_vector
from memctl.engines.sql.side_effects import ALLOW, SIDE_EFFECTS, has_option
from memctl.errors import Failure
from memctl.json import jsonio
from memctl.location import Location, visible
from memctl.model import (
    Edit,
    Embedding,
    Finding,
    MemoryKey,
    Page,
    StoredMessage,
    WriteMode,
    WriteResult,
)
from memctl.selection import EVERYTHING, Selection
from memctl.store import Deletion, Features, Maintenance, Note, OpenMode
from memctl.store import Record as Repair
from memctl.storekit.facts import FactEntry, FactStore, LoadedFact
from memctl.storekit.locks import FileLock, stand_in
from memctl.storekit.simple import Rejected
from memctl.storekit.texts import (
    CHANGED_MEANWHILE,
    KEEPS_VECTOR,
    Rewriter,
    Rewritten,
    TextResult,
)
from memctl.stores.mem0.config import Mem0Config, read
from memctl.stores.mem0.history import History, Row, is_row, rows_of
from memctl.stores.mem0.links import LINKED, Links, linked, scope_of
from memctl.stores.mem0.pgvector import PgvectorTables
from memctl.stores.mem0.vectors import BM25, Record, VectorStore

_SCOPE = ("user_id", "run_id", "agent_id")
"""The payload fields that name the memory of a fact, in the order of ``MemoryKey``."""
_TIMES = ("created_at", "updated_at")
_DERIVED = ("hash", "text_lemmatized")
_SOME = 500
_ENOUGH = 5000
"""The number of unsaved facts after which a store of whole files is saved."""


class Shape(NamedTuple):
    """The details in which a stored fact differs from a fact that memctl would write.

    ``absent`` has the names of derived fields that the payload lacks.  ``places`` has, by id of an
    entity with unsorted links, the index of the fact in these links.  ``odd`` is True if mem0
    rejects the user, run or agent of the fact.  ``bare`` has the ids of the fact and its entities
    that have no vector.
    """

    absent: tuple[str, ...] = ()
    places: dict[str, int] = {}  # noqa: RUF012 - never changed
    odd: bool = False
    bare: tuple[str, ...] = ()

    def text(self) -> str:
        """Return the text for ``StoredMessage.shape``; empty if no detail differs."""
        found = {
            "absent": list(self.absent),
            "places": self.places,
            "odd": self.odd,
            "bare": list(self.bare),
        }
        kept = {name: value for name, value in found.items() if value}
        return jsonio.dumps({"mem0": kept}).decode() if kept else ""


def _shape(text: str) -> Shape:
    try:
        found = jsonio.loads(text.encode())["mem0"] if text else {}
    except (ValueError, TypeError, KeyError):
        return Shape()
    return Shape(
        tuple(found.get("absent", ())),
        found.get("places", {}),
        found.get("odd", False),
        tuple(found.get("bare", ())),
    )


class Mem0Store(FactStore):
    """The facts of mem0's open-source library: ``mem0:CONFIG.json``, with mem0's configuration."""

    kind = "mem0"
    features = Features(
        marks=frozenset(),
        parts=True,
        repairs=frozenset({"entity-link"}),
        renames=frozenset({"user", "session"}),
        selects_texts=True,
    )

    def __init__(self, location: Location, mode: OpenMode = OpenMode.READ) -> None:
        super().__init__(location, mode)
        self._config: Mem0Config | None = None
        self._links: Links
        self._vectors: VectorStore
        self._history: History
        self._going: list[str] = []
        """The ids of deleted facts, until their history is deleted."""
        self._unsaved = 0

    # Opening

    async def connect(self, mode: OpenMode) -> None:
        has_option(self.location, self.label, SIDE_EFFECTS, ALLOW)
        config = read(self.location.path)
        # Set before the target exists: a dry run reports the dimensions that a new target needs.
        self.embedding = config.embedding if config.embedding.dimensions else None
        self._vectors = _vector_store(config, self.label)
        self._history = History(config.history, self.label)
        self._links = Links()
        self._config = config
        await self._vectors.open(mode)
        self._history.open(writes=mode.writes)
        self.warnings += self._history.warnings
        size = await self._vectors.dimensions(self._facts)
        expected = config.embedding
        self.embedding = Embedding(expected.model, size or expected.dimensions)
        if not self.embedding.dimensions:
            self.embedding = None
        await self._read_links()

    async def check_integrity(self, where: Selection, *, complete: bool = False) -> None:
        await super().check_integrity(where, complete=complete)
        if complete:
            await self._vectors.check_structure(self.warnings)
            await self._history.check_structure(self.warnings)

    async def disconnect(self) -> None:
        if self._config is not None:
            self._config = None
            self._links.close()
            self._history.close()
            await self._vectors.close()

    @property
    def _facts(self) -> str:
        assert self._config is not None
        return self._config.collection

    @property
    def _entities(self) -> str:
        assert self._config is not None
        return self._config.entities

    async def _read_links(self) -> None:
        self._links.clear()
        async with aclosing(self._vectors.scan(self._entities)) as pieces:
            async for entities in pieces:
                self._links.take(entities)

    async def identity(self) -> str:
        return f"mem0:{await self._vectors.identity()}"

    async def lock(self, owner: str) -> None:
        path = self._vectors.place
        if path is not None:
            self._file_lock = FileLock(path, self.label)
            self.warnings += await self._file_lock.take_in_thread(owner)
        locked = await self._vectors.lock(owner)
        if path is None and not locked:
            self._file_lock = FileLock(stand_in(await self.identity()), self.label)
            self.warnings += await self._file_lock.take_in_thread(owner)

    async def missing_right(self, key: MemoryKey | None) -> str:  # noqa: ARG002 - rights of tables
        return await self._vectors.missing_right()

    async def side_effects(self, where: Selection, deletion: Deletion) -> list[str]:  # noqa: ARG002
        if has_option(self.location, self.label, SIDE_EFFECTS, ALLOW):
            return []
        return await self._vectors.side_effects(where)

    # Reading

    async def entries(self, where: Selection) -> AsyncGenerator[FactEntry]:
        await self._read_links()
        async with aclosing(self._vectors.scan(self._facts)) as pieces:
            async for records in pieces:
                for record in records:
                    key = scope_of(record.payload)
                    if where.has_key(key):
                        yield FactEntry(key, record.id, _time(record.payload))

    async def load(self, key: MemoryKey, ids: Sequence[str]) -> list[LoadedFact]:
        records = await self._vectors.get(self._facts, ids)
        links = self._links.of([one.id for one in records])
        wanted = sorted({entity for some in links.values() for entity in some})
        entities = {one.id: one for one in await self._records(self._entities, wanted)}
        histories = await self._history.load([one.id for one in records])
        loaded = []
        for record in records:
            rows = histories.get(record.id, [])
            damage = record.damage
            if not all(map(is_row, rows)):
                damage = damage or "its history has a row that mem0 does not write"
            if damage:
                loaded.append(LoadedFact(key, StoredMessage(record.id, b""), damage))
                continue
            its = [
                entities[id]
                for id in links.get(record.id, ())
                if id in entities and record.id in linked(entities[id].payload)
            ]
            its.sort(key=lambda one: (str(one.payload.get("data")), one.id))
            fact = _fact(record, its, rows)
            loaded.append(LoadedFact(scope_of(record.payload), fact))
        return loaded

    async def _records(self, collection: str, ids: Sequence[str]) -> list[Record]:
        found: list[Record] = []
        for start in range(0, len(ids), _SOME):
            found += await self._vectors.get(collection, ids[start : start + _SOME])
        return found

    # Writing

    async def put(self, key: MemoryKey, facts: Sequence[StoredMessage]) -> None:
        fields = {one.id: jsonio.loads(one.message) for one in facts}
        shapes = {one.id: _shape(one.shape) for one in facts}
        for id, shape in shapes.items():
            if not shape.odd:
                _check_scope(key, id)
        records = [_record(key, id, fields[id], shapes[id]) for id in fields]
        self._vectors.refuse(self._facts, records)
        changed, gone = await self._linked(fields, shapes)
        self._vectors.refuse(self._entities, changed)
        histories = {id: _rows(id, one) for id, one in fields.items()}
        # Write the record last.  Until then the fact does not exist, and a run after a killed run
        # repeats all steps.
        await self._history.put(histories)
        await self._change_entities(changed, gone)
        await self._vectors.put(self._facts, records)
        self._unsaved += len(records)

    async def _linked(
        self, fields: dict[str, dict[str, Any]], shapes: dict[str, Shape]
    ) -> tuple[list[Record], list[str]]:
        """Return the entities to store and the ids of the entities to delete, if facts are written.

        ``fields`` has the fields of each fact by its id, ``shapes`` the shape of each.

        Raises:
            Rejected: an entity of a fact is not valid.
        """
        wanted: dict[str, list[str]] = {}
        given: dict[str, Record] = {}
        for id, one in fields.items():
            for entity in one.get("entities") or ():
                record = _entity(entity, shapes[id])
                given.setdefault(record.id, record)
                wanted.setdefault(record.id, []).append(id)
        before = self._links.of(list(fields))
        concerned = sorted({*wanted, *(id for some in before.values() for id in some)})
        there = {one.id: one for one in await self._records(self._entities, concerned)}
        changed, gone = [], []
        for id in concerned:
            if id not in there and id not in given:
                continue  # another program has removed the entity
            record = _as_it_is(there[id]) if id in there else given[id]
            old = linked(record.payload)
            coming = wanted.get(id, [])
            new = [one for one in old if one not in fields or one in coming]
            for fact in sorted(coming, key=lambda one: shapes[one].places.get(id, 0)):
                if fact not in new:
                    _insert(new, fact, shapes[fact].places.get(id))
            if not new:
                gone.append(id)
            elif new != old or id not in there:
                changed.append(record._replace(payload=record.payload | {LINKED: new}))
        return changed, gone

    async def _change_entities(self, changed: Sequence[Record], gone: Sequence[str]) -> None:
        if changed:
            await self._vectors.put(self._entities, changed)
            self._links.take(changed)
        if gone:
            await self._vectors.delete(self._entities, gone)
            self._links.forget(gone)

    async def remove(self, key: MemoryKey, ids: Sequence[str]) -> None:  # noqa: ARG002
        # Delete the record first: every existing fact is then complete.  If the run is killed,
        # doctor finds the remaining parts.
        await self._vectors.delete(self._facts, ids)
        await self._unlink(ids)
        self._going += ids
        self._unsaved += len(ids)

    async def _unlink(self, facts: Sequence[str]) -> None:
        """Remove the links from entities to facts; delete entities without links."""
        leaving = set(facts)
        found = self._links.of(facts)
        concerned = sorted({id for some in found.values() for id in some})
        changed, gone = [], []
        for record in map(_as_it_is, await self._records(self._entities, concerned)):
            left = [one for one in linked(record.payload) if one not in leaving]
            if left:
                changed.append(record._replace(payload=record.payload | {LINKED: left}))
            else:
                gone.append(record.id)
        await self._change_entities(changed, gone)

    async def _save(self) -> None:
        await self._vectors.flush()
        for start in range(0, len(self._going), _SOME):
            await self._history.delete(self._going[start : start + _SOME])
        self._going.clear()
        self._unsaved = 0

    async def write(
        self, pages: AsyncGenerator[Page], mode: WriteMode = WriteMode.ADD
    ) -> AsyncGenerator[WriteResult]:
        async with aclosing(self._saved(super().write(pages, mode))) as results:
            async for result in results:
                yield result

    async def edit(self, edits: AsyncGenerator[Edit]) -> AsyncGenerator[WriteResult]:
        async with aclosing(self._saved(super().edit(edits))) as results:
            async for result in results:
                yield result

    async def _saved(self, results: AsyncGenerator[WriteResult]) -> AsyncGenerator[WriteResult]:
        """Yield the results of a write when its changes are durable.

        A vector store that rewrites whole files is saved only once for several results.
        """
        waiting: list[WriteResult] = []
        async with aclosing(results):
            async for result in results:
                waiting.append(result)
                if self._unsaved >= _ENOUGH or not self._vectors.writes_whole_files:
                    await self._save()
                    for one in waiting:
                        yield one
                    waiting.clear()
        await self._save()
        for one in waiting:
            yield one

    # Other names

    def name_refusal(self, key: MemoryKey) -> Failure | None:
        why = _odd_scope(key)
        return super().name_refusal(key) if why is None else Failure("bad-name", why)

    async def rename(self, moves: Mapping[MemoryKey, MemoryKey]) -> AsyncGenerator[WriteResult]:
        """Rename the scopes in entities, facts and recent messages.

        If the process ends early, a part of the facts has the new names, and the same rename does
        the rest.
        """
        for collection in (self._entities, self._facts):
            ids = list[str]()
            async with aclosing(self._vectors.scan(collection)) as pieces:
                async for records in pieces:
                    ids += [one.id for one in records if _without_agent(one.payload) in moves]
            for start in range(0, len(ids), _SOME):
                found = await self._vectors.get(collection, ids[start : start + _SOME])
                await self._vectors.put(collection, [_renamed(one, moves) for one in found])
        await self._history.rename_messages(moves)
        await self._save()
        for key in moves:
            yield WriteResult(key)

    # Rewriting

    async def rewrite_texts(
        self, rewriter: Rewriter, where: Selection = EVERYTHING, *, writes: bool
    ) -> AsyncGenerator[TextResult]:
        """Rewrite facts, entities and their histories; a fact with another text gets a new vector.

        With ``where``, the histories of deleted facts stay: they name no memory.

        Raises:
            UsageError: the vector store keeps replaced texts.
            BadData: a record is damaged, so its text is unknown.
        """
        self._vectors.refuse_rewrite()
        found: list[TextResult] = []
        ids: set[str] = set()
        for collection in (self._facts, self._entities):
            async with aclosing(self._vectors.scan(collection)) as pieces:
                async for records in pieces:
                    for one in records:
                        if one.damage:
                            raise self.damaged_fact(one.id, one.damage)
                    some = [one for one in records if _is_selected(one, where, ids)]
                    if where != EVERYTHING:
                        ids.update(one.id for one in some)
                    found += await self._rewrite(collection, some, rewriter, writes=writes)
        if writes:
            await self._save()
            await self._vectors.clear_free_space()
        for result in found:
            yield result
        chosen = None if where == EVERYTHING else rows_of(where, ids)
        rewriting = self._history.rewrite_texts(rewriter, chosen, writes=writes)
        async with aclosing(rewriting) as results:
            async for result in results:
                yield result

    async def _rewrite(
        self, collection: str, records: Sequence[Record], rewriter: Rewriter, *, writes: bool
    ) -> list[TextResult]:
        """Rewrite records of a collection; return the results of those with something to report."""
        texts = [jsonio.dumps(one.payload) for one in records]
        ids = [records[at].id for at in sorted(rewriter.suspects(texts))]
        results = []
        for record in await self._records(collection, ids):
            found, new = rewritten(record, rewriter)
            result = found.at(f"{visible(collection)} {visible(record.id)}")
            if writes and found.hits:
                result = await self._replaced(collection, record, new, result)
            results += [result] if result.changes else []
        return results

    async def _replaced(
        self, collection: str, old: Record, new: Record, result: TextResult
    ) -> TextResult:
        """Replace a record; return what became of it."""
        try:
            self._vectors.refuse(collection, [new])
            done = await self._vectors.replace(collection, old, new)
        except Rejected as rejected:
            return result.failed(rejected.failure.message)
        return result if done else result.failed(CHANGED_MEANWHILE)

    # Erasing

    async def names(self, where: Selection) -> AsyncGenerator[MemoryKey]:
        async with aclosing(super().names(where)) as found:
            async for key in found:
                yield key
        for key in await self._leftovers():
            if where.has_key(key):
                yield key

    async def _leftovers(self) -> list[MemoryKey]:
        return [*self._links.scopes(), *await self._history.scopes()]

    async def erase(self, where: Selection) -> AsyncGenerator[WriteResult]:
        found: dict[MemoryKey, WriteResult] = {}
        async with aclosing(super().erase(where)) as results:
            async for result in results:
                found[result.key] = result
        for key in await self._leftovers():
            if where.has_key(key):
                found.setdefault(key, WriteResult(key))
        for key, result in found.items():
            if result.failure is None:
                await self._change_entities([], self._links.in_scope(key))
                await self._history.delete_messages(key)
        await self._save()
        for result in found.values():
            yield result

    def maintenance(self) -> Maintenance:
        return Mem0Maintenance(self)


class Mem0Maintenance(Maintenance):
    """The checks of ``doctor`` on facts, entities and histories, with the repair of links."""

    store: Mem0Store

    async def _further(self, where: Selection) -> AsyncGenerator[Finding]:
        async with aclosing(self._check_facts(where)) as findings:
            async for finding in findings:
                yield finding
        if where.keys is not None or where.named or not where.leads:
            return  # the other checks cover the whole store
        store = self.store
        stray = await store._vectors.stray_vectors(store._facts)
        if stray:
            yield Finding("vector-without-fact", None, stray)
        if dangling := await self._check_links():
            yield dangling
        async with aclosing(self._check_histories()) as histories:
            async for finding in histories:
                yield finding

    async def _check_facts(self, where: Selection) -> AsyncGenerator[Finding]:
        store = self.store
        today = datetime.now(UTC).date()
        expired: dict[MemoryKey, list[str]] = {}
        async with aclosing(store._vectors.scan(store._facts)) as pieces:
            async for records in pieces:
                for record in records:
                    key = scope_of(record.payload)
                    if where.has_key(key) and _is_expired(record.payload, today):
                        expired.setdefault(key, []).append(record.id)
        for key, ids in sorted(expired.items()):
            yield Finding("expired-fact", key, len(ids), tuple(sorted(ids)[:3]))

    async def _check_links(self) -> Finding | None:
        dangling: list[str] = []
        count = 0
        async with aclosing(self._dangling()) as found:
            async for ids in found:
                count += len(ids)
                dangling = dangling or ids[:3]
        return Finding("entity-link", None, count, tuple(dangling)) if count else None

    async def _dangling(self) -> AsyncGenerator[list[str]]:
        store = self.store
        await store._read_links()
        for ids in store._links.pieces():
            there = {one.id for one in await store._vectors.get(store._facts, ids)}
            if gone := [id for id in ids if id not in there]:
                yield gone

    async def _check_histories(self) -> AsyncGenerator[Finding]:
        store = self.store
        others: list[str] = []
        gone: list[str] = []
        for ends in await store._history.last():
            found = await store._vectors.get(store._facts, [id for id, _, _ in ends])
            there = {one.id: one.payload.get("data") for one in found}
            gone += [id for id, _, deleted in ends if id not in there and not deleted]
            others += [
                id for id, text, deleted in ends if id in there and (deleted or text != there[id])
            ]
        for code, ids in (("history-differs", others), ("history-without-fact", gone)):
            if ids:
                yield Finding(code, None, len(ids), tuple(ids[:3]))

    async def repair(
        self,
        code: str,
        where: Selection,  # noqa: ARG002 - entities are of the store as a whole
        note: Note,
    ) -> int:
        store = self.store
        count = 0
        async with aclosing(self._dangling()) as found:
            pieces = [ids async for ids in found]
        for ids in pieces:
            concerned = sorted({id for some in store._links.of(ids).values() for id in some})
            for record in await store._records(store._entities, concerned):
                vector = encode_vector(record.vector) if record.vector else None
                about = {"id": record.id, "payload": record.payload, "vector": vector}
                await note({"code": code, **about})
            await store._unlink(ids)
            count += len(ids)
        await store._save()
        return count

    async def revert(self, records: AsyncGenerator[Repair]) -> int:
        store = self.store
        count = 0
        async for record in records:
            vector = decode_vector(record["vector"]) if record["vector"] else None
            entity = Record(record["id"], record["payload"], vector)
            await store._change_entities([_as_it_is(entity)], [])
            count += 1
        await store._save()
        return count


def _vector_store(config: Mem0Config, label: str) -> VectorStore:
    # The modules import no client library; ``open`` does.
    from memctl.stores.mem0.chroma import ChromaPlace
    from memctl.stores.mem0.faiss import FaissFolder
    from memctl.stores.mem0.qdrant import QdrantFolder

    makers: dict[str, type[VectorStore]] = {
        "qdrant": QdrantFolder,
        "faiss": FaissFolder,
        "chroma": ChromaPlace,
        "pgvector": PgvectorTables,
    }
    return makers[config.provider](config, label)


def _fact(record: Record, entities: Sequence[Record], history: list[Row]) -> StoredMessage:
    payload = dict(record.payload)
    fields: dict[str, Any] = {"id": record.id}
    key = scope_of(payload)
    for name, value in zip(_SCOPE, key, strict=True):
        if value and payload.get(name) == value:
            del payload[name]
    text = payload.get("data")
    absent = []
    if isinstance(text, str):
        del payload["data"]
        fields["text"] = text
        for name, value in _derived(text).items():
            if name not in payload:
                absent.append(name)
            elif payload[name] == value:
                del payload[name]
    for name in _TIMES:
        if isinstance(payload.get(name), str):
            fields[name] = payload.pop(name)
    places = {}
    for entity in entities:
        links = linked(entity.payload)
        if links != sorted(links):
            places[entity.id] = links.index(record.id)
    fields["metadata"] = payload or None
    fields["entities"] = [_entity_fields(one) for one in entities] or None
    fields["history"] = history or None
    if record.vector is not None:
        fields["vector"] = encode_vector(record.vector)
    bare = tuple(one.id for one in (record, *entities) if one.vector is None)
    shape = Shape(tuple(absent), places, _odd_scope(key) is not None, bare)
    return StoredMessage(record.id, build(fields), shape=shape.text())


def _record(key: MemoryKey, id: str, fields: dict[str, Any], shape: Shape) -> Record:
    payload = dict(fields.get("metadata") or {})
    for name, value in zip(_SCOPE, key, strict=True):
        if value and str(payload.get(name)) != value:
            payload[name] = value
    text = fields.get("text")
    if isinstance(text, str):
        payload["data"] = text
        for name, value in _derived(text).items():
            if name not in shape.absent:
                payload.setdefault(name, value)
    payload |= {name: fields[name] for name in _TIMES if name in fields}
    vector = _vector(id, fields.get("vector"))
    return Record(id, payload, vector, bare=id in shape.bare)


def _is_selected(record: Record, where: Selection, facts: Set[str]) -> bool:
    """Return whether a record is of a selected memory, or an entity of its ``facts`` alone."""
    links = linked(record.payload)
    return where.has_key(scope_of(record.payload)) or (bool(links) and facts >= {*links})


def _without_agent(payload: dict[str, Any]) -> MemoryKey:
    return scope_of(payload)._replace(part="")


def _renamed(record: Record, moves: Mapping[MemoryKey, MemoryKey]) -> Record:
    new = moves[_without_agent(record.payload)]
    names = {name: value for name, value in zip(_SCOPE, new, strict=True) if value}
    return _as_it_is(record)._replace(payload=record.payload | names)


def rewritten(record: Record, rewriter: Rewriter) -> tuple[Rewritten, Record]:
    """Return what a rewriter finds in a fact or an entity, and the record with other texts.

    What mem0 derives from the text is renewed; the record stays if it needs a vector that cannot be
    made.
    """
    payload = record.payload
    text = payload.get("data")
    derived = {name for name, one in _derived(str(text)).items() if payload.get(name) == one}
    apart = {LINKED, BM25, *derived}
    rest = {name: one for name, one in payload.items() if name not in apart}
    found = rewriter.rewrite(jsonio.dumps(rest))
    if not found.hits:
        return found, record
    changed = payload | jsonio.loads(found.text)
    new = changed.get("data")
    if new != text:
        changed |= {name: one for name, one in _derived(str(new)).items() if name in payload}
        changed.pop(BM25, None)  # made from the words of the old text
    vector = record.vector
    if new != text and vector is not None:
        vector = rewriter.vector(str(new))
        if vector is None:
            return found.failed(found.text, KEEPS_VECTOR), record
    return found, Record(record.id, changed, vector, bare=record.vector is None)


def _derived(text: str) -> dict[str, str]:
    digest = md5(text.encode("utf-8", "surrogatepass"), usedforsecurity=False).hexdigest()
    return dict(zip(_DERIVED, (digest, text), strict=True))


def _entity_fields(record: Record) -> dict[str, Any]:
    payload = {name: value for name, value in record.payload.items() if name != LINKED}
    found: dict[str, Any] = {"id": record.id}
    for name, field in (("text", "data"), ("type", "entity_type")):
        if isinstance(payload.get(field), str):
            found[name] = payload.pop(field)
    if payload:
        found["metadata"] = payload
    if record.vector is not None:
        found["vector"] = encode_vector(record.vector)
    return found


def _as_it_is(record: Record) -> Record:
    """Return a copy of a record that the vector store accepts even without a vector."""
    return record._replace(bare=record.vector is None)


def _entity(fields: Any, shape: Shape) -> Record:
    """Return the record of an entity, without links; ``fields`` is the entity in a fact.

    Raises:
        Rejected: the entity is not an object with an id, or its vector is not valid.
    """
    if not isinstance(fields, dict) or not isinstance(fields.get("id"), str):
        raise Rejected("refused", "an entity of a fact is not an object with an id")
    metadata = fields.get("metadata")
    payload = dict(metadata) if isinstance(metadata, dict) else {}
    for name, field in (("text", "data"), ("type", "entity_type")):
        if name in fields:
            payload[field] = fields[name]
    id = fields["id"]
    vector = _vector(id, fields.get("vector"))
    return Record(id, payload, vector, bare=id in shape.bare)


def _vector(id: str, text: Any) -> array[float] | None:
    if text is None:
        return None
    try:
        return decode_vector(text)
    except (ValueError, TypeError) as error:
        raise Rejected("refused", f"the vector of {id!r}: {error}") from error


def _rows(id: str, fields: dict[str, Any]) -> list[Row]:
    rows = fields.get("history") or []
    if not all(map(is_row, rows)):
        raise Rejected("refused", f"the history of {id!r} is not one of mem0")
    return list(rows)


def _insert(links: list[str], fact: str, place: int | None) -> None:
    if place is not None:
        links.insert(place, fact)
    elif links == sorted(links):
        insort(links, fact)
    else:
        links.append(fact)


def _check_scope(key: MemoryKey, id: str) -> None:
    why = _odd_scope(key)
    if why is not None:
        raise Rejected("bad-name", f"{id!r}: {why}")


def _odd_scope(key: MemoryKey) -> str | None:
    """Return why mem0 rejects a user, run or agent; None if mem0 accepts them.

    The rules are from mem0's ``_validate_and_trim_entity_id``.
    """
    if not any(key):
        return "mem0 needs a user, a run or an agent"
    for name, value in zip(_SCOPE, key, strict=True):
        if any(char.isspace() for char in value):
            return f"mem0 takes no white space in {name}: {value!r}"
    return None


def _time(payload: dict[str, Any]) -> str:
    for name in reversed(_TIMES):
        if isinstance(payload.get(name), str):
            return str(payload[name])
    return ""


def _is_expired(payload: dict[str, Any], today: date) -> bool:
    """Return whether a fact expired before ``today``, as mem0's ``_payload_is_expired`` does.

    Returns False if the fact has no valid date.
    """
    try:
        return date.fromisoformat(str(payload.get("expiration_date") or "")) < today
    except ValueError:
        return False
