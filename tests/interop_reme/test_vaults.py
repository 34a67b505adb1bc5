"""Vaults that the real ReMe 0.4 and AgenticMemory wrote, and read again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import Run, report
from tests.support.files import files, texts
from tests.support.reme import Library

JOBS: list[list[Any]] = [
    [
        "write",
        {
            "path": "digest/wiki/kyoto.md",
            "name": "Kyoto",
            "description": "plans: a trip",
            "content": "# Kyoto\nSee [[digest/wiki/tea.md]]. 😀",
            "metadata": {"memory_tags": ["trip", "japan"], "n": 3},
        },
    ],
    [
        "write",
        {"path": "digest/wiki/tea.md", "name": "Tea", "description": "tea", "content": "Sencha."},
    ],
    *(
        [
            "daily_write",
            {
                "name": f"note{number}",
                "description": "said",
                "session_id": "s1",
                "content": f"Alice likes {what}",
                "date": "2026-01-02",
            },
        ]
        for number, what in enumerate(["oolong", "matcha"])
    ),
]
QUERIES = ["oolong", "sencha", "kyoto"]


@pytest.fixture
def vault(reme4: Library, tmp_path: Path) -> Path:
    """A vault that ReMe has written and indexed."""
    folder = tmp_path / "vault"
    reme4("run", folder, jobs=JOBS)
    found = reme4("read", folder, queries=QUERIES)
    assert found["queries"] == {
        "oolong": ["daily/2026-01-02/note0.md"],
        "sencha": ["digest/wiki/tea.md"],
        "kyoto": ["digest/wiki/kyoto.md"],
    }
    return folder


def notes(vault: Path) -> dict[str, tuple[bytes, int, int]]:
    """Return the Markdown files of a vault; the others are indexes, which ReMe writes."""
    return {name: one for name, one in files(vault).items() if name.endswith(".md")}


def test_reme_reads_a_copy_as_the_vault(
    run: Run, reme4: Library, vault: Path, tmp_path: Path
) -> None:
    found = report(run("inspect", f"reme:{vault}", "--json"))
    assert {(one["user"], one["session"]): one["messages"] for one in found["memories"]} == {
        ("", "daily"): 3,
        ("", "digest"): 2,
    }
    archive, copy = tmp_path / "a.ndjson.zst", tmp_path / "copy"
    assert run("export", f"reme:{vault}", "-o", archive).exit_code == 0
    assert run("import", archive, f"reme:{copy}").exit_code == 0
    assert run("verify", f"reme:{vault}", f"reme:{copy}").exit_code == 0
    markdown = {name: one for name, one in texts(vault).items() if name.endswith(".md")}
    assert texts(copy) == markdown
    assert reme4("read", copy, queries=QUERIES) == reme4("read", vault, queries=QUERIES)


def test_reme_forgets_what_is_deleted_and_knows_it_again(
    run: Run, reme4: Library, vault: Path
) -> None:
    before, read = notes(vault), reme4("read", vault, queries=QUERIES)
    place = f"reme:{vault}"
    done = report(run("delete", place, "--id", "digest/wiki/tea.md", "--yes", "--json"))["run"]
    assert reme4("read", vault, queries=QUERIES)["queries"]["sencha"] == []
    assert run("undo", done, "--store", place).exit_code == 0
    assert notes(vault) == before
    assert reme4("read", vault, queries=QUERIES) == read


def test_undo_before_reme_looks_leaves_its_index_right(
    run: Run, reme4: Library, vault: Path
) -> None:
    place = f"reme:{vault}"
    before = notes(vault)
    done = report(run("delete", place, "--match", "Alice", "--yes", "--json"))["run"]
    assert reme4("stale", vault) == ["daily/2026-01-02/note0.md", "daily/2026-01-02/note1.md"]
    assert run("undo", done, "--store", place).exit_code == 0
    assert notes(vault) == before
    assert reme4("stale", vault) == []


def test_doctor_finds_what_reme_finds(run: Run, reme4: Library, vault: Path) -> None:
    place = f"reme:{vault}"
    assert run("doctor", place).exit_code == 0
    (vault / "digest/wiki/tea.md").unlink()
    (vault / "daily/2026-01-02/note2.md").write_text("---\nname: [\n---\nMore.\n")
    (vault / "daily/2026-01-02/note3.md").write_text("Much more.\n")
    (vault / "digest/wiki/cut.md").write_text("---\nname: cut\n")
    (vault / "digest/wiki/old.md").write_text("Old.\n")
    found = {
        (one["code"], one["session"]): one
        for one in report(run("doctor", place, "--json"), 6)["findings"]
    }
    assert found["broken-link", "digest"]["ids"] == ["digest/wiki/kyoto.md"]
    assert found["broken-link", "digest"]["message"].endswith(
        "the first leads to digest/wiki/tea.md"
    )
    assert found["bad-frontmatter", "daily"]["ids"] == ["daily/2026-01-02/note2.md"]
    assert "it is not YAML" in found["bad-frontmatter", "daily"]["message"]
    assert found["cut-file", "digest"]["ids"] == ["digest/wiki/cut.md"]
    assert found["stale-index", "daily"]["ids"] == ["daily/2026-01-02/note3.md"]
    assert found["stale-index", "daily"]["message"].endswith("not in daily/2026-01-02.md")
    waiting = found["stale-search-index", "daily"]["ids"]
    waiting += found["stale-search-index", "digest"]["ids"]
    assert sorted(waiting) == reme4("stale", vault)
    # ReMe puts right what is its own; it does not list a note whose frontmatter it cannot read.
    reme4("run", vault, jobs=[["daily_reindex", {"date": "2026-01-02"}]])
    reme4("read", vault)
    left = {one["code"] for one in report(run("doctor", place, "--json"), 6)["findings"]}
    assert left == {"broken-link", "bad-frontmatter", "cut-file"}


def test_dialogs_are_left_alone(run: Run, reme4: Library, tmp_path: Path) -> None:
    vault = tmp_path / "vault"
    reme4("dialog", vault)
    reme4("run", vault, jobs=[])
    found = run("inspect", f"reme:{vault}")
    assert "ReMe's dialogs in session/dialog are left alone: 1, such as s1" in found.stderr


MEMORY = {
    "MEMORY.md": "- [Role](user_role.md) — who she is\n- [Tea](likes/tea.md) — what she drinks\n",
    "user_role.md": "---\nname: role\ndescription: When asked: who is she?\ntype: user\n---\n\n"
    "Alice is a pilot.\n",
    "likes/tea.md": "---\nname: tea\ntype: user\n---\nTea. 😀\r\n",
}


def test_agentic_memory_reads_a_copy_and_what_comes_back(
    run: Run, agentic: Library, tmp_path: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    agentic("write", first, files=MEMORY)
    before, read = files(first), agentic("read", first)
    assert [one[0] for one in read["files"]] == ["likes/tea.md", "user_role.md"]
    place = f"vault:{first / 'Memory'}"
    assert run("migrate", place, f"vault:{second / 'Memory'}").exit_code == 0
    assert run("verify", place, f"vault:{second / 'Memory'}").exit_code == 0
    assert texts(second) == texts(first)
    assert agentic("read", second) == read
    assert run("doctor", place).exit_code == 0
    done = report(run("delete", place, "--match", "pilot", "--yes", "--json"))["run"]
    assert [one[0] for one in agentic("read", first)["files"]] == ["likes/tea.md"]
    found = run("doctor", place)
    assert (found.exit_code, "has 1 warning" in found.stderr) == (6, True)
    assert run("undo", done, "--store", place).exit_code == 0
    assert files(first) == before
    assert agentic("read", first) == read


def test_agentic_memory_becomes_a_vault_of_reme_and_comes_back(
    run: Run, agentic: Library, tmp_path: Path
) -> None:
    first, other, back = tmp_path / "first", tmp_path / "reme", tmp_path / "back"
    agentic("write", first, files=MEMORY)
    place = f"vault:{first / 'Memory'}"
    assert run("migrate", place, f"reme:{other}").exit_code == 0
    assert run("migrate", f"reme:{other}", f"vault:{back / 'Memory'}").exit_code == 0
    assert texts(back) == texts(first)
    assert agentic("read", back) == agentic("read", first)
