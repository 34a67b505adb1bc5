"""Make ``memctl/ops/redact/secrets.toml`` of the rules of gitleaks.

::

    python tools/secret_rules.py gitleaks/config/gitleaks.toml v8.30.0

Left out are rules of file names, rules that need the path of a file, and ``generic-api-key``, which
rests on entropy and a list of words of source code.  The flags in the middle of an expression, as
Go has them, become groups, as Python has them.  A secret may end with the punctuation of a
sentence, which the rules, made for source code, do not expect.  An optional beginning that says
nothing about the secret goes: it takes most of the time.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

TARGET = Path(__file__).parent.parent / "memctl/ops/redact/secrets.toml"
HEAD = """\
# The rules by which memctl finds secrets: those of gitleaks {version}, in the syntax of Python.
# Made by tools/secret_rules.py.
#
# https://github.com/gitleaks/gitleaks, under the MIT License:
#
# Copyright (c) 2019 Zachary Rice
#
# Permission is hereby granted, free of charge, to any person obtaining a copy of this software and
# associated documentation files (the "Software"), to deal in the Software without restriction,
# including without limitation the rights to use, copy, modify, merge, publish, distribute,
# sublicense, and/or sell copies of the Software, and to permit persons to whom the Software is
# furnished to do so, subject to the following conditions:
#
# The above copyright notice and this permission notice shall be included in all copies or
# substantial portions of the Software.
#
# THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT
# NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND
# NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM,
# DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT
# OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
"""
OMITTED = {"generic-api-key"}
END = r"""(?:[\x60'"\s;]|\\[nr]|$)"""
END_IN_PROSE = r"""(?=[\x60'"\s;.,:!?)\]}<>|]|\\[nr]|$)"""
BEGINNING = r"[\w.-]{0,50}?"
_STEP = re.compile(r"\\.|\[\^?\]?(?:\\.|\[:\w+:\]|[^\]\\])*\]|\(\?i\)|\(|\)", re.DOTALL)


def in_python(regex: str) -> str:
    """Return an expression of Go in the syntax of Python's ``re``."""
    regex = regex.replace(r"\z", r"\Z").replace(END, END_IN_PROSE).replace(BEGINNING, "")
    pieces: list[str] = []
    open_flags = [0]
    at = 0
    for step in _STEP.finditer(regex):
        pieces.append(regex[at : step.start()])
        at = step.end()
        match step[0]:
            case "(?i)" if step.start():
                pieces.append("(?i:")
                open_flags[-1] += 1
            case "(":
                pieces.append("(")
                open_flags.append(0)
            case ")":
                pieces.append(")" * (open_flags.pop() + 1))
            case "(?i)" as same:
                pieces.append(same)
            case other if other.startswith("["):
                pieces.append(other[0] + re.sub(r"(?<!\\)\[", r"\\[", other[1:]))
            case other:
                pieces.append(other)
    found = "".join([*pieces, regex[at:], ")" * open_flags[0]])
    re.compile(found)
    return found


def lines(rule: dict[str, Any]) -> list[str]:
    """Return the table of a rule."""
    allowed = [
        in_python(regex)
        for one in rule.get("allowlists", ())
        if one.get("regexTarget", "secret") == "secret"
        for regex in one.get("regexes", ())
    ]
    fields = {
        "id": rule["id"],
        "regex": in_python(rule["regex"]),
        "keywords": [word.lower() for word in rule.get("keywords", ())],
        "entropy": rule.get("entropy"),
        "group": rule.get("secretGroup"),
        "allowed": allowed or None,
    }
    told = [f"{name} = {json.dumps(one)}" for name, one in fields.items() if one is not None]
    return ["[[rules]]", *told, ""]


def main(source: str, version: str) -> None:
    """Write the file of rules."""
    document = tomllib.loads(Path(source).read_text())
    allowed = [in_python(regex) for regex in document["allowlist"]["regexes"]]
    found = [HEAD.format(version=version), f"allowed = {json.dumps(allowed, indent=4)}", ""]
    for rule in document["rules"]:
        if "regex" in rule and "path" not in rule and rule["id"] not in OMITTED:
            found += lines(rule)
    TARGET.write_text("\n".join(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
