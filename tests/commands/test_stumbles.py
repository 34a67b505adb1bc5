"""Mistakes that would cost something, and what happens instead."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from memctl.model import MemoryKey
from memctl.testing import samples
from tests.support.cli import FRIDAY, Run, contents, fails, fill, report

ONE = MemoryKey("ada", "kyoto")
WHO = ("--user", "ada", "--session", "kyoto")


def state(count: int) -> dict[str, object]:
    """A state_dict with so many messages."""
    content = [[json.loads(entry.message), list(entry.marks)] for entry in samples.entries(count)]
    return {"_compressed_summary": "", "content": content}


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """A session file with two memories."""
    folder = tmp_path / "two"
    folder.mkdir()
    path = folder / "ada_kyoto.json"
    both = {"agent": {"name": "F", "memory": state(3)}, "planner": {"memory": state(2)}}
    path.write_text(json.dumps(both))
    return path


def test_usage_export_never_replaces_a_database(run: Run, filled: str, tmp_path: Path) -> None:
    path = Path(filled.removeprefix("sqlite:///"))
    other = tmp_path / "other.db"
    asyncio.run(fill(str(other), {ONE: samples.entries(1)}))
    for target in (path, other):
        before = target.read_bytes()
        for options in ([], ["--as", "archive"], ["--as", "markdown"]):
            fails(run("export", filled, "-o", target, "--force", *options), 2, "hint:")
        assert target.read_bytes() == before
    archive = tmp_path / "a.ndjson"
    assert run("export", filled, "-o", archive).exit_code == 0
    before = archive.read_bytes()
    fails(run("export", archive, "-o", archive, "--force"), 2, "the store being exported")
    assert archive.read_bytes() == before


@pytest.mark.slow
def test_usage_misspelt_mark_gets_a_suggestion(run: Run, filled: str, tmp_path: Path) -> None:
    suggested = "has no message with the mark 'hnt': did you mean 'hint'?"
    target = tmp_path / "new.db"
    for words in (
        ("delete", filled, "--mark", "hnt", "--yes"),
        ("mark", "add", filled, "new", "--mark", "hnt"),
        ("mark", "remove", filled, "hnt"),
        ("mark", "rename", filled, "hnt", "new"),
        ("inspect", filled, "--mark", "hnt"),
        ("inspect", filled, "--mark", "hnt", "--messages"),
        ("export", filled, "--mark", "hnt", "--as", "archive", "-o", tmp_path / "a.ndjson"),
        ("export", filled, "--mark", "hnt", "--as", "markdown", "-o", tmp_path / "a.md"),
        ("migrate", filled, target, "--mark", "hnt"),
    ):
        done = run(*words)
        assert done.exit_code == 0, words
        assert suggested in " ".join(done.stderr.split()), words
    for other in ("unknown", "hint"):  # nothing similar; and a mark that is there
        done = run("delete", filled, "--mark", other, "--id", "none", "--yes")
        assert "did you mean" not in done.stderr


@pytest.mark.parametrize(
    ("words", "said", "hint"),
    [
        ("export STORE out.json", "'out.json': memctl export takes STORE", "-o FILE to write a"),
        ("inspect STORE --user Ada Lovelace", "'Lovelace': memctl inspect", '"Ada Lovelace"'),
        ("inspect STORE --user=Ada Lovelace", "'Lovelace'", '"--user=Ada Lovelace"'),
        ("mark add STORE to do", "'do': memctl mark add takes STORE MARK", '"to do"'),
        ("inspect STORE other.db", "'other.db': memctl inspect takes STORE", "inspect --help"),
        ("undo a b c", "'b c': memctl undo takes [RUN]", "memctl undo --help lists"),
        ("config show x", "'x': memctl config show takes no arguments", "show --help"),
    ],
)
def test_usage_unexpected_words_are_named(
    run: Run, filled: str, words: str, said: str, hint: str
) -> None:
    line = [filled if word == "STORE" else word for word in words.split()]
    fails(run(*line), 2, f"unexpected {said}", hint)


def test_usage_export_can_be_read_back(run: Run, filled: str, tmp_path: Path) -> None:
    for name, shape in (("a.txt", "archive"), ("a.json", "archive"), ("a.ndjson", "state-dict")):
        fails(
            run("export", filled, "-o", tmp_path / name, "--as", shape),
            2,
            "unrecognised file extension",
        )


def test_usage_forced_export_into_a_folder_replaces_its_sessions(
    run: Run, filled: str, tmp_path: Path
) -> None:
    folder = tmp_path / "sessions"
    asyncio.run(fill(f"{folder}/", {samples.key(0): [samples.entry("old")]}))
    (folder / "other.json").write_text('{"memory": {"content": []}}')
    options = ("--as", "session-dir", "-o", folder)
    fails(run("export", filled, *options), 2, "exists")
    assert run("export", filled, *options, "--force").exit_code == 0
    assert (folder / "other.json").exists()
    assert len(contents(f"{folder}/")[samples.key(0)]) == 10


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ops:hunter2/xyz@h/x",
        "postgresql://ops:hunter2?xyz@h/x",
        "postgresql://ops:hunter2#xyz@h/x",
        "mysql://ops:hunter2/xyz@h/x",
        "mysql://ops:hunter2#xyz@h/x",
        "redis://:hunter2/xyz@h:1",
        "redis://[::1",
        "postgresql://[::1/hunter2",
    ],
)
def test_usage_no_piece_of_a_password_is_shown(run: Run, url: str) -> None:
    result = run("inspect", url)
    fails(result, result.exit_code, "hint:")
    assert result.exit_code in (2, 3)
    assert "hunter2" not in result.stdout + result.stderr


def test_usage_empty_name_is_no_folder(
    run: Run, filled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = set(tmp_path.iterdir())
    fails(run("migrate", filled, ""), 2, "empty")
    fails(run("inspect", ""), 2, "empty")
    fails(run("import", FRIDAY, "chain.db?state=st", *WHO), 2, "sqlite:///chain.db?state=st")
    assert set(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    "url", ["redis://h?layout=sesion", "sqlite:///r.db?stat=F", "redis://h?prefx=x"]
)
def test_usage_misspelt_option_of_a_url(run: Run, url: str) -> None:
    fails(run("inspect", url), 2, "hint:")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("sqlite:///PATH?table=chats&columns=session:chat", "write layout=table"),
        ("sqlite:///PATH?layout=agentscope2&columns=session:chat", "layout=agentscope2 has no"),
        ("redis://h?layout=memory&owner=ada", "write layout=langchain or openai-agents"),
    ],
)
def test_usage_options_of_another_layout(run: Run, tmp_path: Path, url: str, said: str) -> None:
    """They had no effect: AgentScope's tables came into the database of an application."""
    path = tmp_path / "app.db"
    fails(run("import", FRIDAY, url.replace("PATH", str(path)), *WHO), 2, said)
    assert not path.exists()


def test_usage_folder_keeps_the_place_of_a_memory(run: Run, tmp_path: Path) -> None:
    """An application finds there again the state that it saved as ``agent.memory``."""
    folder = tmp_path / "in"
    folder.mkdir()
    saved = json.dumps({"agent": {"name": "F", "memory": state(3)}})
    (folder / "ada_kyoto.json").write_text(saved)
    archive = tmp_path / "a.ndjson"
    assert run("export", folder, "--as", "archive", "-o", archive).exit_code == 0
    assert run("migrate", archive, f"{tmp_path}/out/").exit_code == 0
    found = json.loads((tmp_path / "out" / "ada_kyoto.json").read_text())
    assert found == {"agent": {"memory": state(3)}}


def test_usage_verify_says_what_it_cannot_compare(run: Run, database: str, tmp_path: Path) -> None:
    source = tmp_path / "a.ndjson"
    asyncio.run(fill(str(source), {ONE: samples.entries(3)}, summary="s", ttl=60.0))
    assert run("migrate", source, database, "--lossy").exit_code == 0
    warnings = " ".join(report(run("verify", source, database, "--json"))["warnings"])
    assert "summaries" in warnings
    assert "expiries" in warnings


def test_usage_one_of_several_memories_is_written(run: Run, two: Path, tmp_path: Path) -> None:
    fails(run("import", FRIDAY, two, *WHO), 7, "--path")
    more = tmp_path / "more.json"
    more.write_text(json.dumps(state(5)))
    found = report(run("import", more, two, *WHO, "--path", "agent.memory", "--json"))
    assert found["messages"]["written"] == 2
    after = json.loads(two.read_text())
    assert after["agent"]["memory"] == state(5)
    assert after["planner"]["memory"] == state(2)


def test_usage_many_memories_do_not_fit_into_one_file(
    run: Run, filled: str, tmp_path: Path
) -> None:
    fails(run("migrate", filled, tmp_path / "new.json"), 2, "one session", "several")
    assert not (tmp_path / "new.json").exists()


def test_usage_path_that_is_not_there(run: Run, two: Path) -> None:
    for command in (["inspect"], ["export"]):
        fails(run(*command, two.parent, "--path", "planer.memory"), 4, "planer.memory")


def test_usage_what_append_leaves_different_is_said(
    run: Run, database: str, tmp_path: Path
) -> None:
    target = f"sqlite:///{tmp_path}/target.db"
    asyncio.run(fill(database, {ONE: samples.entries(3)}))
    asyncio.run(fill(target, {ONE: [samples.entry("m0000000", 9), *samples.entries(2, start=1)]}))
    asyncio.run(fill(database, {MemoryKey("bob", "two"): samples.entries(1)}))
    options = ("--on-conflict", "append", "--checksum", "--json")
    found = report(run("migrate", database, target, *options))
    assert (found["memories"]["written"], found["memories"]["unchanged"]) == (1, 1)
    assert any("not compared" in text for text in found["warnings"])


@pytest.mark.parametrize("options", [(), ("--as", "state-dict")])
def test_usage_every_command_reads_stdin(run: Run, options: tuple[str, ...]) -> None:
    data = FRIDAY.read_bytes()
    found = report(run("inspect", "-", *WHO, "--json", input=data))
    assert found["totals"]["messages"] == 11
    copied = run("export", "-", *WHO, *options, input=data)
    assert json.loads(copied.stdout) == json.loads(data)
    assert run("verify", "-", FRIDAY, *WHO, input=data).exit_code == 0


def test_usage_every_error_has_the_schema_of_its_command(run: Run, filled: str) -> None:
    for command in (["inspect", filled], ["verify", filled, filled]):
        found = report(run(*command, "--user", "nobody", "--json"), 4)
        assert found["schema"] == f"memctl/{command[0]}/1"
        assert found["error"]["code"] == "not-found"


def test_usage_folder_of_markdown_is_a_vault(run: Run, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "tea.md").write_text("Ada likes tea.\n", "utf-8")
    fails(run("inspect", tmp_path), 8, f"vault:{tmp_path}")
    assert "1 fact ·" in run("inspect", f"vault:{tmp_path}").stdout


def test_usage_refused_copy_leaves_no_folder(run: Run, tmp_path: Path) -> None:
    """An id with a slash cannot be the name of a file of ReMe 0.3."""
    source, target = tmp_path / "v", tmp_path / "new"
    (source / "daily").mkdir(parents=True)
    (source / "daily" / "tea.md").write_text("Ada likes tea.\n", "utf-8")
    fails(run("migrate", f"vault:{source}", f"reme:{target}?layout=0.3"), 7, "has a '/'")
    assert not target.exists()


def test_usage_options_before_the_command(run: Run, filled: str) -> None:
    after = "write options after the command: memctl inspect"
    fails(run("--json", "inspect", filled), 2, f"{after} --json")
    fails(run("--user", "ada", "inspect", filled), 2, f"{after} --user")
    fails(run("--colour", "always", "inspect", filled), 2, "--color")
    fails(run("inspect", filled, "--user"), 2, "memctl inspect --help lists its options")


def test_usage_limits_of_options_in_own_words(run: Run, filled: str) -> None:
    fails(run("inspect", filled, "--last", "0"), 2, "'--last': must be 1 or more")
    fails(run("inspect", filled, "--last", "x"), 2, "'--last': must be a whole number")
    fails(run("search", filled, "a", "--top", "0"), 2, "'--top' / '--limit': must be 1 or more")


def test_usage_misspelt_role_and_times_in_the_wrong_order(run: Run, filled: str) -> None:
    done = run("inspect", filled, "--role", "asistant")
    assert done.exit_code == 0
    assert "the role 'asistant' is unknown: did you mean 'assistant'?" in done.stderr
    times = ("--since", "2026-02-01", "--until", "2026-01-01")
    fails(run("delete", filled, *times, "--yes"), 2, "ends, at 2026-01-01 00:00:00, before it")
    fails(run("inspect", filled, "--newer-than", "1d", "--older-than", "2d"), 2, "before it begins")
    for option, time in (("--newer-than", "999999999d"), ("--since", "0001-01-01T00:00+05:00")):
        fails(run("inspect", filled, option, time), 2, "is not a valid time")


def test_usage_import_of_what_is_no_file(run: Run, filled: str, tmp_path: Path) -> None:
    fails(run("import", tmp_path / "no.zst", tmp_path / "r.db"), 4, "does not exist")
    fails(run("import", "no.zst", tmp_path / "r.db"), 4, "no.zst does not exist")
    archive = tmp_path / "a.ndjson.zst"
    assert run("export", filled, "-o", archive).exit_code == 0
    swapped = run("import", filled, archive)
    fails(swapped, 2, f"the file comes first: memctl import {archive} {filled}")
