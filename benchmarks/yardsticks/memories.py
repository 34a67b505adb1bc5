"""A search by AgentScope's own classes, which have none: each memory is read and looked at.

    python memories.py STORE.db WORD [WORD ...]

Runs in an environment with AgentScope.  It prints the messages that have all words.
"""

import asyncio
import sqlite3
import sys

from agentscope.memory import AsyncSQLAlchemyMemory
from sqlalchemy.ext.asyncio import create_async_engine


async def main(store: str, *words: str) -> None:
    """Look through the memories one by one."""
    with sqlite3.connect(store) as database:
        sessions = database.execute("SELECT user_id, id FROM session").fetchall()
    engine = create_async_engine(f"sqlite+aiosqlite:///{store}")
    for user, session in sessions:
        async with AsyncSQLAlchemyMemory(engine, session_id=session, user_id=user) as memory:
            for message in await memory.get_memory(prepend_summary=False):
                text = str(message.content).lower()
                if all(word.lower() in text for word in words):
                    print(session, message.id)
    await engine.dispose()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
