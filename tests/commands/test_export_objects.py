"""``memctl export`` to object storage: each shape, rotations, what is refused, what breaks."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from urllib.parse import quote

import pyarrow.parquet as pq
import pytest

from memctl.ops.export import run as exporting
from memctl.stores.archive import rotation
from tests.commands.test_objects import ADA, BOB, message
from tests.commands.test_rotate import Clock
from tests.support.cli import Run, contents, fails, fill, report
from tests.support.processes import start
from tests.support.servers.gate import Gate, refusal
from tests.support.servers.objects import KEY_ID, SECRET, Bucket


@pytest.fixture
async def store(tmp_path: Path) -> Path:
    path = tmp_path / "agents.db"
    await fill(
        str(path), {ADA: [message(n) for n in range(10)], BOB: [message(n) for n in range(5)]}
    )
    return path


@pytest.fixture
async def large(tmp_path: Path) -> Path:
    """A store whose exports take several parts."""
    path = tmp_path / "source.ndjson"
    await fill(str(path), {ADA: [message(n, size=500_000) for n in range(36)]})
    return path


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the exports of this test."""
    made = Clock(datetime(2026, 11, 21, 3, 15))
    monkeypatch.setattr(exporting, "datetime", made)
    monkeypatch.setattr(rotation, "datetime", made)
    return made


@pytest.mark.parametrize(
    ("extension", "options"),
    [
        ("ndjson", ()),
        ("ndjson.gz", ()),
        ("ndjson.zst", ()),
        ("jsonl", ()),
        ("csv", ()),
        ("parquet", ()),
        ("md", ()),
        ("html", ()),
        ("jsonl", ("--as", "atif")),
        ("json", ("--user", "ada")),
    ],
)
def test_export_objects_each_shape_equals_the_local_file(
    run: Run,
    bucket: Bucket,
    store: Path,
    tmp_path: Path,
    extension: str,
    options: tuple[str, ...],
) -> None:
    url, local = bucket.url(f"out/chats.{extension}"), tmp_path / f"chats.{extension}"
    found = report(run("export", store, "-o", url, *options, "--json"))
    assert found["file"] == url
    assert bucket.files() == [f"out/chats.{extension}"]
    written = bucket.folder / bucket.files()[0]
    assert found["bytes"] == written.stat().st_size
    assert found["messages"]["written"] == (10 if options and options[0] == "--user" else 15)
    assert run("export", store, "-o", local, *options).exit_code == 0
    if extension.startswith("ndjson"):
        assert contents(str(local)) == contents(str(written))
    elif extension == "parquet":
        assert pq.read_table(written).equals(pq.read_table(local))
    else:
        assert written.read_bytes() == local.read_bytes()


def test_export_objects_existing_object_needs_force(run: Run, bucket: Bucket, store: Path) -> None:
    url = bucket.url("chats.csv")
    assert run("export", store, "-o", url).exit_code == 0
    before = (bucket.folder / "chats.csv").read_bytes()
    fails(run("export", store, "-o", url, "--user", "ada"), 2, "exists", "--force")
    assert (bucket.folder / "chats.csv").read_bytes() == before
    done = run("export", store, "-o", url, "--user", "ada", "--force", "--dry-run", "--json")
    assert report(done)["bytes"] is None
    assert (bucket.folder / "chats.csv").read_bytes() == before
    assert run("export", store, "-o", url, "--user", "ada", "--force").exit_code == 0
    assert (bucket.folder / "chats.csv").read_bytes() != before
    fails(run("export", store, "-o", url, "--force", "--min-messages", "99"), 9, "--min-messages")
    assert bucket.files() == ["chats.csv"]


def test_export_objects_folders_and_wrong_names_are_refused(
    run: Run, bucket: Bucket, store: Path
) -> None:
    folder = "a folder of files cannot be written to object storage"
    for words in (
        ("-o", bucket.url("chats"), "--as", "session-dir"),
        ("-o", bucket.url("chats"), "--as", "markdown"),
        ("-o", bucket.url("chats"), "--as", "html"),
        ("-o", bucket.url("chats"), "--as", "parquet"),
    ):
        fails(run("export", store, *words), 2, folder, "name one object")
    fails(run("export", store, "-o", bucket.url("chats/")), 2, "name an object, not a folder")
    fails(run("export", store, "-o", bucket.url("chats.csv"), "--as", "html"), 2, "extension")
    fails(run("export", store, "-o", bucket.url("c.csv"), "--shard", "1/2"), 2, "{shard}")
    for shard in ("0/2", "1/2"):
        url = bucket.url("part-{shard}.parquet")
        done = run("export", store, "-o", url, "--shard", shard)
        assert done.exit_code == 0, done.output
    assert bucket.files() == ["part-0000-of-0002.parquet", "part-0001-of-0002.parquet"]


def test_export_objects_not_onto_the_store_itself(run: Run, bucket: Bucket, store: Path) -> None:
    url = bucket.url("chats.ndjson")
    assert run("export", store, "-o", url).exit_code == 0
    fails(run("export", url, "-o", url, "--force"), 2, "is the store being exported")
    assert run("export", url, "-o", bucket.url("copy.ndjson")).exit_code == 0
    assert contents(str(bucket.folder / "copy.ndjson")) == contents(str(store))


def nights(run: Run, store: Path, url: str, clock: Clock, days: range, *options: str) -> list[str]:
    """Export to a rotation on each day; return the removed objects of the last day."""
    for day in days:
        clock.time = datetime(2026, 11, day, 3, 15)
        words = ("export", store, "-o", url, "--rotate", "daily:2,weekly:2", *options, "--json")
        found = report(run(*words))
    removed: list[str] = found["removed"]
    return removed


@pytest.mark.slow
def test_export_objects_rotation(run: Run, bucket: Bucket, store: Path, clock: Clock) -> None:
    url = bucket.url("nightly/b.ndjson.zst")
    strangers = [
        "b-prod-20260101T000000.ndjson.zst",
        "b.ndjson",
        "sub/b-20260101T000000.ndjson.zst",
    ]
    for name in strangers:
        (bucket.folder / "nightly" / name).parent.mkdir(parents=True, exist_ok=True)
        (bucket.folder / "nightly" / name).write_bytes(b"x")
    removed = nights(run, store, url, clock, range(14, 22))
    names = [f"nightly/b-202611{day}T031500.ndjson.zst" for day in ("15", "20", "21")]
    assert bucket.files() == sorted([*names, *(f"nightly/{name}" for name in strangers)])
    assert removed == [bucket.url("nightly/b-20261119T031500.ndjson.zst")]
    clock.time = datetime(2026, 11, 22, 3, 15)
    dry = ("export", store, "-o", url, "--rotate", "daily:2,weekly:2", "--dry-run", "--json")
    found = report(run(*dry))
    assert found["file"] == bucket.url("nightly/b-20261122T031500.ndjson.zst")
    assert found["removed"] == [bucket.url("nightly/b-20261120T031500.ndjson.zst")]
    assert names[1] in bucket.files()
    assert not any("20261122" in name for name in bucket.files())


@pytest.mark.slow
def test_export_objects_latest_and_all_of_a_rotation(
    run: Run, bucket: Bucket, store: Path, clock: Clock, tmp_path: Path
) -> None:
    url, newest = bucket.url("b.ndjson.zst"), bucket.url("b-20261121T031500.ndjson.zst")
    nights(run, store, url, clock, range(20, 22))
    latest = url.replace("?", "@latest?")
    found = report(run("inspect", latest, "--json"))
    assert found["store"]["url"] == newest
    target = tmp_path / "target.db"
    for command in ("import", "migrate", "verify"):
        assert run(command, latest, target).exit_code == 0
    assert contents(str(target)) == contents(str(store))
    assert report(run("inspect", url, "--json"))["rotation"]["files"][0]["file"] == newest
    assert "@latest?endpoint=" in run("inspect", url).stdout.replace("\n", "")
    fails(
        run("import", url, tmp_path / "other.db"), 4, "is the name of a rotation (2 files)", latest
    )
    fails(run("import", bucket.url("none.ndjson@latest"), tmp_path / "o.db"), 4, "no rotation")
    erased = run("erase", store, "--user", "ada", "--archives", url, "--yes", "--json")
    assert len(report(erased)["stores"]) == 3
    for name in bucket.files():
        assert {key.user for key in contents(str(bucket.folder / name))} == {"bob"}


@pytest.mark.slow
def test_export_objects_alias_has_the_credentials(
    run: Run,
    bucket: Bucket,
    store: Path,
    tmp_path: Path,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("THE_SECRET", SECRET)
    config = tmp_path / "config.toml"
    url = bucket.url("b.ndjson", login=f"{KEY_ID}@")
    config.write_text(
        f'[stores.night]\nurl = "{url}"\npassword_env = "THE_SECRET"\n'
        f'[stores.last]\nurl = "{url.replace("?", "@latest?")}"\npassword_env = "THE_SECRET"\n'
    )
    words = ("--config", config, "export", store, "-o", "night", "--rotate", "last:1", "--json")
    for day in (20, 21):
        clock.time = datetime(2026, 11, day, 3, 15)
        done = run(*words)
        assert SECRET not in done.output
        assert quote(SECRET, safe="") not in done.output
    assert bucket.files() == ["b-20261121T031500.ndjson"]
    assert report(done)["file"].endswith(f"b-20261121T031500.ndjson?{url.partition('?')[2]}")
    for name in ("last", "night@latest"):
        found = report(run("--config", config, "inspect", name, "--json"))
        assert found["totals"]["messages"] == 15
        assert "20261121T031500" in found["store"]["url"]
    assert "memctl inspect night@latest" in run("--config", config, "inspect", "night").stdout
    refused = run("--config", config, "import", "night", tmp_path / "back.db")
    fails(refused, 4, "use ALIAS@latest for its newest file, b-20261121T031500.ndjson")
    erased = run(
        "--config", config, "erase", store, "--user", "ada", "--archives", "night", "--yes"
    )
    assert erased.exit_code == 0, erased.output
    assert {key.user for key in contents(str(bucket.folder / bucket.files()[0]))} == {"bob"}
    monkeypatch.chdir(tmp_path)
    assert run("--config", config, "export", store, "-o", "nigh").exit_code == 2
    assert run("--config", config, "export", store, "-o", "other.csv").exit_code == 0
    assert (tmp_path / "other.csv").is_file()


def test_export_objects_change_of_the_newest_is_undone_there(
    run: Run, bucket: Bucket, store: Path, clock: Clock
) -> None:
    """The newest file of a rotation is another when the change is undone."""
    url = bucket.url("b.ndjson")
    for day in (20, 21):
        clock.time = datetime(2026, 11, day, 3, 15)
        assert run("export", store, "-o", url, "--rotate", "last:9").exit_code == 0
        if day == 20:
            latest = url.replace("?", "@latest?")
            assert run("mark", "add", latest, "seen", "--user", "ada").exit_code == 0
    report(run("undo", "--yes", "--json"))
    for name in bucket.files():
        assert contents(str(bucket.folder / name)) == contents(str(store))


@pytest.mark.slow
def test_export_objects_rotation_of_encrypted_files(
    run: Run, bucket: Bucket, store: Path, clock: Clock, tmp_path: Path
) -> None:
    import pyrage

    identity = pyrage.x25519.Identity.generate()
    key = tmp_path / "key.txt"
    key.write_text(str(identity))
    key.chmod(0o600)
    config = tmp_path / "config.toml"
    config.write_text(
        f'[encryption]\nrecipients = ["{identity.to_public()}"]\nidentity_file = "{key}"\n'
    )
    url = bucket.url("b.ndjson.zst.age")
    for day in (20, 21):
        clock.time = datetime(2026, 11, day, 3, 15)
        words = ("export", store, "-o", url, "--rotate", "last:1")
        assert run("--config", config, *words).exit_code == 0
    [name] = bucket.files()
    assert name == "b-20261121T031500.ndjson.zst.age"
    latest = url.replace("?", "@latest?")
    found = report(run("--config", config, "inspect", latest, "--json"))
    assert found["totals"]["messages"] == 15
    for extension in ("csv", "jsonl", "parquet", "md", "json"):
        local = tmp_path / f"plain.{extension}"
        options = ("--user", "ada", "--force")
        assert run("export", store, "-o", local, *options).exit_code == 0
        for output in (bucket.url(f"c.{extension}.age"), tmp_path / f"c.{extension}.age"):
            done = run("--config", config, "export", store, "-o", output, *options)
            assert done.exit_code == 0, done.output
        for there in (bucket.folder / f"c.{extension}.age", tmp_path / f"c.{extension}.age"):
            plain = pyrage.decrypt(there.read_bytes(), [identity])
            assert plain == local.read_bytes()


def denying(what: Callable[[bytes], bool]) -> Callable[[bytes], bytes | None]:
    return lambda data: refusal("403 Forbidden", "AccessDenied") if what(data) else None


def test_export_objects_rotation_without_permission_to_list(
    run: Run, bucket: Bucket, store: Path, clock: Clock
) -> None:
    nights(run, store, bucket.url("b.ndjson"), clock, range(20, 21))
    port = int(bucket.endpoint.rpartition(":")[2])
    with Gate(port, denying(lambda data: b"list-type=2" in data)) as gate:
        url = bucket.url("b.ndjson", endpoint=gate.endpoint)
        done = run("export", store, "-o", url, "--rotate", "last:1")
        fails(done, 3, "no permission to list", "s3:ListBucket")
        one = bucket.url("b-20261120T031500.ndjson", endpoint=gate.endpoint)
        assert run("inspect", one).exit_code == 0
    assert bucket.files() == ["b-20261120T031500.ndjson"]


@pytest.mark.slow
@pytest.mark.parametrize("extension", ["ndjson", "csv", "parquet", "jsonl"])
def test_export_objects_server_gone_in_the_middle(
    run: Run, bucket: Bucket, large: Path, extension: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memctl.engines.objects.file._RETRIES", 1)
    port = int(bucket.endpoint.rpartition(":")[2])
    with Gate(port, up=20_000_000) as gate:
        url = bucket.url(f"big.{extension}", endpoint=gate.endpoint)
        fails(run("export", large, "-o", url), 3, "cannot reach")
    # The server is out of reach, so nobody can tell it to drop the parts.
    assert [name for name in bucket.files() if not name.startswith(".rclone_temp_")] == []


@pytest.mark.slow
def test_export_objects_two_at_once(run: Run, bucket: Bucket, large: Path) -> None:
    url = bucket.url("big.ndjson")
    other = start("export", large, "-o", url)
    codes = [run("export", large, "-o", url).exit_code, other.wait()]
    assert sorted(codes) in ([0, 2], [0, 75])
    assert bucket.files() == ["big.ndjson"]
    assert contents(str(bucket.folder / "big.ndjson")) == contents(str(large))


_MEASURED = """
import re, sys
from memctl.cli import main
try:
    main()
except SystemExit as end:
    assert not end.code
print(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("extension", ["ndjson", "csv", "parquet", "jsonl"])
async def test_export_objects_constant_memory(
    bucket: Bucket, tmp_path: Path, extension: str
) -> None:
    source = tmp_path / "source.ndjson"
    await fill(str(source), {ADA: [message(n, size=500_000) for n in range(300)]})
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _MEASURED, "export", source),
        *("-o", bucket.url(f"big.{extension}")),
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await process.communicate()
    assert process.returncode == 0
    [name] = bucket.files()
    size = (bucket.folder / name).stat().st_size
    assert size > 140_000_000
    assert int(said) < 330_000, "in KiB: parts of 16 MiB, row groups of pyarrow, and the program"
