"""The roles of messages: the names that frameworks give to user, assistant and system."""

from __future__ import annotations

ROLES = ("user", "assistant", "system")
"""The roles of AgentScope."""
_NAMES = {
    "user": ("human", "humanmessage", "humanmessagechunk"),
    "assistant": ("agent", "ai", "aimessage", "aimessagechunk", "bot", "chatbot", "model"),
    "system": (
        *("developer", "systemmessage", "systemmessagechunk"),
        *("tool", "toolmessage", "toolmessagechunk"),
        *("function", "functionmessage", "functionmessagechunk"),
    ),
}
_ROLES = {name: role for role in ROLES for name in (role, *_NAMES[role])}
ROLE_NAMES = _ROLES.keys()
"""The names of roles that memctl knows, in small letters."""


def role_of(name: str | None) -> str | None:
    """Return the role that a name stands for, whatever its case; an unknown name stays unchanged.

    A result of a tool has the role ``system``, as in AgentScope 1.x.
    """
    return None if name is None else _ROLES.get(name.casefold(), name)
