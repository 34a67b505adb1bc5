"""The contract between copies of facts and embedders: models that make vectors of texts."""

from __future__ import annotations

from abc import abstractmethod
from array import array
from collections.abc import Iterator, Sequence
from itertools import islice

from msgspec import Struct, field

from memctl.errors import Unavailable
from memctl.inference.errors import ModelError
from memctl.inference.model import Model
from memctl.inference.settings import Usage
from memctl.model import MemoryKey


class Embedded(Struct, frozen=True):
    """The vectors of some texts, in the order of the texts, and the number of tokens used."""

    vectors: list[array[float]]
    usage: Usage = field(default_factory=Usage)


class Embedder(Model):
    """An embedding model, which makes vectors of texts; opened as an async context manager.

    ::

        embedder = make_embedder(Settings("local", "onnx", options, family="embedders"))
        async with embedder:
            found = await embedder.embed(["Ada likes tea."])
    """

    model: str
    """The name of the model: vectors of different models cannot be compared."""
    batch: int = 64
    """The number of texts per call."""

    @abstractmethod
    async def embed(self, texts: Sequence[str]) -> Embedded:
        """Return a vector for each text.

        The caller passes at most ``batch`` texts, none empty.

        Raises:
            ModelError: the model answered without vectors.
            Unreachable, Unauthorised: the model does not answer, or refuses access.
        """

    async def dimensions(self) -> int:
        """Return the length of the embedder's vectors, found by making one vector.

        Raises:
            ModelError, Unreachable, Unauthorised: as ``embed``.
        """
        found = await self.embed(["memctl"])
        return len(found.vectors[0])


async def embed_all(embedder: Embedder, texts: Sequence[str]) -> Embedded:
    """Return a vector for each text; the texts are sent in batches.

    Raises:
        Unavailable: the embedder made no vectors.
    """
    from memctl.machine.concurrency import all_of  # loads asyncio, which the help does not need

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
    """Return the error of memctl for an ``error`` of the model of ``embedder``."""
    return Unavailable(
        f"the embedder {embedder.name!r} failed: {error.message}",
        "run the same command again to continue where this one stopped",
    )


def _batches(texts: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    for start in range(0, len(texts), size):
        yield texts[start : start + size]


class EmbeddingReport(Struct):
    """The number of texts that a copy embedded, and the tokens used."""

    embedder: Embedder | None = None
    texts: int = 0
    usage: Usage = field(default_factory=Usage)
    mixed: set[MemoryKey] = field(default_factory=set)
    """The scopes with both kinds of facts: with a vector and without."""
    warnings: list[str] = field(default_factory=list)
    checked: bool = False
    """True once the vectors of the source, or of the embedder, are known to fit."""
    dropped: bool = False
    """True if the source has vectors, and the target has no place for them."""

    @property
    def cost(self) -> float | None:
        """The price of the tokens; None if the embedder has no price."""
        prices = self.embedder.prices if self.embedder is not None else None
        return None if prices is None else prices.of(self.usage)
