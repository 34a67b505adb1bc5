"""Tests that ``memctl compress`` chooses the messages that a real agent would summarize."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.interop.test_compress import FIELDS, Message, Run, calls, results, text
from tests.support.agentscope import AgentScope
from tests.support.cli import report

History = list[Message]
HINT = {"hint-2", "hint-5", "hint-9"}
"""Ids of messages that are marked as the hints of an agent."""


def both(id: str, tool: str) -> Message:
    """A message with a tool call and its result."""
    return {
        **calls(id, tool),
        "content": [*calls(id, tool)["content"], *results(id, tool)["content"]],
    }


HISTORIES: dict[str, History] = {
    "words": [text(f"m{number}") for number in range(7)],
    "few words": [text("m0"), text("m1")],
    "a call in front": [calls("c0", "x"), results("r1", "x"), *map(text, ("m2", "m3", "m4"))],
    "a call at the end": [*map(text, ("m0", "m1", "m2")), calls("c3", "x"), results("r4", "x")],
    "calls after calls": [
        message
        for number in range(4)
        for message in (calls(f"c{number}", f"x{number}"), results(f"r{number}", f"x{number}"))
    ],
    "parallel calls": [
        *(text("m0"), calls("c1", "x", "y", "z")),
        *(results("r2", "z"), results("r3", "x"), results("r4", "y"), text("m5")),
    ],
    "results together": [text("m0"), calls("c1", "x", "y"), results("r2", "x", "y"), text("m3")],
    "results apart": [
        *(text("m0"), calls("c1", "x", "y"), results("r2", "x"), text("m3"), text("m4")),
        *(results("r5", "y"), text("m6")),
    ],
    "calls that overlap": [
        *(text("m0"), calls("c1", "x"), calls("c2", "y"), text("m3"), results("r4", "x")),
        *(text("m5"), results("r6", "y"), text("m7"), text("m8")),
    ],
    "a call without result": [text("m0"), calls("c1", "x"), text("m2"), text("m3"), text("m4")],
    "one of two without result": [
        *(text("m0"), calls("c1", "x", "y"), results("r2", "y"), text("m3"), text("m4")),
    ],
    "a call and its result at once": [text("m0"), both("b1", "x"), text("m2"), text("m3")],
    "a call, then a call and its result at once": [
        *(calls("c0", "x"), text("m1"), both("b2", "x"), results("r3", "x"), text("m4")),
    ],
    "an id used twice": [
        *(calls("c0", "x"), results("r1", "x"), text("m2")),
        *(calls("c3", "x"), results("r4", "x"), text("m5")),
    ],
    "two results of a call": [
        *(text("m0"), calls("c1", "x"), results("r2", "x"), text("m3"), results("r4", "x")),
        *(text("m5"), text("m6")),
    ],
    "a result in pieces": [text("m0"), calls("c1", "x"), results("r2", "x"), results("r3", "x")],
    "a call twice": [
        *(calls("c0", "x"), text("m1"), calls("c2", "x"), results("r3", "x"), text("m4")),
    ],
    "hints": [*map(text, ("m0", "hint-2", "m3", "m4", "hint-5", "m6", "m7", "hint-9"))],
    "hints among calls": [
        *(text("m0"), calls("c1", "x"), text("hint-2"), results("r3", "x"), text("hint-5")),
        *(calls("c6", "y"), results("r7", "y"), text("hint-9"), text("m8")),
    ],
}


def invented(seed: int) -> History:
    """A history with calls whose results come some time later, or not at all."""
    dice = random.Random(seed)
    history: History = []
    waiting: list[str] = []
    for number in range(dice.randint(1, 24)):
        if waiting and dice.random() < 0.6:
            now = dice.sample(waiting, dice.randint(1, len(waiting)))
            waiting = [one for one in waiting if one not in now]
            history.append(results(f"r{number}", *now))
        elif dice.random() < 0.3:
            tools = [f"x{number}-{one}" for one in range(dice.randint(1, 2))]
            waiting += tools
            history.append(calls(f"c{number}", *tools))
        else:
            history.append(text(f"m{number}"))
    return history


ALL = {**HISTORIES, **{f"seed {seed}": invented(seed) for seed in range(40)}}


def memories(keep_recent: int) -> list[dict[str, Any]]:
    """A session a history, its agent so that it compresses whatever it can."""
    own = {"threshold": 0, "keep_recent": keep_recent, "summary": dict.fromkeys(FIELDS, "own")}
    return [
        {
            **{"user": "", "session": name, "compression": own, "marks": ["compressed"]},
            "messages": [(one, ["hint"] if one["id"] in HINT else []) for one in history],
        }
        for name, history in ALL.items()
    ]


@pytest.mark.parametrize("keep_recent", range(1, 6))
def test_interop_compress_same_choice(
    agentscope: AgentScope, run: Run, tmp_path: Path, keep_recent: int
) -> None:
    """Only a memory that has no more than what stays is left alone by memctl alone."""
    theirs, ours = str(tmp_path / "theirs"), str(tmp_path / "ours")
    asked = memories(keep_recent)
    agentscope.write(theirs, asked)
    shutil.copytree(theirs, ours)
    agentscope.compress(theirs, asked)
    report(run("compress", ours, "--keep-recent", keep_recent, "--json"))
    few = []
    differ = {}
    pairs = zip(asked, agentscope.read(theirs, asked), agentscope.read(ours, asked), strict=True)
    for one, real, found in pairs:
        wanted = real["marked"]["compressed"]
        if len(wanted) == real["size"]:
            few.append(one["session"])
            wanted = []
        if found["marked"]["compressed"] != wanted:
            differ[one["session"]] = (found["marked"]["compressed"], wanted)
    assert differ == {}
    assert len(few) < len(ALL) / 2, "hardly any history was chosen from"


def test_interop_compress_result_without_its_call(
    agentscope: AgentScope, run: Run, tmp_path: Path
) -> None:
    """An agent summarizes all, and so forgets what it is about; memctl keeps the newest."""
    [one] = [one for one in memories(2) if one["session"] == "words"]
    history = [text("m0"), results("r1", "x"), text("m2"), text("m3"), results("r4", "y")]
    one["messages"] = [(message, []) for message in history]
    theirs, ours = str(tmp_path / "theirs"), str(tmp_path / "ours")
    agentscope.write(theirs, [one])
    shutil.copytree(theirs, ours)
    agentscope.compress(theirs, [one])
    [real] = agentscope.read(theirs, [one])
    assert real["marked"]["compressed"] == ["m0", "r1", "m2", "m3", "r4"]
    report(run("compress", ours, "--keep-recent", 2, "--json"))
    [found] = agentscope.read(ours, [one])
    assert found["marked"]["compressed"] == ["m0", "r1", "m2"]
