"""Memories of AgentScope 1.x with all that Python's JSON can write, the same in each run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from typing import Any

from memctl.model import Memory, MemoryKey, StoredMessage
from memctl.testing.samples import Sample

PIECES = [
    *("a", "\u00fc", "\U0001f600", "\x00", "\ud800", "\u2028", "<b>", "'; DROP", "${x}", "\\", '"'),
    *("\n", "\t", ":", "*", "%", "\u202e", "A" * 80, " "),
]
USERS = ["u1", "u:2", "*", "\u00fc\U0001f600", "a-b"]
MARKS = ["hint", "compressed", "a:b", "*", "\u00e9", "x-y", "%s", "\U0001f600", "two words"]
MESSAGES = 40
"""The number of messages of each memory."""
LARGE = 3_000_000


def memories(count: int, deep: int = 90) -> Iterator[Sample]:
    """Yield a number of memories.

    The first memory has a message of 3 MB.  Some values are nested ``deep`` levels.
    """
    chance = Random(7)
    writer = _Writer(chance, deep)
    for number in range(count):
        user = chance.choice(USERS)
        key = MemoryKey(user, f"s-{number}" if number % 3 else f"s:{number}*")
        entries = list(writer.messages())
        if not number:
            message = {**json.loads(entries[3].message), "content": "B" * LARGE}
            entries[3] = entries[3]._replace(message=json.dumps(message).encode())
        yield Sample(Memory(key, summary=chance.choice(["", writer.name()])), entries)


class _Writer:
    def __init__(self, chance: Random, deep: int) -> None:
        self._chance = chance
        self._deep = deep

    def messages(self) -> Iterator[StoredMessage]:
        """Yield the messages of a memory; most calls are followed by their results."""
        call = ""
        for number in range(MESSAGES):
            id = f"{self.name(2)}-{number}"
            message: dict[str, Any] = {"id": id, "name": self.text(2)}
            if call:
                output = self._chance.choice([self.text(), [self.text_block()], [self.block()]])
                result = {"type": "tool_result", "id": call, "name": "f", "output": output}
                message |= {"role": "system", "content": [result]}
                call = ""
            else:
                message["role"] = self._chance.choice(["user", "assistant", "assistant", "system"])
                blocks = [self.block() for _ in range(self._chance.randint(0, 4))]
                message["content"] = self.text(9) if self._chance.random() < 0.4 else blocks
                if message["role"] == "assistant" and self._chance.random() < 0.4:
                    use = {"type": "tool_use", "id": f"call-{number}", "name": "f"}
                    message["content"] = [self.text_block(), use | {"input": {"q": self.value()}}]
                    call = use["id"] if self._chance.random() < 0.8 else ""
            message["metadata"] = self.metadata()
            message["timestamp"] = f"2025-01-01 00:00:00.{number:03}"
            if self._chance.random() < 0.2:
                message["invocation_id"] = self.text(2)
            if self._chance.random() < 0.1:
                message[self.text(2) or "more"] = self.value()
            count = self._chance.choice([0, 0, 0, 1, 2])
            marks = dict.fromkeys(self._chance.choice(MARKS) for _ in range(count))
            yield StoredMessage(id, json.dumps(message).encode(), tuple(marks))

    def text(self, most: int = 6) -> str:
        return "".join(self._chance.choice(PIECES) for _ in range(self._chance.randint(0, most)))

    def name(self, most: int = 6) -> str:
        """Return a text that every database accepts."""
        return self.text(most).replace("\0", "").encode("utf-8", "replace").decode()

    def metadata(self) -> Any:
        deep: Any = "deep"
        for _ in range(self._deep):
            deep = [deep]
        one = self._chance.random()
        return {"deep": deep} if one < 0.02 else None if one < 0.3 else {"key": self.value()}

    def value(self, depth: int = 0) -> Any:
        match self._chance.randint(0, 9):
            case 0:
                return None
            case 1:
                return self._chance.choice([True, False])
            case 2:
                return self._chance.choice([0, 1, -1, 2**63, 2**80, -(2**70)])
            case 3:
                return self._chance.choice([1.5, 1e300, -0.0, 1.0])
            case 4:
                return self._chance.choice([float("nan"), float("inf")])
            case 5 if depth < 3:
                return [self.value(depth + 1) for _ in range(self._chance.randint(0, 3))]
            case 6 if depth < 3:
                return {self.text(2): self.value(depth + 1)}
            case _:
                return self.text()

    def text_block(self) -> dict[str, Any]:
        return {"type": "text", "text": self.text()}

    def block(self) -> dict[str, Any]:
        match self._chance.randint(0, 7):
            case 0:
                thinking = {"type": "thinking", "thinking": self.text()}
                return thinking | {"signature": self.text(2)}
            case 1:
                url = ["https://example.com/a.png", "/tmp/\u00e4 b.png", "a.wav", "http://x y/"]
                source = {"type": "url", "url": self._chance.choice(url)}
                return {"type": "image", "source": source}
            case 2:
                source = {"type": "base64", "media_type": "audio/wav", "data": "AAAA"}
                return {"type": "audio", "source": source, "name": self.text(1)}
            case 3:
                return {"type": self._chance.choice(["other", "file"]), "x": self.value()}
            case 4:
                return {**self.text_block(), "cache": self.value()}
            case _:
                return self.text_block()
