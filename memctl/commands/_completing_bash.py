"""Words as bash reads and writes them: what it completes is not unquoted, nor quoted, by bash."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from memctl.commands._completing import Candidates

_PLAIN = re.compile(r"[\w@%+,./:=-]", re.ASCII)
_IN_DOUBLE = frozenset('"$`\\')
"""What a backslash quotes between double quotes."""


@dataclass(slots=True)
class Words:
    """A line as bash takes it apart; the last word may be unfinished."""

    words: list[str] = field(default_factory=list)
    """All but the last, unquoted."""
    last: str = ""
    """The last, unquoted; empty behind a space."""
    typed: str = ""
    """The last, as it was typed."""
    quote: str = ""
    """The quote that is open at the end."""


def split(line: str) -> Words:
    """The words of a command line, up to its end."""
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
    """A text as it is written behind an open quote, or behind none."""
    match quote:
        case "'":
            return text.replace("'", "'\\''")
        case '"':
            escaped = "".join(f"\\{char}" if char in _IN_DOUBLE else char for char in text)
            return escaped.replace("!", "\"'!'\"")  # a backslash would stay
        case _:
            return "".join(
                char if _PLAIN.match(char) or not char.isascii() else f"\\{char}" for char in text
            )


def answer(complete: Callable[[Sequence[str], str], Candidates], asked: Sequence[str]) -> str:
    """The answer to bash: what it is to put in the place of the part that it completes.

    ``asked`` is the line up to the cursor, and that part: what follows the last of the characters
    that break words for bash, such as : and =.
    """
    line, part = asked
    found = split(line)
    start = found.typed[: len(found.typed) - len(part)]
    if start + part != found.typed:
        return "values\n"  # bash took the line apart otherwise
    kept = split(start)
    candidates = complete(found.words[1:], found.last)
    tails = [word[len(kept.last) :] for word in candidates.words if word.startswith(kept.last)]
    if candidates.files:
        return "\n".join(["files", *tails]) + "\n"  # as names of files, bash quotes them
    return "\n".join(["values", *(quoted(tail, kept.quote) for tail in tails)]) + "\n"
