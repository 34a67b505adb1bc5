"""Stops migrations at random moments, and holds them to what memctl promises.

One trial: a target, empty or with beginnings of some memories; a run that is killed or asked to
stop, mostly followed by others while memories are missing; a run to the end.  The runs may be
divided into parts, which run at the same time; some of them are stopped.  After each signal
every memory of the target is as it was or whole; at the end the target holds what the source
holds, and nothing else is left.
"""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import NoReturn

from memctl.dialects.agentscope2 import DEFAULT_AGENT
from memctl.errors import MemctlError
from memctl.json import jsonio
from memctl.model import Memory, MemoryKey
from memctl.store import Features
from memctl.testing.samples import Sample, Style
from tests.support.servers.pool import Servers
from tests.trust.places import KINDS, LOCK_SECONDS, Place, dialect_of, held_by
from tests.trust.process import Migration, Moment, Timeline
from tests.trust.worlds import beginnings, world

BUSY = 75
PATIENCE = 0.01
"""The share of runs that wait for a lock which outlives its process: it takes half a minute."""
PHASES = ["before", "begun", "between", "after", "ended"]
"""Phases of a kill: before anything was written; something is, but no memory; some memories are
there, and some are not; all are there; the run had ended by itself."""

State = tuple[object, ...]
Pair = tuple[str, str]


@dataclass
class WriteResult:
    """The results, for the report."""

    kills: Counter[Pair] = field(default_factory=Counter)
    """Signals that ended a run, of any kind."""
    signals: Counter[str] = field(default_factory=Counter)
    """The same by the name of the signal."""
    phases: Counter[str] = field(default_factory=Counter)
    busy: int = 0
    aim: dict[Pair, float] = field(default_factory=dict)
    """By what to stretch the moments of a pair: the machine is not always as fast as it was."""

    def count(self, pair: Pair, phase: str, name: str) -> None:
        """Count a signal, and aim the next one nearer to where the last memory is published."""
        self.phases[phase] += 1
        self.kills[pair] += phase != "ended"
        self.signals[name] += phase != "ended"
        late = phase in ("after", "ended")
        self.aim[pair] = min(3.0, max(0.1, self.aim.get(pair, 1.0) * (0.75 if late else 1.15)))

    def add(self, other: WriteResult) -> None:
        """Add the counts of another one."""
        self.kills.update(other.kills)
        self.signals.update(other.signals)
        self.phases.update(other.phases)
        self.busy += other.busy

    def take(self) -> WriteResult:
        """Return the counts, and begin again at none."""
        taken = WriteResult(self.kills, self.signals, self.phases, self.busy)
        self.kills, self.signals, self.phases, self.busy = Counter(), Counter(), Counter(), 0
        return taken


class Broken(AssertionError):
    """memctl broke a promise; says how to make it happen again."""


class Yard:
    """Sources of one world and room for targets."""

    def __init__(self, folder: Path, servers: Servers, seed: str, tally: WriteResult) -> None:
        self.seed = seed
        self.tally = tally
        self._folder = folder
        self._servers = servers
        self._number = 0
        self._sources: dict[tuple[str, Features], Source] = {}
        self._timelines: dict[Pair, Timeline] = {}
        self._wanted: dict[Pair, dict[MemoryKey, Sample]] = {}

    def place(self, kind: str) -> Place:
        """A new and empty place."""
        self._number += 1
        folder = self._folder / str(self._number)
        folder.mkdir()
        return KINDS[kind](folder, self._servers)

    def home(self, place: Place) -> Path:
        """Return the folder in which memctl may keep what it needs next to a target."""
        return place.folder.with_suffix(".home")

    def source(self, pair: Pair) -> Source:
        """A source for the pair, made when first asked for."""
        held = held_by(pair)
        if (pair[0], held) not in self._sources:
            style = Style(dialect_of(pair[0]).name, held.marks)
            found = world(self.seed, held, style)
            self._sources[pair[0], held] = Source(self.place(pair[0]), found)
        return self._sources[pair[0], held]

    def timeline(self, pair: Pair) -> Timeline:
        """Return the timeline of an undisturbed run of the pair."""
        if pair not in self._timelines:
            target = self.place(pair[1])
            source = self.source(pair)
            run = Migration(source.place.text, target.text, self.home(target))
            code = run.wait()
            assert code == 0, f"{pair} ended with {code}:\n{run.said}"
            label = target.text.rpartition("@")[2]  # the password is not shown
            self._timelines[pair] = Timeline(run, label)
            # What a conversion makes, other tests compare with the source.
            converts = dialect_of(pair[0]) is not dialect_of(pair[1])
            self._wanted[pair] = target.read() if converts else source.held
            assert len(self._wanted[pair]) == len(source.held)
            self.discard(target)
        return self._timelines[pair]

    def wanted(self, pair: Pair) -> dict[MemoryKey, Sample]:
        """Return what the target of a pair holds after an undisturbed run."""
        self.timeline(pair)
        return self._wanted[pair]

    def discard(self, place: Place) -> None:
        """Release the resources of a place."""
        place.drop()
        shutil.rmtree(place.folder)
        shutil.rmtree(self.home(place), ignore_errors=True)

    def close(self) -> None:
        """Check that no source has changed, and release them."""
        for source in self._sources.values():
            assert states(source.place.read(), order=True) == source.states(order=True)
            self.discard(source.place)


class Source:
    """A store to migrate from, and what it holds."""

    def __init__(self, place: Place, samples: list[Sample]) -> None:
        place.fill(samples)
        self.place = place
        self.held = place.read()
        """As it is read: names of files may be taken for others than were written."""
        assert len(self.held) == len(samples)

    def states(self, *, order: bool) -> dict[MemoryKey, State]:
        """See ``states``."""
        return states(self.held, order=order)


@dataclass(frozen=True)
class Stop:
    """A run of a shard, or of all of them, and when to stop it; None lets it end."""

    shard: str
    moment: Moment | None = None
    number: signal.Signals = signal.SIGKILL


class Trial:
    """One target of one pair, whose migrations are stopped."""

    def __init__(
        self,
        yard: Yard,
        pair: Pair,
        number: int,
        signals: Sequence[signal.Signals] = (signal.SIGKILL,),
        parts: int = 0,
    ) -> None:
        """``parts`` is the number of parts into which the runs are divided; 0 divides none."""
        self._yard = yard
        self._signals = signals
        self._pair = pair
        self._name = f"seed {yard.seed}, {pair[0]}:{pair[1]}, trial {number}"
        self._shards = [f"{part}/{parts}" for part in range(parts)]
        self._draw = Random(self._name)
        self._moments: list[str] = []

    def run(self) -> None:
        """Raise Broken where a promise is."""
        yard = self._yard
        timeline = yard.timeline(self._pair)
        self._source = yard.source(self._pair)
        wanted = yard.wanted(self._pair)
        self._target = yard.place(self._pair[1])
        self._home = yard.home(self._target)
        self._order = held_by(self._pair).mark_order
        self._wanted = states(wanted, order=self._order)
        if self._draw.random() < 0.3:
            self._target.fill(beginnings(self._name, list(wanted.values())))
        self._before = self._read()
        while True:
            self._kill(timeline)
            if self._before == self._wanted or self._draw.random() < 0.25:
                break
        self._finish()
        yard.discard(self._target)

    def _read(self) -> dict[MemoryKey, State]:
        try:
            return states(self._target.read(self._wanted), order=self._order)
        except MemctlError as error:
            self._fail(f"the target cannot be read: {error.message}")

    def _start(self, shard: str = "") -> Migration:
        options = ("--shard", shard) if shard else ()
        return Migration(self._source.place.text, self._target.text, self._home, *options)

    def _kill(self, timeline: Timeline) -> None:
        traces = set(self._target.traces())
        stops = [self._stop(timeline, shard) for shard in self._victims()]
        others = [shard for shard in self._shards if shard not in {stop.shard for stop in stops}]
        with ThreadPoolExecutor() as pool:
            ends = [pool.submit(self._ended, stop) for stop in stops]
            ends += [pool.submit(self._ended, Stop(shard)) for shard in others]
        stopped = [end.result() for end in ends]
        after = self._read()
        for stop, was in zip(stops, stopped, strict=False):
            phase = self._phase(after, traces) if was else "ended"
            self._yard.tally.count(self._pair, phase, stop.number.name)
        for key in after.keys() | self._before.keys():
            if after.get(key) not in (self._before.get(key), self._wanted.get(key)):
                self._fail(f"{key} is neither as it was nor whole: {_brief(after.get(key))}")
        self._before = after
        if self._draw.random() > PATIENCE:
            self._target.unlock()

    def _victims(self) -> list[str]:
        """Return the shards of the runs to stop."""
        if not self._shards:
            return [""]
        return self._draw.sample(self._shards, self._draw.randint(1, len(self._shards)))

    def _stop(self, timeline: Timeline, shard: str) -> Stop:
        moment = timeline.moment(self._draw, self._yard.tally.aim.get(self._pair, 1.0))
        number = self._draw.choice(self._signals)
        self._moments.append(f"{shard} by {number.name} {moment}".strip())
        return Stop(shard, moment, number)

    def _ended(self, stop: Stop) -> bool:
        """Run to the end, or until it is stopped; return whether it was stopped."""
        run = self._start(stop.shard)
        code = run.wait() if stop.moment is None else run.stop_at(stop.moment, stop.number)
        stopped = stop.moment is not None and code in (-stop.number, 128 + stop.number)
        if not stopped and code not in (0, BUSY):  # the server may still hold the lock
            self._fail(f"the run {stop.shard} ended with {code}:\n{run.said}")
        # Without a frame of memctl it is Python that was stopped, while it started.
        if "Traceback" in run.said and "memctl/__main__.py" in run.said:
            self._fail(f"a traceback:\n{run.said}")
        return stopped

    def _phase(self, after: dict[MemoryKey, State], traces: set[str]) -> str:
        if after == self._wanted:
            return "after"
        if after != self._before:
            return "between"
        return "begun" if set(self._target.traces()) - traces else "before"

    def _finish(self) -> None:
        with ThreadPoolExecutor() as pool:
            list(pool.map(self._complete, self._shards))
        self._complete("")
        found = self._read()
        for key in found.keys() | self._wanted.keys():
            if found.get(key) != self._wanted.get(key):
                self._fail(f"{key} is not as in the source: {_brief(found.get(key))}")
        kept = self._home / "memctl" / "runs"  # what the runs have changed, for undo
        found_at_home = [path for path in self._home.rglob("*") if not path.is_dir()]
        left = self._target.left_behind()
        left += [str(path) for path in found_at_home if kept not in path.parents]
        if left:
            self._fail(f"left behind: {', '.join(sorted(left)[:5])} ({len(left)} in all)")

    def _complete(self, shard: str) -> None:
        """Run to the end, and wait for locks."""
        deadline = time.monotonic() + 1.5 * LOCK_SECONDS
        while True:
            run = self._start(shard)
            code = run.wait()
            if code != BUSY or time.monotonic() > deadline:
                break
            self._yard.tally.busy += 1
            time.sleep(1)
        if code:
            self._fail(f"the run {shard} after it ended with {code}:\n{run.said}")

    def _fail(self, text: str) -> NoReturn:
        raise Broken(f"{self._name}, stopped {' and then '.join(self._moments)}: {text}")


BESIDES = 3
"""The parts of a state before its messages."""


def states(found: dict[MemoryKey, Sample], *, order: bool) -> dict[MemoryKey, State]:
    """Return the compared state of each memory; ``order`` includes the order of marks."""
    return {
        key: (
            one.memory.summary or None,
            one.memory.ttl is not None,
            _extra(one.memory),
            *(
                (entry.id, _value(entry.message), entry.marks if order else sorted(entry.marks))
                for entry in one.entries
            ),
        )
        for key, one in found.items()
    }


def _extra(memory: Memory) -> object:
    """Return what else a memory has, but for what depends on the course of a run.

    Those are the times of its record, whole seconds in MySQL, and its agent: the users that are
    written after the first one get one each.
    """
    found = json.loads(memory.extra) if memory.extra else {}
    record = found.pop("record", {})
    kept = json.dumps([found, {name: one for name, one in record.items() if "_at" not in name}])
    own = json.dumps(f"{DEFAULT_AGENT}-{memory.key.user}")
    return kept.replace(own, json.dumps(DEFAULT_AGENT))


_values: dict[bytes, bytes] = {}


def _value(message: bytes) -> bytes:
    """Return a digest of what a message says, made once for each text: most come many times."""
    text = blake2b(message).digest()
    if text not in _values:
        _values[text] = blake2b(json.dumps(jsonio.loads(message)).encode()).digest()
    return _values[text]


def _brief(state: State | None) -> str:
    if state is None:
        return "not there"
    return f"{len(state) - 3} messages, summary {state[0]!r}, expires: {state[1]}"
