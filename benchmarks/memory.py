"""Peak memory of memctl on memories that do not fit into it: from store to store, without verify.

    python -m benchmarks.memory

Starts PostgreSQL, MariaDB and Redis itself, as the tests do.  Takes about half an hour.

    python -m benchmarks.memory --reads --messages 300000

shows for each layout whether memctl streams it or holds a memory: ``inspect`` of as many messages
in one memory, and of the same number in memories of 100 messages.

    python -m benchmarks.memory --undo

measures the undo of large runs in SQLite.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks import dataset
from benchmarks.measure import Run, machine, run
from tests.support.servers.mariadb import Mariadb
from tests.support.servers.postgresql import Postgresql
from tests.support.servers.redis import Redis

MESSAGES = 1_000_000
MEMORIES = 100_000
LARGE_BYTES = 100_000_000
UNDONE_MESSAGES = 500_000
UNDONE_MEMORIES = 200_001


def message(number: int, text: str) -> bytes:
    """A message as AgentScope writes it."""
    return json.dumps(dataset.plain_message(number, text)).encode()


def _state(path: Path, messages: Iterator[bytes]) -> None:
    with path.open("wb") as file:
        file.write(b'{"_compressed_summary": "", "content": [')
        for number, text in enumerate(messages):
            file.write((b", " if number else b"") + b'[%s, ["hint"]]' % text)
        file.write(b"]}")


def one_large_memory(folder: Path, messages: int = MESSAGES) -> list[str]:
    """A memory of a million messages, as a state_dict."""
    path = folder / "memory.json"
    _state(path, (message(number, "x" * 200) for number in range(messages)))
    return [str(path), "--user", "u", "--session", "s"]


def one_large_message(folder: Path) -> list[str]:
    """A memory with a message of 100 MB, as a state_dict."""
    path = folder / "message.json"
    _state(path, (message(n, "x" * size) for n, size in enumerate((9, LARGE_BYTES, 9))))
    return [str(path), "--user", "u", "--session", "s"]


def many_memories(folder: Path, memories: int = MEMORIES, messages: int = 3) -> list[str]:
    """A hundred thousand memories of three messages, as session files."""
    sessions = folder / "sessions"
    sessions.mkdir()
    for number in range(memories):
        texts = (message(at, "hi") for at in range(messages))
        _state(sessions / f"u{number % 100}_s{number}.json", texts)
    return [str(sessions)]


def layouts(folder: Path, redis: Redis) -> dict[str, str]:
    """Return a new store of each layout, on one engine, by its name in the table."""
    return {
        "SQL, AgentScope 1.x": f"sqlite:///{folder}/a.db",
        "SQL, AgentScope 2.x": f"sqlite:///{folder}/a2.db?layout=agentscope2",
        "SQL, LangChain": f"sqlite:///{folder}/lc.db?layout=langchain&owner=u",
        "SQL, OpenAI Agents": f"sqlite:///{folder}/oa.db?layout=openai-agents&owner=u",
        "SQL, LlamaIndex": f"sqlite:///{folder}/li.db?layout=llamaindex&owner=u",
        "SQL, Google ADK": f"sqlite:///{folder}/adk.db?layout=adk&app=a",
        "SQL, Agno": f"sqlite:///{folder}/agno.db?layout=agno",
        "Redis, AgentScope 1.x": redis.fresh(),
        "Redis, session states": f"{redis.fresh()}?layout=session",
        "Redis, AgentScope 2.x": f"{redis.fresh()}?layout=agentscope2",
        "Redis, LangChain": f"{redis.fresh()}?layout=langchain&owner=u",
        "Redis, OpenAI Agents": f"{redis.fresh()}?layout=openai-agents&owner=u",
        "session folder": f"{folder}/sessions/",
        "LangChain files": f"langchain:{folder}/lc?owner=u",
        "AgentScope 2.x files": f"agentscope2:{folder}/a2",
        "OpenAI chat messages": f"{folder}/a.jsonl",
        "archive": f"{folder}/a.ndjson.zst",
    }


def measure_reads(total: int, sizes: tuple[int, ...]) -> None:
    """Write ``total`` messages to each layout in memories of each size, and inspect them."""
    heads = " | ".join(f"{total // size:,} of {size:,}, peak MiB" for size in sizes)
    print(f"| memories | {heads} |\n|---|{'--:|' * len(sizes)}", flush=True)
    with tempfile.TemporaryDirectory(prefix="memctl-bench-") as text:
        places = []
        for size in sizes:
            folder = Path(text) / str(size)
            source = folder / "source"
            source.mkdir(parents=True)
            for number in range(total // size):
                texts = (message(number * size + at, "x" * 200) for at in range(size))
                _state(source / f"u_s{number:07}.json", texts)
            places.append((source, layouts(folder, Redis(folder))))
        for name in places[0][1]:
            peaks = []
            for source, urls in places:
                _memctl("migrate", str(source), urls[name], "--no-verify", "--lossy", "--no-backup")
                peaks.append(f"{_memctl('inspect', urls[name]).peak:.0f}")
            print(f"| {name} | {' | '.join(peaks)} |", flush=True)


def measure_undo() -> None:
    """Change a store by several large runs, and undo each of them."""
    print("| undo of | seconds | peak MiB |\n|---|--:|--:|", flush=True)
    with tempfile.TemporaryDirectory(prefix="memctl-bench-") as text:
        folder = Path(text)
        os.environ["XDG_STATE_HOME"] = text  # "undo" reverts the last run recorded there
        store = str(folder / "a.db")
        memory, *owner = one_large_memory(folder, UNDONE_MESSAGES)
        [sessions] = many_memories(folder, UNDONE_MEMORIES, 1)
        _memctl("migrate", memory, store, *owner, "--no-verify")
        for name, words in {
            f"{UNDONE_MESSAGES:,} marks": ["mark", "add", "--all", store, "reviewed"],
            f"a compression of {UNDONE_MESSAGES:,} messages": [
                "compress",
                store,
                "--mode",
                "message",
            ],
            f"{UNDONE_MEMORIES:,} new memories": ["migrate", sessions, store, "--no-verify"],
        }.items():
            _memctl(*words)
            found = _memctl("undo", "--yes")
            print(f"| {name} | {found.seconds:.0f} | {found.peak:.0f} |", flush=True)


def _memctl(*words: str) -> Run:
    return run([sys.executable, "-m", "memctl", "-q", *words])


def measure(name: str, source: list[str], targets: dict[str, str]) -> None:
    """Carry the memory through every store, and print what each step took."""
    here, label = source, "state" if source[0].endswith(".json") else "sessions"
    for target, url in targets.items():
        options = ["--no-verify", "--lossy"]
        command = [sys.executable, "-m", "memctl", "migrate", here[0], url, *here[1:], *options]
        found = run(command)
        print(
            f"| {name} | {label} to {target} | {found.seconds:.0f} | {found.peak:.0f} |", flush=True
        )
        here, label = [url], target


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--reads", action="store_true", help="measure reading, by layout")
    parser.add_argument("--undo", action="store_true", help="measure the undo of large runs")
    parser.add_argument("--messages", type=int, default=300_000, help="messages of --reads")
    options = parser.parse_args()
    print(f"{machine()}\n")
    if options.reads:
        measure_reads(options.messages, (options.messages, 100))
        return
    if options.undo:
        measure_undo()
        return
    print("| what | path | seconds | peak MiB |\n|---|---|--:|--:|", flush=True)
    cases = {
        "one memory of 1,000,000 messages": one_large_memory,
        "one message of 100 MB": one_large_message,
        "100,000 memories": many_memories,
    }
    for name, make in cases.items():
        with tempfile.TemporaryDirectory(prefix="memctl-bench-") as text:
            folder = Path(text)
            packet = "--max-allowed-packet=1G"
            measure(
                name,
                make(folder),
                {
                    "SQLite": f"sqlite:///{folder}/a.db",
                    "PostgreSQL": Postgresql(folder).fresh(),
                    "MariaDB": Mariadb(folder, "mariadb-bench", packet).fresh(),
                    "Redis": Redis(folder).fresh(),
                    "archive": f"{folder}/a.ndjson.zst",
                    "session folder": f"{folder}/out/",
                },
            )


if __name__ == "__main__":
    main()
