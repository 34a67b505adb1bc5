"""The findings of doctor in 2.x sessions in SQL databases."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from memctl.model import Memory, MemoryKey, Page, StoredMessage
from memctl.registry import make_store, parse
from memctl.selection import Selection
from memctl.store import OpenMode
from memctl.stores.agentscope2.session import Comparison, new_session
from tests.support.backends import SQL_PLACES
from tests.support.servers.pool import Servers

RESULT = {"type": "tool_result", "id": "t", "name": "search", "output": "x"}
ORPHAN = {"id": "m", "role": "assistant", "name": "f", "content": [RESULT]}
STRANGER = {"id": "gone", "role": "user", "name": "u", "content": []}


@pytest.mark.parametrize("kind", SQL_PLACES)
async def test_doctor_finds_what_is_wrong_with_sessions(
    kind: str, tmp_path: Path, servers: Servers
) -> None:
    text = SQL_PLACES[kind](tmp_path, servers)
    location = parse(f"{text}{'&' if '?' in text else '?'}layout=agentscope2")
    session = new_session("bad", "default", datetime.now(UTC))
    extra = json.loads(session.extra(Comparison([]))) | {"context": ["m", STRANGER]}

    async def pages() -> AsyncGenerator[Page]:
        message = StoredMessage("m", json.dumps(ORPHAN).encode())
        yield Page(Memory(MemoryKey("ada", "bad"), extra=json.dumps(extra)), [message])
        yield Page(Memory(MemoryKey("bob", "good")), [])

    async with make_store(location, OpenMode.CREATE) as store:
        assert not [result async for result in store.write(pages()) if result.failure]
        async with aclosing(store.maintenance().check(Selection())) as findings:
            found = {finding.code: finding async for finding in findings}
        assert found["context-result-without-call"].examples == ("m",)
        assert found["context-not-in-log"].examples == ("gone",)
        assert found["session-open-to-others"].count == 2
        assert set(found) == {
            "context-result-without-call",
            "context-not-in-log",
            "session-open-to-others",
        }
