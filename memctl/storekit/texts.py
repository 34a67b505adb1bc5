"""The contract by which ``Store.rewrite_texts`` gives all texts of a store to a rewriter."""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Hit(NamedTuple):
    """A value that a rewriter found in a text, and the kind of value, such as ``github-pat``."""

    kind: str
    value: str


class Rewritten(NamedTuple):
    """A text after a rewrite, with the replaced hits, and the hits that stay and why.

    ``signed`` is the number of signatures, of thinking, that went because they covered a hit.
    """

    text: bytes
    hits: list[Hit]
    left: list[tuple[Hit, str]]
    signed: int = 0

    def failed(self, text: bytes, why: str) -> Rewritten:
        """Return the result if the text was left as it was, which is ``text``."""
        return Rewritten(text, [], [*((hit, why) for hit in self.hits), *self.left])

    def at(self, place: str) -> TextResult:
        """Return the result for the place that the text is in."""
        return TextResult(place, self.hits, self.left, self.signed)


class TextResult(NamedTuple):
    """The result of a rewrite for one place in a store: durable, or left as it was.

    ``place`` names the row, key or file.  Each of ``left`` is a hit that the place still has, with
    the reason.
    """

    place: str
    hits: list[Hit]
    left: list[tuple[Hit, str]]
    signed: int = 0

    @property
    def changes(self) -> bool:
        """True if the place has or had something to report."""
        return bool(self.hits or self.left)

    def failed(self, why: str) -> TextResult:
        """Return the result if the place was left as it was."""
        return TextResult(self.place, [], [*((hit, why) for hit in self.hits), *self.left])


class Rewriter(ABC):
    """Finds values in texts, and replaces them."""

    @abstractmethod
    def suspects(self, texts: Sequence[bytes]) -> Iterable[int]:
        """Return the indexes of the texts that ``rewrite`` may have something to say about."""

    @abstractmethod
    def rewrite(self, text: bytes, key: str = "") -> Rewritten:
        """Return a text, UTF-8 or JSON in UTF-8, with all values replaced that can be.

        ``key`` is the name under which the text stands, such as that of a column; empty without
        one.  It may say that the text ties data together, and has to stay.
        """

    @abstractmethod
    def find(self, text: str) -> list[Hit]:
        """Return the values in a text that cannot be replaced, such as a name."""

    def vector(self, text: str) -> array[float] | None:  # noqa: ARG002 - most make none
        """Return the vector of the new text of a fact; None if no vector can be made.

        A rewrite that changes nothing may get an empty vector.
        """
        return None

    def is_suspect(self, text: bytes) -> bool:
        """Return whether ``rewrite`` may have something to say about a text."""
        return any(True for _ in self.suspects([text]))

    def stays(self, text: str, why: str) -> list[tuple[Hit, str]]:
        """Return the values in a text that cannot be replaced, each with the reason ``why``."""
        return [(hit, why) for hit in self.find(text)]


class RewriterWrapper(Rewriter):
    """A rewriter that gives parts of each text to the rewriter inside."""

    def __init__(self, rewriter: Rewriter) -> None:
        self._rewriter = rewriter

    def suspects(self, texts: Sequence[bytes]) -> Iterable[int]:
        return self._rewriter.suspects(texts)

    def find(self, text: str) -> list[Hit]:
        return self._rewriter.find(text)

    def vector(self, text: str) -> array[float] | None:
        return self._rewriter.vector(text)


IS_NAME = "it is in a name: rename it"
KEEPS_VECTOR = "its vector would still tell it: name an embedder of its model with --embedder"
CHANGED_MEANWHILE = "another program changed it meanwhile: run the same command again"
