"""Archives in object storage: what commands do with them, and what is said if a server refuses."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson
import pytest

from memctl.engines.objects import file as objects
from memctl.engines.objects.address import parse_address
from memctl.engines.objects.file import ObjectFile
from memctl.errors import MemctlError, Unavailable, UsageError
from memctl.model import MemoryKey, StoredMessage
from memctl.registry import parse
from tests.support.cli import Run, contents, fails, fill, report
from tests.support.processes import start, wait_until
from tests.support.servers.azure import Azure
from tests.support.servers.gate import Gate, refusal
from tests.support.servers.objects import KEY_ID, SECRET, Bucket
from tests.support.servers.pool import Servers
from tests.support.servers.tls import Tls

ADA, BOB = MemoryKey("ada", "s1"), MemoryKey("bob", "s2")


def message(number: int, *marks: str, size: int = 20) -> StoredMessage:
    content = {
        "id": f"m{number}",
        "name": "ada",
        "role": "user",
        "content": os.urandom(size).hex(),
        "metadata": {},
        "timestamp": f"2026-01-{number % 28 + 1:02} 10:00:00.000",
    }
    return StoredMessage(f"m{number}", orjson.dumps(content), marks)


@pytest.fixture
async def store(tmp_path: Path) -> Path:
    path = tmp_path / "agents.db"
    ada = [message(n, *(["hint"] if n % 3 == 0 else [])) for n in range(10)]
    await fill(str(path), {ADA: ada, BOB: [message(n) for n in range(5)]})
    return path


@pytest.fixture
async def large(tmp_path: Path) -> Path:
    """A store whose archive takes several parts."""
    path = tmp_path / "source.ndjson"
    await fill(str(path), {ADA: [message(n, size=500_000) for n in range(36)]})
    return path


@pytest.fixture
def archive(bucket: Bucket, store: Path, run: Run) -> str:
    """The URL of an archive of ``store``."""
    url = bucket.url("backups/chats.ndjson.zst")
    report(run("migrate", store, url, "--json"))
    return url


# As any archive


@pytest.mark.slow
@pytest.mark.parametrize("extension", ["ndjson", "ndjson.gz", "ndjson.zst"])
def test_objects_archive_goes_and_comes_back(
    run: Run, bucket: Bucket, store: Path, tmp_path: Path, extension: str
) -> None:
    url = bucket.url(f"backups/2026 ä/chats.{extension}".replace(" ", "%20"))
    assert report(run("migrate", store, url, "--json"))["messages"]["written"] == 15
    assert bucket.files() == [f"backups/2026 ä/chats.{extension}"]
    local = tmp_path / f"chats.{extension}"
    local.write_bytes((bucket.folder / bucket.files()[0]).read_bytes())
    assert contents(str(local)) == contents(url) == contents(str(store))
    assert report(run("import", url, tmp_path / "back.db", "--json"))["messages"]["written"] == 15
    report(run("verify", tmp_path / "back.db", url, "--json"))
    report(run("inspect", url, "--json"))


@pytest.mark.slow
def test_objects_large_archive_takes_several_parts(
    run: Run, bucket: Bucket, large: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(objects, "PART", 5 * 1024 * 1024)
    url = bucket.url("large.ndjson")
    report(run("migrate", large, url, "--json"))
    assert bucket.files() == ["large.ndjson"]
    assert contents(url) == contents(str(large))
    monkeypatch.setattr(objects, "IN_RAM", 1)
    done = run("-v", "import", url, tmp_path / "back.db")
    assert done.exit_code == 0
    assert "staged in a temporary file" in done.stderr


@pytest.mark.slow
def test_objects_memory_is_added_to_an_archive(
    run: Run, archive: str, tmp_path: Path, bucket: Bucket
) -> None:
    asyncio.run(fill(str(tmp_path / "more.db"), {MemoryKey("eve", "s"): [message(1)]}))
    assert report(run("migrate", tmp_path / "more.db", archive, "--json"))
    assert {key.user for key in contents(archive)} == {"ada", "bob", "eve"}
    assert bucket.files() == ["backups/chats.ndjson.zst"]


@pytest.mark.slow
def test_objects_change_is_undone(run: Run, archive: str, store: Path) -> None:
    before = contents(archive)
    assert report(run("delete", archive, "--mark", "hint", "--yes", "--json"))
    assert len(contents(archive)[ADA]) == 6
    report(run("undo", "--yes", "--json"))
    assert contents(archive) == before
    report(run("mark", "add", archive, "seen", "--user", "bob", "--json"))
    assert all("seen" in entry.marks for entry in contents(archive)[BOB])
    report(run("undo", "--yes", "--json"))
    assert contents(archive) == before == contents(str(store))


@pytest.mark.slow
def test_objects_user_is_erased(run: Run, archive: str, tmp_path: Path) -> None:
    receipt = tmp_path / "receipt.json"
    words = ("--user", "ada", "--archives", archive, "--yes", "--receipt", receipt, "--json")
    erased = report(run("erase", *words))
    assert erased["stores"][0]["state"] == "erased"
    assert "earlier versions" in " ".join(erased["stores"][0]["not_reached"])
    assert set(contents(archive)) == {BOB}
    assert report(run("verify", "--receipt", receipt, "--json"))["differences"] == []
    gone = archive.replace("chats", "none")
    fails(run("erase", "--user", "ada", "--archives", gone, "--yes"), 4, "does not exist")


@pytest.mark.slow
def test_objects_receipt_of_a_rotation_names_its_alias(
    run: Run, bucket: Bucket, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = bucket.url("backups/night.ndjson.zst").replace("s3://", f"s3://{KEY_ID}@")
    config, receipt = tmp_path / "config.toml", tmp_path / "receipt.json"
    config.write_text(f'[stores.night]\nurl = "{url}"\npassword_env = "NIGHT_SECRET"\n')
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NIGHT_SECRET", SECRET)
    monkeypatch.setenv("MEMCTL_CONFIG", str(config))
    for _ in range(2):
        assert run("export", store, "-o", "night", "--rotate", "daily:7", "--json").exit_code == 0
    words = ("erase", "--user", "ada", store, "--archives", "night", "--receipt", receipt, "--yes")
    erased = report(run(*words, "--json"))["stores"]
    assert [one["state"] for one in erased] == ["erased"] * 3
    named = [one["argument"] for one in orjson.loads(receipt.read_bytes())["stores"]]
    assert [name.rpartition("@")[0] for name in named[1:]] == ["night", "night"]
    checked = report(run("verify", "--receipt", receipt, "--json"))
    assert checked["stores"] == [one["store"] for one in erased]
    assert checked["differences"] == []

    monkeypatch.delenv("NIGHT_SECRET")
    rest = report(run("verify", "--receipt", receipt, "--json"), 7)
    assert rest["stores"] == [str(store)]
    assert len(rest["unsearched"]) == 2
    assert "2 stores of 3 could not be searched" in rest["error"]["message"]
    shown = run("verify", "--receipt", receipt)
    assert "night@" in shown.stdout
    assert "not searched" in shown.stdout
    monkeypatch.setenv("NIGHT_SECRET", "wrong")
    left = orjson.loads(receipt.read_bytes())
    left["stores"] = left["stores"][1:]
    receipt.write_bytes(orjson.dumps(left))
    fails(run("verify", "--receipt", receipt), 3, "refuses the credentials")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["receipts/ada.json", "receipts/ada.html"])
def test_objects_receipt(run: Run, bucket: Bucket, store: Path, name: str) -> None:
    place = bucket.url(name)
    words = ("erase", "--user", "ada", store, "--yes", "--receipt", place, "--json")
    assert report(run(*words))["receipt"] == place
    assert bucket.files() == [name]
    assert report(run("verify", "--receipt", place, "--json"))["differences"] == []
    fails(run("erase", "--user", "bob", *words[3:]), 2, "exists", "--force")
    fails(run("verify", "--receipt", bucket.url("receipts/none.json")), 4, "does not exist")
    refused = bucket.url("ada.json", login=f"{KEY_ID}:wrong@")
    fails(run("erase", "--user", "bob", store, "--yes", "--receipt", refused), 3, "credentials")
    assert {key.user for key in contents(str(store))} == {"bob"}
    assert report(run("erase", "--user", "bob", *words[3:], "--force"))["receipt"] == place


def test_objects_search_and_doctor(run: Run, archive: str) -> None:
    found = report(run("doctor", archive, "--json"), 6)
    assert {finding["code"] for finding in found["findings"]} == {"leftover-hint"}
    assert run("search", archive, "nothing").exit_code == 0


@pytest.mark.slow
def test_objects_same_object_is_known_by_any_name(run: Run, archive: str, store: Path) -> None:
    other = archive.replace("s3://", f"s3://{KEY_ID}@")
    fails(run("migrate", archive, other), 2, "same store")
    report(run("delete", archive, "--user", "bob", "--yes", "--json"))
    report(run("undo", "--store", other, "--yes", "--json"))
    assert contents(archive) == contents(str(store))


# Names and configuration


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("s3://bucket", "names no object"),
        ("s3:///key.ndjson", "names no object"),
        ("s3://bucket/folder/", "empty part"),
        ("s3://bucket//a.ndjson", "empty part"),
        ("s3://bucket/../a.ndjson", "'..'"),
        ("s3://bucket/a.jsonl", "is not the name of an archive"),
        ("s3://bucket/a.ndjson?secret=x", "takes no option 'secret'"),
        ("s3://bucket/a.ndjson?endpoint=minio:9000", "is not a URL"),
        ("s3://bucket/a.ndjson?endpoint=http://minio:90x", "is not a URL"),
        ("s3://bucket/a.ndjson?endpoint=http://u:p@minio", "contains a login"),
        ("s3://bucket/a.ndjson?path_style=maybe", "write path_style=yes or no"),
        ("s3://bucket/a.ndjson#1", "contains a '#'"),
        ("gs://bucket/a.ndjson?region=x", "takes no option 'region'"),
        ("https://account.blob.core.windows.net/a.ndjson", "names no object"),
        ("https://account.blob.core.windows.net/c/a.ndjson?sig=hush", "takes no option 'sig'"),
    ],
)
def test_objects_url_is_refused(run: Run, url: str, said: str) -> None:
    done = run("inspect", url)
    fails(done, 2, said)
    assert "hush" not in done.stderr
    assert "u:p" not in done.stderr


def test_objects_label_hides_the_secret() -> None:
    found = parse("s3://id:hush@bucket/a%20b@c.ndjson?region=eu-central-1")
    assert found.label == "s3://bucket/a%20b%40c.ndjson?region=eu-central-1"
    azure = parse("https://:hush@account.blob.core.windows.net/c/a.ndjson")
    assert azure.label == "az://account@c/a.ndjson"


@pytest.mark.slow
def test_objects_alias_has_the_endpoint_and_the_secret(
    run: Run,
    bucket: Bucket,
    store: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    config = tmp_path / "config.toml"
    config.write_text(
        f'[stores.backup]\nurl = "s3://{KEY_ID}@{bucket.name}/chats.ndjson"\n'
        f'endpoint = "{bucket.endpoint}"\nregion = "us-east-1"\npath_style = true\n'
        f'password_command = "echo {SECRET}"\n'
    )
    monkeypatch.setenv("MEMCTL_CONFIG", str(config))
    checked = report(run("config", "check", "--json"))
    assert checked["checks"][0]["note"] == "there is no archive yet; usable as a target"
    report(run("export", store, "-o", "backup", "--rotate", "last:3", "--json"))
    checked = report(run("config", "check", "--json"))
    assert "the name of a rotation; newest of 1 file: chats-" in checked["checks"][0]["note"]
    report(run("migrate", store, "backup", "--json"))
    checked = report(run("config", "check", "--json"))
    assert checked["checks"][0]["note"] == "opened as memctl archive; memories found"
    for words in (("config", "show"), ("history",), ("inspect", "backup")):
        done = run(*words)
        assert done.exit_code == 0
        assert SECRET not in done.output
    config.write_text('[stores.prod]\nurl = "redis://h/0"\nendpoint = "http://h"\n')
    fails(run("config", "check"), 2, "endpoint does not fit its url")


@pytest.mark.slow
def test_objects_alias_of_no_bucket_fails_its_check(
    run: Run, bucket: Bucket, write: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = bucket.url("chats.ndjson")
    write.write_text(f'[stores.backup]\nurl = "{url.replace(bucket.name, "none")}"\n')
    found = report(run("config", "check", "--json"), 3)
    assert found["checks"][0]["error"]["message"] == "there is no bucket 'none'"
    write.write_text(f'[stores.backup]\nurl = "{url.replace("?", "@latest?")}"\n')
    found = report(run("config", "check", "--json"), 3)
    assert "there is no rotation" in found["checks"][0]["error"]["message"]
    write.write_text(f'[stores.backup]\nurl = "{url}"\n')
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    found = report(run("config", "check", "--json"), 3)
    assert "refuses the credentials" in found["checks"][0]["error"]["message"]


def test_objects_profile_of_aws(
    run: Run, archive: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    path = tmp_path / "credentials"
    path.write_text(f"[work]\naws_access_key_id={KEY_ID}\naws_secret_access_key={SECRET}\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
    monkeypatch.setenv("AWS_PROFILE", "work")
    report(run("inspect", archive, "--json"))
    name, _, query = archive.partition("?endpoint=")
    path = tmp_path / "config"
    path.write_text(f"[profile work]\nregion=us-east-1\nendpoint_url={query}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(path))
    report(run("inspect", name, "--json"))
    path.write_text("[profile work]\nendpoint_url=minio:9000\n")
    fails(run("inspect", name), 2, "endpoint_url=minio:9000 is not the URL of a server")


def test_objects_driver_is_not_installed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    fails(run("inspect", "s3://bucket/a.ndjson"), 2, "needs the driver 'obstore'", "objects")


# What a server refuses


def test_objects_wrong_credentials(
    run: Run, archive: str, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    fails(run("inspect", archive), 3, "refuses the credentials (SignatureDoesNotMatch)")
    fails(run("migrate", store, archive.replace("chats", "new")), 3, "refuses the credentials")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    fails(run("inspect", archive), 3, "refuses the credentials (InvalidAccessKeyId)")
    fails(run("inspect", archive.replace("s3://", "s3://other@")), 3, "no secret for the key ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    fails(run("inspect", archive), 3, "no secret for the key ID 'nobody'")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    fails(run("inspect", archive), 3, "no credentials for s3://", "set AWS_ACCESS_KEY_ID")


def test_objects_missing_bucket_and_object(run: Run, bucket: Bucket, store: Path) -> None:
    gone = bucket.url("chats.ndjson").replace(bucket.name, "no-such-bucket")
    fails(run("inspect", gone), 4, "there is no bucket 'no-such-bucket'")
    fails(run("migrate", store, gone), 4, "there is no bucket 'no-such-bucket'")
    fails(run("inspect", bucket.url("chats.ndjson")), 4, "does not exist")


@pytest.mark.slow
def test_objects_server_is_down(run: Run, bucket: Bucket) -> None:
    url = bucket.url("chats.ndjson", endpoint="http://127.0.0.1:1")
    fails(run("inspect", url), 3, "cannot reach http://127.0.0.1:1: Connection refused")


def test_objects_server_without_tls(run: Run, bucket: Bucket) -> None:
    secure = bucket.endpoint.replace("http:", "https:")
    url = bucket.url("chats.ndjson", endpoint=secure)
    fails(run("inspect", url), 3, f"cannot reach {secure}: it does not speak HTTPS", "is it http:")


async def test_objects_server_with_a_certificate_of_its_own(
    servers: Servers, bucket: Bucket, store: Path, tmp_path: Path
) -> None:
    async with Tls(servers.objects.port, tmp_path) as tls:
        url = bucket.url("chats.ndjson", endpoint=f"https://127.0.0.1:{tls.port}")
        failed = start("migrate", store, url)
        said = (await asyncio.to_thread(failed.communicate))[1]
        assert failed.returncode == 3
        assert "its certificate is not trusted (UnknownIssuer)" in said
        trusting = os.environ | {"SSL_CERT_FILE": str(tls.authority)}
        done = start("migrate", store, url, env=trusting)
        assert (await asyncio.to_thread(done.communicate))[1] == ""
        assert done.returncode == 0
    assert bucket.files() == ["chats.ndjson"]


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("AWS_ENDPOINT_URL", "minio:9000", "AWS_ENDPOINT_URL=minio:9000 is not the URL"),
        (
            "AWS_ENDPOINT_URL_S3",
            "https://id:hush@minio",
            "AWS_ENDPOINT_URL_S3=https://id:***@minio",
        ),
        ("AWS_REGION", "eu-central-1\r", "the region 'eu-central-1\\r' is not valid"),
    ],
)
def test_objects_environment_is_refused(
    run: Run, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, said: str
) -> None:
    monkeypatch.setenv(variable, value)
    done = run("inspect", "s3://bucket/chats.ndjson")
    fails(done, 2, said)
    assert "hush" not in done.output


@pytest.mark.parametrize(
    ("status", "code", "said"),
    [
        ("403 Forbidden", "RequestTimeTooSkewed", "refuses the time of this machine's clock"),
        ("403 Forbidden", "AccessDenied", "no permission to read"),
        ("400 Bad Request", "ExpiredToken", "refuses the credentials (ExpiredToken)"),
    ],
)
def test_objects_refusal_is_one_line(
    run: Run, servers: Servers, bucket: Bucket, store: Path, status: str, code: str, said: str
) -> None:
    with Gate(servers.objects.port, lambda data: _refuse(data, status, code)) as gate:
        url = bucket.url("chats.ndjson", endpoint=gate.endpoint)
        fails(run("inspect", url), 3, said)
        fails(run("migrate", store, url), 3, said)


def _refuse(data: bytes, status: str, code: str) -> bytes:
    if data.startswith(b"HEAD "):  # has no body
        return f"HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()
    return refusal(status, code)


@pytest.mark.slow
@pytest.mark.usefixtures("archive")
def test_objects_no_permission_to_list(
    run: Run, servers: Servers, bucket: Bucket, tmp_path: Path
) -> None:
    """Reading and writing an object need no list."""

    def rule(data: bytes) -> bytes | None:
        return refusal("403 Forbidden", "AccessDenied") if b"list-type" in data[:200] else None

    with Gate(servers.objects.port, rule) as gate:
        url = bucket.url("backups/chats.ndjson.zst", endpoint=gate.endpoint)
        report(run("import", url, tmp_path / "back.db", "--json"))
        report(run("delete", url, "--mark", "hint", "--yes", "--json"))
        with pytest.raises(Unavailable, match="no permission to list"):
            ObjectFile(parse_address(url)).siblings()


# What happens in the middle


@pytest.mark.slow
def test_objects_connection_is_cut_in_a_download(
    run: Run, servers: Servers, bucket: Bucket, large: Path, tmp_path: Path
) -> None:
    report(run("migrate", large, bucket.url("large.ndjson"), "--json"))
    with Gate(servers.objects.port, cut=10_000_000) as gate:
        url = bucket.url("large.ndjson", endpoint=gate.endpoint)
        fails(run("import", url, tmp_path / "new.db"), 3, "cannot reach")
        assert gate.is_cut
    assert not (tmp_path / "new.db").exists()


@pytest.mark.slow
def test_objects_connection_is_cut_in_an_upload(
    run: Run, servers: Servers, bucket: Bucket, large: Path
) -> None:
    with Gate(servers.objects.port, up=20_000_000) as gate:
        url = bucket.url("large.ndjson", endpoint=gate.endpoint)
        fails(run("migrate", large, url), 3, "cannot reach")
        assert gate.is_cut
    assert "large.ndjson" not in bucket.files()


@pytest.fixture
def _small_files() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.slow
def test_objects_no_room_to_stage(
    run: Run,
    bucket: Bucket,
    large: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    url = bucket.url("large.ndjson")
    report(run("migrate", large, url, "--json"))
    monkeypatch.setattr(objects, "IN_RAM", 1)
    request.getfixturevalue("_small_files")
    fails(run("inspect", url), 3, "cannot write", "larger than permitted")


@pytest.mark.slow
def test_objects_replaced_while_it_is_read(
    run: Run, bucket: Bucket, large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = bucket.url("large.ndjson")
    report(run("migrate", large, url, "--json"))
    write = objects._write

    def replaced(handle: int, data: bytes) -> None:
        monkeypatch.setattr(objects, "_write", write)
        path = bucket.folder / "large.ndjson"
        path.write_bytes(path.read_bytes()[::-1])
        write(handle, data)

    monkeypatch.setattr(objects, "_write", replaced)
    fails(run("inspect", url), 3, "changed while it was read")


def test_objects_change_by_another_program_is_not_overwritten(bucket: Bucket) -> None:
    file = ObjectFile(parse_address(bucket.url("a.ndjson")))
    theirs = bucket.folder / "a.ndjson"
    with file.create(replace=False) as new:
        new.write(b"mine")
        theirs.write_bytes(b"theirs")
        with pytest.raises(UsageError, match="exists"):
            new.commit()
    for size in (1, 20_000_000):
        with file.create() as new:
            new.write(bytes(size))
            theirs.write_bytes(os.urandom(10))
            with pytest.raises(MemctlError, match="another program changed"):
                new.commit()
        assert theirs.stat().st_size == 10
    assert bucket.files() == ["a.ndjson"]


# Azure


@pytest.mark.slow
def test_objects_on_azure(run: Run, store: Path, large: Path) -> None:
    """What the client for Azure sends and understands; no test here reaches Azure itself."""
    with Azure() as azure:
        login = f"account:{quote('a2V5', safe='')}"
        url = f"az://{login}@container/a/chats.ndjson.zst?endpoint={azure.endpoint}"
        shown = report(run("migrate", store, url, "--json"))["target"]
        assert shown == f"az://account@container/a/chats.ndjson.zst?endpoint={azure.endpoint}"
        report(run("delete", url, "--mark", "hint", "--yes", "--json"))
        report(run("undo", "--store", url, "--yes", "--json"))
        assert contents(url) == contents(str(store))
        report(run("migrate", large, url.replace("chats", "large"), "--json"))
        assert list(azure.blobs) == ["a/chats.ndjson.zst", "a/large.ndjson.zst"]
        assert not azure.blocks
        file = ObjectFile(parse_address(url))
        assert [one.name for one in file.siblings()] == ["chats.ndjson.zst", "large.ndjson.zst"]
        fails(run("inspect", url.replace("chats", "none")), 4, "does not exist")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)]
)
async def test_objects_killed_in_an_upload(
    bucket: Bucket, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    path = tmp_path / "source.ndjson"
    await fill(str(path), {ADA: [message(n, size=500_000) for n in range(100)]})
    environment: dict[str, Any] = dict(os.environ)
    with start("migrate", path, bucket.url("large.ndjson"), env=environment) as process:
        wait_until(bucket.files)  # the first parts of the upload
        process.send_signal(number)
        process.communicate(timeout=60)
    assert process.returncode == code
    assert "large.ndjson" not in bucket.files()
    if number != signal.SIGKILL:
        assert bucket.files() == []
