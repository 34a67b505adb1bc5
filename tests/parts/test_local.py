"""Commands in parts on this machine, as users run them."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest

from memctl.model import MemoryKey
from memctl.output.progress import Parts
from tests.parts.conftest import MEMORIES, memories
from tests.support.cli import Run, contents, fails, fill, report
from tests.support.monitor import monitored


def ids(store: str) -> dict[MemoryKey, list[str]]:
    """Return the ids of the messages of each memory of a store."""
    return {key: [entry.id for entry in found] for key, found in contents(store).items()}


@pytest.mark.slow
def test_migrate_in_parts(run: Run, source: str, redis_url: str) -> None:
    found = report(run("migrate", source, redis_url, "--shards", "3", "--json"))
    assert found["memories"]["written"] == MEMORIES
    assert found["messages"]["written"] == MEMORIES * 4
    assert found["verified"] is True
    assert [part["shard"] for part in found["parts"]] == ["0/3", "1/3", "2/3"]
    assert sum(part["messages"] for part in found["parts"]) == MEMORIES * 4
    assert ids(redis_url) == ids(source)


@pytest.mark.slow
def test_import_of_a_folder_in_parts(run: Run, postgresql_url: str, tmp_path: Path) -> None:
    folder = f"{tmp_path}/sessions/"
    asyncio.run(fill(folder, memories()))
    found = report(run("import", folder, postgresql_url, "--shards", "3", "--json"))
    assert found["memories"]["written"] == MEMORIES


@pytest.mark.slow
def test_export_in_parts(run: Run, source: str, tmp_path: Path) -> None:
    words = ["export", source, "-o", tmp_path / "all-{shard}.ndjson", "--shards", "3", "--json"]
    found = report(run(*words))
    assert found["memories"]["written"] == MEMORIES
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == [
        f"all-{number:04}-of-0003.ndjson" for number in range(3)
    ]
    held = [ids(str(file)) for file in files]
    assert held[0] | held[1] | held[2] == ids(source)
    assert sum(map(len, held)) == MEMORIES


@pytest.mark.slow
@pytest.mark.parametrize("command", ["inspect", "doctor"])
def test_look_at_a_store_in_parts(run: Run, source: str, command: str) -> None:
    whole = run(command, source, "--json")
    found = run(command, source, "--shards", "3", "--json")
    assert found.exit_code == whole.exit_code
    expected, merged = json.loads(whole.stdout), report(found, whole.exit_code)
    assert len(merged.pop("parts")) == 3
    for one in expected, merged:
        one.get("findings", []).sort(key=str)
        one.pop("error", None)
        one.get("totals", {}).pop("users", None)  # a user may be in several parts
    assert merged == expected


@pytest.mark.slow
def test_verify_in_parts(run: Run, source: str, tmp_path: Path) -> None:
    archive = tmp_path / "copy.ndjson"
    asyncio.run(fill(str(archive), memories()))
    found = report(run("verify", source, archive, "--shards", "3", "--json"))
    assert found["memories"]["same"] == MEMORIES


@pytest.mark.slow
def test_parts_get_the_options_of_the_whole(run: Run, source: str, tmp_path: Path) -> None:
    """Options, ages, defaults and aliases of a configuration that has a name."""
    config = tmp_path / "other.toml"
    config.write_text(f'[stores.prod]\nurl = "{source}"\n[defaults.inspect]\nuser = "user 1"\n')
    words = ["--config", config, "inspect", "--since=2020-01-01", "--older-than", "1d"]
    found = report(run(*words, "prod", "--shards=2", "--json"))
    assert found["totals"]["memories"] == MEMORIES / 3
    assert {row["user"] for row in found["memories"]} == {"user 1"}


@pytest.mark.slow
def test_parts_tell_their_progress(run: Run, source: str) -> None:
    with monitored() as monitor:
        result = run(
            *("--verbose", "--progress-interval", "0.1", "--log-format", "json"),
            *("--ping", monitor.url, "inspect", source, "--shards", "2", "--workers", "1"),
        )
        assert len(monitor.calls) == 1  # the parts do not call
    lines = [json.loads(line) for line in result.stderr.splitlines()]
    progress = [line for line in lines if line["event"] == "progress"]
    assert progress[0]["parts"] == 0
    after_one = next(line["message"] for line in progress if line["parts"] == 1)
    assert re.fullmatch(r"reading: 1 of 2 parts, \d+ messages, \d+s left", after_one)
    parts = [line["message"] for line in lines if line["event"] == "part"]
    assert [text.partition(" ended with 0")[0] for text in parts] == ["part 0/2", "part 1/2"]


def test_progress_counts_parts_messages_and_memories_that_failed() -> None:
    progress = Parts("migrating", 64)
    assert progress.facts() == ["migrating", "0 of 64 parts"]
    for number in range(37):
        progress.advance(messages=15_625_000, failed=int(number < 2))
    *counts, left = progress.facts()
    assert counts == [*("migrating", "37 of 64 parts", "578,125,000 messages", "2 memories failed")]
    assert left.endswith(" left")


@pytest.mark.slow
def test_store_as_source_and_target_is_refused(run: Run, source: str) -> None:
    result = run("migrate", source, source, "--shards", "2")
    fails(result, 2, "source and target are the same store")


@pytest.mark.slow
def test_refusal_of_every_part_is_an_error_without_a_table(run: Run, redis_url: str) -> None:
    found = run("compress", redis_url, "--shards", "2")
    fails(found, 2, "nothing is selected", "--all")
    assert found.stdout == ""


@pytest.mark.slow
def test_wrong_password_ends_soon(run: Run, source: str, redis_url: str) -> None:
    wrong = re.sub(r":[^:@]*@", ":wrong@", source)
    result = run("migrate", wrong, redis_url, "--shards", "16", "--workers", "2")
    fails(result, 3, "password")
    assert "in 10 s" not in result.stderr
    assert ":wrong@" not in result.stderr


@pytest.mark.slow
def test_inspect_in_parts_shows_the_largest_memories_of_all(run: Run, source: str) -> None:
    words = ["inspect", source, "--sort", "user", "--limit", "5", "--json"]
    whole, found = report(run(*words)), report(run(*words, "--shards", "3"))
    assert len(found["memories"]) == 5
    assert found["memories"] == whole["memories"]


@pytest.mark.slow
@pytest.mark.parametrize("command", ["doctor", "verify", "migrate"])
def test_error_of_the_whole_counts_what_the_parts_found(
    run: Run, source: str, tmp_path: Path, command: str
) -> None:
    archive = tmp_path / "other.ndjson"
    asyncio.run(fill(str(archive), {key: found[1:] for key, found in memories(5).items()}))
    stores = [source] if command == "doctor" else [archive, source]
    whole, found = run(command, *stores), run(command, *stores, "--shards", "2")
    assert found.exit_code == whole.exit_code
    assert found.stderr == whole.stderr
