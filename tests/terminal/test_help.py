"""The help: the same layout for every command, whole words at every width, examples that parse.

``make screens`` writes the files of ``screens/`` anew; read what has changed before you commit it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from memctl.cli import GROUPS, MOST_USED, app
from memctl.commands._help import page
from memctl.commands._options import build
from memctl.commands._topics import EXAMPLES, SELECTED, TEXTS, TOPICS
from tests.support.cli import Run, fails
from tests.test_docs import commands as calls_in
from tests.test_docs import parse

SCREENS = Path(__file__).parent / "screens"
NOISE = re.compile(r"[{}]|<\w|x[<>]|\[(required|default|OPTIONS|ARGS)")


def every(words: tuple[str, ...] = (), command: object = None) -> Iterator[tuple[str, ...]]:
    """Yield the words of every command."""
    command = command or typer.main.get_command(app)
    yield words
    for name, below in getattr(command, "commands", {}).items():
        yield from every((*words, name), below)


COMMANDS = list(every())


def shown(run: Run, columns: int, *words: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", str(columns))
    result = run(*words)
    assert result.exit_code == 0, result.output
    return str(result.stdout)


@pytest.mark.parametrize("columns", [60, 80, 120])
@pytest.mark.parametrize("words", ["", "delete", "migrate", "selection"])
def test_help_screens(run: Run, monkeypatch: pytest.MonkeyPatch, words: str, columns: int) -> None:
    text = shown(run, columns, "help", *words.split(), monkeypatch=monkeypatch)
    file = SCREENS / f"help-{words}-{columns}.txt".replace("--", "-")
    if os.environ.get("MEMCTL_SCREENS") == "write":
        file.write_text(text, "utf-8")
    assert text == file.read_text("utf-8")


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_help_screen_of_memctl_alone(
    run: Run, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    alone = run()
    assert (alone.exit_code, alone.stdout) == (2, "")
    file = SCREENS / f"alone-{columns}.txt"
    if os.environ.get("MEMCTL_SCREENS") == "write":
        file.write_text(alone.stderr, "utf-8")
    assert alone.stderr == file.read_text("utf-8")
    assert len(alone.stderr.splitlines()) <= 23 or columns < 80
    assert run("help").output == run("--help").output


@pytest.mark.parametrize("words", [*MOST_USED, "COMMAND", "stores"])
def test_help_names_what_memctl_alone_lists(run: Run, words: str) -> None:
    assert f" {words} " in run().stderr
    assert words == "COMMAND" or run("help", words).exit_code == 0


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_says_what_a_command_does_and_how(
    run: Run, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    text = shown(run, 80, *words, "--help", monkeypatch=monkeypatch)
    assert text.startswith(f"Usage: {' '.join(['memctl', *words])} ")
    assert not NOISE.search(text)
    if words:
        beginning = re.split(r"\n(?:Options|Which messages|Safety|Output):\n", text)[0]
        assert len(beginning.splitlines()) <= 24
        examples = beginning.partition("\nExamples:\n")[2].partition("\n\n")[0]
        assert 2 <= len(re.findall(r"^  memctl ", examples, re.MULTILINE)) <= 3


@pytest.mark.parametrize("words", [*COMMANDS, *((name,) for name in TEXTS)], ids=" ".join)
def test_help_breaks_no_word(
    run: Run, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    wide = shown(run, 100, "help", *words, monkeypatch=monkeypatch).split()
    for columns in (40, 41, 53, 60, 77):
        narrow = shown(run, columns, "help", *words, monkeypatch=monkeypatch)
        assert max(map(len, narrow.splitlines())) <= columns
        assert [word for word in narrow.split() if word != "\\"] == wide


EXAMPLE_LINES = [
    *(line for _, lines in EXAMPLES for line in lines),
    *SELECTED,
    *re.findall(
        r"^  (memctl .*)$",
        (Path(__file__).parents[2] / "docs" / "reference.md").read_text("utf-8"),
        re.MULTILINE,
    ),
]


@pytest.mark.parametrize("line", EXAMPLE_LINES)
def test_help_example_parses(line: str) -> None:
    [words] = calls_in(line)
    parse(words)


def test_help_examples_are_found() -> None:
    assert len(EXAMPLE_LINES) > 2 * len(COMMANDS)


def test_help_lists_commands_by_purpose_and_topics_before_options(run: Run) -> None:
    text = run("--help").stdout
    heads = re.findall(r"^(\S.*):$", text, re.MULTILINE)
    assert heads == [*GROUPS, "Topics (memctl help TOPIC)", "Options"]
    for topic in TOPICS:
        assert run("help", topic).exit_code == 0
    fails(run("help", "selections"), 2, "did you mean 'selection'?")


def test_help_groups_options_by_purpose(run: Run) -> None:
    text = run("delete", "--help").stdout
    heads = re.findall(r"^(\S.*):$", text, re.MULTILINE)
    ahead = ["Examples", "Arguments", "Which messages"]
    assert heads == [*ahead, "Parts of a run", "Connection", "Safety", "Output"]
    assert text.startswith("Usage: memctl delete STORE [selection] [options]\n")


def test_help_of_a_new_command_has_the_same_layout() -> None:
    def count(
        store: str, often: int = 3, kind: str = typer.Option("a", help="Which kind.")
    ) -> None:
        """Count something.

        It counts twice.

        Examples:
          memctl count a.db
        """

    command = build(count, "count")
    found = page(command, typer.Context(command, info_name="memctl count"))
    assert found.usage == "memctl count STORE [options]"
    assert found.paragraphs == ["Count something.", "It counts twice."]
    assert found.examples == ["memctl count a.db"]
    assert found.options["Options"][1] == ("--kind KIND", "Which kind (default a).")
