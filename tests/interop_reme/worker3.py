"""A program that uses the real ReMe 0.3, for tests that run without it; see ``loop.py``.

A request names the ``store``, ReMe's working folder; each starts ReMe and closes it:

- ``embedder`` returns the URL of the embedding model;
- ``write`` adds ``memories``, each the arguments of ``ReMe.add_memory``, and returns their ids;
- ``read`` returns the memories of a ``target``, such as ``{"user_name": "alice"}``, by id;
- ``search`` returns the ids that ReMe finds for a ``query`` of a target, best first;
- ``delete`` has ReMe delete a memory by its ``id``.
"""

from __future__ import annotations

import os
import sys
from typing import Any

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../interop_mem0"))

from loop import serve as answer
from minilm import serve
from reme import ReMe

_urls: list[str] = []


async def embedder(request: dict[str, Any]) -> str:  # noqa: ARG001
    """Return the URL of the embedding model."""
    if not _urls:
        _urls.append(serve())
    return _urls[0]


async def _reme(request: dict[str, Any]) -> ReMe:
    await embedder(request)
    model = {"backend": "openai", "model_name": "all-MiniLM-L6-v2", "dimensions": 384}
    reme = ReMe(
        working_dir=request["store"],
        llm_api_key="none",
        llm_base_url=_urls[0],
        embedding_api_key="none",
        embedding_base_url=_urls[0],
        enable_logo=False,
        log_to_console=False,
        log_to_file=False,
        default_vector_store_config={"backend": "local", "collection_name": "reme"},
        default_embedding_model_config=model,
        enable_profile=False,
    )
    await reme.start()
    return reme


async def write(request: dict[str, Any]) -> list[str]:
    """Add memories."""
    reme = await _reme(request)
    found = [(await reme.add_memory(**one)).memory_id for one in request["memories"]]
    await reme.close()
    return found


async def read(request: dict[str, Any]) -> dict[str, Any]:
    """Return the memories of a target."""
    reme = await _reme(request)
    found = await reme.list_memory(**request["target"])
    await reme.close()
    return {one.memory_id: one.model_dump(mode="json") for one in found}


async def search(request: dict[str, Any]) -> list[str]:
    """Search the memories of a target."""
    reme = await _reme(request)
    [target] = request["target"].values()
    reme._add_meta_memory(*reme._resolve_memory_target(**request["target"]))
    found = await reme.get_memory_handler(target).search(request["query"], limit=3)
    await reme.close()
    return [one.memory_id for one in found]


async def delete(request: dict[str, Any]) -> None:
    """Delete a memory."""
    reme = await _reme(request)
    await reme.delete_memory(request["id"])
    await reme.close()


if __name__ == "__main__":
    answer({"embedder": embedder, "write": write, "read": read, "search": search, "delete": delete})
