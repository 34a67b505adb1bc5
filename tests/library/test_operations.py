"""``memctl.copy``, ``export`` and ``compare`` give programs what the commands give operators."""

from __future__ import annotations

import asyncio
import inspect
import io
import sqlite3
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager, closing, suppress
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

import memctl
import memctl.sync
from memctl import CopyOptions, RunOptions, StatisticsOptions
from memctl.journal.runs import describe_run
from memctl.model import MemoryKey, Page
from memctl.ops.observer import Unobserved
from memctl.ops.report import Progress, Total
from memctl.selection import Selection
from memctl.testing import samples
from tests.support.cli import Run, add, contents, fill, report
from tests.support.processes import wait_until
from tests.support.servers.pool import Servers

ONE = MemoryKey("ada", "one")
TWO = MemoryKey("bob", "two")
ENTRIES = samples.entries(40)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A SQLite database with two memories."""
    path = tmp_path / "source.db"
    asyncio.run(fill(str(path), {ONE: ENTRIES[:30], TWO: ENTRIES[30:]}))
    return path


class AtPhase(Unobserved):
    """An observer that does something when a phase begins."""

    def __init__(self, phase: str, action: Callable[[], None]) -> None:
        super().__init__()
        self._phase = phase
        self._action = action

    def progress(
        self, description: str, total: Callable[[], Total | None] = lambda: None, /
    ) -> AbstractContextManager[Progress]:
        if description == self._phase:
            self._action()
        return super().progress(description, total)


def drop_message(path: Path) -> None:
    """Delete the first message of a SQLite database behind memctl's back."""
    with closing(sqlite3.connect(path, timeout=30)) as database, database:
        database.execute("DELETE FROM message WHERE rowid = (SELECT min(rowid) FROM message)")


async def between_open_stores(source: str, target: Path, **options: Any) -> memctl.Copied:
    """Copy between two stores that the program has opened."""
    async with (
        memctl.open_store(source) as one,
        memctl.open_store(str(target), create=True) as other,
    ):
        return await memctl.copy(one, other, **options)


def test_library_copy_verifies(source: Path, tmp_path: Path) -> None:
    copied = asyncio.run(memctl.copy(str(source), str(tmp_path / "t.db")))
    assert (copied.memories, copied.messages, copied.verified) == (2, 40, True)
    copied = asyncio.run(memctl.copy(str(source), str(tmp_path / "u.db"), verify=False))
    assert (copied.memories, copied.verified) == (2, None)


@pytest.mark.slow
def test_library_copy_finds_a_target_that_differs(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "t.db"
    observer = AtPhase("verifying", lambda: drop_message(target))
    with pytest.raises(memctl.Different, match="the target differs after the copy"):
        asyncio.run(memctl.copy(str(source), str(target), run=RunOptions(observer=observer)))
    target.unlink()
    with pytest.raises(memctl.Different, match="the target differs after the copy"):
        asyncio.run(between_open_stores(str(source), target, run=RunOptions(observer=observer)))


def change_message(path: Path) -> None:
    with closing(sqlite3.connect(path, timeout=30)) as database, database:
        database.execute(
            "UPDATE message SET msg = json_set(msg, '$.content', 'other') WHERE rowid = 1"
        )


async def reads_of_source(source: object, target: Path, meanwhile: Callable[[], None]) -> int:
    """Copy and compare; return how often the copy has read messages of the source."""
    reads = 0

    async with (
        memctl.open_store(str(source)) as one,
        memctl.open_store(str(target), create=True) as other,
    ):
        read = one.read

        def counted(where: Selection) -> AsyncGenerator[Page]:
            nonlocal reads
            reads += not where.marks  # a look for messages marked compressed reads no others
            return read(where)

        one.read = counted  # type: ignore[method-assign]
        observer = AtPhase("verifying", meanwhile)
        with suppress(memctl.Different):
            assert (await memctl.copy(one, other, run=RunOptions(observer=observer))).verified
    return reads


@pytest.mark.slow
def test_library_copy_reads_a_source_again_only_if_the_target_differs(
    source: Path, tmp_path: Path
) -> None:
    target = tmp_path / "t.db"
    assert asyncio.run(reads_of_source(source, target, lambda: None)) == 1
    for change in (lambda: change_message(target), lambda: drop_message(source)):
        target.unlink()
        assert asyncio.run(reads_of_source(source, target, change)) > 1


@pytest.mark.slow
def test_library_copy_reads_other_sources_once(
    source: Path, servers: Servers, postgresql_url: str, tmp_path: Path
) -> None:
    for number, text in enumerate([servers.redis.fresh(), postgresql_url, tmp_path / "a.ndjson"]):
        asyncio.run(memctl.copy(str(source), str(text)))
        target = tmp_path / f"t{number}.db"
        assert asyncio.run(reads_of_source(text, target, lambda: None)) == 1
        target.unlink()
        change = partial(change_message, target)
        assert asyncio.run(reads_of_source(text, target, change)) > 1


@pytest.mark.slow
def test_library_copy_of_a_memory_that_has_grown(source: Path, tmp_path: Path) -> None:
    """The target had a part of the messages, so all of them are read for the comparison."""
    target = tmp_path / "t.db"
    assert asyncio.run(reads_of_source(source, target, lambda: None)) == 1
    add(source, ONE, samples.entries(5, start=100), 30)
    assert asyncio.run(reads_of_source(source, target, lambda: None)) == 2
    add(source, ONE, samples.entries(5, start=200), 35)
    observer = AtPhase("verifying", lambda: drop_message(target))
    with pytest.raises(memctl.Different):
        asyncio.run(memctl.copy(str(source), str(target), run=RunOptions(observer=observer)))


def test_library_copy_finds_a_content_that_differs(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "t.db"
    observer = AtPhase("verifying", lambda: change_message(target))
    with pytest.raises(memctl.Different, match=r"the content differs \(1 differences\)"):
        asyncio.run(memctl.copy(str(source), str(target), run=RunOptions(observer=observer)))


@pytest.mark.slow
@pytest.mark.parametrize("retries", [3, 0])
def test_library_copy_connects_again(
    servers: Servers, postgresql_url: str, tmp_path: Path, retries: int
) -> None:
    source, keys = tmp_path / "many.db", [samples.key(number) for number in range(20)]
    asyncio.run(fill(str(source), {key: samples.entries(100) for key in keys}))
    sql = servers.postgresql.execute

    def cut() -> None:
        wait_until(lambda: sql(postgresql_url, "SELECT to_regclass('session')") == "session")
        wait_until(lambda: int(sql(postgresql_url, "SELECT count(*) FROM session")) > 2)
        servers.postgresql.cut(postgresql_url)

    async def copy() -> memctl.Copied:
        transfer = memctl.Transfer(retries, rate=memctl.Rate(messages=500))
        copying = memctl.copy(str(source), postgresql_url, transfer=transfer)
        copied, _ = await asyncio.gather(copying, asyncio.to_thread(cut))
        return copied

    if not retries:
        with pytest.raises(memctl.Lost):
            asyncio.run(copy())
        return
    copied = asyncio.run(copy())
    assert (copied.memories, copied.messages, copied.verified) == (20, 2000, True)


class Ending(memctl.Stop):
    """A stop that is asked for while its first pause lasts, after something has come."""

    def __init__(self, coming: Callable[[], None]) -> None:
        super().__init__()
        self._coming = coming

    async def pause(self, seconds: float) -> None:
        assert seconds == 60
        await asyncio.to_thread(self._coming)
        self.ask()


@pytest.mark.slow
def test_library_copy_follows(run: Run, source: Path, tmp_path: Path) -> None:
    target = tmp_path / "t.db"
    stop = Ending(lambda: add(source, ONE, ENTRIES[30:], 30))
    copied = asyncio.run(memctl.copy(str(source), str(target), follow=60, stop=stop))
    assert copied.verified is True
    assert contents(str(target)) == contents(str(source))
    assert len(contents(str(target))[ONE]) == 40
    undone = run("undo", copied.run, "--yes")
    assert undone.exit_code == 0, undone.stderr
    assert contents(str(target)) == {}


@pytest.mark.slow
def test_library_copy_is_recorded_and_can_be_tried(run: Run, source: Path, tmp_path: Path) -> None:
    target = tmp_path / "t.db"
    planned = asyncio.run(memctl.copy(str(source), str(target), run=RunOptions(dry_run=True)))
    assert planned.memories == 2
    assert not target.exists()
    ada = memctl.Selection(users=frozenset({"ada"}))
    asyncio.run(memctl.copy(str(source), str(target), ada))
    copied = asyncio.run(memctl.copy(str(source), str(target)))
    undone = run("undo", copied.run, "--yes")
    assert undone.exit_code == 0, undone.stderr
    assert list(contents(str(target))) == [ONE]


def test_library_copy_of_nothing_leaves_no_target(source: Path, tmp_path: Path) -> None:
    nobody = memctl.Selection(users=frozenset({"nobody"}))
    target = tmp_path / "t.db"
    with pytest.raises(memctl.NotFound, match="'nobody'"):
        asyncio.run(memctl.copy(str(source), str(target), nobody, run=RunOptions(must_exist=True)))
    assert not target.exists()


FORMS = [
    ("a.ndjson", None),
    ("a.ndjson.zst", None),
    ("a.jsonl", "openai"),
    ("b.jsonl", "atif"),
    ("a.csv", None),
    ("a.parquet", None),
    ("a.md", None),
    ("a.html", None),
    ("pages/", "html"),
    ("folder/", "markdown"),
    ("sessions/", None),
]


@pytest.mark.parametrize(("name", "form"), FORMS)
def test_library_export_writes_what_the_command_writes(
    run: Run, source: Path, tmp_path: Path, name: str, form: str | None
) -> None:
    own, its = tmp_path / "own", tmp_path / "its"
    own.mkdir()
    its.mkdir()
    shape = None if form is None else memctl.Shape(form)
    exported = asyncio.run(memctl.export(str(source), f"{own}/{name}", shape=shape))
    assert (exported.copied.memories.written, exported.left_out) == (2, {})
    options = () if form is None else ("--as", form)
    done = run("export", source, "-o", f"{its}/{name}", *options, "--json")
    assert report(done)["as"] == exported.shape
    if exported.shape is memctl.Shape.ARCHIVE:  # one says when it was made
        compared = asyncio.run(memctl.compare(f"{own}/{name}", f"{its}/{name}"))
        assert (compared.equal, compared.same) == (True, 2)
    else:
        assert files(own) == files(its)


def files(folder: Path) -> dict[str, bytes]:
    found = [path for path in folder.rglob("*") if path.is_file()]
    assert found
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def test_library_export_to_a_stream(run: Run, source: Path) -> None:
    stream = io.BytesIO()
    asyncio.run(memctl.export(str(source), stream, shape=memctl.Shape.CSV))
    assert stream.getvalue() == run("export", source, "--as", "csv").stdout_bytes


def test_library_export_of_an_open_store_replaces_by_force(source: Path, tmp_path: Path) -> None:
    output = tmp_path / "a.csv"
    output.write_text("mine", "utf-8")

    async def export(options: memctl.ExportOptions) -> None:
        async with memctl.open_store(str(source)) as store:
            await memctl.export(store, output, options=options)

    with pytest.raises(memctl.UsageError, match="exists"):
        asyncio.run(export(memctl.ExportOptions()))
    assert output.read_text("utf-8") == "mine"
    asyncio.run(export(memctl.ExportOptions(force=True)))
    assert len(output.read_text("utf-8").splitlines()) > 40


def test_library_export_rotates(source: Path, tmp_path: Path) -> None:
    old = tmp_path / "nightly-20200131T000000.ndjson"
    old.write_bytes(b"")
    options = memctl.ExportOptions(rotate="last:1")
    exported = asyncio.run(memctl.export(str(source), tmp_path / "nightly.ndjson", options=options))
    assert exported.removed == [str(old)]
    assert Path(exported.file).exists()
    assert exported.file.startswith(f"{tmp_path}/nightly-")


@pytest.mark.slow
def test_library_compare_is_what_verify_reports(run: Run, source: Path, tmp_path: Path) -> None:
    other = tmp_path / "t.db"
    asyncio.run(memctl.copy(str(source), str(other)))
    assert asyncio.run(memctl.compare(str(source), str(other))).equal
    drop_message(other)
    compared = asyncio.run(memctl.compare(str(source), str(other)))
    found = report(run("verify", source, other, "--json"), 6)["differences"]
    assert not compared.equal
    assert [one.code for one in compared.differences] == [one["code"] for one in found]


def test_library_compare_names_damaged_memories(source: Path, tmp_path: Path) -> None:
    other = tmp_path / "t.db"
    asyncio.run(memctl.copy(str(source), str(other)))
    with closing(sqlite3.connect(other)) as database, database:
        database.execute("UPDATE message SET msg = '5' WHERE session_id = 'two'")
    compared = asyncio.run(memctl.compare(str(source), str(other)))
    assert [key for key, _ in compared.failures] == [TWO]
    assert not compared.equal


def test_library_context_refuses_a_damaged_memory(source: Path) -> None:
    with closing(sqlite3.connect(source)) as database, database:
        database.execute("UPDATE message SET msg = '{' WHERE rowid = 3")
    one = Selection(keys=frozenset({ONE}))
    with (
        memctl.sync.open_store(str(source)) as store,
        pytest.raises(memctl.BadData, match="'ada'/'one' is damaged"),
    ):
        list(memctl.sync.context(store, one))


def test_library_reads_a_named_store_as_an_open_one(source: Path) -> None:
    with memctl.sync.open_store(str(source)) as store:
        assert memctl.sync.examine(store) == memctl.sync.examine(str(source))
        options = StatisticsOptions(now=datetime(2026, 1, 31))
        found = [memctl.sync.statistics(one, options=options) for one in (store, str(source))]
    assert found[0] == found[1]
    nobody = Selection(users=frozenset({"nobody"}))
    for read in (memctl.sync.examine, memctl.sync.statistics):
        assert read(str(source), nobody).memories == 0
        with pytest.raises(memctl.NotFound, match="'nobody'"):
            read(str(source), nobody, must_exist=True)


def test_library_compress_puts_the_summary_where_the_store_has_a_place(source: Path) -> None:
    with memctl.sync.open_store(str(source), change=True) as store:
        done = memctl.sync.compress(store)
    assert (done.memories, done.messages, done.failures) == (2, 34, [])
    assert [len(found) for found in contents(str(source)).values()] == [31, 11]


def test_library_asks_about_the_plan_while_the_store_is_closed(source: Path) -> None:
    before = contents(str(source))
    where = Selection(keys=frozenset({ONE}))
    asked: list[tuple[int, int]] = []

    async def approve(run: Any) -> None:
        asked.append((run.report.planned.messages, run.report.done.messages))
        async with memctl.open_store(str(source), change=True) as other:
            await other.lock("somebody")  # refused if the run holds the lock
        if len(asked) == 1:
            raise memctl.Interrupted("not confirmed")

    options = RunOptions(approve=approve)
    with pytest.raises(memctl.Interrupted, match="not confirmed"):
        memctl.sync.delete(str(source), where, run=options)
    assert contents(str(source)) == before
    assert memctl.history().runs == []
    done = memctl.sync.delete(str(source), where, run=options)
    assert (done.messages, asked) == (30, [(30, 0), (30, 0)])
    assert sum(map(len, contents(str(source)).values())) == 10
    assert memctl.sync.delete(str(source), where, run=options).run is None
    memctl.sync.undo(done.run, run=structs.replace(options, dry_run=True))
    assert len(asked) == 2, "there is nothing to ask about"


def test_library_shows_the_run_that_is_stopped(source: Path) -> None:
    watched: list[Any] = []
    stop = memctl.Stop()

    async def approve(_: object) -> None:
        stop.ask()

    options = RunOptions(watch=watched.append, approve=approve, stop=stop)
    where = Selection(keys=frozenset({ONE, TWO}))
    with pytest.raises(memctl.Interrupted):
        memctl.sync.delete(str(source), where, run=options)
    [run] = watched
    assert (run.report.planned.memories, run.report.done.memories, run.report.left) == (2, 0, 2)
    assert run.id is None
    assert list(contents(str(source))) == [ONE, TWO]


def test_library_limit_and_record_of_a_run(source: Path) -> None:
    where = Selection(ids=frozenset(entry.id for entry in ENTRIES[:15]))

    def record(command: str, location: memctl.Location) -> memctl.Run:
        return describe_run(command, "prod", location, {"prod"})

    limited = RunOptions(limit=(50, True), record=record)
    done = memctl.sync.delete(str(source), where, run=limited)
    memctl.sync.undo(done.run, store=str(source))
    assert {run.argument for run in memctl.history().runs if run.id == done.run} == {"prod"}
    for limit in ((30, True), (14, False)):
        options = structs.replace(limited, limit=limit, limit_name="the limit")
        with pytest.raises(memctl.Loss, match="15 messages would be deleted, more than the limit"):
            memctl.sync.delete(str(source), where, run=options)
    assert sum(map(len, contents(str(source)).values())) == 40


def test_library_undo_and_history(source: Path) -> None:
    with memctl.sync.open_store(str(source), change=True) as store:
        done = memctl.sync.delete(store, Selection(ids=frozenset({ENTRIES[3].id})))
    assert done.messages == 1
    planned = memctl.sync.undo(store=str(source), run=RunOptions(dry_run=True))
    undone = memctl.sync.undo(store=str(source))
    assert (planned.messages, undone.messages, undone.failures) == (1, 1, [])
    runs = memctl.history(str(source)).runs
    assert [(run.command, run.undoes) for run in runs] == [("undo", done.run), ("delete", "")]
    assert runs[1].undone_by == undone.run
    with pytest.raises(memctl.NotFound, match="no run"):
        memctl.sync.undo(store=f"{source}.other")


def test_library_undo_of_a_copy_leaves_what_has_changed_since(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target.db"
    copied = memctl.sync.copy(str(source), str(target))
    drop_message(target)
    undone = memctl.sync.undo(copied.run)
    assert [key for key, _ in undone.failures] == [ONE]
    assert list(contents(str(target))) == [ONE]


@pytest.mark.slow
def test_library_undo_of_a_job(run: Run, source: Path, postgresql_url: str) -> None:
    done = report(run("migrate", source, postgresql_url, "--shards", "2", "--json"))
    undone = memctl.sync.undo(done["job"], store=postgresql_url)
    assert (undone.memories, undone.messages, undone.failures) == (2, 40, [])
    assert contents(postgresql_url) == {}
    rows = report(run("history", "--json"))["runs"]
    assert {row["command"] for row in rows if row["run"] == undone.run} == {"undo"}
    jobs = {row["command"]: row["job"] for row in rows}
    assert jobs["undo"] != jobs["migrate"] == done["job"]


def test_library_undo_of_some_messages_leaves_the_run_to_undo(source: Path) -> None:
    with memctl.sync.open_store(str(source), change=True) as store:
        done = memctl.sync.delete(store, Selection(keys=frozenset({ONE, TWO})))
    assert memctl.sync.undo(done.run, where=Selection(keys=frozenset({TWO}))).memories == 1
    assert memctl.sync.undo(done.run).memories == 1
    assert list(contents(str(source))) == [ONE, TWO]


def test_library_undo_refuses_a_run_before_one_without_a_record(source: Path) -> None:
    with memctl.sync.open_store(str(source), change=True) as store:
        memctl.sync.delete(store, Selection(ids=frozenset({ENTRIES[0].id})))
        gone = Selection(ids=frozenset({ENTRIES[1].id}))
        memctl.sync.delete(store, gone, run=RunOptions(backup=False))
    with pytest.raises(memctl.UsageError, match="has no undo record"):
        memctl.sync.undo()
    with pytest.raises(memctl.UsageError, match="has no undo record"):
        memctl.sync.undo(store=str(source))


def test_library_refuses_a_hold_on_nothing_and_holds_in_two_places(source: Path) -> None:
    with pytest.raises(memctl.UsageError, match="names nothing"):
        memctl.add_hold(memctl.Hold("case 17"))
    assert memctl.list_holds() == []
    options = CopyOptions(holds=memctl.HoldSource([memctl.Hold("case 17", user="ada")]))
    with pytest.raises(memctl.UsageError, match="the options of the copy have holds"):
        memctl.sync.copy(str(source), f"{source}.copy", options=options)


def test_library_repair_has_a_limit(source: Path) -> None:
    with memctl.sync.open_store(str(source), change=True) as store:
        found = memctl.sync.examine(store)
        codes = {finding.code for finding in found.faults if finding.repairable}
        with pytest.raises(memctl.Loss, match="13 messages would be deleted"):
            memctl.sync.repair(store, codes=codes, limit=(12, False))
        repaired = memctl.sync.repair(store, codes=codes)
        assert {finding.code for finding in repaired.findings} == codes
        again = memctl.sync.examine(store)
    assert not codes & {finding.code for finding in again.faults}
    before = {key: len(entries) for key, entries in contents(str(source)).items()}
    assert sum(before.values()) == 40 - 13
    memctl.sync.undo(repaired.run)
    assert sum(map(len, contents(str(source)).values())) == 40


def test_library_sync_has_every_coroutine() -> None:
    for name in memctl.__all__:
        function = getattr(memctl, name)
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            assert getattr(memctl.sync, name).__doc__ == function.__doc__


async def test_library_sync_works_beside_an_event_loop(source: Path) -> None:
    with memctl.sync.open_store(str(source)) as store:
        found = memctl.sync.read(store)
        assert next(found).messages
        found.close()
        assert memctl.sync.list_keys(store)
        assert memctl.sync.inspect(store).totals.messages == 40
        where = Selection(keys=frozenset({ONE}))
        sent = list(memctl.sync.context(store, where))
        assert len(sent) == 30
    with pytest.raises(memctl.NotFound), memctl.sync.open_store(f"{source}.none"):
        pass


def test_library_index(source: Path) -> None:
    use = memctl.sync.update_index(str(source))
    assert (use.messages, use.new) == (40, 40)
    [index] = memctl.list_indexes()
    memctl.remove_index(index)
    assert memctl.list_indexes() == []


def test_library_retain_archives_then_deletes(source: Path, tmp_path: Path) -> None:
    policies = [
        memctl.Policy(
            name=name,
            store=str(tmp_path / store),
            action=memctl.PolicyAction.DELETE,
            archive=str(tmp_path / f"{name}-{{date}}.ndjson"),
            where=Selection(spare=10),
        )
        for name, store in (("missing", "none.db"), ("old", "source.db"))
    ]
    holds = memctl.HoldSource([memctl.Hold("case 17", user="bob")])
    planned = memctl.sync.retain(policies, run=RunOptions(dry_run=True, holds=holds))
    assert [row.state for row in planned.policies] == ["failed", "planned"]
    assert len(contents(str(source))[ONE]) == 30
    done = memctl.sync.retain(policies, run=RunOptions(holds=holds))
    failed, old = done.policies
    assert failed.error is not None
    assert (failed.error.code, old.state, old.messages, old.archived) == (
        "not-found",
        "done",
        20,
        20,
    )
    assert len(contents(str(source))[ONE]) == 10
    assert old.archive is not None
    assert [len(found) for found in contents(old.archive).values()] == [20]
    [run] = old.runs
    memctl.sync.undo(run)
    assert [one.message for one in contents(str(source))[ONE]] == [
        one.message for one in ENTRIES[:30]
    ]


def with_an_image(store: str) -> None:
    """Fill a store with one message, which has an image of 120 kB."""
    data = {"type": "base64", "media_type": "image/png", "data": "QUJD" * 30_000}
    shot = samples.entry("shot", 1, content=[{"type": "image", "source": data}])
    asyncio.run(fill(store, {ONE: [shot]}))


def test_library_undo_of_an_offload_counts_each_message_once(tmp_path: Path) -> None:
    store = str(tmp_path / "a.db")
    with_an_image(store)
    before = contents(store)
    with memctl.sync.open_store(store, change=True) as opened:
        done = memctl.sync.offload(opened, str(tmp_path / "blobs"))
    planned = memctl.sync.undo(done.run, run=RunOptions(dry_run=True))
    undone = memctl.sync.undo(done.run)
    assert (done.messages, planned.messages, undone.messages) == (1, 1, 1)
    assert contents(store) == before
    assert memctl.sync.undo(undone.run).messages == 1


def test_library_prunes_blobs_that_nothing_refers_to(tmp_path: Path) -> None:
    store, blobs = str(tmp_path / "a.db"), tmp_path / "blobs"
    with_an_image(store)
    now, options = timedelta(0), RunOptions(backup=False)
    with memctl.sync.open_store(store, change=True) as opened:
        assert memctl.sync.offload(opened, str(blobs), run=options).messages == 1
    assert memctl.sync.prune_blobs([store], str(blobs), grace=now) == {}
    with memctl.sync.open_store(store, change=True) as opened:
        memctl.sync.delete(opened, Selection(), run=options)
    assert memctl.sync.prune_blobs([store], str(blobs)) == {}, "the file is young"
    tried = memctl.sync.prune_blobs([store], str(blobs), grace=now, run=RunOptions(dry_run=True))
    assert memctl.sync.prune_blobs([store], str(blobs), grace=now) == tried != {}
    assert memctl.sync.prune_blobs([store], str(blobs), grace=now) == {}


def test_library_compress_with_a_limit_needs_prices(source: Path) -> None:
    before = contents(f"sqlite:///{source}")
    options = memctl.CompressOptions(memctl.CompressMode.REPLACE, max_cost=1.0)
    with (
        memctl.sync.open_store(str(source), change=True) as store,
        pytest.raises(memctl.UsageError, match="needs the prices of 'extractive'"),
    ):
        memctl.sync.compress(store, options=options)
    assert contents(f"sqlite:///{source}") == before
