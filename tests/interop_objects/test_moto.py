"""Archives on a second S3 server, moto, which knows conditions and lists unfinished uploads."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from memctl.engines.objects.address import parse_address
from memctl.engines.objects.file import ObjectFile
from memctl.errors import MemctlError, NotFound
from memctl.model import MemoryKey
from memctl.testing import samples
from tests.support.cli import Run, contents, fill, report
from tests.support.processes import start as start_memctl
from tests.support.processes import wait_until
from tests.support.servers import free_port
from tests.support.servers.pool import start
from tests.support.worker import environ, program

WORKER = Path(__file__).with_name("worker.py")
KEY = MemoryKey("ada", "s1")


@pytest.fixture(scope="session")
def endpoint() -> Iterator[str]:
    """The URL of the server."""
    python = start(lambda: program(".interop-moto"))
    url = f"http://127.0.0.1:{free_port()}"
    command = [str(python), str(WORKER), url.rpartition(":")[2]]
    nowhere = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, env=environ(), **nowhere) as server:
        wait_until(lambda: is_up(url))
        yield url
        server.terminate()


def is_up(url: str) -> bool:
    try:
        return bool(ask("GET", f"{url}/"))
    except OSError:
        return False


def ask(method: str, url: str) -> bytes:
    with urlopen(Request(url, method=method)) as answer:
        found: bytes = answer.read()
    return found


@pytest.fixture
def bucket(endpoint: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a new bucket, without a hyphen, which moto does not decode."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    name = f"bucket{abs(hash(request.node.name))}"
    ask("PUT", f"{endpoint}/{name}")
    return name


def unfinished(endpoint: str, bucket: str) -> bool:
    """Return whether the server keeps parts of unfinished uploads."""
    return b"<UploadId>" in ask("GET", f"{endpoint}/{bucket}?uploads")


def test_moto_archive_goes_and_comes_back(run: Run, bucket: str, tmp_path: Path) -> None:
    source, url = tmp_path / "a.db", f"s3://{bucket}/a/b.ndjson.zst"
    asyncio.run(fill(str(source), {KEY: samples.entries(100)}))
    report(run("migrate", source, url, "--json"))
    report(run("verify", source, url, "--json"))
    report(run("delete", url, "--user", "ada", "--yes", "--json"))
    report(run("undo", "--yes", "--json"))
    assert contents(url) == contents(str(source))


def test_moto_condition_is_the_server_s(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object that appears after the last look is not overwritten."""
    file = ObjectFile(parse_address(f"s3://{bucket}/a.ndjson"))
    other = file.sibling("a.ndjson")
    with file.create() as first, other.create() as second:
        first.write(b"first")
        second.write(b"second")
        first.commit()
        monkeypatch.setattr(other, "head", lambda: None)
        with pytest.raises(MemctlError, match="another program changed"):
            second.commit()
    assert os.read(file.open(), 100) == b"first"


def test_moto_more_objects_than_one_list_holds(bucket: str, endpoint: str) -> None:
    file = ObjectFile(parse_address(f"s3://{bucket}/a/b.ndjson"))
    for number in range(1005):
        ask("PUT", f"{endpoint}/{bucket}/a/{number:04}.ndjson")
    ask("PUT", f"{endpoint}/{bucket}/a/deeper/x.ndjson")
    assert sorted(one.name for one in file.siblings()) == [f"{n:04}.ndjson" for n in range(1005)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_moto_stopped_upload_leaves_no_parts(
    bucket: str, endpoint: str, tmp_path: Path, number: signal.Signals
) -> None:
    source = tmp_path / "a.ndjson"
    large = [samples.entry(f"m{n}", n, content=os.urandom(500_000).hex()) for n in range(100)]
    await fill(str(source), {KEY: large})
    settings: dict[str, Any] = {"env": dict(os.environ)}
    url = f"s3://{bucket}/b.ndjson"
    with start_memctl("migrate", source, url, **settings) as process:
        wait_until(lambda: unfinished(endpoint, bucket))
        process.send_signal(number)
        process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert not unfinished(endpoint, bucket)
    with pytest.raises(NotFound):
        ObjectFile(parse_address(url)).open()


def test_moto_as_google_cloud_storage(bucket: str, endpoint: str) -> None:
    """What the client for Google sends and understands: moto has the same XML interface."""
    key = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    about = {"type": "service_account", "private_key": key.decode(), "private_key_id": "1"}
    account = json.dumps({**about, "client_email": "a@b", "client_id": "1"})
    url = f"gs://:{quote(account, safe='')}@{bucket}/a/b.ndjson?endpoint={endpoint}"
    file = ObjectFile(parse_address(url))
    assert file.label == f"gs://{bucket}/a/b.ndjson?endpoint={endpoint}"
    for size in (1, 2, 40_000_000):
        with file.create() as new:
            new.write(bytes(size))
            new.commit()
        descriptor = file.open()
        assert os.fstat(descriptor).st_size == size
        os.close(descriptor)
    assert [one.name for one in file.siblings()] == ["b.ndjson"]
    file.remove()
    assert file.stamp() is None
