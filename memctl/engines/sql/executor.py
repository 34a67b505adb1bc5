"""The procedure of all writers and editors of SQL layouts: batches, transactions, failures.

Small memories share a transaction, because each commit waits for the disk.  A large memory has a
transaction of its own.  A layout supplies the statements of a transaction.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from functools import partial
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from memctl.engines.sql.connection import AsyncConnection
from memctl.engines.sql.database import Contended, Database, RejectedValue, retry_while_locked
from memctl.engines.sql.syntax import PIECE_VALUES
from memctl.errors import Failure
from memctl.model import Memory, MemoryKey, Page, WriteResult
from memctl.storekit.batching import BATCH_BYTES, Large, Small, gather

BATCH_MESSAGES = 10_000
"""The maximum number of messages in a transaction that changes several memories."""


class Task(Protocol):
    """A memory to write, or an edit of a memory to make.

    The classes are ``Small``, ``Large``, ``Edit`` and ``LargeEdit``.
    """

    @property
    def memory(self) -> Memory:
        """The memory to write or edit; only its key is used here."""


class LargeTask(Task, Protocol):
    """A write or edit of a large memory, whose messages come as a stream of pieces.

    The executor must consume all pieces.
    """

    async def whole(self) -> Any:
        """Consume all pieces; return the same write or edit as a small task."""

    async def drain(self) -> None:
        """Consume and drop the pieces that were not consumed yet."""


SmallT = TypeVar("SmallT", bound=Task)
LargeT = TypeVar("LargeT", bound=LargeTask)


class Refused(Exception):
    """Raised for a batch of memories if some cannot be changed.

    ``failures`` has the reason for each such memory.  The other memories can be changed.
    """

    def __init__(self, failures: Mapping[MemoryKey, Failure]) -> None:
        super().__init__(f"{len(failures)} memories cannot be changed")
        self.failures = failures


class Executor(ABC, Generic[SmallT, LargeT]):
    """One write or one edit of a store: commits memories to the database in batches.

    A subclass defines ``commit``.  It also defines ``commit_large`` if it can change a large memory
    without holding all of its messages.
    """

    memory_errors: ClassVar[tuple[type[RejectedValue] | type[Contended], ...]] = (
        RejectedValue,
        Contended,
    )
    """Errors of a transaction that are reported as failures of memories; others end the run."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def execute(
        self, batches: AsyncGenerator[list[SmallT] | LargeT]
    ) -> AsyncGenerator[WriteResult]:
        """Commit the batches in order, on one connection; yield a result for each memory.

        A batch is a list of small tasks, or a single large task.
        """
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(aclosing(batches))
            connection: AsyncConnection | None = None
            async for batch in batches:
                if connection is None:
                    connection = await stack.enter_async_context(self._database.connect())
                    await self.prepare(connection)
                if isinstance(batch, list):
                    for result in await self._execute_small(connection, batch):
                        yield result
                else:
                    yield await self._execute_large(connection, batch)
                del batch  # the next batch needs its room

    # Specific to a layout

    async def prepare(self, connection: AsyncConnection) -> None:
        """Prepare a new connection, before the first batch is committed."""

    def failure(self, task: SmallT | LargeT) -> Failure | None:  # noqa: ARG002
        """Return why the task's memory cannot be changed; None to attempt the change."""
        return None

    @abstractmethod
    async def commit(self, connection: AsyncConnection, batch: list[SmallT]) -> list[WriteResult]:
        """Write or edit small memories in one transaction; return the result for each memory.

        Raises:
            Refused: nothing was changed.  The error names memories; without these, the transaction
                can be repeated.
            RejectedValue, Contended: nothing was changed, because of a memory of the batch that
                the database does not name.
            MemctlError: the store failed.
        """

    async def commit_alone(
        self, connection: AsyncConnection, batch: list[SmallT]
    ) -> list[WriteResult]:
        """Commit a batch of one memory.  A subclass may override this to try several times.

        Raises:
            Refused, MemctlError: as ``commit``.
        """
        return await self.commit(connection, batch)

    async def commit_large(self, connection: AsyncConnection, large: LargeT) -> WriteResult:
        """Write or edit a large memory in one transaction; return its result.

        The default holds all messages of the memory at once.

        Raises:
            Refused, MemctlError: as ``commit``.
        """
        [result] = await self._execute_small(connection, [await large.whole()])
        return result

    # The procedure

    async def _execute_small(
        self, connection: AsyncConnection, batch: list[SmallT]
    ) -> list[WriteResult]:
        results: list[WriteResult] = []
        good: list[SmallT] = []
        for task in batch:
            if failure := self.failure(task):
                results.append(WriteResult(task.memory.key, failure=failure))
            else:
                good.append(task)
        if not good:
            return results
        refused: Mapping[MemoryKey, Failure] = {}
        try:
            if len(good) == 1:
                return results + await self.commit_alone(connection, good)
            return results + await self.commit(connection, good)
        except Refused as error:
            refused = error.failures
        except self.memory_errors as error:
            if len(good) == 1:
                return [*results, WriteResult(good[0].memory.key, failure=error.failure)]
        if refused:
            results += [WriteResult(key, failure=failure) for key, failure in refused.items()]
            parts = [[task for task in good if task.memory.key not in refused]]
        else:  # the database does not say which memory is the reason
            half = len(good) // 2
            parts = [good[:half], good[half:]]
        for part in parts:
            results += await self._execute_small(connection, part)
        return results

    async def _execute_large(self, connection: AsyncConnection, large: LargeT) -> WriteResult:
        key = large.memory.key
        failure = self.failure(large)
        if failure is None:
            try:
                result = await self.commit_large(connection, large)
                if result.failure is None:
                    return result
                failure = result.failure
            except Refused as error:
                failure = error.failures[key]
            except self.memory_errors as error:
                failure = error.failure
        await large.drain()
        return WriteResult(key, failure=failure)


class Writer(Executor[Small, Large]):
    """One write of memories to a store."""

    def write(self, pages: AsyncGenerator[Page]) -> AsyncGenerator[WriteResult]:
        """Write the memories of the pages; yield a result for each memory."""
        return self.execute(gather(pages, BATCH_BYTES, BATCH_MESSAGES))


async def erase_memories(
    sizes: Mapping[MemoryKey, int],
    attempt: Callable[[Sequence[MemoryKey]], Awaitable[Mapping[MemoryKey, int]]],
    most: int,
) -> AsyncGenerator[WriteResult]:
    """Erase memories in batches of at most ``most`` messages; yield a result for each memory.

    ``sizes`` has the number of messages of each memory.  ``attempt`` erases memories in one
    transaction, and returns the number of deleted messages of each.  If the database refuses a
    batch, or other programs lock its rows, each half is erased alone.  The erase of a single memory
    waits for locked rows.
    """
    waiting = deque(_erase_batches(sizes, most))
    while waiting:
        batch = waiting.popleft()
        try:
            if len(batch) == 1:
                deleted = await retry_while_locked(partial(attempt, batch))
            else:
                deleted = await attempt(batch)
        except (RejectedValue, Contended) as error:
            if len(batch) == 1:
                yield WriteResult(batch[0], failure=error.failure)
            else:
                half = len(batch) // 2
                waiting.extendleft((batch[half:], batch[:half]))
            continue
        for key in batch:
            yield WriteResult(key, deleted=deleted.get(key, 0))


def _erase_batches(sizes: Mapping[MemoryKey, int], most: int) -> Iterator[list[MemoryKey]]:
    batch: list[MemoryKey] = []
    messages = 0
    for key, size in sizes.items():
        if batch and (messages + size > most or len(batch) == PIECE_VALUES):
            yield batch
            batch, messages = [], 0
        batch.append(key)
        messages += size
    if batch:
        yield batch
