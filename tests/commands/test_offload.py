"""Large contents moved out of messages to files, and put back."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import resource
import shutil
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from memctl.dialects.agentscope2 import AGENTSCOPE2
from memctl.dialects.langchain import LANGCHAIN
from memctl.dialects.view import Block, MediaBlock, TextBlock, ToolCallBlock, ToolResultBlock
from memctl.json.jsonio import canonical
from memctl.model import Memory, MemoryKey, StoredMessage
from memctl.ops.offload.blobs import Blobs
from memctl.registry import make_store, parse
from memctl.storekit.named_file import LocalFile
from memctl.testing.backend import Place
from memctl.testing.drive import read
from memctl.testing.lock_holder import lock_elsewhere
from tests.support.cli import Run, add, contents, fails, fill, report
from tests.support.processes import start, wait_until
from tests.support.servers.gate import Gate, refusal
from tests.support.servers.objects import Bucket
from tests.support.servers.pool import Servers

ADA, BOB = MemoryKey("ada", "s1"), MemoryKey("bob", "s2")
IMAGE = base64.b64encode(os.urandom(9000)).decode()
LONG = 'a line of "text"\n' * 1000
OTHER = "another line\n" * 1000


def message(id: str, role: str, *blocks: dict[str, Any]) -> StoredMessage:
    value = {"id": id, "name": "x", "role": role, "content": [*blocks], "metadata": {}}
    value["timestamp"] = f"2026-01-0{id[-1]} 10:00:00.000"
    return StoredMessage(id, json.dumps(value).encode())


def image(data: str, media_type: str = "image/png") -> dict[str, Any]:
    source = {"type": "base64", "media_type": media_type, "data": data}
    return {"type": "image", "source": source}


def result(output: Any) -> dict[str, Any]:
    return {"type": "tool_result", "id": "c1", "name": "read", "output": output}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


MEMORIES = {
    ADA: [
        message("a1", "user", text("Look."), image(IMAGE)),
        message("a2", "assistant", {"type": "tool_use", "id": "c1", "name": "read", "input": {}}),
        message("a3", "system", result(LONG)),
        message("a4", "assistant", text(LONG)),
    ],
    BOB: [
        message("b1", "user", text("Look."), image(IMAGE)),
        message("b2", "system", result([text(OTHER)])),
    ],
}
WORDS = ("--larger", "5kB", "--keep", "100")


@pytest.fixture
def store(tmp_path: Path) -> str:
    path = str(tmp_path / "agents.db")
    asyncio.run(fill(path, MEMORIES))
    return path


@pytest.fixture
def blobs(tmp_path: Path) -> Path:
    return tmp_path / "blobs"


def texts(store: str) -> dict[MemoryKey, list[bytes]]:
    return {key: [entry.message for entry in some] for key, some in contents(store).items()}


def names(folder: Path) -> list[str]:
    """Return the names of the files with contents, without those that name users."""
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".user")


@pytest.mark.slow
def test_offload_goes_and_comes_back(run: Run, store: str, blobs: Path) -> None:
    before = texts(store)
    words = ["offload", store, "--to", blobs, *WORDS, "--yes", "--json"]
    found = report(run(*words))
    assert found["messages"] == {"selected": 4, "changed": 4, "failed": 0}
    assert found["blobs"] == {"place": str(blobs), "written": 3}
    assert found["left"] == 0
    slim = texts(store)
    sizes = [sum(len(one) for some in each.values() for one in some) for each in (before, slim)]
    others = len(before[ADA][1] + before[ADA][3])  # calls and what is said stay
    assert found["bytes"] == {"before": sizes[0] - others, "after": sizes[1] - others}
    assert found["tokens"]["before"] - found["tokens"]["after"] > (len(LONG) + len(OTHER)) / 5
    assert slim[ADA][3] == before[ADA][3]
    [shortened] = json.loads(slim[ADA][2])["content"]
    assert shortened["id"] == "c1"
    assert shortened["output"].startswith(LONG[:80])
    assert f"{len(LONG):,} bytes, offloaded as " in shortened["output"]
    assert len(names(blobs)) == 3
    assert {path.stat().st_mode & 0o777 for path in blobs.iterdir()} == {0o600}
    run_id = found["run"]
    assert report(run("history", "--json"))["runs"][0]["replaced"] == 4
    # Nothing more to do.
    again = report(run(*words))
    assert (again["messages"]["selected"], "run" in again) == (0, False)

    back = report(run("rehydrate", store, "--from", blobs, "--json"))
    assert back["messages"]["changed"] == 4
    assert texts(store) == before
    report(run("undo", back["run"], "--yes", "--json"))
    assert texts(store) == slim
    report(run("undo", run_id, "--yes", "--json"))
    assert texts(store) == before


def test_offload_dry_run_writes_nothing(run: Run, store: str, blobs: Path) -> None:
    before = texts(store)
    words = ["offload", store, "--to", blobs, *WORDS, "--dry-run"]
    found = report(run(*words, "--json"))
    assert [(row["user"], row["messages"]) for row in found["plan"]] == [("ada", 2), ("bob", 2)]
    assert found["bytes"]["before"] > 10 * found["bytes"]["after"]
    assert "would be offloaded from 4 messages in 2 memories" in run(*words).stdout
    assert texts(store) == before
    assert not blobs.exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["archive.ndjson", "other.db"])
def test_offload_keeps_the_context_of_a_session(
    run: Run, blobs: Path, tmp_path: Path, name: str
) -> None:
    output = [TextBlock(LONG)]
    said: list[list[Block]] = [
        [TextBlock("Read it.")],
        [ToolCallBlock("c1", "read", {}), ToolResultBlock("c1", "read", lambda: output)],
        [TextBlock("Done.")],
    ]
    messages = [
        StoredMessage(*AGENTSCOPE2.author("assistant", "x", blocks, datetime(2026, 1, 1)))
        for blocks in said
    ]
    # An order of its own, so that the archive has it next to the messages.
    context = [one.id for one in messages[::-1]]
    parts = {"record": {}, "payload": {}, "state": {"session_id": "s1"}}
    extra = parts | {"context": context}
    first = f"sqlite:///{tmp_path}/first.db?layout=agentscope2"
    asyncio.run(fill(first, {ADA: messages}, extra=json.dumps(extra)))
    place = str(tmp_path / name)
    if name.endswith(".db"):
        place = f"sqlite:///{place}?layout=agentscope2"
    assert run("migrate", first, place).exit_code == 0
    before = memory(place)
    assert json.loads(before.extra)["context"] == context
    found = report(run("offload", place, "--to", blobs, *WORDS, "--yes", "--json"))
    assert found["messages"]["changed"] == 1
    assert memory(place).extra == before.extra
    assert run("rehydrate", place, "--from", blobs).exit_code == 0
    assert memory(place).extra == before.extra
    assert texts(place) == texts(first)


def memory(store: str) -> Memory:
    async def look() -> Memory:
        async with make_store(parse(store)) as opened:
            [found] = (await read(opened)).values()
            return found.memory

    return asyncio.run(look())


def test_offload_only_what_is_selected(run: Run, store: str, blobs: Path) -> None:
    before = texts(store)
    words = ["offload", store, "--to", blobs, *WORDS, "--yes", "--json"]
    assert report(run(*words, "--role", "system", "--user", "ada"))["messages"]["changed"] == 1
    assert [one == other for one, other in zip(texts(store)[ADA], before[ADA], strict=True)] == [
        *(True, True, False, True)
    ]
    fails(run(*words, "--max-delete", "1"), 9, "--max-delete")
    assert texts(store)[BOB] == before[BOB]


@pytest.mark.slow
def test_offload_media_become_urls(run: Run, store: str, blobs: Path) -> None:
    before = texts(store)
    prefix = f"file://{blobs}"  # without the slash at the end
    words = ["offload", store, "--to", blobs, *WORDS, "--url-prefix", prefix, "--yes"]
    assert run(*words).exit_code == 0
    source = json.loads(texts(store)[ADA][0])["content"][1]["source"]
    assert source["type"] == "url"
    file = Path(source["url"].removeprefix("file://"))
    assert (file.parent, file.suffix) == (blobs, ".png")
    assert file.read_bytes() == base64.b64decode(IMAGE)
    assert run("rehydrate", store, "--from", blobs).exit_code == 0
    assert texts(store) == before


@pytest.mark.slow
@pytest.mark.parametrize("size", [*range(4985, 5015)])
def test_offload_sizes_around_the_limit(run: Run, tmp_path: Path, blobs: Path, size: int) -> None:
    path = str(tmp_path / "agents.db")
    data = base64.b64encode(os.urandom(size)).decode()[: size // 4 * 4]
    output = "ä\x00\ud800" * (size // 6)
    output += "x" * (size - len(output.encode("utf-8", "surrogatepass")))
    asyncio.run(
        fill(
            path,
            {ADA: [message("m1", "user", image(data)), message("m2", "system", result(output))]},
        )
    )
    before = texts(path)
    found = report(run("offload", path, "--to", blobs, *WORDS, "--yes", "--json"))
    assert found["messages"]["changed"] == (len(data) > 5000) + (size > 5000)
    assert run("rehydrate", path, "--from", blobs).exit_code == 0
    assert texts(path) == before


@pytest.mark.slow
def test_offload_to_object_storage(run: Run, store: str, bucket: Bucket) -> None:
    before = texts(store)
    place = bucket.url("blobs")
    found = report(run("offload", store, "--to", place, *WORDS, "--yes", "--json"))
    files = [name for name in bucket.files() if not name.endswith(".user")]
    assert found["blobs"]["written"] == len(files) == 3
    assert all(name.startswith("blobs/") for name in bucket.files())
    assert run("rehydrate", store, "--from", place).exit_code == 0
    assert texts(store) == before
    report(run("undo", "--store", store, "--yes", "--json"))
    assert report(run("offload", store, "--prune", "--to", place, "-n", "--json"))["removed"] == []


@pytest.mark.slow
def test_rehydrate_where_the_messages_were_migrated(
    run: Run, store: str, blobs: Path, one: Callable[[str], Place]
) -> None:
    before = texts(store)
    assert run("offload", store, "--to", blobs, *WORDS, "--yes").exit_code == 0
    redis = one("redis").text
    assert run("migrate", store, redis).exit_code == 0
    assert run("rehydrate", redis, "--from", blobs).exit_code == 0
    assert texts(redis) == before


OWNED = ("langchain", "llamaindex", "openai-agents")
"""The layouts whose rows name no user."""


def elsewhere(folder: Path, layout: str, name: str = "there") -> str:
    """Return the URL of tables of another framework, for the memories of ada."""
    more = "&owner=ada" if layout in OWNED else "&app=weather" if layout == "adk" else ""
    return f"sqlite:///{folder}/{name}.db?layout={layout}{more}"


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["agentscope2", "adk", *OWNED])
def test_rehydrate_in_another_dialect(
    run: Run, store: str, blobs: Path, tmp_path: Path, layout: str
) -> None:
    """The messages are what the migration of whole messages makes of them, and go back exactly."""
    joined = message("a5", "system", result([text("A map:"), image(IMAGE), text(LONG)]))
    several = message("a6", "user", image(IMAGE), text("And:"), image(IMAGE, "image/x-other"))
    # The output of a tool is one text there, in which references are joined with other texts.
    more = [several] if layout in ("openai-agents", "adk") else [joined, several]
    add(Path(store), ADA, more, len(MEMORIES[ADA]))
    before = texts(store)
    there, wanted = elsewhere(tmp_path, layout), elsewhere(tmp_path, layout, "wanted")
    words = ("--user", "ada", "--lossy")
    assert run("migrate", store, wanted, *words).exit_code == 0
    assert run("offload", store, "--to", blobs, *WORDS, "--yes").exit_code == 0
    assert run("migrate", store, there, *words).exit_code == 0
    slim = texts(there)
    assert sum(map(len, slim[ADA])) < sum(map(len, texts(wanted)[ADA])) / 2

    preview = report(run("rehydrate", there, "--from", blobs, "--dry-run", "--json"))
    found = report(run("rehydrate", there, "--from", blobs, "--json"))
    assert found["messages"]["changed"] == preview["messages"]["selected"] > len(more)
    assert texts(there) == texts(wanted)
    again = report(run("rehydrate", there, "--from", blobs, "--json"))
    assert again["messages"]["selected"] == 0
    if layout != "openai-agents":  # without notes, the way back is not exact
        back = str(tmp_path / "back.db")
        assert run("migrate", there, back).exit_code == 0
        assert list(map(canonical, texts(back)[ADA])) == list(map(canonical, before[ADA]))
    report(run("undo", found["run"], "--yes", "--json"))
    assert texts(there) == slim


@pytest.mark.slow
def test_rehydrate_what_was_offloaded_before_and_after_a_migration(
    run: Run, store: str, blobs: Path, tmp_path: Path
) -> None:
    there, wanted = (elsewhere(tmp_path, "langchain", name) for name in ("there", "wanted"))
    offload = ("--to", blobs, *WORDS, "--yes")
    assert run("migrate", store, wanted, "--user", "ada").exit_code == 0
    assert run("offload", store, *offload).exit_code == 0
    assert run("migrate", store, there, "--user", "ada").exit_code == 0
    picture = MediaBlock("image", None, "image/png", IMAGE)
    results: list[Block] = [ToolResultBlock("c2", "read", lambda: [TextBlock(OTHER)])]
    said = [("user", [TextBlock("Look."), picture]), ("system", results)]
    for place in wanted, there:
        entries = [
            StoredMessage(*LANGCHAIN.author(role, "x", blocks, datetime(2026, 2, 1)))
            for role, blocks in said
        ]
        add(place, ADA, entries, len(MEMORIES[ADA]))
    assert report(run("offload", there, *offload, "--json"))["messages"]["changed"] == 2
    found = report(run("rehydrate", there, "--from", blobs, "--json"))
    assert (found["messages"]["changed"], found["failures"]) == (4, [])
    assert texts(there) == texts(wanted)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["agentscope2", "adk", "langchain", "llamaindex"])
def test_offload_of_migrated_messages(
    run: Run, store: str, blobs: Path, tmp_path: Path, layout: str
) -> None:
    """They come back where they are, and after a migration back, with their ids."""
    # In tables with a row for each result, a content fills a page.
    pictured, words = (9_000, 3_000) if layout == "agentscope2" else (1_700_000, 450_000)
    picture, said = base64.b64encode(os.urandom(pictured)).decode(), "word " * words
    calls = [
        {"type": "tool_use", "id": id, "name": "read", "input": {}} for id in ("c1", "c2", "c3")
    ]
    answers = [result(said) | {"id": one["id"]} for one in calls]
    more = [
        message("a5", "user", text("Look."), image(picture)),
        message("a6", "assistant", *calls),
        message("a7", "system", *answers),  # a row for each answer elsewhere
        message("a8", "system", result([text("A"), text(OTHER)])),
    ]
    more = [one._replace(message=one.message[:-1] + b', "rated": 5}') for one in more]
    add(Path(store), ADA, more, len(MEMORIES[ADA]))
    there, back = elsewhere(tmp_path, layout), str(tmp_path / "back.db")
    assert run("migrate", store, there, "--user", "ada").exit_code == 0
    whole = contents(there)
    offload = report(run("offload", there, "--to", blobs, *WORDS, "--yes", "--json"))
    slim = contents(there)
    assert run("migrate", there, back).exit_code == 0
    assert run("rehydrate", back, "--from", blobs).exit_code == 0
    entries = contents(back)[ADA]
    assert [entry.id for entry in entries] == [*(f"a{number}" for number in range(1, 9))]
    assert list(map(canonical, texts(back)[ADA])) == list(map(canonical, texts(store)[ADA]))

    assert run("rehydrate", there, "--from", blobs).exit_code == 0
    assert contents(there) == whole
    assert run("undo", "--store", there, "--yes").exit_code == 0
    assert contents(there) == slim
    assert run("undo", offload["run"], "--yes").exit_code == 0
    assert contents(there) == whole


@pytest.mark.slow
def test_offload_of_notes_that_memctl_has_not_written(run: Run, store: str, blobs: Path) -> None:
    """Whatever stands where notes stand, the contents go and come back byte for byte."""
    notes: list[Any] = [
        None,
        ["agentscope2"],
        {
            "agentscope1": '{"check": ""}',
            "agentscope2": "{",
            "langchain": 5,
            "nobody": '{"check": ""}',
        },
        {"agentscope2": '{"check": "", "count": 9}', "langchain": '{"check": "", "delta": [1]}'},
        {"adk": json.dumps({"check": "", "offloaded": "", "delta": ["=", None]})},
        {"agentscope2": '{"check": "", "delta": ' + "[" * 5000 + "]" * 5000 + "}"},
    ]
    more = [message(f"a{number}", "system", result(LONG)) for number in range(5, 5 + len(notes))]
    more = [
        one._replace(
            message=one.message.replace(
                b'"metadata": {}', b'"metadata": ' + json.dumps({"memctl": note}).encode()
            )
        )
        for one, note in zip(more, notes, strict=True)
    ]
    add(Path(store), ADA, more, len(MEMORIES[ADA]))
    before = texts(store)
    found = report(run("offload", store, "--to", blobs, *WORDS, "--yes", "--json"))
    assert found["messages"]["changed"] == 4 + len(notes)
    assert max(map(len, texts(store)[ADA][4:])) < 12_000
    assert run("rehydrate", store, "--from", blobs).exit_code == 0
    assert texts(store) == before


@pytest.mark.slow
def test_rehydrate_keeps_times_that_the_store_has_changed(
    run: Run, store: str, blobs: Path, tmp_path: Path
) -> None:
    """A table ordered by time gives a message that was earlier a later time, and so another id."""
    late = message("a5", "user", image(IMAGE))
    early = late._replace(id="a6", message=late.message.replace(b"01-05", b"01-02"))
    early = early._replace(message=early.message.replace(b'"a5"', b'"a6"'))
    add(Path(store), ADA, [late, early], len(MEMORIES[ADA]))
    there, wanted = (elsewhere(tmp_path, "llamaindex", name) for name in ("there", "wanted"))
    assert run("migrate", store, wanted, "--user", "ada").exit_code == 0
    assert run("offload", store, "--to", blobs, *WORDS, "--yes").exit_code == 0
    assert run("migrate", store, there, "--user", "ada").exit_code == 0
    slim = texts(there)
    assert run("rehydrate", there, "--from", blobs).exit_code == 0
    assert texts(there) == texts(wanted)
    report(run("undo", "--store", there, "--yes", "--json"))
    assert texts(there) == slim


@pytest.mark.slow
def test_rehydrate_names_what_it_cannot_put_into_another_dialect(
    run: Run, store: str, blobs: Path, tmp_path: Path
) -> None:
    """Items of OpenAI's agents have no notes; and messages are converted with their memory."""
    joined = message("a5", "system", result([text("A map:"), image(IMAGE)]))
    add(Path(store), ADA, [joined], len(MEMORIES[ADA]))
    assert run("offload", store, "--to", blobs, *WORDS, "--yes").exit_code == 0
    agents, chain = (elsewhere(tmp_path, one, one) for one in ("openai-agents", "langchain"))
    for target in agents, chain:
        assert run("migrate", store, target, "--user", "ada", "--lossy").exit_code == 0
    fails(run("rehydrate", agents, "--from", blobs), 7, "of agentscope1 cannot be put into this")
    [first, *_, last] = texts(agents)[ADA]
    assert f"data:image/png;base64,{IMAGE}".encode() in first
    assert b"memctl rehydrate restores this block" in last

    found = run("rehydrate", chain, "--from", blobs, "--role", "user")
    fails(found, 7, "'a1'", "of agentscope1 cannot be put into this message of langchain")
    assert run("rehydrate", chain, "--from", blobs).exit_code == 0
    assert IMAGE.encode() in texts(chain)[ADA][0]


@pytest.mark.slow
def test_rehydrate_names_references_that_were_joined(
    run: Run, store: str, blobs: Path, tmp_path: Path
) -> None:
    two = message("a5", "system", result([image(IMAGE), image(IMAGE, "image/jpeg")]))
    add(Path(store), ADA, [two], len(MEMORIES[ADA]))
    assert run("offload", store, "--to", blobs, *WORDS, "--yes").exit_code == 0
    agents, back = elsewhere(tmp_path, "openai-agents"), str(tmp_path / "back.db")
    assert run("migrate", store, agents, "--user", "ada", "--lossy").exit_code == 0
    assert run("migrate", agents, back).exit_code == 0
    for place in agents, back:
        [*_, last] = texts(place)[ADA]
        fails(run("rehydrate", place, "--from", blobs), 7, "is joined with another text")
        [first, *_, still] = texts(place)[ADA]
        assert IMAGE.encode() in first
        assert still == last


@pytest.mark.slow
def test_rehydrate_keeps_what_another_framework_added(
    run: Run, store: str, blobs: Path, tmp_path: Path
) -> None:
    """A message that was changed since its migration would lose that if it were converted."""
    chain = elsewhere(tmp_path, "langchain")
    assert run("offload", store, "--to", blobs, *WORDS, "--yes").exit_code == 0
    assert run("migrate", store, chain, "--user", "ada").exit_code == 0
    with closing(sqlite3.connect(tmp_path / "there.db")) as connection, connection:
        connection.execute(
            "UPDATE message_store SET message = json_set(message, '$.data.rated', 5)"
        )
    edited = texts(chain)[ADA]
    fails(run("rehydrate", chain, "--from", blobs), 7, "'a1'", "of agentscope1 cannot be put")
    found = texts(chain)[ADA]
    assert [*found[:2], found[3]] == [*edited[:2], edited[3]]
    data = json.loads(found[2])["content"]["data"]
    assert (data["content"], data["rated"]) == (LONG, 5)


@pytest.mark.slow
def test_rehydrate_without_a_blob_does_the_rest(run: Run, store: str, blobs: Path) -> None:
    before = texts(store)
    assert run("offload", store, "--to", blobs, *WORDS, "--yes").exit_code == 0
    slim = texts(store)
    [picture] = blobs.glob("*.png")
    content = picture.read_bytes()
    picture.write_bytes(content[:-1])
    fails(run("rehydrate", store, "--from", blobs), 7, picture.name, "is damaged")
    found = texts(store)
    assert found[ADA] == [slim[ADA][0], *before[ADA][1:]]
    assert found[BOB] == [slim[BOB][0], before[BOB][1]]
    picture.unlink()
    done = run("rehydrate", store, "--from", blobs)
    fails(done, 7, f"there is no blob {picture.name}")
    assert "nothing could be put back" in done.stdout
    assert texts(store) == found
    picture.write_bytes(content)
    assert run("rehydrate", store, "--from", blobs).exit_code == 0
    assert texts(store) == before


def test_rehydrate_leaves_a_quoted_reference_alone(run: Run, store: str, blobs: Path) -> None:
    before = texts(store)
    assert run("offload", store, "--to", blobs, *WORDS, "--yes").exit_code == 0
    [shortened] = json.loads(texts(store)[ADA][2])["content"]
    quote = message("a5", "system", result(f"I found: {shortened['output']}"))
    add(Path(store), ADA, [quote], len(before[ADA]))
    fails(run("rehydrate", store, "--from", blobs), 7, "'a5'", "is not the beginning of the blob")
    assert texts(store) == before | {ADA: [*before[ADA], quote.message]}


@pytest.mark.parametrize("prefix", [(), ("--url-prefix", "https://example.com/")])
def test_rehydrate_takes_no_content_of_another_user(
    run: Run, store: str, blobs: Path, tmp_path: Path, prefix: tuple[str, ...]
) -> None:
    """A reference is text: who knows the digest of a content can write one."""
    before = texts(store)
    assert run("offload", store, "--to", blobs, *WORDS, *prefix, "--yes").exit_code == 0
    [name] = [one for one in names(blobs) if hashlib.sha256(LONG.encode()).hexdigest() in one]
    name = name.removesuffix(".zst")
    line = (
        f"[memctl: 9 bytes, offloaded as {name} from agentscope1; memctl rehydrate restores them]"
    )
    eve = MemoryKey("eve", "nara")
    planted = [
        message("e1", "system", result("\n" + line)),
        message("e2", "user", *json.loads(texts(store)[ADA][0])["content"]),
    ]
    add(store, eve, planted, 0)
    slim = texts(store)
    for words in (("--user", "eve"), ()):
        found = report(run("rehydrate", store, "--from", blobs, *words, "--json"), 7)
        [failure] = found["failures"]
        assert (failure["user"], failure["code"]) == ("eve", "bad-data")
        assert "was not offloaded from a message of 'eve'" in failure["message"]
        assert texts(store)[eve] == slim[eve]
    assert {key: some for key, some in texts(store).items() if key != eve} == before
    copy = f"sqlite:///{tmp_path}/copy.db?layout=agentscope2"
    assert run("migrate", store, copy).exit_code == 0
    report(run("rehydrate", copy, "--from", blobs, "--user", "eve", "--json"), 7)
    assert LONG not in run("context", copy, "--user", "eve", "--session", "nara").stdout


def test_rehydrate_of_a_content_that_several_users_had(
    run: Run, store: str, blobs: Path, tmp_path: Path
) -> None:
    """Equal contents are one file; each user's messages get it back, in any store."""
    before = texts(store)
    archive = tmp_path / "ada.ndjson"
    assert run("offload", store, "--to", blobs, *WORDS, "--yes").exit_code == 0
    assert run("export", store, "--user", "ada", "-o", archive).exit_code == 0
    assert run("rehydrate", store, "--from", blobs, "--user", "bob").exit_code == 0
    assert texts(store)[BOB] == before[BOB]
    assert run("rehydrate", archive, "--from", blobs).exit_code == 0
    assert texts(str(archive)) == {ADA: before[ADA]}


def test_offload_prune_leaves_no_name_of_a_user(run: Run, store: str, blobs: Path) -> None:
    assert run("offload", store, "--to", blobs, *WORDS, "--no-backup", "--yes").exit_code == 0
    assert sum(path.suffix == ".user" for path in blobs.iterdir()) == 4
    assert run("rehydrate", store, "--from", blobs, "--no-backup").exit_code == 0
    words = "offload", store, "--prune", "--to", blobs, "--grace", "0d", "--yes"
    assert run(*words).exit_code == 0
    assert list(blobs.iterdir()) == []


def test_offload_mends_a_damaged_blob(run: Run, store: str, blobs: Path) -> None:
    words = ["offload", store, "--to", blobs, *WORDS, "--yes", "--json"]
    assert report(run(*words, "--user", "ada"))["blobs"]["written"] == 2
    [picture] = blobs.glob("*.png")
    picture.write_bytes(b"")
    assert report(run(*words))["blobs"]["written"] == 2
    assert picture.read_bytes() == base64.b64decode(IMAGE)


@pytest.mark.slow
def test_offload_follows_no_planted_link(run: Run, store: str, blobs: Path, tmp_path: Path) -> None:
    before = texts(store)
    words = ["offload", store, "--to", blobs, *WORDS, "--yes", "--json"]
    report(run(*words))
    assert run("undo", "--yes").exit_code == 0
    victim = tmp_path / "victim"
    victim.write_text("mine")
    for name in names(blobs):
        (blobs / name).unlink()
        (blobs / name).symlink_to(victim)
    assert report(run(*words))["blobs"]["written"] == 3
    assert victim.read_text() == "mine"
    assert not any((blobs / name).is_symlink() for name in names(blobs))
    for path in map(blobs.joinpath, names(blobs)):
        path.rename(tmp_path / path.name)
        path.symlink_to(tmp_path / path.name)
    fails(run("rehydrate", store, "--from", blobs), 7, "is a symbolic link")
    assert texts(store) != before


def test_offload_to_a_folder_of_everybody(run: Run, store: str, blobs: Path) -> None:
    blobs.mkdir()
    blobs.chmod(0o777)
    before = texts(store)
    words = ("offload", store, "--to", blobs, *WORDS, "--yes")
    fails(run(*words), 3, "every user may write", "chmod o-w")
    assert (texts(store), names(blobs)) == (before, [])
    blobs.chmod(0o1777)  # nobody can replace the files of others
    assert run(*words).exit_code == 0


def test_offload_to_a_url_that_is_no_bucket(run: Run, store: str) -> None:
    before = texts(store)
    for place in ("http://example.org/blobs", "file:///srv/blobs"):
        fails(run("offload", store, "--to", place, *WORDS, "--yes"), 2, "neither a folder nor")
    assert texts(store) == before
    assert not any(path.name.startswith(("http", "file")) for path in Path().iterdir())


def test_offload_prune(run: Run, store: str, blobs: Path, tmp_path: Path) -> None:
    copy = str(tmp_path / "copy.db")
    assert run("offload", store, "--to", blobs, *WORDS, "--yes").exit_code == 0
    assert run("migrate", store, copy, "--user", "bob").exit_code == 0
    every = names(blobs)
    prune = ["offload", "--prune", "--grace", "0d", "--to", blobs, "--json"]
    assert report(run(*prune, store, "--yes"))["removed"] == []
    removal = report(run("delete", store, "--user", "bob", "--yes", "--json"))["run"]
    # An undo would bring back messages that refer to all of them.
    assert report(run(*prune, store, "--yes"))["removed"] == []
    # No record of a change is kept for the copy, but it refers to what bob's messages had.
    (Path(os.environ["XDG_STATE_HOME"]) / "memctl" / "runs" / removal).rename(tmp_path / "gone")
    assert report(run(*prune, store, copy, "--yes"))["removed"] == []
    found = report(run(*prune, store, "-n"))["removed"]
    assert len(found) == 1
    assert names(blobs) == every
    assert report(run(*prune, store, "--yes"))["removed"] == found
    assert len(names(blobs)) == 2
    (blobs / "notes.txt").touch()
    assert report(run(*prune, copy, "--yes"))["removed"] != []
    assert "notes.txt" in names(blobs)


def shared(run: Run, store: str, blobs: Path, write: Path, tmp_path: Path) -> str:
    """Offload bob's messages of a store, and of a copy in the configuration; return the copy."""
    copy = str(tmp_path / "copy.db")
    write.touch()
    assert run("offload", store, "--to", blobs, *WORDS, "--yes", "--no-backup").exit_code == 0
    assert run("migrate", store, copy, "--user", "bob", "--no-backup").exit_code == 0
    text = f"[offload]\nto = '{blobs}'\n[stores.prod]\nurl = '{store}'\n[stores.copy]\n"
    write.write_text(f"{text}url = '{copy}'\n")
    return copy


def test_erase_keeps_what_another_store_refers_to(
    run: Run, store: str, blobs: Path, write: Path, tmp_path: Path
) -> None:
    copy = shared(run, store, blobs, write, tmp_path)
    every = names(blobs)
    assert report(run("erase", "--user", "bob", "prod", "--yes", "--json"))["blobs"] == []
    assert names(blobs) == every
    prune = ("offload", "prod", "--prune", "--json")
    found = report(run(*prune, "--grace", "0d", "--yes"))
    assert (found["removed"], found["not_asked"]) == ([], [])
    assert len(found["asked"]) == 2
    assert run("delete", copy, "--all", "--yes", "--no-backup").exit_code == 0
    assert report(run(*prune, "--yes"))["removed"] == [], "they are young"
    assert len(report(run(*prune, "--grace", "0d", "--yes"))["removed"]) == 1


def test_erase_keeps_what_a_store_may_need_that_cannot_be_asked(
    run: Run, store: str, blobs: Path, write: Path, tmp_path: Path
) -> None:
    copy = shared(run, store, blobs, write, tmp_path)
    Path(copy).write_text("no database")
    every = names(blobs)
    receipt = tmp_path / "r.json"
    words = ("erase", "--user", "bob", "prod", "--yes", "--receipt", receipt)
    fails(run(*words), 7, "contents were not removed", "copy.db could not be asked")
    assert names(blobs) == every
    assert json.loads(receipt.read_text())["blobs_kept_for"] == [copy]
    words = ("offload", "prod", "--prune", "--grace", "0d", "--yes")
    fails(run(*words), 3, "copy.db could not be asked")
    assert names(blobs) == every


def test_erase_keeps_what_an_archive_of_retention_refers_to(
    run: Run, store: str, blobs: Path, write: Path, tmp_path: Path
) -> None:
    Path(shared(run, store, blobs, write, tmp_path)).unlink()
    write.write_text(
        f"{write.read_text()}[[retention]]\nname = 'p'\nstore = 'prod'\naction = 'delete'\n"
        f"select = {{ user = 'bob', last = 9 }}\narchive = '{tmp_path}/p-{{date}}.ndjson'\n"
    )
    assert run("retain", "--yes").exit_code == 0
    every = names(blobs)
    for kept in (Path(os.environ["XDG_STATE_HOME"]) / "memctl" / "runs").iterdir():
        shutil.rmtree(kept, ignore_errors=True)
    words = ("offload", "prod", "--prune", "--grace", "0d", "--yes", "--json")
    assert report(run(*words))["removed"] == []
    assert names(blobs) == every


def test_offload_leaves_held_memories_alone(run: Run, store: str, blobs: Path) -> None:
    before = texts(store)
    assert run("hold", "add", "--user", "ada", "--reason", "case 17").exit_code == 0
    fails(run("offload", store, "--to", blobs, *WORDS, "--yes"), 7, "held")
    assert texts(store)[ADA] == before[ADA]
    assert texts(store)[BOB] != before[BOB]


@pytest.mark.slow
def test_offload_prune_waits_for_no_other_run(run: Run, store: str, blobs: Path) -> None:
    assert run("offload", store, "--to", blobs, *WORDS, "--yes").exit_code == 0
    assert run("delete", store, "--user", "bob", "--yes", "--no-backup").exit_code == 0
    every = names(blobs)
    prune = ("offload", "--prune", "--grace", "0d", "--to", blobs, store, "--yes")
    with lock_elsewhere(store, "pid 42 since then"):  # it may refer to any of them
        fails(run(*prune), 75, "pid 42")
    assert names(blobs) == every
    found = report(run(*prune, "--json"))
    assert len(found["removed"]) == 1


def test_offload_looks_at_an_equal_content_once(
    run: Run, store: str, blobs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["offload", store, "--to", blobs, *WORDS, "--yes"]
    many = [message(f"m{n}", "user", image(IMAGE)) for n in range(9)]
    asyncio.run(fill(store, {MemoryKey("cy", "s"): many}))
    opened: list[str] = []
    open_file = LocalFile.open

    def noted(self: LocalFile) -> int:
        opened.append(self.name)
        return open_file(self)

    monkeypatch.setattr(LocalFile, "open", noted)
    assert run(*words).exit_code == 0
    assert len([name for name in opened if name.endswith(".png")]) <= 1


@pytest.mark.slow
def test_erase_removes_what_only_the_user_had(
    run: Run, store: str, blobs: Path, tmp_path: Path
) -> None:
    assert run("offload", store, "--to", blobs, *WORDS, "--yes").exit_code == 0
    shared = hashlib.sha256(base64.b64decode(IMAGE)).hexdigest()
    [only] = {path.name.partition(".")[0] for path in blobs.iterdir()} & {
        hashlib.sha256(OTHER.encode()).hexdigest()
    }
    receipt = tmp_path / "receipt.json"
    words = ["erase", "--user", "bob", store, "--yes", "--json", "--receipt", receipt]
    assert report(run(*words, "--blobs", blobs))["blobs"] == [f"{only}.txt"]
    assert not [name for name in names(blobs) if name.startswith(only)]
    assert [name for name in names(blobs) if name.startswith(shared)]
    said = json.loads(receipt.read_text())
    assert len(said["blobs"]) == 1
    assert only not in receipt.read_text()
    assert run("verify", "--receipt", receipt).exit_code == 0
    assert run("rehydrate", store, "--from", blobs).exit_code == 0
    found = report(run("erase", "--user", "ada", store, "--yes", "--json", "--blobs", blobs))
    assert found["blobs"] == []  # they were rehydrated
    assert len(names(blobs)) == 2


@pytest.mark.slow
def test_erase_without_the_place_of_blobs(
    run: Run, store: str, blobs: Path, tmp_path: Path
) -> None:
    assert run("offload", store, "--to", blobs, *WORDS, "--yes").exit_code == 0
    assert "blobs" not in report(run("erase", "--user", "bob", store, "--yes", "--json"))
    assert len(names(blobs)) == 3
    words = ["erase", "--user", "ada", store, "--yes", "--blobs", tmp_path / "file" / "none"]
    (tmp_path / "file").touch()
    fails(run(*words), 7, "offloaded contents were not removed")


def test_doctor_offers_to_offload(run: Run, store: str, blobs: Path, write: Path) -> None:
    write.write_text("")
    words = ["doctor", store, "oversized-tool-result", "--max-result", "9000"]
    assert "memctl offload STORE --to DIR" in run(*words).stdout.replace("\n", " ")
    write.write_text(f'[offload]\nto = "{blobs}"\n')
    [remedy] = {one["remedy"] for one in report(run(*words, "--json"), 6)["findings"]}
    assert remedy == f"memctl offload {store} --larger 9000"
    assert run(*remedy.split()[1:], "--yes").exit_code == 0
    assert report(run(*words, "--json"))["findings"] == []


def test_offload_usage(run: Run, store: str, blobs: Path, tmp_path: Path, write: Path) -> None:
    write.touch()
    to = ["--to", blobs]
    fails(run("offload", store, "--yes"), 2, "no folder is named", "[offload]")
    fails(run("rehydrate", store), 2, "no folder is named")
    fails(run("offload", store, *to), 2, "--yes")
    fails(run("offload", store, *to, "--larger", "much", "--yes"), 2, "is not a valid size")
    fails(run("offload", store, *to, "--larger", "1kB", "--yes"), 2, "too few", "--larger")
    fails(run("offload", store, store, *to, "--yes"), 2, "one store at a time")
    fails(run("offload", store, *to, "--prune", "--user", "ada", "--yes"), 2, "--prune")
    fails(run("offload", tmp_path / "none.db", *to, "--yes"), 4, "none.db")
    fails(run("offload", store, "--to", "s3://", "--yes"), 2, "names no object")
    write.write_text(f'[offload]\nto = "{blobs}"\nlarger = "5kB"\nkeep = "100"\n')
    assert report(run("offload", store, "--yes", "--json"))["messages"]["changed"] == 4
    assert run("rehydrate", store).exit_code == 0
    write.write_text('[offload]\nfolder = "x"\n')
    fails(run("offload", store, "--yes"), 2, "offload.folder")


def test_offload_place_that_refuses(run: Run, store: str, tmp_path: Path) -> None:
    before = texts(store)
    (tmp_path / "file").touch()
    fails(run("offload", store, "--to", tmp_path / "file", *WORDS, "--yes"), 3, "file")
    assert texts(store) == before


def test_offload_no_room(
    run: Run, store: str, blobs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = texts(store)
    write = Blobs._write

    def limited(self: Blobs, name: str, data: bytes) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (8000, hard))
        try:
            write(self, name, data)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    with monkeypatch.context() as patched:
        patched.setattr(Blobs, "_write", limited)
        words = ["offload", store, "--to", blobs, *WORDS, "--yes"]
        fails(run(*words), 3, "larger than permitted")
    assert texts(store) == before
    assert names(blobs) == []
    assert run(*words).exit_code == 0


def test_offload_bucket_that_refuses(
    run: Run, store: str, servers: Servers, bucket: Bucket
) -> None:
    before = texts(store)

    def rule(data: bytes) -> bytes | None:
        return refusal("403 Forbidden", "AccessDenied") if data.startswith(b"PUT ") else None

    with Gate(servers.objects.port, rule) as gate:
        place = bucket.url("blobs", endpoint=gate.endpoint)
        fails(run("offload", store, "--to", place, *WORDS, "--yes"), 3, "no permission to write")
    assert texts(store) == before
    assert bucket.files() == []


@pytest.mark.slow
def test_offload_ctrl_c(run: Run, one: Callable[[str], Place], blobs: Path) -> None:
    place = one("sqlite")
    many = {
        MemoryKey(f"user{n}", "s"): [message("m1", "system", result(f"{n} {LONG * 20}"))]
        for n in range(60)
    }
    asyncio.run(fill(place.text, many))
    before = texts(place.text)
    process = start("offload", place.text, "--to", blobs, *WORDS, "--yes")
    wait_until(lambda: blobs.exists() and len(names(blobs)) > 3)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode in (0, 130), errors
    found = run("rehydrate", place.text, "--from", blobs)
    assert found.exit_code == 0, found.stderr
    assert texts(place.text) == before
