"""The schemas of the reports: whole, strict, one for each command, and true of real output.

Every report that the tests of the commands look at is checked, too: see ``commands/conftest.py``.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator, ValidationError
from typer.main import get_command

from memctl.cli import app
from memctl.errors import exit_codes
from memctl.model import MemoryKey
from memctl.ops.stop import Stop
from memctl.reports import schema_names
from memctl.reports.schema import schema_text
from memctl.testing import samples
from tests.support.cli import FRIDAY, Run, fill, report
from tests.support.schemas import check_row

ONE = MemoryKey("ada", "one")
OPEN = ("marks", "roles", "metadata", "message", "unread", "columns", "kinds")
"""The objects whose keys come from the store, or from the rules of a redaction."""
BROKEN = {"id": "bad", "name": "n", "role": "robot", "content": "x"}


@pytest.fixture
def filled(tmp_path: Path) -> str:
    """A database with two memories."""
    path = f"sqlite:///{tmp_path}/agents.db"
    asyncio.run(fill(path, {samples.key(n): samples.entries(10 * n + 10) for n in range(2)}))
    return path


def reporting() -> set[str]:
    """The commands that take ``--json``, or have commands that do."""
    root = get_command(app)
    context = root.make_context("memctl", [], resilient_parsing=True)
    found = set()
    for name in root.list_commands(context):
        command = root.get_command(context, name)
        below = getattr(command, "commands", None) or {name: command}
        if any("json" in {p.name for p in one.params} for one in below.values()):
            found.add(name)
    return found


def test_schema_every_command_that_reports_has_a_schema(run: Run) -> None:
    assert reporting() | {"log"} == set(schema_names())
    assert run("help", "schema").stdout.split() == schema_names()


@pytest.mark.parametrize("name", sorted({*schema_names()} - {"log"}))
def test_schema_is_one_and_strict(run: Run, name: str) -> None:
    text = run("help", "schema", name).stdout
    schema = json.loads(text)
    assert text == json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
    Draft202012Validator.check_schema(schema)
    assert schema["properties"]["schema"] == {"const": f"memctl/{name}/1"}
    codes = {code for number, code, _ in exit_codes() if number and code != "closed-pipe"}
    assert set(schema["$defs"]["error"]["properties"]["code"]["enum"]) == codes
    assert [place for place in loose(schema) if place not in OPEN] == []


def loose(schema: Any, place: str = "") -> list[str]:
    """Return the keys where a schema allows other keys."""
    found = []
    if isinstance(schema, dict):
        if schema.get("type") == "object" and schema.get("additionalProperties") is not False:
            found.append(place)
        for name, value in schema.items():
            found += loose(value, name)
    elif isinstance(schema, list):
        found = [one for item in schema for one in loose(item, place)]
    return found


def test_schema_key_more_is_noticed(run: Run) -> None:
    found = report(run("stores", "--json"))
    with pytest.raises(ValidationError):
        Draft202012Validator(json.loads(schema_text("stores"))).validate({**found, "more": 1})


@pytest.mark.slow
def test_schema_lines_of_every_report(
    run: Run, tmp_path: Path, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Stop, "pause", ended)
    other = tmp_path / "b.ndjson"
    bad = samples.entry("bad", 2)._replace(message=json.dumps(BROKEN).encode())
    asyncio.run(fill(str(other), {ONE: [bad], samples.key(0): samples.entries(3)}))
    copy = f"sqlite:///{tmp_path}/copy.db"
    named = ("--user", "ada", "--session", "one")
    seen = set()
    for code, *words in (
        (0, "inspect", filled),
        (0, "inspect", filled, "--by", "mark"),
        (0, "inspect", filled, "--messages"),
        (0, "tail", filled, "--last", "1"),
        (0, "context", other, *named),
        (0, "export", filled, "-o", tmp_path / "e.ndjson"),
        (0, "migrate", filled, copy),
        (0, "import", FRIDAY, copy, *named, "--lossy"),
        (6, "verify", filled, other),
        (6, "doctor", other),
        (0, "mark", "list", filled),
        (0, "mark", "add", "--all", copy, "new"),
        (0, "compress", copy, "--all", "--mode", "message"),
        (0, "delete", copy, "--mark", "new", "--yes"),
        (0, "undo", "--yes"),
        (0, "restore", tmp_path / "e.ndjson", copy, "--yes"),
        (0, "offload", copy, "--to", tmp_path / "blobs", "--yes"),
        (0, "rehydrate", copy, "--from", tmp_path / "blobs"),
        (0, "rename", copy, "--session", "session1", "kyoto", "--yes"),
        (0, "erase", "--user", "user0", copy, "--yes"),
        (6, "redact", filled, "--match", "message", "--dry-run"),
        (0, "retain", "--dry-run", "--config", _policy(tmp_path, other)),
        (0, "search", filled, "message"),
        (0, "index", "list"),
        (0, "hold", "add", "--session", "none", "--reason", "a test"),
        (0, "hold", "list"),
        (0, "history"),
        (0, "stores"),
        (0, "version", "--verbose"),
        (0, "config", "show"),
    ):
        done = run(*words, "--format", "ndjson")
        assert done.exit_code == code, (words, done.output)
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        assert rows, words
        for row in rows:
            check_row(str(words[0]), row)
        seen.add(str(words[0]))
    assert seen == set(schema_names()) - {"log", "report"}  # a report has no lines


async def ended(stop: Stop, _: float) -> None:
    """End instead of a pause."""
    stop.ask()


def _policy(folder: Path, store: object) -> Path:
    """Return a configuration with a policy of retention."""
    path = folder / "retention.toml"
    path.write_text(
        f"[stores.prod]\nurl = {json.dumps(str(store))}\n[[retention]]\nname = 'chats'\n"
        "store = 'prod'\naction = 'delete'\nselect = { keep_last = 1 }\n"
        f"archive = '{folder}/retired-{{date}}.ndjson'\n"
    )
    return path


def test_schema_reports_of_runs_that_fail(run: Run, tmp_path: Path, filled: str) -> None:
    none = tmp_path / "none.db"
    for code, *words in (
        (4, "inspect", none),
        (4, "inspect", filled, "--messages", "--user", "nobody"),
        (4, "report", none),
        (4, "context", none),
        (4, "export", none, "-o", tmp_path / "e.ndjson"),
        (4, "migrate", none, filled),
        (4, "import", tmp_path / "none.json", filled),
        (4, "verify", none, filled),
        (4, "doctor", none),
        (4, "delete", none, "--all", "--yes"),
        (4, "mark", "add", "--all", none, "x"),
        (4, "compress", none, "--all"),
        (4, "erase", none, "--user", "ada", "--yes"),
        (4, "redact", none, "--secrets", "--yes"),
        (4, "undo", "none"),
        (2, "inspect", "unknown-alias"),
        (2, "inspect", filled, "--messages", "--by", "user"),
    ):
        assert report(run(*words, "--json"), code)["error"]["message"]
