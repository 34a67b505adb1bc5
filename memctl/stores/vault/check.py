"""The checks of vaults: frontmatter, files cut in half, broken links, old indexes."""

from __future__ import annotations

import os
import posixpath
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from functools import partial
from itertools import chain, islice
from typing import NamedTuple, Protocol

from memctl.concurrency import in_thread
from memctl.model import Finding, MemoryKey
from memctl.selection import Selection
from memctl.store import Maintenance, Store
from memctl.storekit.folder import Folder
from memctl.stores.vault import markdown
from memctl.stores.vault.markdown import Note

INDEX = "MEMORY.md"
"""The index of AgenticMemory (``FILENAME_MEMORY_MD``)."""
_EXAMPLES = 3


class Problem(NamedTuple):
    """A fault: the code of its finding, the file that it is about, and what is wrong there.

    It is reported where ``place`` is, by default with the file itself.
    """

    code: str
    name: str
    detail: str
    place: str = ""


class CheckedVault(Protocol):
    """The part of a vault that the checks use."""

    folder: Folder

    def markdown_files(self) -> Iterator[os.DirEntry[str]]:
        """Yield the files of the vault."""

    def memory_of(self, name: str) -> MemoryKey:
        """Return whose fact a file is."""


class VaultMaintenance(Maintenance):
    """The checks of a vault; ``problems`` and ``front_fault`` differ from system to system."""

    def __init__(self, store: Store, vault: CheckedVault) -> None:
        super().__init__(store)
        self.vault = vault
        self.folder = vault.folder
        self.files: frozenset[str] = frozenset()
        """The names of all Markdown files of the vault, once ``check`` has begun."""
        self._short_names: frozenset[str] = frozenset()

    async def check(self, where: Selection) -> AsyncGenerator[Finding]:
        async with aclosing(super().check(where)) as findings:
            async for finding in findings:
                yield finding
        for found in await in_thread(partial(self._findings, where)):
            yield found

    def _findings(self, where: Selection) -> list[Finding]:
        names = [self.folder.name_of(entry) for entry in self.vault.markdown_files()]
        self.files = frozenset(names)
        self._short_names = frozenset(posixpath.basename(name).casefold() for name in names)
        found: dict[tuple[str, MemoryKey], list[Problem]] = {}
        selected = [name for name in sorted(names) if where.has_key(self._key(name))]
        for problem in chain(
            chain.from_iterable(map(self._problems_of, selected)), self.problems()
        ):
            key = self._key(problem.place or problem.name)
            if where.has_key(key):
                found.setdefault((problem.code, key), []).append(problem)
        return [
            Finding(
                code,
                key,
                len(problems),
                tuple(islice(dict.fromkeys(one.name for one in problems), _EXAMPLES)),
                problems[0].detail,
            )
            for (code, key), problems in found.items()
        ]

    def _key(self, name: str) -> MemoryKey:
        return self.vault.memory_of(name)

    def _problems_of(self, name: str) -> Iterator[Problem]:
        file = self.folder.read(name)
        if file is None:
            return
        try:
            text = file.data.decode()
        except UnicodeDecodeError:  # the damage is a finding already
            return
        note = markdown.split(text)
        if note.open or not (text or name == INDEX):
            yield Problem("cut-file", name, "the first ends too early" if text else "it is empty")
        elif note.front and (fault := self.front_fault(note)):
            yield Problem("bad-frontmatter", name, f"of the first, {fault}")
        for target in dict.fromkeys(self.broken_links(name, text)):
            yield Problem("broken-link", name, f"the first leads to {target}")

    def front_fault(self, note: Note) -> str:
        """Return why the frontmatter is not read; empty if it is.

        AgenticMemory takes lines, whatever YAML says of them.
        """
        lines = note.yaml.splitlines()
        if any(line.partition(":")[2].strip() for line in lines):
            return ""
        return "no line of it is a name with a value" if lines else ""

    def broken_links(self, name: str, text: str) -> Iterator[str]:
        """Yield the links of a file that lead to no file of the vault."""
        folder = posixpath.dirname(name)
        for target in markdown.markdown_links(text):
            path = posixpath.normpath(posixpath.join(folder, target))
            if not (path.startswith("..") or self.is_there(path)):
                yield target
        for target in markdown.wiki_links(text):
            if not self.is_wiki_target(target):
                yield target

    def is_there(self, name: str) -> bool:
        """Return whether there is such a file, or a folder."""
        return name in self.files or self.folder.exists(name)

    def is_wiki_target(self, target: str) -> bool:
        """Return whether a ``[[link]]`` leads to a file: by its path, or by its name alone."""
        short = target.casefold()
        if not self._short_names.isdisjoint({short, f"{short}.md"}):
            return True
        return self.is_there(target) or self.is_there(f"{target}.md")

    def problems(self) -> Iterator[Problem]:
        """Yield what is wrong with the indexes: files of which ``MEMORY.md`` does not know."""
        file = self.folder.read(INDEX)
        text = file.data.decode(errors="replace") if file is not None else ""
        if not text.strip():
            return
        known = {posixpath.normpath(target) for target in markdown.markdown_links(text)}
        for target in markdown.wiki_links(text):
            known |= {target, f"{target}.md"}
        for name in sorted(self.files - known - {INDEX}):
            yield Problem("stale-index", name, f"the first is not in {INDEX}", INDEX)
