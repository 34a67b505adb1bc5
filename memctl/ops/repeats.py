"""Messages of one memory that share an id."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from hashlib import blake2b

from memctl.model import MemoryKey, Page, StoredMessage


async def without_repeats(
    pages: AsyncGenerator[Page], changed: set[MemoryKey]
) -> AsyncGenerator[Page]:
    """Keeps the first of the messages of a memory that share an id."""
    seen: set[int] = set()
    offset = 0
    async with aclosing(pages):
        async for page in pages:
            if page.offset == 0:
                seen.clear()
                offset = 0
            entries = []
            for entry in page.messages:
                digest = id_digest(page.memory.key, entry)
                if digest in seen:
                    changed.add(page.memory.key)
                else:
                    seen.add(digest)
                    entries.append(entry)
            yield Page(page.memory, entries, offset, page.last)
            offset += len(entries)


def id_digest(key: MemoryKey, entry: StoredMessage) -> int:
    """A number that stands for the id of a message of this memory: small, where many are kept."""
    text = "\0".join((*key, entry.id)).encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(text, digest_size=8).digest())
