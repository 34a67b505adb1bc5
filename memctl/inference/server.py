"""A client for models at an OpenAI-compatible address, based on the official SDK.

OpenAI-compatible servers word their errors differently.  This module translates the errors.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
import zlib
from collections.abc import Callable, Mapping
from contextlib import aclosing
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

import openai

from memctl.errors import UsageError
from memctl.inference.errors import (
    ModelError,
    TooLong,
    Unauthorised,
    Unreachable,
    bad_reply,
    too_large,
)
from memctl.inference.settings import Settings
from memctl.inference.tables import Server
from memctl.inference.text import one_line
from memctl.text.words import in_file

OPENAI = "https://api.openai.com/v1"
MAX_ERROR_PAGE = 2000
"""The number of characters to read of an error page, if the error is not JSON."""
CONNECT_TIMEOUT = 15.0
"""The maximum seconds to make a connection."""

# The names of exceptions of failed connections, in httpx and in the successor of httpx that newer
# SDKs use.  Names, because either library may be installed.
_NEVER_CONNECTED = {"ConnectError", "ConnectTimeout", "ProxyError", "UnsupportedProtocol"}

Body = Callable[[], dict[str, Any]]
StepDown = Callable[[int, str], bool]
"""A function of the HTTP status and the message of a refusal.

It may change the form of the request, and returns True if the request is to be sent again.
"""


class ModelServer:
    """A client for one model of a server, to be opened as an async context manager.

    The client does not retry a failed request; ``RequestRetries`` does.
    """

    def __init__(
        self, settings: Settings, table: Server, model: str, secret: str | None, max_reply: int
    ) -> None:
        """``secret`` is the API key, ``max_reply`` the size limit of a reply in bytes.

        ``table`` has the options of ``settings``.  The limit is for a decompressed reply.

        Raises:
            UsageError: the address or the key is not valid.
        """
        self.model = model
        self._max_reply = max_reply
        self.address = checked_url(settings, table.base_url or OPENAI)
        self._secret = checked_secret(settings, secret, self.address)
        self._timeout = table.timeout
        host = urlsplit(self.address).netloc.rpartition("@")[2]
        self._errors = ErrorTranslator(model, host, self._secret)

    async def __aenter__(self) -> Self:
        # In a thread, because reading the certificates of all authorities takes time.
        self._client = await asyncio.to_thread(self._make_client)
        return self

    def _make_client(self) -> openai.AsyncOpenAI:
        client = openai.AsyncOpenAI(
            # The SDK demands a key, even if a local server needs none.
            api_key=self._secret or "none",
            base_url=self.address,
            max_retries=0,
            timeout=openai.Timeout(None, connect=min(CONNECT_TIMEOUT, self._timeout)),
            http_client=_BoundedClient(self._max_reply),
        )
        if self.address != OPENAI:
            # The SDK reads both from the environment; only OpenAI may see them.
            client.organization = client.project = None
        return client

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def post(self, path: str, body: Body, step_down: StepDown | None = None) -> Any:
        """Send a POST request, and return the server's reply as decoded by the SDK.

        ``body`` returns the body of the request.  After a refusal, ``step_down`` decides: if it
        returns True, the request is sent again, with a new body.

        Raises:
            ModelError, Unreachable, Unauthorised: the server refused, or did not reply.
        """
        try:
            # The SDK limits only the time between two bytes, so a slow trickle might never end.
            async with asyncio.timeout(self._timeout):
                return await self._post(path, body, step_down)
        except TimeoutError as error:
            raise ModelError(
                "timeout", f"no reply within {self._timeout:.0f} s", retry=True
            ) from error

    async def _post(self, path: str, body: Body, step_down: StepDown | None) -> Any:
        while True:
            try:
                # A redirect would send the conversation to a host that nobody configured.
                return await self._client.post(
                    path, cast_to=object, body=body(), options={"follow_redirects": False}
                )
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
        if isinstance(cause, ModelError):  # older SDKs wrap what their HTTP client raises
            return cause
        if _NEVER_CONNECTED & {kind.__name__ for kind in type(cause).__mro__}:
            return self._errors.unreachable(cause)
        words = self._errors.shown(str(cause) or type(cause).__name__)
        return ModelError("server-error", f"the connection was lost: {words}", retry=True)

    def object(self, body: Any) -> dict[str, Any]:
        """Return a decoded reply if it is a JSON object.

        Raises:
            ModelError, Unauthorised: the reply is not an object, or reports an error.
        """
        if isinstance(body, str):
            # Either JSON with a wrong content type, or an unrelated page.
            try:
                body = json.loads(body)
            except (ValueError, RecursionError) as error:
                raise bad_reply("the server's reply is not JSON: check base_url") from error
        if not isinstance(body, dict):
            raise bad_reply("the server's reply is not a JSON object")
        if body.get("error"):
            # LM Studio reports errors with status 200.
            raise self._errors.error(ErrorResponse(400, error_text(body["error"]), {}))
        return body


class _BoundedClient(openai.DefaultAsyncHttpxClient):
    """The HTTP client of the SDK, which reads no more than ``max_reply`` bytes of a reply.

    The limit is for decompressed bytes, so the client decompresses replies itself.
    """

    def __init__(self, max_reply: int) -> None:
        super().__init__()
        self._max_reply = max_reply

    async def send(self, request: Any, **options: Any) -> Any:
        """Return a response whose content is read to the end.

        Raises:
            ModelError: the reply is too large, or has an encoding that was not asked for.
        """
        request.headers["Accept-Encoding"] = "gzip"
        response = await super().send(request, **(options | {"stream": True}))
        try:
            content = await self._content(response)
        finally:
            await response.aclose()
        headers = response.headers.copy()
        headers.pop("Content-Encoding", None)
        return type(response)(
            response.status_code, headers=headers, content=content, request=request
        )

    async def _content(self, response: Any) -> bytes:
        encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
        if encoding not in ("identity", "gzip"):
            raise bad_reply("the server's reply has an encoding that memctl does not ask for")
        unpacking = zlib.decompressobj(zlib.MAX_WBITS | 16) if encoding == "gzip" else None
        content = bytearray()
        received = 0
        async with aclosing(response.aiter_raw()) as pieces:
            async for piece in pieces:
                received += len(piece)
                if unpacking is not None:
                    try:
                        piece = unpacking.decompress(piece, self._max_reply + 1 - len(content))
                    except zlib.error as error:
                        raise bad_reply("the server's reply is not valid gzip") from error
                content += piece
                if max(received, len(content)) > self._max_reply:
                    raise too_large("the server's reply has", self._max_reply)
        return bytes(content)


def checked_url(settings: Settings, url: str) -> str:
    # Unlike the SDK, memctl ignores OPENAI_BASE_URL: only the configuration decides about the
    # destination of conversations.
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
            f"{in_file(settings.file)}{settings.place} has no key for {OPENAI}",
            'write api_key_env = "OPENAI_API_KEY", or the base_url of another server',
        )
    if not (secret.isascii() and secret.isprintable()) or " " in secret:
        raise UsageError(
            f"{in_file(settings.file)}the key of {settings.place} contains invalid characters",
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
# OpenAI, status 429, if one request exceeds the limit per minute: "Request too large for ..."
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
    """An HTTP error response: status, message (with the codes) and headers."""

    status: int
    words: str
    headers: Mapping[str, str]


class ErrorTranslator:
    """Turns the errors of a model's server into errors of memctl, which never show the API key."""

    def __init__(self, model: str, host: str, secret: str | None) -> None:
        self._model = model
        self._host = host
        self._secret = secret

    def error(self, response: ErrorResponse) -> ModelError | Unauthorised | Unreachable:
        """Return the error of memctl for an HTTP error response."""
        status, words = response.status, response.words
        if 300 <= status < 400:
            where = self.shown(response.headers.get("location") or "another address")
            return Unreachable(
                f"{self._host} redirects to {where} ({status}), which memctl does not follow",
                "set base_url to the address that answers",
            )
        message = f"{self._host} answers {status}: {self.shown(words)}"
        if _TOO_LONG.search(words) or status == 413:
            return TooLong(message)
        if _NO_CREDIT.search(words) or status == 402:
            return Unauthorised(message, "check the billing of the account: its credit is used up")
        if status == 401:
            # The server's message is omitted, because servers quote a part of the key.
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
        """Return the memctl error for a connection that failed because of ``cause``."""
        why = self.shown(str(cause)) or type(cause).__name__
        return Unreachable(f"cannot reach {self._host}: {why}", "check base_url")

    def shown(self, words: str) -> str:
        """Return a message of the server without secrets, in one line."""
        if self._secret:
            # Half of the key is also masked: servers may quote only a part.
            part = re.escape(self._secret[: max(4, len(self._secret) // 2)])
            words = re.sub(rf"\S*{part}\S*", "***", words)
        return one_line(_MASKED.sub("***", words)) or "(no message)"


def error_text(body: Any) -> str:
    """Return the message and the codes in an error reply, in the form of any server.

    OpenAI has ``error.message`` and ``error.code``.  vLLM had both fields outside ``error``.
    FastAPI has ``detail``.  LM Studio has a string as ``error``.
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
    """Return the seconds to wait, as the headers of a reply say; None if they do not say.

    The header is ``retry-after-ms``, or ``Retry-After`` with seconds or a date.
    """
    try:
        return max(0.0, float(headers["retry-after-ms"]) / 1000)
    except (KeyError, ValueError):
        pass  # most servers have only Retry-After
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
