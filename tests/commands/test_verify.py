"""``memctl verify``: every way in which two stores can differ."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from memctl.model import MemoryKey, StoredMessage
from memctl.output import progress
from memctl.testing import samples
from tests.support.cli import Run, fails, fill, report
from tests.support.servers.pool import Servers

ONE = MemoryKey("ada", "one")
COUNT = 1200
MIDDLE = 600


def _changed(entries: list[StoredMessage]) -> list[StoredMessage]:
    entries[MIDDLE] = samples.entry(entries[MIDDLE].id, 9999, entries[MIDDLE].marks)
    return entries


def _marked(entries: list[StoredMessage]) -> list[StoredMessage]:
    entries[MIDDLE] = entries[MIDDLE]._replace(marks=("other",))
    return entries


def _without(entries: list[StoredMessage]) -> list[StoredMessage]:
    return entries[:MIDDLE] + entries[MIDDLE + 1 :]


def _swapped(entries: list[StoredMessage]) -> list[StoredMessage]:
    entries[MIDDLE - 1], entries[MIDDLE] = entries[MIDDLE], entries[MIDDLE - 1]
    return entries


BREAKS: dict[str, Callable[[list[StoredMessage]], list[StoredMessage]]] = {
    "content": _changed,
    "marks": _marked,
    "message-missing": _without,
    "order": _swapped,
}


@pytest.mark.slow
@pytest.mark.parametrize("code", BREAKS)
def test_verify_broken_message_is_named(run: Run, tmp_path: Path, code: str) -> None:
    left, right = tmp_path / "a.ndjson", tmp_path / "b.db"
    asyncio.run(fill(str(left), {ONE: samples.entries(COUNT)}))
    asyncio.run(fill(str(right), {ONE: BREAKS[code](samples.entries(COUNT))}))
    found = report(run("verify", left, right, "--json"), 6)
    assert [(row["code"], row["id"]) for row in found["differences"]] == [(code, f"m{MIDDLE:07}")]
    assert found["memories"] == {"same": 0, "different": 1, "missing": 0, "extra": 0}
    assert found["error"]["code"] == "different"
    back = report(run("verify", right, left, "--json"), 6)
    expected = "message-extra" if code == "message-missing" else code
    assert [row["code"] for row in back["differences"]] == [expected]


def test_verify_memories_that_one_side_lacks(run: Run, tmp_path: Path) -> None:
    left, right = tmp_path / "a.ndjson", tmp_path / "b.ndjson"
    asyncio.run(fill(str(left), {ONE: samples.entries(3), MemoryKey("l", "l"): []}))
    asyncio.run(
        fill(str(right), {ONE: samples.entries(3), MemoryKey("r", "r"): samples.entries(1)})
    )
    found = report(run("verify", left, right, "--json"), 6)
    assert [(row["code"], row["user"]) for row in found["differences"]] == [
        ("memory-missing", "l"),
        ("memory-extra", "r"),
    ]


def test_verify_summaries_and_expiry(run: Run, tmp_path: Path) -> None:
    left, right = tmp_path / "a.ndjson", tmp_path / "b.ndjson"
    asyncio.run(fill(str(left), {ONE: samples.entries(3)}, summary="one", ttl=100.0))
    asyncio.run(fill(str(right), {ONE: samples.entries(3)}, summary="two"))
    found = report(run("verify", left, right, "--json"), 6)
    assert [row["code"] for row in found["differences"]] == ["summary", "expiry"]


def test_verify_when_a_memory_expires(run: Run, servers: Servers) -> None:
    left, right, later = (servers.redis.fresh() for _ in range(3))
    for url, ttl in ((left, 5000.0), (right, 4990.0), (later, 9000.0)):
        asyncio.run(fill(url, {ONE: samples.entries(3)}, ttl=ttl))
    assert run("verify", left, right).exit_code == 0, "what passes on the way is forgiven"
    found = report(run("verify", left, later, "--json"), 6)
    assert [(row["code"], row["id"]) for row in found["differences"]] == [("expiry", "")]


def test_verify_time_that_an_archive_keeps_is_no_moment(
    run: Run, servers: Servers, tmp_path: Path
) -> None:
    url, archive = servers.redis.fresh(), tmp_path / "a.ndjson"
    asyncio.run(fill(url, {ONE: samples.entries(3)}, ttl=5000.0))
    assert run("export", url, "-o", archive).exit_code == 0
    with servers.redis.client(url) as client:
        for key in client.scan_iter():
            client.expire(key, 60)
    assert run("verify", archive, url).exit_code == 0
    with servers.redis.client(url) as client:
        for key in client.scan_iter():
            client.persist(key)
    assert report(run("verify", archive, url, "--json"), 6)["differences"][0]["code"] == "expiry"


@pytest.mark.slow
def test_verify_memory_whose_parts_changed_places(run: Run, tmp_path: Path) -> None:
    left, right = tmp_path / "a.ndjson", tmp_path / "b.ndjson"
    entries = samples.entries(3000)
    asyncio.run(fill(str(left), {ONE: entries}))
    asyncio.run(fill(str(right), {ONE: [*entries[1000:], *entries[:1000]]}))
    found = report(run("verify", left, right, "--json"), 6)
    assert [(row["code"], row["id"]) for row in found["differences"]] == [
        ("order", entries[1000].id)
    ]


def test_verify_same_value_written_otherwise_is_the_same(run: Run, tmp_path: Path) -> None:
    left, right = tmp_path / "a.ndjson", tmp_path / "b.ndjson"
    one = StoredMessage(
        "m", b'{"id": "m", "n": NaN, "big": 1000000000000000000000, "s": "\\ud800\\u00e9"}'
    )
    two = StoredMessage(
        "m", '{"s":"\\ud800é","big":1000000000000000000000,"n":NaN,"id":"m"}'.encode()
    )
    asyncio.run(fill(str(left), {ONE: [one]}))
    asyncio.run(fill(str(right), {ONE: [two]}))
    assert report(run("verify", left, right, "--json"))["memories"]["same"] == 1
    off = replace_text(two, b"1000000000000000000000", b"1000000000000000000001")
    (tmp_path / "b.ndjson").unlink()
    asyncio.run(fill(str(right), {ONE: [off]}))
    assert run("verify", left, right).exit_code == 6


def replace_text(entry: StoredMessage, old: bytes, new: bytes) -> StoredMessage:
    """The entry with a part of its text replaced."""
    assert old in entry.message
    return entry._replace(message=entry.message.replace(old, new))


def test_verify_selection_is_compared_alone(run: Run, filled: str, tmp_path: Path) -> None:
    part = tmp_path / "part.ndjson"
    assert run("migrate", filled, part, "--mark", "hint").exit_code == 0
    assert run("verify", filled, part).exit_code == 6
    assert run("verify", filled, part, "--mark", "hint").exit_code == 0


def test_verify_name_on_neither_side(run: Run, filled: str) -> None:
    fails(run("verify", filled, filled, "--user", "nobody"), 4, "'nobody'")


@pytest.mark.parametrize("levels", [300, 900])
def test_verify_compares_deeply_nested_messages_by_value(
    run: Run, tmp_path: Path, levels: int
) -> None:
    left, right = tmp_path / "a.json", tmp_path / "b.json"
    for path, space in ((left, " "), (right, "")):
        deep = "[" * levels + space + "]" * levels
        message = f'{{"id": "m", "name": "n", "role": "user", "content": "c", "metadata": {deep}}}'
        path.write_text(f'{{"content": [[{message}, []]]}}')
    who = ("--user", "u", "--session", "s")
    assert report(run("verify", left, right, *who, "--json"))["memories"]["same"] == 1


def test_verify_knows_how_much_there_is_to_do(
    run: Run, filled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("migrate", filled, tmp_path / "b.db").exit_code == 0
    shown = []

    class Watched(progress.Counter):
        def advance(self, **done: int) -> None:
            super().advance(**done)
            shown.append(self.facts())

    monkeypatch.setattr(progress, "Counter", Watched)
    assert run("--progress-interval", "60", "verify", filled, tmp_path / "b.db").exit_code == 0
    assert shown[-1][:3] == ["comparing", "100 of 100 messages", "4 of 4 memories"]
    assert run("--progress-interval", "60", "export", filled, "--as", "markdown").exit_code == 0
    assert shown[-1][:3] == ["exporting", "100 of 100 messages", "4 of 4 memories"]


def test_verify_an_archive_alone(run: Run, filled: str, tmp_path: Path) -> None:
    archive = tmp_path / "a.ndjson.zst"
    assert run("export", filled, "-o", archive).exit_code == 0
    done = run("verify", archive)
    assert (done.exit_code, done.stdout) == (0, f"{archive}\nwhole: 4 memories, 100 messages\n")
    assert run("verify", archive, "-q").stdout == ""
    found = report(run("verify", archive, "--json"))
    assert found["archive"] == {"url": str(archive), "memories": 4, "messages": 100}
    data = archive.read_bytes()
    archive.write_bytes(data[:-9])
    fails(run("verify", archive), 8, "is cut off after")
    flipped = len(data) // 2
    archive.write_bytes(data[:flipped] + bytes([data[flipped] ^ 255]) + data[flipped + 1 :])
    fails(run("verify", archive), 8, "is damaged after")
    archive.write_bytes(data)
    plain = tmp_path / "a.ndjson"
    assert run("export", filled, "-o", plain).exit_code == 0
    plain.write_bytes(plain.read_bytes().replace(b'"hint"', b'"hunt"', 1))
    fails(run("verify", plain), 8, "its digest differs")
    fails(run("verify", archive, "--user", "ada"), 2, "an archive alone is checked whole")
    fails(run("verify", filled), 2, "verify needs two stores", "memctl verify ARCHIVE")
    fails(run("verify", tmp_path / "none.ndjson"), 4, "does not exist")


def test_verify_writes_a_long_name_only_once(run: Run, tmp_path: Path) -> None:
    left, right = tmp_path / f"{'l' * 40}.ndjson", tmp_path / f"{'r' * 40}.db"
    two = ONE._replace(session="two")
    asyncio.run(fill(str(left), {ONE: samples.entries(3), two: samples.entries(1)}))
    asyncio.run(fill(str(right), {ONE: samples.entries(2)}))
    shown = run("verify", left, right).stdout
    assert shown.count("llll.ndjson") == shown.count("rrrr.db") == 1
    assert "the message is only in the source" in shown
    assert "the memory, with 1 message, is only in the source" in shown
