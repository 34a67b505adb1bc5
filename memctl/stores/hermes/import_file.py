"""Files that ``SessionDB.import_sessions`` of Hermes reads: a list of its sessions."""

from __future__ import annotations

from typing import Any

from memctl.dialects.agentscope import decoded
from memctl.dialects.hermes import HERMES, HermesView
from memctl.json import jsonio
from memctl.layouts.import_file import ImportFile, session_id
from memctl.model import Memory

_JSON = ("tool_calls", "reasoning_details", "codex_reasoning_items", "codex_message_items")
_PLACE = ("id", "session_id", "active", "compacted")


class HermesImportFile(ImportFile):
    """A new file of sessions for Hermes, without the messages that it does not send."""

    dialect = HERMES
    in_list = True

    def session(self, memory: Memory, messages: list[dict[str, Any]]) -> dict[str, Any]:
        own = jsonio.loads(memory.extra.encode())["sessions"][0] if memory.extra else {}
        views = map(HermesView, messages)
        sent = [_message(view) for view in views if view.unread_because is None]
        times = [one["timestamp"] for one in sent if "timestamp" in one]
        about = {"id": session_id(memory.key), "source": "import"}
        about |= {"started_at": min(times)} if times else {}
        return about | own | {"messages": sent}


def _message(view: HermesView) -> dict[str, Any]:
    found = {name: one for name, one in view.document.items() if name not in _PLACE}
    found |= {name: decoded(found[name]) for name in _JSON if found.get(name)}
    return found | {"content": view.stored_content}
