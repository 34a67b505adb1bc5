"""How an operation is asked to end in good order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Stop:
    """Asked for at most once by whoever hears the signal, looked at by the operation.

    While the operation is ``attentive`` it ends by itself at the next good moment; else it must be
    cancelled.
    """

    def __init__(self) -> None:
        self.asked = False
        self.attentive = False

    @contextmanager
    def heeded(self, *, when: bool = True) -> Iterator[None]:
        """Within it the operation looks at ``asked``; with ``when`` false it does not."""
        before, self.attentive = self.attentive, when
        try:
            yield
        finally:
            self.attentive = before
