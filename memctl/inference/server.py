"""A server of models at an OpenAI-compatible address, through the official SDK.

Servers that are called compatible differ in the words of their errors, which are handled here.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

import openai

from memctl.errors import UsageError
from memctl.inference.errors import ModelError, TooLong, Unauthorised, Unreachable, bad_reply
from memctl.inference.settings import Settings
from memctl.inference.text import one_line

OPENAI = "https://api.openai.com/v1"
TIMEOUT = 120.0
"""Seconds for a request, where nothing is configured."""
MAX_ERROR_PAGE = 2000
"""Characters that are read of an error that is not JSON."""
CONNECT_TIMEOUT = 15.0
"""Seconds in which a connection must be made."""

# The errors of a connection that was never made, in httpx and in its successor, to which the SDK
# has moved: by name, as either may be installed.
_NEVER_CONNECTED = {"ConnectError", "ConnectTimeout", "ProxyError", "UnsupportedProtocol"}

Body = Callable[[], dict[str, Any]]
StepDown = Callable[[int, str], bool]
"""Changes what the body asks for after a refusal, given its status and words; False if not."""


class ModelServer:
    """A server and one of its models; the SDK's own retries are off, so that they can be counted.

    Opened as an async context manager.
    """

    def __init__(self, settings: Settings, model: str, secret: str | None) -> None:
        """``secret`` is the API key.

        Raises:
            UsageError: the address or the key is not valid.
        """
        self.model = model
        self.address = checked_url(settings)
        self._secret = checked_secret(settings, secret, self.address)
        self._timeout = settings.seconds("timeout", TIMEOUT)
        host = urlsplit(self.address).netloc.rpartition("@")[2]
        self._errors = ErrorTranslator(model, host, self._secret)

    async def __aenter__(self) -> Self:
        # It reads the certificates of all authorities, which takes its time.
        self._client = await asyncio.to_thread(self._make_client)
        return self

    def _make_client(self) -> openai.AsyncOpenAI:
        client = openai.AsyncOpenAI(
            # Local servers want none, the SDK does.
            api_key=self._secret or "none",
            base_url=self.address,
            max_retries=0,
            timeout=openai.Timeout(None, connect=min(CONNECT_TIMEOUT, self._timeout)),
        )
        if self.address != OPENAI:
            # The SDK takes these from the environment; no other host may see them.
            client.organization = client.project = None
        return client

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def post(self, path: str, body: Body, step_down: StepDown | None = None) -> Any:
        """Return the server's reply to a request, as the SDK decodes it.

        ``body`` makes the request, once more where ``step_down`` has changed something.

        Raises:
            ModelError, Unreachable, Unauthorised: it did not reply, or refused.
        """
        try:
            # The SDK bounds the time between two bytes; a slow trickle of them has no end.
            async with asyncio.timeout(self._timeout):
                return await self._post(path, body, step_down)
        except TimeoutError as error:
            raise ModelError(
                "timeout", f"no reply within {self._timeout:.0f} s", retry=True
            ) from error

    async def _post(self, path: str, body: Body, step_down: StepDown | None) -> Any:
        while True:
            try:
                return await self._client.post(path, cast_to=object, body=body())
            except openai.APIStatusError as error:
                words = error_text(error.body) or error.response.text[:MAX_ERROR_PAGE]
                if step_down is None or not step_down(error.status_code, words):
                    response = ErrorResponse(error.status_code, words, error.response.headers)
                    raise self._errors.error(response) from error
            except openai.APIConnectionError as error:
                raise self._broken(error) from error
            except (openai.OpenAIError, ValueError, RecursionError) as error:
                raise bad_reply("the server's reply is not JSON") from error

    def _broken(self, error: openai.APIConnectionError) -> Exception:
        cause = error.__cause__ or error
        if _NEVER_CONNECTED & {kind.__name__ for kind in type(cause).__mro__}:
            return self._errors.unreachable(cause)
        words = self._errors.shown(str(cause) or type(cause).__name__)
        return ModelError("server-error", f"the connection was lost: {words}", retry=True)

    def object(self, body: Any) -> dict[str, Any]:
        """Return a reply as an object, without an error in it.

        Raises:
            ModelError, Unauthorised: it is none, or it is an error.
        """
        if isinstance(body, str):
            # JSON with another content type, or a page that is something else.
            try:
                body = json.loads(body)
            except (ValueError, RecursionError) as error:
                raise bad_reply("the server's reply is not JSON: check base_url") from error
        if not isinstance(body, dict):
            raise bad_reply("the server's reply is not a JSON object")
        if body.get("error"):
            # LM Studio answers so, with status 200.
            raise self._errors.error(ErrorResponse(400, error_text(body["error"]), {}))
        return body


def checked_url(settings: Settings) -> str:
    # Never taken from OPENAI_BASE_URL, as the SDK would: the configuration alone decides where
    # conversations are sent.
    url = settings.text("base_url") or OPENAI
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise settings.invalid("base_url", "a URL such as http://localhost:11434/v1")
    return url


def checked_secret(settings: Settings, secret: str | None, url: str) -> str | None:
    secret = (secret or "").strip()
    if not secret and url == OPENAI:
        raise UsageError(
            f"{settings.place} has no key for {OPENAI}",
            'write api_key_env = "OPENAI_API_KEY", or the base_url of another server',
        )
    if not (secret.isascii() and secret.isprintable()) or " " in secret:
        raise UsageError(
            f"the key of {settings.place} contains invalid characters",
            "check what api_key_env, api_key_file or api_key_command gives",
        )
    return secret or None


# Errors

# Messages about a prompt that is too long (statuses 400, 413, 422; llama.cpp also 500):
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


class ErrorResponse(NamedTuple):
    """An HTTP response that is an error: status, message (codes included) and headers."""

    status: int
    words: str
    headers: Mapping[str, str]


class ErrorTranslator:
    """A translator of one server's errors into those of memctl; no message contains its key."""

    def __init__(self, model: str, host: str, secret: str | None) -> None:
        self._model = model
        self._host = host
        self._secret = secret

    def error(self, response: ErrorResponse) -> ModelError | Unauthorised:
        """Return the error of memctl for a response."""
        status, words = response.status, response.words
        message = f"{self._host} answers {status}: {self.shown(words)}"
        if _TOO_LONG.search(words) or status == 413:
            return TooLong(message)
        if _NO_CREDIT.search(words) or status == 402:
            return Unauthorised(message, "check the billing of the account: its credit is used up")
        if status == 401:
            # Servers quote a part of the key that they do not know.
            return Unauthorised(f"{self._host} refuses the key (401)", "check api_key_*")
        if status == 403 and not _BARRED.search(words):
            return Unauthorised(message, f"the key must be allowed to use {self._model!r}")
        if status == 404 or _NO_MODEL.search(words):
            return Unauthorised(message, f"check base_url and model ({self._model!r})")
        after = retry_after(response.headers)
        if status == 429:
            return ModelError("rate-limited", message, retry=True, after=after)
        if status in (408, 409) or status >= 500:
            return ModelError("server-error", message, retry=True, after=after)
        if _BARRED.search(words):
            return ModelError("refused", message)
        return ModelError("rejected", message)

    def unreachable(self, cause: BaseException) -> Unreachable:
        """Return the error of a connection that could not be made."""
        why = self.shown(str(cause)) or type(cause).__name__
        return Unreachable(f"cannot reach {self._host}: {why}", "check base_url")

    def shown(self, words: str) -> str:
        """Return a server's message without secrets, in one line."""
        if self._secret:
            # More than the key itself: a part of it would be no better.
            part = re.escape(self._secret[: max(4, len(self._secret) // 2)])
            words = re.sub(rf"\S*{part}\S*", "***", words)
        return one_line(_MASKED.sub("***", words)) or "(no message)"


def error_text(body: Any) -> str:
    """Return the message of an error and its codes, which servers put in different places.

    OpenAI has ``error.message`` and ``error.code``, vLLM had them outside of ``error``, FastAPI
    has ``detail``, LM Studio an ``error`` that is a text.
    """
    if isinstance(body, str):
        return body
    if isinstance(body, list):
        return " ".join(filter(None, map(error_text, body)))
    if isinstance(body, dict):
        names = ("message", "error", "detail", "msg", "code", "type", "param")
        return " ".join(filter(None, (error_text(body.get(name)) for name in names)))
    return ""


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds to wait: of ``retry-after-ms``, or ``Retry-After`` in either form."""
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
