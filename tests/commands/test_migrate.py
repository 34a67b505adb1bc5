"""``memctl migrate``: what is new, what is in the way, what cannot be held."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from memctl.model import MemoryKey, StoredMessage
from memctl.registry import make_store, parse
from memctl.store import OpenMode
from memctl.testing import Place, samples
from tests.support.cli import FRIDAY, Run, contents, fails, fill, report
from tests.support.places import held
from tests.support.servers.pool import Servers

REPLACE = ("--on-conflict", "replace", "--yes")

ONE = MemoryKey("ada", "one")


def put(text: str, entries: list[StoredMessage], **about: object) -> None:
    """Write the one memory."""
    asyncio.run(fill(text, {ONE: entries}, **about))


@pytest.mark.slow
def test_migrate_everything_then_nothing_then_only_what_is_new(
    run: Run, database: str, target: str
) -> None:
    put(database, samples.entries(1500))
    first = report(run("migrate", database, target, "--json"))
    assert first["schema"] == "memctl/migrate/1"
    assert first["memories"] == {
        "selected": 1, "written": 1, "unchanged": 0, "skipped": 0, "failed": 0,
    }  # fmt: skip
    assert first["messages"]["written"] == 1500
    assert first["verified"] is True
    assert (first["dry_run"], first["failures"]) == (False, [])
    assert contents(target) == contents(database)
    again = report(run("migrate", database, target, "--json"))
    assert (again["memories"]["written"], again["memories"]["unchanged"]) == (0, 1)
    assert (again["messages"]["written"], again["messages"]["skipped"]) == (0, 1500)

    async def add() -> None:
        from memctl.testing.drive import write

        async with make_store(parse(database), OpenMode.CREATE) as store:
            more = samples.sample(ONE, samples.entries(7, start=1500))
            await write(store, [more], offset=1500)

    asyncio.run(add())
    third = report(run("migrate", database, target, "--json"))
    assert (third["messages"]["written"], third["messages"]["skipped"]) == (7, 1500)
    assert contents(target) == contents(database)


def test_migrate_dry_run_writes_nothing_and_reports_the_same(
    run: Run, filled: str, target: str, tmp_path: Path
) -> None:
    dry = report(run("migrate", filled, target, "--json", "--dry-run"))
    assert not (tmp_path / "target.db").exists()
    wet = report(run("migrate", filled, target, "--json"))
    assert dry.pop("dry_run") is True
    assert wet.pop("dry_run") is False
    assert wet.pop("verified") is True
    assert wet.pop("run")
    assert dry == wet


@pytest.mark.parametrize(
    "target",
    [
        "sqlite:///{0}/new.db?layout=langchain",
        "sqlite:///{0}/new.db?layout=openai-branches",
        "langchain:{0}/folder",
        "redis",
    ],
)
def test_migrate_dry_run_names_memories_whose_names_the_target_refuses(
    run: Run, servers: Servers, tmp_path: Path, target: str
) -> None:
    source = str(tmp_path / "source.db")
    memories = {ONE: samples.entries(3), MemoryKey("", "two"): samples.entries(2)}
    asyncio.run(fill(source, memories))
    if target == "redis":
        target = f"{servers.redis.fresh()}?layout=langchain"
    words = ("migrate", source, target.format(tmp_path), "--lossy", "--json")
    dry, wet = report(run(*words, "--dry-run"), 7), report(run(*words), 7)
    [failure] = dry["failures"]
    assert (failure["user"], failure["code"]) == ("ada", "bad-name")
    assert [dry[name] == wet[name] for name in ("failures", "memories", "messages")] == [True] * 3


CONFLICTS = {
    "another content": [samples.entry("m0000000", 99), *samples.entries(4, start=1)],
    "other marks": [samples.entry("m0000000", 0, ("other",)), *samples.entries(4, start=1)],
    "more messages": samples.entries(9),
    "another order": samples.entries(5)[::-1],
    "other messages": samples.entries(5, start=50),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("there", CONFLICTS.values(), ids=CONFLICTS)
def test_migrate_what_is_in_the_way_is_left_alone(
    run: Run, database: str, target: str, there: list[StoredMessage]
) -> None:
    put(database, samples.entries(5))
    asyncio.run(fill(database, {MemoryKey("bob", "two"): samples.entries(3)}))
    put(target, there)
    before = contents(target)[ONE]
    found = report(run("migrate", database, target, "--json", "--checksum"), 5)
    assert found["error"]["code"] == "conflict"
    assert [(row["user"], row["session"], row["code"]) for row in found["failures"]] == [
        ("ada", "one", "conflict")
    ]
    assert found["memories"]["written"] == 1, "the others were done"
    assert contents(target)[ONE] == before
    options = ("--checksum", "--on-conflict", "skip")
    skipped = report(run("migrate", database, target, "--json", *options))
    assert skipped["memories"]["skipped"] == 1
    assert contents(target)[ONE] == before


@pytest.mark.parametrize("there", list(CONFLICTS.values())[1:], ids=list(CONFLICTS)[1:])
def test_migrate_ids_order_and_marks_are_enough_to_see_it(
    run: Run, database: str, target: str, there: list[StoredMessage]
) -> None:
    put(database, samples.entries(5))
    put(target, there)
    found = report(run("migrate", database, target, "--json"), 5)
    assert found["memories"]["failed"] == 1
    assert found["failures"][0]["message"] == (
        "source and target differ within the first 5 messages"
        if len(there) == 5
        else "the target holds 9 messages, the source 5"
    )


@pytest.mark.slow
def test_migrate_content_is_compared_when_asked_for(run: Run, database: str, target: str) -> None:
    put(database, samples.entries(5))
    put(target, CONFLICTS["another content"])
    quick = report(run("migrate", database, target, "--json"))
    assert quick["memories"]["unchanged"] == 1
    assert "verified" not in quick, "nothing was written, nothing was read again"
    assert report(run("verify", database, target, "--json"), 6)["memories"]["different"] == 1
    fails(run("migrate", database, target, "--checksum"), 5, "different messages")
    options = (*REPLACE, "--json")
    assert report(run("migrate", database, target, *options))["verified"] is True
    assert run("verify", database, target).exit_code == 0


@pytest.mark.slow
def test_migrate_import_mends_what_was_edited(run: Run, database: str, tmp_path: Path) -> None:
    put(database, samples.entries(5))
    backup = tmp_path / "backup.ndjson"
    assert run("export", database, "-o", backup).exit_code == 0
    put(target := f"sqlite:///{tmp_path}/edited.db", CONFLICTS["another content"])
    fails(run("import", backup, target), 5, "different messages")
    assert run("import", backup, target, *REPLACE).exit_code == 0
    assert run("verify", database, target).exit_code == 0


@pytest.mark.slow
def test_migrate_append_brings_the_ids_that_lack(run: Run, database: str, target: str) -> None:
    put(database, samples.entries(5))
    put(target, [samples.entry("m0000001", 42), samples.entry("own", 43)])
    found = report(run("migrate", database, target, "--json", "--on-conflict", "append"))
    assert (found["messages"]["written"], found["messages"]["skipped"]) == (4, 1)
    ids = [entry.id for entry in contents(target)[ONE]]
    assert ids == ["m0000001", "own", "m0000000", "m0000002", "m0000003", "m0000004"]
    again = report(run("migrate", database, target, "--json", "--on-conflict", "append"))
    assert again["messages"]["written"] == 0


@pytest.mark.slow
def test_migrate_replace_makes_the_target_the_source(run: Run, database: str, target: str) -> None:
    put(database, samples.entries(5))
    put(target, [samples.entry("m0000001", 42), samples.entry("own", 43)])
    words = ("migrate", database, target, "--json", *REPLACE, "--no-backup")
    found = report(run(*words))
    assert (found["messages"]["written"], found["messages"]["deleted"]) == (5, 2)
    assert any("cannot be undone" in text for text in found["warnings"])
    assert [(e.id, e.message, e.marks) for e in contents(target)[ONE]] == [
        (e.id, e.message, tuple(sorted(e.marks))) for e in samples.entries(5)
    ]


@pytest.mark.slow
def test_migrate_replace_needs_yes_without_a_terminal(run: Run, database: str, target: str) -> None:
    """Only if a message of the target would be removed."""
    put(database, samples.entries(5))
    put(target, samples.entries(3))
    words = ("migrate", database, target, "--on-conflict", "replace")
    assert run(*words).exit_code == 0
    assert run("mark", "add", target, "seen", "--last", "1").exit_code == 0
    before = contents(target)
    fails(run(*words), 2, "refusing without confirmation: not a terminal", "use --yes")
    assert report(run(*words, "--json"), 2)["messages"]["written"] == 0
    assert contents(target) == before
    assert report(run(*words, "--dry-run", "--json"))["messages"]["deleted"] == 5
    assert report(run(*words, "--yes", "--json"))["messages"]["deleted"] == 5
    words = (*words, "--follow", "--no-backup")
    fails(run(*words), 2, "--follow cannot ask before each replacement", "add --yes")


@pytest.mark.parametrize(
    "selection",
    [("--last", "1"), ("--keep-last", "1"), ("--since", "2025-01-01"), ("--mark", "hint")],
    ids=" ".join,
)
@pytest.mark.parametrize("more", [(), ("--dry-run",)], ids=["", "dry"])
def test_migrate_replace_refuses_to_cut_a_memory(
    run: Run, database: str, target: str, selection: tuple[str, str], more: tuple[str, ...]
) -> None:
    put(database, samples.entries(5))
    put(target, samples.entries(3))
    before = contents(target)
    fails(run("migrate", database, target, *REPLACE, *selection, *more), 2)
    assert contents(target) == before
    done = run("migrate", database, target, *REPLACE, "--user", ONE.user, *more)
    assert done.exit_code == 0, done.stderr


def test_migrate_same_messages_written_otherwise_are_no_conflict(
    run: Run, database: str, target: str
) -> None:
    put(database, [StoredMessage("m", b'{"id": "m", "a": [1, 2.0], "b": "\\u00e9"}')])
    put(target, [StoredMessage("m", '{"b":"é","id":"m","a":[1,2.0]}'.encode())])
    found = report(run("migrate", database, target, "--json", "--checksum"))
    assert found["memories"]["unchanged"] == 1


def test_migrate_summary_needs_a_place(run: Run, database: str, tmp_path: Path) -> None:
    who = ("--user", "ada", "--session", "kyoto")
    fails(
        run("import", FRIDAY, database, *who), 9, "summaries", "'ada'/'kyoto'", "?state=", "--lossy"
    )
    assert not Path(database.removeprefix("sqlite:///")).exists(), "not even created"
    lossy = run("import", FRIDAY, database, *who, "--lossy", "--json")
    assert any("not copied" in text for text in report(lossy)["warnings"])
    (tmp_path / "states").mkdir()
    found = report(run("migrate", FRIDAY, f"{database}?state={tmp_path}/states", *who, "--json"))
    assert (found["memories"]["written"], found["messages"]["written"]) == (1, 0), "the summary"
    state = (tmp_path / "states" / "ada_kyoto.json").read_text()
    assert "Here is a summary" in state


def test_migrate_summary_reaches_what_came_from_a_store_without_them(
    run: Run, database: str, tmp_path: Path
) -> None:
    full, part = tmp_path / "full.ndjson", tmp_path / "part.ndjson"
    entries = [samples.entry("a", 1, ("hint",)), samples.entry("b", 2)]
    put(database, entries)
    put(str(full), entries, summary="what was said")
    assert run("migrate", database, part).exit_code == 0, "it names no summary"
    assert report(run("verify", full, part, "--json"), 6)["differences"][0]["code"] == "summary"
    found = report(run("migrate", full, part, "--json"))
    assert (found["memories"]["written"], found["verified"]) == (1, True)
    assert run("verify", full, part).exit_code == 0


COMPRESSED = [
    samples.entry(f"m{number}", number, ("compressed",) if number < 9 else ())
    for number in range(11)
]
FORGOTTEN = (
    "has 9 messages marked 'compressed', and not their summary (1 memory, such as 'ada'/'one')"
)


@pytest.mark.parametrize("layout", ["?layout=agentscope2", "sessions"])
def test_migrate_compressed_messages_need_their_summary(
    run: Run, database: str, tmp_path: Path, layout: str
) -> None:
    put(database, COMPRESSED)
    target = str(tmp_path / "new")
    if layout != "sessions":
        target = f"sqlite:///{target}.db{layout}"
    (tmp_path / "states").mkdir()
    fails(run("migrate", database, target), 9, FORGOTTEN, "?state=FOLDER", "--lossy")
    assert not list(tmp_path.glob("new*")), "the refused copy has not made its target"
    state = {"memory": {"_compressed_summary": "", "content": []}}
    path = tmp_path / "states" / "ada_one.json"
    path.write_text(json.dumps(state))
    fails(run("migrate", f"{database}?state={tmp_path}", target), 9, FORGOTTEN, "?state=FOLDER")
    state["memory"]["_compressed_summary"] = "what was said"
    path.write_text(json.dumps(state))
    fails(run("migrate", database, target), 9, FORGOTTEN, f"?state={tmp_path}/states")
    lossy = run("migrate", database, target, "--lossy", "--json")
    found = report(lossy)
    assert (found["losses"][0]["kind"], found["losses"][0]["memories"]) == ("compressed", 1)
    assert any(FORGOTTEN in text for text in found["warnings"])
    report(run("undo", "--yes", "--json"))
    done = run("migrate", f"{database}?state={tmp_path}/states", target, "--json")
    assert not any("marked 'compressed'" in text for text in report(done)["warnings"])
    assert "what was said" in run("context", target).stdout
    assert (
        run(
            "migrate", database, target, "--exclude-mark", "compressed", "--on-conflict", "skip"
        ).exit_code
        == 0
    )


@pytest.mark.parametrize("place", ["sessions", "state.json"])
def test_migrate_compressed_messages_may_have_their_summary_in_the_target(
    run: Run, database: str, tmp_path: Path, place: str
) -> None:
    put(database, COMPRESSED)
    target = tmp_path / place
    path = target if target.suffix else target / "ada_one.json"
    path.parent.mkdir(exist_ok=True)
    state = {"agent": {"memory": {"_compressed_summary": "what was said", "content": []}}}
    path.write_text(json.dumps(state))
    for words in ["--dry-run"], ["--lossy", "--dry-run"], []:
        found = report(run("migrate", database, target, *words, "--json"))
        assert (found["losses"], found["warnings"]) == ([], [])
    assert "what was said" in run("context", target, "--json").stdout
    if place == "sessions":
        asyncio.run(fill(database, {MemoryKey("bob", "two"): COMPRESSED}))
        fails(run("migrate", database, target), 9, FORGOTTEN.replace("'ada'/'one'", "'bob'/'two'"))


def test_migrate_export_import_and_verify_name_the_summary_left_behind(
    run: Run, database: str, tmp_path: Path
) -> None:
    put(database, COMPRESSED)
    archive, copy = tmp_path / "a.ndjson", f"sqlite:///{tmp_path}/copy.db"
    commands: list[tuple[object, ...]] = [
        ("export", database, "-o", archive),
        ("export", database, "-o", tmp_path / "a.jsonl"),
        ("export", database, "-o", tmp_path / "a.md"),
        ("export", database, "--as", "html", "-o", f"{tmp_path}/pages/"),
        ("import", archive, copy),
        ("migrate", copy, f"sqlite:///{tmp_path}/third.db"),
        ("verify", database, copy),
    ]
    for words in commands:
        result = run(*words)
        assert result.exit_code == 0
        told = " ".join(result.stderr.split())
        assert told.count(FORGOTTEN) == (2 if words[0] == "verify" else 1), words
    for source in archive, tmp_path / "a.jsonl":
        target = f"sqlite:///{tmp_path}/new.db?layout=agentscope2"
        fails(run("import", source, target), 9, FORGOTTEN, "export the store again")


def test_migrate_marks_that_a_summary_or_no_agent_needs(run: Run, tmp_path: Path) -> None:
    """A message with the mark 'summary' is the summary; LangChain has no marks, but notes."""
    source = tmp_path / "a.db"
    put(str(source), [*COMPRESSED, samples.entry("s", 20, ("summary",))])
    found = run("migrate", source, f"sqlite:///{tmp_path}/b.db?layout=agentscope2", "--json")
    assert report(found)["warnings"] == []
    put(str(tmp_path / "c.db"), COMPRESSED)
    lang = f"sqlite:///{tmp_path}/d.db?layout=langchain&owner=ada"
    words = ("migrate", tmp_path / "c.db", lang, "--user", "ada", "--json")
    fails(run(*words), 9, "an agent of", "has forgotten them", "--all-messages")
    warnings = report(run(*words, "--lossy"))["warnings"]
    assert "name the session states" in warnings[0]
    assert "(9 compacted): notes keep them; --all-messages" in warnings[1]
    every = lang.replace("d.db", "e.db")
    words = ("migrate", tmp_path / "c.db", every, "--user", "ada", "--all-messages", "--json")
    assert report(run(*words))["warnings"] == []


@pytest.mark.parametrize("held", [0, 1])
def test_migrate_keeps_the_summary_of_the_target_where_the_source_has_none(
    run: Run, tmp_path: Path, held: int
) -> None:
    source, target = tmp_path / "source.json", tmp_path / "target.json"
    entries = [samples.entry("a", 1), samples.entry("b", 2)]
    put(str(source), entries)
    put(str(target), entries[:held], summary="what was said")
    before = target.read_bytes()
    result = run("migrate", source, target, "--json")
    assert "1 summary of the target kept: the source has none" in result.stderr
    found = report(result)
    assert (found["messages"]["written"], found["verified"]) == (2 - held, True)
    assert json.loads(target.read_text())["_compressed_summary"] == "what was said"
    assert report(run("migrate", source, target, "--json"))["memories"]["unchanged"] == 1
    assert run("undo", "--yes").exit_code == 0
    assert target.read_bytes() == before


def test_migrate_expiry_needs_a_place(run: Run, redis_url: str, target: str) -> None:
    asyncio.run(fill(redis_url, {ONE: samples.entries(3)}, ttl=1000.0))
    fails(run("migrate", redis_url, target), 9, "expiries", "--lossy")
    lossy = run("migrate", redis_url, target, "--lossy")
    assert "verified: source and target match, but for expiries" in lossy.stdout


def test_migrate_repeated_ids_need_a_place(run: Run, target: str, tmp_path: Path) -> None:
    twice = tmp_path / "twice.ndjson"
    put(str(twice), [samples.entry("a", 1), samples.entry("b", 2), samples.entry("a", 1)])
    fails(run("migrate", twice, target), 9, "occur twice", "--lossy")
    assert report(run("migrate", twice, target, "--lossy", "--json"))["messages"]["written"] == 2
    assert [entry.id for entry in contents(target)[ONE]] == ["a", "b"]


def test_migrate_what_the_target_refuses_fails_alone(
    run: Run, database: str, postgresql_url: str
) -> None:
    bad = [samples.entry("n", 1, metadata={"score": float("nan")})]
    asyncio.run(fill(database, {ONE: bad, MemoryKey("bob", "two"): samples.entries(3)}))
    found = report(run("migrate", database, postgresql_url, "--json"), 7)
    assert found["error"]["code"] == "partial"
    assert [(row["user"], row["code"]) for row in found["failures"]] == [("ada", "refused")]
    assert (found["memories"]["written"], found["messages"]["failed"]) == (1, 1)
    assert set(contents(postgresql_url)) == {MemoryKey("bob", "two")}


def test_migrate_memories_without_messages_come_too(run: Run, database: str, target: str) -> None:
    put(database, [])
    assert report(run("migrate", database, target, "--json"))["memories"]["written"] == 1
    assert contents(target) == {ONE: []}


def test_migrate_same_store_twice(run: Run, filled: str, tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "agents.db")
    fails(run("migrate", filled, f"sqlite:///{tmp_path}/link.db"), 2, "the same store")


@pytest.mark.parametrize(
    ("name", "more"),
    [("a.db", ()), ("a.ndjson", ()), ("a.json", ("--user", "u", "--session", "s"))],
)
def test_hard_link_to_a_store_is_the_same_store(
    run: Run, tmp_path: Path, name: str, more: tuple[str, ...]
) -> None:
    store, link = tmp_path / name, tmp_path / f"link{Path(name).suffix}"
    asyncio.run(fill(str(store), {MemoryKey("u", "s"): samples.entries(3)}))
    link.hardlink_to(store)
    before = store.read_bytes()
    fails(run("migrate", store, link, *more), 2, "the same store")
    fails(run("migrate", store, link, *more, "--dry-run"), 2, "the same store")
    if name != "a.db":
        words = ("export", store, *more, "-o", link, "--force")
        fails(run(*words), 2, "is the store being exported")
    assert store.read_bytes() == before
    assert link.samefile(store)


@pytest.mark.parametrize("layout", ["", "?layout=session"])
def test_migrate_later_expiry_comes_along(run: Run, servers: Servers, layout: str) -> None:
    source, target = (servers.redis.fresh() + layout for _ in range(2))
    asyncio.run(fill(source, {ONE: samples.entries(3)}, ttl=1000.0))
    assert report(run("migrate", source, target, "--json"))["verified"] is True
    with servers.redis.client(source.removesuffix(layout)) as client:
        for key in client.scan_iter():
            client.expire(key, 9000)
    again = report(run("migrate", source, target, "--json"))
    assert (again["memories"]["written"], again["messages"]["written"]) == (1, 0)
    assert again["verified"] is True
    with servers.redis.client(target.removesuffix(layout)) as client:
        assert all(client.ttl(key) > 8000 for key in client.scan_iter())


def test_migrate_several_writers_write_the_same(run: Run, filled: str, postgresql_url: str) -> None:
    found = report(run("migrate", filled, postgresql_url, "--jobs", "3", "--json"))
    assert (found["memories"]["written"], found["verified"]) == (4, True)


def test_migrate_source_is_not_changed(run: Run, filled: str, target: str, tmp_path: Path) -> None:
    before = (tmp_path / "agents.db").read_bytes()
    assert run("migrate", filled, target).exit_code == 0
    assert (tmp_path / "agents.db").read_bytes() == before


@pytest.mark.parametrize("name", ["new.db", "new.ndjson", "new.ndjson.zst", "new.json", "./new/"])
def test_migrate_nothing_is_made_for_who_is_not_there(
    run: Run, filled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    fails(run("migrate", filled, name, "--user", "nobody"), 4, "has no memory of 'nobody'")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "options", ["", "?layout=agentscope2", "?layout=langchain", "?layout=adk&app=a"]
)
@pytest.mark.parametrize("words", [("--user", "nobody"), ("--user", "user0", "--name", "Nobody")])
def test_migrate_nothing_is_made_in_a_database_for_who_is_not_there(
    run: Run, filled: str, tmp_path: Path, options: str, words: tuple[str, ...]
) -> None:
    path = tmp_path / "there.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE mine (id INT)")
    before = path.read_bytes()
    target = f"sqlite:///{path}{options}"
    fails(run("migrate", filled, target, *words, "--lossy"), 4, "has no memory of")
    assert path.read_bytes() == before


def test_migrate_one_session_to_a_file_of_which_the_user_is_not_named(
    run: Run, tmp_path: Path
) -> None:
    state = tmp_path / "one.json"
    state.write_text('{"_compressed_summary": "", "content": []}')
    for user, session in (("ada", "kyoto"), ("bob", "parcel")):
        run("import", str(state), f"{tmp_path}/d/", "--user", user, "--session", session)
    copy = str(tmp_path / "copy.json")
    for _ in range(2):
        done = run("migrate", f"{tmp_path}/d/", copy, "--session", "kyoto")
        assert done.exit_code == 0, done.output
    assert run("verify", f"{tmp_path}/d/", copy, "--session", "kyoto").exit_code == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sqlite", "postgresql", "redis"])
def test_migrate_replaces_no_more_than_a_limit(
    run: Run, one: Callable[[str], Place], name: str, tmp_path: Path
) -> None:
    place = one(name)
    ada, bob, eve = place.keys(3)
    asyncio.run(fill(place.text, {key: samples.entries(20) for key in (ada, bob)}))
    source = f"sqlite:///{tmp_path}/source.db"
    new = {ada: samples.entries(15, start=100), bob: samples.entries(25), eve: samples.entries(5)}
    asyncio.run(fill(source, new))
    archive = tmp_path / "source.ndjson"
    assert run("export", source, "-o", archive).exit_code == 0
    before = held(place)
    for first in ("migrate", source), ("import", archive):
        words = (*first, place.text, *REPLACE, "--json")
        assert report(run(*words, "--dry-run"))["messages"]["deleted"] == 20
        shown = run(*words[:-1], "--dry-run").stdout
        assert "20 of the target would be removed" in shown
        for limit, *more in ("19", "--dry-run"), ("19", "--no-backup"), ("49%",):  # of 40 messages
            refused = run(*words, "--max-delete", limit, *more)
            assert report(refused, 9)["error"]["code"] == "loss"
            said = f"20 messages of {place.location.label} would be removed, more than"
            assert said in refused.stderr
            assert f"--max-delete {limit}" in refused.stderr
            assert held(place) == before
    assert report(run("history", "--json"))["runs"] == []
    done = report(run(*words, "--max-delete", "50%"))
    assert done["messages"]["deleted"] == 20
    assert len(held(place)) == 3
    assert run("undo", done["run"], "--store", place.text, "--yes").exit_code == 0
    assert held(place) == before


def test_migrate_limit_of_what_is_removed_is_checked(run: Run, filled: str, target: str) -> None:
    words = ("migrate", filled, target, "--max-delete")
    fails(run(*words, "many"), 2, "--max-delete 'many' is not a valid limit")
    fails(run(*words, "5", "--follow"), 2, "--follow and --max-delete cannot be combined")
    assert run(*words, "0").exit_code == 0
    assert run(*words, "0").exit_code == 0


@pytest.mark.slow
def test_migrate_says_whether_it_has_verified(run: Run, database: str, target: str) -> None:
    put(database, samples.entries(5))
    assert "verified: source and target match" in run("migrate", database, target).stdout
    again = run("migrate", database, target).stdout
    assert "verified" not in again
    assert "undo it with" not in again
    assert run("delete", target, "--last", "1", "--yes").exit_code == 0
    assert "verified" not in run("migrate", database, target, "--no-verify").stdout
