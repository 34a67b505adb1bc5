"""Peak memory of memctl on memories that do not fit into it: from store to store, without verify.

    python -m benchmarks.memory

Starts PostgreSQL, MariaDB and Redis itself, as the tests do.  Takes about half an hour.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import machine, run
from tests.support.servers.mariadb import Mariadb
from tests.support.servers.postgresql import Postgresql
from tests.support.servers.redis import Redis

MESSAGES = 1_000_000
MEMORIES = 100_000
LARGE_BYTES = 100_000_000


def message(number: int, text: str) -> bytes:
    """A message as AgentScope writes it."""
    value = {
        "id": f"m{number:021}",
        "name": "Friday",
        "role": ("user", "assistant")[number % 2],
        "content": text,
        "metadata": {},
        "timestamp": f"2026-01-{number % 28 + 1:02} 12:00:00.000",
    }
    return json.dumps(value).encode()


def _state(path: Path, messages: Iterator[bytes]) -> None:
    with path.open("wb") as file:
        file.write(b'{"_compressed_summary": "", "content": [')
        for number, text in enumerate(messages):
            file.write((b", " if number else b"") + b'[%s, ["hint"]]' % text)
        file.write(b"]}")


def one_large_memory(folder: Path) -> list[str]:
    """A memory of a million messages, as a state_dict."""
    path = folder / "memory.json"
    _state(path, (message(number, "x" * 200) for number in range(MESSAGES)))
    return [str(path), "--user", "u", "--session", "s"]


def one_large_message(folder: Path) -> list[str]:
    """A memory with a message of 100 MB, as a state_dict."""
    path = folder / "message.json"
    _state(path, (message(n, "x" * size) for n, size in enumerate((9, LARGE_BYTES, 9))))
    return [str(path), "--user", "u", "--session", "s"]


def many_memories(folder: Path) -> list[str]:
    """A hundred thousand memories of three messages, as session files."""
    sessions = folder / "sessions"
    sessions.mkdir()
    for number in range(MEMORIES):
        _state(sessions / f"u{number % 100}_s{number}.json", (message(n, "hi") for n in range(3)))
    return [str(sessions)]


def measure(name: str, source: list[str], targets: dict[str, str]) -> None:
    """Carry the memory through every store, and prints what each step took."""
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
    print(f"{machine()}\n")
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
