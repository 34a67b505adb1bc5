"""The kinds of embedders, their options, and the function that makes embedders.

``make_embedder`` imports only the module of the requested kind.
"""

from __future__ import annotations

from memctl.embedder import Embedder
from memctl.errors import UsageError
from memctl.inference.settings import Settings

_COMMON = ("model", "batch", "concurrency")
_SERVER = ("base_url", "dimensions", "parameters", "timeout", "max_retries")
_PRICE = ("input_price",)
_KEY_SOURCES = ("api_key_env", "api_key_file", "api_key_command", "api_key_keyring")
_FILE = ("path", "tokenizer", "pooling", "max_tokens", "threads")
KEYS: dict[str, frozenset[str]] = {
    "openai": frozenset((*_COMMON, *_SERVER, *_PRICE, *_KEY_SOURCES)),
    "onnx": frozenset((*_COMMON, *_FILE)),
}
"""The configuration keys of each kind, without ``kind``."""


def make_embedder(settings: Settings, secret: str | None = None) -> Embedder:
    """Return an unopened embedder for the settings.

    ``secret`` is the API key of the server, None for a model in a file.

    Raises:
        UsageError: the configuration is wrong, or a required library is not installed.
    """
    try:
        if settings.kind == "openai":
            from memctl.embedders.openai import OpenAIEmbedder

            return OpenAIEmbedder(settings, secret)
        from memctl.embedders.onnx import OnnxEmbedder

        return OnnxEmbedder(settings)
    except ModuleNotFoundError as error:
        extra = "openai" if settings.kind == "openai" else "embeddings"
        from memctl.machine.installation import install_command  # slow to load

        raise UsageError(
            f"embedders of kind {settings.kind} need {error.name}, which is not installed",
            install_command(extra),
        ) from error
