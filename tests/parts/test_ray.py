"""``--on ray`` without Ray; tests/interop_ray has a cluster."""

from __future__ import annotations

import sys

import pytest

from tests.support.cli import Run, fails


def test_ray_that_is_not_installed_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    words = ("inspect", "postgresql://localhost/agents", "--shards", "2", "--on", "ray")
    fails(run(*words), 2, "--on ray needs Ray", "[ray]")
