"""``memctl retain``: what policies select goes to an archive, and only then leaves a store."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from threading import Event
from typing import Any
from urllib.parse import quote

import pytest

from memctl.location import Location
from memctl.model import Change, Edit, Memory, MemoryKey
from memctl.ops.retain import guard
from memctl.ops.retain.actions import Acted
from memctl.ops.retain.delete import DeletionAction
from memctl.registry import make_store, parse
from memctl.store import OpenMode
from memctl.storekit.locks import FileLock
from memctl.testing import Place, samples
from memctl.testing.drive import write
from memctl.testing.samples import sample
from tests.commands.test_asking import Session
from tests.support.cli import Run, add, contents, fails, fill, report
from tests.support.places import Held, edited, held, put, runs_kept
from tests.support.processes import start
from tests.support.schemas import check_row
from tests.support.servers.gate import Gate, refusal
from tests.support.servers.objects import KEY_ID, SECRET, Bucket

KYOTO, BERLIN, ROME = (
    *(MemoryKey("quokka", "kyoto"), MemoryKey("quokka", "berlin"), MemoryKey("bob", "rome")),
)
ENTRIES = 8
STORES = ["sqlite", "postgresql", "redis", "sqlite-agentscope2", "redis-agentscope2", "archive"]


def today() -> str:
    return f"{datetime.now():%Y-%m-%d}"


class Policies:
    """The configuration of a test, with policies of retention."""

    def __init__(self, path: Path, archives: Path) -> None:
        self.path = path
        self.archives = archives
        archives.mkdir()

    def write(self, store: str, *policies: dict[str, Any], more: str = "") -> None:
        """Write the configuration: the store ``prod``, and policies with some usual settings."""
        lines = ["[stores.prod]", f"url = {json.dumps(store)}", more]
        for number, policy in enumerate(policies, 1):
            usual = {
                "name": f"p{number}",
                "store": "prod",
                "action": "delete",
                "archive": f"{self.archives}/p{number}-{{date}}.ndjson.zst",
            }
            lines.append("[[retention]]")
            found = {key: value for key, value in (usual | policy).items() if value is not None}
            lines += [f"{key} = {toml(value)}" for key, value in found.items()]
        self.path.write_text("\n".join(lines) + "\n")

    def names(self) -> list[str]:
        """Return the names of the archives."""
        return sorted(os.listdir(self.archives))


def toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(one)}" for key, one in value.items()) + "}"
    return json.dumps(value)


@pytest.fixture
def policies(write: Path, tmp_path: Path) -> Policies:
    return Policies(write, tmp_path / "archives")


@pytest.fixture(params=STORES)
def place(request: pytest.FixtureRequest, one: Callable[[str], Place]) -> Iterator[Place]:
    """A place of each store in turn, with two memories of quokka and one of bob."""
    place = one(request.param)
    samples.use(place.backend.style)
    put(place, [sample(key, samples.entries(ENTRIES)) for key in (KYOTO, BERLIN, ROME)])
    yield place
    samples.use(samples.Style())


@pytest.fixture
def store(database: str) -> str:
    """A SQLite database with two memories of quokka and one of bob."""
    asyncio.run(fill(database, dict.fromkeys((KYOTO, BERLIN, ROME), samples.entries(ENTRIES))))
    return database


def one_row(found: dict[str, Any]) -> dict[str, Any]:
    [row] = found["policies"]
    row_: dict[str, Any] = row
    return row_


def texts(found: Held) -> dict[MemoryKey, list[tuple[str, bytes]]]:
    """Return ids and texts of each memory."""
    return {key: [(id, text) for id, _, text in one[2]] for key, one in found.items()}


def ids_in(archive: Path) -> dict[MemoryKey, list[str]]:
    """Return the ids of the messages of an archive."""
    return {key: [entry.id for entry in found] for key, found in contents(str(archive)).items()}


# Every kind of store


@pytest.mark.slow
def test_retain_archives_deletes_and_undoes(run: Run, place: Place, policies: Policies) -> None:
    before = held(place)
    policies.write(place.text, {"select": {"keep_last": 3}})
    planned = one_row(report(run("retain", "--dry-run", "--json")))
    assert (planned["state"], planned["memories"], planned["messages"]) == ("planned", 3, 15)
    assert policies.names() == []
    assert held(place) == before
    row = one_row(report(run("retain", "--yes", "--json")))
    assert (row["state"], row["memories"], row["messages"], row["left"]) == ("done", 3, 15, 0)
    for key in ("oldest", "newest", "bytes", "archive"):
        assert row[key] == planned[key]
    assert policies.names() == [f"p1-{today()}.ndjson.zst"]
    archive = policies.archives / policies.names()[0]
    after = held(place)
    for key, found in texts(before).items():
        assert texts(after)[key] == found[-3:]
        assert ids_in(archive)[key] == [id for id, _ in found[:-3]]
    again = one_row(report(run("retain", "--yes", "--json")))
    assert (again["state"], again["messages"], again["archive"]) == ("nothing", 0, None)
    assert len(policies.names()) == 1
    [id] = row["runs"]
    report(run("undo", id, "--json"))
    assert held(place) == before


def test_retain_brings_back_by_an_import(run: Run, place: Place, policies: Policies) -> None:
    before = held(place)
    policies.write(place.text, {"select": {"keep_last": 3}, "backup": False})
    assert one_row(report(run("retain", "--yes", "--json")))["runs"] == []
    archive = policies.archives / policies.names()[0]
    report(run("import", archive, place.text, "--on-conflict", "append", "--json"))
    after = texts(held(place))
    for key, found in texts(before).items():
        assert sorted(id for id, _ in after[key]) == sorted(id for id, _ in found)


def test_retain_leaves_held_memories(run: Run, place: Place, policies: Policies) -> None:
    before = texts(held(place))
    hold = '[[hold]]\nuser = "quokka"\nsession = "kyoto"\nreason = "case 17"'
    policies.write(place.text, {"select": {"keep_last": 3}}, more=hold)
    metrics = policies.archives.parent / "retain.prom"
    planned = report(run("retain", "--dry-run", "--json"))
    assert (one_row(planned)["held"], planned["held"]) == (1, 1)
    found = report(run("retain", "--yes", "--json", "--metrics-file", metrics))
    row = one_row(found)
    assert (row["state"], row["memories"], row["messages"], row["held"]) == ("done", 2, 10, 1)
    assert found["held"] == 1
    assert re.search(r"^memctl_held\{.*\} 1$", metrics.read_text(), re.MULTILINE)
    assert [(one["user"], one["session"], one["code"]) for one in found["failures"]] == [
        ("quokka", "kyoto", "held")
    ]
    assert texts(held(place))[KYOTO] == before[KYOTO]
    assert KYOTO not in ids_in(policies.archives / policies.names()[0])
    again = one_row(report(run("retain", "--yes", "--json")))
    assert (again["state"], again["held"], again["archive"]) == ("nothing", 1, None)
    shown = run("retain", "--yes").stdout
    assert "1 memory held, which stay; 'quokka'/'kyoto': held: case 17" in shown


@pytest.mark.slow
def test_retain_compresses(run: Run, one: Callable[[str], Place], policies: Policies) -> None:
    place = one("sqlite")
    plain = [samples.entry(f"m{number}", number) for number in range(ENTRIES)]
    put(place, [sample(key, plain) for key in (KYOTO, BERLIN, ROME)])
    before = texts(held(place))
    policies.write(place.text, {"action": "compress", "keep_recent": 3})
    row = one_row(report(run("retain", "--yes", "--json")))
    assert (row["state"], row["memories"], row["messages"]) == ("done", 3, 15)
    archive = policies.archives / policies.names()[0]
    after = texts(held(place))
    for key, found in before.items():
        assert after[key][1:] == found[-3:]
        assert ids_in(archive)[key] == [id for id, _ in found[:-3]]
    again = one_row(report(run("retain", "--yes", "--json")))
    assert again["state"] == "nothing"
    report(run("undo", *row["runs"], "--json"))
    assert texts(held(place)) == before


@pytest.mark.slow
def test_retain_offloads(run: Run, store: str, policies: Policies, tmp_path: Path) -> None:
    output = [{"type": "tool_result", "id": "c1", "name": "read", "output": "line\n" * 3000}]
    asyncio.run(fill(store, {MemoryKey("eve", "s"): [samples.entry("m1", 2, content=output)]}))
    before = contents(store)
    blobs = tmp_path / "blobs"
    policy = {"action": "offload", "archive": None, "to": str(blobs), "larger": "8kB"}
    policies.write(store, policy)
    found = report(run("retain", "--dry-run", "--json"))["policies"][0]
    assert (found["state"], found["messages"], found["archive"]) == ("planned", 1, None)
    assert "would offload 1 message in 1 memory" in run("retain", "--dry-run").stdout
    assert not blobs.exists()
    found = report(run("retain", "--yes", "--json"))["policies"][0]
    assert (found["state"], found["messages"], found["archived"]) == ("done", 1, 0)
    assert policies.names() == []
    assert sum(path.suffix != ".user" for path in blobs.iterdir()) == 1
    assert report(run("retain", "--yes", "--json"))["policies"][0]["state"] == "nothing"
    [undoable] = found["runs"]
    report(run("undo", undoable, "--yes", "--json"))
    assert contents(store) == before
    policies.write(store, policy | {"max_delete": 0})
    fails(run("retain", "--yes"), 9, "more than max_delete 0")
    assert contents(store) == before
    policies.write(store, policy | {"to": None})
    fails(run("retain", "--yes"), 2, "has no to", "[offload]")
    policies.write(store, policy | {"archive": "x-{date}.ndjson"})
    fails(run("retain", "--yes"), 2, "archive")


@pytest.mark.slow
def test_retain_erases_idle_users(run: Run, place: Place, policies: Policies) -> None:
    before = texts(held(place))
    now = int((datetime.now() - samples.BEGIN).total_seconds() // 60)
    put(place, [sample(MemoryKey("bob", "oslo"), samples.entries(2, now - 60))])
    policies.write(place.text, {"action": "erase", "select": {"older_than": "30d"}})
    row = one_row(report(run("retain", "--yes", "--json")))
    assert (row["state"], row["memories"], row["messages"]) == ("done", 2, 16)
    assert row["runs"] == []
    archive = policies.archives / policies.names()[0]
    assert {key.user for key in texts(held(place))} == {"bob"}
    assert texts(held(place))[ROME] == before[ROME]
    assert ids_in(archive) == {key: [id for id, _ in before[key]] for key in (KYOTO, BERLIN)}
    [receipt] = row["receipts"]
    run("verify", place.text, "--receipt", receipt)
    assert runs_kept() == []


# Policies


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ({"store": "prodd"}, "there is no store named 'prodd'"),
        ({"action": "delet"}, "did you mean 'delete'?"),
        ({"action": None}, "'p1' has no action"),
        ({"archive": None}, "'p1' has no archive"),
        ({"archive": "old.ndjson.zst"}, "has no {date}"),
        ({"archive": "old-{date}-{hour}.ndjson"}, "has {hour}"),
        ({"archive": "old-{date}.db"}, "is not the name of an archive"),
        ({"select": {}}, "selects nothing"),
        ({"select": {"older_then": "90d"}}, "did you mean 'older_than'?"),
        ({"select": {"older_than": "soon"}}, "select.older_than 'soon' is not a valid age"),
        ({"select": {"since": "1d", "until": "3d"}}, "ends"),
        ({"select": {"keep_last": 0}}, "select.keep_last must be a whole number of 1 or more"),
        ({"select": {"mark": 3}}, "select.mark must be a list of texts"),
        (
            {"select": {"mark": "a", "keep_tool_pairs": True, "with_tool_pairs": True}},
            "cannot be combined",
        ),
        ({"max_delete": "much"}, "max_delete 'much' is not a valid limit"),
        ({"backup": "no"}, "backup must be true or false"),
        ({"summarizer": "extractive"}, "unknown key retention 'p1'.summarizer"),
        (
            {"action": "compress", "select": {"mark": "a"}, "summarizer": "qwen"},
            "there is no summarizer named 'qwen'",
        ),
        ({"action": "erase", "select": {"user": "ada"}}, "whatever their age"),
        ({"action": "erase", "select": {"mark": "a"}}, "unknown key"),
        ({"name": "a b"}, "name must be 1 to 100 letters"),
        ({"name": "p2"}, "two policies are named 'p2'"),
    ],
)
def test_retain_policy_that_is_not_valid(
    run: Run, store: str, policies: Policies, policy: dict[str, Any], said: str
) -> None:
    before = contents(store)
    usual = {"select": {"keep_last": 3}}
    policies.write(store, usual | policy, usual | {"name": "p2"})
    for words in (("retain", "p2", "--yes"), ("retain", "--dry-run"), ("config", "check")):
        fails(run(*words), 2, said)
    assert contents(store) == before
    assert policies.names() == []


def test_retain_names(run: Run, store: str, policies: Policies) -> None:
    policies.write(store)
    fails(run("retain", "--yes"), 2, "there is no policy of retention")
    first, second = {"select": {"keep_last": 3}}, {"select": {"keep_last": 2}}
    policies.write(store, first | {"name": "chats"}, second | {"name": "hints"})
    fails(run("retain", "chat", "--yes"), 2, "no policy named 'chat'", "did you mean 'chats'?")
    row = one_row(report(run("retain", "hints", "--yes", "--json")))
    assert (row["policy"], row["messages"]) == ("hints", 18)
    found = report(run("retain", "--yes", "--json"))
    assert [(row["policy"], row["state"]) for row in found["policies"]] == [
        *(("chats", "nothing"), ("hints", "nothing")),
    ]


def test_retain_asks_once(run: Run, store: str, policies: Policies) -> None:
    policies.write(store, {"select": {"keep_last": 3}}, {"select": {"keep_last": 2}})
    fails(run("retain"), 2, "not a terminal")
    before = contents(store)
    session = Session("retain")
    session.until("[y/N] ")
    assert " ".join(session.said.split()).count("would remove") == 2
    session.types("n\n")
    assert session.ends() == 130
    assert contents(store) == before
    assert policies.names() == []
    session = Session("retain")
    session.until("[y/N] ")
    session.types("y\n")
    assert session.ends() == 0
    assert {len(found) for found in contents(store).values()} == {2}
    assert len(policies.names()) == 2


@pytest.mark.slow
def test_retain_limit(run: Run, store: str, policies: Policies) -> None:
    before = contents(store)
    policies.write(store, {"select": {"keep_last": 3}, "max_delete": "50%"})
    for words in (("--dry-run",), ("--yes",)):
        fails(run("retain", *words), 9, "more than max_delete 50%")
    assert contents(store) == before
    assert policies.names() == []
    policies.write(store, {"select": {"keep_last": 3}, "max_delete": 15})
    report(run("retain", "--yes", "--json"))


def test_retain_archive_that_cannot_be_written(
    run: Run, store: str, policies: Policies, tmp_path: Path
) -> None:
    before = contents(store)
    bad = {"archive": f"{tmp_path}/none/a-{{date}}.ndjson", "select": {"keep_last": 3}}
    policies.write(store, bad)
    fails(run("retain", "--yes"), 3, "does not exist")
    assert contents(store) == before
    policies.write(store, bad, {"select": {"keep_last": 2}})
    found = report(run("retain", "--yes", "--json"), 7)
    assert [row["state"] for row in found["policies"]] == ["failed", "done"]
    assert found["policies"][0]["error"]["code"] == "unavailable"
    assert {len(one) for one in contents(store).values()} == {2}


def test_retain_replaces_no_file(run: Run, store: str, policies: Policies) -> None:
    policies.write(store, {"select": {"keep_last": 3}})
    taken = policies.archives / f"p1-{today()}.ndjson.zst"
    taken.write_text("mine")
    row = one_row(report(run("retain", "--yes", "--json")))
    assert row["archive"].endswith(f"p1-{today()}-2.ndjson.zst")
    assert taken.read_text() == "mine"


def test_retain_follows_no_planted_link(
    run: Run, store: str, policies: Policies, tmp_path: Path
) -> None:
    policies.write(store, {"select": {"keep_last": 3}})
    (policies.archives / f"p1-{today()}.ndjson.zst").symlink_to(tmp_path / "victim")
    row = one_row(report(run("retain", "--yes", "--json")))
    assert row["archive"].endswith(f"p1-{today()}-2.ndjson.zst")
    assert not (tmp_path / "victim").exists()
    policies.archives.chmod(0o777)
    policies.write(store, {"select": {"keep_last": 2}})
    before = contents(store)
    fails(run("retain", "--yes"), 3, "every user may write")
    assert contents(store) == before


def test_retain_two_at_once(run: Run, store: str, policies: Policies) -> None:
    policies.write(store, {"select": {"keep_last": 3}})
    ledger = Path(os.environ["XDG_STATE_HOME"]) / "memctl" / "retention" / "ledger.ndjson"
    ledger.parent.mkdir(parents=True)
    with FileLock(ledger, "other").held("pid 1"):
        fails(run("retain", "--yes"), 75, "memctl retain")
    report(run("retain", "--yes", "--json"))


def test_retain_history(run: Run, store: str, policies: Policies) -> None:
    policies.write(store, {"select": {"keep_last": 3}})
    row = one_row(report(run("retain", "--yes", "--json")))
    [kept] = report(run("history", "--json"))["runs"]
    assert (kept["command"], kept["policy"], kept["archive"]) == ("retain", "p1", row["archive"])
    assert "retain p1" in run("history").stdout


def test_retain_table_and_rows(run: Run, store: str, policies: Policies) -> None:
    policies.write(store, {"select": {"keep_last": 3}}, {"select": {"mark": "none"}})
    said = run("retain", "--dry-run").stdout
    assert "p1 (delete" in said
    assert "would remove 15 messages in 3 memories" in said
    assert "p2 (delete" in said
    assert "nothing to remove" in said
    lines = run("retain", "--yes", "--format", "ndjson").stdout.splitlines()
    for line in lines:
        check_row("retain", json.loads(line))
    assert len(lines) == 2
    assert len(run("retain", "--dry-run", "--format", "csv").stdout.splitlines()) == 3


@pytest.mark.parametrize("pairs", [{}, {"keep_tool_pairs": True}])
def test_retain_leaves_what_changed_after_the_export(
    run: Run,
    store: str,
    policies: Policies,
    monkeypatch: pytest.MonkeyPatch,
    pairs: dict[str, bool],
) -> None:
    policies.write(store, {"select": {"until": "2026-01-01", **pairs}})
    carry_out = DeletionAction.carry_out

    async def late(self: DeletionAction, archive: Location, acted: Acted) -> None:
        async with make_store(parse(store), OpenMode.CREATE) as opened:
            await write(opened, [sample(KYOTO, samples.entries(1, 90))], offset=ENTRIES)
            old = samples.entries(ENTRIES)[2]
            change = Change(old.id, old.marks, (*old.marks, "new"))
            await edited(opened, Edit(Memory(BERLIN), [change]))
        await carry_out(self, archive, acted)

    monkeypatch.setattr(DeletionAction, "carry_out", late)
    row = one_row(report(run("retain", "--yes", "--json")))
    whole = bool(pairs)  # then a memory is deleted as archived, or not at all
    assert (row["state"], row["left"]) == ("done", 2)
    assert row["messages"] == (ENTRIES if whole else 3 * ENTRIES - 1)
    here = {key: [one.id for one in found] for key, found in contents(store).items() if found}
    late_id, marked = samples.entries(1, 90)[0].id, samples.entries(ENTRIES)[2].id
    if whole:
        assert {key: len(found) for key, found in here.items()} == {
            KYOTO: ENTRIES + 1,
            BERLIN: ENTRIES,
        }
    else:
        assert here == {KYOTO: [late_id], BERLIN: [marked]}


# Archives in object storage


def archive_in(bucket: Bucket, endpoint: str = "") -> str:
    url = bucket.url("retired/p-DATE.ndjson.zst", endpoint=endpoint)
    return url.replace("DATE", "{date}")


def port_of(bucket: Bucket) -> int:
    return int(bucket.endpoint.rpartition(":")[2])


@pytest.mark.slow
def test_retain_to_object_storage(
    run: Run, store: str, policies: Policies, bucket: Bucket, target: str
) -> None:
    before = contents(store)
    policies.write(store, {"select": {"keep_last": 3}, "archive": archive_in(bucket)})
    planned = one_row(report(run("retain", "--dry-run", "--json")))
    assert (planned["messages"], bucket.files()) == (15, [])
    row = one_row(report(run("retain", "--yes", "--json")))
    name = f"retired/p-{today()}.ndjson.zst"
    assert (row["state"], row["messages"], row["archive"]) == ("done", 15, planned["archive"])
    assert (bucket.url(name), bucket.files()) == (row["archive"], [name])
    after = contents(store)
    archived = contents(str(bucket.folder / name))
    assert {key: archived[key] + after[key] for key in before} == before
    again = one_row(report(run("retain", "--yes", "--json")))
    assert (again["state"], bucket.files()) == ("nothing", [name])
    report(run("import", row["archive"], target, "--json"))
    assert contents(target) == archived
    report(run("undo", *row["runs"], "--json"))
    assert contents(store) == before
    assert one_row(report(run("retain", "--yes", "--json")))["archive"] == bucket.url(
        f"retired/p-{today()}-2.ndjson.zst"
    )


@pytest.mark.slow
@pytest.mark.parametrize("broken", [b"PUT /", b"GET /"])
@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"", "cannot reach"),
        (refusal("403 Forbidden", "AccessDenied"), "no permission"),
        (refusal("403 Forbidden", "SignatureDoesNotMatch"), "refuses the credentials"),
        (refusal("404 Not Found", "NoSuchBucket"), "there is no bucket"),
    ],
)
def test_retain_object_storage_that_breaks(
    run: Run,
    store: str,
    policies: Policies,
    bucket: Bucket,
    monkeypatch: pytest.MonkeyPatch,
    broken: bytes,
    answer: bytes,
    said: str,
) -> None:
    """A server that ends, or refuses, in the upload or when the archive is read back."""
    monkeypatch.setattr("memctl.engines.objects.file._RETRIES", 0)
    before = contents(store)
    rules = [lambda data: answer if data.startswith(broken) else None]
    with Gate(port_of(bucket), lambda data: rules[0](data) if rules else None) as gate:
        policies.write(
            store, {"select": {"keep_last": 3}, "archive": archive_in(bucket, gate.endpoint)}
        )
        gone = broken == b"GET /" and b"NoSuchBucket" in answer
        fails(run("retain", "--yes"), 4 if gone else 3, said)
        assert contents(store) == before
        rules.clear()
        row = one_row(report(run("retain", "--yes", "--json")))
    assert (row["state"], row["messages"], len(row["resumed"])) == (
        *("done", 15),
        int(broken == b"GET /"),
    )
    [name] = bucket.files()
    assert sum(map(len, contents(str(bucket.folder / name)).values())) == 15


def test_retain_goes_on_without_an_archive_out_of_reach(
    run: Run,
    store: str,
    policies: Policies,
    bucket: Bucket,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("memctl.engines.objects.file._RETRIES", 0)
    policy = {"select": {"keep_last": 3}}
    with Gate(port_of(bucket), lambda data: b"" if data.startswith(b"GET /") else None) as gate:
        policies.write(store, policy | {"archive": archive_in(bucket, gate.endpoint)})
        fails(run("retain", "--yes"), 3, "cannot reach")
    policies.write(store, policy)  # the server is gone for good: the archives go elsewhere
    found = report(run("retain", "--yes", "--json"))
    assert (one_row(found)["messages"], one_row(found)["resumed"]) == (15, [])
    [said] = found["warnings"]
    assert f"retired/p-{today()}.ndjson.zst" in said
    assert "is the archive of a killed run, left as it is" in said
    assert report(run("retain", "--yes", "--json"))["warnings"] == []


@pytest.mark.slow
def test_retain_stopped_by_a_signal(
    run: Run, store: str, policies: Policies, bucket: Bucket
) -> None:
    before = contents(store)
    reading, goes_on = Event(), Event()

    def rule(data: bytes) -> None:
        if data.startswith(b"GET /"):
            reading.set()
            goes_on.wait(60)

    with Gate(port_of(bucket), rule) as gate:
        policies.write(
            store,
            {"select": {"keep_last": 3}, "archive": archive_in(bucket, gate.endpoint)},
            {"select": {"keep_last": 2}},
        )
        stopped = start("retain", "--yes", "--json")
        assert reading.wait(60)
        stopped.send_signal(signal.SIGTERM)
        goes_on.set()
        said, _ = stopped.communicate()
        assert stopped.returncode == 143
        assert [row["state"] for row in json.loads(said)["policies"]] == ["stopped", "pending"]
        assert contents(store) == before
        found = report(run("retain", "--yes", "--json"))
    assert [row["messages"] for row in found["policies"]] == [15, 3]


# Killed runs


@pytest.mark.slow
def test_retain_goes_on_with_the_archive_of_a_killed_run(
    run: Run, store: str, policies: Policies
) -> None:
    policies.write(store, {"select": {"keep_last": 3}})
    row = one_row(report(run("retain", "--yes", "--json")))
    report(run("undo", "--yes", "--json"))
    ledger = Path(os.environ["XDG_STATE_HOME"]) / "memctl" / "retention" / "ledger.ndjson"
    lines = ledger.read_bytes().splitlines(keepends=True)
    ledger.write_bytes(lines[0] + lines[1][:20])  # as if killed while it recorded the end
    changed = samples.entries(1, ENTRIES)
    add(Path(store.removeprefix("sqlite:///")), KYOTO, changed, ENTRIES)
    again = one_row(report(run("retain", "--yes", "--json")))
    assert again["resumed"] == [row["archive"]]
    assert again["messages"] == 16
    assert {len(one) for one in contents(store).values()} == {3}
    new = policies.archives / f"p1-{today()}-2.ndjson.zst"
    assert {key: len(one) for key, one in contents(str(new)).items()} == {KYOTO: 1}
    assert "damaged" not in run("retain", "--yes").stderr


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="has no limit of files")
def test_retain_no_room_for_a_line_of_the_ledger(run: Run, store: str, policies: Policies) -> None:
    policies.write(store, {"select": {"keep_last": 3}})
    report(run("retain", "--yes", "--json"))
    report(run("undo", "--yes", "--json"))
    before = contents(store)
    ledger = Path(os.environ["XDG_STATE_HOME"]) / "memctl" / "retention" / "ledger.ndjson"
    ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True) * 1000))
    room = ledger.stat().st_size + 20

    def limit() -> None:
        import resource  # not on Windows

        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))

    limited = start("retain", "--yes", preexec_fn=limit)
    _, said = limited.communicate()
    assert (limited.returncode, "ledger.ndjson cannot be used" in said) == (3, True), said
    assert contents(store) == before
    assert len(policies.names()) == 1
    assert one_row(report(run("retain", "--yes", "--json")))["messages"] == 15


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="has no limit of files")
def test_retain_no_room_for_temporary_files(
    run: Run, database: str, policies: Policies, monkeypatch: pytest.MonkeyPatch
) -> None:
    import resource  # not on Windows

    asyncio.run(fill(database, {KYOTO: samples.entries(5000)}))
    before = contents(database)
    policies.write(database, {"select": {"keep_last": 3}})
    small = guard._DIGESTS.replace("-65536", "1")  # as if there were more digests
    monkeypatch.setattr(guard, "_DIGESTS", small)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (90_000, limits[1]))
    try:
        fails(run("retain", "--yes"), 3, "cannot write a temporary file", "TMPDIR")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert contents(database) == before
    assert len(policies.names()) == 1
    assert len(one_row(report(run("retain", "--yes", "--json")))["resumed"]) == 1


def test_retain_whose_summaries_fail(run: Run, store: str, policies: Policies) -> None:
    before = contents(store)
    policies.write(
        store,
        {"action": "compress", "keep_recent": 3, "summarizer": "broken"},
        more='[summarizers.broken]\nkind = "command"\ncommand = "false"\n',
    )
    done = run("retain", "--yes")
    fails(done, 7, "3 memories failed")
    assert "removed nothing" in done.stdout
    assert contents(store) == before


@pytest.mark.slow
def test_retain_archive_of_an_alias_has_its_password(
    run: Run, store: str, policies: Policies, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("THE_SECRET", SECRET)
    url = f"s3://{KEY_ID}@{bucket.name}/old-{{date}}.ndjson.zst"
    alias = f'[stores.retired]\nurl = "{url}"\nendpoint = "{bucket.endpoint}"\n'
    policy = {"archive": "retired", "select": {"keep_last": 3}}
    policies.write(store, policy, more=f'{alias}password_env = "THE_SECRET"')
    assert one_row(report(run("retain", "--dry-run", "--json")))["messages"] == 15
    done = run("retain", "--yes", "--json")
    row = one_row(report(done))
    assert (row["state"], row["messages"]) == ("done", 15)
    assert bucket.files() == [f"old-{today()}.ndjson.zst"]
    ledger = Path(os.environ["XDG_STATE_HOME"]) / "memctl" / "retention" / "ledger.ndjson"
    for text in (done.output, ledger.read_text(), run("history").output):
        assert SECRET not in text
        assert quote(SECRET, safe="") not in text
    report(run("undo", "--yes", "--json"))
    ledger.write_bytes(ledger.read_bytes().splitlines(keepends=True)[0])  # as if killed
    assert one_row(report(run("retain", "--yes", "--json")))["resumed"] == [row["archive"]]
    policies.write(store, policy, more=alias)
    fails(run("retain", "--yes"), 3, f"there is no secret for the key ID '{KEY_ID}'")
    policies.write(store, policy | {"archive": "prod"})
    fails(run("retain", "--yes"), 2, "archive has no {date}")


@pytest.mark.slow
def test_retain_damaged_archive_of_a_killed_run(run: Run, store: str, policies: Policies) -> None:
    policies.write(store, {"select": {"keep_last": 3}})
    row = one_row(report(run("retain", "--yes", "--json")))
    report(run("undo", "--yes", "--json"))
    ledger = Path(os.environ["XDG_STATE_HOME"]) / "memctl" / "retention" / "ledger.ndjson"
    ledger.write_bytes(ledger.read_bytes().splitlines(keepends=True)[0] + b"garbage\n")
    archive = Path(row["archive"])
    archive.write_bytes(archive.read_bytes()[:-5])
    found = report(run("retain", "--yes", "--json"))
    assert one_row(found)["resumed"] == []
    assert one_row(found)["messages"] == 15
    assert any("is damaged in 1 line (2)" in text for text in found["warnings"])
    assert any("left as it is" in text for text in found["warnings"])
    assert len(policies.names()) == 2
