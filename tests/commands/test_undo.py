"""``memctl undo`` and ``history``: changes of runs are undone, whatever the store."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pytest
import redis

from memctl.commands._context import Run as ThisRun
from memctl.commands._journal import record
from memctl.errors import NotFound
from memctl.journal.runs import Runs
from memctl.machine import zstd
from memctl.model import MemoryKey, StoredMessage
from memctl.ops.change.change import ChangeRun
from memctl.registry import parse
from memctl.stores.agentscope1.sql import edit as editing
from memctl.testing import Place, samples
from memctl.testing.drive import read
from memctl.testing.samples import entry, sample
from tests.stores.archives import sealed
from tests.support.backends import new_place, place_at
from tests.support.cli import Run, fails, report
from tests.support.cli import contents as stored
from tests.support.cli import fill as fill_text
from tests.support.places import append, held, ids, put, runs_folder
from tests.support.servers.pool import Servers

REPLACE = ("--on-conflict", "replace", "--yes")

ACTIONS = {
    "delete": ("delete", "--mark", "hint", "--yes"),
    "delete everything": ("delete", "--all", "--yes"),
    "delete the oldest": ("delete", "--keep-last", "3", "--yes"),
    "mark": ("mark", "add", "new *", "--role", "user"),
    "unmark": ("mark", "remove", "hint"),
    "rename": ("mark", "rename", "hint", "compressed"),
}


def act(run: Run, place: Place, name: str, *more: str) -> str:
    """Run one of the actions; return the run."""
    first, *rest = ACTIONS[name]
    if first == "mark":
        words = [first, rest[0], place.text, *rest[1:]]
    else:
        words = [first, place.text, *rest]
    found: str = report(run(*words, *more, "--json"))["run"]
    return found


def fill(place: Place) -> list[MemoryKey]:
    """Write memories with summaries and expiries, where the store has a place for them."""
    keys = place.keys(3)
    able = place.store().features
    about = {
        "summary": "what was said" if able.summaries else None,
        "ttl": 5000.0 if able.ttl else None,
    }
    put(place, [sample(key, samples.entries(20 + n), **about) for n, key in enumerate(keys)])
    return keys


def there_and_back(run: Run, last: str, contents: Callable[[], Any], before: Any) -> None:
    """Undo a run, undo that, and once more; what it did is undone, done, and undone again."""
    after = contents()
    assert after != before
    for expected in (before, after, before):
        last = report(run("undo", last, "--yes", "--json"))["run"]
        assert contents() == expected


def rows(place: Place, *queries: str) -> list[list[Any]]:
    """Return what queries, or names of tables, find in a SQLite database, in order."""
    with closing(sqlite3.connect(place.location.path)) as database:
        found = [one if " " in one else f"SELECT * FROM {one}" for one in queries]
        return [sorted(database.execute(sql).fetchall(), key=repr) for sql in found]


def execute(place: Place, *statements: str) -> None:
    """Change a SQLite database."""
    with closing(sqlite3.connect(place.location.path)) as database:
        for sql in statements:
            assert database.execute(sql).rowcount, sql
        database.commit()


@contextmanager
def redis_memory(place: Place, key: MemoryKey) -> Iterator[tuple[redis.Redis, str]]:
    """A client of the server of a store, and the beginning of the keys of a memory."""
    with redis.Redis.from_url(place.text.partition("?")[0]) as client:
        yield client, f"app:user_id:{key.user}:session:{key.session}"


def redis_keys(client: redis.Redis, base: str) -> dict[bytes, tuple[Any, int]]:
    """Return the values of the keys of a memory, and about when they expire."""

    def value(name: bytes) -> Any:
        if name.endswith(b":marks_index"):
            return client.smembers(name)
        return client.get(name) if b":msg:" in name else client.lrange(name, 0, -1)

    names = client.scan_iter(f"{base}*")
    return {name: (value(name), round(client.ttl(name), -1)) for name in names}


@pytest.mark.slow
@pytest.mark.parametrize("action", ACTIONS)
def test_undo_it_is_as_it_was_and_back_again(run: Run, place: Place, action: str) -> None:
    fill(place)
    before = held(place)
    done = act(run, place, action)
    after = held(place)
    assert after != before
    dry = report(run("undo", done, "--store", place.text, "--dry-run", "--json"))
    assert held(place) == after
    undone = report(run("undo", done, "--store", place.text, "--json"))
    assert held(place) == before
    assert undone["undoes"] == done
    assert {**dry["messages"]} == undone["messages"]
    redone = report(run("undo", undone["run"], "--store", place.text, "--json"))
    assert held(place) == after
    assert run("undo", redone["run"], "--store", place.text).exit_code == 0
    assert held(place) == before


@pytest.mark.parametrize("action", ["delete", "delete the oldest", "delete everything"])
def test_undo_what_came_since_stays(run: Run, place: Place, action: str) -> None:
    keys = fill(place)
    before = {key: ids(place, key) for key in keys}
    done = act(run, place, action)
    for key in keys:
        append(place, key, samples.entries(4, start=900))
    assert run("undo", done, "--store", place.text).exit_code == 0
    for key in keys:
        assert ids(place, key) == before[key] + [f"m{n:07}" for n in range(900, 904)]


def test_undo_runs_are_undone_in_reverse(run: Run, place: Place) -> None:
    [key, *_] = fill(place)
    before = held(place)
    first = report(run("delete", place.text, "--id", "m0000006", "--yes", "--json"))["run"]
    second = report(run("delete", place.text, "--id", "m0000005", "--yes", "--json"))["run"]
    refused = report(run("undo", first, "--store", place.text, "--json"), 5)
    assert refused["failures"][0]["code"] == "conflict"
    assert "'m0000005'" in refused["failures"][0]["message"]
    assert ids(place, key)[4:6] == ["m0000004", "m0000007"]
    assert run("undo", second, "--store", place.text).exit_code == 0
    assert run("undo", first, "--store", place.text).exit_code == 0
    assert held(place) == before


def test_undo_what_has_changed_is_left_alone(run: Run, place: Place) -> None:
    keys = fill(place)
    done = report(run("mark", "add", "--all", place.text, "seen", "--json"))["run"]
    key = keys[0]
    chosen = ("--id", "m0000003")
    assert run("mark", "rename", place.text, "seen", "other", *chosen).exit_code == 0
    found = report(run("undo", done, "--store", place.text, "--json"), 5)
    assert "the marks of the message" in found["failures"][0]["message"]
    marks = {id: some for id, some, _ in held(place)[key][2]}
    assert ("other" in marks["m0000003"], "seen" in marks["m0000002"]) == (True, True)


@pytest.mark.slow
def test_undo_one_of_the_memories_alone(run: Run, tmp_path: Path, servers: Servers) -> None:
    place = new_place("sqlite", tmp_path, servers)
    keys = fill(place)
    before = held(place)
    done = act(run, place, "delete everything")
    assert run("undo", done, "--store", place.text, "--user", keys[0].user).exit_code == 0
    alone = {key: one for key, one in before.items() if key.user == keys[0].user}
    assert held(place) == alone
    assert "nothing" in run("undo", done, "--store", place.text, "--user", "nobody").stdout
    assert held(place) == alone
    assert run("undo", done, "--store", place.text).exit_code == 0
    assert held(place) == before


# Import and migrate


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sqlite", "postgresql", "mysql"])
def test_undo_copy_into_memories_without_messages(
    run: Run, filled: str, one: Callable[[str], Place], name: str
) -> None:
    place = one(name)
    report(run("migrate", filled, place.text, "--json"))
    report(run("delete", place.text, "--all", "--yes", "--json"))
    before = held(place)
    assert report(run("inspect", place.text, "--json"))["totals"]["memories"]
    done = report(run("migrate", filled, place.text, "--json"))["run"]
    assert held(place) != before
    assert report(run("undo", done, "--store", place.text, "--json"))["undoes"] == done
    assert held(place) == before


def test_undo_what_a_migrate_added_goes_again(run: Run, place: Place, tmp_path: Path) -> None:
    [key, *_] = keys = fill(place)
    before = held(place)
    source = f"sqlite:///{tmp_path}/source.db"
    origin = Place(place.backend, source, tmp_path)
    more = samples.entries(26)
    put(origin, [sample(one, more) for one in keys])
    words = ("migrate", source, place.text, "--lossy", "--no-verify", "--json")
    found = report(run(*words))
    assert len(ids(place, key)) == 26
    assert run("undo", found["run"], "--store", place.text).exit_code == 0
    assert held(place) == before


def test_undo_what_a_copy_brought_into_a_new_store(run: Run, place: Place, tmp_path: Path) -> None:
    archive = f"{tmp_path}/source.ndjson"
    origin = Place(place.backend, archive, tmp_path)
    keys = {*place.keys(3)}
    put(origin, [sample(one, samples.entries(26)) for one in keys])
    for command in ("import", "migrate"):
        done = report(run(command, archive, place.text, "--lossy", "--json"))["run"]
        assert len(held(place)) == len(keys)
        assert run("undo", done, "--store", place.text).exit_code == 0
        with suppress(NotFound):  # a file that holds one memory is gone with it
            assert held(place) == {}


def test_undo_removes_the_sessions_without_messages_too(
    run: Run, filled: str, tmp_path: Path
) -> None:
    archive = f"{tmp_path}/source.ndjson"
    memories = {MemoryKey("new", "talk"): samples.entries(3), MemoryKey("new", "silent"): []}
    asyncio.run(fill_text(archive, memories))
    before = counts(run, filled)
    assert run("import", archive, filled).exit_code == 0
    assert run("undo", "--yes").exit_code == 0
    assert counts(run, filled) == before


@pytest.mark.slow
def test_undo_without_a_run_after_an_import_into_a_new_store(
    run: Run, filled: str, tmp_path: Path
) -> None:
    """It undoes the import, not the run before, which was on another store."""
    archive = tmp_path / "backup.ndjson"
    assert run("export", filled, "-o", archive).exit_code == 0
    assert run("delete", filled, "--mark", "hint", "--yes").exit_code == 0
    left = counts(run, filled)
    new = f"{tmp_path}/new.db"
    done = report(run("import", archive, new, "--json"))["run"]
    dry = run("undo", "--dry-run")
    assert new in dry.stdout
    assert "100 messages would be deleted" in dry.stdout
    undone = run("undo", "--yes")
    assert undone.exit_code == 0
    assert re.search(rf"undoing {done}, the import of 20.* on {new} \(100 added\)", undone.stderr)
    assert counts(run, filled) == left
    assert counts(run, new) == {}


@pytest.mark.parametrize("command", ["delete", "import", "erase"])
def test_undo_without_a_run_after_one_without_a_record(
    run: Run, filled: str, tmp_path: Path, command: str
) -> None:
    """A script does not undo an older run by accident, on whatever store."""
    archive, other = tmp_path / "backup.ndjson", tmp_path / "other.db"
    assert run("export", filled, "-o", archive).exit_code == 0
    marked = report(run("mark", "add", "--all", filled, "seen", "--json"))["run"]
    words, where = {
        "delete": (("delete", filled, "--mark", "hint", "--yes", "--no-backup"), filled),
        "import": (("import", archive, other, "--no-backup"), other),
        "erase": (("erase", "--user", "user0", filled, "--yes"), filled),
    }[command]
    assert run(*words).exit_code == 0
    done = run("undo", "--yes")
    assert done.exit_code == 2
    assert f"the last run, {command} on {where}, has no undo record" in done.stderr
    assert f"to undo the mark on {filled}, run: memctl undo {marked}" in done.stderr
    of_store = run("undo", "--store", filled, "--yes")
    assert of_store.exit_code == (0 if where == other else 2), of_store.stderr


def test_undo_of_a_store_knows_its_own_last_run_without_a_record(
    run: Run, filled: str, tmp_path: Path
) -> None:
    other = f"sqlite:///{tmp_path}/other.db"
    assert run("migrate", filled, other).exit_code == 0
    for store in (other, filled):
        words = ("delete", store, "--mark", "hint", "--yes", "--no-backup")
        assert run(*words).exit_code == 0
    fails(run("undo", "--store", other, "--yes"), 2, f"delete on {other}, has no undo record")


@pytest.mark.slow
@pytest.mark.parametrize("since", [False, True])
def test_undo_what_was_replaced_comes_back(
    run: Run, place: Place, tmp_path: Path, since: bool
) -> None:
    [key, *_] = keys = fill(place)
    before = held(place)
    origin = Place(place.backend, f"sqlite:///{tmp_path}/source.db", tmp_path)
    put(origin, [sample(one, samples.entries(7, start=3)) for one in keys])
    words = ("migrate", origin.text, place.text, "--lossy", *REPLACE, "--json")
    found = report(run(*words))
    assert not any("cannot be undone" in text for text in found["warnings"])
    after = held(place)
    assert len(after[key][2]) == 7
    if since:
        append(place, key, samples.entries(1, start=500))
        refused = report(run("undo", found["run"], "--store", place.text, "--json"), 5)
        assert "has changed since" in refused["failures"][0]["message"]
        assert len(ids(place, key)) == 8
        return
    dry = report(run("undo", found["run"], "--store", place.text, "--dry-run", "--json"))
    assert held(place) == after
    undone = report(run("undo", found["run"], "--store", place.text, "--json"))
    assert dry["messages"]["restored"] == undone["messages"]["restored"]
    assert held(place) == before
    assert run("undo", undone["run"], "--store", place.text).exit_code == 0
    assert held(place) == after


def test_undo_record_says_what_went(run: Run, filled: str) -> None:
    """The file of changes is what its module says: readable without memctl."""
    assert run("delete", filled, "--mark", "hint", "--yes").exit_code == 0
    [path] = runs_folder().rglob("changes-1.ndjson.zst")
    with zstd.ZstdFile(path) as file:
        text = file.read()
    first, *rest = map(json.loads, text.splitlines())
    assert first == {"memctl": "changes", "version": 2}
    assert rest[0]["memory"]["user"]
    assert rest[1]["change"]["new"] is None
    assert rest[2]["id"] == rest[1]["change"]["id"]
    assert rest[-1]["end"]["changes"] == sum("change" in line for line in rest)


# Hard cases


@pytest.mark.slow
@pytest.mark.parametrize("name", ["state", "sessions", "redis-session", "archive"])
def test_undo_ids_that_repeat(run: Run, one: Callable[[str], Place], name: str) -> None:
    """Marks of twins change and come back one by one; so do twins that went together."""
    place = one(name)
    [key] = place.keys(1)
    marks = [("x", "hint"), ("hint",), (), ("a",), ("hint",), ("hint", "b"), ()]
    twins = ["a", "twin", "b", "twin", "c", "twin", "d"]
    put(place, [sample(key, [entry(id, n, marks[n]) for n, id in enumerate(twins)])])
    before = held(place)
    for words in (
        ("mark", "add", "--all", place.text, "new"),
        ("mark", "remove", place.text, "hint"),
        ("mark", "rename", place.text, "hint", "b"),
        ("delete", place.text, "--id", "twin", "--yes"),
        ("delete", place.text, "--all", "--yes"),
    ):
        done = report(run(*words, "--json"))["run"]
        after = held(place)
        assert after != before, words
        undone = report(run("undo", done, "--json"))
        assert held(place) == before, words
        assert report(run("undo", undone["run"], "--json"))
        assert held(place) == after, words
        assert report(run("undo", "--yes", "--json"))["undoes"] == done, "it is in force again"
        assert held(place) == before, words


@pytest.mark.slow
@pytest.mark.parametrize("state", ["redis", "folder"])
def test_undo_summaries_kept_elsewhere(
    run: Run, servers: Servers, tmp_path: Path, state: str
) -> None:
    beside = state if state == "redis" else f"{tmp_path}/states"
    place = place_at("redis", f"{servers.redis.fresh()}?state={beside}", tmp_path, servers)
    keys = fill(place)
    before = held(place)
    assert before[keys[0]][0] == "what was said"
    done = act(run, place, "delete")
    after = held(place)
    assert [after[key][0] for key in keys] == ["what was said"] * 3
    assert run("undo", done).exit_code == 0
    assert held(place) == before
    done = act(run, place, "delete everything")
    assert run("undo", done).exit_code == 0
    assert held(place) == before


def test_undo_state_folder_is_found_from_anywhere(
    run: Run, servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    text = f"{servers.redis.fresh()}?state=./my%20states&prefix=app:"
    place = place_at("redis", text, tmp_path, servers)
    fill(place)
    before = held(place)
    act(run, place, "delete")
    monkeypatch.chdir(tmp_path / "there")
    assert run("undo", "--yes").exit_code == 0
    monkeypatch.chdir(tmp_path / "here")
    assert held(place) == before
    assert list((tmp_path / "there").iterdir()) == []


def test_undo_no_password_of_the_states_is_kept(redis_url: str) -> None:
    states = quote(redis_url.replace("redis://", "redis://me:pa%25ss@") + "?layout=session")
    text = f"{redis_url}?state={states}"
    kept = record(ThisRun(), "delete", text, parse(text))
    assert "ss@" not in str(kept)
    assert kept.secret
    found = parse(kept.argument)
    assert found.url == redis_url
    assert found.options["state"] == unquote(states).replace("me:pa%25ss@", "me@")


@pytest.mark.slow
def test_undo_part_by_part(run: Run, one: Callable[[str], Place]) -> None:
    """A run that is undone in part is not undone; when all is back it is no longer asked for."""
    place = one("sqlite")
    keys = [MemoryKey(user, "s") for user in ("a", "b", "c")]
    put(place, [sample(key, samples.entries(9)) for key in keys])
    first = report(run("mark", "add", "--all", place.text, "new", "--json"))["run"]
    before = held(place)
    done = act(run, place, "delete everything")
    for number, key in enumerate(keys, 1):
        assert report(run("undo", done, "--user", key.user, "--json"))["messages"]["restored"] == 9
        assert held(place) == {key: before[key] for key in keys[:number]}
        rows = {row["run"]: row for row in report(run("history", "--json"))["runs"]}
        assert rows[done]["undone_by"] is None
    nothing = report(run("undo", "--yes", "--json"))
    assert (nothing["undoes"], nothing["memories"]["selected"]) == (done, 0)
    assert "nothing to undo" in run("history").stdout
    assert report(run("undo", "--yes", "--json"))["undoes"] == first
    fails(run("undo", "--yes"), 4, "no run can be undone")


@pytest.mark.slow
def test_undo_store_is_another_one(run: Run, filled: str, tmp_path: Path) -> None:
    """Undo restores whole memories in a store made anew, and nothing into strange places."""
    everything = report(run("delete", filled, "--all", "--yes", "--json"))["run"]
    assert run("undo", everything).exit_code == 0
    hints = report(run("delete", filled, "--mark", "hint", "--yes", "--json"))["run"]
    for suffix in ("", "-wal", "-shm"):
        (tmp_path / f"agents.db{suffix}").unlink(missing_ok=True)
    fails(run("undo", hints), 4, "does not exist")
    with sqlite3.connect(tmp_path / "agents.db"):
        pass
    fails(run("undo", hints), 8)
    asyncio.run(fill_text(filled, {MemoryKey("else", "s"): samples.entries(3)}))
    fails(run("undo", hints), 5, "was deleted since")
    assert report(run("inspect", filled, "--json"))["totals"]["messages"] == 3
    assert report(run("undo", everything, "--json"))["messages"]["restored"] == 100
    assert report(run("inspect", filled, "--json"))["totals"]["messages"] == 103


@pytest.mark.parametrize("action", ["delete", "unmark"])
def test_undo_what_agents_took_away_is_no_failure(
    run: Run, one: Callable[[str], Place], monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    """A planned message that is gone before its memory is changed is not counted as failed."""
    place = one("sqlite")
    keys = fill(place)
    told = ChangeRun.carry_out

    async def later(self: Any, *arguments: Any) -> None:
        with sqlite3.connect(place.location.path) as connection:
            connection.execute(
                "DELETE FROM message_mark WHERE msg_id LIKE ?", [f"%-{keys[0].session}-%"]
            )
        await told(self, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(ChangeRun, "carry_out", later)
        first, *rest = ACTIONS[action]
        words = [first, place.text, *rest] if first == "delete" else [first, rest[0], place.text]
        found = report(run(*words, *rest[1:] if first == "mark" else (), "--json"))
    assert found["messages"]["failed"] == 0
    assert found["memories"] == {"selected": 2, "written": 2, "failed": 0}


CUTS = 12


def kill(run: str, end: int | None = None) -> None:
    """Leave a run as a kill would have left it, its file of changes cut off at a byte."""
    folder = Path(os.environ["XDG_STATE_HOME"]) / "memctl" / "runs" / run
    whole = folder / "changes-1.ndjson.zst"
    left = whole.with_name(whole.name + ".part")
    if whole.exists():
        whole.rename(left)
    os.truncate(left, left.stat().st_size if end is None else end)
    change_record(folder / "run.json", ended="", outcome="")


def change_record(path: Path, **values: object) -> None:
    """Change the record of a run."""
    runs = Runs()
    changed = runs.find(path.parent.name)
    for name, value in values.items():
        setattr(changed, name, value)
    runs.update(changed)


def size(run: str) -> int:
    """Return the bytes of the file of changes of a run."""
    folder = Path(os.environ["XDG_STATE_HOME"]) / "memctl" / "runs" / run
    return (folder / "changes-1.ndjson.zst").stat().st_size


def counts(run: Run, store: str) -> dict[tuple[str, str], int]:
    """Return the number of messages in each memory."""
    found = report(run("inspect", store, "--json"))["memories"]
    return {(memory["user"], memory["session"]): memory["messages"] for memory in found}


@pytest.mark.slow
def test_undo_import_that_was_killed(run: Run, filled: str, tmp_path: Path) -> None:
    file = str(tmp_path / "more.ndjson")
    keys = [samples.key(number) for number in range(2, 30)]
    asyncio.run(fill_text(file, {key: [entry(f"new-{n}", n) for n in range(60)] for key in keys}))
    before = counts(run, filled)
    done = report(run("import", file, filled, "--on-conflict", "append", "--json"))["run"]
    assert counts(run, filled) != before
    kill(done)
    assert report(run("undo", done, "--json"))["memories"]["written"] == len(keys)
    assert {key: number for key, number in counts(run, filled).items() if number} == before


@pytest.mark.slow
def test_undo_what_was_not_written_down_was_not_done(run: Run, filled: str, tmp_path: Path) -> None:
    """Wherever the file ends, what can be read of it goes back, and the rest is left alone."""
    path = filled.removeprefix("sqlite:///")
    before = counts(run, filled)
    done = report(run("compress", filled, "--all", "--mode", "replace", "--yes", "--json"))["run"]
    after = counts(run, filled)
    shutil.copyfile(path, tmp_path / "after.db")
    length = size(done)
    seen = set()
    for end in sorted({*random.Random(3).sample(range(length), CUTS), length - 1}, reverse=True):
        kill(done, end)
        shutil.copyfile(tmp_path / "after.db", path)
        found = run("undo", done, "--json")
        assert found.exit_code in (0, 5, 8), found.stderr
        now = counts(run, filled)
        # A memory of which a part was written down would not have been changed: it is refused.
        assert all(now[key] in (before[key], after[key]) for key in now), end
        seen.add(sum(now[key] == before[key] for key in now))
        undone = Path(os.environ["XDG_STATE_HOME"]) / "memctl" / "runs" / done / "run.json"
        change_record(undone, undone_by="", settled=False)
    assert len(before) in seen


def test_undo_plan_that_was_not_finished_is_no_record(run: Run, filled: str) -> None:
    done = report(run("delete", filled, "--mark", "hint", "--yes", "--json"))["run"]
    left = counts(run, filled)
    kill(done)
    fails(run("undo", done), 8, "is incomplete")
    assert counts(run, filled) == left


@pytest.mark.slow
@pytest.mark.parametrize("name", ["before.ndjson", "repairs.ndjson"])
def test_undo_record_in_which_a_letter_was_changed(
    run: Run, filled: str, tmp_path: Path, name: str
) -> None:
    """A damaged line is refused, even if it is still JSON."""
    path = Path(filled.removeprefix("sqlite:///"))
    source = f"sqlite:///{tmp_path}/source.db"
    asyncio.run(fill_text(source, {MemoryKey("zoe", "new"): samples.entries(3)}))
    with sqlite3.connect(path) as driver:
        driver.execute("DELETE FROM users")
        two = "SELECT id FROM message ORDER BY session_id, id LIMIT 2"
        driver.execute(f'UPDATE message SET "index" = 1 WHERE id IN ({two})')
    driver.close()
    if name == "before.ndjson":
        assert run("migrate", source, filled).exit_code == 0
    else:
        assert run("doctor", filled, "duplicate-index", "--repair", "--yes").exit_code == 0
    [file] = runs_folder().rglob(name)
    text = file.read_text()
    for number, letter in enumerate(text):
        if letter.isalpha():
            file.write_text(text[:number] + chr(ord(letter) ^ 1) + text[number + 1 :])
            before = path.read_bytes()
            fails(run("undo", "--yes"), 8, "is damaged")
            assert path.read_bytes() == before
    file.write_text(text)
    assert run("undo", "--yes").exit_code == 0


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["mark", "message"])
def test_undo_killed_between_the_summary_and_the_messages(
    run: Run, database: str, tmp_path: Path, mode: str
) -> None:
    """The summary lies in the state of the session, the messages in the database."""
    path = database.removeprefix("sqlite:///")
    store = f"{database}?state={tmp_path}/states"
    (tmp_path / "states").mkdir()
    memories = {samples.key(n): samples.entries(10 * n + 10) for n in range(4)}
    asyncio.run(fill_text(store, memories, summary="What was said before."))
    shutil.copyfile(path, tmp_path / "before.db")
    assert run("export", store, "--as", "archive", "-o", f"{tmp_path}/a.ndjson").exit_code == 0
    done = report(run("compress", store, "--mode", mode, "--keep-recent", "1", "--json"))["run"]
    shutil.copyfile(tmp_path / "before.db", path)
    kill(done)
    assert run("verify", store, f"{tmp_path}/a.ndjson").exit_code == 6
    assert report(run("undo", done, "--json"))["memories"]["written"]
    assert run("verify", store, f"{tmp_path}/a.ndjson").exit_code == 0


@pytest.mark.slow
def test_undo_of_the_last_run_on_a_store_has_all_of_its_options(
    run: Run, database: str, tmp_path: Path
) -> None:
    """The place of the summary is not named again."""
    store = f"{database}?state={tmp_path}/states"
    (tmp_path / "states").mkdir()
    asyncio.run(fill_text(store, {samples.key(0): samples.entries(9)}, summary="Said before."))
    assert run("export", store, "--as", "archive", "-o", f"{tmp_path}/a.ndjson").exit_code == 0
    assert run("compress", store, "--mode", "mark", "--keep-recent", "1").exit_code == 0
    assert run("verify", store, f"{tmp_path}/a.ndjson").exit_code == 6
    assert run("undo", "--yes", "--store", database.removeprefix("sqlite:///")).exit_code == 0
    assert run("verify", store, f"{tmp_path}/a.ndjson").exit_code == 0


# What a store may hold


def test_undo_redis_id_that_stands_in_the_list_twice(run: Run, one: Callable[[str], Place]) -> None:
    """``RedisMemory.add([a], skip_duplicated=False)`` makes such a list."""
    place = one("redis")
    [key] = place.keys(1)
    put(place, [sample(key, [entry("a", 0, ("hint",)), entry("b", 1, ())])])
    with redis_memory(place, key) as (client, base):
        client.rpush(f"{base}:messages", "a")
        client.rpush(f"{base}:mark:hint", "a")
        for words in (("--mark", "hint"), ("--id", "a"), ("--all",)):
            before = set(client.scan_iter())
            done = report(run("delete", place.text, *words, "--yes", "--json"))
            assert done["messages"]["deleted"] == (3 if words == ("--all",) else 2)
            assert client.lrange(f"{base}:messages", 0, -1) != [b"a", b"b", b"a"]
            report(run("undo", done["run"], "--json"))
            assert client.lrange(f"{base}:messages", 0, -1) == [b"a", b"b", b"a"]
            assert client.lrange(f"{base}:mark:hint", 0, -1) == [b"a", b"a"]
            assert set(client.scan_iter()) == before


@pytest.mark.slow
def test_undo_of_replacing_in_redis_restores_what_no_message_shows(
    run: Run, one: Callable[[str], Place]
) -> None:
    origin, place = one("sqlite"), one("redis")
    [key] = place.keys(1)
    put(origin, [sample(key, [entry("z", 9, ("hint", "new"))])])
    odd = [entry("a", 0, ("hint", "odd")), entry("b", 1, ("odd",)), entry("c", 2, ("even",))]
    put(place, [sample(key, odd)])
    with redis_memory(place, key) as (client, base):
        client.delete(f"{base}:mark:odd", f"{base}:mark:_MemoryMark.HINT")
        client.rpush(f"{base}:mark:odd", "b", "gone", "a", "a")
        client.srem(f"{base}:marks_index", "even")
        client.sadd(f"{base}:marks_index", "ended")
        for name in ("mark:even", "msg:b"):
            client.expire(f"{base}:{name}", 500)

        before = redis_keys(client, base)
        words = ("migrate", origin.text, place.text, *REPLACE, "--lossy")
        last = report(run(*words, "--json"))["run"]
        there_and_back(run, last, lambda: redis_keys(client, base), before)


def a_list_without_a_message(client: redis.Redis, base: str) -> None:
    client.linsert(f"{base}:messages", "BEFORE", "m0000001", "gone")


def a_message_without_a_payload(client: redis.Redis, base: str) -> None:
    client.delete(f"{base}:msg:m0000001")


def a_payload_without_a_list(client: redis.Redis, base: str) -> None:
    client.set(f"{base}:msg:z", "anything", ex=500)


def a_memory_without_its_list(client: redis.Redis, base: str) -> None:
    client.delete(f"{base}:messages")


REPLACING = ("migrate", "SOURCE", "STORE", *REPLACE)
UNRESTORABLE = [
    pytest.param(fault, words, id=f"{fault.__name__}, {words[0]}")
    for fault, commands in (
        (a_list_without_a_message, [("delete", "STORE", "--mark", "odd", "--yes"), REPLACING]),
        (a_message_without_a_payload, [("delete", "STORE", "--all", "--yes"), REPLACING]),
        (a_payload_without_a_list, [REPLACING]),
        (a_memory_without_its_list, [("migrate", "SOURCE", "STORE")]),
    )
    for words in commands
]


@pytest.mark.parametrize(("fault", "words"), UNRESTORABLE)
def test_change_that_undo_could_not_restore_in_redis_is_refused(
    run: Run,
    one: Callable[[str], Place],
    fault: Callable[[redis.Redis, str], None],
    words: tuple[str, ...],
) -> None:
    """Nothing has changed then; after a repair, the change is made, and undone exactly."""
    place, source = one("redis"), one("archive")
    [key] = place.keys(1)
    marked = [entry("m0000001", 7, ("hint", "new")), entry("z", 8, ())]
    put(place, [sample(key, [entry("m0000000", 0, ("odd",)), entry("m0000001", 1, ("odd",))])])
    put(source, [sample(key, marked)])
    named = {"STORE": place.text, "SOURCE": source.text}
    words = tuple(named.get(word, word) for word in words)
    with redis_memory(place, key) as (client, base):
        fault(client, base)
        before = redis_keys(client, base)
        [failure] = report(run(*words, "--json"), 7)["failures"]
        assert failure["code"] == "unrestorable"
        assert "memctl doctor --repair" in failure["message"]
        assert redis_keys(client, base) == before
        assert run("doctor", place.text, "--repair", "--yes").exit_code in (0, 6)
        before = redis_keys(client, base)
        done = report(run(*words, "--json"))
        assert redis_keys(client, base) != before
        if fault is not a_memory_without_its_list:  # a copy into an empty store is not recorded
            report(run("undo", done["run"], "--yes", "--json"))
            assert redis_keys(client, base) == before


def test_undo_deletes_next_to_ids_that_have_lost_their_message_in_redis(
    run: Run, one: Callable[[str], Place]
) -> None:
    """A payload is gone between the run and its undo, as after an eviction."""
    place, source = one("redis"), one("archive")
    [key] = place.keys(1)
    first = samples.entries(3)
    put(place, [sample(key, first)])
    put(source, [sample(key, [*first, entry("z", 8, ("odd",))])])
    with redis_memory(place, key) as (client, base):
        before = redis_keys(client, base)
        done = report(run("migrate", source.text, place.text, "--json"))
        client.delete(f"{base}:msg:m0000001")
        del before[f"{base}:msg:m0000001".encode()]
        report(run("undo", done["run"], "--yes", "--json"))
        assert redis_keys(client, base) == before


def test_undo_of_a_copy_to_marks_that_a_cleared_memory_left_in_redis(
    run: Run, one: Callable[[str], Place]
) -> None:
    """RedisMemory.clear() deletes only the lists of marks that the index names."""
    place, source = one("redis"), one("archive")
    [key] = place.keys(1)
    put(place, [sample(key, samples.entries(3))])
    put(source, [sample(key, [entry("m0000001", 7, ("hint", "new")), entry("z", 8, ())])])
    with redis_memory(place, key) as (client, base):
        client.delete(f"{base}:messages", *client.scan_iter(f"{base}:msg:*"))
        client.expire(f"{base}:marks_index", 700)
        before = redis_keys(client, base)
        last = report(run("migrate", source.text, place.text, "--json"))["run"]
        assert client.lrange(f"{base}:messages", 0, -1) == [b"m0000001", b"z"]
        there_and_back(run, last, lambda: redis_keys(client, base), before)


@pytest.mark.parametrize("states", ["", "&state=redis"])
def test_undo_replacing_what_is_damaged_in_redis_is_refused(
    run: Run, one: Callable[[str], Place], states: str
) -> None:
    """Nobody could restore the damaged message."""
    place, source = one("redis"), one("archive")
    [key] = place.keys(1)
    put(place, [sample(key, samples.entries(3))])
    put(source, [sample(key, [entry("z", 9, ())])])
    with redis_memory(place, key) as (client, base):
        client.set(f"{base}:msg:m0000001", "not JSON")
        before = redis_keys(client, base)
        words = ("migrate", source.text, f"{place.text}{states}", *REPLACE)
        fails(run(*words), 8, "some of its messages are damaged")
        assert redis_keys(client, base) == before


@pytest.mark.parametrize("index", [(), ("even",)], ids=["no index", "index"])
def test_undo_of_an_append_to_marks_that_no_index_names_in_redis(
    run: Run, one: Callable[[str], Place], index: tuple[str, ...]
) -> None:
    """As AgentScope before 1.0.15 left them; RedisMemory knows the marks of an index alone."""
    place, source = one("redis"), one("archive")
    [key] = place.keys(1)
    first = [entry("a", 0, ("odd",)), entry("b", 1, ("even",))]
    put(place, [sample(key, first)])
    put(source, [sample(key, [*first, entry("c", 2, ("odd", "new"))])])
    with redis_memory(place, key) as (client, base):
        client.delete(f"{base}:marks_index")
        for name in index:
            client.sadd(f"{base}:marks_index", name)
        before = redis_keys(client, base)
        done = report(run("migrate", source.text, place.text, "--json"))
        assert client.smembers(f"{base}:marks_index") == {b"odd", b"even", b"new"}
        there_and_back(run, done["run"], lambda: redis_keys(client, base), before)


def test_undo_of_an_append_of_an_id_that_a_list_of_marks_has_kept_in_redis(
    run: Run, one: Callable[[str], Place]
) -> None:
    """RedisMemory.delete() takes an id only from the lists of marks that the index names."""
    place, source = one("redis"), one("archive")
    [key] = place.keys(1)
    first = [entry("a", 0, ("odd",)), entry("b", 1, ("odd",))]
    put(place, [sample(key, first)])
    put(source, [sample(key, [*first, entry("c", 2, ())])])
    with redis_memory(place, key) as (client, base):
        client.linsert(f"{base}:mark:odd", "BEFORE", "b", "c")
        before = redis_keys(client, base)
        done = report(run("migrate", source.text, place.text, "--json"))
        assert client.lrange(f"{base}:mark:odd", 0, -1) == [b"a", b"b"]
        there_and_back(run, done["run"], lambda: redis_keys(client, base), before)


@pytest.mark.slow
@pytest.mark.parametrize("states", ["folder", "redis"])
def test_undo_of_replacing_beside_states_that_hold_messages(
    run: Run, one: Callable[[str], Place], tmp_path: Path, states: str
) -> None:
    """As after a move of the messages from the states to a store: the summaries stay there."""
    folder, source, place = tmp_path / "states", one("archive"), one("redis")
    bare = place.text.partition("?")[0]
    [key] = place.keys(1)
    if states == "folder":
        asyncio.run(fill_text(str(folder), {key: samples.entries(3)}, summary="old"))
        text = f"{place.text}&state={folder}"
    else:
        asyncio.run(fill_text(f"{bare}?layout=session", {key: samples.entries(3)}, summary="old"))
        text = f"{place.text}&state=redis"
    put(place, [sample(key, samples.entries(3))])
    put(source, [sample(key, samples.entries(3, start=5), summary="new")])
    with redis.Redis.from_url(bare) as client:

        def contents() -> Any:
            states = {name: client.get(name) for name in client.scan_iter("*:state")}
            files = {path.name: path.read_bytes() for path in folder.rglob("*.json")}
            assert states or files
            return (
                redis_keys(client, f"app:user_id:{key.user}:session:{key.session}:m"),
                states,
                files,
            )

        before = contents()
        done = report(run("migrate", source.text, text, *REPLACE, "--json"))
        assert done["messages"]["written"] == 3
        there_and_back(run, done["run"], contents, before)


def test_undo_redis_halves_of_surrogate_pairs_are_bytes_again(
    run: Run, one: Callable[[str], Place]
) -> None:
    """An escape means the same in JSON; what was bytes comes back as bytes."""
    place = one("redis")
    [key] = place.keys(1)
    put(place, [sample(key, samples.entries(3))])
    base = f"app:user_id:{key.user}:session:{key.session}"
    texts = [b'half \xed\xa0\xbd of a pair", "\xed\xb0\x80": "\\\\ud800', b"half \\ud83d of a pair"]
    with redis.Redis.from_url(place.text.partition("?")[0]) as client:
        for number, text in enumerate(texts):
            payload = b'{"id": "m000000%d", "content": "%s"}' % (number, text)
            client.set(f"{base}:msg:m000000{number}", payload)
        before = redis_keys(client, base)
        last = report(run("delete", place.text, "--all", "--yes", "--json"))["run"]
        there_and_back(run, last, lambda: redis_keys(client, base), before)


@pytest.mark.slow
def test_undo_of_replacing_by_the_beginning_is_exact(
    run: Run, one: Callable[[str], Place], tmp_path: Path
) -> None:
    """The copy looks like the beginning of what was there, and stands at other positions."""
    place = one("sqlite")
    [key] = place.keys(1)
    put(place, [sample(key, samples.entries(5))])

    def rows() -> list[Any]:
        with closing(sqlite3.connect(place.location.path)) as database:
            return database.execute("SELECT * FROM message ORDER BY id").fetchall()

    before = rows()
    origin = Place(place.backend, f"sqlite:///{tmp_path}/source.db", tmp_path)
    put(origin, [sample(key, samples.entries(2))])
    state = f"{tmp_path}/state.json"  # which has no positions
    report(run("export", origin.text, "--as", "state-dict", "-o", state, "--json"))
    words = ("--user", key.user, "--session", key.session, *REPLACE, "--json")
    assert report(run("migrate", state, place.text, *words))["messages"]["deleted"] == 5
    assert [row[-1] for row in rows()] != [0, 1]
    report(run("undo", "--store", place.text, "--yes", "--json"))
    assert rows() == before


@pytest.mark.slow
@pytest.mark.parametrize("size", [10, 2_000_000])
def test_undo_of_replacing_gives_back_line_breaks(
    run: Run, one: Callable[[str], Place], tmp_path: Path, size: int
) -> None:
    place = one("sqlite")
    [key] = place.keys(1)
    put(place, [sample(key, samples.entries(5))])

    def messages() -> list[Any]:
        with closing(sqlite3.connect(place.location.path)) as database:
            return database.execute("SELECT id, msg FROM message ORDER BY id").fetchall()

    with closing(sqlite3.connect(place.location.path)) as database:
        for end, (id, text) in zip(["\n", "\r\n", "\r", "\t\n", "\r "], messages(), strict=True):
            broken = json.dumps(json.loads(text) | {"more": "x" * size}, indent=1)
            values = broken.replace("\n", end), id
            database.execute("UPDATE message SET msg = ? WHERE id = ?", values)
        database.commit()
    before = messages()
    origin = Place(place.backend, f"sqlite:///{tmp_path}/source.db", tmp_path)
    put(origin, [sample(key, samples.entries(3, start=9))])
    report(run("migrate", origin.text, place.text, *REPLACE, "--json"))
    assert messages() != before
    report(run("undo", "--yes", "--json"))
    assert messages() == before


@pytest.mark.parametrize("named", ["", "user", "session", "user session"])
def test_undo_of_replacing_a_state_that_is_named_in_part(
    run: Run, tmp_path: Path, named: str
) -> None:
    """The file does not say whose session it is: the name of the source fills in."""
    source, target = tmp_path / "source.json", tmp_path / "target.json"
    for path, text in (source, "new"), (target, "old"):
        message = {"id": text, "name": "n", "role": "user", "content": text}
        path.write_text(json.dumps({"_compressed_summary": "", "content": [[message, []]]}))
    before = target.read_bytes()
    words = [word for name in named.split() for word in (f"--{name}", "ada")]
    report(run("migrate", source, target, *REPLACE, *words, "--json"))
    assert target.read_bytes() != before
    report(run("undo", "--yes", "--json"))
    assert target.read_bytes() == before


@pytest.mark.slow
def test_undo_takes_away_the_user_of_several_sessions(
    run: Run, one: Callable[[str], Place], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after the copy was undone and done again, each session by a transaction of its own."""
    monkeypatch.setattr(editing, "BATCH_CHANGES", 100)
    place = one("sqlite")
    [key] = place.keys(1)
    put(place, [sample(key, samples.entries(1))])

    def users() -> list[Any]:
        with closing(sqlite3.connect(place.location.path)) as database:
            return database.execute("SELECT id FROM users ORDER BY id").fetchall()

    before = users()
    origin = Place(place.backend, f"sqlite:///{tmp_path}/source.db", tmp_path)
    sessions = [MemoryKey("bob", f"s{number}") for number in range(2)]
    put(origin, [sample(key, samples.entries(101)) for key in sessions])
    runs = [report(run("migrate", origin.text, place.text, "--json"))["run"]]
    for there in (False, True, False):
        runs.append(report(run("undo", runs[-1], "--yes", "--json"))["run"])
        assert users() == [*[("bob",)] * there, *before]


def test_undo_of_a_copy_of_a_memory_whose_session_is_of_another(
    run: Run, one: Callable[[str], Place]
) -> None:
    """A memory without messages is the row of its session: no row of a user stands for it."""
    place, source = one("sqlite"), one("archive")
    put(place, [sample(MemoryKey("bob", "s"), samples.entries(3))])
    put(source, [sample(MemoryKey("ada", "s"), []), sample(MemoryKey("zoe", "t"), [])])

    def users() -> list[str]:
        with closing(sqlite3.connect(place.location.path)) as database:
            return [name for (name,) in database.execute("SELECT id FROM users ORDER BY id")]

    found = report(run("migrate", source.text, place.text, "--json"), 7)
    [failure] = found["failures"]
    assert (failure["user"], failure["session"], failure["code"]) == ("ada", "s", "refused")
    assert (found["memories"]["written"], users()) == (1, ["bob", "zoe"])
    report(run("undo", found["run"], "--yes", "--json"))
    assert users() == ["bob"]


@pytest.mark.slow
def test_undo_of_undo_of_a_copy_into_the_session_of_another(
    run: Run, one: Callable[[str], Place]
) -> None:
    """The user of the copy has a row, though the session belongs to another."""
    place, source = one("sqlite"), one("archive")
    put(place, [sample(MemoryKey("bob", "s"), samples.entries(3))])
    put(source, [sample(MemoryKey("ada", "s"), samples.entries(2))])

    def rows() -> list[Any]:
        with closing(sqlite3.connect(place.location.path)) as database:
            tables = "users", "session", "message"
            return [database.execute(f"SELECT * FROM {one}").fetchall() for one in tables]

    before = rows()
    last = report(run("migrate", source.text, place.text, "--json"))["run"]
    after = rows()
    assert after[:2] == [[("bob",), ("ada",)], [("s", "bob")]]
    for expected in (before, after, before):
        last = report(run("undo", last, "--yes", "--json"))["run"]
        assert rows() == expected


def test_undo_memory_that_could_not_come_back_is_not_replaced(
    run: Run, one: Callable[[str], Place], tmp_path: Path
) -> None:
    place = one("redis")
    [key] = place.keys(1)
    put(place, [sample(key, samples.entries(2))])
    with redis.Redis.from_url(place.text.partition("?")[0]) as client:
        client.rpush(f"app:user_id:{key.user}:session:{key.session}:messages", "m0000001")
    origin = Place(place.backend, f"sqlite:///{tmp_path}/source.db", tmp_path)
    put(origin, [sample(key, samples.entries(3, start=7))])
    before = place.dump()
    words = ("migrate", origin.text, place.text, *REPLACE, "--json")
    found = report(run(*words), 7)
    assert found["failures"][0]["code"] == "repeated-id"
    assert place.dump() == before


@pytest.mark.slow
@pytest.mark.parametrize("index", ["'x'", "x'00ff'", "2.5", str(2**63 - 1)])
def test_undo_sqlite_index_of_any_kind(run: Run, one: Callable[[str], Place], index: str) -> None:
    """A message that undo could not restore is not deleted."""
    place = one("sqlite")
    [key] = place.keys(1)
    put(place, [sample(key, samples.entries(3))])
    rows = 'SELECT *, typeof("index") FROM message ORDER BY id'
    with sqlite3.connect(place.location.path) as connection:
        connection.execute(f"UPDATE message SET \"index\" = {index} WHERE id LIKE '%-m0000001'")
        connection.commit()
        before = connection.execute(rows).fetchall()
        for words in (("--id", "m0000000"), ("--id", "m0000001"), ("--all",)):
            done = run("delete", place.text, *words, "--yes", "--json")
            if not index.isdigit():
                fails(done, 8, "is damaged")
            else:
                assert connection.execute(rows).fetchall() != before
                report(run("undo", report(done)["run"], "--json"))
            assert connection.execute(rows).fetchall() == before


@pytest.mark.slow
@pytest.mark.parametrize("words", [("delete", "--all", "--yes"), ("migrate",)])
def test_undo_sqlite_message_that_is_a_blob(
    run: Run, one: Callable[[str], Place], words: tuple[str, ...]
) -> None:
    """AgentScope reads one as it reads a text."""
    place, source = one("sqlite"), one("archive")
    [key] = place.keys(1)
    put(place, [sample(key, samples.entries(4))])
    put(source, [sample(key, samples.entries(2, start=7))])
    execute(place, 'UPDATE message SET msg = CAST(msg AS BLOB) WHERE "index" % 2')
    seen = report(run("inspect", place.text, "--messages", "--json"))["messages"]
    assert [one["id"] for one in seen] == [f"m000000{number}" for number in range(4)]
    found = run("export", place.text, "--as", "archive", "--match", "message 1")
    assert '"m0000001"' in found.stdout
    query = "SELECT *, typeof(msg) FROM message"
    before = rows(place, query)
    command, *more = words
    if command == "migrate":
        more = [place.text, *REPLACE]
    else:
        source = place
    last = report(run(command, source.text, *more, "--json"))["run"]
    after = rows(place, query)
    assert after != before
    report(run("undo", last, "--yes", "--json"))
    assert rows(place, query) == before


def test_undo_of_copies_beside_damaged_messages(run: Run, one: Callable[[str], Place]) -> None:
    """The ids that were added to one memory are those of damaged messages in another."""
    place, source = one("sqlite"), one("archive")
    first, second = MemoryKey("ada", "s"), MemoryKey("bob", "t")
    put(place, [sample(first, samples.entries(3))])
    put(source, [sample(first, samples.entries(4)), sample(second, samples.entries(2))])
    execute(place, "UPDATE message SET msg = '{' WHERE \"index\" = 1")
    before = rows(place, "message", "message_mark", "session", "users")
    words = ("migrate", source.text, place.text, "--on-conflict", "append", "--no-verify")
    done = report(run(*words, "--json"))
    assert (done["memories"]["written"], done["messages"]["written"]) == (2, 3)
    report(run("undo", done["run"], "--yes", "--json"))
    assert rows(place, "message", "message_mark", "session", "users") == before


@pytest.mark.slow
def test_undo_of_changes_in_a_session_of_two_users(run: Run, one: Callable[[str], Place]) -> None:
    """The answer that is put in for one moves the other's rows, of which one goes."""
    place = one("sqlite")
    call = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    lost = {"type": "tool_result", "id": "lost", "name": "f", "output": "x"}

    def message(id: str, number: int, content: Any) -> StoredMessage:
        value = {**json.loads(samples.message(id, number)), "content": content}
        return StoredMessage(id, json.dumps(value).encode())

    for user, contents in (("zoe", ["Do it.", [call], "And?"]), ("ada", ["So.", [lost], "Well."])):
        some = [message(f"{user}{number}", number, one) for number, one in enumerate(contents)]
        put(place, [sample(MemoryKey(user, "s"), some)])
    before = rows(place, "message")
    assert [row[-1] for row in sorted(before[0], key=lambda row: row[-1])] == [*range(6)]
    last = json.loads(run("doctor", place.text, "--repair", "--yes", "--json").stdout)["run"]
    there_and_back(run, last, lambda: rows(place, "message"), before)


@pytest.mark.parametrize(
    "words", [("migrate", "--on-conflict", "append"), ("compress", "--keep-recent", "1")]
)
def test_undo_session_without_a_row_and_with_messages_of_nobody_gets_none(
    run: Run, one: Callable[[str], Place], words: tuple[str, ...]
) -> None:
    """With a row its owner would have damaged messages, and could not be undone."""
    place, source = one("sqlite"), one("archive")
    key = MemoryKey("ada", "s")
    put(place, [sample(key, samples.entries(5))])
    put(source, [sample(key, samples.entries(6))])
    execute(place, "DELETE FROM session", "UPDATE message SET id = x'ff' WHERE \"index\" = 2")
    before = rows(place, "message", "session")
    command, *more = words
    stores = [source.text, place.text] if command == "migrate" else [place.text]
    found = report(run(command, *stores, *more, "--json"), 8 if command == "migrate" else 7)
    assert {one["code"] for one in found["failures"]} == {"damaged"}
    assert "its session has no row" in str(found["failures"])
    assert rows(place, "message", "session") == before


@pytest.mark.slow
@pytest.mark.parametrize(("user", "id"), [("ada", "m1"), ("bob", "a-s-m1")])
@pytest.mark.parametrize("own", ["5", '"m2"', "null"])
def test_undo_message_that_would_be_read_as_that_of_another_user_is_not_written(
    run: Run, one: Callable[[str], Place], tmp_path: Path, user: str, id: str, own: str
) -> None:
    """AgentScope's row ids do not tell the user of each; then the id in the message has to."""
    place = one("sqlite")
    put(place, [sample(MemoryKey("bob", "s"), samples.entries(2))])
    before = rows(place, "message", "session", "users")
    memory = f'{{"memory":{{"user":"{user}","session":"s"}}}}'
    source = tmp_path / "source.ndjson"

    def keep(own: str) -> None:
        line = f'{{"message":{{"id": {own}, "role": "user"}},"marks":[],"id":"{id}"}}'
        source.write_bytes(sealed(memory.encode(), line.encode()))

    keep(own)
    words = ("migrate", source, place.text, "--on-conflict", "append", "--json")
    found = report(run(*words), 7)
    assert [one["code"] for one in found["failures"]] == ["refused"]
    assert f"the message '{id}' has another id in its JSON" in found["failures"][0]["message"]
    assert rows(place, "message", "session", "users") == before
    keep(f'"{id}"')
    done = report(run(*words))
    report(run("undo", done["run"], "--yes", "--json"))
    assert rows(place, "message", "session", "users") == before


@pytest.mark.parametrize("name", ["state", "archive"])
def test_undo_message_whose_twin_stayed(run: Run, one: Callable[[str], Place], name: str) -> None:
    place = one(name)
    [key] = place.keys(1)
    twins = [entry("twin", 0, ("hint",)), entry("b", 1, ()), entry("twin", 2, ())]
    put(place, [sample(key, twins)])
    before = held(place)
    for words in (("--mark", "hint"), ("--keep-last", "2"), ("--keep-last", "1")):
        done = report(run("delete", place.text, *words, "--yes", "--json"))["run"]
        assert held(place) != before
        report(run("undo", done, "--store", place.text, "--json"))
        assert held(place) == before, words
        nothing = report(run("undo", done, "--store", place.text, "--json"))
        assert nothing["messages"]["restored"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["state", "redis-session", "archive"])
@pytest.mark.parametrize("size", [10, 5_000_000])
def test_undo_message_whose_twin_has_another_text(
    run: Run, one: Callable[[str], Place], name: str, size: int
) -> None:
    """The message that was written down goes, though another has its id and its marks."""
    place = one(name)
    [key] = place.keys(1)
    texts = ["first " * (size // 6), "between", "second " * (size // 6)]
    messages = [
        StoredMessage(id, json.dumps({"id": id, "content": text}).encode())
        for id, text in zip(["twin", "b", "twin"], texts, strict=True)
    ]
    put(place, [sample(key, messages)])
    before = held(place)
    done = report(run("delete", place.text, "--match", "second", "--yes", "--json"))["run"]
    [(_, _, found)] = held(place).values()
    assert [json.loads(text)["content"][:5] for _, _, text in found] == ["first", "betwe"]
    report(run("undo", done, "--store", place.text, "--json"))
    assert held(place) == before


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sqlite", "postgresql", "mysql"])
@pytest.mark.parametrize("more", [(), ("lost", "So.")])
def test_undo_of_a_repair_moves_rows_back(
    run: Run, one: Callable[[str], Place], name: str, more: tuple[str, ...]
) -> None:
    """An answer that is put in moves the rows behind it; undone, they are where they were.

    So are messages that were deleted there, such as the result of a call that is lost.
    """
    place = one(name)
    call = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    lost = [{"type": "tool_result", "id": "lost", "name": "f", "output": "x"}]
    contents = ["Do it.", [call], "And?", "Well.", *(lost if x == "lost" else x for x in more)]
    messages = [
        StoredMessage(
            f"m{number}",
            json.dumps(
                {
                    **json.loads(samples.message(f"m{number}", number)),
                    "content": content,
                    "metadata": {},  # with metadata a message stays
                }
            ).encode(),
        )
        for number, content in enumerate(contents)
    ]
    put(place, [sample(MemoryKey("u", "s"), messages)])

    def positions() -> list[int | None]:
        async def look() -> list[int | None]:
            async with place.store(create=False) as store:
                [found] = (await read(store)).values()
                return [entry.position for entry in found.entries]

        return asyncio.run(look())

    last = json.loads(run("doctor", place.text, "--repair", "--yes", "--json").stdout)["run"]
    before, after = list(range(len(contents))), [0, 1, 2, 3, 4, *([6] if more else [])]
    assert positions() == after
    for expected in (before, after, before):
        last = report(run("undo", last, "--store", place.text, "--json"))["run"]
        assert positions() == expected


@pytest.mark.parametrize("name", ["sqlite", "redis", "archive"])
def test_undo_of_undo_of_memories_that_share_ids(
    run: Run, one: Callable[[str], Place], name: str
) -> None:
    """An id goes from one memory, stays in another, and others stood behind it."""
    place = one(name)
    messages = samples.entries(4)
    marked = [one._replace(marks=("hint",)) for one in messages]
    first, second = [*messages[:2], *marked[2:]], [marked[0], messages[1], marked[2], messages[3]]
    keys = [MemoryKey("u", "s"), MemoryKey("u", "t")]
    put(place, [sample(keys[0], first), sample(keys[1], second)])
    before = held(place)
    words = ("delete", place.text, "--mark", "hint", "--yes", "--json")
    last = report(run(*words))["run"]
    for _ in range(3):
        last = report(run("undo", last, "--store", place.text, "--json"))["run"]
    assert held(place) == before


@pytest.mark.parametrize("name", ["state", "redis-session", "archive"])
def test_undo_of_undo_of_messages_behind_one_of_two_with_an_id(
    run: Run, one: Callable[[str], Place], name: str
) -> None:
    """Both ids occur before: what is restored follows the second question, not the first."""
    place = one(name)
    [key] = place.keys(1)
    ids = ["question", "answer", "question", "answer", "end"]
    put(place, [sample(key, [entry(id, number, ()) for number, id in enumerate(ids)])])
    before = held(place)
    last = report(run("delete", place.text, "--last", "2", "--yes", "--json"))["run"]
    for _ in range(3):
        last = report(run("undo", last, "--store", place.text, "--json"))["run"]
    assert held(place) == before


def test_undo_of_replacing_in_an_archive_takes_its_summary_away(
    run: Run, one: Callable[[str], Place]
) -> None:
    place, origin = one("archive"), one("archive")
    put(place, [sample(MemoryKey("u", "s"), samples.entries(2), summary=None)])
    put(origin, [sample(MemoryKey("u", "s"), samples.entries(1, start=7), summary="New.")])
    before = place.location.path.read_bytes().splitlines()[1:-1]
    words = ("import", origin.text, place.text, *REPLACE, "--json")
    report(run("undo", report(run(*words))["run"], "--json"))
    assert place.location.path.read_bytes().splitlines()[1:-1] == before


@pytest.mark.parametrize("name", ["sqlite", "archive"])
def test_undo_import_of_a_memory_without_messages(
    run: Run, one: Callable[[str], Place], name: str
) -> None:
    place, origin = one(name), one("archive")
    put(origin, [sample(key, []) for key in place.keys(1)])
    put(place, [sample(MemoryKey("v", "t"), samples.entries(2))])
    done = report(run("import", origin.text, place.text, "--json"))["run"]
    sessions = [row["session"] for row in report(run("inspect", place.text, "--json"))["memories"]]
    assert len(sessions) == 2
    report(run("undo", done, "--json"))
    [row] = report(run("inspect", place.text, "--json"))["memories"]
    assert row["session"] == "t"


def test_undo_import_without_a_place_for_its_summary(run: Run, one: Callable[[str], Place]) -> None:
    place, origin = one("sqlite"), one("archive")
    put(place, [sample(MemoryKey("u", "s"), samples.entries(2))])
    put(origin, [sample(MemoryKey("u", "t"), samples.entries(2), summary="What was said.")])
    before = held(place)
    done = report(run("import", origin.text, place.text, "--lossy", "--json"))["run"]
    report(run("undo", done, "--json"))
    assert held(place) == before


def test_undo_of_undo_of_an_import_has_its_empty_summary(
    run: Run, one: Callable[[str], Place]
) -> None:
    place, origin = one("archive"), one("archive")
    put(place, [sample(MemoryKey("u", "s"), samples.entries(2))])
    put(origin, [sample(MemoryKey("u", "t"), samples.entries(2), summary="")])
    done = report(run("import", origin.text, place.text, "--json"))["run"]
    after = place.location.path.read_bytes().splitlines()[1:-1]
    undone = report(run("undo", done, "--yes", "--json"))["run"]
    report(run("undo", undone, "--yes", "--json"))
    assert place.location.path.read_bytes().splitlines()[1:-1] == after


@pytest.mark.parametrize("bare", [False, True])
@pytest.mark.parametrize("words", [("--keep-last", "1"), ("--role", "user"), ("--mark", "a")])
def test_undo_deletion_that_leaves_what_does_not_tell_that_it_is_a_memory(
    run: Run, tmp_path: Path, words: tuple[str, ...], bare: bool
) -> None:
    """AgentScope's messages have a name and a role, by which a list of messages is known."""
    path = tmp_path / "state.json"
    messages = [{"id": f"m{n}", "role": "user", "name": "n", "content": "x"} for n in range(3)]
    pairs = [[one, ["a"]] for one in [*messages, {"id": "odd"}]]
    text = json.dumps({"content": [one for one, _ in pairs] if bare else pairs})
    path.write_text(text)
    deleted = report(run("delete", path, *words, "--yes", "--json"))
    if deleted["messages"]["deleted"]:
        assert report(run("inspect", path, "--json"))["totals"]["memories"] == 1
        report(run("undo", "--yes", "--json"))
    assert json.loads(path.read_text()) == json.loads(text)


def test_undo_of_a_copy_leaves_a_state_without_a_summary(
    run: Run, one: Callable[[str], Place], tmp_path: Path
) -> None:
    """A message without a name tells no memory: the undo must see that the others do."""
    origin, path = one("state"), tmp_path / "bare.json"
    put(origin, [sample(key, samples.entries(1, start=7)) for key in origin.keys(1)])
    messages = [{"id": f"m{n}", "role": "user", "name": "n", "content": "x"} for n in range(2)]
    path.write_text(json.dumps({"content": [*messages, {"id": "odd"}]}))
    before = json.loads(path.read_bytes())
    done = report(run("import", origin.text, path, "--on-conflict", "append", "--json"))
    there_and_back(run, done["run"], lambda: json.loads(path.read_bytes()), before)


def test_undo_of_undo_of_a_copy_that_adds_an_empty_summary(
    run: Run, one: Callable[[str], Place], tmp_path: Path
) -> None:
    """The state has the beginning of the memory, and no place for a summary."""
    origin, path = one("state"), tmp_path / "bare.json"
    [key] = origin.keys(1)
    put(origin, [sample(key, samples.entries(4))])
    pairs = [[json.loads(one.message), list(one.marks)] for one in samples.entries(2)]
    path.write_text(json.dumps({"content": pairs}))
    before = json.loads(path.read_bytes())
    done = report(run("import", origin.text, path, "--json"))
    assert json.loads(path.read_bytes())["_compressed_summary"] == ""
    there_and_back(run, done["run"], lambda: json.loads(path.read_bytes()), before)


def test_undo_import_into_a_state_that_has_no_paths(
    run: Run, one: Callable[[str], Place], tmp_path: Path
) -> None:
    """The path of a memory says nothing of a document that is one itself."""
    origin, path = one("state"), tmp_path / "bare.json"
    put(origin, [sample(key, samples.entries(1, start=7)) for key in origin.keys(1)])
    messages = [json.loads(entry.message) for entry in samples.entries(2)]
    path.write_text(json.dumps({"content": messages}))
    words = ("import", origin.text, path, "--path", "agent.memory", *REPLACE)
    done = report(run(*words, "--lossy", "--json"))["run"]
    assert "agent" not in json.loads(path.read_bytes())
    report(run("undo", done, "--yes", "--json"))
    assert json.loads(path.read_bytes()) == {"content": messages}


def test_undo_of_undo_of_a_copy_of_several_memories_into_a_state_that_is_one(
    run: Run, tmp_path: Path
) -> None:
    memory = {"content": [[json.loads(samples.message("m1", 1)), []]]}
    source, target = tmp_path / "source.json", tmp_path / "target.json"
    source.write_text(json.dumps({"one": {"memory": memory}, "two": {"memory": memory}}))
    target.write_text(json.dumps(memory | {"_compressed_summary": ""}))

    def state() -> Any:
        return json.loads(target.read_bytes())

    before = state()
    runs = [report(run("migrate", source, target, "--json"))["run"]]
    after = state()
    assert after.keys() == {"one", "two", *before}
    for expected in (before, after, before):
        runs.append(report(run("undo", runs[-1], "--yes", "--json"))["run"])
        assert state() == expected


@pytest.mark.slow
def test_undo_run_that_the_server_refused_is_not_the_last_run(
    run: Run, servers: Servers, postgresql_url: str
) -> None:
    asyncio.run(fill_text(postgresql_url, {MemoryKey("ada", "kyoto"): samples.entries(20)}))
    before = stored(postgresql_url)
    words = ("delete", postgresql_url, "--yes")
    done = report(run(*words, "--mark", "hint", "--json"))["run"]
    name = postgresql_url.rpartition("/")[2]
    change = f'ALTER DATABASE "{name}" SET default_transaction_read_only = '
    admin = servers.postgresql.admin_url(postgresql_url)
    servers.postgresql.execute(admin, change + "on")
    fails(run(*words, "--role", "user"), 3, "read-only")
    servers.postgresql.execute(admin, f"BEGIN; SET TRANSACTION READ WRITE; {change}off; COMMIT")
    listed = report(run("history", postgresql_url, "--json"))["runs"]
    assert [(one["run"], one["outcome"]) for one in listed] == [(done, "done")]
    undone = report(run("undo", "--store", postgresql_url, "--yes", "--json"))
    assert undone["undoes"] == done
    assert stored(postgresql_url) == before


def test_undo_run_of_which_every_memory_was_refused_is_not_the_last_run(
    run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "agents.db"
    asyncio.run(fill_text(str(path), {MemoryKey("ada", "kyoto"): samples.entries(20)}))
    before = stored(str(path))
    done = report(run("delete", path, "--mark", "hint", "--yes", "--json"))["run"]
    with closing(sqlite3.connect(path)) as database:
        database.execute(
            "CREATE TRIGGER no BEFORE INSERT ON message_mark BEGIN SELECT RAISE(ABORT, 'no'); END"
        )
        fails(run("mark", "add", path, "seen", "--role", "user"), 7, "no")
        database.execute("DROP TRIGGER no")
    assert [one["run"] for one in report(run("history", "--json"))["runs"]] == [done]
    assert report(run("undo", "--yes", "--json"))["undoes"] == done
    assert stored(str(path)) == before


@pytest.mark.slow
def test_undo_of_a_store_named_by_another_url_restores_its_states(
    run: Run, servers: Servers, tmp_path: Path
) -> None:
    url, folder = servers.postgresql.fresh(), tmp_path / "states"
    folder.mkdir()
    key = MemoryKey("ada", "kyoto")
    asyncio.run(fill_text(url, {key: samples.entries(30)}))
    asyncio.run(fill_text(str(folder), {key: []}, summary="before"))
    [state] = folder.iterdir()
    before = state.read_bytes()
    marks = "SELECT count(*) FROM message_mark WHERE mark = 'compressed'"
    marked = servers.postgresql.execute(url, marks)
    words = ("--all", "--mode", "mark", "--keep-recent", "2")
    assert run("compress", f"{url}?state={folder}", *words).exit_code == 0
    after = state.read_bytes()
    assert before != after
    written = url.replace("127.0.0.1", "localhost").replace("postgresql://", "postgres://")
    undone = run("undo", "--store", written, "--yes")
    assert undone.exit_code == 0, undone.stderr
    assert servers.postgresql.execute(url, marks) == marked
    assert state.read_bytes() == before
    redo = report(run("history", written, "--json"))["runs"][0]["run"]
    assert run("undo", redo, "--store", written, "--yes").exit_code == 0
    assert state.read_bytes() == after
