"""``memctl import``: what AgentScope and memctl wrote, and what is not what it claims to be."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from memctl.model import MemoryKey
from memctl.testing import samples
from tests.support.cli import FRIDAY, Run, contents, fails, fill, report

WHO = ("--user", "ada", "--session", "kyoto")
KYOTO = MemoryKey("ada", "kyoto")
MESSAGES = [json.loads(samples.message(f"m{n}", n)) for n in range(3)]


@pytest.mark.parametrize(
    "state",
    [
        {"content": MESSAGES},
        {"content": [[message, ["hint"]] for message in MESSAGES]},
        {"_compressed_summary": "", "content": [[message, []] for message in MESSAGES]},
    ],
    ids=["to 1.0.11", "to 1.0.15", "to 1.0.21"],
)
def test_import_every_shape_of_a_state_dict(
    run: Run, database: str, tmp_path: Path, state: object
) -> None:
    path = tmp_path / "state.json"
    path.write_text(json.dumps(state))
    found = report(run("import", path, database, *WHO, "--json"))
    assert found["schema"] == "memctl/import/1"
    assert found["messages"]["written"] == 3
    assert [json.loads(entry.message) for entry in contents(database)[KYOTO]] == MESSAGES


def test_import_state_dict_says_not_whose_it_is(run: Run, database: str) -> None:
    fails(run("import", FRIDAY, database), 2, "--user", "--session")
    fails(run("import", FRIDAY, database, "--user", "ada"), 2, "--session")


def test_import_session_with_several_memories(run: Run, database: str, tmp_path: Path) -> None:
    memory = {"_compressed_summary": "", "content": [[message, []] for message in MESSAGES]}
    state = {"agent": {"name": "F", "memory": memory}, "planner": {"memory": {"content": []}}}
    folder = tmp_path / "sessions"
    folder.mkdir()
    (folder / "ada_kyoto.json").write_text(json.dumps(state))
    fails(run("import", folder, database), 2, "one memory per session", "--path")
    found = report(run("import", folder, database, "--path", "agent.memory", "--json"))
    assert found["messages"]["written"] == 3
    assert set(contents(database)) == {KYOTO}
    one = folder / "ada_kyoto.json"
    assert report(run("import", one, database, "--path", "agent.memory", "--json"))["memories"][
        "unchanged"
    ]


def test_import_rest_of_a_state_is_untouched(run: Run, filled: str, tmp_path: Path) -> None:
    folder = tmp_path / "sessions"
    folder.mkdir()
    path = folder / "user0_session0.json"
    before = (
        '{ "agent" : {"memory":{"_compressed_summary":"" , "content":[ ] },\n"p": 1.50}, "t":NaN}'
    )
    path.write_text(before)
    assert run("migrate", filled, folder, "--user", "user0", "--session", "session0").exit_code == 0
    after = path.read_text()
    start, end = before.index("[ ]"), before.index("[ ]") + 3
    assert after.startswith(before[:start])
    assert after.endswith(before[end:])
    assert len(json.loads(after)["agent"]["memory"]["content"]) == 10


@pytest.mark.parametrize("pack", [lambda data: data, gzip.compress], ids=["plain", "gzip"])
def test_import_stdin(
    run: Run, database: str, filled_archive: Path, pack: Callable[[bytes], bytes]
) -> None:
    data = pack(filled_archive.read_bytes())
    assert report(run("import", "-", database, "--json", input=data))["memories"]["written"] == 2
    state = FRIDAY.read_bytes()
    found = run("import", "-", database, *WHO, "--lossy", "--json", input=state)
    assert report(found)["memories"]["written"] == 1


@pytest.fixture
def filled_archive(tmp_path: Path) -> Path:
    path = tmp_path / "in.ndjson"
    two = {MemoryKey("a", "one"): samples.entries(30), MemoryKey("b", "two"): samples.entries(20)}
    asyncio.run(fill(str(path), two))
    return path


@pytest.mark.parametrize("keep", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_import_truncated_archive_writes_nothing(
    run: Run, database: str, filled_archive: Path, keep: float
) -> None:
    data = filled_archive.read_bytes()
    filled_archive.write_bytes(data[: int(len(data) * keep)])
    fails(run("import", filled_archive, database), 8, "hint:")
    assert not Path(database.removeprefix("sqlite:///")).exists()


def test_import_altered_archive_writes_nothing(
    run: Run, database: str, filled_archive: Path
) -> None:
    filled_archive.write_bytes(filled_archive.read_bytes().replace(b"message 7", b"message 8"))
    fails(run("import", filled_archive, database), 8)
    assert not Path(database.removeprefix("sqlite:///")).exists()


BAD = {
    "cut in half": FRIDAY.read_bytes()[:1500],
    "empty": b"",
    "not JSON": b"hello",
    "something else": b'{"name": "npm", "version": "1.0.0"}',
    "a list": b"[1, 2, 3]",
    "no messages": b'{"content": [1, 2], "_compressed_summary": ""}',
    "rest behind": FRIDAY.read_bytes() + b"}",
    "another encoding": '{"_compressed_summary": "é", "content": []}'.encode("latin-1"),
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD)
def test_import_file_that_is_no_state_writes_nothing(
    run: Run, database: str, tmp_path: Path, data: bytes
) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(data)
    fails(run("import", path, database, *WHO), 8, "bad.json")
    assert not Path(database.removeprefix("sqlite:///")).exists()


def test_import_mistakes(run: Run, filled: str, database: str, tmp_path: Path) -> None:
    fails(run("import", tmp_path / "none.json", database, *WHO), 4, "does not exist")
    fails(run("import", filled, tmp_path / "x.ndjson"), 2, "migrate")
    (notes := tmp_path / "all.md").write_text("# Memory")
    words = ("memctl writes HTML, Markdown, Parquet and CSV, but does not read them", "an archive")
    fails(run("import", notes, database), 2, *words)
    fails(run("import", "-", database, input=b"hello"), 8, "stdin")


def test_import_message_under_another_id_than_its_own(
    run: Run, database: str, tmp_path: Path
) -> None:
    """A state knows no other id of a message than the one in its text; a database does."""
    own, other = samples.entries(2)
    memories = {KYOTO: [own, other._replace(id="other")], MemoryKey("ada", "oslo"): [own]}
    asyncio.run(fill(database, memories))
    archive, folder = tmp_path / "a.ndjson", tmp_path / "states"
    report(run("export", database, "-o", archive, "--json"))
    folder.mkdir()
    found = report(run("import", archive, folder, "--json"), 7)
    [failure] = found["failures"]
    assert (failure["session"], failure["code"]) == ("kyoto", "refused")
    assert "'other' has the id 'm0000001' in its text" in failure["message"]
    assert [path.name for path in folder.iterdir()] == ["ada_oslo.json"]
    report(run("import", archive, f"sqlite:///{tmp_path}/copy.db", "--json"))
    assert contents(f"sqlite:///{tmp_path}/copy.db").keys() == memories.keys()
