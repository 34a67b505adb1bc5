"""An embedder with a model at an OpenAI-compatible address."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from math import isfinite
from typing import Any, Self

from memctl.embedder import Embedded, Embedder
from memctl.inference import tables
from memctl.inference.errors import bad_reply
from memctl.inference.retrying import RequestRetries
from memctl.inference.server import ModelServer
from memctl.inference.settings import Prices, Settings, Usage
from memctl.inference.text import encodable

MAX_VECTOR_BYTES = 512 << 10
"""The maximum bytes of a reply for each text of a batch: a vector of about 20,000 numbers."""


class OpenAIEmbedder(Embedder):
    """An embedder with a model at an OpenAI-compatible address; retries failed requests."""

    kind = "openai"

    def __init__(self, settings: Settings, secret: str | None) -> None:
        self.name = settings.name
        table = settings.read(tables.OpenAIEmbedder)
        self.model = table.model
        self.batch = table.batch
        self.concurrency = table.concurrency or Embedder.concurrency
        self.prices = Prices.configured(table.input_price)
        self._server = ModelServer(
            settings, table, self.model, secret, self.batch * MAX_VECTOR_BYTES
        )
        self._parameters = dict(table.parameters)
        if table.dimensions:
            self._parameters["dimensions"] = table.dimensions
        self._retries = RequestRetries(table.max_retries)

    async def __aenter__(self) -> Self:
        await self._server.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.__aexit__()

    async def embed(self, texts: Sequence[str]) -> Embedded:
        found, spent, _ = await self._retries.run(lambda: self._embed(texts))
        return Embedded(found.vectors, found.usage.plus(spent))

    async def _embed(self, texts: Sequence[str]) -> Embedded:
        request = {
            "model": self.model,
            "input": [encodable(text) for text in texts],
            "encoding_format": "float",
        } | self._parameters
        reply = self._server.object(await self._server.post("/embeddings", lambda: request))
        return Embedded(_vectors(reply.get("data"), len(texts)), _usage(reply.get("usage")))


def _vectors(data: Any, count: int) -> list[array[float]]:
    """Return the ``count`` vectors of a reply in the order of their indexes.

    Raises:
        ModelError: the reply does not have these vectors.
    """
    items = data if isinstance(data, list) else []
    found: dict[int, array[float]] = {}
    for place, item in enumerate(items):
        index = item.get("index", place) if isinstance(item, dict) else None
        values = item.get("embedding") if isinstance(item, dict) else None
        try:
            vector = array("f", values if isinstance(values, list) else [])
        except (TypeError, OverflowError) as error:
            raise bad_reply(
                "an embedding in the server's reply is not a list of numbers"
            ) from error
        if not all(map(isfinite, vector)):
            raise bad_reply("an embedding in the server's reply has values that are not finite")
        if vector and isinstance(index, int):
            found[index] = vector
    if sorted(found) != list(range(count)):
        raise bad_reply(f"the server's reply has {len(found)} embeddings for {count} texts")
    if len({len(vector) for vector in found.values()}) > 1:
        raise bad_reply("the embeddings in the server's reply differ in size")
    return [found[index] for index in range(count)]


def _usage(reported: Any) -> Usage:
    tokens = reported.get("prompt_tokens") if isinstance(reported, dict) else None
    return Usage(tokens, 0, exact=True) if type(tokens) is int and tokens > 0 else Usage()
