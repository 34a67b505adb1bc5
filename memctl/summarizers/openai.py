"""Summaries by a model at an OpenAI-compatible address.

OpenAI-compatible servers support different reply formats.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Self

from memctl.inference.errors import ModelError, TooLong, bad_reply
from memctl.inference.server import ModelServer
from memctl.inference.settings import Prices, Settings, Usage, path_of
from memctl.inference.tables import OpenAISummarizer
from memctl.inference.tokens import TokenCounter
from memctl.summarizer import Answer, Excerpt, Summarizer
from memctl.summarizers import prompts, replies
from memctl.summarizers.prompts import Prompt

MAX_REPLY_TOKENS = 4096
MAX_REPLY_BYTES = 4 << 20
"""The maximum bytes of a reply: far more than the thoughts of a model and its summary."""
MIN_ROOM = 1000
"""The minimum number of tokens that a request must leave for the conversation."""

# The factors by which the count of a server may fall below the own count, by exactness of the own
# count.  Estimates are off by far less, except for runs of spaces and dashes.
_CUT_BY = {True: 1.5, False: 3.0}
_SMALL = 2000


class OpenAI(Summarizer):
    """A summarizer that asks a model at an OpenAI-compatible address."""

    kind = "openai"

    def __init__(self, settings: Settings, secret: str | None, prompt: str | None) -> None:
        self.name = settings.name
        table = settings.read(OpenAISummarizer)
        self._server = ModelServer(settings, table, table.model, secret, MAX_REPLY_BYTES)
        self._parameters = table.parameters
        self._instructions = prompt
        self._counter = TokenCounter(path_of(table.tokenizer))
        self._format = FormatNegotiator(table.structured)
        self.window = table.context_window
        self.concurrency = table.concurrency or Summarizer.concurrency
        self.max_retries = table.max_retries
        self.prices = Prices.configured(table.input_price, table.output_price)
        self._reply = table.max_tokens or min(MAX_REPLY_TOKENS, self.window // 4)
        empty = prompts.build_prompt(Excerpt([], earlier=" "), prompt)
        self.overhead = self._size(empty) + self._reply
        if self.window - self.overhead < MIN_ROOM:
            least = self.overhead + MIN_ROOM
            raise settings.invalid("context_window", f"{least} or more, with this prompt and reply")

    async def __aenter__(self) -> Self:
        await self._server.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.__aexit__()

    def count(self, text: str) -> int:
        return self._counter.count(text)

    @property
    def counted_by(self) -> str:
        return self._counter.name

    async def summarize(self, excerpt: Excerpt) -> Answer:
        """Return a summary."""
        prompt = prompts.build_prompt(excerpt, self._instructions)
        return self._answer(await self._ask(lambda: self._body(prompt)), prompt)

    async def _ask(self, body: Callable[[], dict[str, Any]]) -> Any:
        """Return the server's reply to the request that ``body`` makes.

        If the server refuses the reply format, ask again in the next format.
        """
        used = self._format.current

        def first() -> dict[str, Any]:
            nonlocal used
            used = self._format.current
            return body()

        return await self._server.post(
            "/chat/completions", first, lambda *refusal: self._format.step_down(used, *refusal)
        )

    def _body(self, prompt: Prompt) -> dict[str, Any]:
        messages = [
            {"role": "system", "content": prompt.system},
            {"role": "user", "content": prompt.user},
        ]
        return self._request(messages) | self._format.parameters(self._reply) | self._parameters

    def _request(self, messages: list[dict[str, str]]) -> dict[str, Any]:
        return {"model": self._server.model, "messages": messages, "stream": False}

    def _answer(self, body: Any, prompt: Prompt) -> Answer:
        body = self._server.object(body)
        usage = _usage(body.get("usage"))
        text = _content(body, usage)
        if usage is None:
            usage = Usage(self._size(prompt), self.count(text))
        else:
            self._check_all_read(prompt, usage)
        return Answer(replies.read_summary(text, prompt.nonce, usage), usage)

    def _check_all_read(self, prompt: Prompt, usage: Usage) -> None:
        """Check by the token count that the server has read the whole prompt.

        Ollama truncates a prompt longer than ``num_ctx`` without an error.

        Raises:
            ModelError: the server has read only a part of the prompt.
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
    """Return the text of a reply.

    Raises:
        ModelError: the reply is incomplete.
    """
    choice = _choice(body, usage)
    match choice.get("finish_reason"):
        case "length":
            # A repair would not help: a part of the summary is missing.
            raise ModelError(
                "cut-off", "the reply was longer than max_tokens", retry=True, usage=usage
            )
        case "content_filter":
            raise ModelError(
                "refused", "a content filter stopped the reply", retry=True, usage=usage
            )
    message = choice["message"]
    if message.get("refusal"):
        raise ModelError("refused", "the model refused to reply", retry=True, usage=usage)
    content = message.get("content")
    if isinstance(content, list):  # Mistral sends a list of parts
        texts = (part.get("text") for part in content if isinstance(part, dict))
        content = "".join(text for text in texts if isinstance(text, str))
    if not isinstance(content, str) or not content.strip():
        raise bad_reply("the reply has no text", usage)
    return content


def _choice(body: dict[str, Any], usage: Usage | None) -> dict[str, Any]:
    """Return the first choice of a reply.

    Raises:
        ModelError: the reply has no choice with a message.
    """
    choices = body.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict) or not isinstance(choice.get("message"), dict):
        raise bad_reply("the server's reply has no choices", usage)
    return choice


def _usage(reported: Any) -> Usage | None:
    """Return the token counts that the server reported; None if they are missing or invalid."""
    if not isinstance(reported, dict):
        return None
    sent, replied = reported.get("prompt_tokens"), reported.get("completion_tokens")
    if type(sent) is not int or type(replied) is not int or min(sent, replied) < 0:
        return None
    return Usage(sent, replied, exact=True) if sent or replied else None


# Response formats

Form = Literal["schema", "object", "text"]
FORMS: tuple[Form, ...] = ("schema", "object", "text")

# OpenAI: "Invalid parameter: 'response_format' of type 'json_schema' is not supported with this
# model"; DeepSeek: "This response_format type is unavailable now"; DashScope: "Json mode response
# is not supported when enable_thinking is true"; LM Studio: "'response_format.type' must be
# 'json_schema'"; vLLM: messages about guided decoding, structured outputs and grammars.
_ABOUT_FORM = re.compile(
    r"response_?format|json[_ ]?(schema|object|mode)|structured.?output|guided|grammar",
    re.IGNORECASE,
)
# OpenAI, reasoning models: "Unsupported parameter: 'max_tokens' is not supported with this model.
# Use 'max_completion_tokens' instead."
_OTHER_LIMIT = re.compile(r"max_completion_tokens")


class RequestFormat(NamedTuple):
    """A combination of the request parameters that only some servers support."""

    form: Form
    limit: str
    """The name of the parameter that limits the reply."""


class FormatNegotiator:
    """The search for a reply format that the server supports.

    After each refusal, the next format is tried.  A format that the server accepts stays in use for
    the run.
    """

    def __init__(self, structured: str) -> None:
        """``structured`` is ``auto`` to try all formats, or the only format to use."""
        self._auto = structured == "auto"
        form = next((form for form in FORMS if form == structured), FORMS[0])
        self.current = RequestFormat(form, "max_tokens")

    def parameters(self, max_tokens: int) -> dict[str, Any]:
        """Return the parameters for the current reply format and at most ``max_tokens`` tokens."""
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
        """Choose the next format after a refusal; return whether to send the request again.

        ``used`` is the format of the refused request, ``status`` and ``words`` are the HTTP status
        and the message of the refusal.  If several concurrent requests are refused for the same
        format, only the first refusal takes a step.
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
