"""A sample of the fuzzer, always the same, a part for each mutator; and the fuzzer itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.fuzz import __main__ as fuzz
from tests.fuzz.bench import Bench
from tests.fuzz.invariants import Broken
from tests.support.servers.pool import Servers

pytestmark = pytest.mark.slow

SEED = 1
SAMPLES = [
    ("words,config,journal", "", 1000),
    ("archive,state,sessions,odd", "look,export", 700),
    ("redis", "look,export", 800),
    ("sqlite", "look,change,export,copy,copy-into", 600),
    ("postgresql,mysql", "look,change,export,copy,copy-into", 1000),
    ("shared-sqlite,shared-redis", "", 3000),
    ("shared-postgresql,shared-mysql", "", 1000),
    ("follow-sqlite,follow-redis,follow-postgresql,follow-mysql", "", 1500),
]
"""Mutators, what is done with their stores, and below which number inputs are tried."""


@pytest.mark.parametrize(("mutators", "scenes", "count"), SAMPLES)
def test_fuzz_sample_breaks_no_invariant(
    mutators: str, scenes: str, count: int, servers: Servers
) -> None:
    words = ["--seed", SEED, "--inputs", count, "--mutators", mutators, "--scenes", scenes]
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", *map(str, words), "--servers", servers.run],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


class Trial:
    """A mutator whose inputs end in so many ways, one after the other."""

    name = "trial"
    weight = 1

    def __init__(self, *ways: Callable[[Bench], None]) -> None:
        self._ways = list(ways)

    def play(self, rng: Random, bench: Bench) -> None:  # noqa: ARG002 - the signature of Mutator
        self._ways[bench.number](bench)


def good(bench: Bench) -> None:
    bench.run("stores", "--json", reads=True)


def broken(_: Bench) -> None:
    Path("left").touch()
    raise Broken("a rule", "what is there instead")


def writes(bench: Bench) -> None:
    bench.memctl.run = _run_and_write(bench.memctl.run)  # type: ignore[method-assign]
    bench.run("history", reads=True)


def _run_and_write(run: Callable[..., object]) -> Callable[..., object]:
    def both(*arguments: object) -> object:
        Path("new").touch()
        return run(*arguments)

    return both


def killed(_: Bench) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hangs(bench: Bench) -> None:
    bench.memctl.begun.value = time.monotonic() - fuzz.HANG_SECONDS
    time.sleep(60)


def test_fuzz_reports_every_end_of_an_input_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = Trial(good, broken, killed, writes, hangs, good)
    monkeypatch.setattr(fuzz, "prepare", lambda *_: ([trial], []))
    monkeypatch.setattr(fuzz, "known", lambda: {"trial": 1})
    tally = fuzz.Fuzzer(SEED, ["trial"], tmp_path, tmp_path, 1).run(range(6), 60)
    assert tally.inputs.total() == 6
    assert tally.restarts == 2
    assert [failure.number for failure in tally.failures] == [1, 2, 3, 4]
    rules = [failure.rule for failure in tally.failures]
    assert rules[0] == "a rule"
    assert "SIGKILL" in rules[1]
    assert rules[2] == "history reads, and changed something"
    assert rules[3].startswith("hang in")
    assert tally.codes["stores 0"] == 2
    text = tally.text()
    assert f"again: python -m tests.fuzz --seed {SEED} --only 3" in text
    assert "new 'new'" in text
