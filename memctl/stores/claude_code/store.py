"""The sessions of Claude Code, with all files that it keeps for each.

::

    projects/-home-ada-shop/5c2d1e00-0000-4000-8000-00000000aaaa.jsonl
    projects/-home-ada-shop/5c2d1e00-0000-4000-8000-00000000aaaa/tool-results/b1.txt
    file-history/5c2d1e00-0000-4000-8000-00000000aaaa/3f2a@v1

The name of a folder in ``projects`` is the folder in which Claude Code worked, with ``-`` for each
character besides letters, digits and ``-``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime

from memctl.dialects.claude_code import CLAUDE_CODE
from memctl.dialects.session_lines import SessionLineView
from memctl.dialects.view import text_of
from memctl.json import jsonio
from memctl.layouts.session_files import UUID, SessionFile, SessionFilesStore
from memctl.model import MemoryInfo
from memctl.storekit.files import system_errors

_PROJECTS, _SUFFIX, _HISTORY = "projects", ".jsonl", "history.jsonl"
_BY_SESSION = ("file-history", "image-cache", "session-env", "tasks")
"""The folders with a folder for each session."""
_BESIDE = ("todos", "plans", "paste-cache", "shell-snapshots")
"""Further folders with what users have pasted, and what agents have written."""
_TITLES = {"custom-title": "customTitle", "ai-title": "aiTitle", "summary": "summary"}
"""The fields with a title, by the type of the line."""
_NOT_TYPED = frozenset({"isMeta", "isCompactSummary"})


class ClaudeCodeStore(SessionFilesStore):
    """The folder of Claude Code: ``CLAUDE_CONFIG_DIR``, or ``~/.claude``."""

    kind = "claude-code"
    dialect = CLAUDE_CODE
    text_roots = (_PROJECTS, _HISTORY, "debug", *_BY_SESSION, *_BESIDE)
    folders = (f"{_PROJECTS}/*",)

    def places(self) -> Iterator[str]:
        projects = self.folder / _PROJECTS
        with system_errors(projects, "read"):
            if not projects.is_dir():
                return
            for folder in sorted(one.name for one in os.scandir(projects) if one.is_dir()):
                names = (one.name for one in os.scandir(projects / folder) if one.is_file())
                for name in sorted(names):
                    if name.endswith(_SUFFIX):
                        yield f"{_PROJECTS}/{folder}/{name}"

    def id_in(self, place: str) -> str | None:
        match place.split("/"):
            case [folder, _, name] if folder == _PROJECTS and name.endswith(_SUFFIX):
                id = name.removesuffix(_SUFFIX)
                return id if UUID.fullmatch(id) else None
        return None

    def beside(self, session: SessionFile) -> list[str]:
        own = session.place.removesuffix(_SUFFIX)
        return [own, f"debug/{session.id}.txt", *(f"{one}/{session.id}" for one in _BY_SESSION)]

    def new_place(self, id: str, project: str, moment: datetime) -> str:  # noqa: ARG002
        slug = re.sub(r"[^A-Za-z0-9-]", "-", project)
        return f"{_PROJECTS}/{slug}/{id}{_SUFFIX}"

    def at_work(self, session: SessionFile) -> str:
        for file in sorted((self.folder / "sessions").glob("*.json")):
            with suppress(OSError, ValueError):  # the process has ended, or begins
                process = jsonio.loads(file.read_bytes())
                if process["sessionId"] == session.id and _runs(process["pid"]):
                    return f"process {process['pid']}"
        return ""

    def forget(self, session: SessionFile) -> None:
        """Remove the prompts of a session from the history of what the user has typed."""
        self.without_lines(_HISTORY, session.id)

    def told(self, info: MemoryInfo, line: SessionLineView) -> None:
        document = line.document
        info.project = info.project or text_of(document, "cwd") or ""
        title = text_of(document, _TITLES.get(line.kind, ""))
        if title:
            info.title = title
        elif line.kind == "user" and not (document.keys() & _NOT_TYPED):
            info.title = info.title or self.short(line)


def _runs(pid: object) -> bool:
    if not isinstance(pid, int) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)  # sends nothing
    except ProcessLookupError:
        return False
    except PermissionError:  # it is of another user
        return True
    return True
