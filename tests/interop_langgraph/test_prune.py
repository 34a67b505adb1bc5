"""Real graphs go on from a pruned thread as they would without the prune."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from memctl import RunOptions, sync
from tests.interop_langgraph.conftest import Graphs
from tests.support.cli import Run, fails, report
from tests.support.servers.objects import Bucket
from tests.support.servers.pool import Servers

ENGINES = ["sqlite", "postgresql"]


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory, graphs: Graphs) -> Path:
    """A SQLite file with the threads of all graphs."""
    path = tmp_path_factory.mktemp("made") / "graph.db"
    graphs("make", str(path))
    return path


@pytest.fixture
def file(made: Path, tmp_path: Path) -> str:
    """A copy of ``made``."""
    return str(shutil.copy(made, tmp_path / "graph.db"))


@pytest.fixture(params=ENGINES)
def url(request: pytest.FixtureRequest, graphs: Graphs) -> str:
    """A database with the threads of all graphs."""
    if request.param == "sqlite":
        path: str = request.getfixturevalue("file")
        return path
    servers: Servers = request.getfixturevalue("servers")
    fresh = servers.postgresql.fresh()
    graphs("make", fresh)
    return fresh


@pytest.fixture
def policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Return a function that writes a policy for a database; it returns the folder of archives."""
    archives = tmp_path / "archives"
    archives.mkdir()

    def write(url: str, select: str = 'older_than = "0s"', more: str = "") -> Path:
        config = tmp_path / "memctl.toml"
        config.write_text(
            f"[stores.graphs]\nurl = {json.dumps(url)}\n[[retention]]\nname = 'old'\n"
            f"store = 'graphs'\naction = 'prune'\nselect = {{ {select} }}\n{more}\n"
            f"archive = '{archives}/old-{{date}}-{{time}}.ndjson.zst'\n"
        )
        monkeypatch.setenv("MEMCTL_CONFIG", str(config))
        return archives

    return write


def rows(url: str) -> dict[str, list[str]]:
    """Return all rows of a SQLite database, in order."""
    with closing(sqlite3.connect(url)) as database:
        return {
            table: sorted(map(repr, database.execute(f"SELECT * FROM {table}")))
            for table in ("checkpoints", "writes")
        }


def test_graphs_go_on_as_without_the_prune(
    run: Run, graphs: Graphs, url: str, policy: Callable[..., Path], made: Path, tmp_path: Path
) -> None:
    before = graphs("states", url)
    archives = policy(url)
    planned = report(run("retain", "--dry-run", "--json"))["policies"][0]
    assert (planned["memories"], os.listdir(archives)) == (14, [])
    done = report(run("retain", "--yes", "--json"))["policies"][0]
    assert done["messages"] == done["archived"] == planned["messages"] > 300
    assert done["left"] == 0
    assert graphs("states", url) == before
    again = report(run("retain", "--yes", "--json"))["policies"][0]
    assert (again["state"], again["messages"]) == ("nothing", 0)

    unpruned = str(shutil.copy(made, tmp_path / "unpruned.db"))
    assert graphs("go", url) == graphs("go", unpruned)


def test_archived_rows_come_back_as_they_were(
    run: Run, graphs: Graphs, url: str, policy: Callable[..., Path], tmp_path: Path
) -> None:
    history = graphs("history", url)
    archives = policy(url)
    number = report(run("retain", "--yes", "--json"))["policies"][0]["messages"]
    assert graphs("history", url) != history
    [archive] = [str(archives / name) for name in os.listdir(archives)]
    shown = report(run("inspect", archive, "--json"))["checkpoints"]
    assert (shown["checkpoints"], len(shown["threads"])) == (number, 14)
    planned = report(run("import", archive, url, "--dry-run", "--json"))
    assert planned["messages"]["written"] == number
    tried = sync.restore_checkpoints(archive, url, run=RunOptions(dry_run=True))
    assert (tried.memories, tried.messages) == (14, number)
    assert graphs("history", url) != history
    done = report(run("import", archive, url, "--json"))
    assert done["messages"]["written"] == number
    assert graphs("history", url) == history
    again = report(run("import", archive, url, "--json"))
    assert (again["messages"]["written"], again["messages"]["skipped"]) == (0, number)
    assert sync.restore_checkpoints(archive, url).messages == 0
    fails(run("import", archive, str(tmp_path / "other.db")), 4, "does not exist")
    fails(run("export", archive, "-o", str(tmp_path / "x.ndjson")), 8, "archive of pruned rows")
    fails(run("import", archive, url, "--on-conflict", "replace"), 2, "no row is replaced")


def test_a_thread_is_erased_with_all_its_namespaces(
    run: Run, graphs: Graphs, url: str, tmp_path: Path
) -> None:
    before = graphs("history", url)
    receipt = str(tmp_path / "receipt.json")
    planned = run("erase", "--session", "deep-asks", url, "--dry-run")
    assert planned.exit_code == 0
    assert graphs("history", url) == before
    done = run("erase", "--session", "deep-asks", url, "--yes", "--receipt", receipt)
    assert done.exit_code == 0, done.stderr
    after = graphs("history", url)
    assert after == before | {"deep-asks": []}
    assert run("verify", "--receipt", receipt, url).exit_code == 0
    fails(run("erase", "--session", "deep-asks", url, "--yes"), 4, "deep-asks")
    fails(run("erase", url, "--yes"), 2, "--user")


def test_a_held_thread_and_others_stay(
    run: Run, graphs: Graphs, url: str, policy: Callable[..., Path]
) -> None:
    before = graphs("history", url)
    policy(url, 'older_than = "0s", session = ["chat", "plain"]')
    assert (
        run("hold", "add", "--store", "graphs", "--session", "chat", "--reason", "a case").exit_code
        == 0
    )
    assert report(run("retain", "--yes", "--json"))["held"] == 1
    after = graphs("history", url)
    assert [name for name in before if after[name] != before[name]] == ["plain"]


def test_younger_checkpoints_stay(
    run: Run, graphs: Graphs, url: str, policy: Callable[..., Path]
) -> None:
    before = graphs("history", url)
    policy(url, 'older_than = "1h"')
    assert report(run("retain", "--yes", "--json"))["policies"][0]["state"] == "nothing"
    assert graphs("history", url) == before


def test_a_row_that_cannot_be_put_back_stays(
    run: Run, file: str, policy: Callable[..., Path]
) -> None:
    with closing(sqlite3.connect(file)) as database:
        text = "SELECT min(rowid) FROM writes WHERE thread_id = 'chat'"
        database.execute(f"UPDATE writes SET channel = CAST(X'ff' AS TEXT) WHERE rowid = ({text})")
        database.commit()
    archives = policy(file)
    found = report(run("retain", "--yes", "--json"), 7)
    assert [(row["session"], row["code"]) for row in found["failures"]] == [("chat", "unprunable")]
    row = found["policies"][0]
    assert (row["archived"] - row["messages"], row["left"]) == (1, 1)
    [archive] = [str(archives / name) for name in os.listdir(archives)]
    written = report(run("import", archive, file, "--json"))["messages"]["written"]
    assert written == row["messages"]


def test_a_row_in_whose_place_is_another_stays(
    run: Run, file: str, policy: Callable[..., Path]
) -> None:
    before = rows(file)
    archives = policy(file)
    report(run("retain", "--yes", "--json"))
    [archive] = [str(archives / name) for name in os.listdir(archives)]
    with closing(sqlite3.connect(file)) as database:
        [[newest]] = database.execute(
            "SELECT max(checkpoint_id) FROM checkpoints WHERE thread_id = 'chat'"
        )
        report(run("import", archive, file, "--json"))
        of_chat = f"thread_id = 'chat' AND checkpoint_id <> '{newest}'"
        one = f"SELECT min(checkpoint_id) FROM checkpoints WHERE {of_chat}"
        database.execute(f"UPDATE checkpoints SET metadata = '{{}}' WHERE checkpoint_id = ({one})")
        database.execute(f"UPDATE writes SET value = X'00' WHERE checkpoint_id = ({one})")
        changed = database.total_changes
        database.execute(f"DELETE FROM checkpoints WHERE {of_chat} AND metadata <> '{{}}'")
        database.commit()
        removed = database.total_changes - changed
    done = report(run("import", archive, file, "--json"), 7)
    assert done["messages"]["written"] == removed > 5
    [failure] = done["failures"]
    assert (failure["session"], failure["code"]) == ("chat", "changed")
    assert f"{changed} rows of the archive differ" in str(failure)
    assert len({*rows(file)["checkpoints"]} ^ {*before["checkpoints"]}) == 2
    assert len(rows(file)["writes"]) == len(before["writes"])


def test_an_archive_that_cannot_be_written(
    run: Run, file: str, policy: Callable[..., Path], bucket: Bucket
) -> None:
    before = rows(file)
    archives = policy(file)
    archives.rmdir()
    fails(run("retain", "--yes"), 3, "does not exist")
    config = Path(os.environ["MEMCTL_CONFIG"])
    url = bucket.url("old-DATE.ndjson.zst").replace("DATE", "{date}")
    config.write_text(
        config.read_text().replace(f"{archives}/old-{{date}}-{{time}}.ndjson.zst", url)
    )
    bucket.folder.rmdir()
    fails(run("retain", "--yes"), 3, "there is no bucket")
    assert rows(file) == before
    bucket.folder.mkdir()
    done = report(run("retain", "--yes", "--json"))["policies"][0]
    assert rows(file) != before
    report(run("import", done["archive"], file, "--json"))
    assert rows(file) == before


def test_a_limit_stops_the_prune(
    run: Run, graphs: Graphs, url: str, policy: Callable[..., Path]
) -> None:
    before = graphs("history", url)
    archives = policy(url, more="max_delete = 100")
    fails(run("retain", "--yes"), 9, "more than max_delete 100")
    assert (graphs("history", url), os.listdir(archives)) == (before, [])


def test_an_agent_may_write_meanwhile(
    graphs: Graphs, url: str, run: Run, policy: Callable[..., Path], tmp_path: Path
) -> None:
    policy(url)
    until = tmp_path / "until"
    graphs.send(do="talk", url=url, until=str(until))
    try:
        reports = [report(run("retain", "--yes", "--json")) for _ in range(5)]
    finally:
        until.touch()
        found = graphs.answer()
    assert sum(one["policies"][0]["state"] == "done" for one in reports) > 1
    assert len(found["state"]["values"]["messages"]) == 4 * found["turns"]


@pytest.mark.parametrize("delay", [0.5, 0.7, 0.9, 1.1])
def test_a_killed_prune_loses_no_row(
    file: str, tmp_path: Path, run: Run, policy: Callable[..., Path], delay: float
) -> None:
    before = rows(file)
    archives = policy(file)
    words = [sys.executable, "-m", "memctl", "retain", "--yes"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as killed:
        time.sleep(delay)
        killed.send_signal(signal.SIGKILL)
    copy = shutil.copy(file, tmp_path / "copy.db")
    for name in os.listdir(archives):
        if name.endswith(".zst") and not name.startswith("."):
            assert run("import", str(archives / name), copy).exit_code == 0
    assert rows(copy) == before
    assert run("retain", "--yes").exit_code == 0
    for name in os.listdir(archives):
        if name.endswith(".zst") and not name.startswith("."):
            assert run("import", str(archives / name), file).exit_code == 0
    assert rows(file) == before
