"""Writes what the documentation takes from the code: reference, tables, manual.

``python tools/generate.py`` writes the files; with ``--check`` it names those that are out of date.
"""

from __future__ import annotations

import re
import sys
from functools import partial
from pathlib import Path

from manual import pages, parsed

from memctl.cli import COMMANDS
from memctl.commands._help import page, render
from memctl.errors import exit_codes
from memctl.ops.doctor.findings import KINDS as FINDINGS
from memctl.ops.doctor.findings import Severity
from memctl.registry import BUILT_IN, store_class
from memctl.store import REPORTED

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = 96
_GUIDES = {
    "inspect": ("selection", "output"),
    "report": ("report",),
    "context": ("context",),
    "search": ("search",),
    "browse": ("browse",),
    "export": ("copying", "analysis"),
    "import": ("copying",),
    "migrate": ("copying", "migration"),
    "delete": ("changing",),
    "mark": ("changing",),
    "compress": ("compress",),
    "erase": ("erase",),
    "redact": ("redact",),
    "hold": ("holds",),
    "offload": ("offload",),
    "rehydrate": ("offload",),
    "rename": ("changing",),
    "retain": ("retention",),
    "verify": ("copying",),
    "doctor": ("doctor",),
    "history": ("undo",),
    "undo": ("undo",),
    "config": ("configuration",),
    "index": ("search",),
    "stores": ("stores",),
}
"""The pages of ``docs/`` that explain a command."""
_HELD = {
    "summaries": "the compressed summary",
    "ttl": "the TTL of a memory",
    "empty": "memories without messages",
    "duplicate_ids": "duplicate ids",
    "mark_order": "the order of the marks of a message",
    "parts": "several memories in a session",
}


def reference() -> str:
    """Return every command with its help."""
    parts = [
        "# Reference",
        "Generated from the parser by `make docs`, as are the manual pages (`man memctl`). Other "
        "pages cover what all commands share: [stores](stores.md), [selection](selection.md), "
        "[output and exit codes](output.md), [defaults of options](configuration.md).",
        f"## memctl\n\n```text\n{_help([])}\n```",
    ]
    for name in COMMANDS:
        parts.append(f"## memctl {name}\n\n```text\n{_help([name])}\n```")
        parts += [
            f"### memctl {name} {below}\n\n```text\n{_help([name, below])}\n```"
            for below in _commands_below(name)
        ]
    return "\n\n".join(parts) + "\n"


def _commands_below(name: str) -> list[str]:
    """The commands of a command that has some."""
    return list(getattr(parsed([name])[0], "commands", ()))


def _help(words: list[str]) -> str:
    return render(page(*parsed(words)), COLUMNS)


def commands_table() -> str:
    """The commands and the pages that explain them, a line each."""
    rows = [
        f"| `{name}` | {line} | {', '.join(_links(name))} |" for name, (_, line) in COMMANDS.items()
    ]
    return "\n".join(["| command | what it does | read |", "|---|---|---|", *rows])


def _links(command: str) -> list[str]:
    """Return the links to the pages of a command, or to its place in the reference."""
    pages = _GUIDES.get(command)
    if pages is None:
        return [f"[reference](docs/reference.md#memctl-{command})"]
    return [f"[{page}](docs/{page}.md)" for page in pages]


def capabilities_table() -> str:
    """The kinds of store and what each holds."""
    heads = [REPORTED[name] for name in _HELD]
    lines = [
        f"| kind | written as | marks | {' | '.join(head.replace('-', ' ') for head in heads)} |",
        f"|---|---|---|{':-:|' * len(heads)}",
    ]
    for spec in BUILT_IN:
        written = spec.syntax.replace("|", "\\|")
        held = store_class(spec.kind).features
        cells = " | ".join("yes" if getattr(held, name) else "" for name in _HELD)
        marks = "any" if held.marks is None else ", ".join(sorted(held.marks)) or "none"
        lines.append(f"| {spec.summary} | `{written}` | {marks} | {cells} |")
    return "\n".join(lines)


def exit_codes_table() -> str:
    """Every exit code."""
    rows = [f"| {number} | {name} | {meaning} |" for number, name, meaning in exit_codes()]
    return "\n".join(["| code | name | meaning |", "|--:|---|---|", *rows])


def findings_page() -> str:
    """Return the table of findings of doctor."""
    parts = [
        "# Repair what doctor finds",
        "All findings of `memctl doctor`, generated from the code by `make docs`. Codes are "
        "stable: scripts can test them. An *error* makes an agent fail, or shows it the data of "
        "others. A *warning* means that data is lost or repeated, now or later. A *notice* costs "
        "time or space, disappears by itself, or depends on data outside the store. A store with "
        "only notices is healthy.",
        "The report lists errors first, then warnings, then notices; its first lines add up their "
        "numbers. Errors and warnings end doctor with exit code 6. "
        "With `--fail-on error`, warnings do not. `--ignore CODE` leaves out findings that are "
        "known and accepted: they are neither reported nor repaired. Both can be [set in the "
        "configuration](configuration.md), in `[defaults.doctor]`.",
        "`--repair` makes only the changes that are named here, to the messages of these findings. "
        "Another examination then finds nothing new: a memory for which that is not so is left as "
        "it is, with a warning. `memctl undo` restores what was repaired, "
        "but for damaged data, which stay in their quarantine file. A message is not *empty* "
        "if it has metadata, fields or blocks that memctl does not read. A call without a result "
        "that waits for a person or another program is a notice (`waiting-call`), at any age.",
    ]
    for severity in Severity:
        kinds = [kind for kind in FINDINGS.values() if kind.severity is severity]
        parts.append(f"## {severity.value.capitalize()}s")
        rows = [
            f"| `{kind.code}` | {_sentence(kind.what)} | {_sentence(kind.meaning)} "
            f"| {_sentence(kind.remedy)} |"
            for kind in kinds
        ]
        head = ["| code | what it is | what it means for the agent | how to fix it |"]
        parts.append("\n".join([*head, "|---|---|---|---|", *rows]))
    parts += [
        "## Damage below the rows",
        "If an index of a SQLite file lacks rows, or a page is damaged, a search by that index "
        "misses messages, and no error says so. `doctor` has SQLite compare all indexes of the "
        "file with their tables (`PRAGMA integrity_check`), also those of other tables. `PRAGMA "
        "quick_check` takes a third of the time, but does not find such an index. A file with "
        "1,000,000 messages (670 MB) takes 3.5 seconds, if it is in the cache of the system; "
        "`--quick` leaves the check out. Outside of WAL mode, agents cannot write meanwhile; from "
        "250 MB on, memctl checks a [temporary copy](stores/sqlite.md#reading) instead.",
        "`erase`, `verify --receipt`, `retain` and `export --rotate` make the same check, because "
        "they promise that nothing is missed. If it fails, they end with exit code 8 and change "
        "nothing. `migrate`, `verify` and other exports do not check: run `doctor` before a move.",
        '`sqlite3 FILE "REINDEX"` makes the indexes anew from the tables; stop the agents first, '
        "and keep a copy of the file. If an index needs a collation or a function of the "
        "application, SQLite cannot check the file, and memctl prints a warning.",
        "On PostgreSQL and MySQL, memctl sees only damage that a query reports. An index that "
        "lacks rows is not seen, for instance after an upgrade of the system's C library changed "
        "the order of texts. On PostgreSQL, the extension amcheck finds it "
        "(`pg_amcheck --heapallindexed`), and `REINDEX` repairs it; on MySQL and MariaDB, "
        "`CHECK TABLE` finds it.",
    ]
    return "\n\n".join(parts) + "\n"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}.".replace("|", "\\|")


def speed_table() -> str:
    """Return the table that the last run of the speed benchmark wrote."""
    return (ROOT / "benchmarks" / "results.md").read_text("utf-8").strip()


def browser_screen() -> str:
    """Return a screen of the browser, as its tests compare it."""
    screens = ROOT / "tests" / "browser" / "screens"
    return f"```text\n{(screens / 'both-112.txt').read_text('utf-8').rstrip()}\n```"


def layout_of_plugin() -> str:
    """Return the module of the example plugin with a layout of SQL tables."""
    module = ROOT / "tests" / "plugin" / "distribution" / "memctl_chats.py"
    return f"```text\n{module.read_text('utf-8').rstrip()}\n```"


def holds(kind: str) -> str:
    """Return a sentence on what a kind of store can hold."""
    held = store_class(kind).features
    first = "It holds messages" if held.marks == frozenset() else "It holds messages and marks"
    if held.marks:
        first = f"It holds messages and the mark {', '.join(sorted(held.marks))}"
    able = [text for name, text in _HELD.items() if getattr(held, name)]
    lacks = [text for name, text in _HELD.items() if not getattr(held, name)]
    lines = [first + (f", and also {', '.join(able)}." if able else ".")]
    if lacks:
        lines.append(f"It has no place for {', '.join(lacks)}.")
    return "\n".join(lines)


def with_blocks() -> list[Path]:
    """The pages that hold generated blocks."""
    docs = ROOT / "docs"
    pages = ("browse", "library", "output", "speed", "stores")
    return [ROOT / "README.md", *(docs / f"{name}.md" for name in pages), *docs.glob("stores/*.md")]


def renewed(path: Path) -> str:
    """A page with its generated blocks renewed."""
    text = path.read_text("utf-8")
    for name, make in (
        ("commands", commands_table),
        ("capabilities", capabilities_table),
        ("exit-codes", exit_codes_table),
        ("speed", speed_table),
        ("browser", browser_screen),
        ("layout-of-plugin", layout_of_plugin),
        *((f"holds-{spec.kind}", partial(holds, spec.kind)) for spec in BUILT_IN),
    ):
        block = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        text = block.sub(lambda found, make=make: f"{found[1]}{make()}\n{found[2]}", text)
    return text


def files() -> dict[Path, str]:
    """Every generated file and what it should hold."""
    return {
        ROOT / "docs" / "reference.md": reference(),
        ROOT / "docs" / "doctor.md": findings_page(),
        **{ROOT / "man" / name: text for name, text in pages().items()},
        **{path: renewed(path) for path in with_blocks()},
    }


def main() -> None:
    """Write or check the files."""
    stale = [
        path
        for path, text in files().items()
        if not path.exists() or path.read_text("utf-8") != text
    ]
    if "--check" in sys.argv:
        for path in stale:
            sys.stderr.write(f"{path.relative_to(ROOT)} is out of date: run 'make docs'\n")
        sys.exit(bool(stale))
    for path, text in files().items():
        path.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
