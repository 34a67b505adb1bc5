"""Aliases, where their passwords come from, and defaults of options."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from memctl.machine.installation import install_command
from tests.support.cli import Run, fails, report
from tests.support.servers.pool import Servers


def without_password(url: str) -> tuple[str, str]:
    """The URL without its password, and the password."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    bare = parts._replace(netloc=f"{parts.username}@{host}").geturl()
    return bare, unquote(parts.password or "")


@pytest.mark.parametrize("source", ["env", "file", "command"])
def test_config_alias_with_its_password(
    run: Run,
    write: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    postgresql_url: str,
    filled: str,
    source: str,
) -> None:
    url, password = without_password(postgresql_url)
    (tmp_path / "password").write_text(password + "\n")
    monkeypatch.setenv("DB_PASSWORD", password)
    value = {
        "env": "DB_PASSWORD",
        "file": f"{tmp_path}/password",
        "command": f"cat {tmp_path}/password",
    }[source]
    write.write_text(f'[stores.prod]\nurl = "{url}"\npassword_{source} = "{value}"\n')
    result = run("migrate", filled, "prod", "--json")
    assert report(result)["target"] == url
    assert password not in result.stdout + result.stderr


def test_config_command_is_given_no_secret_of_others(
    run: Run, write: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = {
        "PGPASSWORD": "1",
        "MYSQL_PWD": "2",
        "REDISCLI_AUTH": "3",
        "OPENAI_API_KEY": "4",
        "OTHER_STORE": "5",
        "A_MODEL": "6",
        "DATABASE_URL": "postgresql://u:7@h/d",
        "MEMCTL_PING": "https://ping/8",
        "PGSSLPASSWORD": "9",
        "MY_PASSWD": "10",
        "MONGO_PASSWORD": "11",
        "redisPassword": "12",
        "OTS_ACCESS_KEY_SECRET": "13",
        "ALIBABA_CLOUD_ACCESS_KEY_SECRET": "14",
        "SECRET_KEY": "15",
        "MINIO_ACCESS_KEY": "16",
        "AZURE_OPENAI_API_KEY": "17",
    }
    kept = {
        "VAULT_TOKEN": "a",
        "OP_SESSION_x": "b",
        "AWS_SECRET_ACCESS_KEY": "c",
        "BW_PASSWORD": "f",
        "GITHUB_TOKEN": "g",
        "PASSWORD_STORE_DIR": "h",
        "DB_PASSWORD_FILE": "i",
        "SSH_AUTH_SOCK": "d",
        "https_proxy": "http://u:e@proxy",
        "MEMCTL_CONFIG": str(write),
    }
    for name, value in (hidden | kept).items():
        monkeypatch.setenv(name, value)
    write.write_text(
        f"""
        [stores.prod]
        url = "redis://127.0.0.1:1"
        password_command = "env > {tmp_path}/given"
        [stores.other]
        url = "redis://h"
        password_env = "OTHER_STORE"
        [summarizers.model]
        kind = "openai"
        model = "m"
        api_key_env = "A_MODEL"
        """
    )
    fails(run("inspect", "prod"), 3, "cannot reach")
    given = dict(line.split("=", 1) for line in (tmp_path / "given").read_text().splitlines())
    assert not hidden.keys() & given.keys()
    assert kept.items() <= given.items()
    assert {"PATH", "HOME"} <= given.keys()


def test_config_alias_comes_before_a_path(
    run: Run, write: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, filled: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prod").mkdir()
    write.write_text(f'[stores.prod]\nurl = "{filled}"\n')
    assert report(run("inspect", "prod", "--json"))["totals"]["messages"] == 100
    assert report(run("inspect", "./prod", "--json"))["totals"]["messages"] == 0


def test_config_alias_without_a_configuration(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a cron job with another HOME."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MEMCTL_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
    fails(
        *(run("inspect", "prod"), 2, f"{tmp_path}/none/memctl/config.toml does not exist"),
        "name the configuration with --config or MEMCTL_CONFIG, or write ./prod",
    )


def test_config_named_configuration(run: Run, tmp_path: Path, filled: str) -> None:
    path = tmp_path / "other.toml"
    path.write_text(f'[stores.prod]\nurl = "{filled}"\n')
    assert report(run("--config", path, "inspect", "prod", "--json"))["totals"]["memories"] == 4
    fails(run("--config", tmp_path / "none.toml", "inspect", filled), 4, "none.toml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[stores.prod", "is not valid TOML"),
        (f"x = {'[' * 1000}{']' * 1000}", "nested too deep"),
        ("[store.prod]\nurl = 'x.db'", "did you mean 'stores'"),
        ("[stores.prod]\nurll = 'x.db'", "did you mean 'url'"),
        ("[stores.prod]\npassword_env = 'X'", "stores.prod has no url"),
        ("[stores]\nprod = 'x.db'", "stores.prod must be a table"),
        ("[stores.prod]\nurl = 'x.db'\npassword_env = 'A'\npassword_file = 'b'", "several"),
        ("[stores.prod]\nurl = 'x.db'\npassword_env = 'A'", "is a file, which takes no password"),
        ("[stores.prod]\nurl = 'redis://h'\npassword_env = 'MISSING'", "MISSING"),
        ("[stores.prod]\nurl = 'redis://h'\npassword_file = '/none'", "/none"),
        ("[stores.prod]\nurl = 'redis://h'\npassword_command = 'exit 3'", "password_command"),
        ("[stores.prodd]\nurl = 'x.db'", "did you mean 'prodd'"),
        ("[stores.prod]\nurl = 'redis://h'\npassword_keyring = 'x'", "service/name"),
        ("[stores.prod]\nurl = 'redis://h'\npassword_keyrings = 'x'", "'password_keyring'"),
        ("defaults = 3", "[defaults.COMMAND]"),
        ("[defaults]\ncolour = 'never'", "did you mean 'color'"),
        ("[defaults]\ncolor = 'nevr'", "did you mean 'never'"),
        ("[defaults]\ninspect = 3", "[defaults.inspect]"),
        ("[defaults.color]\nx = 3", "write color ="),
        ("[defaults.inspekt]\nlimit = 3", "did you mean 'inspect'"),
        ("[defaults.inspect]\nlimitt = 3", "did you mean 'limit'"),
        ("[defaults.inspect]\nlimit = 'many'", "defaults.inspect.limit"),
        ("[defaults.inspect]\nlimit = [3]", "defaults.inspect.limit"),
        ("[defaults.inspect]\nmessages = 'yes'", "messages = true"),
        ("[defaults.inspect]\njson = true", 'format to "json"'),
    ],
)
def test_config_mistakes(run: Run, write: Path, text: str, said: str) -> None:
    write.write_text(text)
    fails(run("inspect", "prod"), 2, said)
    result = run("inspect", "prod", "--json")
    assert report(result, 2)["error"]["code"] == "usage"


def test_config_summarizer_whose_kind_is_not_a_text(run: Run, write: Path) -> None:
    write.write_text('[summarizers.night]\nkind = ["openai"]')
    fails(
        run("config", "show"),
        2,
        "summarizers.night.kind must be one of openai, command, extractive",
    )


def test_config_file_that_is_no_text(run: Run, write: Path) -> None:
    write.write_bytes(b"[stores.\xff]")
    fails(run("inspect", "prod"), 2, "is not valid TOML")


RING = """
from keyring.backend import KeyringBackend
from keyring.errors import KeyringLocked

class Ring(KeyringBackend):
    priority = 1
    def get_password(self, service, name):
        if service == "asking":
            return input("your password? ")
        if service == "locked":
            raise KeyringLocked("sesame does not open it")
        return {("memctl/db", "prod"): "p@ss wörd"}.get((service, name))
    def set_password(self, service, name, password):
        raise NotImplementedError
"""


@pytest.fixture
def ring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A keyring with one password."""
    (tmp_path / "rings.py").write_text(RING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "rings.Ring")


@pytest.mark.slow
@pytest.mark.usefixtures("ring")
def test_config_password_of_the_keyring(run: Run, write: Path, servers: Servers) -> None:
    guarded = servers.redis_with("keyring", password="p@ss wörd")
    url, _ = without_password(guarded.fresh())
    write.write_text(f'[stores.prod]\nurl = "{url}"\npassword_keyring = "memctl/db/prod"\n')
    result = run("inspect", "prod", "--json")
    assert report(result)["totals"]["messages"] == 0
    assert "wörd" not in result.stdout + result.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("ring")
@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("memctl/db/other", "the keyring has no 'other' of 'memctl/db'"),
        ("locked/prod", "(keyring.errors.KeyringLocked)"),
        ("asking/prod", "(EOFError)"),
    ],
)
def test_config_keyring_that_gives_nothing(run: Run, write: Path, where: str, said: str) -> None:
    write.write_text(f'[stores.prod]\nurl = "redis://h"\npassword_keyring = "{where}"\n')
    result = run("inspect", "prod")
    fails(result, 2, said)
    assert "sesame" not in result.stderr


def test_config_without_the_library_of_keyrings(
    run: Run, write: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "memctl.config.secrets.find_spec", lambda name: None if name == "keyring" else find(name)
    )
    write.write_text('[stores.prod]\nurl = "redis://h"\npassword_keyring = "a/b"\n')
    fails(run("inspect", "prod"), 2, install_command("keyring"))


def test_config_default_of_the_file_of_the_environment_and_the_command_line(
    run: Run, write: Path, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write.write_text('[defaults]\nformat = "csv"\n[defaults.inspect]\nsort = "user"\nlimit = 3\n')
    assert len(list(csv.DictReader(run("inspect", filled).stdout.splitlines()))) == 3
    monkeypatch.setenv("MEMCTL_FORMAT", "ndjson")
    rows = [json.loads(line) for line in run("inspect", filled).stdout.splitlines()]
    assert [row["user"] for row in rows] == sorted(row["user"] for row in rows)
    monkeypatch.setenv("MEMCTL_INSPECT_FORMAT", "json")
    monkeypatch.setenv("MEMCTL_INSPECT_SORT", "messages")
    found = report(run("inspect", filled))["memories"]
    assert [row["messages"] for row in found] == [40, 30, 20]
    assert run("inspect", filled, "--format", "csv").stdout.startswith("user,")
    monkeypatch.setenv("MEMCTL_INSPECT_SORT", "")
    assert report(run("inspect", filled))["memories"] != found


def test_config_options_that_repeat(
    run: Run, write: Path, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write.write_text('[defaults.inspect]\nuser = ["user0"]\nsince = 2000-01-31\n')
    both = report(run("inspect", filled, "--user", "user0", "--user", "user1", "--json"))["totals"]
    one = report(run("inspect", filled, "--json"))["totals"]
    assert (both["users"], one["users"]) == (2, 1)
    monkeypatch.setenv("MEMCTL_INSPECT_USER", "user0\nuser1")
    assert report(run("inspect", filled, "--json"))["totals"] == both
    monkeypatch.setenv("MEMCTL_INSPECT_USER", "user0 user1")  # a name, however odd
    fails(run("inspect", filled), 4, "'user0 user1'")


def test_config_commands_below_a_command(run: Run, write: Path, filled: str) -> None:
    write.write_text('[defaults.mark.list]\nformat = "json"\n')
    assert json.loads(run("mark", "list", filled).stdout)["schema"] == "memctl/mark/1"
    write.write_text('[defaults.mark]\nformat = "json"\n')
    fails(run("mark", "list", filled), 2, "unknown key defaults.mark.format")


def test_config_global_options(run: Run, write: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write.write_text('[defaults]\nlog-format = "json"\n')
    assert json.loads(run("inspect", "none.db").stderr)["level"] == "error"
    assert run("--log-format", "text", "inspect", "none.db").stderr.startswith("memctl: error")
    monkeypatch.setenv("MEMCTL_LOG_FORMAT", "text")
    assert run("inspect", "none.db").stderr.startswith("memctl: error")


def test_config_paths_of_the_file_may_be_at_home(
    run: Run, write: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, filled: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write.write_text('[defaults.compress]\nprompt-file = "~/none.txt"\n')
    fails(run("compress", filled, "--all", "--dry-run"), 2, f"{tmp_path}/none.txt cannot be read")


@pytest.mark.parametrize("name", ["yes", "all", "backup"])
def test_config_what_must_be_said_on_the_command_line(
    run: Run, write: Path, filled: str, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    write.write_text(f"[defaults.delete]\n{name} = false\n")
    fails(run("delete", filled, "--mark", "hint", "--yes"), 2, "on the command line only")
    write.write_text("")
    monkeypatch.setenv(f"MEMCTL_DELETE_{name.upper()}", "1")
    fails(run("delete", filled, "--mark", "hint", "--yes"), 2, f"MEMCTL_DELETE_{name.upper()}")


def test_config_what_is_wrong_does_not_keep_from_helping(run: Run, write: Path) -> None:
    write.write_text("[defaults]\ncolour = 1\n")
    for words in (["--help"], ["inspect", "--help"], ["mark", "list", "--help"]):
        assert run(*words).exit_code == 0
    fails(run("stores"), 2, "defaults.colour")


def test_config_completion_is_silent_about_the_configuration(write: Path) -> None:
    write.write_text("[defaults]\ncolour = 1\n")
    done = subprocess.run(
        [sys.executable, "-m", "memctl", "memctl ins", "ins"],
        env=os.environ | {"_MEMCTL_COMPLETE": "bash"},
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("values\ninspect\n", "")


@pytest.fixture(autouse=True)
def no_login(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("PGPASSWORD", "PGPASSFILE", "MYSQL_PWD", "REDISCLI_AUTH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.mark.slow
def test_login_password_of_the_environment(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    servers: Servers,
    filled: str,
    postgresql_url: str,
    mysql_url: str,
) -> None:
    locked = servers.redis_with("locked", password="right")
    redis = locked.url(2, password="")
    for name, (url, password) in {
        "PGPASSWORD": without_password(postgresql_url),
        "MYSQL_PWD": without_password(mysql_url),
        "REDISCLI_AUTH": (redis, locked.password),
    }.items():
        fails(run("migrate", filled, url), 3)
        monkeypatch.setenv(name, password)
        found = report(run("migrate", filled, url, "--json"))
        assert found["memories"]["written"] == 4


@pytest.mark.slow
def test_login_password_of_pgpass(
    run: Run, servers: Servers, tmp_path: Path, filled: str, postgresql_url: str
) -> None:
    parts = urlsplit(postgresql_url)
    role = parts.path.strip("/") + "_agent"
    create = f"CREATE ROLE {role} LOGIN PASSWORD 'p4ss w0rd'; GRANT ALL ON SCHEMA public TO {role}"
    servers.postgresql.execute(servers.postgresql.admin_url(postgresql_url), create)
    url = parts._replace(netloc=f"{role}@{parts.hostname}:{parts.port}").geturl()
    fails(run("migrate", filled, url), 3)
    path = tmp_path / ".pgpass"
    path.write_text(f"{parts.hostname}:{parts.port}:*:{role}:p4ss w0rd\n")
    path.chmod(0o600)
    assert report(run("migrate", filled, url, "--json"))["memories"]["written"] == 4
    other = parts._replace(netloc=f"{role}_2:p4ss@{parts.hostname}:{parts.port}").geturl()
    servers.postgresql.execute(
        servers.postgresql.admin_url(postgresql_url), f"CREATE ROLE {role}_2 LOGIN PASSWORD 'p4ss'"
    )
    fails(run("inspect", other), 3, "permission denied for table", "SELECT to read")


@pytest.mark.slow
def test_login_what_a_login_needs_to_change_memories(
    run: Run, servers: Servers, filled: str, mysql_url: str
) -> None:
    assert run("migrate", filled, mysql_url).exit_code == 0
    database = urlsplit(mysql_url).path.strip("/")
    login = f"{database}_ops"
    servers.mariadb.execute(f"CREATE USER {login} IDENTIFIED BY 'p4ss'")
    grant = "GRANT SELECT, INSERT, UPDATE, DELETE"
    servers.mariadb.execute(f"{grant} ON {database}.* TO {login}")
    url = servers.mariadb.url(database, user=login, password="p4ss")
    servers.mariadb.execute(f"REVOKE SELECT ON {database}.* FROM {login}")
    fails(run("inspect", url), 3, "denied", "SELECT to read")
    servers.mariadb.execute(f"{grant} ON {database}.* TO {login}")
    delete = ("delete", url, "--mark", "hint", "--yes")
    assert run("inspect", url).exit_code == 0
    fails(run(*delete), 3, "CREATE TEMPORARY TABLES")
    servers.mariadb.execute(f"{grant}, CREATE TEMPORARY TABLES ON {database}.* TO {login}")
    assert report(run(*delete, "--json"))["messages"]["deleted"] > 0


@pytest.mark.slow
def test_login_socket_and_settings_as_libpq_has_them(
    run: Run, servers: Servers, filled: str, postgresql_url: str, mysql_url: str
) -> None:
    for url in (
        servers.postgresql.socket_url(postgresql_url),
        servers.mariadb.socket_url(mysql_url),
        postgresql_url.replace("postgresql://", "postgresql+asyncpg://") + "?sslmode=prefer",
    ):
        assert run("migrate", filled, url).exit_code == 0
    fails(run("migrate", filled, postgresql_url + "?sslmode=require"), 3)
