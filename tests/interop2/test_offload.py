"""Agents of AgentScope 1.x and 2.x go on with sessions whose large contents are in files."""

from __future__ import annotations

import base64
import json
import random
import shutil
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest
from typer.testing import Result

from memctl.inference.tokens import estimate
from tests.summarizers.server import ModelServer
from tests.support.agentscope import AgentScope
from tests.support.agentscope2 import AgentScope2
from tests.support.cli import contents, report

Run = Callable[..., Result]

PNG = base64.b64encode(random.Random(1).randbytes(60_000)).decode()
JPEG = base64.b64encode(random.Random(2).randbytes(40_001)).decode()
MP3 = base64.b64encode(random.Random(3).randbytes(30_002)).decode()
PAGE = "Größe: 😀\n" + 'A "line" of a page.\n' * 3000
"""A text that is nearly as long in JSON with and without non-ASCII characters."""
SAID = "What a long story. " * 1000
"""A spoken text, which stays in its message."""
LARGE = 4
"""The number of messages with a large content."""
WORDS = ("--larger", "20kB", "--keep", "200", "--yes", "--json")


class Sessions(ABC):
    """A place with one session, and the real framework that reads and writes the session."""

    place: str
    """The URL or path of the place."""

    @abstractmethod
    def fill(self) -> None:
        """Have the framework write the session."""

    @abstractmethod
    def go_on(self, place: str, say: str, model: ModelServer) -> str:
        """Have an agent answer, and save what the agent has then; ``place`` may be a copy."""

    @abstractmethod
    def raw(self) -> list[bytes]:
        """Return the texts of messages as the place has them, past memctl."""

    def copy(self, folder: Path) -> str:
        """Return a copy of the place."""
        path = Path(self.place.removeprefix("sqlite:///"))
        target = folder / "copy" / path.name
        target.parent.mkdir()
        if path.is_dir():
            shutil.copytree(path, target)
        else:
            shutil.copy(path, target)
        return self.place.replace(str(path), str(target))

    def rows(self, query: str) -> list[bytes]:
        """Return the texts that a query finds in SQLite."""
        with closing(sqlite3.connect(self.place.removeprefix("sqlite:///"))) as connection:
            connection.text_factory = bytes
            return [text for (text,) in connection.execute(query)]


class Memory1(Sessions):
    """The memory of an agent of AgentScope 1.x in SQL, or in the state of a session."""

    names: ClassVar = {"user": "ada", "session": "trip"}

    def __init__(self, folder: Path, agentscope: AgentScope, *, nested: bool) -> None:
        self.place = str(folder / "sessions") if nested else f"sqlite:///{folder}/m.db"
        self._agentscope = agentscope
        self._nested = nested

    def fill(self) -> None:
        call = {"type": "tool_use", "id": "c1", "name": "read", "input": {"page": 1}}
        result = {"type": "tool_result", "id": "c1", "name": "read"}
        messages = [
            _message("m1", "user", text("A map."), media_1("image", PNG, "image/png")),
            _message("m2", "user", media_1("image", JPEG, "image/jpeg"), text("A photo.")),
            _message("m3", "user", media_1("audio", MP3, "audio/mp3")),
            _message("m4", "assistant", text("I read."), call),
            _message("m5", "system", result | {"output": [text("Page 1"), text(PAGE)]}),
            _message("m6", "assistant", text(SAID)),
        ]
        about = self.names | {"messages": [(one, []) for one in messages]}
        self._agentscope.write(self.place, [about], nested=self._nested)

    def go_on(self, place: str, say: str, model: ModelServer) -> str:
        about = self.names | {"say": _message(f"said {say}", "user", text(say)), "model": model.url}
        return self._agentscope.go_on(place, about, nested=self._nested)

    def raw(self) -> list[bytes]:
        if not self._nested:
            return self.rows('SELECT msg FROM message ORDER BY "index"')
        [file] = Path(self.place).iterdir()
        memory = json.loads(file.read_text("utf-8"))["agent"]["memory"]
        return [json.dumps(pair).encode() for pair in memory["content"]]


class Session2(Sessions):
    """A session of AgentScope 2.x in SQL."""

    names: ClassVar = {"user": "ada", "session": "trip", "agent": "friday"}

    def __init__(self, folder: Path, agentscope: AgentScope2) -> None:
        self.place = f"sqlite:///{folder}/two.db"
        self._agentscope = agentscope

    def fill(self) -> None:
        call = {"type": "tool_call", "id": "c1", "name": "read", "input": "{}"}
        result = {"type": "tool_result", "id": "c1", "name": "read", "state": "success"}
        output = [text("Page 1"), text(PAGE)]
        messages = [
            _message("m1", "user", text("A map."), media_2(PNG, "image/png")),
            _message("m2", "user", media_2(JPEG, "image/jpeg"), text("A photo.")),
            _message("m3", "user", media_2(MP3, "audio/mp3")),
            _message("m4", "assistant", call, result | {"output": output}, text(SAID)),
        ]
        about = {"messages": messages, "context": ["m1", "m2", "m3", "m4"]}
        self._agentscope("write", self.place, **self.names, **about)

    def go_on(self, place: str, say: str, model: ModelServer) -> str:
        return str(self._agentscope("reply", place, **self.names, say=say, model=model.url))

    def raw(self) -> list[bytes]:
        [session] = self.rows("SELECT payload FROM sessions")
        context = json.loads(session)["state"]["context"]
        log = self.rows("SELECT payload FROM messages ORDER BY created_at, msg_id")
        return [json.dumps(one).encode() for one in context] + log


def _message(id: str, role: str, *blocks: dict[str, Any]) -> dict[str, Any]:
    return {"id": id, "name": role, "role": role, "content": [*blocks], "metadata": {}}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def media_1(kind: str, data: str, media_type: str) -> dict[str, Any]:
    return {"type": kind, "source": {"type": "base64", "media_type": media_type, "data": data}}


def media_2(data: str, media_type: str) -> dict[str, Any]:
    return {"type": "data", "source": {"type": "base64", "data": data, "media_type": media_type}}


@pytest.fixture(params=["1.x in SQL", "1.x in a session", "2.x in SQL"])
def sessions(
    request: pytest.FixtureRequest, tmp_path: Path, agentscope: AgentScope, agentscope2: AgentScope2
) -> Sessions:
    """A session with images, sound and a long tool result, which the framework has written."""
    found: Sessions = Session2(tmp_path, agentscope2)
    if request.param.startswith("1.x"):
        found = Memory1(tmp_path, agentscope, nested=request.param.endswith("session"))
    found.fill()
    return found


class Sent(NamedTuple):
    """A request of an agent to the model: its messages, and its size in bytes."""

    messages: list[dict[str, Any]]
    size: int


def sent(sessions: Sessions, place: str, model: ModelServer, say: str = "Go on!") -> Sent:
    """Return what an agent sends to the model when somebody says something."""
    model.requests.clear()
    assert sessions.go_on(place, say, model) == "So be it."
    [request] = model.requests
    messages = request.body["messages"]
    assert say in str(messages)
    return Sent(messages, int(request.headers["content-length"]))


def spoken(request: Sent) -> list[str]:
    """Return the texts in a request, with the results of tools."""
    found = []
    for message in request.messages:
        content = message["content"] or []
        parts = [text(content)] if isinstance(content, str) else content
        found += [part["text"] for part in parts if part["type"] == "text"]
    return found


def shape(request: Sent) -> list[tuple[Any, ...]]:
    """Return the roles in a request, the calls of tools, and which results answer them."""
    fields = ("role", "tool_calls", "tool_call_id")
    return [tuple(one.get(field) for field in fields) for one in request.messages]


def media(request: Sent) -> list[Any]:
    """Return the images and recordings in a request."""
    return [
        part.get("image_url", part.get("input_audio"))
        for message in request.messages
        if isinstance(message["content"], list)
        for part in message["content"]
        if part["type"] != "text"
    ]


@pytest.mark.parametrize("linked", [False, True], ids=["texts", "urls"])
def test_offload_agent_goes_on(
    sessions: Sessions, run: Run, model: ModelServer, tmp_path: Path, linked: bool
) -> None:
    blobs = tmp_path / "blobs"
    place = sessions.place
    before, raw = contents(place), sessions.raw()
    whole = sent(sessions, sessions.copy(tmp_path), model)
    urls = [{"url": f"data:image/png;base64,{PNG}"}, {"url": f"data:image/jpeg;base64,{JPEG}"}]
    assert media(whole) == [*urls, {"data": MP3, "format": "mp3"}]

    prefix = ("--url-prefix", f"file://{blobs}/") if linked else ()
    found = report(run("offload", place, "--to", blobs, *prefix, *WORDS))
    assert (found["messages"]["changed"], found["left"]) == (LARGE, 0)
    slim = sent(sessions, place, model)
    assert shape(slim) == shape(whole)
    # Tokens are those of texts; a text that stands for media is one, too.
    saved = sum(map(estimate, spoken(whole))) - sum(map(estimate, spoken(slim)))
    told = found["tokens"]["before"] - found["tokens"]["after"]
    assert told == pytest.approx(saved, rel=0.01)
    assert SAID in spoken(slim)
    if linked:
        assert media(slim) == media(whole)
    else:
        assert media(slim) == []
        # A message that the log and the context of AgentScope 2.x have alike counts once.
        told = found["bytes"]["before"] - found["bytes"]["after"]
        assert told == pytest.approx(whole.size - slim.size, rel=0.005)
        assert slim.size < whole.size / 8

    assert run("rehydrate", place, "--from", blobs).exit_code == 0
    for key, messages in before.items():
        after = contents(place)[key]
        assert after[: len(messages)] == messages
        assert len(after) == len(messages) + 2
    assert [one for one in sessions.raw() if one in raw] == raw
    assert media(sent(sessions, place, model, "Thanks.")) == media(whole)


def test_offload_comes_back_where_an_agent_of_the_other_version_goes_on(
    run: Run, model: ModelServer, tmp_path: Path, agentscope: AgentScope, agentscope2: AgentScope2
) -> None:
    """The agent sends what it would have sent if nothing had been offloaded."""
    old = Memory1(tmp_path, agentscope, nested=False)
    whole, slim = (Session2(tmp_path / name, agentscope2) for name in ("whole", "slim"))
    blobs = tmp_path / "blobs"
    old.fill()
    for one in whole, slim:
        Path(one.place.removeprefix("sqlite:///")).parent.mkdir()
        target = f"{one.place}?layout=agentscope2&agent={one.names['agent']}"
        assert run("migrate", old.place, target).exit_code == 0
        report(run("offload", old.place, "--to", blobs, *WORDS))
    assert len(slim.raw()) == len(whole.raw())
    assert sum(map(len, slim.raw())) < sum(map(len, whole.raw())) / 3
    assert run("rehydrate", slim.place, "--from", blobs).exit_code == 0
    assert slim.raw() == whole.raw()
    found, wanted = (sent(one, one.place, model) for one in (slim, whole))
    assert len(media(found)) == 3
    assert (media(found), shape(found)) == (media(wanted), shape(wanted))
    reminder = "<current-time>"
    said = [[text for text in spoken(one) if reminder not in text] for one in (found, wanted)]
    assert said[0] == said[1]
