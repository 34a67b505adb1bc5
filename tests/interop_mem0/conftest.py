"""The real mem0: one worker for all tests of a process."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from tests.support.backends import with_pgvector
from tests.support.servers import Missing
from tests.support.servers.pool import Servers, start

PYTHON = Path(__file__).parents[2] / ".interop-mem0" / "bin" / "python"
Config = dict[str, Any]


class Mem0:
    """The worker, alive as long as the context is; see ``worker``."""

    def __init__(self, folder: Path) -> None:
        """``folder`` takes what mem0 says and keeps.  Raises Missing where it is not installed."""
        if not PYTHON.exists():
            raise Missing("mem0 is not installed: make interop installs it")
        self._folder = folder

    def __enter__(self) -> Self:
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [PYTHON, "-W", "ignore", Path(__file__).with_name("worker.py")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=os.environ | {"MEM0_DIR": str(self._folder)},
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def __call__(self, do: str, **about: Any) -> Any:
        """Ask the worker to do something."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps({"do": do, **about}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the worker ended:\n{(self._folder / 'log').read_text()[-3000:]}"
        answer = json.loads(line)
        assert "error" not in answer, f"mem0 failed: {answer['error']}"
        return answer["answer"]

    def call(self, config: Config, method: str, **arguments: Any) -> Any:
        """Call a method of a Memory."""
        return self("call", config=config, method=method, arguments=arguments)

    def search(self, config: Config, query: str, user: str = "ada") -> list[dict[str, Any]]:
        """Return what ``Memory.search`` finds."""
        found = self.call(config, "search", query=query, filters={"user_id": user})
        return list(found["results"])


@pytest.fixture(scope="session")
def mem0(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mem0]:
    """The real mem0; importing it takes seconds."""
    with start(lambda: Mem0(tmp_path_factory.mktemp("mem0"))) as worker:
        yield worker


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
