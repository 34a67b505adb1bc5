"""Changes in parts: one job, undone as one, on servers and in folders."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from memctl.journal.changes import UNFINISHED
from memctl.journal.runs import Run as KeptRun
from memctl.journal.runs import Runs
from memctl.model import MemoryKey
from memctl.testing import samples
from tests.commands.test_asking import Session
from tests.parts.conftest import MEMORIES, memories
from tests.support.cli import Run, contents, fails, fill, report

MESSAGES = MEMORIES * 4


@pytest.fixture(params=["postgresql", "folder"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store with memories, on a server or in a folder."""
    if request.param == "postgresql":
        return str(request.getfixturevalue("source"))
    folder = f"{tmp_path}/states/"
    asyncio.run(fill(folder, memories()))
    return folder


def history(run: Run) -> list[dict[str, Any]]:
    """Return the kept runs, newest first."""
    found: list[dict[str, Any]] = report(run("history", "--limit", "0", "--json"))["runs"]
    return found


def in_parts(run: Run, *words: str, of: int = 2, job: str = "nightly") -> None:
    """Run a command in parts one after another, as an engine without a driver does."""
    for number in range(of):
        result = run(*words, "--shard", f"{number}/{of}", "--job", job)
        assert result.exit_code == 0, result.stderr


@pytest.mark.slow
def test_job_is_one_line_and_one_undo(run: Run, store: str) -> None:
    before = contents(store)
    in_parts(run, "delete", store, "--all", "--yes", of=3)
    assert not any(contents(store).values())
    rows = history(run)
    assert {row["job"] for row in rows} == {"nightly"}
    assert {row["shard"] for row in rows} == {"0/3", "1/3", "2/3"}
    [_, line] = run("history").stdout.splitlines()
    assert f"{MESSAGES} deleted" in line
    assert line.endswith("done, 3 of 3 parts")

    back = report(run("undo", "nightly", "--store", store, "--json"))
    assert back["messages"]["restored"] == MESSAGES
    assert contents(store) == before
    assert "undone, 3 of 3 parts" in run("history").stdout
    assert "nothing to undo" in run("undo", "nightly", "--store", store).stdout

    again = report(run("undo", back["job"], "--store", store, "--json"))  # an undo of the undo
    assert again["messages"]["deleted"] == MESSAGES
    assert not any(contents(store).values())
    assert "done, 3 of 3 parts" in run("history", "--command", "delete").stdout


@pytest.mark.slow
def test_undo_of_a_job_with_a_part_that_was_killed_early(run: Run, store: str) -> None:
    """The part was killed before the first byte of its changes was on the disk."""
    before = contents(store)
    words = ("delete", store, "--all", "--yes", "--job", "nightly")
    assert run(*words, "--shard", "0/2").exit_code == 0
    runs = Runs()
    [part] = runs.job("nightly").runs
    killed = replace(part, id=f"{part.id[:-5]}0dead", shard="1/2", ended="", outcome="")
    (runs.folder / killed.id).mkdir()
    (runs.folder / killed.id / f"changes-1.ndjson.zst{UNFINISHED}").touch()
    runs.update(killed)
    assert run("undo", "nightly", "--store", store).exit_code == 0
    assert contents(store) == before


@pytest.mark.slow
def test_undo_takes_no_run_that_was_killed_early(run: Run, store: str) -> None:
    """The last run has changed nothing, so the one before it is undone."""
    before = contents(store)
    assert run("delete", store, "--all", "--yes").exit_code == 0
    runs = Runs()
    [last] = runs.all()
    killed = replace(last, id=f"{last.id[:-5]}0dead", ended="", outcome="", number=last.number + 1)
    (runs.folder / killed.id).mkdir()
    (runs.folder / killed.id / f"changes-1.ndjson.zst{UNFINISHED}").touch()
    runs.update(killed)
    assert run("undo", "--store", store, "--yes").exit_code == 0
    assert contents(store) == before


@pytest.mark.slow
def test_undo_of_some_parts_of_a_job(run: Run, source: str) -> None:
    before = contents(source)
    in_parts(run, "mark", "add", source, "x", "--all", of=3)
    fails(run("undo", "nightly", "--shards", "4"), 2, "has 3 parts, not 4")
    fails(run("undo", "nightly", "--shard", "1/4"), 2, "has 3 parts, not 4")
    one = report(run("undo", "nightly", "--shard", "1/3", "--store", source, "--json"))
    assert [part["shard"] for part in one["parts"]] == ["1/3"]
    assert "undone, 1 of 3 parts" in run("history").stdout
    rest = report(run("undo", "nightly", "--store", source, "--json"))
    assert [part["shard"] for part in rest["parts"]] == ["0/3", "2/3"]
    assert contents(source) == before
    again = run("undo", "nightly", "--shards", "3", "--store", source)
    assert (again.exit_code, again.stdout.splitlines()[1:]) == (0, ["nothing to undo"])


@pytest.mark.slow
def test_undo_without_a_run_takes_the_whole_job(run: Run, source: str) -> None:
    before = contents(source)
    in_parts(run, "delete", source, "--user", "user 1", "--yes", job="daily")
    undone = run("undo", "--yes", "--store", source)
    assert undone.exit_code == 0, undone.stderr
    assert "undoing all parts of the job daily" in undone.stderr
    assert contents(source) == before


@pytest.mark.slow
def test_undo_of_one_part_by_its_run(run: Run, source: str) -> None:
    before = contents(source)
    in_parts(run, "delete", source, "--all", "--yes")
    for row in history(run):
        assert run("undo", row["run"], "--store", source).exit_code == 0
    assert contents(source) == before


@pytest.mark.slow
def test_undo_of_a_job_that_others_changed_since(run: Run, source: str) -> None:
    in_parts(run, "mark", "add", source, "x", "--all", of=3)
    session = next(key.session for key in contents(source) if key.user == "user 1")
    assert run("mark", "rename", source, "x", "y", "--session", session).exit_code == 0
    found = report(run("undo", "nightly", "--store", source, "--json"), 5)
    assert [part["exit"] for part in found["parts"]].count(5) == 1
    assert found["memories"]["written"] == MEMORIES - 1
    assert "undone, 2 of 3 parts" in run("history").stdout


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["postgresql", "mysql", "redis"])
def test_parts_of_one_user_at_once(run: Run, request: pytest.FixtureRequest, engine: str) -> None:
    """Both parts delete sessions of the same user."""
    url = str(request.getfixturevalue(f"{engine}_url"))
    asyncio.run(fill(url, {MemoryKey("ada", f"session {n}"): samples.entries(4) for n in range(4)}))
    before = contents(url)
    found = report(run("delete", url, "--user=ada", "--shards=2", "-y", "--json"))
    assert all(part["messages"] for part in found["parts"])
    assert not any(contents(url).values())
    undone = run("undo", found["job"], "--shards=2", "--store", url)
    assert undone.exit_code == 0, undone.stderr
    assert contents(url) == before


@pytest.mark.slow
def test_compress_in_parts(run: Run, source: str) -> None:
    before = contents(source)
    words = ("--all", "--keep-recent", "1", "--mode", "message", "--shards", "2", "--json")
    found = report(run("compress", source, *words))
    assert found["memories"]["written"] == MEMORIES
    assert contents(source) != before
    assert run("undo", found["job"], "--store", source).exit_code == 0
    assert contents(source) == before


@pytest.mark.slow
def test_shard_is_no_selection(run: Run, source: str) -> None:
    fails(run("delete", source, "--shard", "0/2", "--yes"), 2, "nothing is selected")
    in_parts(run, "delete", source, "--all", "--yes")


@pytest.mark.slow
def test_undo_waits_for_the_parts_of_a_job(run: Run, source: str) -> None:
    in_parts(run, "delete", source, "--all", "--yes")
    going = Runs().begin(KeptRun("", "delete", source, source, job="nightly", shard="1/2"))
    fails(run("undo", "nightly"), 75, "part 1/2 of the job nightly", "still running")
    assert run("undo", "nightly", "--shard", "0/2", "--store", source).exit_code == 0
    assert "running, 2 of 2 parts" in run("history").stdout
    going.discard()


def test_name_of_a_job(run: Run, source: str) -> None:
    fails(run("delete", source, "--all", "--job", "x", "--yes"), 2, "--job names a divided run")
    words = ("delete", source, "--all", "--shard", "0/2", "--yes")
    fails(run(*words, "--job", "a b"), 2, "is not a name")


@pytest.mark.slow
def test_all_parts_of_a_job_are_kept(run: Run, source: str, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("[undo]\nbytes = 1\n")
    in_parts(run, "--config", str(config), "delete", source, "--all", "--yes", of=3)
    assert len(history(run)) == 3


@pytest.mark.slow
def test_part_in_another_state_folder_changes_nothing(
    run: Run, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Runs, "identity", lambda _: "another")
    result = run("delete", source, "--all", "--shards=2", "--yes", "--json")
    assert json.loads(result.stdout)["messages"]["deleted"] == 0
    fails(result, 3, "is not the state folder in which the run was divided")
    assert sum(map(len, contents(source).values())) == MESSAGES


@pytest.mark.parametrize("answer", [pytest.param("y", marks=pytest.mark.slow), "n"])
def test_delete_in_parts_asks_once(run: Run, source: str, answer: str) -> None:
    before = contents(source)
    session = Session("delete", source, "--user", "user 1", "--shards", "2")
    session.until("[y/N] ")
    assert re.search(r"user 1 +session 1 +4 +0\n", session.said), session.said
    assert "delete 32 messages in 8 memories" in session.said
    session.types(f"{answer}\n")
    assert session.ends() == (0 if answer == "y" else 130), session.said
    assert session.said.count("[y/N]") == 1
    if answer == "y":
        assert "undo it with: memctl undo" in session.said
        assert sum(map(len, contents(source).values())) == MESSAGES - 32
    else:
        assert "nothing was changed" in session.said
        assert contents(source) == before
        assert history(run) == []


@pytest.mark.slow
def test_changes_in_parts_need_a_terminal_or_yes(run: Run, source: str) -> None:
    for words in (
        ("delete", source, "--all"),
        ("doctor", source, "--repair"),
        ("compress", source, "--all", "--mode", "replace"),
    ):
        fails(run(*words, "--shards", "2"), 2, "refusing without confirmation", "--yes")
    in_parts(run, "delete", source, "--all", "--yes")
    fails(run("undo", "--shards", "2"), 2, "refusing without confirmation", "--yes")


@pytest.mark.parametrize("command", ["delete --all -y", "doctor --repair -y", "mark add x --all"])
def test_store_with_one_writer_is_not_changed_in_parts(
    run: Run, tmp_path: Path, command: str
) -> None:
    text = f"sqlite:///{tmp_path}/agents.db"
    asyncio.run(fill(text, memories()))
    name, *words = command.split()
    at = [name, words.pop(0)] if name == "mark" else [name]
    fails(run(*at, text, *words, "--shards", "2"), 2, "one writer")


@pytest.mark.slow
def test_repair_in_parts_is_undone_as_one(run: Run, postgresql_url: str) -> None:
    call = {"type": "tool_use", "id": "t1", "name": "search", "input": {}}
    asked = samples.entry("asked", 7, role="assistant", content=[call])
    hint = samples.entry("hint", 8, marks=("hint",))
    found = {key: [*some, asked, hint] for key, some in memories().items()}
    asyncio.run(fill(postgresql_url, found))
    before = contents(postgresql_url)
    repair = ("doctor", postgresql_url, "--repair", "--json")
    planned = report(run(*repair, "--dry-run"), 6)["repaired"]
    done = report(run(*repair, "--yes", "--shards", "2"))
    assert done["repaired"] == planned
    assert done["healthy"]
    assert contents(postgresql_url) != before
    assert run("undo", done["job"], "--store", postgresql_url).exit_code == 0
    assert contents(postgresql_url) == before


@pytest.mark.slow
def test_import_in_parts_is_undone_as_one(run: Run, source: str, tmp_path: Path) -> None:
    before = contents(source)
    archive = str(tmp_path / "more.ndjson")
    more = {MemoryKey("user 1", f"new {number}"): samples.entries(2) for number in range(6)}
    asyncio.run(fill(archive, more))
    in_parts(run, "import", archive, source, of=3)
    assert contents(source).keys() == before.keys() | more
    assert "12 added" in run("history").stdout
    assert run("undo", "nightly", "--store", source).exit_code == 0
    assert contents(source) == before
