"""Vaults: files as facts, facts of other systems as files, and names that lead nowhere else."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from memctl.dialects.fact import build
from memctl.model import MemoryKey, StoredMessage
from tests.support.cli import Run, contents, fails, fill, report
from tests.support.files import files, texts

FILES = {
    "MEMORY.md": "- [Tea](likes/tea.md)\n",
    "likes/tea.md": "---\nname: tea\ndescription: When: asked\n---\n\n\nSencha 😀\r\nand more\n",
    "likes/odd.md": "---\r\nname: odd\r\n--- \r\nNo end",
    "deep/er/still.md": "\ufeff---\nno: frontmatter\n---\n",
    "plain.MD": "",
    ".hidden.md": "hidden\n",
    ".git/config.md": "hidden\n",
    "image.png": "x",
}


@pytest.fixture
def vault(tmp_path: Path) -> Path:
    """A vault of hand-written files."""
    folder = tmp_path / "vault"
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    os.utime(folder / "likes/tea.md", ns=(0, 1_700_000_000_123_456_789))
    os.chmod(folder / "plain.MD", 0o640)
    return folder


def fact(id: str, **fields: Any) -> StoredMessage:
    """Return a fact."""
    return StoredMessage(id, build({"id": id, "text": f"text of {id}", **fields}))


def test_files_are_facts_and_come_back_byte_for_byte(run: Run, vault: Path, tmp_path: Path) -> None:
    place = f"vault:{vault}"
    found = contents(place)
    assert {key: sorted(one.id for one in facts) for key, facts in found.items()} == {
        MemoryKey("", ""): ["MEMORY.md", "plain.MD"],
        MemoryKey("", "deep"): ["deep/er/still.md"],
        MemoryKey("", "likes"): ["likes/odd.md", "likes/tea.md"],
    }
    tea = json.loads(found[MemoryKey("", "likes")][0].message)
    assert tea == {
        "id": "likes/tea.md",
        "text": "Sencha 😀\r\nand more\n",
        "updated_at": "2023-11-14T22:13:20.123456789+00:00",
        "metadata": {"frontmatter": "---\nname: tea\ndescription: When: asked\n---\n\n\n"},
    }
    before = files(vault)
    done = report(run("delete", place, "--older-than", "0s", "--yes", "--json"))["run"]
    left = {".hidden.md", ".git/config.md", "image.png"}
    assert files(vault).keys() == left
    assert run("undo", done, "--store", place).exit_code == 0
    assert files(vault) == before
    copy = tmp_path / "copy"
    assert run("migrate", place, f"vault:{copy}").exit_code == 0
    assert run("verify", place, f"vault:{copy}").exit_code == 0
    assert texts(copy) == {n: one for n, one in texts(vault).items() if n not in left}


def test_contents_count_and_not_the_times_of_files(run: Run, vault: Path, tmp_path: Path) -> None:
    place, archive = f"vault:{vault}", tmp_path / "a.ndjson"
    assert run("export", place, "-o", archive).exit_code == 0
    os.utime(vault / "likes/odd.md", (1, 1))
    assert run("verify", archive, place).exit_code == 0
    copied = report(run("import", archive, place, "--json"))
    assert copied["memories"]["unchanged"] == 3
    assert (vault / "likes/odd.md").stat().st_mtime == 1
    (vault / "likes/odd.md").write_bytes(b"---\r\nname: odd\r\n--- \r\nAn end")
    fails(run("verify", archive, place), 6, "differ")
    fails(run("import", archive, place), 5)


HOSTILE = [
    "../out.md",
    "/etc/passwd.md",
    "..",
    ".",
    "",
    "a/../../out.md",
    "a\0b",
    "CON",
    "é",
    "e\u0301",
    "upper",
    "UPPER",
    "😀",
    " spaces ",
    "back\\slash",
    "line\nbreak",
    "%2E%2E",
    "-",
    "a/b.md",
    ".hidden",
    "\u202egnp",
]


@pytest.mark.slow
def test_hostile_ids_stay_in_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "in" / "vault"
    folder.parent.mkdir()
    facts = [fact(id, metadata={"a": [1, None]}) for id in HOSTILE]
    keys = [MemoryKey("", ""), *(MemoryKey(name, name, name) for name in HOSTILE)]
    asyncio.run(fill(f"vault:{folder}", dict.fromkeys(keys, facts)))
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
    assert [path.name for path in (tmp_path / "in").iterdir()] == ["vault"]


@pytest.mark.parametrize("id", HOSTILE)
def test_hostile_names_come_back(tmp_path: Path, id: str) -> None:
    place = f"vault:{tmp_path / 'vault'}"
    one = fact(id, created_at="2026-01-01T10:00:00Z", entities=[], metadata={"text": "---\n"})
    asyncio.run(fill(place, {MemoryKey(id, id, id): [one]}))
    [(key, [found])] = contents(place).items()
    assert key == MemoryKey(id, id, id)
    assert found.message == one.message


@pytest.mark.parametrize(
    "text", ["", "\n\n text", "---\nname: x\n---\n", "---\n", "a\r\n", "\u2028 \0 \x7f", "'''"]
)
def test_texts_of_other_systems_come_back(tmp_path: Path, text: str) -> None:
    place = f"vault:{tmp_path / 'vault'}"
    one = StoredMessage("1", build({"id": "1", "text": text, "metadata": {"it's": "'\u2028"}}))
    asyncio.run(fill(place, {MemoryKey("ada", ""): [one]}))
    [[found]] = contents(place).values()
    assert found.message == one.message


def test_links_are_not_followed(run: Run, vault: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.md").write_text("secret\n")
    (vault / "linked").symlink_to(outside, target_is_directory=True)
    (vault / "one.md").symlink_to(outside / "secret.md")
    assert "secret" not in run("export", f"vault:{vault}", "-o", "-").stdout
    archive = tmp_path / "a.ndjson"
    other = tmp_path / "other"
    (other / "linked").mkdir(parents=True)
    (other / "linked" / "secret.md").write_text("mine\n")
    (other / "one.md").write_text("mine\n")
    assert run("export", f"vault:{other}", "-o", archive).exit_code == 0
    found = run("import", archive, f"vault:{vault}", "--on-conflict", "replace", "--yes")
    fails(found, 7, "could not be written")
    assert texts(outside) == {"secret.md": b"secret\n"}


def test_a_file_that_is_no_text_is_reported(run: Run, vault: Path) -> None:
    (vault / "likes/tea.md").write_bytes("Tea 😀".encode()[:-1])
    place = f"vault:{vault}"
    fails(run("export", place, "-o", "-"), 7, "likes")
    found = report(run("doctor", place, "--json"), 6)["findings"]
    [damaged] = [one for one in found if one["code"] == "damaged-fact"]
    assert damaged["ids"] == ["likes/tea.md"]
    assert "not UTF-8" in damaged["message"]


def test_doctor_finds_files_without_a_place_in_the_index(run: Run, tmp_path: Path) -> None:
    vault = tmp_path / "vault"
    vault.mkdir()
    (vault / "MEMORY.md").write_text("- [A](a.md)\n- [B](sub/b.md)\n- [web](https://x.org/y.md)\n")
    (vault / "a.md").write_text("See [[b]], [[c]] and [d](../outside.md).\n")
    (vault / "sub").mkdir()
    (vault / "sub/b.md").write_text("---\nname: b\n\nnot closed\n")
    (vault / "new.md").write_text("---\nnothing\n---\nNew.\n")
    found = {
        one["code"]: one["ids"]
        for one in report(run("doctor", f"vault:{vault}", "--json"), 6)["findings"]
    }
    assert found == {
        "broken-link": ["a.md"],
        "cut-file": ["sub/b.md"],
        "bad-frontmatter": ["new.md"],
        "stale-index": ["new.md"],
    }


def test_a_missing_folder_and_other_contents(run: Run, tmp_path: Path) -> None:
    fails(run("inspect", f"vault:{tmp_path / 'none'}"), 4, "does not exist")
    (tmp_path / "one.txt").write_text("")
    for words in (("inspect",), ("doctor",), ("export", "-o", tmp_path / "a.ndjson")):
        fails(run(*words, f"vault:{tmp_path}"), 8, "holds no Markdown file, but one.txt")
    fails(run("inspect", f"vault:{tmp_path / 'one.txt'}"), 8, "is not a folder")
    fails(run("inspect", f"vault:{tmp_path}?layout=x"), 2, "takes no option 'layout'")
    fails(run("inspect", "vault:"), 2, "names no path")


def test_a_quoted_name_that_is_not_utf8_is_the_name_of_a_note(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "vault/imported/-/-/-"
    folder.mkdir(parents=True)
    (folder / "a%AC.md").write_text("A note.\n")
    assert (
        report(run("inspect", f"vault:{tmp_path / 'vault'}", "--json"))["totals"]["messages"] == 1
    )
