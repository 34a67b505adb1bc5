"""Summaries by a model behind an OpenAI-compatible address, through the official SDK."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, Self
from urllib.parse import urlsplit

import openai

from memctl.errors import UsageError
from memctl.summarizer import Answer, Excerpt, Settings, Summarizer, SummaryError, TooLong, Usage
from memctl.summarizers import prompts, reply
from memctl.summarizers.dialect import FORMS, Dialect
from memctl.summarizers.options import Options
from memctl.summarizers.prompts import Prompt
from memctl.summarizers.refusals import Refusal, Translator, words_of
from memctl.summarizers.tokenizer import Counter

OPENAI = "https://api.openai.com/v1"
WINDOW = 32_000
"""Tokens, where nothing is configured: what nearly every model of today takes."""
TIMEOUT = 120.0
LONGEST_REPLY = 4096
LEAST_ROOM = 1000
"""Tokens of conversation that must fit into a request beside the prompt and the reply."""
LONGEST_PAGE = 2000
"""Characters of an error that is no JSON."""
CHECKED_REPLY = 512
"""Tokens that the reply to a check may have: a model that reasons needs some to begin with."""
CONNECTING = 15.0
"""Seconds in which a connection must be there."""

# What a connection that was never made is to httpx and to its successor, which the SDK has come
# to use: named, as either may be installed.
_NEVER_CONNECTED = {"ConnectError", "ConnectTimeout", "ProxyError", "UnsupportedProtocol"}
# An estimate of tokens is off by far less than this; spaces and lines of dashes aside.
_CUT_BY = {True: 1.5, False: 3.0}
_SMALL = 2000


class OpenAI(Summarizer):
    """Asks a model for summaries; the SDK's own retries are off, so that they can be counted."""

    kind = "openai"

    def __init__(self, settings: Settings, secret: str | None, prompt: str | None) -> None:
        options = Options(settings)
        self.name = settings.name
        self._model = options.needed("model", 'write model = "gpt-4.1-mini", or another')
        self._base_url = _checked_url(options)
        self._secret = _checked_secret(options, secret, self._base_url)
        self._timeout = options.seconds("timeout", TIMEOUT)
        self._parameters = options.table("parameters")
        self._instructions = prompt
        self._counter = Counter(options.path("tokenizer"))
        self._dialect = Dialect(options.choice("structured", "auto", ("auto", *FORMS)))
        self.window = options.whole("context_window", WINDOW)
        self.concurrency = options.whole("concurrency", Summarizer.concurrency)
        self.prices = options.prices()
        self._reply = options.whole("max_tokens", min(LONGEST_REPLY, self.window // 4))
        empty = prompts.write(Excerpt([], earlier=" "), prompt)
        self.overhead = self._size(empty) + self._reply
        if self.window - self.overhead < LEAST_ROOM:
            least = self.overhead + LEAST_ROOM
            raise options.wrong("context_window", f"{least} or more, with this prompt and reply")
        host = urlsplit(self._base_url).netloc.rpartition("@")[2]
        self._translator = Translator(self._model, host, self._secret)

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
            timeout=openai.Timeout(None, connect=min(CONNECTING, self._timeout)),
        )
        if self._base_url != OPENAI:
            # The SDK takes these from the environment; they are nobody else's business.
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
        """One summary."""
        prompt = prompts.write(excerpt, self._instructions)
        try:
            # The SDK bounds the time between two bytes; a slow trickle of them has no end.
            async with asyncio.timeout(self._timeout):
                body = await self._ask(lambda: self._body(prompt))
        except TimeoutError as error:
            raise self._too_late() from error
        return self._answer(body, prompt)

    async def check(self) -> None:
        """A request of a few tokens: many servers let anybody list their models.

        A reply of any kind will do, one that is cut off or empty included.
        """
        messages = [
            {"role": "system", "content": "Reply with OK."},
            {"role": "user", "content": "Is anybody there?"},
        ]

        def body() -> dict[str, Any]:
            limit = {self._dialect.spoken.limit: min(self._reply, CHECKED_REPLY)}
            return self._request(messages) | limit | self._parameters

        try:
            async with asyncio.timeout(self._timeout):
                replied = await self._ask(body)
        except TimeoutError as error:
            raise self._too_late() from error
        _choice(self._object(replied), None)

    async def _ask(self, body: Callable[[], dict[str, Any]]) -> Any:
        """What the server replies, as JSON; asked anew where it takes the request otherwise."""
        while True:
            spoken = self._dialect.spoken
            try:
                return await self._client.post("/chat/completions", cast_to=object, body=body())
            except openai.APIStatusError as error:
                words = words_of(error.body) or error.response.text[:LONGEST_PAGE]
                if not self._dialect.learn(spoken, error.status_code, words):
                    refusal = Refusal(error.status_code, words, error.response.headers)
                    raise self._translator.error(refusal) from error
            except openai.APIConnectionError as error:
                raise self._broken(error) from error
            except (openai.OpenAIError, ValueError, RecursionError) as error:
                raise reply.bad("the server's reply is not JSON") from error

    def _body(self, prompt: Prompt) -> dict[str, Any]:
        messages = [
            {"role": "system", "content": prompt.system},
            {"role": "user", "content": prompt.user},
        ]
        return self._request(messages) | self._dialect.parameters(self._reply) | self._parameters

    def _request(self, messages: list[dict[str, str]]) -> dict[str, Any]:
        return {"model": self._model, "messages": messages, "stream": False}

    def _too_late(self) -> SummaryError:
        return SummaryError("timeout", f"no reply within {self._timeout:.0f} s", retry=True)

    def _broken(self, error: openai.APIConnectionError) -> Exception:
        cause = error.__cause__ or error
        if _NEVER_CONNECTED & {kind.__name__ for kind in type(cause).__mro__}:
            return self._translator.unreachable(cause)
        words = self._translator.shown(str(cause) or type(cause).__name__)
        return SummaryError("server-error", f"the connection broke: {words}", retry=True)

    def _answer(self, body: Any, prompt: Prompt) -> Answer:
        body = self._object(body)
        usage = _usage(body.get("usage"))
        text = _content(body, usage)
        if usage is None:
            usage = Usage(self._size(prompt), self.count(text))
        else:
            self._all_read(prompt, usage)
        return Answer(reply.read_summary(text, prompt.nonce, usage), usage)

    def _object(self, body: Any) -> dict[str, Any]:
        """The reply, if it is one at all."""
        if isinstance(body, str):
            # A server that calls its JSON text; or a page of something else altogether.
            try:
                body = json.loads(body)
            except (ValueError, RecursionError) as error:
                raise reply.bad("the server's reply is not JSON: check base_url") from error
        if not isinstance(body, dict):
            raise reply.bad("the server's reply is no JSON object")
        if body.get("error"):
            # LM Studio answers so, with status 200.
            raise self._translator.error(Refusal(400, words_of(body["error"]), {}))
        return body

    def _all_read(self, prompt: Prompt, usage: Usage) -> None:
        """Refuses a summary of a part.

        Ollama cuts a prompt that is longer than its ``num_ctx``, and says so only in its count.
        """
        sent = self._size(prompt)
        exactly = self._counter.name != "estimate"
        if usage.tokens_in and sent > _SMALL and usage.tokens_in * _CUT_BY[exactly] < sent:
            raise TooLong(
                f"the server cut the conversation: it read {usage.tokens_in} of about {sent} tokens"
                " (is context_window more than its own?)",
                usage,
            )

    def _size(self, prompt: Prompt) -> int:
        return self.count(prompt.system) + self.count(prompt.user)


def _content(body: dict[str, Any], usage: Usage | None) -> str:
    """What the model says, if it has ended well."""
    choice = _choice(body, usage)
    match choice.get("finish_reason"):
        case "length":
            # Even where the half could be mended, it would be a summary of who knows what.
            raise SummaryError(
                "cut-off", "the reply was longer than max_tokens", retry=True, usage=usage
            )
        case "content_filter":
            raise SummaryError("refused", "a content filter ended it", retry=True, usage=usage)
    message = choice["message"]
    if message.get("refusal"):
        raise SummaryError("refused", "the model refuses", retry=True, usage=usage)
    content = message.get("content")
    if isinstance(content, list):  # Mistral's are parts
        texts = (part.get("text") for part in content if isinstance(part, dict))
        content = "".join(text for text in texts if isinstance(text, str))
    if not isinstance(content, str) or not content.strip():
        raise reply.bad("the model says nothing", usage)
    return content


def _choice(body: dict[str, Any], usage: Usage | None) -> dict[str, Any]:
    """The one reply, with its message."""
    choices = body.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict) or not isinstance(choice.get("message"), dict):
        raise reply.bad("the server's reply has no choices", usage)
    return choice


def _usage(told: Any) -> Usage | None:
    """What the model has counted, if it has."""
    if not isinstance(told, dict):
        return None
    sent, replied = told.get("prompt_tokens"), told.get("completion_tokens")
    if type(sent) is not int or type(replied) is not int or min(sent, replied) < 0:
        return None
    return Usage(sent, replied, exact=True) if sent or replied else None


def _checked_url(options: Options) -> str:
    # Said here, not taken from OPENAI_BASE_URL as the SDK would: where conversations are sent to
    # is for the configuration to say.
    url = options.text("base_url") or OPENAI
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise options.wrong("base_url", "a URL such as http://localhost:11434/v1")
    return url


def _checked_secret(options: Options, secret: str | None, url: str) -> str | None:
    secret = (secret or "").strip()
    if not secret and url == OPENAI:
        raise UsageError(
            f"summarizers.{options.name} has no key for {OPENAI}",
            'write api_key_env = "OPENAI_API_KEY", or the base_url of another server',
        )
    if not (secret.isascii() and secret.isprintable()) or " " in secret:
        raise UsageError(
            f"the key of summarizers.{options.name} has characters that no key has",
            "check what api_key_env, api_key_file or api_key_command gives",
        )
    return secret or None
