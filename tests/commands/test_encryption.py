"""Archives that are encrypted by age, with keys of each kind; the program ``age`` reads them."""

from __future__ import annotations

import asyncio
import random
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import Result

from memctl.testing import samples
from tests.support.cli import Run, contents, fails, fill, report

pytest.importorskip("pyrage")
AGE = shutil.which("age") is not None and shutil.which("ssh-keygen") is not None
needs_age = pytest.mark.skipif(not AGE, reason="needs the programs age and ssh-keygen")
USER = ("--user", "user1")


class Key(NamedTuple):
    """A recipient, and the file with its identity."""

    recipient: str
    file: Path


def age_key(folder: Path) -> Key:
    import pyrage

    identity = pyrage.x25519.Identity.generate()
    file = folder / f"{len(list(folder.iterdir()))}.txt"
    file.write_text(f"# created: now\n{identity}\n")
    file.chmod(0o600)
    return Key(str(identity.to_public()), file)


def ssh_key(folder: Path, kind: str, passphrase: str = "") -> Key:
    file = folder / f"{kind}-{passphrase}"
    subprocess.run(
        ["ssh-keygen", "-q", "-t", kind, "-b", "2048", "-N", passphrase, "-C", "", "-f", file],
        check=True,
    )
    return Key(file.with_name(file.name + ".pub").read_text().strip(), file)


MAKE: dict[str, Callable[[Path], Key]] = {
    "age": age_key,
    "ssh-ed25519": lambda folder: ssh_key(folder, "ed25519"),
    "ssh-rsa": lambda folder: ssh_key(folder, "rsa"),
}


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    folder = tmp_path / "keys"
    folder.mkdir()
    return folder


@pytest.fixture
def key(keys: Path, write: Path) -> Key:
    """The key of the configuration."""
    found = age_key(keys)
    configure(write, found, found.recipient)
    return found


def configure(path: Path, key: Key | None, *recipients: str) -> None:
    lines = ["[encryption]", f"recipients = {[*recipients]}"]
    if key is not None:
        lines.append(f'identity_file = "{key.file}"')
    path.write_text("\n".join(lines))
    path.chmod(0o600)


def age(*words: object, data: bytes | None = None) -> bytes:
    done = subprocess.run(["age", *map(str, words)], input=data, capture_output=True, check=True)
    return done.stdout


@pytest.mark.slow
@needs_age
@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("extension", ["ndjson", "ndjson.gz", "ndjson.zst"])
def test_age_reads_what_export_writes_and_the_reverse(
    run: Run, filled: str, tmp_path: Path, keys: Path, write: Path, kind: str, extension: str
) -> None:
    key, other = MAKE[kind](keys), age_key(keys)
    write.touch()
    file, plain = tmp_path / f"a.{extension}.age", tmp_path / f"plain.{extension}"
    words = ["--encrypt-to", key.recipient, "--encrypt-to", other.recipient]
    assert run("export", filled, "-o", file, *words).exit_code == 0
    assert file.stat().st_mode & 0o777 == 0o600
    for one in (key, other):
        plain.write_bytes(age("--decrypt", "--identity", one.file, file))
        assert run("verify", filled, plain).exit_code == 0
    # The reverse, whatever the name of the file is.
    file.write_bytes(age("--recipient", key.recipient, plain))
    shutil.copy(file, hidden := tmp_path / "hidden.ndjson")
    armored = tmp_path / "armored.ndjson.age"
    armored.write_bytes(age("--armor", "--recipient", key.recipient, plain))
    configure(write, key)
    for one in (file, hidden, armored):
        assert run("verify", filled, one).exit_code == 0


@pytest.mark.slow
@needs_age
def test_sizes_from_nothing_to_many_chunks(run: Run, tmp_path: Path, key: Key) -> None:
    for size in (0, 1, 65_000, 70_000, 5_000_000):
        file = tmp_path / f"{size}.ndjson.age"
        text = random.Random(size).randbytes(size // 2).hex()
        found = {samples.key(0): [samples.entry("m", content=text)]} if size else {}
        asyncio.run(fill(place := f"sqlite:///{tmp_path}/{size}.db", found))
        assert run("export", place, "-o", file, "--min-memories", 0).exit_code == 0
        assert age("--decrypt", "-i", key.file, file).startswith(b'{"memctl":"archive"')
        if size:
            assert contents_of(run, file, tmp_path) == contents(place)


def contents_of(run: Run, file: Path, tmp_path: Path) -> Any:
    target = f"sqlite:///{tmp_path}/{file.name}.db"
    assert run("import", file, target).exit_code == 0
    return contents(target)


@pytest.mark.slow
@pytest.mark.usefixtures("key")
def test_every_change_keeps_the_archive_encrypted(run: Run, filled: str, tmp_path: Path) -> None:
    file = tmp_path / "a.ndjson.zst.age"
    assert run("migrate", filled, file).exit_code == 0
    shutil.copy(file, hidden := tmp_path / "b.ndjson")
    for one in (file, hidden):
        assert report(run("delete", one, *USER, "--yes", "--json"))["messages"]["deleted"] == 40
        assert one.read_bytes().startswith(b"age-encryption.org/v1\n")
        assert run("undo", "--store", one, "--yes").exit_code == 0
        assert run("verify", filled, one).exit_code == 0
        assert run("mark", "add", one, "m", *USER).exit_code == 0
        assert run("erase", one, *USER, "--yes").exit_code == 0
        assert one.read_bytes().startswith(b"age-encryption.org/v1\n")
        assert run("verify", filled, one, *USER).exit_code == 6
        assert run("import", hidden, file).exit_code in (0, 5)


@pytest.mark.slow
def test_streams_are_encrypted_and_read(run: Run, filled: str, tmp_path: Path, key: Key) -> None:
    plain = run("export", filled).stdout_bytes
    assert plain.startswith(b"{")  # the recipients of the configuration are for names with .age
    for command in (["export", filled], ["migrate", filled, "-"]):
        data = run(*command, "--encrypt-to", key.recipient).stdout_bytes
        assert data.startswith(b"age-encryption.org/v1\n")
        target = f"sqlite:///{tmp_path}/{command[0]}.db"
        assert run("import", "-", target, input=data).exit_code == 0
        assert contents(target) == contents(filled)


@pytest.mark.usefixtures("key")
def test_other_encrypted_exports_are_named(run: Run, filled: str, tmp_path: Path) -> None:
    file = tmp_path / "messages.jsonl.age"
    assert run("export", filled, "-o", file).exit_code == 0
    shutil.copy(file, hidden := tmp_path / "hidden.ndjson")
    for one in (file, hidden):
        for words in (["inspect", one], ["import", one, f"sqlite:///{tmp_path}/new.db"]):
            fails(
                run(*words), 8, "is encrypted, and its content is not an archive", "age --decrypt"
            )
    assert not (tmp_path / "new.db").exists()


@pytest.mark.usefixtures("key")
def test_rotation(run: Run, filled: str, tmp_path: Path) -> None:
    name = tmp_path / "n.ndjson.zst.age"
    for _ in range(3):
        assert run("export", filled, "-o", name, "--rotate", "last:2").exit_code == 0
    assert len(list(tmp_path.glob("n-*.ndjson.zst.age"))) == 2
    assert run("verify", filled, f"{name}@latest").exit_code == 0


def test_missing_and_wrong_identities(
    run: Run, filled: str, tmp_path: Path, key: Key, keys: Path, write: Path
) -> None:
    file, target = tmp_path / "a.ndjson.age", tmp_path / "target.db"
    assert run("export", filled, "-o", file).exit_code == 0
    before = file.read_bytes()

    def refused(code: int, *said: str) -> None:
        for words in (["import", file, target], ["delete", file, *USER, "--yes"]):
            fails(run(*words), code, *said)
        assert file.read_bytes() == before
        assert not target.exists()

    configure(write, None, key.recipient)
    refused(3, "a.ndjson.age is encrypted, and there is no identity", "identity_file")
    configure(write, age_key(keys), key.recipient)
    refused(3, "a.ndjson.age is encrypted for other keys")
    configure(write, Key("", keys / "missing"), key.recipient)
    refused(3, "cannot be read from", "missing: No such file or directory", "check identity_file")
    for text, said in (
        ("# nothing\n", "no secret key"),
        ("AGE-SECRET-KEY-1NONSENSE\n", "line 1"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----\n", "not an SSH key"),
        ("age-encryption.org/v1\n-> scrypt x\n", "passphrase"),
    ):
        (keys / "other").write_text(text)
        configure(write, Key("", keys / "other"), key.recipient)
        refused(3, said)
    # An edit must be able to write the archive again.
    configure(write, key)
    fails(run("delete", file, *USER, "--yes"), 2, "no recipient", "--encrypt-to")
    assert file.read_bytes() == before


@needs_age
def test_ssh_key_with_a_passphrase(
    run: Run, filled: str, tmp_path: Path, keys: Path, write: Path
) -> None:
    key = ssh_key(keys, "ed25519", "passphrase")
    configure(write, key, key.recipient)
    assert run("export", filled, "-o", tmp_path / "a.ndjson.age").exit_code == 0
    fails(run("inspect", tmp_path / "a.ndjson.age"), 3, "SSH key with a passphrase")


def test_identity_of_a_command_is_fetched_once(
    run: Run, filled: str, tmp_path: Path, key: Key, write: Path
) -> None:
    calls = tmp_path / "calls"
    write.write_text(
        f"[encryption]\nrecipients = ['{key.recipient}']\n"
        f"identity_command = 'echo >> {calls}; cat {key.file}'\n"
    )
    file = tmp_path / "a.ndjson.age"
    assert run("export", filled, "-o", file).exit_code == 0
    assert not calls.exists()
    assert run("verify", filled, file).exit_code == 0
    assert calls.read_text() == "\n"


@pytest.mark.usefixtures("key")
@pytest.mark.parametrize("extension", ["ndjson", "ndjson.gz", "ndjson.zst"])
def test_damage_is_bad_data(run: Run, filled: str, tmp_path: Path, extension: str) -> None:
    file, target = tmp_path / f"a.{extension}.age", tmp_path / "target.db"
    assert run("export", filled, "-o", file).exit_code == 0
    data = file.read_bytes()
    middle = len(data) // 2
    for broken in (
        data[:-1],
        data[:middle],
        data[:100],
        data[:23],
        data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :],
        data + b"\0",
    ):
        file.write_bytes(broken)
        fails(run("import", file, target), 8, "truncated or damaged")
        assert not target.exists()
    assert not [thread for thread in threading.enumerate() if thread.name == "age"]


def test_refused_recipients(run: Run, filled: str, tmp_path: Path, key: Key, write: Path) -> None:
    file = tmp_path / "a.ndjson.age"
    write.write_text("")
    secret = key.file.read_text().splitlines()[1]

    def refused(result: Result, *said: str) -> None:
        fails(result, 2, *said)
        assert secret[:30] not in result.stderr + result.stdout
        assert not file.exists()

    for command in (["export", filled, "-o", file], ["migrate", filled, file]):
        refused(run(*command), "no recipient", "a.ndjson.age", "--encrypt-to")
        refused(run(*command, "--encrypt-to", secret), "secret key", "age-keygen -y")
        refused(run(*command, "--encrypt-to", "age1nonsense"), "'age1nonsense'", "ssh-ed25519")
        refused(run(*command, "--encrypt-to", "ssh-rsa AAAA"), "'ssh-rsa AAAA'")
    refused(
        run("export", filled, "-o", tmp_path / "a.ndjson", "--encrypt-to", key.recipient),
        "would not be encrypted",
    )
    refused(
        run("migrate", filled, tmp_path / "b.db", "--encrypt-to", key.recipient),
        "would not be encrypted",
    )
    write.write_text(f'[encryption]\nrecipients = ["{secret}"]\n')
    refused(run("export", filled, "-o", file), "encryption.recipients is a secret key")
    write.write_text("")
    result = run("migrate", filled, file, "--encrypt-to", key.recipient)
    fails(result, 3, "without an identity it cannot be compared", "--no-verify")
    assert not file.exists()
    words = ["--encrypt-to", key.recipient, "--no-verify"]
    assert run("migrate", filled, file, *words).exit_code == 0


@pytest.mark.slow
def test_config_check_and_show(run: Run, key: Key, keys: Path, write: Path) -> None:
    [check] = report(run("config", "check", "--json"))["checks"]
    assert (check["what"], check["ok"]) == ("encryption", True)
    assert check["note"] == "1 recipient, 1 identity"
    for file in (key.file, write):
        file.chmod(0o644)
    result = run("config", "check")
    assert f"{key.file} has a secret, and other users can read it" in result.stderr
    assert f"{write} has a secret" not in result.stderr
    with write.open("a") as more:
        more.write('\n[stores.a]\nurl = "redis://:pw@127.0.0.1:1"\n')
    result = run("config", "check", "--timeout", 1)
    assert f"{write} has a secret" in result.stderr
    secret = key.file.read_text().splitlines()[1]
    configure(write, Key("", keys / "missing"), secret)
    fails(run("config", "check"), 3)
    shown = run("config", "show")
    assert "missing" in shown.stdout
    assert secret[:30] not in shown.stdout + run("config", "check").stdout
    for line in ("recipients = 'age1'", "identity_file = 1", "identity = 'x'"):
        write.write_text(f"[encryption]\n{line}\n")
        fails(run("config", "check"), 2, "encryption.")
    write.write_text("[encryption]\nidentity_file = 'x'\nidentity_command = 'y'\n")
    fails(run("config", "check"), 2, "several of")
