"""The same text said twice, in frameworks whose messages have no ids of their own."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from memctl.model import MemoryKey
from tests.support.cli import contents

LAYOUTS = [
    *("openai-agents", "openai-branches", "llamaindex", "langchain", "adk&app=weather"),
    *(
        "agno",
        "table&table=chats&columns=session:chat,role:role,content:body,order:nr&content_encoding=text",
    ),
]


def write(path: Path, session: str, count: int) -> Path:
    """Write a conversation in which both sides say the same again and again."""
    said = [("user", "ok"), ("assistant", "sure")] * (count // 2)
    messages = [{"role": role, "content": text} for role, text in said]
    path.write_text(json.dumps({"messages": messages, "memctl": {"session": session}}))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_undo_of_an_import_of_equal_texts_is_exact(run: Any, tmp_path: Path, layout: str) -> None:
    there = f"sqlite:///{tmp_path}/there.db?layout={layout}"
    if layout.startswith("table"):
        with closing(sqlite3.connect(tmp_path / "there.db")) as database:
            database.execute("CREATE TABLE chats (nr INTEGER PRIMARY KEY, chat, role, body)")

    def held() -> dict[str, int]:
        return {key.session: len(found) for key, found in contents(there).items()}

    for session, count in (("a", 2), ("a", 4), ("b", 6)):
        source = write(tmp_path / "s.jsonl", session, count)
        assert run("import", source, there, "--lossy").exit_code == 0
    assert held() == {"a": 4, "b": 6}
    texts = [one.message for one in contents(there)[MemoryKey("", "a")]]
    for left in ({"a": 4}, {"a": 2}):
        assert run("undo", "--store", there, "-y").exit_code == 0
        assert held() == left
    found = [one.message for one in contents(there)[MemoryKey("", "a")]]
    assert len(found) == 2
    if layout in ("openai-agents", "table"):  # whose messages have no ids, times or notes
        assert found == texts[:2]
