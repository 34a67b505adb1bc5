"""``memctl hold``: held memories stay, whoever deletes, and the report says so."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import resource
import sqlite3
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from typer import Context
from typer.main import get_command

from memctl import (
    CopyOptions,
    Hold,
    HoldSource,
    OnConflict,
    OpenMode,
    RunOptions,
    Selection,
    UsageError,
)
from memctl.api import compress, copy, delete, erase, open_store
from memctl.cli import COMMANDS, app
from memctl.errors import BadData
from memctl.machine.system import user_name
from memctl.model import MemoryKey
from memctl.ops.compress.plan import CompressMode, CompressOptions
from memctl.registry import make_store
from memctl.testing import Place, samples
from memctl.testing.samples import sample
from memctl.testing.suite.erase import texts
from tests.commands.test_asking import Session
from tests.support.cli import Run, contents, fails, fill, report
from tests.support.compressing import CODES
from tests.support.places import append, held, put, quarantined, runs_kept
from tests.support.processes import start

KYOTO, BERLIN = MemoryKey("quokka", "kyoto"), MemoryKey("quokka", "berlin")
ROME = MemoryKey("bob", "rome")
ENTRIES = 8
UNTIL = date.today() + timedelta(days=200)
SAID = f"held: case 17, until {UNTIL}"
STORES = ["sqlite", "postgresql", "redis", "sqlite-agentscope2", "redis-agentscope2", "archive"]


def record() -> Path:
    """Return the record of the holds."""
    return Path(os.environ["XDG_STATE_HOME"]) / "memctl" / "holds.ndjson"


def hold(run: Run, *words: object) -> dict[str, Any]:
    """Add a hold for case 17, and return its row."""
    words = (*words, "--reason", "case 17", "--until", UNTIL, "--json")
    added: dict[str, Any] = report(run("hold", "add", *words))["added"]
    return added


def rows(run: Run, *words: object) -> list[dict[str, Any]]:
    """Return the rows of ``hold list``."""
    found: list[dict[str, Any]] = report(run("hold", "list", *words, "--json"))["holds"]
    return found


def left(found: dict[str, Any]) -> set[tuple[str, str, str, str]]:
    """Return the failures of a report: user, session, code and message."""
    return {(row["user"], row["session"], row["code"], row["message"]) for row in found["failures"]}


KYOTO_IS_HELD = {("quokka", "kyoto", "held", SAID)}


@pytest.fixture(params=STORES)
def place(request: pytest.FixtureRequest, one: Callable[[str], Place]) -> Iterator[Place]:
    """A place of each store in turn, with two memories of quokka and one of bob."""
    place = one(request.param)
    samples.use(place.backend.style)
    put(place, [sample(key, samples.entries(ENTRIES)) for key in (KYOTO, BERLIN, ROME)])
    yield place
    samples.use(samples.Style())


@pytest.fixture
def store(database: str) -> str:
    """A SQLite database with two memories of quokka and one of bob."""
    asyncio.run(fill(database, dict.fromkeys((KYOTO, BERLIN, ROME), samples.entries(ENTRIES))))
    return database


# The commands


def test_hold_is_added_listed_and_removed(run: Run) -> None:
    assert rows(run) == []
    assert "There are no holds." in run("hold", "list").stdout
    added = hold(run, "--user", "quokka", "--session", "kyoto")
    assert (added["state"], added["source"], added["by"]) == ("in-force", "state", user_name())
    assert rows(run) == [added]
    assert stat.S_IMODE(record().stat().st_mode) == 0o600
    table = run("hold", "list").stdout
    for text in (added["id"], "quokka", "kyoto", "case 17", str(UNTIL), user_name()):
        assert text in table
    before = record().read_bytes()
    fails(run("hold", "remove", added["id"]), 2, "not a terminal")
    fails(run("hold", "remove", "0000", "--yes"), 4, "no hold '0000'")
    said = run("hold", "remove", added["id"], "--reason", "closed", "--yes")
    assert said.stdout == f"Hold {added['id']} removed.\n"
    assert rows(run) == []
    [row] = rows(run, "--all")
    assert (row["state"], row["removed_by"], row["removed_reason"]) == (
        *("removed", user_name(), "closed"),
    )
    assert record().read_bytes().startswith(before), "nothing of the record is ever lost"
    fails(run("hold", "remove", added["id"], "--yes"), 4, "was removed by")
    assert "removed" in run("hold", "list", "--all").stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--reason", "x"), "names no user, session or store"),
        (("--user", "quokka"), "--reason"),
        (("--user", "quokka", "--reason", " "), "--reason is empty"),
        (("--user", "quokka", "--reason", "x" * 1001), "1,001 characters"),
        (("--user", "quokka", "--reason", "\udcff"), "not valid text"),
        (("--user", "\udcff", "--reason", "x"), "not valid text"),
        (("--user", "quokka", "--reason", "x", "--until", "2020-01-01"), "2020-01-01 is over"),
        (("--user", "quokka", "--reason", "x", "--until", "soon"), "'soon' is not a date"),
        (("--store", "prod", "--reason", "x"), "no store named 'prod'"),
        (("--store", "-", "--reason", "x"), "stdin cannot be held"),
    ],
)
def test_hold_that_is_not_valid(run: Run, words: tuple[str, ...], said: str) -> None:
    fails(run("hold", "add", *words), 2, said)
    assert not record().exists()


def test_hold_on_a_file_that_does_not_exist(run: Run, tmp_path: Path) -> None:
    none = tmp_path / "none.db"
    fails(run("hold", "add", "--store", none, "--reason", "x"), 4, "none.db does not exist")


def test_hold_asks_before_it_is_removed(run: Run) -> None:
    added = hold(run, "--user", "quokka")
    for answer, code in (("n\n", 130), ("y\n", 0)):
        session = Session("hold", "remove", added["id"])
        session.until("[y/N] ")
        assert "case 17" in session.said
        session.types(answer)
        assert session.ends() == code
        assert len(rows(run)) == (1 if code else 0)


def test_hold_reason_is_data(run: Run, store: str) -> None:
    reason = "case\n17 \x1b[31m[bold]red[/bold]\u202e " + "x" * 900
    words = ("--user", "quokka", "--reason", reason, "--json")
    assert report(run("hold", "add", *words))["added"]["reason"] == reason
    for words in (
        ("hold", "list"),
        ("delete", store, "--user", "quokka", "--yes"),
        ("erase", store, "--user", "quokka", "--yes"),
    ):
        said = run(*words)
        for text in (said.stdout, said.stderr):
            assert "\x1b" not in text
            assert "\u202e" not in text
        assert r"case\n17 \x1b[31m[bold]red[/bold]" in said.stdout + said.stderr
        assert said.stderr.count("memctl: error:") == (words[0] != "hold")


def test_two_holds_at_once(run: Run) -> None:
    def add(number: int) -> int:
        words = ("hold", "add", "--user", f"user{number}", "--reason", f"case {number}")
        process = start(*words)
        process.communicate()
        return process.returncode

    with ThreadPoolExecutor(6) as several:
        assert set(several.map(add, range(12))) == {0}
    assert {row["user"] for row in rows(run)} == {f"user{n}" for n in range(12)}
    assert len({row["id"] for row in rows(run)}) == 12


@pytest.mark.slow
def test_hold_and_a_full_disk(run: Run) -> None:
    hold(run, "--user", "quokka")
    before = record().read_bytes()

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, len(before) + 20))

    words = ("hold", "add", "--user", "bob", "--reason", "case 18")
    process = start(*words, preexec_fn=limit)
    said, errors = process.communicate()
    assert (process.returncode, said) == (3, ""), errors
    assert errors.count("memctl: error:") == 1
    assert "File too large" in errors
    assert record().read_bytes() == before
    assert [row["user"] for row in rows(run)] == ["quokka"]


# Holds of the configuration


@pytest.mark.slow
def test_holds_of_the_configuration(run: Run, store: str, write: Path) -> None:
    write.write_text(
        f'[stores.prod]\nurl = "{store}"\n'
        f'[[hold]]\nuser = "quokka"\nsession = "kyoto"\nreason = "case 17"\nuntil = {UNTIL}\n'
        '[[hold]]\nstore = "prod"\nsession = "rome"\nreason = "audit"\n'
    )
    one, other = rows(run)
    assert (one["user"], one["until"], one["source"]) == ("quokka", str(UNTIL), "configuration")
    assert (other["store"], other["file"], other["by"]) == ("prod", str(write), None)
    assert "configuration" in run("hold", "list").stdout
    fails(run("hold", "remove", one["id"], "--yes"), 2, f"remove it from {write}")
    found = report(run("delete", store, "--all", "--yes", "--json"), 7)
    assert left(found) == KYOTO_IS_HELD | {("bob", "rome", "held", "held: audit")}
    shown = report(run("config", "show", "--json"))["settings"]
    assert ("hold 2.store", "prod") in [(row["key"], row["value"]) for row in shown]
    assert run("config", "check").exit_code == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('reason = "x"', "hold 1 names no user, session or store"),
        ('user = "quokka"', "hold 1 has no reason"),
        ('user = "quokka"\nreason = "x"\nuntill = "2027-06-30"', "did you mean 'until'"),
        ('user = "quokka"\nreason = "x"\nuntil = "soon"', "hold 1.until must be a date"),
        (
            'user = "quokka"\nreason = "x"\nuntil = 2027-06-30T10:00:00',
            "hold 1.until must be a date",
        ),
        ('user = 1\nreason = "x"', "hold 1.user must be a text"),
        ('store = "prood"\nreason = "x"', "did you mean 'prod'"),
        ('store = "@all"\nreason = "x"', "@all is a fleet"),
    ],
)
def test_hold_of_the_configuration_that_is_not_valid(
    run: Run, store: str, write: Path, text: str, said: str
) -> None:
    about = f'[stores.prod]\nurl = "{store}"\n[fleets.all]\nstores = ["prod"]\n'
    write.write_text(f"{about}[[hold]]\n{text}\n")
    before = contents(store)
    for words in (
        ("delete", store, "--all", "--yes"),
        ("erase", store, "--user", "quokka", "--yes"),
        ("compress", store, "--all", "--mode", "replace", "--yes"),
        ("hold", "list"),
        ("config", "check"),
    ):
        fails(run(*words), 2, said)
    assert contents(store) == before
    assert run("mark", "add", store, "seen", "--user", "quokka").exit_code == 0
    assert run("undo", "--yes").exit_code == 0
    assert run("export", store, "-o", write.with_name("a.ndjson")).exit_code == 0


def test_hold_that_has_ended_is_a_notice(run: Run, store: str, write: Path) -> None:
    ended = date.today() - timedelta(days=1)
    write.write_text(
        f'[[hold]]\nuser = "quokka"\nreason = "case 17"\nuntil = "{ended}"\n'
        '[[hold]]\nuser = "bob"\nreason = "case 16"\nuntil = "2020-01-01"\n'
    )
    assert rows(run) == []
    assert [row["state"] for row in rows(run, "--all")] == ["ended", "ended"]
    said = run("delete", store, "--user", "quokka", "--yes")
    assert said.exit_code == 0
    assert said.stderr.count("2 holds ended") == 1
    assert f"the last on {ended} (case 17)" in said.stderr
    assert [key for key, entries in contents(store).items() if entries] == [ROME]


def test_last_day_of_a_hold(run: Run, store: str) -> None:
    words = ("--user", "quokka", "--reason", "case 17", "--until", date.today())
    assert run("hold", "add", *words).exit_code == 0
    assert run("delete", store, "--user", "quokka", "--yes").exit_code == 9


# Enforcement


@pytest.mark.slow
def test_delete_leaves_held_memories(run: Run, place: Place) -> None:
    hold(run, "--user", "quokka", "--session", "kyoto")
    before = held(place)
    words = ("delete", place.text, "--all", "--json")
    dry = report(run(*words, "--dry-run"), 7)
    assert left(dry) == KYOTO_IS_HELD
    assert {(row["user"], row["session"]) for row in dry["plan"]} == {BERLIN[:2], ROME[:2]}
    assert held(place) == before
    done = report(run(*words, "--yes"), 7)
    assert left(done) == KYOTO_IS_HELD
    assert done["memories"] == {"selected": 2, "written": 2, "failed": 1}
    assert held(place) == {KYOTO: before[KYOTO]}
    only = report(run("delete", place.text, "--session", "kyoto", "--yes", "--json"), 9)
    assert left(only) == KYOTO_IS_HELD
    assert only["error"]["code"] == "loss"
    assert SAID in only["error"]["message"]
    assert report(run(*words, "--dry-run"), 9)["failures"] == only["failures"]
    assert len(runs_kept()) == 1, "nothing was done, so there is nothing to undo"
    hold(run, "--session", "berlin")
    undone = run("undo", "--store", place.text, "--yes")
    assert undone.exit_code == 0, "undo is not hindered"
    assert held(place) == before


def test_delete_tells_of_held_memories(run: Run, store: str) -> None:
    hold(run, "--user", "quokka", "--session", "kyoto")
    said = run("delete", store, "--user", "quokka", "--yes")
    assert f"'quokka'/'kyoto'  {SAID}" in said.stdout
    fails(said, 7, f"1 memory could not be changed; the first: 'quokka'/'kyoto': {SAID}")
    fails(run("delete", store, "--user", "quokka", "--yes"), 9, "list the holds with: memctl hold")


def test_delete_that_selects_nothing_of_a_held_memory(run: Run, store: str) -> None:
    hold(run, "--user", "quokka")
    assert run("delete", store, "--mark", "none", "--yes").exit_code == 0
    assert run("delete", store, "--user", "bob", "--yes").exit_code == 0


@pytest.mark.slow
def test_marks_of_held_memories_are_not_hindered(run: Run, store: str) -> None:
    hold(run, "--user", "quokka")
    assert run("mark", "add", store, "seen", "--user", "quokka").exit_code == 0
    assert run("mark", "remove", store, "seen", "--user", "quokka").exit_code == 0
    assert run("undo", "--yes").exit_code == 0
    for words in (("inspect", store), ("export", store, "-o", "-"), ("search", store, "message")):
        assert run(*words).exit_code == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sqlite", "postgresql", "redis", "archive"])
def test_compress_spends_nothing_on_held_memories(
    run: Run, one: Callable[[str], Place], name: str, write: Path
) -> None:
    calls = write.with_name("calls")
    write.write_text(CODES.replace("grep -o", f"tee -a {calls} | grep -o"))
    place = one(name)
    keys = (KYOTO, BERLIN, ROME)
    for key in keys:
        said = [samples.entry(f"m{n}", n, content=f"{key.session} CODE{n}") for n in range(ENTRIES)]
        put(place, [sample(key, said)])
    hold(run, "--session", "kyoto")
    before = held(place)
    words = ("compress", place.text, "--all", "--summarizer", "codes", "--mode", "replace")
    dry = report(run(*words, "--dry-run", "--json"), 7)
    assert left(dry) == KYOTO_IS_HELD
    assert held(place) == before
    done = report(run(*words, "--yes", "--json"), 7)
    assert left(done) == KYOTO_IS_HELD
    assert done["memories"]["written"] == 2
    after = held(place)
    assert after[KYOTO] == before[KYOTO]
    assert len(after[ROME][2]) < ENTRIES
    assert "kyoto" not in calls.read_text()
    assert "rome" in calls.read_text()
    words = ("compress", place.text, "--session", "kyoto", *words[3:])
    assert left(report(run(*words, "--yes", "--json"), 9)) == KYOTO_IS_HELD
    asked = Session(*words)
    assert asked.ends() == 9
    assert "[y/N]" not in asked.said
    assert "kyoto" not in calls.read_text()


def test_compress_that_deletes_nothing_is_not_hindered(run: Run, store: str) -> None:
    hold(run, "--user", "quokka")
    words = ("compress", store, "--user", "quokka", "--mode", "message")
    assert run(*words).exit_code == 0
    found = report(run(*words, "--keep-recent", "1", "--json"), 9)
    assert {row["code"] for row in found["failures"]} == {"held"}, "the first summary would go"


@pytest.mark.slow
def test_copy_replaces_no_held_memory(run: Run, place: Place, tmp_path: Path) -> None:
    samples.use(samples.Style())
    source = f"{tmp_path}/source.ndjson"
    changed = samples.entries(3, 20)
    if "agentscope2" in place.backend.name:
        assert run("migrate", place.text, source).exit_code == 0
        for key in (KYOTO, BERLIN, ROME):
            words = ("--user", key.user, "--session", key.session, "--last", "1", "--yes")
            assert run("delete", source, *words, "--no-backup").exit_code == 0
    else:
        asyncio.run(fill(source, dict.fromkeys((KYOTO, BERLIN, ROME), changed)))
    hold(run, "--user", "quokka", "--session", "kyoto")
    before = held(place)
    words = ("migrate", source, place.text, "--on-conflict", "replace", "--json")
    assert left(report(run(*words, "--dry-run"), 7)) == KYOTO_IS_HELD
    assert held(place) == before
    done = report(run(*words, "--yes"), 7)
    assert left(done) == KYOTO_IS_HELD
    assert done["memories"]["written"] == 2
    after = held(place)
    assert after[KYOTO] == before[KYOTO]
    assert {len(after[key][2]) for key in (BERLIN, ROME)} == {len(contents(source)[ROME])}
    chosen = ("--user", "quokka", "--session", "kyoto")
    assert left(report(run(*words, *chosen, "--yes"), 9)) == KYOTO_IS_HELD
    asked = Session("migrate", source, place.text, "--on-conflict", "replace", *chosen)
    assert asked.ends() == 9
    assert "[y/N]" not in asked.said
    loaded = ("import", source, place.text, "--on-conflict", "replace", *chosen, "--yes", "--json")
    assert left(report(run(*loaded), 9)) == KYOTO_IS_HELD
    assert held(place) == after
    added = hold(run, "--session", "berlin")
    undone = report(run("undo", "--store", place.text, "--yes", "--json"), 7)
    assert left(undone) == {("quokka", "berlin", "held", SAID)}
    assert held(place) == before | {BERLIN: after[BERLIN]}
    assert run("hold", "remove", added["id"], "--yes").exit_code == 0
    assert run("undo", done["run"], "--store", place.text).exit_code == 0
    assert held(place) == before


def test_copy_appends_to_a_held_memory(run: Run, store: str, tmp_path: Path) -> None:
    source = f"{tmp_path}/source.ndjson"
    asyncio.run(fill(source, {KYOTO: samples.entries(ENTRIES + 2)}))
    hold(run, "--user", "quokka")
    words = ("migrate", source, store, "--on-conflict", "replace", "--yes")
    assert run(*words).exit_code == 0
    assert len(contents(store)[KYOTO]) == ENTRIES + 2


@pytest.mark.slow
def test_export_replaces_no_held_memory_of_a_folder(run: Run, store: str, tmp_path: Path) -> None:
    folder = f"{tmp_path}/states/"
    words = ("export", store, "--as", "session-dir", "-o", folder, "--user", "quokka")
    assert run(*words).exit_code == 0
    before = contents(folder)
    assert run("delete", store, "--user", "quokka", "--last", "1", "--yes").exit_code == 0
    hold(run, "--store", folder)
    assert run(*words, "--force").exit_code == 9
    assert contents(folder) == before


@pytest.mark.slow
def test_erase_leaves_held_sessions(run: Run, place: Place, tmp_path: Path) -> None:
    chosen = ("--user", "quokka", "--last", "1")
    both = report(run("delete", place.text, *chosen, "--yes", "--json"))["run"]
    berlin = ("--user", "quokka", "--session", "berlin", "--last", "1")
    alone = report(run("delete", place.text, *berlin, "--yes", "--json"))["run"]
    hold(run, "--user", "quokka", "--session", "kyoto")
    before = held(place)
    words = ("erase", "--user", "quokka", place.text, "--json")
    dry = report(run(*words, "--dry-run"), 7)
    assert left(dry) == KYOTO_IS_HELD
    assert [row["session"] for row in dry["stores"][0]["memories"]] == ["berlin"]
    assert held(place) == before
    receipt = tmp_path / "receipt.json"
    done = report(run(*words, "--yes", "--receipt", receipt), 7)
    assert left(done) == KYOTO_IS_HELD
    [erased] = done["stores"]
    assert (erased["state"], erased["memories"]) == ("partial", dry["stores"][0]["memories"])
    assert erased["runs"] == {"removed": [alone], "rewritten": [both]}
    assert held(place) == {key: one for key, one in before.items() if key != BERLIN}
    assert "berlin" not in texts(place.dump())

    noted = json.loads(receipt.read_text())
    assert noted["complete"] is False
    assert noted["stores"][0]["failures"] == ["held"]
    assert len(noted["stores"][0]["held"]) == 1
    checked = run("verify", "--receipt", receipt, place.text)
    assert checked.exit_code == 0, "it is as the receipt says"
    assert "1 memory left by the erase as held" in checked.stderr
    put(place, [sample(BERLIN, samples.entries(1))])
    fails(run("verify", "--receipt", receipt, place.text), 6, "1 trace of the erased data")
    again = ("--user", "quokka", "--session", "berlin", place.text, "--yes")
    assert run("erase", *again).exit_code == 0

    assert left(report(run(*words, "--yes"), 9)) == KYOTO_IS_HELD
    undone = run("undo", both, "--store", place.text, "--yes")
    assert undone.exit_code == 0, "its undo run is still there"
    assert len(held(place)[KYOTO][2]) == ENTRIES

    [row] = rows(run)
    assert run("hold", "remove", row["id"], "--yes").exit_code == 0
    assert run(*words, "--yes").exit_code == 0
    assert list(held(place)) == [ROME]
    assert "quokka" not in texts(place.dump())


def test_erase_of_a_user_who_is_held(run: Run, place: Place, tmp_path: Path) -> None:
    assert run("delete", place.text, "--user", "quokka", "--last", "1", "--yes").exit_code == 0
    hold(run, "--user", "quokka")
    before, kept = held(place), sorted(path.name for path in runs_kept())
    receipt = tmp_path / "receipt.json"
    words = ("erase", "--user", "quokka", place.text, "--json")
    for more in (("--dry-run",), ("--yes", "--receipt", receipt)):
        found = report(run(*words, *more), 9)
        assert left(found) == {("quokka", one, "held", SAID) for one in ("berlin", "kyoto")}
    asked = Session("erase", "--user", "quokka", place.text)
    assert asked.ends() == 9
    assert "cannot be undone" not in asked.said
    assert held(place) == before
    assert sorted(path.name for path in runs_kept()) == kept
    assert not receipt.exists()
    assert run("undo", "--store", place.text, "--yes").exit_code == 0


def test_erase_from_an_archive_that_is_held(run: Run, store: str, tmp_path: Path) -> None:
    archive = tmp_path / "a.ndjson.zst"
    assert run("export", store, "-o", archive).exit_code == 0
    hold(run, "--store", archive)
    before = archive.read_bytes()
    words = ("erase", "--user", "quokka", store, "--archives", archive, "--yes", "--json")
    found = report(run(*words), 7)
    assert [one["state"] for one in found["stores"]] == ["erased", "failed"]
    assert archive.read_bytes() == before
    assert list(contents(store)) == [ROME]


# Whatever removes

REPLACED = ("--on-conflict", "replace")


class Removal:
    """An operation that removes or replaces something, on a store that is held afterwards."""

    def __init__(self, run: Run, place: Place, folder: Path, key: MemoryKey) -> None:
        self._run, self._place, self._folder, self._key = run, place, folder, key

    def _ready(self, *words: object) -> Any:
        """Run a command that must succeed, and return its report."""
        return report(self._run(*words, "--json"))

    def _archive(self, shorter: int = 1) -> Path:
        """Return an archive of the store, whose memories lack their last messages."""
        path = self._folder / "source.ndjson"
        self._ready("export", self._place.text, "-o", path)
        self._ready("delete", path, "--last", shorter, "--yes", "--no-backup")
        return path

    def _policy(self, action: str) -> list[object]:
        """Return the words of a retention with one policy."""
        path = self._folder / "config.toml"
        policy = {"name": "p", "store": "prod", "action": action}
        policy["select"] = {"last": 2} if action == "delete" else {"older_than": "1h"}
        more = f"archive = {json.dumps(f'{self._folder}/p-{{date}}.ndjson')}"
        lines = [f"{key} = {_toml(value)}" for key, value in policy.items()]
        url = f"[stores.prod]\nurl = {json.dumps(self._place.text)}"
        path.write_text("\n".join([url, "[[retention]]", *lines, more, ""]))
        return ["--config", path, "retain", "--yes"]

    def delete(self) -> list[object]:
        return ["delete", self._place.text, "--all", "--yes"]

    def erase(self) -> list[object]:
        return ["erase", "--user", self._key.user, self._place.text, "--yes"]

    def redact(self) -> list[object]:
        return ["redact", self._place.text, "--match", "message 1", "--yes"]

    def retain_delete(self) -> list[object]:
        return self._policy("delete")

    def retain_erase(self) -> list[object]:
        return self._policy("erase")

    def compress(self) -> list[object]:
        return ["compress", self._place.text, "--all", "--mode", "replace", "--yes"]

    def compress_again(self) -> list[object]:
        self._ready("compress", self._place.text, "--all", "--keep-recent", 4)
        return ["compress", self._place.text, "--all", "--keep-recent", 1]

    def import_replace(self) -> list[object]:
        return ["import", self._archive(), self._place.text, *REPLACED, "--yes"]

    def migrate_replace(self) -> list[object]:
        return ["migrate", self._archive(), self._place.text, *REPLACED, "--yes"]

    def undo_import(self) -> list[object]:
        path = self._archive(2)
        self._ready("delete", self._place.text, "--all", "--yes")
        return self._undo("import", path, self._place.text)

    def undo_replace(self) -> list[object]:
        return self._undo("import", self._archive(), self._place.text, *REPLACED, "--yes")

    def undo_undo(self) -> list[object]:
        self._ready("delete", self._place.text, "--last", 2, "--yes")
        return self._undo("undo", "--store", self._place.text, "--yes")

    def offload(self) -> list[object]:
        self._large()
        return ["offload", self._place.text, "--to", self._folder / "blobs", "--yes"]

    def undo_offload(self) -> list[object]:
        return self._undo(*self.offload())

    def rehydrate(self) -> list[object]:
        self._ready(*self.offload())
        return ["rehydrate", self._place.text, "--from", self._folder / "blobs"]

    def doctor(self) -> list[object]:
        self._run("doctor", self._place.text, "--repair", "--yes")
        append(self._place, self._key, samples.entries(5, 80))  # with new hints to delete
        return ["doctor", self._place.text, "--repair", "--yes"]

    def restore(self) -> list[object]:
        archive = self._folder / "night.ndjson"
        self._run("export", self._place.text, "-o", archive)
        some = ("--session", self._key.session, "--last", 1)
        self._run("delete", self._place.text, *some, "--yes", "--no-backup")
        append(self._place, self._key, samples.entries(2, 80))
        return ["restore", archive, self._place.text, "--yes"]

    def export(self) -> list[object]:
        other = self._folder / "source.db"
        self._ready("migrate", self._place.text, other)
        self._ready("delete", other, "--last", 1, "--yes", "--no-backup")
        return ["export", other, "--as", "session-dir", "-o", self._place.text, "--force"]

    def _undo(self, *words: object) -> list[object]:
        """Run a command, and return the words of its undo."""
        return ["undo", self._ready(*words)["run"], "--store", self._place.text]

    def _large(self) -> None:
        data = base64.b64encode(bytes(99_999)).decode()
        source = {"type": "base64", "media_type": "image/png", "data": data}
        self._append({"type": "image", "source": source})

    def _append(self, block: dict[str, Any]) -> None:
        append(self._place, self._key, [samples.entry("m99", 99, content=[block])])


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(one)}" for key, one in value.items()) + "}"
    return json.dumps(value)


REMOVALS = sorted(name for name in vars(Removal) if name[0] != "_")
OF_MESSAGES = {"compress", "compress_again", "offload", "undo_offload", "rehydrate", "restore"}
"""The removals that do not fit facts, nor rows of other frameworks, as the samples have them."""
TRIED = [
    (name, removal)
    for name in [*STORES, "sessions", "postgresql-openai-agents", "mem0-qdrant", "vault"]
    for removal in REMOVALS
    if (removal != "export" or name == "sessions")
    and (removal != "redact" or name != "mem0-qdrant")
    and (removal != "doctor" or name in ("sqlite", "postgresql", "redis", "archive", "sessions"))
    and (removal not in ("erase", "retain_erase") or name != "postgresql-openai-agents")
    and (removal not in OF_MESSAGES or name in (*STORES[:3], "archive", "sessions"))
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "removal"), TRIED)
def test_held_memories_stay_byte_for_byte(
    run: Run, one: Callable[[str], Place], tmp_path: Path, name: str, removal: str
) -> None:
    place = one(name)
    samples.use(place.backend.style)
    try:
        keys = [place.backend.keys(number) for number in range(3)]
        put(place, [sample(key, samples.entries(ENTRIES, 20 * n)) for n, key in enumerate(keys)])
        words = getattr(Removal(run, place, tmp_path, keys[0]), removal)()
    finally:
        samples.use(samples.Style())
    for user, session, _ in keys:
        hold(run, *(("--user", user) if user else ()), "--session", session)
    before = place.dump()
    done = run(*words)
    codes = (0,) if removal.startswith("retain") else (7, 9)
    assert done.exit_code in codes, (done.stdout, done.stderr)
    assert "held: case 17" in done.stdout + done.stderr
    assert place.dump() == before


def test_every_command_that_changes_a_store_is_tried_on_held_memories() -> None:
    root: Any = get_command(app)
    context = Context(root)
    commands = {name: root.get_command(context, name) for name in COMMANDS}
    changing = {
        name
        for name, command in commands.items()
        if any(one.name == "dry_run" for one in command.params)
    }
    follows = {"rename"}  # tests/commands/test_rename_holds.py
    assert {name.partition("_")[0] for name in REMOVALS} == changing - follows


def test_ids_of_a_held_memory_are_not_moved(run: Run, client: redis.Redis, redis_url: str) -> None:
    asyncio.run(fill(redis_url, dict.fromkeys((KYOTO, ROME), samples.entries(ENTRIES))))
    for user, session, _ in (KYOTO, ROME):
        client.delete(f"user_id:{user}:session:{session}:msg:m0000001")
    added = hold(run, "--user", "quokka")
    words = ("doctor", redis_url, "id-without-payload", "--repair", "--json")
    for more in ("--dry-run", "--yes"):
        found = report(run(*words, more), 7)
        assert left(found) == KYOTO_IS_HELD
        assert [one["count"] for one in found["repaired"]] == [1]
    assert "rome" in quarantined(found["quarantine"])
    assert "kyoto" not in quarantined(found["quarantine"])
    assert left(report(run(*words, "--yes"), 9)) == KYOTO_IS_HELD
    assert run("hold", "remove", added["id"], "--yes").exit_code == 0
    assert report(run(*words, "--yes"))["repaired"]


def test_undo_of_a_repair_that_any_memory_may_have(run: Run, store: str, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "agents.db")) as database, database:
        database.execute("UPDATE message SET \"index\" = 0 WHERE session_id = 'kyoto'")
    assert run("doctor", store, "--repair", "--ignore", "leftover-hint", "--yes").exit_code == 0
    repaired = contents(store)
    hold(run, "--user", "quokka")
    assert run("undo", "--yes").exit_code == 9
    assert contents(store) == repaired


def test_held_archive_is_not_replaced_and_not_rotated_away(
    run: Run, store: str, tmp_path: Path
) -> None:
    archive = tmp_path / "a.ndjson"
    assert run("export", store, "-o", archive).exit_code == 0
    hold(run, "--store", archive)
    before = archive.read_bytes()
    fails(run("export", store, "-o", archive, "--force"), 9, SAID, "hold list")
    assert archive.read_bytes() == before
    words = ("export", store, "-o", tmp_path / "n.ndjson", "--rotate", "last:1", "--json")
    first = report(run(*words))["file"]
    hold(run, "--store", first)
    said = run(*words)
    assert report(said)["removed"] == []
    assert f"{first} is kept: {SAID}" in said.stderr
    assert Path(first).exists()


# Which store


def test_hold_on_a_store_by_a_hard_link(run: Run, store: str, tmp_path: Path) -> None:
    (tmp_path / "other.db").hardlink_to(tmp_path / "agents.db")
    hold(run, "--store", store)
    assert run("delete", tmp_path / "other.db", "--all", "--yes").exit_code == 9


def test_hold_on_a_name_in_another_form_of_unicode(run: Run, database: str) -> None:
    composed, decomposed = "Zo\u00eb", "Zoe\u0308"
    asyncio.run(fill(database, {MemoryKey(decomposed, composed): samples.entries(3)}))
    for user, session in ((composed, None), (None, decomposed)):
        added = hold(run, *(("--user", user) if user else ("--session", session)))
        assert run("delete", database, "--all", "--yes").exit_code == 9
        assert run("hold", "remove", added["id"], "--yes").exit_code == 0


def test_hold_on_a_user_who_is_nowhere_is_noted(
    run: Run, store: str, tmp_path: Path, write: Path
) -> None:
    write.write_text(f'[stores.prod]\nurl = "{store}"\n[stores.gone]\nurl = "{tmp_path}/gone.db"\n')
    said = run("hold", "add", "--user", "quoka", "--reason", "case 17")
    assert said.exit_code == 0
    assert "agents.db has no memory of 'quoka': did you mean 'quokka'?" in said.stderr
    assert "gone was not asked" in said.stderr
    said = run("hold", "add", "--user", "quokka", "--reason", "case 17")
    assert "no memory" not in said.stderr
    said = run("hold", "add", "--session", "oslo", "--store", store, "--reason", "case 17")
    assert "has no memory of 'oslo'" in said.stderr


@pytest.mark.slow
def test_hold_on_one_store(run: Run, store: str, tmp_path: Path, write: Path) -> None:
    link, other = tmp_path / "link.db", tmp_path / "other.db"
    asyncio.run(fill(str(other), {KYOTO: samples.entries(3)}))
    link.symlink_to(tmp_path / "agents.db")
    write.write_text(f'[stores.prod]\nurl = "{store}"\n')
    added = hold(run, "--store", "prod", "--user", "quokka")
    assert added["store"] == "prod"
    for name in ("prod", store, tmp_path / "agents.db", link):
        assert run("delete", name, "--user", "quokka", "--yes").exit_code == 9, name
    write.write_text(f'[stores.prod]\nurl = "{other}"\n')
    for name in (store, "prod"):
        assert run("delete", name, "--user", "quokka", "--yes").exit_code == 9, "both are held"
    write.write_text("")
    assert run("delete", store, "--user", "quokka", "--yes").exit_code == 9
    assert run("delete", other, "--user", "quokka", "--yes").exit_code == 0


def test_hold_on_a_store_by_a_url_with_a_password(run: Run, postgresql_url: str) -> None:
    asyncio.run(fill(postgresql_url, {KYOTO: samples.entries(3)}))
    secret = postgresql_url.partition("://")[2].partition("@")[0].partition(":")[2]
    added = hold(run, "--store", postgresql_url)
    assert secret not in added["store"]
    assert secret not in record().read_text()
    for url in (postgresql_url, postgresql_url.replace("127.0.0.1", "localhost")):
        assert run("delete", url, "--all", "--yes").exit_code == 9
    assert secret not in run("hold", "list").stdout


def test_hold_on_a_name_that_a_file_writes_in_several_ways(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "states"
    asyncio.run(fill(f"{folder}/", {MemoryKey("a", "b_c"): samples.entries(3)}))
    assert (folder / "a_b_c.json").exists()
    hold(run, "--user", "a_b", "--session", "c")
    assert run("delete", f"{folder}/", "--user", "a", "--yes").exit_code == 9


@pytest.mark.parametrize("prefix", ["", "agentscope2:"])
def test_hold_on_a_folder_holds_its_files(run: Run, tmp_path: Path, prefix: str) -> None:
    folder = tmp_path / "states"
    style = samples.Style("agentscope2", frozenset()) if prefix else samples.Style()
    samples.use(style)
    keys = [MemoryKey("ada", "kyoto"), MemoryKey("bob", "a_b")]
    asyncio.run(fill(f"{prefix}{folder}/", {key: samples.entries(3) for key in keys}))
    samples.use(samples.Style())
    kyoto, ab = (f"{prefix}{folder}/{name}.json" for name in ("ada_kyoto", "bob_a_b"))

    def code(place: str, *words: str) -> int:
        return run("delete", place, "--role", "user", "--dry-run", *words).exit_code

    assert [code(place) for place in (kyoto, ab, f"{prefix}{folder}/")] == [0, 0, 0]
    added = hold(run, "--store", f"{prefix}{folder}/")
    assert [code(place) for place in (kyoto, ab)] == [9, 9]
    run("hold", "remove", added["id"], "--yes")
    added = hold(run, "--store", ab)
    assert [code(place) for place in (kyoto, ab, f"{prefix}{folder}/")] == [0, 9, 7]
    run("hold", "remove", added["id"], "--yes")
    hold(run, "--user", "bob_a", "--session", "b")  # as the name of the file may be read, too
    assert [code(place) for place in (kyoto, ab, f"{prefix}{folder}/")] == [0, 9, 7]
    # The name that the user gives to the memory of a file does not count.
    assert code(ab, "--user", "zoe", "--session", "oslo") == 9


# When


def test_hold_added_while_the_user_ponders(run: Run, place: Place) -> None:
    before = held(place)
    session = Session("delete", place.text, "--user", "quokka")
    session.until("[y/N] ")
    hold(run, "--user", "quokka", "--session", "kyoto")
    session.types("y\n")
    assert session.ends() == 7
    assert SAID in session.said
    assert held(place) == {key: one for key, one in before.items() if key != BERLIN}
    [kept] = report(run("history", "--json"))["runs"]
    assert (kept["memories"], kept["deleted"], kept["outcome"]) == (1, ENTRIES, "partial")
    assert run("undo", "--store", place.text, "--yes").exit_code == 0
    assert held(place) == before


def test_hold_on_all_added_while_the_user_ponders(run: Run, store: str) -> None:
    before = contents(store)
    for words, question in (
        (("delete", store, "--user", "quokka"), "[y/N] "),
        (("compress", store, "--user", "quokka", "--mode", "replace"), "[y/N] "),
        (("erase", store, "--user", "quokka"), "to continue: "),
    ):
        session = Session(*words)
        session.until(question)
        added = hold(run, "--user", "quokka")
        session.types("quokka\n" if words[0] == "erase" else "y\n")
        assert session.ends() == 9, session.said
        assert SAID in session.said
        assert contents(store) == before
        assert not runs_kept()
        assert run("hold", "remove", added["id"], "--yes").exit_code == 0


def test_hold_of_the_configuration_added_while_the_user_ponders(store: str, write: Path) -> None:
    write.write_text("")
    session = Session("delete", store, "--user", "quokka")
    session.until("[y/N] ")
    write.write_text('[[hold]]\nuser = "quokka"\nreason = "case 17"\n')
    session.types("y\n")
    assert session.ends() == 9
    assert len(contents(store)) == 3


# A damaged record


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "zeros", "folder", "link"])
def test_damaged_record_stops_every_deletion(
    run: Run, store: str, tmp_path: Path, damage: str
) -> None:
    hold(run, "--user", "nobody")
    hold(run, "--user", "quokka")
    text = record().read_bytes()
    code, said = 8, "line 2"
    match damage:
        case "cut":
            record().write_bytes(text[:-9])
        case "changed":
            record().write_bytes(text.replace(b'"quokka"', b'"bob"'))
        case "empty":
            record().write_bytes(b"")
            said = "it is empty"
        case "zeros":
            record().write_bytes(text + bytes(4096))
            said = "line 3"
        case "folder":
            record().unlink()
            record().mkdir()
            code, said = 3, "cannot be used"
        case "link":
            record().unlink()
            record().symlink_to(tmp_path / "none")
            code, said = 3, "cannot be used"
    before = contents(store)
    source = f"{tmp_path}/source.ndjson"
    new = MemoryKey("bob", "new")
    asyncio.run(fill(source, dict.fromkeys((KYOTO, new), samples.entries(3, 20))))
    for words in (
        ("delete", store, "--user", "bob", "--yes"),
        ("delete", store, "--user", "bob", "--dry-run"),
        ("compress", store, "--all", "--mode", "replace", "--yes"),
        ("erase", store, "--user", "bob", "--yes"),
        ("migrate", source, store, "--on-conflict", "replace", "--yes"),
        ("hold", "list"),
        ("hold", "add", "--user", "bob", "--reason", "x"),
    ):
        fails(run(*words), code, "holds.ndjson", said)
    assert contents(store) == before
    assert run("mark", "add", store, "seen", "--user", "bob").exit_code == 0
    assert run("undo", "--yes").exit_code == 0


def test_record_damaged_while_the_user_ponders(run: Run, store: str) -> None:
    hold(run, "--user", "nobody")
    session = Session("delete", store, "--user", "quokka")
    session.until("[y/N] ")
    record().write_bytes(record().read_bytes()[:-9])
    session.types("y\n")
    assert session.ends() == 8
    assert len(contents(store)) == 3
    assert not runs_kept()


# Parts of a run


@pytest.mark.slow
@pytest.mark.parametrize("name", ["postgresql", "sessions"])
def test_parts_of_a_run_heed_holds(run: Run, one: Callable[[str], Place], name: str) -> None:
    place = one(name)
    keys = [MemoryKey("quokka", f"s{n}") for n in range(8)]
    put(place, [sample(key, samples.entries(2)) for key in keys])
    for session in ("s1", "s6"):
        hold(run, "--user", "quokka", "--session", session)
    words = ("delete", place.text, "--all", "--shards", "3", "--json")
    for more in (("--dry-run",), ("--yes",)):
        found = report(run(*words, *more), 7)
        assert left(found) == {("quokka", one, "held", SAID) for one in ("s1", "s6")}
        assert found["memories"]["written"] == 6
    assert {key.session for key in held(place)} == {"s1", "s6"}
    for more in (("--dry-run",), ("--yes",)):
        assert len(left(report(run(*words, *more), 9))) == 2
    session = Session(*words[:-1])
    assert session.ends() == 9
    assert "to continue" not in session.said
    assert {key.session for key in held(place)} == {"s1", "s6"}


@pytest.mark.slow
def test_parts_of_a_run_heed_the_configuration(run: Run, postgresql_url: str, write: Path) -> None:
    store = postgresql_url
    asyncio.run(fill(store, dict.fromkeys((KYOTO, BERLIN, ROME), samples.entries(ENTRIES))))
    write.write_text(f'[[hold]]\nuser = "quokka"\nreason = "case 17"\nuntil = {UNTIL}\n')
    found = report(run("delete", store, "--all", "--shards", "2", "--yes", "--json"), 7)
    assert left(found) == {("quokka", one, "held", SAID) for one in ("berlin", "kyoto")}
    assert {key for key, entries in contents(store).items() if entries} == {KYOTO, BERLIN}


# Programs


async def test_programs_leave_held_memories(run: Run, place: Place) -> None:
    hold(run, "--user", "quokka", "--session", "kyoto")
    before = await asyncio.to_thread(held, place)
    async with make_store(place.location, OpenMode.CHANGE) as store:
        done = await delete(store, Selection(users=frozenset({"quokka"})))
    assert [(key[:2], one.code) for key, one in done.failures] == [(KYOTO[:2], "held")]
    assert done.memories == 1
    more = HoldSource([Hold("case 18", user="bob")])
    async with make_store(place.location, OpenMode.CHANGE) as store:
        done = await delete(store, Selection(), run=RunOptions(holds=more))
    assert {one.message for _, one in done.failures} == {SAID, "held: case 18"}
    async with make_store(place.location, OpenMode.CHANGE) as store:
        erased = await erase(store, "bob", run=RunOptions(holds=more))
        assert (erased.memories, erased.receipt) == (0, None)
        assert [one.message for _, one in erased.failures] == ["held: case 18"]
    after = await asyncio.to_thread(held, place)
    assert after == {key: one for key, one in before.items() if key != BERLIN}


async def test_programs_compress_and_copy(run: Run, store: str, tmp_path: Path) -> None:
    hold(run, "--user", "quokka")
    other = f"{tmp_path}/other.ndjson"
    await fill(other, {KYOTO: samples.entries(3, 20)})
    before = await asyncio.to_thread(contents, store)
    options = CompressOptions(CompressMode.REPLACE)
    async with open_store(store, change=True) as opened:
        found = await compress(opened, Selection(users=frozenset({"quokka"})), options=options)
    assert (found.memories, {one.code for _, one in found.failures}) == (0, {"held"})
    copied = await copy(other, store, options=CopyOptions(OnConflict.REPLACE))
    assert [(key, one.code) for key, one in copied.failures] == [(KYOTO, "held")]
    assert await asyncio.to_thread(contents, store) == before


async def test_programs_cannot_lose_holds(store: str) -> None:
    with suppress(FileNotFoundError):
        record().unlink()
    source = HoldSource(Hold("case 17", user=name) for name in ("quokka", "bob"))
    async with open_store(store, change=True) as opened:
        for _ in range(2):
            assert source.read(opened).failure(KYOTO), "a generator is read once"
        record().parent.mkdir(parents=True, exist_ok=True)
        record().write_bytes(b"x")
        with pytest.raises(BadData, match="line 1"):
            source.read(opened)
        record().unlink()
        unknown = HoldSource([Hold("case 17", store="nowhere://x", id="1")])
        with pytest.raises(UsageError, match="on a store that is not known"):
            unknown.read(opened)
    assert len(await asyncio.to_thread(contents, store)) == 3
