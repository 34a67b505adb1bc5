"""Sources of passwords and keys: the environment, a file, a command or the keyring.

The configuration itself contains no secret.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import IO, NamedTuple

from memctl.errors import UsageError
from memctl.machine import system

COMMAND_TIMEOUT = 30.0
"""The maximum number of seconds for a command or the keyring."""
_MOST = 64 * 1024
"""The maximum number of bytes that a command or the keyring may print."""
_NOT_FOUND = 44
# A separate process reads the keyring.  A backend that would prompt for a password finds no
# terminal.  A backend that waits is stopped.  Backends are plugins and may raise anything; every
# exception becomes an exit code.
_ASK_KEYRING = f"""
import sys
import keyring
found = keyring.get_password(sys.argv[1], sys.argv[2])
if found is None:
    sys.exit({_NOT_FOUND})
sys.stdout.buffer.write(found.encode())
"""


class SecretSource(NamedTuple):
    """The source of a secret: a key such as ``password_command``, and its value in ``where``.

    ``what`` names the secret in errors, such as ``the password of 'prod'``.  A command and the
    keyring do not get the environment variables ``hidden``.
    """

    key: str
    where: str
    what: str
    hidden: Collection[str]

    def fetch(self, environment: Mapping[str, str], timeout: float = COMMAND_TIMEOUT) -> str:
        """Fetch the secret: from a variable, a file, a command or the keyring.

        ``environment`` has variables that may contain it.  A command and the keyring may take
        ``timeout`` seconds.

        Raises:
            UsageError: the secret cannot be fetched.
        """
        match self.key.rpartition("_")[2]:
            case "env":
                if self.where not in environment:
                    raise UsageError(
                        f"{self.what}: the variable {self.where} is not set", f"export {self.where}"
                    )
                return environment[self.where]
            case "file":
                try:
                    content = system.read_file(Path(self.where).expanduser())
                    return content.decode().rstrip("\r\n")
                except (OSError, UnicodeDecodeError) as error:
                    why = getattr(error, "strerror", None) or "it is not valid UTF-8"
                    raise UsageError(
                        f"{self.what} cannot be read from {self.where}: {why}",
                        f"check {self.key} in the configuration, and the permissions of the file",
                    ) from error
            case "keyring":
                return _from_keyring(self.what, self.where, timeout, self.hidden)
            case _:
                what = f"{self.what}: its {self.key}"
                return _from_command(what, self.where, timeout, self.hidden)


def source(
    path: Path, place: str, table: object, name: str, what: str, hidden: Collection[str]
) -> SecretSource | None:
    """Return the source of a secret that a table of the configuration sets; None without a source.

    ``table`` has a field for each source, such as ``password_env``, which is empty if it is not
    set.  ``name`` is the secret: ``password``, ``api_key`` or ``identity``.  ``path`` is the file
    and ``place`` the name of the table; both are for errors.  ``what`` and ``hidden`` are those of
    ``SecretSource``.

    Raises:
        UsageError: the table sets several sources.
    """
    keys = (f"{name}_{how}" for how in ("env", "file", "command", "keyring"))
    found = [key for key in keys if getattr(table, key, "")]
    if len(found) > 1:
        raise UsageError(f"{path}: {place} has several of {', '.join(found)}", "keep one of them")
    return SecretSource(found[0], getattr(table, found[0]), what, hidden) if found else None


def _from_command(what: str, command: str, timeout: float, secrets: Collection[str]) -> str:
    code, output, _ = _run(what, command, timeout, secrets, shell=True)
    if code:
        raise UsageError(f"{what} failed", f"it ended with exit code {code}")
    return _text(what, output).rstrip("\r\n")


def _from_keyring(what: str, where: str, timeout: float, secrets: Collection[str]) -> str:
    """Return the secret of the keyring for ``where``, written ``service/name``.

    ``what`` names the secret in errors.  A service may contain slashes.

    Raises:
        UsageError: ``where`` is not valid, or the secret cannot be fetched.
    """
    service, _, name = where.rpartition("/")
    if not service or not name:
        raise UsageError(f"{what}: {where!r} is not an entry of a keyring", 'write "service/name"')
    if find_spec("keyring") is None:
        from memctl.machine.installation import install_command  # slow to load

        raise UsageError(
            f"{what} is in the keyring, and the library 'keyring' is not installed",
            install_command("keyring"),
        )
    # -P prevents the import of a keyring.py in the working folder.
    words = [sys.executable, "-P", "-c", _ASK_KEYRING, service, name]
    code, output, stderr = _run(f"{what}: the keyring", words, timeout, secrets, shell=False)
    if code == _NOT_FOUND:
        raise UsageError(
            f"{what}: the keyring has no {name!r} of {service!r}",
            f"keyring set {service} {name}",
        )
    if code:
        # The last line is "module.Exception: message".  The message is cut off: it may hold
        # secrets.
        last = stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise UsageError(
            f"{what} cannot be fetched from the keyring ({last.partition(':')[0]})",
            "unlock it; check it with: keyring diagnose",
        )
    return _text(what, output)


def _text(what: str, output: bytes) -> str:
    try:
        return output.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{what} is not valid UTF-8", "store it as UTF-8 text") from error


def _run(
    what: str,
    command: str | list[str],
    timeout: float,
    secrets: Collection[str],
    *,
    shell: bool,
) -> tuple[int, bytes, bytes]:
    """Run a command; return its exit code, standard output and standard error.

    ``what`` names the command in errors.  The command does not get the environment variables
    ``secrets``.  With ``shell``, a shell runs the command, and may ask at the terminal.

    Raises:
        UsageError: the command cannot be started, takes longer than ``timeout`` seconds, or prints
            more than ``_MOST`` bytes.
    """
    try:
        process = subprocess.Popen(
            command,
            shell=shell,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,  # a pipe can be closed while a thread reads it
            env=system.child_environment(secrets),
            # A shell command may prompt at the terminal.
            start_new_session=not shell,
        )
    except (OSError, ValueError) as error:
        raise UsageError(f"{what} failed", str(error)) from error
    printed: Queue[tuple[int, bytes]] = Queue()
    until = time.monotonic() + timeout
    output: dict[int, bytes] = {}
    with process:
        try:
            for number, pipe in enumerate((process.stdout, process.stderr)):
                Thread(target=_read, args=(number, pipe, printed), daemon=True).start()
            while len(output) < 2:
                number, text = printed.get(timeout=max(0, until - time.monotonic()))
                if len(text) > _MOST:
                    raise UsageError(f"{what} failed", f"it printed more than {_MOST >> 10} KiB")
                output[number] = text
            process.wait(max(0, until - time.monotonic()))
        except (Empty, subprocess.TimeoutExpired) as error:
            raise UsageError(f"{what} failed", f"it took longer than {timeout:g} s") from error
        finally:
            # Do not wait for the end of the pipes: child processes may hold them open.
            process.kill()
    return process.returncode, output[0], output[1]


def _read(number: int, pipe: IO[bytes], printed: Queue[tuple[int, bytes]]) -> None:
    """Put what a pipe gives into ``printed``, with its number: all, or a little too much."""
    text = b""
    with suppress(OSError, ValueError):  # closed meanwhile
        while len(text) <= _MOST and (piece := pipe.read(_MOST)):
            text += piece
    printed.put((number, text))
