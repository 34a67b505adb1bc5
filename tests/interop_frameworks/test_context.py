"""``memctl context`` shows what an agent of each framework sends to its model.

An agent talks with a model on loopback, memctl shows the context, and the user asks once more: the
request has what memctl has shown, and the question.  The model classes of LangChain, LangGraph and
LlamaIndex that send HTTP are packages of their own: there, a model class records what it is given.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from memctl.dialects.adk import ADK
from memctl.dialects.agno import AGNO
from memctl.dialects.langchain import LANGCHAIN
from memctl.dialects.llamaindex import LLAMAINDEX
from memctl.dialects.openai_agents import OPENAI_AGENTS
from memctl.dialects.view import Dialect
from tests.interop_frameworks.test_frameworks import place
from tests.support import sent
from tests.support.cli import report
from tests.support.model_server import CALLS, RecordingServer
from tests.support.worker import Worker, for_the_session

pytestmark = pytest.mark.slow

SESSIONS = {
    "adk": (
        *("plain", "rewound", "compacted", "compacted-rewound"),
        *("pending", "answered", "updated", "silent", "stopped", "confirmed"),
    ),
    "openai_agents": (
        *("plain", "rewound", "compacted", "stopped", "odd"),
        *("sqlalchemy", "advanced", "branched", "other"),
    ),
    "langchain": ("plain",),
    "langgraph": ("plain", "forked", "removed", "stopped"),
    "llamaindex": ("plain", "archived"),
    "agno": ("plain", "stopped", "continued"),
}
DIALECTS: dict[str, Dialect] = {
    "adk": ADK,
    "openai_agents": OPENAI_AGENTS,
    "langchain": LANGCHAIN,
    "langgraph": LANGCHAIN,
    "llamaindex": LLAMAINDEX,
    "agno": AGNO,
}
WITHOUT_USERS = ("openai_agents", "langchain", "llamaindex")
QUESTION = ("user", [("text", "And now?")])


class Talker(Worker):
    """The worker with the agents."""

    environment = ".interop-frameworks"
    script = "interop_frameworks/talker.py"


class GraphTalker(Talker):
    """The same with LangGraph."""

    environment = ".interop-langgraph"


talker, graph_talker = for_the_session(Talker), for_the_session(GraphTalker)


@pytest.fixture
def model() -> Iterator[RecordingServer]:
    with RecordingServer() as server:
        yield server


class Talks:
    """Sessions of agents with users."""

    owner = "ada"
    """The user of the sessions of frameworks without users."""

    def __init__(self, run: Any, workers: dict[str, Worker], model: RecordingServer) -> None:
        self.run = run
        self._workers = workers
        self._model = model

    def write(self, framework: str, session: str, path: Path) -> str:
        """Have an agent talk with a user; return the place of the session."""
        self._ask("write", framework, session, path)
        return self.place(framework, session, path)

    def place(self, framework: str, session: str, path: Path) -> str:
        layout = framework.replace("_", "-")
        if session in ("advanced", "branched", "other"):
            layout = "openai-agents-advanced"
        owned = self.owner and framework in WITHOUT_USERS
        return place(layout, path) + (f"&owner={self.owner}" if owned else "")

    def shown(self, framework: str, session: str, path: Path) -> list[sent.Message]:
        """Return what memctl shows of a session."""
        path_of = {"branched": "main", "other": "other"}.get(session)
        words = ("--path", path_of) if path_of else ()
        place = self.place(framework, session, path)
        found = report(self.run("context", place, *words, "--json"))
        return sent.shown([one["message"] for one in found["messages"]], DIALECTS[framework])

    def sent(self, framework: str, session: str, path: Path) -> list[sent.Message]:
        """Have the user ask once more; return what the agent sends before the question."""
        given = self._ask("ask", framework, session, path)
        match framework:
            case "adk":
                found = sent.gemini(self._last["contents"])
            case "openai_agents":
                found = sent.responses(self._last["input"])
            case "agno":
                found = sent.chat(self._last["messages"])
            case "llamaindex":
                found = sent.llamaindex(given)
            case _:
                found = sent.langchain(given)
        assert found[-1] == QUESTION
        return found[:-1]

    @property
    def _last(self) -> dict[str, Any]:
        return self._model.requests[-1].body

    def _ask(self, do: str, framework: str, session: str, path: Path) -> Any:
        worker = self._workers.get(framework, self._workers["others"])
        about = {"framework": framework, "session": session, "path": str(path)}
        return worker.ask(do=do, model=self._model.url, **about)


@pytest.fixture
def talks(run: Any, talker: Talker, graph_talker: GraphTalker, model: RecordingServer) -> Talks:
    return Talks(run, {"langgraph": graph_talker, "others": talker}, model)


@pytest.mark.parametrize(
    ("framework", "session"),
    [(framework, session) for framework, some in SESSIONS.items() for session in some],
)
def test_context_is_what_an_agent_sends(
    talks: Talks, tmp_path: Path, framework: str, session: str
) -> None:
    path = tmp_path / "here.db"
    talks.write(framework, session, path)
    shown = talks.shown(framework, session, path)
    assert shown == talks.sent(framework, session, path)


COPIED = [
    *(("adk", session) for session in ("rewound", "compacted", "answered", "updated", "stopped")),
    *(("openai_agents", session) for session in ("plain", "compacted", "stopped")),
    *(("langchain", "plain"), ("llamaindex", "archived")),
    *(("agno", session) for session in ("stopped", "continued")),
]


@pytest.mark.parametrize("target", ["adk", "openai_agents", "langchain", "llamaindex", "agno"])
@pytest.mark.parametrize(("framework", "session"), COPIED)
def test_an_agent_of_another_framework_goes_on(
    talks: Talks, tmp_path: Path, framework: str, session: str, target: str
) -> None:
    """It sends what memctl shows of the copy, which says the same; and so does a copy back."""
    here, there, back = (tmp_path / f"{name}.db" for name in ("here", "there", "back"))
    source = talks.write(framework, session, here)
    copy, again = talks.place(target, session, there), talks.place(framework, session, back)
    assert talks.run("migrate", source, copy, "--lossy").exit_code == 0
    assert talks.run("migrate", copy, again, "--lossy").exit_code == 0
    first, shown = talks.shown(framework, session, here), talks.shown(target, session, there)
    assert said(shown) == said(first)
    assert talks.shown(framework, session, back) == first
    assert talks.sent(target, session, there) == shown


@pytest.mark.parametrize("session", SESSIONS["langgraph"])
@pytest.mark.parametrize("target", WITHOUT_USERS)
def test_an_agent_goes_on_from_a_thread_of_langgraph(
    talks: Talks, tmp_path: Path, session: str, target: str
) -> None:
    talks.owner = ""
    here, there = tmp_path / "here.db", tmp_path / "there.db"
    source = talks.write("langgraph", session, here)
    assert (
        talks.run("migrate", source, talks.place(target, session, there), "--lossy").exit_code == 0
    )
    shown = talks.shown(target, session, there)
    assert said(shown) == said(talks.shown("langgraph", session, here))
    assert talks.sent(target, session, there) == shown


def said(messages: list[sent.Message]) -> list[sent.Part]:
    """Return what messages say, without roles, waiting calls, and the words in their places."""
    parts = [part for _, some in messages for part in some]
    answered = {part[1] for part in parts if part[0] == "result"}
    return [
        part
        for part in parts
        if not (part[0] == "item" or (part[0] == "call" and part[1] not in answered))
        and part[1] not in ("[compaction]", *(f"[{one}: waits for an answer]" for one in CALLS))
    ]
