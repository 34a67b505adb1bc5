"""The settings, the prices and the usage of a model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from memctl.errors import UsageError


@dataclass(frozen=True, slots=True)
class Usage:
    """The input and output tokens of a request; ``exact`` is True if the model counted them."""

    tokens_in: int = 0
    tokens_out: int = 0
    exact: bool = False

    def plus(self, other: Usage) -> Usage:
        """Return the sum of both counts; it is exact if no count with tokens is an estimate."""
        empty, other_empty = self == Usage(), other == Usage()
        return Usage(
            self.tokens_in + other.tokens_in,
            self.tokens_out + other.tokens_out,
            (self.exact or empty) and (other.exact or other_empty) and not (empty and other_empty),
        )


@dataclass(frozen=True, slots=True)
class Prices:
    """The prices of a million tokens, in the operator's currency."""

    tokens_in: float = 0.0
    tokens_out: float = 0.0

    def of(self, usage: Usage) -> float:
        """Return the cost of the used tokens."""
        return (usage.tokens_in * self.tokens_in + usage.tokens_out * self.tokens_out) / 1e6


@dataclass(frozen=True, slots=True)
class Settings:
    """The table of a model in the configuration, such as ``[summarizers.NAME]``.

    Most methods return the value of an option, or raise UsageError if its type is wrong.  Secrets
    are not read::

        settings = Settings("night", "openai", {"model": "qwen-plus", "timeout": 60})
        settings.seconds("timeout", 120.0)  # 60.0
    """

    name: str
    kind: str
    options: dict[str, Any] = field(default_factory=dict)
    secret_variables: frozenset[str] = frozenset()
    """The environment variables to hide from a program unless ``environment`` names them."""
    family: str = "summarizers"
    """The name of the parent table."""

    @property
    def place(self) -> str:
        """The name of the table for error messages."""
        return f"{self.family}.{self.name}"

    def value(self, key: str) -> Any:
        """Return the value of the option ``key``, or None if it is missing."""
        return self.options.get(key)

    def text(self, key: str) -> str | None:
        """Return the option as a nonempty text, or None if it is missing."""
        value = self.value(key)
        if value is None or (isinstance(value, str) and value.strip()):
            return value
        raise self.invalid(key, "a text")

    def required(self, key: str, hint: str) -> str:
        """Return the option as a nonempty text.

        Raises:
            UsageError: the option is missing or not a text; ``hint`` becomes the hint of the error.
        """
        value = self.text(key)
        if value is None:
            raise UsageError(f"{self.place} has no {key}", hint)
        return value

    def path(self, key: str) -> Path | None:
        """Return the option as a path, or None if it is missing.

        A leading ``~`` means the home directory.
        """
        value = self.text(key)
        return None if value is None else Path(value).expanduser()

    def integer(self, key: str, default: int, least: int = 1) -> int:
        """Return the option as a whole number of at least ``least``.

        If the option is missing, return ``default``.
        """
        value = self.value(key)
        if value is None:
            return default
        if isinstance(value, int) and not isinstance(value, bool) and value >= least:
            return value
        raise self.invalid(key, f"a whole number of {least} or more")

    def seconds(self, key: str, default: float) -> float:
        """Return the option as a time of more than 0 seconds, or ``default`` if it is missing."""
        value = self._number(key, "a number of seconds")
        if value is None:
            return default
        if value > 0:
            return value
        raise self.invalid(key, "more than 0 seconds")

    def choice(self, key: str, default: str, choices: Iterable[str]) -> str:
        """Return the option, which must be one of ``choices``, or ``default`` if it is missing."""
        value = self.value(key)
        if value is None:
            return default
        if value in (known := list(choices)):
            return str(value)
        raise self.invalid(key, f"one of {', '.join(known)}")

    def texts(self, key: str) -> list[str]:
        """Return the option as a list of texts, empty if it is missing."""
        value = self.value(key)
        if value is None:
            return []
        if isinstance(value, list) and all(isinstance(one, str) for one in value):
            return value
        raise self.invalid(key, "a list of strings")

    def table(self, key: str) -> dict[str, Any]:
        """Return the option as a table, empty if it is missing."""
        value = self.value(key)
        if value is None:
            return {}
        if isinstance(value, dict):
            return dict(value)
        raise self.invalid(key, "a table")

    def prices(self) -> Prices | None:
        """Return the prices ``input_price`` and ``output_price``; None if neither is configured."""
        expected = "a number of 0 or more: what a million tokens cost"
        values = [self._number(key, expected) for key in ("input_price", "output_price")]
        if values == [None, None]:
            return None
        for key, value in zip(("input_price", "output_price"), values, strict=True):
            if value is not None and value < 0:
                raise self.invalid(key, expected)
        return Prices(values[0] or 0.0, values[1] or 0.0)

    def invalid(self, key: str, expected: str) -> UsageError:
        """Return the error for an invalid value; ``expected`` describes a valid value.

        The error does not show the value, which may be a secret.
        """
        return UsageError(
            f"{self.place}: {key} must be {expected}",
            f"see the configuration of {self.family} in the documentation",
        )

    def _number(self, key: str, expected: str) -> float | None:
        value = self.value(key)
        if value is None:
            return None
        # Python counts bool as int; TOML allows infinity and NaN.
        if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e9:
            raise self.invalid(key, expected)
        if value != value:
            raise self.invalid(key, expected)
        return float(value)
