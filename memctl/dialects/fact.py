"""Facts: the knowledge of an agent beyond one conversation, stored in long-term memory.

A fact is a text in one scope, with an id, times, metadata and perhaps a vector.  Every system has
its own storage format.  memctl holds a fact as compact JSON with the fields in this order, without
the fields that the system lacks::

    {"id": "...", "text": "...", "created_at": "...", "updated_at": "...", "metadata": {...},
     "entities": [...], "history": [...], "vector": "..."}

``metadata`` holds all further data of the fact, as stored.  ``entities`` are the entities with a
link to the fact.  ``history`` is the system's record of changes to the fact.  ``vector`` is the
base64 text of little-endian 32-bit floats.  The vector comes last, so that memctl can cut it off
without parsing the fact.
"""

from __future__ import annotations

import base64
import binascii
import sys
import uuid
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from typing import Any

from memctl.dialects.view import (
    Block,
    Dialect,
    MessageView,
    TextBlock,
    ToolSide,
    object_of,
    others,
    text_of,
)
from memctl.json import jsonio

FIELDS = ("id", "text", "created_at", "updated_at", "metadata", "entities", "history", "vector")
ROLE = "fact"
_VECTOR = b',"vector":"'
_END = b'"}'
_FLOAT_BYTES = 4


class FactView(MessageView):
    """A view of a fact."""

    __slots__ = ()

    known = frozenset(FIELDS)

    @property
    def role(self) -> str | None:
        return ROLE

    @property
    def name(self) -> str | None:
        return None

    @property
    def time(self) -> str | None:
        """The time of the last change; without it, the time of creation; None without both."""
        return text_of(self.value, "updated_at") or text_of(self.value, "created_at")

    @property
    def blocks(self) -> list[Block]:
        text = self.value.get("text")
        return [TextBlock(text, text)] if isinstance(text, str) else []

    @property
    def expiry(self) -> date | None:
        """The last day on which mem0 finds the fact; None if the fact has no valid date."""
        found = self.metadata.get("expiration_date")
        try:
            return date.fromisoformat(found) if isinstance(found, str) else None
        except ValueError:
            return None

    @property
    def entities(self) -> list[dict[str, Any]]:
        """The entities that have a link to the fact; empty if there are none."""
        found = self.value.get("entities")
        return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []

    @property
    def fault(self) -> str:
        return "" if isinstance(self.value.get("text"), str) else "it has no text"


class FactDialect(Dialect):
    """The dialect of facts."""

    name = "fact"
    facts = True
    noun = "fact"
    view = FactView

    def parse(self, text: bytes) -> FactView:
        return FactView(object_of(jsonio.loads(text), self.noun))

    def outline(self, text: bytes) -> FactView:
        return FactView(object_of(jsonio.outline(without_vector(text)), self.noun))

    def author(
        self,
        role: str,  # noqa: ARG002 - a fact has no speaker
        name: str,  # noqa: ARG002
        content: str | Sequence[Block],
        moment: datetime,
    ) -> tuple[str, bytes]:
        blocks = [TextBlock(content)] if isinstance(content, str) else content
        text = "\n".join(one.text for one in blocks if isinstance(one, TextBlock))
        id = str(uuid.uuid4())
        return id, build({"id": id, "text": text, "created_at": moment.isoformat()})

    def summary_message(self, summary: str) -> bytes:
        return build({"text": summary})

    def tool_sides(self, text: bytes) -> Iterator[tuple[ToolSide, str]]:  # noqa: ARG002
        return iter(())


def build(fields: Mapping[str, Any]) -> bytes:
    """Return the JSON text of a fact with the ``fields`` that ``FIELDS`` names and are not None."""
    found = {name: fields[name] for name in FIELDS if fields.get(name) is not None}
    vector = found.pop("vector", None)
    text = jsonio.dumps(found)
    return text if vector is None else with_vector(text, vector)


def embedded_text(fact: bytes, field: str = "") -> str:
    """Return the text of a fact from which the embedder makes a vector.

    If the metadata of the fact have a text under ``field``, this text is returned; see
    ``Store.embeds``.  An empty text becomes a space, because models refuse empty texts.
    """
    view = FACT.outline(fact)
    text = "\n".join(block.text for block in view.blocks if isinstance(block, TextBlock))
    other = view.metadata.get(field)
    text = other if isinstance(other, str) and other else text
    return text if text.strip() else " "


def vector_of(text: bytes) -> str | None:
    """Return the vector of a fact as base64 text; None if the fact has no vector.

    Raises:
        NotAnObject, ValueError: the text is not a JSON object; facts from ``build`` always are.
    """
    start = _start_of_vector(text)
    if start is not None:
        return text[start + len(_VECTOR) : -len(_END)].decode("ascii")
    return text_of(object_of(jsonio.loads(text), "fact"), "vector") if b'"vector"' in text else None


def without_vector(text: bytes) -> bytes:
    """Return the JSON text of a fact without its vector; unchanged if it has none.

    Raises:
        NotAnObject, ValueError: as ``vector_of``.
    """
    start = _start_of_vector(text)
    if start is not None:
        return text[:start] + b"}"
    if b'"vector"' not in text:
        return text
    return jsonio.dumps(others(object_of(jsonio.loads(text), "fact"), ("vector",)))


def with_vector(text: bytes, vector: str) -> bytes:
    """Return the JSON text of a fact with a new vector, in the format of ``encode_vector``.

    The fact must have at least one field besides the vector.

    Raises:
        NotAnObject, ValueError: as ``vector_of``.
    """
    return without_vector(text)[:-1] + _VECTOR + vector.encode("ascii") + _END


def encode_vector(values: Iterable[float]) -> str:
    """Return a vector as the base64 text of little-endian 32-bit floats, as facts store it."""
    numbers = array("f", values)
    if sys.byteorder == "big":
        numbers.byteswap()
    return base64.b64encode(numbers.tobytes()).decode("ascii")


def decode_vector(text: str) -> array[float]:
    """Return the numbers of a vector that ``encode_vector`` encoded.

    Raises:
        ValueError: the text is not the base64 text of 32-bit floats.
    """
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"the vector is not base64: {error}") from error
    if len(data) % _FLOAT_BYTES:
        raise ValueError("the vector is not a whole number of 32-bit floats")
    numbers = array("f", data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def dimensions(vector: str) -> int:
    """Return the number of floats in a base64 vector, without decoding it."""
    return (len(vector) * 3 // 4 - vector.count("=", -2)) // _FLOAT_BYTES


def _start_of_vector(text: bytes) -> int | None:
    """Return the position of the vector at the end of a fact, or None."""
    if not text.endswith(_END):
        return None
    start = text.rfind(_VECTOR)
    # After the vector, only the end of the object may follow.
    return None if start < 1 or text.find(b'"', start + len(_VECTOR)) != len(text) - 2 else start


FACT = FactDialect()
