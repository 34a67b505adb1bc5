"""Vector nodes, in which ReMe 0.2 and 0.3 store memories, and the facts of these memories.

A node has a content, its vector, and metadata.  ReMe embeds the content.  The content of a memory
with ``when_to_use`` is ``when_to_use``, and ``content`` in the metadata is the text; the content of
any other memory is the text.  The fact has the text and the times of the memory, and
``when_to_use`` in its metadata.

A fact that ReMe cannot read, such as a fact of mem0, becomes a memory that ReMe accepts, with a
record of the fact under ``memctl``.  While the memory is unchanged, the record restores the fact.
Source: reme-ai 0.2.0.6 (``schema/memory.py``) and 0.3.1.10 (``core/schema/memory_node.py``).
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import orjson

from memctl.dialects.fact import FIELDS, build, decode_vector, encode_vector
from memctl.json import jsonio
from memctl.json.located import with_names
from memctl.model import MemoryKey, StoredMessage
from memctl.storekit.fact_texts import WHEN
from memctl.storekit.simple import Rejected
from memctl.storekit.texts import KEEPS_VECTOR, RewriterWrapper, Rewritten

Json = dict[str, Any]
_NUMBERS = re.compile(rb'"vector":\s*(\[[^\[\]{}"\\]*\])')
_HELD = "memctl"
_APART = b'["memctl"]'
RECORD = "memctl"
_CREATED, _MODIFIED, _CONTENT, _TYPE = "time_created", "time_modified", "content", "memory_type"
_TIMES = ((_CREATED, "created_at"), (_MODIFIED, "updated_at"))


class BadNode(ValueError):
    """A node that ReMe could not have written."""


class NodeForm(ABC):
    """The format of vector nodes in one version of ReMe.

    The versions differ in the id field, in the metadata that a memory needs, and in the place of
    the user.
    """

    id_field: str
    types: ClassVar[Mapping[str, str]]
    """The type of memory in this version for a type of any version."""
    needed: frozenset[str]
    """The metadata that ReMe requires to read a memory."""

    # Which versions differ in

    @abstractmethod
    def owner(self, metadata: Json, user: str) -> str:
        """Remove the user from the metadata and return it; ``user`` if the metadata has none."""

    @abstractmethod
    def owned(self, metadata: Json, user: str) -> Json:
        """Return the metadata with the user added, if this version of ReMe keeps the user there."""

    @abstractmethod
    def record(self, metadata: Json) -> Any:
        """Return memctl's record of a fact in the metadata; None without a record."""

    @abstractmethod
    def recorded(self, metadata: Json, record: Json) -> Json:
        """Return the metadata with memctl's record of a fact added."""

    @abstractmethod
    def takes(self, metadata: Json) -> bool:
        """Return whether ReMe can read a memory with this metadata."""

    @abstractmethod
    def frame(self, id: str, user: str) -> Json:
        """Return the fields of a node that name its id and, in ReMe 0.2, its user."""

    owner_path: tuple[str, ...]
    """The keys to the user in the JSON of a node."""

    def renamed(self, text: bytes, old: str, new: str) -> bytes:
        """Return the JSON of a node of the user ``old`` as that of another user.

        Raises:
            ValueError: the text is not JSON, or is nested too deep.
        """
        return with_names(text, [(self.owner_path, old, new)])

    # From a node to a fact

    def fact(self, text: bytes, user: str = "") -> tuple[MemoryKey, str, bytes]:
        """Return the memory, the id and the JSON of the fact in a node.

        ``text`` is the JSON of the node.  ``user`` is the user if the node names none.

        Raises:
            BadNode: the text is not a node.
        """
        key, id, about, vector = self._parts(text, user)
        return key, id, build({**about, "id": id, "vector": _vector(vector)})

    def place(self, text: bytes, user: str = "") -> tuple[MemoryKey, str, str]:
        """Return the memory, the id and the time of the fact in a node; faster than ``fact``.

        The time is empty if the fact has none.  ``text`` is the JSON of the node.  ``user`` is the
        user if the node names none.  The vector is not checked.

        Raises:
            BadNode: the text is not a node.
        """
        key, id, about, _ = self._parts(text, user)
        times = (about.get("updated_at"), about.get("created_at"))
        return key, id, next((time for time in times if isinstance(time, str) and time), "")

    def _parts(self, text: bytes, user: str) -> tuple[MemoryKey, str, dict[str, Any], Any]:
        """Return the memory, the id, the fields and the vector of the fact in a node.

        ``text`` is the JSON of the node.  The fields lack the id and the vector.

        Raises:
            BadNode: the text is not a node.
        """
        node = parsed(text)
        id = node.get(self.id_field)
        if not isinstance(id, str):
            raise BadNode(f"it has no {self.id_field}")
        metadata, content = node.get("metadata"), node.get("content", "")
        if not isinstance(content, str):
            raise BadNode("its content is not a text")
        if metadata is not None and not isinstance(metadata, dict):
            raise BadNode("its metadata is not an object")
        key, about = self._about(content, metadata or {}, user)
        return key, id, about, node.get("vector")

    def _about(self, content: str, metadata: Json, user: str) -> tuple[MemoryKey, dict[str, Any]]:
        """Return the memory and the fields of the fact in a node, without id and vector.

        The fields are from memctl's record of a fact in the metadata, if the node has not changed
        since.
        """
        user, fields = self._plain(content, metadata, user)
        record = self.record(metadata)
        if not isinstance(record, dict):
            return MemoryKey(user, ""), fields
        session, part = record.get("session", ""), record.get("part", "")
        kept = record.get("fact")
        if not all(isinstance(one, str) for one in (session, part)) or not isinstance(kept, dict):
            return MemoryKey(user, ""), fields
        key = MemoryKey(user, session, part)
        kept = {name: kept[name] for name in FIELDS if name in kept} | {"text": fields["text"]}
        made = self._dressed(key, kept)
        # The score is ignored: ReMe 0.3 writes the score of its last search into the memory.
        score = {"score": 0}
        if made and made[0] == content and _equal(made[1] | score, metadata | score):
            return key, kept
        # ReMe has changed the memory since: the memory counts, not the record.
        more = kept.get("metadata")
        own = fields.get("metadata") or {}
        fields["metadata"] = {**(more if isinstance(more, dict) else {}), **own}
        return key, fields

    def _plain(self, content: str, metadata: Json, user: str) -> tuple[str, dict[str, Any]]:
        rest = dict(metadata)
        user = self.owner(rest, user)
        fields: dict[str, Any] = {"text": content}
        about: Json = {}
        if isinstance(rest.get(_CONTENT), str):
            fields["text"] = rest.pop(_CONTENT)
            about[WHEN] = content
        for name, field in _TIMES:
            if isinstance(rest.get(name), str):
                fields[field] = rest.pop(name)
        for name, value in rest.items():
            about[f"_{name}" if name.lstrip("_") == WHEN else name] = value
        fields["metadata"] = about or None
        return user, fields

    # From a fact to a node

    def node(self, key: MemoryKey, fact: StoredMessage) -> Json:
        """Return the node of a fact, as a JSON object.

        Raises:
            Rejected: a node cannot hold the fact.
        """
        fields = jsonio.loads(fact.message)
        text, vector = fields.get("text"), fields.get("vector")
        if not isinstance(text, str):
            raise Rejected("refused", f"the fact {fact.id!r} has no text")
        try:
            numbers = None if vector is None else list(decode_vector(vector))
        except ValueError as error:
            raise Rejected("refused", f"the fact {fact.id!r}: {error}") from None
        about = {name: value for name, value in fields.items() if name not in ("id", "vector")}
        made = self._undressed(key, about) or self._dressed(key, about)
        if made is None:
            raise Rejected("refused", f"no memory of ReMe can be made of the fact {fact.id!r}")
        content, metadata = made
        return {
            **self.frame(fact.id, key.user),
            "content": content,
            "vector": numbers,
            "metadata": metadata,
        }

    def _undressed(self, key: MemoryKey, fields: Json) -> tuple[str, Json] | None:
        """Return the content and metadata of a fact's node without a record.

        None if such a node would not give back the same fact, or if ReMe could not read it.
        """
        if key.session or key.part:
            return None
        about = fields.get("metadata") or {}
        if not isinstance(about, dict):
            return None
        metadata: Json = {}
        content = fields["text"]
        for name, value in about.items():
            if name == WHEN and isinstance(value, str):
                content, metadata[_CONTENT] = value, fields["text"]
            elif name.lstrip("_") == WHEN:
                metadata[name.removeprefix("_")] = value
            else:
                metadata[name] = value
        for name, field in _TIMES:
            if field in fields:
                metadata[name] = fields[field]
        metadata = self.owned(metadata, key.user)
        if not self.takes(metadata) or self.record(metadata) is not None:
            return None
        user, back = self._plain(content, metadata, key.user)
        same = _equal({name: one for name, one in back.items() if one is not None}, fields)
        return (content, metadata) if user == key.user and same else None

    def _dressed(self, key: MemoryKey, fields: Json) -> tuple[str, Json] | None:
        """Return the content and metadata of a fact's node with a record.

        None if ReMe could not read such a node.
        """
        about = fields.get("metadata")
        about = about if isinstance(about, dict) else {}
        kind = about.get(_TYPE)
        when, author, score = about.get(WHEN), about.get("author"), about.get("score")
        time = str(fields.get("updated_at") or fields.get("created_at") or "")
        content = when if isinstance(when, str) and when else fields["text"]
        metadata: Json = {
            _TYPE: self.types.get(kind if isinstance(kind, str) else "", "personal"),
            _CONTENT: fields["text"],
            "score": score if isinstance(score, (int, float)) else 0,
            _CREATED: str(fields.get("created_at") or time),
            _MODIFIED: time,
            "author": author if isinstance(author, str) else "",
        }
        kept = {name: one for name, one in fields.items() if name != "text"}
        record = {"session": key.session, "part": key.part, "fact": kept}
        metadata = self.recorded(self.owned(metadata, key.user), record)
        return (content, metadata) if self.takes(metadata) else None


class Nodes2(NodeForm):
    """The format of nodes in ReMe 0.2, where the user is the workspace."""

    id_field = "unique_id"
    owner_path = ("workspace_id",)
    types: ClassVar = {"task": "task", "procedural": "task", "tool": "tool"}
    needed = frozenset({_TYPE, _CONTENT, "score", _CREATED, _MODIFIED, "author"})
    _TYPES = frozenset({"task", "personal", "tool"})

    def owner(self, metadata: Json, user: str) -> str:  # noqa: ARG002 - it is that of the file
        return user

    def owned(self, metadata: Json, user: str) -> Json:  # noqa: ARG002
        return metadata

    def record(self, metadata: Json) -> Any:
        more = metadata.get("metadata")
        if not (isinstance(more, str) and RECORD in more):
            return None
        found = _loaded(more)
        return found.get(RECORD) if isinstance(found, dict) else None

    def recorded(self, metadata: Json, record: Json) -> Json:
        return metadata | {"metadata": json.dumps({RECORD: record}, ensure_ascii=False)}

    def takes(self, metadata: Json) -> bool:
        more = metadata.get("metadata", "{}")
        return (
            self.needed <= metadata.keys()
            and metadata[_TYPE] in self._TYPES
            and isinstance(metadata["score"], (int, float))
            and all(isinstance(metadata[name], str) for name in self.needed - {"score"})
            and isinstance(_loaded(more) if isinstance(more, str) else more, dict)
            and isinstance(metadata.get("tool_call_results", []), list)
        )

    def frame(self, id: str, user: str) -> Json:
        return {self.id_field: id, "workspace_id": user}


class Nodes3(NodeForm):
    """The format of nodes in ReMe 0.3, where ``memory_target`` in the metadata is the user."""

    id_field = "vector_id"
    owner_path = ("metadata", "memory_target")
    types: ClassVar = {
        **{one: one for one in ("identity", "procedural", "tool", "summary", "history")},
        "task": "procedural",
    }
    needed = frozenset({_TYPE})
    _TYPES = frozenset({*types.values(), "personal"})
    _TARGET = "memory_target"

    def owner(self, metadata: Json, user: str) -> str:
        found = metadata.get(self._TARGET)
        if not isinstance(found, str):
            return user
        del metadata[self._TARGET]
        return found

    def owned(self, metadata: Json, user: str) -> Json:
        return metadata | {self._TARGET: user}

    def record(self, metadata: Json) -> Any:
        found = metadata.get(RECORD)
        return _loaded(found) if isinstance(found, str) else None

    def recorded(self, metadata: Json, record: Json) -> Json:
        return metadata | {RECORD: json.dumps(record, ensure_ascii=False)}

    def takes(self, metadata: Json) -> bool:
        return metadata.get(_TYPE) in self._TYPES and all(
            isinstance(one, (str, bool, int, float)) for one in metadata.values()
        )

    def frame(self, id: str, user: str) -> Json:  # noqa: ARG002 - its metadata has the user
        return {self.id_field: id}


class NodeRewriter(RewriterWrapper):
    """A rewriter of nodes, whose other bytes stay.

    A node stays as it is if its vector has to change, and none can be made.
    """

    def rewrite(self, text: bytes, key: str = "") -> Rewritten:
        found = _NUMBERS.search(text)
        if found is None:
            return self._rewriter.rewrite(text, key)
        bare = _with_numbers(text, b"[]")
        new = self._rewriter.rewrite(bare, key)
        if not new.hits:
            return Rewritten(text, [], new.left)
        numbers = found[1]
        if (content := _content(new.text)) != _content(bare) or content is None:
            vector = None if content is None else self.vector(content)
            if vector is None:
                return new.failed(text, KEEPS_VECTOR)
            numbers = json.dumps(list(vector)).encode()
        return new._replace(text=_with_numbers(new.text, numbers))


def _with_numbers(text: bytes, numbers: bytes) -> bytes:
    """Return the text of a node with other numbers in its vector."""
    return _NUMBERS.sub(lambda found: found[0].replace(found[1], numbers), text, count=1)


def _content(text: bytes) -> str | None:
    """Return the text from which ReMe makes the vector of a node; None if it is not a node."""
    try:
        content = parsed(text).get(_CONTENT)
    except BadNode:
        return None
    return content if isinstance(content, str) else None


def parsed(text: bytes) -> Json:
    """Return the JSON object of a node.

    Raises:
        BadNode: the text is not a JSON object.
    """
    vectors = _NUMBERS.findall(text)
    whole = text
    if len(vectors) == 1:
        # Parsed apart: digits in a vector can look like a long integer, which jsonio parses slowly.
        text = text.replace(vectors[0], _APART, 1)
    try:
        node = jsonio.loads(text)
        if len(vectors) == 1:
            if not (isinstance(node, dict) and node.get("vector") == [_HELD]):
                node = jsonio.loads(whole)  # it is elsewhere
            else:
                node["vector"] = _floats(vectors[0])
    except ValueError as error:
        raise BadNode(f"it is not JSON: {error}") from error
    if not isinstance(node, dict):
        raise BadNode("it is not a JSON object")
    return node


def _floats(text: bytes) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:  # NaN, or no numbers at all
        return jsonio.loads(text)


def _vector(found: Any) -> str | None:
    if found is None:
        return None
    if not isinstance(found, list):
        raise BadNode("its vector is not a list")
    try:
        return encode_vector(found)
    except (TypeError, OverflowError):
        raise BadNode("its vector is not a list of numbers") from None


def _loaded(text: str) -> Any:
    try:
        return jsonio.loads(text.encode("utf-8", "surrogatepass"))
    except ValueError:
        return None


def _equal(one: Any, other: Any) -> bool:
    return jsonio.canonical(jsonio.dumps(one)) == jsonio.canonical(jsonio.dumps(other))
