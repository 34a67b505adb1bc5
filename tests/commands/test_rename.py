"""``memctl rename``: the same memories under another name, in every kind of store, and back."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import redis

from memctl.model import MemoryKey, StoredMessage
from memctl.testing import Place, samples
from memctl.testing.samples import sample
from memctl.testing.suite.erase import texts
from tests.support.backends import BACKENDS, FACT_BACKENDS, new_place, params
from tests.support.cli import Run, fails, report
from tests.support.places import held, put
from tests.support.servers.pool import Servers

REFUSED = {
    *("tablestore", "tablestore-session", "state", "agentscope2-files"),
    *("archive", "archive-gz", "archive-zst", "archive-objects", *FACT_BACKENDS),
}
"""The stores in which nothing gets another name."""
ADA, BOB = MemoryKey("quokka", "kyoto"), MemoryKey("bob", "parcel")


@pytest.fixture(params=params([*BACKENDS, *FACT_BACKENDS]))
def place(request: pytest.FixtureRequest, tmp_path: Path, servers: Servers) -> Iterator[Place]:
    """A new and empty place of each store in turn."""
    place = new_place(request.param, tmp_path, servers)
    samples.use(place.backend.style)
    yield place
    samples.use(samples.Style())


def values(client: redis.Redis) -> Iterator[str]:
    """Yield each key of a database with its value; the members of a set are in order."""
    read = {
        b"string": client.get,
        b"list": lambda key: client.lrange(key, 0, -1),
        b"set": lambda key: sorted(client.smembers(key)),
        b"hash": client.hgetall,
    }
    for key in client.scan_iter():
        yield f"{key!r} {read[client.type(key)](key)!r} {client.ttl(key)}"


def lines(place: Place) -> list[str]:
    """Return what a place holds, in no order: rows and keys may be elsewhere."""
    if place.text.startswith("redis"):
        return sorted(values(redis.Redis.from_url(place.text.partition("?")[0])))
    if place.backend.dump is not None:
        found = texts(place.dump())
        if place.backend.name == "mysql-java":  # the time of a change, which MySQL sets
            found = re.sub(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d", "TIME", found)
        return sorted(found.splitlines())
    found = []
    for file in sorted(one for one in place.folder.rglob("*") if one.is_file()):
        found.append(str(file))
        if file.read_bytes().startswith(b"SQLite format 3"):
            with closing(sqlite3.connect(file)) as database:
                found += database.iterdump()
        else:
            found += texts(file.read_bytes()).splitlines()
    return sorted(found)


def entries(place: Place, name: str, number: int) -> list[StoredMessage]:
    """Return messages; facts of several users have ids of their own."""
    some = samples.entries(number)
    if place.backend.style.dialect != "fact":
        return some
    name_of = place.backend.style.name
    return [samples.entry(name_of(f"{name}{at}"), at) for at in range(number)]


def filled(place: Place) -> None:
    """Put two memories of one user and one of another into a place."""
    if place.backend.only:
        put(place, [sample(place.backend.only, samples.entries(7))])
        return
    for key, number in ((ADA, 7), (ADA._replace(session="nara"), 2), (BOB, 5)):
        named = key if place.backend.users else key._replace(user="")
        put(place, [sample(named, entries(place, key.session, number))])


def test_rename_keeps_everything_and_undo_brings_it_back(run: Run, place: Place) -> None:
    filled(place)
    before, there = held(place), lines(place)
    for what, old, new in (("user", "quokka", "numbat"), ("session", "kyoto", "uji")):
        if what == "user" and not place.backend.users:
            continue
        words = ("rename", place.text, f"--{what}", old, new)
        if place.backend.name in REFUSED:
            fails(run(*words, "--yes"), 2, f"memctl cannot rename a {what} there", "hint: ")
            assert lines(place) == there
            continue
        dry = report(run(*words, "--dry-run", "--json"))
        assert lines(place) == there
        found = report(run(*words, "--yes", "--json"))
        assert dry["messages"] == found["messages"]
        assert found["messages"]["changed"] == (9 if what == "user" else 7)
        after = held(place)
        renamed = {
            key._replace(**{what: new}) if getattr(key, what) == old else key: value
            for key, value in before.items()
        }
        assert after == renamed
        left = texts(place.dump())
        if place.backend.name.endswith("-agentscope2"):  # the title stays, as a text
            left = re.sub(rf'"name": ?"{old}"', "", left)
        assert old not in left
        fails(run(*words, "--yes"), 4, "has no memory")
        report(run("undo", found["run"], "--store", place.text, "--json"))
        assert held(place) == before
        assert lines(place) == there
