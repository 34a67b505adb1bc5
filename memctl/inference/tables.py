"""The tables of summarizers and embedders in the configuration."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from memctl.text.toml import Count, Keys, Natural, Table, Text, Texts, means

Seconds = Annotated[float, means("a number of seconds above 0", "KEY = 60", gt=0, le=1e9)]
Price = Annotated[
    float, means("a number of 0 or more: what a million tokens cost", "KEY = 0.5", ge=0, le=1e9)
]
Command = Annotated[
    Text | Annotated[tuple[str, ...], Meta(min_length=1)],
    means("a string for the shell, or a list of strings", 'KEY = "llm -m gpt-4.1"'),
]


class Requests(Table, kw_only=True, frozen=True, tag_field="kind"):
    """The limits of requests to a model; a ``concurrency`` of 0 is the default of the family."""

    timeout: Seconds = 120.0
    max_retries: Natural = 4
    concurrency: Count = 0
    input_price: Price | None = None


class Server(Requests, kw_only=True, frozen=True):
    """A model at an OpenAI-compatible address; an empty ``base_url`` is that of OpenAI."""

    base_url: Text = ""
    parameters: Keys = field(default_factory=dict)
    api_key_env: Text = ""
    api_key_file: Text = ""
    api_key_command: Text = ""
    api_key_keyring: Text = ""


class OpenAISummarizer(Server, kw_only=True, frozen=True, tag="openai"):
    """A model that writes summaries; ``max_tokens`` of 0 leaves it a part of the window."""

    model: Annotated[Text, means("a text", 'KEY = "gpt-4.1-mini", or another')]
    structured: Literal["auto", "schema", "object", "text"] = "auto"
    max_tokens: Count = 0
    context_window: Count = 32_000
    tokenizer: Text = ""
    output_price: Price | None = None


class CommandSummarizer(Requests, kw_only=True, frozen=True, tag="command"):
    """A program that writes summaries."""

    command: Command
    input: Literal["prompt", "transcript"] = "prompt"
    reply: Literal["any", "fields"] = "any"
    environment: Texts = ()
    timeout: Seconds = 300.0
    context_window: Count = 32_000
    tokenizer: Text = ""
    output_price: Price | None = None


class ExtractiveSummarizer(Table, kw_only=True, frozen=True, tag_field="kind", tag="extractive"):
    """The summarizer without a model."""


class OpenAIEmbedder(Server, kw_only=True, frozen=True, tag="openai"):
    """A model that makes vectors; 0 leaves ``dimensions`` to the model."""

    model: Annotated[Text, means("a text", 'KEY = "text-embedding-3-small", or another')]
    batch: Count = 64
    dimensions: Count = 0


class OnnxEmbedder(Table, kw_only=True, frozen=True, tag_field="kind", tag="onnx"):
    """A model in a file; 0 ``threads`` are all cores."""

    path: Annotated[Text, means("a text", 'KEY = "/srv/model.onnx"')]
    tokenizer: Text = ""
    model: Text = ""
    batch: Count = 64
    concurrency: Count = 1
    pooling: Literal["mean", "cls"] = "mean"
    max_tokens: Count = 256
    threads: Natural = 0


SUMMARIZERS = (OpenAISummarizer, CommandSummarizer, ExtractiveSummarizer)
EMBEDDERS = (OpenAIEmbedder, OnnxEmbedder)
