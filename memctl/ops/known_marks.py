"""The marks that mean something to AgentScope or to memctl; all others are the application's."""

from __future__ import annotations

HINT = "hint"
"""AgentScope's mark of what is for one step of reasoning only (``agent/_react_agent.py``)."""
COMPRESSED = "compressed"
"""AgentScope's mark of messages that a summary stands for (``agent/_react_agent.py``)."""
SUMMARY = "summary"
"""memctl's mark of a message that is such a summary."""
