"""A keeper of a server while it is in use: ``keeper.py FOLDER USER SIGNAL COMMAND...``.

The users of the server hold a shared lock on ``FOLDER/users``.  When no user is left, the keeper
stops the server and removes the folder.  If the server ends by itself, the folder stays, with the
log.
"""

from __future__ import annotations

import fcntl
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO


def main(folder: Path, user: str, stop: str, command: list[str]) -> int:
    with open(folder / "log", "wb") as log, open(folder / "users") as users:
        server = subprocess.Popen(
            command,
            cwd=folder,
            user=user or None,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        (folder / "server").write_text(str(server.pid))
        while server.poll() is None:
            if not is_used(users):
                end(server, signal.Signals[stop])
                shutil.rmtree(folder)
                return 0
            time.sleep(0.2)
    return 1


def is_used(users: IO[str]) -> bool:
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def end(server: subprocess.Popen[bytes], stop: signal.Signals) -> None:
    server.send_signal(stop)
    try:
        server.wait(10)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:]))
