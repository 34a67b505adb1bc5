"""A program that uses the real ``SessionDB`` of Hermes, for tests that run without it.

Runs in the environment ``.interop-hermes``.  Each line of stdin is a request with the ``folder`` of
Hermes, each line of stdout its answer, both JSON.

``write`` writes three sessions: one with a tool call, an image, a rewound prompt and a compression,
the one in which it goes on, and one that is compacted in place.  ``read`` answers what Hermes sends
of each session when it resumes.  ``import`` answers what ``import_sessions`` says of ``sessions``.
``work`` lets a session go on in the folder ``cwd`` of the repository ``root``.  ``list`` answers
the sessions of the folder ``cwd``, each with both, and all folders of sessions.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from hermes_state import SessionDB

START = 1_763_632_800.0
"""The time of the first message, in seconds since 1970."""


def write(db: SessionDB, request: dict[str, Any]) -> Any:  # noqa: ARG001
    moment = START

    def add(session: str, role: str, content: Any, **more: Any) -> Any:
        nonlocal moment
        moment += 1
        return db.append_message(session, role, content, timestamp=moment, **more)

    function = {"name": "timetable", "arguments": '{"day": "Friday"}'}
    call = {"id": "c1", "type": "function", "function": function}
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    db.create_session("s1", "cli", model="m", system_prompt="You are Hermes.", cwd="/srv/shop")
    add("s1", "user", "When does my train leave?")
    add("s1", "assistant", "Let me look.", tool_calls=[call], reasoning_content="Look it up.")
    add("s1", "tool", "09:00", tool_call_id="c1", tool_name="timetable")
    add("s1", "assistant", "At nine.", finish_reason="stop")
    rewound = add("s1", "user", "Forget this one")
    add("s1", "assistant", "What?")
    db.rewind_to_message("s1", rewound)
    add("s1", "user", [{"type": "text", "text": "And this ticket?"}, image])
    add("s1", "assistant", "A ticket to Kyoto.")
    db.end_session("s1", "compression")
    db.create_session("s2", "cli", parent_session_id="s1", cwd="/srv/shop")
    add("s2", "user", "[SUMMARY] Ada takes the train at nine.", api_content="[SUMMARY] nine.")
    add("s2", "assistant", "Understood.")
    db.create_session("s3", "cli", cwd="/srv/blog")
    add("s3", "user", "Write a post.")
    add("s3", "assistant", "Done.")
    summary = {"role": "user", "content": "[SUMMARY] A post was written.", "timestamp": moment + 1}
    db.archive_and_compact("s3", [summary])
    return None


def read(db: SessionDB, request: dict[str, Any]) -> Any:  # noqa: ARG001
    sessions = sorted(one["id"] for one in db.export_all())
    return {session: db.get_resume_conversations(session)[0] for session in sessions}


def read_in(db: SessionDB, request: dict[str, Any]) -> Any:
    return db.import_sessions(request["sessions"])


def work(db: SessionDB, request: dict[str, Any]) -> Any:
    return db.update_session_cwd(request["session"], request["cwd"], "main", request["root"])


def list_of(db: SessionDB, request: dict[str, Any]) -> Any:
    found = db.list_sessions_rich(cwd_prefix=request["cwd"], include_children=True)
    sessions = {one["id"]: [one["cwd"], one["git_repo_root"]] for one in found}
    return [sessions, sorted(one["cwd"] for one in db.distinct_session_cwds())]


DO = {"write": write, "read": read, "import": read_in, "work": work, "list": list_of}


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        db = SessionDB(Path(request["folder"]) / "state.db")
        answer = DO[request["do"]](db, request)
        db.close()
        print(json.dumps({"answer": answer}), flush=True)


if __name__ == "__main__":
    main()
