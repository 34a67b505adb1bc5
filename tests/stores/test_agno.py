"""The sessions of Agno: what its runs hold beside messages, and what a deletion leaves of it.

The rows are those that agno 3.1.10 writes; the library itself is in ``tests/interop_frameworks``.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from memctl.model import Memory, MemoryKey
from memctl.registry import make_store, parse
from memctl.store import OpenMode
from memctl.testing import samples
from memctl.testing.drive import write
from memctl.testing.samples import Sample
from tests.support.cli import contents, fails, fill, report

REPLACE = ("--on-conflict", "replace", "--yes")

SESSION = "session_id TEXT PRIMARY KEY, session_type TEXT NOT NULL, " + ", ".join(
    f"{name} {kind}"
    for kind, names in (
        ("TEXT", ("agent_id", "team_id", "workflow_id", "user_id")),
        ("JSON", ("session_data", "agent_data", "team_data", "workflow_data", "metadata")),
        ("JSON", ("summary",)),
        ("BIGINT", ("created_at", "updated_at")),
    )
    for name in names
)
RUN = (
    "run_id TEXT PRIMARY KEY, session_id TEXT NOT NULL, run_type TEXT NOT NULL, agent_id TEXT, "
    "team_id TEXT, workflow_id TEXT, user_id TEXT, parent_run_id TEXT, status TEXT, "
    "run_index BIGINT, run_data JSON NOT NULL, created_at BIGINT NOT NULL, updated_at BIGINT"
)
SECRET = "the code is 4711"


def execute(path: Path, sql: str, *values: Any) -> list[Any]:
    with closing(sqlite3.connect(path)) as database, database:
        return database.execute(sql, values).fetchall()


def message(id: str, role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"id": id, "role": role, "content": content, "created_at": 1_700_000_000, **more}


def add_run(
    path: Path, number: int, messages: list[Any], session: str = "kyoto", **columns: Any
) -> None:
    data = {
        "run_id": f"r{number}",
        "agent_id": "friday",
        "session_id": session,
        "user_id": "ada",
        "content": messages[-1]["content"] if messages else "",
        "input": {"input_content": SECRET},
        "tools": [{"tool_call_id": "c1", "result": SECRET}],
        "status": "COMPLETED",
        "messages": messages,
    }
    row = {
        "run_id": f"r{number}",
        "session_id": session,
        "run_type": "agent",
        "agent_id": "friday",
        "user_id": "ada",
        "status": "COMPLETED",
        "run_index": number * 10,
        "run_data": json.dumps(data),
        "created_at": 1_700_000_000 + number,
        "updated_at": 1_700_000_001,
    } | columns
    places = ", ".join("?" * len(row))
    execute(path, f"INSERT INTO agno_runs ({', '.join(row)}) VALUES ({places})", *row.values())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A session of two turns, of which the second repeats the first, and others beside it."""
    path = tmp_path / "agno.db"
    execute(path, f"CREATE TABLE agno_sessions ({SESSION})")
    execute(path, f"CREATE TABLE agno_runs ({RUN})")
    for session, user in ("kyoto", "ada"), ("osaka", None):
        execute(
            path,
            "INSERT INTO agno_sessions (session_id, session_type, agent_id, user_id, session_data, "
            "metadata, summary, created_at, updated_at) "
            "VALUES (?, 'agent', 'friday', ?, ?, 'null', ?, 7, 8)",
            *(session, user, '{"session_state": {"n": 1}}'),
            '{"summary": "They spoke.", "topics": ["codes"]}',
        )
    asked, answered = message("m1", "user", SECRET), message("m2", "assistant", "I see.")
    add_run(path, 0, [message("p0", "system", "Be brief."), asked, answered])
    again = [one | {"from_history": True} for one in (asked, answered)]
    more = [message("m3", "user", "Thanks."), message("m4", "assistant", "Sure.")]
    add_run(path, 1, [message("p1", "system", "Be brief."), *again, *more])
    add_run(path, 2, [message("m5", "user", "fails")], status="ERROR")
    add_run(path, 3, [message("m6", "user", "a member of a team")], parent_run_id="r1")
    add_run(path, 4, [message("m7", "user", "Hi")], session="osaka", user_id=None)
    return path


def said(url: str, user: str, session: str) -> list[str]:
    """Return the texts of a session, as memctl reads it."""
    found = contents(url)[MemoryKey(user, session)]
    return [json.loads(one.message)["content"]["content"] for one in found]


def rows(path: Path) -> Any:
    """Return all that is in the database, JSON by value."""
    found = {}
    for table in "agno_sessions", "agno_runs":
        found[table] = [
            [json.loads(one) if str(one)[:1] in "{n" else one for one in row]
            for row in execute(path, f"SELECT * FROM {table} ORDER BY 1")
        ]
    return found


def test_agno_shows_the_history_alone(run: Any, path: Path) -> None:
    """The prompt, what a run repeats, and runs that Agno leaves out are no messages."""
    found = report(run("inspect", path, "--json"))
    assert found["store"]["kind"] == "sqlite-agno"
    assert {one["user"]: one["messages"] for one in found["memories"]} == {"ada": 4, "": 1}
    shown = run("inspect", path, "--messages", "--user", "ada").stdout
    assert [text for text in ("Be brief", "fails", "a member") if text in shown] == []
    assert shown.index("4711") < shown.index("I see") < shown.index("Thanks") < shown.index("Sure")


@pytest.mark.parametrize(
    "selection",
    [
        ("--role", "user"),
        ("--role", "assistant"),
        ("--match", "4711"),
        ("--id", "m2"),
        ("--id", "m2", "--id", "m3"),
        ("--last", "1", "--user", "ada"),
        (),
    ],
)
def test_agno_undo_is_exact(run: Any, path: Path, selection: tuple[str, ...]) -> None:
    before = rows(path)
    assert run("delete", path, *selection, *(() if selection else ("--all",)), "-y").exit_code == 0
    assert rows(path) != before
    assert run("undo", "-y").exit_code == 0
    assert rows(path) == before


def test_agno_deletes_what_runs_repeat_of_a_message(run: Any, path: Path) -> None:
    assert run("delete", path, "--match", "4711", "-y").exit_code == 0
    left = {row[0]: json.dumps(row) for row in rows(path)["agno_runs"]}
    assert "4711" not in left["r0"]
    assert "m1" not in left["r1"]
    assert said(f"sqlite:///{path}?layout=agno", "ada", "kyoto") == ["I see.", "Thanks.", "Sure."]


@pytest.mark.parametrize(("role", "left"), [("user", "content"), ("assistant", "input")])
def test_agno_keeps_the_prompt_and_what_repeats_the_messages_that_stay(
    run: Any, path: Path, role: str, left: str
) -> None:
    assert run("delete", path, "--role", role, "--user", "ada", "-y").exit_code == 0
    runs = {
        row[0]: json.loads(row[2])
        for row in execute(path, "SELECT run_id, user_id, run_data FROM agno_runs")
    }
    first = runs["r0"]
    stays = {"user": ["p0", "m2"], "assistant": ["p0", "m1"]}[role]
    assert [one["id"] for one in first["messages"]] == stays
    assert {"content", "input", "tools"} & first.keys() == {left}
    gone = {"user": {"m1", "m3"}, "assistant": {"m2", "m4"}}[role]
    assert not gone & {one["id"] for one in runs["r1"]["messages"]}
    assert "p1" in {one["id"] for one in runs["r1"]["messages"]}


@pytest.mark.slow
def test_agno_copies_all_that_a_session_has(run: Any, path: Path, tmp_path: Path) -> None:
    """Also through an archive; a second run finds nothing to do."""
    archive, copy = tmp_path / "a.ndjson", tmp_path / "copy.db"
    target = f"sqlite:///{copy}?layout=agno"
    assert run("export", path, "-o", archive).exit_code == 0
    assert run("import", archive, target).exit_code == 0
    assert rows(copy) == rows(path)
    again = report(run("migrate", path, target, "--json"))
    assert again["memories"]["unchanged"] == 2
    assert run("verify", path, target).exit_code == 0


@pytest.mark.parametrize(
    "extra",
    [
        "no JSON",
        "[1]",
        '{"session": [1]}',
        '{"aside": {"run_id": "x"}}',
        '{"aside": [{"run_id": "x", "columns": {}, "data": {}, "messages": [5]}]}',
        '{"aside": [{"run_id": "x", "columns": {"run_index": "1"}, "data": {}}]}',
        '{"session": {"colour": "red"}}',
        '{"session": {"agent_id": {"a": 1}}}',
    ],
)
def test_agno_refuses_what_no_session_has(path: Path, extra: str) -> None:
    """As a hostile archive may have it."""
    before = rows(path)
    assert written(path, extra) == "refused"
    assert rows(path) == before


def test_agno_makes_no_session_of_another_name(path: Path) -> None:
    assert written(path, '{"session": {"session_id": "osaka", "user_id": "bob"}}') is None
    row = execute(path, "SELECT session_id, user_id FROM agno_sessions WHERE session_id = 'new'")
    assert row == [("new", "ada")]


def written(path: Path, extra: str) -> str | None:
    """Write a memory that has this besides messages; return the code of its failure."""

    async def put() -> str | None:
        place = parse(f"sqlite:///{path}?layout=agno")
        memory = Memory(MemoryKey("ada", "new"), extra=extra)
        async with make_store(place, OpenMode.CREATE) as store:
            [result] = (await write(store, [Sample(memory)])).values()
        return result.failure.code if result.failure else None

    return asyncio.run(put())


def test_agno_erases_a_user(run: Any, path: Path) -> None:
    before = rows(path)
    assert run("erase", path, "--user", "ada", "--yes").exit_code == 0
    left = rows(path)
    assert left["agno_sessions"] == [row for row in before["agno_sessions"] if row[0] == "osaka"]
    assert left["agno_runs"] == [row for row in before["agno_runs"] if row[1] == "osaka"]


def test_agno_makes_a_run_of_each_question(run: Any, tmp_path: Path) -> None:
    lines = [
        {"role": role, "content": f"{role} {number}"}
        for number in range(2)
        for role in ("user", "assistant")
    ]
    source, target = tmp_path / "a.jsonl", tmp_path / "agno.db"
    source.write_text(json.dumps({"messages": lines, "memctl": {"session": "s"}}))
    url = f"sqlite:///{target}?layout=agno&agent=friday"
    assert run("import", source, url).exit_code == 0
    made = [json.loads(data) for (data,) in execute(target, "SELECT run_data FROM agno_runs")]
    assert [[one["content"] for one in data["messages"]] for data in made] == [
        ["user 0", "assistant 0"],
        ["user 1", "assistant 1"],
    ]
    assert [data["agent_id"] for data in made] == ["friday", "friday"]
    assert said(url, "", "s") == ["user 0", "assistant 0", "user 1", "assistant 1"]
    before = rows(target)
    assert run("delete", target, "--role", "user", "-y").exit_code == 0
    assert said(url, "", "s") == ["assistant 0", "assistant 1"]
    assert run("undo", "-y").exit_code == 0
    assert rows(target) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        "UPDATE agno_runs SET status = 'RUNNING', updated_at = 9, user_id = NULL",
        "UPDATE agno_runs SET run_index = run_index * 7 + 3",
        "UPDATE agno_runs SET run_id = 'r' || run_index, "
        "run_data = json_set(run_data, '$.run_id', 'r' || run_index)",
        "UPDATE agno_runs SET run_data = json_remove(run_data, '$.user_id', '$.status')",
    ],
)
@pytest.mark.parametrize("steps", [["--all"], ["m1", "m0"], ["m2", "m3", "m0"], ["m0", "m1"]])
def test_agno_undo_restores_what_another_program_did_to_a_run_of_memctl(
    run: Any, tmp_path: Path, change: str, steps: list[str]
) -> None:
    path = tmp_path / "agno.db"
    url = f"sqlite:///{path}?layout=agno"
    roles = ["user", "assistant", "user", "assistant"]
    said = [samples.entry(f"m{at}", at, role=role) for at, role in enumerate(roles)]
    asyncio.run(fill(str(tmp_path / "old.db"), {MemoryKey("ada", "kyoto"): said}))
    assert run("migrate", str(tmp_path / "old.db"), url).exit_code == 0
    execute(path, change)
    before = [rows(path)]
    for step in steps:
        pick = [step] if step == "--all" else ["--id", step]
        assert run("delete", url, *pick, "--yes").exit_code == 0
        before.append(rows(path))
    while before:
        assert rows(path) == before.pop()
        if before:
            assert run("undo", "--yes").exit_code == 0


def test_agno_makes_no_session_of_which_there_are_runs(
    run: Any, path: Path, tmp_path: Path
) -> None:
    url, archive = f"sqlite:///{path}?layout=agno", str(tmp_path / "all.ndjson")
    assert run("export", url, "-o", archive).exit_code == 0
    execute(path, "DELETE FROM agno_sessions WHERE session_id = 'kyoto'")
    before = rows(path)
    fails(run("import", archive, url), 7, "has runs of 'kyoto', which is not a session")
    assert rows(path) == before


@pytest.mark.slow
def test_agno_keeps_marks_that_its_messages_got_elsewhere(
    run: Any, path: Path, tmp_path: Path
) -> None:
    here, back, again = (tmp_path / f"{name}.db" for name in ("here", "back", "again"))
    assert run("migrate", path, here, "--lossy").exit_code == 0
    assert run("mark", "add", here, "keep", "--role", "assistant", "--user", "ada").exit_code == 0
    agno = f"sqlite:///{back}?layout=agno"
    done = run("migrate", here, agno)
    assert (done.exit_code, "verified: source and target match" in done.stdout) == (0, True)
    assert run("migrate", agno, again).exit_code == 0
    assert run("verify", here, again).exit_code == 0
    marked = report(run("inspect", again, "--json"))["totals"]["marks"]
    assert marked == {"keep": 2}
    assert run("mark", "remove", here, "keep").exit_code == 0
    assert report(run("verify", here, agno, "--json"), 6)["memories"]["different"] == 1


@pytest.mark.slow
def test_agno_takes_a_compressed_memory_of_its_own(run: Any, path: Path, tmp_path: Path) -> None:
    here, back, again = (tmp_path / f"{name}.db" for name in ("here", "back", "again"))
    assert run("migrate", path, here, "--lossy").exit_code == 0
    words = ("--keep-last", "2", "--summarizer", "extractive", "--yes")
    assert run("compress", here, "--user", "ada", *words).exit_code == 0
    agno = f"sqlite:///{back}?layout=agno"
    done = run("migrate", here, agno)
    assert (done.exit_code, "verified: source and target match" in done.stdout) == (0, True)
    text = "do not read 2 messages of the copied memories (2 compacted): notes keep them"
    assert text in done.stderr, "no framework sees the marks of AgentScope"
    assert text not in run("migrate", here, agno).stderr
    assert run("migrate", agno, again).exit_code == 0
    assert run("verify", here, again).exit_code == 0


@pytest.mark.slow
def test_agno_takes_an_agent_that_the_source_does_not_name(run: Any, tmp_path: Path) -> None:
    """What ``?agent=`` says is no difference to LangChain's messages, and passes through them."""
    source, target, third = (tmp_path / f"{name}.db" for name in ("langchain", "agno", "back"))
    execute(source, "CREATE TABLE message_store (id INTEGER PRIMARY KEY, session_id, message)")
    said = {"type": "system", "data": {"type": "system", "content": "Be brief."}}
    execute(source, "INSERT INTO message_store VALUES (1, 'kyoto', ?)", json.dumps(said))
    url = f"sqlite:///{target}?layout=agno&agent=friday"
    for state in ("1 written, 0 unchanged", "0 written, 1 unchanged"):
        assert state in run("migrate", source, url).stdout
    assert run("verify", source, target).exit_code == 0
    langchain = f"sqlite:///{third}?layout=langchain"
    again = f"sqlite:///{tmp_path / 'again.db'}?layout=agno"
    for here, there in ((url, langchain), (langchain, again)):
        assert run("migrate", here, there).exit_code == 0
        assert run("verify", here, there).exit_code == 0
    assert run("verify", source, third).exit_code == 0
    agents = execute(tmp_path / "again.db", "SELECT agent_id FROM agno_sessions")
    assert agents == [("friday",)]


def test_agno_refuses_a_session_of_somebody_else(run: Any, path: Path, tmp_path: Path) -> None:
    before = rows(path)
    source = tmp_path / "a.jsonl"
    about = {"session": "osaka", "user": "bob"}
    source.write_text(json.dumps({"messages": [{"role": "user", "content": "x"}], "memctl": about}))
    fails(run("import", source, path), 7, "the session 'osaka' belongs to ''")
    assert rows(path) == before


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("run_data", "[1]", "is not a JSON object"),
        ("run_data", "{", "is not JSON"),
        ("run_data", '{"messages": [5]}', "are not a list of JSON objects"),
        ("run_index", "first", "has no number as its place"),
        ("created_at", b"\xff", "has no number as its place"),
    ],
)
def test_agno_reports_a_damaged_run(
    run: Any, path: Path, column: str, value: Any, reason: str
) -> None:
    execute(path, f"UPDATE agno_runs SET {column} = ? WHERE run_id = 'r1'", value)
    found = run("inspect", path, "--json")
    assert found.exit_code == 7
    assert [one["user"] for one in report(found, 7)["memories"]] == [""]
    assert reason in found.stderr
    checked = report(run("doctor", path, "--json"), 6)
    assert checked["store"]["kind"] == "sqlite-agno"
    assert [one["code"] for one in checked["findings"]] == ["damaged-state"]


@pytest.fixture
def migrated(path: Path) -> Path:
    """The same sessions as Agno 2 wrote them and Agno 3 migrated them: the column stays."""
    execute(path, "ALTER TABLE agno_sessions ADD COLUMN runs JSON")
    for (session,) in execute(path, "SELECT session_id FROM agno_sessions"):
        sql = "SELECT run_data FROM agno_runs WHERE session_id = ? ORDER BY run_index"
        found = [json.loads(data) for (data,) in execute(path, sql, session)]
        sql = "UPDATE agno_sessions SET runs = ?, summary = ? WHERE session_id = ?"
        execute(path, sql, *map(_twice, (found, {"summary": "They spoke."})), session)
    return path


def _twice(value: Any) -> str:
    """Return a value as Agno 2 encodes it."""
    return json.dumps(json.dumps(value))


def backed_up(path: Path, session: str = "kyoto") -> dict[str, list[str]]:
    """Return the texts in the column of a session, by run; the order is that of the column."""
    [(text,)] = execute(path, "SELECT runs FROM agno_sessions WHERE session_id = ?", session)
    return {
        run["run_id"]: [one["content"] for one in run["messages"]]
        for run in json.loads(json.loads(text))
    }


@pytest.mark.slow
def test_agno_reads_what_it_migrated(run: Any, migrated: Path, tmp_path: Path) -> None:
    found = report(run("inspect", migrated, "--json"))
    assert {one["user"]: one["messages"] for one in found["memories"]} == {"ada": 4, "": 1}
    assert found["totals"]["summaries"] == 2
    assert run("doctor", migrated).exit_code == 0
    there = tmp_path / "there.db"
    assert run("migrate", migrated, f"sqlite:///{there}?layout=agno").exit_code == 0
    assert run("verify", migrated, there).exit_code == 0


@pytest.mark.slow
def test_agno_deletes_from_the_backup_of_its_migration(run: Any, migrated: Path) -> None:
    """Agno 3 reads the column, too: it shows a run that is there alone, in the order there."""
    before = rows(migrated)
    ids = [one.id for one in contents(str(migrated))[MemoryKey("ada", "kyoto")]]
    chosen = [word for id in (ids[0], ids[2]) for word in ("--id", id)]
    assert run("delete", migrated, *chosen, "-y").exit_code == 0
    found = backed_up(migrated)
    assert SECRET not in json.dumps([found["r0"], found["r1"]])
    assert list(found) == ["r0", "r1", "r2", "r3"]
    assert found["r1"] == ["Be brief.", "I see.", "Sure."]
    assert run("delete", migrated, "--user", "ada", "--role", "assistant", "-y").exit_code == 0
    assert list(backed_up(migrated)) == ["r2", "r3"]
    for _ in range(2):
        assert run("undo", "-y").exit_code == 0
    assert rows(migrated) == before
    assert (
        run("delete", migrated, "--user", "ada", "--id", ids[0], "--id", ids[1], "-y").exit_code
        == 0
    )
    assert list(backed_up(migrated)) == ["r1", "r2", "r3"]
    assert run("undo", "-y").exit_code == 0
    assert run("erase", migrated, "--user", "ada", "--yes").exit_code == 0
    assert b"Thanks." not in migrated.read_bytes()


@pytest.mark.slow
def test_agno_replaces_a_session_that_it_migrated(run: Any, migrated: Path, tmp_path: Path) -> None:
    """A run that comes back gets its place in the column: else it would come last."""
    kept = tmp_path / "kept.ndjson"
    assert run("export", migrated, "--user", "ada", "-o", kept).exit_code == 0
    ids = [one.id for one in contents(str(kept))[MemoryKey("ada", "kyoto")]]
    assert run("delete", kept, "--id", ids[0], "--id", ids[1], "-y").exit_code == 0
    assert run("migrate", kept, migrated, *REPLACE, "--lossy").exit_code == 0
    assert list(backed_up(migrated)) == ["r1", "r2", "r3"]
    assert run("undo", "--store", str(migrated), "-y").exit_code == 0
    assert list(backed_up(migrated)) == ["r0", "r1", "r2", "r3"]


def test_agno_asks_for_the_migration_of_agno_2(run: Any, migrated: Path, tmp_path: Path) -> None:
    execute(migrated, "DELETE FROM agno_runs WHERE run_id = 'r1'")
    found = run("inspect", migrated)
    assert found.exit_code == 7
    assert "MigrationManager(db).up()" in found.stderr
    execute(migrated, "DROP TABLE agno_runs")
    source = tmp_path / "a.jsonl"
    source.write_text(json.dumps({"messages": [{"role": "user", "content": "x"}]}))
    for words in (
        ("inspect", migrated),
        ("doctor", migrated),
        ("export", migrated),
        ("migrate", source, migrated),
        ("delete", migrated, "--role", "user", "-y"),
    ):
        fails(run(*words), 8, "sessions of Agno 2", "MigrationManager(db).up()")
    assert execute(migrated, "SELECT COUNT(*) FROM sqlite_master WHERE name LIKE '%runs%'") == [
        (0,)
    ]


def test_agno_names_the_tables(run: Any, path: Path) -> None:
    execute(path, "ALTER TABLE agno_sessions RENAME TO chats")
    execute(path, "ALTER TABLE agno_runs RENAME TO chats_runs")
    assert report(run("inspect", f"sqlite:///{path}?layout=agno&table=chats", "--json"))
    fails(run("inspect", f"sqlite:///{path}?layout=agno"), 8, "has no table 'agno_sessions'")


def test_agno_refuses_a_table_of_another_kind(run: Any, tmp_path: Path) -> None:
    execute(tmp_path / "a.db", "CREATE TABLE agno_sessions (session_id TEXT)")
    fails(run("inspect", f"sqlite:///{tmp_path}/a.db?layout=agno"), 8, "has no column")


def test_a_paused_run_waits(run: Any, path: Path, tmp_path: Path) -> None:
    """Agno leaves its messages out of the history until a person has answered."""
    call = {"id": "c9", "type": "function", "function": {"name": "pay", "arguments": "{}"}}
    said = [message("p1", "user", "Pay."), message("p2", "assistant", "", tool_calls=[call])]
    add_run(path, 9, said, status="PAUSED")
    found = report(run("doctor", path, "--repair", "--yes", "--json"))["findings"]
    assert [(one["code"], one["session"]) for one in found] == [("waiting-call", "kyoto")]
    target = tmp_path / "agents.db"
    fails(run("migrate", path, target, "--user", "ada"), 9, "calls that wait", "a run 1")
    assert run("migrate", path, target, "--user", "ada", "--lossy").exit_code == 0
    back = f"sqlite:///{tmp_path}/back.db?layout=agno"
    assert run("migrate", target, back).exit_code == 0
    again = report(run("doctor", back, "--json"))["findings"]
    assert [one["code"] for one in again] == ["waiting-call"]


def test_agno_erases_no_session_whose_name_is_no_text(run: Any, path: Path) -> None:
    execute(path, "UPDATE agno_sessions SET session_id = X'ff' WHERE session_id = 'kyoto'")
    before = rows(path)
    fails(run("erase", path, "--user", "ada", "--yes"), 7, "a value that is not a text")
    assert rows(path) == before
