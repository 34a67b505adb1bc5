"""OpenCode resumes sessions that memctl restores or writes, and sends what memctl shows."""

from __future__ import annotations

import json
import re
import signal
import sqlite3
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from memctl.dialects.opencode import OpenCodeView
from memctl.dialects.view import MediaBlock, TextBlock, ToolCallBlock, ToolResultBlock
from tests.interop_agents.conftest import PROGRAMS
from tests.support.agent_server import AgentServer, agent_server
from tests.support.cli import FRIDAY, Run, report

PROGRAM = PROGRAMS / "opencode-linux-x64" / "bin" / "opencode"
MODEL = {"providerID": "anthropic", "modelID": "fake"}
CALL = 'CALL bash {"command": "echo h1", "description": "say"}'


class OpenCode:
    """OpenCode in a home of its own; memctl knows its sessions as ``store``."""

    def __init__(self, home: Path, server: AgentServer) -> None:
        self.server = server
        self.project = home / "shop"
        self.project.mkdir(parents=True)
        self.store = f"opencode:{home / '.local' / 'share' / 'opencode'}"
        self.database = Path(self.store.removeprefix("opencode:")) / "opencode.db"
        limit = {"context": 100_000, "output": 1_000}
        media = {"input": ["text", "image"], "output": ["text"]}
        model = {"name": "fake", "tool_call": True, "limit": limit, "modalities": media}
        place = {"baseURL": f"{server.url}/v1", "apiKey": "none"}
        settings = {
            "provider": {"anthropic": {"options": place, "models": {"fake": model}}},
            **{"model": "anthropic/fake", "small_model": "anthropic/fake"},
            **{"permission": "allow", "autoupdate": False, "share": "disabled"},
        }
        self._environ = {
            **{"PATH": "/usr/bin:/bin", "HOME": str(home)},
            "OPENCODE_CONFIG_CONTENT": json.dumps(settings),
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
        }

    def run(self, *arguments: str, input: str = "") -> str:
        """Run the program; return its stdout."""
        done = subprocess.run(
            [PROGRAM, *arguments],
            **{"cwd": self.project, "env": self._environ, "input": input},
            **{"capture_output": True, "text": True, "timeout": 90, "check": False},
        )
        assert done.returncode == 0, (done.stdout, done.stderr)
        return str(done.stdout)

    def ask(self, text: str, session: str = "", *options: str) -> str:
        """Have the program ask the model, perhaps in a session; return the id of the session."""
        resumed = ("--session", session) if session else ()
        output = self.run("run", *resumed, *options, "--format", "json", input=text)
        return str(json.loads(output.splitlines()[0])["sessionID"])

    def compact(self, session: str) -> None:
        """Compact a session, as the command of the terminal does."""
        with subprocess.Popen(
            [PROGRAM, "serve", "--port", "0"],
            **{"cwd": self.project, "env": self._environ, "stdout": subprocess.PIPE},
            **{"stderr": subprocess.STDOUT, "text": True},
        ) as serving:
            assert serving.stdout
            found = None
            while found is None:
                found = re.search(r"http://[\d.]+:\d+", serving.stdout.readline())
            request = urllib.request.Request(
                f"{found[0]}/session/{session}/summarize",
                data=json.dumps(MODEL).encode(),
                headers={"Content-Type": "application/json"},
            )
            with urllib.request.urlopen(request, timeout=60) as answer:
                assert answer.read() == b"true"
            serving.send_signal(signal.SIGTERM)

    def sent(self, session: str, *options: str) -> list[str]:
        """Return what the program sends of a session that it resumes, which stays as it was."""
        before = {path: path.read_bytes() for path in self.database.parent.glob("opencode.db*")}
        self.ask("What else?", session, *options)
        found = said_in(self.server.requests[-1]["messages"])
        for path in self.database.parent.glob("opencode.db*"):
            path.unlink()
        for path, data in before.items():
            path.write_bytes(data)
        assert found.pop() == "What else?"
        return found

    def execute(self, sql: str, *values: Any) -> None:
        """Change the database."""
        with closing(sqlite3.connect(self.database)) as database, database:
            database.execute(sql, values)

    def age(self) -> None:
        """Let the messages seem to be of yesterday, so that OpenCode seems not to be at work."""
        self.execute("UPDATE message SET time_updated = time_updated - 86400000")


def said_in(messages: list[dict[str, Any]]) -> list[str]:
    """Return the texts, the calls and the results in a request."""
    found = []
    for message in messages:
        for part in message["content"]:
            match part:
                case {"type": "text", "text": text}:
                    found.append(text)
                case {"type": "tool_use", "name": name, "input": given}:
                    found.append(f"{name} {json.dumps(given)}")
                case {"type": "image", "source": {"url": url}}:
                    found.append(url)
                case {"type": "tool_result", "content": output}:
                    found.append(output if isinstance(output, str) else output[0]["text"])
    return found


def context(run: Run, store: str, session: str) -> list[str]:
    """Return what ``memctl context`` shows."""
    about = report(run("context", store, "--session", session, "--json"))
    found = []
    for one in about["messages"]:
        results = []
        for block in OpenCodeView(one["message"]).blocks:
            match block:
                case TextBlock(text):
                    found.append(text)
                case MediaBlock(url=str(url)):
                    found.append(url)
                case ToolCallBlock(name=name, input=given):
                    found.append(f"{name} {json.dumps(given)}")
                case ToolResultBlock(output=[TextBlock(text)]):
                    results.append(text)
        found += results
    return found


@pytest.fixture(scope="module")
def opencode(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenCode]:
    with agent_server() as server:
        yield OpenCode(tmp_path_factory.mktemp("opencode") / "home", server)


@pytest.fixture(scope="module")
def session(opencode: OpenCode) -> str:
    """A session with a call of a tool."""
    found = opencode.ask("My train is at nine.")
    opencode.ask(CALL, found)
    opencode.age()
    return found


def test_opencode_sends_the_context(run: Run, opencode: OpenCode, session: str) -> None:
    sent = opencode.sent(session)
    assert sent == context(run, opencode.store, session)
    assert 'bash {"command": "echo h1", "description": "say"}' in sent
    sql = "UPDATE part SET data = json_set(data, '$.state.status', 'running') WHERE data LIKE ?"
    opencode.execute(sql, '%"type":"tool"%')
    sent = opencode.sent(session)
    assert sent == context(run, opencode.store, session)
    assert "[Tool execution was interrupted]" in sent
    sql = sql.replace("running", "completed")
    opencode.execute(sql, '%"type":"tool"%')


def test_opencode_sends_what_is_not_taken_back(run: Run, opencode: OpenCode, session: str) -> None:
    with closing(sqlite3.connect(opencode.database)) as database:
        sql = "SELECT message_id FROM part WHERE data LIKE '%CALL bash%'"
        [message] = database.execute(sql).fetchone()
    sql = "UPDATE session SET revert = ?"
    opencode.execute(sql, json.dumps({"messageID": message}))
    assert opencode.sent(session) == context(run, opencode.store, session)
    assert len(context(run, opencode.store, session)) == 2
    opencode.execute(sql, None)


def test_opencode_resumes_what_memctl_put_back(
    run: Run, opencode: OpenCode, session: str, tmp_path: Path
) -> None:
    expected, archive = opencode.sent(session), tmp_path / "a.ndjson"
    assert run("export", opencode.store, "-o", archive).exit_code == 0
    assert run("delete", opencode.store, "--session", session, "--yes").exit_code == 0
    assert session not in opencode.run("session", "list")
    assert run("undo", "--yes").exit_code == 0
    assert opencode.sent(session) == expected
    assert run("delete", opencode.store, "--session", session, "--yes").exit_code == 0
    assert run("import", archive, opencode.store).exit_code == 0
    assert opencode.sent(session) == expected


def test_opencode_imports_what_memctl_wrote(
    run: Run, opencode: OpenCode, session: str, tmp_path: Path
) -> None:
    expected, path = opencode.sent(session), tmp_path / "session.json"
    names = ("--session", session)
    assert run("export", opencode.store, *names, "--as", "opencode", "-o", path).exit_code == 0
    new = OpenCode(tmp_path / "home", opencode.server)
    new.run("import", str(path))
    assert new.sent(session) == expected
    done = run("export", FRIDAY, "--as", "opencode", "-o", path, "--force", "--lossy")
    assert done.exit_code == 0, done.stderr
    friday = new.run("import", str(path)).split()[-1]
    # OpenCode does not know the model of the other store, and so not which to ask.
    assert new.sent(friday, "--model", "anthropic/fake") == context(run, new.store, friday)


def test_opencode_sends_the_compaction(run: Run, opencode: OpenCode, session: str) -> None:
    opencode.compact(session)
    opencode.ask("And now?", session)
    opencode.age()
    sent = opencode.sent(session)
    assert sent == context(run, opencode.store, session)
    assert sent[0] == "What did we do so far?"
    with closing(sqlite3.connect(opencode.database)) as database:
        sql = "SELECT message_id FROM part WHERE data LIKE '%CALL bash%'"
        [message] = database.execute(sql).fetchone()
    sql = "UPDATE part SET data = json_set(data, '$.tail_start_id', ?) WHERE data LIKE ?"
    opencode.execute(sql, message, '%"type":"compaction"%')
    sent = opencode.sent(session)
    assert sent == context(run, opencode.store, session)
    assert CALL in sent
