"""A program that uses the real mem0, for tests that run without it.

Runs in the environment ``.interop-mem0``, which knows nothing of memctl.  Each line of stdin is a
request, each line of stdout its answer, ``{"answer": ...}`` or ``{"error": "..."}``, both JSON.  A
request says what to ``do`` with a ``config``, mem0's own; each opens a Memory, and closes it:

- ``embedder`` returns the settings of an embedder and a model, served by this process;
- ``add`` calls ``Memory.add`` with each of ``calls``, and returns the ids;
- ``call`` calls any ``method`` of the Memory with ``arguments``, such as ``search``;
- ``dump`` returns what the vector store has: both collections, with vectors, by id;
- ``hold`` opens a Memory and leaves it open, until ``release``;
- ``platform`` calls a ``method`` of a ``MemoryClient`` of a ``host`` with ``arguments``.

spaCy, with which mem0 finds the entities of a text, would download its model; so words with a
capital letter stand in for what it finds, and everything that mem0 does with them is its own.
"""

from __future__ import annotations

import gc
import json
import os
import re
import sys
from typing import Any

os.environ["MEM0_TELEMETRY"] = "False"

import mem0.memory.main as mem0_main
from mem0 import Memory, MemoryClient

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from minilm import serve

_held: list[Memory] = []
_url: list[str] = []


def entities(text: str) -> list[tuple[str, str]]:
    """Return the words with a capital letter, other than the first."""
    return [("PROPER", word) for word in re.findall(r"(?<=[a-z,] )[A-Z][a-z]+", text)]


mem0_main.extract_entities = entities
mem0_main.extract_entities_batch = lambda texts: [entities(text) for text in texts]


def embedder() -> dict[str, Any]:
    """Return the settings of an embedder and a model."""
    if not _url:
        _url.append(serve())
    about = {"api_key": "none", "openai_base_url": _url[0]}
    return {
        "embedder": {
            "provider": "openai",
            "config": {"model": "all-MiniLM-L6-v2", "embedding_dims": 384, **about},
        },
        "llm": {"provider": "openai", "config": {"model": "none", **about}},
    }


def close(memory: Memory) -> None:
    """Release the vector store: a Memory itself only closes its history."""
    client = getattr(memory.vector_store, "client", None)
    if hasattr(client, "close"):
        client.close()
    for store in (memory.vector_store, memory._entity_store):
        if hasattr(store, "connection_pool"):
            store.connection_pool.close()
    memory.close()
    gc.collect()


def add(memory: Memory, calls: list[dict[str, Any]]) -> list[str]:
    """Add facts; return their ids."""
    found = []
    for call in calls:
        result = memory.add(call.pop("messages"), **({"infer": False} | call))
        found += [one["id"] for one in result["results"]]
    return found


def dump(memory: Memory) -> dict[str, Any]:
    """Return both collections, as the vector store's own client has them."""
    kind = memory.config.vector_store.provider
    found = {}
    for name, store in (("facts", memory.vector_store), ("entities", memory.entity_store)):
        rows = store.list(top_k=10**6)[0]
        found[name] = {
            str(row.id): {"payload": row.payload, "vector": vector(kind, store, str(row.id))}
            for row in rows
        }
    return found


def vector(kind: str, store: Any, id: str) -> list[float]:
    """Return the vector of an id."""
    if kind == "qdrant":
        return store.client.retrieve(store.collection_name, [id], with_vectors=True)[0].vector
    if kind == "faiss":
        [place] = [place for place, one in store.index_to_id.items() if one == id]
        return store.index.reconstruct(place).tolist()
    if kind == "chroma":
        return store.collection.get([id], include=["embeddings"])["embeddings"][0].tolist()
    with store._get_cursor() as cursor:
        cursor.execute(f'SELECT vector::real[] FROM "{store.collection_name}" WHERE id = %s', (id,))
        return cursor.fetchone()[0]


def answer(request: dict[str, Any]) -> Any:
    """Do what is asked."""
    do = request["do"]
    if do == "embedder":
        return embedder()
    if do == "release":
        close(_held.pop())
        return None
    if do == "platform":
        client = MemoryClient(api_key=request["key"], host=request["host"])
        return getattr(client, request["method"])(**request["arguments"])
    memory = Memory.from_config(request["config"])
    if do == "hold":
        _held.append(memory)
        return os.getpid()
    try:
        if do == "add":
            return add(memory, request["calls"])
        if do == "dump":
            return dump(memory)
        return getattr(memory, request["method"])(**request["arguments"])
    finally:
        close(memory)


def main() -> None:
    # mem0 prints notices to stdout, which is for answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    gc.freeze()  # ``close`` collects only what a Memory leaves
    for line in sys.stdin:
        try:
            given: dict[str, Any] = {"answer": answer(json.loads(line))}
        except Exception as error:  # noqa: BLE001 - the test shows whatever mem0 raised
            given = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(given), file=answers, flush=True)


if __name__ == "__main__":
    main()
