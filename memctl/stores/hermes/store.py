"""The sessions of Hermes in its ``state.db``.

Each session is a memory.  After a compression, Hermes goes on in a child of the session, and sends
only the messages of the child.

Source: ``hermes_state.py`` of hermes-agent 0.19.0.
"""

from __future__ import annotations

from memctl.dialects.hermes import HERMES
from memctl.layouts.session_rows import FolderColumn, SessionRowsStore, TableOf

_INDEXES = ("messages_fts", "messages_fts_trigram")


class HermesStore(SessionRowsStore):
    """The sessions of Hermes, in a folder with ``state.db``."""

    dialect = HERMES
    program = "Hermes"
    file = "state.db"
    beside = "sessions"
    heads = TableOf("sessions", ("id",), "id")
    messages = TableOf("messages", ("id",), "session_id")
    others = (
        TableOf(
            "session_model_usage",
            (
                *("session_id", "model", "billing_provider", "billing_base_url", "billing_mode"),
                "task",
            ),
            "session_id",
        ),
    )
    dropped = (
        TableOf("compression_locks", ("session_id",), "session_id"),
        TableOf("async_delegations", ("delegation_id",), "origin_session"),
    )
    parent = "parent_session_id"
    folder = "cwd"
    folders = (
        FolderColumn("sessions", "id", "id", "cwd"),
        FolderColumn("sessions", "id", "id", "git_repo_root"),
    )
    created = updated = "timestamp", 1.0
    indexes = _INDEXES
    triggers = tuple(f"{name}_delete" for name in _INDEXES)

    def is_file_of(self, session: str, name: str) -> bool:
        of_session = name in {f"{session}.json", f"{session}.jsonl"}
        return of_session or name.startswith(f"request_dump_{session}_")
