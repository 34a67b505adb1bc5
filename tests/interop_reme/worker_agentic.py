"""A program that uses AgenticMemory of the real AgentScope 2.x, for tests that run without it.

It answers as ``loop.py`` says, and runs in the environment ``.interop2``.  A request names the
``store``, the working folder of an agent:

- ``write`` writes ``files``, names and texts, as AgentScope's own backend does;
- ``read`` returns what the middleware has of the memory: the prompt with its index, and the files
  that it offers for retrieval, the newest first.
"""

from __future__ import annotations

from typing import Any

from agentscope.middleware import AgenticMemoryMiddleware
from agentscope.tool import LocalBackend
from loop import serve as answer


async def write(request: dict[str, Any]) -> None:
    """Write files of a memory."""
    middleware = AgenticMemoryMiddleware(workdir=request["store"])
    await middleware._ensure_layout()
    backend = LocalBackend()
    for name, text in request["files"].items():
        path = backend.join_path(middleware._get_memory_dir(), name)
        await backend.write_file(path, text.encode())


async def read(request: dict[str, Any]) -> dict[str, Any]:
    """Return what the middleware has of a memory."""
    middleware = AgenticMemoryMiddleware(workdir=request["store"])
    prompt = await middleware.on_system_prompt(None, "You are Friday.")
    headers = await middleware._list_md_files()
    return {
        "prompt": prompt.rpartition("## MEMORY.md\n")[2],
        "files": [[one.filename, one.type, one.description, one.mtime] for one in headers],
        "manifest": middleware._format_manifest(headers),
    }


if __name__ == "__main__":
    answer({"write": write, "read": read})
