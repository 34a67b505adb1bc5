"""The kinds of summarizers, their options, and the function that makes summarizers.

``make_summarizer`` imports only the modules of the requested kind.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from memctl.errors import UsageError
from memctl.inference.settings import Settings
from memctl.summarizer import Summarizer

EXTRACTIVE = Settings("extractive", "extractive")
"""The settings of the summarizer that needs no configuration."""

_COMMON = ("context_window", "timeout", "max_retries", "concurrency", "tokenizer")
_PRICES = ("input_price", "output_price")
_KEY_SOURCES = ("api_key_env", "api_key_file", "api_key_command", "api_key_keyring")
_OF_MODELS = ("model", "base_url", "structured", "max_tokens", "parameters")
KEYS: dict[str, frozenset[str]] = {
    "openai": frozenset((*_OF_MODELS, *_KEY_SOURCES, *_COMMON, *_PRICES)),
    "command": frozenset(("command", "input", "reply", "environment", *_COMMON, *_PRICES)),
    "extractive": frozenset(),
}
"""The configuration keys of each kind, without ``kind``."""


def make_summarizer(
    settings: Settings, secret: str | None = None, prompt: str | None = None
) -> Summarizer:
    """Return an unopened summarizer of the kind in the settings.

    ``secret`` is the API key.  ``prompt`` replaces memctl's instructions to a model.

    Raises:
        UsageError: the configuration is wrong, or a required library is not installed.
    """
    _check(settings)
    if settings.kind == "extractive":
        if prompt is not None:
            raise UsageError(
                "--prompt-file cannot be used with the extractive summarizer",
                "leave it out, or use another --summarizer",
            )
        from memctl.summarizers.extractive import Extractive

        return Extractive(settings.name)
    from memctl.inference.retrying import MAX_RETRIES
    from memctl.summarizers.retrying import RetryingSummarizer

    retries = settings.integer("max_retries", MAX_RETRIES, least=0)
    if settings.kind == "command":
        from memctl.summarizers.command import Command

        return RetryingSummarizer(Command(settings, prompt), retries)
    try:
        from memctl.summarizers.openai import OpenAI
    except ModuleNotFoundError as error:
        from memctl.machine.installation import install_command  # slow to load

        raise UsageError(
            f"summarizers of kind openai need {error.name}, which is not installed",
            install_command("openai"),
        ) from error
    return RetryingSummarizer(OpenAI(settings, secret, prompt), retries)


def _check(settings: Settings) -> None:
    place = f"summarizers.{settings.name}"
    if settings.kind not in KEYS:
        raise UsageError(
            f"{place}: unknown kind {settings.kind!r}", _nearest(settings.kind, sorted(KEYS))
        )
    keys = sorted(KEYS[settings.kind])
    for key in settings.options:
        if key not in keys:
            raise UsageError(f"{place}: unknown key {key}", _nearest(key, keys))


def _nearest(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known) or 'none'}"
