"""The environment of memctl: required packages, extras, and packages that overwrite its files."""

from __future__ import annotations

import json
import re
import shlex
import sys
import tomllib
from importlib.metadata import (
    PackageNotFoundError,
    distribution,
    distributions,
    packages_distributions,
    requires,
    version,
)
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

DISTRIBUTION = "agentscope-memctl"
"""The name of memctl in package indexes; the import package and the script are called memctl."""

REMEDY = (
    "uninstall both, then install agentscope-memctl in an environment of its own "
    "with pipx or uv tool"
)

_ALL = "all"
"""The extra with the packages of all extras."""
_REQUIREMENT = re.compile(r"([\w.-]+)")
_OWN_EXTRAS = re.compile(rf"{DISTRIBUTION} *\[([^]]*)\]")
_EXTRA = re.compile(r"extra *== *['\"]([\w-]+)['\"]")


class Package(Struct, frozen=True):
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


def install_command(extra: str) -> str:
    """Return the command that adds an extra to this installation, made by pipx, uv or pip."""
    prefix = Path(sys.prefix)
    wanted = f"{DISTRIBUTION}[{extra}]"
    if (prefix / "pipx_metadata.json").exists():
        return shlex.join(["pipx", "inject", prefix.name, *(_requirements(extra) or [wanted])])
    uv = ["uv", "pip", "install", "--python", str(prefix)]
    if (prefix / "uv-receipt.toml").exists():
        return shlex.join(_uv_tool(prefix / "uv-receipt.toml", extra) or [*uv, wanted])
    pip = uv if _is_made_by_uv(prefix) else [sys.executable, "-m", "pip", "install"]
    checkout = _checkout()
    target = [wanted] if checkout is None else ["-e", f"{checkout}[{extra}]"]
    return shlex.join([*pip, *target])


def _requirements(extra: str) -> list[str]:
    """Return the requirements of an extra, such as ``pyarrow>=17``."""
    try:
        lines = requires(DISTRIBUTION) or []
    except PackageNotFoundError:
        return []
    found: list[str] = []
    for line in lines:
        of = _EXTRA.search(line)
        if of is None or of[1] != extra:
            continue
        requirement = line.partition(";")[0].strip()
        own = _OWN_EXTRAS.match(requirement)
        below = [one.strip() for one in own[1].split(",")] if own else []
        found += [one for name in below for one in _requirements(name)] if own else [requirement]
    return found


def _uv_tool(receipt: Path, extra: str) -> list[str] | None:
    """Return the command that installs the tool of a receipt of uv again, with one more extra.

    The command names all that the tool has: ``uv tool install`` removes everything else.  None if
    the receipt names a source other than an index or a folder.
    """
    try:
        requirements = tomllib.loads(receipt.read_text("utf-8"))["tool"]["requirements"]
        [tool] = [one for one in requirements if one["name"] == DISTRIBUTION]
        others = [_written(one) for one in requirements if one is not tool]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    folder = tool.get("editable") or tool.get("directory")
    source = {name: value for name, value in tool.items() if name not in ("editable", "directory")}
    extras = sorted({*tool.get("extras", ()), extra})
    wanted = _written(source | {"name": folder or DISTRIBUTION, "extras": extras})
    if wanted is None or None in others:
        return None
    more = [word for one in others for word in ("--with", str(one))]
    return ["uv", "tool", "install", *more, *(["--editable"] if "editable" in tool else []), wanted]


def _written(requirement: dict[str, Any]) -> str | None:
    """Return a requirement of a receipt as text; None for one from a URL, Git or a folder."""
    if requirement.keys() - {"name", "extras", "specifier"}:
        return None
    extras = ",".join(requirement.get("extras", ()))
    listed = f"[{extras}]" if extras else ""
    return f"{requirement['name']}{listed}{requirement.get('specifier', '')}"


def _is_made_by_uv(prefix: Path) -> bool:
    try:
        lines = (prefix / "pyvenv.cfg").read_text("utf-8").splitlines()
    except OSError:
        return False
    return any(line.partition("=")[0].strip() == "uv" for line in lines)


def _checkout() -> str | None:
    """Return the folder of an editable installation; None if memctl is installed otherwise."""
    try:
        origin = json.loads(distribution(DISTRIBUTION).read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        return None
    if not origin.get("dir_info", {}).get("editable"):
        return None
    from urllib.request import url2pathname  # slow to load

    return url2pathname(urlsplit(origin["url"]).path)


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
