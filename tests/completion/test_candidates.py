"""Tests of the candidates that memctl returns, whatever the shell."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from memctl import completion
from memctl.completion import quoted, split
from memctl.holds import Hold
from memctl.journal.holds import HoldRecord
from memctl.journal.runs import Run as KeptRun
from memctl.journal.runs import Runs
from memctl.model import MemoryKey
from memctl.registry import store_class
from memctl.testing import samples
from tests.completion.conftest import ALONE, NAMES, Ask
from tests.completion.shells import ROOT, SCRIPTS
from tests.support.cli import Run, fill

ALIASES = ["prod-one", "asks"]
USERS = [*NAMES, "zed"]
INSPECT = [
    *("--messages", "--ids", "--by", "--sort", "--limit", "--path", "--pager", "--no-pager"),
    *("--timeout", "--shard", "--shards", "--on", "--workers"),
    *(
        "--format",
        "--json",
        "--user",
        "--session",
        "--mark",
        "--exclude-mark",
        "--role",
        "--ignore-case",
        "--name",
    ),
    *("--id", "--since", "--until", "--older-than", "--newer-than", "--last", "--match", "--live"),
    *(
        "--not-live",
        "--project",
        "--help",
        "--config",
        "-q",
        "--quiet",
        "-v",
        "--verbose",
        "--color",
        "--log-format",
        "--ping",
    ),
    *("--progress-interval", "--metrics-file"),
]
MARKS = ["a", "considered", "hint", "to check"]


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("mark ", ["add", "remove", "rename", "list"]),
        ("-q --color always mark re", ["remove", "rename"]),
        ("nonsense ", []),
        ("inspect --mes", ["--messages"]),
        ("undo --dry", ["--dry-run"]),
        ("undo --dry-run --co", ["--color", "--config"]),
        ("mark add -q --log", ["--log-format"]),
        ("inspect agents.db --color ", ["auto", "always", "never"]),
        ("inspect --color=n", ["--color=never"]),
        ("inspect -", INSPECT),
        ("inspect agents.db --config none.toml --user z", ["zed"]),
        ("inspect --show", []),
        ("--show", ["--show-completion"]),
        ("--show-completion z", ["zsh"]),
        ("delete -q agents.db --mark h", ["hint"]),
        ("help sel", ["selection"]),
        ("--co", ["--config", "--color"]),
        ("inspect --sort ", ["messages", "bytes", "last", "user"]),
        ("export --as=s", ["--as=state-dict", "--as=session-dir"]),
        ("export prod-one --rotate ", []),
        ("export prod-one -o ", ["FILES"]),
        ("compress --prompt-file ", ["FILES"]),
        ("inspect ", [*ALIASES, "@both", "FILES"]),
        ("inspect @", ["@both", "FILES"]),
        ("context ", [*ALIASES, "FILES"]),
        ("migrate prod-one a", ["asks", "FILES"]),
        ("undo --store p", ["prod-one", "FILES"]),
        ("import x.json ", [*ALIASES, "@both", "FILES"]),
        ("import ", ["FILES"]),
        ("inspect prod-one ", []),
        ("compress --summarizer ", ["house", "extractive"]),
        ("inspect prod-one --user ", USERS),
        ("inspect --user z --user ", []),
        ("inspect --user zed prod-one --session ", ["a:1", "b 2"]),
        ("migrate agents.db none.db --session a", ["a:1"]),
        ("mark rename agents.db ", MARKS),
        ("inspect agents.db --exclude-mark=h", ["--exclude-mark=hint"]),
        ("delete prod-one --user zed --mark ", ["hint", "to check"]),
        ("inspect prod-one --role a", ["assistant"]),
        ("doctor agents.db orphan", ["orphan-mark"]),
        ("doctor agents.db orphan-mark duplicate-i", ["duplicate-index"]),
        ("doctor agents.db --ignore orphan", ["orphan-mark"]),
        ("help exit", ["exit-codes"]),
        ("help mark li", ["list"]),
        ("help schema insp", ["inspect"]),
        ("inspect none.db --user ", []),
        ("inspect asks --user ", []),
        ("inspect sqlite:///agents.db --user z", ["zed"]),
        ("inspect postgresql://localhost/none --user ", []),
        ("inspect -- --", ["FILES"]),
    ],
)
def test_completion_candidates(ask: Ask, folder: Path, typed: str, expected: list[str]) -> None:
    found = ask(*typed.split(" "))
    assert sorted(found) == sorted(expected)
    assert not (folder / "asked").exists()


def test_completion_runs_the_newest_first(ask: Ask) -> None:
    kept = [Runs().begin(KeptRun("", "delete", "agents.db", "agents.db")).run.id for _ in range(3)]
    assert ask("undo", "") == kept[::-1]


def test_completion_holds_that_were_not_removed(ask: Ask) -> None:
    record = HoldRecord()
    kept, gone = (record.add(Hold("case 17", user=name)).hold.id for name in ("ada", "bob"))
    record.remove(gone)
    assert ask("hold", "remove", "") == [kept]
    assert ask("hold", "add", "--store", "prod-one", "--user", "z") == ["zed"]


def test_completion_what_would_not_stay_on_its_line_is_left_out(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("fine", "two\nlines", "\x1b[31mred", "\u202eright", "")
    memories = {MemoryKey(name, "s"): samples.entries(1) for name in names}
    asyncio.run(fill(str(tmp_path / "odd.ndjson"), memories))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert ask("inspect", "~/odd.ndjson", "--user", "") == ["fine"]


def test_completion_outputs_are_files_and_aliases_of_objects(ask: Ask, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(
        '[stores.night]\nurl = "s3://backups/b.ndjson"\n[stores.prod]\nurl = "sqlite:///a.db"\n'
    )
    assert ask("--config", str(path), "export", "agents.db", "-o", "") == ["night", "FILES"]
    assert ask("--config", str(path), "report", "agents.db", "-o", "") == ["FILES"]


@pytest.mark.parametrize("broken", ["[defaults]\ncolour = 1\n[stores", "[stores]\nprod = 1\n"])
def test_completion_broken_configuration_has_no_aliases(
    ask: Ask, tmp_path: Path, broken: str
) -> None:
    path = tmp_path / "broken.toml"
    path.write_text(broken)
    assert ask("--config", str(path), "inspect", "") == ["FILES"]
    assert ask("--config", str(path), "inspect", "agents.db", "--user", "z") == ["zed"]


def test_completion_server_that_does_not_answer_is_not_waited_for(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "config.toml"
    ask("inspect", "prod-one", "--user", "")  # what is imported once takes its time
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        path.write_text(f'[stores.hangs]\nurl = "postgresql://me:x@127.0.0.1:{port}/none"\n')
        store_class("postgresql")
        monkeypatch.setattr(completion, "PATIENCE", 0.4)
        start = time.monotonic()
        assert ask("--config", str(path), "inspect", "hangs", "--user", "") == []
        assert time.monotonic() - start < 2


def test_completion_an_option_with_two_values_waits_for_both(ask: Ask) -> None:
    for words in ((), ("ada",)):
        assert ask("rename", "agents.db", "--user", *words, "z") == ["zed"]
    assert "--merge" in ask("rename", "agents.db", "--user", "ada", "zed", "--m")


def test_completion_pipe_is_not_read(ask: Ask, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    assert ask("inspect", str(tmp_path / "pipe.json"), "--user", "") == []


@pytest.mark.slow
@pytest.mark.parametrize("words", [["ins"], ["export", "--as="], ["inspect", "sqlite:///x.db", ""]])
def test_completion_no_driver_is_imported(words: list[str], folder: Path) -> None:
    """Not for commands, options and arguments: a shell waits for them."""
    program = (
        "import os, sys; from memctl.cli import app\n"
        "def end(code):\n"
        "    names = {'sqlalchemy', 'redis', 'asyncpg', 'aiosqlite'} & set(sys.modules)\n"
        "    print(sorted(names), file=sys.stderr)\n"
        "os._exit = end\n"
        "app()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        cwd=folder,
        env=os.environ | {"_MEMCTL_COMPLETE": "zsh", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.stderr == "[]\n", done.stderr


@pytest.mark.parametrize("quote", ["", "'", '"'])
@pytest.mark.parametrize("name", [*NAMES, ALONE])
def test_completion_bash_reads_what_is_written_for_it(name: str, quote: str) -> None:
    found = split(f"memctl x {quote}{quoted(name, quote)}{quote}")
    assert (found.words, found.last) == (["memctl", "x"], name)
    echo = f"printf %s {quote}{quoted(name, quote)}{quote}"
    assert subprocess.run(["bash", "-c", echo], capture_output=True).stdout.decode() == name


def test_completion_scripts_are_shown(run: Run) -> None:
    for shell in ("bash", "zsh", "fish"):
        shown = run("--show-completion", shell)
        assert shown.exit_code == 0
        assert shown.stdout == (SCRIPTS / f"memctl.{shell}").read_text()
