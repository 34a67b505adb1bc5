"""Configuration files that start programs, and that other users could change."""

from __future__ import annotations

import grp
import os
import pwd
from pathlib import Path

import pytest

from tests.support.cli import Run, fails

STARTING = {
    "stores.prod.password_command": '[stores.prod]\nurl = "m.db"\npassword_command = "touch ran"\n',
    "stores.rag.factory": '[stores.rag]\nfactory = "app.rag:store"\n',
    "summarizers.own.command": '[summarizers.own]\nkind = "command"\ncommand = "touch ran"\n',
    "summarizers.model.api_key_command": (
        '[summarizers.model]\nkind = "openai"\nmodel = "m"\napi_key_command = "touch ran"\n'
    ),
    "embedders.model.api_key_command": (
        '[embedders.model]\nkind = "openai"\nmodel = "m"\napi_key_command = "touch ran"\n'
    ),
    "encryption.identity_command": '[encryption]\nidentity_command = "touch ran"\n',
}
PLAIN = '[stores.prod]\nurl = "m.db"\npassword_env = "PASSWORD"\n'
WORLD, GROUP = 0o646, 0o664
USER = pwd.struct_passwd(("eve", "x", 4321, 4321, "", "/", "/bin/sh"))


@pytest.fixture(autouse=True)
def _inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A configuration file that starts a program."""
    path = tmp_path / "own" / "config.toml"
    path.parent.mkdir(0o755)
    path.write_text(STARTING["stores.prod.password_command"])
    return path


def told(run: Run, path: Path) -> str:
    """Return the error of a command with a configuration file; empty if the file is used."""
    done = run("--config", path, "stores")
    if done.exit_code == 0:
        return ""
    fails(done, 2, f"{path} starts programs")
    assert not Path("ran").exists()
    return done.stderr


@pytest.mark.parametrize("key", STARTING)
def test_file_that_every_user_may_change(run: Run, config: Path, key: str) -> None:
    config.write_text(STARTING[key])
    assert not told(run, config)
    config.chmod(WORLD)
    assert f"({key}), and it may be changed by every user" in told(run, config)
    assert f"hint: chmod go-w {config}\n" in told(run, config)
    fails(run("--config", config, "inspect", "prod"), 2, key)
    config.write_text(PLAIN)
    assert not told(run, config)


def test_file_that_a_group_may_change(
    run: Run, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.chmod(GROUP)
    group = config.stat().st_gid
    monkeypatch.setattr(pwd, "getpwall", lambda: [])
    monkeypatch.setattr(grp, "getgrgid", lambda _: grp.struct_group(("own", "x", group, [])))
    assert not told(run, config), "a group of one's own"
    monkeypatch.setattr(grp, "getgrgid", lambda _: grp.struct_group(("own", "x", group, ["eve"])))
    assert "it may be changed by its group" in told(run, config)
    assert f"hint: chmod g-w {config}\n" in told(run, config)

    def unknown(_: int) -> grp.struct_group:
        raise KeyError

    monkeypatch.setattr(grp, "getgrgid", unknown)
    assert not told(run, config), "a group that a container does not know"
    member = pwd.struct_passwd((*USER[:3], group, *USER[4:]))
    monkeypatch.setattr(pwd, "getpwall", lambda: [member])
    assert "it may be changed by its group" in told(run, config)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_file_of_another_user(run: Run, config: Path) -> None:
    other = pwd.getpwnam("nobody").pw_uid
    os.chown(config, other, -1)
    assert "it belongs to nobody" in told(run, config)
    os.chown(config, 54321, -1)  # of the host of a container
    assert not told(run, config)


def test_file_of_root_for_a_user(run: Run, config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = config.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    assert bool(told(run, config)) == (owner != 0)


def test_folder_that_every_user_may_change(run: Run, config: Path) -> None:
    config.parent.chmod(0o777)
    assert f"its folder {config.parent} may be changed by every user" in told(run, config)
    assert f"hint: chmod go-w {config.parent}\n" in told(run, config)
    config.parent.chmod(0o1777)
    assert not told(run, config), "only the owner may replace the file, as in /tmp"
    config.parent.chmod(0o777)
    config.write_text(PLAIN)
    assert not told(run, config)


def test_link_in_a_folder_that_every_user_may_change(
    run: Run, config: Path, tmp_path: Path
) -> None:
    """As a ConfigMap of Kubernetes: the file is a link to one in another folder."""
    folder = tmp_path / "open"
    folder.mkdir()
    link = folder / "memctl.toml"
    link.symlink_to(config)
    assert not told(run, link)
    folder.chmod(0o777)
    assert f"its folder {folder} may be changed" in told(run, link)
    folder.chmod(0o755)
    config.parent.chmod(0o777)
    assert f"its folder {config.parent} may be changed" in told(run, link)
    config.parent.chmod(0o755)
    config.chmod(WORLD)
    assert f"hint: chmod go-w {config}\n" in told(run, link)
