"""A sample of the fuzzer, always the same, a part for each mutator."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.servers.pool import Servers

SEED = 1
SAMPLES = {"words": 4000, "config": 4000, "journal": 4000}
"""Mutators, and below which number their inputs are tried."""


@pytest.mark.parametrize("mutator", SAMPLES)
def test_fuzz_sample_breaks_no_invariant(mutator: str, servers: Servers) -> None:
    words = ["--seed", SEED, "--inputs", SAMPLES[mutator], "--mutators", mutator]
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", *map(str, words), "--servers", servers.run],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
