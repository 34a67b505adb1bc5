"""``memctl config``: what is written, shown and tried."""

from __future__ import annotations

import json
import re
import stat
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest

from memctl import config as configuration
from memctl.reports.config import CheckRow
from tests.summarizers.server import ModelServer, says
from tests.support.cli import FRIDAY, Run, contents, fails, report
from tests.support.servers.pool import Servers

GUIDE = Path(__file__).parents[2] / "docs" / "configuration.md"
SECRET = "hunter2"


def settings(run: Run, *words: object) -> dict[str, dict[str, Any]]:
    """The rows of ``config show`` by their keys."""
    return {row["key"]: row for row in report(run("config", "show", "--json", *words))["settings"]}


def checks(run: Run, code: int, *words: object) -> dict[str, dict[str, Any]]:
    """The rows of ``config check`` by their names."""
    found = report(run("config", "check", "--json", *words), code)
    return {row["name"]: row for row in found["checks"]}


def test_config_init_writes_a_file_for_its_owner(run: Run, write: Path) -> None:
    assert str(write) in run("config", "init").stderr
    assert stat.S_IMODE(write.stat().st_mode) == 0o600
    assert tomllib.loads(write.read_text()) == {}
    write.write_text("mine")
    fails(run("config", "init"), 2, "--force")
    assert write.read_text() == "mine"
    assert run("config", "init", "--force").exit_code == 0
    assert "mine" not in write.read_text()
    assert [path.name for path in write.parent.iterdir()] == [write.name]


def test_config_init_at_the_place_of_the_platform(run: Run, tmp_path: Path) -> None:
    assert run("config", "init").exit_code == 0
    assert configuration.default_path().exists()
    other = tmp_path / "other" / "memctl.toml"
    assert run("--config", other, "config", "init").exit_code == 0
    assert other.exists()
    (tmp_path / "file").touch()
    fails(run("--config", tmp_path / "file" / "x.toml", "config", "init"), 3, "cannot be written")
    fails(run("--config", tmp_path, "config", "init", "--force"), 2, "is a folder")


def test_config_init_keeps_a_link(run: Run, write: Path, tmp_path: Path) -> None:
    kept = tmp_path / "dotfiles.toml"
    kept.write_text("")
    write.symlink_to(kept)
    assert run("config", "init", "--force").exit_code == 0
    assert write.is_symlink()
    assert "[undo]" in kept.read_text()


def test_config_all_that_init_writes_is_accepted(run: Run, write: Path) -> None:
    run("config", "init")
    write.write_text(re.sub(r"^# (?=\[|[\w-]+ = )", "", write.read_text(), flags=re.MULTILINE))
    found = settings(run)
    for key in ("stores.prod.url", "summarizers.local.kind", "defaults.migrate.rate-limit"):
        assert found[key]["source"] == "file"


def test_config_guide_shows_a_configuration_that_is_accepted(run: Run, write: Path) -> None:
    [example] = [
        text
        for text in re.findall(r"```toml\n(.*?)```", GUIDE.read_text("utf-8"), re.DOTALL)
        if "[undo]" in text
    ]
    write.write_text(example)
    found = settings(run)
    for table in ("stores", "summarizers", "defaults", "undo"):
        assert any(row["source"] == "file" for key, row in found.items() if key.startswith(table))


def test_config_show_says_where_values_come_from(
    run: Run, write: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write.write_text(
        "[undo]\ndays = 30\n[defaults]\ncolor = 'never'\n[defaults.inspect]\nlimit = 7"
    )
    monkeypatch.setenv("MEMCTL_EXPORT_AS", "archive")
    monkeypatch.setenv("MEMCTL_FORMAT", "json")
    result = run("--log-format", "text", "config", "show")
    found = {row["key"]: row for row in report(result)["settings"]}
    told = {key: (row["value"], row["source"], row["where"]) for key, row in found.items()}
    assert told["undo.days"] == (30, "file", None)
    assert told["undo.bytes"] == (1_000_000_000, "default", None)
    assert told["defaults.color"] == ("never", "file", "defaults.color")
    assert told["defaults.log-format"] == ("text", "command-line", None)
    assert told["defaults.quiet"] == (False, "default", None)
    assert told["defaults.inspect.limit"] == ("7", "file", "defaults.inspect.limit")
    assert told["defaults.export.as"] == ("archive", "environment", "MEMCTL_EXPORT_AS")
    assert told["defaults.format"] == ("json", "environment", "MEMCTL_FORMAT")
    assert "defaults.inspect.format" not in told
    assert report(result)["file"] == {"path": str(write), "exists": True, "source": "environment"}
    table = run("config", "show", "--format", "table").stdout
    assert re.search(r"defaults\.export\.as +archive +MEMCTL_EXPORT_AS\n", table)


def test_config_show_without_a_file(run: Run) -> None:
    assert not report(run("config", "show", "--json"))["file"]["exists"]
    assert "memctl config init" in run("config", "show").stdout
    few, every = settings(run), settings(run, "--all")
    assert len(few) < 20 < len(every)
    assert every["defaults.compress.keep-recent"]["value"] == 3
    assert "defaults.delete.yes" not in every


def test_config_show_shows_the_policies(run: Run, write: Path, filled: str) -> None:
    write.write_text(f"""
[offload]
larger = "5kB"
[stores.prod]
url = "{filled}"
[[retention]]
name = "chats"
store = "prod"
select = {{ until = 2026-01-31, keep_last = 5 }}
action = "delete"
archive = "old-{{date}}.ndjson"
""")
    found = settings(run)
    assert found["retention chats.select"]["value"] == {"until": "2026-01-31", "keep_last": 5}
    assert found["offload.larger"]["value"] == "5kB"
    assert found["retention chats.archive"]["value"] == "old-{date}.ndjson"
    for form in ("table", "csv"):
        assert "2026-01-31" in run("config", "show", "--format", form).stdout
    [store, policy] = report(run("config", "check", "--json"))["checks"]
    assert (store["what"], store["name"]) == ("store", "prod")
    assert (policy["what"], policy["name"], policy["kind"]) == ("retention", "chats", "delete")
    assert policy["note"] == "its settings are valid; acts on prod, archived to old-{date}.ndjson"


def test_config_show_shows_no_secret(run: Run, write: Path) -> None:
    write.write_text(f"""
[stores.url]
url = "redis://:{SECRET}@h/0"
[stores.inner]
url = "sqlite:///x.db?state=redis://:{SECRET}@h/0"
[stores.command]
url = "postgresql://h/db?password={SECRET}"
password_command = "echo {SECRET}"
[summarizers.model]
kind = "openai"
model = "m"
base_url = "https://me:{SECRET}@h/v1"
api_key_command = "echo {SECRET}"
parameters = {{ api_token = "{SECRET}", max_tokens = 3, more = [{{ key = "{SECRET}" }}] }}
[summarizers.program]
kind = "command"
command = ["curl", "-H", "Authorization: {SECRET}"]
[defaults.undo]
store = "redis://:{SECRET}@h/0"
""")
    for form in ("table", "json", "csv"):
        result = run("config", "show", "--format", form)
        assert result.exit_code == 0, result.stderr
        assert SECRET not in result.stdout + result.stderr
    assert settings(run)["summarizers.model.parameters"]["value"]["max_tokens"] == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[summarizers.x]\nkind = 'opnai'", "did you mean 'openai'"),
        ("[summarizers.x]\nkind = 'openai'\nmodle = 'x'", "did you mean 'model'"),
        ("[stores.x]\nurl = 'http://h'", "stores.x.url"),
        ("[defaults.verify]\nshwo = true", "did you mean 'show'"),
        ("[defaults.mark.lst]\nlimit = 3", "did you mean 'list'"),
        ("[defaults.compress]\nmode = 'marks'", "did you mean 'mark'"),
        ("[defaults.compress]\nsummarizer = 'mm'", "there is no summarizer named 'mm'"),
        ("[undo]\ndays = -1", "undo.days must be a whole number of 0 or more"),
        ("hold = 3", "write [[hold]]"),
        ("[[hold]]\nuser = 'a'\nreason = ' '", "hold 1.reason must be a text"),
        ("[encryption]\nidentity_env = ''", "encryption.identity_env must be a text"),
        ("[offload]\nlarger = 5", "offload.larger must be a text"),
        ("[summarizers.x]\nkind = 'command'\ncommand = [1]", "x.command must be a string for"),
        ("[summarizers.x]\nkind = 'command'\ncommand = 'x'\nreply = 'n'", "one of any, fields"),
        ("[stores.x]\nurl = 'x'\ncolumns = {sesion = 'a'}", "key stores.x.columns.sesion"),
        ("[stores.x]\nurl = 'x'\ncolumns = {user = ['a', 'b']}", "columns.user must be a text"),
        ("[stores.x]\nurl = 'x'\ncolumns = {user = 1}", "columns must be a table of columns"),
        ("[[retention]]\naction = 'delete'\n'a` - at `$.b' = 1", "unknown key retention 1.a` - at"),
    ],
)
def test_config_show_finds_every_mistake(run: Run, write: Path, text: str, said: str) -> None:
    write.write_text(text)
    fails(run("config", "show"), 2, said)
    assert run("config", "init", "--force").exit_code == 0


@pytest.mark.slow
def test_config_typo_in_the_name_of_a_variable(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMCTL_INSPECT_LIMITT", "3")
    monkeypatch.setenv("MEMCTL_SERVICE_HOST", "10.0.0.1")  # as Kubernetes sets them
    for command in ("show", "check"):
        [warning] = report(run("config", command, "--json"))["warnings"]
        assert "did you mean MEMCTL_INSPECT_LIMIT?" in warning


@pytest.mark.slow
def test_config_check_goes_on_after_failures(
    run: Run, write: Path, tmp_path: Path, filled: str, servers: Servers
) -> None:
    empty = servers.postgresql.fresh()
    with ModelServer() as server, ModelServer(key=SECRET) as refusing:
        write.write_text(f"""
[stores.full]
url = "{filled}"
[stores.empty]
url = "{empty}"
[stores.states]
url = "{FRIDAY}"
[stores.gone]
url = "{tmp_path}/none.db"
[stores.shut]
url = "redis://127.0.0.1:1/0"
[stores.locked]
url = "redis://127.0.0.1:1/0"
password_env = "NOT_SET"
[summarizers.model]
kind = "openai"
model = "m"
base_url = "{server.url}"
[summarizers.refused]
kind = "openai"
model = "m"
base_url = "{refusing.url}"
[summarizers.program]
kind = "command"
command = "grep -q 'a table for two' && echo A summary."
[summarizers.broken]
kind = "command"
command = "exit 4"
[summarizers.sentences]
kind = "extractive"
[summarizers.typo]
kind = "extractve"
""")
        result = run("config", "check", "--json")
        [request] = server.requests
    found = {row["name"]: row for row in report(result, 3)["checks"]}
    good = {name for name, row in found.items() if row["ok"]}
    assert good == {"full", "empty", "states", "model", "program", "sentences"}
    codes = {name: row["error"]["code"] for name, row in found.items() if row["error"]}
    assert codes == {
        "gone": "not-found",
        "shut": "unavailable",
        "locked": "usage",
        "refused": "unavailable",
        "broken": "program-failed",
        "typo": "usage",
    }
    assert all(row["error"]["hint"] for row in found.values() if row["error"])
    assert "usable as a target" in found["empty"]["note"]
    assert found["full"]["note"] == "opened as AgentScope 1.x memory in SQLite; memories found"
    assert found["model"]["note"] == "wrote a summary"
    assert found["full"]["kind"] == "sqlite"
    assert "summaries" in found["states"]["capabilities"]
    assert report(result, 3)["error"]["message"] == "6 of 12 checks failed"
    assert len(json.dumps(request.body)) < 4000  # a model is paid by what it reads


@pytest.mark.slow
def test_config_check_tells_people(run: Run, write: Path, filled: str) -> None:
    write.write_text(f'[stores.full]\nurl = "{filled}"\n[summarizers.x]\nkind = "extractive"')
    lines = run("config", "check").stdout.splitlines()
    assert [line.split() for line in lines if not line.startswith(" ")] == [
        ["ok", "store", "full", "sqlite"],
        ["ok", "summarizer", "x", "extractive"],
    ]
    assert [line.strip() for line in lines if line.startswith(" ")] == [
        "opened as AgentScope 1.x memory in SQLite; memories found",
        "wrote a summary",
    ]
    write.write_text('[stores.full]\nurl = "none.db"')
    result = run("config", "check")
    assert result.exit_code == 3
    assert "hint: " in result.stdout
    write.write_text("")
    assert "no stores and no summarizers are configured" in run("config", "check").stdout


@pytest.mark.slow
def test_config_check_of_an_archive_to_come(
    run: Run, write: Path, tmp_path: Path, filled: str
) -> None:
    write.write_text(f'[stores.night]\nurl = "{tmp_path}/n.ndjson.zst"')
    assert "there is no archive yet; usable as a target" in run("config", "check").stdout
    assert run("export", filled, "-o", "night", "--rotate", "last:2").exit_code == 0
    said = run("config", "check")
    assert said.exit_code == 0
    assert "the name of a rotation; newest of 1 file: n-" in said.stdout
    write.write_text(f'[stores.night]\nurl = "{tmp_path}/none/n.ndjson.zst@latest"')
    assert run("config", "check").exit_code == 3
    shown = run("config", "show")
    assert shown.exit_code == 0
    assert "n.ndjson.zst@latest" in shown.stdout


def test_config_check_warns_of_a_readable_password(run: Run, write: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hush")
    secret.chmod(0o644)
    write.write_text(f'[stores.a]\nurl = "redis://h/0"\npassword_file = "{secret}"')
    said = run("config", "check", "--timeout", "0.1").stderr
    assert f"{secret} has a secret, and other users can read it: chmod 600 {secret}" in said


@pytest.mark.slow
def test_config_check_says_what_a_database_holds(
    run: Run, write: Path, servers: Servers, filled: str
) -> None:
    full, emptied = servers.postgresql.fresh(), servers.postgresql.fresh()
    write.write_text(f'[stores.full]\nurl = "{full}"\n[stores.emptied]\nurl = "{emptied}"')
    for url in (full, emptied):
        assert run("migrate", filled, url).exit_code == 0
    for user in {key.user for key in contents(emptied)}:
        assert run("erase", "--user", user, emptied, "--yes").exit_code == 0
    result = run("config", "check")
    said = [line.strip() for line in result.stdout.splitlines()]
    assert said[0].split() == ["ok", "store", "full", "postgresql"]
    assert said[1] == "opened as AgentScope 1.x memory in PostgreSQL; memories found"
    assert said[3] == "opened as AgentScope 1.x memory in PostgreSQL; no memories"


@pytest.mark.slow
def test_config_check_a_model_that_answers_in_prose_fails_as_in_compress(
    run: Run, write: Path, filled: str
) -> None:
    with ModelServer(*[says("Ada booked a table.")] * 3) as server:
        write.write_text(f"""
[stores.full]
url = "{filled}"
[summarizers.chatty]
kind = "openai"
model = "m"
base_url = "{server.url}"
max_retries = 0
""")
        row = checks(run, 3)["chatty"]
        assert row["error"]["code"] == "bad-reply"
        assert "compress would fail, too" in row["error"]["hint"]
        words = ("compress", "full", "--summarizer", "chatty", "--mode", "message", "--all")
        limits = ("--keep-recent", "1", "--max-memories", "1", "--yes", "--json")
        [failure] = report(run(*words, *limits), 7)["failures"]
        assert failure["code"] == "bad-reply"
        assert failure["message"] == row["error"]["message"]
        asked = len(server.requests)
        found = checks(run, 0, "--no-model")
        assert found["chatty"]["note"] == "not asked: --no-model"
        assert len(server.requests) == asked == 2


def test_config_check_does_not_wait_for_ever(run: Run, write: Path, filled: str) -> None:
    write.write_text(f"""
[stores.good]
url = "{filled}"
[stores.slow]
url = "redis://h"
password_command = "sleep 30; echo x"
[summarizers.slow2]
kind = "command"
command = "sleep 30"
""")
    found = checks(run, 3, "--timeout", "0.5")
    assert found["slow"]["error"]["hint"] == "it took longer than 0.5 s"
    assert found["slow2"]["error"]["code"] == "timeout"
    assert max(row["seconds"] for row in found.values()) < 15


@pytest.mark.parametrize(
    "command", ["cat /dev/zero", "yes 1>&2", "sleep 60 & cat /dev/zero", "head -c 65537 /dev/zero"]
)
def test_config_command_that_prints_without_end(
    run: Run, write: Path, filled: str, command: str
) -> None:
    write.write_text(f"[stores.prod]\nurl = 'redis://h'\npassword_command = '{command}'\n")
    began = time.monotonic()
    fails(run("inspect", "prod"), 2, "password_command failed", "printed more than 64 KiB")
    write.write_text(f"[encryption]\nidentity_command = '{command}'\n")
    archive = write.with_name("a.ndjson.age")
    key = "age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p"
    assert run("export", filled, "-o", archive, "--encrypt-to", key).exit_code == 0
    fails(run("inspect", archive), 3, "identity_command failed", "printed more than 64 KiB")
    assert time.monotonic() - began < 10


def test_config_row_of_a_check_has_all_its_keys() -> None:
    assert list(CheckRow("store", "x").row()) == [
        *("what", "name", "kind", "ok", "capabilities", "seconds", "note", "error")
    ]
