"""The conversion between messages of AgentScope 1.x and messages of AgentScope 2.x.

A reply of 2.x holds calls and their results.  In 1.x, a result is a separate message with the role
``system``.  If the result directly follows the message with the call, both become one reply.
"""

from __future__ import annotations

import mimetypes
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import orjson

from memctl.dialects import agentscope1, agentscope2
from memctl.dialects.agentscope import CONTENT, ID, NAME, NO_TIME, RESULT, ROLE
from memctl.dialects.conversion import Joint, Message
from memctl.dialects.roles import ROLES
from memctl.dialects.view import waiting
from memctl.json import jsonio

_TIME = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(?::\d\d(?:\.\d{3}(?:\d{3})?)?)?")
"""A time in the format of both versions; only the character between date and time differs."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_URL = re.compile(
    r"(?i:https?|wss?|ftp)://[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*(?::\d{1,4})?(?:[/?#].*)?|(?:data|file):.+",
    re.DOTALL,
)
"""A URL that AgentScope 2.x can load after the path has been quoted."""
_OWN = frozenset({"id", "created_at", "finished_at"})
"""The fields of each block of 2.x that 1.x lacks."""

Block = dict[str, Any]


class Versions(Joint):
    """The conversion between messages of AgentScope 1.x and 2.x."""

    fine = agentscope1.AGENTSCOPE1
    coarse = agentscope2.AGENTSCOPE2

    def belongs(self, group: list[Message], message: Message) -> bool:
        content = message.get(CONTENT)
        if not isinstance(content, list) or not content:
            return False
        if any(not isinstance(block, dict) or block.get("type") != RESULT for block in content):
            return False
        first = group[0].get(CONTENT)
        calls = {
            block.get("id")
            for block in (first if isinstance(first, list) else ())
            if isinstance(block, dict) and block.get("type") == agentscope1.CALL
            if isinstance(block.get("id"), str)
        }
        for part in group[1:]:
            calls -= {block.get("id") for block in part[CONTENT]}
        ids = [block.get("id") for block in content]
        return all(isinstance(id, str) and id in calls for id in ids)

    def join(self, parts: list[Message], id: str) -> Message:
        first = parts[0]
        time = _to_iso(first.get(agentscope1.TIMESTAMP))
        blocks: list[Block] = []
        for part in parts:
            when = time if part is first else _to_iso(part.get(agentscope1.TIMESTAMP))
            blocks += _upgraded(part.get(CONTENT), id, len(blocks), when)
        answered = {block["id"] for block in blocks if block["type"] == RESULT}
        kinds = {block["type"] for block in blocks}
        # A speaker whose role nobody knows is never taken for the assistant.
        role = found if (found := first.get(ROLE)) in ROLES else "user"
        if role == "system" and kinds <= {"text", "data"}:  # no system message has media
            blocks = [_without_media(block) for block in blocks]
        elif not kinds <= {*agentscope2.ALLOWED[role]}:
            role = "assistant"
        for block in blocks:
            if block["type"] == agentscope2.CALL:
                block["state"] = "finished" if block["id"] in answered else "pending"
        name = first.get(NAME)
        metadata = first.get("metadata")
        name = _clean(name) if isinstance(name, str) else role
        metadata = _clean_value(metadata) if isinstance(metadata, dict) else {}
        return agentscope2.message_of(_clean(id), name, role, blocks, time, metadata)

    def split(self, whole: Message) -> list[Message]:
        id, name, role = whole.get(ID), whole.get(NAME), whole.get(ROLE)
        metadata, content = whole.get("metadata"), whole.get(CONTENT)
        time = _from_iso(whole.get(agentscope2.CREATED))
        id = id if isinstance(id, str) else ""
        role = str(role) if role in ROLES else "user"
        name = name if isinstance(name, str) else role
        about = dict(metadata) if isinstance(metadata, dict) else {}
        parts, calls = [agentscope1.message_of(id, name, role, [], time, about)], set[str]()
        blocks = [
            one for one in (content if isinstance(content, list) else ()) if isinstance(one, dict)
        ]
        for block in blocks:
            kind = block.get("type")
            stopped = kind == agentscope2.CALL and block.get("state") in agentscope2.WAITING
            if stopped and not any(
                one.get("type") == RESULT and one.get(ID) == block.get(ID) for one in blocks
            ):
                kind, block = "text", _word(waiting(_text_value(block.get(NAME))))
            if kind == RESULT:
                begins, speaker = len(parts) > 1 or block.get("id") in calls, ("system", "system")
            else:
                begins, speaker = len(parts) > 1 and parts[-1][ROLE] == "system", (name, role)
            if begins:
                when = _from_iso(block.get(agentscope2.CREATED))
                parts.append(agentscope1.message_of(f"{id}-{len(parts)}", *speaker, [], when, {}))
            if kind == agentscope2.CALL and isinstance(block.get("id"), str):
                calls.add(block["id"])
            parts[-1][CONTENT].append(_downgraded(block))
        for part in parts:
            _shorten(part)
        return parts


def _word(kind: str) -> Block:
    """Return the block in the place of one that no message can hold."""
    return {"type": "text", "text": f"[{kind}]"}


def _without_media(block: Block) -> Block:
    """Return a word with the times of a block of media; any other block unchanged."""
    if block["type"] != "data":
        return block
    return _word(_kind(block)) | {name: block[name] for name in _OWN}


def _shorten(part: Message) -> None:
    """Replace the content of a user or system message by its text, if it is one text block."""
    content = part[CONTENT]
    if part[ROLE] != "assistant" and len(content) == 1 and content[0].keys() == {"type", "text"}:
        part[CONTENT] = content[0]["text"]


def _to_iso(time: Any) -> str:
    if isinstance(time, str) and _TIME.fullmatch(time):
        return time.replace(" ", "T")
    return NO_TIME


def _from_iso(time: Any) -> str:
    if isinstance(time, str) and _TIME.fullmatch(time):
        return time.replace("T", " ")
    return _clean(time) if isinstance(time, str) else NO_TIME


def _clean(text: str) -> str:
    """Return a text with U+FFFD for each lone surrogate."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def _clean_value(value: Any) -> Any:
    """Return a JSON value that AgentScope 2.x can load.

    Each lone surrogate becomes U+FFFD; NaN and infinities become None.
    """
    if isinstance(value, str):
        return _clean(value)
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, dict):
        return {_clean(name): _clean_value(one) for name, one in value.items()}
    return list(map(_clean_value, value)) if isinstance(value, list) else value


def _text_value(value: Any) -> str:
    """Return the value of a text field: "" for None, else text or JSON."""
    if isinstance(value, str):
        return _clean(value)
    return "" if value is None else jsonio.dumps(value).decode()


# 1.x to 2.x


def _upgraded(content: Any, id: str, number: int, time: str) -> list[Block]:
    """Return the blocks of 2.x for the content of a message or a tool result of 1.x.

    New blocks have the ids ``id``-``number``, counted up from ``number``, and the time ``time``.
    A word takes the place of a block that 2.x does not know.
    """
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    found = []
    for block in content if isinstance(content, list) else ():
        if isinstance(block, dict):
            upgraded = _upgraded_block(block, id, number, time)
            upgraded.setdefault(ID, _clean(f"{id}-{number}"))
            upgraded[agentscope2.CREATED] = upgraded["finished_at"] = time
            found.append(upgraded)
            number += 1
    return found


def _upgraded_block(block: Block, id: str, number: int, time: str) -> Block:
    match block.get("type"):
        case "text":
            return {"type": "text", "text": _text_value(block.get("text"))}
        case "thinking":
            others = {
                _clean(name): _clean_value(value)
                for name, value in block.items()
                if name not in _OWN and name not in ("type", "thinking")
            }
            return {**others, "type": "thinking", "thinking": _text_value(block.get("thinking"))}
        case "tool_use":
            return {
                "type": agentscope2.CALL,
                ID: _text_value(block.get("id")),
                NAME: _text_value(block.get("name")),
                "input": jsonio.compact(block.get("input"), odd=True).decode(),
                "state": "pending",
                "suggested_rules": [],
            }
        case "tool_result":
            output = block.get("output")
            if isinstance(output, list):
                inner = _upgraded(output, f"{id}-{number}", 0, time)
                output = [one for one in inner if one["type"] in ("text", "data")]
            return {
                "type": RESULT,
                ID: _text_value(block.get("id")),
                NAME: _text_value(block.get("name")),
                "output": output if isinstance(output, list) else _text_value(output),
                "state": "success",
                "metadata": {},
            }
        case "image" | "audio" | "video" | "file" as kind:
            source = _upgraded_source(kind, block.get("source"))
            name = block.get("name")
            named = {"name": _clean(name) if isinstance(name, str) else None}
            return _word(kind) if source is None else {"type": "data", "source": source} | named
        case kind:
            return _word("?" if kind is None else str(kind))


def _upgraded_source(kind: str, source: Any) -> Block | None:
    if not isinstance(source, dict):
        return None
    known = "application/octet-stream" if kind == "file" else f"{kind}/*"
    if source.get("type") == "url" and isinstance(source.get("url"), str):
        url = _as_url(source["url"])
        guessed, _ = mimetypes.guess_type(urlsplit(url).path)
        fits = guessed is not None and guessed.startswith("" if kind == "file" else f"{kind}/")
        return {"type": "url", "url": url, "media_type": guessed if fits else known}
    media_type, data = source.get("media_type"), source.get("data")
    if source.get("type") != "base64" or not isinstance(data, str):
        return None
    known = _clean(media_type) if isinstance(media_type, str) else known
    return {"type": "base64", "data": _clean(data), "media_type": known}


def _as_url(text: str) -> str:
    """Return a URL that AgentScope 2.x can load; a path becomes a ``file:`` URL."""
    text = _clean(text)
    if _URL.fullmatch(text):
        scheme, _, rest = text.partition(":")
        return f"{scheme}:{quote(rest, safe=_SAFE)}"
    return "file:///" + quote(text.removeprefix("/"))


_SAFE = "/:?#[]@!$&'()*+,;=%~-._"


# 2.x to 1.x


def _downgraded(block: Block) -> Block:
    match block.get("type"):
        case "text":
            return {"type": "text", "text": _text_value(block.get("text"))}
        case "hint":
            return {"type": "text", "text": "\n".join(_texts(block.get("hint")))}
        case "tool_call":
            return {
                "type": agentscope1.CALL,
                ID: block.get("id"),
                NAME: block.get("name"),
                "input": _arguments(block.get("input")),
            }
        case "tool_result":
            output = block.get("output")
            if isinstance(output, list):
                output = [
                    # AgentScope 1.x fails on a file in the output of a tool.
                    _word("file") if _kind(one) == "file" else _downgraded(one)
                    for one in output
                    if isinstance(one, dict)
                ]
            return {
                "type": RESULT,
                ID: block.get("id"),
                NAME: block.get("name"),
                "output": output if isinstance(output, list) else _text_value(output),
            }
        case "data":
            return _downgraded_data(block)
        case _:  # thinking, with fields added by models, and blocks unknown to 2.x
            return {name: value for name, value in block.items() if name not in _OWN}


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for block in value if isinstance(value, list) else ():
        if isinstance(block, dict) and isinstance(block.get("text"), str):
            yield block["text"]


def _arguments(text: Any) -> Any:
    """Return the arguments of a tool call as a JSON object, perhaps empty."""
    if not isinstance(text, str):
        return {}
    try:
        found = orjson.loads(text) if len(text) < 19 else jsonio.loads(text.encode())
    except ValueError:  # also UnicodeEncodeError and orjson.JSONDecodeError
        return {}
    return found if isinstance(found, dict) else {}


def _downgraded_data(block: Block) -> Block:
    source = block.get("source")
    source = source if isinstance(source, dict) else {}
    media_type = _text_value(source.get("media_type"))
    known = {"type": _kind(block)}
    if source.get("type") == "url":
        url = _text_value(source.get("url"))
        if url.startswith("file:///"):
            url = unquote(url.removeprefix("file://"))
        found: Block = known | {"source": {"type": "url", "url": url}}
    else:
        data = _text_value(source.get("data"))
        found = known | {"source": {"type": "base64", "media_type": media_type, "data": data}}
    return found | ({"name": block["name"]} if block.get("name") else {})


def _kind(block: Block) -> str:
    """Return the type of a block: in 1.x for media, in 2.x for any other block."""
    source = block.get("source")
    if block.get("type") != "data" or not isinstance(source, dict):
        return _text_value(block.get("type"))
    return agentscope1.media_kind(_text_value(source.get("media_type")))


VERSIONS = Versions()
