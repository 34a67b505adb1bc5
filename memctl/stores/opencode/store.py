"""The sessions of OpenCode in its ``opencode.db``.

OpenCode also keeps every change of a session as an event, with the texts.  It does not read the
events when it goes on with a session: they go with the session, and do not come back.

Source: OpenCode 1.18.34.
"""

from __future__ import annotations

from typing import Any

from memctl.dialects.agentscope import decoded
from memctl.dialects.opencode import OPENCODE, REVERTED
from memctl.json.located import EACH
from memctl.layouts.session_rows import FolderColumn, SessionRowsStore, TableOf

_IN_EVENTS = (*(("info", "directory"), ("info", "path", "cwd"), ("info", "path", "root")),)
"""The places of folders in the change of a session or a message."""


class OpenCodeStore(SessionRowsStore):
    """The sessions of OpenCode, in a folder with ``opencode.db``."""

    dialect = OPENCODE
    program = "OpenCode"
    file = "opencode.db"
    beside = "storage/session_diff"
    heads = TableOf("session", ("id",), "id")
    messages = TableOf("message", ("id",), "session_id", ("time_created", "id"))
    part = TableOf("part", ("id",), "session_id", ("message_id", "id")), "message_id"
    others = (
        TableOf("todo", ("session_id", "position"), "session_id"),
        TableOf("session_message", ("id",), "session_id"),
        TableOf("session_input", ("id",), "session_id"),
        TableOf("session_context_epoch", ("session_id",), "session_id"),
    )
    dropped = (
        TableOf("event", ("id",), "aggregate_id"),
        TableOf("event_sequence", ("aggregate_id",), "aggregate_id"),
        TableOf("session_share", ("session_id",), "session_id"),
    )
    owner = "project_id", "project"
    parent = "parent_id"
    folder = "directory"
    folders = (
        FolderColumn("session", "id", "id", "path", rooted="directory"),
        FolderColumn("session", "id", "id", "directory"),
        FolderColumn("message", "id", "session_id", "data", (("path", "cwd"), ("path", "root"))),
        FolderColumn("event", "id", "aggregate_id", "data", _IN_EVENTS),
        FolderColumn("project", "id", "", "worktree"),
        FolderColumn("project", "id", "", "sandboxes", ((EACH,),)),
        FolderColumn("project_directory", "directory", "", "directory"),
        FolderColumn("workspace", "id", "", "directory"),
    )
    created = "time_created", 1000.0
    updated = "time_updated", 1000.0

    def about_messages(
        self, session: dict[str, Any], contents: list[dict[str, Any]]
    ) -> dict[int, dict[str, Any]]:
        revert = decoded(session.get("revert"))
        ids = [content["id"] for content in contents]
        if not isinstance(revert, dict) or revert.get("messageID") not in ids:
            return {}
        first = ids.index(revert["messageID"])
        found: dict[int, dict[str, Any]] = {at: {REVERTED: True} for at in range(first, len(ids))}
        part = revert.get("partID")
        return found | ({first: {REVERTED: part}} if part else {})

    def is_file_of(self, session: str, name: str) -> bool:
        return name == f"{session}.json"
