"""Tests that every command line in the documentation and the examples parses."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import dropwhile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import typer
import yaml
from typer.main import get_command

from memctl.cli import COMMANDS, app
from memctl.stores.archive.rotation import parse_rotation

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
KUBERNETES = ROOT / "examples" / "kubernetes.yaml"
SYSTEMD = ROOT / "examples" / "systemd"
MADE = {"reference.md", "doctor.md"}
"""Pages that are made from the parser."""
MARKS = "|;&()<>"
"""Characters that end a command of the shell."""


def of_shells(text: str) -> Iterator[str]:
    """The lines of the shell in a page of Markdown."""
    for block in re.findall(r"^ *```sh\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE):
        for line in block.replace("\\\n", " ").splitlines():
            yield line.strip()


def of_examples() -> Iterator[str]:
    for line in (ROOT / "examples" / "crontab").read_text().splitlines():
        if not line.startswith("#") and "memctl " in line:
            yield line.replace("\\%", "%").split(None, 5)[-1]
    for path in SYSTEMD.glob("*.service"):
        yield from re.findall(r"^ExecStart=(.*)$", path.read_text(), re.MULTILINE)
    for document in manifests():
        pod = document["spec"]["jobTemplate"]["spec"]["template"]["spec"]
        for container in [*pod.get("initContainers", ()), *pod["containers"]]:
            yield shlex.join([*container["command"], *container["args"]])
    for line in (ROOT / "examples" / "demo.sh").read_text().splitlines():
        if line.startswith("run ") and line != "run() {":
            yield "memctl" + line.removeprefix("run")


def manifests() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(KUBERNETES.read_text()))


def before(word: str) -> bool:
    """Return whether a word may stand before the command."""
    return re.match(r"[A-Z_]+=", word) is not None


def commands(line: str) -> Iterator[list[str]]:
    """The words of each call of memctl in a line of the shell."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=MARKS)
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if word and set(word) <= set(MARKS):
            words = list(dropwhile(before, words))
            if words and Path(words[0]).name == "memctl":
                yield words[1:]
            words = []
        else:
            words.append(word)


LINES = [
    *(
        (page.name, line)
        for page in PAGES
        if page.name not in MADE
        for line in of_shells(page.read_text())
    ),
    *(("examples", line) for line in of_examples()),
]
CALLS = [(place, words) for place, line in LINES if "memctl" in line for words in commands(line)]


def parse(words: list[str]) -> None:
    """Parse a call as memctl does, but run nothing (--help and its like excepted)."""
    root = get_command(app)
    try:
        context = root.make_context("memctl", list(words), resilient_parsing=False)
    except typer.Exit:
        return
    while rest := [*context._protected_args, *context.args]:
        name, command, rest = context.command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context)
        if not hasattr(command, "resolve_command"):
            break
    if context.params.get("rotate"):
        parse_rotation(context.params["rotate"])


@pytest.mark.parametrize(
    ("place", "words"), CALLS, ids=[f"{place}:{' '.join(words)[:60]}" for place, words in CALLS]
)
def test_docs_command_line_parses(place: str, words: list[str]) -> None:
    assert place
    parse(words)


def test_docs_enough_of_them_are_found() -> None:
    assert len(CALLS) > 30
    assert {place for place, _ in CALLS} >= {"README.md", "cron.md", "compress.md", "examples"}
    with pytest.raises(Exception, match="--no-such"):
        parse(["export", "x", "--no-such"])


def test_docs_architecture_names_files_that_exist() -> None:
    """A reader follows each walk through the code with at most 15 files."""
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    walks = re.findall(r"^## (One .*?)$(.*?)(?=^## )", page, re.MULTILINE | re.DOTALL)
    assert len(walks) == 9
    for title, walk in walks:
        files = set(re.findall(r"`((?:\w+/)+\w+\.py)`", walk))
        missing = [name for name in files if not (ROOT / "memctl" / name).is_file()]
        assert not missing
        assert 0 < len(files) <= 15, title


def test_docs_links_lead_somewhere() -> None:
    for page in PAGES:
        for link, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([^)]*))?\)", page.read_text()):
            target = page.parent / link if link else page
            assert target.exists(), (page.name, link)
            if anchor:
                assert anchor in anchors(target), (page.name, link, anchor)


def anchors(page: Path) -> set[str]:
    """Return the names of the page's headings in links, as GitHub derives them."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", sorted((ROOT / "man").iterdir()), ids=lambda page: page.name)
def test_docs_manual_page_is_sound(page: Path) -> None:
    assert page.read_text("ascii").startswith('.\\"')
    for words in (["groff", "-man", "-Tutf8", "-ww", "-z"], ["mandoc", "-Tlint", "-Werror"]):
        if shutil.which(words[0]):
            done = subprocess.run([*words, page], capture_output=True, text=True)
            assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_docs_every_command_has_a_manual_page() -> None:
    names = {f"memctl-{name}.1" for name in COMMANDS}
    assert {page.name for page in (ROOT / "man").iterdir()} == {"memctl.1", *names}


def test_docs_drawing_loads_nothing() -> None:
    drawing = (ROOT / "docs" / "tour.svg").read_text("utf-8")
    assert ElementTree.fromstring(drawing).tag.endswith("svg")
    assert "@font-face" not in drawing
    assert "url(http" not in drawing


def test_docs_systemd_unit_says_how_to_create_what_it_needs() -> None:
    lines = (SYSTEMD / "memctl-export.service").read_text("utf-8").splitlines()
    installed = [line.split("  # ")[0].split() for line in lines if line.startswith("#   ")]
    settings = dict(line.split("=", 1) for line in lines if "=" in line and line[0] != "#")
    created = {words[-1] for words in installed if words[1:3] == ["install", "-d"]}
    assert created >= {"/etc/memctl", *settings["ReadWritePaths"].split()}
    assert any(words[1] == "useradd" and words[-1] == settings["User"] for words in installed)
    assert "SuccessExitStatus" not in settings  # a skipped backup is a failure, as for --ping


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not there")
def test_docs_systemd_takes_the_units(tmp_path: Path) -> None:
    for unit in SYSTEMD.iterdir():  # with a program that is there
        text = re.sub(
            r"^ExecStart=\S+", f"ExecStart={sys.executable}", unit.read_text(), flags=re.M
        )
        (tmp_path / unit.name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", *sorted(tmp_path.iterdir())], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_docs_jobs_name_memctl_by_its_absolute_path() -> None:
    jobs = [
        line
        for path in (ROOT / "examples" / "crontab", *SYSTEMD.glob("*.service"))
        for line in path.read_text().splitlines()
        if " -q " in line and not line.startswith("#")
    ]
    assert len(jobs) >= 6
    assert all(re.search(r"(=|\s)/\S+/memctl -q ", line) for line in jobs), jobs


def test_docs_manifests_are_cron_jobs() -> None:
    for document in manifests():
        assert (document["apiVersion"], document["kind"]) == ("batch/v1", "CronJob")
        job = document["spec"]["jobTemplate"]["spec"]
        pod = job["template"]["spec"]
        volumes = {volume["name"] for volume in pod["volumes"]}
        for container in [*pod.get("initContainers", ()), *pod["containers"]]:
            assert all(isinstance(word, str) for word in container["args"])
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
            assert container["securityContext"]["readOnlyRootFilesystem"]
