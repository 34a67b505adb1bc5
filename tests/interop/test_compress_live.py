"""Agents that talk, or compress their own memories, while ``memctl compress`` is at work."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import pytest
from typer.testing import Result

from tests.interop.test_compress import (
    KEEP,
    KEPT,
    NEVER,
    OLD,
    OWN,
    SAY,
    SYSTEM,
    Place,
    Run,
    memory,
    new_place,
    read,
    reply,
    said,
    summary_of,
    text,
)
from tests.interop.words import exchanges, told
from tests.support.agentscope import AgentScope
from tests.support.cli import report
from tests.support.servers.pool import Servers

GivenT = TypeVar("GivenT")

ROUNDS = 34
SECONDS = 6.0
"""Whichever comes first, but for ENOUGH rounds."""
ENOUGH = 8
TALKS: list[dict[str, Any]] = [
    {"user": "alice", "session": f"s{number}", "marks": ["compressed", "summary"]}
    for number in range(3)
]

# Its summary names every message that it stands for, and those that it was given twice.
RANGES = r"""
grep -oE '(question|reply) [0-9]+(-[0-9]+)?' | tr '-' ' ' | awk '
{ last = $3 == "" ? $2 : $3
  for (i = $2; i <= last; i++) if (seen[$1, i]++) print "twice", $1, i
  if (last + 0 > most) most = last + 0 }
END {
  split("question reply", who, " ")
  for (w = 1; w <= 2; w++) for (i = 0; i <= most; i++) if ((who[w], i) in seen) {
    for (j = i; (who[w], j + 1) in seen; j++);
    print who[w], i "-" j
    i = j } }'
"""
# It tells that it was asked, and waits until it may answer.
WAITS = "touch asked; while [ ! -e go ]; do sleep 0.01; done; cat"


# All that an agent would read of a memory, at one moment.
SEEN = """
local hidden = {}
for _, id in ipairs(redis.call('lrange', KEYS[1] .. ':mark:compressed', 0, -1)) do
  hidden[id] = true
end
local found = {}
for _, id in ipairs(redis.call('lrange', KEYS[1] .. ':messages', 0, -1)) do
  if not hidden[id] then found[#found + 1] = redis.call('get', KEYS[1] .. ':msg:' .. id) end
end
return found
"""


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two summarizers."""
    monkeypatch.chdir(tmp_path)
    path = Path(os.environ["XDG_CONFIG_HOME"]) / "memctl" / "config.toml"
    path.parent.mkdir(parents=True)
    path.write_text(
        '[summarizers.ranges]\nkind = "command"\ninput = "transcript"\n'
        f"context_window = 1000000\ncommand = '''{RANGES}'''\n"
        '[summarizers.waits]\nkind = "command"\ninput = "transcript"\n'
        f"command = '''{WAITS}'''\n",
        "utf-8",
    )


def text_of(message: dict[str, Any]) -> str:
    """Return the text of a message."""
    assert isinstance(message["content"], str)
    return message["content"]


@contextmanager
def snapshots(servers: Servers, at: Place) -> Iterator[list[list[str]]]:
    """Collect agents' views of the memories, again and again for as long as the block lasts.

    RedisMemory itself asks for the ids, those with the mark and the messages one after another.
    """
    seen: list[list[str]] = []
    url, _, prefix = at.text.partition("?prefix=")
    enough = threading.Event()

    def look() -> None:
        with servers.redis.client(url) as client:
            found = client.register_script(SEEN)
            while not enough.wait(0.02):
                for one in TALKS:
                    base = f"{prefix}user_id:{one['user']}:session:{one['session']}"
                    texts = [text_of(json.loads(message)) for message in found(keys=[base])]
                    if texts:
                        seen.append(texts)

    with ThreadPoolExecutor(1) as thread:
        looking = thread.submit(look)
        try:
            yield seen
        finally:
            enough.set()
            looking.result()


@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        ("message", "sqlite"),
        ("replace", "postgresql"),
        ("message", "redis"),
    ],
)
@pytest.mark.usefixtures("configured")
def test_interop_compress_nothing_is_lost_of_a_talk(
    agentscope: AgentScope, run: Run, servers: Servers, tmp_path: Path, mode: str, kind: str
) -> None:
    """At every moment each message is either there or told of in the summary, and only once."""
    at = new_place(kind, tmp_path, servers)
    agentscope.read(at.text, TALKS)  # which makes the tables
    watching = nullcontext([]) if at.sql else snapshots(servers, at)
    compressed = 0
    with (
        watching as seen,
        agentscope.talking(at.text, TALKS, tmp_path / "enough", watch=at.sql) as talk,
    ):
        ends = time.monotonic() + SECONDS
        for number in range(ROUNDS):
            if time.monotonic() > ends and number > ENOUGH:
                break
            found = report(
                run(
                    *("compress", at.text, "--mode", mode, "--keep-recent", 2),
                    *("--summarizer", "ranges", "--yes", "--json"),
                )
            )
            compressed += found["memories"]["written"]
    count = talk["exchanges"]
    assert count > ENOUGH, "the agent hardly wrote anything"
    assert compressed > 2 * ENOUGH
    assert talk["torn"] == []
    assert len(seen) > ENOUGH or kind != "redis"
    for texts in seen:
        there = told(texts)
        assert there == exchanges(1 + max(number for _, number in there))
    for one in agentscope.read(at.text, TALKS):
        hidden = set(one["marked"]["compressed"])
        assert all(told([text_of(message)]) for message in one["messages"])
        texts = [text_of(message) for message in one["messages"] if message["id"] not in hidden]
        assert told(texts) == exchanges(count)
        assert not any("twice" in text for text in texts)
        left = [message for message in one["messages"] if message["id"] in one["marked"]["summary"]]
        assert len(left) == 1


def compress_while(
    run: Run, at: Place, mode: str, folder: Path, act: Callable[[], GivenT]
) -> tuple[Result, GivenT]:
    """A run of memctl compress, and what was done between its look and its commit gave."""

    def meanwhile() -> GivenT:
        ends = time.monotonic() + 20
        while not (folder / "asked").exists():
            assert time.monotonic() < ends, "nobody was asked for a summary"
            time.sleep(0.01)
        try:
            return act()
        finally:
            (folder / "go").touch()

    options = "--mode", mode, "--keep-recent", KEEP, "--summarizer", "waits", "--yes", "--json"
    with ThreadPoolExecutor(1) as thread:
        acting = thread.submit(meanwhile)
        result = run("compress", at.text, *options)
        return result, acting.result()


MEANWHILE = [
    ("mark", "state_dict"),
    ("mark", "json_session nested"),
    ("mark", "sqlite+folder nested"),
    ("mark", "redis+redis nested"),
    ("message", "postgresql"),
    ("message", "redis"),
    ("message", "redis_session nested"),
    ("replace", "sqlite"),
    ("replace", "mysql"),
    ("replace", "json_session"),
]


@pytest.mark.parametrize(("mode", "kind"), MEANWHILE)
@pytest.mark.usefixtures("configured")
def test_interop_compress_agent_compresses_itself_meanwhile(
    agentscope: AgentScope, run: Run, servers: Servers, tmp_path: Path, mode: str, kind: str
) -> None:
    """The agent's own compression stays, as it is."""
    at = new_place(kind, tmp_path, servers)
    agentscope.write(at.text, [memory(OLD + KEPT)], nested=at.nested)
    own = {"threshold": 0, "keep_recent": 2, "summary": OWN}

    def act() -> tuple[list[Any], dict[str, Any]]:
        done = agentscope.compress(at.text, [memory([], compression=own)], nested=at.nested)
        return done[0]["compressions"], read(agentscope, at)

    result, (compressions, wanted) = compress_while(run, at, mode, tmp_path, act)
    assert len(compressions) == 1
    found = report(result, 7)
    assert [one["code"] for one in found["failures"]] == ["changed"]
    assert found["memories"] == {"selected": 1, "written": 0, "failed": 1, "left": 0}
    assert read(agentscope, at) == wanted


@pytest.mark.parametrize(("mode", "kind"), MEANWHILE)
@pytest.mark.usefixtures("configured")
def test_interop_compress_agent_goes_on_meanwhile(
    agentscope: AgentScope, run: Run, servers: Servers, tmp_path: Path, mode: str, kind: str
) -> None:
    """The messages that it adds are kept in addition to those that were to be kept."""
    at = new_place(kind, tmp_path, servers)
    agentscope.write(at.text, [memory(OLD + KEPT)], nested=at.nested)
    own = None if mode == "replace" else {"threshold": NEVER, "keep_recent": KEEP}
    result, _ = compress_while(run, at, mode, tmp_path, lambda: reply(agentscope, at, SAY, own))
    report(result)
    summary = summary_of(read(agentscope, at))
    assert f"This is {SAY['id']}." not in summary
    [prompt], _ = reply(agentscope, at, text("u15"), own)
    answer = ("assistant", "Friday", "So be it.", ())
    wanted = [*said([*KEPT, SAY]), answer, *said([text("u15")])]
    assert prompt == [SYSTEM, ("user", "user", summary, ()), *wanted]
