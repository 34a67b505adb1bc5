"""The target of a followed copy as the copy left it: others changed a memory that differs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from memctl.model import MemoryKey
from memctl.ops.copy.compare import NOTHING, Comparability, Fingerprint


class _State(NamedTuple):
    digest: bytes
    summary: bytes | None


class Mirror:
    """The digests of the memories that a copy wrote to the target, or found equal there.

    If a memory of the target has its digest, nobody else has changed it.
    """

    def __init__(self) -> None:
        self._left: dict[MemoryKey, _State] = {}
        self._sent: dict[MemoryKey, _State] = {}
        """The memories that were sent, and that the target may hold or not."""

    def holds(self, key: MemoryKey, here: Fingerprint, there: Fingerprint) -> None:
        """Note that the target holds a memory as the source does.

        ``here`` is the memory in the source, ``there`` as it was in the target: the target keeps
        its summary if the source has none.
        """
        self._left[key] = _State(here.digest, here.summary or there.summary)

    def sends(self, key: MemoryKey, here: Fingerprint, there: Fingerprint) -> None:
        """Note that a memory is being written to the target; ``here`` and ``there`` as above."""
        self._sent[key] = _State(here.digest, here.summary or there.summary)

    def answered(self, key: MemoryKey, *, written: bool) -> None:
        """Note that the target has written a memory that was sent, or refused it."""
        sent = self._sent.pop(key, None)
        if sent is not None and written:
            self._left[key] = sent

    def is_own(self, key: MemoryKey, there: Fingerprint, sides: Comparability) -> bool:
        """Return whether a memory is in the target as the copy left it."""
        states = filter(None, (self._left.get(key), self._sent.get(key)))
        return any(
            one.digest == there.digest and not sides.summaries_differ(one.summary, there.summary)
            for one in states
        )

    def filled(self) -> Iterator[MemoryKey]:
        """Yield the memories that have messages in the target."""
        return (key for key, state in self._left.items() if state.digest != NOTHING.digest)
