"""The first line of inspect: what it took a store for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from memctl import registry
from memctl.location import Location
from memctl.registry import BUILT_IN, StoreSpec
from memctl.testing import Place, samples
from tests.support.backends import BACKENDS, new_place
from tests.support.cli import Run, report
from tests.support.places import put
from tests.support.servers.pool import Servers

TITLES = {
    "sqlite": "AgentScope 1.x memory in SQLite",
    "postgresql": "AgentScope 1.x memory in PostgreSQL",
    "mysql": "AgentScope 1.x memory in MySQL",
    "sqlite-agentscope2": "AgentScope 2.x sessions in SQLite",
    "postgresql-agentscope2": "AgentScope 2.x sessions in PostgreSQL",
    "mysql-agentscope2": "AgentScope 2.x sessions in MySQL",
    "sqlite-java": "AgentScope Java sessions in SQLite",
    "postgresql-java": "AgentScope Java sessions in PostgreSQL",
    "mysql-java": "AgentScope Java sessions in MySQL",
    "redis-java": "AgentScope Java sessions in Redis",
    "java-files": "AgentScope Java sessions in a folder",
    "sqlite-table": "messages in a table of your own in SQLite",
    "sqlite-table-json": "messages in a table of your own in SQLite",
    "sqlite-openai-branches": "OpenAI Agents SDK sessions with branches in SQLite",
    "sqlite-llamaindex": "LlamaIndex messages in SQLite",
    "sqlite-adk": "Google ADK sessions in SQLite",
    "sqlite-agno": "Agno sessions in SQLite",
    "postgresql-agno": "Agno sessions in PostgreSQL",
    "mysql-agno": "Agno sessions in MySQL",
    "postgresql-openai-agents": "OpenAI Agents SDK sessions in PostgreSQL",
    "mysql-langchain": "LangChain messages in MySQL",
    "redis": "AgentScope 1.x memory in Redis",
    "redis-langchain": "LangChain histories in Redis",
    "redis-openai-agents": "OpenAI Agents SDK sessions in Redis",
    "redis-session": "AgentScope 1.x session states in Redis",
    "redis-runtime": "agentscope-runtime histories and memories in Redis",
    "redis-runtime-state": "agentscope-runtime states in Redis",
    "redis-agentscope2": "AgentScope 2.x sessions in Redis",
    "tablestore": "AgentScope 1.x memory in Tablestore",
    "tablestore-session": "AgentScope 1.x session states in Tablestore",
    "tablestore-runtime": "agentscope-runtime histories and memories in Tablestore",
    "langchain-files": "LangChain histories in files",
    "archive": "memctl archive",
    "archive-gz": "memctl archive",
    "archive-zst": "memctl archive",
    "archive-objects": "memctl archive",
    "sessions": "AgentScope 1.x session states in a folder",
    "agentscope2-files": "AgentScope 2.x states in session files",
    "state": "AgentScope 1.x state in a file",
    "vault": "AgenticMemory Markdown vault",
    "reme": "ReMe 0.4 vault",
    "reme-0.3": "ReMe 0.3 vector store",
    "reme-0.2": "ReMe 0.2 vector store",
    **dict.fromkeys(["mem0-qdrant", "mem0-faiss", "mem0-chroma", "mem0-pgvector"], "mem0 facts"),
    "mem0-platform": "facts on the mem0 Platform",
}


@pytest.fixture(params=BACKENDS)
def place(request: pytest.FixtureRequest, tmp_path: Path, servers: Servers) -> Iterator[Place]:
    """A place of each store in turn, with a memory in it."""
    found = new_place(request.param, tmp_path, servers)
    samples.use(found.backend.style)
    [key] = found.keys(1)
    put(found, [samples.sample(key, samples.entries(2))])
    yield found
    samples.use(samples.Style())


def test_title_is_in_the_first_line(run: Run, place: Place) -> None:
    title = TITLES[place.backend.name]
    shown = run("inspect", place.text)
    assert shown.exit_code == 0, shown.stderr
    first, _, _ = shown.stdout.partition("\n")
    assert first.endswith(f": {title}")
    assert report(run("inspect", place.text, "--json"))["store"]["what"] == title


def test_title_of_every_kind() -> None:
    assert [spec.kind for spec in BUILT_IN if not spec.title] == []


def test_title_of_a_plugin_is_its_summary(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = StoreSpec("notes", "notes://...", "notes of a plugin", "notes:Notes")
    monkeypatch.setitem(registry._BY_KIND, "notes", spec)
    assert registry.title_of(Location("notes", "notes://x")) == "notes of a plugin"
