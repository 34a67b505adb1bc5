"""Facts that the real mem0 2.2.1 wrote, seen, carried, deleted and restored by memctl.

What memctl writes, the real ``Memory`` reads: it finds the same facts with the same scores.
"""

from __future__ import annotations

import json
import sqlite3
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.interop_mem0.conftest import Config, Configure, Mem0, store_of
from tests.stores.test_mem0 import make_older
from tests.support.cli import Run, fails, report

PROVIDERS = ["qdrant", "faiss", "chroma", "pgvector"]
CALLS: list[dict[str, Any]] = [
    {
        "messages": "My sister Maria lives in Kyoto",
        "user_id": "ada",
        "metadata": {"n": 3, "x": 1.5},
    },
    {
        "messages": "I play chess with Boris",
        "user_id": "ada",
        "run_id": "r1",
        "agent_id": "planner",
    },
    {"messages": "The house of Maria has a garden", "user_id": "ada", "infer": True},
    {"messages": "In the garden of Maria a dog sleeps", "user_id": "ada", "infer": True},
    {"messages": "Old news about Kyoto", "user_id": "bob", "expiration_date": "2024-01-01"},
    {"messages": "Answer briefly \U0001f600 \u4f1a\u8bdd", "agent_id": "p"},
]
QUERIES = ["where does Maria live?", "who has a garden, and a dog?", "games"]


@pytest.fixture(params=PROVIDERS)
def provider(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def filled(mem0: Mem0, config: Config) -> list[str]:
    """Have mem0 write facts and change one; return their ids."""
    ids: list[str] = mem0("add", config=config, calls=CALLS)
    assert len(ids) == len(CALLS)
    mem0.call(config, "update", memory_id=ids[0], text="My sister Maria lives in Osaka")
    return ids


def seen(mem0: Mem0, config: Config, ids: list[str]) -> dict[str, Any]:
    """Return what mem0 itself finds, lists and remembers."""
    return {
        "found": [mem0.search(config, query) for query in QUERIES],
        "of others": mem0.search(config, "Kyoto", "bob"),
        "all": {
            one["id"]: one
            for filters in ({"user_id": "ada"}, {"user_id": "bob"}, {"agent_id": "p"})
            for one in mem0.call(config, "get_all", filters=filters, top_k=100, show_expired=True)[
                "results"
            ]
        },
        "history": [mem0.call(config, "history", memory_id=id) for id in ids],
    }


def alike(one: dict[str, Any], other: dict[str, Any], *, ordered: bool = False) -> None:
    """Compare two dumps: payloads are the same, vectors to the last bit but one of a float.

    The links of an entity are a set to mem0; an undo restores their order, too.
    """
    for record in [] if ordered else [*one["entities"].values(), *other["entities"].values()]:
        record["payload"]["linked_memory_ids"].sort()
    assert one.keys() == other.keys()
    for collection in one:
        assert one[collection].keys() == other[collection].keys()
        for id, record in one[collection].items():
            assert record["payload"] == other[collection][id]["payload"]
            assert record["vector"] == pytest.approx(other[collection][id]["vector"], abs=1e-7)


def test_facts_are_inspected(run: Run, mem0: Mem0, configure: Configure, provider: str) -> None:
    config = configure(provider)
    ids = filled(mem0, config)
    found = report(run("inspect", store_of(config), "--json"))
    assert found["store"]["kind"] == "mem0"
    assert found["totals"]["messages"] == len(ids)
    names = {(one["user"], one["session"]): one["messages"] for one in found["memories"]}
    assert names == {("ada", ""): 3, ("ada", "r1"): 1, ("bob", ""): 1, ("", ""): 1}
    shown = run("inspect", store_of(config), "--messages", "--user", "ada", "--match", "Osaka")
    assert "My sister Maria lives in Osaka" in shown.stdout
    assert "Maria, Osaka" in shown.stdout  # its entities
    assert "chess" not in shown.stdout


def test_migrated_facts_are_found_as_before(
    run: Run, mem0: Mem0, configure: Configure, provider: str
) -> None:
    source, target = configure(provider, "one"), configure(provider, "two")
    ids = filled(mem0, source)
    before = seen(mem0, source, ids)
    assert before["found"][0][0]["id"] == ids[0]
    found = report(run("migrate", store_of(source), store_of(target), "--json"))
    assert found["messages"]["written"] == len(ids)
    again = report(run("migrate", store_of(source), store_of(target), "--json"))
    assert again["messages"].get("written", 0) == 0
    after = seen(mem0, target, ids)
    for one, other in zip(before["found"], after["found"], strict=True):
        assert [each["id"] for each in one] == [each["id"] for each in other]
        assert [each["score"] for each in one] == pytest.approx(
            [each["score"] for each in other], abs=1e-6
        )
    assert after["all"] == before["all"]
    assert after["history"] == before["history"]
    alike(mem0("dump", config=source), mem0("dump", config=target))


def test_facts_go_through_all_vector_stores_and_an_archive(
    run: Run, mem0: Mem0, configure: Configure, tmp_path: Path
) -> None:
    configs = [configure(name, str(at)) for at, name in enumerate([*PROVIDERS, "qdrant"])]
    ids = filled(mem0, configs[0])
    before = seen(mem0, configs[0], ids)
    for source, target in pairwise(configs[:-1]):
        report(run("migrate", store_of(source), store_of(target), "--json"))
        after = seen(mem0, target, ids)
        assert after["history"] == before["history"]
        assert {id: one["memory"] for id, one in after["all"].items()} == {
            id: one["memory"] for id, one in before["all"].items()
        }
        assert {one["id"] for one in after["found"][0]} == {one["id"] for one in before["found"][0]}
    archive = tmp_path / "facts.ndjson.zst"
    assert run("export", store_of(configs[-2]), "-o", str(archive)).exit_code == 0
    report(run("import", str(archive), store_of(configs[-1]), "--json"))
    assert run("verify", store_of(configs[0]), store_of(configs[-1])).exit_code == 0
    alike(mem0("dump", config=configs[0]), mem0("dump", config=configs[-1]))
    after = seen(mem0, configs[-1], ids)
    assert [one["id"] for one in after["found"][1]] == [one["id"] for one in before["found"][1]]


def test_deleted_facts_are_gone_until_they_are_restored(
    run: Run, mem0: Mem0, configure: Configure, provider: str
) -> None:
    config = configure(provider)
    ids = filled(mem0, config)
    before, dump = seen(mem0, config, ids), mem0("dump", config=config)
    store = store_of(config)
    assert any("Osaka" in one["payload"]["data"] for one in dump["entities"].values())
    deleted = report(run("delete", store, "--match", "Osaka", "--yes", "--json"))
    assert deleted["messages"]["deleted"] == 1
    assert mem0.call(config, "get", memory_id=ids[0]) is None
    assert mem0.call(config, "history", memory_id=ids[0]) == []
    assert ids[0] not in [one["id"] for one in mem0.search(config, QUERIES[0])]
    left = mem0("dump", config=config)["entities"]
    assert all(ids[0] not in one["payload"]["linked_memory_ids"] for one in left.values())
    assert {one["payload"]["data"] for one in left.values()} == {"Maria"}
    assert report(run("undo", "--store", store, "--yes", "--json"))["messages"]["restored"] == 1
    alike(mem0("dump", config=config), dump, ordered=True)
    after = seen(mem0, config, ids)
    assert after["all"] == before["all"]
    assert after["history"] == before["history"]
    assert [[one["id"] for one in found] for found in after["found"]] == [
        [one["id"] for one in found] for found in before["found"]
    ]


def test_erased_user_leaves_nothing(
    run: Run, mem0: Mem0, configure: Configure, provider: str, tmp_path: Path
) -> None:
    config = configure(provider)
    filled(mem0, config)
    receipt = tmp_path / "receipt.json"
    done = run("erase", "--user", "ada", store_of(config), "--yes", "--receipt", str(receipt))
    assert done.exit_code == 0, done.stderr
    dump = mem0("dump", config=config)
    assert {one["payload"].get("user_id") for one in dump["facts"].values()} == {"bob", None}
    assert dump["entities"] == {}
    with sqlite3.connect(config["history_db_path"]) as database:
        texts = database.execute("SELECT new_memory FROM history").fetchall()
        assert not [text for (text,) in texts if "Maria" in text or "chess" in text]
        assert database.execute("SELECT count(*) FROM messages").fetchone() == (0,)


def test_renamed_user_has_the_facts(
    run: Run, mem0: Mem0, configure: Configure, provider: str
) -> None:
    config = configure(provider)
    ids = filled(mem0, config)
    before, dump = seen(mem0, config, ids), mem0("dump", config=config)
    words = ("rename", store_of(config), "--user", "ada", "cleo", "--yes", "--json")
    found = report(run(*words))
    assert found["messages"]["changed"] == 4
    after = mem0("dump", config=config)
    payloads = [one["payload"] for name in ("facts", "entities") for one in after[name].values()]
    assert {one.get("user_id") for one in payloads} == {"bob", "cleo", None}
    assert [mem0.search(config, query) for query in QUERIES] == [[] for _ in QUERIES]
    for query, facts in zip(QUERIES, before["found"], strict=True):
        same = [one["id"] for one in mem0.search(config, query, "cleo")]
        assert same == [one["id"] for one in facts]
    with sqlite3.connect(config["history_db_path"]) as database:
        scopes = database.execute("SELECT DISTINCT session_scope FROM messages").fetchall()
    assert not [scope for (scope,) in scopes if "ada" in scope]
    report(run("undo", found["run"], "--json"))
    alike(mem0("dump", config=config), dump, ordered=True)


def test_mem0_goes_on_with_what_memctl_wrote(
    run: Run, mem0: Mem0, configure: Configure, provider: str
) -> None:
    source, target = configure("qdrant", "one"), configure(provider, "two")
    ids = filled(mem0, source)
    report(run("migrate", store_of(source), store_of(target), "--json"))
    mem0.call(target, "update", memory_id=ids[1], text="I play chess with Carla")
    mem0.call(target, "delete", memory_id=ids[2])
    [new] = mem0("add", config=target, calls=[{"messages": "I like Tea", "user_id": "ada"}])
    assert mem0.search(target, "Carla")[0]["memory"] == "I play chess with Carla"
    assert mem0.search(target, "hot drinks: tea")[0]["id"] == new
    differences = run("verify", store_of(source), store_of(target), "--json")
    assert differences.exit_code == 6
    events = [row["event"] for row in mem0.call(target, "history", memory_id=ids[1])]
    assert events == ["ADD", "UPDATE"]


def test_doctor_finds_what_mem0_leaves_behind(
    run: Run, mem0: Mem0, configure: Configure, provider: str
) -> None:
    config = configure(provider)
    ids = filled(mem0, config)
    mem0.call(config, "delete", memory_id=ids[0])  # by a Memory that has not opened the entities
    found = report(run("doctor", store_of(config), "--json"), 6)
    codes = {one["code"]: one["count"] for one in found["findings"]}
    assert codes == {"entity-link": 1, "expired-fact": 1}
    run("doctor", store_of(config), "--repair", "--yes")
    found = report(run("doctor", store_of(config), "--json"))
    assert {one["code"] for one in found["findings"]} == {"expired-fact"}
    assert {one["payload"]["data"] for one in mem0("dump", config=config)["entities"].values()} == {
        "Maria"
    }
    assert run("undo", "--store", store_of(config), "--yes").exit_code == 0
    assert "entity-link" in run("doctor", store_of(config)).stdout


def test_folder_that_mem0_has_open_is_read_and_not_written(
    run: Run, mem0: Mem0, configure: Configure
) -> None:
    config = configure("qdrant")
    ids = filled(mem0, config)
    pid = mem0("hold", config=config)
    try:
        store = store_of(config)
        assert report(run("inspect", store, "--json"))["totals"]["messages"] == len(ids)
        fails(run("delete", store, "--all", "--yes"), 75, f"pid {pid}", "stop the program")
        assert report(run("inspect", store, "--json"))["totals"]["messages"] == len(ids)
    finally:
        mem0("release")
    assert run("delete", store, "--all", "--yes").exit_code == 0


def test_collection_of_other_dimensions_is_refused(
    run: Run, mem0: Mem0, configure: Configure, provider: str
) -> None:
    config = configure(provider)
    filled(mem0, config)
    path = Path(store_of(config).removeprefix("mem0:"))
    if provider == "chroma":
        config["embedder"]["config"]["embedding_dims"] = 768
    else:
        config["vector_store"]["config"]["embedding_model_dims"] = 768
    path.write_text(json.dumps(config))
    fails(run("inspect", store_of(config)), 8, "384 dimensions", "768")


def test_backup_of_an_older_mem0_is_as_mem0_brings_it_up_to_date(
    run: Run, mem0: Mem0, configure: Configure, tmp_path: Path
) -> None:
    """The history has the columns of mem0 0.1.0; mem0 2 copies those that it knows."""
    source, target = configure("qdrant", "one"), configure("qdrant", "two")
    ids = filled(mem0, source)
    make_older(Path(source["history_db_path"]))
    backup = tmp_path / "backup.ndjson"
    exported = run("export", store_of(source), "-o", backup)
    assert exported.exit_code == 0
    assert "history of an older mem0" in exported.stderr
    fails(run("delete", store_of(source), "--all", "--yes"), 8, "open it once with mem0 2")
    before = seen(mem0, source, ids)  # brings it up to date
    assert run("import", backup, store_of(target)).exit_code == 0
    after = seen(mem0, target, ids)
    assert (after["all"], after["history"]) == (before["all"], before["history"])
    assert run("verify", store_of(source), backup).exit_code == 0


@pytest.mark.parametrize("provider", ["qdrant", "faiss", "pgvector"])
def test_redacted_facts_are_found_by_what_they_say_now(
    run: Run, mem0: Mem0, configure: Configure, provider: str, tmp_path: Path
) -> None:
    config = configure(provider)
    ids = filled(mem0, config)
    embedder = config["embedder"]["config"]
    settings = tmp_path / "config.toml"
    settings.write_text(
        f'[embedders.small]\nkind = "openai"\nmodel = "{embedder["model"]}"\n'
        f'base_url = "{embedder["openai_base_url"]}"\n'
    )
    words = ("redact", store_of(config), "--match", "Osaka", "--match", "Maria", "--yes")
    done = run(*words, "--embedder", "small", "--config", str(settings))
    assert done.exit_code == 0, done.output
    said = "My sister [redacted:text] lives in [redacted:text]"
    fresh = configure(provider, "fresh")
    [new] = mem0("add", config=fresh, calls=[{"messages": said, "user_id": "ada"}])
    written = mem0("dump", config=fresh)["facts"][new]
    record = mem0("dump", config=config)["facts"][ids[0]]
    assert record["vector"] == pytest.approx(written["vector"], abs=1e-5)
    for name in ("data", "hash", "text_lemmatized"):
        assert record["payload"][name] == written["payload"][name]
    [first, *_] = mem0.search(config, said)
    assert first["id"] == ids[0]
    history = mem0.call(config, "history", memory_id=ids[0])
    assert [one["new_memory"] for one in history][-1] == said
    assert "Osaka" not in json.dumps([mem0("dump", config=config), history])
    mem0.call(config, "update", memory_id=ids[0], text="Maria is back")
    assert mem0.search(config, "who is back?")[0]["id"] == ids[0]
