"""After an undo the sessions of Agno are what they were, by value: rows, runs and what they repeat.

The runs are as odd as they can be: repeated messages, prompts in the middle, failed runs, those of
members of a team, ids twice, indexes that do not rise.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.stores.test_agno import RUN, SESSION, execute
from tests.support.cli import Run, contents

pytestmark = pytest.mark.slow

IDS = [f"m{number}" for number in range(6)]
texts = st.sampled_from(["kyoto", "osaka 会话", "", "the code is 4711"])
messages = st.lists(
    st.fixed_dictionaries(
        {
            "id": st.sampled_from(IDS),
            "role": st.sampled_from(["user", "assistant", "tool", "system"]),
            "content": texts | st.none(),
        },
        optional={"from_history": st.booleans(), "created_at": st.integers(0, 2 * 10**9)},
    ),
    max_size=5,
)
runs = st.lists(
    st.fixed_dictionaries(
        {
            "messages": messages,
            "status": st.sampled_from(["COMPLETED", "COMPLETED", "ERROR", None]),
            "parent_run_id": st.sampled_from([None, None, None, "r0"]),
            "run_index": st.sampled_from([0, 1, 2, 5, 9, None]),
            "user_id": st.sampled_from(["ada", "ada", None, "bob"]),
            "more": st.fixed_dictionaries(
                {},
                optional={
                    "input": st.fixed_dictionaries({"input_content": texts}),
                    "content": texts,
                    "user_id": st.sampled_from(["ada", "bob", None]),
                    "metadata": st.sampled_from([None, {"memctl": 1}, {"a": 1}]),
                },
            ),
        }
    ),
    max_size=4,
)
places = count()


def fill(path: Path, found: list[dict[str, Any]]) -> None:
    execute(path, f"CREATE TABLE agno_sessions ({SESSION})")
    execute(path, f"CREATE TABLE agno_runs ({RUN})")
    execute(
        path,
        "INSERT INTO agno_sessions (session_id, session_type, user_id, created_at) "
        "VALUES ('kyoto', 'agent', 'ada', 7)",
    )
    for number, one in enumerate(found):
        data = {"run_id": f"r{number}", "session_id": "kyoto", "messages": one["messages"]}
        row = {
            "run_id": f"r{number}",
            "session_id": "kyoto",
            "run_type": "agent",
            **{name: one[name] for name in ("status", "parent_run_id", "run_index", "user_id")},
            "run_data": json.dumps(data | one["more"]),
            "created_at": 1_700_000_000 + number,
        }
        names = ", ".join(row)
        marks = ", ".join("?" * len(row))
        execute(path, f"INSERT INTO agno_runs ({names}) VALUES ({marks})", *row.values())


def dump(path: Path) -> Any:
    found = {}
    with closing(sqlite3.connect(path)) as database:
        for table in "agno_sessions", "agno_runs":
            rows = database.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall()
            found[table] = [
                [json.loads(one) if str(one).startswith("{") else one for one in row]
                for row in rows
            ]
    return found


@given(runs, st.sets(st.sampled_from(IDS), min_size=1))
@settings(max_examples=40)
def test_undo_of_a_deletion_in_agno(
    run: Run, tmp_path: Path, found: list[dict[str, Any]], ids: set[str]
) -> None:
    path = tmp_path / f"agno{next(places)}.db"
    fill(path, found)
    before = dump(path)
    chosen = [argument for id in sorted(ids) for argument in ("--id", id)]
    deleted = run("delete", path, *chosen, "-y")
    assert deleted.exit_code in (0, 7), deleted.output
    if deleted.exit_code or "nothing matched" in deleted.stdout + deleted.stderr:
        assert dump(path) == before
        return
    left = contents(f"sqlite:///{path}?layout=agno").values()
    assert not {entry.id for entries in left for entry in entries} & ids
    undone = run("undo", "--store", path, "-y")
    assert undone.exit_code == 0, undone.output
    assert dump(path) == before
