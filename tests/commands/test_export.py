"""``memctl export``: files that appear whole, for AgentScope, for memctl, and for people."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from memctl.model import MemoryKey
from memctl.testing import samples
from tests.support.cli import FRIDAY, Run, fails, fill, report

KYOTO = ("--user", "ada", "--session", "kyoto")
TWO = {MemoryKey("a", "one"): samples.entries(3), MemoryKey("b", "two"): samples.entries(2)}


def mode(path: Path) -> int:
    """The permission bits of a file."""
    return path.stat().st_mode & 0o777


@pytest.mark.parametrize("options", [[], ["-o", "-"], ["--as", "state-dict"]])
def test_export_one_memory_is_a_state_dict(run: Run, options: list[str]) -> None:
    result = run("export", FRIDAY, *KYOTO, *options)
    assert result.exit_code == 0
    assert json.loads(result.stdout) == json.loads(FRIDAY.read_text())


def test_export_several_memories_are_an_archive(run: Run, filled: str) -> None:
    result = run("export", filled)
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert lines[0]["memctl"] == "archive"
    assert lines[0]["version"] == 1
    assert sum("message" in line for line in lines) == 100
    assert lines[-1]["end"]["memories"] == 4
    assert lines[-1]["end"]["messages"] == 100


@pytest.mark.parametrize("name", ["b.ndjson", "b.ndjson.gz", "b.ndjson.zst"])
def test_export_ending_says_what_is_written(
    run: Run, filled: str, tmp_path: Path, name: str
) -> None:
    path = tmp_path / name
    assert run("export", filled, "--user", "user1", "-o", path).exit_code == 0
    assert mode(path) == 0o600
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".memctl")] == []
    magic = {"b.ndjson": b'{"memctl"', "b.ndjson.gz": b"\x1f\x8b", "b.ndjson.zst": b"\x28\xb5"}
    assert path.read_bytes().startswith(magic[name])
    assert run("verify", filled, path, "--user", "user1").exit_code == 0


def test_export_no_secret_and_no_path_of_a_password_is_kept(
    run: Run, postgresql_url: str, tmp_path: Path
) -> None:
    password = postgresql_url.split(":")[2].split("@")[0]
    asyncio.run(fill(postgresql_url, TWO))
    assert run("export", postgresql_url, "-o", tmp_path / "a.ndjson").exit_code == 0
    text = (tmp_path / "a.ndjson").read_text()
    assert password not in text.splitlines()[0]
    assert "***" in text.splitlines()[0]


def test_export_folder_for_json_session(run: Run, filled: str, tmp_path: Path) -> None:
    folder = tmp_path / "sessions"
    assert run("export", filled, "--as", "session-dir", "-o", folder).exit_code == 0
    names = sorted(path.name for path in folder.iterdir())
    assert names == [f"user{n // 3}_session{n}.json" for n in range(4)]
    assert {mode(path) for path in folder.iterdir()} == {0o600}
    state = json.loads((folder / "user0_session1.json").read_text())
    assert len(state["memory"]["content"]) == 20
    assert run("verify", filled, folder).exit_code == 0
    nested = tmp_path / "nested"
    options = ("--as", "session-dir", "--path", "agent.memory", "--last", "1")
    assert run("export", filled, *options, "-o", nested).exit_code == 0
    state = json.loads((nested / "user0_session1.json").read_text())
    assert len(state["agent"]["memory"]["content"]) == 1


@pytest.mark.parametrize("session", ["../../x", "/etc/x", "a/../../b", "x\0y"])
def test_export_no_name_leaves_the_folder(run: Run, tmp_path: Path, session: str) -> None:
    source, folder = tmp_path / "in" / "a.ndjson", tmp_path / "in" / "sessions"
    source.parent.mkdir()
    asyncio.run(fill(str(source), {MemoryKey("", session): samples.entries(1), **TWO}))
    before = {path for path in tmp_path.rglob("*") if folder not in path.parents}
    result = run("export", source, "--as", "session-dir", "-o", folder)
    fails(result, 7, "could not be written")
    after = {path for path in tmp_path.rglob("*") if folder not in path.parents}
    assert after - before == {folder}
    assert sorted(path.name for path in folder.iterdir()) == ["a_one.json", "b_two.json"]


def test_export_markdown_is_for_reading(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "kyoto.md"
    assert run("export", FRIDAY, *KYOTO, "-o", path).exit_code == 0
    text = path.read_text()
    assert text.startswith("# ada / kyoto\n\n> &lt;system-info>")
    assert "## ada — 2026-10-02 09:14:03.120 `compressed`" in text
    assert "<details><summary>→ weather</summary>" in text
    assert "*image: https://example.com/tofukuji.jpg*" in text
    assert mode(path) == 0o600


def test_export_what_is_there_is_not_overwritten(run: Run, filled: str, tmp_path: Path) -> None:
    path = tmp_path / "a.ndjson"
    path.write_text("precious")
    fails(run("export", filled, "-o", path), 2, "exists", "--force")
    assert path.read_text() == "precious"
    assert run("export", filled, "-o", path, "--force").exit_code == 0
    assert run("verify", filled, path).exit_code == 0
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x.json").write_text("precious")
    fails(run("export", filled, "--as", "session-dir", "-o", tmp_path / "full"), 2, "exists")


def test_export_follows_links_and_keeps_the_mode(run: Run, filled: str, tmp_path: Path) -> None:
    file, link = tmp_path / "there" / "a.ndjson", tmp_path / "link.ndjson"
    file.parent.mkdir()
    file.write_text("old")
    file.chmod(0o640)
    link.symlink_to(file)
    assert run("export", filled, "-o", link, "--force").exit_code == 0
    assert link.readlink() == file
    assert run("verify", filled, file).exit_code == 0
    assert mode(file) == 0o640
    file.unlink()
    assert run("export", filled, "-o", link).exit_code == 0
    assert link.readlink() == file
    assert mode(file) == 0o600
    assert [path.name for path in file.parent.iterdir()] == ["a.ndjson"]


def test_export_failed_export_leaves_what_was_there(run: Run, filled: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("precious")
    fails(run("export", filled, "--as", "state-dict", "-o", path, "--force"), 2, "one memory")
    assert path.read_text() == "precious"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.json", "agents.db"]


def test_export_mistakes(run: Run, filled: str, tmp_path: Path) -> None:
    fails(run("export", filled, "-o", tmp_path / "none" / "a.ndjson"), 2, "does not exist")
    fails(run("export", filled, "--as", "session-dir"), 2, "stdout", "-o FOLDER")
    fails(run("export", filled, "-o", tmp_path, "--as", "archive"), 2, "folder")
    fails(run("export", filled, "--user", "nobody"), 4, "'nobody'")
    fails(run("export", filled, "--as", "state-dict", "--mark", "none"), 4, "no memory")


@pytest.mark.slow
def test_export_as_json_is_the_document_of_one_memory(
    run: Run, filled: str, tmp_path: Path, target: str
) -> None:
    one = ("--user", "user1", "--session", "session3")
    text = run("export", filled, *one, "--as", "json").stdout
    assert text == run("export", filled, *one, "--as", "state-dict").stdout
    assert len(json.loads(text)["content"]) == 40
    found = report(run("export", filled, *one, "--as", "json", "-o", tmp_path / "a.json", "--json"))
    assert found["as"] == "state-dict"
    assert run("import", tmp_path / "a.json", target, *one).exit_code == 0
    assert run("verify", filled, target, *one).exit_code == 0
    fails(
        *(run("export", filled, "--as", "json"), 2, "a JSON file (state_dict) holds one memory"),
        "use --as archive for all",
    )
