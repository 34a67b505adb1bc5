"""Errors: one line with the cause, one with the remedy, and the right exit code."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import socket
import time
from itertools import product
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest

from memctl.location import redact, redact_text
from memctl.model import MemoryKey
from memctl.testing import samples
from tests.support.cli import FRIDAY, Run, fails, fill, report
from tests.support.servers.pool import Servers

ONE = MemoryKey("ada", "one")
SECRET = "s3cr3t-p4ss"


def with_password(url: str) -> str:
    """The URL with a wrong password."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    user = parts.username or ""
    return parts._replace(netloc=f"{user}:{SECRET}@{host}").geturl()


def test_error_wrong_password(
    run: Run, servers: Servers, postgresql_url: str, mysql_url: str, filled: str
) -> None:
    redis = servers.redis_with("locked", password="right").url(1, password=SECRET)
    for url in (with_password(postgresql_url), with_password(mysql_url), redis):
        for arguments in (("inspect", url), ("migrate", filled, url), ("migrate", url, filled)):
            result = run(*arguments)
            fails(result, 3, "hint:")
            assert SECRET not in result.stdout + result.stderr
            result = run(*arguments, "--json")
            assert report(result, 3)["error"]["code"] == "unavailable"
            assert SECRET not in result.stdout + result.stderr


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://u:{SECRET}@127.0.0.1:1/d",
        f"mysql://u:{SECRET}@127.0.0.1:1/d",
        f"redis://:{SECRET}@127.0.0.1:1/0",
        f"rediss://:{SECRET}@127.0.0.1:1/0",
        "unix:///nowhere/redis.sock",
        "postgresql:///d?host=/nowhere",
        "mysql:///d?host=/nowhere/mysqld.sock",
    ],
)
def test_error_no_server(run: Run, url: str) -> None:
    result = run("inspect", url)
    fails(result, 3, "hint:")
    assert SECRET not in result.stdout + result.stderr


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "out of memory"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "out of memory"),
        (RuntimeError("can't start new thread"), "out of memory"),
        (OSError(errno.EMFILE, "Too many open files"), "ulimit -n"),
    ],
)
def test_error_of_a_machine_that_has_too_little(
    run: Run, filled: str, monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    async def inspect(*_: object) -> None:
        raise error

    monkeypatch.setattr("memctl.ops.inspect.inspect", inspect)
    fails(run("inspect", filled), 3, said, "hint:")


def test_error_no_such_database(run: Run, postgresql_url: str, mysql_url: str, filled: str) -> None:
    for url in (postgresql_url, mysql_url):
        absent = url.rpartition("/")[0] + "/absent"
        fails(run("inspect", absent), 4, "absent", "create the database")
        fails(run("migrate", filled, absent), 4, "create the database")


@pytest.mark.parametrize("name", ["none.db", "none.json", "none.ndjson", "none/"])
def test_error_no_such_file(run: Run, tmp_path: Path, name: str) -> None:
    fails(run("inspect", f"{tmp_path}/{name}"), 4, "does not exist")


@pytest.mark.slow
def test_error_database_that_is_not_agentscopes(
    run: Run, servers: Servers, postgresql_url: str, mysql_url: str, tmp_path: Path, filled: str
) -> None:
    import sqlite3

    path = tmp_path / "app.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE customers (id INTEGER PRIMARY KEY, email TEXT)")
    database.close()
    servers.postgresql.execute(postgresql_url, "CREATE TABLE other (id int)")
    for command in ("inspect", "doctor", "export"):
        detect = f"memctl stores detect {path}"
        fails(run(command, str(path)), 8, "it has the table customers", detect)
        fails(run(command, postgresql_url), 8, "it has the table other", "stores detect")
        fails(run(command, mysql_url), 8, "has no tables", "the name of the database")
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE message (id TEXT PRIMARY KEY, body TEXT)")
    database.close()
    before = path.read_bytes()
    fails(run("migrate", filled, path), 8, "'message' is not AgentScope's", "'msg'")
    assert path.read_bytes() == before
    servers.postgresql.execute(postgresql_url, "CREATE TABLE users (id int PRIMARY KEY, name text)")
    fails(run("migrate", filled, postgresql_url), 8, "'users' is not AgentScope's", "not a string")
    tables = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
    assert servers.postgresql.execute(postgresql_url, tables).strip() == "2"


@pytest.mark.slow
def test_error_other_tables_and_columns_are_left_alone(
    run: Run, servers: Servers, postgresql_url: str, filled: str
) -> None:
    sql = servers.postgresql.execute
    assert run("migrate", filled, postgresql_url, "--user", "user0").exit_code == 0
    sql(postgresql_url, "ALTER TABLE message ADD COLUMN tenant text DEFAULT 'acme'")
    sql(postgresql_url, "CREATE TABLE invoices (id int); INSERT INTO invoices VALUES (7)")
    assert run("migrate", filled, postgresql_url).exit_code == 0
    assert sql(postgresql_url, "SELECT DISTINCT tenant FROM message").strip() == "acme"
    assert sql(postgresql_url, "SELECT id FROM invoices").strip() == "7"


def test_error_file_that_is_no_database(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    path.write_text(json.dumps(["a"]) * 100)
    fails(run("inspect", path), 8, "not a database")
    fails(run("migrate", FRIDAY, path, "--user", "a", "--session", "b", "--lossy"), 8)


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes where nobody may")
def test_error_read_only_file(run: Run, filled: str, tmp_path: Path) -> None:
    target = tmp_path / "target.db"
    assert run("migrate", filled, target, "--user", "user0").exit_code == 0
    target.chmod(0o400)
    fails(run("migrate", filled, target), 3, "hint:")


@pytest.mark.slow
def test_error_read_only_server(
    run: Run, servers: Servers, postgresql_url: str, filled: str
) -> None:
    name = postgresql_url.rpartition("/")[2]
    sql = servers.postgresql.execute
    assert run("migrate", filled, postgresql_url, "--user", "user0").exit_code == 0
    sql(postgresql_url, f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    fails(run("migrate", filled, postgresql_url), 3, "read-only", "hint:")
    assert run("inspect", postgresql_url).exit_code == 0


def test_error_redis_out_of_memory(run: Run, servers: Servers, filled: str) -> None:
    redis = servers.redis_with("full", "--maxmemory-policy", "noeviction")
    url = redis.fresh()
    with redis.client(url) as client:
        client.config_set("maxmemory", 1)
    fails(run("migrate", filled, url), 3, "refuses writes", "hint:")


def test_error_store_that_memctl_does_not_know(run: Run, tmp_path: Path) -> None:
    fails(run("inspect", "mongodb://h/d"), 2, "mongodb://", "memctl stores")
    fails(run("inspect", "prod"), 2, "no store named 'prod'", "./prod")
    (tmp_path / "notes.txt").write_text("x")
    fails(run("inspect", tmp_path / "notes.txt"), 2, "is neither a SQLite database")
    fails(run("inspect", "sqlite://host/x.db"), 2, "SQLite has none")
    fails(run("inspect", "postgresql://h/d?sslmode=maybe"), 2)


def test_error_usage(run: Run) -> None:
    wrong = ("inspect", "inspect --frob x", "migrate a.db", "--frob inspect", "mark ad x")
    for arguments in map(str.split, wrong):
        result = run(*arguments)
        fails(result, 2, "hint: memctl", "--help lists its options")
    fails(run("frob"), 2, "no command 'frob'", "memctl --help lists the commands")
    fails(run("inspct", "a.db"), 2, "no command 'inspct'", "did you mean 'inspect'?")
    assert run().exit_code == 2
    assert "Usage:" in run("mark").stderr
    assert "did you mean 'migrate'" in run("migrat", "a", "b").stderr


def test_error_bug_is_told_as_one(run: Run, filled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr("memctl.ops.inspect._add", broken)
    result = run("inspect", filled)
    fails(result, 1, "this is a bug", "MEMCTL_DEBUG")
    assert "secret detail" not in result.stdout + result.stderr


def test_error_messages_as_json_lines(run: Run) -> None:
    result = run("--log-format", "json", "inspect", "none.db")
    line = json.loads(result.stderr)
    assert (line["level"], line["code"], result.exit_code) == ("error", "not-found", 4)
    assert re.match(r"\d{4}-\d\d-\d\dT", line["time"])
    assert line["hint"]


def test_error_hostile_names_in_errors(run: Run, tmp_path: Path) -> None:
    asyncio.run(fill(str(tmp_path / "a.ndjson"), {ONE: samples.entries(1)}))
    result = run("inspect", tmp_path / "a.ndjson", "--user", "\x1b[31m\x07")
    fails(result, 4)
    assert not set(result.stderr) & set("\x1b\x07")


@pytest.mark.parametrize(
    "line",
    [
        "{}",
        "@{}",
        "inspect a.db {}",
        "inspect --{}",
        "inspect --format={} a.db",
        "inspect a.db --since {}",
        "--config {} inspect a.db",
        "--config={} inspect a.db",
        "--color {} stores",
        "--metrics-file {} stores",
        "config {}",
        "mark {}",
        "undo {}",
        "help {}",
        "migrate a.db b.db --rate-limit {}",
        "export a.db --as {}",
        "compress a.db --summarizer {}",
        "compress a.db --prompt-file {}",
        "inspect sqlite:///a.db?state={}",
    ],
)
@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://u:{SECRET}@h/db",
        f"redis://:p@ss/{SECRET}@h",
        f"mysql://u:a 'b/{SECRET}\"?x\\y@h/d?z=1",
        f"u:{SECRET}@h/db",
    ],
)
def test_error_quotes_no_password_of_an_argument(run: Run, line: str, url: str) -> None:
    result = run(*(word.format(url) for word in line.split()))
    assert SECRET not in result.stdout + result.stderr
    assert result.exit_code in (0, 2, 4)


@pytest.mark.parametrize("variable", ["MEMCTL_FORMAT", "MEMCTL_CONFIG", "MEMCTL_STORES_FORMAT"])
def test_error_quotes_no_password_of_a_variable(
    run: Run, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, f"postgresql://u:{SECRET}@h/db")
    result = run("stores")
    assert SECRET not in result.stdout + result.stderr


@pytest.mark.slow
def test_error_no_separator_reveals_a_password() -> None:
    separators = ["", *"/?#@:&=;%[] ,!$'\"\\", "://", "?x=", "&a=", "@h:1/", "//"]
    schemes = ("redis", "postgresql", "unix", "no")
    for scheme, one, other in product(schemes, separators, separators):
        password = f"AAA{one}BBB{other}CCC"
        for url in (
            f"{scheme}://u:{password}@h/0",
            f"{scheme}://:1{password[3:-3]}2@h:5?sslmode=on",
            f"{scheme}://u{one}x:{password}@h/d?state=/x",
            f"{scheme}:/u:{password}@h/d",
            f"{scheme}://u@h/d?password={quote(password, safe='/?@:=[]')}",
        ):
            shown = (
                redact(url),
                redact_text(f"no command '{url}'", [url]),
                redact_text(f"no command {url!r}", ["x", f"--option={url}"]),
            )
            assert not [word for word in ("AAA", "BBB", "CCC") if word in str(shown)], url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ada:x@h1:1,h2:2/d?a=on", "postgresql://ada:***@h1:1,h2:2/d?a=on"),
        ("redis://:p@ss/word@h:6379/0?prefix=a", "redis://:***@h:6379/0?prefix=a"),
        ("postgresql://h/d?state=redis://:x@i/1", "postgresql://h/d?state=redis://:***@i/1"),
        ("unix:///x.sock?password=a&db=1", "unix:///x.sock?password=***&db=1"),
        ("sqlite:////tmp/a@b/c.db?state=/x@y", "sqlite:////tmp/a@b/c.db?state=/x@y"),
        ("redis://[::1]:5/0", "redis://[::1]:5/0"),
    ],
)
def test_error_shows_the_rest_of_a_url(url: str, shown: str) -> None:
    assert redact(url) == redact(shown) == shown


def test_error_choice_that_there_is_not(run: Run) -> None:
    words = ("migrate", "a.db", "b.db", "--on-conflict", "replac")
    fails(run(*words), 2, "Invalid value for '--on-conflict': 'replac' is not one of 'fail'")


@pytest.mark.slow
def test_error_pipe_or_device_as_a_file(run: Run, tmp_path: Path, filled: str) -> None:
    for name in ("config", "a.db", "a.json", "a.jsonl", "a.ndjson"):
        os.mkfifo(tmp_path / name)
        os.symlink("/dev/zero", tmp_path / f"zero-{name}")
    for begin in ("", "zero-"):
        fails(run("--config", f"{tmp_path}/{begin}config", "stores"), 2, "is not a regular file")
        receipt = f"{tmp_path}/{begin}a.json"
        fails(run("verify", "--receipt", receipt), 8, "is not a regular file")
        fails(run("inspect", f"langchain:{receipt}"), 3, "not a regular file")
        settings = tmp_path / "settings"
        settings.write_text(
            f'[summarizers.s]\nkind = "openai"\nmodel = "m"\ntokenizer = "{receipt}"\n'
        )
        words = ("--config", settings, "context", filled, "--summarizer", "s")
        fails(run(*words, "--user", "user0", "--session", "session0"), 2, "not a regular file")
        for name in ("a.db", "a.json", "a.jsonl", "a.ndjson"):
            store = f"{tmp_path}/{begin}{name}"
            for command in (["inspect"], ["doctor"], ["delete", "--all", "--yes"], ["migrate"]):
                to = [f"{tmp_path}/new.db"] if command == ["migrate"] else []
                fails(run(*command, store, *to), 8, "file")
        fails(run("migrate", filled, f"{tmp_path}/{begin}a.db"), 8, "is not a regular file")
    assert run("--config", os.devnull, "stores").exit_code == 0


@pytest.mark.parametrize(
    "text",
    [
        "[defaults]\na = " + "[" * 600 + "]" * 600,
        "a = " + "{a=" * 600 + "1" + "}" * 600,
        "a." * 600 + "a = 1",
        '[stores.a]\nurl = "a\\u0000.db"',
        '[stores.a]\nurl = "redis://h"\npassword_file = "a\\u0000"',
        "stores = 5",
        "stores.a = [5]",
        "defaults = [1]",
        "defaults.inspect = 1979-05-27",
        "undo.days = inf",
    ],
)
def test_error_configuration_that_is_too_deep_or_of_other_types(
    run: Run, tmp_path: Path, text: str
) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    for command in (("inspect", "a"), ("config", "show"), ("stores",)):
        result = run("--config", str(path), *command)
        assert result.exit_code == 2 or "a\\u0000" in text, result.stderr
        assert result.exit_code in (0, 2)


def test_error_name_with_a_nul(run: Run) -> None:
    for name in ("sqlite:///a%00.db", "redis://h?prefix=%00&state=a%00"):
        fails(run("inspect", name), 2, "contains a NUL")


@pytest.mark.parametrize("form", ["./{}", "{}.db", "{}.json", "{}/", "{}/x.json", "sqlite:///{}"])
def test_error_name_of_a_file_that_is_too_long(run: Run, form: str) -> None:
    name = form.format("a" * 300)
    for words in (("inspect", name), ("delete", name, "--all", "--yes"), ("migrate", "x.db", name)):
        result = run(*words, "--json")
        fails(result, 2, "is too long for its file system")
        assert json.loads(result.stdout)["error"]["code"] == "usage"
    fails(run("inspect", "a" * 300), 2, "there is no store named")


@pytest.mark.parametrize("levels", [300, 600, 5000])
def test_error_message_that_is_nested_deep(run: Run, tmp_path: Path, levels: int) -> None:
    deep = '{"a":' * levels + '"é"' + "}" * levels
    fields = ['"id":"m"', '"role":"user"', '"name":"u"', '"content":"x"', f'"metadata":{deep}']
    for name, some in (("a", fields), ("b", fields[::-1])):
        state = f'{{"content":[[{{{",".join(some)}}},[]]]}}'
        (tmp_path / f"{name}.json").write_text(state, "utf-8")
    same = run("verify", f"{tmp_path}/a.json", f"{tmp_path}/b.json")
    if levels < 1000:
        assert same.exit_code == 0
    else:
        fails(same, 8, "nested too deep")


@pytest.mark.parametrize(
    "store", ["sqlite:///{}/a.db", "postgresql://u@127.0.0.1:1/d", "redis://127.0.0.1:1"]
)
def test_error_agent_without_a_name(run: Run, tmp_path: Path, store: str) -> None:
    url = store.format(tmp_path) + "?layout=agentscope2&agent="
    fails(run("inspect", url), 2, "names no agent", "?agent=default")


def test_error_shows_the_resolved_path(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, filled: str
) -> None:
    monkeypatch.chdir(tmp_path)
    relative = "nope/x.db does not exist (sqlite:///nope/x.db is a relative path)"
    hint = "hint: an absolute path has four slashes: sqlite:////nope/x.db\n"
    fails(run("inspect", "sqlite:///nope/x.db"), 4, relative, hint)
    query = "?layout=agentscope2"
    fails(run("inspect", f"sqlite:///nope/x.db{query}"), 4, relative, f"{hint[:-1]}{query}\n")
    result = run("migrate", filled, "sqlite:///nope/x.db")
    fails(result, 4, f"the folder of {relative}", hint)
    for name in ("x.db", "nope/x.json", "x.ndjson", "./sessions"):
        shown = name.removeprefix("./")
        fails(run("inspect", name), 4, f"{shown} does not exist", f"the path: {tmp_path}/{shown}\n")
    whole = tmp_path / "x.db"
    fails(run("inspect", whole), 4, f"{whole} does not exist", "hint: check the path\n")
    fails(run("inspect", f"sqlite:///{whole}"), 4, f"{whole} does not exist", "check the path\n")


@pytest.mark.slow
def test_error_of_nothing_names_what_else_there_is(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, filled: str
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert run("inspect", ".").stderr == ""
    for number in range(6):
        assert run("export", filled, "-o", f"night{number}.ndjson.zst").exit_code == 0
    assert run("migrate", filled, "agents.db").exit_code == 0
    os.mkfifo("pipe.json")
    said = (
        ". holds no session state, but other files: ./agents.db (sqlite), "
        "./night0.ndjson.zst (archive), ./night1.ndjson.zst (archive), "
        "./night2.ndjson.zst (archive), ./night3.ndjson.zst (archive) and 2 more"
    )
    for words in (
        ("inspect", "."),
        ("doctor", "."),
        ("migrate", ".", "../x.db"),
        ("export", ".", "-o", "../x.ndjson"),
    ):
        fails(run(*words), 8, said, "hint: name the file itself")
    assert not list(tmp_path.glob("x.*"))
    fails(run("inspect", ".", "--user", "ada"), 8, said)


def test_folder_of_markdown_is_named_as_a_vault(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "a.md").write_text("A note.")
    fails(run("inspect", folder), 8, "notes/a.md (Markdown)", f"a vault is vault:{folder}")


def test_error_server_that_does_not_answer_in_time(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = f"u@127.0.0.1:{silent.getsockname()[1]}/d"
        for url in (f"postgresql://{place}", f"mysql://{place}"):
            start = time.monotonic()
            fails(
                run("inspect", f"{url}?connect_timeout=1"), 3, "no answer in 1 second\n", "hint: "
            )
            assert 0.9 < time.monotonic() - start < 5
            said = "connect_timeout=soon is not a whole number of seconds"
            fails(run("inspect", f"{url}?connect_timeout=soon"), 2, said)
        monkeypatch.setenv("PGCONNECT_TIMEOUT", "1")
        fails(run("inspect", f"postgresql://{place}"), 3, "no answer in 1 second\n")
        found = run("inspect", f"postgresql://{place}?connect_timeout=2")  # the URL wins
        fails(found, 3, "no answer in 2 seconds\n")


@pytest.mark.slow
def test_error_limit_for_connecting_is_not_sent_to_the_server(
    run: Run, postgresql_url: str, mysql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for url in (postgresql_url, mysql_url):
        asyncio.run(fill(url, {ONE: samples.entries(1)}))
        for seconds in ("10", "0", "-1"):  # the last two set no limit
            place = f"{url}{'&' if '?' in url else '?'}connect_timeout={seconds}"
            report(run("inspect", place, "--json"))
    with monkeypatch.context() as patch:
        patch.setenv("PGCONNECT_TIMEOUT", "10")
        report(run("inspect", postgresql_url, "--json"))
        patch.setenv("PGCONNECT_TIMEOUT", "soon")
        fails(run("inspect", postgresql_url), 2, "PGCONNECT_TIMEOUT=soon is not a whole number")


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1", "postgresql://127.0.0.1:1"])
def test_error_shows_the_port_that_cannot_be_reached(run: Run, url: str) -> None:
    result = run("inspect", url)
    fails(result, 3, f"{url}: ")
    assert "***" not in result.stderr


def test_errors_with_a_very_long_word_hide_passwords() -> None:
    """A name of a user may be as long as a message; its error is looked through for URLs."""
    word = "x" * 1_000_000
    shown = redact_text(f"{word} of postgresql://ada:secret@db/agents")
    assert shown == f"{word} of postgresql://ada:***@db/agents"
