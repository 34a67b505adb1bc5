"""Sessions of coding agents as files, small ones that the programs would resume."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any

CLAUDE = "5c2d1e00-0000-4000-8000-00000000aaaa"
CODEX = "01a1f866-0d05-7111-8111-000000000001"
PROJECT = "/home/ada/shop"


def claude_line(number: int, text: str, **fields: Any) -> dict[str, Any]:
    """Return a line of a session of Claude Code; even numbers are the user's."""
    kind = "assistant" if number % 2 else "user"
    content = [{"type": "text", "text": text}] if number % 2 else text
    return {
        "parentUuid": f"u{number - 1}" if number else None,
        "isSidechain": False,
        "type": kind,
        "message": {"role": kind, "content": content},
        "uuid": f"u{number}",
        "timestamp": f"2026-11-20T10:00:{number:02}.000Z",
        "sessionId": CLAUDE,
        "cwd": PROJECT,
        **fields,
    }


def claude_session(
    folder: Path, *texts: str, id: str = CLAUDE, project: str = PROJECT, lines: bytes = b""
) -> Path:
    """Write a session of Claude Code with these texts, and further ``lines`` as they are."""
    slug = re.sub(r"[^A-Za-z0-9]", "-", project)
    path = folder / "projects" / slug / f"{id}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    found = [
        claude_line(number, text, sessionId=id, cwd=project) for number, text in enumerate(texts)
    ]
    path.write_bytes(b"".join(json.dumps(line).encode() + b"\n" for line in found) + lines)
    return path


def beside(path: Path, name: str, data: bytes) -> Path:
    """Write a file that Claude Code keeps for the session at ``path``."""
    file = path.with_suffix("") / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    return file


def codex_session(folder: Path, *texts: str, id: str = CODEX, lines: bytes = b"") -> Path:
    """Write a rollout of Codex with these texts, and further ``lines`` as they are."""
    path = folder / "sessions" / "2026" / "11" / "20" / f"rollout-2026-11-20T10-00-00-{id}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    time = "2026-11-20T10:00:00.000Z"
    meta = {"id": id, "timestamp": time, "cwd": PROJECT, "originator": "x", "cli_version": "0.1"}
    found: list[tuple[str, dict[str, Any]]] = [("session_meta", meta)]
    for number, text in enumerate(texts):
        role, kind = ("assistant", "output_text") if number % 2 else ("user", "input_text")
        if role == "user":
            found.append(("event_msg", {"type": "user_message", "message": text}))
        content = [{"type": kind, "text": text}]
        found.append(("response_item", {"type": "message", "role": role, "content": content}))
    path.write_bytes(
        b"".join(
            json.dumps({"timestamp": time, "type": kind, "payload": payload}).encode() + b"\n"
            for kind, payload in found
        )
        + lines
    )
    return path


def settle(folder: Path, days: float = 1) -> None:
    """Let the files be ``days`` old, so that no agent seems to be at work."""
    for path in folder.rglob("*"):
        os.utime(path, (time.time() - days * 86_400,) * 2)


def files(folder: Path) -> dict[str, bytes]:
    """Return the contents of all files in a folder besides those of memctl."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "memctl" not in path.name
    }
