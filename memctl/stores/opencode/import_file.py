"""Files that ``opencode import`` reads: one session, as ``opencode export`` writes it."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

from memctl.dialects.opencode import OPENCODE, OpenCodeView
from memctl.dialects.rows import PARTS
from memctl.json import jsonio
from memctl.layouts.import_file import ImportFile, session_id
from memctl.model import Memory

_VERSION = "1.18.34"
_NO_TOKENS = {"input": 0, "output": 0, "reasoning": 0, "cache": {"read": 0, "write": 0}}


class OpenCodeImportFile(ImportFile):
    """A new file with a session for OpenCode, without what the user took back."""

    dialect = OPENCODE
    in_list = False

    def session(self, memory: Memory, messages: list[dict[str, Any]]) -> dict[str, Any]:
        own = jsonio.loads(memory.extra.encode())["session"][0] if memory.extra else {}
        name = session_id(memory.key)
        made = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
        id = own.get("id") or f"ses_{made}"
        views = [view for view in map(OpenCodeView, messages) if not view.is_reverted]
        times = [view.document["time_created"] for view in views if view.time] or [0]
        info = {
            **{"id": id, "slug": own.get("slug") or made, "title": own.get("title") or name},
            **{"projectID": own.get("project_id") or "global"},
            **{"directory": own.get("directory") or "/", "version": own.get("version") or _VERSION},
            "time": {
                "created": own.get("time_created") or min(times),
                "updated": own.get("time_updated") or max(times),
            },
        }
        found: list[dict[str, Any]] = []
        asked = ""
        for number, view in enumerate(views):
            found.append(_message(view, id, f"{made}{number:06}", asked))
            if view.role == "user":
                asked = found[-1]["info"]["id"]
        return {"info": info, "messages": found}


def _message(view: OpenCodeView, session: str, made: str, asked: str) -> dict[str, Any]:
    """Return a message of the file.

    ``made`` is the end of the ids of a message that has none, and ``asked`` is the id of the
    message of the user before it.
    """
    id, info = view.own_id or f"msg_{made}", view.info
    if not view.own_id:
        model = {"providerID": "memctl", "modelID": "unknown"}
        created = view.document.get("time_created") or 0
        about: dict[str, Any] = {"time": {"created": created}, "agent": "build"}
        if view.role == "user":
            about["model"] = model
        else:
            about |= model | {"parentID": asked or id, "mode": "build", "cost": 0}
            about |= {"path": {"cwd": "/", "root": "/"}, "tokens": _NO_TOKENS, "finish": "stop"}
            about["time"]["completed"] = created
        info |= about
    parts = []
    for number, (row, data) in enumerate(zip(view.document[PARTS], view.parts, strict=False)):
        part = {"id": row.get("id") or f"prt_{made}{number:04}", "sessionID": session}
        if data["type"] == "reasoning":
            part["time"] = {"start": 0}
        parts.append(part | {"messageID": id} | data)
    return {"info": info | {"id": id, "sessionID": session}, "parts": parts}
