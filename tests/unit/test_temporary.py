"""Temporary files on a disk that is full."""

from __future__ import annotations

import tempfile

import pytest

from memctl.errors import Unavailable
from memctl.machine.temporary import end, scratch


def test_temporary_without_a_folder_that_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/nowhere"])
    with pytest.raises(Unavailable, match="cannot write a temporary file"):
        scratch()


def test_temporary_end_of_a_file_that_could_not_be_written() -> None:
    file = open("/dev/full", "wb")  # noqa: SIM115 - the test is of its end
    file.write(b"lost")
    end(file)
    assert file.closed
