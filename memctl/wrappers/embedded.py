"""A target that makes new vectors for the facts to write, or drops the vectors."""

from __future__ import annotations

from array import array
from collections.abc import AsyncGenerator
from contextlib import aclosing

from msgspec.structs import replace

from memctl.dialects.fact import (
    dimensions,
    embedded_text,
    encode_vector,
    vector_of,
    with_vector,
    without_vector,
)
from memctl.embedder import Embedder, EmbeddingReport, embed_all, failed
from memctl.errors import Loss, UsageError
from memctl.inference.errors import ModelError
from memctl.inference.settings import Usage
from memctl.inference.tokens import estimate
from memctl.model import Embedding, Page, StoredMessage, WriteMode, WriteResult
from memctl.selection import Selection
from memctl.store import Store
from memctl.wrappers.wrapper import StoreWrapper


async def embedded(
    source: Store,
    target: Store,
    where: Selection,
    report: EmbeddingReport,
    *,
    dry_run: bool = False,
) -> Store:
    """Return the target of a copy of facts, wrapped if vectors must be made or dropped for it.

    Both stores are open, and ``where`` selects the facts to copy.  ``report.embedder`` makes the
    vectors that facts of the source lack.  If the vectors fit as they are, the target itself is
    returned.

    Raises:
        Loss: vectors are missing, and no embedder is given; nothing was written.
        UsageError: the vectors of the embedder do not fit the vectors of the target.
        Unavailable: the embedder does not answer.
    """
    if not source.dialect.facts or not target.dialect.facts:
        return target
    made, kept, embedder = source.embedding, target.embedding, report.embedder
    if kept is None:
        if made is not None:
            report.dropped = True
            report.warnings.append(f"vectors are not copied: {target.label} has none")
        return EmbeddedStore(target, report, dry_run=dry_run)
    keep = made is not None and made.fits(kept)
    if embedder is None:
        if made is None or not keep:
            has = f"its vectors are of {made}" if made is not None else "it has no vectors"
            raise Loss(
                f"{source.label} has facts without the vectors of {target.label}, which are of "
                f"{kept}: {has}",
                "name an embedder of that model: --embedder NAME",
            )
        if not report.checked:
            await _refuse_missing(source, where, kept)
            report.checked = True
        if "" in (made.model, kept.model):
            report.warnings.append(
                f"vectors are copied as they are: whether {source.label} and {target.label} use "
                "the same model is not known"
            )
        return target
    refuse_other_model(embedder, kept, target)
    if not (dry_run or report.checked):
        await _refuse_size(embedder, kept, target)
        report.checked = True
    return EmbeddedStore(target, report, embedder, keep=keep, dry_run=dry_run)


async def _refuse_missing(source: Store, where: Selection, kind: Embedding) -> None:
    """Check that every selected fact of the source has a vector of the size in ``kind``.

    Raises:
        Loss: a selected fact has no vector of this size.
    """
    count, example = 0, ""
    async with aclosing(source.read(where)) as pages:
        async for page in pages:
            for fact in page.messages:
                if not has_vector(fact, kind):
                    count += 1
                    example = example or fact.id
    if count:
        raise Loss(
            f"{source.label} has facts without a vector of {kind.dimensions} dimensions: "
            f"{count:,}, such as {example!r}",
            "name an embedder that makes them: --embedder NAME",
        )


def refuse_other_model(embedder: Embedder, kept: Embedding, target: Store) -> None:
    """Check that an embedder is of the model that ``kept``, the vectors of ``target``, are of.

    Raises:
        UsageError: it is of another model.
    """
    if kept.model and embedder.model != kept.model:
        raise UsageError(
            f"the embedder {embedder.name!r} makes vectors of {embedder.model}, those of "
            f"{target.label} are of {kept}",
            "name an embedder of that model",
        )


async def _refuse_size(embedder: Embedder, kept: Embedding, target: Store) -> None:
    try:
        size = await embedder.dimensions()
    except ModelError as error:
        raise failed(embedder, error) from error
    refuse_other_size(embedder, size, kept, target)


def refuse_other_size(embedder: Embedder, size: int, kept: Embedding, target: Store) -> None:
    """Check that the vectors of an embedder, with ``size`` dimensions, have as many as ``kept``.

    Raises:
        UsageError: they have another number of dimensions.
    """
    if size != kept.dimensions:
        raise UsageError(
            f"the embedder {embedder.name!r} makes vectors of {size} dimensions, those of "
            f"{target.label} have {kept.dimensions}",
            "name an embedder of the model of the target",
        )


class EmbeddedStore(StoreWrapper):
    """A wrapper that gives facts the vectors that the target needs, before it writes the facts.

    Without an ``embedder``, facts are written without vectors.  With ``keep``, a fact keeps a
    vector of the right size.  The embedder makes all other vectors.
    """

    def __init__(
        self,
        target: Store,
        report: EmbeddingReport,
        embedder: Embedder | None = None,
        *,
        keep: bool = False,
        dry_run: bool = False,
    ) -> None:
        """With ``dry_run``, tokens are only estimated, and the embedder makes no vectors."""
        super().__init__(target)
        self._report = report
        self._embedder = embedder
        self._keep = keep
        self._dry_run = dry_run

    async def write(
        self, pages: AsyncGenerator[Page], mode: WriteMode = WriteMode.ADD
    ) -> AsyncGenerator[WriteResult]:
        """Write facts, with the vectors that the target needs.

        Raises:
            Unavailable: the embedder failed; facts that were written before stay in the target.
            MemctlError: as the store inside.
        """
        async with aclosing(self._store.write(self._fitted(pages), mode)) as results:
            async for result in results:
                yield result

    async def _fitted(self, pages: AsyncGenerator[Page]) -> AsyncGenerator[Page]:
        async with aclosing(pages):
            async for page in pages:
                yield replace(page, messages=await self._messages(page))
                del page

    async def _messages(self, page: Page) -> list[StoredMessage]:
        kind = self.embedding
        if self._embedder is None or kind is None:
            return [_bare(fact) for fact in page.messages]
        found = list(page.messages)
        lacking = [
            place for place, fact in enumerate(found) if not (self._keep and has_vector(fact, kind))
        ]
        if len(lacking) > 0 and self._keep:
            self._report.mixed.add(page.memory.key)
        texts = [embedded_text(found[place].message, self.embeds) for place in lacking]
        vectors = await self._embed(self._embedder, texts)
        for place, vector in zip(lacking, vectors, strict=False):
            text = with_vector(found[place].message, encode_vector(vector))
            found[place] = found[place]._replace(message=text)
        return found

    async def _embed(self, embedder: Embedder, texts: list[str]) -> list[array[float]]:
        self._report.texts += len(texts)
        if self._dry_run:
            tokens = Usage(sum(map(estimate, texts)))
            self._report.usage = self._report.usage.plus(tokens)
            return []
        found = await embed_all(embedder, texts)
        self._report.usage = self._report.usage.plus(found.usage)
        return found.vectors


def has_vector(fact: StoredMessage, kind: Embedding) -> bool:
    """Return whether a fact has a vector of the size in ``kind``."""
    vector = vector_of(fact.message)
    return vector is not None and dimensions(vector) == kind.dimensions


def _bare(fact: StoredMessage) -> StoredMessage:
    return fact._replace(message=without_vector(fact.message))
