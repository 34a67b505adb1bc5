"""AgentScope 2.x lists a session under the new names that memctl gave it and its user."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.interop2.test_sessions import ALICE, PLACES, AgentScope2, session
from tests.support.cli import Run, report

__all__ = ["session"]


@pytest.mark.parametrize("kind", PLACES)
def test_rename_agentscope_lists_what_it_wrote(
    run: Run, agentscope2: AgentScope2, session: Callable[[str], str], kind: str
) -> None:
    place, old = session(kind), str(ALICE["session"])
    before = agentscope2("list", place, user="alice")
    assert before
    runs = [
        report(run("rename", place, *words, "--yes", "--json"))["run"]
        for words in (("--session", old, "renamed"), ("--user", "alice", "carol: 会话"))
    ]
    renamed = json.loads(json.dumps(before).replace(json.dumps(old), '"renamed"'))
    assert agentscope2("list", place, user="carol: 会话") == renamed
    assert agentscope2("list", place, user="alice") == []
    for name in reversed(runs):
        report(run("undo", name, "--store", place, "--json"))
    assert agentscope2("list", place, user="alice") == before
