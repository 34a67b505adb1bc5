"""Summaries by a model at an OpenAI-compatible address, through the official SDK.

Servers that are called compatible differ in the formats of replies that they support, and in the
words of their errors; both are handled here.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Literal, NamedTuple, Self
from urllib.parse import urlsplit

import openai

from memctl.errors import UsageError
from memctl.summarizer import (
    Answer,
    Excerpt,
    Settings,
    Summarizer,
    SummaryError,
    TooLong,
    Unauthorised,
    Unreachable,
    Usage,
)
from memctl.summarizers import prompts, replies
from memctl.summarizers.prompts import Prompt
from memctl.summarizers.text import one_line
from memctl.tokens import TokenCounter

OPENAI = "https://api.openai.com/v1"
WINDOW = 32_000
"""Tokens, where nothing is configured: what nearly every model of today takes."""
TIMEOUT = 120.0
MAX_REPLY_TOKENS = 4096
MIN_ROOM = 1000
"""Tokens of conversation that must fit into a request besides the prompt and the reply."""
MAX_ERROR_PAGE = 2000
"""Characters that are read of an error that is not JSON."""
CHECK_REPLY_TOKENS = 512
"""Tokens that the reply to a check may have: a reasoning model needs some to begin with."""
CONNECT_TIMEOUT = 15.0
"""Seconds in which a connection must be made."""

# The errors of a connection that was never made, in httpx and in its successor, to which the SDK
# has moved: by name, as either may be installed.
_NEVER_CONNECTED = {"ConnectError", "ConnectTimeout", "ProxyError", "UnsupportedProtocol"}
# An estimate of tokens is off by far less than this; except for spaces and lines of dashes.
_CUT_BY = {True: 1.5, False: 3.0}
_SMALL = 2000


class OpenAI(Summarizer):
    """A model as a summarizer; the SDK's own retries are off, so that they can be counted."""

    kind = "openai"

    def __init__(self, settings: Settings, secret: str | None, prompt: str | None) -> None:
        self.name = settings.name
        self._model = settings.required("model", 'write model = "gpt-4.1-mini", or another')
        self._base_url = _checked_url(settings)
        self._secret = _checked_secret(settings, secret, self._base_url)
        self._timeout = settings.seconds("timeout", TIMEOUT)
        self._parameters = settings.table("parameters")
        self._instructions = prompt
        self._counter = TokenCounter(settings.path("tokenizer"))
        self._format = FormatNegotiator(settings.choice("structured", "auto", ("auto", *FORMS)))
        self.window = settings.integer("context_window", WINDOW)
        self.concurrency = settings.integer("concurrency", Summarizer.concurrency)
        self.prices = settings.prices()
        self._reply = settings.integer("max_tokens", min(MAX_REPLY_TOKENS, self.window // 4))
        empty = prompts.build_prompt(Excerpt([], earlier=" "), prompt)
        self.overhead = self._size(empty) + self._reply
        if self.window - self.overhead < MIN_ROOM:
            least = self.overhead + MIN_ROOM
            raise settings.invalid("context_window", f"{least} or more, with this prompt and reply")
        host = urlsplit(self._base_url).netloc.rpartition("@")[2]
        self._errors = ErrorTranslator(self._model, host, self._secret)

    async def __aenter__(self) -> Self:
        # It reads the certificates of all authorities, which takes its time.
        self._client = await asyncio.to_thread(self._make_client)
        return self

    def _make_client(self) -> openai.AsyncOpenAI:
        client = openai.AsyncOpenAI(
            # Local servers want none, the SDK does.
            api_key=self._secret or "none",
            base_url=self._base_url,
            max_retries=0,
            timeout=openai.Timeout(None, connect=min(CONNECT_TIMEOUT, self._timeout)),
        )
        if self._base_url != OPENAI:
            # The SDK takes these from the environment; no other host may see them.
            client.organization = client.project = None
        return client

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    def count(self, text: str) -> int:
        return self._counter.count(text)

    @property
    def counted_by(self) -> str:
        return self._counter.name

    async def summarize(self, excerpt: Excerpt) -> Answer:
        """Return a summary."""
        prompt = prompts.build_prompt(excerpt, self._instructions)
        try:
            # The SDK bounds the time between two bytes; a slow trickle of them has no end.
            async with asyncio.timeout(self._timeout):
                body = await self._ask(lambda: self._body(prompt))
        except TimeoutError as error:
            raise self._too_late() from error
        return self._answer(body, prompt)

    async def check(self) -> None:
        """Send a request of a few tokens: many servers list their models without a key.

        Any reply will do, one that is cut off or empty included.
        """
        messages = [
            {"role": "system", "content": "Reply with OK."},
            {"role": "user", "content": "Is anybody there?"},
        ]

        def body() -> dict[str, Any]:
            limit = {self._format.current.limit: min(self._reply, CHECK_REPLY_TOKENS)}
            return self._request(messages) | limit | self._parameters

        try:
            async with asyncio.timeout(self._timeout):
                replied = await self._ask(body)
        except TimeoutError as error:
            raise self._too_late() from error
        _choice(self._object(replied), None)

    async def _ask(self, body: Callable[[], dict[str, Any]]) -> Any:
        """Return the server's reply as JSON; ask again where another format is to be tried."""
        while True:
            used = self._format.current
            try:
                return await self._client.post("/chat/completions", cast_to=object, body=body())
            except openai.APIStatusError as error:
                words = error_text(error.body) or error.response.text[:MAX_ERROR_PAGE]
                if not self._format.step_down(used, error.status_code, words):
                    response = ErrorResponse(error.status_code, words, error.response.headers)
                    raise self._errors.error(response) from error
            except openai.APIConnectionError as error:
                raise self._broken(error) from error
            except (openai.OpenAIError, ValueError, RecursionError) as error:
                raise replies.bad_reply("the server's reply is not JSON") from error

    def _body(self, prompt: Prompt) -> dict[str, Any]:
        messages = [
            {"role": "system", "content": prompt.system},
            {"role": "user", "content": prompt.user},
        ]
        return self._request(messages) | self._format.parameters(self._reply) | self._parameters

    def _request(self, messages: list[dict[str, str]]) -> dict[str, Any]:
        return {"model": self._model, "messages": messages, "stream": False}

    def _too_late(self) -> SummaryError:
        return SummaryError("timeout", f"no reply within {self._timeout:.0f} s", retry=True)

    def _broken(self, error: openai.APIConnectionError) -> Exception:
        cause = error.__cause__ or error
        if _NEVER_CONNECTED & {kind.__name__ for kind in type(cause).__mro__}:
            return self._errors.unreachable(cause)
        words = self._errors.shown(str(cause) or type(cause).__name__)
        return SummaryError("server-error", f"the connection was lost: {words}", retry=True)

    def _answer(self, body: Any, prompt: Prompt) -> Answer:
        body = self._object(body)
        usage = _usage(body.get("usage"))
        text = _content(body, usage)
        if usage is None:
            usage = Usage(self._size(prompt), self.count(text))
        else:
            self._check_all_read(prompt, usage)
        return Answer(replies.read_summary(text, prompt.nonce, usage), usage)

    def _object(self, body: Any) -> dict[str, Any]:
        """Return the reply as an object, without an error in it."""
        if isinstance(body, str):
            # JSON with another content type, or a page that is something else.
            try:
                body = json.loads(body)
            except (ValueError, RecursionError) as error:
                raise replies.bad_reply("the server's reply is not JSON: check base_url") from error
        if not isinstance(body, dict):
            raise replies.bad_reply("the server's reply is not a JSON object")
        if body.get("error"):
            # LM Studio answers so, with status 200.
            raise self._errors.error(ErrorResponse(400, error_text(body["error"]), {}))
        return body

    def _check_all_read(self, prompt: Prompt, usage: Usage) -> None:
        """Refuse a summary of only a part of the conversation.

        Ollama cuts a prompt that is longer than its ``num_ctx``, and shows it only in its count.
        """
        sent = self._size(prompt)
        exactly = self._counter.name != "estimate"
        if usage.tokens_in and sent > _SMALL and usage.tokens_in * _CUT_BY[exactly] < sent:
            raise TooLong(
                f"the server truncated the conversation: it read {usage.tokens_in} of about {sent} "
                "tokens"
                " (is context_window more than its own?)",
                usage,
            )

    def _size(self, prompt: Prompt) -> int:
        return self.count(prompt.system) + self.count(prompt.user)


def _content(body: dict[str, Any], usage: Usage | None) -> str:
    """Return the text of a reply that is complete."""
    choice = _choice(body, usage)
    match choice.get("finish_reason"):
        case "length":
            # Even where it could be repaired, part of the summary would be missing.
            raise SummaryError(
                "cut-off", "the reply was longer than max_tokens", retry=True, usage=usage
            )
        case "content_filter":
            raise SummaryError(
                "refused", "a content filter stopped the reply", retry=True, usage=usage
            )
    message = choice["message"]
    if message.get("refusal"):
        raise SummaryError("refused", "the model refused to reply", retry=True, usage=usage)
    content = message.get("content")
    if isinstance(content, list):  # Mistral's are parts
        texts = (part.get("text") for part in content if isinstance(part, dict))
        content = "".join(text for text in texts if isinstance(text, str))
    if not isinstance(content, str) or not content.strip():
        raise replies.bad_reply("the reply has no text", usage)
    return content


def _choice(body: dict[str, Any], usage: Usage | None) -> dict[str, Any]:
    """Return the first choice, which has a message."""
    choices = body.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict) or not isinstance(choice.get("message"), dict):
        raise replies.bad_reply("the server's reply has no choices", usage)
    return choice


def _usage(reported: Any) -> Usage | None:
    """Return the tokens that the server counted, or None."""
    if not isinstance(reported, dict):
        return None
    sent, replied = reported.get("prompt_tokens"), reported.get("completion_tokens")
    if type(sent) is not int or type(replied) is not int or min(sent, replied) < 0:
        return None
    return Usage(sent, replied, exact=True) if sent or replied else None


def _checked_url(settings: Settings) -> str:
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


def _checked_secret(settings: Settings, secret: str | None, url: str) -> str | None:
    secret = (secret or "").strip()
    if not secret and url == OPENAI:
        raise UsageError(
            f"summarizers.{settings.name} has no key for {OPENAI}",
            'write api_key_env = "OPENAI_API_KEY", or the base_url of another server',
        )
    if not (secret.isascii() and secret.isprintable()) or " " in secret:
        raise UsageError(
            f"the key of summarizers.{settings.name} contains invalid characters",
            "check what api_key_env, api_key_file or api_key_command gives",
        )
    return secret or None


# Response formats

Form = Literal["schema", "object", "text"]
FORMS: tuple[Form, ...] = ("schema", "object", "text")

# OpenAI: "Invalid parameter: 'response_format' of type 'json_schema' is not supported with this
# model"; DeepSeek: "This response_format type is unavailable now"; DashScope: "Json mode response
# is not supported when enable_thinking is true"; LM Studio: "'response_format.type' must be
# 'json_schema'"; vLLM speaks of guided decoding, structured outputs and its grammars.
_ABOUT_FORM = re.compile(
    r"response_?format|json[_ ]?(schema|object|mode)|structured.?output|guided|grammar",
    re.IGNORECASE,
)
# OpenAI, reasoning models: "Unsupported parameter: 'max_tokens' is not supported with this model.
# Use 'max_completion_tokens' instead."
_OTHER_LIMIT = re.compile(r"max_completion_tokens")


class RequestFormat(NamedTuple):
    """The parameters of one request that servers support differently."""

    form: Form
    limit: str
    """The name of the parameter that limits the reply."""


class FormatNegotiator:
    """The format that a server supports, found by stepping down where it refuses, once a run."""

    def __init__(self, structured: str) -> None:
        """``structured`` is ``auto``, or the only form to use."""
        self._auto = structured == "auto"
        form = next((form for form in FORMS if form == structured), FORMS[0])
        self.current = RequestFormat(form, "max_tokens")

    def parameters(self, max_tokens: int) -> dict[str, Any]:
        """Return the parameters of a request whose reply may have ``max_tokens`` tokens."""
        parameters: dict[str, Any] = {self.current.limit: max_tokens}
        if self.current.form == "schema":
            parameters["response_format"] = {
                "type": "json_schema",
                "json_schema": {
                    "name": "summary",
                    "strict": True,
                    "schema": prompts.reply_schema(),
                },
            }
        elif self.current.form == "object":
            parameters["response_format"] = {"type": "json_object"}
        return parameters

    def step_down(self, used: RequestFormat, status: int, words: str) -> bool:
        """Choose another format after a refusal; return False where the format was not its cause.

        Requests at the same time may be refused for the same cause: one step for all of them.
        """
        if status not in (400, 422):
            return False
        if _OTHER_LIMIT.search(words) and used.limit == "max_tokens":
            self.current = self.current._replace(limit="max_completion_tokens")
            return True
        if not self._auto or used.form == "text" or not _ABOUT_FORM.search(words):
            return False
        if self.current.form == used.form:
            following = FORMS[FORMS.index(used.form) + 1]
            self.current = self.current._replace(form=following)
        return True


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

    def error(self, response: ErrorResponse) -> SummaryError | Unauthorised:
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
            return SummaryError("rate-limited", message, retry=True, after=after)
        if status in (408, 409) or status >= 500:
            return SummaryError("server-error", message, retry=True, after=after)
        if _BARRED.search(words):
            return SummaryError("refused", message)
        return SummaryError("rejected", message)

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
