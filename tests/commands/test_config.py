"""Aliases, and where their passwords come from."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.commands.conftest import Run, fails, report


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The configuration file of this test."""
    path = tmp_path / "config.toml"
    monkeypatch.setenv("MEMCTL_CONFIG", str(path))
    return path


def without_password(url: str) -> tuple[str, str]:
    """The URL without its password, and the password."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    bare = parts._replace(netloc=f"{parts.username}@{host}").geturl()
    return bare, unquote(parts.password or "")


@pytest.mark.parametrize("source", ["env", "file", "command"])
def test_an_alias_with_its_password(
    run: Run,
    write: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    postgresql_url: str,
    filled: str,
    source: str,
) -> None:
    url, password = without_password(postgresql_url)
    (tmp_path / "password").write_text(password + "\n")
    monkeypatch.setenv("DB_PASSWORD", password)
    value = {
        "env": "DB_PASSWORD",
        "file": f"{tmp_path}/password",
        "command": f"cat {tmp_path}/password",
    }[source]
    write.write_text(f'[stores.prod]\nurl = "{url}"\npassword_{source} = "{value}"\n')
    result = run("migrate", filled, "prod", "--json")
    assert report(result)["target"] == url
    assert password not in result.stdout + result.stderr


def test_an_alias_comes_before_a_path(
    run: Run, write: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, filled: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prod").mkdir()
    write.write_text(f'[stores.prod]\nurl = "{filled}"\n')
    assert report(run("inspect", "prod", "--json"))["totals"]["messages"] == 100
    assert report(run("inspect", "./prod", "--json"))["totals"]["messages"] == 0


def test_a_named_configuration(run: Run, tmp_path: Path, filled: str) -> None:
    path = tmp_path / "other.toml"
    path.write_text(f'[stores.prod]\nurl = "{filled}"\n')
    assert report(run("--config", path, "inspect", "prod", "--json"))["totals"]["memories"] == 4
    fails(run("--config", tmp_path / "none.toml", "inspect", filled), 4, "none.toml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[stores.prod", "is not TOML"),
        ("[store.prod]\nurl = 'x.db'", "did you mean 'stores'"),
        ("[stores.prod]\nurll = 'x.db'", "did you mean 'url'"),
        ("[stores.prod]\npassword_env = 'X'", "needs url"),
        ("[stores]\nprod = 'x.db'", "not a table"),
        ("[stores.prod]\nurl = 'x.db'\npassword_env = 'A'\npassword_file = 'b'", "several"),
        ("[stores.prod]\nurl = 'redis://h'\npassword_env = 'MISSING'", "MISSING"),
        ("[stores.prod]\nurl = 'redis://h'\npassword_file = '/none'", "/none"),
        ("[stores.prod]\nurl = 'redis://h'\npassword_command = 'exit 3'", "password_command"),
        ("[stores.prodd]\nurl = 'x.db'", "did you mean 'prodd'"),
    ],
)
def test_mistakes(run: Run, write: Path, text: str, said: str) -> None:
    write.write_text(text)
    fails(run("inspect", "prod"), 2, said)
