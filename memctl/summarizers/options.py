"""What a ``[summarizers.NAME]`` says, with its types checked."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from memctl.errors import UsageError
from memctl.summarizer import Prices, Settings


class Options:
    """The options of one summarizer.

    Every method raises UsageError where the value is not of its type.
    """

    def __init__(self, settings: Settings) -> None:
        self.name = settings.name
        self._values = settings.options

    def value(self, key: str) -> Any:
        """What is configured, or None."""
        return self._values.get(key)

    def text(self, key: str) -> str | None:
        """A text that is not empty."""
        value = self.value(key)
        if value is None or (isinstance(value, str) and value.strip()):
            return value
        raise self.wrong(key, "a text")

    def needed(self, key: str, hint: str) -> str:
        """A text that must be there."""
        value = self.text(key)
        if value is None:
            raise UsageError(f"summarizers.{self.name} has no {key}", hint)
        return value

    def path(self, key: str) -> Path | None:
        """A path; ``~`` is the user's home."""
        value = self.text(key)
        return None if value is None else Path(value).expanduser()

    def whole(self, key: str, default: int, least: int = 1) -> int:
        """A whole number, no smaller than ``least``."""
        value = self.value(key)
        if value is None:
            return default
        if isinstance(value, int) and not isinstance(value, bool) and value >= least:
            return value
        raise self.wrong(key, f"a whole number of {least} or more")

    def seconds(self, key: str, default: float) -> float:
        """A time, in seconds."""
        value = self._number(key, "a number of seconds")
        if value is None:
            return default
        if value > 0:
            return value
        raise self.wrong(key, "more than 0 seconds")

    def choice(self, key: str, default: str, choices: Iterable[str]) -> str:
        """One of some words."""
        value = self.value(key)
        if value is None:
            return default
        if value in (known := list(choices)):
            return str(value)
        raise self.wrong(key, f"one of {', '.join(known)}")

    def table(self, key: str) -> dict[str, Any]:
        """A table, empty where there is none."""
        value = self.value(key)
        if value is None:
            return {}
        if isinstance(value, dict):
            return dict(value)
        raise self.wrong(key, "a table")

    def prices(self) -> Prices | None:
        """``input_price`` and ``output_price``: what a million tokens cost."""
        told = "a number of 0 or more: what a million tokens cost"
        values = [self._number(key, told) for key in ("input_price", "output_price")]
        if values == [None, None]:
            return None
        for key, value in zip(("input_price", "output_price"), values, strict=True):
            if value is not None and value < 0:
                raise self.wrong(key, told)
        return Prices(values[0] or 0.0, values[1] or 0.0)

    def wrong(self, key: str, wanted: str) -> UsageError:
        """The error of a value that is not what is wanted; the value is not shown."""
        return UsageError(
            f"summarizers.{self.name}: {key} must be {wanted}",
            "see the configuration of summarizers in the documentation",
        )

    def _number(self, key: str, wanted: str) -> float | None:
        value = self.value(key)
        if value is None:
            return None
        # A bool is an int to Python; infinity and nan are floats to TOML.
        if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e9:
            raise self.wrong(key, wanted)
        if value != value:
            raise self.wrong(key, wanted)
        return float(value)
