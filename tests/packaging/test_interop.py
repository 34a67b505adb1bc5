"""The table of the environments with the real frameworks."""

from __future__ import annotations

import re
import runpy
import tomllib
from typing import Any

import pytest

from tests.packaging.bounds import ROOT

SCRIPT = runpy.run_path(str(ROOT / "scripts" / "interop"))
TABLE: dict[str, Any] = tomllib.loads(SCRIPT["TABLE"].read_text("utf-8"))


@pytest.mark.parametrize("name", TABLE)
def test_interop_environment_pins_each_package_once(name: str) -> None:
    shared = SCRIPT["VERSIONS"].read_text("utf-8").splitlines()[1:]
    line = TABLE[name]
    chosen = [*line["versions"], *(one for one in line["packages"] if "==" in one)]
    assert not set(line["versions"]) & set(shared)
    pinned = [SCRIPT["normal"](one) for one in SCRIPT["constraints"](chosen)]
    assert len(set(pinned)) == len(pinned) == len(shared)


def test_interop_table_has_the_environments_of_the_tests() -> None:
    used = set()
    for path in [*ROOT.glob("tests/interop*/*.py"), *ROOT.glob("tests/support/*.py")]:
        used |= set(re.findall(r'"\.(interop[\w-]*)"', path.read_text("utf-8")))
    assert used == set(TABLE)
