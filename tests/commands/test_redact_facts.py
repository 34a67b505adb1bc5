"""``memctl redact`` of facts: their vectors and digests tell nothing of a secret, either."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from memctl import MemoryKey
from memctl.dialects.fact import build, encode_vector, vector_of
from memctl.embedders.registry import make_embedder
from memctl.model import StoredMessage
from memctl.storekit.texts import KEEPS_VECTOR
from memctl.testing.suite.erase import texts
from tests.commands.test_redact import GONE, NOT_SELECTED, TOKEN, state_text
from tests.commands.test_search import embedder as embedder
from tests.embedders.test_onnx import SIZE, settings
from tests.stores.test_mem0 import config
from tests.support.backends import with_pgvector
from tests.support.cli import Run, contents, fails, fill, report
from tests.support.files import files
from tests.support.servers.pool import Servers

KEY = MemoryKey("ada", "kyoto")
OLD = encode_vector([0.5] * SIZE)
PLACES = ["qdrant", "faiss", "pgvector", "reme-0.2", "reme-0.3"]
WORDS = ("--secrets", "--yes")


def fact(number: int, text: str, **more: Any) -> StoredMessage:
    id = f"00000000-0000-4000-8000-{number:012}"
    fields = {"id": id, "text": text, "created_at": "2026-01-01T00:00:00+00:00", "vector": OLD}
    return StoredMessage(id, build(fields | more))


def facts(*, with_history: bool) -> list[StoredMessage]:
    """Return facts of which the first, the second and the last have the token."""
    entity = {"id": fact(9, "").id, "text": TOKEN, "type": "PROPER", "vector": OLD}
    row = {"id": "h1", "new_memory": f"ada likes {TOKEN}", "event": "ADD", "is_deleted": 0}
    more = {"entities": [entity], "history": [row]} if with_history else {}
    return [
        fact(1, f"ada likes {TOKEN}", metadata={"source": f"T={TOKEN}"}, **more),
        fact(2, "ada likes tea", metadata={"source": TOKEN}),
        fact(3, "tea"),
        fact(4, f"tea likes {TOKEN}"),
    ]


@pytest.fixture(params=PLACES)
def store(request: pytest.FixtureRequest, tmp_path: Path, servers: Servers) -> str:
    """A store with facts that have the token."""
    kind, folder = request.param, tmp_path / "place"
    folder.mkdir()
    is_mem0 = not kind.startswith("reme")
    if is_mem0:
        place = {"collection_name": "facts", "embedding_model_dims": SIZE}
        if kind == "pgvector":
            place["connection_string"] = with_pgvector(servers)
        else:
            place["path"] = str(folder / kind)
        name = config(folder, provider=kind, config=place)
        file = folder / "config.json"
        about = json.loads(file.read_text()) | {"history_db_path": str(folder / "history.db")}
        about["embedder"] = {"provider": "local", "config": {"model": "three-words"}}
        file.write_text(json.dumps(about))
    else:
        name = f"reme:{folder}/r?layout={kind.removeprefix('reme-')}"
    key = KEY if is_mem0 else KEY._replace(session="")
    asyncio.run(fill(name, {key: facts(with_history=is_mem0)}))
    return name


def raw(store: str, servers: Servers) -> str:
    """Return all that is in the place of a store."""
    folder = Path(store.partition(":")[2].partition("?")[0]).parent
    found = texts(files(folder))
    if '"pgvector"' in found:
        about = json.loads((folder / "config.json").read_text())
        found += servers.postgresql.dump(about["vector_store"]["config"]["connection_string"])
    return found


async def vectors(model: Path, *said: str) -> list[str]:
    async with make_embedder(settings(model)) as embedder:
        return list(map(encode_vector, (await embedder.embed(said)).vectors))


def test_redact_facts_with_an_embedder(
    run: Run, store: str, embedder: Path, servers: Servers, tmp_path: Path
) -> None:
    archive = tmp_path / "facts.ndjson"
    assert run("export", store, "-o", archive).exit_code == 0
    last = fact(4, "").id
    deleted = report(run("delete", store, "--id", last, "--yes", "--json"))
    words = ("redact", store, "--archives", archive, *WORDS)
    scan = report(run(*words[:-1], "--dry-run", "--embedder", "local", "--json"), 6)
    assert not scan["left"]
    assert TOKEN in raw(store, servers)
    receipt = tmp_path / "receipt.json"
    done = run(*words, "--embedder", "local", "--receipt", receipt)
    assert done.exit_code == 0, done.output
    assert "embedded by local" in done.stdout
    for said in (raw(store, servers), archive.read_text(), state_text(), done.output):
        assert TOKEN not in said
    assert run("verify", "--receipt", receipt).exit_code == 0
    assert run("undo", deleted["run"], "--store", store, "--yes").exit_code == 0
    likes, other = f"ada likes {GONE}", f"tea likes {GONE}"
    made = asyncio.run(vectors(embedder.parent / "three-words" / "model.onnx", likes, other))
    expected = [(likes, made[0]), ("ada likes tea", OLD), ("tea", OLD), (other, made[1])]
    for place in (store, str(archive)):
        [some] = contents(place).values()
        there = [(json.loads(one.message)["text"], vector_of(one.message)) for one in some]
        assert not [one for one in some if b'"hash"' in one.message], "each is that of its text"
        assert there == expected, place
    assert run("doctor", store).exit_code == 0


@pytest.mark.usefixtures("embedder")
def test_redact_facts_of_a_user(run: Run, store: str, servers: Servers) -> None:
    [ada] = contents(store)
    bob = ada._replace(user="bob")
    has_history = store.startswith("mem0")
    theirs = [
        StoredMessage(one.id.replace("0000-4000", "0001-4000"), changed)
        for one in facts(with_history=has_history)
        if (changed := one.message.replace(b"0000-4000", b"0001-4000").replace(b'"h1"', b'"h2"'))
    ]
    asyncio.run(fill(store, {bob: theirs}))
    before = contents(store)
    words = ("redact", store, *WORDS, "--embedder", "local", "--user")
    left = report(run(*words, "ada", "--json"), 6)["left"]
    assert {row["why"] for row in left} == {NOT_SELECTED}
    after = contents(store)
    assert after[bob] == before[bob]
    assert not any(TOKEN.encode() in one.message for one in after[ada])
    told = [vector_of(one.message) == OLD for one in after[ada]]
    assert told == [False, True, True, False], "only these texts have changed"
    assert run(*words, "bob").exit_code == 0
    assert TOKEN not in raw(store, servers)
    assert run("doctor", store).exit_code == 0


def test_redact_leaves_facts_whose_vectors_it_cannot_make(run: Run, store: str) -> None:
    before = contents(store)
    deleted = report(run("delete", store, "--id", fact(4, "").id, "--yes", "--json"))
    for more in ("--dry-run", "--yes"):
        left = report(run("redact", store, "--secrets", more, "--json"), 6)["left"]
        assert {row["why"] for row in left} == {KEEPS_VECTOR}
    assert run("undo", deleted["run"], "--store", store, "--yes").exit_code == 0
    [now], [was] = contents(store).values(), before.values()
    for one, other in zip(now, was, strict=True):
        here, there = json.loads(one.message), json.loads(other.message)
        assert (here["text"], here["vector"]) == (there["text"], OLD)
    without = was[1].message.replace(TOKEN.encode(), GONE.encode())
    assert now[1].message == without, "its vector says nothing of its metadata"


KILLED = """
import os, signal, sys
from memctl.engines.sql import texts
from memctl.journal import rewrite
from memctl.storekit import text_files
from memctl.stores.mem0.store import Mem0Store
from memctl.__main__ import main
left = [int(sys.argv.pop(1))]
def counting(holder, name):
    original = getattr(holder, name)
    def call(*args, **named):
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args, **named)
    setattr(holder, name, call)
for step in (Mem0Store, "_replaced"), (Mem0Store, "_save"), (texts.RowTexts, "_update"), (
    text_files._TextFile, "_replace"), (rewrite, "sync_folder"):
    counting(*step)
main()
"""


@pytest.mark.slow
@pytest.mark.usefixtures("embedder")
@pytest.mark.parametrize("store", PLACES, indirect=True)
def test_redact_facts_again_finishes_what_was_killed(
    run: Run, store: str, servers: Servers, tmp_path: Path
) -> None:
    assert run("delete", store, "--id", fact(4, "").id, "--yes").exit_code == 0
    receipt = tmp_path / "receipt.json"
    words = ["redact", store, *WORDS, "--embedder", "local", "--receipt", str(receipt)]
    for step in range(20):
        killed = subprocess.run([sys.executable, "-c", KILLED, str(step), *words])
        if killed.returncode == 0:
            break
        assert killed.returncode == -9, step
        assert json.loads(receipt.read_text())["complete"] is False
        [some] = contents(store).values()
        for one in some:
            has_old = vector_of(one.message) == OLD
            said = json.loads(one.message)["text"]
            assert has_old is (GONE not in said), "each fact is whole"
    assert step > 1
    assert TOKEN not in raw(store, servers) + state_text()
    assert json.loads(receipt.read_text())["complete"] is True
    assert run("doctor", store).exit_code == 0


@pytest.mark.parametrize("store", ["qdrant"], indirect=True)
def test_redact_refuses_facts_that_nobody_can_read(run: Run, store: str) -> None:
    """A record that is damaged may have the value."""
    path = next(Path(store.removeprefix("mem0:")).parent.rglob("facts/storage.sqlite"))
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE points SET point = x'00' WHERE rowid = 3")
    before = path.read_bytes()
    for more in ("--dry-run", "--yes"):
        fails(run("redact", store, "--secrets", more), 8, "is damaged", "memctl doctor")
    assert path.read_bytes() == before
