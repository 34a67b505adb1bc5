"""The contract between copies of facts and embedders: models that make vectors of texts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from types import TracebackType
from typing import ClassVar, Self

from memctl.errors import Unavailable
from memctl.inference.errors import ModelError
from memctl.inference.settings import Prices, Usage
from memctl.model import MemoryKey


@dataclass(frozen=True, slots=True)
class Embedded:
    """The vectors of some texts, in their order, and the tokens that they took."""

    vectors: list[array[float]]
    usage: Usage = field(default_factory=Usage)


class Embedder(ABC):
    """A maker of vectors.  Opened as an async context manager.

    ::

        embedder = make_embedder(Settings("local", "onnx", options, family="embedders"))
        async with embedder:
            found = await embedder.embed(["Ada likes tea."])
    """

    kind: ClassVar[str]
    name: str
    model: str
    """The name of the model: vectors of two models cannot be compared."""
    batch: int = 64
    """The number of texts in one call."""
    concurrency: int = 4
    """The number of calls at once."""
    prices: Prices | None = None

    async def __aenter__(self) -> Self:
        """Open connections and load data.

        Raises:
            UsageError: something it needs is not configured or not installed.
            Unavailable: it cannot be reached.
        """
        return self

    async def __aexit__(  # noqa: B027 - some hold nothing
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release every connection."""

    @abstractmethod
    async def embed(self, texts: Sequence[str]) -> Embedded:
        """Return a vector for each of at most ``batch`` texts, which are not empty.

        Raises:
            ModelError: it made no vectors.
            Unreachable, Unauthorised: no model answers, or access is refused.
        """

    async def dimensions(self) -> int:
        """Return the size of its vectors, by making one.

        Raises:
            ModelError, Unreachable, Unauthorised: as ``embed``.
        """
        found = await self.embed(["memctl"])
        return len(found.vectors[0])


async def embed_all(embedder: Embedder, texts: Sequence[str]) -> Embedded:
    """Return a vector for each text, however many there are.

    Raises:
        Unavailable: the embedder made none.
    """
    from memctl.concurrency import all_of  # asyncio, not needed to show the help

    vectors: list[array[float]] = []
    usage = Usage()
    batches = _batches(texts, embedder.batch)
    while some := list(islice(batches, embedder.concurrency)):
        try:
            found = await all_of([embedder.embed(batch) for batch in some])
        except ModelError as error:
            raise failed(embedder, error) from error
        for one in found:
            vectors += one.vectors
            usage = usage.plus(one.usage)
    return Embedded(vectors, usage)


def failed(embedder: Embedder, error: ModelError) -> Unavailable:
    """Return the error of an embedder that made no vectors."""
    return Unavailable(
        f"the embedder {embedder.name!r} failed: {error.message}",
        "run the same command again to continue where this one stopped",
    )


def _batches(texts: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    for start in range(0, len(texts), size):
        yield texts[start : start + size]


@dataclass(slots=True)
class EmbeddingReport:
    """The texts that were embedded in a copy, and the tokens that they took."""

    embedder: Embedder | None = None
    texts: int = 0
    usage: Usage = field(default_factory=Usage)
    mixed: set[MemoryKey] = field(default_factory=set)
    """Scopes of which only some facts were embedded."""
    warnings: list[str] = field(default_factory=list)
    checked: bool = False
    """True once the vectors of the source, or those of the embedder, are known to fit."""

    @property
    def cost(self) -> float | None:
        """The cost of the tokens; None where the embedder has no price."""
        prices = self.embedder.prices if self.embedder is not None else None
        return None if prices is None else prices.of(self.usage)
