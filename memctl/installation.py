"""The environment of memctl: required packages, and packages that overwrite memctl's files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.metadata import (
    PackageNotFoundError,
    distributions,
    packages_distributions,
    requires,
    version,
)

DISTRIBUTION = "agentscope-memctl"
"""The name of memctl in package indexes; the import package and the script are called memctl."""

REMEDY = (
    "uninstall both, then install agentscope-memctl in an environment of its own "
    "with pipx or uv tool"
)

_ALL = "all"
"""The extra with the packages of all extras."""
_REQUIREMENT = re.compile(r"([\w.-]+)")
_EXTRA = re.compile(r"extra *== *['\"]([\w-]+)['\"]")


@dataclass(frozen=True, slots=True)
class Package:
    """A package that memctl uses."""

    name: str
    version: str | None
    """The installed version; None if the package is not installed."""
    extra: str | None
    """The extra of memctl that requires the package; None if memctl always requires it."""


def packages() -> list[Package]:
    """Return the packages that memctl uses; empty if memctl is not installed as a package."""
    try:
        lines = requires(DISTRIBUTION) or []
    except PackageNotFoundError:
        return []
    found = []
    for line in lines:
        name, extra = _REQUIREMENT.match(line), _EXTRA.search(line)
        if name is not None and (extra is None or extra[1] != _ALL):
            found.append(Package(name[1], _version(name[1]), extra[1] if extra else None))
    return found


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def conflicts() -> list[str]:
    """Return the names of other distributions that install a package or a script called memctl.

    Files of such a distribution overwrite files of memctl, or are overwritten by them.
    """
    found = set(packages_distributions().get("memctl", ()))
    found.update(
        each.metadata["Name"]
        for each in distributions()
        if each.entry_points.select(group="console_scripts", name="memctl")
    )
    return sorted(found - {DISTRIBUTION})


def conflict_warnings() -> list[str]:
    """Return a warning for each distribution that shares file names with memctl."""
    return [
        f"the package {name!r} in this environment installs files of the same names: each "
        f"overwrites the other; {REMEDY}"
        for name in conflicts()
    ]
