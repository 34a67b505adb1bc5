"""The values in LangGraph's checkpoints, decoded without LangGraph.

LangGraph's serializer writes an object as a MessagePack extension with the names of the module and
the class.  To read the object, LangGraph imports the module: anyone who can write to the database
can run code.  memctl imports no module and calls no class.  An extension stays packed until memctl
converts a message, and only classes of ``langchain_core.messages`` are messages.  memctl needs
``ormsgpack``, the MessagePack library of LangGraph, but neither LangGraph nor LangChain.

Sources: ``serde/jsonplus.py`` and ``serde/encrypted.py`` of langgraph-checkpoint 4.3.2.  Earlier
versions wrote JSON.
"""

from __future__ import annotations

import base64
import json
from typing import Any, NamedTuple
from uuid import UUID

import ormsgpack

from memctl.json import jsonio
from memctl.location import visible

_MODULE = "langchain_core.messages"
_ONE_ARGUMENT, _NUMPY, _DELTA = 0, 6, 7
_WITH_FIELDS = (4, 5)
"""The codes of extensions with the fields of a pydantic model, for pydantic 1 and 2."""
_TYPES = {
    "HumanMessage": "human",
    "AIMessage": "ai",
    "SystemMessage": "system",
    "ToolMessage": "tool",
    "FunctionMessage": "function",
    "ChatMessage": "chat",
}
"""The types of messages that LangChain wrote as JSON without a type, by class.

A class that is not listed, such as ``AIMessageChunk``, is its own type.
"""
_LEADS_TO = "branch:to:"
"""The beginning of the name of a channel that leads to a node."""
TASKS = "__pregel_tasks"
"""The channel with the nodes to run that a node has named by ``Send``."""
_EMPTY = ("null", "empty")
_DEEP = "it is nested too deep"


class Undecodable(Exception):
    """memctl cannot read a value of a checkpoint; the text gives the reason."""


class _Extension(NamedTuple):
    """A MessagePack extension: an object of LangGraph's serializer, still packed."""

    code: int
    data: bytes


def value_of(kind: Any, data: Any) -> Any:
    """Decode a value of a LangGraph checkpoint; None for the types ``null`` and ``empty``.

    ``kind`` is the stored type, such as ``msgpack``, and ``data`` the stored bytes.  MessagePack
    extensions in the value stay packed.

    Raises:
        Undecodable: the value is damaged, encrypted, or of another type, such as a pickle.
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
    """Return the messages in the value of a LangGraph channel; None if it is not a list."""
    if isinstance(value, _Extension) and value.code == _DELTA:
        value = value_of("msgpack", value.data)
    return value if isinstance(value, list) else None


def has_next_task(checkpoint: Any) -> bool:
    """Return whether a node of the graph is to run after a checkpoint.

    A node runs if the channel that leads to the node has a value that the node has not seen, or if
    another node has named it (``pregel/_algo.py`` and ``graph/state.py`` of langgraph 1.2).
    """
    names = ("channel_values", "channel_versions", "versions_seen")
    found = checkpoint if isinstance(checkpoint, dict) else {}
    values, versions, seen = (found.get(name) for name in names)
    if not (isinstance(values, dict) and isinstance(versions, dict) and isinstance(seen, dict)):
        return False
    if values.get(TASKS):
        return True
    for channel in values:
        if isinstance(channel, str) and channel.startswith(_LEADS_TO):
            node = seen.get(channel.removeprefix(_LEADS_TO))
            if not isinstance(node, dict) or node.get(channel) != versions.get(channel):
                return True
    return False


def is_snapshot(value: Any) -> bool:
    """Return whether the value of a channel is the snapshot of a delta channel."""
    return isinstance(value, _Extension) and value.code == _DELTA


def content_of(message: Any) -> dict[str, Any]:
    """Convert a message of a checkpoint to the JSON of ``message_to_dict`` of langchain-core.

    Raises:
        Undecodable: ``message`` is not a message of LangChain, or is damaged or nested too deep.
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
    """Serialize a value to JSON in UTF-8.

    Raises:
        Undecodable: the value is nested too deep.
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
    """Convert a decoded value for JSON.

    A packed object becomes its fields or its constructor's argument.  Bytes become base64.
    """
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
    """Return the constructor's argument of a packed object, such as the digits of a UUID."""
    found = _unpacked(extension.data)
    if extension.code in (_NUMPY, _DELTA):
        return _plain(found)
    match found:
        case ["uuid", "UUID", str() as digits] if extension.code == _ONE_ARGUMENT:
            return str(UUID(digits))
        case [str(), str(), argument, *_]:
            return _plain(argument)
    return _plain(found)
