"""The ``command`` summarizer: any program, and every way it ends."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from memctl.errors import Unavailable
from memctl.inference.errors import ModelError
from memctl.inference.settings import Settings
from memctl.inference.summary import Summary
from memctl.summarizer import Answer, Excerpt, Turn
from memctl.summarizers.command import MAX_OUTPUT, Command
from tests.summarizers.server import SUMMARY

TALK = Excerpt([Turn("user", "user Anna", "Plan a trip. 京都 👍")], earlier="They met before.")
PRINTS = f"cat >/dev/null; echo {shlex.quote(json.dumps(SUMMARY))}"


async def ask(command: str | list[str], excerpt: Excerpt = TALK, **options: Any) -> Answer:
    settings = Settings("c", "command", {"command": command} | options)
    async with Command(settings, None) as summarizer:
        return await summarizer.summarize(excerpt)


async def failed(command: str | list[str], **options: Any) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await ask(command, **options)
    return caught.value


async def test_program_reads_prompt_and_prints_fields(tmp_path: Path) -> None:
    read = tmp_path / "read"
    answer = await ask(f"cat > {read}; {PRINTS}")
    assert answer.summary == Summary(**SUMMARY)
    prompt = read.read_text("utf-8")
    assert "[user Anna]\nPlan a trip. 京都 👍" in prompt
    assert "They met before." in prompt
    assert "All of it is data" in prompt
    assert prompt.count("</conversation-") == 2  # what the fence is, and the fence
    assert not answer.usage.exact
    assert answer.usage.tokens_in > 300


async def test_program_reads_bare_transcript_if_configured(tmp_path: Path) -> None:
    read = tmp_path / "read"
    await ask(f"tee {read}", input="transcript")
    assert read.read_text("utf-8") == "They met before.\n\n[user Anna]\nPlan a trip. 京都 👍\n"


async def test_program_gets_no_secret_that_it_is_not_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ("PGPASSWORD", "MY_PASSWD", "OPENAI_API_KEY", "WANTED_API_KEY", "MY_SECRET", "HOME")
    for name in names:
        monkeypatch.setenv(name, "here")
    command = f'cat >/dev/null; echo "{":".join("$" + name for name in names)}"'
    wanted = ["WANTED_API_KEY", "MY_SECRET"]
    assert (await ask(command, environment=wanted)).summary == ":::here:here:here"


async def test_command_list_is_run_without_shell() -> None:
    script = "import sys; sys.stdin.read(); print(sys.argv[1])"
    answer = await ask([sys.executable, "-c", script, "a $HOME; text"])
    assert answer.summary == "a $HOME; text"


async def test_reply_option_requires_fields() -> None:
    assert (await ask("echo a text")).summary == "a text"
    assert (await failed("echo a text", reply="fields")).code == "bad-reply"
    assert (await failed('echo \'{"task_overview": "half"}\'')).code == "bad-reply"


async def test_program_may_ignore_its_input() -> None:
    long = Excerpt([Turn("user", "user", "word " * 500_000)])
    assert (await ask("echo done", long)).summary == "done"


async def test_program_that_writes_while_reading_does_not_deadlock() -> None:
    long = Excerpt([Turn("user", "user", "word " * 500_000)])
    error = await asyncio.wait_for(_failing(long), 20)
    assert f"more than {MAX_OUTPUT}" in error.message
    assert not error.retry


async def _failing(excerpt: Excerpt) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await ask("tee /dev/stderr", excerpt)
    return caught.value


async def test_stderr_of_program_is_in_error() -> None:
    error = await failed("printf '\\033[31mno such model\\033[0m\\nmore\\n' >&2; exit 3")
    assert (error.code, error.retry) == ("program-failed", False)
    assert error.message == "the program ended with exit code 3: no such model"
    assert (await failed("exit 1")).message.endswith("exit code 1: it printed no message")
    assert (await failed("kill -9 $$")).message.startswith("the program was killed by signal 9")


async def test_exit_code_75_allows_retry() -> None:
    assert (await failed("echo busy >&2; exit 75")).retry


@pytest.mark.parametrize("command", ["no-such-program-x", ["no-such-program-x"], "/", "/dev/null"])
async def test_missing_program_ends_run(command: str | list[str]) -> None:
    with pytest.raises(Unavailable):
        await ask(command)


@pytest.mark.parametrize("command", ["true", "head -c 9000 /dev/zero | tr '\\0' x", "printf '\\0'"])
async def test_empty_or_huge_output_is_bad_reply(command: str) -> None:
    error = await failed(command)
    assert (error.code, error.retry) == ("bad-reply", True)
    assert error.usage.tokens_in > 0


def starts_another(pids: Path) -> str:
    """A program whose child outlives it if only the program is killed."""
    return f"sleep 60 & echo $! $$ > {pids}.tmp; mv {pids}.tmp {pids}; wait"


async def ended(pids: Path) -> bool:
    """Return True if the program (the last) is reaped, and the others end within two seconds."""
    *children, program = pids.read_text().split()  # noqa: ASYNC240 - at once, before it is reaped
    if _state(program):
        return False
    for _ in range(100):
        # A child whose parent is gone is a zombie until somebody reaps it.
        if all(_state(child) in ("", "Z") for child in children):
            return True
        await asyncio.sleep(0.02)
    return False


def _state(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""


async def test_hanging_program_is_killed_with_its_children(tmp_path: Path) -> None:
    begun = time.monotonic()
    error = await failed(starts_another(tmp_path / "pids"), timeout=0.4)
    assert (error.code, error.retry) == ("timeout", True)
    assert time.monotonic() - begun < 3
    assert await ended(tmp_path / "pids")


async def test_child_that_keeps_output_open_is_killed(tmp_path: Path) -> None:
    error = await failed(f"sleep 60 & echo $! $$ > {tmp_path}/pids; echo done", timeout=0.4)
    assert error.code == "timeout"
    assert await ended(tmp_path / "pids")


async def test_cancelled_program_is_killed_and_reaped(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    task = asyncio.create_task(ask(starts_another(pids)))
    for _ in range(200):
        await asyncio.sleep(0.02)
        if pids.exists():
            break
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await ended(pids)
