"""Rich's view of a stream, as memctl uses it."""

from __future__ import annotations

from typing import NoReturn

from rich.console import Console


class Screen(Console):
    """A console whose reader may go away: that ends memctl as it would without Rich."""

    def on_broken_pipe(self) -> NoReturn:
        """Rich would end the process with exit code 1.

        Raises:
            BrokenPipeError: always.
        """
        raise BrokenPipeError
