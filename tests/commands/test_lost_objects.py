"""Commands on a bucket that loses each request in turn, before or after it was carried out."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from memctl.engines.objects import file as objects
from memctl.model import MemoryKey
from memctl.ops import lost_answer
from memctl.testing import samples
from tests.support.cli import Run, contents, fails, fill, report
from tests.support.places import runs_kept
from tests.support.servers.losing import Fault, Losing
from tests.support.servers.objects import environment

pytestmark = pytest.mark.slow

KEY = "nightly/a.ndjson"
KEYS = MemoryKey("ada", "kyoto"), MemoryKey("bob", "osaka")
CHANGES: dict[str, Callable[[str], tuple[object, ...]]] = {
    "delete": lambda url: ("delete", url, "--user", "ada", "--last", 2, "--yes"),
    "mark": lambda url: ("mark", "add", url, "new", "--user", "ada"),
    "doctor": lambda url: ("doctor", url, "--repair", "--yes"),
    "undo": lambda url: ("undo", "--store", url, "--yes"),
    "erase": lambda url: ("erase", url, "--user", "ada", "--yes"),
    "import": lambda url: ("import", "source.ndjson", url, "--retries", 1),
}


@pytest.fixture(params=["at once", "in parts"])
def bucket(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Losing]:
    """A bucket to which memctl writes in one request, or in parts."""
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(objects, "_RETRIES", 1)
    monkeypatch.setattr(lost_answer, "FIRST_PAUSE", 0.01)
    if request.param == "in parts":
        monkeypatch.setattr(objects, "_ONE_REQUEST", 1)
        monkeypatch.setattr(objects, "_PIECE", 1000)
    asyncio.run(fill("before.ndjson", dict.fromkeys(KEYS, samples.entries(8))))
    asyncio.run(fill("source.ndjson", {MemoryKey("eve", "nara"): samples.entries(4)}))
    with Losing() as bucket:
        yield bucket


def prepared(run: Run, bucket: Losing, command: str) -> str:
    """Put the archive as it is before a command; return its URL."""
    bucket.lose()
    bucket.parts.clear()
    bucket.objects = {KEY: Path("before.ndjson").read_bytes()}
    url = bucket.url(KEY)
    if command == "undo":
        report(run("delete", url, "--user", "bob", "--yes", "--json"))
    return url


def requests(run: Run, bucket: Losing, words: Callable[[], tuple[object, ...]]) -> int:
    """Run a command that succeeds; return the number of its requests."""
    bucket.lose()
    assert run(*words()).exit_code == 0
    return len(bucket.requests)


@pytest.mark.parametrize("command", CHANGES)
def test_lost_request_of_a_change(run: Run, bucket: Losing, command: str) -> None:
    words = CHANGES[command]
    url = prepared(run, bucket, command)
    number = requests(run, bucket, lambda: words(url))
    wanted = contents(url)
    for lost in range(number):
        for fault in (Fault.UNHEARD, Fault.UNANSWERED):
            prepared(run, bucket, command)
            before, kept = contents(url), len(runs_kept())
            bucket.lose(lost, fault)
            done = run(*words(url))
            assert done.exit_code == 0, (bucket.requests[lost], fault, done.stderr)
            assert contents(url) == wanted
            assert not any(bucket.parts.values())
            if command not in ("erase", "undo"):
                assert len(runs_kept()) == kept + 1
                assert run("undo", "--store", url, "--yes").exit_code == 0
                assert contents(url) == before


@pytest.mark.parametrize("command", CHANGES)
def test_server_that_goes_after_a_request_of_a_change(
    run: Run, bucket: Losing, command: str
) -> None:
    words = CHANGES[command]
    url = prepared(run, bucket, command)
    requests(run, bucket, lambda: words(url))
    for lost in bucket.writes()[-2:]:
        prepared(run, bucket, command)
        before = contents(url)
        bucket.lose(lost, Fault.LAST)
        done = run(*words(url))
        bucket.lose()
        after = contents(url)
        if done.exit_code == 0:
            assert after != before
            continue
        assert done.exit_code in (3, 7), done.stderr
        assert "nothing was changed" not in done.stderr
        if after != before and command not in ("erase", "undo"):
            assert run("undo", "--store", url, "--yes").exit_code == 0, "the record is kept"
            assert contents(url) == before


def test_lost_request_of_an_export(run: Run, bucket: Losing) -> None:
    url = bucket.url("new.ndjson")
    words = ("export", "before.ndjson", "-o", url)
    number = requests(run, bucket, lambda: words)
    wanted = contents(url)
    for lost in range(number):
        for fault in (Fault.UNHEARD, Fault.UNANSWERED):
            bucket.objects.clear()
            bucket.lose(lost, fault)
            done = run(*words)
            assert done.exit_code == 0, (bucket.requests[lost], fault, done.stderr)
            assert contents(url) == wanted
            assert not any(bucket.parts.values())


def test_lost_request_of_a_rotation(run: Run, bucket: Losing) -> None:
    words = ("export", "before.ndjson", "-o", bucket.url("n.ndjson"), "--rotate", "last:1")

    def old() -> tuple[object, ...]:
        bucket.objects = {"n-20260101T000000.ndjson": Path("before.ndjson").read_bytes()}
        return words

    for lost in range(requests(run, bucket, old)):
        for fault in (Fault.UNHEARD, Fault.UNANSWERED):
            old()
            bucket.lose(lost, fault)
            done = run(*words)
            assert done.exit_code == 0, (bucket.requests[lost], fault, done.stderr)
            assert len(bucket.objects) == 1
            assert "n-20260101T000000.ndjson" not in bucket.objects


@pytest.mark.parametrize("command", ["delete", "export"])
def test_signal_during_the_last_request(run: Run, bucket: Losing, command: str) -> None:
    url = prepared(run, bucket, command)
    words = CHANGES["delete"](url)
    if command == "export":
        words = ("export", "source.ndjson", "-o", url, "--force")
    requests(run, bucket, lambda: words)
    last = bucket.writes()[-1]
    prepared(run, bucket, command)
    before = contents(url)
    bucket.lose(last, Fault.UNANSWERED)
    bucket.met = lambda: os.kill(os.getpid(), signal.SIGINT)
    done = run(*words)
    bucket.met = lambda: None
    assert contents(url) != before
    if command == "export":
        assert done.exit_code in (0, 130)
    else:
        assert done.exit_code == 130
        assert run("undo", "--store", url, "--yes").exit_code == 0
        assert contents(url) == before


def test_object_of_another_program_after_a_lost_answer(run: Run, bucket: Losing) -> None:
    memories = dict.fromkeys((*KEYS, MemoryKey("eve", "nara")), samples.entries(8))
    asyncio.run(fill("other.ndjson", memories))
    url = prepared(run, bucket, "delete")
    requests(run, bucket, lambda: CHANGES["delete"](url))
    last = bucket.writes()[-1]
    prepared(run, bucket, "delete")
    bucket.lose(last, Fault.UNHEARD)
    other = Path("other.ndjson").read_bytes()

    def replace() -> None:
        bucket.objects[KEY] = other
        bucket.parts.clear()

    bucket.met = replace
    done: Any = run(*CHANGES["delete"](url))
    assert done.exit_code == 3
    assert "another program changed" in done.stderr
    assert bucket.objects[KEY] == other


def test_list_of_a_bucket_without_end(run: Run, bucket: Losing) -> None:
    words = ("export", "before.ndjson", "-o", bucket.url("n.ndjson"), "--rotate", "last:1")
    requests(run, bucket, lambda: words)
    lists = [n for n, one in enumerate(bucket.requests) if "list-type" in one]
    bucket.lose(lists[0], Fault.ENDLESS)
    began = time.monotonic()
    fails(run(*words, "--timeout", 1), 3, "did not answer within 1 s", "raise --timeout")
    assert time.monotonic() - began < 10
    bucket.gone = True


def test_nothing_rests_on_an_object_that_is_not_what_was_written(
    run: Run, bucket: Losing, tmp_path: Path
) -> None:
    old = "n-20260101T000000.ndjson"
    bucket.objects = {old: Path("before.ndjson").read_bytes()}
    bucket.spoils = True
    words = ("export", "before.ndjson", "-o", bucket.url("n.ndjson"), "--rotate", "last:1")
    fails(run(*words), 3, "is not what memctl wrote")
    assert old in bucket.objects
    data = base64.b64encode(bytes(99_999)).decode()
    source = {"type": "base64", "media_type": "image/png", "data": data}
    store = str(tmp_path / "agents.db")
    asyncio.run(
        fill(
            store,
            {KEYS[0]: [samples.entry("m1", 1, content=[{"type": "image", "source": source}])]},
        )
    )
    before = contents(store)
    for more in ((), ("--no-backup",)):
        offload = ("offload", store, "--to", bucket.url("blobs"), "--yes", *more)
        fails(run(*offload), 3, "is not what memctl wrote")
        assert contents(store) == before
    bucket.spoils = False
    assert run(*words).exit_code == 0
    assert old not in bucket.objects
    assert run(*offload).exit_code == 0
    assert contents(store) != before
    assert all(bucket.sums), "each upload tells its SHA-256"
