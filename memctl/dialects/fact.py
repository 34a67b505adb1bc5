"""Facts: what an agent knows for longer than a conversation, as long-term memory keeps it.

A fact is a text with an id of its own, in one scope, with times, metadata and perhaps a vector.
Each system stores it in its own way; memctl holds it as compact JSON, its fields in this order, and
each left out where the system has nothing for it::

    {"id": "...", "text": "...", "created_at": "...", "updated_at": "...", "metadata": {...},
     "entities": [...], "history": [...], "vector": "..."}

``metadata`` is all that the system keeps of the fact besides, as stored.  ``entities`` are those
that link to it, ``history`` is what was written down of its changes.  ``vector`` is the base64 of
little-endian 32-bit floats; it comes last, so that it can be taken off without parsing the rest.
"""

from __future__ import annotations

import base64
import binascii
import sys
import uuid
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from memctl import jsonio
from memctl.dialects.view import (
    Block,
    Dialect,
    MessageView,
    NotAnObject,
    TextBlock,
    ToolResultBlock,
    ToolSide,
)

FIELDS = ("id", "text", "created_at", "updated_at", "metadata", "entities", "history", "vector")
ROLE = "fact"
_VECTOR = b',"vector":"'
_END = b'"}'
_FLOAT_BYTES = 4


class FactView(MessageView):
    """A fact."""

    __slots__ = ()

    @property
    def id(self) -> str | None:
        return _text_or_none(self.value.get("id"))

    @property
    def role(self) -> str | None:
        return ROLE

    @property
    def name(self) -> str | None:
        return None

    @property
    def time(self) -> str | None:
        """The time of its last change, else that at which it was made; None without either."""
        return _time(self.value)

    @property
    def blocks(self) -> list[Block]:
        text = self.value.get("text")
        return [TextBlock(text, text)] if isinstance(text, str) else []

    @property
    def metadata(self) -> dict[str, Any]:
        found = self.value.get("metadata")
        return found if isinstance(found, dict) else {}

    @property
    def entities(self) -> list[dict[str, Any]]:
        """The entities that link to it; empty where there are none."""
        found = self.value.get("entities")
        return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []

    @property
    def unknown(self) -> dict[str, Any]:
        return {name: value for name, value in self.value.items() if name not in FIELDS}

    @property
    def fault(self) -> str:
        return "" if isinstance(self.value.get("text"), str) else "it has no text"

    def texts(self) -> Iterator[str]:
        for block in self.blocks:
            if isinstance(block, TextBlock):
                yield block.text


class FactDialect(Dialect):
    """The dialect of facts."""

    name = "fact"
    facts = True
    noun = "fact"

    def parse(self, text: bytes) -> FactView:
        return FactView(_object(jsonio.loads(text)))

    def outline(self, text: bytes) -> FactView:
        return FactView(_object(jsonio.outline(without_vector(text))))

    def role_and_time(self, text: bytes) -> tuple[str | None, str | None]:
        return ROLE, _time(_object(jsonio.outline(without_vector(text))))

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

    def output_bytes(self, result: ToolResultBlock) -> int:  # noqa: ARG002 - facts have none
        return 0

    def summary_message(self, summary: str) -> bytes:
        return build({"text": summary})

    def tool_sides(self, text: bytes) -> Iterator[tuple[ToolSide, str]]:  # noqa: ARG002
        return iter(())


def build(fields: Mapping[str, Any]) -> bytes:
    """Return the fact with these fields, of ``FIELDS``; None stands for one that it lacks."""
    found = {name: fields[name] for name in FIELDS if fields.get(name) is not None}
    vector = found.pop("vector", None)
    text = jsonio.dumps(found)
    return text if vector is None else with_vector(text, vector)


def vector_of(text: bytes) -> str | None:
    """Return the vector of a fact, as it is stored; None where it has none.

    Raises:
        NotAnObject, ValueError: as ``Dialect.parse``; only where ``build`` did not write the fact.
    """
    start = _start_of_vector(text)
    if start is not None:
        return text[start + len(_VECTOR) : -len(_END)].decode("ascii")
    found = _object(jsonio.loads(text)).get("vector") if b'"vector"' in text else None
    return _text_or_none(found)


def without_vector(text: bytes) -> bytes:
    """Return a fact without its vector.

    Raises:
        NotAnObject, ValueError: as ``vector_of``.
    """
    start = _start_of_vector(text)
    if start is not None:
        return text[:start] + b"}"
    if b'"vector"' not in text:
        return text
    value = _object(jsonio.loads(text))
    return jsonio.dumps({name: one for name, one in value.items() if name != "vector"})


def with_vector(text: bytes, vector: str) -> bytes:
    """Return a fact, which is not empty, with another vector, as ``encode_vector`` returns it.

    Raises:
        NotAnObject, ValueError: as ``vector_of``.
    """
    return without_vector(text)[:-1] + _VECTOR + vector.encode("ascii") + _END


def encode_vector(values: Iterable[float]) -> str:
    """Return a vector as a fact holds it."""
    numbers = array("f", values)
    if sys.byteorder == "big":
        numbers.byteswap()
    return base64.b64encode(numbers.tobytes()).decode("ascii")


def decode_vector(text: str) -> array[float]:
    """Return the numbers of a vector.

    Raises:
        ValueError: it is not the base64 of 32-bit floats.
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
    """Return the number of floats in a vector, without decoding it."""
    return (len(vector) * 3 // 4 - vector.count("=", -2)) // _FLOAT_BYTES


def _start_of_vector(text: bytes) -> int | None:
    """Return where the last field of a fact begins, if it is its vector, as ``build`` writes it."""
    if not text.endswith(_END):
        return None
    start = text.rfind(_VECTOR)
    # Nothing but the end of the object may follow: no escape, and no other text.
    return None if start < 1 or text.find(b'"', start + len(_VECTOR)) != len(text) - 2 else start


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise NotAnObject("a fact is not a JSON object")
    return value


def _time(value: dict[str, Any]) -> str | None:
    return _text_or_none(value.get("updated_at")) or _text_or_none(value.get("created_at"))


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) else None


FACT = FactDialect()
