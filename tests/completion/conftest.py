"""Stores with names that shells find hard, a configuration, and shells to complete them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.main import get_command

from memctl import completion
from memctl.cli import app
from memctl.completion import complete
from memctl.model import MemoryKey
from memctl.testing import samples
from tests.completion.shells import PATIENCE, STARTS, Shell
from tests.support.cli import fill

# Each begins with another letter, which is what is typed of it.
NAMES = (
    "a ice'é\u0301t",
    "b:ob=x",
    'c"$HOME`id`!bang\\n*?[a]',
    "d#~%^@{a,b}(c);&|<>f🍁👨\u200d👩\u200d👧",
)
ALONE = "~$(id) '*"
"""Begins with what a shell expands."""

CONFIG = """
[stores.prod-one]
url = "sqlite:///{folder}/agents.db"
[stores.asks]
url = "postgresql://me@localhost/none"
password_command = "touch {folder}/asked"
[fleets.both]
stores = ["prod-one", "asks"]
[summarizers.house]
kind = "openai"
model = "m"
"""

Ask = Callable[..., list[str]]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``agents.db``, ``my store.ndjson``, ``alone.ndjson`` and a configuration."""
    place = tmp_path_factory.mktemp("completion")
    memories = {MemoryKey(name, f"of {name}"): samples.entries(5) for name in NAMES}
    memories[MemoryKey("zed", "a:1")] = [samples.entry("m", marks=("to check", "hint"))]
    memories[MemoryKey("zed", "b 2")] = [samples.entry("m")]
    for name in ("agents.db", "my store.ndjson"):
        asyncio.run(fill(str(place / name), memories))
    asyncio.run(fill(str(place / "alone.ndjson"), {MemoryKey(ALONE, "s"): samples.entries(1)}))
    settings = place / "config" / "memctl" / "config.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text(CONFIG.format(folder=place))
    return place


@pytest.fixture(scope="session", params=STARTS)
def shell(request: pytest.FixtureRequest, folder: Path) -> Iterator[Shell]:
    """Each of the shells in turn."""
    started = Shell(request.param, folder)
    yield started
    started.close()


@pytest.fixture
def ask(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Return the completions of the last word; ``FILES`` last where file names fit, too."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
    monkeypatch.setattr(completion, "PATIENCE", PATIENCE)
    monkeypatch.chdir(folder)
    root = get_command(app)

    def call(*words: str) -> list[str]:
        found = complete(root, {}, words[:-1], words[-1])
        return [*found.words, *(["FILES"] if found.files else [])]

    return call
