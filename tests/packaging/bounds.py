"""The oldest versions that pyproject.toml allows, as constraints for pip.

python -m tests.packaging.bounds > requirements/oldest.txt
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
_BOUND = re.compile(r"([\w.-]+)(?:\[[\w,]+\])?>=([\w.]+)(?:,<[\w.]+)?(; .*)?")


def oldest() -> str:
    """Return one line for each dependency, those of the extras too."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    every = [*project["dependencies"]]
    for requirements in project["optional-dependencies"].values():
        every += [one for one in requirements if not one.startswith(project["name"])]
    lines = []
    for requirement in every:
        found = _BOUND.fullmatch(requirement)
        if found is None:
            raise ValueError(f"{requirement!r} has no lower bound, or more than that")
        lines.append(f"{found[1]}=={found[2]}{found[3] or ''}\n")
    head = "# The oldest versions that pyproject.toml allows, tried by `make dist-test`.\n"
    return head + "".join(sorted(lines, key=str.lower))


if __name__ == "__main__":
    sys.stdout.write(oldest())
