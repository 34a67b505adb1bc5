"""The vector stores that the real ReMe 0.2 and 0.3 wrote, and read again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import Run, fails, report
from tests.support.files import files, texts
from tests.support.reme import Library

TEXTS = ["Alice drinks green tea 😀", "Bob repairs bicycles", "The office opens at nine"]
WHEN = ["when she is offered a drink", "when something is broken", "before going to work"]


@pytest.fixture
def lines(reme2: Library, tmp_path: Path) -> Path:
    """A store of ReMe 0.2 with two workspaces."""
    folder = tmp_path / "local_vector_store"
    for workspace in ("alice", "team a"):
        memories: list[dict[str, Any]] = [
            {"memory_type": kind, "when_to_use": when, "content": text, "author": "me"}
            for kind, when, text in zip(("task", "personal", "task"), WHEN, TEXTS, strict=True)
        ]
        memories[0]["metadata"] = {"freq": 2, "tags": ["a"]}
        call = {"tool_name": "find", "input": {"q": 1}, "output": "found"}
        memories.append(
            {"memory_type": "tool", "when_to_use": "find", "content": "Use it.", "score": 0.5}
            | {"tool_call_results": [call]}
        )
        reme2("write", folder, workspace=workspace, memories=memories)
    return folder


@pytest.fixture
def collection(reme3: Library, tmp_path: Path) -> Path:
    """A working folder of ReMe 0.3 with memories of a user and of a task."""
    folder = tmp_path / ".reme"
    alice = [
        {"user_name": "alice", "memory_content": text, "when_to_use": when if at else ""}
        for at, (text, when) in enumerate(zip(TEXTS, WHEN, strict=True))
    ]
    task = {"task_name": "cook", "memory_content": "Boil water first", "author": "me", "n": 3}
    reme3("write", folder, memories=[*alice, task])
    return folder


ALICE = {"user_name": "alice"}
COOK = {"task_name": "cook"}


def found_by_2(reme2: Library, folder: Path, workspace: str) -> list[list[str]]:
    """Return what ReMe finds for each text."""
    return [reme2("search", folder, workspace=workspace, query=text) for text in (*TEXTS, *WHEN)]


def found_by_3(reme3: Library, folder: Path) -> list[list[str]]:
    """Return what ReMe finds of alice's memories for each text."""
    return [reme3("search", folder, target=ALICE, query=text) for text in (*TEXTS, *WHEN)]


def test_lines_are_carried_deleted_and_brought_back(
    run: Run, reme2: Library, lines: Path, tmp_path: Path
) -> None:
    place = f"reme:{lines}"
    found = report(run("inspect", place, "--json"))
    assert {one["user"]: one["messages"] for one in found["memories"]} == {"alice": 4, "team a": 4}
    assert run("doctor", place).exit_code == 0
    archive, copy = tmp_path / "a.ndjson", tmp_path / "copy"
    assert run("export", place, "-o", archive).exit_code == 0
    assert run("import", archive, f"reme:{copy}?layout=0.2").exit_code == 0
    assert run("verify", place, f"reme:{copy}").exit_code == 0
    assert reme2("list", copy) == ["alice", "team a"]
    for workspace in ("alice", "team a"):
        kept = reme2("read", lines, workspace=workspace)
        assert reme2("read", copy, workspace=workspace) == nearly_all(kept)
        assert found_by_2(reme2, copy, workspace) == found_by_2(reme2, lines, workspace)
    before = texts(lines)
    select = ("--user", "alice", "--match", "Bob")
    done = report(run("delete", place, *select, "--yes", "--json"))["run"]
    left = reme2("read", lines, workspace="alice")
    assert sorted(one["content"] for one in left.values()) == sorted(
        [TEXTS[0], TEXTS[2], "Use it."]
    )
    assert run("undo", done, "--store", place).exit_code == 0
    assert texts(lines) == before


NEW = "Ålice@example.com 😀"


def test_lines_of_a_renamed_workspace_are_found(run: Run, reme2: Library, lines: Path) -> None:
    before, there = found_by_2(reme2, lines, "alice"), texts(lines)
    kept = reme2("read", lines, workspace="alice")
    found = report(run("rename", f"reme:{lines}", "--user", "alice", NEW, "--yes", "--json"))
    assert found["memories"]["written"] == 1
    assert sorted(reme2("list", lines)) == sorted([NEW, "team a"])
    assert found_by_2(reme2, lines, NEW) == before
    read = reme2("read", lines, workspace=NEW)
    assert read == {id: one | {"workspace_id": NEW} for id, one in kept.items()}
    assert b"alice" not in b"".join(texts(lines).values())
    report(run("undo", found["run"], "--json"))
    assert texts(lines) == there


def test_collection_of_a_renamed_user_is_found(run: Run, reme3: Library, collection: Path) -> None:
    before, cook = found_by_3(reme3, collection), reme3("read", collection, target=COOK)
    there = texts(collection)
    profile = collection / "profile" / "reme" / "alice.json"
    profile.parent.mkdir(parents=True)
    profile.write_text("[]")
    done = run("rename", f"reme:{collection}", "--user", "alice", NEW, "--yes", "--json")
    assert f"{profile} keeps the old name" in done.stderr
    profile.unlink()
    target = {"user_name": NEW}
    ids = [reme3("search", collection, target=target, query=text) for text in (*TEXTS, *WHEN)]
    assert ids == before
    assert reme3("read", collection, target=ALICE) == {}
    assert reme3("read", collection, target=COOK) == cook
    report(run("undo", report(done)["run"], "--json"))
    assert found_by_3(reme3, collection) == before
    assert texts(collection).keys() == there.keys()


def nearly_all(memories: Any) -> Any:
    """Return memories with vectors of floats of 32 bits."""
    return {
        id: memory | {"vector": pytest.approx(memory["vector"], abs=1e-6)}
        for id, memory in memories.items()
    }


def test_reme_goes_on_with_its_lines(run: Run, reme2: Library, lines: Path, tmp_path: Path) -> None:
    dump = tmp_path / "dump"
    done = reme2("action", lines, workspace="alice", action="dump", path=str(dump))
    assert done == "{'size': 4}"
    fails(run("inspect", f"reme:{dump}?layout=0.2"), 8, "ReMe's dump")
    (lines / "team a.jsonl").unlink()
    before = texts(lines)
    assert run("delete", f"reme:{lines}", "--user", "alice", "--yes").exit_code == 0
    assert texts(lines) == {"alice.jsonl": b""}
    assert reme2("read", lines, workspace="alice") == {}
    assert run("undo", "--yes").exit_code == 0
    assert texts(lines) == before
    [id] = reme2(
        "write", lines, workspace="alice", memories=[{"content": "new", "when_to_use": "x"}]
    )
    assert id in reme2("read", lines, workspace="alice")
    found = json.loads(run("inspect", f"reme:{lines}", "--user", "alice", "--json").stdout)
    assert found["totals"]["messages"] == 5


def test_collections_are_carried_deleted_and_brought_back(
    run: Run, reme3: Library, collection: Path, tmp_path: Path
) -> None:
    place = f"reme:{collection}"
    found = report(run("inspect", place, "--json"))
    assert {one["user"]: one["messages"] for one in found["memories"]} == {"alice": 3, "cook": 1}
    assert run("doctor", place).exit_code == 0
    archive, copy = tmp_path / "a.ndjson", tmp_path / "copy"
    assert run("export", place, "-o", archive).exit_code == 0
    assert run("import", archive, f"reme:{copy}?layout=0.3").exit_code == 0
    assert run("verify", place, f"reme:{copy}").exit_code == 0
    for target in (ALICE, COOK):
        kept = reme3("read", collection, target=target)
        assert reme3("read", copy, target=target) == nearly_all(kept)
    before = files(collection)
    done = report(run("delete", place, "--match", "Bob", "--yes", "--json"))["run"]
    left = reme3("read", collection, target=ALICE)
    assert sorted(one["content"] for one in left.values()) == sorted([TEXTS[0], TEXTS[2]])
    assert run("undo", done, "--store", place).exit_code == 0
    assert {n: one[:2] for n, one in files(collection).items()} == {
        n: one[:2] for n, one in before.items()
    }
    assert found_by_3(reme3, copy) == found_by_3(reme3, collection)


def test_memories_go_from_0_2_to_0_3_and_back(
    run: Run, reme2: Library, reme3: Library, lines: Path, tmp_path: Path
) -> None:
    new, back = tmp_path / "new", tmp_path / "back"
    assert (
        run("migrate", f"reme:{lines}", f"reme:{new}?layout=0.3", "--user", "alice").exit_code == 0
    )
    assert run("verify", f"reme:{lines}", f"reme:{new}", "--user", "alice").exit_code == 0
    old = reme2("read", lines, workspace="alice")
    personal = reme3("read", new, target=ALICE)
    tasks = reme3("read", new, target={"task_name": "alice"})
    tools = reme3("read", new, target={"tool_name": "alice"})
    assert (len(personal), len(tasks), len(tools)) == (1, 2, 1)
    for id, one in (personal | tasks | tools).items():
        assert (one["content"], one["when_to_use"]) == (old[id]["content"], old[id]["when_to_use"])
        assert one["vector"] == pytest.approx(old[id]["vector"], abs=1e-6)
    [best, *_] = reme3("search", new, target=ALICE, query=WHEN[1])
    assert old[best]["content"] == TEXTS[1]
    # A search of ReMe writes a score into the memory, and leaves the rest as it is.
    assert run("migrate", f"reme:{new}", f"reme:{back}?layout=0.2").exit_code == 0
    assert reme2("read", back, workspace="alice") == nearly_all(old)
    assert found_by_2(reme2, back, "alice") == found_by_2(reme2, lines, "alice")


def test_memories_go_from_0_3_to_0_2_and_back(
    run: Run, reme2: Library, reme3: Library, collection: Path, tmp_path: Path
) -> None:
    old, back = tmp_path / "old", tmp_path / "back"
    assert run("migrate", f"reme:{collection}", f"reme:{old}?layout=0.2").exit_code == 0
    there = reme3("read", collection, target=ALICE)
    found = reme2("read", old, workspace="alice")
    assert {id: one["content"] for id, one in found.items()} == {
        id: one["content"] for id, one in there.items()
    }
    assert all(one["memory_type"] == "personal" for one in found.values())
    [best, *_] = reme2("search", old, workspace="alice", query=TEXTS[0])
    assert found[best]["content"] == TEXTS[0]
    assert run("migrate", f"reme:{old}", f"reme:{back}?layout=0.3").exit_code == 0
    for target in (ALICE, COOK):
        kept = reme3("read", collection, target=target)
        assert reme3("read", back, target=target) == nearly_all(kept)


def test_reme_ends_with_what_memctl_wrote(
    run: Run, reme3: Library, collection: Path, tmp_path: Path
) -> None:
    """ReMe rewrites all files of a collection when it ends, and removes those it did not read."""
    new = tmp_path / "new"
    assert run("migrate", f"reme:{collection}", f"reme:{new}?layout=0.3").exit_code == 0
    [gone, *_] = reme3("read", new, target=ALICE)
    reme3("delete", new, id=gone)
    assert len(list((new / "vector_store" / "reme").iterdir())) == 3
    left = report(run("verify", f"reme:{collection}", f"reme:{new}", "--json"), 6)
    assert left["memories"] == {"same": 1, "different": 1, "missing": 0, "extra": 0}


def test_vectors_of_a_vault_are_made(run: Run, reme4: Library, lines: Path, tmp_path: Path) -> None:
    """Facts of vectors become files, which ReMe 0.4 finds by their words."""
    vault = tmp_path / "vault"
    done = run("migrate", f"reme:{lines}", f"reme:{vault}?layout=vault", "--user", "alice")
    assert done.exit_code == 0, done.stderr
    found = reme4("read", vault, queries=["bicycles"])
    [path] = found["queries"]["bicycles"]
    assert path.startswith("digest/imported/alice/-/-/")
    assert found["files"][path]["chunks"] == [TEXTS[1]]
    assert found["files"][path]["front"]["description"] == TEXTS[1]


def redact(run: Run, place: str, url: str, folder: Path) -> None:
    """Take "Bob" and "drink" out of a store; the model at ``url`` makes the vectors."""
    settings = folder / "config.toml"
    settings.write_text(
        f'[embedders.small]\nkind = "openai"\nmodel = "all-MiniLM-L6-v2"\nbase_url = "{url}"\n'
    )
    words = ("--match", "Bob", "--match", "drink", "--embedder", "small", "--config", settings)
    done = run("redact", place, *words, "--yes")
    assert done.exit_code == 0, done.output
    assert run("doctor", place).exit_code == 0


def redacted(texts: list[str]) -> list[str]:
    return [
        one.replace("Bob", "[redacted:text]").replace("drink", "[redacted:text]") for one in texts
    ]


def by_text(memories: dict[str, Any]) -> dict[str, tuple[str, Any]]:
    """Return the text and the vector of memories, by the text from which the vector is made."""
    found = {}
    for one in memories.values():
        vector = pytest.approx(one["vector"], abs=1e-5)
        found[one["when_to_use"] or one["content"]] = (one["content"], vector)
    return found


def test_redacted_lines_have_the_vectors_of_their_texts(
    run: Run, reme2: Library, lines: Path, tmp_path: Path
) -> None:
    redact(run, f"reme:{lines}", reme2("embedder", lines), tmp_path)
    fresh = tmp_path / "fresh"
    memories = [
        {"memory_type": "task", "when_to_use": when, "content": text, "author": "me"}
        for when, text in zip(redacted(WHEN), redacted(TEXTS), strict=True)
    ]
    reme2("write", fresh, workspace="alice", memories=memories)
    expected = by_text(reme2("read", fresh, workspace="alice"))
    found = by_text(reme2("read", lines, workspace="alice"))
    del found["find"]
    assert {when: (text, one.expected) for when, (text, one) in found.items()} == expected
    assert "Bob" not in str(texts(lines))


def test_redacted_collection_has_the_vectors_of_its_texts(
    run: Run, reme3: Library, collection: Path, tmp_path: Path
) -> None:
    redact(run, f"reme:{collection}", reme3("embedder", collection), tmp_path)
    fresh = tmp_path / "fresh"
    memories = [
        {"user_name": "alice", "memory_content": text, "when_to_use": when if at else ""}
        for at, (text, when) in enumerate(zip(redacted(TEXTS), redacted(WHEN), strict=True))
    ]
    reme3("write", fresh, memories=memories)
    expected = by_text(reme3("read", fresh, target=ALICE))
    found = by_text(reme3("read", collection, target=ALICE))
    assert {when: (text, one.expected) for when, (text, one) in found.items()} == expected
    assert "Bob" not in str(files(collection))
