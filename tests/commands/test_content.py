"""Files under any name: what they hold says what they are; the name decides for new ones."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
from pathlib import Path

import pytest

from memctl.model import MemoryKey
from memctl.testing import samples
from tests.support.cli import FRIDAY, Run, contents, fails, fill, report

KEY = MemoryKey("ada", "kyoto")


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """A file of each kind, under a name that says nothing."""
    found = {}
    for kind, usual, name in (
        ("sqlite", "a.db", "agents.bak"),
        ("archive", "a.ndjson", "nightly.1"),
        ("gzip", "a.ndjson.gz", "nightly.json"),
        ("zstd", "a.ndjson.zst", "nightly.db"),
    ):
        usual_path = tmp_path / usual
        asyncio.run(fill(str(usual_path), {KEY: samples.entries(10)}))
        found[kind] = usual_path.rename(tmp_path / name)
    found["state"] = Path(shutil.copy(FRIDAY, tmp_path / "ada_kyoto.state"))
    return found


@pytest.mark.parametrize("kind", ["sqlite", "archive", "gzip", "zstd", "state"])
def test_content_says_what_a_file_is(run: Run, files: dict[str, Path], kind: str) -> None:
    path = files[kind]
    names = ("--user", "ada", "--session", "kyoto")
    found = report(run("inspect", path, *names, "--json"))
    assert found["store"]["kind"] == {"gzip": "archive", "zstd": "archive"}.get(kind, kind)
    [memory] = found["memories"]
    assert (memory["user"], memory["session"]) == ("ada", "kyoto")
    target = path.with_name("target.ndjson")
    assert run("migrate", path, target, *names).exit_code == 0
    assert run("verify", path, target, *names).exit_code == 0
    if kind != "sqlite":
        assert run("import", path, target, *names).exit_code == 0
    assert run("inspect", "-", input=path.read_bytes()).exit_code == 0


@pytest.mark.parametrize(("kind", "magic"), [("archive", b'{"'), ("gzip", b"\x1f"), ("zstd", b"(")])
def test_content_of_an_archive_stays_compressed_when_it_is_changed(
    run: Run, files: dict[str, Path], kind: str, magic: bytes
) -> None:
    path = files[kind]
    assert run("delete", path, "--last", "3", "--yes").exit_code == 0
    assert path.read_bytes().startswith(magic)
    assert len(contents(str(path))[KEY]) == 7
    other = path.with_name("other.db")
    asyncio.run(fill(str(other), {MemoryKey("bob", "oslo"): samples.entries(5)}))
    assert run("migrate", other, path).exit_code == 0
    assert path.read_bytes().startswith(magic)
    assert len(contents(str(path))) == 2


def test_content_of_sqlite_under_another_name_is_written_in_place(
    run: Run, files: dict[str, Path], filled: str
) -> None:
    path = files["sqlite"]
    assert run("migrate", filled, path).exit_code == 0
    with sqlite3.connect(path) as database:
        assert database.execute("SELECT count(*) FROM message").fetchone() == (110,)


def test_content_that_nobody_knows(run: Run, tmp_path: Path, filled: str) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("Dear diary")
    fails(
        *(run("inspect", text), 2, "notes.txt is neither a SQLite database, a JSON state nor a"),
        "hint: extensions of new files: .db .sqlite .sqlite3 (SQLite), .json (a state), .ndjson",
    )
    fails(run("migrate", filled, text), 2, "notes.txt is neither")
    assert text.read_text() == "Dear diary"
    (tmp_path / "damaged.db").write_text("Dear diary")
    fails(run("inspect", tmp_path / "damaged.db"), 8, "database")


def test_content_is_not_looked_for_in_a_pipe(run: Run, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.state")
    fails(run("inspect", tmp_path / "pipe.state"), 8, "is not a folder")


@pytest.mark.parametrize("options", [(), ("--dry-run",)])
def test_content_of_a_new_file_is_what_its_extension_says(
    run: Run, tmp_path: Path, filled: str, options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (tmp_path / "new.bak", "./new.bak", "new.bak"):
        result = run("migrate", filled, name, *options)
        fails(result, 2, "unrecognised file extension: ", "new.bak", "hint: extensions of new file")
    assert not (tmp_path / "new.bak").exists()
    fails(run("export", filled, "-o", "new.bak", "--as", "archive"), 2, "unrecognised file ext")
    assert run("migrate", filled, "folder.v2/", *options).exit_code == 0
    assert (tmp_path / "folder.v2").is_dir() != bool(options)
    fails(run("inspect", "./nope.bak"), 4, "nope.bak does not exist")
