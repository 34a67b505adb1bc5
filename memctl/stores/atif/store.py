"""Files of trajectories in the Agent Trajectory Interchange Format (ATIF).

A ``.json`` file holds a trajectory; each line of a ``.jsonl`` file is a trajectory.  A folder holds
such files, also in subfolders, like the jobs of Harbor.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, NoReturn

from memctl.dialects.atif import TrajectoryMemory, is_trajectory, memories_of, with_digests
from memctl.dialects.view import Dialect
from memctl.errors import BadData, Failure, UsageError
from memctl.json import jsonio
from memctl.json.scan import BYTE_ORDER_MARK
from memctl.layouts import foreign
from memctl.location import visible
from memctl.machine import system
from memctl.machine.concurrency import in_thread
from memctl.model import Finding, MemoryKey, Page
from memctl.selection import Selection
from memctl.store import Features, OpenMode
from memctl.storekit.batching import paginate
from memctl.storekit.files import numbered_lines, require_place, system_errors
from memctl.storekit.read_only import ReadOnlyStore
from memctl.storekit.texts import Rewriter, RewriterWrapper, Rewritten

_DOCUMENT, _LINES = ".json", ".jsonl"
_HINT = 'a trajectory is a JSON object: {"schema_version": "ATIF-v1.8", "agent": ..., "steps": []}'


class _Text(NamedTuple):
    """The JSON text of a trajectory: its place for errors, and a name for its session."""

    place: str
    name: str
    text: bytes


class TrajectoryStore(ReadOnlyStore):
    """The trajectories in a file or a folder, which memctl only reads and redacts.

    The dialect is that of the first trajectory.
    """

    kind = "atif"
    features = Features(
        mark_order=True,
        summaries=True,
        ttl=True,
        ttl_counts_down=False,
        waits=True,
        duplicate_ids=True,
        parts=True,
        retired=True,
    )

    async def open(self, mode: OpenMode) -> None:
        self.mode = mode
        if mode.creates:
            self.refuse_changes()
        require_place(self.location.path, self.label, create=False)
        self.dialect = await in_thread(self._first_dialect)

    async def close(self) -> None:
        """Do nothing: the store keeps no file open."""

    # Reading

    def read(self, where: Selection) -> AsyncGenerator[Page]:
        return where.apply(self._pages(where), self.dialect)

    async def _pages(self, where: Selection) -> AsyncGenerator[Page]:
        seen: set[MemoryKey] = set()
        texts, changed = self._texts(), 0
        while (one := await in_thread(lambda: next(texts, None))) is not None:
            for found in self._memories(one):
                changed += found.is_changed
                key = found.memory.key
                if not where.has_key(key):
                    continue
                if key in seen:
                    self.left_out.failures[key] = Failure(
                        "damaged", f"{one.place} repeats its name"
                    )
                    continue
                seen.add(key)
                self.left_out.others = True
                for page in paginate(found.memory, found.messages, empty=False):
                    yield page
        if changed:
            self.warnings.append(
                f"other programs have changed {changed:,} trajectories of memctl in {self.label}: "
                "what their steps say counts, and ids, marks and what else memctl noted are gone"
            )

    def _memories(self, one: _Text) -> Iterator[TrajectoryMemory]:
        try:
            for found in memories_of(jsonio.loads(one.text), one.name):
                if found.dialect.full_name != self.dialect.full_name:
                    mine, other = self.dialect.full_name, found.dialect.full_name
                    raise ValueError(f"its messages are of {other}, and those before it of {mine}")
                yield found
        except ValueError as error:
            text = f"{one.place} is damaged: {error}"
            if not self.skips_damage:
                raise BadData(text, _HINT) from error
            self.damage.append(Finding("damaged-row", None, 1, (), text))

    def _first_dialect(self) -> Dialect:
        """Return the dialect of the first trajectory that is not damaged."""
        for one in self._texts():
            with suppress(ValueError):  # ``read`` reports it
                return next(memories_of(jsonio.loads(one.text), one.name)).dialect
        return self.dialect

    def _texts(self) -> Iterator[_Text]:
        path = self.location.path
        for file in self._files():
            name = file.stem if file == path else str(file.relative_to(path).with_suffix(""))
            yield from _texts_of(file, name)

    def _files(self) -> Iterator[Path]:
        """Yield the files with trajectories; warn of others in the folder.

        Raises:
            BadData: the folder has no trajectory.
        """
        path, others = self.location.path, []
        if not path.is_dir():
            yield path
            return
        with system_errors(path, "read"):
            files = sorted(one for one in path.rglob("*.json*") if one.is_file())
        for file in files:
            if file.suffix not in (_DOCUMENT, _LINES):
                continue
            if is_trajectory(foreign.beginning(foreign.start_of(file))):
                yield file
            else:
                others.append(visible(str(file)))
        if len(others) == len(files):
            raise BadData(f"{self.label} has no trajectory", _HINT)
        if others:
            text = f"{len(others):,} files hold no trajectories, such as {others[0]}"
            self.warnings += [] if text in self.warnings else [text]

    # Rewriting

    def _text_rewriter(self, rewriter: Rewriter, where: Selection) -> Rewriter:  # noqa: ARG002
        return _TrajectoryRewriter(rewriter)

    def text_files(self) -> Iterable[Path]:
        return self._files()

    # Changing

    def refuse_changes(self) -> NoReturn:
        raise UsageError(
            f"{self.label} has trajectories, which memctl only reads",
            "import it into a store; write trajectories with: memctl export STORE --as atif",
        )


class _TrajectoryRewriter(RewriterWrapper):
    """A rewriter of trajectories, whose digests are renewed: their notes hold for other texts."""

    def rewrite(self, text: bytes, key: str = "") -> Rewritten:
        bare = text.removeprefix(BYTE_ORDER_MARK)
        new = self._rewriter.rewrite(bare, key)
        if not new.hits:
            return new._replace(text=text)
        with suppress(ValueError):  # it is damaged, and ``read`` says so
            new = new._replace(text=with_digests(bare, new.text))
        return new._replace(text=text[: len(text) - len(bare)] + new.text)


def _texts_of(path: Path, name: str) -> Iterator[_Text]:
    place = visible(str(path))
    if path.suffix.lower() == _DOCUMENT:
        with system_errors(path, "read"):
            yield _Text(place, name, system.read_file(path).removeprefix(BYTE_ORDER_MARK))
        return
    for number, line in numbered_lines(path):
        yield _Text(f"line {number:,} of {place}", f"{name}-{number:06}", line)
