"""Folders of Claude Code: how long ``inspect``, ``report`` and ``retain`` take.

    python -m benchmarks.agents [GIGABYTES]

The folder is made by a seeded generator: sessions of 3.2 MB on average, their size being
log-normal.  A turn is a prompt, a reply with two calls at once, their results, which each line has
twice, and what Claude Code notes besides.  One session in four has a large result in a file of its
own.  The sessions are of the last year, and a third is older than 240 days.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

from benchmarks.dataset import Writer
from benchmarks.measure import machine, run

GIGABYTES = 2.0
_MEAN = 3.2e6
_SPREAD = 1.1
_PROJECTS = 12
_YEAR = 365.0
_OLD = "240d"


class Sessions:
    """Writes sessions of Claude Code, at random."""

    def __init__(self, folder: Path, seed: int = 7) -> None:
        self._folder = folder
        self._random = Random(seed)
        self._writer = Writer(seed)
        self._bodies = [self._writer.text(200, 4000) for _ in range(4000)]

    def make(self, size: float) -> int:
        """Write sessions of about ``size`` bytes together; return their number."""
        number = 0
        while size > 0:
            size -= self._session()
            number += 1
        return number

    def _session(self) -> int:
        id = str(UUID(int=self._random.getrandbits(128), version=4))
        project = f"/home/ada/work/project-{self._random.randrange(_PROJECTS)}"
        path = self._folder / "projects" / project.replace("/", "-") / f"{id}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        wanted = _MEAN * self._random.lognormvariate(-(_SPREAD**2) / 2, _SPREAD)
        end = datetime.now(UTC) - timedelta(days=self._random.uniform(1, _YEAR))
        about = {"isSidechain": False, "cwd": project, "sessionId": id, "version": "2.1.332"}
        size, moment, parent = 0, end, None
        with path.open("wb") as file:
            while size < wanted:
                for line in self._turn():
                    moment += timedelta(seconds=self._random.uniform(0.5, 20))
                    line |= about | {"timestamp": f"{moment.isoformat()[:23]}Z"}
                    if line["type"] in ("user", "assistant"):
                        line |= {"uuid": self._writer.id(), "parentUuid": parent}
                        parent = line["uuid"]
                    size += file.write(json.dumps(line).encode() + b"\n")
        files = [path]
        if self._random.random() < 0.25:
            large = path.with_suffix("") / "tool-results" / "b1.txt"
            large.parent.mkdir(parents=True)
            size += large.write_bytes("\n".join(self._random.choices(self._bodies, k=200)).encode())
            files.append(large)
        for one in files:
            os.utime(one, (moment.timestamp(),) * 2)
        return size

    def _turn(self) -> Iterator[dict[str, Any]]:
        text, *outputs = self._random.choices(self._bodies, k=3)
        yield _said("user", text[:600])
        reply = {"id": f"msg_{self._writer.id()}", "model": "claude", "usage": {"input_tokens": 9}}
        yield _said("assistant", [{"type": "text", "text": text}], **reply)
        calls = [f"toolu_{self._writer.id()}" for _ in outputs]
        for id in calls:
            input = {"command": text[:80]}
            block = {"type": "tool_use", "id": id, "name": "Bash", "input": input}
            yield _said("assistant", [block], **reply)
        for id, output in zip(calls, outputs, strict=True):
            block = {"type": "tool_result", "tool_use_id": id, "content": output}
            yield _said("user", [block]) | {"toolUseResult": {"stdout": output}}
        yield {"type": "file-history-snapshot", "snapshot": {"files": text[:400].split()}}
        yield {"type": "api-request-blob", "text": "".join(outputs)}


def _said(role: str, content: Any, **fields: Any) -> dict[str, Any]:
    return {"type": role, "message": {"role": role, "content": content} | fields}


def main() -> None:
    """Measure and print a table."""
    size = float(sys.argv[1]) if len(sys.argv) > 1 else GIGABYTES
    print(f"{machine('orjson')}; one run of each.\n")
    with tempfile.TemporaryDirectory(prefix="memctl-bench-") as name:
        folder = Path(name)
        number = Sessions(folder / "claude").make(size * 1e9)
        config = folder / "memctl.toml"
        config.write_text(
            f'[stores.claude]\nurl = "claude-code:{folder}/claude"\n\n[[retention]]\nname = "old"\n'
            f'store = "claude"\naction = "delete"\narchive = "{folder}/old-{{date}}.ndjson.zst"\n'
            f'select = {{ older_than = "{_OLD}" }}\n'
        )
        print(f"{number:,} sessions of {size:.1f} GB\n")
        print("| command | seconds | CPU, s | peak, MiB |\n|---|--:|--:|--:|")
        for words in (
            ["inspect", "claude"],
            ["inspect", "claude"],
            ["report", "claude", "-o", f"{folder}/page.html"],
            ["retain", "--yes"],
        ):
            start = time.monotonic()
            done = run([sys.executable, "-m", "memctl", "-q", "--config", str(config), *words])
            shown = f"{time.monotonic() - start:.1f} | {done.cpu:.1f} | {done.peak:.0f}"
            print(f"| {' '.join(words[:1])} | {shown} |", flush=True)


if __name__ == "__main__":
    main()
