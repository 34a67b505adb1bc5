"""Files appear whole or not at all, and say why where they cannot."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from memctl import testing
from memctl.errors import MemctlError, NotFound, Unavailable
from memctl.storekit.files import AtomicFile, system_errors
from memctl.testing import samples
from memctl.testing.samples import sample
from tests.support.backends import FACT_BACKENDS, new_place
from tests.support.places import put
from tests.support.servers.pool import Servers


def test_file_appears_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with AtomicFile(path) as file:
        file.write(b"one ")
        file.flush()
        file.write(memoryview(b"two"))
        assert not path.exists()
        file.commit()
    assert path.read_bytes() == b"one two"
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["a"]


def test_files_what_was_there_stays_until_then(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    path.chmod(0o644)
    with AtomicFile(path) as file:
        file.write(b"new")  # and no commit
    assert path.read_bytes() == b"old"
    with AtomicFile(path) as file:
        file.commit()
    assert path.read_bytes() == b""
    assert path.stat().st_mode & 0o777 == 0o644
    assert os.listdir(tmp_path) == ["a"]


def test_files_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/null")):
        with pytest.raises(Unavailable, match="not a regular file"):
            AtomicFile(path)
    with pytest.raises(NotFound, match="the folder of"):
        AtomicFile(tmp_path / "none" / "a")


def test_files_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with (
        pytest.raises(Unavailable, match="no space left") as found,
        AtomicFile(tmp_path / "a") as f,
    ):
        f.commit()
    assert found.value.hint
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("number", sorted(errno.errorcode))
def test_files_every_refusal_of_the_system_has_words(number: int) -> None:
    with pytest.raises(MemctlError) as found, system_errors(Path("a\x1b[1mb"), "write"):
        raise OSError(number, os.strerror(number))
    assert "\x1b" not in found.value.message
    assert found.value.hint


@pytest.mark.parametrize(
    "name",
    ["sqlite", "sqlite-agentscope2", "sqlite-agno", "archive", "sessions", "state"],
)
def test_new_file_of_a_store_is_private(name: str, tmp_path: Path, servers: Servers) -> None:
    place = new_place(name, tmp_path, servers)
    samples.use(place.backend.style)
    put(place, [sample(key, samples.entries(3)) for key in place.keys(1)])
    samples.use(samples.Style())
    modes = {path.name: path.stat().st_mode & 0o777 for path in place.folder.rglob("*.*")}
    assert modes
    assert {mode for name, mode in modes.items() if not name.startswith(".")} == {0o600}


@pytest.mark.slow
def test_new_file_of_qdrant_is_private(tmp_path: Path, servers: Servers) -> None:
    place = testing.new_place(FACT_BACKENDS["mem0-qdrant"](servers), tmp_path)
    samples.use(place.backend.style)
    put(place, [sample(key, samples.entries(3)) for key in place.keys(1)])
    samples.use(samples.Style())
    [file] = place.folder.rglob("*.sqlite")
    assert file.stat().st_mode & 0o777 == 0o600
