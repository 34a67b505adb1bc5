"""The output of ``memctl search`` and ``memctl index``, and their exit codes."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from memctl.model import MemoryKey
from tests.embedders.test_onnx import write_model
from tests.search.finding import ADA, index_files, make, settled, talk
from tests.support.cli import Run, contents, fails, fill, report
from tests.support.histories import entry, said
from tests.support.schemas import check_row

BOB = MemoryKey("bob", "b-1")
TEXTS = ("a violet umbrella", "the kettle is blue", "the umbrella stand", "good night")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with two users."""
    return make(tmp_path / "a.db", {ADA: TEXTS, BOB: ["an umbrella for bob"]})


def test_search_prints_where_who_and_what(run: Run, store: Path) -> None:
    done = run("search", store, "violet umbrella", "--top", "1")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0] == "1. ada / a-1 #1  Alice (user)  2025-03-01 12:00"
    assert lines[1].strip() == "a violet umbrella"
    assert lines[-1] == "1 of 3 hits in 5 messages"
    assert run("search", store, "kettle").stdout.splitlines()[-1] == "1 hit in 5 messages"


def test_search_reports_as_json(run: Run, store: Path) -> None:
    found = report(run("search", store, "umbrella user:ada", "--json"))
    assert found["query"] == "umbrella user:ada"
    assert (found["by"], found["stores"]) == ("words", [str(store)])
    assert found["index"]["messages"] == found["index"]["new"] == 5
    hit = found["hits"][0]
    assert (hit["user"], hit["session"], hit["position"], hit["role"]) == ("ada", "a-1", 3, "user")
    assert "umbrella" in hit["snippet"]
    assert hit["words"] is True
    assert (found["found"], found["complete"]) == (2, True)
    scores = [one["score"] for one in found["hits"]]
    assert scores == sorted(scores, reverse=True)
    assert "before" not in hit


def test_search_reports_rows(run: Run, store: Path) -> None:
    done = run("search", store, "umbrella", "--format", "ndjson")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {"m0", "m2"} <= {row["id"] for row in rows}
    for row in rows:
        check_row("search", row)
    done = run("search", store, "umbrella", "--format", "csv")
    assert [row["id"] for row in csv.DictReader(io.StringIO(done.stdout))] == [
        row["id"] for row in rows
    ]


def test_search_shows_the_messages_around(run: Run, store: Path) -> None:
    found = report(run("search", store, '"kettle"', "--around", "2", "--json"))
    [hit] = found["hits"]
    assert [one["position"] for one in hit["before"]] == [1]
    assert [one["text"] for one in hit["after"]] == ["the umbrella stand", "good night"]
    shown = run("search", store, '"kettle"', "--around", "1").stdout
    assert "#1 Alice (user): a violet umbrella" in shown
    assert "#3" in shown
    assert "good night" not in shown


@pytest.mark.slow
def test_search_hits_have_a_word_of_the_query_in_themselves(run: Run, tmp_path: Path) -> None:
    friday = MemoryKey("kyoto", "kyoto")
    texts = ["we fly to Kyoto", "great", "which hotel?", "no idea", "in May 2024 I may know"]
    path = make(tmp_path / "a.db", {friday: texts, BOB: [f"nothing {n}" for n in range(50)]})
    assert run("search", path, "kyoto", "--ids").stdout == "m0\n"
    assert run("search", path, "Alice", "--ids").stdout == ""  # the sender
    assert run("search", path, "kyoto March 2025", "--ids").stdout == "m0\n"  # and the day
    assert run("search", path, '"March 2025"', "--ids").stdout == ""
    shown = run("search", path, "nothing", "--top", "3").stdout
    assert shown.splitlines()[-1] == "3 of 50 hits in 55 messages"
    done = run("search", path, "nothing", "--top", "3", "--ids")
    assert len(done.stdout.split()) == 3
    assert "3 of 50 hits: --top N takes more than 3" in done.stderr


def test_search_of_a_large_store_says_that_there_may_be_more_hits(run: Run, tmp_path: Path) -> None:
    sessions = {MemoryKey("ada", f"s{n}"): ["umbrella", "violet"] for n in range(60)}
    path = make(tmp_path / "a.db", sessions)
    shown = run("search", path, "umbrella", "--top", "3").stdout
    assert shown.splitlines()[-1] == "3 of at least 32 hits in 120 messages"
    found = report(run("search", path, "umbrella", "--top", "100", "--json"))
    assert (len(found["hits"]), found["found"], found["complete"]) == (60, 60, True)


def test_search_ranks_what_people_say_before_the_output_of_tools(run: Run, tmp_path: Path) -> None:
    result = {"type": "tool_result", "id": "c", "name": "look", "output": "kyoto " * 9}
    call = {"type": "tool_use", "id": "c", "name": "look", "input": {}}
    talk = [
        entry(said("call", [call], "assistant")),
        entry(said("result", [result], "system")),
        entry(said("asked", "a hotel in kyoto, please")),
    ]
    path = tmp_path / "a.db"
    asyncio.run(fill(str(path), {ADA: talk}))
    assert run("search", path, "kyoto", "--ids").stdout.split() == ["asked", "result"]


def test_search_ids_go_on_to_delete_and_mark(run: Run, store: Path) -> None:
    done = run("search", store, '"umbrella stand"', "--ids")
    assert done.stdout == "m2\n"
    ids = [word for id in done.stdout.split() for word in ("--id", id)]
    assert run("mark", "add", store, "found", *ids).exit_code == 0
    assert run("delete", store, "--user", "ada", *ids, "--yes").exit_code == 0
    assert [entry.id for entry in contents(str(store))[ADA]] == ["m0", "m1", "m3"]


def test_search_ids_with_control_characters_are_one_line_each(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "odd.db"
    odd = ["two\nlines", "\x1b[31mred"]
    texts = [entry(said(id, f"umbrella {number}")) for number, id in enumerate(odd)]
    asyncio.run(fill(str(path), {ADA: [*texts, entry(said("plain", "an umbrella"))]}))
    lines = run("search", path, "umbrella", "--ids").stdout.splitlines()
    assert sorted(lines) == ["\\x1b[31mred", "plain", "two\\nlines"]
    found = report(run("search", path, "umbrella", "--json"))
    assert {hit["id"] for hit in found["hits"]} == {*odd, "plain"}


def test_search_takes_several_stores(run: Run, store: Path, tmp_path: Path) -> None:
    other = tmp_path / "b.ndjson"
    asyncio.run(fill(str(other), {BOB: talk(["nobody has an umbrella here"])}))
    found = report(run("search", store, other, "umbrella", "--json"))
    assert found["stores"] == [str(store), str(other)]
    assert {hit["store"] for hit in found["hits"]} == {str(store), str(other)}
    assert found["index"]["messages"] == 6
    shown = run("search", store, other, "umbrella").stdout
    assert f"  {other}  " in shown or f". {other}  " in shown


def test_search_selects(run: Run, store: Path) -> None:
    def ids(*options: str) -> list[str]:
        return run("search", store, "umbrella", "--ids", *options).stdout.split()

    assert set(ids("--role", "assistant")) <= {"m1", "m3"}
    assert ids("--user", "bob") == ["m0"]
    assert ids("--user", "ada", "--id", "m2") == ["m2"]
    assert ids("--match", "violet") == ["m0"]
    assert ids("--user", "ada", "--last", "2")[0] == "m2"
    assert ids("--since", "2026-01-01") == []
    assert ids("--until", "2026-01-01", "--user", "ada", "--name", "Alice")[0] in ("m0", "m2")


@pytest.mark.slow
def test_search_of_an_archive_from_stdin_keeps_nothing(run: Run, store: Path) -> None:
    archive = store.with_name("a.ndjson")
    assert run("export", store, "-o", archive).exit_code == 0
    command = [sys.executable, "-m", "memctl", "search", "-", "violet", "--ids"]
    with archive.open("rb") as stream:
        done = subprocess.run(command, stdin=stream, capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()[:1]) == (0, ["m0"])
    assert index_files() == []


def test_search_that_finds_nothing_says_so(run: Run, store: Path) -> None:
    done = run("search", store, "zeppelin")
    assert (done.exit_code, done.stdout) == (0, "No message answers the query.\n")
    assert report(run("search", store, "zeppelin", "--json"))["hits"] == []
    assert run("search", store, "zeppelin", "--ids").stdout == ""


def test_search_of_a_user_who_is_not_there_is_an_error(run: Run, store: Path) -> None:
    fails(run("search", store, "umbrella", "--user", "carol"), 4, "no memory of 'carol'")
    assert run("search", store, "zeppelin", "--user", "ada").exit_code == 0


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["umbrella"], 2, "a search needs a store and a query"),
        (["STORE", ""], 2, "no words to look for"),
        (["--", "STORE", "-umbrella"], 2, "no words to look for"),
        (["STORE", "umbrella", "--by", "meaning"], 2, "needs an embedder"),
        (["STORE", "umbrella", "--embedder", "x"], 2, "--embedder is not used"),
        (["STORE", "umbrella", "--by", "service"], 2, "no service that searches texts"),
        (["STORE", "umbrella", "--ids", "--json"], 2, "--ids and --format json"),
        (["STORE", "umbrella", "--top", "0"], 2, "--top"),
        (["nowhere.db", "umbrella"], 4, "does not exist"),
        (["STORE", "umbrella -user:ada"], 2, "cannot exclude a user"),
    ],
)
def test_search_refuses(run: Run, store: Path, words: list[str], code: int, said: str) -> None:
    fails(run("search", *(str(store) if one == "STORE" else one for one in words)), code, said)


@pytest.mark.parametrize(
    ("words", "stores"),
    [
        ("a.db violet umbrella", 1),
        ("a.db user:ada violet", 1),
        ("a.db b.db kettle blue", 2),
        ("other a.db blue", 2),
        ("a.db other kettle b.db", 2),
        ("a.db other", 1),
    ],
)
def test_search_query_begins_where_the_stores_end(
    run: Run, store: Path, write: Path, monkeypatch: pytest.MonkeyPatch, words: str, stores: int
) -> None:
    monkeypatch.chdir(store.parent)
    write.write_text('[stores.other]\nurl = "b.db"\n')
    assert run("migrate", store, "b.db").exit_code == 0
    given = words.split()
    found = report(run("search", *given, "--json"))
    assert found["stores"] == ["b.db" if one == "other" else one for one in given[:stores]]
    assert found["query"] == " ".join(given[stores:])


def test_search_first_word_is_a_store(run: Run, store: Path) -> None:
    hint = "the stores come before the query"
    fails(run("search", "violet", store), 2, "there is no store named 'violet'", hint)
    fails(run("search", store, "missing/a.db", "violet"), 4, "missing/a.db does not exist")
    fails(run("search", store), 2, "a search needs a store and a query")


def test_search_without_a_hit_guesses(run: Run, store: Path) -> None:
    done = run("search", store, "umbrela", "kettel", "zebra")
    assert "no message has the word 'umbrela': did you mean 'umbrella'?" in done.stderr
    assert "no message has the word 'kettel': did you mean 'kettle'?" in done.stderr
    assert "zebra" not in done.stderr
    assert "did you mean" not in run("search", store, "umbrela", "kettle").stderr
    fails(run("search", store, "kettle", "--user", "adda"), 4, "did you mean 'ada'?")


@pytest.mark.slow
def test_search_without_a_folder_for_its_index_reads_all(
    run: Run, store: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    done = run("search", store, "umbrella", "--json")
    assert len(report(done)["hits"]) == 3
    assert "cannot make" in done.stderr
    assert "no index is kept, and each search reads all messages" in done.stderr
    fails(run("index", "update", store), 3, "cannot make", "or search with --no-index")
    assert "There are no indexes." in run("index", "list").stdout
    assert run("search", store, "umbrella", "--no-index").stderr == ""


@pytest.mark.slow
@pytest.mark.parametrize("room", [0, 4096, 50_000])
def test_index_on_a_full_disk_leaves_nothing_behind(run: Run, store: Path, room: int) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))

    command = [sys.executable, "-m", "memctl", "search", store, "umbrella"]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=limit)
    assert done.returncode == 3, done.stderr
    error, hint = done.stderr.splitlines()
    assert error.startswith("memctl: error:")
    assert hint.endswith("or search with --no-index")
    assert list((Path(os.environ["XDG_CACHE_HOME"]) / "memctl" / "index").iterdir()) == []
    assert report(run("search", store, "umbrella", "--json"))["index"]["new"] == 5


def test_search_shows_control_characters(run: Run, tmp_path: Path) -> None:
    path = make(tmp_path / "a.db", {ADA: ["umbrella \x1b[31m red \x07 \x01\x02 end", "[bold]x"]})
    shown = run("search", path, "umbrella", "--around", "1", "--color", "always").stdout
    assert "\x1b[31m" not in shown
    assert "\\x1b[31m" in shown
    assert "[bold]x" in shown
    found = run("search", path, "umbrella", "--json").stdout
    assert "\x1b" not in found


@pytest.mark.slow
def test_search_imports_no_driver_when_nothing_changed(store: Path) -> None:
    settled(store)
    program = (
        "import sys; sys.argv = ['memctl', 'search', sys.argv[1], 'umbrella'];"
        "from memctl.__main__ import main\n"
        "try: main()\n"
        "finally: sys.stderr.write(repr('aiosqlite' in sys.modules))"
    )
    for expected in ("True", "False"):
        done = subprocess.run(
            [sys.executable, "-c", program, store], capture_output=True, text=True
        )
        assert "violet umbrella" in done.stdout
        assert done.stderr.endswith(expected)


@pytest.fixture
def embedder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration with a model that knows three words."""
    folder = tmp_path / "three-words"
    folder.mkdir()
    model = write_model(folder)
    config = tmp_path / "config.toml"
    config.write_text(f'[embedders.local]\nkind = "onnx"\npath = "{model}"\n')
    monkeypatch.setenv("MEMCTL_CONFIG", str(config))
    return config


@pytest.mark.slow
@pytest.mark.usefixtures("embedder")
def test_search_by_meaning_finds_the_nearest(run: Run, tmp_path: Path) -> None:
    sessions = {
        ADA: ["tea " * 9],
        BOB: ["likes " * 9],
        MemoryKey("c", "c-1"): ["ada likes tea"],
    }
    path = make(tmp_path / "a.db", sessions)
    found = report(run("search", path, "tea", "--by", "meaning", "--json"))
    assert found["hits"][0]["user"] == "ada"
    assert len(found["hits"]) == 3  # everything means something
    assert len({hit["score"] for hit in found["hits"]}) == 3
    assert {hit["user"] for hit in found["hits"] if hit["words"]} == {"ada", "c"}
    assert "found" not in found
    shown = run("search", path, "tea", "--by", "meaning").stdout
    assert [line for line in shown.splitlines() if line.endswith("none of the words")] == [
        line for line in shown.splitlines() if " bob / " in line
    ]
    done = run("search", path, "ada likes", "--by", "both", "--user", "ada", "--ids")
    assert done.stdout == ""  # --ids is for what holds the words
    assert "left out 1 hit with none of the words of the query" in done.stderr
    both = report(run("search", path, "tea", "--by", "both", "--embedder", "local", "--json"))
    assert both["hits"][0]["user"] == "ada"
    assert both["index"]["new"] == 0
    said = run("search", path, "tea", "--by", "both", "--verbose").stderr
    assert "made" not in said  # the vectors are kept
    [row] = report(run("index", "list", "--json"))["indexes"]
    assert row["model"] == "three-words"
    without = report(run("search", path, "tea -likes", "--by", "meaning", "--json"))
    assert [hit["user"] for hit in without["hits"]] == ["ada"]


@pytest.mark.usefixtures("embedder")
def test_search_by_meaning_embeds_what_is_new(run: Run, store: Path) -> None:
    assert run("index", "update", store, "--embedder", "local").exit_code == 0
    asyncio.run(fill(str(store), {MemoryKey("c", "c-1"): talk(["ada likes tea"])}))
    found = report(run("search", store, "tea", "--by", "meaning", "--top", "1", "--json"))
    assert found["hits"][0]["user"] == "c"


def test_index_is_listed_updated_and_removed(run: Run, store: Path) -> None:
    assert report(run("index", "list", "--json"))["indexes"] == []
    assert "There are no indexes." in run("index", "list").stdout
    updated = report(run("index", "update", store, "--json"))["updated"]
    assert (updated[0]["store"], updated[0]["messages"], updated[0]["new"]) == (str(store), 5, 5)
    [row] = report(run("index", "list", "--json"))["indexes"]
    assert (row["store"], row["memories"], row["messages"]) == (str(store), 2, 5)
    assert str(store) in run("index", "list").stdout
    fails(run("index", "remove"), 2, "name the stores, or all of them")
    fails(run("index", "remove", "other.db"), 4, "there is no index of other.db")
    assert run("index", "remove", store).exit_code == 0
    assert index_files() == []
    run("search", store, "umbrella")
    assert run("index", "remove", f"sqlite:///{store}").exit_code == 0
    run("search", store, "umbrella")
    assert run("index", "remove", "--all").exit_code == 0
    assert index_files() == []


def test_index_of_a_file_that_is_gone_goes_with_the_next_one(
    run: Run, store: Path, tmp_path: Path
) -> None:
    run("search", store, "umbrella")
    store.unlink()
    other = make(tmp_path / "b.db", {ADA: TEXTS})
    run("search", other, "umbrella")
    [row] = report(run("index", "list", "--json"))["indexes"]
    assert row["store"] == str(other)


def test_index_of_a_file_with_a_name_that_is_no_text(run: Run, tmp_path: Path) -> None:
    path = make(tmp_path / "a.db", {ADA: TEXTS}).rename(tmp_path / "caf\udce9.db")
    assert report(run("search", path, "umbrella", "--json"))["hits"]
    assert report(run("search", path, "umbrella", "--json"))["index"]["new"] == 0
    assert report(run("inspect", path, "--json"))["totals"]["messages"] == len(TEXTS)
    assert run("index", "remove", path).exit_code == 0


def test_index_that_is_damaged_is_listed_and_removed(run: Run, store: Path) -> None:
    run("search", store, "umbrella")
    index_files()[0].write_bytes(b"not an index")
    [row] = report(run("index", "list", "--json"))["indexes"]
    assert row["store"] == ""
    assert "(damaged)" in run("index", "list").stdout
    assert run("index", "remove", "--all").exit_code == 0
    assert index_files() == []


def test_search_is_an_operation_of_the_library(store: Path) -> None:
    import memctl

    report = asyncio.run(memctl.search([str(store)], "violet", top=1))
    assert isinstance(report, memctl.SearchReport)
    [hit] = report.hits
    assert (hit.key, hit.id, hit.snippet[hit.spans[0][0] : hit.spans[0][1]]) == (
        ADA,
        "m0",
        "violet",
    )
