"""LangChain's own vector stores, read by memctl in the environment of their application."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memctl.dialects.fact import decode_vector
from tests.support.servers.pool import start
from tests.support.worker import environ, program

ROOT = Path(__file__).parents[2]
Memctl = Callable[..., "subprocess.CompletedProcess[str]"]

TEXTS = {"a": "Ada likes tea.", "b": "Bob lives in 京都.", "c": "Cleo is a cat: 😀"}


@pytest.fixture
def memctl(tmp_path: Path) -> Memctl:
    """Run memctl with an alias for each function of the application."""
    installed = start(lambda: program(".interop-langchain", "memctl"))
    functions = [
        *("in_memory", "many", "later", "Service", "chroma", "faiss", "searching", "named"),
        *("broken", "failing", "nothing", "absent"),
    ]
    module = "tests.interop_langchain.application"
    tables = [f'[stores.{name}]\nfactory = "{module}:{name}"\n' for name in functions]
    (tmp_path / "all.toml").write_text("\n".join(tables))
    variables = environ(
        FOLDER=str(tmp_path),
        PYTHONPATH=str(ROOT),
        PYTHONWARNINGS="ignore",
        MEMCTL_CONFIG=str(tmp_path / "all.toml"),
        ANONYMIZED_TELEMETRY="False",
    )

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        words = [str(installed), *map(str, arguments)]
        return subprocess.run(words, env=variables, capture_output=True, text=True, timeout=120)

    return run


def facts(memctl: Memctl, alias: str, folder: Path) -> dict[str, dict[str, Any]]:
    """Return the facts that an export of an alias has, by their ids."""
    archive = folder / f"{alias}.ndjson"
    done = memctl("export", alias, "-o", archive)
    assert done.returncode == 0, done.stderr
    found = {}
    for line in archive.read_text().splitlines():
        value = json.loads(line)
        for one in (value, value.get("message")):
            if isinstance(one, dict) and "text" in one:
                found[one["id"]] = one
    return found


@pytest.mark.parametrize("alias", ["in_memory", "later", "Service", "chroma", "faiss"])
def test_documents_are_exported(memctl: Memctl, alias: str, tmp_path: Path) -> None:
    found = facts(memctl, alias, tmp_path)
    assert {id: one["text"] for id, one in found.items()} == TEXTS
    assert found["a"]["metadata"] == {"source": "chat", "page": 3}
    shown = memctl("inspect", alias)
    assert shown.returncode == 0, shown.stderr
    assert "3" in shown.stdout


def test_vectors_are_carried(memctl: Memctl, tmp_path: Path) -> None:
    vectors = [
        decode_vector(facts(memctl, alias, tmp_path)["b"]["vector"])
        for alias in ("in_memory", "chroma", "faiss")
    ]
    assert all(len(one) == 4 for one in vectors)
    assert all(list(one) == pytest.approx(list(vectors[0]), abs=1e-6) for one in vectors)


def test_many_documents(memctl: Memctl, tmp_path: Path) -> None:
    assert len(facts(memctl, "many", tmp_path)) == 1200
    chosen = memctl("export", "many", "--match", "fact 77", "-o", tmp_path / "some.ndjson")
    assert chosen.returncode == 0, chosen.stderr
    assert (tmp_path / "some.ndjson").read_text().count('"text"') == 11


def test_documents_whose_ids_the_application_gives(memctl: Memctl, tmp_path: Path) -> None:
    found = facts(memctl, "named", tmp_path)
    assert set(found) == {"a", "b"}
    assert "vector" not in found["a"]


def test_store_that_lists_nothing(memctl: Memctl) -> None:
    shown = memctl("inspect", "searching")
    assert shown.returncode == 2
    assert "Searching, which can search, but not list" in shown.stderr
    assert "(store, ids)" in shown.stderr


def test_health_check(memctl: Memctl) -> None:
    checked = memctl("config", "check", "--json")
    assert checked.returncode == 3
    checks = {one["name"]: one for one in json.loads(checked.stdout)["checks"]}
    bad = {name for name, one in checks.items() if not one["ok"]}
    assert bad == {"broken", "failing", "nothing", "absent"}, checks
    assert "no route" in str(checks["broken"])
    assert "hidden" not in checked.stdout + checked.stderr
    assert "key of the service is not set" in str(checks["failing"])
    assert "no function 'absent'" in str(checks["absent"])
    assert memctl("inspect", "broken").returncode == 3
    assert memctl("doctor", "failing").returncode == 3
    assert memctl("inspect", "absent").returncode == 2


def test_doctor(memctl: Memctl) -> None:
    assert memctl("doctor", "in_memory").returncode == 0


def test_nothing_is_written(memctl: Memctl, tmp_path: Path) -> None:
    assert facts(memctl, "in_memory", tmp_path)
    for words in (
        ("import", tmp_path / "in_memory.ndjson", "in_memory"),
        ("delete", "in_memory", "--id", "a", "--yes"),
        ("delete", "in_memory", "--id", "a", "--dry-run"),
        ("erase", "in_memory", "--user", "a", "--dry-run"),
    ):
        done = memctl(*words)
        assert done.returncode == 2, done.stderr
        assert "is only read" in done.stderr
