"""What the configuration says, as it may be shown: where secrets are, never what they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, NamedTuple

from memctl import location
from memctl.config import Config, secrets
from memctl.errors import UsageError
from memctl.registry import parse

HIDDEN = "***"


class Shown(NamedTuple):
    """A value of the configuration under its key; ``written`` where the file says it."""

    key: str
    value: Any
    written: bool = True


def shown(config: Config) -> Iterator[Shown]:
    """All but ``[defaults]``.

    Raises:
        UsageError: something of it cannot be; summarizers are looked into, too.
    """
    for name, alias in config.stores.items():
        place = f"stores.{name}"
        try:
            label = parse(alias.url).label
        except UsageError as error:
            raise UsageError(f"{config.path}: {place}.url: {error.message}", error.hint) from error
        yield Shown(f"{place}.url", label)
        if alias.password is not None:
            yield Shown(f"{place}.{alias.password.key}", _source(alias.password))
    for name, table in config.summarizers.items():
        config.summarizer(name)
        for key, value in table.items():
            yield Shown(f"summarizers.{name}.{key}", _of_summarizer(key, value))
    for key, value in asdict(config.undo).items():
        yield Shown(f"undo.{key}", value, key in config.undo_keys)


def _source(source: secrets.Source) -> str:
    return HIDDEN if source.key.endswith("_command") else source.where


def _of_summarizer(key: str, value: Any) -> Any:
    if key == "command" or key.endswith("_command"):
        return HIDDEN  # a key may stand among its words
    return _redacted(key, value)


def _redacted(key: str, value: Any) -> Any:
    """A value, without what looks like a secret; what ``parameters`` holds is anybody's."""
    if isinstance(value, dict):
        return {
            name: HIDDEN
            if isinstance(one, str) and location.SECRET_QUERY.search(name)
            else _redacted(name, one)
            for name, one in value.items()
        }
    if isinstance(value, list):
        return [_redacted(key, one) for one in value]
    return redacted(value) if isinstance(value, str) else value


def redacted(text: str) -> str:
    """A text that may be a URL with a password, without it."""
    if "://" not in text and not text.startswith("unix:"):
        return text
    try:
        return location.redact(text)
    except ValueError:  # it is no URL, and may hold one half of a password
        return HIDDEN
