"""A program that uses the real ReMe 0.4, for tests that run without it; see ``loop.py``.

A request names the ``store``, ReMe's workspace; each starts ReMe without its models, and closes it:

- ``run`` runs ``jobs``, each ``[name, arguments]``, and returns their metadata;
- ``read`` waits until ReMe has indexed its files, and returns them by path: the frontmatter, the
  links and the texts of the chunks, as ReMe has them; and what it finds for each of ``queries``;
- ``stale`` returns the changes that ReMe finds as it starts, before it indexes;
- ``dialog`` writes a session with ReMe's own class.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from agentscope.message import UserMsg
from agentscope.state import AgentState
from loop import serve as answer
from reme.config import resolve_app_config
from reme.reme import ReMe
from reme.steps.index._watch_rules import build_watch_rules, collect_existing
from reme.steps.index.init_changes import InitChangesStep
from reme.utils.agent_state_io import AsStateHandler

_LOOP = "index_update_loop"


def _reme(request: dict[str, Any], *jobs: str) -> ReMe:
    config = resolve_app_config(
        log_config=False,
        workspace_dir=request["store"],
        enable_logo=False,
        log_to_console=False,
        log_to_file=False,
    )
    config["jobs"] = {name: job for name, job in config["jobs"].items() if name in jobs}
    for name in ("as_llm", "agent_wrapper"):
        config["components"].pop(name)
    return ReMe(**config)


async def run(request: dict[str, Any]) -> list[Any]:
    """Run jobs."""
    found = []
    async with _reme(request, *(name for name, _ in request["jobs"])) as reme:
        for name, about in request["jobs"]:
            done = await reme.run_job(name, **about)
            assert done.success, (name, done)
            found.append(done.metadata)
    return found


def _files(reme: ReMe) -> dict[str, float]:
    """Return the files that ReMe watches."""
    workspace = Path(reme.config.workspace_dir)
    dirs, suffixes = ["daily_dir", "digest_dir"], ["md"]
    rules = build_watch_rules(reme.config, workspace, watch_dirs=dirs, watch_suffixes=suffixes)
    return collect_existing(rules, recursive=True)


async def read(request: dict[str, Any]) -> dict[str, Any]:
    """Return what ReMe has of its files."""
    async with _reme(request, _LOOP, "search") as reme:
        store = reme.context.components["file_store"]["default"]
        files = _files(reme)
        workspace = Path(reme.config.workspace_dir)
        for _ in range(300):
            nodes = await store.get_nodes()
            changes, _counts = InitChangesStep.diff(files, nodes, workspace)
            if not changes:
                break
            await asyncio.sleep(0.1)
        assert not changes, changes
        found = {
            node.path: {
                "front": node.front_matter.model_dump(mode="json"),
                "links": [link.target_path for link in node.links],
                "chunks": [store.file_chunks[id].text for id in node.chunk_ids],
            }
            for node in nodes
        }
        queries = {
            query: sorted(
                {
                    one["path"]
                    for one in (await reme.run_job("search", query=query)).metadata["results"]
                }
            )
            for query in request.get("queries", ())
        }
    return {"files": found, "queries": queries}


async def stale(request: dict[str, Any]) -> list[str]:
    """Return the files that ReMe has to index again."""
    async with _reme(request) as reme:
        nodes = await reme.context.components["file_store"]["default"].get_nodes()
        workspace = Path(reme.config.workspace_dir)
        changes, _ = InitChangesStep.diff(_files(reme), nodes, workspace)
    return sorted(str(Path(one["path"]).relative_to(workspace)) for one in changes)


async def dialog(request: dict[str, Any]) -> None:
    """Write a session of a few messages."""
    state = AgentState(session_id="s1", summary="so far", context=[UserMsg("user", "Hi \u2028")])
    folder = Path(request["store"]) / "session" / "dialog"
    await AsStateHandler.for_session(folder, "s1").dump(state)


if __name__ == "__main__":
    answer({"run": run, "read": read, "stale": stale, "dialog": dialog})
