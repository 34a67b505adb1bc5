"""Messages that memctl itself writes, as AgentScope would have stored them.

Source: ``Msg.to_dict`` in ``message/_message_base.py`` of agentscope 1.0.21.
"""

from __future__ import annotations

import secrets
import string
from datetime import datetime
from typing import Any

from memctl import codec

_ALPHABET = string.digits + string.ascii_letters
_ID_LENGTH = 22


def authored(
    role: str, name: str, content: str | list[dict[str, Any]], moment: datetime
) -> tuple[str, bytes]:
    """A new message and its id, which no other has; ``moment`` is local time without a zone."""
    id = "".join(secrets.choice(_ALPHABET) for _ in range(_ID_LENGTH))
    message: dict[str, Any] = {
        "id": id,
        "name": name,
        "role": role,
        "content": content,
        "metadata": {},
        "timestamp": moment.isoformat(" ", "milliseconds"),
    }
    return id, codec.dumps(message)
