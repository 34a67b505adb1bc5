"""400 days of retention: agents write, policies run daily, and one run in ten is killed.

At the end, every message that was ever written is in the store, or in exactly the archives that the
reports and the ledger name; held messages are in the store.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from memctl.model import MemoryKey
from memctl.ops.retain.ledger import BEGUN, Ledger
from memctl.registry import file_of, parse
from memctl.testing import Place, samples
from memctl.testing.drive import read, write
from memctl.testing.samples import sample
from tests.support.backends import new_place
from tests.support.cli import Run, contents, report
from tests.support.processes import start
from tests.support.servers.pool import Servers
from tests.trust.test_changes_cut_short import unlock

DAYS = 400
STORES = ["sqlite", "postgresql", "redis", "sqlite-agentscope2", "redis-agentscope2"]
ADA, BOB, CARL = (MemoryKey(user, f"{user}.chat") for user in ("ada", "bob", "carl"))
HELD = MemoryKey("ada", "ada.case")
POLICIES = """
[[retention]]
name = "chats"
store = "prod"
select = {{ user = ["ada", "bob"], until = "{month}", keep_last = 5 }}
action = "delete"
archive = "{archives}/chats-{{date}}.ndjson.zst"
backup = {backup}

[[retention]]
name = "long"
store = "prod"
{long}
archive = "{archives}/long-{{date}}-{{time}}.ndjson"

[[retention]]
name = "guests"
store = "prod"
select = {{ until = "{season}" }}
action = "erase"
archive = "{archives}/guests-{{date}}.ndjson.gz"

[[hold]]
user = "ada"
session = "ada.case"
reason = "case 17"
"""

COMPRESS = """select = { user = "carl" }
action = "compress"
keep_recent = 10
trigger_messages = 20
"""
DELETE = """select = { user = "carl", keep_last = 20 }
action = "delete"
"""
"""AgentScope 2.x has no messages with summaries, so nothing is compressed there."""


class World:
    """A store that agents write to, and all that they have ever written."""

    def __init__(self, place: Place, config: Path, archives: str) -> None:
        self.place = place
        self.config = config
        self.archives = archives
        self.written: dict[MemoryKey, dict[str, bytes]] = {}
        self.named: set[str] = set()
        """The archives that reports have named."""

    def write(self, day: int) -> None:
        """Write the messages of one day, as agents do."""
        memories = {ADA: 2, BOB: 1, CARL: 2, HELD: int(day % 10 == 0)}
        if day % 20 == 0:
            memories[MemoryKey(f"guest{day}", f"visit{day}")] = 2
        asyncio.run(self._write(day, memories))

    async def _write(self, day: int, memories: dict[MemoryKey, int]) -> None:
        async with self.place.store() as store:
            found = await read(store)
            for key, number in memories.items():
                new = [
                    samples.entry(f"{key.user}-{key.session}-{day:04}-{n}", day * 1440 + n)
                    for n in range(number)
                ]
                if not new:
                    continue
                offset = len(found[key].entries) if key in found else 0
                results = await write(store, [sample(key, new)], offset=offset)
                assert not results[key].failure, results[key]
                self.written.setdefault(key, {})
                self.written[key] |= {entry.id: entry.message for entry in new}

    def configure(self, day: int, *, backup: bool) -> None:
        """Write the configuration of a day: its ages count back from this day."""
        now = samples.BEGIN + timedelta(days=day)
        self.config.write_text(
            f"[stores.prod]\nurl = {json.dumps(self.place.text)}\n"
            + POLICIES.format(
                month=(now - timedelta(days=30)).isoformat(),
                season=(now - timedelta(days=60)).isoformat(),
                archives=self.archives,
                long=DELETE if "agentscope2" in self.place.backend.name else COMPRESS,
                backup=json.dumps(backup),
            )
        )

    def note(self, found: dict[str, Any]) -> None:
        """Note the archives that a report names, and check its states."""
        for row in found["policies"]:
            assert row["state"] in ("done", "nothing"), row
            assert row["left"] == 0, row
            self.named |= {*row["resumed"], *filter(None, [row["archive"]])}


@pytest.fixture(params=STORES)
def world(
    request: pytest.FixtureRequest,
    servers: Servers,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Iterator[World]:
    place = new_place(request.param, tmp_path, servers)
    samples.use(place.backend.style)
    archives, config = tmp_path / "archives", tmp_path / "config.toml"
    archives.mkdir()
    monkeypatch.setenv("MEMCTL_CONFIG", str(config))
    yield World(place, config, str(archives))
    samples.use(samples.Style())


@pytest.mark.slow
def test_400_days_of_retention(run: Run, world: World) -> None:
    chance = random.Random(17)
    ledger = Ledger()
    killed = resumed = 0
    lasts = 0.3
    for day in range(DAYS):
        world.write(day)
        world.configure(day, backup=day % 2 == 0)
        names = () if day % 7 == 6 else ("chats",)  # the others run weekly
        if day and chance.random() < 0.1:
            process = start("retain", *names, "--yes", "--json")
            time.sleep(chance.uniform(0, lasts))
            if process.poll() is None:
                process.kill()
                killed += 1
            process.communicate()
            unlock(world.place)  # by the next day, the lock has ended
            continue
        result = run("retain", *names, "--yes", "--json")
        if day % 50 == 20:  # as long as a process takes
            begun = time.monotonic()
            process = start("retain", "--yes", "--json")
            process.communicate()
            lasts = time.monotonic() - begun
        assert result.exit_code == 0, result.stderr
        found = report(result, result.exit_code)
        world.note(found)
        resumed += sum(len(row["resumed"]) for row in found["policies"])
    world.configure(DAYS, backup=True)
    last = start("retain", "--yes", "--json")  # a process removes the files of a killed one
    printed, errors = last.communicate()
    assert last.returncode == 0, errors
    world.note(json.loads(printed))
    assert killed > DAYS / 40
    assert resumed
    check(world, ledger)


def check(world: World, ledger: Ledger) -> None:
    """Check that every message is in the store or in an archive that the ledger names."""
    entries, damaged = ledger.read()
    assert not damaged
    begun = {entry.archive for entry in entries if entry.event == BEGUN}
    there = {name for name in begun if file_of(parse(name)).stamp() is not None}
    assert world.named <= there
    on_disk = {os.path.join(world.archives, name) for name in os.listdir(world.archives)}
    assert on_disk == there, "archives without a name, or leftovers"
    archived: dict[MemoryKey, dict[str, bytes]] = {}
    often: Counter[tuple[MemoryKey, str]] = Counter()
    for name in there:
        for key, messages in contents(name).items():
            archived.setdefault(key, {}).update({one.id: one.message for one in messages})
            often.update((key, one.id) for one in messages)
    stored = {key: found for key, found in contents(world.place.text).items() if found}
    here = {key: {one.id: one.message for one in found} for key, found in stored.items()}
    assert sum(map(len, world.written.values())) > DAYS * 5
    for key, messages in world.written.items():
        for id, text in messages.items():
            assert text in (here.get(key, {}).get(id), archived.get(key, {}).get(id)), (key, id)
    assert here[HELD] == world.written[HELD]
    assert HELD not in archived
    limit = DAYS - 30
    for key in (ADA, BOB):
        days = sorted(int(id.split("-")[2]) for id in here[key])
        assert days[0] == limit, days[0]
        assert days[-1] == DAYS - 1
    assert len(here[CARL]) < 35
    guests = {key.user for key in here if key.user.startswith("guest")}
    visits = range(0, DAYS, 20)
    assert guests == {f"guest{day}" for day in visits if day >= DAYS - 60}
    again = sum(number > 1 for number in often.values())
    assert again < len(often) / 10, "most messages are archived once"
