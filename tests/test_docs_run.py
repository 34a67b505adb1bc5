"""Command lines of the README and pages of docs/, run in order on a small store.

A block of the shell is run line by line.  A line ends with exit code 0, or with the one that its
comment names (``# exit code 6: ...``).  ``<!-- not run: why -->`` above a block leaves it out.
The store is that of ``tools/demo.py``; addresses of servers are replaced by those of the tests'.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pexpect
import pytest
from typer.testing import Result

from memctl.cli import COMMANDS
from memctl.model import MemoryKey
from memctl.testing import samples
from tests.support import agent_sessions
from tests.support.backends import FACT_BACKENDS
from tests.support.cli import fill
from tests.support.monitor import monitored
from tests.support.servers.pool import Servers
from tests.test_docs import ROOT, of_shells

pytestmark = pytest.mark.slow

Run = Callable[..., Result]
OF_SHELL = set("|;&()<>*$~")
"""Characters that need a shell; a call of memctl without any runs in this process."""
WRAPPER = """\
#!/bin/sh
exec {python} -m memctl "$@"
"""
UP_TO_DATE = "the target is "
"""The message of ``--follow`` after which Ctrl-C may come."""
LEFT_OUT = re.compile(r"<!-- not run: [^>]+ -->\n *```sh\n.*?```", re.DOTALL)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the store, where ``memctl`` is a program; it is the present folder."""
    monkeypatch.syspath_prepend(ROOT / "tools")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    import demo  # a module of tools/

    programs = tmp_path / "bin"
    programs.mkdir()
    program = programs / "memctl"
    program.write_text(WRAPPER.format(python=shlex.quote(sys.executable)))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    folder = tmp_path / "world"
    folder.mkdir()
    monkeypatch.chdir(folder)
    demo.make(folder)
    return folder


FRAMEWORKS = {
    "chats.db": "langchain&owner=ada",
    "sessions.db": "openai-agents&owner=ada",
    "adk.db": "adk&app=weather",
    "agno.db": "agno",
}
"""The databases of the README, and how memctl writes them."""


def test_docs_readme_is_run(
    world: Path,
    run: Run,
    postgresql_url: str,
    servers: Servers,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agent_sessions.claude_session(world / "claude", "A connection pool?")
    agent_sessions.codex_session(world / "codex", "The connection pool")
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(world / "claude"))
    monkeypatch.setenv("CODEX_HOME", str(world / "codex"))
    for name, layout in FRAMEWORKS.items():
        selected = ("--user", "ada") if "owner" in layout else ()
        target = f"sqlite:///{name}?layout={layout}"
        result = run("migrate", "agents.db", target, *selected, "--lossy", "--no-backup")
        assert result.exit_code == 0, result.output
    facts = FACT_BACKENDS["mem0-qdrant"](servers)
    samples.use(facts.style)
    config = Path(facts.make(world).removeprefix("mem0:"))
    asyncio.run(fill(f"mem0:{config}", {MemoryKey("ada", "trips"): samples.entries(3)}))
    samples.use(samples.Style())
    config.rename(world / "mem0.json")
    ran = follow((ROOT / "README.md").read_text("utf-8"), run, postgresql_url)
    assert {"inspect", "export", "migrate", "delete", "compress", "doctor", "undo"} <= set(ran)
    assert ran.count("inspect") > 2 * len(FRAMEWORKS)


def test_docs_migration_is_run(
    world: Path, run: Run, postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs" / "migration.md").read_text("utf-8")
    [settings] = re.findall(r"^```toml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    settings = settings.replace("/srv/agents", str(world))
    settings = settings.replace("postgresql://ops@db.example.com/agents", postgresql_url)
    settings = re.sub(r"^password_file.*\n", "", settings, flags=re.MULTILINE)
    (world / "memctl.toml").write_text(settings)
    monkeypatch.setenv("MEMCTL_CONFIG", str(world / "memctl.toml"))
    ran = follow(page, run, postgresql_url)
    assert ran.count("migrate") >= 4
    assert ran.count("verify") >= 3


def test_docs_upgrade_is_run(world: Path, run: Run) -> None:
    assert world
    ran = follow((ROOT / "docs" / "upgrade.md").read_text("utf-8"), run)
    assert {"inspect", "doctor", "export", "migrate", "verify", "context"} == set(ran)


def test_docs_selection_is_run(world: Path, run: Run) -> None:
    assert world
    ran = follow((ROOT / "docs" / "selection.md").read_text("utf-8"), run)
    assert {"inspect", "export", "search"} == set(ran)


def test_docs_search_that_finds_nothing_changes_nothing(world: Path, run: Run) -> None:
    before = json.loads(run("inspect", "agents.db", "--json").stdout)["totals"]
    page = (ROOT / "docs" / "search.md").read_text("utf-8")
    lines = [line for line in of_shells(page) if "xargs" in line]
    assert len(lines) == 2
    for line in lines:
        done = subprocess.run(["bash", "-c", line], cwd=world, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(run("inspect", "agents.db", "--json").stdout)["totals"] == before
    line = lines[1].replace("api key", "kyoto")
    done = subprocess.run(["bash", "-c", line], cwd=world, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    after = json.loads(run("inspect", "agents.db", "--json").stdout)["totals"]
    assert 0 < after["messages"] < before["messages"]


def test_docs_erase_is_run(world: Path, run: Run) -> None:
    assert world
    ran = follow((ROOT / "docs" / "erase.md").read_text("utf-8"), run)
    assert {"export", "erase", "verify"} == set(ran)


def test_docs_redact_is_run(world: Path, run: Run) -> None:
    assert world
    ran = follow((ROOT / "docs" / "redact.md").read_text("utf-8"), run)
    assert {"export", "redact", "verify", "search"} == set(ran)


def test_docs_tablestore_is_run(
    world: Path, run: Run, monkeypatch: pytest.MonkeyPatch, servers: Servers
) -> None:
    page = (ROOT / "docs" / "stores" / "tablestore.md").read_text("utf-8")
    url = servers.tablestore.fresh()
    (world / "memctl.toml").write_text(f'[stores.agents]\nurl = "{url}"\n')
    monkeypatch.setenv("MEMCTL_CONFIG", str(world / "memctl.toml"))
    assert run("migrate", "agents.db", "agents").exit_code == 0
    ran = follow(page, run)
    assert {"config", "inspect", "export", "migrate", "delete", "undo", "doctor"} <= set(ran)


def test_docs_vaults_are_run(world: Path, run: Run) -> None:
    memory = world / "Memory"
    (memory / "likes").mkdir(parents=True)
    (memory / "MEMORY.md").write_text("- [Tea](likes/tea.md)\n", "utf-8")
    (memory / "likes" / "tea.md").write_text(
        "---\nname: tea\n---\nShe drinks green tea.\n", "utf-8"
    )
    ran = follow((ROOT / "docs" / "stores" / "vault.md").read_text("utf-8"), run)
    assert {"inspect", "export", "import", "verify", "delete", "undo", "doctor", "migrate"} == set(
        ran
    )
    node = {
        "unique_id": "1",
        "content": "drinks",
        "vector": [0.6, 0.8],
        "metadata": {"content": "green tea"},
    }
    (world / "local_vector_store").mkdir()
    (world / "local_vector_store" / "ada.jsonl").write_text(json.dumps(node) + "\n", "utf-8")
    ran = follow((ROOT / "docs" / "stores" / "reme.md").read_text("utf-8"), run)
    assert {"inspect", "export", "verify", "delete", "undo", "doctor", "migrate"} == set(ran)


SETTINGS = """\
[stores.prod]
url = "sqlite:///agents.db?state=sessions"

[summarizers.qwen]
kind = "command"
command = "head -c 200"
input_price = 0.0
output_price = 0.0
"""
"""The things that the pages call prod and qwen."""


@pytest.mark.parametrize(
    ("page", "commands"),
    [
        ("changing", {"mark", "rename", "delete", "history", "undo", "doctor"}),
        ("compress", {"compress", "undo"}),
        ("context", {"context", "inspect"}),
        ("holds", {"hold"}),
        ("cron", {"export", "delete", "compress", "report", "inspect", "verify", "import"}),
        ("output", {"inspect", "context", "help"}),
        ("report", {"report"}),
        ("stores/archive", {"export", "inspect"}),
        ("stores/session-folder", {"inspect", "export", "migrate"}),
        ("stores/sqlite", {"inspect"}),
        ("stores/state-file", {"inspect", "export", "import"}),
    ],
)
def test_docs_page_is_run(
    world: Path, run: Run, monkeypatch: pytest.MonkeyPatch, page: str, commands: set[str]
) -> None:
    (world / "memctl.toml").write_text(SETTINGS, "utf-8")
    monkeypatch.setenv("MEMCTL_CONFIG", str(world / "memctl.toml"))
    with monitored() as monitor:
        text = (ROOT / "docs" / f"{page}.md").read_text("utf-8")
        for place, ours in (
            ("https://hc-ping.com/UUID", monitor.url),
            ("/var/backups/", ""),
            ("/srv/conversations", "conversations"),
            ("/srv/reports/", ""),
        ):
            text = text.replace(place, ours)
        ran = follow(text, run)
        assert [call.method for call in monitor.calls] == ["GET"] * (page == "cron")
    assert commands == set(ran)


def test_docs_copying_is_run(
    world: Path, run: Run, monkeypatch: pytest.MonkeyPatch, postgresql_url: str
) -> None:
    settings = SETTINGS.replace("sqlite:///agents.db?state=sessions", "agents.db")
    (world / "memctl.toml").write_text(settings, "utf-8")
    monkeypatch.setenv("MEMCTL_CONFIG", str(world / "memctl.toml"))
    page = (ROOT / "docs" / "copying.md").read_text("utf-8")
    page = page.replace("postgresql:///agents", "postgresql://ops@db/agents")
    assert follow(page, run, postgresql_url) == ["export"] * 5 + ["migrate", "verify"]


def test_docs_retention_is_run(world: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "retention.md").read_text("utf-8").replace("/backup/", "")
    policy = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)[0].replace(
        "keep_last = 50", "keep_last = 1"
    )
    policy = policy.replace('max_delete = "20%"', "")  # of a store with a handful of messages
    (world / "memctl.toml").write_text(SETTINGS + policy, "utf-8")
    (world / "retired").mkdir()
    monkeypatch.setenv("MEMCTL_CONFIG", str(world / "memctl.toml"))
    page = page.replace("2026-11-27", f"{date.today()}")
    assert follow(page, run) == ["retain", "retain", "history", "search", "import", "undo"]


def test_docs_offload_is_run(world: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    output = [{"type": "tool_result", "id": "c1", "name": "read", "output": "line\n" * 30_000}]
    message = samples.entry("m1", 2, content=output)
    asyncio.run(fill("agents.db", {MemoryKey("ada", "report"): [message]}))
    settings = SETTINGS.replace("sqlite:///agents.db?state=sessions", "agents.db")
    (world / "memctl.toml").write_text(settings, "utf-8")
    monkeypatch.setenv("MEMCTL_CONFIG", str(world / "memctl.toml"))
    assert run("export", "agents.db", "-o", "archive.ndjson.zst").exit_code == 0
    page = (ROOT / "docs" / "offload.md").read_text("utf-8").replace("/srv/agents/", "")
    ran = follow(page, run)
    assert ran == ["inspect", "offload", "offload", "rehydrate", "undo", "offload", "offload"]


def test_docs_backup_is_run(world: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    pyrage = pytest.importorskip("pyrage")
    identity = pyrage.x25519.Identity.generate()
    (world / "key.txt").write_text(str(identity))
    keys = f'[encryption]\nrecipients = ["{identity.to_public()}"]\nidentity_file = "key.txt"\n'
    (world / "memctl.toml").write_text(SETTINGS + keys, "utf-8")
    monkeypatch.setenv("MEMCTL_CONFIG", str(world / "memctl.toml"))
    page = (ROOT / "docs" / "backup.md").read_text("utf-8")
    commands = ["export", "verify", "verify", "import", "restore", "restore"]
    if shutil.which("restic") is None:
        page = re.sub(r"<!-- restic -->\n```sh\n.*?```", "", page, flags=re.DOTALL)
    else:
        monkeypatch.setenv("RESTIC_REPOSITORY", str(world / "restic"))
        monkeypatch.setenv("RESTIC_PASSWORD", "secret")
        subprocess.run(["restic", "init"], check=True, capture_output=True)
        commands += ["export", "verify", "import"]
    assert follow(page, run) == commands


def test_docs_demo_prints_lines_that_can_be_pasted(
    world: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = world / "a folder"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    programs = str(world.parent / "bin")
    monkeypatch.setenv("DEMO_PATH", programs)
    runs = Path(os.environ["XDG_STATE_HOME"], "memctl", "runs")
    before = sorted(runs.iterdir())
    done = subprocess.run([ROOT / "examples" / "demo.sh"], capture_output=True, text=True)
    assert (done.returncode, "warning" in done.stderr) == (0, False), done.stderr
    printed, _, closing = done.stdout.rpartition("Three things to try:\n")
    begin, state, path, *commands = re.findall(r"\x1b\[1m\$ (.*)\x1b\[0m", printed)
    imported, *undos = re.findall(r"^undo it with: (.*)", printed, re.MULTILINE)
    commands += reversed(undos)
    assert len(commands) == 15
    assert path == f"export PATH={programs}:$PATH"
    assert state == "export XDG_STATE_HOME=$PWD/state"
    assert sorted(runs.iterdir()) == before
    # An unquoted ? fails, as it does in zsh.
    script = ["shopt -s failglob", 'memctl() { printf "%s\\0" "$@" --; }', begin, *commands]
    shell = subprocess.run(["bash", "-ec", "\n".join(script)], capture_output=True, text=True)
    assert (shell.returncode, shell.stderr) == (0, "")
    [demo] = folder.iterdir()
    monkeypatch.chdir(demo)
    monkeypatch.setenv("XDG_STATE_HOME", str(demo / "state"))
    for words in shell.stdout.split("--\0")[:-1]:
        assert run(*words.split("\0")[:-1]).exit_code == 0, words
    assert "Messages per day" in Path("report.html").read_text("utf-8")

    lines = [line.strip() for line in closing.splitlines() if line]
    assert lines[:3] == [begin, state, path]
    assert [line.split()[1] for line in lines[3:]] == ["inspect", "delete", "undo"]
    assert imported.startswith("memctl undo ")
    shown, deleted, undone = (at_terminal(f"{begin}; {line}") for line in lines[3:])
    assert "ada" in shown
    assert "deleted" in deleted
    assert "restored" in undone
    assert at_terminal(f"{begin}; {lines[3]}") == shown


def at_terminal(line: str) -> str:
    """Run a line at a terminal, and say yes to all that it asks; return what it shows."""
    settings = os.environ | {"TERM": "dumb", "PAGER": "cat"}
    process = pexpect.spawn("bash", ["-c", line], env=settings, encoding="utf-8", timeout=60)
    shown = ""
    while process.expect([r"\[y/N\]", pexpect.EOF]) == 0:
        shown += process.before
        process.sendline("y")
    shown += process.before
    process.close()
    assert process.exitstatus == 0, shown
    return shown


def follow(page: str, run: Run, postgresql_url: str = "") -> list[str]:
    """Run the lines of a page; return the command of memctl that each was for."""
    ran = []
    for line in of_shells(LEFT_OUT.sub("", page)):
        command, _, comment = line.partition(" #")
        if not command.strip() or command.startswith("#"):
            continue
        said = re.match(r" exit code (\d+):", comment)
        command = command.replace("postgresql://ops@db/agents", shlex.quote(postgresql_url))
        code, told = carry_out(command.strip(), run)
        assert code == (int(said[1]) if said else 0), (line, told)
        ran.append(next(word for word in command.split() if word in COMMANDS))
    return ran


def carry_out(command: str, run: Run) -> tuple[int, str]:
    """Return its exit code and what it printed."""
    words: list[Any] = shlex.split(command)
    if "--follow" in words:
        return until_it_is_up_to_date(words)
    if words[0] == "memctl" and not OF_SHELL & set(command):
        result = run(*words[1:])
        return result.exit_code, result.output
    if "| jq" in command and shutil.which("jq") is None:
        command = command.partition("|")[0]
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


def until_it_is_up_to_date(words: list[str]) -> tuple[int, str]:
    """Run ``--follow`` as a program, and press Ctrl-C."""
    with subprocess.Popen(
        words,
        env=os.environ | {"MEMCTL_VERBOSE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        told = list(until(process.stderr, UP_TO_DATE))
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=60)
    return process.returncode, "".join([*told, *rest])


def until(lines: Iterable[str], end: str) -> Iterator[str]:
    """The lines up to the one that holds ``end``."""
    for line in lines:
        yield line
        if end in line:
            return
