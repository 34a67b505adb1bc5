"""Tablestore: layouts that the tables tell, keys, the service's refusals, damaged rows."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tablestore

from memctl.engines.tablestore import service
from memctl.layouts.tablestore import TABLES
from memctl.model import MemoryKey
from memctl.registry import parse
from memctl.testing import samples
from tests.support.cli import Run, contents, fails, fill, report
from tests.support.servers.pool import Servers
from tests.support.servers.tablestore import KEY_ID, SECRET, Tablestore

ADA = MemoryKey("ada", "kyoto")
BOB = MemoryKey("bob", "kyoto")


@pytest.fixture
def server(servers: Servers) -> Tablestore:
    return servers.tablestore


@pytest.fixture
def url(server: Tablestore) -> str:
    """An instance with two memories of TablestoreMemory."""
    url = server.fresh()
    some = {ADA: samples.entries(5), BOB: samples.entries(3)}
    asyncio.run(fill(url, some))
    return url


def put(server: Tablestore, url: str, table: str, key: dict[str, Any], **columns: Any) -> None:
    """Write a row past memctl."""

    async def work() -> None:
        async with tablestore.AsyncOTSClient(**server.endpoint(url)) as client:
            row = tablestore.Row(list(key.items()), list(columns.items()))
            await client.put_row(table, row)

    asyncio.run(work())


def names(url: str) -> list[MemoryKey]:
    return list(contents(url))


# Names and keys


def test_key_of_the_url_is_shown_nowhere(url: str, run: Run) -> None:
    found = run("inspect", url)
    assert found.exit_code == 0
    assert KEY_ID in found.stdout
    for text in (SECRET, "pa%3Ass", "w%40rd"):
        assert text not in found.stdout + found.stderr


def test_key_of_the_environment(url: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = url.replace(url[url.index("//") + 2 : url.index("@") + 1], "")
    fails(run("inspect", plain), 3, "has no key", "TABLESTORE_ACCESS_KEY_ID")
    for names in (
        ("TABLESTORE_ACCESS_KEY_ID", "TABLESTORE_ACCESS_KEY_SECRET"),
        ("ALIBABA_CLOUD_ACCESS_KEY_ID", "ALIBABA_CLOUD_ACCESS_KEY_SECRET"),
    ):
        with monkeypatch.context() as patch:
            patch.setenv(names[0], KEY_ID)
            fails(run("inspect", plain), 3, "has no key")
            patch.setenv(names[1], SECRET)
            assert run("inspect", plain).exit_code == 0


@pytest.mark.slow
def test_key_of_an_alias(
    url: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "c.toml"
    login = url[url.index("//") + 2 : url.index("@") + 1]
    plain = url.replace(login, f"{KEY_ID}@")
    config.write_text(f'[stores.agents]\nurl = "{plain}"\npassword_env = "AGENTS_SECRET"\n')
    monkeypatch.setenv("AGENTS_SECRET", SECRET)
    assert run("--config", str(config), "inspect", "agents").exit_code == 0
    assert run("--config", str(config), "config", "check").exit_code == 0
    monkeypatch.setenv("AGENTS_SECRET", "another")
    checked = run("--config", str(config), "config", "check", "--json")
    assert checked.exit_code == 3
    assert "Signature mismatch" in checked.stdout + checked.stderr
    assert SECRET not in checked.stdout + checked.stderr


def test_key_that_is_refused(url: str, run: Run) -> None:
    fails(run("inspect", url.replace(KEY_ID, "nobody")), 3, "AccessKeyID does not exist", "key")
    wrong = url.replace("pa%3Ass", "other")
    fails(run("inspect", wrong), 3, "refuses the login", "Signature mismatch")


def test_instance_that_is_unknown(url: str, run: Run) -> None:
    unknown = url.partition("?")[0] + "?instance=nowhere"
    fails(run("inspect", unknown), 3, "instance nowhere", "check instance and region")


def test_endpoint_that_is_not_there(url: str, run: Run) -> None:
    gone = "tablestore+http://k:s@127.0.0.1:9?instance=agents"
    fails(run("inspect", gone), 3, "cannot reach")
    fails(run("inspect", "tablestore://k:s@agents"), 2, "not the address of an instance")
    fails(run("inspect", url + "&prefix=x&colour=red"), 2, "option")


def test_instance_has_one_identity_at_every_endpoint() -> None:
    def identity(host: str) -> str:
        return service.TablestoreInstance(parse(f"tablestore://k:s@{host}")).identity()

    public = identity("agents.cn-hangzhou.ots.aliyuncs.com")
    assert identity("agents.cn-hangzhou.vpc.tablestore.aliyuncs.com") == public
    assert identity("agents.cn-beijing.ots.aliyuncs.com") != public
    assert identity("others.cn-hangzhou.ots.aliyuncs.com") != public


def test_servers_of_one_machine_are_places_of_their_own() -> None:
    def identity(host: str) -> str:
        url = f"tablestore+http://k:s@{host}?instance=agents"
        return service.TablestoreInstance(parse(url)).identity()

    assert identity("127.0.0.1:8080") == identity("localhost:8080")
    assert identity("127.0.0.1:8080") != identity("127.0.0.1:8081")
    assert identity("gateway") == identity("gateway:80")


# Layouts


def test_tables_tell_the_layout(server: Tablestore, run: Run) -> None:
    sessions = server.fresh()
    fails(run("inspect", sessions), 4, "no table agentscope_memory", "no tables at all")
    asyncio.run(fill(f"{sessions}&layout=session", {ADA: samples.entries(2)}))
    assert names(sessions) == [ADA]
    fails(run("inspect", f"{sessions}&layout=memory"), 4, "no table agentscope_memory")
    # States stand next to memories: the URL alone means the memories.
    asyncio.run(fill(sessions, {BOB: samples.entries(2)}))
    assert names(sessions) == [BOB]
    assert names(f"{sessions}&layout=session") == [ADA]


def test_table_of_another_name(server: Tablestore, run: Run) -> None:
    url = server.fresh()
    asyncio.run(fill(f"{url}&table=chats", {ADA: samples.entries(2)}))
    asyncio.run(fill(f"{url}&layout=session&table=states", {BOB: samples.entries(3)}))
    assert names(f"{url}&table=chats") == [ADA]
    assert names(f"{url}&table=states") == [BOB], "its primary key tells that it is of sessions"
    fails(run("inspect", url), 4, "no table agentscope_memory", "chats, states")
    fails(run("inspect", f"{url}&table=nothing"), 4, "no table nothing")
    fails(run("inspect", f"{url}&table=states&layout=memory"), 8, "primary key user_id")


def test_summaries_are_those_of_the_states(url: str, run: Run) -> None:
    asyncio.run(fill(f"{url}&layout=session", {ADA: samples.entries(1)}, summary="so far"))
    shown = report(run("inspect", f"{url}&state=tablestore", "--json"))["memories"]
    assert [(one["user"], one["summary"]) for one in shown] == [("ada", True), ("bob", False)]
    fails(run("inspect", "redis://h?state=tablestore"), 2, "kind")


# The service


def test_busy_service_is_asked_again(url: str, server: Tablestore, run: Run) -> None:
    instance = server.instance(url)
    instance.fail("GetRange", 2)
    assert names(url) == [ADA, BOB]
    assert instance.asked.count("GetRange") >= 3
    instance.fail("BatchWriteRow")
    deleted = run("delete", url, "--user", "ada", "--id", "m0000001", "--yes")
    assert deleted.exit_code == 0, deleted.stderr
    assert len(contents(url)[ADA]) == 4


def test_service_that_stays_busy(
    url: str, server: Tablestore, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service._Patience, "max_retry_times", 1)
    server.instance(url).fail("GetRange", 50)
    fails(run("inspect", url), 3, "is busy", "try again later")


def test_memory_whose_rows_are_refused_is_as_it_was(url: str, run: Run) -> None:
    """An agent marks one of the messages between the reading and the writing of memctl."""
    before = contents(url)
    plain = Tablestore._BatchWriteRow
    late = [True]

    def marked_first(self: Tablestore, instance: Any, body: bytes) -> Any:
        if late:
            late.clear()
            row = instance.tables["agentscope_memory"].rows["m0000003:::kyoto", "ada"]
            cell = row["marks_json"]
            row["marks_json"] = replace(cell, value='["late"]')
        return plain(self, instance, body)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tablestore, "_BatchWriteRow", marked_first)
        deleted = run("delete", url, "--user", "ada", "--match", "message", "--yes", "--json")
    assert deleted.exit_code in (5, 7), deleted.stdout
    assert "changed" in deleted.stdout
    assert [one.id for one in contents(url)[ADA]] == [one.id for one in before[ADA]]


RENAME = ("--session", "kyoto", "uji", "--yes", "--json")


def test_session_with_a_row_that_changes_meanwhile_keeps_its_name(
    url: str, server: Tablestore, run: Run
) -> None:
    """An agent marks a message of bob after memctl has written it under the new name."""
    plain = Tablestore._BatchWriteRow

    def marked_late(self: Tablestore, instance: Any, body: bytes) -> Any:
        rows = instance.tables["agentscope_memory"].rows
        if ("m0000001:::uji", "bob") in rows:
            row = rows["m0000001:::kyoto", "bob"]
            row["marks_json"] = replace(row["marks_json"], value='["late"]')
            patch.undo()
        return plain(self, instance, body)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tablestore, "_BatchWriteRow", marked_late)
        found = report(run("rename", url, *RENAME), 7)
    assert [(one["user"], one["code"]) for one in found["failures"]] == [("bob", "changed")]
    assert names(url) == [ADA._replace(session="uji"), BOB]
    rows = server.dump(url)["agentscope_memory"]
    marks = {key[0]: row["marks_json"][0] for key, row in rows.items() if key[1] == "bob"}
    assert marks.keys() == {f"m000000{at}:::kyoto" for at in range(3)}
    assert marks["m0000001:::kyoto"] == '["late"]'


def test_session_with_a_row_of_another_id_keeps_its_name(
    url: str, server: Tablestore, run: Run
) -> None:
    key, text = {"document_id": "y", "tenant_id": "bob"}, samples.message("y", 9).decode()
    more = {"session_id": "kyoto", "timestamp": "2027", "marks_json": "[]", "text": text}
    put(server, url, "agentscope_memory", key, **more)
    before = server.dump(url)
    found = report(run("rename", url, *RENAME), 7)
    [failure] = found["failures"]
    assert "the id of the row 'y' does not name the session" in failure["message"]
    assert names(url) == [ADA._replace(session="uji"), BOB]
    report(run("undo", found["run"], "--store", url, "--json"))
    assert server.dump(url)["agentscope_memory"].keys() == before["agentscope_memory"].keys()
    report(run("rename", url, "--user", "bob", "cleo", "--yes", "--json"))
    assert ("y", "cleo") in server.dump(url)["agentscope_memory"]


# Rows


def test_damaged_rows_leave_out_their_memory(url: str, server: Tablestore, run: Run) -> None:
    key = {"document_id": "bad:::kyoto", "tenant_id": "bob"}
    put(server, url, "agentscope_memory", key, text='{"id": "b', session_id="kyoto", timestamp="")
    found = run("inspect", url, "--json")
    assert found.exit_code == 7
    assert "not valid JSON" in found.stdout + found.stderr
    assert [one["user"] for one in json.loads(found.stdout)["memories"]] == ["ada"]
    checked = report(run("doctor", url, "--json"), 6)
    assert [one["code"] for one in checked["findings"]].count("damaged-row") == 1
    put(server, url, "agentscope_memory", key, session_id="kyoto", timestamp="")
    assert "it has no text" in run("inspect", url).stderr


def test_doctor_finds_rows_that_agentscope_would_mix_up(
    url: str, server: Tablestore, run: Run
) -> None:
    about = {"session_id": "kyoto", "timestamp": "2025-03-01 12:00:00.000", "marks_json": "[]"}
    text = samples.message("x", 0).decode()
    put(
        server,
        url,
        "agentscope_memory",
        {"document_id": "x:::kyoto", "tenant_id": "ada"},
        text=text,
        **about,
    )
    put(
        server,
        url,
        "agentscope_memory",
        {"document_id": "y", "tenant_id": "bob"},
        text=text.replace('"x"', '"y"'),
        **about,
    )
    found = report(run("doctor", url, "--json"), 6)
    assert {one["code"] for one in found["findings"]} >= {"duplicate-index", "row-id-mismatch"}


def test_erase_removes_rows_that_name_no_session(url: str, server: Tablestore, run: Run) -> None:
    put(server, url, "agentscope_memory", {"document_id": "stray", "tenant_id": "bob"}, text="x")
    assert names(url) == [ADA, BOB]
    assert run("erase", url, "--user", "bob", "--yes").exit_code == 0
    assert {key[1] for key in server.dump(url)["agentscope_memory"]} == {"ada"}


def test_columns_of_an_application_survive_an_undo(url: str, server: Tablestore, run: Run) -> None:
    key = {"document_id": "extra:::kyoto", "tenant_id": "ada"}
    text = samples.message("extra", 9).decode()
    put(
        server,
        url,
        "agentscope_memory",
        key,
        text=text,
        session_id="kyoto",
        embedding="[0.5, 1.0]",
        timestamp="2026",
        marks_json='["a","a"]',
        n=5,
        raw=bytearray(b"\xff"),
        flag=True,
    )
    row = server.dump(url)["agentscope_memory"]["extra:::kyoto", "ada"]
    before = {name: value for name, (value, _) in row.items()}
    assert run("delete", url, "--id", "extra", "--yes").exit_code == 0
    assert ("extra:::kyoto", "ada") not in server.dump(url)["agentscope_memory"]
    assert run("undo", "--store", url, "--yes").exit_code == 0
    row = server.dump(url)["agentscope_memory"]["extra:::kyoto", "ada"]
    assert {name: value for name, (value, _) in row.items()} == before


def test_undo_without_the_secret_says_how(url: str, run: Run) -> None:
    assert run("delete", url, "--id", "m0000001", "--yes").exit_code == 0
    fails(run("undo", "--yes"), 3, "--store URL")


# agentscope-runtime

SESSIONS, MESSAGES, DOCUMENTS = TABLES["runtime"]


async def make_tables(url: str) -> None:
    """Create the tables of agentscope-runtime."""
    instance = service.TablestoreInstance(parse(url))
    for name, key in {
        SESSIONS: ["user_id", "session_id"],
        MESSAGES: ["session_id", "create_time", "message_id"],
        DOCUMENTS: ["document_id", "tenant_id"],
    }.items():
        kinds = {"create_time": "INTEGER"}
        columns = tuple((column, kinds.get(column, "STRING")) for column in key)
        await instance.create(service.TableSchema(name, columns))
    await instance.close()


@pytest.fixture
def runtime(server: Tablestore) -> str:
    """An instance with histories and memories of agentscope-runtime, of two users."""
    url = server.fresh()
    asyncio.run(make_tables(url))
    parts = json.dumps([{"type": "text"}])
    columns = {"type": "message", "role": "user", "content_list": parts}
    for user, session in (ADA[:2], ("bob", "nara")):
        put(server, url, SESSIONS, {"user_id": user, "session_id": session}, update_time=1)
        for at in range(3):
            key: dict[str, Any] = {"session_id": session, "create_time": at, "message_id": f"m{at}"}
            put(server, url, MESSAGES, key, content=f"text {at}", **columns)
        about = {"document_id": f"{user}1", "tenant_id": "__default"}
        owner = {"user_id": user, "session_id": session}
        put(server, url, DOCUMENTS, about, text="text of a memory", **columns, **owner)
    return url


def test_runtime_services_are_read_and_erased(
    server: Tablestore, runtime: str, run: Run, tmp_path: Path
) -> None:
    found = contents(runtime)
    assert {key: [one.id for one in some] for key, some in found.items()} == {
        MemoryKey("ada", "kyoto"): ["m0", "m1", "m2"],
        MemoryKey("bob", "nara"): ["m0", "m1", "m2"],
        MemoryKey("ada", "kyoto", "memory"): ["ada1"],
        MemoryKey("bob", "nara", "memory"): ["bob1"],
    }
    shown = run("context", f"{runtime}&layout=runtime&path=history", "--user", "ada").stdout
    assert "text 1" in shown
    moved = run("migrate", f"{runtime}&layout=runtime&path=history", tmp_path / "a.db")
    assert moved.exit_code == 0, moved.stderr
    assert run("doctor", runtime).exit_code == 0
    erased = report(run("erase", runtime, "--user", "ada", "--yes", "--json"))
    assert erased["stores"][0]["messages"] == 4
    left = server.dump(runtime)
    assert [len(rows) for rows in left.values()] == [1, 3, 1], "of each table, what is bob's"


def test_runtime_services_are_redacted(server: Tablestore, runtime: str, run: Run) -> None:
    about = {"document_id": "with", "tenant_id": "__default"}
    more = {"text": "a vector of a memory", "embedding": "[0.5]", "session_id": "nara"}
    put(server, runtime, DOCUMENTS, about, **more)
    words = ("--match", "of a memory", "--match", "text 1", "--match", "nara", "--yes", "--json")
    left = report(run("redact", runtime, *words), 6)["left"]
    whys = {row["why"].partition(":")[0] for row in left}
    assert whys == {
        *("it is in a name", "the column embedding would still tell it"),
        "it is in an id, a mark or the folder of a session, which ties data together",
    }
    assert report(run("inspect", runtime, "--json"))["totals"]["messages"] == 9
    stored = str(server.dump(runtime))
    assert "text 1" not in stored
    assert "text 2" in stored
    assert stored.count("of a memory") == 1
    assert more["embedding"] in stored, "a row is left whole"


@pytest.mark.parametrize(
    "words",
    [
        ("delete", "--all", "--yes"),
        ("doctor", "--repair", "--yes"),
        ("rename", "--user", "ada", "cleo", "--yes"),
        ("rename", "--session", "kyoto", "uji", "--yes"),
    ],
    ids=" ".join,
)
def test_runtime_services_are_not_changed(
    server: Tablestore, runtime: str, run: Run, words: tuple[str, ...]
) -> None:
    before = server.dump(runtime)
    fails(run(words[0], runtime, *words[1:]), 2, "retired format", "migrate it")
    assert server.dump(runtime) == before


@pytest.mark.parametrize("words", [(), ("--dry-run",)], ids=["", "dry"])
def test_runtime_services_get_nothing(
    server: Tablestore, url: str, run: Run, words: tuple[str, ...]
) -> None:
    target = server.fresh("layout=runtime")
    fails(run("migrate", url, target, "--lossy", *words), 2, "retired format")
    assert server.dump(target) == {}
