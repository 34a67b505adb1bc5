"""The mem0 Platform, played by a server on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from memctl.model import MemoryKey, WriteResult
from memctl.registry import make_store, parse
from memctl.store import OpenMode
from memctl.testing import Style, samples
from memctl.testing.drive import write
from tests.support.backends import FACT_BACKENDS, mem0_key
from tests.support.cli import Run, contents, fails, fill, report
from tests.support.mem0_platform import KEY, Platform
from tests.support.servers.pool import Servers


@pytest.fixture
def platform(monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    """A project of the Platform, whose key is in the environment, as the SDK takes it."""
    monkeypatch.setenv("MEM0_API_KEY", KEY)
    with Platform() as found:
        yield found


def native(platform: Platform, count: int) -> None:
    """Add memories as programs do."""
    for number in range(count):
        body = {"messages": [{"content": f"fact {number}"}], "user_id": "ada", "infer": False}
        platform.answer("POST", "/v3/memories/add/", {}, body)


@pytest.mark.slow
def test_project_is_inspected_page_by_page(run: Run, platform: Platform) -> None:
    native(platform, 450)
    found = report(run("inspect", f"mem0://{platform.host}", "--json"))
    assert found["store"]["kind"] == "mem0-platform"
    assert found["totals"]["messages"] == 450
    assert [(one["user"], one["messages"]) for one in found["memories"]] == [("ada", 450)]
    shown = run("inspect", f"mem0://{platform.host}", "--messages", "--match", "fact 449")
    assert "fact 449" in shown.stdout
    assert "misc" in shown.stdout  # its category


@pytest.mark.slow
@pytest.mark.parametrize("queues", [False, True])
def test_facts_go_to_the_platform_and_back(
    run: Run, platform: Platform, tmp_path: Path, servers: Servers, queues: bool
) -> None:
    platform.queues = queues
    backend = FACT_BACKENDS["mem0-qdrant"](servers)
    samples.use(backend.style)
    source = backend.make(tmp_path)
    scopes = {mem0_key(0): samples.entries(30), mem0_key(1): samples.entries(5, 30)}
    asyncio.run(fill(source, scopes))
    samples.use(samples.Style())
    target = f"mem0://{platform.host}"
    found = report(run("migrate", source, target, "--json"))
    assert found["messages"]["written"] == 35
    assert {one["memory"] for one in platform.memories} == {f"message {n}" for n in range(35)}
    again = report(run("migrate", source, target, "--json"))
    assert again["messages"].get("written", 0) == 0
    assert len(platform.memories) == 35
    assert run("verify", source, target).exit_code == 0
    back = tmp_path / "back.ndjson"
    assert run("export", target, "-o", str(back)).exit_code == 0
    assert run("verify", source, str(back)).exit_code == 0


def test_facts_are_deleted_and_restored(run: Run, platform: Platform) -> None:
    native(platform, 5)
    target = f"mem0://{platform.host}"
    found = report(run("delete", target, "--match", "fact 3", "--yes", "--json"))
    assert found["messages"]["deleted"] == 1
    assert "fact 3" not in {one["memory"] for one in platform.memories}
    report(run("undo", "--store", target, "--yes", "--json"))
    assert "fact 3" in {one["memory"] for one in platform.memories}
    assert all(
        body["infer"] is False for _, path, body in platform.requests if path.endswith("/add/")
    )


def test_rate_limit_is_waited_for(run: Run, platform: Platform) -> None:
    native(platform, 3)
    platform.refusals.extend([(429, {"Retry-After": "0"})] * 3)
    assert report(run("inspect", f"mem0://{platform.host}", "--json"))["totals"]["messages"] == 3


def test_rate_limit_that_stays_is_an_error(run: Run, platform: Platform) -> None:
    platform.refusals.extend([(429, {"Retry-After": "0"})] * 100)
    fails(run("inspect", f"mem0://{platform.host}"), 3, "Rate limit exceeded", "run the same")


def test_key_that_is_refused_is_an_error(
    run: Run, platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEM0_API_KEY", "wrong")
    fails(run("inspect", f"mem0://{platform.host}"), 3, "Given token not valid", "check the key")
    result = run("inspect", f"mem0://:other-s3cret@{platform.host}")
    fails(result, 3, "check the key")
    assert "other-s3cret" not in result.stderr + result.stdout


def test_key_that_is_missing_is_an_error(
    run: Run, platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MEM0_API_KEY")
    fails(run("inspect", f"mem0://{platform.host}"), 2, "no key", "MEM0_API_KEY")


@pytest.mark.usefixtures("platform")
def test_host_that_is_not_there_is_an_error(run: Run) -> None:
    with Platform() as gone:
        host = gone.host
    fails(run("inspect", f"mem0://{host}"), 3, "check the host")


@pytest.mark.slow
def test_what_came_from_the_platform_is_known_there(
    run: Run, platform: Platform, tmp_path: Path
) -> None:
    native(platform, 5)
    archive = tmp_path / "hosted.ndjson"
    assert run("export", f"mem0://{platform.host}", "-o", str(archive)).exit_code == 0
    report(run("delete", f"mem0://{platform.host}", "--match", "fact 3", "--yes", "--json"))
    found = report(run("import", str(archive), f"mem0://{platform.host}", "--json"))
    assert found["messages"]["written"] == 1
    assert sorted(one["memory"] for one in platform.memories) == [f"fact {n}" for n in range(5)]
    assert run("verify", str(archive), f"mem0://{platform.host}").exit_code == 0


def test_half_of_a_character_is_refused(platform: Platform) -> None:
    samples.use(Style("fact", frozenset()))
    written = {
        MemoryKey("\ud83d", ""): samples.entry("f1"),
        MemoryKey("ada", ""): samples.entry("f2", content="a \ud83d dog"),
        MemoryKey("bob", ""): samples.entry("\ud83d"),
        MemoryKey("carol", ""): samples.entry("f4"),
    }
    samples.use(Style())

    async def work() -> dict[MemoryKey, WriteResult]:
        async with make_store(parse(f"mem0://{platform.host}"), OpenMode.CREATE) as store:
            return await write(store, [samples.sample(*one) for one in listed])

    listed = [(key, [fact]) for key, fact in written.items()]
    results = asyncio.run(work())
    failures = [one.failure.code if one.failure else "" for one in results.values()]
    assert failures == ["refused", "refused", "refused", ""]
    assert [one["user_id"] for one in platform.memories] == ["carol"]


def test_redact_refuses_the_platform(run: Run, platform: Platform) -> None:
    native(platform, 2)
    store = f"mem0://{platform.host}"
    before = contents(store)
    for more in ((), ("--user", "ada")):
        result = run("redact", store, "--match", "fact", *more, "--yes")
        fails(result, 2, "the service may keep what is replaced", "delete or erase the memories")
    assert contents(store) == before
