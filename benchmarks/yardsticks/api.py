"""Memories from one SQL store to another by AgentScope's own classes, as its users do it.

    python api.py SOURCE_URL TARGET_URL USER SESSION [USER SESSION ...]

Runs in an environment with AgentScope; the URLs are SQLAlchemy's.
"""

import asyncio
import sys
from itertools import groupby

from agentscope.memory import AsyncSQLAlchemyMemory
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine


async def copy(source: AsyncEngine, target: AsyncEngine, user: str, session: str) -> None:
    """Copy a memory, messages that follow one another with the same marks at once."""
    async with (
        AsyncSQLAlchemyMemory(source, session_id=session, user_id=user) as old,
        AsyncSQLAlchemyMemory(target, session_id=session, user_id=user) as new,
    ):
        messages = await old.get_memory(prepend_summary=False)
        marks: dict[str, list[str]] = {message.id: [] for message in messages}
        for mark in ("hint", "compressed"):
            for message in await old.get_memory(mark=mark, prepend_summary=False):
                marks[message.id].append(mark)
        for same, some in groupby(messages, key=lambda message: marks[message.id]):
            await new.add(list(some), marks=same or None)


async def main(source_url: str, target_url: str, *names: str) -> None:
    """Copy the memories one by one."""
    source, target = create_async_engine(source_url), create_async_engine(target_url)
    for user, session in zip(names[::2], names[1::2], strict=True):
        await copy(source, target, user, session)
    await source.dispose()
    await target.dispose()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
