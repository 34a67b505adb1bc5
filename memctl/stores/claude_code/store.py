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
import string
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from memctl.dialects.claude_code import CLAUDE_CODE
from memctl.dialects.session_lines import SessionLineView
from memctl.dialects.view import text_of
from memctl.json import jsonio
from memctl.json.located import KEYS
from memctl.layouts.session_files import UUID, MoveLines, Pairs, SessionFile, SessionFilesStore
from memctl.model import MemoryInfo
from memctl.storekit.files import system_errors
from memctl.storekit.projects import (
    FoundProject,
    MovedFile,
    MovedText,
    ProjectMove,
    move_paths,
)
from memctl.storekit.text_files import files_below

_PROJECTS, _SUFFIX, _HISTORY = "projects", ".jsonl", "history.jsonl"
_BY_SESSION = ("file-history", "image-cache", "session-env", "tasks")
"""The folders with a folder for each session."""
_BESIDE = ("todos", "plans", "paste-cache", "shell-snapshots")
"""Further folders with what users have pasted, and what agents have written."""
_TITLES = {"custom-title": "customTitle", "ai-title": "aiTitle", "summary": "summary"}
"""The fields with a title, by the type of the line."""
_SETTINGS = ".claude.json"
_LETTERS = frozenset((string.ascii_letters + string.digits).encode())
_HASHES = 1 << 32
_LONGEST = 200
"""The largest number of characters of a folder's name before its hash."""
_NOTES = "memory"
"""The folder with what the agent has noted on a project, in the folder of the project."""
_OF_RESULTS = (b"<persisted-output>", b"persistedOutputPath")
"""The texts of which a line has one if it names the file with a large result."""
_PROJECT, _OF_PROJECTS = (("project",),), (("projects", KEYS),)
"""The places of folders in the history, and in the settings."""
_NOT_TYPED = frozenset({"isMeta", "isCompactSummary"})


class ClaudeCodeStore(SessionFilesStore):
    """The folder of Claude Code: ``CLAUDE_CONFIG_DIR``, or ``~/.claude``."""

    kind = "claude-code"
    dialect = CLAUDE_CODE
    text_roots = (_PROJECTS, _HISTORY, "debug", *_BY_SESSION, *_BESIDE)
    folders = (f"{_PROJECTS}/*",)
    folder_places = (
        ("cwd",),
        ("relocatedCwd",),
        ("worktreePath",),
        ("worktreeSession", "originalCwd"),
        ("worktreeSession", "worktreePath"),
        ("snapshot", "trackedFileBackups", KEYS),
        ("trackingPath",),
    )

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
        return f"{_PROJECTS}/{_slug(project)}/{id}{_SUFFIX}"

    def new_places(self, session: SessionFile, folders: Sequence[str], move: ProjectMove) -> Pairs:
        folder = session.place.split("/")[1]
        at = next(
            (one for one in (self._info(session).project, *folders) if _slug(one) == folder), ""
        )
        new = _slug(move.path(at))
        if new == _slug(at):
            return []
        own = f"{_PROJECTS}/{folder}/{session.id}", f"{_PROJECTS}/{new}/{session.id}"
        pairs = [own] if (self.folder / own[0]).is_dir() else []
        return [*pairs, (own[0] + _SUFFIX, own[1] + _SUFFIX)]

    def moved_lines(
        self, session: SessionFile, place: str, move: ProjectMove, lines: Iterable[bytes]
    ) -> Iterator[MovedText]:
        """Yield the lines after a move, in which large results are where the session is now."""
        folder = rf"{_PROJECTS}/{_slug(move.old)}(?:-[A-Za-z0-9-]*)?/{session.id}/"
        before, now = re.compile(folder.encode()), f"{Path(session.place).parent}/{session.id}/"
        for moved in super().moved_lines(session, place, move, lines):
            if any(word in moved.text for word in _OF_RESULTS):
                text = before.sub(now.encode(), moved.text)
                paths = moved.paths + ([now] if text != moved.text else [])
                yield moved._replace(text=text, paths=paths)
            else:
                yield moved

    def about_to_move(self, session: SessionFile, move: ProjectMove) -> None:
        """Do nothing: only files tell about one session."""

    def find_further(self, move: ProjectMove, found: FoundProject) -> None:
        """Find the prompts and the settings that name a folder, and the notes on it."""
        if move.sessions is None:
            self._find_notes(move, found)
        found.further = any(not file.session for file in found.files)
        for path, moved in self._further(move, found):
            with system_errors(path, "read"), path.open("rb") as lines:
                for text in moved(lines):
                    found.further = found.further or bool(text.paths)
                    found.kept += text.kept
                    found.left += [f"{path.name} for {one}" for one in text.left]

    def move_further(self, move: ProjectMove, found: FoundProject) -> None:
        for path, moved in self._further(move, found):
            if not self.replace_paths(path, moved):
                found.left.append(f"{path.name}, which another program changed meanwhile")

    def _further(self, move: ProjectMove, found: FoundProject) -> Iterator[tuple[Path, MoveLines]]:
        """Yield the files that name projects, and what makes their new lines."""
        history = self.folder / _HISTORY
        if history.is_file():
            yield history, partial(self._moved_prompts, move, found)
        beside = self.folder.parent if self.folder.name == ".claude" else self.folder
        for settings in dict.fromkeys((self.folder / _SETTINGS, beside / _SETTINGS)):
            if settings.is_file():
                yield settings, partial(_moved_settings, move)

    def _moved_prompts(
        self, move: ProjectMove, found: FoundProject, lines: Iterable[bytes]
    ) -> Iterator[MovedText]:
        """Yield the lines of the history after a move; the prompts of other sessions stay."""
        follows = self.followers(move, found)
        for line in lines:
            prompt = _prompt_in(line)
            places = _PROJECT if follows(prompt.get("sessionId")) else ()
            yield move_paths(line, places, move, f"{_HISTORY}:{prompt.get('timestamp')}")

    def _find_notes(self, move: ProjectMove, found: FoundProject) -> None:
        """Find the notes on the projects of which all sessions follow."""
        follow = {file.old: file.new for file in found.files}
        stay = {place.split("/")[1] for place in self.places() if place not in follow}
        folders = {old.split("/")[1]: new.split("/")[1] for old, new in follow.items()}
        for old, new in sorted((folders | {_slug(move.old): _slug(move.new)}).items()):
            notes = self.folder / _PROJECTS / old / _NOTES
            if old in stay and notes.is_dir():
                found.left.append(f"{_PROJECTS}/{old}/{_NOTES}, where other sessions stay")
            if old in stay or old == new or not notes.parent.is_dir():
                continue
            places = (f"{_PROJECTS}/{old}/{name}" for name in sorted(os.listdir(notes.parent)))
            found.left += [one for one in places if one not in follow and not one.endswith(_NOTES)]
            there = notes.parents[1] / new / _NOTES
            if notes.is_dir():
                both = [notes] if not there.exists() else files_below(notes)
                pairs = ((one, there / one.relative_to(notes)) for one in both)
                found.files += [
                    MovedFile("", *(str(file.relative_to(self.folder)) for file in pair))
                    for pair in pairs
                    if not _same(*pair)
                ]

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


def _prompt_in(line: bytes) -> dict[str, Any]:
    try:
        prompt = jsonio.loads(line)
    except ValueError:  # a line that is cut
        return {}
    return prompt if isinstance(prompt, dict) else {}


def _moved_settings(move: ProjectMove, lines: Iterable[bytes]) -> Iterator[MovedText]:
    yield move_paths(b"".join(lines), _OF_PROJECTS, move, _SETTINGS)


def _slug(project: str) -> str:
    """Return the name of the folder for a project; a long one ends with a hash of the path."""
    data = project.encode("utf-16-le", "surrogatepass")
    units = [unit for (unit,) in struct.iter_unpack("<H", data)]
    slug = "".join(chr(unit) if unit in _LETTERS else "-" for unit in units)
    if len(slug) <= _LONGEST:
        return slug
    number = 0
    for unit in units:
        number = (number * 31 + unit) % _HASHES
    return f"{slug[:_LONGEST]}-{_in_base_36(min(number, _HASHES - number))}"


def _in_base_36(number: int) -> str:
    digits = ""
    while number or not digits:
        number, digit = divmod(number, 36)
        digits = f"{'0123456789abcdefghijklmnopqrstuvwxyz'[digit]}{digits}"
    return digits


def _same(one: Path, other: Path) -> bool:
    return other.is_file() and one.read_bytes() == other.read_bytes()


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
