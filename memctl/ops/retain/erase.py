"""The action ``erase``: users whose newest message is older than the policy says are erased."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from memctl.errors import Failure
from memctl.location import Location
from memctl.model import MemoryKey, Page
from memctl.ops.data_subject import Subject
from memctl.ops.erase import Erasure
from memctl.ops.receipt import Receipt
from memctl.ops.retain.actions import Acted, Found, MessageAction
from memctl.ops.retain.guard import Guard
from memctl.selection import Selection
from memctl.store import OpenMode, Store


class ErasureAction(MessageAction):
    """The action of a policy that erases idle users, as ``memctl erase --user`` does."""

    async def _idle(self, store: Store) -> frozenset[str]:
        """Return the users whose newest message is older than the policy says.

        A user with a memory whose messages have no time, or without a message, is not idle.
        """
        where = self.policy.where
        idle: set[str] = set()
        others: set[str] = set()
        async with aclosing(store.list_memories(Selection(users=where.users))) as infos:
            async for info in infos:
                newest = store.dialect.moment(info.last)
                is_old = newest is not None and where.until is not None and newest < where.until
                (idle if is_old else others).add(info.key.user)
        return frozenset(idle - others - {""})

    async def pages(self, store: Store, found: Found) -> AsyncGenerator[Page]:
        users = await self._idle(store)
        if not users:
            return
        holds = self.around.options.holds.read(store)
        async with aclosing(store.read(Selection(users=users))) as pages:
            async for page in pages:
                if (failure := holds.failure(page.memory.key)) is not None:
                    found.held[page.memory.key] = failure
                    continue
                yield page
                del page

    async def carry_out(self, archive: Location, acted: Acted) -> None:
        with Guard() as guard:
            await guard.read(archive, self.around.options.observer)
            async with self.opened(OpenMode.CHANGE) as store:
                idle = await self._idle(store)
                with self.around.stop.cooperative_while():
                    for user, messages in guard.users():
                        if self.around.stop.asked:
                            break
                        if user in idle:
                            await self._erase(store, guard, user, messages, acted)
                        elif await _exists(store, user):
                            acted.left += 1

    async def _erase(
        self, store: Store, guard: Guard, user: str, messages: int, acted: Acted
    ) -> None:
        """Erase a user from the store, if the archive has all messages of the user."""
        subject = Subject(user)
        if not await self._is_archived(store, guard, subject):
            acted.left += 1
            return
        stores, receipt = [(store, self.around.record())], Receipt.begin(None, subject)
        erasure = Erasure(subject, stores, self.options(), receipt)
        [run] = erasure.targets
        try:
            await erasure.execute()
        finally:
            if run.begun and erasure.receipt is not None:
                acted.receipts.append(erasure.receipt.file.text)
        if run.error is not None:
            raise run.error
        report = run.report
        erased = sum(report.erased.values())
        acted.memories += len(report.erased)
        acted.messages += erased
        acted.failures += report.failures
        if erased > messages:
            lost = f"{erased - messages:,} messages came while the user was erased"
            acted.failures.append((MemoryKey(user, ""), Failure("unarchived", lost)))

    async def _is_archived(self, store: Store, guard: Guard, subject: Subject) -> bool:
        """Return whether the archive has all messages of a user that are not held."""
        holds = self.around.options.holds.read(store)
        async with aclosing(store.read(subject.where)) as pages:
            async for page in pages:
                key = page.memory.key
                if holds.failure(key) is not None:
                    continue
                for entry in page.messages:
                    if not guard.holds(key, entry):
                        return False
        return True


async def _exists(store: Store, user: str) -> bool:
    async with aclosing(store.headers(Subject(user).where)) as memories:
        return await anext(memories, None) is not None
