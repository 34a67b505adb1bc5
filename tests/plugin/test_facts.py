"""The commands on facts: in a store that defines no more than FactStore asks for, in archives."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from pathlib import Path

import pytest
from typer.testing import Result

from memctl.dialects.fact import FACT, build, decode_vector, vector_of, without_vector
from memctl.model import Embedding, Memory, MemoryKey, Page, StoredMessage, WriteMode
from memctl.ops.copy.copy import CopyOptions, copy
from memctl.ops.copy.mirror import Mirror
from memctl.ops.report import CopyReport
from memctl.registry import make_store, parse
from memctl.selection import Selection
from memctl.store import OpenMode
from memctl.testing import Style, samples
from memctl.testing.drive import read
from tests.summarizers import server
from tests.summarizers.server import ModelServer, Reply, embedded
from tests.support.cli import fails, fill, report

Run = Callable[..., Result]
ADA, BOB = MemoryKey("ada", "", "friday"), MemoryKey("bob", "trip-7")
Contents = dict[MemoryKey, dict[str, bytes]]


@pytest.fixture(autouse=True)
def _facts(plugin: Path) -> Iterator[None]:  # noqa: ARG001 - it has the store
    samples.use(Style("fact", frozenset(), dimensions=8))
    yield
    samples.use(Style())


@pytest.fixture
def notes(tmp_path: Path) -> str:
    """A store with 30 facts of one user and an agent, and 5 of another."""
    text = str(tmp_path / "m.notes")
    asyncio.run(fill(text, {ADA: samples.entries(30), BOB: samples.entries(5, 100)}))
    return text


@pytest.fixture
def target(tmp_path: Path) -> str:
    """A place for another store."""
    return str(tmp_path / "target.notes")


def contents(text: str) -> Contents:
    """Return the facts of each scope; none of a store that is not there."""
    if not Path(text).exists():
        return {}

    async def look() -> Contents:
        async with make_store(parse(text)) as store:
            found = await read(store)
        return {
            key: {one.id: one.message for one in memory.entries} for key, memory in found.items()
        }

    return asyncio.run(look())


def archive(path: Path, embedding: Embedding | None, facts: list[StoredMessage]) -> str:
    """Write an archive of facts of Ada whose vectors are of another kind."""

    async def work() -> None:
        async def pages() -> AsyncGenerator[Page]:
            yield Page(Memory(ADA), facts)

        store = make_store(parse(str(path)), OpenMode.CREATE)
        store.adopt(FACT, embedding)
        async with store, aclosing(store.write(pages())) as results:
            assert [result.failure async for result in results] == [None]

    asyncio.run(work())
    return str(path)


def other_text(fact: StoredMessage) -> StoredMessage:
    return fact._replace(message=build(FACT.parse(fact.message).value | {"text": "changed"}))


def rewrite(text: str, key: MemoryKey, facts: list[StoredMessage]) -> None:
    """Put facts into a scope, in the place of all that it holds."""

    async def work() -> None:
        async def pages() -> AsyncGenerator[Page]:
            yield Page(Memory(key), facts)

        store = make_store(parse(text), OpenMode.CHANGE)
        async with store, aclosing(store.write(pages(), WriteMode.REPLACE)) as results:
            assert [result.failure async for result in results] == [None]

    asyncio.run(work())


def test_facts_are_inspected(run: Run, notes: str) -> None:
    found = report(run("inspect", notes, "--json"))
    assert found["store"]["embedding"] == {"model": "notes-8", "dimensions": 8}
    assert found["totals"]["roles"] == {"fact": 35}
    assert {(row["user"], row["session"], row["messages"]) for row in found["memories"]} == {
        ("ada", "", 30),
        ("bob", "trip-7", 5),
    }
    shown = run("inspect", notes).stdout
    assert "2 users · 1 agent · 35 facts" in shown
    assert "vectors of notes-8 with 8 dimensions" in shown
    assert "user  run      agent" in shown
    [day] = report(run("inspect", notes, "--by", "day", "--json"))["groups"]
    assert (day["day"], day["messages"]) == ("2025-03-01", 35)


def test_facts_are_shown_with_age_and_metadata(run: Run, notes: str) -> None:
    shown = run("inspect", notes, "--messages", "--match", "message 7", "--ids").stdout
    assert "── ada (friday)\n" in shown
    assert "  message 7\n" in shown
    assert "d " in shown.split("2025-03-01 12:07:00.000", 1)[1].split("ago")[0]
    assert "m0000007" in shown
    assert 'metadata  {"name": "Friday"' in shown


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.ndjson", "a.ndjson.zst"])
def test_facts_survive_an_archive(
    run: Run, notes: str, target: str, tmp_path: Path, name: str
) -> None:
    path = tmp_path / name
    report(run("export", notes, "-o", path, "--json"))
    if name.endswith("ndjson"):
        header = json.loads(path.read_text("utf-8").splitlines()[0])
        assert (header["version"], header["dialect"]) == (3, "fact")
        assert header["embedding"] == {"model": "notes-8", "dimensions": 8}
    report(run("import", path, target, "--json"))
    assert contents(target) == contents(notes)
    assert report(run("verify", notes, target, "--json"))["differences"] == []


@pytest.mark.slow
def test_facts_are_copied_once(run: Run, notes: str, target: str) -> None:
    assert report(run("migrate", notes, target, "--json"))["messages"]["written"] == 35
    again = report(run("migrate", notes, target, "--json"))
    assert (again["memories"]["unchanged"], again["messages"]["written"]) == (2, 0)
    rewrite(notes, BOB, samples.entries(8, 100))
    more = report(run("migrate", notes, target, "--json"))
    assert more["messages"]["written"] == 3
    assert contents(target) == contents(notes)


@pytest.mark.slow
def test_facts_are_followed(notes: str, target: str) -> None:
    """A change of the source between two rounds of ``--follow`` reaches the target."""
    mirror = Mirror()

    async def copied() -> None:
        source, copy_ = make_store(parse(notes)), make_store(parse(target), OpenMode.CREATE)
        async with source, copy_:
            options, report_ = CopyOptions(), CopyReport()
            await copy(source, copy_, Selection(), options, report_, mirror=mirror)
            assert report_.failures == []

    asyncio.run(copied())
    assert contents(target) == contents(notes)
    facts = samples.entries(32)
    rewrite(notes, ADA, [*facts[:3], other_text(facts[3]), *facts[4:]])
    asyncio.run(copied())
    assert contents(target) == contents(notes)


@pytest.mark.slow
def test_facts_join_others(run: Run, notes: str, target: str) -> None:
    """Other facts of the target are no conflict: facts do not depend on one another."""
    asyncio.run(fill(target, {ADA: samples.entries(3, 500)}))
    done = report(run("migrate", notes, target, "--json"))
    assert done["messages"]["written"] == 35
    assert len(contents(target)[ADA]) == 33
    found = report(run("verify", notes, target, "--json"), 6)["differences"]
    assert {one["code"] for one in found} == {"message-extra"}


@pytest.mark.slow
def test_fact_that_differs_is_a_conflict(run: Run, notes: str, target: str) -> None:
    before = samples.entries(4)
    asyncio.run(fill(target, {ADA: [*before[:3], other_text(before[3])]}))
    fails(run("migrate", notes, target), 5, "left unchanged")
    assert set(contents(target)[ADA]) == {one.id for one in before}
    done = report(run("migrate", notes, target, "--on-conflict", "replace", "--yes", "--json"))
    assert contents(target) == contents(notes)
    report(run("undo", done["run"], "--yes", "--json"))
    assert b"changed" in contents(target)[ADA][before[3].id]


@pytest.mark.slow
def test_facts_go_and_come_back(run: Run, notes: str) -> None:
    before = contents(notes)
    done = report(run("delete", notes, "--match", "message 2", "--yes", "--json"))
    assert done["messages"]["deleted"] == 11
    assert len(contents(notes)[ADA]) == 19
    report(run("undo", "--yes", "--json"))
    assert contents(notes) == before


@pytest.mark.slow
def test_reports_speak_of_facts(run: Run, notes: str, target: str) -> None:
    assert "35 facts selected" in run("migrate", notes, target).stdout
    assert "35 and 35 facts" in run("verify", notes, target).stdout
    assert "35 facts checked" in run("doctor", notes).stdout
    assert "5 facts deleted in 1 memory" in run("delete", notes, "--user", "bob", "--yes").stdout
    assert "5 facts restored in 1 memory" in run("undo", "--yes").stdout


def test_facts_of_a_user_are_erased(run: Run, notes: str) -> None:
    report(run("erase", "--user", "ada", notes, "--yes", "--json"))
    assert list(contents(notes)) == [BOB]


@pytest.mark.parametrize(
    "words",
    [
        ("compress", "{}", "--all"),
        ("compress", "{}", "--all", "--dry-run"),
        ("context", "{}", "--user", "ada"),
        ("mark", "list", "{}"),
        ("mark", "add", "{}", "x", "--user", "ada"),
    ],
)
def test_facts_have_neither_context_nor_marks(run: Run, notes: str, words: tuple[str, ...]) -> None:
    fails(run(*(word.format(notes) for word in words)), 2, "holds facts", "hint: ")


def test_facts_do_not_become_a_conversation(run: Run, notes: str, tmp_path: Path) -> None:
    target = tmp_path / "agents.db"
    fails(run("migrate", notes, target), 2, "that takes a model")
    assert not target.exists()


def test_doctor_examines_facts(run: Run, notes: str) -> None:
    assert report(run("doctor", notes, "--json"))["healthy"]
    facts = samples.entries(6)
    facts[1] = facts[1]._replace(message=without_vector(facts[1].message))
    short = build(FACT.parse(facts[2].message).value | {"vector": samples.vector("x", 4)})
    facts[2] = facts[2]._replace(message=short)
    facts[3] = facts[3]._replace(
        message=build({"id": facts[3].id, "vector": samples.vector("", 8)})
    )
    facts[4:] = [other_text(one) for one in facts[4:]]
    rewrite(notes, ADA, facts)
    found = report(run("doctor", notes, "--json"), 6)["findings"]
    assert {one["code"]: one["ids"] for one in found} == {
        "fact-without-vector": [facts[1].id],
        "vector-dimensions": [facts[2].id],
        "fact-without-text": [facts[3].id],
        "duplicate-fact": [facts[5].id],
    }


# Vectors of another model


@pytest.fixture
def other(tmp_path: Path) -> str:
    """An archive of 150 facts with vectors of another model."""
    return archive(tmp_path / "other.ndjson", Embedding("text-large", 8), samples.entries(150))


@pytest.fixture
def embedder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelServer]:
    """A server of the model of the notes, and a configuration that names it."""
    with ModelServer() as found:
        path = tmp_path / "config.toml"
        path.write_text(
            f'[embedders.notes]\nkind = "openai"\nmodel = "notes-8"\nbase_url = "{found.url}"\n'
            "input_price = 2.0\nmax_retries = 0\n"
            f'[embedders.large]\nkind = "openai"\nmodel = "large"\nbase_url = "{found.url}"\n'
        )
        monkeypatch.setenv("MEMCTL_CONFIG", str(path))
        yield found


def test_vectors_of_another_model_need_an_embedder(run: Run, other: str, target: str) -> None:
    result = run("migrate", other, target)
    fails(result, 9, "text-large with 8 dimensions", "--embedder NAME")
    assert contents(target) == {}


@pytest.mark.slow
def test_vectors_are_made_by_an_embedder(
    run: Run, other: str, target: str, embedder: ModelServer
) -> None:
    done = report(run("migrate", other, target, "--embedder", "notes", "--json"))
    assert done["verified"]
    assert done["embedded"]["texts"] == 150
    tokens = sum(len(f"message {number}") // 4 + 1 for number in range(150))
    assert done["embedded"]["tokens"] == tokens
    assert done["embedded"]["cost"] == pytest.approx(tokens * 2e-6)
    sizes = [len(one.body["input"]) for one in embedder.requests]
    assert sorted(sizes) == [1, 22, 64, 64]  # the last three at the same time
    for text in contents(target)[ADA].values():
        made = decode_vector(vector_of(text) or "")
        assert made == server.vector_of(FACT.parse(text).value["text"])
    again = report(run("migrate", other, target, "--embedder", "notes", "--json"))
    assert again["messages"]["written"] == 0
    assert len(embedder.requests) == 5  # it is asked for the size of its vectors alone


def test_dry_run_asks_no_embedder(run: Run, other: str, notes: str, embedder: ModelServer) -> None:
    words = ("migrate", other, notes, "--on-conflict", "append", "--dry-run", "--json")
    done = report(run(*words, "--embedder", "notes"))
    assert done["embedded"]["texts"] == 120
    assert done["embedded"]["tokens"] > 0
    assert embedder.requests == []


@pytest.mark.slow
def test_embedder_of_another_model_is_refused(
    run: Run, other: str, target: str, embedder: ModelServer
) -> None:
    fails(run("migrate", other, target, "--embedder", "large"), 2, "makes vectors of large")
    fails(run("migrate", other, target, "--embedder", "note"), 2, "did you mean 'notes'?")
    embedder._replies.append(embedded(16))
    fails(run("migrate", other, target, "--embedder", "notes"), 2, "16 dimensions")
    assert contents(target) == {}


@pytest.mark.slow
def test_copy_goes_on_where_an_embedder_failed(
    run: Run, tmp_path: Path, target: str, embedder: ModelServer
) -> None:
    other = archive(tmp_path / "o.ndjson", Embedding("text-large", 8), samples.entries(2500))
    broken = Reply({"error": {"message": "out of memory"}}, 500)
    embedder._replies.extend([embedded()] * 25)
    embedder._replies.append(broken)
    fails(run("migrate", other, target, "--embedder", "notes"), 3, "'notes' failed", "again")
    written = len(contents(target)[ADA])
    assert 0 < written < 2500
    embedder.requests.clear()
    done = report(run("migrate", other, target, "--embedder", "notes", "--json"))
    assert done["embedded"]["texts"] == 2500 - written
    assert len(contents(target)[ADA]) == 2500


@pytest.mark.slow
@pytest.mark.usefixtures("embedder")
def test_facts_without_a_vector_need_an_embedder(run: Run, tmp_path: Path, target: str) -> None:
    facts = samples.entries(10)
    bare = facts[3]._replace(message=without_vector(facts[3].message))
    other = archive(tmp_path / "o.ndjson", Embedding("notes-8", 8), [*facts[:3], bare, *facts[4:]])
    fails(run("migrate", other, target), 9, "without a vector of 8 dimensions: 1", bare.id)
    done = report(run("migrate", other, target, "--embedder", "notes", "--json"))
    assert done["embedded"]["texts"] == 1
    found = contents(target)[ADA]
    assert found[facts[2].id] == facts[2].message
    assert decode_vector(vector_of(found[bare.id]) or "") == server.vector_of("message 3")


@pytest.mark.slow
def test_embedders_are_checked(run: Run, embedder: ModelServer) -> None:
    found = report(run("config", "check", "--json"))
    assert {(one["what"], one["name"], one["note"]) for one in found["checks"]} == {
        ("embedder", "notes", "8 dimensions"),
        ("embedder", "large", "8 dimensions"),
    }
    embedder._replies.extend([Reply({"error": {"message": "no"}}, 401)] * 2)
    found = report(run("config", "check", "--json"), 3)
    assert {one["error"]["code"] for one in found["checks"]} == {"unavailable"}
