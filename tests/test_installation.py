"""``memctl version``, and an environment in which another package has the same files."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from memctl import __version__
from memctl.machine.installation import install_command
from tests.support.cli import FRIDAY, Run, fails, report


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The unrelated package memctl of PyPI in the same environment."""
    info = tmp_path / "memctl-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: memctl\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[console_scripts]\nmemctl = memctl.cli:main\n")
    (info / "RECORD").write_text("memctl/__init__.py,,\n")
    monkeypatch.syspath_prepend(tmp_path)


def test_version_is_a_line(run: Run) -> None:
    assert run("version").stdout == f"memctl {__version__}\n" == run("--version").stdout
    assert report(run("version", "--json")) == {
        "schema": "memctl/version/1",
        "version": __version__,
        "warnings": [],
    }


@pytest.mark.slow
def test_version_verbose_shows_the_installation(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("MEMCTL_CONFIG", str(tmp_path / "memctl.toml"))
    (tmp_path / "memctl.toml").touch()
    result = run("version", "--verbose")
    assert result.exit_code == 0
    assert "warning" not in result.stderr
    for text in ("Python 3.", "aiosqlite ", "(extra mysql)", f"{tmp_path}/memctl.toml"):
        assert text in result.stdout
    found = report(run("version", "-v", "--json"))
    packages = {one["name"]: one for one in found["packages"]}
    assert packages["redis"]["version"].count(".") == 2
    assert packages["aiomysql"]["extra"] == "mysql"
    assert found["paths"]["undo"].startswith(f"{tmp_path}/state")
    assert found["conflicts"] == []


@pytest.mark.slow
@pytest.mark.usefixtures("stranger")
def test_version_and_config_check_warn_of_a_mixed_installation(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMCTL_CONFIG", str(tmp_path / "memctl.toml"))
    (tmp_path / "memctl.toml").touch()
    for words in (("version", "--verbose"), ("config", "check")):
        said = run(*words).stderr
        assert "warning: the package 'memctl' in this environment" in said
        assert "uninstall both" in said
        assert "pipx" in said
    assert report(run("version", "-v", "--json"))["conflicts"] == ["memctl"]
    assert run("version").stderr == ""


@pytest.mark.slow
def test_version_says_which_extras_are_missing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memctl.machine.installation._version", lambda _: None)
    assert "aiomysql        not installed (extra mysql)" in run("version", "-v").stdout


OF_UV = "home = /usr/bin\nimplementation = CPython\nuv = 0.13.9\nversion_info = 3.12.3\n"
"""The pyvenv.cfg of an environment that uv made."""
RECEIPT = """\
[tool]
requirements = [
    { name = "agentscope-memctl", extras = ["mysql"], directory = "/src/memctl" },
    { name = "rich", specifier = ">=14" },
]
entrypoints = [
    { name = "memctl", install-path = "/bin/memctl", from = "agentscope-memctl" },
]
"""
FROM_INDEX = RECEIPT.replace(', extras = ["mysql"], directory = "/src/memctl"', "")
FROM_GIT = RECEIPT.replace("directory = ", "git = ")
EDITABLE = {"url": "file:///src/my%20memctl", "dir_info": {"editable": True}}
INSTALLATIONS: dict[str, tuple[dict[str, str], object, str]] = {
    "pip": (
        {"pyvenv.cfg": "home = /usr/bin\n"},
        {},
        "PYTHON -m pip install 'agentscope-memctl[parquet]'",
    ),
    "uv pip": (
        {"pyvenv.cfg": OF_UV},
        {},
        "uv pip install --python PREFIX 'agentscope-memctl[parquet]'",
    ),
    "checkout": ({}, EDITABLE, "PYTHON -m pip install -e '/src/my memctl[parquet]'"),
    "checkout, uv": (
        {"pyvenv.cfg": OF_UV},
        EDITABLE,
        "uv pip install --python PREFIX -e '/src/my memctl[parquet]'",
    ),
    "pipx": (
        {"pyvenv.cfg": OF_UV, "pipx_metadata.json": "{}"},
        {"url": "file:///src/memctl", "dir_info": {}},
        "pipx inject agentscope-memctl 'pyarrow>=17'",
    ),
    "uv tool": (
        {"pyvenv.cfg": OF_UV, "uv-receipt.toml": RECEIPT},
        {},
        "uv tool install --with 'rich>=14' '/src/memctl[mysql,parquet]'",
    ),
    "uv tool, editable": (
        {"pyvenv.cfg": OF_UV, "uv-receipt.toml": RECEIPT.replace("directory", "editable")},
        EDITABLE,
        "uv tool install --with 'rich>=14' --editable '/src/memctl[mysql,parquet]'",
    ),
    "uv tool, index": (
        {"pyvenv.cfg": OF_UV, "uv-receipt.toml": FROM_INDEX},
        {},
        "uv tool install --with 'rich>=14' 'agentscope-memctl[parquet]'",
    ),
    "uv tool, git": (
        {"pyvenv.cfg": OF_UV, "uv-receipt.toml": FROM_GIT},
        {},
        "uv pip install --python PREFIX 'agentscope-memctl[parquet]'",
    ),
}
"""For each way to install memctl: the files it leaves in ``sys.prefix``, the ``direct_url.json`` of
the package, and the command that adds an extra."""


@pytest.mark.parametrize("name", INSTALLATIONS)
def test_missing_extra_the_hint_fits_the_installation(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    files, origin, command = INSTALLATIONS[name]
    prefix = tmp_path / "agentscope-memctl"
    prefix.mkdir()
    for file, content in files.items():
        (prefix / file).write_text(content)
    packages = prefix / "site-packages"
    info = packages / "agentscope_memctl-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        "Metadata-Version: 2.4\nName: agentscope-memctl\nVersion: 0.1.0\n"
        "Requires-Dist: pyarrow>=17; extra == 'parquet'\nProvides-Extra: parquet\n"
    )
    (info / "direct_url.json").write_text(json.dumps(origin))
    monkeypatch.syspath_prepend(packages)
    monkeypatch.setattr(sys, "prefix", str(prefix))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "memctl.ops.export.parquet", raising=False)
    result = run("export", FRIDAY, "-o", tmp_path / "friday.parquet")
    wanted = command.replace("PREFIX", str(prefix)).replace("PYTHON", sys.executable)
    fails(result, 2, f"hint: {wanted}\n")


def test_missing_extra_of_extras_names_all_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pipx_metadata.json").write_text("{}")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    command = install_command("embeddings")
    for package in ("tokenizers>=", "onnxruntime>=", "numpy>="):
        assert package in command
