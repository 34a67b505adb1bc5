"""Session states that are whole documents with more bytes after their end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memctl.model import MemoryKey
from memctl.testing import samples
from tests.commands.test_state_files import state
from tests.support.backends import new_place
from tests.support.cli import Run, fails, report
from tests.support.places import put, quarantined
from tests.support.servers.pool import Servers

KEY = MemoryKey("ada", "s1")
TAIL = b'name": "Friday"}}'


def findings(run: Run, store: object) -> list[str]:
    return [one["code"] for one in report(run("doctor", store, "--json"), 6)["findings"]]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("alone", [True, False])
def test_tail_of_a_file_is_named_and_moved(
    run: Run, tmp_path: Path, version: int, alone: bool
) -> None:
    folder = tmp_path / "sessions"
    folder.mkdir()
    path = folder / "ada_s1.json"
    if version == 1:
        pairs = [[json.loads(one.message), []] for one in samples.entries(4)]
        value = {"agent": {"memory": {"_compressed_summary": "", "content": pairs}, "name": "F"}}
    else:
        value = {"agent": {"state": state("s1", "m1", "m2", "m3", "m4")}}
    whole = json.dumps(value).encode()
    path.write_bytes(whole + TAIL)
    store = path if alone else folder
    fails(run("inspect", store), 8, "followed by 17 bytes more")
    assert findings(run, store) == ["trailing-data"]
    before = path.read_bytes()
    assert run("doctor", store, "--repair", "--dry-run").exit_code == 6
    assert path.read_bytes() == before
    repaired = report(run("doctor", store, "--repair", "--yes", "--json"))
    assert path.read_bytes() == whole
    assert report(run("inspect", store, "--json"))["totals"]["messages"] == 4
    assert TAIL.decode() in quarantined(repaired["quarantine"]).splitlines()
    undone = run("undo", "--yes")
    assert (undone.exit_code, path.read_bytes()) == (0, whole)
    assert repaired["quarantine"] in undone.stderr


def test_tail_of_a_key_is_cut_off(run: Run, tmp_path: Path, servers: Servers) -> None:
    place = new_place("redis-session", tmp_path, servers)
    put(place, [samples.sample(KEY, samples.entries(4))])
    with servers.redis.client(place.text.partition("?")[0]) as client:
        [name] = client.keys("*:state")
        whole = client.get(name)
        client.append(name, TAIL)
        assert findings(run, place.text) == ["trailing-data"]
        run("doctor", place.text, "trailing-data", "--repair", "--yes")
        assert client.get(name) == whole


def test_tail_that_is_a_document_is_left_alone(run: Run, tmp_path: Path) -> None:
    """Nobody can tell which of the two is right."""
    path = tmp_path / "ada_s1.json"
    text = json.dumps({"_compressed_summary": "Bees.", "content": []})
    path.write_text(text + text)
    assert findings(run, path) == ["damaged-state"]
    run("doctor", path, "--repair", "--yes")
    assert path.read_text() == text + text


@pytest.mark.parametrize("version", [1, 2])
def test_tail_of_another_file_is_not_cut_off(run: Run, tmp_path: Path, version: int) -> None:
    """No memory is in it, or none at the path that was named."""
    path = tmp_path / "ada_s1.json"
    memory = {"_compressed_summary": "Bees.", "content": []} if version == 1 else state("s1")
    for value, more in (({"name": "x"}, ()), ({"agent": memory}, ("--path", "other.memory"))):
        path.write_bytes(json.dumps(value).encode() + TAIL)
        before = path.read_bytes()
        run("doctor", path, "--repair", "--yes", *more)
        assert path.read_bytes() == before
