"""Kills parts of a divided migration at random until all are done, and holds the target to account.

``python -m tests.trust.divided --messages 1000000 --shards 16 --seed 7`` copies a store from
PostgreSQL to PostgreSQL twice: undivided, and in parts that are killed (SIGKILL) at random moments.
Every message is there once, and both targets have the same rows.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks import dataset
from tests.support.servers.postgresql import Postgresql

_ROWS = {
    "message": 'id, msg::text, session_id, "index"',
    "session": "id, user_id",
    "users": "id",
    "message_mark": "msg_id, mark",
}
"""The columns of each table."""


@dataclass(frozen=True)
class Outcome:
    """What a trial found."""

    seconds: float
    runs: int
    """How often the command was given: it is given again after a part was killed too often."""
    kills: int
    repeats: int
    """How often a part ran again."""

    def __str__(self) -> str:
        return (
            f"{self.seconds:.0f} s, {self.kills} parts killed, {self.repeats} repeats, "
            f"{self.runs} runs of the command"
        )


class Trial:
    """A source, and two targets in one server."""

    def __init__(self, server: Postgresql, folder: Path, messages: int) -> None:
        self.messages = messages
        self._server = server
        self._urls = [server.create() for _ in range(3)]
        self.source, self.whole, self.target = map(server.socket_url, self._urls)
        file = folder / "source.db"
        dataset.make(file, messages)
        memctl("migrate", "--no-verify", str(file), self.source)
        file.unlink()
        begun = time.monotonic()
        memctl("migrate", "--no-verify", self.source, self.whole)
        self.seconds = time.monotonic() - begun
        """How long an undivided copy takes on this machine."""

    def close(self) -> None:
        """Drop the databases."""
        for url in self._urls:
            self._server.drop(url)

    def run(self, shards: int, seed: int, kills: float) -> Outcome:
        """Copy the source in parts, which are killed at random until all are done.

        So many ``kills`` are made in the time that an undivided copy takes.

        Raises:
            AssertionError: a message is missing, there twice, or not the one of an undivided copy.
        """
        chance = random.Random(seed)
        begun = time.monotonic()
        runs = killed = repeats = 0
        code = 7
        while code:
            assert code == 7, f"ended with {code}"
            runs += 1
            with tempfile.TemporaryFile("w+") as output:
                words = ["migrate", self.source, self.target, "--shards", str(shards), "--json"]
                driver = subprocess.Popen(
                    [*MEMCTL, "--quiet", *words], stdout=output, stderr=subprocess.DEVNULL
                )
                killed += kill_parts(driver, chance, self.seconds / kills)
                code = driver.returncode
                output.seek(0)
                report = json.load(output)
            repeats += sum(part["attempts"] - 1 for part in report["parts"])
        outcome = Outcome(time.monotonic() - begun, runs, killed, repeats)
        memctl("verify", self.source, self.target)
        self.check()
        return outcome

    def check(self) -> None:
        """Compare the rows of the targets.

        Raises:
            AssertionError: they differ.
        """
        found = self._ask(self._urls[2], "SELECT count(*), count(DISTINCT id) FROM message")
        assert found == f"{self.messages}|{self.messages}", found
        for table, columns in _ROWS.items():
            digest = (
                f"SELECT count(*), md5(string_agg(md5(row::text), '' ORDER BY row::text)) "
                f"FROM (SELECT {columns} FROM {table}) row"
            )
            one, other = (self._ask(url, digest) for url in self._urls[1:])
            assert one == other, f"the rows of {table} differ: {one}, {other}"

    def _ask(self, url: str, sql: str) -> str:
        return self._server.execute(self._server.admin_url(url), sql).strip()


MEMCTL = [sys.executable, "-m", "memctl"]


def memctl(*words: str) -> None:
    """Run memctl to its end.

    Raises:
        CalledProcessError: it failed.
    """
    subprocess.run([*MEMCTL, "--quiet", *words], check=True, stdout=subprocess.DEVNULL)


def kill_parts(driver: subprocess.Popen[bytes], chance: random.Random, seconds: float) -> int:
    """Kill a part of a run every few ``seconds`` until the driver ends; return the number."""
    kills = 0
    while True:
        try:
            driver.wait(chance.expovariate(1 / seconds))
        except subprocess.TimeoutExpired:
            pass
        else:
            return kills
        if parts := sorted(children(driver.pid)):
            try:
                os.kill(chance.choice(parts), signal.SIGKILL)
            except ProcessLookupError:
                continue  # it has ended by itself
            kills += 1


def children(parent: int) -> list[int]:
    """Return the ids of the processes that a process has started and that still run."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, ppid, *_ = stat.read_text().rpartition(") ")[2].split()
        except OSError:  # it has ended
            continue
        if int(ppid) == parent and state != "Z":
            found.append(int(stat.parent.name))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="divided", description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--shards", type=int, default=16)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--kills", type=float, default=8, help="in the time of an undivided copy")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="memctl-divided-") as name:
        folder = Path(name)
        trial = Trial(Postgresql(folder), folder, options.messages)
        print(f"seed {options.seed}: {trial.run(options.shards, options.seed, options.kills)}")


if __name__ == "__main__":
    main()
