"""Questions of changing commands at a terminal, and the effect of each answer."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import select
import signal
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from memctl.model import MemoryKey
from memctl.testing import Place, samples
from tests.support.backends import place_at
from tests.support.cli import Run, contents, fails, fill, report
from tests.support.forkserver import TerminalProcess
from tests.support.places import append, held, put, runs_kept
from tests.support.processes import wait_until_it_waits
from tests.support.servers.pool import Servers

PATIENCE = 60
"""Seconds."""
CTRL_C, CTRL_D = "\x03", "\x04"
DELETE = ("delete", "--mark", "hint")


class Session:
    """A person at a terminal in which memctl runs."""

    def __init__(self, *words: object, **settings: Any) -> None:
        master, slave = pty.openpty()
        environment = os.environ | {"TERM": "dumb", "PYTHONUTF8": "1", "NO_COLOR": "1"}
        self._master = master
        self._process = TerminalProcess(
            list(map(str, words)),
            **{"stdin": slave, "stdout": slave, "stderr": slave} | settings,
            env=environment,
        )
        os.close(slave)
        self.said = ""

    def until(self, text: str) -> None:
        """Read up to a text."""
        while text not in self.said:
            piece = self._read()
            assert piece, self.said
            self.said += piece

    def types(self, text: str) -> None:
        """Type a text as soon as memctl waits for the terminal."""
        wait_until_it_waits(self._process.pid)
        os.write(self._master, text.encode(errors="surrogateescape"))

    def ends(self, *, by: signal.Signals | None = None) -> int:
        """The exit code, when all is read."""
        if by is not None:
            self._process.send_signal(by)
        while piece := self._read():
            self.said += piece
        os.close(self._master)
        return self._process.wait(60)

    def _read(self) -> str:
        ready, _, _ = select.select([self._master], [], [], PATIENCE)
        if not ready:
            self._process.kill()
            raise AssertionError(f"memctl says nothing more: {self.said!r}")
        try:
            return os.read(self._master, 65536).decode(errors="replace").replace("\r\n", "\n")
        except OSError:
            return ""  # Linux tells the end of a terminal with EIO.


@pytest.fixture
def filled(tmp_path: Path, servers: Servers) -> Place:
    """A SQLite database of 12 memories, one of a name that a terminal should not obey."""
    text = f"sqlite:///{tmp_path}/agents.db"
    keys = [samples.key(number) for number in range(11)]
    keys.append(MemoryKey("\x1b[31mred\r\n", "京都\u202e"))
    asyncio.run(fill(text, {key: samples.entries(9) for key in keys}))
    return place_at("sqlite", text, tmp_path, servers)


ANSWERS = {
    "n": ("n\n", 130),
    "no": ("no\n", 130),
    "Enter": ("\n", 130),
    "Ctrl-D": (CTRL_D, 130),
    "Ctrl-C": (CTRL_C, 130),
    "nonsense": ("ja\n", 130),
    "what is no UTF-8": ("\udcff\n", 130),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_prompt_no_changes_nothing(filled: Place, answer: str) -> None:
    before = filled.dump()
    said, code = ANSWERS[answer]
    session = Session("delete", filled.text, "--mark", "hint")
    session.until("[y/N] ")
    shown = session.said
    session.types(said)
    assert session.ends() == code, session.said
    assert "36 messages in 12 memories (10 shown)" in shown
    assert re.search(r"user0 +session0 +3 +6\n", shown)
    assert "\x1b[31m" not in shown
    assert session.said.count("nothing was changed") == 1
    assert "Traceback" not in session.said
    assert filled.dump() == before
    assert runs_kept() == []


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["postgresql", "mariadb"])
def test_prompt_for_the_password_that_a_server_wants(
    filled: Place, run: Run, servers: Servers, engine: str
) -> None:
    url = getattr(servers, engine).fresh()
    assert run("migrate", filled.text, url).exit_code == 0
    parts = urlsplit(url)
    user, at, host = parts.netloc.partition(f":{parts.password}@")
    assert at
    without = parts._replace(netloc=f"{user}@{host}").geturl()
    session = Session("inspect", without)
    session.until("Password for ")
    session.types(f"{unquote(str(parts.password))}\n")
    assert session.ends() == 0, session.said
    assert "12 memories" in session.said
    assert unquote(str(parts.password)) not in session.said
    session = Session("inspect", without)
    session.until("Password for ")
    session.types("wrong\n")
    assert session.ends() == 3, session.said
    assert "password_env of an alias" in session.said
    session = Session("inspect", without)
    session.until("Password for ")
    session.types(CTRL_C)
    assert session.ends() == 130, session.said
    assert "no password was given" in session.said


def test_prompt_for_no_password_in_a_script(
    run: Run, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = urlsplit(servers.postgresql.fresh())
    without = parts._replace(netloc=parts.netloc.replace(f":{parts.password}@", "@")).geturl()
    result = run("inspect", without)
    fails(result, 3, "PGPASSWORD, ~/.pgpass or password_env of an alias", "memctl config init")
    assert "Password for" not in result.stderr
    monkeypatch.setenv("PGPASSWORD", unquote(str(parts.password)))
    fails(run("inspect", without), 8, "no tables")


def test_prompt_names_are_shown_not_obeyed(filled: Place) -> None:
    session = Session("delete", filled.text, "--mark", "hint", "--user", "\x1b[31mred\r\n")
    session.until("[y/N] ")
    session.types("n\n")
    assert session.ends() == 130
    assert "\\x1b[31mred\\r\\n" in session.said
    assert "\x1b" not in session.said
    assert "京都\\u202e" in session.said


@pytest.mark.parametrize("said", ["y\n", "YES\n", " y \n"])
def test_prompt_yes_deletes(filled: Place, run: Run, said: str) -> None:
    before = held(filled)
    session = Session("delete", filled.text, "--mark", "hint")
    session.until("[y/N] ")
    session.types(said)
    assert session.ends() == 0, session.said
    assert "36 messages deleted in 12 memories" in session.said
    assert not any("hint" in marks for one in held(filled).values() for _, marks, _ in one[2])
    assert run("undo", "--yes").exit_code == 0
    assert held(filled) == before


def test_prompt_what_agents_do_while_nobody_answers(filled: Place, run: Run) -> None:
    """The store is released; what was planned goes, as far as it is still there."""
    key = samples.key(0)
    session = Session("delete", filled.text, "--mark", "hint")
    session.until("[y/N] ")
    done = run("delete", filled.text, "--id", "m0000001", "--user", key.user, "--yes")
    assert done.exit_code == 0, done.output
    session.types("y\n")
    assert session.ends() == 0, session.said
    assert "33 messages deleted in 12 memories" in session.said
    rows = report(run("history", "--json"))["runs"]
    assert sorted(row["deleted"] for row in rows) == [3, 33]


def test_prompt_calls_facts_facts(tmp_path: Path) -> None:
    (tmp_path / "tea.md").write_text("Ada likes tea.")
    session = Session("delete", f"vault:{tmp_path}", "--all")
    session.until("to continue: ")
    session.types("n\n")
    assert session.ends() == 130, session.said
    assert "delete 1 fact in 1 memory of" in session.said


def test_prompt_nothing_to_ask(filled: Place) -> None:
    session = Session("delete", filled.text, "--mark", "unknown")
    assert session.ends() == 0
    assert "nothing matched" in session.said
    assert "[y/N]" not in session.said


def test_prompt_limit_is_looked_at_before_anybody_is_asked(filled: Place) -> None:
    session = Session("delete", filled.text, "--mark", "hint", "--max-delete", "35")
    assert session.ends() == 9
    assert "[y/N]" not in session.said


@pytest.mark.parametrize("limit", [41, 42])
def test_prompt_too_much_by_the_time_of_the_answer(filled: Place, run: Run, limit: int) -> None:
    """A memory that an agent changed is planned anew, and counts anew."""
    [key, *others] = held(filled)
    session = Session("delete", filled.text, "--mark", "hint", "--max-delete", str(limit))
    session.until("[y/N] ")
    chosen = ("--user", key.user, "--session", key.session, "--json")
    assert run("mark", "add", filled.text, "seen", "--mark", "hint", *chosen).exit_code == 0
    assert report(run("mark", "add", filled.text, "hint", *chosen))["messages"]["marked"] == 6
    session.types("y\n")
    allowed = limit == 42
    assert session.ends() == (0 if allowed else 7)
    after = held(filled)
    assert not any("hint" in marks for one in others for _, marks, _ in after[one][2])
    assert (key in after) != allowed
    assert ("the retry would exceed --max-delete" in session.said) != allowed


@pytest.mark.parametrize("right", [True, False])
def test_prompt_everything_asks_for_the_name(filled: Place, right: bool) -> None:
    session = Session("delete", filled.text, "--all")
    session.until("to continue: ")
    assert f"type {filled.text} to continue" in session.said
    session.types(f"{filled.text}\n" if right else "y\n")
    assert session.ends() == (0 if right else 130)
    assert len(held(filled)) == (0 if right else 12)


def test_prompt_password_is_not_asked_for(run: Run, postgresql_url: str) -> None:
    secret = postgresql_url.partition("://")[2].partition("@")[0].partition(":")[2]
    asyncio.run(fill(postgresql_url, {samples.key(0): samples.entries(3)}))
    name = postgresql_url.replace(secret, "***")
    session = Session("delete", postgresql_url, "--all")
    session.until(f"type {name} to continue: ")
    shown = session.said
    session.types(f"{name}\n")
    assert session.ends() == 0
    assert secret not in shown
    assert report(run("inspect", postgresql_url, "--json"))["totals"]["messages"] == 0


@pytest.mark.parametrize("said", ["n\n", "y\n", CTRL_C])
def test_prompt_undo_without_a_run_asks(filled: Place, run: Run, said: str) -> None:
    before = held(filled)
    done = report(run("delete", filled.text, "--mark", "hint", "--yes", "--json"))["run"]
    after = filled.dump()
    session = Session("undo")
    session.until("[y/N] ")
    said_of = rf"undo {done}, the delete of 20\S+ \S+ \S+ on \S*agents.db \(36 deleted\)\?"
    assert re.search(said_of, session.said)
    session.types(said)
    assert session.ends() == (0 if said == "y\n" else 130)
    if said == "y\n":
        assert held(filled) == before
    else:
        assert filled.dump() == after
    [first, *_] = report(run("history", "--json"))["runs"]
    assert (first["undoes"] == done) == (said == "y\n")


@pytest.mark.slow
def test_prompt_undo_of_what_was_replaced_asks_first(
    filled: Place, run: Run, tmp_path: Path, servers: Servers
) -> None:
    origin = place_at("sqlite", f"sqlite:///{tmp_path}/source.db", tmp_path, servers)
    asyncio.run(fill(origin.text, {samples.key(0): samples.entries(5, start=3)}))
    words = ("migrate", origin.text, filled.text, "--on-conflict", "replace", "--yes")
    assert run(*words).exit_code == 0
    after = filled.dump()
    session = Session("undo")
    session.until("[y/N] ")
    session.types("n\n")
    assert session.ends() == 130
    assert filled.dump() == after
    assert len(report(run("history", "--json"))["runs"]) == 1


def test_prompt_undo_of_a_named_run_does_not_ask(filled: Place, run: Run) -> None:
    before = held(filled)
    done = report(run("delete", filled.text, "--mark", "hint", "--yes", "--json"))["run"]
    session = Session("undo", done)
    assert session.ends() == 0
    assert "[y/N]" not in session.said
    assert held(filled) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code", "left"),
    [(signal.SIGHUP, 129, []), (signal.SIGKILL, -signal.SIGKILL, ["cut-short"])],
)
def test_prompt_terminal_that_is_closed(
    filled: Place, run: Run, number: signal.Signals, code: int, left: list[str]
) -> None:
    """Nothing happened; neither does it get into the way of the next undo."""
    before = held(filled)
    done = report(run("delete", filled.text, "--mark", "a", "--yes", "--json"))["run"]
    session = Session("delete", filled.text, "--mark", "hint")
    session.until("[y/N] ")
    assert session.ends(by=number) == code
    *cut, first = report(run("history", "--json"))["runs"]
    assert ([one["outcome"] for one in cut], first["run"]) == (left, done)
    assert report(run("undo", "--yes", "--json"))["undoes"] == done
    assert held(filled) == before


def test_prompt_run_that_waits_for_its_answer_goes_on(filled: Place, run: Run) -> None:
    session = Session("delete", filled.text, "--mark", "hint")
    session.until("[y/N] ")
    [going] = report(run("history", "--json"))["runs"]
    assert (going["outcome"], going["ended"]) == ("running", None)
    assert "running" in run("history").stdout
    before = held(filled)
    fails(run("undo", going["run"]), 75, "is still running")
    fails(run("undo", "--yes"), 4, "no run can be undone")
    assert held(filled) == before
    session.types("y\n")
    assert session.ends() == 0
    [done] = report(run("history", "--json"))["runs"]
    assert (done["run"], done["outcome"]) == (going["run"], "done")
    assert report(run("undo", "--yes", "--json"))["undoes"] == done["run"]


def test_prompt_answer_is_not_in_the_data(filled: Place, tmp_path: Path) -> None:
    """Questions go to stderr: stdout holds the report alone."""
    path = tmp_path / "report"
    with path.open("wb") as out:
        session = Session("delete", filled.text, "--mark", "hint", "--json", stdout=out)
        session.until("[y/N] ")
        session.types("y\n")
        assert session.ends() == 0
    assert json.loads(path.read_text())["messages"]["deleted"] == 36


@pytest.mark.parametrize("said", ["y\n", "n\n"])
def test_prompt_doctor_shows_what_it_would_repair(database: str, said: str) -> None:
    hint = samples.entry("left", 1, ("hint",))
    asyncio.run(fill(database, {samples.key(0): [hint, samples.entry("reply", 2)]}))
    session = Session("doctor", database, "--repair")
    session.until("[y/N] ")
    shown = session.said
    session.types(said)
    assert session.ends() == (0 if said == "y\n" else 130)
    for text in (
        "warning  hints left over from interrupted replies: 1  leftover-hint",
        "'user0'/'session0'",
        "a hint that was meant for an earlier reply; --repair",
        "repair 2 problems",
    ):
        assert text in shown
    assert ("repaired" in session.said) == (said == "y\n")
    held_now = {entry.id for entries in contents(database).values() for entry in entries}
    assert held_now == ({"reply"} if said == "y\n" else {"left", "reply"})


@pytest.mark.parametrize("said", ["y\n", "n\n"])
def test_prompt_compress_shows_what_it_would_delete(filled: Place, run: Run, said: str) -> None:
    before = held(filled)
    words = ("compress", filled.text, "--mode", "replace", "--keep-recent", "2")
    session = Session(*words)
    session.until("[y/N] ")
    shown = session.said
    new = MemoryKey("new", "new")
    put(filled, [samples.sample(new, samples.entries(9))])
    session.types(said)
    assert session.ends() == (0 if said == "y\n" else 130)
    assert re.search(r"user +session +delete +keep\n", shown)
    assert re.search(r"user0 +session0 +7 +2\n", shown)
    asked = "replace 84 messages in 12 memories (10 shown) of "
    assert asked in shown
    assert "agents.db by 12 summaries? [y/N]" in shown
    after = held(filled)
    assert len(after.pop(new)[2]) == 9, "it was not in the question"
    if said == "y\n":
        assert {len(found) for _, _, found in after.values()} == {3}
        assert run("undo", "--yes").exit_code == 0
        after = held(filled)
        after.pop(new)
    assert after == before


def test_prompt_compress_of_everything_asks_for_the_name(filled: Place) -> None:
    before = held(filled)
    session = Session("compress", filled.text, "--all", "--mode", "replace")
    session.until(f"type {filled.text} to continue: ")
    session.types("y\n")
    assert session.ends() == 130
    assert held(filled) == before


@pytest.mark.parametrize("words", [["--mode", "message"], ["--mode", "replace", "--yes"]])
def test_prompt_compress_does_not_ask(filled: Place, words: list[str]) -> None:
    """Messages that are marked stay, as they do for ``memctl mark``."""
    session = Session("compress", filled.text, "--all", *words)
    assert session.ends() == 0
    assert "[y/N]" not in session.said
    assert "12 memories compressed" in session.said


def test_prompt_compress_limit_is_looked_at_before_anybody_is_asked(filled: Place) -> None:
    words = ("--all", "--mode", "replace", "--max-delete", "5%")
    session = Session("compress", filled.text, *words)
    assert session.ends() == 9
    assert "to continue" not in session.said


@pytest.mark.parametrize("limit", [84, 85])
def test_prompt_compress_too_much_by_the_time_of_the_answer(filled: Place, limit: int) -> None:
    key = next(iter(held(filled)))
    words = ("--all", "--mode", "replace", "--keep-recent", "2", "--max-delete", limit)
    session = Session("compress", filled.text, *words)
    session.until("to continue: ")
    append(filled, key, [samples.entry("new", 99)])
    session.types(f"{filled.text}\n")
    allowed = limit == 85
    assert session.ends() == (0 if allowed else 7)
    assert ("has grown, and would exceed" in session.said) != allowed
    left = [one for one, (_, _, found) in held(filled).items() if len(found) > 3]
    assert len(left) == (0 if allowed else 1)


@pytest.mark.parametrize("command", ["migrate", "import"])
@pytest.mark.parametrize("said", ["y\n", "n\n"])
def test_prompt_replace_names_what_it_would_remove(
    filled: Place, run: Run, tmp_path: Path, command: str, said: str
) -> None:
    origin = f"{tmp_path}/other.ndjson"
    new = MemoryKey("new", "new")
    entries = samples.entries(5, start=3)
    asyncio.run(fill(origin, dict.fromkeys((samples.key(0), samples.key(1), new), entries)))
    before = held(filled)
    session = Session(command, origin, filled.text, "--on-conflict", "replace")
    session.until("[y/N] ")
    shown = session.said
    assert held(filled) == before
    session.types(said)
    assert session.ends() == (0 if said == "y\n" else 130)
    assert re.search(r"user0 +session0 +9\n", shown)
    assert "replace 18 messages in 2 memories of " in shown
    assert len(held(filled)) == (13 if said == "y\n" else 12)
    if said == "y\n":
        assert run("undo", "--yes").exit_code == 0
    assert held(filled) == before


def test_prompt_replace_asks_only_about_other_messages(filled: Place, tmp_path: Path) -> None:
    """A memory that is new, the same or longer is no conflict."""
    origin = f"{tmp_path}/other.ndjson"
    memories = {samples.key(0): samples.entries(9), samples.key(1): samples.entries(12)}
    asyncio.run(fill(origin, memories | {MemoryKey("new", "new"): samples.entries(5)}))
    session = Session("migrate", origin, filled.text, "--on-conflict", "replace")
    assert session.ends() == 0
    assert "[y/N]" not in session.said
    assert len(held(filled)[samples.key(1)][2]) == 12
