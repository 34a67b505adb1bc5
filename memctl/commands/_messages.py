"""``inspect --messages``: the messages one by one, as they are read."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

from memctl.errors import UsageError
from memctl.model import Memory, StoredMessage
from memctl.output.formats import Listing, message_json
from memctl.output.terminal import Format, Output
from memctl.selection import Selection
from memctl.store import Store


async def print_messages(output: Output, store: Store, where: Selection) -> int:
    """Prints the selected messages, and counts their memories.

    Raises:
        UsageError: messages have no form in CSV.
    """
    match output.format:
        case Format.TABLE:
            return await _conversations(output, store, where)
        case Format.NDJSON:
            return await _lines(store, where)
        case Format.JSON:
            return await _object(output, store, where)
        case Format.CSV:
            raise UsageError("messages have no form in CSV", "take --format ndjson")


async def _conversations(output: Output, store: Store, where: Selection) -> int:
    from memctl.output import conversation  # drawn here only

    console = output.console()
    piped = not sys.stdout.isatty()  # there lines are as long as they are
    memories = 0
    async with aclosing(store.read(where)) as pages:
        async for page in pages:
            if page.offset == 0:
                if memories:
                    console.print()
                console.print(conversation.heading(page.memory), soft_wrap=piped)
                memories += 1
            for number, entry in enumerate(page.messages, page.offset + 1):
                console.print(conversation.message(entry, number), soft_wrap=piped)
    return memories


async def _lines(store: Store, where: Selection) -> int:
    memories = 0
    async with aclosing(store.read(where)) as pages:
        async for page in pages:
            memories += page.offset == 0
            for entry in page.messages:
                sys.stdout.writelines(_row(page.memory, entry))
                sys.stdout.write("\n")
    return memories


async def _object(output: Output, store: Store, where: Selection) -> int:
    """One object, written as the messages come."""
    memories = 0
    output.listing = listing = Listing("inspect", {}, "messages")
    async with aclosing(store.read(where)) as pages:
        async for page in pages:
            memories += page.offset == 0
            for entry in page.messages:
                listing.add(_row(page.memory, entry))
    return memories


def _row(memory: Memory, entry: StoredMessage) -> Iterator[str]:
    head: dict[str, Any] = {"user": memory.key.user, "session": memory.key.session}
    if memory.key.part:
        head["path"] = memory.key.part
    head |= {"id": entry.id, "marks": list(entry.marks)}
    yield f'{json.dumps(head)[:-1]}, "message": '
    yield from message_json(entry.message)
    yield "}"
