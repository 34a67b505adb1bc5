"""The commands for what is selected: the browser shows them, and runs none."""

from __future__ import annotations

import re
import shlex

from memctl.browser.pane import Subject


def commands_for(store: str, subject: Subject, *, facts: bool, parts: bool) -> list[str]:
    """Return command lines for a shell about a memory, a message, a user or the whole store.

    With ``facts``, commands that make sense for conversations alone are left out.  With ``parts``,
    a session may hold several memories.
    """
    whole = _selection(subject, parts=parts)
    one = f"{whole} --id {word(subject.id)}" if subject.id else ""
    name = word(store)
    found: list[str] = []
    if one:
        found += [f"inspect {name}{one} --messages --json", f"delete {name}{one} --dry-run"]
        found += [] if facts else [f"mark add {name} important{one} --dry-run"]
    found.append(f"inspect {name}{whole}{' --messages' if subject.key else ''}")
    if not facts and subject.key is not None:
        found.append(f"context {name}{whole}")
    found.append(f"export {name}{whole} -o {word(file_of(subject))}")
    if whole:
        found.append(f"delete {name}{whole} --dry-run")
        if not facts and not one:
            found.append(f"mark add {name} important{whole} --dry-run")
        if not facts:
            found.append(f"compress {name}{whole} --dry-run")
        found.append(f"erase {name}{_selection(subject, parts=False)} --dry-run")
    found.append(f"doctor {name}{_selection(subject, parts=False)}")
    return [*subject.commands, *(f"memctl {line}" for line in found)]


def _selection(subject: Subject, *, parts: bool) -> str:
    key = subject.key
    if key is None:
        return "" if subject.user is None else option("--user", subject.user)
    chosen = option("--user", key.user) + option("--session", key.session)
    return chosen + (option("--path", key.part) if parts and key.part else "")


def option(name: str, value: str) -> str:
    """Return an option with its value, quoted for a shell, after a space."""
    return f" {name}={word(value)}" if value.startswith("-") else f" {name} {word(value)}"


def word(text: str) -> str:
    """Return a word quoted for a shell, with the escapes of bash for control characters."""
    if text.isprintable():
        return shlex.quote(text)
    escaped = "".join(_escape(char) for char in text)
    return f"$'{escaped}'"


def _escape(char: str) -> str:
    if char in "'\\":
        return f"\\{char}"
    if char.isprintable():
        return char
    return "".join(f"\\x{byte:02x}" for byte in char.encode("utf-8", "surrogatepass"))


def file_of(subject: Subject) -> str:
    """Return a name for the file of an export of what is selected."""
    names = subject.key[:2] if subject.key is not None else (subject.user or "",)
    plain = "-".join(re.sub(r"[^\w.-]+", "-", name).strip("-.") for name in names if name)
    return f"{plain or 'memories'}.html"
