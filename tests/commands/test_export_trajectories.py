"""``memctl export --as atif``: trajectories, with the results of tools at their calls."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from memctl.model import MemoryKey, StoredMessage
from memctl.registry import make_store, parse
from memctl.store import OpenMode
from memctl.testing import samples
from memctl.testing.drive import write_all
from tests.commands.test_export_rows import facts
from tests.support import atif
from tests.support.cli import FRIDAY, Run, fails, fill, report
from tests.support.hostile import memories

KEY = MemoryKey("ada", "kyoto", "agent.memory")


def refused(text: str) -> None:
    raise AssertionError(f"{text} is no JSON")


def trajectories(text: str) -> list[dict[str, Any]]:
    """The trajectories of a file, strict JSON each."""
    found = [json.loads(line, parse_constant=refused) for line in text.split("\n")[:-1]]
    for one in found:
        atif.check(one)
    return found


def without_note(extra: dict[str, Any]) -> dict[str, Any]:
    """The extra without memctl's note, which is there."""
    return {name: extra[name] for name in extra.keys() ^ {"memctl"}}


def call(id: str, given: Any = None) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": "look", "input": {} if given is None else given}


def result(id: str, output: Any = "found") -> dict[str, Any]:
    return {"type": "tool_result", "id": id, "name": "look", "output": output}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def exported(run: Run, folder: Path, *messages: tuple[str, Any], **fields: Any) -> Any:
    """The trajectory of a memory of messages, given by their role and content."""
    path = folder / "store.ndjson"
    entries = [
        StoredMessage(
            f"m{number}",
            samples.message(f"m{number}", number, role=role, content=content, **fields),
            ("hint",) if number == 0 else (),
        )
        for number, (role, content) in enumerate(messages, 1)
    ]
    asyncio.run(fill(str(path), {KEY: entries}, summary="before"))
    done = run("export", path, "--as", "atif")
    assert done.exit_code == 0, done.stderr
    [found] = trajectories(done.stdout_bytes.decode())
    return found


def test_atif_results_are_at_their_calls(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "kyoto.json"
    names = ("--user", "ada", "--session", "kyoto")
    about = report(run("export", FRIDAY, *names, "--as", "atif", "-o", path, "--json"))
    assert (about["as"], about["memories"]["written"], about["messages"]["written"]) == (
        *("atif", 1, 11),
    )
    [found] = trajectories(path.read_text())
    assert (found["session_id"], found["trajectory_id"]) == ("kyoto", "ada/kyoto")
    assert found["agent"] == {"name": "Friday", "version": "unknown"}
    assert found["extra"]["user"] == "ada"
    steps = found["steps"]
    assert len(steps) == 9
    assert [step["source"] for step in steps] == [
        *("user", "agent", "user", "agent", "agent", "user", "agent", "agent", "system"),
    ]
    first = steps[0]
    assert first["timestamp"] == "2026-10-02T09:14:03.120000"
    assert without_note(first["extra"]) == {
        **{"id": "Qm1", "position": 1, "name": "ada", "marks": ["compressed"]},
        "time": "2026-10-02 09:14:03.120",
    }
    called = steps[3]
    assert called["reasoning_content"].startswith("Weather first")
    assert called["tool_calls"] == [
        {
            **{"tool_call_id": "call_1", "function_name": "weather"},
            "arguments": {"city": "Kyoto", "month": 11},
        }
    ]
    [answer] = called["observation"]["results"]
    assert answer["source_call_id"] == "call_1"
    assert answer["content"].startswith("November in Kyoto")
    assert (answer["extra"]["id"], answer["extra"]["position"]) == ("Qm5", 5)
    [said, image] = steps[5]["message"]
    assert (said["type"], image["source"]["media_type"]) == ("text", "image/jpeg")


def test_atif_calls_in_parallel_and_in_one_message(run: Run, tmp_path: Path) -> None:
    found = exported(
        *(run, tmp_path),
        ("assistant", [text("two"), call("a"), call("b")]),
        ("user", "meanwhile"),
        ("system", [result("b", "B")]),
        ("system", [result("a", [text("A"), text("more")]), text("and said")]),
        ("assistant", [text("x"), call("c"), result("c"), text("y"), call("d"), result("d")]),
        ("assistant", []),
    )
    steps = found["steps"]
    assert [step["message"] for step in steps] == ["two", "meanwhile", "and said", "x", "y", ""]
    results = steps[0]["observation"]["results"]
    assert [(one["source_call_id"], one["content"]) for one in results] == [
        *(("b", "B"), ("a", "A\nmore")),
    ]
    assert [one["source_call_id"] for one in steps[4]["observation"]["results"]] == ["d"]
    assert without_note(steps[3]["extra"]) == steps[4]["extra"]
    assert without_note(found["extra"]) == {
        "user": "ada",
        "path": "agent.memory",
        "summary": "before",
    }
    assert found["trajectory_id"] == "ada/kyoto/agent.memory"


def test_atif_what_has_no_place_is_extra(run: Run, tmp_path: Path) -> None:
    hologram = {"type": "hologram", "depth": 3}
    found = exported(
        *(run, tmp_path),
        ("system", [result("gone", [hologram])]),
        ("user", [call("u"), {"type": "thinking", "thinking": "hm"}]),
        ("system", [result("u")]),
        ("assistant", [call("a", ["no", "object"]), hologram]),
        ("robot", "beep"),
        timestamp="yesterday",
    )
    steps = found["steps"]
    [orphan] = steps[0]["observation"]["results"]
    assert orphan == {
        "content": '{"type":"hologram","depth":3}',
        "extra": {"tool_call_id": "gone", "tool": "look"},
    }
    assert "timestamp" not in steps[0]
    assert steps[0]["extra"]["time"] == "yesterday"
    assert steps[1]["extra"]["reasoning_content"] == "hm"
    assert steps[1]["extra"]["tool_calls"][0]["tool_call_id"] == "u"
    assert steps[2]["observation"]["results"][0]["extra"]["tool_call_id"] == "u"
    [odd] = steps[3]["tool_calls"]
    assert (odd["arguments"], odd["extra"]) == ({}, {"arguments": ["no", "object"]})
    assert steps[3]["extra"]["blocks"] == [hologram]
    assert (steps[4]["source"], steps[4]["extra"]["role"]) == ("system", "robot")


def test_atif_ids_that_come_again_and_calls_without_results(run: Run, tmp_path: Path) -> None:
    turns = [("assistant", [text(f"turn {n}"), call("same")]) for n in range(3)]
    found = exported(
        *(run, tmp_path, turns[0], ("system", [result("same", "0")]), turns[1], turns[2]),
        ("system", [result("same", "2")]),
        ("system", [result("same", "again")]),
    )
    steps = found["steps"]
    assert [step["message"] for step in steps] == ["turn 0", "turn 1", "turn 2", ""]
    contents = [
        [one["content"] for one in step.get("observation", {"results": []})["results"]]
        for step in steps
    ]
    assert contents == [["0"], [], ["2"], ["again"]]


def test_atif_an_id_that_comes_again_belongs_to_the_later_call(run: Run, tmp_path: Path) -> None:
    found = exported(
        *(run, tmp_path),
        ("assistant", [text("x" * 4_000_000), call("same")]),
        ("assistant", [text("y" * 400_000), call("same")]),
        ("system", [result("same")]),
    )
    first, second = found["steps"]
    assert "observation" not in first
    assert second["observation"]["results"][0]["source_call_id"] == "same"


def test_atif_a_result_that_is_far_from_its_call_is_a_step(run: Run, tmp_path: Path) -> None:
    far = [("user", "x" * 1_000_000) for _ in range(6)]
    found = exported(run, tmp_path, ("assistant", [call("a")]), *far, ("system", [result("a")]))
    steps = found["steps"]
    assert len(steps) == 8
    assert "observation" not in steps[0]
    assert steps[-1]["observation"]["results"][0]["extra"]["tool_call_id"] == "a"


def test_atif_everything_that_json_can_be_is_strict_json(run: Run, tmp_path: Path) -> None:
    source, path = tmp_path / "hostile.ndjson", tmp_path / "hostile.jsonl"

    async def work() -> None:
        async with make_store(parse(str(source)), OpenMode.CREATE) as store:
            await write_all(store, list(memories(6)))

    asyncio.run(work())
    assert run("export", source, "--as", "atif", "-o", path).exit_code == 0
    found = trajectories(path.read_bytes().decode())
    assert len(found) == len({one["trajectory_id"] for one in found}) == 6
    expected = {entry.id for one in memories(6) for entry in one.entries}
    extras = [step["extra"] for one in found for step in one["steps"]]
    extras += [
        result["extra"]
        for one in found
        for step in one["steps"]
        for result in step.get("observation", {"results": ()})["results"]
        if "id" in result.get("extra", ())
    ]
    cleaned = {id.encode("utf-8", "replace").decode().replace("?", "\ufffd") for id in expected}
    assert {extra["id"].replace("?", "\ufffd") for extra in extras} == cleaned


def test_atif_numbers_that_json_lacks_are_null(run: Run, tmp_path: Path) -> None:
    given = {"a": [float("nan"), float("-inf"), 10**30], "NaN": 'NaN "Infinity'}
    found = exported(run, tmp_path, ("assistant", [call("a", given)]))
    [called] = found["steps"][0]["tool_calls"]
    assert called["arguments"] == {"a": [None, None, 10**30], "NaN": 'NaN "Infinity'}


def test_atif_of_a_message_nested_too_deep(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "store.ndjson"
    message = samples.message("m", 1, content=[call("a", {"deep": "here"})])
    deep = b"[" * 1000 + b"]" * 1000
    entry = StoredMessage("m", message.replace(b'"here"', deep))
    asyncio.run(fill(str(path), {KEY: [entry]}))
    done = run("export", path, "--as", "atif")
    if done.exit_code:  # some versions of Python write it
        fails(done, 8, "nested too deep", "archive")


def test_atif_several_memories_are_lines(run: Run, filled: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    assert run("export", filled, "--as", "atif", "-o", path).exit_code == 0
    found = trajectories(path.read_text())
    assert sorted(len(one["steps"]) for one in found) == [10, 20, 30, 40]
    one = tmp_path / "a.json"
    fails(
        *(run("export", filled, "--as", "atif", "-o", one), 2),
        *("a JSON file (trajectory) holds one memory", "NAME.jsonl"),
    )
    fails(run("export", filled, "--as", "atif", "-o", one, "--mark", "none"), 4, "no memory")
    assert not one.exists()
    fails(run("export", filled, "--as", "atif", "-o", tmp_path / "a.txt"), 2, "NAME.jsonl")
    rotated = ("-o", tmp_path / "nights.jsonl", "--rotate", "last:1")
    assert run("export", filled, "--as", "atif", *rotated).exit_code == 0
    about = report(run("export", filled, "--as", "atif", "-o", path, "--force", "-n", "--json"))
    assert (about["as"], about["memories"]["written"]) == ("atif", 4)


def test_atif_memory_without_messages_is_left_out(run: Run, tmp_path: Path) -> None:
    source, path = tmp_path / "store.ndjson", tmp_path / "a.jsonl"
    asyncio.run(fill(str(source), {KEY: [], MemoryKey("b", "two"): samples.entries(2)}))
    done = run("export", source, "--as", "atif", "-o", path)
    assert "1 memory without messages left out" in done.stderr
    assert [one["session_id"] for one in trajectories(path.read_text())] == ["two"]
    about = report(run("export", source, "--as", "atif", "-o", path, "--force", "--json"))
    assert (about["memories"]["written"], about["memories"]["skipped"]) == (1, 1)


@pytest.mark.parametrize("options", [[], ["--dry-run"]])
def test_atif_facts_have_none(run: Run, tmp_path: Path, options: list[str]) -> None:
    fails(run("export", facts(tmp_path), "--as", "atif", *options), 2, "have no trajectory")
