"""``memctl export --as csv`` and ``--as parquet``: a row for each message or fact, for analysis."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from memctl.dialects.fact import FACT, build
from memctl.machine.installation import install_command
from memctl.model import MemoryKey, StoredMessage
from memctl.registry import make_store, parse
from memctl.store import OpenMode
from memctl.testing import samples
from memctl.testing.drive import write_all
from tests.support.cli import FRIDAY, Run, fails, fill, report
from tests.support.hostile import memories

KEY = MemoryKey("ada", "kyoto")
HOSTILE = [
    *("=1+1", "+1", "-1", "@sum(a)", "\t=1", "\r\n=1", "＝1", "'=1", "''+1", "'quoted", " =1"),
    *("a,b", 'say "hi"', "line\nline\r\nline\rline", "nul\0nul", "half \ud83d of", "😀会话", ""),
    *("\u2028", "\ufeff", "\x1b[31m", "NaN", "\\N", "x" * 200_000),
]


def message(number: int, content: Any, **fields: Any) -> StoredMessage:
    id = f"m{number}"
    return StoredMessage(id, samples.message(id, number, content=content, **fields))


def store_of(folder: Path, contents: list[Any], key: MemoryKey = KEY) -> Path:
    """Make an archive of one memory with messages that say these."""
    path = folder / "store.ndjson"
    found = [message(number, content) for number, content in enumerate(contents)]
    asyncio.run(fill(str(path), {key: found}))
    return path


def facts(folder: Path) -> Path:
    """Make an archive of facts."""
    path = folder / "facts.ndjson"
    vector = samples.vector("a", 4)
    about = {"created_at": "2026-01-02T03:04:05+02:00", "metadata": {"score": float("nan")}}
    found = [
        build({"id": "f1", "text": "=likes tea", "vector": vector} | about),
        build({"id": "f2", "text": "b", "updated_at": "never"}),
    ]

    async def work() -> None:
        async with make_store(parse(str(path)), OpenMode.CREATE) as store:
            store.adopt(FACT)
            entries = [StoredMessage(f"f{n}", text) for n, text in enumerate(found, 1)]
            await write_all(store, [samples.sample(MemoryKey("ada", "run1", "cook"), entries)])

    asyncio.run(work())
    return path


def rows_of(text: str) -> list[dict[str, str]]:
    csv.field_size_limit(10**9)
    return list(csv.DictReader(io.StringIO(text, newline=""), strict=True))


def stored(cell: str) -> str:
    """Return what was stored, as the documentation says to get it back."""
    bare = cell.lstrip("'")
    return cell[1:] if cell.startswith("'") and bare[:1] in set("=+-@＝＋－＠\t\r\n") else cell


def test_csv_is_a_row_a_message(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "kyoto.csv"
    names = ("--user", "ada", "--session", "kyoto")
    found = report(run("export", FRIDAY, *names, "-o", path, "--json"))
    assert (found["as"], found["memories"]["written"], found["messages"]["written"]) == (
        *("csv", 1),
        len(json.loads(FRIDAY.read_text())["content"]),
    )
    assert found["bytes"] == path.stat().st_size
    assert path.stat().st_mode & 0o777 == 0o600
    data = path.read_bytes().decode()
    assert data.split("\r\n", 1)[0] == (
        "user,session,path,position,id,role,name,time,timestamp,marks,kinds,text,tools,"
        "tool_call_ids,characters,message"
    )
    rows = rows_of(data)
    first = json.loads(rows[0].pop("message"))
    assert first["id"] == "Qm1"
    assert rows[0] == {
        **{"user": "ada", "session": "kyoto", "path": "", "position": "1", "id": "Qm1"},
        **{"role": "user", "name": "ada", "time": "2026-10-02 09:14:03.120", "tools": ""},
        **{"timestamp": "2026-10-02T09:14:03.120000+00:00", "marks": "compressed"},
        **{"kinds": "text", "text": first["content"], "tool_call_ids": ""},
        "characters": str(len(first["content"])),
    }
    call = next(row for row in rows if row["kinds"] == "thinking,call")
    result = next(row for row in rows if row["kinds"] == "result")
    assert call["tools"] == result["tools"] == "weather"
    assert call["tool_call_ids"] == result["tool_call_ids"] != ""


def test_csv_no_text_is_a_formula_and_each_comes_back(run: Run, tmp_path: Path) -> None:
    result = run("export", store_of(tmp_path, HOSTILE), "--as", "csv")
    assert result.exit_code == 0
    assert "9 cells would be read as a formula: an apostrophe stands in front" in result.stderr
    rows = rows_of(result.stdout_bytes.decode())
    for row, text in zip(rows, HOSTILE, strict=True):
        assert row["text"][:1] not in set("=+-@＝＋－＠\t\r\n")
        assert stored(row["text"]) == text.replace("\0", "\ufffd").replace("\ud83d", "\ufffd")
        assert row["characters"] == str(len(text))
        assert json.loads(row["message"])["content"] == text


@pytest.mark.slow
def test_csv_of_everything_that_json_can_be(run: Run, tmp_path: Path) -> None:
    source, path = tmp_path / "hostile.ndjson", tmp_path / "hostile.csv"

    async def work() -> None:
        async with make_store(parse(str(source)), OpenMode.CREATE) as store:
            await write_all(store, list(memories(4)))

    asyncio.run(work())
    assert run("export", source, "-o", path).exit_code == 0
    rows = rows_of(path.read_bytes().decode())
    expected = [(one.memory.key, entry) for one in memories(4) for entry in one.entries]
    expected.sort(key=lambda pair: pair[0])
    found: dict[MemoryKey, list[dict[str, str]]] = {}
    for row in rows:
        key = MemoryKey(*(stored(row[name]) for name in ("user", "session", "path")))
        found.setdefault(key, []).append(row)
    for key in {key for key, _ in expected}:
        entries = [entry for other, entry in expected if other == key]
        assert [row["message"].encode() for row in found[key]] == [e.message for e in entries]
        assert [row["position"] for row in found[key]] == [str(n + 1) for n in range(len(entries))]


def test_csv_positions_are_those_of_the_memory(run: Run, filled: str) -> None:
    one = ("--user", "user1", "--session", "session3")
    result = run("export", filled, *one, "--last", "2", "--as", "csv")
    assert [row["position"] for row in rows_of(result.stdout)] == ["39", "40"]


def test_csv_of_facts(run: Run, tmp_path: Path) -> None:
    rows = rows_of(run("export", facts(tmp_path), "--as", "csv").stdout_bytes.decode())
    rows.sort(key=lambda row: row["id"])
    fact = json.loads(rows[0].pop("fact"))
    assert set(fact) == {"id", "text", "created_at", "metadata"}
    assert rows[0] == {
        **{"id": "f1", "user": "ada", "agent": "cook", "run": "run1", "text": "'=likes tea"},
        **{"created_at": "2026-01-02T03:04:05+02:00", "updated_at": "", "updated": ""},
        **{"created": "2026-01-02T01:04:05.000000+00:00", "metadata": '{"score":NaN}'},
        "characters": "10",
    }
    assert (rows[1]["updated_at"], rows[1]["updated"], rows[1]["metadata"]) == ("never", "", "")


@pytest.mark.parametrize("year", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-12:00"])
def test_csv_a_time_beyond_the_clock_stays_a_text(run: Run, tmp_path: Path, year: str) -> None:
    path = tmp_path / "store.ndjson"
    asyncio.run(fill(str(path), {KEY: [message(1, "x", timestamp=year)]}))
    [row] = rows_of(run("export", path, "--as", "csv").stdout)
    assert (row["time"], row["timestamp"]) == (year, "")


def test_csv_dry_run_force_and_rotation(run: Run, filled: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    found = report(run("export", filled, "-o", path, "--dry-run", "--json"))
    assert (found["dry_run"], found["as"], found["messages"]["written"]) == (True, "csv", 100)
    assert not path.exists()
    path.write_text("precious")
    fails(run("export", filled, "-o", path), 2, "exists", "--force")
    assert path.read_text() == "precious"
    assert run("export", filled, "-o", path, "--force").exit_code == 0
    assert len(rows_of(path.read_text())) == 100
    for _ in range(2):
        nights = tmp_path / "nights.csv"
        assert run("export", filled, "-o", nights, "--rotate", "last:1").exit_code == 0
    assert len(list(tmp_path.glob("nights-*.csv"))) == 1
    fails(run("export", filled, "--as", "csv", "-o", tmp_path / "a.txt"), 2, "NAME.csv")
    fails(run("export", filled, "--as", "csv", "--user", "nobody"), 4, "'nobody'")


def test_csv_of_an_empty_store_is_its_header(run: Run, database: str) -> None:
    asyncio.run(fill(database, {}))
    result = run("export", database, "--as", "csv")
    assert result.exit_code == 0
    assert result.stdout.startswith("user,session,")
    assert rows_of(result.stdout) == []


def table_of(run: Run, source: object, path: Path, *options: str) -> pyarrow.Table:
    """The table of an export."""
    assert run("export", source, "-o", path, "--force", *options).exit_code == 0
    return parquet.read_table(path)


DUCKDB = """
import duckdb, json, sys
print(json.dumps(duckdb.sql(sys.argv[1]).fetchall()))
"""


def asked(question: str) -> list[list[Any]]:
    """Return the answer of DuckDB, from a process of its own: at its end it may report leaks."""
    done = subprocess.run(
        [sys.executable, "-c", DUCKDB, question], check=True, capture_output=True, text=True
    )
    rows: list[list[Any]] = json.loads(done.stdout)
    return rows


@pytest.mark.slow
def test_parquet_is_the_table_with_types(run: Run, tmp_path: Path) -> None:
    names = ("--user", "ada", "--session", "kyoto")
    path = tmp_path / "kyoto.parquet"
    table = table_of(run, FRIDAY, path, *names)
    types = {field.name: str(field.type) for field in table.schema}
    assert types["position"] == types["characters"] == "int64"
    assert types["timestamp"] == "timestamp[us, tz=UTC]"
    assert {types[name].partition("<")[0] for name in ("marks", "kinds", "tools")} == {"list"}
    first, *_, last = table.to_pylist()
    assert first["timestamp"].isoformat() == "2026-10-02T09:14:03.120000+00:00"
    assert (first["marks"], first["kinds"], first["tools"]) == (["compressed"], ["text"], [])
    assert (last["role"], last["position"]) == ("system", table.num_rows)
    assert parquet.ParquetFile(path).metadata.row_group(0).column(0).compression == "ZSTD"
    assert asked(
        f"SELECT text, marks, epoch_ms(timestamp), message->>'id' FROM '{path}' "
        "WHERE list_contains(marks, 'compressed') ORDER BY position LIMIT 1"
    ) == [[first["text"], ["compressed"], 1790932443120, "Qm1"]]
    rows = rows_of(run("export", FRIDAY, *names, "--as", "csv").stdout_bytes.decode())
    for row, found in zip(rows, table.to_pylist(), strict=True):
        assert list(row) == list(found)
        for name in ("id", "time", "text", "message"):
            assert stored(row[name]) == found[name]
        for name in ("marks", "kinds", "tools", "tool_call_ids"):
            assert row[name] == ",".join(found[name])


@pytest.mark.slow
def test_parquet_keeps_texts_as_they_are(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = table_of(run, store_of(tmp_path, HOSTILE), path)
    texts = [text.replace("\ud83d", "\ufffd") for text in HOSTILE]
    assert table["text"].to_pylist() == texts
    assert asked(f"SELECT text FROM '{path}' ORDER BY position") == [[text] for text in texts]
    assert [json.loads(one)["content"] for one in table["message"].to_pylist()] == HOSTILE


@pytest.mark.slow
def test_parquet_large_memories_are_several_row_groups(run: Run, tmp_path: Path) -> None:
    contents = ["x" * 10_000_000, "small", *("y" * 1_000_000 for _ in range(20))]
    path = tmp_path / "a.parquet"
    table = table_of(run, store_of(tmp_path, contents), path)
    assert table["characters"].to_pylist() == [len(text) for text in contents]
    assert parquet.ParquetFile(path).metadata.num_row_groups > 2
    assert path.stat().st_size < 1_000_000


def test_parquet_of_facts_and_of_nothing(run: Run, tmp_path: Path, database: str) -> None:
    rows = table_of(run, facts(tmp_path), tmp_path / "facts.parquet").to_pylist()
    assert [row["text"] for row in sorted(rows, key=lambda row: row["id"])] == ["=likes tea", "b"]
    asyncio.run(fill(database, {}))
    table = table_of(run, database, tmp_path / "none.parquet")
    assert (table.num_rows, table.num_columns) == (0, 16)


def test_parquet_is_a_file(run: Run, filled: str, tmp_path: Path) -> None:
    fails(run("export", filled, "--as", "parquet"), 2, "stdout", "-o NAME.parquet")
    path = tmp_path / "a.parquet"
    found = report(run("export", filled, "-o", path, "--dry-run", "--json"))
    assert (found["as"], found["memories"]["written"]) == ("parquet", 4)
    assert not path.exists()
    assert run("export", filled, "-o", path, "--rotate", "daily:7").exit_code == 0
    assert len(list(tmp_path.glob("a-*.parquet"))) == 1


def test_parquet_without_its_library(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = store_of(tmp_path, ["a"])
    source.write_bytes(source.read_bytes()[:-5])  # it is not even read
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "memctl.ops.export.parquet", raising=False)
    path = tmp_path / "a.parquet"
    fails(run("export", source, "-o", path), 2, install_command("parquet"))
    assert not path.exists()


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
def test_rows_damaged_memory_is_left_out_and_the_file_whole(
    run: Run, tmp_path: Path, filled: str, name: str
) -> None:
    with closing(sqlite3.connect(tmp_path / "agents.db")) as connection, connection:
        connection.execute(
            "UPDATE message SET msg = 'not JSON' WHERE session_id = 'session3' AND \"index\" = 30"
        )
    result = run("export", filled, "-o", tmp_path / name)
    assert result.exit_code == 7
    if name == "a.csv":
        found = [row["session"] for row in rows_of((tmp_path / name).read_text())]
    else:
        found = parquet.read_table(tmp_path / name)["session"].to_pylist()
    assert Counter(found) == {"session0": 10, "session1": 20, "session2": 30}
