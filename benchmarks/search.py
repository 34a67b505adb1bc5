"""The quality of search, on questions with known answers, and its speed.

    python -m benchmarks.search quality LOCOMO.json [--embedder NAME]
    python -m benchmarks.search speed [--messages 1000000] [--rounds 3]

LoCoMo (``snap-research/LoCoMo``, ``data/locomo10.json``) has a licence of its own, so the file is
not part of memctl.  Each conversation becomes a user, each of its sessions a session of AgentScope
1.x in SQLite, and each question is searched for with ``--user``.

Session Hit@1 counts questions whose first hit is in a session with evidence.  Turn Recall@k is the
share of the evidence that is among the first k hits.  All questions with evidence count, those of
the adversarial category, too, as in arXiv 2606.04194.

``speed`` measures whole processes on the generator's data (``dataset.py``) in SQLite, next to
``inspect``, a hand-made index with ``sqlite3``, ``rg`` or ``grep`` over an export, and a loop over
AgentScope's own classes, which gets fewer messages.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine

from benchmarks import dataset
from benchmarks.lines import AGENTSCOPE
from benchmarks.measure import Command, interleaved, machine, median, peak
from memctl import config
from memctl.config import environment
from memctl.embedder import Embedder
from memctl.embedders.registry import make_embedder
from memctl.ops.index import Target
from memctl.ops.search import By, SearchOptions, search
from memctl.registry import make_store, parse
from memctl.selection import Selection
from memctl.stores.agentscope1.sql.declared import create_tables

DEPTHS = (1, 5, 10, 50)
TUNED = 5
"""The conversations by which the parameters were chosen."""

_TURN = re.compile(r"D(\d+):0*(\d+)")
_TIME = "%I:%M %p on %d %B, %Y"


@dataclass(frozen=True, slots=True)
class Question:
    """A question and the ids of the turns that answer it."""

    text: str
    evidence: frozenset[str]


@dataclass(slots=True)
class Score:
    """The outcome of the questions of a conversation."""

    hits: list[float] = field(default_factory=list)
    recalls: dict[int, list[float]] = field(default_factory=lambda: {depth: [] for depth in DEPTHS})

    def add(self, evidence: frozenset[str], found: Sequence[str]) -> None:
        """Count a question: the ids of its hits, best first."""
        sessions = {_session(one) for one in evidence}
        self.hits.append(float(bool(found) and _session(found[0]) in sessions))
        for depth, recalls in self.recalls.items():
            recalls.append(len(evidence & set(found[:depth])) / len(evidence))


def _session(turn: str) -> str:
    return turn.split(":")[0]


def make_target(conversations: list[dict[str, Any]], path: Path) -> None:
    """Write the conversations as AgentScope 1.x would have stored them."""
    with create_engine(f"sqlite:///{path}").begin() as connection:
        create_tables(connection)
    with sqlite3.connect(path) as database:
        for sample in conversations:
            user, conversation = sample["sample_id"], sample["conversation"]
            database.execute("INSERT INTO users VALUES (?)", (user,))
            for number in _sessions(conversation):
                session = f"{user}-{number}"
                database.execute("INSERT INTO session VALUES (?, ?)", (session, user))
                at = datetime.strptime(conversation[f"session_{number}_date_time"], _TIME)
                for index, turn in enumerate(conversation[f"session_{number}"]):
                    message = _message(turn, at + timedelta(seconds=30 * index))
                    id = f"{user}-{session}-{turn['dia_id']}"
                    row = id, json.dumps(message), session, index
                    database.execute("INSERT INTO message VALUES (?, ?, ?, ?)", row)


def _sessions(conversation: dict[str, Any]) -> list[int]:
    names = (re.fullmatch(r"session_(\d+)", name) for name in conversation)
    return sorted(int(name[1]) for name in names if name)


def _message(turn: dict[str, Any], at: datetime) -> dict[str, Any]:
    """Return a turn as a message; of a picture it has the caption."""
    caption = turn.get("blip_caption")
    return {
        "id": turn["dia_id"],
        "name": turn["speaker"],
        "role": "user",
        "content": f"{turn['text']} {caption}" if caption else turn["text"],
        "metadata": {},
        "timestamp": at.isoformat(" ", "milliseconds"),
    }


def questions(sample: dict[str, Any]) -> list[Question]:
    """Return the questions of a conversation that have evidence."""
    turns = {
        turn["dia_id"]
        for number in _sessions(sample["conversation"])
        for turn in sample["conversation"][f"session_{number}"]
    }
    found = []
    for entry in sample["qa"]:
        named = (_TURN.findall(one) for one in entry.get("evidence", ()))
        evidence = {f"D{int(session)}:{turn}" for some in named for session, turn in some}
        if evidence & turns:
            found.append(Question(entry["question"], frozenset(evidence & turns)))
    return found


async def measure(
    conversations: list[dict[str, Any]], by: By, embedder: Embedder | None
) -> list[Score]:
    """Return the scores by conversation."""
    scores = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "locomo.db"
        make_target(conversations, path)
        location = parse(str(path))
        target = Target(location, lambda: make_store(location))
        options = SearchOptions(by, top=max(DEPTHS))
        for sample in conversations:
            score = Score()
            where = Selection(users=frozenset({sample["sample_id"]}))
            for question in questions(sample):
                report = await search([target], question.text, where, options, embedder=embedder)
                score.add(question.evidence, [hit.id for hit in report.hits])
            scores.append(score)
    return scores


def show(label: str, scores: list[Score]) -> None:
    """Print a row for the tuned conversations, the others, and all."""
    for name, some in (
        (f"first {TUNED}", scores[:TUNED]),
        (f"other {len(scores) - TUNED}", scores[TUNED:]),
        ("all", scores),
    ):
        hits = [one for score in some for one in score.hits]
        cells = [_percent(hits)]
        cells += [
            _percent([one for score in some for one in score.recalls[depth]]) for depth in DEPTHS
        ]
        print(f"| {label} | {name} | {len(hits)} | {' | '.join(cells)} |", flush=True)


def _percent(values: list[float]) -> str:
    return f"{100 * sum(values) / len(values):.1f}"


async def quality(conversations: list[dict[str, Any]], name: str | None) -> None:
    """Print the table."""
    depths = " | ".join(f"Recall@{depth}" for depth in DEPTHS)
    print(f"| by | conversations | questions | session Hit@1 | {depths} |")
    print(f"|---|---|{'--:|' * (2 + len(DEPTHS))}")
    show("words", await measure(conversations, By.WORDS, None))
    if name is not None:
        configured = config.load(None, environment()).embedder(name)
        embedder = make_embedder(configured.settings, configured.key(environment()))
        async with embedder:
            for by in (By.MEANING, By.BOTH):
                show(by.value, await measure(conversations, by, embedder))


RARE = "vorensalple tatapleren"
COMMON = "ka lo mi ren"
YARDSTICKS = Path(__file__).parent / "yardsticks"
API_MESSAGES = 10_000
"""AgentScope's classes read each memory by itself, so they get fewer messages."""


def speed(messages: int, rounds: int) -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        store, small = folder / "agents.db", folder / "small.db"
        dataset.make(store, messages)
        dataset.make(small, API_MESSAGES)
        export, table = folder / "export.ndjson", folder / "fts5.db"
        for path in (store, small):  # a file that was just written is looked at again
            os.utime(path, (1_700_000_000, 1_700_000_000))
        memctl, python = (sys.executable, "-m", "memctl"), (sys.executable,)

        def forget() -> None:
            shutil.rmtree(folder / "cache", ignore_errors=True)

        def drop() -> None:
            table.unlink(missing_ok=True)

        by_hand = (*python, str(YARDSTICKS / "fts5.py"))
        grep = ["rg", "-F"] if shutil.which("rg") else ["grep", "-F"]
        search = (*memctl, "search", str(store))
        _measure(
            {
                "`memctl inspect`": Command((*memctl, "inspect", str(store))),
                "a hand-made index": Command((*by_hand, "build", str(store), str(table)), drop),
                "`memctl search`, the first": Command((*search, RARE), forget),
            },
            rounds,
            messages,
        )
        _measure(
            {
                "`memctl search`, rare words": Command((*search, RARE)),
                "`memctl search`, common words": Command((*search, COMMON)),
                "`memctl search`, a phrase": Command((*search, f'"{RARE}"')),
                "`memctl search`, one user": Command((*search, RARE, "--user", "user_00000")),
                "a hand-made index, rare words": Command((*by_hand, "query", str(table), RARE)),
                "a hand-made index, common words": Command((*by_hand, "query", str(table), COMMON)),
            },
            rounds,
            messages,
        )
        done = subprocess.run([*memctl, "export", str(store), "-o", str(export), "--quiet"])
        done.check_returncode()
        # What writes to /dev/null is not even looked for.
        pipe = f"{shlex.join([*grep, RARE.split()[0], str(export)])} | cat"
        _measure(
            {f"`{grep[0]}` over an export": Command(("sh", "-c", pipe))},
            rounds,
            messages,
        )
        if AGENTSCOPE.exists():
            program = str(YARDSTICKS / "memories.py")
            loop = Command((str(AGENTSCOPE), program, str(small), *RARE.split()))
            again = Command((*memctl, "search", str(small), RARE))
            _measure({"AgentScope's classes": loop, "`memctl search`": again}, rounds, API_MESSAGES)
    print(f"\n{machine('typer', 'orjson')}, SQLite {sqlite3.sqlite_version}; median of {rounds}.")


def _measure(commands: dict[str, Command], rounds: int, messages: int) -> None:
    for name, runs in interleaved(commands, rounds, warm=len(commands) > 1).items():
        line = f"| {name} | {messages:,} | {median(runs):.2f} | {peak(runs):.0f} |"
        print(line, flush=True)


def main() -> None:
    """Run what the command line names."""
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command", required=True)
    found = commands.add_parser("quality")
    found.add_argument("locomo", type=Path)
    found.add_argument("--embedder")
    found = commands.add_parser("speed")
    found.add_argument("--messages", type=int, default=1_000_000)
    found.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.command == "speed":
        print("| what | messages | seconds | peak, MiB |\n|---|--:|--:|--:|")
        speed(arguments.messages, arguments.rounds)
        return
    asyncio.run(quality(json.loads(arguments.locomo.read_bytes()), arguments.embedder))


if __name__ == "__main__":
    main()
