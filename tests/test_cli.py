"""The command line as a whole: fast to start, and documented as it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from memctl import plugins
from memctl.cli import COMMANDS, app
from tests.support.cli import FRIDAY, Run, fails, report

ROOT = Path(__file__).parent.parent


def test_cli_looks_for_plugins_only_for_other_commands(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def names(group: str) -> list[str]:
        asked.append(group)
        return []

    monkeypatch.setattr(plugins, "names", names)
    assert run("inspect", FRIDAY).exit_code == 0
    assert not asked
    fails(run("inspekt", FRIDAY), 2, "did you mean 'inspect'")
    assert asked


@pytest.mark.parametrize("name", COMMANDS)
def test_cli_overview_says_what_the_command_says(name: str) -> None:
    root = get_command(app)
    context = root.make_context("memctl", [], resilient_parsing=True)
    command = root.get_command(context, name)
    assert (command.help or "").strip().splitlines()[0] == COMMANDS[name][1]


@pytest.mark.slow
def test_cli_generated_files_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "generate.py", "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_cli_kinds_of_store(run: Run) -> None:
    found = {row["kind"]: row for row in report(run("stores", "--json"))["stores"]}
    assert found["sqlite"]["capabilities"] == ["empty"]
    assert "summaries" in found["archive"]["capabilities"]
    assert found["redis"]["capabilities"] == ["ttl", "parallel"]
    marks = [found[kind]["marks"] for kind in ("redis", "redis-agentscope2", "redis-runtime")]
    assert marks == [None, ["compressed"], []]
    assert "parallel, only the mark compressed" in run("stores").stdout
    assert "RedisMemory" in run("stores").stdout


@pytest.mark.parametrize("option", ["--version", "--show-completion"])
def test_cli_option_without_a_command_is_told_its_place(run: Run, option: str) -> None:
    result = run("inspect", "agents.db", option, "bash")
    fails(result, 2, f"it goes before the command, as in memctl {option} ...")


@pytest.mark.parametrize(
    "words",
    [
        ("-v", "inspect", FRIDAY),
        ("inspect", FRIDAY, "-v"),
        ("inspect", "-v", FRIDAY, "--limit", "0"),
        ("inspect", "--limit", "1", FRIDAY, "--verbose"),
        ("mark", "list", FRIDAY, "-v"),
        ("mark", "-v", "list", FRIDAY),
        ("inspect", FRIDAY, "--color", "never", "-v"),
        ("inspect", FRIDAY, "--log-format=text", "-v"),
    ],
)
def test_cli_options_of_memctl_stand_before_or_after_the_command(
    run: Run, words: tuple[object, ...]
) -> None:
    result = run(*words)
    assert result.exit_code == 0
    assert "memctl: opened" in result.stderr


def test_cli_value_of_an_option_is_no_option_of_memctl(run: Run, tmp_path: Path) -> None:
    quiet = run("inspect", FRIDAY, "--match", "-q", "--messages")
    assert (quiet.exit_code, quiet.stderr) == (0, "")
    fails(run("inspect", "--", "-q"), 2, "'-q'")
    configuration = tmp_path / "memctl.toml"
    configuration.write_text(f'[stores.friday]\nurl = "{FRIDAY}"\n')
    assert run("inspect", "friday", "--config", configuration).exit_code == 0
    fails(run("inspect", "friday", "--config"), 2, "--config")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("backup", "a.db"), "use memctl export"),
        (("rm", "a.db"), "use memctl delete"),
        (("ls", "-q"), "use memctl inspect"),
        (("users", "a.db"), "use memctl inspect"),
        (("head", "a.db"), "use memctl inspect STORE --messages --last 20"),
        (("gc", "a.db"), "use memctl retain for policies, or memctl delete"),
        (("ease", "a.db"), "memctl --help lists the commands"),
        (("hold", "add", "prod", "--reason", "x"), "name the store as an option: --store prod"),
        (("export", FRIDAY, "-o", "a.pdf"), "name it NAME.html, and print the page"),
        (("delete", "a.db", "--before", "7d"), "memctl's option is --until"),
    ],
)
def test_cli_words_of_other_tools_have_a_hint(run: Run, words: tuple[str, ...], hint: str) -> None:
    fails(run(*words), 2, hint)
