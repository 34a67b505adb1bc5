"""The servers of the tests are what the tests take them for."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
import redis

from tests.support.servers import Missing
from tests.support.servers.pool import Servers, start


def test_server_postgresql_is_reached_over_tcp_and_socket(
    servers: Servers, postgresql_url: str
) -> None:
    server = servers.postgresql
    name = postgresql_url.rpartition("/")[2]
    for url in (postgresql_url, server.socket_url(postgresql_url)):
        assert server.execute(url, "SELECT current_database()") == name


def test_server_postgresql_refuses_a_wrong_password(servers: Servers, postgresql_url: str) -> None:
    url = servers.postgresql.url(postgresql_url.rpartition("/")[2], password="wrong")
    with pytest.raises(subprocess.CalledProcessError) as refused:
        servers.postgresql.execute(url, "SELECT 1")
    assert "password authentication failed" in refused.value.stderr


def test_server_mariadb_gives_an_empty_database_each_time(servers: Servers, mysql_url: str) -> None:
    servers.mariadb.execute("CREATE TABLE message (id INT)", mysql_url)
    servers.mariadb.execute("CREATE TABLE message (id INT)", servers.mariadb.fresh())


def test_server_redis_is_reached_over_tcp_and_socket(servers: Servers, redis_url: str) -> None:
    server = servers.redis
    with server.client(redis_url) as tcp, server.client(server.socket_url(redis_url)) as unix:
        tcp.set("key", "value")
        assert unix.get("key") == b"value"


def test_server_redis_asks_for_its_password(servers: Servers) -> None:
    server = servers.redis_with("password", password="a:b@/%")
    with server.client(server.fresh()) as client:
        assert client.ping()
    with (
        server.client(server.url(0, password="wrong")) as client,
        pytest.raises(redis.AuthenticationError),
    ):
        client.ping()


@pytest.mark.parametrize(("ci", "ends"), [("true", pytest.fail), ("", pytest.skip)])
def test_server_missing_server_fails_in_ci_alone(
    monkeypatch: pytest.MonkeyPatch, ci: str, ends: Any
) -> None:
    def missing() -> None:
        raise Missing("Postgres is out")

    monkeypatch.setenv("CI", ci)
    with pytest.raises(ends.Exception, match="Postgres is out"):
        start(missing)
