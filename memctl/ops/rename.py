"""Give a user or a session of a store another name.

The store does it (``Store.rename``), each session as a whole.  The journal has the old and the new
names before the first change.  An undo renames back, and a run that was killed is run again.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

from memctl.errors import Conflict, Failure, MemctlError, Unavailable, UsageError
from memctl.index.folder import remove_of
from memctl.journal import runs
from memctl.journal.renames import Moves, write_moves
from memctl.location import visible
from memctl.machine.concurrency import in_thread
from memctl.model import MemoryKey, WriteResult
from memctl.ops.change.apply import ChangeCounts
from memctl.ops.change.change import ChangeRun
from memctl.ops.moved_holds import MovedHolds
from memctl.ops.names import list_names, refuse_absent_in
from memctl.ops.offload.blobs import Blobs
from memctl.ops.offload.prune import referred
from memctl.ops.report import Total
from memctl.ops.retry import leaving_damaged
from memctl.ops.same_store import recorded_location, runs_at
from memctl.selection import Selection
from memctl.store import Store
from memctl.text.numbers import count

_NAMED = 5
"""The largest number of sessions that an error names."""
BACK = Failure("changed", "it exists again: another program writes to it")
THERE = Failure("conflict", "a session of its old name exists")


@dataclass(eq=False)
class MovingRun(ChangeRun):
    """A run that gives sessions other names."""

    restores: ClassVar[bool] = False
    """True if the run undoes another one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.moves: Moves = {}
        """The new key of each session by its present key, once they are planned."""
        self._planned_on: Store | None = None
        """The open store that the plan was made on; after a question, the store is opened anew."""
        self._holds = MovedHolds()
        self._told = set[str]()

    @abstractmethod
    async def find_moves(self, store: Store) -> Moves:
        """Return what to rename in an open store.

        Raises:
            MemctlError: it cannot be renamed.
        """

    def killed(self, store: Store) -> list[runs.Run]:
        """Return the renames of the store that were killed."""
        kept = runs.Runs()
        return [
            run
            for run in runs_at(store.location, self.options.locate)
            if run.command == "rename" and not (run.ended or run.over or kept.goes_on(run))
        ]

    def refuse(self, store: Store) -> None:
        """Do nothing: what is to be renamed decides, in ``find_moves``."""

    async def plan(self, store: Store) -> bool:
        """Find what to rename; return False if there is nothing.

        Raises:
            Loss: a session is held, and its hold cannot follow.
            UsageError: the store cannot have a new name.
            MemctlError: as ``find_moves`` and ``Store.read``.
        """
        runs.record_found(self.record, store.location)
        self._planned_on = store
        self.report.failures.clear()
        await store.check_integrity(Selection())
        with self._observer.progress("planning"):
            self.moves = await self.find_moves(store)
            self._holds = await self.find_holds(store)
            self._holds.refuse_unheld()
            for new in self.moves.values():
                if new.session and (failure := store.name_refusal(new)):
                    raise UsageError(f"{store.label}: {failure.message}", "choose another name")
            await leaving_damaged(partial(self._count, store))
        for text in self._holds.notes:
            if text not in self._told:  # a plan that is made again tells no more of the same
                self._observer.note(text)
                self._told.add(text)
        if self._journal is not None:
            self.record_moves()
        return self.finds_any

    def record_moves(self) -> None:
        """Write the plan to the journal."""
        write_moves(self.journal.folder, self.moves)

    @property
    def finds_any(self) -> bool:
        """True if the plan has something to rename."""
        return bool(self.moves or self._holds.old)

    def renaming(self, store: Store) -> AsyncGenerator[WriteResult]:
        """Rename the sessions; yield the result of each."""
        return store.rename(self.moves)

    @property
    def all_moves(self) -> Moves:
        """The moves of the plan, and those that earlier runs of it have made."""
        return self.moves

    async def find_holds(self, store: Store) -> MovedHolds:
        """Return the holds that follow the sessions.

        Raises:
            MemctlError: as ``HoldSource.read``.
        """
        own = recorded_location(self.record, self.options.locate)
        return await MovedHolds.find(self.options.holds, store, self.all_moves, own)

    async def _let_holds_follow(self, store: Store) -> None:
        """Let the holds leave the old names, also those that were added during the run."""
        self._holds = await self.find_holds(store)
        self.report.failures += self._holds.unheld
        self._holds.follow()
        await self._holds.leave(store)

    @property
    def _named(self) -> Selection:
        """The selection of all data with the present names."""
        users, sessions = (frozenset(key[at] for key in self.moves) for at in (0, 1))
        return Selection(users, frozenset() if "" in sessions else sessions)

    async def _count(self, store: Store) -> None:
        sessions_alone = [key for key in self.moves if key.session]
        planned = dict.fromkeys(sessions_alone or self.moves, 0)
        async with aclosing(store.list_memories(self._named)) as infos:
            async for info in infos:
                key = info.key._replace(part="")
                if key in self.moves:
                    planned[key] = planned.get(key, 0) + info.messages
        self.report.planned_by_memory, self.report.planned = planned, ChangeCounts()
        self._note(self.report.planned, planned)

    def _note(self, counts: ChangeCounts, keys: Iterable[MemoryKey]) -> None:
        """Count sessions in ``counts``, of which a rename and its undo say different things."""
        for key in keys:
            counts.memories += 1
            if self.restores:
                counts.restored += self.report.planned_by_memory[key]
            else:
                counts.renamed += self.report.planned_by_memory[key]

    async def carry_out(self, store: Store) -> None:
        """Rename what was planned on a locked store, and remove the indexes of searches.

        If the user was asked meanwhile, the plan is made again.

        Raises:
            Loss: a session is held since the plan, by a hold that cannot follow.
            MemctlError: as ``plan`` and ``Store.rename``.
        """
        if store is not self._planned_on and not await self.plan(store):
            return
        self._holds = await self.find_holds(store)
        self._holds.refuse_unheld()
        if not self.finds_any:
            return
        if self._holds.old and not self.moves:  # an earlier run has renamed all
            await self._let_holds_follow(store)
            return
        self._holds.follow()
        self.begin()
        report, identity = self.report, await store.identity()
        report.left = report.planned.memories
        total = Total(report.planned.memories, report.planned.messages)
        with self._observer.progress("renaming", lambda: total) as progress:
            try:
                async with aclosing(self.renaming(store)) as results:
                    async for result in results:
                        if result.key not in report.planned_by_memory:
                            continue  # the data of a user outside of sessions
                        report.left -= 1
                        if result.failure is not None:
                            report.failures.append((result.key, result.failure))
                            continue
                        self._note(report.done, [result.key])
                        progress.advance(memories=1)
            except MemctlError as error:
                is_unknown = isinstance(error, Unavailable)  # the change may be stored
                self._refused = not is_unknown and not report.done.memories
                if self._refused:
                    self._holds.stay()
                raise
            finally:
                await in_thread(partial(remove_of, identity))
        self._refused = bool(self.moves) and not report.done.memories
        await self.look_again(store)
        if self._refused:
            self._holds.stay()
        else:
            await self._let_holds_follow(store)

    async def look_again(self, store: Store) -> None:
        """Add to the failures what has an old name again, also sessions that are new."""
        failed = {key for key, _ in self.report.failures}
        names = {key._replace(part="") for key in await list_names(store, self._named)}
        left = {key for key in names if {key, MemoryKey(key.user, "")} & self.moves.keys()} - failed
        self.report.failures += [(key, BACK) for key in sorted(left)]

    def counts(self) -> dict[str, int]:
        return {"restored" if self.restores else "renamed": self.report.done.messages}


class Names(NamedTuple):
    """The old and the new name of a user or a session, or the old and the new path of a project.

    ``what`` says of which.
    """

    what: str
    old: str
    new: str

    @property
    def where(self) -> Selection:
        """The selection of all memories with the old name."""
        return self.selection(self.old)

    def selection(self, name: str) -> Selection:
        """Return the selection of all memories with a name."""
        chosen = frozenset({name})
        if self.what == "project":
            return Selection()
        return Selection(users=chosen) if self.what == "user" else Selection(sessions=chosen)

    def renamed(self, key: MemoryKey) -> MemoryKey:
        """Return the key of a session after the rename, without a part."""
        user, session, _ = key
        if self.what == "user":
            return MemoryKey(self.new, session)
        return MemoryKey(user, self.new)


def names_of(
    user: tuple[str, str] | None,
    session: tuple[str, str] | None,
    project: tuple[str, str] | None,
    *,
    merge: bool,
) -> Names:
    """Return what to rename: one of a user, a session and a project, with its old and new name.

    Raises:
        UsageError: not one of them is named, a name is empty or an option, or both names are the
            same.
    """
    given = {"user": user, "session": session, "project": project}
    found = [Names(what, *pair) for what, pair in given.items() if pair is not None]
    if len(found) != 1:
        raise UsageError(
            "two things are named" if found else "nothing to rename is named",
            "write --user OLD NEW, --session OLD NEW or --project OLD NEW",
        )
    [names] = found
    if merge and names.what != "user":
        raise UsageError("--merge makes two users one", "name them with --user OLD NEW")
    if not (names.old and names.new):
        raise UsageError(f"a name of the {names.what} is empty", "check for an unset variable")
    if names.new.startswith("--"):
        raise UsageError(
            f"--{names.what} takes two names, and the second is an option: {visible(names.new)}",
            f"write --{names.what} OLD NEW",
        )
    if names.what == "project":
        names = Names(names.what, *map(_absolute, names[1:]))
    if names.old == names.new:
        raise UsageError("both names are the same", "name the old one, then the new one")
    if names.what == "project" and os.path.commonpath(names[1:]) in names[1:]:
        raise UsageError(
            "one of both folders is inside the other",
            "rename it to a third name first, and that one to the new name",
        )
    return names


def _absolute(folder: str) -> str:
    return os.path.abspath(os.path.expanduser(folder))


@dataclass(eq=False)
class RenameRun(MovingRun):
    """A run that gives a user or a session another name."""

    names: Names
    merge: bool = False
    """True to give the sessions of a user to another user, who exists."""
    blobs: Blobs | None = None
    """The place of offloaded contents, each of which is that of a user."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._shared = set[str]()
        """The names of the offloaded contents to which messages of the user refer."""
        self._begun: Moves = {}

    @property
    def nothing(self) -> str:
        return "nothing is left to rename"

    async def find_moves(self, store: Store) -> Moves:
        """Return the sessions with the old name, and their new keys.

        Raises:
            NotFound: there is no such user or session.
            Conflict: the new name exists.
            MemctlError: as ``Store.names``.
        """
        store.refuse_rename(self.names.what)
        found = {key._replace(part="") for key in await list_names(store, self.names.where)}
        moves = {key: self.names.renamed(key) for key in sorted(found)}
        self._begun = self._begun_before(store)
        begun = set(self._begun.values())
        if not moves and begun:
            return {}
        await refuse_absent_in(self.names.where, len(moves), store)
        store.resolve_names(moves.values())
        names = await list_names(store, self.names.selection(self.names.new))
        there = {key._replace(part="") for key in names} - begun
        if both := sorted(there.intersection(moves.values())):
            raise self._conflict(store, both)
        if there and self.names.what == "user":
            if not self.merge:
                raise Conflict(
                    f"{store.label} has a user {visible(repr(self.names.new))}, of "
                    f"{count(len(there), 'session')}",
                    "choose another name; or --merge makes both users one",
                )
            store.refuse_rename("merge")
        elif self.names.what == "user":  # with what the user has besides sessions
            moves[MemoryKey(self.names.old, "")] = MemoryKey(self.names.new, "")
        if self.names.what == "user":
            await self._find_blobs(store)
        return moves

    async def _find_blobs(self, store: Store) -> None:
        self._shared = await referred(store, self.names.where)
        if self._shared and self.blobs is None:
            raise UsageError(
                f"{store.label} has {count(len(self._shared), 'offloaded content')} of "
                f"{visible(repr(self.names.old))}, which nobody else may put back",
                "name the place of the contents with --blobs",
            )

    async def carry_out(self, store: Store) -> None:
        """Let the new name have the offloaded contents, and rename what was planned.

        Raises:
            Loss: as ``MovingRun.carry_out``.
            MemctlError: as ``Store.rename`` and ``Blobs.share``.
        """
        if self.blobs is not None:
            for name in sorted(self._shared):
                await in_thread(partial(self.blobs.share, name, self.names.old, self.names.new))
        await super().carry_out(store)

    @property
    def all_moves(self) -> Moves:
        return {**self._begun, **self.moves}

    def _begun_before(self, store: Store) -> Moves:
        """Return the moves of the same rename of this store, if a run of it was killed."""
        found: dict[MemoryKey, MemoryKey] = {}
        for run in self.killed(store):
            moves = runs.Runs().renamed(run)
            if all(self.names.renamed(old) == new for old, new in moves.items()):
                found |= moves
        return found

    def _conflict(self, store: Store, both: list[MemoryKey]) -> Conflict:
        if self.names.what == "session":
            names = f"a session {visible(repr(self.names.new))}"
            return Conflict(f"{store.label} has {names}", "choose another name")
        named = ", ".join(visible(repr(key.session)) for key in both[:_NAMED])
        more = ", ..." if len(both) > _NAMED else ""
        return Conflict(
            f"both users have {'this session' if len(both) == 1 else 'these sessions'}: "
            f"{named}{more}",
            "rename or delete them first; nothing was changed",
        )

    def details(self) -> dict[str, Any]:
        return {"renames": self.names.what, "old": self.names.old, "new": self.names.new}


@dataclass(eq=False)
class RenameUndoRun(MovingRun):
    """A run that gives sessions back the names that they had before a rename."""

    restores = True
    undone: runs.Run
    """The rename to undo, or the undo of one."""
    renamed: Moves
    """The new key that the undone run gave each session, by the old key."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._chosen = dict[MemoryKey, MemoryKey]()

    @property
    def nothing(self) -> str:
        return "nothing to undo"

    @property
    def all_moves(self) -> Moves:
        return self._chosen

    async def find_moves(self, store: Store) -> Moves:
        """Return the selected sessions that have their new names still."""
        back = {new: old for old, new in self.renamed.items()}
        named = [old.user for old in back.values() if not old.session]
        chosen = [key for pair in back.items() for key in pair if self.where.has_key(key)]
        if named and any(not {*pair} & {*chosen} for pair in back.items()):
            raise UsageError(
                f"the user {visible(repr(named[0]))} was renamed with all sessions",
                "undo the rename whole, without --user and --session",
            )
        store.resolve_names([*back, *self.renamed])
        users = frozenset(key.user for pair in back.items() for key in pair)
        names = {key._replace(part="") for key in await list_names(store, Selection(users=users))}
        found: dict[MemoryKey, MemoryKey] = {}
        for new, old in back.items():
            if not (self.where.has_key(old) or self.where.has_key(new)):
                continue
            self._chosen[new] = old
            if new.session and new not in names:
                continue
            if new.session and old in names:
                self.report.failures.append((new, THERE))
            else:
                found[new] = old
        return found if any(key.session or key in names for key in found) else {}

    def details(self) -> dict[str, Any]:
        return {"undoes": self.undone.id}
