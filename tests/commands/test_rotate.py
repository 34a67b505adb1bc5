"""``memctl export --rotate``: what is kept, what goes, and that nothing else ever does."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from memctl.errors import UsageError
from memctl.ops.export import run as exporting
from memctl.storekit.named_file import LocalFile
from memctl.stores.archive import rotation
from memctl.stores.archive.rotation import Series, parse_rotation
from memctl.testing import samples
from tests.support.cli import Run, contents, fails, fill, report

NOON = datetime(2026, 11, 21, 12)


class Clock:
    """A stand-in for the class ``datetime`` that stands still at a given time."""

    def __init__(self, now: datetime) -> None:
        self.time = now

    def now(self) -> datetime:
        return self.time

    def strptime(self, text: str, form: str) -> datetime:
        return datetime.strptime(text, form)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the exports of this test."""
    made = Clock(NOON)
    monkeypatch.setattr(exporting, "datetime", made)
    monkeypatch.setattr(rotation, "datetime", made)
    return made


def kept(text: str, times: list[datetime]) -> list[datetime]:
    return sorted(set(times) - parse_rotation(text).expired(times))


def every(step: timedelta, number: int) -> list[datetime]:
    """Return times up to noon, oldest first."""
    return sorted(NOON - step * n for n in range(number))


def test_rotate_newest_of_each_period_is_kept() -> None:
    hours = every(timedelta(hours=6), 4 * 40)
    assert kept("last:3", hours) == hours[-3:]
    days = kept("daily:7", hours)
    assert [time.day for time in days] == [15, 16, 17, 18, 19, 20, 21]
    assert {time.hour for time in days[:-1]} == {18}
    assert days[-1] == NOON
    weeks = kept("weekly:4", hours)
    assert [time.isocalendar().week for time in weeks] == [44, 45, 46, 47]
    assert all(time.isoweekday() == 7 for time in weeks[:-1])
    assert kept("daily:7,weekly:4", hours) == sorted({*days, *weeks})


def test_rotate_periods_without_a_file_do_not_count_and_the_oldest_stays_while_there_is_room() -> (
    None
):
    gaps = [NOON - timedelta(days=30), NOON - timedelta(days=3), NOON]
    assert kept("daily:3", gaps) == gaps
    assert kept("daily:2", gaps) == gaps[1:]
    day = every(timedelta(hours=1), 5)
    assert kept("daily:7", day) == [day[0], day[-1]]  # as restic does
    years = [datetime(year, 12, 31, 23, 59, 59) for year in range(2020, 2027)]
    assert kept("yearly:2,monthly:3", years) == years[-3:]
    # 2026-12-31 and 2027-01-01 are in one week.
    new_year = [datetime(2026, 12, 31), datetime(2027, 1, 1), datetime(2027, 1, 8)]
    assert kept("weekly:2", new_year) == new_year[1:]


@pytest.mark.parametrize(
    "text", ["", "daily", "daily:0", "daily:-1", "dayly:7", "daily:7,", "daily:7,daily:8", "7"]
)
def test_rotate_what_means_nothing(run: Run, filled: str, tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError):
        parse_rotation(text)
    result = run("export", filled, "-o", tmp_path / "a.ndjson", "--rotate", text)
    fails(result, 2, "--rotate", "daily:7,weekly:4")


def backups(folder: Path) -> list[str]:
    """The names of the files that are there, but for the database."""
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("agents.db"))


@pytest.mark.slow
def test_rotate_month_of_nights(run: Run, filled: str, tmp_path: Path, clock: Clock) -> None:
    options = ("-o", tmp_path / "b.ndjson.zst", "--rotate", "daily:2,weekly:2", "--user", "user1")
    reports = []
    for day in range(8):
        clock.time = datetime(2026, 11, 14 + day, 3, 15)
        reports.append(report(run("export", filled, *options, "--json")))
    names = [f"b-202611{day}T031500.ndjson.zst" for day in ("15", "20", "21")]
    assert backups(tmp_path) == names
    assert reports[-1]["file"] == str(tmp_path / names[-1])
    assert reports[-1]["removed"] == [str(tmp_path / "b-20261119T031500.ndjson.zst")]
    assert reports[-1]["bytes"] == (tmp_path / names[-1]).stat().st_size
    assert (tmp_path / names[-1]).stat().st_mode & 0o777 == 0o600
    assert run("verify", filled, tmp_path / names[-1], "--user", "user1").exit_code == 0


@pytest.mark.usefixtures("clock")
def test_rotate_only_names_of_exactly_this_form_go(run: Run, filled: str, tmp_path: Path) -> None:
    strangers = [
        *("b.json", "b-20260101T000000.ndjson.gz", "bb-20260101T000000.ndjson"),
        *("b-prod-20260101T000000.ndjson", "b-20260101T000000.ndjson.tmp"),
        *("b-20261301T000000.ndjson", "b"),
        *("B-20260101T000000.ndjson", "b-20260101T000000-2.ndjson", "b-20260101.ndjson"),
        *("b-２0260101T000000.ndjson", "b-20260101T000000.ndjson\n", "b-20260101T000000xndjson"),
    ]
    for name in strangers:
        (tmp_path / name).touch()
    (tmp_path / "b-20260102T000000.ndjson").mkdir()
    (tmp_path / "b-20260103T000000.ndjson").symlink_to(tmp_path / "b.json")
    (tmp_path / "b-20260104T000000.ndjson").touch()
    before = backups(tmp_path)
    found = report(
        run("export", filled, "-o", tmp_path / "b.ndjson", "--rotate", "last:1", "--json")
    )
    assert found["removed"] == [str(tmp_path / "b-20260104T000000.ndjson")]
    after = backups(tmp_path)
    assert set(before) - set(after) == {"b-20260104T000000.ndjson"}
    assert set(after) - set(before) == {"b-20261121T120000.ndjson"}


def test_rotate_clock_that_goes_back_or_stands_still(
    run: Run, filled: str, tmp_path: Path, clock: Clock
) -> None:
    options = ("-o", tmp_path / "b.ndjson", "--rotate", "last:2", "--json")
    for seconds, name in ((0, "120000"), (0, "120001"), (-3600, "110000")):
        clock.time = NOON + timedelta(seconds=seconds)
        assert report(run("export", filled, *options))["file"].endswith(f"T{name}.ndjson")
    # The last one is the oldest by its name, and is kept as the new one all the same.
    assert backups(tmp_path) == [f"b-20261121T{t}.ndjson" for t in ("110000", "120000", "120001")]
    clock.time = NOON + timedelta(hours=1)
    assert len(report(run("export", filled, *options))["removed"]) == 2
    assert backups(tmp_path) == [f"b-20261121T{t}.ndjson" for t in ("120001", "130000")]


@pytest.mark.usefixtures("clock")
def test_rotate_dry_run_tells_and_does_nothing(run: Run, filled: str, tmp_path: Path) -> None:
    for day in (1, 2):
        (tmp_path / f"b-2026010{day}T000000.ndjson").touch()
    before = backups(tmp_path)
    options = ("export", filled, "-o", tmp_path / "b.ndjson", "--rotate", "last:2", "--dry-run")
    found = report(run(*options, "--json"))
    assert found["dry_run"]
    assert found["removed"] == [str(tmp_path / "b-20260101T000000.ndjson")]
    assert found["file"] == str(tmp_path / "b-20261121T120000.ndjson")
    assert found["messages"]["written"] == 100
    assert "b-20260101T000000.ndjson would be removed" in run(*options).stdout
    assert backups(tmp_path) == before


@pytest.mark.slow
def test_rotate_what_fails_or_finds_nothing_removes_nothing(
    run: Run, filled: str, tmp_path: Path
) -> None:
    for day in (1, 2, 3):
        (tmp_path / f"b-2026010{day}T000000.ndjson").touch()
    before = backups(tmp_path)
    options = ("-o", tmp_path / "b.ndjson", "--rotate", "last:1")
    fails(run("export", filled, "--user", "nobody", *options), 4)
    fails(run("export", tmp_path / "none.db", *options), 4)
    assert backups(tmp_path) == before
    for more in ((), ("--dry-run",)):
        result = run("export", filled, "--mark", "none", *options, *more)
        fails(result, 9, "only 0 memories to export, less than --min-memories", "--min-memories 0")
    assert backups(tmp_path) == before
    result = run("export", filled, "--mark", "none", *options, "--min-memories", "0")
    assert result.exit_code == 0
    assert "older files are kept" in result.stderr
    assert set(backups(tmp_path)) > set(before)


@pytest.mark.slow
def test_rotate_backup_that_has_shrunk_by_half(
    run: Run, filled: str, tmp_path: Path, clock: Clock
) -> None:
    words = ("export", filled, "-o", tmp_path / "b.ndjson", "--rotate", "last:1")
    for day, options, removed in (
        (19, (), 0),
        (20, ("--exclude-mark", "hint"), 1),
        (21, ("--last", "2"), None),
        (22, ("--last", "2"), None),  # as large as the file before it, which was not accepted
        (23, ("--last", "1", "--min-messages", "0"), 3),
    ):
        clock.time = datetime(2026, 11, day, 3, 15)
        done = run(*words, *options)
        if removed is None:
            said = "less than half of b-20261120T031500.ndjson"
            fails(done, 7, said, "older files are kept", "--min-messages 0")
            assert len(backups(tmp_path)) == day - 19
        else:
            assert done.exit_code == 0, done.stderr
            assert done.stderr.count(" removed") == removed


def test_rotate_beside_a_file_of_its_name(run: Run, filled: str, tmp_path: Path) -> None:
    assert run("export", filled, "-o", tmp_path / "b.ndjson").exit_code == 0
    done = run("export", filled, "-o", tmp_path / "b.ndjson", "--rotate", "last:1")
    fails(done, 2, "is a file, so a rotation cannot have this name", "choose another name")
    assert backups(tmp_path) == ["b.ndjson"]


def test_rotate_what_it_does_not_go_with(run: Run, filled: str, tmp_path: Path) -> None:
    for output in ("-", "/dev/null", f"{tmp_path}/sessions/"):
        fails(run("export", filled, "-o", output, "--rotate", "last:1"), 2, "--rotate needs a file")
    conversations = ("--as", "markdown", "-o", tmp_path / "c")
    fails(run("export", filled, *conversations, "--rotate", "last:1"), 2, "--rotate needs a file")
    fails(run("export", filled, "--json"), 2, "stdout")


def test_rotate_what_cannot_be_removed_is_said(tmp_path: Path) -> None:
    series = Series(LocalFile(tmp_path / "b.json"))
    (tmp_path / "b-20260101T000000.json").mkdir()
    with pytest.raises(Exception, match="b-20260101T000000"):
        list(series.remove([LocalFile(tmp_path / "b-20260101T000000.json")]))


@pytest.fixture
def nights(run: Run, filled: str, tmp_path: Path, clock: Clock) -> Path:
    """The name of a rotation of three nights; the last one holds the messages of one user."""
    name = tmp_path / "b.ndjson.zst"
    for day, options in ((19, ()), (20, ()), (21, ("--user", "user1"))):
        clock.time = datetime(2026, 11, day, 3, 15)
        run("export", filled, "-o", name, "--rotate", "last:5", *options)
    (tmp_path / "b-prod-20261122T031500.ndjson.zst").touch()
    return name


@pytest.mark.slow
def test_rotate_latest_is_the_newest_file(run: Run, nights: Path, tmp_path: Path) -> None:
    newest = tmp_path / "b-20261121T031500.ndjson.zst"
    found = report(run("inspect", f"{nights}@latest", "--json"))
    assert found["store"]["url"] == str(newest)
    assert found["totals"]["messages"] == 40
    target = tmp_path / "target.db"
    for command in ("import", "migrate", "verify"):
        assert run(command, f"{nights}@latest", target).exit_code == 0
    assert report(run("inspect", target, "--json"))["totals"]["messages"] == 40
    assert "message 3" in run("context", f"{nights}@latest", "--user", "user1").stdout
    config = tmp_path / "config.toml"
    config.write_text(
        f'[stores.backup]\nurl = "{nights}@latest"\n[stores.night]\nurl = "{nights}"\n'
    )
    for name in ("backup", "night@latest"):
        assert str(newest) in run("--config", config, "inspect", name).stdout
    assert "memctl inspect night@latest" in run("--config", config, "inspect", "night").stdout
    fails(
        *(run("import", f"{tmp_path}/none.ndjson@latest", target), 4, "there is no rotation"),
        "hint: create one with: memctl export STORE -o",
    )
    odd = tmp_path / "odd.ndjson@latest"
    newest.rename(odd)
    assert report(run("inspect", odd, "--json"))["store"]["url"] == str(odd)


@pytest.mark.parametrize(
    ("choice", "day"),
    [
        *[("latest", 21), ("latest~0", 21), ("latest~2", 19), ("oldest", 19), ("1", 21), ("3", 19)],
        *[("2026-11-20", 20), ("20261120T031500", 20)],
    ],
)
def test_rotate_choice_names_a_file(
    run: Run, nights: Path, write: Path, tmp_path: Path, choice: str, day: int
) -> None:
    write.write_text(f'[stores.night]\nurl = "{nights}"\n')
    file = str(tmp_path / f"b-202611{day}T031500.ndjson.zst")
    for name in (f"{nights}@{choice}", f"night@{choice}"):
        assert report(run("inspect", name, "--json"))["store"]["url"] == file


@pytest.mark.parametrize("choice", ["latest~3", "4", "0", "2026-11-22", "20261121T031501", "lates"])
def test_rotate_wrong_choice_lists_the_newest_files(
    run: Run, nights: Path, write: Path, choice: str
) -> None:
    write.write_text(f'[stores.night]\nurl = "{nights}"\n')
    for name in (f"{nights}@{choice}", f"night@{choice}"):
        fails(
            *(run("import", name, "target.db"), 4),
            f"the rotation {nights} has no file @{choice}",
            "the newest of 3 files: @20261121T031500, @20261120T031500, @20261119T031500; @latest",
        )


def test_rotate_record_names_the_file_by_its_time(run: Run, nights: Path, write: Path) -> None:
    write.write_text(f'[stores.night]\nurl = "{nights}"\n')
    assert run("delete", "night@2", "--user", "user1", "--last", "1", "--yes").exit_code == 0
    [done] = report(run("history", "--json"))["runs"]
    assert done["store"] == "night@20261120T031500"
    assert run("undo", "--yes").exit_code == 0
    assert report(run("verify", nights.with_name(f"{nights.name}@2"), "--json"))


def test_rotate_choice_is_no_part_of_other_names(run: Run, write: Path, tmp_path: Path) -> None:
    """A folder may have the name of an alias, and an @."""
    write.write_text(f'[stores.prod]\nurl = "{tmp_path}/agents.db"\n')
    folder = tmp_path / "prod@home"
    asyncio.run(fill(str(folder), {samples.key(0): samples.entries(3)}))
    with contextlib.chdir(tmp_path):
        assert run("delete", "prod@home", "--last", "1", "--yes").exit_code == 0
        assert run("undo", "--store", "prod@home", "--yes").exit_code == 0


def test_rotate_of_an_alias(run: Run, write: Path, filled: str, tmp_path: Path) -> None:
    write.write_text(
        f'[stores.prod]\nurl = "{filled}"\n[stores.night]\nurl = "{tmp_path}/n.ndjson.zst"\n'
    )
    assert run("export", "prod", "-o", "night", "--rotate", "last:2").exit_code == 0
    assert len([*tmp_path.glob("n-*.ndjson.zst")]) == 1
    assert report(run("verify", "night@latest", "prod", "--json"))["differences"] == []
    assert run("export", "prod", "-o", "night").exit_code == 0
    assert contents(str(tmp_path / "n.ndjson.zst")) == contents(filled)
    hint = "name it .html, .md, .csv, .parquet, .jsonl or .json, or .ndjson.zst for an archive"
    fails(run("export", "prod", "-o", "prod"), 2, "unrecognised file extension", hint)


def test_rotate_inspect_lists_the_files(run: Run, nights: Path, tmp_path: Path) -> None:
    names = [f"b-202611{day}T031500.ndjson.zst" for day in (21, 20, 19)]
    found = report(run("inspect", nights, "--json"))["rotation"]
    assert found["name"] == str(nights)
    assert found["files"] == [
        {
            "file": str(tmp_path / name),
            "time": f"2026-11-{name[8:10]}T03:15:00",
            "bytes": (tmp_path / name).stat().st_size,
        }
        for name in names
    ]
    shown = run("inspect", nights).stdout
    assert "rotation · 3 files · " in shown
    assert [line.split()[-1] for line in shown.splitlines() if "03:15" in line] == names
    assert f"show the newest with: memctl inspect {nights}@latest" in shown
    few = run("inspect", nights, "--limit", "1").stdout
    assert "and 2 files more" in few
    [line] = run("inspect", nights, "--format", "ndjson", "--limit", "1").stdout.splitlines()
    assert "b-20261121T031500" in line


@pytest.mark.parametrize(
    "words",
    [
        ("inspect", "{}", "--messages"),
        ("inspect", "{}", "--user", "user1"),
        ("import", "{}", "target.db"),
        ("verify", "{}", "target.db"),
        ("migrate", "{}", "target.db"),
    ],
)
def test_rotate_name_without_a_time_is_no_file(
    run: Run, nights: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    fails(
        *(run(*(word.format(nights) for word in words)), 4),
        f"{nights} does not exist; it is the name of a rotation (3 files)",
        f"hint: use {nights}@latest for its newest file, b-20261121T031500.ndjson.zst",
    )
    assert not (tmp_path / "target.db").exists()
