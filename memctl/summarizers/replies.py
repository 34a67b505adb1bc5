"""Parsing of the replies of models and programs into summaries."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from memctl.inference.errors import bad_reply
from memctl.inference.settings import Usage
from memctl.inference.summary import LIMITS, Summary
from memctl.inference.text import clean, shorten

MAX_REPLY = 64 * 1024
"""The maximum characters of a reply; a summary in fields has about two thousand."""
MAX_TEXT = 8000
"""The maximum characters of a summary without fields."""

_THOUGHTS = re.compile(r"\s*<(think|thinking|reasoning)>.*?(?:</\1>|\Z)", re.DOTALL)
_END_OF_THOUGHTS = "</think>"
_BRACE = re.compile(r"\{")
_MAX_BRACES = 100
"""The maximum number of braces at which to try to parse an object: each attempt takes time."""


def read_summary(text: str, nonce: str, usage: Usage | None = None) -> Summary:
    """Return the summary in the reply of a model.

    The summary may be JSON or nearly JSON, also in a code fence or between prose.  ``nonce`` marks
    the fences in the prompt; ``usage`` counts the tokens, for an error.

    Raises:
        ModelError: the reply has no summary, two different summaries, or the nonce (code
            ``bad-reply``).
    """
    text = _without_thoughts(text)
    _check(text, nonce, usage)
    _refuse_several(text.strip(), usage)
    found: list[Summary] = []
    for value in _objects(text):
        summary = _summary(value, usage)
        if summary is not None and summary not in found:
            found.append(summary)
    if not found:
        summary = _summary(_repaired(text), usage)
        found = [] if summary is None else [summary]
    if len(found) > 1:
        # One summary may be a quote from the conversation, and nothing shows which one.
        raise bad_reply("the reply contains two summaries", usage)
    if not found:
        raise bad_reply(
            f"the reply is not a JSON object with {', '.join(LIMITS)} as strings", usage
        )
    return found[0]


def read_any(text: str, nonce: str, usage: Usage | None = None) -> Summary | str:
    """Return the summary printed by a program, in fields if the text names a field, else as text.

    ``nonce`` marks the fences in the input; ``usage`` counts the tokens, for an error.

    Raises:
        ModelError: the text is empty or too long, lacks a field, or has the nonce (code
            ``bad-reply``).
    """
    if any(f'"{name}"' in text for name in LIMITS):
        return read_summary(text, nonce, usage)
    text = clean(_without_thoughts(text)).strip()
    _check(text, nonce, usage)
    _refuse_several(text, usage)
    if len(text) > MAX_TEXT:
        raise bad_reply(f"the summary has {len(text)} characters, more than {MAX_TEXT}", usage)
    return text


def _check(text: str, nonce: str, usage: Usage | None) -> None:
    if not text.strip():
        raise bad_reply("the reply is empty", usage)
    if len(text) > MAX_REPLY:
        raise bad_reply(f"the reply has {len(text)} characters, more than {MAX_REPLY}", usage)
    # A reply with the nonce shows that the conversation steers the model.
    if nonce and nonce in text:
        raise bad_reply("the reply repeats the code that fences the conversation", usage)


def _refuse_several(text: str, usage: Usage | None) -> None:
    """Refuse a reply that is a JSON list, or begins with two different JSON objects."""
    try:
        value, end = json.JSONDecoder(strict=False).raw_decode(text)
    except (ValueError, RecursionError):
        return
    rest = text[end:].lstrip()
    if isinstance(value, list) and not rest:
        raise bad_reply("the reply is a list, not one summary", usage)
    if isinstance(value, dict) and rest.startswith("{") and rest != text[:end]:
        raise bad_reply("the reply contains two summaries", usage)


def _without_thoughts(text: str) -> str:
    rest = text[thoughts.end() :] if (thoughts := _THOUGHTS.match(text)) else text
    if not rest.lstrip().startswith("{") and _END_OF_THOUGHTS in rest:
        rest = rest.split(_END_OF_THOUGHTS, 1)[1]
    return rest


def _objects(text: str) -> Iterator[Any]:
    """Yield each outermost JSON object in the text, then its members' values."""
    decoder = json.JSONDecoder(strict=False)  # models often leave newlines in strings unescaped
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
        # Some models wrap the summary in an outer object.
        inner = [value, *value.values()]
        yield from inner
        start = end


def _repaired(text: str) -> Any:
    """Return the value of nearly valid JSON, or None."""
    text = text.rstrip().removesuffix("```").rstrip()
    start = text.find("{")
    # Text without a closing brace was cut off.  A repair would hide the loss.
    if start < 0 or not text.endswith("}"):
        return None
    try:
        import json_repair
    except ModuleNotFoundError:
        return None  # json_repair comes with the extra for models; programs work without it
    try:
        return json_repair.loads(text[start:], skip_json_loads=True)
    except (ValueError, RecursionError):
        return None


def _summary(value: Any, usage: Usage | None) -> Summary | None:
    if not isinstance(value, dict):
        return None
    if not value.keys().isdisjoint(LIMITS) and value.keys() - LIMITS:
        raise bad_reply(f"the reply has other fields than {', '.join(LIMITS)}", usage)
    fields = {}
    for name, limit in LIMITS.items():
        text = _text(value.get(name))
        if text is None:
            return None
        # Models count characters badly, and hardly any server enforces a length.  Shortening a long
        # field is cheaper than a second paid request.
        fields[name] = shorten(text, limit)
    # A summary without a task is useless, although the summary fits the schema.
    return Summary(**fields) if fields["task_overview"] else None


def _text(value: Any) -> str | None:
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        value = "; ".join(part.strip() for part in value)
    return clean(value).strip() if isinstance(value, str) else None
