"""MariaDB with the collation that most databases have: it tells neither case nor emoji apart.

Names that it takes for the same cannot all be written; none may end up as another's.
"""

from __future__ import annotations

import pytest

from memctl.model import MemoryKey
from memctl.registry import make_store, parse
from memctl.selection import Selection
from memctl.store import OpenMode
from memctl.testing import samples
from memctl.testing.drive import assert_same, infos, read, write
from memctl.testing.samples import sample
from tests.support.servers.pool import Servers

SAME = [("Alice", "alice"), ("é", "e"), ("😀", "😁"), ("a", "a ")]


@pytest.fixture(params=["utf8mb4_general_ci", "utf8mb4_unicode_ci", "utf8mb4_bin"])
def url(request: pytest.FixtureRequest, servers: Servers) -> str:
    """An empty database with this collation."""
    return servers.mariadb.fresh(request.param)


@pytest.mark.parametrize(("one", "other"), SAME)
@pytest.mark.parametrize("role", ["user", "session", "id", "mark"])
async def test_mysql_names_are_kept_apart_or_refused(
    url: str, role: str, one: str, other: str
) -> None:
    def named(name: str, number: int) -> samples.Sample:
        key = MemoryKey(
            name if role == "user" else "u", name if role == "session" else f"s{number}"
        )
        marks = (name,) if role == "mark" else ("m",)
        found = [samples.entry(f"{name if role == 'id' else 'i'}{n}", n, marks) for n in range(3)]
        return sample(key, found)

    apart = [named(one, 1), named(other, 2)]
    first, second = named(one, 3), named(other, 3)
    together = sample(first.key, [*first.entries, *second.entries])
    written = [*apart, together] if role == "id" else apart
    if role == "mark":
        marked = [samples.entry("i", 1, (one, other))]
        written.append(sample(MemoryKey("u", "both marks"), marked))
    async with make_store(parse(url), OpenMode.CREATE) as store:
        results = await write(store, written)
        found = await read(store)
        good = [memory for memory in written if not results[memory.key].failure]
        assert good
        assert set(found) == {memory.key for memory in good}
        for memory in good:
            assert_same(store, found[memory.key], memory)
        assert set(await infos(store)) == set(found)
        for memory in good:
            where = Selection(users=frozenset({memory.key.user}))
            chosen = {key for key in found if key.user == memory.key.user}
            assert set(await read(store, where)) == chosen
            where = Selection(sessions=frozenset({memory.key.session}))
            chosen = {key for key in found if key.session == memory.key.session}
            assert set(await read(store, where)) == chosen
        for mark in (one, other):
            where = Selection(marks=frozenset({mark}))
            expected = {
                memory.key for memory in good if any(mark in e.marks for e in memory.entries)
            }
            assert set(await read(store, where)) == expected
            assert set(await infos(store, where)) == expected
