"""Mutators of what is not a store: configurations, command lines, the journal of runs."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz.bench import METRICS, Bench
from tests.fuzz.command import parser
from tests.fuzz.files import (
    archive_contents,
    database_contents,
    database_of,
    folder_contents,
    json_contents,
    lines_of,
    plain_worlds,
    state_dict,
)
from tests.fuzz.invariants import Broken, Snapshot, check_same, snapshot
from tests.fuzz.mutations import mutate_bytes, mutate_json, seal
from tests.fuzz.scenarios import IDS, MARKS, SESSIONS, USERS, word

CONFIGURATION = """\
[stores.agents]
url = "sqlite:///agents.db"

[stores.backup]
url = "./agents.ndjson"

[stores.server]
url = "postgresql://ada@localhost:1/agents?connect_timeout=1"
password_command = "echo secret"

[stores.keys]
url = "unix:///nowhere/redis.sock?db=1"
password_file = "secret"

[summarizers.plain]
kind = "extractive"

[summarizers.program]
kind = "command"
command = ["cat"]
timeout = 5
max_retries = 0
max_input_tokens = 3000

[summarizers.model]
kind = "openai"
base_url = "http://127.0.0.1:1/v1"
model = "m"
api_key_env = "NO_KEY"
max_retries = 0
timeout = 2

[defaults]
format = "json"

[defaults.inspect]
limit = 5
sort = "bytes"

[defaults.compress]
keep-recent = 2

[defaults.mark.list]
format = "csv"

[undo]
days = 30
bytes = 1_000_000
"""

VALUES = [
    *("true", "-1", "0", "1e999", "nan", "inf", "9223372036854775808", '""', '"a\\u0000b"', "[]"),
    *("{}", "[[[[]]]]", "{a = {b = {c = 1}}}", "1979-05-27", "07:32:00", '"""\n"""', "'\\x1b'"),
    *('"\\u001b[31m"', '["echo", 5]', '"json"', '"postgresql://u:S3cret@localhost:1/x"', "0x10"),
    *('"redis://localhost:1/999999999999999999999"', '"sqlite:///"', '"a:b"', '"-"', '["cat", ""]'),
    *('"mysql://u@localhost:1/x?unix_socket=/nowhere"', '"./missing.db"', "[1, 2]", "1_0", '"cat"'),
]
"""Values of TOML, most of them of a wrong type somewhere."""

KEYS = [
    *("url", "password_env", "password_file", "password_command", "kind", "command", "model"),
    *(
        "timeout",
        "max_retries",
        "days",
        "bytes",
        "format",
        "limit",
        "a.b.c",
        '""',
        "yes",
        "price_in",
    ),
    *("max_input_tokens", "tokenizer", "prompt_file", "language", "api_key_env", "max_concurrency"),
]


class Configurations:
    """Configurations: values of other types, keys that are not known, TOML that is none."""

    name = "config"
    weight = 8

    def __init__(self) -> None:
        world = plain_worlds()[0]
        self._files = {"agents.db": database_of(world), "agents.ndjson": seal(lines_of(world))}

    def play(self, rng: Random, bench: Bench) -> None:
        for name, data in self._files.items():
            Path(name).write_bytes(data)
        Path("secret").write_text("s3cret\n")
        lines = CONFIGURATION.splitlines()
        for _ in range(rng.choice([1, 1, 2, 3])):
            _mutate_toml(rng, lines)
        data = "\n".join(lines).encode("utf-8", "surrogatepass")
        Path("c.toml").write_bytes(mutate_bytes(rng, data, 1) if rng.random() < 0.2 else data)
        for _ in range(rng.choice([1, 2])):
            program = ["--summarizer", rng.choice(["plain", "program"])]
            words = rng.choice(
                [
                    ["config", "show", *rng.choice([[], ["--all"]])],
                    ["config", "check", "--timeout", "2"],
                    ["inspect", rng.choice(["agents", "backup", "keys", "./agents.db"])],
                    ["mark", "list", "agents"],
                    ["verify", "agents", "backup"],
                    ["compress", "agents", "--all", *program, "-n"],
                    ["context", "agents", "--user", "user0", "--session", "session0"],
                    ["history"],
                    ["delete", "agents", "--mark", "hint", "--yes", "--dry-run"],
                ]
            )
            words = ["--dry-run" if one == "-n" else one for one in words]
            form = rng.choice([[], ["--json"]])
            bench.run("--config", "c.toml", *words, *form, reads=True)


def _mutate_toml(rng: Random, lines: list[str]) -> None:
    at = rng.randrange(len(lines))
    key, _, value = lines[at].partition(" = ")
    match rng.randrange(9):
        case 0:
            del lines[at]
        case 1:
            lines.insert(at, lines[rng.randrange(len(lines))])
        case 2:
            lines.insert(at, f"{rng.choice(KEYS)} = {rng.choice(VALUES)}")
        case 3 if value:
            lines[at] = f"{rng.choice(KEYS)} = {value}"
        case 4:
            depth = rng.choice([3, 70, 600])
            lines.insert(at, f"x = {'[' * depth}{']' * depth}")
        case 5:
            name = rng.choice(
                ["stores", "stores.agents.x", "defaults.inspect.x", '"\\u001b"', "undo"]
            )
            lines.insert(at, rng.choice([f"[{name}]", f"[[{name}]]", f"[{'a.' * 300}b]"]))
        case _ if value:
            lines[at] = f"{key} = {rng.choice(VALUES)}"
        case _:
            lines[at] = mutate_bytes(rng, lines[at].encode(), 1).decode("utf-8", "replace")


class CommandLines:
    """Command lines: any options with any values, stores that are there, missing or odd."""

    name = "words"
    weight = 12

    def __init__(self) -> None:
        world = plain_worlds()[0]
        self._files = {
            "a.db": database_of(world),
            "a.ndjson": seal(lines_of(world)),
            "a.json": json.dumps(state_dict(world[0])).encode(),
            "t.toml": b'[stores.a]\nurl = "./a.db"\n',
        }

    def play(self, rng: Random, bench: Bench) -> None:
        for name, data in self._files.items():
            Path(name).write_bytes(data)
        Path("folder").mkdir()
        words = self._words(rng)
        data = rng.choice([b"", self._files["a.ndjson"], self._files["a.json"], b"\xff\0{"])
        bench.run(*words, stdin=data)

    def _words(self, rng: Random) -> list[str]:
        """A command with options of its own, now and then one of another or none."""
        root = parser()
        name = rng.choice([*sorted({*root.commands} - {"tail"}), word(rng)])  # tail waits
        words = [name]
        command = root.commands.get(name, root)
        while getattr(command, "commands", None) and command is not root:
            below = rng.choice(sorted(command.commands))
            words.append(below)
            command = command.commands[below]
        arguments = [one for one in command.params if one.param_type_name == "argument"]
        words += [_argument(rng, one.name) for one in arguments if rng.random() < 0.93]
        options = [one for one in command.params if _may_be_given(one)]
        for parameter in rng.sample(options, min(len(options), rng.choice([0, 1, 1, 2, 3, 6]))):
            words += _option(rng, parameter)
        globally = [one for one in root.params if _may_be_given(one)]
        for parameter in rng.sample(globally, rng.choice([0, 0, 0, 1, 2])):
            words[:0] = _option(rng, parameter)
        if rng.random() < 0.1:
            words.insert(rng.randrange(len(words) + 1), word(rng))
        if rng.random() < 0.05:
            del words[rng.randrange(len(words))]
        return words


_NEVER = {"--follow", "--interval", "--ping", "--rate-limit", "--progress-interval"}
"""They wait, or call somebody."""


def _may_be_given(parameter: Any) -> bool:
    return parameter.param_type_name == "option" and not _NEVER & set(parameter.opts)


STORES = [
    *("a.db", "a.ndjson", "a.json", "folder", "sqlite:///a.db", "./a.db", "-", "missing.db"),
    *("new.db", "new.ndjson.zst", "new.json", "a", "t.toml", "sqlite:///a.db?state=folder"),
    *("sqlite:///a.db?x=1", "sqlite://", "redis://localhost:1", "unix:///nowhere", "mem0://x"),
    *("postgresql://u:S3cret@localhost:1/x", "mysql://u:S3cret@localhost:1/x", "ftp://x/y", ""),
]
"""Stores as they are written, right or wrong; none above the folder of the input."""


def _argument(rng: Random, name: str) -> str:
    if name in ("store", "file", "source", "target", "first", "second", "a", "b"):
        return rng.choice(STORES)
    return rng.choice([*STORES, *MARKS, "exit-codes", "schema", "inspect", _plain(rng)])


def _option(rng: Random, parameter: Any) -> list[str]:
    name = rng.choice([*parameter.opts, *parameter.secondary_opts])
    if parameter.is_flag:
        return [name]
    values = [
        *("1", "0", "-1", "5", "x", "", "30d", "2025-03-01", "50%", "1e9", "nan", "daily:2,last:1"),
        *("json", "csv", "table", "archive", "markdown", "html", "session-dir"),
        *("message", "replace"),
        *("fail", "skip", "append", "extractive", "agent.memory", "user", "t.toml", "out.json"),
        *(*USERS, *SESSIONS, *IDS, *MARKS, "out", "out.ndjson", "a.db", "folder", "always", "text"),
    ]
    fixed = {"--retries": "0", "--metrics-file": METRICS}
    if name in fixed:
        return [name, fixed[name]]
    return [name, rng.choice(values) if rng.random() < 0.9 else _plain(rng)]


def _plain(rng: Random) -> str:
    """Return a hard word that is not the path of anything outside of the folder."""
    while (found := word(rng)).startswith(("/", "~")) or ".." in found:
        continue
    return found


class Journals:
    """The journal: files of runs with flipped bits, cut off, gone, and records changed."""

    name = "journal"
    weight = 8

    def __init__(self) -> None:
        world = plain_worlds()[2]
        self._files: list[tuple[str, bytes | dict[str, bytes]]] = [
            ("a.db", database_of(world)),
            ("a.ndjson", seal(lines_of(world))),
            ("a.json", json.dumps(state_dict(world[0])).encode()),
            ("a", {"u_s.json": json.dumps({"agent": {"memory": state_dict(world[1])}}).encode()}),
        ]
        self._other = seal(lines_of(plain_worlds()[0]))
        self._seeds: list[_History] = []

    def play(self, rng: Random, bench: Bench) -> None:
        if not self._seeds:
            # Runs of this process: their ids and times differ from worker to worker.
            self._seeds = [self._history(bench, *one) for one in self._files]
            bench.clear()
        seed = rng.choice(self._seeds)
        _restore(Path(), seed.files)
        _restore(bench.memctl.state, seed.journal)
        count = rng.choice([1, 1, 2, 3])
        sound = [_mutate_journal(rng, bench.memctl.state) for _ in range(count)]
        before = seed.contents()
        for _ in range(rng.choice([1, 2])):
            words = rng.choice(
                [
                    ["undo", "--yes"],
                    ["undo", "--yes"],
                    ["undo", rng.choice(seed.runs), "--yes"],
                    ["undo", rng.choice(seed.runs), "--yes", "--dry-run"],
                    ["history", *rng.choice([[], ["--json"]])],
                    ["mark", "add", "--all", seed.argument, "z"],
                ]
            )
            bench.run(*words, reads="history" in words or "--dry-run" in words)
            found = seed.contents()
            if (
                all(sound)
                and words == ["undo", "--yes"]
                and found != before
                and found not in seed.states
            ):
                raise Broken("undo by a damaged journal makes what never was", repr(found)[:1000])
            if found != before:
                break

    def _history(self, bench: Bench, name: str, data: bytes | dict[str, bytes]) -> _History:
        """Change a store several times; what it was in between, and what is recorded of it."""
        bench.clear()
        path = Path(name)
        if isinstance(data, dict):
            path.mkdir()
            for file, text in data.items():
                (path / file).write_bytes(text)
        else:
            path.write_bytes(data)
        Path("b.ndjson").write_bytes(self._other)
        find = {
            ".db": database_contents,
            ".ndjson": archive_contents,
            ".json": json_contents,
            "": folder_contents,
        }
        history = _History(name, find[path.suffix](path))
        history.states.append(history.contents())
        for words in (
            ["delete", name, "--role", "user", "--yes"],
            ["mark", "add", "--all", name, "new"],
            ["compress", name, "--keep-recent", "1"],
            ["doctor", name, "--repair", "--yes"],
            ["import", "b.ndjson", name, "--on-conflict", "replace", "--yes", "--lossy"],
            ["mark", "rename", name, "new", "old"],
        ):
            bench.memctl.run(words)
            history.states.append(history.contents())
        history.files = snapshot(bench.folder)
        history.journal = snapshot(bench.memctl.state)
        runs = bench.memctl.state / "memctl" / "runs"
        history.runs = sorted(one.name for one in runs.iterdir() if one.is_dir())
        check_same("a run of the seed recorded nothing", bool(history.runs), True)
        for _ in history.runs:  # whether undo is exact is the concern of other inputs
            bench.memctl.run(["undo", "--yes"])
            history.states.append(history.contents())
        return history


class _History:
    """A store that was changed, and the journal of that."""

    def __init__(self, argument: str, contents: Any) -> None:
        self.argument = argument
        self.contents = contents
        self.states: list[Any] = []
        self.files: Snapshot = {}
        self.journal: Snapshot = {}
        self.runs: list[str] = []


def _restore(folder: Path, files: Snapshot) -> None:
    for name, (mode, data) in sorted(files.items()):
        path = folder / name
        if mode & 0o40000:
            path.mkdir(mode & 0o777)
        else:
            path.write_bytes(data)


def _mutate_journal(rng: Random, state: Path) -> bool:
    """Damage a file; return False where what is left may stand for other runs than there were."""
    files = sorted(path for path in state.rglob("*") if path.is_file())
    path = rng.choice(files)
    data = path.read_bytes()
    match rng.randrange(8):
        case 0:
            path.unlink()
        case 1 if path.parent.parent.name == "runs":
            shutil.rmtree(path.parent)
            return False
        case 2:
            other = rng.choice(files)
            if other.exists():
                path.write_bytes(other.read_bytes())
            return False
        case 3:
            path.unlink()
            os.symlink(rng.choice(["run.json", path.name, "nowhere"]), path)
        case 4 | 5 if path.suffix == ".json":
            path.write_bytes(mutate_json(rng, data))
        case _:
            path.write_bytes(mutate_bytes(rng, data))
    return True
