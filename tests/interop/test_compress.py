"""Real agents go on from what ``memctl compress`` has made of their memories."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import Result

from tests.support.agentscope import AgentScope
from tests.support.cli import report
from tests.support.servers.pool import Servers

Run = Callable[..., Result]
Message = dict[str, Any]

SYSTEM = ("system", "system", "You help Alice.", ())
NAMES = {"user": "alice", "session": "s1"}
NAMED = ("--user", NAMES["user"], "--session", NAMES["session"])
MARKS = ["vip", "hint", "compressed", "summary"]
FIELDS = ["task_overview", "current_state", "important_discoveries", "next_steps"]
FIELDS += ["context_to_preserve"]
NEVER = 10_000
"""A threshold that no history of these tests reaches."""


class Place(NamedTuple):
    """The place of a memory, as memctl takes it; it may be that of an agent in a session."""

    text: str
    nested: bool = False
    sql: bool = False


def new_place(kind: str, folder: Path, servers: Servers) -> Place:
    """A new place, such as ``mysql``, ``redis+redis`` or ``sqlite+folder nested``.

    Behind the ``+`` is where the state of the session is.
    """
    name, _, nested = kind.partition(" ")
    name, _, state = name.partition("+")
    match name:
        case "sqlite":
            text = f"sqlite:///{folder}/m.db"
        case "postgresql":
            text = servers.postgresql.fresh()
        case "mysql":
            text = servers.mariadb.fresh()
        case "redis":
            text = f"{servers.redis.fresh()}?prefix=app:"
        case "redis_session":
            text = f"{servers.redis.fresh()}?layout=session"
        case "state_dict":
            text = str(folder / "state.json")
        case _:
            text = str(folder / "sessions")
    if state:
        at = "redis" if state == "redis" else str(folder / "states")
        text += f"{'&' if '?' in text else '?'}state={at}"
    return Place(text, bool(nested), name in ("sqlite", "postgresql", "mysql"))


@pytest.fixture
def place(tmp_path: Path, servers: Servers) -> Callable[[str], Place]:
    return lambda kind: new_place(kind, tmp_path, servers)


@pytest.fixture
def configured() -> None:
    """A summarizer ``cat``, whose summary is all that it was given to summarize."""
    path = Path(os.environ["XDG_CONFIG_HOME"]) / "memctl" / "config.toml"
    path.parent.mkdir(parents=True)
    path.write_text('[summarizers.cat]\nkind = "command"\ncommand = "cat"\ninput = "transcript"\n')


def text(id: str, role: str = "user") -> Message:
    """A message that says its id."""
    name = {"user": "Alice", "assistant": "Friday", "system": "system"}[role]
    when = "2026-01-31 12:00:00.000"
    content = f"This is {id}."
    return {
        **{"id": id, "name": name, "role": role, "content": content},
        **{"metadata": {}, "timestamp": when},
    }


def calls(id: str, *tools: str) -> Message:
    """A message with tool calls of these ids."""
    use = [{"type": "tool_use", "id": tool, "name": "look", "input": {}} for tool in tools]
    return {**text(id, "assistant"), "content": [{"type": "text", "text": f"This is {id}."}, *use]}


def results(id: str, *tools: str) -> Message:
    """A message with the results of these tool calls."""
    found = [
        {"type": "tool_result", "id": tool, "name": "look", "output": f"{tool} gave {id}"}
        for tool in tools
    ]
    return {**text(id, "system"), "content": found}


OLD = [
    text("u0"),
    text("a1", "assistant"),
    text("u2"),
    calls("c3", "t1", "t2"),
    results("r4", "t2"),
    results("r5", "t1"),
    text("a6", "assistant"),
    text("u7"),
]
KEPT = [
    calls("c8", "t3", "t4"),
    results("r9", "t3"),
    results("r10", "t4"),
    text("a11", "assistant"),
    text("u12"),
    text("a13", "assistant"),
]
KEEP = 4
"""``KEPT`` as messages: a tool call and its results are one."""
SAY = text("u14")
MARKED = {"u2": ["vip"], "a11": ["vip"]}


def memory(messages: list[Message], **more: Any) -> dict[str, Any]:
    """A memory for AgentScope to write, and to read."""
    pairs = [(message, MARKED.get(message["id"], [])) for message in messages]
    return {**NAMES, "messages": pairs, "marks": MARKS, **more}


def read(agentscope: AgentScope, at: Place) -> dict[str, Any]:
    """Return AgentScope's view of the memory."""
    [found] = agentscope.read(at.text, [memory([])], nested=at.nested)
    return found


def heard(prompt: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Return the output of OpenAIChatFormatter for messages, in the form of ``said``."""
    return [
        ("tool", one["tool_call_id"], one["content"])
        if one["role"] == "tool"
        else (
            *(one["role"], one["name"], "".join(block["text"] for block in one["content"])),
            tuple(call["id"] for call in one.get("tool_calls", [])),
        )
        for one in prompt
    ]


def said(messages: list[Message]) -> list[tuple[Any, ...]]:
    """Return the speaker and text of these messages; of a tool, the call's id and its result."""
    told: list[tuple[Any, ...]] = []
    for one in messages:
        content = one["content"]
        blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
        if blocks[0]["type"] == "tool_result":
            told += [("tool", block["id"], block["output"]) for block in blocks]
            continue
        used = tuple(block["id"] for block in blocks if block["type"] == "tool_use")
        told.append((one["role"], one["name"], blocks[0]["text"], used))
    return told


def summary_of(found: dict[str, Any]) -> str:
    """The one summary of a memory, in its place or in the message in front of all others."""
    ids = set(found["marked"]["summary"]).difference(found["marked"]["compressed"])
    messages = [one for one in found["messages"] if one["id"] in ids]
    [only] = filter(None, [*(one["content"] for one in messages), found["summary"]])
    assert messages in ([], found["messages"][:1])
    return str(only)


def reply(
    agentscope: AgentScope, at: Place, message: Message, compression: dict[str, Any] | None
) -> tuple[list[Any], list[Any]]:
    """The prompts of a reply, and of the compressions before it."""
    asked = memory([], say=message, compression=compression)
    found = agentscope.reply(at.text, asked, nested=at.nested)
    return [heard(one) for one in found["prompts"]], [heard(one) for one in found["compressions"]]


def compress(run: Run, at: Place, mode: str, *options: object) -> dict[str, Any]:
    """A run of memctl compress; what it reports."""
    return report(run("compress", at.text, *NAMED, "--mode", mode, *options, "--yes", "--json"))


SESSIONS = ["json_session", "json_session nested", "redis_session", "redis_session nested"]
FILES = ["state_dict", *SESSIONS]
BARE = ["sqlite", "postgresql", "mysql", "redis"]
STATED = [f"{name}+folder nested" for name in BARE]
STATED += ["redis+redis nested", "redis+redis", "sqlite+folder"]


@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        *[("mark", kind) for kind in FILES + STATED],
        *[("message", kind) for kind in BARE + FILES],
        *[("replace", kind) for kind in BARE + FILES + STATED],
    ],
)
def test_compress_agent_goes_on(
    agentscope: AgentScope, run: Run, place: Callable[[str], Place], mode: str, kind: str
) -> None:
    """Its model reads the summary, then what was kept; undo gives it all again."""
    at = place(kind)
    agentscope.write(at.text, [memory(OLD + KEPT)], nested=at.nested)
    before = read(agentscope, at)
    done = compress(run, at, mode, "--keep-recent", KEEP)
    assert done["messages"]["deleted" if mode == "replace" else "marked"] == len(OLD)
    summary = summary_of(read(agentscope, at))
    assert "run" not in compress(run, at, mode, "--keep-recent", KEEP)

    own = None if mode == "replace" else {"threshold": NEVER, "keep_recent": KEEP}
    [prompt], compressions = reply(agentscope, at, SAY, own)
    assert compressions == []
    assert prompt == [SYSTEM, ("user", "user", summary, ()), *said([*KEPT, SAY])]

    report(run("undo", done["run"], "--store", at.text, "--json"))
    after = read(agentscope, at)
    *rest, question, answer = after["messages"]
    assert rest == before["messages"]
    assert [question["id"], answer["content"][0]["text"]] == [SAY["id"], "So be it."]
    assert after["marked"] == before["marked"]
    assert after["summary"] == before["summary"] == ""


OWN = {name: f"own {name}" for name in FIELDS}
"""The summary that an agent's own model makes."""


@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        ("mark", "state_dict"),
        ("mark", "json_session nested"),
        ("mark", "sqlite+folder nested"),
        ("mark", "mysql+folder nested"),
        ("mark", "redis+redis nested"),
        ("message", "json_session"),
        ("message", "redis_session nested"),
        ("replace", "postgresql+folder nested"),
        ("replace", "redis+redis nested"),
    ],
)
@pytest.mark.usefixtures("configured")
def test_compress_agent_compresses_what_was_compressed(
    agentscope: AgentScope, run: Run, place: Callable[[str], Place], mode: str, kind: str
) -> None:
    """Its summary takes the place of memctl's, and then memctl's that of its summary."""
    at = place(kind)
    agentscope.write(at.text, [memory(OLD + KEPT)], nested=at.nested)
    compress(run, at, mode, "--keep-recent", KEEP, "--summarizer", "cat")
    first = summary_of(read(agentscope, at))
    assert [first.count(f"This is {one['id']}.") for one in OLD] == [1, 1, 1, 1, 0, 0, 1, 1]

    own = {"threshold": 0, "keep_recent": 2, "summary": OWN}
    [prompt], [asked] = reply(agentscope, at, SAY, own)
    assert asked[:-1] == [SYSTEM, ("user", "user", first, ()), *said(KEPT[:-1])]
    _, summary, *rest = prompt
    assert rest == said([KEPT[-1], SAY])
    assert all(summary[2].count(text) == 1 for text in OWN.values())
    assert read(agentscope, at)["summary"] == summary[2]

    again = "--keep-recent", 1, "--summarizer", "cat"
    done = compress(run, at, mode, *again)
    second = summary_of(read(agentscope, at))
    for told in (*OWN.values(), f"This is {KEPT[-1]['id']}.", f"This is {SAY['id']}."):
        assert second.count(told) == 1
    assert [id for id in (one["id"] for one in OLD + KEPT[:-1]) if f"This is {id}." in second] == []
    assert "run" in done
    assert "run" not in compress(run, at, mode, *again)
    before = read(agentscope, at)["messages"][-1]
    assert before["content"][0]["text"] == "So be it."

    enabled = {"threshold": NEVER, "keep_recent": 1, "summary": OWN}
    [prompt], compressions = reply(agentscope, at, text("u15"), enabled)
    assert compressions == []
    last = ("user", "user", second, ()), ("assistant", "Friday", "So be it.", ())
    assert prompt == [SYSTEM, *last, *said([text("u15")])]
