"""A small store to show memctl with: three sessions of two users, one of them broken.

What docs/tour.svg shows and what tests/test_docs_run.py runs the documentation on.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

FRIDAY = Path(__file__).resolve().parent.parent / "examples" / "friday.json"
STORE = "sqlite:///agents.db?state=sessions"
"""The store, seen from its folder: its messages, and the session states with its summaries."""

_LISBON = (
    ("user", "Where did I stay in Lisbon last year? 🇵🇹"),
    ("assistant", "In Alfama, near the Miradouro de Santa Luzia. Shall I ask for the same room?"),
    ("user", "Yes, from the 3rd of May, for four nights."),
    ("assistant", "Asked for. They answer within a day."),
)
_CALL = {"type": "tool_use", "id": "call_9", "name": "track_parcel", "input": {"number": "84-19"}}
_PARCEL = (
    ("user", "My parcel has not come."),
    ("assistant", "Let me look where it is."),
    ("assistant", [_CALL]),  # the agent was stopped here: no result ever came
)


def make(folder: Path) -> None:
    """Put the store into an existing folder, as ``agents.db`` and ``sessions``."""
    states = {
        "ada_kyoto": json.loads(FRIDAY.read_text("utf-8")),
        "ada_lisbon": _state("Lisbon", "2026-01-05 18:20", _LISBON),
        "bob_parcel": _state("Parcel", "2026-01-09 07:41", _PARCEL),
    }
    incoming = folder / "incoming"
    for place in (incoming, folder / "sessions"):
        place.mkdir()
    for name, memory in states.items():
        state = json.dumps({"memory": memory}, ensure_ascii=False)
        (incoming / f"{name}.json").write_text(state, "utf-8")
    subprocess.run(
        [sys.executable, "-m", "memctl", "-q", "import", "incoming", STORE, "--no-backup"],
        cwd=folder,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    shutil.rmtree(incoming)
    for name in states:  # what an application saves of a session whose memory is in SQL
        path = folder / "sessions" / f"{name}.json"
        if not path.exists():
            path.write_text('{"memory": {"_compressed_summary": ""}}', "utf-8")


def _state(title: str, minute: str, said: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    """The state_dict of a memory: who said what, a second apart."""
    content = [
        [
            {
                "id": f"{title}{number:02}",
                "name": "Friday" if role == "assistant" else title,
                "role": role,
                "content": content,
                "metadata": {},
                "timestamp": f"{minute}:{number:02}.000",
            },
            [],
        ]
        for number, (role, content) in enumerate(said, start=1)
    ]
    return {"_compressed_summary": "", "content": content}
