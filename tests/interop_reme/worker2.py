"""A program that uses the real ReMe 0.2, for tests that run without it; see ``loop.py``.

A request names the ``store``, a folder, and a ``workspace``:

- ``write`` stores ``memories``, each the fields of one, and returns their ids;
- ``read`` returns the memories of a workspace as ReMe has them, with their vectors, by id;
- ``search`` returns the ids that ReMe finds for a ``query``, best first;
- ``list`` returns the workspaces;
- ``action`` runs ReMe's own flow ``vector_store`` with an ``action`` and a ``path``.
"""

from __future__ import annotations

import os
import sys
from typing import Any

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../interop_mem0"))

from loop import serve as answer
from minilm import serve

os.environ["FLOW_EMBEDDING_API_KEY"] = "none"

from flowllm.core.embedding_model import OpenAICompatibleEmbeddingModel
from flowllm.core.vector_store import LocalVectorStore
from reme_ai.main import ReMeApp
from reme_ai.schema.memory import dict_to_memory, vector_node_to_memory

_urls: list[str] = []


def _url() -> str:
    if not _urls:
        _urls.append(serve())
    return _urls[0]


def _store(request: dict[str, Any]) -> LocalVectorStore:
    model = OpenAICompatibleEmbeddingModel("all-MiniLM-L6-v2", 384, base_url=_url())
    return LocalVectorStore(store_dir=request["store"], embedding_model=model)


async def write(request: dict[str, Any]) -> list[str]:
    """Store memories."""
    memories = [dict_to_memory(one) for one in request["memories"]]
    nodes = [memory.to_vector_node() for memory in memories]
    _store(request).insert(nodes, request["workspace"])
    return [memory.memory_id for memory in memories]


async def read(request: dict[str, Any]) -> dict[str, Any]:
    """Return the memories of a workspace."""
    nodes = _store(request).list_workspace_nodes(request["workspace"], show_progress=False)
    return {
        node.unique_id: vector_node_to_memory(node).model_dump() | {"vector": node.vector}
        for node in nodes
    }


async def search(request: dict[str, Any]) -> list[str]:
    """Search a workspace."""
    found = _store(request).search(request["query"], request["workspace"], top_k=3)
    return [vector_node_to_memory(node).memory_id for node in found]


async def workspaces(request: dict[str, Any]) -> list[str]:
    """Return the workspaces."""
    return sorted(_store(request).list_workspace())


async def action(request: dict[str, Any]) -> str:
    """Run the flow for actions on a store."""
    about = (
        "vector_store.default.backend=local",
        f"vector_store.default.params.store_dir={request['store']}",
        "embedding_model.default.model_name=all-MiniLM-L6-v2",
        "embedding_model.default.params.dimensions=384",
    )
    keys = {"llm_api_key": "none", "embedding_api_key": "none"}
    async with ReMeApp(*about, **keys, llm_api_base=_url(), embedding_api_base=_url()) as app:
        more = {name: request[name] for name in ("action", "path")}
        done = await app.async_execute("vector_store", workspace_id=request["workspace"], **more)
        return str(done["metadata"]["action_result"])


async def embedder(request: dict[str, Any]) -> str:  # noqa: ARG001
    """Return the URL of the embedding model."""
    return _url()


if __name__ == "__main__":
    answer(
        {
            "embedder": embedder,
            "write": write,
            "read": read,
            "search": search,
            "list": workspaces,
            "action": action,
        }
    )
