"""The programs, each with a home of its own and a model server that remembers what it sends."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.agent_server import AgentServer, agent_server
from tests.support.cli import Run, in_process

PROGRAMS = Path(__file__).parents[2] / ".interop-agents" / "node_modules"
CODEX = """
model = "fake"
model_provider = "loop"
[model_providers.loop]
name = "loop"
base_url = "{}/v1"
env_key = "KEY"
wire_api = "responses"
"""


class Program:
    """A coding agent in a home of its own; memctl knows its sessions as ``store``."""

    kind: str
    file: str
    folder: str

    def __init__(self, home: Path, server: AgentServer) -> None:
        self.home, self.server = home, server
        self.project = home / "shop"
        self.project.mkdir(parents=True)
        self.path = home / self.folder
        self.path.mkdir()
        self.store = f"{self.kind}:{self.path}"

    def run(self, *arguments: str) -> str:
        """Run the program; return its stdout."""
        done = subprocess.run(
            [PROGRAMS / self.file, *arguments],
            cwd=self.project,
            env={"PATH": "/usr/bin:/bin", "HOME": str(self.home), **self.variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, (done.stdout, done.stderr)
        return done.stdout

    @property
    def variables(self) -> dict[str, str]:
        """Further variables of the environment of the program."""
        raise NotImplementedError

    def ask(self, text: str, session: str = "", *options: str) -> str:
        """Have the program ask the model, perhaps in a session; return the id of the session."""
        raise NotImplementedError

    def sent(self, session: str, text: str = "And now?") -> list[str]:
        """Return what the program sends of a session that it resumes: the texts of the messages.

        The session stays as it was.
        """
        before = {path: path.read_bytes() for path in self.path.rglob("*.jsonl")}
        self.ask(text, session)
        found = self.texts(self.server.requests[-1])
        for path, data in before.items():
            path.write_bytes(data)
        assert found.pop() == text
        return found

    def texts(self, request: dict[str, Any]) -> list[str]:
        """Return the texts, calls and results of a request, without what the agent adds."""
        raise NotImplementedError


class ClaudeCode(Program):
    """Claude Code."""

    kind, folder = "claude-code", ".claude"
    file = "@anthropic-ai/claude-code-linux-x64/claude"

    @property
    def variables(self) -> dict[str, str]:
        return {
            "ANTHROPIC_BASE_URL": self.server.url,
            "ANTHROPIC_API_KEY": "none",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "IS_SANDBOX": "1",  # for --dangerously-skip-permissions as root
        }

    def ask(self, text: str, session: str = "", *options: str) -> str:
        resumed = ("--resume", session) if session else ()
        output = self.run("-p", text, *resumed, "--output-format", "json", *options)
        id: str = json.loads(output)["session_id"]
        return id

    def texts(self, request: dict[str, Any]) -> list[str]:
        found: list[str] = []
        for message in request["messages"]:
            content = message["content"]
            parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
            if message["role"] != "system":
                found += [said for part in parts if (said := said_in(part))]
        return found


class Codex(Program):
    """Codex CLI."""

    kind, folder = "codex", ".codex"
    file = "@openai/codex/vendor/x86_64-unknown-linux-musl/bin/codex"

    def __init__(self, home: Path, server: AgentServer) -> None:
        super().__init__(home, server)
        (self.path / "config.toml").write_text(CODEX.format(server.url))

    @property
    def variables(self) -> dict[str, str]:
        return {"KEY": "none"}

    def ask(self, text: str, session: str = "", *options: str) -> str:
        resumed = ("resume", session) if session else ()
        output = self.run(
            *("exec", "--skip-git-repo-check", "--json", *resumed, *options, "--", text)
        )
        found = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        return next(one["thread_id"] for one in found if one["type"] == "thread.started")

    def listed(self) -> set[str]:
        """Return the ids of the sessions that Codex lists by its index alone."""
        requests = [
            {
                "id": 1,
                "method": "initialize",
                "params": {"clientInfo": {"name": "x", "version": "1"}},
            },
            {"method": "initialized"},
            {
                "id": 2,
                "method": "thread/list",
                "params": {"sourceKinds": ["exec"], "useStateDbOnly": True},
            },
        ]
        with subprocess.Popen(
            [PROGRAMS / self.file, "app-server"],
            cwd=self.project,
            env={"PATH": "/usr/bin:/bin", "HOME": str(self.home), **self.variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            for request in requests:
                process.stdin.write(json.dumps({"jsonrpc": "2.0"} | request) + "\n")
                process.stdin.flush()
            answers = map(json.loads, process.stdout)
            found = next(one for one in answers if one.get("id") == 2)
            process.kill()
        return {one["id"] for one in found["result"]["data"]}

    def texts(self, request: dict[str, Any]) -> list[str]:
        return [
            said
            for item in request["input"]
            if item.get("role") != "developer"
            for part in item.get("content") or [item]
            if (said := said_in(part))
        ]


def said_in(part: dict[str, Any]) -> str:
    """Return the text, the call, the result or the image of a part; empty for what agents add."""
    match part:
        case {"text": str(text)}:
            return "" if text.startswith("<") else text.strip()
        case {"name": str(name), "input": input}:
            return f"{name} {json.dumps(input)}"
        case {"name": str(name), "arguments": str(input)}:
            return f"{name} {json.dumps(json.loads(input))}"
        case {"type": "tool_result", "content": str(text)}:
            return text
        case {"type": "tool_result", "content": list(parts)}:
            return "\n".join(one["text"] for one in parts)
        case {"output": str(text)}:
            return text
        case {"source": {"data": data}}:
            return str(data)
        case {"image_url": str(url)}:
            return url.partition(",")[2]
    raise AssertionError(part)


@pytest.fixture(scope="session", autouse=True)
def _programs() -> None:
    if not PROGRAMS.is_dir():
        pytest.skip("npm could not install the programs: see scripts/interop")


@pytest.fixture(scope="session")
def server() -> Iterator[AgentServer]:
    with agent_server() as server:
        yield server


@pytest.fixture(params=[ClaudeCode, Codex], ids=["claude-code", "codex"])
def program(request: pytest.FixtureRequest, tmp_path: Path, server: AgentServer) -> Program:
    made: Callable[[Path, AgentServer], Program] = request.param
    return made(tmp_path / "home", server)


@pytest.fixture
def run() -> Run:
    return in_process()
