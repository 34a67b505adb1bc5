"""The settings, the prices and the usage of a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct, field

from memctl.errors import UsageError
from memctl.text.words import in_file

if TYPE_CHECKING:
    from memctl.text.toml import Table

T = TypeVar("T", bound="Table")


class Usage(Struct, frozen=True):
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


class Prices(Struct, frozen=True):
    """The prices of a million tokens, in the operator's currency."""

    tokens_in: float = 0.0
    tokens_out: float = 0.0

    @staticmethod
    def configured(tokens_in: float | None, tokens_out: float | None = None) -> Prices | None:
        """Return the configured prices; None if neither is configured."""
        if tokens_in is tokens_out is None:
            return None
        return Prices(tokens_in or 0.0, tokens_out or 0.0)

    def of(self, usage: Usage) -> float:
        """Return the cost of the used tokens."""
        return (usage.tokens_in * self.tokens_in + usage.tokens_out * self.tokens_out) / 1e6


class Settings(Struct, frozen=True):
    """The table of a model in the configuration, such as ``[summarizers.NAME]``.

    The options are checked when the model is made.  They name the source of a key, never the key::

        Settings("night", "openai", {"model": "qwen-plus", "timeout": 60})
    """

    name: str
    kind: str
    options: dict[str, Any] = field(default_factory=dict)
    secret_variables: frozenset[str] = frozenset()
    """The environment variables to hide from a program unless ``environment`` names them."""
    family: str = "summarizers"
    """The name of the parent table."""
    file: Path | None = None
    """The configuration file, for errors."""

    @property
    def place(self) -> str:
        """The name of the table for error messages."""
        return f"{self.family}.{self.name}"

    def read(self, *kinds: type[T]) -> T:
        """Return the options as an instance of one of the classes, that of the kind.

        Raises:
            UsageError: the kind or an option is not valid.
        """
        from memctl.text.toml import read_table  # slow to load

        return read_table(self.file, self.place, {**self.options, "kind": self.kind}, *kinds)

    def invalid(self, key: str, expected: str) -> UsageError:
        """Return the error for an invalid value; ``expected`` describes a valid value.

        The error does not show the value, which may be a secret.
        """
        return UsageError(
            f"{in_file(self.file)}{self.place}.{key} must be {expected}",
            f"see the configuration of {self.family} in the documentation",
        )


def path_of(text: str) -> Path | None:
    """Return a path of the configuration, None for an empty text; ``~`` is the home directory."""
    return Path(text).expanduser() if text else None
