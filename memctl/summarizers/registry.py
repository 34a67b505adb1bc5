"""The kinds of summarizers, their options, and the function that makes summarizers.

``make_summarizer`` imports only the modules of the requested kind.
"""

from __future__ import annotations

from memctl.errors import UsageError
from memctl.inference.settings import Settings
from memctl.summarizer import Summarizer

EXTRACTIVE = Settings("extractive", "extractive")
"""The settings of the summarizer that needs no configuration."""


def make_summarizer(
    settings: Settings, secret: str | None = None, prompt: str | None = None
) -> Summarizer:
    """Return an unopened summarizer of the kind in the settings.

    ``secret`` is the API key.  ``prompt`` replaces memctl's instructions to a model.

    Raises:
        UsageError: the configuration is wrong, or a required library is not installed.
    """
    from memctl.inference.tables import SUMMARIZERS, Requests  # slow to load

    if not isinstance(settings.read(*SUMMARIZERS), Requests):
        if prompt is not None:
            raise UsageError(
                "--prompt-file cannot be used with the extractive summarizer",
                "leave it out, or use another --summarizer",
            )
        from memctl.summarizers.extractive import Extractive

        return Extractive(settings.name)
    if settings.kind == "command":
        from memctl.summarizers.command import Command

        return Command(settings, prompt)
    try:
        from memctl.summarizers.openai import OpenAI
    except ModuleNotFoundError as error:
        from memctl.machine.installation import install_command  # slow to load

        raise UsageError(
            f"summarizers of kind openai need {error.name}, which is not installed",
            install_command("openai"),
        ) from error
    return OpenAI(settings, secret, prompt)
