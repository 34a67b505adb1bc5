"""Copies of facts with vectors, beside loops over the clients of their vector stores.

    python -m benchmarks.facts [--facts 100000] [--rounds 3]

The facts are those of mem0: in a folder of qdrant's client, in pgvector, in an archive.  The loop
from qdrant to qdrant uses its client; it keeps neither the history nor the entities, and verifies
nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import sys
import tempfile
from collections.abc import AsyncGenerator
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


def remove(folder: Path) -> None:
    """Empty a place."""
    for path in folder.iterdir():
        if path.name != "config.json":
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--facts", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(f"{machine('qdrant-client', 'asyncpg', 'orjson')}; median of {options.rounds} runs.\n")
    print("| what | seconds | peak, MiB |\n|---|--:|--:|", flush=True)
    with tempfile.TemporaryDirectory(prefix="memctl-bench-") as text:
        folder = Path(text)
        server = Postgresql(folder, "postgresql-bench", *DURABLE)
        url = server.fresh()
        server.execute(server.admin_url(url), "CREATE EXTENSION vector")
        archive = folder / "facts.ndjson"
        asyncio.run(fill(archive, options.facts))
        old, new = folder / "old", folder / "new"
        source = config(old, "qdrant", path=f"{old}/qdrant")
        target = config(new, "qdrant", path=f"{new}/qdrant")
        table = config(folder / "table", "pgvector", connection_string=url)
        loop = Path(__file__).parent / "yardsticks" / "qdrant_copy.py"

        def memctl(*words: str) -> list[str]:
            return [sys.executable, "-m", "memctl", *words]

        def drop() -> None:
            server.execute(url, f"DROP TABLE IF EXISTS {COLLECTION}, {COLLECTION}_entities")

        places = [f"{old}/qdrant", f"{new}/qdrant", COLLECTION, str(DIMENSIONS)]
        kept = str(folder / "kept.ndjson")
        steps = {
            "archive to qdrant": Command(
                memctl("import", str(archive), source, "--no-backup"), lambda: remove(old)
            ),
            "inspect qdrant": Command(memctl("inspect", source, "--json")),
            "qdrant to an archive": Command(memctl("export", source, "-o", kept, "--force")),
            "qdrant to qdrant": Command(
                memctl("migrate", source, target, "--no-verify"), lambda: remove(new)
            ),
            "the same by qdrant's client": Command(
                [sys.executable, str(loop), *places], lambda: remove(new)
            ),
            "qdrant to pgvector": Command(memctl("migrate", source, table, "--no-verify"), drop),
        }
        for name, command in steps.items():
            found = interleaved({name: command}, options.rounds, warm=False)[name]
            print(f"| {name} | {median(found):.1f} | {peak(found):.0f} |", flush=True)


if __name__ == "__main__":
    main()
