"""Check of what must be in the wheel and the sdist, and what must not.

python tests/packaging/contents.py dist/*
"""

from __future__ import annotations

import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHARED = (
    "share/bash-completion/completions/memctl",
    "share/zsh/site-functions/_memctl",
    "share/fish/vendor_completions.d/memctl.fish",
    "share/man/man1/memctl.1",
    "share/man/man1/memctl-migrate.1",
)
SOURCES = (
    *("README.md", "CHANGELOG.md", "LICENSE", "Makefile", "pyproject.toml"),
    *("tests/conftest.py", "requirements/oldest.txt", "scripts/dist-test"),
)


def package_files() -> set[str]:
    """Every file of the package and of the completions, as it is in the working copy."""
    completions = {f"memctl/completions/{one.name}" for one in (ROOT / "completions").iterdir()}
    return completions | {
        file.relative_to(ROOT).as_posix()
        for file in (ROOT / "memctl").rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }


def wrong_with_wheel(path: Path) -> list[str]:
    """Return what is missing in a wheel, and what should not be there."""
    names = set(zipfile.ZipFile(path).namelist())
    [info] = {name.partition("/")[0] for name in names if ".dist-info/" in name}
    data = info.replace(".dist-info", ".data")
    wanted = package_files() | {f"{data}/data/{name}" for name in SHARED}
    wanted |= {f"{info}/{name}" for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt")}
    wanted |= {f"{info}/licenses/LICENSE"}
    strange = {name for name in names - wanted if not name.startswith(f"{data}/data/share/")}
    return [f"missing: {name}" for name in sorted(wanted - names)] + [
        f"unexpected: {name}" for name in sorted(strange)
    ]


def wrong_with_sdist(path: Path) -> list[str]:
    """Return what is missing in an sdist."""
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    files = {name.replace("memctl/completions/", "completions/") for name in package_files()}
    return [f"missing: {name}" for name in sorted({*files, *SOURCES} - names)]


def wrong_with(path: Path) -> list[str]:
    """Return what is wrong with a distribution, by its extension."""
    return wrong_with_wheel(path) if path.suffix == ".whl" else wrong_with_sdist(path)


def main(paths: list[Path]) -> int:
    """Print what is wrong; return 1 where anything is."""
    wrong = [f"{path.name}: {text}" for path in paths for text in wrong_with(path)]
    sys.stdout.writelines(f"{line}\n" for line in wrong or ["the distributions are complete"])
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main([Path(name) for name in sys.argv[1:]]))
