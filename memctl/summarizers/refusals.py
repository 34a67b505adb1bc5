"""What an OpenAI-compatible server says when it gives no reply, as an error of memctl."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

from memctl.summarizer import SummaryError, TooLong, Unauthorised, Unreachable
from memctl.summarizers.texts import one_line

# Who says what of a prompt that is too long (statuses 400, 413, 422; llama.cpp also 500):
# OpenAI: code context_length_exceeded; "This model's maximum context length is N tokens"; "Your
#   input exceeds the context window of this model"
# vLLM: "This model's maximum context length is N tokens. However, you requested ..."; "The decoder
#   prompt (length N) is longer than the maximum model length of N"; "The prompt (total length N) is
#   too long to fit into the model"; "max_tokens must be at least 1, got -186"
# DashScope: "Range of input length should be [1, 30720]"; OpenRouter: "This endpoint's maximum
#   context length is N tokens"
# llama.cpp: type exceed_context_size_error; "request (N tokens) exceeds the available context
#   size"; "Context size has been exceeded."; its Python server: "Requested tokens (N) exceed
#   context window of N"
# Ollama: "the input length exceeds the context length"
# OpenAI, status 429, where one request is more than a minute's share: "Request too large for ..."
# LM Studio: "Trying to keep the first N tokens when context the overflows"
_TOO_LONG = re.compile(
    r"context_length_exceeded|exceed_context_size|maximum (context|model) length"
    r"|exceeds? (the |its )?(available |maximum )?context (window|size|length)"
    r"|context size has been exceeded|range of input length|(prompt|input|request) is too long"
    r"|too long to fit|max_tokens must be at least 1, got -|when (the )?context (the )?overflows"
    r"|string_above_max_length|request too large for|prompt .{0,40}is too long",
    re.IGNORECASE,
)
_NO_CREDIT = re.compile(
    r"insufficient_quota|insufficient balance|arrearage|billing_hard_limit|credit_balance",
    re.IGNORECASE,
)
_NO_MODEL = re.compile(r"model_not_found|ModelNotFound|model .{0,80}does not exist", re.IGNORECASE)
_BARRED = re.compile(
    r"content_filter|content_policy|data_inspection_failed|DataInspectionFailed", re.IGNORECASE
)
_MASKED = re.compile(r"\S*\*{2,}\S*")


class Refusal(NamedTuple):
    """An answer that is an error: its status, its words (codes included), and its headers."""

    status: int
    words: str
    headers: Mapping[str, str]


class Translator:
    """Makes errors of what one server says; no message holds its key."""

    def __init__(self, model: str, host: str, secret: str | None) -> None:
        self._model = model
        self._host = host
        self._secret = secret

    def error(self, refusal: Refusal) -> SummaryError | Unauthorised:
        """The error that a refusal is."""
        status, words = refusal.status, refusal.words
        told = f"{self._host} answers {status}: {self.shown(words)}"
        if _TOO_LONG.search(words) or status == 413:
            return TooLong(told)
        if _NO_CREDIT.search(words) or status == 402:
            return Unauthorised(told, "the account has nothing left: look at its billing")
        if status == 401:
            # Servers quote a part of the key that they do not know.
            return Unauthorised(f"{self._host} refuses the key (401)", "check api_key_*")
        if status == 403 and not _BARRED.search(words):
            return Unauthorised(told, f"the key must be allowed to use {self._model!r}")
        if status == 404 or _NO_MODEL.search(words):
            return Unauthorised(told, f"check base_url and model ({self._model!r})")
        after = wait_of(refusal.headers)
        if status == 429:
            return SummaryError("rate-limited", told, retry=True, after=after)
        if status in (408, 409) or status >= 500:
            return SummaryError("server-error", told, retry=True, after=after)
        if _BARRED.search(words):
            return SummaryError("refused", told)
        return SummaryError("rejected", told)

    def unreachable(self, cause: BaseException) -> Unreachable:
        """The error of a connection that could not be made."""
        why = self.shown(str(cause)) or type(cause).__name__
        return Unreachable(f"nobody answers at {self._host}: {why}", "check base_url")

    def shown(self, words: str) -> str:
        """A server's words as they may be shown."""
        if self._secret:
            # More than the key itself: a part of it would be no better.
            part = re.escape(self._secret[: max(4, len(self._secret) // 2)])
            words = re.sub(rf"\S*{part}\S*", "***", words)
        return one_line(_MASKED.sub("***", words)) or "(it says nothing)"


def words_of(body: Any) -> str:
    """All that an error says of itself, codes included: servers put these in different places.

    OpenAI has ``error.message`` and ``error.code``, vLLM had them outside of ``error``, FastAPI
    has ``detail``, LM Studio an ``error`` that is a text.
    """
    if isinstance(body, str):
        return body
    if isinstance(body, list):
        return " ".join(filter(None, map(words_of, body)))
    if isinstance(body, dict):
        names = ("message", "error", "detail", "msg", "code", "type", "param")
        return " ".join(filter(None, (words_of(body.get(name)) for name in names)))
    return ""


def wait_of(headers: Mapping[str, str]) -> float | None:
    """Seconds that a server asks to wait: ``retry-after-ms``, or ``Retry-After`` in either form."""
    try:
        return max(0.0, float(headers["retry-after-ms"]) / 1000)
    except (KeyError, ValueError):
        pass  # most servers have only the other
    value = headers.get("retry-after")
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except ValueError:
            return None
    return max(0.0, seconds) if seconds == seconds else None
