"""Events of ADK's sessions, as google-adk 2.13 stores them."""

from __future__ import annotations

import json
from typing import Any

from memctl.model import StoredMessage


def event(number: int, author: str, text: str = "", turn: int = 0, **actions: Any) -> StoredMessage:
    role = "user" if author == "user" else "model"
    value: dict[str, Any] = {
        "id": f"e{number}",
        "author": author,
        "timestamp": 1772000000.0 + number,
        "invocation_id": f"turn-{turn}",
        "actions": actions,
    }
    if text:
        value["content"] = {"role": role, "parts": [{"text": text}]}
    return StoredMessage(f"e{number}", json.dumps({"content": value}).encode())


def compaction(number: int, last: int, text: str) -> StoredMessage:
    """Return a summary of the events from the first to ``last``."""
    content = {"role": "model", "parts": [{"text": text}]}
    times = {"start_timestamp": 1772000001.0, "end_timestamp": 1772000000.0 + last}
    return event(number, "user", compaction=times | {"compacted_content": content})


COMPACTED = [
    event(1, "user", "My card is 4000-1111.", 1),
    event(2, "clerk", "Noted.", 1),
    event(4, "user", "Which seat?", 2),
    compaction(5, 2, "They spoke of a card."),
]
"""A session of which ADK sends the summary and the question."""
