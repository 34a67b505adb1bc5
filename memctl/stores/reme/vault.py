"""The vault of ReMe 0.4: Markdown below ``daily`` and ``digest``, and indexes that ReMe rebuilds.

Read from reme-ai 0.4.2: ``steps/file_io/_daily_index.py``, ``utils/wikilink_handler.py`` and
``components/file_graph/local_file_graph.py``.
"""

from __future__ import annotations

import io
import posixpath
import re
from collections.abc import Iterator

from memctl.json import jsonio
from memctl.location import visible
from memctl.machine.zstd import ZstdError, ZstdFile
from memctl.stores.vault import markdown
from memctl.stores.vault.check import Problem, VaultMaintenance
from memctl.stores.vault.markdown import Note
from memctl.stores.vault.store import VaultStore

MARKS = ("daily", "digest", "metadata", "session", "resource", "mem_session")
"""The folders that ReMe makes in a vault."""
_INDEXED = ("daily/", "digest/")
"""The folders of the files that ReMe searches."""
_DAY = re.compile(r"(daily/\d{4}-\d\d-\d\d)(\.md|/.+)")
_NOTES = re.compile(r"<!-- notes:auto -->(.*)<!-- /notes:auto -->", re.DOTALL)


class ReMeVaultStore(VaultStore):
    """The facts in a vault of ReMe 0.4."""

    kind = "reme"
    imports = "digest/imported"
    leaves_out = frozenset({"metadata", "session", "mem_session"})

    def maintenance(self) -> VaultMaintenance:
        return ReMeVaultMaintenance(self, self)

    def refuse_other_files(self) -> None:
        if not any((self.location.path / mark).is_dir() for mark in MARKS):
            super().refuse_other_files()

    async def other_contents(self) -> str:
        dialogs = [
            visible(path.stem) for path in sorted(self.location.path.glob("session/dialog/*.jsonl"))
        ]
        if not dialogs:
            return ""
        return (
            f"{self.label} holds no Markdown file; ReMe's dialogs in session/dialog are left "
            f"alone: {len(dialogs):,}, such as {dialogs[0]}"
        )


class ReMeVaultMaintenance(VaultMaintenance):
    """The checks of ``doctor`` on a vault of ReMe."""

    def front_fault(self, note: Note) -> str:
        return markdown.mapping_fault(note)

    def broken_links(self, name: str, text: str) -> Iterator[str]:  # noqa: ARG002
        """Yield the targets of ``[[links]]`` that have no file.

        ReMe reads no other form of links.
        """
        for target in markdown.wiki_links(markdown.split(text).body):
            if not (target.startswith("../") or self.is_there(target)):
                yield target

    def problems(self) -> Iterator[Problem]:
        yield from self._days()
        yield from self._search_index()

    def _days(self) -> Iterator[Problem]:
        notes: dict[str, set[str]] = {}
        for name in self.files:
            found = _DAY.fullmatch(name)
            if found is not None and posixpath.dirname(name) in ("daily", found[1]):
                notes.setdefault(found[1], set()).update({name} - {f"{found[1]}.md"})
        for day, there in sorted(notes.items()):
            index = f"{day}.md"
            file = self.folder.read(index)
            text = file.data.decode(errors="replace") if file is not None else ""
            listed = _NOTES.search(text)
            known = set(markdown.wiki_links(listed[1])) if listed else set()
            if file is None or listed:
                for name in filter(self._is_listed, sorted(there - known)):
                    yield Problem("stale-index", name, f"the first is not in {index}", index)
            for name in sorted(known - there):
                yield Problem("stale-index", name, f"the first is gone, and in {index}", index)

    def _is_listed(self, name: str) -> bool:
        """Return whether ReMe would list a note in the index of its day."""
        file = self.folder.read(name)
        note = markdown.split(file.data.decode(errors="replace")) if file is not None else None
        return note is not None and not (note.front and self.front_fault(note))

    def _search_index(self) -> Iterator[Problem]:
        indexed = self._indexed()
        if indexed is None:
            return
        there = {name: self.folder.path_of(name).stat().st_mtime for name in self._searched()}
        for name in sorted(there.keys() | indexed.keys()):
            if there.get(name) != indexed.get(name):
                yield Problem("stale-search-index", name, "")

    def _searched(self) -> Iterator[str]:
        return (name for name in self.files if name.startswith(_INDEXED))

    def _indexed(self) -> dict[str, float] | None:
        """Return the modification times in ReMe's search index, by name of the file.

        Returns None without an index, and an empty dict if the index is damaged.
        """
        file = self.folder.read("metadata/file_graph/default.jsonl.zst")
        if file is None:
            return None
        found: dict[str, float] = {}
        try:
            with ZstdFile(io.BytesIO(file.data)) as lines:
                for line in lines:
                    if line.strip():
                        node = jsonio.loads(line)
                        found[node["path"]] = node["st_mtime"]
        except (ZstdError, EOFError, ValueError, TypeError, KeyError):
            return {}  # ReMe begins anew where it cannot read it
        return found
