"""``memctl report``: the page and the numbers of what is in a store."""

from __future__ import annotations

import asyncio
import html
import json
import re
import signal
import sqlite3
from collections import Counter
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from memctl.dialects.fact import FACT, build
from memctl.model import MemoryKey, StoredMessage
from memctl.registry import make_store, parse
from memctl.store import OpenMode
from memctl.testing.drive import write_all
from memctl.testing.samples import sample
from tests.stores.test_sql_damage import DAMAGE, make_good
from tests.support.cli import FRIDAY, Run, fails, fill, report
from tests.support.histories import ASK, HEALTHY, REPLY, Marked, call, entries, said
from tests.support.processes import start, wait_until, wait_until_it_waits

ADA, BOB = MemoryKey("ada <b>", "kyoto"), MemoryKey("bob-the-user", "invoice-7")
NOW = datetime.now()


def aged(messages: list[Marked], days: int) -> list[StoredMessage]:
    """Return the messages as if the last were so many days old, each a minute after the other."""
    for number, (message, _) in enumerate(reversed(messages)):
        at = NOW - timedelta(days=days, minutes=number)
        message["timestamp"] = at.isoformat(" ", "milliseconds")
    return entries([(dict(message), marks) for message, marks in messages])


@pytest.fixture
def talks(database: str) -> str:
    """A SQLite database of two users: one with tools, one with marks, findings and old messages."""
    hint = said("h", "do it", "user", ("hint",))
    old = said("c", "long ago 会话", "user", ("compressed", "kept"))
    broken = [old, ASK, call("lost", "t9"), hint, said("big", "x" * 5000), REPLY]
    asyncio.run(fill(database, {ADA: aged(HEALTHY, 3), BOB: aged(broken, 40)}))
    return database


@pytest.mark.slow
def test_report_has_the_numbers_of_the_other_commands(run: Run, talks: str) -> None:
    found = report(run("report", talks, "--json"))
    totals = report(run("inspect", talks, "--json"))["totals"]
    assert {name: found["totals"][name] for name in totals} == totals

    def groups(by: str) -> dict[str, int]:
        rows = report(run("inspect", talks, "--by", by, "--json"))["groups"]
        return {row[by]: row["messages"] for row in rows}

    assert {one["day"]: one["user"] + one["assistant"] + one["other"] for one in found["days"]} == (
        groups("day")
    )
    assert found["totals"]["marks"] == groups("mark")
    assert found["totals"]["roles"] == groups("role")
    assert {row["user"]: row["messages"] for row in found["by_user"]} == groups("user")
    sent = {
        key.user: report(
            run("context", talks, "--user", key.user, "--session", key.session, "--json")
        )["tokens"]["total"]
        for key in (ADA, BOB)
    }
    assert {row["user"]: row["tokens"] for row in found["by_user"]} == sent
    assert {row["user"]: row["tokens"] for row in found["contexts"]["largest"]} == sent
    assert found["tokens"]["sent"] == sum(found["tokens"]["by_kind"].values()) == sum(sent.values())
    checked = report(run("doctor", talks, "--json"), 6)["findings"]
    counts: Counter[str] = Counter()
    for one in checked:
        counts[one["code"]] += one["count"]
    assert {row["code"]: row["count"] for row in found["findings"]} == counts
    texts = {one["code"]: (one["severity"], one["meaning"], one["remedy"]) for one in checked}
    assert {
        row["code"]: (row["severity"], row["meaning"], row["remedy"]) for row in found["findings"]
    } == texts


def test_report_says_what_fills_contexts(run: Run, talks: str) -> None:
    found = report(run("report", talks, "--json", "--top", 1, "--context-limit", 200))
    [tool] = found["tools"]
    assert (tool["name"], tool["calls"], tool["results"], tool["largest"]) == ("search", 4, 3, 9)
    kinds = found["tokens"]["by_kind"]
    assert kinds["results"] > tool["tokens"] > 0
    assert kinds["calls"] > 0
    assert kinds["summary"] == kinds["system"] == 0
    assert found["tokens"]["stored"] > found["tokens"]["sent"]
    contexts = found["contexts"]
    [largest] = contexts["largest"]
    assert largest["user"] == BOB.user
    assert (contexts["limit"], contexts["over_limit"]) == (200, 1)
    assert contexts["percentile95"] == largest["tokens"] > contexts["median"]
    assert sum(one["count"] for one in contexts["bins"]) == 2
    [big] = found["sizes"]["largest"]
    assert (big["id"], big["role"], big["session"]) == ("big", "assistant", BOB.session)
    assert sum(one["count"] for one in found["sizes"]["bins"]) == found["totals"]["messages"]


def test_report_says_how_old_messages_are(run: Run, database: str) -> None:
    odd = [said("early", "x"), said("none", "y"), said("late", "z"), said("noon", "n")]
    days = ("1999-12-31 12:00:00", "yesterday", f"{NOW + timedelta(days=3)}", "2026-01-05T12:30:00")
    for (message, _), day in zip(odd, days, strict=True):
        message["timestamp"] = day
    memories = {
        ADA: aged(HEALTHY, 3),
        BOB: aged([ASK, REPLY], 40),
        BOB._replace(session="o"): (entries(odd)),
    }
    asyncio.run(fill(database, memories))
    found = report(run("report", database, "--json"))
    ages = {row["days"]: row["messages"] for row in found["ages"]}
    assert (ages[7], ages[30], ages[90]) == (9, 0, 2)
    assert (found["totals"]["without_time"], found["totals"]["odd_times"]) == (1, 2)
    drawn = found["totals"]["messages"] - 3
    assert sum(one["user"] + one["assistant"] + one["other"] for one in found["days"]) == drawn
    assert sum(map(sum, found["hours"])) == drawn
    assert found["hours"][0][12] >= 1  # a Monday
    assert found["idle"][0]["session"] == BOB.session


def test_report_results_have_the_names_of_their_calls(run: Run, tmp_path: Path) -> None:
    items = [
        {"type": "function_call", "call_id": "1", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "sunny " * 9},
    ]
    path = tmp_path / "s.db"
    with closing(sqlite3.connect(path)) as database, database:
        database.executescript(
            "CREATE TABLE agent_sessions (session_id TEXT PRIMARY KEY, created_at, updated_at);"
            "CREATE TABLE agent_messages (id INTEGER PRIMARY KEY, session_id TEXT, "
            "message_data TEXT, created_at TIMESTAMP);"
            "INSERT INTO agent_sessions VALUES ('s', NULL, NULL)"
        )
        database.executemany(
            "INSERT INTO agent_messages VALUES (NULL, 's', ?, NULL)",
            [(json.dumps(item),) for item in items],
        )
    [tool] = report(run("report", path, "--json"))["tools"]
    assert (tool["name"], tool["calls"], tool["results"], tool["largest"]) == ("weather", 1, 1, 54)


def test_report_counts_tokens_as_the_summarizer_does(
    run: Run, tmp_path: Path, talks: str, write: Path
) -> None:
    words = Tokenizer(WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    words.pre_tokenizer = Whitespace()
    tokenizer = tmp_path / "tokenizer.json"
    words.save(str(tokenizer))
    write.write_text(
        f'[summarizers.exact]\nkind = "openai"\nmodel = "m"\ntokenizer = "{tokenizer}"\n'
    )
    found = report(run("report", talks, "--json", "--summarizer", "exact"))
    one = report(
        run(
            "context",
            talks,
            "--user",
            BOB.user,
            "--session",
            BOB.session,
            "--summarizer",
            "exact",
            "--json",
        )
    )
    assert found["by_user"][1]["tokens"] == one["tokens"]["total"]
    assert found["tokens"]["counted_by"] == str(tokenizer)


def test_report_page_is_a_new_private_file(run: Run, tmp_path: Path, talks: str) -> None:
    page = tmp_path / "r.html"
    done = run("report", talks, "-o", page, "--title", "Our <agents>")
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr == f"memctl: 14 messages reported in {page}\n"
    assert page.stat().st_mode & 0o777 == 0o600
    text = page.read_text()
    assert "<title>Our &lt;agents&gt;</title>" in text
    assert "ada &lt;b&gt;" in text
    assert "x" * 100 not in text
    fails(run("report", talks, "-o", page), 2, "exists", "--force")
    page.write_text("old")
    page.chmod(0o640)
    assert (
        report(run("report", talks, "-o", page, "--force", "--json"))["title"] == Path(talks).name
    )
    assert page.read_text() != "old"
    assert page.stat().st_mode & 0o777 == 0o640
    assert run("report", talks, "--title", "Our <agents>").stdout.startswith("<!doctype html>")


def test_report_counts_for_the_metrics(run: Run, tmp_path: Path, talks: str) -> None:
    metrics = tmp_path / "memctl.prom"
    run("--metrics-file", metrics, "report", talks, "-o", tmp_path / "r.html")
    lines = [line.rpartition("{")[0::2] for line in metrics.read_text().splitlines()]
    found = Counter(name for name, _ in lines if name)
    assert found["memctl_users"] == found["memctl_tokens_sent"] == found["memctl_damaged"] == 1
    assert found["memctl_findings"] == 3


def test_report_refuses_what_it_cannot_write(run: Run, tmp_path: Path, talks: str) -> None:
    store = tmp_path / "agents.db"
    before = store.read_bytes()
    fails(run("report", talks, "-o", store, "--force"), 2, "is the store")
    fails(run("report", talks, "-o", tmp_path, "--force"), 2, "is a folder")
    fails(run("report", talks, "-o", tmp_path / "no" / "r.html"), 2, "does not exist")
    for form in ("csv", "ndjson"):
        fails(run("report", talks, "--format", form), 2, "inspect STORE --by")
    fails(run("report", talks, "--summarizer", "unknown"), 2, "unknown")
    fails(run("report", tmp_path / "none.db", "-o", tmp_path / "r.html"), 4)
    fails(run("report", talks, "--user", "nobody", "-o", tmp_path / "r.html"), 4, "nobody")
    assert store.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["agents.db"]


@pytest.mark.slow
def test_report_of_selected_messages_has_no_findings(run: Run, talks: str) -> None:
    chosen = report(run("report", talks, "--json", "--role", "user", "--newer-than", "30d"))
    assert chosen["totals"]["messages"] == chosen["totals"]["roles"]["user"] == 1
    assert chosen["selection"].startswith("role user; since 2")
    assert "findings" not in chosen
    assert "findings" not in report(run("report", talks, "--json", "--no-findings"))
    of_bob = report(run("report", talks, "--json", "--user", BOB.user))
    assert of_bob["selection"] == "user bob-the-user"
    assert {row["code"] for row in of_bob["findings"]} >= {"tool-call-without-result"}
    page = run("report", talks, "--role", "user").stdout
    assert "Findings were left out" in page
    whole = "Tokens that an agent sends", "A rule of 30 days"  # what selected messages do not tell
    assert not any(text in page for text in whole)
    assert all(text in run("report", talks).stdout for text in whole)


def test_report_page_counts_findings_as_doctor_does(run: Run, talks: str) -> None:
    errors = re.search(r"has (\d+ errors?) and (\d+ warnings?)", run("doctor", talks).stderr)
    assert errors is not None
    assert " · ".join(errors.groups()) in run("report", talks).stdout


@pytest.mark.parametrize("options", [(), ("--no-findings",)])
def test_report_names_damaged_memories(run: Run, tmp_path: Path, options: tuple[str, ...]) -> None:
    path = make_good(tmp_path / "agents.db")
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(DAMAGE["message list"])
    page = tmp_path / "r.html"
    fate = "left out" if options else "not read as a whole"
    fails(run("report", path, "-o", page, *options), 7, f"'alice'/'s1' is damaged and {fate}")
    assert "1 memory could not be read" in page.read_text()
    [damaged] = report(run("report", path, "--json", *options), 7)["damaged"]
    assert (damaged["user"], damaged["session"]) == ("alice", "s1")
    found = report(run("report", path, "--json", "--pseudonyms", *options), 7)
    assert "alice" not in json.dumps(found)


def names_of(run: Run, store: str) -> list[str]:
    rows = report(run("inspect", store, "--json"))["memories"]
    return [name for row in rows for name in (row["user"], row["session"])]


def test_report_with_pseudonyms_has_no_names(run: Run, tmp_path: Path, talks: str) -> None:
    run("mark", "add", talks, "--user", BOB.user, "seen")
    page = tmp_path / "r.html"
    words = ("report", talks, "--pseudonyms", "--user", ADA.user, "--user", BOB.user)
    found = run(*words, "-o", page, "--json")
    told = report(found)
    assert [row["user"] for row in told["by_user"]] == ["user 1", "user 2"]
    assert [row["session"] for row in told["contexts"]["largest"]] == ["session 1", "session 2"]
    assert told["selection"] == "2 users"
    assert len(told["runs"]) == 1
    for name in [*names_of(run, talks), "ada &lt;b&gt;", "agents.db", "Alice"]:
        assert name not in found.stdout
        assert name not in page.read_text()


@pytest.mark.parametrize(
    ("options", "again"),
    [
        ((), "{0}"),
        (("--user", BOB.user, "--top", 3), f"{{0}} --user={BOB.user} --top=3"),
        (("--title", "-rf $(x)", "--no-findings"), "{0} '--title=-rf $(x)' --no-findings"),
        (("--pseudonyms", "--context-limit", 9), "STORE --context-limit=9 --pseudonyms"),
        (("--pseudonyms", "--user", BOB.user), None),
        (("--newer-than", "90d"), None),
    ],
)
def test_report_says_how_to_write_it_again(
    run: Run, tmp_path: Path, talks: str, options: tuple[str, ...], again: str | None
) -> None:
    """With the same options; it says nothing if the command would write something else."""
    page = tmp_path / "r.html"
    assert run("report", talks, "-o", page, *options).exit_code == 0
    found = re.search(r"Write it again: <code[^>]*>(.*?)</code>", page.read_text())
    said = None if found is None else html.unescape(found[1])
    command = again and f"memctl report {again.format(talks)} -o report.html --force"
    assert said == command


def test_report_with_pseudonyms_has_no_names_of_warnings(run: Run, tmp_path: Path) -> None:
    (tmp_path / "ada_b_trip.json").write_bytes(FRIDAY.read_bytes())
    found = run("report", tmp_path, "--pseudonyms", "--json")
    assert "'b_trip' of user 'ada'" in found.stderr
    assert report(found)["warnings"] == []
    assert "trip" not in found.stdout


@pytest.mark.slow
def test_report_lists_the_last_runs_on_the_store(run: Run, talks: str) -> None:
    for number in range(11):
        run("mark", "add", "--all", talks, f"m{number}")
    listed = report(run("history", talks, "--limit", 10, "--json"))["runs"]
    assert report(run("report", talks, "--json"))["runs"] == listed


@pytest.fixture
def facts(tmp_path: Path) -> Path:
    """An archive of four facts in two scopes."""
    texts = ("likes tea", "likes tea", "is 40", "speaks 日本語")
    dates: tuple[Any, ...] = ("2020-01-31", "2999-01-01", None, 5)
    found = [
        StoredMessage(
            f"f{n}",
            build(
                {"id": f"f{n}", "text": text, "created_at": f"{NOW - timedelta(days=n)}"}
                | {"metadata": {"topic": "x"} | ({"expiration_date": date} if date else {})}
            ),
        )
        for n, (text, date) in enumerate(zip(texts, dates, strict=True))
    ]
    path = tmp_path / "facts.ndjson"

    async def make() -> None:
        async with make_store(parse(str(path)), OpenMode.CREATE) as store:
            store.adopt(FACT)
            await write_all(store, [sample(ADA, found[:3]), sample(BOB, found[3:])])

    asyncio.run(make())
    return path


def test_report_of_facts(run: Run, facts: Path) -> None:
    found = report(run("report", facts, "--json"))
    assert found["noun"] == "fact"
    assert found["facts"] == {
        "owners": [
            {"user": ADA.user, "session": ADA.session, "facts": 3},
            {"user": BOB.user, "session": BOB.session, "facts": 1},
        ],
        "lengths": [{"low": 4, "high": 8, "count": 1}, {"low": 8, "high": 16, "count": 3}],
        "metadata": {"topic": 4, "expiration_date": 3},
        "expiring": 2,
        "expired": 1,
    }
    assert sum(day["other"] for day in found["days"]) == 4
    assert {row["code"] for row in found["findings"]} == {"duplicate-fact"}
    assert not found.keys() & {"tokens", "contexts", "tools", "hours"}
    assert "<title>" in run("report", facts).stdout


def test_report_of_an_empty_store(run: Run, database: str) -> None:
    asyncio.run(fill(database, {}))
    found = report(run("report", database, "--json"))
    assert found["totals"]["messages"] == found["tokens"]["sent"] == 0
    assert (found["days"], found["contexts"]["bins"], found["damaged"]) == ([], [], [])
    page = run("report", database).stdout
    assert "This store has no messages." in page
    assert "healthy" not in page


def test_report_of_stdin(run: Run) -> None:
    found = report(run("report", "-", "--json", input=FRIDAY.read_bytes()))
    assert found["totals"]["messages"] > 0
    assert (found["title"], found["runs"]) == ("stdin", [])


def test_report_that_is_stopped_leaves_no_file(tmp_path: Path, talks: str) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    with closing(sqlite3.connect(tmp_path / "agents.db", isolation_level=None)) as database:
        database.execute("BEGIN EXCLUSIVE")
        with start("report", talks, "-o", folder / "r.html") as process:
            wait_until(lambda: any(folder.iterdir()))
            wait_until_it_waits(process.pid)
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=15)
    assert process.returncode == 143
    assert list(folder.iterdir()) == []


def test_report_says_what_changed_since_the_last(run: Run, talks: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    words = ("report", talks, "-o", page, "--force", "--since-last", page)
    first = run(*words)
    assert "there is no last report" in first.stderr
    assert run("delete", talks, "--mark", "hint", "--yes").exit_code == 0
    numbers = report(run(*words, "--json"))["since"]
    assert (numbers["users"], numbers["memories"], numbers["messages"]) == (0, 0, -1)
    assert numbers["bytes"] < 0
    assert numbers["tokens"] < 0
    assert numbers["findings"] == [{"code": "leftover-hint", "count": -1}]
    assert "-1 message, " in html.unescape(page.read_text())
    printed = tmp_path / "last.json"
    printed.write_text(run("report", talks, "--json").stdout)
    again = report(run("report", talks, "--json", "--since-last", printed, "--user", ADA.user))
    assert again["since"]["selection"] == ""
    same = run("report", talks, "--as", "text", "--since-last", printed).stdout
    assert "nothing changed" in same
    other = tmp_path / "other.db"
    asyncio.run(fill(str(other), {ADA: entries(HEALTHY)}))
    fails(run("report", other, "--json", "--since-last", printed), 2, "of another store")
    fails(run("report", talks, "--json", "--since-last", other), 8, "is no report of memctl")


def test_report_as_text_shows_names_and_never_obeys_them(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = "<i>&\x1b[31m\u202e"
    store = "a<i>&b.db"
    asyncio.run(fill(store, {MemoryKey(name, "s"): entries(HEALTHY)}))
    last = json.loads(run("report", store, "--json").stdout)
    last |= {"selection": f"session {name}", "findings": [{"code": name, "count": 1}]}
    Path("last.json").write_text(json.dumps(last))
    text = run("report", store, "--user", name, "--as", "text", "--since-last", "last.json").stdout
    assert text.splitlines()[0] == store
    assert text.count("<i>&\\x1b[31m\\u202e") == 4, "selection, last selection, finding, user"
    assert not {"\x1b", "\u202e"} & {*text}
    nested = '{"more":' + "[" * 100_000
    Path("last.json").write_text(nested)
    fails(run("report", store, "--since-last", "last.json", "--json"), 8, "is no report of memctl")


def test_report_as_text_says_what_the_page_says(run: Run, talks: str, tmp_path: Path) -> None:
    text = run("report", talks, "--as", "text").stdout
    assert run("report", talks, "-o", tmp_path / "page.txt").exit_code == 0
    untimed = re.compile(r"on \d{4}-\d\d-\d\d\s\d\d:\d\d")
    assert untimed.sub("", (tmp_path / "page.txt").read_text()) == untimed.sub("", text)
    words = " ".join(text.split())
    numbers = report(run("report", talks, "--json"))
    assert f"{numbers['totals']['messages']} messages" in words
    for sentence in ("Not healthy: ", "Tokens that an agent sends", "When agents are at work"):
        assert sentence in words
    assert all(len(line) <= 76 for line in text.splitlines())
    assert "<" not in text.replace(ADA.user, "")


def test_report_has_what_a_request_costs(
    run: Run, talks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "priced.toml"
    config.write_text(
        '[summarizers.priced]\nkind = "openai"\nmodel = "m"\napi_key_env = "NONE"\n'
        "input_price = 1000.0\n"
    )
    monkeypatch.setenv("MEMCTL_CONFIG", str(config))
    found = report(run("report", talks, "--json", "--summarizer", "priced"))["tokens"]
    assert found["cost"] == pytest.approx(found["sent"] / 1000)
    text = " ".join(run("report", talks, "--as", "text", "--summarizer", "priced").stdout.split())
    assert f"A request of every memory costs {found['cost']:.4f}." in text
    assert "cost" not in report(run("report", talks, "--json"))["tokens"]
