"""The kinds of embedders, their options, and the function that makes embedders.

``make_embedder`` imports only the module of the requested kind.
"""

from __future__ import annotations

from memctl.embedder import Embedder
from memctl.errors import UsageError
from memctl.inference.settings import Settings


def make_embedder(settings: Settings, secret: str | None = None) -> Embedder:
    """Return an unopened embedder for the settings.

    ``secret`` is the API key of the server, None for a model in a file.

    Raises:
        UsageError: the configuration is wrong, or a required library is not installed.
    """
    from memctl.inference.tables import EMBEDDERS  # slow to load

    settings.read(*EMBEDDERS)
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
