"""Logins that do not stand in the URL, read as the tools of each database read them."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.commands.test_config import without_password
from tests.support.cli import Run, fails, report
from tests.support.servers.pool import Servers


@pytest.fixture(autouse=True)
def no_login(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("PGPASSWORD", "PGPASSFILE", "MYSQL_PWD", "REDISCLI_AUTH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


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
    delete = ("delete", url, "--mark", "hint", "--yes")
    assert run("inspect", url).exit_code == 0
    fails(run(*delete), 3, "temporary tables")
    servers.mariadb.execute(f"{grant}, CREATE TEMPORARY TABLES ON {database}.* TO {login}")
    assert report(run(*delete, "--json"))["messages"]["deleted"] > 0


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
