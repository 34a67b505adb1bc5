"""Numbers in place of the names of users and sessions, for pages that others may read."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from msgspec import structs

from memctl.model import Page


async def pseudonymous(pages: AsyncGenerator[Page]) -> AsyncGenerator[Page]:
    """Yield pages with ``user 1`` and ``session 1`` for names, in the order in which they come."""
    users: dict[str, int] = {"": 0}
    sessions: dict[str, int] = {"": 0}
    async with aclosing(pages):
        async for page in pages:
            key = page.memory.key
            user = users.setdefault(key.user, len(users))
            session = sessions.setdefault(key.session, len(sessions))
            key = key._replace(
                user=f"user {user}" if user else "",
                session=f"session {session}" if session else "",
            )
            yield structs.replace(page, memory=replace(page.memory, key=key))
