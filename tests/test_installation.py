"""``memctl version``, and an environment in which another package has the same files."""

from __future__ import annotations

from pathlib import Path

import pytest

from memctl import __version__
from tests.support.cli import Run, report


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


def test_version_says_which_extras_are_missing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memctl.installation._version", lambda _: None)
    assert "aiomysql        not installed (extra mysql)" in run("version", "-v").stdout
