"""Let the sessions of coding agents follow a folder that was moved or got another name.

The store does it (``Store.rename_project``), each session as a whole.  The journal has what the run
changes before the first change, and what had the new path already: an undo leaves that alone.
"""

from __future__ import annotations

import difflib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from memctl.errors import Conflict, NotFound, UsageError
from memctl.journal import runs
from memctl.journal.renames import Moves, write_project
from memctl.location import visible
from memctl.model import WriteResult
from memctl.ops.change.change import RunOptions
from memctl.ops.holds import nothing_but_held
from memctl.ops.moved_holds import MovedHolds
from memctl.ops.offload.blobs import Blobs
from memctl.ops.rename import MovingRun, Names, RenameRun
from memctl.selection import Selection
from memctl.store import Store
from memctl.storekit.projects import FoundProject, ProjectMove

_NAMED = 5
"""The largest number of files that an error names."""


@dataclass(eq=False)
class ProjectRun(MovingRun):
    """A run that lets sessions follow a folder."""

    move: ProjectMove

    def __post_init__(self) -> None:
        super().__post_init__()
        self._found = FoundProject()

    @property
    def nothing(self) -> str:
        if self._found.further and not self._found.failures:
            return "no session names the folder; the other data of the project follow"
        return "nothing to undo" if self.restores else "nothing is left to rename"

    async def find_moves(self, store: Store) -> Moves:
        """Return the sessions that name the old folder; their keys stay.

        Raises:
            UsageError: the store has no such sessions, or its location chooses a part of them.
            NotFound: nothing names the folder.
            Conflict: the new folder has such a session already.
            MemctlError: as ``Store.find_project``.
        """
        store.refuse_rename("project")
        if store.location.options.get("project"):
            raise UsageError(
                f"{store.label}: ?project= chooses a part, and a folder moves for all sessions",
                "leave out ?project=",
            )
        found = self._found = await store.find_project(self.move)
        if found.conflicts:
            named = ", ".join(map(visible, found.conflicts[:_NAMED]))
            more = ", ..." if len(found.conflicts) > _NAMED else ""
            raise Conflict(
                f"{store.label} has these for both folders: {named}{more}",
                "remove one of both, or give it another name; nothing was changed",
            )
        if not (found.sessions or found.failures or found.further):
            await self.refuse_nothing(store)
        self.report.failures += found.failures.items()
        return {key: key for key in found.sessions}

    async def refuse_nothing(self, store: Store) -> None:
        """Refuse a folder that nothing names, unless a killed run has done all.

        Raises:
            NotFound: nothing names the folder.
        """
        for run in self.killed(store):
            made = runs.Runs().moved_project(run)
            if made and (made.old, made.new) == (self.move.old, self.move.new):
                return
        async with aclosing(store.survey(Selection())) as infos:
            projects = {info.project async for info in infos if info.project}
        near = difflib.get_close_matches(self.move.old, projects, n=1)
        raise NotFound(
            f"{store.label} has no session of the folder {visible(repr(self.move.old))}",
            f"did you mean {visible(repr(near[0]))}?"
            if near
            else "list the sessions and their folders with: memctl inspect STORE",
        )

    async def find_holds(self, store: Store) -> MovedHolds:
        """Refuse to change what held sessions say of the folder.

        Raises:
            Loss: a session is held.
            MemctlError: as ``HoldSource.read``.
        """
        holds = self.options.holds.read(store)
        if held := [(key, failure) for key in self.moves if (failure := holds.failure(key))]:
            raise nothing_but_held(held)
        return MovedHolds()

    def record_moves(self) -> None:
        made = replace(
            self.move,
            sessions=frozenset(self._found.sessions),
            files=tuple(self._found.files),
            kept=frozenset(self._found.kept),
        )
        write_project(self.journal.folder, made)

    @property
    def finds_any(self) -> bool:
        return bool(self._found.sessions) or (self._found.further and not self._found.is_at_work)

    async def renaming(self, store: Store) -> AsyncGenerator[WriteResult]:
        async with aclosing(store.rename_project(self.move, self._found)) as results:
            async for result in results:
                yield result
        if left := self._found.left:
            named = ", ".join(map(visible, dict.fromkeys(left)))
            self._observer.warn(f"{store.label}: the old folder stays in {named}")

    async def look_again(self, store: Store) -> None:
        """Do nothing: sessions that begin in the old folder during the run keep it."""

    def details(self) -> dict[str, Any]:
        return {"renames": "project", "old": self.move.old, "new": self.move.new}


@dataclass(eq=False)
class ProjectUndoRun(ProjectRun):
    """A run that lets sessions go back to a folder, with the way back of a move as ``move``."""

    restores = True
    undone: runs.Run
    """The rename to undo, or the undo of one."""

    async def find_moves(self, store: Store) -> Moves:
        """Return the sessions that followed, and name the folder still.

        Raises:
            UsageError: some of the sessions are selected.
            MemctlError: as ``ProjectRun.find_moves``.
        """
        if self.where != Selection():
            raise UsageError(
                f"the folder {visible(repr(self.move.old))} was renamed for all sessions",
                "undo the rename whole, without a selection",
            )
        return await super().find_moves(store)

    async def refuse_nothing(self, store: Store) -> None:
        """Do nothing: then nothing is left to undo."""

    def details(self) -> dict[str, Any]:
        return {"undoes": self.undone.id}


def renaming(
    record: runs.Run, names: Names, merge: bool, blobs: Blobs | None, *, options: RunOptions
) -> RenameRun | ProjectRun:
    """Return the run that renames what ``names`` says; ``merge`` and ``blobs`` are for users."""
    if names.what == "project":
        move = ProjectMove(names.old, names.new)
        return ProjectRun(record, names.where, move, options=options)
    return RenameRun(record, names.where, names, merge, blobs, options=options)
