"""Commands of which one call of the system fails, held to what memctl promises.

One trial: a store with three memories; a command of which the n-th call that changes a file or asks
a server fails, is cut short, or is the last one before the process is killed.  Then each memory is
as it was or as the command leaves it; the exit code is 0 only if all is done; an error is one line
with a hint.  The same command, run again, does the rest.  ``undo`` brings back what was there.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, NoReturn, Self
from unittest.mock import patch

import typer.testing
from typer.testing import Result

from memctl.model import MemoryKey, StoredMessage
from memctl.testing.samples import Sample, sample
from tests.summarizers.server import ModelServer
from tests.support import histories
from tests.support.cli import PARSER, in_process
from tests.support.compressing import model
from tests.support.faults import CALLS, Fault, FaultyProcess, Plan
from tests.support.places import runs_kept
from tests.support.servers.losing import Losing
from tests.support.servers.objects import environment
from tests.support.servers.pool import Servers
from tests.support.servers.proxy import Fault as Lost
from tests.support.servers.proxy import Proxy
from tests.trust.kills import BUSY, Broken
from tests.trust.places import KINDS, Place

SECONDS = 60
NOT_FOUND = 4
ENDS = {0: "done", -signal.SIGKILL: "killed", 128 + signal.SIGINT: "interrupted"}
"""What an exit code means; all others are errors."""
ADA, BOB, EVE = (MemoryKey(*one) for one in [("ada", "kyoto"), ("bob", "osaka"), ("eve", "nara")])
State = dict[MemoryKey, tuple[object, ...]]
"""Of each memory the summary, then the messages."""


def conversation(text: str, *more: histories.Marked) -> list[StoredMessage]:
    """Return messages with something for each command."""
    return histories.entries(
        [
            histories.said("q", f"{text}, where?", "user"),
            histories.call("bad", "t1"),
            histories.said("h", "be short", "user", ("hint",)),
            histories.call("c", "t2"),
            histories.result("r", "t2", f"{text} " * 2000),
            *more,
            histories.said("z", "there"),
        ]
    )


STORED = {ADA: conversation("old"), BOB: conversation("young")}
"""What the store holds."""
IDS = {"q", "bad", "h", "c", "r", "n", "z"}
"""The ids of all messages that no command makes."""
SOURCE = {ADA: conversation("new", histories.said("n", "more")), EVE: conversation("fresh")}
"""What ``migrate`` and ``import`` read."""


def samples_of(found: dict[MemoryKey, list[StoredMessage]]) -> list[Sample]:
    return [sample(key, entries) for key, entries in found.items()]


class Bucket(Place):
    """An archive in a bucket on 127.0.0.1."""

    KEY = "a.ndjson"

    def make(self) -> str:
        self.server = Losing().__enter__()
        return self.server.url(self.KEY)

    def traces(self) -> list[str]:
        return sorted(self.server.objects)

    def left_behind(self) -> list[str]:
        parts = [name for name, found in self.server.parts.items() if found]
        return parts + [key for key in self.server.objects if key != self.KEY]

    def drop(self) -> None:
        self.server.__exit__()


SERVERS = ["postgresql", "redis"]
"""Stores whose requests pass a proxy that loses one of them, or its answer."""
STORES = ["sqlite", "postgresql", "redis", "archive", "bucket"]
PLACES: dict[str, type[Place]] = {**KINDS, "bucket": Bucket}


class Command(NamedTuple):
    """A command that changes something; ``{store}`` and others are what ``Yard`` names."""

    words: str
    before: str = ""
    """A command that comes before."""
    undoable: bool = True
    only: tuple[str, ...] = tuple(STORES)


DELETE = "delete {store} --id bad --id r --id z --yes"
OFFLOAD = "offload {store} --to {blobs} --larger 5kB --keep 100 --yes"
COMMANDS = {
    "migrate": Command("migrate {source} {store} --on-conflict replace --yes --retries 1"),
    "import": Command("import {source} {store} --user eve --retries 1"),
    "export": Command(
        "export {store} -o {output} --force", "export {source} -o {output} --force", undoable=False
    ),
    "delete": Command(DELETE),
    "mark": Command("mark add {store} seen --all"),
    "compress": Command("compress {store} --summarizer model --all --keep-recent 2 --jobs 1"),
    "erase": Command("erase {store} --user ada --yes", undoable=False),
    "rename": Command(
        "rename {store} --user ada cleo --yes", only=("sqlite", "postgresql", "redis")
    ),
    "undo": Command("undo {run} --store {store} --yes", DELETE),
    "offload": Command(OFFLOAD),
    "rehydrate": Command("rehydrate {store} --from {blobs}", OFFLOAD),
    "retain": Command("retain --yes"),
    "doctor": Command("doctor {store} --repair --yes --fail-on error"),
    "hold": Command("hold add --user ada --reason case", undoable=False, only=("sqlite",)),
}
DRIVERS = {"compress": ("openai", "aiohttp", "anyio", "h2", "httpcore2", "trio", "truststore")}
"""What takes a command long to import."""
CASES = [(name, store) for name, one in COMMANDS.items() for store in one.only]

CONFIG = """
{model}

[stores.prod]
url = {store}

[[retention]]
name = "old"
store = "prod"
select = {{ keep_last = 3 }}
action = "delete"
archive = {archives}
"""


class Yard:
    """One store, a folder for the files of a trial, and the ways to run memctl there."""

    def __init__(self, folder: Path, servers: Servers, store: str, library: Path) -> None:
        """The environment changes until the end."""
        self.folder = folder
        self.work = folder / "work"
        self.store = store
        self._run = in_process()
        self._library = library
        self._ends = ExitStack()
        self._model = self._ends.enter_context(ModelServer())
        homes = {f"XDG_{one}_HOME": str(self.work / one.lower()) for one in ("STATE", "CONFIG")}
        self._ends.enter_context(patch.dict(os.environ, environment() | homes))
        self._ends.enter_context(patch.object(typer.testing, "_get_command", PARSER))
        self.plan = Plan(folder / "plan")
        self.place = self._place(store, "store", servers)
        self.source = self._place("archive", "source", servers)
        output = "bucket" if store == "bucket" else "archive"
        self.output = self._place(output, "output", servers)
        self.source.fill(samples_of(SOURCE))
        self.place.fill(samples_of(STORED))
        self.stored = self.read(self.place)
        self.is_as_stored = True
        """True if nothing has changed the store since, or all changes are undone."""
        self.run_before = ""
        """The run of the command before, for ``undo``."""
        self._calls: dict[str, str] = {}
        self.wanted: dict[str, State] = {}

    def _place(self, kind: str, name: str, servers: Servers) -> Place:
        (self.folder / name).mkdir()
        place = PLACES[kind](self.folder / name, servers)
        self._ends.callback(place.drop)
        return place

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    def words(self, text: str, store: str = "") -> list[str]:
        """Return the words of a command; ``store`` replaces the URL of the store."""
        names = {
            "store": store or self.place.text,
            "source": self.source.text,
            "output": self.output.text,
            "blobs": str(self.work / "blobs"),
            "run": self.run_before,
        }
        return [word.format(**names) for word in text.split()]

    def run(self, *words: str) -> Result:
        """Run memctl in this process; wait for the lock of a run that was killed."""
        deadline = time.monotonic() + 10
        while True:
            self.place.unlock()
            result = self._run(*words)
            if result.exit_code != BUSY or time.monotonic() > deadline:
                return result
            time.sleep(0.01)

    def begin(self, name: str) -> State:
        """Make everything as it is before the command; return what the command will change."""
        command = COMMANDS[name]
        shutil.rmtree(self.work, ignore_errors=True)
        (self.work / "config" / "memctl").mkdir(parents=True)
        config = CONFIG.format(
            model=model(self._model.url),
            store=json.dumps(self.place.text),
            archives=json.dumps(str(self.work / "old-{date}-{time}.ndjson")),
        )
        (self.work / "config" / "memctl" / "config.toml").write_text(config)
        if not self.is_as_stored:
            held = self.read(self.place)
            self.place.fill(samples_of({key: STORED[key] for key in STORED if key not in held}))
            assert self.read(self.place) == self.stored
        self.is_as_stored = False
        if command.before:
            result = self.run(*self.words(command.before))
            assert result.exit_code == 0, result.stderr
        if name == "undo":
            [self.run_before] = [path.name for path in runs_kept()]
        return self.state(name) if command.before or name == "hold" else self.stored

    def state(self, name: str) -> State:
        """Return what the command changes."""
        if name == "hold":
            listed = json.loads(self.run("hold", "list", "--json").stdout)["holds"]
            return {MemoryKey(one["user"], ""): (one["reason"],) for one in listed}
        return self.read(self.output if name == "export" else self.place)

    def read(self, place: Place) -> State:
        """Return the contents of a place."""
        return {
            key: (one.memory.summary or "", *map(_shown, one.entries))
            for key, one in place.read().items()
        }

    def again(self, words: list[str]) -> tuple[int, str]:
        """Run memctl in a process of its own without a fault; return the exit code and stderr."""
        deadline = time.monotonic() + 10
        while True:
            self.place.unlock()
            process = FaultyProcess(self._library, None, words, DRIVERS.get(words[0], ()))
            _, errors = process.communicate(timeout=SECONDS)
            if process.returncode != BUSY or time.monotonic() > deadline:
                return process.returncode, errors
            time.sleep(0.01)

    def start(self, name: str, proxy: Proxy | None = None) -> subprocess.Popen[str]:
        """Start the command with the plan, on the store behind a proxy if there is one."""
        self.place.unlock()
        words = self.words(COMMANDS[name].words, proxy.url if proxy else "")
        return FaultyProcess(self._library, self.plan, words, DRIVERS.get(words[0], ()))

    def calls(self, name: str) -> str:
        """Return the calls of the command if none fails; see ``CALLS``."""
        if name not in self._calls:
            self.begin(name)
            self.plan.set()
            process = self.start(name)
            _, errors = process.communicate(timeout=SECONDS)
            assert process.returncode == 0, f"{name} ended with {process.returncode}: {errors}"
            self.wanted[name] = self.state(name)
            self._calls[name] = self.plan.calls
            Trial(self, name, 0, Fault.FAIL).go_back()
        return self._calls[name]

    def strays(self) -> set[str]:
        """Return files and keys that belong to no store."""
        return {*self.place.left_behind(), *self.output.left_behind()}

    def trials(self, name: str) -> Iterator[Trial]:
        """Yield a trial for each call of the command with each fault that can happen to it."""
        for at, call in enumerate(self.calls(name)):
            for fault in Fault:
                if call in fault.calls:
                    yield Trial(self, name, at, fault)

    def losses(self, name: str) -> Iterator[Trial]:
        """Yield a trial for each request of the command, lost before and after it is answered."""
        requests = self.calls(name).count("t") if self.store in SERVERS else 0
        for at in range(requests):
            for fault in (Lost.CUT, Lost.LOST):
                yield Trial(self, name, at, fault)


def _shown(entry: StoredMessage) -> object:
    """Return a message; one that a command makes without its id and time, new in each run."""
    return tuple(entry) if entry.id in IDS else json.loads(entry.message)["content"]


class Trial:
    """A command with one fault."""

    def __init__(self, yard: Yard, name: str, at: int, fault: Fault | Lost) -> None:
        self._yard = yard
        self._name = name
        self.at = at
        self.fault = fault
        self._killed = False
        """True if nothing has run since that could remove what the killed process left."""
        self._strays: set[str] = set()
        """What earlier trials have left."""
        self._code: int | None = None
        self._errors = ""

    def run(self) -> str:
        """Return how the command ended; raise Broken where memctl breaks a promise."""
        yard, name = self._yard, self._name
        yard.calls(name)
        self._before, self._wanted = yard.begin(name), yard.wanted[name]
        self._strays = yard.strays()
        assert self._before != self._wanted
        self._start()
        self._check_errors()
        self._check_contents()
        if Random(str(self)).random() < 0.5:
            self._again()
        self.go_back()
        return ENDS.get(self._code or 0, "with an error")

    def __str__(self) -> str:
        return f"{self._name}:{self._yard.store}:{self.at}:{self.fault.name}"

    def _start(self) -> None:
        yard = self._yard
        with ExitStack() as stack:
            proxy = None
            if isinstance(self.fault, Lost):
                yard.plan.set()
                proxy = stack.enter_context(Proxy(yard.place.text, fault=self.fault, at=self.at))
            else:
                yard.plan.set(self.at, self.fault)
            process = yard.start(self._name, proxy)
            try:
                _, self._errors = process.communicate(timeout=SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                self._fail(f"it does not end: {process.communicate()}")
        self._code = process.returncode
        self._killed = self._code == -signal.SIGKILL

    def _check_errors(self) -> None:
        if "Traceback" in self._errors:
            self._fail("a traceback")
        if self.fault is Fault.KILL and self._killed:
            return
        if self.fault is Fault.INTERRUPT and self._code == 130:
            return
        if self._code not in (0, 3, 7):
            self._fail(f"exit code {self._code}")
        lines = self._errors.splitlines()
        errors = [at for at, line in enumerate(lines) if line.startswith("memctl: error:")]
        if len(errors) != (self._code != 0):
            self._fail(f"{len(errors)} errors")
        if errors and not "".join(lines[errors[0] + 1 :][:1]).startswith("  hint:"):
            self._fail("no hint")

    def _check_contents(self) -> None:
        found = self._yard.state(self._name)
        for key in self._before | self._wanted | found:
            if found.get(key) not in (self._before.get(key), self._wanted.get(key)):
                self._fail(f"{key} is neither as it was nor done: {found.get(key)}")
        if self._name == "export" and found not in (self._before, self._wanted):
            self._fail("the output is in part new")
        if self._code == 0 and found != self._wanted:
            self._fail("exit code 0, but not all is done")
        self._changed = found != self._before
        command = COMMANDS[self._name]
        if command.undoable and not command.before and not self._changed:
            for one in self._runs():
                if one["outcome"] == "done" and one["memories"]:
                    self._fail("history tells of a change that is not there")

    def _again(self) -> None:
        if self._name == "hold" and self._changed:
            return
        words = self._yard.words(COMMANDS[self._name].words)
        code, errors = self._yard.again(words)
        if code and not (self._name in ("erase", "rename") and code == NOT_FOUND):
            self._fail(f"again, it ends with {code}: {errors}")
        self._killed = False
        if self._yard.state(self._name) != self._wanted:
            self._fail("again, it does not do the rest")

    def _runs(self) -> list[dict[str, Any]]:
        result = self._yard.run("history", "--json")
        if result.exit_code:
            self._fail(f"history ends with {result.exit_code}: {result.stderr}")
        found: list[dict[str, Any]] = json.loads(result.stdout)["runs"]
        return found

    def go_back(self) -> None:
        """Undo all runs, newest first; the store is as it was before the test."""
        yard = self._yard
        if COMMANDS[self._name].undoable:
            for one in self._runs():
                result = yard.run("undo", one["run"], "--store", yard.place.text, "--yes")
                incomplete = result.exit_code == 8 and "before it changed anything" in result.stderr
                if result.exit_code and not incomplete:
                    self._fail(f"undo ends with {result.exit_code}: {result.stderr}")
            if yard.state(self._name) != yard.stored:
                self._fail("undo does not bring back what was there")
            yard.is_as_stored = True
        strays = yard.strays() - self._strays
        refused = self._was == "unlink" and self.fault is Fault.FAIL
        if strays and not self._killed and not refused:
            self._fail(f"left behind: {strays}")

    @property
    def call(self) -> str:
        """The call to spoil, as an undisturbed run makes it."""
        made = self._yard.calls(self._name)
        return CALLS[made[self.at]] if self.at < len(made) else "no call"

    @property
    def _was(self) -> str:
        """The call that was spoiled."""
        made = self._yard.plan.calls
        return CALLS[made[self.at]] if self.at < len(made) else "no call"

    def _fail(self, text: str) -> NoReturn:
        where = f"{self._was} of {self._yard.plan.met}".replace(str(self._yard.folder), "")
        ended = f"exit code {self._code}: {self._errors}" if self._code is not None else ""
        raise Broken(f"{self}, {where}: {text}\n{ended}")
