"""The examples of docs/library.md, run one after the other as one program, and what it promises."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import memctl

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "library.md"
EXAMPLE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_library_examples_run(tmp_path: Path) -> None:
    program = tmp_path / "examples.py"
    program.write_text("\n".join(EXAMPLE.findall(PAGE.read_text("utf-8"))), "utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", program], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    run = re.search(r"^memctl undo (\S+)$", done.stdout, re.MULTILINE)
    assert run, done.stdout
    undone = subprocess.run(
        [sys.executable, "-m", "memctl", "history"], capture_output=True, text=True
    )
    assert run[1] in undone.stdout


def test_library_importing_loads_nothing_but_names() -> None:
    program = "import sys, memctl; print(sorted(name for name in sys.modules if 'memctl' in name))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ast.literal_eval(done.stdout) == ["memctl"]


def test_library_what_is_named_is_there() -> None:
    for name in memctl.__all__:
        assert getattr(memctl, name) is not None
    assert set(memctl.__all__) <= set(dir(memctl))


def test_library_what_is_named_is_typed() -> None:
    """A type checker sees the same names, from the same modules, as a program gets."""
    source = ast.parse(Path(memctl.__file__).read_text("utf-8"))
    [checked] = [node for node in source.body if isinstance(node, ast.If)]
    seen = {
        node.names[0].asname: node.module.removeprefix("memctl.")
        for node in checked.body
        if isinstance(node, ast.ImportFrom) and node.module and node.module != "typing"
    }
    assert seen == memctl._HOME_OF
