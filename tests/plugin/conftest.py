"""The example plugin, installed in a folder on the path, and places of its store."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest

DISTRIBUTION = Path(__file__).parent / "distribution"


def entry_points(groups: dict[str, dict[str, str]]) -> str:
    """The file of a distribution that says what it offers."""
    return "".join(
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in offered.items())
        for group, offered in groups.items()
    )


def install(site: Path, name: str, groups: dict[str, dict[str, str]]) -> None:
    """Write the metadata of an installed distribution, whose modules are on the path already."""
    info = site / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", "utf-8")
    (info / "entry_points.txt").write_text(entry_points(groups), "utf-8")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder where Python looks for distributions."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    return folder


@pytest.fixture
def plugin(site: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The example plugin, installed."""
    project = tomllib.loads((DISTRIBUTION / "pyproject.toml").read_text("utf-8"))["project"]
    install(site, project["name"], project["entry-points"])
    monkeypatch.syspath_prepend(DISTRIBUTION)
    monkeypatch.setenv("PYTHONPATH", f"{site}{os.pathsep}{DISTRIBUTION}")  # of other processes
    return site
