"""The modules that a command imports: each takes time at every start."""

from __future__ import annotations

import ast
import asyncio
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.startup import TYPER, instructions
from memctl.dialects.registry import DIALECTS
from memctl.testing import samples
from tests.support.cli import fill

_PROGRAM = """
import sys
before = set(sys.modules)
from memctl.cli import main
try:
    main()
finally:
    sys.stderr.write("modules:" + repr(sorted(set(sys.modules) - before)))
"""
_LIBRARIES = {
    *("aiosqlite", "aiomysql", "asyncpg", "greenlet", "jinja2", "markdown_it", "numpy"),
    *("obstore", "pyarrow", "pydantic", "pyrage", "redis", "rich", "sqlalchemy", "textual"),
}
_SQLITE = {"aiosqlite"}
_AGENTSCOPE1 = {"memctl.engines.sql", "memctl.stores.agentscope1"}


def loaded(*words: str, code: int = 0) -> set[str]:
    """Run memctl with a new Python; return the names of the imported modules.

    ``code`` is the expected exit code.
    """
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *words], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == code, done.stderr
    return set(ast.literal_eval(done.stderr.rpartition("modules:")[2]))


def libraries(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules} & _LIBRARIES


def layouts(modules: set[str]) -> set[str]:
    """Return the packages of engines and of layouts; some names of archives need no store."""
    packages = {".".join(name.split(".")[:3]) for name in modules}
    if "memctl.stores.archive.store" not in modules:
        packages.discard("memctl.stores.archive")
    return {
        name
        for name in packages - {"memctl.engines.objects", "memctl.stores.reme"}
        if name.startswith(("memctl.engines.", "memctl.stores."))
    }


@pytest.fixture
def store(tmp_path: Path) -> str:
    text = str(tmp_path / "agents.db")
    asyncio.run(fill(f"sqlite:///{text}", {samples.key(0): samples.entries(9)}))
    return text


@pytest.mark.parametrize(("words", "code"), [(["--help"], 0), (["--version"], 0), ([], 2)])
def test_start_of_help(words: list[str], code: int) -> None:
    modules = loaded(*words, code=code)
    assert "typer" in modules
    assert not libraries(modules)
    assert "asyncio" not in modules


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "code", "other"),
    [
        ("inspect STORE", 0, {"rich"}),
        ("inspect STORE --json", 0, set()),
        ("inspect STORE --by role --format csv", 0, set()),
        ("delete STORE --mark hint --dry-run", 0, {"rich"}),
        ("delete STORE --mark hint --yes --json", 0, set()),
        ("doctor STORE", 6, {"rich"}),
        ("report STORE --json", 0, set()),
        ("export STORE -o OUTPUT.ndjson", 0, {"memctl.stores.archive"}),
        ("export STORE -o OUTPUT.csv --lossy", 0, set()),
        ("migrate STORE OUTPUT.ndjson", 0, {"rich", "memctl.stores.archive"}),
        ("migrate STORE OUTPUT.ndjson --json", 0, {"memctl.stores.archive"}),
        ("migrate STORE OUTPUT.ndjson --quiet", 0, {"memctl.stores.archive"}),
    ],
)
def test_start_of_commands_on_sqlite(
    store: str, tmp_path: Path, command: str, code: int, other: set[str]
) -> None:
    places = {"STORE": store, "OUTPUT.": f"{tmp_path}/output."}
    for name, place in places.items():
        command = command.replace(name, place)
    modules = loaded(*command.split(), code=code)
    assert libraries(modules) == _SQLITE | other & {"rich"}
    assert layouts(modules) == _AGENTSCOPE1 | other - {"rich"}
    assert "memctl.index" not in modules
    dialects = {name for name in modules if name.startswith("memctl.dialects.")}
    assert not dialects & {"memctl.dialects.adk", "memctl.dialects.langchain"}
    assert "csv" in command or not modules & {"memctl.ops.export.html", "memctl.ops.export.rows"}
    if command.startswith("inspect"):
        assert not modules & {"memctl.embedder", "memctl.journal.runs", "memctl.machine.zstd"}
        assert not modules & {"memctl.engines.sql.executor", "memctl.layouts.foreign"}


@pytest.mark.slow
def test_start_of_a_search_reads_the_index_alone(store: str) -> None:
    hour_ago = time.time() - 3600
    os.utime(store, (hour_ago, hour_ago))  # a file that has just changed is read again
    loaded("search", store, "message")  # makes the index
    modules = loaded("search", store, "message")
    assert libraries(modules) == {"rich"}
    assert layouts(modules) == set()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["none.json", "none.ndjson"])
def test_start_without_a_database(name: str) -> None:
    assert libraries(loaded("inspect", name, code=4)) <= {"rich"}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not there")
@pytest.mark.parametrize(
    ("command", "most"),
    [
        ("--help", 1.4),
        ("inspect STORE --json", 2.6),
        ("export STORE -o -", 3.4),
        ("delete STORE --mark hint --dry-run", 3.2),
    ],
)
def test_start_takes_few_instructions(store: str, command: str, most: float) -> None:
    """The number of instructions, as a multiple of that of ``import typer``, repeats to 0.1 %."""
    words = command.replace("STORE", store).split()
    counted = instructions([sys.executable, "-m", "memctl", *words])
    assert counted <= most * instructions([sys.executable, "-c", TYPER])


def test_dialects_are_found_by_their_names() -> None:
    assert all(dialect.name == name for name, dialect in DIALECTS.items())
