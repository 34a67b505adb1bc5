"""The scenes of a mutated store: it is read, copied, copied into, changed, and undone."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from random import Random
from typing import Any

from memctl.ops.doctor.findings import KINDS, RepairMethod
from tests.fuzz.bench import Bench, Specimen
from tests.fuzz.invariants import Broken, check_same
from tests.fuzz.mutations import WORDS

USERS = ["user0", "u", "", "a-b"]
SESSIONS = ["session0", "session1", "s", "state"]
IDS = ["m0000000", "m0000001", "m0000003", "c1", "r1"]
MARKS = ["hint", "compressed", "a"]
FORMS = [[], [], ["--json"], ["--json"], ["--format", "ndjson"], ["--format", "csv"]]
CONFLICTS = ["fail", "skip", "append", "replace"]


def word(rng: Random) -> str:
    """Return a hard word that a command line can hold."""
    while True:
        found = rng.choice(WORDS)
        if "\0" not in found and found != "--" and _is_encodable(found):
            return found


def _is_encodable(text: str) -> bool:
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


def selection(rng: Random, *, at_least_one: bool = False) -> list[str]:
    """Return options that select messages: often none, or one that selects some."""
    count = max(rng.choice([0, 0, 0, 1, 1, 2]), at_least_one)
    return [part for _ in range(count) for part in _selecting(rng)]


def _selecting(rng: Random) -> list[str]:
    name, values = rng.choice(
        [
            ("--user", USERS),
            ("--session", SESSIONS),
            ("--mark", MARKS),
            ("--mark", MARKS),
            ("--exclude-mark", MARKS),
            ("--role", ["user", "assistant", "system"]),
            ("--role", ["user", "assistant", "system"]),
            ("--name", ["Alice", "Friday", "n"]),
            ("--id", IDS),
            ("--last", ["1", "2", "100"]),
            ("--since", ["2025-03-01T12:02", "30d"]),
            ("--until", ["2025-03-01T12:02", "2025-03-02"]),
            ("--match", ["message", "found", "a"]),
        ]
    )
    if rng.random() < 0.1 and name not in ("--last", "--since", "--until"):
        return [name, word(rng)]
    return [name, rng.choice(values)]


def look(rng: Random, bench: Bench, store: Specimen) -> None:
    """Read the store by one command; now and then from stdin."""
    stdin = store.stdin if store.stdin is not None and rng.random() < 0.15 else None
    name = store.argument if stdin is None else "-"
    words = rng.choice(_LOOKS)(rng, name)
    globally = rng.choice([[], [], [], [], ["-v"], ["-q"], ["--color", "always"]])
    bench.run(*globally, *words, *store.options, stdin=stdin or b"", reads=True)


def _inspect(rng: Random, name: str) -> list[str]:
    by = rng.choice([[], [], ["--by", rng.choice(["user", "mark", "role", "day"])]])
    messages = ["--messages"] if not by and rng.random() < 0.5 else []
    sort = ["--sort", rng.choice(["bytes", "last", "user"])] if rng.random() < 0.2 else []
    return ["inspect", name, *by, *messages, *sort, *selection(rng), *rng.choice(FORMS)]


def _doctor(rng: Random, name: str) -> list[str]:
    repair = rng.choice([[], [], ["--repair", "--dry-run", "--yes"]])
    return ["doctor", name, *repair, *rng.choice(FORMS)]


def _context(rng: Random, name: str) -> list[str]:
    one = ["--user", rng.choice(USERS), "--session", rng.choice(SESSIONS)]
    everything = rng.choice([[], ["--all"]])
    return ["context", name, *rng.choice([[], one]), *everything, *rng.choice(FORMS)]


def _list_marks(rng: Random, name: str) -> list[str]:
    return ["mark", "list", name, *selection(rng), *rng.choice(FORMS)]


def _export(rng: Random, name: str) -> list[str]:
    form = rng.choice(["state-dict", "archive", "markdown", "html", "session-dir"])
    return ["export", name, "--as", form, *rng.choice([[], ["--lossy"]]), *selection(rng)]


def _verify(rng: Random, name: str) -> list[str]:
    show = rng.choice([[], ["--show"]])
    return ["verify", name, name, *show, *selection(rng), *rng.choice(FORMS)]


def _dry(rng: Random, name: str) -> list[str]:
    return [*changing(rng, name), "--dry-run", *rng.choice(FORMS)]


_LOOKS: list[Callable[[Random, str], list[str]]] = [
    *(_inspect, _inspect, _inspect, _doctor, _doctor, _context, _list_marks, _export, _verify),
    _dry,
]


def changing(rng: Random, name: str) -> list[str]:
    """Return a command that changes the store of this name."""
    keep = rng.choice(["1", "1", "2"])
    mode = rng.choice([[], ["--mode", "message"], ["--mode", "replace"], ["--mode", "mark"]])
    return rng.choice(
        [
            ["delete", name, "--yes", *selection(rng, at_least_one=True)],
            ["delete", name, "--yes", *selection(rng, at_least_one=True)],
            ["delete", name, "--yes", "--all", *rng.choice([[], ["--keep-last", "1"]])],
            ["delete", name, "--yes", "--mark", "hint", "--with-tool-pairs"],
            ["delete", name, "--yes", "--last", "2", "--keep-tool-pairs"],
            [
                *("mark", "add", name, rng.choice([*MARKS, "new", word(rng)])),
                *(selection(rng) or ["--all"]),
            ],
            ["mark", "remove", name, rng.choice(MARKS), *selection(rng)],
            ["mark", "rename", name, rng.choice(MARKS), rng.choice([*MARKS, "new"])],
            ["compress", name, "--yes", "--keep-recent", keep, *mode],
            ["doctor", name, "--repair", "--yes"],
            ["doctor", name, "--repair", "--yes"],
        ]
    )


def change(rng: Random, bench: Bench, store: Specimen) -> None:
    """Change the store by one command, and undo it."""
    before = store.contents()
    words = [*changing(rng, store.argument), *store.options]
    if rng.random() < 0.2:
        _change_as_foreseen(bench, words)
    else:
        bench.run(*words, *rng.choice([[], [], ["--json"]]))
    bench.check_undo(rng, store, before, words[0])


def _change_as_foreseen(bench: Bench, words: list[str]) -> None:
    """Change the store, and check that a dry run has said the same before."""
    foreseen = bench.run(*words, "--dry-run", "--json", reads=True)
    done = bench.run(*words, "--json")
    if foreseen.code or done.code or words[0] not in ("delete", "mark"):
        return
    first, second = (json.loads(one.stdout) for one in (foreseen, done))
    for name in ("memories", "messages"):
        check_same(f"a dry run of {words[0]} differs", first[name], second[name])


def repair(rng: Random, bench: Bench, store: Specimen) -> None:
    """Repair the store twice: nothing is worse then, only what was named has gone; undo that."""
    before = store.contents()
    words = ["doctor", store.argument, *store.options, "--json"]
    sick = bench.run(*words, reads=True)
    messages = _ids(bench, store)
    done = bench.run(*words, "--repair", "--yes")
    if {sick.code, done.code} <= {0, 6}:
        found, left = json.loads(sick.stdout), json.loads(done.stdout)
        if not any(one["code"] in _DAMAGE for one in left["repaired"]):
            _check_findings(found["findings"], left["findings"])
            _check_named(found["findings"], messages - _ids(bench, store))
            again = json.loads(bench.run(*words, "--repair", "--yes").stdout)
            if again["repaired"] and not left["failures"]:
                raise Broken("a second repair repairs more", str(again["repaired"]))
    bench.check_undo(rng, store, before, "doctor")


_DAMAGE = {code for code, kind in KINDS.items() if kind.repair is RepairMethod.QUARANTINE}
"""Findings because of which messages are not read; once repaired, these have findings, too."""


def _ids(bench: Bench, store: Specimen) -> set[tuple[str, str, str]]:
    """Return the messages of a store by user, session and id."""
    words = ["inspect", store.argument, *store.options, "--messages", "--format", "ndjson"]
    lines = bench.run(*words, reads=True).stdout.splitlines()
    found = [json.loads(line) for line in lines]
    return {(one["user"], one["session"], one["id"]) for one in found if "id" in one}


def _check_findings(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> None:
    counts = {(one["code"], one["user"], one["session"]): one["count"] for one in before}
    for one in after:
        key = one["code"], one["user"], one["session"]
        more = one["count"] > counts.get(key, 0)
        if more and not (one["code"] in _GROWING and key in counts):
            raise Broken(f"a repair leaves {one['code']}", str(one))


_GROWING = {"summary-elsewhere", "shared-session"}
"""Findings that count messages, those that a repair adds among them."""


def _check_named(findings: list[dict[str, Any]], gone: set[tuple[str, str, str]]) -> None:
    if any(one["count"] > len(one["ids"]) for one in findings):
        return
    named = {(one["user"], one["session"], id) for one in findings for id in one["ids"]}
    if gone - named:
        raise Broken("a repair deletes what no finding names", str(gone - named))


def export(rng: Random, bench: Bench, store: Specimen) -> None:
    """Export the store to a file or a folder; an archive of all of it is the same."""
    form, path = rng.choice(
        [
            ("archive", "out.ndjson"),
            ("archive", "out.ndjson.zst"),
            ("archive", "out.ndjson.gz"),
            ("state-dict", "out.json"),
            ("session-dir", "out"),
            ("markdown", "out.md"),
            ("markdown", "out"),
            ("html", "out.html"),
            ("html", "out"),
        ]
    )
    where = selection(rng)
    lossy = rng.choice([[], ["--lossy"]])
    report = rng.choice([[], ["--json"]])
    before = sorted(os.listdir())
    words = ["export", store.argument, "--as", form, "-o", path]
    done = bench.run(*words, *lossy, *where, *store.options, *report, kept=[store])
    new = set(os.listdir()) - set(before)
    if done.code in (2, 3, 4, 8, 9) and new:
        raise Broken(f"export failed with {done.code} and left something", str(new))
    if done.code == 0 and form == "archive" and not where and not store.options:
        _check_verifies(bench, store.argument, path, "export")


def copy(rng: Random, bench: Bench, store: Specimen) -> None:
    """Copy the store into a new or another one, compare both, and undo that."""
    target = rng.choice(bench.targets)(rng)
    _copy(rng, bench, store, target)


def copy_into(rng: Random, bench: Bench, store: Specimen) -> None:
    """Copy another store into this one, and undo that."""
    other = rng.choice(bench.targets)(rng)
    _copy(rng, bench, other, store)


def _copy(rng: Random, bench: Bench, source: Specimen, target: Specimen) -> None:
    before = target.contents()
    conflict = rng.choice(CONFLICTS)
    words = [rng.choice(["migrate", "import"]), source.argument, target.argument]
    where = selection(rng)
    more = ["--on-conflict", conflict, "--yes", "--retries", "0", *where]
    if words[0] == "migrate":
        more += rng.choice([[], [], ["--jobs", "3"], ["--checksum"], ["--no-verify"]])
    lossy = rng.choice([[], ["--lossy"]])
    options = source.options or target.options
    done = bench.run(*words, *more, *lossy, *options, *rng.choice([[], ["--json"]]), kept=[source])
    made = before is None and target.contents() is not None
    if done.code == 0 and made and not where and not lossy and not options:
        _check_verifies(bench, source.argument, target.argument, words[0])
    again = not (source.is_foreign or target.is_foreign)
    bench.check_undo(rng, target, before, words[0], again=again)


def _check_verifies(bench: Bench, first: str, second: str, what: str) -> None:
    compared = bench.run("verify", first, second, reads=True)
    if compared.code:
        raise Broken(
            f"{what} was done, and verify ends with {compared.code}",
            compared.stderr + compared.stdout.decode("utf-8", "replace"),
        )


SCENES: dict[str, tuple[Callable[[Random, Bench, Specimen], None], int]] = {
    "look": (look, 10),
    "change": (change, 3),
    "repair": (repair, 2),
    "export": (export, 1),
    "copy": (copy, 1),
    "copy-into": (copy_into, 1),
}
"""The scenes and their weights; reading is cheapest."""


def play(rng: Random, bench: Bench, store: Specimen) -> None:
    """Do one of these things with the store, where the bench is for it; read it once or twice."""
    [name] = rng.choices(list(SCENES), [weight for _, weight in SCENES.values()])
    if name not in bench.scenes:
        return
    scene, _ = SCENES[name]
    scene(rng, bench, store)
    if scene is look and rng.random() < 0.3:
        look(rng, bench, store)
