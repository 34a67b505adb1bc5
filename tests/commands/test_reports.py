"""The reports of all commands in each format for programs, byte for byte as scripts read them.

``tests/commands/reports`` has what the commands wrote; ``MEMCTL_SCREENS=write`` writes it anew.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sqlite3
from datetime import date
from pathlib import Path

import pytest

from memctl.model import MemoryKey
from memctl.ops.stop import Stop
from memctl.testing import samples
from tests.support.cli import FRIDAY, Run, fill
from tests.support.servers.pool import Servers
from tests.test_schemas import ended

FOLDER = Path(__file__).parent / "reports"
WRITES = os.environ.get("MEMCTL_SCREENS") == "write"
FORMATS = "json", "ndjson", "csv"
PICTURE = {"type": "base64", "media_type": "image/png", "data": "QUJD" * 30_000}
BROKEN = {"name": "n", "role": "robot", "content": "x"}
ADA = "--user", "ada", "--session", "one"

VARY = (
    (r"/\S+/(xdg\d+)", "XDG"),
    (r"20\d{6}-\d{6}(-\d+)?-[0-9a-f]{4,8}", "RUN"),
    (r"test_\w+", "DATABASE"),
    (r"memctl:[^@]*@[\w.:]+|127\.0\.0\.1:\d+", "HOST"),
    (r"(20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?([+-]\d\d:\d\d|Z)|20\d{6}T\d{6}Z?)", "TIME"),
    (r'"(seconds|updated|time)": [\d.]+', r'"\1": 0'),
    (r'"host": "[^"]*"', '"host": "HOST"'),
    (r'"bytes": \d+(?=, "(?:undoes|updated))', '"bytes": 0'),
    (r"[0-9a-f]{64}|[0-9a-f]{32}", "DIGEST"),
    (r'"id": "[0-9a-f]{8}"|(?m:^)[0-9a-f]{8}(?=,)', "ID"),
    (r'"by": "\w+"(?=, "added)|(?<=state,,)\w+(?=,TIME)', "LOGIN"),
    (r"(?m)^(RUN,.*?(?:,\d+){6}),\d+,", r"\1,0,"),
    (r"(?m)^(store,prod,.*),0\.\d+,", r"\1,0,"),
    (r"(?m)^(a\.db,12,\d+),[\d.]+$", r"\1,0"),
    (r"(?m)^(a\.db,sqlite,2,12),\d+", r"\1,0"),
)


def scenes(shared: str) -> dict[str, tuple[object, ...]]:
    """Return the words of each command, in the order in which they run, by the name of the scene.

    ``shared`` is an empty database that several processes can write.
    """
    a, b, copy, other = "a.db", "b.db", "copy.db", "other.db"
    asyncio.run(fill(a, {samples.key(n): samples.entries(4 * n + 4) for n in range(2)}))
    bad = samples.entry("bad", 2)._replace(message=json.dumps({"id": "bad", **BROKEN}).encode())
    shot = [samples.entry("shot", 1, content=[{"type": "image", "source": PICTURE}])]
    asyncio.run(
        fill(
            b,
            {
                MemoryKey("ada", "one"): [bad, samples.entry("good", 3)],
                samples.key(0): samples.entries(3),
                MemoryKey("eve", "shot"): shot,
            },
        )
    )
    states = "states"
    Path(states).mkdir()
    memory = {"content": [[{"id": n, **BROKEN}, []] for n in ("x", "y")]}
    (Path(states) / "s.json").write_text(json.dumps({"agent": {"memory": memory}, "b": memory}))
    archive, blobs = "e.ndjson", "blobs"
    Path("policies.toml").write_text(
        f"[stores.prod]\nurl = {json.dumps(copy)}\n[[retention]]\nname = 'chats'\n"
        "store = 'prod'\naction = 'delete'\nselect = { keep_last = 1 }\n"
        "archive = 'retired-{date}.ndjson'\n"
        "[[hold]]\nuser = 'nobody'\nreason = 'a test'\nuntil = 2099-01-01\n"
    )
    policies = "--config", "policies.toml"
    return {
        "version": ("version",),
        "stores": ("stores",),
        "stores-detect": ("stores", "detect", _tables()),
        "inspect": ("inspect", a),
        "inspect-by": ("inspect", a, "--by", "mark"),
        "inspect-messages": ("inspect", a, "--messages", "--user", "user0"),
        "inspect-parts": ("inspect", a, "--shards", 2),
        "inspect-none": ("inspect", "none.db"),
        "inspect-states": ("inspect", states),
        "delete-states": ("delete", states, "--all", "--dry-run"),
        "doctor-states": ("doctor", states),
        "verify-states": ("verify", states, a),
        "context-states": ("context", states, "--path", "agent.memory"),
        "migrate-states": ("migrate", states, "states.db", "--dry-run"),
        "search-states": ("search", states, "message"),
        "report-states": ("report", states),
        "tail": ("tail", a, "--last", 1, "--user", "user0"),
        "tail-none": ("tail", "none.db"),
        "context": ("context", b, *ADA),
        "export": ("export", a, "-o", archive),
        "export-dry-run": ("export", a, "-o", "dry.ndjson", "--dry-run"),
        "export-parts": ("export", a, "-o", "p-{shard}.ndjson", "--shards", 2),
        "export-rotate": ("export", a, "-o", "r.ndjson", "--rotate", "daily:2"),
        "inspect-rotation": ("inspect", "r.ndjson"),
        "verify-archive": ("verify", archive),
        "migrate-dry-run": ("migrate", a, copy, "--dry-run"),
        "migrate": ("migrate", a, copy),
        "migrate-again": ("migrate", b, copy),
        "migrate-parts": ("migrate", a, shared, "--shards", 2),
        "import": ("import", FRIDAY, copy, *ADA, "--lossy"),
        "import-loss": ("import", FRIDAY, other, *ADA),
        "verify-same": ("verify", a, archive),
        "verify": ("verify", a, b),
        "verify-parts": ("verify", a, b, "--shards", 2),
        "doctor": ("doctor", b),
        "doctor-parts": ("doctor", b, "--shards", 2),
        "doctor-dry-run": ("doctor", b, "--repair", "--dry-run"),
        "doctor-repair": ("doctor", b, "--repair", "--yes"),
        "mark-list": ("mark", "list", a),
        "mark-add-dry-run": ("mark", "add", "--all", copy, "new", "--dry-run"),
        "mark-add": ("mark", "add", "--all", copy, "new"),
        "compress-dry-run": ("compress", copy, "--all", "--mode", "message", "--dry-run"),
        "compress": ("compress", copy, "--all", "--mode", "message"),
        "compress-parts": ("compress", shared, *("--all", "--mode", "message", "--shards", 2)),
        "search": ("search", a, "message", "--around", 1, "--top", 2),
        "index-update": ("index", "update", a),
        "index": ("index", "list"),
        "index-remove": ("index", "remove", a),
        "delete-dry-run": ("delete", copy, "--mark", "new", "--last", 1, "--dry-run"),
        "delete": ("delete", copy, "--mark", "new", "--last", 1, "--yes"),
        "delete-parts-dry-run": ("delete", shared, *("--all", "--shards", 2, "--dry-run")),
        "delete-parts": ("delete", shared, "--user", "user0", "--shards", 2, "--yes"),
        "doctor-parts-repair": ("doctor", shared, "--repair", "--shards", 2, "--yes"),
        "mark-parts": ("mark", "add", shared, "new", *("--all", "--shards", 2)),
        "undo-parts": ("undo", "--store", shared, "--shards", 2, "--yes"),
        "import-parts": ("import", archive, shared, "--shards", 2),
        "delete-absent": ("delete", "none.db", "--all", "--yes"),
        "undo-dry-run": ("undo", "--store", b, "--dry-run"),
        "undo": ("undo", "--store", b, "--yes"),
        "restore-dry-run": ("restore", archive, copy, "--dry-run"),
        "restore": ("restore", archive, copy, "--yes"),
        "history": ("history", b),
        "offload-dry-run": ("offload", b, "--to", blobs, "--dry-run"),
        "offload": ("offload", b, "--to", blobs, "--yes"),
        "rehydrate-dry-run": ("rehydrate", b, "--from", blobs, "--dry-run"),
        "rehydrate": ("rehydrate", b, "--from", blobs),
        "offload-prune": ("offload", b, "--to", blobs, "--prune", "--grace", "0s", "--yes"),
        "hold-add": ("hold", "add", "--user", "eve", "--reason", "a test"),
        "hold": ("hold", "list", "--all", *policies),
        "delete-held": ("delete", copy, "--user", "eve", "--yes"),
        "erase-dry-run": ("erase", "--user", "user0", b, copy, "--dry-run"),
        "erase": ("erase", "--user", "user0", b, copy, "--yes", "--receipt", "r.json"),
        "erase-held": ("erase", "--user", "eve", copy, "--yes"),
        "redact-dry-run": ("redact", a, states, "--match", "message 1", "--dry-run"),
        "redact": ("redact", a, "--match", "message 1", "--yes", "--receipt", "s.json"),
        "verify-redacted": ("verify", "--receipt", "s.json"),
        "verify-receipt": ("verify", "--receipt", "r.json"),
        "retain-dry-run": ("retain", "--dry-run", *policies),
        "retain": ("retain", "--yes", *policies),
        "report": ("report", b),
        "report-facts": ("report", b, "--pseudonyms", "--user", "ada"),
        "config-show": ("config", "show", *policies),
        "config-check": ("config", "check", *policies),
        "rename-dry-run": ("rename", a, "--session", "session1", "kyoto", "--dry-run"),
        "rename": ("rename", a, "--session", "session1", "kyoto", "--yes"),
        "rename-absent": ("rename", a, "--user", "nobody", "else", "--yes"),
    }


def _tables() -> str:
    path = "tables.db"
    with sqlite3.connect(path) as database:
        database.execute(
            "CREATE TABLE chat (id INTEGER PRIMARY KEY, chat_id TEXT, role TEXT, content TEXT, "
            "created_at TEXT)"
        )
        database.execute("INSERT INTO chat VALUES (1, 'c', 'user', 'hello', '2026-01-01 10:00:00')")
    database.close()
    return path


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMATS)
def test_reports_are_as_scripts_read_them(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, servers: Servers, form: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Stop, "pause", ended)
    found = []
    for name, words in scenes(servers.postgresql.fresh()).items():
        done = run(*words, "--format", form)
        found += [f"# {name}: {done.exit_code}", *_plain(done.stdout, tmp_path).splitlines()]
    golden = FOLDER / f"{form}.txt"
    if WRITES:
        golden.write_text("\n".join(found) + "\n")
    assert found == golden.read_text().splitlines()


def _plain(text: str, folder: Path) -> str:
    """Return a report without what differs between two runs."""
    text = text.replace(str(folder), "FOLDER").replace(str(FRIDAY), "FRIDAY")
    for pattern, instead in (*VARY, (rf"{date.today()}(T\d\d:\d\d:\d\d)?", "TODAY")):
        text = re.sub(pattern, instead, text)
    return text
