"""The checks of vaults: frontmatter, files cut in half, broken links, old indexes."""

from __future__ import annotations

import posixpath
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING

from memctl.concurrency import in_thread
from memctl.model import Finding, MemoryKey
from memctl.selection import Selection
from memctl.store import Maintenance
from memctl.stores.vault import markdown
from memctl.stores.vault.markdown import Note

if TYPE_CHECKING:
    from memctl.stores.vault.store import VaultStore

INDEX = "MEMORY.md"
"""The index of AgenticMemory (``FILENAME_MEMORY_MD``)."""
_EXAMPLES = 3

Problem = tuple[str, str, str]
"""The code of a finding, the name of the file it is about, and an example."""


class VaultMaintenance(Maintenance):
    """The checks of a vault; ``problems`` and ``front_fault`` differ from system to system."""

    def __init__(self, store: VaultStore) -> None:
        super().__init__(store)
        self.vault = store
        self.folder = store.folder
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
        counts: dict[tuple[str, MemoryKey], list[str]] = {}
        for name in sorted(names):
            key = self.vault.place_of(name).key
            for problem in self._problems_of(name) if where.has_key(key) else ():
                counts.setdefault((problem[0], key), []).append(problem[2])
        for code, name, example in self.problems():
            key = self.vault.place_of(name).key
            if where.has_key(key):
                counts.setdefault((code, key), []).append(example)
        return [
            Finding(code, key, len(examples), tuple(examples[:_EXAMPLES]))
            for (code, key), examples in counts.items()
        ]

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
            yield "cut-file", name, name
        elif note.front and (fault := self.front_fault(note)):
            yield "bad-frontmatter", name, f"{name}: {fault}"
        for target in dict.fromkeys(self.broken_links(name, text)):
            yield "broken-link", name, f"{name}: {target}"

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
            yield "stale-index", INDEX, f"{name} is not in {INDEX}"
