"""Vectors of the new texts of facts: asked for while stores are searched, then made together."""

from __future__ import annotations

from array import array

from memctl.embedder import Embedder, EmbeddingReport, embed_all
from memctl.store import Store
from memctl.wrappers.embedded import refuse_other_model, refuse_other_size


class FactVectors:
    """The vectors that an embedder makes of the new texts of facts; ``report`` counts them."""

    def __init__(self, embedder: Embedder) -> None:
        self.report = EmbeddingReport(embedder)
        self._embedder = embedder
        self._made: dict[str, array[float] | None] = {}
        self._searching = True
        """True until the first vectors are made: a search needs none."""

    def refuse_model(self, store: Store) -> None:
        """Check that the vectors of a store are of the model of the embedder.

        Raises:
            UsageError: they are of another model.
        """
        if store.embedding is not None:
            refuse_other_model(self._embedder, store.embedding, store)

    def of(self, text: str) -> array[float] | None:
        """Return the vector of a text; None if it is not made yet.

        While stores are searched, the vector is empty.
        """
        made = self._made.setdefault(text, None)
        return array("f") if self._searching else made

    async def make(self, store: Store) -> bool:
        """Make the vectors that are asked for; return False if all are there already.

        Raises:
            UsageError: the vectors of the embedder do not fit those of the store.
            Unavailable: the embedder does not answer.
        """
        self._searching = False
        lacking = [text for text, vector in self._made.items() if vector is None]
        if lacking:
            async with self._embedder as embedder:
                found = await embed_all(embedder, lacking)
            self._made.update(zip(lacking, found.vectors, strict=True))
            self.report.texts += len(lacking)
            self.report.usage = self.report.usage.plus(found.usage)
        if store.embedding is not None and self._made:
            size = len(next(iter(self._made.values())) or ())
            refuse_other_size(self._embedder, size, store.embedding, store)
        return bool(lacking)
