"""AgentScope reads a memory under the new name that memctl gave it, as it read it before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import Result

from tests.interop.test_migrate import ALONE, PLACES, SUMMARISED, asked, memories, messages, place
from tests.support.agentscope import AgentScope

__all__ = ["place"]

USERS = {"bob": "bob@example.com", "会话": "it's: 😀"}
SESSIONS = {"s1": "100% -*- new", 'say "hi" 100%': "会话 2"}


def renamed(memory: dict[str, Any]) -> dict[str, Any]:
    """Return a memory with the new names of its user and its session."""
    user, session = memory["user"], memory["session"]
    return memory | {"user": USERS.get(user, user), "session": SESSIONS.get(session, session)}


@pytest.mark.parametrize("kind", [kind for kind in PLACES if kind != ALONE])
def test_rename_agentscope_reads_what_it_wrote(
    agentscope: AgentScope, run: Callable[..., Result], place: Callable[[str], str], kind: str
) -> None:
    text, written = place(kind), memories(4, summary=kind in SUMMARISED)
    agentscope.write(text, written)
    before = agentscope.read(text, asked(written))
    for what, names in (("--user", USERS), ("--session", SESSIONS)):
        for old, new in names.items():
            done = run("rename", text, what, old, new, "--yes")
            assert done.exit_code == 0, done.output
    new = list(map(renamed, written))
    assert agentscope.read(text, asked(new)) == before
    gone = [one for one in written if one["session"] in SESSIONS]  # SQL ignores the user
    assert not any(one["messages"] for one in agentscope.read(text, asked(gone)))
    if kind not in SUMMARISED:  # a state is written whole
        more = [one | {"messages": messages(2, f"more{at}-")} for at, one in enumerate(new)]
        agentscope.write(text, more)
        for old, now in zip(before, agentscope.read(text, asked(new)), strict=True):
            number = len(old["messages"])
            assert now["messages"][:number] == old["messages"]
            assert len(now["messages"]) > number
