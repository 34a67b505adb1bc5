"""Time of ``compress`` next to its model, and its memory as the store grows.

    python -m benchmarks.compress [--memories 1000] [--jobs 16] [--rounds 3] [--write]

The model answers on loopback after a fixed 0.2 s, so that no run can take less than memories times
0.2 s / jobs; the limits are 1.15 times that, start-up included, and the peak memory of a run over
ten memories and 20 %.  Beside it stand as many requests by the official SDK and nothing else, in
turn with ours: what they take beyond the model's time is the machine's doing.  ``--write`` puts the
table into ``benchmarks/compress.md``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.measure import Command, interleaved, machine, median, peak, run
from tests.support.servers.postgresql import Postgresql
from tests.support.servers.redis import Redis

SECONDS = 0.2
FEW = 10
MESSAGES = 20
LIMIT = 1.15
PEAK_LIMIT = 1.2
PACKAGES = ("openai", "sqlalchemy", "asyncpg", "aiosqlite", "redis", "orjson")
RESULTS = Path(__file__).with_name("compress.md")
TEXT = "We looked at hotels near the river, and the one with a garden has rooms in May. " * 3
HEAD = """\
| memories | store | s | the model, s | ratio | at most | the SDK alone, s | peak, MiB | as with 10 | at most |
|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|"""  # noqa: E501 - the head of a table
SDK = Path(__file__).with_name("yardsticks") / "sdk.py"


def write_states(folder: Path, memories: int) -> Path:
    """A folder of so many sessions, from which the stores are filled."""
    folder.mkdir()
    for number in range(memories):
        messages = [
            [
                {
                    "id": f"m{number:06}{place:015}",
                    "name": ("Anna", "Friday")[place % 2],
                    "role": ("user", "assistant")[place % 2],
                    "content": f"{place} of {number}: {TEXT}",
                    "metadata": {},
                    "timestamp": f"2026-01-{place % 28 + 1:02} 12:00:00.000",
                },
                [],
            ]
            for place in range(MESSAGES)
        ]
        state = {"agent": {"memory": {"_compressed_summary": "", "content": messages}}}
        (folder / f"u{number % 100}_s{number}.json").write_text(json.dumps(state))
    return folder


@contextmanager
def model() -> Iterator[str]:
    """The address of a model in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.model", str(SECONDS)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        server.communicate()


class Bench:
    """Compresses stores, each filled anew before its run."""

    def __init__(self, folder: Path, url: str, jobs: int) -> None:
        self._folder = folder
        self._jobs = jobs
        self._config = folder / "config.toml"
        table = f'[summarizers.model]\nkind = "openai"\nmodel = "m"\nbase_url = "{url}"\n'
        self._config.write_text(table)
        postgresql, redis = Postgresql(folder), Redis(folder)
        self._places: dict[str, Callable[[str], str]] = {
            "SQLite": lambda name: f"sqlite:///{folder}/{name}.db",
            "PostgreSQL": lambda _: postgresql.fresh(),
            "Redis": lambda _: redis.fresh(),
            "session folder": lambda name: str(folder / name),
        }

    def commands(self, memories: int) -> dict[str, Command]:
        """A run over each kind of store."""
        states = write_states(self._folder / f"states{memories}", memories)
        return {kind: self._command(kind, states) for kind in self._places}

    def _command(self, kind: str, states: Path) -> Command:
        words = [sys.executable, "-m", "memctl", "--config", str(self._config), "compress"]
        options = ["--summarizer", "model", "--jobs", str(self._jobs), "--json"]
        arguments = [*words, "", *options]
        runs = 0

        def fill() -> None:
            nonlocal runs
            runs += 1
            store = self._places[kind](f"{states.name}-{runs}")
            arguments[len(words)] = store
            copy = ["migrate", str(states), store, "--no-verify"]
            run([sys.executable, "-m", "memctl", *copy])

        return Command(arguments, fill)


def main() -> None:
    """Measure, prints and, if asked to, keeps the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--memories", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="stores that have this in their name")
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    options = parser.parse_args()
    lines = [f"{machine(*PACKAGES)}; median of {options.rounds} runs, --jobs {options.jobs}.\n"]
    lines.append(HEAD)
    print("\n".join(lines), flush=True)
    least = options.memories * SECONDS / options.jobs
    with tempfile.TemporaryDirectory(prefix="memctl-bench-") as text, model() as url:
        os.environ["XDG_STATE_HOME"] = text + "/state"
        bench = Bench(Path(text), url, options.jobs)
        words = [sys.executable, str(SDK), url, str(options.memories), str(options.jobs)]
        few, many = bench.commands(FEW), bench.commands(options.memories)
        for kind in few:
            if options.only not in kind:
                continue
            commands = {"few": few[kind], "many": many[kind], "sdk": Command(words)}
            found = interleaved(commands, options.rounds, warm=False)
            seconds, sdk = median(found["many"]), median(found["sdk"])
            top, low = peak(found["many"]), peak(found["few"])
            lines.append(
                f"| {options.memories:,} | {kind} | {seconds:.2f} | {least:.2f} "
                f"| {seconds / least:.2f} | {LIMIT} | {sdk:.2f} | {top:.0f} "
                f"| {top / low:.2f} | {PEAK_LIMIT} |"
            )
            print(lines[-1], flush=True)
    if options.write:
        RESULTS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
