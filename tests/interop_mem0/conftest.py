"""The real mem0: one worker for all tests of a process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.backends import with_pgvector
from tests.support.servers.pool import Servers
from tests.support.worker import Worker, for_the_session

Config = dict[str, Any]


class Mem0(Worker):
    """The worker of mem0, which keeps its own settings in the folder of the worker."""

    environment = ".interop-mem0"
    script = "interop_mem0/worker.py"

    def __init__(self, folder: Path) -> None:
        """Raises Missing where mem0 is not installed."""
        super().__init__(folder, MEM0_DIR=str(folder))

    def __call__(self, do: str, **about: Any) -> Any:
        """Ask the worker to do something."""
        return self.ask(do=do, **about)

    def call(self, config: Config, method: str, **arguments: Any) -> Any:
        """Call a method of a Memory."""
        return self("call", config=config, method=method, arguments=arguments)

    def search(self, config: Config, query: str, user: str = "ada") -> list[dict[str, Any]]:
        """Return what ``Memory.search`` finds."""
        found = self.call(config, "search", query=query, filters={"user_id": user})
        return list(found["results"])


mem0 = for_the_session(Mem0)

Configure = Callable[..., Config]


@pytest.fixture
def configure(mem0: Mem0, tmp_path: Path, servers: Servers) -> Configure:
    """Write a configuration of mem0 for a new place; its ``store`` is how memctl names it."""
    models = mem0("embedder")

    def make(provider: str, name: str = "one", **options: Any) -> Config:
        folder = tmp_path / name
        folder.mkdir()
        store: dict[str, Any] = {"collection_name": "facts"}
        if provider != "chroma":
            store["embedding_model_dims"] = 384
        if provider == "pgvector":
            store["connection_string"] = with_pgvector(servers)
        else:
            store["path"] = str(folder / provider)
        config = {
            "vector_store": {"provider": provider, "config": store | options},
            "history_db_path": str(folder / "history.db"),
            **models,
        }
        (folder / "config.json").write_text(json.dumps(config))
        return config

    return make


def store_of(config: Config) -> str:
    """Return how memctl names the store of a configuration of ``configure``."""
    return f"mem0:{Path(config['history_db_path']).with_name('config.json')}"
