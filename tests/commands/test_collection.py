"""``memctl export STORE STORE...``: all that several stores have of a person, in one file."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from memctl.model import MemoryKey
from memctl.testing import samples
from tests.support.chromium import Chromium
from tests.support.cli import Run, fails, fill, report

KYOTO, OSLO, BOB = MemoryKey("ada", "kyoto"), MemoryKey("ada", "oslo"), MemoryKey("bob", "x")
ADA = ("--user", "ada")


@pytest.fixture
def stores(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two databases, a rotation of the first, and names for them; return their folder."""
    monkeypatch.chdir(tmp_path)
    kyoto, oslo, bob = samples.entries(4), samples.entries(3), samples.entries(1)
    asyncio.run(fill("sqlite:///prod.db", {KYOTO: kyoto, OSLO: oslo, BOB: bob}))
    asyncio.run(fill("sqlite:///other.db", {KYOTO: kyoto[:2], BOB: bob}))
    config = tmp_path / "config.toml"
    monkeypatch.setenv("MEMCTL_CONFIG", str(config))
    config.write_text(
        f'[stores.prod]\nurl = "{tmp_path}/prod.db"\n[stores.other]\nurl = "{tmp_path}/other.db"\n'
        f'[stores.nightly]\nurl = "{tmp_path}/nightly.ndjson.zst"\n'
        '[fleets.all]\nstores = ["prod", "other"]\n'
    )
    nightly = ("export", "prod", "-o", "nightly.ndjson.zst", "--rotate", "daily:7")
    assert run(*nightly).exit_code == 0
    return tmp_path


def told(found: dict[str, Any]) -> list[tuple[str, int, int, int]]:
    """Return what the report of an export says of each store."""
    return [
        (one["store"].partition("@")[0], one["memories"], one["messages"], one["repeated"])
        for one in found["stores"]
    ]


def test_collection_has_a_person_of_all_stores_once(run: Run, stores: Path) -> None:
    found = report(run("export", "prod", "nightly", "other", *ADA, "-o", "ada.html", "--json"))
    assert told(found) == [("prod", 2, 7, 0), ("nightly", 2, 7, 2), ("other", 1, 2, 0)]
    assert (found["memories"]["written"], found["messages"]["written"]) == (5, 16)
    page = (stores / "ada.html").read_text()
    assert page.count("<article") == 9
    assert "bob" not in page
    assert "<h1><bdi>ada</bdi></h1>" in page
    assert re.findall(r"the same as in <bdi>(.*?)</bdi>", page) == ["prod", "prod"]
    assert "selected: user ada" in page
    fleet = report(run("export", "@all", *ADA, "-o", "fleet.html", "--json"))
    assert told(fleet) == [("prod", 2, 7, 0), ("other", 1, 2, 0)]
    twice = report(run("export", "prod", "prod.db", "prod", *ADA, "-o", "two.html", "--json"))
    assert told(twice) == [("prod", 2, 7, 0), ("prod.db", 2, 7, 2)]


def test_collection_in_a_zip_has_the_data_for_programs(run: Run, stores: Path) -> None:
    out = run("export", "prod", "other", "-o", "all.zip")
    assert out.exit_code == 0
    assert "5 memories written to all.zip, 1 of them equal to others" in out.stderr
    with ZipFile("all.zip") as whole:
        names = whole.namelist()
        whole.extractall("unpacked")
    assert names == ["all.html", "1-prod.ndjson", "2-other.ndjson"]
    for store, name in zip(("prod", "other"), names[1:], strict=True):
        assert run("verify", store, f"unpacked/{name}").exit_code == 0
        assert name in (stores / "unpacked/all.html").read_text()
    assert (stores / "all.zip").stat().st_mode & 0o777 == 0o600
    fails(run("import", "all.zip", "new.db"), 2, "is a ZIP file, not a store", "unpack it")
    single = report(run("export", "nightly", *ADA, "-o", "nightly.zip", "--json"))
    assert told(single) == [("nightly", 2, 7, 0)]


def test_collection_that_is_not_whole_says_so(run: Run, stores: Path) -> None:
    with closing(sqlite3.connect("other.db")) as damaging, damaging:
        damaging.execute("UPDATE message SET msg = '5' WHERE session_id LIKE '%kyoto%' OR 1")
    fails(run("export", "prod", "other", *ADA, "-o", "ada.html"), 8, "damaged")
    assert not Path("ada.html").exists()
    asyncio.run(fill(f"sqlite:///{stores}/other.db", {OSLO: samples.entries(1)}))
    fails(run("export", "prod", "other", *ADA, "-o", "ada.html"), 7, "'ada'/'kyoto': other: ")
    assert Path("ada.html").read_text().count("<article") == 8


@pytest.mark.parametrize(
    ("words", "code", "said", "hint"),
    [
        ("prod other -o ada.csv", 2, "several stores fit in a page of HTML", "-o NAME.zip"),
        ("prod other", 2, "unexpected 'other': memctl export takes STORE", "-o NAME.html"),
        ("prod other --as csv", 2, "several stores fit in a page of HTML", "each store by itself"),
        ("@all -o all.ndjson", 2, "several stores fit in a page of HTML", "--shards N"),
        ("prod other --as html -o pages", 2, "several stores", "-o NAME.html"),
        ("prod - -o ada.html", 2, "stdin fits neither in a page", "name a file"),
        ("prod other -o ada.html --shards 2", 2, "--shards divides one store", "other stores"),
        ("prod -o ada.zip --shard 0/2", 2, "all parts", "{shard}"),
        ("prod -o ada-{shard}.zip --shard 0/2", 2, "a ZIP file cannot be divided", "archive"),
        ("prod none.db -o ada.html", 4, "none.db does not exist", "none.db"),
        ("prod other --user adda -o ada.html", 4, "no memory of 'adda'", "'ada'"),
        ("prod other -o other.db --as html", 2, "unrecognised file extension", "NAME.html"),
    ],
)
@pytest.mark.usefixtures("stores")
def test_collection_refusals(run: Run, words: str, code: int, said: str, hint: str) -> None:
    before = sorted(Path().iterdir())
    fails(run("export", *words.split()), code, said, hint)
    assert sorted(Path().iterdir()) == before


@pytest.mark.usefixtures("stores")
def test_collection_dry_run_writes_nothing(run: Run) -> None:
    before = sorted(Path().iterdir())
    found = report(run("export", "@all", *ADA, "-o", "ada.zip", "--dry-run", "--json"))
    assert (found["memories"]["written"], found["bytes"]) == (3, None)
    assert sorted(Path().iterdir()) == before


@pytest.mark.slow
def test_collection_on_paper_and_in_a_browser(run: Run, stores: Path, chromium: Chromium) -> None:
    assert run("export", "prod", "nightly", "other", *ADA, "-o", "ada.html").exit_code == 0
    page = stores / "ada.html"
    chromium.open(page, scripts=False)
    assert chromium.requests() == [page.as_uri()]
    assert chromium.console() == []
    text = " ".join(chromium.printed().split())
    for said in ("Sources", "prod", "nightly", "other", "2 repeated", "the same as in prod"):
        assert said in text
    for dark in (False, True):
        chromium.open(page, dark=dark, width=400)
        found = chromium.violations()
        assert [one for one in found if one.startswith(("serious", "critical"))] == []
        assert chromium.sideways() == 0


def test_collection_of_facts_and_conversations(run: Run, stores: Path) -> None:
    vault = stores / "vault"
    vault.mkdir()
    (vault / "MEMORY.md").write_text("# Ada\n\n- likes tea\n")
    text = f"vault:{vault}"
    facts = report(run("inspect", text, "--json"))["totals"]["messages"]
    assert facts
    assert run("export", "prod", text, "-o", "mixed.html").exit_code == 0
    mixed = Path("mixed.html").read_text()
    assert "<h1><bdi>Conversations</bdi></h1>" in mixed
    assert mixed.count("<article") == 8 + facts
    assert run("export", text, "-o", "facts.zip").exit_code == 0
    with ZipFile("facts.zip") as whole:
        assert f"{facts} fact" in whole.read("facts.html").decode()
