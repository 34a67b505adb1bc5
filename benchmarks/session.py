"""Peak memory of memctl on one large session of AgentScope 2.x, whose context is one JSON value.

    python -m benchmarks.session [--messages 50000]

The session comes from a memory of 1.x and grows by a thousandth; then a message is deleted from it,
and both are undone.  In SQLite and in PostgreSQL, which is started as the tests do.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import machine, run
from benchmarks.memory import message
from tests.support.servers.postgresql import Postgresql

_TEXT = "x" * 200
_LAYOUT = "layout=agentscope2"


def state(path: Path, count: int) -> str:
    """Write a memory of 1.x as a state_dict; return the path."""
    with path.open("wb") as file:
        file.write(b'{"_compressed_summary": "", "content": [')
        for number in range(count):
            file.write((b", " if number else b"") + b"[%s, []]" % message(number, _TEXT))
        file.write(b"]}")
    return str(path)


def steps(folder: Path, count: int, url: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the commands, each with what it does."""
    name = ["--user", "u", "--session", "s", "--no-verify"]
    first, more = (state(folder / f"{size}.json", size) for size in (count, count + count // 1000))
    id = json.loads(message(count // 2, ""))["id"]
    yield "from 1.x to a new session", ["migrate", first, url, *name]
    yield f"{count // 1000} messages appended", ["migrate", more, url, *name]
    yield "read: inspect", ["inspect", url]
    yield "one message deleted", ["delete", url, "--id", id, "--yes"]
    yield "the deletion undone", ["undo", "--store", url, "--yes"]
    yield "the append undone", ["undo", "--store", url, "--yes"]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--messages", type=int, default=50_000)
    options = parser.parse_args()
    print(f"{machine('sqlalchemy', 'asyncpg', 'orjson')}\n")
    print("| what | database | seconds | peak MiB |\n|---|---|--:|--:|", flush=True)
    with tempfile.TemporaryDirectory(prefix="memctl-bench-") as text:
        folder = Path(text)
        os.environ["XDG_STATE_HOME"] = text
        server = Postgresql(folder).fresh()
        places = {
            "SQLite": f"sqlite:///{folder}/a.db?{_LAYOUT}",
            "PostgreSQL": f"{server}{'&' if '?' in server else '?'}{_LAYOUT}",
        }
        for database, url in places.items():
            for what, command in steps(folder, options.messages, url):
                found = run([sys.executable, "-m", "memctl", *command])
                row = f"| {what} | {database} | {found.seconds:.0f} | {found.peak:.0f} |"
                print(row, flush=True)


if __name__ == "__main__":
    main()
