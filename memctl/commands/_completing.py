"""What the shells complete: commands, options and their values.

The scripts in ``memctl/completions`` run memctl with ``_MEMCTL_COMPLETE=SHELL`` and the words of
the line.  The answer is ``files`` (file names fit, too) or ``values``, then a candidate a line: the
whole word, a tab, and what it means.  bash, which does not quote what it is given, sends the line
itself and gets what it is to write behind it.

Nothing is ever said on stderr: whoever presses TAB did not run a command.
"""

from __future__ import annotations

import os
import sys
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import typer

from memctl.errors import MemctlError

SHELLS = ("bash", "zsh", "fish")

_STORES = ("STORE", "SRC", "DST", "A", "B")
_RUNS = 100
# Line ends, what moves the cursor, and what shows text in another order than it has.
_UNFIT = {"Cc", "Cs", "Zl", "Zp"}
_TURNING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


@dataclass(slots=True)
class Candidates:
    """What the word may become, each with what it means, and whether a file's name fits, too."""

    words: dict[str, str] = field(default_factory=dict)
    files: bool = False

    def starting(self, start: str) -> Candidates:
        """Those that start so and can be shown on one line."""
        fit = {
            word: _one_line(meaning)
            for word, meaning in self.words.items()
            if word.startswith(start) and word and _is_fit(word)
        }
        return Candidates(fit, self.files)


@dataclass(slots=True)
class Line:
    """The words before the one that is completed, as the parser would understand them."""

    command: Any
    given: dict[str, list[str]] = field(default_factory=dict)
    """Values of options, by their long names with dashes."""
    arguments: list[str] = field(default_factory=list)
    waiting: Any = None
    """The option whose value comes next."""
    ended: bool = False
    """Whether -- was said, so that no option follows."""

    @property
    def named(self) -> dict[str, str]:
        """The arguments by how the help calls them; the last one where many are taken."""
        return {
            parameter.metavar: value
            for index, value in enumerate(self.arguments)
            if (parameter := self.argument(index)) is not None and parameter.metavar
        }

    @property
    def store(self) -> str | None:
        """The first store that is named: where two are, what is selected is in it."""
        named = self.named
        found = next((named[name] for name in ("FILE", *_STORES) if name in named), None)
        return self.given.get("--store", [found])[-1]

    def argument(self, index: int) -> Any:
        """The parameter that the argument at the index belongs to; None if there is none."""
        for parameter in self.command.params:
            if parameter.param_type_name == "argument":
                if parameter.nargs < 0 or index < parameter.nargs:
                    return parameter
                index -= parameter.nargs
        return None


def main(root: Any, lines: Mapping[str, str], shell: str, words: Sequence[str]) -> None:
    """Answers a shell; ``lines`` are the commands of memctl with what they do."""
    if shell not in SHELLS:
        return
    if shell == "bash":
        from memctl.commands._completing_bash import answer  # only bash needs it

        text = answer(lambda before, word: complete(root, lines, before, word), words)
    else:
        found = complete(root, lines, words[:-1], words[-1] if words else "", quoted=True)
        text = _written(found)
    sys.stdout.buffer.write(text.encode())
    sys.stdout.buffer.flush()
    os._exit(0)  # a look into a store may go on, and Python would wait for its threads


def _written(found: Candidates) -> str:
    rows = [f"{word}\t{meaning}" for word, meaning in found.words.items()]
    return "\n".join(["files" if found.files else "values", *rows]) + "\n"


def complete(
    root: Any, lines: Mapping[str, str], before: Sequence[str], word: str, *, quoted: bool = False
) -> Candidates:
    """The candidates for a word behind others.

    With ``quoted`` the word is as it was typed, and the shell itself leaves out what does not fit.
    """
    try:
        line = read(root, before)
        if line is None:
            return Candidates()
        name, equals, start = word.partition("=")
        option = None if line.ended or line.waiting else _option(line.command, name)
        if equals and option is not None:
            found = _values(line, option, "" if quoted else start)
            found = Candidates({name + equals + one: said for one, said in found.words.items()})
        elif line.waiting is not None:
            found = _values(line, line.waiting, "" if quoted else word)
        else:
            found = _next(line, root, lines, word, "" if quoted else word)
    except MemctlError:
        return Candidates()  # a plugin that cannot be loaded: its command will tell
    return found.starting("" if quoted else word)


def read(root: Any, words: Sequence[str]) -> Line | None:
    """The line as far as it was typed; None where a command is none."""
    line = Line(root)
    for word in words:
        if line.waiting is not None:
            line.given.setdefault(_long(line.waiting), []).append(word)
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
    option = _option(line.command, name)
    if option is None or option.is_flag:
        return
    if equals:
        line.given.setdefault(_long(option), []).append(value)
    else:
        line.waiting = option


def _option(command: Any, name: str) -> Any:
    for parameter in command.params:
        if name in (*parameter.opts, *parameter.secondary_opts) and name.startswith("-"):
            return parameter
    return None


def _long(option: Any) -> str:
    names: list[str] = option.opts
    return next((name for name in names if name.startswith("--")), names[0])


def _next(line: Line, root: Any, lines: Mapping[str, str], word: str, start: str) -> Candidates:
    """An option, a command or an argument."""
    if word.startswith("-") and not line.ended:
        return Candidates(_options(line.command))
    if line.command is root:
        return Candidates({name: lines.get(name, "") for name in _names(root)})
    below = getattr(line.command, "commands", None)
    if below is not None:
        return Candidates({name: one.get_short_help_str() for name, one in below.items()})
    parameter = line.argument(len(line.arguments))
    if parameter is None:
        return Candidates()
    if parameter.metavar == "TOPIC":
        return _topics(line, root, lines)
    return _values(line, parameter, start)


def _names(root: Any) -> list[str]:
    names: list[str] = root.list_commands(typer.Context(root))
    return names


def _options(command: Any) -> dict[str, str]:
    found = {
        name: parameter.help or ""
        for parameter in command.params
        if parameter.param_type_name == "option"
        for name in (*parameter.opts, *parameter.secondary_opts)
        if name.startswith("--")
    }
    return found | {"--help": "Show this message and exit."}


def _topics(line: Line, root: Any, lines: Mapping[str, str]) -> Candidates:
    match line.arguments:
        case []:
            more = {"exit-codes": "What they mean.", "schema": "The JSON of a report."}
            return Candidates({name: lines.get(name, "") for name in _names(root)} | more)
        case ["schema"]:
            from memctl.output import schemas  # nothing else completes them

            return Candidates(dict.fromkeys(schemas.names(), ""))
        case words:
            inner = read(root, words)
            below = getattr(inner.command, "commands", {}) if inner else {}
            return Candidates({name: one.get_short_help_str() for name, one in below.items()})


def _values(line: Line, parameter: Any, start: str) -> Candidates:
    """What an option or an argument may be."""
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
    from memctl.commands import _completing_names as names  # reads the configuration

    return Candidates(names.aliases(line), files=True)


def _summarizers(line: Line) -> Candidates:
    from memctl.commands import _completing_names as names  # reads the configuration

    return Candidates(names.summarizers(line))


def _in_store(what: str) -> Callable[[Line], Candidates]:
    def find(line: Line) -> Candidates:
        from memctl.commands import _completing_names as names  # opens stores

        return Candidates(dict.fromkeys(names.in_store(line, what), ""))

    return find


def _runs(_: Line) -> Candidates:
    from memctl.journal.runs import Runs  # only undo takes them

    return Candidates({run.id: f"{run.command} on {run.store}" for run in Runs().all()[:_RUNS]})


def _codes(_: Line) -> Candidates:
    from memctl.ops.doctor.findings import KINDS  # only doctor takes them

    return Candidates({code: kind.what for code, kind in KINDS.items()})


def _roles(_: Line) -> Candidates:
    return Candidates(dict.fromkeys(("user", "assistant", "system"), ""))


_OF_OPTIONS: dict[str, Callable[[Line], Candidates]] = {
    "--store": _stores,
    "--summarizer": _summarizers,
    "--user": _in_store("user"),
    "--session": _in_store("session"),
    "--mark": _in_store("mark"),
    "--exclude-mark": _in_store("mark"),
    "--role": _roles,
}
_OF_ARGUMENTS: dict[str | None, Callable[[Line], Candidates]] = {
    **dict.fromkeys(_STORES, _stores),
    **dict.fromkeys(("MARK", "OLD", "NEW"), _in_store("mark")),
    "RUN": _runs,
    "CODE": _codes,
}


def _is_fit(word: str) -> bool:
    return not any(unicodedata.category(char) in _UNFIT or char in _TURNING for char in word)


def _one_line(text: str) -> str:
    return "".join(char for char in " ".join(text.split()) if _is_fit(char))
