"""Stores and commands of other distributions, and what becomes of those that are broken."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from memctl.testing import samples
from tests.plugin.conftest import install
from tests.support.cli import Run, fails, fill, report


@pytest.fixture
def lines(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store of the plugin with two memories."""
    request.getfixturevalue("plugin")
    text = str(tmp_path / "m.lines")
    asyncio.run(fill(text, {samples.key(n): samples.entries(5) for n in range(2)}))
    return text


def test_plugin_store_by_its_ending_and_by_its_scheme(run: Run, lines: str) -> None:
    for text in (lines, f"lines://{lines}"):
        found = report(run("inspect", text, "--json"))
        assert found["store"]["kind"] == "lines"
        assert found["totals"]["messages"] == 10


@pytest.mark.slow
def test_plugin_commands_work_on_a_store_of_a_plugin(run: Run, lines: str, tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path}/m.db"
    assert report(run("migrate", lines, database, "--json"))["messages"]["written"] == 10
    assert run("verify", lines, database).exit_code == 0
    deleted = report(run("delete", lines, "--mark", "hint", "--yes", "--json"))
    assert deleted["messages"]["deleted"] > 0
    assert run("verify", lines, database).exit_code == 6
    assert run("undo", "--yes").exit_code == 0
    assert run("verify", lines, database).exit_code == 0
    fails(run("export", lines.replace("m.", "none."), "-o", tmp_path / "x.ndjson"), 4)


@pytest.mark.usefixtures("plugin")
def test_plugin_layout_of_sql_tables(
    run: Run, postgresql_url: str, mysql_url: str, tmp_path: Path
) -> None:
    source, chats = f"{tmp_path}/m.db", f"{postgresql_url}?layout=chats"
    asyncio.run(fill(source, {samples.key(n): samples.entries(5) for n in range(2)}))
    assert report(run("migrate", source, chats, "--json"))["messages"]["written"] == 10
    assert run("verify", source, chats).exit_code == 0
    found = report(run("inspect", chats, "--json"))
    assert found["store"]["kind"] == "postgresql-chats"
    assert "?layout=chats: Chats in PostgreSQL" in run("inspect", chats).stdout
    assert run("delete", chats, "--mark", "hint", "--yes").exit_code == 0
    assert run("verify", source, chats).exit_code == 6
    assert run("undo", "--store", chats, "--yes").exit_code == 0
    assert run("verify", source, chats).exit_code == 0
    fails(run("inspect", f"{mysql_url}?layout=chats"), 2, "layout=chats is not for MySQL")
    fails(run("inspect", f"{postgresql_url}?layout=chat"), 2, "layout=chat is unknown", "chats")
    kinds = {row["kind"] for row in report(run("stores", "--json"))["stores"]}
    assert {kind for kind in kinds if "chats" in kind} == {"sqlite-chats", "postgresql-chats"}


@pytest.mark.usefixtures("plugin")
def test_plugin_store_of_a_plugin_is_listed(run: Run) -> None:
    [row] = [row for row in report(run("stores", "--json"))["stores"] if row["kind"] == "lines"]
    assert row["what"] == "memories as lines of JSON"
    assert row["written_as"] == "lines://PATH, PATH.lines"
    assert row["capabilities"] == ["summaries", "empty", "mark-order"]


@pytest.mark.slow
def test_plugin_command(run: Run, lines: str) -> None:
    listed = run("--help").stdout
    assert "List who has memories in a store." in listed
    done = run("users", lines)
    assert done.exit_code == 0, done.output
    assert done.stdout.split() == sorted({samples.key(n).user for n in range(2)})
    fails(run("users", "nowhere.lines"), 4, "does not exist")
    assert "A name on each line" in run("users", "--help").stdout


@pytest.mark.slow
def test_plugin_broken_plugin_breaks_nothing_else(run: Run, site: Path, tmp_path: Path) -> None:
    (site / "broken.py").write_text("raise RuntimeError('out of order')\n", "utf-8")
    broken = {"torn": "broken:Torn"}
    install(site, "torn", {"memctl.stores": broken, "memctl.commands": broken})
    listed = run("--help")
    assert listed.exit_code == 0
    assert "RuntimeError: out of order" in " ".join(listed.stdout.split())
    found = run("stores", "--json")
    assert "torn" in found.stderr
    rows = {row["kind"]: row for row in report(found)["stores"]}
    assert "uninstall" in rows["torn"]["missing"]
    assert rows["sqlite"]["capabilities"]
    fails(run("inspect", "torn://x"), 2, "of torn cannot be loaded: RuntimeError: out of order")
    fails(run("torn"), 2, "cannot be loaded")
    fails(run("inspect", f"{tmp_path}/none.db"), 4)
    config = tmp_path / "config.toml"
    config.write_text("[defaults.torn]\nspeed = 3\n[defaults.inspect]\nlast = 7\n", "utf-8")
    shown = run("--config", config, "config", "show", "--json")
    settings = {row["key"]: row["value"] for row in report(shown)["settings"]}
    assert str(settings["defaults.inspect.last"]) == "7"
    for done in (shown, run("--config", config, "config", "check")):
        assert done.exit_code == 0, done.output
        assert done.stderr.count("the plugin 'torn' of torn cannot be loaded") == 1


def test_plugin_what_is_no_store_and_no_command(run: Run, site: Path) -> None:
    install(site, "odd", {"memctl.stores": {"odd": "json:loads"}})
    install(site, "even", {"memctl.commands": {"even": "json:__name__"}})
    fails(run("inspect", "odd://x"), 2, "is not a store")
    fails(run("even"), 2, "is not a command")


def test_plugin_name_that_two_offer(run: Run, site: Path) -> None:
    install(site, "one", {"memctl.stores": {"twice": "a:A"}})
    install(site, "two", {"memctl.stores": {"twice": "b:B"}})
    fails(run("inspect", "twice://x"), 2, "is offered by one and two")


def test_plugin_names_of_memctl_are_its_own(run: Run, site: Path, tmp_path: Path) -> None:
    (site / "broken.py").write_text("raise RuntimeError\n", "utf-8")
    install(
        *(site, "greedy"),
        {
            "memctl.stores": {"sqlite": "broken:S", "db": "broken:S"},
            "memctl.commands": {"inspect": "broken:c"},
        },
    )
    fails(run("inspect", f"sqlite:///{tmp_path}/none.db"), 4)
    fails(run("inspect", tmp_path / "none.db"), 4)
    assert [row["kind"] for row in report(run("stores", "--json"))["stores"]].count("sqlite") == 1
