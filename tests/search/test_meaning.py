"""Searches by meaning whose model's server fails in the middle: real HTTP on loopback.

The store has a session of four messages for each request, and the first request is the query's.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from memctl.model import MemoryKey
from tests.search.finding import index_files, make, talk
from tests.summarizers.server import Answering, ModelServer, Reply, Request, embedded
from tests.support.cli import Run, fails, fill, report
from tests.support.processes import start

SESSIONS = 6
EACH = 4
MESSAGES = SESSIONS * EACH
BUSY = Reply({"error": {"message": "slow down"}}, 429, {"retry-after": "1"})
BROKEN = Reply({"error": {"message": "no memory left"}}, 500)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store whose vectors take a request for each session."""
    return make(
        tmp_path / "a.db",
        {
            MemoryKey("ada", f"s{number}"): [f"umbrella {number} {turn}" for turn in range(EACH)]
            for number in range(SESSIONS)
        },
    )


Configure = Callable[..., None]


@pytest.fixture
def configure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Configure:
    """Write a configuration with a server as the only embedder."""

    def write(server: ModelServer, **options: Any) -> None:
        given = {"base_url": server.url, "model": "m", "batch": EACH, "concurrency": 1}
        given |= {"max_retries": 0} | options
        lines = [f"{name} = {json.dumps(value)}" for name, value in given.items()]
        path = tmp_path / "config.toml"
        path.write_text("\n".join(['[embedders.m]\nkind = "openai"', *lines, ""]))
        monkeypatch.setenv("MEMCTL_CONFIG", str(path))

    return write


def texts(server: ModelServer) -> list[str]:
    """Return all texts that the server was asked to embed."""
    return [text for request in server.requests for text in request.body["input"]]


def memctl(*words: object) -> str:
    """Run memctl as another process, which must end well; return its output."""
    with start(*words, stdout=subprocess.PIPE) as running:
        stdout, stderr = running.communicate()
    assert running.returncode == 0, stderr
    return stdout


def kept_vectors() -> int:
    """Return the number of blocks that have vectors in the only index."""
    [path] = index_files()
    with sqlite3.connect(path) as database:
        found: int = database.execute("SELECT count(*) FROM vector").fetchone()[0]
    return found


def of(value: Any) -> Answering:
    """Vectors of which the first has such values."""

    def answer(request: Request) -> Reply:
        found = embedded()(request)
        found.body["data"][0]["embedding"] = value
        return found

    return answer


FAILURES: dict[str, tuple[Reply | Answering, str]] = {
    "dies": (Reply(dies=True), "the connection was lost"),
    "breaks off": (Reply({"data": []}, broken=True), "the connection was lost"),
    "is busy": (BUSY, "answers 429: slow down"),
    "answers 500": (BROKEN, "answers 500: no memory left"),
    "hangs": (Reply({}, delay=30), "no reply within 1 s"),
    "refuses the key": (Reply({"error": {"message": "no"}}, 401), "refuses the key"),
    "lost its model": (Reply({"error": {"message": "model not found"}}, 404), "answers 404"),
    "is no JSON": (Reply(b"<html>", 200, {"content-type": "text/html"}), "is not JSON"),
    "is half of JSON": (Reply(b'{"data": ['), "is not JSON"),
    "is a list": (Reply([]), "is not a JSON object"),
    "has too few": (embedded(data=[{"index": 0, "embedding": [1.0]}]), "1 embeddings for 4 texts"),
    "has another size": (embedded(5), "differ in size: 5 and 8"),
    "has several sizes": (of([1.0, 2.0]), "differ in size"),
    "has NaN": (of([float("nan")] * 8), "not finite"),
    "has infinity": (of([1.0] * 7 + [float("inf")]), "not finite"),
    "has a number beyond 32 bits": (of([1.0] * 7 + [1e300]), "not finite"),
    "has null": (of([1.0] * 7 + [None]), "not a list of numbers"),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("by", "failure"),
    [
        *(("update", failure) for failure in FAILURES),
        *product(["meaning", "both"], ["dies", "has too few", "has NaN"]),
    ],
)
def test_server_fails_in_the_middle_and_what_it_made_stays(
    run: Run, store: Path, configure: Configure, by: str, failure: str
) -> None:
    reply, said = FAILURES[failure]
    queries = int(by != "update")

    def again() -> Any:
        if not queries:
            return run("index", "update", store, "--embedder", "m", "--json")
        return run("search", store, "umbrella", "--by", by, "--top", "50", "--json")

    good = [embedded()] * (queries + 2)
    with ModelServer(*good, reply) as server:
        configure(server, timeout=1)
        fails(again(), 3, said)
        assert len(server.requests) == queries + 3
    assert kept_vectors() == 2
    words = report(run("search", store, '"umbrella 3"', "--json"))
    assert (len(words["hits"]), words["index"]["new"], words["warnings"]) == (EACH, 0, [])
    with ModelServer() as server:
        configure(server)
        found = report(again())
        assert len(texts(server)) == queries + MESSAGES - 2 * EACH, "only the rest is made"
    assert not found["warnings"]
    if queries:
        assert len(found["hits"]) == MESSAGES
    assert kept_vectors() == SESSIONS


def test_server_that_is_busy_is_waited_for(run: Run, store: Path, configure: Configure) -> None:
    with ModelServer(embedded(), embedded(), BUSY) as server:
        configure(server, max_retries=2)
        found = report(run("search", store, "umbrella", "--by", "meaning", "--json"))
        assert len(server.requests) == 1 + SESSIONS + 1
    assert len(found["hits"]) == 10
    assert kept_vectors() == SESSIONS


@pytest.mark.slow
def test_server_that_is_not_there_leaves_searches_by_words(
    run: Run, store: Path, configure: Configure
) -> None:
    with ModelServer() as server:
        configure(server)
    for by in ("meaning", "both"):
        fails(run("search", store, "umbrella", "--by", by), 3, "cannot reach 127.0.0.1")
    fails(run("index", "update", store, "--embedder", "m"), 3, "cannot reach 127.0.0.1")
    assert len(report(run("search", store, "umbrella", "--json"))["hits"]) == 10


def test_vectors_of_few_texts_are_kept_call_by_call(
    run: Run, tmp_path: Path, configure: Configure
) -> None:
    """Calls that run at once stand and fall together, and no more."""
    many = {MemoryKey("ada", f"s{number}"): [f"umbrella {number}"] for number in range(8)}
    path = make(tmp_path / "b.db", many)
    with ModelServer(*[embedded()] * 6, BROKEN) as server:
        configure(server, batch=1, concurrency=1)
        fails(run("index", "update", path, "--embedder", "m"), 3, "answers 500")
    assert kept_vectors() == 6


@pytest.mark.slow
def test_model_of_another_size_makes_all_vectors_anew(
    run: Run, store: Path, configure: Configure
) -> None:
    def hits() -> int:
        found = report(run("search", store, "umbrella", "--by", "both", "--top", "50", "--json"))
        assert not found["warnings"]
        return len(found["hits"])

    with ModelServer() as server:
        configure(server)
        assert hits() == MESSAGES
    with ModelServer(*[embedded(5)] * 20) as server:
        configure(server, dimensions=5)
        assert hits() == MESSAGES
        assert len(texts(server)) == 1 + MESSAGES
    with ModelServer(*[embedded(6)] * 20) as server:
        configure(server, dimensions=6)
        asyncio.run(fill(str(store), {MemoryKey("new", "n"): talk(["umbrella"])}))
        report(run("index", "update", store, "--embedder", "m", "--json"))
        assert hits() == MESSAGES + 1
        assert kept_vectors() == SESSIONS + 1


def test_messages_that_come_while_vectors_are_made_get_theirs(
    run: Run, store: Path, configure: Configure
) -> None:
    """Another search indexes them; the vectors that were paid for stay."""

    def meanwhile(request: Request) -> Reply:
        asyncio.run(fill(str(store), {MemoryKey("new", "n"): talk(["umbrella"])}))
        assert '"new": 1' in memctl("search", store, "umbrella", "--json")
        return embedded()(request)

    with ModelServer(*[embedded()] * SESSIONS, meanwhile) as server:
        configure(server)
        found = report(run("search", store, "umbrella", "--by", "meaning", "--top", "50", "--json"))
        assert len(texts(server)) == 1 + MESSAGES + 1
    assert not found["warnings"]
    assert len(found["hits"]) == MESSAGES + 1


def test_two_models_at_once_are_not_mixed(run: Run, store: Path, configure: Configure) -> None:
    with ModelServer() as other:

        def meanwhile(request: Request) -> Reply:
            configure(other, model="n")
            memctl("index", "update", store, "--embedder", "m")
            return embedded()(request)

        with ModelServer(*[embedded()] * 3, meanwhile) as server:
            configure(server)
            refused = run("search", store, "umbrella", "--by", "meaning")
    fails(refused, 75, "another run makes vectors of the model 'n'")
    [row] = report(run("index", "list", "--json"))["indexes"]
    assert row["model"] == "n"
    assert kept_vectors() == SESSIONS


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE vector SET vectors = substr(vectors, 1, 3)",
        "UPDATE vector SET vectors = substr(vectors, 1, 16)",
        "UPDATE vector SET vectors = x''",
        "UPDATE vector SET vectors = CAST(replace(hex(vectors), '3', 'F') AS BLOB)",
        "UPDATE vector SET vectors = x'007c007c007c007c007c007c007c007c'",
        "UPDATE block SET content = x'00'",
        "UPDATE about SET value = 5 WHERE name = 'dimensions'",
    ],
)
@pytest.mark.parametrize("by", ["meaning", "update"])
def test_index_with_damaged_vectors_is_made_anew(
    run: Run, store: Path, configure: Configure, damage: str, by: str
) -> None:
    with ModelServer() as server:
        configure(server)
        report(run("search", store, "umbrella", "--by", "both", "--json"))
        with sqlite3.connect(index_files()[0]) as database:
            database.execute(damage)
            if by == "update":
                database.execute("DELETE FROM vector WHERE block = 3")
        if by == "update":
            report(run("index", "update", store, "--embedder", "m", "--json"))
            by = "both"
        found = report(run("search", store, "umbrella", "--by", by, "--top", "50", "--json"))
        assert len(found["hits"]) == MESSAGES
        again = report(run("search", store, "umbrella", "--by", by, "--json"))
        assert not again["warnings"]
    assert kept_vectors() == SESSIONS
