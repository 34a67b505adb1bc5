"""The parts of a session of AgentScope 2.x besides its messages."""

from __future__ import annotations

import json

from memctl.dialects.agentscope2 import AGENTSCOPE2, default_payload, default_state


def extra(**more: object) -> str:
    """Return the extra of a new session, with more."""
    record = {"agent_id": "default", "source": "user", "team_id": None, "created_at": "now"}
    value = {
        "record": record,
        "payload": default_payload("trip", "default"),
        "state": default_state("trip"),
    }
    return json.dumps(value | more)


def test_extra_without_messages_that_go() -> None:
    unlogged = {"role": "user", "content": []}
    variant = {"id": "b", "content": []}
    found = AGENTSCOPE2.without(
        extra(context=["a", variant, unlogged, "c"]), lambda id: id in ("a", "b")
    )
    assert json.loads(found)["context"] == [unlogged, "c"]
    plain = extra()
    assert AGENTSCOPE2.without(plain, lambda _: True) == plain
    assert AGENTSCOPE2.without("", lambda _: True) == ""


def test_extra_of_a_session_that_was_never_used_is_the_default() -> None:
    assert AGENTSCOPE2.is_default("", "ada", "trip")
    assert AGENTSCOPE2.is_default(extra(), "ada", "trip")
    assert not AGENTSCOPE2.is_default(extra(), "ada", "another")
    assert not AGENTSCOPE2.is_default(extra(context=["a"]), "ada", "trip")
    assert not AGENTSCOPE2.is_default(extra(state={"session_id": "trip", "x": 1}), "ada", "trip")
