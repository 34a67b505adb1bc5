"""``[summarizers.NAME]``: what summarises, and where its key comes from."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memctl.config import secrets
from memctl.config.keys import refuse_unknown
from memctl.errors import UsageError
from memctl.summarizer import Settings
from memctl.summarizers.make import KEYS


@dataclass(frozen=True, slots=True)
class Configured:
    """A summarizer of the configuration."""

    settings: Settings
    api_key: secrets.Source | None = None

    def key(
        self, environment: Mapping[str, str], timeout: float = secrets.COMMAND_TIMEOUT
    ) -> str | None:
        """Its key, for which a command has ``timeout`` seconds; None where none is configured.

        Raises:
            UsageError: it cannot be had.
        """
        if self.api_key is None:
            return None
        what = f"the key of {self.settings.name!r}"
        return secrets.fetch(what, self.api_key, environment, timeout)


def read_summarizer(path: Path, name: str, entry: Any) -> Configured:
    """The summarizer that a table describes; what its values mean is for itself to say.

    Raises:
        UsageError: it does not describe one.
    """
    place = f"summarizers.{name}"
    if not isinstance(entry, dict):
        raise UsageError(f"{path}: {place} is not a table", "write [summarizers.NAME]")
    kind = entry.get("kind")
    if kind not in KEYS:
        near = difflib.get_close_matches(str(kind), KEYS, n=1)
        guess = f"did you mean {near[0]!r}? " if near else ""
        raise UsageError(
            f"{path}: {place}.kind is {kind!r}" if kind else f"{path}: {place} has no kind",
            f"{guess}known are {', '.join(sorted(KEYS))}",
        )
    refuse_unknown(path, place + ".", entry, {"kind", *KEYS[kind]})
    key_names = secrets.keys("api_key")
    if any(not isinstance(entry.get(key, ""), str) for key in key_names):
        raise UsageError(f"{path}: {place}: {', '.join(key_names)} are texts")
    options = {key: value for key, value in entry.items() if key not in ("kind", *key_names)}
    return Configured(Settings(name, kind, options), secrets.source(path, place, entry, "api_key"))
