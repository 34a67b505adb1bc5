"""The checks of vaults: bad frontmatter, incomplete files, broken links, stale indexes."""

from __future__ import annotations

import os
import posixpath
from collections.abc import AsyncGenerator, Iterator
from functools import partial
from itertools import chain, islice
from typing import NamedTuple, Protocol

from memctl.machine.concurrency import in_thread
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
    """A fault of the file ``name`` in a vault; ``code`` is the code of the finding.

    The finding names the memory of the file ``place``, or of the file ``name`` if ``place`` is not
    given.
    """

    code: str
    name: str
    detail: str
    place: str = ""


class CheckedVault(Protocol):
    """The methods of a vault store that the checks use."""

    folder: Folder

    def markdown_files(self) -> Iterator[os.DirEntry[str]]:
        """Yield the Markdown files of the vault."""

    def memory_of(self, name: str) -> MemoryKey:
        """Return the memory that the fact in a file belongs to."""


class VaultMaintenance(Maintenance):
    """The checks of ``doctor`` on a vault.  A subclass overrides checks for another framework."""

    def __init__(self, store: Store, vault: CheckedVault) -> None:
        super().__init__(store)
        self.vault = vault
        self.folder = vault.folder
        self.files: frozenset[str] = frozenset()
        """The names of all Markdown files of the vault, set by ``_further``."""
        self._short_names: frozenset[str] = frozenset()

    async def _further(self, where: Selection) -> AsyncGenerator[Finding]:
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
        except UnicodeDecodeError:  # the store reports the damage
            return
        note = markdown.split(text)
        if note.open or not (text or name == INDEX):
            yield Problem("cut-file", name, "the first ends too early" if text else "it is empty")
        elif note.front and (fault := self.front_fault(note)):
            yield Problem("bad-frontmatter", name, f"of the first, {fault}")
        for target in dict.fromkeys(self.broken_links(name, text)):
            yield Problem("broken-link", name, f"the first leads to {target}")

    def front_fault(self, note: Note) -> str:
        """Return why AgenticMemory cannot read the frontmatter; empty if it can.

        AgenticMemory reads the frontmatter line by line, not as YAML.
        """
        lines = note.yaml.splitlines()
        if any(line.partition(":")[2].strip() for line in lines):
            return ""
        return "no line of it is a name with a value" if lines else ""

    def broken_links(self, name: str, text: str) -> Iterator[str]:
        """Yield the link targets that do not exist; ``text`` is the text of the file ``name``."""
        folder = posixpath.dirname(name)
        for target in markdown.markdown_links(text):
            path = posixpath.normpath(posixpath.join(folder, target))
            if not (path.startswith("..") or self.is_there(path)):
                yield target
        for target in markdown.wiki_links(text):
            if not self.is_wiki_target(target):
                yield target

    def is_there(self, name: str) -> bool:
        """Return whether the vault has a file or folder at the path ``name``."""
        return name in self.files or self.folder.exists(name)

    def is_wiki_target(self, target: str) -> bool:
        """Return whether the target of a ``[[link]]`` is the path or the base name of a file.

        The suffix ``.md`` may be missing.
        """
        short = target.casefold()
        if not self._short_names.isdisjoint({short, f"{short}.md"}):
            return True
        return self.is_there(target) or self.is_there(f"{target}.md")

    def problems(self) -> Iterator[Problem]:
        """Yield the faults of the whole vault: files to which ``MEMORY.md`` has no link.

        Yields nothing if ``MEMORY.md`` is missing or empty.
        """
        file = self.folder.read(INDEX)
        text = file.data.decode(errors="replace") if file is not None else ""
        if not text.strip():
            return
        known = {posixpath.normpath(target) for target in markdown.markdown_links(text)}
        for target in markdown.wiki_links(text):
            known |= {target, f"{target}.md"}
        for name in sorted(self.files - known - {INDEX}):
            yield Problem("stale-index", name, f"the first is not in {INDEX}", INDEX)
