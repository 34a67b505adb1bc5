"""Mutators of stores that are files: archives, states, folders of sessions, SQLite, odd files."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sqlite3
import stat
import tempfile
from collections.abc import Callable
from contextlib import closing, suppress
from itertools import repeat
from pathlib import Path
from random import Random
from typing import Any, Protocol

from memctl.model import Memory, MemoryKey
from memctl.registry import make_store, parse
from memctl.store import OpenMode
from memctl.testing import samples
from memctl.testing.drive import write
from memctl.testing.samples import Sample, sample
from tests.fuzz.bench import Bench, Specimen
from tests.fuzz.mutations import (
    WORDS,
    any_value,
    compress,
    decompress,
    dump,
    mutate_bytes,
    mutate_json,
    mutate_lines,
    mutate_text,
    seal,
)
from tests.fuzz.scenarios import look, play
from tests.support import histories, odd

SUFFIXES = [".ndjson", ".ndjson", ".ndjson.gz", ".ndjson.zst", ".ndjson.zst"]
BOMB_PIECE = 1 << 20
BOMB_SUFFIXES = [".ndjson.gz", ".ndjson.zst"]


class Mutator(Protocol):
    """A maker of inputs of one subject, which it tries."""

    name: str
    weight: int
    """Its share of the inputs, in about a hundred."""

    def play(self, rng: Random, bench: Bench) -> None:
        """Make an input, and run commands on it.

        Raises:
            Broken: an invariant does not hold.
        """


def worlds() -> list[list[Sample]]:
    """Return memories to begin with: plain ones, tool calls, broken histories, hard names."""
    broken = [found for cases in histories.BROKEN.values() for found, _ in cases[:1]]
    small = [found for found in broken if len(json.dumps(found)) < 5000]
    keys = [MemoryKey("u", f"s{number}") for number in range(len(small))]
    hard = list(samples.nasty_entries({"wide"}))
    names = map(MemoryKey, samples.NAMES[1:6], samples.NAMES[8:])
    return [
        [sample(samples.key(number), samples.entries(4 + number)) for number in range(2)],
        [
            sample(MemoryKey("u", "s"), histories.entries(histories.HEALTHY), summary="so far"),
            sample(samples.key(0), samples.entries(3), summary="before"),
        ],
        [sample(key, histories.entries(found)) for key, found in zip(keys, small, strict=True)],
        [sample(key, hard[at::5]) for at, key in enumerate(names)],
        [sample(MemoryKey("u", "odd"), odd.entries("agentscope1", [*range(0, 24, 2)]), summary="")],
    ]


def plain_worlds() -> list[list[Sample]]:
    """Return the same without summaries, as tables and keys hold them."""
    return [[Sample(Memory(one.key), one.entries) for one in world] for world in worlds()]


async def fill(argument: str, memories: list[Sample]) -> None:
    """Write memories into a new store, those that it takes."""
    async with make_store(parse(argument), OpenMode.CREATE) as store:
        await write(store, memories)


class Archives:
    """Archives: lines changed and sealed again, bytes changed, bombs."""

    name = "archive"
    weight = 30

    def __init__(self) -> None:
        self._seeds = [lines_of(world) for world in worlds()]

    def play(self, rng: Random, bench: Bench) -> None:
        if rng.random() < 0.001:
            path = Path(f"bomb{rng.choice(BOMB_SUFFIXES)}")
            path.write_bytes(_bomb(rng, path.name, rng.choice(self._seeds)))
            look(rng, bench, Specimen(str(path), lambda: None))
            return
        suffix = rng.choice(SUFFIXES)
        path = Path(f"mutated{suffix}")
        data = self._make(rng, suffix)
        path.write_bytes(data)
        play(rng, bench, Specimen(str(path), archive_contents(path), stdin=data))

    def _make(self, rng: Random, suffix: str) -> bytes:
        lines = rng.choice(self._seeds)
        kind = rng.randrange(10)
        if kind < 6:
            body = seal(mutate_lines(rng, lines))
        elif kind < 8:
            body = mutate_bytes(rng, seal(lines))
        else:
            body = seal(lines)
        data = compress(suffix, body)
        return mutate_bytes(rng, data) if kind == 9 else data


def lines_of(world: list[Sample]) -> list[bytes]:
    """The lines of an archive of these memories, but its end; always the same."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "seed.ndjson"
        asyncio.run(fill(str(path), world))
        header, *lines, _ = path.read_bytes().splitlines()
    known = json.loads(header) | {"created": "2025-03-01T12:00:00+01:00"}
    return [json.dumps(known).encode(), *lines]


def _bomb(rng: Random, suffix: str, lines: list[bytes]) -> bytes:
    """An archive that is small, compressed, and has a line, a header or a text that is not."""
    filler = rng.choice([b" ", b"0", b"[", b"\n", b'{"message":'])
    piece = filler * (BOMB_PIECE // len(filler))
    huge = repeat(piece, rng.choice([48, 48, 48, 1024]))  # the largest takes seconds to make
    at = rng.randrange(1, len(lines) + 1)
    begin, end = rng.choice(
        [
            (b"\n".join([*lines[:at], b""]), b"\n".join([b"", *lines[at:]])),
            (b"", b"\n".join(lines)),
            (lines[0][:-1] + b',"x":"', b"\n".join([b'"}', *lines[1:]])),
        ]
    )
    return compress(suffix, begin, *huge, end)


def archive_contents(path: Path) -> Callable[[], Any]:
    """Return a function that returns the records of an archive, but when it was made."""

    def contents() -> Any:
        if not path.is_file():
            return None
        raw = path.read_bytes()
        try:
            lines = decompress(path.name, raw).splitlines()
            records: list[Any] = [_canonical_or_raw(line) for line in lines]
            header = json.loads(lines[0])
            end = json.loads(lines[-1])["end"]
        except (ValueError, OSError, KeyError, TypeError, IndexError, EOFError, RecursionError):
            return raw
        except Exception as error:
            if "zstd" not in type(error).__module__ and "zlib" not in type(error).__module__:
                raise
            return raw
        if isinstance(header, dict) and isinstance(end, dict):
            header.pop("created", None)
            end.pop("digest", None)
            records[0], records[-1] = json.dumps(header), json.dumps(end)
        return dict(enumerate(records))

    return contents


def _canonical_or_raw(line: bytes) -> Any:
    try:
        return _canonical(line)
    except (ValueError, RecursionError):
        return line


def _canonical(text: bytes) -> str:
    value = json.loads(text.decode("utf-8", "surrogatepass"))
    return json.dumps(value, sort_keys=True)


class States:
    """State files: one state_dict of each version, or the states of a session."""

    name = "state"
    weight = 20

    def __init__(self) -> None:
        self._seeds = [shape(one) for world in worlds() for one in world for shape in SHAPES]

    def play(self, rng: Random, bench: Bench) -> None:
        data = dump(rng, rng.choice(self._seeds))
        data = mutate_json(rng, data) if rng.random() < 0.7 else mutate_bytes(rng, data)
        path = Path("mutated.json")
        path.write_bytes(data)
        options = rng.choice([(), (), (), ("--path", "agent.memory")])
        play(rng, bench, Specimen(str(path), json_contents(path), stdin=data, options=options))


def state_dict(one: Sample) -> dict[str, Any]:
    """Return a memory as AgentScope 1.0.16 and later save it."""
    pairs = [[json.loads(entry.message), list(entry.marks)] for entry in one.entries]
    return {"_compressed_summary": one.memory.summary or "", "content": pairs}


def _without_summary(one: Sample) -> dict[str, Any]:
    return {"content": state_dict(one)["content"]}


def _bare(one: Sample) -> dict[str, Any]:
    return {"content": [json.loads(entry.message) for entry in one.entries]}


def _session(one: Sample) -> dict[str, Any]:
    toolkit = {"active_groups": []}
    return {"agent": {"memory": state_dict(one), "toolkit": toolkit, "name": "Friday"}, "n": 1e400}


def _two(one: Sample) -> dict[str, Any]:
    return {"agent": {"memory": state_dict(one)}, "plan": {"memory": _bare(one), "x": None}}


def _summary_alone(one: Sample) -> dict[str, Any]:
    return {"memory": {"_compressed_summary": one.memory.summary or "sum"}}


SHAPES = [state_dict, state_dict, _without_summary, _bare, _session, _two, _summary_alone]


def json_contents(path: Path) -> Callable[[], Any]:
    """Return a function that returns the value of a JSON file, however it is indented.

    Of one that is not JSON, its bytes.
    """

    def contents() -> Any:
        if not path.is_file():
            return None
        data = path.read_bytes()
        try:
            return _canonical(data)
        except (ValueError, RecursionError):
            return b"".join(data.split())

    return contents


class Folders:
    """Folders of session files: their names, contents, links and strangers."""

    name = "sessions"
    weight = 12

    def __init__(self) -> None:
        self._seeds = [
            {f"{one.key.user}_{one.key.session}.json": _session(one) for one in world}
            for world in worlds()[:3]
        ]

    def play(self, rng: Random, bench: Bench) -> None:
        folder = Path("sessions")
        folder.mkdir()
        files = {name: dump(rng, one) for name, one in rng.choice(self._seeds).items()}
        for _ in range(rng.choice([1, 1, 2, 3])):
            self._mutate(rng, files)
        for name, data in files.items():
            if data is not None:
                with suppress(OSError, ValueError):  # not every name is one of a file
                    (folder / name).write_bytes(data)
        if rng.random() < 0.15:
            with suppress(OSError, ValueError):
                make_odd(rng, folder / rng.choice([*files, "odd.json"]))
        play(rng, bench, Specimen("sessions", folder_contents(folder)))

    def _mutate(self, rng: Random, files: dict[str, bytes]) -> None:
        name = rng.choice(sorted(files))
        kind = rng.randrange(6)
        if kind == 0:
            files[mutate_text(rng, name.removesuffix(".json")) + ".json"] = files.pop(name)
        elif kind == 1:
            files[rng.choice(WORDS).replace("/", "_") + rng.choice([".json", ""])] = files[name]
        elif kind == 2:
            files[name] = mutate_bytes(rng, files[name])
        else:
            files[name] = mutate_json(rng, files[name])


def folder_contents(folder: Path) -> Callable[[], Any]:
    """Return a function that returns the value of every file of a folder."""

    def contents() -> Any:
        if not folder.is_dir():
            return None
        return {path.name: _entry(path) for path in folder.iterdir()}

    return contents


def _entry(path: Path) -> Any:
    if path.is_symlink():
        return os.readlink(path)
    return json_contents(path)() or path.lstat().st_mode


Columns = dict[str, list[str]]

COLUMNS: Columns = {
    "users": ["id"],
    "session": ["id", "user_id"],
    "message": ["id", "msg", "msg", "msg", "session_id", "index", "index"],
    "message_mark": ["msg_id", "mark"],
}


class Sqlite:
    """SQLite databases: values and types of rows, the schema, the pages of the file."""

    name = "sqlite"
    weight = 25

    def __init__(self) -> None:
        self._seeds = [database_of(world) for world in plain_worlds()]

    def play(self, rng: Random, bench: Bench) -> None:
        path = Path("mutated.db")
        mutate_database(rng, path, rng.choice(self._seeds))
        state = rng.choice(["", "", "", "?state=states"])
        argument = str(path)
        if state:
            Path("states").mkdir()
            argument = f"sqlite:///{path.absolute()}{state}"
        contents = database_contents(path)
        play(rng, bench, Specimen(argument, contents, is_sound=is_consistent(path)))


def mutate_database(rng: Random, path: Path, data: bytes, known: Columns = COLUMNS) -> None:
    """Write a SQLite file with mutated rows, a mutated schema or mutated pages."""
    kind = rng.randrange(10)
    if kind == 0:
        data = mutate_bytes(rng, data)
    path.write_bytes(data)
    if kind:
        with suppress(sqlite3.Error, OverflowError), closing(_connect(path)) as database:
            for _ in range(rng.choice([1, 1, 2, 4])):
                with suppress(sqlite3.Error, OverflowError, UnicodeEncodeError):
                    (_change_schema if kind < 3 else _change_row)(rng, database, known)
            database.commit()
    if kind == 9:
        path.write_bytes(mutate_bytes(rng, path.read_bytes(), 1))


def is_consistent(path: Path) -> bool:
    """Return whether the tables and the indexes of a SQLite file agree, and can be changed back.

    A trigger that refuses to delete or to update a row refuses the undo of what it let through.
    A column whose name is not UTF-8 cannot be compared.
    """
    refusing = "SELECT COUNT(*) FROM sqlite_master WHERE type = 'trigger' AND sql LIKE '%RAISE%'"
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            sound = database.execute("PRAGMA integrity_check(1)").fetchone() == ("ok",)
            sound = sound and database.execute(refusing).fetchone() == (0,)
        return sound and isinstance(database_contents(path)(), dict)
    except (sqlite3.Error, ValueError):  # a text that is not UTF-8, or a name that none can be
        return False


def database_of(world: list[Sample]) -> bytes:
    """Return a SQLite file with these memories, as memctl writes it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "seed.db"
        asyncio.run(fill(str(path), world))
        return path.read_bytes()


def _connect(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path)
    database.execute("PRAGMA synchronous = OFF")
    database.execute("PRAGMA journal_mode = MEMORY")
    return database


def _change_row(rng: Random, database: sqlite3.Connection, known: Columns = COLUMNS) -> None:
    weights = [1, 2, 6, 2] if known is COLUMNS else [1] * len(known)
    table = rng.choices(list(known), weights)[0]
    column = rng.choice(known[table])
    rowids = [found[0] for found in database.execute(f'SELECT rowid FROM "{table}"')]
    if not rowids:
        return
    rowid = rng.choice(rowids)
    where = f'"{table}" WHERE rowid = {rowid}'
    kind = rng.randrange(10)
    if kind == 0:
        database.execute(f"DELETE FROM {where}")
    elif kind == 1:
        columns = ", ".join(f'"{name}"' for name in dict.fromkeys(known[table]))
        other = columns.replace(f'"{column}"', "?")
        insert = f'INSERT INTO "{table}" ({columns}) SELECT {other} FROM {where}'
        database.execute(insert, [sql_value(rng)])
    elif kind < 8 and (data := _document(database, f'SELECT "{column}" FROM {where}')):
        change = f'UPDATE "{table}" SET "{column}" = CAST(? AS {data[0]}) WHERE rowid = ?'
        database.execute(change, [mutate_json(rng, data[1]), rowid])
    else:
        change = f'UPDATE "{table}" SET "{column}" = ? WHERE rowid = ?'
        database.execute(change, [sql_value(rng), rowid])


def _document(database: sqlite3.Connection, select: str) -> tuple[str, bytes] | None:
    """The type and the bytes of a value that is JSON or packed; None of another."""
    [(value,)] = database.execute(select)
    kind, data = ("BLOB", value) if isinstance(value, bytes) else ("TEXT", str(value).encode())
    return (kind, data) if kind == "BLOB" or data[:1] in (b"{", b"[") else None


def sql_value(rng: Random) -> Any:
    """Return a value of a type that SQLite keeps, whatever the column is for."""
    kind = rng.randrange(8)
    if kind == 0:
        return rng.choice([0, -1, 5, 2**63 - 1, -(2**63), 2**53 + 1])
    if kind == 1:
        return rng.choice([0.5, 1e308, float("inf"), float("nan")])
    if kind == 2:
        return rng.choice([b"", b"\xff", b"m0000001", b"\0" * 9, b'{"id":"a"}'])
    if kind == 3:
        return None
    if kind == 4:
        return json.dumps(any_value(rng))
    return rng.choice(WORDS)


def _change_schema(rng: Random, database: sqlite3.Connection, known: Columns = COLUMNS) -> None:
    table = rng.choice(list(known))
    column = rng.choice(known[table])
    database.execute("PRAGMA foreign_keys = OFF")
    kind = rng.randrange(9)
    if kind == 0:
        database.execute(f'DROP TABLE "{table}"')
    elif kind == 1:
        database.execute(f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "{column}2"')
    elif kind == 2:
        database.execute(f'ALTER TABLE "{table}" ADD COLUMN extra INTEGER DEFAULT 5')
    elif kind == 3:
        database.execute(f'CREATE TABLE kept AS SELECT * FROM "{table}"')
        database.execute(f'DROP TABLE "{table}"')
        database.execute(f'CREATE VIEW "{table}" AS SELECT * FROM kept')
    elif kind == 4:
        database.execute(f'CREATE TABLE kept AS SELECT * FROM "{table}"')
        database.execute(f'DROP TABLE "{table}"')
        database.execute(f'ALTER TABLE kept RENAME TO "{table}"')
    elif kind == 5:
        event = rng.choice(["DELETE", "UPDATE"])  # nothing could be restored against INSERT
        action = rng.choice(["SELECT RAISE(ABORT, 'no')", "SELECT 1"])
        database.execute(f'CREATE TRIGGER t AFTER {event} ON "{table}" BEGIN {action}; END')
    else:
        database.execute("PRAGMA writable_schema = ON")
        found = database.execute("SELECT sql FROM sqlite_master WHERE name = ?", [table]).fetchone()
        sql = found[0] if found else ""
        text = mutate_bytes(rng, sql.encode(), 1) if kind < 8 else b"nonsense"
        change = "UPDATE sqlite_master SET sql = CAST(? AS TEXT) WHERE name = ?"
        database.execute(change, [text, table])


def database_contents(path: Path, *, by_value: bool = False) -> Callable[[], Any]:
    """Return a function that returns the rows of every table; the bytes where SQLite cannot.

    ``by_value`` where the order of the fields of JSON objects says nothing.

    A table without rows is none: a run makes those that it needs, and no undo drops them.
    """

    def contents() -> Any:
        if not path.is_file():
            return None
        try:
            with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
                database.text_factory = _value_of if by_value else lambda text: ("text", text)
                names = "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name"
                schema = database.execute(names).fetchall()
                found: dict[str, Any] = {}
                empty = set()
                for (_, kind), (_, name), table, _ in schema:
                    if kind == b"table" and name != b"sqlite_sequence":  # it only grows
                        quoted = name.decode().replace('"', '""')
                        rows = database.execute(f'SELECT * FROM "{quoted}"').fetchall()
                        if rows:
                            found[name.decode()] = sorted(rows, key=repr)
                        else:
                            empty.add(table)
                return found | {"schema": [one for one in schema if one[2] not in empty]}
        except (sqlite3.Error, UnicodeDecodeError, ValueError, TypeError):
            return path.read_bytes()

    return contents


def _value_of(text: bytes) -> tuple[str, Any]:
    if text[:1] == b"{":
        with suppress(ValueError, RecursionError):
            return "text", _canonical(text)
    return "text", text


class Odd:
    """Stores that are no files, or not where they seem: links, pipes, sockets, devices, folders."""

    name = "odd"
    weight = 3

    def __init__(self) -> None:
        world = worlds()[0]
        self._files = {
            "whole.db": database_of(world),
            "whole.ndjson": seal(lines_of(world)),
            "whole.json": json.dumps(state_dict(world[0])).encode(),
        }

    def play(self, rng: Random, bench: Bench) -> None:
        for name, data in self._files.items():
            Path(name).write_bytes(data)
        name = rng.choice(["odd.db", "odd.json", "odd.ndjson", "odd.ndjson.zst", "odd"])
        path = Path(name)
        make_odd(rng, path)
        if path.suffix == ".db":
            contents = database_contents(path)
        else:
            archive = path.suffix.startswith((".ndjson", ".zst"))
            contents = archive_contents(path) if archive else json_contents(path)
        play(rng, bench, Specimen(f"./{path}", contents))


DEVICES = {3: "null", 5: "zero", 7: "full", 8: "random"}
"""The numbers of devices: nodes of their own in the folder, for what stands in /dev may be lost."""


def make_odd(rng: Random, path: Path) -> None:
    match rng.randrange(9):
        case 8:
            with suppress(PermissionError):
                os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, rng.choice(list(DEVICES))))
        case 0:
            os.mkfifo(path)
        case 1:
            with closing(socket.socket(socket.AF_UNIX)) as listener:
                listener.bind(str(path))
        case 2:
            path.mkdir()
        case 3:
            path.symlink_to(path.name)  # to itself
        case 4:
            path.symlink_to("missing/nowhere")
        case 5:
            path.symlink_to(f"whole{path.suffix or '.json'}")
        case 6:
            path.write_bytes(b"")
        case _:
            path.write_bytes(b"")
            path.chmod(0)


def file_targets() -> list[Callable[[Random], Specimen]]:
    """Return functions that make a store to copy into: new ones, and some with memories in them."""
    world = plain_worlds()[0]
    database, archive, state = database_of(world), seal(lines_of(world)), state_dict(world[0])

    def new_database(_: Random) -> Specimen:
        return Specimen("new.db", database_contents(Path("new.db"), by_value=True))

    def new_archive(rng: Random) -> Specimen:
        path = Path(f"new{rng.choice(SUFFIXES)}")
        return Specimen(str(path), archive_contents(path))

    def new_folder(_: Random) -> Specimen:
        return Specimen("new/", folder_contents(Path("new")))

    def new_state(_: Random) -> Specimen:
        return Specimen("new.json", json_contents(Path("new.json")))

    def old_database(_: Random) -> Specimen:
        Path("old.db").write_bytes(database)
        contents = database_contents(Path("old.db"), by_value=True)
        return Specimen("old.db", contents)

    def old_archive(rng: Random) -> Specimen:
        path = Path(f"old{rng.choice(SUFFIXES)}")
        path.write_bytes(compress(path.name, archive))
        return Specimen(str(path), archive_contents(path))

    def old_state(_: Random) -> Specimen:
        Path("old.json").write_text(json.dumps(state))
        return Specimen("old.json", json_contents(Path("old.json")))

    return [
        *(new_database, new_archive, new_folder, new_state, old_database, old_archive, old_state)
    ]
