"""Copies whose store stores a memory and then tells no result: an undo takes back all of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from memctl.engines.sql.connection import AsyncConnection
from memctl.errors import Unavailable
from memctl.journal.changes import UNFINISHED, read_changes
from memctl.journal.runs import Journal, Runs
from memctl.model import WriteResult
from memctl.storekit.batching import Small
from memctl.stores.agentscope1.sql.write import SqlWriter
from memctl.testing import samples
from memctl.testing.samples import sample
from tests.support.backends import BACKENDS, FACT_BACKENDS, in_style, new_place, params
from tests.support.cli import Run, fails, names
from tests.support.places import held, put
from tests.support.servers.pool import Servers

STORES = [
    name
    for name in BACKENDS | FACT_BACKENDS
    # These hold one memory, or have no undo.
    if name not in ("state", "openai", "mem0-platform")
]


@pytest.mark.parametrize("name", params(STORES))
def test_undo_of_a_copy_whose_results_are_lost(
    run: Run, name: str, servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, place = (new_place(name, tmp_path, servers) for _ in range(2))
    first, second = place.keys(2)
    with in_style(place):
        put(other, [sample(second, samples.entries(4, start=10))])
        put(place, [sample(first, samples.entries(3))])
    source = tmp_path / "source.ndjson"
    assert run("export", other.text, "-o", source).exit_code == 0
    before, known = held(place), names(place.text)

    def lose(_: Journal, result: WriteResult) -> None:
        raise Unavailable(f"the disk failed after the change of {result.key}")

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "note", lose)
        fails(run("migrate", source, place.text, "--retries", 0), 3, "the disk failed")
    assert held(place).keys() == {first, second}
    assert run("undo", "--store", place.text, "--yes").exit_code == 0
    assert held(place) == before
    assert names(place.text) == known


def test_undo_of_an_import_into_a_new_file_whose_result_is_lost(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, place = (new_place("sqlite", tmp_path, Servers(tmp_path)) for _ in range(2))
    *full, empty = other.keys(3)
    put(other, [*(sample(key, samples.entries(4)) for key in full), sample(empty)])
    assert run("export", other.text, "-o", tmp_path / "source.ndjson").exit_code == 0

    def lose(_: Journal, result: WriteResult) -> None:
        raise Unavailable(f"the disk failed after the change of {result.key}")

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "note", lose)
        fails(run("import", tmp_path / "source.ndjson", place.text), 3, "the disk failed")
    assert names(place.text) == {*full, empty}
    assert run("undo", "--store", place.text, "--yes").exit_code == 0
    assert names(place.text) == set()


def test_messages_of_a_copy_are_recorded_before_the_store_gets_them(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, place = (new_place("sqlite", tmp_path, Servers(tmp_path)) for _ in range(2))
    put(other, [sample(key, samples.entries(30)) for key in other.keys(3)])
    commit, committed = SqlWriter.commit, 0

    async def look(
        writer: SqlWriter, connection: AsyncConnection, batch: list[Small]
    ) -> list[WriteResult]:
        nonlocal committed
        [part] = Runs().folder.glob(f"*/*{UNFINISHED}")  # what a kill of the process would leave
        recorded = {
            (edit.memory.key, one.id) for edit in read_changes(part) for one in edit.changes
        }
        assert recorded >= {(one.memory.key, entry.id) for one in batch for entry in one.entries}
        committed += len(batch)
        return await commit(writer, connection, batch)

    monkeypatch.setattr(SqlWriter, "commit", look)
    assert run("migrate", other.text, place.text).exit_code == 0
    assert committed == 3
