"""Replies of models and programs, read as summaries or refused with a reason."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from memctl.inference.errors import bad_reply
from memctl.inference.settings import Usage
from memctl.inference.text import clean, shorten
from memctl.summary import LIMITS, Summary

MAX_REPLY = 64 * 1024
"""Characters of a reply that are accepted: a summary in fields has some two thousand."""
MAX_TEXT = 8000
"""Characters of a summary without fields."""

_THOUGHTS = re.compile(r"\s*<(think|thinking|reasoning)>.*?(?:</\1>|\Z)", re.DOTALL)
_END_OF_THOUGHTS = "</think>"
_BRACE = re.compile(r"\{")
_MAX_BRACES = 100
"""Positions where an object is tried: a reply full of braces must not take forever."""


def read_summary(text: str, nonce: str, usage: Usage | None = None) -> Summary:
    """Return the summary in a reply: as JSON, in a code fence, in prose, or as almost JSON.

    Raises:
        ModelError: ``bad-reply``: it has none, or two that differ, or the code of the fence.
    """
    text = _without_thoughts(text)
    _check(text, nonce, usage)
    found: list[Summary] = []
    for value in _objects(text):
        summary = _summary(value)
        if summary is not None and summary not in found:
            found.append(summary)
    if not found:
        summary = _summary(_repaired(text))
        found = [] if summary is None else [summary]
    if len(found) > 1:
        # One of them may be quoted from the conversation, and nothing shows which.
        raise bad_reply("the reply contains two summaries", usage)
    if not found:
        raise bad_reply(
            f"the reply is not a JSON object with {', '.join(LIMITS)} as strings", usage
        )
    return found[0]


def read_any(text: str, nonce: str, usage: Usage | None = None) -> Summary | str:
    """Return the summary that a program printed: its fields if it has any, else the text itself.

    Raises:
        ModelError: ``bad-reply``: nothing, too much, fields that are not all there, or the
            code of the fence.
    """
    if any(f'"{name}"' in text for name in LIMITS):
        return read_summary(text, nonce, usage)
    text = clean(_without_thoughts(text)).strip()
    _check(text, nonce, usage)
    if len(text) > MAX_TEXT:
        raise bad_reply(f"the summary has {len(text)} characters, more than {MAX_TEXT}", usage)
    return text


def _check(text: str, nonce: str, usage: Usage | None) -> None:
    if not text.strip():
        raise bad_reply("the reply is empty", usage)
    if len(text) > MAX_REPLY:
        raise bad_reply(f"the reply has {len(text)} characters, more than {MAX_REPLY}", usage)
    # A model that repeats the code was asked to: the conversation steers the reply.
    if nonce and nonce in text:
        raise bad_reply("the reply repeats the code that fences the conversation", usage)


def _without_thoughts(text: str) -> str:
    """Return the reply of a reasoning model without its thoughts.

    Some servers (vLLM without a reasoning parser) pass the thoughts on without their first tag.
    """
    rest = text[thoughts.end() :] if (thoughts := _THOUGHTS.match(text)) else text
    if not rest.lstrip().startswith("{") and _END_OF_THOUGHTS in rest:
        rest = rest.split(_END_OF_THOUGHTS, 1)[1]
    return rest


def _objects(text: str) -> Iterator[Any]:
    """Yield each JSON object in the text that is not inside another, and the values in it."""
    decoder = json.JSONDecoder(strict=False)  # newlines in a text are the usual slip
    start = 0
    for _ in range(_MAX_BRACES):
        brace = _BRACE.search(text, start)
        if brace is None:
            return
        try:
            value, end = decoder.raw_decode(text, brace.start())
        except (ValueError, RecursionError):
            start = brace.end()
            continue
        # Some models put the summary into an object of their own.
        inner = [value, *value.values()]
        yield from inner
        start = end


def _repaired(text: str) -> Any:
    """Return the object that the text almost is; None if it is cut off, or has none."""
    text = text.rstrip().removesuffix("```").rstrip()
    start = text.find("{")
    # What has no end was cut off, and a repair would make a whole of a half.
    if start < 0 or not text.endswith("}"):
        return None
    try:
        import json_repair
    except ModuleNotFoundError:
        return None  # it comes with the models; a program may be asked without
    try:
        return json_repair.loads(text[start:], skip_json_loads=True)
    except (ValueError, RecursionError):
        return None


def _summary(value: Any) -> Summary | None:
    if not isinstance(value, dict):
        return None
    fields = {}
    for name, limit in LIMITS.items():
        text = _text(value.get(name))
        if text is None:
            return None
        # Models count characters badly, and hardly any server holds them to a length: a field
        # that is a little long is worth a cut, not another request that has to be paid.
        fields[name] = shorten(text, limit)
    # A summary that does not say what the work is about has left its schema in all but name.
    return Summary(**fields) if fields["task_overview"] else None


def _text(value: Any) -> str | None:
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        value = "; ".join(part.strip() for part in value)
    return clean(value).strip() if isinstance(value, str) else None
