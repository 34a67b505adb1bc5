"""The stores of ReMe 0.2 and 0.3: what a node is as a fact, damage, and names that are refused."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from memctl.dialects.fact import build, encode_vector
from memctl.model import MemoryKey, StoredMessage
from tests.summarizers.server import ModelServer, embedded
from tests.support.cli import Run, contents, fails, fill, report
from tests.support.files import files, texts

TIMES = {"time_created": "2026-01-01 10:00:00", "time_modified": "2026-01-02 10:00:00"}
VECTOR = [0.1, 1e-9, -0.0012345678901234567]


def node2(id: str, **metadata: Any) -> dict[str, Any]:
    """Return a node as ReMe 0.2 writes it."""
    kept = {"memory_type": "task", "content": f"text of {id}", "score": 0.5, **TIMES, "author": ""}
    return {
        "unique_id": id,
        "workspace_id": "ada",
        "content": f"when {id}",
        "vector": VECTOR,
        "metadata": {**kept, "metadata": "{}", **metadata},
    }


def write2(folder: Path, *nodes: Any, user: str = "ada") -> Path:
    """Write a workspace as ReMe 0.2 does; a text is a line as it is."""
    folder.mkdir(exist_ok=True)
    lines = [one if isinstance(one, str) else json.dumps(one) + "\n" for one in nodes]
    path = folder / f"{user}.jsonl"
    path.write_text("".join(lines))
    return path


def write3(folder: Path, *ids: str, **metadata: Any) -> Path:
    """Write a collection as ReMe 0.3 does."""
    place = folder / "vector_store" / "reme"
    place.mkdir(parents=True)
    for id in ids:
        kept = {"memory_type": "personal", "memory_target": "ada", **TIMES, "score": 0.0}
        node = {"vector_id": id, "content": f"text of {id}", "vector": VECTOR}
        node["metadata"] = {**kept, **metadata}
        (place / f"{id}.json").write_text(json.dumps(node, indent=2))
    return place


def test_a_node_of_0_2_is_a_fact(tmp_path: Path) -> None:
    write2(tmp_path / "s", node2("1", extra={"when_to_use": 1}, when_to_use="mine"))
    [(key, [found])] = contents(f"reme:{tmp_path / 's'}").items()
    assert key == MemoryKey("ada", "")
    assert json.loads(found.message) == {
        "id": "1",
        "text": "text of 1",
        "created_at": "2026-01-01 10:00:00",
        "updated_at": "2026-01-02 10:00:00",
        "metadata": {
            "when_to_use": "when 1",
            "memory_type": "task",
            "score": 0.5,
            "author": "",
            "metadata": "{}",
            "extra": {"when_to_use": 1},
            "_when_to_use": "mine",
        },
        "vector": encode_vector(VECTOR),
    }


ODD = [
    node2("1"),
    '{"unique_id":"2","content":"c", "vector":null,"metadata":{"memory_type":"task"}}\r\n',
    "\n",
    node2("3", text='a "vector": [1] in it', vector=[1]),
    node2("1", content="the later one"),
    json.dumps(node2("4")),  # the last line does not end
]


def test_lines_come_back_byte_for_byte(run: Run, tmp_path: Path) -> None:
    path = write2(tmp_path / "s", *ODD)
    place, before = f"reme:{tmp_path / 's'}", path.read_bytes()
    assert {one.id for one in contents(place)[MemoryKey("ada", "")]} == {"1", "2", "3", "4"}
    for ids in (["1"], ["4"], ["2", "3"], ["1", "2", "3", "4"]):
        words = [word for id in ids for word in ("--id", id)]
        done = report(run("delete", place, *words, "--yes", "--json"))["run"]
        assert path.read_bytes() != before
        assert run("undo", done, "--store", place).exit_code == 0
        assert path.read_bytes() == before


def test_lines_of_several_scopes_come_back_byte_for_byte(run: Run, tmp_path: Path) -> None:
    """Whichever stay between them, and which scope is first."""

    def line(number: int, session: str) -> Any:
        about = {"memctl": {"session": session, "part": "", "fact": {}}}
        return node2(str(number), metadata=json.dumps(about))

    sessions = ["b", "c", "a", "", "b", "c", "a"]
    lines = [line(number, name) for number, name in enumerate(sessions)]
    path = write2(tmp_path / "s", lines[0], "\n", *lines[1:3], "damaged\n", *lines[3:])
    place, before = f"reme:{tmp_path / 's'}", path.read_bytes()
    for selected in (["a", "b"], ["a", "b", "c"], ["b", "c"]):
        words = [word for name in selected for word in ("--session", name)]
        done = report(run("delete", place, *words, "--yes", "--json"))
        assert done["memories"]["written"] == len(selected)
        assert path.read_bytes() != before
        undone = report(run("undo", done["run"], "--yes", "--json"))
        assert undone["memories"]["written"] == len(selected)
        assert path.read_bytes() == before


def test_an_undone_replacement_is_byte_for_byte(run: Run, tmp_path: Path) -> None:
    source, target = tmp_path / "s", tmp_path / "t"
    write2(source, node2("1", author="new"), node2("9"))
    path = write2(target, *ODD)
    before = path.read_bytes()
    words = ("--on-conflict", "replace", "--yes")
    assert run("migrate", f"reme:{source}", f"reme:{target}", *words).exit_code == 0
    assert len(path.read_text().splitlines()) == 3  # one is empty
    assert run("undo", "--yes").exit_code == 0
    assert {one.id for one in contents(f"reme:{target}")[MemoryKey("ada", "")]} == set("1234")
    assert path.read_bytes() == before


def test_erase_removes_the_files(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "s"
    write2(folder, node2("1"), "half a li", user="ada")
    write2(folder, node2("2"), user="bob")
    write2(folder, user="eve")
    for user in ("ada", "eve"):
        assert run("erase", f"reme:{folder}", "--user", user, "--yes").exit_code == 0
    assert [path.name for path in folder.iterdir()] == ["bob.jsonl"]
    place = write3(tmp_path / "r", "1", "2")
    assert run("erase", f"reme:{tmp_path / 'r'}", "--user", "ada", "--yes").exit_code == 0
    assert list(place.iterdir()) == []


def test_doctor_finds_damage(run: Run, tmp_path: Path) -> None:
    one, other = node2("5"), node2("6")
    one["vector"], other["vector"] = None, [1.0]
    write2(tmp_path / "s", *ODD[:5], node2("7"), one, other, '{"unique_id": "8", "vec')
    found = {
        one["code"]: one
        for one in report(run("doctor", f"reme:{tmp_path / 's'}", "--json"), 6)["findings"]
    }
    assert found["damaged-fact"]["ids"] == ["line 9"]
    assert found["fact-without-vector"]["ids"] == ["2", "5"]
    assert found["vector-dimensions"]["ids"] == ["6"]
    assert found["repeated-fact"]["ids"] == ["1"]
    fails(run("export", f"reme:{tmp_path / 's'}", "-o", "-"), 8, "line 9")
    place = write3(tmp_path / "r", "1", "2", "3")
    (place / "2.json").write_text('{"vector_id": "2", "conte')
    (place / "3.json").rename(place / "4.json")
    found3 = report(run("doctor", f"reme:{tmp_path / 'r'}", "--json"), 6)["findings"]
    damaged = [one["ids"] for one in found3 if one["code"] == "damaged-fact"]
    assert sorted(damaged) == [["2"], ["4"]]


def test_files_come_back_byte_for_byte(run: Run, tmp_path: Path) -> None:
    place = write3(tmp_path / "r", "1", "2", unknown="kept")
    (place / "1.json").chmod(0o640)
    before = files(place)
    done = report(run("delete", f"reme:{tmp_path / 'r'}", "--id", "1", "--yes", "--json"))["run"]
    assert files(place).keys() == {"2.json"}
    assert run("undo", done, "--store", f"reme:{tmp_path / 'r'}").exit_code == 0
    assert {n: one[:2] for n, one in files(place).items()} == {
        n: one[:2] for n, one in before.items()
    }


@pytest.mark.parametrize("id", ["../out", "a/b", "/etc/x", ".", "..", "", "a\0b", ".x", "é" * 200])
def test_ids_that_are_no_names_of_files_are_refused(run: Run, tmp_path: Path, id: str) -> None:
    source, target = tmp_path / "s", tmp_path / "in" / "r"
    write2(source, node2(id))
    target.parent.mkdir()
    found = run("migrate", f"reme:{source}", f"reme:{target}?layout=0.3")
    fails(found, 7, "could not be written")
    assert files(tmp_path / "in") == {}


@pytest.mark.parametrize("user", ["../out", "a/b", "a\0b", "é" * 200])
def test_users_that_are_no_names_of_files_are_refused(run: Run, tmp_path: Path, user: str) -> None:
    fact = StoredMessage("1", build({"id": "1", "text": "t"}))
    asyncio.run(fill(str(tmp_path / "a.ndjson"), {}))
    asyncio.run(fill(f"vault:{tmp_path / 'v'}", {MemoryKey("x", ""): [fact]}))
    archive = tmp_path / "b.ndjson"
    assert run("export", f"vault:{tmp_path / 'v'}", "-o", archive).exit_code == 0
    archive.write_text(archive.read_text().replace('"user":"x"', f'"user":{json.dumps(user)}'))
    (tmp_path / "in").mkdir()
    found = run("import", archive, f"reme:{tmp_path / 'in' / 'r'}?layout=0.2")
    assert found.exit_code in (7, 8), found.stderr
    assert texts(tmp_path / "in") == {}


FOREIGN = {
    "id": "b1e2",
    "text": "Ada lives in Kyoto",
    "created_at": "2026-01-01T10:00:00.123-08:00",
    "updated_at": "2026-01-02T10:00:00Z",
    "metadata": {"hash": "h", "when_to_use": ["odd"], "content": "c", "n": None, "memory_type": 1},
    "entities": [{"id": "e", "text": "Kyoto", "type": "PROPER"}],
    "history": [{"event": "ADD"}],
    "vector": encode_vector([0.5, 0.25]),
}


@pytest.mark.parametrize("layout", ["0.2", "0.3"])
def test_facts_of_other_systems_come_back(tmp_path: Path, layout: str) -> None:
    place = f"reme:{tmp_path / 'r'}?layout={layout}"
    key = MemoryKey("ada", "run 1", "friday")
    facts = [
        StoredMessage("b1e2", build(FOREIGN)),
        StoredMessage("bare", build({"id": "bare", "text": ""})),
    ]
    asyncio.run(fill(place, {key: facts}))
    found = contents(f"reme:{tmp_path / 'r'}")
    assert {one.id: one.message for one in found[key]} == {one.id: one.message for one in facts}


def test_a_change_by_reme_counts(tmp_path: Path) -> None:
    place = tmp_path / "r"
    asyncio.run(
        fill(
            f"reme:{place}?layout=0.2",
            {MemoryKey("ada", "s"): [StoredMessage("1", build(FOREIGN))]},
        )
    )
    [path] = place.iterdir()
    node = json.loads(path.read_text())
    node["metadata"]["content"] = node["content"] = "Ada lives in Nara"
    path.write_text(json.dumps(node) + "\n")
    [(key, [found])] = contents(f"reme:{place}").items()
    fact = json.loads(found.message)
    assert (key, fact["text"]) == (MemoryKey("ada", "s"), "Ada lives in Nara")
    assert fact["metadata"]["hash"] == "h"


def test_layouts_are_found_and_named(run: Run, tmp_path: Path) -> None:
    place = write3(tmp_path / "r", "1")
    for name in ("r", "r/vector_store"):
        [one] = report(run("inspect", f"reme:{tmp_path / name}", "--json"))["memories"]
        assert one["user"] == "ada"
    (place.parent / "other").mkdir()
    (place / "1.json").rename(place.parent / "other" / "1.json")
    assert run("inspect", f"reme:{tmp_path / 'r'}").exit_code == 0
    (place / "2.json").write_text((place.parent / "other" / "1.json").read_text())
    fails(run("inspect", f"reme:{tmp_path / 'r'}"), 2, "several collections: other, reme")
    assert run("inspect", f"reme:{tmp_path / 'r'}?collection=other").exit_code == 0
    fails(run("inspect", f"reme:{tmp_path / 'r'}?collection=../x"), 2, "not the name")
    (tmp_path / "r" / "daily").mkdir()
    fails(run("inspect", f"reme:{tmp_path / 'r'}"), 2, "several versions of ReMe")
    assert run("inspect", f"reme:{tmp_path / 'r'}?layout=vault").exit_code == 0
    fails(run("inspect", f"reme:{tmp_path / 'r'}?layout=0.1"), 2, "layout=0.1 is unknown")


def test_another_program_at_work_is_noticed(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from memctl.stores.reme import lines

    path = write2(tmp_path / "s", node2("1"), node2("2"))
    merged = lines._merged

    def busy(*arguments: Any) -> Any:
        yield from merged(*arguments)
        with path.open("a") as file:
            file.write(json.dumps(node2("3")) + "\n")

    monkeypatch.setattr(lines, "_merged", busy)
    found = run("delete", f"reme:{tmp_path / 's'}", "--id", "1", "--yes")
    fails(found, 3, "another program has changed ada.jsonl meanwhile")
    assert [json.loads(line)["unique_id"] for line in path.open()] == ["1", "2", "3"]


def test_a_fact_is_restored_whatever_became_of_others(run: Run, tmp_path: Path) -> None:
    write3(tmp_path / "r", "1", "2", "3")
    place = f"reme:{tmp_path / 'r'}"
    before = texts(tmp_path / "r")
    done = report(run("delete", place, "--id", "2", "--id", "3", "--yes", "--json"))["run"]
    later = report(run("delete", place, "--id", "1", "--yes", "--json"))["run"]
    fails(run("undo", done), 5, "it seems to have been recreated")  # the fact that stayed is gone
    assert run("undo", done, "--store", place).exit_code == 0
    assert {one.id for one in contents(place)[MemoryKey("ada", "")]} == {"2", "3"}
    assert run("undo", later).exit_code == 0
    assert texts(tmp_path / "r") == before


@pytest.mark.parametrize("layout", ["0.2", "0.3"])
def test_metadata_that_would_be_taken_for_the_text_comes_back(tmp_path: Path, layout: str) -> None:
    metadata = {"memory_type": "personal", "content": "mine", "score": 1, "author": "me"}
    times = {"created_at": TIMES["time_created"], "updated_at": TIMES["time_modified"]}
    fact = StoredMessage("1", build({"id": "1", "text": "t", **times, "metadata": metadata}))
    asyncio.run(fill(f"reme:{tmp_path}?layout={layout}", {MemoryKey("ada", ""): [fact]}))
    [[found]] = contents(f"reme:{tmp_path}").values()
    assert json.loads(found.message) == json.loads(fact.message)


def test_vectors_are_made_of_when_to_use(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = node2("1") | {"vector": None}
    write2(tmp_path / "s", bare, node2("2"))
    place = write3(tmp_path / "r", "3")
    with ModelServer(*[embedded(3)] * 3) as server:
        config = tmp_path / "memctl.toml"
        config.write_text(
            f'[embedders.small]\nkind = "openai"\nmodel = "m"\nbase_url = "{server.url}"\n'
        )
        monkeypatch.setenv("MEMCTL_CONFIG", str(config))
        words = ("migrate", f"reme:{tmp_path / 's'}", f"reme:{tmp_path / 'r'}")
        fails(run(*words), 9, "--embedder")
        assert run(*words, "--embedder", "small").exit_code == 0
    asked = [text for one in server.requests for text in one.body["input"]]
    assert "when 1" in asked
    assert "text of 1" not in asked
    assert len(json.loads((place / "1.json").read_text())["vector"]) == 3
