"""The values in LangGraph's checkpoints, decoded without LangGraph.

LangGraph's serializer writes a class as a MessagePack extension that names its module, and imports
that module to read it: whoever can write to the database can have code run.  Here nothing is
imported and nothing is called.  An extension stays packed until a message is made of it, and only
the classes of ``langchain_core.messages`` are messages.  That takes no more than ``ormsgpack``,
which LangGraph packs with: neither LangGraph nor LangChain need be installed.

Sources: ``serde/jsonplus.py`` and ``serde/encrypted.py`` of langgraph-checkpoint 4.3.2, which wrote
JSON before MessagePack.
"""

from __future__ import annotations

import base64
import json
from typing import Any, NamedTuple
from uuid import UUID

import ormsgpack

from memctl import jsonio
from memctl.location import visible

_MODULE = "langchain_core.messages"
_ONE_ARGUMENT, _NUMPY, _DELTA = 0, 6, 7
_WITH_FIELDS = (4, 5)
"""The codes of the extensions with the fields of a model: of pydantic 1 and 2."""
_TYPES = {
    "HumanMessage": "human",
    "AIMessage": "ai",
    "SystemMessage": "system",
    "ToolMessage": "tool",
    "FunctionMessage": "function",
    "ChatMessage": "chat",
}
"""The types of messages whose JSON need not have one; that of a chunk is the name of its class."""
_EMPTY = ("null", "empty")
_DEEP = "it is nested too deep"


class Undecodable(Exception):
    """A value is damaged, or not one that memctl reads; the text says why."""


class _Extension(NamedTuple):
    """An extension as it is packed."""

    code: int
    data: bytes


def value_of(kind: Any, data: Any) -> Any:
    """Return what LangGraph stored as ``kind``; extensions in it stay packed.

    Raises:
        Undecodable: it is damaged, encrypted, or pickled.
    """
    if kind in _EMPTY:
        return None
    if not isinstance(data, bytes | str):
        raise Undecodable("its checkpoint holds no data")
    data = jsonio.encoded(data)
    try:
        if kind == "msgpack":
            found = _unpacked(data)
            delta = isinstance(found, _Extension) and found.code == _DELTA
            return _unpacked(found.data) if delta else found
        if kind == "json":
            return jsonio.loads(data)
    except ValueError as error:
        raise Undecodable(f"its checkpoint is damaged: {visible(str(error))}") from error
    if isinstance(kind, str) and "+" in kind:
        raise Undecodable(f"its checkpoint is encrypted ({visible(kind)})")
    raise Undecodable(f"its checkpoint is stored as {visible(str(kind))}, which is not read")


def messages_of(value: Any) -> list[Any] | None:
    """Return the messages that a channel holds, as stored; None where it is no list."""
    if isinstance(value, _Extension) and value.code == _DELTA:
        value = value_of("msgpack", value.data)
    return value if isinstance(value, list) else None


def content_of(message: Any) -> dict[str, Any]:
    """Return a stored message as ``message_to_dict`` of langchain-core gives it.

    Raises:
        Undecodable: it is none, or damaged.
    """
    try:
        if isinstance(message, _Extension):
            return _of_extension(message)
        if isinstance(message, dict) and "lc" in message:
            return _of_constructor(message)
    except ValueError as error:
        raise Undecodable(f"it is damaged: {visible(str(error))}") from error
    except RecursionError as error:
        raise Undecodable(_DEEP) from error
    raise Undecodable(f"it is a {type(message).__name__}, not a message of LangChain")


def text_of(value: dict[str, Any]) -> bytes:
    """Return the JSON text of a value.

    Raises:
        Undecodable: it is nested too deep.
    """
    try:
        try:
            text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
            return text.encode()
        except ValueError:  # a number that JSON lacks, or a lone surrogate
            return jsonio.dumps(value)
    except RecursionError as error:
        raise Undecodable(_DEEP) from error


def _unpacked(data: bytes) -> Any:
    return ormsgpack.unpackb(data, ext_hook=_Extension, option=ormsgpack.OPT_NON_STR_KEYS)


def _of_extension(extension: _Extension) -> dict[str, Any]:
    found = _unpacked(extension.data) if extension.code in _WITH_FIELDS else None
    match found:
        case [str() as module, str() as name, dict() as fields, *_]:
            if not f"{module}.".startswith(f"{_MODULE}."):
                raise Undecodable(f"it is a {visible(f'{module}.{name}')}, not one of LangChain's")
            data = _plain(fields)
            return _document(data.get("type"), data)
    raise Undecodable("it is an object, not a message of LangChain")


def _of_constructor(value: dict[str, Any]) -> dict[str, Any]:
    match value:
        case {"type": "constructor", "id": [*module, str() as name], "kwargs": dict() as fields}:
            if "messages" in module:
                kind = fields.get("type", _TYPES.get(name, name))
                return _document(kind, {**fields, "type": kind})
    raise Undecodable("it is an object, not a message of LangChain")


def _document(kind: Any, data: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(kind, str):
        raise Undecodable("it has no type")
    return {"type": kind, "data": data}


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: objects as their fields or arguments, bytes in base64."""
    match value:
        case dict():
            return {_key(key): _plain(one) for key, one in value.items()}
        case _Extension():
            return _argument(value)
        case list() | tuple():
            return [_plain(one) for one in value]
        case bytes():
            return base64.b64encode(value).decode()
    return value


def _key(key: Any) -> str:
    return key if isinstance(key, str) else jsonio.dumps(_plain(key)).decode()


def _argument(extension: _Extension) -> Any:
    """Return what an object was made of, as LangGraph's own conversion to JSON does."""
    found = _unpacked(extension.data)
    if extension.code in (_NUMPY, _DELTA):
        return _plain(found)
    match found:
        case ["uuid", "UUID", str() as digits] if extension.code == _ONE_ARGUMENT:
            return str(UUID(digits))
        case [str(), str(), argument, *_]:
            return _plain(argument)
    return _plain(found)
