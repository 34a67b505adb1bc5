"""The real SDK of the mem0 Platform and memctl, against one server on loopback.

That the SDK's ``MemoryClient`` works with the server shows that the server is as the SDK expects;
it does not show what the service at api.mem0.ai does.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from memctl.selection import Selection
from tests.interop_mem0.conftest import Configure, Mem0, store_of
from tests.interop_mem0.test_library import filled
from tests.support.cli import Run, report
from tests.support.mem0_platform import KEY, Platform
from tests.support.service_search import found as found_by_service


@pytest.fixture
def platform(monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    """A project of the Platform, whose key is in the environment, as the SDK takes it."""
    monkeypatch.setenv("MEM0_API_KEY", KEY)
    with Platform() as found:
        yield found


def client(mem0: Mem0, platform: Platform, method: str, **arguments: Any) -> Any:
    """Call a method of a ``MemoryClient``."""
    host = f"http://{platform.host}"
    return mem0("platform", host=host, key=KEY, method=method, arguments=arguments)


def test_memctl_sees_what_the_sdk_adds(run: Run, mem0: Mem0, platform: Platform) -> None:
    said = [{"role": "user", "content": "I live in Kyoto"}]
    client(mem0, platform, "add", messages=said, user_id="ada", metadata={"n": 1}, infer=False)
    client(mem0, platform, "add", messages="Be brief", agent_id="planner", infer=False)
    found = client(mem0, platform, "get_all", filters={"user_id": "ada"}, page=1, page_size=10)
    [one] = found["results"]
    assert one["memory"] == "I live in Kyoto"
    target = f"mem0://{platform.host}"
    totals = report(run("inspect", target, "--json"))["totals"]
    assert totals["messages"] == 2
    assert report(run("delete", target, "--id", one["id"], "--yes", "--json"))
    left = client(mem0, platform, "get_all", filters={"user_id": "ada"})
    assert left["results"] == []


def test_memctl_searches_as_the_sdk_does(mem0: Mem0, platform: Platform) -> None:
    for text in ("a dog in the garden", "a cat", "the dog of my neighbour"):
        client(mem0, platform, "add", messages=text, user_id="ada", run_id="r1", infer=False)
    client(mem0, platform, "add", messages="a dog for bob", user_id="bob", infer=False)
    filters = {"AND": [{"user_id": "ada"}]}
    arguments = {"query": "dog garden", "filters": filters, "top_k": 3}
    wanted = client(mem0, platform, "search", **arguments)["results"]
    where = Selection(users=frozenset({"ada"}))
    hits = found_by_service(f"mem0://{platform.host}", "dog garden", 3, where)
    assert [hit.message.id for hit in hits] == [one["id"] for one in wanted]
    assert [hit.score for hit in hits] == [one["score"] for one in wanted]
    requests = [set(body) for _, path, body in platform.requests if path.endswith("/search/")]
    assert requests == [set(arguments)] * 2


def test_self_hosted_facts_go_to_the_platform_and_back(
    run: Run, mem0: Mem0, platform: Platform, configure: Configure, tmp_path: Path
) -> None:
    source, back = configure("qdrant", "one"), configure("qdrant", "two")
    ids = filled(mem0, source)
    target = f"mem0://{platform.host}"
    assert report(run("migrate", store_of(source), target, "--json"))["messages"]["written"] == 6
    found = client(mem0, platform, "search", query="garden dog", filters={"user_id": "ada"})[
        "results"
    ]
    assert "dog" in found[0]["memory"]
    embedder = source["embedder"]["config"]
    settings = tmp_path / "memctl.toml"
    settings.write_text(
        "[embedders.minilm]\nkind = 'openai'\n"
        'model = "all-MiniLM-L6-v2"\n'
        f'base_url = "{embedder["openai_base_url"]}"\n'
    )
    options = ("--config", str(settings), "--embedder", "minilm", "--json")
    copied = report(run("migrate", target, store_of(back), *options))
    assert copied["messages"]["written"] == 6
    for query in ("where does Maria live?", "games"):
        one, other = (mem0.search(config, query) for config in (source, back))
        assert {fact["id"] for fact in one} == {fact["id"] for fact in other} <= set(ids)
        assert one[0]["id"] == other[0]["id"]
    assert run("verify", target, store_of(back)).exit_code == 0
