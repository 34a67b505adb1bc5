"""Servers that are killed in the middle of a migration, and come back."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from random import Random

import pytest

from memctl.model import MemoryKey
from memctl.testing import samples
from memctl.testing.samples import Sample, Style
from tests.support.processes import wait_until
from tests.trust.kills import State, states
from tests.trust.mortal import Mortals, Outage
from tests.trust.places import KINDS, Place, dialect_of, held_by
from tests.trust.process import Migration, Moment
from tests.trust.worlds import world

pytestmark = pytest.mark.slow

SLOWLY = ("--rate-limit", "6MB", "--no-verify")
"""Bytes a second: there is time to kill something."""
OPEN = 2
"""The line of stderr that says that the target is open."""
CASES = list(product(["postgresql", "mysql", "redis"], ["source", "target"]))
GIVING_UP = [
    *CASES[1::3],
    *((f"{name}-agentscope2", "target") for name in ("postgresql", "mysql", "redis")),
]
MakePlace = Callable[[str], Place]


@pytest.fixture(scope="module")
def mortals(tmp_path_factory: pytest.TempPathFactory) -> Mortals:
    return Mortals(tmp_path_factory.mktemp("mortals"))


@pytest.fixture
def make(tmp_path: Path, mortals: Mortals) -> Iterator[MakePlace]:
    """Make a new and empty place of a kind."""
    made: list[Place] = []

    def make(kind: str) -> Place:
        folder = tmp_path / f"{kind}{len(made)}"
        folder.mkdir()
        made.append(KINDS[kind](folder, mortals))
        return made[-1]

    yield make
    for place in made:
        place.drop()


def large(style: Style) -> Sample:
    """Return a memory too large to be gathered: it is written while it is read.

    It is the first that is read from SQLite.
    """
    samples.use(style)
    text = "large " * 1400
    entries = [samples.entry(f"m{number}", number, content=text) for number in range(1500)]
    samples.use(Style())
    return samples.sample(MemoryKey("user", "  first"), entries)


class Case:
    """A migration between a server's store and a file, which is killed half-way."""

    def __init__(self, make: MakePlace, kind: str, role: str, home: Path) -> None:
        other = "sqlite-agentscope2" if kind.endswith("-agentscope2") else "sqlite"
        pair = (kind, other) if role == "source" else (other, kind)
        self.source, self.target = make(pair[0]), make(pair[1])
        held = held_by(pair)
        style = Style(dialect_of(kind).name, held.marks)
        self.source.fill([large(style), *world(f"{kind} as {role}", held, style)])
        self.wanted = states(self.source.read(), order=False)
        # A store of 2.x connects when the first batch is there: only then is there what can break.
        first = 1.6 if kind.endswith("-agentscope2") else 0.9
        self.moment = Moment(OPEN, first + Random(f"{kind} as {role}").uniform(0, 0.7))
        self._home = home

    def start(self, *options: str) -> Migration:
        """Begin a run."""
        return Migration(self.source.text, self.target.text, self._home, *options)

    def held(self) -> dict[MemoryKey, State]:
        """Return the state of the target."""
        return states(self.target.read(self.wanted), order=False)


@pytest.mark.parametrize(("kind", "role"), CASES)
def test_server_run_goes_on_by_itself(
    mortals: Mortals, make: MakePlace, kind: str, role: str, tmp_path: Path
) -> None:
    case = Case(make, kind, role, tmp_path / "home")
    run = case.start(*SLOWLY)
    run.reach(case.moment)
    outage = Outage(mortals.of(kind), seconds=1)
    code = run.wait()
    outage.join()
    assert code == 0, run.said
    assert "trying again" in run.said
    assert case.held() == case.wanted
    assert case.target.left_behind() == []


@pytest.mark.parametrize(("kind", "role"), GIVING_UP)
def test_server_run_that_gives_up_can_be_run_again(
    mortals: Mortals, make: MakePlace, kind: str, role: str, tmp_path: Path
) -> None:
    case = Case(make, kind, role, tmp_path / "home")
    run = case.start(*SLOWLY, "--retries", "0")
    run.reach(case.moment)
    outage = Outage(mortals.of(kind), seconds=0)
    code = run.wait()
    outage.join()
    assert code == 3, run.said
    assert run.said.count("memctl: error:") == 1
    assert run.said.count("  hint:") == 1
    assert "Traceback" not in run.said
    held = case.held()
    assert held != case.wanted
    assert held.items() <= case.wanted.items()
    case.target.unlock()
    again = case.start()
    assert again.wait() == 0, again.said
    assert case.held() == case.wanted
    assert case.target.left_behind() == []


def test_server_one_process_of_postgresql_dies(
    mortals: Mortals, make: MakePlace, tmp_path: Path
) -> None:
    """The server ends all its connections, recovers, and refuses new ones meanwhile."""
    case = Case(make, "postgresql", "target", tmp_path / "home")
    run = case.start(*SLOWLY)
    run.reach(case.moment)
    sql = "SELECT pid FROM pg_stat_activity WHERE application_name = 'memctl'"
    admin = mortals.postgresql.admin_url(case.target.url)
    pids: list[str] = []
    wait_until(lambda: pids or pids.extend(mortals.postgresql.execute(admin, sql).splitlines()))
    os.kill(int(pids[0]), signal.SIGKILL)
    assert run.wait() == 0, run.said
    assert "trying again" in run.said
    assert case.held() == case.wanted
