"""Edits of states that agents save meanwhile, in files and in Redis."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
import redis

from memctl.model import Edit, Memory, MemoryKey, WriteResult
from memctl.stores.files import AtomicFile
from tests.stores.state_edits import (
    KEY,
    changed,
    edit_file,
    edit_of,
    edited,
    gone,
    put,
    store_of,
)
from tests.stores.states import dump, entry, load, message

# Agents at work


def names(folder: Path) -> list[str]:
    """The files of a folder."""
    return [one.name for one in folder.iterdir() if one.is_file()]


def state(*ids: str) -> dict[str, Any]:
    content = [[message(id), []] for id in ids]
    return {"memory": {"_compressed_summary": "", "content": content}}


def saved(path: Path, value: Any) -> None:
    """As JSONSession saves: the file that is there is emptied and written."""
    with path.open("wb") as file:
        file.write(dump(value))


async def test_state_edit_agent_that_saves_during_an_edit_wins(tmp_path: Path) -> None:
    path = tmp_path / "u_s.json"
    saved(path, state("a", "b", "c"))

    async def slow() -> AsyncGenerator[Edit]:
        yield Edit(Memory(KEY), gone("a"), last=False)
        saved(path, state("a", "b", "c", "d"))
        yield Edit(Memory(KEY), gone("b"), offset=1)

    async with store_of(path) as store:
        [tally] = [tally async for tally in store.edit(slow())]
    assert changed(tally)
    assert load(path) == state("a", "b", "c", "d")
    assert names(tmp_path) == ["u_s.json"]


@pytest.mark.parametrize("linked", [True, False])
async def test_state_edit_agent_that_saves_at_the_last_moment_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, linked: bool
) -> None:
    """The file that it opened gets its name back, and what it writes later is in it."""
    path = tmp_path / "u_s.json"
    saved(path, state("a", "b", "c"))
    named = path
    if linked:
        named = tmp_path / "link" / "u_s.json"
        named.parent.mkdir()
        named.symlink_to(path)
    replace = AtomicFile.replace
    agents = []

    def late(file: AtomicFile) -> None:
        agents.append(path.open("wb"))
        replace(file)

    monkeypatch.setattr(AtomicFile, "replace", late)
    [tally] = await edit_file(named, edit_of(gone("a")))
    assert changed(tally)
    [agent] = agents
    with agent:
        agent.write(dump(state("a", "b", "c", "d")))
    assert load(named) == state("a", "b", "c", "d")
    assert named.is_symlink() == linked
    assert names(tmp_path) == ["u_s.json"]


async def test_state_edit_where_files_have_one_name_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "u_s.json"
    saved(path, state("a", "b"))

    def refused(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr("os.link", refused)
    [tally] = await edit_file(path, edit_of(gone("a")))
    assert tally == WriteResult(KEY, deleted=1)
    assert load(path) == state("b")


async def test_state_edit_file_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    """As a program leaves it that was killed while it saved; the others are edited."""
    for name in ("a", "b", "c"):
        saved(tmp_path / f"{name}_s.json", state("a", "b"))
    broken = tmp_path / "b_s.json"
    broken.write_bytes(broken.read_bytes()[:-20])
    before = broken.read_bytes()
    keys = [MemoryKey(name, "s") for name in ("a", "b", "c")]
    async with store_of(tmp_path) as store:
        tallies = await edited(store, *(edit_of(gone("a"), key) for key in keys))
    found = {tally.key.user: tally.failure.code if tally.failure else "" for tally in tallies}
    assert found == {"a": "", "b": "refused", "c": ""}
    assert broken.read_bytes() == before
    assert load(tmp_path / "c_s.json") == state("b")


# Redis


@pytest.fixture
def url(redis_url: str) -> str:
    return f"{redis_url}?layout=session"


NAME = "user_id:u:session:s:state"


@pytest.mark.parametrize("count", [3, 40_000], ids=["in hand", "staged"])
@pytest.mark.parametrize("option", ["", "&ttl=50"])
async def test_state_edit_state_in_redis_keeps_its_expiry(
    client: redis.Redis, url: str, count: int, option: str
) -> None:
    """Also where the location says how long what is written shall live."""
    ids = [f"m{number:06}" for number in range(count)]
    for life in (None, 1000):
        client.set(NAME, dump(state(*ids)), ex=life)
        async with store_of(url + option) as store:
            [tally] = await edited(store, edit_of(gone(*ids[1::2])))
        assert tally == WriteResult(KEY, deleted=len(ids[1::2]))
        assert json.loads(client.get(NAME) or "") == state(*ids[::2])
        left = client.ttl(NAME)
        assert left == -1 if life is None else 990 <= left <= 1000
        assert client.dbsize() == 1


@pytest.mark.parametrize("count", [3, 40_000], ids=["in hand", "staged"])
async def test_state_edit_agent_that_saves_to_redis_meanwhile_wins(
    client: redis.Redis, url: str, count: int
) -> None:
    ids = [f"m{number:06}" for number in range(count)]
    client.set(NAME, dump(state(*ids)))

    async def slow() -> AsyncGenerator[Edit]:
        yield Edit(Memory(KEY), gone(ids[0]), last=False)
        client.set(NAME, dump(state(*ids, "new")))
        yield Edit(Memory(KEY), gone(ids[1]), offset=1)

    async with store_of(url) as store:
        [tally] = [tally async for tally in store.edit(slow())]
        assert changed(tally)
        assert json.loads(client.get(NAME) or "") == state(*ids, "new")
        assert client.dbsize() == 1
        [tally] = await edited(store, edit_of(gone("new")))
        assert tally == WriteResult(KEY, deleted=1)


async def test_state_edit_state_made_anew_in_redis_expires(client: redis.Redis, url: str) -> None:
    async with store_of(url) as store:
        [tally] = await edited(store, edit_of([put(entry("a"))], summary="s", ttl=1000.0))
    assert tally == WriteResult(KEY, written=1)
    found = json.loads(client.get(NAME) or "")
    assert found == {"memory": {"_compressed_summary": "s", "content": [[message("a"), []]]}}
    assert 990 <= client.ttl(NAME) <= 1000
