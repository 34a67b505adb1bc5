"""Trial of an installed memctl, in an environment that has nothing but memctl and its extras.

python tests/packaging/smoke.py: run from anywhere by the Python of that environment.  Redis is
tried where ``redis-server`` is installed.
"""

from __future__ import annotations

import json
import os
import pkgutil
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).parents[2] / "examples" / "friday.json"
MEMCTL = Path(sysconfig.get_path("scripts")) / "memctl"


def main() -> None:
    """Try one thing after the other; the first that fails ends it."""
    import memctl

    installed = Path(memctl.__file__)
    assert installed.is_relative_to(sysconfig.get_path("purelib")), f"memctl is {installed}"
    count = 0
    for module in pkgutil.walk_packages(memctl.__path__, "memctl."):
        if module.name not in ("memctl.__main__", "memctl.testing"):  # the latter needs pytest
            import_module(module.name)
            count += 1
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for name in ("CONFIG", "STATE", "CACHE", "DATA"):
            os.environ[f"XDG_{name}_HOME"] = folder
        assert run("--version").split() == ["memctl", version("agentscope-memctl")]
        configured = Path("memctl.toml")
        configured.write_text('[stores.agents]\nurl = "sqlite:///agents.db"\n', "utf-8")
        run("--config", configured, "config", "show")
        try_stores(f"sqlite:///{folder}/agents.db?state={folder}/states")
        with redis_server(Path(folder)) as url:
            if url is not None:
                try_stores(f"{url}?state=redis&prefix=smoke:")
    sys.stdout.write(
        f"memctl works with Python {sys.version.partition(' ')[0]}: {count} modules, SQLite"
        f"{', Redis' if url else ' (no redis-server here)'}\n"
    )


def try_stores(store: str) -> None:
    """Take an example through the commands."""
    folder = Path(tempfile.mkdtemp(dir="."))
    (folder / "states").mkdir()
    Path("states").mkdir(exist_ok=True)
    written = report("import", EXAMPLE, store, "--user", "ada", "--session", "kyoto")
    messages = written["messages"]["written"]
    assert messages > 0
    assert report("inspect", store)["totals"]["messages"] == messages
    for name in ("a.ndjson", "a.ndjson.gz", "a.ndjson.zst"):
        run("export", store, "--as", "archive", "-o", folder / name)
    run("export", store, "--as", "markdown", "-o", folder / "a.md")
    copy = f"sqlite:///{folder}/copy.db?state={folder}/states"
    assert report("migrate", folder / "a.ndjson.zst", copy)["messages"]["written"] == messages
    run("verify", store, copy)
    run("doctor", copy, allowed=(0, 6))
    assert report("compress", copy, "--keep-recent", "2")["messages"]["marked"] > 0
    run("undo", "--yes")
    run("verify", store, copy)


def run(*arguments: object, allowed: tuple[int, ...] = (0,)) -> str:
    """Run memctl, which must end well; return what it prints."""
    words = [str(MEMCTL), *map(str, arguments)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode in allowed, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
    assert "Warning" not in done.stderr, done.stderr
    return done.stdout


def report(*arguments: object) -> dict[str, Any]:
    """Return the JSON report of a command that ends well."""
    found: dict[str, Any] = json.loads(run(*arguments, "--json"))
    return found


@contextmanager
def redis_server(folder: Path) -> Iterator[str | None]:
    """Start a Redis server and yield its URL; None where none is installed."""
    program = shutil.which("redis-server")
    if program is None:
        yield None
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    quiet = ["--bind", "127.0.0.1", "--save", "", "--dir", str(folder), "--loglevel", "warning"]
    with subprocess.Popen(
        [program, "--port", str(port), *quiet], stdout=subprocess.DEVNULL
    ) as server:
        try:
            _wait_for(port)
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            server.terminate()


def _wait_for(port: int) -> None:
    for _ in range(100):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except ConnectionRefusedError:
            time.sleep(0.1)
        else:
            return
    raise TimeoutError("redis-server does not start")


if __name__ == "__main__":
    main()
