"""One part of a command at a time, with ``--shard K/N``, as Jobs of Kubernetes run it."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow.dataset
import pytest
import redis

from memctl.model import MemoryKey
from memctl.shard import Shard
from memctl.testing import samples
from tests.parts.conftest import MEMORIES, memories
from tests.support.cli import Run, add, contents, fails, fill, report
from tests.support.redis_sessions import history

OF = 3
SHARDS = [f"{number}/{OF}" for number in range(OF)]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A SQLite database with memories."""
    path = tmp_path / "agents.db"
    asyncio.run(fill(f"sqlite:///{path}", memories()))
    return path


def in_parts(run: Run, *words: Any, code: int = 0) -> list[dict[str, Any]]:
    """Run a command once for each shard; return the reports."""
    return [report(run(*words, "--shard", shard, "--json"), code) for shard in SHARDS]


def written(reports: list[dict[str, Any]]) -> int:
    return sum(one["memories"]["written"] for one in reports)


# Files


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["ndjson.zst", "jsonl"])
def test_export_writes_a_file_a_part_and_import_loads_them(
    run: Run, database: Path, tmp_path: Path, ending: str
) -> None:
    name = f"nightly-{{shard}}.{ending}"
    found = in_parts(run, "export", database, "-o", tmp_path / name, "--lossy")
    assert written(found) == MEMORIES
    files = [tmp_path / f"nightly-{n:04}-of-0003.{ending}" for n in range(OF)]
    assert sorted(tmp_path.glob("nightly-*")) == files
    assert [one["file"] for one in found] == list(map(str, files))
    by_name, by_shard = tmp_path / "a.db", tmp_path / "b.db"
    for file in files:
        assert run("import", file, f"sqlite:///{by_name}").exit_code == 0
    assert written(in_parts(run, "import", tmp_path / name, f"sqlite:///{by_shard}")) == MEMORIES
    assert contents(str(by_name)) == contents(str(by_shard))
    if ending == "ndjson.zst":
        assert run("verify", database, by_name).exit_code == 0


@pytest.mark.parametrize(
    ("output", "more", "said"),
    [
        ("a.ndjson.zst", "", "-o {}/a-{{shard}}.ndjson.zst"),
        ("a.html", "", "-o {}/a-{{shard}}.html"),
        ("a-{{shard}}.json", "", "a state_dict holds one memory"),
        ("a-{{shard}}.ndjson", "--min-memories 1", "--min-memories and --min-messages"),
        ("a-{{shard}}.ndjson", "--min-messages 1", "add up the numbers"),
        ("taken-{{shard}}.ndjson", "", "exists"),
    ],
)
def test_export_that_parts_cannot_share_is_refused(
    run: Run, database: Path, tmp_path: Path, output: str, more: str, said: str
) -> None:
    (tmp_path / "taken-0001-of-0003.ndjson").touch()
    before = sorted(tmp_path.iterdir())
    place = tmp_path / output.format()
    result = run("export", database, "--shard", "1/3", "-o", place, *more.split())
    fails(result, 2, said.format(tmp_path))
    result = run("export", database, "--shards", "3", "-o", place, *more.split())
    assert result.exit_code == 2
    assert sorted(tmp_path.iterdir()) == before


def test_export_place_for_the_shard_needs_a_shard(run: Run, database: Path) -> None:
    fails(run("export", database, "-o", "a-{shard}.ndjson"), 2, "add --shard K/N or --shards N")


def test_export_of_a_part_to_stdout_is_an_archive(run: Run, database: Path) -> None:
    ends = []
    for shard in "0/3", "1/3", "2/3", "999/1000":
        lines = run("export", database, "--shard", shard).stdout.splitlines()
        assert json.loads(lines[0])["memctl"] == "archive"
        ends.append(json.loads(lines[-1])["end"]["memories"])
    assert sum(ends[:3]) == MEMORIES
    assert ends[3] < 2


def test_export_of_an_empty_part_rotates(run: Run, database: Path, tmp_path: Path) -> None:
    output = tmp_path / "n-{shard}.ndjson"
    words = ("export", database, "-o", output, "--rotate", "last:1", "--user", "nobody")
    found = in_parts(run, *words)
    assert [Path(one["file"]).exists() for one in found] == [True] * OF


def test_parquet_files_of_parts_are_one_data_set(run: Run, database: Path, tmp_path: Path) -> None:
    folder = tmp_path / "messages"
    words = ("export", database, "--as", "parquet", "-o", folder)
    found = in_parts(run, *words)
    assert Path(found[1]["file"]).name == "part-0001-of-0003.parquet"
    table = pyarrow.dataset.dataset(folder).to_table()
    assert table.num_rows == MEMORIES * 4
    assert len(set(table["session"].to_pylist())) == MEMORIES
    fails(run(*words, "--shard", "1/4"), 2, "another number of parts")
    fails(run(*words, "--shard", "1/3"), 2, "exists")
    assert run(*words, "--shard", "1/3", "--force").exit_code == 0
    assert pyarrow.dataset.dataset(folder).to_table().num_rows == MEMORIES * 4


@pytest.mark.slow
def test_parts_write_into_one_folder_of_sessions(run: Run, database: Path, tmp_path: Path) -> None:
    folder = f"{tmp_path}/sessions/"
    words = ("export", database, "-o", folder, "--lossy")
    assert written(in_parts(run, *words)) == MEMORIES
    assert run("verify", database, folder).exit_code == 0
    assert written(in_parts(run, *words)) == 0  # again: nothing is new
    key = next(key for key in memories() if Shard(1, OF).has(key))
    add(tmp_path / "sessions", key, samples.entries(5)[4:], 4)
    fails(run(*words, "--shard", "1/3"), 5, "use --force")
    assert run(*words, "--shard", "0/3").exit_code == 0
    assert run(*words, "--shard", "1/3", "--force").exit_code == 0
    assert run("verify", database, folder).exit_code == 0


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["markdown", "html"])
def test_parts_write_into_one_folder_for_readers(
    run: Run, database: Path, tmp_path: Path, shape: str
) -> None:
    folder = tmp_path / shape
    words = ("export", database, "--as", shape, "-o", folder)
    if shape == "html":  # all at the same time
        assert run(*words, "--shards", "3", "--workers=3").exit_code == 0
    else:
        assert written(in_parts(run, *words)) == MEMORIES
    index = folder / {"markdown": "README.md", "html": "index.html"}[shape]
    pages = [path.relative_to(folder) for path in folder.glob("*/*")]
    assert len(pages) == MEMORIES
    assert all(quote(path.as_posix()) in index.read_text() for path in pages)
    assert sum(one["memories"]["unchanged"] for one in in_parts(run, *words)) == MEMORIES


@pytest.mark.slow
def test_prune_removes_files_of_the_shard_alone(run: Run, database: Path, tmp_path: Path) -> None:
    folder = tmp_path / "pages"
    words = ("export", database, "--as", "html", "-o", folder)
    assert run(*words).exit_code == 0
    gone = sorted(memories())[:4]
    for key in gone:
        named = ("--user", key.user, "--session", key.session)
        assert run("delete", database, *named, "--yes").exit_code == 0
        with sqlite3.connect(database) as connection:
            connection.execute("DELETE FROM session WHERE id = ?", [key.session])
    for shard in SHARDS:
        [found] = [report(run(*words, "--prune", "--shard", shard, "--json"))]
        assert len(found["removed"]) == sum(Shard.parse(shard).has(key) for key in gone)
    assert len(list(folder.rglob("*.html"))) == MEMORIES - len(gone) + 1


# Stores


@pytest.mark.slow
def test_migrate_shard_by_shard(run: Run, database: Path, redis_url: str) -> None:
    found = in_parts(run, "migrate", database, redis_url)
    assert written(found) == MEMORIES
    assert all(one["verified"] for one in found)
    assert written(in_parts(run, "migrate", database, redis_url)) == 0
    assert run("verify", database, redis_url).exit_code == 0


@pytest.mark.slow
def test_verify_of_a_shard_sees_its_differences_alone(
    run: Run, database: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.db"
    extra = MemoryKey("user 9", "only there")
    asyncio.run(fill(f"sqlite:///{other}", {**memories(), extra: samples.entries(1)}))
    for shard in SHARDS:
        code = 6 if Shard.parse(shard).has(extra) else 0
        found = report(run("verify", database, other, "--shard", shard, "--json"), code)
        assert found["memories"]["extra"] == (code == 6)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["inspect", "doctor", "export", "migrate"])
def test_user_or_session_may_be_in_another_shard(
    run: Run, database: Path, tmp_path: Path, command: str
) -> None:
    key = sorted(memories())[0]
    stores = {
        "export": [database, "--force", "-o", tmp_path / "x-{shard}.ndjson"],
        "migrate": [database, f"sqlite:///{tmp_path}/x.db"],
    }
    words = [command, *stores.get(command, [database])]
    for session, found in (key.session, 1), ("none", 0):
        memories_ = []
        for shard in SHARDS:
            named = ["--session", session, "--shard", shard, "--json"]
            one = json.loads(run(*words, *named).stdout)
            assert "error" not in one or one["error"]["code"] == "unhealthy"
            memories_.append(one.get("totals", one)["memories"])
        numbers = [one["selected"] if isinstance(one, dict) else one for one in memories_]
        assert sum(numbers) == found


@pytest.mark.slow
def test_user_whom_no_part_has_found_is_an_error(run: Run, database: Path) -> None:
    words = ("inspect", database, "--shards", "1")
    fails(run(*words, "--user", "nobody"), 4, "no memory of 'nobody'")


# Doctor


def test_doctor_finds_what_belongs_to_no_memory_in_the_first_part(run: Run, database: Path) -> None:
    with sqlite3.connect(database) as connection:
        connection.execute("PRAGMA foreign_keys = OFF")
        connection.execute("INSERT INTO message_mark (msg_id, mark) VALUES ('gone', 'hint')")
    whole = findings(json.loads(run("doctor", database, "--json").stdout))
    assert ("orphan-mark", None) in whole
    parts = [
        findings(json.loads(run("doctor", database, "--shard", shard, "--json").stdout))
        for shard in SHARDS
    ]
    assert sorted(parts[0] + parts[1] + parts[2], key=str) == sorted(whole, key=str)
    assert ("orphan-mark", None) in parts[0]


def findings(found: dict[str, Any]) -> list[tuple[str, str | None]]:
    return [(one["code"], one["session"]) for one in found["findings"]]


def test_doctor_compares_an_index_with_the_sessions_of_the_shard(
    run: Run, client: redis.Redis, redis_url: str
) -> None:
    sessions = [f"s{number}" for number in range(8)]
    for session in sessions:
        client.set(f"session:u:{session}", history("u", session, ["m1"]))
    client.sadd("session_index:u", *sessions)
    assert all(one["findings"] == [] for one in in_parts(run, "doctor", redis_url))
    client.sadd("session_index:u", "gone", "gone too", "gone as well")
    found = [
        json.loads(run("doctor", redis_url, "--shard", shard, "--json").stdout) for shard in SHARDS
    ]
    assert sum(finding["count"] for one in found for finding in one["findings"]) == 3
