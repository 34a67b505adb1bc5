"""Vectors of a model at an address: real HTTP on loopback, and what servers get wrong."""

from __future__ import annotations

from typing import Any

import pytest

from memctl.embedders.openai import MAX_VECTOR_BYTES
from memctl.embedders.registry import make_embedder
from memctl.errors import UsageError
from memctl.inference.errors import ModelError, Unauthorised, Unreachable
from memctl.inference.settings import Settings
from tests.summarizers.server import ModelServer, Reply, embedded, vector_of

KEY = "sk-0123456789abcdef"


def settings(url: str, **options: Any) -> Settings:
    found = {"model": "small", "base_url": url, "max_retries": 0} | options
    return Settings("m", "openai", found, family="embedders")


async def embed(server: ModelServer, *texts: str, **options: Any) -> list[list[float]]:
    async with make_embedder(settings(server.url, **options), KEY) as embedder:
        found = await embedder.embed(texts)
    return [list(vector) for vector in found.vectors]


async def test_vectors_come_in_the_order_of_the_texts() -> None:
    def backwards(request: Any) -> Reply:
        found = embedded()(request)
        found.body["data"].reverse()
        return found

    with ModelServer(backwards, key=KEY) as server:
        found = await embed(server, "one", "two", "three")
    assert found == [list(vector_of(text)) for text in ("one", "two", "three")]


async def test_reply_is_read_up_to_a_size_that_follows_from_the_batch() -> None:
    body = b" " * (2 * MAX_VECTOR_BYTES + 1)
    with ModelServer(Reply(body), Reply(body)) as server:
        with pytest.raises(ModelError, match=f"has more than {2 * MAX_VECTOR_BYTES} bytes"):
            await embed(server, "one", batch=2, max_retries=2)
        assert len(server.requests) == 1
        with pytest.raises(ModelError, match="is not JSON"):
            await embed(server, "one", batch=3)


async def test_request_is_what_the_configuration_says() -> None:
    with ModelServer() as server:
        await embed(server, "half \ud83d", dimensions=4, parameters={"user": "memctl"})
    [request] = server.requests
    assert request.path.endswith("/v1/embeddings")
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.body == {
        "model": "small",
        "input": ["half \ufffd"],
        "encoding_format": "float",
        "dimensions": 4,
        "user": "memctl",
    }


@pytest.mark.parametrize(
    "changes",
    [
        {"data": []},
        {"data": None},
        {"data": [{"index": 1, "embedding": [1.0]}]},
        {"data": [{"index": 0, "embedding": []}]},
        {"data": [{"index": 0, "embedding": ["x"]}]},
        {"data": [{"index": 0, "embedding": "AAAA"}]},
        {"data": [{"index": 0, "embedding": [1.0, float("nan")]}]},
        {"data": [{"index": 0, "embedding": [1e300]}]},
        {"data": [7]},
        {"data": [{"index": 0, "embedding": [1.0]}, {"index": 1, "embedding": [1.0]}]},
    ],
)
async def test_reply_of_another_shape_is_refused(changes: dict[str, Any]) -> None:
    with ModelServer(embedded(8, **changes)) as server, pytest.raises(ModelError) as caught:
        await embed(server, "one")
    assert caught.value.code == "bad-reply"


async def test_busy_server_is_asked_again() -> None:
    busy = Reply({"error": {"message": "slow down"}}, 429, {"retry-after-ms": "1"})
    with ModelServer(busy) as server:
        found = await embed(server, "one", max_retries=2)
    assert found == [list(vector_of("one"))]
    assert len(server.requests) == 2


async def test_refused_key_is_not_asked_again() -> None:
    with ModelServer(key="another") as server, pytest.raises(Unauthorised) as caught:
        await embed(server, "one", max_retries=5)
    assert len(server.requests) == 1
    assert KEY not in caught.value.message + (caught.value.hint or "")


async def test_address_without_a_server_is_named() -> None:
    with ModelServer() as server:
        url = server.url
    with pytest.raises(Unreachable, match="cannot reach"):
        async with make_embedder(settings(url), KEY) as embedder:
            await embedder.embed(["one"])


def test_openai_itself_needs_a_key() -> None:
    chosen = Settings("m", "openai", {"model": "small"}, family="embedders")
    with pytest.raises(UsageError, match="has no key for https"):
        make_embedder(chosen)
