"""``memctl history``, and what is kept of runs."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import stat
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from memctl.journal.runs import Run as KeptRun
from memctl.journal.runs import Runs, record_digest
from memctl.model import MemoryKey
from memctl.ops.same_store import is_on
from memctl.registry import parse
from memctl.testing import samples
from tests.support.cli import Run, fails, report
from tests.support.cli import fill as fill_text
from tests.support.places import runs_folder


def test_history_nobody_else_may_read_what_is_kept(run: Run, filled: str) -> None:
    old = os.umask(0)
    try:
        assert run("delete", filled, "--mark", "hint", "--yes").exit_code == 0
    finally:
        os.umask(old)
    found = {
        stat.S_IMODE(path.stat().st_mode) for path in runs_folder().rglob("*") if path.is_file()
    }
    assert found == {0o600}
    for folder in (runs_folder(), *filter(Path.is_dir, runs_folder().iterdir())):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_history_runs_that_begin_at_the_same_moment_have_their_own_ids(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moment = datetime(2026, 11, 24, 19, 54, 4, 872_000, tzinfo=UTC)
    words = iter(["ce", "ce", "ce", "d0"])
    monkeypatch.setattr("memctl.journal.runs.datetime", Mock(now=Mock(return_value=moment)))
    monkeypatch.setattr("memctl.journal.runs.secrets.token_hex", lambda _: next(words))
    first, second = (Runs().begin(KeptRun("", "delete", "agents.db", "a")) for _ in range(2))
    assert [first.run.id, second.run.id] == ["20261124-195404-872ce", "20261124-195404-872d0"]
    second.discard()
    assert [run.id for run in Runs().all()] == [first.run.id]


def test_history_undos_that_lead_in_a_circle_end() -> None:
    """As damaged records may."""
    runs = Runs()
    one, other = (runs.begin(KeptRun("", "undo", "agents.db", "a")) for _ in range(2))
    for journal, undone in ((one, other), (other, one)):
        journal.run.undoes = undone.run.id
        journal.save()
    assert runs.origin(one.run).id in {one.run.id, other.run.id}


@pytest.mark.slow
def test_history_lists_what_can_be_undone(run: Run, filled: str) -> None:
    assert run("history").stdout.strip() == "no runs are kept"
    done = report(run("delete", filled, "--mark", "hint", "--yes", "--json"))
    marked = report(run("mark", "add", "--all", filled, "seen", "--json"))
    assert run("delete", filled, "--mark", "nothing", "--yes").exit_code == 0
    rows = report(run("history", "--json"))["runs"]
    assert [row["run"] for row in rows] == [marked["run"], done["run"]]
    assert rows[1]["deleted"] == done["messages"]["deleted"]
    assert (rows[1]["command"], rows[1]["outcome"]) == ("delete", "done")
    assert rows[1]["bytes"] > 100
    shown = run("history", "--limit", "1").stdout
    assert marked["run"] in shown
    assert done["run"] not in shown
    assert "and 1 more: --limit 0" in shown
    assert "more" not in run("history", "--limit", "0").stdout
    assert run("undo", "--yes").exit_code == 0
    rows = report(run("history", "--json"))["runs"]
    assert rows[1]["undone_by"] == rows[0]["run"]
    assert rows[0]["undoes"] == rows[1]["run"] == marked["run"]
    assert report(run("undo", "--yes", "--json"))["undoes"] == done["run"], "the next one"
    fails(run("undo", "--yes"), 4, "no run can be undone")


@pytest.mark.slow
def test_history_password_is_kept_nowhere(run: Run, postgresql_url: str) -> None:
    secret = postgresql_url.partition("://")[2].partition("@")[0].partition(":")[2]
    assert secret
    assert run("import", samples_file(), postgresql_url, *WHOSE, "--lossy").exit_code == 0
    assert run("delete", postgresql_url, "--role", "user", "--yes").exit_code == 0
    kept = b"".join(path.read_bytes() for path in runs_folder().rglob("run.json"))
    assert secret.encode() not in kept
    fails(run("undo", "--yes"), 3, "name the store with its password", "--store")
    assert run("undo", "--yes", "--store", postgresql_url).exit_code == 0


WHOSE = ("--user", "ada", "--session", "one")


def samples_file() -> Path:
    return Path(__file__).parents[2] / "examples" / "friday.json"


@pytest.mark.slow
def test_history_run_that_is_damaged(run: Run, filled: str) -> None:
    done = report(run("delete", filled, "--mark", "hint", "--yes", "--json"))["run"]
    [path] = runs_folder().rglob("changes-1.ndjson.zst")
    whole = path.read_bytes()
    left = report(run("inspect", filled, "--json"))
    for damaged in (whole[: len(whole) // 2], b"", whole[:-20] + bytes(20)):
        path.write_bytes(damaged)
        fails(run("undo", done), 8, "cut off or damaged")
        assert report(run("inspect", filled, "--json")) == left
    path.unlink()
    fails(run("undo", done), 8, "is incomplete")
    record = path.with_name("run.json")
    record.write_text("{")
    fails(run("undo", done), 8, "damaged")
    fails(run("undo", "2000"), 4, "there is no run '2000'")


def test_history_damaged_record_may_be_the_last(run: Run, filled: str) -> None:
    first, second = (
        report(run("mark", "add", filled, "new", "--user", user, "--json"))["run"]
        for user in ("user0", "user1")
    )
    record = runs_folder() / second / "run.json"
    sealed = json.loads(record.read_bytes())
    whole = {name: value for name, value in sealed.items() if name != "digest"}
    damages: list[dict[str, object]] = [
        {"argument": 5},
        {"options": []},
        {"options": {"path": 5}},
        {"undone_by": {}},
        {"counts": "many"},
        {"counts": {"marked": "x"}},
        {"memories": {}},
        {"number": True},
        sealed | {"undone_by": first},  # which only the digest shows
        sealed | {"digest": 5},
        {"unknown": 1},
    ]
    for damage in damages:
        damaged = whole | damage
        record.write_text(json.dumps({"digest": record_digest(damaged)} | damaged))
        fails(run("undo", "--yes"), 8, second, "may be the last")
        listed = run("history", "--json")
        assert [row["run"] for row in report(listed)["runs"]] == [first]
        assert second in listed.stderr
    record.unlink()
    fails(run("undo", "--yes"), 8, second, "may be the last")
    assert report(run("undo", first, "--yes", "--json"))["undoes"] == first
    shutil.rmtree(record.parent)
    fails(run("undo", "--yes"), 4, "no run can be undone")


@pytest.mark.slow
def test_history_old_runs_go(run: Run, filled: str, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("[undo]\ndays = 10\nbytes = 100000\n")
    names = []
    for name in ("hint", "considered"):
        words = ("--config", config, "delete", filled, "--mark", name, "--yes", "--json")
        names.append(report(run(*words))["run"])
    os.utime(runs_folder() / names[0], (0, 0))
    words = ("--config", config, "mark", "add", "--all", filled, "x", "--json")
    names.append(report(run(*words))["run"])
    kept = [row["run"] for row in report(run("history", "--json"))["runs"]]
    assert kept == [names[2], names[1]]
    config.write_text("[undo]\nbytes = 1\n")
    last = report(run("--config", config, "mark", "remove", filled, "x", "--json"))["run"]
    kept = [row["run"] for row in report(run("history", "--json"))["runs"]]
    assert kept == [last, names[2]], "all but the newest that was there"
    mark = ("mark", "add", "--all", filled, "y")
    config.write_text("[undo]\ndays = 'many'\n")
    fails(run("--config", config, *mark), 2, "undo.days")
    config.write_text("[undo]\nday = 3\n")
    fails(run("--config", config, *mark), 2, "did you mean 'days'")


def test_history_store_has_moved(run: Run, filled: str, tmp_path: Path) -> None:
    before = report(run("inspect", filled, "--json"))["totals"]
    deleted = report(run("delete", filled, "--mark", "hint", "--yes", "--json"))["run"]
    shutil.move(tmp_path / "agents.db", tmp_path / "moved.db")
    fails(run("undo", "--yes"), 4, "does not exist")
    moved = tmp_path / "moved.db"
    fails(run("undo", "--yes", "--store", moved), 4, "no run on", "moved.db", "undo RUN --store")
    done = run("undo", deleted, "--yes", "--store", moved)
    assert done.exit_code == 0
    assert "warning" in done.stderr
    assert report(run("inspect", tmp_path / "moved.db", "--json"))["totals"] == before


@pytest.mark.slow
def test_history_names_of_runs(run: Run, filled: str) -> None:
    first = report(run("mark", "add", "--all", filled, "one", "--json"))["run"]
    second = report(run("mark", "add", "--all", filled, "two", "--json"))["run"]
    common = first[: min(n for n in range(len(first)) if first[n] != second[n])]
    before = report(run("mark", "list", filled, "--json"))["marks"]
    for name, said in (
        (common, "several runs begin or end with"),
        ("", "there is no run"),
        ("*", "there is no run"),
        ("../" + first, "there is no run"),
        (first + "0", "there is no run"),
        (first[-4:], "there is no run"),
        ("\x1b[31m", "\\x1b[31m"),
    ):
        result = run("undo", name)
        fails(result, 4, said)
        assert "\x1b" not in result.stderr
    assert report(run("mark", "list", filled, "--json"))["marks"] == before
    assert report(run("undo", second[:-1], "--json"))["undoes"] == second
    assert report(run("undo", first, "--json"))["undoes"] == first


def test_history_run_that_is_undone_is_not_pruned(run: Run, filled: str, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("[undo]\ndays = 10\nbytes = 1\n")
    old = report(run("delete", filled, "--mark", "hint", "--yes", "--json"))["run"]
    report(run("mark", "add", filled, "x", "--mark", "considered", "--json"))
    report(run("undo", "--yes", "--json"))
    os.utime(runs_folder() / old, (0, 0))
    assert report(run("--config", config, "undo", old, "--json"))["messages"]["restored"]


@pytest.mark.slow
def test_history_run_that_goes_on_is_not_pruned(run: Run, filled: str, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("[undo]\nbytes = 1\n")
    waiting = "print(Runs().begin(Run('', 'delete', 'elsewhere', 'elsewhere')).folder); input()"
    with subprocess.Popen(
        [sys.executable, "-uc", f"from memctl.journal.runs import Run, Runs; {waiting}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        going = Path(process.stdout.readline().strip())
        day_ago = time.time() - 100_000
        os.utime(going, (day_ago, day_ago))
        for name in ("x", "y", "z"):
            assert run("--config", config, "mark", "add", "--all", filled, name).exit_code == 0
        assert report(run("history", "--json"))["runs"][-1]["outcome"] == "running"
        process.kill()
    assert report(run("history", "--json"))["runs"][-1]["outcome"] == "cut-short"
    assert run("--config", config, "mark", "add", "--all", filled, "last").exit_code == 0
    assert not going.exists()


@pytest.mark.slow
def test_history_names_are_shown_not_obeyed(run: Run, tmp_path: Path) -> None:
    nasty = "\x1b[31mred\x07\n\u202e"
    folder = tmp_path / nasty.strip()
    folder.mkdir()
    text = f"{folder}/m.db"
    key = MemoryKey(nasty, nasty)
    asyncio.run(fill_text(text, {key: samples.entries(9)}))
    words = (("delete", text, "--mark", "hint", "--yes"), ("mark", "add", "--all", text, nasty))
    for one in words:
        for more in (("--dry-run",), ()):
            done = run(*one, *more)
            assert done.exit_code == 0
            assert_tame(done.stdout + done.stderr)
    again = run("delete", text, "--id", "m0000002", "--yes")
    assert again.exit_code == 0
    first = report(run("history", "--json"))["runs"][-1]["run"]
    for one in (("history",), ("undo", first), ("mark", "list", text), ("undo", "--yes")):
        done = run(*one)
        assert_tame(done.stdout + done.stderr)
    asyncio.run(fill_text(f"{tmp_path}/other.db", {key: samples.entries(2)}))
    clash = run("undo", first, "--store", f"{tmp_path}/other.db")
    assert clash.exit_code == 5
    assert_tame(clash.stdout + clash.stderr)
    assert "\\x1b[31mred" in clash.stderr


def assert_tame(said: str) -> None:
    assert not {"\x1b", "\x07", "\u202e", "\r"} & set(said), said


# The order of runs


def order(run: Run) -> list[str]:
    return [row["run"] for row in report(run("history", "--json"))["runs"]]


@pytest.mark.slow
def test_history_order_is_that_of_the_changes_whatever_the_clock(
    run: Run, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = []
    for number, hour in enumerate((12, 3, 8)):
        now = datetime(2026, 10, 25, hour, tzinfo=UTC)
        monkeypatch.setattr("memctl.journal.runs.datetime", clock(now))
        done.append(report(run("mark", "add", "--all", filled, f"m{number}", "--json"))["run"])
    assert sorted(done) != done
    assert order(run) == done[::-1]
    for one in reversed(done):
        assert report(run("undo", "--yes", "--json"))["undoes"] == one


def clock(now: datetime) -> type[datetime]:
    class Stopped(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return now.astimezone(tz)

    return Stopped


@pytest.mark.slow
def test_history_run_of_the_meantime_is_before_the_one_that_asked(
    run: Run, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cron run changes the store while a person thinks: it was carried out first."""
    between: list[str] = []

    def answer(*_: Any, **__: Any) -> None:
        program = [sys.executable, "-m", "memctl"]
        nothing = subprocess.run([*program, "undo", "--yes"], capture_output=True, text=True)
        assert nothing.returncode == 4
        assert "no run can be undone" in nothing.stderr
        words = ["mark", "add", "--all", filled, "cron", "--json"]
        between.append(json.loads(subprocess.check_output([*program, *words]))["run"])

    monkeypatch.setattr("memctl.commands._change.at_terminal", lambda: True)
    monkeypatch.setattr("memctl.commands._change.confirm", answer)
    asked = report(run("delete", filled, "--mark", "hint", "--json"))["run"]
    assert order(run) == [asked, *between]
    assert report(run("undo", "--yes", "--json"))["undoes"] == asked


@pytest.mark.slow
def test_history_counter_is_lost_or_damaged(run: Run, filled: str) -> None:
    done = []
    counter = runs_folder() / "counter"
    for number, content in enumerate((None, b"", b"000\n", b"\xff" * 40, None)):
        if content is not None:
            counter.write_bytes(content)
        elif number:
            counter.unlink()
        done.append(report(run("mark", "add", "--all", filled, f"m{number}", "--json"))["run"])
    assert order(run) == done[::-1]
    assert stat.S_IMODE(counter.stat().st_mode) == 0o600
    counter.unlink()
    counter.mkdir()
    fails(run("mark", "add", "--all", filled, "more"), 3, "counter cannot be used")
    assert order(run) == done[::-1]
    assert "more" not in report(run("mark", "list", filled, "--json"))["marks"]


def test_history_two_processes_never_count_the_same(tmp_path: Path) -> None:
    script = (
        "from pathlib import Path; from memctl.journal.files import count_up\n"
        "print(*[count_up(Path('counter'), lambda: 0) for _ in range(50)])"
    )
    words = [sys.executable, "-c", script]
    processes = [
        subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    found = [int(word) for one in processes for word in one.communicate()[0].split()]
    assert sorted(found) == [*range(1, 101)]


@pytest.mark.slow
def test_history_of_one_store(run: Run, filled: str, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    assert run("migrate", filled, other).exit_code == 0
    first = report(run("mark", "add", "--all", filled, "one", "--json"))["run"]
    second = report(run("mark", "add", "--all", other, "two", "--json"))["run"]
    third = report(run("delete", other, "--mark", "hint", "--yes", "--json"))["run"]

    def listed(*words: object) -> list[str]:
        return [row["run"] for row in report(run("history", *words, "--json"))["runs"]]

    assert listed(filled) == listed(tmp_path / "agents.db") == [first]
    assert listed(other)[:2] == [third, second]
    assert listed("--command", "mark") == [second, first]
    assert listed(other, "--command", "delete", "--command", "undo") == [third]
    assert listed("--since", "1h") == listed()
    assert listed("--since", "2999-01-01") == []
    assert "other.db" in run("history").stdout
    undone = report(run("undo", "--store", filled, "--yes", "--json"))
    assert undone["undoes"] == first
    assert report(run("undo", third[-5:], "--json"))["undoes"] == third
    assert report(run("undo", "--store", other, "--yes", "--json"))["undoes"] == second


def test_history_is_in_local_time(run: Run, filled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("mark", "add", "--all", filled, "one").exit_code == 0
    try:
        for zone, shown in (("EST5", " EST"), ("XYZ-9", " XYZ")):
            monkeypatch.setenv("TZ", zone)
            time.tzset()
            assert shown in run("history").stdout
    finally:
        monkeypatch.delenv("TZ")
        time.tzset()


def age(run: str, days: float) -> None:
    """Change the time of a run to this many days from now."""
    when = time.time() + days * 86_400
    os.utime(runs_folder() / run, (when, when))


def kept_runs(run: Run) -> list[str]:
    return [row["run"] for row in report(run("history", "--limit", "0", "--json"))["runs"]]


def test_history_old_runs_are_pruned(run: Run, filled: str) -> None:
    old, newer, last = (
        report(run("mark", "add", "--all", filled, name, "--json"))["run"]
        for name in ("x", "y", "z")
    )
    for name, days in ((old, -200), (newer, -20), (last, -10)):
        age(name, days)
    new = report(run("mark", "add", "--all", filled, "new", "--json"))["run"]
    assert kept_runs(run) == [new, last, newer]


@pytest.mark.slow
def test_history_clock_that_leaps_prunes_no_run(
    run: Run, filled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = f"sqlite:///{tmp_path}/source.db"
    asyncio.run(fill_text(source, {MemoryKey("eve", "new"): samples.entries(5)}))
    before = [report(run("mark", "add", "--all", filled, name, "--json"))["run"] for name in "xyz"]
    ahead = 73 * 366
    with monkeypatch.context() as patch:
        clock = time.time
        patch.setattr("memctl.journal.runs.time.time", lambda: clock() + ahead * 86_400)
        for words in (
            ("delete", filled, "--mark", "hint", "--yes", "--json"),
            ("migrate", source, filled, "--json"),
            ("mark", "add", "--all", filled, "last", "--json"),
        ):
            done = run(*words)
            assert "the clock shows" in done.stderr
            age(report(done)["run"], ahead)
            before.append(report(done)["run"])
    done = run("mark", "add", "--all", filled, "after", "--json")
    assert "the clock" not in done.stderr
    assert kept_runs(run) == [report(done)["run"], *reversed(before)]


def test_history_last_run_is_kept_however_large(run: Run, filled: str, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("[undo]\nbytes = 1\n")
    last = report(run("delete", filled, "--mark", "hint", "--yes", "--json"))["run"]
    waiting = Runs().begin(KeptRun("", "delete", "elsewhere", "elsewhere", planned=True))
    try:
        words = ("mark", "add", filled, "x", "--user", "nobody")
        assert run("--config", config, *words).exit_code == 0
        assert report(run("--config", config, "undo", last, "--json"))["messages"]["restored"]
    finally:
        waiting.discard()


def test_history_of_a_store_is_found_whatever_its_url(run: Run, redis_url: str) -> None:
    written = f"{redis_url}?ttl=86400"
    archive = samples_file()
    assert run("import", archive, redis_url, *WHOSE, "--lossy").exit_code == 0
    assert run("migrate", redis_url, f"{written}&prefix=x:").exit_code == 0
    for name in (f"{written}&prefix=x:", f"{redis_url}?prefix=x:"):
        assert len(report(run("history", name, "--json"))["runs"]) == 1, name
    assert len(report(run("history", written, "--json"))["runs"]) == 1


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("redis://localhost", "redis://[::1]:6379/0", True),
        ("redis://cache", "rediss://ops:x@CACHE/0?ttl=5", True),
        ("redis://cache/1", "redis://cache", False),
        ("unix:///run/redis.sock", "redis+unix:///run/../run/redis.sock?db=0", True),
        ("unix:///run/redis.sock", "unix:///run/redis.sock?db=1", False),
        ("postgresql://agents@db", "postgresql://ops@db:5432/agents", True),
        ("postgresql://db/agents?sslmode=require", "postgres://a:b@db/agents", True),
        ("postgresql://db,db2/agents", "postgresql://db2/agents", True),
        ("postgresql://db/agents", "postgresql://db:5433/agents", False),
        ("postgresql:///agents", "postgresql://localhost/agents", True),
        ("postgresql:///agents?host=/run/postgresql", "postgresql:///agents", True),
        ("postgresql://%2Fsrv%2Fpg/agents", "postgresql:///agents?host=/srv/pg", True),
        ("postgresql:///a?host=/srv/pg", "postgresql:///a?host=/srv/pg&port=5433", False),
        ("mysql://ops@db/agents", "mariadb://db:3306/agents", True),
        ("mysql://db/agents", "postgresql://db/agents", False),
        ("mysql:///agents?unix_socket=/run/m.sock", "mysql:///agents?host=/run/m.sock", True),
        ("postgresql://db/a?layout=agno", "postgresql://db/a?layout=agentscope2", False),
        ("postgresql://db/a?layout=agno", "postgresql://db/a", True),
        ("tablestore://prod.cn-hangzhou.ots.aliyuncs.com", "tablestore://other.x.com", False),
    ],
)
def test_history_places_are_compared_by_server_and_database(
    monkeypatch: pytest.MonkeyPatch, one: str, other: str, same: bool
) -> None:
    for name in ("PGHOST", "PGPORT", "PGDATABASE", "PGUSER"):
        monkeypatch.delenv(name, raising=False)
    for kept, named in ((one, other), (other, one)):
        assert is_on(KeptRun("", "delete", kept, kept), parse(named)) is same
