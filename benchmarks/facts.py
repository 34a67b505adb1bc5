"""Copies of facts with vectors, beside loops over the clients of their vector stores.

    python -m benchmarks.facts [--facts 100000] [--loop 10000] [--rounds 3]

The facts are those of mem0: in a folder of qdrant's client, in pgvector, in an archive.  The loop
from qdrant to qdrant uses its client; it keeps neither the history nor the entities.  Its time
grows faster than the number of facts, so it gets fewer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from uuid import UUID

from benchmarks.measure import Command, interleaved, machine, median, peak
from benchmarks.places import DURABLE
from memctl.dialects.fact import FACT, build, encode_vector
from memctl.model import Embedding, Memory, MemoryKey, Page, StoredMessage
from memctl.registry import make_store, parse
from memctl.store import OpenMode
from tests.support.servers.postgresql import Postgresql

DIMENSIONS = 384
USERS = 100
PAGE = 1000
COLLECTION = "facts"


def config(folder: Path, provider: str, **options: object) -> str:
    """Write a configuration of mem0; return how memctl names its store."""
    folder.mkdir()
    store = {"collection_name": COLLECTION, "embedding_model_dims": DIMENSIONS} | options
    about = {
        "vector_store": {"provider": provider, "config": store},
        "embedder": {"config": {"model": "all-MiniLM-L6-v2"}},
        "history_db_path": f"{folder}/history.db",
    }
    (folder / "config.json").write_text(json.dumps(about))
    return f"mem0:{folder}/config.json"


async def pages(count: int) -> AsyncGenerator[Page]:
    """Yield the facts of a hundred users, always the same."""
    numbers = random.Random(18)
    each = count // USERS
    for user in range(USERS):
        memory = Memory(MemoryKey(f"user-{user:03}", "", "friday"))
        for start in range(0, each, PAGE):
            facts = [fact(numbers) for _ in range(start, min(start + PAGE, each))]
            yield Page(memory, facts, start, start + PAGE >= each)


def fact(numbers: random.Random) -> StoredMessage:
    """Return a fact of about 100 characters, with a vector of length 1."""
    id = str(UUID(int=numbers.getrandbits(128), version=4))
    vector = [numbers.gauss(0, 1) for _ in range(DIMENSIONS)]
    length = sum(value * value for value in vector) ** 0.5
    words = " ".join(str(numbers.getrandbits(30)) for _ in range(10))
    fields = {
        "id": id,
        "text": f"likes {words}",
        "created_at": "2026-11-20T10:00:00+00:00",
        "updated_at": "2026-11-20T10:00:00+00:00",
        "metadata": {"topic": "taste"},
        "vector": encode_vector(value / length for value in vector),
    }
    return StoredMessage(id, build(fields))


async def fill(path: Path, count: int) -> None:
    """Write an archive of facts."""
    store = make_store(parse(str(path)), OpenMode.CREATE)
    store.adopt(FACT, Embedding("all-MiniLM-L6-v2", DIMENSIONS))
    async with store, aclosing(store.write(pages(count))) as results:
        async for result in results:
            assert result.failure is None, result


class Places:
    """An archive of facts, and the places to which they are copied."""

    def __init__(self, folder: Path, server: Postgresql, count: int) -> None:
        folder.mkdir()
        url = server.fresh()
        server.execute(server.admin_url(url), "CREATE EXTENSION vector")
        self.archive = str(folder / "facts.ndjson")
        asyncio.run(fill(Path(self.archive), count))
        self._old, self._new = folder / "old", folder / "new"
        self._drop = lambda: server.execute(
            url, f"DROP TABLE IF EXISTS {COLLECTION}, {COLLECTION}_entities"
        )
        self.source = config(self._old, "qdrant", path=f"{self._old}/qdrant")
        self.target = config(self._new, "qdrant", path=f"{self._new}/qdrant")
        self.table = config(folder / "table", "pgvector", connection_string=url)
        self.kept = str(folder / "kept.ndjson")

    def commands(self) -> Iterator[tuple[str, Command]]:
        """Yield what memctl does, the filling of the source first."""
        yield "archive to qdrant", self._memctl("import", self.archive, self.source, "--no-backup")
        yield "inspect qdrant", self._memctl("inspect", self.source, "--json")
        yield (
            "qdrant to an archive",
            self._memctl("export", self.source, "-o", self.kept, "--force"),
        )
        yield "qdrant to qdrant", self._memctl("migrate", self.source, self.target, "--no-verify")
        yield "qdrant to pgvector", self._memctl("migrate", self.source, self.table, "--no-verify")

    def _memctl(self, *words: str) -> Command:
        prepare = {self.source: self._empty(self._old), self.target: self._empty(self._new)}
        prepare[self.table] = self._drop
        nothing: Callable[[], object] = lambda: None  # noqa: E731
        written = words[2] if len(words) > 2 else ""
        return Command([sys.executable, "-m", "memctl", *words], prepare.get(written, nothing))

    def loop(self) -> Command:
        """Return the copy by qdrant's client."""
        script = Path(__file__).parent / "yardsticks" / "qdrant_copy.py"
        places = [f"{self._old}/qdrant", f"{self._new}/qdrant", COLLECTION, str(DIMENSIONS)]
        return Command([sys.executable, str(script), *places], self._empty(self._new))

    @staticmethod
    def _empty(folder: Path) -> Callable[[], object]:
        def empty() -> None:
            for path in folder.iterdir():
                if path.name != "config.json":
                    shutil.rmtree(path) if path.is_dir() else path.unlink()

        return empty


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--facts", type=int, default=100_000)
    parser.add_argument("--loop", type=int, default=10_000, help="facts of the lines with the loop")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(f"{machine('qdrant-client', 'asyncpg', 'orjson')}; median of {options.rounds} runs.\n")
    print("| what | facts | seconds | peak, MiB |\n|---|--:|--:|--:|", flush=True)

    def measured(what: str, facts: int, command: Command) -> None:
        found = interleaved({what: command}, options.rounds, warm=False)[what]
        print(f"| {what} | {facts:,} | {median(found):.1f} | {peak(found):.0f} |", flush=True)

    with tempfile.TemporaryDirectory(prefix="memctl-bench-") as text:
        folder = Path(text)
        server = Postgresql(folder, "postgresql-bench", *DURABLE)
        small = Places(folder / "small", server, options.loop)
        for what, command in small.commands():
            if what in ("archive to qdrant", "qdrant to qdrant"):
                measured(what, options.loop, command)
        measured("qdrant to qdrant by its client", options.loop, small.loop())
        for what, command in Places(folder / "large", server, options.facts).commands():
            measured(what, options.facts, command)


if __name__ == "__main__":
    main()
