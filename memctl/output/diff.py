"""Differences as git prints them: what one side has in red, the other in green."""

from __future__ import annotations

from rich.text import Text

from memctl.location import visible
from memctl.model import MemoryKey
from memctl.ops.differences import Difference

_STYLES = {"-": "red", "+": "green"}


class Diff:
    """Draws differences that come one after another, under the names of the stores."""

    def __init__(self, left: str, right: str) -> None:
        self._names = left, right
        self._key: MemoryKey | None = None
        self._id = ""

    def draw(self, difference: Difference, lines: list[str]) -> Text:
        """A difference, below the memory and the message that it is of."""
        text = Text()
        if self._key is None:
            left, right = self._names
            text.append(f"--- a/{visible(left)}\n+++ b/{visible(right)}\n", "bold")
        if difference.key != self._key:
            text.append(f"@@ {visible(str(difference.key))} @@\n", "cyan")
            self._key, self._id = difference.key, ""
        if difference.id:
            if difference.id != self._id:
                text.append(f"message {visible(repr(difference.id))}", "bold")
                text.append(f"  {visible(difference.code)}\n", "dim")
            self._id = difference.id
        elif difference.code in ("summary", "expiry"):
            text.append(f"{difference.code}\n", "bold")
        for line in lines or [" the same by now"]:
            text.append(f"{line[0]}{visible(line[1:])}\n", _STYLES.get(line[0], ""))
        text.right_crop(1)  # the console ends the last line
        return text
