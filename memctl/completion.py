"""Shell completion: commands, options and their values.

The scripts in ``completions`` run memctl with ``_MEMCTL_COMPLETE=SHELL`` and the words of
the line.  The answer is ``files`` (if file names fit, too) or ``values``, then a line for each
candidate: the whole word, a tab, and the meaning.

bash does not quote candidates.  Its script sends the line itself and receives quoted text to
append.

Nothing is written to stderr: a user who presses TAB did not run a command.
"""

from __future__ import annotations

import os
import re
import stat
import sys
import threading
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from msgspec import Struct, field

from memctl.commands._help import option_text, summary
from memctl.errors import MemctlError

if TYPE_CHECKING:
    from memctl.config import Config
    from memctl.location import Location
    from memctl.selection import Selection
    from memctl.store import Store

SHELLS = ("bash", "zsh", "fish")

_STORES = ("STORE", "SRC", "DST", "A", "B")
_RUNS = 100
# Line ends, characters that move the cursor, and characters that change the order of a text.
_UNFIT = {"Cc", "Cs", "Zl", "Zp"}
_TURNING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


class Candidates(Struct):
    """The possible completions of a word, with their meanings.

    ``files`` is True if file names are possible, too.
    """

    words: dict[str, str] = field(default_factory=dict)
    files: bool = False

    def starting(self, start: str) -> Candidates:
        """Return the candidates that begin with ``start`` and have no control characters.

        Line breaks in meanings become spaces.
        """
        fit = {
            word: _one_line(meaning)
            for word, meaning in self.words.items()
            if word.startswith(start) and word and _is_fit(word)
        }
        return Candidates(fit, self.files)


class Line(Struct):
    """A command line before the word to complete, parsed into command, options and arguments."""

    root: Any
    """The command ``memctl``; its options may follow the options of the subcommand."""
    command: Any
    given: dict[str, list[str]] = field(default_factory=dict)
    """The values of options, by the long name with dashes."""
    arguments: list[str] = field(default_factory=list)
    waiting: Any = None
    """The option that still needs a value, or a further one."""
    ended: bool = False
    """True after ``--``: no option follows."""

    @property
    def named(self) -> dict[str, str]:
        """The arguments by their names in the help.

        For an argument with several values, only the last value is included.
        """
        return {
            parameter.metavar: value
            for index, value in enumerate(self.arguments)
            if (parameter := self.argument(index)) is not None and parameter.metavar
        }

    @property
    def store(self) -> str | None:
        """The store that the line names, by ``--store`` or by an argument that takes a store.

        None if the line names no store; with several such arguments, the first store.
        """
        named = self.named
        found = next((named[name] for name in ("FILE", *_STORES) if name in named), None)
        return self.given.get("--store", [found])[-1]

    def argument(self, index: int) -> Any:
        """Return the parameter that receives the argument at an index.

        None if the command takes fewer arguments.
        """
        for parameter in self.command.params:
            if parameter.param_type_name == "argument":
                if parameter.nargs < 0 or index < parameter.nargs:
                    return parameter
                index -= parameter.nargs
        return None


def main(root: Any, lines: Mapping[str, str], shell: str, words: Sequence[str]) -> None:
    """Print the completions of the last of ``words`` in the form that a shell expects.

    ``root`` is the command ``memctl``, and ``lines`` maps its subcommands to their descriptions.
    For an unknown ``shell``, nothing is printed.
    """
    if shell not in SHELLS:
        return
    if shell == "bash":
        text = answer(lambda before, word: complete(root, lines, before, word), words)
    else:
        found = complete(root, lines, words[:-1], words[-1] if words else "", quoted=True)
        text = _written(found)
    sys.stdout.buffer.write(text.encode())
    sys.stdout.buffer.flush()
    os._exit(0)  # a thread may still read a store, and Python would wait for the thread


def _written(found: Candidates) -> str:
    rows = [f"{word}\t{meaning}" for word, meaning in found.words.items()]
    return "\n".join(["files" if found.files else "values", *rows]) + "\n"


def complete(
    root: Any, lines: Mapping[str, str], before: Sequence[str], word: str, *, quoted: bool = False
) -> Candidates:
    """Return the candidates for the unfinished ``word`` that follows the words ``before``.

    ``root`` is the command ``memctl``, and ``lines`` maps its subcommands to their descriptions.
    With ``quoted``, ``word`` is as typed, with its quotes; the candidates are not limited to those
    that begin with ``word``, because the shell does this.
    """
    try:
        line = read(root, before)
        if line is None:
            return Candidates()
        name, equals, start = word.partition("=")
        option = None if line.ended or line.waiting else _option(line, name)
        if equals and option is not None:
            found = _values(line, option, "" if quoted else start)
            found = Candidates({name + equals + one: said for one, said in found.words.items()})
        elif line.waiting is not None:
            found = _values(line, line.waiting, "" if quoted else word)
        else:
            found = _next(line, root, lines, word, "" if quoted else word)
    except MemctlError:
        return Candidates()  # a plugin that cannot be loaded: its command reports the error
    return found.starting("" if quoted else word)


def read(root: Any, words: Sequence[str]) -> Line | None:
    """Parse the words of an unfinished command line; return None for an unknown command."""
    line = Line(root, root)
    for word in words:
        if line.waiting is not None:
            values = line.given.setdefault(_long(line.waiting), [])
            values.append(word)
            if len(values) % line.waiting.nargs == 0:
                line.waiting = None
        elif word == "--" and not line.ended:
            line.ended = True
        elif word.startswith("-") and word != "-" and not line.ended:
            _read_option(line, word)
        elif hasattr(line.command, "commands"):
            line.command = line.command.commands.get(word)
            if line.command is None:
                return None
        else:
            line.arguments.append(word)
    return line


def _read_option(line: Line, word: str) -> None:
    name, equals, value = word.partition("=")
    option = _option(line, name)
    if option is None or option.is_flag:
        return
    if equals:
        line.given.setdefault(_long(option), []).append(value)
    else:
        line.waiting = option


def _option(line: Line, name: str) -> Any:
    """Return the named option of the command or of memctl, or None."""
    for parameter in (*line.command.params, *line.root.params):
        if name in (*parameter.opts, *parameter.secondary_opts) and name.startswith("-"):
            return parameter
    return None


def _long(option: Any) -> str:
    names: list[str] = option.opts
    return next((name for name in names if name.startswith("--")), names[0])


def _next(line: Line, root: Any, lines: Mapping[str, str], word: str, start: str) -> Candidates:
    """Return the candidates for the word after ``line``.

    ``word`` is the word as typed.  The candidates begin with ``start``.
    """
    if word.startswith("-") and not line.ended:
        return Candidates(_options(line))
    if line.command is root:
        return Candidates({name: lines.get(name, "") for name in _names(root)})
    below = getattr(line.command, "commands", None)
    if below is not None:
        return Candidates({name: summary(one) for name, one in below.items()})
    parameter = line.argument(len(line.arguments))
    if parameter is None:
        return Candidates()
    if parameter.metavar == "TOPIC":
        return _topics(line, root, lines)
    return _values(line, parameter, start)


def _names(root: Any) -> list[str]:
    names: list[str] = root.list_commands(typer.Context(root))
    return names


_INSTEAD = frozenset({"--version", "--show-completion"})
"""Options of memctl that are used without a command."""


def _options(line: Line) -> dict[str, str]:
    """Map the options of memctl and of the command to meanings."""
    own = [one for one in line.root.params if not _INSTEAD & {*one.opts}]
    others = own if line.command is not line.root else ()
    found = {
        name: "The default." if parameter.default is True and name in parameter.opts else meaning
        for parameter in (*others, *line.command.params)
        if parameter.param_type_name == "option"
        for meaning in [option_text(parameter)]
        for name in (*parameter.opts, *parameter.secondary_opts)
    }
    return found | {"--help": "Show this help."}


def _topics(line: Line, root: Any, lines: Mapping[str, str]) -> Candidates:
    match line.arguments:
        case []:
            from memctl.commands._topics import TOPICS  # not needed for other words

            return Candidates({name: lines.get(name, "") for name in _names(root)} | TOPICS)
        case ["schema"]:
            from memctl.reports import schema_names  # not needed for other words

            return Candidates(dict.fromkeys(schema_names(), ""))
        case words:
            inner = read(root, words)
            below = getattr(inner.command, "commands", {}) if inner else {}
            return Candidates({name: summary(one) for name, one in below.items()})


def _values(line: Line, parameter: Any, start: str) -> Candidates:
    """Return the possible values of an option or argument."""
    if parameter.param_type_name == "option":
        find = _OF_OPTIONS.get(_long(parameter))
    else:
        find = _OF_ARGUMENTS.get(parameter.metavar)
    if find is not None:
        return find(line)
    if parameter.metavar == "FILE":
        return Candidates(files=True)
    context = typer.Context(line.command)
    found = parameter.shell_complete(context, start)
    return Candidates({item.value: item.help or "" for item in found if item.type == "plain"})


def _stores(line: Line) -> Candidates:
    """Return the stores of the configuration with their redacted URLs, and files.

    For a command that takes fleets, these are listed, too, with the names of their stores.
    """
    config = _load_config(line)
    found = {name: _redacted(alias.url) for name, alias in config.stores.items()}
    if any(parameter.name == "shards" for parameter in line.command.params):
        found |= {str(fleet): ", ".join(fleet.stores) for fleet in config.fleets.values()}
    return Candidates(found, files=True)


def _outputs(line: Line) -> Candidates:
    from memctl.engines.objects.address import is_object  # only outputs are objects or files

    found = _load_config(line).stores.items() if line.command.name == "export" else ()
    objects = {name: _redacted(alias.url) for name, alias in found if is_object(alias.url)}
    return Candidates(objects, files=True)


def _summarizers(line: Line) -> Candidates:
    from memctl.summarizers.registry import EXTRACTIVE  # only compress and context take summarizers

    return Candidates(dict.fromkeys([*_load_config(line).summarizers, EXTRACTIVE.name], ""))


def _embedders(line: Line) -> Candidates:
    return Candidates(dict.fromkeys(_load_config(line).embedders, ""))


def _in_store(what: str) -> Callable[[Line], Candidates]:
    def find(line: Line) -> Candidates:
        return Candidates(dict.fromkeys(in_store(line, what), ""))

    return find


def _runs(_: Line) -> Candidates:
    from memctl.journal.runs import Job, Runs, as_jobs  # only undo takes runs

    found: dict[str, str] = {}
    for one in as_jobs(Runs().all())[:_RUNS]:
        name, run = (one.name, one.runs[0]) if isinstance(one, Job) else (one.id, one)
        found[name] = f"{run.command} on {run.store}"
    return Candidates(found)


def _holds(_: Line) -> Candidates:
    from memctl.journal.holds import HoldRecord  # only hold remove takes holds

    return Candidates(
        {
            one.hold.id: f"{one.hold.name}: {one.hold.reason}"
            for one in HoldRecord().all()
            if one.removed is None
        }
    )


def _policies(line: Line) -> Candidates:
    from memctl.config.retention import read_policies  # only retain takes policies

    return Candidates({one.name: one.action.value for one in read_policies(_load_config(line))})


def _codes(_: Line) -> Candidates:
    from memctl.ops.doctor.findings import KINDS  # only doctor takes codes

    return Candidates({code: kind.what for code, kind in KINDS.items()})


def _roles(_: Line) -> Candidates:
    return Candidates(dict.fromkeys(("user", "assistant", "system"), ""))


_OF_OPTIONS: dict[str, Callable[[Line], Candidates]] = {
    "--store": _stores,
    "--output": _outputs,
    "--summarizer": _summarizers,
    "--embedder": _embedders,
    "--user": _in_store("user"),
    "--session": _in_store("session"),
    "--mark": _in_store("mark"),
    "--exclude-mark": _in_store("mark"),
    "--role": _roles,
    "--ignore": _codes,
}
_OF_ARGUMENTS: dict[str | None, Callable[[Line], Candidates]] = {
    **dict.fromkeys(_STORES, _stores),
    **dict.fromkeys(("MARK", "OLD", "NEW"), _in_store("mark")),
    "RUN": _runs,
    "HOLD": _holds,
    "POLICY": _policies,
    "CODE": _codes,
}


def _is_fit(word: str) -> bool:
    return not any(unicodedata.category(char) in _UNFIT or char in _TURNING for char in word)


def _one_line(text: str) -> str:
    return "".join(char for char in " ".join(text.split()) if _is_fit(char))


_PLAIN = re.compile(r"[\w@%+,./:=-]", re.ASCII)
_IN_DOUBLE = frozenset('"$`\\')
"""The characters that a backslash escapes between double quotes."""


class Words(Struct):
    """A command line, split into words as bash does; the last word may be unfinished."""

    words: list[str] = field(default_factory=list)
    """All words but the last, unquoted."""
    last: str = ""
    """The last word, unquoted; empty after a space."""
    typed: str = ""
    """The last word as typed."""
    quote: str = ""
    """The quote that is still open at the end of the line."""


def split(line: str) -> Words:
    """Split a command line into words as bash does."""
    found = Words()
    at = 0
    while at < len(line):
        char = line[at]
        taken, text = 1, char
        if found.quote == "" and char.isspace():
            if found.typed:
                found.words.append(found.last)
            found.last = found.typed = ""
            at += 1
            continue
        if char == found.quote:
            found.quote, text = "", ""
        elif found.quote == "" and char in "'\"":
            found.quote, text = char, ""
        elif char == "\\" and found.quote != "'":
            behind = line[at + 1 : at + 2]
            if found.quote == "" or behind in _IN_DOUBLE:
                taken, text = 2, behind
        found.typed += line[at : at + taken]
        found.last += text
        at += taken
    return found


def quoted(text: str, quote: str) -> str:
    """Return a text in the form that bash needs after an open quote.

    ``quote`` is the open quote; empty if none is open.
    """
    match quote:
        case "'":
            return text.replace("'", "'\\''")
        case '"':
            escaped = "".join(f"\\{char}" if char in _IN_DOUBLE else char for char in text)
            return escaped.replace("!", "\"'!'\"")  # bash would keep a backslash
        case _:
            return "".join(
                char if _PLAIN.match(char) or not char.isascii() else f"\\{char}" for char in text
            )


def answer(complete: Callable[[Sequence[str], str], Candidates], asked: Sequence[str]) -> str:
    """Return the answer to bash: the texts that may replace the last part of the command line.

    ``complete`` takes the words before and an unfinished word, and returns the candidates.
    ``asked`` holds the command line up to the cursor, and its last part.  For bash, a part begins
    after a character that breaks words, such as : and =.
    """
    line, part = asked
    found = split(line)
    start = found.typed[: len(found.typed) - len(part)]
    if start + part != found.typed:
        return "values\n"  # bash split the line differently
    kept = split(start)
    candidates = complete(found.words[1:], found.last)
    tails = [word[len(kept.last) :] for word in candidates.words if word.startswith(kept.last)]
    if candidates.files:
        return "\n".join(["files", *tails]) + "\n"  # bash quotes file names itself
    return "\n".join(["values", *(quoted(tail, kept.quote) for tail in tails)]) + "\n"


PATIENCE = 0.4
"""The seconds to look for names in a store; the names found by then are the candidates."""
GRACE = 0.1
"""The additional seconds for closing the store."""
ENOUGH = 500
"""The maximum number of names to offer; nobody reads a longer list."""

_LOCAL = frozenset({"sqlite", "state", "sessions", "archive"})
# These sources of a password may prompt the user.
_MAY_ASK = ("password_command", "password_keyring")


class _Found(Struct):
    names: dict[str, None] = field(default_factory=dict)

    def add(self, name: str) -> bool:
        """Add a name; return whether at least ``ENOUGH`` names are known."""
        self.names[name] = None
        return len(self.names) >= ENOUGH


def _redacted(url: str) -> str:
    from memctl.config.shown import redacted  # only aliases show a URL

    return redacted(url)


def in_store(line: Line, what: str) -> list[str]:
    """Return the users, sessions or marks in the store that the command line names.

    ``what`` is ``user``, ``session`` or ``mark``.

    Only a store of the configuration or a local file is read, for at most half a second.  Sessions
    and marks are limited to the users and sessions that the line names.
    """
    location = _safe_location(line)
    if location is None:
        return []
    from memctl.selection import Selection  # not needed for commands and options

    users, sessions = (frozenset(line.given.get(name, ())) for name in ("--user", "--session"))
    where = Selection() if what == "user" else Selection(users, sessions)
    try:
        from memctl.commands._run import narrowed
        from memctl.registry import make_store  # loads drivers

        store = make_store(narrowed(location, where, line.given.get("--path", [None])[-1]))
    except MemctlError:
        return []  # the command itself reports the error
    found = _Found()
    looking = threading.Thread(target=_look, args=(store, where, what, found), daemon=True)
    looking.start()
    # A driver or a file system may block, and the thread cannot be interrupted.
    looking.join(PATIENCE + GRACE)
    return sorted(found.names.copy())  # a copy: the thread may still add names


def _look(store: Store, where: Selection, what: str, found: _Found) -> None:
    import asyncio  # only needed for a store

    with suppress(MemctlError, TimeoutError):  # the command itself reports the error
        asyncio.run(_collect(store, where, what, found))


async def _collect(store: Store, where: Selection, what: str, found: _Found) -> None:
    import asyncio  # only needed for a store

    async with asyncio.timeout(PATIENCE), store:
        if what == "mark":
            async with aclosing(store.list_memories(where)) as infos:
                async for info in infos:
                    for mark in info.marks:
                        if found.add(mark):
                            return
            return
        async with aclosing(store.headers(where)) as memories:
            async for memory in memories:
                key = memory.key
                if found.add(key.user if what == "user" else key.session):
                    return


def _load_config(line: Line) -> Config:
    from memctl import config as configuration  # not needed for commands and options

    named = line.given.get("--config", [""])[-1]
    try:
        path = Path(named).expanduser() if named else None
        return configuration.load(path, configuration.environment())
    except MemctlError:
        return configuration.Config()  # the command itself reports the error


def _safe_location(line: Line) -> Location | None:
    """Return the location of the store of the line, if it can be read without questions.

    None if the line names no store, the store may need a password from the user, or the store is
    given by a URL that is not a local file.
    """
    from memctl import config as configuration  # not needed for commands and options

    if line.store is None:
        return None
    config = _load_config(line)
    alias = config.stores.get(line.store)
    if alias is not None and alias.password is not None and alias.password.key in _MAY_ASK:
        return None
    try:
        location = config.locate(line.store, configuration.environment())
    except MemctlError:
        return None
    if location.kind in _LOCAL:
        return location if _is_there(location.path) else None
    return location if alias is not None else None


def _is_there(path: Path) -> bool:
    """Return whether the path is a file or folder; False for a pipe."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)
